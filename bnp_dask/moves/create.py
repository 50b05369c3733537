"""Tasks of births: new clusters from the atoms of a source (thesis 4.2), and the atoms themselves.

:func:`create` makes clusters from a sample of one cluster (:class:`Sample`), or from samples of a cluster and its
neighbours (:class:`Surroundings`).  A small run on the sample finds clusters, and a forecast judges them for all atoms
that the sample stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from scipy.special import gammaln

from bnp_dask.core import Batch, GroupStates, Summary, concatenate, unless_refused
from bnp_dask.initialize import (
    AnchorWords,
    Distances,
    child_rng,
    cluster_atoms,
    distances_between,
    hard_resp,
    largest_first,
    plus_plus,
    summarize_assigned,
)
from bnp_dask.kernels import Stop, scale_rows
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import Gather, Split
from bnp_dask.moves.cores import cores
from bnp_dask.moves.memory import WHOLE
from bnp_dask.moves.pairs import absorbed, all_pairs, data_gains, union_terms, unions
from bnp_dask.moves.policy import BESIDE_START, LAP, SmallRunPolicy
from bnp_dask.moves.pools import a_step, best_terms, best_value, climb, compiled, small_rounds, value_with
from bnp_dask.moves.prior import better_prior
from bnp_dask.observation import KNOWN, numbers_per_cluster
from bnp_dask.structure import Trial, Visit, at_most, members_of

WORDS = 0
"""Stands in for a width: the number of topics found by anchor words."""

RUNS = 1
"""Stands in for a width: the number of states found from runs of consecutive steps (hidden Markov models)."""

NEWBORN = (-2, -1)
"""Temporary ids of two clusters that would replace a target beside its neighbours; of more they go on downwards."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Atoms of one cluster.

    Parameters
    ----------
    atoms
        The sample.
    mass
        Mass of all atoms of the cluster that it stands for.
    widths
        Numbers of new clusters to start small runs with, or :data:`WORDS`.
    refine
        Most local and global steps before clusters are united.
    few
        Most atoms of a small run if anchor words are found in all ``atoms``; None for all.
    others
        Statistics of all other clusters, if the prior of the likelihood is learned.
    cores
        Whether starts from cores are tried too.
    """

    atoms: Batch
    mass: float
    widths: Sequence[int]
    refine: int
    few: int | None = None
    others: Summary | None = None
    cores: bool = True


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Samples of targets and of their neighbours, each standing for all of a cluster's atoms, and their statistics.

    Parameters
    ----------
    pool
        Atoms of each target, then of each neighbour; or whole groups, of which the ``posterior`` tells these atoms.
    summary
        Statistics of the clusters, in this order.
    n_targets
        Number of targets: clusters whose atoms are cut anew, as if they were one.
    widths
        Numbers of new clusters to try in their place.
    starts
        Starts of each number.
    posterior
        Beliefs about all clusters, if atoms come in groups.
    others
        Statistics of all clusters but a single target, if the prior of the likelihood is learned.
    cores
        Whether starts from cores are tried too.
    """

    pool: tuple[Batch, ...]
    summary: Summary
    n_targets: int = 1
    widths: tuple[int, ...] = (len(NEWBORN),)
    starts: int = 2
    posterior: Posterior | None = None
    others: Summary | None = None
    cores: bool = True

    def target(self, policy: SmallRunPolicy) -> Sample | None:
        """The only target by itself, with all atoms in one run; None for several targets, and for whole groups."""
        if self.n_targets > 1 or self.posterior is not None or not self.cores:
            return None
        return Sample(self.pool[0], float(self.summary["N"][0]), (), policy.steps_beside, others=self.others)


