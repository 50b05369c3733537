"""Assign new atoms to the clusters of a posterior, and score how well it expected them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import columns_for, open_for
from bnp_dask.analysis.running import computing_as, runner_for
from bnp_dask.analysis.sequences.lags import density_of_recorded, for_recorded
from bnp_dask.analysis.sequences.states import name_steps, state_path
from bnp_dask.analysis.topics.assign import assign_documents, n_shares
from bnp_dask.analysis.topics.completion import BatchScore, Completion, CompletionScore, combine_scores, complete_batch
from bnp_dask.analysis.topics.documents import as_documents, prior_mass
from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.finite import require_finite_rows
from bnp_dask.data import output_lazy as lazy
from bnp_dask.data.base import Reader, Source, batch_reader
from bnp_dask.data.grouped.lagged import lagged
from bnp_dask.data.output import Layout, Outputs, write
from bnp_dask.data.sources.collections import block_rows, is_dask, is_dask_frame
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.execute.ordered import in_order
from bnp_dask.inputs.settings import flag, whole_number
from bnp_dask.kernels.numeric.arithmetic import log, log_sum_exp
from bnp_dask.model import Model, Posterior
from bnp_dask.structure.sequences import sequence_offsets, sequence_weights
from bnp_dask.structure.verbs import ChainedAllocation

if TYPE_CHECKING:
    from distributed import Client

WINDOW = 8
"""Batches in flight."""

UNSEEN_MASS = 1e-12
"""Prior mass of clusters without atoms below which it is rounding of weights that sum to one."""


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


@dataclass(frozen=True)
class _Mode:
    """What is wanted of each atom: a label, all responsibilities, or the ``top`` largest."""

    soft: bool
    top: int | None

    def layouts(self, posterior: Posterior) -> tuple[Layout, ...]:
        if self.top is not None:
            width = min(self.top, posterior.n_clusters)
            return Layout("label", "<i8", width), Layout("resp", "<f8", width)
        width = n_shares(posterior.model, posterior.n_clusters)
        return (Layout("resp", "<f8", width),) if self.soft else (Layout("label", "<i8", None),)


# -- predict --------------------------------------------------------------------------------------------------
def predict(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    soft: bool = False,
    top: int | None = None,
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
        the posterior was trained on a store that was made from raw text.  Where training and data have names, columns
        are matched by name, whatever their order; those that held weights, groups and order are no features, and
        sequences are read by them as in training.  Data without names are taken as they lie.
    out
        Path or URL ending with ``.zarr`` or ``.parquet``: results are written there batch by batch, so that data
        may have any size.  Zarr: a group with the arrays ``label`` and ``resp``; Parquet: a folder of files with
        those columns.  Rows are in the order of the data.
    soft
        All responsibilities instead of labels.
    top
        The ``top`` most likely clusters instead of labels.
    batch_size
        Atoms per batch; None for a size that fits memory.
    client
        A ``distributed.Client``, the address of a scheduler, or an executor; None is the current client, or this
        thread when there is none.

    Returns
    -------
    numpy.ndarray or TopResponsibilities or dask.array.Array or None
        Labels ``(n,)`` int64: the *ids* of clusters, ``posterior.ids``, which stay the same when others come and
        go (not positions; those are ``np.searchsorted`` away).  ``soft``: ``(n, K)`` in the order of
        ``posterior.ids``; each row sums to one.  ``top``: :class:`TopResponsibilities`.  Lazy Dask arrays for Dask
        data; None when ``out`` is given.

        Topic models: ``label (G,)`` is the topic with the largest expected share of each document.  ``soft``: expected
        shares E[pi_d], ``(G, K)`` for LDA, ``(G, K + 1)`` for HDPTopics, whose last column is the share of all topics
        that were not met yet; each row sums to one.  ``top``: the topics with the largest shares.  A document without
        a word of the vocabulary has the shares that are expected before anything is read.  Groups of dense atoms:
        labels are those of atoms ``(n,)``, shares are those of groups.

        Hidden Markov models: labels are the most likely path of states of each sequence; ``soft`` and ``top`` are
        those of single steps, given the whole sequence.  Of autoregressive models with ``lags``, the first steps of a
        sequence have what the step after them has.  A Parquet output has the columns ``sequence`` (the id in the
        data, or the number of the sequence), ``step`` (from 0, in the order of the order column; it goes on through
        the blocks of a sequence that was cut), and ``state`` instead of ``label``.

    Raises
    ------
    DataError
        Features other than those the model was trained on (one that is missing, renamed or one too many is named),
        values that its likelihood cannot produce, or a store of counts with another vocabulary.
    StoreError
        ``out`` exists already.

    Notes
    -----
    Weights of atoms do not matter here.  Ties go to the earlier cluster.  Each document starts from scratch, by the
    document step of the model: its topics depend on its words and the posterior alone.
    """
    require_posterior(posterior)
    mode = _mode(soft, top)
    columns = columns_for(posterior)
    has_groups = is_dask_frame(data) and columns is not None and columns.roles.groups is not None
    if is_dask(data) and posterior.model.structure.is_ordered and not has_groups:
        raise DataError(
            "Dask data do not say where sequences start; pass a source: as_source(data, groups=...), with offsets for "
            "an array, or the column of ids of a DataFrame"
        )
    if out is None and is_dask(data) and not has_groups:
        return _predict_lazy(posterior, data, mode)
    source = open_for(posterior, data, batch_size)
    readers = [batch_reader(source, i) for i in range(source.n_batches)]
    compute = _Assign(mode)
    with runner_for(posterior, client) as runner:
        if out is not None:
            facts = {"ids": [int(i) for i in posterior.ids], "source": source.name}
            if posterior.columns is not None:
                facts["columns"] = list(posterior.columns.names)
            layouts = mode.layouts(posterior)
            if posterior.model.structure.is_ordered and os.fspath(out).endswith(".parquet"):
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
    """What the batches say, as one."""
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


