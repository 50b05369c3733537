"""Rows that come in groups (sequences, images, hospitals): offsets, and batches that never cut a group."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.batch import Batch
from bnp_dask.data.base import Reader, Source
from bnp_dask.data.checks import Span, batch_rows
from bnp_dask.data.zarr_rows import ZarrArray
from bnp_dask.errors import DataError

INT = np.dtype(np.int64)


def check_offsets(groups: Any, n_atoms: int, name: str) -> np.ndarray:
    """Offsets ``(G + 1,)`` int64 of groups of rows; DataError unless they rise from 0 to ``n_atoms``.

    Groups without rows are legal, and kept.
    """
    offsets = np.asarray(groups)
    need = (
        f"needs offsets of whole numbers, 0, ..., {n_atoms}, that never fall: group g is rows offsets[g] to "
        "offsets[g + 1] - 1, so offsets = np.concatenate([[0], np.cumsum(lengths)])"
    )
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iuf":
        raise DataError(f"{name}: groups of shape {offsets.shape} and dtype {offsets.dtype}; {need}")
    if not np.isfinite(offsets).all() or (offsets != np.floor(offsets)).any():
        raise DataError(f"{name}: groups hold numbers that are not whole; {need}")
    offsets = offsets.astype(INT)
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        g = int(falls[0])
        raise DataError(f"{name}: groups fall from {offsets[g]} to {offsets[g + 1]} at position {g + 1}; {need}")
    if offsets[0] != 0 or offsets[-1] != n_atoms:
        raise DataError(f"{name}: groups run from {offsets[0]} to {offsets[-1]}, the data have {n_atoms} rows; {need}")
    return offsets


def cut_groups(offsets: np.ndarray, rows: int, name: str) -> np.ndarray:
    """Groups at which batches of at most ``rows`` rows start, and their number last, ``(B + 1,)``.

    A group of more rows is a batch of its own, and a warning says so.  Groups without rows go with a neighbour: no
    batch is without rows.
    """
    n_groups = len(offsets) - 1
    starts, large = [0], []
    while starts[-1] < n_groups:
        first = offsets[starts[-1]]
        # the last end within reach, at least that of the first group with rows, and after all empty ones there
        stop = int(np.searchsorted(offsets, first + rows, side="right")) - 1
        stop = max(stop, min(int(np.searchsorted(offsets, first, side="right")), n_groups))
        stop = int(np.searchsorted(offsets, offsets[stop], side="right")) - 1
        if offsets[stop] - first > rows:
            large.append(int(np.searchsorted(offsets, first, side="right")) - 1)
        starts.append(stop)
    if large:
        size = int(offsets[large[0] + 1] - offsets[large[0]])
        warnings.warn(
            f"{name}: {len(large)} group(s) have more than the {rows} rows of a batch (group {large[0]}: {size}) and "
            "are batches of their own, for a group is never cut; a worker holds such a batch whole",
            stacklevel=2,
        )
    return np.array(starts, INT)


# -- groups told by ids ------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Runs:
    """Finds groups in a column of ids that is read piece by piece; rows of one group must lie together.

    Parameters
    ----------
    name, group, order
        Of the data and of the columns, for messages.
    """

    name: str
    group: str
    order: str | None = None
    n_rows: int = 0
    _starts: list[np.ndarray] = field(default_factory=list)
    _ids: list[pa.Array] = field(default_factory=list)
    _last: tuple[pa.Array, pa.Array | None] | None = None

    def add(self, ids: pa.Array, order: pa.Array | None = None) -> None:
        """More rows; DataError where an id is missing or the order column falls within a group."""
        require_all(ids, self.group, self.name, self.n_rows)
        if order is not None:
            require_all(order, str(self.order), self.name, self.n_rows)
        if len(ids) == 0:
            return
        fresh = np.ones(len(ids), np.bool_)
        fresh[1:] = _differ(ids[1:], ids[:-1])
        falls = np.zeros(len(ids), np.bool_)
        if order is not None:
            falls[1:] = _falls(order)
        if self._last is not None:
            fresh[0] = bool(_differ(ids[:1], self._last[0].cast(ids.type))[0])
            if order is not None and self._last[1] is not None:
                falls[0] = pc.less(order[0], self._last[1].cast(order.type)[0]).as_py()
        wrong = np.flatnonzero(falls & ~fresh)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{self.name}: {self.order!r} falls within group {ids[row].as_py()!r} at row {self.n_rows + row}; sort "
                f"the rows by {self.group!r} and {self.order!r}, or let bnp-dask ingest do it (--group-column, "
                "--order-column)"
            )
        starts = np.flatnonzero(fresh)
        self._starts.append(self.n_rows + starts)
        self._ids.append(ids.take(pa.array(starts)))
        self._last = (ids[-1:], None if order is None else order[-1:])
        self.n_rows += len(ids)

    def ids(self) -> pa.Array:
        """The id of each run of rows."""
        return pa.concat_arrays(self._ids) if self._ids else pa.array([], pa.int64())

    def offsets(self) -> np.ndarray:
        """Offsets ``(G + 1,)``; DataError when rows of one group lie in two places."""
        require_once(self._ids, self.name, self.group)
        return np.concatenate([*self._starts, [self.n_rows]]).astype(INT)


def require_once(ids: list[pa.Array], name: str, group: str) -> None:
    """DataError when an id of a run of rows occurs again in another run."""
    if not ids:
        return
    counts = pc.value_counts(pa.chunked_array(ids))
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise DataError(
            f"{name}: rows of group {twice[0]['values'].as_py()!r} (column {group!r}) lie in "
            f"{twice[0]['counts'].as_py()} places ({len(twice)} such groups); a group must be one run of rows: sort "
            f"the rows by {group!r}, or let bnp-dask ingest do it (--group-column)"
        )


def require_all(values: pa.Array, column: str, name: str, before: int = 0) -> None:
    """DataError unless every row has a value; NaN is none."""
    missing = np.asarray(pc.is_null(values, nan_is_null=True))
    if missing.any():
        raise DataError(
            f"{name}: row {before + int(missing.argmax())} has no {column!r} (missing or NaN); every row needs one: "
            "drop such rows, or give them a value"
        )


def _differ(a: pa.Array, b: pa.Array) -> np.ndarray:
    return np.asarray(pc.not_equal(a, b).to_numpy(zero_copy_only=False), np.bool_)


def _falls(order: pa.Array) -> np.ndarray:
    return np.asarray(pc.less(order[1:], order[:-1]).to_numpy(zero_copy_only=False), np.bool_)


def as_arrow(values: Any) -> pa.Array:
    """A column of a frame or table as one Arrow array without dictionary; NaN becomes null."""
    if isinstance(values, pa.ChunkedArray):
        array = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    elif isinstance(values, pa.Array):
        array = values
    else:
        array = pa.Array.from_pandas(values)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


# -- sources -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class GroupedReader:
    """A batch of rows with its groups: offsets into its rows, or where they are stored (in rows of the whole)."""

    atoms: Reader
    offsets: np.ndarray | ZarrArray
    group_span: Span
    n_rows: int

    def __call__(self) -> Batch:
        batch = self.atoms()
        if isinstance(self.offsets, ZarrArray):
            offsets = self.offsets.read((self.group_span[0], self.group_span[1] + 1), INT)
        else:
            offsets = self.offsets
        if batch.n_atoms != self.n_rows:
            raise DataError(f"{batch.name}: {batch.n_atoms} rows, but its groups have {self.n_rows}")
        return replace(batch, groups=np.ascontiguousarray(offsets - offsets[0]))


@dataclass(frozen=True, eq=False)
class GroupedSource:
    """Rows in groups; batches hold whole groups, in the order of the data.

    Parameters
    ----------
    atoms
        The rows, cut between groups.
    spans, group_spans
        Rows and groups of each batch.
    offsets
        Of all groups ``(G + 1,)``, in memory or in a store.
    """

    atoms: Source
    spans: tuple[Span, ...]
    group_spans: tuple[Span, ...]
    offsets: np.ndarray | ZarrArray

    @property
    def name(self) -> str:
        return self.atoms.name

    @property
    def n_batches(self) -> int:
        return self.atoms.n_batches

    @property
    def n_features(self) -> int:
        return self.atoms.n_features

    @property
    def n_atoms(self) -> int | None:
        return self.atoms.n_atoms

    @property
    def n_groups(self) -> int:
        """Number of groups G, those without rows included."""
        return self.group_spans[-1][1]

    @property
    def is_sparse(self) -> bool:
        return False

    def reader(self, index: int) -> Reader:
        atoms = self.atoms.reader(index)
        (first, last), (start, stop) = self.group_spans[index], self.spans[index]
        if isinstance(self.offsets, ZarrArray):
            return GroupedReader(atoms, self.offsets, (first, last), stop - start)
        return GroupedReader(atoms, self.offsets[first : last + 1], (first, last), stop - start)

    def describe(self) -> dict[str, Any]:
        facts = {**self.atoms.describe(), "n_groups": self.n_groups}
        if isinstance(self.offsets, ZarrArray):
            return facts
        return {**facts, "groups": f"crc32 {zlib.crc32(self.offsets.tobytes())}"}

    def all_offsets(self) -> np.ndarray:
        """Offsets of all groups, ``(G + 1,)``."""
        if isinstance(self.offsets, ZarrArray):
            return self.offsets.read((0, self.offsets.shape[0]), INT)
        return self.offsets


@dataclass(frozen=True, eq=False)
class Cut:
    """Where batches start: the row of each and its first group, ``(B + 1,)`` both."""

    offsets: np.ndarray
    groups: np.ndarray

    @staticmethod
    def of(groups: Any, n_atoms: int, n_features: int, batch_size: int | None, name: str) -> Cut:
        """Cut between groups: batches of ``batch_size`` rows at most, or of about 32 MB."""
        offsets = check_offsets(groups, n_atoms, name)
        return Cut(offsets, cut_groups(offsets, batch_rows(n_features, batch_size), name))

    @property
    def spans(self) -> tuple[Span, ...]:
        """Rows of each batch."""
        return pairs(self.offsets[self.groups])

    def attach(self, atoms: Source) -> GroupedSource:
        """A source that was cut at :attr:`spans`, with its groups."""
        return GroupedSource(atoms, self.spans, pairs(self.groups), self.offsets)


def pairs(edges: np.ndarray) -> tuple[Span, ...]:
    """Spans between neighbouring edges."""
    listed = np.asarray(edges).tolist()
    return tuple(zip(listed[:-1], listed[1:], strict=True))
