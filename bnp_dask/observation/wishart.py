"""The Wishart distribution of a precision matrix, shared by Gaussians of full covariance.

Lam ~ W(nu, B^-1) has log density ``(nu - D - 1) / 2 log|Lam| - tr(B Lam) / 2 - log_normalizer``, ``E[Lam] = nu
B^-1``, and ``E[Lam^-1] = B / (nu - D - 1)`` (thesis 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.linalg import lapack
from scipy.special import gammaln, psi

from bnp_dask.core import register
from bnp_dask.errors import NumericalError, SettingError
from bnp_dask.inputs import MOST_MASS, real_setting, shown
from bnp_dask.kernels import (
    EMPTY,
    Precisions,
    absolute_forms,
    cholesky_factors,
    errors_of_pivots,
    hides_pivots,
    is_fixed,
    log,
    log1p,
    matmul,
    pack,
    precision_of,
    quadratic_coefficients,
    scatter_matrices,
)
from bnp_dask.observation.priors import LOG_2PI, scales

LOG_2 = math.log(2.0)
LOG_PI = math.log(math.pi)

WHITEN_ABOVE = 1e9
"""Size of the cancelling terms of a quadratic form, nats, above which atoms are whitened instead.

Rounding leaves an error of about 1e-16 of it in each log likelihood; with 64 features this is a condition number
of the correlations of about 1e7.
"""


FEW_ROWS = 10.0
"""Atoms for each feature below which the default prior begins to hold covariances together; the effect is full at half
as many.  Set on three groups of 20 rows in 60 columns, which are found in fewer laps, and six of 25 rows in 30 columns:
of six clusters two were found with D + 2, all six with 0.3 D more.

Checked afterwards on parts of other tables: adjusted Rand index by default and held-out nats a row, means of three
parts, with these values in its place.  No value is best for all:

================  =========  =============  =============  =============  =============
rows of           a feature  0              5              10             20
================  =========  =============  =============  =============  =============
20 of iris              5.0  0.76   -2.83   0.78   -2.73   0.76   -2.83   0.76   -2.83
30 of iris              7.5  0.54   -1.98   0.54   -1.98   0.70   -2.09   0.70   -2.09
25 of crabs             5.0  0.31   -7.87   0.31   -7.86   0.16   -7.87   0.16   -7.87
45 of crabs             9.0  0.00   -7.76   0.00   -7.76   0.06   -7.74   0.06   -7.74
60 of wine              4.6  0.63  -18.87   0.76  -18.68   0.73  -18.64   0.73  -18.64
100 of wine             7.7  0.80  -18.21   0.80  -18.21   0.84  -18.25   0.69  -18.43
120 of cancer           4.0  0.13   36.10   0.25   36.80   0.25   36.48   0.25   36.48
mean                         0.45           0.49           0.50           0.48
================  =========  =============  =============  =============  =============
"""

LEAST_LENGTH = 1e-300
"""Squared length of an atom at the prior mean, by which it can be divided."""

WIDEST = 1e6
"""Greatest width of a draw along one direction, in units of B: its square times the rounding is below 1e-3."""

LEAST_SQUARE = 1e-290
"""Least draw of a chi-square variate, of which there is a logarithm."""

ROUNDINGS = (10.0, 100.0, 1000.0, 10_000.0)
"""Multiples of D roundings of its diagonal by which a matrix may be widened, before it counts as wrong."""


class Scaled(Protocol):
    """Parameters with scale matrices ``B (K, D, D)`` and with clusters to be whitened, ``whiten (K,)``."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def B(self) -> np.ndarray: ...

    @property
    def whiten(self) -> np.ndarray: ...


P = TypeVar("P", bound=Scaled)
T = TypeVar("T")


