"""Chains of HDP topics and of sticky HDP-HMMs against all assignments of a few tokens or steps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.testing.parts import survey_of
from tests.sampling.chains import variation
from tests.sampling.top_levels import Paths, sampling_error, topics_exactly, visited
from tests.streaming.cases import LIKELIHOODS, case


def few_documents():
    """Three documents of five tokens in all, in two batches; the last of the first batch is empty."""
    x = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    model = bnp.Model(bnp.HDPTopics(gamma=1.5, alpha=0.8), bnp.Multinomial(0.4))
    model = model.with_prior(survey_of(Batch(sparse.csr_array(x), None, "x")))
    return model, [Batch(sparse.csr_array(x[:2]), None, "x"), Batch(sparse.csr_array(x[2:]), None, "x")]


def few_sequences(likelihood, kappa):
    """Three sequences of five steps in all, in two batches."""
    model, batch = case(likelihood, bnp.HDPHMM(gamma=2.0, alpha=1.0, alpha0=1.5, kappa=kappa), 5)
    parts = [(batch.rows(0, 3), np.array([0, 3])), (batch.rows(3, 5), np.array([0, 1, 2]))]
    return model, [Batch(part.x, None, part.name, groups) for part, groups in parts]


def far(model, batches, exact, laps):
    """Total variation of a chain, and of independent draws."""
    return variation(visited(model, batches, laps), exact), sampling_error(exact, laps)


def test_topics_of_tokens_are_near_all_partitions():
    model, batches = few_documents()
    found, _ = far(model, batches, topics_exactly(model, batches), 2000)
    assert found < 0.12  # of which sampling error is .02 to .07


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("together", [False, True], ids=["two batches", "one batch"])
def test_topics_of_tokens_are_drawn_from_all_partitions(together):
    model, batches = few_documents()
    if together:
        x = sparse.csr_array(sparse.vstack([batch.x for batch in batches]))
        batches = [Batch(x, None, "x")]
    found, error = far(model, batches, topics_exactly(model, batches), 60_000)
    assert found < 0.02, error


@pytest.mark.parametrize("kappa", [2.0, pytest.param(0.0, marks=pytest.mark.long)])
def test_one_lap_from_all_paths_is_near_all_paths(kappa):
    exact = Paths.of(*few_sequences("Gaussian", kappa))
    assert variation(exact.left_by_one_lap(1000), exact.posterior) < 0.06  # of which sampling error is .02 to .04


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_one_lap_from_all_paths_leads_to_all_paths(likelihood):
    exact = Paths.of(*few_sequences(likelihood, 2.0))
    laps = 10_000
    found, error = variation(exact.left_by_one_lap(laps), exact.posterior), sampling_error(exact.posterior, laps)
    assert found < 0.02, error
