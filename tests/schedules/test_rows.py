"""Facts that a run keeps about itself: rows of the history, reach of the run directory, and when it stops."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.summary import Forget, InsertEmpty, RunningTotal
from bnp_dask.core.summary import Merge as MergeEdit
from bnp_dask.errors import DataError, StoreError
from bnp_dask.inference import FullBatch, Memoized, State, Stochastic, fold
from bnp_dask.inference import local_steps as tasks
from bnp_dask.inference.batch_memo import Keeps
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.fold import fold_again
from bnp_dask.inference.lap import plan_context, settle_lap
from bnp_dask.inference.local_steps import _effort
from bnp_dask.inference.state import Loss, Reach, Sample, recall, recall_counts, recall_left, recall_more, remember
from bnp_dask.inference.variational.memoized import PATIENCE, REFINING, decide_to_stop
from bnp_dask.inference.visit import require_enough
from bnp_dask.model import Model
from bnp_dask.moves import Merge
from bnp_dask.moves.base import MergeProposal, Plan
from bnp_dask.moves.memory import Sweep
from bnp_dask.observation import DiagGaussian
from bnp_dask.structure.base import Visit
from tests.schedules.parts import rows_of, split, start, work_on
from tests.schedules.test_schedules import blobs, random_resp

N, B, K = 240, 8, 4


def begun():
    source = split(blobs(N), B)
    work = work_on(Model(DPMixture(2.0), DiagGaussian()), source)
    return work, start(work, random_resp(source, K))


# -- rows ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [(Memoized(3, window=6), [3, 3, 2]), (Stochastic(3, window=4), [1] * B), (FullBatch(3, window=4), [None])],
)
def test_rows_count_steps_laps_and_batches(schedule, sizes):
    work, state = begun()
    rows = rows_of(work, replace(schedule, tolerance=0.0, count_tolerance=0.0), state)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)) and state.step == len(rows)
    assert [row["lap"] for row in rows] == [lap for lap in (1, 2, 3) for _ in sizes]
    assert [row["n_batches"] for row in rows] == sizes * 3
    for row in rows:
        assert row["elbo"] == pytest.approx(sum(row[name] for name in state.terms), rel=1e-14)
    assert [row["n_clusters"] for row in rows] == [K] * len(rows)
    known = np.minimum(np.cumsum(sizes * 3), B) * (N / B) if sizes[0] else [N] * 3
    assert [row["atoms"] for row in rows] == pytest.approx(known)


def test_a_row_tells_of_batches_that_were_lost_in_its_own_step_only():
    _, state = begun()
    state.lost = {5: Loss("torn", 1, 3), 2: Loss("gone", 1, 3), 1: Loss("before", 1, 2)}
    state.step = 3
    row = history_row(state, 0, (4, 6), extra=7)
    assert row["lost"] == [{"batch": 2, "why": "gone"}, {"batch": 5, "why": "torn"}]
    assert (row["batch"], row["n_batches"], row["lap"], row["extra"]) == (6, 2, 1, 7)
    state.step = 4
    row = history_row(state, 1, None)
    assert "lost" not in row and (row["batch"], row["n_batches"], row["lap"]) == (None, None, 2)


# -- reach --------------------------------------------------------------------------------------------------------
def test_reach_is_rare_when_most_of_the_last_tasks_had_none(caplog):
    reach = Reach()
    with caplog.at_level(logging.INFO, "bnp_dask"):
        for n_kept, unkept, is_rare in ((0, (), False), (2, "ab", False), (1, "ab", True), (0, (), True)):
            reach.note(n_kept, [f"no way to {name}" for name in unkept])
            assert reach.is_rare == is_rare
        reach.note(3, [])
        assert not reach.is_rare
        reach.note(0, ["late"])
    assert reach.is_rare and reach.reads_posts
    assert len(caplog.messages) == 1 and caplog.messages[0].endswith("come here: no way to a")


def test_one_posterior_that_could_not_be_read_is_enough_and_is_told_once(caplog):
    reach = Reach()
    with caplog.at_level(logging.INFO, "bnp_dask"):
        for why in ("no such file", "another"):
            reach.note_unread(why)
            assert not reach.reads_posts
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["no such file"]


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("needs_states", [True, False])
def test_a_worker_keeps_a_visit_where_it_reaches_the_run_directory_both_times(monkeypatch, reads, writes, needs_states):
    """Else the coordinator keeps it, and is told why; a batch whose states are missing is not visited at all."""
    written = []

    def answer(what, works, result):
        if not works:
            raise StoreError(f"no way to {what}")
        return result

    kept = SimpleNamespace(needs_batch=False, total=lambda model: "old", states=lambda model: "states")
    slot = SimpleNamespace(
        read=lambda model: answer("read", reads, kept),
        write=lambda model, found: answer("write", writes, written.append(found) or "receipt"),
    )
    step = SimpleNamespace(
        slot=slot,
        request=SimpleNamespace(batch=3),
        states=None,
        left=None,
        can_do_without=lambda model: not needs_states,
    )
    monkeypatch.setattr(tasks, "local_step", lambda posterior, trials, step, states, left: ("visit", states, left))
    monkeypatch.setattr(tasks, "change_of", lambda found, old, batch, receipt: (found, old, batch, receipt))
    found = tasks._kept(SimpleNamespace(model=None), (), step)
    if reads and writes:
        assert found == (("visit", "states", None), "old", 3, "receipt") and len(written) == 1
    elif reads:
        assert vars(found) == vars(tasks.Unkept(3, ("visit", "states", None), "no way to write"))
    else:
        seen = None if needs_states else ("visit", None, None)
        assert vars(found) == vars(tasks.Unkept(3, seen, "no way to read"))
        assert not written


# -- planning -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("calm", [False, True])
def test_moves_plan_from_the_state_as_it_is(calm):
    work, state = begun()
    state.lap, state.calm = 4, calm
    context = plan_context(replace(work, seed=11), state, taken=[2])
    assert (context.lap, context.seed, context.calm) == (4, 11, calm)
    assert context.draft.free == {0, 1, 3}
    assert context.memory is state.memory and context.survey is work.survey and context.executor is work.executor
    np.testing.assert_array_equal(context.value["N"], state.posterior.summary["N"])
    assert context.model is state.model and context.source.n_batches == B and len(context.atoms) == 0


@pytest.mark.parametrize("n_atoms", [40, 4_000_000])
def test_the_effort_of_a_batch_is_that_of_its_average_number_of_atoms(n_atoms):
    """However many batches there are; infinite where batches are large."""
    work, _ = begun()
    counts = np.full(B, n_atoms // B)
    work = replace(work, survey=replace(work.survey, n_atoms=n_atoms, batch_atoms=tuple(counts), nbytes=16 * n_atoms))
    expected = work.model.structure.effort(work.model, n_atoms / B, 3)
    assert _effort(work, 3) == (expected if n_atoms == 40 else np.inf)


# -- changes that would lower the objective -----------------------------------------------------------------------
def test_a_group_is_visited_again_once_and_then_its_older_statistics_stay(monkeypatch):
    """Nothing is decided at the end of such a lap, because a batch is missing in what trials found."""
    work, state = begun()
    rows_of(work, Memoized(1, window=2), state)
    taken = SimpleNamespace(
        has_lost=False, attempt=1, change=SimpleNamespace(with_clusters=lambda ids: SimpleNamespace(delta=None))
    )
    monkeypatch.setattr(State, "attempt", lambda self, change: False)
    assert fold_again(work, state, taken) is None and not state.void
    taken.attempt = 2
    assert fold_again(work, state, taken) == {"action": "kept", "gain": 0.0, "moves": []} and state.void
    work, before = replace(work, moves=(Merge(),)), state.total.value()
    state.plan = Plan(np.array([[0, 1]]), (), (MergeProposal(MergeEdit(0, 1)),))
    state.total.track(state.plan.pairs)
    (row,) = settle_lap(work, state, None)
    assert (row["accepted"], row["gain"], row["targets"]) == (False, None, [0, 1])
    assert "kept its older summary" in row["why"]
    assert state.total.value().ids.tolist() == before.ids.tolist() and not state.void and not state.plan.proposals
    assert state.total.high.n_pairs == 0


def test_too_many_bad_batches_are_an_error_that_names_the_last():
    work, _ = begun()
    few = {b: Loss(f"batch {b} is gone", 1, step) for b, step in ((0, 1), (3, 5), (2, 3))}
    require_enough(work, few)
    with pytest.raises(DataError, match=rf"6 of {B} batches have gone bad .* the last: batch 3 is gone"):
        require_enough(work, {**few, **{b: Loss(f"batch {b} is gone", 1, 2) for b in (4, 5, 6)}})


def test_batches_that_kept_statistics_have_no_assignments_to_begin_from():
    work, state = begun()
    assert recall_left(work, state, 0, 0) is None
    rows_of(work, Memoized(1, window=2), state)
    assert [recall_left(work, state, b, len(state.edits)) for b in range(B)] == [None] * B


def test_what_a_visit_left_is_brought_up_to_date_whole_or_in_part():
    """Statistics, counts alone, and arrays of the schedule's own."""
    work, state = begun()
    rows_of(work, Memoized(1, window=2), state)
    own = recall(work, state, 2)
    own = own.value() if isinstance(own, RunningTotal) else own
    state.edits.append(InsertEmpty((7,)))
    counts = recall_counts(work, state, 2)
    assert set(counts.values) == set(own.values) - set(work.model.observation.fields)
    assert counts.ids.tolist() == [*own.ids.tolist(), 7]
    np.testing.assert_array_equal(counts["N"], [*own["N"], 0.0])
    before = recall(work, state, 2, seen=int(state.seen[2]))
    assert (before.value() if isinstance(before, RunningTotal) else before).ids.tolist() == own.ids.tolist()
    found = Visit(own.insert_empty([7]), {})
    remember(work, state, 2, found, keeps=Keeps.STATISTICS, more={"mine/a": np.arange(3), "other": np.ones(2)})
    more = recall_more(work, state, 2, "mine/")
    assert list(more) == ["a"] and more["a"].tolist() == [0, 1, 2]
    again = recall(work, state, 2)
    np.testing.assert_array_equal((again.value() if isinstance(again, RunningTotal) else again)["N"], [*own["N"], 0.0])


