"""One lap of moves: plan at its start, decide at its end (on the client, from exact whole-data statistics)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.errors import SummaryError
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import Memory, Move, Parts, Plan, PlanContext, Proposal, Sweep, record
from bnp_dask.summary import Edit, Exchange, Summary, Take

ROUNDING = 1e-12
"""Share of the objective's terms below which a gain is rounding."""

SMALL_GAIN = 0.1
"""A rejected delete is refined further while a sweep makes up at least this share of what it lacks."""

HOPELESS = 1.0
"""A delete that lacks more nats than this per atom of its target is not refined."""


def plan_lap(moves: Sequence[Move], context: PlanContext) -> Plan:
    """Ask every move; which one chooses its clusters first alternates from lap to lap."""
    order = list(moves) if context.lap % 2 else list(reversed(moves))
    for move in order:
        move.plan(context)
    return context.plan()


@dataclass(frozen=True, eq=False)
class Decision:
    """What a lap's proposals came to.

    ``edits`` bring any summary of the lap up to date; ``posterior`` and ``terms`` belong to the new whole-data
    summary; ``records`` are history rows, one per proposal; ``n_accepted`` counts.
    """

    edits: list[Edit]
    posterior: Posterior
    terms: dict[str, float]
    records: list[dict[str, Any]]
    n_accepted: int


def decide(model: Model, value: Summary, parts: Parts, plan: Plan, memory: Memory) -> Decision:
    """Accept each proposal that raises the exact whole-data objective, one after the other.

    Parameters
    ----------
    model
        The model.
    value
        Whole-data summary at the end of the lap, with the lap's pairs tracked.
    parts
        Whole-data statistics of the lap's trials.
    plan
        What was tried.
    memory
        Learns of failures.
    """
    judge = _Judge(model, value, parts)
    records = [*plan.given_up, *[judge.consider(proposal, memory) for proposal in plan.proposals]]
    judge.sort()
    n_accepted = sum(r["accepted"] for r in records)
    memory.forget_dead(judge.value.ids)
    return Decision(judge.edits, judge.posterior, judge.terms, records, n_accepted)


class _Judge:
    """The state between decisions: the summary so far, its posterior and objective."""

    def __init__(self, model: Model, value: Summary, parts: Parts) -> None:
        self.model, self.parts = model, parts
        self.edits: list[Edit] = []
        self.value = value
        self.posterior = model.global_step(value)
        self.terms = model.elbo(self.posterior, value)

    def consider(self, proposal: Proposal, memory: Memory) -> dict[str, Any]:
        """Try one proposal on the statistics as they are now; its history row."""
        counts = self._counts(proposal.targets)
        if counts is None:
            return self._row(proposal, None, False, "a cluster it names was changed by another move of this lap")
        try:
            candidate = proposal.edit.apply(self.value, self.parts)
        except SummaryError:
            return self._row(proposal, None, False, "a cluster it names was changed by another move of this lap")
        gain, accepted = self._try(proposal.edit, candidate)
        if accepted:
            memory.sweeps.pop(proposal.targets[0], None)
            return self._row(proposal, gain, True, "the objective rises")
        if self._sweep_again(proposal, gain, counts, memory):
            return self._row(proposal, gain, False, "the objective would fall; tried again with re-estimated clusters")
        memory.remember_failure(proposal.kind, proposal.targets, counts)
        return self._row(proposal, gain, False, "the objective would fall")

    def sort(self) -> None:
        """Largest cluster first, where that raises the objective (sticks are broken in order)."""
        order = np.argsort(-self.value["N"], kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            return
        edit = Take(tuple(int(i) for i in self.value.ids[order]))
        self._try(edit, edit.apply(self.value, self.parts))

    def _try(self, edit: Edit, candidate: Summary) -> tuple[float, bool]:
        posterior = self.model.global_step(candidate)
        terms = self.model.elbo(posterior, candidate)
        gain = sum(terms[name] - self.terms[name] for name in terms)
        if gain <= ROUNDING * sum(abs(t) for t in terms.values()):
            return gain, False
        self.edits.append(edit)
        self.value, self.posterior, self.terms = candidate, posterior, terms
        return gain, True

    def _sweep_again(self, proposal: Proposal, gain: float, counts: list[float], memory: Memory) -> bool:
        if proposal.sweeps == 1 or not isinstance(proposal.edit, Exchange):
            return False
        target = proposal.targets[0]
        before = memory.sweeps.pop(target, None)
        tried = 1 if before is None else before.tried + 1
        if before is None:
            stuck = -gain > HOPELESS * sum(counts)
        else:
            stuck = gain - before.gain < SMALL_GAIN * abs(gain)
        if tried >= proposal.sweeps or stuck:
            return False
        memory.sweeps[target] = Sweep(proposal.others, self.parts[proposal.edit.trial], gain, tried)
        return True

    def _counts(self, targets: tuple[int, ...]) -> list[float] | None:
        if not np.isin(targets, self.value.ids).all():
            return None
        return [float(self.value["N"][self.value.position(t)]) for t in targets]

    def _row(self, proposal: Proposal, gain: float | None, accepted: bool, why: str) -> dict[str, Any]:
        return record(proposal.kind, proposal.targets, proposal.others, gain, accepted, why)
