"""Checks of settings: one function for each kind of value, so that all classes and functions refuse the same things."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from bnp_dask.errors import SettingError, redacted
from bnp_dask.inputs.lines import SHOWN, shortened

MOST = 2**53
"""Largest whole number that a setting may be: beyond it float64 skips some."""

LEAST_MASS, MOST_MASS = 1e-100, 1e10
"""Range of settings in units of atoms: concentrations, pseudo-counts and degrees of freedom.

The objective is a sum of terms such as ``log Gamma(a)``, of size ``a log a``, which cancel but for a few nats.
Rounding leaves ``2**-53 a log a`` of each: 3e-5 nats at 1e10, and 7 nats at 1e15.  Below, ``digamma(a)`` is about
``-1 / a``: 1e-100 leaves room for products with counts and with weights of unused clusters down to 1e-100; at 1e-308 it
overflows.
"""

LONGEST_PATH = 4096
"""Most characters of a path or URL."""

LEAST_RATE, MOST_RATE = 1e-120, 1e120
"""Range of the rate of a Gamma prior, one over counts: by default a pseudo-count over the mean of counts."""


def is_whole(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this is a whole number; True and False do not count."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether this is a real number; True, False, texts and arrays do not count."""
    return (isinstance(value, (int, float, np.integer, np.floating))) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int = 0, most: int = MOST, what: str = "a whole number") -> int:
    """The value as an int; SettingError unless it is a whole number from ``least`` to ``most``."""
    if not is_whole(value) or not least <= int(value) <= most:
        limit = f", at most {most}" if most < MOST or (is_whole(value) and int(value) > most) else ""
        raise SettingError(f"{name}={shown(value)}: needs {what}, at least {least}{limit}")
    return int(value)


def whole_or_none(name: str, value: Any, what: str = "a whole number") -> int | None:
    """The value as an int, at least 1, or None; SettingError for anything else."""
    return None if value is None else whole_number(name, value, 1, what=f"None, or {what}")


def number_from(name: str, value: Any, least: float, most: float = math.inf, what: str = "a number") -> int | float:
    """The value as Python's number; SettingError unless it is finite and from ``least`` to ``most``, both included."""
    if not is_number(value) or not least <= value <= most or not is_finite(value):
        low = "" if least == -math.inf else f", at least {least:g}"
        high = "" if most == math.inf else f", at most {most:g}"
        raise SettingError(f"{name}={shown(value)}: needs {what}, finite{low}{high}")
    return _plain(value)


def number_between(name: str, value: Any, low: float, high: float, what: str = "a number") -> int | float:
    """The value as Python's number; SettingError unless it is above ``low`` and below ``high``."""
    if not is_number(value) or not low < value < high:
        raise SettingError(f"{name}={shown(value)}: needs {what}, above {low:g} and below {high:g}")
    return _plain(value)


def share_below_one(name: str, value: Any, what: str) -> int | float:
    """The value as Python's number; SettingError unless it is from 0 to less than 1."""
    if not is_number(value) or not 0.0 <= value < 1.0:
        raise SettingError(f"{name}={shown(value)}: needs {what}, at least 0 and less than 1")
    return _plain(value)


def positive_number(name: str, value: Any, what: str = "number") -> int | float:
    """The value as Python's number; SettingError unless it is positive and finite."""
    if not is_number(value) or not 0 < value < math.inf or not is_finite(value):
        raise SettingError(f"{name}={shown(value)}: needs a positive finite {what}")
    return _plain(value)


def positive_mass(name: str, value: Any, what: str) -> int | float:
    """The value as Python's number; SettingError unless it is from :data:`LEAST_MASS` to :data:`MOST_MASS`."""
    positive_number(name, value, what)
    if not LEAST_MASS <= value <= MOST_MASS:
        raise SettingError(
            f"{name}={shown(value)}: double precision cannot hold the objective of such a {what}; needs one from "
            f"{LEAST_MASS:g} to {MOST_MASS:g}"
        )
    return _plain(value)


