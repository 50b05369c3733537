"""Prior of NGGP mixtures: predictive rules against enumeration and against quadrature from the definition."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.errors import SettingError
from bnp_dask.kernels.predictive import urns
from tests.streaming.oracle import log_nggp_mass, log_prior, partitions

PRIORS = [(3.0, 0.5, 1.5), (0.2, 0.75, 10.0), (10.0, 0.1, 0.0), (1.0, 0.5, 1000.0), (100.0, 0.9, 0.1), (2.0, 0.0, 1.0)]


def sizes(partition) -> np.ndarray:
    return np.bincount(partition).astype(float)


@pytest.mark.parametrize("prior", PRIORS)
def test_partitions_have_probability_one(prior):
    mixture = bnp.NGGPMixture(*prior)
    assert_allclose(sum(np.exp(mixture.log_partition(sizes(p))) for p in partitions(6)), 1.0, rtol=1e-12)


@pytest.mark.parametrize("prior", PRIORS)
def test_probability_of_a_partition_is_the_integral_of_its_definition(prior):
    mixture = bnp.NGGPMixture(*prior)
    for counts in ([1], [1, 1], [3, 1, 2], [30, 2, 1, 1], [400, 100]):
        n = np.array(counts, float)
        assert_allclose(mixture.log_partition(n), log_prior(mixture, n), rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("prior", PRIORS)
def test_predictive_probabilities_sum_to_one_and_are_ratios_of_partitions(prior):
    mixture = bnp.NGGPMixture(*prior)
    for counts in ([1], [3, 1, 2], [5, 1, 1, 1, 1], [40, 7, 3]):
        n = np.array(counts, float)
        seat, new = mixture.urn.rule_after(n.sum(), len(n))
        seats = seat * (n - mixture.sigma)
        assert_allclose(seats.sum() + new, 1.0, rtol=1e-12)
        before = mixture.log_partition(n)
        assert_allclose(np.log(new), mixture.log_partition(np.append(n, 1.0)) - before, atol=1e-12)
        for k in range(len(n)):
            more = n + (np.arange(len(n)) == k)
            assert_allclose(np.log(seats[k]), mixture.log_partition(more) - before, atol=1e-12)


def test_exact_rule_sums_to_one_for_expected_numbers_too():
    seat, new = urns.rule_of(123.4, 17.25, 2.0, 0.6, 3.0)
    assert_allclose(seat * (123.4 - 0.6 * 17.25) + new, 1.0, rtol=1e-12)


def test_rules_differ_as_stated():
    found = {rule: bnp.NGGPMixture(3.0, 0.5, 1.5, rule=rule).urn.rule_after(6, 3)[1] for rule in nggp_rules()}
    assert_allclose([found["exact"], found["mean"], found["mode"]], [0.5717, 0.5601, 0.5596], atol=5e-5)


def nggp_rules():
    return ("exact", "mean", "mode")


def test_exponent_as_printed_doubles_the_probability_of_a_new_cluster():
    a, sigma, tau, n, k = 10.0, 0.5, 100.0, 92 * 30, 92
    _, right = urns.rule_of(n, k, a, sigma, tau, urns.MODE)
    assert_allclose(right, 0.11, atol=0.003)
    # U^n / (U + tau)^(n - a K) is what sigma K = a K would give
    u = np.logspace(-3, 12, 200_000)
    printed = n * np.log(u) - (n - a * k) * np.log(u + tau) - a / sigma * (u + tau) ** sigma
    new = a * (u[np.argmax(printed)] + tau) ** sigma
    assert_allclose(new / (n - sigma * k + new), 0.26, atol=0.01)


@pytest.mark.parametrize("prior", [(3.0, 0.5, 1.5), (1.0, 0.75, 1.0), (100.0, 0.2, 0.1)])
def test_other_rules_give_a_new_cluster_less_and_agree_after_many_atoms(prior):
    for n, mean, mode in ((6, 0.06, 0.06), (1000, 1e-3, 7e-3), (10_000, 1e-4, 3.1e-3)):
        for k in (max(1.0, 0.5 * n ** prior[1]), min(n, prior[0] * n ** prior[1])):
            found = [urns.rule_of(n, k, *prior, rule)[1] for rule in (urns.EXACT, urns.MEAN, urns.MODE)]
            assert -mean < found[1] / found[0] - 1.0 < 0.0
            assert -mode < found[2] / found[0] - 1.0 < 0.0


def test_without_discount_it_is_the_chinese_restaurant():
    urn, other = bnp.NGGPMixture(2.5, 0.0, 7.0).urn, bnp.DPMixture(2.5).urn
    assert urn.rule_after(10.0, 3.0) == other.rule_after(10.0, 3.0) == (1 / 12.5, 2.5 / 12.5)
    near = bnp.NGGPMixture(2.5, 1e-7, 7.0).urn.rule_after(10.0, 3.0)
    assert_allclose(near, (1 / 12.5, 2.5 / 12.5), rtol=1e-5)


def test_mass_is_that_of_adaptive_quadrature_for_many_atoms():
    for n, k in ((1000, 30), (50_000, 800)):
        assert_allclose(
            urns.log_mass(float(n), float(k), 10.0, 0.5, 100.0), log_nggp_mass(n, k, 10.0, 0.5, 100.0), rtol=1e-10
        )


@pytest.mark.parametrize("wrong", [{"a": 0}, {"sigma": 1.0}, {"sigma": -0.1}, {"tau": -1}, {"rule": "best"}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        bnp.NGGPMixture(**wrong)