# -- settings ------------------------------------------------------------------------------------------------------
def degrees_of_freedom(nu: float | None, n_features: int, n_atoms: int) -> float:
    """The setting ``nu``, or D + 2, the least whole number for which E[covariance] exists.

    With fewer than :data:`FEW_ROWS` atoms for each feature it is more, up to D more.  If clusters hold fewer atoms than
    features, the prior alone determines their width in most directions, and a prior with D + 2 allows almost any width.
    """
    if nu is None:
        return n_features + 2.0 + n_features * min(1.0, max(0.0, FEW_ROWS * n_features / max(n_atoms, 1) - 1.0))
    value = real_setting("nu", nu)
    if value.ndim > 0 or not n_features - 1 < value <= MOST_MASS:
        raise SettingError(
            f"nu={shown(nu)}: the Wishart prior of {n_features} features needs a number above {n_features - 1} and at "
            f"most {MOST_MASS:g}, and one above {n_features + 1} if covariances are to have a mean"
        )
    return float(value)


def has_few_atoms(n_atoms: float, n_features: int) -> bool:
    """Whether there are fewer than :data:`FEW_ROWS` atoms for each feature."""
    return n_atoms < FEW_ROWS * n_features


def default_scale(variance: np.ndarray, nu: float) -> np.ndarray:
    """B ``(D, D)`` for which E[covariance] is diagonal with the given ``variance (D,)``."""
    return np.diag(variance * max(nu - len(variance) - 1.0, 1.0))


def scale_matrix(value: np.ndarray | float, n_features: int, name: str = "B") -> np.ndarray:
    """A setting, a number, ``(D,)`` or ``(D, D)``, as a symmetric positive definite ``(D, D)`` matrix."""
    array = real_setting(name, value)
    if array.shape in ((), (n_features,)):
        return np.diag(np.broadcast_to(scales(name, array), (n_features,)))
    if array.shape != (n_features, n_features):
        raise SettingError(
            f"{name} has shape {array.shape}; needs a number, shape ({n_features},) or ({n_features}, {n_features})"
        )
    size = np.sqrt(np.abs(np.outer(np.diag(array), np.diag(array))))
    if (np.abs(array - array.T) > 1e-10 * size).any():
        i, j = np.argwhere(np.abs(array - array.T) > 1e-10 * size)[0]
        raise SettingError(
            f"{name} is not symmetric: {name}[{i}, {j}]={array[i, j]!r}, {name}[{j}, {i}]={array[j, i]!r}; pass "
            f"({name} + {name}.T) / 2"
        )
    symmetric = 0.5 * (array + array.T)
    _, info = lapack.dpotrf(symmetric, lower=1)
    if info != 0:
        raise SettingError(
            f"{name} is not positive definite (condition number {condition_number(symmetric):.1e}); "
            "add a positive number to its diagonal"
        )
    return symmetric


def expected_scale(nu: float, scale: np.ndarray) -> np.ndarray:
    """E[covariance] of a prior if it exists, ``(D, D)``; otherwise B / nu."""
    return expected_covariance(scale[None], np.array([nu]))[0]


def precisions(quadratic: np.ndarray, nu: np.ndarray, log_det: np.ndarray, n_features: int) -> Precisions:
    """Precisions of the clusters, for learning their prior.

    ``quadratic (K, D (D + 1) / 2)`` are the packed coefficients of ``-y' E[Lam_k] y / 2``; ``nu (K,)`` and ``log|B|
    (K,)`` belong to the posterior.
    """
    total = precision_of(quadratic.sum(axis=0), n_features)
    return Precisions(len(nu), total, float(expected_log_det(nu, log_det, n_features).sum()))


# -- factors --------------------------------------------------------------------------------------------------
def condition_number(matrix: np.ndarray) -> float:
    """Condition number of a symmetric matrix scaled to a unit diagonal; infinite when it has none."""
    diagonal = np.diag(matrix)
    if not (np.isfinite(matrix).all() and (diagonal > 0).all()):
        return float("inf")
    values = np.linalg.eigvalsh(matrix / np.sqrt(np.outer(diagonal, diagonal)))
    return float(values[-1] / values[0]) if values[0] > 0 else float("inf")


