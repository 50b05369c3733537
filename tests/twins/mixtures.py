"""Mixtures: responsibilities of a batch are columns ``(n,)`` by cluster id, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.kernels.mixture import SparseResp
from bnp_dask.model import Model, Posterior
from bnp_dask.structure.base import Trial
from bnp_dask.structure.visit import NOTICEABLE

Columns = dict[int, np.ndarray]


@dataclass
class MixtureTwin:
    """See :class:`tests.twins.follow.Twin`."""

    model: Model
    batches: list[Batch]

    def assign(self, b: int, posterior: Posterior, before: Columns | None) -> Columns:
        resp: Any = self.model.assign(posterior, replace(self.batches[b], weights=None)).resp
        resp = resp.to_dense() if isinstance(resp, SparseResp) else resp
        return {int(i): resp[:, k] for k, i in enumerate(posterior.ids)}

    def tried(self, b: int, q: Columns, posterior: Posterior, trial: Trial) -> Columns:
        """The donors' mass, shared out by beliefs (eqs. 4.12, 4.25)."""
        model = self.model
        mass = sum(q[d] for d in trial.donors)
        log_lik = model.observation.expected_log_lik(trial.beliefs.observation, self.batches[b])
        weights = log_lik + model.allocation.log_weights(trial.beliefs.allocation)
        if model.allocation.top is None:
            share = np.exp(weights - weights.max(axis=1, keepdims=True))
        else:
            share = (np.arange(weights.shape[1]) == weights.argmax(axis=1)[:, None]).astype(float)
        share /= share.sum(axis=1, keepdims=True)
        new = {int(i): mass * share[:, j] for j, i in enumerate(trial.beliefs.ids)}
        if model.allocation.top is not None:
            return new
        # atoms of which the clusters in focus hold next to nothing stay; what vanishing donors hold goes to one
        stay = ~(sum(q[d] for d in trial.focus or trial.donors) > NOTICEABLE)
        rest = int(trial.beliefs.ids[0]) if trial.rest is None else trial.rest
        old = {i: q[i] if i in trial.donors else np.zeros(len(mass)) for i in new}
        old[rest] = old[rest] + sum(q[d] for d in trial.donors if d not in new)
        return {i: np.where(stay, old[i], new[i]) for i in new}

    def exchanged(self, q: Columns, donors: Sequence[int], part: Columns) -> Columns:
        return {**{i: column for i, column in q.items() if i not in donors or i in part}, **part}

    def merged(self, q: Columns, keep: int, drop: int) -> Columns:
        return {i: column + q[drop] if i == keep else column for i, column in q.items() if i != drop}

    def grown(self, q: Columns, ids: Sequence[int]) -> Columns:
        n = len(next(iter(q.values())))
        return {**q, **{i: np.zeros(n) for i in ids}}

    def taken(self, q: Columns, ids: Sequence[int]) -> Columns:
        assert all(not column.any() for i, column in q.items() if i not in ids)
        return {i: q[i] for i in ids}

    def renamed(self, q: Columns, names: Mapping[int, int]) -> Columns:
        return {names.get(i, i): column for i, column in q.items()}

    def ids(self, q: Columns) -> list[int]:
        return list(q)

    def objective(self, qs: Mapping[int, Columns]) -> float:
        total = self.summary(qs)
        return float(sum(self.model.elbo(self.model.global_step(total), total).values()))

    def summary(self, qs: Mapping[int, Columns]) -> Summary:
        ids = list(next(iter(qs.values())))
        total = self.model.empty_summary(np.array(ids))
        for b, own in qs.items():
            batch = self.batches[b]
            resp = np.stack([own[i] for i in ids], axis=1)
            weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
            part = self.model.summarize(np.array(ids), batch, resp * weights[:, None])
            logs = np.log(np.where(resp > 0, resp, 1.0))
            total = total + replace(part, values={**part.values, "H": -(weights[:, None] * resp * logs).sum(axis=0)})
        return total
