"""Slow twins of hidden Markov models: all paths of a sequence, and objectives from pair posteriors written out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln, psi, xlogy


@dataclass
class Chain:
    """q(z) of one sequence: ``first (K,)`` and pair posteriors ``pairs (T - 1, K, K)``, and how often it counts."""

    first: np.ndarray
    pairs: np.ndarray
    weight: float = 1.0

    @property
    def resp(self):
        return np.concatenate([self.first[None], self.pairs.sum(axis=1)])

    def check(self):
        """A Markov chain: what arrives at a step is what leaves it."""
        np.testing.assert_allclose(self.first.sum(), 1.0, atol=1e-12)
        assert (self.pairs >= -1e-15).all()
        np.testing.assert_allclose(self.pairs.sum(axis=2), self.resp[:-1], atol=1e-10)


def all_paths(log_start, log_trans, log_lik):
    """Log normaliser, chain, and entropy of the posterior, by enumeration."""
    n, k = log_lik.shape
    paths = list(itertools.product(range(k), repeat=n))
    score = []
    for path in paths:
        value = log_start[path[0]] + sum(log_lik[t, s] for t, s in enumerate(path))
        score.append(value + sum(log_trans[a, b] for a, b in itertools.pairwise(path)))
    score = np.array(score)
    norm = score.max() + np.log(np.exp(score - score.max()).sum())
    prob = np.exp(score - norm)
    first, pairs = np.zeros(k), np.zeros((n - 1, k, k))
    for path, p in zip(paths, prob, strict=True):
        first[path[0]] += p
        for t, (a, b) in enumerate(itertools.pairwise(path)):
            pairs[t, a, b] += p
    return norm, Chain(first, pairs), -xlogy(prob, prob).sum(), paths[int(np.argmax(score))]


def forward_backward(log_start, log_trans, log_lik, weight=1.0):
    """The same with logarithms, one step after the other."""
    n, k = log_lik.shape
    alpha, beta = np.empty((n, k)), np.zeros((n, k))
    alpha[0] = log_start + log_lik[0]
    for t in range(1, n):
        alpha[t] = np.logaddexp.reduce(alpha[t - 1][:, None] + log_trans, axis=0) + log_lik[t]
    for t in range(n - 2, -1, -1):
        beta[t] = np.logaddexp.reduce(log_trans + log_lik[t + 1] + beta[t + 1], axis=1)
    norm = np.logaddexp.reduce(alpha[-1])
    pairs = np.array(
        [np.exp(alpha[t][:, None] + log_trans + log_lik[t + 1] + beta[t + 1] - norm) for t in range(n - 1)]
    ).reshape(n - 1, k, k)
    return norm, Chain(np.exp(alpha[0] + beta[0] - norm), pairs, weight)


def entropy(chains):
    """(6.24)-(6.25)."""
    value = 0.0
    for c in chains:
        value += c.weight * (-xlogy(c.first, c.first).sum())
        for s in c.pairs:
            value += c.weight * (-xlogy(s, s).sum() + xlogy(s.sum(axis=1), s.sum(axis=1)).sum())
    return value


def counts(chains):
    """start and M."""
    start = sum(c.weight * c.first for c in chains)
    return start, sum(c.weight * c.pairs.sum(axis=0) for c in chains)


def merged(chain, a, b):
    """States at positions a and b become one, at a."""
    first, pairs = chain.first.copy(), chain.pairs.copy()
    first[a] += first[b]
    pairs[:, a] += pairs[:, b]
    pairs[:, :, a] += pairs[:, :, b]
    stay = np.delete(np.arange(len(first)), b)
    return Chain(first[stay], pairs[:, stay][:, :, stay], chain.weight)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def shared_out(chain, donors, log_lik, potentials, noise=None):
    """The donors' steps given to receivers: a chain of the states that stay, in order, then the receivers.

    The chain inside the block is the best of its kind; with ``noise`` another one.
    """
    log_start, log_in, log_out, log_inner = potentials
    k, n, j_all = len(chain.first), len(log_lik), log_lik.shape[1]
    stay_ids = [i for i in range(k) if i not in donors]
    mass = chain.resp[:, donors].sum(axis=1)
    inside = [s[np.ix_(donors, donors)].sum() for s in chain.pairs]
    worth = np.zeros((n, j_all))
    for t in range(n - 1, -1, -1):
        worth[t] = log_lik[t]
        if t + 1 < n:
            leave = chain.pairs[t][np.ix_(donors, stay_ids)].sum(axis=0)
            worth[t] += log_out[:, stay_ids] @ leave / mass[t]
            worth[t] += inside[t] / mass[t] * np.logaddexp.reduce(log_inner + worth[t + 1], axis=1)
    size = len(stay_ids) + j_all
    new = slice(len(stay_ids), size)
    pairs, w = np.zeros((n - 1, size, size)), np.zeros((n, j_all))
    first = np.zeros(size)
    jitter = (lambda shape: 0.0) if noise is None else (lambda shape: noise.normal(size=shape) * 0.3)
    for t in range(n):
        if t == 0:
            enter = softmax(log_start + worth[0] + jitter(j_all))
            first[: len(stay_ids)] = chain.first[stay_ids]
            first[new] = w[0] = mass[0] * enter
            continue
        s = chain.pairs[t - 1]
        coming = s[np.ix_(stay_ids, donors)].sum(axis=1)
        enter = softmax(coming @ log_in[stay_ids] / max(coming.sum(), 1e-300) + worth[t] + jitter(j_all))
        follow = np.array([softmax(row + worth[t]) for row in log_inner + jitter((j_all, j_all))])
        share = w[t - 1] / mass[t - 1]
        p = pairs[t - 1]
        p[: len(stay_ids), : len(stay_ids)] = s[np.ix_(stay_ids, stay_ids)]
        p[: len(stay_ids), new] = np.outer(coming, enter)
        p[new, : len(stay_ids)] = np.outer(share, s[np.ix_(donors, stay_ids)].sum(axis=0))
        p[new, new] = inside[t - 1] * share[:, None] * follow
        w[t] = p[:, new].sum(axis=0)
    return Chain(first, pairs, chain.weight)


def top_term(u, omega, gamma, alpha, alpha0, kappa):
    """(6.28) and (6.33) with its correction, one stick at a time."""
    k_all = len(u)
    value = k_all * np.log(alpha0) + k_all**2 * np.log(alpha)
    sticky = kappa > 0
    if sticky:
        value += k_all * (np.log(kappa) - np.log(alpha + kappa))
    left = 1.0
    for k in range(1, k_all + 1):
        a, b = u[k - 1] * omega[k - 1], (1 - u[k - 1]) * omega[k - 1]
        value += -betaln(1.0, gamma) + betaln(a, b)
        ones = k_all + 1 if sticky else k_all + 2
        zeros = k_all * (k_all + 1 - k) + 1 + gamma if sticky else (k_all + 1) * (k_all + 1 - k) + gamma
        value += (ones - a) * (psi(a) - psi(a + b)) + (zeros - b) * (psi(b) - psi(a + b))
        if sticky:
            value += (np.log(alpha + kappa) - np.log(kappa)) * u[k - 1] * left
        left *= 1 - u[k - 1]
    return value


def transition_term(start, trans, theta0, theta, prior0, prior):
    """(6.26), row by row."""
    value = 0.0
    rows = zip([start, *trans], [theta0, *theta], [prior0, *prior], strict=True)
    for m, th, beta in rows:
        m = np.append(m, 0.0) if len(m) < len(th) else m
        log_pi = psi(th) - psi(th.sum())
        value += gammaln(th).sum() - gammaln(th.sum()) + (m + beta - th) @ log_pi
    return value


def potentials(posterior, trial):
    """Logs that guide receivers, by id: of the start, from each state, to each state, among them.

    A receiver that is a state already has its own; a new one shares what leads to the donors in proportion to its
    weight, and has what leads away from them on average; among new ones the trial's beliefs hold.
    """
    own, theirs = posterior.allocation, trial.beliefs.allocation
    where = {int(i): k for k, i in enumerate(posterior.ids)}
    donors = [where[i] for i in trial.donors]
    ids, k, j_all = trial.beliefs.ids.tolist(), len(where), len(trial.beliefs.ids)
    share = trial.beliefs.weights / trial.beliefs.weights.sum()
    log_start, log_in = np.empty(j_all), np.empty((k, j_all))
    log_out, log_inner = np.empty((j_all, k)), np.array(theirs.log_trans)
    for j, i in enumerate(ids):
        if i in where:
            log_start[j], log_in[:, j] = own.log_start[where[i]], own.log_trans[:, where[i]]
            log_out[j] = own.log_trans[where[i]]
            continue
        log_start[j] = np.log(np.exp(own.log_start[donors]).sum()) + np.log(share[j])
        log_in[:, j] = np.log(np.exp(own.log_trans[:, donors]).sum(axis=1)) + np.log(share[j])
        log_out[j] = np.log(np.exp(own.log_trans[donors]).mean(axis=0))
    for j, one in enumerate(ids):
        for m, other in enumerate(ids):
            if one in where and other in where:
                log_inner[j, m] = own.log_trans[where[one], where[other]]
    return log_start, log_in, log_out, log_inner
