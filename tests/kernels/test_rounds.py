"""Compiled steps of small runs of Gaussians against loops over the verbs of a model."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.read_only import frozen
from bnp_dask.initialize.base import summarize_assigned
from bnp_dask.initialize.kmeans import hard_kmeans
from bnp_dask.kernels.gaussian.rounds import (
    NAMES,
    ROWS,
    SmallRun,
    Stop,
    evidences,
    hard_rounds,
    rounds,
    stick_value,
)
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from bnp_dask.moves.create import without_empty
from bnp_dask.moves.pairs import all_pairs
from bnp_dask.moves.pools import a_step, best_terms, best_value, compiled, small_rounds

N, D, K, APART = ROWS + 45, 5, 4, 2.0


def points(rng):
    """Overlapping clusters of correlated features, far from the origin."""
    label = rng.integers(K, size=N)
    shapes = rng.normal(size=(K, D, D))
    return (
        1e3 + APART * rng.normal(size=(K, D))[label] + np.einsum("nij,nj->ni", shapes[label], rng.normal(size=(N, D)))
    )


@pytest.fixture(params=["plain", "weights", "grain", "first order", 1, 8, 17, 40])
def case(request, monkeypatch):
    """A model with its prior, a sample, and statistics of a bad assignment; numbers are those of features."""
    if isinstance(request.param, int):
        # of overlapping clusters in 17 features 40 rounds make 1e-8 of 1e-15, by the loops alone
        monkeypatch.setattr(sys.modules[__name__], "D", request.param)
        monkeypatch.setattr(sys.modules[__name__], "APART", 8.0)
    rng = np.random.default_rng(3)
    x = points(rng)
    weights = rng.uniform(0.2, 3.0, N) if request.param == "weights" else None
    grain = 0.5 if request.param == "grain" else 0.0
    if grain:
        x = np.round(x / grain) * grain
    if request.param == "first order":
        x = np.asfortranarray(x)
    prior = bnp.Gaussian(nu=D + 2.5, B=np.diag(rng.uniform(0.5, 2.0, D)), m=1e3, kappa=0.3, center=1e3, grain=grain)
    model = bnp.Model(bnp.DPMixture(gamma=1.7), prior, precision="double")
    batch = bnp.Batch(x, weights=weights)
    observation = replace(
        prior, m=np.full(D, 1e3), center=np.full(D, 1e3), null=np.zeros((2, 0, D)), grain=np.full(D, grain)
    )
    model = replace(model, observation=observation)
    return model, batch, summarize_assigned(model, batch, rng.integers(K, size=N), K)


def loops(model, summary, batch, stop, rest=None):
    """Rounds by the verbs of a model: statistics and objective."""
    value = -np.inf
    for _ in range(stop.most):
        summary = model.local_step(model.global_step(summary), batch)
        summary = summary if rest is None else rest + summary
        before = summary.n_clusters
        summary = summary if stop.drop < 0 else without_empty(summary, stop.drop)
        last, value = value, model.best_objective(summary)
        if summary.n_clusters < before:  # of fewer atoms than the values before and after
            value = -np.inf
        elif value - last < max(stop.enough * abs(value - stop.before), stop.least):
            break
    return summary, model.best_objective(summary)


def assert_same(found, expected):
    np.testing.assert_array_equal(found.ids, expected.ids)
    for name in NAMES:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    "stop",
    [
        Stop(most=1, least=0.0),
        Stop(most=9, least=-np.inf),
        Stop(most=60, least=2.0),
        Stop(most=60, least=0.0, enough=0.01, before=-2000.0),
        Stop(most=30, least=-np.inf, drop=0.2),
        Stop(most=60, least=2.0, drop=0.2),
    ],
)
def test_rounds(case, stop):
    model, batch, start = case
    found, value = small_rounds(model, start, batch, stop)
    expected, by_loops = loops(model, start, batch, stop)
    assert_same(found, expected)
    assert value == pytest.approx(by_loops, abs=1e-7)
    assert best_value(model, found) == pytest.approx(value, abs=1e-7)


def test_read_only_statistics_and_plain_numbers_take_no_second_compilation(case):
    model, batch, start = case
    stop = Stop(most=1, least=0.0)
    expected, value = small_rounds(model, start, batch, stop, start)
    terms, count = best_terms(model, start), [len(one.signatures) for one in (rounds, evidences, stick_value)]
    held = replace(start, values={name: np.asfortranarray(start[name]) for name in NAMES})
    found, same = small_rounds(frozen(model), frozen(held), frozen(batch), Stop(most=1, least=0), frozen(held))
    assert_same(found, expected)
    assert same == value
    np.testing.assert_array_equal(best_terms(frozen(model), frozen(held)), terms)
    compiled(frozen(model)).allocation(frozen(held)["N"])
    assert [len(one.signatures) for one in (rounds, evidences, stick_value)] == count


def test_rounds_beside_atoms_that_stay(case):
    model, batch, start = case
    stop = Stop(most=4, least=-np.inf)
    found, value = small_rounds(model, start, batch, stop, start.scale(2.0))
    expected, by_loops = loops(model, start, batch, stop, start.scale(2.0))
    assert_same(found, expected)
    assert value == pytest.approx(by_loops, abs=1e-7)


def test_rounds_end_when_a_cluster_goes(case):
    model, batch, start = case
    found, _ = small_rounds(model, start, batch, Stop(most=50, least=-np.inf, drop=0.25, whole=True))
    assert 1 <= found.n_clusters < K


def test_a_step_tracks_pairs(case):
    model, batch, start = case
    pairs = all_pairs(start.ids)
    found, expected = a_step(model, start, batch, pairs), model.local_step(model.global_step(start), batch, pairs)
    assert_same(found, expected)
    np.testing.assert_allclose(found.pair_values["H"], expected.pair_values["H"], rtol=1e-9)
    assert_same(found.merge(0, 1), expected.merge(0, 1))


def test_evidences(case):
    model, _, start = case
    settings = compiled(model).settings
    found = evidences(*settings[:-1], *(start[name] for name in NAMES[:-1]))
    np.testing.assert_allclose(found, model.best_data_terms(start), rtol=1e-12)
    np.testing.assert_allclose(best_terms(model, start), found, rtol=0)


def test_stick_value(case):
    model, _, start = case
    found = stick_value(model.allocation.gamma, start["N"])
    assert found == pytest.approx(model.allocation_terms(start)["allocation"], rel=1e-12)


def test_hard_rounds(case):
    model, batch, _ = case
    start = np.random.default_rng(5).integers(K, size=N)
    for most in (0, 1, 7):
        labels = start.copy()
        values = compiled(model).kmeans(batch.x, batch.weights, labels, K, most)
        np.testing.assert_array_equal(labels, hard_kmeans(model, batch, start, K, most))
        expected = summarize_assigned(model, batch, labels, K)
        for name in NAMES:
            np.testing.assert_allclose(values[name], expected[name], rtol=1e-11, atol=1e-9)


def test_hard_rounds_leave_no_cluster_empty():
    y, labels = np.array([[0.0, 0.1, 0.2, 50.0]]), np.array([0, 0, 1, 2])
    n, x, xx = np.zeros(3), np.zeros((3, 1)), np.zeros((3, 1))
    settings = 4.0, 1.0, np.zeros(1), np.eye(1), np.zeros((1, 1)), 0.0
    assert hard_rounds(*settings, 5, y, np.ones(4), labels, n, x, xx)
    assert n.min() >= 1.0 and n.sum() == 4.0


def test_statistics_that_double_precision_cannot_hold():
    """The loops then say why; the kernels only say that they found nothing."""
    bad = np.array([[np.nan]])
    settings = 4.0, 1.0, np.zeros(1), np.eye(1), np.zeros((1, 1)), 0.0
    assert np.isnan(evidences(*settings, np.ones(1), bad, bad)).all()
    own = np.ones(1), bad, bad.copy(), np.zeros(1)
    rest = [np.zeros_like(value) for value in own]
    y, counts = np.ones((1, 3)), np.ones(3)
    k, value = rounds(*settings, 1.0, *Stop(most=2, least=0.0), y, counts, *rest, *own, np.arange(1), np.zeros((0, 1)))
    assert k == 1 and np.isnan(value)
    own = np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), np.zeros(1)
    far = np.full((1, 3), 1e200)  # its squares overflow
    k, value = rounds(*settings, 1.0, *Stop(2, 0.0).plain(), far, counts, *rest, *own, np.arange(1), np.zeros((0, 1)))
    assert k == 1 and np.isnan(value)
    assert not hard_rounds(*settings, 2, y * np.nan, counts, np.zeros(3, np.int64), np.ones(1), bad, bad)


def test_others_take_the_loops(case):
    model, batch, _ = case
    assert isinstance(compiled(model, batch), SmallRun)
    with fixed_order(True):
        assert compiled(model, batch) is None
    assert compiled(replace(model, allocation=bnp.DPMixture(top=2))) is None
    assert compiled(replace(model, allocation=bnp.PitmanYorMixture())) is None
    assert compiled(replace(model, observation=replace(model.observation, missing="marginalise", grain=None))) is None
    assert compiled(model, replace(batch, labels=np.zeros(N, np.int64))) is None
    assert compiled(model, replace(batch, links=np.zeros(N, np.int64))) is None
