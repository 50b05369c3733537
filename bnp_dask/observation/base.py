"""Observation models as protocols, and notes for authors of new ones.

An observation model is a frozen dataclass of prior hyperparameters (any of them None until the data are known).
Its parameters are another frozen dataclass of arrays with the cluster axis first.  Two kinds of numbers live in
the parameters: the hyperparameters of q(phi_k) (thesis eq. 3.13), and the *coefficients* of the log likelihood,
which is linear in the statistics of an atom: either expectations under q (variational inference) or a plug-in
point estimate (:meth:`Observation.at_mode`).  All code that reads data uses the coefficients only.

The objective of one model is assembled in ``model.py`` from the pieces below:

    variational  sum_k score_k - sum_k kl_k        (thesis eq. 3.25)
    point        sum_k score_k + sum_k log_prior_k (thesis eq. 2.74)

plus the summary's ``log_base`` if the likelihood has a base measure h(x) (thesis eq. 2.21).

Subclass ``bnp_dask.testing.ObservationSuite`` to test a new one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np

from bnp_dask.core import CLUSTER, Batch, Field, Summary, Survey
from bnp_dask.inputs import Key, is_a
from bnp_dask.kernels import AnyResp, Forms, Resp, SmallRun

Params = Any
"""Frozen dataclass of arrays ``(K, ...)``; each observation model has its own."""

LOG_BASE = "log_base"
"""Name of the summary field that holds the weighted sum of log h(x), nats."""

KNOWN = "known"
"""Name of the summary field that counts known labels, and of its axis of labels; no number of it is estimated."""


class Observation(Protocol):
    """Likelihood of the exponential family with its conjugate prior."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Summary fields besides the count ``N``, which the model itself provides."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Length of every axis other than ``"cluster"`` that the fields name; known once the prior is."""
        ...

    def with_prior(self, survey: Survey) -> Self:
        """Likelihood with every None replaced by a value computed from the data; checks the given values."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise DataError if the likelihood cannot have produced this batch; works before the prior is set."""
        ...

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        """Values of :attr:`fields`; ``resp`` is already multiplied by the atoms' weights."""
        ...

    def global_step(self, summary: Summary) -> Params:
        """Optimal q(phi) given a summary (thesis eq. 3.41), with coefficients of E_q[log p(x | phi)]."""
        ...

    def at_mode(self, params: Params) -> Params:
        """q(phi) with coefficients of log p(x | phi-hat) at the point estimate of Algorithm 2.1."""
        ...

    def expected_log_lik(self, params: Params, batch: Batch) -> np.ndarray:
        """C, ``(n, K)`` nats: log likelihood at the coefficients, without log h(x) (it is the same for all k)."""
        ...

    # An observation model of counts whose tokens can be atoms of a topic model is a TokenObservation as well.

    def score(self, params: Params, summary: Summary) -> np.ndarray:
        """Sum of C over the atoms of a summary, ``(K,)`` nats: the coefficients times the statistics."""
        ...

    def kl(self, params: Params) -> np.ndarray:
        """KL(q(phi_k) || p(phi_k)), ``(K,)`` nats."""
        ...

    def log_prior(self, params: Params) -> np.ndarray:
        """Log prior at the point estimate of :meth:`at_mode`, up to a constant, ``(K,)`` nats."""
        ...

    def log_predictive(self, params: Params, batch: Batch) -> np.ndarray:
        """Log of the integral of p(x | phi) over q(phi), with h(x), ``(n, K)`` nats."""
        ...


@runtime_checkable
class TokenObservation(Protocol):
    """Observation model that can split sparse counts into tokens; topic models of sparse counts need it."""

    def summarize(self, batch: Batch, resp: AnyResp) -> dict[str, np.ndarray]:
        """As in :class:`Observation`, also for responsibilities by word, if a token is an atom."""
        ...

    def token_log_lik(self, params: Params, words: np.ndarray) -> np.ndarray:
        """C of one token of each of the words ``(R,)``, ``(R, K)`` nats, a new array."""
        ...


@runtime_checkable
class NamingObservation(Protocol):
    """Observation model whose settings may name columns of the data."""

    def with_columns(self, names: Sequence[str] | None) -> Self:
        """Likelihood with positions in place of names; SettingError for a name that is not among ``names (D,)``."""
        ...


@runtime_checkable
class WideningObservation(Protocol):
    """Observation model of counts whose vocabulary may grow; the axis of words is ``"word"``."""

    def with_more_words(self, size: int) -> Self:
        """Model of ``size`` words, of which the last are new."""
        ...


@runtime_checkable
class LevelObservation(Protocol):
    """Observation model of levels; batches hold the position of each entry's level.

    See :mod:`bnp_dask.inputs.columns`.
    """

    @property
    def level_keys(self) -> tuple[Key, ...]:
        """Columns of levels, in the notation of :mod:`bnp_dask.inputs.columns`: by position among the features
        of the model, or by name."""
        ...


def level_keys(observation: object) -> tuple[Key, ...]:
    """Columns of levels of any observation model; empty for a model of numbers alone."""
    return observation.level_keys if is_a(observation, LevelObservation) else ()


@runtime_checkable
class LaggedObservation(Protocol):
    """Observation model of sequences that may take the preceding steps of each step from plain data.

    Its batches have rows ``[x_t, x_{t-1}, ..., x_{t-lags}]``; see :mod:`bnp_dask.kernels.hmm`.
    """

    @property
    def lags(self) -> int | None:
        """Number of preceding steps in a row; None if data are given as such rows."""
        ...


def lags_of(observation: object) -> int:
    """Number of preceding steps to take from plain sequences for each step; 0 if data are used unchanged."""
    return (observation.lags or 0) if is_a(observation, LaggedObservation) else 0


