"""The first pass over the data, which every call of ``train`` makes, and what a resumed run knows of an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from bnp_dask.callbacks import logger
from bnp_dask.data.base import Reader, Source, batch_reader
from bnp_dask.data.skipping import WithoutBatches, read_or_why, reason
from bnp_dask.data.together import bytes_told, in_words, n_together
from bnp_dask.errors import DataError
from bnp_dask.execute.ahead import in_turn
from bnp_dask.execute.base import Executor
from bnp_dask.execute.ordered import in_order
from bnp_dask.model import Model
from bnp_dask.schedules.losing import survey_checked
from bnp_dask.store import RunStore
from bnp_dask.survey import Survey, combine, survey_batch

T = TypeVar("T")

SURVEY_WINDOW = 16

PER_BATCH = ("batch_atoms", "batch_bytes", "checksums", "batch_weights")
"""What a survey says of every batch."""

PREFIX = "survey/"
"""Before the names of a survey's arrays in a checkpoint."""


def survey_task(model: Model, reader: Reader) -> Survey:
    """Part of a task: read a batch, let the likelihood check it, and note what it holds."""
    return survey_checked(model, reader())


def take_survey(model: Model, source: Source, executor: Executor) -> Survey:
    """One pass over the data: sizes, moments, checksums, and every check that the likelihood makes."""
    return combine(_each_batch(survey_task, model, source, executor))


def _each_batch(survey: Callable[[Model, Reader], T], model: Model, source: Source, executor: Executor) -> Iterator[T]:
    """What ``survey`` gives for every batch, in their order."""
    n = source.n_batches
    size = n_together(n, bytes_told(source), executor.n_workers)
    rounds = (range(b, min(b + size, n)) for b in range(0, n, size))
    tasks = (
        (f"survey-{in_words(some)}", _some_batches, (survey, model, *(batch_reader(source, b) for b in some)))
        for some in rounds
    )
    return chain.from_iterable(in_order(executor, tasks, SURVEY_WINDOW, slight=True))


def _some_batches(survey: Callable[[Model, Reader], T], model: Model, *readers: Reader) -> list[T]:
    """The task: some batches, one after another."""
    with in_turn(readers):
        return [survey(model, reader) for reader in readers]


@dataclass(frozen=True)
class BadBatch:
    """A batch that a pass could not use, and why."""

    why: str


@dataclass(frozen=True, eq=False)
class Known:
    """What the run directory says of the data when a run is resumed.

    Parameters
    ----------
    skipped
        Batches that the first call could not use.
    lost
        Batches that went bad under the run.
    survey
        What the first call found.
    """

    skipped: tuple[int, ...]
    lost: tuple[int, ...]
    survey: Survey


def survey_or_fault(model: Model, reader: Reader) -> Survey | BadBatch:
    """The same for a survey that goes on past bad batches; it tries as often as an executor would."""
    batch = read_or_why(reader)
    if isinstance(batch, str):
        return BadBatch(batch)
    try:
        return survey_checked(model, batch)
    except DataError as error:
        return BadBatch(reason(error))


def survey_what_is_good(
    model: Model, source: Source, executor: Executor, known: Known | None = None
) -> tuple[Survey, Source]:
    """The survey without the batches that cannot be used, and the source without them.

    Of batches that are out of reach now but were ``known`` to an earlier call, the survey says what it said then: the
    run has their statistics, and leaves them out at their next visit unless they are back by then.
    """
    if known is not None and known.survey.n_batches != source.n_batches:
        known = None  # other data: the settings say so
    bad: list[tuple[int, str]] = []
    doubtful: list[tuple[int, int]] = []
    found: list[Survey | None] = []
    for b, part in enumerate(_each_batch(survey_or_fault, model, source, executor)):
        found.append(None if isinstance(part, BadBatch) else part)
        if isinstance(part, Survey):
            continue
        if known is None or b in known.skipped:
            bad.append((b, part.why))
            logger.warning("skipped: %s", part.why)
        else:
            doubtful.append((b, known.survey.checksums[b]))
            if b not in known.lost:
                logger.warning("out of reach, to be skipped at its next visit unless it is back: %s", part.why)
    if not bad and not doubtful and (known is None or not known.lost):
        return combine(part for part in found if part is not None), source
    good = next((part for part in found if part is not None), None)
    if good is None:
        why = bad[0][1] if bad else "all of them could be when the run began"
        raise DataError(f"{source.name}: none of its {source.n_batches} batches can be used; the first: {why}")
    is_grouped = not good.is_sparse and good.n_groups > 0
    rest = WithoutBatches(source, tuple(bad), is_grouped, tuple(doubtful)) if bad or doubtful else source
    if known is None:
        return combine(survey_batch(rest.reader(b)()) if part is None else part for b, part in enumerate(found)), rest
    return _as_it_was(known, found), rest


def _as_it_was(known: Known, found: Sequence[Survey | None]) -> Survey:
    """The survey of the first call, with what batches hold now that can be read: the same, unless the data changed."""
    values: dict[str, list[Any]] = {name: list(getattr(known.survey, name)) for name in PER_BATCH}
    for b, part in enumerate(found):
        if part is None or b in known.lost or b >= known.survey.n_batches:
            continue
        for name, held in values.items():
            held[b] = getattr(part, name)[0]
    per_batch: dict[str, Any] = {name: tuple(held) for name, held in values.items()}
    return replace(known.survey, n_atoms=sum(per_batch["batch_atoms"]), **per_batch)


def gone_since(source: Source, survey: Survey, executor: Executor) -> dict[int, str]:
    """Batches that cannot be read any more, of those that have atoms, and why."""
    alive = [b for b, n in enumerate(survey.batch_atoms) if n]
    tasks = ((f"look-batch{b}", _look, (batch_reader(source, b),)) for b in alive)
    looks = zip(alive, in_order(executor, tasks, SURVEY_WINDOW, slight=True), strict=True)
    return {b: why for b, why in looks if why}


def _look(reader: Reader) -> str:
    """The task: why a batch cannot be read; empty when it can."""
    found = read_or_why(reader)
    return found if isinstance(found, str) else ""


# -- in a checkpoint --------------------------------------------------------------------------------------------
def known_of(path: Any) -> Known | None:
    """What a run directory says of the data; None when nothing was committed, or by a version that kept no survey."""
    store = RunStore.view(path)
    checkpoint = store.load()
    if checkpoint is None or f"{PREFIX}checksums" not in checkpoint.arrays:
        return None
    lost = tuple(int(b) for b, *_ in checkpoint.state.get("lost", ()))
    return Known(tuple(store.settings["skipped"]), lost, survey_from_arrays(checkpoint.arrays))


def _kept_of_survey() -> list[str]:
    """What a checkpoint keeps of a survey: all but names, which the run's settings have."""
    return [f.name for f in fields(Survey) if f.name != "names"]


def survey_to_arrays(survey: Survey) -> dict[str, np.ndarray]:
    """A survey as named arrays."""
    return {PREFIX + name: np.array(getattr(survey, name)) for name in _kept_of_survey()}


def survey_from_arrays(arrays: Mapping[str, np.ndarray]) -> Survey:
    """Inverse of :func:`survey_to_arrays`."""
    values: dict[str, Any] = {name: np.asarray(arrays[PREFIX + name]) for name in _kept_of_survey()}
    for name, value in values.items():
        if name in PER_BATCH:
            values[name] = tuple(value.tolist())
        elif value.ndim == 0:
            values[name] = value.item()
    return Survey(**values)
