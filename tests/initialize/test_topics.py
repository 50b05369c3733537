"""Starts of topic models: documents and rows as topics, k-means on them, anchor words, sampled topics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment, nnls
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.allocation import LDA, DPMixture, HDPTopics
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import FullBatch
from bnp_dask.initialize import (
    AnchorWords,
    BregmanKMeans,
    KMeansParallel,
    RandomExamples,
    Responsibilities,
    SampledTopics,
)
from bnp_dask.initialize.anchors import count_together, projection
from bnp_dask.initialize.sampled import split_mixed
from bnp_dask.kernels.topics.anchors import convex_weights, farthest_points
from bnp_dask.kernels.topics.tokens import add_counts, contrast, cumulate, sample_pass, seat_whole
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian, Multinomial
from bnp_dask.training.train import train
from tests.batches import Batches
from tests.initialize.cases import Travelling, context, cut
from tests.topics.bars import bars_corpus
from tests.topics.parts import points

V = 300
K = 8


def separable(n_docs=600, length=80, seed=0):
    """Documents of a few topics, each of which has words of its own among those that all share."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(V, 0.05), K)
    own = rng.permutation(V)[: 5 * K].reshape(K, 5)
    phi[:, own.ravel()] = 0.0
    for k in range(K):
        phi[k] *= 0.8 / phi[k].sum()
        phi[k, own[k]] = 0.04
    rows = [rng.multinomial(length, rng.dirichlet(np.full(K, 0.2)) @ phi) for _ in range(n_docs)]
    return sparse.csr_array(np.array(rows, np.float64)), phi


def model(kind=HDPTopics):
    return Model(kind(alpha=0.5) if kind is LDA else kind(), Multinomial(lam=0.1))


def start(init, batch, kind=HDPTopics, n_batches=4, seed=0, executor=None):
    return init.start(context(model(kind), cut(batch, n_batches), seed, executor))


def distances(summary, phi):
    """Total variation of each true topic from the one matched with it."""
    found = summary["x"] / summary["x"].sum(axis=1, keepdims=True)
    cost = 0.5 * np.abs(phi[:, None] - found[None]).sum(axis=2)
    return cost[linear_sum_assignment(cost)]


def test_anchor_words_find_the_topics():
    counts, phi = separable(2000)
    for words in (AnchorWords(K, noise=0.0), AnchorWords(K, noise=0.0, projection=150)):
        summary = start(words, Batch(counts))
        assert (distances(summary, phi) < 0.2).sum() >= K - 1
        np.testing.assert_allclose(summary["x"].sum(axis=0), counts.sum(axis=0), rtol=1e-9)
        np.testing.assert_allclose(summary["N"], summary["x"].sum(axis=1))
        assert (np.diff(summary["N"]) <= 0).all() and summary["docs"] == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", [HDPTopics, pytest.param(LDA, marks=pytest.mark.long)])
def test_anchor_words_are_a_better_start_than_random_documents(kind):
    counts, _ = separable()

    def after_five_laps(init):
        with pytest.warns(UserWarning, match="limit of 5 laps"):
            made = train(model(kind), counts, init=init, schedule=FullBatch(laps=5, tolerance=0.0), batch_size=200)
        return made.history[-1]["elbo"]

    assert after_five_laps(AnchorWords(K, noise=0.0)) > after_five_laps(RandomExamples(K))


def test_cooccurrence_is_the_unbiased_one():
    rng = np.random.default_rng(2)
    dense = rng.poisson(0.6, (40, 9)).astype(float)
    dense[3], dense[4] = 0.0, np.eye(9)[2]
    weights = rng.integers(1, 4, 40).astype(float)
    wanted = np.zeros((9, 9))
    share = np.zeros(9)
    for h, w in zip(dense, weights, strict=True):
        n = h.sum()
        if n > 1:
            wanted += w * (np.outer(h, h) - np.diag(h)) / (n * (n - 1))
            share += w * h / n
    batch = Batch(sparse.csr_array(dense), weights)
    found = count_together(batch, 9, 0)
    np.testing.assert_allclose(found.table.sum(axis=0), wanted, atol=1e-12)
    np.testing.assert_allclose(found.seen, share)
    np.testing.assert_allclose(found.seen, wanted.sum(axis=1))
    odd = count_together(batch.take(np.arange(1, 40, 2)), 9, 0)
    np.testing.assert_allclose(found.table[1], odd.table.sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.rows().sum(axis=1), 1.0)
    np.testing.assert_array_equal(found.documents, weights @ (dense > 0))
    np.testing.assert_array_equal(found.tokens, weights @ dense)
    np.testing.assert_allclose(count_together(batch, 4, 5).table.sum(axis=0), wanted @ projection(9, 4, 5), atol=1e-12)


