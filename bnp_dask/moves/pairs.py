"""Pairs of clusters: statistics of their unions, gains of uniting them (thesis 4.1.4), and which of them are one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import xlogy

from bnp_dask.core import Summary
from bnp_dask.kernels import matmul
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.policy import LAP
from bnp_dask.observation import Labelled, numbers_per_cluster, parted
from bnp_dask.structure import without_data


def all_pairs(ids: np.ndarray) -> np.ndarray:
    """Every unordered pair of ids in the order of the clusters, ``(K (K - 1) / 2, 2)``."""
    first, second = np.triu_indices(len(ids), 1)
    return np.stack([ids[first], ids[second]], axis=1)


def data_gains(model: Model, value: Summary, pairs: np.ndarray, alone: np.ndarray | None = None) -> np.ndarray:
    """Exact change of the data term (eq. 4.6) for each pair of ids, ``(M,)`` nats.

    ``alone (K,)`` are the data terms of the present clusters, if the caller can compute them from parameters.

    The union of each pair is stored as a cluster of its own, so that many pairs are scored together.
    """
    alone = model.best_data_terms(value) if alone is None else alone
    first, second = value.positions(pairs).reshape(-1, 2).T
    return union_terms(model, value, pairs) - alone[first] - alone[second]


def union_terms(
    model: Model, value: Summary, pairs: np.ndarray, terms_of: Callable[[Summary], np.ndarray] | None = None
) -> np.ndarray:
    """Data term of the union of each pair of ids, ``(M,)`` nats.

    ``terms_of`` gives the data terms of clusters; default: ``model.best_data_terms``.
    """
    terms_of = model.best_data_terms if terms_of is None else terms_of
    place, terms = value.positions(pairs).reshape(-1, 2), np.empty(len(pairs))
    size = max(LAP.scored_pairs, LAP.scored_numbers // numbers_per_cluster(model.observation))
    for start in range(0, len(pairs), size):
        here = slice(start, start + size)
        terms[here] = terms_of(unions(value, place[here, 0], place[here, 1]))
    return terms


def evidence_gains(model: Model, a: Summary, b: Summary) -> np.ndarray:
    """Change of the data term for each cluster of ``a`` and the one of ``b`` in the same place, ``(M,)`` nats."""
    return np.asarray(model.best_data_terms(side_by_side(a, b)) - model.best_data_terms(a) - model.best_data_terms(b))


@dataclass(frozen=True, eq=False)
class PairGains:
    """Change of the data term by the union of each of some pairs of clusters.

    ``gains[k]`` is the row of one cluster: the gain of uniting it with each, ``(K,)`` nats; -inf for the cluster itself
    and for pairs that were not scored.

    Parameters
    ----------
    n_clusters
        Number of clusters K.
    first, second
        Positions of the pairs, ``(M,)``: ``first < second``, in the order of ``first``, then of ``second``.
    gains
        Nats, ``(M,)``.
    """

    n_clusters: int
    first: np.ndarray
    second: np.ndarray
    gains: np.ndarray

    def __getitem__(self, place: int) -> np.ndarray:
        row = np.full(self.n_clusters, -np.inf)
        for one, other in ((self.first, self.second), (self.second, self.first)):
            mine = np.flatnonzero(one == place)
            row[other[mine]] = self.gains[mine]
        return row


def gains_of_pairs(model: Model, posterior: Posterior, value: Summary) -> PairGains:
    """Exact gain of uniting each pair of :func:`near_pairs`; pairs of clusters of two known labels are left out."""
    first, second = near_pairs(model, posterior, value)
    apart = parted(model.observation, value, first, second)
    if apart is not None:
        first, second = first[~apart], second[~apart]
    pairs = np.stack([value.ids[first], value.ids[second]], axis=1)
    gains = data_gains(model, value, pairs, model.data_terms(posterior.observation, value))
    return PairGains(value.n_clusters, first, second, gains)


# -- which clusters are near ----------------------------------------------------------------------------------------
def near_pairs(model: Model, posterior: Posterior, value: Summary) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the pairs of clusters that are worth scoring, ``(M,)`` each: the first is the smaller one.

    Up to ``LAP.all_pairs`` clusters, all pairs; of more, those in which one cluster is among the ``LAP.alike`` nearest
    of the other by :func:`signatures`.  For topics of words always the pairs of :func:`alike`: with a hundred topics
    and ten thousand words all pairs would take longer than a lap.  Memory is of the order of ``LAP.alike`` K numbers
    and one block of rows.
    """
    words = [n for n in model.observation.fields if value.fields[n].dims == ("cluster", "word")]
    if model.structure.policy.scores_alike_only and words:
        return alike(value[words[0]])
    if value.n_clusters <= LAP.all_pairs:
        first, second = np.triu_indices(value.n_clusters, 1)
        return first, second
    points = signatures(model, posterior, value)
    squares = (points * points).sum(axis=1)
    return _nearest_pairs(len(points), lambda rows: 2.0 * matmul(points[rows], points.T) - squares)


