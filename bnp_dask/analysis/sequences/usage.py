"""One pass over sequences: their most likely states, their durations, and some example sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import WINDOW, open_for, require_chains, require_posterior, runner_for
from bnp_dask.analysis.sequences.labels import Durations, RunCounter, RunCounts
from bnp_dask.analysis.sequences.states import Namer, namer_of, names_of, state_ids
from bnp_dask.data import GroupedSource, Reader, batch_reader
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.inputs import whole_number
from bnp_dask.model import Posterior

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class ShownSequence:
    """An example sequence: its id, the step at which it starts, and the states of its first steps, ``(n,)``."""

    id: Any
    begin: int
    states: np.ndarray
    n_steps: int


@dataclass(frozen=True, eq=False)
class SequenceSurvey:
    """Use of the states by sequences, from a pass over them.

    Parameters
    ----------
    n_sequences, n_steps
        Sequences with at least one step (blocks of a sequence that was cut counted each), and their steps.
    n_cuts
        Number of cuts in sequences: transitions that are not counted.
    durations
        Durations of the posterior's states.
    shown
        The first sequences.
    """

    n_sequences: int
    n_steps: int
    n_cuts: int
    durations: Durations
    shown: tuple[ShownSequence, ...]


def survey_sequences(
    posterior: Posterior,
    data: Any,
    *,
    show: int = 6,
    steps: int = 2000,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> SequenceSurvey:
    """Survey the most likely states of sequences, in one pass; labels are not kept.

    Parameters
    ----------
    posterior
        Posterior of a hidden Markov model.
    data
        Sequences, as for :func:`bnp_dask.predict`.
    show, steps
        Number of sequences to keep, and largest number of steps of each.
    batch_size, client
        As in :func:`bnp_dask.predict`.
    """
    require_chains(require_posterior(posterior).model, "a survey of sequences")
    whole_number("show", show)
    whole_number("steps", steps, 1)
    source = open_for(posterior, data, batch_size)
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        # every batch has a sequence with steps, so the first ones hold all that will be shown
        tasks = (
            (
                f"sequences-batch{i}",
                _look,
                (shared, batch_reader(source, i), namer_of(source, i), i, show if i < show else 0, steps),
            )
            for i in range(source.n_batches)
        )
        parts = list(in_order(runner, tasks, WINDOW))
    runs = reduce(RunCounts.__add__, [p.runs for p in parts])
    shown = [s for p in parts for s in p.shown][:show]
    return SequenceSurvey(
        sum(p.n_sequences for p in parts),
        sum(p.n_steps for p in parts),
        source.n_cuts if isinstance(source, GroupedSource) else 0,
        Durations.of(runs, posterior.ids),
        tuple(shown),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    n_sequences: int
    n_steps: int
    runs: RunCounts
    shown: tuple[ShownSequence, ...]


def _look(posterior: Posterior, reader: Reader, namer: Namer | None, index: int, show: int, steps: int) -> _Part:
    """Task: runs of states in one batch, and its first sequences."""
    batch = reader()
    states = state_ids(posterior, batch)
    offsets = batch.group_offsets
    with_steps = np.flatnonzero(np.diff(offsets) > 0)
    starts = np.zeros(batch.n_atoms, np.bool_)
    starts[offsets[with_steps]] = True
    counter = RunCounter()
    counter.add(states, starts)
    shown = []
    if show:
        ids, begin = names_of(batch, namer, index)
        for g in with_steps[:show]:
            first, last = int(offsets[g]), int(offsets[g + 1])
            part = np.array(states[first : min(last, first + steps)])
            shown.append(ShownSequence(ids[int(g)].as_py(), int(begin[g]), part, last - first))
    return _Part(len(with_steps), batch.n_atoms, counter.finish(), tuple(shown))
