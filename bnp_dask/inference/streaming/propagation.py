"""Expectation propagation with the sites of a batch's atoms in the memo (Tank, Foti & Fox 2015, Alg. 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.allocation import SampledAllocation
from bnp_dask.core import InsertEmpty, RunningTotal, Summary, Take, Unite, register, sum_of
from bnp_dask.errors import SettingError
from bnp_dask.execute import Task, in_order
from bnp_dask.inference.drive import Flight, OneByOne, Results, Step, Told, drive
from bnp_dask.inference.lap import trim
from bnp_dask.inference.state import State, Work, recall, recall_more, remember
from bnp_dask.inference.streaming.task import SeatedGiven, Site, check_urn, seat_task, settle, threshold
from bnp_dask.inference.streaming.unite import (
    ONE,
    OTHER,
    concerned,
    generator,
    grown,
    look,
    pair_gains,
    rows,
    split_gains,
    take_apart,
    unions,
    with_cluster,
)
from bnp_dask.inference.visit import request_of
from bnp_dask.inputs import hold, number_from, share_below_one, whole_number
from bnp_dask.kernels import RaggedResp
from bnp_dask.model import Model
from bnp_dask.moves import best_share, matched_in_turn, record
from bnp_dask.structure import Visit, without_data

SEATS = "seats/"
"""Prefix of the arrays that keep the responsibilities of a batch's atoms."""

BLOCK = 16
"""Clusters opened by a batch that are compared at once with the clusters of its group; results do not depend on it."""


