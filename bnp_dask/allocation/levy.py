"""Levy intensities of completely random measures, whose normalization is the prior of a mixture's weights.

An intensity rho(s) says how many clusters of mass about s there are.  Everything that mixtures need follows from

    psi(u) = int (1 - e^(-u s)) rho(s) ds,    kappa_m(u) = int s^m e^(-u s) rho(s) ds,

the Laplace exponent and the cumulants of the jumps (Tank, Foti & Fox 2015, S2.1).  Of a generalized gamma process, with
the gamma and the inverse Gaussian process among its cases, both have closed forms.  Of any other intensity they are
found by quadrature, once, and kept as a table: :mod:`bnp_dask.kernels.predictive.urns`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy.special import gammaln

from bnp_dask.core import register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import hold, mass_or_zero, positive_mass, share_below_one, shown
from bnp_dask.kernels import DROP, LEAST, TERMS, Table

MOST_ATOMS = 4.0**11
"""Atoms, about 4 million, up to which tables have cumulants."""

FAR = 690.0
"""Largest |log u| and |log s| that are looked at: beyond it, doubles end."""

NEGLIGIBLE = 60.0
"""Nats below its peak at which an integrand is cut off."""

FINE, NEAR, COARSE = 0.025, 0.1, 0.125
"""Steps in log u of the table, of the integrals of psi and the first two cumulants, and of all other integrals.
Splines of degree 9 lead from these to the table.

