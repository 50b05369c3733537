"""A list of disturbances of short runs, and how each run ends.

Every run is the command line in a process of its own.  It waits after a batch, is disturbed there, and goes on.  The
outcome is "same bits", those of the quiet run, or "clear end": a code that is not zero, at most one line of error,
which names the command that goes on where the run had begun, and that command then ends in the bits of the quiet run.
Everything else is a fault.  ``python -m tests.faults.ends`` prints the outcome of each and their number by kind;
``--kinds workers client`` takes some of them.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

import bnp_dask as bnp
from bnp_dask.store import holds_run, read_history
from bnp_dask.training.compiling.first_run import CHILD
from tests.faults.disturb import ERROR, Failed, next_words
from tests.faults.kinds import DATA, as_job
from tests.faults.machines import OneProcess
from tests.faults.parts import ROOT, atoms, until

SAME, CLEAR = "same bits", "clear end"
KINDS = (
    "workers", "scheduler", "client", "streaming schedules", "update on a full disk", "two at once",
    "S3 with failing requests", "data changed", "clock jumps",
)  # fmt: skip

LAPS = 5
LIMIT = float(os.environ.get("DISTURBED_LIMIT", "120"))
"""Seconds within which a command has ended: more on a machine that others load."""

DISK_BYTES = 2**21

PROGRAM = """
import os, pathlib, sys, time
offset, clock, clock_ns = [0.0], time.time, time.time_ns
time.time = lambda: clock() + offset[0]
time.time_ns = lambda: clock_ns() + int(1e9 * offset[0])
from bnp_dask.cli import main
from bnp_dask.cli.run import StopWhenAsked
from bnp_dask.store.run import RunStore

left = int(os.environ.get("DISTURBED_AT", "0"))
COMMITS = bool(os.environ.get("DISTURBED_COMMITS"))
def pause():
    global left
    left -= 1
    if left == 0:
        pathlib.Path("mark").touch()
        deadline = time.monotonic() + 60.0
        while not pathlib.Path("go").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        offset[0] = float(os.environ.get("DISTURBED_CLOCK", "0"))

original = StopWhenAsked.on_batch
def on_batch(self, done):
    if not COMMITS:
        pause()
    return original(self, done)
StopWhenAsked.on_batch = on_batch
write = RunStore.write
def waiting_write(self, *args, **more):
    if COMMITS:
        pause()
    return write(self, *args, **more)
RunStore.write = waiting_write
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
"""``bnp-dask`` with a clock that may jump, which waits after a batch or before a commit until it is told to go on."""


class Web:
    """A server that speaks S3 and fails as it is told: ``mode`` is a function of the number of the request."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._count, self._lock = 0, threading.Lock()
        self.mode: Callable[[int], str] = lambda number: ""
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def settings(self) -> dict[str, str]:
        """Variables of a process that uses it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        with self._lock:
            self._count += 1
            mode = self.mode(self._count)
        if mode == "slow":
            time.sleep(0.3)
        elif mode == "after":  # it is done, and the answer is lost
            b"".join(self._app(environ, lambda *args: lambda data: None))
        if mode in ("503", "after"):
            start_response("503 Slow Down", [("Content-Type", "text/plain")])
            return [b"slow down"]
        if mode == "403":
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"<Error><Code>AccessDenied</Code></Error>"]
        if mode == "reset":
            environ["werkzeug.socket"].shutdown(2)
            return []
        return self._app(environ, start_response)


