"""Starts from given parts: nothing, single atoms, responsibilities, or another posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core import UNITS, Batch, Summary, concatenate, register, thawed
from bnp_dask.data import Reader, Source, batch_reader, columns_of
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import Handle, in_order
from bnp_dask.initialize.base import (
    InitContext,
    Initialization,
    LearnedStart,
    choose_atoms,
    each_batch,
    gather,
    hard_resp,
    locate,
    read_checked,
    require_enough_atoms,
    starts_from_words,
    submit_atoms,
    summarize_assigned,
    take_atoms,
)
from bnp_dask.initialize.kmeans import most_likely, nearest, sample_size, single_summary
from bnp_dask.inputs import hold, is_a, number_from, of_two_names, plain, require, share_below_one, shown, whole_number
from bnp_dask.kernels import scale_rows
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import KNOWN, Labelled, unlabelled
from bnp_dask.structure import sequence_offsets


@register
@dataclass(frozen=True)
class FromNothing:
    """Start in which no cluster holds any atom: the first atoms open the first clusters.

    For schedules that open clusters themselves, such as :class:`~bnp_dask.inference.streaming.Filter`; and for known
    labels, each of which opens a cluster of its atoms under any schedule.
    """

    def start(self, context: InitContext) -> Summary:
        """Statistics of one cluster without atoms: the prior."""
        return context.model.empty_summary(np.zeros(1, np.int64))


SUM_TOLERANCE = 1e-6
"""Largest deviation from one of the sum of an atom's responsibilities: float32 keeps seven digits."""


@register
@dataclass(frozen=True)
class RandomExamples:
    """K distinct atoms drawn uniformly from the whole data set, each a cluster that holds this one atom.

    Only the batches that hold them are read.  All atoms are equally likely, and each counts once, regardless of its
    weight.

    In topic models of words the examples are documents.  A document alone is no start for a topic: it has a few hundred
    of the words, and tokens of other words could not go there.  So each topic is a document mixed with the words of the
    whole corpus, and counts as an equal part of the corpus.

    In topic models of dense atoms each topic also gets those atoms of a sample that are nearest to its example, as in
    :class:`~bnp_dask.initialize.BregmanKMeans`, and all count as the whole data.  Under topics of one atom each, a
    large group settles for a few of them before they resemble anything, and keeps these.  (40 zero-mean Gaussians of
    50,000 image patches in 12 groups, 12 laps without moves: the objective ended .9 nats an atom below that from the
    clusters of a mixture, and the held-out score 1.3.)

    Parameters
    ----------
    n_clusters
        Clusters to start with, K; at most the number of atoms.
    background
        Topic models of words only: share of the corpus in each topic, 0 to 1.  (With 50 topics in 5,000 documents of
        120 tokens, 15 laps found none of the topics from bare documents, 35 at one half, and 39 at 0.9.)
    """

    n_clusters: int
    background: float = 0.9

    def __post_init__(self) -> None:
        hold(self, "n_clusters", whole_number("n_clusters", self.n_clusters, 1))
        hold(self, "background", share_below_one("background", self.background, "a share"))

    def start(self, context: InitContext) -> Summary:
        """Statistics of K clusters: of one atom each, or of topics as large as the data together.

        Raises
        ------
        DataError
            More clusters than atoms, or atoms that the likelihood cannot have produced.
        """
        require_enough_atoms(self.n_clusters, context, "RandomExamples")
        executor = context.executor
        model = executor.share("init-model", context.model)
        parts = submit_atoms(context, model, choose_atoms(context, self.n_clusters))
        if context.model.structure.has_shares and not context.source.is_sparse:
            sample = submit_atoms(context, model, choose_atoms(context, sample_size(context, self.n_clusters)))
            mass = context.survey.total_weight
            task = executor.submit("init-examples", _with_nearest, model, len(parts), mass, *parts, *sample)
            return executor.result(task)
        examples = executor.result(executor.submit("init-examples", _one_atom_each, model, *parts))
        return self._on_background(context, examples) if starts_from_words(context) else examples

    def _on_background(self, context: InitContext, examples: Summary) -> Summary:
        corpus = context.survey.mean * context.survey.total_weight
        share = examples["x"] / np.maximum(examples["N"], 1.0)[:, None]
        mixed = (1.0 - self.background) * share + self.background * corpus / corpus.sum()
        x = mixed * (corpus.sum() / (self.n_clusters * mixed.sum(axis=1, keepdims=True)))
        return replace(examples, values={**examples.values, "N": x.sum(axis=1), "x": x})


