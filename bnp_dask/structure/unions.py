"""Union of two clusters from totals alone: exact statistics, and a guaranteed bound of the terms that totals lack.

Counts, sums and transitions of a union are sums.  Entropies are not: ``-(a + b) log(a + b)`` of an atom with shares a
and b needs the atom.  Every bound here is of the objective from below, for the assignment in which the union takes the
shares of both clusters and nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, psi, xlogy

from bnp_dask.core.summary import Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.protocols import as_a
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.verbs import GroupedAllocation

GROUPED = frozenset({"H", "P", "Q"})
"""Tracked statistics of groups: entropy of tokens, sums of E[log pi_dk], and the rest of each group's term."""

ROUNDS = 4
"""Global steps in which the bound of a union of topics is fitted to the top level; its validity needs none of them."""


@dataclass(frozen=True, eq=False)
class Union:
    """Statistics after a union.

    Parameters
    ----------
    summary
        Statistics in which one cluster has taken the place of two.
    slack
        Most nats by which the entropy of the united assignment may exceed the entropy in ``summary``; 0 if it is exact,
        NaN if no limit is known.
    """

    summary: Summary
    slack: float


def entropy_within(a: np.ndarray | float, b: np.ndarray | float) -> np.ndarray | float:
    """Largest entropy of the choice between two clusters with total counts ``a`` and ``b``, nats.

    An atom with shares r and s loses ``-r log(r / (r + s)) - s log(s / (r + s))`` of entropy in the union.  This is
    ``r + s`` times a concave function of ``r / (r + s)``, so that by Jensen's inequality the sum over atoms is at most
    ``(a + b) log(a + b) - a log a - b log b``.
    """
    a, b = np.maximum(a, 0.0), np.maximum(b, 0.0)
    return np.maximum(xlogy(a + b, a + b) - xlogy(a, a) - xlogy(b, b), 0.0)


def unite_once(summary: Summary, keep: int, drop: int) -> Union:
    """Cluster ``keep`` absorbs ``drop``, in a mixture or a hidden Markov model.

    Mixtures: a tracked pair has its exact entropy.  Else the union's entropy is bounded by

        max(0, H_a + H_b - W(N_a, N_b))  <=  H_ab  <=  H_a + H_b,      W = entropy_within,

    where N counts units, see :mod:`bnp_dask.structure.linked`.

    Chains: the entropy of a sequence's states z falls by H(z | f(z)), where f names the union for both.  By the chain
    rule, and because conditioning on less raises an entropy,

        H(z | f(z)) = sum_t H(z_t | z_1..t-1, f(z)) <= sum_t H(z_t | z_t-1, f(z_t)) <= W(start) + sum_i W(M_ia, M_ib),

    and the same backwards in time, with the last steps in place of the first and ``M_ai, M_bi``.  The smaller of both
    is taken, and an entropy is never negative.  After a merge the tracked loss of another pair is no longer exact, so
    that it counts as one more bound (:func:`bnp_dask.core.summary.interplay`).
    """
    a, b = summary.positions(np.array([keep, drop]))
    found = np.flatnonzero((np.sort(summary.pairs, axis=1) == np.sort([keep, drop])).all(axis=1))
    values: dict[str, np.ndarray] = {}
    slack = 0.0
    for name, declared in summary.fields.items():
        if not declared.has_pairs:
            continue
        known = float(summary.pair_values[name][found[0]]) if len(found) else None
        if declared.links is not None:
            entropy = max(float(summary[name]), 0.0)
            lost = min(chain_loss(summary, declared.links, int(a), int(b)), entropy)
            lost = lost if known is None else min(lost, known)
            values[name] = np.asarray(lost)
            slack += lost if known is None else 0.0
        elif known is None:
            both = float(summary[name][a] + summary[name][b])
            least = max(0.0, both - float(entropy_within(summary.units[a], summary.units[b])))
            values[name] = np.asarray(least)
            slack += max(both - least, 0.0)
        else:
            values[name] = np.asarray(known)
    return Union(_with_pair(summary, keep, drop, values).merge(keep, drop), slack)


