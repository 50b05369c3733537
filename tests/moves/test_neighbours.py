"""Births beside neighbours: what overlaps is found where clusters around it are re-estimated with the newborn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bnp_dask import score, train
from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.inference import Memoized
from bnp_dask.kernels.mixture import SparseResp
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge, birth
from bnp_dask.moves import create as births_made
from bnp_dask.moves.birth import _recut_widths
from bnp_dask.moves.create import NEWBORN, WORDS, Surroundings, create, cut
from bnp_dask.moves.memory import Memory
from bnp_dask.moves.policy import BirthPolicy, SmallRunPolicy
from bnp_dask.moves.pools import best_value
from bnp_dask.observation import DiagGaussian, Gaussian
from tests.moves.parts import prepare, start_random

POLICY = SmallRunPolicy(steps_beside=200, enough_beside=1e-5)


def overlapping(d, apart, n, seed, n_clusters=60):
    """Round Gaussians of which each has its nearest within ``apart`` deviations: atoms, labels, means."""
    rng = np.random.default_rng(seed)
    means = [np.zeros(d)]
    while len(means) < n_clusters:
        step = rng.normal(size=d)
        new = means[rng.integers(len(means))] + step / np.linalg.norm(step) * rng.uniform(*apart)
        if min(np.linalg.norm(new - mean) for mean in means) >= apart[0]:
            means.append(new)
    labels = rng.integers(n_clusters, size=n)
    return np.array(means)[labels] + rng.normal(size=(n, d)), labels, np.array(means)


def held_out(posterior, means, seed):
    """Nats per held-out atom, of a posterior and of the true density."""
    rng = np.random.default_rng([seed, 1])
    x = means[rng.integers(len(means), size=5000)] + rng.normal(size=(5000, means.shape[1]))
    each = [multivariate_normal(mean).logpdf(x) - np.log(len(means)) for mean in means]
    return float(np.mean(score(posterior, x))), float(np.logaddexp.reduce(each, axis=0).mean())


def row_of(labels, n=4000, seed=0):
    """Gaussians in a row, 3 deviations apart, summarised as ``labels`` of the true ones say; clusters' atoms too."""
    rng = np.random.default_rng(seed)
    true = rng.integers(len(labels), size=n)
    x = np.stack([3.0 * true, np.zeros(n)], axis=1) + rng.normal(size=(n, 2))
    work = prepare(Model(DPMixture(1.0), Gaussian()), [Batch(x)])
    given = np.array(labels)[true]
    ids = np.unique(given)
    summary = work.model.summarize(ids, Batch(x), SparseResp(given[:, None], np.ones((n, 1)), len(ids)))
    return work.model, Surroundings(tuple(Batch(x[given == i]) for i in ids), summary)


def test_two_clusters_in_place_of_one_and_its_neighbours_beside_them():
    model, near = row_of([0, 0, 1, 2])
    found = create(model, near, 0, (0,), POLICY)
    assert found.ids.tolist()[:2] == list(NEWBORN)
    assert set(found.ids.tolist()) <= {*NEWBORN, 1, 2}
    assert found["N"][:2] == pytest.approx([1000, 1000], abs=120)


def test_one_gaussian_stays_one():
    model, near = row_of([0, 1, 2])
    assert create(model, near, 0, (0,), POLICY) is None


def test_a_neighbour_that_hardly_changes_stays_as_it_is():
    model, near = row_of([0, 0, 1, 2])
    far = replace(POLICY, stays=0.9)
    assert create(model, near, 0, (0,), far).ids.tolist() == list(NEWBORN)


@pytest.mark.parametrize("names", [[5, 0, 3], [2, 1, 0], [9, 4, 7]])
def test_names_of_clusters_change_nothing(names):
    model, near = row_of([0, 0, 1, 2])
    wanted = create(model, near, 0, (0,), POLICY)
    found = create(model, replace(near, summary=replace(near.summary, ids=np.array(names))), 0, (0,), POLICY)
    assert found.ids.tolist() == [i if i < 0 else names[i] for i in wanted.ids.tolist()]
    np.testing.assert_array_equal(found["N"], wanted["N"])


@pytest.mark.parametrize("kind", [Gaussian, DiagGaussian])
def test_laps_of_k_means_improve_a_cut_whether_compiled_or_not(kind):
    x = overlapping(2, (2.0, 3.0), 600, 0, n_clusters=6)[0]
    model = prepare(Model(DPMixture(1.0), kind()), [Batch(x)]).model
    ends = [
        [
            best_value(model, cut(model, Batch(x), 6, np.random.default_rng(seed), replace(POLICY, seed_laps=laps)))
            for seed in range(4)
        ]
        for laps in (1, 20)
    ]
    assert (np.array(ends[1]) > np.array(ends[0])).all()


