"""``as_source``: any data of the user as a source of batches."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core import ON_BAD_CELL, WHOLE, Chosen, Columns, Cutting, Gaps, Location, Roles, Words
from bnp_dask.core.columns import few
from bnp_dask.data.base import (
    PIECE_BYTES,
    Source,
    check_batch_size,
    check_dtype,
    check_matrix,
    check_names,
    columns_of,
    keep_place,
    parsed,
)
from bnp_dask.data.groups import (
    IDS_PLACE,
    INT,
    Cut,
    GroupedSource,
    Names,
    Runs,
    check_offsets,
    pairs,
    taking_lags,
    whole_groups,
)
from bnp_dask.data.ingestion.streams import COLUMN_FILES, STREAMED, TEXT_TABLES, Stream, check_format, detect
from bnp_dask.data.sources.arrays import (
    READ_WHOLE,
    ArraySource,
    NpyFile,
    NpySource,
    check_small,
    open_npz,
)
from bnp_dask.data.sources.columns import PLAIN_READING, Reading, as_arrow, as_table, require_no_groups
from bnp_dask.data.sources.dask_collections import DaskArraySource, is_dask, is_dask_frame, open_collection
from bnp_dask.data.sources.forms import Documents, Needs, plain_form, sequences_of
from bnp_dask.data.sources.frames import TableSource, is_frame, is_list_of_frames, joined
from bnp_dask.data.sources.named import matched, ordered, with_levels
from bnp_dask.data.sources.parquet import (
    ParquetCountsSource,
    ParquetSource,
    choose_in_files,
    common_dtype,
    counts_shape,
    first_schema,
    is_arrow,
    open_file,
    parquet_files,
    read_pieces,
    whole_files,
    with_levels_of,
)
from bnp_dask.data.sources.zarr import (
    InStore,
    ZarrArray,
    ZarrCountsSource,
    ZarrMatrixSource,
    ZarrRowsSource,
    is_stored_matrix,
    matrix_within,
    open_zarr,
    open_zarr_counts,
    open_zarr_matrix,
    open_zarr_rows,
    place_of_node,
    store_facts,
)
from bnp_dask.data.text.options import TEXT_FORMATS, Text
from bnp_dask.data.view import letting_miss, with_weights
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.inputs import (
    ColumnGroup,
    Key,
    as_key,
    counts_of_corpus,
    in_order_of_time,
    is_corpus,
    is_text,
    lacking,
    one_of,
    plain,
    shown,
    to_float,
    unlabelled,
)

# -- rows in groups ------------------------------------------------------------------------------------------------
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


# -- arrays --------------------------------------------------------------------------------------------------------
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
            "the groups of a dask array; name the column of groups of a DataFrame"
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
    offsets = check_offsets(stored.read((0, stored.shape[0]), INT), source.spans[-1][1], name)
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


# -- tables ---------------------------------------------------------------------------------------------------------
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
        whole = check_offsets(keys.require_offsets(location.name), rows.spans[-1][1], location.name)
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


# -- folders of recordings -----------------------------------------------------------------------------------------
KINDS = {".csv": "csv", ".tsv": "tsv", ".npy": "npy"}
"""Formats by suffix."""


def recordings(data: Any) -> Any:
    """One table per file of a local folder of CSV or .npy files, or of a pattern; anything else unchanged.

    Files are taken in the order of their names.  Tables are DataFrames if the files name their columns, else arrays;
    an array ``(n,)`` is one column.

    Raises
    ------
    DataError
        No file matches the pattern, the files are too large for memory, differ in kind, or only some name columns.
    """
    files = _files_of(data)
    if files is None:
        return data
    size = sum(file.stat().st_size for file in files)
    if size > READ_WHOLE:
        raise DataError(
            f"{os.fspath(data)}: {len(files)} files of {size / 2**20:.0f} MB, more than are held in memory; write them "
            "as Parquet with a column that tells the recordings apart: as_source(folder, groups=COLUMN)"
        )
    places = [(Location.of(str(file)), KINDS[file.suffix.lower()]) for file in files]
    if len({kind == "npy" for _, kind in places}) > 1:
        raise DataError(f"{os.fspath(data)}: .npy files and text tables together; needs recordings of one kind")
    if places[0][1] == "npy":
        return [_recording(place) for place, _ in places]
    for place, kind in places:
        check_small(place, kind)
    named = [Stream(place, kind).has_names for place, kind in places]
    if any(named) and not all(named):
        raise DataError(
            f"{files[named.index(False)]} does not name its columns, and {files[named.index(True)]} does; all or none "
            "of them may"
        )
    if all(named):
        return [Stream(place, kind).table.whole(()).to_pandas() for place, kind in places]
    return [np.concatenate([x for x, _ in Stream(place, kind).pieces()]) for place, kind in places]


def are_recordings(names: Sequence[str]) -> bool:
    """Whether these are names of files that could each be a recording; False for none."""
    return len(names) > 0 and all(Path(name).suffix.lower() in KINDS for name in names)


def _recording(place: Location) -> np.ndarray:
    """The rows of a .npy file, ``(n, D)``."""
    with parsed(place.name), place.open() as file:
        x = np.load(file, allow_pickle=False)
    if x.ndim not in (1, 2):
        raise DataError(f"{place.name} has shape {x.shape}; needs one recording, (n, D): a row for each step")
    return x.reshape(len(x), -1) if len(x) else x


def _files_of(data: Any) -> list[Path] | None:
    """Files of a folder or pattern, in the order of their names; None for anything else."""
    if not isinstance(data, (str, os.PathLike)):
        return None
    if isinstance(data, Chosen):
        return _all_recordings([Path(path) for path in data.paths])
    text = os.fspath(data)
    if "://" not in text and glob.has_magic(text) and Path(text).suffix.lower() in KINDS and not os.path.exists(text):
        found = sorted(map(Path, glob.glob(text)))
        if not found:
            raise DataError(f"{text}: no file fits this pattern")
        return found
    folder = Path(text)
    if "://" in text or not os.path.isdir(text):  # opening reports names that are too long
        return None
    return _all_recordings(sorted(folder.iterdir()))


def _all_recordings(files: list[Path]) -> list[Path] | None:
    """The files that are not hidden, if all of these are recordings; else None."""
    held = [file for file in files if not file.name.startswith(".")]
    return held if held and all(file.is_file() and file.suffix.lower() in KINDS for file in held) else None


# -- paths and stores ----------------------------------------------------------------------------------------------
FileSource = (
    NpySource
    | ZarrRowsSource
    | ZarrCountsSource
    | ZarrMatrixSource
    | ParquetSource
    | ParquetCountsSource
    | ArraySource
    | GroupedSource
)


def roles_of(keys: Keys | None, weights: str | None) -> Roles:
    """Columns with a role other than feature."""
    return Roles(weights) if keys is None else keys.roles(weights)


def require_groups(cut: int | None, keys: Keys | None, name: str) -> None:
    if cut is not None and keys is None:
        raise DataError(
            f"{name}: cut={cut} cuts sequences into blocks; say which rows are of one sequence: groups= (all rows one "
            "sequence: groups=[0, n])"
        )


def split_weights(weights: Any) -> tuple[str | None, np.ndarray | NpyFile | None]:
    """Weights as a column name, or else as an array or file beside the data."""
    if weights is None:
        return None, None
    if isinstance(weights, (str, os.PathLike)):
        text = os.fspath(weights)
        if text.endswith(".npy"):
            location = Location.of(text)
            location.require()
            return None, NpyFile.open(location, vector=True)
        return text, None
    return None, plain(weights, "weights")


def weighted(source: Any, cut: Sequence[tuple[int, int]] | None, weights: np.ndarray | NpyFile | None) -> Source:
    if weights is None:
        return source
    if cut is None:
        raise DataError(f"{source.name}: the lengths of its batches are unknown, so weights must be a column of it")
    return with_weights(source, tuple(cut), weights)


def open_path(
    location: Location,
    batch_size: int | None = None,
    weights: Any = None,
    columns: Sequence[str] | Columns | None = None,
    format: str | None = None,
    keys: Keys | None = None,
    cut: int | None = None,
    is_lenient: bool = False,
    reading: Reading = PLAIN_READING,
) -> Source:
    """Source of a file, folder or URL."""
    with parsed(location.name):
        return _open_path(location, batch_size, weights, columns, format, keys, cut, is_lenient, reading)


def _open_path(
    location: Location,
    batch_size: int | None,
    weights: Any,
    columns: Sequence[str] | Columns | None,
    format: str | None,
    keys: Keys | None,
    cut: int | None,
    is_lenient: bool,
    reading: Reading,
) -> Source:
    column, apart = split_weights(weights)
    location.require()
    kind = check_format(format) if format is not None else detect(location)
    if kind == "text" or kind in TEXT_FORMATS:
        raise DataError(
            f"{location.name} is raw text ({kind}), which becomes counts of words first: bnp-dask ingest "
            f"{location.name} OUT.zarr{'' if format is None else f' --format {kind}'}"
        )
    source: FileSource
    if kind != "zarr":
        require_groups(cut, keys, location.name)
    if kind in STREAMED:
        return _read_whole(location, kind, batch_size, column, apart, columns, keys, reading)
    if kind in COLUMN_FILES and keys is not None:
        parquet = open_parquet_groups(location, keys, batch_size, columns, column, reading)
        return parquet if apart is None else replace(parquet, whole=weighted(parquet.whole, parquet.spans, apart))
    if kind in COLUMN_FILES:
        source = _open_parquet(location, batch_size, columns, column, is_lenient, reading)
    elif isinstance(columns, Sequence) or column is not None:
        what = f"weights={column!r}" if column is not None else "columns="
        raise DataError(f"{location.name}: {what} needs named columns, which format {kind} does not have")
    elif kind == "zarr":
        source = _open_zarr(location, batch_size, None if keys is not None else cut)
    elif kind == "npy":
        source = NpySource.of(location, batch_size)
    else:
        source = open_npz(location, batch_size)
    if isinstance(source, GroupedSource):
        if keys is not None:
            raise DataError(f"{location.name}: this store holds its groups already; leave out groups=")
        return source if apart is None else replace(source, whole=weighted(source.whole, source.spans, apart))
    if keys is not None:
        if isinstance(source, ZarrCountsSource | ZarrMatrixSource | ParquetCountsSource | ParquetSource):
            raise DataError(
                f"{location.name}: counts have a document in each row, a group of its own; leave out groups="
            )
        return grouped(source, keys.require_offsets(location.name), batch_size, apart, cut)
    require_groups(cut, keys, location.name)
    return weighted(source, source.spans, apart)


def open_store(
    place: InStore,
    batch_size: int | None,
    weights: Any,
    columns: Sequence[str] | Columns | None,
    keys: Keys | None,
    cut: int | None,
) -> Source:
    """Source of an array, or of a group with an array ``x`` of rows, in an open Zarr store."""
    import zarr

    column, apart = split_weights(weights)
    require_groups(cut, keys, place.name)
    if isinstance(columns, Sequence) or column is not None:
        raise DataError(f"{place.name}: a Zarr array has no named columns; give weights as an array, and no columns")
    with parsed(place.name):
        node = open_zarr(place)
        if isinstance(node, zarr.Array):
            source = ZarrRowsSource.of_array(place, ZarrArray.of(place, node), None, batch_size)
        elif store_facts(node, place.name).get("kind", "rows") != "rows" or "groups" in set(node.array_keys()):
            raise DataError(f"{place.name}: counts and groups that ingest wrote need the path or URL of their store")
        else:
            source = open_zarr_rows(place, node, batch_size)
        if keys is not None:
            return grouped(source, keys.require_offsets(place.name), batch_size, apart, cut)
        return weighted(source, source.spans, apart)


def _open_zarr(
    location: Location, batch_size: int | None, cut: int | None
) -> ZarrRowsSource | ZarrCountsSource | ZarrMatrixSource | GroupedSource:
    import zarr

    location, node = matrix_within(location, open_zarr(location))
    if isinstance(node, zarr.Array):
        return ZarrRowsSource.of_array(location, ZarrArray.of(location, node), None, batch_size)
    if is_stored_matrix(node):
        return open_zarr_matrix(location, node, batch_size)
    kind = store_facts(node, location.name).get("kind", "rows")
    if kind == "counts":
        return open_zarr_counts(location, node, batch_size)
    if kind != "rows":
        raise DataError(f"{location.name}: a store of kind {kind!r}; needs rows or counts")
    rows = open_zarr_rows(location, node, batch_size)
    return stored_groups(rows, location, sorted(node.array_keys()), batch_size, cut)


def _open_parquet(
    location: Location,
    batch_size: int | None,
    columns: Sequence[str] | Columns | None,
    weights: str | None,
    is_lenient: bool = False,
    reading: Reading = PLAIN_READING,
) -> ParquetSource | ParquetCountsSource:
    files = parquet_files(location)
    shape = None if is_arrow(files[0]) else counts_shape(first_schema(files, is_lenient))
    if shape is None or isinstance(columns, Sequence):
        return ParquetSource.of(location, batch_size, columns, Roles(weights), is_lenient, reading)
    if weights is not None:
        raise DataError(f"{location.name}: a table of counts takes weights as an array or .npy file, not a column")
    return ParquetCountsSource.of(location, batch_size)


def _read_whole(
    location: Location,
    kind: str,
    batch_size: int | None,
    column: str | None,
    apart: Any,
    columns: Sequence[str] | Columns | None,
    keys: Keys | None,
    reading: Reading,
) -> Source:
    """A small file of a streamed format, read into memory."""
    check_small(location, kind)
    by_column = keys is not None and keys.column is not None
    coded = columns.coded if isinstance(columns, Columns) else {}
    if kind in TEXT_TABLES and (by_column or ((coded or reading.levels) and Stream(location, kind).has_names)):
        texts = [name for name, levels in coded.items() if is_text(levels)]
        apart_texts = [*texts, *([keys.column] if keys is not None and keys.column else [])]
        table = Stream(location, kind).table.whole(apart_texts)
        of_file = TableSource.of_table(table, batch_size, columns, roles_of(keys, column), location.name, reading)
        return (
            weighted(of_file, of_file.spans, apart) if keys is None else table_groups(of_file, keys, batch_size, apart)
        )
    stream = Stream(location, kind, columns, column, reading=reading)
    held = list(stream.pieces())
    if not held:
        raise DataError(f"{location.name} has no rows")
    if kind in TEXT_TABLES or kind == "idx":
        x: Any = np.concatenate([piece for piece, _ in held])
    else:
        n_words = max(piece.shape[1] for piece, _ in held)
        for piece, _ in held:
            piece.resize(piece.shape[0], n_words)
        x = sparse.csr_array(sparse.vstack([piece for piece, _ in held], format="csr"))
    if column is not None:
        apart = np.concatenate([w for _, w in held if w is not None])
    source = ArraySource.of(x, batch_size, location.name, kind)
    found: Source
    if keys is not None:
        found = grouped(source, keys.require_offsets(location.name), batch_size, apart, keys.cutting.cut)
    else:
        found = weighted(source, source.spans, apart)
    names = stream.named
    return found if names is None else ordered(found, names, None)


# -- anything ------------------------------------------------------------------------------------------------------
Data = Any
"""Path or URL, NumPy array, scipy.sparse matrix, dask Array or DataFrame, pandas DataFrame, Arrow Table, xarray
DataArray, AnnData, texts, or Source."""


@answering
def as_source(
    data: Data,
    *,
    batch_size: int | None = None,
    weights: str | os.PathLike[str] | np.ndarray | Sequence[float] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | Columns | None = None,
    format: str | None = None,
    groups: str | os.PathLike[str] | np.ndarray | Sequence[int] | None = None,
    order: str | None = None,
    gaps: Literal["refuse", "cut", "ignore"] | None = None,
    step: float | None = None,
    cut: int | None = None,
    on_bad_batch: Literal["raise", "skip"] = "raise",
    levels: ColumnGroup | Sequence[ColumnGroup] | bool | None = None,
    on_bad_cell: Literal["raise", "missing"] | None = None,
    text: Text | None = None,
) -> Source:
    """A source of batches from a path, URL, array, table, texts or dask collection.

    Parameters
    ----------
    data
        Path or URL of a Zarr store, Parquet file or folder, .npy or .npz file, or of a small text file; path of an
        Arrow file, or of a data set that Hugging Face's ``datasets`` saved (or such a data set itself); a folder or
        pattern of small CSV or .npy files, each a group; an open Zarr array, group or store, also of Icechunk (one in
        memory only for this process); a NumPy array ``(n, D)``, or what gives one (a tensor of PyTorch or JAX); an
        array ``(n,)`` with named fields, as ``numpy.genfromtxt`` makes it; sequences as an array ``(G, T, D)``, or a
        list of arrays ``(n_g, D)`` or DataFrames, one per group (sequence, image); an xarray DataArray, of three axes
        with time as sequences; scipy.sparse counts ``(n, V)``, or documents of pairs (word, count), as in gensim;
        texts: a list of str or a column of a table, lists of words, or mappings from words to counts; a dask Array or
        DataFrame; a pandas DataFrame; an Arrow Table, or any table with an Arrow C stream (polars, DuckDB); an AnnData,
        or the path of its Zarr store, whose ``X`` is read; or a source.
    batch_size
        Atoms per batch.  Default: as the data are chunked, or about 32 MB.
    weights
        How often each atom counts: an array ``(n,)``, the path of a .npy file, or (Parquet, DataFrame, CSV) the name of
        a column.
    storage_options
        Passed to fsspec for URLs.
    columns
        Columns to use, in that order (Parquet, DataFrame, CSV).  Default: all columns of numbers, in any storage: also
        truth values, decimals, texts such as ``"1.5"`` or ``"1,234.5"``, and lists of equal length, which become the
        features ``e[0]``, ``e[1]``, ...  Row numbers, texts, dates and categories are left out, with a warning of one
        line.  Or the columns that a model was trained on, ``posterior.columns``: features are found by name and put in
        order.  A missing feature is an error, and so is a superfluous one unless training chose its columns.  Tables
        are read with the weights, groups and order of training, unless these arguments say otherwise.  Features of data
        without names keep their order and get these names: ``Columns.of(["age", "visits"])`` names an array's columns.
    format
        Format of a file, if its name and first bytes do not determine it.
    groups
        Grouping of rows (sequences, images, hospitals): offsets ``(G + 1,)``, where group g is the rows
        ``offsets[g]:offsets[g + 1]`` (a group may be empty), or the path of a .npy file that holds them; or the
        name of a column of ids (Parquet, DataFrame, CSV), rows of one group together.  A batch never cuts a group: it
        holds up to ``batch_size`` rows in whole groups, and a larger group alone.  Stores that ``ingest`` wrote with
        groups have them already.
    order
        A column of numbers, dates or times that must strictly rise within each group.  Rows are not reordered, so this
        is a check.  ``bnp_dask.ingest`` sorts.
    gaps
        Treatment of a gap, where the order column rises by more than one and a half steps: ``"refuse"`` (the default);
        ``"cut"``: the rows after the gap form a new group (sequence); ``"ignore"``: rows follow one another despite the
        gap.
    step
        Distance of neighbouring rows in the order column, in its units (for dates and times the stored units);
        default: the median distance.
    cut
        Most rows of a group: a longer group is cut into as few blocks as possible, of equal size, and each block is a
        group of its own.  For sequences too long to be processed in one piece: each block then starts anew, from the
        start probabilities, and the transition at each cut is not counted (``source.n_cuts`` in all).  Rows, and hence
        labels, stay in order.  Blocks many times longer than a segment change little: with states that last 60 steps,
        blocks of 1000 changed 1 label in 10,000, blocks of 100 changed 1 in 800.
    on_bad_batch
        ``"skip"``: a file of a Parquet folder that has other columns than the rest, or cannot be opened, is an error
        only when its batch is read; for ``train(..., on_bad_batch="skip")``.
    levels
        Columns for a :class:`~bnp_dask.Categorical`: their names or positions, or True for all columns.
        :func:`bnp_dask.train` knows them from the likelihood; give them for a source that is made before.
        Columns of text, pandas categories, truth values, Arrow dictionaries, and numbers of few distinct values may be
        levels; one pass over these columns finds them.  Texts and numbers are sorted, pandas categories stay in their
        order.  ``source.columns.levels`` holds them, and batches hold positions among them.
    on_bad_cell
        Treatment of a cell that is not a number in a column of numbers, such as ``"?"`` or ``"12%"``: ``"raise"``, the
        default, is an error that names it; ``"missing"`` reads NaN, for likelihoods that accept missing entries.  The
        setting of training also holds for the data that its posterior predicts.
    text
        How texts become counts, ``Text()`` by default; also says that a table's column of texts is read, not its
        numbers.  ``posterior.words`` of a model that is trained on them knows the words, and new texts are read by it.

    Raises
    ------
    DataError
        The data cannot be read as rows of numbers or counts; names the data found and the call that helps.
    SettingError
        A setting out of range.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> bnp.as_source(np.zeros((100, 3)), batch_size=40)
    ArraySource(array: 100 rows, 3 columns, 3 batches)
    >>> walks = [np.zeros((30, 2)), np.ones((20, 2))]  # two sequences
    >>> bnp.as_source(walks).n_groups
    2
    """
    one_of("on_bad_batch", on_bad_batch, ("raise", "skip"))
    if on_bad_cell is not None:
        one_of("on_bad_cell", on_bad_cell, ON_BAD_CELL)
    if not isinstance(text, Text | None):
        raise SettingError(f"text={shown(text)}: needs Text(...), or None")
    wanted = columns if isinstance(columns, Columns) else check_names(columns, {"order": order})
    if batch_size is not None:
        check_batch_size(batch_size)
    if isinstance(columns, Columns) and is_corpus(data):
        data = counts_of_corpus(data, columns.n_features)
    data = plain_form(data, None, text)
    if isinstance(data, Documents):
        if any(given is not None for given in (wanted, groups, order, cut, format, storage_options, on_bad_cell)):
            raise DataError("data are documents, of which each is a row of its own; only batch_size, weights, text go")
        return source_of_documents(data, text or Text(), batch_size, weights)
    if text is not None:
        raise DataError(
            f"text= is for texts, and data is {type(data).__name__}; files of texts are ingested: bnp_dask.ingest"
        )
    data, labels = unlabelled(data)
    path = data
    data = place_of_node(as_table(data if format is not None else recordings(data)))
    location = Location.of(data, storage_options, "data") if isinstance(data, (str, os.PathLike)) else None
    within = data if isinstance(data, InStore) else None
    rows = RowSettings(weights, groups, order, gaps, step, cut)
    reading = Reading(keys_of_levels(levels), on_bad_cell)
    if isinstance(wanted, Columns) and _is_table(data, location, format):
        # each frame of a list is a group
        rows = rows.as_trained(Roles(wanted.roles.weights) if is_list_of_frames(data) else wanted.roles)
    cutting = Cutting.of(rows.cut, rows.gaps, rows.step, rows.order)
    keys = Keys.of(rows.groups, rows.order, cutting)
    if location is not None:
        lenient = on_bad_batch == "skip"
        source = open_path(location, batch_size, rows.weights, wanted, format, keys, rows.cut, lenient, reading)
    elif within is not None and format is None and storage_options is None:
        source = open_store(within, batch_size, rows.weights, wanted, keys, rows.cut)
    elif format is not None or storage_options is not None:
        raise DataError(f"format and storage_options are for paths and URLs, but data is {type(data).__name__}")
    else:
        source = _open_object(data, batch_size, wanted, rows, keys, reading)
    if labels is not None:
        source = ordered(source, Columns.of(labels), None)
    if isinstance(wanted, Columns):
        found = columns_of(source)
        is_new = wanted.levels is None and len(reading.levels) > 0 and found is not None
        source = matched(source, wanted.with_levels(found.coded) if is_new and found is not None else wanted)
    if not isinstance(wanted, Columns) or wanted.levels is None:
        source = with_levels(source, reading.levels)
    if isinstance(path, (str, os.PathLike)) and format is None and not storage_options:
        # columns keep their groups, order and gaps where one file is read; recordings of several files have none, and
        # groups of a store are no column
        in_rows = (groups, order, gaps, step, cut) if location is None or keys is None else ()
        in_columns = columns_of(source) is not None and (keys is None or keys.column is not None)
        apart = in_rows if in_columns else (wanted, groups, order, gaps, step, cut, on_bad_cell, levels or None)
        if all(given is None for given in apart):
            keep_place(source, path, batch_size, weights)
    return source


def keys_of_levels(levels: Any) -> tuple[Key, ...]:
    """Columns of levels in the stored notation; SettingError for values that refer to no columns."""
    if levels is None or levels is False:
        return ()
    if levels is True:
        return (":",)
    if isinstance(levels, list):
        return tuple(as_key(own) for own in levels)
    return (as_key(levels),)


def _is_table(data: Data, location: Location | None, format: str | None) -> bool:
    """Whether data are a table with a name for each column, so that rows may have weights and groups there."""
    if location is None:
        return isinstance(data, pa.Table) or is_frame(data) or is_list_of_frames(data) or is_dask_frame(data)
    with parsed(location.name):
        location.require()
        kind = check_format(format) if format is not None else detect(location)
        if kind in COLUMN_FILES:
            return kind == "arrow" or counts_shape(first_schema(parquet_files(location), True)) is None
        return Stream(location, kind).has_names


def _open_object(
    data: Data,
    batch_size: int | None,
    columns: list[str] | Columns | None,
    rows: RowSettings,
    keys: Keys | None,
    reading: Reading,
) -> Source:
    """Source of something in this process."""
    if is_dask(data):
        column, apart = split_weights(rows.weights)
        require_groups(rows.cut, keys, "dask collection")
        source = open_collection(data, batch_size, columns, roles_of(keys, column), reading)
        if keys is not None and (isinstance(source, DaskArraySource) or keys.column is None):
            return grouped(source, keys.require_offsets(source.name), batch_size, apart, rows.cut)
        return weighted(source, source.spans, apart)
    if isinstance(data, Source) and not isinstance(data, type):
        given = (batch_size, rows.weights, None if isinstance(columns, Columns) else columns, keys, rows.cut)
        if any(value is not None for value in given):
            raise DataError(
                "data is already a source; give batch_size, weights, columns, groups and cut where it is made"
            )
        return data
    return _from_memory(data, batch_size, columns, rows, keys, reading)


def _from_memory(
    data: Data,
    batch_size: int | None,
    columns: list[str] | Columns | None,
    rows: RowSettings,
    keys: Keys | None,
    reading: Reading,
) -> Source:
    column, apart = split_weights(rows.weights)
    cut = rows.cut
    if isinstance(data, pa.Table) or is_frame(data):
        make = TableSource.of_table if isinstance(data, pa.Table) else TableSource.of_frame
        require_groups(cut, keys, "table")
        table = make(data, batch_size, columns, roles_of(keys, column), reading=reading)
        if keys is not None:
            return table_groups(table, keys, batch_size, apart)
        return weighted(table, table.spans, apart)
    if is_list_of_frames(data):
        if keys is not None:
            raise DataError("data is a list of DataFrames, each a group; leave out groups=, or give one DataFrame")
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in data])])
        whole = TableSource.of_frame(joined(data), None, columns, roles_of(keys, column), reading, offsets)
        return grouped(whole, offsets, batch_size, apart, cut)
    if not sparse.issparse(data) and not isinstance(data, (np.ndarray, list, tuple)):
        raise DataError(
            f"data is {type(data).__name__}; needs a path or URL, a NumPy array, scipy.sparse counts, a dask Array or "
            "DataFrame, a pandas DataFrame, an Arrow Table or stream, an xarray DataArray, an AnnData, or a source; or "
            "texts"
            f"{_as_source_lacks(data)}{_as_splits(data)}"
        )
    if isinstance(columns, list) or column is not None:
        raise DataError("an array has no named columns; choose columns as x[:, [0, 2]], give weights as an array")
    if is_list_of_groups(data):
        if keys is not None:
            raise DataError("data is a list of arrays, each a group; leave out groups=, or give one array")
        return from_list(data, batch_size, apart, cut)
    if isinstance(data, np.ndarray) and data.ndim == 3:
        if keys is not None:
            raise DataError(f"data is an array of shape {data.shape}, each x[i] a sequence; leave out groups=")
        x, offsets = sequences_of(data)
        return grouped(ArraySource.of(x, None), offsets, batch_size, apart, cut)
    require_groups(cut, keys, "array")
    try:
        held = data if sparse.issparse(data) else np.asanyarray(data)
    except ValueError as error:
        raise DataError(
            f"data is a {type(data).__name__} that is no array: {error}. A list of sequences needs a matrix (n_g, D) "
            "for each, also for single numbers: [x.reshape(-1, 1) for x in data]"
        ) from error
    source = ArraySource.of(held, batch_size)
    if keys is not None:
        return grouped(source, keys.require_offsets(source.name), batch_size, apart, cut)
    return weighted(source, source.spans, apart)


def source_of_documents(documents: Documents, text: Text, batch_size: int | None, weights: Any = None) -> Source:
    """Counts of documents in memory, with the words that the settings keep."""
    vocabulary = documents.vocabulary(text)
    counts, _ = documents.counts(vocabulary)
    words = Words.of(vocabulary.words, None if vocabulary.analysis is None else vocabulary.analysis.to_json())
    source = replace(ArraySource.of(counts, batch_size, documents.name), words=words)
    column, apart = split_weights(weights)
    if column is not None:
        raise DataError(f"{documents.name}: weights={column!r} names a column; of documents give an array (n,)")
    return weighted(source, source.spans, apart)


def _as_splits(data: Any) -> str:
    """Advice, for a message, if data seem to be several tables by name, or columns; else empty."""
    if callable(getattr(data, "to_frame", None)):
        return ": pass data.to_frame() if it is one feature; one row is a table of one row, table.iloc[[0]]"
    if not isinstance(data, Mapping) or not data:
        return ""
    shapes = {np.shape(column) if isinstance(column, (np.ndarray, list)) else () for column in data.values()}
    if len(shapes) == 1 and len(shapes.pop()) == 1:
        return ": columns of one table are pandas.DataFrame(data)"
    if all(np.isscalar(value) for value in data.values()) and any(isinstance(x, Number) for x in data.values()):
        return ": one row of a table is pandas.DataFrame([data])"
    return f": choose one by its name, of {few([*map(str, data)])}"


def _as_source_lacks(data: Any) -> str:
    """Missing members of an object that seems to be meant as a source, for a message; else empty."""
    lacks = (
        lacking(data, Source) if any(callable(getattr(data, verb, None)) for verb in ("reader", "describe")) else None
    )
    return "" if lacks is None else f" (as a source: {lacks})"


# -- data for a model ----------------------------------------------------------------------------------------------
def with_nan(data: Any) -> Any:
    """Masked arrays, and lists of them, with NaN in place of masked entries; anything else unchanged.

    Tables need no conversion: their missing values are read as NaN.
    """
    if isinstance(data, list) and any(isinstance(part, np.ma.MaskedArray) for part in data):
        return [with_nan(part) for part in data]
    if not isinstance(data, np.ma.MaskedArray) or data.dtype.names is not None:
        return data
    return np.where(np.ma.getmaskarray(data), np.nan, to_float(data.data, "masked array"))


def opened(
    data: Any,
    needs: Needs,
    batch_size: int | None = None,
    weights: Any = None,
    columns: Sequence[str] | Columns | None = None,
    on_bad_batch: Literal["raise", "skip"] = "raise",
) -> Source:
    """The source of data for a model, as from :func:`bnp_dask.as_source`.

    Entries may be missing if the model accepts that; columns of levels are read as such.  If the columns of a table are
    not known yet, only the ones that the likelihood chooses are read.  Rows in memory are one sequence for a model of
    sequences, unless the data say where sequences start.
    """
    given = plain_form(with_nan(data) if needs.may_miss else data, needs)
    if columns is None and needs.chosen is not None and not isinstance(given, Source | Documents):
        columns = list(needs.chosen)
    if isinstance(given, Documents):
        columns = None
    if needs.in_order:
        given = in_order_of_time(given)
    facts = {"batch_size": batch_size, "weights": weights, "columns": columns, "on_bad_batch": on_bad_batch}
    source = as_source(given, levels=list(needs.levels), groups=_one_sequence(given, needs, columns), **facts)
    return letting_miss(source) if needs.may_miss else source


def _one_sequence(data: Any, needs: Needs, columns: Any) -> list[int] | None:
    """Offsets of one sequence of all rows in memory, for a model of sequences; None if the data tell sequences apart,
    or are not in memory."""
    told = isinstance(columns, Columns) and columns.roles.groups is not None
    is_table = isinstance(data, pa.Table) or is_frame(data)
    rows = unlabelled(data)[0]
    is_array = isinstance(rows, np.ndarray) and rows.ndim == 2
    if not needs.in_order or not (is_array or (is_table and not told)):
        return None
    if is_table:
        require_no_groups(data, type(data).__name__)
    return [0, len(rows)]


def as_modelled(source: Source, may_miss: bool, lags: int) -> Source:
    """Opened data in the form for training: entries may be missing, and rows include the ``lags`` steps before them."""
    return taking_lags(letting_miss(source) if may_miss else source, lags)