def _one_atom_each(model: Model, *parts: Batch) -> Summary:
    """Task: each atom as a cluster, in the order of the data."""
    return single_summary(model, concatenate(list(parts)))


def _with_nearest(model: Model, n_parts: int, mass: float, *parts: Batch) -> Summary:
    """Task: each atom of the first parts, and the atoms of the others that are nearest to it, scaled to the data's
    mass."""
    examples, sample = concatenate(list(parts[:n_parts])), gather(parts[n_parts:])
    labels, _ = nearest(model, sample, examples)
    summary = single_summary(model, examples) + summarize_assigned(model, sample, labels, examples.n_atoms)
    return summary.scale(mass / float(summary["N"].sum()))


@register
@dataclass(frozen=True, eq=False)
class Responsibilities:
    """Statistics of the whole data under known responsibilities or labels.

    Parameters
    ----------
    resp
        In the order of the rows of the data: responsibilities ``(n, K)``, rows that sum to one, or labels
        ``(n,)``, whole numbers >= 0.  Unused labels make no cluster: cluster 0 is the lowest label in use,
        and so on.
    """

    resp: Any

    def start(self, context: InitContext) -> Summary:
        """Exact statistics of all atoms.

        Raises
        ------
        DataError
            Not one row per atom, labels that are negative or not integers, rows that are not probabilities.
        """
        resp, n_clusters = self._checked(context)
        executor, source, atoms = context.executor, context.source, context.survey.batch_atoms
        model = executor.share("init-model", context.model)
        ends = np.cumsum(atoms)

        def submit(b: int) -> Handle:
            rows = resp[ends[b] - atoms[b] : ends[b]]
            return executor.submit(f"init-resp-batch{b}", _summarize, batch_reader(source, b), model, rows, n_clusters)

        total: Summary | None = None
        for part in each_batch(context, submit):
            total = part if total is None else total + part
        assert total is not None  # an empty data set was refused by the check
        return total

    def _checked(self, context: InitContext) -> tuple[np.ndarray, int]:
        resp, n = plain(self.resp, "Responsibilities"), context.survey.n_atoms
        if resp.ndim not in (1, 2) or resp.dtype.kind not in "biuf":
            raise DataError(
                f"Responsibilities of shape {resp.shape} and type {resp.dtype}: needs labels ({n},) or "
                f"responsibilities ({n}, K)"
            )
        if len(resp) > n > 0:
            resp = _of_counted(context, resp)
        if len(resp) != n or n == 0:
            raise DataError(
                f"Responsibilities has {len(resp)} rows, but {context.source.name} has {n} atoms; give one row per "
                "atom, in the order of the data"
            )
        if resp.ndim == 1:
            return _checked_labels(resp)
        return _checked_rows(resp), resp.shape[1]


def _of_counted(context: InitContext, resp: np.ndarray) -> np.ndarray:
    """Responsibilities or labels of the atoms that count, if given for all rows of the data; else unchanged."""
    executor, source = context.executor, context.source
    tasks = ((f"init-rows-batch{b}", _dropped, (batch_reader(source, b),)) for b in range(source.n_batches))
    stays = [np.ones(0, np.bool_)]
    for dropped, n_atoms in in_order(executor, tasks, 2 * executor.n_workers + 2):
        own = np.ones(n_atoms + len(dropped), np.bool_)
        own[dropped] = False
        stays.append(own)
    chosen = np.concatenate(stays)
    return resp[chosen] if len(chosen) == len(resp) else resp


def _dropped(reader: Reader) -> tuple[np.ndarray, int]:
    """Task: rows of one batch that do not count, and the number of the other rows."""
    batch = reader()
    return np.zeros(0, np.int64) if batch.dropped is None else batch.dropped, batch.n_atoms


