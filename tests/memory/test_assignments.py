"""Runs that keep assignments of their batches have the bits of those that keep statistics, wherever they are made."""

from __future__ import annotations

import warnings
from contextlib import closing

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.data.sources.arrays import NpySource
from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.inference import local_steps, visit
from bnp_dask.inference.batch_memo import is_assigned
from bnp_dask.store import RunStore, SharedFiles
from tests.faults.test_bound import rewrite
from tests.stopping import AfterSteps

K, D, SIZE, BATCHES = 80, 14, 220, 6
MODEL = bnp.Model(bnp.DPMixture(5.0), bnp.Gaussian())


def rows(seed=0):
    means = 12.0 * np.random.default_rng(7).normal(size=(K, D))
    rng = np.random.default_rng(seed)
    return means[rng.integers(K, size=SIZE * BATCHES)] + rng.normal(size=(SIZE * BATCHES, D))


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "rows.npy", rows())
    return tmp_path / "rows.npy"


def run(data, store=None, laps=3, client=None, moves=(), **more):
    settings = {"init": bnp.RandomExamples(K), "schedule": bnp.Memoized(laps=laps, window=4, tolerance=0.0), "rng": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(
            MODEL,
            data,
            batch_size=SIZE,
            store=store,
            client=client or SerialExecutor(),
            moves=moves,
            **settings,
            **more,
        )


def kept(store):
    """Of every batch whether assignments are kept of it, and the bytes of all files."""
    view = RunStore.view(store)
    listing = view.load().listing
    return [is_assigned(view.get_summary(b, v, r)[0]) for b, v, r in listing.entries()], listing.nbytes


def bits(result):
    elbo = [row["elbo"] for row in result.history]
    return elbo, {name: value.tobytes() for name, value in result.posterior.summary.values.items()}


@pytest.fixture(scope="module")
def statistics(tmp_path_factory):
    """Bits of a run that keeps statistics: data in memory could not be read again by a later call."""
    folder = tmp_path_factory.mktemp("statistics")
    found = bits(run(rows(), folder / "run"))
    is_kept, nbytes = kept(folder / "run")
    assert not any(is_kept)
    return found, nbytes


def test_in_a_directory_in_memory_and_on_threads(path, tmp_path, statistics):
    one = run(path, tmp_path / "run")
    is_kept, nbytes = kept(tmp_path / "run")
    assert all(is_kept) and nbytes < 0.6 * statistics[1]
    with closing(ThreadExecutor(2)) as threads:
        others = [run(path), run(path, client=threads), run(path, tmp_path / "threads", client=threads)]
    assert all(bits(found) == statistics[0] for found in (one, *others))


@pytest.mark.long
def test_with_moves_whose_edits_old_batches_have_missed(path, tmp_path):
    one, other = run(path, tmp_path / "run", 4, moves=None), run(rows(), tmp_path / "other", 4, moves=None)
    assert any(kept(tmp_path / "run")[0]) and not any(kept(tmp_path / "other")[0])
    assert sum(move["accepted"] for row in one.history for move in row["moves"]) > 3
    assert bits(one) == bits(other)


@pytest.mark.parametrize("verbs", [("put", "get"), ("get",), ("put",)])
def test_with_workers_that_do_not_reach_the_directory(path, tmp_path, statistics, verbs, monkeypatch):
    def refuse(self, *rest, **more):
        raise StoreError("no way")

    for verb in verbs:
        monkeypatch.setattr(SharedFiles, verb, refuse)
    assert bits(run(path, tmp_path / "run")) == statistics[0]


def test_a_run_that_was_killed_reads_nothing_before_it_goes_on(path, tmp_path, statistics, monkeypatch):
    run(path, tmp_path / "run", callbacks=[AfterSteps(4)])
    order, read, check = [], NpySource.reader, local_steps.recall
    monkeypatch.setattr(NpySource, "reader", lambda self, index: order.append(index) or read(self, index))
    for module in (local_steps, visit):
        monkeypatch.setattr(module, "recall", lambda *a: order.append("recall") or check(*a))
    assert bits(run(path, tmp_path / "run", resume=True)) == statistics[0]
    assert "recall" not in order


def test_a_total_whose_counts_those_of_the_batches_do_not_give_is_refused(path, tmp_path, statistics):
    run(path, tmp_path / "run", callbacks=[AfterSteps(7)])
    rewrite(tmp_path / "run", lambda arrays: {"total.high/value.N": arrays["total.high/value.N"] * (1.0 + 1e-11)})
    with pytest.warns(UserWarning, match="its total is not the sum of its summaries: 'N' differs"):
        resumed = run(path, tmp_path / "run", resume=True)
    assert bits(resumed) == statistics[0]


def test_a_total_whose_other_statistics_were_damaged_is_refused(path, tmp_path, statistics):
    run(path, tmp_path / "run", callbacks=[AfterSteps(7)])
    assert any(kept(tmp_path / "run")[0])
    name = "total.high/value.xx"
    rewrite(tmp_path / "run", lambda arrays: {name: arrays[name] * (1.0 + 1e-11)})
    with pytest.warns(UserWarning, match="the sum 'total' over its batches does not fit its checksum"):
        resumed = run(path, tmp_path / "run", resume=True)
    assert bits(resumed) == statistics[0]
