"""The errors that users meet.  Each says what was found, what is needed, and what to call."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BnpDaskError(Exception):
    """Base of all errors that this package raises on purpose."""


class DataError(BnpDaskError, ValueError):
    """Data that a source cannot read or a likelihood cannot have produced."""


class SettingError(BnpDaskError, ValueError):
    """A setting that is unknown, misspelt, or outside its range."""


class StoreError(BnpDaskError, RuntimeError):
    """A run directory, checkpoint or saved model that cannot be used as asked."""


class SummaryError(BnpDaskError, ValueError):
    """A verb of the summary algebra applied where it has no meaning."""


class BatchError(BnpDaskError, RuntimeError):
    """A task failed; names the batch, its source, and the error behind it."""


class NumericalError(BnpDaskError, ArithmeticError):
    """A computation that double precision cannot carry out for these data and this prior."""


class ExecutionError(BnpDaskError, RuntimeError):
    """Tasks cannot run: a lost or closed cluster, workers that keep dying, a void handle.

    Parameters
    ----------
    what
        The fault, a sentence without its full stop.
    advice
        The call that goes on, a sentence; a command line names its own command instead.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


def nearest(word: str, known: Iterable[str], intro: str = "; nearest existing name: ") -> str:
    """A hint that names the known word nearest to ``word``, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"{intro}{found[0]!r}" if found else ""
