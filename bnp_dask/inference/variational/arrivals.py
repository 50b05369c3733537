"""Visits when data arrive: new batches in their order, then some that were visited longest ago.

Proposals about all data are tracked over rounds.  A round ends once every batch has been visited since it began, in one
update or in ten.  Its proposals are decided then, on the exact objective of all data.  Births at new batches are
decided at once, because no other batch holds mass of the newborn clusters.  They take precedence: a round's proposals
about a cluster that is split are dropped.

One batch may hold too few atoms for a new cluster to pay, while all batches that arrived with it hold enough.  So a
small run looks at the atoms of all of them in a cluster.  Its result becomes a trial that all of them carry out,
decided on the exact whole-data objective, with further visits until no birth succeeds.

A new batch was assigned before its newborn clusters existed, so their atoms lie in several older clusters.  It is
visited again with every birth.  The first such visit treats older clusters as if they had none of its atoms, because
parameters estimated with a few atoms of another kind hold on to these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.core import Forget, Summary, concatenate, sum_of
from bnp_dask.execute import Task, in_order
from bnp_dask.inference.batch_memo import Keeps
from bnp_dask.inference.drive import Flight, Step, Told, drive_lap
from bnp_dask.inference.fold import (
    add_trials,
    fold_again,
    keep,
    newer_clusters,
    try_split,
    void_pairs,
    with_newer_clusters,
)
from bnp_dask.inference.gathered import Gathered
from bnp_dask.inference.lap import begin_lap, plan_context, settle_lap
from bnp_dask.inference.local_steps import LocalSteps, Taken
from bnp_dask.inference.state import State, Work, recall_counts, remember
from bnp_dask.inference.variational.lineage import COUNTS, Lineage
from bnp_dask.model import Posterior
from bnp_dask.moves import LAP, Birth, Gather, Plan, Split, acts, are_alike, named_by, newborn_of
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.structure import Trial, Visit

REGAINED = "regained"
"""Action of a history row in which atoms return that had left the model with their clusters."""

SHORT = 1e-9
"""Share of a batch's atoms that may be missing by rounding."""


@dataclass
class Round:
    """Which batches were visited, and when.

    Parameters
    ----------
    seen
        Whether a batch was visited since the round began, ``(B,)`` bool.
    last
        Step of the last visit of each batch, ``(B,)`` int64; -1 before the first.
    short
        Whether clusters left the model, perhaps with atoms of this batch, since its last visit, ``(B,)`` bool.
    is_open
        Whether proposals wait for the end of the round.
    """

    seen: np.ndarray
    last: np.ndarray
    short: np.ndarray
    is_open: bool = False

    @classmethod
    def begin(cls, n_batches: int, step: int) -> Round:
        """Return the record before the first round, with all batches visited by ``step``."""
        return cls(np.zeros(n_batches, np.bool_), np.full(n_batches, step, np.int64), np.zeros(n_batches, np.bool_))

    def extended(self, count: int) -> Round:
        """This round with ``count`` batches more, never visited."""
        seen, short = (np.concatenate([old, np.zeros(count, np.bool_)]) for old in (self.seen, self.short))
        return Round(seen, np.concatenate([self.last, np.full(count, -1, np.int64)]), short, self.is_open)

    def note(self, batches: Sequence[int], step: int) -> None:
        """Record that batches were visited."""
        self.seen[list(batches)] = True
        self.last[list(batches)] = step
        self.short[list(batches)] = False

    def due(self, may: np.ndarray, most: int) -> list[int]:
        """Batches to visit next among the allowed ones, ``may (B,)`` bool: longest ago first, none twice in a round."""
        chosen = np.flatnonzero(may & ~self.seen) if self.is_open else np.flatnonzero(may)
        order = np.lexsort((chosen, self.last[chosen]))
        return [int(b) for b in chosen[order[:most]]]


