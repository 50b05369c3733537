"""Pictures of a run and its result: the functions of ``bnp.plot``, which draw on ``ax`` (a new figure by default) and
return it, and the figures and sections of pages."""

from __future__ import annotations

import colorsys
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster.hierarchy import dendrogram
from scipy.special import logsumexp

from bnp_dask.analysis import (
    Durations,
    TopicShares,
    Transitions,
    Tree,
    as_labels,
    as_list,
    assign_batch,
    for_batches,
    in_tables,
    is_list_of_arrays,
    match_labels,
    open_for,
    split_sequences,
    token_shares,
    top_words,
    topic_positions,
    transitions,
)
from bnp_dask.analysis.tree import tree
from bnp_dask.core import Batch
from bnp_dask.data import Reader, Source
from bnp_dask.errors import BnpDaskError, DataError, SettingError
from bnp_dask.execute import Executor
from bnp_dask.inference import PRIOR
from bnp_dask.inputs import one_of, plain, to_float, whole_number
from bnp_dask.inputs import shown as in_words
from bnp_dask.model import Posterior
from bnp_dask.moves import SORT
from bnp_dask.observation import Estimate, Product, estimates_of, unlabelled
from bnp_dask.reports import describe
from bnp_dask.reports.pages import Paragraph, Picture, Section
from bnp_dask.store import holds_run
from bnp_dask.structure import CLUSTER, Noun, in_use, noun_of
from bnp_dask.training import NATS, History, settings_of_run

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


# -- any model -----------------------------------------------------------------------------------------------------
BLUE, RED = "#2b6cb0", "#c05621"
MOVE_COLORS = {"birth": "#2f855a", "merge": "#d69e2e", "delete": "#c53030"}
OTHER_COLOR = "#553c9a"
"""Colour of moves of other packages."""


def new_figure(width: float = 6.4, height: float = 3.6) -> Figure:
    """An empty figure, inches; SettingError when matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingError("plots need matplotlib: pip install 'bnp-dask[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float = 6.4, height: float = 3.6) -> Axes:
    """Axes of an empty figure, inches; a notebook shows them as a picture."""
    return shown_in_notebooks(new_figure(width, height).add_subplot())


def shown_in_notebooks(ax: Axes) -> Axes:
    """The axes, with a picture of their figure as their rich representation.

    Axes of the caller have none: pyplot shows their figure.
    """
    ax._repr_png_ = partial(_png_of, ax.figure)  # type: ignore[attr-defined]
    return ax


def _png_of(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    ax.set_axisbelow(True)


# -- history --------------------------------------------------------------------------------------------------
def plot_history(history: History, column: str = "elbo", ax: Axes | None = None, noun: Noun = CLUSTER) -> Axes:
    """One column of the history over laps (over steps when rows have no lap).

    The objective is shown once it covers the whole data set: not during the first lap.
    """
    ax = new_axes() if ax is None else ax
    from matplotlib.ticker import MaxNLocator

    _tidy(ax)
    titles = {"elbo": "Objective (nats)", "n_clusters": noun.many.capitalize()}
    ax.set_title(titles.get(column, column.replace("_", " ")), loc="left", fontsize=11)
    ax.set_xlabel("lap" if "lap" in history else "step")
    if column not in history:
        ax.text(0.5, 0.5, f"no {column!r} in the history", ha="center", va="center", transform=ax.transAxes)
        return ax
    y = np.asarray(history[column], np.float64)
    x, exact = lap_positions(history)
    counts = column == "n_clusters"
    if not counts and exact.any():
        x, y = x[exact], y[exact]
    style: dict[str, Any] = {"drawstyle": "steps-post"} if counts else {}
    ax.plot(x, y, color=RED if counts else BLUE, linewidth=1.8, marker="." if len(y) <= 60 else None, **style)
    finite = y[np.isfinite(y)]
    if len(finite):
        margin = 0.06 * (finite.max() - finite.min()) or max(0.5, 1e-3 * abs(float(finite[0])))
        ax.set_ylim(finite.min() - margin, finite.max() + margin)
    ax.set_xlim(left=0)
    for axis, whole in ((ax.yaxis, counts), (ax.xaxis, x.max(initial=0) >= 4)):
        if whole:
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.ticklabel_format(axis="y", useOffset=False, style="plain")
    return ax


def lap_positions(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Position of each step on the axis of laps, ``(n,)``, and whether its objective covers all data, ``(n,)``.

    The last step of lap L lies at L; steps of one lap are evenly spaced.
    """
    n = len(history)
    if "lap" not in history:
        return np.arange(1.0, n + 1.0), np.ones(n, bool)
    lap = np.asarray(history["lap"], np.float64)
    x = np.empty(n)
    exact = lap > lap.min()
    for value in np.unique(lap):
        steps = np.flatnonzero(lap == value)
        x[steps] = value - 1.0 + np.arange(1, len(steps) + 1) / len(steps)
        exact[steps[-1]] = True
    if "exact" in history:
        exact = np.array([bool(row.get("exact", True)) for row in history])
    return x, exact