@dataclass
class Place:
    """A run that waits to be disturbed.

    Parameters
    ----------
    folder
        Working directory of the command, with the data where the run has its own.
    words
        The command.
    store
        Run directory or URL.
    settings
        Environment of its processes.
    cluster
        Scheduler and workers in one process, where there are some.
    web
        Server of an object store, where there is one.
    undo
        What to do before the run goes on.
    others
        Commands that ran at the same time: words, exit code, error.
    """

    folder: Path
    words: list[str]
    store: str
    settings: dict[str, str]
    process: subprocess.Popen | None = None
    cluster: OneProcess | None = None
    web: Web | None = None
    undo: list[Callable[[], Any]] = field(default_factory=list)
    others: list[tuple[list[str], int, str]] = field(default_factory=list)

    def start(self, words: Sequence[str], name: str, **more: str) -> subprocess.Popen:
        """A command; its errors go to a file of a name."""
        with (self.folder / f"{name}.err").open("w") as errors, (self.folder / "said").open("a") as said:
            return subprocess.Popen(
                [sys.executable, "program.py", *words, "--quiet"],
                cwd=self.folder,
                stdout=said,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT), CHILD: "1", **self.settings, **more},
            )

    def ended(self, process: subprocess.Popen, name: str) -> tuple[int, str]:
        """Exit code and errors."""
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {LIMIT:g} s") from None
        finally:
            process.kill()
        return code, (self.folder / f"{name}.err").read_text()

    def run(self, words: Sequence[str], name: str) -> tuple[int, str]:
        """A command from its start to its end."""
        return self.ended(self.start(words, name), name)

    def children(self) -> list[psutil.Process]:
        """Living processes of a local cluster of the command.

        Dask may write a title over their command lines; that of multiprocessing's resource tracker stays.
        """
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # one that has just ended
                if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def workers(self) -> list[psutil.Process]:
        """Its workers; raises Failed if there is none to disturb."""
        found = self.children()
        if not found:
            raise Failed("there is no worker to disturb")
        return found

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the command."""
        assert self.process is not None
        self.process.send_signal(what)


def nothing(place: Place) -> None:
    """The disturbance is that of the environment."""


# -- workers ----------------------------------------------------------------------------------------------------
def kill_worker(place: Place) -> None:
    place.workers()[0].kill()


def kill_all_workers(place: Place) -> None:
    for worker in place.workers():
        worker.kill()


def terminate_worker(place: Place) -> None:
    place.workers()[-1].terminate()


def stop_worker(place: Place) -> None:
    worker = place.workers()[0]
    worker.suspend()
    threading.Timer(2.0, worker.resume).start()


def kill_worker_twice(place: Place) -> None:
    before = {worker.pid for worker in place.workers()}
    kill_all_workers(place)
    new = until(lambda: [w for w in place.children() if w.pid not in before], "a worker to come back")
    new[0].kill()


# -- scheduler --------------------------------------------------------------------------------------------------
def kill_scheduler(place: Place) -> None:
    assert place.cluster is not None
    place.cluster.kill()
    place.undo.append(place.cluster.start)


def restart_scheduler(place: Place) -> None:
    assert place.cluster is not None
    place.cluster.port = int(place.cluster.address.rsplit(":", 1)[1])
    place.cluster.kill()
    place.cluster.start()


def stop_scheduler(place: Place) -> None:
    cluster = place.cluster
    assert cluster is not None
    cluster.signal(signal.SIGSTOP)
    threading.Timer(3.0, lambda: cluster.signal(signal.SIGCONT)).start()


def terminate_scheduler(place: Place) -> None:
    assert place.cluster is not None
    place.cluster.signal(signal.SIGTERM)
    place.undo += [place.cluster.kill, place.cluster.start]


# -- client -----------------------------------------------------------------------------------------------------
def signals(*which: signal.Signals) -> Callable[[Place], None]:
    """Send signals to the command, one after the other."""

    def act(place: Place) -> None:
        for what in which:
            place.send(what)
            time.sleep(0.05)

    return act


def stop_client(place: Place) -> None:
    place.send(signal.SIGSTOP)
    time.sleep(2.0)
    place.send(signal.SIGCONT)


# -- disks ------------------------------------------------------------------------------------------------------
def fill(left: int) -> Callable[[Place], None]:
    """Leave so many bytes of the disk of the run."""

    def act(place: Place) -> None:
        ballast = place.folder / "disk" / "ballast"
        place.undo.append(lambda: ballast.unlink(missing_ok=True))
        with ballast.open("wb", buffering=0) as file:
            room = shutil.disk_usage(place.folder / "disk").free - left
            while room > 0:
                room -= file.write(bytes(min(room, 4096)))

    return act


# -- two at once ------------------------------------------------------------------------------------------------
def meanwhile(*words: str) -> Callable[[Place], None]:
    """Another command, to its end."""

    def act(place: Place) -> None:
        own = [more(w) if w in ("more", "again") else w for w in words]
        place.others.append((own, *place.run(own, "other")))

    return act


def kill_then(*words: str) -> Callable[[Place], None]:
    """Kill the command, and at once run another one, to its end."""

    def act(place: Place) -> None:
        place.send(signal.SIGKILL)
        meanwhile(*words)(place)

    return act


# -- object stores ----------------------------------------------------------------------------------------------
def requests(mode: Callable[[int], str]) -> Callable[[Place], None]:
    """From now on requests fail so."""

    def act(place: Place) -> None:
        web = place.web
        assert web is not None
        web.mode = mode
        place.undo.append(lambda: setattr(web, "mode", lambda number: ""))

    return act


# -- data -------------------------------------------------------------------------------------------------------
def change(how: Callable[[Path], None]) -> Callable[[Place], None]:
    """Change the file of data, and put the old one back before the run goes on."""

    def act(place: Place) -> None:
        path, kept = place.folder / "atoms.npy", place.folder / "kept.npy"
        shutil.copy2(path, kept)
        place.undo.append(lambda: (path.unlink(missing_ok=True), shutil.copy2(kept, path)))
        how(path)

    return act


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def one_bit(path: Path) -> None:
    x = np.load(path)
    x[5, 0] = np.nextafter(x[5, 0], np.inf)
    np.save(path, x)


def other_rows(path: Path) -> None:
    np.save(path.with_name("new.npy"), atoms(1600, 3, 8, seed=9))
    path.with_name("new.npy").replace(path)


def longer(path: Path) -> None:
    np.save(path, np.concatenate([np.load(path), atoms(200, 3, 8, seed=9)]))


def touch(path: Path) -> None:
    os.utime(path, (4e9, 4e9))


def written_again(path: Path) -> None:
    content = path.read_bytes()
    path.with_name("new.npy").write_bytes(content)
    path.with_name("new.npy").replace(path)


@dataclass(frozen=True)
class Disturbance:
    """One entry of the list.

    Parameters
    ----------
    kind
        One of ``KINDS``.
    what
        Its name.
    act
        What is done while the command waits.
    at
        After which batch, or before which commit.
    job
        Which run.
    where
        ``"here"`` in the command's process, ``"workers"`` with two of its own, ``"cluster"`` with a scheduler.
    is_update
        The command is ``update`` with one more file, of a run that has ended.
    commits
        Wait before a commit.
    clock
        Seconds by which the clock of the command jumps.
    grown
        Updates after which the bits are compared.
    """

    kind: str
    what: str
    act: Callable[[Place], None]
    at: int = 13
    job: str = "mixture"
    where: str = "here"
    is_update: bool = False
    commits: bool = False
    clock: float = 0.0
    grown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def listed() -> list[Disturbance]:
    """All of them."""
    kill, term, interrupt, hang_up = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    d = Disturbance
    grows = {"is_update": True, "grown": ("more",)}
    return [
        d("workers", "one killed", kill_worker, where="workers"),
        d("workers", "all killed", kill_all_workers, where="workers"),
        d("workers", "killed in the survey's wake", kill_all_workers, at=1, where="workers", job="topics"),
        d("workers", "killed twice", kill_worker_twice, where="workers"),
        d("workers", "one terminated", terminate_worker, where="workers", job="chain"),
        d("workers", "one stopped two seconds", stop_worker, where="workers"),
        d("scheduler", "killed", kill_scheduler, where="cluster"),
        d("scheduler", "killed and started again", restart_scheduler, where="cluster"),
        d("scheduler", "stopped three seconds", stop_scheduler, where="cluster", job="topics"),
        d("scheduler", "terminated", terminate_scheduler, where="cluster", job="chain"),
        d("client", "killed at the first batch", signals(kill), at=1),
        d("client", "killed in a lap", signals(kill), at=21, job="topics"),
        d("client", "killed before a commit", signals(kill), at=6, commits=True),
        d("client", "terminated", signals(term), job="chain"),
        d("client", "interrupted", signals(interrupt)),
        d("client", "interrupted twice", signals(interrupt, interrupt)),
        d("client", "interrupted before a commit", signals(interrupt), at=6, commits=True),
        d("client", "hung up", signals(hang_up)),
        d("client", "stopped two seconds", stop_client),
        d("client", "killed with a cluster", signals(kill), where="cluster"),
        *(
            d("streaming schedules", f"{job}, {what}", act, at=5, job=job, where=where)
            for job in ("Stochastic", "Filter", "ExpectationPropagation", "TruncationFreeSVI")
            for what, act, where in (
                ("killed", signals(kill), "here"),
                ("terminated", signals(term), "here"),
                ("scheduler killed", kill_scheduler, "cluster"),
            )
        ),
        d("streaming schedules", "Filter, workers killed", kill_all_workers, at=3, job="Filter", where="workers"),
        *(
            d("update on a full disk", f"{left} bytes left", fill(left), at=1, commits=True, **grows)
            for left in (0, 4096, 8192, 16384, 65536)
        ),
        d("update on a full disk", "killed there", kill_full, at=1, commits=True, **grows),
        d(
            "two at once",
            "two updates with one file",
            meanwhile("update", "disk/run", "more"),
            at=1,
            commits=True,
            **grows,
        ),
        d(
            "two at once",
            "two updates with two files",
            meanwhile("update", "disk/run", "again"),
            at=1,
            commits=True,
            is_update=True,
            grown=("more", "again"),
        ),
        d("two at once", "a resume during an update", meanwhile("resume", "disk/run"), at=1, commits=True, **grows),
        d("two at once", "a resume during training", meanwhile("resume", "disk/run")),
        d("two at once", "a reader during an update", meanwhile("inspect", "disk/run"), at=1, commits=True, **grows),
        d(
            "two at once",
            "an update after one that was killed",
            kill_then("update", "disk/run", "more"),
            at=1,
            commits=True,
            **grows,
        ),
        *(
            d("S3 with failing requests", what, requests(mode), job="s3")
            for what, mode in {
                "one of five refused": lambda n: "503" if n % 5 == 0 else "",
                "one of seven done, and the answer lost": lambda n: "after" if n % 7 == 0 else "",
                "one of six reset": lambda n: "reset" if n % 6 == 0 else "",
                "one of four slow": lambda n: "slow" if n % 4 == 0 else "",
                "all refused": lambda n: "503",
                "all forbidden": lambda n: "403",
            }.items()
        ),
        d("S3 with failing requests", "killed", signals(kill), job="s3"),
        *(
            d("data changed", how.__name__.replace("_", " "), change(how))
            for how in (cut, one_bit, other_rows, longer, touch, written_again, Path.unlink)
        ),
        d("clock jumps", "a day ahead", nothing, clock=86400.0),
        d("clock jumps", "ten years back", nothing, clock=-3.2e8, job="topics"),
        d("clock jumps", "an hour ahead, with workers", nothing, clock=3600.0, where="workers"),
        d("clock jumps", "a day back, with a scheduler", nothing, clock=-86400.0, where="cluster"),
        d("clock jumps", "a day back, on S3", nothing, clock=-86400.0, job="s3"),
        d("clock jumps", "a day back in an update", nothing, clock=-86400.0, at=1, commits=True, **grows),
    ]


def kill_full(place: Place) -> None:
    """The disk is full, and the command is killed soon after it has gone on."""
    fill(4096)(place)
    threading.Timer(0.05, lambda: place.send(signal.SIGKILL)).start()


STREAMING: dict[str, dict[str, Any]] = {
    "Stochastic": {"type": "Stochastic", "laps": 3},
    "Filter": {"type": "Filter"},
    # by default all batches of these data are one window, so that there would be one moment in each lap
    "ExpectationPropagation": {"type": "ExpectationPropagation", "laps": 2, "window": 2, "count_tolerance": 0.0},
    "TruncationFreeSVI": {"type": "TruncationFreeSVI", "laps": 2, "burn_in": 1},
}


@cache
def kept() -> Path:
    """Folder of data and quiet runs, which lives as long as this process."""
    made = tempfile.TemporaryDirectory(prefix="ends-")
    KEPT.append(made)
    for number, name in enumerate(("more", "again")):
        np.save(Path(made.name) / f"{name}.npy", atoms(400, 3, 8, seed=5 + number))
    return Path(made.name)


KEPT: list[tempfile.TemporaryDirectory] = []


def more(name: str) -> str:
    """Path of a file for updates."""
    return str(kept() / f"{name}.npy")


def write_job(job: str, folder: Path, store: str) -> None:
    """The program, the data, and the job file of a run."""
    (folder / "program.py").write_text(PROGRAM)
    name = job if job in DATA else "mixture"
    made = as_job(name, folder, LAPS, Path("disk/run"))
    made |= {"store": store, "checkpoint_minutes": 1e-9}
    if job in STREAMING:
        made["schedule"] = STREAMING[job]
        made["moves"] = []
        if job != "Stochastic":
            del made["init"], made["moves"]
    (folder / "job.yaml").write_text(yaml.safe_dump(made))


@cache
def quiet(job: str, grown: tuple[str, ...]) -> tuple[Path, tuple[Any, ...]]:
    """Folder and bits of a run that nobody disturbed, and of its updates."""
    folder = kept() / "-".join([job, *grown])
    if grown:
        shutil.copytree(quiet(job, grown[:-1])[0], folder)
        words = ["update", "disk/run", more(grown[-1])]
    else:
        (folder / "disk").mkdir(parents=True)
        write_job(job, folder, "disk/run")
        words = ["train", "job.yaml"]
    code, said = Place(folder, [], "disk/run", {}).run(words, "quiet")
    assert code == 0, said
    return folder, bits_of(str(folder / "disk" / "run"))


def bits_of(store: str) -> tuple[Any, ...]:
    """History without seconds, and statistics, of what a run directory or URL holds."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in read_history(store)]
    summary = bnp.load(store).summary
    assert summary is not None
    return repr(rows), {k: v.tobytes() for k, v in summary.to_arrays().items()}


