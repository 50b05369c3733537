"""Last check of a state before it is published: its total must fit its batches, and its posterior its total.

Callbacks, moves and likelihoods of others run beside the engine, in its process.  Any damage that they did to its
statistics stops here: a state that does not fit is not published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from bnp_dask.core import Summary, Survey
from bnp_dask.errors import StoreError
from bnp_dask.inference.state import State
from bnp_dask.structure import noun_of

TOLERANCE = 1e-6
"""Share of a sum by which it may differ by rounding: far more than rounding does, and far less than a stray write."""


def require_sound(state: State, survey: Survey, what: str, loses: bool = False, besides: float = 0.0) -> None:
    """StoreError unless the total and the posterior of a state fit its batches.

    Parameters
    ----------
    state
        State of which every batch was visited, or every batch of its sample.
    survey
        Survey of all its batches, including any that were left out.
    what
        Subject of the message: ``"version 3 of runs/news"``.
    loses
        Whether atoms may have left the total with clusters that faded.
    besides
        Weight of atoms in the total that belong to none of these batches.

    Raises
    ------
    StoreError
        A statistic is not finite, or a count is negative; the mass of the total is not the weight of the batches; or
        the posterior does not follow from the total.
    """
    value = state.total.value()
    found = next(_problems(state, value, survey, loses, besides), None)
    if found is not None:
        raise StoreError(
            f"{what} is not published: {found}. The statistics were changed since the batches were folded, by a "
            "callback, a move or a likelihood that writes into arrays that it was given (take array.copy() of them), "
            "or by a fault of this package. The version published before is in force"
        )


def _problems(state: State, value: Summary, survey: Survey, loses: bool, besides: float) -> Iterator[str]:
    """Descriptions of the faults, one after the other."""
    for name, array in value.values.items():
        least = -TOLERANCE * max(1.0, array.max(initial=0.0)) if name in state.model.counts else -np.inf
        wrong = ~np.isfinite(array) | (array < least)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            cluster = (
                f" of {noun_of(state.model).one} {value.ids[place[0]]}" if value.fields[name].n_cluster_axes else ""
            )
            needed = "a count" if np.isfinite(array[place]) else "a number"
            yield f"its statistic {name!r}{cluster} is {array[place]:.6g}, and has to be {needed}"
    mass, weight = state.model.weight_in(value, survey.is_sparse), besides + _weight(state, survey)
    if mass > weight + TOLERANCE * max(1.0, weight) or (not loses and mass < weight - TOLERANCE * max(1.0, weight)):
        n_batches = survey.n_batches - len(state.lost)
        yield f"the mass of its total is {mass:.10g}, and the weights of its {n_batches} batches come to {weight:.10g}"
    held = state.posterior.summary
    if held is None or not np.array_equal(held.ids, value.ids):
        yield f"its posterior and its total are of different {noun_of(state.model).many}"
        return
    fresh = state.model.global_step(value)
    pairs = [("statistic", held.values, value.values)]
    pairs += [(part, _arrays(getattr(state.posterior, part)), _arrays(getattr(fresh, part))) for part in PARTS]
    for what, ours, theirs in pairs:
        for name in ours:
            if not _is_close(ours[name], theirs[name]):
                yield f"the {what} {name!r} of its posterior is not the one that its total gives"


PARTS = ("allocation", "observation")
"""Parameters of a posterior."""


def _weight(state: State, survey: Survey) -> float:
    """Weight of all atoms in the total, according to the survey of the batches."""
    weights = np.array(survey.batch_weights, np.float64)
    weights[list(state.lost)] = 0.0
    if state.sample is not None and not state.sample.is_whole:
        weights[state.visits < 0] = 0.0  # a run that was stopped on a sample
    return math.fsum((weights if state.weights is None else weights * state.weights).tolist())


def _arrays(params: Any, path: str = "") -> dict[str, np.ndarray]:
    """Numbers of parameters by name."""
    if is_dataclass(params):
        parts = [(f"{path}{own.name}", getattr(params, own.name)) for own in fields(params)]
    elif isinstance(params, (tuple, list)):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(params)]
    else:
        is_number = isinstance(params, (np.ndarray, np.number, float))
        return {path: np.asarray(params)} if is_number and np.asarray(params).dtype.kind in "iuf" else {}
    return {name: array for where, part in parts for name, array in _arrays(part, where).items()}


def _is_close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether arrays are equal to rounding."""
    least = TOLERANCE * min(float(np.abs(theirs).max(initial=0.0)), 1.0)
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=TOLERANCE, atol=least))
