"""Topics for prediction: collapsed updates against plain loops over tokens, and that more laps do not undo them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from benchmarks.topics.corpora import SHARED, halves, kos
from bnp_dask.analysis.topics.completion import BEGIN
from bnp_dask.core.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.kernels.topics.tokens import collapsed_counts
from bnp_dask.structure.answers import find_topics
from tests.topics.bars import thin_bars

X = thin_bars(0, side=4, n_docs=60, length=25)[0]


def trained(allocation=None, laps=3, x=X):
    model = bnp.Model(allocation or bnp.HDPTopics(), bnp.Multinomial())
    schedule = bnp.Memoized(laps=laps, tolerance=0.0, count_tolerance=0.0)
    with pytest.warns(bnp.ConvergenceWarning):
        return bnp.train(model, x, init=bnp.SampledTopics(6, 20), moves=(), schedule=schedule, batch_size=20).posterior


def by_hand(posterior, x, passes, times=None):
    """Counts ``(V, K)``, one document and word after the other, with responsibilities of all kept from pass to pass."""
    found = find_topics(posterior, Batch(x), BEGIN)
    times = np.ones(x.shape[0]) if times is None else times
    dense, lam = x.toarray(), np.asarray(posterior.model.observation.lam)
    phi = (posterior.observation.lam / posterior.observation.lam.sum(axis=1, keepdims=True)).T
    held = found.counts().toarray()
    use = held > 0
    use[~use.any(axis=1)] = True
    resp = (held + found.prior)[:, None, :] * phi * use[:, None, :]
    resp /= resp.sum(axis=2, keepdims=True)
    for _ in range(passes):
        table = np.einsum("d,dv,dvk->vk", times, dense, resp)
        old = resp.copy()
        for d, row in enumerate(dense):
            own = times[d] * row[:, None] * old[d]
            outside = table.sum(axis=0) - own.sum(axis=0) + lam.sum()
            for v in np.flatnonzero(row):
                others = np.delete(row[:, None] * resp[d], v, axis=0).sum(axis=0)
                new = (others + found.prior) * (table[v] - own[v] + lam[v]) / outside * use[d]
                resp[d, v] = new / new.sum()
    return np.einsum("d,dv,dvk->vk", times, dense, resp)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("allocation", [bnp.HDPTopics(), bnp.LDA()], ids=["HDP", "LDA"])
def test_counts_are_those_of_loops_over_words(allocation, passes):
    posterior = trained(allocation)
    found = bnp.collapsed_topics(posterior, X, passes=passes, batch_size=7)
    expected = by_hand(posterior, X, passes)
    assert_allclose(found.summary["x"].T, expected, rtol=1e-9, atol=1e-9)
    assert_allclose(found.observation.lam, expected.T + found.model.observation.lam, rtol=1e-9)
    assert_array_equal(found.ids, posterior.ids)
    assert_array_equal(found.weights, posterior.weights)


def test_weights_of_documents_count():
    posterior, times = trained(), np.arange(60.0) % 3
    found = bnp.collapsed_topics(posterior, bnp.as_source(X, weights=times), passes=2)
    assert_allclose(found.summary["x"].T, by_hand(posterior, X, 2, times), rtol=1e-9, atol=1e-9)


def test_a_document_without_topics_is_open_to_all():
    """No word has been looked at: its topics are those of the prior and of its words."""
    none = np.zeros(0, np.int64)
    out, prior, phi = np.zeros((1, 2)), np.array([0.3, 0.1]), np.array([[0.2, 0.6]])
    documents = np.array([0, 1]), np.array([0]), np.array([4.0]), np.ones(1)
    states = np.zeros(2, np.int64), none, np.zeros(0)
    collapsed_counts(documents, states, prior, phi, np.zeros((0, 1, 2)), np.zeros((0, 2)), np.ones(1), 1.0, out)
    assert_allclose(out, [[2.0, 2.0]])


def test_a_word_that_one_document_has_does_not_confirm_its_topic():
    """Its neighbours and all other documents say which topic it is of, and these say: either."""
    x = sparse.csr_array(np.array([[2.0, 2, 1], [2, 0, 0], [0, 2, 0]]))
    model = bnp.Model(bnp.LDA(), bnp.Multinomial(np.full(3, 0.01)))
    summary = model.empty_summary(np.arange(2))
    summary.values["x"][:] = [[9.0, 0.0, 0.9], [0.0, 9.0, 0.0]]
    summary.values["N"][:] = summary["x"].sum(axis=1)
    parts = model.allocation.global_step(summary), model.observation.global_step(summary)
    posterior = bnp.Posterior(model, summary.ids, *parts, summary)
    assert posterior.observation.lam[0, 2] > 50 * posterior.observation.lam[1, 2]
    found = bnp.collapsed_topics(posterior, x, passes=1).summary["x"][:, 2]
    assert 0.3 < found[0] < 0.7


def test_bits_are_those_of_any_number_of_workers(tmp_path):
    posterior = trained()
    expected = bnp.collapsed_topics(posterior, X, batch_size=7, client=SerialExecutor(0))
    threads = ThreadExecutor(3)
    try:
        found = bnp.collapsed_topics(posterior, X, batch_size=7, client=threads)
    finally:
        threads.close()
    assert_array_equal(found.observation.lam, expected.observation.lam)
    bnp.save(found, tmp_path / "topics.zarr")
    loaded = bnp.load(tmp_path / "topics.zarr")
    assert_array_equal(loaded.observation.lam, expected.observation.lam)
    assert bnp.score(loaded, X) == bnp.score(found, X)
    assert len(loaded.topics(3)) == found.n_clusters


def test_models_without_topics_of_words_are_refused():
    mixture = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial()), X, init=bnp.RandomExamples(2)).posterior
    with pytest.raises(SettingError, match="DPMixture of Multinomial is no topic model of words"):
        bnp.collapsed_topics(mixture, X)
    with pytest.raises(SettingError, match="passes=0"):
        bnp.collapsed_topics(trained(), X, passes=0)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path(SHARED, "kos").exists(), reason="needs ../shared/data/kos")
def test_more_laps_do_not_predict_held_out_words_worse():
    """KOS: by the topics of training itself the score falls by more than a hundredth after the first lap."""
    corpus = halves("kos", kos())
    scores = []
    for laps in (1, 12):
        schedule = bnp.Memoized(laps=laps)
        with pytest.warns(bnp.ConvergenceWarning):
            result = bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), corpus.train, schedule=schedule, rng=0)
        posteriors = result.posterior, bnp.collapsed_topics(result.posterior, corpus.train)
        scores.append([bnp.score(posterior, corpus.test) for posterior in posteriors])
    (begun, begun_again), (own, again) = scores
    assert own < begun - 0.01
    assert again > begun_again - 0.005
    assert again > begun