def _checked_labels(labels: np.ndarray) -> tuple[np.ndarray, int]:
    wrong = ~np.isfinite(labels) | (labels < 0) | (labels != np.floor(labels))
    if wrong.any():
        n = int(wrong.argmax())
        raise DataError(
            f"label of atom {n} is {labels[n]}: labels are whole numbers >= 0; an atom without a cluster (such as the "
            "-1 of some clusterings) must be given one, or be left out of the data"
        )
    used, position = np.unique(labels, return_inverse=True)
    return position.astype(np.int64), len(used)


def _checked_rows(resp: np.ndarray) -> np.ndarray:
    if resp.shape[1] == 0:
        raise DataError("Responsibilities has no column: needs one for each cluster, at least one")
    # a block at a time, so that checking takes no memory beside the array
    for start in range(0, len(resp), 2**16):
        block = resp[start : start + 2**16].astype(np.float64)
        ok = (block >= 0).all(axis=1) & (np.abs(block.sum(axis=1) - 1.0) <= SUM_TOLERANCE)
        if not ok.all():
            n = int((~ok).argmax())
            raise DataError(
                f"responsibilities of atom {start + n} are {block[n][:8]}, with sum {block[n].sum()}: "
                "need numbers >= 0 that sum to one"
            )
    return resp


def _summarize(reader: Reader, model: Model, rows: np.ndarray, n_clusters: int) -> Summary:
    """Task: statistics of one batch with given labels or responsibilities."""
    batch = read_checked(reader, model, len(rows))
    return summarize_assigned(model, batch, rows, n_clusters)


@register
@dataclass(frozen=True, eq=False)
class FromPosterior:
    """The clusters of another posterior, with their ids.

    Parameters
    ----------
    posterior
        A posterior that still has its summary, of the same kinds of models and the same features.  Its statistics
        must be taken about the same centre, which holds if both runs train one model:
        ``train(posterior.model, data, init=FromPosterior(posterior))``.
    """

    posterior: Posterior

    def start(self, context: InitContext) -> Summary:
        """The posterior's own summary, without tracked pairs.

        Raises
        ------
        SettingError
            No summary, or a model whose statistics differ in meaning.
        """
        if not isinstance(self.posterior, Posterior):
            raise SettingError(f"FromPosterior({shown(self.posterior)}): needs a posterior, such as `result.posterior`")
        summary = self.posterior.summary
        if summary is None:
            raise SettingError(
                "FromPosterior: this posterior has no summary (it is a light copy); give the one of a training result, "
                "`result.posterior`, or one that bnp.load read from a saved model"
            )
        theirs = thawed(self.posterior.model)
        _require_same_columns(self.posterior, context.source)
        _require_same_kind(theirs, context.model)
        _require_same_statistics(theirs, context)
        return _counted_as(thawed(summary).without_pairs(), context.model)


def _counted_as(summary: Summary, model: Model) -> Summary:
    """Statistics with counts of units if the model has them, else without; each atom is a unit if none are known."""
    if (UNITS in summary) == bool(model.of_units):
        return summary
    values = {name: summary.units if name == UNITS else summary[name] for name in model.fields}
    return replace(summary, fields=model.fields, values=values)


def _require_same_columns(posterior: Posterior, source: Source) -> None:
    """Raise SettingError if the posterior's features differ from the data's, or come in another order."""
    ours = columns_of(source)
    if posterior.columns is None or ours is None:
        return
    try:
        index = posterior.columns.positions(ours, source.name)
    except DataError as error:
        raise SettingError(f"FromPosterior: {error}") from None
    if index is not None:
        raise SettingError(
            f"FromPosterior: the posterior's columns are {posterior.columns}, but the columns of {source.name} come in "
            "another order; train on as_source(data, columns=posterior.columns)"
        )


