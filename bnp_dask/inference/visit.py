"""A visit of one batch, the same for all schedules: read it, compare its checksum, compute.

Workers make visits.  A batch that went bad is left out if the run allows that, else it is an error.  A batch whose
content changed to other good rows is always an error, as is an error of our own with a good batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bnp_dask.core import Batch, RunningTotal, Survey, survey_batch, with_pairs
from bnp_dask.data import (
    CheckedSource,
    EmptyReader,
    Reader,
    Source,
    WithoutBatches,
    batch_reader,
    naming_batch,
    read_or_why,
    reason,
    require_checksum,
    stand_in,
)
from bnp_dask.errors import DataError, StoreError
from bnp_dask.execute import Load, load_of
from bnp_dask.inference.batch_memo import is_assigned
from bnp_dask.inference.state import Loss, Memo, State, Work, recall
from bnp_dask.model import Model
from bnp_dask.observation import correlated_columns

# =====================================================================================================================
# Batches that leave a run because they go bad (``on_bad_batch="skip"``) or are retired.
#
# The visit that finds a batch bad takes it out of every total; from then on a batch without atoms takes its place.
# =====================================================================================================================


logger = logging.getLogger("bnp_dask")

MOST = 0.5
"""Share of the data that may go bad during a run; beyond it the storage is at fault, not single batches."""


def survey_checked(model: Model, batch: Batch, for_priors: bool = True) -> Survey:
    """Survey of a batch, after every check that the model makes; DataError names the batch."""
    with naming_batch(batch.name):
        model.check(batch)
        columns = correlated_columns(model.observation, batch.n_features, batch.names)
        return survey_batch(batch, model.marginalises, for_priors, columns)


def instead(work: Work, batch: int) -> EmptyReader:
    """Reader of the empty batch in place of one that is left out."""
    return stand_in(work.source, work.survey, batch)


def usable(work: Work, state: State) -> Source:
    """The data for tasks that can do without a batch: one that cannot be read appears empty."""
    return _without_lost(work, state, work.skips)


def remaining(work: Work, state: State) -> Source:
    """The data for tasks that need every remaining batch: one that cannot be read raises."""
    return _without_lost(work, state, False)


def _without_lost(work: Work, state: State, is_forgiving: bool) -> Source:
    source = CheckedSource(work.source, work.survey.checksums)
    if not is_forgiving and not state.lost:
        return source
    is_grouped = instead(work, 0).is_grouped
    bad = tuple((batch, loss.why) for batch, loss in sorted(state.lost.items()))
    return WithoutBatches(source, bad, is_grouped, is_forgiving=is_forgiving)


def remaining_weight(work: Work, lost: Iterable[int]) -> float:
    """Weight of all atoms, except in batches that were left out since the run began."""
    return math.fsum([work.survey.total_weight, *(-work.survey.batch_weights[batch] for batch in lost)])


def leave_out(work: Work, state: State, lost: Mapping[int, str]) -> None:
    """Leave batches out from the current step on, given why; DataError if too many are left out."""
    for batch, why in lost.items():
        state.lost[batch] = Loss(why, state.lap + 1, state.step + 1)
        logger.warning("skipped from lap %d on: %s", state.lap + 1, why)
    if lost:
        require_enough(work, state.lost)


def require_enough(work: Work, lost: Mapping[int, Loss]) -> None:
    """Raise DataError if so much has gone bad that single batches cannot be the cause."""
    if remaining_weight(work, lost) >= MOST * work.survey.total_weight:
        return
    last = max(lost, key=lambda b: (lost[b].step, b))
    raise DataError(
        f"{work.source.name}: {len(lost)} of {work.source.n_batches} batches have gone bad since the run began, "
        f"more than half of the data; the last: {lost[last].why}. See that the data can be reached; what was "
        "committed to the run directory is safe: resume=True goes on from there"
    )


# -- batches leave the total ---------------------------------------------------------------------------------------
def take_data(memo: Memo, state: State, batches: Collection[int]) -> bool:
    """Whether the statistics of some batches must be recomputed from their data."""
    kept = (memo.get_summary(b, int(state.visits[b]), state.receipt(b))[0] for b in batches if state.visits[b] >= 0)
    return any(is_assigned(arrays) for arrays in kept)


def subtract(work: Work, state: State, batches: Sequence[int]) -> None:
    """Take the statistics of some batches out of the total.

    If a batch left assignments, and its data are gone or have changed, the total is summed again from all other
    batches; of these, batches that left assignments are read.

    Raises
    ------
    StoreError
        The data of another batch that left assignments are gone too.
    """
    why = ""
    for batch in batches:
        try:
            state.total.subtract(recall(work, state, batch))
        except (DataError, OSError) as error:
            why = why or str(error)
    if why:
        logger.info("the total is summed again from all other batches: %s", why)
        state.total = _of_others(work, state, {*batches, *state.lost}, why)


def _of_others(work: Work, state: State, out: Collection[int], why: str) -> RunningTotal:
    total = RunningTotal(state.total.high.zeros())
    if state.sealed is not None:
        state.sealed.catch_up(state.edits)
        total.join(state.sealed.total)
    for batch in np.flatnonzero(state.visits >= 0).tolist():
        if batch in out:
            continue
        try:
            own = recall(work, state, batch)
        except (DataError, OSError) as error:
            raise StoreError(
                f"the statistics of a batch cannot be taken out: {why}. They take its data, or the data of all other "
                f"batches, and one of these cannot be used either: {error}. Put the data of one of them back"
            ) from error
        total.add(with_pairs(own, total.high.pairs))
    return total


# -- the visit --------------------------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Request:
    """One batch for a task to visit; sent with the task.

    Parameters
    ----------
    batch, name
        Number and name of the batch.
    reader
        Reads the batch.
    seed
        Seed of the run; with the lap and the batch it is the key of all random numbers.
    checksum
        CRC-32 that the batch had when it was surveyed, and must have at each visit; None: not compared.  Data may
        change while a run reads them, so this is no matter of trust in an earlier call.
    empty
        Reads the empty batch that takes its place if it has gone bad; None: a bad batch is an error.
    """

    batch: int
    name: str
    reader: Reader
    seed: int = 0
    checksum: int | None = None
    empty: Reader | None = None

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, if it may be called before the task runs."""
        return load_of(self.reader)


