"""Directions: vectors of length one about a mean direction, with an unknown concentration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Self

import numpy as np

from bnp_dask.core import Batch, Field, Summary, Survey, register
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import flag, hold, real_setting, shown
from bnp_dask.kernels import Resp, cluster_sums, matmul
from bnp_dask.kernels.numeric import directions
from bnp_dask.observation.interface import Estimates, Names, by_feature, compared_by_settings, each, largest
from bnp_dask.observation.priors import PRIOR_SCALE, check_dense, known, single, width

ROUNDED = 1e-3
"""Largest deviation of lengths from one: 16-bit numbers, in which embeddings are often stored, deviate less."""

MOST_ALIKE = 1.0 - 1e-6
"""Largest length of the data's mean given to the prior: for rows that are all alike, the prior expects no concentration
that float64 cannot hold."""


@register
@dataclass(frozen=True, eq=False)
class Directions:
    """q(mu, kappa) per cluster and the coefficients in use, ``(K,)`` unless said.

    Parameters
    ----------
    a, s, m
        Pseudo-count, length of the resultant, and direction ``(K, D)``; see :mod:`bnp_dask.kernels.numeric.directions`.
    log_z
        Logarithm of the normaliser of q, nats.
    log_constant, pull
        E[log C(kappa)] and E[kappa mu' m].
    kappa
        E[kappa].
    level, theta
        The log likelihood is ``level + theta . x``, nats; ``theta (K, D)``.
    """

    a: np.ndarray
    s: np.ndarray
    m: np.ndarray
    log_z: np.ndarray
    log_constant: np.ndarray
    pull: np.ndarray
    kappa: np.ndarray
    level: np.ndarray
    theta: np.ndarray


@dataclass(frozen=True, eq=False)
class SingleDirections:
    """Atoms as clusters of one atom each, at the modes of their posteriors, of which no expectation is needed.

    Parameters
    ----------
    joint, size
        Log likelihood plus log prior of each atom in its own cluster, and the absolute sizes of its terms and of those
        at the prior's own mode, both ``(n,)`` nats.
    units
        The atoms, ``(n, D)``.
    level, theta
        As in :class:`Directions`, of the cluster of each atom.
    log_prior
        Log prior of each cluster, ``(n,)`` nats.
    """

    joint: np.ndarray
    size: np.ndarray
    units: np.ndarray
    level: np.ndarray
    theta: np.ndarray
    log_prior: np.ndarray

    def joint_with(self, index: np.ndarray) -> np.ndarray:
        """Log likelihood plus log prior of all atoms at the modes of the clusters of the atoms ``index (m,)``, ``(n,
        m)`` nats."""
        fit = matmul(self.units, self.theta[index].T) + self.level[index]
        return np.asarray(fit + self.log_prior[index])


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class VonMisesFisher:
    """Vectors of length one, such as embeddings: x ~ vMF(mu, kappa), of density ``C(kappa) exp(kappa mu' x)``.

    The prior is conjugate, ``p(mu, kappa) ~ C(kappa)^a exp(kappa b' mu)``: as from ``a`` rows with the sum ``b``.

    Parameters
    ----------
    a
        Pseudo-count, > 0, atoms.  Default 0.1.  Groups of fewer atoms than about ``a`` form no cluster of their own, so
        large values leave broad clusters whole: with 500, chosen on 20 Newsgroups and tried on Reuters, clusters of
        texts agree with subjects better than clusters of k-means with given number (benchmarks/embeddings.py).
    b
        Sum of the pseudo-atoms, ``(D,)``, shorter than ``a``; 0 for none.  Default: a times the mean of the data, that
        is, a tenth of an atom spread as the data are.
    normalize
        Whether to use rows of other lengths by their direction.  Default: they are refused.

    Notes
    -----
    Lengths may differ from one by 0.001 and are taken as one.  Statistic ``x``: sum of r x, ``(K, D)``.  At least two
    features.

    References
    ----------
    Nunez-Antonio and Gutierrez-Pena 2005, "A Bayesian analysis of directional data using the von Mises-Fisher
    distribution" (the prior); Gopal and Yang 2014, "Von Mises-Fisher clustering models".  Both sample or bound the
    concentration; here its expectations are exact, by quadrature.
    """

    a: float | None = None
    b: np.ndarray | float | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        hold(self, "normalize", flag("normalize", self.normalize))

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"x": Field(("cluster", "feature"))})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"feature": known("b", self.b).size}

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        if d < 2:
            raise SettingError("VonMisesFisher needs at least two features: a number has no direction")
        a = single("a", PRIOR_SCALE if self.a is None else self.a)
        b = a * _mean_direction(survey) if self.b is None else real_setting("b", self.b)
        if b.ndim == 0 and not b:
            b = np.zeros(d)
        if b.shape != (d,) or not np.linalg.norm(b) < a:
            raise SettingError(f"b={shown(self.b)}: needs 0, or a vector of shape ({d},) that is shorter than a={a:g}")
        return replace(self, a=a, b=np.ascontiguousarray(b))

    def check(self, batch: Batch) -> None:
        check_dense(self, batch, width("b", self.b))
        lengths = np.linalg.norm(batch.x, axis=1)
        wrong = np.flatnonzero(lengths == 0.0 if self.normalize else np.abs(lengths - 1.0) > ROUNDED)
        if len(wrong):
            need = (
                "a row of zeros has no direction; leave it out"
                if self.normalize
                else "VonMisesFisher is for vectors of length one; divide rows by their length, or use "
                "VonMisesFisher(normalize=True)"
            )
            first = int(wrong[0])
            raise DataError(
                f"{batch.name}: {len(wrong)} of {batch.n_atoms} rows are not of length one (first: row {first}, of "
                f"length {lengths[first]:.6g}); {need}"
            )

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {"x": cluster_sums(resp, _units(batch))}

    def global_step(self, summary: Summary) -> Directions:
        a, s, total = self._updated(summary["N"], summary["x"])
        m = _directions_of(total)
        log_z, constant, pull, kappa = directions.expectations(a, s, total.shape[1])
        return Directions(a, s, m, log_z, constant, pull, kappa, constant, pull[:, None] * m)

    def at_mode(self, params: Directions) -> Directions:
        d = params.m.shape[1]
        kappa = directions.concentrations_of(params.s / params.a, d)
        return replace(params, level=directions.log_constants(kappa, d), theta=kappa[:, None] * params.m)

    def at_draw(self, params: Directions, rng: np.random.Generator) -> Directions:
        d, each = params.m.shape[1], np.arange(len(params.a))
        kappa = directions.draw_concentrations(params.a, params.s, d, each, rng)
        mean = directions.draw_directions(params.m, kappa * params.s, rng)
        level = directions.log_constants(kappa, d)
        return replace(params, m=mean, kappa=kappa, level=level, theta=kappa[:, None] * mean)

    def expected_log_lik(self, params: Directions, batch: Batch) -> np.ndarray:
        return np.asarray(matmul(_units(batch), params.theta.T) + params.level)

    def score(self, params: Directions, summary: Summary) -> np.ndarray:
        return params.level * summary["N"] + np.einsum("kd,kd->k", params.theta, summary["x"])

    def kl(self, params: Directions) -> np.ndarray:
        prior_a, prior_b = self._prior
        away = params.pull * (params.s - matmul(params.m, prior_b))
        return (params.a - prior_a) * params.log_constant + away - params.log_z + self._prior_log_z

    def evidence(self, summary: Summary) -> np.ndarray:
        a, s, total = self._updated(summary["N"], summary["x"])
        return directions.log_normalizers(a, s, total.shape[1]) - self._prior_log_z

    def log_prior(self, params: Directions) -> np.ndarray:
        prior_a, prior_b = self._prior
        return prior_a * params.level + matmul(params.theta, prior_b)

    def log_predictive(self, params: Directions, batch: Batch) -> np.ndarray:
        cosine = matmul(_units(batch), params.m.T)
        return directions.log_predictive(params.a, params.s, params.log_z, cosine, batch.n_features)

    def draw(self, params: Directions, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        d = params.m.shape[1]
        kappa = directions.draw_concentrations(params.a, params.s, d, place, rng)
        mean = directions.draw_directions(params.m[place], kappa * params.s[place], rng)
        return directions.draw_directions(mean, kappa, rng)

    def estimates(self, params: Directions, names: Names) -> Estimates:
        return {
            "mean": by_feature(params.m, names),
            "concentration": each(params.kappa),
            "a": each(params.a),
            "s": each(params.s),
        }

    def describe(self, params: Directions, k: int, names: Names) -> str:
        return f"concentration {params.kappa[k]:.4g}; direction: " + largest(params.m[k], names, "column")

    def single_atoms(self, batch: Batch) -> SingleDirections:
        """Atoms as clusters of one atom each."""
        prior_a, prior_b = self._prior
        units = _units(batch)
        level, theta = self._mode(np.ones(len(units)), units)
        score, log_prior = level + np.einsum("kd,kd->k", theta, units), prior_a * level + matmul(theta, prior_b)
        flat, along = self._mode(np.zeros(1), np.zeros((1, units.shape[1])))
        alone = (matmul(units, along.T) + flat)[:, 0] + prior_a * flat[0] + matmul(along, prior_b)[0]
        size = np.abs(score) + np.abs(log_prior) + np.abs(alone)
        return SingleDirections(score + log_prior, size, units, level, theta, log_prior)

    def _mode(self, n: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Level and theta at the modes of clusters with the counts ``n (K,)`` and the sums ``x (K, D)``."""
        a, s, total = self._updated(n, x)
        kappa = directions.concentrations_of(s / a, total.shape[1])
        return directions.log_constants(kappa, total.shape[1]), kappa[:, None] * _directions_of(total)

    def _updated(self, n: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """a and s ``(K,)`` of q, and the resultants ``(K, D)``."""
        prior_a, prior_b = self._prior
        a, total = prior_a + n, prior_b + x
        # rounding must not make the resultant of alike rows as long as their number
        most = a - np.maximum(prior_a - np.linalg.norm(prior_b), 1e-14 * a)
        return a, np.minimum(np.linalg.norm(total, axis=1), most), total

    @property
    def _prior(self) -> tuple[float, np.ndarray]:
        return float(known("a", self.a)), known("b", self.b)

    @property
    def _prior_log_z(self) -> float:
        a, b = self._prior
        return _log_z(a, float(np.linalg.norm(b)), b.size)


@lru_cache(maxsize=128)
def _log_z(a: float, length: float, d: int) -> float:
    """Log normaliser of one prior, nats; small runs ask for it at each step."""
    return float(directions.log_normalizers(np.array([a]), np.array([length]), d)[0])


def _units(batch: Batch) -> np.ndarray:
    """Rows divided by their lengths, ``(n, D)`` float64."""
    x = np.asarray(batch.x, np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _directions_of(total: np.ndarray) -> np.ndarray:
    """Resultants ``(K, D)`` divided by their lengths."""
    length = np.linalg.norm(total, axis=1)
    return np.where(length[:, None] > 0.0, total, _first_axis(total)) / np.where(length > 0.0, length, 1.0)[:, None]


def _first_axis(like: np.ndarray) -> np.ndarray:
    """Arbitrary direction for resultants of length zero, whose directions are all equally likely."""
    out = np.zeros_like(like)
    out[:, 0] = 1.0
    return out


def _mean_direction(survey: Survey) -> np.ndarray:
    """Mean of the rows over the root of their mean square length, ``(D,)``, no longer than :data:`MOST_ALIKE`."""
    square = float(np.sum(survey.variance + survey.mean**2))
    mean = np.asarray(survey.mean, np.float64) / (np.sqrt(square) if square > 0.0 else 1.0)
    length = float(np.linalg.norm(mean))
    return mean * (MOST_ALIKE / length) if length > MOST_ALIKE else mean
