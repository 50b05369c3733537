"""Words of topics for scores at the end of a run: who asks them, when there are any; no run is lost for them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import bnp_dask as bnp
from bnp_dask.analysis.score import score_samples
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.training import train
from bnp_dask.training.callbacks import Callback
from tests.topics.bars import thin_bars

X = thin_bars(0, side=4, n_docs=60, length=25)[0]
HELD_OUT = thin_bars(1, side=4, n_docs=40, length=25)[0]
ROWS, BATCHES, LAPS = 20, 3, 3
PASSES = 4
READS = (1 + PASSES) * BATCHES
WARM = 1
"""Reads of a run before its laps, to compile what it needs."""


@dataclass(frozen=True)
class Documents:
    """Batches in memory; each reading is noted in a file, and from one of them on all fail, or kill the process."""

    notes: Path
    fails_from: int = 10**9
    kills: bool = False
    name: str = "documents"
    n_batches: int = BATCHES
    n_features: int = 16
    is_sparse: bool = True
    n_atoms: int | None = None

    def reader(self, index):
        return lambda: self.read(index)

    def read(self, index):
        with open(self.notes, "a") as file:
            file.write(f"{index}\n")
        if self.reads() > self.fails_from:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise DataError(f"batch {index} is gone")
        return Batch(X[index * ROWS : (index + 1) * ROWS], None, f"{self.name} batch {index}")

    def reads(self):
        return len(self.notes.read_text().split()) if self.notes.exists() else 0

    def describe(self):
        return {"kind": "documents of a test"}


def go(x=X, schedule=None, model=None, **settings):
    """A short run; that it is short is told elsewhere."""
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial()) if model is None else model
    schedule = bnp.Memoized(laps=LAPS, tolerance=0.0) if schedule is None else schedule
    how = {"init": bnp.SampledTopics(6, 20), "moves": (), "batch_size": None if isinstance(x, Documents) else ROWS}
    with pytest.warns(bnp.ConvergenceWarning):
        return bnp.train(model, x, schedule=schedule, **(how | settings))


@pytest.fixture(scope="module")
def posterior():
    return go().posterior


@pytest.fixture(scope="module")
def collapsed(posterior):
    return bnp.collapsed_topics(posterior, X, batch_size=ROWS)


def test_they_are_those_of_collapsed_topics(posterior, collapsed):
    assert_array_equal(posterior.predictive.lam, collapsed.observation.lam)
    plain = go(collapsed=0).posterior
    assert plain.predictive is None and collapsed.predictive is None
    assert_array_equal(plain.observation.lam, posterior.observation.lam)
    once = go(collapsed=1).posterior
    assert_array_equal(once.predictive.lam, bnp.collapsed_topics(plain, X, passes=1, batch_size=ROWS).observation.lam)


def test_scores_ask_them_and_nothing_else_does(posterior, collapsed):
    plain = replace(posterior, predictive=None)
    for asked in (bnp.score, bnp.word_score, lambda *args: bnp.completion_score(*args).score):
        assert asked(posterior, HELD_OUT) == asked(collapsed, HELD_OUT) != asked(plain, HELD_OUT)
    assert_array_equal(score_samples(posterior, HELD_OUT), score_samples(collapsed, HELD_OUT))
    assert_array_equal(bnp.predict(posterior, X, soft=True), bnp.predict(plain, X, soft=True))
    assert str(posterior.topics()) == str(plain.topics())
    exact = posterior.model.elbo(posterior, posterior.summary)
    assert exact == plain.model.elbo(plain, plain.summary)


@pytest.mark.parametrize("dask", [False, True])
def test_the_bits_are_those_of_any_number_of_workers(posterior, dask, dask_client):
    client = dask_client(2) if dask else ThreadExecutor(3)
    try:
        found = go(client=client).posterior
    finally:
        if not dask:
            client.close()
    assert_array_equal(found.predictive.lam, posterior.predictive.lam)


def test_they_are_saved_and_found_once(tmp_path, posterior):
    source = Documents(tmp_path / "notes")
    go(source, store=tmp_path / "run")
    assert_array_equal(bnp.load(tmp_path / "run").predictive.lam, posterior.predictive.lam)
    before = source.reads()
    found = go(source, store=tmp_path / "run", resume=True).posterior
    assert source.reads() == before + WARM
    assert_array_equal(found.predictive.lam, posterior.predictive.lam)
    found = go(source, store=tmp_path / "run", resume=True, collapsed=2).posterior
    assert source.reads() == before + WARM + WARM + 3 * BATCHES
    assert_array_equal(found.predictive.lam, go(collapsed=2).posterior.predictive.lam)
    longer = bnp.Memoized(laps=LAPS + 1, tolerance=0.0)
    found = go(source, longer, store=tmp_path / "run", resume=True).posterior
    assert_array_equal(found.predictive.lam, go(schedule=longer).posterior.predictive.lam)


def reads_before_the_passes(folder):
    source = Documents(folder / "counting")
    go(source)
    return source.reads() - READS


def killed(source, store):
    go(source, store=store)


def test_a_kill_on_the_way_loses_nothing(tmp_path, posterior):
    deadly = Documents(tmp_path / "notes", reads_before_the_passes(tmp_path) + 7, kills=True)
    process = multiprocessing.get_context("forkserver").Process(target=killed, args=(deadly, tmp_path / "run"))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "run" / "posterior.zarr").exists()
    source = Documents(tmp_path / "more")
    found = go(source, store=tmp_path / "run", resume=True).posterior
    assert source.reads() == WARM + READS
    assert_array_equal(found.predictive.lam, posterior.predictive.lam)


@pytest.mark.parametrize("on_bad_batch", ["raise", "skip"])
def test_data_that_are_gone_by_then_lose_the_words_for_scores_alone(tmp_path, caplog, posterior, on_bad_batch):
    source = Documents(tmp_path / "notes", reads_before_the_passes(tmp_path) + 7)
    with caplog.at_level(logging.WARNING, "bnp_dask"):
        found = go(source, on_bad_batch=on_bad_batch).posterior
    assert_array_equal(found.observation.lam, posterior.observation.lam)
    assert found.predictive is None
    assert "scores ask the words of training" in caplog.text and "is gone" in caplog.text


def test_workers_without_room_lose_the_words_for_scores_alone(monkeypatch, caplog):
    monkeypatch.setattr(train, "bytes_of_passes", lambda *_: np.inf)
    monkeypatch.setattr(ThreadExecutor, "memory_limit", 10**9)
    threads = ThreadExecutor(1)
    try:
        with caplog.at_level(logging.WARNING, "bnp_dask"):
            found = go(client=threads).posterior
    finally:
        threads.close()
    assert found.predictive is None
    assert "a worker has no room for collapsed=4" in caplog.text


class Stop(Callback):
    """Stops the run after its second lap."""

    def on_lap(self, row, posterior):
        return row["lap"] == 2


def test_a_run_that_is_stopped_does_not_wait_for_them(tmp_path):
    source = Documents(tmp_path / "notes")
    result = bnp.train(
        bnp.Model(bnp.HDPTopics(), bnp.Multinomial()),
        source,
        init=bnp.SampledTopics(6, 20),
        moves=(),
        callbacks=[Stop()],
    )
    assert result.history[-1]["lap"] == 2 and result.posterior.predictive is None


def test_other_schedules_have_none_unless_they_are_asked_for():
    stochastic = bnp.Stochastic(laps=2)
    assert go(schedule=stochastic).posterior.predictive is None
    assert go(schedule=stochastic, collapsed=1).posterior.predictive is not None
    assert go(schedule=bnp.FullBatch(laps=2)).posterior.predictive is not None


def test_finite_topics_have_them_and_mixtures_do_not():
    assert go(model=bnp.Model(bnp.LDA(), bnp.Multinomial())).posterior.predictive is not None
    mixture = bnp.Model(bnp.DPMixture(), bnp.Multinomial())
    assert bnp.train(mixture, X, init=bnp.RandomExamples(2)).posterior.predictive is None
    with pytest.raises(SettingError, match="collapsed: DPMixture of Multinomial is no topic model of words"):
        bnp.train(mixture, X, collapsed=4)


@pytest.mark.parametrize("value", [-1, 101, 1.5, True, "4"])
def test_numbers_that_make_no_sense(value):
    with pytest.raises(SettingError, match="collapsed="):
        bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), X, collapsed=value)


def test_an_update_leaves_them_out(tmp_path):
    go(store=tmp_path / "run")
    assert bnp.update(tmp_path / "run", HELD_OUT).posterior.predictive is None


def test_the_estimator_scores_by_them():
    from bnp_dask import TopicModel

    scores = []
    for collapsed in (None, 0):
        estimator = TopicModel(
            init=bnp.SampledTopics(6, 20), moves=(), max_laps=40, random_state=0, collapsed=collapsed
        )
        scores.append(estimator.fit(X).score(HELD_OUT))
        assert (estimator.posterior_.predictive is None) == (collapsed == 0)
    assert scores[0] != scores[1]
