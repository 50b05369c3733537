"""Picture of a tree of clusters: a dendrogram over the nats that unions lose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster.hierarchy import dendrogram

from bnp_dask.analysis.tree import Tree, tree
from bnp_dask.errors import BnpDaskError
from bnp_dask.model import Posterior
from bnp_dask.reports.pages import Picture, Section
from bnp_dask.reports.plots import BLUE, new_figure
from bnp_dask.training.certainty import NATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 40
"""Most leaves of a picture; more are united first."""


def draw_tree(found: Tree, limit: int = SHOWN, nats: float = NATS, ax: Axes | None = None) -> Axes:
    """Draw the tree with at most ``limit`` leaves, and a line at ``nats``."""
    size = min(limit, found.n_clusters)
    top = replace(found, posterior=found.cut(size), unions=found.unions[found.n_clusters - size :])
    ax = _figure_of(size).add_subplot() if ax is None else ax
    if size > 1:
        drawn = dendrogram(top.linkage, no_plot=True)
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
    ax.set_xlim(0.0, 2.0 * max(nats, float(found.losses[0]), 1.0))
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
