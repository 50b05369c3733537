"""Topics of new documents, and document completion, against slow twins."""

from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse
from scipy.special import logsumexp, psi

import bnp_dask as bnp
from bnp_dask.allocation import DPMixture
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.score import completion_score, score, score_samples
from bnp_dask.analysis.topics import Completion
from bnp_dask.analysis.topics import completion as topics_completion
from bnp_dask.analysis.topics.completion import FOLD_IN, split_atoms, split_counts
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Words
from bnp_dask.data import Text, as_source
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.kernels.topics.tokens import mix
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.structure import answers
from bnp_dask.testing import survey_of
from bnp_dask.training.results import load, save
from bnp_dask.training.train import train
from tests.topics.parts import V, begin, corpus, point_model, points, prior_of, tokens_of, word_model

KINDS = ("lda", "hdp")


def theta_slowly(log_lik, weight, prior, sweeps=4000):
    """Mean-field fixed point of one document from scratch: theta ``(K,)``."""
    count = None
    for _ in range(sweeps):
        share = prior / prior.sum() if count is None else np.exp(psi(count + prior))
        resp = share * np.exp(log_lik - log_lik.max(axis=1, keepdims=True))
        resp /= resp.sum(axis=1, keepdims=True)
        new = weight @ resp
        if count is not None and np.abs(new - count).max() < 1e-12:
            break
        count = new
    return count + prior


def words_posterior(kind, **step):
    x, _ = corpus()
    return begin(word_model(kind, **step), Batch(x)), corpus(n_docs=25, seed=5)[0]


def shares_slowly(posterior, batch):
    prior, rest = prior_of(posterior)
    rows = []
    for log_lik, weight, _ in tokens_of(posterior, batch):
        theta = theta_slowly(log_lik, weight, prior) if len(weight) else prior
        theta = np.append(theta, rest) if rest else theta
        rows.append(theta / theta.sum())
    return np.array(rows)


# -- predict --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_those_of_the_fixed_point(kind):
    posterior, x = words_posterior(kind, restarts=0, sweeps=4000, tolerance=1e-11)
    slow = shares_slowly(posterior, Batch(x))
    found = predict(posterior, x, soft=True)
    assert found.shape == (25, posterior.n_clusters + (kind == "hdp"))
    np.testing.assert_allclose(found, slow, atol=1e-8)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    k = posterior.n_clusters
    assert np.array_equal(predict(posterior, x), posterior.ids[slow[:, :k].argmax(axis=1)])
    best = predict(posterior, x, top=3)
    assert np.array_equal(best.label[:, 0], predict(posterior, x))
    np.testing.assert_allclose(best.resp, -np.sort(-found[:, :k], axis=1)[:, :3])


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_alone_is_the_same_document(kind):
    posterior, x = words_posterior(kind)
    whole = predict(posterior, x, soft=True)
    pieces = [predict(posterior, x[[i]], soft=True)[0] for i in range(x.shape[0])]
    assert np.array(pieces).tobytes() == whole.tobytes()
    assert predict(posterior, x, soft=True, batch_size=7).tobytes() == whole.tobytes()
    assert predict(posterior, x, soft=True, batch_size=4, client=ThreadExecutor(2)).tobytes() == whole.tobytes()


