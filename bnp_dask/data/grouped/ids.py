"""Opening data whose rows come in groups: offsets beside arrays, or a column of ids in tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.columns import WHOLE, Columns, Cutting, Gaps, Roles
from bnp_dask.core.location import Location
from bnp_dask.data.base import Source
from bnp_dask.data.batching import PIECE_BYTES, check_dtype, check_matrix
from bnp_dask.data.grouped.offsets import Cut, GroupedSource, Runs, check_offsets, pairs
from bnp_dask.data.grouped.steps import IDS_PLACE, INT, Names, whole_groups
from bnp_dask.data.sources.arrays import ArraySource, with_weights
from bnp_dask.data.sources.arrow import as_arrow
from bnp_dask.data.sources.choose import PLAIN_READING, Reading
from bnp_dask.data.sources.dask_collections.arrays import DaskArraySource
from bnp_dask.data.sources.frames import TableSource
from bnp_dask.data.sources.npy import NpyFile, NpySource
from bnp_dask.data.sources.parquet import (
    ParquetSource,
    choose_in_files,
    common_dtype,
    open_file,
    parquet_files,
    read_pieces,
    whole_files,
    with_levels_of,
)
from bnp_dask.data.sources.zarr_rows import ZarrArray, ZarrRowsSource
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import plain

Rows = ArraySource | NpySource | ZarrRowsSource | TableSource | DaskArraySource
"""Sources that can be cut at any row."""


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of groups: offsets ``(G + 1,)``, or a column of ids; ``order`` is a column that rises in each group."""

    offsets: np.ndarray | None = None
    column: str | None = None
    order: str | None = None
    cutting: Cutting = WHOLE

    @staticmethod
    def of(groups: Any, order: str | None, cutting: Cutting = WHOLE) -> Keys | None:
        """From the arguments of :func:`bnp_dask.as_source`; None for ungrouped rows."""
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
        return Keys(plain(groups, "groups"), cutting=cutting)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that hold groups and order."""
        return tuple(c for c in (self.column, self.order) if c is not None)

    def roles(self, weights: str | None) -> Roles:
        """Roles of the columns of weights, groups and order."""
        return Roles(weights, self.column, self.order, self.cutting)

    def require_offsets(self, name: str) -> np.ndarray:
        """The offsets; DataError if a column was named instead."""
        if self.offsets is None:
            raise DataError(
                f"{name}: groups={self.column!r} names a column, which this kind of data does not have; give offsets "
                "(G + 1,), or the path of a .npy file that holds them"
            )
        return self.offsets


@dataclass(frozen=True, eq=False)
class RowSettings:
    """Settings of rows: arguments of the same names in :func:`bnp_dask.as_source`."""

    weights: Any
    groups: Any
    order: str | None
    gaps: Gaps | None
    step: float | None
    cut: int | None

    def as_trained(self, roles: Roles) -> RowSettings:
        """These settings, with unset ones about tables taken from training."""
        weights = roles.weights if self.weights is None else self.weights
        groups = roles.groups if self.groups is None else self.groups
        if not (isinstance(groups, str) and not groups.endswith(".npy")):
            return replace(self, weights=weights, groups=groups)
        order = roles.order if self.order is None else self.order
        gaps, step, before = self.gaps, self.step, roles.cutting
        if order is not None:
            gaps = before.gaps if gaps is None else gaps
            step = before.step if step is None else step
        cut = before.cut if self.cut is None else self.cut
        return replace(self, weights=weights, groups=groups, order=order, gaps=gaps, step=step, cut=cut)


# -- arrays ------------------------------------------------------------------------------------------------------
def is_list_of_groups(data: Any) -> bool:
    """Whether data are a list of matrices, one per group."""
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(x, np.ndarray) and x.ndim == 2 for x in data)
    )


def from_list(
    parts: Sequence[np.ndarray], batch_size: int | None, weights: np.ndarray | NpyFile | None, cut: int | None = None
) -> Source:
    """Source of a list of matrices ``(n_g, D)``, one per group (sequence, image); they are concatenated in memory."""
    width = parts[0].shape[1]
    for g, x in enumerate(parts):
        check_dtype(plain(x, f"group {g}").dtype, f"group {g}")
        if x.shape[1] != width:
            raise DataError(f"group {g} has shape {x.shape}, but group 0 {parts[0].shape}; all need the same columns")
    lengths = np.array([len(x) for x in parts], INT)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    check_matrix((int(offsets[-1]), width), "list of arrays")
    source = ArraySource.of(np.concatenate(parts), None, "list of arrays", "list")
    return grouped(source, offsets, batch_size, weights, cut)


def grouped(
    source: Source,
    offsets: Any,
    batch_size: int | None,
    weights: np.ndarray | NpyFile | None = None,
    cut: int | None = None,
    breaks: np.ndarray | None = None,
    ids: pa.Array | None = None,
) -> GroupedSource:
    """Cut a source between groups named ``ids``; groups are cut at ``breaks`` and into blocks of ``cut`` rows.

    DataError for offsets that do not match the rows, and for sparse counts.
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
    """Source of a store of rows with its groups, if any: array ``groups``, and from ``ingest`` also ``batch_group``
    (the first group of each batch), ``blocks`` of groups that were cut, and a table of ids."""
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
    location: Location,
    keys: Keys,
    batch_size: int | None,
    columns: Sequence[str] | Columns | None,
    weights: str | None,
    reading: Reading = PLAIN_READING,
) -> GroupedSource:
    """Parquet with a column of group ids: one pass over that column, and the order, finds the groups."""
    with open_file(parquet_files(location)[0]) as file:
        schema = file.schema_arrow
    breaks = ids = None
    if keys.column is None:
        rows = ParquetSource.of(location, None, columns, keys.roles(weights), reading=reading)
        chosen, dtype = rows.columns, rows.dtype
        whole = check_offsets(keys.require_offsets(location.name), rows.n_atoms, location.name)
    else:
        files = parquet_files(location)
        chosen = choose_in_files(files, schema, columns, keys.roles(weights), location.name, reading)
        chosen = with_levels_of(location.name, chosen, whole_files(parquet_files(location)))
        dtype = common_dtype(schema, chosen)
        runs = _parquet_runs(location, keys)
        whole, breaks, ids = runs.offsets(), runs.breaks(), runs.ids()
    cut = Cut.within(whole, chosen.n_features, batch_size, location.name, keys.cutting.cut, breaks, ids)
    return cut.attach(ParquetSource.between(location, chosen, dtype, cut.offsets[cut.groups]))


