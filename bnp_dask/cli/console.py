"""Parts of commands: the client, output, the choice of the posterior, rows of the data, classes of other packages."""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bnp_dask.core import FUNCTIONS, imported
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inputs import local_path, one_line, say, scheduler_in_file, shown, tell

if TYPE_CHECKING:
    from distributed import Client, Security

    from bnp_dask.cli.jobfile import ClientSpec, DataSpec, ExecutorSpec
    from bnp_dask.core import Roles
    from bnp_dask.execute import Executor
    from bnp_dask.model import Posterior


CONNECT_SECONDS = "20s"
"""Longest time for setting up a client of a scheduler that answers."""

FILE_BYTES = 2**20
"""Most bytes read of a scheduler file, which has a few kB."""


def positive_int(text: str) -> int:
    """Type of an argument: a whole number, at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {shown(text)}, needs a whole number, at least 1")
    return value


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose where to compute."""
    group = parser.add_argument_group("where to compute (none of these: in this process, without Dask)")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--workers", type=positive_int, metavar="N", help="start N single-threaded processes here")
    place.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler that runs, such as tcp://host:8786")
    place.add_argument("--scheduler-file", metavar="FILE", help="the file that 'dask scheduler' wrote")
    group.add_argument("--memory-limit", metavar="SIZE", help="memory of each worker started here, such as 4GB")
    group.add_argument("--tls-ca-file", metavar="PEM", help="authority of the certificates, for tls://host:8786")
    group.add_argument("--tls-cert", metavar="PEM", help="this client's certificate")
    group.add_argument("--tls-key", metavar="PEM", help="this client's key")


def client_spec(
    args: argparse.Namespace, default: ClientSpec | ExecutorSpec | None = None
) -> ClientSpec | ExecutorSpec:
    """Where to compute: by the options, else by the job file.

    Raises
    ------
    SettingError
        The job file names a scheduler, and neither an option nor Dask's configuration names the same one.
    """
    from bnp_dask.cli.jobfile import TLS, ClientSpec, ExecutorSpec

    given = {name: getattr(args, name, None) for name in ("memory_limit", *TLS)}
    if isinstance(default, ExecutorSpec):
        asked = (args.workers, args.scheduler, args.scheduler_file, *given.values())
        if all(value is None for value in asked):
            return default
        default = None
    default = ClientSpec() if default is None else default
    if args.workers is None and args.scheduler is None and args.scheduler_file is None:
        default = _as_the_caller_says(default)
        return replace(default, **{name: value for name, value in given.items() if value is not None})
    kept = ("memory_limit",) if args.workers is not None else TLS
    given.update({name: getattr(default, name) for name in kept if given[name] is None})
    return ClientSpec(args.workers, args.scheduler, args.scheduler_file, **given)


def _as_the_caller_says(spec: ClientSpec) -> ClientSpec:
    """Client of a job file, if it is not a scheduler or one that the caller's environment names too."""
    if spec.scheduler is None and spec.scheduler_file is None:
        return spec
    import dask

    where = "client.scheduler" if spec.scheduler_file is None else f"client.scheduler_file={shown(spec.scheduler_file)}"
    address = spec.scheduler if spec.scheduler_file is None else _address_in(spec.scheduler_file)
    assert address is not None
    named = dask.config.get("scheduler-address", None)
    return replace(spec, scheduler=scheduler_in_file(address, named, where), scheduler_file=None)


@contextlib.contextmanager
def open_client(spec: ClientSpec | ExecutorSpec, quiet: bool) -> Iterator[Client | Executor | None]:
    """Yield the client of the specified cluster, or the executor, closed at the end; None to compute without Dask."""
    from bnp_dask.cli.jobfile import ExecutorSpec

    if isinstance(spec, ExecutorSpec):
        with contextlib.closing(spec.make()) as executor:
            yield executor
        return
    if spec.workers is None and spec.scheduler is None and spec.scheduler_file is None:
        yield None
        return
    if spec.workers is None:
        from bnp_dask.execute import closed_in_time

        with closed_in_time(_connect(spec)) as client:
            say(f"scheduler {client.scheduler.address}, dashboard: {client.dashboard_link}", quiet)
            yield client
        return
    from bnp_dask.execute import local_client

    with local_client(spec.workers, "auto" if spec.memory_limit is None else spec.memory_limit) as client:
        say(f"{spec.workers} worker{'s' * (spec.workers > 1)}, dashboard: {client.dashboard_link}", quiet)
        yield client


def _connect(spec: ClientSpec) -> Client:
    """A client of a running scheduler.

    It is not set as Dask's default: one that fails to connect would stay the default until Python frees it.
    """
    from distributed import Client

    from bnp_dask.execute import require_scheduler

    security = _security(spec)
    address = spec.scheduler if spec.scheduler_file is None else _address_in(spec.scheduler_file)
    assert address is not None
    require_scheduler(address, security)
    try:
        return Client(address, timeout=CONNECT_SECONDS, security=security, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"cannot reach a scheduler at {address}: {error}") from error


