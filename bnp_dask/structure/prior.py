"""Learning of a model's prior: whether it is learned, which parts, and its term of the objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, Self, runtime_checkable

from bnp_dask.core import Summary, require_finite_terms
from bnp_dask.errors import SettingError
from bnp_dask.inputs import as_a, is_a, one_of
from bnp_dask.observation import LearningObservation, ScaleShape, can_learn
from bnp_dask.structure.protocols import WholeModel

LearnPrior = Literal["auto", "never", "diagonal", "full", "random"]
"""Values of ``learn_prior`` of :class:`~bnp_dask.model.Model`."""


LearnConcentrations = Literal["auto", "never", "always"]
"""Values of ``learn_concentrations`` of :class:`~bnp_dask.model.Model`."""


@runtime_checkable
class LearningAllocation(Protocol):
    """Allocation model whose concentrations can be learned; see :mod:`bnp_dask.allocation.concentrations`."""

    @property
    def learnable(self) -> Mapping[str, float]:
        """Settings that are learned, positive numbers by name."""
        ...

    def to_learn(self) -> Self:
        """Allocation with which learning begins."""
        ...

    def learned(self, params: Any, summary: Summary) -> Self:
        """Allocation with the concentrations that maximise objective plus log hyperprior, for these parameters."""
        ...

    def log_hyperprior(self) -> float:
        """Log density of the concentrations, nats, up to a constant."""
        ...

    @property
    def further(self) -> float:
        """Factor, 1 or more, on the logarithm of all steps of a lap together, if statistics follow only later."""
        ...


OF_POINTS = 'needs estimate="posterior": point estimates have no objective that could be compared between priors'


def require_learning(model: WholeModel) -> None:
    """Raise SettingError unless the prior can be learned as the model's settings ask."""
    one_of("learn_prior", model.learn_prior, ("auto", "never", "diagonal", "full", "random"))
    _require_learning_concentrations(model)
    if model.learn_prior in ("auto", "never"):
        return
    name, why = type(model.observation).__name__, ""
    if model.estimate == "map":
        why = OF_POINTS
    elif model.learn_prior == "random" and model.reproducible:
        why = 'eigenvalues are not the same bits on all processors; leave reproducible out, or use "diagonal"'
    elif not can_learn(model.observation):
        able = (
            "Gaussian(), DiagGaussian(), SemiConjugateGaussian(), ZeroMeanGaussian() or AutoRegressiveGaussian(), "
            "alone or in a Product"
        )
        why = f"the prior of {name} cannot be learned; leave it out, or use {able}"
    if why:
        raise SettingError(f"learn_prior={model.learn_prior!r}: {why}")


def _require_learning_concentrations(model: WholeModel) -> None:
    """Raise SettingError unless concentrations can be learned as the model's settings ask."""
    one_of("learn_concentrations", model.learn_concentrations, ("auto", "never", "always"))
    if model.learn_concentrations != "always":
        return
    name, why = type(model.allocation).__name__, ""
    if model.estimate == "map":
        why = OF_POINTS
    elif not is_a(model.allocation, LearningAllocation):
        able = "DPMixture(), PitmanYorMixture(), LDA(), HDPTopics() or HDPHMM()"
        why = f"the concentrations of {name} cannot be learned; leave it out, or use {able}"
    if why:
        raise SettingError(f'learn_concentrations="always": {why}')


def learns_by_default(model: WholeModel) -> bool:
    """Whether ``learn_prior="auto"`` learns: no setting of the prior was given, and learning was shown to help.

    It helps mixtures (benchmarks/learned_priors.py).  States of sequences keep their prior: with learning, toys of 8
    and 15 states score 0.01 and 0.05 nats a step better on held-out sequences, but recordings of motion (mocap6, angles
    alone) score up to 3.2 worse.
    """
    observation = model.observation
    is_left_open = is_a(observation, LearningObservation) and observation.learns_by_default
    is_mixture = model.estimate == "posterior" and not model.structure.is_tied
    return model.learn_prior == "auto" and is_mixture and is_left_open


def scale_shape(model: WholeModel) -> ScaleShape:
    """Shape of learned scale matrices."""
    asked = model.learn_prior
    if asked == "auto":
        return "diagonal" if model.reproducible else "random"
    return "diagonal" if asked == "never" else asked


def learner_of(model: WholeModel) -> LearningAllocation | None:
    """Allocation, if its concentrations are learned: always, or with the likelihood of a mixture that was asked to."""
    is_mixture = not (model.structure.is_tied or model.structure.has_shares)
    with_likelihood = is_mixture and model.reference is not None and model.learn_prior in ("diagonal", "full")
    asked = model.learn_concentrations
    learns = asked == "always" or (asked == "auto" and with_likelihood)
    return model.allocation if learns and is_a(model.allocation, LearningAllocation) else None


def prior_terms(model: WholeModel) -> dict[str, float]:
    """Log density of the prior's own settings, nats, if these are learned; else empty."""
    learner, value = learner_of(model), 0.0
    if model.reference is None and learner is None:
        return {}
    if model.reference is not None:
        learned, start = (as_a(part, LearningObservation) for part in (model.observation, model.reference))
        value = learned.log_hyperprior(start)
    terms = {"prior": value if learner is None else value + learner.log_hyperprior()}
    require_finite_terms(terms)
    return terms
