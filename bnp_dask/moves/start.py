"""Start of a mixture from more clusters than it needs, which a sample of the data learns, splits and unites.

A run that begins with too few clusters must find each missing one by a birth, and between two births it needs many laps
over all data where clusters overlap.  Clusters that are too many come together by merges, which are cheap, and a lap on
a sample costs a small share of a lap over all data.  Where one cluster holds two, others are often too many; so all
clusters are split at once, learned beside each other, and halves that do not differ are united again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bnp_dask.core import Batch, Summary, register, unless_refused
from bnp_dask.errors import SettingError
from bnp_dask.initialize import (
    PER_CLUSTER,
    SAMPLE,
    SAMPLE_NUMBERS,
    InitContext,
    child_rng,
    choose_atoms,
    gather,
    new_root,
    require_enough_atoms,
    submit_atoms,
)
from bnp_dask.inputs import hold, whole_number
from bnp_dask.model import NO_PAIRS, Model
from bnp_dask.moves.create import Forecast, cut, without_empty
from bnp_dask.moves.memory import as_start
from bnp_dask.moves.pairs import all_pairs, data_gains, rough_allocation_gains
from bnp_dask.moves.policy import CROSS, START, MergePolicy, SmallRunPolicy
from bnp_dask.moves.pools import a_step, best_value, climb
from bnp_dask.moves.prior import better_prior
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.structure import at_most


@register
@dataclass(frozen=True)
class UnitedKMeans:
    """Clusters of a sample: many by k-means++, learned by the model itself, split, and united as far as that pays.

    Only for mixtures whose number of clusters is learned.  The prior is learned with them if the run learns it.

    Parameters
    ----------
    n_clusters
        Clusters before any are united.  Default: the number of sampled atoms over the numbers in the statistics of a
        cluster, at least 25 and at most 64; and at most one cluster for two atoms.
    sample
        Atoms drawn uniformly from the whole data set (all of them, if there are fewer), at least ten per cluster.
        Default: two atoms for each number in the statistics of these clusters, and at least 10,000.
    """

    n_clusters: int | None = None
    sample: int | None = None
    learns_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_clusters is not None:
            hold(self, "n_clusters", whole_number("n_clusters", self.n_clusters, 1))
        if self.sample is not None:
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
        numbers = numbers_per_cluster(context.model.observation)
        usual = max(SAMPLE, START.atoms_per_number * wanted * numbers) if self.sample is None else self.sample
        size = min(max(min(usual, SAMPLE_NUMBERS // numbers), PER_CLUSTER * wanted), context.survey.n_atoms)
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
        sample = SAMPLE if self.sample is None else self.sample
        most = int(np.clip(min(sample, n_atoms) // numbers, START.least, START.most))
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
    """Task: clusters of the sampled atoms, learned, split and united, with their statistics scaled to the data's mass.

    The first steps are on half of the atoms: they are far from their end.
    """
    atoms, policy, rng = gather(parts), SmallRunPolicy(), child_rng(root)
    few = at_most(atoms, -(-atoms.n_atoms // 2), rng)
    run = _Sampled(replace(model, precision="double"), few, mass, policy)  # precision as in small runs of births
    summary = cut(run.model, at_most(few, SAMPLE, rng), n_clusters, rng, policy)
    for _ in range(START.apart):
        run = run.with_better_prior(summary)
        summary, _ = run.learned(summary)
    run, best, most = replace(run, atoms=atoms), summary, -np.inf
    for _ in range(START.splits):
        then, found, value = run.settled(*run.split(best, rng))
        if not value > most:
            break
        run, best, most = then, found, value
    return _sorted(best).scale(mass / float(best["N"].sum()))


@dataclass(frozen=True, eq=False)
class _Sampled:
    """Steps on a sample whose atoms stand for ``mass`` in all."""

    model: Model
    atoms: Batch
    mass: float
    policy: SmallRunPolicy

    @property
    def forecast(self) -> Forecast:
        return Forecast(self.model, self.mass / self.atoms.total_weight, self.policy)

    def with_better_prior(self, summary: Summary) -> _Sampled:
        """The prior learned from these clusters, if the run learns it."""
        learns = self.model.reference is not None
        return replace(self, model=better_prior(self.model, summary)) if learns else self

    def learned(self, summary: Summary) -> tuple[Summary, bool]:
        """Statistics after some steps, without empty clusters, and whether the last one gained little.

        By the steps of laps: small runs of births are compiled for some hundred atoms, and take five times as long on
        10,000 atoms of 64 Gaussians in 16 dimensions.
        """
        value = -np.inf
        for _ in range(START.steps):
            before = summary.n_clusters
            summary = without_empty(self._step(summary), self.policy.least_share / 2)
            last, value = value, best_value(self.model, summary)
            if summary.n_clusters == before and value - last < START.settled * self.atoms.total_weight:
                return summary, True
        return summary, False

    def split(self, summary: Summary, rng: np.random.Generator) -> tuple[Summary, np.ndarray]:
        """Two clusters in place of each, where its atoms show two, and the ids of such pairs ``(M, 2)``."""
        few = 2 * max(self.policy.seed_atoms, numbers_per_cluster(self.model.observation))
        found = self.model.visit(self.model.global_step(summary), self.atoms, sought=summary.ids.tolist())
        parts, pairs, n = list[Summary](), list[tuple[int, int]](), 0
        for i, count in zip(summary.ids.tolist(), found.summary["N"].tolist(), strict=True):
            own = self.model.gather(self.atoms, found, i, few, rng)
            part = found.summary.take([i])
            if own.n_atoms > 2:
                halves = cut(self.model, own, 2, rng, self.policy)
                part = halves.scale(count / float(halves["N"].sum())) if halves.n_clusters == 2 else part
            parts.append(replace(part, ids=n + np.arange(part.n_clusters)))
            pairs += [(n, n + 1)] if part.n_clusters == 2 else []
            n += part.n_clusters
        return as_start(self.model, parts), np.array(pairs, np.int64).reshape(-1, 2)

    def settled(self, summary: Summary, halves: np.ndarray) -> tuple[_Sampled, Summary, float]:
        """Clusters that were learned and united until nothing unites, first each with its other half; the prior that
        was learned with them, and the forecast of the objective of all data."""
        run = self
        summary, _ = run.learned(summary)
        summary = run.united(summary, halves[np.isin(halves, summary.ids).all(axis=1)])
        for _ in range(START.rounds):
            run = run.with_better_prior(summary)
            summary, at_rest = run.learned(summary)
            before, summary = summary.n_clusters, run.united(summary, run.alike(summary))
            if at_rest and summary.n_clusters == before:
                break
        return run, summary, run.forecast.value(summary)

    def alike(self, summary: Summary) -> np.ndarray:
        """Pairs of ids whose union may pay, ``(M, 2)``: the entropy of a union can only lower their m-score."""
        pairs = all_pairs(summary.ids)
        first, second = summary.positions(pairs).reshape(-1, 2).T
        score = data_gains(self.model, summary, pairs) + rough_allocation_gains(summary["N"], first, second)
        return np.asarray(pairs[score > -MergePolicy().doubt])

    def united(self, summary: Summary, pairs: np.ndarray) -> Summary:
        """Clusters after one more step, with some ``pairs`` united as far as the forecast rises; largest first."""
        return _sorted(self.forecast.unite(self._step(summary, pairs), tries=len(pairs)).without_pairs())

    def _step(self, summary: Summary, pairs: np.ndarray = NO_PAIRS) -> Summary:
        return self.model.local_step(self.model.global_step(summary), self.atoms, pairs)

    # -- by compiled steps on few atoms ---------------------------------------------------------------------------
    def at_rest(self, summary: Summary) -> _Rested:
        """The clusters to which steps and unions lead, and the objective of the sample."""
        least, last = CROSS.settled * self.atoms.total_weight, -np.inf
        for _ in range(CROSS.rounds):
            summary, _ = climb(self.model, None, summary, self.atoms, 0.0, CROSS.steps, 0.0, least)
            summary = _sorted(without_empty(summary, self.policy.least_share))
            summary = a_step(self.model, summary, self.atoms, self.alike(summary))
            summary = _sorted(self.forecast.unite(summary, tries=summary.n_pairs).without_pairs())
            value = best_value(self.model, summary)
            if value - last < least:
                break
            last = value
        return _Rested(summary, value)

    def crossing(self, one: Summary, other: Summary, third: Summary, rng: np.random.Generator) -> Summary:
        """Clusters of two states: of each pair of alike ones either, and half of those that are like none; often one
        fewer, or one of a ``third`` state more."""
        n = one.n_clusters
        both = as_start(self.model, [one, replace(other, ids=n + np.arange(other.n_clusters))])
        pairs = np.array([(i, n + j) for i in range(n) for j in range(other.n_clusters)], np.int64)
        loss = -data_gains(self.model, both, pairs).reshape(n, -1)
        alike = _paired(loss) + [0, n]
        left = np.setdiff1d(both.ids, alike)
        chosen = [*(int(pair[rng.integers(2)]) for pair in alike), *(int(i) for i in left if rng.random() < 0.5)]
        turn = rng.integers(3)
        if turn == 0 and len(chosen) > 2:
            chosen.pop(rng.integers(len(chosen)))
        parts = [both.take(chosen)]
        if turn == 1:
            parts.append(third.take([int(rng.choice(third.ids))]))
        sizes = np.cumsum([0, *(part.n_clusters for part in parts)])
        named = [replace(part, ids=a + np.arange(part.n_clusters)) for a, part in zip(sizes, parts, strict=False)]
        return as_start(self.model, named)


@dataclass(frozen=True)
class CrossLimits:
    """When crossings end.

    Parameters
    ----------
    states
        States that are learned in all, at least three.
    patience
        Crossings in a row that leave the best state as it is.
    """

    states: int
    patience: int

    @staticmethod
    def of(n_atoms: int, n_clusters: int, numbers: int, calm: bool) -> CrossLimits | None:
        """By the work of a state, with so many ``numbers`` in a cluster; more once calm; None if too much."""
        states = int(CROSS.work / (n_atoms * n_clusters * numbers * CROSS.steps))
        if states < CROSS.least:
            return None
        return CrossLimits(min(states, CROSS.most), CROSS.calm_patience if calm else CROSS.patience)


def _paired(loss: np.ndarray) -> np.ndarray:
    """Rows and columns of ``loss (A, B)`` one to one, the pair of least loss first, ``(min(A, B), 2)``."""
    free, pairs = loss.copy(), []
    for _ in range(min(loss.shape)):
        row, column = divmod(int(free.argmin()), loss.shape[1])
        pairs.append((row, column))
        free[row], free[:, column] = np.inf, np.inf
    return np.array(pairs, np.int64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class _Rested:
    """Clusters at rest, the largest first, and their objective in nats."""

    summary: Summary
    value: float


def crossed(
    model: Model,
    atoms: Batch,
    summary: Summary,
    seed: int,
    key: tuple[int, ...],
    limits: CrossLimits,
    policy: SmallRunPolicy,
) -> Summary | None:
    """Task: statistics of clusters of all ``atoms`` that are better than the clusters of ``summary``; None if none are
    found.

    Some states are learned apart from one another, with the prior of the run, and the clusters of two at a time are
    mixed and learned on; if that is better, it takes the place of the worse of the two (a genetic search with local
    steps, as of Gribel and Vidal 2019 for k-means).  Where one state is right in one region and another in another, no
    change of few clusters leads from one to the other, but a crossing does.
    """
    model = model.in_double
    return unless_refused(_crossed, model, atoms, summary, child_rng(seed, *key), limits, policy, otherwise=None)


def _crossed(
    model: Model, atoms: Batch, summary: Summary, rng: np.random.Generator, limits: CrossLimits, policy: SmallRunPolicy
) -> Summary | None:
    run = _Sampled(model, atoms, atoms.total_weight, policy)
    own = run.at_rest(replace(summary, ids=np.arange(summary.n_clusters)))
    width = max(2, min(round(CROSS.width * summary.n_clusters), atoms.n_atoms // START.atoms_each))
    n_starts = min(CROSS.starts, limits.states // 3)
    cuts = [cut(model, at_most(atoms, SAMPLE, rng), width, rng, policy) for _ in range(n_starts)]
    states = [own, *(run.at_rest(one) for one in cuts)]
    best, failed = max(one.value for one in states), 0
    for _ in range(limits.states - len(states)):
        first, second = rng.choice(len(states), 2, replace=False).tolist()
        third = cuts[int(rng.integers(len(cuts)))]
        found = run.at_rest(run.crossing(states[first].summary, states[second].summary, third, rng))
        failed += 1
        if all(abs(found.value - one.value) > CROSS.same for one in states):
            worse = min((first, second), key=lambda n: states[n].value)
            if found.value > states[worse].value:
                states[worse] = found
        if found.value > best + CROSS.same:
            best, failed = found.value, 0
        if failed >= limits.patience:
            break
    if best <= own.value + policy.recut_worth:
        return None
    found = max(states, key=lambda one: one.value)
    return replace(found.summary, ids=-1 - np.arange(found.summary.n_clusters))


def _sorted(summary: Summary) -> Summary:
    """Largest cluster first, numbered in that order."""
    found = summary.take(summary.ids[np.argsort(-summary["N"], kind="stable")].tolist())
    return replace(found, ids=np.arange(found.n_clusters))
