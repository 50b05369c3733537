"""Opening data whose rows come in groups: offsets beside arrays, or a column of ids in tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bnp_dask.data.arrays import ArraySource, with_weights
from bnp_dask.data.base import Source
from bnp_dask.data.checks import PIECE_BYTES, check_dtype, check_matrix
from bnp_dask.data.collections import DaskArraySource
from bnp_dask.data.files import Location
from bnp_dask.data.formats import open_packed
from bnp_dask.data.frames import TableSource
from bnp_dask.data.groups import Cut, GroupedSource, Runs, as_arrow, check_offsets, pairs
from bnp_dask.data.npy import NpyFile, NpySource
from bnp_dask.data.parquet import (
    ParquetSource,
    RowGroups,
    choose_columns,
    common_dtype,
    feature_layout,
    open_file,
    parquet_files,
    read_pieces,
    row_starts,
)
from bnp_dask.data.steps import IDS_PLACE, INT, WHOLE, Cutting, Names, whole_groups
from bnp_dask.data.zarr_rows import ZarrArray, ZarrRowsSource
from bnp_dask.errors import DataError

Rows = ArraySource | NpySource | ZarrRowsSource | TableSource | DaskArraySource
"""Sources that can be cut anywhere."""


@dataclass(frozen=True, eq=False)
class Keys:
    """How groups are told: offsets ``(G + 1,)``, or a column of ids; ``order`` is a column that rises in each group."""

    offsets: np.ndarray | None = None
    column: str | None = None
    order: str | None = None
    cutting: Cutting = WHOLE

    @staticmethod
    def of(groups: Any, order: str | None, cutting: Cutting = WHOLE) -> Keys | None:
        """From the arguments of :func:`bnp_dask.as_source`; None when rows come in no groups."""
        if groups is None:
            if order is not None:
                raise DataError(f"order={order!r} sorts rows within groups; say which column holds the groups: groups=")
            return None
        if isinstance(groups, (str, os.PathLike)):
            text = os.fspath(groups)
            if not text.endswith(".npy"):
                return Keys(None, text, order, cutting)
            location = Location.of(text)
            location.require()
            file = NpyFile.open(location, vector=True)
            groups = file.read((0, file.shape[0]), file.dtype)[:, 0]
        if order is not None:
            raise DataError(
                f"order={order!r} is for groups told by a column; rows of an array are in order as they lie"
            )
        return Keys(np.asarray(groups), cutting=cutting)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that hold groups and order."""
        return tuple(c for c in (self.column, self.order) if c is not None)

    def require_offsets(self, name: str) -> np.ndarray:
        """The offsets; DataError when a column was named instead."""
        if self.offsets is None:
            raise DataError(
                f"{name}: groups={self.column!r} names a column, which this kind of data does not have; give offsets "
                "(G + 1,), or the path of a .npy file that holds them"
            )
        return self.offsets


# -- arrays ------------------------------------------------------------------------------------------------------
def is_list_of_groups(data: Any) -> bool:
    """Whether data are a list of matrices, one for each group."""
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(x, np.ndarray) and x.ndim == 2 for x in data)
    )


def from_list(
    parts: Sequence[np.ndarray], batch_size: int | None, weights: np.ndarray | NpyFile | None, cut: int | None = None
) -> Source:
    """A list of matrices ``(n_g, D)``, one for each group (sequence, image); they are put together in memory."""
    width = parts[0].shape[1]
    for g, x in enumerate(parts):
        check_dtype(x.dtype, f"group {g}")
        if x.shape[1] != width:
            raise DataError(f"group {g} has shape {x.shape}, but group 0 {parts[0].shape}; all need the same columns")
    lengths = np.array([len(x) for x in parts], INT)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    check_matrix((int(offsets[-1]), width), "list of arrays")
    source = ArraySource.of(np.concatenate(parts), None, "list of arrays", "list")
    return grouped(source, offsets, batch_size, weights, cut)


def grouped(
    source: Rows,
    offsets: Any,
    batch_size: int | None,
    weights: np.ndarray | NpyFile | None = None,
    cut: int | None = None,
    breaks: np.ndarray | None = None,
    ids: pa.Array | None = None,
) -> GroupedSource:
    """Cut a source between groups, called ``ids``; groups are cut at ``breaks`` and into blocks of ``cut`` rows.

    DataError for offsets that do not fit, and for sparse counts.
    """
    if source.is_sparse:
        raise DataError(
            f"{source.name}: sparse counts have a document in each row, which is a group of its own; leave out groups="
        )
    if source.n_atoms is None or not isinstance(source, Rows):
        raise DataError(
            f"{source.name} has parts of unknown length, so offsets cannot cut it: x.compute_chunk_sizes() counts "
            "those of a dask array; name the column of groups of a DataFrame"
        )
    whole = check_offsets(offsets, source.n_atoms, source.name)
    made = Cut.within(whole, source.n_features, batch_size, source.name, cut, breaks, ids)
    rows: Source = source.cut(made.spans) if isinstance(source, DaskArraySource) else replace(source, spans=made.spans)
    if weights is not None:
        rows = with_weights(rows, made.spans, weights)
    return made.attach(rows)


