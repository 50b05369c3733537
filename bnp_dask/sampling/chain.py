"""One chain on the coordinator: from the total to parameters, and from batches to the next total."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.allocation.base import SampledAllocation, SmallSlices
from bnp_dask.allocation.measure import bound
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.inputs.protocols import as_a
from bnp_dask.model import Model
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.interface.drawing import SampledObservation
from bnp_dask.sampling.sweep import PARAMETERS, WEIGHTS, Assigned, Drawn, generator, no_slices
from bnp_dask.schedules.engine.chains import Chain, Sweep


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


def draw_clusters(model: Model, chain: Chain, number: int, lap: int, seed: int, n_atoms: int, weight: float) -> Drawn:
    """Weights and parameters of a chain's clusters for a sweep, with as many new clusters as slices may need.

    Parameters
    ----------
    model, chain, number
        The model, and the chain with its number.
    lap, seed
        Key of the random numbers; the lap counts from 0.
    n_atoms
        Atoms of the largest batch.
    weight
        Weight of all data.
    """
    total = chain.total
    allocation = as_a(model.allocation, SampledAllocation)
    weights = allocation.draw_weights(total["N"], chain.small, weight, generator(seed, number, lap, WEIGHTS))
    n_new = len(weights.log_size) - total.n_clusters
    if n_new:
        total = total.insert_empty(np.arange(chain.next_id, chain.next_id + n_new))
    params = drawn_parameters(model, total, generator(seed, number, lap, PARAMETERS))
    return Drawn(number, lap, total.ids, model.lean(params, n_atoms), weights)


def drawn_parameters(model: Model, total: Summary, rng: np.random.Generator) -> object:
    """Parameters of the likelihood at a draw from their posterior given a partition."""
    observation = as_a(model.observation, SampledObservation)
    return observation.at_draw(model.observation_step(total), rng)


def begin_sweep(model: Model, chain: Chain, drawn: Drawn, n_rows: int) -> None:
    """Sums over no batch."""
    empty = RunningTotal(model.empty_summary(drawn.ids))
    chain.sweep = Sweep(empty, no_slices(), np.full(n_rows, -1), drawn.weights.limit)


def add_batch(chain: Chain, found: Assigned, rows: np.ndarray, labels: np.ndarray) -> None:
    """Add what a batch holds; ``labels`` are the clusters of the noted rows at the positions ``rows``."""
    assert chain.sweep is not None
    chain.sweep.total.add(found.summary)
    chain.sweep.small = _pruned(chain.sweep, found.small)
    chain.sweep.rows[rows] = labels


def _pruned(sweep: Sweep, more: SmallSlices) -> SmallSlices:
    """Slices so far and more, without those that cannot be small any more: so few are left, whatever the data."""
    held = sweep.small
    place, uniform, offset = (
        np.concatenate(both)
        for both in zip((held.place, held.uniform, held.offset), (more.place, more.uniform, more.offset), strict=True)
    )
    if sweep.limit is None:
        return held
    kept = uniform < bound(sweep.total.value_of("N"), sweep.limit)[place]
    return SmallSlices(place[kept], uniform[kept], offset[kept])


def end_sweep(model: Model, chain: Chain) -> np.ndarray:
    """The sums become the chain's total, without clusters that nobody joined; clusters of the noted rows."""
    assert chain.sweep is not None
    value = chain.sweep.total.value()
    keep = np.ones(value.n_clusters, np.bool_) if not model.allocation.nonparametric else value["N"] > 0.0
    chain.total, small = value.take(value.ids[keep]), chain.sweep.small
    chain.small = replace(small, place=(np.cumsum(keep) - 1)[small.place])
    chain.next_id = max(chain.next_id, int(chain.total.ids.max(initial=-1)) + 1)
    chain.log_joint = log_joint(model, chain.total)
    rows, chain.sweep = chain.sweep.rows, None
    return rows


def log_joint(model: Model, total: Summary) -> float:
    """Log probability of assignments and data, with weights and parameters integrated out, nats."""
    allocation = as_a(model.allocation, SampledAllocation)
    data = model.best_data_terms(total).sum() + total.values.get(LOG_BASE, 0.0)
    return float(allocation.log_partition(total["N"]) + data)
