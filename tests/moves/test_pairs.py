"""Pairs of clusters: statistics of unions, and greedy choices among pairs, beside plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.model import Model
from bnp_dask.moves.create import Forecast
from bnp_dask.moves.pairs import absorbed, all_pairs, best_first, data_gains, matched_in_turn, side_by_side, unions
from bnp_dask.observation import Gaussian


@pytest.fixture(scope="module")
def summary():
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=(50, 2)))
    model = Model(DPMixture(1.0), Gaussian()).with_prior(survey_batch(batch))
    return model.summarize(np.array([4, 7, 2, 9]), batch, rng.dirichlet(np.ones(4), 50))


@pytest.mark.parametrize(("keep", "drop"), [(0, 3), (3, 0), (2, 1)])
def test_a_cluster_that_absorbs_another_holds_the_statistics_of_both(summary, keep, drop):
    found = absorbed(summary, keep, drop)
    assert found.ids.tolist() == [int(i) for i in summary.ids if i != summary.ids[drop]]
    place = found.position(int(summary.ids[keep]))
    for name, declared in summary.fields.items():
        if declared.n_cluster_axes:
            np.testing.assert_array_equal(found[name][place], summary[name][keep] + summary[name][drop])
    united = summary.unite(int(summary.ids[keep]), int(summary.ids[drop]), None)
    np.testing.assert_array_equal(found["N"], united["N"])


def test_unions_of_pairs_are_sums_in_the_order_of_the_pairs(summary):
    found = unions(summary, np.array([0, 2]), np.array([1, 3]))
    np.testing.assert_array_equal(found["N"], [summary["N"][:2].sum(), summary["N"][2:].sum()])
    both = side_by_side(summary.take([4, 2]), summary.take([7, 9]))
    np.testing.assert_array_equal(found["N"], both["N"])
    assert both.ids.tolist() == [4, 2]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("per_cluster", "most"), [(1, None), (2, None), (1, 2), (3, 4)])
def test_pairs_are_chosen_greedily(seed, per_cluster, most):
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(6, 1)
    pairs = np.stack([first, second], axis=1)
    gains = rng.integers(-3, 6, size=len(pairs)).astype(float)  # with ties
    left, used, wanted = set(range(len(pairs))), np.zeros(6, int), []
    while left and (most is None or len(wanted) < most):
        m = min(left, key=lambda i: (-gains[i], i))
        left.remove(m)
        if gains[m] > 1.0 and (used[pairs[m]] < per_cluster).all():
            used[pairs[m]] += 1
            wanted.append(m)
    assert best_first(pairs, gains, 1.0, per_cluster, most) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_each_in_turn_takes_the_best_that_is_free(seed):
    gains = np.random.default_rng(seed).normal(size=(4, 5))
    masked, wanted = gains.copy(), []
    for row in masked:
        best = int(row.argmax())
        wanted.append(best if row[best] > 0 else -1)
        if row[best] > 0:
            masked[:, best] = -np.inf
    assert matched_in_turn(4, 5, lambda j, free: gains[j, free]) == wanted
    assert matched_in_turn(4, 0, lambda j, free: gains[j, free]) == [-1] * 4


@pytest.mark.parametrize("factor", [1.0, 7.5])
def test_clusters_of_a_small_run_are_united_as_if_each_union_were_scored_anew(factor):
    rng = np.random.default_rng(1)
    batch = Batch(np.concatenate([rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 9.0]))
    model = Model(DPMixture(1.0), Gaussian()).with_prior(survey_batch(batch))
    resp = np.zeros((80, 6))
    resp[:40, :4], resp[40:, 4:] = rng.dirichlet(np.ones(4), 40), rng.dirichlet(np.ones(2), 40)
    posterior = model.global_step(model.summarize(np.arange(6), batch, resp))
    start = model.local_step(posterior, batch, all_pairs(posterior.ids))
    forecast, wanted = Forecast(model, factor), start
    while wanted.n_pairs:
        place = wanted.positions(wanted.pairs)
        entropy = wanted.pair_values["H"] - wanted["H"][place].sum(axis=1)
        best = int(np.argmax(data_gains(model, wanted, wanted.pairs) + entropy))
        union = wanted.merge(*wanted.pairs[best].tolist())
        if forecast.value(union) <= forecast.value(wanted) or model.best_objective(union) <= model.best_objective(
            wanted
        ):
            break
        wanted = union
    found = forecast.unite(start)
    assert 1 < found.n_clusters < 6
    np.testing.assert_array_equal(found.ids, wanted.ids)
    for name in wanted.values:
        np.testing.assert_array_equal(found[name], wanted[name])
