"""``cluster_configs`` under a Slurm that runs: time limits, queueing again, clean logs, workers with a lifetime."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.execute import SerialExecutor
from tests.face.slurm_node import slurm, why_no_slurm
from tests.faults.parts import atoms, until

pytestmark = [
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "it can run"),
    pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning"),
]

CONFIGS = Path(__file__).resolve().parents[2] / "cluster_configs"
PROGRAMS = {"bnp-dask": "-m bnp_dask", "dask": "-m dask", "python": ""}
SMALL = ["--nodes=1", "--ntasks-per-node=2", "--mem-per-cpu=1G", "--output=log.txt"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with data, and the programs of this environment before all others."""
    np.save(tmp_path / "atoms.npy", atoms(3600))  # 60 batches: long runs outlast a time limit
    (tmp_path / "bin").mkdir()
    for name, words in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/bash\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(CONFIGS.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def node(folder):
    with slurm(folder / "slurm") as node:
        yield node


def write_job(folder, laps):
    """A job of so many laps, with all moves."""
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": str(folder / "atoms.npy"), "batch_size": 60},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": laps, "tolerance": 0, "count_tolerance": 0},
        "checkpoint_minutes": 0.1,
        "store": str(folder / "run"),
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(job))


def laps_that_take(folder, seconds):
    """Laps that take so many seconds in one thread of this machine, as busy as it is; a cluster here takes longer."""
    write_job(folder, 10)
    job = replace(read_job(folder / "run.yaml"), store=None)
    job.train(SerialExecutor())  # compiles
    begun = time.monotonic()
    job.train(SerialExecutor())
    return max(60, int(10 * seconds / (time.monotonic() - begun)))


def submit(node, *options):
    return node.command("sbatch", "--parsable", *SMALL, *options, str(CONFIGS / "slurm.sh"), "run.yaml")


def assert_quiet(folder, run):
    """The run has the posterior of one in this thread."""
    job = replace(read_job(folder / "run.yaml"), store=str(folder / "quiet"))
    quiet = job.train(SerialExecutor()).posterior.summary.to_arrays()
    found = bnp.load(run).summary.to_arrays()
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in quiet.items()}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_ends_with_a_log_of_its_own_lines_only(folder, node):
    write_job(folder, 2)
    job = node.ended(submit(node), "COMPLETED", "FAILED", "TIMEOUT")
    log = (folder / "log.txt").read_text()
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), log
    first, *_, last = log.splitlines()
    assert first.startswith("scheduler tcp://")
    assert last.startswith("next: bnp-dask inspect ")
    for word in ("Traceback", "Killed", "srun", "distributed", "ERROR", "WARNING"):
        assert word not in log
    assert_quiet(folder, "runs/run")
    assert not list(folder.glob("scheduler-*.json"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_job_that_nears_its_time_limit_queues_itself_again_and_ends_in_the_quiet_bits(folder, node):
    write_job(folder, 600)
    number = submit(node, "--time=2", "--signal=B:USR1@40")
    job = node.ended(number, "COMPLETED", "FAILED", "TIMEOUT", bound=1500)
    log = (folder / "log.txt").read_text()
    print(log)
    assert job["JobState"] == "COMPLETED", log
    assert int(job["Restarts"]) >= 1
    assert "Traceback" not in log and "Killed" not in log
    assert_quiet(folder, "runs/run")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_job_that_its_time_limit_kills_goes_on_when_it_is_queued_again(folder, node):
    write_job(folder, laps_that_take(folder, 40))
    number = submit(node, "--time=60", "--signal=B:CONT@1")  # a signal of which the script knows nothing
    saved = until(lambda: list((folder / "runs/run").glob("checkpoints/*")), "a checkpoint", 600)
    node.command("scontrol", "update", f"JobId={number}", "TimeLimit=1")  # however long this machine took so far
    killed = node.ended(number, "COMPLETED", "FAILED", "TIMEOUT", bound=600)
    print(len(saved), "checkpoints, then", killed["JobState"], "after", killed["RunTime"])
    assert killed["JobState"] == "TIMEOUT"
    node.command("scontrol", "requeue", number)
    node.command("scontrol", "update", f"JobId={number}", "TimeLimit=60", "StartTime=now")
    node.ended(number, "RUNNING", bound=200)
    done = node.ended(number, "COMPLETED", "FAILED", "TIMEOUT", bound=1200)
    print("then", done["JobState"], "after", done["RunTime"], (folder / "log.txt").read_text(), sep="\n")
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "1")
    assert_quiet(folder, "runs/run")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_workers_of_a_queue_reach_their_lifetime_during_the_run(folder, node):
    pytest.importorskip("dask_jobqueue")
    write_job(folder, laps_that_take(folder, 40))
    config = yaml.safe_load((CONFIGS / "slurm_jobqueue.yaml").read_text())
    slurm_config = config["jobqueue"]["slurm"]
    slurm_config |= {"cores": 1, "processes": 1, "memory": "1GiB", "walltime": "00:02:00", "interface": "lo"}
    slurm_config |= {"worker-extra-args": ["--lifetime", "40s", "--lifetime-stagger", "5s"]}
    (folder / "jobqueue.yaml").write_text(yaml.safe_dump(config))
    env = {**node.env, "DASK_CONFIG": str(folder / "jobqueue.yaml")}
    command = [sys.executable, str(CONFIGS / "slurm_jobqueue.py"), "run.yaml", "--jobs", "2"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("slurm-*.out"))) >= 3  # jobs that Slurm ran
    assert_quiet(folder, "run")
