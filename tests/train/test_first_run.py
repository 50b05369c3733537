"""The first run of a kind compiles beside its survey: a process that may fail, and is neither left nor needed."""

import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.data.base import columns_of
from bnp_dask.training.compiling import child, first_run
from bnp_dask.training.compiling.child import short_run
from bnp_dask.training.compiling.first_run import (
    FewAtoms,
    FirstRun,
    is_marked,
    kind_of,
    packed,
    place_of,
    set_mark,
    unpacked,
)

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(80, 2)) + np.repeat([[0.0, 0.0], [9.0, 9.0]], 40, axis=0)
POINTS = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())


@pytest.fixture(autouse=True)
def an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(first_run, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(first_run, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(first_run, "_may_start", lambda: True)


@pytest.fixture
def started(monkeypatch):
    """Processes that were started in place of those that compile: each sleeps for as many seconds as it is told."""
    found, seconds = [], [0.0]

    def start(content):
        command = [sys.executable, "-c", f"import time; time.sleep({seconds[0]})"]
        found.append(subprocess.Popen(command))
        return found[-1]

    monkeypatch.setattr(first_run, "_started", start)
    return found, seconds


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def points() -> FirstRun:
    return FirstRun.of(POINTS, bnp.as_source(ROWS), [bnp.Merge()], bnp.Memoized())


def test_a_long_survey_is_waited_for_no_longer_than_what_compiles_beside_it(started, caplog):
    with caplog.at_level(logging.INFO, logger="bnp_dask"), points():
        wait_for(lambda: started[0])
    assert started[0][0].returncode == 0
    assert "beside the survey" in caplog.text


def test_a_short_survey_starts_none(started, monkeypatch):
    monkeypatch.setattr(first_run, "SURVEY_SECONDS", 60.0)
    with points() as first:
        pass
    assert first.done(5) == 5
    assert not started[0]


def test_a_kind_that_was_compiled_starts_none(started):
    points().done(None)
    with points() as first:
        assert first._timer is None
    with FirstRun.of(POINTS, bnp.as_source(ROWS), [], bnp.Memoized()) as other:
        assert other._timer is not None


def test_a_survey_that_fails_ends_what_compiles_beside_it(started):
    started[1][0] = 600.0
    with pytest.raises(bnp.BnpDaskError, match="bad"), points():
        wait_for(lambda: started[0])
        raise bnp.BnpDaskError("bad")
    assert started[0][0].returncode not in (None, 0)


def test_one_that_does_not_end_is_not_waited_for_for_ever(started, monkeypatch):
    started[1][0] = 600.0
    monkeypatch.setattr(first_run, "CHILD_SECONDS", 0.1)
    with points():
        wait_for(lambda: started[0])
    assert started[0][0].returncode not in (None, 0)


def test_many_dense_columns_start_none(started):
    """The short run of 240 rows in 1,500 columns took longer than all that it compiles."""
    wide = np.ones((40, first_run.WIDEST + 1))
    with FirstRun.of(POINTS, bnp.as_source(wide), (), bnp.Memoized()) as first:
        assert first._timer is None and first.mark is None
    counts = FirstRun.of(POINTS, bnp.as_source(sparse.csr_array(wide)), (), bnp.Memoized())
    assert counts.mark is not None


def test_a_process_that_compiles_ends_with_the_one_that_waits_for_it(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(child, "PARENT_SECONDS", 0.01)
    monkeypatch.setattr(child.os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(child.os, "getppid", lambda: 1 if gone else 7)
    gone = False
    child.end_with(7)
    assert not ended.wait(0.1)
    gone = True
    assert ended.wait(60.0)


def test_a_source_that_cannot_travel_is_no_failure():
    class Here:
        n_features, n_batches, n_atoms, is_sparse, name = 2, 1, 80, False, "here"

        def reader(self, index):
            return lambda: None

    with FirstRun.of(POINTS, Here(), (), bnp.Memoized()) as first:
        wait_for(lambda: not first._timer.is_alive())
    assert first._child is None


def test_one_processor_or_a_frozen_program_start_none(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv(first_run.CHILD)
    with monkeypatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
        assert not first_run._may_start()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert first_run._may_start()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        assert not first_run._may_start()
    monkeypatch.setenv(first_run.CHILD, "1")
    assert not first_run._may_start()


KINDS = {
    "points": (POINTS, ROWS),
    "topics": (bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), sparse.csr_array(RNG.poisson(2.0, (30, 8)) + 1.0)),
    "sequences": (bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()), [ROWS, ROWS[::-1]]),
    "names": (bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), bnp.as_source(ROWS, columns=bnp.Columns.of(["a", "b"]))),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_short_run_is_one_of_the_same_kind(kind, monkeypatch):
    monkeypatch.setattr(first_run, "_may_start", lambda: False)  # as in the process that makes it
    model, data = KINDS[kind]
    source = bnp.as_source(data)
    few = FewAtoms.of(source.reader(0)(), columns_of(source))
    assert 0 < few.n_atoms <= 240
    assert few.is_sparse == source.is_sparse
    short_run(*unpacked(packed(model, few, [bnp.Merge()], bnp.Memoized())))


def test_the_bits_are_those_of_a_run_without(monkeypatch):
    """With the process itself, which ends well."""
    codes = []
    leave = FirstRun.__exit__

    def left(self, *error):
        wait_for(lambda: self._child is not None)
        child = self._child
        leave(self, *error)
        codes.append(child.returncode)

    def run():
        with pytest.warns(bnp.ConvergenceWarning):
            return bnp.train(POINTS, ROWS, schedule=bnp.Memoized(laps=3), moves=())

    monkeypatch.setattr(FirstRun, "__exit__", left)
    with_one = run()
    monkeypatch.undo()
    without = run()
    assert codes == [0]
    assert [row["elbo"] for row in with_one.history] == [row["elbo"] for row in without.history]


def test_kinds_differ_by_what_needs_other_kernels():
    kinds = [
        kind_of(POINTS, "Memoized"),
        kind_of(POINTS, "Stochastic"),
        kind_of(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), "Memoized"),
    ]
    assert len(set(kinds)) == 3
    assert kind_of(bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()), "Memoized") == kinds[0]


def test_without_a_folder_nothing_is_marked(monkeypatch):
    monkeypatch.setattr(first_run, "cache_folder", lambda: None)
    place = place_of(kind_of(POINTS))
    set_mark(place)
    assert place is None and not is_marked(place)
