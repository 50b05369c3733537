"""Rows that come in groups (sequences, images, hospitals), or as steps of sequences.

Offsets of groups, batches that never cut a group, the order of steps, gaps between them, and long sequences cut into
blocks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.core import WHOLE, Batch, Columns, Cutting, Location, lagged_names
from bnp_dask.data.base import (
    PIECE_BYTES,
    Reader,
    Source,
    Span,
    batch_rows,
    columns_of,
    fingerprint_of,
    memory_bytes,
)
from bnp_dask.data.sources.columns import is_numeric, numbers
from bnp_dask.data.sources.parquet import RowGroups, open_file, read_pieces, row_starts
from bnp_dask.data.sources.zarr import ZarrArray
from bnp_dask.data.view import Changed, View
from bnp_dask.errors import DataError, warn
from bnp_dask.inputs import plain
from bnp_dask.kernels import lagged_rows, with_lags

# -- steps ---------------------------------------------------------------------------------------------------------
INT = np.dtype(np.int64)

GAP = 1.5
"""Distance of neighbours, in steps, from which on it counts as a gap: clocks jitter, and a missing row makes it 2."""

IDS_PLACE = ("names", "groups.parquet")
"""Table in a store with the ids of its groups, as in the ingested table."""


# -- order -------------------------------------------------------------------------------------------------------
def times_of(order: pa.Array, column: str, name: str) -> np.ndarray:
    """The order of rows as numbers, ``(n,)`` int64 or float64; dates and times in their stored units."""
    if pa.types.is_temporal(order.type):
        order = order.cast(pa.int32() if order.type.bit_width == 32 else pa.int64())
    if not is_numeric(order.type):
        raise DataError(
            f"{name}: order column {column!r} is {order.type}; needs numbers, dates or times: "
            f"pandas.to_datetime(table[{column!r}])"
        )
    values = numbers(order)
    if values.dtype.kind in "bi" or (values.dtype.kind == "u" and values.dtype.itemsize < 8):
        return values.astype(INT)
    return values.astype(np.float64)


@dataclass(eq=False)
class Steps:
    """Checks of the order column of rows that arrive piece by piece, sorted into groups.

    Parameters
    ----------
    name, group, column
        Names of the data, of the column of groups and of the order column, for messages.
    cutting
        Treatment of gaps.
    """

    name: str
    group: str
    column: str
    cutting: Cutting
    step: float | None = None
    """Distance of neighbours: as given, or the median in the first piece that has neighbours."""

    def breaks(self, times: np.ndarray, same: np.ndarray, tell: Callable[[int], tuple[Any, int, int]]) -> np.ndarray:
        """Positions of rows that follow a gap.

        Parameters
        ----------
        times
            The order column, ``(n,)``.
        same
            Whether row t is in the group of row t - 1, ``(n - 1,)`` for t = 1, 2, ...
        tell
            Function of t: the group of row t, and the numbers of rows t - 1 and t in the data.

        Raises
        ------
        DataError
            The order falls or repeats, or there is a gap and gaps are refused.
        """
        distance = np.diff(times)
        wrong = np.flatnonzero(same & (distance < 0))
        if len(wrong):
            group, _, row = tell(int(wrong[0]) + 1)
            raise DataError(
                f"{self.name}: {self.column!r} falls within group {group!r} at row {row}; sort the rows by "
                f"{self.group!r} and {self.column!r}, or let bnp-dask ingest do it (--group-column, --order-column)"
            )
        wrong = np.flatnonzero(same & (distance == 0))
        if len(wrong):
            group, before, row = tell(int(wrong[0]) + 1)
            raise DataError(
                f"{self.name}: rows {before} and {row} of group {group!r} have the same {self.column!r} "
                f"({times[wrong[0]]}; {len(wrong)} such pairs), so their order is unknown; drop one of each, or make "
                f"things that were recorded at the same time groups of their own in {self.group!r}"
            )
        inside = distance[same]
        if self.step is None and len(inside):
            self.step = float(np.median(inside)) if self.cutting.step is None else float(self.cutting.step)
        if self.step is None or self.cutting.gaps == "ignore":
            return np.zeros(0, INT)
        far = np.flatnonzero(same & (distance > GAP * self.step))
        if len(far) and self.cutting.gaps == "refuse":
            t = int(far[0])
            group, before, row = tell(t + 1)
            raise DataError(
                f"{self.name}: group {group!r} has a gap between rows {before} and {row}: {self.column!r} goes from "
                f"{times[t]} to {times[t + 1]}, and a step is {self.step:g} ({len(far)} such gaps here). Rows are "
                "taken for neighbours: pass gaps='cut' (--gaps cut) to begin a new sequence after each gap, "
                "gaps='ignore' if rows follow one another despite gaps, step= (--step) if a step is longer, "
                "or fill in the missing rows"
            )
        return far + 1


# -- blocks ------------------------------------------------------------------------------------------------------
def blocks_of(whole: np.ndarray, breaks: np.ndarray | None, cut: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Groups cut at some rows, and then into blocks of equal size.

    Parameters
    ----------
    whole
        Offsets of the groups, ``(G + 1,)``.
    breaks
        Rows at which a block starts inside a group; None without such rows.
    cut
        Most rows of a block; a longer one is cut into as few as possible, with sizes that differ by at most one.

    Returns
    -------
    offsets, blocks
        Offsets of the blocks ``(G' + 1,)``; for each block its group and its first row within the group, ``(G', 2)``,
        or None if nothing was cut.
    """
    owner = np.arange(len(whole) - 1)
    starts = np.asarray(whole[:-1], INT)
    if breaks is not None and len(breaks):
        inside = np.searchsorted(whole, breaks, side="right") - 1
        starts, owner = np.concatenate([starts, breaks]).astype(INT), np.concatenate([owner, inside])
        rank = np.lexsort((starts, owner))
        starts, owner = starts[rank], owner[rank]
    if cut is not None:
        lengths = np.diff(starts, append=whole[-1])
        pieces = np.maximum(1, -(-lengths // cut))
        of = np.repeat(np.arange(len(starts)), pieces)
        rank = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts, owner = starts[of] + (rank * lengths[of]) // pieces[of], owner[of]
    if len(starts) == len(whole) - 1:
        return np.asarray(whole, INT), None
    blocks = np.stack([owner, starts - np.asarray(whole, INT)[owner]], axis=1)
    return np.concatenate([starts, whole[-1:]]).astype(INT), np.ascontiguousarray(blocks, INT)


def whole_groups(offsets: np.ndarray, blocks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of the whole groups of blocks, and the rows at which they were cut."""
    if blocks is None:
        return offsets, np.zeros(0, INT)
    first = np.diff(blocks[:, 0], prepend=-1) > 0
    return np.concatenate([offsets[:-1][first], offsets[-1:]]), offsets[:-1][~first]


@dataclass(frozen=True, eq=False)
class Names:
    """Names of groups, and the blocks among them.

    Parameters
    ----------
    ids
        Id of each whole group, in memory or in a Parquet file; None for their numbers.
    blocks
        Whole group of each block and its first row within the group, ``(G, 2)`` int64; None if nothing was cut.
    """

    ids: pa.Array | Location | None = None
    blocks: np.ndarray | ZarrArray | None = None

    def part(self, span: Span) -> BatchNames:
        """Names of the groups ``span``, for a task."""
        blocks, ids = self.blocks, self.ids
        if isinstance(blocks, np.ndarray):
            blocks = blocks[span[0] : span[1]]
        if isinstance(ids, pa.Array) and not isinstance(blocks, ZarrArray):
            low, high = _owners(blocks, span)
            # a slice would be pickled with its whole array
            ids = ids.take(pa.array(np.arange(low, high)))
        return BatchNames(ids, blocks, span)

    def all_blocks(self) -> np.ndarray | None:
        """All blocks ``(G, 2)``, in memory."""
        if isinstance(self.blocks, ZarrArray):
            return self.blocks.read((0, self.blocks.shape[0]), INT)
        return self.blocks


@dataclass(frozen=True, eq=False)
class BatchNames:
    """Names of the groups ``span``; ids in memory cover only their whole groups."""

    ids: pa.Array | Location | None
    blocks: np.ndarray | ZarrArray | None
    span: Span

    def __call__(self) -> tuple[pa.Array, np.ndarray]:
        """Id of the whole group of each group ``(g,)``, and its first row within the whole group, ``(g,)``."""
        blocks = self.blocks.read(self.span, INT) if isinstance(self.blocks, ZarrArray) else self.blocks
        low, high = _owners(blocks, self.span)
        owner = np.arange(low, high) if blocks is None else blocks[:, 0]
        begin = np.zeros(self.span[1] - self.span[0], INT) if blocks is None else blocks[:, 1]
        if self.ids is None:
            return pa.array(owner.astype(INT)), begin
        held = read_ids(self.ids, (low, high)) if isinstance(self.ids, Location) else self.ids
        return held.take(pa.array(owner - low)), begin


def _owners(blocks: np.ndarray | None, span: Span) -> Span:
    """Range of the whole groups of the groups ``span``."""
    if blocks is None or len(blocks) == 0:
        return span
    return int(blocks[0, 0]), int(blocks[-1, 0]) + 1


def read_ids(location: Location, span: Span) -> pa.Array:
    """Rows ``span`` of a column of ids in a Parquet file."""
    starts = row_starts(location)
    if span[1] > starts[-1]:
        raise DataError(f"{location.name}: {starts[-1]} ids of groups, needs {span[1]}; ingest the data again")
    first = int(np.searchsorted(starts, span[0], side="right")) - 1
    last = int(np.searchsorted(starts, span[1], side="left"))
    part = RowGroups(location, first, max(last, first + 1), span[0] - int(starts[first]), span[1] - span[0])
    pieces = [batch.column(0) for batch in read_pieces(part, ["id"], PIECE_BYTES // 8)]
    if not pieces:
        with open_file(location) as file:
            return pa.array([], file.schema_arrow.field("id").type)
    return pa.concat_arrays(pieces)


def shown(value: Any) -> Any:
    """A value of an Arrow array as messages show it."""
    return value.as_py() if isinstance(value, pa.Scalar) else value


def differ(ids: pa.Array) -> np.ndarray:
    """Whether each id but the first differs from its predecessor, ``(n - 1,)``."""
    import pyarrow.compute as pc

    return np.asarray(pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False), np.bool_)


# -- groups --------------------------------------------------------------------------------------------------------
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
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

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


@dataclass(frozen=True, eq=False, repr=False)
class GroupedSource(View):
    """Rows in groups; batches hold whole groups, in the order of the data.

    Parameters
    ----------
    whole
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

    spans: tuple[Span, ...]
    group_spans: tuple[Span, ...]
    offsets: np.ndarray | ZarrArray
    names: Names = field(default_factory=Names)
    may_miss: bool = False

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
        atoms = self.whole.reader(index)
        (first, last), (start, stop) = self.group_spans[index], self.spans[index]
        offsets = self.offsets if isinstance(self.offsets, ZarrArray) else self.offsets[first : last + 1]
        names = self.batch_names(index)
        return GroupedReader(atoms, offsets, (first, last), stop - start, self.n_features, names, self.may_miss)

    def batch_names(self, index: int) -> BatchNames:
        """Names of the groups of a batch."""
        return self.names.part(self.group_spans[index])

    def fingerprint(self) -> Any:
        own = self.offsets.fingerprint() if isinstance(self.offsets, ZarrArray) else None
        return [fingerprint_of(self.whole), own]

    def describe(self) -> dict[str, Any]:
        facts = {**self.whole.describe(), "n_groups": self.n_groups}
        if isinstance(self.offsets, ZarrArray):
            return facts
        return {**facts, "groups": f"crc32 {zlib.crc32(self.offsets.tobytes())}"}

    def letting_miss(self) -> GroupedSource:
        return replace(self, may_miss=True)

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


# -- likelihoods that condition on the steps before each step ---------------------------------------------------------
def lagged(batch: Batch, lags: int) -> Batch:
    """A batch of sequences for autoregressive models: the first ``lags`` steps of each have no row of their own.

    Raises
    ------
    DataError
        Sparse counts, or rows without known starts of sequences.
    """
    if lags == 0:
        return batch
    if not isinstance(batch.x, np.ndarray) or batch.groups is None:
        raise DataError(
            f"{batch.name}: rows without sequences, but the likelihood takes the {lags} step(s) before each; say which "
            "rows are of one sequence: as_source(data, groups=...), groups=[0, n] for one of n rows"
        )
    index, offsets = lagged_rows(batch.groups, lags)
    weights = None if batch.weights is None else batch.weights[index]
    labels = None if batch.labels is None else batch.labels[index]
    links = None if batch.links is None else batch.links[index]
    names = None if batch.names is None else lagged_names(batch.names, lags)
    x = with_lags(batch.x, index, lags)
    return replace(batch, x=x, weights=weights, groups=offsets, names=names, labels=labels, links=links)


@dataclass(frozen=True, eq=False, repr=False)
class LaggedSource(View):
    """Sequences with rows ``[x_t, x_{t-1}, ..., x_{t-lags}]``, made from recorded sequences batch by batch.

    Parameters
    ----------
    whole
        The sequences as they were recorded.
    lags
        Steps before each step.
    """

    lags: int

    @property
    def n_features(self) -> int:
        return self.whole.n_features * (1 + self.lags)

    @property
    def n_atoms(self) -> None:
        """Unknown, because the first steps of each sequence have no row."""
        return None

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def columns(self) -> Columns | None:
        """Columns of these rows."""
        found = columns_of(self.whole)
        return None if found is None else found.with_previous(self.lags)

    def reader(self, index: int) -> Reader:
        return Changed(self.whole.reader(index), partial(lagged, lags=self.lags))

    def describe(self) -> dict[str, Any]:
        # the recorded data, which pages open again
        return {**self.whole.describe(), "lags": self.lags}


def taking_lags(source: Source, lags: int) -> Source:
    """The sequences for a likelihood of ``lags`` steps; the source itself for ``lags=0``.

    Raises
    ------
    DataError
        Counts, or sequences that are all too short.
    """
    if lags == 0:
        return source
    if source.is_sparse:
        raise DataError(
            f"{source.name}: sparse counts, but the likelihood takes the steps before each; needs dense rows"
        )
    if isinstance(source, GroupedSource) and isinstance(source.offsets, np.ndarray):
        longest = int(np.diff(source.offsets).max())
        if longest <= lags:
            raise DataError(
                f"{source.name}: the longest sequence has {longest} row(s), and the first {lags} of each are the rows "
                f"that the others follow from; needs a sequence of {lags + 1} rows at least"
            )
    return LaggedSource(source, lags)
