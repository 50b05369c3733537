"""Truncation-free stochastic variational inference (Wang & Blei 2012): the schedule, and the task of a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bnp_dask.allocation.base import StickAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.errors import NumericalError, SettingError
from bnp_dask.execute.base import Task
from bnp_dask.inference.bad_batches import remaining_weight
from bnp_dask.inference.drive import Flight, OneByOne, Results, Step, Told, drive
from bnp_dask.inference.state import State, Stream, Work
from bnp_dask.inference.streaming.learners import Draws, by_size, mixture_learner, weights_of
from bnp_dask.inference.streaming.newborn import Newborn, Opened
from bnp_dask.inference.streaming.topics import TopicLearner
from bnp_dask.inference.variational.memoized import lap_order
from bnp_dask.inference.visit import Request, request_of, visit
from bnp_dask.inputs.protocols import as_a
from bnp_dask.inputs.settings import flag, hold, one_of, whole_number
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.observation.missing.entries import require_exact_atoms

STREAMED = "streamed"
"""Reason of a run that has made all of its passes."""

MOST_LAPS, MOST_SWEEPS = 10**6, 10**4
"""Passes over the data, and sweeps of a minibatch, that may be asked for: nothing else ends them."""

LEAST = 1.0
"""Atoms (of topics: tokens) of the whole data below which a cluster is given up."""


def has_topics(model: Model) -> bool:
    """Whether tokens are drawn, which share the weights of their document."""
    return model.structure.has_shares


@register
@dataclass(frozen=True)
class TruncationFreeSVI:
    """Stochastic variational inference that opens clusters as the data call for them, starting from none.

    The clusters of the atoms of a minibatch are drawn from their joint distribution given what is believed, with
    parameters and weights integrated out: a cluster that no atom has come from yet is one more choice.  What was drawn,
    taken for the whole data, moves what is believed with learning rate ``S / n_t``, S being the weight of the minibatch
    and n_t that of all seen so far, or of all data once they were seen.

    Parameters
    ----------
    laps
        Passes over the data.
    minibatch
        Atoms (of topic models: documents) between two changes of what is believed; cut from the batches of the data,
        never across two.
    window
        Batches of the data that are visited side by side, from one state.  1 is the algorithm of the paper, which keeps
        one worker busy.  Clusters that two of them open are united where they are more probable as one, else kept
        apart.  Results depend on it, and not on the number of workers.
    burn_in
        Sweeps of a minibatch before the draw that counts; the first of all seats atoms in order.  One atom alone, which
        is drawn exactly, needs none.
    samples
        Draws that count, one sweep after the other; the paper has one.
    order
        ``"shuffled"``: batches, and rows within them, in a new random order each lap.  ``"fixed"``: as they lie.
    extrapolate
        What a minibatch of the first pass is drawn given.  True: that all data are like those seen so far, as eq. 11
        has it.  False: those seen so far alone, so that little is certain at first (sequential prediction).  From the
        second pass on both are one.  None: True for mixtures, False for topics.  Chosen by held-out documents of KOS
        (nats per word or token; True and False: mixtures -7.62 and -7.66, topics -7.95 and -7.85, with 5 and 10
        documents in a minibatch), and checked on bars of 5 x 5 pixels, whose ten topics are found with False alone.
    prune_every
        Weight of atoms (documents) after which clusters of less than one atom of the whole data (topics: token) go,
        at the end of a batch.

    Notes
    -----
    For ``DPMixture`` with any likelihood, and ``HDPTopics`` with ``Multinomial``.  Clusters are ordered by size, which
    is the order of their sticks: what is kept are counts, so that reordering changes nothing else.

    The posterior's statistics are those of the whole data, as believed; entropies are zero, since assignments are
    draws.  The history's objective is the log predictive density of the rows of the lap so far, each given what was
    known before it, in nats: no bound.  Columns besides the usual: ``log_predictive``, the same number.

    The atoms of an ``init`` count as seen before the first, and what was learned from more atoms than the data have as
    if it came from so many.  ``HDPTopics`` start from no topic.

    References
    ----------
    Wang & Blei, "Truncation-free stochastic variational inference for Bayesian nonparametric models", 2012: eq. 11,
    section 2.3, learning rate and pruning of section 3, supplement S.2 for topics.  The second exponent of the sticks
    in S.2.2 has to be v_k - 1 + ...; it is printed v_k - a + ...
    """

    laps: int = 10
    minibatch: int = 10
    window: int = 1
    burn_in: int = 10
    samples: int = 1
    order: Literal["shuffled", "fixed"] = "shuffled"
    extrapolate: bool | None = None
    prune_every: int = 20_000
    decides_moves = False

    def __post_init__(self) -> None:
        for name in ("minibatch", "window", "prune_every"):
            hold(self, name, whole_number(name, getattr(self, name), 1))
        hold(self, "laps", whole_number("laps", self.laps, 1, MOST_LAPS))
        hold(self, "burn_in", whole_number("burn_in", self.burn_in, 0, MOST_SWEEPS))
        hold(self, "samples", whole_number("samples", self.samples, 1, MOST_SWEEPS))
        one_of("order", self.order, ("shuffled", "fixed"))
        if self.extrapolate is not None:
            flag("extrapolate", self.extrapolate)

    def check(self, model: Model) -> None:
        """SettingError unless the model can be learned so."""
        name, observation = "TruncationFreeSVI()", model.observation
        if not isinstance(model.allocation, StickAllocation):
            raise SettingError(
                f"{name}: {type(model.allocation).__name__} has no sticks that follow from counts; use DPMixture(...) "
                "or HDPTopics(...), or another schedule"
            )
        if has_topics(model) and not isinstance(observation, Multinomial):
            raise SettingError(
                f"{name}: {type(model.allocation).__name__} of {type(observation).__name__} is not learned so, topics "
                "are those of words; use Multinomial(), or another schedule"
            )
        require_exact_atoms(observation, name)
        if model.reproducible:
            raise SettingError(f"{name}: reproducible=True is not kept by samplers; leave it out")
        if model.learn_prior in ("diagonal", "full"):
            raise SettingError(
                f'{name}: has no exact objective to learn a prior with; leave learn_prior="{model.learn_prior}" out'
            )
        if model.estimate != "posterior":
            raise SettingError(
                f'{name}: integrates over parameters, so that estimate="{model.estimate}" has no meaning'
            )

    def run(self, work: Work, state: State) -> Iterator[Step]:
        settle_sticks(work, state)  # a checkpoint holds counts, from which sticks follow, also of a finished run
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Results[Change]]:
        """A window each, visited from one state."""
        self.check(work.model)
        if work.moves:
            raise SettingError("TruncationFreeSVI() opens and gives up clusters itself; leave moves out")
        if has_topics(work.model) and not work.survey.is_sparse:
            raise SettingError("TruncationFreeSVI(): topics are those of words; give documents as sparse counts")
        if state.stream is None:
            _begin(work, state)
        settle_sticks(work, state)
        if state.position == 0:
            state.terms = {"log_predictive": 0.0}
        order = lap_order(work, state.lap, self.order)

        def tasks(batches: tuple[int, ...]) -> list[Task]:
            assert state.stream is not None
            held, tables, out = state.total.value(), state.stream.tables, []
            for i, batch in enumerate(batches):
                turn = self._turn(work, state, before=batches[:i])
                out.append(change_task(work, state, batch, turn, held, tables))
            return out

        visits = OneByOne[Change](work, state, tasks)
        return Flight(work, state, order, self.window, size=self.window, visits=visits)

    def fold(self, work: Work, state: State, group: Results[Change]) -> Told:
        """Change what is believed by each batch, in order."""
        assert state.stream is not None
        known, found = state.total.high.ids, dict(group.found)
        seen = state.stream.seen
        newborn = Newborn()
        for one in found.values():
            if one.weight > 0.0:
                self._change(work, state, one, known, newborn)
        value, tables = state.total.value(), state.stream.tables
        if state.stream.seen // self.prune_every > seen // self.prune_every:
            keep = value["N"] >= min(LEAST, float(value["N"].max(initial=0.0)))
            value, tables = value.take(value.ids[keep]), None if tables is None else tables[keep]
        order = by_size(value["N"] if tables is None else tables)
        state.total = RunningTotal(value.take(value.ids[order]))
        state.stream.tables = None if tables is None else tables[order]
        settle_sticks(work, state)
        return {"exact": False, "action": "folded", "moves": []}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        state.finished = STREAMED if state.lap + 1 >= self.laps else None
        return told

    def _turn(self, work: Work, state: State, before: Sequence[int]) -> Turn:
        """How a batch is visited, given those of its group that come ``before`` it."""
        assert state.stream is not None
        seen = state.stream.seen
        for batch in before:
            seen += 0.0 if batch in state.lost else float(work.survey.batch_weights[batch])
        return Turn(
            lap=state.lap,
            minibatch=self.minibatch,
            draws=Draws(self.burn_in, self.samples),
            is_shuffled=self.order == "shuffled",
            seen=seen,
            total=remaining_weight(work, state.lost),
            extrapolates=not has_topics(work.model) if self.extrapolate is None else self.extrapolate,
        )

    def _change(self, work: Work, state: State, one: Change, known: np.ndarray, newborn: Newborn) -> None:
        """Fade what is believed and add what a batch has found, its new clusters under ids of their own.

        Those that are more probably one with clusters that other batches of the group opened become these; two of one
        batch stay two.
        """
        stream = state.stream
        assert stream is not None
        new = one.added.n_clusters - len(known)
        names = newborn.names_for(work.model, one.opened(new), state.memory.next_id)
        state.memory.next_id = max([state.memory.next_id, *(name + 1 for name in names)])
        fresh = np.array([name for name in names if name not in state.total.high.ids], np.int64)
        ids = np.concatenate([state.total.high.ids, fresh])
        mine = replace(one.added, ids=np.concatenate([known, np.array(names, np.int64)]))
        whole = mine.insert_empty(ids[~np.isin(ids, mine.ids)])
        before = state.total.value().insert_empty(fresh)
        state.total = RunningTotal(before.scale(one.fade) + whole.take(ids))
        if stream.tables is not None and one.tables is not None:
            tables = np.concatenate([one.fade * stream.tables, np.zeros(len(fresh))])
            tables[before.positions(mine.ids)] += one.tables
            stream.tables = tables
        stream.seen += one.weight
        state.terms = {"log_predictive": state.terms["log_predictive"] + one.log_predictive}


def _begin(work: Work, state: State) -> None:
    """A total of the clusters of the start that hold something, whose atoms count as seen."""
    start = state.posterior.summary
    assert start is not None
    held = start.take(start.ids[start["N"] > 0.0]).without_pairs()
    mass = float(held["N"].sum())
    tables = np.zeros(0) if has_topics(work.model) else None
    if tables is not None and held.n_clusters:
        raise SettingError(
            "TruncationFreeSVI() starts from no topic at all, since no other start knows tables; leave init out"
        )
    total = remaining_weight(work, state.lost)
    state.total = RunningTotal(held.scale(total / mass) if mass > total else held)
    state.stream = Stream(mass, tables)
    state.memory.next_id = int(held.ids.max(initial=-1)) + 1


def settle_sticks(work: Work, state: State) -> None:
    """The posterior of the total, once a cluster holds something, with sticks by the counts or tables."""
    value = state.total.value()
    if not value.n_clusters or state.stream is None:
        return
    model, counts = work.model, value["N"] if state.stream.tables is None else state.stream.tables
    found = model.global_step(value)
    state.posterior = replace(found, allocation=as_a(model.allocation, StickAllocation).from_counts(counts))


# -- the task: one batch, visited minibatch by minibatch from what was believed before it ----------------------------
@dataclass(frozen=True)
class Turn:
    """How the rows of a batch are visited.

    Parameters
    ----------
    lap
        Number of the lap; with seed and batch the key of all random numbers.
    minibatch
        Atoms (of topic models: documents) between two changes of what is believed.
    draws
        Sweeps of each of them.
    is_shuffled
        Whether rows are visited in a random order.
    seen
        Weight of all that was seen before this batch.
    total
        Weight of the data.
    extrapolates
        Whether all data are believed to be like those seen.
    """

    lap: int
    minibatch: int
    draws: Draws
    is_shuffled: bool
    seen: float
    total: float
    extrapolates: bool = True


@dataclass(frozen=True, eq=False)
class Change:
    """Effect of a batch on what is believed: ``fade * before + added``.

    Parameters
    ----------
    fade
        Share of what was believed that is left, 0 to 1.
    added
        Statistics: of the clusters before in their order, then of those that were opened, whose ids are provisional.
    tables
        Tables of topics, as ``added``; None for mixtures.
    weight
        Of the rows that were seen.
    log_predictive
        Log predictive density of the rows, each given what was known before it, nats.
    lost
        Why the batch is left out; empty where it is not.
    """

    fade: float
    added: Summary
    tables: np.ndarray | None
    weight: float
    log_predictive: float
    lost: str = ""

    def opened(self, n_new: int) -> Opened:
        """The last ``n_new`` clusters."""
        first = self.added.n_clusters - n_new
        held = self.added.take(self.added.ids[first:])
        return Opened(held, held["N"] if self.tables is None else self.tables[first:])


def change(model: Model, held: Summary, tables: np.ndarray | None, turn: Turn, request: Request) -> Change:
    """The task: read a batch and visit it minibatch by minibatch."""
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(*b"free", turn.lap, request.batch)))
    return visit(
        model,
        request,
        compute=lambda batch: change_of(model, held, tables, turn, batch, rng),
        lose=lambda why: no_change(model, held, tables, why),
    )


def kept_share(seen: float, weight: float, total: float) -> float:
    """Share of what is believed that a minibatch leaves, whose own statistics are added as they are.

    What is held are statistics of ``min(seen, total)`` atoms.  A step of learning rate ``weight / n`` with n of these
    after it (Wang & Blei 2012, eq. 11 and section 3) is this: until all data were seen nothing is forgotten.
    """
    if seen <= 0.0:
        return 1.0
    return max(0.0, min(seen + weight, total) - weight) / min(seen, total)


def no_change(model: Model, held: Summary, tables: np.ndarray | None, why: str) -> Change:
    """The change by a batch that is left out."""
    none = None if tables is None else np.zeros(len(tables))
    return Change(1.0, model.empty_summary(held.ids), none, 0.0, 0.0, why)


def change_of(
    model: Model, held: Summary, tables: np.ndarray | None, turn: Turn, batch: Batch, rng: np.random.Generator
) -> Change:
    """The change by a batch in memory."""
    order = rng.permutation(batch.n_atoms) if turn.is_shuffled else np.arange(batch.n_atoms)
    learner = (
        mixture_learner(model, held, batch, turn.draws, rng)
        if tables is None
        else TopicLearner.of(model, held, tables, batch, turn.draws, rng)
    )
    weights, seen, fade, logs = weights_of(batch), turn.seen, 1.0, 0.0
    for start in range(0, len(order), turn.minibatch):
        rows = order[start : start + turn.minibatch]
        weight = float(weights[rows].sum())
        if weight <= 0.0:
            continue
        keep = kept_share(seen, weight, turn.total)
        size = turn.total / min(seen, turn.total) if turn.extrapolates and seen > 0.0 else 1.0
        logs += learner.step(rows, keep, size)
        fade *= keep
        seen += weight
    if not np.isfinite(logs):
        raise NumericalError(
            f"{batch.name}: the log predictive density of an atom is not finite under any cluster; rescale the columns"
        )
    added, more = learner.added()
    require_finite_arrays(added.values, f"{batch.name}: statistic", added.ids)
    return Change(fade, added, more, float(weights.sum()), logs)


def change_task(work: Work, state: State, batch: int, turn: Turn, held: Summary, tables: np.ndarray | None) -> Task:
    """The task :func:`change` on a batch of a run, from what is believed now."""
    light = replace(held, values=dict(held.values), fields=dict(held.fields))
    args = (work.model, light, tables, turn, request_of(work, state, batch))
    return f"change-lap{turn.lap}-batch{batch}", change, args