def factor(scale: np.ndarray, ids: np.ndarray, model: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inverse Cholesky factors of posterior scale matrices.

    If rounding hides a pivot, the matrix is widened by a little more than the rounding: single rows 1e12 deviations
    away hide the rest of their cluster's matrix in double precision.  The sign of such a pivot is chance, and so is its
    logarithm: no later objective could exceed one that is too high by chance.

    Parameters
    ----------
    scale
        B, ``(K, D, D)``.
    ids, model
        Cluster ids ``(K,)`` and name of the model, for the error message.

    Returns
    -------
    scale
        The same matrices, or slightly wider ones.
    root
        Lower triangular R_k with ``B_k^-1 = R_k' R_k``, ``(K, D, D)``.
    log_det
        ``log|B_k|``, ``(K,)``.

    Raises
    ------
    NumericalError
        A matrix is not finite, or farther from positive definite than rounding can explain.
    """
    lower, root, wrong = cholesky_factors(scale)
    while wrong >= 0:
        scale = scale.copy()
        scale[wrong] = _widened(scale[wrong], int(ids[wrong]), model)
        lower, root, wrong = cholesky_factors(scale)
    hidden = np.flatnonzero(hides_pivots(lower, scale))
    if len(hidden):
        scale = scale.copy()
        for k in hidden:
            scale[k] = _widened(scale[k], int(ids[k]), model)
        lower, root, _ = cholesky_factors(scale)
    return scale, root, 2.0 * log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)


def _widened(matrix: np.ndarray, cluster: int, model: str) -> np.ndarray:
    """Matrix widened by the least multiple of its rounding error on the diagonal with which no pivot is hidden."""
    diagonal = np.diag(matrix)
    if np.isfinite(matrix).all() and (diagonal > 0).all():
        for times in ROUNDINGS:
            wider = matrix[None] + np.diag(times * errors_of_pivots(matrix[None])[0])
            lower, _, wrong = cholesky_factors(wider)
            if wrong < 0 and not hides_pivots(lower, wider)[0]:
                return wider[0]
    raise NumericalError(_not_positive_definite(matrix, cluster, model))


def log_dets(scale: np.ndarray, ids: np.ndarray, model: str) -> np.ndarray:
    """Only the ``log|B_k|``, ``(K,)``, of :func:`factor`; raises the same errors."""
    if is_fixed():
        return factor(scale, ids, model)[2]
    try:
        lower = np.linalg.cholesky(scale)
    except np.linalg.LinAlgError:
        return factor(scale, ids, model)[2]
    found = 2.0 * log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    sure = np.isfinite(found).all() and not hides_pivots(lower, scale).any()
    return found if sure else factor(scale, ids, model)[2]


def without_scale(params: P, screened: bool) -> P:
    """Parameters without scale matrices, two thirds of their bytes, unless they are ``screened`` or whitened."""
    return params if screened or params.whiten.any() else replace(params, B=params.B[:0])


def root(scale: np.ndarray) -> np.ndarray:
    """Inverse Cholesky factor of one matrix that :func:`factor` has accepted before, ``(D, D)``."""
    return cholesky_factors(scale[None])[1][0]


def _not_positive_definite(matrix: np.ndarray, cluster: int, model: str) -> str:
    if not np.isfinite(matrix).all():
        return (
            f"cluster {cluster}: the scale matrix B of its {model} posterior is not finite; the data hold NaN, "
            "inf or values whose squares overflow. Clean or rescale the columns before training"
        )
    return (
        f"cluster {cluster}: the scale matrix B of its {model} posterior is not positive definite in double "
        f"precision (condition number {condition_number(matrix):.1e} after scaling to a unit diagonal). The prior is "
        f"too weak against collinear columns or a very distant cluster: pass a larger {model}(B=...), drop columns "
        "that others determine, or project the data to fewer dimensions"
    )


def needs_whitening(precision: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Which clusters lose digits in quadratic features, ``(K,)`` bool.

    Compares the sum of the absolute terms of ``y' precision y`` for a typical atom, whose root mean square about
    the center is ``spread (K, D)``, with :data:`WHITEN_ABOVE`: it sees both the conditioning and the offset.
    """
    return ~(absolute_forms(precision, spread) < WHITEN_ABOVE)


# -- draws ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class DrawnPrecisions:
    """One draw Lam_k ~ W(nu_k, B_k^-1) for each cluster.

    Parameters
    ----------
    precision, covariance
        Lam and its inverse, ``(K, D, D)``.
    half
        Upper triangular W_k with ``W_k' W_k`` the covariance, ``(K, D, D)``.
    log_det
        ``log|Lam^-1|``, ``(K,)``.
    """

    precision: np.ndarray
    covariance: np.ndarray
    half: np.ndarray
    log_det: np.ndarray

    def normals(self, rng: np.random.Generator) -> np.ndarray:
        """Draws from N(0, Lam_k^-1), ``(K, D)``."""
        return np.einsum("kij,ki->kj", self.half, rng.standard_normal(self.half.shape[:2]))


def draw_precisions(scale: np.ndarray, nu: np.ndarray, rng: np.random.Generator) -> DrawnPrecisions:
    """A draw of each precision by Bartlett's decomposition: ``Lam = R' A A' R`` with ``B^-1 = R' R``.

    With nu just above D - 1 a cluster without atoms is next to infinitely wide in one direction.  Its matrices are at
    most :data:`WIDEST` times as wide as B says, so that their other directions keep their digits; its ``log_det`` is
    that of the draw, by which no atom has a density there.

    Parameters
    ----------
    scale, nu
        B, ``(K, D, D)``, as :func:`factor` has accepted it, and degrees of freedom ``(K,)``.
    rng
        Random number generator.
    """
    k, d = scale.shape[:2]
    lower, roots, _ = cholesky_factors(scale)
    bartlett = np.tril(rng.standard_normal((k, d, d)), -1)
    squares = np.maximum(rng.chisquare(nu[:, None] - np.arange(d)), LEAST_SQUARE)
    bartlett[:, np.arange(d), np.arange(d)] = np.sqrt(np.maximum(squares, WIDEST**-2))
    outer = matmul(roots.transpose(0, 2, 1), bartlett)
    half = matmul(np.linalg.inv(bartlett), lower.transpose(0, 2, 1))
    log_det = 2.0 * log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1) - 2.0 * log(np.sqrt(squares)).sum(axis=1)
    return DrawnPrecisions(
        matmul(outer, outer.transpose(0, 2, 1)), matmul(half.transpose(0, 2, 1), half), half, log_det
    )


