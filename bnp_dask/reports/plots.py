"""Pictures of a run and its result.  Each function draws on ``ax`` (a new figure by default), and returns it."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster.hierarchy import dendrogram

from bnp_dask.analysis.metrics import match_labels
from bnp_dask.analysis.sequences import Durations, Transitions, as_list, split_sequences, transitions
from bnp_dask.analysis.topics.words import TopicShares, in_tables, token_shares, top_words, topic_positions
from bnp_dask.analysis.tree import Tree, tree
from bnp_dask.errors import BnpDaskError, DataError, SettingError
from bnp_dask.inference.prior import PRIOR
from bnp_dask.inputs import one_of
from bnp_dask.model import Posterior
from bnp_dask.moves.judge import SORT
from bnp_dask.reports import describe
from bnp_dask.reports.pages import Picture, Section
from bnp_dask.structure import Noun, noun_of
from bnp_dask.structure.nouns import CLUSTER, in_use
from bnp_dask.training.certainty import NATS
from bnp_dask.training.results import History

if TYPE_CHECKING:
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
    # short, so that it fits above a narrow picture
    ax.set_title(" over ".join(rows).capitalize() if len(rows) > 1 else "Segmentation", loc="left", fontsize=11)


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
