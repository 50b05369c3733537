"""Loops of the document step in fixed order against those that leave it to the compiler."""

import numpy as np
import pytest

from bnp_dask.kernels.numeric import special
from bnp_dask.kernels.topics import document_pass, document_sums, fixed_pass


def document(width, n, seed=0):
    rng = np.random.default_rng(seed)
    long = document_pass.padded(n)
    weight = np.zeros(long)
    weight[:n] = rng.integers(1, 5, size=n)
    return rng.random((width, long)) + 1e-3, np.arange(width), rng.random(width), weight


@pytest.mark.parametrize(("width", "n"), [(1, 1), (2, 16), (3, 17), (4, 40), (7, 64), (21, 100)])
def test_a_sweep_gives_what_the_fast_one_gives(width, n):
    lik, live, share, weight = document(width, n)
    found = []
    for sweep in (document_pass.sweep, fixed_pass.sweep):
        total, ratio, grow = np.empty(len(weight)), np.empty(len(weight)), np.empty(width)
        sweep(lik, live, width, share, weight, total, ratio, grow)
        found.append(np.concatenate([total, ratio, grow]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-13)


@pytest.mark.parametrize(("width", "n"), [(1, 3), (5, 33)])
def test_final_responsibilities_are_those_of_the_fast_ones(width, n):
    found = []
    for assign in (document_sums.assign, fixed_pass.assign):
        lik, live, share, weight = document(width, n)
        scratch = np.empty((3, len(weight)))
        count, linear = np.empty(width), np.empty(width)
        bits = scratch[1].view(np.int64)
        assign(lik, live, width, share, weight, np.zeros(0), scratch[0], scratch[1], bits, scratch[2], count, linear)
        found.append(np.concatenate([lik.ravel(), count, linear]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)


def test_a_number_that_is_none_shows():
    lik, live, share, weight = document(3, 20)
    lik[1, 4] = np.nan
    scratch, count = np.empty((3, len(weight))), np.empty((2, 3))
    bits = scratch[1].view(np.int64)
    fixed_pass.assign(lik, live, 3, share, weight, np.zeros(0), *scratch[:2], bits, scratch[2], *count)
    assert np.isnan(count).all()


@pytest.mark.parametrize("width", [1, 8, 19])
def test_tables_are_read_as_the_fast_loops_read_them(width):
    rng = np.random.default_rng(width)
    table, share, rows = rng.random((30, width)), rng.random(width), rng.integers(30, size=21)
    totals = [kernel.row_totals(table, share) for kernel in (document_pass, fixed_pass)]
    np.testing.assert_allclose(totals[1], totals[0], rtol=1e-13)
    found = []
    for kernel in (document_pass, fixed_pass):
        lik, grow = np.empty((width, document_pass.padded(21))), np.empty(width)
        kernel.gather_all(table, rows, lik, 1.0 / totals[0][rows], grow)
        found.append((lik, grow))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-13)


def test_exponentials_of_digamma_are_those_of_the_fast_ones():
    rng = np.random.default_rng(0)
    mass, prior, out = rng.gamma(0.5, 10.0, size=50), rng.gamma(1.0, size=50) + 0.01, np.empty((2, 50))
    bits = np.empty(50, np.int64)
    for function, to in zip((special.exp_psi, special.fixed_exp_psi), out, strict=True):
        function(mass, prior, 50, to, bits, bits.view(np.float64))
    np.testing.assert_allclose(out[1], out[0], rtol=1e-12)
