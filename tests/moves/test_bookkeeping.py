"""What a lap proposes: each cluster once, within budgets, no known failure unless it changed; all recorded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.inference import FullBatch, Memoized
from bnp_dask.inference import lap as laps
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import DeleteProposal, Draft, Gather, PlanContext
from bnp_dask.moves.birth import Target
from bnp_dask.moves.delete import _Group
from bnp_dask.moves.memory import Memory, Sweep
from bnp_dask.moves.policy import LAP, DeletePolicy
from bnp_dask.observation import DiagGaussian
from tests.moves.parts import blobs, prepare, start_random

MOVES = (Birth(per_lap=2, sample=200, refine=6), Merge(per_lap=4), Delete(per_lap=2, absorbers=3))


@pytest.fixture
def plans(monkeypatch):
    """Every plan made, with the ids that were alive."""
    made = []
    plan_lap = laps.plan_lap

    def watch(moves, context):
        plan = plan_lap(moves, context)
        made.append((context.lap, plan, [int(i) for i in context.value.ids]))
        return plan

    monkeypatch.setattr(laps, "plan_lap", watch)
    return made


def run(moves, k=10, laps_=12, n=480, model=None):
    work = prepare(model or Model(DPMixture(2.0), DiagGaussian()), blobs(n), moves=moves)
    state = start_random(work, k)
    return [s.row for s in Memoized(laps_, window=2).run(work, state) if s.row], state


@pytest.mark.parametrize("where", ["data", "batch"])
def test_no_cluster_is_target_of_two_kinds(plans, where):
    run((replace(MOVES[0], where=where), *MOVES[1:]))
    proposed = 0
    for _, plan, ids in plans:
        named = {}
        for p in plan.proposals:
            edit = p.edit
            for i in (*p.targets, *(edit.donors if isinstance(edit, Exchange) else ())):
                assert i in ids
                named.setdefault(i, set()).add(p.kind)
            proposed += 1
        for split in plan.splits.values():
            named.setdefault(split.target, set()).add("birth")
        assert all(len(kinds) == 1 for kinds in named.values())
        exchanged = [i for p in plan.proposals if isinstance(p.edit, Exchange) for i in p.edit.donors]
        assert len(exchanged) == len(set(exchanged))
    assert proposed > 5


def test_budgets(plans):
    run(MOVES, k=20)
    for _, plan, _ in plans:
        kinds = [p.kind for p in plan.proposals]
        assert kinds.count("birth") <= 2
        assert kinds.count("merge") <= 4
        assert kinds.count("delete") <= 2
        assert len(plan.gather.targets) <= 2 + 2 * (1 + 3)


@pytest.mark.long
def test_each_move_has_its_own_limit_of_gathered_atoms(plans):
    few, many = Delete(), Birth(sample=9000)
    run((many,))
    births = {limit for _, plan, _ in plans for limit in plan.gather.limits}
    plans.clear()
    run((few,))
    deletes = {limit for _, plan, _ in plans for limit in plan.gather.limits}
    plans.clear()
    run((many, few))
    assert len(births) == len(deletes) == 1 and max(deletes) < max(births)
    assert {limit for _, plan, _ in plans for limit in plan.gather.limits} == births | deletes


def test_samples_of_deletes_are_as_large_as_their_policy_says(plans):
    limits = []
    for move in (Delete(), Delete(policy=DeletePolicy(sample=40))):
        plans.clear()
        run((move,), laps_=3)
        limits.append({limit for _, plan, _ in plans for limit in plan.gather.limits})
    assert len(limits[0]) == len(limits[1]) == 1 and max(limits[1]) < max(limits[0])


def test_all_that_a_lap_gathers_has_a_bound(plans, monkeypatch):
    """In any case a sample is gathered, twice over, of one target of each move and those near it."""
    run(MOVES, k=20)
    free = max(sum(plan.gather.limits) for _, plan, _ in plans)
    plans.clear()
    monkeypatch.setattr("bnp_dask.moves.base.LAP", replace(LAP, sampled=300, gathered_in_all=1500))
    n_batches = len(run(MOVES, k=20)[1].visits)
    numbers = blobs(480)[0].n_features
    for _, plan, _ in plans:
        limits = plan.gather.limits
        assert max(limits, default=0) <= -(-2 * 300 // numbers // n_batches)
        rounded = len(limits) * n_batches * numbers
        assert sum(limits) * n_batches * numbers <= 1500 + (1 + 1 + 3) * 2 * 300 + rounded
    assert 0 < max(sum(plan.gather.limits) for _, plan, _ in plans) < free


@pytest.mark.parametrize(("wide", "atoms", "most"), [(1.0, 7, 7), (4.0, 10**9, LAP.sampled // 4), (1e12, 5, 1)])
def test_a_sample_has_no_more_numbers_than_a_lap_may_hold(wide, atoms, most):
    assert PlanContext.at_most_sampled(SimpleNamespace(numbers_per_atom=wide), atoms) == most


def test_gathering_once_more_keeps_the_larger_limit():
    both = Gather(key=(3,)).also((4, 7), 10).also((7, 9), 2).also((4,), 20)
    assert both == Gather((4, 7, 9), (20, 10, 2), (3,))


@pytest.mark.parametrize(("left", "most"), [(1e-9, 1), (2.5, 2), (3.0, 3), (100.0, 5)])
def test_targets_are_as_many_as_the_work_of_a_lap_covers_and_one_in_any_case(left, most):
    birth, sample = Birth(refine=6), 100
    each = birth.policy.dearer * sample * sum(birth._widths(0)) * birth.refine
    birth = replace(birth, policy=replace(birth.policy, work_share=0.0, work_always=left * each))
    context = SimpleNamespace(survey=SimpleNamespace(n_atoms=1), value=SimpleNamespace(n_clusters=5), calm=False)
    targets = [Target(i, 1000.0, 0, -1.0) for i in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Birth, "_sizes", lambda *_: (sample, sample))
        assert birth._within_budget(context, targets) == targets[:most]
        assert birth._within_budget(context, []) == []


def joined(failures, number, together=16):
    """Small clusters that join a group one after the other, by how often each has failed."""
    group, made = _Group(), []
    small = set(range(100, 100 + number))
    context = SimpleNamespace(
        policy=SimpleNamespace(together=together, spares_absorbers=False),
        value=SimpleNamespace(ids=np.array([1, 2, *sorted(small)])),
        untouched=lambda: {1, 2, *small},
        free={1, 2, *small},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delete, "_absorbing_set", lambda *_: {1})
        for target, failed in zip(sorted(small), failures, strict=False):
            Delete()._join(context, target, small, group, failed)
            made.append(len(group.targets))
    assert context.free == {2, *small} - set(group.targets)
    return made[-1]


@pytest.mark.parametrize(
    ("failed", "number", "most"), [(0, 16, 16), (0, 40, 16), (1, 16, 4), (1, 12, 3), (2, 40, 1), (3, 40, 1)]
)
def test_small_clusters_that_failed_together_are_tried_a_quarter_as_many_at_a_time(failed, number, most):
    assert joined([failed] * number, number) == most


def test_small_clusters_go_together_with_those_that_failed_as_often():
    assert joined([0, 1, 0, 0, 2], 30) == 3
    assert joined([1, 0, 1, 0, 1], 30) == 3


def test_a_draft_becomes_a_plan_with_all_that_moves_put_there():
    split, delete = object(), DeleteProposal((1,), (2,), Exchange("t", (1, 2)), 1)
    draft = Draft(
        free={3},
        pairs=[(1, 2), (3, 4)],
        trials=["trial"],
        proposals=[delete],
        splits={5: split},
        given_up=[{"kind": "birth"}],
        gather=Gather((7,), (10,)),
    )
    plan = draft.plan()
    assert plan.pairs.tolist() == [[1, 2], [3, 4]] and plan.trials == ("trial",) and plan.proposals == (delete,)
    assert plan.splits == {5: split} and plan.given_up == ({"kind": "birth"},) and plan.gather == draft.gather
    assert plan.n_proposed == 4
    assert Draft(set()).plan().pairs.shape == (0, 2)


def test_every_proposal_is_recorded(plans):
    rows, _ = run(MOVES)
    for lap, plan, _ in plans:
        recorded = [m for row in rows if row["lap"] == lap + 1 for m in row["moves"] if m["kind"] != "sort"]
        named = sorted((m["kind"], tuple(m["targets"])) for m in recorded)
        expected = [(p.kind, p.targets) for p in plan.proposals] + [
            (r["kind"], tuple(r["targets"])) for r in plan.given_up
        ]
        assert named == sorted(expected)
        assert all(m.keys() == {"kind", "targets", "others", "gain", "accepted", "why"} for m in recorded)
        assert all(m["why"] and (m["gain"] is None or np.isfinite(m["gain"])) for m in recorded)
        terms = next(row for row in rows if row["lap"] == lap + 1)
        rounding = 1e-11 * sum(abs(terms[name]) for name in ("data", "entropy", "allocation"))
        assert all(m["gain"] > -rounding for m in recorded if m["accepted"])


def test_known_failures_are_not_tried_again(monkeypatch):
    """Nothing is proposed that failed as often as its move tries, unless a count has changed by its share."""
    settings = {move.kind: move for move in MOVES}
    checked = []
    plan_lap = laps.plan_lap

    def watch(moves, context):
        before = Memory(0, dict(context.memory.failures))
        refined = set(context.memory.sweeps)
        plan = plan_lap(moves, context)
        tried = [(p.kind, p.targets) for p in plan.proposals if not (p.kind == "delete" and p.targets[0] in refined)]
        for kind, targets in [*tried, *((r["kind"], tuple(r["targets"])) for r in plan.given_up)]:
            move = settings[kind]
            failed = before.failed(kind, targets, context.counts(targets), move.change)
            checked.append(failed)
            assert failed < getattr(move, "tries", 1)
        return plan

    monkeypatch.setattr(laps, "plan_lap", watch)
    _, state = run(MOVES, laps_=60)
    assert state.finished == "converged"
    assert sum(checked) > 3  # some were tried again, as they may be


def test_memory_counts_failures_until_a_cluster_changes():
    memory = Memory(next_id=3)
    assert memory.failed("birth", (1,), [100.0], 0.1) == 0
    memory.remember_failure("birth", (1,), [100.0])
    memory.remember_failure("birth", (1,), [103.0])
    assert memory.failed("birth", (1,), [101.0], 0.1) == 2
    assert memory.failed("birth", (1,), [120.0], 0.1) == 0
    assert memory.failed("delete", (1,), [101.0], 0.1) == 0
    memory.remember_failure("birth", (1,), [200.0])
    assert memory.failed("birth", (1,), [200.0], 0.1) == 1
    memory.remember_failure("merge", (1, 2), [1.0, 2.0])
    memory.forget_dead(np.array([1]))
    assert ("merge", (1, 2)) not in memory.failures
    assert memory.new_ids(2) == (3, 4)
    assert memory.new_ids(1) == (5,)


def test_small_clusters_are_not_split(plans):
    run((Birth(min_atoms=1e9),), k=2)
    assert all(plan.n_proposed == 0 for _, plan, _ in plans)


def test_births_at_batches_need_the_memoized_schedule():
    work = prepare(Model(DPMixture(2.0), DiagGaussian()), blobs(100), moves=(Birth(where="batch"),))
    with pytest.raises(SettingError, match="Memoized"):
        next(FullBatch(3).run(work, start_random(work, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Birth(fresh=1),
        lambda: Birth(tries=0),
        lambda: Birth(where="atom"),
        lambda: Birth(share=0.0),
        lambda: Merge(per_lap=0),
        lambda: Merge(change=-1.0),
        lambda: Delete(sweeps=0),
        lambda: Delete(absorbers=0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(SettingError):
        make()


@pytest.mark.parametrize("n", [2, 3, 7])
def test_tiny_data_from_one_cluster(n):
    rng = np.random.default_rng(0)
    from bnp_dask.core.batch import Batch

    work = prepare(Model(DPMixture(1.0), DiagGaussian()), [Batch(rng.normal(size=(n, 2)))], moves=MOVES)
    state = start_random(work, 1)
    for _ in Memoized(20).run(work, state):
        pass
    assert state.finished == "converged"
    assert state.posterior.n_clusters == 1


def test_a_delete_is_not_taken_up_again_once_a_cluster_that_absorbs_is_gone():
    model = Model(DPMixture(2.0), DiagGaussian()).with_prior(survey_batch(Batch(np.eye(2))))
    memory = Memory(next_id=9)
    part = model.empty_summary(np.zeros(0, np.int64))
    memory.sweeps = {1: Sweep((2, 3), part, -1.0, 0.5, 1), 4: Sweep((2,), part, -1.0, 0.5, 1)}
    memory.forget_dead(np.array([1, 2, 4]))
    assert list(memory.sweeps) == [4]


@pytest.mark.parametrize("per_cluster", [1, 2, 3])
def test_a_cluster_is_in_as_many_pairs_as_it_may_be(plans, per_cluster):
    """Random parts of the same blobs are alike, so there are more candidates than may be tracked."""
    run((Merge(per_cluster=per_cluster),), k=12, laps_=3)
    most = [np.unique(plan.pairs, return_counts=True)[1].max() for _, plan, _ in plans if len(plan.pairs)]
    assert max(most) == per_cluster


def test_a_pair_is_tried_again_when_either_count_has_changed():
    memory = Memory(next_id=9)
    memory.remember_failure("merge", (1, 2), [100.0, 50.0])
    assert memory.failed("merge", (1, 2), [104.0, 48.0], 0.05) == 1
    assert memory.failed("merge", (1, 2), [106.0, 50.0], 0.05) == 0
    assert memory.failed("merge", (1, 2), [100.0, 53.0], 0.05) == 0
    assert memory.failed("merge", (1, 2), [106.0, 53.0], 0.05) == 0
