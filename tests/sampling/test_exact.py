"""Chains against the enumeration of all partitions, and their parts against the laws that they draw from."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.inference.chains import Pins, Sampler, sampler_from_saved, sampler_to_arrays, sampler_to_json
from bnp_dask.inference.sampling.chain import begin_sweep, draw_clusters
from bnp_dask.inference.sampling.sweep import Others, assign, density_of, urn_of
from bnp_dask.inference.sampling.visit import generator, pins_of
from bnp_dask.inference.sides import statistics
from bnp_dask.inference.visit import Request
from bnp_dask.kernels.mixture import NOBODY, ScreenedWeights, choose_among_all, choose_from_lists
from bnp_dask.kernels.predictive.counts import propose, reseat_counts, split_and_merge
from bnp_dask.kernels.predictive.urns import Urn
from bnp_dask.store.checkpoint import Part
from tests.sampling.chains import Few, canonical, distance, halves, left_by_one_lap, request, variation
from tests.streaming.cases import LIKELIHOODS, case
from tests.streaming.oracle import Oracle, log_prior

PRIORS = {
    "DP": (bnp.DPMixture(1.0), None),
    "normalized inverse Gaussian": (bnp.NGGPMixture(1.0, 0.5, 1.0), None),
    "large discount": (bnp.NGGPMixture(1.0, 0.75, 1.0), None),
    "finite": (bnp.FiniteMixture(2.0), 3),
}


SOON = ("Multinomial",)
LATER = ("Gaussian", "DiagGaussian", "Product", "Categorical", "NegativeBinomial", "SemiConjugateGaussian")
LONG = 1800
"""Seconds that a test of some ten thousand laps may take: a minute or two, or many times that on a busy machine."""

QUICK = ("DP",)
"""Chains with other priors begin from the exact posterior in the tests of one lap, with those of NGGP."""


@pytest.mark.parametrize("prior", [p if p in QUICK else pytest.param(p, marks=pytest.mark.long) for p in PRIORS])
def test_a_short_chain_is_near_the_exact_posterior(prior):
    allocation, n_clusters = PRIORS[prior]
    model, batch = case("Gaussian", allocation, 4)
    sweeps = 4000 if prior == "finite" else 1500  # empty clusters draw from a broad prior, so that it mixes slowly
    assert distance(model, batch, sweeps, n_clusters) < 0.1  # of which sampling error is 0.02 to 0.07


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("prior", PRIORS)
def test_chains_reach_the_exact_posterior(prior):
    allocation, n_clusters = PRIORS[prior]
    model, batch = case("Gaussian", allocation, 4)
    sweeps = 40_000 if prior == "finite" else 16_000  # of which independent draws are 0.008 away
    assert distance(model, batch, sweeps, n_clusters) < 0.02


# a lap that seats one batch again sweeps the other
@pytest.mark.parametrize("seated", [pytest.param(None, marks=pytest.mark.long), 0], ids=["sweep", "seating again"])
@pytest.mark.parametrize("likelihood", [*SOON, *(pytest.param(x, marks=pytest.mark.long) for x in LATER)])
def test_one_lap_from_the_exact_posterior_leads_to_the_exact_posterior(likelihood, seated):
    model, batch = case(likelihood, bnp.NGGPMixture(1.0, 0.5, 1.0), 4)
    exact = Oracle(model, batch, None).posterior
    found = left_by_one_lap(exact, model, halves(batch), 1500, seated)
    assert variation(found, exact) < 0.06  # of which sampling error is 0.02 to 0.045


@pytest.mark.long
@pytest.mark.parametrize("seated", [0, 1])
def test_a_batch_that_is_seated_again_in_part_and_swept_in_part_keeps_the_exact_posterior(seated, monkeypatch):
    monkeypatch.setattr("bnp_dask.inference.sampling.sweep.LEAST_SEATED", 1)
    model, batch = case("Gaussian", bnp.NGGPMixture(1.0, 0.5, 1.0), 5)
    exact = Oracle(model, batch, None).posterior
    batches = [batch.rows(0, 3), batch.rows(3, 5)]
    found = left_by_one_lap(exact, model, batches, 1500, seated)
    assert variation(found, exact) < 0.08  # of which sampling error is 0.04 to 0.055


def test_a_large_batch_is_seated_again_in_part(monkeypatch):
    monkeypatch.setattr("bnp_dask.inference.sampling.sweep.LEAST_SEATED", 2)
    model, batch = case("Gaussian", bnp.DPMixture(1.0), 8)
    few = Few.of(model, [batch])
    few.place((0, 0, 0, 0, 1, 1, 1, 1), 1)
    seen = []
    monkeypatch.setattr(
        "bnp_dask.inference.sampling.sweep._reseat_any", lambda m, w, atoms, p, r: seen.append(atoms) or 2
    )
    few.lap(1, 0)
    assert [atoms.n_atoms for atoms in seen] == [2]


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_atoms_seated_again_several_at_once_keep_the_exact_posterior(likelihood, monkeypatch):
    monkeypatch.setattr("bnp_dask.inference.sampling.sweep.CHUNK_SHARE", 1.0)
    model, batch = case(likelihood, bnp.NGGPMixture(1.0, 0.5, 1.0), 5)
    exact = Oracle(model, batch, None).posterior
    assert variation(left_by_one_lap(exact, model, [batch], 20_000, 0), exact) < 0.02


def test_a_cluster_keeps_one_of_its_atoms_in_a_sweep():
    model, batch = case("Gaussian", bnp.DPMixture(1.0), 5)
    few = Few.of(model, halves(batch))
    for lap in range(1, 20):
        few.place((0, 1, 2, 0, 1), lap)
        few.lap(lap, None)
        assert len(set(few.partition)) == 3


def test_each_atom_of_a_cluster_is_as_likely_to_be_kept():
    model, _ = case("Gaussian", bnp.DPMixture(1.0), 4)
    known = Others(0, 0, model.empty_summary(np.zeros(1, np.int64)), 1)
    found = [pins_of(known, Request(0, "x", None, seed), np.zeros(4, np.int64), 1).row[0] for seed in range(800)]
    assert np.abs(np.bincount(found, minlength=4) - 200).max() < 4.0 * np.sqrt(150.0)


def test_the_least_number_of_all_batches_says_which_atom_is_kept():
    first = Pins(np.array([0.3, 0.5]), np.array([0, 0]), np.array([7, 8]))
    second = Pins(np.array([0.4, 0.2, 0.9]), np.array([1, 1, 1]), np.array([1, 2, 3]))
    both = first.or_less(second)
    assert both.batch.tolist() == [0, 1, 1]
    assert both.row.tolist() == [7, 2, 3]
    assert Pins.none(2).or_less(both).number.tolist() == [0.3, 0.2, 0.9]


def test_clusters_are_proposed_in_proportion_to_weight_and_density():
    n, k, rng = 200, 3, np.random.default_rng(0)
    table, weight = rng.normal(size=(n, k + 1)), np.array([2.0, 0.0, 1.0, 0.5])
    uniform, out, level = rng.random(n), np.empty(n, np.int64), np.empty(n)
    propose(table, weight, uniform, out, level)
    mass = weight * np.exp(table)
    assert_allclose(level, np.log(mass.sum(axis=1)), rtol=1e-12)
    assert out.tolist() == (np.cumsum(mass, axis=1) <= (uniform * mass.sum(axis=1))[:, None]).sum(axis=1).tolist()


@pytest.mark.first_case
@pytest.mark.parametrize("others", [[], [5, 7, 6]], ids=["alone", "joined"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_density_of_an_atom_that_others_joined_is_that_of_the_summary_of_all(likelihood, others):
    model, batch = case(likelihood, bnp.DPMixture(1.0), 8)
    rounded = getattr(model.observation, "grain", None) is not None
    if rounded:
        model = replace(model, observation=replace(model.observation, grain=np.array([0.5, 0.0])))
    first, few = batch.rows(0, 4), batch
    base = statistics(model, np.arange(3), first, np.array([0, 1, 0, 0]))
    density = density_of(model, base, model.observation_step(base), few)
    for k in range(3):
        start = base.take([k])
        joined = few.take(np.array(others, np.int64))
        whole = start + statistics(model, start.ids, joined, np.zeros(len(others), np.int64))
        expected = model.observation.log_predictive(model.observation_step(whole), few.rows(4, 5))[0, 0]
        assert_allclose(density(4, k, others), expected, rtol=1e-9)


@pytest.mark.parametrize("prior", QUICK)
def test_clusters_of_documents_split_and_united_keep_the_exact_posterior(prior):
    allocation, _ = PRIORS[prior]
    model, batch = case("Multinomial", allocation, 5)
    exact, rng = Oracle(model, batch, None).posterior, np.random.default_rng(1)
    rule = urn_of(model).given(np.array([5.0]), rng).packed()
    rows = (batch.x.indptr.astype(np.int64), batch.x.indices.astype(np.int64), batch.x.data)
    lam, state = np.ascontiguousarray(model.observation.lam, np.float64), np.array([12345678912345], np.uint64)
    known, chance = list(exact), np.array(list(exact.values()))
    found, moved = Counter(), 0
    for start in rng.choice(len(known), 20_000, p=chance / chance.sum()):
        places = np.array(known[start])
        k = split_and_merge(rows, lam, rule, places, places.max() + 1, 3, state)
        assert places.max() < k
        found[canonical(places)] += 1
        moved += canonical(places) != known[start]
    assert moved > 4000
    assert variation(found, exact) < 0.02  # of which sampling error is 0.01


def test_a_large_cluster_that_is_two_is_split():
    rng = np.random.default_rng(0)
    words = np.repeat(np.eye(2), 20, axis=1) * 0.049 + 0.0005
    x = np.concatenate([rng.multinomial(50, words[side] / words[side].sum(), size=100) for side in (0, 1)])
    counts = sparse.csr_array(x.astype(float))
    rows = (counts.indptr.astype(np.int64), counts.indices.astype(np.int64), counts.data)
    places, state = np.zeros(200, np.int64), np.array([7], np.uint64)
    rule = Urn(1.0).given(np.array([200.0]), rng).packed()
    k = split_and_merge(rows, np.full(40, 0.1), rule, places, 1, 20, state)
    assert k == 2
    assert canonical(places) == tuple([0] * 100 + [1] * 100)
    places[::2] = places[::2] + 2  # four of two
    split_and_merge(rows, np.full(40, 0.1), rule, places, 4, 200, state)
    assert canonical(places) == tuple([0] * 100 + [1] * 100)


@pytest.mark.parametrize("uniform", [0.05, 0.4, 0.7, 0.99])
def test_a_document_is_seated_by_its_conditional_distribution(uniform):
    model, batch = case("Multinomial", bnp.NGGPMixture(1.0, 0.5, 1.0), 5)
    places, ids = np.array([0, 1, 0, 1, 2]), np.arange(3)
    others = statistics(model, ids, batch.take(np.array([0, 1, 3, 4])), places[[0, 1, 3, 4]])
    density = model.observation.log_predictive(model.observation_step(others.insert_empty(np.array([3]))), batch)[2]
    partition = model.allocation.log_partition
    prior = [partition(np.append(others["N"], 0.0)[: 3 + (j == 3)] + (np.arange(3 + (j == 3)) == j)) for j in range(4)]
    mass = np.exp(density + np.array(prior))
    whole = statistics(model, ids, batch, places)
    rows = (batch.x.indptr.astype(np.int64), batch.x.indices.astype(np.int64), batch.x.data)
    tables = (np.ascontiguousarray(whole["x"].T), whole["x"].sum(axis=1), whole["N"].copy())
    order, lam = np.array([2]), np.ascontiguousarray(model.observation.lam, np.float64)
    rule = model.allocation.urn.given(whole["N"], np.random.default_rng(0)).packed()
    reseat_counts(rows, lam, rule, tables, places, order, np.array([uniform]))
    assert places[2] == np.searchsorted(np.cumsum(mass), uniform * mass.sum(), side="right")


def test_clusters_are_drawn_from_their_responsibilities():
    log_lik, uniform = np.zeros((4, 3)), np.array([0.1, 0.4, 0.6, 0.99])
    weight = np.log([0.25, 0.25, 0.5])
    assert choose_among_all(log_lik.copy(), weight, uniform).tolist() == [0, 1, 2, 2]
    lists = ScreenedWeights(np.arange(0, 13, 3), np.tile([0, 1, 2], 4), np.tile(weight, 4), 3)
    assert choose_from_lists(lists, uniform).tolist() == [0, 1, 2, 2]
    nowhere = ScreenedWeights(np.array([0, 1]), np.array([0]), np.array([-np.inf]), 3)
    assert choose_from_lists(nowhere, uniform[:1]).tolist() == [NOBODY]


def test_probability_of_a_partition_is_that_of_its_prior():
    counts = np.array([3.0, 2.0, 1.0])
    dp, zero = bnp.DPMixture(2.0).log_partition(counts), bnp.NGGPMixture(2.0, 0.0, 1.0).log_partition(counts)
    assert_allclose(dp, zero, rtol=1e-12)
    inverse = bnp.NGGPMixture(2.0, 0.5, 1.0)
    assert_allclose(inverse.log_partition(counts), log_prior(inverse, counts), rtol=1e-9)
    assert_allclose(np.exp(dp), 2.0**3 * 2.0 * 1.0 * 1.0 / np.prod(2.0 + np.arange(6)), rtol=1e-12)


# -- random numbers, and what a checkpoint keeps ------------------------------------------------------------------
def test_random_numbers_depend_on_seed_chain_lap_purpose_and_batch():
    keys = [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]
    keys += [(0, 1, 1, 0, 0), (0, 0, 1, 1, 0), (0, 0, 0, 1, 1)]
    drawn = [tuple(generator(*key).integers(2**62, size=3)) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert drawn == [tuple(generator(*key).integers(2**62, size=3)) for key in keys]


def test_a_checkpoint_brings_back_chains_with_their_pins_between_sweeps_and_within_one():
    model, batch = case("DiagGaussian", bnp.DPMixture(1.0), 6)
    few = Few.of(model, halves(batch))
    few.place((0, 1, 0, 1, 1, 2), 1)
    few.lap(1, None)
    between = replace(few.chain)
    few.lap(2, 1)
    begin_sweep(model, few.chain, few.chain.total.ids, 4)
    few._take(0, assign(model, draw_clusters(model, few.chain, 0, 3, 0, 8), few.batches[0], request(0), few.labels[0]))
    few.chain.sweep.rows[:] = [3, 1, 2, 0]
    sampler = Sampler([between, few.chain], [(2, Part("draw", 10, 3))])
    saved = {name: array.copy() for name, array in sampler_to_arrays(sampler).items()}
    again = sampler_from_saved(model, json.loads(json.dumps(sampler_to_json(sampler))), saved)
    assert [again.draws, again.kind] == [sampler.draws, sampler.kind]
    assert_same(sampler_to_arrays(again), saved)
    for old, new in zip(sampler.chains, again.chains, strict=True):
        assert (old.next_id, old.log_joint) == (new.next_id, new.log_joint)
        assert_same(vars(new.pins), vars(old.pins))
    assert again.chains[0].sweep is None
    assert_same(vars(again.chains[1].sweep.pins), vars(few.chain.sweep.pins))
    assert again.chains[1].sweep.rows.tolist() == [3, 1, 2, 0]
    assert sampler_from_saved(model, sampler_to_json(None), {}) is None


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
