"""Topics of new documents, as columns: what :func:`bnp_dask.predict` gives for topic models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.analysis.topics.documents import as_documents, atom_labels, check_documents, find_topics, own_step
from bnp_dask.core.batch import Batch
from bnp_dask.model import Posterior


def assign_documents(
    posterior: Posterior, batch: Batch, soft: bool = False, top: int | None = None
) -> dict[str, np.ndarray]:
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
    resp = np.empty((g, model.structure.n_shares(model, k) if top is None else width))
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
