"""Gaussians whose mean and covariance have independent priors: integrals over both, each as one of a single number.

With mu ~ N(m, V) and Lam ~ W(nu, B^-1), atoms of count n, mean xbar and scatter C have, integrated over Lam, a
likelihood in proportion to ``(1 + q)^-a`` with ``a = (nu + n) / 2``, ``q = n (xbar - mu)' A^-1 (xbar - mu)`` and
``A = B + C``.  That is a mixture of Gaussians of mu,

    (1 + q)^-a = 1 / Gamma(a) int w^(a - 1) exp(-w (1 + q)) dw,

and the integral of each over N(m, V) has a closed form.  What is left is an integral over ``t = log w``, of

    exp(a t - w) |A|^(1/2) |A + v V|^(-1/2) exp(-v/2 e' (A + v V)^-1 e),     v = 2 n w,  e = xbar - m.

In coordinates in which V is the identity and A is diagonal, its logarithm costs a few sums over features.  It is
analytic and falls exponentially on the left and faster on the right, so that a sum over equidistant nodes is exact to
rounding.  It may have several modes if the data contradict the prior: all lie between bounds of its slope, and are
looked for there.

One more atom x makes A, the mean and the count ``A + r u u'``, ``xbar + u / n``, and n, with ``u = x - former xbar``
and ``r = (n - 1) / n``: the same sums, by the matrix determinant lemma and Sherman-Morrison.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, njit

DROP = 40.0
"""Nats below its highest mode at which the integrand is cut off: a share of 1e-17."""

STEP = 0.25
"""Largest distance of nodes: the integrand is analytic within pi / 2 of the axis, for an error of exp(-pi^2 / 0.25)."""

SHARE = 0.5
"""Distance of nodes, in standard deviations of a narrow mode: an error of exp(-2 pi^2 / 0.25)."""

SCANNED = 0.5
"""Distance, in t, at which modes are looked for; all terms of the slope change over distances of about one."""

NEAR = 1e-2
"""Slope at which a mode counts as found, in units of the inverse width."""

LARGE = 1e150
"""Product of ratios whose logarithm is taken: one logarithm for many features."""

MODES = 8
"""Modes kept, at most."""

REFINED = 60
"""Halvings and secants for a mode, at most."""

FARTHEST = 20_000
"""Nodes on each side of a mode, at most."""


@njit(**INNER)
def _height(t, a, n, inverse, f, u, alpha, r, is_integrated):
    """Log integrand at t, its slope, and the quadratic form; without the determinants at the joint mode."""
    w = math.exp(t)
    v = 2.0 * w * n
    ff, uf, uu, dff, duf, duu = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    log_det, product, trace, u0 = 0.0, 1.0, 0.0, 0.0
    for j in range(len(inverse)):
        g = 1.0 / (inverse[j] + v)
        gf, gu = g * f[j], g * u[j]
        ff += gf * f[j]
        uf += gf * u[j]
        uu += gu * u[j]
        dff += gf * gf
        duf += gf * gu
        duu += gu * gu
        trace += v * g
        u0 += u[j] * u[j] / inverse[j]
        product *= 1.0 + v / inverse[j]
        if product > LARGE:
            log_det += math.log(product)
            product = 1.0
    bent = 1.0 + r * uu
    part = alpha * alpha * uu + 2.0 * alpha * uf - r * uf * uf
    form = ff + part / bent
    slope_part = -v * (alpha * alpha * duu + 2.0 * alpha * duf - 2.0 * r * uf * duf)
    slope_form = -v * dff + slope_part / bent + part * v * r * duu / (bent * bent)
    h = a * t - w - 0.5 * v * form
    slope = a - w - 0.5 * v * (form + slope_form)
    if is_integrated:
        h -= 0.5 * (log_det + math.log(product * (bent / (1.0 + r * u0))))
        slope -= 0.5 * (trace - r * v * duu / bent)
    return h, slope, form


@njit(**INNER)
def _modes(a, n, inverse, f, u, alpha, r, is_integrated, found):
    """Modes from right to left into ``found (MODES,)``; returns their number."""
    form = _height(-1e4, a, n, inverse, f, u, alpha, r, is_integrated)[2]
    total, d = 0.0, len(inverse)
    for j in range(d):
        total += 1.0 / inverse[j]
    pull = 1.0 + n * max(form, 0.0)
    # the slope is positive below these, since the spread takes D / 2 of it at most, and w n / A at most
    low = a / (pull + (n * total if is_integrated else 0.0))
    if is_integrated and a > 0.5 * d:
        low = max(low, (a - 0.5 * d) / pull)
    right, left = math.log(a) + 1e-3, math.log(low) - 1e-3
    cells = max(2, math.ceil((right - left) / SCANNED))
    width, count, after = (right - left) / cells, 0, 0.0
    for i in range(cells + 1):
        t = right - i * width
        slope = _height(t, a, n, inverse, f, u, alpha, r, is_integrated)[1]
        if i > 0 and slope > 0.0 >= after and count < MODES:
            x, sx, y, sy = t, slope, t + width, after
            for turn in range(REFINED):
                t = 0.5 * (x + y) if turn % 3 == 2 else x + (y - x) * sx / (sx - sy)
                s = _height(t, a, n, inverse, f, u, alpha, r, is_integrated)[1]
                if s > 0.0:
                    x, sx = t, s
                else:
                    y, sy = t, s
                close = is_integrated and abs(s) <= NEAR * math.sqrt(min(a, math.exp(t)))
                if close or s == 0.0 or not x < 0.5 * (x + y) < y:
                    break
            found[count] = t
            count += 1
        after = slope
    if count == 0:  # rounding hides the sign of the slope
        found[0] = left if after <= 0.0 else right
        count = 1
    return count


@njit(**INNER)
def _integral(a, n, inverse, f, u, alpha, r, share, nodes, heights):
    """Log of the integral over t, and the number of nodes, which are noted as far as there is room."""
    modes, height, bend = np.empty(MODES), np.empty(MODES), np.empty(MODES)
    count = _modes(a, n, inverse, f, u, alpha, r, True, modes)
    for i in range(count):
        away = 1e-3 / math.sqrt(1.0 + math.exp(modes[i]))
        before = 0.0
        for side in range(3):
            h, slope, _ = _height(modes[i] + (side - 1.0) * away, a, n, inverse, f, u, alpha, r, True)
            if side == 0:
                before = slope
            elif side == 1:
                height[i] = h
        bend[i] = (before - slope) / (2.0 * away)
    top, step = height[:count].max(), STEP
    for i in range(count):
        if height[i] > top - DROP:
            step = min(step, SHARE / math.sqrt(max(bend[i], 1e-3)))
    step *= share
    total, used, covered = 0.0, 0, np.inf
    for i in range(count):
        if height[i] <= top - DROP or modes[i] >= covered:
            continue
        for side in range(2):
            t = modes[i] - side * step
            for _ in range(FARTHEST):
                h = _height(t, a, n, inverse, f, u, alpha, r, True)[0]
                if h < top - DROP or t >= covered:
                    break
                if used < len(nodes):
                    nodes[used], heights[used] = t, h
                used += 1
                total += math.exp(h - top)
                t += step - 2.0 * side * step
        covered = t
    return top + math.log(total * step), used


@njit(nogil=True, cache=True)
def log_integrals(
    a: float, n: float, inverse: np.ndarray, f: np.ndarray, u: np.ndarray, alpha: float, r: float, out: np.ndarray
) -> None:
    """Logs of the integral over t less ``log Gamma(a)``, of clusters or of a cluster with one more atom.

    Parameters
    ----------
    a, n
        ``(nu + n) / 2`` and the count, > 0, including the atom.
    inverse, f
        A and ``xbar - m`` in coordinates in which V is the identity and A diagonal, ``(D,)``; without the atom.
    u, alpha, r
        Atoms less xbar in these coordinates, ``(m, D)``, and their shares ``1 / n`` and ``(n - 1) / n`` if they are
        added; zeros for the cluster itself.
    out
        ``(m,)``, nats.
    """
    none = np.empty(0)
    constant = math.lgamma(a)
    for i in range(len(u)):
        out[i] = _integral(a, n, inverse, f, u[i], alpha, r, 1.0, none, none)[0] - constant


@njit(nogil=True, cache=True)
def nodes_of(a: float, n: float, inverse: np.ndarray, f: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Equidistant t and the log integrand at these, in no order; ``share`` is the part of the usual distance of nodes.

    Other parameters are those of :func:`log_integrals`; n may be zero.
    """
    zero, none = np.zeros(len(f)), np.empty(0)
    nodes, heights = none, none
    for _ in range(2):  # counts, then notes
        used = _integral(a, n, inverse, f, zero, 0.0, 0.0, share, nodes, heights)[1]
        if not len(nodes):
            nodes, heights = np.empty(used), np.empty(used)
    return nodes, heights


@njit(nogil=True, cache=True)
def joint_modes(a: float, n: float, inverse: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The w of the highest joint mode of mu and Lam, ``a / (1 + q)`` there, for each of the means ``f (m, D)``.

    The density is that with respect to ``|Lam|^(-(D + 1) / 2) dLam dmu``.  Other parameters are those of
    :func:`log_integrals`; n may be zero.
    """
    out, modes, zero = np.empty(len(f)), np.empty(MODES), np.zeros(len(inverse))
    for i in range(len(f)):
        count = _modes(a, n, inverse, f[i], zero, 0.0, 0.0, False, modes)
        top = -np.inf
        for j in range(count):
            h = _height(modes[j], a, n, inverse, f[i], zero, 0.0, 0.0, False)[0]
            if h > top:
                top, out[i] = h, math.exp(modes[j])
    return out
