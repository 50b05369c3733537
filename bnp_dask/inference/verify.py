"""Resuming a run: its state from a checkpoint, after everything that the checkpoint refers to was verified.

Every stored summary is read before the first batch is visited, by workers or here, and compared with its checksum in
the checkpoint; brought up to date and added up, they must give the running total.  This costs one pass over the
summaries, which the first lap reads anyway, and memory for a few of them.

If assignments of a batch are kept, its statistics would require its data.  Then the counts and entropies of all batches
must add up to the total's before the first visit, and the total must have the checksum that it was saved with.  The
batch's other statistics are compared with their recorded sums when its first visit recomputes them; its data are
compared with their checksum then, as for all batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core import Edit, RunningTotal, Summary
from bnp_dask.errors import StoreError, SummaryError
from bnp_dask.execute import in_order
from bnp_dask.inference.batch_memo import Shelf, counts_from, is_assigned, summary_from
from bnp_dask.inference.checkpoint import SavedState, require_sums, state_from_saved
from bnp_dask.inference.state import State, Work
from bnp_dask.model import Model
from bnp_dask.store import Checkpoint, DamagedError, Listing, Receipt, RunStore

logger = logging.getLogger("bnp_dask")

TOLERANCE = 1e-12
"""Share of the summed terms by which a running total may differ from their fresh sum."""

NEGLIGIBLE = 1e-15
"""Share of the sum over all clusters below which a cluster's statistics are rounding; of the total weight for counts
and nats of an allocation.  Where assignments have become certain, less remains of an earlier sum than its last digits.
"""

PIECE_BYTES = 2**26
"""Bytes of summaries that one task reads, at least, unless it reaches ``MOST`` summaries before."""

FEWEST, MOST = 16, 256
"""Bounds of the number of summaries of one task: with fewer, the returned sums would be large compared with the data
read; with more, a task takes long."""

WINDOW = 8
"""Verification tasks in flight."""


@dataclass(frozen=True, eq=False)
class Checked:
    """Sum of some stored summaries.

    Parameters
    ----------
    n_full
        Number of them that hold statistics or assignments; others hold states of groups only.
    total, size
        Sums of these statistics and of their absolute values, without the observation model's if some hold assignments;
        None if there are none.
    problem
        Why one of them cannot be used; empty if all can.
    """

    n_full: int = 0
    total: Summary | None = None
    size: Summary | None = None
    problem: str = ""


@dataclass(frozen=True)
class Entry:
    """One summary to check: batch, visit and receipt, and how many of the edits it has seen."""

    batch: int
    visit: int
    receipt: Receipt
    seen: int


def restored(work: Work, store: RunStore, checkpoint: Checkpoint) -> tuple[State, Checkpoint]:
    """The verified state of a checkpoint; if it is damaged, the state of the checkpoint before, with a warning.

    Raises
    ------
    StoreError
        No checkpoint is whole, or this one was not written by this package.
    """
    refused: dict[int, str] = {}
    while True:
        place = f"checkpoint {checkpoint.number} of {store.path}"
        try:
            state = state_from_saved(work.model, checkpoint.state, checkpoint.arrays, checkpoint.listing, place)
            _verify(work, store, state, checkpoint)
        except DamagedError as error:
            refused[checkpoint.number] = str(error)
            before = store.load(refused, SavedState)  # StoreError if there is none
            assert before is not None
            checkpoint = before
            continue
        return state, checkpoint


def _verify(work: Work, store: RunStore, state: State, checkpoint: Checkpoint) -> None:
    """DamagedError unless all summaries match the checkpoint's list and their sum is the running total."""
    listing = checkpoint.listing
    if not len(listing):
        return
    started = time.perf_counter()
    model, edits = work.executor.share("verify-model", work.model), tuple(state.edits)
    pieces = list(_pieces(listing, state.seen))
    tasks = ((f"verify-batch{p[0].batch}", check_summaries, (model, store.shared, edits, p)) for p in pieces)
    fresh: RunningTotal | None = None
    size: Summary | None = None
    n_full = 0
    for piece, found in zip(pieces, in_order(work.executor, tasks, WINDOW), strict=True):
        if found.problem:  # the worker may not reach the run directory; this process's check counts
            found = check_summaries(work.model, store.summaries, edits, piece)
        if found.problem:
            raise DamagedError(found.problem)
        n_full += found.n_full
        if found.total is not None:
            fresh = fresh or RunningTotal(found.total.zeros())
            if found.total.fields.keys() != fresh.high.fields.keys():
                names = found.total.fields.keys() & fresh.high.fields.keys()
                fresh = RunningTotal(_only(fresh.high, names), _only(fresh.low, names))
            fresh.add(_only(found.total, fresh.high.fields))
            size = found.size if size is None else _plus(size, found.size)
    if fresh is not None and size is not None:
        base = f"checkpoint {checkpoint.number} of {store.path}"
        if n_full != len(listing):
            raise DamagedError(f"{base} is damaged (some of its summaries hold no statistics)")
        _require_equal(state.total, fresh, size, work.model.observation.fields, base)
        if fresh.high.fields.keys() != state.total.high.fields.keys():  # some statistics are not in the sum
            require_sums(state, checkpoint.state, base)
    seconds = time.perf_counter() - started
    logger.info("verified %d summaries, %.1f MB, in %.1f s", len(listing), listing.nbytes / 1e6, seconds)


