"""The kernels of a run are compiled before it waits for them.

Kernels are compiled when they are first called, and kept on disk; a process that starts later only loads them, which
still takes a tenth of a second or so for each model.  So every kernel that visits of a model need is called once on
next to nothing.  For the first run of its kind on a machine, a process beside the survey of the data compiles them: it
makes a short run of the model on a few atoms of a batch.

Marks beside the compiled kernels name the kinds of run for which all kernels exist.  A mark is a hint.  If one is
missing, kernels are compiled, or only looked for, once more; if a mark exists and kernels do not, they are compiled on
first use.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.core import REGISTRY, Batch, Columns, from_spec, to_spec
from bnp_dask.data import Reader, Source, columns_of
from bnp_dask.errors import StoreError
from bnp_dask.inference import Schedule
from bnp_dask.kernels import (
    Forms,
    Patience,
    Screen,
    cache_folder,
    compiler_stamp,
    moment_sums,
    n_kept,
    pair_entropy,
    resp_from_screened,
    scale_rows,
    screened_weights,
    top_resp_from_screened,
    weights_by_home,
)
from bnp_dask.kernels import columns_of as resp_columns_of
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.store import pack, unpack
from bnp_dask.structure import MANY as LEAST_FOR_HOMES
from bnp_dask.structure import worthwhile
from bnp_dask.training.callbacks import logger, tell_of_compiling

P = ParamSpec("P")
T = TypeVar("T")

SURVEY_SECONDS = 3.0
"""Seconds after which a survey is long: a process that compiles beside it needs one or two to begin.

