"""Disturbed runs: each ends in the quiet run's bits, or in one line that names the command which then does.

``python -m tests.faults.disturb --runs 100 --seed 0`` needs hours, and root for networks and disks of its own
(without, these disturbances are left out).  ``--minutes 120 --length 4`` is a soak: runs of four times the laps, with
as many more disturbances, until the time is over.  A line for each run goes to stdout; folders of runs that failed are
kept and named.  Exit code 1 when any did.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bnp_dask.execute import SerialExecutor
from bnp_dask.store import holds_run, read_history
from bnp_dask.training.results import History, load
from tests.faults.disturbances import NEEDS_MOUNT, NEEDS_NETWORK, WAYS, Scene, disturbed
from tests.faults.kinds import KINDS, as_job
from tests.faults.machines import Machines, Network, remove_left_networks, start, why_no_networks
from tests.faults.parts import ROOT, bits

N_WORKERS = 3
LAPS = {"mixture": 30, "topics": 12, "chain": 12}
"""Ten seconds or so each, on two quiet cores."""

DISK_BYTES = 2**24
"""Size of the disk of a run directory."""

ERROR = "bnp-dask: error: "
NEXT = re.compile(r"; go on with: bnp-dask (resume .*)$")
NOTHING = "; nothing was saved yet"


@dataclass(frozen=True)
class Settings:
    """How runs are disturbed: seconds of pauses, seconds of a run at most, and times the laps."""

    pause: float
    limit: float
    length: int


@dataclass(frozen=True)
class Plan:
    """A kind of run, its laps, and the disturbances: each begins so many seconds after the run."""

    name: str
    n_laps: int
    when: list[tuple[float, str]]

    @classmethod
    def draw(cls, rng: random.Random, ways: Sequence[str], length: int) -> Plan:
        """One or two disturbances within the first ten seconds or so, and as often again for each further length."""
        name = rng.choice(sorted(KINDS))
        when = []
        for part in range(length):
            chosen = [rng.choice(ways)] + ([rng.choice(ways)] if rng.random() < 0.3 else [])
            when += [(12.0 * part + rng.uniform(1.0, 12.0), way) for way in chosen]
        return cls(name, LAPS[name] * length, when)

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(way for _, way in self.when)}"


@cache
def quiet(name: str, n_laps: int) -> tuple[Any, ...]:
    """Bits of the undisturbed run."""
    with tempfile.TemporaryDirectory() as folder:
        return bits(KINDS[name].train(Path(folder), n_laps, client=SerialExecutor()))


def bits_of(run: Path) -> tuple[Any, ...]:
    """The same of what a run directory holds."""
    rows = History(read_history(run))
    rest = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    summary = load(run / "posterior.zarr").summary
    assert summary is not None
    return rest, {k: v.tobytes() for k, v in summary.to_arrays().items()}


class Failed(Exception):
    """A run that ended in another way than it should."""


@contextmanager
def small_disk(folder: Path, has_mounts: bool) -> Iterator[Path]:
    """A folder on a disk of its own, where that can be made."""
    folder.mkdir()
    if not has_mounts:
        yield folder
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "bnp", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def command(words: Sequence[str], folder: Path, network: Network | None) -> subprocess.Popen:
    """``bnp-dask`` with some words, on the coordinator's machine."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "stderr").open("w") as errors, (folder / "stdout").open("a") as said:
        line = ["-m", "bnp_dask", *words, "--quiet"]
        return start(line, network, "coordinator", where=folder, stdout=said, stderr=errors, env=settings)


def ended(process: subprocess.Popen, folder: Path, limit: float) -> tuple[int, str]:
    """Exit code and what went to stderr; fails when that takes too long."""
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        raise Failed(f"did not end within {limit:g} s") from None
    return code, (folder / "stderr").read_text()


