"""Whole runs of topic models: never falling, the same bits everywhere, resumed, and with any likelihood."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.allocation import HDPTopics
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Forget, InsertEmpty, RunningTotal
from bnp_dask.core.summary import Merge as MergeEdit
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.inference.batch_memo import (
    exact_from,
    pack_sparse,
    summary_from,
    total_from,
    unpack_sparse,
    visit_to_arrays,
)
from bnp_dask.inference.state import recall, recall_states, remember
from bnp_dask.initialize import BregmanKMeans, RandomExamples
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import Multinomial
from bnp_dask.structure.base import Trial
from bnp_dask.training.growing.update import update
from bnp_dask.training.train import train
from tests.batches import Batches
from tests.pairwise import in_pairs
from tests.schedules.parts import rows_of, start, work_on
from tests.stopping import AfterLaps, AfterSteps
from tests.topics.bars import bars_corpus
from tests.topics.parts import allocation, corpus, point_model, points

SCHEDULES = {
    "memoized": Memoized(laps=6, window=3, tolerance=0.0, count_tolerance=0.0),
    "full": FullBatch(laps=6, window=3, tolerance=0.0, count_tolerance=0.0),
    "stochastic": Stochastic(laps=3, window=2, tolerance=0.0, count_tolerance=0.0),
}


def go(schedule, client=None, kind="hdp", step="best", **more):
    model = Model(allocation(kind, start=step, restarts=2), Multinomial(lam=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            model, corpus(240, length=30)[0], init=RandomExamples(8), schedule=schedule, moves=[], client=client,
            batch_size=30, **more,
        )  # fmt: skip


def bits(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    return rows, {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}


def falls(rows):
    """Steps of the exact part of a history that lower the objective, as shares of it."""
    values = [sum(row[t] for t in ("data", "entropy", "allocation")) for row in rows if row.get("exact", True)]
    steps = np.diff(values)
    return steps[steps < 0] / abs(values[-1])


def first_exact(rows):
    return next(row["elbo"] for row in rows if row["exact"])


@pytest.mark.parametrize(*in_pairs(name=["memoized", "full"], step=["best", "warm"], kind=["hdp", "lda"]))
def test_the_objective_never_falls(name, kind, step):
    schedule = {
        "memoized": Memoized(laps=10, window=4, tolerance=0.0, count_tolerance=0.0),
        "full": FullBatch(laps=10, window=4, tolerance=0.0, count_tolerance=0.0),
    }[name]
    result = go(schedule, SerialExecutor(), kind, step)
    lost = falls(result.history)
    assert (np.abs(lost) < 1e-12).all()
    rows = list(result.history)
    ends = {row["lap"]: row["elbo"] for row in rows}
    last = rows[-1]["lap"]
    assert last == 10 or ends[last] == ends[last - 1]  # a lap that changes not one bit is the last
    assert last > 5
    assert rows[-1]["elbo"] > first_exact(rows)
    late = [row["action"] for row in rows if row["lap"] > 1]
    assert late.count("kept") <= 0.1 * len(late)


@pytest.mark.parametrize("name", SCHEDULES)
def test_threads_and_serial_agree(name):
    alone = bits(go(SCHEDULES[name], SerialExecutor()))
    executor = ThreadExecutor(3)
    try:
        assert bits(go(SCHEDULES[name], executor)) == alone
    finally:
        executor.close()


@pytest.mark.first_case
@pytest.mark.parametrize("name", SCHEDULES)
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path, name):
    whole = go(SCHEDULES[name], SerialExecutor())
    go(SCHEDULES[name], SerialExecutor(), store=tmp_path / "run", callbacks=[AfterLaps(2)], checkpoint_minutes=1e-9)
    rest = go(SCHEDULES[name], SerialExecutor(), store=tmp_path / "run", resume=True, checkpoint_minutes=1e-9)
    assert bits(rest) == bits(whole)


@pytest.mark.parametrize(("name", "kind"), [("memoized", "hdp"), ("full", "lda"), ("stochastic", "hdp")])
def test_groups_of_points(name, kind):
    cloud = points(60, seed=3)
    source = Batches([cloud.take_groups(np.arange(a, a + 12)) for a in range(0, 60, 12)])
    model = point_model(kind, *source.batches)
    work = work_on(model, source)
    rng = np.random.default_rng(0)
    state = start(work, [rng.dirichlet(np.full(5, 0.3), b.n_atoms) for b in source.batches])
    rows = rows_of(work, SCHEDULES[name], state)
    assert rows[-1]["atoms"] == pytest.approx(cloud.n_atoms)
    assert state.total.value()["docs"] == 60
    if name != "stochastic":
        assert (np.abs(falls(rows)) < 1e-12).all()
    assert rows[-1]["elbo"] > first_exact(rows)


def test_stored_summaries_and_states_follow_changes_of_clusters():
    counts, _ = corpus(30)
    batch = Batch(counts)
    work = work_on(Model(HDPTopics(3.0, 0.5), Multinomial(lam=0.1)), Batches([batch]))
    rng = np.random.default_rng(1)
    state = start(work, [rng.dirichlet(np.full(5, 0.3), 30)])
    resp = rng.dirichlet(np.ones(2), 30)
    beliefs = work.model.global_step(work.model.summarize(np.array([7, 8]), batch, resp))
    found = work.model.visit(state.posterior, batch, np.array([[0, 3]]), [Trial("t", (2,), beliefs)])
    remember(work, state, 0, found)
    stored, _ = work.memo.get_summary(0, 0)
    assert "value.x" in stored or "value.x.csr.data" in stored
    state.edits = [MergeEdit(0, 3), Exchange("t", (2,))]
    summary = recall(work, state, 0).value()
    assert summary.ids.tolist() == [0, 1, 4, 7, 8]
    states = recall_states(work, state, 0)
    for i, n in zip(summary.ids, summary["N"], strict=True):
        assert states.count[states.cluster == i].sum() == pytest.approx(n, rel=1e-5, abs=1e-5)
    again = work.model.visit(work.model.global_step(summary), batch, states=states).summary
    after = work.model.elbo(work.model.global_step(again), again)
    before = work.model.elbo(work.model.global_step(summary), summary)
    assert sum(after.values()) >= sum(before.values())


def test_mostly_zero_arrays_are_packed_exactly():
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(20, 50)) * (rng.random((20, 50)) < 0.1),
        "b": rng.normal(size=(3, 4)),
        "c": np.arange(5),
    }
    packed = pack_sparse(arrays)
    assert sum(a.nbytes for a in packed.values()) < 0.5 * sum(a.nbytes for a in arrays.values())
    back = unpack_sparse(packed)
    assert back.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(back[name], value)


def test_packed_words_of_the_last_visit_leave_a_total_without_a_trace():
    """They stay packed as long as no cluster changed; after changes, they are those of the whole statistics."""
    counts = sparse.csr_array(np.eye(6, 60, dtype=float) * 3.0 + np.eye(6, 60, k=7))
    batch = Batch(counts)
    model = Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_batch(batch))
    resp = np.eye(3)[np.arange(6) % 3]
    posterior = model.global_step(model.summarize(np.arange(3), batch, resp))
    found = model.visit(posterior, batch)
    rounded = found.summary.values["x"]
    rounded[np.abs(rounded) < 0.05] = 0.0
    arrays = visit_to_arrays(model, found)
    assert "value.x.csr.width" in arrays
    for edits in ((), (Forget(),), (Forget((1,)),), (InsertEmpty((9,)),), (Forget(), InsertEmpty((9,)))):
        own = total_from(model, arrays, edits)
        is_packed = not any(isinstance(edit, InsertEmpty) for edit in edits)
        assert (isinstance(own, RunningTotal) and set(own.sparse) == {"x"}) == is_packed
        total = RunningTotal(model.empty_summary(summary_from(model, arrays, edits).ids))
        total.add(exact_from(model, arrays, edits))
        assert total.value_of("x").sum() > 20.0
        total.subtract(own)
        assert not any(np.any(total.value_of(name)) for name in ("N", "x"))


def at_batches(x, client=None, model=None, k=1, batch_size=200, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model or Model(HDPTopics(), Multinomial())
        return train(
            model, x, init=BregmanKMeans(k), moves=[Birth(where="batch"), Merge(), Delete()],
            client=client or SerialExecutor(), batch_size=batch_size, rng=0, **more,
        )  # fmt: skip


@pytest.mark.long
def test_births_at_single_batches_are_decided_on_all_data():
    result = at_batches(bars_corpus()[0])
    assert result.posterior.n_clusters == 10
    assert (np.abs(falls(result.history)) < 1e-12).all()
    born = [move for move in result.history.moves() if move["kind"] == "birth"]
    # one batch alone decides nothing, as documents of others have no weight for the new topics
    assert any(move["why"] == "what this batch found all data are to try" for move in born)
    assert min(move["lap"] for move in born if move["accepted"]) == 2


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hdp", pytest.param("lda", marks=pytest.mark.long)])
def test_births_at_single_batches_give_the_same_bits_everywhere(tmp_path, kind):
    x, model = bars_corpus(200, 100)[0], Model(allocation(kind, start="best"), Multinomial(lam=0.1))
    facts = {"model": model, "batch_size": 50, "schedule": Memoized(laps=4, window=2), "k": 2}
    whole = at_batches(x, **facts)
    assert any(move["kind"] == "birth" and move["accepted"] for move in whole.history.moves())
    assert bits(at_batches(x, ThreadExecutor(2), **facts)) == bits(whole)
    for steps in (2, 6):
        store = tmp_path / f"run{steps}"
        at_batches(x, store=store, callbacks=[AfterSteps(steps)], **facts)
        assert bits(at_batches(x, store=store, resume=True, **facts)) == bits(whole)


def test_updates_of_runs_with_births_of_topics_at_batches(tmp_path):
    x = bars_corpus(250, 100)[0]
    for name, rows in (("old.npz", slice(200)), ("new.npz", slice(200, 250))):
        sparse.save_npz(tmp_path / name, sparse.csr_matrix(x[rows]))
    at_batches(tmp_path / "old.npz", batch_size=50, store=tmp_path / "run", schedule=Memoized(laps=6))
    found = update(tmp_path / "run", tmp_path / "new.npz", revisit=4.0)
    assert found.new_batches > 0 and found.revisited == 4
    assert (np.diff([row["elbo"] for row in found.history if row["action"] == "folded"]) > -1e-6).all()


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_a_run_goes_on_after_topics_were_united(tmp_path):
    """Their united values ``P`` are negative: sizes of the sums must not be, or no checkpoint is near enough."""
    documents, _ = bars_corpus(24, 40)

    def run(laps, **more):
        return train(
            Model(HDPTopics(), Multinomial()),
            documents,
            init=RandomExamples(12),
            moves=[Merge()],
            batch_size=8,
            schedule=Memoized(laps=laps),
            collapsed=0,
            rng=2,
            **more,
        )

    begun = run(2, store=tmp_path / "run")
    assert any(move["accepted"] for move in begun.history.moves() if move["kind"] == "merge")
    resumed, whole = run(3, store=tmp_path / "run", resume=True), run(3)
    assert resumed.history["elbo"][-1] == whole.history["elbo"][-1]
