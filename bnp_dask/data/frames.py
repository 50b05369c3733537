"""Tables in this process's memory: pandas DataFrame and pyarrow Table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.batch import Batch, check_weights
from bnp_dask.data.base import Reader
from bnp_dask.data.checks import Span, batch_name, batch_rows, check_index, check_matrix, float_rows, nearest, spans
from bnp_dask.data.parquet import choose_columns, feature_layout, fill_rows, numbers
from bnp_dask.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def frame_columns(
    frame: pd.DataFrame, columns: Sequence[str] | None, weights: str | None, name: str, keys: Sequence[str] = ()
) -> list[Any]:
    """Labels of the feature columns: those chosen, else every numeric one but the weights and keys of groups."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    known = list(frame.columns)
    if len(set(known)) < len(known):
        raise DataError(f"{name} has several columns of the same name; rename them")
    for wanted in [*(columns or ()), *([weights] if weights is not None else []), *keys]:
        if wanted not in known:
            raise DataError(f"{name}: no column {wanted!r}{nearest(str(wanted), map(str, known))}; it has {known[:12]}")

    def real(column: Any) -> bool:
        dtype = frame.dtypes[column]
        return bool(is_bool_dtype(dtype) or is_numeric_dtype(dtype)) and getattr(dtype, "kind", "f") != "c"

    if columns is not None:
        wrong = [c for c in columns if not real(c)]
        if wrong:
            raise DataError(f"{name}: column {wrong[0]!r} is {frame.dtypes[wrong[0]]}; needs numbers")
        if not columns:
            raise DataError(f"{name}: columns=[] chooses nothing; columns are {known[:12]}")
        return list(columns)
    chosen = [c for c in known if c != weights and c not in keys and real(c)]
    left = [c for c in known if c != weights and c not in keys and c not in chosen]
    if not chosen:
        raise DataError(f"{name}: no numeric columns among {known[:12]}")
    if left:
        warnings.warn(
            f"{name}: columns {left[:12]} are not numeric and are left out; choose with columns=", stacklevel=2
        )
    return chosen


def frame_batch(frame: pd.DataFrame, columns: Sequence[Any], weights: str | None, name: str) -> Batch:
    """The rows of a frame as a batch; missing values become NaN, which a survey names and refuses."""
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise DataError(f"{name} has no column {missing[0]!r}; all partitions need the same columns")
    x = frame[list(columns)].to_numpy(dtype=np.float64, na_value=np.nan)
    held = None
    if weights is not None:
        held = check_weights(frame[weights].to_numpy(dtype=np.float64, na_value=np.nan), len(frame), name)
    return Batch(float_rows(x, name), held, name)


@dataclass(frozen=True, eq=False)
class FrameReader:
    """Some rows of a pandas frame."""

    rows: pd.DataFrame
    columns: tuple[Any, ...]
    weights: str | None
    name: str

    def __call__(self) -> Batch:
        return frame_batch(self.rows, self.columns, self.weights, self.name)


@dataclass(frozen=True, eq=False)
class TableReader:
    """Some rows of an Arrow table."""

    rows: pa.Table
    layout: tuple[tuple[str, int], ...]
    weights: str | None
    name: str

    def __call__(self) -> Batch:
        out = np.empty((self.rows.num_rows, sum(width for _, width in self.layout)))
        place = 0
        for batch in self.rows.to_batches():
            fill_rows(out[place : place + batch.num_rows], batch, self.layout)
            place += batch.num_rows
        weights = None
        if self.weights is not None:
            weights = check_weights(numbers(self.rows.column(self.weights)), len(out), self.name)
        return Batch(out, weights, self.name)


@dataclass(frozen=True, eq=False)
class TableSource:
    """Rows of a table, cut into batches; values are converted as each batch is read."""

    name: str
    table: pd.DataFrame | pa.Table
    columns: tuple[Any, ...]
    layout: tuple[tuple[str, int], ...]
    weights: str | None
    spans: tuple[Span, ...]

    @staticmethod
    def of_frame(
        frame: pd.DataFrame,
        batch_size: int | None,
        columns: Sequence[str] | None,
        weights: str | None,
        keys: Sequence[str] = (),
    ) -> TableSource:
        """Check a pandas frame and cut it."""
        name = "DataFrame"
        chosen = tuple(frame_columns(frame, columns, weights, name, keys))
        n, d = check_matrix((len(frame), len(chosen)), name)
        layout = tuple((str(c), 1) for c in chosen)
        return TableSource(name, frame, chosen, layout, weights, tuple(spans(n, batch_rows(d, batch_size))))

    @staticmethod
    def of_table(
        table: pa.Table,
        batch_size: int | None,
        columns: Sequence[str] | None,
        weights: str | None,
        keys: Sequence[str] = (),
        name: str = "Table",
    ) -> TableSource:
        """Check an Arrow table and cut it."""
        chosen = choose_columns(table.schema, columns, weights, name, keys)
        layout = tuple(feature_layout(table.schema, chosen))
        n, d = check_matrix((table.num_rows, sum(width for _, width in layout)), name)
        return TableSource(name, table, chosen, layout, weights, tuple(spans(n, batch_rows(d, batch_size))))

    @property
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return sum(width for _, width in self.layout)

    @property
    def n_atoms(self) -> int:
        return self.spans[-1][1]

    @property
    def is_sparse(self) -> bool:
        return False

    def reader(self, index: int) -> Reader:
        start, stop = self.spans[check_index(index, self.n_batches, self.name)]
        name = batch_name(self.name, index, (start, stop))
        if isinstance(self.table, pa.Table):
            return TableReader(self.table.slice(start, stop - start), self.layout, self.weights, name)
        return FrameReader(self.table.iloc[start:stop], self.columns, self.weights, name)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "table",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "columns": [c for c, _ in self.layout],
            "weights": self.weights,
        }