def chain_loss(summary: Summary, links: str, a: int, b: int) -> float:
    """Bound of the entropy that sequences lose when the positions ``a`` and ``b`` are united, nats."""
    moves = summary[links]
    first = summary["start"] if "start" in summary else np.maximum(summary["N"] - moves.sum(axis=0), 0.0)
    last = np.maximum(summary["N"] - moves.sum(axis=1), 0.0)
    forward = np.sum(entropy_within(moves[:, a], moves[:, b])) + entropy_within(first[a], first[b])
    backward = np.sum(entropy_within(moves[a], moves[b])) + entropy_within(last[a], last[b])
    return float(min(forward, backward))


def _with_pair(summary: Summary, keep: int, drop: int, values: Mapping[str, np.ndarray]) -> Summary:
    """Summary that tracks one more pair, with given values, or with these values for a pair that it tracks."""
    others = ~(np.sort(summary.pairs, axis=1) == np.sort([keep, drop])).all(axis=1)
    pairs = np.concatenate([summary.pairs[others], np.array([[keep, drop]], np.int64)])
    pair_values = {
        name: np.concatenate([summary.pair_values[name][others], [value]]) if summary.n_pairs else np.array([value])
        for name, value in values.items()
    }
    return replace(summary, pairs=pairs, pair_values=pair_values)


def is_grouped(model: WholeModel) -> bool:
    """Whether unions need the bound for groups, :func:`unite_topics`.

    Raises
    ------
    SettingError
        The allocation has groups, and the bound does not know its statistics.
    """
    if not isinstance(model.allocation, GroupedAllocation):
        return False
    tracked = {name for name, field in model.allocation.fields.items() if field.has_pairs}
    if not {"docs"} <= set(model.allocation.fields) or tracked != GROUPED:
        raise SettingError(
            f"{type(model.allocation).__name__} tracks {sorted(tracked)} of unions; needs {sorted(GROUPED)} and docs, "
            "for which a bound of a union is known"
        )
    return True


def unite_topics(model: WholeModel, posterior: Beliefs, summary: Summary, sets: Sequence[tuple[int, ...]]) -> Summary:
    """Statistics of topics after every set of ids in ``sets`` has become its first id.

    ``summary`` are the statistics from which ``posterior`` was computed, each id is in one set, and single topics stay
    as they are, so that their terms are exact.  With D documents and q(pi_d) = Dirichlet(theta_d), the objective has
    for topic k at the prior mass a of the topic the term

        g_k(a) = H_k + Q_k + a P_k,   P_k = sum_d E[log pi_dk],
        Q_k = sum_d log Gamma(theta_dk) + (N_dk - theta_dk) E[log pi_dk].

    The union S has theta_dS = sum of theta_dk, so that pi_dS is the sum of pi_dk.  Two inequalities hold for any
    prior masses a_k > 0 with the sum a:

    * Uniting the places of two Dirichlet distributions cannot raise the divergence between them (data processing), so
      that ``log Gamma(theta_S) + (a - theta_S) P_dS - log Gamma(a)`` is at least the sum over k of the same terms.
    * For a token with shares r_k and their sum s, Jensen's inequality gives
      ``sum_k r_k (log pi_k - log r_k) <= s (log pi_S - log s)``.

    Together, with ``a_k = rho_k a``,

        g_S(a) >= sum_k g_k(a_k) - D (sum_k log Gamma(a_k) - log Gamma(a)) = w(a),

    where ``rho`` are the shares of the topics in the set's prior mass in force.  The returned P_S is the slope of w
    near the optimal top level, and Q_S is such that the term equals w at the top level that is optimal for the
    returned statistics: its objective is a lower bound of the exact one.
    """
    mass = as_a(model.allocation, GroupedAllocation).prior_mass(posterior.allocation)[0]
    docs = float(summary["docs"])
    place = [summary.positions(np.array(ids, np.int64)) for ids in sets]
    united = summary.without_pairs()
    zero = {name: np.asarray(0.0) for name in GROUPED}
    for ids in sets:
        for drop in ids[1:]:
            united = _with_pair(united, ids[0], drop, zero).merge(ids[0], drop)
    here = united.positions(np.array([ids[0] for ids in sets], np.int64))
    total = np.array([mass[p].sum() for p in place])
    bounds = [_TopicBound(summary, p, mass[p] / mass[p].sum(), docs) for p in place]
    values = {name: np.array(united[name]) for name in GROUPED}
    for _ in range(ROUNDS):
        for own, k, a in zip(bounds, here, total, strict=True):
            values["P"][k] = own.slope(float(a))
        united = replace(united, values={**united.values, **values})
        total = as_a(model.allocation, GroupedAllocation).prior_mass(model.allocation_step(united))[0][here]
    for own, k, a in zip(bounds, here, total, strict=True):
        values["H"][k] = own.entropy
        values["Q"][k] = own.value(float(a)) - float(a) * values["P"][k] - own.entropy
    return replace(united, values={**united.values, **values})