def create(
    model: Model, source: Sample | Surroundings, seed: int, key: tuple[int, ...], policy: SmallRunPolicy
) -> Summary | None:
    """Task: statistics of new clusters for the atoms of a source, or None if they are better left together.

    Alone: for each number of clusters in the widths Bregman k-means++, then full-batch steps on the sample, then
    uniting newborn clusters while that raises the objective expected for all of the target.  The best result must beat
    one cluster.  Anchor words are found in all atoms; all other steps use few of them.  The statistics are scaled to
    the target's mass.

    Beside neighbours: two clusters take the place of the target (:data:`NEWBORN`), or some clusters the place of
    several targets, and neighbours that change come with them.  The targets' atoms are cut from several starts.  All
    atoms are then assigned anew: a few times for each start, and for the best start until a step gains little.  The
    gain on a sample must exceed half a nat for each number of a new cluster and each atom that was not seen, as in a
    forecast; for as many clusters as before too, since the best of several cuts fits a sample better as well.
    """
    model = model.in_double  # parts of one cluster overlap: screening would be an extra cost
    alone = source.target(policy) if isinstance(source, Surroundings) else source
    begun = [] if alone is None or not alone.cores else _with_cores(model, alone.atoms, policy)
    if isinstance(source, Surroundings):
        found = unless_refused(_create_beside, model, source, begun, seed, key, policy, otherwise=None)
    else:
        found = _create_alone(model, source, begun, seed, key, policy)
    if found is not None or alone is None or alone.others is None or not begun:
        return found
    return unless_refused(_with_another_prior, model, alone, alone.others, begun, policy, otherwise=None)


# -- a cluster alone ------------------------------------------------------------------------------------------------
def _create_alone(
    model: Model, source: Sample, begun: list[Summary], seed: int, key: tuple[int, ...], policy: SmallRunPolicy
) -> Summary | None:
    every = atoms = source.atoms
    if WORDS in source.widths and source.few is not None:
        atoms = at_most(atoms, source.few, child_rng(seed, *key, 2))
    forecast = Forecast(model, source.mass / model.mass(atoms), policy)
    together = summarize_assigned(model, atoms, np.zeros(atoms.n_atoms, np.int64), 1)
    together = model.structure.with_ties(model, together, atoms)
    best, most = None, forecast.value(together)
    if WORDS in source.widths:
        rng = child_rng(seed, *key, WORDS)
        summary = unless_refused(_from_words, forecast, every, atoms, rng, otherwise=None)
        if summary is not None and (value := forecast.value(summary)) > most:
            best, most = summary, value
    runs = (RUNS,) if model.structure.policy.has_windows else ()
    for width in dict.fromkeys((*runs, *(w for w in source.widths if w not in (RUNS, WORDS)))):
        rng = child_rng(seed, *key, width)
        summary = unless_refused(_small_run, forecast, atoms, width, source.refine, rng, otherwise=None)
        if summary is not None and (value := forecast.value(summary)) > most:
            best, most = summary, value
    for start in begun:
        summary = unless_refused(_settled, forecast, atoms, start, source.refine, otherwise=None)
        if summary is not None and (value := forecast.value(summary)) > most:
            best, most = summary, value
    return None if best is None else _of_mass(best, source.mass)


def _with_another_prior(
    model: Model, source: Sample, others: Summary, starts: list[Summary], policy: SmallRunPolicy
) -> Summary | None:
    """Statistics of two clusters, begun with a core of the atoms, that pay once the prior is learned anew; or None.

    A prior learned from broad clusters holds a thin one to be too broad to pay, and without it the prior stays.
    """
    best, most, factor = None, 0.0, source.mass / model.mass(source.atoms)

    def learned(found: Summary, before: Model) -> tuple[Model, Summary]:
        everything = others.exchange([], replace(found, ids=-1 - np.arange(found.n_clusters)).scale(factor))
        return better_prior(before, everything), everything

    now = summarize_assigned(model, source.atoms, np.zeros(source.atoms.n_atoms, np.int64), 1)
    before = others.exchange([], replace(now, ids=np.array([-1])).scale(factor))
    worth = best_value(model, before) - Forecast(model, factor, policy).optimism(now)
    for begun in starts:
        then, _ = learned(begun, model)
        found = _settled(Forecast(then, factor, policy), source.atoms, begun, source.refine)
        if found is None:
            continue
        then, everything = learned(found, then)
        gain = best_value(then, everything) - Forecast(then, factor, policy).optimism(found) - worth
        if gain > most:
            best, most = found, gain
    return None if best is None else _of_mass(best, source.mass)


