"""Pictures of runs and of their results, under short names: ``bnp_dask.plot.history(result)``.

Each function draws on ``ax``, or on a new figure without pyplot, and returns the axes; ``ax.figure.savefig(path)``
writes it.  A notebook shows the returned axes of a new figure as a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis import TopicShares, Tree, in_tables, require_posterior
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.tree import tree as grown
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.inputs import number_from, plain, whole_number
from bnp_dask.inputs import shown as in_words
from bnp_dask.model import Posterior
from bnp_dask.observation import unlabelled
from bnp_dask.reports import describe
from bnp_dask.reports.plots import (
    BLUE,
    Atoms,
    Shown,
    cluster_colors,
    draw_pair,
    draw_tree,
    new_axes,
    parts_of,
    plot_clusters,
    plot_history,
    plot_segments,
    plot_topic_map,
    plot_topics_over,
)
from bnp_dask.reports.plots import SHOWN as SHOWN_LEAVES
from bnp_dask.structure import noun_of
from bnp_dask.training import NATS, History, TrainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["clusters", "history", "mixture", "segmentation", "topic_map", "topics", "topics_over", "tree"]


def __dir__() -> list[str]:
    return sorted(__all__)


SHOWN = 2000
"""Most atoms in a scatter plot: evenly spaced ones."""


@answering
def history(what: TrainResult | History, column: str = "elbo", ax: Axes | None = None) -> Axes:
    """The objective, or another column of the history, over laps.

    Parameters
    ----------
    what
        Result of :func:`bnp_dask.train`, or its history.
    column
        Name of a column, see :attr:`bnp_dask.History.columns`; ``"elbo"`` is the objective, nats.
    ax
        Where to draw.

    Raises
    ------
    SettingError
        No result or history.
    """
    if isinstance(what, TrainResult):
        return plot_history(what.history, column, ax, noun_of(what.posterior.model))
    if not isinstance(what, History):
        raise SettingError(f"{in_words(what)}: needs the result of bnp_dask.train(...), or its history")
    return plot_history(what, column, ax)


@answering
def clusters(
    what: TrainResult | Posterior,
    kind: str = "auto",
    limit: int = 24,
    shape: tuple[int, int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The heaviest clusters as small images.

    Parameters
    ----------
    what
        Posterior, or result, of a likelihood over pixels.
    kind
        ``"mean"``: the expected atom.  ``"directions"``: the four directions of largest variance, for Gaussians with a
        covariance.  ``"covariance"``: the covariance matrix.  ``"auto"``: means if there are any, else directions.
    limit
        Most clusters shown.
    shape
        Rows and columns of an image; by default D must be a square.
    ax
        Where to draw.

    Raises
    ------
    SettingError
        The likelihood has no such image, or D is not a square and no shape was given.
    """
    return plot_clusters(_posterior(what), kind, whole_number("limit", limit, 1), shape, ax)


@answering
def segmentation(
    labels: Any,
    sequences: Any = None,
    truth: Any = None,
    *,
    x: Any = None,
    names: Sequence[Any] | None = None,
    limit: int = 20,
    ax: Axes | None = None,
) -> Axes:
    """Sequences as strips coloured by state.

    Parameters
    ----------
    labels
        State of each step, ``(n,)``, or one vector for each sequence.
    sequences
        Sequences of one vector: offsets ``(G + 1,)``, the list of arrays that was predicted for, or its source.
    truth
        True labels, drawn below; a state then has the colour of the true label with which it overlaps most (thesis
        Fig. 6.4), and white lines mark changes between states of the same colour.
    x
        The data ``(n, D)``, or one matrix for each sequence: columns (six at most) are drawn as lines above the strips.
    names
        Names of the sequences.
    limit
        Most sequences shown.
    ax
        Where to draw.
    """
    limit = whole_number("limit", limit, 1)
    return plot_segments(labels, sequences, truth, x=x, names=names, limit=limit, ax=ax)


@answering
def topics(what: TrainResult | Posterior, n_topics: int = 6, n_words: int = 10, ax: Axes | None = None) -> Axes:
    """The most probable words of the largest topics, side by side.

    The bar of a word is proportional to its probability in the topic; the first word of each topic has the full length.

    Parameters
    ----------
    what
        Posterior, or result, of topics of words or of a mixture of documents.
    n_topics, n_words
        Most topics drawn, the largest, and most words of each.
    ax
        Where to draw.

    Raises
    ------
    SettingError
        The likelihood has no words.
    """
    posterior = _posterior(what)
    found = describe.means(posterior.model.observation, posterior.observation)
    if found is None or "Multinomial" not in type(unlabelled(posterior.model.observation)).__name__:
        raise SettingError(f"{type(unlabelled(posterior.model.observation)).__name__} has no words to draw")
    names, n_words = posterior.feature_names, whole_number("n_words", n_words, 1)
    order = in_tables(posterior)[: whole_number("n_topics", n_topics, 1)]
    ax = new_axes(min(2.2 * len(order), 14.0), 0.6 + 0.24 * n_words) if ax is None else ax
    for column, k in enumerate(order):
        words = np.argsort(-found[k], kind="stable")[:n_words]
        share = found[k][words] / found[k][words[0]]
        ax.barh(np.arange(len(words)), 0.9 * share, left=column, height=0.8, color=BLUE, alpha=0.35)
        for row, word in enumerate(words.tolist()):
            ax.text(column + 0.02, row, str(word) if names is None else names[word], va="center", fontsize=8)
    labels = [f"{posterior.ids[k]}: {posterior.weights[k]:.1%}" for k in order]
    ax.set_xticks(np.arange(len(order)) + 0.02, labels, fontsize=9, ha="left")
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set_yticks([])
    ax.set_ylim(n_words - 0.4, -0.6)
    ax.set_xlim(0, len(order))
    ax.spines[:].set_visible(False)
    return ax


