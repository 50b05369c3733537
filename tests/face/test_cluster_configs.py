"""What ``cluster_configs`` says is true: programs run its scripts, and Dask's own parsers read every value."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml
from dask.utils import parse_bytes, parse_timedelta
from distributed.cli.dask_scheduler import main as scheduler_command
from distributed.cli.dask_worker import main as worker_command

import bnp_dask as bnp
from bnp_dask.cli import build_parser, main
from bnp_dask.cli.jobfile import read_job
from bnp_dask.execute.local import LEAST, _limit_of_each, worker_settings
from bnp_dask.store import RunStore
from tests.faults.parts import until

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

CONFIGS = Path(__file__).resolve().parents[2] / "cluster_configs"
README = (CONFIGS / "README.md").read_text(encoding="utf-8")

JOB = {
    "model": {"allocation": {"type": "DPMixture", "gamma": 2.0}, "observation": "DiagGaussian"},
    "data": {"path": "atoms.npy", "batch_size": 60},
    "init": {"type": "BregmanKMeans", "n_clusters": 2},
    "schedule": {"type": "Memoized", "laps": 2, "tolerance": 0, "count_tolerance": 0},
    "moves": [],
    "store": "run",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with data and a job."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "atoms.npy", np.repeat([[0.0, 0.0], [8.0, 8.0]], 60, axis=0) + rng.standard_normal((120, 2)))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(JOB))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_file_has_a_test_here():
    assert {path.name for path in CONFIGS.iterdir()} == {
        "README.md", "kubernetes.yaml", "local.yaml", "slurm.sh", "slurm_jobqueue.py", "slurm_jobqueue.yaml",
        "tls.yaml", "coiled_cluster.py", "gateway.py",  # tests/face/test_hosted_clusters.py
    }  # fmt: skip


# -- words and values ---------------------------------------------------------------------------------------------
TIMES = ("lifetime", "lifetime_stagger", "lifetime_restart", "death_timeout")


def check_worker(words):
    """Parse the arguments of ``dask worker``, and the values that it parses itself when it runs; the arguments."""
    given = worker_command.make_context("dask worker", list(words)).params
    for name in TIMES:
        if given.get(name):
            assert parse_timedelta(given[name]) > 0
    if given["memory_limit"] != "auto":
        assert parse_bytes(given["memory_limit"]) > LEAST
    return given


def check_command(words):
    """Parse one of the commands that configurations and documentation show."""
    if words[:2] == ["dask", "worker"]:
        assert check_worker(words[2:])["nthreads"] == 1
    elif words[:2] == ["dask", "scheduler"]:
        scheduler_command.make_context("dask scheduler", list(words[2:]))
    else:
        assert words[0] == "bnp-dask"
        build_parser().parse_args(words[1:])


def shell_commands(text):
    """Commands of Dask and of this package in a shell script, without what surrounds them."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.match(r"^\s*(?:srun |exec )?((?:dask|bnp-dask) .*?)(\s*&)?$", line)
        if found:
            yield shlex.split(found[1])


@pytest.mark.parametrize("name", ["README.md", "slurm.sh", "tls.yaml"])
def test_commands_take_these_options(folder, name):
    for file in ("ca.pem", "cert.pem", "key.pem", "run.yaml"):
        (folder / file).touch()
    text = (CONFIGS / name).read_text(encoding="utf-8")
    commands = list(shell_commands(re.sub(r"^#  ", "", text, flags=re.MULTILINE)))
    assert len(commands) >= 2
    for words in commands:
        check_command(words)


def test_settings_in_the_environment_are_those_that_our_own_workers_get():
    """Dask takes names that it does not know without a word."""
    exports = dict(re.findall(r"(DASK_DISTRIBUTED__\w+)=(\"[^\"]*\"|\S+)", README))
    exports |= dict(re.findall(r"(DASK_DISTRIBUTED__\w+)=(\S+)", (CONFIGS / "slurm.sh").read_text()))
    found = dask.config.collect_env({name: value.strip('"') for name, value in exports.items()})
    ours = worker_settings()
    assert len(exports) >= 6
    for name in exports:
        key = name.removeprefix("DASK_").lower().replace("__", ".").replace("_", "-")
        known = dask.config.canonical_name(key, dask.config.config)
        assert dask.config.get(known) is not None, name
        assert dask.config.get(known, config=found) == next(v for k, v in ours.items() if k == key), name
    malloc = dict(re.findall(r"(MALLOC_\w+_)=(\d+)", README))
    assert {f"distributed.nanny.pre-spawn-environ.{k}": int(v) for k, v in malloc.items()}.items() <= ours.items()
    for name in ("slurm.sh", "slurm_jobqueue.yaml"):
        assert dict(re.findall(r"(MALLOC_\w+_)=(\d+)", (CONFIGS / name).read_text())) == malloc


