"""Learning of the prior at the end of a lap: settings of the prior that raise the whole-data objective.

The totals are sufficient statistics, so a better prior needs no pass over the data, and the statistics kept of batches
are valid for any prior.  The prior changes only between laps: all batches and moves of a lap are judged with one prior,
except births that pay only with the prior to which they lead (:meth:`bnp_dask.moves.judge.Judge.decide`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.allocation import LEAST, MOST, Allocation
from bnp_dask.core import Summary
from bnp_dask.errors import SettingError
from bnp_dask.inference.state import State
from bnp_dask.inputs import as_a, shown
from bnp_dask.model import Model
from bnp_dask.moves import LAP, better_prior, record
from bnp_dask.observation import Product, unlabelled, with_part
from bnp_dask.structure import LearningAllocation, counting_units, learner_of, prior_terms

CONCENTRATION = "concentration"
"""Prefix of the names of arrays that keep learned concentrations."""

PRIOR = "prior"
"""Kind of the history rows that record a change of the prior."""

POINT: Mapping[str, Any] = {"learn_prior": "diagonal", "learn_concentrations": "never"}
"""Settings under which a scale matrix stays a point, in place of "auto"."""

NONE = np.zeros(0)
"""Saved for a scale matrix that is a point and may become random."""


def learn_prior(state: State) -> list[dict[str, Any]]:
    """Raise the objective over the learned settings of the prior; returns history rows.

    The objective includes the log hyperprior, and an update that does not raise it is not made.
    """
    model = state.model
    if model.reference is None and learner_of(model) is None:
        return []
    value = state.total.value()
    better = model if model.reference is None else better_prior(model, value, state.calm, opens=True)
    better = _better_concentrations(better, value)
    if better is model:
        return []
    before = state.elbo
    posterior = better.global_step(value)
    terms = better.elbo(posterior, value)
    gain = sum(terms.values()) - before
    if not gain > 0.0:
        return []
    state.posterior, state.terms = posterior, terms
    if gain > LAP.calm_gain * float(value["N"].sum()):
        state.memory.failures.clear()  # they failed under another prior
    return [record(PRIOR, (), (), gain, True, "the objective rises")]


def prior_to_arrays(model: Model) -> dict[str, np.ndarray]:
    """The learned settings of the prior by name, for checkpoints; empty if none are learned."""
    learner = learner_of(model)
    found = {} if learner is None else learner.learnable
    own = {f"{CONCENTRATION}/{name}": np.array(value) for name, value in found.items()}
    return own if model.reference is None else own | settings_to_arrays(model)


def settings_to_arrays(model: Model) -> dict[str, np.ndarray]:
    """All numbers among the settings of the likelihood by name, also if the prior is not learned.

    Those of parts of a :class:`~bnp_dask.observation.Product` have its position before their name: ``"prior/0.nu"``.
    """
    numbers = _numbers(unlabelled(model.observation))
    return {f"{PRIOR}/{name}": np.asarray(value) for name, value in numbers.items()}


def with_saved_prior(model: Model, arrays: Mapping[str, np.ndarray]) -> Model:
    """The model with the prior in a checkpoint, if any: the run's, or one that was learned or taken from a shadow.

    Raises
    ------
    SettingError
        The settings are those of a likelihood with other parts.
    """
    own = {name: float(arrays[name]) for name in arrays if name.startswith(f"{CONCENTRATION}/")}
    if own:
        model = _with_concentrations(model, {name.removeprefix(f"{CONCENTRATION}/"): own[name] for name in own})
    names = [name for name in arrays if name.startswith(f"{PRIOR}/")]
    kept = {name.removeprefix(f"{PRIOR}/"): np.asarray(arrays[name]) for name in names}
    before = unlabelled(model.observation)
    if isinstance(before, Product) and not any("." in name for name in kept):
        # a run of version 0.3.0, whose parts learned nothing; it goes on so
        return replace(model, reference=None)
    if not names:
        return model
    was_point = any(_is_open(name) for name in _numbers(before)) and not any(_is_open(name) for name in kept)
    if was_point and model.reference is not None:
        # a run of version 0.3.0, whose scale matrix was a point; it goes on so
        model = replace(model, **{key: to for key, to in POINT.items() if getattr(model, key) == "auto"})
    settings: dict[str, Any] = {name: value if value.ndim else value.item() for name, value in kept.items()}
    return replace(model, observation=with_part(model.observation, _with_numbers(before, settings)))


def _is_open(name: str) -> bool:
    """Whether a setting, of a likelihood or of a part, tells how well a scale matrix is known; None for a point."""
    return name.rpartition(".")[2] == "doubt"


def _numbers(observation: Any) -> dict[str, Any]:
    """The numbers among the settings of a likelihood and of its parts, by name."""
    given = [f.name for f in fields(observation) if f.init] if is_dataclass(observation) else []
    found = {n: getattr(observation, n) for n in given}
    found = {n: NONE if _is_open(n) and value is None else value for n, value in found.items()}
    found = {n: value for n, value in found.items() if isinstance(value, (int, float, np.ndarray))}
    for i, part in enumerate(observation.parts if isinstance(observation, Product) else ()):
        found |= {f"{i}.{name}": value for name, value in _numbers(part).items()}
    return found


def _with_numbers(observation: Any, settings: Mapping[str, Any]) -> Any:
    """A likelihood with these numbers among its settings and those of its parts."""
    own = {name: value for name, value in settings.items() if "." not in name}
    own |= {name: None for name, value in own.items() if _is_open(name) and not np.size(value)}
    of_parts: dict[str, dict[str, Any]] = {}
    for name in settings.keys() - own.keys():
        place, _, inner = name.partition(".")
        of_parts.setdefault(place, {})[inner] = settings[name]
    found = replace(observation, **own) if own else observation
    parts = observation.parts if isinstance(observation, Product) else ()
    wanted = {str(i) for i, part in enumerate(parts) if _numbers(part)}
    if of_parts.keys() != wanted:
        raise SettingError(
            f"{type(observation).__name__}: settings of the parts {shown(sorted(of_parts))} are saved; "
            f"needs those of {shown(sorted(wanted))}"
        )
    if not parts:
        return found
    return found.with_parts([_with_numbers(part, of_parts.get(str(i), {})) for i, part in enumerate(parts)])


def _better_concentrations(model: Model, value: Summary) -> Model:
    """The model with better concentrations if they are learned, or the model itself."""
    learner = learner_of(model)
    if learner is None or not value.n_clusters:
        return model
    first, begin = model, _worth_of_allocation(model, value)
    now = begin
    for _ in range(LAP.prior_updates):
        found = replace(
            model, allocation=as_a(learner.learned(model.allocation_step(value), counting_units(value)), Allocation)
        )
        after = _worth_of_allocation(found, value)
        if not after > now:
            break
        gain, model, now = after - now, found, after
        learner = as_a(model.allocation, LearningAllocation)
        if gain <= LAP.prior_gain * float(value["N"].sum()):
            break
    return _further(first, model, begin, value) if learner.further > 1.0 else model


def _further(first: Model, found: Model, begin: float, value: Summary) -> Model:
    """The model with the logarithms of its concentrations moved further in the same direction, if the objective stays
    above ``begin``."""
    learner = as_a(found.allocation, LearningAllocation)
    before = as_a(first.allocation, LearningAllocation).learnable
    beyond = {
        n: min(max(before[n] * (new / before[n]) ** learner.further, LEAST), MOST)
        for n, new in learner.learnable.items()
    }
    far = _with_concentrations(found, beyond)
    return far if _worth_of_allocation(far, value) > begin else found


def _with_concentrations(model: Model, values: Mapping[str, float]) -> Model:
    return replace(model, allocation=replace(model.allocation, **values))  # type: ignore[type-var]


def _worth_of_allocation(model: Model, value: Summary) -> float:
    """The terms of the objective that depend on the allocation's concentrations, nats."""
    return sum((model.allocation_terms(value) | prior_terms(model)).values())
