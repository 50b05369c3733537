"""Rounds of a small run of Gaussians with full covariance in one compiled loop: global step, local step, objective.

A round on some hundred atoms is a few thousand operations, but its dozens of calls of NumPy take a millisecond.  Here a
round takes as long as its arithmetic.  The prior is Normal-Wishart, weights are sticks of a Dirichlet process (thesis
2.2 and Ch. 3).  Log likelihoods are computed by whitening, ``|R_k (y - m_k)|**2`` with ``R_k' R_k = B_k^-1``, so that
nothing cancels however ill-conditioned a cluster is.  Sums are added in another order than in the steps on all data: a
small run only proposes, and the objective of all data decides.

A block of atoms is copied twice: feature by feature for the whitening, whose lanes are atoms, and atom by atom for the
second moments, whose lanes are features.  So both keep their sums in registers, and no sum goes across lanes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.gaussian.quadratic import HIDDEN, factor_all
from bnp_dask.kernels.mixture import LOG_NOTHING, TINY, exp_block
from bnp_dask.kernels.numeric.simd import LANES, fill, fused, load, store
from bnp_dask.kernels.numeric.special import psi_one
from bnp_dask.kernels.options import INNER, njit

EMPTY = 1e-20
"""Atoms of a cluster below which its sums are rounding errors of removed atoms and have no mean."""

ROWS = 64
"""Atoms of a block, a multiple of two groups of lanes.

With 16 features the whitening of a cluster takes 16 kB and its second moments 18 kB, within a core's first cache.  Not
tuned: other sizes were not timed."""

MOST_FEATURES = 128
"""Features up to which rounds are compiled.