# -- one machine --------------------------------------------------------------------------------------------------
def test_local_yaml_runs(folder, monkeypatch, capsys):
    from bnp_dask.cli import run

    (folder / "local.yaml").write_text((CONFIGS / "local.yaml").read_text())
    bnp.ingest("atoms.npy", "data.zarr")
    seen = []

    @contextmanager
    def here(spec, quiet):
        seen.append((spec.workers, _limit_of_each(spec.memory_limit)))
        yield None

    monkeypatch.setattr(run, "open_client", here)
    assert main(["train", "local.yaml", "--laps", "1", "--quiet"]) == 0
    assert seen == [(4, 4 * 10**9)]
    assert "clusters" in capsys.readouterr().out


def test_tls_yaml_names_the_files_that_its_comments_do():
    spec = read_job(CONFIGS / "tls.yaml").client
    assert spec.scheduler.startswith("tls://")
    words = next(words for words in shell_commands(README) if words[0] == "bnp-dask")
    options = {words[i].removeprefix("--tls-"): words[i + 1] for i in range(len(words)) if words[i].startswith("--tls")}
    files = {"ca-file": spec.tls_ca_file, "cert": spec.tls_cert, "key": spec.tls_key}
    assert {name: Path(path).name for name, path in files.items()} == options


# -- dask-jobqueue ------------------------------------------------------------------------------------------------
JOBQUEUE = yaml.safe_load((CONFIGS / "slurm_jobqueue.yaml").read_text())["jobqueue"]["slurm"]


def seconds(walltime):
    hours, minutes, rest = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + rest


def test_workers_of_a_queue_leave_before_their_time_is_up():
    given = check_worker([*JOBQUEUE["worker-extra-args"], "--nthreads", "1"])
    latest = parse_timedelta(given["lifetime"]) + parse_timedelta(given["lifetime_stagger"])
    assert 0 < latest <= seconds(JOBQUEUE["walltime"]) - 180
    assert JOBQUEUE["cores"] == JOBQUEUE["processes"]
    assert parse_bytes(JOBQUEUE["memory"]) / JOBQUEUE["processes"] > 10**9


def test_the_job_that_dask_jobqueue_makes_of_it_starts_workers_that_understand_it():
    pytest.importorskip("dask_jobqueue")
    from dask_jobqueue.slurm import SLURMJob

    config = yaml.safe_load((CONFIGS / "slurm_jobqueue.yaml").read_text())
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in config["jobqueue"]["slurm"].items()}):
        script = SLURMJob(scheduler="tcp://127.0.0.1:8786", name="worker").job_script()
    assert "#SBATCH -t 04:00:00" in script
    assert "export MALLOC_TRIM_THRESHOLD_" in script
    words = shlex.split(next(line for line in script.splitlines() if "dask_worker" in line))
    given = check_worker(words[words.index("distributed.cli.dask_worker") + 1 :])
    assert (given["nthreads"], given["n_workers"]) == (1, "16")
    assert parse_timedelta(given["death_timeout"]) == 120


STAND_IN = """
from distributed import LocalCluster

class SLURMCluster(LocalCluster):
    def __init__(self):
        super().__init__(n_workers=0, threads_per_worker=1, processes=False, dashboard_address=":0")

    def adapt(self, minimum_jobs, maximum_jobs):
        assert (minimum_jobs, maximum_jobs) == (1, 2)
        self.scale(1)
"""