def _parquet_runs(location: Location, keys: Keys) -> Runs:
    runs = Runs(location.name, str(keys.column), keys.order, keys.cutting)
    for piece in parquet_pieces(location, keys.columns, PIECE_BYTES // 8):
        runs.add(as_arrow(piece.column(0)), as_arrow(piece.column(1)) if keys.order is not None else None)
    if runs.n_rows == 0:
        raise DataError(f"{location.name} has no rows")
    return runs


def parquet_pieces(location: Location, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of all files, in order, ``rows`` at a time."""
    for file in parquet_files(location):
        with open_file(file) as opened:
            missing = [c for c in columns if c not in opened.schema_arrow.names]
        if missing:
            raise DataError(f"{file.name} has no column {missing[0]!r}; all files need the same columns")
    for part in whole_files(parquet_files(location)):
        for piece in read_pieces(part, columns, rows):
            yield piece.select(list(columns))


def table_groups(
    source: TableSource, keys: Keys, batch_size: int | None, weights: np.ndarray | NpyFile | None
) -> GroupedSource:
    """A table in memory with a column of group ids, or with offsets."""
    if keys.column is None:
        return grouped(source, keys.require_offsets(source.name), batch_size, weights, keys.cutting.cut)
    runs = Runs(source.name, keys.column, keys.order, keys.cutting)
    runs.add(*[as_arrow(source.column(c)) for c in keys.columns])
    return grouped(source, runs.offsets(), batch_size, weights, keys.cutting.cut, runs.breaks(), runs.ids())
