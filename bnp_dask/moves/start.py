"""Start of a mixture from more clusters than it needs, which a sample of the data learns and unites.

A run that begins with too few clusters must find each missing one by a birth, and between two births it needs many laps
over all data where clusters overlap.  Clusters that are too many come together by merges, which are cheap, and a lap on
a sample costs a small share of a lap over all data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bnp_dask.core import Batch, Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.initialize.base import (
    InitContext,
    child_rng,
    choose_atoms,
    gather,
    new_root,
    require_enough_atoms,
    submit_atoms,
)
from bnp_dask.initialize.kmeans import PER_CLUSTER, SAMPLE, SAMPLE_NUMBERS
from bnp_dask.inputs import hold, whole_number
from bnp_dask.kernels.gaussian.rounds import Stop
from bnp_dask.model import Model
from bnp_dask.moves.create import Forecast, cut, without_empty
from bnp_dask.moves.pairs import all_pairs
from bnp_dask.moves.policy import START, SmallRunPolicy
from bnp_dask.moves.pools import a_step, best_value, small_rounds
from bnp_dask.moves.prior import better_prior
from bnp_dask.observation import numbers_per_cluster


@register
@dataclass(frozen=True)
class UnitedKMeans:
    """Clusters of a sample: many by k-means++, learned by the model itself, and united as far as that pays.

    Only for mixtures whose number of clusters is learned.  The prior is learned with them if the run learns it.

    Parameters
    ----------
    n_clusters
        Clusters before any are united.  Default: 25 to 64, as many as the sample has atoms for each number of a
        cluster, and at most one for two atoms.
    sample
        Atoms drawn uniformly from the whole data set (all of them, if there are fewer), at least ten per cluster.
    """

    n_clusters: int | None = None
    sample: int = SAMPLE
    learns_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_clusters is not None:
            hold(self, "n_clusters", whole_number("n_clusters", self.n_clusters, 1))
        hold(self, "sample", whole_number("sample", self.sample, 1))

    def start(self, context: InitContext) -> Summary:
        """Statistics of the sample's clusters, scaled to the mass of the data.

        Raises
        ------
        DataError
            More clusters than atoms, or atoms that the likelihood cannot have produced.
        SettingError
            The model is no mixture of unlinked rows that learns its number of clusters, with posteriors.
        """
        _require_uniting(context.model)
        wanted = self._wanted(context.model, context.survey.n_atoms)
        require_enough_atoms(wanted, context, "UnitedKMeans")
        most = SAMPLE_NUMBERS // numbers_per_cluster(context.model.observation)
        size = min(max(min(self.sample, most), PER_CLUSTER * wanted), context.survey.n_atoms)
        executor = context.executor
        model = executor.share("init-model", context.model)
        parts = submit_atoms(context, model, choose_atoms(context, size))
        root, mass = new_root(context.rng), context.survey.total_weight
        task = executor.submit("init-united", _united, model, wanted, root, mass, *parts)
        found: Summary = executor.result(task)
        return found

    def _wanted(self, model: Model, n_atoms: int) -> int:
        """Clusters before any are united."""
        if self.n_clusters is not None:
            return self.n_clusters
        numbers = numbers_per_cluster(model.observation)
        most = int(np.clip(min(self.sample, n_atoms) // numbers, START.least, START.most))
        return max(1, min(most, n_atoms // START.atoms_each))


def unites(model: Model) -> bool:
    """Whether a model is a mixture whose number of clusters is learned, so that clusters of a sample can be united."""
    policy = model.structure.policy
    is_mixture = policy.refines_on_samples and not policy.has_windows and not model.linked
    return is_mixture and model.allocation.nonparametric and model.estimate == "posterior"


def shows_enough(model: Model) -> bool:
    """Whether a default sample has an atom for each number of as many clusters as other starts have: with more numbers
    its clusters would fit the sample alone."""
    return SAMPLE // numbers_per_cluster(model.observation) >= START.least


def _require_uniting(model: Model) -> None:
    if not unites(model):
        raise SettingError(
            f"UnitedKMeans: needs a mixture that learns its number of clusters, with estimate='posterior' and without "
            f"links; here it is {type(model.allocation).__name__}; start from BregmanKMeans(25)"
        )


def _united(model: Model, n_clusters: int, root: int, mass: float, *parts: Batch) -> Summary:
    """Task: clusters of the sampled atoms, learned and united, with their statistics scaled to the data's mass."""
    atoms, policy = gather(parts), SmallRunPolicy()
    model = replace(model, precision="double")  # as small runs of births
    summary = cut(model, atoms, n_clusters, child_rng(root), policy)
    for turn in range(START.rounds):
        if summary.n_clusters == 1:
            break
        if model.reference is not None:
            model = better_prior(model, summary)
        summary, before = _learned(model, summary, atoms, policy), summary.n_clusters
        if turn < START.apart:
            continue
        forecast = Forecast(model, mass / atoms.total_weight, policy)
        summary = forecast.unite(a_step(model, summary, atoms, all_pairs(summary.ids))).without_pairs()
        if summary.n_clusters == before:
            break
    return _sorted(summary).scale(mass / atoms.total_weight)


def _learned(model: Model, summary: Summary, atoms: Batch, policy: SmallRunPolicy) -> Summary:
    """Statistics after some steps on the sample, largest cluster first, without empty ones."""
    least = START.settled * atoms.total_weight
    found = small_rounds(model, summary, atoms, Stop(most=START.steps, least=least, drop=policy.least_share / 2))
    if found is not None:
        return _sorted(found[0])
    value = -np.inf
    for _ in range(START.steps):
        summary = without_empty(a_step(model, summary, atoms), policy.least_share / 2)
        last, value = value, best_value(model, summary)
        if value - last < least:
            break
    return _sorted(summary)


def _sorted(summary: Summary) -> Summary:
    found = summary.take(summary.ids[np.argsort(-summary["N"], kind="stable")].tolist())
    return replace(found, ids=np.arange(found.n_clusters))
