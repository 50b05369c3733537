"""The task of streaming inference: the atoms of one batch, assigned given the statistics of all others.

Each atom is assigned given the atoms before it, and its statistics are added at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.allocation import UrnAllocation
from bnp_dask.core import Batch, RunningTotal, Summary, require_finite_arrays
from bnp_dask.errors import SettingError
from bnp_dask.execute import Task
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.visit import Request, request_of, visit
from bnp_dask.inputs import as_a
from bnp_dask.kernels import (
    ABSENT,
    LEAST_LOG,
    Packed,
    RaggedResp,
    Resp,
    Urn,
    cholesky_factors,
    cluster_sums,
    filter_counts,
    filter_gaussian,
    give_up,
    log,
    log_absent,
    log_not,
    note_left,
    scale_rows,
    seat_atom,
    student_constant,
)
from bnp_dask.model import Model
from bnp_dask.observation import LOG_BASE, Gaussian, Multinomial, as_csr, require_exact_atoms

ROOM = 32
"""Room for new clusters beyond the existing ones, at first."""


@dataclass(frozen=True, eq=False)
class Seated:
    """Clusters of the atoms of a batch.

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


def seat_batch(model: Model, held: Summary, batch: Batch, epsilon: float, before: RaggedResp | None = None) -> Seated:
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
    before
        Responsibilities of the visit before, ``(n, K)``, which are part of ``held``: each atom leaves its clusters
        before it is seated again (Tank et al. 2015, Alg. 2), and clusters that then hold less than ``epsilon`` are
        closed.  None: ``held`` does not include the batch.
    """
    weights = np.ones(batch.n_atoms) if batch.weights is None else np.asarray(batch.weights, np.float64)
    if isinstance(model.observation, Multinomial):
        return _seat_counts(model, held, batch, weights, epsilon, before)
    if isinstance(model.observation, Gaussian):
        return _seat_points(model, held, batch, weights, epsilon, before)
    return _seat_any(model, held, batch, weights, epsilon, before)


# -- compiled loops ------------------------------------------------------------------------------------------------
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


def _absent(held: Summary) -> np.ndarray:
    """Log probability of each cluster that it holds no atom; without such a field, occupied clusters are certain."""
    return held[ABSENT] if ABSENT in held else LEAST_LOG * np.maximum(held["N"], 0.0)


@dataclass(frozen=True)
class _Loop:
    """A compiled loop over ``n`` atoms: the kernel, its first arguments and its rule.

    ``priors`` are the values of each table for clusters without atoms, along its last axis.
    """

    kernel: Any
    front: Sequence[Any]
    rule: Packed
    epsilon: float
    priors: Sequence[Any]
    n: int

    def run(self, tables: list[np.ndarray], k: int, before: RaggedResp | None, anew: Any = None) -> tuple[_Lists, int]:
        """Call the kernel until all atoms are seated, with more room each time it fills up.

        ``anew`` recomputes all tables, given the atoms seated so far, if a kernel asks for it.
        """
        lists, done, old = _Lists.of(self.n), 0, _old_of(before, self.n, self.epsilon)
        tables = self._grown(tables, ROOM)
        while True:
            k, done = self.kernel(*self.front, self.rule, self.epsilon, old, tuple(tables), k, done, lists.arrays())
            if done == self.n:
                return lists, k
            if k + 1 >= tables[-1].shape[-1]:
                tables = self._grown(tables, k + ROOM)
            elif lists.offsets[done] + k + 1 > len(lists.index):
                lists.grow(k + 1)
            else:
                tables = self._grown(anew(lists, k, done), ROOM)
                old[2][old[0][done] : old[0][done + 1]] = 0.0

    def _grown(self, tables: list[np.ndarray], more: int) -> list[np.ndarray]:
        return [_grown(table, prior, more) for table, prior in zip(tables, self.priors, strict=True)]


def _old_of(before: RaggedResp | None, n: int, epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Responsibilities of the visit before as kernels take them; empty at the first visit."""
    if before is None:
        return np.zeros(n + 1, np.int64), np.zeros(0, np.int64), np.zeros(0), 0.0
    return before.offsets.astype(np.int64), before.index.astype(np.int64), before.value.astype(np.float64), epsilon


def _grown(table: np.ndarray, prior: Any, more: int) -> np.ndarray:
    """A table with room for more, empty clusters."""
    out = np.empty((*table.shape[:-1], table.shape[-1] + more))
    out[..., : table.shape[-1]] = table
    out[..., table.shape[-1] :] = np.asarray(prior)[..., None]
    return out


