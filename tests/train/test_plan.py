"""``bnp.plan``: what a run would take, from a probe of some seconds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.training.planning import Costs, FewBatches, Sample, Simulation, UnitCosts, _planned, sample_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6000, 2)) + 8.0 * RNG.integers(3, size=(6000, 1))
MIXTURE = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())

COSTS = UnitCosts(
    n_clusters=50.0,
    read=1e-7,
    survey=2e-7,
    start=3.0,
    visit=1e-5,
    tasks=1.0,
    fold=0.001,
    add=0.001,
    moves=0.01,
    proposals=(),
    n_rounds=0.0,
    posterior_bytes=50_000,
    change_bytes=60_000,
    summary_bytes=40_000,
    gathered_bytes=0.0,
    asked_bytes=0.0,
    numbers=5_000,
    effort=math.inf,
    kept_bytes=4.0,
    file_bytes=400_000.0,
    run_bytes=0.0,
    keeps_states=False,
    atom_bytes=80.0,
    probe_seconds=3.0,
    compiling=0.5,
)
SAMPLE = Sample(
    source=FewBatches([Batch(np.zeros((10, 10)))], "data.zarr"),
    n_atoms=100_000_000,
    is_estimated=False,
    atom_bytes=80.0,
    read=1e-7,
    largest_bytes=8_000_000,
)


def planned(workers=0, window=64, n_batches=1000, memory=None, costs=COSTS, n_clusters=50):
    schedule = bnp.Memoized(window=window)
    return _planned(SAMPLE, costs, schedule, n_batches, SAMPLE.n_atoms // n_batches, n_clusters, workers, memory)


def test_a_plan_knows_the_data_and_prints_every_quantity(tmp_path):
    found = bnp.plan(MIXTURE, X, batch_size=500, workers=2, memory="1GB", store=tmp_path / "run")
    assert (found.n_atoms, found.n_features, found.n_batches, found.batch_atoms) == (6000, 2, 12, 500)
    assert found.lap_seconds > 0 and found.survey_seconds > 0 and found.disk_bytes > 0
    assert found.fits and not found.n_atoms_is_estimated
    assert not (tmp_path / "run").exists()
    for row in ("batches", "a lap", "messages", "a worker", "this process", "disk"):
        assert f"\n{row} " in str(found)
    assert json.loads(json.dumps(found.to_json()))["n_batches"] == 12


def test_clusters_to_plan_for_are_those_of_the_plan():
    assert bnp.plan(MIXTURE, X, n_clusters=7).n_clusters == 7
    assert bnp.plan(MIXTURE, X[:1000], n_clusters=4000).n_clusters == 4000


@pytest.mark.first_case
@pytest.mark.parametrize(
    "schedule, allocation",
    [
        (bnp.FullBatch(), bnp.DPMixture()),
        (bnp.Stochastic(), bnp.DPMixture()),
        (bnp.Filter(), bnp.NGGPMixture()),
        (bnp.ExpectationPropagation(), bnp.NGGPMixture()),
        (bnp.Gibbs(), bnp.DPMixture()),
    ],
)
def test_every_schedule_is_planned(schedule, allocation):
    model = bnp.Model(allocation, bnp.FixedVarianceGaussian())
    found = bnp.plan(model, X[:800], schedule=schedule, batch_size=200, workers=2)
    assert found.lap_seconds > 0 and found.n_clusters >= 1 and found.disk_bytes is None


@pytest.mark.long
def test_topics_keep_the_states_of_documents():
    counts = sparse.csr_array(RNG.poisson(0.3, size=(60, 30)).astype(float))
    model = bnp.Model(bnp.LDA(), bnp.Multinomial())
    found = bnp.plan(model, counts, init=bnp.RandomExamples(3), store="run", batch_size=20)
    assert found.costs.keeps_states and found.n_clusters == 3


def test_where_visits_are_all_the_work_a_lap_is_divided_among_the_workers():
    whole = COSTS.visit * SAMPLE.n_atoms
    for workers in (1, 4, 16):
        assert 0.98 * whole / workers <= planned(workers).lap_seconds <= 1.1 * whole / workers
    assert planned(0).lap_seconds == pytest.approx(whole, rel=0.02)


def test_a_window_smaller_than_the_workers_is_said_to_limit_them():
    found = planned(workers=64, window=8)
    assert found.good_window == 256 and "window=256" in str(found)
    assert planned(workers=64, window=256).good_window is None
    assert found.lap_seconds > 5 * planned(workers=64, window=256).lap_seconds


def test_a_batch_that_no_worker_can_hold_is_said_before():
    found = planned(workers=4, memory=345_000_000)
    assert not found.fits and "more memory" in str(found)
    assert 2 * found.batch_size * SAMPLE.atom_bytes < 8_000_000
    program_alone = planned(workers=4, memory=220_000_000)
    assert not program_alone.fits and program_alone.batch_size is None
    assert planned(workers=4, memory=10**9).fits


def test_atoms_gathered_for_proposals_arrive_and_are_in_checkpoints():
    some = planned(workers=4, costs=replace(COSTS, gathered_bytes=1e6, asked_bytes=3e6))
    none = planned(workers=4)
    assert some.message_bytes - none.message_bytes == pytest.approx(3e6)
    assert some.disk_bytes - none.disk_bytes == pytest.approx(2 * (3e6 - 1e6))
    enough = planned(workers=4, costs=replace(COSTS, gathered_bytes=1e6, asked_bytes=1e6, run_bytes=5e6))
    assert enough.disk_bytes - none.disk_bytes == pytest.approx(5e6)


def test_small_batches_share_a_task_as_local_steps_do():
    small = replace(COSTS, effort=1.0, visit=1e-9)
    # window 64: groups of 32; 4 workers have a task of 8 batches each
    found = _planned(replace(SAMPLE, atom_bytes=8.0), small, bnp.Memoized(window=64), 1000, 100_000, 50, 4, None)
    assert found.tasks == 4 * math.ceil(1000 / 32)
    assert planned(workers=4).tasks > 1000


def test_proposals_are_planned_by_the_workers_together():
    costs = replace(COSTS, visit=1e-9, proposals=((10.0, 2.0), (2.0, 1.0)))
    idle = replace(costs, proposals=())
    for workers, seconds in ((2, 6.0), (64, 3.0)):
        longer = planned(workers=workers, costs=costs).lap_seconds - planned(workers=workers, costs=idle).lap_seconds
        assert longer == pytest.approx(seconds)


@pytest.mark.parametrize("simulated", [100, 20])
def test_passes_of_a_sampler_follow_one_another(monkeypatch, simulated):
    """Twice as many tasks are waited for, and each batch takes the coordinator its own time."""
    monkeypatch.setattr("bnp_dask.training.planning.SIMULATED", simulated)
    one = replace(COSTS, visit=1e-9, proposals=(), moves=0.0)
    two = replace(one, tasks=2.0, moves=0.01)
    once, twice = (planned(workers=1, window=8, n_batches=100, costs=costs).lap_seconds for costs in (one, two))
    assert twice == pytest.approx(2 * once + 100 * 0.01, rel=0.01)


def test_work_too_small_for_the_workers_is_said():
    costs = replace(COSTS, visit=1e-8)
    assert planned(workers=32, costs=costs).enough_workers == 1
    assert planned(workers=4).enough_workers is None


def test_twice_the_clusters_take_twice_the_visits_and_four_times_the_moves():
    double = COSTS.at(100)
    assert double.visit == 2 * COSTS.visit and double.moves == pytest.approx(4 * COSTS.moves, rel=0.02)
    assert double.summary_bytes == 2 * COSTS.summary_bytes and COSTS.at(50) is COSTS


def test_of_many_clusters_moves_look_at_near_pairs_only():
    assert COSTS.at(20_000).moves / COSTS.at(2_000).moves == pytest.approx(10.0)


def test_each_worker_opens_a_posterior_once():
    nothing = dict.fromkeys(("spread", "add", "submit", "schedule", "share", "fold", "message", "latency", "lap"), 0.0)
    costs = Costs(visit=1.0, opening=10.0, **nothing)
    # one group of 8 batches, 4 of them on each worker
    assert Simulation(costs, n_workers=2, n_batches=8, window=16).run().seconds == pytest.approx(14.0)
    # 4 groups of 2, a posterior each, and a worker has one batch of each
    assert Simulation(costs, n_workers=2, n_batches=8, window=4).run().seconds == pytest.approx(44.0)
    written = replace(costs, opening=0.0, share=3.0)
    assert Simulation(written, n_workers=8, n_batches=8, window=16).run().seconds == pytest.approx(4.0)


def test_a_laps_limit_is_the_slowest_part():
    found = planned(workers=64, window=1000, costs=replace(COSTS, moves=1000.0))
    assert found.workers_busy < 0.5 and "coordinator limits" in str(found)


def test_a_sample_is_a_few_megabytes_of_whole_groups():
    lengths = [50] * 40
    groups = np.concatenate([[0], np.cumsum(lengths)])
    x = np.arange(2000.0)[:, None]
    sample = sample_of(FewBatches([Batch(x, None, "all", groups)], "x"), None)
    assert sum(batch.n_atoms for batch in sample.source.batches) == 2000
    assert all(set(np.diff(batch.groups)) == {50} for batch in sample.source.batches)
    many = sample_of(FewBatches([Batch(np.zeros((100_000, 100)), None, "all")], "x"), None)
    assert many.n_atoms == 100_000 and sum(b.nbytes for b in many.source.batches) <= 17 * 2**20


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"workers": 0}, "workers=0"),
        ({"memory": "much"}, "memory='much'"),
        ({"n_clusters": -1}, "n_clusters=-1"),
        ({"schedule": "Memoized"}, "schedule"),
    ],
)
def test_wrong_settings_are_named(settings, words):
    with pytest.raises(SettingError, match=words):
        bnp.plan(MIXTURE, X, **settings)
