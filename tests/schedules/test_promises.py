"""What schedules promise about order, window and stopping, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian
from tests.schedules.parts import InPlace, rows_of, split, start, work_on
from tests.schedules.test_schedules import blobs, random_resp

B = 12


def begun(n_batches=B, seed=0, executor=None):
    """Something to work on, and a state before the first step."""
    source = split(blobs(240), n_batches)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source, seed)
    work = work if executor is None else replace(work, executor=executor)
    return work, start(work, random_resp(source, 4))


# -- order --------------------------------------------------------------------------------------------------------
def orders(make, seed=0, laps=4):
    """Batches of each lap as they were folded, one at a time."""
    work, state = begun(seed=seed)
    rows = rows_of(work, make(laps=laps, window=1, tolerance=0.0, count_tolerance=0.0), state)
    assert [row["n_batches"] for row in rows] == [1] * (laps * B)
    return [tuple(row["batch"] for row in rows if row["lap"] == lap) for lap in range(1, laps + 1)]


@pytest.mark.parametrize("make", [Memoized, Stochastic])
def test_every_lap_has_all_batches_in_an_order_of_its_own(make):
    found = orders(make)
    assert all(sorted(order) == list(range(B)) for order in found)
    assert len({*found, tuple(range(B))}) == 5
    assert orders(make) == found
    assert set(orders(make, seed=1)).isdisjoint(found)


@pytest.mark.parametrize("make", [Memoized, Stochastic])
def test_a_fixed_order_is_that_of_the_data(make):
    assert orders(lambda **more: make(order="fixed", **more)) == [tuple(range(B))] * 4


# -- window -------------------------------------------------------------------------------------------------------
@dataclass
class Counting(InPlace):
    """Counts tasks that were sent and whose result nobody asked for yet; it has a worker for each."""

    n_workers: int = B
    sent: int = 0
    most: int = 0

    def submit(self, name, function, *args):
        self.sent += name.startswith("local_step")
        self.most = max(self.most, self.sent)
        return super().submit(name, function, *args)

    def result(self, handle):
        self.sent -= 1
        return super().result(handle)


WINDOWS = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 6), (7, 6), (8, 8), (11, 10), (12, 12), (50, 12)]


@pytest.mark.parametrize("make", [Memoized, FullBatch])
@pytest.mark.parametrize(("window", "in_flight"), WINDOWS)
def test_as_many_batches_are_in_flight_as_the_window_has_halves_for(make, window, in_flight):
    """Groups are half a window, rounded down; the last of a lap may be smaller."""
    counting = Counting()
    work, state = begun(executor=counting)
    for _ in make(laps=2, window=window, tolerance=0.0, count_tolerance=0.0).run(work, state):
        pass
    assert counting.sent == 0
    assert counting.most == in_flight


@pytest.mark.parametrize("window", [1, 2, 3, 7, 12])
def test_a_stochastic_step_is_taken_after_every_batch(window):
    counting = Counting()
    work, state = begun(executor=counting)
    rows = rows_of(work, Stochastic(laps=2, window=window, tolerance=0.0, count_tolerance=0.0), state)
    assert [row["n_batches"] for row in rows] == [1] * (2 * B)
    assert counting.most == window


@pytest.mark.parametrize("window", [2, 3, 5, 8, 30])
def test_global_steps_are_taken_after_half_a_window(window):
    work, state = begun()
    rows = rows_of(work, Memoized(laps=2, window=window, tolerance=0.0, count_tolerance=0.0), state)
    half = window // 2
    sizes = [min(half, B - at) for at in range(0, B, half)]
    assert [row["n_batches"] for row in rows] == sizes * 2


# -- stopping -----------------------------------------------------------------------------------------------------
def laps_until(make, **tolerances):
    work, state = begun()
    counts, elbo = [], []
    for step in make(laps=60, window=2, **tolerances).run(work, state):
        if step.lap_end:
            counts.append(state.total.value_of("N"))
            elbo.append(state.elbo)
    return state, np.array(counts), np.array(elbo)


@pytest.mark.first_case
@pytest.mark.parametrize("make", [Memoized, FullBatch])
@pytest.mark.parametrize(("name", "limit"), [("tolerance", 1e-4), ("tolerance", 1e-6), ("count_tolerance", 1e-3)])
def test_objective_and_counts_must_both_have_settled(make, name, limit):
    """Either alone decides where the other may do anything: in the first lap that changes it by no more."""
    weight, anything = 240.0, {"tolerance": 1e9, "count_tolerance": 1e9}
    state, counts, elbo = laps_until(make, **{**anything, name: limit})
    moved, gained = np.abs(np.diff(counts, axis=0)).max(axis=1) / weight, np.abs(np.diff(elbo)) / weight
    settled = (gained if name == "tolerance" else moved) <= limit
    assert state.finished == "converged"
    assert len(settled) > 2 and settled[-1] and not settled[:-1].any()
    state, *_ = laps_until(make, **anything)
    assert (state.finished, state.lap) == ("converged", 2)
