"""One call of ``ingest``: the source as a stream that can be read again, and the settings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.columns import Columns
from bnp_dask.core.location import Location
from bnp_dask.core.vocabulary import Words
from bnp_dask.data.base import Source, columns_of
from bnp_dask.data.batching import PIECE_BYTES, batch_rows, parsed
from bnp_dask.data.grouped.offsets import Cut, GroupedSource, blocks_of
from bnp_dask.data.grouped.steps import whole_groups
from bnp_dask.data.ingestion.batch_sizes import WORKERS, BatchSizes
from bnp_dask.data.ingestion.distinct import Deduplicate, DistinctRows
from bnp_dask.data.ingestion.formats import COLUMN_FILES, STREAMED, Piece, Stream
from bnp_dask.data.ingestion.grouped_rows import GroupedTable
from bnp_dask.data.ingestion.patches import Patches, PatchStream, group_names
from bnp_dask.data.sources.arrays import ArraySource, WeightedSource
from bnp_dask.data.sources.choose import PLAIN_READING, Reading
from bnp_dask.data.sources.files import open_path
from bnp_dask.data.sources.named import OrderedSource
from bnp_dask.data.sources.npy import NpySource
from bnp_dask.data.sources.parquet import ParquetSource
from bnp_dask.data.sources.zarr_rows import ZarrRowsSource
from bnp_dask.errors import SettingError, StoreError

Progress = Callable[[float, int], None]
"""Called with the share of the source that was read, 0 to 1, and the number of atoms written so far."""


@dataclass(frozen=True, eq=False)
class Input:
    """The source as a stream that can be read several times; ``notes`` and ``named`` are set by the first reading.

    ``source`` are data that are no file, opened as :func:`bnp_dask.as_source` does.
    """

    location: Location
    format: str
    columns: Sequence[str] | None
    weights: Any
    patches: Patches
    notes: list[str] = field(default_factory=list)
    table: GroupedTable | None = None
    named: list[Columns] = field(default_factory=list)
    reading: Reading = PLAIN_READING
    source: Source | None = None

    @property
    def words(self) -> Words | None:
        """Words of documents in memory; None for other data."""
        source = self.source.atoms if isinstance(self.source, WeightedSource) else self.source
        return source.words if isinstance(source, ArraySource) else None

    def cut(self, n_features: int, rows: int, cut: int | None, sizes: BatchSizes | None) -> Cut | None:
        """Groups of the rows, cut as requested, from a column or a store with groups; else None."""
        name = self.location.name
        if self.table is not None:
            found = self.table
            rows = _rows_of_groups(blocks_of(found.offsets, found.breaks, cut)[0], n_features, rows, sizes)
            return Cut.within(found.offsets, n_features, rows, name, cut, found.breaks, found.ids)
        if self.format == "images" and self.patches.by_image:
            images = PatchStream(self.location, self.patches).groups()
            whole = np.concatenate([[0], np.cumsum([size for _, _, size in images])]).astype(np.int64)
            rows = _rows_of_groups(blocks_of(whole, None, cut)[0], n_features, rows, sizes)
            ids = pa.array(group_names([file for _, file, _ in images]))
            return Cut.within(whole, n_features, rows, name, cut, None, ids)
        source = self.source
        if self.format == "zarr":
            source = open_path(self.location, None, None, None, self.format)
        if isinstance(source, GroupedSource):
            whole, breaks = whole_groups(source.all_offsets(), source.names.all_blocks())
            rows = _rows_of_groups(blocks_of(whole, breaks, cut)[0], n_features, rows, sizes)
            return Cut.within(whole, n_features, rows, name, cut, breaks, source.names.ids)
        if cut is not None:
            raise SettingError(
                f"{name}: cut={cut} cuts sequences into blocks; name the column that tells them apart: group_column="
            )
        return None

    def pieces(self) -> Iterator[tuple[Piece, float]]:
        """Atoms with weights, in the stored dtype, and the share read."""
        if self.table is not None:
            self._name(self.table.columns)
            yield from self.table.pieces()
            return
        if self.format in STREAMED:
            columns = self.named[0] if self.named else self.columns
            stream = Stream(self.location, self.format, columns, self.weights, self.patches, reading=self.reading)
            self._name(stream.named)
            for piece in stream.pieces():
                yield piece, stream.fraction()
            self.notes[:] = stream.notes
            return
        if self.source is not None:
            yield from self._opened(self.source)
            return
        # the second pass uses the columns that the first chose, so that the choice is reported once
        columns = self.named[0] if self.named and self.format in COLUMN_FILES else self.columns
        source: Any = open_path(self.location, None, self.weights, columns, self.format, reading=self.reading)
        if isinstance(source, NpySource):
            # a file that can be cut anywhere is read in small pieces
            rows = batch_rows(source.n_features, None, PIECE_BYTES)
            source = open_path(self.location, rows, self.weights, self.columns, self.format)
        if isinstance(source, GroupedSource):
            source = source.atoms
        self._name(columns_of(source))
        for index in range(source.n_batches):
            if isinstance(source, NpySource | ZarrRowsSource | ParquetSource):
                x, weights = source.load_reader(index).load(source.dtype.newbyteorder("="))
            else:
                batch = source.reader(index)()
                x, weights = batch.x, batch.weights
            yield (x, weights), (index + 1) / source.n_batches

    def _opened(self, source: Source) -> Iterator[tuple[Piece, float]]:
        self._name(columns_of(source))
        kind = dtype_of(source)
        for index in range(source.n_batches):
            batch = source.reader(index)()
            x = batch.x if kind is None else np.asarray(batch.x).astype(kind)
            yield (x, batch.weights), (index + 1) / source.n_batches

    def _name(self, columns: Columns | None) -> None:
        self.named[:] = [] if columns is None else [columns]


def dtype_of(source: Source) -> np.dtype | None:
    """Dtype of an array in memory; None for other sources, whose batches are float64 or counts."""
    match source:
        case GroupedSource() | WeightedSource() | OrderedSource():
            return dtype_of(source.atoms)
        case ArraySource():
            return source.x.dtype.newbyteorder("=") if isinstance(source.x, np.ndarray) else None
        case _:
            return None


def _rows_of_groups(offsets: np.ndarray, n_features: int, rows: int, sizes: BatchSizes | None) -> int:
    """Rows of a batch of groups: fewer than ``rows`` if batches would be few, but no fewer than the largest group."""
    if sizes is None:
        return rows
    longest = int(np.diff(offsets).max(initial=1))
    return min(rows, max(longest, sizes.of(8 * n_features * int(offsets[-1])) // (8 * n_features)))


@contextlib.contextmanager
def named_errors(location: Location, target: Location) -> Iterator[None]:
    """Name the source in errors of parsers, and source and target in errors of the operating system."""
    try:
        with parsed(location.name):
            yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        raise StoreError(f"cannot turn {location.name} into {target.name}: {what}") from error


@dataclass(frozen=True, eq=False)
class Plan:
    """Source, target and settings of one call of ``ingest``."""

    given: Input
    building: Location
    target: Location
    batch_size: int | None
    batch_bytes: int
    vocabulary: str | os.PathLike[str] | None
    project: int | str | os.PathLike[str] | None
    dtype: str | None
    progress: Progress | None
    cut: int | None = None
    workers: int = WORKERS
    deduplicate: Deduplicate | None = None

    @property
    def sizes(self) -> BatchSizes | None:
        """How batches are cut; None if their size was given."""
        return None if self.batch_size is not None else BatchSizes(self.batch_bytes, self.workers)

    def distinct(self, cut: Cut | None) -> DistinctRows | None:
        """How repeated rows are united; None if they are kept.

        Raises
        ------
        SettingError
            The rows are in groups: equal rows of different groups have different meanings.
        """
        if self.deduplicate is None:
            return None
        if cut is not None:
            raise SettingError(
                f"{self.given.location.name} has its rows in groups, in which a row may occur twice for a reason; "
                "leave deduplicate= out"
            )
        return DistinctRows(self.deduplicate)

    def sizing(self, n_batches: int, grouped: bool = False) -> str:
        """A line about the batches, if ``ingest`` chose their size."""
        return "" if self.sizes is None else self.sizes.line(n_batches, grouped)

    def tell(self, fraction: float, n_atoms: int) -> None:
        """Call the user's function, if any; SettingError if it raises."""
        if self.progress is None:
            return
        try:
            self.progress(fraction, n_atoms)
        except Exception as error:  # the caller's error; without this name it would look like damaged data
            raise SettingError(f"progress: {type(error).__name__} in the function given: {error}") from error


def chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """Iterate over the first item and then the rest."""
    yield first
    yield from rest


def stored_bytes(location: Location) -> int:
    """Bytes of all files of a store."""
    fs, path = location.filesystem()
    with location.discreet():
        return int(fs.du(path))
