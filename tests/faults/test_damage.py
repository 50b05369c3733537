"""A checkpoint is whole or it is not there: disks that fill, processes that die, files that rot."""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.store import Receipt, RunStore
from bnp_dask.training.results import load
from tests.faults.parts import bits, go, quiet
from tests.stopping import AfterSteps

NAME = "memoized with moves"


class Died(BaseException):
    """The end of the process: no handler of the package sees it."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped in the middle of its third lap, with a checkpoint after every batch."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    result = go(SerialExecutor(), NAME, store=path, callbacks=[AfterSteps(19)], checkpoint_minutes=1e-9)
    assert result.reason == "stopped by a callback"
    assert len(list((path / "checkpoints").glob("*.json"))) == 2
    return path


@pytest.fixture
def run(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def finish(run):
    """Resume, and see that nothing was lost."""
    assert bits(go(SerialExecutor(), NAME, store=run, resume=True)) == quiet(NAME)


class Faults:
    """Counts what a process does to files, and at one of those moments fails in some way."""

    def __init__(self, monkeypatch, at, how):
        self.calls, self.at, self.how = 0, at, how
        replace, fsync, opened = os.replace, os.fsync, builtins.open

        def watched(function):
            def call(*args, **more):
                if isinstance(args[0], int) or "bnp-faults" in str(args[0]):  # Numba renames files too
                    self.strike()
                return function(*args, **more)

            return call

        def open_watched(path, mode="r", *args, **more):
            file = opened(path, mode, *args, **more)
            return File(file, self) if set(mode) & set("wa") and "bnp-faults" in str(path) else file

        monkeypatch.setattr(os, "replace", watched(replace))
        monkeypatch.setattr(os, "fsync", watched(fsync))
        monkeypatch.setattr(builtins, "open", open_watched)

    def strike(self, file=None, data=b""):
        self.calls += 1
        if self.calls != self.at:
            return
        if file is not None:  # half of what was meant gets through
            file.write(data[: len(data) // 2])
            file.flush()
        if self.how == "dies":
            raise Died
        raise OSError(errno.ENOSPC, "No space left on device")


class File:
    """A file whose writes are counted."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        self._faults.strike(self._file, data)
        return self._file.write(data)

    def truncate(self, size):
        self._faults.strike()
        return self._file.truncate(size)


@pytest.mark.first_case
@pytest.mark.parametrize("how", ["dies", "is full"])
def test_between_two_writes_of_a_checkpoint(stopped, tmp_path, monkeypatch, how):
    """Every third write, sync and rename of the next batch and its checkpoint fails once."""
    check_writes(stopped, tmp_path, monkeypatch, how, 3)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["dies", "is full"])
def test_between_any_two_writes_of_a_checkpoint(stopped, tmp_path, monkeypatch, how):
    """The same with all of them."""
    check_writes(stopped, tmp_path, monkeypatch, how, 1)


def check_writes(stopped, tmp_path, monkeypatch, how, stride):
    at = 1 - stride
    while True:
        at += stride
        run = tmp_path / f"bnp-faults-{at}"
        shutil.copytree(stopped, run)
        before = RunStore.view(run).load().number
        with monkeypatch.context() as patch:
            faults = Faults(patch, at, how)
            try:
                go(SerialExecutor(), NAME, store=run, resume=True, callbacks=[AfterSteps(1)], checkpoint_minutes=1e-9)
                struck = False
            except (Died, StoreError) as error:
                struck, said = True, str(error)
        assert not struck or how == "dies" or ("No space left on device" in said and str(run) in said)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is damaged, so there is nothing to warn of
            found = RunStore.view(run).load()
        assert before <= found.number <= before + 3
        if at % 6 == 0 or not struck:
            finish(run)
        shutil.rmtree(run)
        if not struck and faults.calls < at:
            break
    assert at > 15


FILES = st.sampled_from(["newest.json", "newest.npz", "history.jsonl", "summary"])


