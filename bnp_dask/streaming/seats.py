"""Filtering the atoms of one batch: each is seated given those before it, and what it brings is added at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.allocation.base import UrnAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.mixture.resp import RaggedResp
from bnp_dask.kernels.streaming.counts import filter_counts
from bnp_dask.kernels.streaming.gaussian import filter_gaussian, student_constant
from bnp_dask.kernels.streaming.seating import log_not, seat_atom
from bnp_dask.kernels.streaming.urn import ABSENT, Urn, expected_clusters
from bnp_dask.model import Model
from bnp_dask.observation import Gaussian, Multinomial
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.checks import as_csr

ROOM = 32
"""Clusters for which there is room beyond those that exist, at first."""


@dataclass(frozen=True, eq=False)
class Seated:
    """Where the atoms of a batch were put.

    Parameters
    ----------
    resp
        Responsibilities, ``(n, K + J)``: J clusters were opened on the way.
    log_predictive
        Sum over atoms of weight times log predictive density given the atoms before, nats.
    """

    resp: RaggedResp
    log_predictive: float


def urn_of(model: Model) -> Urn:
    """The predictive rule of a model that can be filtered."""
    return as_a(model.allocation, UrnAllocation).urn


def seat_batch(model: Model, held: Summary, batch: Batch, epsilon: float) -> Seated:
    """Seat the atoms of a batch in order, given the statistics of others.

    Parameters
    ----------
    model
        Model whose allocation is a :class:`~bnp_dask.allocation.base.UrnAllocation`.
    held
        Statistics of the atoms so far, K >= 0 clusters.
    batch
        Atoms; one of weight w counts as w atoms once it is seated.
    epsilon
        Probability of a new cluster above which it is opened.
    """
    weights = np.ones(batch.n_atoms) if batch.weights is None else np.asarray(batch.weights, np.float64)
    if isinstance(model.observation, Multinomial):
        return _seat_counts(model, held, batch, weights, epsilon)
    if isinstance(model.observation, Gaussian):
        return _seat_points(model, held, batch, weights, epsilon)
    return _seat_any(model, held, batch, weights, epsilon)


# -- compiled loops ---------------------------------------------------------------------------------------------
@dataclass
class _Lists:
    """Responsibilities in lists that grow."""

    offsets: np.ndarray
    index: np.ndarray
    value: np.ndarray
    logs: np.ndarray

    @classmethod
    def of(cls, n_atoms: int) -> _Lists:
        size = 4 * n_atoms + 4 * ROOM
        return cls(np.zeros(n_atoms + 1, np.int64), np.empty(size, np.int64), np.empty(size), np.zeros(n_atoms))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.offsets, self.index, self.value, self.logs

    def grow(self, more: int) -> None:
        self.index = np.concatenate([self.index, np.empty(more + len(self.index), np.int64)])
        self.value = np.concatenate([self.value, np.empty(more + len(self.value))])

    def seated(self, weights: np.ndarray, n_clusters: int) -> Seated:
        used = int(self.offsets[-1])
        resp = RaggedResp(self.offsets, self.index[:used], self.value[:used], n_clusters)
        return Seated(resp, float(weights @ self.logs))


def _rule(urn: Urn) -> tuple[float, float, float, int]:
    return urn.a, urn.sigma, urn.tau, urn.rule


def _absent(held: Summary) -> np.ndarray:
    return held[ABSENT] if ABSENT in held else np.zeros(held.n_clusters)


def _run(
    kernel: Any, front: Sequence[Any], urn: Urn, epsilon: float, tables: list[np.ndarray], priors: Any, n: int, k: int
) -> tuple[_Lists, int]:
    """Call a kernel until all ``n`` atoms are seated, with more room each time that it is full.

    ``priors`` are the values of each table for clusters without atoms, along its last axis.
    """
    lists, done = _Lists.of(n), 0
    tables = [_grown(table, prior, ROOM) for table, prior in zip(tables, priors, strict=True)]
    while True:
        k, done = kernel(*front, _rule(urn), epsilon, tuple(tables), k, done, lists.arrays())
        if done == n:
            return lists, k
        if k + 1 >= tables[-1].shape[-1]:
            tables = [_grown(table, prior, k + ROOM) for table, prior in zip(tables, priors, strict=True)]
        else:
            lists.grow(k + 1)


def _grown(table: np.ndarray, prior: Any, more: int) -> np.ndarray:
    """A table with room for more clusters, which hold nothing yet."""
    out = np.empty((*table.shape[:-1], table.shape[-1] + more))
    out[..., : table.shape[-1]] = table
    out[..., table.shape[-1] :] = np.asarray(prior)[..., None]
    return out


def _seat_counts(model: Model, held: Summary, batch: Batch, weights: np.ndarray, epsilon: float) -> Seated:
    observation = as_a(model.observation, Multinomial)
    counts = as_csr(batch)
    rows = (counts.indptr.astype(np.int64), counts.indices.astype(np.int64), np.asarray(counts.data, np.float64))
    table = held["x"]
    tables = [np.ascontiguousarray(table.T), table.sum(axis=1), np.maximum(held["N"], 0.0), _absent(held)]
    front = (rows, np.ascontiguousarray(observation.lam, np.float64), weights)
    lists, k = _run(
        filter_counts, front, urn_of(model), epsilon, tables, (0.0, 0.0, 0.0, 0.0), batch.n_atoms, held.n_clusters
    )
    found = lists.seated(weights, k)
    base = observation.summarize(batch, weights[:, None])[LOG_BASE]
    return replace(found, log_predictive=found.log_predictive + float(base))


def _seat_points(model: Model, held: Summary, batch: Batch, weights: np.ndarray, epsilon: float) -> Seated:
    observation = as_a(model.observation, Gaussian)
    d, k = batch.n_features, held.n_clusters
    nothing = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
    params = model.observation.global_step(held) if k else nothing
    columns = [columns_of(params, d)[i][..., :k] for i in range(6)]
    priors = [column[..., 0] for column in columns_of(nothing, d)]
    tables = [*columns, np.maximum(held["N"], 0.0), _absent(held)]
    front = (np.ascontiguousarray(batch.x - observation.center), weights)
    lists, k = _run(filter_gaussian, front, urn_of(model), epsilon, tables, (*priors, 0.0, 0.0), batch.n_atoms, k)
    return lists.seated(weights, k)


def columns_of(params: Any, d: int) -> list[np.ndarray]:
    """Parameters with the cluster axis last: means, roots, one over the diagonals of these, nu, kappa, constants."""
    roots = np.linalg.cholesky(params.B)
    inverse = 1.0 / np.diagonal(roots, axis1=1, axis2=2)
    log_det = -2.0 * np.log(inverse).sum(axis=1)
    constant = [student_constant(*row, float(d)) for row in zip(params.nu, params.kappa, log_det, strict=True)]
    return [params.shift.T, np.moveaxis(roots, 0, -1), inverse.T, params.nu, params.kappa, np.array(constant)]


# -- any likelihood -----------------------------------------------------------------------------------------------
def _seat_any(model: Model, held: Summary, batch: Batch, weights: np.ndarray, epsilon: float) -> Seated:
    """Seat atoms of any likelihood, by its ``log_predictive`` and ``summarize``, atom by atom."""
    observation, urn = model.observation, urn_of(model)
    fresh = observation.log_predictive(observation.global_step(model.empty_summary(np.zeros(1, np.int64))), batch)
    absent, ids = _absent(held), iter(range(int(held.ids.max(initial=-1)) + 1, 2**62))
    index, value, offsets, total = [], [], [0], 0.0
    for n in range(batch.n_atoms):
        k = held.n_clusters
        if weights[n] > 0.0:
            one, resp = replace(batch.rows(n, n + 1), weights=None), np.zeros(k + 1)
            known = observation.log_predictive(observation.global_step(held), one)[0] if k else np.zeros(0)
            counts = np.maximum(held["N"], 0.0)
            seat, new = urn.rule_after(float(counts.sum()), expected_clusters(absent))
            log_pred = np.concatenate([known, fresh[n]])
            level, opened = seat_atom(log_pred, counts, k, seat, new, urn.sigma, epsilon, resp)
            total += weights[n] * level
            if opened:
                held, absent = held.insert_empty([next(ids)]), np.append(absent, 0.0)
            resp = resp[: held.n_clusters]
            held = _with(held, {"N": weights[n] * resp, **observation.summarize(one, weights[n] * resp[None])})
            absent = absent + weights[n] * np.array([log_not(r) for r in resp])
            kept = np.flatnonzero(resp)
            index.append(kept)
            value.append(resp[kept])
        offsets.append(offsets[-1] + (len(index[-1]) if weights[n] > 0.0 else 0))
    lists = [np.concatenate([np.zeros(0, kind), *parts]) for kind, parts in ((np.int64, index), (float, value))]
    return Seated(RaggedResp(np.array(offsets), lists[0], lists[1], held.n_clusters), total)


def _with(held: Summary, more: dict[str, np.ndarray]) -> Summary:
    return replace(held, values={**held.values, **{name: held[name] + added for name, added in more.items()}})
