"""Whole runs of hidden Markov models: never falling, the same bits everywhere, with any likelihood, and merges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.allocation import HDPHMM, FiniteHMM
from bnp_dask.allocation.finite_hmm import StateRows
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, replay
from bnp_dask.core.summary import Merge as MergeEdit
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import FullBatch, Memoized, State, Stochastic
from bnp_dask.inference.state import recall, remember
from bnp_dask.initialize import ContiguousBlocks, InitContext
from bnp_dask.initialize.given import blocks_about
from bnp_dask.model import Model
from bnp_dask.moves import Merge
from bnp_dask.observation import AutoRegressiveGaussian, Bernoulli, DiagGaussian, Gaussian, with_previous
from bnp_dask.store.checkpoint import SummaryFiles
from bnp_dask.structure.base import Trial
from bnp_dask.testing import NO_PAIRS
from tests.batches import Batches
from tests.chains.parts import KINDS, allocation, sequences
from tests.schedules.parts import rows_of, start, work_on

SCHEDULES = {
    "memoized": Memoized(laps=8, window=2, tolerance=0.0, count_tolerance=0.0),
    "full": FullBatch(laps=8, window=2, tolerance=0.0, count_tolerance=0.0),
    "stochastic": Stochastic(laps=3, window=2, tolerance=0.0, count_tolerance=0.0),
}


def source(seed=0, **more):
    data = sequences(lengths=(60, 40, 1, 80, 30, 0, 50, 70, 20), seed=seed, **more)
    return Batches([data.take_groups(np.arange(a, a + 3)) for a in (0, 3, 6)])


def go(model, data, schedule, executor=None, moves=(), blocks=6, seed=0):
    work = replace(work_on(model, data), moves=moves)
    work = replace(work, executor=executor or SerialExecutor())
    rng = np.random.default_rng(seed)
    begin = ContiguousBlocks(blocks, 8).start(InitContext(work.model, data, work.survey, work.executor, rng))
    state = State.start(work.model, begin, data.n_batches)
    return rows_of(work, schedule, state), state


def falls(rows):
    values = [sum(row[t] for t in ("data", "entropy", "allocation")) for row in rows if row.get("exact", True)]
    steps = np.diff(values)
    return steps[steps < 0] / abs(values[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["memoized", "full"])
def test_the_objective_never_falls(name, kind):
    rows, state = go(Model(allocation(kind), DiagGaussian()), source(spread=2.0), SCHEDULES[name])
    assert (np.abs(falls(rows)) < 1e-12).all()
    value = state.total.value()
    assert value["N"].sum() == pytest.approx(351)
    assert value["start"].sum() == pytest.approx(8)
    assert value["M"].sum() == pytest.approx(351 - 8)


@pytest.mark.parametrize("name", SCHEDULES)
def test_threads_and_serial_agree(name):
    model = Model(HDPHMM(kappa=5.0), Gaussian())
    rows, state = go(model, source(), SCHEDULES[name])
    executor = ThreadExecutor(3)
    try:
        again, other = go(model, source(), SCHEDULES[name], executor)
    finally:
        executor.close()
    bits = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in again] == bits
    for key, value in state.total.value().to_arrays().items():
        assert value.tobytes() == other.total.value().to_arrays()[key].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_merges(kind):
    data = source(seed=2, spread=6.0, k=3)
    model = Model(allocation(kind), DiagGaussian())
    plain, _ = go(model, data, Memoized(laps=12, tolerance=0.0, count_tolerance=0.0), blocks=9)
    rows, state = go(model, data, Memoized(laps=12, tolerance=0.0, count_tolerance=0.0), moves=(Merge(),), blocks=9)
    assert (np.abs(falls(rows)) < 1e-12).all()
    assert state.total.value().n_clusters < 9
    assert rows[-1]["elbo"] > plain[-1]["elbo"]
    # what was decided is what a visit of all data finds, or less
    value = state.total.value()
    fresh = state.posterior
    parts = [fresh.model.local_step(fresh, b) for b in data.batches]
    again = parts[0] + parts[1] + parts[2]
    after = sum(model.with_prior(work_on(model, data).survey).elbo(fresh, again).values())
    assert after >= sum(fresh.model.elbo(fresh, value).values()) - 1e-8


def test_bits_and_autoregressions():
    rng = np.random.default_rng(0)
    data = source(k=3, spread=5.0)
    bits = Batches([replace(b, x=(b.x > 0).astype(float)) for b in data.batches])
    rows, _ = go(Model(HDPHMM(), Bernoulli(lam1=0.5, lam0=0.5)), bits, SCHEDULES["memoized"])
    assert (np.abs(falls(rows)) < 1e-12).all()
    batches = []
    for _ in range(3):
        x = np.zeros((80, 2))
        for t in range(1, 80):
            turn = np.array([[0.9, 0.4], [-0.4, 0.9]]) if t % 40 < 20 else np.diag([0.5, -0.8])
            x[t] = turn @ x[t - 1] + rng.normal(size=2) * 0.3
        rows_, offsets = with_previous(x, np.array([0, 40, 80]))
        batches.append(Batch(rows_, groups=offsets))
    rows, state = go(
        Model(HDPHMM(kappa=10.0), AutoRegressiveGaussian()), Batches(batches),
        Memoized(laps=20, tolerance=0.0, count_tolerance=0.0), moves=(Merge(),), blocks=8,
    )  # fmt: skip
    assert (np.abs(falls(rows)) < 1e-12).all()
    assert state.posterior.n_clusters < 8


def test_tiles_are_whole_sequences():
    lengths = np.random.default_rng(0).integers(0, 900, 60)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = Batch(np.arange(float(offsets[-1]))[:, None], groups=offsets)
    for k in (2, 200, 5000):
        tiles = list(HDPHMM().tiles(data, k))
        np.testing.assert_array_equal(np.concatenate([t.x for t in tiles]), data.x)
        found = np.concatenate([np.diff(t.groups) for t in tiles])
        assert found[found > 0].tolist() == lengths[lengths > 0].tolist()
    assert len(tiles) > 20
    assert list(HDPHMM().tiles(sequences(lengths=(0, 0)), 3)) == []


def test_what_data_must_be():
    data = sequences()
    with pytest.raises(
        DataError, match=r"needs to know which rows follow one another. Give Batch\(x, groups=offsets\)"
    ):
        list(HDPHMM().tiles(replace(data, groups=None), 3))
    model = Model(HDPHMM(), DiagGaussian(nu=4.0, beta=1.0, m=0.0, kappa=1.0))
    work = work_on(model, Batches([data]))
    posterior = work.model.global_step(work.model.summarize(np.arange(3), data, np.full((data.n_atoms, 3), 1 / 3)))
    uneven = replace(data, weights=np.linspace(1, 2, data.n_atoms))
    with pytest.raises(DataError, match="rows of sequence 0 have weights 1.0 and"):
        work.model.local_step(posterior, uneven)
    for setting in ({"gamma": 0.0}, {"alpha": -1.0}, {"alpha0": np.inf}, {"kappa": -0.1}, {"kappa": np.nan}):
        with pytest.raises(SettingError, match=next(iter(setting))):
            HDPHMM(**setting)
    with pytest.raises(SettingError, match="kappa"):
        FiniteHMM(kappa=-1.0)


def test_weights_repeat_sequences():
    data = sequences()
    model = work_on(Model(HDPHMM(kappa=3.0), DiagGaussian()), Batches([data])).model
    rng = np.random.default_rng(0)
    posterior = model.global_step(model.summarize(np.arange(4), data, rng.dirichlet(np.ones(4), data.n_atoms)))
    times = np.array([2, 0, 1, 3, 1])
    pairs = np.array([[0, 2]])
    weighted = replace(data, weights=np.repeat(times, np.diff(data.groups)).astype(float))
    repeated = data.take_groups(np.repeat(np.arange(5), times))
    one, other = (model.local_step(posterior, b, pairs) for b in (weighted, repeated))
    for name, value in one.values.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(one.pair_values["H"], other.pair_values["H"])


def test_point_estimates_of_a_finite_model_rise():
    data = sequences(lengths=(80, 60), k=3)
    work = work_on(Model(FiniteHMM(alpha=3.0, alpha0=3.0), DiagGaussian(), "map"), Batches([data]))
    model = work.model
    rng = np.random.default_rng(0)
    posterior = model.global_step(model.summarize(np.arange(3), data, rng.dirichlet(np.ones(3), data.n_atoms)))
    values = []
    for _ in range(10):
        summary = model.local_step(posterior, data)
        values.append(sum(model.elbo(posterior, summary).values()))
        posterior = model.global_step(summary)
        values.append(sum(model.elbo(posterior, summary).values()))
    assert (np.diff(values) > -1e-9 * abs(values[-1])).all()


def test_windows_stay_in_their_sequences():
    data = Batch(np.arange(30.0)[:, None], groups=np.array([0, 3, 3, 20, 30]))
    index, labels = blocks_about(data, np.array([1, 4, 12, 29]), 6)
    spans = [data.x[index[labels == j], 0].tolist() for j in range(4)]
    assert spans == [[0, 1, 2], [3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14], [24, 25, 26, 27, 28, 29]]
    work = work_on(Model(HDPHMM(), DiagGaussian()), source())
    context = InitContext(work.model, work.source, work.survey, SerialExecutor(), np.random.default_rng(3))
    summary = ContiguousBlocks(5, 4).start(context)
    assert summary.n_clusters == 5
    assert (summary["N"] <= 4).all() and (summary["N"] >= 1).all()
    assert not summary["M"].any()
    with pytest.raises(DataError, match="ContiguousBlocks"):
        ContiguousBlocks(1000).start(context)
    for wrong in ({"n_clusters": 0}, {"n_clusters": 2, "length": 0}):
        with pytest.raises(SettingError):
            ContiguousBlocks(**wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_states(kind):
    data = sequences()
    model = work_on(Model(allocation(kind), DiagGaussian()), Batches([data])).model
    summary = model.local_step(
        model.global_step(model.summarize(np.arange(4), data, np.full((data.n_atoms, 4), 0.25))), data, NO_PAIRS
    )
    params = model.global_step(summary).allocation
    weights = model.allocation.weights(params)
    assert (weights > 0).all() and weights.sum() <= 1 + 1e-12
    if kind == "finite":
        moves = params.theta / params.theta.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(weights @ moves, weights, atol=1e-12)
    np.testing.assert_allclose(model.allocation.log_weights(params), np.log(weights))


def test_stored_summaries_follow_changes_of_clusters(tmp_path):
    """Through files, with two trials of one lap and a merge: what is recalled is what the batch has."""
    data = sequences()
    work = work_on(Model(HDPHMM(kappa=3.0), DiagGaussian()), Batches([data]))
    rng = np.random.default_rng(1)
    state = start(work, [rng.dirichlet(np.full(5, 0.3), data.n_atoms)])
    trials = []
    for name, donor, ids in (("birth-lap1-cluster2", 2, [7, 8]), ("delete-lap1-cluster1", 1, [9])):
        resp = rng.dirichlet(np.ones(len(ids)), data.n_atoms)
        beliefs = work.model.global_step(work.model.summarize(np.array(ids), data, resp))
        trials.append(Trial(name, (donor,), beliefs))
    found = work.model.visit(state.posterior, data, np.array([[0, 3]]), trials)
    files = SummaryFiles(tmp_path)
    work = replace(work, memo=FileMemo(files))
    remember(work, state, 0, found)
    state.edits = [MergeEdit(0, 3), *[Exchange(t.name, t.donors) for t in trials]]
    summary = recall(work, state, 0).value()
    assert summary.ids.tolist() == [0, 4, 7, 8, 9]
    direct = replay(found.summary, state.edits, found.parts)
    for name, value in direct.values.items():
        np.testing.assert_array_equal(summary[name], value)
    assert summary["M"].sum() == pytest.approx(found.summary["M"].sum())
    np.testing.assert_allclose(summary["M"].sum(axis=0) + summary["start"], summary["N"])


class FileMemo:
    """Summaries in files."""

    def __init__(self, files):
        self.files = files

    def put_summary(self, batch, visit, arrays, meta=None):
        return self.files.put(batch, visit, arrays, meta)

    def get_summary(self, batch, visit, receipt):
        return self.files.get(batch, visit, receipt)


def test_transitions_at_the_mode_are_rows_of_probabilities():
    start, trans = np.array([1.0, 3.0]), np.array([[6.0, 2.0], [1.0, 3.0]])
    mode = FiniteHMM().at_mode(StateRows(start, trans, np.zeros(2), np.zeros((2, 2))))
    assert np.exp(mode.log_start) == pytest.approx([0.25, 0.75])
    assert np.exp(mode.log_trans) == pytest.approx(np.array([[0.75, 0.25], [0.25, 0.75]]))
