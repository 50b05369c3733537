"""Once clusters are calm, what is still to be tried is tried soon, and what fails clearly is not tried again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.summary import Exchange, RunningTotal
from bnp_dask.execute import ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.inference import lap as laps
from bnp_dask.inference.state import Loss
from bnp_dask.inference.variational.memoized import decide_to_stop
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import DeleteProposal
from bnp_dask.moves.delete import _doubt
from bnp_dask.moves.judge import _is_clear
from bnp_dask.moves.memory import Memory
from bnp_dask.moves.policy import DECISION, LAP, DeletePolicy
from bnp_dask.observation import DiagGaussian, Gaussian
from tests.moves.parts import blobs, paused, prepare, start_random

MOVES = (Birth(per_lap=2, sample=200, refine=6), Merge(), Delete(per_lap=2, absorbers=3))


def separated(executor=None, k=12):
    work = prepare(Model(DPMixture(2.0), DiagGaussian()), blobs(1200, d=4, k=k, spread=12.0), 0, MOVES, executor)
    return work, start_random(work, 1)


@pytest.fixture
def contexts(monkeypatch):
    """Every lap's context and its plan."""
    made = []
    plan_lap = laps.plan_lap

    def watch(moves, context):
        plan = plan_lap(moves, context)
        made.append((context, plan))
        return plan

    monkeypatch.setattr(laps, "plan_lap", watch)
    return made


def test_a_solved_run_stops_soon(contexts):
    """Two targets a lap, each with four births and three deletes to try, would take more than 24 laps."""
    work, state = separated()
    rows = [step.row for step in Memoized(60, window=2).run(work, state)]
    assert state.finished == "converged"
    assert state.posterior.n_clusters == 12
    solved = max(row["lap"] for row in rows if any(m["accepted"] for m in row["moves"]))
    assert state.lap <= solved + 9
    # and nothing was left out: each cluster failed to be split as often as the move tries, and to be deleted
    counts = dict(zip(state.total.high.ids.tolist(), state.total.value_of("N"), strict=True))
    for i, n in counts.items():
        assert state.memory.failed("birth", (i,), [n], 0.1) >= MOVES[0].tries
        assert state.memory.failed("delete", (i,), [n], 0.1) >= MOVES[2].tries


@pytest.mark.long
def test_settings_hold_for_what_is_tried_on_all_data(contexts):
    work, state = separated()
    for _ in Memoized(60, window=2).run(work, state):
        pass
    assert any(context.calm for context, _ in contexts)
    assert max(len(plan.given_up) for context, plan in contexts if context.calm) > 4
    for context, plan in contexts:
        kinds = [p.kind for p in plan.proposals]
        assert kinds.count("birth") <= 2
        assert kinds.count("delete") <= 2
        donors = [i for p in plan.proposals if isinstance(p.edit, Exchange) for i in p.edit.donors]
        assert len(donors) == len(set(donors))
        assert context.calm or len(plan.given_up) <= 4


@pytest.mark.long
def test_more_atoms_are_gathered_only_as_memory_allows(contexts, monkeypatch):
    monkeypatch.setattr("bnp_dask.moves.base.LAP", replace(LAP, gathered=0))
    work, state = separated()
    for _ in Memoized(30, window=2).run(work, state):
        pass
    assert any(context.calm for context, _ in contexts)
    for _, plan in contexts:
        assert len(plan.gather.targets) <= 2 + 2 * (1 + 3)


@pytest.mark.long
def test_pauses_of_a_calm_run_and_other_executors():
    work, whole = separated()
    schedule = Memoized(40, window=2)
    rows = [step.row for step in schedule.run(work, whole)]
    calm = 0
    for stop in range(1, len(rows), 5):
        work, state = separated()
        first, again = paused(work, state, schedule, stop)
        calm += state.calm
        assert again.calm == state.calm
        assert first + [step.row for step in schedule.run(work, again)] == rows, f"pause after step {stop}"
    assert calm > 3
    work, state = separated(ThreadExecutor(3))
    assert [step.row for step in schedule.run(work, state)] == rows


