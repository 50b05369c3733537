"""Rows that come in groups (sequences, images, hospitals): offsets, and batches that never cut a group."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import WHOLE, Columns, Cutting
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, Source, columns_of, shows_itself
from bnp_dask.data.batching import Span, batch_rows, memory_bytes
from bnp_dask.data.grouped.steps import INT, BatchNames, Names, Steps, blocks_of, differ, shown, times_of
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.data.sources.zarr_rows import ZarrArray
from bnp_dask.errors import DataError, warn
from bnp_dask.inputs.arrays import plain


def check_offsets(groups: Any, n_atoms: int, name: str) -> np.ndarray:
    """Offsets ``(G + 1,)`` int64 of groups of rows; DataError unless they rise from 0 to ``n_atoms``.

    Groups without rows are allowed, and kept.
    """
    offsets = plain(groups, f"{name}: groups")
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
    """First group of each batch of at most ``rows`` rows, then the number of groups, ``(B + 1,)``.

    A group of more rows is a batch of its own, with a warning.  Groups without rows join a neighbour: no batch is
    without rows.
    """
    n_groups = len(offsets) - 1
    starts, large = [0], []
    while starts[-1] < n_groups:
        first = offsets[starts[-1]]
        # the last end within ``rows``, but past the first group with rows and past any empty groups that follow
        stop = int(np.searchsorted(offsets, first + rows, side="right")) - 1
        stop = max(stop, min(int(np.searchsorted(offsets, first, side="right")), n_groups))
        stop = int(np.searchsorted(offsets, offsets[stop], side="right")) - 1
        if offsets[stop] - first > rows:
            large.append(int(np.searchsorted(offsets, first, side="right")) - 1)
        starts.append(stop)
    if large:
        size = int(offsets[large[0] + 1] - offsets[large[0]])
        warn(
            f"{name}: {len(large)} group(s) have more than the {rows} rows of a batch (group {large[0]}: {size}) and "
            "are batches of their own, for a group is never cut; a worker holds such a batch whole. Where long "
            "sequences may be cut into blocks, say so: cut=10_000 (--cut)"
        )
    return np.array(starts, INT)


# -- groups from ids --------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Runs:
    """Finds groups in a column of ids that is read piece by piece; rows of one group must lie together.

    Parameters
    ----------
    name, group, order
        Names of the data and of the columns, for messages.
    cutting
        Treatment of gaps in the order column.
    """

    name: str
    group: str
    order: str | None = None
    cutting: Cutting = WHOLE
    n_rows: int = 0
    _starts: list[np.ndarray] = field(default_factory=list)
    _breaks: list[np.ndarray] = field(default_factory=list)
    _ids: list[pa.Array] = field(default_factory=list)
    _last: tuple[pa.Array, np.ndarray | None] | None = None
    _steps: Steps | None = None

    def add(self, ids: pa.Array, order: pa.Array | None = None) -> None:
        """Add rows; DataError if an id is missing, or the order column falls, repeats, or has a gap in a group."""
        require_all(ids, self.group, self.name, self.n_rows)
        if order is not None:
            require_all(order, str(self.order), self.name, self.n_rows)
        if len(ids) == 0:
            return
        fresh = np.ones(len(ids), np.bool_)
        fresh[1:] = differ(ids)
        if self._last is not None:
            fresh[0] = bool(differ(pa.concat_arrays([self._last[0].cast(ids.type), ids[:1]]))[0])
        times = None
        if order is not None:
            times = times_of(order, str(self.order), self.name)
            self._check(ids, times, fresh)
        starts = np.flatnonzero(fresh)
        self._starts.append(self.n_rows + starts)
        self._ids.append(ids.take(pa.array(starts)))
        self._last = (ids[-1:], None if times is None else times[-1:])
        self.n_rows += len(ids)

    def _check(self, ids: pa.Array, times: np.ndarray, fresh: np.ndarray) -> None:
        if self._steps is None:
            self._steps = Steps(self.name, self.group, str(self.order), self.cutting)
        before = None if self._last is None else self._last[1]
        first = self.n_rows - (0 if before is None else 1)
        if before is not None:
            times = np.concatenate([before, times])
        same = ~fresh[len(fresh) - len(times) + 1 :]

        def tell(t: int) -> tuple[Any, int, int]:
            row = first + t
            return shown(ids[row - self.n_rows]), row - 1, row

        self._breaks.append(first + self._steps.breaks(times, same, tell))

    def ids(self) -> pa.Array:
        """The id of each group."""
        return pa.concat_arrays(self._ids) if self._ids else pa.array([], pa.int64())

    def offsets(self) -> np.ndarray:
        """Offsets ``(G + 1,)``; DataError if rows of one group lie in two places."""
        require_once(self._ids, self.name, self.group)
        return np.concatenate([*self._starts, [self.n_rows]]).astype(INT)

    def breaks(self) -> np.ndarray | None:
        """Rows inside groups that follow a gap, if gaps cut groups; else None."""
        return np.concatenate(self._breaks) if self._breaks and self.cutting.gaps == "cut" else None


def require_once(ids: list[pa.Array], name: str, group: str) -> None:
    """DataError if the id of a run of rows occurs again in another run."""
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
    """DataError unless every row has a value; NaN does not count."""
    missing = np.asarray(pc.is_null(values, nan_is_null=True))
    if missing.any():
        raise DataError(
            f"{name}: row {before + int(missing.argmax())} has no {column!r} (missing or NaN); every row needs one: "
            "drop such rows, or give them a value"
        )


# -- sources -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class GroupedReader:
    """A batch of rows with its groups: offsets into its rows, or the stored array of offsets into all rows."""

    atoms: Reader
    offsets: np.ndarray | ZarrArray
    group_span: Span
    n_rows: int
    n_features: int
    names: BatchNames
    may_miss: bool = False

    def __call__(self) -> Batch:
        need, held = 8 * self.n_rows * self.n_features, memory_bytes()
        if need > held:
            raise DataError(
                f"{self._longest()}: a batch of {self.n_rows:,} rows takes {need / 2**30:,.1f} GB, and this machine "
                f"has {held / 2**30:,.1f}. A group is read whole: cut=10_000 (--cut) cuts long sequences into blocks "
                "of at most so many rows, each a sequence of its own"
            )
        batch = self.atoms()
        if batch.n_atoms != self.n_rows:
            raise DataError(f"{batch.name}: {batch.n_atoms} rows, but its groups have {self.n_rows}")
        batch = replace(batch, groups=np.ascontiguousarray(self._offsets()))
        with np.errstate(over="ignore", invalid="ignore"):
            finite = bool(np.isfinite(np.sum(batch.x)))
        if not finite and not self.may_miss:
            self._refuse_missing(batch)
        return batch

    def _offsets(self) -> np.ndarray:
        offsets = self.offsets
        if isinstance(offsets, ZarrArray):
            offsets = offsets.read((self.group_span[0], self.group_span[1] + 1), INT)
        return offsets - offsets[0]

    def _longest(self) -> str:
        lengths = np.diff(self._offsets())
        g = int(np.argmax(lengths))
        return f"group {self.names()[0][g].as_py()!r} ({int(lengths[g]):,} rows)"

    def _refuse_missing(self, batch: Batch) -> None:
        """DataError that names the group and the row of a value that is not finite, if there is one."""
        wrong = np.argwhere(~np.isfinite(batch.x))
        if len(wrong) == 0:  # only their sum overflows
            return
        row, column = wrong[0].tolist()
        ids, begin = self.names()
        g = int(np.searchsorted(batch.group_offsets, row, side="right")) - 1
        place = int(begin[g]) + row - int(batch.group_offsets[g])
        raise DataError(
            f"{batch.name}: row {row}, {batch.column(column)} is {batch.x[row, column]}, which is row {place} of group "
            f"{ids[g].as_py()!r}; missing values ({len(np.unique(wrong[:, 0]))} rows here) are not read over: fill "
            "them in, or drop such rows and begin a new group after each. For a table with an order column that is "
            "dropping them and gaps='cut' (--gaps cut), for arrays "
            "sequences, places = bnp_dask.without_missing(sequences); or let the likelihood integrate over them: "
            'DiagGaussian(missing="marginalise")'
        )


@shows_itself
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
        Offsets of all groups ``(G + 1,)``, in memory or in a store.
    names
        Names of the groups; each block of a group that was cut counts as a group.
    may_miss
        Whether NaN is a missing entry; else it is refused with the id of its group.
    """

    atoms: Source
    spans: tuple[Span, ...]
    group_spans: tuple[Span, ...]
    offsets: np.ndarray | ZarrArray
    names: Names = field(default_factory=Names)
    may_miss: bool = False

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
    def columns(self) -> Columns | None:
        return columns_of(self.atoms)

    @property
    def n_groups(self) -> int:
        """Number of groups G, including empty ones; each block of a group that was cut counts as one."""
        return self.group_spans[-1][1]

    @property
    def n_cuts(self) -> int:
        """Number of cuts inside groups: transitions that a hidden Markov model does not count."""
        blocks = self.names.blocks
        if blocks is None:
            return 0
        last = blocks.read((self.n_groups - 1, self.n_groups), INT) if isinstance(blocks, ZarrArray) else blocks[-1:]
        return self.n_groups - int(last[0, 0]) - 1

    @property
    def is_sparse(self) -> bool:
        return False

    def reader(self, index: int) -> Reader:
        atoms = self.atoms.reader(index)
        (first, last), (start, stop) = self.group_spans[index], self.spans[index]
        offsets = self.offsets if isinstance(self.offsets, ZarrArray) else self.offsets[first : last + 1]
        names = self.batch_names(index)
        return GroupedReader(atoms, offsets, (first, last), stop - start, self.n_features, names, self.may_miss)

    def batch_names(self, index: int) -> BatchNames:
        """Names of the groups of a batch."""
        return self.names.part(self.group_spans[index])

    def fingerprint(self) -> Any:
        own = self.offsets.fingerprint() if isinstance(self.offsets, ZarrArray) else None
        return [fingerprint_of(self.atoms), own]

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
    """Starts of batches: first row and first group of each, ``(B + 1,)`` both; with the names of groups."""

    offsets: np.ndarray
    groups: np.ndarray
    names: Names

    @staticmethod
    def of(groups: Any, n_atoms: int, n_features: int, batch_size: int | None, name: str) -> Cut:
        """Cut between groups: batches of ``batch_size`` rows at most, or of about 32 MB."""
        return Cut.within(check_offsets(groups, n_atoms, name), n_features, batch_size, name)

    @staticmethod
    def within(
        whole: np.ndarray,
        n_features: int,
        batch_size: int | None,
        name: str,
        cut: int | None = None,
        breaks: np.ndarray | None = None,
        ids: pa.Array | Location | None = None,
    ) -> Cut:
        """Cut of checked offsets; groups are first cut at ``breaks``, and then into blocks of ``cut`` rows."""
        offsets, blocks = blocks_of(whole, breaks, cut)
        return Cut(offsets, cut_groups(offsets, batch_rows(n_features, batch_size), name), Names(ids, blocks))

    @property
    def n_cuts(self) -> int:
        """Number of cuts inside groups."""
        blocks = self.names.all_blocks()
        return 0 if blocks is None else len(blocks) - int(blocks[-1, 0]) - 1

    @property
    def spans(self) -> tuple[Span, ...]:
        """Rows of each batch."""
        return pairs(self.offsets[self.groups])

    def attach(self, atoms: Source) -> GroupedSource:
        """The source ``atoms``, which was cut at :attr:`spans`, with its groups."""
        return GroupedSource(atoms, self.spans, pairs(self.groups), self.offsets, self.names)


def pairs(edges: np.ndarray) -> tuple[Span, ...]:
    """Spans between neighbouring edges."""
    listed = np.asarray(edges).tolist()
    return tuple(zip(listed[:-1], listed[1:], strict=True))
