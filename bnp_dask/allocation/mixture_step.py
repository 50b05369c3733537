"""Local step of all mixtures (thesis 2.6.1, 3.4.2, 7.1)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from bnp_dask.core import Batch, Field
from bnp_dask.kernels import log, pair_entropy
from bnp_dask.kernels import mixture as kernel
from bnp_dask.structure import Independent, LocalStep, LogLik

FIELDS: Mapping[str, Field] = MappingProxyType({"H": Field(("cluster",), merge="tracked")})
"""Entropies of the clusters."""

TILE_NUMBERS = 2**19
"""Numbers in an (n, K) tile: 4 MB, so that a tile and its copies fit in cache and are small beside a batch."""

CLOSED = -1e13
"""Log likelihood, in nats, in place of minus infinity, with which zero responsibilities could not be multiplied."""


class MixtureSteps:
    """Base of mixtures: the steps of atoms that are independent given ``log_weights``.

    A subclass has the setting ``top``: clusters kept per atom, or None for all.
    """

    top: int | None
    structure = Independent()

    @property
    def fields(self) -> Mapping[str, Field]:
        return FIELDS

    @abstractmethod
    def log_weights(self, params: Any) -> np.ndarray:
        """Log weights of the clusters, ``(K,)`` nats."""

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return mixture_tiles(batch, n_clusters)

    def local_step(self, params: Any, log_lik: LogLik, batch: Batch, pairs: np.ndarray) -> LocalStep:
        return mixture_local_step(self.log_weights(params), log_lik, batch, pairs, self.top)

    def reassign(self, params: Any, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        return mixture_reassign(self.log_weights(params), log_lik, batch, mass, self.top)

    def certain_values(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        return {"H": np.zeros(len(counts))}


def mixture_tiles(batch: Batch, n_clusters: int) -> Iterator[Batch]:
    """Rows in blocks whose size depends on K and D only, so that sums are added in one order everywhere."""
    width = n_clusters if batch.is_sparse else max(n_clusters, batch.n_features)
    size = min(max(TILE_NUMBERS // width, 256), 8192)
    for start in range(0, batch.n_atoms, size):
        yield batch.rows(start, min(start + size, batch.n_atoms))


def mixture_local_step(
    log_weights: np.ndarray, log_lik: LogLik, batch: Batch, pairs: np.ndarray, top: int | None
) -> LocalStep:
    """Responsibilities and their entropy for atoms that are independent given the weights.

    Parameters
    ----------
    log_weights
        ``(K,)`` nats.
    log_lik
        ``(n, K)`` nats; overwritten.  Screened weights have the log weights in them already.
    batch
        For the atoms' weights.
    pairs
        Positions whose union is tracked, ``(M, 2)``.
    top
        Clusters kept per atom (L), or None for all.
    """
    if isinstance(log_lik, kernel.ScreenedWeights):
        return _screened_step(log_lik, batch, pairs, top)
    decide_labelled(log_lik, log_weights, batch)
    resp: kernel.Resp
    if top is None or top >= log_lik.shape[1]:
        resp, entropy = kernel.resp_and_entropy(log_lik, log_weights, batch.weights)
        weighted = kernel.scale_rows(resp, batch.weights)
    else:
        log_lik += log_weights
        resp, log_resp = kernel.top_resp_from_weights(log_lik, top)
        weighted = kernel.scale_rows(resp, batch.weights)
        entropy = kernel.cluster_entropy(weighted, log_resp)
    return LocalStep(weighted, {"H": entropy}, {"H": pair_entropy(resp, batch.weights, pairs)})


def decide_labelled(log_lik: np.ndarray, log_weights: np.ndarray | float, batch: Batch) -> None:
    """Leave each atom with a known label its most probable cluster alone: ``log_lik (n, K)`` is overwritten.

    q(z) of these atoms is one-hot, a narrower family with the same objective, of which this is the exact step.  Shared
    responsibilities would leave a trace of the label, down to 1e-16, in every cluster that was open to it in some lap;
    and a cluster with a trace of a label can take no other.
    """
    if batch.labels is None:
        return
    rows = np.flatnonzero(batch.labels >= 0)
    best = (log_lik[rows] + log_weights).argmax(axis=1)
    kept = log_lik[rows, best]
    log_lik[rows] = CLOSED
    log_lik[rows, best] = kept


def _screened_step(screened: kernel.ScreenedWeights, batch: Batch, pairs: np.ndarray, top: int | None) -> LocalStep:
    resp: kernel.Resp
    if top is None or top >= screened.n_clusters:
        resp, entropy = kernel.resp_from_screened(screened, batch.weights)
        weighted = kernel.scale_rows(resp, batch.weights)
    else:
        resp, log_resp = kernel.top_resp_from_screened(screened, top)
        weighted = kernel.scale_rows(resp, batch.weights)
        entropy = kernel.cluster_entropy(weighted, log_resp)
    return LocalStep(weighted, {"H": entropy}, {"H": pair_entropy(resp, batch.weights, pairs)})


def mixture_reassign(
    log_weights: np.ndarray, log_lik: np.ndarray, batch: Batch, mass: np.ndarray, top: int | None
) -> LocalStep:
    """Share out the mass of some clusters in each atom among others (thesis eqs. 4.12-4.19, 4.25).

    Parameters
    ----------
    log_weights
        Log weights of the receivers, ``(J,)`` nats; only their differences matter.
    log_lik
        Log likelihoods of the atoms under the receivers, ``(n, J)`` nats; overwritten.
    batch
        For the atoms' weights.
    mass
        Responsibility times weight to share out, ``(n,)``, positive.
    top
        Clusters kept per atom, or None for all.  Unless None, all mass goes to the best receiver, which keeps this
        limit.
    """
    log_lik += log_weights
    decide_labelled(log_lik, 0.0, batch)
    if top is None:
        share, log_share = kernel.resp_from_weights(log_lik)
    else:
        best, log_best = kernel.top_resp_from_weights(log_lik, 1)
        share, log_share = best.to_dense(), np.broadcast_to(log_best, log_lik.shape)
    unweighted = mass if batch.weights is None else mass / batch.weights
    weighted = share * mass[:, None]
    log_resp = log_share + log(unweighted)[:, None]
    return LocalStep(weighted, {"H": kernel.cluster_entropy(weighted, log_resp)})
