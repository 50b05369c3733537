"""Pictures of clusters by kind of likelihood: ellipses, tables of probabilities and rates, bars of levels.

Each function draws a figure of its own; clusters have the same colour in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.model import Posterior
from bnp_dask.reports.mixtures.parts import LevelValues, Normals, Values
from bnp_dask.reports.plots import new_figure
from bnp_dask.reports.plots_sequences import state_colors
from bnp_dask.structure.nouns import CLUSTER, Noun, noun_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 12
"""Clusters with their ids in their ellipses and in the legend, the heaviest; ellipses of others are thinner."""

WRITTEN = 240
"""Most cells of a table with written numbers."""

CURVE = 240
"""Points of a curve."""

TITLE = 24
"""Most characters of a feature's name in a picture."""


@dataclass(frozen=True, eq=False)
class Atoms:
    """Atoms to draw: features ``(n, D)``, some of which may be missing, and ids of clusters ``(n,)``."""

    x: np.ndarray
    label: np.ndarray


@dataclass(frozen=True, eq=False)
class Shown:
    """Clusters that pictures show, the heaviest first.

    Parameters
    ----------
    order
        Positions in the posterior, ``(K,)``.
    ids
        Their ids, ``(K,)``.
    weights
        Their expected shares, ``(K,)``.
    names
        Names of all columns of the data, or None.
    noun
        Noun of the clusters: clusters, topics or states.
    """

    order: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    names: Sequence[str] | None
    noun: Noun = CLUSTER

    @staticmethod
    def of(posterior: Posterior, names: Sequence[str] | None, limit: int) -> Shown:
        """The ``limit`` heaviest clusters of a posterior."""
        order = np.argsort(-posterior.weights, kind="stable")[:limit]
        return Shown(order, posterior.ids[order], posterior.weights[order], names, noun_of(posterior.model))

    def name(self, column: int) -> str:
        """Name of a column, short enough for a picture."""
        name = f"column {column}" if self.names is None else self.names[column]
        return name if len(name) <= TITLE else f"{name[: TITLE - 1]}…"


def cluster_colors(ids: np.ndarray, weights: np.ndarray) -> dict[int, tuple[float, float, float]]:
    """Colour of each cluster, by rank of weight."""
    order = np.argsort(-weights, kind="stable")
    by_rank = state_colors(np.arange(len(order)))
    return {int(ids[k]): by_rank[rank] for rank, k in enumerate(order.tolist())}


def _ellipse(ax: Axes, mean: np.ndarray, covariance: np.ndarray, color: Any, named: bool) -> None:
    """Curve of two standard deviations of a normal distribution in the plane; ``(2,)``, ``(2, 2)``."""
    angle = np.linspace(0.0, 2.0 * np.pi, 100)
    values, vectors = np.linalg.eigh(covariance)
    line = 2.0 * (vectors * np.sqrt(np.maximum(values, 0.0))) @ np.stack([np.cos(angle), np.sin(angle)])
    style: dict[str, Any] = {"linewidth": 1.5} if named else {"linewidth": 0.8, "alpha": 0.5}
    ax.plot(mean[0] + line[0], mean[1] + line[1], color=color, **style)


# -- features with means and variances ------------------------------------------------------------------------
def plot_pairs(shown: Shown, normals: Normals, chosen: np.ndarray, colors: Any, atoms: Atoms | None) -> Figure:
    """Chosen features against each other with an ellipse of each cluster, and each alone with its densities.

    Parameters
    ----------
    chosen
        Positions among the features of ``normals``, three at most.
    colors
        Colour of each cluster, by id.
    atoms
        Atoms to draw with the colours of their clusters; histograms of them lie behind the densities.
    """
    n = len(chosen)
    figure = new_figure(*((6.4, 3.4) if n == 1 else (3.2 * n, 2.9 * n)))
    axes = figure.subplots(n, n, squeeze=False)
    ranges = [_range(shown, normals, f, atoms) for f in chosen.tolist()]
    for row in range(n):
        for column in range(n):
            ax = axes[row, column]
            if column > row:
                ax.axis("off")
                continue
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize=8)
            ax.set_xlim(*ranges[column])
            if column == row:
                _densities(ax, shown, normals, int(chosen[row]), colors, atoms)
            else:
                ax.set_ylim(*ranges[row])
                draw_pair(ax, shown, normals, (int(chosen[column]), int(chosen[row])), colors, atoms)
            if row == n - 1:
                ax.set_xlabel(shown.name(int(normals.columns[chosen[column]])), fontsize=9)
            if column == 0 and row > 0:
                ax.set_ylabel(shown.name(int(normals.columns[chosen[row]])), fontsize=9)
    if n > 1:
        _legend(axes[0, n - 1], shown, colors)
    else:
        _legend(axes[0, 0], shown, colors, outside=True)
    return figure


