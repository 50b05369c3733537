"""Ranges of data and of prior scales in which float64 holds statistics, determinants and log likelihoods.

Let y be a number of a column about the center, a the largest ``|y|``, s the column's spread (largest less smallest) and
W the total weight, at most 2**53.  Gaussians of any kind compute

- sums of y**2, at most ``W a**2``;
- prior scales, about a tenth of the column's variance or as the user says, and posterior ones, from these up to
  ``W a**2`` more.  Rounding is relative to them while they lie above 2.2e-308 / 2**-53 = 2e-292;
- their inverses times degrees of freedom, at most ``(W + 1e10) / scale``;
- quadratic forms ``nu y**2 / scale`` and sums of them over atoms, at most ``(W + 1e10) a**2 / scale``.

Determinants are sums of logarithms and never leave the range.  With ``s >= 1e-140``, ``a <= 1e140``, scales from 1e-290
to 1e290 and ``a**2 <= 1e280 scale`` all of these lie between 1e-290 and 1e306.  In between units do not matter: of data
times a power of two all numbers are the same but for their exponents, and the objective is lower by the logarithm of
that power for each number.

A word's or a Poisson rate's part of a log likelihood is a difference of numbers of size ``x log x``, of which rounding
leaves ``2**-53 x log x``: 3e-3 nats for each atom at x = 2**40, and 41 nats at 1e16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch, column_name
from bnp_dask.core.survey import Survey
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.arrays import real_setting
from bnp_dask.inputs.settings import shown

SMALLEST, LARGEST = 1e-140, 1e140
"""Spread of a column that is not constant, at least, and size of a number, at most."""

LEAST_SCALE, MOST_SCALE = 1e-290, 1e290
"""Prior scales, in squared units of the data: a constant column gets less than others, and many atoms may be near one
another beside one that is far."""

MOST_COUNT = 2.0**40
"""Largest count of which log likelihoods keep their digits."""


def check_reach(
    model: object,
    batch: Batch,
    center: np.ndarray | float = 0.0,
    scale: np.ndarray | float = 1.0,
    may_miss: bool = False,
) -> None:
    """DataError unless a batch holds finite numbers whose quadratic forms float64 can hold.

    Parameters
    ----------
    model
        Model named in messages.
    batch
        Dense rows ``(n, D)``.
    center, scale
        Center and scale of the prior, if known, ``(D,)``: numbers may be 1e140 times the root of the scale away.
    may_miss
        Whether NaN is an entry that is missing.
    """
    x = np.asarray(batch.x)
    if x.size == 0:
        return
    reach = LARGEST * np.minimum(1.0, np.sqrt(scale))
    if _all_fit(x.min(), x.max(), center, reach):  # at a fifth of the time of looking by column
        return
    low, high = x.min(axis=0), x.max(axis=0)  # NaN where there is one
    if may_miss:
        low, high = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
        lacks_all = np.isnan(low)
        low, high = np.where(lacks_all, center, low), np.where(lacks_all, center, high)
    fits = _fit(low, high, center, reach)
    if np.all(fits):
        return
    column = int(np.argmin(np.broadcast_to(fits, low.shape)))
    _refuse(model, batch, x, column, float(np.broadcast_to(reach, low.shape)[column]), may_miss)


def _all_fit(low: float, high: float, center: np.ndarray | float, reach: np.ndarray | float) -> bool:
    """Whether numbers between two bounds fit in every column; False if each must be checked, or a bound is NaN."""
    return bool(np.all(_fit(low, high, np.array([np.min(center), np.max(center)]), np.min(reach))))


def _fit(low: Any, high: Any, center: Any, reach: Any) -> Any:
    with np.errstate(invalid="ignore", over="ignore"):
        fits = (np.abs(low) <= LARGEST) & (np.abs(high) <= LARGEST)
        return fits & (center - low <= reach) & (high - center <= reach)


def _refuse(model: object, batch: Batch, x: np.ndarray, column: int, reach: float, may_miss: bool) -> None:
    """Raise DataError with the first unusable number; of all columns if one is not finite."""
    name = type(model).__name__
    finite = np.isfinite(x) | (np.isnan(x) & may_miss)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise DataError(
            f"{batch.name}: {batch.place(row)}, {batch.column(column)} is {x[row, column]}; {name} needs finite "
            "values. Drop or impute such rows before training"
        )
    row = int(np.nanargmax(np.abs(x[:, column])))
    raise DataError(
        f"{batch.name}: {batch.place(row)}, {batch.column(column)} is {x[row, column]:.6g}, whose square is too large "
        f"for {name} in double precision; needs sizes up to {reach:.3g}. Drop such rows, or divide the column by "
        f"1e{_exponent(abs(x[row, column]))} or so"
    )


def require_spread(survey: Survey, about_zero: bool = False) -> None:
    """DataError unless float64 holds the squares of every column that is not constant.

    ``about_zero``: for a likelihood of mean zero, the size of numbers counts and not their spread.
    """
    if about_zero:
        spread = np.maximum(np.abs(survey.minimum), np.abs(survey.maximum))
    else:
        spread = survey.maximum - survey.minimum
    small = (spread > 0) & (spread < SMALLEST)
    if small.any():
        column = int(small.argmax())
        what = "holds numbers up to" if about_zero else "varies by"
        raise DataError(
            f"{survey.name} and other batches: {column_name(survey.names, column)} {what} {spread[column]:.3g}, whose "
            f"square is too small for double precision; needs {SMALLEST:g} at least. Multiply the column by "
            f"1e{-_exponent(spread[column])} or so, or leave it out"
        )


FARTHEST = 1e7
"""Ranges of the data, or prior deviations, from the data to the center: there an atom loses 0.02 nats to rounding."""


def require_scale(name: str, scale: np.ndarray, survey: Survey, center: np.ndarray | float) -> None:
    """SettingError unless a prior scale ``(D,)``, in squared units of the data, fits the data's range.

    The data of all batches have been checked by :func:`check_reach` before.
    """
    away = np.maximum(np.abs(survey.minimum - center), np.abs(survey.maximum - center))
    away = np.where(np.isfinite(away), away, 0.0)  # columns without atoms
    least = np.maximum(LEAST_SCALE, (away / LARGEST) ** 2)
    wrong = ~((scale >= least) & (scale <= MOST_SCALE))
    if np.any(wrong):
        column = int(np.argmax(wrong))
        found = np.broadcast_to(scale, wrong.shape)[column]
        raise SettingError(
            f"{name} of {column_name(survey.names, column)} is {found:.3g}, in squared units of the data; double "
            f"precision holds the log likelihoods of these data for {least[column]:.2g} to {MOST_SCALE:.0e}. Pass "
            f"another {name}, or rescale the column"
        )


def require_near(center: np.ndarray, scale: np.ndarray, survey: Survey) -> None:
    """Raise SettingError if the center of statistics, ``(D,)``, is too far from the data for double precision."""
    held = np.isfinite(survey.minimum)  # others are columns without atoms
    least, most = np.where(held, survey.minimum, center), np.where(held, survey.maximum, center)
    away = np.maximum(np.maximum(least - center, center - most), 0.0)
    wrong = away > FARTHEST * np.maximum(most - least, np.sqrt(scale))
    if np.any(wrong):
        column = int(np.argmax(wrong))
        raise SettingError(
            f"center of {column_name(survey.names, column)} is {center[column]:.6g}, and its values lie between "
            f"{least[column]:.6g} and {most[column]:.6g}: too far from it for double precision to tell them apart. "
            "Leave center out, or give a point near the data"
        )


def location(name: str, value: object) -> np.ndarray:
    """A setting in units of the data; SettingError for anything but numbers of sizes that float64 can square."""
    array = real_setting(name, value)
    if np.abs(array).max(initial=0.0) > LARGEST:
        raise SettingError(f"{name}={shown(value)}: needs sizes up to {LARGEST:g}, in units of the data")
    return array


def _exponent(value: float) -> int:
    """Exponent of the power of ten nearest to a size."""
    return int(np.round(np.log10(value)))
