"""The state of a run between two steps: everything that a schedule needs to continue, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bnp_dask.core import Batch, Edit, GroupStates, RunningTotal, Summary, Survey
from bnp_dask.data import CheckedReader, Source, batch_reader
from bnp_dask.execute import Board, Executor, one_blas_thread
from bnp_dask.inference.batch_memo import (
    Keeps,
    Left,
    Shelf,
    arrays_to_keep,
    counts_from,
    exact_from,
    is_assigned,
    name_of,
    of_this_run,
    parts_from,
    states_from,
)
from bnp_dask.inference.chains import Sampler
from bnp_dask.inference.gathered import ROOM, Gathered
from bnp_dask.inputs import SEEDS
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Memory, Move, Pending, Plan
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.store import NO_RECEIPT, Part, PartFiles, Receipt, no_receipts, receipt_of
from bnp_dask.structure import LITTLE, Visit

SEALED = -2
"""In place of a visit's number: nothing is kept of this batch by itself."""


@dataclass
class Sealed:
    """Statistics of all batches that are never visited again.

    Parameters
    ----------
    total
        Their sum.
    seen
        Number of changes of clusters that are in it.
    """

    total: RunningTotal
    seen: int

    def catch_up(self, edits: Sequence[Edit]) -> None:
        """Replay the changes of clusters that it has not seen, given all of the run's; none of them needs a trial."""
        self.total.apply(edits[self.seen :])
        self.seen = len(edits)


def are_sealed(visits: np.ndarray) -> np.ndarray:
    """Which batches are sealed, ``(B,)`` bool, by the number of each batch's last visit."""
    return np.asarray(visits == SEALED)


logger = logging.getLogger("bnp_dask")

ROUNDING = 1e-12
"""Share of the objective's terms below which a change counts as rounding."""


class Memo(Protocol):
    """Store of the summaries of batches between visits."""

    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> Receipt: ...

    def get_summary(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]: ...

    def part_files(self) -> PartFiles:
        """Files of larger data that the state refers to."""
        ...

    def forget_parts(self, parts: Iterable[Part]) -> None:
        """Drop parts that the state no longer refers to."""
        ...

    def board(self) -> Board | None:
        """Files that this process may leave for tasks; None if there can be none."""
        ...


@dataclass
class Reach:
    """Access of the last tasks to the run directory, as they reported it.

    ``is_rare``: whether most of them did not reach it, so that leaving work to workers is no use.  ``reads_posts``:
    whether all tasks so far could read the values that this process left there for them.
    """

    is_rare: bool = False
    reads_posts: bool = True
    _told: bool = False

    def note(self, n_kept: int, unkept: Sequence[str]) -> None:
        """Record how many batches were kept by workers, and why others were not."""
        if n_kept or unkept:
            self.is_rare = len(unkept) > n_kept
        if unkept and not self._told:
            self._told = True
            logger.info("a worker does not keep its batches' statistics itself, so they come here: %s", unkept[0])

    def note_unread(self, why: str) -> None:
        """Record that a posterior could not be left for tasks, or not be read by one; from now on they are sent.

        One worker is enough: it would go through the tasks of all others, as it fails at once at each.
        """
        if self.reads_posts:
            logger.info("workers do not read posteriors from the run's directory, so they are sent: %s", why)
        self.reads_posts = False