Relative errors of kappa_m for generalized gamma processes of a discount of 0.1 to 0.9: at most 1e-10."""

WIDTH = 0.125
"""Step of the table in log(m - sigma)."""

SHARP = 50.0
"""Orders m from which the peak of an integrand may be narrower than a step of the first grid over log s."""

NODES = 400
"""Fewest nodes of each integral over log s."""


@runtime_checkable
class LevyIntensity(Protocol):
    """Intensity of the jumps of a completely random measure with infinitely many of them.

    An instance is a frozen dataclass of numbers, registered by ``bnp_dask.register`` to be saved.
    """

    def log_intensity(self, s: np.ndarray) -> np.ndarray:
        """log rho(s) at ``s``, of any shape, nats; -inf where there are no jumps, beyond the largest possible one."""
        ...


@runtime_checkable
class KnownCumulants(Protocol):
    """An intensity by its Laplace exponent and cumulants, in place of ``log_intensity`` or beside it.

    Without ``log_intensity`` a mixture is not sampled by ``Gibbs``, which draws jumps.
    """

    def laplace_exponent(self, u: np.ndarray) -> np.ndarray:
        """psi(u), of the shape of ``u``."""
        ...

    def log_cumulant(self, m: np.ndarray, u: np.ndarray) -> np.ndarray:
        """log kappa_m(u) for real ``m`` above the discount, broadcast with ``u``, nats."""
        ...


@runtime_checkable
class Intensity(Protocol):
    """A :class:`LevyIntensity`, or one with :class:`KnownCumulants`, or both: as settings declare it."""


@register
@dataclass(frozen=True)
class GeneralizedGamma:
    """Intensity of the masses of a normalised generalized gamma process: a power law, tilted by an exponential.

    ``rho(s) = a / Gamma(1 - sigma) s^(-1 - sigma) exp(-tau s)``, for masses s > 0.

    Parameters
    ----------
    a
        Mass, > 0.
    sigma
        Discount, 0 to less than 1: 0 is a gamma process, 0.5 an inverse Gaussian process.
    tau
        Rate of the exponential tilting, >= 0; > 0 if ``sigma`` is 0.

    Notes
    -----
    Its Laplace exponent and cumulants are known in closed form, so that :class:`~bnp_dask.NGGPMixture`, the mixture
    with this intensity, integrates nothing numerically.

    References
    ----------
    James, Lijoi & Pruenster, "Posterior analysis for normalized random measures with independent increments", 2009;
    Tank, Foti & Fox 2015, supplement S2.1.
    """

    a: float = 1.0
    sigma: float = 0.5
    tau: float = 1.0

    def __post_init__(self) -> None:
        hold(self, "a", positive_mass("a", self.a, "mass"))
        hold(self, "sigma", share_below_one("sigma", self.sigma, "a discount"))
        hold(self, "tau", mass_or_zero("tau", self.tau, "rate"))

    def log_intensity(self, s: np.ndarray) -> np.ndarray:
        return np.asarray(math.log(self.a) - gammaln(1.0 - self.sigma) - (1.0 + self.sigma) * np.log(s) - self.tau * s)

    def laplace_exponent(self, u: np.ndarray) -> np.ndarray:
        if self.sigma == 0.0:
            return np.asarray(self.a * np.log1p(u / self.tau))
        if self.tau == 0.0:
            return np.asarray(self.a / self.sigma * u**self.sigma)
        return np.asarray(self.a / self.sigma * self.tau**self.sigma * np.expm1(self.sigma * np.log1p(u / self.tau)))

    def log_cumulant(self, m: np.ndarray, u: np.ndarray) -> np.ndarray:
        held = m - self.sigma
        return np.asarray(math.log(self.a) + gammaln(held) - gammaln(1.0 - self.sigma) - held * np.log(u + self.tau))


# -- tables ---------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=8)
def table_of(intensity: Any) -> Table:
    """The table of an intensity.

    Raises
    ------
    SettingError
        It is no Levy intensity of infinitely many jumps; the message says which condition fails.
    """
    from scipy.interpolate import make_interp_spline  # takes a third of a second to load

    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        jumps = _jumps_of(intensity)
        v = np.arange(-FAR, FAR, 1.0)
        first = jumps.log_cumulants(np.ones(1), v)[:, 0]
        low, high = _range(jumps, v, first)
        near = np.arange(low - 1.0, high + 1.0, NEAR)
        two = jumps.log_cumulants(np.array([1.0, 2.0]), near)
        base_near = math.log1p(-jumps.sigma) - (two[:, 1] - two[:, 0])
        psi_near = jumps.laplace_exponent(near, two[:, 0])
        m = jumps.sigma + np.exp(
            LEAST + WIDTH * np.arange(math.ceil((math.log(MOST_ATOMS) - LEAST) / WIDTH) + TERMS // 2)
        )
        coarse = np.arange(low - 2.5, high + 2.75, COARSE)
        two = jumps.log_cumulants(np.array([1.0, 2.0]), coarse)
        base = math.log1p(-jumps.sigma) - (two[:, 1] - two[:, 0])
        rest = jumps.log_cumulants(m, coarse) - gammaln(m - jumps.sigma) + base[:, None] * (m - jumps.sigma)
        nodes = np.arange(low, high, FINE)
        found = Table(
            first=low,
            step=FINE,
            psi=make_interp_spline(near, psi_near, 9)(nodes),
            base=make_interp_spline(near, base_near, 9)(nodes),
            rest=np.ascontiguousarray(make_interp_spline(coarse, rest, 9)(nodes)),
            width=WIDTH,
            sigma=jumps.sigma,
        )
    if not (np.isfinite(found.psi).all() and np.isfinite(found.base).all() and np.isfinite(found.rest).all()):
        raise SettingError(f"{shown(intensity)}: its cumulants are not finite; check log_intensity")
    return found


def draw_jumps(intensity: Any, counts: np.ndarray, log_u: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the logs of the masses of clusters of ``counts (K,)`` atoms given U, ``(K,)``: density ``s^n e^(-U s)
    rho(s)``, by the inverse of its distribution function at 2,000 nodes."""
    if not isinstance(intensity, LevyIntensity):
        raise SettingError(
            f"{type(intensity).__name__} has no log_intensity(s), from which Gibbs() draws masses of clusters; add it, "
            "or use schedule=Filter()"
        )
    own: Any = intensity
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        return _jumps_of(own).draw(np.asarray(counts, np.float64), log_u, rng)


@lru_cache(maxsize=8)
def _jumps_of(intensity: Any) -> _Jumps | _Known:
    """The intensity, checked."""
    if isinstance(intensity, LevyIntensity):
        jumps = _Jumps.of(intensity)
        return _Known(intensity, jumps.sigma, jumps) if isinstance(intensity, KnownCumulants) else jumps
    if isinstance(intensity, KnownCumulants):
        return _Known.of(intensity)
    raise SettingError(
        f"intensity={shown(intensity)}: needs log_intensity(s), or laplace_exponent(u) and log_cumulant(m, u), as "
        "GeneralizedGamma() has them"
    )