# -- expectations ---------------------------------------------------------------------------------------------
def expected_log_det(nu: np.ndarray, log_det: np.ndarray, n_features: int) -> np.ndarray:
    """``E[log|Lam|]``, ``(K,)``, for degrees of freedom ``nu (K,)`` and ``log|B| (K,)``."""
    halves = (nu[:, None] - np.arange(n_features)) / 2
    return psi(halves).sum(axis=1) + n_features * LOG_2 - log_det


def expected_covariance(scale: np.ndarray, nu: np.ndarray) -> np.ndarray:
    """E[Lam^-1] = B / (nu - D - 1), ``(K, D, D)``; E[Lam]^-1 where that mean does not exist."""
    return scale / _divisor(nu, scale.shape[1])[:, None, None]


def expected_variance(scale: np.ndarray, nu: np.ndarray) -> np.ndarray:
    """The diagonal of :func:`expected_covariance`, ``(K, D)``."""
    return np.einsum("kii->ki", scale) / _divisor(nu, scale.shape[1])[:, None]


def _divisor(nu: np.ndarray, n_features: int) -> np.ndarray:
    return np.where(nu > n_features + 1, nu - n_features - 1, nu)


def log_normalizer(nu: np.ndarray | float, log_det: np.ndarray | float, n_features: int) -> np.ndarray:
    """Log of the integral of ``|Lam|^((nu - D - 1) / 2) exp(-tr(B Lam) / 2)``."""
    halves = (np.asarray(nu)[..., None] - np.arange(n_features)) / 2
    # log of the multivariate Gamma function; scipy's own takes a call for each feature
    log_gamma = gammaln(halves).sum(axis=-1) + 0.25 * n_features * (n_features - 1) * LOG_PI
    return 0.5 * nu * (n_features * LOG_2 - log_det) + log_gamma


def log_evidence(
    n: np.ndarray, nu: np.ndarray, log_det: np.ndarray, prior_nu: float, prior_scale: np.ndarray
) -> np.ndarray:
    """Log of the integral of ``n (K,)`` Gaussian likelihoods of a known mean over W(prior_nu, prior_scale^-1).

    The posterior is W(nu, B^-1); ``log_det (K,)`` is ``log|B|``.
    """
    d = len(prior_scale)
    normalizer = _of_prior(_normalizer_by_log_dets, prior_nu, prior_scale)
    return log_normalizer(nu, log_det, d) - normalizer - 0.5 * LOG_2PI * d * n


