"""Sparse counts in Parquet, in either of two shapes.

long
    Columns ``doc``, ``word``, ``count``: one row per entry.  Documents are the values of ``doc`` that occur, in
    increasing order; best sorted by ``doc``, else every batch reads much of the file.
lists
    Columns ``words`` and ``counts``: one row per document, each a list.

Words count from 0.  The number of words is the metadata entry ``n_words`` of the (first) file, else one more than the
largest word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, shows_itself
from bnp_dask.data.batching import (
    BATCH_BYTES,
    ENTRY_BYTES,
    batch_name,
    build_csr,
    check_batch_size,
    check_index,
    check_width,
)
from bnp_dask.data.identity import fingerprint_of_files
from bnp_dask.data.sources.arrow import is_numeric, numbers
from bnp_dask.data.sources.parquet import RowGroups, open_parquet, parquet_files, read_pieces
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import to_float

LONG = ("doc", "word", "count")
LISTS = ("words", "counts")
PIECE_ROWS = 2**17


def counts_shape(schema: pa.Schema) -> Literal["long", "lists"] | None:
    """Shape of a table, one of the two, or None."""
    names = set(schema.names)
    if set(LONG) <= names:
        return "long"
    if set(LISTS) <= names and all(_is_list(schema.field(c).type) for c in LISTS):
        return "lists"
    return None


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


@dataclass(frozen=True)
class LongReader:
    """Documents ``low <= doc < high`` of a long table."""

    parts: tuple[RowGroups, ...]
    low: int
    high: int
    n_words: int
    name: str

    def __call__(self) -> Batch:
        docs, words, counts = [], [], []
        for part in self.parts:
            for piece in read_pieces(part, LONG, PIECE_ROWS):
                doc = _whole(piece.column("doc"), "doc", self.name)
                mine = (doc >= self.low) & (doc < self.high)
                docs.append(doc[mine])
                words.append(_whole(piece.column("word"), "word", self.name)[mine])
                counts.append(to_float(numbers(piece.column("count")), self.name, "count")[mine])
        word = np.concatenate(words)
        _check_words(word, self.n_words, self.name)
        doc, word, count = np.concatenate(docs), _narrow(word, self.n_words), np.concatenate(counts)
        del docs, words, counts
        if (np.diff(doc) < 0).any():
            order = np.argsort(doc, kind="stable")
            doc, word, count = doc[order], word[order], count[order]
        starts = np.flatnonzero(np.diff(doc, prepend=doc[0] - 1 if len(doc) else 0))
        lengths = np.diff(np.append(starts, len(doc)))
        return Batch(build_csr(lengths, word, count, self.n_words, self.name), None, self.name)


@dataclass(frozen=True)
class ListsReader:
    """Documents of a table with one row per document."""

    parts: tuple[RowGroups, ...]
    n_words: int
    name: str

    def __call__(self) -> Batch:
        rows = []
        for part in self.parts:
            for piece in read_pieces(part, LISTS, PIECE_ROWS // 16):
                words, counts = piece.column("words"), piece.column("counts")
                for column, lists in (("words", words), ("counts", counts)):
                    if lists.null_count:
                        raise DataError(f"{self.name}: column {column!r} has rows without a list; give empty ones")
                lengths = [np.diff(c.offsets.to_numpy()) for c in (words, counts)]
                if not np.array_equal(*lengths):
                    raise DataError(f"{self.name}: lists words and counts of a row have different lengths")
                word = _whole(words.flatten(), "words", self.name)
                _check_words(word, self.n_words, self.name)
                count = to_float(numbers(counts.flatten()), self.name, "count")
                rows.append(build_csr(lengths[0], _narrow(word, self.n_words), count, self.n_words, self.name))
        x = rows[0] if len(rows) == 1 else sparse.csr_array(sparse.vstack(rows, format="csr"))
        return Batch(x, None, self.name)


@shows_itself
@dataclass(frozen=True)
class ParquetCountsSource:
    """Documents of Parquet files, cut into batches."""

    name: str
    n_words: int
    n_atoms: int | None
    readers: tuple[LongReader | ListsReader, ...]
    spans: tuple[tuple[int, int], ...] | None
    shape: str

    @staticmethod
    def of(location: Location, batch_size: int | None = None, n_words: int | None = None) -> ParquetCountsSource:
        """Read all footers and cut according to the shape of the table."""
        files = parquet_files(location)
        with open_parquet(files[0]) as file:
            schema = file.schema_arrow
            noted = (schema.metadata or {}).get(b"n_words")
        shape = counts_shape(schema)
        groups = _row_groups(files, LONG if shape == "long" else LISTS)
        if not groups:
            raise DataError(f"{location.name} has no rows")
        largest = _largest_word(groups, "word" if shape == "long" else "words") if noted is None else -1
        words = n_words or (int(noted) if noted is not None else largest + 1)
        check_width(max(words, 1), location.name)
        if shape == "long":
            return _open_long(location, groups, batch_size, words)
        return _open_lists(location, groups, batch_size, words)

    @property
    def n_batches(self) -> int:
        return len(self.readers)

    @property
    def n_features(self) -> int:
        return self.n_words

    @property
    def is_sparse(self) -> bool:
        return True

    def reader(self, index: int) -> Reader:
        return self.readers[check_index(index, self.n_batches, self.name)]

    def fingerprint(self) -> Any:
        return fingerprint_of_files(part.file for reader in self.readers for part in reader.parts)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": f"parquet counts ({self.shape})",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_words,
            "n_batches": self.n_batches,
        }


def _row_groups(files: Sequence[Location], used: Sequence[str]) -> list[RowGroups]:
    out = []
    for location in files:
        with open_parquet(location) as file:
            missing = [c for c in used if c not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{location.name} has no column {missing[0]!r}, which {files[0].name} has")
            for column in used:
                kind = file.schema_arrow.field(column).type
                value = kind.value_type if _is_list(kind) else kind
                if not is_numeric(value):
                    raise DataError(f"{location.name}: column {column!r} is {kind}; needs numbers")
            for g in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(g).num_rows
                if size:
                    out.append(RowGroups(location, g, g + 1, 0, size))
    return out


def _column_range(part: RowGroups, column: str) -> tuple[int, int]:
    """Least and largest value of a column in one row group: from the footer, or by reading that column."""
    with open_parquet(part.file) as file:
        group = file.metadata.row_group(part.first)
        for place in range(group.num_columns):
            chunk = group.column(place)
            if chunk.path_in_schema.split(".")[0] == column and chunk.statistics and chunk.statistics.has_min_max:
                return int(chunk.statistics.min), int(chunk.statistics.max)
    least, largest = np.iinfo(np.int64).max, -1
    for piece in read_pieces(part, [column], PIECE_ROWS):
        array = piece.column(column)
        values = _whole(array.flatten() if _is_list(array.type) else array, column, part.file.name)
        if len(values):
            least, largest = min(least, int(values.min())), max(largest, int(values.max()))
    return least, largest


def _largest_word(groups: Sequence[RowGroups], column: str) -> int:
    return max(_column_range(part, column)[1] for part in groups)


def _open_long(
    location: Location, groups: Sequence[RowGroups], batch_size: int | None, n_words: int
) -> ParquetCountsSource:
    """Cut by ranges of ``doc``; a batch reads every row group that may hold one of its documents."""
    ranges = [_column_range(part, "doc") for part in groups]
    least, largest = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if batch_size is not None:
        size = check_batch_size(batch_size)
        entries = sum(part.take for part in groups)
        if (largest - least) // size > entries:
            raise DataError(
                f"{location.name}: its {entries:,} entries are of documents {least} to {largest}, so batches of "
                f"batch_size={size} documents would nearly all be empty; number the documents 0, 1, 2, ..., or leave "
                "batch_size out"
            )
        cuts = list(range(least, largest + 1, size))
    else:
        budget, held, cuts = BATCH_BYTES // ENTRY_BYTES, 0, [least]
        for part, (low, high) in zip(groups, ranges, strict=True):
            cuts_of_part = max(1, round(part.take / budget))
            if held + part.take > budget and held:
                cuts.append(low + (low == cuts[-1]))
                held = 0
            # a row group of several batches is cut evenly in its range of documents
            cuts += [low + (high + 1 - low) * p // cuts_of_part for p in range(1, cuts_of_part)]
            held = held + part.take if cuts_of_part == 1 else part.take // cuts_of_part
        cuts = sorted(set(cuts))
    edges = [*cuts, largest + 1]
    readers = []
    for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        parts = tuple(p for p, (a, b) in zip(groups, ranges, strict=True) if a < high and b >= low)
        name = f"{location.name} batch {i} (documents {low}-{high - 1})"
        if parts:
            readers.append(LongReader(parts, low, high, n_words, name))
    return ParquetCountsSource(location.name, n_words, None, tuple(readers), None, "long")


def _open_lists(
    location: Location, groups: Sequence[RowGroups], batch_size: int | None, n_words: int
) -> ParquetCountsSource:
    batches: list[list[RowGroups]] = []
    if batch_size is not None:
        size = check_batch_size(batch_size)
        for part in groups:
            for a in range(0, part.take, size):
                batches.append([RowGroups(part.file, part.first, part.last, a, min(size, part.take - a))])
    else:
        held = 0
        for part in groups:
            with open_parquet(part.file) as file:
                group = file.metadata.row_group(part.first)
                columns = [group.column(c) for c in range(group.num_columns)]
                entries = max((c.num_values for c in columns if c.path_in_schema.startswith("words")), default=0)
            if not batches or held + entries > BATCH_BYTES // ENTRY_BYTES:
                batches.append([])
                held = 0
            batches[-1].append(part)
            held += entries
    ends = np.cumsum([sum(p.take for p in b) for b in batches]).tolist()
    cut = tuple(zip([0, *ends[:-1]], ends, strict=True))
    readers = tuple(
        ListsReader(tuple(parts), n_words, batch_name(location.name, i, span))
        for i, (parts, span) in enumerate(zip(batches, cut, strict=True))
    )
    return ParquetCountsSource(location.name, n_words, ends[-1], readers, cut, "lists")


def _whole(array: pa.Array, column: str, name: str) -> np.ndarray:
    values = numbers(array)
    if values.dtype.kind not in "iu":
        whole = values.astype(np.int64) if (np.abs(values) < 2.0**63).all() else None
        if whole is None or not np.array_equal(whole, values):
            raise DataError(f"{name}: column {column!r} has missing or fractional values; needs whole numbers")
        return whole
    if values.dtype == np.uint64 and len(values) and values.max() > np.uint64(2**63 - 1):
        raise DataError(f"{name}: column {column!r} holds {values.max()}; needs whole numbers below 2**63")
    return values.astype(np.int64, copy=False)


def _narrow(words: np.ndarray, n_words: int) -> np.ndarray:
    """Checked words, in half the bytes if they fit."""
    return words.astype(np.int32) if n_words < 2**31 else words


def _check_words(words: np.ndarray, n_words: int, name: str) -> None:
    if len(words) and (words.min() < 0 or words.max() >= n_words):
        worst = words.min() if words.min() < 0 else words.max()
        raise DataError(f"{name}: word {worst}, but words are 0 to {n_words - 1}")
