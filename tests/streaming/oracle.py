"""The exact posterior of a mixture of up to 8 atoms, by enumeration of all partitions; slow and plain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.integrate import quad
from scipy.special import gammaln, logsumexp

from bnp_dask.allocation import DPMixture, FiniteMixture, NGGPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.model import Model

Partition = tuple[int, ...]
"""Cluster of each atom, clusters numbered in the order of their first atoms."""


def partitions(n: int) -> Iterator[Partition]:
    """All partitions of n atoms."""

    def grow(start: Partition, used: int) -> Iterator[Partition]:
        if len(start) == n:
            yield start
            return
        for k in range(used + 1):
            yield from grow((*start, k), max(used, k + 1))

    yield from grow((), 0)


def log_nggp_mass(n: int, k: int, a: float, sigma: float, tau: float) -> float:
    """log V(n, K) of an NGGP by scipy's adaptive quadrature over U, straight from its definition."""

    def log_term(u):
        tilt = a / sigma * ((u + tau) ** sigma - tau**sigma)
        return (n - 1) * np.log(u) - (n - sigma * k) * np.log(u + tau) - tilt

    grid = np.logspace(-290, 15, 40_000)
    terms = log_term(grid) + np.log(grid)
    place = int(np.argmax(terms))
    kept = np.flatnonzero(terms > terms[place] - 50.0)
    low, high = np.log(grid[kept[0]]) - 1.0, np.log(grid[kept[-1]]) + 1.0
    value, _ = quad(
        lambda v: np.exp(log_term(np.exp(v)) + v - terms[place]), low, high, epsabs=0, epsrel=1e-13, limit=500
    )
    return float(k * np.log(a) - gammaln(n) + terms[place] + np.log(value))


def log_prior(allocation: object, counts: np.ndarray, n_clusters: int | None = None) -> float:
    """Log probability of one partition with blocks of so many atoms; ``n_clusters`` is K of a finite mixture."""
    n, k = int(counts.sum()), len(counts)
    if isinstance(allocation, NGGPMixture):
        a, s, tau = allocation.a, allocation.sigma, allocation.tau
        if s == 0:
            return float(k * np.log(a) + gammaln(a) - gammaln(a + n) + gammaln(counts).sum())
        return log_nggp_mass(n, k, a, s, tau) + float(np.sum(gammaln(counts - s) - gammaln(1 - s)))
    gamma = allocation.gamma
    constant = gammaln(gamma) - gammaln(gamma + n)
    if isinstance(allocation, DPMixture):
        return float(constant + k * np.log(gamma) + gammaln(counts).sum())
    assert isinstance(allocation, FiniteMixture)
    if k > n_clusters:
        return -np.inf
    share = gamma / n_clusters
    labels = gammaln(n_clusters + 1) - gammaln(n_clusters - k + 1)
    return float(constant + labels + np.sum(gammaln(counts + share) - gammaln(share)))


@dataclass
class Oracle:
    """The exact posterior of a model with its prior set, given a few atoms."""

    model: Model
    batch: Batch
    n_clusters: int | None = None

    def summary(self, members: tuple[int, ...]) -> Summary:
        """Statistics of some atoms in one cluster."""
        return self.model.summarize(
            np.zeros(1, np.int64), self.batch.take(np.array(members, np.int64)), np.ones((len(members), 1))
        )

    def log_evidence(self, members: tuple[int, ...]) -> float:
        """Log marginal likelihood of atoms of one cluster, each predicted from those before it."""
        if members not in self._evidence:
            value = 0.0
            for i, atom in enumerate(members):
                held = self.summary(members[:i]) if i else self.model.empty_summary(np.zeros(1, np.int64))
                params = self.model.observation.global_step(held)
                one = self.batch.take(np.array([atom]))
                value += float(self.model.observation.log_predictive(params, one)[0, 0])
            self._evidence[members] = value
        return self._evidence[members]

    @cached_property
    def _evidence(self) -> dict[tuple[int, ...], float]:
        return {}

    @cached_property
    def _priors(self) -> dict[tuple[int, ...], float]:
        return {}

    def log_joint(self, partition: Partition) -> float:
        """Log probability of a partition and of the data."""
        labels = np.array(partition)
        blocks = [tuple(int(i) for i in np.flatnonzero(labels == k)) for k in range(labels.max() + 1)]
        sizes = tuple(sorted(len(block) for block in blocks))
        if sizes not in self._priors:
            self._priors[sizes] = log_prior(self.model.allocation, np.array(sizes, float), self.n_clusters)
        return self._priors[sizes] + sum(self.log_evidence(block) for block in blocks)

    @cached_property
    def posterior(self) -> dict[Partition, float]:
        """Probability of every partition."""
        logs = {p: self.log_joint(p) for p in partitions(self.batch.n_atoms)}
        total = logsumexp(list(logs.values()))
        return {p: float(np.exp(value - total)) for p, value in logs.items()}

    @property
    def log_marginal(self) -> float:
        """Log evidence of all atoms, nats."""
        return float(logsumexp([self.log_joint(p) for p in partitions(self.batch.n_atoms)]))

    @property
    def together(self) -> np.ndarray:
        """Probability that two atoms share a cluster, ``(n, n)``."""
        labels = np.array(list(self.posterior))
        return np.einsum("p,pij->ij", list(self.posterior.values()), labels[:, :, None] == labels[:, None, :])

    @property
    def expected_clusters(self) -> float:
        """Posterior mean of the number of clusters."""
        return sum(probability * (max(p) + 1) for p, probability in self.posterior.items())
