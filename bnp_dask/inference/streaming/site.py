"""The task of streaming inference: one batch, seated given the statistics of all others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.allocation.base import UrnAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Task
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.streaming.seats import seat_batch, urn_of
from bnp_dask.inference.visit import Request, request_of, visit
from bnp_dask.kernels.mixture.resp import RaggedResp, Resp, cluster_sums, scale_rows
from bnp_dask.kernels.numeric.arithmetic import log
from bnp_dask.kernels.streaming.urn import ABSENT, log_absent
from bnp_dask.model import Model
from bnp_dask.observation.missing.entries import require_exact_atoms

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
class Given:
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
            "use NGGPMixture(...) or DPMixture(...)"
        )
    require_exact_atoms(model.observation, schedule)
    if model.reproducible:
        raise SettingError(f"{schedule}: reproducible=True is not kept by filters; leave it out")
    if model.estimate != "posterior":
        raise SettingError(
            f'{schedule}: integrates over parameters, so that estimate="{model.estimate}" has no meaning'
        )


def seat(model: Model, given: Given, epsilon: float, request: Request) -> Site:
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
    """The site of a batch in memory; see :class:`Given`."""
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


def seat_task(work: Work, state: State, batch: int, given: Given, epsilon: float) -> Task:
    """The task :func:`seat` on a batch of a run."""
    light = replace(given.held, values=dict(given.held.values), fields=dict(given.held.fields))
    args = (work.model, replace(given, held=light), epsilon, request_of(work, state, batch))
    return f"seat-lap{state.lap}-batch{batch}", seat, args


# -- between two batches --------------------------------------------------------------------------------------------
def threshold(model: Model, epsilon: float | None) -> float:
    """The probability of a new cluster above which it is opened."""
    return max(urn_of(model).sigma, LEAST_EPSILON) if epsilon is None else float(epsilon)


def settle(work: Work, state: State) -> None:
    """The posterior of the total, once a cluster holds something."""
    value = state.total.value()
    if value.n_clusters:
        state.posterior = work.model.global_step(value)