@dataclass(frozen=True)
class Work:
    """Facts that do not change during a run.

    ``shelf`` holds the files behind ``memo``, if there are any.  Workers that reach them read the statistics of a
    batch's last visit and write this visit's themselves, and send differences only; ``reach`` records how that went.
    ``skips``: whether a batch that goes bad is left out; False: it is an error.  ``room``: bytes of atoms gathered for
    moves that may be held in memory.  ``readable``, ``(B,)`` bool: whether a batch can be read whenever the run is
    worked on, so that assignments may be kept in place of statistics; None: no batch can.  ``in_ensemble``: whether
    other states visit the same batches at the same time; schedules then also yield a step once the first batches of a
    lap are sent out.  ``first_lap``: number of laps of the run before the state's first; batches are visited in the
    order of the run's lap.  ``batches``, ascending: the sample that is visited at present, which the survey covers;
    None: all.
    """

    model: Model
    source: Source
    survey: Survey
    executor: Executor
    memo: Memo
    seed: int
    moves: tuple[Move, ...] = ()
    shelf: Shelf | None = None
    skips: bool = False
    room: int = ROOM
    reach: Reach = field(default_factory=Reach)
    readable: np.ndarray | None = None
    in_ensemble: bool = False
    first_lap: int = 0
    batches: np.ndarray | None = None

    def rng(self, lap: int, purpose: str) -> np.random.Generator:
        """Random numbers that depend on the seed, the lap and their purpose, and on nothing else."""
        return _generator(self.seed, lap, purpose)

    def rng_of_all(self, lap: int, purpose: str) -> np.random.Generator:
        """As :meth:`rng`, but shared by all starts of a seed, and by all states in one lap of the run."""
        return _generator(self.seed % SEEDS, self.first_lap + lap, purpose)


def _generator(seed: int, lap: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(lap, *purpose.encode())))


@dataclass(frozen=True)
class Loss:
    """A batch that went bad during the run and was left out.

    ``why``: reason why it cannot be used; ``lap`` (from 1) and ``step`` of the first row of the history without it.
    """

    why: str
    lap: int
    step: int


@dataclass
class Stream:
    """Progress of a schedule that learns from a stream of minibatches.

    ``seen`` is the weight of all atoms so far, including the start's; ``tables (K,)`` are the tables of the topics in
    the total, None for models without topics.
    """

    seen: float
    tables: np.ndarray | None = None


@dataclass(frozen=True)
class Sample:
    """Growing samples of a run, see :mod:`bnp_dask.inference.variational.memoized`.

    Parameters
    ----------
    sizes
        Number of batches of each sample, ascending; the last holds all.
    laps
        Most laps on a sample before it grows.
    stage
        Number of the present sample, from 0.
    begun
        First lap on it.
    calm
        Calm laps on the sample before that count for this one.
    still
        Laps in a row whose clusters stayed, and which gained less than another sample of this size would change.
    """

    sizes: tuple[int, ...]
    laps: int
    stage: int = 0
    begun: int = 0
    calm: float = 0.0
    still: int = 0

    @property
    def size(self) -> int:
        """Number of batches of the present sample."""
        return self.sizes[self.stage]

    @property
    def before(self) -> int:
        """Number of batches of the sample before, 0 for the first."""
        return self.sizes[self.stage - 1] if self.stage else 0

    @property
    def is_whole(self) -> bool:
        """Whether the present sample holds all batches."""
        return self.stage == len(self.sizes) - 1


