"""The command line: ``bnp-dask demo | ingest | train | resume | update | predict | inspect | compare | ...``."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import FrameType
from typing import NoReturn

from bnp_dask._version import __version__
from bnp_dask.cli import data, demos, growing, guests, look, run
from bnp_dask.cli.stop import Terminated
from bnp_dask.errors import BnpDaskError, ExecutionError, StoreError
from bnp_dask.execute.base import plain_interrupts
from bnp_dask.inputs.lines import one_line, open_standard_files, tell

EXIT_ERROR, EXIT_INTERRUPT, EXIT_TERMINATED = 2, 130, 143

GROUPS = (demos, data, run, growing, look)
"""Modules that each add some commands."""


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest valid word for an unknown one."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found:
            known = re.findall(r"[\w-]+", found[2])
            near = get_close_matches(found[1], known, n=1, cutoff=0.5)
            message = f"there is no {found[1]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            message += f" (there are {', '.join(known)})"
        elif message.startswith("unrecognized arguments:"):
            word = message.split()[2].split("=")[0]
            near = get_close_matches(word, sorted(_options(self)), n=1)
            message += f"; did you mean {near[0]!r}?" if near and near[0] != word else ""
        tell(one_line(f"{self.prog}: error: {message}"))
        raise SystemExit(EXIT_ERROR)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets ``run``, a function of the parsed arguments."""
    parser = _Parser(
        prog="bnp-dask",
        description="Bayesian nonparametric clustering of data that no single machine holds.",
        epilog="'bnp-dask COMMAND --help' explains a command; 'bnp-dask demo' shows what this is about.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bnp-dask {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for group in GROUPS:
        group.add(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.add_argument("--quiet", action="store_true", help="print errors, warnings and results only")
        guests.add_option(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns
    -------
    int
        0; 2 after an error, which is one line on stderr; 130 after Ctrl-C; 143 after SIGTERM.
    """
    open_standard_files()
    args = build_parser().parse_args(argv)
    with _sigterm_raises(), _plain_warnings(), _quiet_libraries(args.debug):
        try:
            with plain_interrupts():
                guests.import_modules(args)
                args.run(args)
        except KeyboardInterrupt as stop:
            what, code = (
                ("terminated", EXIT_TERMINATED) if isinstance(stop, Terminated) else ("stopped", EXIT_INTERRUPT)
            )
            tell(f"\nbnp-dask: {what}{run.how_to_resume(args)}")
            return code
        except Exception as error:
            if args.debug:
                tell(traceback.format_exc().rstrip())
            else:
                how = _way_on(error, args)
                text = error.what if isinstance(error, ExecutionError) and how else _words(error)
                tell(one_line(f"bnp-dask: error: {text}{_notes(error)}{how}"))
            return EXIT_ERROR
    return 0


def _words(error: Exception) -> str:
    """Text of an error; for an unexpected one also its name and how to learn more."""
    if isinstance(error, (BnpDaskError, ImportError)):
        return str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory{f' ({error})' if str(error) else ''}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _notes(error: BaseException) -> str:
    """Batch of an error, if its own text does not name it."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in ")]
    return f" ({'; '.join(notes)})" if notes else ""


def _way_on(error: Exception, args: argparse.Namespace) -> str:
    """Command that continues a run that had begun, or whose directory was not writable."""
    begun = isinstance(error, ExecutionError) or run.BEGUN in getattr(error, "__notes__", ())
    begun |= isinstance(error, StoreError) and isinstance(error.__cause__, OSError)
    return run.how_to_resume(args) if begun else ""


@contextlib.contextmanager
def _quiet_libraries(debug: bool) -> Iterator[None]:
    """Hide log lines of libraries that have no handler; errors contain all information."""
    nobody = logging.NullHandler()
    if not debug:
        logging.getLogger().addHandler(nobody)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(nobody)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Make SIGTERM raise Terminated inside the block, if signals can be caught (the main thread)."""

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings in one line without their place in the source."""

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: object) -> None:
        tell(one_line(f"bnp-dask: warning: {message}"))

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """Option names of a parser and of its commands."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found |= _options(child)
    return found