# -- stores ------------------------------------------------------------------------------------------------------
def stored_groups(
    source: ZarrRowsSource, location: Location, members: Sequence[str], batch_size: int | None, cut: int | None = None
) -> ZarrRowsSource | GroupedSource:
    """A store of rows with the groups that it holds, if any: arrays ``groups``, and as written by ``ingest``
    ``batch_group``, the first group of each batch, ``blocks`` of groups that were cut, and a table of ids."""
    if "groups" not in members:
        return source
    stored = ZarrArray.open(location.child("groups"))
    name = f"{location.name}, array groups"
    if len(stored.shape) != 1 or stored.dtype.kind not in "iu" or stored.shape[0] < 2:
        raise DataError(f"{name}: shape {stored.shape} and dtype {stored.dtype}; needs whole numbers, (G + 1,)")
    names = _stored_names(location, members, stored.shape[0] - 1)
    if batch_size is None and cut is None and "batch_group" in members:
        table = ZarrArray.open(location.child("batch_group"))
        first = table.read((0, table.shape[0]), INT)
        if table.shape[1:] != (2,) or first[-1].tolist() != [stored.shape[0] - 1, source.n_atoms]:
            raise DataError(f"{location.name}: its table of batches does not fit its arrays; ingest it again")
        spans = pairs(first[:, 1])
        return GroupedSource(replace(source, spans=spans), spans, pairs(first[:, 0]), stored, names)
    offsets = check_offsets(stored.read((0, stored.shape[0]), INT), source.n_atoms, name)
    whole, breaks = whole_groups(offsets, names.all_blocks())
    made = Cut.within(whole, source.n_features, batch_size, name, cut, breaks, names.ids)
    found = made.attach(replace(source, spans=made.spans))
    return found if cut is not None else replace(found, offsets=stored, names=names)


def _stored_names(location: Location, members: Sequence[str], n_groups: int) -> Names:
    blocks = ZarrArray.open(location.child("blocks")) if "blocks" in members else None
    if blocks is not None and blocks.shape != (n_groups, 2):
        raise DataError(
            f"{location.name}: array blocks has shape {blocks.shape}; needs ({n_groups}, 2); ingest it again"
        )
    ids = location.child(*IDS_PLACE)
    return Names(ids if ids.exists() else None, blocks)


# -- tables ------------------------------------------------------------------------------------------------------
def open_parquet_groups(
    location: Location, keys: Keys, batch_size: int | None, columns: Sequence[str] | None, weights: str | None
) -> GroupedSource:
    """Parquet with a column of group ids: one pass over that column, and the order, finds the groups."""
    with open_file(parquet_files(location)[0]) as file:
        schema = file.schema_arrow
    breaks = ids = None
    if keys.column is None:
        d = ParquetSource.of(location, None, columns, weights)
        layout, dtype = d.layout, d.dtype
        whole = check_offsets(keys.require_offsets(location.name), d.n_atoms, location.name)
    else:
        chosen = choose_columns(schema, columns, weights, location.name, keys.columns)
        layout, dtype = tuple(feature_layout(schema, chosen)), common_dtype(schema, chosen)
        runs = _parquet_runs(location, keys)
        whole, breaks, ids = runs.offsets(), runs.breaks(), runs.ids()
    d_all = sum(width for _, width in layout)
    cut = Cut.within(whole, d_all, batch_size, location.name, keys.cutting.cut, breaks, ids)
    edges = cut.offsets[cut.groups]
    return cut.attach(ParquetSource.between(location, layout, weights, dtype, edges, columns is not None))


def _parquet_runs(location: Location, keys: Keys) -> Runs:
    runs = Runs(location.name, str(keys.column), keys.order, keys.cutting)
    for piece in parquet_pieces(location, keys.columns, PIECE_BYTES // 8):
        runs.add(as_arrow(piece.column(0)), as_arrow(piece.column(1)) if keys.order is not None else None)
    if runs.n_rows == 0:
        raise DataError(f"{location.name} has no rows")
    return runs


def parquet_pieces(location: Location, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of all files, in that order, ``rows`` at a time."""
    for file in parquet_files(location):
        with open_file(file) as opened:
            missing = [c for c in columns if c not in opened.schema_arrow.names]
        if missing:
            raise DataError(f"{file.name} has no column {missing[0]!r}; all files need the same columns")
        starts = row_starts(file)
        if starts[-1]:
            for piece in read_pieces(RowGroups(file, 0, len(starts) - 1, 0, int(starts[-1])), columns, rows):
                yield piece.select(list(columns))


def table_groups(
    source: TableSource, keys: Keys, batch_size: int | None, weights: np.ndarray | NpyFile | None
) -> GroupedSource:
    """A table in memory with a column of group ids, or with offsets."""
    if keys.column is None:
        return grouped(source, keys.require_offsets(source.name), batch_size, weights, keys.cutting.cut)
    runs = Runs(source.name, keys.column, keys.order, keys.cutting)
    held = source.table
    values = [as_arrow(held.column(c) if isinstance(held, pa.Table) else held[c]) for c in keys.columns]
    runs.add(*values)
    return grouped(source, runs.offsets(), batch_size, weights, keys.cutting.cut, runs.breaks(), runs.ids())


def csv_table(location: Location, kind: str, keys: Keys) -> pa.Table:
    """A small text table with named columns; ids of groups as they are written."""
    parsing = pyarrow.csv.ParseOptions(delimiter="\t" if kind == "tsv" else ",")
    types = {} if keys.column is None else {keys.column: pa.string()}
    try:
        with open_packed(location)[0] as file:
            converting = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
            return pyarrow.csv.read_csv(file, parse_options=parsing, convert_options=converting)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{location.name}: {error}") from error
