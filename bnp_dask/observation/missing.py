"""Missing entries: their positions, and common parts of observation models that integrate over them.

NaN in a batch is a missing entry.  A likelihood takes it with ``missing="marginalise"`` and integrates over it; this is
correct if missingness does not depend on the value of the entry (missing at random, Rubin 1976).

Features that are independent given the cluster just drop out.  The statistics of feature d then cover the atoms that
have it, ``N_k - gone_kd`` in number, and the field :data:`GONE` counts the others; if no entry is missing, all numbers
are as without the setting.  For a Gaussian of full covariance see
:class:`bnp_dask.observation.gaussian.Gaussian`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core import Batch, Field, Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs import is_a, one_of
from bnp_dask.kernels import RaggedResp, Resp, SparseResp, cluster_sums, matmul

Missing = Literal["marginalise"] | None
"""Treatment of NaN by a likelihood: None refuses it."""

GONE = "gone"
"""Summary field: responsibility of the atoms that lack a feature, ``(K, D)``."""

ENTROPY = "H_missing"
"""Summary field: entropy of the missing entries under q, by cluster, ``(K,)`` nats."""

GONE_FIELD: Mapping[str, Field] = MappingProxyType({GONE: Field(("cluster", "feature"))})


@runtime_checkable
class MarginalObservation(Protocol):
    """An observation model whose atoms may lack entries."""

    @property
    def marginalises(self) -> bool:
        """Whether NaN is a missing entry, in some columns at least; elsewhere ``check`` refuses it."""
        ...

    def impute(self, params: object, batch: Batch, resp: np.ndarray) -> np.ndarray:
        """Atoms with expected values in place of missing entries, ``(n, D)``; ``resp (n, K)`` sums to one."""
        ...


@runtime_checkable
class CompletingObservation(Protocol):
    """Observation model whose statistics of an atom that lacks entries depend on the posterior.

    They are then expectations under q(missing entries | cluster), whose entropy is part of ``score``.
    """

    def complete(self, params: object, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        """As :meth:`~bnp_dask.observation.base.Observation.summarize`, with q from the parameters of the clusters that
        the columns of ``resp`` belong to."""
        ...


class Marginalising:
    """Base of likelihoods with the setting ``missing``, a field of the subclass."""

    missing: Missing

    def __post_init__(self) -> None:
        one_of("missing", self.missing, ("marginalise", None))

    @property
    def marginalises(self) -> bool:
        """Whether NaN is a missing entry; else ``check`` refuses it."""
        return self.missing is not None

    def _with_gone(
        self, found: dict[str, np.ndarray], resp: Resp, gaps: np.ndarray | None, n_features: int
    ) -> dict[str, np.ndarray]:
        """Statistics with :data:`GONE`, if missing entries are integrated over."""
        return {**found, GONE: gone(resp, gaps, n_features)} if self.marginalises else found


def takes_missing(model: object) -> bool:
    """Whether a likelihood has a setting by which it accepts missing entries."""
    return any(field.name == "missing" for field in fields(model)) if is_dataclass(model) else False


def marginalises(observation: object) -> bool:
    """Whether an observation model takes atoms that lack entries."""
    return is_a(observation, MarginalObservation) and observation.marginalises


def completed(observation: object, params: object, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
    """Statistics of atoms that were assigned by clusters of known parameters."""
    if params is not None and is_a(observation, CompletingObservation):
        return observation.complete(params, batch, resp)
    return observation.summarize(batch, resp)  # type: ignore[attr-defined, no-any-return]


def require_exact_atoms(observation: object, schedule: str) -> None:
    """SettingError for a likelihood whose statistics of atoms depend on beliefs: no single one could leave its cluster.

    ``schedule`` names the method that moves atoms one by one, for the message.
    """
    fields = observation.fields  # type: ignore[attr-defined]
    if any(name.split(".")[-1] == ENTROPY for name in fields):
        raise SettingError(
            f'{schedule}: Gaussian(missing="marginalise") has expectations in place of missing entries, and atoms that '
            'are seated one by one need statistics of their own; use DiagGaussian(missing="marginalise"), or '
            "schedule=Memoized(), FullBatch() or Stochastic()"
        )


def is_about_missing(name: str) -> bool:
    """Whether a summary field, of a product or not, describes missing entries only and not the cluster."""
    return name.split(".")[-1] in (GONE, ENTROPY)


def lacks_any(batch: Batch) -> bool:
    """Whether an atom of dense rows lacks an entry."""
    if not isinstance(batch.x, np.ndarray):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        # a sum tells, and makes no array of truths; infinities of both signs sum to NaN too
        return bool(np.isnan(np.sum(batch.x)) and np.isnan(batch.x).any())


def holes(batch: Batch, missing: Missing) -> np.ndarray | None:
    """Mask of missing entries, ``(n, D)`` bool; None if none is missing, or the likelihood refuses them."""
    return np.isnan(batch.x) if missing is not None and lacks_any(batch) else None


def filled(batch: Batch, gaps: np.ndarray | None, value: np.ndarray | float) -> np.ndarray:
    """Dense rows with ``value``, a number or ``(D,)``, in place of missing entries; unchanged if none is missing."""
    assert isinstance(batch.x, np.ndarray)
    return batch.x if gaps is None else np.where(gaps, value, batch.x)


def zeroed(batch: Batch, gaps: np.ndarray | None) -> Batch:
    """Counts or bits with zeros in place of missing entries."""
    return batch if gaps is None else replace(batch, x=filled(batch, gaps, 0.0))


def gone(resp: Resp, gaps: np.ndarray | None, n_features: int) -> np.ndarray:
    """The values of :data:`GONE`."""
    n_clusters = resp.shape[1] if isinstance(resp, np.ndarray) else resp.n_clusters
    return np.zeros((n_clusters, n_features)) if gaps is None else cluster_sums(resp, gaps.astype(np.float64))


def counts_of(summary: Summary, missing: Missing) -> np.ndarray:
    """Atoms of each cluster, ``(K, 1)``, or ``(K, D)`` by feature if some lack entries."""
    n: np.ndarray = summary["N"][:, None]
    if missing is None or not summary[GONE].any():
        return n
    return np.maximum(n - summary[GONE], 0.0)


def without_gone(log_lik: np.ndarray, gaps: np.ndarray | None, levels: np.ndarray | None) -> np.ndarray:
    """Log likelihoods ``(n, K)`` without the terms of missing features, ``levels (K, D)`` nats; in place."""
    if gaps is not None and levels is not None:
        rows = np.flatnonzero(gaps.any(axis=1))
        log_lik[rows] -= matmul(gaps[rows].astype(np.float64), levels.T)
    return log_lik


def by_column(value: np.ndarray) -> np.ndarray:
    """A setting of q, ``(K,)`` or by feature ``(K, D)``, so that it goes with arrays ``(K, D)``."""
    return value[:, None] if value.ndim == 1 else value


def one_or_each(value: np.ndarray) -> np.ndarray:
    """``(K, 1)`` as ``(K,)``: a setting that is the same for all features; ``(K, D)`` stays."""
    return value[:, 0] if value.shape[1] == 1 else value


def rows_of(resp: Resp, rows: np.ndarray) -> np.ndarray:
    """Responsibilities of some atoms, at the positions ``rows``, as an ``(R, K)`` array."""
    if isinstance(resp, SparseResp):
        return SparseResp(resp.index[rows], resp.value[rows], resp.n_clusters).to_dense()
    dense = resp.to_dense() if isinstance(resp, RaggedResp) else resp
    return np.ascontiguousarray(dense[rows])
