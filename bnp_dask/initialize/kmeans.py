"""Bregman k-means++, k-means|| and Bregman k-means (thesis Algorithms 2.1 and 2.2), for any observation model.

The first and the last run on atoms held in memory; as a start (thesis 2.4), on a sample of the data.  k-means|| takes a
few passes over distributed data (Bahmani et al. 2012; thesis 8.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from bnp_dask.allocation import FiniteMixture
from bnp_dask.core import Batch, Summary, concatenate, register
from bnp_dask.data import Reader, batch_reader
from bnp_dask.errors import warn
from bnp_dask.execute import Handle
from bnp_dask.initialize.base import (
    InitContext,
    atom_tiles,
    child_rng,
    choose_atoms,
    each_batch,
    gather,
    hard_resp,
    locate,
    new_root,
    read_checked,
    require_enough_atoms,
    submit_atoms,
    summarize_assigned,
)
from bnp_dask.inputs import hold, is_a, positive_number, whole_number
from bnp_dask.kernels import log, matmul
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Params, lacks_any, numbers_per_cluster
from bnp_dask.structure import noun_of

# -- The smoothed Bregman divergence of thesis Algorithm 2.2, for any observation model ---------------------------
# Write J(x, phi) = log p(x | phi) + log p(phi), without terms that do not depend on phi, and phi-hat(x) for its
# maximum: the point estimate of a cluster that holds the atom x alone.  For an exponential family with conjugate
# prior (thesis eqs. 2.33-2.36, 2.62)
#
#     J(x, phi-hat(x)) - J(x, phi) = (1 + nu) D(mu(s(x)), mu),      mu(s) = (s + tau) / (1 + nu),
#
# the divergence between smoothed means in line 6 of the algorithm.  The factor 1 + nu is the same for all atoms and
# centres, so it is left in; the unit is nats.


TILE_NUMBERS = 2**17
"""Numbers in the statistics of one tile of single-atom clusters (1 MB): D x D each for full covariances."""

ROUNDING = 1e-13
"""Divergences below this share of the numbers that they are differences of are rounding errors and count as zero."""


def _tiles(model: Model, batch: Batch) -> Iterator[Batch]:
    size = int(np.clip(TILE_NUMBERS // numbers_per_cluster(model.observation), 1, 1024))
    for start in range(0, batch.n_atoms, size):
        yield batch.rows(start, min(start + size, batch.n_atoms))


@dataclass(frozen=True, eq=False)
class Centres:
    """Point estimates of some clusters: their parameters and log prior ``(K,)``."""

    params: Params
    log_prior: np.ndarray


def single_atoms(model: Model, atoms: Batch) -> Centres:
    """phi-hat of each atom, as K = n clusters that hold one atom each, counted once."""
    summary = single_summary(model, atoms)
    params = model.observation.at_mode(model.observation.global_step(summary))
    return Centres(params, model.observation.log_prior(params))


def single_summary(model: Model, atoms: Batch) -> Summary:
    """Summary in which each atom, counted once, is a cluster of its own; ids 0..n-1."""
    n = atoms.n_atoms
    return model.summarize(np.arange(n), replace(atoms, weights=None), hard_resp(np.arange(n), n))


def log_joint(model: Model, centres: Centres, batch: Batch) -> np.ndarray:
    """J(x, phi), ``(n, K)`` nats."""
    return model.observation.expected_log_lik(centres.params, batch) + centres.log_prior


@dataclass(frozen=True, eq=False)
class Best:
    """J(x, phi-hat(x)) of each atom and the size of its rounding error, both ``(n,)`` nats."""

    value: np.ndarray
    rounding: np.ndarray


class Singles(Protocol):
    """Atoms as clusters of one atom each, in closed form."""

    @property
    def joint(self) -> np.ndarray:
        """J(x, phi-hat(x)), ``(n,)`` nats."""
        ...

    @property
    def size(self) -> np.ndarray:
        """Size of its terms, ``(n,)`` nats."""
        ...

    def joint_with(self, index: np.ndarray) -> np.ndarray:
        """J(x, phi) of all atoms under the point estimates of the atoms ``index (m,)``, ``(n, m)`` nats."""
        ...


@runtime_checkable
class ClosedForm(Protocol):
    """Likelihood with a closed form that needs no cluster for each atom."""

    def single_atoms(self, batch: Batch) -> Singles:
        """Atoms without missing entries as clusters of one atom each."""
        ...


def closed_form(model: Model, batch: Batch) -> Singles | None:
    """Atoms as clusters of one atom each, if there is a closed form; these are for atoms without missing entries."""
    observation = model.observation
    if is_a(observation, ClosedForm) and not (model.marginalises and lacks_any(batch)):
        return observation.single_atoms(batch)
    return None


def best_joint(model: Model, batch: Batch) -> Best:
    """Largest J that each atom can reach: in closed form if the likelihood has one, otherwise tile by tile."""
    found = closed_form(model, batch)
    return best_joint_by_clusters(model, batch) if found is None else _best_of(found)


def _best_of(found: Singles) -> Best:
    return Best(found.joint, ROUNDING * (1.0 + found.size))


Distances = Callable[[np.ndarray], np.ndarray]
"""Function that returns the divergences of all atoms from the atoms at some positions ``(m,)``, ``(n, m)`` nats."""


def distances_between(model: Model, batch: Batch) -> Distances:
    """Divergences of the atoms from one another; what depends on single atoms alone is computed once."""
    found = closed_form(model, batch)
    if found is not None:
        best = _best_of(found)
        return lambda index: divergence(best, found.joint_with(index))
    return partial(_distances_by_clusters, model, batch, best_joint_by_clusters(model, batch))


def _distances_by_clusters(model: Model, batch: Batch, best: Best, index: np.ndarray) -> np.ndarray:
    centres = single_atoms(model, batch.take(index))
    joint = [log_joint(model, centres, tile) for tile in atom_tiles(model, batch, len(index))]
    return divergence(best, np.concatenate(joint))


def best_joint_by_clusters(model: Model, batch: Batch) -> Best:
    """Largest J that each atom can reach, for any likelihood: each atom becomes a cluster."""
    observation = model.observation
    of_no_atoms = observation.at_mode(observation.global_step(model.empty_summary(np.zeros(1, np.int64))))
    prior = Centres(of_no_atoms, observation.log_prior(of_no_atoms))
    values, sizes = [], []
    for tile in _tiles(model, batch):
        summary = single_summary(model, tile)
        params = observation.at_mode(observation.global_step(summary))
        score, log_prior = observation.score(params, summary), observation.log_prior(params)
        values.append(score + log_prior)
        # J at the prior's own mode shows how large the terms are that cancel in an atom far from the origin
        sizes.append(1.0 + np.abs(score) + np.abs(log_prior) + np.abs(log_joint(model, prior, tile)[:, 0]))
    return Best(np.concatenate(values), ROUNDING * np.concatenate(sizes))


def divergence(best: Best, joint: np.ndarray) -> np.ndarray:
    """(1 + nu) D of every atom from every centre, ``(n, K)`` nats, from J ``(n, K)``; never negative."""
    gap = best.value[:, None] - joint
    return np.where(gap > best.rounding[:, None], gap, 0.0)


def nearest(model: Model, batch: Batch, atoms: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Closest of the centres phi-hat(atoms) to each atom of the batch: the centre with the largest J.

    Centres are made in tiles, so that many of them take no more memory than few.

    Returns
    -------
    labels, joint
        Position among ``atoms`` (the lowest of equals) and J in nats, both ``(n,)``.
    """
    labels = np.zeros(batch.n_atoms, np.int64)
    joint = np.full(batch.n_atoms, -np.inf)
    first = 0
    for tile in _tiles(model, atoms):
        centres = single_atoms(model, tile)
        start = 0
        for rows in atom_tiles(model, batch, tile.n_atoms):
            here = slice(start, start + rows.n_atoms)
            start += rows.n_atoms
            new = log_joint(model, centres, rows)
            place = new.argmax(axis=1)
            value = np.take_along_axis(new, place[:, None], axis=1)[:, 0]
            closer = value > joint[here]
            labels[here][closer] = first + place[closer]
            joint[here][closer] = value[closer]
        first += tile.n_atoms
    return labels, joint


