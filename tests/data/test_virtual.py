"""Rows that exist nowhere: computed from the number of their batch and a seed."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli.jobfile import job_schema, parse_job
from bnp_dask.data.sources.virtual import CHOICES, LENGTHS, NOISE, PER_DOCUMENT, SHARES, TOKENS, WORDS
from bnp_dask.errors import SettingError
from bnp_dask.testing import SourceSuite


class TestVirtualMixture(SourceSuite):
    def source(self):
        return bnp.VirtualMixture(2_500, 3, 4, batch_size=1000)

    def test_rows_of_a_cluster_lie_around_its_mean(self):
        source = self.source()
        labels = np.concatenate([source.labels(b) for b in range(source.n_batches)])
        rows = np.concatenate([batch.x for batch in self.batches(source)])
        for k in range(4):
            own = rows[labels == k]
            assert np.abs(own.mean(axis=0) - source.means[k]).max() < 5 * 1.5 / np.sqrt(len(own))
            assert (own.std(axis=0) > 0.4).all() and (own.std(axis=0) < 1.6).all()

    def test_another_seed_gives_other_rows(self):
        other = bnp.VirtualMixture(2_500, 3, 4, batch_size=1000, seed=1)
        assert not np.array_equal(other.reader(0)().x, self.source().reader(0)().x)
        assert other.describe() != self.source().describe()

    def test_batches_do_not_repeat_one_another(self):
        source = self.source()
        first, second, _ = self.batches(source)
        assert not np.isin(first.x, second.x).any()
        # each of the random parts of a row: its cluster, and its place around the mean; two draws of 1 of 4 clusters
        # agree in a quarter of the rows
        one, other = source.labels(0), source.labels(1)
        assert 0.15 < np.mean(one == other) < 0.35
        same = one == other
        assert (first.x[same] != second.x[same]).all()


class TestVirtualTopics(SourceSuite):
    def source(self):
        return bnp.VirtualTopics(2_500, 60, 4, length=30.0, batch_size=1000)

    def test_words_follow_their_topics(self):
        source = self.source()
        shares = source.weights @ np.array([source.topic(k) for k in range(4)])
        found = sum(batch.x.sum(axis=0) for batch in self.batches(source))
        # tokens of a document share topics: its mean is exact, and a topic's count has the variance of documents
        assert np.abs(found / found.sum() - shares).max() < 0.15 * shares.max()
        assert found.sum() == pytest.approx(30 * 2_500, rel=0.02)

    def test_a_topic_is_a_distribution_whose_words_are_ordered_by_rank(self):
        source = self.source()
        for k in range(4):
            words = source.topic(k)
            assert words.sum() == pytest.approx(1.0) and (words > 0).all()
            assert (np.diff(words[source.word(k, np.arange(60))]) < 0).all()

    def test_tokens_of_one_topic_have_its_words(self):
        source = bnp.VirtualTopics(400, 50, 1, length=100.0)
        counts = np.asarray(source.reader(0)().x.sum(axis=0)).ravel()
        expected = counts.sum() * source.topic(0)
        # chi-square of 49 degrees of freedom: its 1e-6 quantile is 115
        assert ((counts - expected) ** 2 / expected).sum() < 115

    def test_batches_do_not_repeat_one_another(self):
        first, second, _ = self.batches(self.source())
        assert (first.x != second.x).nnz


def test_rows_of_a_large_batch_are_those_written_out_row_by_row():
    source = bnp.VirtualMixture(20_000, 2, 3, batch_size=20_000, seed=4)
    means, scale = source._clusters()
    label, noise = source.labels(0), source._rng(NOISE, 0).standard_normal((20_000, 2))
    wanted = noise * scale[label] + means[label]
    np.testing.assert_allclose(source.reader(0)().x, wanted, rtol=1e-12)


def test_documents_are_those_written_out_token_by_token():
    source = bnp.VirtualTopics(30, 97, 40, length=12.0, batch_size=11, seed=2)
    ranks = np.cumsum(1.0 / (np.arange(97) + 2.7))
    ranks /= ranks[-1]
    weights = np.cumsum(source.weights)
    for index, n in enumerate((11, 11, 8)):
        length = 1 + source._rng(LENGTHS, index).poisson(11.0, n)
        choices = source._rng(CHOICES, index).random((n, PER_DOCUMENT))
        shares = source._rng(SHARES, index).standard_gamma(0.25, (n, PER_DOCUMENT))
        tokens, words = (source._rng(key, index).random(length.sum()) for key in (TOKENS, WORDS))
        wanted, at = np.zeros((n, 97)), 0
        for d in range(n):
            ends = np.cumsum(shares[d]) / shares[d].sum()
            for _ in range(length[d]):
                topic = int(np.searchsorted(weights, choices[d, np.searchsorted(ends, tokens[at])]))
                wanted[d, source.word(topic, int(np.searchsorted(ranks, words[at])))] += 1.0
                at += 1
        found = source.reader(index)().x
        np.testing.assert_array_equal(found.toarray(), wanted)
        assert (found.sum(axis=1) >= 1.0).all()


def test_a_billion_rows_are_described_at_once():
    source = bnp.VirtualMixture(10**9, 16, 64)
    assert (source.n_atoms, source.n_batches) == (10**9, 3815)
    with pytest.raises(IndexError, match="0 to 3814"):
        source.reader(3815)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_rows": 0, "n_columns": 2, "n_clusters": 1}, "n_rows=0"),
        ({"n_rows": 5, "n_columns": 2, "n_clusters": 6}, "n_clusters=6: there are only n_rows=5"),
        ({"n_rows": 5, "n_columns": 2, "n_clusters": 1, "spread": -1.0}, "spread=-1"),
        ({"n_rows": 5, "n_words": 2, "n_topics": 0}, "n_topics=0"),
        ({"n_rows": 5, "n_words": 2, "n_topics": 1, "length": 0.5}, "length=0.5"),
        ({"n_rows": 5, "n_words": 2, "n_topics": 1, "concentration": 0.0}, "concentration=0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        (bnp.VirtualTopics if "n_words" in settings else bnp.VirtualMixture)(**settings)


def test_a_job_file_names_it_and_the_schema_knows_it(tmp_path):
    text = (
        "model: {allocation: DPMixture, observation: DiagGaussian}\n"
        "data: {type: VirtualMixture, n_rows: 600, n_columns: 2, n_clusters: 3, batch_size: 100}\n"
        "init: {type: FromSample, batches: 1, init: {type: BregmanKMeans, n_clusters: 4}}\n"
        "schedule: {type: Memoized, laps: 3}\n"
    )
    job = parse_job(yaml.safe_load(text), tmp_path)
    assert job.data == bnp.VirtualMixture(600, 2, 3, batch_size=100)
    assert job.init == bnp.FromSample(bnp.BregmanKMeans(4), batches=1)
    known = job_schema()["definitions"]
    assert {"VirtualMixture", "FromSample"} <= known.keys()
    assert "n_rows" in known["VirtualMixture"]["required"]
