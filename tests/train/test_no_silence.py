"""A run that compiles, reads, or makes a long lap says what it waits for."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from bnp_dask.training.callbacks import LogLaps, RunInfo, logger, tell_of_compiling, telling


class Heard(logging.Handler):
    """Keeps messages, and lets one wait for the first."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.messages, self.records, self.any = [], [], threading.Event()

    def emit(self, record):
        self.messages.append(record.getMessage())
        self.records.append(record)
        self.any.set()


def heard_in(caplog, block):
    heard = Heard()
    logger.addHandler(heard)
    try:
        with caplog.at_level(logging.INFO, logger="bnp_dask"):
            block(heard)
    finally:
        logger.removeHandler(heard)
    return heard.messages


def test_compiling_says_that_it_began_how_far_it_is_and_that_it_ended(caplog):
    kernels = iter(range(1, 1000))
    began = time.time()

    def count(since):
        assert began <= since <= time.time()
        return next(kernels)

    def block(heard):
        with tell_of_compiling(patience=0.0, every=0.001, count=count):
            assert heard.any.wait(60.0)
            while len(heard.messages) < 3:
                heard.any.clear()
                assert len(heard.messages) >= 3 or heard.any.wait(60.0)

    first, *between, last = heard_in(caplog, block)
    assert first.startswith("compiling kernels (machine code of the inner loops)")
    assert between[:2] == ["compiling: 1 kernels, 0 s so far", "compiling: 2 kernels, 0 s so far"]
    assert last == f"compiled: {len(between) + 1} kernels, 0 s"


def test_kernels_that_are_only_loaded_are_no_news(caplog):
    def block(heard):
        with tell_of_compiling(patience=3600.0, count=lambda since: pytest.fail("looked at all kernels")):
            pass

    assert heard_in(caplog, block) == []


def test_any_part_of_a_run_that_takes_a_while_says_so(caplog):
    def block(heard):
        with telling("reading x.zarr once", "reading", "read", patience=0.0, every=3600.0):
            assert heard.any.wait(60.0)

    assert heard_in(caplog, block) == ["reading x.zarr once", "read: 0 s"]


def test_a_long_lap_tells_each_minute_how_many_batches_are_done(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("bnp_dask.training.callbacks.time", SimpleNamespace(perf_counter=lambda: now[0]))
    laps = LogLaps()

    def block(heard):
        laps.on_start(RunInfo(n_batches=8, n_atoms=80, laps=9, first_lap=2, first_batch=0, where="here"))
        for done in range(1, 9):
            now[0] += 25.0
            laps.on_batch(done)

    assert heard_in(caplog, block) == ["80 atoms in 8 batches, here", "lap 3: 3 of 8 batches", "lap 3: 6 of 8 batches"]


@pytest.mark.parametrize(
    ("chosen", "level"), [(logging.NOTSET, "WARNING"), (logging.INFO, "INFO"), (logging.ERROR, None)]
)
def test_where_nobody_chose_what_to_log_the_first_compilation_is_told_as_a_warning(monkeypatch, chosen, level):
    monkeypatch.setattr(logger, "level", chosen)
    logger.manager._clear_cache()
    heard = Heard()
    heard.setLevel(logging.NOTSET)
    logger.addHandler(heard)
    try:
        with tell_of_compiling(patience=0.0, every=0.01):
            heard.any.wait(0.3 if level is None else 5)
    finally:
        logger.removeHandler(heard)
        logger.manager._clear_cache()
    told = [record.levelname for record in heard.records if record.getMessage().startswith("compiling kernels")]
    assert told == ([] if level is None else [level])
