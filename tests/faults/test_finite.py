"""What is not finite is no result: every fold, trial and move refuses it, by name."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import (
    FEW,
    require_finite_arrays,
    require_finite_params,
    require_finite_rows,
    require_finite_terms,
    unless_refused,
)
from bnp_dask.errors import NumericalError
from bnp_dask.execute import SerialExecutor
from bnp_dask.observation.diag_gaussian import DiagGaussian
from tests.pairwise import in_pairs

RNG = np.random.default_rng(0)
X = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 60, axis=0) + RNG.normal(size=(180, 2))
RNG.shuffle(X)
MOVES = [bnp.Birth(), bnp.Merge(), bnp.Delete()]


def train(schedule=None, moves=(), laps=5, k=3, **more):
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(), **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        schedule = schedule or bnp.Memoized(laps=laps, window=2)
        init, client = bnp.BregmanKMeans(k), SerialExecutor(0)
        return bnp.train(model, X, init=init, schedule=schedule, moves=moves, batch_size=30, client=client)


SCHEDULES = [bnp.Memoized(laps=4, window=2), bnp.FullBatch(laps=4), bnp.Stochastic(laps=4)]


@pytest.mark.parametrize(*in_pairs(bad=[np.nan, np.inf, -np.inf], estimate=["posterior", "map"], schedule=SCHEDULES))
def test_a_fold_refuses_a_parameter_that_is_not_finite(monkeypatch, schedule, estimate, bad):
    plain, calls = DiagGaussian.global_step, []

    def cursed(self, summary):
        found = plain(self, summary)
        calls.append(summary.n_clusters)
        if len(calls) < 3 or summary.n_clusters != 3:
            return found
        beta = found.beta.copy()
        beta[1, 0] = bad
        return replace(found, beta=beta)

    monkeypatch.setattr(DiagGaussian, "global_step", cursed)
    with pytest.raises(NumericalError, match=rf"observation parameter 'beta' of cluster 1 is {bad}, not finite"):
        train(schedule, estimate=estimate)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_a_fold_refuses_a_term_that_is_not_finite(monkeypatch, schedule):
    plain = DiagGaussian.score

    def cursed(self, params, summary):
        return plain(self, params, summary) + (np.inf if summary.n_clusters == 3 else 0.0)

    monkeypatch.setattr(DiagGaussian, "score", cursed)
    with pytest.raises(NumericalError, match="the objective's term 'data' of cluster 0 is inf"):
        train(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_a_batch_whose_statistics_are_not_finite_is_named(monkeypatch, schedule):
    plain = DiagGaussian.summarize

    def cursed(self, batch, resp):
        found = plain(self, batch, resp)
        if "batch 4" in batch.name and "kmeans" not in batch.name:
            found["xx"][2, 1] = np.inf
        return found

    monkeypatch.setattr(DiagGaussian, "summarize", cursed)
    with pytest.raises(NumericalError, match=r"array batch 4.*: statistic 'xx' of cluster 2 is inf"):
        train(schedule)


def test_a_merge_that_cannot_be_computed_is_refused_and_the_run_goes_on(monkeypatch):
    """A gain of NaN used to pass the test of being too small."""
    plain = DiagGaussian.score

    def cursed(self, params, summary):
        found = plain(self, params, summary)
        return np.where(summary["N"] < 50, found, np.nan) if summary.n_clusters == 1 else found

    quiet = train(moves=[bnp.Merge()], k=6, laps=6)
    assert quiet.posterior.n_clusters == 3
    monkeypatch.setattr(DiagGaussian, "score", cursed)
    result = train(moves=[bnp.Merge()], k=6, laps=6)
    rows = result.history.moves()
    refused = [row for row in rows if row["why"].startswith("refused: the objective's term 'data' of cluster")]
    assert refused and not any(row["accepted"] for row in refused)
    assert all(row["gain"] is None for row in refused)
    values = [row["elbo"] for row in result.history if row["exact"]]
    assert np.isfinite(values).all() and (np.diff(values) > -1e-9).all()


def test_a_birth_whose_small_run_fails_is_no_birth(monkeypatch):
    def failing(*args):
        raise NumericalError("cannot be computed")

    monkeypatch.setattr("bnp_dask.moves.create._small_run", failing)
    result = train(moves=[bnp.Birth()], k=1)
    assert result.posterior.n_clusters == 1
    assert {row["why"] for row in result.history.moves()} == {"no split of the gathered atoms is better than none"}


def test_a_birth_at_a_batch_that_cannot_be_computed_is_refused(monkeypatch):
    def failing(*args):
        raise NumericalError("cannot be computed")

    monkeypatch.setattr("bnp_dask.moves.judge._Shares.evaluate", failing)
    result = train(moves=[bnp.Birth(where="batch", share=1.0, start=1)], k=1)
    why = [row["why"] for row in result.history.moves()]
    assert "refused: cannot be computed" in why
    assert result.posterior.n_clusters == 1


def test_a_delete_that_cannot_be_computed_is_given_up(monkeypatch):
    def failing(*args):
        raise NumericalError("cannot be computed")

    monkeypatch.setattr("bnp_dask.moves.delete.climb", failing)
    result = train(moves=[bnp.Delete()], k=5, laps=5)
    values = [row["elbo"] for row in result.history if row["exact"]]
    assert np.isfinite(values).all() and (np.diff(values) > -1e-9).all()


# -- the boundary itself ---------------------------------------------------------------------------------------
def test_large_finite_numbers_whose_sum_overflows_are_finite():
    require_finite_arrays({"x": np.full(10, 1e308)}, "statistic")
    with pytest.raises(NumericalError, match="statistic 'x' of cluster 7 is nan"):
        require_finite_arrays({"x": np.array([[1e308], [np.nan]])}, "statistic", np.array([5, 7]))


def test_a_term_is_named():
    require_finite_terms({"data": -1e308, "entropy": 0.0})
    with pytest.raises(NumericalError, match="the objective's term 'entropy' is nan nats, not finite"):
        require_finite_terms({"data": 0.0, "entropy": float("nan")})


def test_the_first_bad_row_of_a_batch_is_named():
    values = np.zeros((4, 2))
    require_finite_rows(values, Batch(X[:4]), "density")
    values[2, 1] = values[3, 0] = np.nan
    with pytest.raises(NumericalError, match="density of row 2: not finite"):
        require_finite_rows(values, Batch(X[:4]), "density")


def test_a_density_that_is_not_finite_is_no_score(monkeypatch):
    x = np.random.default_rng(0).normal(size=(40, 2))
    posterior = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, moves=()).posterior
    density = DiagGaussian.log_predictive

    def broken(self, params, batch):
        out = density(self, params, batch)
        out[3] = np.nan
        return out

    monkeypatch.setattr(DiagGaussian, "log_predictive", broken)
    with pytest.raises(bnp.BnpDaskError, match="log density"):
        bnp.score(posterior, x)


def test_the_first_array_that_is_not_finite_is_named_by_its_place():
    @dataclass
    class Part:
        scale: np.ndarray
        share: float

    @dataclass
    class Params:
        mean: np.ndarray
        parts: tuple[Part, ...]
        name: str = "inf"

    fine = Params(np.zeros((2, 3)), (Part(np.ones(2), 0.5),))
    require_finite_params(fine, "fold", np.array([5, 7]))
    bad = Params(np.zeros((2, 3)), (Part(np.ones(2), 0.5), Part(np.array([1.0, np.inf]), 1.0)))
    with pytest.raises(
        NumericalError, match=r"fold parameter 'parts\[1\].scale' of cluster 7 is inf, not finite; double"
    ):
        require_finite_params(bad, "fold", np.array([5, 7]))
    with pytest.raises(NumericalError, match=r"fold parameter '\[1\].share' is nan, not finite"):
        require_finite_params((fine, Part(np.ones(2), float("nan"))), "fold", np.array([5, 7]))
    one = {"counts": np.array([2**62]), "text": np.array(["nan"]), "x": np.array([[0.0, 1.0], [2.0, -np.inf]])}
    with pytest.raises(NumericalError, match="sum 'x' is -inf, not finite"):
        require_finite_arrays(one, "sum", np.array([5, 7, 9]))  # an array without a row for each cluster
    with pytest.raises(NumericalError, match="sum 'y' is nan, not finite"):
        require_finite_arrays({"y": np.array(np.nan)}, "sum", np.array([5]))


@pytest.mark.parametrize("size", [FEW - 1, FEW, FEW + 1, 3 * FEW])
def test_one_number_among_many_is_found(size):
    values = np.full(size, 1e308)
    require_finite_arrays({"x": values}, "sum")
    for place in (0, size - 1):
        for wrong in (np.nan, np.inf, -np.inf):
            bad = values.copy()
            bad[place] = wrong
            with pytest.raises(NumericalError, match=f"sum 'x' is {wrong}"):
                require_finite_arrays({"x": bad}, "sum")


def test_what_double_precision_refuses_has_another_value():
    def refused(x):
        raise NumericalError("cannot be computed")

    assert unless_refused(math.sqrt, 4.0, otherwise=-1.0) == 2.0
    assert unless_refused(refused, 4.0, otherwise=-1.0) == -1.0
    with pytest.raises(ValueError, match="math domain"):
        unless_refused(math.sqrt, -4.0, otherwise=-1.0)