def _require_same_kind(theirs: Model, ours: Model) -> None:
    for part, a, b in (
        ("allocation", theirs.allocation, ours.allocation),
        ("observation", theirs.observation, ours.observation),
    ):
        if type(a) is not type(b):
            raise SettingError(
                f"FromPosterior: the posterior's {part} model is {type(a).__name__}, but {type(b).__name__} is to be "
                "trained; train the posterior's own model, `posterior.model`"
            )
    sizes, wanted = dict(theirs.observation.sizes), dict(ours.observation.sizes)
    if sizes != wanted or not theirs.fields.keys() ^ ours.fields.keys() <= {UNITS}:
        raise SettingError(
            f"FromPosterior: the posterior's statistics are {sorted(theirs.fields)} of sizes {sizes}, but "
            f"{sorted(ours.fields)} of sizes {wanted} are needed; both must have the same features"
        )


def _require_same_statistics(theirs: Model, context: InitContext) -> None:
    """Raise unless one atom of the data has the same statistics in both models, which may differ in their centre."""
    executor = context.executor
    b = int(np.flatnonzero(context.survey.batch_atoms)[0])
    reader, expected = batch_reader(context.source, b), context.survey.batch_atoms[b]
    task = executor.submit("init-probe", take_atoms, reader, context.model, expected, np.zeros(1, np.int64))
    probe = executor.result(task)
    ours = single_summary(context.model, probe)
    for name, value in _counted_as(single_summary(theirs, probe), context.model).values.items():
        size = max(float(np.abs(value).max(initial=0.0)), float(np.abs(ours[name]).max(initial=0.0)))
        if not np.allclose(value, ours[name], rtol=1e-6, atol=1e-6 * size):
            raise SettingError(
                f"FromPosterior: the statistic {name!r} of an atom differs between the posterior's model and the one "
                "to be trained (it is taken about another centre); train the posterior's own model, `posterior.model`"
            )


# -- A start on a few batches: clusters are learned on nested samples that grow to all data -----------------------


@register
@dataclass(frozen=True)
class FromSample:
    """Learn the clusters on a sample of the batches first, which grows until it holds all of them.

    The samples are nested: each holds the one before, and is ``growth`` times as large.  A run visits the batches of a
    sample, with moves, until its clusters are calm, or stay while laps gain less than another sample of this size would
    change; then it visits the new batches of the next sample once, and goes on
    with all that it has.  Nothing is lost from one sample to the next: the statistics of all batches visited so far
    stay in the total, and each is replaced at the batch's next visit as in any run.  So the first lap over all data
    begins with clusters learned on most of a fourth of them, for the work of a third of a lap for each lap on samples.

    Batches are drawn from the whole data set, by the seed alone.  Data whose batches differ much, such as sorted rows,
    need enough of them.  Priors are set from all data, as in any run.

    Only for ``Memoized()``, from one start, without shadows and without known labels or links.

    Parameters
    ----------
    init
        Start on the first sample; default as for ``train``.
    batches
        Batches of the first sample, at least.
    growth
        Ratio of the sizes of two samples that follow each other.
    laps
        Most laps on a sample before it grows.  They do not count as laps of the schedule.

    Notes
    -----
    Rows of the history on a sample have ``"sample"``, its number of batches; the objective is that of the batches
    visited so far, so that these rows are not ``"exact"``.  :func:`bnp_dask.plan` forecasts laps over all data, without
    those on samples.
    """

    init: Initialization | None = None
    batches: int = 8
    growth: float = 4.0
    laps: int = 20

    def __post_init__(self) -> None:
        if self.init is not None:
            require("init", self.init, Initialization, "a start, such as BregmanKMeans(25)")
            if isinstance(self.init, (FromSample, Responsibilities)):
                raise SettingError(
                    f"FromSample({type(self.init).__name__}(...)): needs a start that finds clusters in some batches, "
                    "such as BregmanKMeans(25)"
                )
        hold(self, "batches", whole_number("batches", self.batches, 1))
        hold(self, "growth", number_from("growth", self.growth, 1.5, 1e6))
        hold(self, "laps", whole_number("laps", self.laps, 1))

    def sizes(self, n_batches: int) -> tuple[int, ...]:
        """Batches of the samples of data in ``n_batches``, ascending; the last holds all."""
        sizes = [n_batches]
        while sizes[-1] / self.growth >= self.batches:
            sizes.append(int(sizes[-1] / self.growth))
        return tuple(sizes[::-1])

    def start(self, context: InitContext) -> Summary:
        """Statistics of the start on the sample, the atoms that the ``context`` shows.

        Raises
        ------
        SettingError
            There is no ``init`` to do it.
        """
        if self.init is None:
            raise SettingError(f"{shown(self)}: the start of a sample is set by train; give FromSample(init=...) here")
        return self.init.start(context)


