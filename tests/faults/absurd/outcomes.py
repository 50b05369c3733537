"""Cases of bad input, and what may come of them: an error of the package that names the thing, or a right answer."""

from __future__ import annotations

import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.errors import BnpDaskError

SECONDS = 60
"""After so long, of its own work, a case hangs; other processes may keep it from working."""

WAITING = 900
"""After so long it hangs, whether it works or waits."""

REFUSE, SAME, ANY = "must be refused", "must be as if plain", "refused or right"


@dataclass(frozen=True)
class Case:
    """Something to try: its name, what it does, and what must come of it.

    ``run`` gives a number that the ``plain`` run must give as well, or None where there is nothing to compare.
    An error must hold one of the ``names``, if there are any.
    """

    name: str
    run: Callable[[], Any]
    wanted: str = ANY
    plain: Callable[[], Any] | None = None
    names: tuple[str, ...] = ()


def outcome(case: Case) -> tuple[str, str]:
    """What came of a case, and a text about it: refused, right, or one of wrong, raw, hangs."""
    try:
        with alarm(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.seterr(all="ignore")
            value = case.run()
    except BnpDaskError as error:
        text = " ".join(str(error).split())
        if case.wanted == SAME:
            return "wrong", f"refused, though it is good: {text}"
        if case.names and not any(name in text for name in case.names):
            return "wrong", f"an error that names none of {case.names}: {text}"
        return ("refused", text) if 8 < len(text) < 2000 else ("wrong", f"an error of {len(text)} characters: {text}")
    except _Hangs:
        return "hangs", f"more than {SECONDS} s of work, or {WAITING} s"
    except (ValueError, TypeError) as error:
        if "sklearn" in traceback.extract_tb(error.__traceback__)[-1].filename:
            return "refused", f"by scikit-learn: {error}"
        return "raw", f"{type(error).__name__}: {error}"
    except BaseException as error:  # an exit or an interrupt would be as bad
        return "raw", f"{type(error).__name__}: {error}"
    if case.wanted == REFUSE:
        return "wrong", f"accepted: {value!r}"[:300]
    if case.plain is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wanted = case.plain()
            except BnpDaskError as error:
                return "wrong", f"{value!r}, but the plain numbers are refused: {error}"[:600]
        # dense and sparse rows, and index arrays of 32 and 64 bits, are added up in other orders
        if not np.allclose(np.asarray(value), np.asarray(wanted), rtol=1e-11, atol=0.0):
            return "wrong", f"{value!r} instead of {wanted!r}"[:300]
    return "right", f"{value!r}"[:80]


class _Hangs(BaseException):
    """Passes through code that catches errors of all kinds."""


@contextmanager
def alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _Hangs

    clocks = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, WAITING)}
    before = [(number, signal.signal(number, ring)) for number, _ in clocks.values()]
    for clock, (_, seconds) in clocks.items():
        signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        for clock in clocks:
            signal.setitimer(clock, 0)
        for number, handler in before:
            signal.signal(number, handler)