@register
@dataclass(frozen=True)
class ExpectationPropagation:
    """Expectation propagation: take an atom's share out of the total, seat it given all others, put it back.

    Parameters
    ----------
    laps
        Passes over the data at most; the first is the pass of :class:`~bnp_dask.inference.streaming.Filter`.
    window
        Batches that are seated side by side, given the same total.  Results depend on the window, not on the number of
        workers.
    epsilon
        Probability of a new cluster above which an atom opens one, and mass below which a cluster is given up, 0 to
        less than 1.  Default: the discount sigma of the prior, or 0.01 if sigma is less, as in
        :class:`~bnp_dask.inference.streaming.Filter`.
    merge
        Nats by which the log probability of one united cluster must exceed the log probability of two, to unite them:
        after each window for clusters that were opened in it or grew by half, and after each lap for all.  After each
        lap clusters are also split that are more probable as two.  None: clusters are neither united nor split, as in
        Alg. 2, unless two batches of one window opened them.
    count_tolerance
        Stop when a lap changes no cluster's count by more than this share of all atoms, and none came or went.

    Notes
    -----
    For ``DPMixture``, ``PitmanYorMixture``, ``NGGPMixture`` and ``NRMMixture`` with any likelihood.  This is Alg. 2 for
    any size of batches: besides the statistics of a batch the memo keeps the responsibilities of its atoms, so that
    each atom leaves alone and is seated given all others, including the others of its batch.  With ``window=1,
    merge=None`` the size of batches only changes rounding; batches of a window do not see each other's changes.

    Atoms that move one by one do not take a cluster apart.  So each lap ends with a look at the clusters of one batch,
    chosen at random: if its atoms of a cluster are more probable as two, all batches are read once more, their atoms of
    the cluster join one of the halves, and the evidence of both decides.

    Shares of an atom in united clusters are added when its batch is visited again.  Until then the log probability that
    the union is empty is the sum of both, an upper bound.

    The history's objective is the log predictive density of the batches so far in the lap, given all others, in nats:
    it is no bound, and need not rise.  Columns besides the usual: ``log_predictive``, the same number.

    References
    ----------
    Tank, Foti & Fox, "Streaming variational inference for Bayesian nonparametric mixture models", 2015: Alg. 2, with
    the seating of Alg. 1.
    """

    laps: int = 20
    window: int = 8
    epsilon: float | None = None
    merge: float | None = 0.0
    count_tolerance: float = 1e-4
    decides_moves = False

    def __post_init__(self) -> None:
        for name in ("laps", "window"):
            hold(self, name, whole_number(name, getattr(self, name), 1))
        if self.epsilon is not None:
            hold(self, "epsilon", share_below_one("epsilon", self.epsilon, "a probability"))
        if self.merge is not None:
            hold(self, "merge", number_from("merge", self.merge, 0.0))
        hold(self, "count_tolerance", number_from("count_tolerance", self.count_tolerance, 0.0))

    def check(self, model: Any) -> None:
        """SettingError unless the model can be filtered."""
        check_urn(model, "ExpectationPropagation()")

    def run(self, work: Work, state: State) -> Iterator[Step]:
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Results[Site]]:
        """Groups of one window each, seated with one total."""
        self.check(work.model)
        if work.moves:
            raise SettingError("ExpectationPropagation() has no objective to decide moves with; leave moves out")
        if state.step == 0:
            _begin(state)
        if state.position == 0:
            state.terms = {"log_predictive": 0.0}

        def tasks(batches: tuple[int, ...]) -> list[Task]:
            total = state.total.value()
            givens = [_given(work, state, batch, total) for batch in batches]
            epsilon = threshold(work.model, self.epsilon)
            return [seat_task(work, state, b, given, epsilon) for b, given in zip(batches, givens, strict=True)]

        order, visits = np.arange(work.source.n_batches), OneByOne[Site](work, state, tasks)
        return Flight(work, state, order, self.window, size=self.window, visits=visits)

    def fold(self, work: Work, state: State, group: Results[Site]) -> Told:
        """Exchange the batches' sites in order, and give up clusters that hold too little.

        Workers seat later batches meanwhile: a site does not change the total that the other batches of its group were
        given.
        """
        before, newborn = state.total.value(), list[int]()
        known = before.ids
        for batch, site in group.found:
            if state.visits[batch] >= 0:
                state.total.subtract(recall(work, state, batch))
            mine, names = self._named(work, state, site, known, newborn)
            state.total.add(mine)
            remember(work, state, batch, Visit(mine, {}), more=seats_to_arrays(site.resp, names))
            state.terms = {"log_predictive": state.terms["log_predictive"] + site.log_predictive}
        self._give_up(work.model, state)
        moves = _unite(work.model, state, self.merge, before)
        settle(work, state)
        return {"exact": False, "action": "folded", "moves": moves}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """Unite and split clusters, and stop if no count changes any more."""
        moves = _unite(work.model, state, self.merge, None)
        if self.merge is not None:
            moves += _split(work, state, self.window)
        if moves:
            settle(work, state)
        counts, old = state.total.value()["N"], state.lap_counts
        if old is not None and len(old) == len(counts):
            moved = float(np.abs(counts - old).max(initial=0.0))
            if moved <= self.count_tolerance * counts.sum():
                state.finished = "converged"
        state.lap_counts = counts
        if state.finished is None and state.lap + 1 >= self.laps:
            state.finished = "laps"
        trim(state)
        return {**told, "moves": [*told["moves"], *moves]}

    def _named(
        self, work: Work, state: State, site: Site, known: np.ndarray, newborn: list[int]
    ) -> tuple[Summary, np.ndarray]:
        """Statistics of the site for the clusters of the total, which gains the batch's new clusters, and the site's
        ids.

        A new cluster becomes one of ``newborn``, opened by other batches of the group, if that is more probable; two
        clusters of one batch stay two.
        """
        total, summary = state.total.value(), site.summary
        names = _same(work.model, total, newborn, summary, len(known))
        for at in np.flatnonzero(names < 0):
            names[at] = state.memory.next_id
            state.memory.next_id += 1
            newborn.append(int(names[at]))
        summary = replace(summary, ids=np.concatenate([known, names]))
        new = names[~np.isin(names, total.ids)].tolist()
        if new:
            state.total = state.total.insert_empty(np.array(new))
            state.edits.append(InsertEmpty(tuple(new)))
        ids = state.total.high.ids
        missing = ids[~np.isin(ids, summary.ids)]
        return summary.insert_empty(missing).take(ids), summary.ids

    def _give_up(self, model: Model, state: State) -> None:
        """Leave out clusters that hold less than epsilon (Alg. 2, last line), from the total and from every site."""
        n, least = state.total.value_of("N"), threshold(model, self.epsilon)
        if (n < least).any():
            edit = Take(tuple(int(i) for i in state.total.high.ids[n >= least]))
            state.total.apply([edit])
            state.edits.append(edit)


