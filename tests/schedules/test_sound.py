"""Each way in which a state can fail to fit its batches is told apart before it is published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.core.summary import RunningTotal
from bnp_dask.errors import StoreError
from bnp_dask.inference import Memoized
from bnp_dask.inference.sound import TOLERANCE, require_sound
from bnp_dask.inference.state import Loss, Sample, recall
from tests.schedules.parts import rows_of
from tests.schedules.test_rows import B, N, begun

EACH = N / B


@pytest.fixture
def known():
    """A state of which every batch was visited, and the survey of its batches."""
    work, state = begun()
    rows_of(work, Memoized(2, window=2), state)
    return state, work.survey


def told(state, survey, **more):
    with pytest.raises(StoreError, match=r"^this version is not published: (.*)\. The statistics") as error:
        require_sound(state, survey, "this version", **more)
    return str(error.value)


def changed(state, name, place, number, settles=False):
    value = state.total.value()
    array = value[name].copy()
    array[place] = number
    state.total = RunningTotal(replace(value, values={**value.values, name: array}))
    if settles:
        state.settle()


def test_a_state_as_the_engine_leaves_it_is_sound(known):
    require_sound(*known, "this version")


@pytest.mark.parametrize(
    ("name", "place", "number", "says"),
    [
        ("N", 1, np.nan, "its statistic 'N' of cluster 1 is nan, and has to be a number"),
        ("N", 2, -0.1, "its statistic 'N' of cluster 2 is -0.1, and has to be a count"),
        ("x", (3, 0), np.inf, "its statistic 'x' of cluster 3 is inf, and has to be a number"),
    ],
)
def test_numbers_that_cannot_be_are_named(known, name, place, number, says):
    state, survey = known
    changed(state, name, place, number)
    assert says in told(state, survey)


def test_a_sum_may_be_below_zero(known):
    state, survey = known
    changed(state, "x", (0, 0), -1e3, settles=True)
    require_sound(state, survey, "this version")


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_mass_is_that_of_the_batches(known, sign):
    state, survey = known
    count = state.total.value()["N"][0]
    changed(state, "N", 0, count + sign * 0.5 * TOLERANCE * N, settles=True)
    require_sound(state, survey, "this version")
    changed(state, "N", 0, count + sign * 2.0 * TOLERANCE * N, settles=True)
    assert f"the weights of its {B} batches come to {N}" in told(state, survey)
    if sign < 0.0:
        require_sound(state, survey, "this version", loses=True)  # atoms may have left with clusters that faded
    else:
        told(state, survey, loses=True)


def test_the_mass_is_weighted_without_lost_batches_and_with_what_belongs_to_none(known):
    state, survey = known
    require_sound(state, survey, "this version")
    state.lost = {2: Loss("torn", 1, 1)}
    assert f"the weights of its {B - 1} batches come to {N - EACH:.10g}" in told(state, survey)
    require_sound(state, survey, "this version", besides=EACH)
    state.weights = np.full(B, 0.5)
    assert f"come to {0.5 * (N - EACH):.10g}" in told(state, survey)
    require_sound(state, survey, "this version", besides=N - 0.5 * (N - EACH))


@pytest.mark.parametrize("what", ["other clusters", "none"])
def test_a_posterior_of_other_clusters_is_told(known, what):
    state, survey = known
    summary = state.posterior.summary
    state.posterior = replace(state.posterior, summary=summary.take([0, 1]) if what == "other clusters" else None)
    assert "its posterior and its total are of different clusters" in told(state, survey)


def test_a_posterior_that_does_not_follow_from_the_total_is_told(known):
    state, survey = known
    right = state.posterior
    x = right.summary["x"].copy()
    x[1, 2] += 1e-3
    state.posterior = replace(right, summary=replace(right.summary, values={**right.summary.values, "x": x}))
    assert "the statistic 'x' of its posterior is not the one that its total gives" in told(state, survey)
    for part in ("allocation", "observation"):
        params = getattr(right, part)
        name = next(name for name, value in vars(params).items() if isinstance(value, np.ndarray) and value.size > 1)
        state.posterior = replace(right, **{part: replace(params, **{name: getattr(params, name) * (1.0 + 1e-4)})})
        assert f"the {part} '{name}' of its posterior is not" in told(state, survey)


def test_the_mass_of_a_sample_is_that_of_its_batches():
    work, state = begun()
    rows_of(work, Memoized(1, window=2), state)
    survey, total = work.survey, RunningTotal(state.total.high.zeros())
    for batch in (0, 1):
        total.add(recall(work, state, batch))
    state.total, state.visits[2:] = total, -1
    state.settle()
    state.sample = Sample((2, B), 6)
    require_sound(state, survey, "this version")
    state.sample = Sample((2, B), 6, stage=1)
    assert f"its total is {2 * EACH:.10g}, and the weights of its {B} batches come to {N}" in told(state, survey)
