"""The task of truncation-free inference: one batch, visited minibatch by minibatch from what was believed before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.summary import Summary
from bnp_dask.errors import NumericalError
from bnp_dask.execute.base import Task
from bnp_dask.model import Model
from bnp_dask.schedules.engine.state import State, Work
from bnp_dask.schedules.engine.visit import Request, request_of, visit
from bnp_dask.streaming.learners import Draws, mixture_learner, weights_of
from bnp_dask.streaming.newborn import Opened
from bnp_dask.streaming.topics import TopicLearner


@dataclass(frozen=True)
class Turn:
    """How the rows of a batch are visited.

    Parameters
    ----------
    lap
        Number of the lap; with seed and batch the key of all random numbers.
    minibatch
        Atoms (of topic models: documents) between two changes of what is believed.
    draws
        Sweeps of each of them.
    is_shuffled
        Whether rows are visited in a random order.
    seen
        Weight of all that was seen before this batch.
    total
        Weight of the data.
    extrapolates
        Whether all data are believed to be like those seen.
    """

    lap: int
    minibatch: int
    draws: Draws
    is_shuffled: bool
    seen: float
    total: float
    extrapolates: bool = True


@dataclass(frozen=True, eq=False)
class Change:
    """Effect of a batch on what is believed: ``fade * before + added``.

    Parameters
    ----------
    fade
        Share of what was believed that is left, 0 to 1.
    added
        Statistics: of the clusters before in their order, then of those that were opened, whose ids are provisional.
    tables
        Tables of topics, as ``added``; None for mixtures.
    weight
        Of the rows that were seen.
    log_predictive
        Log predictive density of the rows, each given what was known before it, nats.
    lost
        Why the batch is left out; empty where it is not.
    """

    fade: float
    added: Summary
    tables: np.ndarray | None
    weight: float
    log_predictive: float
    lost: str = ""

    def opened(self, n_new: int) -> Opened:
        """The last ``n_new`` clusters."""
        first = self.added.n_clusters - n_new
        held = self.added.take(self.added.ids[first:])
        return Opened(held, held["N"] if self.tables is None else self.tables[first:])


def change(model: Model, held: Summary, tables: np.ndarray | None, turn: Turn, request: Request) -> Change:
    """The task: read a batch and visit it minibatch by minibatch."""
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(*b"free", turn.lap, request.batch)))
    return visit(
        model,
        request,
        compute=lambda batch: change_of(model, held, tables, turn, batch, rng),
        lose=lambda why: no_change(model, held, tables, why),
    )


def kept_share(seen: float, weight: float, total: float) -> float:
    """Share of what is believed that a minibatch leaves, whose own statistics are added as they are.

    What is held are statistics of ``min(seen, total)`` atoms.  A step of learning rate ``weight / n`` with n of these
    after it (Wang & Blei 2012, eq. 11 and section 3) is this: until all data were seen nothing is forgotten.
    """
    if seen <= 0.0:
        return 1.0
    return max(0.0, min(seen + weight, total) - weight) / min(seen, total)


def no_change(model: Model, held: Summary, tables: np.ndarray | None, why: str) -> Change:
    """The change by a batch that is left out."""
    none = None if tables is None else np.zeros(len(tables))
    return Change(1.0, model.empty_summary(held.ids), none, 0.0, 0.0, why)


def change_of(
    model: Model, held: Summary, tables: np.ndarray | None, turn: Turn, batch: Batch, rng: np.random.Generator
) -> Change:
    """The change by a batch in memory."""
    order = rng.permutation(batch.n_atoms) if turn.is_shuffled else np.arange(batch.n_atoms)
    learner = (
        mixture_learner(model, held, batch, turn.draws, rng)
        if tables is None
        else TopicLearner.of(model, held, tables, batch, turn.draws, rng)
    )
    weights, seen, fade, logs = weights_of(batch), turn.seen, 1.0, 0.0
    for start in range(0, len(order), turn.minibatch):
        rows = order[start : start + turn.minibatch]
        weight = float(weights[rows].sum())
        if weight <= 0.0:
            continue
        keep = kept_share(seen, weight, turn.total)
        size = turn.total / min(seen, turn.total) if turn.extrapolates and seen > 0.0 else 1.0
        logs += learner.step(rows, keep, size)
        fade *= keep
        seen += weight
    if not np.isfinite(logs):
        raise NumericalError(
            f"{batch.name}: the log predictive density of an atom is not finite under any cluster; rescale the columns"
        )
    added, more = learner.added()
    require_finite_arrays(added.values, f"{batch.name}: statistic", added.ids)
    return Change(fade, added, more, float(weights.sum()), logs)


def change_task(work: Work, state: State, batch: int, turn: Turn, held: Summary, tables: np.ndarray | None) -> Task:
    """The task :func:`change` on a batch of a run, from what is believed now."""
    light = replace(held, values=dict(held.values), fields=dict(held.fields))
    args = (work.model, light, tables, turn, request_of(work, state, batch))
    return f"change-lap{turn.lap}-batch{batch}", change, args
