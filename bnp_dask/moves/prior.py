"""Better settings of a likelihood's prior, from statistics of the whole data or of a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core import Summary
from bnp_dask.errors import NumericalError
from bnp_dask.inputs import is_a
from bnp_dask.model import Model
from bnp_dask.moves.policy import LAP
from bnp_dask.observation import (
    CalmLearningObservation,
    ExtrapolatingObservation,
    LearningObservation,
    ScaleShape,
)
from bnp_dask.structure import prior_terms, scale_shape

Tried = tuple[Model, Any, float]
"""A model, the parameters of its clusters, and the terms of the objective that depend on its prior, nats."""


def better_prior(model: Model, value: Summary, calm: bool = False, opens: bool = False) -> Model:
    """The model with a better prior of its likelihood, or the model itself; ``calm``: whether clusters are calm.

    ``opens``: whether a scale matrix that is a point may become random, which costs ten times an update.
    """
    used = value["N"] > LAP.unused
    if not used.any():
        return model
    n_atoms = float(value["N"].sum())
    params = model.observation_step(value)
    now = _worth(model, params, value)
    trail: list[Any] = [model.observation]
    shape = scale_shape(model)
    held: ScaleShape = "held" if shape == "random" else shape
    for n in range(LAP.prior_updates):
        observation = model.observation
        assert is_a(observation, LearningObservation)
        reference: Any = model.reference  # of the class of the observation
        learned: Any = observation.learned
        if calm and is_a(observation, CalmLearningObservation):
            learned = observation.learned_when_calm
        found = _tried(model, partial(learned, params, used, reference, shape if opens and n == 0 else held), value)
        if found is None or not found[2] > now:
            return model
        gain = found[2] - now
        model, params, now = found
        if gain <= LAP.prior_gain * n_atoms:
            return model
        trail.append(model.observation)
        if len(trail) == 3:
            found = _extrapolated(model, trail, n_atoms, value)
            if found is not None and found[2] > now:
                model, params, now = found
            trail = [model.observation]
    return model


def _extrapolated(model: Model, trail: list[Any], n_atoms: float, value: Summary) -> Tried | None:
    """The model with the prior to which the last two updates lead, if the likelihood knows one."""
    first, second, third = trail
    if not is_a(third, ExtrapolatingObservation):
        return None
    found = third.extrapolated(first, second, n_atoms)
    return None if found is None else _tried(model, lambda: found, value)


def _tried(model: Model, prior: Callable[[], Any], value: Summary) -> Tried | None:
    """The model with another likelihood, its parameters and their worth; None if these are not finite."""
    try:
        found = replace(model, observation=prior())
        params = found.observation_step(value)
        return found, params, _worth(found, params, value)
    except NumericalError:  # a result that is not finite is no gain
        return None


def _worth(model: Model, params: Any, value: Summary) -> float:
    """The terms of the objective that depend on the likelihood's prior, nats."""
    terms = model.data_terms(params, value)
    return float(np.sum(terms)) + sum(prior_terms(model).values())
