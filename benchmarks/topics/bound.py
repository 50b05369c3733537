"""Looseness of the bound of a document: its exact log probability, by sampling, minus its term of the objective.

``python -m benchmarks.topics.bound kos 1000 4,12,40,80``: topics are sampled on so many documents and trained for some
laps without moves; for each number of topics one JSON line with objective, held-out score and looseness.

The topics are held at their posterior, so that a token of word v has ``exp(E[log phi_kv])`` under topic k.  The bound
of a document takes the topics of its tokens to be independent.  The exact term is a sum over all assignments; annealed
importance sampling (Neal 2001) estimates the sum without bias, beginning from the assignments of the bound.  On tiny
documents ``enumerated`` sums all of them; ``tests/topics/test_bound.py`` compares the three.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Iterable

import numpy as np
from numba import njit
from scipy import sparse
from scipy.special import gammaln, logsumexp, psi, xlogy

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.kernels.topics.tokens import next_uniform
from bnp_dask.model import Posterior

CERTAIN = 0.02
"""Share of the prior in the distribution from which annealing begins, so that no assignment is impossible."""


@njit(cache=True, nogil=True)
def annealed(log_lik, log_start, prior, steps, state):  # pragma: no cover
    """Log weight of one annealed chain over the topics of n tokens, ``(n, K)`` tables, without the prior's constant."""
    n, n_topics = log_lik.shape
    topic, held, table = np.empty(n, np.int64), np.zeros(n_topics), np.empty(n_topics)
    for i in range(n):
        total = 0.0
        for k in range(n_topics):
            total += math.exp(log_start[i, k])
            table[k] = total
        topic[i] = min(np.searchsorted(table, next_uniform(state) * total, side="right"), n_topics - 1)
        held[topic[i]] += 1
    weight = 0.0
    for step in range(1, steps + 1):
        gained = 0.0
        for i in range(n):
            gained += log_lik[i, topic[i]] - log_start[i, topic[i]]
        for k in range(n_topics):
            if held[k] > 0:
                gained += math.lgamma(prior[k] + held[k]) - math.lgamma(prior[k])
        weight += gained / steps
        power = step / steps
        for i in range(n if step < steps else 0):
            held[topic[i]] -= 1
            most = -np.inf
            for k in range(n_topics):
                own = math.log(held[k] + prior[k]) + log_lik[i, k]
                table[k] = (1.0 - power) * log_start[i, k] + power * own
                most = max(most, table[k])
            total = 0.0
            for k in range(n_topics):
                total += math.exp(table[k] - most)
                table[k] = total
            topic[i] = min(np.searchsorted(table, next_uniform(state) * total, side="right"), n_topics - 1)
            held[topic[i]] += 1
    return weight


class Document:
    """One document under fixed topics: its tokens, and its responsibilities by the bound.

    ``log_lik (n, K)`` and ``resp (n, K)`` have a row for each token; ``prior (K,)`` and ``rest`` are the pseudo-counts
    of topics in use and of all others.
    """

    def __init__(self, posterior: Posterior, row: sparse.csr_array) -> None:
        lam, alpha = np.asarray(posterior.observation.lam), posterior.model.allocation.alpha
        self.prior, self.rest = alpha * posterior.allocation.pi, alpha * posterior.allocation.rest
        times = row.data.astype(np.int64)
        words = np.repeat(row.indices, times)
        self.log_lik = psi(lam[:, words]).T - psi(lam.sum(axis=1))
        none = np.zeros((0, 2), np.int64)
        ((_, step),) = posterior.model.structure.steps(posterior.model, posterior, Batch(row), none)
        shares = np.asarray(step.resp)
        self.resp = np.repeat(shares / shares.sum(axis=1, keepdims=True), times, axis=0)

    @property
    def constant(self) -> float:
        """Part of the log prior of assignments that is the same for all, nats."""
        whole = self.prior.sum() + self.rest
        return float(gammaln(whole) - gammaln(whole + len(self.log_lik)))

    def bound(self) -> float:
        """Term of the objective, nats."""
        counts = self.resp.sum(axis=0)
        weights = (gammaln(counts + self.prior) - gammaln(self.prior)).sum()
        return float(self.constant + weights + (self.resp * self.log_lik - xlogy(self.resp, self.resp)).sum())

    def enumerated(self) -> float:
        """Exact log probability by all assignments of its tokens, nats."""
        n, n_topics = self.log_lik.shape
        terms = []
        for topics in itertools.product(range(n_topics), repeat=n):
            held = np.bincount(topics, minlength=n_topics)
            own = (gammaln(self.prior + held) - gammaln(self.prior)).sum()
            terms.append(own + self.log_lik[np.arange(n), list(topics)].sum())
        return float(self.constant + logsumexp(terms))

    def sampled(self, steps: int = 200, chains: int = 6, seed: int = 0) -> float:
        """Estimate of the exact log probability, nats."""
        start = np.log((1.0 - CERTAIN) * self.resp + CERTAIN * self.prior / self.prior.sum())
        state = np.random.default_rng(seed).integers(1, 2**63, 1, dtype=np.uint64)
        weights = [annealed(self.log_lik, start, self.prior, steps, state) for _ in range(chains)]
        return float(self.constant + logsumexp(weights) - np.log(chains))


def looseness(posterior: Posterior, x: sparse.csr_array, documents: Iterable[int]) -> np.ndarray:
    """Nats by which the bound of each of some documents is short, ``(D,)``."""
    out = []
    for d in documents:
        own = Document(posterior, x[[d]])
        out.append(own.sampled(seed=1000 * int(d)) - own.bound())
    return np.array(out)


def main(name: str, n_documents: str, sizes: str) -> None:
    from benchmarks.topics.corpora import load

    corpus = load(name)
    x = corpus.train[: int(n_documents)]
    some = np.random.default_rng(1).choice(x.shape[0], 40, replace=False)
    for k in map(int, sizes.split(",")):
        began = time.process_time()
        model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
        init, schedule = bnp.SampledTopics(k, passes=100), bnp.Memoized(laps=8)
        posterior = bnp.train(model, x, init=init, moves=(), schedule=schedule).posterior
        short = looseness(posterior, x, some)
        facts = {
            "topics": posterior.n_clusters,
            "objective": round(sum(model.elbo(posterior, posterior.summary).values())),
            "held_out": round(bnp.score(posterior, corpus.test), 4),
            "short_per_document": round(float(short.mean()), 2),
            "error": round(float(short.std() / np.sqrt(len(short))), 2),
            "cpu_seconds": round(time.process_time() - began, 1),
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