@runtime_checkable
class ChoosingObservation(Protocol):
    """Observation model that may use some columns of a table only."""

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """Names of the columns used; None for all."""
        ...


def chosen_columns(observation: object) -> tuple[str, ...] | None:
    """Columns that any observation model chooses from a table; None for all."""
    return observation.chosen if is_a(observation, ChoosingObservation) else None


def read_as(observation: object) -> tuple[tuple[Key, ...], tuple[str, ...] | None]:
    """Columns by which a table is read for an observation model: :func:`level_keys` and :func:`chosen_columns`."""
    return level_keys(observation), chosen_columns(observation)


@runtime_checkable
class CorrelatedObservation(Protocol):
    """Observation model whose prior depends on joint variation of columns."""

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        """Positions of the columns whose joint second moments a survey must collect, ``(U,)`` ascending."""
        ...


def correlated_columns(observation: object, n_features: int, names: Sequence[str] | None) -> np.ndarray:
    """Columns whose joint moments any observation model needs; empty if it uses columns one by one."""
    if is_a(observation, CorrelatedObservation):
        return observation.correlated(n_features, names)
    return np.zeros(0, np.int64)


@runtime_checkable
class QuadraticObservation(Protocol):
    """Observation model whose log likelihoods are quadratic forms of full rank.

    Mixtures of it compute only the clusters that matter to an atom (see :mod:`bnp_dask.kernels.gaussian.screen`).
    """

    def forms(self, params: Params) -> Forms:
        """Log likelihood at the coefficients in use, as quadratic forms."""
        ...


@runtime_checkable
class EvidenceObservation(Protocol):
    """Observation model whose evidence is much cheaper to compute than its parameters.

    Many candidate clusters are only compared, which needs no parameters.
    """

    def evidence(self, summary: Summary) -> np.ndarray:
        """Score less KL at the optimal q(phi), that is, the log of the integral of the likelihood of a summary's atoms
        over the prior, without log h(x), ``(K,)`` nats."""
        ...


@runtime_checkable
class SmallRunObservation(Protocol):
    """Observation model with compiled steps of small runs; other models take loops over their verbs."""

    def small_run(self, gamma: float) -> SmallRun | None:
        """Compiled steps under a Dirichlet process of concentration ``gamma``.

        None for settings that they do not know, such as missing entries or many features.
        """
        ...


@runtime_checkable
class LeanObservation(Protocol):
    """Observation model whose local steps need only part of the parameters."""

    def lean(self, params: Params, screened: bool) -> Params:
        """Parameters with the coefficients of the log likelihood and little else: fewer bytes to send to workers.

        ``screened`` says whether :meth:`QuadraticObservation.forms` may be called on them.
        """
        ...


ScaleShape = Literal["diagonal", "full", "random", "held"]
"""Shape of a learned scale matrix; ``"random"``: with a distribution in place of a point, where the likelihood knows
one, else diagonal; ``"held"``: a distribution stays one, and a point stays a diagonal point."""


@runtime_checkable
class LearningObservation(Protocol):
    """Observation model whose prior can be learned from the clusters.

    See :mod:`bnp_dask.kernels.gaussian.learned`.
    """

    @property
    def learns_by_default(self) -> bool:
        """Whether the prior is learned unless the user says otherwise: none of its settings was given."""
        ...

    def learned(self, params: Params, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        """Likelihood whose prior raises the objective plus log hyperprior for clusters with these parameters.

        ``used (K,)`` marks the clusters that hold atoms: the others equal the prior.  ``start`` is the prior from which
        learning began.
        """
        ...

    def log_hyperprior(self, start: Self) -> float:
        """Log density of the prior's settings, nats, up to a constant."""
        ...


@runtime_checkable
class CalmLearningObservation(Protocol):
    """Observation model whose learned prior is held back as long as clusters still change."""

    def learned_when_calm(self, params: Params, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        """Likelihood as :meth:`LearningObservation.learned` gives it, not held back any more."""
        ...


class LearnsPrior:
    """Base of Gaussians with a learned prior, a :class:`LearningObservation` and a :class:`CalmLearningObservation`."""

    @abstractmethod
    def _learned(self, params: Params, used: np.ndarray, start: Self, shape: ScaleShape, calm: bool) -> Self:
        """See :meth:`learned`; ``calm``: clusters do not change any more, so that nothing is held back."""

    def learned(self, params: Params, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        """See :class:`LearningObservation`."""
        return self._learned(params, used, start, shape, calm=False)

    def learned_when_calm(self, params: Params, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        """See :class:`CalmLearningObservation`."""
        return self._learned(params, used, start, shape, calm=True)


@runtime_checkable
class ExtrapolatingObservation(Protocol):
    """Observation model whose learned priors can be extrapolated; with few atoms they change slowly."""

    def extrapolated(self, first: Self, second: Self, n_atoms: float) -> Self | None:
        """Likelihood with the prior to which the updates from ``first`` to ``second`` and from there to this one lead.

        None if updates need no extrapolation for so many atoms.  It need not raise the objective: callers compare.
        """
        ...


@runtime_checkable
class RoundedObservation(Protocol):
    """Observation model with a setting for the resolution of its data.

    See :mod:`bnp_dask.observation.priors`.
    """

    @property
    def grain(self) -> np.ndarray | float | None:
        """Grid step of the values of each column, ``(D,)`` in units of the data."""
        ...


def numbers_per_cluster(observation: Observation) -> int:
    """Count of numbers in the statistics of one cluster; counts of known labels are left out."""
    sizes = observation.sizes
    statistics = [field for name, field in observation.fields.items() if name != KNOWN]
    shapes = [[sizes[d] for d in field.dims if d != CLUSTER] for field in statistics]
    return 1 + int(sum(np.prod(shape) for shape in shapes))
