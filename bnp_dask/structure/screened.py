"""Screening in mixtures of Gaussians: only clusters that matter to an atom are computed, if that is cheaper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any
from weakref import finalize

import numpy as np

from bnp_dask.core import Batch
from bnp_dask.kernels import (
    LARGEST,
    SMALLEST,
    Costs,
    Forms,
    Patience,
    Screen,
    ScreenedWeights,
    is_fixed,
    screened_weights,
    suits_homes,
    weights_by_home,
)
from bnp_dask.observation import lacks_any

PIECE_NUMBERS = 2**21
"""Float32 numbers in an (n, K) tile (8 MB)."""

MANY = 2048
"""Clusters from which atoms are screened by their homes, if each belongs to few clusters: a guess."""

AT_ONCE = 2**18
"""Atoms that are screened by their homes at a time: the more, the more share one."""


KEPT = 2
"""Screens that a process keeps: while batches of one posterior finish, the first of the next one begin."""


def screened_pieces(
    owner: Any, forms: Forms, log_weights: np.ndarray, batch: Batch, may_miss: bool = False
) -> Iterator[tuple[Batch, ScreenedWeights | None]]:
    """Pieces of a batch with the weights of the clusters that matter to each atom.

    Parameters
    ----------
    owner
        Posterior to which the forms and weights belong.  Derived tables are kept for further batches, as
        long as it lives and is among the last two.
    forms
        Log likelihoods of all clusters.
    log_weights
        ``(K,)`` nats.
    batch
        Atoms.
    may_miss
        Whether atoms may lack entries; if one atom of a piece does, all clusters are computed for the piece.

    Yields
    ------
    piece, weights
        None if all clusters are needed.  The size of pieces depends on K only; whether one is screened depends on its
        atoms and the posterior.
    """
    k, d = forms.shift.shape
    if len(forms.scale) < k or not worthwhile(batch.n_atoms, k, d):  # workers get no scale matrices for small batches
        yield batch, None
        return
    screen, patience = _kept(owner, forms, log_weights), Patience()
    is_whole = k >= MANY and not (may_miss and lacks_any(batch))
    if is_whole and suits_homes(screen, np.asarray(batch.x)):
        for start in range(0, batch.n_atoms, AT_ONCE):
            piece = batch.rows(start, min(start + AT_ONCE, batch.n_atoms))
            yield piece, weights_by_home(screen, np.asarray(piece.x))
        return
    size = int(np.clip(PIECE_NUMBERS // k, 512, 8192))
    for start in range(0, batch.n_atoms, size):
        piece = batch.rows(start, min(start + size, batch.n_atoms))
        assert isinstance(piece.x, np.ndarray)  # check() has refused sparse counts
        if may_miss and lacks_any(piece):
            yield piece, None
            continue
        yield piece, screened_weights(screen, piece.x, patience, _fits(piece.weights))


_screens: OrderedDict[tuple[int, bool], Screen] = OrderedDict()
_lock = Lock()


def _kept(owner: Any, forms: Forms, log_weights: np.ndarray) -> Screen:
    """The screen of a posterior: the same one for all batches that this process visits under it."""
    key = id(owner), is_fixed()
    with _lock:
        if key not in _screens:
            _screens[key] = Screen(forms, log_weights)
            finalize(owner, _screens.pop, key, None).atexit = False  # before another object gets its id
        _screens.move_to_end(key)
        while len(_screens) > KEPT:
            _screens.popitem(last=False)
        return _screens[key]


def worthwhile(n_atoms: int, n_clusters: int, n_features: int) -> bool:
    """Whether screening is cheaper for atoms that each belong to one cluster."""
    costs = Costs(n_clusters, n_features)
    saved = 0.8 * costs.dense(1.0) - costs.coarse(1.0)
    return n_atoms * saved > 2.0 * costs.ready


def _fits(weights: np.ndarray | None) -> bool:
    """Whether float32 can represent the weights times small responsibilities."""
    if weights is None:
        return True
    seen = weights[weights > 0]
    return len(seen) == 0 or bool(seen.min() > SMALLEST and seen.max() < LARGEST)
