"""Tree of clusters: united one after the other, each time the pair whose union costs the objective least."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.allocation.base import SampledAllocation, UnscoredAllocation
from bnp_dask.analysis.base import computing_as, require_posterior
from bnp_dask.core.summary import Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import number_from, whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.pairs import data_gains, near_pairs, rough_allocation_gains
from bnp_dask.observation.labelled import parted
from bnp_dask.structure.base import without_data
from bnp_dask.structure.unions import rough_entropy_loss, unite_all, unite_next

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

    def size_at(self, loss: float) -> int:
        """Least number of clusters with at most ``loss`` nats lost."""
        number_from("loss", loss, 0.0)
        return int(np.flatnonzero(self.losses <= loss)[0]) + 1

    def members(self, n_clusters: int) -> dict[int, tuple[int, ...]]:
        """Ids of the leaves in each cluster of ``cut(n_clusters)``, by the id of the cluster, in their order."""
        n_clusters = self._size(n_clusters)
        found = {int(i): [int(i)] for i in self.posterior.ids}
        for union in self.unions[: self.n_clusters - n_clusters]:
            found[union.keep] += found.pop(union.drop)
        order = {int(i): k for k, i in enumerate(self.posterior.ids)}
        return {i: tuple(sorted(own, key=lambda one: order[one])) for i, own in found.items()}

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


def tree(posterior: Posterior) -> Tree:
    """Unite the clusters of a posterior one after the other, each time where the objective loses least.

    There is no pass over data: losses come from the statistics that the posterior keeps.  The objective of a level
    belongs to the assignment in which each united cluster takes all shares of its members, at the parameters that are
    best for it.  A cut could only gain by further training.

    Mixtures
        Data and weights are exact.  The entropy of a union is exact if the pair was tracked, and bounded otherwise, as
        :func:`bnp_dask.structure.unions.unite_once` derives.  ``loss`` is then an upper bound: the exact loss is
        between ``loss - slack`` and ``loss``.  Both are equal if no atom is shared by clusters.
    Hidden Markov models
        The same, with transitions exact and the entropy of the sequences bounded.
    Topic models
        The data term is exact.  Terms of the documents are bounded by two inequalities, see
        :func:`bnp_dask.structure.unions.unite_topics`; ``loss`` is an upper bound, and ``slack`` is NaN.
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
