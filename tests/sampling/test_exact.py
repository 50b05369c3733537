"""Chains against the enumeration of all partitions, and their parts against the laws that they draw from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

import bnp_dask as bnp
from bnp_dask.kernels.mixture.choose import NOBODY, Choice
from bnp_dask.kernels.mixture.resp import ScreenedWeights
from bnp_dask.kernels.streaming.jumps import draw_auxiliary, unused_jumps, unused_small_jumps
from tests.sampling.chains import distance
from tests.streaming.cases import case

PRIORS = {
    "DP": (bnp.DPMixture(1.0), None),
    "normalized inverse Gaussian": (bnp.NGGPMixture(1.0, 0.5, 1.0), None),
    "large discount": (bnp.NGGPMixture(1.0, 0.75, 1.0), None),
    "finite": (bnp.FiniteMixture(2.0), 3),
}


QUICK = ("DP", "normalized inverse Gaussian")


@pytest.mark.parametrize("prior", [p if p in QUICK else pytest.param(p, marks=pytest.mark.long) for p in PRIORS])
def test_a_short_chain_is_near_the_exact_posterior(prior):
    allocation, n_clusters = PRIORS[prior]
    model, batch = case("Gaussian", allocation, 4)
    sweeps = 4000 if prior == "finite" else 1500  # empty clusters draw from a broad prior, so that it mixes slowly
    assert distance(model, batch, sweeps, n_clusters) < 0.1  # of which sampling error is 0.02 to 0.07


@pytest.mark.long
@pytest.mark.parametrize("prior", PRIORS)
def test_chains_reach_the_exact_posterior(prior):
    allocation, n_clusters = PRIORS[prior]
    model, batch = case("Gaussian", allocation, 4)
    assert distance(model, batch, 40_000, n_clusters) < 0.02


@pytest.mark.parametrize("sigma", [0.0, 0.5, 0.75])
def test_unused_jumps_are_as_many_as_the_process_has(sigma):
    rng, n, least = np.random.default_rng(0), 3000, 0.05
    found = np.mean([len(unused_jumps(2.0, sigma, least, rng)) for _ in range(n)])
    expected, _ = quad(lambda s: 2.0 * s ** (-1.0 - sigma) * np.exp(-s), least, np.inf)
    assert abs(found - expected) < 4.0 * np.sqrt(expected / n)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 0.75])
def test_windows_that_overlap_show_a_jump_once(sigma):
    rng, n, most = np.random.default_rng(0), 2000, 0.3
    ends = np.array([0.7, 0.7])
    found = np.mean([len(unused_small_jumps(2.0, sigma, most, ends, rng)[0]) for _ in range(n)])
    expected, _ = quad(lambda v: 2.0 * v**-sigma * np.exp(-v) / most, 0.0, most)
    assert abs(found - expected) < 4.0 * np.sqrt(expected / n)


def test_the_auxiliary_variable_has_its_density():
    n, k, a, sigma, tau = 6.0, 3.0, 1.0, 0.5, 1.0
    rng = np.random.default_rng(0)
    found = np.log([draw_auxiliary(n, k, a, sigma, tau, rng) for _ in range(2000)])
    v = np.linspace(-30.0, 20.0, 20_001)
    logs = -n * np.log1p(tau * np.exp(-v)) + sigma * k * np.log(np.exp(v) + tau)
    logs -= a / sigma * ((np.exp(v) + tau) ** sigma - tau**sigma)
    density = np.exp(logs - logs.max())
    mean = np.sum(density * v) / density.sum()
    assert abs(found.mean() - mean) < 4.0 * found.std() / np.sqrt(len(found))


def choice(n, places):
    height = np.array([5.0, 1.0, 0.01])
    slices, ends = np.array([3.0, 0.5, 0.005, 0.005]), np.array([0.2, 0.2, 0.2, 0.2])
    return Choice(np.zeros(3), height, np.array([500.0, 100.0, 0.5]), np.array([0.0, 0.0, 0.9]), slices, ends, places)


def test_closed_clusters_get_no_atom():
    n = 4
    closed = np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]], bool)
    found = choice(n, np.zeros(n, np.int64))
    for u in np.linspace(0.01, 0.99, 9):
        assert not closed[np.arange(n), found.from_all(np.zeros((n, 3)), np.full(n, u))].any()
    assert found.from_all(np.zeros((n, 3)), np.full(n, 0.99))[2] == 2


def test_atoms_whose_best_cluster_is_closed_are_left_to_all():
    offsets, index = np.arange(0, 9, 2), np.tile([0, 1], 4)
    lists = ScreenedWeights(offsets, index, np.array([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 3)
    found = choice(4, np.zeros(4, np.int64)).from_lists(lists, np.full(4, 0.1))
    assert found.tolist() == [NOBODY, 0, NOBODY, NOBODY]


def test_probability_of_a_partition_is_that_of_its_prior():
    counts = np.array([3.0, 2.0, 1.0])
    dp, zero = bnp.DPMixture(2.0).log_partition(counts), bnp.NGGPMixture(2.0, 0.0, 1.0).log_partition(counts)
    assert_allclose(dp, zero, rtol=1e-12)
    assert_allclose(np.exp(dp), 2.0**3 * 2.0 * 1.0 * 1.0 / np.prod(2.0 + np.arange(6)), rtol=1e-12)
