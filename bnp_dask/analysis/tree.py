"""Tree of clusters: united one after the other, each time the pair whose union costs the objective least."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln, psi, xlogy

from bnp_dask.allocation import SampledAllocation, UnscoredAllocation
from bnp_dask.analysis.base import computing_as, require_posterior
from bnp_dask.core import Summary
from bnp_dask.errors import SettingError, answering
from bnp_dask.inputs import as_a, number_from, whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import data_gains, near_pairs, rough_allocation_gains
from bnp_dask.observation import parted
from bnp_dask.structure import Beliefs, GroupedAllocation, WholeModel, without_data

# -- unions from totals alone -------------------------------------------------------------------------------------
# Exact statistics, and a guaranteed bound of the terms that totals lack.
#
# Counts, sums and transitions of a union are sums.  Entropies are not: ``-(a + b) log(a + b)`` of an atom with shares a
# and b needs the atom.  Every bound here is of the objective from below, for the assignment in which the union
# takes the shares of both clusters and nothing else changes.
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


# -- the tree -----------------------------------------------------------------------------------------------------
CANDIDATES = 20
"""Pairs whose exact loss is computed before each union, the best by an approximation: all pairs up to six clusters.

The data term is exact for all pairs; the approximation concerns the weights.  With 200, the losses of 12 overlapping
clusters of a mixture and of a chain were the same (``tests/results/test_tree.py``).
"""


@dataclass(frozen=True)
class TreeUnion:
    """One union of two clusters.

    Parameters
    ----------
    keep, drop
        Ids: ``keep`` takes the atoms of ``drop``, and its id.
    n_clusters
        Number of clusters after it.
    price
        Nats of the objective that this union loses; negative if the objective is higher after it; inf if known labels
        forbid it.
    loss
        Nats that all unions up to this one lose.
    slack
        Most nats by which ``loss`` may be too high; 0 if it is exact, NaN if no limit is known.
    """

    keep: int
    drop: int
    n_clusters: int
    price: float
    loss: float
    slack: float


@dataclass(frozen=True, eq=False)
class Tree:
    """Clusters of a posterior, united one after the other until one is left.

    Parameters
    ----------
    posterior
        The posterior whose clusters are the leaves.
    unions
        The unions, in order.
    """

    posterior: Posterior
    unions: tuple[TreeUnion, ...]

    @property
    def n_clusters(self) -> int:
        """Number of leaves K."""
        return len(self.unions) + 1

    @property
    def losses(self) -> np.ndarray:
        """Nats that the objective loses with 1, 2, ..., K clusters, ``(K,)``; the last is 0."""
        return np.array([*(union.loss for union in reversed(self.unions)), 0.0])

    @property
    def slacks(self) -> np.ndarray:
        """Most nats by which each of ``losses`` may be too high, ``(K,)``; NaN if no limit is known."""
        return np.array([*(union.slack for union in reversed(self.unions)), 0.0])

    @property
    def least(self) -> int:
        """Fewest clusters of a cut: 1, or more if known labels keep clusters apart."""
        return int(np.isinf(self.losses).sum()) + 1

    @property
    def linkage(self) -> np.ndarray:
        """The unions as :func:`scipy.cluster.hierarchy.dendrogram` takes them, ``(K - 1, 4)``.

        Leaves are the clusters in the order of ``posterior.ids``.  The height of a union is the loss of all unions up
        to it, or the height of the union before where that is higher: :func:`scipy.cluster.hierarchy.fcluster` at the
        height t unites the clusters of ``cut(loss=t)``.  Unions that known labels forbid are ten times as high as the
        highest of the others.
        """
        node = {int(i): k for k, i in enumerate(self.posterior.ids)}
        size = dict.fromkeys(node, 1)
        rows, height = np.zeros((len(self.unions), 4)), 0.0
        highest = 10.0 * max(1.0, *self.losses[self.least - 1 :])
        for number, union in enumerate(self.unions):
            height = max(height, min(union.loss, highest))
            size[union.keep] += size[union.drop]
            rows[number] = (*sorted((node[union.keep], node[union.drop])), height, size[union.keep])
            node[union.keep] = self.n_clusters + number
        return rows

    @answering
    def size_at(self, loss: float) -> int:
        """Least number of clusters with at most ``loss`` nats lost."""
        number_from("loss", loss, 0.0)
        return int(np.flatnonzero(self.losses <= loss)[0]) + 1

    @answering
    def members(self, n_clusters: int) -> dict[int, tuple[int, ...]]:
        """Ids of the leaves in each cluster of ``cut(n_clusters)``, by the id of the cluster, in their order."""
        n_clusters = self._size(n_clusters)
        found = {int(i): [int(i)] for i in self.posterior.ids}
        for union in self.unions[: self.n_clusters - n_clusters]:
            found[union.keep] += found.pop(union.drop)
        order = {int(i): k for k, i in enumerate(self.posterior.ids)}
        return {i: tuple(sorted(own, key=lambda one: order[one])) for i, own in found.items()}

    @answering
    def cut(self, n_clusters: int | None = None, *, loss: float | None = None) -> Posterior:
        """Posterior with ``n_clusters`` clusters, or with as few as lose at most ``loss`` nats.

        It is the global step from the united statistics, and takes the place of the posterior everywhere; its ids are
        explained by :meth:`members`.  ``cut(K)`` is the posterior itself.  ``predictive`` of topics is united too:
        expected tokens are sums.

        Raises
        ------
        SettingError
            Neither or both are given, the tree has fewer clusters, or known labels keep more apart.
        """
        if (n_clusters is None) == (loss is None):
            raise SettingError("cut: give a number of clusters, cut(20), or the nats that may be lost, cut(loss=10.0)")
        size = self._size(n_clusters) if loss is None else self.size_at(loss)
        if size == self.n_clusters:
            return self.posterior
        posterior = require_posterior(self.posterior)
        with computing_as(posterior.model):
            pairs = [(union.keep, union.drop) for union in self.unions[: self.n_clusters - size]]
            united = unite_all(posterior.model, posterior, pairs)
            found = posterior.model.global_step(united)
            predictive = None if posterior.predictive is None else _predictive(posterior, self.members(size), united)
        return replace(found, words=posterior.words, columns=posterior.columns, predictive=predictive)

    def to_json(self) -> str:
        """Ids, unions and losses as JSON."""
        rows = [{name: _number(value) for name, value in vars(union).items()} for union in self.unions]
        return json.dumps({"ids": [int(i) for i in self.posterior.ids], "unions": rows})

    def _size(self, n_clusters: Any) -> int:
        size = whole_number("n_clusters", n_clusters, 1)
        if size > self.n_clusters:
            raise SettingError(
                f"{size} clusters: the posterior has {self.n_clusters}, and a tree only unites; needs at most "
                f"{self.n_clusters}. Training gives more: train(..., init=FromPosterior(posterior), moves=[Birth()])"
            )
        if size < self.least:
            raise SettingError(
                f"{size} clusters: atoms of different known labels would be in one; needs at least {self.least}, or a "
                "run without labels="
            )
        return size

    def __repr__(self) -> str:
        head = f"Tree of {self.n_clusters} clusters"
        if self.least == self.n_clusters:
            return head
        sizes = sorted({self.size_at(nats) for nats in (1.0, 10.0, 100.0)}, reverse=True)
        shown = [k for k in sizes if k < self.n_clusters] or [self.n_clusters - 1]
        return head + "; " + ", ".join(f"{k} lose {self.losses[k - 1]:.3g} nats" for k in shown)


@answering
def tree(posterior: Posterior) -> Tree:
    """Unite the clusters of a posterior one after the other, each time where the objective loses least.

    There is no pass over data: losses come from the statistics that the posterior keeps.  The objective of a level
    belongs to the assignment in which each united cluster takes all shares of its members, at the parameters that are
    best for it.  A cut could only gain by further training.

    Mixtures
        Data and weights are exact.  The entropy of a union is exact if the pair was tracked, and bounded otherwise, as
        :func:`bnp_dask.analysis.tree.unite_once` derives.  ``loss`` is then an upper bound: the exact loss is
        between ``loss - slack`` and ``loss``.  Both are equal if no atom is shared by clusters.
    Hidden Markov models
        The same, with transitions exact and the entropy of the sequences bounded.
    Topic models
        The data term is exact.  Terms of the documents are bounded by two inequalities, see
        :func:`bnp_dask.analysis.tree.unite_topics`; ``loss`` is an upper bound, and ``slack`` is NaN.
    NGGPMixture
        The objective is the log joint probability of data and partition, exact for assignments without doubt, as
        ``Gibbs()`` leaves them.

    Parameters
    ----------
    posterior
        Trained clusters with their statistics, of any model.

    Returns
    -------
    Tree
        ``tree.cut(20)`` is a posterior with 20 clusters, ``tree.cut(loss=10.0)`` one that loses at most 10 nats,
        ``tree.linkage`` the dendrogram for SciPy.

    Raises
    ------
    SettingError
        The posterior has no statistics, or point estimates, whose objective is known only up to constants that depend
        on the number of clusters.

    References
    ----------
    Thesis 4.1.4: the gain of a merge, (4.6) and (4.10).  Heller & Ghahramani (2005), "Bayesian hierarchical
    clustering", unite by marginal likelihoods too, of single atoms.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.repeat([[0.0], [3.0], [20.0]], 30, axis=0) + np.random.default_rng(0).normal(size=(90, 1))
    >>> found = bnp.tree(bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x).posterior)
    >>> coarse = found.cut(2)
    >>> coarse.n_clusters, bnp.predict(coarse, [[0.0], [3.0]]).tolist() == coarse.ids[[0, 0]].tolist()
    (2, True)
    """
    original, posterior = posterior, require_posterior(posterior)
    model, summary = posterior.model, posterior.summary
    if summary is None:
        raise SettingError("tree: the posterior has no statistics; pass result.posterior, or one from bnp_dask.load")
    if model.estimate != "posterior":
        raise SettingError("tree: point estimates have no objective that different numbers of clusters share")
    if isinstance(model.allocation, UnscoredAllocation) and not isinstance(model.allocation, SampledAllocation):
        raise SettingError(f"tree: {type(model.allocation).__name__} has no objective; train a DPMixture(...)")
    if posterior.n_clusters < 1:
        raise SettingError("tree: the posterior has no clusters")
    with computing_as(model):
        return Tree(original, tuple(_Growing(posterior, summary).all_unions()))


class _Growing:
    """A tree while it grows.

    ``value`` are the statistics of the present clusters, ``alone (K,)`` their data terms, and ``gains (K, K)`` the
    change of the data term by the union of two positions, above the diagonal; -inf if it was not computed.
    """

    def __init__(self, posterior: Posterior, summary: Summary) -> None:
        self.posterior, self.model, self.value = posterior, posterior.model, summary
        self.leaves = without_data(posterior.model, summary)
        self.knows_weights = posterior.model.structure.policy.knows_pair_weights
        self.sets: list[tuple[int, ...]] = [(int(i),) for i in summary.ids]
        self.alone = self.model.best_data_terms(summary)
        first, second = near_pairs(self.model, posterior, summary)
        self.gains = np.full((summary.n_clusters, summary.n_clusters), -np.inf)
        self._score(first, second)

    def all_unions(self) -> list[TreeUnion]:
        """Unions until one cluster is left."""
        out: list[TreeUnion] = []
        before, loss, slack = self._weights(self.value), 0.0, 0.0
        while self.value.n_clusters > 1:
            a, b, after, more, united = self._best(before)
            apart = parted(self.model.observation, self.value, np.array([a]), np.array([b]))
            price = math.inf if apart is not None and apart[0] else before - after - float(self.gains[a, b])
            loss, slack, before = loss + price, slack + more, after
            keep, drop = int(self.value.ids[a]), int(self.value.ids[b])
            out.append(TreeUnion(keep, drop, self.value.n_clusters - 1, price, loss, slack))
            self._unite(a, b, united)
        return out

    def _best(self, before: float) -> tuple[int, int, float, float, Summary]:
        """Positions of the best pair, entropy and weights after its union, slack, and the statistics without data."""
        if not np.isfinite(self.gains).any():
            self._score(*np.triu_indices(self.value.n_clusters, 1))
        slim = without_data(self.model, self.value)
        rough = self.gains.copy()
        if self.knows_weights:
            every = np.arange(slim.n_clusters)
            rough += rough_allocation_gains(slim.units, every[:, None], every) - rough_entropy_loss(slim)
        first, second = np.nonzero(np.isfinite(self.gains))
        order = np.argsort(-rough[first, second], kind="stable")
        order = order[: CANDIDATES if self.knows_weights else 1]
        best: tuple[int, int, float, float, Summary] | None = None
        for a, b in zip(first[order].tolist(), second[order].tolist(), strict=True):
            tried = unite_next(self.model, self.posterior, self.leaves, slim, self.sets, (a, b))
            after = self._weights(tried.summary)
            if best is None or after + self.gains[a, b] > best[2] + self.gains[best[0], best[1]]:
                best = a, b, after, tried.slack, tried.summary
        assert best is not None, "there are at least two clusters"
        return best

    def _weights(self, slim: Summary) -> float:
        return _weights(self.model, slim)

    def _unite(self, a: int, b: int, slim: Summary) -> None:
        """Put the union of the positions a < b into the statistics; ``slim`` are statistics without data."""
        value, keep, drop = self.value, int(self.value.ids[a]), int(self.value.ids[b])
        data = replace(
            value.without_pairs(),
            fields={name: value.fields[name] for name in self.model.observation.fields},
            values={name: value[name] for name in self.model.observation.fields},
        ).merge(keep, drop)
        self.value = replace(slim, fields=value.fields, values={**slim.values, **data.values})
        self.sets[a] += self.sets.pop(b)
        both = np.maximum(np.maximum(self.gains[a], self.gains[:, a]), np.maximum(self.gains[b], self.gains[:, b]))
        self.alone[a] += self.alone[b] + self.gains[a, b]
        near = np.delete(both, b)
        self.alone = np.delete(self.alone, b)
        self.gains = np.delete(np.delete(self.gains, b, axis=0), b, axis=1)
        others = np.flatnonzero(np.isfinite(near))
        others = others[others != a]
        self.gains[a], self.gains[:, a] = -np.inf, -np.inf
        self._score(np.minimum(others, a), np.maximum(others, a))

    def _score(self, first: np.ndarray, second: np.ndarray) -> None:
        pairs = np.stack([self.value.ids[first], self.value.ids[second]], axis=1)
        self.gains[first, second] = data_gains(self.model, self.value, pairs, self.alone)


def objective_of(posterior: Posterior) -> float:
    """The objective of which :func:`tree` states losses, at the posterior's statistics, nats."""
    posterior = require_posterior(posterior)
    model, summary = posterior.model, posterior.summary
    assert summary is not None, "only posteriors with statistics have a tree"
    with computing_as(model):
        if isinstance(model.allocation, UnscoredAllocation):
            return float(model.best_data_terms(summary).sum()) + _weights(model, summary)
        return model.best_objective(summary)


def _weights(model: Model, slim: Summary) -> float:
    """Entropy and allocation term at the best parameters, nats."""
    if isinstance(model.allocation, UnscoredAllocation):
        assert isinstance(model.allocation, SampledAllocation)
        counts = slim["N"]
        return float(model.allocation.log_partition(counts[counts > 0]))
    return sum(model.allocation_terms(slim).values())


def _predictive(posterior: Posterior, members: dict[int, tuple[int, ...]], united: Summary) -> Any:
    """Parameters for scores after unions: Dirichlet parameters of words are the prior's and expected tokens."""
    lam, prior = posterior.predictive.lam, np.asarray(posterior.model.observation.lam, np.float64)  # type: ignore
    tokens = lam - prior
    x = np.array([tokens[posterior.positions(np.array(members[int(i)]))].sum(axis=0) for i in united.ids])
    return posterior.model.observation.global_step(replace(united, values={**united.values, "x": np.maximum(x, 0.0)}))


def _number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
