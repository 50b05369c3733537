"""k-means++ and k-means on a sample of the data (thesis 2.4), for any observation model."""

from __future__ import annotations

from dataclasses import dataclass

from bnp_dask.core.batch import Batch
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.errors import warn
from bnp_dask.initialize.base import (
    InitContext,
    child_rng,
    choose_atoms,
    gather,
    new_root,
    require_enough_atoms,
    submit_atoms,
    summarize_assigned,
)
from bnp_dask.initialize.kmeans import cluster_atoms
from bnp_dask.inputs.settings import hold, whole_number
from bnp_dask.model import Model
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.nouns import noun_of

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
