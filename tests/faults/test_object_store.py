"""Runs on object stores that are killed, cut off, slow or failing: the quiet bits, or a clear refusal; nothing is lost.

Most of them on fsspec's memory, whose conditions hold within one process; some on a server that speaks S3.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import StoreError
from bnp_dask.store import RunStore, place, read_history
from tests.schedules.test_groups import CASES, AfterSteps, bits, undisturbed
from tests.stopping import Killed

CHANGING = ("pipe_file", "rm", "rm_file")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(place, "PAUSES", (0.001,) * 4)


def small(store, resume=False, laps=3, **more):
    """A run of some 50 requests."""
    atoms = np.random.default_rng(0).normal(size=(90, 2)) + np.repeat([[-4.0], [0.0], [4.0]], 30, axis=0)
    schedule = bnp.Memoized(laps=laps, window=2, tolerance=0.0, count_tolerance=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(
            bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()),
            *(atoms,),
            init=bnp.RandomExamples(4),
            schedule=schedule,
            batch_size=30,
            store=store,
            resume=resume,
            **more,
        )


@pytest.fixture(scope="module")
def quiet():
    return bits(small(None))


@contextlib.contextmanager
def killed_at(n, after, monkeypatch, of_posterior=True):
    """Let the process end before (or after) the n-th request that changes something; whether it came so far.

    A dead process holds no lease that lives, and none of its threads.  Requests of the posterior are many, and
    counted where that is said.
    """
    count, reached = [0], []
    with monkeypatch.context() as patch:
        patch.setattr(place.Holder, "lives", False)
        for name in CHANGING:
            original = getattr(MemoryFileSystem, name)

            def call(self, path, *args, original=original, **more):
                if reached:
                    raise Killed
                count[0] += of_posterior or ".zarr" not in str(path)
                if count[0] <= n:
                    return original(self, path, *args, **more)
                reached.append(True)
                if after:
                    original(self, path, *args, **more)
                raise Killed

            patch.setattr(MemoryFileSystem, name, call)
        with contextlib.suppress(Killed):
            yield reached


@pytest.mark.long
@pytest.mark.parametrize("name", ["topics", pytest.param("chains", marks=pytest.mark.long)])
def test_a_run_that_is_stopped_and_resumed_has_the_bits_of_one_in_memory(url, name):
    make, schedule, moves = CASES[name]
    make(schedule, moves, store=url, callbacks=[AfterSteps(3)])
    assert bits(make(schedule, moves, store=url, resume=True)) == undisturbed(name)


def check_kills(url, quiet, monkeypatch, numbers):
    """Kill a run at some requests, resume it each time; whether the last of the numbers was beyond its end."""
    for n, after in ((n, after) for n in numbers for after in (False, True)):
        own = f"{url}-{n}-{after}"
        with killed_at(n, after, monkeypatch, of_posterior=False) as reached:
            small(own)
        with monkeypatch.context() as patch:
            patch.setattr(place.Holder, "lives", False)
            assert bits(small(own, resume=True)) == quiet
        assert len(read_history(own)) == len(quiet[0])
        if not reached:
            return True
    return False


def test_killed_at_some_requests_it_ends_in_the_quiet_bits(url, quiet, monkeypatch):
    check_kills(url, quiet, monkeypatch, (9, 17))


@pytest.mark.long
def test_killed_at_every_request_it_ends_in_the_quiet_bits(url, quiet, monkeypatch):
    assert check_kills(url, quiet, monkeypatch, range(1000))


def kill_again_and_again(url, quiet, monkeypatch, kills):
    rng, done, runs = np.random.default_rng(0), 0, 0
    own = f"{url}-{runs}"
    while done < kills:
        n, after = int(rng.integers(40)), bool(rng.integers(2))
        with killed_at(n, after, monkeypatch, of_posterior=False) as reached:
            result = small(own, resume=True, laps=8)
            assert bits(result) == quiet
            runs, own = runs + 1, f"{url}-{runs + 1}"
        done += bool(reached)
    monkeypatch.setattr(place.Holder, "lives", False)
    assert bits(small(own, resume=True, laps=8)) == quiet
    return runs


@pytest.mark.long
def test_killed_again_and_again_it_ends_in_the_quiet_bits(url, monkeypatch):
    kill_again_and_again(url, bits(small(None, laps=8)), monkeypatch, 5)


@pytest.mark.long
def test_killed_a_hundred_times_it_ends_in_the_quiet_bits(url, monkeypatch):
    assert kill_again_and_again(url, bits(small(None, laps=8)), monkeypatch, 100) >= 2


def test_a_store_that_fails_at_one_request_of_twenty_gives_the_quiet_bits(url, quiet, monkeypatch):
    """Half of them before they were done, half after; the posterior is written by Zarr, which does not try again."""
    rng = np.random.default_rng(0)
    with monkeypatch.context() as patch:
        for name in ("pipe_file", "cat_file", "ls", "rm", "find"):
            original = getattr(MemoryFileSystem, name)

            def call(self, path, *args, original=original, **more):
                fails = rng.random() < 0.05 and ".zarr" not in str(path)
                if fails and rng.random() < 0.5:
                    raise ConnectionError("reset by peer")
                found = original(self, path, *args, **more)
                if fails:
                    raise TimeoutError("no answer")
                return found

            patch.setattr(MemoryFileSystem, name, call)
        small(url, laps=1)
        assert bits(small(url, resume=True)) == quiet


def test_a_store_that_is_gone_is_one_line_and_the_run_goes_on_when_it_is_back(url, quiet, monkeypatch):
    with monkeypatch.context() as patch:
        count, original = [0], MemoryFileSystem.pipe_file

        def call(self, path, *args, **more):
            count[0] += "checkpoints" in path
            if count[0] > 3:
                raise ConnectionError("reset by peer")
            return original(self, path, *args, **more)

        patch.setattr(MemoryFileSystem, "pipe_file", call)
        with pytest.raises(StoreError, match=r"^cannot write memory://\S+: ConnectionError: reset by peer.*unharmed$"):
            small(url)
    monkeypatch.setattr(place.Holder, "lives", False)  # it could not say that it ended
    assert bits(small(url, resume=True)) == quiet


def test_a_run_that_is_written_to_is_refused_to_another_call(url):
    class Second:
        def on_start(self, info): ...
        def on_batch(self, done): ...
        def on_end(self, reason): ...

        def on_lap(self, row, posterior):
            with pytest.raises(StoreError, match="is being written by process"):
                small(url, resume=True)

    small(url, callbacks=[Second()])


def test_a_run_grows_and_goes_back_as_one_in_a_directory(url, tmp_path):
    more = np.random.default_rng(1).normal(size=(40, 2))
    found = []
    for store in (url, str(tmp_path / "run")):
        small(store)
        more_of_it = bnp.update(store, more, batch_size=20)
        kept = [bits_of(bnp.load(f"{store}@{n}")) for n in (0, 1)]
        assert bits_of(bnp.load(store)) == bits_of(more_of_it.posterior) == kept[1]
        changed = bnp.changes(store)
        back = bnp.rollback(store, 0)
        assert bits_of(bnp.load(store)) == bits_of(back) == kept[0]
        found.append((list(more_of_it.history["elbo"]), kept, changed))
    assert found[0] == found[1]


def test_an_update_that_is_killed_can_be_made_again(url, monkeypatch):
    more = np.random.default_rng(1).normal(size=(40, 2))
    small(f"{url}-quiet")
    quiet = bnp.update(f"{url}-quiet", more, batch_size=20)
    seen = set()
    for n in (12, 24):  # before the new version is in force, and after
        own = f"{url}-{n}"
        before = small(own).posterior
        with killed_at(n, False, monkeypatch) as reached:
            bnp.update(own, more, batch_size=20)
        assert reached
        monkeypatch.setattr(place.Holder, "lives", False)
        found = bits_of(bnp.load(own))
        assert found in (bits_of(before), bits_of(quiet.posterior))
        seen.add(found == bits_of(before))
        if found == bits_of(before):
            assert bnp.update(own, more, batch_size=20).version == 1
        assert bits_of(bnp.load(own)) == bits_of(quiet.posterior)
    assert seen == {True, False}


def bits_of(posterior):
    return {k: v.tobytes() for k, v in posterior.summary.to_arrays().items()}


# -- a server that speaks S3 ------------------------------------------------------------------------------------
@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(place, "PAUSES", (0.1, 0.2, 0.5))


def test_a_run_on_s3_has_the_quiet_bits(s3, quiet):
    url = f"{s3}/a/run"
    assert bits(small(url)) == quiet
    assert bits_of(bnp.load(url)) == quiet[1]


@pytest.mark.long
def test_a_run_on_s3_is_resumed_and_updated(s3, quiet):
    url = f"{s3}/d/run"
    small(url, laps=1)
    assert bits(small(url, resume=True)) == quiet
    assert bnp.update(url, np.zeros((20, 2)) + 4.0).version == 1
    assert bnp.load(f"{url}@0").n_clusters == bnp.rollback(url, 0).n_clusters
    with pytest.raises(StoreError, match="NoSuchBucket|bucket does not exist"):
        small("s3://no-such-bucket/run")


SCRIPT = """
import sys
sys.path.insert(0, "")
import bnp_dask as bnp
from tests.faults.test_object_store import small

