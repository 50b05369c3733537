"""Squared distances of atoms to clusters against plain loops, exact arithmetic, and products of matrices."""

from fractions import Fraction

import numpy as np
import pytest

from bnp_dask.kernels.gaussian.quadratic import ROWS, cholesky_factors, cluster_distances, whitened_squares


def plain(y, shift, roots):
    """One atom, one cluster, one sum after the other."""
    out = np.zeros((len(y), len(shift)))
    for n, atom in enumerate(y):
        for k, mean in enumerate(shift):
            for i in range(len(mean)):
                z = sum(roots[k, i, j] * (atom[j] - mean[j]) for j in range(i + 1))
                out[n, k] += z * z
    return out


def clusters(rng, k, d):
    a = rng.standard_normal((k, d, d))
    return rng.standard_normal((k, d)), cholesky_factors(a @ a.transpose(0, 2, 1) + np.eye(d))[1]


@pytest.mark.parametrize("n", [0, 1, ROWS - 1, ROWS, 2 * ROWS + 5])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 2), (2, 7), (5, 16)])
def test_distances_are_those_of_plain_loops(n, k, d):
    rng = np.random.default_rng(n + d)
    shift, roots = clusters(rng, k, d)
    y = rng.standard_normal((n, d))
    np.testing.assert_allclose(cluster_distances(y, shift, roots), plain(y, shift, roots), rtol=1e-13)


def test_rows_do_not_depend_on_their_tile():
    rng = np.random.default_rng(1)
    shift, roots = clusters(rng, 4, 6)
    y = rng.standard_normal((100, 6))
    whole = cluster_distances(y, shift, roots)
    for rows in (slice(0, 1), slice(31, 33), slice(7, 90)):
        np.testing.assert_array_equal(cluster_distances(y[rows], shift, roots), whole[rows])


def test_what_is_above_the_diagonal_and_how_arrays_lie_does_not_matter():
    rng = np.random.default_rng(2)
    shift, roots = clusters(rng, 3, 5)
    y = rng.standard_normal((40, 5)).astype(np.float32)
    expected = cluster_distances(y.astype(np.float64), shift, roots)
    noisy = roots + np.triu(np.full((5, 5), np.nan), 1)
    np.testing.assert_array_equal(cluster_distances(np.asfortranarray(y), shift, noisy), expected)


def test_an_atom_that_is_not_finite_spoils_no_other():
    rng = np.random.default_rng(3)
    shift, roots = clusters(rng, 2, 3)
    y = rng.standard_normal((ROWS, 3))
    expected = cluster_distances(y, shift, roots)
    y[[4, 9], 0] = np.nan, np.inf
    found = cluster_distances(y, shift, roots)
    assert not np.isfinite(found[[4, 9]]).any()
    keep = np.delete(np.arange(ROWS), [4, 9])
    np.testing.assert_array_equal(found[keep], expected[keep])


def exact(y, shift, root):
    """The distance of one atom in exact fractions, rounded once."""
    away = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(y, shift, strict=True)]
    rows = range(len(away))
    return float(sum(sum(Fraction(float(root[i, j])) * away[j] for j in range(i + 1)) ** 2 for i in rows))


@pytest.mark.parametrize("condition", [1e0, 1e6, 1e12])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_no_worse_than_products_for_ill_conditioned_clusters_far_away(condition, offset):
    rng = np.random.default_rng(4)
    d = 8
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scale = (q * np.geomspace(1.0, 1.0 / condition, d)) @ q.T
    root = cholesky_factors(scale[None])[1]
    shift = offset + rng.standard_normal((1, d))
    y = shift + rng.standard_normal((20, d))
    truth = np.array([exact(row, shift[0], root[0]) for row in y])
    found = cluster_distances(y, shift, root)[:, 0]
    products = whitened_squares(y, shift[0], root[0])
    error, before = np.abs(found / truth - 1.0).max(), np.abs(products / truth - 1.0).max()
    assert error <= 2.0 * before + 1e-14
