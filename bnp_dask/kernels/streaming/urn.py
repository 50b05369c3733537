"""Urns: the probability that the next atom joins a cluster or opens a new one, given how many atoms clusters have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln

from bnp_dask.kernels.mixture.resp import RaggedResp, Resp
from bnp_dask.kernels.numeric.arithmetic import exp, log, log1p
from bnp_dask.kernels.streaming import nggp
from bnp_dask.kernels.streaming.measures import DROP, NO_TABLE, Table
from bnp_dask.kernels.streaming.nggp import GIVEN
from bnp_dask.kernels.streaming.seating import Packed, weigh

ABSENT = "absent"
"""Name of the summary field that holds the sum over atoms of log(1 - r_nk): the log probability that cluster k is empty
(Tank et al. 2015, eq. S18, whose products underflow)."""

LEAST_LOG = -50.0
"""Log probability with which an atom is taken not to belong to a cluster that is certain to hold it."""


NO_SEATS = np.empty(0)
"""In place of weights by count, for rules in closed form."""


@dataclass(frozen=True)
class Urn:
    """Predictive rule of a partition: of a generalized gamma process, ``n_k - sigma`` to ``a (U + tau)^sigma``.

    Parameters
    ----------
    a, sigma, tau
        As in :class:`~bnp_dask.allocation.nggp.NGGPMixture`; of a Dirichlet process ``sigma`` is 0.
    rule
        One of the rules of :mod:`bnp_dask.kernels.streaming.nggp`.
    table
        Cumulants of any other random measure; ``a``, ``tau`` and ``rule`` have no meaning then.
    """

    a: float
    sigma: float = 0.0
    tau: float = 1.0
    rule: int = nggp.EXACT
    table: Table | None = None

    def packed(self) -> Packed:
        """The rule as compiled loops take it."""
        return self.a, self.sigma, self.tau, self.rule, NO_TABLE if self.table is None else self.table.arrays()

    def weights_after(self, counts: np.ndarray, absent: np.ndarray) -> tuple[np.ndarray, float]:
        """Probabilities of K clusters of ``counts (K,)`` atoms, expected numbers, and of a new one.

        ``absent (K,)`` are values of the field :data:`ABSENT`.
        """
        n, out = float(counts.sum()), np.empty(len(counts))
        new, _ = weigh(self.packed(), counts, absent, len(counts), n, expected_clusters(absent), math.log(n + 1.0), out)
        return out, new

    def rule_after(self, n: float, n_clusters: float) -> tuple[float, float]:
        """``seat`` and ``new`` after ``n`` atoms in ``n_clusters`` clusters: a cluster of n_k atoms has probability
        ``seat (n_k - sigma)``, a new one ``new``; for rules without a table."""
        return nggp.rule_of(n, n_clusters, self.a, self.sigma, self.tau, self.rule)

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
        n = np.asarray(counts, np.float64)
        if self.table is not None:
            logs = self.table.log_terms(n, np.ones(len(n)))
            return float(_log_sum(logs) + math.log(self.table.step) - gammaln(n.sum()))
        mass = self._log_mass(float(n.sum()), float(len(n)))
        return float(mass + np.sum(gammaln(n - self.sigma) - gammaln(1.0 - self.sigma)))

    def log_unions(self, n_a: np.ndarray, n_b: np.ndarray, counts: np.ndarray, absent: np.ndarray) -> np.ndarray:
        """Log probability of a partition with two clusters of ``n_a`` and ``n_b (M,)`` atoms as one, minus the log
        probability with two, nats; ``counts (K,)`` are the atoms of all clusters, ``absent`` as above."""
        n, s = float(counts.sum()), self.sigma
        if self.table is None:
            price = self._log_price(n, max(expected_clusters(absent) - 1.0, 1.0))
            return np.asarray(gammaln(n_a + n_b - s) - gammaln(n_a - s) - gammaln(n_b - s) + gammaln(1.0 - s) - price)
        there = 1.0 - exp(np.minimum(absent, 0.0))
        held = (there > 0.0) & (counts > 0.0)
        terms = self.table.log_terms(np.maximum(counts[held] / there[held], 1.0), there[held])
        rows = np.flatnonzero(terms > terms.max() - DROP)
        logs = terms[rows] - _log_sum(terms[rows])
        of = [self.table.log_cumulants(m, rows) for m in (n_a + n_b, n_a, n_b)]
        return np.array([_log_sum(logs + column) for column in (of[0] - of[1] - of[2]).T])

    def given(self, counts: np.ndarray, rng: np.random.Generator) -> Seats:
        """The rule for Gibbs sampling of atoms, ``counts (K,)`` in clusters.

        In closed form it integrates over U.  With a table U is drawn given the partition, one of the nodes of its
        quadrature, and clusters have weights of their own given U: moves of atoms given these weights leave the
        posterior of partitions invariant, since it is the sum over the nodes.
        """
        if self.table is None:
            rule = nggp.LINEAR if self.rule == nggp.LINEAR else nggp.EXACT
            return Seats(self.a, self.sigma, self.tau, rule)
        return self.given_node(self.draw_node(counts, rng), round(float(np.sum(counts))))

    def draw_node(self, counts: np.ndarray, rng: np.random.Generator) -> int:
        """A node of the table, drawn given a partition into blocks of ``counts (K,)`` atoms."""
        assert self.table is not None
        held = np.asarray(counts[counts > 0], np.float64)
        logs = self.table.log_terms(held, np.ones(len(held)))
        part = np.cumsum(exp(logs - logs.max()))
        return int(np.searchsorted(part, rng.random() * part[-1], side="right"))

    def given_node(self, node: int, n: int) -> Seats:
        """Weights of clusters of up to ``n`` atoms given U at a node of the table."""
        assert self.table is not None
        logs = self.table.log_cumulants(np.arange(1.0, n + 3.0), np.array([node]))[0]
        seats = np.concatenate([[0.0], exp(np.diff(logs))])
        return Seats(float(exp(logs[0])), self.sigma, 0.0, GIVEN, seats, np.concatenate([[0.0], logs - logs[0]]))

    def _log_mass(self, n: float, k: float) -> float:
        """log V(n, K): a partition has probability ``V(n, K) prod Gamma(n_k - sigma) / Gamma(1 - sigma)``."""
        if self.rule == nggp.LINEAR and self.sigma > 0.0:
            share = self.a / self.sigma
            sticks = k * math.log(self.sigma) + gammaln(share + k) - gammaln(share)
            return float(sticks + gammaln(self.a) - gammaln(self.a + n))
        return float(nggp.log_mass(n, k, self.a, self.sigma, self.tau))

    def _log_price(self, n: float, n_clusters: float) -> float:
        """Log of the factor of one more cluster in the probability of a partition, ``a E[(U + tau)^sigma]``, nats."""
        if self.sigma == 0.0 or n <= 0.0:
            return float(log(self.a))
        return self._log_mass(n, n_clusters + 1.0) - self._log_mass(n, n_clusters)


@dataclass(frozen=True, eq=False)
class Seats:
    """Weights of clusters by whole numbers of atoms, and of a new one: :meth:`Urn.given`.

    Parameters
    ----------
    a, sigma, tau, rule
        As in :class:`Urn`, or, given U, the weight of a new cluster, the discount, 0 and ``GIVEN``.
    seats, logs
        Given U: kappa_{n + 1} / kappa_n, and log kappa_n / kappa_1 nats, at 0, 1, ... atoms.
    """

    a: float
    sigma: float
    tau: float
    rule: int
    seats: np.ndarray = field(default_factory=lambda: NO_SEATS)
    logs: np.ndarray = field(default_factory=lambda: NO_SEATS)

    def packed(self) -> tuple[float, float, float, int, np.ndarray, np.ndarray]:
        """The weights as compiled loops take them."""
        return self.a, self.sigma, self.tau, self.rule, self.seats, self.logs

    def weight(self, counts: np.ndarray) -> np.ndarray:
        """Weights of clusters of ``counts (K,)`` atoms, up to a factor."""
        return self.seats[counts.round().astype(np.int64)] if len(self.seats) else counts - self.sigma

    def weight_at(self, count: float) -> float:
        """Weight of one cluster, as :meth:`weight`."""
        return float(self.seats[round(count)]) if len(self.seats) else count - self.sigma

    def price(self, n: float, n_clusters: float) -> float:
        """Weight of a new cluster after ``n`` atoms in ``n_clusters``, up to the same factor."""
        seat, new = nggp.rule_of(n, n_clusters, self.a, self.sigma, self.tau, self.rule)
        return new / seat


def _log_sum(logs: np.ndarray) -> float:
    """log of the sum of ``exp(logs)``, nats."""
    top = float(logs.max())
    return top + float(log(exp(logs - top).sum()))


def log_absent(resp: Resp, weights: np.ndarray | None) -> np.ndarray:
    """Values of the field :data:`ABSENT`, ``(K,)`` nats; ``resp (n, K)`` includes the atoms' ``weights (n,)``."""
    if isinstance(resp, RaggedResp):  # an atom adds nothing to clusters that it is not in
        times = None if weights is None else np.repeat(weights, np.diff(resp.offsets))
        share = resp.value
        if times is not None:
            share = np.divide(share, times, out=np.zeros_like(share), where=times > 0)
        logs = np.maximum(log1p(-np.minimum(share, 1.0 - 1e-15)), LEAST_LOG)
        return np.bincount(resp.index, logs if times is None else times * logs, resp.n_clusters)
    dense = resp if isinstance(resp, np.ndarray) else resp.to_dense()
    if weights is None:
        return np.maximum(log1p(-np.minimum(dense, 1.0 - 1e-15)), LEAST_LOG).sum(axis=0)
    share = np.divide(dense, weights[:, None], out=np.zeros_like(dense), where=weights[:, None] > 0)
    logs = np.maximum(log1p(-np.minimum(share, 1.0 - 1e-15)), LEAST_LOG)
    return weights @ logs


def expected_clusters(absent: np.ndarray) -> float:
    """Expected number of clusters that hold an atom, from values of the field :data:`ABSENT`, ``(K,)`` nats."""
    return float(np.sum(1.0 - exp(np.minimum(absent, 0.0))))
