"""``bnp-dask init``, ``train``, ``bnp-dask resume``, ``bnp-dask plan`` and ``bnp-dask schema``.

A signal stops a run without losing its results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from bnp_dask.cli.console import (
    add_client_options,
    client_spec,
    log_lines,
    open_client,
    positive_int,
    show_bar,
    table,
)
from bnp_dask.core import Location
from bnp_dask.errors import StoreError
from bnp_dask.inputs import POSTERIOR_NAME, say

if TYPE_CHECKING:
    from bnp_dask.cli.jobfile import ClientSpec, ExecutorSpec, Job
    from bnp_dask.model import Posterior
    from bnp_dask.training import RunInfo


BEGUN = "after the run had begun"
"""Note on errors of a run that can be resumed."""

SHOWN_SKIPPED = 5
SHOWN_CLUSTERS = 10
TOPIC_WORDS = 8


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this file."""
    train = commands.add_parser(
        "train",
        help="train a model as a job file (YAML) says",
        description="Train a model as a job file says; examples/run.yaml shows its sections. "
        "With --resume a batch script can be run again and again: it begins a run, or goes on with it, and a job file "
        "that was changed in between is an error (laps, moves, client and checkpoint_minutes may be).",
    )
    train.add_argument("job", metavar="RUN.YAML", help="the job file")
    train.add_argument(
        "--store", metavar="DIR", help="run directory or URL of an object store, instead of the job file's"
    )
    train.add_argument("--laps", type=positive_int, metavar="N", help="limit of laps, instead of the job file's")
    train.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that is in the run directory already, if the job file is the run's",
    )
    add_client_options(train)
    train.set_defaults(run=train_command)

    resume = commands.add_parser(
        "resume",
        help="go on with a run that stopped",
        description="Go on with a run from its last checkpoint, to the same bits as if it had never stopped.",
    )
    resume.add_argument("rundir", metavar="RUNDIR", help="run directory: 'store' in the job file")
    resume.add_argument("--laps", type=positive_int, metavar="N", help="limit of laps, also more than before")
    add_client_options(resume)
    resume.set_defaults(run=resume_command)

    plan = commands.add_parser(
        "plan",
        help="estimate time, memory, messages and disk space of a job",
        description="Train on a few megabytes of a job's data for some seconds, and estimate from that the time, "
        "memory and disk space that the whole job would take on a number of workers. Nothing is "
        "written, and no worker is started.",
    )
    plan.add_argument("job", metavar="RUN.YAML", help="the job file")
    plan.add_argument("--workers", type=positive_int, metavar="N", help="workers, instead of the job file's")
    plan.add_argument("--memory", metavar="SIZE", help="memory of a worker, such as 4GB")
    plan.add_argument("--clusters", type=positive_int, metavar="K", help="clusters to plan for; default: the probe's")
    plan.add_argument("--format", choices=("text", "json"), default="text", help="a table, or all numbers as JSON")
    plan.set_defaults(run=plan_command)

    first = commands.add_parser(
        "init",
        help="write a job file for some data",
        description="Write a job file with comments, which trains as it is: topics of counts of words, states of "
        "sequences (--group-column), else clusters.",
    )
    first.add_argument("data", metavar="DATA", help="path or URL of the data")
    first.add_argument("job", metavar="RUN.YAML", nargs="?", default="run.yaml", help="file to write (run.yaml)")
    first.add_argument("--group-column", metavar="COLUMN", help="column of ids of sequences")
    first.add_argument("--order-column", metavar="COLUMN", help="rises within each sequence")
    first.set_defaults(run=init_command)

    schema = commands.add_parser(
        "schema",
        help="print the JSON schema of job files",
        description="Print the JSON schema of job files, with which editors complete and check them: bnp-dask schema > "
        'job.schema.json, and "# yaml-language-server: $schema=job.schema.json" as first line of a job file.',
    )
    schema.set_defaults(run=schema_command)


def plan_command(args: argparse.Namespace) -> None:
    """Print the time and memory that a job would take."""
    from bnp_dask.cli.jobfile import read_job

    found = read_job(args.job).plan(workers=args.workers, memory=args.memory, n_clusters=args.clusters)
    say(json.dumps(found.to_json(), indent=1) if args.format == "json" else str(found))