def _range(shown: Shown, normals: Normals, f: int, atoms: Atoms | None) -> tuple[float, float]:
    """Values of a feature that a picture spans: three deviations of the clusters shown, and the atoms."""
    mean, deviation = normals.mean[shown.order, f], np.sqrt(normals.variance[shown.order, f])
    low, high = float((mean - 2.6 * deviation).min()), float((mean + 2.6 * deviation).max())
    if atoms is not None:
        x = atoms.x[:, normals.columns[f]]
        x = x[np.isfinite(x)]
        if len(x):
            low, high = min(low, float(np.quantile(x, 0.005))), max(high, float(np.quantile(x, 0.995)))
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin


def _densities(ax: Axes, shown: Shown, normals: Normals, f: int, colors: Any, atoms: Atoms | None) -> None:
    """Densities of a feature in each cluster, each times the share of its cluster."""
    low, high = ax.get_xlim()
    x = np.linspace(low, high, CURVE)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    if atoms is not None:
        values = atoms.x[:, normals.columns[f]]
        values = values[np.isfinite(values)]
        if len(values):
            ax.hist(values, bins=40, range=(low, high), density=True, color="#e2e8f0", zorder=0)
    for k, identity, weight in zip(shown.order.tolist(), shown.ids.tolist(), shown.weights.tolist(), strict=True):
        m, v = normals.mean[k, f], max(float(normals.variance[k, f]), 1e-300)
        y = weight * np.exp(-0.5 * (x - m) ** 2 / v) / np.sqrt(2.0 * np.pi * v)
        ax.plot(x, y, color=colors[identity], linewidth=1.5)
    ax.set_ylim(bottom=0.0)


def draw_pair(
    ax: Axes, shown: Shown, normals: Normals, pair: tuple[int, int], colors: Any, atoms: Atoms | None
) -> None:
    """Ellipses of the clusters in two features, at the positions ``pair`` in ``normals``, and the atoms."""
    if atoms is not None:
        xy = atoms.x[:, normals.columns[list(pair)]]
        other = (0.63, 0.68, 0.75)  # of clusters that are too light to be shown
        listed = set(shown.ids.tolist())
        paint = [colors[i] if i in listed else other for i in atoms.label.tolist()]
        ax.scatter(xy[:, 0], xy[:, 1], c=paint, s=6, alpha=0.45, linewidths=0, rasterized=True)
    covariance, mean = normals.covariance(*pair), normals.mean[:, list(pair)]
    for rank, (k, identity) in enumerate(zip(shown.order.tolist(), shown.ids.tolist(), strict=True)):
        _ellipse(ax, mean[k], covariance[k], colors[identity], rank < NAMED)
        if rank < NAMED and np.ptp(mean[shown.order], axis=0).any():
            text = ax.text(mean[k, 0], mean[k, 1], str(identity), ha="center", va="center", fontsize=8, clip_on=True)
            text.set_bbox({"facecolor": "white", "alpha": 0.65, "edgecolor": "none", "pad": 0.6})


def _legend(ax: Axes, shown: Shown, colors: Any, outside: bool = False) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colors[i], linewidth=2.5, label=f"{i}: {w:.1%}")
        for i, w in list(zip(shown.ids.tolist(), shown.weights.tolist(), strict=True))[:NAMED]
    ]
    more = len(shown.ids) - len(handles)
    title = f"{shown.noun.one}: share" + (f" (and {more} more)" if more > 0 else "")
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if outside else {"loc": "upper right"}
    ax.legend(
        handles=handles, title=title, frameon=False, fontsize=8, title_fontsize=8, ncols=1 if outside else 2, **place
    )