@dataclass(frozen=True)
class _Assign:
    """Task: columns of one batch."""

    mode: _Mode

    def __call__(self, posterior: Posterior, reader: Reader) -> Outputs:
        return assign_batch(posterior, reader(), self.mode.soft, self.mode.top)


def assign_batch(posterior: Posterior, batch: Batch, soft: bool = False, top: int | None = None) -> Outputs:
    """Labels, responsibilities or top responsibilities of a batch in memory, as named columns.

    Sequences of autoregressive models with ``lags`` are as they were recorded.  Never holds more than a tile of the
    ``(n, K)`` matrix unless ``soft`` asks for all of it.
    """
    if posterior.model.structure.has_shares:
        return assign_documents(posterior, batch, soft, top)
    return for_recorded(posterior, batch, lambda known, rows: _assigned(known, rows, soft, top))


def _assigned(posterior: Posterior, batch: Batch, soft: bool, top: int | None) -> dict[str, np.ndarray]:
    """Columns of rows as the likelihood takes them."""
    posterior.model.observation.check(batch)
    # responsibilities are asked for, not responsibilities times weights
    batch = replace(batch, weights=None)
    k = posterior.n_clusters
    layouts = _Mode(soft, top).layouts(posterior)
    shapes = {x.name: (batch.n_atoms,) if x.width is None else (batch.n_atoms, x.width) for x in layouts}
    columns = {x.name: np.empty(shapes[x.name], x.dtype) for x in layouts}
    start = 0
    if posterior.model.structure.is_ordered and not soft and top is None:
        for tile in posterior.model.allocation.tiles(batch, k):
            path = state_path(posterior, tile)
            columns["label"][start : start + tile.n_atoms] = posterior.ids[path]
            start += tile.n_atoms
        return columns
    for tile, step in posterior.model.steps(posterior, batch):
        resp = step.resp
        dense = resp if isinstance(resp, np.ndarray) else resp.to_dense()
        require_finite_rows(dense, tile, "responsibilities")
        rows = slice(start, start + tile.n_atoms)
        if top is not None:
            order = np.argsort(-dense, axis=1, kind="stable")[:, :top]
            columns["label"][rows] = posterior.ids[order]
            columns["resp"][rows] = np.take_along_axis(dense, order, axis=1)
        elif soft:
            columns["resp"][rows] = dense
        else:
            columns["label"][rows] = posterior.ids[dense.argmax(axis=1)]
        start += tile.n_atoms
    return columns


