"""Bregman k-means++ and Bregman k-means (thesis Algorithms 2.1 and 2.2), for any observation model.

They run on atoms held in memory; as a start (thesis 2.4), on a sample of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.errors import warn
from bnp_dask.initialize.base import (
    InitContext,
    atom_tiles,
    child_rng,
    choose_atoms,
    gather,
    new_root,
    require_enough_atoms,
    submit_atoms,
    summarize_assigned,
)
from bnp_dask.initialize.divergence import distances_between
from bnp_dask.inputs.settings import hold, whole_number
from bnp_dask.kernels.numeric.arithmetic import log, matmul
from bnp_dask.model import Model, Posterior
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.nouns import noun_of


@dataclass(frozen=True, eq=False)
class Seeds:
    """Result of k-means++.

    Parameters
    ----------
    centres
        Positions of the chosen atoms, ``(K,)``; fewer than requested if no other atom differs from them.
    labels
        Closest centre of each atom, ``(n,)``.
    distance
        Divergence from the closest centre, ``(n,)`` nats.
    """

    centres: np.ndarray
    labels: np.ndarray
    distance: np.ndarray


def plus_plus(
    model: Model, batch: Batch, n_clusters: int, rng: np.random.Generator, candidates: int | None = None
) -> Seeds:
    """Distance-biased choice of centres (thesis Algorithm 2.2).

    Each next centre is an atom drawn with probability proportional to its weight times its divergence from the
    closest centre so far (line 6 means the minimum itself, not its argument).

    Parameters
    ----------
    model
        Model with priors set; only its observation model matters.
    batch
        Atoms with positive weights.
    n_clusters
        Centres wanted, K.
    rng
        Random numbers.
    candidates
        Atoms drawn at each step; the atom that lowers the total divergence most is kept (greedy k-means++).  1 is the
        plain algorithm; None means 2 + log K, as in scikit-learn.
    """
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    tries = 2 + int(log(n_clusters)) if candidates is None else min(candidates, batch.n_atoms)
    distances = distances_between(model, batch)
    first = _draw(weights, 1, rng)
    centres = [int(first[0])]
    distance = distances(first)[:, 0]
    distance[first] = 0.0
    labels = np.zeros(batch.n_atoms, np.int64)
    while len(centres) < n_clusters:
        bias = weights * distance
        if not bias.any():
            break
        drawn = np.unique(_draw(bias, tries, rng))
        reach = np.minimum(distances(drawn), distance[:, None])
        choice = int(matmul(weights, reach).argmin())
        closer = reach[:, choice] < distance
        closer[drawn[choice]] = True
        labels[closer] = len(centres)
        distance = reach[:, choice]
        # its own divergence is zero up to rounding; it is set to zero, or an atom could be drawn twice
        distance[drawn[choice]] = 0.0
        centres.append(int(drawn[choice]))
    return Seeds(np.array(centres), labels, distance)


def _draw(bias: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Positions ``(size,)`` drawn with probability proportional to ``bias``; never one whose bias is zero."""
    total = np.cumsum(bias)
    place = np.searchsorted(total, rng.random(size) * total[-1], side="right")
    return np.minimum(place, np.flatnonzero(bias)[-1])


def hard_model(model: Model) -> Model:
    """Model of Algorithm 2.1 with the same observation model: hard assignment, point estimates."""
    return Model(FiniteMixture(top=1), model.observation, estimate="map")


def hard_kmeans(model: Model, batch: Batch, labels: np.ndarray, n_clusters: int, laps: int) -> np.ndarray:
    """Better labels by hard assignment (thesis Algorithm 2.1); the log joint never falls.

    No cluster becomes empty: its atom that gains least by leaving stays.

    Parameters
    ----------
    model
        Model with priors set; only its observation model matters.
    batch
        Atoms.
    labels
        First assignment, ``(n,)``, with no cluster empty.
    n_clusters
        K.
    laps
        Most iterations; ends earlier if no label changes.
    """
    hard = hard_model(model)
    for _ in range(laps if n_clusters > 1 else 0):
        posterior = hard.global_step(summarize_assigned(hard, batch, labels, n_clusters))
        wanted, gain = _reassign(posterior, batch, labels)
        wanted = _keep_all_clusters(wanted, labels, gain, n_clusters)
        if np.array_equal(wanted, labels):
            break
        labels = wanted
    return labels