def request_of(work: Work, state: State, batch: int) -> Request:
    """Request for a visit of a batch; for one that was left out, of the empty batch in its place."""
    is_there = batch not in state.lost
    return Request(
        batch=batch,
        name=f"{work.source.name} batch {batch}",
        reader=batch_reader(work.source, batch) if is_there else instead(work, batch),
        seed=work.seed,
        checksum=int(work.survey.checksums[batch]) if is_there else None,
        empty=instead(work, batch) if is_there and work.skips else None,
    )


def visit(model: Model, request: Request, compute: Callable[[Batch], T], lose: Callable[[str], T]) -> T:
    """Read a batch and compute.

    Parameters
    ----------
    model
        Checks a batch on which the computation failed.
    request
        The batch.
    compute
        Result of a batch in memory.
    lose
        Result of a batch that is left out, given why.
    """
    with naming_batch(request.name):
        batch = request.reader() if request.empty is None else read_or_why(request.reader)
        if isinstance(batch, str):
            return lose(batch)
        try:
            if request.checksum is not None:
                require_checksum(batch, request.checksum)
            return compute(batch)
        except Exception:
            why = None if request.empty is None else fault_of(model, batch)
            if why is None:  # nothing is wrong with the batch
                raise
            return lose(why)


def fault_of(model: Model, batch: Batch) -> str | None:
    """Fault of a batch that could be read; None if there is none."""
    try:
        survey_checked(model, batch)
    except DataError as error:
        return reason(error)
    return None
