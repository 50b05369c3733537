"""Words of topics for scores, found at the end of a run."""

from __future__ import annotations

import numpy as np

from bnp_dask.analysis.topics.collapsed import (
    MOST_PASSES,
    PASSES,
    bytes_of_passes,
    collapsed_summary,
    require_own,
)
from bnp_dask.data.skipping import CheckedSource
from bnp_dask.errors import DataError, ExecutionError
from bnp_dask.inputs.settings import whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.schedules import Schedule, State, Work
from bnp_dask.schedules.engine.bad_batches import usable
from bnp_dask.structure.answers.documents import counts_words
from bnp_dask.training.callbacks import logger
from bnp_dask.training.memory_plan import MemoryPlan


def passes_of(model: Model, schedule: Schedule, collapsed: int | None) -> int:
    """Passes of a run: those that its caller named, or as many as suit it.

    Topics of words that were trained to the maximum of an exact objective score worse from lap to lap, see
    :func:`~bnp_dask.collapsed_topics`.  Single passes over a stream do not last long enough for that, and their data
    may be gone.
    """
    if collapsed is not None and whole_number("collapsed", collapsed, 0, MOST_PASSES) > 0:
        require_own(model, "collapsed")
        return int(collapsed)
    return PASSES if collapsed is None and counts_words(model) and schedule.decides_moves else 0


def with_predictive(work: Work, state: State, passes: int, saved: Posterior | None) -> Posterior:
    """The posterior of a run that has ended, with parameters for scores where ``passes`` asks for some.

    They are those of ``saved``, the posterior that the run directory holds, if nothing has changed since.  A run is not
    lost for them: where its data cannot be read once more, or its workers have no room or are gone, there are none.
    """
    posterior = state.posterior
    if passes == 0:
        return posterior
    if saved is not None and saved.predictive is not None and _is_same(saved, posterior):
        return posterior.with_predictive(saved.predictive)
    room = MemoryPlan(work.executor.memory_limit).room - max(work.survey.batch_bytes)
    if bytes_of_passes(posterior, passes) > room:
        logger.warning("scores ask the words of training: collapsed=%d takes more memory than a worker has", passes)
        return posterior
    source = usable(work, state)
    if work.unread is not None:
        source = CheckedSource(source, work.survey.checksums, work.unread)
    try:
        summary = collapsed_summary(posterior, source, work.executor, passes)
    except (DataError, ExecutionError) as error:
        logger.warning("scores ask the words of training, for collapsed=%d did not end: %s", passes, error)
        return posterior
    return posterior.with_predictive(posterior.model.observation.global_step(summary))


def _is_same(one: Posterior, other: Posterior) -> bool:
    """Whether two posteriors of a run are of the same moment."""
    same_ids = np.array_equal(one.ids, other.ids)
    return same_ids and np.array_equal(one.observation.lam, other.observation.lam)
