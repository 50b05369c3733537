"""Observed responses of documents, cut into batches as the data are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Source
from bnp_dask.data.beside import is_unknown, loaded, with_beside
from bnp_dask.data.labels import UNKNOWN, Name, labels_of
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import require_real
from bnp_dask.inputs.settings import shown

TEXTS = "some are texts; classes need a model with response=CategoricalResponse()"


def responses_of(given: Any) -> np.ndarray:
    """Responses as float64 ``(n,)``, NaN where none is observed.

    Parameters
    ----------
    given
        ``(n,)`` numbers, NaN, None or masked where unknown; or the path of a .npy file of numbers.

    Raises
    ------
    DataError
        Not one-dimensional, no real numbers, infinite numbers, or no observed response.
    """
    given, where = loaded(given, "responses", "number for each document")
    values = _numbers(given, where)
    if values.ndim != 1:
        raise DataError(f"{where} have shape {values.shape}; needs one number for each document, (n,)")
    if np.isinf(values).any():
        raise DataError(f"{where}: number {int(np.isinf(values).argmax())} is infinite; NaN says that none is observed")
    if np.isnan(values).all():
        raise DataError(f"{where}: no response is observed, all are NaN; leave responses out")
    return values


def classes_of(given: Any, names: tuple[Name, ...] | None = None) -> tuple[np.ndarray, tuple[Name, ...]]:
    """Responses that are classes as positions among their names, float64 ``(n,)``, NaN where none is observed; and the
    names.

    ``given`` and ``names`` are as for :func:`bnp_dask.data.labels.labels_of`, which also says what is refused.
    """
    found = labels_of(given, names, "responses")
    return np.where(found.codes == UNKNOWN, np.nan, found.codes.astype(np.float64)), found.names


def _numbers(given: Any, where: str) -> np.ndarray:
    """Values as a new array of float64, NaN where unknown."""
    try:
        values = np.asarray(given)
        if values.dtype.kind in "US":
            raise TypeError(TEXTS)
        if values.dtype.kind == "O" and values.ndim == 1:
            values = np.array([_number(value) for value in values.tolist()])
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: {shown(given)} are no numbers: {error}") from error
    require_real(values.dtype, where)
    values = values.astype(np.float64)
    if isinstance(given, np.ma.MaskedArray):
        values[np.ma.getmaskarray(given)] = np.nan
    return values


def _number(value: Any) -> float:
    """A number, NaN for an unknown one; texts are none."""
    if isinstance(value, (str, bytes)):
        raise TypeError(TEXTS)
    return np.nan if is_unknown(value) else float(value)


def _responding(batch: Batch, values: np.ndarray) -> Batch:
    """The batch with responses ``(n,)`` of its documents."""
    if batch.n_groups != len(values):
        raise DataError(f"{batch.name}: {batch.n_groups} documents, but {len(values)} responses; the data changed")
    return replace(batch, responses=values)


def with_responses(source: Source, responses: np.ndarray) -> Source:
    """The source of documents of counts with one response, observed or NaN, for each document.

    Raises
    ------
    DataError
        Dense rows, or as :func:`with_beside`.
    """
    if not source.is_sparse:
        raise DataError(
            f"{source.name}: dense rows; responses belong to documents of counts, each a row of a sparse matrix. "
            "Groups of dense rows can have them: give a Source whose batches are Batch(x, groups=..., responses=...)"
        )
    return with_beside(source, responses, "responses", "documents", "NaN", _responding)