def prior_normalizer(nu: float, scale: np.ndarray) -> float:
    """:func:`log_normalizer` of a prior with B ``scale (D, D)``; the same prior is factored once."""
    return float(_of_prior(_normalizer_by_log_dets, nu, scale))


def _of_prior(function: Callable[[float, np.ndarray], T], nu: float, scale: np.ndarray) -> T:
    """A function of a prior's settings: the same prior meets many clusters, and is factored once.

    The way in which numbers are computed belongs to the settings, since bits depend on it.
    """
    return _known_of_prior(function, float(nu), scale.tobytes(), len(scale), is_fixed())


@lru_cache(maxsize=64)
def _known_of_prior(
    function: Callable[[float, np.ndarray], T], nu: float, scale: bytes, n_features: int, fixed: bool
) -> T:
    return function(nu, np.frombuffer(bytearray(scale)).reshape(n_features, n_features))


def _normalizer_by_log_dets(nu: float, scale: np.ndarray) -> np.ndarray:
    return log_normalizer(nu, log_dets(scale[None], np.zeros(1, np.int64), "prior")[0], len(scale))


def _normalizer_by_factors(nu: float, scale: np.ndarray) -> np.ndarray:
    log_det = 2.0 * log(cholesky_factors(scale[None])[0][0].diagonal()).sum()
    return log_normalizer(nu, log_det, len(scale))


def _root_and_log_det(nu: float, scale: np.ndarray) -> tuple[np.ndarray, float]:
    """Inverse Cholesky factor ``(D, D)`` and ``log|B|`` of a prior."""
    _, roots, log_dets = factor(scale[None], np.zeros(1, np.int64), "prior")
    return roots[0], float(log_dets[0])


def wishart_kl(
    nu: np.ndarray, log_det: np.ndarray, prior_nu: float, prior_scale: np.ndarray, quadratic: np.ndarray
) -> np.ndarray:
    """KL of W(nu, B^-1) from the prior, ``(K,)`` nats.

    ``quadratic (K, D (D + 1) / 2)`` are the packed coefficients of ``-y' E[Lam] y / 2``, so that their product
    with a packed matrix M is ``-tr(M E[Lam]) / 2``.
    """
    d = len(prior_scale)
    return (
        0.5 * (nu - prior_nu) * expected_log_det(nu, log_det, d)
        - 0.5 * nu * d
        - matmul(quadratic, pack(prior_scale))
        + _of_prior(_normalizer_by_factors, prior_nu, prior_scale)
        - log_normalizer(nu, log_det, d)
    )


@dataclass(frozen=True, eq=False)
class SingleAtoms:
    """Atoms as clusters of one atom each, in closed form.

    Parameters
    ----------
    joint, size
        Log likelihood plus log prior of each atom at the mode of its own cluster, and the absolute sizes of its terms
        and of the terms at the prior's own mode, both ``(n,)`` nats.
    white
        Atoms about the prior mean, in coordinates in which the prior's B is the identity, ``(n, D)``.
    squares
        Their squared lengths, ``(n,)``.
    log_det
        ``log|E[Lam]|`` of each cluster, ``(n,)``.
    prior
        Log prior of each cluster, ``(n,)`` nats.
    nu, share
        Degrees of freedom of the prior; ``kappa / (kappa + 1)``.
    """

    joint: np.ndarray
    size: np.ndarray
    white: np.ndarray
    squares: np.ndarray
    log_det: np.ndarray
    prior: np.ndarray
    nu: float
    share: float

    def joint_with(self, index: np.ndarray) -> np.ndarray:
        """Log likelihood plus log prior of all atoms at the modes of the clusters of the atoms ``index (m,)``, ``(n,
        m)`` nats."""
        s, out = self.share, np.empty((len(self.white), len(index)))
        for column, c in enumerate(index.tolist()):
            centre, length = self.white[c], max(float(self.squares[c]), LEAST_LENGTH)
            w = self.white - (1.0 - s) * centre
            # the part along the centre apart from the rest: their difference would cancel far from the prior mean
            along = matmul(w, centre) / length
            w -= along[:, None] * centre
            out[:, column] = np.einsum("nd,nd->n", w, w) + along**2 * length / (1.0 + s * length)
        fit = self.log_det[index] - self.white.shape[1] * LOG_2PI - (self.nu + 1.0) * out
        return 0.5 * fit + self.prior[index]