def plot_run(history: History, noun: Noun = CLUSTER) -> Figure:
    """Objective and number of clusters over the run, side by side, and below them the moves if there are any."""
    moved = bool(history.moves())
    figure = new_figure(10.0, 6.4 if moved else 3.4)
    axes = figure.subplots(2 if moved else 1, 2, width_ratios=(3, 2), squeeze=False)
    plot_history(history, "elbo", axes[0, 0])
    plot_history(history, "n_clusters", axes[0, 1], noun)
    if moved:
        grid = axes[1, 0].get_gridspec()
        for ax in axes[1]:
            ax.remove()
        plot_moves(history, figure.add_subplot(grid[1, :]))
    return figure


def plot_moves(history: History, ax: Axes | None = None) -> Axes:
    """Accepted proposals per lap: proposals that add clusters, such as births, upwards, the others downwards."""
    ax = new_axes() if ax is None else ax
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    _tidy(ax)
    laps = int(max(np.asarray(history["lap"], np.int64), default=1)) if "lap" in history else 1
    x = np.arange(1, laps + 1)
    below = np.zeros(laps)
    done = [m for m in history.moves() if m["accepted"] and m["kind"] not in (SORT, PRIOR)]
    others = sorted({m["kind"] for m in done} - MOVE_COLORS.keys())
    for kind in [*MOVE_COLORS, *others]:
        accepted = [m for m in done if m["kind"] == kind]
        height = np.bincount(np.array([m["lap"] for m in accepted], np.int64), minlength=laps + 1)[1 : laps + 1].astype(
            float
        )
        # deletes name the clusters that share their atoms as others
        up = kind == "birth" or (kind in others and any(len(m["others"]) > len(m["targets"]) for m in accepted))
        color = MOVE_COLORS.get(kind, OTHER_COLOR)
        label = f"{kind}s ({len(accepted)})"
        ax.bar(x, height if up else -height, bottom=0.0 if up else below, color=color, width=0.8, label=label)
        below = below if up else below - height
    ax.axhline(0.0, color="#4a5568", linewidth=0.8)
    ax.set_xlim(0.4, laps + 0.6)
    ax.set_title("Accepted moves", loc="left", fontsize=11)
    ax.set_xlabel("lap")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{abs(y):.0f}"))
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.2 * (high - low))  # room for the legend above the bars
    ax.legend(frameon=False, fontsize=9, ncols=3, loc="upper right")
    return ax


