"""Every recorded gain is the difference of two objectives computed from the responsibilities of all atoms."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture, FiniteMixture
from bnp_dask.batch import Batch
from bnp_dask.model import NO_PAIRS, Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import DiagGaussian, Gaussian
from bnp_dask.schedules import FullBatch, Memoized, full, laps, memoized
from tests.moves.naive import Twin
from tests.moves.parts import blobs, prepare, start_random

MOVES = (Birth(per_lap=3, sample=200, refine=6), Merge(), Delete(per_lap=2, absorbers=3, sweeps=3))
AT_BATCH = (Birth(where="batch", share=0.5, per_lap=2, refine=6), Merge(), Delete(per_lap=1, absorbers=2, sweeps=2))


@pytest.fixture
def watched(monkeypatch):
    """``watched(work)``: a twin that follows every task and decision of the runs of this test."""

    def watch(work) -> Twin:
        monkeypatch.undo()
        twin = Twin(work.model, work.source.batches)
        visit, decide, split, consider = Model.visit, laps.decide, laps.try_split, laps.consider_split
        decided = {}

        def visited(model, posterior, batch, pairs=NO_PAIRS, trials=(), sought=()):
            found = visit(model, posterior, batch, pairs, trials, sought)
            if batch.name.startswith("blob"):
                twin.visited(posterior, batch, trials, found)
            return found

        def kept(work, state, taken, remember):
            total = state.total if state.partial is None else state.partial
            for _, found in taken.visits:
                twin.folded(found, total.high.ids)
            return laps.keep(work, state, taken, remember)

        def lap_end(model, value, parts, plan, memory):
            decision = decide(model, value, parts, plan, memory)
            twin.decided(plan, decision.records, decision.edits)
            return decision

        def considered(*args):
            decided["born"], decided["gain"] = consider(*args)
            return decided["born"], decided["gain"]

        def at_batch(work, state, found):
            after, rows = split(work, state, found)
            born = decided.pop("born", None)
            if born is not None:
                homes = homes_of(born, after, found)
                twin.split(found, rows[0], born.new_ids, homes)
            return after, rows

        monkeypatch.setattr(Model, "visit", visited)
        monkeypatch.setattr(laps, "decide", lap_end)
        monkeypatch.setattr(laps, "consider_split", considered)
        for module in (memoized, full):
            monkeypatch.setattr(module, "keep", kept)
        monkeypatch.setattr(memoized, "try_split", at_batch)
        return twin

    return watch


def homes_of(born, after, found) -> list[int]:
    """Which cluster each newborn one became, found by its count in the batch's new summary."""
    counts = {int(i): after.summary["N"][after.summary.position(int(i))] for i in (*born.new_ids, *born.united)}
    return [min(counts, key=lambda i: abs(counts[i] - n)) for n in found.newborn["N"]]


def follow(twin: Twin, work, state, schedule) -> list[dict]:
    """Run; at every step the row's objective is that of the twin's responsibilities and never falls."""
    rows, last = [], -np.inf
    for step in schedule.run(work, state):
        if step.row is None:
            continue
        rows.append(step.row)
        if step.row["exact"]:
            size = sum(abs(step.row[t]) for t in ("data", "entropy", "allocation"))
            assert step.row["elbo"] >= last - 1e-12 * size
            assert step.row["elbo"] == pytest.approx(twin.objective(twin.columns), rel=1e-10)
            last = step.row["elbo"]
    return rows


def check(twin: Twin, state) -> None:
    """Gains agree to 1e-8 of themselves, or to what is left of double precision of the objective itself."""
    assert twin.claims
    for kind, recorded, true, size, _ in twin.claims:
        assert recorded == pytest.approx(true, rel=1e-8, abs=1e-11 * size), kind
    fresh = twin.summary(twin.columns)
    total = state.total.value()
    assert total.ids.tolist() == fresh.ids.tolist()
    for name, value in total.values.items():
        scale = np.abs(fresh[name]).max()
        np.testing.assert_allclose(value, fresh[name], rtol=1e-12, atol=1e-12 * scale, err_msg=name)


@pytest.mark.parametrize("estimate", ["posterior", "map"])
@pytest.mark.parametrize("top", [None, 2])
@pytest.mark.parametrize(("moves", "window", "k"), [(MOVES, 1, 1), (MOVES, 4, 9), (AT_BATCH, 1, 2), (AT_BATCH, 3, 9)])
def test_memoized(watched, estimate, top, moves, window, k):
    model = Model(DPMixture(2.0, top=top), DiagGaussian(), estimate)
    # a birth at one batch leaves the others' atoms behind, which pays only between clusters far apart
    batches = blobs(480, weights=window > 1, spread=3.0 if moves is MOVES else 15.0)
    work = prepare(model, batches, moves=moves)
    state = start_random(work, k)
    twin = watched(work)
    follow(twin, work, state, Memoized(laps=9, window=window, tolerance=0.0))
    check(twin, state)


@pytest.mark.parametrize("allocation", [DPMixture(2.0), FiniteMixture(0.5)])
def test_full_batch(watched, allocation):
    work = prepare(Model(allocation, Gaussian()), blobs(480), moves=MOVES)
    state = start_random(work, 7)
    twin = watched(work)
    follow(twin, work, state, FullBatch(laps=10, window=2, tolerance=0.0))
    check(twin, state)


def test_all_kinds_are_tried_both_ways(watched):
    """The runs above would prove nothing if they made few proposals."""
    outcomes = set()
    for seed in range(3):
        for k in (1, 12):
            work = prepare(Model(DPMixture(2.0), DiagGaussian()), blobs(480, seed=seed), seed=seed, moves=MOVES)
            state = start_random(work, k)
            twin = watched(work)
            follow(twin, work, state, Memoized(laps=10, window=3, tolerance=0.0))
            check(twin, state)
            outcomes |= {(kind, accepted) for kind, _, _, _, accepted in twin.claims}
    assert {("birth", True), ("merge", True), ("delete", True), ("delete", False)} <= outcomes


def test_an_empty_batch_among_weighted_ones(watched):
    batches = blobs(300, weights=True)
    batches[2] = Batch(batches[2].x[:0], np.zeros(0), batches[2].name)
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), batches, moves=MOVES)
    state = start_random(work, 4)
    twin = watched(work)
    follow(twin, work, state, Memoized(laps=7, window=2, tolerance=0.0))
    check(twin, state)