def has_disks() -> bool:
    """Whether disks of a few megabytes can be made."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def disk(folder: Path, is_small: bool) -> Iterator[None]:
    """The folder of the run directory, a disk of its own where that is asked for."""
    folder.mkdir()
    if not is_small:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "bnp", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@cache
def web() -> Web:
    """The object store of this process."""
    made = Web()
    os.environ.update(made.settings)
    import fsspec

    fsspec.filesystem("s3").mkdir("bucket")
    return made


def one_line(said: str) -> str:
    """The error, when that is one line at the end."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(ERROR)]
    if len(errors) != 1 or lines[-1] != errors[0] or "Traceback" in said:
        raise Failed(f"no single line of error:\n{said}")
    return errors[0]


def outcome(case: Disturbance, folder: Path) -> tuple[str, str]:
    """Outcome of a disturbance, and the error; raises Failed where that is neither of the two."""
    job = "mixture" if case.job == "s3" else case.job
    start, _ = quiet(job, ())
    _, wanted = quiet(job, case.grown)
    with ExitStack() as stack:
        stack.enter_context(disk(folder / "disk", case.kind == "update on a full disk"))
        store = f"s3://bucket/{folder.name}/run" if case.job == "s3" else "disk/run"
        write_job(job, folder, store)
        words = ["train", "job.yaml"]
        if case.is_update:
            shutil.copytree(start / "disk" / "run", folder / "disk" / "run")
            words = ["update", "disk/run", more("more")]
        place = Place(folder, words, store, {})
        extra: list[str] = []
        if case.job == "s3":
            place.web = web()
            place.settings = place.web.settings
        if case.where == "cluster":
            place.cluster = stack.enter_context(OneProcess(folder).running())
            extra = ["--scheduler-file", str(place.cluster.file)]
        if case.where == "workers":
            extra = ["--workers", "2"]
        settings = {"DISTURBED_AT": str(case.at), "DISTURBED_CLOCK": str(case.clock)}
        settings |= {"DISTURBED_COMMITS": "1"} if case.commits else {}
        process = place.process = place.start([*words, *extra], "first", **settings)
        stack.callback(process.kill)
        until(lambda: (folder / "mark").exists() or process.poll() is not None, "the moment", 3 * LIMIT)
        if not (folder / "mark").exists():
            raise Failed(f"ended before its moment: {place.ended(process, 'first')}")
        case.act(place)
        (folder / "go").touch()
        code, said = place.ended(process, "first")
        for undo in place.undo:
            undo()
        found, line = SAME, ""
        for other, refused, text in place.others:
            if refused:
                found, line = CLEAR, one_line(text)
                if "is being written by" not in line:
                    raise Failed(f"{other[0]} was refused otherwise: {line}")
        if code != 0:
            found = CLEAR
            on, line = way_on(case, code, said, place)
            code, text = place.run([*on, *extra], "second")
            if code != 0:
                raise Failed(f"{line}\nthen {' '.join(on)} ended with code {code}: {text}")
        for other, refused, _ in place.others:
            # a run that has grown is not resumed, also when nobody writes to it
            if refused and other[0] != "resume" and place.run(other, "other")[0]:
                raise Failed(f"{other[0]} is refused again: {(folder / 'other.err').read_text()}")
        full = store if "://" in store else str(folder / store)
        if bits_of(full) != wanted:
            raise Failed(f"other bits; {line}")
        return found, line


