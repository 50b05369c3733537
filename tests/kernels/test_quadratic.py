"""Quadratic features against direct sums over atoms."""

import numpy as np
import pytest
from numpy.random import default_rng
from threadpoolctl import threadpool_limits

from bnp_dask.kernels.gaussian import quadratic
from bnp_dask.kernels.gaussian.quadratic import (
    moment_sums,
    n_packed,
    pack,
    packed_outer,
    quadratic_coefficients,
    quadratic_log_lik,
    scatter_matrices,
    unpack,
    whitened_squares,
)
from bnp_dask.kernels.mixture import SparseResp

SHAPES = [(1, 1, 1), (7, 1, 3), (40, 3, 5), (600, 5, 4), (3000, 2, 9), (1100, 17, 6), (300, 80, 12), (300, 80, 3)]


def naive_log_lik(x, center, coefficients, n_linear):
    d = x.shape[1]
    out = np.empty((len(x), len(coefficients)))
    for n, row in enumerate(x - (0.0 if center is None else center)):
        products = [row[i] * row[j] for i in range(d) for j in range(i, d)]
        out[n] = coefficients @ np.concatenate([row[:n_linear], [1.0], products])
    return out


def naive_moments(x, center, resp):
    y = x - (0.0 if center is None else center)
    return np.einsum("nk,nd->kd", resp, y), pack(np.einsum("nk,ni,nj->kij", resp, y, y, optimize=True))


def random_sparse(rng, n, k, width):
    index = np.sort(rng.permuted(np.tile(np.arange(k), (n, 1)), axis=1)[:, :width], axis=1)
    value = rng.dirichlet(np.ones(width), size=n)
    value[rng.random((n, width)) < 0.1] = 0.0
    return SparseResp(np.ascontiguousarray(index), value, k)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max(initial=1.0))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_pack_and_unpack(d):
    a = default_rng(d).standard_normal((3, d, d))
    symmetric = a + a.transpose(0, 2, 1)
    packed = pack(symmetric)
    assert packed.shape == (3, n_packed(d))
    np.testing.assert_array_equal(unpack(packed, d), symmetric)
    y = default_rng(d + 1).standard_normal(d)
    expected = [-0.5 * y @ s @ y for s in symmetric]
    close(quadratic_coefficients(symmetric) @ pack(np.outer(y, y)), expected)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_log_lik_is_the_polynomial(n, d, k, centred):
    rng = default_rng(n)
    x, center = rng.standard_normal((n, d)), rng.standard_normal(d) if centred else None
    coefficients = rng.standard_normal((k, (d if centred else 0) + 1 + n_packed(d)))
    close(quadratic_log_lik(x, center, coefficients), naive_log_lik(x, center, coefficients, d if centred else 0))


def test_log_lik_of_no_atoms():
    assert quadratic_log_lik(np.zeros((0, 3)), np.zeros(3), np.zeros((4, 10))).shape == (0, 4)
    first, second = moment_sums(np.zeros((0, 3)), np.zeros(3), np.zeros((0, 4)))
    assert not first.any()
    assert second.shape == (4, 6)
    assert not second.any()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_moments(n, d, k, centred):
    rng = default_rng(n)
    x, center = rng.standard_normal((n, d)), rng.standard_normal(d) if centred else None
    resp = rng.dirichlet(np.ones(k), size=n)
    for given in (resp, np.asfortranarray(resp), np.repeat(resp, 2, axis=1)[:, ::2]):
        for actual, expected in zip(moment_sums(x, center, given), naive_moments(x, center, resp)):
            close(actual, expected)


@pytest.mark.parametrize(("n", "d", "k", "width"), [(5, 3, 4, 1), (500, 2, 6, 2), (900, 12, 3, 2), (2000, 20, 30, 3)])
def test_sparse_moments_equal_those_of_the_dense_matrix(n, d, k, width):
    rng = default_rng(n)
    x, center, resp = rng.standard_normal((n, d)), rng.standard_normal(d), random_sparse(rng, n, k, width)
    kept = resp.value.copy()
    expected = naive_moments(x, center, resp.to_dense())
    for actual, wanted in zip(moment_sums(x, center, resp), expected):
        close(actual, wanted)
    np.testing.assert_array_equal(resp.value, kept)
    atom, slot = np.nonzero(resp.value)
    pairs = (atom, resp.index[atom, slot], resp.value[atom, slot], k)
    for way in (quadratic._grouped_sums, quadratic._scattered_sums):
        for actual, wanted in zip(way(x, center, *pairs), expected):
            close(actual, wanted)