def calm_by_hand(before, after, gain, tolerance, count_tolerance):
    """The definition, atom counts one by one."""
    weight = sum(after)
    if len(before) != len(after) or abs(gain) > max(1e-4, tolerance) * weight:
        return False
    for old, new in zip(before, after, strict=True):
        if abs(new - old) > 0.05 * old and abs(new - old) > count_tolerance * weight:
            return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_what_counts_as_calm(seed):
    assert (LAP.calm_count, LAP.calm_gain) == (0.05, 1e-4)
    rng = np.random.default_rng(seed)
    work, state = separated()
    k = 5
    before = rng.dirichlet(np.ones(k)) * work.survey.total_weight
    after = before * (1.0 + rng.uniform(-1, 1, k) * rng.choice([0.01, 0.052, 0.2]))
    after *= work.survey.total_weight / after.sum()
    gain = float(rng.choice([1e-6, 0.9e-4, 1.1e-4, -1.1e-4])) * work.survey.total_weight
    total = work.model.empty_summary(np.arange(k))
    total.values["N"][...] = after
    state.total = RunningTotal(total)
    state.terms = {"data": gain}
    state.lap_elbo, state.lap_counts = 0.0, before[: k - (seed % 5 == 0)]
    tolerance, count_tolerance = rng.choice([1e-6, 1e-3]), rng.choice([1e-4, 0.02])
    decide_to_stop(Memoized(50, tolerance=tolerance, count_tolerance=count_tolerance), work, state, 1)
    expected = calm_by_hand(before[: k - (seed % 5 == 0)], after, gain, tolerance, count_tolerance)
    assert state.calm == expected
    assert state.finished is None


@pytest.mark.parametrize(("lost_in", "is_calm"), [(1, False), (0, True)])
def test_a_lap_that_lost_a_batch_is_not_compared_with_the_one_before(lost_in, is_calm):
    """Its objective is that of other data: even if it were the same number it would say nothing."""
    work, state = separated()
    total = work.model.empty_summary(np.arange(2))
    total.values["N"][...] = work.survey.total_weight / 2.0
    state.total, state.terms = RunningTotal(total), {"data": 0.0}
    state.lap_elbo, state.lap_counts = 0.0, total["N"].copy()
    state.lost = {3: Loss("cannot be read", lost_in, 0)}
    decide_to_stop(Memoized(50, tolerance=1e-6, count_tolerance=1e-6), replace(work, moves=()), state, 0)
    assert state.calm == is_calm
    assert (state.finished == "converged") == is_calm


def test_clear_failures():
    edit = Exchange("delete", (1, 2))
    doubtful = DeleteProposal((1,), (2,), edit, 8)
    calm = DeleteProposal((1,), (2,), edit, 8, 3)
    together = DeleteProposal((1, 3), (2,), edit, 1, 3)
    assert _is_clear(calm, -1.01 * DECISION.clear * 50, [50.0])
    assert not _is_clear(calm, -0.99 * DECISION.clear * 50, [50.0])
    assert not _is_clear(doubtful, -1e6, [50.0])
    assert not _is_clear(together, -1e6, [25.0, 25.0])
    memory = Memory(4)
    memory.remember_failure("delete", (1,), [50.0], 3)
    assert memory.failed("delete", (1,), [51.0], 0.1) == 3
    memory.remember_failure("delete", (1,), [51.0])
    assert memory.failed("delete", (1,), [51.0], 0.1) == 4
    assert memory.failed("delete", (1,), [70.0], 0.1) == 0


def test_samples_of_few_atoms_are_believed_less():
    policy = DeletePolicy()
    model = SimpleNamespace(
        observation=Gaussian().with_prior(prepare(Model(DPMixture(1.0), Gaussian()), blobs(50, d=6)).survey)
    )
    assert _doubt(model, 10**9, policy) == pytest.approx(policy.calm_doubt)
    assert _doubt(model, 1, policy) == DECISION.hopeless
    doubts = [_doubt(model, n, policy) for n in (20, 100, 1000)]
    assert doubts == sorted(doubts, reverse=True)
