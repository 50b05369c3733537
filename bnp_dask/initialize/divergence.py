"""The smoothed Bregman divergence of thesis Algorithm 2.2, for any observation model.

Write J(x, phi) = log p(x | phi) + log p(phi), without terms that do not depend on phi, and phi-hat(x) for its maximum:
the point estimate of a cluster that holds the atom x alone.  For an exponential family with conjugate prior
(thesis eqs. 2.33-2.36, 2.62)

    J(x, phi-hat(x)) - J(x, phi) = (1 + nu) D(mu(s(x)), mu),      mu(s) = (s + tau) / (1 + nu),

the divergence between smoothed means in line 6 of the algorithm.  The factor 1 + nu is the same for all
atoms and centres, so it is left in; the unit is nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from bnp_dask.core import Batch, Summary
from bnp_dask.initialize.base import atom_tiles, hard_resp
from bnp_dask.model import Model
from bnp_dask.observation import Params, lacks_any, numbers_per_cluster

TILE_NUMBERS = 2**17
"""Numbers in the statistics of one tile of single-atom clusters (1 MB): D x D each for full covariances."""

ROUNDING = 1e-13
"""Divergences below this share of the numbers that they are differences of are rounding errors and count as zero."""


def _tiles(model: Model, batch: Batch) -> Iterator[Batch]:
    size = int(np.clip(TILE_NUMBERS // numbers_per_cluster(model.observation), 1, 1024))
    for start in range(0, batch.n_atoms, size):
        yield batch.rows(start, min(start + size, batch.n_atoms))


@dataclass(frozen=True, eq=False)
class Centres:
    """Point estimates of some clusters: their parameters and log prior ``(K,)``."""

    params: Params
    log_prior: np.ndarray


def single_atoms(model: Model, atoms: Batch) -> Centres:
    """phi-hat of each atom, as K = n clusters that hold one atom each, counted once."""
    summary = single_summary(model, atoms)
    params = model.observation.at_mode(model.observation.global_step(summary))
    return Centres(params, model.observation.log_prior(params))


def single_summary(model: Model, atoms: Batch) -> Summary:
    """Summary in which each atom, counted once, is a cluster of its own; ids 0..n-1."""
    n = atoms.n_atoms
    return model.summarize(np.arange(n), replace(atoms, weights=None), hard_resp(np.arange(n), n))


def log_joint(model: Model, centres: Centres, batch: Batch) -> np.ndarray:
    """J(x, phi), ``(n, K)`` nats."""
    return model.observation.expected_log_lik(centres.params, batch) + centres.log_prior


@dataclass(frozen=True, eq=False)
class Best:
    """J(x, phi-hat(x)) of each atom and the size of its rounding error, both ``(n,)`` nats."""

    value: np.ndarray
    rounding: np.ndarray


class Singles(Protocol):
    """Atoms as clusters of one atom each, in closed form."""

    @property
    def joint(self) -> np.ndarray:
        """J(x, phi-hat(x)), ``(n,)`` nats."""
        ...

    @property
    def size(self) -> np.ndarray:
        """Size of its terms, ``(n,)`` nats."""
        ...

    def joint_with(self, index: np.ndarray) -> np.ndarray:
        """J(x, phi) of all atoms under the point estimates of the atoms ``index (m,)``, ``(n, m)`` nats."""
        ...


@runtime_checkable
class ClosedForm(Protocol):
    """Likelihood with a closed form that needs no cluster for each atom."""

    def single_atoms(self, batch: Batch) -> Singles:
        """Atoms without missing entries as clusters of one atom each."""
        ...


def closed_form(model: Model, batch: Batch) -> Singles | None:
    """Atoms as clusters of one atom each, if there is a closed form; these are for atoms without missing entries."""
    observation = model.observation
    if isinstance(observation, ClosedForm) and not (model.marginalises and lacks_any(batch)):
        return observation.single_atoms(batch)
    return None


def best_joint(model: Model, batch: Batch) -> Best:
    """Largest J that each atom can reach: in closed form if the likelihood has one, otherwise tile by tile."""
    found = closed_form(model, batch)
    return best_joint_by_clusters(model, batch) if found is None else _best_of(found)


def _best_of(found: Singles) -> Best:
    return Best(found.joint, ROUNDING * (1.0 + found.size))


def distances_between(model: Model, batch: Batch) -> Callable[[np.ndarray], np.ndarray]:
    """Function that returns the divergences of all atoms from the atoms at some positions ``(m,)``, ``(n, m)`` nats."""
    found = closed_form(model, batch)
    if found is not None:
        best = _best_of(found)
        return lambda index: divergence(best, found.joint_with(index))
    return partial(_distances_by_clusters, model, batch, best_joint_by_clusters(model, batch))


def _distances_by_clusters(model: Model, batch: Batch, best: Best, index: np.ndarray) -> np.ndarray:
    centres = single_atoms(model, batch.take(index))
    joint = [log_joint(model, centres, tile) for tile in atom_tiles(model, batch, len(index))]
    return divergence(best, np.concatenate(joint))


def best_joint_by_clusters(model: Model, batch: Batch) -> Best:
    """Largest J that each atom can reach, for any likelihood: each atom becomes a cluster."""
    observation = model.observation
    of_no_atoms = observation.at_mode(observation.global_step(model.empty_summary(np.zeros(1, np.int64))))
    prior = Centres(of_no_atoms, observation.log_prior(of_no_atoms))
    values, sizes = [], []
    for tile in _tiles(model, batch):
        summary = single_summary(model, tile)
        params = observation.at_mode(observation.global_step(summary))
        score, log_prior = observation.score(params, summary), observation.log_prior(params)
        values.append(score + log_prior)
        # J at the prior's own mode shows how large the terms are that cancel in an atom far from the origin
        sizes.append(1.0 + np.abs(score) + np.abs(log_prior) + np.abs(log_joint(model, prior, tile)[:, 0]))
    return Best(np.concatenate(values), ROUNDING * np.concatenate(sizes))


def divergence(best: Best, joint: np.ndarray) -> np.ndarray:
    """(1 + nu) D of every atom from every centre, ``(n, K)`` nats, from J ``(n, K)``; never negative."""
    gap = best.value[:, None] - joint
    return np.where(gap > best.rounding[:, None], gap, 0.0)


def nearest(model: Model, batch: Batch, atoms: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Closest of the centres phi-hat(atoms) to each atom of the batch: the centre with the largest J.

    Centres are made in tiles, so that many of them take no more memory than few.

    Returns
    -------
    labels, joint
        Position among ``atoms`` (the lowest of equals) and J in nats, both ``(n,)``.
    """
    labels = np.zeros(batch.n_atoms, np.int64)
    joint = np.full(batch.n_atoms, -np.inf)
    first = 0
    for tile in _tiles(model, atoms):
        centres = single_atoms(model, tile)
        start = 0
        for rows in atom_tiles(model, batch, tile.n_atoms):
            here = slice(start, start + rows.n_atoms)
            start += rows.n_atoms
            new = log_joint(model, centres, rows)
            place = new.argmax(axis=1)
            value = np.take_along_axis(new, place[:, None], axis=1)[:, 0]
            closer = value > joint[here]
            labels[here][closer] = first + place[closer]
            joint[here][closer] = value[closer]
        first += tile.n_atoms
    return labels, joint