def target(run, file):
    newest = max((run / "checkpoints").glob("*.json"))
    if file == "summary":
        # one that only the newest checkpoint refers to
        store = RunStore.view(run)
        numbers = sorted(int(p.stem) for p in (run / "checkpoints").glob("*.json"))
        old, new = (list(store._read(n).listing.entries()) for n in numbers)
        return store.summaries.path(*next(entry for entry in new if entry not in old))
    return {"newest.json": newest, "newest.npz": newest.with_suffix(".npz")}.get(file, run / file)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=FILES, where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), way=st.sampled_from(["flip", "cut"]))
def test_rot_is_noticed_and_named(stopped, tmp_path, file, where, bit, way):
    """A flipped bit or a cut of any file: the checkpoint before is used, or the summary is refused when it is read."""
    run = tmp_path / "rotten"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(stopped, run)
    path = target(run, file)
    data = bytearray(path.read_bytes())
    length = len(data)
    place = int(where * length)
    newest = RunStore.view(run).load()
    n_rows = len(newest.history)  # read before the file is damaged
    if file == "history.jsonl":  # a part of it that the checkpoint before has too is lost for both
        place = max(place, length - 30)
    if way == "cut":
        del data[place:]
    else:
        data[place] ^= 1 << bit
    path.write_bytes(bytes(data))
    if file == "summary":
        batch, visit, crc = path.stem.split("-")
        receipt = Receipt(length, int(crc, 16))
        with pytest.raises(StoreError, match=f"{path.name} is damaged"):
            RunStore.view(run).get_summary(int(batch), int(visit), receipt)
        return
    with pytest.warns(UserWarning, match=rf"{path.name} (is damaged|is missing).*; going on from checkpoint"):
        found = RunStore.view(run).load()
    assert found.number < newest.number
    assert len(found.history) < n_rows


@pytest.mark.parametrize("file", ["newest.json", "newest.npz", "history.jsonl"])
def test_a_run_with_a_damaged_checkpoint_ends_in_the_same_bits(run, file):
    path = target(run, file)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.warns(UserWarning, match=f"{path.name} is damaged"):
        RunStore.view(run).load()
    finish(run)


def test_a_summary_that_rotted_is_named_by_train(run):
    """Sizes are looked at when a run is opened, contents when they are used: never a wrong number."""
    files = sorted((run / "summaries").rglob("*.npz"))
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=rf"({'|'.join(p.name for p in files)}) is damaged"):
        go(SerialExecutor(), NAME, store=run, resume=True)


def test_settings_that_rotted(run):
    path = run / "RUN.json"
    path.write_bytes(path.read_bytes().replace(b'"seed":0', b'"seed":1'))
    with pytest.raises(StoreError, match=r"RUN.json is damaged .*put it back from a copy"):
        go(SerialExecutor(), NAME, store=run, resume=True)


def test_a_saved_posterior_that_rotted(run):
    """Every file of a saved model: a flipped bit or a missing file is an error that names a part."""
    finish(run)
    model = run / "posterior.zarr"
    rng = np.random.default_rng(0)
    n_refused = 0
    for path in sorted(p for p in model.rglob("*") if p.is_file()):
        data = path.read_bytes()
        for place in rng.integers(len(data), size=40):
            path.write_bytes(data[:place] + bytes([data[place] ^ (1 << rng.integers(8))]) + data[place + 1 :])
            try:
                found = load(model)
            except StoreError:
                n_refused += 1
            else:  # a bit that means nothing, such as a space of zarr.json
                assert found.summary["N"].tobytes() == rng_free(model, path, data).summary["N"].tobytes()
        path.unlink()
        with pytest.raises(StoreError):
            load(model)
        path.write_bytes(data)
    assert n_refused > 50
    load(model)


def rng_free(model, path, data):
    """The model as it was before ``path`` was changed."""
    now = path.read_bytes()
    path.write_bytes(data)
    try:
        return load(model)
    finally:
        path.write_bytes(now)
