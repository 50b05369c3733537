"""Workers whose code is not that of the process that sends tasks: they compute nothing, and others do."""

from __future__ import annotations

import logging
import operator
import os
import shutil
import subprocess
import sys
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from distributed import Client, LocalCluster

import bnp_dask as bnp
from bnp_dask.core import code
from bnp_dask.core.code import Code, code_here
from bnp_dask.errors import ExecutionError
from bnp_dask.execute import dask
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.local import ANY_PORT
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from bnp_dask.training.results import load
from tests.execute.tasks import sleep_then_touch
from tests.faults.parts import atoms, until

ROOT = Path(__file__).resolve().parents[2]


def pretend(**changes: object) -> None:
    """Let this process say that it has other code; run on a worker."""
    other = replace(code_here(), **changes)
    code.code_here = dask.code_here = lambda: other


def pretend_to_be_old() -> None:
    """Let this process have a version that looks at no code; run on a worker."""
    known = dask.run_message
    dask.run_message = lambda message, *values: known(message, *values)
    del code.code_here


def where(number: int) -> tuple[int, int]:
    return number, os.getpid()


def workers_of(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


OTHERS = {
    "version": (lambda: pretend(version="0.1.7"), "bnp_dask 0.1.7, not"),
    "sources": (lambda: pretend(sources="0123456789abcdef"), "other sources of bnp_dask"),
    "older": (pretend_to_be_old, "no bnp_dask that says which it is"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_worker_with_other_code_is_left_out_with_one_line(own_cluster, caplog, kind):
    client = own_cluster(2)
    stranger, own = workers_of(client)
    change, words = OTHERS[kind]
    client.run(change, workers=[stranger])
    (pid,) = client.run(os.getpid, workers=[own]).values()
    executor = DaskExecutor(client, "run")
    shared = executor.share("shared", 1000)
    handles = executor.submit_together([(f"where-{i}", where, (i,)) for i in range(12)])
    sums = [executor.submit(f"sum-{i}", operator.add, shared, i) for i in range(4)]
    assert [executor.result(handle) for handle in handles] == [(i, pid) for i in range(12)]
    assert executor.results_together(sums) == [1000, 1001, 1002, 1003]
    more = executor.submit_together([(f"more-{i}", where, (i,)) for i in range(12)])
    assert executor.results_together(more) == [(i, pid) for i in range(12)]
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(told) == 1 and stranger in told[0] and words in told[0]
    executor.close()
    assert DaskExecutor(client, "run").n_workers == 2  # it is of the cluster, and others may use it


def test_where_no_worker_has_the_code_of_this_process_nothing_is_computed(own_cluster):
    client = own_cluster(2)
    client.run(pretend, version="9.9.9")
    executor = DaskExecutor(client, "run")
    with pytest.raises(ExecutionError, match=r"no worker has the code of this process: .* has bnp_dask 9\.9\.9, not"):
        executor.result(executor.submit("sum", operator.add, 1, 2))


def test_versions_of_libraries_count_where_bits_are_to_be_reproducible(own_cluster):
    client = own_cluster(1)
    others = tuple((name, "0.0" if name == "numpy" else own) for name, own in code_here().libraries)
    client.run(pretend, libraries=others)
    executor = DaskExecutor(client, "run")
    assert executor.result(executor.submit("sum", operator.add, 1, 2)) == 3
    with fixed_order(True), pytest.raises(ExecutionError, match=r"numpy 0\.0, not"):
        executor.result(executor.submit("sum", operator.add, 1, 2))


def test_an_error_of_a_task_asks_nobody_about_code(own_cluster, monkeypatch):
    executor = DaskExecutor(own_cluster(1), "run")
    monkeypatch.setattr(executor, "_codes", None)
    with pytest.raises(ZeroDivisionError):
        executor.result(executor.submit("ratio", operator.truediv, 1, 0))


WORKER = ["-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"]


@contextmanager
def scheduler():
    """A scheduler without workers, and its client."""
    settings = {"host": "127.0.0.1", "dashboard_address": None, "scheduler_kwargs": {"dashboard_address": ANY_PORT}}
    with LocalCluster(n_workers=0, **settings) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@contextmanager
def worker(client: Client, sources: Path, *more: str):
    """A worker with the package as it is in a folder."""
    known = len(workers_of(client))
    command = [sys.executable, *WORKER, *more, client.scheduler.address]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT)])}
    # the working directory comes before PYTHONPATH
    process = subprocess.Popen(command, env=settings, cwd=sources, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(workers_of(client)) > known, "a worker")
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_stranger_that_comes_late_computes_nothing(own_cluster, tmp_path, caplog):
    client = own_cluster(1)
    (own,) = workers_of(client)
    (pid,) = client.run(os.getpid, workers=[own]).values()
    (tmp_path / "late.py").write_text("from tests.execute.test_strangers import pretend\npretend(version='0.1.7')\n")
    executor = DaskExecutor(client, "run")
    assert executor.result(executor.submit("first", where, 0)) == (0, pid)
    busy = executor.submit("busy", sleep_then_touch, str(tmp_path), 0)
    with worker(client, ROOT, "--preload", str(tmp_path / "late.py")):
        handles = [executor.submit(f"where-{i}", where, i) for i in range(20)]
        assert [executor.result(handle) for handle in handles] == [(i, pid) for i in range(20)]
        executor.result(busy)
    assert sum("is left out" in record.getMessage() for record in caplog.records) <= 1
    executor.close()


