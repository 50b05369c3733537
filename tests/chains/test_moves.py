"""Moves on hidden Markov models: the right states from few and from many, never down, the same bits anywhere."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bnp_dask.allocation import HDPHMM
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import ContiguousBlocks
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import Gaussian
from bnp_dask.training.train import train


def walks(k=5, n=8, length=250, seed=0):
    """Sticky sequences that visit ``k`` places on a circle, and where they are."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(k) / k
    means = 8.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    sequences, places = [], []
    for _ in range(n):
        z = [int(rng.integers(k))]
        while len(z) < length:
            z.append(z[-1] if rng.random() < 0.95 else int(rng.integers(k)))
        sequences.append(means[z] + rng.normal(size=(length, 2)))
        places.append(z)
    return sequences, np.concatenate(places)


def go(k, kappa, client=None, laps=25):
    sequences, places = walks()
    model = Model(HDPHMM(gamma=10.0, alpha=0.5, alpha0=10.0, kappa=kappa), Gaussian())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            model, sequences, init=ContiguousBlocks(k), schedule=Memoized(laps, window=2),
            moves=[Birth(), Merge(), Delete()], batch_size=500, rng=0, client=client,
        )  # fmt: skip
    return result, places


@pytest.mark.first_case
@pytest.mark.parametrize(
    "k, kappa",
    [
        (1, 20.0),
        (12, 0.0),
        pytest.param(1, 0.0, marks=pytest.mark.long),
        pytest.param(12, 20.0, marks=pytest.mark.long),
    ],
)
def test_true_states_are_found_and_the_objective_never_falls(k, kappa):
    result, places = go(k, kappa)
    assert result.posterior.n_clusters == 5
    np.testing.assert_allclose(np.sort(result.posterior.summary["N"]), np.sort(np.bincount(places)), atol=3.0)
    rows = [row for row in result.history if row["exact"]]
    elbo = np.array([row["elbo"] for row in rows])
    size = np.array([sum(abs(row[name]) for name in ("data", "entropy", "allocation")) for row in rows])
    assert (np.diff(elbo) >= -1e-12 * size[1:]).all()


@pytest.mark.long
def test_same_bits_serial_and_on_threads():
    kept = []
    for client in (SerialExecutor(), ThreadExecutor(2)):
        result, _ = go(8, 5.0, client, laps=6)
        kept.append({name: value.tobytes() for name, value in result.posterior.summary.to_arrays().items()})
        assert any(m["accepted"] for row in result.history for m in row["moves"])
    assert kept[0] == kept[1]
