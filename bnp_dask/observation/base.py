"""Observation models as protocols, and notes for authors of new ones.

An observation model is a frozen dataclass of prior hyperparameters (any of them None until the data are known).
Its parameters are another frozen dataclass of arrays with the cluster axis first.  Two kinds of numbers live in
the parameters: the hyperparameters of q(phi_k) (thesis eq. 3.13), and the *coefficients* of the log likelihood,
which is linear in the statistics of an atom: either expectations under q (variational inference) or a plug-in
point estimate (:meth:`Observation.at_mode`).  Everything that looks at data reads the coefficients only.

The objective of one model is assembled in ``model.py`` from the pieces below:

    variational  sum_k score_k - sum_k kl_k        (thesis eq. 3.25)
    point        sum_k score_k + sum_k log_prior_k (thesis eq. 2.74)

plus the summary's ``log_base`` where the likelihood has a base measure h(x) (thesis eq. 2.21).

Subclass ``bnp_dask.testing.ObservationSuite`` to test a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import CLUSTER, Field, Summary
from bnp_dask.core.survey import Survey
from bnp_dask.inputs.column_notation import Key
from bnp_dask.kernels.gaussian.bounds import Forms
from bnp_dask.kernels.mixture.resp import AnyResp, Resp

Params = Any
"""A frozen dataclass of arrays ``(K, ...)``; each observation model has its own."""

LOG_BASE = "log_base"
"""Name of the summary field that holds the weighted sum of log h(x), nats."""


class Observation(Protocol):
    """A likelihood of the exponential family with its conjugate prior."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Summary fields besides the count ``N``, which the model itself provides."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Length of every axis other than ``"cluster"`` that the fields name; known once the prior is."""
        ...

    def with_prior(self, survey: Survey) -> Self:
        """Likelihood with every None replaced by a value computed from the data; checks those that were given."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise DataError when the likelihood cannot have produced this batch; works before the prior is set."""
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
    """Observation model that can take sparse counts apart into tokens; topic models of them need it."""

    def summarize(self, batch: Batch, resp: AnyResp) -> dict[str, np.ndarray]:
        """As in :class:`Observation`, and for responsibilities by word, where a token is an atom."""
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
    """An observation model of counts whose words may become more; their axis is ``"word"``."""

    def with_more_words(self, size: int) -> Self:
        """The model of ``size`` words, of which the last are new to it."""
        ...


@runtime_checkable
class LevelObservation(Protocol):
    """An observation model that is about levels, which batches hold as places among them.

    See :mod:`bnp_dask.inputs.levels`.
    """

    @property
    def level_keys(self) -> tuple[Key, ...]:
        """Columns of levels, in the notation of :mod:`bnp_dask.inputs.column_notation`: by position among the features
        of the model, or by name."""
        ...


def level_keys(observation: object) -> tuple[Key, ...]:
    """Columns of levels of any observation model; none of one that is about numbers alone."""
    return observation.level_keys if isinstance(observation, LevelObservation) else ()


@runtime_checkable
class LaggedObservation(Protocol):
    """An observation model of sequences that may take the steps before each step out of plain data.

    Its batches have rows ``[x_t, x_{t-1}, ..., x_{t-lags}]``; see :mod:`bnp_dask.kernels.numeric.lags`.
    """

    @property
    def lags(self) -> int | None:
        """Steps before each that a row holds; None where data are given as such rows."""
        ...


def lags_of(observation: object) -> int:
    """Steps before each step that are to be taken out of plain sequences; 0 where data are taken as they are."""
    return (observation.lags or 0) if isinstance(observation, LaggedObservation) else 0


@runtime_checkable
class ChoosingObservation(Protocol):
    """An observation model that may be about some columns of a table only."""

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """Names of these columns; None where it is about all."""
        ...


def chosen_columns(observation: object) -> tuple[str, ...] | None:
    """The columns that any observation model chooses from a table; None where it takes all."""
    return observation.chosen if isinstance(observation, ChoosingObservation) else None


def read_as(observation: object) -> tuple[tuple[Key, ...], tuple[str, ...] | None]:
    """How a table is read for an observation model: :func:`level_keys` and :func:`chosen_columns`."""
    return level_keys(observation), chosen_columns(observation)


@runtime_checkable
class CorrelatedObservation(Protocol):
    """An observation model whose prior depends on how columns vary together."""

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        """Positions of the columns whose second moments a survey is to hold together, ``(U,)`` ascending."""
        ...


def correlated_columns(observation: object, n_features: int, names: Sequence[str] | None) -> np.ndarray:
    """These columns of any observation model; none of one that takes columns one by one."""
    if isinstance(observation, CorrelatedObservation):
        return observation.correlated(n_features, names)
    return np.zeros(0, np.int64)


@runtime_checkable
class QuadraticObservation(Protocol):
    """Observation model whose log likelihoods are quadratic forms of full rank.

    Mixtures of it then look only at the clusters that matter to an atom (see :mod:`bnp_dask.kernels.gaussian.screen`).
    """

    def forms(self, params: Params) -> Forms:
        """The log likelihood at the coefficients in use as quadratic forms."""
        ...


@runtime_checkable
class EvidenceObservation(Protocol):
    """Observation model whose evidence takes much less than its parameters do.

    Many clusters that may come about are only compared: for that nobody needs their parameters.
    """

    def evidence(self, summary: Summary) -> np.ndarray:
        """Score less KL at the optimal q(phi), that is, the log of the integral of the likelihood of a summary's atoms
        over the prior, without log h(x), ``(K,)`` nats."""
        ...


@runtime_checkable
class LeanObservation(Protocol):
    """Observation model of whose parameters local steps need only part."""

    def lean(self, params: Params, screened: bool) -> Params:
        """The coefficients of the log likelihood with as little else as can be: fewer bytes to send to workers.

        ``screened`` says whether :meth:`QuadraticObservation.forms` may be asked for what they hold.
        """
        ...


ScaleShape = Literal["diagonal", "full"]
"""Shape of a scale matrix that is learned."""


@runtime_checkable
class LearningObservation(Protocol):
    """An observation model whose prior can fit itself to the clusters.

    See :mod:`bnp_dask.kernels.gaussian.learned`.
    """

    @property
    def learns_by_default(self) -> bool:
        """Whether the prior is learned unless the user says otherwise: none of its settings was given."""
        ...

    def learned(self, params: Params, used: np.ndarray, start: Self, shape: ScaleShape) -> Self:
        """The prior whose settings raise the objective and the log hyperprior for clusters with these parameters.

        ``used (K,)`` says which clusters hold atoms: the others are as the prior is.  ``start`` is the prior that
        learning began with.
        """
        ...

    def log_hyperprior(self, start: Self) -> float:
        """Log density of the prior's settings, nats, up to a constant."""
        ...


@runtime_checkable
class RoundedObservation(Protocol):
    """An observation model that knows the resolution of its data.

    See :mod:`bnp_dask.observation.priors`.
    """

    @property
    def grain(self) -> np.ndarray | float | None:
        """Steps of the grids that the columns' values lie on, ``(D,)`` in units of the data."""
        ...


def numbers_per_cluster(observation: Observation) -> int:
    """How many numbers the statistics of one cluster hold."""
    sizes = observation.sizes
    shapes = [[sizes[d] for d in field.dims if d != CLUSTER] for field in observation.fields.values()]
    return 1 + int(sum(np.prod(shape) for shape in shapes))
