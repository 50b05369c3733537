"""Words of topics for scores, found at the end of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.analysis.topics.collapsed import MOST_PASSES, PASSES, bytes_of_passes, collapsed_summary, require_own
from bnp_dask.errors import DataError, ExecutionError
from bnp_dask.inference import Schedule, State, Work
from bnp_dask.inference.bad_batches import remaining
from bnp_dask.inputs.settings import whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.structure.answers.documents import counts_words
from bnp_dask.training.callbacks import logger
from bnp_dask.training.memory_plan import MemoryPlan
from bnp_dask.training.results import saved_posterior


@dataclass(frozen=True)
class ForScores:
    """Words for scores of new data, as a run finds them at its end.

    Parameters
    ----------
    passes
        Passes of :func:`~bnp_dask.collapsed_topics`; 0 for none.
    saved
        The posterior of the run directory, in which the words may have been found before; None for none.
    """

    passes: int = 0
    saved: Posterior | None = None

    @staticmethod
    def of(model: Model, schedule: Schedule, collapsed: int | None, store: str | os.PathLike[str] | None) -> ForScores:
        """Words for a call: as many passes as its caller names, or as suit it; ``store`` is a run that it resumes.

        Topics of words that were trained to the maximum of an exact objective score worse from lap to lap, see
        :func:`~bnp_dask.collapsed_topics`.  Single passes over a stream do not last long enough for that, and their
        data may be gone.

        Raises
        ------
        SettingError
            A number out of range, or passes for a model without topics of words.
        """
        if collapsed is not None:
            passes = int(whole_number("collapsed", collapsed, 0, MOST_PASSES))
            if passes > 0:
                require_own(model, "collapsed")
            return ForScores(passes)
        if not (counts_words(model) and schedule.decides_moves):
            return ForScores()
        return ForScores(PASSES, saved_posterior(store))

    def found(self, work: Work, state: State) -> Posterior:
        """The posterior of a run that has ended, with the words that scores need.

        They come from the run directory if nothing has changed since.  Missing words do not fail the run: if its data
        cannot be read once more, or its workers have no room or are gone, there are none.
        """
        posterior = state.posterior
        if self.passes == 0:
            return posterior
        if self.saved is not None and _are_same(self.saved, posterior):
            return replace(posterior, predictive=self.saved.predictive)
        return replace(posterior, predictive=self._sought(work, state))

    def _sought(self, work: Work, state: State) -> Any | None:
        """Parameters of the words; None if the passes cannot be made."""
        room = MemoryPlan(work.executor.memory_limit).room - max(work.survey.batch_bytes)
        if bytes_of_passes(state.posterior, self.passes) > room:
            logger.warning("scores ask the words of training: a worker has no room for collapsed=%d", self.passes)
            return None
        source = remaining(work, state)  # a batch that is missing from later passes alone would falsify them
        try:
            summary = collapsed_summary(state.posterior, source, work.executor, self.passes)
        except (DataError, ExecutionError) as error:
            logger.warning("scores ask the words of training: collapsed=%d did not end: %s", self.passes, error)
            return None
        return state.model.observation.global_step(summary)


def _are_same(one: Posterior, other: Posterior) -> bool:
    """Whether two posteriors of a run are of the same moment, and the first has words for scores."""
    if one.predictive is None or not np.array_equal(one.ids, other.ids):
        return False
    return np.array_equal(one.observation.lam, other.observation.lam)
