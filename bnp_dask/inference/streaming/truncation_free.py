"""Truncation-free stochastic variational inference (Wang & Blei 2012): the schedule, and the workers' task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bnp_dask.allocation import StickAllocation
from bnp_dask.core import Batch, RunningTotal, Summary, register, require_finite_arrays
from bnp_dask.errors import NumericalError, SettingError
from bnp_dask.execute import Task
from bnp_dask.inference.drive import Flight, OneByOne, Results, Step, Told, drive
from bnp_dask.inference.state import State, Stream, Work
from bnp_dask.inference.streaming.learners import Draws, TopicLearner, by_size, mixture_learner, weights_of
from bnp_dask.inference.streaming.unite import Newborn, Opened
from bnp_dask.inference.variational.memoized import lap_order
from bnp_dask.inference.visit import Request, remaining_weight, request_of, visit
from bnp_dask.inputs import as_a, flag, hold, one_of, whole_number
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial, require_exact_atoms

STREAMED = "streamed"
"""Reason of a run that has made all of its passes."""

MOST_LAPS, MOST_SWEEPS = 10**6, 10**4
"""Largest numbers of passes over the data, and of sweeps of a minibatch: nothing else ends them."""

LEAST = 1.0
"""Atoms (in topic models: tokens) of the whole data below which a cluster is given up."""


def has_topics(model: Model) -> bool:
    """Whether topics of tokens are drawn; tokens share the weights of their document."""
    return model.structure.has_shares


@register
@dataclass(frozen=True)
class TruncationFreeSVI:
    """Stochastic variational inference that opens clusters as the data require, starting from none.

    The clusters of the atoms of a minibatch are drawn from their joint distribution given the beliefs, with parameters
    and weights integrated out: a new cluster is one more choice.  The draws, taken for the whole data, move the beliefs
    with learning rate ``S / n_t``.  S is the weight of the minibatch; n_t is the weight of all atoms seen so far, or of
    all data once they were seen.

    Parameters
    ----------
    laps
        Passes over the data.
    minibatch
        Atoms (in topic models: documents) between two changes of the beliefs; minibatches are cut from the batches of
        the data, never across two.
    window
        Batches of the data that are visited side by side, from one state.  1 is the algorithm of the paper, which keeps
        one worker busy.  Clusters that two of them open are united if they are more probable as one, else kept apart.
        Results depend on the window, not on the number of workers.
    burn_in
        Sweeps of a minibatch before the draw that counts; the very first sweep seats atoms in order.  A single atom is
        drawn exactly and needs none.
    samples
        Draws that count, one sweep after the other; the paper has one.
    order
        ``"shuffled"``: batches, and rows within them, in a new random order each lap.  ``"fixed"``: their order in the
        data.
    extrapolate
        Assumption about unseen data when a minibatch of the first pass is drawn.  True: all data are like the data seen
        so far (eq. 11).  False: only the data seen so far count, so that little is certain at first (sequential
        prediction).  From the second pass on the two are the same.  None: True for mixtures, False for topics.  Chosen
        by held-out documents of KOS (nats per word or token; True and False: mixtures -7.62 and -7.66, topics -7.95 and
        -7.85, with 5 and 10 documents in a minibatch), and checked on bars of 5 x 5 pixels, whose ten topics are found
        with False alone.
    prune_every
        Weight of atoms (documents) after which clusters of less than one atom of the whole data (topics: token) are
        dropped, at the end of a batch.

    Notes
    -----
    For ``DPMixture`` with any likelihood, and ``HDPTopics`` with ``Multinomial``.  Clusters are ordered by size, which
    is the order of their sticks.  Only counts are kept, so reordering changes nothing else.

    The posterior's statistics are estimates for the whole data; entropies are zero, since assignments are draws.  The
    history's objective is the log predictive density of the rows of the lap so far, each given the beliefs before it,
    in nats.  It is no bound.  Columns besides the usual: ``log_predictive``, the same number.

    The atoms of an ``init`` count as seen before the first atom; if they outnumber the data, they are scaled down to
    the weight of the data.  ``HDPTopics`` start from no topic.

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
        """SettingError unless the model can be learned by this schedule."""
        name, observation = "TruncationFreeSVI()", model.observation
        if not isinstance(model.allocation, StickAllocation):
            raise SettingError(
                f"{name}: {type(model.allocation).__name__} has no sticks that follow from counts; use DPMixture(...) "
                "or HDPTopics(...), or another schedule"
            )
        if has_topics(model) and not isinstance(observation, Multinomial):
            raise SettingError(
                f"{name}: {type(model.allocation).__name__} of {type(observation).__name__} is not learned so, topics "
                "are distributions over words; use Multinomial(), or another schedule"
            )
        require_exact_atoms(observation, name)
        if model.reproducible:
            raise SettingError(f"{name}: reproducible=True is not kept by samplers; leave it out")
        if model.learn_prior not in ("auto", "never"):
            raise SettingError(
                f'{name}: has no exact objective to learn a prior with; leave learn_prior="{model.learn_prior}" out'
            )
        if model.estimate != "posterior":
            raise SettingError(
                f'{name}: integrates over parameters, so that estimate="{model.estimate}" has no meaning'
            )

    def run(self, work: Work, state: State) -> Iterator[Step]:
        settle_sticks(work, state)  # a checkpoint holds counts, from which sticks follow, even for a finished run
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Results[Change]]:
        """Groups of one window each, visited from one state."""
        self.check(work.model)
        if work.moves:
            raise SettingError("TruncationFreeSVI() opens and gives up clusters itself; leave moves out")
        if has_topics(work.model) and not work.survey.is_sparse:
            raise SettingError("TruncationFreeSVI(): topics are of words; give documents as sparse counts")
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
        """Update the beliefs by each batch, in order."""
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
        """How a batch is visited, given the batches of its group that come ``before`` it."""
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
        """Fade the beliefs and add the statistics of a batch, its new clusters under ids of their own.

        A new cluster is united with one that another batch of the group opened if that is more probable; two clusters
        of one batch stay two.
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
    """Set the total to the nonempty clusters of the start, whose atoms count as seen."""
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
    """Set the posterior of the total, once a cluster holds atoms, with sticks from the counts or tables."""
    value = state.total.value()
    if not value.n_clusters or state.stream is None:
        return
    model, counts = work.model, value["N"] if state.stream.tables is None else state.stream.tables
    found = model.global_step(value)
    state.posterior = replace(found, allocation=as_a(model.allocation, StickAllocation).from_counts(counts))


# -- the task: one batch, visited minibatch by minibatch from the beliefs before it ---------------------------------
@dataclass(frozen=True)
class Turn:
    """How the rows of a batch are visited.

    Parameters
    ----------
    lap
        Number of the lap; with seed and batch it is the key of all random numbers.
    minibatch
        Atoms (in topic models: documents) between two changes of the beliefs.
    draws
        Sweeps of each minibatch.
    is_shuffled
        Whether rows are visited in a random order.
    seen
        Weight of all atoms seen before this batch.
    total
        Weight of the data.
    extrapolates
        Whether all data are assumed to be like the data seen.
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
    """Effect of a batch on the beliefs: ``fade * before + added``.

    Parameters
    ----------
    fade
        Share of the former beliefs that is left, 0 to 1.
    added
        Statistics: for the clusters before in their order, then for the clusters opened, whose ids are provisional.
    tables
        Tables of topics, in the order of ``added``; None for mixtures.
    weight
        Weight of the rows that were seen.
    log_predictive
        Log predictive density of the rows, each given the beliefs before it, nats.
    lost
        Why the batch is left out; empty if it is used.
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
    """Share of the beliefs that a minibatch leaves; its own statistics are added unscaled.

    The beliefs are statistics of ``min(seen, total)`` atoms.  This share is a step of learning rate ``weight / n``,
    with n that number after the step (Wang & Blei 2012, eq. 11 and section 3): nothing is forgotten until all data were
    seen.
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
    """The task :func:`change` on a batch of a run, from the current beliefs."""
    light = replace(held, values=dict(held.values), fields=dict(held.fields))
    args = (work.model, light, tables, turn, request_of(work, state, batch))
    return f"change-lap{turn.lap}-batch{batch}", change, args
