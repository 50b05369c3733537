"""How sure the number of clusters is: by the objective alone, by other starts, and by resampled data."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnp_dask.allocation import UnscoredAllocation
from bnp_dask.analysis import (
    MOST_STARTS,
    WINDOW,
    Tree,
    TreeUnion,
    assign_batch,
    density_of,
    objective_of,
    open_for,
    rand_index_of_table,
    require_posterior,
    runner_for,
)
from bnp_dask.analysis.tree import tree
from bnp_dask.core import Batch, Summary
from bnp_dask.data import Reader, ResampledSource, Source, View, batch_reader
from bnp_dask.errors import DataError, SettingError, answering, warn
from bnp_dask.execute import Executor, in_order
from bnp_dask.inference import Memoized, Schedule
from bnp_dask.initialize import FromPosterior, Initialization, RandomExamples
from bnp_dask.inputs import number_from, seed_of, start_of_seed, whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.observation import Labelled
from bnp_dask.structure import response_of
from bnp_dask.training.callbacks import RunInfo
from bnp_dask.training.growing.growing_run import linked_as, responding_as
from bnp_dask.training.growing.incoming import labelled_as
from bnp_dask.training.history import plain
from bnp_dask.training.results import TrainResult
from bnp_dask.training.run_settings import default_init
from bnp_dask.training.train import ConvergenceWarning, train

if TYPE_CHECKING:
    from distributed import Client

NATS = 10.0
"""Nats within which a number of clusters counts as about as good as the best.

Chosen on the first ten sets of ``benchmarks/certainty.py``: true clusters that the runs had missed cost 3 and 6 nats,
halves of true clusters 8 to 19.  On ten other sets the range then held the true K in all.
"""

ERRORS = 2.0
"""Standard errors within which a loss counts as chance: 95 % of a normal distribution, a convention."""

LAPS = 12
"""Most laps of a run with a given number of clusters near K; a guess that was not compared with others."""

WIDER = 12
"""Most clusters beyond K of the run that is united down to K + 1: it has at most 2 K + 2."""

MOST_SPLIT = 10
"""Most clusters of which a split is tried, the largest."""

SPLIT_LAPS = 4
"""Laps of the run that splits a cluster, which later laps with all clusters correct.

It begins with two random atoms: Bregman k-means split off single atoms, which never became halves.
"""

SAME_MASS = 1e-6
"""Share of the weight of the data by which the sum of the counts of clusters may differ by rounding."""

SAME_TOTALS = 1e-4
"""Share of its size by which a sum over the data, such as that of all rows, may differ: rounding, and the little mass
of clusters that a schedule gave up.

Not tuned: over the same data sums differed by 1e-16, with missing entries by 1e-8, over other rows of one law by 1e-2.
Thirty other cases (offsets, float32, centred and constant columns, labels, topics, chains, samplers) told nothing."""

SMALL = 0.25
"""Share of the mean count below which a cluster of such a run does not count, unless the posterior has one as small.

