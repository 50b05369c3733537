"""Schedules on data in memory: guarantees that do not depend on who runs the tasks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture, FiniteMixture
from bnp_dask.errors import SettingError
from bnp_dask.inference import FullBatch, Memoized, Stochastic, state_from_saved, state_to_arrays, state_to_json
from bnp_dask.model import Model
from bnp_dask.observation.diag_gaussian import DiagGaussian
from tests.batches import Batches
from tests.pairwise import in_pairs
from tests.schedules.parts import InPlace, rows_of, split, start, work_on


def blobs(n=600, d=3, k=4, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=spread, size=(k, d))
    return means[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def random_resp(source: Batches, k: int, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(k), size=b.n_atoms) for b in source.batches]


def run(schedule, n_batches=7, k=6, model=None, x=None):
    source = split(blobs() if x is None else x, n_batches)
    work = work_on(model or Model(DPMixture(2.0), DiagGaussian()), source)
    state = start(work, random_resp(source, k))
    return work, state, rows_of(work, schedule, state)


def total_elbo(work, state):
    """Objective from scratch: every batch assigned anew is not what the state holds, so sum what was remembered."""
    value = state.total.value()
    return sum(work.model.elbo(work.model.global_step(value), value).values())


@pytest.mark.parametrize(*in_pairs(estimate=["posterior", "map"], top=[None, 2], window=[1, 2, 3, 7, 50]))
def test_memoized_objective_never_falls(window, top, estimate):
    model = Model(DPMixture(2.0, top=top), DiagGaussian(), estimate)
    _, _, rows = run(Memoized(laps=15, window=window, tolerance=0.0), model=model)
    elbo = np.array([row["elbo"] for row in rows if row["exact"]])
    assert len(elbo) >= 14 * -(-7 // max(1, window // 2))  # groups of a lap
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo).max()


class VeryStale(InPlace):
    """Computes one batch of lap 3 with the posterior of the very start, as an endless straggler would."""

    def __init__(self, posterior):
        self.posterior, self.count = posterior, 0

    def submit(self, name, function, posterior, *args):
        if name.startswith("local_step-lap2-batch3"):
            self.count += 1
            posterior = self.posterior if self.count == 1 else posterior
        return super().submit(name, function, posterior, *args)


def test_a_stale_batch_that_lowers_the_objective_is_computed_again():
    source = split(blobs(), 7)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source)
    state = start(work, random_resp(source, 6))
    work = replace(work, executor=VeryStale(state.posterior))
    rows = rows_of(work, Memoized(laps=4, window=3, tolerance=0.0), state)
    assert [row["batch"] for row in rows if row["action"] == "recomputed"] == [3]
    elbo = np.array([row["elbo"] for row in rows if row["exact"]])
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo).max()


def test_full_batch_objective_never_falls_and_converges():
    _, state, rows = run(FullBatch(laps=200))
    elbo = np.array([row["elbo"] for row in rows])
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo).max()
    assert state.finished == "converged"


def test_full_batch_equals_memoized_with_one_batch():
    _, a, full = run(FullBatch(laps=8, tolerance=0.0), n_batches=1)
    _, b, memo = run(Memoized(laps=8, tolerance=0.0), n_batches=1)
    assert [r["elbo"] for r in full] == pytest.approx([r["elbo"] for r in memo], rel=1e-13)
    for name, value in a.total.value().values.items():
        np.testing.assert_allclose(value, b.total.value()[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n_batches", [1, 2, 5, 60])
def test_split_into_batches_does_not_change_full_batch(n_batches):
    resp = np.concatenate(random_resp(split(blobs(), 1), 4))
    source = split(blobs(), n_batches)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source)
    cuts = np.cumsum([b.n_atoms for b in source.batches])[:-1]
    state = start(work, np.split(resp, cuts))
    mine = rows_of(work, FullBatch(laps=5, tolerance=0.0), state)
    whole = split(blobs(), 1)
    work1 = work_on(Model(DPMixture(2.0), DiagGaussian()), whole)
    state1 = start(work1, [resp])
    theirs = rows_of(work1, FullBatch(laps=5, tolerance=0.0), state1)
    assert [r["elbo"] for r in mine] == pytest.approx([r["elbo"] for r in theirs], rel=1e-12)
    assert len(mine) == 5


def test_total_is_the_sum_of_what_was_remembered():
    work, state, _ = run(Memoized(laps=40, window=3, tolerance=0.0))
    fresh = work.model.empty_summary(state.posterior.ids)
    for b in range(work.source.n_batches):
        arrays, _ = work.memo.get_summary(b, int(state.visits[b]))
        fresh = fresh + type(fresh).from_arrays(work.model.fields, arrays)
    for name, value in state.total.value().values.items():
        np.testing.assert_allclose(value, fresh[name], rtol=1e-12, atol=1e-12)


@pytest.mark.first_case
@pytest.mark.parametrize("schedule", [Memoized(6, window=3), Stochastic(6, window=3), FullBatch(6, window=3)])
@pytest.mark.parametrize("stop", [1, 5, 9, 17])
def test_saved_and_restored_anywhere_goes_on_to_the_same_bits(schedule, stop):
    _, undisturbed, rows = run(schedule)
    source = split(blobs(), 7)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source)
    state = start(work, random_resp(source, 6))
    first = []
    for count, step in enumerate(schedule.run(work, state), 1):
        if step.row is not None:
            first.append(step.row)
        if count == stop:
            state.in_flight = list(step.in_flight)
            saved = (
                json.loads(json.dumps(state_to_json(state))),
                {k: np.array(v) for k, v in state_to_arrays(state).items()},
            )
            break
    again = state_from_saved(work.model, *saved)
    rest = rows_of(work, schedule, again)
    assert first + rest == rows
    for name, value in undisturbed.total.value().values.items():
        assert np.array_equal(value, again.total.value()[name])


def test_stops_at_the_limit_of_laps_and_says_so():
    _, state, rows = run(Memoized(laps=2, tolerance=0.0, count_tolerance=0.0))
    assert state.finished == "laps"
    assert rows[-1]["lap"] == 2


def test_delay_keeps_the_first_posterior():
    source = split(blobs(), 7)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source)
    state = start(work, random_resp(source, 6))
    initial = state.posterior
    for step in Memoized(laps=1, delay=0.5).run(work, state):
        if state.position in (1, 2, 3) and not step.lap_end:
            assert state.posterior is initial
    assert state.posterior is not initial


def test_finite_mixture_em_is_the_same_engine():
    model = Model(FiniteMixture(1.0, top=1), DiagGaussian(), "map")
    _, state, rows = run(FullBatch(laps=50), model=model)
    assert state.finished == "converged"
    assert state.total.value()["H"] == pytest.approx(0.0, abs=1e-12)
    assert rows[-1]["n_clusters"] == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Memoized(laps=0), "laps=0"),
        (lambda: Memoized(window=0), "window=0"),
        (lambda: Memoized(order="random"), "shuffled"),
        (lambda: Memoized(delay=2.0), "delay=2.0"),
        (lambda: Stochastic(decay=0.3), "decay=0.3"),
        (lambda: Stochastic(delay=-1.0), "delay=-1.0"),
        (lambda: FullBatch(tolerance=float("nan")), "tolerance=nan"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()
