"""A round of proposals that waits for all batches, while clusters are born at new ones."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import state_from_saved
from bnp_dask.inference.batch_memo import summary_from
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
