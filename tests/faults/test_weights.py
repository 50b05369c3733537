"""Weights off the main path: k-means||, scores, batches put together, stores that somebody else wrote."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import zarr
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch, concatenate
from bnp_dask.errors import DataError

FEW = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])


def k_means(x, weights, n_clusters):
    """The start of k-means|| as a run sees it, and what it warned of."""
    model = bnp.Model(bnp.FiniteMixture(), bnp.FixedVarianceGaussian(variance=1.0, m=0.0, center=0.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        init, laps = bnp.KMeansParallel(n_clusters), bnp.Memoized(laps=1)
        source = bnp.as_source(x, weights=weights, batch_size=40)
        result = bnp.train(model, source, init=init, schedule=laps, moves=(), rng=3)
    return result.posterior, [str(w.message) for w in caught]


def test_atoms_of_weight_zero_are_no_candidates():
    """A far blob of weight zero, of many distinct atoms: none is, beside six that count, three of them distinct."""
    rng = np.random.default_rng(0)
    x = np.concatenate([FEW, FEW, 1000 + 50 * rng.normal(size=(120, 2))])
    weights = np.repeat([1.0, 0.0], [6, 120])
    posterior, said = k_means(x, weights, 6)
    assert posterior.n_clusters == 3
    (text,) = [s for s in said if "candidates from all atoms" in s]
    assert int(re.search(r"the (\d+) candidates", text)[1]) <= 6
    assert np.abs(posterior.observation.m).max() < 10
    with pytest.raises(DataError, match="array has 6 atoms"):  # that count, as it says of data without the others
        k_means(x, weights, 7)


def test_candidates_weigh_what_the_atoms_do_that_they_attract():
    """A thousand atoms of weight zero at one place do not buy it one of three clusters."""
    x = np.concatenate([np.full((1000, 2), 50.0), FEW])
    posterior, _ = k_means(x, np.concatenate([np.zeros(1000), np.ones(3)]), 3)
    assert posterior.n_clusters == 3
    np.testing.assert_allclose(posterior.summary["N"], 1.0, rtol=1e-3)


def test_heavy_atoms_are_as_good_as_so_many_light_ones():
    rng = np.random.default_rng(1)
    x = np.concatenate([FEW[i] + 0.1 * rng.normal(size=(30, 2)) for i in range(3)])
    weights = np.repeat([1.0, 50.0, 1.0], 30)
    posterior, _ = k_means(x, weights, 3)
    np.testing.assert_allclose(np.sort(posterior.summary["N"]), [30, 30, 1500], rtol=1e-3)


# -- scores -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def posterior():
    x = np.random.default_rng(0).normal(size=(200, 2))
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    schedule = bnp.Memoized(laps=3, tolerance=1e9, count_tolerance=1.0)
    return bnp.train(model, x, init=bnp.BregmanKMeans(2), schedule=schedule, moves=()).posterior


@pytest.mark.parametrize("far", [1e30, 1e200, -1e308, np.nan, np.inf])
def test_an_atom_that_counts_zero_times_does_not_count_whatever_it_is(posterior, far):
    x = np.random.default_rng(1).normal(size=(50, 2))
    with_it = np.concatenate([x[:20], [[0.0, far]], x[20:]])
    weights = np.insert(np.ones(50), 20, 0.0)
    found = bnp.score(posterior, bnp.as_source(with_it, weights=weights))
    assert found == pytest.approx(bnp.score(posterior, x), rel=1e-14)
    if not np.abs(far) < 1e140:
        with pytest.raises(DataError, match="row 20, column 1"):
            bnp.score(posterior, with_it)


def test_a_sequence_that_counts_zero_times_does_not_count():
    x = np.random.default_rng(1).normal(size=(60, 1))
    source = bnp.as_source(x, groups=[0, 20, 40, 60])
    hmm = bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian())
    schedule = bnp.Memoized(laps=2, tolerance=1e9, count_tolerance=1.0)
    found = bnp.train(hmm, source, init=bnp.BregmanKMeans(2), schedule=schedule, moves=()).posterior
    far = x.copy()
    far[25] = 1e250
    weighted = bnp.as_source(far, groups=[0, 20, 40, 60], weights=np.repeat([1.0, 0.0, 2.0], 20))
    first, last = (bnp.score(found, bnp.as_source(x[rows], groups=[0, 20])) for rows in (slice(0, 20), slice(40, 60)))
    assert bnp.score(found, weighted) == pytest.approx((first + 2 * last) / 3, rel=1e-12)


# -- batches ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_batches_with_and_without_weights_are_put_together(kind):
    make = sparse.csr_array if kind == "sparse" else np.asarray
    parts = [Batch(make(np.ones((2, 3))), np.array([2.0, 0.5])), Batch(make(np.ones((3, 3)))), Batch(make(np.eye(3)))]
    both = concatenate(parts)
    np.testing.assert_array_equal(both.weights, [2.0, 0.5, 1, 1, 1, 1, 1, 1])
    assert both.total_weight == sum(part.total_weight for part in parts)
    assert concatenate(parts[1:]).weights is None
    np.testing.assert_array_equal(concatenate(parts[:2][::-1]).weights, [1, 1, 1, 2.0, 0.5])


# -- stores of others --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("kind", ["rows", "counts"])
def test_a_store_with_bad_weights_is_refused_by_all_who_read_it(tmp_path, posterior, kind, wrong):
    x = np.random.default_rng(2).poisson(2.0, (30, 2)) + 1.0
    weights = np.ones(30)
    if kind == "rows":
        np.save(tmp_path / "x.npy", x)
    else:
        sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(x))
    bnp.ingest(tmp_path / ("x.npy" if kind == "rows" else "x.npz"), tmp_path / "x.zarr", batch_size=10)
    group = zarr.open_group(tmp_path / "x.zarr", mode="r+")
    group.create_array("weights", data=weights)
    group["weights"][17] = wrong
    if kind == "counts":
        model = bnp.Model(bnp.DPMixture(), bnp.Multinomial())
        schedule = bnp.Memoized(laps=3, tolerance=1e9, count_tolerance=1.0)
        posterior = bnp.train(model, x, init=bnp.RandomExamples(2), schedule=schedule, moves=()).posterior
    uses = [
        lambda data: bnp.predict(posterior, data),
        lambda data: bnp.score(posterior, data),
        lambda data: bnp.train(posterior.model, data),
        lambda data: bnp.as_source(data).reader(1)(),
    ]
    for use in uses:
        with pytest.raises(DataError, match="weight of row 7 is"):
            use(tmp_path / "x.zarr")