@pytest.mark.long
def test_slurm_jobqueue_py_runs_a_job_and_goes_on_with_it(folder):
    (folder / "dask_jobqueue.py").write_text(STAND_IN)
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{CONFIGS.parent}"}
    for _ in range(2):
        command = [sys.executable, "-W", "error", str(CONFIGS / "slurm_jobqueue.py"), "run.yaml", "--jobs", "2"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "TrainResult" in done.stdout
    assert (folder / "run" / "posterior.zarr").exists()


# -- Slurm --------------------------------------------------------------------------------------------------------
PROGRAMS = {
    "bnp-dask": f'exec {sys.executable} -m bnp_dask "$@"',
    "dask": f'exec {sys.executable} -m dask "$@"',
    "python": f'exec {sys.executable} "$@"',
    "srun": 'exec "$@"',
}
QUICK = {
    # no cluster: what the script decides does not depend on it
    "bnp-dask": f'exec {sys.executable} -m bnp_dask "${{@:1:$#-2}}"',
    "dask": 'while [ "$1" != --scheduler-file ]; do shift; done; echo "{}" > "$2"; exec sleep 100',
    "srun": "exit 0",
    "python": "exit 0",
}


def slurm(folder, job="run.yaml", programs=PROGRAMS, **more):
    """Start ``slurm.sh`` as Slurm would, with stand-ins for its programs."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, line in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CONFIGS.parent),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "17",
    }
    command = ["bash", str(CONFIGS / "slurm.sh"), job]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def test_the_slurm_script_is_shell():
    done = subprocess.run(["bash", "-n", str(CONFIGS / "slurm.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_slurm_sh_begins_a_run_goes_on_with_it_and_notices_another_job_file(folder):
    def submit():
        process = slurm(folder, programs=QUICK)
        _, err = process.communicate(timeout=100)
        return process.returncode, err

    assert submit()[0] == 0
    assert read_job("runs/run/job.yaml").schedule.laps == 2
    schedule = {**JOB["schedule"], "laps": 4}
    (folder / "run.yaml").write_text(yaml.safe_dump({**JOB, "schedule": schedule}))
    assert submit()[0] == 0
    assert read_job("runs/run/job.yaml").schedule.laps == 4
    model = {"allocation": {"type": "DPMixture", "gamma": 3.0}, "observation": "DiagGaussian"}
    (folder / "run.yaml").write_text(yaml.safe_dump({**JOB, "model": model}))
    code, err = submit()
    assert code == 2
    assert "settings differ (model.allocation.gamma: the run has 2.0, this call 3.0)" in err
    assert not list(folder.glob("scheduler-*.json"))


@pytest.mark.long
def test_slurm_sh_on_a_cluster_stops_cleanly_before_its_time_is_up(folder):
    schedule = {**JOB["schedule"], "laps": 100_000}
    (folder / "run.yaml").write_text(yaml.safe_dump({**JOB, "schedule": schedule}))
    process = slurm(folder, start_new_session=True)
    try:
        for line in process.stderr:
            if line.startswith("lap 3"):
                break
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
    finally:
        until(lambda: _ended(process.pid), "the processes to end")
    assert process.returncode == 143, err
    assert "go on with: bnp-dask resume runs/run" in err
    assert RunStore.view("runs/run").load().state["lap"] >= 3


def _ended(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


# -- Kubernetes ---------------------------------------------------------------------------------------------------
MANIFEST = yaml.safe_load((CONFIGS / "kubernetes.yaml").read_text())
CLUSTER = MANIFEST["spec"]["cluster"]["spec"]


def test_the_coordinator_runs_beside_the_scheduler():
    assert MANIFEST["kind"] == "DaskJob"
    terms = MANIFEST["spec"]["job"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["labelSelector"]["matchLabels"]["dask.org/component"] == "scheduler"


def test_containers_run_commands_that_exist_within_their_memory():
    (worker,), (scheduler,) = CLUSTER["worker"]["spec"]["containers"], CLUSTER["scheduler"]["spec"]["containers"]
    (coordinator,) = MANIFEST["spec"]["job"]["spec"]["containers"]
    for container in (worker, scheduler, coordinator):
        check_command([*container.get("command", []), *container["args"]])
        asked, limit = (container["resources"].get(kind, {}).get("memory") for kind in ("requests", "limits"))
        assert limit is None or parse_bytes(asked + "B") <= parse_bytes(limit + "B")
    given = check_worker(worker["args"][2:])
    assert parse_bytes(given["memory_limit"]) < parse_bytes(worker["resources"]["limits"]["memory"] + "B")
    malloc = dict(re.findall(r"(MALLOC_\w+_)=(\d+)", README))
    assert malloc.items() <= {e["name"]: e["value"] for e in worker["env"]}.items()


def test_the_coordinator_goes_on_with_a_run():
    """A restarted pod runs the command again: that must not be an error."""
    (coordinator,) = MANIFEST["spec"]["job"]["spec"]["containers"]
    args = build_parser().parse_args(coordinator["args"])
    assert args.resume
    assert args.scheduler == "$(DASK_SCHEDULER_ADDRESS)"
    mounts = [m["mountPath"] for m in coordinator["volumeMounts"]]
    assert [any(path.startswith(m + "/") for m in mounts) for path in (args.job, args.store)] == [True, True]


@pytest.mark.long
def test_the_manifest_is_what_the_operator_takes():
    jsonschema = pytest.importorskip("jsonschema")
    package = importlib.util.find_spec("dask_kubernetes")
    if package is None or not package.submodule_search_locations:
        pytest.skip("dask-kubernetes, which has the operator's schema, is not installed")
    crds = Path(package.submodule_search_locations[0]) / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.safe_load((crds / "daskjob.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate({"spec": MANIFEST["spec"]}, _strict(schema))


def _strict(schema):
    """As the cluster takes it: names that the schema does not know are refused, and numbers may stand for text."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: _strict(part) for name, part in schema.items() if name != "format"}
    free = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and schema.get("type") == "object" and not free:
        made.setdefault("additionalProperties", False)
    return made
