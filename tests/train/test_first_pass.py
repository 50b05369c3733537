"""The first pass over the data is made once: killed, it goes on where it was; resumed, a run reads nothing for it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.data.base import identity_of
from bnp_dask.errors import DataError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.initialize import base as starts
from bnp_dask.store import RunStore
from bnp_dask.training import survey_pass as first_pass

N, ROWS = 240, 20
BATCHES = N // ROWS
MODEL = bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian())


def memoized(laps):
    return bnp.Memoized(laps, window=3, tolerance=0.0, count_tolerance=0.0)


def atoms(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, 3)) + 6.0 * rng.integers(3, size=N)[:, None]


class Named(SerialExecutor):
    """Knows the names of tasks."""

    def __init__(self):
        super().__init__(0)
        self.names = []

    def submit(self, name, function, *args):
        self.names.append(name)
        return super().submit(name, function, *args)

    def count(self, word):
        return sum(name.startswith(word) for name in self.names)


def train(data, store, client=None, laps=3, **more):
    settings = {"init": bnp.BregmanKMeans(2), "schedule": memoized(laps), "moves": ()}
    settings |= {"client": client or SerialExecutor(0), "store": store, "batch_size": ROWS, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bnp.train(MODEL, data, **settings)


def bits(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    return rows, {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}


# -- killed while it is made ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Deadly:
    """Batches in memory; each reading is noted in a folder, and one of them kills the process that reads."""

    folder: Path
    deadly: int | None = None
    name: str = "/data/deadly"
    n_batches: int = BATCHES
    n_features: int = 3
    is_sparse: bool = False
    n_atoms: int | None = None

    def reader(self, index):
        return lambda: self.read(index)

    def read(self, index):
        with open(self.folder / "reads", "a") as file:
            file.write(f"{index}\n")
        if self.deadly is not None and len(self.reads()) == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return Batch(atoms()[index * ROWS : (index + 1) * ROWS], None, f"{self.name} batch {index}")

    def reads(self):
        return [int(line) for line in (self.folder / "reads").read_text().split()]

    def describe(self):
        return {"kind": "deadly"}


def one_at_a_time(*args):
    """How many batches are read together."""
    return 1


def train_noting(seconds, n_together, *args, **more):
    """Train where what was surveyed is noted so often, and so many batches are read together for a start."""
    first_pass.NOTE_SECONDS, starts.n_together = seconds, n_together
    train(*args, **more)


def in_another_process(folder, deadly, **more):
    """Train in a process that dies at a reading; whether it came to its end."""
    context = multiprocessing.get_context("forkserver")  # of a process without threads
    context.set_forkserver_preload([__name__])
    args = (first_pass.NOTE_SECONDS, starts.n_together, Deadly(folder, deadly), folder / "run")
    process = context.Process(target=train_noting, args=args, kwargs={"batch_size": None, **more})
    process.start()
    process.join(90)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


@pytest.mark.parametrize("resume", [pytest.param(False, marks=pytest.mark.long), True])
def test_killed_every_few_batches_it_goes_on_where_it_was(tmp_path, monkeypatch, resume):
    """Each call reads four batches, of which the last kills it: three more are surveyed, and none twice but that."""
    monkeypatch.setattr(first_pass, "NOTE_SECONDS", 0.0)
    (tmp_path / "reads").touch()
    calls = 0
    while len(set(Deadly(tmp_path).reads())) < BATCHES:
        calls += 1
        assert calls < BATCHES
        in_another_process(tmp_path, len(Deadly(tmp_path).reads()) + 4, resume=resume)
    reads = Deadly(tmp_path).reads()
    assert sorted(set(reads)) == list(range(BATCHES))
    assert len(reads) <= BATCHES + calls
    # and it ends as if nothing had happened, with no more tasks for it than batches that are left
    client = Named()
    result = train(Deadly(tmp_path), tmp_path / "run", client, batch_size=None, resume=True)
    assert client.count("survey") <= 1
    quiet = train(Deadly(tmp_path), tmp_path / "quiet", batch_size=None)
    assert bits(result) == bits(quiet)


def test_what_an_error_ends_is_noted_too(tmp_path, monkeypatch):
    """Nothing is lost of what came before a batch that is bad, however long it is since the last note."""
    monkeypatch.setattr(first_pass, "NOTE_SECONDS", 1e9)
    x = atoms()
    good = x[7 * ROWS + 3, 1]
    x[7 * ROWS + 3, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    time = (tmp_path / "x.npy").stat()
    with pytest.raises(DataError, match="batch 7"):
        train(tmp_path / "x.npy", tmp_path / "run")
    held = np.load(tmp_path / "x.npy", mmap_mode="r+")
    held[7 * ROWS + 3, 1] = good
    held.flush()
    os.utime(tmp_path / "x.npy", ns=(time.st_atime_ns, time.st_mtime_ns))  # as if it had been the network
    client = Named()
    result = train(tmp_path / "x.npy", tmp_path / "run", client)
    assert client.names[0] == "survey-batch6-to-8"  # the task that met it
    assert bits(result) == bits(train(tmp_path / "x.npy", tmp_path / "quiet"))


def test_the_start_is_not_made_twice(tmp_path):
    """Killed in the first lap, before any checkpoint of it: the initialisation is that of the first call."""
    (tmp_path / "reads").touch()
    assert not in_another_process(tmp_path, 3 * BATCHES)  # survey, start, and in the first lap it dies
    client = Named()
    result = train(Deadly(tmp_path), tmp_path / "run", client, batch_size=None, resume=True)
    assert client.count("init") == client.count("survey") == 0
    assert bits(result) == bits(train(Deadly(tmp_path), tmp_path / "quiet", batch_size=None))


@pytest.mark.parametrize("init", [bnp.BregmanKMeans(2, sample=100), bnp.RandomExamples(30)])
def test_what_the_start_has_read_is_not_read_again(tmp_path, monkeypatch, init):
    """Killed while atoms are sampled for it: those of the batches before are there."""
    monkeypatch.setattr(starts, "n_together", one_at_a_time)
    for name in ("killed", "quiet"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "reads").touch()
    killed, quiet = Deadly(tmp_path / "killed"), Deadly(tmp_path / "quiet")
    more = {"batch_size": None, "init": init, "laps": 1}
    whole = train(quiet, tmp_path / "quiet" / "run", **more)
    assert not in_another_process(tmp_path / "killed", BATCHES + 5, init=init, laps=1)
    assert len(list((tmp_path / "killed" / "run" / "drafts").iterdir())) == 4
    rest = train(killed, tmp_path / "killed" / "run", resume=True, **more)
    assert len(killed.reads()) == len(quiet.reads()) + 1  # the reading that killed it
    assert bits(rest) == bits(whole)
    assert not (tmp_path / "killed" / "run" / "drafts").exists()


# -- resumed, and begun anew ----------------------------------------------------------------------------------------
def as_npy(folder, x):
    np.save(folder / "x.npy", x)
    return folder / "x.npy"


def as_zarr(folder, x):
    array = zarr.create_array(folder / "x.zarr", shape=x.shape, chunks=(ROWS, 3), dtype="f8", overwrite=True)
    array[...] = x
    return folder / "x.zarr"


def as_parquet(folder, x):
    (folder / "x").mkdir(exist_ok=True)
    for i in range(3):
        part = x[i * N // 3 : (i + 1) * N // 3]
        pq.write_table(pa.table({f"c{j}": part[:, j] for j in range(3)}), folder / "x" / f"{i}.parquet")
    return folder / "x"


FILES = {"npy": as_npy, "zarr": as_zarr, "parquet": as_parquet}
WAYS = [
    *(("npy", "raise"), ("zarr", "skip"), ("parquet", "raise")),
    *(pytest.param(*way, marks=pytest.mark.long) for way in (("npy", "skip"), ("zarr", "raise"), ("parquet", "skip"))),
]


def files_of(path):
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


@pytest.mark.first_case
@pytest.mark.parametrize("kind", FILES)
def test_a_resumed_run_reads_nothing_for_its_survey(tmp_path, kind):
    path = FILES[kind](tmp_path, atoms())
    first, second, third = Named(), Named(), Named()
    train(path, tmp_path / "run", first, laps=2)
    assert first.count("survey") > 0
    rest = train(path, tmp_path / "run", second, laps=4, resume=True)
    train(path, tmp_path / "run", third, laps=4, resume=True)
    assert second.count("survey") == third.count("survey") == third.count("local_step") == 0
    assert bits(rest) == bits(train(path, tmp_path / "whole", laps=4))


@pytest.mark.first_case
@pytest.mark.parametrize("kind", FILES)
def test_files_of_another_time_are_surveyed_again_and_may_be_the_same(tmp_path, kind):
    path = FILES[kind](tmp_path, atoms())
    train(path, tmp_path / "run", laps=2)
    for file in files_of(path):
        os.utime(file, ns=(1, 1))
    client = Named()
    rest = train(path, tmp_path / "run", client, laps=4, resume=True)
    assert client.count("survey") > 0
    again = Named()
    train(path, tmp_path / "run", again, laps=4, resume=True)  # that is known by now
    assert again.count("survey") == 0
    assert bits(rest) == bits(train(path, tmp_path / "whole", laps=4))


@pytest.mark.parametrize(("kind", "mode"), WAYS)
def test_files_of_another_content_are_refused_and_the_batch_is_named(tmp_path, kind, mode):
    path = FILES[kind](tmp_path, atoms())
    train(path, tmp_path / "run", laps=2, on_bad_batch=mode)
    x = atoms()
    x[5 * ROWS + 1, 2] += 1.0
    FILES[kind](tmp_path, x)
    with pytest.raises(StoreError, match=r"cannot resume .*: the data changed \(.* batch 5 has another content"):
        train(path, tmp_path / "run", laps=4, resume=True, on_bad_batch=mode)


@pytest.mark.first_case
@pytest.mark.parametrize(("kind", "mode"), WAYS)
def test_a_silent_change_is_an_error_at_the_first_visit(tmp_path, kind, mode):
    """Sizes and times are what they were; the content of one batch is not."""
    path = FILES[kind](tmp_path, atoms())
    train(path, tmp_path / "run", laps=2, on_bad_batch=mode)
    times = {file: file.stat() for file in files_of(path)}
    x = atoms()
    x[5 * ROWS + 1, 2] = np.nextafter(x[5 * ROWS + 1, 2], 10.0)
    FILES[kind](tmp_path, x)
    for file, time in times.items():
        os.utime(file, ns=(time.st_atime_ns, time.st_mtime_ns))
    same = all(file.stat().st_size == time.st_size for file, time in times.items())
    error, match = (
        (DataError, r"batch 5.*: the data changed, its content is not the same as")
        if same
        else (StoreError, r"the data changed \(.* batch 5 has another content")
    )
    with pytest.raises(error, match=match):
        train(path, tmp_path / "run", laps=4, resume=True, on_bad_batch=mode)
    FILES[kind](tmp_path, atoms())
    rest = train(path, tmp_path / "run", laps=4, resume=True, on_bad_batch=mode)
    assert bits(rest) == bits(train(path, tmp_path / "whole", laps=4))


def test_a_change_before_the_first_step_is_another_survey(tmp_path):
    """Nothing was computed from the data yet, so that there is nothing to refuse."""
    path = as_npy(tmp_path, atoms())

    class Stop(BaseException):
        pass

    class AtOnce:
        def on_start(self, info):
            raise Stop

        def on_batch(self, done):
            pass

        def on_lap(self, row, posterior):
            pass

        def on_end(self, reason):
            pass

    with pytest.raises(Stop):
        train(path, tmp_path / "run", callbacks=[AtOnce()])
    as_npy(tmp_path, atoms(1))
    result = train(path, tmp_path / "run")
    assert bits(result) == bits(train(path, tmp_path / "quiet"))


@pytest.mark.parametrize("init", [bnp.BregmanKMeans(2), bnp.KMeansParallel(2)])
def test_a_silent_change_before_the_start_is_an_error_of_the_initialisation(tmp_path, monkeypatch, init):
    """It must not start from what was not surveyed, nor keep that for later."""
    path = as_npy(tmp_path, atoms())

    def dies(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("bnp_dask.training.memory_plan.MemoryPlan.require_surveyed", dies)
        train(path, tmp_path / "run", init=init)
    time, x = path.stat(), atoms()
    x[5 * ROWS : 6 * ROWS] += 1.0
    as_npy(tmp_path, x)
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
    with pytest.raises(DataError, match=r"batch 5.*: the data changed"):
        train(path, tmp_path / "run", init=init)
    as_npy(tmp_path, atoms())
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
    client = Named()
    rest = train(path, tmp_path / "run", client, init=init)
    assert client.count("survey") == 0
    assert bits(rest) == bits(train(path, tmp_path / "quiet", init=init))


def test_batches_that_were_bad_are_not_tried_again(tmp_path, caplog):
    x = atoms()
    x[5 * ROWS] = np.nan
    path = as_npy(tmp_path, x)
    train(path, tmp_path / "run", laps=2, on_bad_batch="skip")
    client = Named()
    rest = train(path, tmp_path / "run", client, laps=4, resume=True, on_bad_batch="skip")
    assert client.count("survey") == 0
    assert len(rest.skipped) == 1 and "batch 5" in rest.skipped[0]
    assert sum("skipped: " in message for message in caplog.messages) == 2
    assert bits(rest) == bits(train(path, tmp_path / "whole", laps=4, on_bad_batch="skip"))
    with pytest.raises(DataError, match="batch 5"):  # without leave to skip it is met again
        train(path, tmp_path / "run", laps=4, resume=True)


# -- damage ---------------------------------------------------------------------------------------------------------
@pytest.mark.first_case
@pytest.mark.parametrize("suffix", [".npz", ".rows"])
@pytest.mark.parametrize("how", ["one bit", "gone"])
def test_a_list_of_batches_that_is_damaged_is_made_again(tmp_path, suffix, how):
    path = as_npy(tmp_path, atoms())
    train(path, tmp_path / "run", laps=2)
    [file] = (tmp_path / "run" / "manifest").glob(f"*{suffix}")
    data = file.read_bytes()
    file.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    if how == "gone":
        file.unlink()
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    client = Named()
    rest = train(path, tmp_path / "run", client, laps=4, resume=True)
    assert client.count("survey") > 0
    assert bits(rest) == bits(train(path, tmp_path / "whole", laps=4))
    as_npy(tmp_path, atoms(1))
    with pytest.raises(
        StoreError, match=r"cannot resume .*other: .* (damaged|missing|cannot be read|not the list).*data changed"
    ):
        train(path, tmp_path / "other", laps=4, resume=True)


def test_it_says_so_when_the_list_is_damaged(tmp_path):
    path = as_npy(tmp_path, atoms())
    train(path, tmp_path / "run", laps=2)
    [file] = (tmp_path / "run" / "manifest").glob("*.rows")
    file.write_bytes(b"")
    settings = {"init": bnp.BregmanKMeans(2), "schedule": memoized(2), "client": SerialExecutor()}
    with pytest.warns() as said:
        bnp.train(MODEL, path, store=tmp_path / "run", resume=True, batch_size=ROWS, **settings)
    messages = [str(warning.message) for warning in said]
    assert any(f"{file.name} is damaged" in m and m.endswith("; the data are surveyed again") for m in messages)


# -- what it comes to -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cuts", [(), (1,), (3, 4, 9), tuple(range(1, BATCHES))])
def test_a_survey_in_parts_is_that_of_one_pass(tmp_path, monkeypatch, cuts):
    """To the last bit, wherever it was interrupted."""
    source = bnp.as_source(atoms(), batch_size=ROWS, weights=1.0 + np.arange(N) % 3)
    whole = combine(survey_batch(source.reader(b)()) for b in range(BATCHES))
    store = RunStore.create(tmp_path / "run", {})
    monkeypatch.setattr(first_pass, "n_together", lambda *args: 1)
    monkeypatch.setattr(first_pass, "NOTE_SECONDS", 1e9)

    class Enough(Exception):
        pass

    class Cut(SerialExecutor):
        left = 0

        def result(self, handle):
            if handle.name.startswith("survey"):
                self.left -= 1
                if self.left < 0:
                    raise Enough
            return super().result(handle)

    for before, cut in zip((0, *cuts), cuts, strict=False):
        executor = Cut(0)
        executor.left = cut - before
        with pytest.raises(Enough):
            first_pass.survey_of_run(MODEL, source, executor, store, None)
    executor = Cut(0)
    executor.left = BATCHES
    found = first_pass.survey_of_run(MODEL, source, executor, store, None)
    assert executor.left == max(cuts, default=0)
    for name, value in first_pass.survey_to_arrays(whole).items():
        np.testing.assert_array_equal(first_pass.survey_to_arrays(found.survey)[name], value, err_msg=name)
    store.close()


# -- what tells data apart -------------------------------------------------------------------------------------------
def counts():
    return sparse.csr_array(np.random.default_rng(0).poisson(0.5, (40, 6)).astype(float) + 1.0)


def ingested_counts(folder, scale):
    sparse.save_npz(folder / "counts.npz", counts() * scale)
    bnp.ingest(folder / "counts.npz", folder / "counts.zarr", overwrite=True)
    return bnp.as_source(str(folder / "counts.zarr"))


def grouped(folder, scale):
    return bnp.as_source(scale * atoms(), groups=np.arange(0, N + 1, 30), batch_size=60)


def weighted(folder, scale):
    np.save(folder / "w.npy", scale * np.ones(N))
    return bnp.as_source(atoms(), weights=str(folder / "w.npy"))


def mapped(folder, scale):
    np.save(folder / "m.npy", scale * atoms())
    return bnp.as_source(np.load(folder / "m.npy", mmap_mode="r")[5:])


def parquet_counts(folder, scale):
    table = {"words": [[0, 1], [2]], "counts": [[1.0 * scale, 2.0], [3.0]]}
    pq.write_table(pa.table(table, metadata={"n_words": "6"}), folder / "c.parquet")
    return bnp.as_source(str(folder / "c.parquet"))


KINDS: dict[str, Any] = {
    "npy": lambda folder, scale: bnp.as_source(str(as_npy(folder, scale * atoms()))),
    "zarr": lambda folder, scale: bnp.as_source(str(as_zarr(folder, scale * atoms()))),
    "parquet": lambda folder, scale: bnp.as_source(str(as_parquet(folder, scale * atoms()))),
    "array": lambda folder, scale: bnp.as_source(scale * atoms()),
    "sparse": lambda folder, scale: bnp.as_source(scale * counts()),
    "frame": lambda folder, scale: bnp.as_source(pd.DataFrame(scale * atoms())),
    "table": lambda folder, scale: bnp.as_source(pa.table({"a": scale * atoms()[:, 0]})),
    "counts": ingested_counts,
    "groups": grouped,
    "weights": weighted,
    "mapped": mapped,
    "parquet counts": parquet_counts,
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_are_told_apart_without_being_read(tmp_path, kind):
    """Of each kind of source: the same when asked again, others when the numbers are others."""
    make = KINDS[kind]
    first = make(tmp_path, 1.0)
    one = identity_of(first)
    assert one["fingerprint"] is not None
    assert identity_of(first) == one
    other = identity_of(make(tmp_path, 2.0))
    assert other["data"] == one["data"]
    assert other["fingerprint"] != one["fingerprint"]


def test_data_far_away_are_told_apart(tmp_path):
    import fsspec

    fs = fsspec.filesystem("memory")
    for scale in (1.0, 2.0):
        store = zarr.storage.FsspecStore.from_url("memory://identity/x.zarr")
        array = zarr.create_array(store, shape=(N, 3), chunks=(ROWS, 3), dtype="f8", overwrite=True)
        array[...] = scale * atoms()
        found = identity_of(bnp.as_source("memory://identity/x.zarr"))
        assert found["fingerprint"]["files"] == BATCHES + 1
        assert identity_of(bnp.as_source("memory://identity/x.zarr")) == found
        if scale == 1.0:
            first = found
    assert found["fingerprint"] != first["fingerprint"]
    fs.rm("/identity", recursive=True)


def test_sources_of_ones_own_are_known_by_their_description(tmp_path):
    (tmp_path / "reads").touch()
    assert identity_of(Deadly(tmp_path)) == {"data": {"kind": "deadly"}, "fingerprint": None}
