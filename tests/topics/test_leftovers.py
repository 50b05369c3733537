"""Topics that hold next to nothing go, whatever a run starts from."""

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from tests.topics.bars import thin_bars

STARTS = {
    "default": None,
    "one": bnp.BregmanKMeans(1),
    "fifty": bnp.SampledTopics(50),
    "hundred": bnp.SampledTopics(100),
}


def found(seed, start):
    """Number of topics, and how many of the true bars are one of them."""
    x, phi = thin_bars(seed)
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    result = bnp.train(model, x, init=STARTS[start], client=SerialExecutor(), rng=seed)
    lam = result.posterior.observation.lam
    far = np.abs((lam / lam.sum(axis=1, keepdims=True))[:, None] - phi).sum(axis=2)
    return len(lam), len(set(far.argmin(axis=1)[far.min(axis=1) < 0.5]))


def test_as_many_topics_as_bars():
    assert found(3, "default") == (24, 24)


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
def test_as_many_topics_as_bars_in_nine_of_ten(start):
    results = [found(seed, start) for seed in range(10)]
    assert all(bars == 24 for _, bars in results)
    assert sum(k == 24 for k, _ in results) >= 9, results
