"""Work of filters and expectation propagation between two batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from bnp_dask.model import Model
from bnp_dask.schedules.engine.bad_batches import require_enough
from bnp_dask.schedules.engine.state import Loss, State, Work
from bnp_dask.streaming.seats import urn_of

logger = logging.getLogger("bnp_dask")

LEAST_EPSILON = 0.01
"""Probability of a new cluster above which it is opened, of priors without a discount, by default."""


class Visited(Protocol):
    """Result of a task on a batch."""

    @property
    def lost(self) -> str:
        """Why the batch is left out; empty where it is not."""
        ...


def threshold(model: Model, epsilon: float | None) -> float:
    """The probability of a new cluster above which it is opened."""
    return max(urn_of(model).sigma, LEAST_EPSILON) if epsilon is None else float(epsilon)


def settle(work: Work, state: State) -> None:
    """The posterior of the total, once a cluster holds something."""
    value = state.total.value()
    if value.n_clusters:
        state.posterior = work.model.global_step(value)


def lose_sites(work: Work, state: State, sites: Mapping[int, Visited]) -> None:
    """Note which batches are left out from now on; DataError where too many are."""
    for batch, site in sites.items():
        if site.lost:
            state.lost[batch] = Loss(site.lost, state.lap + 1, state.step + 1)
            logger.warning("skipped from lap %d on: %s", state.lap + 1, site.lost)
    if any(site.lost for site in sites.values()):
        require_enough(work, state.lost)
