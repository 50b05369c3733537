"""Runs that are resumed with other moves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.errors import StoreError
from tests.stopping import InLap

X = np.random.default_rng(0).normal([[0.0, 0], [8, 8], [0, 9]], 1.0, (100, 3, 2)).reshape(-1, 2)
MODEL = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
BIRTHS = (bnp.Birth(), bnp.Merge())


def go(path, moves=None, laps=30, stop=None):
    schedule = bnp.Memoized(laps=laps, window=2)
    more = {} if stop is None else {"callbacks": [InLap(*stop)]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(
            MODEL, X, init=bnp.RandomExamples(1), moves=moves, schedule=schedule, batch_size=60, store=path,
            resume=True, **more,
        )  # fmt: skip


def changes(result):
    return [(row["lap"], row["changed_moves"]) for row in result.history if "changed_moves" in row]


def bits(result):
    return [(row["lap"], row["elbo"]) for row in result.history], result.posterior.summary["N"].tobytes()


def test_a_run_that_converged_goes_on_with_others_from_its_next_lap(tmp_path):
    first = go(tmp_path / "run", moves=())
    assert (first.reason, first.posterior.n_clusters) == ("converged", 1)
    result = go(tmp_path / "run", moves=BIRTHS)
    assert (result.reason, result.posterior.n_clusters) == ("converged", 3)
    [(lap, moves)] = changes(result)
    assert lap == first.history[-1]["lap"] + 1
    assert [move["$class"].split(".")[-1] for move in moves] == ["Birth", "Merge"]
    again = go(tmp_path / "run")  # left out: as it was last resumed with
    assert bits(again) == bits(result)
    assert changes(again) == changes(result)


@pytest.mark.parametrize("stop", [(5, 2), (3, 3)], ids=["in a later lap", "before the next lap"])
def test_the_lap_under_way_is_finished_as_it_began_and_a_stop_changes_no_bits(tmp_path, stop):
    for name in ("at once", "stopped"):
        go(tmp_path / name, moves=BIRTHS, stop=(3, 2))
    whole = go(tmp_path / "at once", moves=(), laps=8)
    assert [lap for lap, _ in changes(whole)] == [4]
    assert {move["kind"] for move in whole.history.moves() if move["lap"] > 3} <= {"prior"}
    go(tmp_path / "stopped", moves=(), laps=8, stop=stop)
    assert bits(go(tmp_path / "stopped", laps=8)) == bits(whole)


def test_moves_may_change_back(tmp_path):
    whole = go(tmp_path / "whole", moves=BIRTHS, laps=6)
    go(tmp_path / "run", moves=BIRTHS, laps=3)
    go(tmp_path / "run", moves=(), stop=(4, 0))  # before anything was done
    assert bits(go(tmp_path / "run", moves=BIRTHS, laps=6))[1] == bits(whole)[1]


def test_a_damaged_note_of_moves_is_told(tmp_path):
    go(tmp_path / "run", moves=(), laps=2)
    go(tmp_path / "run", moves=BIRTHS, laps=3)
    (tmp_path / "run" / "moves.json").write_text("[")
    with pytest.raises(StoreError, match=r"moves\.json is damaged .* give moves= anew"):
        go(tmp_path / "run", laps=4)
    assert go(tmp_path / "run", moves=BIRTHS, laps=4).history[-1]["lap"] == 4
