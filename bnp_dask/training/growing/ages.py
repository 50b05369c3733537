"""Ages of the batches of a run, in batches, atoms or time of the data; their weights, and which are too old."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import shown

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""Seconds of units of time."""

_SPAN = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*(batches|batch|atoms|atom|s|min|h|d|w)\s*")


@dataclass(frozen=True)
class Span:
    """A length of a stream, in batches, atoms or seconds."""

    amount: float
    unit: Literal["batches", "atoms", "seconds"]


def span_from(name: str, value: Any) -> Span | None:
    """A span such as ``"30d"``, ``"100 batches"``, ``"1e6 atoms"`` or a timedelta; None stays None.

    SettingError for anything else.
    """
    if value is None:
        return None
    if isinstance(value, datetime.timedelta) and value.total_seconds() > 0:
        return Span(value.total_seconds(), "seconds")
    found = _SPAN.fullmatch(value) if isinstance(value, str) else None
    amount = 0.0 if found is None else float(found[1])
    if found is None or not 0 < amount < math.inf:
        raise SettingError(
            f'{name}={shown(value)}: needs a length such as "30d" (s, min, h, d or w), "100 batches" or "1e6 atoms"'
        )
    if found[2].startswith("batch"):
        return Span(amount, "batches")
    return Span(amount, "atoms") if found[2].startswith("atom") else Span(amount * UNITS[found[2]], "seconds")


@dataclass(frozen=True, eq=False)
class Line:
    """Positions of batches on the line of a span's unit, and the end of the line so far.

    Parameters
    ----------
    position
        Of each batch, ``(B,)``.
    before, now
        The end of the line before the last batches came, and after.
    """

    position: np.ndarray
    before: float
    now: float

    @property
    def age(self) -> np.ndarray:
        """Age of each batch, ``(B,)``."""
        return self.now - self.position

    @staticmethod
    def of(span: Span, atoms: Sequence[int], times: np.ndarray, n_old: int) -> Line:
        """Line of all batches of a run, of which ``n_old`` existed before; SettingError if none has a time."""
        if span.unit == "seconds":
            if np.isnan(times).any():
                raise SettingError(
                    "no data have a time: name files by their date, or give time=, a column or a time such as "
                    '"2026-11-01"; or give a length in batches or atoms, such as "100 batches"'
                )
            return Line(times, float(times[:n_old].max(initial=-math.inf)), float(times.max()))
        counts = np.ones(len(atoms)) if span.unit == "batches" else np.array(atoms, np.float64)
        position = np.cumsum(counts)
        return Line(position, float(position[n_old - 1]) if n_old else 0.0, float(position[-1]))


def with_times(known: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Times of all batches; ``new`` belong to the batches that came last.

    A batch without a time gets the newest time that the run had when it came.  If the run had none, it gets the oldest
    time of the first batches that have one.
    """
    if np.isfinite(known).any():
        return np.concatenate([known, np.where(np.isnan(new), known.max(), new)])
    out = np.concatenate([known, new])
    return out if np.isnan(out).all() else np.where(np.isnan(out), np.nanmin(out), out)
