"""The model and the beliefs that ask a structure, as far as it looks at them: types without their classes above."""

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
    """Structure as far as beliefs and documents are concerned."""

    @property
    def is_tied(self) -> bool:
        """Whether the clusters of atoms of one group or sequence depend on each other."""
        ...

    def takes_words(self, model: WholeModel) -> bool:
        """Whether atoms are the word tokens of documents, where data are sparse counts."""
        ...


class Beliefs(Protocol):
    """Posterior as structures see it: beliefs about clusters, whose type is :class:`bnp_dask.model.Posterior`."""

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
        """The statistics that these parameters were computed from; None where they were left at home."""
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
        """Beliefs with nothing but what local steps on batches of at most so many atoms look at."""
        ...


class WholeModel(Protocol):
    """Model as structures see it, allocation times observation, whose type is :class:`bnp_dask.model.Model`."""

    @property
    def allocation(self) -> CommonAllocation:
        """How atoms come from clusters."""
        ...

    @property
    def observation(self) -> Observation:
        """Likelihood of the atoms of a cluster."""
        ...

    @property
    def structure(self) -> Tied:
        """How atoms hang together; its own type is above."""
        ...

    @property
    def estimate(self) -> Literal["posterior", "map"]:
        """Beliefs, or point estimates."""
        ...

    @property
    def precision(self) -> Literal["mixed", "double"]:
        """Whether float32 may say which clusters matter to an atom."""
        ...

    @property
    def learn_prior(self) -> Literal["auto", "never", "diagonal", "full"]:
        """Whether settings of the prior fit themselves."""
        ...

    @property
    def reference(self) -> Observation | None:
        """The likelihood with the prior that learning began with; None for a prior that stays."""
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
        """Whether NaN in dense rows is an entry that is missing."""
        ...

    @property
    def lags(self) -> int:
        """Steps before each step that the likelihood takes out of plain sequences; 0 for most."""
        ...

    def check(self, batch: Batch) -> None:
        """DataError for a batch that the likelihood cannot have produced, or whose groups make no sense."""
        ...

    def with_allocation(self, allocation: Any) -> Self:
        """Model with another allocation."""
        ...

    def empty_summary(self, ids: np.ndarray, pairs: np.ndarray = ...) -> Summary:
        """The summary of no atoms."""
        ...

    def summary_of(
        self, ids: np.ndarray, batch: Batch, step: LocalStep, params: Any, pairs: np.ndarray = ...
    ) -> Summary:
        """Summary of atoms from what a local step found; ``params`` are those of the clusters ``ids``."""
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
"""Type of a model that comes back changed."""