def _of_mass(found: Summary, mass: float) -> Summary:
    """Clusters with the largest first, scaled to a mass."""
    order = np.argsort(-found["N"], kind="stable")
    return found.take(found.ids[order].tolist()).scale(mass / max(float(found["N"].sum()), 1e-300))


def _small_run(forecast: Forecast, atoms: Batch, width: int, refine: int, rng: np.random.Generator) -> Summary | None:
    """Statistics of at most ``width`` clusters of the atoms, or None if they become one."""
    model, policy = forecast.model, forecast.policy
    if width == RUNS:
        labels, found = run_labels(model.structure.untied(model), atoms, rng, policy)
        return None if found < 2 else _settled(forecast, atoms, summarize_assigned(model, atoms, labels, found), refine)
    each = policy.seed_atoms if atoms.is_sparse else seed_atoms(model, policy)
    few = at_most(model.structure.alone(atoms), each * width, rng)
    begun = cut(model, few, width, rng, policy)
    return None if begun.n_clusters < 2 else _settled(forecast, atoms, begun, refine)


def _with_cores(model: Model, atoms: Batch, policy: SmallRunPolicy) -> list[Summary]:
    """Statistics of two clusters, the rows of a core and all others, largest first, for each core of the atoms.

    Only where small runs are compiled: for Gaussians of full covariance.
    """
    steps = compiled(model, atoms)
    if steps is None:
        return []
    none = 1e-6 / steps.settings.nu * np.diagonal(steps.settings.scale)
    found = cores(atoms.x, atoms.weights, steps.settings.unrecorded, none, policy)
    labels = (largest_first(inside.astype(np.int64), atoms.weights, 2) for inside in found)
    return [summarize_assigned(model, atoms, own, 2) for own in labels]


def cut(
    model: Model,
    few: Batch,
    width: int,
    rng: np.random.Generator,
    policy: SmallRunPolicy,
    distances: Distances | None = None,
) -> Summary:
    """Statistics of ``width`` clusters of a few atoms by k-means++ and k-means, largest first; of fewer if atoms are
    equal.

    ``distances`` are those between these atoms, if they are known.
    """
    steps = compiled(model, few)
    if steps is not None and width > 1:
        seeds = plus_plus(model, few, width, rng, 1, distances)
        size = len(seeds.centres)
        values = steps.kmeans(few.x, few.weights, seeds.labels, size, policy.seed_laps)
        if values is not None:
            order = np.argsort(-values["N"], kind="stable")
            own = {name: value[order] for name, value in values.items()}
            return Summary(np.arange(size), model.fields, own)
        labels, found = largest_first(seeds.labels, few.weights, size), size
    else:
        labels, found = cluster_atoms(model, few, width, rng, 1, policy.seed_laps, distances)
    return summarize_assigned(model, few, labels, found)


