"""Pictures of hidden Markov models: sequences as coloured strips, transitions, and durations of states.

Each function draws on ``ax`` (a new figure by default), and returns it.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.metrics import match_labels
from bnp_dask.analysis.sequences.durations import Durations
from bnp_dask.analysis.sequences.labels import as_list, split_sequences
from bnp_dask.analysis.sequences.transitions import Transitions, transitions
from bnp_dask.errors import DataError
from bnp_dask.model import Posterior
from bnp_dask.reports.plots import BLUE, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = (
    "#2b6cb0", "#dd6b20", "#2f855a", "#c53030", "#6b46c1", "#b7791f", "#00838f", "#d53f8c", "#718096", "#7cb342",
    "#5d4037", "#90cdf4", "#fbb6ce", "#9ae6b4", "#faf089", "#d6bcfa",
)  # fmt: skip
"""Colours of states, by falling number of steps."""

NAMED = 12
"""States in a legend."""

SEQUENCES = 8
"""Sequences shown."""

CELLS = 25
"""Most states of a matrix with written numbers."""


def state_colors(labels: Sequence[Any] | np.ndarray) -> dict[Any, tuple[float, float, float]]:
    """A distinct colour for each distinct label, by falling frequency."""
    from matplotlib.colors import to_rgb

    names, counts = np.unique(np.asarray(labels), return_counts=True)
    colors: dict[Any, tuple[float, float, float]] = {}
    for rank, k in enumerate(np.argsort(-counts, kind="stable")):
        red, green, blue = to_rgb(PALETTE[rank % len(PALETTE)])
        hue, light, full = colorsys.rgb_to_hls(red, green, blue)
        # once round the palette: paler and darker versions of it
        turn = rank // len(PALETTE)
        shift = 0.0 if turn == 0 else (0.22 if turn % 2 else -0.16) / (1 + 0.25 * (turn // 2))
        red, green, blue = colorsys.hls_to_rgb(
            (hue + 0.031 * turn) % 1, float(np.clip(light + shift, 0.12, 0.93)), full
        )
        colors[names[k].item()] = (red, green, blue)
    return colors


def plot_segments(
    labels: Any,
    sequences: Any = None,
    truth: Any = None,
    *,
    names: Sequence[Any] | None = None,
    x: Any = None,
    marks: Sequence[Any] | None = None,
    limit: int = SEQUENCES,
    steps: tuple[int, int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Sequences as coloured strips, one below the other; see :func:`bnp_dask.plot.segmentation`.

    Parameters
    ----------
    marks
        For each sequence steps to mark below its strip, such as known changes.
    steps
        First step shown and one past the last; default: all.
    """
    found = as_list(labels, sequences)
    true = None if truth is None else as_list(truth, sequences)
    if true is not None and [len(s) for s in true] != [len(s) for s in found]:
        raise DataError("truth and labels are of sequences of different lengths; needs one true label for each step")
    listed = [g for g, states in enumerate(found) if len(states)][:limit]
    if not listed:
        raise DataError("there are no steps to draw")
    own, shown = _colors(found, true)
    lines = None if x is None else (x if isinstance(x, (list, tuple)) else split_sequences(x, _offsets(found)))
    tall = 1.0 + (0.8 if true is not None else 0.0) + (1.6 if lines is not None else 0.0)
    if ax is None:
        legend = 0.6 + 0.19 * min(len(shown), NAMED)
        ax = new_axes(10.0, max(1.05 + 0.42 * tall * len(listed), legend))
    ends = []
    for row, g in enumerate(listed):
        start, stop = (0, len(found[g])) if steps is None else (max(steps[0], 0), min(steps[1], len(found[g])))
        if stop <= start:
            continue
        top = row * (tall + 0.35)
        ends.append((start, stop))
        if lines is not None:
            _draw_lines(ax, np.asarray(lines[g], np.float64)[start:stop], start, top)
            top += 1.6
        _strip(ax, found[g][start:stop], own, start, top, 1.0, mark=true is not None)
        if true is not None:
            _strip(ax, true[g][start:stop], shown, start, top + 1.0, 0.8)
        if marks is not None:
            at = np.asarray(marks[g])
            bottom = top + (1.0 if true is None else 1.8)
            ax.vlines(at[(at >= start) & (at < stop)], bottom, bottom + 0.3, color="black", linewidth=1.5, zorder=3)
    if not ends:
        raise DataError(f"steps={steps}: no sequence has steps there")
    ax.set_xlim(min(e[0] for e in ends), max(e[1] for e in ends))
    ax.set_ylim(len(listed) * (tall + 0.35) - (0.35 if marks is None else 0.0), 0.0)
    middle = [row * (tall + 0.35) + tall / 2 for row in range(len(listed))]
    ax.set_yticks(middle, [str(g if names is None else names[g]) for g in listed], fontsize=9)
    _finish(
        ax, [name for name, there in (("data", lines), ("states", found), ("true labels", true)) if there is not None]
    )
    _legend(ax, shown, "true" if true is not None else "state")
    return ax


