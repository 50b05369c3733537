"""Programs in ``cluster_configs`` for clusters that others host run a job, and go on with it.

Coiled needs an account, so a stand-in takes its place, with arguments that Coiled's own class has.  Dask Gateway runs
where its server is installed, with a scheduler and workers on this machine.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.faults.parts import until

CONFIGS = Path(__file__).resolve().parents[2] / "cluster_configs"

JOB = {
    "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
    "data": "atoms.npy",
    "init": {"type": "BregmanKMeans", "n_clusters": 2},
    "schedule": {"type": "Memoized", "laps": 2, "tolerance": 0, "count_tolerance": 0},
    "moves": [],
    "store": "run",
}

HERE = """
from distributed import Client, LocalCluster

class Here(LocalCluster):
    def __init__(self, n_workers=0):
        super().__init__(n_workers=n_workers, threads_per_worker=1, processes=False, dashboard_address=":0")

    def get_client(self):
        return Client(self)
"""

GATEWAY = (
    HERE
    + """
class Gateway:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def cluster_options(self):
        return {"worker_cores": 2, "image": "none"}

    def new_cluster(self, options):
        assert options == {"worker_cores": 1, "image": "bnp-dask:latest"}
        cluster = Here()
        cluster.adapt = lambda minimum, maximum: cluster.scale(minimum)
        return cluster
"""
)

COILED = (
    HERE
    + """
import dask

def Cluster(n_workers, worker_options, **settings):
    assert n_workers == [1, 2] and worker_options == {"nthreads": 1} and settings["region"] == "here"
    assert dask.config.get("distributed.scheduler.work-stealing-interval") == "50ms"
    return Here(n_workers=1)
"""
)

OPTIONS = ["--option", "worker_cores=1", "--option", "image=bnp-dask:latest"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with data and a job."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "atoms.npy", np.repeat([[0.0, 0.0], [8.0, 8.0]], 60, axis=0) + rng.standard_normal((120, 2)))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(JOB))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, script: str, *words: str, **more: str) -> str:
    """Output of a program of ``cluster_configs``, which sees modules in ``folder`` first."""
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{CONFIGS.parent}", **more}
    command = [sys.executable, str(CONFIGS / script), "run.yaml", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "module", "stand_in", "words"),
    [
        ("gateway.py", "dask_gateway.py", GATEWAY, OPTIONS),
        ("coiled_cluster.py", "coiled.py", COILED, ["--region", "here"]),
    ],
)
def test_a_program_runs_a_job_and_goes_on_with_it(folder, script, module, stand_in, words):
    (folder / module).write_text(stand_in)
    for _ in range(2):
        assert "TrainResult" in run(folder, script, "--workers", "2", *words)
    assert (folder / "run" / "posterior.zarr").exists()


@pytest.mark.long
def test_an_option_without_a_value_is_told(folder):
    (folder / "dask_gateway.py").write_text(GATEWAY)
    with pytest.raises(AssertionError, match="'image' is no NAME=VALUE"):
        run(folder, "gateway.py", "--option", "image")


def test_coiled_takes_these_arguments():
    cluster = pytest.importorskip("coiled").Cluster
    program = (CONFIGS / "coiled_cluster.py").read_text(encoding="utf-8")
    names = {"n_workers", "region", "worker_cpu", "worker_memory", "worker_options", "spot_policy"}
    assert names <= set(inspect.signature(cluster).parameters)
    assert all(f"{name}=" in program for name in names)


SERVER = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{api}"
c.Proxy.address = "127.0.0.1:{proxy}"
c.UnsafeLocalBackend.clusters_directory = "{folder}/clusters"
c.ClusterConfig.scheduler_cmd = ["{bin}/dask", "scheduler"]
c.ClusterConfig.worker_cmd = ["{bin}/dask", "worker"]
c.ClusterConfig.environment = {{"PYTHONPATH": "{tree}"}}
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_real_gateway_runs_a_job_and_goes_on_with_it(folder):
    if any(importlib.util.find_spec(name) is None for name in ("dask_gateway", "dask_gateway_server", "sqlalchemy")):
        pytest.skip("dask-gateway and dask-gateway-server[local] are not installed")
    ports = {"api": free_port(), "proxy": free_port()}
    programs = Path(sys.executable).parent
    (folder / "config.py").write_text(SERVER.format(**ports, folder=folder, bin=programs, tree=CONFIGS.parent))
    log = folder / "server.log"
    environment = {**os.environ, "PYTHONPATH": str(CONFIGS.parent)}
    command = [str(programs / "dask-gateway-server"), "-f", str(folder / "config.py")]
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        until(lambda: all(map(answers, ports.values())) or server.poll() is not None, "the Gateway to listen")
        address = f"http://127.0.0.1:{ports['proxy']}"
        for _ in range(2):
            out = run(folder, "gateway.py", "--workers", "1", DASK_GATEWAY__ADDRESS=address)
            assert "TrainResult" in out, log.read_text()
    finally:
        server.terminate()
        server.wait(timeout=60)
    assert (folder / "run" / "posterior.zarr").exists()


def answers(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