def _seat_counts(
    model: Model, held: Summary, batch: Batch, weights: np.ndarray, epsilon: float, before: RaggedResp | None
) -> Seated:
    observation = as_a(model.observation, Multinomial)
    counts = as_csr(batch)
    rows = (counts.indptr.astype(np.int64), counts.indices.astype(np.int64), np.asarray(counts.data, np.float64))
    table = held["x"]
    tables = [np.ascontiguousarray(table.T), table.sum(axis=1), np.maximum(held["N"], 0.0), _absent(held)]
    front = (rows, np.ascontiguousarray(observation.lam, np.float64), weights)
    loop = _Loop(filter_counts, front, urn_of(model).packed(), epsilon, (0.0, 0.0, 0.0, 0.0), batch.n_atoms)
    lists, k = loop.run(tables, held.n_clusters, before)
    found = lists.seated(weights, k)
    base = observation.summarize(batch, weights[:, None])[LOG_BASE]
    return replace(found, log_predictive=found.log_predictive + float(base))


def _seat_points(
    model: Model, held: Summary, batch: Batch, weights: np.ndarray, epsilon: float, before: RaggedResp | None
) -> Seated:
    observation = as_a(model.observation, Gaussian)
    d, n = batch.n_features, batch.n_atoms
    nothing = observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
    priors = [*(column[..., 0] for column in columns_of(nothing, d)), 0.0, 0.0]

    def tables_of(known: Summary) -> list[np.ndarray]:
        k = known.n_clusters
        params = observation.global_step(known) if k else nothing
        columns = [column[..., :k] for column in columns_of(params, d)]
        return [*columns, np.maximum(known["N"], 0.0), _absent(known)]

    def anew(lists: _Lists, k: int, done: int) -> list[np.ndarray]:
        assert before is not None
        resp = RaggedResp(lists.offsets, lists.index, lists.value, k)
        return tables_of(_after(model, held, batch, weights, before, resp, done, epsilon))

    front = (np.ascontiguousarray(batch.x - observation.center), weights)
    loop = _Loop(filter_gaussian, front, urn_of(model).packed(), epsilon, priors, n)
    lists, k = loop.run(tables_of(held), held.n_clusters, before, anew)
    return lists.seated(weights, k)


def _after(
    model: Model,
    held: Summary,
    batch: Batch,
    weights: np.ndarray,
    before: RaggedResp,
    resp: RaggedResp,
    done: int,
    epsilon: float,
) -> Summary:
    """Statistics after ``done`` atoms were seated again and the next one left its clusters."""
    k = resp.n_clusters
    known = held.insert_empty(int(held.ids.max(initial=-1)) + 1 + np.arange(k - held.n_clusters))
    for found, rows, sign in ((before, done + 1, -1.0), (resp, done, 1.0)):
        dense = np.zeros((rows, k))
        atom = np.repeat(np.arange(rows), np.diff(found.offsets[: rows + 1]))
        dense[atom, found.index[: len(atom)]] = sign * found.value[: len(atom)] * weights[atom]
        one = replace(batch.rows(0, rows), weights=None)
        known = _with(known, {"N": dense.sum(axis=0), **model.observation.summarize(one, dense)})
        if ABSENT in known:
            known = _with(known, {ABSENT: sign * log_absent(np.abs(dense), weights[:rows])})
    counts = np.where(known["N"] < epsilon, 0.0, known["N"])
    return replace(known, values={**known.values, "N": counts})


def columns_of(params: Any, d: int) -> list[np.ndarray]:
    """Parameters with the cluster axis last: means, roots, inverse diagonals of the roots, nu, kappa, constants."""
    try:
        roots = np.linalg.cholesky(params.B)
    except np.linalg.LinAlgError:  # LAPACK rounds otherwise than the factors by which these matrices were accepted
        roots = cholesky_factors(params.B)[0]
    inverse = 1.0 / np.diagonal(roots, axis1=1, axis2=2)
    log_det = -2.0 * np.log(inverse).sum(axis=1)
    constant = [student_constant(*row, float(d)) for row in zip(params.nu, params.kappa, log_det, strict=True)]
    return [params.shift.T, np.moveaxis(roots, 0, -1), inverse.T, params.nu, params.kappa, np.array(constant)]


