"""Assign new atoms to the clusters of a posterior."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import WINDOW, columns_for, computing_as, needs_of, open_for, require_posterior, runner_for
from bnp_dask.analysis.sequences import for_recorded, name_steps
from bnp_dask.analysis.tree import tree
from bnp_dask.core import Batch
from bnp_dask.data import (
    Layout,
    Outputs,
    Reader,
    batch_reader,
    block_rows,
    is_dask,
    is_dask_frame,
    links_of,
    with_links,
)
from bnp_dask.data import output_lazy as lazy
from bnp_dask.data.output import write
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.execute import Executor, in_order
from bnp_dask.inputs import flag, unlabelled, whole_number
from bnp_dask.model import Posterior, brief
from bnp_dask.structure import require_linkable

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class TopResponsibilities:
    """The most likely clusters of each atom, most likely first.

    Parameters
    ----------
    label
        Cluster ids, ``(n, L)`` int64.
    resp
        Their responsibilities, ``(n, L)``: probabilities among all clusters, so a row sums to at most one.
    """

    label: Any
    resp: Any

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True)
class _Mode:
    """Output for each atom: a label, all responsibilities, or the ``top`` largest."""

    soft: bool
    top: int | None

    def layouts(self, posterior: Posterior) -> tuple[Layout, ...]:
        if self.top is not None:
            width = min(self.top, posterior.n_clusters)
            return Layout("label", "<i8", width), Layout("resp", "<f8", width)
        width = posterior.model.structure.n_shares(posterior.model, posterior.n_clusters)
        if not self.soft:
            return (Layout("label", "<i8", None),)
        names = [f"resp_{id}" for id in posterior.ids.tolist()] + ["resp_new"] * (width - posterior.n_clusters)
        return (Layout("resp", "<f8", width, tuple(names)),)


# -- predict --------------------------------------------------------------------------------------------------
@answering
def predict(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    soft: bool = False,
    top: int | None = None,
    at: int | None = None,
    links: Any = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> Any:
    """Cluster of each atom, or its responsibilities; in topic models, topics of each document.

    Parameters
    ----------
    posterior
        Trained clusters.
    data
        Array, sparse matrix, DataFrame, path or URL, Source; or a Dask array or DataFrame.  A list of raw texts, if
        the posterior was trained on a store that was made from raw text.  If training and data have names, columns
        are matched by name in any order, and columns that training did not have are left out, with a warning.  Columns
        of weights, groups and order are not features, and sequences are read by them as in training.  Data without
        names are taken in their order.
    out
        Path or URL ending with ``.zarr``, ``.parquet`` or ``.csv``: results are written there batch by batch, so that
        data may have any size.  Zarr: a group with the arrays ``label`` and ``resp``; Parquet: a folder of files with
        those columns; CSV: one file with the columns ``label``, or ``resp_ID`` of each cluster (``soft``; ``resp_new``
        for topics not met yet), or ``label_1``, ..., ``resp_1``, ... (``top``).  Rows are in the order of the data.
    soft
        All responsibilities instead of labels.
    top
        The ``top`` most likely clusters instead of labels.
    at
        Number of clusters of a coarser posterior that is used in place of this one,
        ``bnp_dask.tree(posterior).cut(at)``.
    links
        Groups of atoms that are known to share one cluster, in the forms of :func:`bnp_dask.train`; for mixtures.  All
        atoms of a group get the cluster, or the responsibilities, of the group: its log likelihoods are added up, and
        it has the weights' prior once.  A group lies in one batch.
    batch_size
        Atoms per batch; None for a size that fits memory.
    client
        A ``distributed.Client``, the address of a scheduler, or an executor; None is the current client, or this
        thread if there is none, and inside a Dask task.

    Returns
    -------
    numpy.ndarray or TopResponsibilities or dask.array.Array or None
        Labels ``(n,)`` int64: the *ids* of clusters, ``posterior.ids``, which stay the same when others come and
        go (not positions; ``np.searchsorted`` gives these).  ``soft``: ``(n, K)`` in the order of
        ``posterior.ids``; each row sums to one.  ``top``: :class:`TopResponsibilities`.  Lazy Dask arrays for Dask
        data; None when ``out`` is given.

        Topic models: ``label (G,)`` is the topic with the largest expected share of each document.  ``soft``: expected
        shares E[pi_d], ``(G, K)`` for LDA, ``(G, K + 1)`` for HDPTopics, whose last column is the share of all topics
        not met yet; each row sums to one.  ``top``: the topics with the largest shares.  A document without a word of
        the vocabulary has its prior expected shares.  Groups of dense atoms: atoms have labels ``(n,)``, groups have
        shares.

        Hidden Markov models: labels are the most likely path of states of each sequence; ``soft`` and ``top`` give
        probabilities of single steps, given the whole sequence.  In autoregressive models with ``lags``, the first
        steps of a sequence have the values of the step after them.  A Parquet or CSV output has the columns
        ``sequence`` (the id in the data, or the number of the sequence), ``step`` (from 0, in the order of the order
        column; it continues through the blocks of a sequence that was cut), and ``state`` instead of ``label``.

    Raises
    ------
    DataError
        Features that differ from training (a missing or renamed one is named; further ones are left out, with a line),
        values that its likelihood cannot produce, or a store of counts with another vocabulary.  Links that are not
        one for each atom, a group with atoms in several batches, or links of lazy Dask data.
    SettingError
        Both ``soft`` and ``top`` are given, ``out`` has another ending, the posterior has no cut with ``at`` clusters,
        or links are given for documents, sequences or strata.
    NumericalError
        Responsibilities that are not finite: the values are too far from the training data for double precision.
    StoreError
        ``out`` exists already, or cannot be written.
    ExecutionError
        As for :func:`bnp_dask.train`.

    Notes
    -----
    Weights of atoms do not matter here.  Ties go to the earlier cluster.  Each document starts from scratch, by the
    document step of the model: its topics depend on its words and the posterior alone.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.repeat([[0.0], [9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 1))
    >>> posterior = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x).posterior
    >>> bnp.predict(posterior, [[0.5], [8.5]])
    array([0, 1])
    >>> bnp.predict(posterior, [[0.5]], soft=True).round(2)  # columns in the order of posterior.ids
    array([[1., 0.]])
    """
    posterior = require_posterior(posterior if at is None else tree(posterior).cut(at))
    mode = _mode(soft, top)
    rows, labels = unlabelled(data, needs_of(posterior.model).in_order)
    data = rows if labels is None else data  # named columns are matched by name, which is not lazy
    columns = columns_for(posterior)
    has_groups = is_dask_frame(data) and columns is not None and columns.roles.groups is not None
    if is_dask(data) and posterior.model.structure.is_ordered and not has_groups:
        raise DataError(
            "Dask data do not say where sequences start; pass a source: as_source(data, groups=...), with offsets for "
            "an array, or the column of ids of a DataFrame"
        )
    if links is not None:
        require_linkable(posterior.model)
    if out is None and is_dask(data) and labels is None and not has_groups:
        if links is not None:
            raise DataError(
                "links: lazy Dask data are predicted block by block, and a group may lie in several; write the result "
                'with out="labels.zarr", or pass the computed rows'
            )
        return _predict_lazy(posterior, data, mode)
    source = open_for(posterior, data, batch_size)
    source = source if links is None else with_links(source, links_of(links))
    readers = [batch_reader(source, i) for i in range(source.n_batches)]
    compute = partial(_assign, mode)
    with runner_for(posterior, client) as runner:
        if out is not None:
            facts = {"ids": [int(i) for i in posterior.ids], "source": source.name}
            if posterior.columns is not None:
                facts["columns"] = list(posterior.columns.names)
            layouts = mode.layouts(posterior)
            if posterior.model.structure.is_ordered and os.fspath(out).endswith((".parquet", ".csv")):
                named, task, steps = name_steps(source, layouts, compute)
                write(out, named, task, posterior.light(), steps, runner, WINDOW, facts)
            else:
                write(out, layouts, compute, posterior.light(), readers, runner, WINDOW, facts)
            return None
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"predict-batch{i}", compute, (shared, reader)) for i, reader in enumerate(readers))
        parts = list(in_order(runner, tasks, WINDOW))
    return _join(parts, mode, posterior)


def _join(parts: list[dict[str, np.ndarray]], mode: _Mode, posterior: Posterior) -> np.ndarray | TopResponsibilities:
    """Results of all batches, joined."""
    joined = {x.name: np.concatenate([p[x.name] for p in parts]) for x in mode.layouts(posterior)}
    if mode.top is not None:
        return TopResponsibilities(joined["label"], joined["resp"])
    return joined["resp"] if mode.soft else joined["label"]


def _mode(soft: bool, top: int | None) -> _Mode:
    if top is not None:
        whole_number("top", top, 1, what="None, or a whole number of clusters per atom")
    if flag("soft", soft) and top is not None:
        raise SettingError(f"soft=True and top={top}: choose all responsibilities (soft) or the largest (top)")
    return _Mode(bool(soft), None if top is None else int(top))


def _assign(mode: _Mode, posterior: Posterior, reader: Reader) -> Outputs:
    """Task: columns of one batch."""
    return assign_batch(posterior, reader(), mode.soft, mode.top)


def assign_batch(posterior: Posterior, batch: Batch, soft: bool = False, top: int | None = None) -> Outputs:
    """Labels, responsibilities or top responsibilities of a batch in memory, as named columns.

    Sequences of autoregressive models with ``lags`` are as they were recorded.  Never holds more than a tile of the
    ``(n, K)`` matrix unless ``soft`` asks for all of it.
    """
    structure = posterior.model.structure
    return for_recorded(posterior, batch, lambda known, rows: structure.predict(known, rows, soft, top))


def _predict_lazy(posterior: Posterior, data: Any, mode: _Mode) -> Any:
    k = posterior.n_clusters
    light, columns = posterior.light(), columns_for(posterior)
    if mode.top is None:
        layout = mode.layouts(posterior)[0]
        return lazy.map_rows(partial(_block, mode), light, data, layout.width, np.dtype(layout.dtype), columns)
    width = min(mode.top, k)
    both = lazy.map_rows(partial(_block, mode), light, data, 2 * width, np.dtype(np.float64), columns)
    return TopResponsibilities(both[:, :width].astype(np.int64), both[:, width:])


def _block(mode: _Mode, posterior: Posterior, rows: Any) -> np.ndarray:
    """One block of a Dask array: labels ``(n,)``, responsibilities ``(n, K)``, or both side by side ``(n, 2 L)``."""
    name = "a block of the Dask array"
    batch = Batch(block_rows(rows, name), None, name)
    with computing_as(posterior.model):
        columns = assign_batch(posterior, batch, mode.soft, mode.top)
    if mode.top is not None:
        return np.concatenate([columns["label"], columns["resp"]], axis=1)
    return columns["resp"] if mode.soft else columns["label"]
