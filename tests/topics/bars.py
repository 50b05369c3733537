"""Toy bars of thesis 5.6.1: 900 words in a square of 30 by 30, ten topics that are bars of six rows or columns."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from bnp_dask.reproduce import data

SIDE = 30
WIDTH = 6
"""Rows or columns of a bar: five bars each way tile the square."""

N_BARS = 10
SMOOTH = 0.05
"""Share of each bar's probability that is spread over all words."""


def bars(smooth: float = SMOOTH) -> np.ndarray:
    """Word probabilities of the ten bars, ``(10, 900)``: five lying, then five standing."""
    return data.bar_topics(smooth)


def bars_corpus(n_docs: int = 1000, length: int = 200, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """Documents of one to three bars in random proportions, ``(D, 900)``, and the bars."""
    return data.mixed_bar_documents(n_docs, length, seed), bars()


def thin_bars(seed: int, side: int = 12, n_docs: int = 1000, length: int = 120) -> tuple[sparse.csr_array, np.ndarray]:
    """Bars of one row or column each, ``2 side`` of them, one to four in a document; and the bars."""
    rng = np.random.default_rng(seed)
    lines = np.eye(side)[:, :, None] * np.ones(side)
    phi = np.concatenate([lines, lines.transpose(0, 2, 1)]).reshape(2 * side, -1) / side
    phi = (1.0 - SMOOTH) * phi + SMOOTH / side**2
    rows = []
    for _ in range(n_docs):
        used = rng.choice(len(phi), rng.integers(1, 5), replace=False)
        rows.append(rng.multinomial(length, rng.dirichlet(np.ones(len(used))) @ phi[used]))
    return sparse.csr_array(np.array(rows, np.float64)), phi


def unequal_bars(
    seed: int, side: int = 12, n_docs: int = 2000, length: int = 80
) -> tuple[sparse.csr_array, np.ndarray]:
    """Bars of one row or column each, some a hundred times as frequent as others; and the bars."""
    rng = np.random.default_rng(1000 + seed)
    lines = np.eye(side)[:, :, None] * np.ones(side)
    phi = np.concatenate([lines, lines.transpose(0, 2, 1)]).reshape(2 * side, -1) / side
    share = np.maximum(rng.dirichlet(np.ones(len(phi))), 1e-3)
    weights = [rng.dirichlet(share) for _ in range(n_docs)]
    phi = 0.98 * phi + 0.02 / side**2
    rows = [rng.multinomial(rng.poisson(length), own @ phi) for own in weights]
    return sparse.csr_array(np.array(rows, np.float64)), phi
