"""Assumed density filtering: every atom is seen once (Tank, Foti & Fox 2015, Alg. 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core import RunningTotal, Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.execute import Task
from bnp_dask.inference.drive import Flight, OneByOne, Results, Step, Told, drive
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.streaming.task import SeatedGiven, Site, check_urn, seat_task, settle, threshold, with_site
from bnp_dask.inference.streaming.unite import grown, unions
from bnp_dask.inputs import hold, number_from, share_below_one
from bnp_dask.moves import record


@register
@dataclass(frozen=True)
class Filter:
    """One pass over batches in their order: each atom is assigned given the atoms before it, added, and forgotten.

    Parameters
    ----------
    epsilon
        Probability of a new cluster above which an atom opens one, 0 to less than 1.  Default: the discount sigma of
        the prior, or 0.01 if sigma is less: a cluster of less mass than sigma gets no further atom.
    merge
        Nats by which the log probability of one united cluster must exceed the log probability of two, to unite them
        after a batch; a large number unites only clear cases.  None: clusters are never united.

    Notes
    -----
    For ``DPMixture``, ``PitmanYorMixture``, ``NGGPMixture`` and ``NRMMixture`` with any likelihood.  Its memory does
    not grow with the number of atoms.  Batches are seated one after the other, on workers if there are any.  The
    history's objective is the log predictive density of the atoms so far, each given the atoms before it: an estimate
    of the log evidence, in nats.

    ``init=FromPosterior(p)`` continues from another posterior, whose statistics count as earlier atoms.

    Columns of the history besides the usual: ``log_predictive``, the log predictive density of all batches so far, in
    nats.

    References
    ----------
    Tank, Foti & Fox 2015, Alg. 1, whose first atom opens the first cluster; merges: section 3.3.
    """

    epsilon: float | None = None
    merge: float | None = None
    laps = 1
    window = 1
    decides_moves = False

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            hold(self, "epsilon", share_below_one("epsilon", self.epsilon, "a probability"))
        if self.merge is not None:
            hold(self, "merge", number_from("merge", self.merge, 0.0))

    def check(self, model: Any) -> None:
        """SettingError unless the model can be filtered."""
        check_urn(model, "Filter()")

    def run(self, work: Work, state: State) -> Iterator[Step]:
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Results[Site]]:
        """Groups of one batch each, given all batches before it."""
        self.check(work.model)
        if work.moves:
            raise SettingError("Filter() has no objective to decide moves with; unite clusters with Filter(merge=...)")
        if state.step == 0:
            _begin(state)
        epsilon = threshold(work.model, self.epsilon)

        def tasks(batches: tuple[int, ...]) -> list[Task]:
            return [seat_task(work, state, batch, SeatedGiven(state.total.value()), epsilon) for batch in batches]

        order = np.arange(work.source.n_batches)
        return Flight(work, state, order, window=1, size=1, visits=OneByOne(work, state, tasks))

    def fold(self, work: Work, state: State, group: Results[Site]) -> Told:
        """Add the batch's site, and unite clusters."""
        before, moves = state.total.value(), list[dict[str, Any]]()
        for batch, site in group.found:
            state.total, state.memory.next_id = with_site(state.total, site, state.memory.next_id)
            state.terms = {"log_predictive": state.terms.get("log_predictive", 0.0) + site.log_predictive}
            moves = self._unite(work, state, before, last=batch + 1 == work.source.n_batches)
        settle(work, state)
        return {"exact": False, "action": "folded", "moves": moves}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        state.finished = "filtered"
        return told

    def _unite(self, work: Work, state: State, before: Summary, last: bool) -> list[dict[str, Any]]:
        """Unite clusters that are one, among the new and the grown ones; at the end of the stream, among all."""
        if self.merge is None:
            return []
        out = []
        for _ in range(state.total.high.n_clusters):
            total = state.total.value()
            found = unions(work.model, total, float(self.merge), total.ids if last else grown(before, total))
            for keep, drop, gain in found:
                total = united(total, keep, drop)
                out.append(record("merge", (keep, drop), (), gain, True, "the evidence of the union is greater"))
            if not found:
                break
            state.total = RunningTotal(total)
        return out


def _begin(state: State) -> None:
    """Set the total at the start of a run: the summary behind the posterior, without empty clusters."""
    start = state.posterior.summary
    assert start is not None
    held = start.ids[start["N"] > 0.0]
    state.total = RunningTotal(start.take(held).without_pairs())
    state.memory.next_id = int(held.max(initial=-1)) + 1


def united(total: Summary, keep: int, drop: int) -> Summary:
    """Statistics after one cluster absorbed another; entropies add up, as they would if no atom belonged to both."""
    pair = np.array([[keep, drop]])
    place = total.positions(pair[0])
    tracked = [name for name, field in total.fields.items() if field.has_pairs]
    values = {name: total[name][place].sum(axis=0, keepdims=True) for name in tracked}
    return replace(total.with_pairs(pair), pair_values=values).merge(keep, drop).without_pairs()
