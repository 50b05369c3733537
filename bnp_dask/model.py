"""A model joins an allocation and an observation model; a posterior is what is believed after seeing a summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from bnp_dask.allocation.base import Allocation, LocalStep
from bnp_dask.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.kernels.resp import Resp, cluster_sums
from bnp_dask.observation.base import LOG_BASE, Observation
from bnp_dask.summary import Field, Summary
from bnp_dask.survey import Survey

NO_PAIRS = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed about the clusters.

    Parameters
    ----------
    model
        The model, with all priors set.
    ids
        Cluster ids, ``(K,)``; they never change while a cluster lives.
    allocation, observation
        Parameters of the two model parts.
    summary
        The statistics these parameters were computed from, or None for a copy that travels to workers.
    """

    model: Model
    ids: np.ndarray
    allocation: Any
    observation: Any
    summary: Summary | None = None

    @property
    def n_clusters(self) -> int:
        """Number of clusters K."""
        return len(self.ids)

    @property
    def weights(self) -> np.ndarray:
        """Expected share of each cluster, ``(K,)``."""
        return self.model.allocation.weights(self.allocation)

    def light(self) -> Posterior:
        """The same without its summary: half the bytes to send."""
        return replace(self, summary=None)


@dataclass(frozen=True)
class Model:
    """An allocation model times an observation model.

    Parameters
    ----------
    allocation
        How atoms come from clusters: ``DPMixture``, ``FiniteMixture``.
    observation
        What a cluster generates: ``Gaussian``, ``Multinomial``, ...
    estimate
        ``"posterior"``: variational inference.  ``"map"``: point estimates, that is EM, and with
        ``FiniteMixture(top=1)`` the Bregman k-means of thesis Algorithm 2.1.
    """

    allocation: Allocation
    observation: Observation
    estimate: Literal["posterior", "map"] = "posterior"

    def __post_init__(self) -> None:
        if self.estimate not in ("posterior", "map"):
            raise SettingError(f'estimate={self.estimate!r}: needs "posterior" or "map"')

    @property
    def fields(self) -> Mapping[str, Field]:
        """All fields of this model's summaries."""
        count = {"N": Field(("cluster",))}
        return MappingProxyType({**count, **self.allocation.fields, **self.observation.fields})

    def with_prior(self, survey: Survey) -> Model:
        """The same with every prior setting that was None computed from the data."""
        return replace(self, observation=self.observation.with_prior(survey))

    # -- the local side -------------------------------------------------------------------------------------
    def local_step(self, posterior: Posterior, batch: Batch, pairs: np.ndarray = NO_PAIRS) -> Summary:
        """Assign the atoms of a batch and summarize them.

        Parameters
        ----------
        posterior
            Current beliefs.
        batch
            Atoms.
        pairs
            Ids of cluster pairs whose union is tracked, ``(M, 2)``.
        """
        position = {int(c): k for k, c in enumerate(posterior.ids)}
        places = np.array([[position[int(a)], position[int(b)]] for a, b in pairs], np.int64).reshape(-1, 2)
        total: Summary | None = None
        for tile in self.allocation.tiles(batch, posterior.n_clusters):
            step = self.assign(posterior, tile, places)
            part = self._summary(posterior.ids, tile, step, pairs)
            total = part if total is None else _add_in_place(total, part)
        return self.empty_summary(posterior.ids, pairs) if total is None else total

    def assign(self, posterior: Posterior, batch: Batch, places: np.ndarray = NO_PAIRS) -> LocalStep:
        """Local step on atoms that fit one tile."""
        log_lik = self.observation.expected_log_lik(posterior.observation, batch)
        return self.allocation.local_step(posterior.allocation, log_lik, batch, places)

    def summarize(self, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        """Summary of atoms with given responsibilities (times weights); their entropy counts as zero."""
        empty = self.empty_summary(ids)
        values = {**empty.values, "N": cluster_sums(resp), **self.observation.summarize(batch, resp)}
        return replace(empty, values=values)

    def empty_summary(self, ids: np.ndarray, pairs: np.ndarray = NO_PAIRS) -> Summary:
        """The summary of no atoms."""
        sizes = {"cluster": len(ids), **self.observation.sizes}
        values = {name: np.zeros([sizes[dim] for dim in f.dims]) for name, f in self.fields.items()}
        tracked = [name for name, f in self.fields.items() if f.merge == "tracked"]
        pair_values = {name: np.zeros((len(pairs), *values[name].shape[1:])) for name in tracked}
        return Summary(np.asarray(ids, np.int64), self.fields, values, pairs, pair_values)

    def _summary(self, ids: np.ndarray, batch: Batch, step: LocalStep, pairs: np.ndarray) -> Summary:
        values = {"N": cluster_sums(step.resp), **step.values, **self.observation.summarize(batch, step.resp)}
        arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
        return Summary(ids, self.fields, arrays, pairs, step.pair_values)

    # -- the global side ------------------------------------------------------------------------------------
    def global_step(self, summary: Summary) -> Posterior:
        """Optimal parameters given whole-data statistics."""
        allocation = self.allocation.global_step(summary)
        observation = self.observation.global_step(summary)
        if self.estimate == "map":
            allocation = self.allocation.at_mode(allocation)
            observation = self.observation.at_mode(observation)
        return Posterior(self, summary.ids, allocation, observation, summary)

    def elbo(self, posterior: Posterior, summary: Summary) -> dict[str, float]:
        """Terms of the whole-data objective, nats; exact for any parameters and any summary (slack included).

        For ``estimate="map"`` the terms of the log joint (thesis eq. 2.74), up to constants of the prior.
        """
        data = self.observation.score(posterior.observation, summary).sum()
        if LOG_BASE in summary:
            data += summary[LOG_BASE]
        if self.estimate == "map":
            data += self.observation.log_prior(posterior.observation).sum()
            return {"data": float(data), **self.allocation.log_joint(posterior.allocation, summary)}
        data -= self.observation.kl(posterior.observation).sum()
        return {"data": float(data), **self.allocation.elbo(posterior.allocation, summary)}


def _add_in_place(total: Summary, part: Summary) -> Summary:
    for name, value in part.values.items():
        total.values[name][...] += value
    for name, value in part.pair_values.items():
        total.pair_values[name][...] += value
    return total