# -- samples of the batches ---------------------------------------------------------------------------------------
def test_laps_on_samples_come_before_the_laps_of_a_schedule():
    sizes = (2, 4, B)
    stages = [Sample(sizes, 6, stage=stage, begun=3 * stage) for stage in range(3)]
    assert [(s.size, s.before, s.is_whole) for s in stages] == [(2, 0, False), (4, 2, False), (B, 4, True)]
    _, state = begun()
    state.lap = 8
    found = []
    for sample in (None, *stages):
        state.sample = sample
        found.append(state.laps_before)
    assert found == [0, 8, 8, 6]


# -- stopping -----------------------------------------------------------------------------------------------------
@pytest.fixture
def settled():
    """A state at the end of its third lap, in which nothing has changed since the second."""
    work, state = begun()
    rows_of(work, Memoized(2, window=2, tolerance=0.0, count_tolerance=0.0), state)
    state.finished, state.lap, state.calm_laps = None, 2, 0.0
    state.lap_elbo, state.lap_counts = state.elbo, np.array(state.total.value_of("N"))
    return work, state


def stops(work, state, n_proposed=0, refines=False, **rule):
    decide_to_stop(Memoized(**{"laps": 9, "tolerance": 1e-6, **rule}), work, state, n_proposed, refines)
    return state.finished


