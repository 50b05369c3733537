"""Moments of the bulk of the data: what single rows far away, however far, cannot change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.core.quantiles import Quantiles
from bnp_dask.core.survey import Survey

OUTER = 0.05
"""Share of the weight below, and above, what the range of the bulk is told from."""

REACH = 1.5
"""Ranges of the bulk beyond which, on either side, a value does not belong to it.

For a Gaussian this is 6.6 standard deviations, for uniform values 3.6 times the half width: nothing of data without
outliers is left out.  Up to 5 % of the atoms on either side may be anywhere.
"""


@dataclass(frozen=True, eq=False)
class Bulk:
    """Where most of each feature lies.

    Parameters
    ----------
    mean, variance
        Moments of the values that are not far from the bulk, ``(D,)``; those of all values, exactly, where none is.
    minimum, maximum
        Range of these values, ``(D,)``.
    survey
        What it was told from.
    """

    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    survey: Survey


def bulk_of(survey: Survey) -> Bulk:
    """Moments without values that lie more than :data:`REACH` ranges beyond the bulk of their feature.

    The range of the bulk is that between the 5 % and the 95 % quantile.  Where most values are equal these may be the
    same; then it is that of the other values, together with the most frequent one.  Features without quantiles (counts
    of many words, surveys of older versions) have the moments of all values.
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
