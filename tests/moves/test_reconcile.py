"""Births at many batches in one lap: found by several workers, united exactly; others get empty rows."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.inference import Memoized
from bnp_dask.model import Model
from bnp_dask.moves import Birth
from bnp_dask.observation import DiagGaussian
from tests.moves.parts import prepare, start_random


def separated(n_batches=6, per_batch=200, k=4):
    """Every batch shows all of ``k`` well separated clusters."""
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 0.0], [30.0, 0.0], [0.0, 30.0], [30.0, 30.0]])[:k]
    batches = []
    for b in range(n_batches):
        labels = np.arange(per_batch) % k
        batches.append(Batch(means[labels] + rng.normal(size=(per_batch, 2)), name=f"blob batch {b}"))
    return batches


@pytest.mark.first_case
@pytest.mark.parametrize("window", [1, 3, 6])
def test_what_several_workers_find_is_united(window):
    moves = (Birth(where="batch", share=1.0, per_lap=1, start=1),)  # what the first lap found all data would try
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), separated(), moves=moves)
    state = start_random(work, 1)
    rows, last = [], -np.inf
    for step in Memoized(laps=8, window=window).run(work, state):
        rows.append(step.row)
        if step.row["exact"]:
            assert step.row["elbo"] >= last - 1e-9
            last = step.row["elbo"]
    born = [(row["lap"], m) for row in rows for m in row["moves"] if m["accepted"] and m["kind"] == "birth"]
    assert born
    first_lap = [m for lap, m in born if lap == born[0][0]]
    if window > 1:
        # batches in flight together each found the clusters; all but the first joined what was born before
        united = [m for m in first_lap if "united" in m["why"]]
        assert len(first_lap) > 1
        assert len(united) == len(first_lap) - 1
        assert all(set(m["others"]) <= set(first_lap[0]["others"]) for m in united)
    # no merge or delete took part: there were no duplicates to remove
    assert state.posterior.n_clusters in (4, 5)  # the cluster that was split may stay, empty
    counts = np.sort(state.total.value()["N"])[::-1]
    assert counts[:4] == pytest.approx([300.0] * 4, abs=1.0)
    assert counts[4:].sum() < 1e-6


def test_batches_computed_before_a_birth_get_empty_rows():
    moves = (Birth(where="batch", share=0.2, per_lap=1, start=1),)
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), separated(), moves=moves)
    state = start_random(work, 1)
    seen = False
    for step in Memoized(laps=4, window=3, order="fixed").run(work, state):
        total = state.total.value()
        assert np.array_equal(total.ids, state.posterior.ids)
        assert total["N"].sum() == pytest.approx(min(200.0 * (state.step), 1200.0))
        accepted = [m for m in step.row["moves"] if m["accepted"]]
        if accepted and not step.lap_end:
            seen = True
            born = total["N"][state.posterior.positions(np.array(accepted[0]["others"]))]
            assert born.sum() == pytest.approx(200.0, abs=1.0)  # this batch's atoms alone
    assert seen
