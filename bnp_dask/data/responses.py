"""Observed responses of documents, cut into batches as the data are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, Source, fingerprint_of, spans_of
from bnp_dask.data.labels import UNKNOWN, Name, labels_of
from bnp_dask.data.view import Changed, View
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown


def responses_of(given: Any) -> np.ndarray:
    """Responses as float64 ``(n,)``, NaN where none is observed.

    Parameters
    ----------
    given
        ``(n,)`` numbers, NaN, None or masked where unknown; or the path of a .npy file of numbers.

    Raises
    ------
    DataError
        Not one-dimensional, no numbers, infinite numbers, or no observed response.
    """
    where = "responses"
    if isinstance(given, (str, os.PathLike)):
        where = os.fspath(given)
        if not where.endswith(".npy"):
            raise DataError(
                f"responses={where!r}: needs an array with one number for each document, or the path of a .npy file"
            )
        try:
            given = np.load(where, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"responses={where!r} cannot be read: {error}") from error
    try:
        if isinstance(given, np.ma.MaskedArray):
            given = np.where(np.ma.getmaskarray(given), np.nan, np.asarray(given, np.float64))
        kind = np.asarray(given).dtype
        if kind.kind not in "biufO":
            raise TypeError(f"they have dtype {kind}; classes need a model with response=CategoricalResponse()")
        values = np.array(given, np.float64)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise DataError(f"{where}: {shown(given)} are no numbers: {error}") from error
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


@dataclass(frozen=True, eq=False, repr=False)
class RespondingSource(View):
    """A source whose documents have responses, some of them observed."""

    spans: Sequence[tuple[int, int]]
    responses: np.ndarray

    def reader(self, index: int) -> Reader:
        start, stop = self.spans[index]
        return Changed(self.whole.reader(index), partial(_responding, responses=self.responses[start:stop]))

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.whole), self._digest()]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "responses": self._digest()}

    def _digest(self) -> str:
        return f"crc32 {zlib.crc32(self.responses.tobytes())}"


def _responding(batch: Batch, responses: np.ndarray) -> Batch:
    """The batch with responses ``(n,)`` of its documents."""
    if batch.n_groups != len(responses):
        raise DataError(f"{batch.name}: {batch.n_groups} documents, but {len(responses)} responses; the data changed")
    return replace(batch, responses=responses)


def with_responses(source: Source, responses: np.ndarray) -> RespondingSource:
    """The source of documents of counts with one response, observed or NaN, for each document.

    Raises
    ------
    DataError
        Dense rows, another number of responses than of documents, or a source whose batches have unknown lengths.
    """
    if not source.is_sparse:
        raise DataError(
            f"{source.name}: dense rows; responses belong to documents of counts, each a row of a sparse matrix. "
            "Groups of dense rows can have them: give a Source whose batches are Batch(x, groups=..., responses=...)"
        )
    spans = spans_of(source)
    if spans is None:
        raise DataError(
            f"{source.name}: the lengths of its batches are unknown, so that responses cannot be cut as they are; "
            "ingest the data into a Zarr store first (bnp-dask ingest)"
        )
    n = spans[-1][1] if spans else 0
    if len(responses) != n:
        raise DataError(
            f"{len(responses)} responses for the {n} documents of {source.name}; needs one for each, NaN for unknown"
        )
    return RespondingSource(source, tuple(spans), responses)
