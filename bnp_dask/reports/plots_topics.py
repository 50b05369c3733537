"""Pictures of topics: the map of them, and their shares over time or another value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bnp_dask.analysis.topics.layout import topic_positions
from bnp_dask.analysis.topics.over import TopicShares
from bnp_dask.analysis.topics.words import in_tables, token_shares, top_words
from bnp_dask.errors import SettingError
from bnp_dask.model import Posterior
from bnp_dask.reports.plots import BLUE, new_axes
from bnp_dask.reports.plots_sequences import state_colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

MAP_AREA = 0.12
"""Share of the map covered by all circles together, overlaps counted twice."""


def map_radii(share: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Radius of each topic on a map, ``(K,)``: areas are proportional to shares, with equal sums on all maps."""
    side = float(np.ptp(xy, axis=0).max(initial=0.0))
    # identical topics are all at one point
    radii: np.ndarray = (side if side > 1e-4 else 1.0) * np.sqrt(MAP_AREA * share / np.pi)
    return radii


def plot_topic_map(posterior: Posterior, n_labels: int, ax: Axes | None) -> Axes:
    """Topics as circles; see :func:`bnp_dask.plot.topic_map`."""
    from matplotlib.patches import Circle

    xy, share = topic_positions(posterior), token_shares(posterior)
    radii, order = map_radii(share, xy), in_tables(posterior)
    words = top_words(posterior, 2)
    ax = new_axes(7.0, 5.6) if ax is None else ax
    margin = 1.6 * radii.max(initial=1e-9)
    low, high = xy.min(axis=0) - margin, xy.max(axis=0) + margin
    for k in order.tolist():
        ax.add_patch(Circle(xy[k], radii[k], facecolor=BLUE, edgecolor="white", alpha=0.45, linewidth=1.0))
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_color("#cbd5e1")
    ax.set_title("near: like words; area: share of the tokens", fontsize=9, loc="left")
    _label(ax, xy, radii, [(k, f"{posterior.ids[k]}\n{' '.join(words.names(k))}") for k in order[:n_labels].tolist()])
    return ax


def _label(ax: Axes, xy: np.ndarray, radii: np.ndarray, labels: list[tuple[int, str]]) -> None:
    """Name circles in the order of the list, each at a free place: on it, below, above, or beside."""
    ax.apply_aspect()
    taken: list[Bbox] = []
    for k, label in labels:
        away = np.array([0.0, 1.1 * radii[k]])
        places = [(xy[k], "center", "center"), (xy[k] - away, "center", "top"), (xy[k] + away, "center", "bottom")]
        places += [(xy[k] + away[::-1], "left", "center"), (xy[k] - away[::-1], "right", "center")]
        text = ax.text(0.0, 0.0, label, fontsize=7, linespacing=1.1)
        for at, horizontal, vertical in places:
            text.set(position=at, ha=horizontal, va=vertical)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()


def plot_topics_over(shares: TopicShares, n_topics: int, ax: Axes | None) -> Axes:
    """Lines over time and numbers, stacked bars by texts; see :func:`bnp_dask.plot.topics_over`."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    if not len(shares.values):
        raise SettingError(f"no document has a value of {shares.by!r}, so there is nothing to draw")
    tokens = np.where(shares.documents > 0, shares.tokens, 0.0) + 1e-12
    mean = (np.nan_to_num(shares.share) * tokens[:, None]).sum(axis=0)
    chosen = np.argsort(-mean, kind="stable")[:n_topics]
    colors = state_colors(shares.ids[chosen])
    labels = [f"{shares.ids[k]}: {shares.names[k]}" for k in chosen.tolist()]
    height = 3.6 if shares.on_line else 1.2 + 0.26 * len(shares.values)
    ax = new_axes(8.4, height) if ax is None else ax
    if shares.on_line:
        x = np.array(shares.values) if not shares.is_time else np.array(shares.values, "datetime64[us]")
        for k, label in zip(chosen.tolist(), labels, strict=True):
            ax.plot(x, shares.share[:, k], marker="o", markersize=2.5, color=colors[int(shares.ids[k])], label=label)
        ax.set_ylim(bottom=0.0)
        ax.set_xlabel(shares.by)
        if shares.is_time:
            locator = AutoDateLocator(maxticks=10)
            ax.xaxis.set_major_locator(locator)
            ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    else:
        row, left = np.arange(len(shares.values)), np.zeros(len(shares.values))
        for k, label in zip(chosen.tolist(), labels, strict=True):
            width = np.nan_to_num(shares.share[:, k])
            ax.barh(row, width, left=left, height=0.8, color=colors[int(shares.ids[k])], label=label)
            left += width
        ax.barh(row, np.where(left > 0, 1.0 - left, 0.0), left=left, height=0.8, color="#e2e8f0", label="other topics")
        ax.set_yticks(row, [one if len(one) <= 30 else f"{one[:29]}…" for one in shares.labels], fontsize=8)
        ax.set_ylim(len(row) - 0.4, -0.6)
        ax.set_xlim(0.0, 1.0)
        ax.set_ylabel(shares.by)
    axis = ax.yaxis if shares.on_line else ax.xaxis
    axis.set_major_formatter(lambda value, _: f"{value:.0%}")
    kind = "tokens" if shares.weight == "tokens" else "documents"
    ax.set_title(f"share of the {kind}", fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return ax
