"""Common parts of observation models of dense rows: checks of data and settings, priors from the data, and rounding.

Rounded data: the true value of an atom lies anywhere within half a step of the recorded one.
With q(z_n) uniform over the cell of side delta_d around x_n, the bound on the probability of the cell is

    log P(cell) >= E_q[log N(z_n | mu, Lam^-1)] + log vol = log N(x_n | mu, Lam^-1) - sum_d Lam_dd delta_d^2 / 24 + log
    vol,

so the objective is for a density (log vol is left out) with delta_d^2 / 12, the variance of rounding, added to the
square of every atom: exactly conjugate for any number of atoms.  Without it the likelihood of clusters that hold
one recorded value grows without bound, and there would be as many clusters as values.

The bound is Jensen's; delta^2 / 12 is Sheppard's correction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bnp_dask.core import Batch, Bulk, Survey, bulk_of, column_name, grain_of
from bnp_dask.errors import DataError, SettingError, warn
from bnp_dask.inputs import LEAST_MASS, MOST_MASS, real_setting, shown
from bnp_dask.observation.missing import Missing, takes_missing

# -- ranges in which float64 holds statistics, determinants and log likelihoods -----------------------------------
# Let y be a number of a column about the center, a the largest ``|y|``, s the column's spread (largest less smallest)
# and W the total weight, at most 2**53.  Gaussians of any kind compute
#
# - sums of y**2, at most ``W a**2``;
# - prior scales, about a tenth of the column's variance or as the user says, and posterior ones, from these up to
#   ``W a**2`` more.  Rounding is relative to them while they lie above 2.2e-308 / 2**-53 = 2e-292;
# - their inverses times degrees of freedom, at most ``(W + 1e10) / scale``;
# - quadratic forms ``nu y**2 / scale`` and sums of them over atoms, at most ``(W + 1e10) a**2 / scale``.
#
# Determinants are sums of logarithms and never leave the range.  With ``s >= 1e-140``, ``a <= 1e140``, scales from
# 1e-290 to 1e290 and ``a**2 <= 1e280 scale`` all of these lie between 1e-290 and 1e306.  In between units do not
# matter: of data times a power of two all numbers are the same but for their exponents, and the objective is lower
# by the logarithm of that power for each number.
#
# A word's or a Poisson rate's part of a log likelihood is a difference of numbers of size ``x log x``, of which
# rounding leaves ``2**-53 x log x``: 3e-3 nats for each atom at x = 2**40, and 41 nats at 1e16.
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
        can_miss = np.isnan(x[row, column]) and takes_missing(model)
        advice = f'{name}(missing="marginalise") integrates over missing entries; or drop' if can_miss else "Drop"
        raise DataError(
            f"{batch.name}: {batch.place(row)}, {batch.column(column)} is {x[row, column]}; {name} needs finite "
            f"values. {advice} or impute such rows before training"
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


def require_near(
    center: np.ndarray, scale: np.ndarray, survey: Survey, name: str = "center", farthest: float = FARTHEST
) -> None:
    """Raise SettingError if the center of statistics, ``(D,)``, is too far from the data for double precision.

    Or another location, the setting ``name``; ``scale (D,)`` is its scale in squared units of the data, and
    ``farthest`` the number of ranges of the data, or of roots of the scale, that it may be away.
    """
    held = np.isfinite(survey.minimum)  # others are columns without atoms
    least, most = np.where(held, survey.minimum, center), np.where(held, survey.maximum, center)
    away = np.maximum(np.maximum(least - center, center - most), 0.0)
    wrong = away > farthest * np.maximum(most - least, np.sqrt(scale))
    if np.any(wrong):
        column = int(np.argmax(wrong))
        raise SettingError(
            f"{name} of {column_name(survey.names, column)} is {center[column]:.6g}, and its values lie between "
            f"{least[column]:.6g} and {most[column]:.6g}: too far from it for double precision to tell them apart. "
            f"Leave {name} out, or give a point near the data"
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


# -- settings from the data, and rounding -------------------------------------------------------------------------
LOG_2PI = math.log(2 * math.pi)

PRIOR_SCALE = 0.1
"""Default expected variance of a cluster, as a share of the variance of the data's bulk.