# -- clusters -------------------------------------------------------------------------------------------------
def plot_weights(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Expected share of each cluster, by rank; logarithmic when shares differ by more than a thousand."""
    ax = new_axes() if ax is None else ax
    _tidy(ax)
    noun = noun_of(posterior.model)
    order = np.argsort(-posterior.weights, kind="stable")
    order = order[in_use(posterior)[order]]
    weights = posterior.weights[order]
    ax.bar(np.arange(1, len(weights) + 1), weights, color=BLUE, width=0.85 if len(weights) <= 100 else 1.0)
    few = len(weights) <= 25
    if few:
        ax.set_xticks(np.arange(1, len(weights) + 1), [str(i) for i in posterior.ids[order]], fontsize=9)
    ax.set_xlabel(f"{noun.one} id, by weight" if few else f"rank of {noun.one} by weight")
    ax.set_title(f"Expected share of {noun.atoms}", loc="left", fontsize=11)
    if len(weights) > 1 and weights[0] > 1000 * weights[-1] > 0:
        ax.set_yscale("log")
    return ax


def plot_clusters(
    posterior: Posterior,
    kind: str = "auto",
    limit: int = 24,
    shape: tuple[int, int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The heaviest clusters as small images; see :func:`bnp_dask.plot.clusters`."""
    order = np.argsort(-posterior.weights, kind="stable")[:limit]
    tiles, each = _tiles(posterior, kind, order, shape)
    n_columns = min(len(tiles), 8 if each == 1 else 3)
    n_rows = -(-len(tiles) // n_columns)
    height, width = tiles[0].shape
    wide = n_columns * width * 1.08
    inches = 10.0 if ax is None else ax.get_window_extent().width / ax.figure.dpi
    gap = 0.24 * wide / inches  # a quarter of an inch above each row, for its labels
    tall = n_rows * (height + gap) + 0.3 * gap
    if ax is None:
        figure = new_figure(inches, inches * tall / wide)
        figure.set_layout_engine("none")
        ax = shown_in_notebooks(figure.add_axes((0.0, 0.0, 1.0, 1.0)))
    for i, (k, tile) in enumerate(zip(order, tiles, strict=True)):
        row, column = divmod(i, n_columns)
        left, top = column * width * 1.08, row * (height + gap) + gap
        top_value = np.nanmax(np.abs(tile)) or 1.0
        signed = np.nanmin(tile) < 0
        low = -top_value if signed else 0.0
        ax.imshow(tile, cmap="gray", vmin=low, vmax=top_value, extent=(left, left + width, top + height, top))
        label = f"{posterior.ids[k]}: {posterior.weights[k]:.1%}"
        ax.text(left, top - 0.15 * gap, label, fontsize=8, va="bottom", ha="left", color="#2d3748")
    ax.set_xlim(-0.04 * width, wide - 0.04 * width)
    ax.set_ylim(tall, 0.0)
    ax.set_aspect("equal")
    ax.axis("off")
    return ax


def _tiles(
    posterior: Posterior, kind: str, order: np.ndarray, shape: tuple[int, int] | None
) -> tuple[list[np.ndarray], int]:
    """An image per cluster, and how many pictures stand side by side in it."""
    observation, params = posterior.model.observation, posterior.observation
    means = describe.means(observation, params)
    one_of("kind", kind, ("auto", "mean", "directions", "covariance"))
    if kind == "auto":
        kind = "mean" if means is not None else "directions"
    if kind == "mean" and means is not None:
        side = _side(means.shape[1], shape)
        return [means[k].reshape(side) for k in order], 1
    if kind in ("directions", "covariance"):
        matrices = [describe.covariance(observation, params, int(k)) for k in order]
        full = [m for m in matrices if m is not None]
        if len(full) == len(matrices):
            if kind == "covariance":
                return full, 1
            side = _side(len(full[0]), shape)
            return [_directions(m, side) for m in full], 4
    raise SettingError(f"{type(observation).__name__} has no {kind} to draw as images")


def _directions(matrix: np.ndarray, side: tuple[int, int]) -> np.ndarray:
    """The four leading eigenvectors side by side, each to its own scale, with a gap of missing values between them."""
    vectors = np.linalg.eigh(matrix)[1][:, ::-1][:, :4]
    # the sign of an eigenvector is arbitrary: its largest entry is made positive
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])])
    gap = np.full((side[0], max(1, side[1] // 8)), np.nan)
    images = [(v / np.abs(v).max()).reshape(side) for v in vectors.T]
    return np.hstack([piece for image in images for piece in (image, gap)][:-1])


def _side(n_features: int, shape: tuple[int, int] | None) -> tuple[int, int]:
    if shape is None:
        side = round(n_features**0.5)
        shape = (side, side)
    try:
        shape = whole_number("rows of shape", shape[0], 1), whole_number("columns of shape", shape[1], 1)
    except (TypeError, IndexError, KeyError):
        raise SettingError(f"shape={in_words(shape)}: needs the rows and columns of an image") from None
    if shape[0] * shape[1] != n_features:
        raise SettingError(
            f"{n_features} features do not fill an image of {shape[0]} x {shape[1]}; pass shape=(rows, columns)"
        )
    return shape


# -- sequences -----------------------------------------------------------------------------------------------------
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
    for rank, name in enumerate(names[np.argsort(-counts, kind="stable")].tolist()):
        red, green, blue = to_rgb(PALETTE[rank % len(PALETTE)])
        hue, light, full = colorsys.rgb_to_hls(red, green, blue)
        # once round the palette: paler and darker versions of it
        turn = rank // len(PALETTE)
        shift = 0.0 if turn == 0 else (0.22 if turn % 2 else -0.16) / (1 + 0.25 * (turn // 2))
        red, green, blue = colorsys.hls_to_rgb(
            (hue + 0.031 * turn) % 1, float(np.clip(light + shift, 0.12, 0.93)), full
        )
        colors[name] = (red, green, blue)
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
    lines = None if x is None else _lines(x, found)
    if names is not None and len(names) != len(found):
        raise DataError(f"{len(names)} names for {len(found)} sequences")
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
            _draw_lines(ax, lines[g][start:stop], start, top)
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
    # short, so that it fits above a narrow picture
    ax.set_title(" over ".join(rows).capitalize() if len(rows) > 1 else "Segmentation", loc="left", fontsize=11)


def _lines(x: Any, found: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The data of each sequence, ``(n_g, D)``."""
    parts = [plain(part, "x") for part in x] if is_list_of_arrays(x) else split_sequences(x, _offsets(found))
    if [part.shape[:1] for part in parts] != [states.shape for states in found] or any(p.ndim > 2 for p in parts):
        shapes = in_words([part.shape for part in parts])
        raise DataError(f"x has sequences of shapes {shapes}; needs a row for each step, (n, D), or a list of such")
    return [to_float(part.reshape(len(part), -1) if part.ndim == 1 else part, "x") for part in parts]


def _offsets(found: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(s) for s in found])])


def _colors(found: Sequence[np.ndarray], true: Sequence[np.ndarray] | None) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Colours of states, and the colours in the legend."""
    states = as_labels(np.concatenate(found), "labels")
    if true is None:
        colors = state_colors(states)
        return colors, colors
    labels = as_labels(np.concatenate(true), "true labels")
    colors = state_colors(labels)
    matched = match_labels(labels, states, "many-to-one")
    return {state: colors[label] for state, label in matched.items()}, colors


def _strip(ax: Axes, values: np.ndarray, colors: Mapping[Any, Any], start: int, top: float, height: float, mark=False):
    """One sequence as a strip; ``mark``: white lines between states of one colour."""
    names, index = np.unique(values, return_inverse=True)
    image = np.array([colors[name] for name in names.tolist()])[index][None]
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
        Posterior of a hidden Markov model, or its :func:`bnp_dask.analysis.sequences`.
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


# -- topics --------------------------------------------------------------------------------------------------------
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


# -- trees of clusters ---------------------------------------------------------------------------------------------
SHOWN = 40
"""Most leaves of a picture; more are united first."""


def draw_tree(found: Tree, limit: int = SHOWN, nats: float = NATS, ax: Axes | None = None) -> Axes:
    """Draw the tree with at most ``limit`` leaves, and a line at ``nats``."""
    size = min(max(limit, found.least), found.n_clusters)
    top = replace(found, posterior=found.cut(size), unions=found.unions[found.n_clusters - size :])
    ax = _figure_of(size).add_subplot() if ax is None else ax
    end = max(nats, 1.0)
    if size > 1:
        linkage = top.linkage
        end = max(end, float(linkage[-1, 2]))
        drawn = dendrogram(linkage, no_plot=True)
        for across, heights in zip(drawn["icoord"], drawn["dcoord"], strict=True):
            ax.plot(heights, across, color=BLUE, linewidth=1.2)
        order = drawn["leaves"]
    else:
        order = [0]
    members, weights = found.members(size), top.posterior.weights
    names = []
    for k in order:
        own = int(top.posterior.ids[k])
        more = len(members[own]) - 1
        names.append(f"{own}{f' and {more} more' if more else ''}: {weights[k]:.1%}")
    ax.set_yticks(5.0 + 10.0 * np.arange(size), names, fontsize=8)
    ax.set_ylim(0.0, 10.0 * size)
    ax.axvline(nats, color="0.6", linewidth=0.8, linestyle="--")
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set_xlim(0.0, 2.0 * end)
    ax.set_xlabel("nats of the objective that are lost")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def save_tree(found: Tree, path: str) -> None:
    """Write a picture of the tree to a file."""
    figure = _figure_of(min(SHOWN, found.n_clusters))
    draw_tree(found, ax=figure.add_subplot())
    figure.savefig(path, bbox_inches="tight", dpi=110)


def _figure_of(n_leaves: int) -> Any:
    return new_figure(6.4, 1.1 + 0.22 * n_leaves)


def tree_section(posterior: Posterior) -> list[Section]:
    """Section of a page: the tree; none if the posterior has no tree, or one cluster."""
    try:
        found = tree(posterior)
    except BnpDaskError:
        return []
    if found.n_clusters < 2:
        return []
    text = f"Clusters united one after the other. {found!r}."
    return [Section("Tree", [Picture(draw_tree(found).figure, text)])]


# -- Section of a page that shows clusters: images if features are pixels, else the features that distinguish them


# -- features that best distinguish clusters -----------------------------------------------------------------------
def of_normals(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Distances of all pairs of clusters in each feature, ``(D, K, K)``, from means and variances ``(K, D)``."""
    m, v = mean.T, np.maximum(variance.T, 1e-300)
    between = 0.5 * (v[:, :, None] + v[:, None, :])
    apart = (m[:, :, None] - m[:, None, :]) ** 2 / (8.0 * between)
    distance: np.ndarray = apart + 0.5 * np.log(between / np.sqrt(v[:, :, None] * v[:, None, :]))
    return distance


def of_levels(probability: np.ndarray) -> np.ndarray:
    """Distances of all pairs of clusters in one column, ``(K, K)``, from the probabilities of its levels ``(K, L)``."""
    root = np.sqrt(np.maximum(probability, 0.0))
    distance: np.ndarray = -np.log(np.clip(root @ root.T, 1e-300, 1.0))
    return distance


def of_values(kind: str, value: np.ndarray) -> np.ndarray:
    """Distances in each feature, ``(D, K, K)``: of Bernoullis, of Poissons and shares, or half squared differences."""
    v = value.T
    if kind == "probability":
        return np.stack([of_levels(np.stack([p, 1.0 - p], axis=1)) for p in v])
    if kind in ("rate", "share"):
        v = np.sqrt(np.maximum(v, 0.0))
    distance: np.ndarray = 0.5 * (v[:, :, None] - v[:, None, :]) ** 2
    return distance


def telling_features(distance: np.ndarray, weights: np.ndarray, n: int) -> np.ndarray:
    """Positions of ``n`` features, the best first: each leaves the least confusion together with the features before.

    Parameters
    ----------
    distance
        Distances of all pairs of clusters in each feature, ``(D, K, K)``.
    weights
        Shares of the clusters, ``(K,)``.
    """
    first, second = np.triu_indices(len(weights), 1)
    # the log of the bound on the error between each pair, which sums do not round to zero
    left = 0.5 * np.log(np.maximum(weights[first] * weights[second], 1e-300))
    pairs = distance[:, first, second]
    chosen: list[int] = []
    for _ in range(min(n, len(pairs))):
        error = logsumexp(left - pairs, axis=1) if len(left) else np.zeros(len(pairs))
        error[chosen] = np.inf
        chosen.append(int(error.argmin()))
        left = left - pairs[chosen[-1]]
    return np.array(chosen, np.int64)


# -- parameters by kind, with their columns ------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Normals:
    """Features with means and variances.

    Parameters
    ----------
    columns
        Position of each feature in the data, ``(d,)``.
    mean, variance
        Mean and variance of each cluster and feature, ``(K, d)``.
    blocks
        Part of the likelihood of each feature, ``(d,)``, and the covariances ``(K, m, m)`` of each part, None if its
        features are independent.
    """

    columns: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    blocks: tuple[np.ndarray, tuple[np.ndarray | None, ...]]

    def covariance(self, i: int, j: int) -> np.ndarray:
        """Covariance of features i and j in each cluster, ``(K, 2, 2)``."""
        found = np.zeros((len(self.mean), 2, 2))
        found[:, 0, 0], found[:, 1, 1] = self.variance[:, i], self.variance[:, j]
        of, matrices = self.blocks
        matrix = matrices[of[i]]
        if of[i] == of[j] and matrix is not None:
            first = int(np.flatnonzero(of == of[i])[0])
            found[:, 0, 1] = found[:, 1, 0] = matrix[:, i - first, j - first]
        return found


@dataclass(frozen=True, eq=False)
class Values:
    """One number for each cluster and feature.

    Parameters
    ----------
    kind
        ``"probability"`` of a one, ``"share"`` of a word, ``"rate"`` of counts, or ``"mean"`` without variances.
    columns
        Position of each feature in the data, ``(d,)``.
    value
        ``(K, d)``.
    """

    kind: str
    columns: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class LevelValues:
    """Probabilities ``(K, L)`` of the levels of one column."""

    column: int
    levels: tuple[str, ...]
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class Parts:
    """Parameters of all clusters that pictures show, in the order of the posterior."""

    normals: Normals | None
    values: tuple[Values, ...]
    levels: tuple[LevelValues, ...]


def parts_of(posterior: Posterior) -> Parts:
    """Parameters by kind; other parameters of a likelihood are left out."""
    observation, params = posterior.model.observation, posterior.observation
    # columns are named by their positions, which Product and Categorical then put into their own names
    found = estimates_of(observation, params, [str(i) for i in range(_width(observation, params))])
    groups: dict[str, dict[str, Estimate]] = {}
    for name, estimate in found.items():
        label, _, kind = name.rpartition(".")
        groups.setdefault(label, {})[kind] = estimate
    normals: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]] = []
    values: list[Values] = []
    levels: list[LevelValues] = []
    for own in groups.values():
        if "covariance" in own or ("mean" in own and "variance" in own):
            normals.append(_normal(own))
        elif "probability" in own and own["probability"].axes[0].name.rpartition(".")[2] == "level":
            levels += _level_values(own["probability"])
        else:
            values += [
                Values(_kind(kind, own[kind]), _columns(own[kind]), own[kind].values)
                for kind in ("probability", "rate", "mean")
                if kind in own and len(own[kind].axes) == 1
            ]
    return Parts(_joined(normals), tuple(values), tuple(levels))


def _kind(kind: str, estimate: Estimate) -> str:
    """Kind of a value; probabilities of words are shares of one whole."""
    return "share" if kind == "probability" and estimate.axes[0].name.rpartition(".")[2] == "word" else kind


def _width(observation: Any, params: Any) -> int:
    """Columns of the data, as far as the likelihood names them."""
    whole = unlabelled(observation)
    if isinstance(whole, Product):
        return whole.n_features or 0
    return max(
        (len(found.values[0]) for found in estimates_of(observation, params, None).values() if found.axes), default=0
    )


def _columns(estimate: Estimate) -> np.ndarray:
    """Positions of the columns of an axis, from the names that they were given."""
    labels: Sequence[str] | None = estimate.axes[0].labels
    return np.arange(len(estimate.values[0])) if labels is None else np.array([int(label) for label in labels])


def _normal(own: dict[str, Estimate]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Columns, means, variances, and covariances of one part; zero-mean Gaussians have means as well: zero."""
    covariance = own["covariance"].values if "covariance" in own else None
    variance = own["variance"].values if covariance is None else np.einsum("kii->ki", covariance)
    mean = own["mean"].values if "mean" in own else np.zeros_like(variance)
    return _columns(own["variance" if covariance is None else "covariance"]), mean, variance, covariance


def _joined(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]) -> Normals | None:
    if not parts:
        return None
    columns, mean, variance, covariances = zip(*parts, strict=True)
    of = np.repeat(np.arange(len(parts)), [len(own) for own in columns])
    joined = [np.concatenate(mean, axis=1), np.concatenate(variance, axis=1)]
    return Normals(np.concatenate(columns), joined[0], joined[1], (of, covariances))


def _level_values(estimate: Estimate) -> list[LevelValues]:
    """Levels of each column; their labels are ``position=level``."""
    labels = [label.partition("=") for label in estimate.axes[0].labels or ()]
    columns = np.array([int(column) for column, _, _ in labels])
    values = estimate.values
    return [
        LevelValues(int(c), tuple(labels[i][2] for i in np.flatnonzero(columns == c)), values[:, columns == c])
        for c in np.unique(columns)
    ]


# -- pictures by kind of likelihood --------------------------------------------------------------------------------

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
        _legend_of_clusters(axes[0, n - 1], shown, colors)
    else:
        _legend_of_clusters(axes[0, 0], shown, colors, outside=True)
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


def _legend_of_clusters(ax: Axes, shown: Shown, colors: Any, outside: bool = False) -> None:
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


# -- tables ---------------------------------------------------------------------------------------------------------
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


# -- the section ---------------------------------------------------------------------------------------------------
FEATURES = 3
"""Features that are drawn against each other."""

TABLE = 20
"""Features in a table."""

COLUMNS = 6
"""Columns of levels that are drawn."""

ATOMS = 2000
"""Atoms that a picture shows."""

BATCHES = 16
"""Number of batches from which these are read."""

LEAST = 64
"""Features of the smallest images that are detected."""

NEAR = 0.5
"""Difference of neighbouring pixels, as a share of the difference of any two, below which features are pixels.

Chosen on clusters of 8 x 8 digits (0.32 to 0.45) and of white noise (0.70 at least with Gaussian noise, 0.52 with
lognormal, of 16,000 draws each of 1 to 20 clusters and 64 or 256 features); checked on clusters of MNIST (28 x 28) and
of patches of photographs (8 x 8, 12 x 12), which are below it, and of the indicators of 64 levels, which are above it.
"""


# -- atoms --------------------------------------------------------------------------------------------------------
def _some_atoms(n: int, posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: ``n`` evenly spaced atoms of a batch, and the ids of their clusters."""
    batch: Batch = reader()
    label = assign_batch(posterior, batch)["label"]
    rows = np.unique(np.linspace(0, batch.n_atoms - 1, min(n, batch.n_atoms)).astype(np.int64))
    return np.asarray(batch.x[rows], np.float64), np.asarray(label)[rows]


def atoms_for(posterior: Posterior, what: Any, data: Any, client: Client | Executor | str | None) -> Atoms | None:
    """Atoms to draw: from the given data, else from the training data of a run directory; None if there are none.

    Evenly spaced ones from evenly spaced batches.  Nothing is read for a likelihood without means and variances;
    SettingError if its data are given.
    """
    if parts_of(posterior).normals is None:
        if data is not None:
            kind = type(unlabelled(posterior.model.observation)).__name__
            raise SettingError(f"data= is for documents, sequences and atoms with means and variances; {kind} has none")
        return None
    if data is not None:
        return _atoms(posterior, open_for(posterior, data), client)
    if not isinstance(what, (str, os.PathLike)) or not holds_run(what):
        return None
    try:
        source = open_for(posterior, str(settings_of_run(what)["data"].get("path", "")))
        return _atoms(posterior, source, client)
    except (BnpDaskError, OSError):  # gone or changed since: the page omits them
        return None


def _atoms(posterior: Posterior, source: Source, client: Client | Executor | str | None) -> Atoms | None:
    chosen = np.unique(np.linspace(0, source.n_batches - 1, min(BATCHES, source.n_batches)).astype(np.int64))
    task = partial(_some_atoms, -(-ATOMS // max(len(chosen), 1)))
    found = for_batches(posterior, source, client, task, "picture", chosen.tolist())
    if not found:
        return None
    return Atoms(np.concatenate([x for x, _ in found]), np.concatenate([label for _, label in found]))


# -- sections -----------------------------------------------------------------------------------------------------
def cluster_sections(
    posterior: Posterior,
    names: Sequence[str] | None,
    limit: int,
    read: Callable[[], Atoms | None] | None = None,
    images: tuple[int, int] | bool | None = None,
) -> list[Section]:
    """Pictures of clusters: images if features are pixels, else the distinguishing features; none for other kinds.

    ``read`` gives the atoms to draw, if there are any.  ``images`` is the shape of requested images, or whether they
    are shown; by default they are shown if features are clearly pixels.

    Raises
    ------
    SettingError
        Features do not fill images of that shape, or the likelihood has no parameters to draw as an image.
    """
    found = _images(posterior, images)
    return found or _telling(posterior, names, limit, None if read is None else read())


def _telling(posterior: Posterior, names: Sequence[str] | None, limit: int, atoms: Atoms | None) -> list[Section]:
    shown = Shown.of(posterior, names, limit)
    parts = parts_of(posterior)
    content: list[Any] = []
    if parts.normals is not None:
        content += _pairs(shown, parts.normals, cluster_colors(posterior.ids, posterior.weights), atoms)
    for values in parts.values:
        content += _table(shown, values)
    content += _levels(shown, parts)
    return [Section(f"What tells {shown.noun.many} apart", content)] if content else []


def _pairs(shown: Shown, normals: Normals, colors: Any, atoms: Atoms | None) -> list[Any]:
    distance = of_normals(normals.mean[shown.order], normals.variance[shown.order])
    chosen = telling_features(distance, shown.weights, FEATURES)
    n, of, noun = len(chosen), normals.mean.shape[1], shown.noun
    which = f"The {n} features, of {of}, that tell {noun.many} apart best" if n < of else "All features"
    points = "" if atoms is None else f" Points: {len(atoms.x):,} {noun.atoms}, in the colour of their {noun.one}."
    note = f"{which}: ellipses of two standard deviations, and densities times shares.{points}"
    return [Paragraph(note), Picture(plot_pairs(shown, normals, chosen, colors, atoms), note)]


def _table(shown: Shown, values: Values) -> list[Any]:
    chosen = telling_features(of_values(values.kind, values.value[shown.order]), shown.weights, TABLE)
    note = f"{shown.noun.many.capitalize()} by {SCALES[values.kind]}"
    note += _best(shown, len(chosen), values.value.shape[1], ", the")
    return [Paragraph(f"{note}."), Picture(plot_values(shown, values, chosen), note)]


def _levels(shown: Shown, parts: Parts) -> list[Any]:
    if not parts.levels:
        return []
    distance = np.stack([of_levels(column.value[shown.order]) for column in parts.levels])
    chosen: list[LevelValues] = [parts.levels[i] for i in telling_features(distance, shown.weights, COLUMNS)]
    note = f"Probabilities of levels in each {shown.noun.one}"
    note += _best(shown, len(chosen), len(parts.levels), ", in the")
    return [Paragraph(f"{note}."), Picture(plot_levels(shown, chosen), note)]


def _best(shown: Shown, n: int, of: int, begin: str) -> str:
    return f"{begin} {n} of {of} columns that tell {shown.noun.many} apart best" if n < of else ""


def _images(posterior: Posterior, images: tuple[int, int] | bool | None) -> list[Section]:
    if images is False:
        return []
    if not (images is None or images is True or (isinstance(images, tuple) and len(images) == 2)):
        raise SettingError(f"images={in_words(images)}: needs rows and columns, such as (8, 8), True, False or None")
    shape = image_shape(posterior) if images is None else None if images is True else images
    if images is None and shape is None:
        return []
    picture = plot_clusters(posterior, shape=shape)
    noun = noun_of(posterior.model).many.capitalize()
    caption = f"{noun} as images (id: share); for zero-mean Gaussians the four directions of largest variance"
    return [Section("Images", [Paragraph(caption), Picture(picture.figure, caption)])]


def image_shape(posterior: Posterior) -> tuple[int, int] | None:
    """Rows and columns of square images of which the features are clearly the pixels; None if they are not.

    Features with names are not pixels.  Others are if neighbours in both directions are much more alike, over all
    clusters, than any two features, and features one row apart more alike than features half a row apart.  This
    excludes spectra and other curves, which are smooth in one direction.
    """
    if posterior.feature_names is not None:
        return None
    difference = _differences(posterior)
    side = 0 if difference is None else round(len(difference) ** 0.5)
    if difference is None or side * side != len(difference) or len(difference) < LEAST:
        return None
    place = np.arange(side * side).reshape(side, side)
    across = difference[place[:, 1:], place[:, :-1]].mean()
    down = difference[place[1:], place[:-1]].mean()
    half = np.diagonal(difference, side // 2).mean()
    any_two = difference.sum() / (len(difference) * (len(difference) - 1))
    return (side, side) if across + down < 2.0 * NEAR * any_two and down < half else None


def _differences(posterior: Posterior) -> np.ndarray | None:
    """Mean squared difference of pairs of features, ``(D, D)``: over clusters' means, or within zero-mean clusters."""
    observation, params = posterior.model.observation, posterior.observation
    means = describe.means(observation, params)
    if means is not None:
        second = means.T @ (posterior.weights[:, None] * means)
    else:
        found = describe.covariances(observation, params)
        if found is None:
            return None
        second = np.einsum("k,kij->ij", posterior.weights, found)
    squares = np.diagonal(second)
    difference: np.ndarray = np.maximum(squares[:, None] + squares[None, :] - 2.0 * second, 0.0)
    return difference
