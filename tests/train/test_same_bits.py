"""One run is the same run, whoever computes it, and however often it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import Gaussian
from bnp_dask.training.results import load
from bnp_dask.training.train import ConvergenceWarning, train
from tests.stopping import AfterLaps

warnings.simplefilter("ignore", ConvergenceWarning)

MOVES = [Birth(), Merge(), Delete()]


def blobs(n=3000, d=4, k=6, seed=0):
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=6, size=(k, d))
    return means[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def go(client=None, schedule=None, moves=MOVES, **more):
    schedule = schedule or Memoized(laps=6, window=3)
    model = Model(DPMixture(3.0), Gaussian())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            model, blobs(), init=BregmanKMeans(3), schedule=schedule, moves=moves, client=client, batch_size=250, **more
        )


def bits(result):
    """Everything that must not depend on who computed it."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    arrays = {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}
    return rows, arrays


SCHEDULES = {
    "memoized with moves": (Memoized(laps=4, window=3), MOVES),
    "full batch with moves": (FullBatch(laps=4, window=3), MOVES),
    "stochastic": (Stochastic(laps=3, window=3), []),
}


@cache
def undisturbed(name):
    """The run in this thread."""
    return go(SerialExecutor(), *SCHEDULES[name])


@pytest.mark.first_case
@pytest.mark.parametrize("name", SCHEDULES)
def test_threads_and_serial_agree(name):
    schedule, moves = SCHEDULES[name]
    with closing(ThreadExecutor(4)) as executor:
        assert bits(go(executor, schedule, moves)) == bits(undisturbed(name))


@pytest.mark.parametrize(
    "n_workers", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_dask_and_serial_agree(dask_client, n_workers):
    schedule, moves = SCHEDULES["memoized with moves"]
    assert bits(go(dask_client(n_workers), schedule, moves)) == bits(undisturbed("memoized with moves"))


def test_the_current_client_is_used(dask_client):
    client = dask_client(2)
    with client.as_current():
        there = go(schedule=Memoized(laps=2, window=3))
    assert bits(there) == bits(go(SerialExecutor(), Memoized(laps=2, window=3)))


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "stop"), [(name, 1 + i % 2) for i, name in enumerate(SCHEDULES)])
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path, name, stop):
    schedule, moves = SCHEDULES[name]
    whole = undisturbed(name)
    first = go(SerialExecutor(), schedule, moves, store=tmp_path / "run", callbacks=[AfterLaps(stop)])
    assert first.reason == "stopped by a callback"
    rest = go(SerialExecutor(), schedule, moves, store=tmp_path / "run", resume=True)
    assert bits(rest) == bits(whole)
    saved = load(tmp_path / "run" / "posterior.zarr")
    assert np.array_equal(saved.summary["N"], whole.posterior.summary["N"])


KILLED = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from tests.train.test_same_bits import go
from bnp_dask.inference import Memoized
go(schedule=Memoized(laps=5, window=3), store={store!r}, resume=True, checkpoint_minutes=1e-9)
"""


@pytest.mark.long
def test_killed_at_any_moment_and_resumed_is_the_uninterrupted_run(tmp_path):
    schedule = Memoized(laps=5, window=3)
    whole = go(SerialExecutor(), schedule)
    root, store = str(Path(__file__).resolve().parents[2]), tmp_path / "run"
    code = KILLED.format(root=root, store=str(store))
    for wait in (2, 5, 11):  # checkpoints
        process = subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        target = wait + len(list((store / "checkpoints").glob("[0-9]*.json")) if store.exists() else [])
        while time.monotonic() < deadline and process.poll() is None:
            manifests = list((store / "checkpoints").glob("[0-9]*.json")) if store.exists() else []
            newest = max((int(m.stem) for m in manifests), default=0)
            if newest >= target:
                break
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait(30)
    rest = go(SerialExecutor(), schedule, store=store, resume=True)
    assert bits(rest) == bits(whole)


def all_laps(laps):
    """A schedule whose run does not converge before its last lap."""
    return Memoized(laps=laps, window=3, tolerance=0.0, count_tolerance=0.0)


def test_more_laps_may_be_asked_for_at_resume(tmp_path):
    whole = go(SerialExecutor(), all_laps(5), [])
    go(SerialExecutor(), all_laps(2), [], store=tmp_path / "run")
    more = go(SerialExecutor(), all_laps(5), [], store=tmp_path / "run", resume=True)
    assert more.history[-1]["lap"] == 5 and bits(more) == bits(whole)


def test_a_schedule_that_is_left_out_has_the_laps_of_the_last_call(tmp_path):
    """Stopped in the third of five laps, after it had begun with two, it goes on to the fifth."""
    store, five = tmp_path / "run", all_laps(5)
    whole = go(SerialExecutor(), five, [])
    go(SerialExecutor(), all_laps(2), [], store=store)
    go(SerialExecutor(), five, [], store=store, resume=True, callbacks=[AfterLaps(3)])
    model = Model(DPMixture(3.0), Gaussian())
    with pytest.warns(ConvergenceWarning, match="limit of 5 laps"):
        rest = train(model, blobs(), client=SerialExecutor(), batch_size=250, store=store, resume=True)
    assert rest.history[-1]["lap"] == 5 and bits(rest) == bits(whole)
    (store / "laps.json").write_text("[")
    with pytest.raises(StoreError, match="laps.json is damaged .*give schedule= anew"):
        train(model, blobs(), client=SerialExecutor(), batch_size=250, store=store, resume=True)


def test_a_run_is_not_overwritten_and_not_mixed_with_another(tmp_path):
    schedule = Memoized(laps=2, window=3)
    go(SerialExecutor(), schedule, [], store=tmp_path / "run")
    with pytest.raises(StoreError, match="resume"):
        go(SerialExecutor(), schedule, [], store=tmp_path / "run")
    with pytest.raises(StoreError, match="seed"):
        go(SerialExecutor(), schedule, [], store=tmp_path / "run", resume=True, rng=1)
    with pytest.raises(StoreError, match="schedule"):
        go(SerialExecutor(), Memoized(laps=2, window=4), [], store=tmp_path / "run", resume=True)
    x = blobs()
    x[7, 1] += 1e-9
    with pytest.raises(StoreError, match="the data changed"):
        train(
            Model(DPMixture(3.0), Gaussian()),
            x,
            init=BregmanKMeans(3),
            schedule=schedule,
            batch_size=250,
            store=tmp_path / "run",
            resume=True,
        )


def test_a_run_that_stops_at_its_limit_says_so():
    with pytest.warns(ConvergenceWarning, match="limit of 1 laps"):
        result = train(
            Model(DPMixture(3.0), Gaussian()), blobs(), init=BregmanKMeans(3), schedule=Memoized(laps=1), batch_size=500
        )
    assert not result.converged
    assert "limit" in result.reason


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True}, "needs store="),
        ({"moves": [Birth]}, "needs an instance"),
        ({"schedule": Memoized}, "needs an instance"),
        ({"checkpoint_minutes": 0}, "checkpoint_minutes"),
        ({"schedule": Stochastic(), "moves": [Merge()]}, "no exact objective"),
        ({"schedule": FullBatch(), "moves": [Birth(where="batch")]}, "within a lap"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        train(Model(DPMixture(3.0), Gaussian()), blobs(), batch_size=500, **{"init": BregmanKMeans(2), **arguments})