@pytest.mark.parametrize(("fresh", "widths"), [(10, (10, 5, 2, 5)), (3, (3, 2, 2, 2)), (2, (2, 2, 2, 2))])
def test_after_each_failure_a_split_starts_from_another_number(fresh, widths):
    """Many first, and two among them: uniting cannot undo a split into overlapping parts."""
    move = Birth(fresh=fresh)
    assert [move._widths(failed) for failed in range(5)] == [(n,) for n in (*widths, fresh)]
    assert move._widths(0, words=True) == (WORDS, fresh) and move._widths(1, words=True) == widths[1:2]


def test_a_pool_is_remembered_by_its_clusters():
    memory = Memory(next_id=3)
    memory.remember_failure(birth.RECUT, (1, 2), [10.0, 20.0])
    context = SimpleNamespace(memory=memory, counts=lambda pool: [10.0, 20.0])
    assert [Birth()._failed(context, pool) for pool in ((1, 2), (1, 3))] == [1, 0]


def test_pools_that_share_neighbours_are_looked_at_one_after_the_other_unless_taken(monkeypatch):
    """Of what is found in a lap, all can be tried."""
    monkeypatch.setattr(Birth, "_task_beside", lambda self, context, pool, others: (pool, others))
    near = {(1,): [2, 3], (4,): [5], (6,): [3], (7,): [6, 4], (8,): [5], (9,): [8]}
    looking = Birth()._look_beside(None, near)
    assert [pool for pool, _ in next(looking)] == [(1,), (4,), (9,)]
    found = SimpleNamespace(ids=np.array([-2, -1, 5]))
    assert [pool for pool, _ in looking.send([None, found, None])] == [(6,)]  # 7 and 8 name what 4 takes
    with pytest.raises(StopIteration) as end:
        looking.send([None])
    assert end.value.value == {(1,): None, (4,): found, (9,): None, (6,): None}


