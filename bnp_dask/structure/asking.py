"""Protocols of the model and the posterior as a structure uses them, without importing the classes above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Field, Summary
from bnp_dask.observation.base import Observation
from bnp_dask.structure.steps import LocalStep
from bnp_dask.structure.verbs import CommonAllocation


class Tied(Protocol):
    """Structure as used by beliefs and documents."""

    @property
    def is_tied(self) -> bool:
        """Whether the clusters of atoms of one group or sequence depend on each other."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether atoms follow one another."""
        ...

    @property
    def has_shares(self) -> bool:
        """Whether groups have weights of their own."""
        ...

    @property
    def atom(self) -> str:
        """Noun of an atom."""
        ...

    def takes_words(self, model: WholeModel) -> bool:
        """Whether atoms are the word tokens of documents if data are sparse counts."""
        ...


class Beliefs(Protocol):
    """Posterior as structures see it; its class is :class:`bnp_dask.model.Posterior`."""

    @property
    def model(self) -> WholeModel:
        """The model, with all priors set."""
        ...

    @property
    def ids(self) -> np.ndarray:
        """Cluster ids, ``(K,)``."""
        ...

    @property
    def allocation(self) -> Any:
        """Parameters of the allocation model."""
        ...

    @property
    def observation(self) -> Any:
        """Parameters of the observation model."""
        ...

    @property
    def summary(self) -> Summary | None:
        """Statistics from which the parameters were computed; None if they were not sent along."""
        ...

    @property
    def n_clusters(self) -> int:
        """Number of clusters K."""
        ...

    @property
    def weights(self) -> np.ndarray:
        """Expected share of each cluster, ``(K,)``."""
        ...

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Positions of cluster ids, in the shape of ``ids``."""
        ...

    def for_visits(self, n_atoms: int) -> Self:
        """Posterior reduced to the parts that local steps on batches of at most ``n_atoms`` atoms use."""
        ...


class WholeModel(Protocol):
    """Model as structures see it, allocation times observation; its class is :class:`bnp_dask.model.Model`."""

    @property
    def allocation(self) -> CommonAllocation:
        """Allocation model, by which atoms come from clusters."""
        ...

    @property
    def observation(self) -> Observation:
        """Likelihood of the atoms of a cluster."""
        ...

    @property
    def structure(self) -> Tied:
        """Dependence between atoms; its full type is in a module above."""
        ...

    @property
    def estimate(self) -> Literal["posterior", "map"]:
        """Whether estimates are full posteriors or point estimates."""
        ...

    @property
    def precision(self) -> Literal["mixed", "double"]:
        """Whether float32 may decide which clusters matter to an atom."""
        ...

    @property
    def learn_prior(self) -> Literal["auto", "never", "diagonal", "full"]:
        """Whether settings of the prior are learned."""
        ...

    @property
    def learn_concentrations(self) -> Literal["auto", "never", "always"]:
        """Whether concentrations of the allocation are learned."""
        ...

    @property
    def reference(self) -> Observation | None:
        """Likelihood with the prior from which learning began; None for a fixed prior."""
        ...

    @property
    def of_units(self) -> Mapping[str, Field]:
        """Field of the counts of units, in models of linked atoms; else empty."""
        ...

    @property
    def fields(self) -> Mapping[str, Field]:
        """All fields of summaries."""
        ...

    @property
    def screens(self) -> bool:
        """Whether local steps may look only at the clusters that matter to an atom."""
        ...

    @property
    def marginalises(self) -> bool:
        """Whether NaN in dense rows is a missing entry."""
        ...

    @property
    def lags(self) -> int:
        """Number of preceding steps that the likelihood takes from plain sequences for each step; 0 for most."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise DataError for a batch that the likelihood cannot have produced, or whose groups make no sense."""
        ...

    def with_allocation(self, allocation: Any) -> Self:
        """Model with another allocation."""
        ...

    def empty_summary(self, ids: np.ndarray, pairs: np.ndarray = ...) -> Summary:
        """Summary of no atoms."""
        ...

    def summary_of(
        self, ids: np.ndarray, batch: Batch, step: LocalStep, params: Any, pairs: np.ndarray = ...
    ) -> Summary:
        """Summary of atoms from the result of a local step; ``params`` belong to the clusters ``ids``."""
        ...

    def local_step(self, posterior: Any, batch: Batch, pairs: np.ndarray = ...) -> Summary:
        """Assign the atoms of a batch and summarize them; ``posterior`` is the model's own."""
        ...

    def allocation_step(self, summary: Summary) -> Any:
        """Optimal parameters of the allocation model."""
        ...

    def global_step(self, summary: Summary) -> Any:
        """Optimal beliefs given whole-data statistics."""
        ...


M = TypeVar("M", bound=WholeModel)
"""Type of a model that is returned changed."""
