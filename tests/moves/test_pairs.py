"""Pairs of clusters: statistics of unions, and greedy choices among pairs, beside plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.allocation import HDPHMM, DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.model import Model
from bnp_dask.moves import pairs
from bnp_dask.moves.create import Forecast
from bnp_dask.moves.pairs import absorbed, all_pairs, best_first, data_gains, matched_in_turn, side_by_side, unions
from bnp_dask.observation import Gaussian
from bnp_dask.structure import without_data


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


def test_rows_of_words_are_alike_by_their_shares_however_many_words_they_have(monkeypatch):
    monkeypatch.setattr(pairs, "LAP", replace(pairs.LAP, alike=1))
    counts = np.array([[4.0, 4, 1], [900, 950, 150], [1, 4, 4], [90, 350, 360], [1e6, 0, 2e6]])
    first, second = pairs.alike(counts)
    # the longest row has the largest products with all others, but no other has its shares
    assert {(0, 1), (2, 3)} <= set(zip(first.tolist(), second.tolist(), strict=True))
    assert not {(1, 4), (3, 4)} <= set(zip(first.tolist(), second.tolist(), strict=True))
    assert len(first) == 3 and (first < second).all()
    empty = pairs.alike(np.array([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]))
    assert len(empty[0]) == 2  # rows without words are no error


def parts_of(model, x, labels, ids):
    return model.summarize(np.array(ids), Batch(x), np.eye(len(ids))[labels])


@pytest.fixture(scope="module")
def places():
    """A mixture of three far clusters of 40 atoms: the model, and atoms of each."""
    rng = np.random.default_rng(0)
    x = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]])[:, None] + rng.normal(size=(3, 40, 2))
    return Model(DPMixture(1.0), Gaussian()).with_prior(survey_batch(Batch(x.reshape(-1, 2)))), x


def test_newborn_clusters_have_the_ids_of_dormant_ones_that_they_look_like(places):
    model, x = places
    a, b, c = (parts_of(model, some, np.zeros(40, int), [0]) for some in x)
    dormant = {7: replace(a, ids=np.array([7])), 4: replace(c, ids=np.array([4]))}
    newborn = parts_of(model, x[[1, 2, 0], :20].reshape(-1, 2), np.repeat([0, 1, 2], 20), [30, 31, 32])
    assert pairs.returning(model, dormant, newborn) == {1: 4, 2: 7}
    twice = parts_of(model, x[0], np.arange(40) % 2, [30, 31])
    assert len(pairs.returning(model, dormant, twice)) == 1  # an id is given once
    assert pairs.returning(model, {7: dormant[7]}, newborn.take([30])) == {}
    assert pairs.returning(model, {}, newborn) == pairs.returning(model, dormant, newborn.take([])) == {}
    assert b.n_clusters == 1


def test_clusters_are_one_where_all_are_alike_in_some_order(places):
    model, x = places
    one = parts_of(model, x[:2, ::2].reshape(-1, 2), np.repeat([0, 1], 20), [5, 6])
    other = parts_of(model, x[[1, 0], 1::2].reshape(-1, 2), np.repeat([0, 1], 20), [5, 6])
    assert pairs.alike_in_turn(model, one, other).tolist() == [1, 0]
    assert pairs.alike_in_turn(model, one, one).tolist() == [0, 1]
    assert pairs.alike_in_turn(model, one, one.take([5])) is None
    lopsided = parts_of(model, x[[1, 2], 1::2].reshape(-1, 2), np.repeat([0, 1], 20), [5, 6])
    assert pairs.alike_in_turn(model, one, lopsided) is None  # the first is like none
    halves = parts_of(model, x[0, 1::2], np.arange(20) % 2, [5, 6])
    assert pairs.alike_in_turn(model, halves, one) is None  # both are like the same one


def test_one_cluster_among_others_that_is_better_united_makes_two_sets_alike(places):
    model, x = places
    some = parts_of(model, x[:2, ::2].reshape(-1, 2), np.repeat([0, 1], 20), [5, 6])
    assert pairs.are_alike(model, some, parts_of(model, x[[2, 1], 1::2].reshape(-1, 2), np.repeat([0, 1], 20), [1, 2]))
    assert not pairs.are_alike(model, some, parts_of(model, x[2], np.zeros(40, int), [1]))
    # the place of each atom must be told: near clusters of different atoms stay two though a union costs nats
    rng = np.random.default_rng(1)
    near = parts_of(model, rng.normal(size=(40, 2)) + [1.8, 0.0], np.zeros(40, int), [1])
    first = some.take([5])
    lost = pairs.evidence_gains(model, first, replace(near, ids=first.ids))[0]
    counts = np.array([20.0, 40.0])
    told = 60.0 * np.log(60.0) - (counts * np.log(counts)).sum()
    assert -told < lost < 0.0 and pairs.are_alike(model, first, near)


def test_gains_of_the_weights_of_states_are_those_of_united_transitions():
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=(60, 2)), groups=np.array([0, 25, 60]))
    model = Model(HDPHMM(), Gaussian()).with_prior(survey_batch(batch))
    value = model.summarize(np.array([4, 7, 2]), batch, np.eye(3)[rng.integers(3, size=60)])
    posterior = model.global_step(value)
    value = model.local_step(posterior, batch, np.array([[4, 2], [7, 2]])).without_pairs()
    found = pairs.allocation_gains(model, value, np.array([[4, 2], [7, 2]]))

    def term(summary):
        return model.allocation_terms(without_data(model, summary))["allocation"]

    for gain, (keep, drop) in zip(found, ((4, 2), (7, 2)), strict=True):
        union = value.with_pairs(np.array([[keep, drop]])).merge(keep, drop)
        assert gain == pytest.approx(term(union) - term(value), rel=1e-9)
    assert found[0] != pytest.approx(found[1])


def test_unions_scored_in_blocks_are_those_scored_together(summary, monkeypatch):
    batch = Batch(np.random.default_rng(0).normal(size=(50, 2)))
    model = Model(DPMixture(1.0), Gaussian()).with_prior(survey_batch(batch))
    those = all_pairs(summary.ids)
    whole, alone = data_gains(model, summary, those), model.best_data_terms(summary)
    monkeypatch.setattr(pairs, "LAP", replace(pairs.LAP, scored_pairs=4, scored_numbers=1))
    np.testing.assert_array_equal(data_gains(model, summary, those), whole)
    for pair, gain in zip(those.tolist(), whole, strict=True):
        union = summary.unite(*pair, None)
        place = union.position(pair[0])
        a, b = summary.positions(np.array(pair))
        assert gain == pytest.approx(model.best_data_terms(union)[place] - alone[a] - alone[b], abs=1e-9)
    sizes = []
    pairs.union_terms(model, summary, those, lambda union: sizes.append(union.n_clusters) or union["N"])
    assert sizes == [4, 2]


def test_an_exact_gain_of_nothing_is_no_match():
    assert matched_in_turn(2, 2, lambda j, free: np.zeros(len(free))) == [-1, -1]
    assert matched_in_turn(2, 2, lambda j, free: np.full(len(free), 1e-300)) == [0, 1]


def test_the_best_share_of_a_pair_is_that_of_its_counts(summary):
    value = replace(summary, values={**summary.values, "H": np.array([20.0, 25.0, 0.0, 0.0])})
    a, b = value["N"][:2]
    assert pairs.best_share(value, 4, 7) == pytest.approx(a / (a + b))
    assert pairs.best_share(value, 7, 4) == pytest.approx(b / (a + b))
    assert pairs.best_share(value, 2, 9) is None  # there is no entropy to bound
    empty = replace(value, values={**value.values, "N": np.array([0.0, 3.0, 0.0, 0.0])})
    assert pairs.best_share(empty, 4, 7) == pytest.approx(1e-12)
