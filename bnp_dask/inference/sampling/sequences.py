"""Chains of hidden Markov models: paths of whole sequences are drawn, given transitions and parameters of states.

    counts -> beta, transitions and parameters drawn -> batch -> a path drawn for each sequence -> summary -> total

The number of states is bounded (*weak limit*): ``beta ~ Dirichlet(gamma / L, ..., gamma / L)`` with L states in place
of a Dirichlet process, to which it leads as L grows (Fox, Sudderth, Jordan & Willsky 2011, Alg. 3).  States without a
step are left out between laps; they are all alike, and their weights and parameters come from the prior.  Sequences are
independent given transitions and parameters, so that all batches are swept side by side.  Tables of the top level need
the counts of transitions alone, and are drawn on the coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.allocation import SampledStates
from bnp_dask.core import Batch, Summary, add_in_place
from bnp_dask.inference.chains import TABLES, Chain, Pins, empty_of_chain
from bnp_dask.inference.sampling.chain import drawn_parameters, first_tabled_chain, shares, top_generator
from bnp_dask.inference.sampling.visit import (
    ASSIGN,
    PARAMETERS,
    TABLE,
    Assigned,
    Labels,
    Swept,
    generator,
    visited,
)
from bnp_dask.inference.visit import Request
from bnp_dask.inputs import as_a
from bnp_dask.kernels import RaggedResp, draw_paths
from bnp_dask.model import Model
from bnp_dask.observation import LOG_BASE
from bnp_dask.structure import sequence_offsets, shifted, shifted_potentials


@dataclass(frozen=True, eq=False)
class DrawnStates:
    """One chain's states in a sweep.

    Parameters
    ----------
    chain, lap
        Numbers from 0; with the seed and the batch they are the key of all random numbers.
    ids
        ``(L,)``.
    observation
        Parameters of the likelihood at the draw.
    log_start, log_trans
        Logs of the start ``(L,)`` and of transitions ``(L, L)``.
    """

    chain: int
    lap: int
    ids: np.ndarray
    observation: Any
    log_start: np.ndarray
    log_trans: np.ndarray


def sweep_of_states(
    model: Model, drawn: tuple[DrawnStates, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and draw a path for each sequence in every chain."""
    return visited(model, drawn, request, rows, before, assign_paths)


def assign_paths(model: Model, drawn: DrawnStates, batch: Batch, request: Request, before: Labels | None) -> Assigned:
    """Draw a path for each sequence; the former paths do not matter."""
    k, total, paths, start = len(drawn.ids), empty_of_chain(model, drawn.ids), [np.zeros(0, np.int64)], 0
    uniform = generator(request.seed, drawn.chain, drawn.lap, ASSIGN, request.batch).random(batch.n_atoms)
    log_start, log_trans = shifted_potentials(drawn.log_start, drawn.log_trans)
    for tile in model.allocation.tiles(batch, k):
        offsets = sequence_offsets(tile)
        log_lik, _ = shifted(model.observation.expected_log_lik(drawn.observation, tile), tile)
        path = draw_paths(log_start, log_trans, log_lik, offsets, uniform[start : start + tile.n_atoms])
        paths.append(path)
        start += tile.n_atoms
        resp = RaggedResp(np.arange(len(path) + 1), path, np.ones(len(path)), k)
        found = model.summarize(drawn.ids, tile, resp)
        add_in_place(total, replace(found, values={**found.values, **_transitions(path, offsets, k)}))
    places = np.concatenate(paths)
    return Assigned(total, Pins.none(k), Labels.of(drawn.ids, places))


def _transitions(path: np.ndarray, offsets: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Counts of starts and transitions of some paths."""
    first = offsets[:-1][np.diff(offsets) > 0]
    inner = np.ones(len(path), np.bool_)
    inner[first] = False
    to = np.flatnonzero(inner)
    moves = np.bincount(path[to - 1] * k + path[to], minlength=k * k).reshape(k, k)
    return {"start": np.bincount(path[first], minlength=k).astype(np.float64), "M": moves.astype(np.float64)}


# -- the coordinator ----------------------------------------------------------------------------------------------
def first_states(model: Model, start: Summary, most: int) -> Chain:
    """A chain at the statistics of an initialisation: its largest states, up to ``most``, in the order of the start.

    The first sweep draws a path for every sequence among them, so that no step is lost.
    """
    chain = first_tabled_chain(model, start)
    largest = np.sort(np.argsort(-chain.total["N"], kind="stable")[:most])
    chain.total = chain.total.take(chain.total.ids[largest])
    return chain


def states_of(chain: Chain, most: int) -> np.ndarray:
    """States of a sweep: the chain's states, and new ones up to ``most``."""
    return np.append(chain.total.ids, chain.next_id + np.arange(max(most - chain.total.n_clusters, 0)))


def _top(model: Model, whole: Summary, rng: np.random.Generator) -> np.ndarray:
    """Draw the weights of all states at the top level, ``(L,)``."""
    return shares(as_a(model.allocation, SampledStates).gamma / whole.n_clusters + whole[TABLES], rng)


def _widened(chain: Chain, ids: np.ndarray) -> Summary:
    return chain.total.insert_empty(ids[chain.total.n_clusters :])


def draw_states(model: Model, chain: Chain, number: int, lap: int, seed: int, n_atoms: int, most: int) -> DrawnStates:
    """Draw transitions and parameters of a chain's states for a sweep."""
    whole, rng = _widened(chain, states_of(chain, most)), top_generator(number, lap, seed)
    beta = _top(model, whole, rng)
    log_start, log_trans = as_a(model.allocation, SampledStates).draw_rows(whole["start"], whole["M"], beta, rng)
    params = drawn_parameters(model, whole, generator(seed, number, lap, PARAMETERS))
    return DrawnStates(number, lap, whole.ids, model.lean(params, n_atoms), log_start, log_trans)


def end_states(model: Model, chain: Chain, number: int, lap: int, seed: int) -> np.ndarray:
    """Make the sums the chain's total, without states that have no step; returns the states of the noted rows."""
    assert chain.sweep is not None
    allocation, value = as_a(model.allocation, SampledStates), chain.sweep.total.value()
    whole = _widened(chain, value.ids)
    beta = _top(model, whole, top_generator(number, lap, seed))
    tables = allocation.draw_tables(value["start"], value["M"], beta, generator(seed, number, lap, TABLE))
    chain.log_joint = allocation.log_assignments(value["start"], value["M"], beta)
    value = replace(value, values={**value.values, TABLES: tables})
    chain.next_id = int(value.ids.max()) + 1
    chain.total = value.take(value.ids[value["N"] > 0.5])
    chain.log_joint += float(model.best_data_terms(chain.total).sum() + chain.total.values.get(LOG_BASE, 0.0))
    rows, chain.sweep = chain.sweep.rows, None
    return rows