def _unite(model: Model, state: State, least: float | None, before: Summary | None) -> list[dict[str, Any]]:
    """Unite clusters whose union gains more than ``least`` nats, in the total and in every site; records of the unions.

    No cluster is united for None.  Compared are clusters that grew since ``before`` with all others; without ``before``
    all clusters with each other.
    """
    out: list[dict[str, Any]] = []
    if least is None:
        return out
    for _ in range(state.total.high.n_clusters):
        total = state.total.value()
        found = unions(model, total, least, total.ids if before is None else grown(before, total))
        if not found:
            break
        edits = [Unite(keep, drop, best_share(total, keep, drop)) for keep, drop, _ in found]
        state.total.apply(edits)
        state.edits.extend(edits)
        for keep, drop, gain in found:
            out.append(record("merge", (keep, drop), (), gain, True, "the evidence of the union is greater"))
    return out


def _split(work: Work, state: State, window: int) -> list[dict[str, Any]]:
    """Split clusters that are two, in the total and in every site; records of the splits.

    One batch proposes, and all batches are read once more if it does; see :mod:`bnp_dask.inference.streaming.unite`.
    If a batch cannot be read, nothing is split; the next lap handles the batch.
    """
    total, model, lap = without_data(work.model, state.total.value()), work.model, state.lap
    n_batches = work.source.n_batches
    leading = int(generator(work.seed, lap).integers(n_batches))
    seats = _seats(work, state, leading, total)
    if seats is None or not isinstance(model.allocation, SampledAllocation):
        return []
    args = (model, total, seats, lap, request_of(work, state, leading))
    halves = next(iter(in_order(work.executor, iter([(f"look-lap{lap}-batch{leading}", look, args)]), 1)))
    if halves is None or not len(halves.ids):
        return []
    at, asked = total.positions(halves.ids), list[int]()

    def tasks() -> Iterator[Task]:
        for batch in range(n_batches):
            seats = _seats(work, state, batch, total)
            if seats is not None:
                asked.append(batch)
                args = (model, halves, at, seats, lap, request_of(work, state, batch))
                yield f"apart-lap{lap}-batch{batch}", take_apart, args

    told = list(in_order(work.executor, tasks(), window))
    found = {batch: one for batch, one in zip(asked, told, strict=True) if one is not None}
    if len(found) < len(asked):
        return []
    whole = sum_of([one.summary for one in found.values()])
    gains = split_gains(model, whole, halves.ids, total)
    accepted = np.flatnonzero(gains > 0.0)
    new = state.memory.next_id + np.arange(len(accepted))
    if not len(new):
        return []
    state.memory.next_id += len(new)
    state.total = state.total.insert_empty(new)
    state.edits.append(InsertEmpty(tuple(new.tolist())))
    pairs = list(zip(accepted.tolist(), new.tolist(), strict=True))
    for batch, one in found.items():
        seats, before = _seats(work, state, batch, total), recall(work, state, batch)
        assert seats is not None
        mine = before.value() if isinstance(before, RunningTotal) else before
        entries, pair = concerned(seats, at)
        moved = np.unpackbits(one.halves, count=len(entries)) == OTHER
        for number, (p, other) in enumerate(pairs):
            mine = with_cluster(mine, int(halves.ids[p]), rows(one.summary, np.array([2 * p + ONE])))
            mine = with_cluster(mine, other, rows(one.summary, np.array([2 * p + OTHER])))
            seats.index[entries[moved & (pair == p)]] = total.n_clusters + number
        state.total.subtract(before)
        state.total.add(mine)
        remember(work, state, batch, Visit(mine, {}), more=seats_to_arrays(seats, np.concatenate([total.ids, new])))
    why = "the evidence of the halves is greater"
    return [record("birth", (int(halves.ids[p]),), (other,), float(gains[p]), True, why) for p, other in pairs]