# -- any likelihood ------------------------------------------------------------------------------------------------
def _seat_any(
    model: Model, held: Summary, batch: Batch, weights: np.ndarray, epsilon: float, before: RaggedResp | None = None
) -> Seated:
    """Seat atoms of any likelihood, by its ``log_predictive`` and ``summarize``, atom by atom."""
    observation, urn = model.observation, urn_of(model)
    fresh = observation.log_predictive(observation.global_step(model.empty_summary(np.zeros(1, np.int64))), batch)
    absent, ids = _absent(held), iter(range(int(held.ids.max(initial=-1)) + 1, 2**62))
    index, value, offsets, total = [], [], [0], 0.0
    for n in range(batch.n_atoms):
        if weights[n] > 0.0:
            one, vacant = replace(batch.rows(n, n + 1), weights=None), -1
            if before is not None:
                held, absent, vacant = _left(model, held, absent, one, weights[n], before, n)
            k = held.n_clusters
            resp = np.zeros(k + 1)
            known = observation.log_predictive(observation.global_step(held), one)[0] if k else np.zeros(0)
            counts = np.maximum(held["N"], 0.0)
            seats, new = urn.weights_after(counts, absent)
            log_pred = np.concatenate([known, fresh[n]])
            level, opened = seat_atom(log_pred, seats, k, new, epsilon, resp)
            total += weights[n] * level
            if opened and vacant >= 0:
                resp[vacant] = resp[k]
            elif opened:
                held, absent = held.insert_empty([next(ids)]), np.append(absent, 0.0)
            resp = resp[: held.n_clusters]
            held = _with(held, {"N": weights[n] * resp, **observation.summarize(one, weights[n] * resp[None])})
            absent = absent + weights[n] * np.array([log_not(r) for r in resp])
            if before is not None:
                held = replace(held, values={**held.values, "N": held["N"].copy()})
                give_up(held["N"], absent, held.n_clusters, epsilon)
            kept = np.flatnonzero(resp)
            index.append(kept)
            value.append(resp[kept])
        offsets.append(offsets[-1] + (len(index[-1]) if weights[n] > 0.0 else 0))
    lists = [np.concatenate([np.zeros(0, kind), *parts]) for kind, parts in ((np.int64, index), (float, value))]
    return Seated(RaggedResp(np.array(offsets), lists[0], lists[1], held.n_clusters), total)


def _left(
    model: Model, held: Summary, absent: np.ndarray, one: Batch, weight: float, before: RaggedResp, n: int
) -> tuple[Summary, np.ndarray, int]:
    """Statistics after atom ``n`` left its clusters, and which of these is empty now, -1 for none."""
    at = slice(int(before.offsets[n]), int(before.offsets[n + 1]))
    resp, counts, absent, vacant = np.zeros(held.n_clusters), held["N"].copy(), absent.copy(), -1
    for k, r in zip(before.index[at], before.value[at], strict=True):
        if counts[k] > 0.0:
            resp[k] = weight * r
            vacant = int(k) if note_left(counts, absent, k, weight, r)[2] else vacant
    held = _with(held, model.observation.summarize(one, -resp[None]))
    held = replace(held, values={**held.values, "N": counts})
    if vacant >= 0:
        name = held.ids[vacant]
        rest = held.take(held.ids[held.ids != name]).insert_empty([name])
        held = rest.take(held.ids)
    return held, absent, vacant


def _with(held: Summary, more: dict[str, np.ndarray]) -> Summary:
    return replace(held, values={**held.values, **{name: held[name] + added for name, added in more.items()}})


# -- one batch -----------------------------------------------------------------------------------------------------
LEAST_EPSILON = 0.01
"""Probability of a new cluster above which it is opened, by default, for priors without a discount."""


@dataclass(frozen=True, eq=False)
class Site:
    """Contribution of a batch.

    Parameters
    ----------
    summary
        Statistics of its atoms: for the clusters of the cavity in their order, then for the clusters opened here.
    log_predictive
        Log predictive density of its atoms given the cavity and the atoms before each, nats.
    n_new
        Clusters opened here: the last ones; their ids are provisional.
    lost
        Why the batch is left out; empty if it is used.
    resp
        Responsibilities of its atoms, ``(n, K + J)``; None if they are not needed later.
    """

    summary: Summary
    log_predictive: float
    n_new: int = 0
    lost: str = ""
    resp: RaggedResp | None = None


@dataclass(frozen=True, eq=False)
class SeatedGiven:
    """Statistics given which a batch is seated.

    Parameters
    ----------
    held
        Statistics of the other atoms, or of all atoms if ``before`` is given.
    before
        Responsibilities of the batch's own atoms that are part of ``held``, ``(n, K)``.
    keep
        Whether the responsibilities are needed later.
    """

    held: Summary
    before: RaggedResp | None = None
    keep: bool = False


