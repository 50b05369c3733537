"""Several starts: the best after some laps goes on, as it would alone."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation import HDPHMM, DPMixture, FiniteMixture, HDPTopics
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.initialize import BregmanKMeans, RandomExamples
from bnp_dask.model import Model
from bnp_dask.moves import Delete, Merge
from bnp_dask.observation import Gaussian, Multinomial
from bnp_dask.store import RunStore
from bnp_dask.training import alternatives
from bnp_dask.training.train import train

go = partial(train, client=SerialExecutor(), batch_size=60)


@pytest.fixture(autouse=True)
def few_laps(monkeypatch):
    monkeypatch.setattr(alternatives, "LAPS", 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=bnp.ConvergenceWarning)
        yield


def nine_clusters():
    rng = np.random.default_rng(2)
    return np.repeat(rng.normal(0, 6, (9, 2)), 30, axis=0) + rng.normal(size=(270, 2))


def documents():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(40, 0.05), 4)
    shares = rng.dirichlet(np.full(4, 0.2), 120)
    return sparse.csr_array(np.array([rng.multinomial(30, s @ topics) for s in shares], np.float64))


def bits(result):
    return {name: a.tobytes() for name, a in result.posterior.summary.to_arrays().items()}


def rows_of(result):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]


FIXED = {"init": BregmanKMeans(9), "schedule": Memoized(laps=6, tolerance=0.0)}
TOPICS = {"init": RandomExamples(6), "moves": [Merge(), Delete()]}
KINDS = {
    "mixture": (Model(FiniteMixture(), Gaussian()), nine_clusters, FIXED),
    "mixture with moves": (
        Model(DPMixture(), Gaussian()), nine_clusters, {"init": BregmanKMeans(6), "schedule": Memoized(laps=6)},
    ),
    "topics": (Model(HDPTopics(), Multinomial()), documents, {**TOPICS, "schedule": Memoized(laps=5)}),
    "chains": (
        Model(HDPHMM(), Gaussian()),
        lambda: bnp.as_source(nine_clusters(), batch_size=60, groups=np.arange(0, 271, 45)),
        {"init": RandomExamples(4), "schedule": Memoized(laps=5), "batch_size": None},
    ),
    "full batches": (
        Model(HDPTopics(), Multinomial()), documents, {**TOPICS, "schedule": FullBatch(laps=5)},
    ),
    "stochastic": (
        Model(FiniteMixture(), Gaussian()), nine_clusters, {"init": BregmanKMeans(9), "schedule": Stochastic(laps=5)},
    ),
}  # fmt: skip


@pytest.mark.first_case
@pytest.mark.parametrize("kind", KINDS)
def test_the_start_that_goes_on_has_the_bits_of_its_run_alone(kind):
    model, data, more = KINDS[kind]
    result = go(model, data(), rng=5, n_init=2, **more)
    elbos = [start["elbo"] for start in result.starts]
    best = result.starts[int(np.argmax(elbos))]
    alone = go(model, data(), rng=best["seed"], **more)
    assert bits(result) == bits(alone) and rows_of(result) == rows_of(alone)
    assert result.reason == alone.reason and alone.alternatives == ()
    assert result.starts == result.alternatives and {start["kind"] for start in result.starts} == {"start"}
    assert result.starts[0]["seed"] == 5 and len(set(elbos)) > 1
    assert all(start["lap"] <= alternatives.LAPS for start in result.starts)
    assert all(row["reason"] != "went on alone" for row in result.starts if row is not best)


def test_starts_end_where_the_limit_of_laps_is_lower():
    model, data, _ = KINDS["mixture"]
    more = {"init": BregmanKMeans(9), "schedule": Memoized(laps=2)}
    result = go(model, data(), rng=5, n_init=4, **more)
    alone = [go(model, data(), rng=start["seed"], **more) for start in result.starts]
    values = [r.history[-1]["elbo"] for r in alone]
    assert [start["elbo"] for start in result.starts] == values and len(set(values)) > 1
    assert [start["reason"] for start in result.starts] == ["limit of 2 laps"] * 4
    assert bits(result) == bits(alone[int(np.argmax(values))])


class Watch:
    def __init__(self, stop_at=None):
        self.laps, self.batches, self.ends, self.stop_at = [], [], [], stop_at

    def on_start(self, info): ...

    def on_batch(self, done):
        self.batches.append(done)

    def on_lap(self, row, posterior):
        self.laps.append((row["lap"], row["elbo"]))
        return row["lap"] == self.stop_at

    def on_end(self, reason):
        self.ends.append(reason)


def test_callbacks_are_told_of_each_lap_once_by_the_start_that_is_ahead():
    model, data, more = KINDS["mixture"]
    watch = Watch()
    result = go(model, data(), n_init=3, callbacks=[watch], **more)
    assert [lap for lap, _ in watch.laps] == list(range(1, 7))
    ends = {row["lap"]: row["elbo"] for row in result.history}
    assert all(elbo >= ends[lap] for lap, elbo in watch.laps) and watch.laps[-1][1] == ends[6]
    assert max(watch.batches) == 5 and watch.ends == [result.reason]


def test_a_callback_that_stops_ends_all_starts():
    model, data, more = KINDS["mixture"]
    result = go(model, data(), n_init=3, callbacks=[Watch(stop_at=2)], **more)
    assert result.reason == "stopped by a callback" and [start["lap"] for start in result.starts] == [2, 2, 2]
    assert result.history[-1]["elbo"] == max(start["elbo"] for start in result.starts)


def test_one_callback_that_stops_is_enough_and_the_others_are_told():
    model, data, more = KINDS["mixture"]
    later = Watch()
    result = go(model, data(), n_init=3, callbacks=[Watch(stop_at=2), later], **more)
    assert result.reason == "stopped by a callback" and result.history[-1]["lap"] == 2
    assert [lap for lap, _ in later.laps] == [1, 2]


def test_a_callback_that_stops_in_the_first_lap_leaves_the_first_start(tmp_path):
    class Stop(Watch):
        def on_batch(self, done):
            return True

    model, data, more = KINDS["mixture"]
    result = go(model, data(), n_init=3, callbacks=[Stop()], store=tmp_path / "run", **more)
    assert result.reason == "stopped by a callback" and [start["lap"] for start in result.starts] == [0, 0, 0]
    assert not RunStore.has_begun(tmp_path / "run")
    whole = go(model, data(), n_init=3, **more)
    assert bits(go(model, data(), n_init=3, store=tmp_path / "run", resume=True, **more)) == bits(whole)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mixture with moves", "topics"])
def test_starts_in_a_run_directory_go_on_after_a_stop_to_the_same_bits(kind, tmp_path):
    model, data, more = KINDS[kind]
    whole = go(model, data(), rng=5, n_init=2, **more)
    last = whole.history[-1]["lap"]
    for stop_at in (2, last - 1):
        store = tmp_path / str(stop_at)
        go(model, data(), rng=5, n_init=2, store=store, callbacks=[Watch(stop_at)], **more)
        assert RunStore.has_begun(store) == (stop_at > 2)
        resumed = go(model, data(), rng=5, n_init=2, store=store, resume=True, **more)
        assert bits(resumed) == bits(whole) and resumed.starts == whole.starts
        assert rows_of(resumed) == rows_of(whole)


def test_a_run_is_resumed_with_as_many_starts_as_it_has(tmp_path):
    model, data, more = KINDS["mixture"]
    go(model, data(), n_init=2, store=tmp_path / "run", **more)
    with pytest.raises(StoreError, match=r"settings differ \(n_init: the run has 2, this call 3\)"):
        go(model, data(), n_init=3, store=tmp_path / "run", resume=True, **more)


@pytest.mark.long
@pytest.mark.first_case
@pytest.mark.parametrize("store", [True, False])
def test_starts_with_hardly_any_memory_have_the_same_bits(store, tmp_path):
    model, data, more = KINDS["mixture with moves"]
    kept = {"store": tmp_path / "run"} if store else {}
    assert bits(go(model, data(), n_init=2, memory=100, **kept, **more)) == bits(go(model, data(), n_init=2, **more))


def test_numbers_of_starts_that_make_no_sense_are_refused():
    for wrong in (0, -1, 1.5, True, "3", 10**6, None):
        with pytest.raises(SettingError, match="n_init"):
            go(KINDS["mixture"][0], nine_clusters(), n_init=wrong)
