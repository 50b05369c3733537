"""Must-links: groups of atoms that share a cluster, cut into batches as the data are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Source
from bnp_dask.data.beside import BesideSource, with_beside
from bnp_dask.data.labels import Labels, labels_of
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown


def links_of(given: Any) -> Labels:
    """Groups in the forms of :func:`bnp_dask.data.labels.labels_of`, as names of groups, unknown for atoms in none.

    Raises
    ------
    DataError
        Not one-dimensional, neither texts nor whole numbers, or no group at all.
    """
    return labels_of(given, what="links")


def _linked(batch: Batch, values: np.ndarray) -> Batch:
    """The batch with groups ``(n,)`` of its atoms, with the labels of their groups."""
    if batch.n_atoms != len(values):
        raise DataError(f"{batch.name}: {batch.n_atoms} atoms, but {len(values)} links; the data changed")
    labels = None if batch.labels is None else labels_of_groups(batch.labels, values)
    links = without_alone(values.astype(np.int64), batch.weights)
    return replace(batch, labels=labels, links=links if (links >= 0).any() else None)


def without_alone(links: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Groups of atoms ``(n,)``, -1 for those of one atom of weight one, which says nothing."""
    place = np.flatnonzero(links >= 0)
    _, group, size = np.unique(links[place], return_inverse=True, return_counts=True)
    is_alone = size[group] == 1
    if weights is not None:
        is_alone &= weights[place] == 1.0
    out = links.copy()
    out[place[is_alone]] = -1
    return out


def labels_of_groups(labels: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Labels ``(n,)``, -1 for none, with the label of its group for each atom of a group that has one."""
    place = np.flatnonzero(codes >= 0)
    groups, group = np.unique(codes[place], return_inverse=True)
    own = np.full(len(groups), -1, np.int64)
    np.maximum.at(own, group, labels[place])
    out = labels.copy()
    out[place] = own[group]
    return out


def with_links(source: Source, links: Labels) -> Source:
    """The source with groups of linked atoms: atoms of one group, all in one batch, share their cluster.

    A known label of an atom is that of its whole group.

    Raises
    ------
    DataError
        As :func:`bnp_dask.data.beside.with_beside`, or a group with atoms in several batches or with two labels.
    """
    out = with_beside(source, links.codes, "links", "atoms", "-1", _linked, links.names)
    _require_whole(source, out.spans, links)
    if isinstance(source, BesideSource) and source.what == "labels":
        _require_one_label(Labels(source.values, source.names), links)
    return out


def _require_whole(source: Source, spans: Sequence[tuple[int, int]], links: Labels) -> None:
    """DataError unless each group lies in one batch."""
    batch = np.repeat(np.arange(len(spans)), [stop - start for start, stop in spans])
    low, high = _range_in_groups(batch, links, links.codes >= 0)
    parted = np.flatnonzero(low < high)
    if len(parted):
        g = int(parted[0])
        raise DataError(
            f"links: {len(parted)} group(s) have rows in several batches of {source.name}, such as "
            f"{shown(links.names[g])}, in batches {low[g]} and {high[g]}; linked rows are assigned together, and must "
            f"be read together. Take one batch, batch_size={len(batch)}; or sort the rows by group, and cut only "
            "between groups: as_source(x, groups=offsets)"
        )


def _require_one_label(labels: Labels, links: Labels) -> None:
    """DataError unless all known labels of a group are one."""
    low, high = _range_in_groups(labels.codes, links, (links.codes >= 0) & (labels.codes >= 0))
    mixed = np.flatnonzero(low < high)
    if len(mixed):
        g = int(mixed[0])
        rows = [int(np.flatnonzero((links.codes == g) & (labels.codes == code))[0]) for code in (low[g], high[g])]
        raise DataError(
            f"links: group {shown(links.names[g])} has rows of two labels, {shown(labels.names[low[g]])} (row "
            f"{rows[0]}) and {shown(labels.names[high[g]])} (row {rows[1]}), and no cluster may own both; "
            "correct labels= or links="
        )


def _range_in_groups(values: np.ndarray, links: Labels, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest of the ``values (n,)`` of each group at ``mask (n,)``; greatest < least if there are none."""
    low, high = np.full(len(links.names), len(values)), np.full(len(links.names), -1)
    np.minimum.at(low, links.codes[mask], values[mask])
    np.maximum.at(high, links.codes[mask], values[mask])
    return low, high