class Slow:
    def on_start(self, info): ...
    def on_batch(self, done): print(done, flush=True)
    def on_lap(self, row, posterior): ...
    def on_end(self, reason): ...

small(sys.argv[1], resume=True, callbacks=[Slow()], checkpoint_minutes=0.0)
"""


def run_until(url, steps):
    """Start a process that trains, and kill it after some steps."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, url], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(steps):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


@pytest.mark.long
def test_a_process_that_is_killed_while_it_writes_to_s3_is_gone_on_with_at_once(s3, quiet):
    url = f"{s3}/b/run"
    run_until(url, 4)
    started = time.monotonic()
    assert bits(small(url, resume=True)) == quiet
    assert time.monotonic() - started < place.SECONDS


@pytest.mark.long
def test_workers_with_and_without_credentials_give_the_quiet_bits(s3, quiet, own_cluster):
    client = own_cluster(2)

    given = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    secrets = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert secrets <= given.keys()

    def know(settings):  # workers are forked from a process that may know others, or none
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(settings)

    first, second = list(client.scheduler_info()["workers"])
    client.run(know, given, workers=[first])
    client.run(know, {name: value for name, value in given.items() if name not in secrets}, workers=[second])
    url = f"{s3}/c/run"
    assert bits(small(url, client=client)) == quiet
    store = RunStore.open(url)
    shared = store.shared

    def writes():
        try:
            return shared.put(999, 0, {"a": np.arange(3)}).nbytes > 0
        except StoreError as error:
            return str(error)

    try:
        found = client.run(writes, workers=[first, second])
    finally:
        store.close()
    assert found[first] is True
    assert "cannot be used here" in found[second] and "Credentials" in found[second]