Default fits of drawn clusters (40 columns, 1,200 rows; 100, 2,000; 128, 3,000) took .2, .6 and .6 of the CPU time of
loops over the verbs, with the same clusters, on one processor with AVX-512; digits (64) .45, at another optimum."""

LOG_2 = math.log(2.0)
LOG_PI = math.log(math.pi)
EPS = 2.0**-52
SUMS = {"reassoc", "contract"}  # sums in any order: NaN and infinity stay what they are


class Settings(NamedTuple):
    """Prior of a small run.

    Parameters
    ----------
    nu, kappa
        Degrees of freedom, and pseudo-count of the mean.
    mean
        Prior mean minus the center of the statistics, ``(D,)``.
    scale
        B of the prior, ``(D, D)``.
    unrecorded
        Unrecorded covariance of each atom, ``(D, D)``; zeros for none.
    normalizer
        Log of the integral over the prior's Wishart density, see
        :func:`bnp_dask.observation.wishart.log_normalizer`.
    gamma
        Concentration of the Dirichlet process.
    """

    nu: float
    kappa: float
    mean: np.ndarray
    scale: np.ndarray
    unrecorded: np.ndarray
    normalizer: float
    gamma: float


class Stop(NamedTuple):
    """When a small run ends.

    It ends after ``most`` rounds, or after one that raises the objective by less than ``least`` nats, or by less than a
    share ``enough`` of its distance from ``before``.  After each round clusters go that hold less than one atom, or
    less than the share ``drop`` of all; a negative share keeps all.  With ``whole`` the run ends as soon as one goes.
    """

    most: int
    least: float
    enough: float = 0.0
    before: float = 0.0
    drop: float = -1.0
    whole: bool = False

    def plain(self) -> tuple[int, float, float, float, float, bool]:
        """The same numbers, of the types that the kernels are compiled for."""
        limits = float(self.least), float(self.enough), float(self.before), float(self.drop)
        return int(self.most), *limits, bool(self.whole)


class Ended(NamedTuple):
    """End of the rounds of a small run.

    Parameters
    ----------
    alive
        Positions of the clusters that stay, ``(J,)``.
    values
        Their statistics.
    value
        Objective at the optimal parameters, nats, without terms of the prior.
    shares
        Responsibilities of the last round, ``(n, K)``; None if they were not kept.
    """

    alive: np.ndarray
    values: dict[str, np.ndarray]
    value: float
    shares: np.ndarray | None


NAMES = ("N", "x", "xx", "H")
"""Statistics of a small run: counts, sums, packed sums of squares, entropies."""


@dataclass(frozen=True, eq=False)
class SmallRun:
    """Compiled steps of a small run.

    Parameters
    ----------
    settings
        The prior.
    center
        Point about which statistics are taken, ``(D,)``.
    """

    settings: Settings
    center: np.ndarray

    def rounds(
        self,
        x: np.ndarray,
        weights: np.ndarray | None,
        values: Mapping[str, np.ndarray],
        stop: Stop,
        rest: Mapping[str, np.ndarray] | None = None,
        keeps: bool = False,
    ) -> Ended | None:
        """Rounds of global and local steps; None where double precision cannot carry one out.

        Parameters
        ----------
        x, weights
            Atoms, ``(n, D)``, and how often each counts, ``(n,)``; None for once.
        values
            Statistics that the first global step takes, by :data:`NAMES`.
        stop
            When the rounds end, and which clusters go.
        rest
            Statistics that the clusters hold besides the atoms; None for none.
        keeps
            Whether the responsibilities of the last round are returned.
        """
        own = _arrays(values, NAMES)
        others = [np.zeros_like(value) for value in own] if rest is None else _arrays(rest, NAMES)
        alive, shares = np.arange(len(own[0])), np.zeros((len(x) if keeps else 0, len(own[0])))
        y, counts = self._atoms(x, weights)
        k, value = rounds(*self._settings, *stop.plain(), y, counts, *others, *own, alive, shares)
        if math.isnan(value):
            return None
        found = {name: array[:k] for name, array in zip(NAMES, own, strict=True)}
        return Ended(alive[:k], found, value, shares if keeps else None)

    def evidence(self, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Each cluster's share of the data term at its optimal parameters, ``(K,)`` nats; None where none is known."""
        found = evidences(*self._settings[:-1], *_arrays(values, NAMES[:-1]))
        return found if math.isfinite(found.sum()) else None

    def allocation(self, counts: np.ndarray) -> float:
        """Allocation term of the objective at the optimal sticks, nats."""
        return float(stick_value(float(self.settings.gamma), np.array(counts, np.float64)))

    def kmeans(
        self, x: np.ndarray, weights: np.ndarray | None, labels: np.ndarray, n_clusters: int, most: int
    ) -> dict[str, np.ndarray] | None:
        """Statistics of the clusters after ``most`` rounds of Bregman k-means from labels; these are overwritten."""
        y, counts = self._atoms(x, weights)
        d = len(y)
        n, first, second = np.zeros(n_clusters), np.zeros((n_clusters, d)), np.zeros((n_clusters, d * (d + 1) // 2))
        if not hard_rounds(*self._settings[:-1], most, y, counts, labels, n, first, second):
            return None
        return {"N": n, "x": first, "xx": second, "H": np.zeros(n_clusters)}

    @property
    def _settings(self) -> tuple[float | np.ndarray, ...]:
        """The settings as the kernels are compiled for: a model that was received from elsewhere has read-only ones."""
        return tuple(
            np.array(one, float, order="C") if isinstance(one, np.ndarray) else float(one) for one in self.settings
        )

    def _atoms(self, x: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Atoms about the center, transposed ``(D, n)``, and their weights ``(n,)``."""
        counts = np.ones(len(x)) if weights is None else np.array(weights, np.float64)
        return np.ascontiguousarray((x - self.center).T, np.float64), counts


def _arrays(values: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
    """Copies of statistics for a kernel, which may write into them; read-only arrays would compile it anew."""
    return [np.array(values[name], np.float64, order="C") for name in names]


@njit(**INNER, fastmath=SUMS, error_model="numpy")
def _globally(
    nu0, kappa0, mean0, scale0, unrecorded, normalizer, hard, n_clusters, n, x, xx, matrices, lower, roots, shifts,
    levels, evidence,
):  # fmt: skip
    """Posteriors of the first clusters, with ``hard`` at their modes, and their evidences.

    Returns whether double precision could carry that out.
    """
    d = x.shape[1]
    for k in range(n_clusters):
        kappa, held = kappa0 + n[k], n[k] > EMPTY
        shrinkage, counted = max(n[k], 0.0) * kappa0 / kappa, max(n[k], 0.0)
        at = 0
        for i in range(d):
            mean_i = x[k, i] / n[k] if held else 0.0
            shifts[k, i] = (kappa0 * mean0[i] + x[k, i]) / kappa
            for j in range(i, d):
                mean_j = x[k, j] / n[k] if held else 0.0
                entry = (xx[k, at] - x[k, i] * mean_j) + shrinkage * ((mean_i - mean0[i]) * (mean_j - mean0[j]))
                entry += scale0[i, j] + counted * unrecorded[i, j]
                matrices[k, i, j] = entry
                matrices[k, j, i] = entry
                at += 1
    if factor_all(matrices[:n_clusters], lower[:n_clusters], roots[:n_clusters]) >= 0:
        return False
    for k in range(n_clusters):
        nu, kappa = nu0 + n[k], kappa0 + n[k]
        log_det, psi, log_gamma, lost = 0.0, 0.0, 0.25 * d * (d - 1) * LOG_PI, 0.0
        for i in range(d):
            if lower[k, i, i] ** 2 < HIDDEN * d * EPS * matrices[k, i, i]:
                return False
            log_det += 2.0 * math.log(lower[k, i, i])
            psi += psi_one(0.5 * (nu - i))
            log_gamma += math.lgamma(0.5 * (nu - i))
        for i in range(d):
            for j in range(d):
                if unrecorded[i, j] != 0.0:
                    for c in range(max(i, j), d):
                        lost += roots[k, c, i] * roots[k, c, j] * unrecorded[i, j]
        log_2pi = d * (LOG_2 + LOG_PI)
        height = d * math.log(nu) if hard else psi + d * LOG_2 - d / kappa
        levels[k] = 0.5 * (height - log_det - log_2pi - nu * lost)
        evidence[k] = 0.5 * nu * (d * LOG_2 - log_det) + log_gamma - normalizer - 0.5 * log_2pi * n[k]
        evidence[k] += 0.5 * d * math.log(kappa0 / kappa)
    return True


@njit(**INNER, error_model="numpy")
def _sticks(gamma, n_clusters, n, log_weights, log_rest):
    """Expected log weights of the first clusters, and the allocation term at the optimum."""
    after, total = 0.0, 0.0
    for k in range(n_clusters - 1, -1, -1):
        one, zero = 1.0 + n[k], gamma + after
        both = psi_one(one + zero)
        log_weights[k] = psi_one(one) - both
        log_rest[k] = psi_one(zero) - both
        total += math.lgamma(one) + math.lgamma(zero) - math.lgamma(one + zero) + math.log(gamma)
        after += n[k]
    before = 0.0
    for k in range(n_clusters):
        log_weights[k] += before
        before += log_rest[k]
    return total


@njit(**INNER, error_model="numpy")
def _take_block(y, first, by_feature):
    """Copy a block to ``by_feature (D ROWS,)``.

    Returns its length in whole groups of lanes; atoms beside the last one are zeros.
    """
    d, n_atoms = y.shape
    size = min(ROWS, n_atoms - first)
    whole = -(-size // (2 * LANES)) * 2 * LANES
    for i in range(d):
        row, at = y[i], i * ROWS
        for t in range(size):
            by_feature[at + t] = row[first + t]
        for t in range(size, whole):
            by_feature[at + t] = 0.0
    return whole


@njit(**INNER, error_model="numpy")
def _turn_block(by_feature, size, d, n_atoms, counts, first, by_atom, count):
    """Copy a block atom by atom to ``by_atom (ROWS P,)``, of whose P features the last stay zero, and its counts.

    Atoms beside the last one count nothing.
    """
    wide = len(by_atom) // ROWS
    for t in range(size):
        count[t] = counts[first + t] if first + t < n_atoms else 0.0
    for i in range(d):
        at = i * ROWS
        for t in range(size):
            by_atom[t * wide + i] = by_feature[at + t]


@njit(**INNER, error_model="numpy")
def _log_liks(nu0, by_feature, size, n_clusters, n, roots, shifts, levels, log_weights, logs, away, top):
    """Log weights plus log likelihoods of a block, ``logs (K, ROWS)``, less the largest of each atom.

    Two rows of a root meet two groups of lanes: eight numbers that are added to for four that are loaded.
    """
    d, zero = shifts.shape[1], fill(0.0)
    for k in range(n_clusters):
        level, out, scale = fill(levels[k] + log_weights[k]), logs[k], fill(-0.5 * (nu0 + n[k]))
        for j in range(d):
            less = fill(-shifts[k, j])
            for at in range(j * ROWS, j * ROWS + size, LANES):
                store(away, at, load(by_feature, at) + less)
        for t in range(0, size, 2 * LANES):
            left, right = zero, zero
            for i in range(0, d - d % 2, 2):
                p, q, r, s = zero, zero, zero, zero
                for j in range(i + 2):  # the entry above the diagonal is zero
                    one, two = fill(roots[k, i, j]), fill(roots[k, i + 1, j])
                    a, b = load(away, j * ROWS + t), load(away, j * ROWS + t + LANES)
                    p, q, r, s = fused(one, a, p), fused(one, b, q), fused(two, a, r), fused(two, b, s)
                left, right = fused(p, p, fused(r, r, left)), fused(q, q, fused(s, s, right))
            if d % 2:
                p, q = zero, zero
                for j in range(d):
                    one = fill(roots[k, d - 1, j])
                    p = fused(one, load(away, j * ROWS + t), p)
                    q = fused(one, load(away, j * ROWS + t + LANES), q)
                left, right = fused(p, p, left), fused(q, q, right)
            store(out, t, fused(scale, left, level))
            store(out, t + LANES, fused(scale, right, level))
    for t in range(size):
        top[t] = -np.inf
    for k in range(n_clusters):
        out = logs[k]
        for t in range(size):
            top[t] = out[t] if out[t] > top[t] else top[t]
    for k in range(n_clusters):
        out = logs[k]
        for t in range(size):
            out[t] -= top[t]


@njit(**INNER, fastmath=SUMS, error_model="numpy")
def _add(
    by_atom, first, size, d, n_atoms, n_clusters, count, logs, powers, total, norm, n, h, sums, squares, parts, held,
    shares,
):  # fmt: skip
    """Add a block's statistics; ``powers (K, ROWS)`` are exponentials of ``logs``, and are overwritten.

    ``sums (K P,)`` and ``squares (K P P,)`` are of features of which the last are zero.  No loop that stores numbers
    adds some up: whether the compiled code takes several at once would depend on where the arrays lie in memory, and
    with it the order of the sum.  Lanes are added in the order in which they stand here.
    """
    wide = len(by_atom) // ROWS
    for t in range(size):
        total[t] = 0.0
    for k in range(n_clusters):
        power = powers[k]
        for t in range(size):
            total[t] += power[t]
    for t in range(size):
        norm[t] = math.log(total[t])
        total[t] = 1.0 / total[t]
    for k in range(n_clusters):
        power, log, entropy, here = powers[k], logs[k], 0.0, 0.0
        for t in range(size):
            share = power[t] * total[t]
            power[t] = 0.0 if share < TINY else share
        if shares.shape[0]:
            for t in range(min(size, n_atoms - first)):
                shares[first + t, k] = power[t]
        for t in range(size):
            power[t] *= count[t]
        for t in range(size):
            here += power[t]
            # a log below the least one that exp saw belongs to a share of zero
            entropy -= power[t] * (max(log[t], LOG_NOTHING) - norm[t])
        n[k] += here
        h[k] += entropy
        if here == 0.0:
            continue
        some = 0
        for t in range(size):
            if power[t] != 0.0:
                held[some] = t
                some += 1
        _add_moments(by_atom, d, wide, power, held, some, sums, squares, k, parts)


@njit(**INNER, error_model="numpy")
def _add_moments(by_atom, d, wide, power, held, some, sums, squares, k, parts):
    """Add the first and second moments of ``some`` atoms ``held`` to those of a cluster.

    Four features of the weighted atoms meet a group of lanes; of the triangle only groups with an entry are computed.
    """
    zero = fill(0.0)
    for g in range(0, wide, LANES):
        total = zero
        for u in range(some):
            part = fill(power[held[u]]) * load(by_atom, held[u] * wide + g)
            store(parts, u * wide + g, part)
            total = total + part
        store(sums, k * wide + g, load(sums, k * wide + g) + total)
    for i in range(0, d, 4):
        for g in range(i - i % LANES, wide, LANES):
            p, q, r, s = zero, zero, zero, zero
            for u in range(some):
                other, at = load(by_atom, held[u] * wide + g), u * wide + i
                p = fused(fill(parts[at]), other, p)
                q = fused(fill(parts[at + 1]), other, q)
                r = fused(fill(parts[at + 2]), other, r)
                s = fused(fill(parts[at + 3]), other, s)
            at = (k * wide + i) * wide + g
            store(squares, at, load(squares, at) + p)
            store(squares, at + wide, load(squares, at + wide) + q)
            store(squares, at + 2 * wide, load(squares, at + 2 * wide) + r)
            store(squares, at + 3 * wide, load(squares, at + 3 * wide) + s)


@njit(**INNER, error_model="numpy")
def _add_sums(n_clusters, wide, sums, squares, x, xx):
    """Add the moments of all blocks to the statistics, and set them to zero."""
    d = x.shape[1]
    for k in range(n_clusters):
        at = 0
        for i in range(d):
            x[k, i] += sums[k * wide + i]
            row = (k * wide + i) * wide
            for j in range(i, d):
                xx[k, at] += squares[row + j]
                at += 1
    for at in range(n_clusters * wide):
        sums[at] = 0.0
    for at in range(n_clusters * wide * wide):
        squares[at] = 0.0


@njit(**INNER, error_model="numpy")
def _set_row(at, n, x, xx, h, row, from_n, from_x, from_xx, from_h):
    """Copy the statistics of one cluster to another place."""
    n[at], h[at] = from_n[row], from_h[row]
    for i in range(x.shape[1]):
        x[at, i] = from_x[row, i]
    for i in range(xx.shape[1]):
        xx[at, i] = from_xx[row, i]


@njit(**INNER, error_model="numpy")
def _least(n_clusters, n, drop):
    """Atoms that a cluster needs to stay."""
    if drop < 0.0:
        return -np.inf
    total, most = 0.0, 0.0
    for k in range(n_clusters):
        total += n[k]
        most = max(most, n[k])
    return min(max(1.0, drop * total), most)


@njit(nogil=True, cache=True, error_model="numpy")
def rounds(
    nu, kappa, mean, scale, unrecorded, normalizer, gamma,
    most, least, enough, before, drop, whole,
    y, counts, rest_n, rest_x, rest_xx, rest_h, n, x, xx, h, alive, shares,
):  # fmt: skip
    """Rounds of global and local steps until one gains little.

    Parameters
    ----------
    nu, kappa, mean, scale, unrecorded, normalizer, gamma
        As in :class:`Settings`; a tuple of arrays takes longer to compile than a step.
    most, least, enough, before, drop, whole
        As in :class:`Stop`.
    y, counts
        Atoms less the center of the statistics, transposed, ``(D, n)``, and how often each counts ``(n,)``.
    rest_n, rest_x, rest_xx, rest_h
        Statistics that the clusters hold besides these atoms: arrays like the next four.
    n, x, xx, h
        Statistics that the first global step takes: counts ``(K,)``, sums ``(K, D)``, packed sums of squares, and
        entropies ``(K,)``; overwritten with those of the last round, the clusters that stay first.
    alive
        Positions of the clusters, ``(K,)`` int64; overwritten with those of the clusters that stay.
    shares
        Overwritten with the responsibilities of the last round, ``(n, K)``; without rows they are not kept.

    Returns
    -------
    n_clusters
        Number of clusters that stay.
    value
        Objective of the last statistics at their optimal parameters without terms of the prior, nats; not finite where
        double precision could not carry a step out.
    """
    d, n_atoms = y.shape
    k, last, value, comparable = len(n), 0.0, -np.inf, False
    matrices, lower, roots = np.empty((k, d, d)), np.empty((k, d, d)), np.empty((k, d, d))
    shifts, levels, log_weights, log_rest = np.empty((k, d)), np.empty(k), np.empty(k), np.empty(k)
    evidence = np.empty(k)
    new_n, new_x, new_xx, new_h = np.empty(k), np.empty((k, d)), np.empty(xx.shape), np.empty(k)
    # numbers beside the last block's atoms are computed too, and not used
    logs, powers = np.zeros((k, ROWS)), np.empty((k, ROWS))
    scratch, top, norm, count = np.empty(ROWS), np.empty(ROWS), np.empty(ROWS), np.empty(ROWS)
    wide = -(-d // LANES) * LANES
    by_feature, away, by_atom, parts = (
        np.empty(d * ROWS),
        np.empty(d * ROWS),
        np.zeros(ROWS * wide),
        np.empty(ROWS * wide),
    )
    sums, squares, held = np.zeros(k * wide), np.zeros(k * wide * wide), np.empty(ROWS, np.int64)
    for step in range(most + 1):
        known = _globally(
            nu, kappa, mean, scale, unrecorded, normalizer, False, k, n, x, xx, matrices, lower, roots, shifts,
            levels, evidence,
        )  # fmt: skip
        found = _sticks(gamma, k, n, log_weights, log_rest)
        for c in range(k):
            found += h[c] + evidence[c]
        if not (known and math.isfinite(found)):
            return k, np.nan
        # the first statistics are of other beliefs, and those without a cluster that went are of fewer atoms
        last, value = value, found if comparable or step == most else -np.inf
        if step == most or (comparable and value - last < max(enough * abs(value - before), least)):
            break
        for c in range(k):
            _set_row(c, new_n, new_x, new_xx, new_h, alive[c], rest_n, rest_x, rest_xx, rest_h)
        for first in range(0, n_atoms, ROWS):
            size = _take_block(y, first, by_feature)
            _turn_block(by_feature, size, d, n_atoms, counts, first, by_atom, count)
            _log_liks(nu, by_feature, size, k, n, roots, shifts, levels, log_weights, logs, away, top)
            for c in range(k):
                exp_block(logs[c], LOG_NOTHING, scratch, powers[c])
            _add(
                by_atom, first, size, d, n_atoms, k, count, logs, powers, top, norm, new_n, new_h, sums, squares, parts,
                held, shares,
            )  # fmt: skip
        _add_sums(k, wide, sums, squares, new_x, new_xx)
        needed, kept = _least(k, new_n, drop), 0
        for c in range(k):
            if new_n[c] >= needed:
                _set_row(kept, n, x, xx, h, c, new_n, new_x, new_xx, new_h)
                alive[kept] = alive[c]
                kept += 1
        if kept == 0:  # only if their atoms are no numbers
            return k, np.nan
        if kept < k and whole:
            return kept, value
        comparable, k = kept == k, kept
    return k, value


@njit(nogil=True, cache=True, error_model="numpy")
def evidences(nu, kappa, mean, scale, unrecorded, normalizer, n, x, xx):
    """Log of the integral of the likelihood of each cluster's atoms over the prior, ``(K,)`` nats.

    NaN if double precision has none for some cluster.  Arguments are as in :class:`Settings` and :func:`rounds`.
    """
    k, d = x.shape
    matrices, lower, roots = np.empty((k, d, d)), np.empty((k, d, d)), np.empty((k, d, d))
    shifts, levels, evidence = np.empty((k, d)), np.empty(k), np.empty(k)
    known = _globally(
        nu, kappa, mean, scale, unrecorded, normalizer, False, k, n, x, xx, matrices, lower, roots, shifts, levels,
        evidence,
    )  # fmt: skip
    if not known:
        evidence[:] = np.nan
    return evidence


@njit(nogil=True, cache=True, error_model="numpy")
def stick_value(gamma, n):
    """Allocation term of the objective at the optimal sticks of counts ``n (K,)``, nats."""
    return _sticks(gamma, len(n), n, np.empty(len(n)), np.empty(len(n)))


@njit(nogil=True, cache=True, error_model="numpy")
def hard_rounds(nu, kappa, mean, scale, unrecorded, normalizer, most, y, counts, labels, n, x, xx):
    """Bregman k-means (thesis Algorithm 2.1) from labels, in place: hard assignments, point estimates.

    Weights of clusters are the modes of a symmetric Dirichlet distribution of total mass one.  No cluster becomes
    empty: its atom that gains least by leaving stays.

    Parameters
    ----------
    nu, kappa, mean, scale, unrecorded, normalizer
        As in :class:`Settings`.
    most
        Most rounds; it ends earlier if no label changes.
    y, counts
        As in :func:`rounds`.
    labels
        Cluster of each atom, ``(n,)`` int64, with no cluster empty; overwritten.
    n, x, xx
        Overwritten with the statistics of the last labels: ``(K,)``, ``(K, D)`` and packed squares.

    Returns
    -------
    bool
        Whether double precision could carry that out.
    """
    d, n_atoms = y.shape
    k = len(n)
    matrices, lower, roots = np.empty((k, d, d)), np.empty((k, d, d)), np.empty((k, d, d))
    shifts, levels, log_weights, evidence = np.empty((k, d)), np.empty(k), np.empty(k), np.empty(k)
    logs, top = np.empty((k, ROWS)), np.empty(ROWS)
    by_feature, away = np.empty(d * ROWS), np.empty(d * ROWS)
    wanted, gain, held = np.empty(n_atoms, np.int64), np.empty(n_atoms), np.empty(k, np.int64)
    for step in range(most + 1):
        _label_sums(y, counts, labels, n, x, xx)
        if step == most:
            break
        known = _globally(
            nu, kappa, mean, scale, unrecorded, normalizer, True, k, n, x, xx, matrices, lower, roots, shifts, levels,
            evidence,
        )  # fmt: skip
        if not known:
            return False
        for c in range(k):
            log_weights[c] = math.log(n[c] + 1.0 / k)
        for first in range(0, n_atoms, ROWS):
            size = _take_block(y, first, by_feature)
            _log_liks(nu, by_feature, size, k, n, roots, shifts, levels, log_weights, logs, away, top)
            for t in range(min(size, n_atoms - first)):
                best = 0
                for c in range(1, k):
                    if logs[c, t] > logs[best, t]:
                        best = c
                wanted[first + t] = best
                gain[first + t] = logs[best, t] - logs[labels[first + t], t]
        _keep_all(wanted, labels, gain, held)
        changed = False
        for t in range(n_atoms):
            changed |= wanted[t] != labels[t]
            labels[t] = wanted[t]
        if not changed:
            break
    return True


@njit(**INNER, error_model="numpy")
def _label_sums(y, counts, labels, n, x, xx):
    """Statistics of labelled atoms."""
    d = len(y)
    n[:] = 0.0
    x[:] = 0.0
    xx[:] = 0.0
    for t in range(len(labels)):
        k, at = labels[t], 0
        n[k] += counts[t]
        for i in range(d):
            left = counts[t] * y[i, t]
            x[k, i] += left
            for j in range(i, d):
                xx[k, at] += left * y[j, t]
                at += 1


@njit(**INNER, error_model="numpy")
def _keep_all(wanted, labels, gain, held):
    """Let atoms go back until no cluster is empty; at worst all go back."""
    while True:
        held[:] = 0
        for t in range(len(wanted)):
            held[wanted[t]] += 1
        full = True
        for k in range(len(held)):
            if held[k]:
                continue
            full, stays = False, -1
            for t in range(len(labels)):
                if labels[t] == k and (stays < 0 or gain[t] < gain[stays]):
                    stays = t
            wanted[stays] = k
        if full:
            return
