"""A twin of a run that keeps the responsibilities of all atoms, and computes the objective from them alone.

Tasks are carried out as usual; beside each the twin assigns the same atoms with the same beliefs and keeps the
matrix.  What an accepted change of clusters does to responsibilities is written here a second time, without
summaries: columns are added, replaced, dropped and reordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.batch import Batch
from bnp_dask.kernels.resp import SparseResp
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import Plan
from bnp_dask.summary import Edit, Exchange, InsertEmpty, Merge, Summary, Take
from bnp_dask.trials import NOTICEABLE
from bnp_dask.visits import Trial, Visit

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
    new = {int(i): mass * share[:, j] for j, i in enumerate(trial.beliefs.ids)}
    if model.allocation.top is not None:
        return new
    # atoms of which the clusters in focus hold next to nothing stay; what vanishing donors hold of them goes to one
    stay = ~(sum(columns[d] for d in trial.focus or trial.donors) > NOTICEABLE)
    heir = int(trial.beliefs.ids[0]) if trial.rest is None else trial.rest
    old = {i: columns.get(i, np.zeros(len(mass))) if i in trial.donors else np.zeros(len(mass)) for i in new}
    old[heir] = old[heir] + sum(columns[d] for d in trial.donors if d not in new)
    return {i: np.where(stay, old[i], new[i]) for i in new}


def change(columns: Columns, edit: Edit, parts: dict[str, Columns]) -> Columns:
    """What an edit does to responsibilities."""
    out = dict(columns)
    if isinstance(edit, Merge):
        out[edit.keep] = out[edit.keep] + out.pop(edit.drop)
    elif isinstance(edit, Exchange):
        new = parts[edit.trial]
        for donor in edit.donors:  # a donor that also receives keeps its place in stick order
            if donor not in new:
                del out[donor]
        out.update(new)
    elif isinstance(edit, InsertEmpty):
        n = len(next(iter(columns.values())))
        out.update({i: np.zeros(n) for i in edit.ids})
    elif isinstance(edit, Take):
        out = {i: out[i] for i in edit.ids}
    return out


@dataclass
class Twin:
    """All responsibilities of a run, and what its moves claimed beside what is true.

    ``claims`` holds (kind, recorded gain, gain from scratch, size of the objective, accepted) of each proposal.
    """

    model: Model
    batches: list[Batch]
    columns: dict[int, Columns] = field(default_factory=dict)
    parts: dict[int, dict[str, Columns]] = field(default_factory=dict)
    seen: dict[int, tuple[Any, int, Columns, dict[str, Columns]]] = field(default_factory=dict)
    claims: list[tuple[str, float, float, float, bool]] = field(default_factory=list)

    def summary(self, columns: dict[int, Columns]) -> Summary:
        """Statistics of all atoms, from scratch."""
        ids = list(next(iter(columns.values())))
        total = None
        for b, own in columns.items():
            batch = self.batches[b]
            resp = np.stack([own[i] for i in ids], axis=1)
            weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
            part = self.model.summarize(np.array(ids), batch, resp * weights[:, None])
            logs = np.log(np.where(resp > 0, resp, 1.0))
            part = replace(part, values={**part.values, "H": -(weights[:, None] * resp * logs).sum(axis=0)})
            total = part if total is None else total + part
        assert total is not None
        return total

    def objective(self, columns: dict[int, Columns]) -> float:
        """The whole-data objective at the best parameters for these responsibilities, nats."""
        summary = self.summary(columns)
        return float(sum(self.model.elbo(self.model.global_step(summary), summary).values()))

    # -- what happens in a run ------------------------------------------------------------------------------
    def visited(self, posterior: Posterior, batch: Batch, trials: Sequence[Trial], found: Visit) -> None:
        """A local step was carried out."""
        columns = columns_of(posterior, batch)
        parts = {t.name: reassigned(t, batch, columns) for t in trials}
        b = next(i for i, own in enumerate(self.batches) if own.name == batch.name)
        self.seen[id(found.summary)] = found.summary, b, columns, parts
        for name, part in found.parts.items():
            self.seen[id(part)] = part, b, parts[name], {}

    def folded(self, found: Visit, ids: np.ndarray) -> None:
        """A batch's summary was folded; it knows no cluster born since its posterior was sent out."""
        _, b, columns, parts = self.seen[id(found.summary)]
        self.columns[b] = {int(i): columns.get(int(i), np.zeros(self.batches[b].n_atoms)) for i in ids}
        self.parts[b] = parts

    def decided(self, plan: Plan, records: list[dict[str, Any]], edits: list[Edit]) -> None:
        """Proposals were decided at the end of a lap."""
        assert len(records) == len(plan.given_up) + len(plan.proposals)
        for proposal, record in zip(plan.proposals, records[len(plan.given_up) :], strict=True):
            if record["gain"] is None:
                continue
            changed = {b: change(own, proposal.edit, self.parts[b]) for b, own in self.columns.items()}
            self.claim(record, changed)
        for edit in edits:
            if isinstance(edit, Take):
                self.columns = {b: change(own, edit, {}) for b, own in self.columns.items()}

    def split(self, found: Visit, record: dict[str, Any], born: Sequence[int], owner: Sequence[int]) -> None:
        """A birth at a batch was decided: newborn cluster j became cluster ``owner[j]``."""
        _, b, parts, _ = self.seen[id(found.newborn)]
        grown = {i: change(own, InsertEmpty(tuple(born)), {}) for i, own in self.columns.items()}
        columns = dict(grown[b])
        columns[record["targets"][0]] = np.zeros_like(columns[record["targets"][0]])
        for mass, home in zip(parts.values(), owner, strict=True):
            columns[home] = columns[home] + mass
        self.claim(record, {**grown, b: columns})

    def claim(self, record: dict[str, Any], changed: dict[int, Columns]) -> None:
        """Compare a recorded gain with the difference of two objectives from scratch; carry out what was accepted."""
        before, after = self.objective(self.columns), self.objective(changed)
        self.claims.append((record["kind"], record["gain"], after - before, abs(before), record["accepted"]))
        if record["accepted"]:
            self.columns = changed
