"""Moments of the bulk of the data, which single rows far away cannot change, and the grain of its values.

The points of :class:`~bnp_dask.core.survey.quantiles.Quantiles` are values of the data.  If all differences of points
are multiples of a step, that step is the grain of the column: its values were rounded, or recorded on a grid.
Continuous values give steps too small to matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.core.survey import Survey
from bnp_dask.core.survey.quantiles import Quantiles

OUTER = 0.05
"""Share of the weight in each tail that the range of the bulk leaves out."""

REACH = 1.5
"""Multiple of the bulk's range beyond which, on either side, a value is an outlier.

For a Gaussian this is 6.6 standard deviations, for uniform values 3.6 times the half width: data without outliers lose
no value.  Up to 5 % of the atoms on either side may lie anywhere.
"""


FUZZ = 1e-5
"""Share of a column's deviation by which values may miss their grid: single precision does."""

LEAST_GRAIN = 1e-3
"""Share of a column's deviation below which a step is ignored: 1e-7 of the variance.  Continuous values give a step of
about ten times :data:`FUZZ`."""

MANY = 16
"""Distinct values that are enough to tell a grid from continuous values; fewer must be repeated, twice on average."""


@dataclass(frozen=True, eq=False)
class Bulk:
    """Where most of each feature lies.

    Parameters
    ----------
    mean, variance
        Moments of the values near the bulk, ``(D,)``; exact moments of all values if none is far.
    minimum, maximum
        Range of these values, ``(D,)``.
    survey
        Survey from which the bulk was computed.
    """

    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    survey: Survey


def bulk_of(survey: Survey) -> Bulk:
    """Moments without values that lie more than :data:`REACH` ranges beyond the bulk of their feature.

    The range of the bulk runs from the 5 % to the 95 % quantile.  If most values are equal, these two may coincide;
    then the range is computed from the other values and extended to the most frequent one.  Features without quantiles
    (counts of many words) have the moments of all values.
    """
    exact = Bulk(survey.mean, survey.variance, survey.minimum, survey.maximum, survey)
    points = survey.quantiles
    if points.values.size == 0:
        return exact
    lower, upper = _fences(points)
    clean = (survey.minimum >= lower) & (survey.maximum <= upper)
    if clean.all():
        return exact
    far = (points.values < lower[:, None]) | (points.values > upper[:, None])
    near = points.without(far)
    mean, variance = near.moments()
    held = near.weights > 0
    minimum = np.where(held, points.values, np.inf).min(axis=1)
    maximum = np.where(held, points.values, -np.inf).max(axis=1)
    return Bulk(
        np.where(clean, exact.mean, mean),
        np.where(clean, exact.variance, variance),
        np.where(clean, exact.minimum, minimum),
        np.where(clean, exact.maximum, maximum),
        survey,
    )


def _fences(points: Quantiles) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value that belongs to the bulk, ``(D,)`` each."""
    low, high = points.at(OUTER), points.at(1.0 - OUTER)
    flat = low == high
    if flat.any():
        mode = low[:, None]
        rest = points.without((points.values == mode) | ~flat[:, None])
        alone = rest.weights.sum(axis=1) == 0
        rest = Quantiles(rest.values, np.where(alone[:, None], points.weights, rest.weights))
        low = np.where(flat, np.minimum(low, rest.at(OUTER)), low)
        high = np.where(flat, np.maximum(high, rest.at(1.0 - OUTER)), high)
    reach = REACH * (high - low)
    return low - reach, high + reach


def grain_of(survey: Survey) -> np.ndarray:
    """Grid steps of the columns, ``(D,)`` in units of the data; 0 for continuous columns.

    Values far from the bulk do not count.  Surveys without quantiles know no grain.
    """
    out = np.zeros(survey.n_features)
    points = survey.quantiles
    if points.values.size == 0:
        return out
    bulk = bulk_of(survey)
    for j in range(len(out)):
        held = points.values[j][points.weights[j] > 0]
        inside = np.unique(held[(held >= bulk.minimum[j]) & (held <= bulk.maximum[j])])
        if len(inside) < 2 or (len(inside) < MANY and survey.n_atoms < 2 * len(inside)):
            continue
        out[j] = _step(inside, float(np.sqrt(bulk.variance[j])))
    return out


def _step(values: np.ndarray, deviation: float) -> float:
    """Largest step of which all differences of ascending ``values`` are multiples; 0 if it is too small to matter."""
    fuzz = FUZZ * deviation + 8 * np.finfo(np.float64).eps * float(np.abs(values).max())
    step, near = 0.0, np.sort(np.diff(values))  # small ones first: errors of large multiples would add up
    for i, gap in enumerate(near.tolist(), 1):
        step = _common(gap, step, fuzz)
        if step < LEAST_GRAIN * deviation:
            return 0.0
        step = float(near[:i].sum() / np.round(near[:i] / step).sum())
    gaps = values - values[0]
    times = np.round(gaps / step)
    step = float(gaps @ times / (times @ times))  # rounding of single gaps is averaged out
    return step if np.abs(gaps - step * times).max() <= 2 * fuzz else 0.0


def _common(a: float, b: float, fuzz: float) -> float:
    """Largest common divisor of two lengths, up to ``fuzz`` (Euclid)."""
    while b > fuzz:
        rest = a % b
        a, b = b, (0.0 if b - rest <= fuzz else rest)
    return a
