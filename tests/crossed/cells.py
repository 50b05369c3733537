"""Cells of the matrix schedule x likelihood x allocation x missing x weights x place x links: how each runs."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation.levy import GeneralizedGamma
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.data.groups import lagged
from bnp_dask.data.view import letting_miss
from bnp_dask.observation.base import LOG_BASE

LENGTHS = np.array([5, 7, 4, 8, 6, 6])
"""Rows of each group; two groups are a batch."""

TIMES = np.array([1, 2, 1, 3, 1, 2])
"""How often each group is there, in cells with weights."""

FEW = 2
"""Groups of von Mises-Fisher clusters, whose predictive densities of single atoms take long."""

MISSING = ("none", "holes")
WEIGHTS = ("none", "whole")
PLACES = ("array", "file", "memory", "http", "s3")
LINKS = ("none", "groups")

SCHEDULES: dict[str, Any] = {
    "Memoized": bnp.Memoized(laps=1),
    "FullBatch": bnp.FullBatch(laps=1),
    "Stochastic": bnp.Stochastic(laps=1),
    "Filter": bnp.Filter(),
    "ExpectationPropagation": bnp.ExpectationPropagation(laps=2),
    "TruncationFreeSVI": bnp.TruncationFreeSVI(laps=1, burn_in=1),
    "Gibbs": bnp.Gibbs(laps=3, thin=1, burn_in=1),
}
VARIATIONAL = ("Memoized", "FullBatch", "Stochastic")
SEATING = ("Filter", "ExpectationPropagation", "TruncationFreeSVI", "Gibbs")
OPENING = SEATING[:3]

ALLOCATIONS: dict[str, Any] = {
    "FiniteMixture": bnp.FiniteMixture(1.0),
    "DPMixture": bnp.DPMixture(1.0),
    "PitmanYorMixture": bnp.PitmanYorMixture(1.0, 0.3),
    "NGGPMixture": bnp.NGGPMixture(1.0, 0.1, 1.0),
    "NRMMixture": bnp.NRMMixture(GeneralizedGamma(1.0, 0.4, 1.0)),
    "LDA": bnp.LDA(0.5),
    "HDPTopics": bnp.HDPTopics(2.0, 0.5),
    "FiniteHMM": bnp.FiniteHMM(),
    "HDPHMM": bnp.HDPHMM(),
    "FiniteHMT": bnp.FiniteHMT(branching=2),
    "StrataMixture": bnp.StrataMixture(1.0, 2.0),
}
MEASURES = ("NGGPMixture", "NRMMixture")
URNS = ("DPMixture", "PitmanYorMixture", *MEASURES)
SINGLE = ("FiniteMixture", *URNS)
MIXTURES = (*SINGLE, "StrataMixture")
TOPICS = ("LDA", "HDPTopics")
CHAINS = ("FiniteHMM", "HDPHMM", "FiniteHMT")


def marginal(kind: Any, missing: bool, **settings: Any) -> Any:
    """A likelihood, which integrates over missing entries where it can."""
    if missing and "missing" in kind.__dataclass_fields__:
        settings["missing"] = "marginalise"
    return kind(**settings)


def likelihood(name: str, missing: bool) -> Any:
    """Likelihood of a cell."""
    if name == "Product of Given":
        return bnp.Product({(0,): bnp.Given(), (1, 2): bnp.DiagGaussian()})
    if name.startswith("Product"):
        second = bnp.Gaussian if name.endswith(" Gaussian") else bnp.DiagGaussian
        return bnp.Product({(0,): marginal(bnp.Poisson, missing), (1, 2): marginal(second, missing)})
    more: dict[str, Any] = {
        "AutoRegressiveGaussian": {"lags": 1},
        "FixedVarianceGaussian": {"variance": 1.0},
        "Multinomial": {"lam": 0.5},
    }
    return marginal(getattr(bnp, name), missing, **more.get(name, {}))


LIKELIHOODS = (
    "AutoRegressiveGaussian", "Gaussian", "ZeroMeanGaussian", "DiagGaussian", "FixedVarianceGaussian", "Bernoulli",
    "Categorical", "Multinomial", "Poisson", "SemiConjugateGaussian", "VonMisesFisher", "Product of Gaussian",
    "Product of DiagGaussian", "Product of Given",
)  # fmt: skip
NEVER_MISSING = (
    "AutoRegressiveGaussian", "ZeroMeanGaussian", "Multinomial", "SemiConjugateGaussian", "VonMisesFisher",
    "Product of Given",
)  # fmt: skip
"""Likelihoods that integrate over no missing entry."""

COMPLETING = ("Gaussian", "Product of Gaussian")
"""Likelihoods whose statistics of what is missing depend on beliefs."""


@dataclass(frozen=True)
class Cell:
    """One combination of settings."""

    schedule: str
    likelihood: str
    allocation: str
    missing: str
    weights: str
    place: str
    links: str

    def __str__(self) -> str:
        return "-".join(astuple(self))

    @property
    def has_groups(self) -> bool:
        """Whether rows are given in groups; documents of words are groups of their own."""
        if self.is_sparse:
            return False
        return self.allocation not in MIXTURES or self.likelihood == "AutoRegressiveGaussian"

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each group, ``(G,)``."""
        return LENGTHS[: FEW if self.likelihood == "VonMisesFisher" else None]

    @property
    def offsets(self) -> np.ndarray:
        """First row of each group, and the end of the last, ``(G + 1,)``."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def batch_size(self) -> int:
        """Rows of a batch; stochastic steps see all at once."""
        if self.schedule == "Stochastic":
            return int(self.offsets[-1])
        return int(self.lengths.max() if self.likelihood == "VonMisesFisher" else self.offsets[2])

    @property
    def times(self) -> np.ndarray:
        """How often each group is there, ``(G,)``."""
        return TIMES[: len(self.lengths)] if self.weights == "whole" else np.ones_like(self.lengths)

    @property
    def linked(self) -> np.ndarray | None:
        """Numbers of the groups of linked rows: the first rows of each group, in one batch, ``(n,)``; None for none."""
        if self.links == "none":
            return None
        most = 2 if self.likelihood == "VonMisesFisher" else 4
        place = np.concatenate([np.arange(length) for length in self.lengths])
        return np.where(place < most, np.repeat(np.arange(len(self.lengths)), self.lengths), -1)

    @property
    def is_sparse(self) -> bool:
        """Whether rows are sparse counts: steps of a sequence are dense."""
        return self.likelihood == "Multinomial" and self.allocation not in CHAINS


FACTORS = (tuple(SCHEDULES), LIKELIHOODS, tuple(ALLOCATIONS), MISSING, WEIGHTS, PLACES, LINKS)
CELLS = tuple(Cell(*levels) for levels in itertools.product(*FACTORS))


LEVELS: dict[str, Any] = {"Categorical": True, "Product of Given": "0"}
"""Columns of levels."""


# -- which cells are refused ----------------------------------------------------------------------------------------
def refusals(cell: Cell) -> list[str]:
    """Words that the error of a cell must have, one for each reason to refuse it; none where the cell runs."""
    schedule, own, allocation = cell.schedule, cell.likelihood, cell.allocation
    words: list[str] = []
    if schedule in VARIATIONAL and allocation in MEASURES:
        words.append(rf"{schedule}\(\): {allocation} has no variational objective.*schedule=Filter\(\)")
    if schedule in ("Filter", "ExpectationPropagation") and allocation not in URNS:
        words.append(rf"{schedule}\(\): {allocation} has no predictive rule.*use {'.*'.join(URNS)}")
    if schedule == "TruncationFreeSVI" and allocation not in ("DPMixture", "HDPTopics"):
        words.append(rf"{schedule}\(\): {allocation} has no sticks.*use DPMixture.*HDPTopics")
    if schedule == "TruncationFreeSVI" and allocation == "HDPTopics" and own != "Multinomial":
        words.append(rf"{schedule}\(\): HDPTopics of {own.split()[0]}.*use Multinomial\(\)")
    if schedule == "Gibbs" and allocation == "HDPTopics" and own != "Multinomial":
        words.append(rf"Gibbs\(\): topics of {own.split()[0]} are not sampled; use Multinomial\(\)")
    if schedule == "Gibbs" and allocation in ("LDA", "FiniteHMM", "FiniteHMT", "StrataMixture"):
        words.append(rf"Gibbs\(\): {allocation} is not sampled; use FiniteMixture.*{'.*'.join(URNS)}")
    if schedule in SEATING and cell.missing == "holes" and own in COMPLETING:
        words.append(rf'{schedule}\(\): Gaussian\(missing="marginalise"\).*use DiagGaussian\(missing="marginalise"\)')
    if allocation == "StrataMixture" and own != "Product of Given":
        words.append(r"StrataMixture needs to know which column holds the strata")
    if own == "AutoRegressiveGaussian" and allocation in TOPICS:
        words.append(rf"AutoRegressiveGaussian\(lags=1\).*{allocation}.*use HDPHMM, FiniteHMM or a mixture")
    if cell.links != "none" and allocation not in SINGLE:
        words.append(rf"links: atoms of {allocation} depend on their group, sequence or stratum.*train a mixture")
    if cell.links != "none" and schedule in SEATING:
        words.append(rf"links: {schedule}\(\) seats atoms one by one.*use Memoized\(\)")
    if cell.missing == "holes" and own in NEVER_MISSING:
        words.append(
            r"is nan.*([Dd]rop or impute|missing=\"marginalise\")|column 0 is missing; a row is in one stratum"
        )
    return words


# -- data -----------------------------------------------------------------------------------------------------------
@cache
def rows_of(name: str, missing: str) -> Any:
    """Rows under a likelihood, ``(36, D)``: of three clusters, in turn by groups."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(len(LENGTHS)) % 3, LENGTHS)
    n = len(label)
    points = np.array([[0.0, 0.0], [6.0, 1.0], [-5.0, 4.0]])[label] + rng.normal(size=(n, 2))
    counts = rng.poisson(np.array([[1.0, 9.0, 3.0], [9.0, 1.0, 3.0], [4.0, 4.0, 20.0]])[label]).astype(float)
    if name == "Bernoulli":
        x = rng.random((n, 4)) < np.array([[0.1, 0.9, 0.1, 0.9], [0.9, 0.1, 0.1, 0.9], [0.5, 0.9, 0.9, 0.1]])[label]
        x = x.astype(float)
    elif name == "Categorical":
        x = ((label[:, None] + (rng.random((n, 2)) < 0.2)) % 3).astype(float)
    elif name == "Multinomial":
        x = np.array([rng.multinomial(10, p) for p in rng.dirichlet(np.full(6, 0.3), 3)[label]]).astype(float)
    elif name == "Poisson":
        x = counts
    elif name == "VonMisesFisher":
        x = points / np.linalg.norm(points, axis=1, keepdims=True)
    elif name == "Product of Given":
        x = np.column_stack([np.arange(n) % 2, points])
    elif name.startswith("Product"):
        x = np.concatenate([counts[:, :1], points], axis=1)
    else:
        x = points
    if missing == "holes":
        x = np.where(rng.random(x.shape) < 0.15, np.nan, x)
        x[3] = np.nan
    return x


def data_of(cell: Cell) -> Any:
    """Rows of a cell as an array, or as sparse counts."""
    x = rows_of(cell.likelihood, cell.missing)[: cell.offsets[-1]]
    return sparse.csr_array(x) if cell.is_sparse else x


def source_of(cell: Cell, data: Any) -> Any:
    """Rows, wherever they lie, with the groups, weights and batches of a cell."""
    return bnp.as_source(
        data,
        batch_size=cell.batch_size,
        groups=cell.offsets if cell.has_groups else None,
        weights=np.repeat(cell.times, cell.lengths).astype(float) if cell.weights == "whole" else None,
        levels=LEVELS.get(cell.likelihood),
    )


# -- runs -----------------------------------------------------------------------------------------------------------
def train(cell: Cell, data: Any, **more: Any) -> Any:
    """Run a cell on data of its place."""
    model = bnp.Model(ALLOCATIONS[cell.allocation], likelihood(cell.likelihood, cell.missing == "holes"))
    schedule = SCHEDULES[cell.schedule]
    settings: dict[str, Any] = {"schedule": schedule}
    if not refusals(cell):
        if cell.schedule in VARIATIONAL:
            begun = first_posterior(cell)
            settings |= {"init": bnp.FromPosterior(begun), "collapsed": 0}
            settings |= {} if cell.schedule == "Stochastic" else {"moves": ()}
            model = begun.model
        elif cell.schedule == "Gibbs":
            settings["init"] = bnp.RandomExamples(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(model, source_of(cell, data), links=cell.linked, **settings, **more)


def first_posterior(cell: Cell) -> bnp.Posterior:
    """Where variational runs of a cell start: from a lap on rows without weights."""
    return _first_posterior(replace(cell, schedule="FullBatch", weights="none", place="array"))


@cache
def _first_posterior(cell: Cell) -> bnp.Posterior:
    model = bnp.Model(ALLOCATIONS[cell.allocation], likelihood(cell.likelihood, cell.missing == "holes"))
    settings = {"init": bnp.RandomExamples(3), "schedule": SCHEDULES["FullBatch"], "moves": (), "collapsed": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(model, source_of(cell, data_of(cell)), links=cell.linked, **settings).posterior


@dataclass(frozen=True)
class Found:
    """Numbers that a run came to."""

    elbo: tuple[float, ...]
    values: dict[str, bytes]


def found(result: Any) -> Found:
    """Numbers of a result, to the bit."""
    summary = result.posterior.summary
    return Found(tuple(row["elbo"] for row in result.history), {k: v.tobytes() for k, v in summary.values.items()})


@cache
def from_array(cell: Cell) -> Any:
    """Result of a cell's run on an array."""
    return train(cell, data_of(cell))


# -- references -----------------------------------------------------------------------------------------------------
def repeated(cell: Cell) -> Batch:
    """All rows as one batch without weights: those of weight w are there w times, in groups of their own."""
    plain = replace(cell, weights="none", schedule="Stochastic")
    model = bnp.Model(ALLOCATIONS[cell.allocation], likelihood(cell.likelihood, cell.missing == "holes"))
    batch = letting_miss(source_of(plain, data_of(cell))).reader(0)()
    times, all_lengths, begin = cell.times, cell.lengths, cell.offsets
    if cell.allocation in TOPICS and cell.has_groups:  # an atom is there again in its own group
        index, lengths = np.repeat(np.arange(batch.n_atoms), np.repeat(times, all_lengths)), all_lengths * times
    else:
        groups = np.repeat(np.arange(len(times)), times)
        index = np.concatenate([np.arange(begin[g], begin[g + 1]) for g in groups])
        lengths = all_lengths[groups]
    offsets = np.concatenate([[0], np.cumsum(lengths)]) if cell.has_groups else None
    links = None if cell.linked is None else cell.linked[index]
    return lagged(replace(batch, x=batch.x[index], weights=None, groups=offsets, links=links), model.lags)


def reference(cell: Cell) -> tuple[Summary | None, dict[str, np.ndarray]]:
    """Statistics by cluster that an exact step must give, or None; and their sums over all clusters.

    Variational schedules take one step from :func:`first_posterior`.  Others draw or depend on the order of atoms; but
    every atom is in one cluster or shared among some, so that sums over clusters are those of the data.
    """
    batch = repeated(cell)
    if cell.schedule in VARIATIONAL:
        begun = first_posterior(cell)
        step = begun.model.local_step(begun, batch)
        if cell.schedule == "Stochastic":
            rate = SCHEDULES["Stochastic"].learning_rate(0)
            step = begun.summary.scale(1.0 - rate) + step.scale(rate)
        return step, {}
    model = from_array(cell).posterior.model
    one = model.observation.summarize(batch, np.ones((batch.n_atoms, 1)))
    if cell.allocation in TOPICS:
        del one[LOG_BASE]  # words are drawn one by one there, without the coefficients of documents
    sums = {name: value[0] if value.ndim else value for name, value in one.items()}
    return None, {**sums, "N": np.asarray(model.mass(batch))}


# -- further settings -----------------------------------------------------------------------------------------------
FURTHER = (
    "responses", "labels", 'learn_concentrations="always"', "FromSample", "AnchorWords", "SampledTopics",
    "BregmanKMeans", "KMeansParallel", "ContiguousBlocks", "Responsibilities", "FromNothing",
)  # fmt: skip
"""Settings of a run beside its model, schedule and data."""

STARTS = FURTHER[4:-1]
"""Starts that make clusters from the data."""

LEARNING = ("DPMixture", "PitmanYorMixture", "LDA", "HDPTopics", "HDPHMM")
"""Allocations whose concentrations can be learned."""


@dataclass(frozen=True)
class Further:
    """One combination of a schedule, an allocation, a likelihood, and a further setting."""

    schedule: str
    likelihood: str
    allocation: str
    setting: str

    def __str__(self) -> str:
        return "-".join(astuple(self))

    @property
    def cell(self) -> Cell:
        """The cell without the setting."""
        return Cell(
            self.schedule, self.likelihood, self.allocation, missing="none", weights="none", place="array", links="none"
        )


FURTHER_FACTORS = (tuple(SCHEDULES), ("DiagGaussian", "Multinomial", "Product of Given"), tuple(ALLOCATIONS), FURTHER)
FURTHER_CELLS = tuple(Further(*levels) for levels in itertools.product(*FURTHER_FACTORS))


def further_refusals(further: Further) -> list[str]:
    """As :func:`refusals`, with the reasons of the setting."""
    schedule, allocation, setting = further.schedule, further.allocation, further.setting
    words = refusals(further.cell)
    if setting == "responses" and allocation not in TOPICS:
        words.append(rf"responses: {allocation} gives documents no shares.*use HDPTopics\(\) or LDA\(\)")
    if setting == "responses" and schedule not in VARIATIONAL:
        words.append(rf"responses: {schedule}\(\) does not look at responses.*use Memoized\(\)")
    if setting == "responses" and allocation in TOPICS and not further.cell.is_sparse:
        words.append(r"dense rows; responses belong to documents of counts.*Batch\(x, groups=..., responses=...\)")
    if setting == "labels" and allocation in TOPICS:
        words.append(rf"labels: {allocation} gives each document several topics")
    if setting == "labels" and schedule not in VARIATIONAL:
        words.append(rf"labels: {schedule}\(\) seats atoms without the likelihood of their labels; use Memoized\(\)")
    if setting.startswith("learn") and allocation not in LEARNING:
        words.append(rf"the concentrations of {allocation} cannot be learned.*use DPMixture\(\)")
    if setting.startswith("learn") and schedule not in ("Memoized", "FullBatch"):
        words.append(rf"{schedule}\(\) has no exact objective to learn concentrations with; use Memoized\(\)")
    if setting == "FromSample" and schedule != "Memoized":
        words.append(rf"FromSample: {schedule}\(\) keeps no statistics of batches; use Memoized\(\)")
    if setting in ("AnchorWords", "SampledTopics") and (
        allocation not in TOPICS or further.likelihood != "Multinomial"
    ):
        words.append(rf"{setting} starts topic models of words.*start from BregmanKMeans")
    if setting == "ContiguousBlocks" and not further.cell.has_groups and allocation not in CHAINS:
        words.append(rf"ContiguousBlocks.*{allocation} stand by themselves.*start from BregmanKMeans\(3\)")
    if setting in STARTS and schedule == "Filter":
        words.append(rf"Filter\(\): {setting} makes clusters of atoms that the filter then counts once more")
    if setting in STARTS and schedule == "ExpectationPropagation":
        words.append(r"ExpectationPropagation\(\) starts from no cluster at all.*leave init out")
    if setting in STARTS and schedule == "TruncationFreeSVI" and allocation == "HDPTopics":
        words.append(r"TruncationFreeSVI\(\) starts from no topic at all.*leave init out")
    return words


def train_further(further: Further, **more: Any) -> Any:
    """Run a cell with its further setting."""
    cell, setting = further.cell, further.setting
    always = {"learn_concentrations": "always"} if setting.startswith("learn") else {}
    model = bnp.Model(ALLOCATIONS[cell.allocation], likelihood(cell.likelihood, False), **always)
    data, n = source_of(cell, data_of(cell)), int(cell.offsets[-1])
    labels = np.repeat(np.arange(len(LENGTHS)) % 3, LENGTHS)
    starts = {
        "FromSample": bnp.FromSample(bnp.BregmanKMeans(3)),
        "AnchorWords": bnp.AnchorWords(2, min_documents=1),
        "SampledTopics": bnp.SampledTopics(2, passes=4, averaged=2),
        "BregmanKMeans": bnp.BregmanKMeans(3),
        "KMeansParallel": bnp.KMeansParallel(3),
        "ContiguousBlocks": bnp.ContiguousBlocks(3),
        "Responsibilities": bnp.Responsibilities(labels),
        "FromNothing": bnp.FromNothing(),
    }
    settings: dict[str, Any] = {"schedule": SCHEDULES[cell.schedule]}
    if setting in starts:
        settings["init"] = starts[setting]
    elif cell.schedule not in OPENING:
        settings["init"] = bnp.RandomExamples(3)
    if setting == "labels":
        settings["labels"] = np.where(np.arange(n) % 4 == 0, labels, -1)
    if setting == "responses":
        of_groups = n if cell.is_sparse else len(cell.lengths)
        settings["responses"] = np.where(np.arange(of_groups) % 3 == 2, np.nan, np.arange(of_groups) % 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(model, data, **settings, **more)