def check_urn(model: Model, schedule: str) -> None:
    """SettingError unless the atoms of a model can be seated one after the other."""
    if not isinstance(model.allocation, UrnAllocation):
        raise SettingError(
            f"{schedule}: {type(model.allocation).__name__} has no predictive rule for single atoms; "
            "use DPMixture(...), PitmanYorMixture(...), NGGPMixture(...) or NRMMixture(...)"
        )
    require_exact_atoms(model.observation, schedule)
    if model.reproducible:
        raise SettingError(f"{schedule}: reproducible=True is not kept by filters; leave it out")
    if model.estimate != "posterior":
        raise SettingError(
            f'{schedule}: integrates over parameters, so that estimate="{model.estimate}" has no meaning'
        )


def seat(model: Model, given: SeatedGiven, epsilon: float, request: Request) -> Site:
    """The task: read a batch and seat its atoms."""
    return visit(
        model,
        request,
        compute=lambda batch: site_of(model, given.held, batch, epsilon, given.before, given.keep),
        lose=lambda why: lost_site(model, given.held, why),
    )


def lost_site(model: Model, held: Summary, why: str) -> Site:
    """The empty site of a batch that is left out."""
    return Site(model.empty_summary(held.ids), 0.0, 0, why)


def site_of(
    model: Model,
    held: Summary,
    batch: Batch,
    epsilon: float,
    before: RaggedResp | None = None,
    keep: bool = False,
) -> Site:
    """The site of a batch in memory; see :class:`SeatedGiven`."""
    found = seat_batch(model, held, batch, epsilon, before)
    n_new = found.resp.n_clusters - held.n_clusters
    first = int(held.ids.max(initial=-1)) + 1
    ids = np.concatenate([held.ids, np.arange(first, first + n_new)])
    if not len(ids):
        return Site(model.empty_summary(ids), 0.0)
    summary = site_summary(model, ids, batch, found.resp)
    require_finite_arrays(summary.values, f"{batch.name}: statistic", summary.ids)
    return Site(summary, found.log_predictive, n_new, resp=found.resp if keep else None)


def with_site(total: RunningTotal, site: Site, next_id: int) -> tuple[RunningTotal, int]:
    """Total with the site of a batch added, its new clusters under ids from ``next_id`` on, and the next free id.

    The given total may be changed.
    """
    new = np.arange(next_id, next_id + site.n_new)
    grown = total.insert_empty(new)
    grown.add(replace(site.summary, ids=grown.high.ids))
    return grown, next_id + site.n_new


def site_summary(model: Model, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
    """All statistics of atoms with given responsibilities ``(n, K)``, which are not yet multiplied by weights."""
    weighted = scale_rows(resp, batch.weights)
    own = {"N": cluster_sums(weighted), "H": _entropy(resp, batch.weights)}
    if ABSENT in model.fields:
        own[ABSENT] = log_absent(weighted, batch.weights)
    values = {**own, **model.observation.summarize(batch, weighted)}
    arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
    return replace(model.empty_summary(ids), values=arrays)


def _entropy(resp: Resp, weights: np.ndarray | None) -> np.ndarray:
    """Sum over atoms of ``-w r log r``, ``(K,)`` nats."""
    assert isinstance(resp, RaggedResp)
    terms = -resp.value * log(resp.value)
    if weights is not None:
        terms *= np.repeat(weights, np.diff(resp.offsets))
    return np.bincount(resp.index, terms, minlength=resp.n_clusters)


def seat_task(work: Work, state: State, batch: int, given: SeatedGiven, epsilon: float) -> Task:
    """The task :func:`seat` on a batch of a run."""
    light = replace(given.held, values=dict(given.held.values), fields=dict(given.held.fields))
    args = (work.model, replace(given, held=light), epsilon, request_of(work, state, batch))
    return f"seat-lap{state.lap}-batch{batch}", seat, args


# -- between two batches -------------------------------------------------------------------------------------------
def threshold(model: Model, epsilon: float | None) -> float:
    """The probability of a new cluster above which it is opened."""
    return max(urn_of(model).sigma, LEAST_EPSILON) if epsilon is None else float(epsilon)


def settle(work: Work, state: State) -> None:
    """The posterior of the total, once a cluster holds something."""
    value = state.total.value()
    if value.n_clusters:
        state.posterior = work.model.global_step(value)