With kappa equal to it, cluster means are expected to spread exactly as the data do.
"""


def width(name: str, value: object) -> int | None:
    """Number of features of a prior setting; None if it fits any number, or waits for the data."""
    if value is None:
        return None
    array = real_setting(name, value)
    return None if array.ndim == 0 else len(array)


def check_dense(
    model: object,
    batch: Batch,
    n_features: int | None,
    center: object = None,
    scale: object = None,
    missing: Missing = None,
) -> None:
    """Raise DataError unless the batch holds dense rows that float64 can square, of the right width if it is known.

    Parameters
    ----------
    model, batch
        The calling model, and the rows.
    n_features
        Columns that the prior was set for, or None.
    center, scale
        Center and scale of the prior, if known: rows may be only so far away that float64 holds their quadratic forms.
        A scale ``(D, D)`` stands for its diagonal.
    missing
        Treatment of NaN by the model.
    """
    name = type(model).__name__
    if batch.is_sparse:
        raise DataError(f"{batch.name}: sparse counts, but {name} needs dense rows; use Multinomial for counts")
    if n_features is not None and batch.n_features != n_features:
        raise DataError(f"{batch.name}: {batch.n_features} features, but {name} was set up for {n_features}")
    if center is None or scale is None:
        check_reach(model, batch, may_miss=missing is not None)
        return
    size = real_setting("scale", scale)
    size = size.diagonal() if size.ndim == 2 else size
    check_reach(model, batch, real_setting("center", center), size, missing is not None)


def positive(name: str, value: object) -> np.ndarray:
    """Setting in units of atoms, a number or an array; SettingError unless all of it is positive and in the range in
    which the objective keeps its digits."""
    array = scales(name, value)
    if not ((array >= LEAST_MASS) & (array <= MOST_MASS)).all():
        raise SettingError(
            f"{name}={shown(value)}: double precision cannot hold the objective of such pseudo-counts; needs numbers "
            f"from {LEAST_MASS:g} to {MOST_MASS:g}"
        )
    return array


def scales(name: str, value: object) -> np.ndarray:
    """A setting in units of the data, a number or an array; SettingError unless all of it is positive and finite."""
    array = real_setting(name, value)
    if not (array > 0).all():
        raise SettingError(f"{name}={shown(value)}: needs positive finite values")
    return array


def vector(name: str, array: np.ndarray, n_features: int) -> np.ndarray:
    """A number or a vector as ``(n_features,)``; SettingError for other shapes."""
    if array.ndim > 1 or array.size not in (1, n_features):
        raise SettingError(f"{name} has shape {array.shape}; needs a number or shape ({n_features},)")
    return np.ascontiguousarray(np.broadcast_to(array, (n_features,)))


def single(name: str, value: object) -> float:
    """A setting that is one positive number, counted like atoms; SettingError for anything else."""
    array = positive(name, value)
    if array.ndim > 0:
        raise SettingError(f"{name} has shape {array.shape}; needs a single number")
    return float(array)


def known(name: str, value: np.ndarray | float | None) -> np.ndarray:
    """A prior setting as an array; SettingError while it waits for the data."""
    if value is None:
        raise SettingError(f"{name} is not set yet; call with_prior(survey) to set it from the data")
    return np.asarray(value, np.float64)


def default_location(bulk: Bulk) -> np.ndarray:
    """Prior mean from the data: the mean of their bulk, ``(D,)``."""
    return np.ascontiguousarray(bulk.mean)


def constant_columns(bulk: Bulk) -> np.ndarray:
    """Which columns vary no more than rounding of their own magnitude can produce, ``(D,)``."""
    noise = (1e-14 * np.maximum(np.abs(bulk.minimum), np.abs(bulk.maximum))) ** 2
    return np.asarray(bulk.variance <= noise)


def usual_variance(bulk: Bulk) -> np.ndarray:
    """Variance of the data's bulk, ``(D,)``; constant columns have none and get a millionth of the mean (or 1)."""
    variance = np.array(bulk.variance)
    variance[constant_columns(bulk)] = 1e-6 * (float(variance.mean()) or 1.0)
    return variance


def default_variance(bulk: Bulk) -> np.ndarray:
    """Expected within-cluster variance from the data, ``(D,)``: PRIOR_SCALE times :func:`usual_variance`."""
    return PRIOR_SCALE * usual_variance(bulk)


def resolution(value: np.ndarray | float | None, survey: Survey) -> np.ndarray:
    """The setting ``grain``, ``(D,)`` in units of the data; None for the resolution found by the survey.

    SettingError for negative values and other shapes.
    """
    if value is None:
        return grain_of(survey)
    array = location("grain", value)
    if not (array >= 0).all():
        raise SettingError(f"grain={shown(value)}: needs steps >= 0, in units of the data; 0 for continuous columns")
    return vector("grain", array, survey.n_features)


def rounding_variance(grain: np.ndarray | float | None) -> np.ndarray | None:
    """Variance of rounding, ``(D,)``; None if nothing is rounded."""
    if grain is None or not np.any(grain):
        return None
    return np.asarray(grain, np.float64) ** 2 / 12.0


def mean_counts(survey: Survey) -> np.ndarray:
    """Mean of each column's bulk, > 0; of a column of zeros as if it had one count, with a warning, ``(D,)``."""
    mean = np.array(bulk_of(survey).mean, np.float64)
    # negative means come from data that check() will refuse by row and column
    zero = ~(mean > 0)
    if zero.any():
        columns = np.flatnonzero(zero)
        warn(
            f"{len(columns)} column(s) hold only zeros (first: {survey.called(columns)}): they carry no information; "
            "consider dropping them"
        )
        mean[zero] = 1.0 / max(survey.total_weight, 1.0)
    return mean
