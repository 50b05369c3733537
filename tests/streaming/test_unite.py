"""Which clusters are one, from their statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming import unite
from bnp_dask.inference.streaming.unite import (
    Newborn,
    Opened,
    generator,
    grown,
    pair_gains,
    rows,
    split_gains,
    union_gains,
    unions,
    with_cluster,
)
from bnp_dask.model import Model
from bnp_dask.moves.pairs import best_first, evidence_gains
from bnp_dask.testing import survey_of


def test_of_a_pair_that_is_one_cluster_only_one_needs_to_have_grown():
    rng = np.random.default_rng(0)
    batch = Batch(np.concatenate([rng.normal(size=(80, 2)), rng.normal(size=(40, 2)) + 30.0]))
    model = Model(bnp.DPMixture(1.0), bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.array([4, 7, 9]), batch, np.eye(3)[np.repeat([0, 1, 2], 40)])
    assert [pair[:2] for pair in unions(model, total, 0.0, np.array([7]))] == [(4, 7)]
    assert [pair[:2] for pair in unions(model, total, 0.0, np.array([4, 7]))] == [(4, 7)]
    assert unions(model, total, 0.0, np.array([9])) == []
    assert unions(model, total, 1e6, np.array([7])) == []


def test_of_many_clusters_the_near_ones_are_united_as_if_all_pairs_were_scored():
    rng, label = np.random.default_rng(0), np.repeat(np.arange(300), 12)
    batch = Batch(rng.uniform(-300.0, 300.0, size=(150, 2))[label // 2] + rng.normal(size=(len(label), 2)))
    model = Model(bnp.DPMixture(1.0), bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.arange(300), batch, np.eye(300)[label])
    first, second = np.triu_indices(300, 1)
    gains = union_gains(model, rows(total, first), rows(total, second), total)
    every = np.stack([first, second], axis=1)
    found = unions(model, total, 0.0, total.ids)
    assert [pair[:2] for pair in found] == [tuple(every[m]) for m in best_first(every, gains)]
    assert len(found) > 100
    few = unions(model, total, 0.0, np.array([7]))  # all pairs of a few clusters are scored
    assert few[0][:2] == tuple(every[max(np.flatnonzero((every == 7).any(axis=1)), key=gains.__getitem__)])


@pytest.mark.parametrize("prior", [bnp.DPMixture(1.0), bnp.NGGPMixture(1.0, 0.5, 1.0)], ids=["DP", "NGGP"])
def test_gains_of_unions_do_not_depend_on_the_order_of_a_pair(prior):
    rng = np.random.default_rng(1)
    batch = Batch(rng.normal(size=(100, 2)))
    model = Model(prior, bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.arange(3), batch, np.eye(3)[np.repeat([0, 1, 2], [3, 17, 80])])
    first, second = rows(total, np.array([0, 0, 1])), rows(total, np.array([1, 2, 2]))
    gains = union_gains(model, first, second, total)
    np.testing.assert_allclose(gains, union_gains(model, second, first, total), rtol=1e-10)
    if isinstance(prior, bnp.DPMixture):  # Gamma(n_a + n_b) / (Gamma(n_a) Gamma(n_b) gamma)
        n_a, n_b = np.array([3, 3, 17]), np.array([17, 80, 80])
        data = evidence_gains(model, first, second)
        np.testing.assert_allclose(gains - data, gammaln(n_a + n_b) - gammaln(n_a) - gammaln(n_b), rtol=1e-10)


def small(counts, seed=2):
    """A model, and clusters of as many rows around places of their own."""
    rng = np.random.default_rng(seed)
    place = np.repeat(np.arange(len(counts)), counts)
    batch = Batch(rng.normal(size=(len(place), 2)) + place[:, None] * 4.0)
    model = Model(bnp.DPMixture(2.5), bnp.DiagGaussian()).with_prior(survey_of(batch))
    return model, model.summarize(np.arange(len(counts)), batch, np.eye(len(counts))[place])


def test_clusters_that_are_new_or_grew_by_half_are_compared_again():
    _, total = small([30, 31, 15, 46, 7])
    after = replace(total, ids=np.array([9, 2, 5, 7, 11]))
    before = replace(total.take(np.array([3, 1, 0, 2])), ids=np.array([7, 2, 9, 5]))
    counts = {7: 30.0, 2: 30.0, 9: 20.0, 5: 2.0}
    before = replace(before, values={**before.values, "N": np.array([counts[int(i)] for i in before.ids])})
    assert grown(before, after).tolist() == [5, 7, 11]


def test_unions_name_the_smaller_id_first_whatever_the_order_of_clusters(monkeypatch):
    model, total = small([30, 30, 30, 30])
    total = replace(total, ids=np.array([9, 4, 6, 1]))
    found = unions(model, total, -1e9, total.ids)
    assert len(found) == 2 and all(a < b for a, b, _ in found)
    monkeypatch.setattr(unite, "PAIRS_BYTES", 1)  # one pair at a time
    assert unions(model, total, -1e9, total.ids) == found
    by_pair = pair_gains(model, total, total, total)
    first, second = np.triu_indices(4, 1)
    np.testing.assert_allclose(
        by_pair[first, second], union_gains(model, rows(total, first), rows(total, second), total), rtol=1e-12
    )


def test_clusters_that_a_third_batch_opens_have_the_names_and_counts_of_those_before():
    """Batches of a group open clusters in other orders: the same ones meet under one name, and their atoms add up."""
    model, total = small([20, 12, 9])
    newborn, held = Newborn(), {}
    for order, next_id in (([0, 1], 50), ([1, 2], 52), ([2, 0, 1], 53)):
        part = replace(total.take(np.array(order)), ids=np.arange(len(order)))
        names = newborn.names_for(model, Opened(part, part["N"].copy()), next_id)
        for place, name in zip(order, names, strict=True):
            assert held.setdefault(place, name) == name
    assert held == {0: 50, 1: 51, 2: 52} and newborn.names == [50, 51, 52]
    assert newborn.held.counts.tolist() == [40.0, 36.0, 18.0]
    assert newborn.held.summary.ids.tolist() == [50, 51, 52]
    np.testing.assert_allclose(newborn.held.summary["x"], total["x"] * [[2], [3], [2]])


def test_a_cluster_that_has_a_name_by_the_odds_of_its_tables():
    model, total = small([20, 12])
    opened = Opened(total, np.array([3.0, 1.0]))
    newborn = Newborn([5, 6], opened)
    data = evidence_gains(model, rows(total, np.array([0, 1])), rows(total, np.array([1, 1])))
    wanted = data + gammaln([4.0, 2.0]) - gammaln([3.0, 1.0]) - gammaln(1.0) - np.log(model.allocation.gamma)
    np.testing.assert_allclose(newborn._gains(model, np.array([0, 1]), opened, 1), wanted, rtol=1e-12)


def test_one_cluster_takes_the_place_of_another_among_all():
    _, total = small([5, 6, 7, 8])
    own = replace(total.take(np.array([0])), ids=np.array([0]))
    found = with_cluster(total, 2, own)
    for name in ("N", "x", "xx"):
        wanted = total[name].copy()
        wanted[2] = total[name][0]
        np.testing.assert_array_equal(found[name], wanted)
    assert total["N"].tolist() == [5.0, 6.0, 7.0, 8.0]  # as it was


def test_random_numbers_differ_by_seed_lap_and_batch():
    drawn = {generator(*key).random() for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0), (0, 1))}
    assert len(drawn) == 6 and generator(3, 2, 1).random() == generator(3, 2, 1).random()


def test_without_the_chance_that_a_cluster_is_empty_those_with_atoms_count():
    """Of a Pitman-Yor process the price of a cluster depends on how many there are."""
    model, total = small([20, 12, 9, 5])
    model = replace(model, allocation=bnp.PitmanYorMixture(2.0, 0.4))
    empty = replace(total, values={name: value.copy() for name, value in total.values.items()})
    for value in empty.values.values():
        if value.ndim and len(value) == 4:
            value[3] = 0.0
    a, b = rows(empty, np.array([0])), rows(empty, np.array([1]))
    urn, data = model.allocation.urn, evidence_gains(model, a, b)
    wanted = urn.log_partition(np.array([32.0, 9.0])) - urn.log_partition(np.array([20.0, 12.0, 9.0]))
    np.testing.assert_allclose(union_gains(model, a, b, empty) - data, wanted, rtol=1e-9)


def test_a_half_without_an_atom_is_no_cluster():
    model, total = small([20, 12, 9])
    halves = rows(total, np.array([0, 1, 2, 1]))
    n = np.array([10.0, 10.0, 19.5, 0.5])
    halves = replace(halves, values={**halves.values, "N": n})
    gains = split_gains(model, halves, np.array([0, 1]), total)
    assert np.isfinite(gains[0]) and gains[1] == -np.inf
