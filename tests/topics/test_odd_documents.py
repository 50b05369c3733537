"""Documents without words, of one word, and batches of nothing else: kept, counted, and harmless."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError
from bnp_dask.execute.serial import SerialExecutor
from tests.topics.bars import bars_corpus

MODELS = {"hdp": bnp.HDPTopics(10.0, 0.5), "lda": bnp.LDA(0.5)}


def go(x, kind="hdp", init=None, laps=4, batch_size=40, moves=()):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bnp.train(
            bnp.Model(MODELS[kind], bnp.Multinomial(0.1)), x, init=init or bnp.RandomExamples(4),
            schedule=bnp.Memoized(laps), moves=list(moves), client=SerialExecutor(), batch_size=batch_size, rng=1,
        )  # fmt: skip


def with_gaps(x: sparse.csr_array, every: int) -> sparse.csr_array:
    """The same with a document without words after each ``every`` of them."""
    none = sparse.csr_array((1, x.shape[1]))
    rows = [part for d in range(x.shape[0]) for part in ([x[[d]], none] if d % every == every - 1 else [x[[d]]])]
    return sparse.csr_array(sparse.vstack(rows, format="csr"))


@pytest.mark.parametrize("kind", MODELS)
def test_documents_without_words_change_no_topic(kind):
    x, _ = bars_corpus(80, length=60, seed=2)
    labels = np.arange(80) % 4
    plain = go(x, kind, bnp.Responsibilities(np.eye(4)[labels]))
    gaps = with_gaps(x, 4)
    own = np.repeat(labels, np.where(np.arange(80) % 4 == 3, 2, 1))
    mixed = go(gaps, kind, bnp.Responsibilities(np.eye(4)[own]), batch_size=50)  # the same documents in each batch
    assert mixed.posterior.summary["docs"] == 100
    assert plain.posterior.summary["docs"] == 80
    if kind == "lda":  # where their prior does not matter to the weights they change nothing at all
        np.testing.assert_allclose(mixed.posterior.observation.lam, plain.posterior.observation.lam, rtol=1e-9)
        assert mixed.history[-1]["elbo"] == pytest.approx(plain.history[-1]["elbo"], rel=1e-9)
    shares = bnp.predict(mixed.posterior, gaps, soft=True)
    assert shares.shape[0] == 100
    empty = np.flatnonzero(np.asarray(gaps.sum(axis=1)) == 0)
    expected = mixed.posterior.weights
    np.testing.assert_allclose(shares[empty][:, :4], np.tile(expected, (20, 1)), rtol=1e-9)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", [bnp.RandomExamples, bnp.BregmanKMeans, bnp.AnchorWords, bnp.SampledTopics])
def test_every_start_takes_documents_without_words(kind):
    x, _ = bars_corpus(120, length=60, seed=3)
    result = go(with_gaps(x, 3), init=kind(5), moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()])
    elbo = np.array([row["elbo"] for row in result.history if row["exact"]])
    assert np.isfinite(elbo).all()
    assert (np.diff(elbo) >= -1e-9 * abs(elbo[-1])).all()
    assert result.posterior.summary["N"].sum() == pytest.approx(x.sum())


def test_a_batch_without_any_word():
    x, _ = bars_corpus(40, length=60, seed=4)
    gaps = sparse.csr_array(sparse.vstack([x, sparse.csr_array((20, x.shape[1]))], format="csr"))
    result = go(gaps, batch_size=20)
    assert np.isfinite(result.history[-1]["elbo"])
    assert result.posterior.summary["docs"] == 60


def test_documents_of_one_word():
    rng = np.random.default_rng(0)
    x = sparse.csr_array((np.ones(90), (np.arange(90), rng.integers(0, 6, 90))), shape=(90, 6))
    result = go(x, moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()])
    assert result.posterior.summary["N"].sum() == pytest.approx(90)
    assert bnp.predict(result.posterior, x).shape == (90,)
    with pytest.raises(DataError, match="none of 90 documents can be split"):
        bnp.score(result.posterior, x)


def test_what_hides_behind_a_sum_of_nothing_is_seen():
    x, _ = bars_corpus(40, length=60, seed=4)
    wrong = sparse.csr_array(sparse.vstack([x, sparse.csr_array([[1.0, -1.0] + [0.0] * 898])], format="csr"))
    with pytest.raises(DataError, match="negative"):
        go(wrong)


def test_a_mixture_of_documents_says_what_to_drop():
    x, _ = bars_corpus(40, length=60, seed=4)
    with pytest.raises(DataError, match=r"13 document\(s\) without any word.*Drop them"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial()), with_gaps(x, 3), client=SerialExecutor())
