"""Runs that keep assignments of their batches are those that keep statistics, bit by bit, wherever they are computed."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

import bnp_dask as bnp
from bnp_dask.errors import DataError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.schedules.engine.batch_memo import is_assigned
from bnp_dask.store import RunStore
from tests.growing.parts import bits_of
from tests.stopping import StopAfter

K, D, SIZE, BATCHES = 90, 14, 250, 6
MODEL = bnp.Model(bnp.DPMixture(5.0), bnp.Gaussian())


def rows(seed=0, n=SIZE * BATCHES):
    means = 12.0 * np.random.default_rng(7).normal(size=(K, D))
    rng = np.random.default_rng(seed)
    return means[rng.integers(K, size=n)] + rng.normal(size=(n, D))


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "rows.npy", rows())
    return tmp_path / "rows.npy"


def run(data, store=None, laps=3, client=None, **more):
    settings = {"init": bnp.RandomExamples(K), "schedule": bnp.Memoized(laps=laps, window=4, tolerance=0.0), "rng": 1}
    settings |= {"batch_size": SIZE, "store": store, "client": client or SerialExecutor(), **more}
    return bnp.train(MODEL, data, **settings)


def kept(store):
    """Of every batch whether assignments are kept of it, and the bytes of all files."""
    view = RunStore.view(store)
    listing = view.load().listing
    return [is_assigned(view.get_summary(b, v, r)[0]) for b, v, r in listing.entries()], listing.nbytes


def bits(result):
    return {name: value.tobytes() for name, value in result.posterior.summary.values.items()}


@pytest.mark.filterwarnings("default::bnp_dask.ConvergenceWarning")
@pytest.mark.parametrize("moves", [(), None])
def test_bits_are_those_of_a_run_that_keeps_statistics(path, tmp_path, moves):
    assigned = run(path, tmp_path / "one", moves=moves)
    summed = run(rows(), tmp_path / "other", moves=moves)  # data in memory cannot be read again by a later call
    held = run(path, moves=moves)
    (one, few), (other, many) = kept(tmp_path / "one"), kept(tmp_path / "other")
    assert all(one) and not any(other) and few < 0.6 * many
    assert bits(assigned) == bits(summed) == bits(held)
    assert [row["elbo"] for row in assigned.history] == [row["elbo"] for row in summed.history]
