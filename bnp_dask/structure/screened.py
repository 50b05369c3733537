"""Screening in mixtures of Gaussians: only clusters that matter to an atom are computed, if that is cheaper."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.kernels.gaussian.bounds import LARGEST, SMALLEST, Forms
from bnp_dask.kernels.gaussian.screen import Costs, Screen, screened_weights, suits_homes, weights_by_home
from bnp_dask.kernels.mixture.resp import ScreenedWeights
from bnp_dask.observation.missing.entries import lacks_any

PIECE_NUMBERS = 2**21
"""Float32 numbers in an (n, K) tile (8 MB)."""

MANY = 2048
"""Clusters from which atoms are screened by their homes, if each belongs to few clusters: a guess."""

AT_ONCE = 2**18
"""Atoms that are screened by their homes at a time: the more, the more share one."""


def screened_pieces(
    forms: Forms, log_weights: np.ndarray, batch: Batch, may_miss: bool = False
) -> Iterator[tuple[Batch, ScreenedWeights | None]]:
    """Pieces of a batch with the weights of the clusters that matter to each atom.

    Parameters
    ----------
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
    screen = Screen(forms, log_weights)
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
        yield piece, screened_weights(screen, piece.x, _fits(piece.weights))


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
