"""The command line: ``bnp-dask demo | ingest | train | resume | update | predict | inspect | compare | ...``."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

from bnp_dask._version import __version__
from bnp_dask.cli import console, data, demos, growing, look, run
from bnp_dask.cli.run import Terminated, named
from bnp_dask.errors import BnpDaskError, ExecutionError, StoreError, near
from bnp_dask.execute import plain_interrupts
from bnp_dask.inputs import one_line, open_standard_files, tell

EXIT_ERROR, EXIT_INTERRUPT, EXIT_TERMINATED = 2, 130, 143

GROUPS = (demos.add_demo, data.add, run.add, growing.add, look.add, demos.add_reproduce)
"""Each adds some commands."""


WORDS = {
    "--out": "-o --output --outfile --output-file",
    "--format json": "--json -j",
    "--format csv": "--csv",
    "--workers": "-n -w --n-workers --n-jobs --jobs --processes --nprocs --threads",
    "--quiet": "-q --silent",
    "--debug": "--traceback",
    "--laps": "--max-iter --iterations --epochs --passes",
    "--store": "--output-dir --outdir --rundir",
    "--columns": "--features --cols",
    "--batch-size": "--chunk-size --chunksize -b",
}
"""Options, by other programs' names for them."""


class _Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options, and suggests the nearest valid word for an unknown one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if message.endswith("required: COMMAND"):
            message += f"; '{self.prog} --help' lists them, '{self.prog} demo' shows an example"
        if found:
            known = re.findall(r"[\w-]+", found[2])
            meant = near(found[1], known)
            message = f"there is no {found[1]!r}" + (f"; did you mean {meant!r}?" if meant else "")
            message += f" (there are {', '.join(known)})"
        tell(one_line(f"{self.prog}: error: {message}"))
        raise SystemExit(EXIT_ERROR)

    def unknown(self, words: Sequence[str], others: Mapping[str, _Parser]) -> NoReturn:
        """Stop at arguments that a command does not have; suggest its nearest option, or commands that have it."""
        word = words[0].split("=")[0]
        message = f"unrecognized arguments: {' '.join(words)}"
        own = next((own for own, others in WORDS.items() if word in others.split()), "")
        if own.split(" ")[0] in self._option_string_actions:
            message += f"; did you mean {own!r}?"
        elif not word.startswith("-"):
            message += f"; '{self.prog} --help' shows what it takes"
        else:
            meant = near(word, sorted(self._option_string_actions))
            having = [name for name, other in others.items() if word in other._option_string_actions]
            if having:
                message += f"; {word!r} is an option of {', '.join(having)}"
            elif meant:
                message += f"; did you mean {meant!r}?"
            else:
                message += f"; '{self.prog} --help' lists its options"
        self.error(message)

    def commands(self) -> Mapping[str, _Parser]:
        """Parsers of the commands by name."""
        return next(action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))


def build_parser() -> _Parser:
    """The parser of all commands; each sets ``run``, a function of the parsed arguments."""
    parser = _Parser(
        prog="bnp-dask",
        description="Bayesian nonparametric clustering of data that no single machine holds.",
        epilog="'bnp-dask COMMAND --help' explains a command; 'bnp-dask demo' shows an example.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"bnp-dask {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for add in GROUPS:
        add(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.add_argument("--quiet", action="store_true", help="print errors, warnings and results only")
        console.add_import_option(command)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command; exits with a line for words that it does not know."""
    parser = build_parser()
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] in (["help"], ["version"]):  # as other programs have them
        given = [*given[1:], f"--{given[0]}"]
    args, unknown = parser.parse_known_args(given)
    if unknown:
        commands = parser.commands()
        commands[args.command].unknown(unknown, commands)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns
    -------
    int
        0; 2 after an error, which is one line on stderr; 130 after Ctrl-C; 143 after SIGTERM.
    """
    open_standard_files()
    args = parse(argv)
    with _sigterm_raises(), _plain_warnings(), _quiet_libraries(args.debug):
        try:
            with plain_interrupts():
                console.import_modules(args)
                args.run(args)
        except KeyboardInterrupt as stop:
            saved = f": {stop}" if str(stop) else ""
            tell(f"\nbnp-dask: {named(type(stop))}{saved}{run.how_to_resume(args)}")
            return EXIT_TERMINATED if isinstance(stop, Terminated) else EXIT_INTERRUPT
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
    silent = logging.NullHandler()
    if not debug:
        logging.getLogger().addHandler(silent)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silent)


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
