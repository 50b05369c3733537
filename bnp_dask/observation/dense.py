"""What observation models of dense rows share: checks of data and settings, and priors from the data."""

from __future__ import annotations

import warnings

import numpy as np

from bnp_dask.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.survey import Survey

LOG_2PI = float(np.log(2 * np.pi))

PRIOR_SCALE = 0.1
"""Expected variance of a cluster, as a share of the data's variance, when the user gives no prior.

With kappa equal to it, cluster means are expected to spread exactly as the data do.
"""


def width(value: np.ndarray | float | None) -> int | None:
    """Features that a prior setting was given for; None for one that fits any number, or waits for the data."""
    return None if value is None or np.ndim(value) == 0 else len(np.asarray(value))


def check_dense(model: object, batch: Batch, n_features: int | None) -> None:
    """Raise DataError unless the batch holds finite dense rows, of the right width where that is known."""
    name = type(model).__name__
    if batch.is_sparse:
        raise DataError(f"{batch.name}: sparse counts, but {name} needs dense rows; use Multinomial for counts")
    if n_features is not None and batch.n_features != n_features:
        raise DataError(f"{batch.name}: {batch.n_features} features, but {name} was set up for {n_features}")
    finite = np.isfinite(batch.x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise DataError(
            f"{batch.name}: {batch.place(int(row))}, {batch.column(column)} is {batch.x[row, column]}; {name} "
            "needs finite values. Drop or impute such rows before training"
        )


def positive(name: str, value):
    """The value, if all of it is positive and finite; else SettingError."""
    array = np.asarray(value, np.float64)
    if not (np.isfinite(array) & (array > 0)).all():
        raise SettingError(f"{name}={value!r}: needs positive finite values")
    return float(array) if array.ndim == 0 else array


def vector(name: str, value, n_features: int) -> np.ndarray:
    """A number or a vector as ``(n_features,)``; SettingError for other shapes and for values not finite."""
    array = np.asarray(value, np.float64)
    if array.ndim > 1 or array.size not in (1, n_features):
        raise SettingError(f"{name} has shape {array.shape}; needs a number or shape ({n_features},)")
    if not np.isfinite(array).all():
        raise SettingError(f"{name}={value!r}: needs finite values")
    return np.ascontiguousarray(np.broadcast_to(array, (n_features,)))


def known(name: str, value: np.ndarray | float | None) -> np.ndarray:
    """A prior setting as an array; SettingError while it waits for the data."""
    if value is None:
        raise SettingError(f"{name} is not set yet; call with_prior(survey) to set it from the data")
    return np.asarray(value, np.float64)


def default_location(survey: Survey) -> np.ndarray:
    """Prior mean from the data: their mean, ``(D,)``."""
    return np.ascontiguousarray(survey.mean)


def default_variance(survey: Survey) -> np.ndarray:
    """Expected within-cluster variance from the data, ``(D,)``: PRIOR_SCALE times their variance.

    A constant column has none; it gets a millionth of the mean variance (or 1), with a warning.
    """
    variance = np.array(survey.variance)
    typical = float(variance.mean()) or 1.0
    # below what rounding of the column's own magnitude can produce, a column is constant
    noise = (1e-14 * np.maximum(np.abs(survey.minimum), np.abs(survey.maximum))) ** 2
    constant = variance <= noise
    if constant.any():
        columns = survey.called(np.flatnonzero(constant))
        warnings.warn(
            f"column(s) {columns} are constant: they carry no information about clusters; consider dropping them",
            stacklevel=2,
        )
        variance[constant] = 1e-6 * typical
    return PRIOR_SCALE * variance
