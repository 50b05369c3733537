"""A round of proposals that waits for all batches, while clusters are born at new ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import state_from_saved
from bnp_dask.inference.batch_memo import summary_from
from bnp_dask.inference.variational import arrivals
from bnp_dask.inference.variational.arrivals import Round, _regains, abandon
from bnp_dask.store import RunStore
from bnp_dask.training.growing.versions import load
from tests.growing.parts import begin, bits_of, gap, grow

MEANS = 25.0 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 4], [4, 4, 4], [-1, 0, 0], [0, -1, 0], [-1, 1, 0]])
DROPPED = "was split at new data"


def write(folder, number, clusters, n=240):
    """Rows of a day, from some clusters; the path."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7000 + number)
    np.save(folder / f"{number}.npy", MEANS[rng.choice(clusters, size=n)] + rng.normal(size=(n, 3)))
    return folder / f"{number}.npy"


def opened(store):
    """State of a run, and which batches its round has seen."""
    view = RunStore.view(store)
    saved = view.load()
    state = state_from_saved(load(store).model, saved.state, saved.arrays, saved.listing)
    return view, saved, state


def gap_of_pairs(store):
    """Largest difference of what the total tracks of pairs from the sum over the batches that the round has seen."""
    view, saved, state = opened(store)
    total = state.total.value()
    sums = {name: np.zeros_like(value) for name, value in total.pair_values.items()}
    for batch, visit, receipt in saved.listing.entries():
        if saved.arrays["growth/seen"][batch]:
            arrays, _ = view.get_summary(batch, visit, receipt)
            own = summary_from(state.model, arrays, state.edits[int(state.seen[batch]) :])
            np.testing.assert_array_equal(own.pairs, total.pairs)
            for name in sums:
                sums[name] += own.pair_values[name]
    return max((float(np.abs(sums[name] - total.pair_values[name]).max(initial=0.0)) for name in sums), default=0.0)


def started(folder, store, laps=1):
    """A run of five clusters that begins a round with twelve."""
    begin(store, write(folder, 0, [0, 1, 2, 6, 7], n=480), laps=laps, batch_size=60, k=12)
    return store


def day_with_births(folder, store, **more):
    """The first update: a new cluster in each of four batches, beside a round that sees none but these and two more."""
    return grow(store, write(folder, 1, [0, 1, 3, 4]), revisit=0.5, **more)


def test_a_birth_ends_only_proposals_that_name_its_cluster(tmp_path):
    store = started(tmp_path / "in", tmp_path / "run")
    found = day_with_births(tmp_path / "in", store)
    moves = [move for row in found.history for move in row["moves"]]
    split = {move["targets"][0] for move in moves if move["kind"] == "birth" and move["accepted"]}
    dropped = [move for move in moves if DROPPED in move["why"]]
    assert split and dropped and found.waiting
    named = [{*move["targets"], *move["others"]} for move in dropped]
    assert all(own & split for own in named)
    _, _, state = opened(store)
    waiting = [{*p.targets, *p.others} for p in state.plan.proposals]
    assert waiting and not any(own & split for own in waiting)
    assert not np.isin(state.plan.pairs, list(split)).any()
    np.testing.assert_array_equal(state.plan.pairs, state.total.high.pairs)


def test_what_waits_is_exact_and_is_decided_at_the_end_of_the_round(tmp_path):
    store = started(tmp_path / "in", tmp_path / "run")
    found = day_with_births(tmp_path / "in", store)
    assert len(opened(store)[2].plan.pairs) and gap(store) < 1e-12 and gap_of_pairs(store) < 1e-9
    rows = list(found.history)
    for number in (2, 3, 4):
        found = grow(store, write(tmp_path / "in", number, [0, 1, 2, 3]), revisit=1.0)
        assert gap(store) < 1e-12 and gap_of_pairs(store) < 1e-9
        rows += found.history
    decided = [move for row in rows for move in row["moves"] if move["kind"] in ("merge", "delete")]
    assert any(move["gain"] is not None for move in decided)
    for before, row in zip(rows, rows[1:], strict=False):
        if row["action"] in ("folded", "recomputed", "kept"):
            assert row["elbo"] >= before["elbo"] - 1e-9 * abs(row["elbo"])
    assert found.posterior.n_clusters >= 5


