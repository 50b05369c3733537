"""Assign new atoms to the clusters of a posterior, and score how well it expected them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from bnp_dask.batch import Batch
from bnp_dask.data import as_source, lazy
from bnp_dask.data.assigned import Columns, Layout, write
from bnp_dask.data.base import Reader, Source
from bnp_dask.data.checks import csr_counts, float_rows
from bnp_dask.data.collections import is_dask
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.execute.blas import one_blas_thread
from bnp_dask.execute.dask import open_executor
from bnp_dask.execute.ordered import in_order
from bnp_dask.kernels.resp import SparseResp
from bnp_dask.model import Posterior

if TYPE_CHECKING:
    from distributed import Client

WINDOW = 8
"""Batches in flight."""

UNSEEN_MASS = 1e-12
"""Prior mass of clusters without atoms below which it is rounding of weights that sum to one."""


@dataclass(frozen=True, eq=False)
class TopResponsibilities:
    """The most likely clusters of each atom, most likely first.

    Parameters
    ----------
    label
        Cluster ids, ``(n, L)`` int64.
    resp
        Their responsibilities, ``(n, L)``: probabilities among all clusters, so a row sums to at most one.
    """

    label: Any
    resp: Any


@dataclass(frozen=True)
class _Mode:
    """What is wanted of each atom: a label, all responsibilities, or the ``top`` largest."""

    soft: bool
    top: int | None

    def layouts(self, n_clusters: int) -> tuple[Layout, ...]:
        if self.top is not None:
            width = min(self.top, n_clusters)
            return Layout("label", "<i8", width), Layout("resp", "<f8", width)
        return (Layout("resp", "<f8", n_clusters),) if self.soft else (Layout("label", "<i8", None),)


# -- predict --------------------------------------------------------------------------------------------------
def predict(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    soft: bool = False,
    top: int | None = None,
    batch_size: int | None = None,
    client: Client | Executor | None = None,
) -> Any:
    """Cluster of each atom, or its responsibilities.

    Parameters
    ----------
    posterior
        Trained clusters.
    data
        Array, sparse matrix, DataFrame, path or URL, Source; or a Dask array or DataFrame.
    out
        Path or URL ending with ``.zarr`` or ``.parquet``: results are written there batch by batch, so that data
        may have any size.  Zarr: a group with the arrays ``label`` and ``resp``; Parquet: a folder of files with
        those columns.  Rows are in the order of the data.
    soft
        All responsibilities instead of labels.
    top
        The ``top`` most likely clusters instead of labels.
    batch_size
        Atoms per batch; None for a size that fits memory.
    client
        A ``distributed.Client`` or an executor; None is the current client, or this thread when there is none.

    Returns
    -------
    numpy.ndarray or TopResponsibilities or dask.array.Array or None
        Labels ``(n,)`` int64: the *ids* of clusters, ``posterior.ids``, which stay the same when others come and
        go (not positions; those are ``np.searchsorted`` away).  ``soft``: ``(n, K)`` in the order of
        ``posterior.ids``; each row sums to one.  ``top``: :class:`TopResponsibilities`.  Lazy Dask arrays for Dask
        data; None when ``out`` is given.

    Raises
    ------
    DataError
        Features other than those the model was trained on, or values that its likelihood cannot produce.
    StoreError
        ``out`` exists already.

    Notes
    -----
    Weights of atoms do not matter here.  Ties go to the earlier cluster.
    """
    mode = _mode(soft, top)
    if out is None and is_dask(data):
        return _predict_lazy(posterior, data, mode)
    source = as_source(data, batch_size=batch_size)
    _check_width(posterior, source)
    readers = [source.reader(i) for i in range(source.n_batches)]
    compute = _Assign(mode)
    with one_blas_thread(), open_executor(client) as runner:
        if out is not None:
            facts = {"ids": [int(i) for i in posterior.ids], "source": source.name}
            layouts = mode.layouts(posterior.n_clusters)
            write(out, layouts, compute, posterior.light(), readers, runner, WINDOW, facts)
            return None
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"predict-batch{i}", compute, (shared, reader)) for i, reader in enumerate(readers))
        parts = list(in_order(runner, tasks, WINDOW))
    return _join(parts, mode, posterior.n_clusters)


def _join(parts: list[dict[str, np.ndarray]], mode: _Mode, n_clusters: int) -> np.ndarray | TopResponsibilities:
    """What the batches say, as one."""
    joined = {x.name: np.concatenate([p[x.name] for p in parts]) for x in mode.layouts(n_clusters)}
    if mode.top is not None:
        return TopResponsibilities(joined["label"], joined["resp"])
    return joined["resp"] if mode.soft else joined["label"]


def _mode(soft: bool, top: int | None) -> _Mode:
    if top is not None and (isinstance(top, bool) or not isinstance(top, (int, np.integer)) or top < 1):
        raise SettingError(f"top={top!r}: needs a whole number of clusters per atom, at least 1, or None")
    if soft and top is not None:
        raise SettingError(f"soft=True and top={top}: choose all responsibilities (soft) or the largest (top)")
    return _Mode(bool(soft), None if top is None else int(top))


@dataclass(frozen=True)
class _Assign:
    """Task: columns of one batch."""

    mode: _Mode

    def __call__(self, posterior: Posterior, reader: Reader) -> Columns:
        return assign_batch(posterior, reader(), self.mode.soft, self.mode.top)


def assign_batch(posterior: Posterior, batch: Batch, soft: bool = False, top: int | None = None) -> Columns:
    """Labels, responsibilities or top responsibilities of a batch in memory, as named columns.

    Never holds more than a tile of the ``(n, K)`` matrix unless ``soft`` asks for all of it.
    """
    posterior.model.observation.check(batch)
    # responsibilities are asked for, not responsibilities times weights
    batch = Batch(batch.x, None, batch.name)
    k = posterior.n_clusters
    mode = _Mode(soft, top)
    shapes = {x.name: (batch.n_atoms,) if x.width is None else (batch.n_atoms, x.width) for x in mode.layouts(k)}
    columns = {x.name: np.empty(shapes[x.name], x.dtype) for x in mode.layouts(k)}
    start = 0
    for tile in posterior.model.allocation.tiles(batch, k):
        resp = posterior.model.assign(posterior, tile).resp
        dense = resp.to_dense() if isinstance(resp, SparseResp) else resp
        rows = slice(start, start + tile.n_atoms)
        if top is not None:
            order = np.argsort(-dense, axis=1, kind="stable")[:, :top]
            columns["label"][rows] = posterior.ids[order]
            columns["resp"][rows] = np.take_along_axis(dense, order, axis=1)
        elif soft:
            columns["resp"][rows] = dense
        else:
            columns["label"][rows] = posterior.ids[dense.argmax(axis=1)]
        start += tile.n_atoms
    return columns


def _predict_lazy(posterior: Posterior, data: Any, mode: _Mode) -> Any:
    k = posterior.n_clusters
    light = posterior.light()
    if mode.top is None:
        layout = mode.layouts(k)[0]
        return lazy.map_rows(_Block(mode), light, data, layout.width, np.dtype(layout.dtype))
    width = min(mode.top, k)
    both = lazy.map_rows(_Block(mode), light, data, 2 * width, np.dtype(np.float64))
    return TopResponsibilities(both[:, :width].astype(np.int64), both[:, width:])


@dataclass(frozen=True)
class _Block:
    """One block of a Dask array: labels ``(n,)``, responsibilities ``(n, K)``, or both side by side ``(n, 2 L)``."""

    mode: _Mode

    def __call__(self, posterior: Posterior, rows: Any) -> np.ndarray:
        name = "a block of the Dask array"
        x = csr_counts(rows, name) if sparse.issparse(rows) else float_rows(np.asarray(rows), name)
        columns = assign_batch(posterior, Batch(x, None, name), self.mode.soft, self.mode.top)
        if self.mode.top is not None:
            return np.concatenate([columns["label"], columns["resp"]], axis=1)
        return columns["resp"] if self.mode.soft else columns["label"]


# -- score ----------------------------------------------------------------------------------------------------
def score(
    posterior: Posterior, data: Any, *, batch_size: int | None = None, client: Client | Executor | None = None
) -> float:
    """Mean log likelihood per atom under the posterior predictive, nats; larger is better.

    The density of an atom is ``sum_k E[pi_k] p(x | cluster k)`` with each cluster's parameters integrated over
    their posterior.  A Dirichlet process keeps mass for clusters that no atom has come from yet; that share
    is given to the prior predictive, so that the density integrates to one.

    Parameters
    ----------
    posterior
        Trained clusters.
    data
        Held-out atoms; weights, where the source has them, weigh the mean.
    batch_size, client
        As in :func:`predict`.

    Raises
    ------
    DataError
        Features other than those the model was trained on, values that its likelihood cannot produce, or a total
        weight of zero.
    """
    source = as_source(data, batch_size=batch_size)
    parts = _for_batches(posterior, source, client, score_batch, "score")
    weight = math.fsum(w for _, w in parts)
    if weight <= 0:
        raise DataError(f"{source.name}: the atoms' weights sum to {weight}; a mean needs a positive sum")
    return math.fsum(value for value, _ in parts) / weight


def score_samples(
    posterior: Posterior, data: Any, *, batch_size: int | None = None, client: Client | Executor | None = None
) -> np.ndarray:
    """Log likelihood of each atom under the posterior predictive, ``(n,)`` nats; see :func:`score`."""
    source = as_source(data, batch_size=batch_size)
    return np.concatenate(_for_batches(posterior, source, client, density_of, "score"))


def _for_batches(
    posterior: Posterior,
    source: Source,
    client: Client | Executor | None,
    function: Callable[[Posterior, Reader], Any],
    verb: str,
) -> list[Any]:
    _check_width(posterior, source)
    with one_blas_thread(), open_executor(client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"{verb}-batch{i}", function, (shared, source.reader(i))) for i in range(source.n_batches))
        return list(in_order(runner, tasks, WINDOW))


def density_of(posterior: Posterior, reader: Reader) -> np.ndarray:
    """Task: log density of each atom of a batch, ``(n,)`` nats."""
    return log_density(posterior, reader())


def score_batch(posterior: Posterior, reader: Reader) -> tuple[float, float]:
    """Task: weighted sum of the log densities of a batch, and the sum of weights."""
    batch = reader()
    value = log_density(posterior, batch)
    if batch.weights is not None:
        # an atom that counts zero times does not count, whatever its density
        value = np.where(batch.weights > 0, value, 0.0) * batch.weights
    return math.fsum(value), batch.total_weight


def log_density(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Log posterior predictive density of each atom of a batch in memory, ``(n,)`` nats."""
    model = posterior.model
    model.observation.check(batch)
    weights = posterior.weights
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    rest = 1.0 - float(np.sum(weights))
    prior = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64))) if rest > UNSEEN_MASS else None
    out = np.empty(batch.n_atoms)
    start = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters + 1):
        terms = model.observation.log_predictive(posterior.observation, tile) + log_weights
        if prior is not None:
            unseen = model.observation.log_predictive(prior, tile) + math.log(rest)
            terms = np.concatenate([terms, unseen], axis=1)
        out[start : start + tile.n_atoms] = logsumexp(terms, axis=1)
        start += tile.n_atoms
    return out


# -- what both need -------------------------------------------------------------------------------------------
def _check_width(posterior: Posterior, source: Source) -> None:
    """Ask the likelihood before any data are read: a batch of no atoms has the width and kind of all others."""
    shape = (0, source.n_features)
    x = sparse.csr_array(shape, dtype=np.float64) if source.is_sparse else np.empty(shape)
    posterior.model.observation.check(Batch(x, None, source.name))
