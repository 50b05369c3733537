"""What commands and demonstrations share: where to compute, what to show, which posterior is meant."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnp_dask.errors import SettingError

if TYPE_CHECKING:
    from distributed import Client, Security

    from bnp_dask.jobfile import ClientSpec
    from bnp_dask.model import Posterior

CONNECT_SECONDS = "20s"

POSTERIOR_NAME = "posterior.zarr"
"""Name of the posterior in a run directory."""


def positive_int(text: str) -> int:
    """Type of an argument: a whole number, at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, needs a whole number, at least 1")
    return value


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Options that say where to compute."""
    group = parser.add_argument_group("where to compute (none of these: in this process, without Dask)")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--workers", type=positive_int, metavar="N", help="start N single-threaded processes here")
    place.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler that runs, such as tcp://host:8786")
    place.add_argument("--scheduler-file", metavar="FILE", help="the file that 'dask scheduler' wrote")
    group.add_argument("--memory-limit", metavar="SIZE", help="memory of each worker started here, such as 4GB")
    group.add_argument("--tls-ca-file", metavar="PEM", help="authority of the certificates, for tls://host:8786")
    group.add_argument("--tls-cert", metavar="PEM", help="this client's certificate")
    group.add_argument("--tls-key", metavar="PEM", help="this client's key")


def client_spec(args: argparse.Namespace, default: ClientSpec | None = None) -> ClientSpec:
    """Where to compute: what the options say, else what the job file says."""
    from bnp_dask.jobfile import TLS, ClientSpec

    default = ClientSpec() if default is None else default
    given = {name: getattr(args, name, None) for name in ("memory_limit", *TLS)}
    if args.workers is None and args.scheduler is None and args.scheduler_file is None:
        return replace(default, **{name: value for name, value in given.items() if value is not None})
    kept = ("memory_limit",) if args.workers is not None else TLS
    given.update({name: getattr(default, name) for name in kept if given[name] is None})
    return ClientSpec(args.workers, args.scheduler, args.scheduler_file, **given)


@contextlib.contextmanager
def open_client(spec: ClientSpec, quiet: bool = False) -> Iterator[Client | None]:
    """A client of the cluster that is meant, closed at the end; None to compute without Dask."""
    if spec.workers is None and spec.scheduler is None and spec.scheduler_file is None:
        yield None
        return
    if spec.workers is None:
        from bnp_dask.execute.lost import closed_in_time

        with closed_in_time(_connect(spec)) as client:
            say(f"scheduler {client.scheduler.address}, dashboard: {client.dashboard_link}", quiet)
            yield client
        return
    from bnp_dask.execute.local import local_client

    with local_client(spec.workers, spec.memory_limit or "auto") as client:
        say(f"{spec.workers} worker{'s' * (spec.workers > 1)}, dashboard: {client.dashboard_link}", quiet)
        yield client


def _connect(spec: ClientSpec) -> Client:
    """A client of a scheduler that runs.

    It is nobody's default: one that fails to connect would stay that of the process until Python frees it.
    """
    from distributed import Client

    how: dict[str, Any] = {"timeout": CONNECT_SECONDS, "security": _security(spec), "set_as_default": False}
    try:
        if spec.scheduler_file is not None:
            if not Path(spec.scheduler_file).exists():
                raise SettingError(
                    f"there is no scheduler file {spec.scheduler_file}; start 'dask scheduler --scheduler-file "
                    f"{spec.scheduler_file}' first"
                )
            return Client(scheduler_file=spec.scheduler_file, **how)
        return Client(spec.scheduler, **how)
    except (OSError, ValueError, TypeError) as error:  # Dask raises a TypeError for tls:// without certificates
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"cannot reach a scheduler at {spec.scheduler or spec.scheduler_file}: {error}") from error


def _security(spec: ClientSpec) -> Security | None:
    """The certificates that are given, as Dask takes them; None leaves it to Dask's own configuration."""
    if spec.tls_ca_file is None:
        return None
    from distributed import Security

    for path in (spec.tls_ca_file, spec.tls_cert, spec.tls_key):
        if path is not None and not Path(path).exists():
            raise SettingError(f"there is no file {path}; a tls connection needs an authority, a certificate and a key")
    return Security(
        tls_ca_file=spec.tls_ca_file,
        tls_client_cert=spec.tls_cert,
        tls_client_key=spec.tls_key,
        require_encryption=True,
    )


def say(line: str, quiet: bool = False) -> None:
    """One line for the user, above a progress bar if there is one."""
    if not quiet:
        from tqdm.auto import tqdm

        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()


class _AboveTheBar(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from tqdm.auto import tqdm

        tqdm.write(self.format(record), file=sys.stderr)


@contextlib.contextmanager
def log_lines(quiet: bool) -> Iterator[None]:
    """What the package logs goes to stderr, one line each: warnings, and unless ``quiet`` one line per lap."""
    logger = logging.getLogger("bnp_dask")
    handler, before = _AboveTheBar(), logger.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def show_bar(quiet: bool) -> bool:
    """Whether a progress bar is of use: somebody looks at a terminal."""
    return not quiet and sys.stderr.isatty()


def posterior_of(path: str) -> Posterior:
    """The posterior at a path, or the one in a run directory."""
    from bnp_dask.results import load

    inside = Path(path) / POSTERIOR_NAME
    return load(str(inside) if inside.exists() else path)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns lined up: text to the left, numbers to the right."""
    cells = [list(header), *[[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]]
    text = [all(isinstance(row[i], str) for row in rows) for i in range(len(header))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        aligned = [c.ljust(w) if left else c.rjust(w) for c, w, left in zip(row, widths, text)]
        lines.append("  ".join(aligned).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def size(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