def _same(model: Model, total: Summary, newborn: list[int], summary: Summary, first: int) -> np.ndarray:
    """Ids of the clusters among ``newborn``, clusters of a total, that match the clusters of a summary from position
    ``first`` on, ``(J,)``; -1 if none does."""
    others, names = np.array(newborn, np.int64), np.full(summary.n_clusters - first, -1)
    for start in range(0, len(names) if len(others) else 0, BLOCK):
        own = np.arange(start, min(start + BLOCK, len(names)))
        a, b = rows(total, total.positions(others)), rows(summary, first + own)
        gains = pair_gains(model, a, b, total)

        def gains_of(j: int, free: list[int], gains: np.ndarray = gains) -> np.ndarray:
            return gains[free, j]

        best = np.array(matched_in_turn(len(own), len(others), gains_of), np.int64)
        names[own[best >= 0]] = others[best[best >= 0]]
        others = others[~np.isin(others, names)]
    return names


def _begin(state: State) -> None:
    """Begin with a total without clusters; SettingError if the run starts from clusters that hold atoms."""
    start = state.posterior.summary
    assert start is not None
    if start["N"].any():
        raise SettingError(
            "ExpectationPropagation() starts from no cluster at all, so that the total is the sum of its sites; leave "
            "init out, or go on from a posterior with Filter()"
        )
    state.total = state.total.copy()
    state.total.apply([Take(())])
    state.memory.next_id = 0


def _given(work: Work, state: State, batch: int, total: Summary) -> SeatedGiven:
    """Statistics given which a batch is seated: the total, which its atoms leave one by one after its first visit."""
    if state.visits[batch] < 0:
        return SeatedGiven(total, keep=True)
    before = _seats(work, state, batch, total)
    if before is None:
        rest = state.total.copy()
        rest.subtract(recall(work, state, batch))
        return SeatedGiven(rest.value(), keep=True)
    return SeatedGiven(total, before, keep=True)


def _seats(work: Work, state: State, batch: int, total: Summary) -> RaggedResp | None:
    """Responsibilities of a batch's atoms for the clusters of the total, ``(n, K)``; None if it left none, as one that
    was left out."""
    kept = recall_more(work, state, batch, SEATS)
    into = _united_since(state, batch)
    if "id" not in kept:
        return None
    ids = kept["id"].copy()
    for drop, keep in into:
        ids[ids == drop] = keep
    there = np.isin(ids, total.ids)
    n_atoms = len(kept["offsets"]) - 1
    rows = np.repeat(np.arange(n_atoms), np.diff(kept["offsets"]))[there]
    entries = kept["value"][there], (rows, total.positions(ids[there]))
    seats = sparse.coo_array(entries, shape=(n_atoms, total.n_clusters)).tocsr()  # adds the shares of united clusters
    return RaggedResp(seats.indptr.astype(np.int64), seats.indices.astype(np.int64), seats.data, total.n_clusters)


def _united_since(state: State, batch: int) -> list[tuple[int, int]]:
    """Clusters that others absorbed since a batch's last visit, and these others, in order."""
    edits = state.edits[int(state.seen[batch]) :]
    return [(edit.drop, edit.keep) for edit in edits if isinstance(edit, Unite)]


def seats_to_arrays(resp: RaggedResp | None, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Responsibilities of a batch's atoms as named arrays, with ids of clusters in place of positions."""
    if resp is None:
        return {}
    named = {"offsets": resp.offsets, "id": ids[resp.index], "value": resp.value}
    return {f"{SEATS}{name}": array for name, array in named.items()}
