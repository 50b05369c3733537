"""Sources of sequences for likelihoods that condition on the steps before each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns, lagged_names
from bnp_dask.data.base import Reader, Source, columns_of, shows_itself
from bnp_dask.data.grouped.offsets import GroupedSource
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.errors import DataError
from bnp_dask.kernels.numeric.lags import lagged_rows, with_lags


def lagged(batch: Batch, lags: int) -> Batch:
    """A batch of sequences for autoregressive models: the first ``lags`` steps of each have no row of their own.

    Raises
    ------
    DataError
        Sparse counts, or rows without known starts of sequences.
    """
    if lags == 0:
        return batch
    if not isinstance(batch.x, np.ndarray) or batch.groups is None:
        raise DataError(
            f"{batch.name}: rows without sequences, but the likelihood takes the {lags} step(s) before each; say which "
            "rows are of one sequence: as_source(data, groups=...), groups=[0, n] for one of n rows"
        )
    index, offsets = lagged_rows(batch.groups, lags)
    weights = None if batch.weights is None else batch.weights[index]
    names = None if batch.names is None else lagged_names(batch.names, lags)
    return replace(batch, x=with_lags(batch.x, index, lags), weights=weights, groups=offsets, names=names)


@dataclass(frozen=True, eq=False)
class LaggedReader:
    """A batch of sequences with the ``lags`` steps before each step in its row."""

    steps: Reader
    lags: int

    def __call__(self) -> Batch:
        return lagged(self.steps(), self.lags)


@shows_itself
@dataclass(frozen=True, eq=False)
class LaggedSource:
    """Sequences with rows ``[x_t, x_{t-1}, ..., x_{t-lags}]``, made from recorded sequences batch by batch.

    Parameters
    ----------
    steps
        The sequences as they were recorded.
    lags
        Steps before each step.
    """

    steps: Source
    lags: int

    @property
    def name(self) -> str:
        return self.steps.name

    @property
    def n_batches(self) -> int:
        return self.steps.n_batches

    @property
    def n_features(self) -> int:
        return self.steps.n_features * (1 + self.lags)

    @property
    def n_atoms(self) -> int | None:
        return None

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def columns(self) -> Columns | None:
        """Columns of these rows."""
        found = columns_of(self.steps)
        return None if found is None else found.with_previous(self.lags)

    def reader(self, index: int) -> Reader:
        return LaggedReader(self.steps.reader(index), self.lags)

    def fingerprint(self) -> Any:
        return fingerprint_of(self.steps)

    def describe(self) -> dict[str, Any]:
        # the recorded data, which pages open again
        return {**self.steps.describe(), "lags": self.lags}


def taking_lags(source: Source, lags: int) -> Source:
    """The sequences for a likelihood of ``lags`` steps; the source itself for ``lags=0``.

    Raises
    ------
    DataError
        Counts, or sequences that are all too short.
    """
    if lags == 0:
        return source
    if source.is_sparse:
        raise DataError(
            f"{source.name}: sparse counts, but the likelihood takes the steps before each; needs dense rows"
        )
    if isinstance(source, GroupedSource) and isinstance(source.offsets, np.ndarray):
        longest = int(np.diff(source.offsets).max())
        if longest <= lags:
            raise DataError(
                f"{source.name}: the longest sequence has {longest} row(s), and the first {lags} of each are those "
                f"that the others follow from; needs a sequence of {lags + 1} rows at least"
            )
    return LaggedSource(source, lags)