def _predict_lazy(posterior: Posterior, data: Any, mode: _Mode) -> Any:
    k = posterior.n_clusters
    light, columns = posterior.light(), columns_for(posterior)
    if mode.top is None:
        layout = mode.layouts(posterior)[0]
        return lazy.map_rows(_Block(mode), light, data, layout.width, np.dtype(layout.dtype), columns)
    width = min(mode.top, k)
    both = lazy.map_rows(_Block(mode), light, data, 2 * width, np.dtype(np.float64), columns)
    return TopResponsibilities(both[:, :width].astype(np.int64), both[:, width:])


@dataclass(frozen=True)
class _Block:
    """One block of a Dask array: labels ``(n,)``, responsibilities ``(n, K)``, or both side by side ``(n, 2 L)``."""

    mode: _Mode

    def __call__(self, posterior: Posterior, rows: Any) -> np.ndarray:
        name = "a block of the Dask array"
        batch = Batch(block_rows(rows, name), None, name)
        with computing_as(posterior.model):
            columns = assign_batch(posterior, batch, self.mode.soft, self.mode.top)
        if self.mode.top is not None:
            return np.concatenate([columns["label"], columns["resp"]], axis=1)
        return columns["resp"] if self.mode.soft else columns["label"]


# -- score ----------------------------------------------------------------------------------------------------
def score(
    posterior: Posterior,
    data: Any,
    *,
    completion: Completion | None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> float:
    """Mean log likelihood per atom under the posterior predictive, nats; larger is better.  Topic models: completion.

    The density of an atom is ``sum_k E[pi_k] p(x | cluster k)`` with each cluster's parameters integrated over
    their posterior.  A Dirichlet process keeps mass for clusters that no atom has come from yet; that share
    is given to the prior predictive, so that the density integrates to one.

    For hidden Markov models it is the log density of whole sequences under expected transitions, per step; paths
    through states that were never seen are left out.  Autoregressive models with ``lags`` condition on the first steps
    of each sequence, which do not count.

    For topic models it is the document completion score, in nats per held-out token: the topics of each document are
    found from one part of its words, with E[phi_k] for the topics, and the other part is predicted by
    ``sum_k E[pi_dk] E[phi_k]``.  The default is that of thesis Ch. 7: 80% of the distinct words of each document to
    find its topics, 20% to be predicted.  See :func:`completion_score` for the counts behind it.

    Parameters
    ----------
    posterior
        Trained clusters.
    data
        Held-out atoms; weights, where the source has them, weigh the mean: of a table the column that training had
        (``as_source(table)`` counts every row once).  Raw texts as in :func:`predict`.
    completion
        Which words are held out (topic models only): ``Completion("types")``, the default, or ``Completion("tokens")``
        for thesis (5.59), half of the tokens; with ``share=`` and ``seed=``.
    batch_size, client
        As in :func:`predict`.

    Raises
    ------
    DataError
        Features other than those the model was trained on, values that its likelihood cannot produce, a total
        weight of zero, or documents none of which has two words.
    SettingError
        ``completion`` for a model without documents.
    """
    if require_posterior(posterior).model.structure.has_shares:
        return completion_score(posterior, data, completion, batch_size=batch_size, client=client).score
    if completion is not None:
        raise SettingError(
            f"completion={completion!r}: {type(posterior.model.allocation).__name__} has no documents to complete; "
            "leave it out"
        )
    source = open_for(posterior, data, batch_size, weights=True)
    parts = _for_batches(posterior, source, client, score_batch, "score")
    weight = math.fsum(w for _, w in parts)
    if weight <= 0:
        raise DataError(f"{source.name}: the atoms' weights sum to {weight}; a mean needs a positive sum")
    return math.fsum(value for value, _ in parts) / weight


def score_samples(
    posterior: Posterior, data: Any, *, batch_size: int | None = None, client: Client | Executor | str | None = None
) -> np.ndarray:
    """Log likelihood of each atom under the posterior predictive, ``(n,)`` nats; see :func:`score`.

    Topic models: completion of each document ``(G,)``, nats per held-out token; NaN where it cannot be split.  Steps of
    sequences that the others are conditioned on have NaN.
    """
    source = open_for(require_posterior(posterior), data, batch_size)
    if posterior.model.structure.has_shares:
        found = _for_batches(posterior, source, client, _Complete(Completion()), "score")
        with np.errstate(invalid="ignore"):
            return np.concatenate([part.value / part.tokens for part in found])
    return np.concatenate(_for_batches(posterior, source, client, density_of, "score"))


def completion_score(
    posterior: Posterior,
    data: Any,
    completion: Completion | None = None,
    *,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> CompletionScore:
    """Document completion of held-out documents, with what was counted on the way; see :func:`score`.

    Documents that cannot be split are left out and counted.  The split of a document depends on its own words and the
    seed, so the score does not depend on how data are cut or ordered, but for rounding.
    """
    prior_mass(require_posterior(posterior))
    chosen = Completion() if completion is None else completion
    if not isinstance(chosen, Completion):
        raise SettingError(f'completion={completion!r}: needs Completion("types"), Completion("tokens"), or None')
    source = open_for(posterior, data, batch_size)
    parts = _for_batches(posterior, source, client, _Complete(chosen), "score")
    with computing_as(posterior.model):
        return combine_scores(parts, chosen, source.name)


@dataclass(frozen=True)
class _Complete:
    """Task: completion of one batch."""

    completion: Completion

    def __call__(self, posterior: Posterior, reader: Reader) -> BatchScore:
        return complete_batch(posterior, as_documents(posterior.model, reader()), self.completion)


def _for_batches(
    posterior: Posterior,
    source: Source,
    client: Client | Executor | str | None,
    function: Callable[[Posterior, Reader], Any],
    verb: str,
) -> list[Any]:
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"{verb}-batch{i}", function, (shared, batch_reader(source, i))) for i in range(source.n_batches))
        return list(in_order(runner, tasks, WINDOW))


