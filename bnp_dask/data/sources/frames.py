"""Tables in this process's memory: pandas DataFrame and pyarrow Table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.columns import Columns, Roles, feature_names
from bnp_dask.data.base import Reader
from bnp_dask.data.batching import Span, batch_name, batch_rows, check_index, check_matrix, float_rows, spans
from bnp_dask.data.identity import fingerprint_of_content
from bnp_dask.data.sources.arrow import numbers
from bnp_dask.data.sources.choose import arrow_columns, choose, frame_columns, is_real
from bnp_dask.data.sources.levels import codes, declared, distinct, fill_rows, pending, union, with_found
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import require_exact
from bnp_dask.inputs.column_notation import Key
from bnp_dask.inputs.levels import Levels, ordered_levels

if TYPE_CHECKING:
    import pandas as pd


def is_frame(data: Any) -> bool:
    """Whether data is a pandas DataFrame; pandas itself is imported only when it must have been."""
    kind = type(data)
    return kind.__module__.split(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def is_list_of_frames(data: Any) -> bool:
    """Whether data are a list of pandas DataFrames, one for each group (sequence, image)."""
    return isinstance(data, (list, tuple)) and len(data) > 0 and all(is_frame(part) for part in data)


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all frames, one below the other, columns in the order of the first; all need the same columns."""
    import pandas as pd

    first = frames[0].columns
    for g, frame in enumerate(frames):
        other = frame.columns.symmetric_difference(first)
        if len(other):
            raise DataError(f"group {g}: column {other[0]!r} is not in all groups; all need the same columns")
    return pd.concat([frame[list(first)] for frame in frames], ignore_index=True)


def frame_batch(
    frame: pd.DataFrame,
    columns: Sequence[Any],
    weights: Any,
    name: str,
    levels: Sequence[Levels | None] | None = None,
) -> Batch:
    """The rows of a frame as a batch; missing values become NaN, which a survey names and refuses.

    ``columns`` and ``weights`` are labels, which need not be text; ``levels`` those of each column.
    """
    used = [*columns, *([] if weights is None else [weights])]
    known = [*(levels or [None] * len(columns)), None]
    for column, own in zip(used, known, strict=False):
        if (frame.columns == column).sum() != 1:
            found = "several columns" if column in frame.columns else "no column"
            raise DataError(f"{name} has {found} {column!r}; all partitions need the same columns")
        if own is None:
            check_column(frame[column], name, column)
    if levels is None:
        x = frame[list(columns)].to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        x = np.empty((len(frame), len(columns)))
        for i, (column, own) in enumerate(zip(columns, levels, strict=True)):
            values = frame[column]
            if own is None:
                x[:, i] = values.to_numpy(np.float64, na_value=np.nan)
            else:
                x[:, i] = codes(values, own, name, str(column))
    held = None
    if weights is not None:
        held = check_weights(frame[weights].to_numpy(dtype=np.float64, na_value=np.nan), len(frame), name)
    return Batch(float_rows(x, name), held, name, names=tuple(map(str, columns)))


def labels_in(columns: Columns, labels: Mapping[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Labels of the features in a frame, and of the weights if there are any."""
    weights = columns.roles.weights
    return tuple(labels[name] for name in columns.names), None if weights is None else labels[weights]


def check_column(values: pd.Series, name: str, column: Any, strict: bool = True) -> None:
    """DataError unless a column holds numbers, none of which float64 would round; others pass where not ``strict``."""
    if strict and not is_real(values.dtype):
        raise DataError(f"{name}: column {column!r} is {values.dtype}; needs numbers")
    if getattr(values.dtype, "kind", "f") in "iu":
        # pandas itself makes floats of whole numbers among which some are missing
        require_exact(values.fillna(0).to_numpy(), name, column=column)


@dataclass(frozen=True, eq=False)
class FrameReader:
    """Some rows of a pandas frame."""

    rows: pd.DataFrame
    labels: tuple[Any, ...]
    weights: Any
    name: str
    levels: tuple[Levels | None, ...] | None = None

    def __call__(self) -> Batch:
        return frame_batch(self.rows, self.labels, self.weights, self.name, self.levels)


@dataclass(frozen=True, eq=False)
class TableReader:
    """Some rows of an Arrow table."""

    rows: pa.Table
    layout: tuple[tuple[str, int], ...]
    weights: str | None
    name: str
    coded: tuple[tuple[str, Levels], ...] = ()

    def __call__(self) -> Batch:
        out = np.empty((self.rows.num_rows, sum(width for _, width in self.layout)))
        place = 0
        for batch in self.rows.to_batches():
            fill_rows(out[place : place + batch.num_rows], batch, self.layout, self.name, place, dict(self.coded))
            place += batch.num_rows
        weights = None
        if self.weights is not None:
            weights = check_weights(numbers(self.rows.column(self.weights)), len(out), self.name)
        return Batch(out, weights, self.name, names=feature_names(self.layout))


@dataclass(frozen=True, eq=False)
class TableSource:
    """Rows of a table, cut into batches; values are converted as each batch is read.

    ``labels`` says what the table calls each column: in pandas labels need not be text.
    """

    name: str
    table: pd.DataFrame | pa.Table
    columns: Columns
    labels: Mapping[str, Any]
    spans: tuple[Span, ...]

    @staticmethod
    def of_frame(
        frame: pd.DataFrame,
        batch_size: int | None,
        columns: Sequence[str] | Columns | None,
        roles: Roles,
        keys: Sequence[Key] = (),
    ) -> TableSource:
        """Check a pandas frame, find the levels of columns at the ``keys``, and cut it."""
        name = "DataFrame"
        chosen, labels = choose(frame_columns(frame, name), columns, roles, name, keys)
        found = {}
        for column in pending(chosen):
            values = frame[labels[column]]
            levels = declared(values)
            found[column] = levels or ordered_levels(distinct(values, name, column), name, column)
        return TableSource._of(frame, len(frame), with_found(chosen, found), labels, batch_size, name)

    @staticmethod
    def of_table(
        table: pa.Table,
        batch_size: int | None,
        columns: Sequence[str] | Columns | None,
        roles: Roles,
        name: str = "Table",
        keys: Sequence[Key] = (),
    ) -> TableSource:
        """Check an Arrow table, find the levels of columns at the ``keys``, and cut it."""
        chosen, labels = choose(arrow_columns(table.schema), columns, roles, name, keys)
        wanted = pending(chosen)
        found = union([[distinct(table.column(c), name, c) for c in wanted]], wanted, name)
        return TableSource._of(table, table.num_rows, with_found(chosen, found), labels, batch_size, name)

    @staticmethod
    def _of(
        table: Any, n_rows: int, columns: Columns, labels: Mapping[str, Any], batch_size: int | None, name: str
    ) -> TableSource:
        n, d = check_matrix((n_rows, columns.n_features), name)
        return TableSource(name, table, columns, labels, tuple(spans(n, batch_rows(d, batch_size))))

    @property
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return self.columns.n_features

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
            rows = self.table.slice(start, stop - start)
            coded = tuple(self.columns.coded.items())
            return TableReader(rows, self.columns.layout, self.columns.roles.weights, name, coded)
        rows = self.table.iloc[start:stop]
        return FrameReader(rows, *labels_in(self.columns, self.labels), name, self.columns.levels)

    def column(self, name: str) -> Any:
        """A column that has a role."""
        return self.table.column(name) if isinstance(self.table, pa.Table) else self.table[self.labels[name]]

    def fingerprint(self) -> Any:
        return fingerprint_of_content(self)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "table",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "columns": list(self.columns.names),
            "weights": self.columns.roles.weights,
        }
