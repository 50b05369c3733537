"""Context of an initialisation, and reading of atoms through the executor."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnp_dask.allocation import mixture_tiles
from bnp_dask.core import Batch, Summary, Survey, batch_from_arrays, batch_to_arrays, concatenate
from bnp_dask.data import Reader, Source, batch_reader, in_words, n_together
from bnp_dask.errors import DataError
from bnp_dask.execute import Executor, Handle, Load, Task, in_turn, load_of, submitted
from bnp_dask.kernels import Resp, SparseResp, scale_rows
from bnp_dask.model import Model
from bnp_dask.store import Drafts
from bnp_dask.structure import noun_of


@dataclass(frozen=True, eq=False)
class InitContext:
    """Everything an initialisation may use.

    Parameters
    ----------
    model
        The model, with all priors set.
    source
        The data set.
    survey
        Facts from a pass over the data; ``batch_atoms`` locates each atom in its batch.
    executor
        Runs the tasks.
    rng
        The only source of randomness.
    drafts
        Store in which tasks keep the atoms that they have read, so that a run killed before training starts need not
        read them again; None to keep none.
    """

    model: Model
    source: Source
    survey: Survey
    executor: Executor
    rng: np.random.Generator
    drafts: Drafts | None = None


class Initialization(Protocol):
    """Initialization of training."""

    def start(self, context: InitContext) -> Summary:
        """Statistics from which ``Model.global_step`` gives the first posterior."""
        ...


@runtime_checkable
class LearnedStart(Protocol):
    """Initialization that says whether its clusters were learned with a better prior than the run's.

    If so, the run learns its prior from them before the first lap.
    """

    @property
    def learns_prior(self) -> bool:
        """Whether they were."""
        ...


def require_enough_atoms(n_clusters: int, context: InitContext, called: str) -> None:
    """Raise DataError if there are fewer atoms than clusters."""
    found, noun = context.survey.n_atoms, noun_of(context.model)
    if n_clusters > found:
        raise DataError(
            f"{called}({n_clusters}): {context.source.name} has {found} {noun.atoms}, and every {noun.one} starts from "
            f"one of its own; ask for at most {noun.count(found)}"
        )


def starts_from_words(context: InitContext) -> bool:
    """Whether atoms are word tokens, and rows of the data their documents."""
    return context.source.is_sparse and context.model.structure.takes_words(context.model)


# -- randomness ---------------------------------------------------------------------------------------------
def child_rng(root: int, *key: int) -> np.random.Generator:
    """Random numbers that depend on ``root`` and the key (round, batch, ...) alone, not on the order of calls."""
    return np.random.default_rng(np.random.SeedSequence(root, spawn_key=key))


def new_root(rng: np.random.Generator) -> int:
    """Entropy for :func:`child_rng`."""
    return int(rng.integers(2**63))


# -- reading atoms ------------------------------------------------------------------------------------------
def read_checked(reader: Reader, model: Model, expected: int) -> Batch:
    """Task part: a batch, checked by the model and against the survey's number of atoms."""
    batch = reader()
    if batch.n_atoms != expected:
        raise DataError(
            f"{batch.name}: {batch.n_atoms} atoms, but {expected} when it was surveyed; the data must not change "
            "during a run"
        )
    model.check(batch)
    return batch


def take_atoms(reader: Reader, model: Model, expected: int, positions: np.ndarray) -> Batch:
    """Task, or part of one: the atoms of one batch at the given positions, ``(m,)``."""
    return read_checked(reader, model, expected).take(positions)


