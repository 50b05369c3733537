"""Moves on topic models: from any start to the same topics, never down, the same bits anywhere."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from bnp_dask.allocation import HDPTopics
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.execute.threads import ThreadExecutor
from bnp_dask.initialize import RandomExamples
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import Multinomial
from bnp_dask.schedules import Memoized
from bnp_dask.train import train
from tests.topics.bars import bars_corpus

MOVES = (Birth(sample=300), Merge(), Delete())


def go(k: int, seed: int = 0, laps: int = 12, docs: int = 400, client=None):
    counts, phi = bars_corpus(docs, length=100, seed=seed)
    model = Model(HDPTopics(10.0, 0.5), Multinomial(lam=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            model, counts, init=RandomExamples(k), schedule=Memoized(laps, window=3), moves=list(MOVES), batch_size=50,
            rng=seed, client=client,
        ), phi  # fmt: skip


def found(result, phi) -> int:
    """True topics with a topic of their own, within a total variation of 0.3."""
    lam = result.posterior.observation.lam
    distance = 0.5 * np.abs(phi[:, None] - lam / lam.sum(axis=1, keepdims=True)).sum(axis=2)
    return int((distance[linear_sum_assignment(distance)] < 0.3).sum())


@pytest.mark.parametrize("k", [1, 30])
def test_bars_are_found_and_the_objective_never_falls(k):
    result, phi = go(k)
    assert found(result, phi) == 10
    assert result.posterior.n_clusters <= 12
    rows = [row for row in result.history if row["exact"]]
    elbo = np.array([row["elbo"] for row in rows])
    size = np.array([sum(abs(row[name]) for name in ("data", "entropy", "allocation")) for row in rows])
    assert (np.diff(elbo) >= -1e-12 * size[1:]).all()
    kinds = {m["kind"] for row in rows for m in row["moves"] if m["accepted"]}
    assert kinds >= ({"birth"} if k == 1 else {"merge"})


def test_same_bits_serial_and_on_threads():
    kept = []
    for client in (SerialExecutor(), ThreadExecutor(2)):
        result, _ = go(3, laps=5, docs=200, client=client)
        kept.append({name: value.tobytes() for name, value in result.posterior.summary.to_arrays().items()})
        assert any(m["accepted"] for row in result.history for m in row["moves"])
    assert kept[0] == kept[1]
