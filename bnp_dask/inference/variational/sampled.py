"""Laps on growing samples of the batches (:class:`~bnp_dask.initialize.FromSample`).

A run on a sample is the run itself: its total is the sum of the batches visited so far.  When a sample grows, one lap
visits its new batches, which enter the total as in a first lap; no proposal is tracked then, since that takes a visit
of every batch in the total.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.core.survey import without
from bnp_dask.inference.state import Sample, State, Work
from bnp_dask.initialize import FromSample, Initialization


def first_sample(init: Initialization, work: Work) -> Sample | None:
    """The first sample of a run; None if it begins on all data."""
    if not isinstance(init, FromSample):
        return None
    sizes = init.sizes(work.source.n_batches)
    return Sample(sizes, init.laps) if len(sizes) > 1 else None


def on_sample(work: Work, sample: Sample | None) -> Work:
    """The facts of a run as if its data were the sample."""
    if sample is None or sample.is_whole:
        return work
    order = _order(work)
    chosen = np.sort(order[: sample.size])
    survey = without(work.survey, order[sample.size :].tolist())
    return replace(work, survey=survey, batches=chosen)


def of_lap(work: Work, state: State, order: np.ndarray) -> np.ndarray:
    """Batches that the present lap visits, in this order of all: of the sample, or of the part by which it grew."""
    sample = state.sample
    if sample is None:
        return order
    rank = np.empty(len(order), np.int64)
    rank[_order(work)] = np.arange(len(order))
    return order[(rank[order] >= _known(state)) & (rank[order] < sample.size)]


def n_of_lap(state: State) -> int:
    """Number of batches that the present lap visits, of those that are left."""
    return len(state.visits) if state.sample is None else state.sample.size - _known(state)


def adds(state: State) -> bool:
    """Whether the present lap visits batches for the first time."""
    return state.lap == (0 if state.sample is None else state.sample.begun)


def grow(state: State, is_quiet: bool) -> None:
    """Go on to the next sample, at the end of a lap after which the present one has no more to teach.

    ``is_quiet``: whether no move had anything to propose.
    """
    sample = state.sample
    if sample is None or sample.is_whole:
        return
    is_last = sample.stage == len(sample.sizes) - 2
    is_settled = state.finished == "converged" or (state.calm and is_quiet)
    is_settled = is_settled or (not is_last and state.calm_laps >= CALM)
    if is_settled or state.lap + 1 >= sample.begun + sample.laps:
        calm = min(state.calm_laps, COUNTED) if is_last else 0.0
        state.sample = replace(sample, stage=sample.stage + 1, begun=state.lap + 1, calm=calm)
        # objectives and counts of different data cannot be compared
        state.lap_elbo = state.lap_counts = None
        state.calm, state.calm_laps = False, 0.0
    state.finished = None


CALM = 2.0
"""Calm laps in a row after which a sample grows, even if moves still have something to propose; the last sample before
all data stays until the run would end.  A guess."""

COUNTED = 3.0
"""Most calm laps on the last sample that count for all data, of the five in a row that end a run: a guess."""


def _known(state: State) -> int:
    """Batches of the sample that the present lap does not visit, because it grew by the others."""
    sample = state.sample
    return sample.before if sample is not None and state.lap == sample.begun else 0


def _order(work: Work) -> np.ndarray:
    """All batches in the order in which samples take them, ``(B,)``."""
    return work.rng_of_all(0, "sample").permutation(work.source.n_batches)
