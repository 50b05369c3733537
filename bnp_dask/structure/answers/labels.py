"""Clusters of new atoms, and topics of new documents, as columns for :func:`bnp_dask.predict`.

``soft`` requests all responsibilities or shares, ``top`` the largest; without both, labels are returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_rows
from bnp_dask.structure.answers.documents import (
    as_documents,
    atom_labels,
    atom_resp,
    check_documents,
    find_topics,
    own_step,
)
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.steps import LocalStep

NO_PLACES = np.zeros((0, 2), np.int64)

Columns = dict[str, np.ndarray]


class Labelling(Protocol):
    """Structure whose atoms have labels of their own."""

    def labels(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Tiles with the positions of the most probable clusters of their atoms."""
        ...

    def steps(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step tile by tile."""
        ...


def label_rows(structure: Labelling, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
    """Labels ``label (n,)``, responsibilities ``resp (n, K)``, or both of the ``top`` largest ``(n, L)``.

    Holds at most a tile of the ``(n, K)`` matrix unless ``soft`` requests all of it.
    """
    posterior.model.observation.check(batch)
    # responsibilities are needed, not responsibilities times weights
    batch, n, start = replace(batch, weights=None), batch.n_atoms, 0
    if not soft and top is None:
        label = np.empty(n, np.int64)
        for tile, place in structure.labels(posterior.model, posterior, batch):
            label[start : start + tile.n_atoms] = posterior.ids[place]
            start += tile.n_atoms
        return {"label": label}
    width = posterior.n_clusters if top is None else min(top, posterior.n_clusters)
    label, resp = np.empty((0 if top is None else n, width), np.int64), np.empty((n, width))
    for tile, dense in resp_of_rows(structure, posterior, batch):
        require_finite_rows(dense, tile, "responsibilities")
        rows = slice(start, start + tile.n_atoms)
        if top is not None:
            order = np.argsort(-dense, axis=1, kind="stable")[:, :top]
            label[rows] = posterior.ids[order]
            resp[rows] = np.take_along_axis(dense, order, axis=1)
        else:
            resp[rows] = dense
        start += tile.n_atoms
    return {"resp": resp} if top is None else {"label": label, "resp": resp}


def resp_of_rows(structure: Labelling, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
    """Tiles of a batch with their responsibilities, ``(n, K)``."""
    for tile, step in structure.steps(posterior.model, posterior, batch, NO_PLACES):
        yield tile, step.resp if isinstance(step.resp, np.ndarray) else step.resp.to_dense()


def label_documents(posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
    """Topics of the documents of a batch in memory, as named columns.

    ``label (G,)``: the topic with the largest expected share of each document; of dense atoms ``(n,)``, the most
    probable topic of each atom given its group.  ``soft``: ``resp (G, K)``, or ``(G, K + 1)``, the expected shares.
    ``top``: ``label (G, L)`` and ``resp (G, L)``, the largest shares.
    """
    model, k = posterior.model, posterior.n_clusters
    batch = as_documents(model, replace(batch, weights=None))
    check_documents(model, batch)
    found = find_topics(posterior, batch, own_step(posterior))
    if not soft and top is None and not batch.is_sparse:
        return {"label": posterior.ids[atom_labels(posterior, batch, found)]}
    g = found.n_documents
    width = k if top is None else min(top, k)
    label = np.empty((g, width) if top is not None else (g,), np.int64)
    resp = np.empty((g, k + found.has_rest if top is None else width))
    for start, stop in found.tiles():
        rows, shares = slice(start, stop), found.shares(start, stop)
        if soft:
            resp[rows] = shares
        elif top is None:
            label[rows] = posterior.ids[shares[:, :k].argmax(axis=1)]
        else:
            order = np.argsort(-shares[:, :k], axis=1, kind="stable")[:, :width]
            label[rows] = posterior.ids[order]
            resp[rows] = np.take_along_axis(shares, order, axis=1)
    if top is not None:
        return {"label": label, "resp": resp}
    return {"resp": resp} if soft else {"label": label}


def resp_in_groups(posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
    """Atoms of groups with their responsibilities, given shares of the groups found from scratch."""
    check_documents(posterior.model, batch)
    yield batch, atom_resp(posterior, batch, find_topics(posterior, batch, own_step(posterior)))