def test_cooccurrence_of_parts_of_documents_is_that_of_pairs_of_tokens():
    """Expected counts: each of c tokens belongs to the part with a probability of its own word."""
    rng = np.random.default_rng(5)
    counts = rng.poisson(0.8, (30, 9)).astype(float)
    chance = np.where(counts > 1, 1.0 - rng.random(counts.shape) / np.maximum(counts, 2.0), rng.random(counts.shape))
    counts[3:6] = np.eye(9)[:3]  # one token: however little of it is left, no pair
    wanted = np.zeros((9, 9))
    for c, r in zip(counts, chance, strict=True):
        words = np.repeat(np.arange(9), c.astype(int))
        pairs = np.outer(r[words], r[words])
        np.fill_diagonal(pairs, 0.0)
        for i, j in np.ndindex(pairs.shape):
            # less than one pair of two whole tokens is left: it counts for less than a document
            wanted[words[i], words[j]] += pairs[i, j] / max(pairs.sum(), 2.0)
    found = count_together(Batch(sparse.csr_array(counts * chance)), 9, 0)
    np.testing.assert_allclose(found.table.sum(axis=0), wanted, atol=1e-12)
    np.testing.assert_allclose(found.seen, wanted.sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(found.documents, np.minimum(counts * chance, 1.0).sum(axis=0))
    # a rounding error makes no more tokens
    near = count_together(Batch(sparse.csr_array(counts * (1.0 + 1e-13))), 9, 0)
    whole = count_together(Batch(sparse.csr_array(counts)), 9, 0)
    np.testing.assert_allclose(near.table, whole.table, atol=1e-10)


def test_mixture_weights_against_nnls():
    rng = np.random.default_rng(3)
    corners, points_ = rng.normal(size=(6, 10)), rng.normal(size=(30, 10))
    points_[:10] = rng.dirichlet(np.ones(6), 10) @ corners
    found = convex_weights(corners @ corners.T, points_ @ corners.T)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (found >= 0).all()
    for x, c in zip(points_, found, strict=True):
        # a heavy row makes least squares keep the sum
        heavy = np.vstack([corners.T, np.full(6, 1e4)])
        oracle, _ = nnls(heavy, np.append(x, 1e4))
        np.testing.assert_allclose(c, oracle, atol=2e-4)


def test_farthest_points_are_the_corners():
    rng = np.random.default_rng(4)
    corners = rng.normal(size=(5, 300)) * 3
    inside = rng.dirichlet(np.ones(5), 200) @ corners
    cloud = np.concatenate([inside, corners])
    twice = np.stack([cloud, cloud])
    assert sorted(farthest_points(twice, np.arange(205), 5)) == list(range(200, 205))
    # no more than the cloud spans, and only candidates
    assert len(farthest_points(twice, np.arange(205), 20)) <= 6
    assert set(farthest_points(twice, np.arange(150), 5)) <= set(range(150))
    # with errors there is no end, unless errors are told from distances
    measured = twice + 0.1 * rng.normal(size=twice.shape)
    assert len(farthest_points(measured, np.arange(205), 12)) > 8
    assert sorted(farthest_points(measured, np.arange(205), 12, 1.0)) == list(range(200, 205))


def test_as_many_topics_as_co_occurrence_tells_apart():
    counts, phi = separable(3000)
    with pytest.warns(UserWarning, match=r"starting with \d+ topics instead of 30"):
        summary = start(AnchorWords(30), Batch(counts))
    assert K <= summary.n_clusters <= 2 * K
    assert (distances(summary, phi) < 0.2).sum() >= K - 1
    assert start(AnchorWords(30, noise=0.0), Batch(counts)).n_clusters == 30


@pytest.mark.parametrize(
    "init", [AnchorWords(K, projection=50), SampledTopics(K, 8, 3)], ids=lambda i: type(i).__name__
)
def test_same_bits_whatever_the_executor(init):
    counts, _ = separable(200)
    one = start(init, Batch(counts))
    threads = ThreadExecutor(3)
    others = [start(init, Batch(counts), executor=executor) for executor in (Travelling(), threads)]
    threads.close()
    for other in others:
        for name, value in one.to_arrays().items():
            assert value.tobytes() == other.to_arrays()[name].tobytes()
    assert start(init, Batch(counts), seed=1)["x"].tobytes() != one["x"].tobytes()


def test_weights_are_repetitions():
    counts, _ = separable(100)
    twice = sparse.csr_array(sparse.vstack([counts, counts], format="csr"))
    a = start(AnchorWords(4, noise=0.0), Batch(counts, np.full(100, 2.0)), n_batches=1)
    b = start(AnchorWords(4, noise=0.0), Batch(twice), n_batches=1)
    np.testing.assert_allclose(a["x"], b["x"], rtol=1e-4, atol=1e-4)  # corners are mixed to a tolerance


def test_words_that_cannot_be_used():
    counts, _ = separable(100)
    single = sparse.csr_array(np.eye(6))
    with pytest.raises(DataError, match="no document has two tokens"):
        start(AnchorWords(2), Batch(single), n_batches=1)
    with pytest.raises(DataError, match=r"min_documents=1000\): no word is in so many documents"):
        start(AnchorWords(2, min_documents=1000), Batch(counts))
    with pytest.raises(SettingError, match="not DPMixture of Multinomial on sparse counts"):
        start(AnchorWords(2), Batch(counts), kind=DPMixture)
    cloud = points()
    with pytest.raises(SettingError, match="on dense rows"):
        AnchorWords(2).start(context(Model(HDPTopics(), DiagGaussian()), Batches((cloud,))))
    with pytest.raises(SettingError, match=r"projection=400, twice, are 6.0 GB"):
        wide = sparse.csr_array(([1.0, 1.0], ([0, 0], [0, 999_999])), shape=(1, 1_000_000))
        start(AnchorWords(2), Batch(wide), n_batches=1)
    few = np.eye(9)[np.arange(50) % 9]
    few[:, :2] += 1.0
    with pytest.warns(UserWarning, match="starting with 2 topics instead of 5"):
        assert start(AnchorWords(5, min_documents=40), Batch(sparse.csr_array(few))).n_clusters == 2


def test_documents_are_mixed_with_the_corpus():
    counts, _ = separable(40)
    summary = start(RandomExamples(5, background=0.75), Batch(counts))
    words = np.asarray(counts.sum(axis=0)) / counts.sum()
    assert summary["N"] == pytest.approx(np.full(5, counts.sum() / 5))
    left = 4 * (summary["x"] / summary["N"][:, None] - 0.75 * words)
    document = counts.toarray() / counts.toarray().sum(axis=1, keepdims=True)
    assert all(np.abs(document - row).max(axis=1).min() < 1e-9 for row in left)
    with pytest.raises(SettingError, match="needs a share"):
        RandomExamples(5, background=1.0)


@pytest.mark.parametrize("kind", [HDPTopics, LDA])
@pytest.mark.parametrize(
    "init", [RandomExamples(5), BregmanKMeans(5), KMeansParallel(5, rounds=2)], ids=lambda i: type(i).__name__
)
def test_documents_start_topics(kind, init):
    counts, _ = separable(120)
    summary = start(init, Batch(counts), kind)
    assert summary.n_clusters == 5 and (summary["N"] > 0).all()
    np.testing.assert_allclose(summary["N"], summary["x"].sum(axis=1))
    if not isinstance(init, RandomExamples):
        assert summary["N"].sum() == pytest.approx(counts.sum())
    ready = context(model(kind), cut(Batch(counts), 2)).model
    posterior = ready.global_step(summary)
    assert np.isfinite(posterior.weights).all()
    after = ready.local_step(posterior, Batch(counts))
    assert after["N"].sum() == pytest.approx(counts.sum())


@pytest.mark.parametrize("kind", [HDPTopics, LDA])
@pytest.mark.parametrize(
    "init",
    [RandomExamples(4), BregmanKMeans(4), KMeansParallel(4, rounds=2), "labels"],
    ids=lambda i: i if isinstance(i, str) else type(i).__name__,
)
def test_rows_of_groups_start_topics(kind, init):
    cloud = points(60, seed=3)
    half = cloud.take_groups(np.arange(30)), cloud.take_groups(np.arange(30, 60))
    if init == "labels":
        init = Responsibilities(np.arange(cloud.n_atoms) % 4)
    made = Model(kind(alpha=0.5) if kind is LDA else kind(), DiagGaussian())
    given = context(made, Batches(half))
    summary = init.start(given)
    assert summary.n_clusters == 4
    assert summary["N"].sum() == pytest.approx(cloud.n_atoms)
    posterior = given.model.global_step(summary)
    total = given.model.local_step(posterior, half[0]) + given.model.local_step(posterior, half[1])
    assert total["docs"] == 60 and total["N"].sum() == pytest.approx(cloud.n_atoms)


def test_sampled_topics_are_the_true_ones():
    counts, phi = separable()
    summary = start(SampledTopics(K), Batch(counts))
    assert (distances(summary, phi) < 0.2).all()
    np.testing.assert_allclose(summary["x"].sum(axis=0), counts.sum(axis=0), rtol=1e-9)
    np.testing.assert_allclose(summary["N"], summary["x"].sum(axis=1))
    assert (np.diff(summary["N"]) <= 0).all() and summary["docs"] == 0


def test_a_part_of_the_corpus_is_scaled_to_all_of_it():
    counts, phi = separable(1000)
    summary = start(SampledTopics(K, max_tokens=20_000), Batch(counts))
    assert summary["N"].sum() == pytest.approx(counts.sum())
    assert (distances(summary, phi) < 0.35).all()
    with pytest.warns(UserWarning, match=r"starting with \d+ topics instead of 90: the sampler"):
        assert start(SampledTopics(90, passes=2, averaged=1, max_tokens=80), Batch(counts)).n_clusters < 81


def test_there_are_no_more_topics_than_the_sampled_tokens_show():
    """80,000 tokens usually show 70 topics, and 1,600 of them ten."""
    counts, _ = separable(1000)
    assert start(SampledTopics(passes=2, averaged=1, max_tokens=1_600), Batch(counts)).n_clusters == 10
    assert start(SampledTopics(passes=2, averaged=1), Batch(counts)).n_clusters == 70


@pytest.mark.parametrize("kind", [HDPTopics, LDA])
def test_sampled_topics_are_a_better_start_than_anchor_words(kind):
    counts = bars_corpus(300, 60, 0)[0]

    def after_two_laps(init):
        with pytest.warns(UserWarning, match="limit of 2 laps"):
            made = train(model(kind), counts, init=init, schedule=FullBatch(laps=2, tolerance=0.0), batch_size=200)
        return made.history[-1]["elbo"]

    assert after_two_laps(SampledTopics(10, passes=40)) > after_two_laps(AnchorWords(10, noise=0.0))


def test_the_sampler_draws_from_the_posterior():
    """Two documents of two tokens, two topics: every assignment as often as the collapsed joint says."""
    offsets, words = np.array([0, 2, 4]), np.array([0, 1, 1, 2])
    prior, shares = np.array([30.0, 50.0, 40.0]), np.array([0.5, 0.9])
    states = np.array(list(itertools.product(range(2), repeat=4)))
    wanted = np.array([np.exp(collapsed(offsets, words, z, prior, shares)) for z in states])
    topics, counts, totals = np.full(4, -1), np.zeros((3, 2), np.float32), np.zeros(2)
    table, state, seen = np.empty((3, 2), np.float32), np.array([5], np.uint64), np.zeros(16)
    for turn in range(40_000):
        each = cumulate(counts, totals, shares, prior, table)
        documents = sample_pass(offsets, words, topics, prior, table, each, counts, totals, state)
        seen[topics @ [8, 4, 2, 1]] += turn >= 100
    again = np.zeros((3, 2))
    add_counts(offsets, words, topics, np.ones(2), again)
    np.testing.assert_array_equal(again, counts)
    np.testing.assert_array_equal(counts.sum(axis=0), totals)
    assert documents.sum() == len(set(topics[:2])) + len(set(topics[2:]))
    # topics new to a document are drawn by the words of the last pass, so words must change little in one
    assert 0.5 * np.abs(seen / seen.sum() - wanted / wanted.sum()).sum() < 0.01


def collapsed(offsets, words, topics, prior, shares):
    """Log joint of words and topics, up to a constant of the sums of prior masses."""
    value = 0.0
    for first, last in itertools.pairwise(offsets):
        value += (gammaln(np.bincount(topics[first:last], minlength=len(shares)) + shares) - gammaln(shares)).sum()
    for k in range(len(shares)):
        mass = np.bincount(words[topics == k], minlength=len(prior)) + prior
        value += gammaln(mass).sum() - gammaln(mass.sum())
    return value


def two_in_one(n_docs=120, length=30, seed=0):
    """Tokens of four topics, of which two are one: ``(offsets, document, words, topics, true topics)``.

    A topic has ten words of its own.  The first two are one topic, in other documents each; the last is two, whose
    tokens are mixed.
    """
    rng = np.random.default_rng(seed)
    true = np.repeat(rng.integers(2, size=(n_docs, 2)) + np.array([0, 2]), length // 2, axis=1).ravel()
    words = 10 * true + rng.integers(10, size=len(true))
    mixed = rng.integers(2, size=len(true))
    topics = np.where(true <= 1, 0, np.where(true == 2, 1, 2 + mixed))
    return np.arange(0, len(true) + 1, length), np.repeat(np.arange(n_docs), length), words, topics, true


def split(document, words, topics, shares, prior):
    """State after a move: ``(gain, topics, shares, counts, totals)``."""
    topics, shares = topics.copy(), shares.copy()
    counts = np.zeros((len(prior), len(shares)), np.float32)
    np.add.at(counts, (words, topics), 1.0)
    totals = counts.sum(axis=0, dtype=np.float64)
    return split_mixed(document, words, topics, shares, prior, counts, totals), topics, shares, counts, totals


def test_two_topics_in_one_are_split_in_the_place_of_a_copy():
    offsets, document, words, topics, true = two_in_one()
    prior, shares = np.full(40, 0.1), np.array([0.5, 0.2, 0.4, 0.3])
    gain, after, mass, counts, totals = split(document, words, topics, shares, prior)
    assert len(set(zip(true.tolist(), after.tolist(), strict=True))) == 4
    # nothing but the joint of all tokens is raised, and by what is said
    change = collapsed(offsets, words, after, prior, mass) - collapsed(offsets, words, topics, prior, shares)
    assert gain > 0.0 and gain == pytest.approx(change, abs=1e-8)
    again = np.zeros_like(counts)
    np.add.at(again, (words, after), 1.0)
    np.testing.assert_array_equal(counts, again)
    np.testing.assert_array_equal(totals, again.sum(axis=0))
    assert mass.sum() == pytest.approx(shares.sum())
    # nothing is left to be split
    assert split(document, words, after, mass, prior)[0] == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_true_topics_are_not_split(seed):
    _, document, words, _, true = two_in_one(seed=seed)
    gain, after, *_ = split(document, words, true, np.full(4, 0.3), np.full(40, 0.1))
    assert gain == 0.0
    np.testing.assert_array_equal(after, true)


def test_a_split_takes_an_empty_place_and_no_more_topics_than_there_are():
    _, document, words, topics, true = two_in_one()
    one = np.array([0, 1, 2, 2])[topics]
    gain, after, *_ = split(document, words, one, np.full(4, 0.3), np.full(40, 0.1))
    assert gain > 0.0 and len(set(zip(true.tolist(), after.tolist(), strict=True))) == 4
    for most in (1, 2):
        few = np.minimum(topics, most - 1)
        gain, after, *_ = split(document, words, few, np.full(most, 0.3), np.full(40, 0.1))
        assert gain == 0.0
        np.testing.assert_array_equal(after, few)


def test_the_halves_of_a_topic_are_the_best_of_all():
    """Four documents of two topics: no other division has a larger joint."""
    words = np.array([0, 1, 0, 1, 2, 3, 2, 3] * 3)
    offsets, prior = np.arange(0, 25, 4), np.full(4, 0.1)
    sides = [np.array(side) for side in itertools.product(range(2), repeat=6)]
    values = [collapsed(offsets, words, np.repeat(side, 4), prior, np.full(2, 0.5)) for side in sides]
    found = np.array([0, 1, 0, 0, 0, 0])
    seat_whole(offsets, words, prior, prior.sum(), found, 2)
    np.testing.assert_array_equal(found, [0, 1, 0, 1, 0, 1])
    assert collapsed(offsets, words, np.repeat(found, 4), prior, np.full(2, 0.5)) == pytest.approx(max(values))


def test_the_contrast_of_a_topic_is_its_largest_eigenvalue():
    rng = np.random.default_rng(0)
    for kinds in (1, 2):
        own = rng.integers(kinds, size=400)
        words = (15 * own[:, None] + rng.integers(30 // kinds, size=(400, 12))).ravel()
        x = np.zeros((400, 30))
        np.add.at(x, (np.repeat(np.arange(400), 12), words), 1.0)
        pairs = x.T @ x - np.diag(x.sum(axis=0))
        expected = np.outer(pairs.sum(axis=1), pairs.sum(axis=1)) / pairs.sum()
        values, vectors = np.linalg.eigh((pairs - expected) / np.sqrt(expected))
        strength, score = contrast(np.arange(0, 4801, 12), words, 30)
        if kinds == 1:
            assert strength < 1.2
        else:
            assert strength == pytest.approx(values[-1] / (2.0 * np.sqrt(30)), rel=1e-9)
            along = x @ (vectors[:, -1] / np.sqrt(pairs.sum(axis=1)))
            assert abs(along @ score) == pytest.approx(np.linalg.norm(along) * np.linalg.norm(score), rel=1e-6)
            assert ((score > 0) == (own == own[score > 0][0])).all()
    assert contrast(np.array([0, 1, 2]), np.array([0, -1]), 30)[0] == 0.0


def test_sampled_topics_of_weighted_documents():
    counts, _ = separable(60)
    weights = np.arange(60) % 3 + 0.0
    summary = start(SampledTopics(4, passes=5, averaged=2), Batch(counts, weights))
    assert summary["N"].sum() == pytest.approx(weights @ counts.sum(axis=1))
    np.testing.assert_allclose(summary["x"].sum(axis=0), weights @ counts)


def test_what_cannot_be_sampled():
    counts, _ = separable(20)
    with pytest.raises(SettingError, match="SampledTopics starts topic models of words"):
        start(SampledTopics(2), Batch(counts), kind=DPMixture)
    with pytest.raises(DataError, match="have no words"):
        start(SampledTopics(2), Batch(sparse.csr_array((3, 5))), n_batches=1)
    with pytest.raises(SettingError, match=r"1000000 words times n_clusters=400, .* are 6.0 GB.*Ask for 134 topics"):
        wide = sparse.csr_array(([1.0, 1.0], ([0, 0], [0, 999_999])), shape=(1, 1_000_000))
        start(SampledTopics(400), Batch(wide), n_batches=1)
    for bad in (
        {"passes": 0},
        {"averaged": 201},
        {"passes": 9, "averaged": 10},
        {"concentration": 0.0},
        {"max_tokens": 0},
    ):
        with pytest.raises(SettingError):
            SampledTopics(5, **bad)


def test_random_examples_of_large_groups_of_vectors_do_not_keep_unformed_topics():
    """Gaussians of mean zero in five groups of 1,500: single atoms resemble nothing, and groups settle for a few."""
    rng = np.random.default_rng(1)
    roots = rng.normal(size=(8, 12, 12)) * np.exp(0.5 * rng.normal(size=(8, 1, 1))) * np.linspace(1.5, 0.1, 12)
    groups = []
    for _ in range(5):
        z = rng.choice(8, size=1500, p=rng.dirichlet(np.full(8, 0.6)))
        groups.append(np.einsum("nij,nj->ni", roots[z], rng.normal(size=(1500, 12))) / np.sqrt(12))
    rows = np.concatenate(groups)

    def fit(allocation, data, init):
        schedule, model = bnp.Memoized(laps=6), bnp.Model(allocation, bnp.ZeroMeanGaussian())
        with pytest.warns(bnp.ConvergenceWarning):
            return bnp.train(model, data, init=init, schedule=schedule, moves=(), rng=1, batch_size=1500)

    examples = bnp.RandomExamples(16)
    labels = bnp.predict(fit(bnp.DPMixture(), rows, examples).posterior, rows)
    from_mixture = fit(bnp.HDPTopics(), groups, bnp.Responsibilities(np.asarray(labels))).history[-1]["elbo"]
    # from the atoms alone it was more than a nat an atom less
    assert fit(bnp.HDPTopics(), groups, examples).history[-1]["elbo"] > from_mixture - 0.2 * len(rows)
