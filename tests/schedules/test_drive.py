"""The one loop behind all schedules: a schedule of one's own is three functions, and a change is made or undone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.summary import RunningTotal
from bnp_dask.errors import DataError, NumericalError
from bnp_dask.inference import FullBatch, State
from bnp_dask.inference.batch_memo import Keeps
from bnp_dask.inference.drive import Flight, drive
from bnp_dask.inference.local_steps import LocalSteps
from bnp_dask.inference.visit import Request, visit
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian
from tests.schedules.parts import rows_of, split, start, work_on
from tests.schedules.test_schedules import blobs, random_resp

LAPS = 4


@dataclass(frozen=True)
class CoordinateAscent:
    """All batches, then one global step."""

    laps: int = LAPS
    window: int = 4

    def groups(self, work, state):
        state.partial = RunningTotal(work.model.empty_summary(state.posterior.ids))
        order = np.arange(work.source.n_batches)
        visits = LocalSteps(work, state, len(order), keeps=Keeps.STATES)
        return Flight(work, state, order, self.window, size=2, visits=visits)

    def fold(self, work, state, group):
        state.partial.join(group.change.delta)
        return {}

    def end_lap(self, work, state, told):
        state.total, state.partial = state.partial, None
        state.settle()
        state.finished = "laps" if state.lap + 1 == self.laps else None
        return {"action": "folded"}


def begun():
    source = split(blobs(), 7)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source)
    return work, start(work, random_resp(source, 6))


def test_a_schedule_of_ones_own_is_three_functions():
    steps = list(drive(CoordinateAscent(), *begun()))
    assert [(step.state.step, step.lap_end) for step in steps][-1] == (LAPS, True)
    assert [step.lap_end for step in steps] == [False, False, False, True] * LAPS
    elbo = [step.row["elbo"] for step in steps if step.row is not None]
    work, state = begun()
    full = rows_of(work, FullBatch(laps=LAPS, window=4, tolerance=0.0), state)
    assert elbo == [row["elbo"] for row in full]
    assert state.lap == LAPS and state.position == 0


def test_a_step_tells_of_groups_in_flight_with_an_older_posterior_only():
    """What the state itself tells is not saved twice."""
    for step in drive(CoordinateAscent(laps=1), *begun()):
        assert not step.in_flight


def everything(state: State) -> list[np.ndarray]:
    arrays = [*state.total.high.to_arrays().values(), *state.total.low.to_arrays().values()]
    return [*arrays, *state.posterior.summary.to_arrays().values(), np.array(list(state.terms.values()))]


@pytest.mark.parametrize("instead", [False, True])
@pytest.mark.parametrize("what", ["falls", "is not finite"])
def test_an_attempt_that_does_not_pay_leaves_every_bit(what, instead):
    work, state = begun()
    for _ in drive(CoordinateAscent(), work, state):
        pass
    before = [array.copy() for array in everything(state)]
    bad = state.total.value()
    values = {name: value * (np.nan if what == "is not finite" else 0.3) for name, value in bad.values.items()}
    bad = RunningTotal(replace(bad, values={**values, "N": values["N"] * 9.0}))
    gone = [state.total.value().scale(0.5)] if instead else []
    if what == "falls":
        assert not state.attempt(bad, instead_of=gone)
    else:
        with pytest.raises(NumericalError):
            state.attempt(bad, instead_of=gone)
    assert all(np.array_equal(old, new) for old, new in zip(before, everything(state), strict=True))


def test_an_attempt_that_pays_is_made():
    work, state = begun()
    for _ in drive(CoordinateAscent(laps=1), work, state):
        pass
    nothing = RunningTotal(state.total.high.zeros())
    before = state.elbo
    assert state.attempt(nothing) and state.elbo == before


def test_a_visit_says_why_a_batch_is_left_out_and_raises_what_is_not_the_batchs():
    work, _ = begun()
    batch = work.source.batches[0]
    bad = replace(batch, x=np.full_like(batch.x, np.nan))

    def fails(found):
        raise ZeroDivisionError("of our own")

    lost = Request(0, "array batch 0", lambda: bad, empty=lambda: batch.rows(0, 0))
    assert "nan" in visit(work.model, lost, fails, lambda why: why)
    with pytest.raises(ZeroDivisionError):
        visit(work.model, replace(lost, reader=lambda: batch), fails, lambda why: why)
    with pytest.raises(ZeroDivisionError):
        visit(work.model, replace(lost, empty=None), fails, lambda why: why)
    with pytest.raises(DataError, match="the data changed"):
        visit(work.model, replace(lost, reader=lambda: batch, checksum=1), len, lambda why: why)
