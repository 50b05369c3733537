"""A twin of a run that keeps the responsibilities of all atoms, and computes the objective from them alone.

Tasks are carried out as usual; beside each the twin assigns the same atoms with the same beliefs and keeps the
matrix.  What an accepted change of clusters does to responsibilities is written here a second time, without
summaries: columns are added, replaced, dropped and reordered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.execute import SerialExecutor
from bnp_dask.kernels.resp import SparseResp
from bnp_dask.model import Model, Posterior, Trial, Visit
from bnp_dask.summary import Edit, Exchange, InsertEmpty, Merge, Summary, Take

Columns = dict[int, np.ndarray]
"""Responsibilities without weights by cluster id, each ``(n,)``."""


def dense(resp: Any) -> np.ndarray:
    """As an ``(n, K)`` array."""
    return resp.to_dense() if isinstance(resp, SparseResp) else resp


def columns_of(posterior: Posterior, batch: Any) -> Columns:
    """Responsibilities of a batch under a posterior."""
    resp = dense(posterior.model.assign(posterior, replace(batch, weights=None)).resp)
    return {int(i): resp[:, k] for k, i in enumerate(posterior.ids)}


def reassigned(trial: Trial, batch: Any, columns: Columns) -> Columns:
    """Responsibilities of a trial's receivers: the donors' mass, shared out by beliefs (eqs. 4.12, 4.25)."""
    model = trial.beliefs.model
    mass = sum(columns[d] for d in trial.donors)
    log_lik = model.observation.expected_log_lik(trial.beliefs.observation, batch)
    weights = log_lik + model.allocation.log_weights(trial.beliefs.allocation)
    if model.allocation.top is None:
        share = np.exp(weights - weights.max(axis=1, keepdims=True))
    else:
        share = (np.arange(weights.shape[1]) == weights.argmax(axis=1)[:, None]).astype(float)
    share /= share.sum(axis=1, keepdims=True)
    return {int(i): mass * share[:, j] for j, i in enumerate(trial.beliefs.ids)}


def change(columns: Columns, edit: Edit, parts: dict[str, Columns]) -> Columns:
    """What an edit does to responsibilities."""
    out = dict(columns)
    if isinstance(edit, Merge):
        out[edit.keep] = out[edit.keep] + out.pop(edit.drop)
    elif isinstance(edit, Exchange):
        for donor in edit.donors:
            del out[donor]
        out.update(parts[edit.trial])
    elif isinstance(edit, InsertEmpty):
        n = len(next(iter(columns.values())))
        out.update({i: np.zeros(n) for i in edit.ids})
    elif isinstance(edit, Take):
        out = {i: out[i] for i in edit.ids}
    return out


@dataclass
class Twin:
    """All responsibilities of a run, by batch."""

    model: Model
    batches: list[Any]
    columns: dict[int, Columns] = field(default_factory=dict)
    parts: dict[int, dict[str, Columns]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def summary(self, columns: dict[int, Columns], ids: list[int]) -> Summary:
        """Statistics of all atoms, from scratch, for clusters in the order ``ids``."""
        total = None
        for b, batch in enumerate(self.batches):
            resp = np.stack([columns[b][i] for i in ids], axis=1)
            weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
            part = self.model.summarize(np.array(ids), batch, resp * weights[:, None])
            logs = np.log(np.where(resp > 0, resp, 1.0))
            part = replace(part, values={**part.values, "H": -(weights[:, None] * resp * logs).sum(axis=0)})
            total = part if total is None else total + part
        assert total is not None
        return total

    def objective(self, columns: dict[int, Columns], ids: list[int]) -> float:
        """The whole-data objective at the best parameters for these responsibilities, nats."""
        summary = self.summary(columns, ids)
        return sum(self.model.elbo(self.model.global_step(summary), summary).values())

    def changed(self, edit: Edit) -> dict[int, Columns]:
        """Responsibilities of all batches after an edit."""
        return {b: change(own, edit, self.parts.get(b, {})) for b, own in self.columns.items()}


class Recording(SerialExecutor):
    """Runs tasks as usual, and remembers beside what each found the responsibilities behind it."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source
        self.found: dict[int, tuple[Columns, dict[str, Columns], Columns | None]] = {}

    def submit(self, name: str, function: Any, *args: Any) -> Any:
        if not name.startswith("local_step"):
            return super().submit(name, function, *args)
        return super().submit(name, self._recorded(int(name.rsplit("batch", 1)[1]), function), *args)

    def _recorded(self, b: int, function: Any) -> Any:
        def run(posterior: Posterior, reader: Any, pairs: Any, trials: Any, split: Any, *rest: Any) -> Visit:
            found: Visit = function(posterior, reader, pairs, trials, split, *rest)
            batch = reader()
            columns = columns_of(posterior, batch)
            parts = {t.name: reassigned(t, batch, columns) for t in trials}
            self.found[id(found)] = columns, parts, None
            self.last = found  # keeps ids unique while it is looked up
            return found

        return run