# -- Bregman k-means++, k-means|| and Bregman k-means (thesis Algorithms 2.1 and 2.2), for any observation model --


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
    model: Model,
    batch: Batch,
    n_clusters: int,
    rng: np.random.Generator,
    candidates: int | None = None,
    distances: Distances | None = None,
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
    distances
        :func:`distances_between` of these atoms, if the caller has it: several choices among the same atoms share it.
    """
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    tries = 2 + int(log(n_clusters)) if candidates is None else min(candidates, batch.n_atoms)
    distances = distances_between(model, batch) if distances is None else distances
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
    model: Model,
    batch: Batch,
    n_clusters: int,
    rng: np.random.Generator,
    candidates: int | None,
    laps: int,
    distances: Distances | None = None,
) -> tuple[np.ndarray, int]:
    """Labels ``(n,)`` by k-means++ and ``laps`` of k-means, largest cluster first, and the number of clusters.

    Arguments are as in :func:`plus_plus`.
    """
    if n_clusters == 1:
        return np.zeros(batch.n_atoms, np.int64), 1
    seeds = plus_plus(model, batch, n_clusters, rng, candidates, distances)
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
        chosen = choose_atoms(context, sample_size(context, self.n_clusters, self.sample))
        executor = context.executor
        model = executor.share("init-model", context.model)
        parts = submit_atoms(context, model, chosen)
        root = new_root(context.rng)
        mass = context.survey.total_weight
        task = executor.submit("init-kmeans", _cluster_sample, model, self, root, mass, *parts)
        summary = executor.result(task)
        warn_if_fewer(context.model, summary, self.n_clusters, f"the {len(chosen)} sampled atoms")
        return summary


def sample_size(context: InitContext, n_clusters: int, size: int | None = None) -> int:
    """Atoms to sample for clusters, at least ten each; of ``size``, by default :data:`SAMPLE` if memory allows."""
    if size is None:
        size = min(SAMPLE, SAMPLE_NUMBERS // numbers_per_cluster(context.model.observation))
    return min(max(size, PER_CLUSTER * n_clusters), context.survey.n_atoms)


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


# -- k-means||: many seeds in a few passes over distributed data (Bahmani et al. 2012; thesis 8.2.1) --------------
MOST_ROUNDS = 1000
"""Most passes that a setting allows; after some ten no candidates are missing."""

EXTRA_ROUNDS = 10
"""Most additional rounds, run while there are fewer candidates than clusters."""


@register
@dataclass(frozen=True)
class KMeansParallel:
    """Seeds drawn many at a time, for hundreds or thousands of clusters in data too large for one machine.

    Each round is one pass over the data, in which every atom becomes a candidate with probability
    min(1, L w D / cost), L = ``oversample * n_clusters``: w is its weight, D its divergence from the closest
    candidate so far, and cost the sum of w D over the data (thesis eq. 8.1).  One more pass weighs the candidates by
    the atoms they attract; then they, and they alone, are clustered by weighted k-means++ and k-means.  A last pass
    puts every atom into the cluster under which it is most likely, so the statistics cover the whole data; the
    heaviest candidate of each cluster stays there, so that none is lost.  Clusters are
    numbered from the largest.

    Parameters
    ----------
    n_clusters
        Clusters to start with, K.  There will be fewer, with a warning, when the data hold fewer distinct atoms.
    rounds
        Passes that draw candidates.
    oversample
        Candidates expected in each round, for each cluster.
    laps
        Iterations of k-means on the candidates.
    candidates
        Atoms tried at each step of the weighted k-means++; 1 is the plain algorithm.  Default: 2 + log K.

    Notes
    -----
    The cost is known only after the pass.  A task therefore returns the atoms that pass under its own cost, or the cost
    of the batches folded before its submission, each with its uniform random number.  They are thinned to the exact
    probability once the pass is over.  The caller holds candidates only.

    Each round needs the point estimate of every atom, which for full covariances of 64 features takes as long as
    the log likelihoods of a thousand clusters: prefer :class:`BregmanKMeans` then, if a sample shows the clusters.

    References
    ----------
    Bahmani, Moseley, Vattani, Kumar & Vassilvitskii, "Scalable k-means++", 2012; thesis 8.2.1.
    """

    n_clusters: int
    rounds: int = 5
    oversample: float = 2.0
    laps: int = 10
    candidates: int | None = None

    def __post_init__(self) -> None:
        hold(self, "n_clusters", whole_number("n_clusters", self.n_clusters, 1))
        hold(self, "rounds", whole_number("rounds", self.rounds, 1, MOST_ROUNDS))
        hold(self, "laps", whole_number("laps", self.laps, 0))
        hold(self, "oversample", positive_number("oversample", self.oversample))
        if self.candidates is not None:
            hold(self, "candidates", whole_number("candidates", self.candidates, 1))

    def start(self, context: InitContext) -> Summary:
        """Statistics of the whole data, each atom in the most probable of the clusters found.

        Raises
        ------
        DataError
            More clusters than atoms, or atoms that the likelihood cannot have produced.
        """
        require_enough_atoms(self.n_clusters, context, "KMeansParallel")
        executor = context.executor
        model = executor.share("init-model", context.model)
        found = self._draw_candidates(context, model)
        attracted = _attracted_weights(context, model, executor.share("init-candidates", found.atoms))
        root = new_root(context.rng)
        task = executor.submit("init-recluster", _recluster, model, self, root, found.atoms, attracted)
        posterior, heaviest = executor.result(task)
        summary = _assign_all(context, model, executor.share("init-clusters", posterior), found.origin[heaviest])
        order = np.argsort(-summary["N"], kind="stable")
        # empty only if the sole candidate is an atom of weight zero that was drawn first
        used = order[summary["N"][order] > 0]
        summary = replace(summary.take(used.tolist()), ids=np.arange(len(used), dtype=np.int64))
        warn_if_fewer(context.model, summary, self.n_clusters, f"the {found.atoms.n_atoms} candidates from all atoms")
        return summary

    def _draw_candidates(self, context: InitContext, model: Handle) -> Candidates:
        first = np.array([context.rng.integers(context.survey.n_atoms)])
        ((b, position),) = locate(context.survey, first)
        (part,) = submit_atoms(context, model, first)
        found = Candidates(replace(context.executor.result(part), weights=None), np.array([[b, position[0]]]))
        root = new_root(context.rng)
        for number in range(self.rounds + EXTRA_ROUNDS):
            if number >= self.rounds and found.atoms.n_atoms >= self.n_clusters:
                break
            cost, drawn = self._round(context, model, found.atoms, root, number)
            if cost == 0.0:
                break
            found = found.joined(drawn)
        return found

    def _round(
        self, context: InitContext, model: Handle, candidates: Batch, root: int, number: int
    ) -> tuple[float, list[Drawn]]:
        """One pass: total cost of the candidates so far, and the atoms drawn from each batch."""
        executor, source, atoms = context.executor, context.source, context.survey.batch_atoms
        rate = self.oversample * self.n_clusters
        shared = executor.share(f"init-candidates-round{number}", candidates)
        cost = 0.0

        def submit(b: int) -> Handle:
            key = (root, number, b)
            name = f"init-draw-round{number}-batch{b}"
            return executor.submit(
                name, _draw_candidates, batch_reader(source, b), model, atoms[b], shared, rate, cost, key
            )

        kept: list[Drawn] = []
        for part in each_batch(context, submit):
            cost += part.cost
            # the cost only grows, so an atom that fails the test now would fail it in the end
            kept = [d for d in (drawn.thin(rate, cost) for drawn in [*kept, part]) if len(d.score)]
        return cost, kept


@dataclass(frozen=True, eq=False)
class Candidates:
    """Atoms that may become centres, without weights, and their batch and position in it ``(C, 2)``."""

    atoms: Batch
    origin: np.ndarray

    def joined(self, drawn: list[Drawn]) -> Candidates:
        """Candidates with the atoms just drawn."""
        atoms = concatenate([self.atoms, *(d.atoms for d in drawn)], "candidates")
        origin = [np.stack([np.full(len(d.position), d.batch), d.position], axis=1) for d in drawn]
        return Candidates(atoms, np.concatenate([self.origin, *origin]))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Atoms of one batch that may become candidates.

    Parameters
    ----------
    batch
        Number of the batch.
    cost
        Sum of weight times divergence over the whole batch, nats.
    atoms
        The atoms, without weights.
    position
        Their positions in the batch, ``(m,)``.
    score
        Weight times divergence of each, ``(m,)`` nats.
    uniform
        Its random number, ``(m,)``.
    """

    batch: int
    cost: float
    atoms: Batch
    position: np.ndarray
    score: np.ndarray
    uniform: np.ndarray

    def thin(self, rate: float, cost: float) -> Drawn:
        """Atoms that pass with probability min(1, rate * score / cost)."""
        passed = self.uniform * cost < rate * self.score
        if passed.all():
            return self
        where = np.flatnonzero(passed)
        atoms, position = self.atoms.take(where), self.position[where]
        return replace(self, atoms=atoms, position=position, score=self.score[where], uniform=self.uniform[where])


