"""Atoms that are independent given the weights: mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import GroupStates, Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.protocols import as_a, is_a, require
from bnp_dask.kernels.mixture.resp import Resp, ScreenedWeights
from bnp_dask.observation.base import QuadraticObservation, numbers_per_cluster
from bnp_dask.observation.interface.describing import Estimate
from bnp_dask.observation.missing.entries import CompletingObservation, lacks_any
from bnp_dask.structure.answers.density import mixture_density
from bnp_dask.structure.answers.drawing import draw_rows
from bnp_dask.structure.answers.labels import Columns, label_rows, resp_of_rows
from bnp_dask.structure.asking import Beliefs, M, WholeModel
from bnp_dask.structure.base import NO_PLACES, Trial, Visit, absorbed_rows, at_most, draw, most_probable, without_data
from bnp_dask.structure.linked import assigned, whole_tiles
from bnp_dask.structure.policy import MovePolicy
from bnp_dask.structure.screened import screened_pieces
from bnp_dask.structure.steps import LocalStep
from bnp_dask.structure.trials import TrialRun
from bnp_dask.structure.verbs import MixtureAllocation
from bnp_dask.structure.visit import summarize_rows, visit_rows


@dataclass(frozen=True)
class Independent:
    """Structure of mixtures: each atom comes from a cluster, independently of the other atoms.

    Its allocation has the methods of :class:`~bnp_dask.structure.verbs.MixtureAllocation`.
    """

    policy = MovePolicy()
    hidden = "its weights"
    atom = "atom"
    is_tied = False
    is_ordered = False
    has_shares = False
    keeps_few = False

    def require(self, allocation: Any) -> None:
        require("allocation", allocation, MixtureAllocation, "DPMixture()")

    def require_fitting(self, model: WholeModel) -> None:
        """Accept every likelihood."""

    def check(self, model: WholeModel, batch: Batch) -> None:
        model.observation.check(batch)

    def keeps_states(self, model: WholeModel) -> bool:
        return False

    def screens(self, model: WholeModel) -> bool:
        return model.precision == "mixed" and is_a(model.observation, QuadraticObservation)

    def takes_words(self, model: WholeModel) -> bool:
        return False

    def effort(self, model: WholeModel, n_atoms: float, n_clusters: int) -> float:
        return n_atoms * n_clusters * numbers_per_cluster(model.observation)

    def mass(self, batch: Batch) -> float:
        return batch.total_weight

    def weight(self, summary: Summary, is_sparse: bool) -> float:
        return float(summary["N"].sum())

    def visit(
        self,
        model: WholeModel,
        posterior: Beliefs,
        batch: Batch,
        pairs: np.ndarray,
        trials: Sequence[Trial],
        sought: Sequence[int],
        states: GroupStates | None,
        room: int,
    ) -> Visit:
        runs = [TrialRun(model, posterior, trial) for trial in trials]
        places = posterior.positions(pairs).reshape(-1, 2) if len(pairs) else NO_PLACES
        steps = self.steps(model, posterior, batch, places)
        if room and is_a(model.observation, CompletingObservation) and lacks_any(batch):
            room = 0  # the statistics of such atoms depend on the posterior of the visit
        return visit_rows(model, posterior, batch, steps, pairs, runs, sought, room)

    def steps(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        if batch.links is not None:
            for tile in whole_tiles(batch, model.allocation.tiles(batch, posterior.n_clusters)):
                yield tile, self.assign(model, posterior, tile, places)
            return
        for piece, found in self.screened(model, posterior, batch):
            if found is not None:
                allocation = as_a(model.allocation, MixtureAllocation)
                yield piece, allocation.local_step(posterior.allocation, found, piece, places)
                continue
            for tile in model.allocation.tiles(piece, posterior.n_clusters):
                yield tile, self.assign(model, posterior, tile, places)

    def assign(self, model: WholeModel, posterior: Beliefs, tile: Batch, places: np.ndarray) -> LocalStep:
        log_lik = model.observation.expected_log_lik(posterior.observation, tile)
        return assigned(model.allocation, posterior.allocation, log_lik, tile, places)

    def labels(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        return most_probable(self.steps(model, posterior, batch, NO_PLACES))

    def screened(
        self, model: WholeModel, posterior: Beliefs, batch: Batch
    ) -> Iterator[tuple[Batch, ScreenedWeights | None]]:
        """Pieces of a batch with the weights of the clusters that matter; None if all clusters are needed."""
        if not self.screens(model):
            yield batch, None
            return
        log_weights = model.allocation.log_weights(posterior.allocation)
        forms = as_a(model.observation, QuadraticObservation).forms(posterior.observation)
        yield from screened_pieces(posterior, forms, log_weights, batch, model.marginalises)

    def summarize(self, model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        return summarize_rows(model, ids, batch, resp)

    def collect(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """At most ``limit`` atoms of a batch that belong to a requested cluster, in their order.

        They are drawn without replacement, and weighted by their mass there: otherwise atoms between overlapping
        clusters would count twice.
        """
        members = found.members[cluster]
        drawn = draw(np.arange(members.shape[1]), limit, rng)
        return replace(batch.take(members[0, drawn].astype(np.int64)), weights=members[1, drawn])

    def sample(self, atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
        return at_most(atoms, size, rng)

    def alone(self, atoms: Batch) -> Batch:
        return atoms

    def part(self, model: M, posterior: Beliefs, cluster: int) -> M:
        return model

    def untied(self, model: M) -> M:
        return model

    def untied_summary(self, model: WholeModel, summary: Summary) -> Summary:
        return summary

    def tied_summary(self, model: WholeModel, summary: Summary, whole: Summary) -> Summary:
        return summary

    def with_ties(self, model: WholeModel, summary: Summary, atoms: Batch) -> Summary:
        return summary

    def absorbed(
        self, model: WholeModel, posterior: Beliefs, value: Summary, own: Batch, others: np.ndarray
    ) -> np.ndarray:
        params = model.allocation_step(without_data(model, value).take(others))
        return absorbed_rows(model, posterior, params, own, others)

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        return mixture_density(model, posterior, batch)

    def counted(self, batch: Batch) -> Batch:
        left = batch.counting()
        return left if left is batch else replace(left, groups=None)  # rows may no longer follow one another

    def predict(self, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
        return label_rows(self, posterior, batch, soft, top)

    def resp(self, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        self.check(posterior.model, batch)
        return resp_of_rows(self, posterior, batch)

    def n_shares(self, model: WholeModel, n_clusters: int) -> int:
        return n_clusters

    def shares(self, posterior: Beliefs) -> np.ndarray:
        return posterior.weights

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        return {}

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        return draw_rows(posterior, n, length, rng)


def require_linkable(model: WholeModel) -> None:
    """SettingError unless groups of linked atoms can draw their cluster as one in this model."""
    if type(model.structure) is not Independent:
        raise SettingError(
            f"links: atoms of {type(model.allocation).__name__} depend on their group, sequence or stratum, and cannot "
            "be assigned together; train a mixture such as DPMixture(...)"
        )
