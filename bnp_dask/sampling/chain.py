"""One chain on the coordinator: from the total to parameters, and from batches to the next total."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from bnp_dask.allocation.base import SampledAllocation
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.model import Model
from bnp_dask.observation.base import LOG_BASE, LeanObservation
from bnp_dask.observation.interface.drawing import SampledObservation
from bnp_dask.sampling.sweep import PARAMETERS, WEIGHTS, Assigned, Drawn, generator
from bnp_dask.schedules.engine.chains import Chain, Sweep
from bnp_dask.structure.screened import worthwhile


def first_chain(model: Model, start: Summary) -> Chain:
    """A chain at the statistics that an initialisation gave.

    Where the number of clusters is unbounded, only those that hold an atom are taken; one without atoms if none does.
    """
    held = start.ids if not model.allocation.nonparametric else start.ids[start["N"] >= 1.0]
    if not len(held):
        held = start.ids[:1]
    total = start.without_pairs().take(held)
    if model.allocation.nonparametric:
        counts = np.maximum(total["N"], 1.0)  # weights of clusters have a density then, whatever the start
        total = replace(total, values={**total.values, "N": counts})
    return Chain(total, None, int(start.ids.max(initial=-1)) + 1)


def draw_clusters(model: Model, chain: Chain, number: int, lap: int, seed: int, n_atoms: int) -> Drawn:
    """Weights and parameters of a chain's clusters for a sweep, with as many new clusters as slices may need.

    Parameters
    ----------
    model, chain, number
        The model, and the chain with its number.
    lap, seed
        Key of the random numbers; the lap counts from 0.
    n_atoms
        Atoms of the largest batch.
    """
    total = chain.total
    allocation = cast(SampledAllocation, model.allocation)
    weights = allocation.draw_weights(total["N"], chain.least, generator(seed, number, lap, WEIGHTS))
    n_new = len(weights.log_size) - total.n_clusters
    if n_new:
        total = total.insert_empty(np.arange(chain.next_id, chain.next_id + n_new))
    params = drawn_parameters(model, total, generator(seed, number, lap, PARAMETERS))
    if isinstance(model.observation, LeanObservation):
        screened = model.screens and worthwhile(n_atoms, total.n_clusters, _width(model))
        params = model.observation.lean(params, screened)
    return Drawn(number, lap, total.ids, params, weights.log_size, weights.limit)


def drawn_parameters(model: Model, total: Summary, rng: np.random.Generator) -> object:
    """Parameters of the likelihood at a draw from their posterior given a partition."""
    observation = cast(SampledObservation, model.observation)
    return observation.at_draw(model.observation_step(total), rng)


def _width(model: Model) -> int:
    return max(model.observation.sizes.get("feature", 1), 1)


def begin_sweep(model: Model, chain: Chain, drawn: Drawn, n_rows: int) -> None:
    """Sums over no batch."""
    empty = RunningTotal(model.empty_summary(drawn.ids))
    chain.sweep = Sweep(empty, np.ones(len(drawn.ids)), np.full(n_rows, -1))


def add_batch(chain: Chain, found: Assigned, rows: np.ndarray, labels: np.ndarray) -> None:
    """Add what a batch holds; ``labels`` are the clusters of the noted rows at the positions ``rows``."""
    assert chain.sweep is not None
    chain.sweep.total.add(found.summary)
    np.minimum(chain.sweep.least, found.least, out=chain.sweep.least)
    chain.sweep.rows[rows] = labels


def end_sweep(model: Model, chain: Chain) -> np.ndarray:
    """The sums become the chain's total, without clusters that nobody joined; clusters of the noted rows."""
    assert chain.sweep is not None
    value = chain.sweep.total.value()
    keep = np.ones(value.n_clusters, np.bool_) if not model.allocation.nonparametric else value["N"] > 0.0
    chain.total, chain.least = value.take(value.ids[keep]), chain.sweep.least[keep]
    chain.next_id = max(chain.next_id, int(chain.total.ids.max(initial=-1)) + 1)
    chain.log_joint = log_joint(model, chain.total)
    rows, chain.sweep = chain.sweep.rows, None
    return rows


def log_joint(model: Model, total: Summary) -> float:
    """Log probability of assignments and data, with weights and parameters integrated out, nats."""
    allocation = cast(SampledAllocation, model.allocation)
    data = model.best_data_terms(total).sum() + total.values.get(LOG_BASE, 0.0)
    return float(allocation.log_partition(total["N"]) + data)