def visit_arrivals(
    work: Work,
    state: State,
    turn: Round,
    n_new: int,
    n_again: int,
    may: np.ndarray,
    window: int,
    laps: int,
    lineage: Lineage,
    leaves: bool = True,
) -> Iterator[dict[str, Any]]:
    """Visit new batches, then others once more, then all; changes ``state`` and ``turn`` in place.

    Parameters
    ----------
    work
        All batches of the run, the new ones last.
    state
        State of the run, extended by the new batches.
    turn
        The round under way, extended by the new batches too.
    n_new, n_again
        New batches, and older ones to visit.
    may
        Which older batches can be read again, ``(B,)`` bool.  If some cannot, no round is begun, as it would never end.
    window
        Batches in flight, as for :class:`~bnp_dask.inference.variational.memoized.Memoized`.
    laps
        Laps over all batches that can be read, after that.
    lineage
        Follows clusters.
    leaves
        Whether anything is kept of the new batches by themselves.

    Yields
    ------
    dict
        A row of the history for each group of batches.
    """
    n_batches = work.source.n_batches
    new, may = list(range(n_batches - n_new, n_batches)), may.copy()
    everything = [b for b in range(n_batches) if may[b] or b >= n_batches - n_new] if laps else []
    may[new] = False
    rounds = bool(work.moves) and n_again > 0 and bool(may[: n_batches - n_new].all())
    state.finished, state.calm, state.calm_laps = None, False, 0.0
    # failed splits were judged without the new data; topics of whole documents are tried again once there are twice as
    # many tokens
    state.memory.failures = {key: n for key, n in state.memory.failures.items() if key[0] != Birth.kind}
    if turn.is_open and n_again and not rounds:
        abandon(state, turn)
    _plan(work, state, turn, new, rounds)

    def stretch(batches: Sequence[int], is_new: bool = False, leaves: bool = True) -> Iterator[dict[str, Any]]:
        visits = Stretch(turn, lineage, window, batches, is_new, leaves)
        return (dict(step.row) for step in visits.run(work, state) if step.row is not None)

    yield from stretch(new, is_new=True, leaves=leaves)
    state.plan = replace(state.plan, splits={})
    while n_again:
        chosen = turn.due(may, n_again)
        if not chosen:
            break
        if rounds and not turn.is_open:
            _begin_round(work, state, turn)
            chosen = turn.due(may, n_again)
        yield from stretch(chosen)
        n_again -= len(chosen)
        may[chosen] = False
    if laps and turn.is_open:  # a round ends with the last visit of a stretch, never within one
        rest = [b for b in everything if not turn.seen[b]]
        yield from stretch(rest)
    for _ in range(laps):
        if work.moves and len(everything) == n_batches and not turn.is_open:
            _begin_round(work, state, turn)
        yield from stretch(everything)


def _plan(work: Work, state: State, turn: Round, new: Sequence[int], rounds: bool) -> None:
    """Begin a round if none is open, and plan births at the new batches."""
    if rounds and not turn.is_open:
        _begin_round(work, state, turn)
    elif not turn.is_open:
        begin_lap(replace(work, moves=()), state, state.total)
    state.plan = replace(state.plan, splits=splits_of_new(work, state, new))


def _begin_round(work: Work, state: State, turn: Round) -> None:
    begin_lap(work, state, state.total)
    turn.seen[:] = False
    turn.is_open = True


def abandon(state: State, turn: Round) -> None:
    """End a round without a decision: some of its batches cannot be visited any more."""
    state.edits.append(Forget())
    state.total.apply([Forget()])
    state.plan, state.trials, state.gathered = Plan(), {}, Gathered()
    turn.is_open = False


def _regains(work: Work, state: State, turn: Round, batches: Sequence[int]) -> bool:
    """Whether atoms of these batches return that left with their clusters: the objective covers more data then."""
    short = [batch for batch in batches if turn.short[batch] and batch not in state.lost]
    held = (float(recall_counts(work, state, batch)[COUNTS].sum()) for batch in short)
    full = (work.survey.batch_weights[batch] * state.weight(batch) for batch in short)
    return any(own < (1.0 - SHORT) * whole for own, whole in zip(held, full, strict=True))