def way_on(case: Disturbance, code: int, said: str, place: Place) -> tuple[list[str], str]:
    """Words of the command that goes on, and the line that was said; raises Failed where that is not clear."""
    if code == -signal.SIGHUP or code == -signal.SIGKILL:
        if case.is_update:
            return place.words, ""
        full = place.store if "://" in place.store else str(place.folder / place.store)
        return ["resume", place.store] if holds_run(full) else ["train", "job.yaml"], ""
    if case.is_update:
        if code != 2:
            raise Failed(f"code {code}: {said}")
        return place.words, one_line(said)
    killed = code in (130, 143)
    words = next_words(code, said, killed, place.folder)
    return words, said.strip().splitlines()[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the list; 0 when no run ended in a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ends", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--match", default="", help="only those whose name matches")
    args = parser.parse_args(arguments)
    count: Counter[tuple[str, str]] = Counter()
    for case in listed():
        if case.kind not in args.kinds or not re.search(args.match, str(case)):
            continue
        if case.kind == "update on a full disk" and not has_disks():
            print(f"left out: {case}: needs root to make a disk")
            continue
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="ends-"))
        try:
            found, line = outcome(case, folder)
        except Exception as error:
            found, line = "FAULT", f"{type(error).__name__}: {error}; see {folder}"
        else:
            shutil.rmtree(folder, ignore_errors=True)
        count[case.kind, found] += 1
        print(f"{found}: {case} ({time.monotonic() - began:.1f} s) {line}", flush=True)
    for kind in args.kinds:
        print(f"| {kind} | {count[kind, SAME]} | {count[kind, CLEAR]} | {count[kind, 'FAULT']} |")
    return int(any(found == "FAULT" for _, found in count))


if __name__ == "__main__":
    sys.exit(main())