def _range(jumps: _Jumps | _Known, v: np.ndarray, first: np.ndarray) -> tuple[float, float]:
    """log u between which the density of log U lies, from one atom to the most in any number of clusters."""
    psi = jumps.laplace_exponent(v, first)
    many = jumps.log_cumulants(np.array([MOST_ATOMS]), v)[:, 0]
    levels = (v + first - psi, MOST_ATOMS * (v + first) - psi, MOST_ATOMS * v + many - psi)
    inside = [np.flatnonzero(level > np.nanmax(level) - DROP - 8.0) for level in levels]
    return float(v[max(inside[0][0] - 1, 4)]), float(v[min(max(own[-1] for own in inside) + 1, len(v) - 5)])


@dataclass(frozen=True, eq=False)
class _Known:
    """An intensity by its Laplace exponent and cumulants; ``jumps`` draw masses if it has a density too."""

    intensity: Any
    sigma: float
    jumps: _Jumps | None = None

    @classmethod
    def of(cls, intensity: Any) -> _Known:
        with np.errstate(all="ignore"):
            far = np.array([300.0, 301.0])
            first = np.asarray(intensity.log_cumulant(1.0, np.exp(far)), np.float64)
            sigma = float(1.0 + np.diff(first)[0])
            _require_order(intensity, sigma)
            sigma = max(sigma, 0.0)
            u = np.exp(np.linspace(-3.0, 3.0, 13))
            slope = np.asarray(
                intensity.laplace_exponent(u * (1.0 + 1e-5)) - intensity.laplace_exponent(u * (1.0 - 1e-5))
            )
            want = np.exp(np.asarray(intensity.log_cumulant(1.0, u), np.float64))
        if not np.allclose(slope / (2e-5 * u), want, rtol=1e-4) or not math.isclose(
            float(intensity.laplace_exponent(np.zeros(1))[0]), 0.0, abs_tol=1e-12
        ):
            raise SettingError(
                f"{shown(intensity)}: laplace_exponent(u) has to be 0 at 0, and its slope has to be kappa_1(u)"
            )
        return cls(intensity, sigma)

    def log_cumulants(self, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        """log kappa_m at log u, ``(J, M)`` nats."""
        return np.asarray(self.intensity.log_cumulant(m, np.exp(v)[:, None]), np.float64)

    def laplace_exponent(self, v: np.ndarray, first: np.ndarray) -> np.ndarray:
        """psi at log u, ``(J,)``."""
        return np.asarray(self.intensity.laplace_exponent(np.exp(v)), np.float64)

    def draw(self, counts: np.ndarray, log_u: float, rng: np.random.Generator) -> np.ndarray:
        """See :func:`draw_jumps`."""
        assert self.jumps is not None
        return self.jumps.draw(counts, log_u, rng)


@dataclass(frozen=True, eq=False)
class _Jumps:
    """An intensity by its density, integrated over y: log s, or the logit of s over the largest jump.

    Parameters
    ----------
    intensity
        The intensity.
    sigma
        Discount: rho(s) is about s^(-1 - sigma) near zero.
    largest
        log of the largest jump; inf if there is none.
    power
        y below which rho is that power, as far as doubles tell.
    grid, log_s, log_rho
        Even y over all doubles, the logs of s, and the logs of rho(s) ds/dy.
    """

    intensity: Any
    sigma: float
    largest: float
    power: float
    grid: np.ndarray
    log_s: np.ndarray
    log_rho: np.ndarray

    @classmethod
    def of(cls, intensity: Any) -> _Jumps:
        with np.errstate(all="ignore"):
            y = np.arange(-FAR, FAR + 0.5, 1.0)
            values = _logs(intensity, y)
            if not np.isfinite(values[0]):
                raise SettingError(
                    f"{shown(intensity)}: there are no jumps near zero (finite activity), so that a mixture would have "
                    "finitely many clusters; needs infinitely many"
                )
            low = _logs(intensity, np.array([-600.0, -300.0]))
            sigma = -1.0 - float(np.diff(low)[0]) / 300.0
            _require_order(intensity, sigma)
            sigma = max(sigma, 0.0)
            none = np.isneginf(values)
            if none.any() and not none[np.argmax(none) :].all():
                raise SettingError(
                    f"{shown(intensity)}: there is a gap between its jumps; needs one interval from zero"
                )
            largest = _largest(intensity, y, none)
            if math.isinf(largest) and np.isfinite(values[-2:]).all() and np.diff(values[-2:])[0] >= -1.0:
                raise SettingError(
                    f"{shown(intensity)}: the integral of min(1, s) rho(s) is infinite for large s, so that the total "
                    "mass would be; it has to fall faster than 1 / s"
                )
            log_s = _log_s(y, largest)
            log_rho = _logs(intensity, log_s) + log_s - _softplus(y, largest)
            slopes = np.abs(np.diff(log_rho) + sigma)
            straight = int(np.argmax(slopes > 1e-10)) if (slopes > 1e-10).any() else len(slopes)
        return cls(intensity, sigma, largest, float(y[max(straight - 1, 0)]), y, log_s, log_rho)

    def log_cumulants(self, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        """log kappa_m at log u, ``(J, M)`` nats."""
        out = np.empty((len(v), len(m)))
        size = max(1, 2**18 // (len(m) * NODES))
        for start in range(0, len(v), size):
            own = slice(start, start + size)
            out[own] = self._integrals(np.asarray(m, np.float64), v[own])
        return out

    def laplace_exponent(self, v: np.ndarray, first: np.ndarray) -> np.ndarray:
        """psi at log u, ``(J,)``, the integral of kappa_1, of which ``first (J,)`` are the logs."""
        from scipy.interpolate import make_interp_spline  # takes a third of a second to load

        slope = np.exp(v + first)
        below = slope[0] / ((v[1] + first[1] - v[0] - first[0]) / (v[1] - v[0]))  # a power of u
        degree = 9 if v[1] - v[0] < 0.5 else 1
        part = make_interp_spline(v, slope, degree).antiderivative()
        return np.asarray(below + part(v) - part(v[0]))

    def draw(self, counts: np.ndarray, log_u: float, rng: np.random.Generator) -> np.ndarray:
        """See :func:`draw_jumps`."""
        left, right = self._windows(counts, np.array([log_u]))
        share = np.linspace(0.0, 1.0, 2001)
        y = left[0][:, None] + (right - left)[0][:, None] * share
        logs = self._logs_at(y, counts[:, None], np.full((len(counts), 1), log_u))
        mass = np.exp(logs - logs.max(axis=1, keepdims=True))
        part = np.cumsum(0.5 * (mass[:, 1:] + mass[:, :-1]), axis=1)
        part = np.concatenate([np.zeros((len(counts), 1)), part], axis=1)
        at = rng.random(len(counts)) * part[:, -1]
        drawn = np.array([np.interp(at[k], part[k], y[k]) for k in range(len(counts))])
        return _log_s(drawn, self.largest)

    def _windows(self, m: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """y between which the integrands lie but for a power at the left, ``(J, M)`` each."""
        # below, every integrand is a rising power; above, exp(-u s) leaves nothing
        low, high = min(self.power, -32.0 - float(v.max())) - 3.0, math.log(m.max() + 1e4) - float(v.min())
        kept = slice(*np.searchsorted(self.grid, [low, high if math.isinf(self.largest) else FAR]))
        grid, log_s = self.grid[kept], self.log_s[kept]
        tilt = self.log_rho[kept] - np.exp(v[:, None] + log_s)
        logs = tilt[:, None, :] + m[:, None] * log_s
        logs[np.isnan(logs)] = -np.inf
        peak, top = logs.argmax(axis=2), logs.max(axis=2, keepdims=True)
        held = logs > top - NEGLIGIBLE
        left = grid[np.maximum(held.argmax(axis=2) - 1, 0)]
        right = grid[np.minimum(len(grid) - held[..., ::-1].argmax(axis=2), len(grid) - 1)]
        straight = np.minimum(np.minimum(self.power, -v - 32.0)[:, None], grid[peak] - 2.0)
        return np.maximum(left, straight), right

    def _closer(
        self, m: np.ndarray, v: np.ndarray, left: np.ndarray, right: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Narrower windows of integrands whose peaks are narrower than a step of the grid."""
        y = left[..., None] + (right - left)[..., None] * np.linspace(0.0, 1.0, 65)
        logs = self._logs_at(y, m[:, None], np.broadcast_to(v[:, None, None], (len(v), len(m), 1)))
        held = logs > logs.max(axis=2, keepdims=True) - NEGLIGIBLE
        first = np.maximum(held.argmax(axis=2) - 1, 0)
        last = np.minimum(65 - held[..., ::-1].argmax(axis=2), 64)
        at = [np.take_along_axis(y, place[..., None], 2)[..., 0] for place in (first, last)]
        return at[0], at[1]

    def _logs_at(self, y: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Logs of the integrands at ``y``, nats."""
        log_s = _log_s(y, self.largest)
        logs = _logs(self.intensity, log_s) + (m + 1.0) * log_s - _softplus(y, self.largest) - np.exp(v + log_s)
        return np.where(np.isnan(logs), -np.inf, logs)

    def _integrals(self, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        left, right = self._windows(m, v)
        sharp = np.flatnonzero(m > SHARP)
        for _ in range(2 if len(sharp) else 0):
            near = self._closer(m[sharp], v, left[:, sharp], right[:, sharp])
            left[:, sharp], right[:, sharp] = near
        count = max(NODES, math.ceil(float((right - left).max()) / 0.15))
        h = (right - left) / count
        y = left[..., None] + h[..., None] * np.arange(count + 1)
        logs = self._logs_at(y, m[:, None], np.broadcast_to(v[:, None, None], (len(v), len(m), 1)))
        top = logs.max(axis=2)
        terms = np.exp(logs - top[..., None])
        beyond = terms[..., 0] / np.expm1(np.minimum((m - self.sigma) * h, FAR))  # a power, to the left
        return np.asarray(top + np.log(h * (terms.sum(axis=2) + beyond)))


def _require_order(intensity: Any, sigma: float) -> None:
    """Raise SettingError unless rho(s) is about s^(-1 - sigma) near zero, with sigma from 0 to less than 1."""
    if not sigma < 1.0 - 1e-9:
        raise SettingError(
            f"{shown(intensity)}: the integral of min(1, s) rho(s) is infinite near zero, where rho(s) is about "
            f"s^{-1.0 - sigma:.3g}; the power has to be above -2"
        )
    if not sigma > -1e-9:
        raise SettingError(
            f"{shown(intensity)}: near zero rho(s) is about s^{-1.0 - sigma:.3g}, so that there are finitely many "
            "jumps (finite activity) and a mixture would have finitely many clusters; the power has to be -1 or less"
        )


def _largest(intensity: Any, y: np.ndarray, none: np.ndarray) -> float:
    """log of the largest possible jump: inf unless rho ends at once, rather than falls below the smallest double."""
    if not none.any():
        return math.inf
    low, high = float(y[np.argmax(none)] - 1.0), float(y[np.argmax(none)])
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.isfinite(_logs(intensity, np.array([middle]))[0]) else (low, middle)
    return high if _logs(intensity, np.array([low]))[0] > -1e5 else math.inf


def _logs(intensity: Any, log_s: np.ndarray) -> np.ndarray:
    """log rho at log s; raises SettingError for values that are no logs of an intensity."""
    values = np.asarray(intensity.log_intensity(np.exp(log_s)), np.float64)
    if values.shape != np.shape(log_s):
        raise SettingError(
            f"{shown(intensity)}: log_intensity of an array {np.shape(log_s)} has the shape {values.shape}; "
            "needs the same"
        )
    if np.isnan(values).any():
        at = float(np.exp(log_s[np.isnan(values)][0]))
        raise SettingError(f"{shown(intensity)}: log_intensity is not a number at s={at:.3g}; rho(s) has to be >= 0")
    return np.where(np.isposinf(values), -np.inf, values)  # a pole at the largest jump, which is no point of a grid


def _log_s(y: np.ndarray, largest: float) -> np.ndarray:
    return y if math.isinf(largest) else largest - np.logaddexp(0.0, -y)


def _softplus(y: np.ndarray, largest: float) -> np.ndarray | float:
    """``-log d(log s)/dy``."""
    return 0.0 if math.isinf(largest) else np.logaddexp(0.0, y)
