"""One lap of moves: plan at its start, decide at its end (on the client, from exact whole-data statistics)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.core.edits import Edit, Exchange, Merge, Take, Unite, follow
from bnp_dask.core.finite import require_finite_terms
from bnp_dask.core.summary import Summary
from bnp_dask.errors import NumericalError, SummaryError
from bnp_dask.execute.base import Task
from bnp_dask.execute.ordered import in_order
from bnp_dask.model import Model
from bnp_dask.moves.base import (
    DOCUMENTS,
    WHOLE,
    Memory,
    Move,
    Parts,
    Plan,
    PlanContext,
    Planning,
    Proposal,
    Sweep,
    record,
)
from bnp_dask.moves.births.rejected import note_rejected
from bnp_dask.moves.lap_policy import DECISION, LAP
from bnp_dask.moves.merge import Merge as Pairing
from bnp_dask.moves.merge import pair_empty
from bnp_dask.moves.when import acts
from bnp_dask.structure.base import without_data

BIRTHS = ("birth", "window", DOCUMENTS)
"""Kinds of proposals that make more clusters; a window of a sequence is a birth, and so are topics of documents."""

SORT = "sort"
"""Kind of the history rows of a reordering of clusters; their targets are the new order."""


def plan_lap(moves: Sequence[Move], context: PlanContext) -> Plan:
    """Let every move plan; the clusters that it takes are then no longer free.

    A new candidate that takes from all clusters leaves none to others.  Births that look at neighbours come before
    deletes that are being refined, because these would hold the neighbours.  Then come other births, whose atoms are
    gathered already, then deletes that a crowd of small topics needs.  The other moves alternate in going first.  The
    first lap has no whole-data statistics yet, so it only prepares the next.  A move that does not act in this lap
    proposes nothing; a move that does not act in the next prepares nothing.
    """
    in_turn = list(moves) if context.lap % 2 else list(reversed(moves))
    order = [move for move in in_turn if acts(move, context.lap)]
    if context.lap > 0:
        begun = {"delete"} if context.memory.sweeps.keys() - {WHOLE} else set()
        urgent = {move.kind for move in order if move.is_urgent(context)}
        turns = sorted(order, key=lambda m: _place(m.kind, begun, urgent))
        _plan_in_turn([move.plan(context) for move in turns], context)
        if any(move.kind == Pairing.kind for move in order):
            pair_empty(context)
    for move in in_turn:
        if acts(move, context.lap + 1):
            move.prepare(context)
    return context.plan()


def _place(kind: str, begun: Container[str], urgent: Container[str]) -> tuple[bool, ...]:
    """Sort key of moves that plan in turn: the smallest goes first."""
    is_birth = kind == "birth"
    return kind != DOCUMENTS, not is_birth or kind not in urgent, kind not in begun, not is_birth, kind not in urgent


def _plan_in_turn(turns: Sequence[Planning], context: PlanContext) -> None:
    """Let moves plan one after the other, or let each begin while tasks of earlier moves run."""
    together = context.side_by_side
    under_way = []
    for place, planning in enumerate(turns):
        # tasks of the first move are running by then; the longest tasks are among the later ones, and workers would
        # idle beside a long task that begins last
        under_way.append((planning, _run(next(planning, None), context, first=place > 0)))
        if not together:
            _finish(*under_way.pop(), context)
    for planning, found in under_way:
        _finish(planning, found, context)


def _run(tasks: Iterable[Task] | None, context: PlanContext, first: bool = False) -> Iterator[Any] | None:
    """Submit tasks, ahead of waiting ones if ``first``; returns an iterator that waits for their results."""
    window = max(LAP.in_flight, 2 * context.executor.n_workers)
    return None if tasks is None else in_order(context.executor, tasks, window, first=first)


def _finish(planning: Planning, found: Iterator[Any] | None, context: PlanContext) -> None:
    """Wait for the results of a move's tasks, and run further tasks until it asks for none."""
    while found is not None:
        try:
            found = _run(planning.send(list(found)), context)
        except StopIteration:
            return


@dataclass(frozen=True, eq=False)
class Decision:
    """Outcome of a lap's proposals.

    ``edits`` bring any summary of the lap up to date; ``records`` are history rows, one per proposal, and one more if
    sorting the clusters would change the objective.
    """

    edits: list[Edit]
    records: list[dict[str, Any]]


