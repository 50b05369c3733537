"""Atoms that are independent given the weights: mixtures, also with weights of their own in each stratum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core import Batch, GroupStates, Summary, require_finite_rows
from bnp_dask.errors import SettingError
from bnp_dask.inputs import as_a, is_a, positions, require
from bnp_dask.kernels import ScreenedWeights, log, log_sum_exp
from bnp_dask.observation import (
    Axis,
    CompletingObservation,
    Estimate,
    Given,
    Product,
    QuadraticObservation,
    lacks_any,
    numbers_per_cluster,
    unlabelled,
)
from bnp_dask.structure.answers import (
    UNSEEN_MASS,
    draw_rows,
    drawn_atoms,
    log_predictives,
    unseen_cluster,
)
from bnp_dask.structure.base import (
    NO_PLACES,
    MovePolicy,
    Trial,
    Visit,
    absorbed_rows,
    draw,
    without_data,
)
from bnp_dask.structure.linked import assigned, whole_tiles
from bnp_dask.structure.protocols import Beliefs, LocalStep, M, MixtureAllocation, WholeModel
from bnp_dask.structure.screened import screened_pieces
from bnp_dask.structure.visit import RowsStructure, TrialRun, UnorderedAtoms, visit_rows


@dataclass(frozen=True)
class Independent(UnorderedAtoms, RowsStructure):
    """Structure of mixtures: each atom comes from a cluster, independently of the other atoms.

    Its allocation has the methods of :class:`~bnp_dask.structure.protocols.MixtureAllocation`.
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

    def screens(self, model: WholeModel) -> bool:
        return model.precision == "mixed" and is_a(model.observation, QuadraticObservation)

    def effort(self, model: WholeModel, n_atoms: float, n_clusters: int) -> float:
        return n_atoms * n_clusters * numbers_per_cluster(model.observation)

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

    def collect(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """At most ``limit`` atoms of a batch that belong to a requested cluster, in their order.

        They are drawn without replacement, and weighted by their mass there: otherwise atoms between overlapping
        clusters would count twice.
        """
        members = found.members[cluster]
        drawn = draw(np.arange(members.shape[1]), limit, rng)
        return replace(batch.take(members[0, drawn].astype(np.int64)), weights=members[1, drawn])

    def part(self, model: M, posterior: Beliefs, cluster: int | Sequence[int]) -> M:
        return model

    def with_ties(self, model: WholeModel, summary: Summary, atoms: Batch) -> Summary:
        return summary

    def absorbed(
        self, model: WholeModel, posterior: Beliefs, value: Summary, own: Batch, others: np.ndarray
    ) -> np.ndarray:
        params = model.allocation_step(without_data(model, value).take(others))
        return absorbed_rows(model, posterior, params, own, others)

    def counted(self, batch: Batch) -> Batch:
        left = batch.counting()
        return left if left is batch else replace(left, groups=None)  # rows may no longer follow one another

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


# -- atoms in strata, which share the clusters and have weights of their own --------------------------------------
STRATA = "strata"
"""Name of the summary field that counts the atoms of each stratum in each cluster, and of the estimate of weights."""


@dataclass(frozen=True)
class Strata(Independent):
    """Structure of mixtures in strata: atoms are independent given the weights of their stratum."""

    def require_fitting(self, model: WholeModel) -> None:
        observation = unlabelled(model.observation)
        parts = observation.parts if isinstance(observation, Product) else ()
        if sum(isinstance(part, Given) for part in parts) != 1:
            raise SettingError(
                f"{type(model.allocation).__name__} needs to know which column holds the strata; use "
                'Product({"site": Given(), ("height", "weight"): Gaussian()})'
            )
        allocation: Any = model.allocation
        if not isinstance(observation, Product) or observation.n_features is None or observation.places is None:
            return  # its prior is not set yet
        if allocation.column is None:
            return
        names, place = self.given(observation)
        if (allocation.column, allocation.n_strata) != (place, len(names)):
            raise SettingError(
                f"column={allocation.column}, n_strata={allocation.n_strata}: the data have {len(names)} strata in "
                f"column {place}; leave both out"
            )

    def screens(self, model: WholeModel) -> bool:
        return False

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        """Log of the mixture of the clusters' predictive densities with the weights of each atom's stratum, ``(n,)``
        nats."""
        allocation: Any = model.allocation
        shares = allocation.shares(posterior.allocation)
        unseen = unseen_cluster(model) if (shares[:, -1] > UNSEEN_MASS).any() else None
        with np.errstate(divide="ignore"):
            log_shares = log(shares if unseen is not None else shares[:, :-1])
        rows = [np.zeros(0)]
        for tile in allocation.tiles(batch, posterior.n_clusters + 1):
            terms = log_predictives(model, posterior, unseen, tile)
            rows.append(log_sum_exp(terms + log_shares[allocation.strata_of(tile)]))
        out = np.concatenate(rows)
        require_finite_rows(out, batch, "log density")
        return out

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        """``strata``: expected weights of the clusters in each stratum, ``(K, S)``."""
        allocation: Any = posterior.model.allocation
        names, _ = self.given(posterior.model.observation)
        shares = allocation.shares(posterior.allocation)[:, :-1].T
        return {STRATA: Estimate((Axis("stratum", names),), lambda: shares)}

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        """Atoms of strata in proportion to the atoms that training had of each."""
        if length is not None:
            raise SettingError(f"length={length!r}: rows have no length; leave it out")
        allocation: Any = posterior.model.allocation
        mass = np.maximum(posterior.allocation.mass, 0.0)  # sums that cancelled may have left less than nothing
        shares = allocation.shares(posterior.allocation)[:, :-1]
        stratum = rng.choice(len(mass), n, p=mass / mass.sum())
        edges = np.cumsum(shares, axis=1)[stratum]
        chosen = np.sum(rng.random(n)[:, None] * edges[:, -1:] >= edges, axis=1)
        place = np.minimum(chosen, shares.shape[1] - 1)
        x = drawn_atoms(posterior, place, rng)
        x[:, allocation.column] = stratum
        return x, place

    def given(self, observation: Any) -> tuple[tuple[str, ...], int]:
        """Names of the strata, and the position of their column; the likelihood has its prior."""
        product = unlabelled(observation)
        assert isinstance(product, Product) and product.places is not None and product.n_features is not None
        for part, place in zip(product.parts, product.places, strict=True):
            if isinstance(part, Given):
                return tuple(map(str, part.levels or ())), int(positions(place, product.n_features)[0])
        raise SettingError("no column of strata: a Product needs a part Given()")
