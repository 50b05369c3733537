"""Writing of stores batch by batch, and the sizes of batches; one batch is held at a time."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from bnp_dask.core import Location
from bnp_dask.data.base import BATCH_BYTES, ENTRY_BYTES, PIECE_BYTES
from bnp_dask.data.groups import IDS_PLACE, Cut, check_offsets
from bnp_dask.data.sources.zarr import ATTRIBUTE, FORMAT_VERSION
from bnp_dask.errors import DataError

if TYPE_CHECKING:
    import zarr


# -- sizes of batches ----------------------------------------------------------------------------------------------
WORKERS = 4
"""Default number of expected workers: a constant, so that stores are alike on all machines."""

PER_WORKER = 4
"""Least batches of each worker, so that all workers end at about the same time."""

LEAST_BYTES = 2**20
"""Least bytes of a batch in memory when data are cut smaller to get more batches.

Every visit of a batch has an overhead of some 10 ms.  A megabyte is 2,000 rows of 64 numbers, or 87,000 entries of
documents; with 100 clusters it takes some 100 ms or more, with full covariances or as topics.
"""

LATER = 4
"""Multiple of the wanted batches from which on chunks need not be small: all batches will have the largest size.
"""


@dataclass(frozen=True)
class BatchSizes:
    """Size of batches from the size of the data, in bytes in memory.

    Parameters
    ----------
    most
        Most bytes of a batch.
    workers
        Number of expected workers.
    """

    most: int = BATCH_BYTES
    workers: int = WORKERS

    @property
    def wanted(self) -> int:
        """Least number of batches in all."""
        return PER_WORKER * self.workers

    @property
    def finest(self) -> int:
        """Bytes of a batch for the smallest data that fill a batch of ``most`` bytes."""
        return self.of(self.most)

    def of(self, total: float) -> int:
        """Bytes of a batch for data of ``total`` bytes."""
        return max(1, min(self.most, max(LEAST_BYTES, int(total // self.wanted))))

    def next(self, written: float, total: float, n_batches: int) -> int:
        """Bytes of the next batch, after ``n_batches`` with ``written`` bytes; ``total`` may be a guess."""
        left = self.wanted - n_batches
        if left < 1:
            return self.of(total)
        return max(1, min(self.most, max(LEAST_BYTES, math.ceil((total - written) / left))))

    def is_long(self, total: float) -> bool:
        """Whether data of about ``total`` bytes have far more batches than wanted, even if the guess is off."""
        return total > LATER * self.wanted * self.most

    def line(self, n_batches: int, grouped: bool) -> str:
        """One line for a report."""
        expected = "the worker that is expected" if self.workers == 1 else f"each of {self.workers} expected workers"
        if n_batches >= self.wanted:
            return f"{n_batches:,} batches: at least {PER_WORKER} for {expected} (workers)"
        why = "groups are never cut, and " if grouped else ""
        batches = "1 batch" if n_batches == 1 else f"{n_batches:,} batches"
        least = min(self.most, LEAST_BYTES) / 2**20
        return (
            f"{batches}, fewer than {PER_WORKER} for {expected} (workers): {why}none is made smaller than about "
            f"{least:.3g} MB (batch_size makes any)"
        )


# -- writers -------------------------------------------------------------------------------------------------------
ENTRY_CHUNK = 2**18
"""Most entries in one chunk of a store of counts."""

IDS_ROWS = 2**16
"""Ids of groups in a row group; a batch reads the row groups with its own ids."""


def create_array(location: Location, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any) -> zarr.Array:
    """An array whose chunks are all written and carry a checksum, so that a missing or damaged one is noticed."""
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec

    dtype = np.dtype(dtype)
    return zarr.create_array(
        location.zarr_store(read_only=False),
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        fill_value=0,
        compressors=[BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=dtype.itemsize), Crc32cCodec()],
        config={"write_empty_chunks": True},
        overwrite=True,
    )


def write_vector(location: Location, values: np.ndarray) -> None:
    """A small array, in chunks of at most a megabyte or so."""
    rows = max(1, min(len(values), 2**17))
    array = create_array(location, values.shape, (rows, *values.shape[1:]), values.dtype)
    if len(values):
        array[...] = values


def finish(location: Location, facts: Mapping[str, Any], source: str) -> None:
    """Write the group itself last: a store whose writing was cut short lacks it and is not opened."""
    import zarr

    attributes = {ATTRIBUTE: {"format": FORMAT_VERSION, **facts, "source": source}}
    zarr.create_group(location.zarr_store(read_only=False), attributes=attributes)


@dataclass(eq=False)
class RowsWriter:
    """Writer of rows that takes pieces of any size and writes batches of ``batch_rows``.

    Parameters
    ----------
    location
        Place of the store.
    n_features, dtype
        Number of columns, and stored dtype.
    batch_rows
        Atoms per batch; with ``sizes`` the most atoms.
    cut
        Groups of rows, and starts of batches, which then override ``batch_rows``.
    sizes
        Rule that makes batches smaller if there would be few; None keeps their size.
    """

    location: Location
    n_features: int
    dtype: np.dtype
    batch_rows: int
    cut: Cut | None = None
    sizes: BatchSizes | None = None
    n_atoms: int = 0
    n_batches: int = 0
    _share: float = 0.0
    _is_all: bool = False
    _held: list[np.ndarray] = field(default_factory=list)
    _held_rows: int = 0
    _weights: list[np.ndarray] = field(default_factory=list)
    _array: zarr.Array | None = None

    def add(self, x: np.ndarray, weights: np.ndarray | None = None, share: float = 1.0) -> None:
        """Add rows ``(n, D)``; weights ``(n,)`` for all of them or none; ``share`` of the data up to here."""
        self._share = share
        if x.shape[1] != self.n_features:
            raise DataError(f"rows {self.n_atoms} and after have {x.shape[1]} columns, earlier rows {self.n_features}")
        if weights is not None:
            self._weights.append(weights)
        while len(x):
            part = x[: self._room() - self._held_rows]
            self._held.append(part)
            self._held_rows += len(part)
            x = x[len(part) :]
            if self._held_rows == self._room():
                self._flush()

    def _room(self) -> int:
        """Rows of the batch that is being filled."""
        if self.cut is None:
            return self.batch_rows
        first, last = self.cut.offsets[self.cut.groups[self.n_batches : self.n_batches + 2]]
        return int(last - first)

    def close(self, facts: Mapping[str, Any], source: str) -> None:
        """Write the remaining rows, then the group."""
        if self._array is None and self.cut is None:  # less than a batch
            self._is_all, self.batch_rows = True, self._fewer(self._held_rows)
        if self._held_rows:
            self._flush()
        if self._array is None:
            raise DataError(f"{source} has no rows")
        self._array.resize((self.n_atoms, self.n_features))
        if self.cut is None:
            if not self._is_all:
                self.batch_rows = self._whole_chunks(self._array.chunks[0])
            self.n_batches = -(-self.n_atoms // self.batch_rows)
        if self._weights:
            write_vector(self.location.child("weights"), np.concatenate(self._weights))
        sizes = {"n_atoms": self.n_atoms, "n_features": self.n_features, "batch_rows": self.batch_rows}
        if self.cut is not None:
            check_offsets(self.cut.offsets, self.n_atoms, source)
            write_vector(self.location.child("groups"), self.cut.offsets)
            table = np.stack([self.cut.groups, self.cut.offsets[self.cut.groups]], axis=1)
            write_vector(self.location.child("batch_group"), table)
            sizes["n_groups"] = len(self.cut.offsets) - 1
            blocks = self.cut.names.all_blocks()
            if blocks is not None:
                write_vector(self.location.child("blocks"), blocks)
            _write_ids(self.location, self.cut.names.ids)
        finish(self.location, {"kind": "rows", **sizes, **facts}, source)

    def _fewer(self, n_atoms: int) -> int:
        """Atoms per batch for ``n_atoms`` in all."""
        if self.sizes is None:
            return self.batch_rows
        row = 8 * self.n_features
        rows = max(1, self.sizes.of(row * n_atoms) // row)
        # if one batch is enough, the store keeps the usual ``batch_rows``
        return self.batch_rows if rows >= min(n_atoms, self.batch_rows) else -(-n_atoms // -(-n_atoms // rows))

    def _whole_chunks(self, chunk: int) -> int:
        """Atoms per batch once all are written: whole chunks if batches become smaller."""
        rows = self._fewer(self.n_atoms)
        return rows if rows == self.batch_rows else max(chunk, rows // chunk * chunk)

    def _chunk(self, n_rows: int) -> int:
        """Rows of a chunk, from the rows held and the share of the data that was read."""
        # several chunks in a batch: a reader then holds the batch and one decoded chunk, not two batches
        rows = min(n_rows, self.batch_rows)
        pieces = max(1, round(rows * self.n_features * self.dtype.itemsize / PIECE_BYTES))
        if self.sizes is not None and self.cut is None and not self._is_all:
            in_all = 8 * self.n_features * n_rows / max(self._share, 1e-9)
            pieces = pieces if self.sizes.is_long(in_all) else max(pieces, -(-self.sizes.most // self.sizes.finest))
        return -(-rows // pieces)

    def _flush(self) -> None:
        x = self._held[0] if len(self._held) == 1 else np.concatenate(self._held)
        if self._array is None:
            rows = self._chunk(len(x))
            shape = x.shape
            self._array = create_array(self.location.child("x"), shape, (rows, self.n_features), self.dtype)
        stop = self.n_atoms + len(x)
        if stop > self._array.shape[0]:
            # room grows by doubling: each resize rewrites the metadata
            self._array.resize((max(stop, 2 * self._array.shape[0]), self.n_features))
        self._array[self.n_atoms : stop] = x
        self.n_atoms, self.n_batches = stop, self.n_batches + 1
        self._held, self._held_rows = [], 0


def _write_ids(store: Location, ids: pa.Array | Location | None) -> None:
    """Ids of groups, if they have any, as a table in the store."""
    import fsspec

    if ids is None:
        return
    import zarr

    zarr.create_group(store.child(IDS_PLACE[0]).zarr_store(read_only=False))
    place = store.child(*IDS_PLACE)
    with fsspec.open(place.url, "wb", **place.options) as out:
        if isinstance(ids, Location):
            with ids.open() as source:
                shutil.copyfileobj(source, out)
            return
        pq.write_table(pa.table({"id": ids}), out, row_group_size=IDS_ROWS)


@dataclass(eq=False)
class CountsWriter:
    """Writer of documents that takes pieces of any size and writes batches.

    Parameters
    ----------
    location
        Place of the store.
    count_dtype
        Stored dtype of counts.
    batch_entries, batch_docs
        Number of entries (a document without words counts as one), or of documents, at which a batch is full.
    sizes
        Rule that makes batches smaller if there would be few; None keeps their size.
    """

    location: Location
    count_dtype: np.dtype
    batch_entries: int
    batch_docs: int | None = None
    sizes: BatchSizes | None = None
    n_words: int = 0
    n_entries: int = 0
    n_empty: int = 0
    total: float = 0.0
    _total: float | None = None
    _written: int = 0
    _waiting: list[sparse.csr_array] = field(default_factory=list)
    _waiting_cost: int = 0
    _held: list[sparse.csr_array] = field(default_factory=list)
    _held_docs: int = 0
    _held_cost: int = 0
    _lengths: list[np.ndarray] = field(default_factory=list)
    _weights: list[np.ndarray] = field(default_factory=list)
    _batch_doc: list[int] = field(default_factory=lambda: [0])
    _batch_entry: list[int] = field(default_factory=lambda: [0])
    _arrays: tuple[zarr.Array, zarr.Array] | None = None

    @property
    def n_atoms(self) -> int:
        """Documents so far, held ones included."""
        return self._batch_doc[-1] + self._held_docs + sum(x.shape[0] for x in self._waiting)

    @property
    def n_batches(self) -> int:
        """Batches written."""
        return len(self._batch_doc) - 1

    def add(self, x: sparse.csr_array, weights: np.ndarray | None = None, share: float = 1.0) -> None:
        """Add documents ``(n, V)``; V may grow from call to call; ``share`` of the data up to here."""
        self.n_words = max(self.n_words, x.shape[1])
        self.n_empty += int((np.diff(x.indptr) == 0).sum())
        self.total += float(x.data.sum())
        self.n_entries += x.nnz
        if weights is not None:
            self._weights.append(weights)
        if self.sizes is None:
            self._cut(x)
            return
        self._waiting.append(x)
        self._waiting_cost += int(np.maximum(np.diff(x.indptr), 1).sum())
        if self._total is not None or ENTRY_BYTES * self._waiting_cost >= self.sizes.most:
            self._cut_waiting(share)

    def _cut_waiting(self, share: float) -> None:
        """Cut waiting documents into batches once their total size can be estimated."""
        so_far = self._written + self._held_cost + self._waiting_cost
        self._total = ENTRY_BYTES * so_far / max(share, 1e-9)
        waiting, self._waiting, self._waiting_cost = self._waiting, [], 0
        for x in waiting:
            self._cut(x)

    def _full(self) -> int:
        """Entries of a batch that is full."""
        if self.sizes is None or self._total is None:
            return self.batch_entries
        return max(1, self.sizes.next(ENTRY_BYTES * self._written, self._total, self.n_batches) // ENTRY_BYTES)

    def _cut(self, x: sparse.csr_array) -> None:
        """Put documents into batches, and write full batches."""
        start, n = 0, x.shape[0]
        cost = np.cumsum(np.maximum(np.diff(x.indptr), 1))
        while start < n:
            before = int(cost[start - 1]) if start else 0
            room = self._full() - self._held_cost + before
            stop = int(np.searchsorted(cost, room, side="right"))
            if self.batch_docs is not None:
                stop = min(start + self.batch_docs - self._held_docs, n)
            if stop <= start and self._held_docs:
                self._flush()
                continue
            stop = max(stop, start + 1)
            self._held.append(x[start:stop])
            self._held_docs += stop - start
            self._held_cost += int(cost[stop - 1]) - before
            start = stop
            if self._held_docs == self.batch_docs or (self.batch_docs is None and start < n):
                self._flush()

    def close(self, facts: Mapping[str, Any], source: str) -> None:
        """Write the remaining documents, then the tables, then the group."""
        if self._waiting:
            self._cut_waiting(1.0)
        if self._held_docs:
            self._flush()
        if self._arrays is None:
            raise DataError(f"{source} has no documents")
        integer = np.int64
        write_vector(self.location.child("length"), np.concatenate(self._lengths).astype(integer))
        write_vector(self.location.child("batch_doc"), np.array(self._batch_doc, integer))
        write_vector(self.location.child("batch_entry"), np.array(self._batch_entry, integer))
        if self._weights:
            write_vector(self.location.child("weights"), np.concatenate(self._weights))
        sizes = {"n_atoms": self.n_atoms, "n_words": self.n_words, "n_entries": self.n_entries}
        finish(self.location, {"kind": "counts", **sizes, **facts}, source)

    def _flush(self) -> None:
        lengths = np.concatenate([np.diff(x.indptr) for x in self._held])
        words = np.concatenate([x.indices for x in self._held])
        counts = np.concatenate([x.data for x in self._held])
        if self._arrays is None:
            chunk = min(ENTRY_CHUNK, self._full() if self.batch_docs is None else ENTRY_CHUNK)
            chunk = max(1, min(chunk, 2 * max(len(words), 1024)))
            word = create_array(self.location.child("word"), (chunk,), (chunk,), np.int32)
            count = create_array(self.location.child("count"), (chunk,), (chunk,), self.count_dtype)
            self._arrays = (word, count)
        chunk = self._arrays[0].chunks[0]
        start = self._batch_entry[-1]
        # the next batch starts where a chunk does
        stop = start + -(-len(words) // chunk) * chunk
        for array, values in zip(self._arrays, (words, counts), strict=True):
            if stop > array.shape[0]:
                array.resize((stop,))
            padded = np.zeros(stop - start, array.dtype)
            padded[: len(values)] = values
            if len(padded):
                array[start:stop] = padded
        self._lengths.append(lengths)
        self._batch_doc.append(self._batch_doc[-1] + len(lengths))
        self._batch_entry.append(stop)
        self._written += self._held_cost
        self._held, self._held_docs, self._held_cost = [], 0, 0