@dataclass(frozen=True, eq=False)
class Stretch:
    """Visits of some batches in this order; the round's proposals are decided at its last one.

    Parameters
    ----------
    turn, lineage
        The round under way; follows clusters.
    window
        Batches in flight at most.
    batches
        Their numbers.
    is_new, leaves
        Whether they are visited for the first time, and whether anything is kept of them by themselves.
    """

    turn: Round
    lineage: Lineage
    window: int
    batches: Sequence[int]
    is_new: bool = False
    leaves: bool = True
    laps = 1
    decides_moves = True

    def run(self, work: Work, state: State) -> Iterator[Step]:
        """Visit the batches; this counts as a lap even if there are none."""
        if not self.batches:
            state.lap, state.position = state.lap + 1, 0
            return iter(())
        state.position = 0
        return drive_lap(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Taken]:
        """Groups of half a window, or of as many new batches as look for births together."""
        is_whole = self._births(work, state) is not None
        half = max(1, self.window // 2)
        size = size_of_new(work, state, self.batches, self.window) if self.is_new else half
        keeps = Keeps.STATISTICS if self.leaves else Keeps.NOTHING
        visits = LocalSteps(work, state, len(self.batches), keeps=keeps, is_whole=is_whole)
        return Flight(work, state, np.asarray(self.batches), self.window, size, visits)

    def fold(self, work: Work, state: State, group: Taken) -> Told | None:
        """Add new batches, or replace the summaries of others."""
        turn, batches = self.turn, group.batches
        with self.lineage.visited(state, batches):
            regains = not self.is_new and _regains(work, state, turn, batches)
            if self.is_new or regains:
                folded = fold_new(work, state, group, self._births(work, state), self.window)
            else:
                folded = fold_again(work, state, group)
        if folded is None:
            return None
        if regains:
            folded["action"] = REGAINED
        turn.note(batches, state.step + 1)
        if turn.is_open and turn.seen.all():
            with self.lineage.settled(state):
                folded["moves"] += settle_lap(work, state, folded["gain"])
            turn.is_open = False
        return {"exact": True, **folded}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """Do nothing: a round may take many stretches."""
        return told

    def _births(self, work: Work, state: State) -> Birth | None:
        return births_of_new(work, state) if self.is_new else None


# -- births at new batches -----------------------------------------------------------------------------------------
TOGETHER = 2**24
"""Upper limit of the numbers in the statistics of new batches that are folded together (128 MB), if the batches are
more than half a window."""

ROUNDS = 4
"""Rounds of births at most.

On digits of MNIST (1,000 of one digit each day, in five batches a day), twelve rounds gave the same result; no other
data were tried.
"""

VISITS = 2
"""Visits of new batches after births.

The first leaves atoms of newborn clusters in the older ones, as these still held similar atoms.  Two visits were chosen
on the stream of ``tests/growing/test_dormant.py``, on which one visit left spurious clusters; the stream of drifting
clusters agrees.
"""


def births_of_new(work: Work, state: State) -> Birth | None:
    """Births that all new batches of a group seek together; None if each seeks its own, or if there are none.

    For topics there are none, as documents elsewhere would have no weight for them.  For states of sequences each batch
    seeks its own, as steps to and from newborn states are counted apart.
    """
    policy = work.model.structure.policy
    if not (policy.splits_at_batches and policy.splits_beside_trials):
        return None
    return next((move for move in work.moves if isinstance(move, Birth) and acts(move, state.lap)), None)


def splits_of_new(work: Work, state: State, new: Sequence[int]) -> dict[int, Split]:
    """Births that each new batch seeks by itself: births of sequence states, while no trial counts steps to every
    existing state."""
    births = [move for move in work.moves if isinstance(move, Birth) and acts(move, state.lap)]
    plan, policy = state.plan, work.model.structure.policy
    if not births or not policy.splits_at_batches or policy.splits_beside_trials or plan.trials:
        return {}
    taken = {i for p in plan.proposals for i in named_by(p)} | set(plan.pairs.ravel().tolist())
    context = plan_context(work, state, taken)
    replace(births[0], where="batch").plan_at(context, new)
    return context.draft.splits


def size_of_new(work: Work, state: State, new: Sequence[int], window: int) -> int:
    """Number of new batches in a group: half a window, or as many as hold all atoms that a small run looks at."""
    half, birth = max(1, window // 2), births_of_new(work, state)
    if birth is None or len(new) <= half:
        return half
    atoms = float(np.mean([work.survey.batch_atoms[batch] for batch in new]))
    numbers = state.posterior.n_clusters * numbers_per_cluster(work.model.observation)
    most = min(len(new), math.ceil(birth.sample / max(atoms, 1.0)), TOGETHER // numbers)
    return half if most <= half else math.ceil(len(new) / math.ceil(len(new) / most))


def fold_new(work: Work, state: State, taken: Taken, birth: Birth | None, window: int) -> Told | None:
    """Add batches that were never visited, take the global step, and decide their births.

    The objective covers more data afterwards.  Returns columns of the history's row; None if the group is to be visited
    with the current posterior first, because clusters were born since it was sent out.

    Parameters
    ----------
    work, state, taken
        The run, and the batches.
    birth, window
        Births that all of the batches seek together, and the number of tasks in flight; None: each batch seeks its own.
    """
    if birth is not None and taken.attempt == 1 and any(_is_behind(state, found) for _, found in taken.visits):
        return None
    state.total.join(taken.change.with_clusters(state.total.high.ids).delta)
    state.settle()
    if birth is None:
        known = dict(keep(work, state, taken))
        rows = _decided(state, known)
    else:
        add_trials(work, state, taken)
        together = NewBatches(work, state, birth, dict(taken.visits), window)
        rows = together.seek_births()
        known = together.known
    for batch, found in known.items():
        remember(work, state, batch, with_newer_clusters(state, found), len(state.edits), keeps=taken.keeps)
    return {"action": "new", "gain": None, "moves": rows}


def _is_behind(state: State, found: Visit) -> bool:
    """Whether clusters were born since a batch was sent out."""
    return bool(newer_clusters(state, found)) or bool(void_pairs(state, found))


def _decided(state: State, known: dict[int, Visit]) -> list[dict[str, Any]]:
    """Decide births that single batches found; history rows.  Changes ``known`` in place."""
    rows: list[dict[str, Any]] = []
    for batch, found in known.items():
        (known[batch],), more = try_split(state, [found], is_new=True)
        rows += more
    return rows


@dataclass
class NewBatches:
    """Batches of a group that were folded for the first time.

    Parameters
    ----------
    work, state
        The run; :meth:`seek_births` changes its state in place.
    birth
        Settings of the births.
    known
        The latest visit of each batch, by its number.
    window
        Tasks in flight at most.
    refused
        Clusters whose atoms of these batches are better left in place.
    """

    work: Work
    state: State
    birth: Birth
    known: dict[int, Visit]
    window: int
    refused: set[int] = field(default_factory=set)

    def seek_births(self) -> list[dict[str, Any]]:
        """Seek births, and visit the batches again as long as clusters are born; history rows of the decisions."""
        rows: list[dict[str, Any]] = []
        for number in range(ROUNDS if self.known else 0):
            last = self._sought(number)
            rows += last
            if not any(row["accepted"] for row in last):
                break
            if self._visited(basis=self._without_own()) is None:
                self._visited()
            self._visited()
        return rows

    def _without_own(self) -> Posterior:
        """Posterior without the atoms of these batches, except in clusters that consist of these batches alone.

        On digits of MNIST, a digit a day, in two orders and in one batch or five a day, objectives are 225 to 3,097
        nats higher than with the current posterior in four of four runs, and 14 of the 20 clusters of the first day
        keep their counts within 5 %, where 9 did.
        """
        value, shares = self.state.total.value().without_pairs(), self._shares()
        rest = value - shares.take(value.ids.tolist())
        ids = rest.ids[rest["N"] >= self.birth.min_atoms].tolist()
        return self.state.model.global_step(value.exchange(ids, rest.take(ids)))

    def _sought(self, number: int) -> list[dict[str, Any]]:
        """One round of births; history rows.

        Two clusters may each yield the same newborn cluster.  The second birth waits for the next round, by which time
        its atoms may have moved to the first.
        """
        context = plan_context(self.work, self.state)
        splits = self.birth.splits_by_new(context, self._shares(), self.refused, number)
        trials = self._trials(splits) if splits else []
        taken = self._visited(trials=trials) if trials else None
        if taken is None:
            return []
        parts = {batch: found.parts for batch, found in taken.visits}
        rows: list[dict[str, Any]] = []
        born: set[int] = set()
        for trial in trials:
            newborn = [parts[batch][trial.name] for batch in self.known]
            if not self._are_among(born, sum_of(newborn)):
                more = self._decided(trial.donors[0], newborn)
                born.update(i for row in more if row["accepted"] for i in row["others"])
                rows += more
        return rows

    def _decided(self, target: int, newborn: Sequence[Summary]) -> list[dict[str, Any]]:
        """Decide a birth that replaces the batches' share of a cluster by the newborn clusters of each batch."""
        both = zip(self.known.values(), newborn, strict=True)
        visits = [replace(found, split=target, newborn=own) for found, own in both]
        visits, rows = try_split(self.state, visits, is_new=True)
        self.known = dict(zip(self.known, visits, strict=True))
        if not any(row["accepted"] for row in rows):
            self.refused.add(target)
        return rows

    def _are_among(self, born: set[int], newborn: Summary) -> bool:
        """Whether some newborn clusters had better be united with clusters ``born`` in this round."""
        return are_alike(self.state.model, self.state.total.value().take(sorted(born)), newborn)

    def _shares(self) -> Summary:
        """Statistics of the batches' share of each cluster."""
        return sum_of([with_newer_clusters(self.state, found).summary.without_pairs() for found in self.known.values()])

    def _trials(self, splits: Sequence[Split]) -> list[Trial]:
        """Newborn clusters that small runs find in the atoms of all batches, each to be tried in place of one."""
        posterior, model = self.state.posterior, self.state.model
        # twice an even share, for clusters that some batches lack
        limit = -(-2 * splits[0].sample // len(self.known))
        taken = self._visited(Gather().also([split.target for split in splits], limit))
        if taken is None:
            return []
        shares = self._shares()
        tasks: list[Task] = []
        for split in splits:
            atoms = concatenate(list(taken.change.atoms[split.target]))
            part = model.structure.part(model, posterior, split.target)
            mass = float(shares["N"][shares.position(split.target)])
            args = (part, atoms, mass, split, self.work.seed)
            tasks.append((f"propose-lap{self.state.lap}-birth-of-new-in-cluster{split.target}", newborn_of, args))
        out = []
        window = max(LAP.in_flight, 2 * self.work.executor.n_workers)
        for split, found in zip(splits, in_order(self.work.executor, tasks, window), strict=True):
            if found is None:
                self.refused.add(split.target)
            else:
                name = f"birth-lap{self.state.lap}-new-in-cluster{split.target}"
                out.append(Trial(name, (split.target,), model.global_step(found)))
        return out

    def _visited(
        self, gather: Gather | None = None, trials: Sequence[Trial] = (), basis: Posterior | None = None
    ) -> Taken | None:
        """Visit the batches, with the current posterior unless another is given; replaces their last visits.

        Returns None, and keeps the last visits, if the objective would fall by rounding or because of the other
        ``basis``.
        """
        work, state, plan = self.work, self.state, self.state.plan
        state.plan = replace(plan, splits={}, gather=gather or Gather(), trials=(*plan.trials, *trials))
        batches = list(self.known)
        steps = LocalSteps(work, state, len(batches), is_whole=True)
        posterior = state.posterior if basis is None else basis
        taken = steps.results(steps.submit(tuple(batches), posterior, len(state.edits), attempt=2))
        state.plan = plan
        known = [with_newer_clusters(state, found).summary for found in self.known.values()]
        if not state.attempt(taken.change.delta, instead_of=known):
            return None
        for name, trial in state.trials.items():
            trial.join(taken.change.parts[name])
            for found in self.known.values():
                trial.subtract(found.parts[name])
        self.known = dict(taken.visits)
        return taken
