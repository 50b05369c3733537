"""Chains of topics and of sequences in memory, and the probabilities of all assignments of a few tokens or steps."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp, roots_jacobi

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary, add_in_place
from bnp_dask.inference.chains import TABLES, Chain, chain_fields
from bnp_dask.inference.sampling.chain import add_batch, begin_sweep
from bnp_dask.inference.sampling.gibbs import kind_of
from bnp_dask.inference.sampling.sequences import assign_paths
from bnp_dask.inference.sampling.topics import _Tokens, assign_tokens, seat_tokens
from bnp_dask.model import Model
from tests.sampling.chains import NO_ROWS, canonical, request
from tests.streaming.oracle import Partition


def visited(model: Model, batches: list[Batch], laps: int, states: int = 2, burn_in: int = 20) -> Counter[Partition]:
    """How often a chain visits each partition of the tokens, or steps, of some batches."""
    kind, found = kind_of(model, states), Counter()
    chain = kind.first(model, model.empty_summary(np.arange(1)))
    labels = [None] * len(batches)
    for lap in range(laps + burn_in):
        seated = lap % len(batches) if chain.pins is not None else None
        begin_sweep(model, chain, kind.ids(chain), 0)
        drawn = kind.draw(model, chain, 0, lap, 0, 8)
        task = assign_tokens if kind.sweep.__name__ == "sweep_of_topics" else assign_paths
        for i in [*(j for j in range(len(batches)) if j != seated), *([] if seated is None else [seated])]:
            if i == seated:
                one = seat_tokens(model, kind.others(model, chain, 0, lap, 0, None), batches[i], request(i), labels[i])
            else:
                one = task(model, drawn, batches[i], request(i), labels[i])
            add_batch(chain, one, NO_ROWS, NO_ROWS)
            labels[i] = one.labels
        kind.end(model, chain, 0, lap, 0)
        if lap >= burn_in:
            found[canonical(np.concatenate([own.ids for own in labels]))] += 1
    return found


def normalized(logs: dict[Partition, float]) -> dict[Partition, float]:
    """Probabilities from their logs up to a constant."""
    norm = logsumexp(list(logs.values()))
    return {key: float(np.exp(value - norm)) for key, value in logs.items()}


def sampling_error(exact: dict[Partition, float], laps: int) -> float:
    """Expected total variation of so many independent draws from their law: half the mean absolute deviations."""
    p = np.array(list(exact.values()))
    return float(0.5 * np.sqrt(2.0 / np.pi * p * (1.0 - p) / laps).sum())


# -- topics --------------------------------------------------------------------------------------------------------
def partitions(n: int) -> list[Partition]:
    """All partitions of n things."""
    out: list[Partition] = [()]
    for _ in range(n):
        out = [(*p, k) for p in out for k in range(max(p, default=-1) + 2)]
    return out


def stirling(n: int, mass: float = 0.0) -> np.ndarray:
    """Coefficients of ``Gamma(a + mass + n) / Gamma(a + mass)`` as a polynomial in a, ``(n + 1,)``."""
    out = np.ones(1)
    for i in range(n):
        out = np.convolve(out, [i + mass, 1.0])
    return out


def log_tables(counts: np.ndarray, alphas: np.ndarray, gamma: float) -> float:
    """Log probability of assignments of an HDP, summed over all tables.

    ``counts (G, K)`` are tokens of topics in documents of concentrations ``alphas (G,)``: with m tables,

        prod_d Gamma(alpha) / Gamma(alpha + N_d) prod_k S(N_dk, m_dk) alpha^m_dk times
        gamma^K prod_k Gamma(m_k) Gamma(gamma) / Gamma(gamma + m).
    """
    cells = [(d, k) for d, k in np.argwhere(counts > 0)]
    terms = []
    for tables in itertools.product(*(range(1, int(counts[c]) + 1) for c in cells)):
        m = np.zeros(counts.shape[1])
        value = 0.0
        for (d, k), t in zip(cells, tables, strict=True):
            m[k] += t
            value += np.log(stirling(int(counts[d, k]))[t]) + t * np.log(alphas[d])
        value += counts.shape[1] * np.log(gamma) + gammaln(m).sum() + gammaln(gamma) - gammaln(gamma + m.sum())
        terms.append(value)
    n = counts.sum(axis=1)
    return float(logsumexp(terms) + (gammaln(alphas) - gammaln(alphas + n)).sum())


def topics_exactly(model: Model, batches: list[Batch]) -> dict[Partition, float]:
    """Posterior of the partitions of all tokens."""
    lam, out = np.asarray(model.observation.lam), {}
    words, document, first = [], [], 0
    for batch in batches:
        tokens = _Tokens.of(batch)
        words.append(tokens.words[tokens.row])
        document.append(first + np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets)))
        first += len(tokens.offsets) - 1
    words, document = np.concatenate(words), np.concatenate(document)
    for p in partitions(len(words)):
        z = np.array(p)
        counts, x = np.zeros((first, z.max() + 1)), np.zeros((z.max() + 1, len(lam)))
        np.add.at(counts, (document, z), 1.0)
        np.add.at(x, (z, words), 1.0)
        value = log_tables(counts, np.full(first, model.allocation.alpha), model.allocation.gamma)
        value += (gammaln(lam + x) - gammaln(lam)).sum() - (
            gammaln(lam.sum() + x.sum(axis=1)) - gammaln(lam.sum())
        ).sum()
        out[p] = value
    return normalized(out)


# -- sequences -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Paths:
    """All paths of the steps of some sequences under two states.

    Parameters
    ----------
    model, batches
        The model, and batches of sequences.
    paths
        ``(2^n, n)``.
    chance
        Posterior of each path, ``(2^n,)``.
    beta
        Weights of both states at the top level, at the nodes of a quadrature, ``(points, 2)``.
    given
        Posterior of the nodes given each path, ``(2^n, points)``.
    """

    model: Model
    batches: list[Batch]
    paths: np.ndarray
    chance: np.ndarray
    beta: np.ndarray
    given: np.ndarray

    @classmethod
    def of(cls, model: Model, batches: list[Batch], points: int = 60) -> Paths:
        own = model.allocation
        node, weight = roots_jacobi(points, own.gamma / 2.0 - 1.0, own.gamma / 2.0 - 1.0)
        beta = np.stack([(1.0 + node) / 2.0, (1.0 - node) / 2.0], axis=1)
        rows = own.alpha * beta[:, None].repeat(2, axis=1) + own.kappa * np.eye(2)
        masses = np.concatenate([own.alpha0 * beta[:, None], rows], axis=1)
        whole, logs = masses.sum(axis=2), []
        paths = np.array(list(itertools.product(range(2), repeat=sum(batch.n_atoms for batch in batches))))
        for z in paths:
            summary = cls._summary(model, batches, z)
            counts = np.vstack([summary["start"], summary["M"]])
            value = (gammaln(masses + counts) - gammaln(masses)).sum(axis=(1, 2))
            value -= (gammaln(whole + counts.sum(axis=1)) - gammaln(whole)).sum(axis=1)
            logs.append(value + np.log(weight) + model.best_data_terms(summary).sum())
        logs = np.array(logs)
        of_path = logsumexp(logs, axis=1)
        return cls(model, batches, paths, np.exp(of_path - logsumexp(of_path)), beta, np.exp(logs - of_path[:, None]))

    @staticmethod
    def _summary(model: Model, batches: list[Batch], z: np.ndarray) -> Summary:
        """Statistics of all steps, with starts and transitions counted one by one."""
        total, first = model.empty_summary(np.arange(2)), 0
        for batch in batches:
            path = z[first : first + batch.n_atoms]
            first += batch.n_atoms
            add_in_place(total, model.summarize(np.arange(2), batch, np.eye(2)[path]))
            for a, b in itertools.pairwise(batch.groups):
                total["start"][path[a]] += 1.0
                for s, t in itertools.pairwise(path[a:b]):
                    total["M"][s, t] += 1.0
        return total

    @property
    def posterior(self) -> dict[Partition, float]:
        """Posterior of the partitions of the steps."""
        out: dict[Partition, float] = {}
        for z, chance in zip(self.paths, self.chance, strict=True):
            key = canonical(z)
            out[key] = out.get(key, 0.0) + float(chance)
        return out

    def left_by_one_lap(self, laps: int) -> Counter[Partition]:
        """Where a lap leads from states spread as the posterior is, top level included."""
        model, rng, found = self.model, np.random.default_rng(0), Counter()
        kind, own = kind_of(model, 2), model.allocation
        starts = np.searchsorted(np.cumsum(self.chance), (np.arange(laps) + 0.5) / laps * self.chance.sum())
        for lap, start in enumerate(starts):
            summary = self._summary(model, self.batches, self.paths[start])
            beta = self.beta[rng.choice(len(self.beta), p=self.given[start])]
            tables = own.draw_tables(summary["start"], summary["M"], beta, rng)
            fields = chain_fields(model)
            whole = Summary(summary.ids, fields, {**summary.values, TABLES: tables})
            chain = Chain(whole.take(np.flatnonzero(whole["N"] > 0.0)), None, 2)
            drawn = kind.draw(model, chain, 0, lap, 0, 8)
            labels = [assign_paths(model, drawn, b, request(i), None).labels for i, b in enumerate(self.batches)]
            found[canonical(np.concatenate([each.ids for each in labels]))] += 1
        return found