@dataclass
class State:
    """State of a run.

    Parameters
    ----------
    posterior
        Current posterior, with the summary that it was computed from.
    total
        Sum of the latest summary of every batch visited so far.
    visits
        Visit number of each batch's latest summary, ``(B,)``; -1 before the first, and ``SEALED`` if none is kept.
    receipts
        Bytes and CRC-32 of the files of these visits, ``(B, 2)``; -1 if there is none, or if they were not recorded.
    lap, position, step
        Laps completed; batches folded in the current lap; steps taken in all.
    terms
        Terms of the objective after the last step, nats.
    edits, seen
        Changes of clusters so far, and how many of them each batch's latest summary has seen, ``(B,)``.
    plan, trials, void
        Plan of the current lap, the sums of its trials so far, and whether they are void because a batch kept an older
        summary.
    memory
        The moves' memory of earlier laps.
    in_flight
        Set when the state is saved: the summary behind the posterior of each group of batches in flight, and the number
        of edits in it.
    lap_elbo, lap_counts
        Objective and N_k at the end of the last lap, for the stopping rule.
    calm, calm_laps
        Whether no cluster came, went or noticeably changed its count in the last lap, and in how many laps in
        a row (laps in which deletes were refined count less).
    gathered
        Atoms of some clusters, gathered so far in this lap for births in the next.
    pending
        Newborn clusters that batches found so far in this lap, for trials on all data in the next.
    partial
        Sum of the new summaries of an unfinished full-batch lap.
    lost
        Batches that went bad during the run, by number.
    weights
        Weight of each batch in all totals, ``(B,)``; None if all weigh one.  Kept statistics are weighted.
    sealed
        Sum of the batches of which nothing else is kept; None if there are none.
    sampler
        Chains of a sampling schedule.
    stream
        Progress of a schedule that learns from a stream of minibatches.
    sample
        Sample of the batches that laps visit; None for a run on all of them from its first lap on.
    finished
        Why the run stopped: ``"converged"``, ``"laps"``, or None while it goes on.
    """

    posterior: Posterior
    total: RunningTotal
    visits: np.ndarray
    seen: np.ndarray
    receipts: np.ndarray
    memory: Memory
    lap: int = 0
    position: int = 0
    step: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    trials: dict[str, RunningTotal] = field(default_factory=dict)
    void: bool = False
    in_flight: list[tuple[Summary, int]] = field(default_factory=list)
    lap_elbo: float | None = None
    lap_counts: np.ndarray | None = None
    calm: bool = False
    calm_laps: float = 0.0
    gathered: Gathered = field(default_factory=Gathered)
    pending: Pending = field(default_factory=dict)
    partial: RunningTotal | None = None
    lost: dict[int, Loss] = field(default_factory=dict)
    weights: np.ndarray | None = None
    sealed: Sealed | None = None
    sampler: Sampler | None = None
    stream: Stream | None = None
    sample: Sample | None = None
    finished: str | None = None

    @classmethod
    def start(cls, model: Model, initial: Summary, n_batches: int) -> State:
        """The state before the first step, from the summary of an initialisation."""
        return cls(
            posterior=model.global_step(initial),
            total=RunningTotal(model.empty_summary(initial.ids)),
            visits=np.full(n_batches, -1),
            seen=np.zeros(n_batches, np.int64),
            receipts=no_receipts(n_batches),
            memory=Memory(next_id=int(initial.ids.max(initial=-1)) + 1),
        )

    @property
    def model(self) -> Model:
        """The model with the current prior: the run's model, except for learned settings."""
        return self.posterior.model

    @property
    def laps_before(self) -> int:
        """Laps on samples so far, which do not count as laps of the schedule."""
        if self.sample is None:
            return 0
        return self.sample.begun if self.sample.is_whole else self.lap

    @property
    def elbo(self) -> float:
        """The objective after the last step, nats."""
        return float(sum(self.terms.values()))

    def settle(self, model: Model | None = None) -> None:
        """Take the global step: posterior and objective from the total, with the prior of ``model`` from now on."""
        value = self.total.value()
        self.posterior = (self.model if model is None else model).global_step(value)
        self.terms = self.model.elbo(self.posterior, value)

    def attempt(self, change: RunningTotal, instead_of: Sequence[Summary] = ()) -> bool:
        """Put a change into the total and settle, if the objective does not fall by more than rounding.

        Parameters
        ----------
        change
            Statistics that enter the total.
        instead_of
            Statistics that leave it before.

        Returns
        -------
        is_made
            Whether the change was made.  If it was not, or if an error is raised, every bit of total, posterior and
            objective is as before.
        """
        undo = self.total.before(None if instead_of else change)
        posterior, terms, elbo = self.posterior, self.terms, self.elbo
        is_made = False
        try:
            for own in instead_of:
                self.total.subtract(own)
            self.total.join(change)
            self.settle()
            is_made = not self.elbo < elbo - ROUNDING * sum(abs(term) for term in self.terms.values())
        finally:
            if not is_made:
                undo()
                self.posterior, self.terms = posterior, terms
        return is_made

    def parts(self) -> list[Part]:
        """Files that the state refers to beside the summaries of batches."""
        return [*self.gathered.parts(), *([] if self.sampler is None else self.sampler.parts)]

    def note(self, batch: int, visit: int, seen: int, receipt: Receipt) -> None:
        """Record a kept visit of a batch: its number, how many changes of clusters it has seen, and its receipt."""
        self.visits[batch], self.seen[batch] = visit, seen
        self.receipts[batch] = receipt.nbytes, receipt.crc32

    def weight(self, batch: int) -> float:
        """Weight of a batch in all totals."""
        return 1.0 if self.weights is None else float(self.weights[batch])

    def receipt(self, batch: int) -> Receipt:
        """Receipt of the file of a batch's latest visit."""
        return receipt_of(self.receipts, batch)