def next_words(code: int, said: str, killed: bool, folder: Path) -> list[str]:
    """Words of the command that goes on; fails when the run did not end in one line that names it."""
    if killed and code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143):
        named = NEXT.search(said.rstrip())
        saved = holds_run(folder / "disk" / "run")  # it may have had no time to say so
        return shlex.split(named[1]) if named else ["resume", "disk/run"] if saved else ["train", "job.yaml"]
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(ERROR)]
    if code != 2 or len(errors) != 1 or lines[-1] != errors[0]:
        raise Failed(f"exit code {code}, stderr:\n{said}")
    if any(line.startswith(("Traceback", "  File ")) for line in lines):
        raise Failed(f"a traceback beside the error:\n{said}")
    named = NEXT.search(errors[0])
    if named:
        return shlex.split(named[1])
    if errors[0].endswith(NOTHING):
        return ["train", "job.yaml"]
    raise Failed(f"no next command in: {errors[0]}")


def run_once(plan: Plan, rng: random.Random, settings: Settings, folder: Path) -> str:
    """One disturbed run; what happened."""
    has_network, has_mounts = not why_no_networks(), os.geteuid() == 0
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", has_mounts))
        names = ["scheduler", "coordinator", "late", *(f"worker{i}" for i in range(N_WORKERS))]
        network = stack.enter_context(Network.of(names)) if has_network else None
        machines = Machines(folder, N_WORKERS, network)
        stack.callback(machines.close)
        machines.start()
        job = as_job(plan.name, folder, plan.n_laps, Path("disk/run"))
        cluster = ["--scheduler-file", str(machines.file)]
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        began = time.monotonic()
        process = command(["train", "job.yaml", *cluster], folder, network)
        stack.callback(process.kill)
        scene = Scene(machines, disk, process, rng, settings.pause)
        with disturbed(scene, plan.when):
            code, said = ended(process, folder, settings.limit)
        seconds, how = time.monotonic() - began, f"{plan} [{' '.join(scene.notes)}]"
        if code != 0:
            words = next_words(code, said, any(way == "kill_coordinator" for _, way in plan.when), folder)
            how += f" -> code {code} after {seconds:.0f} s"
            machines.heal()
            again = command([*words, *cluster], folder, network)
            stack.callback(again.kill)
            code, said = ended(again, folder, settings.limit)
            if code != 0:
                raise Failed(f"{how}; then {' '.join(words)} ended with code {code}:\n{said}")
            how += f", {words[0]}"
        if bits_of(folder / "disk" / "run") != quiet(plan.name, plan.n_laps):
            raise Failed(f"{how}: other bits")
        return f"{how} -> quiet bits after {time.monotonic() - began:.0f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many; 0 when all ended as they should."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.disturb", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, help="begin runs for so long, in place of a number of them")
    parser.add_argument("--length", type=int, default=1, help="times the laps and the disturbances of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow")
    parser.add_argument("--pause", type=float, default=40.0, metavar="SECONDS", help="for which processes are stopped")
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS), help="disturbances; default: all that can be made")
    args = parser.parse_args(arguments)
    remove_left_networks()
    ways = args.ways or [
        way
        for way in sorted(WAYS)
        if not (way in NEEDS_NETWORK and why_no_networks()) and not (way in NEEDS_MOUNT and os.geteuid() != 0)
    ]
    settings = Settings(args.pause, args.length * (300.0 + 4.0 * args.pause), args.length)
    count: Counter[str] = Counter()
    began, seeds = time.monotonic(), itertools.count(args.seed)
    for seed in seeds if args.minutes else itertools.islice(seeds, args.runs):
        if args.minutes and time.monotonic() - began > 60.0 * args.minutes:
            break
        rng = random.Random(seed)
        plan = Plan.draw(rng, ways, settings.length)
        folder = Path(tempfile.mkdtemp(prefix=f"disturb-{seed}-"))
        try:
            how, verdict = run_once(plan, rng, settings, folder), "good"
        except Exception as error:
            how, verdict = f"{type(error).__name__}: {error}; see {folder}", "FAILED"
        count.update([verdict, plan.name, *(way for _, way in plan.when)])
        print(f"run {seed} {verdict}: {how}", flush=True)
        if verdict == "good":
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{count['good'] + count['FAILED']} runs in {(time.monotonic() - began) / 60.0:.1f} minutes: {dict(count)}")
    return int(count["FAILED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
