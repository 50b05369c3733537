"""A start from which known labels can hold: every label owns a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core import Batch, Summary, concatenate
from bnp_dask.data import Reader, batch_reader
from bnp_dask.initialize.base import InitContext, Initialization, LearnedStart, each_batch, summarize_assigned
from bnp_dask.initialize.given import FromPosterior
from bnp_dask.initialize.kmeans import most_likely
from bnp_dask.inputs import is_a
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import KNOWN, Labelled, unlabelled

MOST = 1000
"""Most atoms of a label that are looked at in a batch."""


@dataclass(frozen=True, eq=False)
class LabelledStart:
    """Another initialization of atoms without labels; then each cluster belongs to the label that most labelled atoms
    there have, and each label that owns none gets a cluster of its atoms.

    Labels first look at clusters that were found without them: k-means that keeps atoms of two labels apart spends
    most of its centres on labelled atoms.  Clusters with several labels are split by the first local step and by moves.

    Parameters
    ----------
    init
        The initialization.
    """

    init: Initialization

    @property
    def learns_prior(self) -> bool:
        """See :class:`~bnp_dask.initialize.base.LearnedStart`."""
        return is_a(self.init, LearnedStart) and self.init.learns_prior

    def start(self, context: InitContext) -> Summary:
        model, observation = context.model, context.model.observation
        assert isinstance(observation, Labelled)
        if isinstance(self.init, FromPosterior) and isinstance(self.init.posterior.model.observation, Labelled):
            summary = self.init.start(context)
        else:
            plain = plain_model(model)
            found = self.init.start(replace(context, model=plain))
            known = np.zeros((found.n_clusters, len(observation.names)))
            for counts in _of_batches(context, "init-labels", _counts, plain.global_step(found), known.shape[1]):
                known += counts
            # of clusters with several labels the owner's atoms alone: schedules that keep a share of the start would
            # keep the others in a cluster that is closed to them
            known[np.arange(known.shape[1]) != known.argmax(axis=1)[:, None]] = 0.0
            fields = dict(model.fields)
            summary = replace(found, fields=fields, values={**found.values, KNOWN: known})
        missing = np.setdiff1d(np.arange(len(observation.names)), observation.owners(summary))
        if not len(missing):
            return summary
        parts = _of_batches(context, "init-label-atoms", _atoms, model, missing)
        return _with_clusters(model, summary, parts, missing)


def plain_model(model: Model) -> Model:
    """The model of the same atoms without labels."""
    reference = None if model.reference is None else unlabelled(model.reference)
    return replace(model, observation=unlabelled(model.observation), reference=reference)


def _of_batches(context: InitContext, name: str, function: Callable[..., Any], what: Any, *args: Any) -> list[Any]:
    """Results of one task for each batch, in order, without None."""
    shared = context.executor.share(name, what)

    def submit(batch: int) -> Any:
        return context.executor.submit(f"{name}-{batch}", function, batch_reader(context.source, batch), shared, *args)

    return [found for found in each_batch(context, submit) if found is not None]


def _labelled(reader: Reader, labels: np.ndarray) -> Batch | None:
    """At most :data:`MOST` atoms of each of some labels in a batch, without groups; None if there is none."""
    batch = reader()
    if batch.labels is None or not np.isin(batch.labels, labels).any():
        return None
    return batch.take(np.concatenate([np.flatnonzero(batch.labels == label)[:MOST] for label in labels]))


def _counts(reader: Reader, posterior: Posterior, n_labels: int) -> np.ndarray | None:
    """Task: labelled atoms of a batch by cluster and label, ``(K, L)``: each where it is most likely."""
    batch = _labelled(reader, np.arange(n_labels))
    if batch is None or batch.labels is None:
        return None
    posterior.model.observation.check(batch)
    out = np.zeros((posterior.n_clusters, n_labels))
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    np.add.at(out, (most_likely(posterior, batch), batch.labels), weights)
    return out


def _atoms(reader: Reader, model: Model, labels: np.ndarray) -> Batch | None:
    """Task: some atoms of each of some labels in a batch; None if there is none."""
    batch = _labelled(reader, labels)
    if batch is not None:
        model.observation.check(batch)
    return batch


def _with_clusters(model: Model, summary: Summary, parts: list[Batch], missing: np.ndarray) -> Summary:
    """The summary with a cluster of the atoms of each missing label; labels without an atom get none."""
    if not parts:
        return summary
    atoms = concatenate(parts)
    assert atoms.labels is not None
    present = [label for label in missing.tolist() if (atoms.labels == label).any()]
    own = summarize_assigned(model.structure.untied(model), atoms, np.searchsorted(present, atoms.labels), len(present))
    ids = int(summary.ids.max(initial=-1)) + 1 + np.arange(len(present))
    out = summary.insert_empty(ids)
    at, values = out.positions(ids), dict(out.values)
    for name in ("N", *model.observation.fields):
        if out.fields[name].n_cluster_axes:
            values[name] = values[name].copy()
            values[name][at] = own[name]
    return replace(out, values=values)
