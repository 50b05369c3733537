"""Measures and pictures of runs for experiments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from bnp_dask.analysis import contingency
from bnp_dask.inference import STATES, Gibbs
from bnp_dask.model import Posterior
from bnp_dask.reports.plot import history
from bnp_dask.reports.plots import new_figure
from bnp_dask.training import TrainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_DECAY = 0.51
"""Decay of learning rates where the thesis has 0.5, which does not settle (Robbins and Monro) and is refused."""

COLORS = ("#2b6cb0", "#c05621", "#2f855a", "#553c9a", "#b7791f", "#97266d", "#4a5568", "#000000")
"""Colours of runs in one picture."""


class Watch:
    """Keeps the posterior and the CPU seconds of each lap."""

    def __init__(self) -> None:
        self.posteriors: list[Posterior] = []
        self.seconds: list[float] = []
        self.began = time.process_time()

    def on_start(self, info: Any) -> None:
        """Start the clock."""
        self.began = time.process_time()

    def on_batch(self, done: int) -> None:
        """Nothing to do."""

    def on_lap(self, row: Any, posterior: Posterior) -> None:
        """Keep a lap."""
        self.posteriors.append(posterior)
        self.seconds.append(time.process_time() - self.began)

    def on_end(self, reason: str) -> None:
        """Nothing to do."""


def sampler(laps: int, states: int = STATES) -> Gibbs:
    """Gibbs sampling as the thesis compares with: the result of a run is its last sweep, the only one that is kept.

    Without a burn-in no topics are united as wholes (see :class:`bnp_dask.Gibbs`): single tokens alone move.
    """
    return Gibbs(laps=laps, burn_in=0, thin=laps, states=states)


def by_lap(
    watch: Watch, result: TrainResult, measure: Callable[[Posterior], float], most: int = 8
) -> tuple[list[int], list[float]]:
    """Some laps of a run, from 1, closer together at the start, and a measure of their posteriors; the last is final.

    The posterior of a result is not always the one after the last lap: the weights of topics are settled at the end.
    """
    n = len(watch.posteriors)
    laps = np.unique(np.geomspace(1, n, most).round().astype(int)).tolist()
    return laps, [measure(watch.posteriors[lap - 1] if lap < n else result.posterior) for lap in laps]


def counts_by_lap(result: TrainResult) -> tuple[list[int], list[float]]:
    """Laps of a run, from 1, and its numbers of clusters."""
    rows = [row for row in result.history if row["lap"] >= 1]
    return [row["lap"] for row in rows], [row["n_clusters"] for row in rows]


def last_objective(result: TrainResult) -> float:
    """Objective at the end of a run, nats."""
    return float(result.history[-1]["elbo"])


def cluster_counts(posterior: Posterior) -> np.ndarray:
    """Expected atoms of each cluster, ``(K,)``."""
    assert posterior.summary is not None  # posteriors of runs have one
    return np.asarray(posterior.summary["N"])


def in_use(posterior: Posterior, least: float = 1.0) -> int:
    """Clusters that hold at least one atom ("effective" clusters, thesis 3.6.1)."""
    return int(np.sum(cluster_counts(posterior) >= least))


def own_clusters(truth: np.ndarray, found: np.ndarray) -> int:
    """True clusters with a cluster of their own: most of its atoms are theirs, and most of theirs are its."""
    table = contingency(truth, found).toarray()
    true, own = linear_sum_assignment(-table)
    shared = table[true, own]
    return int(((shared > 0.5 * table.sum(axis=1)[true]) & (shared > 0.5 * table.sum(axis=0)[own])).sum())


def majority_share(truth: np.ndarray, found: np.ndarray) -> float:
    """Share of atoms with the label that most atoms of their cluster have (alignment accuracy, thesis 4.4.3)."""
    known = truth >= 0
    return float(contingency(truth[known], found[known]).toarray().max(axis=0).sum() / known.sum())


def hamming(truth: np.ndarray, found: np.ndarray) -> float:
    """Share of steps in another state than the true one, after the best one-to-one alignment (thesis 6.6)."""
    known = truth >= 0
    table = contingency(truth[known], found[known]).toarray()
    return float(1.0 - table[linear_sum_assignment(-table)].sum() / known.sum())


def joined(labels: Any) -> np.ndarray:
    """Labels of all steps in one vector."""
    return np.concatenate(labels) if isinstance(labels, list) else np.asarray(labels)


def grid(rows: int, columns: int, width: float = 10.0, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, ``(rows, columns)``."""
    figure = new_figure(width, height * rows)
    return figure, figure.subplots(rows, columns, squeeze=False)


def traces(ax: Axes, runs: Mapping[str, TrainResult], column: str = "elbo") -> None:
    """One column of several histories in one picture."""
    for place, (name, result) in enumerate(runs.items()):
        before = len(ax.lines)
        history(result, column, ax=ax)
        ax.lines[before].set(color=COLORS[place % len(COLORS)], marker="", label=name)
    low, high = zip(*((np.nanmin(y), np.nanmax(y)) for y in (line.get_ydata() for line in ax.lines)), strict=True)
    margin = 0.05 * (max(high) - min(low)) or 0.5
    ax.set_ylim(min(low) - margin, max(high) + margin)
    ax.legend(frameon=False, fontsize=7)


def lines(
    ax: Axes, x: Sequence[float], curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str, log: bool = False
) -> None:
    """Lines with marks over common places."""
    for place, (name, y) in enumerate(curves.items()):
        ax.plot(x, y, "o-", color=COLORS[place % len(COLORS)], markersize=4, label=name)
    if log:
        ax.set_xscale("log")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=7)


def curves(ax: Axes, values: Mapping[str, tuple[Sequence[int], Sequence[float]]], ylabel: str) -> None:
    """A measure of several runs by laps, on a logarithmic scale."""
    for place, (name, (laps, y)) in enumerate(values.items()):
        ax.plot(laps, y, "-", color=COLORS[place % len(COLORS)], label=name)
    ax.set_xscale("log")
    ax.set_xlabel("lap")
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=6)


def dots(ax: Axes, values: Mapping[str, Sequence[float]], ylabel: str) -> None:
    """One column of dots for each kind of run, one dot for each run."""
    for place, (_, y) in enumerate(values.items()):
        shift = np.linspace(-0.15, 0.15, len(y)) if len(y) > 1 else [0.0]
        ax.plot(place + np.asarray(shift), y, "o", color=COLORS[place % len(COLORS)], markersize=4)
    ax.set_xticks(range(len(values)), list(values), fontsize=7 if len(values) <= 4 else 5.5)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)


def pictures(ax: Axes, rows: np.ndarray, side: int, columns: int = 8, limit: int = 40) -> None:
    """Rows ``(n, side^2)`` as small images in a grid, each on its own scale."""
    shown = rows[:limit].reshape(-1, side, side)
    height = -(-len(shown) // columns)
    sheet = np.full((height * (side + 1) - 1, columns * (side + 1) - 1), np.nan)
    for place, image in enumerate(shown):
        i, j = divmod(place, columns)
        top = np.abs(image).max() or 1.0
        sheet[i * (side + 1) : i * (side + 1) + side, j * (side + 1) : j * (side + 1) + side] = image / top
    ax.imshow(sheet, cmap="gray_r", interpolation="nearest", vmin=min(0.0, float(np.nanmin(sheet))), vmax=1.0)
    ax.axis("off")
