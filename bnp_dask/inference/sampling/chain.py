"""One chain on the coordinator: from the total to parameters, and from batches to the next total."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.allocation import SampledAllocation
from bnp_dask.core import RunningTotal, Summary
from bnp_dask.inference.chains import TABLES, Chain, Pins, Sweep, empty_of_chain
from bnp_dask.inference.sampling.sweep import Drawn, Others
from bnp_dask.inference.sampling.visit import PARAMETERS, WEIGHTS, Assigned, generator
from bnp_dask.inputs import as_a
from bnp_dask.kernels import exp, log_gammas, log_shares
from bnp_dask.model import Model
from bnp_dask.observation import LOG_BASE, SampledObservation


def first_chain(model: Model, start: Summary) -> Chain:
    """A chain at the statistics of an initialisation.

    If the number of clusters is unbounded, only clusters that hold an atom are taken; if none does, one empty cluster.
    """
    held = start.ids if not model.allocation.nonparametric else start.ids[start["N"] >= 1.0]
    if not len(held):
        held = start.ids[:1]
    total = start.without_pairs().take(held)
    if model.allocation.nonparametric:
        counts = np.maximum(total["N"], 1.0)  # so that weights of clusters have a density from any start
        total = replace(total, values={**total.values, "N": counts})
    return Chain(total, None, int(start.ids.max(initial=-1)) + 1)


def draw_clusters(model: Model, chain: Chain, number: int, lap: int, seed: int, n_atoms: int) -> Drawn:
    """Draw weights and parameters of a chain's clusters for a sweep.

    Parameters
    ----------
    model, chain, number
        The model, and the chain with its number.
    lap, seed
        Key of the random numbers; the lap counts from 0.
    n_atoms
        Atoms of the largest batch.
    """
    total, rng = chain.total, generator(seed, number, lap, WEIGHTS)
    log_weight = as_a(model.allocation, SampledAllocation).draw_weights(total["N"], rng)
    if chain.pins is not None:
        log_weight = log_weight - rng.standard_exponential(total.n_clusters) / total["N"]
    params = drawn_parameters(model, total, generator(seed, number, lap, PARAMETERS))
    return Drawn(number, lap, total.ids, model.lean(params, n_atoms), log_weight, chain.pins)


def drawn_parameters(model: Model, total: Summary, rng: np.random.Generator) -> object:
    """Draw parameters of the likelihood from their posterior given a partition."""
    observation = as_a(model.observation, SampledObservation)
    return observation.at_draw(model.observation_step(total), rng)


def begin_sweep(model: Model, chain: Chain, ids: np.ndarray, n_rows: int) -> None:
    """Begin a sweep of a chain with the clusters ``ids``, with sums over no batch."""
    chain.sweep = Sweep(RunningTotal(empty_of_chain(model, ids)), Pins.none(len(ids)), np.full(n_rows, -1))


def others(chain: Chain, number: int, lap: int, drawn: Drawn | None) -> Others:
    """Statistics of a sweep's batches so far, among which the atoms of its last batch are seated."""
    assert chain.sweep is not None
    return Others(number, lap, chain.sweep.total.value(), chain.next_id, drawn)


def add_batch(chain: Chain, found: Assigned, rows: np.ndarray, labels: np.ndarray) -> None:
    """Add the statistics of a batch; ``labels`` are the clusters of the noted rows at the positions ``rows``."""
    assert chain.sweep is not None
    new = found.summary.ids[chain.sweep.total.high.n_clusters :]
    if len(new):
        chain.sweep.total = chain.sweep.total.insert_empty(new)
        chain.next_id = int(new.max()) + 1
    chain.sweep.opened = np.append(chain.sweep.opened, found.opened)
    chain.sweep.total.add(found.summary)
    chain.sweep.pins = chain.sweep.pins.or_less(found.pins)
    chain.sweep.rows[rows] = labels


def end_sweep(model: Model, chain: Chain) -> np.ndarray:
    """Make the sums the chain's total, without empty clusters; returns the clusters of the noted rows."""
    assert chain.sweep is not None
    value = chain.sweep.total.value()
    chain.total = value
    if model.allocation.nonparametric:
        kept = np.flatnonzero(value["N"] > 0.0)
        chain.total, chain.pins = value.take(value.ids[kept]), chain.sweep.pins.take(kept)
    chain.log_joint = log_joint(model, chain.total)
    rows, chain.sweep = chain.sweep.rows, None
    return rows


def log_joint(model: Model, total: Summary) -> float:
    """Log probability of assignments and data, with weights and parameters integrated out, nats."""
    allocation = as_a(model.allocation, SampledAllocation)
    data = model.best_data_terms(total).sum() + total.values.get(LOG_BASE, 0.0)
    return float(allocation.log_partition(total["N"]) + data)


# -- the top level of hierarchical Dirichlet processes -------------------------------------------------------------
LEAST_SHARE = 1e-290
"""Least weight at the top level: its digamma function is finite."""


def shares(masses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw of a Dirichlet distribution, ``(K,)``, each at least :data:`LEAST_SHARE`."""
    return np.maximum(exp(log_shares(log_gammas(masses, rng)[None])[0]), LEAST_SHARE)


def top_generator(number: int, lap: int, seed: int) -> np.random.Generator:
    """Random numbers of the top level of a chain in a lap."""
    return generator(seed, number, lap, WEIGHTS)


def first_tabled_chain(model: Model, start: Summary) -> Chain:
    """A chain at the statistics of an initialisation; its tables are a guess, which the first lap replaces."""
    chain = first_chain(model, start)
    empty = empty_of_chain(model, chain.total.ids)
    tables = np.sqrt(np.maximum(chain.total["N"], 1.0))
    chain.total = Summary(empty.ids, empty.fields, {**empty.values, **chain.total.values, TABLES: tables})
    return chain
