"""Log probability of whole documents, against all assignments of their words to topics."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.structure.answers import prior_mass

WORDS = 5


def corpus(n=40, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(WORDS, 0.3), 2)
    shares = rng.dirichlet(np.ones(2), n)
    return sparse.csr_array(np.array([rng.multinomial(30, s @ topics) for s in shares], float))


@pytest.fixture(scope="module")
def posteriors():
    x = corpus()
    start = bnp.RandomExamples(2)
    out = {}
    for name, allocation in (("HDP", bnp.HDPTopics()), ("LDA", bnp.LDA()), ("mixture", bnp.DPMixture())):
        model = bnp.Model(allocation, bnp.Multinomial(0.5))
        schedule = bnp.Memoized(laps=3, tolerance=0.0, count_tolerance=0.0)
        with pytest.warns(bnp.ConvergenceWarning):
            out[name] = bnp.train(model, x, init=start, moves=(), schedule=schedule).posterior
    return out


def enumerated(posterior, words):
    """Log probability of a list of words by the sum over all topics of each."""
    prior, rest = prior_mass(posterior)
    prior = prior * (1.0 + rest / prior.sum())
    lam = posterior.for_scores().observation.lam
    theta = lam / lam.sum(axis=1, keepdims=True)
    total = 0.0
    for z in itertools.product(range(len(prior)), repeat=len(words)):
        held = np.bincount(z, minlength=len(prior))
        shares = gammaln(prior + held).sum() - gammaln(prior).sum()
        shares += gammaln(prior.sum()) - gammaln(prior.sum() + len(words))
        total += math.exp(shares) * np.prod(theta[list(z), words])
    return math.log(total)


@pytest.mark.parametrize("name", ["HDP", "LDA"])
def test_samples_are_near_the_sum_over_all_topics_of_words(posteriors, name):
    documents = [[0, 1, 1, 4], [2, 2, 2], [3, 0, 4, 4, 1, 2]]
    x = np.array([np.bincount(words, minlength=WORDS) for words in documents], float)
    exact = sum(enumerated(posteriors[name], words) for words in documents) / x.sum()
    found = bnp.word_score(posteriors[name], sparse.csr_array(x), samples=1000)
    assert_allclose(found, exact, atol=0.005)


def test_a_mixture_has_a_closed_form(posteriors):
    posterior, x = posteriors["mixture"], corpus(seed=1)
    lam, weights = posterior.observation.lam, posterior.weights / posterior.weights.sum()
    logs = x.toarray() @ np.log(lam / lam.sum(axis=1, keepdims=True)).T
    exact = np.log((weights * np.exp(logs)).sum(axis=1)).sum() / x.sum()
    assert_allclose(bnp.word_score(posterior, x), exact, rtol=1e-12)


@pytest.mark.parametrize("name", ["HDP", "mixture"])
def test_neither_batches_nor_workers_nor_the_order_change_a_score(posteriors, name):
    x, posterior = corpus(seed=1), posteriors[name]
    whole = bnp.word_score(posterior, x, client=SerialExecutor())
    executor = ThreadExecutor(2)
    assert_allclose(bnp.word_score(posterior, x[::-1], batch_size=7, client=executor), whole, rtol=1e-12)
    assert bnp.word_score(posterior, x, client=executor) == whole
    executor.close()


def test_a_seed_draws_other_topics_and_weights_count_documents(posteriors):
    x, posterior = corpus(seed=1), posteriors["HDP"]
    first = bnp.word_score(posterior, x)
    assert first != bnp.word_score(posterior, x, seed=1)
    assert_allclose(bnp.word_score(posterior, x, seed=1), first, atol=0.02)
    once = bnp.word_score(posterior, x[:10])
    weights = np.where(np.arange(40) < 10, 2.0, 0.0)
    assert_allclose(bnp.word_score(posterior, bnp.as_source(x, weights=weights)), once, rtol=1e-12)


def test_what_has_no_words_is_refused(posteriors):
    x = np.random.default_rng(0).normal(size=(30, 2))
    points = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, init=bnp.BregmanKMeans(2)).posterior
    with pytest.raises(SettingError, match="DPMixture of Gaussian has no documents of words"):
        bnp.word_score(points, x)
    with pytest.raises(DataError, match="not a whole number"):
        bnp.word_score(posteriors["HDP"], corpus() * 0.5)
    with pytest.raises(DataError, match="no words that count"):
        bnp.word_score(posteriors["HDP"], np.zeros((3, WORDS)))
    with pytest.raises(SettingError, match="samples=0"):
        bnp.word_score(posteriors["HDP"], corpus(), samples=0)