def density_of(posterior: Posterior, reader: Reader) -> np.ndarray:
    """Task: log density of each atom of a batch, ``(n,)`` nats; NaN of steps that the others are conditioned on."""
    return density_of_recorded(posterior, reader(), log_density)


def score_batch(posterior: Posterior, reader: Reader) -> tuple[float, float]:
    """Task: weighted sum of the log densities of a batch, and the sum of weights."""
    return score_of(posterior, lagged(reader(), posterior.model.lags))


def score_of(posterior: Posterior, batch: Batch) -> tuple[float, float]:
    """Weighted sum of the log densities of rows as the likelihood takes them, and the sum of weights."""
    batch = _counting(posterior.model, batch)
    value = log_density(posterior, batch)
    return math.fsum(value if batch.weights is None else value * batch.weights), batch.total_weight


def _counting(model: Model, batch: Batch) -> Batch:
    """The atoms, or sequences, that count at least a little: of those that do not nobody asks for a density."""
    if batch.weights is None or (batch.weights > 0).all():
        return batch
    check_weights(batch.weights, batch.n_atoms, batch.name)
    if not model.structure.is_ordered:
        return batch.take(np.flatnonzero(batch.weights > 0))
    return batch.take_groups(np.flatnonzero(sequence_weights(batch, sequence_offsets(batch)) > 0))


def log_density(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Log posterior predictive density of each atom of a batch in memory, ``(n,)`` nats."""
    model = posterior.model
    model.observation.check(batch)
    if model.structure.is_ordered:
        rows = []
        for tile in model.allocation.tiles(batch, posterior.n_clusters):
            log_lik = model.observation.log_predictive(posterior.observation, tile)
            rows.append(cast(ChainedAllocation, model.allocation).log_density(posterior.allocation, log_lik, tile))
        return np.concatenate([np.zeros(0), *rows])
    weights = posterior.weights
    with np.errstate(divide="ignore"):
        log_weights = log(weights)
    rest = 1.0 - float(np.sum(weights))
    prior = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64))) if rest > UNSEEN_MASS else None
    out = np.empty(batch.n_atoms)
    start = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters + 1):
        terms = model.observation.log_predictive(posterior.observation, tile) + log_weights
        if prior is not None:
            unseen = model.observation.log_predictive(prior, tile) + math.log(rest)
            terms = np.concatenate([terms, unseen], axis=1)
        out[start : start + tile.n_atoms] = log_sum_exp(terms)
        start += tile.n_atoms
    require_finite_rows(out, batch, "log density")
    return out
