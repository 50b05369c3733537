"""Moves that act in some laps alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.errors import SettingError
from bnp_dask.moves.base import acts, is_to_come

MODEL = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
START = bnp.RandomExamples(1)


def laps_of(kind, moves, laps=30):
    x = np.random.default_rng(0).normal([[0.0, 0], [8, 8], [0, 9]], 1.0, (100, 3, 2)).reshape(-1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        result = bnp.train(MODEL, x, init=START, moves=moves, schedule=bnp.Memoized(laps=laps), batch_size=100)
    return result, [move["lap"] for move in result.history.moves() if move["kind"] == kind]


def test_births_are_made_in_their_laps_alone():
    result, laps = laps_of("birth", [bnp.Birth(laps=range(3, 5))])
    assert result.posterior.n_clusters > 1
    assert set(laps) <= {4, 5}  # the history counts from 1
    assert laps_of("birth", [bnp.Birth(laps=range(1))])[1] == []  # nothing is decided in the first lap


def test_a_move_is_to_come_until_its_first_lap_and_acts_up_to_its_last():
    for move in (bnp.Birth(laps=range(3, 5)), bnp.Birth(laps=range(5), start=3)):
        assert [lap for lap in range(8) if acts(move, lap)] == [3, 4]
        assert [lap for lap in range(8) if is_to_come(move, lap)] == [0, 1, 2]
    assert all(acts(bnp.Merge(), lap) for lap in (0, 10**9)) and not is_to_come(bnp.Merge(), 0)


def test_a_run_waits_for_moves_that_have_not_begun():
    result, laps = laps_of("birth", [bnp.Birth(start=9), bnp.Merge()])
    assert min(laps) == 10
    assert (result.reason, result.posterior.n_clusters) == ("converged", 3)


@pytest.mark.parametrize("move", [bnp.Birth, bnp.Merge, bnp.Delete, bnp.DocumentBirth])
def test_every_move_takes_them_and_files_keep_them(move):
    made = move(laps=range(2, 20), start=5)
    assert made == move(laps=(2, 20), start=5)
    assert from_spec(to_spec(made)[0], {}) == made
    assert "laps" not in to_spec(move())[0]["fields"]


@pytest.mark.parametrize(
    ("laps", "start", "said"),
    [(range(0, 9, 3), 0, "range of laps in a row"), ((4, 4), 0, "no lap is left"), (range(5), 5, "no lap is left"),
     ((0, 2.5), 0, "whole number"), (None, -1, "whole number"), (7, 0, "range of laps in a row")],
)  # fmt: skip
def test_laps_that_are_none_are_refused(laps, start, said):
    with pytest.raises(SettingError, match=said):
        bnp.Birth(laps=laps, start=start)


def test_job_files_say_them(tmp_path):
    job = {"model": {"allocation": "DPMixture", "observation": "DiagGaussian"}, "data": "x"}
    job["moves"] = [{"type": "Birth", "laps": [0, 20]}, {"type": "Delete", "start": 5}]
    assert parse_job(job, tmp_path).moves == (bnp.Birth(laps=range(20)), bnp.Delete(start=5))
