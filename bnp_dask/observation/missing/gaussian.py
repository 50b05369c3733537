"""Gaussians of full covariance whose atoms lack entries.

For an atom that lacks the entries M and has the others O, q(z, x_M) takes the place of q(z) in the objective

    L = E[log p(x_O, x_M, z, pi, mu, Lam)] - E[log q(z, x_M)] - E[log q(pi, mu, Lam)].

With q(mu_k, Lam_k) held fixed and ``P = E[Lam_k] = nu_k B_k^-1``, E[log N(x | mu_k, Lam_k)] is quadratic in x, so L is
largest at

    q(x_M | z = k) = N(a_nk, P_MM^-1),      a_nk = m_M - P_MM^-1 P_MO (x_O - m_O),
    log r_nk = E[log pi_k] + level_k - nu_k (x - m)_O' B_OO^-1 (x - m)_O / 2 + (|M| log(2 pi) - log|P_MM|) / 2 + const:

the expected log likelihood, integrated over x_M.  With q(z, x_M) held fixed, statistics are expectations under it:
a_nk stands for x_M, and ``r_nk P_MM^-1`` is added to the block M of the second moments.  The term -E[log q(x_M | z)]
of L is the entropy ``sum_n r_nk H[N(a_nk, P_MM^-1)]``, which the score of cluster k includes (the field
``H_missing``).  Both steps raise L, so it never falls.  Atoms without any entry are in no statistic (the field ``gone``
counts them): they are integrated over before, and their log likelihood is zero.

Clusters that are merged keep both conditional distributions until their atoms are visited again: the entropy of a
mixture of the two is no smaller than the weighted sum of their entropies, which the statistics hold.  At a point
estimate P is the precision of the estimate, and this is EM.

References
----------
Ghahramani & Jordan (1994), "Supervised learning from incomplete data via an EM approach", with beliefs about the
parameters in place of point estimates; thesis eqs. 3.22-3.25 for L.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.errors import NumericalError
from bnp_dask.kernels.gaussian.conditional import add_completed, add_conditional_means, add_marginal, patterns_of
from bnp_dask.kernels.gaussian.factors import cholesky_factors
from bnp_dask.kernels.gaussian.quadratic import precision_of, whitened_squares
from bnp_dask.kernels.mixture.resp import Resp
from bnp_dask.kernels.numeric.arithmetic import log, matmul
from bnp_dask.observation import wishart
from bnp_dask.observation.missing.entries import rows_of


class Beliefs(Protocol):
    """Parameters of a Normal-Wishart, see :class:`bnp_dask.observation.normal_wishart.NormalWishart`."""

    @property
    def nu(self) -> np.ndarray: ...
    @property
    def B(self) -> np.ndarray: ...
    @property
    def m(self) -> np.ndarray: ...
    @property
    def kappa(self) -> np.ndarray: ...
    @property
    def shift(self) -> np.ndarray: ...
    @property
    def theta(self) -> np.ndarray: ...


def _precision(params: Beliefs) -> np.ndarray:
    """P, ``(K, D, D)``; the scale matrices B may have stayed behind."""
    return precision_of(params.theta[:, params.shift.shape[1] + 1 :])


def integrate(params: Beliefs, y: np.ndarray, gaps: np.ndarray, log_lik: np.ndarray) -> None:
    """Turn log likelihoods ``(n, K)`` of atoms ``y (n, D)``, zero at ``gaps (n, D)``, in place into integrals."""
    _require(add_marginal(y, *patterns_of(gaps), _precision(params), params.shift, log_lik))
    log_lik[gaps.all(axis=1)] = 0.0


def add_expectations(
    params: Beliefs,
    y: np.ndarray,
    gaps: np.ndarray,
    resp: Resp,
    first: np.ndarray,
    second: np.ndarray,
    entropy: np.ndarray,
) -> None:
    """Add the contribution of q(x_M | z) to moments of ``y (n, D)``, zero at ``gaps``, and its entropy; in place.

    ``first (K, D)``, ``second (K, D (D + 1) / 2)`` packed, ``entropy (K,)`` nats.
    """
    found = patterns_of(gaps)
    own = rows_of(resp, found.rows)
    _require(add_completed(y, *found, _precision(params), params.shift, own, first, second, entropy))


def conditional_means(
    params: Beliefs, center: np.ndarray, batch: Batch, gaps: np.ndarray, resp: np.ndarray
) -> np.ndarray:
    """Atoms with ``sum_k r_nk a_nk`` in place of missing entries, ``(n, D)``."""
    out = np.where(gaps, center, batch.x)
    found, y = patterns_of(gaps), out - center
    own = np.ascontiguousarray(resp[found.rows])
    _require(add_conditional_means(y, *found, _precision(params), params.shift, own, out))
    void = np.flatnonzero(gaps.all(axis=1))
    out[void] = matmul(resp[void], params.m)
    return out


def marginal_predictive(params: Beliefs, center: np.ndarray, batch: Batch, gaps: np.ndarray) -> np.ndarray:
    """Log predictive density of the entries present, ``(n, K)`` nats; 0 for atoms that lack none, or all.

    Some features of a Student t are one with nu minus the number of left-out features as degrees of freedom, and B_OO.
    """
    out, found = np.zeros((batch.n_atoms, len(params.nu))), patterns_of(gaps)
    for mask, start, stop in zip(found.masks, found.starts[:-1], found.starts[1:], strict=True):
        own, rows = np.flatnonzero(~mask), found.rows[start:stop]
        y = batch.x[np.ix_(rows, own)] - center[own]
        lower, roots, _ = cholesky_factors(params.B[np.ix_(np.arange(len(params.nu)), own, own)])
        for k in range(len(params.nu)):
            squares = whitened_squares(y, params.shift[k, own], roots[k])
            nu, stretch = params.nu[k] - mask.sum(), 1.0 + 1.0 / params.kappa[k]
            log_det = 2.0 * float(log(lower[k].diagonal()).sum())
            out[rows, k] = wishart.student_log_density(squares, nu, log_det, stretch, len(own))
    return out


def _require(sound: bool) -> None:
    """Raise NumericalError if a kernel reports a block of a precision without a factor."""
    if not sound:
        raise NumericalError(
            "the precision of a cluster given some entries is not positive definite in double precision: its columns "
            "are all but collinear. Pass a larger Gaussian(B=...), or drop columns that others determine"
        )