def other_sources(folder: Path) -> Path:
    """The package with statistics that differ by 1e-6."""
    shutil.copytree(ROOT / "bnp_dask", folder / "bnp_dask", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "bnp_dask" / "observation" / "diag_gaussian.py"
    file.write_text(
        file.read_text()
        + """

_summarize = DiagGaussian.summarize
DiagGaussian.summarize = lambda self, *words: {n: (1.0 + 1e-6) * v for n, v in _summarize(self, *words).items()}
"""
    )
    return folder


JOB = {
    "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
    "data": {"path": "x.npy", "batch_size": 100},
    "init": {"type": "BregmanKMeans", "n_clusters": 4},
    "schedule": {"type": "Memoized", "laps": 3},
    "moves": [],
}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_from_the_command_line_beside_a_stranger_has_the_bits_of_one_without(tmp_path):
    np.save(tmp_path / "x.npy", atoms(800, 3, 4))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(JOB))
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}

    def train(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bnp_dask", "train", "run.yaml", *words]
        return subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=200)

    assert train("--store", "alone").returncode == 0
    with scheduler() as client, worker(client, other_sources(tmp_path / "other")):
        refused = train("--store", "none", "--scheduler", client.scheduler.address)
        assert refused.returncode == 2 and "no worker has the code of this process" in refused.stderr
        with worker(client, ROOT):
            done = train("--store", "beside", "--scheduler", client.scheduler.address)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is left out") == 1
    alone, beside = (load(tmp_path / name / "posterior.zarr").summary for name in ("alone", "beside"))
    for name, value in alone.values.items():
        np.testing.assert_array_equal(beside[name], value)


# -- what a run notes ------------------------------------------------------------------------------------------------
@pytest.fixture
def run(tmp_path) -> Path:
    np.save(tmp_path / "x.npy", atoms(100, 2, 2))
    train(tmp_path, laps=1)
    return tmp_path / "run"


def train(folder: Path, laps: int) -> None:
    model = bnp.Model(bnp.FiniteMixture(), bnp.DiagGaussian())
    settings = {"init": bnp.BregmanKMeans(2), "schedule": bnp.Memoized(laps=laps, tolerance=0.0, count_tolerance=0.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.train(model, str(folder / "x.npy"), **settings, batch_size=50, store=folder / "run", resume=True)


def code_of(run: Path) -> tuple[Code, ...]:
    return bnp.store.RunStore.view(run).load().code


def test_a_run_notes_the_code_that_made_it(run):
    assert code_of(run) == (code_here(),)
    train(run.parent, laps=2)
    assert code_of(run) == (code_here(),)


@pytest.mark.parametrize("again", ["resume", "update", "retire", "rollback"])
def test_going_on_by_another_version_says_what_that_means(run, monkeypatch, caplog, again):
    np.save(run.parent / "y.npy", atoms(100, 2, 2, seed=1))
    if again != "resume":
        bnp.update(run, run.parent / "y.npy")
    here = code_here()
    other = replace(here, version="9.9.9")
    monkeypatch.setattr("bnp_dask.store.run.code_here", lambda: other)
    with caplog.at_level(logging.WARNING, "bnp_dask"):
        match again:
            case "resume":
                train(run.parent, laps=3)
            case "update":
                np.save(run.parent / "z.npy", atoms(100, 2, 2, seed=2))
                bnp.update(run, run.parent / "z.npy")
            case "retire":
                bnp.retire(run, run.parent / "y.npy")
            case "rollback":
                bnp.rollback(run, 0)
    (told,) = (record.getMessage() for record in caplog.records if "was last written by" in record.getMessage())
    assert f"bnp_dask {here.version}, not 9.9.9" in told and "other last bits" in told
    assert code_of(run) == (here, other)


def test_a_posterior_of_another_version_says_what_that_means(run, monkeypatch, caplog):
    load(run / "posterior.zarr")
    assert not caplog.records
    monkeypatch.setattr("bnp_dask.training.results.__version__", "9.9.9")
    with caplog.at_level(logging.WARNING, "bnp_dask"):
        bnp.predict(bnp.load(run / "posterior.zarr"), str(run.parent / "x.npy"))
    (told,) = (record.getMessage() for record in caplog.records)
    assert f"was saved by bnp_dask {code_here().version}: version 9.9.9 reads it exactly" in told


def test_codes_tell_their_first_difference():
    one = Code("1.0", "abc", (("numba", "1"), ("numpy", "2")))
    assert one.difference(one) is None and Code.from_json(one.to_json()) == one
    assert one.difference(replace(one, version="2.0")) == "bnp_dask 2.0, not 1.0"
    assert one.difference(replace(one, sources="abd")) == "other sources of bnp_dask 1.0 (abd, not abc)"
    assert one.difference(replace(one, libraries=(("numba", "1"), ("numpy", "3")))) == "numpy 3, not 2"
    assert one.difference(Code("1.0")) is None  # of an older run no more than the version is known
    assert one.token(False) == replace(one, libraries=()).token(False) != replace(one, sources="x").token(False)
    assert one.token(True) != replace(one, libraries=()).token(True)


def test_the_code_here_names_the_versions_of_its_libraries():
    found = code_here.__wrapped__()
    assert found == code_here()
    assert dict(found.libraries)["numpy"] == np.__version__
