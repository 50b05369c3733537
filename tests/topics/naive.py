"""Slow twins of topic models: every document's responsibilities in memory, the objective term by term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln, logsumexp, psi, xlogy


@dataclass
class Document:
    """Tokens of one group: log likelihoods ``(n, K)``, weights ``(n,)``, responsibilities and pseudo-counts."""

    log_lik: np.ndarray
    weight: np.ndarray
    resp: np.ndarray
    theta: np.ndarray
    rest: float

    @property
    def count(self):
        return self.weight @ self.resp


def responsibilities(weights):
    return np.exp(weights - logsumexp(weights, axis=1, keepdims=True))


def chosen(weights, top):
    """Whether a topic is one of the ``top`` best of a token (Alg. 7.2)."""
    out = np.zeros(weights.shape, bool)
    np.put_along_axis(out, np.argsort(-weights, axis=1, kind="stable")[:, :top], True, axis=1)
    return out


def only(weights, kept):
    return np.where(kept, weights, -np.inf)


def climb(log_lik, weight, prior, count, sweeps, top=None, active=False):
    """Alg. 5.1 lines 6-14 from the counts of a document: responsibilities and counts.

    With ``top`` Alg. 7.4: tokens choose in the first five sweeps, then in each tenth, the last, and where a topic
    without counts has been left, which only ``active`` ones are not.
    """
    resp, before = None, len(prior)
    for s in range(sweeps):
        alive = (count > 0.0) | (not active)
        weights = only(log_lik + psi(count + prior), alive)
        if top is None:
            kept = alive[None, :]
        elif s < 5 or s % 10 == 0 or s == sweeps - 1 or alive.sum() < before:
            kept = chosen(weights, top)
        before = alive.sum()
        resp = responsibilities(only(weights, kept))
        count = weight @ resp
    return resp, count


def own_objective(log_lik, weight, prior, resp, count):
    """(5.40) of one document, up to a constant."""
    inner = np.sum(weight[:, None] * (resp * log_lik - xlogy(resp, resp)))
    return inner + np.sum(gammaln(count + prior) - gammaln(prior))


def document(log_lik, weight, prior, rest, sweeps, start=None, top=None, active=False):
    """One document by Alg. 5.1, or 7.4 with ``top`` topics a token, from scratch or from counts."""
    if len(weight) == 0:
        return Document(log_lik, weight, log_lik, prior.copy(), rest)
    if start is None:
        weights = log_lik + np.log(prior)
        start = weight @ responsibilities(weights if top is None else only(weights, chosen(weights, top)))
    resp, count = climb(log_lik, weight, prior, start, sweeps, top, active)
    return Document(log_lik, weight, resp, count + prior, rest)


def share_out(doc, donors, beliefs, given, log_lik, sweeps):
    """What the donors hold of each token goes to receivers: their shares of the tokens ``(n, J)``, and theta."""
    share = doc.resp[:, donors].sum(axis=1)
    mass = doc.weight * share
    prior = given * beliefs / beliefs.sum()
    held = np.flatnonzero(mass)
    resp = np.zeros((len(mass), len(prior)))
    count = np.zeros(len(prior))
    if len(held):
        start = mass[held] @ responsibilities(log_lik[held] + np.log(prior))
        part, count = climb(log_lik[held], mass[held], prior, start, sweeps)
        resp[held] = part * share[held, None]
    return resp, count + prior


def entropy(docs, times):
    return sum(t * -np.sum(d.weight[:, None] * xlogy(d.resp, d.resp)) for d, t in zip(docs, times, strict=True))


def cumulant(theta):
    return gammaln(theta.sum()) - gammaln(theta).sum()


def document_term(docs, times, alpha_pi, alpha_rest):
    """L_HDP-doc (5.27); without a last place for LDA, where ``alpha_rest`` is 0."""
    value = 0.0
    for doc, t in zip(docs, times, strict=True):
        theta, prior, count = doc.theta, alpha_pi, doc.count
        if alpha_rest > 0:
            theta, prior, count = (np.append(a, b) for a, b in ((theta, doc.rest), (prior, alpha_rest), (count, 0.0)))
        log_pi = psi(theta) - psi(theta.sum())
        value += t * (-cumulant(theta) + (count + prior - theta) @ log_pi)
    return value


def top_term(u, omega, gamma, alpha, groups):
    """Surrogate (5.25), one cluster at a time."""
    k_all = len(u)
    value = groups * k_all * np.log(alpha)
    for k in range(k_all):
        a, b = u[k] * omega[k], (1 - u[k]) * omega[k]
        value += -betaln(1.0, gamma) + betaln(a, b)
        value += (groups + 1 - a) * (psi(a) - psi(a + b))
        value += (groups * (k_all - k) + gamma - b) * (psi(b) - psi(a + b))
    return value


def pair_values(docs, times, a, b, alpha_pi):
    """P, Q and H of the union of two topics."""
    p = q = h = 0.0
    for doc, t in zip(docs, times, strict=True):
        theta, total = doc.theta[a] + doc.theta[b], doc.theta.sum() + doc.rest
        count = doc.count[a] + doc.count[b]
        log_pi = psi(theta) - psi(total)
        both = doc.resp[:, a] + doc.resp[:, b]
        p += t * log_pi
        q += t * (gammaln(theta) + (count - theta) * log_pi)
        h += t * -np.sum(doc.weight * xlogy(both, both))
    return p, q, h