def test_as_many_pools_are_proposed_as_a_lap_has_births():
    proposed, given_up = [], []
    pools = {(i, i + 1): SimpleNamespace(ids=np.array([-2, -1])) for i in range(0, 10, 2)}
    pools[2, 3] = None
    context = SimpleNamespace(
        free=set(range(9)), atoms={}, proposals=[], give_up=lambda kind, pool, why, remembered_as: given_up.append(pool)
    )
    of_two = Birth(per_lap=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(birth, "_has_atoms", lambda context, i: True)
        patch.setattr(Birth, "_pools", lambda self, context: {pool: [] for pool in pools})
        patch.setattr(Birth, "_look_beside", lambda self, context, near: (yield from ()) or {p: pools[p] for p in near})
        patch.setattr(Birth, "_propose", lambda self, context, pool, newborn: proposed.append(pool))
        for _ in of_two._of_pools(context):
            pass
    assert proposed == [(0, 1), (4, 5)] and given_up == [(2, 3)]


def test_what_few_atoms_fit_by_chance_is_no_gain():
    model, near = row_of([0, 1, 2])
    for seed in range(5):
        few = tuple(replace(atoms.take(np.arange(30)), weights=np.full(30, 1e4)) for atoms in near.pool)
        assert create(model, Surroundings(few, near.summary.scale(225.0)), seed, (0,), POLICY) is None


def test_clusters_that_are_wrong_together_are_cut_anew_together():
    """One cluster holds two Gaussians, and two clusters hold halves of a third: three again, but other three."""
    model, near = row_of([0, 0, 1])
    x = np.concatenate([atoms.x for atoms in near.pool])
    given = np.concatenate([np.zeros(near.pool[0].n_atoms, int), 1 + (near.pool[1].x[:, 1] > 0)])
    summary = model.summarize(np.arange(3), Batch(x), SparseResp(given[:, None], np.ones((len(x), 1)), 3))
    pool = tuple(Batch(x[given == i]) for i in range(3))
    found = create(model, Surroundings(pool, summary, n_targets=3, widths=(3, 2)), 0, (0,), POLICY)
    assert found.ids.tolist() == [-3, -2, -1]
    assert found["N"] == pytest.approx([4000 / 3] * 3, abs=150)
    right = model.best_objective(model.local_step(model.global_step(found), Batch(x)))
    assert right > model.best_objective(model.local_step(model.global_step(summary), Batch(x))) + 50.0


def test_a_cut_that_an_earlier_start_found_is_learned_once(monkeypatch):
    model, near = row_of([0, 0, 1])
    few = Batch(np.repeat([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], 20, axis=0))  # three places: few different cuts
    near = replace(near, pool=(few, *near.pool[1:]), widths=(2, 3), starts=6)
    learned, asked = [], []
    of_parts, between = births_made._learned_parts, births_made.distances_between
    monkeypatch.setattr(
        births_made, "_learned_parts", lambda model, cut, *rest: learned.append(cut) or of_parts(model, cut, *rest)
    )
    monkeypatch.setattr(births_made, "distances_between", lambda *args: asked.append(1) or between(*args))
    parts = list(births_made._different_parts(model, near, [], few, 0, (0,), POLICY))
    assert len(parts) == len(learned) < 6  # 12 starts
    for i, one in enumerate(learned):
        assert not any(births_made._is_same(one, other) for other in learned[:i])
    assert len(asked) == 1


def test_clusters_that_are_right_are_not_cut_anew():
    model, near = row_of([0, 1, 2])
    assert create(model, replace(near, n_targets=2, widths=(2, 3)), 0, (0,), POLICY) is None
    assert create(model, replace(near, n_targets=3, widths=(3, 2)), 0, (0,), POLICY) is None


def test_a_run_cuts_pools_anew_once_clusters_are_calm():
    """Three clusters that are wrong together: births, merges and deletes of single ones do not leave that state."""
    ends = {}
    for pooled in (1, 3):
        model, near = row_of([0, 0, 1], n=600)
        x = np.concatenate([atoms.x for atoms in near.pool])
        work = prepare(model, [Batch(part) for part in np.array_split(x, 3)])
        work = replace(work, moves=(Birth(policy=BirthPolicy(pooled=pooled, crossed=0.0)), Merge(), Delete()))
        state, rows = start_random(work, 2), []
        before = -np.inf
        for step in Memoized(25, window=2).run(work, state):
            rows += step.row["moves"]
            now = sum(state.terms.values())
            assert state.lap < 1 or now >= before - 1e-9 * abs(before)
            before = now if state.lap >= 1 else -np.inf
        pools = [m for m in rows if m["kind"] == "birth" and len(m["targets"]) > 1]
        assert bool(pools) == (pooled == 3)
        ends[pooled] = before
    assert ends[3] >= ends[1] - 1e-6


def is_beside(proposal):
    """Whether a proposal is a birth that takes atoms of several clusters."""
    return proposal.kind == "birth" and len(proposal.edit.donors) > 1


@pytest.mark.long
def test_births_beside_their_neighbours_find_more():
    """Splits of single clusters end lower; neighbours are donors, and the history names newborn clusters alone."""
    found = {}
    for alone in (1, 1000):
        x, _, _ = overlapping(2, (3.0, 3.5), 2000, 2, 12)
        work = prepare(Model(DPMixture(2.0), Gaussian()), [Batch(part) for part in np.array_split(x, 4)])
        # pools that are cut anew would find the same in other ways
        work = replace(work, moves=(Birth(policy=BirthPolicy(alone=alone, pooled=1)), Merge(), Delete()))
        state, wide, rows = start_random(work, 1), {}, []
        for step in Memoized(40, window=2).run(work, state):
            wide |= {p.others: p for p in state.plan.proposals if is_beside(p)}
            rows += [m for m in step.row["moves"] if m["accepted"] and tuple(m["others"]) in wide]
        assert all(p.edit.donors[0] == p.targets[0] and len(p.others) == 2 for p in wide.values())
        assert all(not set(p.others) & set(p.edit.donors) for p in wide.values())
        assert bool(rows) == (alone == 1)
        found[alone] = sum(state.terms.values())
    assert found[1] > found[1000] + 10.0


@pytest.mark.long
def test_what_is_found_is_tried(monkeypatch):
    """Neighbours that another move or another birth has taken by then would make an attempt vain."""
    found = []

    def looking(model, source, seed, key, policy):
        summary = create(model, source, seed, key, policy)
        if isinstance(source, Surroundings) and summary is not None:
            # halves of one target are a plain split if no neighbour changed; a pool is always several donors
            found.append(source.n_targets > 1 or summary.n_clusters > len(NEWBORN))
        return summary

    monkeypatch.setattr(birth, "create", looking)
    x, _, _ = overlapping(2, (3.0, 3.5), 2000, 2, 12)
    work = prepare(Model(DPMixture(2.0), Gaussian()), [Batch(part) for part in np.array_split(x, 4)])
    work = replace(work, moves=(Birth(), Merge(), Delete()))
    state, tried = start_random(work, 1), set()
    for _ in Memoized(40, window=2).run(work, state):
        tried |= {p.others for p in state.plan.proposals if is_beside(p)}
    assert len(tried) == sum(found) > 0


@pytest.mark.long
@pytest.mark.timeout(1800)  # ten runs of half a minute each
def test_sixty_overlapping_gaussians():
    """Truth's neighbours lie 3 to 4 deviations apart; nothing but data is given."""
    found = []
    for seed in range(10):
        x, _, means = overlapping(2, (3.0, 4.0), 20_000, seed)
        result = train(Model(DPMixture(), Gaussian()), x, rng=seed, schedule=Memoized(laps=150))
        ours, truth = held_out(result.posterior, means, seed)
        found.append((result.posterior.n_clusters, round(truth - ours, 4)))
    assert sum(55 <= k <= 60 and lost < 0.03 for k, lost in found) >= 9, found


def test_the_last_attempt_cuts_a_pool_into_more():
    """As many or fewer at first, then also more, then more alone; a single cluster is always split in two."""
    assert [_recut_widths(2, failed) for failed in range(3)] == [(2,), (2, 3), (3,)]
    assert [_recut_widths(3, failed) for failed in range(3)] == [(3, 2), (3, 4), (4,)]
    assert {_recut_widths(1, failed) for failed in range(3)} == {(2,)}
    assert BirthPolicy().tries_pooled == 3
