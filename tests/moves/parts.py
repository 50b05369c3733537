"""Stand-ins for what is around moves: a memo that forgets, states without a store, and blobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.execute import Executor, SerialExecutor
from bnp_dask.inference import State, Work, state_from_saved, state_to_arrays, state_to_json
from bnp_dask.model import Model
from bnp_dask.moves.base import Move
from bnp_dask.store import NO_RECEIPT, Receipt
from tests.batches import Batches


@dataclass
class DictMemo:
    """The latest summary of each batch."""

    kept: dict[int, tuple[int, dict[str, np.ndarray], dict[str, Any]]] = field(default_factory=dict)

    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> Receipt:
        self.kept[batch] = visit, {name: np.array(a) for name, a in arrays.items()}, meta or {}
        return NO_RECEIPT

    def get_summary(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        kept, arrays, meta = self.kept[batch]
        assert kept == visit
        return arrays, meta

    def board(self):
        return None

    def part_files(self):
        raise NotImplementedError("nothing here is large")

    def forget_parts(self, parts):
        assert not parts


def blobs(
    n: int = 600, d: int = 3, k: int = 4, seed: int = 0, spread: float = 3.0, n_batches: int = 6, weights: bool = False
) -> list[Batch]:
    """Atoms of ``k`` round clusters, in batches."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=spread, size=(k, d))
    x = means[rng.integers(k, size=n)] + rng.normal(size=(n, d))
    w = rng.integers(1, 4, size=n) * 0.5
    parts = zip(np.array_split(x, n_batches), np.array_split(w, n_batches), strict=True)
    return [Batch(xb, wb if weights else None, f"blob batch {b}") for b, (xb, wb) in enumerate(parts)]


def prepare(
    model: Model, batches: list[Batch], seed: int = 0, moves: tuple[Move, ...] = (), executor: Executor | None = None
) -> Work:
    """What a run works on."""
    survey = combine([survey_batch(b) for b in batches])
    return Work(
        model.with_prior(survey), Batches(batches), survey, executor or SerialExecutor(), DictMemo(), seed, moves
    )


def start_random(work: Work, n_clusters: int, seed: int = 1, sharp: float = 0.1) -> State:
    """A state from random responsibilities; small ``sharp`` puts each atom mostly into one cluster."""
    rng = np.random.default_rng(seed)
    ids = np.arange(n_clusters)
    total = work.model.empty_summary(ids)
    for b in range(work.source.n_batches):
        batch = work.source.reader(b)()
        resp = rng.dirichlet(np.full(n_clusters, sharp), size=batch.n_atoms)
        weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
        total = total + work.model.summarize(ids, batch, resp * weights[:, None])
    return State.start(work.model, total, work.source.n_batches)


def paused(work: Work, state: State, schedule: Any, stop: int) -> tuple[list[Any], State]:
    """Rows of so many steps of a run, and the state that a checkpoint then brings back."""
    rows = []
    for step in schedule.run(work, state):
        rows.append(step.row)
        if len(rows) == stop:
            break
    state.in_flight = list(step.in_flight)
    numbers = json.loads(json.dumps(state_to_json(state)))
    return rows, state_from_saved(work.model, numbers, {k: v.copy() for k, v in state_to_arrays(state).items()})