@answering
def topic_map(what: TrainResult | Posterior, n_labels: int = 20, ax: Axes | None = None) -> Axes:
    """Topics as circles in the plane: near one another if their words are alike, with areas by their shares.

    The plane is classical scaling of the Hellinger distances between topics.

    Parameters
    ----------
    what
        Posterior, or result, of topics of words.
    n_labels
        Number of named topics, the largest: id and two words, if no other name overlaps.
    ax
        Where to draw.
    """
    return plot_topic_map(_posterior(what), whole_number("n_labels", n_labels), ax)


@answering
def topics_over(shares: TopicShares, n_topics: int = 8, ax: Axes | None = None) -> Axes:
    """Shares of topics over times and numbers as lines, by texts as stacked bars.

    Parameters
    ----------
    shares
        Found by :func:`bnp_dask.topics_over`.
    n_topics
        Topics that are drawn, the largest.
    ax
        Where to draw.
    """
    if not isinstance(shares, TopicShares):
        raise SettingError(f"shares={in_words(shares)}: needs the result of bnp_dask.topics_over(posterior, data, by)")
    return plot_topics_over(shares, whole_number("n_topics", n_topics, 1), ax)


@answering
def tree(
    what: Tree | TrainResult | Posterior, limit: int = SHOWN_LEAVES, nats: float = NATS, ax: Axes | None = None
) -> Axes:
    """Dendrogram of the clusters: the height of a union is the loss of the objective, nats.

    Parameters
    ----------
    what
        Tree of :func:`bnp_dask.tree`, or a posterior or result, whose tree is grown.
    limit
        Most leaves; more clusters are united first.
    nats
        Loss at which a line is drawn.
    ax
        Where to draw.
    """
    found = what if isinstance(what, Tree) else grown(_posterior(what))
    return draw_tree(found, whole_number("limit", limit, 1), number_from("nats", nats, 0.0), ax)


@answering
def mixture(
    what: TrainResult | Posterior,
    x: Any = None,
    columns: tuple[int, int] = (0, 1),
    limit: int = 30,
    ax: Axes | None = None,
) -> Axes:
    """Two features of the clusters of a mixture: their means, and ellipses of two standard deviations.

    Parameters
    ----------
    what
        Posterior, or result, of a likelihood with means and variances.
    x
        Atoms ``(n, D)`` to draw with the colour of their cluster; None for none.  Of many, 2,000 are shown.
    columns
        Positions of the two features.
    limit
        Most clusters drawn, the heaviest.
    ax
        Where to draw.
    """
    posterior = _posterior(what)
    normals, names = parts_of(posterior).normals, posterior.feature_names
    known = [] if normals is None else normals.columns.tolist()
    try:
        pair = [known.index(column) for column in columns]
    except (TypeError, ValueError):
        pair = []
    if normals is None or len(pair) != 2:
        kind = type(unlabelled(posterior.model.observation)).__name__
        raise SettingError(
            f"columns={in_words(columns)}: {kind} has no means and variances there; needs two of {in_words(known)}"
        )
    limit, columns = whole_number("limit", limit, 1), (known[pair[0]], known[pair[1]])
    ax = new_axes(5.2, 4.6) if ax is None else ax
    atoms = None
    if x is not None:
        rows = plain(x, "x")
        if rows.ndim != 2:
            raise DataError(f"x has shape {rows.shape}; needs an array with an atom in each row, (n, D)")
        rows = rows[:: max(1, len(rows) // SHOWN)]
        labels = predict(posterior, rows)  # refuses what is not numbers
        atoms = Atoms(rows.astype(np.float64), labels)
    shown = Shown.of(posterior, names, limit)
    draw_pair(ax, shown, normals, (pair[0], pair[1]), cluster_colors(posterior.ids, posterior.weights), atoms)
    ax.set_xlabel(f"feature {columns[0]}" if names is None else names[columns[0]])
    ax.set_ylabel(f"feature {columns[1]}" if names is None else names[columns[1]])
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _posterior(what: Any) -> Posterior:
    return require_posterior(what.posterior if isinstance(what, TrainResult) else what)
