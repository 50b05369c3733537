"""A file, folder or URL as a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.core.columns import Columns, Roles
from bnp_dask.core.location import Location
from bnp_dask.data.base import Source
from bnp_dask.data.batching import parsed
from bnp_dask.data.grouped.ids import Keys, grouped, open_parquet_groups, stored_groups, table_groups
from bnp_dask.data.grouped.offsets import GroupedSource
from bnp_dask.data.ingestion.formats import COLUMN_FILES, STREAMED, TEXT_TABLES, Stream, check_format, detect
from bnp_dask.data.sources.arrays import ArraySource, check_small, open_npz, with_weights
from bnp_dask.data.sources.choose import PLAIN_READING, Reading
from bnp_dask.data.sources.containers.arrow_files import is_arrow
from bnp_dask.data.sources.containers.zarr_store import InStore
from bnp_dask.data.sources.frames import TableSource
from bnp_dask.data.sources.named import ordered
from bnp_dask.data.sources.npy import NpyFile, NpySource
from bnp_dask.data.sources.parquet import ParquetSource, first_schema, parquet_files
from bnp_dask.data.sources.parquet_counts import ParquetCountsSource, counts_shape
from bnp_dask.data.sources.zarr_counts import (
    ZarrCountsSource,
    ZarrMatrixSource,
    is_stored_matrix,
    matrix_within,
    open_zarr_counts,
    open_zarr_matrix,
)
from bnp_dask.data.sources.zarr_rows import ZarrArray, ZarrRowsSource, open_zarr, open_zarr_rows, store_facts
from bnp_dask.data.text.options import TEXT_FORMATS
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import plain
from bnp_dask.inputs.levels import is_text

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
        return parquet if apart is None else replace(parquet, atoms=weighted(parquet.atoms, parquet.spans, apart))
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
        return source if apart is None else replace(source, atoms=weighted(source.atoms, source.spans, apart))
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
