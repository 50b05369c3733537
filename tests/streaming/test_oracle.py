"""Filters, site by site, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.inference.streaming.task import seat_batch, site_of
from bnp_dask.kernels.predictive.urns import seat_atom
from bnp_dask.observation.base import LOG_BASE, EvidenceObservation
from tests.streaming.cases import LIKELIHOODS, case
from tests.streaming.oracle import Oracle, partitions

PRIORS = [bnp.DPMixture(1.0), bnp.NGGPMixture(1.0, 0.5, 1.0)]


def nothing(model):
    return model.empty_summary(np.zeros(0, np.int64))


def test_there_are_as_many_partitions_as_bells_number():
    assert [sum(1 for _ in partitions(n)) for n in (1, 2, 3, 4, 8)] == [1, 2, 5, 15, 4140]


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_evidence_by_prediction_is_the_integral(likelihood):
    model, batch = case(likelihood, bnp.DPMixture(), 5)
    oracle = Oracle(model, batch)
    if isinstance(model.observation, EvidenceObservation):
        whole = oracle.summary((0, 1, 2, 3, 4))
        value = model.observation.evidence(whole)[0] + whole.values.get(LOG_BASE, 0.0)
        assert_allclose(oracle.log_evidence((0, 1, 2, 3, 4)), value, rtol=1e-9)
    assert_allclose(oracle.log_evidence((0, 3, 2)), oracle.log_evidence((2, 0, 3)), rtol=1e-9)


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS, ids=["DP", "NGGP"])
def test_two_atoms_are_filtered_exactly(likelihood, prior):
    model, batch = case(likelihood, prior, 2)
    oracle, found = Oracle(model, batch), seat_batch(model, nothing(model), batch, 0.0)
    assert_allclose(found.log_predictive, oracle.log_marginal, rtol=1e-10)
    assert_allclose(found.resp.to_dense()[1, 0], oracle.together[0, 1], rtol=1e-9)


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS, ids=["DP", "NGGP"])
def test_filter_is_near_the_evidence_and_the_number_of_clusters(likelihood, prior):
    evidence, clusters = [], []
    for seed in range(2):
        model, batch = case(likelihood, prior, 5, seed)
        oracle, site = Oracle(model, batch), site_of(model, nothing(model), batch, 0.0)
        evidence.append(site.log_predictive - oracle.log_marginal)
        found = seat_batch(model, nothing(model), batch, 0.0).resp.to_dense()
        absent = np.array([np.prod(1.0 - r) for r in found.T])
        clusters.append(np.sum(1.0 - absent) - oracle.expected_clusters)
    assert np.abs(evidence).max() < 0.5
    assert np.abs(clusters).max() < 0.5


@pytest.mark.parametrize("epsilon, opened", [(0.19, True), (0.21, False)])
def test_a_cluster_is_opened_where_its_probability_is_above_epsilon(epsilon, opened):
    """One cluster of four atoms, and a fifth that fits it as well as it fits the prior."""
    resp = np.zeros(2)
    level, found = seat_atom(np.zeros(2), np.array([0.8, 0.0]), 1, 0.2, epsilon, resp)
    assert found == opened
    assert_allclose(resp, [0.8, 0.2] if opened else [1.0, 0.0])
    assert_allclose(level, 0.0, atol=1e-15)