def decide(model: Model, value: Summary, parts: Parts, plan: Plan, memory: Memory, spare: float = 0.0) -> Decision:
    """Accept each proposal that raises the exact whole-data objective, one after the other.

    Clusters that stand for no atom (``LAP.nobody``) may go even at a small cost (``DECISION.negligible``), as long as
    the gains of accepted proposals and ``spare`` cover it: over the step and its decisions the objective never falls.

    Parameters
    ----------
    model
        The model.
    value
        Whole-data summary at the end of the lap, with the lap's pairs tracked.
    parts
        Whole-data statistics of the lap's trials.
    plan
        Plan of the lap.
    memory
        Memory that records failures.
    spare
        Nats by which the preceding step raised the objective.
    """
    judge = _Judge(model, value, parts, max(0.0, spare))
    # proposals that take from all clusters come first; they can make some of the others impossible
    in_turn = sorted(plan.proposals, key=lambda proposal: (proposal.again, len(proposal.targets) > 0))
    records = [*plan.given_up, *[judge.consider(proposal, memory) for proposal in in_turn], *judge.sort()]
    memory.forget_dead(judge.value.ids)
    return Decision(judge.edits, records)


def gains_of(model: Model, value: Summary, parts: Parts, edits: Sequence[Merge | Exchange]) -> list[float]:
    """Change of the exact whole-data objective by each edit alone, nats; no edit is applied.

    ``parts`` are the whole-data statistics of the trials named by edits; ``value`` tracks the pairs that edits merge.
    """
    judge = _Judge(model, value, parts, 0.0)
    return [judge.gain_of(edit, *judge.touched(edit)).gain for edit in edits]


@dataclass(frozen=True, eq=False)
class _Tried:
    """Gain of an edit in nats; the summary without data, its terms, and data terms of changed clusters after it."""

    gain: float
    light: Summary
    terms: dict[str, float]
    data: dict[int, float]