def most_likely(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Cluster under which each atom is most likely, ``(n,)``, the lowest of equals; ignores weights of clusters."""
    model = posterior.model
    tiles = atom_tiles(model, batch, posterior.n_clusters)
    labels = [model.observation.expected_log_lik(posterior.observation, tile).argmax(axis=1) for tile in tiles]
    return np.concatenate(labels)


def _reassign(posterior: Posterior, batch: Batch, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Most probable cluster of each atom (eq. 2.76) and its gain over ``labels``, both ``(n,)``."""
    model = posterior.model
    log_weights = model.allocation.log_weights(posterior.allocation)
    wanted, gain = np.empty_like(labels), np.empty(len(labels))
    start = 0
    for tile in atom_tiles(model, batch, posterior.n_clusters):
        here = slice(start, start + tile.n_atoms)
        start += tile.n_atoms
        weight = model.observation.expected_log_lik(posterior.observation, tile) + log_weights
        wanted[here] = weight.argmax(axis=1)
        row = np.arange(tile.n_atoms)
        gain[here] = weight[row, wanted[here]] - weight[row, labels[here]]
    return wanted, gain


def _keep_all_clusters(wanted: np.ndarray, labels: np.ndarray, gain: np.ndarray, n_clusters: int) -> np.ndarray:
    wanted = wanted.copy()
    # an atom that goes back may leave its new cluster empty in turn; at worst all go back
    while True:
        empty = np.flatnonzero(np.bincount(wanted, minlength=n_clusters) == 0)
        if len(empty) == 0:
            return wanted
        for k in empty:
            members = np.flatnonzero(labels == k)
            stays = members[gain[members].argmin()]
            wanted[stays] = k


def largest_first(labels: np.ndarray, weights: np.ndarray | None, n_clusters: int) -> np.ndarray:
    """Labels renumbered by falling mass: the order that stick-breaking prefers."""
    mass = np.bincount(labels, weights, minlength=n_clusters)
    rank = np.empty(n_clusters, np.int64)
    rank[np.argsort(-mass, kind="stable")] = np.arange(n_clusters)
    return rank[labels]


def cluster_atoms(
    model: Model, batch: Batch, n_clusters: int, rng: np.random.Generator, candidates: int | None, laps: int
) -> tuple[np.ndarray, int]:
    """Labels ``(n,)`` by k-means++ and ``laps`` of k-means, largest cluster first, and the number of clusters."""
    if n_clusters == 1:
        return np.zeros(batch.n_atoms, np.int64), 1
    seeds = plus_plus(model, batch, n_clusters, rng, candidates)
    found = len(seeds.centres)
    labels = hard_kmeans(model, batch, seeds.labels, found, laps)
    return largest_first(labels, batch.weights, found), found


# -- a start from a sample -----------------------------------------------------------------------------------------
SAMPLE = 10_000
"""Atoms sampled by default."""

SAMPLE_NUMBERS = 2**29
"""Most numbers in the statistics of all sampled atoms by default; larger samples are reduced.  The divergence needs the
point estimate of every sampled atom (D x D numbers for full covariances)."""

PER_CLUSTER = 10
"""Least atoms sampled for each cluster."""


@register
@dataclass(frozen=True)
class BregmanKMeans:
    """Clusters of a sample, by k-means++ and a few iterations of k-means under the likelihood's own divergence.

    Squared Euclidean distance for ``FixedVarianceGaussian``, Kullback-Leibler divergence for ``Multinomial``, and so
    on.  The statistics are scaled up to the mass of the whole data set.  Clusters are numbered from the largest.

    Parameters
    ----------
    n_clusters
        Clusters to start with, K.  There will be fewer, with a warning, when the sample holds fewer distinct atoms.
    sample
        Atoms drawn uniformly from the whole data set (all of them, if there are fewer), at least ten per cluster.
        Default: 10,000, or less if the statistics of an atom are very large.
    laps
        Iterations of k-means on the sample.  0 assigns each atom to its nearest seed.
    candidates
        Atoms tried at each step of k-means++; 1 is the plain algorithm.  Default: 2 + log K.

    References
    ----------
    Thesis Algorithms 2.1 and 2.2; Arthur & Vassilvitskii (2007); Ackermann & Bloemer (2010).
    """

    n_clusters: int
    sample: int | None = None
    laps: int = 10
    candidates: int | None = None

    def __post_init__(self) -> None:
        hold(self, "n_clusters", whole_number("n_clusters", self.n_clusters, 1))
        hold(self, "laps", whole_number("laps", self.laps, 0))
        if self.sample is not None:
            hold(self, "sample", whole_number("sample", self.sample, 1))
        if self.candidates is not None:
            hold(self, "candidates", whole_number("candidates", self.candidates, 1))

    def start(self, context: InitContext) -> Summary:
        """Statistics of the sample's clusters, scaled to the mass of the data.

        Raises
        ------
        DataError
            More clusters than atoms, or atoms that the likelihood cannot have produced.
        """
        require_enough_atoms(self.n_clusters, context, "BregmanKMeans")
        chosen = choose_atoms(context, self._sample_size(context))
        executor = context.executor
        model = executor.share("init-model", context.model)
        parts = submit_atoms(context, model, chosen)
        root = new_root(context.rng)
        mass = context.survey.total_weight
        task = executor.submit("init-kmeans", _cluster_sample, model, self, root, mass, *parts)
        summary = executor.result(task)
        warn_if_fewer(context.model, summary, self.n_clusters, f"the {len(chosen)} sampled atoms")
        return summary

    def _sample_size(self, context: InitContext) -> int:
        size = self.sample
        if size is None:
            size = min(SAMPLE, SAMPLE_NUMBERS // numbers_per_cluster(context.model.observation))
        return min(max(size, PER_CLUSTER * self.n_clusters), context.survey.n_atoms)


def warn_if_fewer(model: Model, summary: Summary, wanted: int, where: str) -> None:
    """Warn if there are fewer clusters than requested."""
    if summary.n_clusters < wanted:
        warn(
            f"starting with {noun_of(model).count(summary.n_clusters)} instead of {wanted}: {where} hold no more "
            "distinct atoms (under this likelihood)"
        )


def _cluster_sample(model: Model, settings: BregmanKMeans, root: int, mass: float, *parts: Batch) -> Summary:
    """Task: cluster the sampled atoms and scale their statistics to the data's mass."""
    sample = gather(parts)
    rng = child_rng(root)
    labels, found = cluster_atoms(model, sample, settings.n_clusters, rng, settings.candidates, settings.laps)
    summary = summarize_assigned(model, sample, labels, found)
    return summary.scale(mass / sample.total_weight)