The toy of sequences of ``benchmarks/cold.py``, whose survey is shorter, chose it alone: with the process its
first run took 48 seconds of processor time in place of 42, and it would have waited for as long as compiling takes.
"""

CHILD = "BNP_DASK_COMPILES"
"""Variable of the environment of a process that compiles for another: it starts none itself."""

CHILD_SECONDS = 300.0
"""Longest time that a run waits for it after the survey."""

WIDEST = 256
"""Dense columns up to which a process compiles beside the survey: its short run takes the cube of their number for each
cluster of full covariance, which in 600 columns is longer than compiling."""

LINE = "kernels are compiled beside the survey of the data: first run of this kind here; they are kept for the next"


@dataclass
class FirstRun:
    """A survey, and beside it a process that compiles the kernels for later steps; none if that was done before.

    The process makes a short run of the same model on a few atoms.  Its failures do not affect the run.

    Parameters
    ----------
    mark
        File that marks that all was compiled before.
    content
        Returns the short run in bytes.
    """

    mark: Path | None
    content: Callable[[], bytes]
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _timer: threading.Timer | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(model: Model, source: Source, moves: Sequence[Move], schedule: Schedule) -> FirstRun:
        """First run of a source, as the user gave it."""
        if not source.is_sparse and source.n_features > WIDEST:
            return FirstRun(None, bytes)
        kinds = [source.is_sparse, type(source).__name__, [type(move).__name__ for move in moves]]
        mark = place_of(kind_of(model, *kinds, type(schedule).__name__))

        def content() -> bytes:
            return packed(model, FewAtoms.of(source.reader(0)(), columns_of(source)), moves, schedule)

        return FirstRun(mark, content)

    def __enter__(self) -> FirstRun:
        if self.mark is not None and not is_marked(self.mark) and _may_start():
            self._timer = threading.Timer(SURVEY_SECONDS, self._start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:  # also until one that is just being started has started
            child, self._timer = self._child, None
        if child is None:
            return
        try:
            if error is None:
                with tell_of_compiling(count=n_kept), suppress(subprocess.TimeoutExpired):
                    child.wait(CHILD_SECONDS)
        finally:
            child.kill()
            child.wait()
            self._child = None

    def beside(self, survey: Callable[P, T], *args: P.args, **settings: P.kwargs) -> T:
        """The result of a survey, once the process beside it has ended too."""
        with self:
            return survey(*args, **settings)

    def done(self, result: T) -> T:
        """The result of a run of this kind, after noting that its kernels exist."""
        set_mark(self.mark)
        return result

    def _start(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            try:
                self._child = _started(self.content())
            except Exception as error:  # classes of a notebook, systems without processes
                logger.debug("no process to compile kernels: %r", error)
            else:
                logger.log(logging.INFO, LINE)


def _may_start() -> bool:
    """Whether there is a second processor, and an interpreter to start."""
    if CHILD in os.environ:
        return False
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return count > 1 and bool(sys.executable) and not getattr(sys, "frozen", False)


def _started(content: bytes) -> subprocess.Popen[bytes]:
    """A process that makes a short run, once it has received all of it."""
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), CHILD: "1"}
    command = [sys.executable, "-m", "bnp_dask.training.compiling.child"]
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=settings)
    assert child.stdin is not None
    try:
        child.stdin.write(content)
        child.stdin.close()
    except BaseException:
        child.kill()
        child.wait()
        raise
    return child


# -- a short run as data -------------------------------------------------------------------------------------------
FEW = 240
"""Atoms of the short run: enough for clusters to be born, merged and deleted."""

GROUPS = 4
"""Groups of dense atoms, cut anew."""


@dataclass(frozen=True, eq=False)
class FewAtoms:
    """A few atoms of a batch as data; groups begin and end anywhere."""

    batch: Batch
    columns: Columns | None
    name = "a few atoms"
    n_batches = 1

    @staticmethod
    def of(batch: Batch, columns: Columns | None) -> FewAtoms:
        """The first atoms of a batch."""
        n = min(FEW, batch.n_atoms)
        weights = None if batch.weights is None else batch.weights[:n]
        groups = None if batch.groups is None else np.linspace(0, n, GROUPS + 1).astype(np.int64)
        return FewAtoms(replace(batch, x=batch.x[:n], weights=weights, groups=groups), columns)

    @property
    def n_features(self) -> int:
        return self.batch.n_features

    @property
    def n_atoms(self) -> int:
        return self.batch.n_atoms

    @property
    def is_sparse(self) -> bool:
        return self.batch.is_sparse

    def reader(self, index: int) -> Reader:
        return self._read

    def describe(self) -> dict[str, Any]:
        return {"kind": "a few atoms", "n": self.n_atoms}

    def _read(self) -> Batch:
        return self.batch


PARTS = ("x", "weights", "groups", "name", "names")
"""Fields of a batch that the short run needs."""


def packed(model: Model, data: FewAtoms, moves: Sequence[Move], schedule: Schedule) -> bytes:
    """A short run as data; StoreError for parts whose classes are not registered."""
    atoms = {name: getattr(data.batch, name) for name in PARTS}
    run = {"model": model, "atoms": atoms, "columns": data.columns, "moves": list(moves), "schedule": schedule}
    spec, arrays = to_spec(run, REGISTRY)
    return pack(arrays, {"run": spec})


def unpacked(content: bytes) -> tuple[Model, FewAtoms, list[Move], Schedule]:
    """Inverse of :func:`packed`."""
    arrays, meta = unpack(content, Path("short run"))
    run = from_spec(meta["run"], arrays)
    return run["model"], FewAtoms(Batch(**run["atoms"]), run["columns"]), run["moves"], run["schedule"]


# -- marks ---------------------------------------------------------------------------------------------------------
def kind_of(model: Model, *facts: Any) -> str | None:
    """Kind of a run: digest of everything that decides its kernels, of package, compiler and processor.

    Numbers of the model are left out, since kernels take them as arguments.  None for models that cannot be described.
    """
    try:
        described = _without_numbers(to_spec(model)[0])
    except StoreError:
        return None
    parts = [__version__, compiler_stamp(), described, *facts]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _without_numbers(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _without_numbers(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_without_numbers(value) for value in spec]
    return type(spec).__name__ if isinstance(spec, int | float) and not isinstance(spec, bool) else spec


def place_of(kind: str | None) -> Path | None:
    """File that marks that the kernels of a kind exist; None if no cache is kept."""
    folder = cache_folder()
    return None if kind is None or folder is None else folder / "kinds" / kind


def is_marked(mark: Path | None) -> bool:
    """Whether kernels are known to exist."""
    with suppress(OSError):
        return mark is not None and mark.exists()
    return False


def set_mark(mark: Path | None) -> None:
    """Note that the kernels exist; does nothing if the note cannot be written."""
    with suppress(OSError):
        if mark is not None and not mark.exists():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


# -- every kernel once ---------------------------------------------------------------------------------------------
CALLED_ON = 4
"""Atoms, or groups of atoms, that are used."""

MANY = 128
"""Clusters that a run may reach: batches that are not screened with this many never need the screening kernels."""


def warm(posterior: Posterior, batch: Batch) -> float:
    """Call every kernel that local steps may need on a few atoms.

    Parameters
    ----------
    posterior
        Beliefs with any number of clusters.
    batch
        Some of the data: kernels for sparse counts, groups and dense rows are different ones.

    Returns
    -------
    float
        Seconds it took: nearly all for compiling or loading, and next to none when called again in this process.
    """
    start = time.perf_counter()
    model = posterior.model
    rows = batch.groups is None  # without groups, sparse counts have a document in each
    few = (
        batch.rows(0, min(CALLED_ON, batch.n_atoms))
        if rows
        else batch.take_groups(np.arange(min(CALLED_ON, batch.n_groups)))
    )
    tracked = [name for name, field in model.fields.items() if field.has_pairs]
    pairs = np.array([[posterior.ids[0], posterior.ids[-1]]] if tracked and posterior.n_clusters > 1 else [])
    if few.n_atoms:
        model.visit(posterior, few, pairs.reshape(-1, 2).astype(np.int64))
        model.global_step(posterior.model.local_step(posterior, few))
    if model.screens and _may_screen(posterior.n_clusters, batch):
        _warm_screening(posterior.n_clusters >= LEAST_FOR_HOMES)
    return time.perf_counter() - start


def warm_task(posterior: Posterior, reader: Any) -> float:
    """Task: call every kernel once on a little of a batch."""
    return warm(posterior, reader())


def _may_screen(n_clusters: int, batch: Batch) -> bool:
    """Whether clusters of batches of this size may be screened later in a run.

    Compiling that takes several CPU seconds; a run on a few hundred atoms takes one or two.
    """
    return any(worthwhile(batch.n_atoms, k, batch.n_features) for k in (n_clusters, MANY))


def _warm_screening(by_homes: bool) -> None:
    """Call all ways of screening, and the functions that use their results."""
    scale = np.tile(np.eye(2), (3, 1, 1))
    forms = Forms(np.zeros(2), np.arange(6.0).reshape(3, 2), scale, np.full(3, 4.0), np.zeros(3))
    x, weights = np.arange(20.0).reshape(10, 2), np.ones(10)
    screen, patience = Screen(forms, np.zeros(3)), Patience()
    pairs = np.array([[0, 1]])
    if by_homes:
        weights_by_home(screen, x)
    for way in (None, "coarse", "fine", "tail"):
        found = screened_weights(screen, x, patience, way=way)
        if found is None:
            continue
        few, _ = top_resp_from_screened(found, 1)
        resp, _ = resp_from_screened(found, weights)
        for given in (resp, few, resp.to_dense()):
            moment_sums(x, forms.center, scale_rows(given, weights))
            pair_entropy(given, weights, pairs)
            resp_columns_of(given, np.array([1]))
