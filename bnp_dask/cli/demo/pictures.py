"""The final pictures of demonstrations, and the clusters of pictures that they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.reports.plots import lap_positions, new_figure, plot_history, plot_moves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bnp_dask.training.results import History


FLAT = 0.02
"""Contrast below which a cluster is called flat, in shares of white."""
ORIENTED = 0.4
"""Coherence above which a cluster is called an edge."""


@dataclass(frozen=True, eq=False)
class Look:
    """Appearance of a cluster of patches.

    Parameters
    ----------
    share
        Expected share of patches.
    contrast
        Root mean square of a pixel, in shares of white.
    angle
        Direction of its edges, degrees, 0 to 180: 0 is horizontal.
    coherence
        0: no direction.  1: all edges have one direction.
    directions
        Leading eigenvectors of the covariance, ``(3, 8, 8)``.
    samples
        Patches drawn from the cluster, ``(3, 8, 8)``.
    color
        Red, green, blue: the angle as hue, the coherence as saturation, the contrast as brightness.
    """

    share: float
    contrast: float
    angle: float
    coherence: float
    directions: np.ndarray
    samples: np.ndarray
    color: tuple[float, float, float]

    @property
    def words(self) -> str:
        """The cluster in two words."""
        if self.contrast < FLAT:
            return "flat"
        return f"edges at {self.angle:.0f} deg" if self.coherence > ORIENTED else "texture"


@dataclass(frozen=True, eq=False)
class Card:
    """A cluster: share, description, mean image ``(8, 8)``, its four most certain members ``(4, 8, 8)``."""

    share: float
    words: str
    mean: np.ndarray
    members: np.ndarray


INK, FAINT = "#1a202c", "#718096"
DPI = 100


def patches_picture(
    path: Path,
    photographs: Sequence[np.ndarray],
    colored: Sequence[np.ndarray],
    looks: Sequence[Look],
    history: History,
    n_atoms: int,
) -> Path:
    """Photographs beside their clusters, the clusters, and the objective over the run.

    Parameters
    ----------
    path
        PNG to write.
    photographs, colored
        Grey images ``(427, 640)`` and the color of the cluster of each patch, ``(420, 633, 3)``.
    looks
        Clusters by falling share.
    history, n_atoms
        History and number of atoms of the run.
    """
    figure = new_figure(13.0, 11.4)
    figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.05)
    top, middle, bottom = figure.subfigures(3, 1, squeeze=False, height_ratios=(4.1, 4.9, 2.4)).flat
    top.suptitle(
        "Two photographs, and the cluster of every 8x8 patch: hue is the direction of edges (grey: none), "
        "brightness the contrast",
        fontsize=12,
        color=INK,
    )
    axes = top.subplot_mosaic([["photo0", "color0", "color1"], ["photo1", "color0", "color1"]], width_ratios=(1, 2, 2))
    for i, (photograph, color) in enumerate(zip(photographs, colored)):
        axes[f"photo{i}"].imshow(photograph, cmap="gray", vmin=0.0, vmax=1.0)
        axes[f"color{i}"].imshow(color, interpolation="nearest")
    for ax in axes.values():
        ax.set_axis_off()
    _look_cards(middle, looks)
    left, centre, right = bottom.subplots(1, 3, width_ratios=(4, 4, 3))
    _objective(left, history, n_atoms)
    left.set_title(f"Objective over all {n_atoms:,} patches (nats per patch)", loc="left", fontsize=11)
    plot_moves(history, centre)
    clusters = history["n_clusters"]
    centre.set_title(f"From {clusters[0]} cluster to {clusters[-1]}: accepted moves per lap", loc="left", fontsize=11)
    _shares(right, [look.share for look in looks], [look.color for look in looks])
    figure.savefig(path, dpi=DPI)
    return path


def _objective(ax: Axes, history: History, n_atoms: int) -> None:
    """The objective per atom after the end of lap 2: the laps before are the climb from a random start."""
    x, _ = lap_positions(history)
    shown = x >= min(2.0, x.max())
    ax.plot(x[shown], history["elbo"][shown] / n_atoms, color="#2b6cb0", linewidth=1.8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    ax.set_xlabel("lap")


def _look_cards(figure: Any, looks: Sequence[Look]) -> None:
    figure.suptitle(
        "The largest clusters.  Above: the three directions of largest variance;  below: three patches drawn from it",
        fontsize=12,
        color=INK,
    )
    grid = figure.subplots(3, 8)
    for ax in grid.flat:
        ax.set_axis_off()
    for ax, look in zip(grid.flat, looks):
        rows = [_strip(look.directions, each=True), _strip(look.samples, each=False)]
        ax.imshow(_stack(rows), cmap="gray", vmin=-1.0, vmax=1.0, interpolation="nearest")
        ax.set_title(f"{look.share:.1%}  {look.words}", fontsize=8.5, color=INK, pad=7)
        ax.plot([0.0, 1.0], [1.03, 1.03], transform=ax.transAxes, color=look.color, linewidth=4, clip_on=False)


def _strip(images: np.ndarray, each: bool) -> np.ndarray:
    """Images side by side, scaled to -1 .. 1 each or together, with gaps of missing values."""
    largest = np.abs(images).max(axis=(1, 2), keepdims=True) if each else np.abs(images).max()
    scaled = images / np.maximum(largest, 1e-300)
    gap = np.full((images.shape[1], 1), np.nan)
    return np.hstack([piece for image in scaled for piece in (image, gap)][:-1])


def _stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.full((1, rows[0].shape[1]), np.nan)
    return np.vstack([piece for row in rows for piece in (row, gap)][:-1])


def _shares(ax: Axes, shares: Sequence[float], colors: Sequence[Any]) -> None:
    ax.bar(np.arange(1, len(shares) + 1), np.array(shares) * 100, color=colors, edgecolor=FAINT, linewidth=0.4)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("Share of each cluster (%)", loc="left", fontsize=11)
    ax.set_xlabel("cluster, by share")
    ax.set_xlim(0.3, len(shares) + 0.7)


def digits_picture(path: Path, cards: Sequence[Card], history: History, title: str) -> Path:
    """Clusters of digits as their mean and four of their members, and the objective over the run."""
    columns = 8
    rows = -(-len(cards) // columns)
    figure = new_figure(13.0, 1.25 * rows + 3.2)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.25 * rows + 0.6, 2.4)).flat
    top.suptitle(title, fontsize=12, color=INK)
    grid = np.atleast_2d(top.subplots(rows, columns))
    for ax in grid.flat:
        ax.set_axis_off()
    for ax, card in zip(grid.flat, cards):
        gap = np.full((17, 1), np.nan)
        members = _stack([_strip_plain(card.members[:2]), _strip_plain(card.members[2:])])
        mean = np.kron(card.mean, np.ones((2, 2)))
        mean = np.vstack([mean, np.full((1, 16), np.nan)])
        ax.imshow(np.hstack([mean, gap, members]), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
        ax.set_title(f"{card.share:.1%}:  {card.words}", fontsize=8.5, color=INK, pad=3)
    left, right = bottom.subplots(1, 2, width_ratios=(3, 2))
    plot_history(history, "elbo", left)
    plot_moves(history, right)
    clusters = history["n_clusters"]
    right.set_title(f"From {clusters[0]} cluster to {clusters[-1]}: accepted moves per lap", loc="left", fontsize=11)
    figure.savefig(path, dpi=DPI)
    return path


def _strip_plain(images: np.ndarray) -> np.ndarray:
    return np.hstack([images[0], np.full((8, 1), np.nan), images[1]])
