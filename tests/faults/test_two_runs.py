"""Two runs at once, two writers of one directory, data that change under a run."""

from __future__ import annotations

import shutil
import threading
import warnings

import numpy as np
import pytest
import zarr

import bnp_dask as bnp
from bnp_dask.core.location import Location
from bnp_dask.data.ingestion.writers import RowsWriter
from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor
from tests.faults.parts import Faulty, atoms, bits, go, quiet, until


class Hold:
    """A callback that waits in the middle of a run until it is let go."""

    def __init__(self, batches=5):
        self.left = batches
        self.held, self.go = threading.Event(), threading.Event()

    def on_start(self, info):
        pass

    def on_batch(self, done):
        self.left -= 1
        if self.left == 0:
            self.held.set()
            assert self.go.wait(60)

    def on_lap(self, row, posterior):
        pass

    def on_end(self, reason):
        pass


def test_two_runs_on_one_cluster_do_not_mix(dask_client, tmp_path):
    """They take turns on the same two workers; each ends in the bits it has alone."""
    client = dask_client(2)
    found = {}

    def run(name, data):
        found[name] = bits(go(client, name, data))

    names = ["memoized with moves", "stochastic"]
    data = [Faulty(atoms(), str(tmp_path), seconds=0.005), Faulty(atoms())]
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(names, data)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
    assert found == {name: quiet(name) for name in names}
    until(lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)), "the end of all tasks")


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    hold, found = Hold(), {}

    def first():
        found["first"] = bits(go(SerialExecutor(), store=tmp_path / "run", callbacks=[hold]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=first, daemon=True)
        thread.start()
        assert hold.held.wait(60)
        for resume in (False, True):
            with pytest.raises(StoreError, match="being written by process|already holds a run"):
                go(SerialExecutor(), store=tmp_path / "run", resume=resume)
        hold.go.set()
        thread.join(100)
    assert found["first"] == quiet("memoized with moves")


def write(path, x, **more):
    shutil.rmtree(path, ignore_errors=True)
    writer = RowsWriter(Location.of(path), x.shape[1], np.dtype("f8"), 150)
    writer.add(x)
    writer.close({}, "made up")


def other_shape(path, x):
    write(path, np.vstack([x, x[:1]]))


def fewer(path, x):
    write(path, x[:-1])


def another_column(path, x):
    write(path, np.hstack([x, x[:, :1]]))


def one_bit(path, x):
    x = x.copy()
    x[777, 1] = np.nextafter(x[777, 1], 10)
    write(path, x)


def two_rows_swapped(path, x):
    x = x.copy()
    x[[3, 4]] = x[[4, 3]]
    write(path, x)


def other_batches(path, x):
    shutil.rmtree(path)
    writer = RowsWriter(Location.of(path), x.shape[1], np.dtype("f8"), 100)
    writer.add(x)
    writer.close({}, "made up")


def in_place(path, x):
    array = zarr.open_array(path / "x", mode="r+")
    array[900:901] = array[900:901] * (1 + 1e-15)


CHANGES = [other_shape, fewer, another_column, one_bit, two_rows_swapped, other_batches, in_place]


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that was stopped after a lap, and its data."""
    folder = tmp_path_factory.mktemp("half")
    write(folder / "x.zarr", atoms())
    hold = type("Stop", (Hold,), {"on_batch": lambda self, done: None, "on_lap": lambda self, row, p: True})()
    go(SerialExecutor(), data=str(folder / "x.zarr"), store=folder / "run", callbacks=[hold])
    return folder


@pytest.mark.first_case
@pytest.mark.parametrize("change", CHANGES)
def test_data_that_changed_are_noticed_at_resume(half, tmp_path, monkeypatch, change):
    for name in ("x.zarr", "run"):
        shutil.copytree(half / name, tmp_path / name)
    data = tmp_path / "x.zarr"
    # the run knows its data by their path
    shutil.rmtree(half / "x.zarr.kept", ignore_errors=True)
    (half / "x.zarr").rename(half / "x.zarr.kept")
    try:
        shutil.copytree(data, half / "x.zarr")
        change(half / "x.zarr", atoms())
        with pytest.raises(StoreError, match=r"cannot resume .*: the data changed"):
            go(SerialExecutor(), data=str(half / "x.zarr"), store=tmp_path / "run", resume=True)
    finally:
        shutil.rmtree(half / "x.zarr", ignore_errors=True)
        (half / "x.zarr.kept").rename(half / "x.zarr")
    rest = go(SerialExecutor(), data=str(half / "x.zarr"), store=tmp_path / "run", resume=True)
    assert bits(rest) == bits(go(SerialExecutor(), data=str(half / "x.zarr")))


def test_data_of_the_same_content_elsewhere_are_another_run(half, tmp_path):
    shutil.copytree(half / "run", tmp_path / "run")
    shutil.copytree(half / "x.zarr", tmp_path / "x.zarr")
    with pytest.raises(StoreError, match=r"the data changed \(data\.path: .*x.zarr"):
        go(SerialExecutor(), data=str(tmp_path / "x.zarr"), store=tmp_path / "run", resume=True)
    assert bnp.load(half / "run" / "posterior.zarr").n_clusters >= 1
