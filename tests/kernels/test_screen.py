"""Screening against whitening of every pair: nothing that matters is left out, whatever the data look like."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from bnp_dask.kernels.gaussian import screen as kernel
from bnp_dask.kernels.gaussian.quadratic import moment_sums
from bnp_dask.kernels.gaussian.screen import CORE, HARMLESS, MARGIN, Costs, Forms, Patience, Screen, screened_weights
from bnp_dask.kernels.mixture import TINY, resp_from_screened


def covariance(rng, d, condition):
    """Random rotation of variances between 1 and 1 / condition."""
    q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return (q * np.geomspace(1.0, 1.0 / condition, d)) @ q.T


def clusters(rng, k, d, condition=1.0, spread=3.0, offset=0.0, scale=1.0, own=0.5, shared=True):
    """Forms of K clusters; ``own`` is how much their covariances differ, ``shared`` whether they are skewed alike."""
    common = covariance(rng, d, condition)
    root = np.linalg.cholesky(common)
    covs = np.empty((k, d, d))
    for i in range(k):
        size = np.exp(own * rng.standard_normal())
        differs = covariance(rng, d, np.exp(own))
        covs[i] = size * (root @ differs @ root.T) if shared else size * covariance(rng, d, condition)
    nu = d + 2.0 + 100.0 * rng.random(k)
    center = offset * rng.standard_normal(d)
    shift = spread * rng.standard_normal((k, d)) @ root.T
    covs = 0.5 * (covs + covs.transpose(0, 2, 1)) * scale**2
    level = -0.5 * np.linalg.slogdet(covs)[1]
    return Forms(center, scale * shift, covs * nu[:, None, None], nu, level)


def atoms(rng, forms, n, far=0.05):
    """Atoms from the clusters, a few of them far away from all."""
    k, d = forms.shift.shape
    label = rng.integers(k, size=n)
    roots = np.linalg.cholesky(forms.scale / forms.nu[:, None, None])
    noise = rng.standard_normal((n, d)) * np.where(rng.random(n) < far, 1e4, 1.0)[:, None]
    return forms.center + forms.shift[label] + np.einsum("nij,nj->ni", roots[label], noise)


def exact(forms, log_weights, x):
    """W of all pairs, ``(n, K)``, one cluster at a time."""
    y = x - forms.center
    out = np.empty((len(x), len(forms.nu)))
    for k in range(len(forms.nu)):
        root = np.linalg.inv(np.linalg.cholesky(forms.scale[k]))
        z = (y - forms.shift[k]) @ root.T
        out[:, k] = log_weights[k] + forms.level[k] - 0.5 * forms.nu[k] * np.sum(z * z, axis=1)
    return out


def rounding(forms, log_weights, weights):
    """What rounding of the factors of ill-conditioned matrices may change in W."""
    condition = max(np.linalg.cond(s / np.sqrt(np.outer(np.diag(s), np.diag(s)))) for s in forms.scale)
    sizes = np.abs(forms.level).max() + np.abs(log_weights).max() + 1.0
    return 1e-14 * condition * (1.0 + np.abs(weights)) + 1e-13 * sizes


settings_of_data = st.fixed_dictionaries(
    {
        "k": st.integers(1, 40),
        "d": st.integers(1, 12),
        "condition": st.sampled_from([1.0, 1e2, 1e6, 1e10, 1e12]),
        "spread": st.sampled_from([0.0, 0.3, 1.0, 4.0, 100.0]),
        "offset": st.sampled_from([0.0, 1.0, 1e8]),
        "scale": st.sampled_from([1.0, 1e-25, 1e-8, 1e8, 1e25]),
        "own": st.sampled_from([0.0, 0.5, 3.0]),
        "shared": st.booleans(),
    }
)


def prepared(seed, given_settings, n=300):
    rng = np.random.default_rng(seed)
    forms = clusters(rng, **given_settings)
    if given_settings["offset"] > 1e3 * given_settings["scale"]:
        forms = replace(forms, center=forms.center * given_settings["scale"])
    log_weights = np.log(rng.dirichlet(np.full(given_settings["k"], 0.3)) + 1e-300)
    return forms, log_weights, atoms(rng, forms, n)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), settings_of_data)
def test_bounds_are_never_broken(seed, data):
    forms, log_weights, x = prepared(seed, data)
    screen = Screen(forms, log_weights)
    weights = exact(forms, log_weights, x)
    error = rounding(forms, log_weights, weights)
    for name in ("coarse", "fine"):
        bound = getattr(screen, name)
        if bound is None:
            continue
        seen = kernel._Seen(screen, bound, x)
        size = seen.size[:, None].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            slack = bound.slack[0] * size**2 + bound.slack[1] * size + bound.slack[2]
            above = seen.weights + slack - weights
        # what is not a number is never left out
        assert np.all(np.isnan(above) | (above > -error))
        if name == "fine":
            with np.errstate(over="ignore", invalid="ignore"):
                assert np.all(np.isnan(above) | (above < 2.0 * slack + error))


WAYS = ("coarse", "fine", "tail")


def force(monkeypatch, way):
    monkeypatch.setattr(kernel, "_way", lambda *_: way)


def reference(weights):
    """Responsibilities and their logs."""
    logs = weights - logsumexp(weights, axis=1, keepdims=True)
    resp = np.exp(logs)
    return np.where(resp < TINY, 0.0, resp), logs


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), data=settings_of_data)
def test_responsibilities_are_those_of_all_pairs(way, seed, data):
    forms, log_weights, x = prepared(seed, data)
    screen = Screen(forms, log_weights)
    if screen.coarse is None or (way != "coarse" and screen.fine is None):
        assert screened_weights(screen, x, Patience()) is None or way != "coarse"
        return
    with pytest.MonkeyPatch.context() as patch:
        force(patch, way)
        found = screened_weights(screen, x, Patience())
    assert (found.tail is not None) == (way == "tail")
    weights = exact(forms, log_weights, x)
    error = rounding(forms, log_weights, weights).max(axis=1)
    resp, entropy = resp_from_screened(found, None)
    want, logs = reference(weights)
    clear = error < 1e-3
    got = resp.to_dense()
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got.sum(axis=1), 1.0, rtol=1e-9)
    allowed = 3.0 * HARMLESS + 4.0 * error[clear, None]
    assert np.all(np.abs(got - want)[clear] <= allowed)
    if clear.all() and error.sum() < 1e-9:
        np.testing.assert_allclose(resp.to_dense().sum(axis=0), want.sum(axis=0), rtol=1e-10, atol=1e-9)
        expected = -np.sum(np.where(want > 0, want * logs, 0.0), axis=0)
        np.testing.assert_allclose(entropy, expected, rtol=1e-9, atol=1e-8)


@pytest.mark.first_case
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_objective_is_the_dense_one(way, condition):
    """Moments, counts and entropy, and from them the objective, to 1e-12 of it; overlapping clusters."""
    rng = np.random.default_rng(5)
    forms = clusters(rng, 30, 12, condition=condition, spread=1.5)
    log_weights = np.log(rng.dirichlet(np.ones(30)))
    x = atoms(rng, forms, 6000, far=0.0)
    with pytest.MonkeyPatch.context() as patch:
        force(patch, way)
        found = screened_weights(Screen(forms, log_weights), x, Patience())
    resp, entropy = resp_from_screened(found, None)
    weights = exact(forms, log_weights, x)
    want, _ = reference(weights)
    counts = resp.to_dense().sum(axis=0)
    np.testing.assert_allclose(counts, want.sum(axis=0), rtol=1e-10)
    first, second = moment_sums(x, forms.center, resp)
    first_all, second_all = moment_sums(x, forms.center, want)
    np.testing.assert_allclose(first, first_all, rtol=1e-10, atol=1e-10 * np.abs(first_all).max())
    np.testing.assert_allclose(second, second_all, rtol=1e-10, atol=1e-10 * np.abs(second_all).max())
    best = logsumexp(weights, axis=1).sum()
    # the objective of these responsibilities: linear in the moments, which are those of the pairs, plus entropy
    value = np.sum(resp.to_dense() * weights) + entropy.sum()
    np.testing.assert_allclose(value, best, rtol=1e-12)


def test_tail_is_small_and_lists_have_what_is_large():
    rng = np.random.default_rng(2)
    forms = clusters(rng, 40, 10, spread=2.0)
    log_weights = np.full(40, -np.log(40.0))
    x = atoms(rng, forms, 2000, far=0.0)
    with pytest.MonkeyPatch.context() as patch:
        force(patch, "tail")
        found = screened_weights(Screen(forms, log_weights), x, Patience())
    lengths = np.diff(found.offsets)
    assert lengths.min() >= 1
    assert lengths.mean() < 20
    resp, _ = resp_from_screened(found, None)
    assert 0 < resp.tail.max() <= np.exp(-CORE) * 1.01
    rows = np.repeat(np.arange(len(x)), lengths)
    assert not resp.tail[rows, resp.index].any()


def test_what_float32_cannot_hold_is_refused_and_not_wrong():
    rng = np.random.default_rng(3)
    forms = clusters(rng, 5, 4)
    tiny = forms.scale.copy()
    tiny[2] *= 1e-90
    assert Screen(replace(forms, scale=tiny), np.zeros(5)).coarse is None
    skewed = np.stack([covariance(rng, 4, 1e17) + 1e-18 * np.eye(4)] * 5)
    screen = Screen(replace(forms, scale=skewed), np.zeros(5))
    assert screened_weights(screen, rng.standard_normal((50, 4)), Patience()) is None


def test_atoms_beyond_float32_look_at_all_clusters():
    rng = np.random.default_rng(4)
    forms = clusters(rng, 8, 3)
    x = atoms(rng, forms, 40, far=0.0)
    x[7] = 1e30
    x[9] = -1e60
    with pytest.MonkeyPatch.context() as patch:
        force(patch, "fine")
        with np.errstate(over="ignore", invalid="ignore"):
            found = screened_weights(Screen(forms, np.zeros(8)), x, Patience())
    assert list(np.diff(found.offsets)[[7, 9]]) == [8, 8]
    resp, _ = resp_from_screened(found, None)
    want, _ = reference(exact(forms, np.zeros(8), x))
    np.testing.assert_allclose(resp.to_dense(), want, atol=1e-9)


def test_way_follows_the_overlap():
    rng = np.random.default_rng(6)
    k, d = 150, 24
    ways = []
    for spread, own in ((8.0, 0.3), (0.05, 0.02)):
        forms = clusters(rng, k, d, spread=spread, own=own)
        screen, patience = Screen(forms, np.full(k, -np.log(k))), Patience()
        found = screened_weights(screen, atoms(rng, forms, 1000, far=0.0), patience)
        ways.append("dense" if found is None else "tail" if found.tail is not None else "lists")
        assert (patience.rest > 0) == (found is None)
    assert ways == ["lists", "dense"]


def test_costs_grow_with_pairs():
    costs = Costs(100, 32)
    assert costs.coarse(1.0) < costs.fine(1.0) < costs.tail(1.0) < costs.dense(100.0)
    assert costs.coarse(100.0) > costs.dense(100.0)
    assert -np.log(TINY) < MARGIN