def _draw_candidates(
    reader: Reader, model: Model, expected: int, candidates: Batch, rate: float, cost: float, key: tuple[int, int, int]
) -> Drawn:
    """Task: cost of one batch, and the atoms that pass at a lower bound of the total cost."""
    batch = read_checked(reader, model, expected)
    _, joint = nearest(model, batch, candidates)
    distance = divergence(best_joint(model, batch), joint[:, None])[:, 0]
    score = distance if batch.weights is None else distance * batch.weights
    uniform = child_rng(*key).random(batch.n_atoms)
    own = float(score.sum())
    everyone = Drawn(key[2], own, replace(batch, weights=None), np.arange(batch.n_atoms), score, uniform)
    return everyone.thin(rate, max(cost, own))


def _attracted_weights(context: InitContext, model: Handle, candidates: Handle) -> np.ndarray:
    """Pass over the data: total weight of the atoms closest to each candidate, ``(C,)``."""
    executor, source, atoms = context.executor, context.source, context.survey.batch_atoms

    def submit(b: int) -> Handle:
        return executor.submit(f"init-weights-batch{b}", _attract, batch_reader(source, b), model, atoms[b], candidates)

    return np.asarray(sum(each_batch(context, submit)))


def _attract(reader: Reader, model: Model, expected: int, candidates: Batch) -> np.ndarray:
    """Task: weight of the atoms of one batch closest to each candidate, ``(C,)``."""
    batch = read_checked(reader, model, expected)
    labels, _ = nearest(model, batch, candidates)
    return np.bincount(labels, batch.weights, minlength=candidates.n_atoms).astype(np.float64)


