"""Rows that are copies of other rows count once, where equal rows cannot be chance, and nowhere else."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from scipy import sparse
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import MOST_ROWS, combine, combine_distinct, distinct_rows, row_hashes, survey_batch
from bnp_dask.training.survey_pass import LEAST_SHARE, _hashes, firsts, least_words, share_of_copies
from tests.topics.bars import bars_corpus

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")

MODEL = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
TOPICS = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
BRIEF = {"init": bnp.BregmanKMeans(4), "schedule": bnp.Memoized(laps=3), "rng": 0}


def blobs(n=90, times=1, seed=0):
    """Rows of three Gaussians in random order, each ``times`` times."""
    rng = np.random.default_rng(seed)
    means = np.array([[0.0, 1.0], [9.0, -3.0], [25.0, 7.0]])
    return rng.permutation(np.repeat(means[rng.integers(3, size=n)] + rng.normal(size=(n, 2)), times, axis=0))


def share(x, n_batches=1):
    edges = np.linspace(0, x.shape[0], n_batches + 1).astype(int)
    parts = [x[first:last] for first, last in zip(edges[:-1], edges[1:], strict=True)]
    return share_of_copies(combine([survey_batch(Batch(part)) for part in parts]))


def distinct(x):
    """The first of equal rows, in order."""
    return x[firsts([row_hashes(x)])[0]]


def test_what_makes_two_rows_one_observation():
    """Equal values, of the same group; a document of few words is never a copy, and labels come with the rows."""
    x = np.array([[1.5, 2.5], [1.5, 2.5], [1.5, 2.5], [0.0, 1.0], [1.5, 2.5]])
    batch = Batch(x, links=np.array([0, 1, 0, 1, 1]))
    hashes, labels, short = _hashes(lambda: batch, 0.0)
    assert firsts([hashes])[0].tolist() == [True, True, False, True, False]
    assert labels.tolist() == [-1] * 5 and not short.any()
    hashes, labels, _ = _hashes(lambda: replace(batch, links=None, labels=np.array([-1, 2, 0, -1, 2])), 0.0)
    assert firsts([hashes])[0].tolist() == [True, False, False, True, False]
    assert firsts([hashes], [labels])[0].tolist() == [False, True, True, True, False]
    words = Batch(sparse.csr_array(np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])))
    assert _hashes(lambda: words, 2.0)[2].tolist() == [False, True, False]
    assert _hashes(lambda: words, np.inf)[2].all()


# -- the survey ---------------------------------------------------------------------------------------------------
def test_a_sample_of_batches_is_the_sample_of_all_with_exact_counts():
    x = np.random.default_rng(1).normal(size=(2000, 3))[np.random.default_rng(2).integers(2000, size=5000)]
    parts = [distinct_rows(part) for part in np.array_split(x, 7)]
    one, whole = reduce(combine_distinct, parts), distinct_rows(x)
    assert np.array_equal(one.hashes, whole.hashes) and np.array_equal(one.counts, whole.counts)
    occur = Counter(map(tuple, x.tolist()))
    assert len(one.hashes) == MOST_ROWS
    assert [occur[tuple(row)] for row in one.rows.tolist()] == one.counts.tolist()


def test_hashes_are_equal_for_equal_rows_alone():
    x = np.random.default_rng(0).integers(-2, 3, size=(3000, 4)) / 2.0
    assert len(np.unique(row_hashes(x))) == len(np.unique(x, axis=0))
    assert row_hashes(np.array([[0.0, 1.0]])) == row_hashes(np.array([[-0.0, 1.0]]))
    assert row_hashes(np.array([[1.0, 2.0]])) != row_hashes(np.array([[2.0, 1.0]]))


@pytest.mark.parametrize("n_batches", [4])
def test_copies_of_continuous_rows_are_found(n_batches):
    assert share(blobs(60, times=20), n_batches) == pytest.approx(0.95)
    drawn = blobs(2000)[np.random.default_rng(3).integers(2000, size=2000)]  # with replacement
    assert 0.3 < share(drawn, n_batches) < 0.45


def test_rows_that_may_repeat_by_themselves_are_no_copies():
    rng = np.random.default_rng(0)
    x = blobs(2000)
    assert share(x) == 0.0
    assert share(np.round(x)) == 0.0  # rounded
    assert share(rng.poisson(2.0, (2000, 2)).astype(float)) == 0.0
    assert share(np.where(rng.random((2000, 1)) < 0.5, 0.0, x)) == 0.0  # half of the rows are nothing but zeros
    assert share(np.concatenate([x, x[:20]])) < LEAST_SHARE
    assert share(np.repeat(x[:20], 100, axis=0)) == 0.0  # so few that they may be levels
    # in one column that is no grid, beside any number of rounded ones, equal values are no evidence
    counts = np.log1p(rng.poisson(40.0, (2000, 1)))
    halves = rng.normal(size=(20000, 1)).astype(np.float16).astype(float)
    kinds = np.eye(3)[rng.integers(3, size=20000)]
    assert share(counts) == share(halves) == share(np.hstack([kinds, halves])) == 0.0
    assert share(rng.normal(size=(5000, 3)).astype(np.float16).astype(float)) == 0.0


@pytest.mark.parametrize("name", ["iris", "wine", "digits", "breast_cancer"])
def test_tables_that_are_known_have_no_copies(name):
    found = getattr(datasets, f"load_{name}")()
    assert share(found.data) == 0.0
    assert share(StandardScaler().fit_transform(found.data)) < LEAST_SHARE


# -- documents ----------------------------------------------------------------------------------------------------
def documents(n=120, times=1, length=60):
    """Toy documents, all together ``times`` times."""
    x, _ = bars_corpus(n, length, 0)
    return sparse.csr_array(sparse.vstack([sparse.csr_array(x)] * times))


def test_hashes_of_sparse_rows_are_hashes_of_the_same_rows_dense():
    x = np.random.default_rng(0).poisson(0.5, (300, 20)).astype(float)
    x[[0, 7, -1]] = 0.0
    assert np.array_equal(row_hashes(sparse.csr_array(x)), row_hashes(x))


def test_the_least_words_of_a_copy_have_fifty_nats_of_sets_among_equal_words():
    survey = combine([survey_batch(Batch(sparse.csr_array(np.ones((3, 100)))))])
    sets = [math.log(math.comb(100, n)) for n in range(51)]
    assert least_words(survey) == next(n for n, nats in enumerate(sets) if nats >= 50.0)
    assert least_words(combine([survey_batch(Batch(sparse.csr_array(np.ones((3, 50)))))])) == np.inf


def test_copies_of_documents_are_found_if_they_cannot_be_chance():
    assert share(documents(times=2), 3) == pytest.approx(0.5)
    assert share(documents()) == share(sparse.vstack([documents(), documents(5)], format="csr")) == 0.0
    assert share(documents(times=2, length=2)) == 0.0  # so short that they may repeat by themselves
    events = np.random.default_rng(0).poisson(0.3, (2000, 12)).astype(float)
    assert share(sparse.csr_array(events)) == 0.0


def test_training_on_documents_with_copies_is_training_with_the_first_of_each(caplog):
    short = documents(1, times=1, length=1)
    x = sparse.vstack([documents(times=2), *[short] * 3], format="csr")
    found = bnp.train(TOPICS, x, init=bnp.RandomExamples(3), schedule=bnp.Memoized(laps=2), rng=0).posterior
    assert found.summary["N"].sum() == pytest.approx(documents().sum() + 3)
    (line,) = [r.getMessage() for r in caplog.records if "copies" in r.getMessage()]
    assert "of the documents" in line and "123 documents count" in line
    counted = replace(TOPICS, copies="count")
    found = bnp.train(counted, x, init=bnp.RandomExamples(3), schedule=bnp.Memoized(laps=2), rng=0).posterior
    assert found.summary["N"].sum() == pytest.approx(x.sum())


def test_a_start_has_as_many_topics_as_the_documents_that_count_have():
    once, twice = (
        bnp.train(TOPICS, documents(times=t), schedule=bnp.Memoized(laps=1), moves=[], rng=0) for t in (1, 2)
    )
    assert once.posterior.n_clusters == twice.posterior.n_clusters


# -- training -----------------------------------------------------------------------------------------------------
def test_training_with_copies_is_training_with_the_first_of_each(caplog):
    x = blobs(times=5)
    one, other = bnp.train(MODEL, x, **BRIEF), bnp.train(MODEL, distinct(x), **BRIEF)
    assert [row["elbo"] for row in one.history] == [row["elbo"] for row in other.history]
    assert one.posterior.summary["N"].sum() == pytest.approx(90)
    (line,) = [r.getMessage() for r in caplog.records if "copies" in r.getMessage()]
    assert "about 80%" in line and "90 distinct rows" in line and 'copies="count"' in line


@pytest.mark.parametrize(
    "more", [{"model": bnp.Model(bnp.DPMixture(), bnp.Gaussian(), copies="count")}, {"weights": 1}]
)
def test_copies_are_observations_if_the_caller_says_so(more):
    x = blobs(times=5)
    weights = np.ones(len(x)) if "weights" in more else None
    found = bnp.train(more.get("model", MODEL), x, weights=weights, **BRIEF)
    assert found.posterior.summary["N"].sum() == pytest.approx(450)


def test_a_copy_with_a_label_is_the_one_that_counts():
    hashes = [np.array([7, 7, 9, 7], np.uint64), np.array([9, 7, 4, 4], np.uint64)]
    labels = [np.array([-1, 2, -1, 0]), np.array([-1, 2, -1, 1])]
    first, second = firsts(hashes, labels)
    assert first.tolist() == [False, True, True, True] and second.tolist() == [False, False, False, True]
    x = blobs(times=5)
    known = np.full(len(x), -1)
    last = {tuple(row): i for i, row in enumerate(x.tolist())}
    known[list(last.values())] = np.searchsorted([5.0, 17.0], x[list(last.values()), 0])
    found = bnp.train(MODEL, x, labels=known, **BRIEF).posterior
    assert found.summary["N"].sum() == pytest.approx(90)
    assert found.summary["known"].sum() == pytest.approx(90)
    assert len(bnp.predict(found, x)) == 450


def test_an_unknown_word_for_copies_is_refused():
    with pytest.raises(bnp.errors.SettingError, match="copies"):
        bnp.Model(bnp.DPMixture(), bnp.Gaussian(), copies="all")


def test_a_run_goes_on_and_grows_without_the_copies(tmp_path):
    np.save(tmp_path / "x.npy", blobs(times=5))
    np.save(tmp_path / "more.npy", blobs(30, seed=1))
    data, more = str(tmp_path / "x.npy"), {"store": tmp_path / "run", "rng": 0, "batch_size": 150}
    bnp.train(MODEL, data, init=bnp.BregmanKMeans(4), schedule=bnp.Memoized(laps=2), **more)
    found = bnp.train(MODEL, data, schedule=bnp.Memoized(laps=4), resume=True, **more)
    assert found.posterior.summary["N"].sum() == pytest.approx(90)
    grown = bnp.update(tmp_path / "run", tmp_path / "more.npy", revisit=3)
    assert grown.posterior.summary["N"].sum() == pytest.approx(120)


@pytest.mark.long
def test_twelve_clusters_of_rows_that_occur_twenty_times():
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = rng.normal(0.0, 6.0, (12, 4))[rng.integers(12, size=1200)] + rng.normal(size=(1200, 4))
        found.append(bnp.train(MODEL, rng.permutation(np.tile(x, (20, 1))), rng=seed).posterior.n_clusters)
    assert sum(k == 12 for k in found) >= 9, found
