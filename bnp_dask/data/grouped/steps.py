"""Rows of a group as steps of a sequence: their order, gaps between them, and long sequences cut into blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.core.columns import Cutting
from bnp_dask.core.location import Location
from bnp_dask.data.batching import PIECE_BYTES, Span
from bnp_dask.data.sources.arrow import is_numeric, numbers
from bnp_dask.data.sources.parquet import RowGroups, open_file, read_pieces, row_starts
from bnp_dask.data.sources.zarr_rows import ZarrArray
from bnp_dask.errors import DataError

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
        raise DataError(f"{name}: order column {column!r} is {order.type}; needs numbers, dates or times")
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
                "gaps='ignore' if rows follow one another whatever lies between, step= (--step) if a step is longer, "
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
    return np.asarray(pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False), np.bool_)