def unite_next(
    model: WholeModel,
    posterior: Beliefs,
    leaves: Summary,
    summary: Summary,
    sets: Sequence[tuple[int, ...]],
    pair: tuple[int, int],
) -> Union:
    """One more union, of the positions ``pair`` of ``summary``, the first of which stays; exact or a bound.

    ``leaves`` are the statistics from which ``posterior`` was computed, or statistics without data; ``sets`` are the
    ids of its clusters in each cluster of ``summary``.
    """
    a, b = pair
    if not is_grouped(model):
        return unite_once(summary, int(summary.ids[a]), int(summary.ids[b]))
    united = [own for k, own in enumerate(sets) if k != b]
    united[a - (b < a)] = sets[a] + sets[b]
    return Union(unite_topics(model, posterior, leaves, united), math.nan)


def unite_all(model: WholeModel, posterior: Beliefs, pairs: Sequence[tuple[int, int]]) -> Summary:
    """Statistics of a posterior after the unions of ``pairs`` of ids, in order; the first of each stays."""
    summary = posterior.summary
    assert summary is not None, "only posteriors with statistics have unions"
    if not is_grouped(model):
        for keep, drop in pairs:
            summary = unite_once(summary, keep, drop).summary
        return summary.without_pairs()
    sets: dict[int, tuple[int, ...]] = {int(i): (int(i),) for i in summary.ids}
    for keep, drop in pairs:
        sets[keep] += sets.pop(drop)
    return unite_topics(model, posterior, summary, list(sets.values()))


@dataclass(frozen=True, eq=False)
class _TopicBound:
    """The bound w of a union of the topics at the positions ``place``, which have the shares ``rho`` of prior mass."""

    summary: Summary
    place: np.ndarray
    rho: np.ndarray
    docs: float

    @property
    def entropy(self) -> float:
        return float(self.summary["H"][self.place].sum())

    def value(self, a: float) -> float:
        own = self.entropy + float(self.summary["Q"][self.place].sum())
        own += a * float(self.rho @ self.summary["P"][self.place])
        return own - self.docs * float(gammaln(a * self.rho).sum() - gammaln(a)) if len(self.place) > 1 else own

    def slope(self, a: float) -> float:
        own = float(self.rho @ self.summary["P"][self.place])
        return own - self.docs * float(self.rho @ psi(a * self.rho) - psi(a)) if len(self.place) > 1 else own


def rough_entropy_loss(summary: Summary) -> np.ndarray:
    """Bound of the entropy that each pair of positions loses, ``(K, K)`` nats, as :func:`unite_once` has it.

    Chains: without the order of steps.
    """
    counts = summary.units
    within = np.asarray(entropy_within(counts[:, None], counts[None]))
    for name, declared in summary.fields.items():
        if declared.merge == "tracked" and name == "H":
            return np.minimum(within, np.maximum(summary[name][:, None] + summary[name], 0.0))
        if declared.links is not None:
            return np.minimum(within, max(float(summary[name]), 0.0))
    return np.zeros_like(within)


__all__ = [
    "Union",
    "chain_loss",
    "entropy_within",
    "is_grouped",
    "rough_entropy_loss",
    "unite_all",
    "unite_next",
    "unite_once",
    "unite_topics",
]
