"""Tables in this process's memory: pandas DataFrame and pyarrow Table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core import Batch, Columns, Roles, check_weights
from bnp_dask.data.base import (
    Span,
    Stored,
    batch_rows,
    check_matrix,
    fingerprint_of_content,
    spans,
)
from bnp_dask.data.sources.columns import (
    PLAIN_READING,
    Cells,
    Reading,
    arrow_columns,
    as_arrow,
    choose,
    declared,
    distinct,
    fill_rows,
    frame_columns,
    in_values,
    pending,
    read_cells,
    union,
    with_found,
)
from bnp_dask.errors import DataError
from bnp_dask.inputs import ordered_levels, require_exact

if TYPE_CHECKING:
    import pandas as pd


def is_frame(data: Any) -> bool:
    """Whether data is a pandas DataFrame; imports pandas only if it must have been imported already."""
    kind = type(data)
    return kind.__module__.split(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def is_list_of_frames(data: Any) -> bool:
    """Whether data are a list of pandas DataFrames, one per group (sequence, image)."""
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


def table_of_frame(frame: pd.DataFrame) -> pa.Table:
    """The columns of a pandas frame as an Arrow table, without its index; cells of several types become texts."""
    arrays = [as_arrow(frame.iloc[:, place]) for place in range(frame.shape[1])]
    return pa.table(arrays, [str(label) for label in frame.columns])


def frame_batch(frame: pd.DataFrame, columns: Columns, labels: Mapping[str, Any], name: str) -> Batch:
    """The rows of a frame as a batch; missing values become NaN, which a survey reports and refuses.

    ``labels`` are the labels of the columns in the frame, which need not be text.
    """
    used = [n for n in dict.fromkeys((*columns.names, columns.roles.weights)) if n is not None]
    for label in (labels[n] for n in used):
        if (frame.columns == label).sum() != 1:
            found = "several columns" if label in frame.columns else "no column"
            raise DataError(f"{name} has {found} {label!r}; all partitions need the same columns")
    arrays = [as_arrow(frame[labels[n]], as_texts=n not in columns.coded) for n in used]
    return table_batch([pa.RecordBatch.from_arrays(arrays, used)], len(frame), columns, name)


def table_batch(pieces: Iterable[pa.RecordBatch], n_rows: int, columns: Columns, name: str) -> Batch:
    """The rows of record batches as a batch."""
    out = np.empty((n_rows, columns.n_features))
    weights = None if columns.roles.weights is None else np.empty(n_rows)
    on_bad, place = columns.on_bad_cell or "raise", 0
    for piece in pieces:
        span = slice(place, place + piece.num_rows)
        fill_rows(out[span], piece, columns.layout, name, place, columns.coded, on_bad)
        if weights is not None:
            own = piece.column(columns.roles.weights)
            weights[span] = read_cells(own, 1, Cells(name, str(columns.roles.weights), place))[:, 0]
        place += piece.num_rows
    held = None if weights is None else check_weights(weights, n_rows, name)
    return Batch(out, held, name, names=columns.features)


def check_column(values: pd.Series, name: str, column: Any) -> None:
    """DataError if a column holds whole numbers that float64 would round."""
    if getattr(values.dtype, "kind", "f") in "iu":
        # pandas itself turns whole numbers with missing values into floats
        require_exact(values.fillna(0).to_numpy(), name, column=column)


@dataclass(frozen=True, eq=False)
class TableReader:
    """Some rows of a pandas frame or an Arrow table."""

    rows: pd.DataFrame | pa.Table
    columns: Columns
    labels: Mapping[str, Any]
    name: str

    def __call__(self) -> Batch:
        if isinstance(self.rows, pa.Table):
            return table_batch(self.rows.to_batches(), self.rows.num_rows, self.columns, self.name)
        return frame_batch(self.rows, self.columns, self.labels, self.name)


@dataclass(frozen=True, eq=False, repr=False)
class TableSource(Stored):
    """Rows of a table, cut into batches; values are converted as each batch is read.

    ``labels`` are the labels of the columns in the table: in pandas labels need not be text.
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
        reading: Reading = PLAIN_READING,
        offsets: np.ndarray | None = None,
    ) -> TableSource:
        """Check a pandas frame, find the levels of its columns, and cut it; rows begin anew at ``offsets``."""
        name = "DataFrame"
        look = in_values(lambda label: frame[label], name, offsets)
        chosen, labels = choose(frame_columns(frame, name), columns, roles, name, reading, look)
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
        reading: Reading = PLAIN_READING,
    ) -> TableSource:
        """Check an Arrow table, find the levels of its columns, and cut it."""
        look = in_values(table.column, name)
        chosen, labels = choose(arrow_columns(table.schema, name), columns, roles, name, reading, look)
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
    def kind(self) -> str:
        return "table"

    @property
    def n_features(self) -> int:
        return self.columns.n_features

    def block(self, index: int, name: str) -> TableReader:
        start, stop = self.spans[index]
        rows = (
            self.table.slice(start, stop - start) if isinstance(self.table, pa.Table) else self.table.iloc[start:stop]
        )
        return TableReader(rows, self.columns, self.labels, name)

    def column(self, name: str) -> Any:
        """A column that has a role."""
        return self.table.column(name) if isinstance(self.table, pa.Table) else self.table[self.labels[name]]

    def fingerprint(self) -> Any:
        return fingerprint_of_content(self)

    def facts(self) -> dict[str, Any]:
        return {"columns": list(self.columns.names), "weights": self.columns.roles.weights}