def single_atoms(y: np.ndarray, mean: np.ndarray | None, nu: float, scale: np.ndarray, kappa: float) -> SingleAtoms:
    """Clusters of single atoms: modes of their posteriors, without a matrix for each.

    An atom at distance a from the prior mean adds ``s a a'`` to B, s = kappa / (kappa + 1), so determinant and inverse
    follow from ``t = a' B^-1 a`` (matrix determinant lemma, Sherman-Morrison): no matrix is factored for each atom.

    Parameters
    ----------
    y
        Atoms, ``(n, D)``.
    mean, kappa
        Prior mean ``(D,)`` and its pseudo-count; None and infinity if the mean is known to be zero.
    nu, scale
        Degrees of freedom and B of the prior, ``(D, D)``.
    """
    d = len(scale)
    whitening, prior_log_det = _of_prior(_root_and_log_det, nu, scale)
    white = matmul(y if mean is None else y - mean, whitening.T)
    t = np.einsum("nd,nd->n", white, white)
    s = 1.0 / (1.0 + 1.0 / kappa)
    inside = t / (1.0 + s * t)  # a' (B + s a a')^-1 a
    log_det = d * log(nu + 1.0) - prior_log_det - log1p(s * t)
    # the atom is s a from its cluster's mean, and that (1 - s) a from the prior's: kappa (1 - s)^2 = s (1 - s)
    fit = 0.5 * (log_det - d * LOG_2PI - (nu + 1.0) * s**2 * inside)
    prior = 0.5 * (nu * log_det - (nu + 1.0) * (d - s * inside) - (nu + 1.0) * s * (1.0 - s) * inside)
    flat = d * log(nu) - prior_log_det
    alone = 0.5 * ((1.0 + nu) * flat - d * (LOG_2PI + nu) - nu * t)
    size = np.abs(fit) + np.abs(prior) + np.abs(alone)
    return SingleAtoms(fit + prior, size, white, t, log_det, prior, nu, s)


def student_log_density(
    squares: np.ndarray,
    nu: float | np.ndarray,
    log_det: float | np.ndarray,
    stretch: float | np.ndarray,
    n_features: int,
) -> np.ndarray:
    """Log of the integral of N(x | mu, Lam^-1) over a Normal-Wishart: of one cluster ``(n,)``, or of all ``(n, K)``.

    A Student t with nu - D + 1 degrees of freedom; ``squares = (x - m)' B^-1 (x - m)``, and ``stretch`` is
    1 + 1 / kappa (1 when the mean is known).  Numbers of clusters are ``(K,)`` where squares are ``(n, K)``.
    """
    d = n_features
    constant = gammaln((nu + 1) / 2) - gammaln((nu - d + 1) / 2)
    constant -= 0.5 * (d * log(np.pi * stretch) + log_det)
    found = log1p(squares / stretch)
    found *= -0.5 * (nu + 1)
    found += constant
    return found


# -- Normal-Wishart distributions: posteriors of means, or regressions, and precisions (thesis 2.2) -------------------


@register
@dataclass(frozen=True, eq=False)
class NormalWishart:
    """q(mu, Lam) per cluster, and the coefficients of the log likelihood.

    Parameters
    ----------
    nu, kappa
        Degrees of freedom and pseudo-count of the mean, ``(K,)``.
    B, m
        Scale matrix ``(K, D, D)`` and mean ``(K, D)``.
    shift
        ``m`` minus the center of the statistics, ``(K, D)``, exact where ``m`` is large.
    log_det
        ``log|B|``, ``(K,)``.
    level
        Log likelihood of an atom at ``m``, ``(K,)`` nats.
    theta
        Coefficients of ``[y, 1, y_i y_j (i <= j)]`` for centred atoms y, ``(K, D + 1 + D (D + 1) / 2)``.
    whiten
        Clusters whose log likelihoods are computed by whitening, because ``theta`` would lose digits, ``(K,)``.
    """

    nu: np.ndarray
    B: np.ndarray
    m: np.ndarray
    kappa: np.ndarray
    shift: np.ndarray
    log_det: np.ndarray
    level: np.ndarray
    theta: np.ndarray
    whiten: np.ndarray


