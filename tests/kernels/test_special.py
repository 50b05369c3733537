"""Digamma and log gamma in vector code against scipy."""

import numpy as np
from numpy.testing import assert_allclose
from scipy.special import gammaln, psi

from bnp_dask.kernels.numeric.special import exp_psi, psi_gammaln, psi_one


def numbers():
    rng = np.random.default_rng(0)
    return np.concatenate([10 ** rng.uniform(-9, 9, 30_000), rng.uniform(0.5, 3.0, 5000), [1e-300, 1e-100, 1e20, 1e40]])


def test_digamma_and_log_gamma():
    x = numbers()
    found_psi, found_gamma = psi_gammaln(x)
    for found, exact in ((found_psi, psi(x)), (found_gamma, gammaln(x))):
        # beside their zeros, at 1.46 and at 1 and 2, the error is absolute
        assert_allclose(found, exact, rtol=1e-13, atol=1e-13)
    assert_allclose([psi_one(v) for v in x[::50]], psi(x[::50]), rtol=1e-13, atol=1e-13)


def test_the_exponential_of_digamma():
    x = numbers()
    x = x[x < 1e30]
    bits = np.empty(len(x), np.int64)
    out = np.empty(len(x))
    exp_psi(0.25 * x, 0.75 * x, len(x), out, bits, bits.view(np.float64))
    exact = np.exp(psi(x))
    visible = psi(x) > -600
    assert_allclose(out[visible], exact[visible], rtol=1e-12)
    assert (out[psi(x) < -700] == 0.0).all()