def test_dense_with_few_nonzeros_takes_the_grouped_way(monkeypatch):
    rng = default_rng(3)
    x = rng.standard_normal((3000, 24))
    resp = random_sparse(rng, 3000, 40, 2).to_dense()
    monkeypatch.setattr(quadratic, "_dense_sums", None)
    for actual, expected in zip(moment_sums(x, None, resp), naive_moments(x, None, resp)):
        close(actual, expected)


def test_clusters_without_atoms_have_zero_moments():
    x = default_rng(0).standard_normal((50, 3))
    resp = SparseResp(np.full((50, 1), 2), np.ones((50, 1)), 4)
    first, second = moment_sums(x, None, resp)
    assert not first[[0, 1, 3]].any()
    assert not second[[0, 1, 3]].any()
    assert second[2].any()


@pytest.mark.parametrize("kind", ["dense", "grouped", "scattered"])
def test_bits_do_not_depend_on_memory_layout(kind):
    rng = default_rng(7)
    n, d, k = 1500, 12, 8
    wide = rng.standard_normal((n, d + 3))
    x, center = np.ascontiguousarray(wide[:, :d]), rng.standard_normal(d)
    resp = rng.dirichlet(np.ones(k), size=n) if kind == "dense" else random_sparse(rng, n, k, 2)
    if kind == "scattered":
        x, wide, center = x[:, :3], wide[:, [0, 1, 2, 3]], center[:3]
    shifted = np.empty(x.size + 1)[1:].reshape(x.shape)
    shifted[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    coefficients = rng.standard_normal((k, x.shape[1] + 1 + n_packed(x.shape[1])))
    reference = (*moment_sums(x, center, resp), quadratic_log_lik(x, center, coefficients))
    for same in (wide[:, : x.shape[1]], shifted, frozen, np.asfortranarray(x)):
        again = (*moment_sums(same, center, resp), quadratic_log_lik(same, center, coefficients))
        for a, b in zip(again, reference):
            np.testing.assert_array_equal(a, b)


def test_bits_are_the_same_in_every_thread():
    from concurrent.futures import ThreadPoolExecutor

    rng = default_rng(8)
    x, center = rng.standard_normal((2500, 16)), rng.standard_normal(16)
    resp = rng.dirichlet(np.ones(8), size=2500)
    coefficients = rng.standard_normal((8, 17 + n_packed(16)))

    def run(_):
        return (*moment_sums(x, center, resp), quadratic_log_lik(x, center, coefficients))

    with threadpool_limits(1):
        reference = run(0)
        with ThreadPoolExecutor(4) as pool:
            for result in pool.map(run, range(8)):
                for a, b in zip(result, reference):
                    np.testing.assert_array_equal(a, b)


def test_blocks_cover_the_triangle():
    for d, limit in [(1, 1), (5, 1), (5, 7), (64, 2304), (300, 2304)]:
        blocks = list(quadratic._blocks(d, limit))
        assert blocks[0][0] == blocks[0][2] == 0
        assert (blocks[-1][1], blocks[-1][3]) == (d, n_packed(d))
        for (i, j, start, stop), after in zip(blocks, [*blocks[1:], None]):
            assert stop - start == sum(d - a for a in range(i, j))
            assert stop - start <= limit or j == i + 1
            assert after is None or (j, stop) == (after[0], after[2])


def test_whitened_squares():
    rng = default_rng(9)
    a = rng.standard_normal((4, 4))
    scale, y, shift = a @ a.T + np.eye(4), rng.standard_normal((30, 4)), rng.standard_normal(4)
    root = np.linalg.inv(np.linalg.cholesky(scale))
    expected = [(row - shift) @ np.linalg.inv(scale) @ (row - shift) for row in y]
    np.testing.assert_allclose(whitened_squares(y, shift, root), expected, rtol=1e-12)
    np.testing.assert_allclose(whitened_squares(y - shift, None, root), expected, rtol=1e-12)


def test_scatter_matrices_are_those_of_numpy():
    rng = np.random.default_rng(0)
    x, mean, away, square = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), np.arange(3.0)
    xx = rng.normal(size=(3, n_packed(4)))
    wanted = unpack(xx - packed_outer(x, mean) + square[:, None] * packed_outer(away, away), 4)
    np.testing.assert_array_equal(scatter_matrices(xx, x, mean, square, away), wanted)