class _Judge:
    """The state between decisions: the summary so far, and the terms of its objective.

    The data term is a sum over clusters, and a proposal touches few, so only the terms of these are recomputed.
    """

    def __init__(self, model: Model, value: Summary, parts: Parts, spare: float) -> None:
        self.model, self.parts, self.spare = model, parts, spare
        self.edits: list[Edit] = []
        self.exchanged: set[int] = set()
        self.value = value
        self.light = without_data(model, value)
        self.light_parts: Parts = {name: without_data(model, part) for name, part in parts.items()}
        self.data = self._data_terms(value)
        self.terms = model.allocation_terms(self.light)

    def consider(self, proposal: Proposal, memory: Memory) -> dict[str, Any]:
        """Try one proposal on the current statistics; returns its history row."""
        donors = proposal.edit.donors if isinstance(proposal.edit, Exchange) else ()
        if not np.isin(proposal.targets, self.value.ids).all() or not self.exchanged.isdisjoint(donors):
            return _row(proposal, None, False, "a cluster it names was changed by another move of this lap")
        counts = [float(self.value["N"][self.value.position(t)]) for t in proposal.targets]
        counts = counts or [float(self.value["N"].sum())]  # for a change of all clusters
        try:
            fewer = proposal.kind not in BIRTHS
            gain, accepted = self._try(
                proposal.edit, *self.touched(proposal.edit), fewer, _only_empty(proposal, counts)
            )
        except SummaryError:
            return _row(proposal, None, False, "a cluster it names was changed by another move of this lap")
        except NumericalError as error:  # a gain that is not finite is none; the state is unchanged
            memory.remember_failure(proposal.kind, proposal.targets, counts)
            return _row(proposal, None, False, f"refused: {error}")
        if accepted:
            self.exchanged.update(donors)
            memory.sweeps.pop(_swept(proposal), None)
            memory.failures.pop((proposal.kind, proposal.targets), None)
            return _row(proposal, gain, True, "the objective rises" if gain > 0 else "as good with fewer clusters")
        if self._sweep_again(proposal, gain, counts, memory):
            return _row(proposal, gain, False, "the objective would fall; tried again with re-estimated clusters")
        if proposal.kind in BIRTHS and isinstance(proposal.edit, Exchange):
            note_rejected(memory, proposal.edit.donors, self.parts[proposal.edit.trial], gain)
        alone = proposal.kind == "delete" and len(counts) > 1  # deletes that failed together may succeed alone
        times = proposal.weight if _is_clear(proposal, gain, counts) else 1
        for targets, own in (
            [((t,), [n]) for t, n in zip(proposal.targets, counts, strict=True)]
            if alone
            else [(proposal.targets, counts)]
        ):
            memory.remember_failure(proposal.kind, targets, own, times)
        return _row(proposal, gain, False, "the objective would fall")

    def sort(self) -> list[dict[str, Any]]:
        """Put the largest cluster first if that raises the objective (sticks are broken in order); its history row.

        No row if clusters are in that order already, or if the model knows no order.
        """
        order = np.argsort(-self.value["N"], kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            return []
        ids = tuple(int(i) for i in self.value.ids[order])
        gain, accepted = self._try(Take(ids), (), None)
        if not accepted and gain >= -DECISION.rounding * self._size(self.terms):
            return []
        why = "the objective rises" if accepted else "the objective would fall"
        return [record(SORT, ids, (), gain, accepted, why)]

    def touched(self, edit: Merge | Unite | Exchange) -> tuple[tuple[int, ...], Summary]:
        """Ids of the clusters whose statistics an edit replaces, and the statistics of the clusters in their place."""
        if isinstance(edit, Exchange):
            return edit.donors, self.parts[edit.trial]
        pair = self.value.without_pairs().take([edit.keep, edit.drop])
        return (edit.keep, edit.drop), pair.unite(edit.keep, edit.drop, None)

    def gain_of(self, edit: Edit, gone: tuple[int, ...], new: Summary | None) -> _Tried:
        """Gain and terms of an edit that replaces the statistics of the clusters ``gone`` by ``new``."""
        light = edit.apply(self.light, self.light_parts)
        terms = self.model.allocation_terms(light)
        data = {} if new is None else self._data_terms(new)
        gain = sum(terms[name] - self.terms[name] for name in terms)
        gain += sum(data.values()) - sum(self.data[i] for i in gone)
        require_finite_terms({type(edit).__name__: gain}, "the gain of the edit")
        return _Tried(gain, light, terms, data)

    def _try(
        self, edit: Edit, gone: tuple[int, ...], new: Summary | None, fewer: bool = False, empty: bool = False
    ) -> tuple[float, bool]:
        tried = self.gain_of(edit, gone, new)
        gain = tried.gain
        # an empty cluster of a DP mixture costs nothing; of two equally good states the smaller is kept
        size = self._size(tried.terms)
        lost = max(DECISION.rounding * size, min(self.spare, DECISION.negligible * size) if empty else 0.0)
        if gain <= (-lost if fewer else lost):
            return gain, False
        self.spare = max(0.0, self.spare + gain)
        self.edits.append(edit)
        self.value, self.light, self.terms = edit.apply(self.value, self.parts), tried.light, tried.terms
        self.parts, self.light_parts = follow(self.parts, edit), follow(self.light_parts, edit)
        for i in gone:
            del self.data[i]
        self.data.update(tried.data)
        return gain, True

    def _size(self, terms: Mapping[str, float]) -> float:
        """Magnitude of the objective's terms, nats; ``terms`` are all but the data terms."""
        return sum(abs(t) for t in terms.values()) + abs(sum(self.data.values()))

    def _data_terms(self, summary: Summary) -> dict[int, float]:
        terms = self.model.best_data_terms(summary)
        return {int(i): float(t) for i, t in zip(summary.ids, terms, strict=True)}

    def _sweep_again(self, proposal: Proposal, gain: float, counts: list[float], memory: Memory) -> bool:
        if proposal.sweeps == 1 or not isinstance(proposal.edit, Exchange):
            return False
        target = _swept(proposal)
        before = memory.sweeps.pop(target, None)
        if _is_clear(proposal, gain, counts):
            return False
        tried = 1 if before is None else before.tried + 1
        if before is None:
            step, stuck = 0.0, -gain > DECISION.hopeless * sum(counts)
        else:
            step = gain - before.gain
            stuck = gain + step * _steps_to_come(step, before.step) < 0
        if tried >= proposal.sweeps or stuck:
            return False
        receivers = () if target == WHOLE else proposal.others  # newborn clusters exist only in this memory
        memory.sweeps[target] = Sweep(receivers, self.parts[proposal.edit.trial], gain, step, tried)
        return True


def _swept(proposal: Proposal) -> int:
    """Key under which a proposal that is tried again is remembered."""
    return proposal.targets[0] if proposal.targets else WHOLE


def _only_empty(proposal: Proposal, counts: list[float]) -> bool:
    """Whether a proposal only removes clusters that stand for no atom."""
    if proposal.kind == "merge":
        return min(counts) < LAP.nobody
    return proposal.kind == "delete" and max(counts) < LAP.nobody


def _is_clear(proposal: Proposal, gain: float, counts: list[float]) -> bool:
    """Whether a proposal made when clusters were calm lacks more than further laps or attempts could gain."""
    return proposal.weight > 1 and len(counts) == 1 and -gain > DECISION.clear * sum(counts)


def _steps_to_come(step: float, last: float) -> float:
    """Sum of the steps still to come, in units of this step, if their sizes fall by a constant ratio.

    ``last`` is the step before, 0 if there was none.  The ratio is taken to be larger than the two steps show.
    """
    ratio = min(DECISION.slowest, DECISION.patience * step / last) if last > 0 else DECISION.slowest
    return ratio / (1.0 - ratio) if step > 0 else 0.0


def _row(proposal: Proposal, gain: float | None, accepted: bool, why: str) -> dict[str, Any]:
    return record(
        "birth" if proposal.kind in BIRTHS else proposal.kind, proposal.targets, proposal.others, gain, accepted, why
    )