def alike(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of pairs of rows of ``counts (K, V)``, of which one is among the ``LAP.alike`` nearest of the other.

    Nearness is the Bhattacharyya coefficient of the shares of words, ``sum_v sqrt(p_v q_v)``.
    """
    roots = np.sqrt(np.maximum(counts, 0.0))
    roots /= np.maximum(np.sqrt((roots * roots).sum(axis=1, keepdims=True)), 1e-300)
    return _nearest_pairs(len(roots), lambda rows: matmul(roots[rows], roots.T))


def signatures(model: Model, posterior: Posterior, value: Summary) -> np.ndarray:
    """Points ``(K, S)`` whose Euclidean distances are small for clusters whose union costs little.

    Each coordinate belongs to one of S = ``LAP.landmarks`` clusters l and is the root of

        (score_b(b) - score_l(b)) / N_b,

    the mean loss of an atom of cluster b, in nats, under the parameters of l: a divergence of b from l, which every
    likelihood has.  Its root behaves like a distance (for Gaussians of one covariance it is one, up to the factor
    ``sqrt(2)``), so that clusters near each other are about as far from each landmark.  Landmarks are clusters of all
    sizes that hold at least one atom.
    """
    params = posterior.observation
    if isinstance(model.observation, Labelled):  # labels forbid unions, which says nothing about the atoms
        model, params = replace(model, observation=model.observation.part), params.part
    score = model.observation.score
    own, counts = score(params, value), np.maximum(value["N"], 1e-300)
    held = np.flatnonzero(value["N"] >= min(1.0, float(value["N"].max())))
    held = held[np.argsort(-value["N"][held], kind="stable")]
    chosen = np.unique(held[np.linspace(0, len(held) - 1, min(LAP.landmarks, len(held))).round().astype(np.int64)])
    size, n = len(chosen), value.n_clusters
    params = model.observation_step(_rows(model, value, chosen))
    each, out = np.arange(size), np.empty((n, size))
    for start in range(0, n, size):
        # landmark l meets cluster l + turn of the block, twice the block, so that each turn is a view
        block = np.minimum(start + np.arange(2 * size) % size, n - 1)
        twice = _rows(model, value, block)
        for turn in range(size):
            here = slice(turn, turn + size)
            out[block[here], each] = score(params, _rows(model, twice, here))
    return np.sqrt(np.maximum(own[:, None] - out, 0.0) / counts[:, None])


def _rows(model: Model, summary: Summary, index: np.ndarray | slice) -> Summary:
    """Statistics of the atoms of some clusters by position, also repeated ones."""
    fields = {name: summary.fields[name] for name in ("N", *model.observation.fields)}
    values = {name: summary[name][index] if f.n_cluster_axes else summary[name] for name, f in fields.items()}
    return Summary(np.arange(len(values["N"])), fields, values)


def _nearest_pairs(n: int, nearness: Callable[[slice], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of positions of which one is among the ``LAP.alike`` nearest of the other; of equals, the first ones.

    ``nearness`` returns some rows of the table of ``n`` by ``n``, larger for nearer; a block of rows is held at a time.
    """
    most = min(LAP.alike, n - 1)
    found = [np.zeros(0, np.int64)]
    for start in range(0, n if most > 0 else 0, LAP.near_rows):
        rows = np.arange(start, min(start + LAP.near_rows, n))
        near = nearness(slice(start, start + LAP.near_rows))
        near[rows - start, rows] = -np.inf
        least = np.partition(near, n - most, axis=1)[:, n - most, None]
        equal = near == least
        left = most - (near > least).sum(axis=1, keepdims=True)
        chosen = (near > least) | (equal & (np.cumsum(equal, axis=1) <= left))
        mine, other = np.nonzero(chosen)
        mine += start
        found.append(np.minimum(mine, other) * n + np.maximum(mine, other))
    first, second = np.divmod(np.unique(np.concatenate(found)), max(n, 1))
    return first, second


# -- gains of the weights -------------------------------------------------------------------------------------------
def rough_allocation_gains(counts: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Approximation of :func:`allocation_gains` from counts alone, for pairs of positions, nats.

    Weights at their most likely values: ``N_ab log N_ab - N_a log N_a - N_b log N_b``.  ``first`` and ``second`` are
    broadcast against each other.
    """
    alone = xlogy(counts, counts)
    both = counts[first] + counts[second]
    return np.asarray(xlogy(both, both) - alone[first] - alone[second])


def allocation_gains(model: Model, value: Summary, pairs: np.ndarray) -> np.ndarray:
    """Change of the allocation term without the entropy, for each pair of ids, ``(M,)`` nats; exact for mixtures."""
    if not model.structure.policy.knows_pair_weights:
        first, second = value.positions(pairs).T
        return rough_allocation_gains(value["N"], first, second)
    slim = without_data(model, value.without_pairs())
    before = model.allocation_terms(slim)["allocation"]
    if any(field.n_cluster_axes != 1 for field in slim.fields.values()):
        united = (slim.with_pairs(pairs).merge(int(a), int(b)) for a, b in pairs)
    else:
        united = (absorbed(slim, slim.position(a), slim.position(b)) for a, b in pairs)
    return np.array([model.allocation_terms(union)["allocation"] - before for union in united])


# -- statistics of unions -------------------------------------------------------------------------------------------
def unions(value: Summary, first: np.ndarray, second: np.ndarray) -> Summary:
    """Unions of the clusters at the positions ``first`` and ``second (M,)``, as M clusters of their own.

    Statistics between two clusters are left out.
    """
    values = {
        name: v[first] + v[second] if value.fields[name].n_cluster_axes == 1 else v
        for name, v in value.values.items()
        if value.fields[name].n_cluster_axes < 2
    }
    return Summary(np.arange(len(first)), value.fields, values)


def side_by_side(a: Summary, b: Summary) -> Summary:
    """Unions of each cluster of one summary with the cluster of another in the same place, under the ids of ``a``."""
    return replace(a, values={name: value + b[name] for name, value in a.values.items()})


def absorbed(summary: Summary, keep: int, drop: int) -> Summary:
    """Summary in which the cluster at position ``keep`` absorbs the one at ``drop``; entropies add up.

    Faster than ``merge`` of the summary algebra.
    """
    values = dict(summary.values)
    for name, declared in summary.fields.items():
        if declared.n_cluster_axes == 1:
            new = np.delete(values[name], drop, axis=0)
            new[keep - (drop < keep)] += values[name][drop]
            values[name] = new
    return Summary(np.delete(summary.ids, drop), summary.fields, values)


def best_share(value: Summary, keep: int, drop: int) -> float | None:
    """Share with which :meth:`Summary.unite` bounds an entropy best: the share of ``keep`` in both; None for zero."""
    pair, least = value.without_pairs().take([keep, drop]), 1e-12  # of an empty cluster, so that it has a logarithm
    counts = np.maximum(pair.units, 0.0)
    share = min(max(float(counts[0] / max(counts.sum(), least)), least), 1.0 - least)
    tracked = [name for name, field in pair.fields.items() if field.merge == "tracked"]
    union = pair.unite(keep, drop, share)
    return share if sum(float(union[name].sum()) for name in tracked) > 0 else None


# -- which clusters are one -----------------------------------------------------------------------------------------
def best_first(
    pairs: np.ndarray, gains: np.ndarray, least: float = 0.0, per_cluster: int = 1, most: int | None = None
) -> list[int]:
    """Positions of pairs, the largest gain first, as long as it exceeds ``least``.

    Parameters
    ----------
    pairs
        Ids, ``(M, 2)``.
    gains
        Nats, ``(M,)``.
    least
        Nats.
    per_cluster
        Most pairs that contain the same cluster.
    most
        Most pairs in all.
    """
    chosen: list[int] = []
    used: dict[int, int] = {}
    for m in np.argsort(-gains, kind="stable").tolist():
        if gains[m] <= least or len(chosen) == most:
            break
        a, b = pairs[m].tolist()
        if max(used.get(a, 0), used.get(b, 0)) < per_cluster:
            used[a], used[b] = used.get(a, 0) + 1, used.get(b, 0) + 1
            chosen.append(m)
    return chosen


def matched_in_turn(n: int, others: int, gains: Callable[[int, list[int]], np.ndarray]) -> list[int]:
    """Position of the match of each of ``n`` clusters among ``others``, or -1; no two have the same match.

    Each cluster in turn takes the free one with the largest gain, if that is positive.  ``gains`` returns the gains of
    uniting one cluster, by position, with each of some others, nats.
    """
    free, out = list(range(others)), list[int]()
    for j in range(n):
        own = gains(j, free) if free else np.zeros(0)
        out.append(free.pop(int(np.argmax(own))) if own.max(initial=-np.inf) > 0.0 else -1)
    return out


def returning(model: Model, dormant: Mapping[int, Summary], newborn: Summary) -> dict[int, int]:
    """Ids of dormant clusters by position of the newborn clusters ``(J,)`` that match them; missing ones are new.

    A pair matches if the data term of its union exceeds the sum of both data terms; the difference is the log of a
    Bayes factor.  The best pairs are matched first, and no cluster is in two pairs.
    """
    if not dormant or newborn.links is not None or not newborn.n_clusters:
        return {}
    fresh = [-1 - j for j in range(newborn.n_clusters)]
    both = replace(newborn.without_pairs(), ids=np.array(fresh, np.int64))
    for part in dormant.values():
        both = both.exchange([], part)
    pairs = np.array([[old, new] for old in dormant for new in fresh])
    return {-1 - int(pairs[m, 1]): int(pairs[m, 0]) for m in best_first(pairs, data_gains(model, both, pairs))}


def alike_in_turn(model: Model, first: Summary, other: Summary) -> np.ndarray | None:
    """Position in ``other`` of the cluster that each cluster of ``first`` looks like, ``(J,)``.

    Two clusters look alike if the data term rises when they are united.  None unless each cluster looks like one of the
    other's, and no two look like the same one.
    """
    count = first.n_clusters
    if other.n_clusters != count:
        return None
    mine, theirs = np.arange(count), np.arange(count, 2 * count)
    both = replace(first.without_pairs(), ids=mine).exchange([], replace(other.without_pairs(), ids=theirs))
    pairs = np.array([[a, b] for a in mine for b in theirs])
    gains = data_gains(model, both, pairs).reshape(count, count)
    order = gains.argmax(axis=1)
    return None if len(set(order.tolist())) < count or gains.max(axis=1).min() <= 0 else order


def are_alike(model: Model, some: Summary, others: Summary) -> bool:
    """Whether some cluster of ``some`` is better united with one of ``others``, by the atoms of the two alone.

    The loss of the union is compared with the nats needed to tell for each unit which of the two holds it.
    """
    both = some.without_pairs().exchange([], others.without_pairs())
    pairs = np.array([[i, j] for i in some.ids for j in others.ids], np.int64).reshape(-1, 2)
    counts = np.maximum(both.units[both.positions(pairs)], 0.0)
    told = xlogy(counts.sum(axis=1), counts.sum(axis=1)) - xlogy(counts, counts).sum(axis=1)
    return bool((data_gains(model, both, pairs) + told > 0).any())