def _finish(ax: Axes, rows: Sequence[str]) -> None:
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("step")
    said = f" ({', '.join(rows)} from top to bottom)" if len(rows) > 1 else ""
    ax.set_title(f"Segmentation{said}", loc="left", fontsize=11)


def _offsets(found: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(s) for s in found])])


def _colors(found: Sequence[np.ndarray], true: Sequence[np.ndarray] | None) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Colours of states, and the colours in the legend."""
    states = np.concatenate(found)
    if true is None:
        colors = state_colors(states)
        return colors, colors
    labels = np.concatenate(true)
    colors = state_colors(labels)
    matched = match_labels(labels, states, "many-to-one")
    return {state: colors[label] for state, label in matched.items()}, colors


def _strip(ax: Axes, values: np.ndarray, colors: Mapping[Any, Any], start: int, top: float, height: float, mark=False):
    """One sequence as a strip; ``mark``: white lines between states of one colour."""
    names, index = np.unique(values, return_inverse=True)
    image = np.array([colors[name.item()] for name in names])[index][None]
    ax.imshow(
        image, aspect="auto", extent=(start, start + len(values), top + height, top), interpolation="nearest", zorder=2
    )
    if mark:
        change = np.flatnonzero(values[1:] != values[:-1]) + 1
        same = change[(image[0, change] == image[0, change - 1]).all(axis=1)]
        if len(same) <= len(values) / 20 + 40:  # else lines would hide the colours
            ax.vlines(start + same, top, top + height, color="white", linewidth=0.8, zorder=3)


def _draw_lines(ax: Axes, x: np.ndarray, start: int, top: float) -> None:
    """Columns of the data as lines in a band above a strip, each to its own scale."""
    low, high = x.min(axis=0), x.max(axis=0)
    scaled = (x - low) / np.where(high > low, high - low, 1.0)
    shown = scaled[:, np.linspace(0, x.shape[1] - 1, min(6, x.shape[1])).astype(int)]
    greys = np.linspace(0.15, 0.65, shown.shape[1])
    for column, grey in zip(shown.T, greys, strict=True):
        ax.plot(start + np.arange(len(x)) + 0.5, top + 1.5 - 1.4 * column, color=str(grey), linewidth=0.6, zorder=2)


def _legend(ax: Axes, colors: Mapping[Any, Any], title: str) -> None:
    from matplotlib.patches import Patch

    first = list(colors.items())[:NAMED]
    handles = [Patch(color=color, label=str(name)) for name, color in first]
    more = f" (and {len(colors) - NAMED} more)" if len(colors) > NAMED else ""
    ax.legend(
        handles=handles, title=f"{title}, most steps first{more}", loc="upper left", bbox_to_anchor=(1.0, 1.0),
        frameon=False, fontsize=8, title_fontsize=8, alignment="left",
    )  # fmt: skip


def plot_transitions(what: Posterior | Transitions, limit: int = 60, ax: Axes | None = None) -> Axes:
    """Expected transition probabilities as a heat map, states by weight; colours show the probability of leaving.

    Most steps stay in their state, which would hide all else: the diagonal has its own scale.

    Parameters
    ----------
    what
        Posterior of a hidden Markov model, or its :func:`bnp_dask.analysis.sequences.transitions`.
    limit
        Most states shown.
    ax
        Where to draw.
    """
    if isinstance(what, Posterior):
        found = transitions(what).sorted(np.argsort(-what.weights, kind="stable")[:limit])
    else:
        found = what.sorted(np.arange(len(what.ids))[:limit])
    k = len(found.ids)
    ax = new_axes(min(2.2 + 0.42 * k, 9.0), min(1.6 + 0.38 * k, 8.0)) if ax is None else ax
    away = np.ma.masked_array(found.matrix, np.eye(k, dtype=bool))
    stay = np.ma.masked_array(found.matrix, ~np.eye(k, dtype=bool))
    image = ax.imshow(away, cmap="Blues", vmin=0.0, vmax=max(float(away.max()) if k > 1 else 0.0, 1e-12))
    ax.imshow(stay, cmap="Greys", vmin=0.0, vmax=1.4)
    ax.figure.colorbar(image, ax=ax, label="probability of leaving for", fraction=0.046, pad=0.03)
    few = k <= CELLS
    ticks = np.arange(0, k, -(-k // 45))
    ax.set_xticks(ticks, [str(found.ids[i]) for i in ticks], fontsize=8, rotation=90 if k > 12 else 0)
    ax.set_yticks(ticks, [str(found.ids[i]) for i in ticks], fontsize=8)
    if few:
        largest = float(away.max()) if k > 1 else 1.0
        for i in range(k):
            for j in range(k):
                p = float(found.matrix[i, j])
                dark = p > 0.55 * largest if i != j else p > 0.8
                if p >= 0.005:
                    ax.text(j, i, f"{p:.2f}".lstrip("0"), ha="center", va="center", fontsize=7,
                            color="white" if dark else "#2d3748")  # fmt: skip
    ax.set_xlabel("state after")
    ax.set_ylabel("state before")
    ax.set_title("Transitions (grey: staying)", loc="left", fontsize=11)
    return ax


def plot_durations(durations: Durations, limit: int = 30, ax: Axes | None = None) -> Axes:
    """Lengths of the runs of each state: from the lowest to the highest quantile, the median and the mean as marks."""
    order = np.argsort(-durations.steps, kind="stable")
    order = order[durations.runs[order] > 0][:limit]
    ax = new_axes(7.0, 1.0 + 0.24 * max(len(order), 3)) if ax is None else ax
    y = np.arange(len(order))
    quantiles = durations.quantiles[order]
    low, high = quantiles.min(axis=1, initial=np.inf), quantiles.max(axis=1, initial=0)
    ax.hlines(y, low, high, color=BLUE, linewidth=5, alpha=0.35)
    if 0.5 in durations.levels:
        median = durations.quantiles[order, durations.levels.index(0.5)]
        ax.plot(median, y, "|", color=BLUE, markersize=11, markeredgewidth=2.5, label="median")
    ax.plot(durations.mean[order], y, "o", color="#c05621", markersize=4, label="mean")
    ax.set_yticks(y, [str(i) for i in durations.ids[order]], fontsize=8)
    ax.set_ylim(len(order) - 0.4, -0.6)
    if len(order) and high.max() > 50 * max(low.min(), 1.0):
        ax.set_xscale("log")
    else:
        ax.set_xlim(left=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(axis="x", color="#e2e8f0", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_ylabel("state")
    ax.set_xlabel("steps in one run")
    span = f"{100 * min(durations.levels):g}% to {100 * max(durations.levels):g}%" if durations.levels else ""
    ax.set_title(f"How long states last ({span} of runs)", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax
