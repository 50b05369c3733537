"""Partial knowledge: labels that are known for some atoms (thesis 8.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from bnp_dask.core import Batch, Counting, Field, Summary, Survey, register
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import Key, require, shown
from bnp_dask.kernels import Resp, cluster_sums
from bnp_dask.observation.base import (
    KNOWN,
    CalmLearningObservation,
    EvidenceObservation,
    ExtrapolatingObservation,
    LeanObservation,
    LearningObservation,
    NamingObservation,
    Observation,
    ScaleShape,
    chosen_columns,
    correlated_columns,
    lags_of,
    level_keys,
)
from bnp_dask.observation.interface import (
    DrawingObservation,
    Estimates,
    Names,
    compared_by_settings,
    describe_cluster,
    each,
    estimates_of,
)
from bnp_dask.observation.missing import MarginalObservation, completed, marginalises, rows_of

FORBIDDEN = -1e12
"""Log likelihood of a label in a cluster that does not own it, nats.

It stands for minus infinity, with which zero counts could not be multiplied.  Responsibilities there are zero to the
bit, and a state with a mass of 1e-8 in the wrong cluster is worse by 10,000 nats.
"""

HALF = 0.5
"""Labelled atoms that a cluster holds before it is named by them.

A labelled step of a sequence leaves a trace in every state that is open to it.  In a mixture of digits with five labels
a class, seed 1, whose labelled rows were shared like that, traces named nine of 33 clusters, four of them wrongly;
accuracies were equal for 0.001, 0.1 and 0.5.
"""

Label = str | int


@register
@dataclass(frozen=True, eq=False)
class LabelledParams:
    """Parameters of the likelihood ``part``, and the log likelihood of each label in each cluster.

    ``table (K, L)`` is 0 for the label that a cluster takes, its owner if it has one, and :data:`FORBIDDEN` elsewhere.
    ``owner (K,)`` is the position of the label of which it holds half an atom or more, -1 for none.
    """

    part: Any
    table: np.ndarray
    owner: np.ndarray


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Labelled:
    """Likelihood of atoms of which some have a known label.

    A cluster belongs to the label of the labelled atoms that it holds, or to none.  A labelled atom can come only from
    clusters of its label, or from one of no label that is like these; an atom without a label, from any cluster.  A
    label may own several clusters.

    The label of an atom has probability 1 in the clusters that own it and 0 in all others.  This is one more term of
    the log likelihood, linear in the mass of each label in each cluster (the field ``known``, ``(K, L)``), so that the
    objective and all moves respect it: a union of clusters of two labels has probability 0.

    In mixtures q(z) of a labelled atom is one cluster, see
    :func:`bnp_dask.allocation.mixture_step.decide_labelled`; steps of sequences share out labelled atoms too.

    Parameters
    ----------
    part
        Likelihood of the atoms.
    names
        Names of the labels, ``(L,)``: texts or whole numbers.

    Notes
    -----
    :func:`bnp_dask.train` makes it from ``labels=``.  The owner of a cluster is the label with the largest mass there,
    which is the maximum-likelihood estimate of a point mass.
    """

    part: Observation
    names: tuple[Label, ...]

    def __post_init__(self) -> None:
        require("part", self.part, Observation, "Gaussian()")
        if isinstance(self.part, Labelled):
            raise SettingError("Labelled of a Labelled likelihood: give labels once")
        wrong = [name for name in self.names if not isinstance(name, (str, int))]
        if wrong or not self.names or len(set(self.names)) < len(self.names):
            raise SettingError(f"names={shown(self.names)}: needs different texts or whole numbers, at least one")

    # -- labels ---------------------------------------------------------------------------------------------------
    def owners(self, summary: Summary, least: float = 0.0) -> np.ndarray:
        """Position of the label that owns each cluster, -1 for none, ``(K,)``: with a mass above ``least`` there."""
        known = summary[KNOWN]
        return np.where(known.max(axis=1) > least, known.argmax(axis=1), -1)

    def admitted(self, summary: Summary) -> np.ndarray:
        """Position of the label whose atoms each cluster takes, ``(K,)``: its owner.

        A cluster without one takes the label whose clusters, united, best predict its atoms.  Any choice leaves the
        objective as it is, since no labelled atom is there; without one, clusters that are born of other atoms would
        stay closed to labelled ones.  -1 if no cluster has an owner, or none has an atom.
        """
        owner, mass = self.owners(summary), summary["N"]
        free, best = np.flatnonzero((owner < 0) & (mass > 0.0)), np.full(len(owner), -np.inf)
        fields = {"N": summary.fields["N"], **self.part.fields}
        out = owner.copy()
        for label in np.unique(owner[owner >= 0]) if len(free) else ():
            own = np.flatnonzero(owner == label)
            alone, both = {}, {}
            for name, field in fields.items():
                value = summary[name]
                total = value[own].sum(axis=0, keepdims=True) if field.n_cluster_axes else value
                alone[name], both[name] = total, value[free] + total if field.n_cluster_axes else value
            gain = self._worth(Summary(np.arange(len(free)), fields, both))
            gain = gain - self._worth(Summary(np.zeros(1, np.int64), fields, alone))
            better = gain > best[free]
            out[free[better]], best[free[better]] = label, gain[better]
        return out

    def _worth(self, summary: Summary) -> np.ndarray:
        """Data term of each cluster at its best parameters, without labels, ``(K,)`` nats."""
        if isinstance(self.part, EvidenceObservation):
            return self.part.evidence(summary)
        params = self.part.global_step(summary)
        return self.part.score(params, summary) - self.part.kl(params)

    def _table(self, owner: np.ndarray) -> np.ndarray:
        return np.where(owner[:, None] == np.arange(len(self.names)), 0.0, FORBIDDEN)

    def _sums(self, batch: Batch, resp: Resp) -> np.ndarray:
        """Mass of the labels in each cluster, ``(K, L)``."""
        rows = np.flatnonzero(batch.labels >= 0) if batch.labels is not None else np.zeros(0, np.int64)
        if batch.labels is None or not len(rows):
            width = resp.shape[1] if isinstance(resp, np.ndarray) else resp.n_clusters
            return np.zeros((width, len(self.names)))
        one_hot = (batch.labels[rows, None] == np.arange(len(self.names))).astype(np.float64)
        return cluster_sums(rows_of(resp, rows), one_hot)

    def _penalty(self, table: np.ndarray, summary: Summary) -> np.ndarray:
        """Log likelihood of the labels, ``(K,)`` nats."""
        return np.asarray((table * np.maximum(summary[KNOWN], 0.0)).sum(axis=1))

    # -- observation ----------------------------------------------------------------------------------------------
    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({**self.part.fields, KNOWN: Field(("cluster", KNOWN))})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {**self.part.sizes, KNOWN: len(self.names)}

    @property
    def counts(self) -> frozenset[str]:
        return frozenset((KNOWN, *(self.part.counts if isinstance(self.part, Counting) else ())))

    def with_prior(self, survey: Survey) -> Self:
        return replace(self, part=self.part.with_prior(survey))

    def check(self, batch: Batch) -> None:
        self.part.check(batch)
        labels = batch.labels
        if labels is None:
            return
        if labels.shape != (batch.n_atoms,) or labels.max(initial=-1) >= len(self.names):
            raise DataError(
                f"{batch.name}: labels of shape {labels.shape} up to {labels.max(initial=-1)}; needs one for each of "
                f"{batch.n_atoms} atoms, a position among {len(self.names)} names, or -1"
            )

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {**self.part.summarize(batch, resp), KNOWN: self._sums(batch, resp)}

    def complete(self, params: LabelledParams, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        """See :class:`bnp_dask.observation.missing.CompletingObservation`."""
        return {**completed(self.part, params.part, batch, resp), KNOWN: self._sums(batch, resp)}

    def global_step(self, summary: Summary) -> LabelledParams:
        table = self._table(self.admitted(summary))
        return LabelledParams(self.part.global_step(summary), table, self.owners(summary, HALF))

    def at_mode(self, params: LabelledParams) -> LabelledParams:
        return replace(params, part=self.part.at_mode(params.part))

    def expected_log_lik(self, params: LabelledParams, batch: Batch) -> np.ndarray:
        log_lik = self.part.expected_log_lik(params.part, batch)
        if batch.labels is not None:
            rows = np.flatnonzero(batch.labels >= 0)
            log_lik[rows] += params.table.T[batch.labels[rows]]
        return log_lik

    def score(self, params: LabelledParams, summary: Summary) -> np.ndarray:
        return self.part.score(params.part, summary) + self._penalty(params.table, summary)

    def kl(self, params: LabelledParams) -> np.ndarray:
        return self.part.kl(params.part)

    def log_prior(self, params: LabelledParams) -> np.ndarray:
        return self.part.log_prior(params.part)

    def evidence(self, summary: Summary) -> np.ndarray:
        """See :class:`bnp_dask.observation.base.EvidenceObservation`."""
        return self._worth(summary) + self._penalty(self._table(self.owners(summary)), summary)

    def log_predictive(self, params: LabelledParams, batch: Batch) -> np.ndarray:
        """Density of the atoms alone, whatever their labels."""
        return self.part.log_predictive(params.part, batch)

    def lean(self, params: LabelledParams, screened: bool) -> LabelledParams:
        """See :class:`bnp_dask.observation.base.LeanObservation`; all clusters are computed, so nothing is screened."""
        if not isinstance(self.part, LeanObservation):
            return params
        return replace(params, part=self.part.lean(params.part, False))

    # -- methods of the likelihood of the atoms ---------------------------------------------------------------------
    def with_columns(self, names: Sequence[str] | None) -> Self:
        if not isinstance(self.part, NamingObservation):
            return self
        return replace(self, part=self.part.with_columns(names))

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        return correlated_columns(self.part, n_features, names)

    @property
    def level_keys(self) -> tuple[Key, ...]:
        return level_keys(self.part)

    @property
    def chosen(self) -> tuple[str, ...] | None:
        return chosen_columns(self.part)

    @property
    def lags(self) -> int | None:
        return lags_of(self.part) or None

    @property
    def marginalises(self) -> bool:
        return marginalises(self.part)

    def impute(self, params: LabelledParams, batch: Batch, resp: np.ndarray) -> np.ndarray:
        return self._able(MarginalObservation, "takes no missing entries").impute(params.part, batch, resp)

    def draw(self, params: LabelledParams, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        found: np.ndarray = self._able(DrawingObservation, "says not how to draw atoms").draw(params.part, place, rng)
        return found

    @property
    def learns_by_default(self) -> bool:
        return isinstance(self.part, LearningObservation) and self.part.learns_by_default

    def learned(self, params: LabelledParams, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        part = self._able(LearningObservation, "has a prior that cannot be learned")
        return replace(self, part=part.learned(params.part, used, start.part, shape))

    def learned_when_calm(self, params: LabelledParams, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        part: Any = self.part
        if not isinstance(part, CalmLearningObservation):
            return self.learned(params, used, start, shape)
        return replace(self, part=part.learned_when_calm(params.part, used, start.part, shape))  # type: ignore[arg-type]

    def log_hyperprior(self, start: Self) -> float:
        part = self._able(LearningObservation, "has a prior that cannot be learned")
        value: float = part.log_hyperprior(start.part)
        return value

    def extrapolated(self, first: Self, second: Self, n_atoms: float) -> Self | None:
        part: Any = self.part
        if not isinstance(part, ExtrapolatingObservation):
            return None
        found: Any = part.extrapolated(first.part, second.part, n_atoms)  # type: ignore[arg-type]
        return None if found is None else replace(self, part=found)

    def estimates(self, params: LabelledParams, names: Names) -> Estimates:
        return {**estimates_of(self.part, params.part, names), "label": each(params.owner)}

    def describe(self, params: LabelledParams, k: int, names: Names) -> str:
        own, text = int(params.owner[k]), describe_cluster(self.part, params.part, k, names)
        return f"label {self.names[own]}; {text}" if own >= 0 else f"no label; {text}"

    def _able(self, role: type[Any], lacks: str) -> Any:
        if not isinstance(self.part, role):
            raise SettingError(f"{type(self.part).__name__} {lacks}")
        return self.part


def unlabelled(observation: Any) -> Any:
    """The likelihood of the atoms: without labels, if it has some."""
    return observation.part if isinstance(observation, Labelled) else observation


def with_part(observation: Any, part: Any) -> Any:
    """The likelihood with another one of the atoms; the other one itself if there are no labels."""
    return replace(observation, part=part) if isinstance(observation, Labelled) else part


def parted(observation: Any, summary: Summary, first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    """Whether the clusters at the positions ``first`` and ``second (M,)`` belong to two labels; None without labels."""
    if not isinstance(observation, Labelled):
        return None
    owner = observation.owners(summary)
    a, b = owner[first], owner[second]
    return np.asarray((a != b) & (a >= 0) & (b >= 0))
