"""Toy sequences with eight states (thesis 6.6.1), and runs on them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.allocation import HDPHMM
from bnp_dask.analysis.predict import predict
from bnp_dask.inference import Memoized
from bnp_dask.initialize import ContiguousBlocks
from bnp_dask.initialize.base import Initialization
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import Move
from bnp_dask.observation import Gaussian
from bnp_dask.reproduce.data import MEANS, toy_sequences
from bnp_dask.reproduce.measures import hamming
from bnp_dask.training.train import train


def sequences(n: int = 32, length: int = 1000, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Sequences of points ``(T, 2)`` and the true states of all of them, ``(n T,)``.

    The "diagonally dominant" toy of Foti et al. (2014) as the authors of the thesis generate it: sequence i starts in
    state i modulo 8.
    """
    return toy_sequences(n, length, seed)


@dataclass(frozen=True, eq=False)
class Run:
    """How a run ended."""

    n_clusters: int
    distance: float
    solved_at: int
    laps: int
    elbo: float
    seconds: float
    history: list[dict[str, Any]]
    posterior: Any

    @property
    def solved(self) -> bool:
        """Whether the eight states were found and nothing else."""
        return self.n_clusters == len(MEANS) and self.distance == 0.0


def run(
    n_clusters: int,
    kappa: float,
    seed: int = 0,
    laps: int = 30,
    moves: Sequence[Move] | None = None,
    init: Initialization | None = None,
    size: tuple[int, int] = (32, 1000),
    batch_groups: int = 4,
) -> Run:
    """Train with all moves from ``n_clusters`` windows, four sequences a batch, and compare with the truth."""
    points, true = sequences(*size, seed=seed)
    model = Model(HDPHMM(gamma=10.0, alpha=0.5, alpha0=10.0, kappa=kappa), Gaussian())
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            model, points, init=init or ContiguousBlocks(n_clusters), schedule=Memoized(laps),
            moves=(Birth(), Merge(), Delete()) if moves is None else moves,
            batch_size=batch_groups * size[1], rng=seed,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    history = list(result.history)
    found = predict(result.posterior, points)
    found = np.concatenate(found) if isinstance(found, list) else np.asarray(found)
    last = {row["lap"]: row["n_clusters"] for row in history}
    solved_at = max([lap for lap, k in last.items() if k != len(MEANS)], default=0) + 1
    return Run(
        result.posterior.n_clusters, hamming(true, found), solved_at, history[-1]["lap"], history[-1]["elbo"], seconds,
        history, result.posterior,
    )  # fmt: skip
