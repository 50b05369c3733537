"""Random data drawn from a posterior: rows, documents or groups, a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.errors import SettingError
from bnp_dask.inputs.protocols import as_a
from bnp_dask.inputs.settings import whole_number
from bnp_dask.observation import Multinomial
from bnp_dask.observation.interface.drawing import DrawingObservation, DrawingSteps, DrawingWords
from bnp_dask.structure.answers.chances import chances_of
from bnp_dask.structure.asking import Beliefs
from bnp_dask.structure.verbs import GroupedAllocation

Drawn = tuple[Any, np.ndarray]
"""Atoms ``(n, D)``, or documents as sparse counts, and the positions of their clusters."""


def draw_rows(posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> Drawn:
    """Atoms, each from an independently drawn cluster, or documents of ``length`` words of one topic."""
    observation = posterior.model.observation
    words = _required(posterior, length, isinstance(observation, DrawingWords))
    place = _choose(posterior.weights, n, rng)
    if isinstance(observation, DrawingWords):
        return sparse.csr_array(observation.draw_words(posterior.observation, place, words, rng)), place
    return drawn_atoms(posterior, place, rng), place


def draw_groups(posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> Drawn:
    """Documents, or groups of dense atoms, each with shares of topics of its own."""
    size = _required(posterior, length, True)
    prior, _ = as_a(posterior.model.allocation, GroupedAllocation).prior_mass(posterior.allocation)
    shares = rng.dirichlet(np.maximum(prior, 1e-300), n)
    shares = np.nan_to_num(shares, nan=1.0 / len(prior))  # masses so small that all draws were zero
    if not isinstance(posterior.model.observation, Multinomial):
        place = np.concatenate([_choose(row, size, rng) for row in shares])
        return drawn_atoms(posterior, place, rng), place
    lam = posterior.observation.lam
    phi = lam / lam.sum(axis=1, keepdims=True)
    words = shares @ phi
    counts = rng.multinomial(size, words / words.sum(axis=1, keepdims=True)).astype(np.float64)
    return sparse.csr_array(counts), shares.argmax(axis=1)


def draw_path(posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> Drawn:
    """Path of states, and a step from each."""
    observation = posterior.model.observation
    _required(posterior, length, isinstance(observation, DrawingWords))
    found, place = chances_of(posterior), np.empty(n, np.int64)
    place[0] = _choose(found.start, 1, rng)[0]
    for t in range(1, n):
        place[t] = _choose(found.matrix[place[t - 1]], 1, rng)[0]
    if not isinstance(observation, DrawingSteps):
        return drawn_atoms(posterior, place, rng), place
    before = max(posterior.model.lags, 1)
    rows = np.zeros((n + before, len(posterior.observation.B[0])))
    for t, k in enumerate(place.tolist()):
        rows[t + before] = observation.draw_step(posterior.observation, k, rows[t : t + before][::-1].ravel(), rng)
    return rows[before:], place


def _required(posterior: Beliefs, length: int | None, is_needed: bool) -> int:
    """Words of a document or atoms of a group, zero if there are neither; SettingError if ``length`` is invalid."""
    if is_needed != (length is not None):
        need = "needs length=, the words of a document or atoms of a group" if length is None else "has no length"
        raise SettingError(
            f"length={length!r}: {type(posterior.model.allocation).__name__} of {_name(posterior)} {need}"
        )
    return 0 if length is None else whole_number("length", length, 1, what="a whole number of words or atoms")


def _choose(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Positions drawn in proportion to weights ``(K,)``, ``(n,)``."""
    return rng.choice(len(weights), n, p=weights / weights.sum())


def _name(posterior: Beliefs) -> str:
    return type(posterior.model.observation).__name__


def drawn_atoms(posterior: Beliefs, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An atom of each of some clusters, at the positions ``place (n,)``."""
    observation = posterior.model.observation
    if not isinstance(observation, DrawingObservation):
        raise SettingError(f"{_name(posterior)} says not how to draw atoms; it needs a method draw(params, place, rng)")
    return observation.draw(posterior.observation, place, rng)