# -- Start for models of sequences: windows of consecutive steps, each a state (thesis 6.6) -----------------------


@register
@dataclass(frozen=True, init=False)
class ContiguousBlocks:
    """K windows of consecutive rows at random places in the sequences, each a state that holds these rows.

    All rows of the data are equally likely to be in a window's middle, so long sequences have more windows; windows may
    overlap.  Only the batches that hold them are read.

    Parameters
    ----------
    n_clusters, n_states
        States to start with, K (two names of one setting); at most the number of rows.
    length
        Rows in a window: shorter than most segments of the data, and long enough to represent them.  A window never
        leaves its sequence; shorter sequences are taken whole.

    References
    ----------
    Thesis 6.6, "random-contiguous-blocks".
    """

    n_clusters: int
    length: int = 20

    def __init__(self, n_clusters: int | None = None, length: int = 20, *, n_states: int | None = None) -> None:
        name, value = of_two_names("n_clusters", n_clusters, "n_states", n_states)
        hold(self, "n_clusters", whole_number(name, value, 1))
        hold(self, "length", whole_number("length", length, 1))

    @property
    def n_states(self) -> int:
        """States to start with."""
        return self.n_clusters

    def start(self, context: InitContext) -> Summary:
        """Return the statistics of the windows, without transitions between states.

        Raises
        ------
        DataError
            More clusters than rows, rows without sequences, or rows that the likelihood cannot have produced.
        SettingError
            A model of rows that stand by themselves, on data without sequences.
        """
        require_enough_atoms(self.n_clusters, context, "ContiguousBlocks")
        executor, source, atoms = context.executor, context.source, context.survey.batch_atoms
        model = executor.share("init-model", context.model)
        done, tasks = 0, []
        for b, positions in locate(context.survey, choose_atoms(context, self.n_clusters)):
            numbers = np.arange(done, done + len(positions))
            done += len(positions)
            task = (batch_reader(source, b), model, atoms[b], positions, numbers, self.n_clusters, self.length)
            tasks.append(executor.submit(f"init-blocks-batch{b}", _summarize_blocks, *task))
        return executor.result(executor.submit("init-blocks", _add_up, *tasks))


def _add_up(*parts: Summary) -> Summary:
    """Task: the windows of all batches."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _summarize_blocks(
    reader: Reader, model: Model, expected: int, middles: np.ndarray, numbers: np.ndarray, n_clusters: int, length: int
) -> Summary:
    """Task: statistics of the windows about some rows of one batch, as the clusters at the positions ``numbers``."""
    batch = read_checked(reader, model, expected)
    if batch.groups is None and (model.structure.has_shares or not model.structure.is_tied):
        raise SettingError(
            f"ContiguousBlocks starts from windows of sequences, but rows of {type(model.allocation).__name__} stand "
            f"by themselves here; start from BregmanKMeans({n_clusters})"
        )
    index, labels = blocks_about(batch, middles, length)
    rows = batch.take(index)
    resp = scale_rows(hard_resp(numbers[labels], n_clusters), rows.weights)
    return model.summarize(np.arange(n_clusters, dtype=np.int64), rows, resp)


def blocks_about(batch: Batch, middles: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of windows about the rows ``middles (K,)``, shifted to fit their sequence, and the window of each row."""
    offsets = sequence_offsets(batch)
    owner = np.searchsorted(offsets, middles, side="right") - 1
    first, last = offsets[owner], offsets[owner + 1]
    start = np.maximum(np.minimum(middles - length // 2, last - length), first)
    spans = [np.arange(a, b) for a, b in zip(start, np.minimum(start + length, last), strict=True)]
    return np.concatenate(spans), np.repeat(np.arange(len(middles)), [len(s) for s in spans])


# -- A start from which known labels can hold: every label owns a cluster. --------------------------------------------


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
    """Task: labelled atoms of a batch by cluster and label, ``(K, L)``: each in its most likely cluster."""
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
