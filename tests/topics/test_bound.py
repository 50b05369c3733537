"""The bound of a document against the sum over all assignments of its tokens, and against annealed sampling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import gammaln

from benchmarks.topics.bound import Document
from bnp_dask.core.batch import Batch
from tests.topics.parts import begin, corpus, word_model


@pytest.fixture(scope="module")
def documents():
    """Tiny documents of five tokens under three topics."""
    rng = np.random.default_rng(3)
    x = corpus()[0]
    posterior = begin(word_model("hdp", restarts=0), Batch(x), k=3)
    rows = sparse.csr_array(rng.multinomial(5, np.full(x.shape[1], 1.0 / x.shape[1]), 4).astype(float))
    return posterior, rows


def test_the_bound_is_below_the_sum_over_all_assignments(documents):
    posterior, rows = documents
    for d in range(rows.shape[0]):
        own = Document(posterior, rows[[d]])
        assert own.bound() < own.enumerated()


@pytest.mark.long
def test_annealed_sampling_finds_the_sum_over_all_assignments(documents):
    posterior, rows = documents
    for d in range(rows.shape[0]):
        own = Document(posterior, rows[[d]])
        assert own.sampled(steps=300, chains=400, seed=1000 * d) == pytest.approx(own.enumerated(), abs=0.05)


def test_the_bound_of_documents_is_the_one_of_the_objective(documents):
    posterior, rows = documents
    allocation, total = posterior.model.allocation, posterior.model.local_step(posterior, Batch(rows))
    own = [Document(posterior, rows[[d]]) for d in range(rows.shape[0])]
    value = allocation.document_term(posterior.allocation, total) + float(total["H"].sum())
    value += sum(float((one.resp * one.log_lik).sum()) for one in own)
    prior = np.append(own[0].prior, own[0].rest)
    value += len(own) * float(gammaln(prior.sum()) - gammaln(prior).sum())  # in the objective a part of the top level
    assert sum(one.bound() for one in own) == pytest.approx(value, abs=0.02)