def remember(
    work: Work,
    state: State,
    batch: int,
    found: Visit,
    seen: int | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    keeps: Keeps = Keeps.STATISTICS,
) -> None:
    """Keep a batch's visit for its next one; the first ``seen`` changes of clusters are in it (default: all).

    ``more`` are arrays of the schedule's own, which :func:`recall_more` returns.
    """
    arrays = arrays_to_keep(work.model, found, keeps)
    if arrays is None:
        return
    visit = int(state.visits[batch]) + 1
    receipt = work.memo.put_summary(batch, visit, {**arrays, **(more or {})})
    state.note(batch, visit, len(state.edits) if seen is None else seen, receipt)


def recall_more(work: Work, state: State, batch: int, prefix: str) -> dict[str, np.ndarray]:
    """The schedule's own arrays of the batch's latest visit whose names begin with ``prefix``, without it."""
    kept = _kept(work, state, batch).items()
    return {name.removeprefix(prefix): array for name, array in kept if name.startswith(prefix)}


def recall(work: Work, state: State, batch: int, seen: int | None = None) -> Summary | RunningTotal:
    """The batch's latest statistics, brought up to date with the first ``seen`` changes of clusters (default: all).

    They have all the digits with which they are in the total.  If assignments are kept, the batch is read; DataError if
    it has changed.
    """

    def read() -> Batch:
        return CheckedReader(batch_reader(work.source, batch), int(work.survey.checksums[batch]))()

    edits = state.edits[int(state.seen[batch]) : seen]
    with one_blas_thread(), _of_this_run(state, batch):
        return exact_from(work.model, _kept(work, state, batch), edits, read)


def recall_counts(work: Work, state: State, batch: int) -> Summary:
    """Counts and other statistics of the allocation alone, of the batch's latest visit; the batch is not read."""
    with _of_this_run(state, batch):
        return counts_from(work.model, _kept(work, state, batch), state.edits[int(state.seen[batch]) :])


def recall_left(work: Work, state: State, batch: int, seen: int) -> Left | None:
    """Assignments kept from the last visit, to recompute the summary from, given the batch; None if there are none."""
    model = work.model
    if state.visits[batch] < 0 or model.keeps_states:
        return None
    nbytes = 8 * state.posterior.n_clusters * (numbers_per_cluster(model.observation) - 1)
    if state.receipt(batch).nbytes > nbytes + LITTLE:  # statistics for certain
        return None
    arrays = _kept(work, state, batch)
    edits, name = tuple(state.edits[int(state.seen[batch]) : seen]), name_of(batch, int(state.visits[batch]))
    return Left(arrays, edits, name=name) if is_assigned(arrays) else None


def recall_parts(work: Work, state: State, batch: int) -> Mapping[str, Summary]:
    """Statistics of the receivers of trials at the batch's latest visit, up to date with changes of clusters."""
    with _of_this_run(state, batch):
        return parts_from(work.model, _kept(work, state, batch), state.edits[int(state.seen[batch]) :])


def recall_states(work: Work, state: State, batch: int, seen: int | None = None) -> GroupStates | None:
    """States of the batch's groups at its last visit, up to date with the first ``seen`` changes (default: all).

    None if nothing was kept.
    """
    if not work.model.keeps_states or state.visits[batch] < 0:
        return None
    with _of_this_run(state, batch):
        return states_from(_kept(work, state, batch), state.edits[int(state.seen[batch]) : seen])


def _of_this_run(state: State, batch: int) -> AbstractContextManager[None]:
    return of_this_run(name_of(batch, int(state.visits[batch])))


def _kept(work: Work, state: State, batch: int) -> dict[str, np.ndarray]:
    arrays, _ = work.memo.get_summary(batch, int(state.visits[batch]), state.receipt(batch))
    return arrays