@pytest.mark.parametrize(
    ("moves", "lap", "n_proposed", "end"),
    [
        ((), 0, 0, True),
        ((), 2, 1, True),
        ((Merge(),), 0, 0, False),
        ((Merge(),), 2, 1, False),
        ((Merge(),), 2, 0, True),
    ],
)
def test_a_run_goes_on_while_moves_propose(settled, moves, lap, n_proposed, end):
    work, state = settled
    state.lap = lap
    assert stops(replace(work, moves=moves), state, n_proposed) == ("converged" if end else None)


@pytest.mark.parametrize(("gain", "end"), [(0.9, True), (-0.9, True), (1.1, False), (-1.1, False)])
def test_the_objective_may_change_by_the_tolerance_for_each_unit_of_weight(settled, gain, end):
    work, state = settled
    state.lap_elbo -= gain * 1e-3 * N
    assert (stops(work, state, tolerance=1e-3) == "converged") == end
    assert state.lap_elbo == state.elbo  # the next lap is compared with this one


@pytest.mark.parametrize(("moved", "end"), [(0.9, True), (1.1, False)])
def test_counts_may_move_by_a_share_of_all_atoms(settled, moved, end):
    work, state = settled
    state.lap_counts[[0, 1]] += np.array([1.0, -1.0]) * moved * 1e-3 * N
    assert (stops(work, state, count_tolerance=1e-3) == "converged") == end
    np.testing.assert_array_equal(state.lap_counts, state.total.value_of("N"))