class NormalWishartPrior(NamedTuple):
    """Settings, all known: ``B (D, D)``, and ``m, center (D,)``."""

    nu: float
    B: np.ndarray
    m: np.ndarray
    kappa: float
    center: np.ndarray


def at_level(params: NormalWishart, level: np.ndarray) -> NormalWishart:
    """Parameters with another log likelihood at the mean, ``(K,)``, from which the constant follows."""
    d = params.shift.shape[1]
    theta = params.theta.copy()
    theta[:, d] = constant_term(level, theta[:, :d], params.shift)
    return replace(params, level=level, theta=theta)


def coefficients(precision: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Coefficients ``(K, D + 1 + D (D + 1) / 2)`` of the quadratic forms about ``shift (K, D)``; the constant is left
    for :func:`constant_term`."""
    quadratic, (k, d) = quadratic_coefficients(precision), shift.shape
    theta = np.empty((k, d + 1 + quadratic.shape[1]))
    theta[:, :d] = np.einsum("kij,kj->ki", precision, shift)
    theta[:, d + 1 :] = quadratic
    return theta


def constant_term(level: np.ndarray, linear: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Constant of the log likelihood ``(K,)`` nats, from its value at the mean and its linear terms ``(K, D)``."""
    return np.asarray(level - 0.5 * np.einsum("kd,kd->k", linear, shift))


def posterior_scale(
    prior: NormalWishartPrior,
    unrecorded: np.ndarray | None,
    n: np.ndarray,
    x: np.ndarray,
    xx: np.ndarray,
    kappa: np.ndarray,
) -> np.ndarray:
    """B of the posterior, ``(K, D, D)``: prior + scatter about the cluster's own mean + shrinkage of the mean +
    unrecorded covariance.

    Only the scatter is a difference; sums that include the prior mean would cancel when it is far away.

    Parameters
    ----------
    prior
        Settings of the prior.
    unrecorded
        Unrecorded covariance of each atom, ``(D, D)``; None for none.
    n, x, xx
        Statistics of the clusters: counts, and sums of centred atoms and of their packed squares.
    kappa
        Pseudo-counts of the posterior means, ``(K,)``.
    """
    held = n[:, None] > EMPTY
    mean = np.divide(x, n[:, None], out=np.zeros_like(x), where=held)
    away = mean - (prior.m - prior.center)
    shrinkage = np.maximum(n, 0.0) * prior.kappa / kappa
    scale = scatter_matrices(xx, x, mean, shrinkage, away)
    scale += prior.B
    if unrecorded is not None:
        scale += np.maximum(n, 0.0)[:, None, None] * unrecorded
    return scale


@register
@dataclass(frozen=True, eq=False)
class MatrixNormalWishart:
    """q(A, Lam) per cluster, and the coefficients of the log likelihood.

    Parameters
    ----------
    nu, B
        Degrees of freedom ``(K,)`` and scale matrix ``(K, D, D)`` of Lam.
    M, V
        Mean ``(K, D, L D)`` of A and precision of its columns ``(K, L D, L D)``.
    shift
        ``M`` minus the prior's, ``(K, D, L D)``.
    log_det, log_det_v
        ``log|B|`` and ``log|V|``, ``(K,)``.
    theta
        Coefficients of ``[1, z_i z_j (i <= j)]`` of ``z = [x - M_prior p, p]``, ``(K, 1 + P)``.
    whiten
        Clusters whose log likelihoods are computed by whitening, because ``theta`` would lose digits, ``(K,)``.
    spread
        Factor of ``p' V^-1 p`` in the log likelihood: -D / 2, or 0 at a point estimate.
    """

    nu: np.ndarray
    B: np.ndarray
    M: np.ndarray
    V: np.ndarray
    shift: np.ndarray
    log_det: np.ndarray
    log_det_v: np.ndarray
    theta: np.ndarray
    whiten: np.ndarray
    spread: float