@pytest.mark.parametrize("revisit", [0.5, 1.0])
def test_threads_give_the_same_bits(tmp_path, revisit):
    for name, client in (("serial", None), ("threads", ThreadExecutor(2))):
        store = started(tmp_path / "in", tmp_path / name)
        day_with_births(tmp_path / "in", store, client=client)
        grow(store, write(tmp_path / "in", 2, [0, 2, 5]), revisit=revisit, client=client)
    one, other = (bits_of(tmp_path / name) for name in ("serial", "threads"))
    assert one == other


# -- by hand -------------------------------------------------------------------------------------------------------
def test_batches_are_due_by_their_last_visit_and_in_a_round_once():
    turn = Round.begin(5, 7)
    assert (turn.seen.any(), turn.last.tolist(), turn.short.any(), turn.is_open) == (False, [7] * 5, False, False)
    turn.note([3, 1], 9)
    turn.note([0], 8)
    turn = turn.extended(2)
    assert turn.seen.tolist() == [True, True, False, True, False, False, False]
    assert turn.last.tolist() == [8, 9, 7, 9, 7, -1, -1] and turn.short.tolist() == [False] * 7
    may = np.array([True, True, True, True, False, True, True])
    assert turn.due(may, 9) == [5, 6, 2, 0, 1, 3]  # never visited, then longest ago, then by number
    assert turn.due(may, 2) == [5, 6] and turn.due(may, 0) == []
    turn.is_open = True
    assert turn.due(may, 9) == [5, 6, 2] and turn.extended(1).is_open
    turn.short[[2, 3]] = True
    turn.note([2], 10)
    assert turn.short.tolist() == [False, False, False, True, False, False, False]
    assert turn.due(~may, 9) == [4]


def test_a_round_that_cannot_end_leaves_nothing_behind():
    edits = []
    state = SimpleNamespace(edits=[], total=SimpleNamespace(apply=edits.append), plan=1, trials={"t": 1}, gathered=1)
    turn = Round.begin(2, 0)
    turn.is_open = True
    abandon(state, turn)
    assert [type(e).__name__ for e in (*state.edits, *edits[0])] == ["Forget", "Forget"]
    assert not state.trials and not turn.is_open and not state.plan.proposals


@pytest.mark.parametrize(
    ("short", "lost", "held", "asked", "returns"),
    [
        ([0, 1, 0], (), [10, 10, 10], [0, 1, 2], False),  # batch 1 weighs 20 by half
        ([0, 1, 0], (), [10, 9.9, 10], [0, 1, 2], True),
        ([0, 1, 0], (), [10, 9.9, 10], [0, 2], False),
        ([1, 0, 0], (), [10, 9.9, 10], [1], False),
        ([0, 1, 1], (1,), [10, 0, 9], [1], False),
        ([0, 1, 1], (1,), [10, 0, 9], [1, 2], True),
        ([0, 1, 0], (), [10, 10 * (1 - 1e-10), 10], [1], False),  # rounding
    ],
)
def test_atoms_return_if_a_batch_held_less_than_it_weighs(monkeypatch, short, lost, held, asked, returns):
    monkeypatch.setattr(arrivals, "recall_counts", lambda work, state, b: {arrivals.COUNTS: np.array([held[b], 0.0])})
    work = SimpleNamespace(survey=SimpleNamespace(batch_weights=(10.0, 20.0, 10.0)))
    state = SimpleNamespace(lost=set(lost), weight=lambda b: 0.5 if b == 1 else 1.0)
    turn = Round(np.zeros(3, bool), np.zeros(3, int), np.array(short, bool))
    assert _regains(work, state, turn, asked) == returns