@pytest.mark.parametrize("lap", [2, 3])
def test_laps_of_different_data_are_not_compared(settled, lap):
    work, state = settled
    state.lost[0] = Loss("torn", lap, 1)
    assert stops(work, state) == (None if lap == 3 else "converged")


def test_laps_of_different_clusters_are_not_compared(settled):
    work, state = settled
    state.lap_counts = state.lap_counts[1:]
    assert stops(work, state) is None and not state.calm


@pytest.mark.parametrize(("share", "gain", "calm"), [(0.04, 9e-5, True), (0.06, 9e-5, False), (0.04, 1.1e-4, False)])
def test_a_lap_is_calm_if_counts_and_objective_hardly_change(settled, share, gain, calm):
    work, state = settled
    state.lap_counts /= 1.0 + share
    state.lap_elbo -= gain * N
    assert stops(work, state, tolerance=1e-9) is None
    assert state.calm == calm and state.calm_laps == calm


def test_calm_laps_end_a_run_whose_tolerance_was_left_open_and_refined_deletes_take_longer(settled):
    work, state = settled
    state.memory.sweeps = {1: Sweep((0,), state.total.value().take([1]), 0.0, 0.0, 1)}  # one that waits counts for none
    for refines, weight in ((False, 1.0), (True, REFINING)):
        for tolerance in (None, 1e-9):
            state.finished, state.calm_laps, laps = None, 0.0, 0
            while state.finished is None and laps < 40:
                state.lap_elbo -= 5e-5 * N
                stops(work, state, refines=refines, tolerance=tolerance)
                laps += 1
            assert laps == (int(np.ceil(PATIENCE / weight)) if tolerance is None else 40)


def test_a_run_ends_with_its_last_lap(settled):
    work, state = settled
    state.lap_elbo = None
    assert stops(work, state, laps=4) is None
    assert stops(work, state, laps=3, tolerance=0.0, count_tolerance=0.0) in ("laps", "converged")
    state.finished, state.lap_elbo = None, None
    assert stops(work, state, laps=3) == "laps"


@pytest.mark.parametrize(
    ("pairs", "edits"), [([[0, 1]], [Forget((0,)), InsertEmpty((7,))]), ([[1, 2]], [InsertEmpty((7,))])]
)
def test_a_split_at_a_batch_ends_the_pairs_of_its_target_in_all_summaries(monkeypatch, pairs, edits):
    born = SimpleNamespace(total="total", posterior="posterior", terms="terms", new_ids=(7,), summaries=["after"])
    decision = SimpleNamespace(waits=False, born=born, records=[])
    monkeypatch.setattr(fold, "Judge", lambda *_: SimpleNamespace(decide_split=lambda **_: decision))
    monkeypatch.setattr(fold, "newer_clusters", lambda *_: [])
    monkeypatch.setattr(fold, "with_newer_clusters", lambda _, found: found)
    visit = SimpleNamespace(split=0, newborn=None, with_summary=lambda summary: summary)
    state = SimpleNamespace(model=Model(DPMixture(), DiagGaussian()), memory=None, total=None, terms=None, edits=[])
    state.plan = Plan(pairs=np.array(pairs))
    assert fold.try_split(state, [visit], is_new=True) == (["after"], [])
    assert state.edits == edits
