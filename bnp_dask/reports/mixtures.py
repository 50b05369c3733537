"""Section of a page that shows clusters: images if features are pixels, else the features that distinguish them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

from bnp_dask.analysis.base import for_batches, open_for
from bnp_dask.analysis.predict import assign_batch
from bnp_dask.core import Batch
from bnp_dask.data import Reader, Source
from bnp_dask.errors import BnpDaskError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs import shown as in_words
from bnp_dask.model import Posterior
from bnp_dask.observation import Estimate, Product, estimates_of, unlabelled
from bnp_dask.reports import describe
from bnp_dask.reports.pages import Paragraph, Picture, Section
from bnp_dask.reports.plots import new_figure, plot_clusters, state_colors
from bnp_dask.store import holds_run
from bnp_dask.structure import Noun, noun_of
from bnp_dask.structure.nouns import CLUSTER
from bnp_dask.training.run_settings import settings_of_run

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
@dataclass(frozen=True)
class _Some:
    """Task: evenly spaced atoms of a batch, and the ids of their clusters."""

    n: int

    def __call__(self, posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
        batch: Batch = reader()
        label = assign_batch(posterior, batch)["label"]
        rows = np.unique(np.linspace(0, batch.n_atoms - 1, min(self.n, batch.n_atoms)).astype(np.int64))
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
    task = _Some(-(-ATOMS // max(len(chosen), 1)))
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
