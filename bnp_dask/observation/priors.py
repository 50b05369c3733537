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

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import Bulk, Survey, bulk_of, grain_of
from bnp_dask.errors import DataError, SettingError, warn
from bnp_dask.inputs.arrays import real_setting
from bnp_dask.inputs.settings import LEAST_MASS, MOST_MASS, shown
from bnp_dask.observation.missing.entries import Missing
from bnp_dask.observation.ranges import check_reach, location

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
