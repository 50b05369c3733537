"""Work of filters and expectation propagation between two batches."""

from __future__ import annotations

from bnp_dask.model import Model
from bnp_dask.schedules.engine.state import State, Work
from bnp_dask.streaming.seats import urn_of

LEAST_EPSILON = 0.01
"""Probability of a new cluster above which it is opened, of priors without a discount, by default."""


def threshold(model: Model, epsilon: float | None) -> float:
    """The probability of a new cluster above which it is opened."""
    return max(urn_of(model).sigma, LEAST_EPSILON) if epsilon is None else float(epsilon)


def settle(work: Work, state: State) -> None:
    """The posterior of the total, once a cluster holds something."""
    value = state.total.value()
    if value.n_clusters:
        state.posterior = work.model.global_step(value)
