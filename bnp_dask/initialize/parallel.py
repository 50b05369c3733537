"""k-means||: many seeds in a few passes over distributed data (Bahmani et al. 2012; thesis 8.2.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.batch import Batch, concatenate
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.data.base import Reader, batch_reader
from bnp_dask.execute.base import Handle
from bnp_dask.initialize.base import (
    InitContext,
    child_rng,
    each_batch,
    gather,
    locate,
    new_root,
    read_checked,
    require_enough_atoms,
    submit_atoms,
    summarize_assigned,
)
from bnp_dask.initialize.divergence import best_joint, divergence, nearest
from bnp_dask.initialize.kmeans import cluster_atoms, hard_model, most_likely, warn_if_fewer
from bnp_dask.inputs.settings import hold, positive_number, whole_number
from bnp_dask.model import Model, Posterior

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
            return executor.submit(name, _draw, batch_reader(source, b), model, atoms[b], shared, rate, cost, key)

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


def _draw(
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
