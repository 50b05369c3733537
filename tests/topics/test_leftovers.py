"""Topics that hold next to nothing go, whatever a run starts from."""

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from tests.topics.bars import bars_corpus, thin_bars, unequal_bars

STARTS = {
    "default": None,
    "one": bnp.BregmanKMeans(1),
    "fifty": bnp.SampledTopics(50),
    "hundred": bnp.SampledTopics(100),
}


def found(x, phi, seed, start):
    """Number of topics, and how many of the true bars are one of them."""
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    result = bnp.train(model, x, init=STARTS[start], client=SerialExecutor(), rng=seed)
    lam = result.posterior.observation.lam
    far = np.abs((lam / lam.sum(axis=1, keepdims=True))[:, None] - phi).sum(axis=2)
    return len(lam), len(set(far.argmin(axis=1)[far.min(axis=1) < 0.5]))


@pytest.mark.long
def test_as_many_topics_as_bars():
    assert found(*thin_bars(3), 3, "default") == (24, 24)


@pytest.mark.long
def test_leftovers_that_cost_more_alone_than_they_gain_go_together():
    """One local step without topics of 39 and 55 tokens, among fewer receivers, lacks 300 nats and more each."""
    x, phi = unequal_bars(0)
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    result = bnp.train(model, x, client=SerialExecutor(), rng=0)
    sets = [m for m in result.history.moves() if m["kind"] == "delete" and len(m["others"]) > 20 and m["accepted"]]
    assert sets and result.posterior.n_clusters == len(phi)


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
def test_as_many_topics_as_bars_in_nine_of_ten(start):
    results = [found(*thin_bars(seed), seed, start) for seed in range(10)]
    assert all(bars == 24 for _, bars in results), results
    assert sum(k == 24 for k, _ in results) >= 9, results


@pytest.mark.long
@pytest.mark.timeout(1800)  # ten runs of some seconds each
@pytest.mark.parametrize("start", STARTS)
def test_the_ten_bars_of_the_thesis_in_ten_of_ten(start):
    results = [found(*bars_corpus(seed=seed), seed, start) for seed in range(10)]
    assert results == [(10, 10)] * 10