def _address_in(scheduler_file: str) -> str:
    """The address that ``dask scheduler`` wrote into a file."""
    file = local_path(scheduler_file)
    if not file.exists():
        raise SettingError(f"there is no scheduler file {file}; start 'dask scheduler --scheduler-file {file}' first")
    try:
        with open(file, "rb") as opened:
            content = json.loads(opened.read(FILE_BYTES))
    except OSError as error:
        raise SettingError(f"cannot read the scheduler file {file}: {error.strerror}") from error
    except (ValueError, RecursionError):
        content = None
    address = content.get("address") if isinstance(content, dict) else None
    if not isinstance(address, str):
        raise SettingError(
            f"{file} is no scheduler file: it holds no address; start 'dask scheduler --scheduler-file FILE' to get one"
        )
    return address


def _security(spec: ClientSpec) -> Security | None:
    """The given certificates, as Dask takes them; None for Dask's own configuration."""
    if spec.tls_ca_file is None:
        return None
    from distributed import Security

    for path in (spec.tls_ca_file, spec.tls_cert, spec.tls_key):
        if path is not None and not local_path(path).is_file():
            raise SettingError(f"there is no file {path}; a tls connection needs an authority, a certificate and a key")
    security = Security(
        tls_ca_file=spec.tls_ca_file,
        tls_client_cert=spec.tls_cert,
        tls_client_key=spec.tls_key,
        require_encryption=True,
    )
    try:
        security.get_connection_args("client")
    except OSError as error:  # OpenSSL's error for files that it cannot use
        files = ", ".join(str(path) for path in (spec.tls_ca_file, spec.tls_cert, spec.tls_key))
        raise SettingError(f"cannot use the certificates and key {files}: {error}") from error
    return security


class _AboveTheBar(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(one_line(self.format(record)))


@contextlib.contextmanager
def log_lines(quiet: bool) -> Iterator[None]:
    """Send the package's log to stderr, one line each: warnings, and unless ``quiet`` one line per lap."""
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
    """Whether a progress bar is useful: not quiet, and the output is a terminal."""
    return not quiet and sys.stderr.isatty()


def posterior_of(path: str) -> Posterior:
    """The posterior at a path, or in a run directory."""
    from bnp_dask.store import posterior_place
    from bnp_dask.training import load

    return load(posterior_place(path))


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


FORMATS = ("text", "json", "csv")
"""How a command prints its results."""


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS) -> None:
    """Add the option that chooses how results are printed."""
    parser.add_argument(
        "--format",
        choices=formats,
        default="text",
        help="how results are printed: text for people (default), or for programs; notices then go to standard error",
    )


def is_quiet(args: argparse.Namespace) -> bool:
    """Whether only results are printed: asked for, or read by a program."""
    return bool(args.quiet or args.format != "text")


def shown_value(value: Any) -> str:
    """A fact in a table, which may be unknown."""
    if value is None:
        return "-"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def say_records(records: Sequence[Mapping[str, Any]], form: str, columns: Sequence[str]) -> None:
    """Print records as a list of JSON objects, or as CSV with a line of names; NaN and infinity are null."""
    plain = [{name: _plain_value(record[name]) for name in columns} for record in records]
    if form == "json":
        say(json.dumps(plain, indent=1))
        return
    lines = io.StringIO()
    writer = csv.DictWriter(lines, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in record.items()} for record in plain)
    say(lines.getvalue().rstrip("\n"))


def say_record(record: Mapping[str, Any]) -> None:
    """Print one record as JSON."""
    say(json.dumps({name: _plain_value(value) for name, value in record.items()}, indent=1))


def _plain_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value


def _cell(value: Any) -> Any:
    return ";".join(map(str, value)) if isinstance(value, list) else value