def seed_atoms(model: Model, policy: SmallRunPolicy) -> int:
    """Number of dense atoms for each new cluster among which k-means++ chooses.

    It needs a likelihood of every single atom, which for full covariances costs more than all other steps.
    """
    return max(policy.seed_atoms, numbers_per_cluster(model.observation) // policy.seed_numbers)


def _settled(forecast: Forecast, atoms: Batch, summary: Summary, refine: int) -> Summary | None:
    """Statistics after local steps on the atoms, of fewer clusters if that is better; None if one is left."""
    model, policy = forecast.model, forecast.policy
    # apart first: uniting clusters that are still alike would undo the split
    least = policy.settled * atoms.total_weight
    stop = Stop(most=refine, least=least, drop=policy.least_share)
    found = small_rounds(model, summary, atoms, stop)
    last, left = -np.inf, refine
    if found is not None:
        summary, left = found[0], 0
    for _ in range(left):
        posterior = model.global_step(summary)
        summary = model.local_step(posterior, atoms)
        value = sum(model.elbo(posterior, summary).values())
        summary = without_empty(summary, policy.least_share)
        if value - last < least:
            break
        last = value
    for _ in range(policy.rounds):
        before = summary.n_clusters
        summary = forecast.unite(a_step(model, summary, atoms, all_pairs(summary.ids)))
        summary = without_empty(summary.without_pairs(), policy.least_share)
        if summary.n_clusters in (1, before):
            break
    summary = forecast.thin_out(a_step(model, summary, atoms), atoms)
    return summary if summary.n_clusters > 1 else None


def _from_words(forecast: Forecast, every: Batch, atoms: Batch, rng: np.random.Generator) -> Summary | None:
    """Statistics on ``atoms`` of the topics found by anchor words of ``every`` document, or None if there is one."""
    model, policy = forecast.model, forecast.policy
    summary = AnchorWords(policy.most_topics).of_batch(model, every, int(rng.integers(2**31)))
    # anchors come from the larger sample, and so do accidents
    least = policy.least_share * atoms.n_atoms / every.n_atoms
    for _ in range(policy.steps_without):
        if summary.n_clusters < 2:
            return None
        summary = without_empty(model.local_step(model.global_step(summary), atoms), least)
    return summary if summary.n_clusters > 1 else None


def without_empty(summary: Summary, share: float) -> Summary:
    """Summary without clusters of less than one atom, or less than ``share`` of all atoms; the largest always stays."""
    least = min(max(1.0, share * float(summary["N"].sum())), float(summary["N"].max()))
    if summary["N"].min() >= least:
        return summary
    return summary.take([int(i) for i, n in zip(summary.ids, summary["N"], strict=True) if n >= least])


# -- runs of consecutive steps --------------------------------------------------------------------------------------
def run_labels(model: Model, runs: Batch, rng: np.random.Generator, policy: SmallRunPolicy) -> tuple[np.ndarray, int]:
    """Cluster of each row ``(n,)``, and the number of clusters: runs are cut into pieces and similar pieces united.

    Steps of one run stay together, so a state is split between runs.  Runs need to differ far less than single steps
    would: the cost of telling two runs apart does not grow with their length.  ``model`` is a model
    of single atoms (see :func:`bnp_dask.structure.base.Structure.untied`).
    """
    pieces = _pieces(runs.group_offsets, policy)
    piece_of_row = np.repeat(np.arange(len(pieces) - 1), np.diff(pieces))
    chosen = np.sort(rng.choice(len(pieces) - 1, min(policy.pieces, len(pieces) - 1), replace=False))
    place = np.full(len(pieces) - 1, -1)
    place[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(place[piece_of_row] >= 0)
    few = runs.take(rows)
    resp = scale_rows(hard_resp(place[piece_of_row[rows]], len(chosen)), few.weights)
    summary = _united(model, model.summarize(np.arange(len(chosen), dtype=np.int64), few, resp))
    return _nearest(model, summary, runs, piece_of_row), summary.n_clusters


def _pieces(offsets: np.ndarray, policy: SmallRunPolicy) -> np.ndarray:
    """Cuts of runs into about ``policy.pieces`` pieces, or one piece per run."""
    lengths = np.diff(offsets)
    size = max(policy.piece_steps, int(np.ceil(lengths.sum() / policy.pieces)))
    cuts = [
        np.arange(a, b, -(-(b - a) // max(1, round((b - a) / size))))
        for a, b in zip(offsets[:-1], offsets[1:], strict=True)
        if b > a
    ]
    return np.append(np.concatenate([np.zeros(0, np.int64), *cuts]), offsets[-1]).astype(np.int64)


def _united(model: Model, summary: Summary) -> Summary:
    """Unite the pair with the largest gain while any gains; labels of pieces follow a Chinese restaurant process."""
    summary = summary.without_pairs()
    pairs = all_pairs(summary.ids)
    gains = dict(zip(map(tuple, pairs.tolist()), data_gains(model, summary, pairs), strict=True))
    count = dict.fromkeys(summary.ids.tolist(), 1)
    while gains:
        # two tables of n and m guests instead of one of n + m: the seating costs the log of a ratio of factorials
        total = {
            (i, j): gain + float(gammaln(count[i] + count[j]) - gammaln(count[i]) - gammaln(count[j]))
            for (i, j), gain in gains.items()
        }
        (a, b), best = max(total.items(), key=lambda item: item[1])
        if best <= 0.0:
            break
        summary = absorbed(summary, summary.position(a), summary.position(b))
        count[a] += count.pop(b)
        gains = {p: g for p, g in gains.items() if a not in p and b not in p}
        others = np.array([[a, i] for i in summary.ids.tolist() if i != a]).reshape(-1, 2)
        new = data_gains(model, summary, others)
        gains.update({(a, int(i)): float(g) for (_, i), g in zip(others.tolist(), new, strict=True)})
    return summary


def _nearest(model: Model, summary: Summary, runs: Batch, piece_of_row: np.ndarray) -> np.ndarray:
    """Cluster under which the piece of each row is most likely, ``(n,)``."""
    params = model.observation_step(summary)
    log_lik = model.observation.expected_log_lik(params, runs.take(np.arange(runs.n_atoms)))
    by_piece = np.zeros((int(piece_of_row.max(initial=-1)) + 1, summary.n_clusters))
    np.add.at(by_piece, piece_of_row, log_lik)
    return by_piece.argmax(axis=1)[piece_of_row]


# -- the forecast ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Forecast:
    """Forecast of the objective of all atoms of a target, from a sample of them.

    Few atoms do not warrant the clusters that ten times as many do, so the statistics of the sample count ``factor``
    times.  They fit the sample better than the other atoms, by half a nat for each number estimated from it (as in
    Akaike's criterion); this is subtracted for each atom that was not seen.  If this correction exceeds the gain, the
    plain objective of the sample may still decide.
    """

    model: Model
    factor: float
    policy: SmallRunPolicy = field(default_factory=SmallRunPolicy)

    def value(self, summary: Summary) -> float:
        """The forecast, nats."""
        return self.sample_value(self._of_all(summary)) - self.optimism(summary)

    def unite(self, summary: Summary, tries: int = 1) -> Summary:
        """Merge tracked pairs, best first, while both the forecast and the sample's own objective rise.

        A union changes the data term of no other cluster, so all unions are scored once.  It ends when none of the best
        ``tries`` pairs makes both rise: their order leaves the weights of clusters out.
        """
        if not summary.n_pairs:
            return summary
        terms = best_terms(self.model, summary)
        of_all = best_terms(self.model, self._of_all(summary))
        united = union_terms(self.model, summary, summary.pairs, partial(best_terms, self.model))
        value, plain = self._value(of_all, summary), value_with(self.model, terms, summary)
        first, second = summary.positions(summary.pairs).T
        score = united - terms[first] - terms[second] + self._entropy_gains(summary)
        while summary.n_pairs:
            for best in np.argsort(-score, kind="stable")[:tries].tolist():
                a, b = int(first[best]), int(second[best])
                candidate = summary.merge(int(summary.pairs[best, 0]), int(summary.pairs[best, 1]))
                union = best_terms(self.model, unions(summary, first[[best]], second[[best]]).scale(self.factor))
                of_all_then = replaced(of_all, a, b, float(union[0]))
                terms_then = replaced(terms, a, b, float(united[best]))
                value_then = self._value(of_all_then, candidate)
                plain_then = value_with(self.model, terms_then, candidate) if value_then > value else -np.inf
                if plain_then > plain:
                    break
            else:
                return summary
            of_all, terms, value, plain = of_all_then, terms_then, value_then, plain_then
            # pairs of neither cluster stay tracked, in their order, and their clusters are the same as before
            kept = ~summary.pairs_of(summary.pairs[best])
            united, score, summary = united[kept], score[kept], candidate
            first, second = first[kept] - (first[kept] > b), second[kept] - (second[kept] > b)
        return summary

    def thin_out(self, summary: Summary, atoms: Batch) -> Summary:
        """Remove clusters, smallest first, if the others can take over their atoms (a delete on the sample)."""
        best = self.value(summary)
        for i in summary.ids[np.argsort(summary["N"], kind="stable")].tolist():
            if summary.n_clusters == 1:
                break
            candidate = summary.take(summary.ids[summary.ids != i])
            enough = best - self.policy.far * self.factor * float(summary["N"][summary.position(i)])
            for _ in range(self.policy.steps_without):
                candidate = a_step(self.model, candidate, atoms)
                value = self.value(candidate)
                if value < enough:
                    break
            if value > best:
                summary, best = candidate, value
        return summary

    def _entropy_gains(self, summary: Summary) -> np.ndarray:
        """Gain of the entropy by merging each tracked pair on the sample, ``(M,)`` nats."""
        place = summary.positions(summary.pairs)
        entropy = sum(
            summary.pair_values[name] - summary[name][place].sum(axis=1)
            for name, field in summary.fields.items()
            if field.merge == "tracked"
        )
        lost = sum(summary.pair_values[name] for name, field in summary.fields.items() if field.merge == "floor")
        return np.asarray(entropy - lost)

    def _of_all(self, summary: Summary) -> Summary:
        """Statistics expected of all atoms."""
        return summary.without_pairs().scale(self.factor)

    def _value(self, of_all: np.ndarray, summary: Summary) -> float:
        """The forecast, from the data terms of all atoms ``(K,)``."""
        return value_with(self.model, of_all, self._of_all(summary)) - self.optimism(summary)

    def sample_value(self, summary: Summary) -> float:
        """The objective of the sample alone, nats."""
        return best_value(self.model, summary)

    def optimism(self, summary: Summary) -> float:
        """Nats by which these clusters fit atoms that were not seen worse than the sample."""
        if self.factor <= 1.0:  # every atom was seen
            return 0.0
        seen = [
            np.count_nonzero(np.abs(value) > 0.5)  # words without tokens in a cluster are not estimated
            for name, value in summary.values.items()
            if name in self.model.observation.fields and name != KNOWN and summary.fields[name].n_cluster_axes
        ]
        return (self.factor - 1.0) * (summary.n_clusters + sum(seen))


def replaced(terms: np.ndarray, keep: int, drop: int, union: float) -> np.ndarray:
    """Terms of clusters ``(K,)`` after the one at ``keep`` has absorbed the one at ``drop``; a copy."""
    after = terms.copy()
    after[keep] = union
    return np.delete(after, drop)


# -- clusters beside their neighbours --------------------------------------------------------------------------------
def most_steps(policy: SmallRunPolicy, n_widths: int, n_starts: int) -> int:
    """Most local steps on a pool."""
    return n_widths * n_starts * policy.first_steps + policy.steps_beside


def _create_beside(
    model: Model, near: Surroundings, starts: list[Summary], seed: int, key: tuple[int, ...], policy: SmallRunPolicy
) -> Summary | None:
    """New clusters in place of targets, re-estimated together with the targets' neighbours.

    On 60 Gaussians of two features, 3 to 4 deviations apart, splits of single clusters ended at 46 clusters.  Of these,
    14 splits pay when the two halves are re-estimated beside the others (by 12 to 50 nats each), and 6 of them at the
    first step.
    """
    structure, mass, begun = model.structure, float(near.summary["N"].sum()), near.summary
    if near.posterior is None:
        everything, targets = concatenate(list(near.pool)), concatenate(list(near.pool[: near.n_targets]))
        unseen = max(0.0, targets.total_weight / targets.n_atoms - 1.0)
    else:
        model, everything, targets = _in_groups(model, near, near.posterior)
        if not targets.n_atoms:
            return None  # no group of the sample has a sizeable share of them
        unseen = max(0.0, mass / everything.total_weight - 1.0)
        begun = a_step(model, begun, everything)  # statistics of the sample
    now = a_step(model, begun, everything)
    before, rest = best_value(model, now), begun.take(begun.ids[near.n_targets :])
    # starts are compared in a mixture, which is much cheaper than groups
    quick, alone = structure.untied(model), structure.untied_summary(model, rest)
    atoms = replace(everything, groups=None)
    tried: dict[int, tuple[Summary, float]] = {}
    for parts in _different_parts(quick, near, starts, targets, seed, key, policy):
        both, width = _beside(quick, parts, alone), parts.n_clusters
        found = climb(quick, None, both, atoms, before, policy.first_steps, policy.at_rest)
        if width not in tried or found[1] > tried[width][1]:
            tried[width] = found
    if not tried:
        return None
    if near.posterior is not None:
        for width, (cuts, _) in tried.items():
            tied = structure.tied_summary(model, cuts, begun)
            tried[width] = climb(model, None, tied, everything, before, policy.first_steps, 0.0)
    best, _ = max(tried.values(), key=lambda one: one[1])
    # cuts that lead back to the same clusters end there
    least = policy.recut_enough * LAP.calm_gain * targets.total_weight if near.n_targets > 1 else 0.0
    steps = policy.steps_beside
    enough = policy.enough_beside if near.posterior is None else policy.enough_in_groups
    best, gain = climb(model, None, best, everything, before, steps, enough, least)
    gain = _in_order(model, best) - _in_order(model, now)
    newborn = best.ids[best.ids < 0].tolist()
    more = max(1, len(newborn) - near.n_targets)
    if gain <= more * unseen * (1 + numbers_per_cluster(model.observation)) or best["N"][: len(newborn)].min() < 1.0:
        return None
    if gain <= (policy.recut_worth if near.n_targets > 1 else 0.0):
        return None
    model.global_step(best)  # statistics without a posterior are refused here, not during planning
    little = policy.stays * float(begun["N"][: near.n_targets].sum())
    change = np.abs(best["N"][len(newborn) :] - rest["N"])
    best = best.take([*newborn, *rest.ids[change > little].tolist()])  # neighbours that hardly change may stay
    return best if near.posterior is None else best.scale(mass / everything.total_weight)


def _in_groups(model: Model, near: Surroundings, posterior: Posterior) -> tuple[Model, Batch, Batch]:
    """Model of the parts of groups in all of these clusters, these parts, and those in the targets."""
    ids = near.summary.ids.tolist()
    parts = members_of(model, posterior, concatenate(list(near.pool)), [ids, ids[: near.n_targets]])
    return model.structure.part(model, posterior, ids), parts[0], replace(parts[1], groups=None)


def _in_order(model: Model, summary: Summary) -> float:
    """Objective of a sample with the largest cluster first, as clusters are kept after a decision, nats."""
    return best_value(model, summary.take(summary.ids[np.argsort(-summary["N"], kind="stable")]))


def _different_parts(
    model: Model,
    near: Surroundings,
    begun: list[Summary],
    targets: Batch,
    seed: int,
    key: tuple[int, ...],
    policy: SmallRunPolicy,
) -> Iterator[Summary]:
    """Statistics of cuts of the targets' atoms alone, from each start whose cut no earlier start found, and from the
    clusters ``begun`` with cores."""
    distances = cache(partial(distances_between, model))  # most starts choose among the same atoms
    cuts = list[Summary]()
    for turn, width in enumerate(np.repeat(near.widths, near.starts).tolist()):
        # the first width has the key of a single target's halves
        rng = child_rng(seed, *key, BESIDE_START, turn)
        few = at_most(targets, seed_atoms(model, policy) * width, rng)
        found = cut(model, few, width, rng, policy, distances(few))
        if found.n_clusters < width or any(_is_same(found, other) for other in cuts):
            continue
        cuts.append(found)
        parts = _learned_parts(model, found, targets, policy)
        if parts is not None:
            yield parts
    for found in begun:
        parts = _learned_parts(model, found, targets, policy)
        if parts is not None:
            yield parts


def _is_same(one: Summary, other: Summary) -> bool:
    """Whether two summaries hold the same numbers."""
    alike = one.n_clusters == other.n_clusters
    return alike and all(np.array_equal(value, other[name]) for name, value in one.values.items())


def _learned_parts(model: Model, summary: Summary, atoms: Batch, policy: SmallRunPolicy) -> Summary | None:
    """Statistics of clusters of the targets' atoms alone after some steps, or None if they become fewer."""
    width = summary.n_clusters
    if width == 1:
        return summarize_assigned(model, atoms, np.zeros(atoms.n_atoms, np.int64), 1)
    stop = Stop(most=policy.first_steps, least=-np.inf, drop=policy.least_share, whole=True)
    compiled = small_rounds(model, summary, atoms, stop)
    if compiled is not None:
        return compiled[0] if compiled[0].n_clusters == width else None
    for _ in range(policy.first_steps):
        summary = without_empty(model.local_step(model.global_step(summary), atoms), policy.least_share)
        if summary.n_clusters < width:
            return None
    return summary


def _beside(model: Model, parts: Summary, rest: Summary) -> Summary:
    """One summary of newborn clusters and neighbours, the newborn first."""
    out = model.empty_summary(np.concatenate([np.arange(-parts.n_clusters, 0), rest.ids]))
    for name, declared in out.fields.items():
        if declared.n_cluster_axes:
            out.values[name][...] = np.concatenate([parts[name], rest[name]])
    return out


# -- the atoms of batches -------------------------------------------------------------------------------------------
def gather_atoms(model: Model, found: Visit, batch: Batch, gather: Gather, seed: int) -> Visit:
    """Visit of a batch with some atoms of each requested cluster, and requested whole documents."""
    rng = child_rng(seed, *gather.key)
    wanted = zip(gather.targets, gather.limits, strict=True)
    atoms = {
        target: at_most(batch, limit, rng) if target == WHOLE else model.gather(batch, found, target, limit, rng)
        for target, limit in wanted
    }
    return replace(found, members={}, shares={}, atoms=atoms)


def visit_and_split(
    posterior: Posterior,
    batch: Batch,
    pairs: np.ndarray,
    trials: tuple[Trial, ...],
    split: Split,
    seed: int,
    states: GroupStates | None = None,
) -> Visit:
    """Local step on a batch that also tries to split one cluster, using the atoms of this batch alone (4.2.3)."""
    model = posterior.model
    found = model.visit(posterior, batch, pairs, trials, (split.target,), states)
    newborn = _newborn(posterior, batch, found, split, seed)
    return replace(found, members={}, shares={}, split=split.target, newborn=newborn)


def _newborn(posterior: Posterior, batch: Batch, found: Visit, split: Split, seed: int) -> Summary | None:
    """Statistics of new clusters that take over a batch's share of a target; None if it is better left together."""
    model = posterior.model
    fresh = _fresh(posterior, batch, found, split, seed)
    if fresh is None:
        return None
    basis = replace(fresh, ids=-1 - np.arange(fresh.n_clusters))
    if not model.structure.policy.splits_at_batches:
        return basis
    trial = Trial("split", (split.target,), model.global_step(basis))
    return model.visit(posterior, batch, trials=(trial,)).parts["split"]


def _fresh(posterior: Posterior, batch: Batch, found: Visit, split: Split, seed: int) -> Summary | None:
    """New clusters of the batch's atoms of a target, or None if they are better left together."""
    model = posterior.model
    rng = child_rng(seed, *split.key)
    atoms = model.gather(batch, found, split.target, batch.n_atoms, rng)
    mass = model.mass(atoms)
    atoms = model.structure.sample(atoms, split.sample, rng)
    if atoms.n_atoms < split.min_atoms:
        return None
    part = model.structure.part(model, posterior, split.target)
    return create(part, _of_batches(split, atoms, mass), seed, (*split.key, 1), split.policy)


def newborn_of(model: Model, atoms: Batch, mass: float, split: Split, seed: int) -> Summary | None:
    """Task: new clusters of a target's atoms in new batches, or one cluster of all of them; None if they are too few.

    The statistics are scaled to the ``mass`` of these atoms.
    """
    sample = model.structure.sample(atoms, split.sample, child_rng(seed, *split.key))
    if sample.n_atoms < split.min_atoms:
        return None
    found = create(model, _of_batches(split, sample, mass), seed, (*split.key, 1), split.policy)
    if found is None:
        found = summarize_assigned(model, sample, np.zeros(sample.n_atoms, np.int64), 1)
        found = found.scale(mass / float(found["N"].sum()))
    return replace(found, ids=-1 - np.arange(found.n_clusters))


def _of_batches(split: Split, atoms: Batch, mass: float) -> Sample:
    """Sample of a target's atoms in one batch, or in new batches."""
    return Sample(atoms=atoms, mass=mass, widths=(split.fresh, 2), refine=split.refine)