Splitting off one atom loses a few nats in any mixture, and says nothing about the data.  A quarter was not compared
with other shares.
"""

MOST_CELLS = 2000
"""Most groups of atoms with equal labels in all runs among which a consensus is sought, the largest."""

ALIKE = 0.95
"""Least adjusted Rand index at which a run with the same number of clusters counts as agreeing; a convention."""


@dataclass(frozen=True)
class Split:
    """A split of a cluster, with the exact objective over all data.

    Parameters
    ----------
    id
        The cluster.
    n_clusters
        Number of clusters with the split.
    price
        Nats of the objective that it loses.
    beside
        Clusters that were cut anew together with it.
    """

    id: int
    n_clusters: int
    price: float
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Repeat:
    """Another run on the same data, or on a sample of them.

    Parameters
    ----------
    kind
        ``"start"`` or ``"resample"``.
    seed
        Seed of the run, and of the sample.
    n_clusters
        Clusters that it found, without empty ones.
    behind
        Nats by which its objective is below the best of all runs; NaN for resampled data, whose objective differs.
    agreement
        Adjusted Rand index of its labels of the data and the posterior's labels.
    posterior
        Its posterior.
    """

    kind: Literal["start", "resample"]
    seed: int
    n_clusters: int
    behind: float
    agreement: float
    posterior: Posterior = field(repr=False)


@dataclass(frozen=True, eq=False)
class Certainty:
    """How sure the clusters of a posterior are; made by :func:`certainty`.

    Parameters
    ----------
    n_clusters
        Clusters of the posterior, K.
    low, high
        Range of K: all numbers of clusters that lose at most ``nats`` against the best known state, or at most
        two standard errors, and the numbers found in resampled data.
    nats
        Nats that count as no difference.
    losses
        Nats below the best known state for each number of clusters up to the largest that any run had, by number of
        clusters.
    errors
        Standard error of a loss, nats, by number of clusters: how far the difference of the states' log densities of
        all atoms would vary between data sets of this size.  Only numbers of which a state was compared on the data.
    united
        Unions of the posterior's tree, cheapest first: which clusters would be one next, and the nats lost.
    split
        Splits, cheapest first: splits that training tried and rejected, and with data, splits of the largest clusters.
    repeats
        Other runs.
    ids
        Ids of the posterior's clusters.
    is_open
        Whether more clusters than ``high`` may lose as little: no data were given, and the history has no price for a
        split of some cluster.
    together
        Share of the other runs in which an atom of cluster a and one of cluster b have the same label, ``(K, K)``; on
        the diagonal two atoms of the same cluster.  None without other runs.
    between
        Mean adjusted Rand index between the runs on the data as they are, with the posterior; NaN without others.
    consensus
        Posterior of the partition that agrees best with all runs, trained from there with a fixed number of clusters;
        None without other runs.
    """

    n_clusters: int
    low: int
    high: int
    nats: float
    losses: Mapping[int, float]
    errors: Mapping[int, float]
    united: tuple[TreeUnion, ...]
    split: tuple[Split, ...]
    repeats: tuple[Repeat, ...]
    ids: np.ndarray
    is_open: bool = False
    together: np.ndarray | None = None
    between: float = math.nan
    consensus: Posterior | None = field(default=None, repr=False)

    @property
    def within(self) -> tuple[int, int]:
        """Least and largest number of clusters that lose at most ``nats``, by the objective alone."""
        return _ends(self.losses, {}, self.nats)

    @property
    def starts(self) -> tuple[Repeat, ...]:
        """Other starts on the same data."""
        return tuple(one for one in self.repeats if one.kind == "start")

    @property
    def resamples(self) -> tuple[Repeat, ...]:
        """Runs on resampled data."""
        return tuple(one for one in self.repeats if one.kind == "resample")

    @property
    def n_agree(self) -> int:
        """Starts with the same number of clusters and nearly the same labels."""
        return sum(one.n_clusters == self.n_clusters and one.agreement >= ALIKE for one in self.starts)

    def to_json(self) -> str:
        """All numbers as JSON, without the posteriors; unknown values are null."""
        rows = [{name: value for name, value in vars(one).items() if name != "posterior"} for one in self.repeats]
        consensus = None if self.consensus is None else self.consensus.n_clusters
        told = {
            "n_clusters": self.n_clusters,
            "low": self.low,
            "high": self.high,
            "nats": self.nats,
            "losses": [
                {"n_clusters": k, "loss": loss, "error": self.errors.get(k)} for k, loss in sorted(self.losses.items())
            ],
            "united": [vars(one) for one in self.united],
            "split": [vars(one) for one in self.split],
            "repeats": rows,
            "ids": self.ids.tolist(),
            "is_open": self.is_open,
            "together": None if self.together is None else self.together.tolist(),
            "between": self.between,
            "consensus": consensus,
        }
        return json.dumps(plain(_without_nan(told)))

    def __repr__(self) -> str:
        head = f"K = {self.n_clusters}"
        facts = [f"{_span(*self.within)} within {self.nats:g} nats"]
        by_chance = _ends(self.losses, self.errors, self.nats)
        if by_chance != self.within:
            facts.append(f"{_span(*by_chance)} within {ERRORS:g} standard errors")
        if self.is_open:
            facts.append("more may be as good: give the data")
        if self.starts:
            ari = f"{self.between:.2f}".removeprefix("0")
            facts.append(f"{self.n_agree} of {len(self.starts)} starts agree, ARI {ari}")
        if self.resamples:
            sizes = sorted(one.n_clusters for one in self.resamples)
            facts.append(f"{_span(sizes[0], sizes[-1])} in resampled data")
        behind = self.losses[self.n_clusters]
        if behind > self.nats:
            facts.append(f"a state with {min(self.losses, key=lambda k: self.losses[k])} is {behind:.3g} nats better")
        return f"{head} ({'; '.join(facts)})"


@answering
def certainty(
    what: TrainResult | Posterior,
    data: Any = None,
    *,
    starts: int = 0,
    resamples: int = 0,
    nats: float = NATS,
    init: Initialization | None = None,
    schedule: Schedule | None = None,
    moves: Sequence[Move] | None = None,
    labels: Any = None,
    links: Any = None,
    responses: Any = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
    rng: Any = 0,
) -> Certainty:
    """How sure the number of clusters is, and which clusters belong together.

    There are four levels, and each takes in the one before:

    1. The posterior alone, with no pass over data: its tree (:func:`bnp_dask.tree`) tells which smaller numbers of
       clusters lose at most ``nats``, and the history of a result which splits were nearly accepted.
    2. ``data``: states near K are trained for some laps with a fixed number of clusters.  Downwards, the two clusters
       whose union costs least become one, then all are re-estimated, and so on until the loss is beyond ``nats`` and
       beyond chance.  Upwards, each of the largest clusters of a mixture is split by a run with two clusters on its
       atoms, then the cheapest splits are made together; and a run with about twice as many clusters is united in the
       same way, down to K + 1.  These are at most 10 runs of 4 laps and 31 of 12, and downwards one more than there are
       numbers in the range.  One pass compares the states atom by atom: a loss of at most two standard errors counts
       as chance, since other data of the same size might have said the opposite.  Topics have no standard errors.
    3. ``starts``: as many other runs from other random numbers.  The best state with each number of clusters over all
       runs and all cuts of their trees counts.
    4. ``resamples``: as many runs on the distinct atoms (documents, sequences) of bootstrap samples, by weights that
       are drawn when a batch is read, keyed by seed and batch.  So nothing is written, and samples are the same on any
       number of workers.

    Labels of all runs are compared on the data as they are, in one pass: only counts of pairs of labels are kept.

    Parameters
    ----------
    what
        Result of :func:`bnp_dask.train`, or its posterior, which has no history.
    data
        The training data, as for :func:`bnp_dask.train`, with their weights (``as_source(data, weights=...)``); None
        for the first level alone.
    starts, resamples
        Numbers of further runs.
    nats
        Nats that count as no difference, whatever the size of the data.  A difference of 10 nats is odds of 22,000
        to 1 if the bound were exact; starts of one model on small tables end up to about as far apart.
    init, schedule, moves
        As in :func:`bnp_dask.train`, for the further runs.  Their prior is the one with which the posterior ended, and
        is not learned again, so that objectives can be compared.
    labels, links, responses
        As in :func:`bnp_dask.train`, of all training data; needed if the posterior was trained with them, since its
        objective cannot be compared with that of runs without.
    batch_size, client
        As in :func:`bnp_dask.train`.
    rng
        Seed of the further runs; as in :func:`bnp_dask.train`.

    Returns
    -------
    Certainty
        Prints as ``K = 6 (5 to 7 within 10 nats; 4 of 5 starts agree, ARI .97)``; ``to_json()`` has all numbers.

    Raises
    ------
    SettingError
        ``starts`` or ``resamples`` without ``data``, or a posterior that has no tree.

    Notes
    -----
    Losses of cuts are upper bounds (:func:`bnp_dask.tree`), and so are losses of states that were searched for: the
    range by the objective may be too narrow, never too wide.  Statistics of a cluster do not tell the gain of its
    halves.  So without data only splits with a price in the history count, and ``is_open`` says that there may be
    others.

    A loss is a sum over atoms, which varies with the sample.  Clusters whose union costs less than twice its standard
    error cannot be told from one cluster by data of this size (:func:`standard_errors`).

    The consensus is the partition with the least sum, over pairs of atoms, of the difference between "same label" and
    the share of runs with the same label (Binder's loss with equal costs), found among atoms with equal labels in all
    runs by moving one group at a time from the run that agrees best with the others.

    References
    ----------
    Kishino & Hasegawa (1989), "Evaluation of the maximum likelihood estimate of the evolutionary tree topologies from
    DNA sequence data"; Vuong (1989), "Likelihood ratio tests for model selection and non-nested hypotheses";
    Binder (1978), "Bayesian cluster analysis"; Lau & Green (2007), "Bayesian model-based clustering procedures".
    """
    posterior = what.posterior if isinstance(what, TrainResult) else what
    posterior = require_posterior(posterior)
    starts = whole_number("starts", starts, 0, MOST_STARTS)
    resamples = whole_number("resamples", resamples, 0, MOST_STARTS)
    nats = number_from("nats", nats, 0.0)
    if starts + resamples and data is None:
        raise SettingError(f"starts={starts}, resamples={resamples}: needs the data, certainty(result, data, ...)")
    splits = _splits(what) if isinstance(what, TrainResult) else ()
    own = _Studied(_with_fixed_prior(posterior), nats)
    if data is None:
        priced = {i for one in splits for i in (one.id, *one.beside)}
        return own.told(splits, is_open=not priced.issuperset(posterior.ids.tolist()))
    source = _opened(posterior, data, batch_size, labels, links, responses)
    seed = seed_of(rng)
    nearby = _Nearby.of(own, source, client, seed)
    splits = _cheapest([*splits, *nearby.splits])
    if starts + resamples == 0:
        return own.told(splits, known=nearby.known, errors=_errors_of_best(nearby.known, source, client))

    def run(number: int, source: Source) -> TrainResult:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return train(
                own.model,
                source,
                init=init,
                schedule=schedule,
                moves=moves,
                client=client,
                rng=start_of_seed(seed, number),
                reproducible=own.model.reproducible,
            )

    runs = [(start_of_seed(seed, n), run(n, source).posterior) for n in range(1, starts + 1)]
    samples = []
    for n in range(starts + 1, starts + resamples + 1):
        key = start_of_seed(seed, n)
        sample = ResampledSource(source, key, by_group=own.model.structure.is_tied)
        samples.append((key, run(n, sample).posterior))
    everyone = [own.posterior, *(found for _, found in (*runs, *samples))]
    with runner_for(posterior, client) as runner:
        compared = _Compared.of(everyone, source, runner)
        start = compared.consensus(everyone, source, runner)
    consensus = _settled(start, source, schedule, client)
    known = _best_known([*nearby.known.items(), *((occupied(one), _Known.of(one)) for _, one in runs)])
    return own.told(
        splits,
        _repeats(runs, samples, compared),
        _Agreement(compared, len(runs), consensus),
        known,
        _errors_of_best(known, source, client),
    )


def _opened(posterior: Posterior, data: Any, batch_size: int | None, labels: Any, links: Any, responses: Any) -> Source:
    """The training data with labels, links and responses; SettingError if one that the run had is left out."""
    model = posterior.model
    had = {
        "labels": (labels, isinstance(model.observation, Labelled)),
        "links": (links, model.linked),
        "responses": (responses, response_of(model.allocation) is not None),
    }
    for name, (given, was_given) in had.items():
        if was_given and given is None:
            raise SettingError(
                f"the posterior was trained with {name}, and its objective counts them; give them again, "
                f"certainty(result, data, {name}=...)"
            )
    source = labelled_as(posterior, open_for(posterior, data, batch_size, weights=True), labels)
    source = source if links is None else linked_as(posterior, source, links)
    return source if responses is None else responding_as(posterior, source, responses)


def _difference_of_totals(a: Posterior, b: Posterior) -> float:
    """Largest difference of statistics of the likelihood, summed over all clusters, relative to their size.

    These sums are the same for all assignments of the same data, unless the likelihood integrates over missing entries.
    """
    assert a.summary is not None and b.summary is not None
    pairs = [(np.asarray(a.summary[name]), np.asarray(b.summary[name])) for name in a.model.observation.fields]
    # of centred columns a single cluster has the sum zero, to rounding, which says nothing about their size
    sizes = [max(float(np.abs(part).sum(axis=0).max(initial=0.0)) for part in pair) for pair in pairs]
    least = 1e-9 * max(sizes, default=0.0)
    gaps = [float(np.abs(own.sum(axis=0) - other.sum(axis=0)).max(initial=0.0)) for own, other in pairs]
    return max((gap / size for gap, size in zip(gaps, sizes, strict=True) if size > least), default=0.0)


# -- by the objective -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Agreement:
    """Agreement of ``n_starts`` starts, then of resamples, with each other."""

    compared: _Compared
    n_starts: int
    consensus: Posterior


@dataclass(frozen=True)
class _Studied:
    """A posterior whose certainty is asked for."""

    posterior: Posterior
    nats: float

    @property
    def model(self) -> Model:
        return self.posterior.model

    def told(
        self,
        splits: Sequence[Split],
        repeats: Sequence[tuple[Repeat, Tree | None]] = (),
        agreement: _Agreement | None = None,
        known: Mapping[int, _Known] = MappingProxyType({}),
        errors: Mapping[int, float] = MappingProxyType({}),
        is_open: bool = False,
    ) -> Certainty:
        """The answer from all levels."""
        own = tree(self.posterior)
        best = objective_of(self.posterior)
        values = _objectives(own, best, self.posterior)
        values[self.posterior.n_clusters] = best
        others = [
            _objectives(found, objective_of(one.posterior), one.posterior)
            for one, found in repeats
            if found is not None
        ]
        for found in ({k: one.value for k, one in known.items()}, *others):
            for k, value in found.items():
                values[k] = max(values.get(k, -np.inf), value)
        top = max(values.values())
        losses = {k: top - value for k, value in values.items()}
        for one in splits:
            loss = top - best + one.price
            losses[one.n_clusters] = min(losses.get(one.n_clusters, np.inf), loss)
        inside = [*_ends(losses, errors, self.nats)]
        inside += [one.n_clusters for one, _ in repeats if one.kind == "resample"]
        done = [
            replace(one, behind=top - objective_of(one.posterior)) if one.kind == "start" else one for one, _ in repeats
        ]
        return Certainty(
            n_clusters=self.posterior.n_clusters,
            low=min(inside),
            high=max(inside),
            nats=self.nats,
            losses=dict(sorted(losses.items())),
            errors=dict(sorted(errors.items())),
            united=own.unions,
            split=tuple(splits),
            repeats=tuple(done),
            ids=self.posterior.ids,
            is_open=is_open,
            together=None if agreement is None else agreement.compared.together(),
            between=math.nan if agreement is None else agreement.compared.between(agreement.n_starts),
            consensus=None if agreement is None else agreement.consensus,
        )


def _objectives(found: Tree, objective: float, posterior: Posterior) -> dict[int, float]:
    """Objective of each cut of a tree, nats, by number of clusters; empty clusters do not count."""
    most = occupied(posterior)
    values = objective - found.losses
    return {**{k: float(values[k - 1]) for k in range(1, most)}, most: float(values[most - 1 :].max())}


def occupied(posterior: Posterior) -> int:
    """Number of clusters with at least one atom, and one at least."""
    assert posterior.summary is not None, "it has a tree"
    return max(1, int((posterior.summary["N"] >= 1.0).sum()))


def _ends(losses: Mapping[int, float], errors: Mapping[int, float], nats: float) -> tuple[int, int]:
    """Least and largest number of clusters that lose at most ``nats``, or what data of this size show by chance."""
    inside = [k for k, loss in losses.items() if loss <= max(nats, ERRORS * errors.get(k, 0.0))]
    return min(inside), max(inside)


# -- by chance ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Known:
    """A state that was seen with the data, and its objective, nats."""

    value: float
    posterior: Posterior

    @classmethod
    def of(cls, posterior: Posterior) -> _Known:
        return cls(objective_of(posterior), posterior)


def _best_known(states: Iterable[tuple[int, _Known]]) -> dict[int, _Known]:
    """The state with the highest objective for each number of clusters."""
    best: dict[int, _Known] = {}
    for k, one in states:
        if k not in best or one.value > best[k].value:
            best[k] = one
    return best


def _errors_of_best(
    known: Mapping[int, _Known], source: Source, client: Client | Executor | str | None
) -> dict[int, float]:
    """Standard error of each state's loss against the best state, nats, by number of clusters."""
    if not known:
        return {}
    best = max(known, key=lambda k: known[k].value)
    others = [k for k in known if k != best]
    errors = standard_errors(known[best].posterior, [known[k].posterior for k in others], source, client)
    return dict(zip(others, errors.tolist(), strict=True))


def standard_errors(
    first: Posterior, others: Sequence[Posterior], source: Source, client: Client | Executor | str | None
) -> np.ndarray:
    """Standard errors of the differences of log densities of all data between ``first`` and each other one, nats.

    The difference is a sum over atoms, ``D = sum_n d_n``.  In other data of the same size from the same source it has
    about the variance ``sum_n w_n (d_n - mean)**2``, by which Kishino & Hasegawa (1989) compare trees and Vuong (1989)
    models.  A loss of the objective is such a difference less what more clusters cost, which varies far less.  A
    sequence of T steps is one unit, since its steps depend on each other: ``(d_n - T_n mean)**2``, with the mean of a
    step; a single sequence has no standard error but zero.  One pass; NaN for topics, whose documents have no density
    that could be computed.
    """
    if first.model.structure.has_shares or not others:
        return np.full(len(others), np.nan)
    with runner_for(first, client) as runner:
        shared = runner.share("states", tuple(one.light() for one in (first, *others)))
        tasks = ((f"differ-batch{b}", _moments, (shared, batch_reader(source, b))) for b in range(source.n_batches))
        steps, total, squares, across, lengths = np.sum(list(in_order(runner, tasks, WINDOW)), axis=0)
    mean = total / np.maximum(steps, np.finfo(float).tiny)
    return np.asarray(np.sqrt(np.maximum(squares - 2.0 * mean * across + mean**2 * lengths, 0.0)))


def _moments(posteriors: Sequence[Posterior], reader: Reader) -> np.ndarray:
    """Task: weighted sums of T, d, d**2, d T and T**2 over the units of a batch, ``(5, R - 1)``."""
    batch = reader()
    values = np.stack([density_of(one, lambda: batch) for one in posteriors])
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    counted = (weights > 0) & np.isfinite(values).all(axis=0)
    with np.errstate(invalid="ignore"):
        gap, length = np.where(counted, values[1:] - values[0], 0.0), counted.astype(np.float64)
    if batch.groups is not None:
        size = batch.n_groups
        unit = np.repeat(np.arange(size), np.diff(batch.groups))
        gap = np.stack([np.bincount(unit, one, size) for one in gap])
        weights = np.bincount(unit, weights * length, size) / np.maximum(np.bincount(unit, length, size), 1.0)
        length = np.bincount(unit, length, size)
    steps, lengths = np.full(len(gap), weights @ length), np.full(len(gap), weights @ length**2)
    return np.stack([steps, gap @ weights, gap**2 @ weights, (gap * length) @ weights, lengths])


@dataclass(frozen=True)
class _Nearby:
    """Watches runs with a fixed number of clusters: the best state with each number that counts.

    Clusters below ``least`` atoms do not count.
    """

    own: _Studied
    source: Source
    client: Client | Executor | str | None
    least: float
    known: dict[int, _Known] = field(default_factory=dict)
    splits: list[Split] = field(default_factory=list)

    def is_far(self, k: int) -> bool:
        """Whether ``k`` clusters lose more than ``nats`` against the posterior, and more than by chance."""
        if k not in self.known:
            return True
        loss, posterior = objective_of(self.own.posterior) - self.known[k].value, self.own.posterior
        if loss <= self.own.nats:
            return False
        error = standard_errors(posterior, [self.known[k].posterior], self.source, self.client)[0]
        return not loss <= ERRORS * error

    def on_start(self, info: RunInfo) -> None:
        """No-op."""

    def on_batch(self, done: int) -> bool | None:
        """No-op: statistics are whole at the end of a lap."""
        return None

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | None:
        assert posterior.summary is not None
        k = max(1, int((posterior.summary["N"] >= self.least).sum()))
        self.known.update(_best_known([*self.known.items(), (k, _Known.of(posterior))]))
        return None

    def on_end(self, reason: str) -> None:
        """No-op."""

    @classmethod
    def of(cls, own: _Studied, source: Source, client: Client | Executor | str | None, seed: int) -> _Nearby:
        """Runs near a posterior; none for a model without an objective, which such runs need."""
        posterior, model = own.posterior, own.model
        assert posterior.summary is not None, "it has a tree"
        counts, k = posterior.summary["N"], posterior.n_clusters
        least = max(1.0, min(SMALL * float(counts.sum()) / k, float(counts.min())))
        found = cls(own, source, client, least, {k: _Known.of(posterior)})
        if isinstance(model.allocation, UnscoredAllocation):
            return found

        def run(init: Initialization, laps: int = LAPS, of: Source = source, watched: bool = True) -> Posterior:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                return train(
                    model,
                    of,
                    init=init,
                    schedule=Memoized(laps=laps),
                    moves=(),
                    client=client,
                    callbacks=[found] if watched else [],
                    rng=seed,
                    collapsed=0,
                    reproducible=model.reproducible,
                ).posterior

        branches = tree(posterior)
        for fewer in range(k - 1, branches.least - 1, -1):
            now = run(FromPosterior(branches.cut(fewer)))
            if found.is_far(fewer):
                break
            branches = tree(now)
        most = k + min(k + 2, WIDER)
        most = most if source.n_atoms is None else min(most, source.n_atoms)
        if not model.structure.is_tied and not isinstance(model.observation, Labelled):
            found._split_each(run)  # with labels, a run on the atoms of one cluster would need a cluster for each label
        now = run(default_init(model, source.is_sparse, most, most))
        for more in range(now.n_clusters - 1, k, -1):
            now = run(FromPosterior(tree(now).cut(more)))
        assert now.summary is not None, "a run has statistics"
        there, own_mass = float(now.summary["N"].sum()), float(counts.sum())
        differ = 0.0 if model.marginalises else _difference_of_totals(posterior, now)
        if abs(there - own_mass) > SAME_MASS * own_mass:
            warn(
                f"the data have a weight of {there:,.6g} in all, and the clusters of the posterior {own_mass:,.6g}: "
                "losses compare it with runs on other data. Give the data of training with their weights, "
                "as_source(data, weights=...)"
            )
        elif differ > SAME_TOTALS:
            warn(
                f"sums over the data differ by {differ:.2g} of their size from those of the posterior: it was trained "
                "on other data, or by a schedule whose sums are estimates, such as Stochastic(). Losses compare it "
                "with runs on these data"
            )
        return found

    def _split_each(self, run: Callable[..., Posterior]) -> None:
        """Split the largest clusters one at a time; then the cheapest ones together, while they are cheap."""
        posterior = self.own.posterior
        summary, light = posterior.summary, posterior.light()
        assert summary is not None, "it has a tree"
        summary, k = summary.without_pairs(), posterior.n_clusters
        halves: dict[int, Summary] = {}
        for place in np.argsort(-summary["N"], kind="stable")[:MOST_SPLIT].tolist():
            target, new = int(summary.ids[place]), int(summary.ids.max()) + 1 + 2 * len(halves)
            if summary["N"][place] < 2.0 * self.least:
                continue
            members = MembersSource(self.source, light, target)
            try:
                two = run(RandomExamples(2), SPLIT_LAPS, members, False)
            except DataError:  # fewer than two distinct atoms
                continue
            if two.n_clusters == 2 and two.summary is not None:
                halves[target] = replace(two.summary.without_pairs(), ids=np.array([new, new + 1], np.int64))
        prices = {target: self._price({target: part}, run) for target, part in halves.items()}
        order = sorted(prices, key=lambda target: prices[target])
        self.splits.extend(Split(target, k + 1, prices[target]) for target in order if np.isfinite(prices[target]))
        for count in range(2, len(order) + 1):
            self._price({target: halves[target] for target in order[:count]}, run)
            if self.is_far(k + count):
                break

    def _price(self, halves: Mapping[int, Summary], run: Callable[..., Posterior]) -> float:
        """Nats that are lost if some clusters are replaced by their halves; infinite if these do not stay."""
        posterior = self.own.posterior
        summary = posterior.summary
        assert summary is not None, "it has a tree"
        summary, wanted = summary.without_pairs(), posterior.n_clusters + len(halves)
        for target, part in halves.items():
            summary = summary.exchange((target,), part)
        before = self.known.pop(wanted, None)
        run(FromPosterior(posterior.model.global_step(summary)))
        found = self.known.get(wanted)
        if before is not None and (found is None or before.value > found.value):
            self.known[wanted] = before
        return np.inf if found is None else objective_of(posterior) - found.value


@dataclass(frozen=True, eq=False)
class MembersReader:
    """The batch with weight zero for all atoms outside of one cluster."""

    reader: Reader
    posterior: Posterior
    target: int

    def __call__(self) -> Batch:
        batch = self.reader()
        inside = (assign_batch(self.posterior, batch)["label"] == self.target).astype(np.float64)
        return replace(batch, weights=inside if batch.weights is None else inside * batch.weights)


@dataclass(frozen=True, eq=False)
class MembersSource(View):
    """The atoms of one cluster of a posterior."""

    posterior: Posterior
    target: int

    def reader(self, index: int) -> Reader:
        return MembersReader(self.whole.reader(index), self.posterior, self.target)


def _cheapest(splits: Sequence[Split]) -> tuple[Split, ...]:
    """The cheapest split of each cluster or set of clusters, cheapest first."""
    first: dict[tuple[int, ...], Split] = {}
    for one in sorted(splits, key=lambda one: one.price):
        first.setdefault((one.id, *one.beside), one)
    return tuple(first.values())


def _splits(result: TrainResult) -> tuple[Split, ...]:
    """Rejected births of clusters that still exist, at their last trial on all data, cheapest first.

    Several targets are clusters that were cut anew together, into more clusters than before.
    """
    alive, k = {int(i) for i in result.posterior.ids}, result.posterior.n_clusters
    last: dict[tuple[int, ...], Split] = {}
    for move in result.history.moves():
        targets = tuple(int(i) for i in move["targets"])
        more = len(move["others"]) - len(targets)
        if move["kind"] != "birth" or not alive.issuperset(targets):
            continue
        if move["accepted"]:
            last.pop(targets, None)
        elif move["gain"] is not None and more > 0:
            last[targets] = Split(targets[0], k + more, -float(move["gain"]), targets[1:])
    return tuple(sorted(last.values(), key=lambda one: one.price))


def _with_fixed_prior(posterior: Posterior) -> Posterior:
    """The posterior of a model that learns no prior: runs of that model have comparable objectives."""
    return replace(
        posterior, model=replace(posterior.model, learn_prior="never", reference=None, learn_concentrations="never")
    )


def _repeats(
    runs: Sequence[tuple[int, Posterior]],
    samples: Sequence[tuple[int, Posterior]],
    compared: _Compared,
) -> list[tuple[Repeat, Tree | None]]:
    """Other runs, and the trees of runs whose objective counts."""
    out: list[tuple[Repeat, Tree | None]] = []
    for number, (seed, found) in enumerate((*runs, *samples), start=1):
        is_start = number <= len(runs)
        one = Repeat(
            kind="start" if is_start else "resample",
            seed=seed,
            n_clusters=occupied(found),
            behind=math.nan,
            agreement=rand_index_of_table(compared.table(0, number)),
            posterior=found,
        )
        out.append((one, tree(found) if is_start else None))
    return out


# -- by the labels --------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Compared:
    """Atoms with equal labels in all runs.

    ``labels (C, R)`` are the positions of clusters of R runs, ``counts (C,)`` the numbers of atoms.
    """

    labels: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, posteriors: Sequence[Posterior], source: Source, runner: Executor) -> _Compared:
        """One pass over the data."""
        shared = runner.share("runs", tuple(one.light() for one in posteriors))
        tasks = ((f"agree-batch{b}", _joint_labels, (shared, batch_reader(source, b))) for b in range(source.n_batches))
        labels, counts = np.zeros((0, len(posteriors)), np.int64), np.zeros(0, np.int64)
        for own, n in in_order(runner, tasks, WINDOW):
            labels, place = np.unique(np.concatenate([labels, own]), axis=0, return_inverse=True)
            counts = np.bincount(place.ravel(), np.concatenate([counts, n]), len(labels)).astype(np.int64)
        return cls(labels, counts)

    def table(self, a: int, b: int) -> np.ndarray:
        """Atoms by their labels in two runs."""
        rows, columns = self.labels[:, a], self.labels[:, b]
        out = np.zeros((int(rows.max(initial=0)) + 1, int(columns.max(initial=0)) + 1), np.int64)
        np.add.at(out, (rows, columns), self.counts)
        return out

    def between(self, n_starts: int) -> float:
        """Mean adjusted Rand index between the first run and the starts, all pairs."""
        pairs = [(a, b) for a in range(n_starts + 1) for b in range(a)]
        return float(np.mean([rand_index_of_table(self.table(a, b)) for a, b in pairs])) if pairs else math.nan

    def together(self) -> np.ndarray:
        """Share of the other runs in which atoms of two clusters of the first have one label, ``(K, K)``."""
        out: list[np.ndarray] = []
        for other in range(1, self.labels.shape[1]):
            table = self.table(0, other).astype(np.float64)
            share = table / np.maximum(table.sum(axis=1, keepdims=True), 1.0)
            out.append(share @ share.T)
        return np.mean(out, axis=0)

    def partition(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels ``(c, R)`` of the largest groups, and the group of the consensus for each, ``(c,)``."""
        order = np.sort(np.argsort(-self.counts, kind="stable")[:MOST_CELLS])
        labels, counts = self.labels[order], self.counts[order].astype(np.float64)
        same = (labels[:, None] == labels[None]).mean(axis=2) - 0.5
        pull = same * counts
        runs = range(labels.shape[1])
        first = max(runs, key=lambda r: sum(rand_index_of_table(self.table(r, s)) for s in runs if s != r))
        found = labels[:, first].copy()
        changed = True
        while changed:
            changed = False
            for i in np.argsort(-counts, kind="stable").tolist():
                gain = np.bincount(found, pull[i], int(found.max()) + 2)
                gain[found[i]] -= pull[i, i]
                best = int(np.argmax(gain))
                if gain[best] > gain[found[i]] + 1e-9 * counts.sum():
                    found[i], changed = best, True
        return labels, np.unique(found, return_inverse=True)[1]

    def consensus(self, posteriors: Sequence[Posterior], source: Source, runner: Executor) -> Posterior:
        """Posterior of the statistics of the consensus, with the ids of the clusters of the first that it has."""
        labels, found = self.partition()
        model, ids = posteriors[0].model, posteriors[0].ids
        counts = {tuple(row): int(n) for row, n in zip(self.labels.tolist(), self.counts, strict=True)}
        table = np.zeros((int(found.max()) + 1, len(ids)))
        for row, own in zip(labels.tolist(), found, strict=True):
            table[own, row[0]] += counts[tuple(row)]
        order = np.argsort(-table.sum(axis=1), kind="stable")
        rank = np.argsort(order)
        names, free = [], int(ids.max()) + 1
        for own in order.tolist():
            wanted = int(ids[int(np.argmax(table[own]))])
            if wanted in names:
                wanted, free = free, free + 1
            names.append(wanted)
        shared = runner.share("consensus", (tuple(one.light() for one in posteriors), labels, rank[found], names))
        tasks = ((f"unite-batch{b}", _assigned, (shared, batch_reader(source, b))) for b in range(source.n_batches))
        total: Summary | None = None
        for part in in_order(runner, tasks, WINDOW):
            total = part if total is None else total + part
        assert total is not None, "a source has batches"
        return model.global_step(total)


def _labels_of(posteriors: Sequence[Posterior], reader: Reader) -> tuple[Any, np.ndarray]:
    """A batch and the positions of its atoms' clusters in each run, ``(n, R)``."""
    batch = reader()
    labels = [one.positions(assign_batch(one, batch)["label"]) for one in posteriors]
    return batch, np.stack(labels, axis=1)


def _joint_labels(posteriors: Sequence[Posterior], reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: the distinct rows of labels of a batch, and how often each occurs."""
    labels, counts = np.unique(_labels_of(posteriors, reader)[1], axis=0, return_counts=True)
    return labels, counts


def _assigned(asked: tuple[Sequence[Posterior], np.ndarray, np.ndarray, list[int]], reader: Reader) -> Summary:
    """Task: statistics of a batch under the consensus; rows of labels that it leaves out go to the most alike row."""
    posteriors, known, found, names = asked
    batch, labels = _labels_of(posteriors, reader)
    rows, place = np.unique(labels, axis=0, return_inverse=True)
    nearest = np.array([int(np.argmax((known == row).sum(axis=1))) for row in rows])
    resp = np.zeros((len(labels), len(names)))
    resp[np.arange(len(labels)), found[nearest[place.ravel()]]] = 1.0
    weights = batch.weights
    if weights is not None:
        resp *= weights[:, None]
    return posteriors[0].model.summarize(np.array(names, np.int64), batch, resp)


def _settled(
    start: Posterior, source: Source, schedule: Schedule | None, client: Client | Executor | str | None
) -> Posterior:
    """The posterior trained from the consensus, with as many clusters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return train(
            start.model,
            source,
            init=FromPosterior(start),
            schedule=schedule,
            moves=(),
            client=client,
            reproducible=start.model.reproducible,
        ).posterior


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _without_nan(value: Any) -> Any:
    """The value with None in place of NaN, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(own) for name, own in value.items()}
    return [_without_nan(own) for own in value] if isinstance(value, list) else value