def mass_or_zero(name: str, value: Any, what: str) -> int | float:
    """Zero, or the value of :func:`positive_mass`, as Python's number; SettingError for anything else."""
    if not is_number(value) or value < 0:
        raise SettingError(f"{name}={shown(value)}: needs a finite {what}, >= 0")
    return _plain(value) if value == 0 else positive_mass(name, value, what)


def _plain(value: Any) -> int | float:
    """A number as Python's own: a float32 would turn its products into float32."""
    return int(value) if is_whole(value) else float(value)


def hold(owner: Any, name: str, value: Any) -> None:
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(owner, name, value)


def of_two_names(name: str, value: Any, other: str, as_other: Any) -> tuple[str, Any]:
    """Name and value of a setting with two names, of which at most one may be given; value None if none is.

    Raises
    ------
    SettingError
        Both are given.
    """
    if value is not None and as_other is not None:
        raise SettingError(
            f"{name}={shown(value)} and {other}={shown(as_other)} are two names of one setting; give one of them"
        )
    return (name, value) if as_other is None else (other, as_other)


def flag(name: str, value: Any) -> bool:
    """The value as a bool; SettingError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name}={shown(value)}: needs True or False")
    return bool(value)


def one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """SettingError unless the value is among ``known``."""
    if not isinstance(value, (str, type(None))) or value not in known:
        raise SettingError(f"{name}={shown(value)}: needs {' or '.join(map(quoted, known))}")


def path_text(name: str, value: Any) -> str:
    """A path as text; SettingError unless it is text or a path object, has a character, and no NUL."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise SettingError(f"{name}={shown(value)}: needs a path, as text or a Path")
    text = os.fspath(value)
    if len(text) > LONGEST_PATH:
        raise SettingError(f"{name}={shown(text)}: a path of {len(text)} characters; needs at most {LONGEST_PATH}")
    if not text or "\0" in text:
        raise SettingError(
            f"{name}={shown(text)}: needs a path; this is {'one with a NUL' if text else 'an empty text'}"
        )
    return text


SEEDS = 2**128
"""Number of distinct seeds.  A larger seed is another start of the seed that remains modulo this number: everything but
the order of batches is drawn anew."""

STARTS = 2**32
"""Number of starts of one seed."""


def start_of_seed(seed: int, number: int) -> int:
    """Seed of start ``number`` of a seed, whose first start is 0; all starts of a seed visit batches in one order."""
    return seed % SEEDS + SEEDS * ((seed // SEEDS + number) % STARTS)


def seed_of(value: Any, name: str = "rng") -> int:
    """A seed, a whole number >= 0, from any source of random numbers.

    Parameters
    ----------
    value
        A seed; a SeedSequence; a Generator or RandomState, from which a seed is drawn; or None for another seed each
        time.
    name
        Name of the argument, for the message.
    """
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**63))
    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**63, dtype=np.uint64))
    if value is None:
        value = np.random.SeedSequence()
    if isinstance(value, np.random.SeedSequence):
        return int.from_bytes(value.generate_state(4, np.uint32).tobytes(), "little")
    if not is_whole(value) or not 0 <= int(value) < SEEDS * STARTS:
        raise SettingError(
            f"{name}={shown(value)}: needs a seed, a whole number from 0 to 2**160 - 1; a SeedSequence, a Generator, a "
            "RandomState, or None for another seed each time"
        )
    return int(value)


def is_finite(value: Any) -> bool:
    """Whether a number is finite as float64; whole numbers of 400 digits are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: Any, longest: int = SHOWN) -> str:
    """A value as messages show it: on one line, with at most ``longest`` characters."""
    if is_whole(value) and abs(int(value)) >= 10**30:
        return f"a whole number of {len(hex(abs(int(value)))) - 2} hexadecimal digits"
    try:
        text = redacted(" ".join(repr(value).split()))
    except Exception as error:  # the repr of a user's object may raise anything
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return shortened(text, longest)


def quoted(value: Any) -> str:
    """A choice as messages name it."""
    return f'"{value}"' if isinstance(value, str) else str(value)
