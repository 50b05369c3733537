"""The first look at new batches: their content, and their score under the posterior in force, in one reading.

A predictive density of every atom would take as long as a visit of the batch, so a sample of each batch is scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bnp_dask.analysis.score import score_of
from bnp_dask.analysis.topics.completion import Completion, complete_batch
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import Survey
from bnp_dask.data.base import Reader, Source
from bnp_dask.data.view import CountedSource
from bnp_dask.errors import DataError
from bnp_dask.execute.base import Executor
from bnp_dask.inference.bad_batches import survey_checked
from bnp_dask.model import Posterior
from bnp_dask.store.manifest import ROW
from bnp_dask.structure.answers.documents import as_documents
from bnp_dask.training.growing.incoming.holding import HoldingSource, Room
from bnp_dask.training.growing.incoming.words import n_words, widens
from bnp_dask.training.survey_pass import PER_BATCH, each_batch

ATOMS = 1024
"""Atoms of a batch that are scored at least: the standard error of their mean is 1/32 of the spread of atoms."""

GROUPS = 256
"""Documents, groups or sequences of a batch that are scored at least."""

SHARE = 1 / 32
"""Share of a batch that is scored at least: of Gaussians in 16 dimensions it takes 3 % of the time of a visit."""


@dataclass(frozen=True, eq=False)
class Look:
    """Look at a batch before it is folded.

    Parameters
    ----------
    survey
        Survey of the batch.
    value, weight
        Log predictive of its atoms (of documents: held-out tokens) under the posterior in force, nats, and the number
        of these; both from a sample, scaled by atoms of the batch per scored atom.
    """

    survey: Survey
    value: float
    weight: float


def look(posterior: Posterior, reader: Reader) -> Look:
    """Task: read a batch, check it, survey it, score it."""
    batch = reader()
    survey = survey_checked(posterior.model, batch, for_priors=False)
    model = posterior.model
    score = _completion if model.structure.has_shares else score_of
    some, times = scored_part(as_documents(model, batch), survey.checksums[0])
    value, weight = score(posterior, some)
    return Look(survey, times * value, times * weight)


def scored_part(batch: Batch, checksum: int) -> tuple[Batch, float]:
    """The part of a batch that is scored, drawn by its checksum, and the number of atoms that each of it stands for.

    Documents, groups and sequences stay whole.  Small batches are scored whole.
    """
    in_groups = batch.is_sparse or batch.groups is not None
    whole, least = (batch.n_groups, GROUPS) if in_groups else (batch.n_atoms, ATOMS)
    size = max(least, math.ceil(SHARE * whole))
    if whole <= size:
        return batch, 1.0
    chosen = np.sort(np.random.default_rng(checksum).choice(whole, size, replace=False))
    return (batch.take_groups(chosen) if in_groups else batch.take(chosen)), whole / size


def _completion(posterior: Posterior, batch: Batch) -> tuple[float, float]:
    found = complete_batch(posterior, batch, Completion())
    used = found.tokens * found.times > 0
    value = math.fsum(found.value[used] * found.times[used])
    return value, math.fsum(found.tokens[used] * found.times[used])


@dataclass(frozen=True, eq=False)
class Looked:
    """A piece of data after the look at it.

    Parameters
    ----------
    rows
        Its batches, ``(n,)`` of :data:`~bnp_dask.store.manifest.ROW`, their source not yet numbered.
    scores
        Log predictive of each and its number of atoms or tokens, ``(n, 2)``.
    source
        Its batches, of which this process may hold some.
    times
        Newest time of each, ``(n,)`` seconds; NaN if unknown.
    """

    rows: np.ndarray
    scores: np.ndarray
    source: HoldingSource
    times: np.ndarray


def _all_or_none(source: HoldingSource, looks: Iterator[Look]) -> Iterator[Look]:
    """Looks at batches of a source; if one of them fails, no batch is held."""
    try:
        yield from looks
    except BaseException:
        source.drop()
        raise


def look_at(posterior: Posterior, whole: Source, first: Survey, executor: Executor, room: Room) -> Looked:
    """Look at all batches of a piece; DataError if they are unlike the run's ``first`` data, or cannot be read."""
    source = HoldingSource(CountedSource(whole, posterior.model.structure.counted), room)
    needed = n_words(posterior) if widens(posterior.model) else first.n_features
    if source.n_features != needed or source.is_sparse != first.is_sparse:
        kinds = {True: "words of sparse counts", False: "columns of dense rows"}
        raise DataError(
            f"{source.name}: has {source.n_features} {kinds[source.is_sparse]}, and the run {needed} "
            f"{kinds[first.is_sparse]}; nothing was taken"
        )
    shared = executor.share("posterior", posterior.light())
    rows, scores = np.zeros(source.n_batches, ROW), np.zeros((source.n_batches, 2))
    for index, found in enumerate(_all_or_none(source, each_batch(look, shared, source, executor, 0))):
        survey = found.survey
        if (survey.n_groups > 0) != (first.n_groups > 0) and survey.n_atoms:
            raise DataError(f"{source.name}: either its rows or the run's are in groups, not both; nothing was taken")
        rows["index"][index], rows["groups"][index] = index, survey.n_groups
        for name, column in PER_BATCH.items():
            rows[column][index] = getattr(survey, name)[0]
        scores[index] = found.value, found.weight
    return Looked(rows, scores, source, np.full(len(rows), np.nan))