def locate(survey: Survey, index: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Batch and positions in it of global atom numbers ``(m,)``, ascending; only batches concerned."""
    ends = np.cumsum(survey.batch_atoms)
    index = np.sort(index)
    batch = np.searchsorted(ends, index, side="right")
    for b in np.unique(batch):
        yield int(b), index[batch == b] - (int(ends[b]) - survey.batch_atoms[b])


@dataclass(frozen=True, eq=False)
class Wanted:
    """Atoms of one batch that a task is to read: reader, checksum and number of atoms of the batch, and positions,
    ``(m,)``."""

    reader: Reader
    checksum: int
    expected: int
    positions: np.ndarray

    @property
    def first_load(self) -> Load[Batch] | None:
        """Reader of the batch, if it can be called ahead of the task; else None."""
        return load_of(self.reader)


def take_wanted(model: Model, drafts: Drafts | None, *wanted: Wanted) -> Batch:
    """Task: the wanted atoms of some batches, in their order; atoms read before are not read again."""
    if drafts is None:
        return _take_wanted(model, wanted)
    key = _key_of(wanted)
    kept = drafts.get(key)
    if kept is not None:
        return batch_from_arrays(kept, "sample")
    found = _take_wanted(model, wanted)
    drafts.put(key, batch_to_arrays(found))
    return found


def _key_of(wanted: Sequence[Wanted]) -> str:
    """Key of the wanted atoms: content of their batches, and positions there."""
    digest = hashlib.sha256()
    for one in wanted:
        digest.update(f"{one.checksum} {one.expected} {len(one.positions)};".encode())
        digest.update(np.ascontiguousarray(one.positions, np.int64).tobytes())
    return digest.hexdigest()[:32]


def _take_wanted(model: Model, wanted: Sequence[Wanted]) -> Batch:
    with in_turn([w.reader for w in wanted]):
        parts = [take_atoms(w.reader, model, w.expected, w.positions) for w in wanted]
    return parts[0] if len(parts) == 1 else concatenate(parts)


def submit_atoms(context: InitContext, model: Handle, index: np.ndarray) -> list[Handle]:
    """Submit tasks for the atoms ``index``, one for each batch that holds some, or for several small batches; results
    are atoms in the order of the data."""
    survey, source = context.survey, context.source
    found = [
        (b, Wanted(batch_reader(source, b), survey.checksums[b], survey.batch_atoms[b], at))
        for b, at in locate(survey, index)
    ]
    size = n_together(survey.n_batches, survey.nbytes, context.executor.n_workers)
    rounds = [found[i : i + size] for i in range(0, len(found), size)]
    tasks: list[Task] = [
        (
            f"init-atoms-{in_words([b for b, _ in some])}",
            take_wanted,
            (model, context.drafts, *(wanted for _, wanted in some)),
        )
        for some in rounds
    ]
    return submitted(context.executor, tasks)


def choose_atoms(context: InitContext, size: int) -> np.ndarray:
    """Distinct global atom numbers ``(size,)``, uniform over the data set, ascending."""
    return np.sort(context.rng.choice(context.survey.n_atoms, size, replace=False, shuffle=False))


def gather(parts: tuple[Batch, ...]) -> Batch:
    """Sampled atoms as one batch, without atoms of weight zero, which belong to no cluster."""
    sample = concatenate(list(parts))
    if sample.weights is None:
        return sample
    if not (sample.weights > 0).any():
        raise DataError("all sampled atoms have weight zero; give larger weights, or sample more atoms")
    return sample if (sample.weights > 0).all() else sample.take(np.flatnonzero(sample.weights > 0))


def each_batch(context: InitContext, submit: Callable[[int], Handle]) -> Iterator[Any]:
    """Results of one task per batch that holds atoms, in batch order, with a few tasks in flight at once.

    ``submit`` is called as late as possible.  Tasks are pure, so the number in flight changes no result.
    """
    ahead = 2 * context.executor.n_workers + 2
    pending: deque[Handle] = deque()
    for b, atoms in enumerate(context.survey.batch_atoms):
        if atoms == 0:
            continue
        if len(pending) == ahead:
            yield context.executor.result(pending.popleft())
        pending.append(submit(b))
    while pending:
        yield context.executor.result(pending.popleft())


def atom_tiles(model: Model, batch: Batch, n_clusters: int) -> Iterator[Batch]:
    """Pieces of a batch small enough for an (n, K) matrix; an initialisation assigns rows one by one.

    Groups of the batch stay whole: the meaning of a row may depend on the row before.
    """
    if batch.groups is None:
        return mixture_tiles(batch, n_clusters)  # rows of their own, or documents, or drawn from groups or sequences
    return model.allocation.tiles(batch, n_clusters)


# -- summaries of assigned atoms ----------------------------------------------------------------------------
def hard_resp(labels: np.ndarray, n_clusters: int) -> SparseResp:
    """Each atom in the cluster at position ``labels``, ``(n,)``."""
    return SparseResp(labels.astype(np.int64)[:, None], np.ones((len(labels), 1)), n_clusters)


def summarize_assigned(model: Model, batch: Batch, resp: np.ndarray, n_clusters: int) -> Summary:
    """Statistics of atoms with given labels ``(n,)`` or responsibilities ``(n, K)``, times weights; ids 0..K-1."""
    ids = np.arange(n_clusters, dtype=np.int64)
    total = model.empty_summary(ids)
    start = 0
    for tile in atom_tiles(model, batch, n_clusters):
        rows = resp[start : start + tile.n_atoms]
        start += tile.n_atoms
        part: Resp = hard_resp(rows, n_clusters) if rows.ndim == 1 else np.ascontiguousarray(rows, np.float64)
        total = total + model.summarize(ids, tile, scale_rows(part, tile.weights))
    return total