def size(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:  # three digits: 999.5 kB are 1 MB
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


NO_WEIGHTS = "none"
"""Value in place of a column of weights: every row counts once."""


def add_cutting(parser: argparse._ActionsContainer) -> None:
    """Add the options that cut sequences."""
    parser.add_argument(
        "--gaps", choices=("refuse", "cut", "ignore"), help="treatment of gaps in the order column; default: refuse"
    )
    parser.add_argument("--step", type=float, metavar="X", help="distance of rows in the order column; default: median")
    parser.add_argument(
        "--cut", type=positive_int, metavar="N", help="cut longer groups (sequences) into blocks of at most N rows"
    )


def add_bad_cells(parser: argparse._ActionsContainer) -> None:
    """Add the option for cells of tables that are not numbers."""
    parser.add_argument(
        "--on-bad-cell",
        choices=("raise", "missing"),
        help="cells that are no numbers in columns of numbers: an error (the default), or missing entries",
    )


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that read data which were not ingested with groups."""
    group = parser.add_argument_group(
        "rows that belong together",
        "for files that do not say it; tables are read as the posterior was trained, by the names of its columns",
    )
    group.add_argument("--columns", metavar="A,B,...", help="columns of a table to take")
    add_bad_cells(group)
    group.add_argument("--group-column", metavar="COLUMN|FILE", help="column of ids, or a .npy file of offsets")
    group.add_argument("--order-column", metavar="COLUMN", help="rises within each group")
    add_cutting(group)


def rows_of(args: argparse.Namespace, posterior: Posterior, trained: str, weights: bool = False) -> Any:
    """Rows to read: the path as it was given, or a source if anything is known about its rows.

    Tables are read with the features, groups and order of training, and with its ``weights`` if these matter; other
    columns are ignored.  Each option overrides its own setting.  ``trained`` is the posterior or run directory:
    posteriors of earlier versions have no columns, but the job file of a run does.
    """
    from bnp_dask.analysis import columns_for
    from bnp_dask.data import as_source

    said = {name: value for name, value in _said(args).items() if value is not None}
    known = columns_for(posterior, weights)
    if known is None:
        settings = {**_of_job(trained, weights), **said} if _is_table(args.data) else said
    elif "columns" in said:
        settings = {**_of_roles(known.roles), **said}
    else:
        settings = {"columns": replace(known, chosen=True), **said}
    if settings.get("weights") == NO_WEIGHTS:
        del settings["weights"]
        if known is not None and "columns" not in said:
            settings["columns"] = replace(known.using(weights=False, groups=True), chosen=True)
    if str(settings.get("groups", "")).endswith(".npy"):
        settings = {name: value for name, value in settings.items() if name not in ("order", "gaps", "step")}
    if not settings:
        return args.data
    return as_source(args.data, batch_size=getattr(args, "batch_size", None), **settings)


def job_data(rundir: str) -> DataSpec | None:
    """The data that a run was trained on, as its job file describes them; None without one."""
    from bnp_dask.cli.jobfile import DataSpec, job_of_run
    from bnp_dask.errors import BnpDaskError

    try:
        job = job_of_run(rundir)
        return job.data if job is not None and isinstance(job.data, DataSpec) else None
    except BnpDaskError:  # another version, or missing files: the run can be read without its job
        return None


def _said(args: argparse.Namespace) -> dict[str, Any]:
    columns = None if args.columns is None else [c.strip() for c in args.columns.split(",")]
    return {
        "columns": columns,
        "groups": args.group_column,
        "order": args.order_column,
        "gaps": args.gaps,
        "step": args.step,
        "cut": args.cut,
        "on_bad_cell": args.on_bad_cell,
        "weights": getattr(args, "weights", None),
    }


def _is_table(path: str) -> bool:
    """Whether a path holds a table with named columns."""
    from bnp_dask.core import Location
    from bnp_dask.data.ingestion.streams import detect
    from bnp_dask.errors import BnpDaskError

    try:
        location = Location.of(path)
        location.require()
        return detect(location) in ("parquet", "arrow", "csv", "tsv")
    except (BnpDaskError, ImportError):  # reported as the data are opened
        return False


def _of_job(rundir: str, weights: bool) -> dict[str, Any]:
    """Columns of the data by the job file of a run, if these are columns and not files."""
    spec = job_data(rundir)
    if spec is None:
        return {}
    of_rows = ("groups", "order", "gaps", "step", "cut")
    by_column = spec.groups is not None and not spec.groups.endswith(".npy")
    names = ["columns", "on_bad_cell", *(of_rows if by_column else ())]
    if weights and spec.weights is not None and not spec.weights.endswith(".npy"):
        names.append("weights")
    return {name: getattr(spec, name) for name in names if getattr(spec, name) is not None}


def _of_roles(roles: Roles) -> dict[str, Any]:
    """Columns that are not features, as arguments of :func:`bnp_dask.as_source`."""
    found: dict[str, Any] = {"weights": roles.weights, "groups": roles.groups, "order": roles.order}
    if roles.groups is not None:
        found["cut"] = roles.cutting.cut
    if roles.order is not None:
        found |= {"gaps": roles.cutting.gaps, "step": roles.cutting.step}
    return {name: value for name, value in found.items() if value is not None}


def add_import_option(command: argparse.ArgumentParser) -> None:
    """Add the option to a command."""
    command.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module first that registers classes of its own, such as a likelihood (installed, or in the "
        "current directory); MODULE:FUNCTION lets a function be called that a store or posterior names; may be given "
        "several times",
    )


def import_modules(args: argparse.Namespace) -> None:
    """Import the modules that the options name; files never do, so reading one runs no code that it names."""
    if args.modules:
        look_here()
    for name in args.modules:
        try:
            if ":" in name:
                FUNCTIONS.add(imported(name), name)
            else:
                importlib.import_module(name)
        except StoreError as error:
            raise SettingError(f"--import {error}") from error
        except ImportError as error:
            raise SettingError(
                f"--import {name}: {error}; needs a module that is installed or in the current directory, or in one "
                "that PYTHONPATH lists"
            ) from error


def look_here() -> None:
    """Let modules in the current directory be imported."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