@pytest.mark.long
def test_commands_take_the_url_of_a_run(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("atoms.npy", rng.normal(size=(90, 2)) + np.repeat([[-4.0], [0.0], [4.0]], 30, axis=0))
    url = f"{s3}/e/run"
    (tmp_path / "job.yaml").write_text(
        "model: {allocation: DPMixture, observation: DiagGaussian}\n"
        "data: {path: atoms.npy, batch_size: 30}\n"
        "init: {type: BregmanKMeans, n_clusters: 3}\n"
        f"store: {url}\n"
    )
    assert main(["train", "job.yaml"]) == 0
    assert main(["resume", url]) == 0
    capsys.readouterr()
    assert main(["inspect", url]) == 0
    assert "DPMixture of DiagGaussian: 3 clusters, 90 atoms" in capsys.readouterr().out
    assert main(["score", url, "atoms.npy"]) == 0
    assert f"{bnp.score(bnp.load(url), 'atoms.npy'):.3f}"[:5] in capsys.readouterr().out
    assert main(["predict", url, "atoms.npy", "labels.parquet"]) == 0
    assert parquet.read_table("labels.parquet").num_rows == 90
    assert main(["report", url, "page.html"]) == 0
    assert "DiagGaussian" in (tmp_path / "page.html").read_text()