def _pieces(listing: Listing, seen: np.ndarray) -> Iterator[tuple[Entry, ...]]:
    """Summaries for one task each."""
    piece: list[Entry] = []
    nbytes = 0
    for batch, visit, receipt in listing.entries():
        piece.append(Entry(batch, visit, receipt, int(seen[batch])))
        nbytes += max(receipt.nbytes, 0)
        if len(piece) == MOST or (len(piece) >= FEWEST and nbytes >= PIECE_BYTES):
            yield tuple(piece)
            piece, nbytes = [], 0
    if piece:
        yield tuple(piece)


def check_summaries(model: Model, shelf: Shelf, edits: Sequence[Edit], entries: Sequence[Entry]) -> Checked:
    """The task: read some summaries, compare their checksums, bring them up to date and add them."""
    out = Checked()
    for entry in entries:
        try:
            arrays, _ = shelf.get(entry.batch, entry.visit, entry.receipt)
        except StoreError as error:
            return Checked(problem=str(error.__cause__ or error))
        if "ids" not in arrays:
            continue
        try:
            tell = counts_from if is_assigned(arrays) else summary_from
            since = edits[entry.seen :]
            own = tell(model, arrays, since).without_pairs()
            sizes = tell(model, _absolute(arrays), since).without_pairs() if since else _size_of(own)
        except Exception as error:  # a file of another program, whose checksum the listing names
            name = f"the summary of batch {entry.batch} at visit {entry.visit}"
            what = str(error) if isinstance(error, SummaryError) else f"{type(error).__name__}: {error}"
            return Checked(problem=f"{name} is damaged (it is not of this run: {what})")
        if out.total is None or out.size is None:
            out = Checked(1, own, sizes)
        else:
            out = Checked(out.n_full + 1, _plus(out.total, own), _plus(out.size, sizes))
    return out


def _absolute(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of a summary with absolute values: edits then add the sizes of terms, also of terms that cancel.

    Values of tracked pairs too, which a merge takes for those of the union: of topics some are negative.
    """
    return {key: np.abs(array) if array.dtype.kind == "f" else array for key, array in arrays.items()}


def _size_of(summary: Summary) -> Summary:
    """Absolute values of the statistics."""
    return replace(summary, values={name: np.abs(array) for name, array in summary.values.items()})


def _plus(one: Summary, other: Summary) -> Summary:
    """Sum of the statistics that both have."""
    names = one.fields.keys() & other.fields.keys()
    return _only(one, names) + _only(other, names)


def _only(summary: Summary, names: Collection[str]) -> Summary:
    """Some of the statistics, in their order."""
    fields = {name: declared for name, declared in summary.fields.items() if name in names}
    return replace(summary, fields=fields, values={name: summary[name] for name in fields})


def _require_equal(
    total: RunningTotal, fresh: RunningTotal, size: Summary, data_fields: Collection[str], base: str
) -> None:
    """DamagedError unless a running total is the fresh sum; ``data_fields`` are in units of the data."""
    weight = float(np.abs(total.high["N"]).sum())
    if not np.array_equal(total.high.ids, fresh.high.ids):
        raise DamagedError(f"{base} is damaged (its total and its summaries are of different clusters)")
    for name in fresh.high.values:
        gap = np.abs((total.high[name] - fresh.high[name]) + (total.low[name] - fresh.low[name]))
        axes = tuple(range(fresh.high.fields[name].n_cluster_axes))
        whole = size[name].sum(axis=axes) if name in data_fields else weight
        if not (gap <= TOLERANCE * size[name] + NEGLIGIBLE * whole).all():  # nan is no sum
            raise DamagedError(
                f"{base} is damaged (its total is not the sum of its summaries: {name!r} differs by "
                f"{float(np.max(gap)):.3g})"
            )