def init_command(args: argparse.Namespace) -> None:
    """Write a job file."""
    from bnp_dask.cli.jobfile import first_job
    from bnp_dask.inputs import local_path

    text = first_job(args.data, args.group_column, args.order_column, str(local_path(args.job).parent))
    try:
        with open(local_path(args.job), "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise StoreError(f"{args.job} exists already; choose another name: bnp-dask init DATA NAME.yaml") from error
    say(f"wrote {args.job}", args.quiet)
    say(f"next: bnp-dask train {shlex.quote(args.job)}", args.quiet)


def schema_command(args: argparse.Namespace) -> None:
    """Print the schema."""
    from bnp_dask.cli.jobfile import schema_text

    say(schema_text().rstrip())


def train_command(args: argparse.Namespace) -> None:
    """Train as a job file says."""
    from bnp_dask.cli.jobfile import read_job, with_laps, with_store
    from bnp_dask.store import JOB_NAME, RunStore, read_note

    job = read_job(args.job)
    if args.laps is not None:
        job = with_laps(job, args.laps)
    if args.store is not None:
        job = with_store(job, args.store)
    args.rundir = store = job.store
    if store is None:
        say("no 'store' is given: nothing will be kept of this run, and it cannot be resumed", args.quiet)
    begun = store is not None and RunStore.has_begun(store)
    if store is not None and begun and not args.resume and read_note(store, JOB_NAME) is not None:
        raise StoreError(
            f"{store} holds a run already: go on with 'bnp-dask resume {_shown(store)}', or choose another "
            "directory with --store"
        )
    # a run that was begun in Python, without a job file, may be the same run
    go(job, client_spec(args, job.client), resume=begun, quiet=args.quiet)


def resume_command(args: argparse.Namespace) -> None:
    """Resume a run."""
    from bnp_dask.cli.jobfile import job_of_run, with_laps, with_store
    from bnp_dask.store import JOB_NAME, RunStore

    if not RunStore.exists(args.rundir):
        raise StoreError(
            f"{args.rundir} holds no run, or one of which nothing was saved yet; begin with: bnp-dask train RUN.YAML"
            f"{Location.of(args.rundir).nearest()}"
        )
    kept = job_of_run(args.rundir)
    if kept is None:
        raise StoreError(
            f"{args.rundir} has no {JOB_NAME}: it is not the run directory of 'bnp-dask train'. A run started in "
            "Python is resumed there, with train(..., resume=True)"
        )
    job = with_store(kept, args.rundir)
    if args.laps is not None:
        job = with_laps(job, args.laps)
    go(job, client_spec(args, job.client), resume=True, quiet=args.quiet)


def go(job: Job, where: ClientSpec | ExecutorSpec, resume: bool, quiet: bool) -> None:
    """Run a job and print its results."""
    from bnp_dask.store import run_folder
    from bnp_dask.training import Callback, Progress

    stop = StopWhenAsked()
    callbacks: list[Callback] = [stop]
    if show_bar(quiet):
        callbacks.append(Progress())
    with open_client(where, quiet) as client, log_lines(quiet), stop.listening(), _resumable(stop):
        result = job.train(client, resume, callbacks)
    if stop.asked is not None and result.reason.startswith(named(stop.asked)):
        kept = "is not kept: the job file names no 'store'" if job.store is None else f"is saved in {_shown(job.store)}"
        raise stop.asked(f"{stop.saved} {kept}")
    posterior, last = result.posterior, result.history[-1]
    say(f"{result.reason}: lap {last['lap']}, {result.seconds:.1f} s, objective {last['elbo']:.10g} nats")
    if result.skipped:
        say(f"batches skipped: {len(result.skipped)}")
        for why in result.skipped[:SHOWN_SKIPPED]:
            say(f"  {why}")
        if len(result.skipped) > SHOWN_SKIPPED:
            say(f"  ... and {len(result.skipped) - SHOWN_SKIPPED} more")
    say(result_table(posterior))
    if job.store is not None:
        say(f"posterior: {run_folder(job.store) / POSTERIOR_NAME}")
        say(f"next: bnp-dask inspect {_shown(job.store)}; bnp-dask report {_shown(job.store)} report.html")


def result_table(posterior: Posterior) -> str:
    """The largest clusters: topics with their words, others with their share."""
    from bnp_dask.analysis import topic_list
    from bnp_dask.structure import count_of, counts_words

    if not counts_words(posterior.model):
        return weights_table(posterior)
    lines = topic_list(posterior, TOPIC_WORDS)
    more = f"\n... and {len(lines) - SHOWN_CLUSTERS} more" if len(lines) > SHOWN_CLUSTERS else ""
    left = f"\n{lines.rest}" if lines.rest else ""
    return f"{count_of(posterior)}\n{lines[:SHOWN_CLUSTERS]}{more}{left}"


def weights_table(posterior: Posterior, limit: int = SHOWN_CLUSTERS) -> str:
    """The largest clusters and their share."""
    from bnp_dask.structure import count_of, noun_of

    weights = posterior.weights
    order = weights.argsort(kind="stable")[::-1]
    rows = [(str(int(posterior.ids[k])), float(weights[k])) for k in order[:limit]]
    more = f"\n... and {len(order) - limit} more" if len(order) > limit else ""
    return f"{count_of(posterior)}\n" + table((noun_of(posterior.model).one, "weight"), rows) + more


@contextlib.contextmanager
def _resumable(stop: StopWhenAsked) -> Iterator[None]:
    """Add a note to errors of a run that had begun, so that the command that resumes it is shown beside them."""
    try:
        yield
    except Exception as error:
        if stop.begun:
            error.add_note(BEGUN)
        raise


def how_to_resume(args: argparse.Namespace) -> str:
    """Command that resumes a stopped training command, or state of a run whose update was stopped."""
    from bnp_dask.errors import StoreError
    from bnp_dask.store import JOB_NAME, is_run, note_in, run_folder

    if args.command in ("update", "follow", "replace"):
        return f"; {args.rundir} is as its last whole update left it: run the same command again to go on"
    rundir = getattr(args, "rundir", None) if args.command in ("train", "resume") else None
    if rundir is None:
        return ""
    try:
        folder = run_folder(rundir)
        is_saved = is_run(folder) and note_in(folder, JOB_NAME) is not None
    except StoreError:  # a store that does not answer now, which resume asks again
        is_saved = True
    if not is_saved:
        return "; nothing was saved yet"
    return f"; go on with: bnp-dask resume {_shown(rundir)}"


def _shown(path: str) -> str:
    """A path or URL as it is typed in a shell, relative if that is shorter."""
    if "://" in path:
        return shlex.quote(path)
    full = Path(path).absolute()
    near = full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full
    return shlex.quote(str(near))


TIMERS = os.name == "posix"
"""Whether the system has timed signals; without them only a second signal ends a run at once."""

STDERR = 2
"""File descriptor for messages of a signal handler."""

GRACE_SECONDS = 60.0
"""Longest time that a run takes, once asked to stop, for the batches in flight and its checkpoint."""


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that all open resources are closed."""


def named(stop: type[KeyboardInterrupt]) -> str:
    """The word for a signal."""
    return "terminated" if issubclass(stop, Terminated) else "interrupted"


@dataclass
class StopWhenAsked:
    """Callback and signal handler: Ctrl-C or SIGTERM ends a run after the current batch, with a checkpoint.

    A second signal ends it at once; the first does so while there is nothing to save, or after ``grace`` seconds.
    """

    grace: float = GRACE_SECONDS
    asked: type[KeyboardInterrupt] | None = None
    begun: bool = False
    _running: bool = False
    _n_batches: int = 0
    _lap: int = 0
    _done: int = 0

    @property
    def saved(self) -> str:
        """Laps and batches that the last checkpoint has."""
        laps = f"lap {self._lap}" if self._lap else ""
        part = f"{self._done} of {self._n_batches} batches of lap {self._lap + 1}" if self._done else ""
        return " and ".join(filter(None, (laps, part))) or "the start"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside the block, if they can be caught (the main thread)."""
        try:
            before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            yield
            return
        if TIMERS:
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._too_late)
        try:
            yield
        finally:
            if TIMERS:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        stop = Terminated if signum == signal.SIGTERM else KeyboardInterrupt
        if self.asked is not None or not self._running:
            raise stop
        self.asked = stop
        if TIMERS:
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        how = "" if stop is Terminated else "; Ctrl-C again stops at once"
        # print() is not reentrant, and the program may be inside one
        with contextlib.suppress(OSError):
            os.write(STDERR, f"\nbnp-dask: stopping after the batches in flight{how}\n".encode())

    def _too_late(self, signum: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise self.asked

    def on_start(self, info: RunInfo) -> None:
        """From here on there is something to save."""
        self._running = self.begun = True
        self._n_batches, self._lap, self._done = info.n_batches, info.first_lap, info.first_batch

    def on_batch(self, done: int) -> bool | str | None:
        """Stop when asked."""
        self._done = done
        return None if self.asked is None else f"{named(self.asked)} by a signal"

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | str | None:
        """Note the lap."""
        self._lap, self._done = row["lap"], 0
        return None

    def on_end(self, reason: str) -> None:
        """Everything is saved."""
        self._running = False