def _recluster(
    model: Model, settings: KMeansParallel, root: int, candidates: Batch, attracted: np.ndarray
) -> tuple[Posterior, np.ndarray]:
    """Task: point estimates of K clusters of the weighted candidates, and the heaviest candidate of each ``(K,)``."""
    batch = gather((replace(candidates, weights=attracted),))
    rng = child_rng(root)
    labels, found = cluster_atoms(model, batch, settings.n_clusters, rng, settings.candidates, settings.laps)
    hard = hard_model(model)
    posterior = hard.global_step(summarize_assigned(hard, batch, labels, found)).light()
    used = np.flatnonzero(attracted > 0)
    order = np.lexsort((-attracted[used], labels))
    return posterior, used[order[np.searchsorted(labels[order], np.arange(found))]]


def _assign_all(context: InitContext, model: Handle, posterior: Handle, pinned: np.ndarray) -> Summary:
    """Pass over the data: statistics of all atoms, each in its most likely cluster.

    ``pinned`` are the batch and position of one atom for each cluster that stays there, ``(K, 2)``.
    """
    executor, source, atoms = context.executor, context.source, context.survey.batch_atoms

    def submit(b: int) -> Handle:
        k = np.flatnonzero(pinned[:, 0] == b)
        stay = (pinned[k, 1], k)
        return executor.submit(
            f"init-assign-batch{b}", _assign, batch_reader(source, b), model, atoms[b], posterior, stay
        )

    total: Summary | None = None
    for part in each_batch(context, submit):
        total = part if total is None else total + part
    assert total is not None  # there is at least one atom, or there would be no candidates
    return total


def _assign(
    reader: Reader, model: Model, expected: int, posterior: Posterior, stay: tuple[np.ndarray, np.ndarray]
) -> Summary:
    """Task: statistics of one batch, each atom in its most likely cluster, except atoms that ``stay``."""
    batch = read_checked(reader, model, expected)
    labels = most_likely(posterior, batch)
    position, cluster = stay
    labels[position] = cluster
    return summarize_assigned(model, batch, labels, posterior.n_clusters)
