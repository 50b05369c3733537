"""The errors that users meet.  Each says what was found, what is needed, and what to call."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from types import FrameType

HIDDEN = "***"
"""Stands in messages, logs, run directories and pages for a password, a signature or a header."""

_USER = re.compile(r"(?i)(?<=://)[^/\s'\"<>@]*:[^/\s'\"<>]*@|(?<=http://)[^/\s'\"<>]+@|(?<=https://)[^/\s'\"<>]+@")
"""User and password of a URL; of web servers also a user alone, which is often a token."""

_SIGNED = (
    r"[\w.~%-]*(?:token|signature|secret|passw|credential|api[-_]?key|access[-_]?key)[\w.~%-]*"
    r"|x-(?:amz|goog)-[\w-]+|googleaccessid|key-pair-id|auth(?:orization)?|pass|pwd|key|policy"
    r"|sig|s[ektrvp]|spr|sdd|sip|sk(?:oid|tid|t|e|s|v)|expires"
)
"""Names of parameters by which URLs are signed: Amazon's, Google's, Azure's, and those with a token.  The dates that
they are valid for go with the signature, so that data are known again under the next one."""

_SIGNATURE = re.compile(rf"(?i)([?&]|&amp;)(?:{_SIGNED})=[^&\s'\"<>#]*")
_SEVERAL = re.compile(rf"((?:[?&]|&amp;){re.escape(HIDDEN)})(?:(?:&|&amp;){re.escape(HIDDEN)})+")

_HEADER = re.compile(
    r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:basic|bearer|digest|negotiate|token|aws4-hmac-sha256)\s+"
    r"|x-(?:api-key|auth-token)['\"]?\s*[:=]\s*['\"]?)[^\s'\",}]+"
)
"""Headers of requests that say who asks, with their values."""


def redacted(text: str) -> str:
    """The text with ``***`` in place of passwords and signatures of URLs, and of headers that say who asks.

    Examples
    --------
    >>> redacted("https://me:word@host/x.npy?part=3&X-Amz-Date=20261126&X-Amz-Signature=0a1b")
    'https://***@host/x.npy?part=3&***'
    """
    if "://" in text:
        text = _USER.sub(f"{HIDDEN}@", text)
    if "=" in text or ":" in text:
        text = _SEVERAL.sub(r"\1", _SIGNATURE.sub(rf"\1{HIDDEN}", text))
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
    return text


class BnpDaskError(Exception):
    """Base of all errors that this package raises on purpose.

    Its text is :func:`redacted`.

    A notebook shows the user's own lines, the call of this package, and the message: what lies below that call, and
    the errors behind this one, say nothing to a user.  They are kept: ``traceback.print_exception(sys.last_value)``
    prints it all.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(arg) if isinstance(arg, str) else arg for arg in args))

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints instead of its own."""
        return _brief(self)


def brief_in_notebooks(error: Exception) -> None:
    """Let IPython show as little of an error that a task raised: the user's lines, also those that the task ran."""
    error._render_traceback_ = partial(_brief, error)  # type: ignore[attr-defined]


MACHINERY = frozenset(("IPython", "asyncio", "concurrent", "dask", "distributed", "threading", "tornado"))
"""Packages between a user's lines and this package, or between it and a task."""


def _brief(error: BaseException) -> list[str]:
    """The user's lines up to the first call of this package, those below it, else the last call, and the message."""
    own = __name__.split(".")[0]
    calls = [(frame.f_globals.get("__name__", "").split(".")[0], (frame, line)) for frame, line in _walk(error)]
    calls = [(package, call) for package, call in calls if package not in MACHINERY]
    first = next((i for i, (package, _) in enumerate(calls) if package == own), len(calls))
    shown = [call for i, (package, call) in enumerate(calls) if i <= first or package != own]
    if not isinstance(error, BnpDaskError) and calls and calls[-1][0] == own and first < len(calls) - 1:
        shown.append(calls[-1][1])
    lines = traceback.StackSummary.extract(iter(shown)).format() + traceback.format_exception_only(error)
    return [line.rstrip("\n") for line in lines]


def _walk(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Calls on the way to an error, without those of functions that dataclasses write."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename != "<string>":
            yield frame, line


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
        self.what = redacted(what)


def nearest(word: str, known: Iterable[str], intro: str = "; nearest existing name: ") -> str:
    """A hint that names the known word nearest to ``word``, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"{intro}{found[0]!r}" if found else ""
