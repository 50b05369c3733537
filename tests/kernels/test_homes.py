"""Screening of atoms by their homes against whitening of every pair: nothing that matters is left out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import bnp_dask as bnp
from bnp_dask.core.survey import survey_batch
from bnp_dask.kernels.gaussian.screen import (
    FIRST,
    MARGIN,
    Groups,
    Screen,
    exact_pairs,
    merged_lists,
    suits_homes,
    weights_by_home,
)
from bnp_dask.structure import screened
from tests.kernels.test_screen import atoms, clusters, exact, prepared, rounding, settings_of_data


def dense(found, n):
    """Listed weights, ``-inf`` elsewhere, ``(n, K)``."""
    out = np.full((n, found.n_clusters), -np.inf)
    out[np.repeat(np.arange(n), np.diff(found.offsets)), found.index] = found.value
    return out


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), settings_of_data)
def test_no_cluster_within_the_margin_is_left_out(seed, data):
    forms, log_weights, x = prepared(seed, data)
    screen = Screen(forms, log_weights)
    if screen.coarse is None:
        return
    weights = exact(forms, log_weights, x)
    error = rounding(forms, log_weights, weights)
    listed = dense(weights_by_home(screen, x), len(x))
    best = weights.max(axis=1, keepdims=True)
    assert (np.isfinite(listed) | (weights < best - MARGIN + 2.0 * error) | np.isnan(weights)).all()
    lists = weights_by_home(screen, x)
    for row in range(len(x)):
        own = lists.index[lists.offsets[row] : lists.offsets[row + 1]]
        assert len(own) and (np.diff(own) > 0).all()


def many(k=150, d=6, n=3000, spread=8.0):
    """Separated clusters, atoms of which some are far from all, and their screen."""
    rng = np.random.default_rng(0)
    forms = clusters(rng, k, d, spread=spread)
    log_weights = np.log(np.full(k, 1.0 / k))
    return forms, log_weights, atoms(rng, forms, n, far=0.01), Screen(forms, log_weights)


def test_few_clusters_of_many_are_listed_and_their_weights_are_exact():
    forms, log_weights, x, screen = many()
    assert suits_homes(screen, x)
    found = weights_by_home(screen, x)
    assert found.tail is None and len(found.index) < 3 * len(x)
    ours, theirs = logsumexp(dense(found, len(x)), axis=1), logsumexp(exact(forms, log_weights, x), axis=1)
    assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("wrong", ["first", "farthest"])
def test_a_poor_home_costs_no_cluster(monkeypatch, wrong):
    forms, log_weights, x, screen = many(k=40, n=500)
    weights = exact(forms, log_weights, x)
    home = np.zeros(len(x), np.int64) if wrong == "first" else weights.argmin(axis=1)
    monkeypatch.setattr(Groups, "homes", lambda self, z: home)
    monkeypatch.setattr("bnp_dask.kernels.gaussian.screen.FAR", 1e9)  # no atom is screened alone
    listed = dense(weights_by_home(screen, x), len(x))
    assert (np.isfinite(listed) | (weights < weights.max(axis=1, keepdims=True) - MARGIN)).all()


@pytest.mark.parametrize("d", [FIRST, FIRST + 8])
def test_balls_and_boxes_leave_out_nothing_that_matters(d):
    """With few features no ball is tried; with more, it is what leaves out nearly all."""
    forms, log_weights, x, screen = many(k=300, d=d, n=2000, spread=8.0)
    weights = exact(forms, log_weights, x)
    lists = weights_by_home(screen, x)
    listed = dense(lists, len(x))
    assert (np.isfinite(listed) | (weights < weights.max(axis=1, keepdims=True) - MARGIN)).all()
    assert len(lists.index) < 3 * len(x)


def test_one_screen_serves_all_batches_of_a_posterior(monkeypatch):
    made = []
    monkeypatch.setattr(screened, "Screen", lambda *given: made.append(given) or Screen(*given))
    forms, log_weights, _, _ = many(k=5, n=5)
    owners = [type("Owner", (), {})() for _ in range(3)]
    for owner in (*owners[:2], *owners[:2]):
        screened._kept(owner, forms, log_weights)
    assert len(made) == 2
    assert screened._kept(owners[0], forms, log_weights) is screened._kept(owners[0], forms, log_weights)
    screened._kept(owners[2], forms, log_weights)
    assert len(screened._screens) == screened.KEPT
    del owners, owner
    assert not any(len(kept.log_weights) == 5 for kept in screened._screens.values())


def test_weights_of_pairs_are_those_of_whitening():
    forms, log_weights, x, screen = many(k=10, n=50)
    offsets, index = 10 * np.arange(51), np.tile(np.arange(10), 50)
    found = exact_pairs(screen, x - forms.center, offsets, index).reshape(50, 10)
    assert np.allclose(found, exact(forms, log_weights, x), rtol=1e-10)


def test_atoms_between_clusters_do_not_suit():
    _, _, x, screen = many(spread=0.1)
    assert not suits_homes(screen, x)


def test_lists_of_some_atoms_and_of_the_others_are_put_in_order():
    rows, others = np.array([0, 2]), np.array([1])
    offsets, index = merged_lists(
        rows, np.array([0, 2, 3]), np.array([4, 7, 5]), others, np.array([0, 2]), np.array([1, 9]), 3
    )
    assert offsets.tolist() == [0, 2, 4, 5] and index.tolist() == [4, 7, 1, 9, 5]


@pytest.mark.parametrize(("weighted", "d"), [(False, 5), (True, 5), (False, FIRST + 8)])
def test_the_objective_is_that_of_the_dense_step(monkeypatch, weighted, d):
    data = bnp.VirtualMixture(4_000, d, 60, spread=9.0, batch_size=4_000)
    batch = data.reader(0)()
    if weighted:
        batch = replace(batch, weights=np.random.default_rng(0).uniform(0.5, 2.0, batch.n_atoms))
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()).with_prior(survey_batch(batch))
    resp = np.eye(60)[data.labels(0)]
    posterior = model.global_step(model.summarize(np.arange(60), batch, resp))
    monkeypatch.setattr(screened, "MANY", 8)
    monkeypatch.setattr(screened, "worthwhile", lambda *_: True)
    ways = [kind is not None for _, kind in model.structure.screened(model, posterior, batch)]
    assert ways == [True]
    double = replace(model, precision="double")
    one, other = model.visit(posterior, batch).summary, double.visit(posterior, batch).summary
    values = [sum(model.elbo(posterior, summary).values()) for summary in (one, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert np.allclose(one["N"], other["N"], rtol=1e-12, atol=1e-9)
