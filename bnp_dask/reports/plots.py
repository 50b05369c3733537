"""Pictures of a run and its result.  Each function draws on ``ax`` (a new figure by default), and returns it.

Figures are made without pyplot: nothing is opened, and no global state of matplotlib is touched.
"""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.inference.prior import PRIOR
from bnp_dask.inputs.settings import one_of
from bnp_dask.model import Posterior
from bnp_dask.moves.judge import SORT
from bnp_dask.reports import describe
from bnp_dask.structure.nouns import CLUSTER, Noun, in_use, noun_of
from bnp_dask.training.results import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def _directions(matrix: np.ndarray, side: tuple[int, int], n: int = 4) -> np.ndarray:
    """Leading eigenvectors side by side, each to its own scale, with a gap of missing values between them."""
    vectors = np.linalg.eigh(matrix)[1][:, ::-1][:, :n]
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