def test_dense_counts_lazy_arrays_and_files(tmp_path):
    posterior, x = words_posterior("hdp")
    whole, label = predict(posterior, x, soft=True), predict(posterior, x)
    assert predict(posterior, x.toarray(), soft=True).tobytes() == whole.tobytes()
    lazy = predict(posterior, da.from_array(x.toarray(), chunks=(10, V)), soft=True)
    assert isinstance(lazy, da.Array)
    assert lazy.shape == whole.shape
    assert lazy.compute(scheduler="sync").tobytes() == whole.tobytes()
    blocks = da.from_array(x.toarray(), chunks=(10, V)).map_blocks(sparse.csr_array)
    assert np.array_equal(predict(posterior, blocks).compute(scheduler="sync"), label)
    best = predict(posterior, da.from_array(x.toarray(), chunks=(10, V)), top=2)
    assert np.array_equal(best.label.compute(scheduler="sync")[:, 0], label)
    predict(posterior, x, soft=True, out=tmp_path / "soft.zarr", batch_size=6)
    predict(posterior, x, top=2, out=tmp_path / "top.parquet", batch_size=6)
    assert zarr.open_group(tmp_path / "soft.zarr")["resp"][:].tobytes() == whole.tobytes()
    table = pq.read_table(tmp_path / "top.parquet")
    assert np.array_equal(np.stack(table["label"].to_numpy())[:, 0], label)


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_without_words_has_the_shares_of_the_prior(kind):
    posterior, x = words_posterior(kind)
    with_empty = sparse.csr_array(sparse.vstack([sparse.csr_array((2, V)), x[:3]], format="csr"))
    prior, rest = prior_of(posterior)
    expected = (np.append(prior, rest) if rest else prior) / (prior.sum() + rest)
    found = predict(posterior, with_empty, soft=True)
    np.testing.assert_allclose(found[:2], [expected, expected])
    np.testing.assert_array_equal(found[2:], predict(posterior, x[:3], soft=True))
    np.testing.assert_allclose(predict(posterior, sparse.csr_array((3, V)), soft=True), [expected] * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_points(kind):
    batch = points()
    model = point_model(kind, batch, restarts=0, sweeps=4000, tolerance=1e-11)
    posterior = begin(model, batch)
    source = Held((batch.take_groups(np.arange(13)), batch.take_groups(np.arange(13, 30))))
    slow = shares_slowly(posterior, batch)
    np.testing.assert_allclose(predict(posterior, source, soft=True), slow, atol=1e-8)
    prior, rest = prior_of(posterior)
    total = np.diff(batch.groups) + prior.sum() + rest
    expected = []
    for (log_lik, _, _), share, n in zip(tokens_of(posterior, batch), slow, total, strict=True):
        expected.append((log_lik + psi(share[: len(prior)] * n)).argmax(axis=1))
    assert np.array_equal(predict(posterior, source), posterior.ids[np.concatenate(expected)])
    cut = as_source(batch.x, groups=batch.groups, batch_size=50)
    assert cut.n_batches > 3
    np.testing.assert_array_equal(predict(posterior, cut, soft=True), predict(posterior, source, soft=True))
    np.testing.assert_array_equal(predict(posterior, cut), predict(posterior, source))
    each = [batch.x[a:b] for a, b in zip(batch.groups[:-1], batch.groups[1:], strict=True)]
    assert predict(posterior, each, top=2).label.shape == (30, 2)
    assert score(posterior, cut) == pytest.approx(score(posterior, source), rel=1e-12)
    with pytest.raises(DataError, match="without groups"):
        predict(posterior, batch.x)


class Held:
    """A source of batches in memory."""

    is_sparse, n_atoms, name = False, None, "held"

    def __init__(self, batches):
        self.batches = batches

    n_batches = property(lambda self: len(self.batches))
    n_features = property(lambda self: self.batches[0].n_features)

    def reader(self, index):
        return lambda: self.batches[index]

    def describe(self):
        return {}


# -- raw text and vocabularies --------------------------------------------------------------------------------
KNOWN = ("apple pear plum ", "iron steel brass ")
TEXTS = [(f"d{i}", KNOWN[i % 2] * (1 + i % 3) + KNOWN[i % 2].split()[i % 3]) for i in range(40)]


@pytest.fixture(scope="module")
def fruit(tmp_path_factory):
    """A posterior of a store of raw text, and the store."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("fruit")
    store = str(folder / "fruit.zarr")
    ingest(TEXTS, store, text=Text(min_df=1))
    model = Model(word_model("hdp").allocation, Multinomial(lam=0.1))
    with pytest.warns(match="limit of"):
        result = train(
            model, store, init=RandomExamples(4), schedule=Memoized(laps=3), moves=(), store=folder / "run", rng=1
        )
    return result.posterior, store, folder


def test_raw_texts(fruit):
    posterior, store, _ = fruit
    found = predict(posterior, ["plum, apple and a pear!", "Steel", "nothing known"], soft=True)
    assert found[0].argmax() != found[1].argmax()
    np.testing.assert_array_equal(posterior.ids[found[:2].argmax(axis=1)], predict(posterior, store)[:2])
    assert np.array_equal(predict(posterior, [t for _, t in TEXTS]), predict(posterior, store))
    assert score(posterior, [t for _, t in TEXTS]) == pytest.approx(score(posterior, store), rel=1e-12)


def test_the_vocabulary_is_kept(fruit, tmp_path):
    posterior, _, folder = fruit
    assert posterior.words.words == ("apple", "brass", "iron", "pear", "plum", "steel")
    saved = load(folder / "run" / "posterior.zarr")
    assert saved.words.digest == posterior.words.digest
    assert np.array_equal(predict(saved, ["steel"]), predict(posterior, ["steel"]))
    save(begin(word_model("lda"), Batch(corpus()[0])), tmp_path / "plain")
    assert load(tmp_path / "plain").words is None
    assert posterior.light().words is None


def test_another_vocabulary_is_refused(fruit, tmp_path):
    posterior, _, _ = fruit
    other = str(tmp_path / "other.zarr")
    ingest([("a", "apple brass iron pear plum silver")], other, text=Text(min_df=1))
    for ask in (predict, score):
        with pytest.raises(DataError, match="vocabulary of 6 words is not the one"):
            ask(posterior, other)
    plain = begin(word_model("lda"), Batch(corpus()[0]))
    with pytest.raises(DataError, match="knows no vocabulary"):
        predict(plain, ["apple"])


def test_words_are_checked():
    with pytest.raises(DataError, match="'b' twice"):
        Words.of(["a", "b", "b"])
    with pytest.raises(DataError, match="line break"):
        Words.of(["a\nb"])
    assert Words.of(["ä", "b"]).words == ("ä", "b")


# -- completion -----------------------------------------------------------------------------------------------
def completion_slowly(posterior, x, completion):
    """Sum of log probabilities and held-out tokens of each document, by the definition."""
    held = sparse.csr_array((split_counts(x, completion), x.indices, x.indptr), shape=x.shape).toarray()
    seen = x.toarray() - held
    phi = posterior.observation.lam / posterior.observation.lam.sum(axis=1, keepdims=True)
    lam = np.asarray(posterior.model.observation.lam)
    prior, rest = prior_of(posterior)
    log_phi = posterior.observation.log_phi
    out = []
    for a, b in zip(seen, held, strict=True):
        words = np.flatnonzero(a)
        theta = theta_slowly(log_phi.T[words], a[words], prior) if len(words) else prior
        total = theta.sum() + rest
        word = (theta @ phi + rest * lam / lam.sum()) / total
        assert word.sum() == pytest.approx(1.0)
        out.append((b[b > 0] @ np.log(word[b > 0]), b.sum()))
    return np.array(out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["types", "tokens"])
def test_completion_is_the_definition(kind, split, monkeypatch):
    posterior, x = words_posterior(kind)
    # to the end: these random topics take many updates
    monkeypatch.setattr(topics_completion, "FOLD_IN", replace(FOLD_IN, sweeps=4000, tolerance=1e-11))
    completion = Completion(split, seed=3)
    slow = completion_slowly(posterior, x, completion)
    found = completion_score(posterior, x, completion)
    assert found.score == pytest.approx(slow[:, 0].sum() / slow[:, 1].sum(), abs=1e-8)
    assert found.n_tokens == slow[:, 1].sum()
    assert (found.n_documents, found.n_skipped) == (25, 0)
    assert found.perplexity == pytest.approx(np.exp(-found.score))
    assert score(posterior, x, completion=completion) == found.score
    if split == "types":
        each = score_samples(posterior, x)
        slow = completion_slowly(posterior, x, Completion())
        np.testing.assert_allclose(each, slow[:, 0] / slow[:, 1], atol=1e-7)
        assert score(posterior, x) == pytest.approx(slow[:, 0].sum() / slow[:, 1].sum(), abs=1e-8)


def test_completion_does_not_depend_on_the_cut_or_the_order():
    posterior, x = words_posterior("hdp")
    whole = score(posterior, x)
    assert score(posterior, x, batch_size=4, client=ThreadExecutor(2)) == pytest.approx(whole, rel=1e-13)
    order = np.random.default_rng(0).permutation(25)
    assert score(posterior, sparse.csr_array(x[order])) == pytest.approx(whole, rel=1e-13)
    assert score(posterior, x, completion=Completion(seed=1)) != pytest.approx(whole, rel=1e-6)


def test_weights_of_documents_weigh_the_mean():
    posterior, x = words_posterior("lda")
    twice = sparse.csr_array(sparse.vstack([x, x[:4]], format="csr"))
    weights = np.ones(25)
    weights[:4] = 2.0
    assert score(posterior, as_source(x, weights=weights)) == pytest.approx(score(posterior, twice), rel=1e-12)
    # documents of weight zero count neither as documents nor as ones that cannot be split
    weights[[1, 20]] = 0.0
    few = completion_score(posterior, as_source(x, weights=weights))
    others = np.flatnonzero(weights)
    wanted = completion_score(posterior, as_source(sparse.csr_array(x[others]), weights=weights[others]))
    assert few == wanted and few.n_documents == 23


@pytest.mark.parametrize("split", ["types", "tokens"])
def test_splits_hold_out_their_share(split):
    x = corpus(n_docs=200)[0]
    completion = Completion(split)
    held = split_counts(x, completion)
    assert ((held >= 0) & (held <= x.data)).all()
    for d in range(200):
        own = slice(x.indptr[d], x.indptr[d + 1])
        if split == "types":
            assert set(np.unique(held[own] / x.data[own])) <= {0.0, 1.0}
            n = own.stop - own.start
            assert (held[own] > 0).sum() == max(1, np.floor(0.2 * n + 0.5))
        else:
            assert held[own].sum() == x.data[own].sum() / 2
    # every token has the same chance
    if split == "tokens":
        assert np.corrcoef(held, x.data)[0, 1] > 0.8
    assert not np.array_equal(held, split_counts(x, Completion(split, seed=1)))


def test_a_split_is_uniform_over_words():
    x = sparse.csr_array(np.random.default_rng(0).integers(1, 9, size=(4000, 10)).astype(float))
    held = split_counts(x, Completion("types")).reshape(4000, 10) > 0
    assert (held.sum(axis=1) == 2).all()
    assert np.abs(held.mean(axis=0) - 0.2).max() < 4 * np.sqrt(0.16 / 4000)


def test_mix_is_splitmix64():
    """First numbers of SplitMix64 from seed 0, as published with it."""
    step = np.uint64(0x9E3779B97F4A7C15)
    state = np.arange(3, dtype=np.uint64) * step
    assert [hex(v) for v in mix(state)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_documents_that_cannot_be_split_are_counted():
    posterior, x = words_posterior("hdp")
    short = np.zeros((4, V))
    short[1, 3], short[2, 5], short[3, [1, 2]] = 1, 4, 1
    more = sparse.csr_array(sparse.vstack([x, sparse.csr_array(short)], format="csr"))
    by_types, by_tokens = (completion_score(posterior, more, Completion(s)) for s in ("types", "tokens"))
    assert (by_types.n_documents, by_types.n_skipped) == (26, 3)
    assert (by_tokens.n_documents, by_tokens.n_skipped) == (27, 2)
    assert np.isnan(score_samples(posterior, more)[25:28]).all()
    with pytest.raises(DataError, match="none of 3 documents can be split"):
        score(posterior, sparse.csr_array(short[:3]))


def test_completion_of_points():
    batch = points(12)
    posterior = begin(point_model("hdp", batch, restarts=0), batch)
    completion = Completion("tokens")
    held = split_atoms(batch.x, batch.groups, completion)
    assert np.array_equal(np.add.reduceat(held, batch.groups[:-1]), np.floor(np.diff(batch.groups) / 2 + 0.5))
    prior, rest = prior_of(posterior)
    model = posterior.model
    unseen = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
    value = 0.0
    for a, b in zip(batch.groups[:-1], batch.groups[1:], strict=True):
        atoms, out = batch.rows(a, b), held[a:b]
        log_lik = model.observation.expected_log_lik(posterior.observation, atoms)
        theta = np.append(theta_slowly(log_lik[~out], np.ones((~out).sum()), prior), rest)
        terms = [model.observation.log_predictive(p, atoms) for p in (posterior.observation, unseen)]
        value += logsumexp(np.concatenate(terms, axis=1) + np.log(theta / theta.sum()), axis=1)[out].sum()
    assert score(posterior, Held([batch]), completion=completion) == pytest.approx(value / held.sum(), rel=1e-4)


def test_settings_are_checked():
    posterior, x = words_posterior("lda")
    with pytest.raises(SettingError, match='"types" or "tokens"'):
        Completion("words")
    with pytest.raises(SettingError, match="above 0 and below 1"):
        Completion(share=1.0)
    with pytest.raises(SettingError, match="seed=-1"):
        Completion(seed=-1)
    with pytest.raises(SettingError, match="needs Completion"):
        score(posterior, x, completion="types")
    model = Model(DPMixture(), Multinomial()).with_prior(survey_of(Batch(x)))
    mixture = begin(model, Batch(x))
    with pytest.raises(SettingError, match="no documents to complete"):
        score(mixture, x, completion=Completion())
    with pytest.raises(SettingError, match="needs a topic model"):
        completion_score(mixture, x)
    with pytest.raises(DataError, match="columns"):
        predict(posterior, sparse.csr_array(x[:, :5]))


def test_a_fitted_vectorizer_names_the_words():
    vectorizer = pytest.importorskip("sklearn.feature_extraction.text").CountVectorizer(token_pattern="w[0-9]+")
    vectorizer.fit([" ".join(f"w{i:02}" for i in range(V))])
    posterior, words = begin(word_model("lda"), Batch(corpus()[0])), vectorizer.get_feature_names_out().tolist()
    assert posterior.topics(3, words=vectorizer)[0].words == posterior.topics(3, words=words)[0].words
    assert str(bnp.inspect(posterior, vocabulary=vectorizer)) == str(bnp.inspect(posterior, vocabulary=words))


# -- tiles, the rest, and shares by hand -----------------------------------------------------------------------------
def by_hand(prior=(0.5, 0.25), rest=2.0):
    """Topics of four documents, the second without words."""
    offsets, position = np.array([0, 2, 2, 3, 5]), np.array([0, 1, 1, 1, 0])
    count = np.array([1.0, 2.0, 4.0, 0.5, 1.5])
    prior, length = np.array(prior), np.array([3.0, 0.0, 4.0, 2.0])
    return answers.DocumentTopics(offsets, position, count, prior, rest, length, rest > 0.0)


def test_shares_of_some_documents_are_those_among_all(monkeypatch):
    found = by_hand()
    theta = np.array([[1.5, 2.25], [0.5, 0.25], [0.5, 4.25], [2.0, 0.75]])
    np.testing.assert_array_equal(found.theta(0, 4), theta)
    np.testing.assert_array_equal(found.theta(1, 3), theta[1:3])
    np.testing.assert_array_equal(found.total, theta.sum(axis=1) + 2.0)
    shares = np.column_stack([theta, np.full(4, 2.0)]) / found.total[:, None]
    np.testing.assert_allclose(found.shares(2, 4), shares[2:], rtol=1e-15)
    np.testing.assert_array_equal(found.counts().toarray(), theta - found.prior)
    assert found.tiles() == [(0, 4)]
    for limit, tiles in ((9, [(0, 3), (3, 4)]), (2, [(0, 1), (1, 2), (2, 3), (3, 4)])):
        monkeypatch.setattr(answers, "TILE_NUMBERS", limit)
        assert found.tiles() == tiles


@pytest.mark.parametrize("limit", [2**19, 2])
def test_the_rest_is_no_topic_of_a_document(monkeypatch, limit):
    """Unseen topics have the largest share here: they are a column of the shares, and no label."""
    monkeypatch.setattr(answers, "TILE_NUMBERS", limit)
    monkeypatch.setattr(answers, "find_topics", lambda *args: by_hand())
    posterior, x = words_posterior("hdp")
    two = posterior.model.global_step(replace(posterior.summary.take([13, 10])))
    batch, shares = Batch(x[:4]), by_hand().shares(0, 4)
    assert answers.label_documents(two, batch, False, None)["label"].tolist() == [10, 13, 10, 13]
    np.testing.assert_array_equal(answers.label_documents(two, batch, True, None)["resp"], shares)
    for most in (2, 3):
        top = answers.label_documents(two, batch, False, most)
        assert top["label"].tolist() == [[10, 13], [13, 10], [10, 13], [13, 10]]
        np.testing.assert_array_equal(top["resp"], -np.sort(-shares[:, :2], axis=1))
    np.testing.assert_allclose(
        answers.shares_of(two, batch)[0], by_hand().theta(0, 4) / by_hand().theta(0, 4).sum(axis=1, keepdims=True)
    )


def test_weights_of_documents_do_not_change_their_shares():
    posterior, x = words_posterior("lda")
    plain, _, _ = answers.shares_of(posterior, Batch(x[:5]))
    weighted, length, batch = answers.shares_of(posterior, Batch(x[:5], np.array([3.0, 1.0, 0.5, 2.0, 7.0])))
    np.testing.assert_array_equal(weighted, plain)
    np.testing.assert_array_equal(length, x[:5].sum(axis=1))
    assert batch.weights is None


@pytest.mark.parametrize("kind", KINDS)
def test_atoms_of_groups_have_the_same_topics_in_tiles_of_any_size(kind, monkeypatch):
    batch = points(6)
    posterior = begin(point_model(kind, batch), batch)
    found = answers.find_topics(posterior, batch, answers.own_step(posterior))
    resp, label = answers.atom_resp(posterior, batch, found), answers.atom_labels(posterior, batch, found)
    owner = np.repeat(np.arange(6), np.diff(batch.groups))
    log_weight = posterior.model.observation.expected_log_lik(posterior.observation, batch)
    log_weight = log_weight + psi(found.theta(0, 6))[owner]
    np.testing.assert_allclose(resp, np.exp(log_weight - logsumexp(log_weight, axis=1, keepdims=True)), atol=1e-12)
    monkeypatch.setattr(answers, "TILE_NUMBERS", 3 * (posterior.n_clusters + 1))  # three documents, or atoms, a tile
    np.testing.assert_allclose(answers.atom_resp(posterior, batch, found), resp, atol=1e-13)
    np.testing.assert_array_equal(answers.atom_labels(posterior, batch, found), label)
    monkeypatch.undo()
    assert np.array_equal(answers.label_documents(posterior, batch, False, None)["label"], posterior.ids[label])