# -- tables -------------------------------------------------------------------------------------------------------
SCALES = {
    "probability": "probability of a one",
    "rate": "expected count, as a share of the largest in its column",
    "share": "probability of a word, as a share of the largest in its column",
    "mean": "expected value",
}
"""Meanings of the colours of a table, by kind of value."""


def plot_values(shown: Shown, values: Values, chosen: np.ndarray) -> Figure:
    """Chosen features of the clusters as a table with coloured cells; ``chosen`` are positions among the features."""
    table = values.value[np.ix_(shown.order, chosen)]
    rows, columns = table.shape
    names = [shown.name(int(c)) for c in values.columns[chosen]]
    tall = 0.07 * max(map(len, names))
    figure = new_figure(min(2.6 + 0.52 * columns, 12.0), 0.9 + tall + 0.27 * max(rows, 3))
    ax = figure.add_subplot()
    peak = np.ones(columns) if values.kind == "probability" else np.abs(table).max(axis=0, initial=0.0)
    if values.kind == "mean":
        peak[:] = peak.max(initial=0.0)
    scaled = table / np.where(peak > 0, peak, 1.0)
    signed = bool((table < 0).any())
    style: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1.0} if signed else {"cmap": "Blues", "vmin": 0.0}
    image = ax.imshow(scaled, aspect="auto", vmax=1.0, **style)
    if values.kind != "mean":
        figure.colorbar(image, ax=ax, pad=0.02, fraction=0.04).ax.tick_params(labelsize=8)
    if table.size <= WRITTEN:
        for i in range(rows):
            for j in range(columns):
                ax.text(j, i, _number(table[i, j]), ha="center", va="center", fontsize=7,
                        color="white" if abs(scaled[i, j]) > 0.6 else "#2d3748")  # fmt: skip
    ax.set_xticks(np.arange(columns), names, fontsize=8, rotation=90)
    _rows_of_clusters(ax, shown)
    return figure


def _number(value: float) -> str:
    """A number in five characters or so."""
    if abs(value) >= 1000:
        return f"{value:.0e}".replace("e+0", "e")
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def _rows_of_clusters(ax: Axes, shown: Shown) -> None:
    labels = [f"{i}: {w:.1%}" for i, w in zip(shown.ids.tolist(), shown.weights.tolist(), strict=True)]
    ax.set_yticks(np.arange(len(labels)), labels, fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


MOST_LEVELS = 8
"""Levels of a column with their own colour, the most probable; the rest share one."""


def plot_levels(shown: Shown, columns: Sequence[LevelValues]) -> Figure:
    """Probabilities of the levels of each column as bars, one row per cluster."""
    wide = min(len(columns), 3)
    tall = -(-len(columns) // wide)
    each = 1.0 + 0.26 * max(len(shown.order), 3)
    figure = new_figure(3.9 * wide + 0.6, each * tall)
    axes = figure.subplots(tall, wide, squeeze=False)
    for ax in axes.flat[len(columns) :]:
        ax.axis("off")
    for place, (ax, column) in enumerate(zip(axes.flat, columns, strict=False)):
        value = column.value[shown.order]
        order = np.argsort(-(shown.weights @ value), kind="stable")
        top = order[:MOST_LEVELS] if len(order) > MOST_LEVELS else order
        names = [column.levels[i] for i in top]
        bars = value[:, top].T
        paint = list(state_colors(np.arange(len(top))).values())
        if len(order) > len(top):
            bars, names = np.vstack([bars, 1.0 - bars.sum(axis=0)]), [*names, f"{len(order) - len(top)} others"]
            paint.append((0.8, 0.84, 0.88))
        left = np.zeros(len(value))
        for name, width, color in zip(names, bars, paint, strict=True):
            short = name if len(name) <= TITLE else f"{name[: TITLE - 1]}…"
            ax.barh(np.arange(len(value)), width, left=left, height=0.82, color=color, label=short)
            left = left + width
        ax.set_xlim(0.0, 1.0)
        ax.set_ylim(len(value) - 0.5, -0.5)
        _rows_of_clusters(ax, shown)
        if place % wide:
            ax.set_yticklabels([])
        ax.xaxis.set_major_formatter(lambda p, _: f"{p:.0%}")
        ax.tick_params(axis="x", labelsize=8)
        ax.set_title(shown.name(column.column), loc="left", fontsize=10)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=7, handlelength=1.0)
    return figure
