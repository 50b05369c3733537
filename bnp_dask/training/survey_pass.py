"""The first pass over the data: the content of every batch, noted batch by batch in the run's manifest.

A run that is killed while its data are surveyed goes on from there.  A resumed run reads nothing for its survey, as
long as the description, the sizes and the times of the data are unchanged.  If they have changed, the data are surveyed
again and compared with the earlier survey.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from scipy.special import gammaln

from bnp_dask.core import NAMES_OF_COPIES as COPIES
from bnp_dask.core import NAMES_OF_JOINT as JOINT
from bnp_dask.core import (
    Batch,
    DistinctRows,
    JointMoments,
    QuantileTotal,
    Survey,
    grain_of,
    require_atoms,
    row_hashes,
    survey_batch,
    to_identity,
)
from bnp_dask.core.survey import extend
from bnp_dask.data import (
    CountedSource,
    EmptyReader,
    Reader,
    Source,
    View,
    WithoutBatches,
    batch_reader,
    bytes_told,
    fingerprint_of,
    identity_of,
    in_words,
    n_together,
    read_or_why,
    reason,
)
from bnp_dask.errors import DataError, StoreError, warn
from bnp_dask.execute import Executor, in_order, in_turn
from bnp_dask.inference import survey_checked
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial, RoundedObservation, unlabelled
from bnp_dask.store import ROW, Checkpoint, DamagedError, Manifest, MemoryStore, RunStore
from bnp_dask.training.callbacks import logger

# -- Copies of rows: found by the survey, told, and counted once together -----------------------------------------
# Twenty equal rows of continuous values are evidence of a cluster of width zero, to any model of such values: twelve
# clusters of 100 rows, each row 20 times, end as hundreds of clusters.  Two draws from a density are never equal, so
# equal rows are copies: of a table joined with another, or of rows drawn with replacement.  Only the first of them
# counts then, unless the caller says that they are observations: ``Model(..., copies="count")``, or weights.
#
# Documents are copies if they have the same words equally often, and so many words that this cannot be chance: of a
# corpus whose documents occur twice the words are evidence of more topics than the documents have.


LEAST_SHARE = 0.1
"""Share of the rows that must be copies beyond the first of each, and of distinct rows that must have any.

Of a bootstrap sample 37 % are copies; iris has 1 in 150, with rounded values.  Chosen on 12 Gaussians, each of whose
rows occurs 20 times.
"""

LEAST_DISTINCT = 30
"""Distinct rows that must be known: fewer may be the levels of a category."""

OWN_COLUMNS = 2
"""Columns in which a row must have a value of its own before a second row like it is taken for a copy."""

COPY_NATS = 50.0
"""Log of the number of sets of words, as large as that of a document, above which a second such document is a copy.

Fifty nats leave no chance of two equal draws among any number of documents.  22 of 100 equally frequent words, or
7 of 5,000, have as many; twenty yes-no columns, or sessions of 30 kinds of events, whose counts do repeat, never have.
"""

MOST_ROWS = 2**24
"""Rows up to which all are compared: their hashes take 128 MB."""

WINDOW = 16
"""Batches that are read at a time."""


KEPT, SIZES = "copies_kept", "copies_sizes"
"""Names in a manifest of the rows that count, packed to bits, and of the number of rows of each batch."""


@dataclass(frozen=True, eq=False)
class OnceReader:
    """A batch whose rows have ``weights`` of one or zero."""

    reader: Reader
    kept: np.ndarray

    def __call__(self) -> Batch:
        return replace(self.reader(), weights=self.kept.astype(np.float64))


@dataclass(frozen=True, eq=False)
class OnceSource(View):
    """A source of which the first of equal rows weighs one, and the others nothing.

    Parameters
    ----------
    whole
        The source.
    kept
        Rows of each batch that count, ``(n,)`` bool each; of length 0 for a batch that could not be read.
    """

    kept: tuple[np.ndarray, ...] = ()

    def reader(self, index: int) -> Reader:
        reader, kept = self.whole.reader(index), self.kept[index]
        return OnceReader(reader, kept) if len(kept) else reader

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.whole), "copies once"]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "copies": "once"}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The rows that count, for a manifest."""
        sizes = np.array([len(own) for own in self.kept], np.int64)
        return {KEPT: np.packbits(np.concatenate([np.zeros(0, np.bool_), *self.kept])), SIZES: sizes}


def kept_in(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """The rows of each batch that count, in the arrays of a manifest; None if all do."""
    if KEPT not in arrays:
        return None
    sizes = np.asarray(arrays[SIZES])
    packed = np.asarray(arrays[KEPT])
    if sizes.dtype.kind not in "iu" or sizes.ndim != 1 or (sizes < 0).any() or len(packed) != -(-sizes.sum() // 8):
        raise ValueError(f"{KEPT} does not tell of the rows of {SIZES}")
    whole = np.unpackbits(packed, count=int(sizes.sum())).astype(np.bool_)
    return tuple(np.split(whole, np.cumsum(sizes)[:-1]))


def once_of(source: Source) -> OnceSource | None:
    """The source in which copies count once behind a source, if there is one."""
    inner = source.whole if isinstance(source, CountedSource) else source
    return inner if isinstance(inner, OnceSource) else None


def with_kept(source: Source, kept: tuple[np.ndarray, ...]) -> Source:
    """The source in which only the rows ``kept`` count."""
    if isinstance(source, CountedSource):
        return CountedSource(OnceSource(source.whole, kept), source.counted)
    return OnceSource(source, kept)


def share_of_copies(survey: Survey) -> float:
    """Share of the rows that are copies beyond the first of each, by the sample of distinct rows.

    A row counts only if it cannot have been drawn twice: it has a value that no other distinct row of the sample has,
    in each of :data:`OWN_COLUMNS` columns without grain.  Values that many rows share, such as zeros, and rounded
    values may repeat by themselves; and in one column, rows with equal values are equal, so that copies cannot be told
    from values of which there are few, such as logarithms of counts.  A document counts only if it has so many words
    that it cannot have been drawn twice.
    """
    counts, rows = survey.copies.counts, survey.copies.rows
    extra = counts - 1
    if len(counts) < LEAST_DISTINCT or not extra.sum() >= LEAST_SHARE * counts.sum():
        return 0.0
    unlikely = rows[:, 0] >= least_words(survey) if survey.is_sparse else _own(survey, rows) >= OWN_COLUMNS
    repeats = unlikely & (extra > 0)
    # a single row with most of the copies stands for nothing observed, such as zeros everywhere
    return float(extra[repeats].sum() / counts.sum()) if repeats.mean() >= LEAST_SHARE else 0.0


def _own(survey: Survey, rows: np.ndarray) -> np.ndarray:
    """Number of columns without grain in which each row has a value that no other has, ``(M,)``."""
    n_own = np.zeros(len(rows), np.int64)
    for j in np.flatnonzero(grain_of(survey) == 0.0):
        _, place, times = np.unique(rows[:, j], return_inverse=True, return_counts=True, equal_nan=True)
        n_own += (times[place.ravel()] == 1) & ~np.isnan(rows[:, j])
    return n_own


def least_words(survey: Survey) -> float:
    """Distinct words from which on a second equal document is a copy, by :data:`COPY_NATS`; infinite if never.

    Sets are counted among as many equally frequent words as have the entropy of the corpus.
    """
    mean = survey.mean[survey.mean > 0.0]
    share = mean / mean.sum()
    n_equal = float(np.exp(-(share * np.log(share)).sum()))
    size = np.arange(int(n_equal / 2.0) + 1)  # beyond the half, larger sets are fewer
    nats = gammaln(n_equal + 1.0) - gammaln(size + 1.0) - gammaln(n_equal - size + 1.0)
    return float(np.searchsorted(nats, COPY_NATS)) if nats[-1] >= COPY_NATS else np.inf


def counts_copies_once(model: Model, is_sparse: bool) -> bool:
    """Whether copies count once: rows of continuous values that do not depend on one another, and documents."""
    kind, is_tied = unlabelled(model.observation), model.structure.is_tied
    if model.copies == "count" or model.lags:
        return False
    if is_sparse:
        return isinstance(kind, Multinomial) and (not is_tied or model.structure.takes_words(model))
    return isinstance(kind, RoundedObservation) and not is_tied


def once_each(
    model: Model,
    source: Source,
    survey: Survey | None,
    executor: Executor,
    known: Callable[[Source], Mapping[str, np.ndarray]] = lambda source: {},
) -> Source:
    """The source in which copies count once; the source itself if it has none, or if they are to count.

    Parameters
    ----------
    model, source, survey
        The model, and data with their survey.
    executor
        Where the rows are compared, which reads all batches.
    known
        Returns the notes of an earlier call on the data: arrays of their manifest.
    """
    if survey is None or once_of(source) is not None or not counts_copies_once(model, survey.is_sparse):
        return source
    share = share_of_copies(survey)
    if share < LEAST_SHARE:
        return source
    rows, counted = ("documents", "documents") if survey.is_sparse else ("rows", "distinct rows")
    told = f"about {share:.0%} of the {rows} of {source.name} are copies of other {rows}"
    if survey.n_atoms > MOST_ROWS:
        logger.warning(
            "%s, and each counts as an observation of its own, for there are too many rows to compare all of them. "
            'To let each count once: bnp.ingest(..., deduplicate="once")',
            told,
        )
        return source
    kept = kept_in(known(with_kept(source, ())))
    if kept is None:
        least = least_words(survey) if survey.is_sparse else 0.0
        tasks = ((f"copies-batch{b}", _hashes, (batch_reader(source, b), least)) for b in range(source.n_batches))
        found = list(in_order(executor, tasks, WINDOW, slight=True))
        first = firsts([hashes for hashes, _, _ in found], [labels for _, labels, _ in found])
        kept = tuple(own | short for own, (_, _, short) in zip(first, found, strict=True))
    logger.warning(
        "%s, equal to the last %s: %s %s count once each. If copies are observations: "
        'Model(..., copies="count"), or give weights',
        told,
        "word" if survey.is_sparse else "digit",
        f"{sum(int(own.sum()) for own in kept):,}",
        counted,
    )
    return with_kept(source, kept)


def firsts(hashes: Sequence[np.ndarray], labels: Sequence[np.ndarray] | None = None) -> tuple[np.ndarray, ...]:
    """Whether each row is the first with its hash, by batch, ``(n,)`` bool each.

    With known ``labels``, -1 for none: the first of each label, or the first at all if none of its copies has a label.
    """
    whole = np.concatenate(hashes)
    known = np.full(len(whole), -1) if labels is None else np.concatenate(labels)
    found = np.zeros(len(whole), np.bool_)
    has = np.flatnonzero(known >= 0)
    pairs = np.stack([whole[has], known[has].astype(np.uint64)], axis=1)
    found[has[np.unique(pairs, axis=0, return_index=True)[1]]] = True
    rest = np.flatnonzero(~np.isin(whole, whole[has]))
    found[rest[np.unique(whole[rest], return_index=True)[1]]] = True
    return tuple(np.split(found, np.cumsum([len(own) for own in hashes])[:-1]))


MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor that spreads numbers of groups over 64 bits (Knuth's multiplicative hashing)."""


def _hashes(reader: Reader, least: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Task: hashes of the rows of a batch, their labels, -1 for none, and which are documents of fewer words than
    ``least``, so that each counts; no rows if the batch cannot be read."""
    batch = read_or_why(reader)
    if isinstance(batch, str):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.bool_)
    hashes = row_hashes(batch.x)
    if batch.links is not None:  # equal rows of two groups are two observations: each says something of its group
        hashes = hashes ^ ((batch.links + 1).astype(np.uint64) * MIXER)
    labels = np.full(len(hashes), -1) if batch.labels is None else batch.labels
    short = np.zeros(len(hashes), np.bool_) if isinstance(batch.x, np.ndarray) else np.diff(batch.x.indptr) < least
    return hashes, labels, short


# -- The first pass over the data: the content of every batch, noted batch by batch in the run's manifest ---------


T = TypeVar("T")

SURVEY_WINDOW = 16

NOTE_SECONDS = 0.5
"""Interval between notes of surveyed batches: a killed run loses no more than this, and the tasks under way."""

PER_BATCH = {"batch_atoms": "atoms", "batch_bytes": "nbytes", "checksums": "checksum", "batch_weights": "weight"}
"""Values of a survey about every batch, and their names in a manifest."""

GROWTH = "growth"
"""Name in checkpoints for the state of a run that was updated with more data."""

PREFIX = "survey/"
"""Prefix of the names of a survey's arrays."""


# -- tasks ---------------------------------------------------------------------------------------------------------
def survey_task(model: Model, reader: Reader) -> Survey:
    """Part of a task: read a batch, let the likelihood check it, and survey it."""
    return survey_checked(model, reader())


@dataclass(frozen=True)
class BadBatch:
    """A batch that a pass could not use, and why."""

    why: str


def survey_or_fault(model: Model, reader: Reader) -> Survey | BadBatch:
    """Survey of a batch, or its fault, for a pass that goes on past bad batches; tries as often as an executor."""
    batch = read_or_why(reader)
    if isinstance(batch, str):
        return BadBatch(batch)
    try:
        return survey_checked(model, batch)
    except DataError as error:
        return BadBatch(reason(error))


def each_batch(
    survey: Callable[[Any, Reader], T], model: Any, source: Source, executor: Executor, first: int
) -> Iterator[T]:
    """Results of ``survey(model, reader)`` for every batch from the ``first`` on, in their order."""
    n = source.n_batches
    size = n_together(n, bytes_told(source), executor.n_workers)
    rounds = (range(b, min(b + size, n)) for b in range(first, n, size))
    tasks = (
        (f"survey-{in_words(some)}", _some_batches, (survey, model, *(batch_reader(source, b) for b in some)))
        for some in rounds
    )
    return chain.from_iterable(in_order(executor, tasks, SURVEY_WINDOW, slight=True))


def _some_batches(survey: Callable[[Any, Reader], T], model: Any, *readers: Reader) -> list[T]:
    """Task: some batches, one after another."""
    with in_turn(readers):
        return [survey(model, reader) for reader in readers]


# -- surveys ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Surveyed:
    """Data after their survey.

    Parameters
    ----------
    survey
        Their survey.
    source
        The data without batches that cannot be used.
    manifest
        Name and extent of the list of batches that the run is bound to; JSON-able.
    """

    survey: Survey
    source: Source
    manifest: dict[str, Any]


def skipped(source: Source) -> tuple[tuple[int, str], ...]:
    """Batches of a run's source that are left out, and why."""
    return source.bad if isinstance(source, WithoutBatches) else ()


def take_survey(model: Model, source: Source, executor: Executor, skips: bool = False) -> Surveyed:
    """One pass over the data: sizes, moments, checksums, and every check that the likelihood makes.

    With ``skips`` batches that cannot be used are left out, and logged; without it they are errors.
    """
    manifest = Manifest(None, {})
    _complete(manifest, model, source, executor, skips)
    once = once_each(model, source, summed(manifest), executor)
    if once is not source:
        return take_survey(model, once, executor, skips)
    return surveyed(manifest, source)


def survey_of_run(
    model: Model,
    source: Source,
    executor: Executor,
    store: RunStore | MemoryStore,
    checkpoint: Checkpoint | None,
    skips: bool = False,
) -> Surveyed:
    """The survey for a run: if the data are unchanged, only batches that no earlier call has surveyed are read.

    Parameters
    ----------
    model, source, executor, skips
        As in :func:`take_survey`.
    store
        The run directory, which keeps the list of batches.
    checkpoint
        Newest checkpoint of the run; None if it has not started.  A run that has not begun may start on other data.

    Raises
    ------
    DataError
        Data that cannot be read, or that the likelihood cannot have produced.
    StoreError
        The run was started on other data.
    """
    if isinstance(store, MemoryStore):
        return take_survey(model, source, executor, skips)
    if checkpoint is not None and GROWTH in checkpoint.state:
        version = checkpoint.state[GROWTH]["version"]
        raise StoreError(
            f"cannot resume {store.path}: it has been updated since (version {version}), and train() knows the data of "
            f"its first call only. Go on with update({str(store.path)!r}, DATA)"
        )
    manifest = _manifest_of_data(store, model, source)
    if checkpoint is not None and not checkpoint.begun:
        checkpoint = None
    if manifest.reasons and not skips:  # then a batch that is bad is an error, and is met again
        manifest = Manifest(None, {}) if checkpoint is not None else manifest.emptied()
    _complete(manifest, model, source, executor, skips)
    once = once_each(model, source, summed(manifest), executor, lambda it: _manifest_of_data(store, model, it).arrays)
    if once is not source:
        return survey_of_run(model, once, executor, store, checkpoint, skips)
    if checkpoint is None or checkpoint.state["manifest"] == manifest.to_json():
        return surveyed(manifest, source)
    first = _manifest_of_run(store, checkpoint, manifest)
    doubtful = _compare(store, first, manifest, source, checkpoint)
    return surveyed(first, source, doubtful)


def _manifest_of_data(store: RunStore, model: Model, source: Source) -> Manifest:
    """The list of batches of the present data, as far as it got; each model has its own, because it checks the data."""
    identity = {**identity_of(source), "n_batches": source.n_batches, "model": to_identity(model)}
    try:
        found = Manifest.open(store.manifests, identity)
        summed(found)
        return found
    except DamagedError as error:
        warn(f"{error}; the data are surveyed again")
        return Manifest(store.manifests, identity)


def _manifest_of_run(store: RunStore, checkpoint: Checkpoint, now: Manifest) -> Manifest:
    """The list of batches that a run was started on; ``now`` is the list of its present data."""
    noted = checkpoint.state["manifest"]
    try:
        first = Manifest.of_key(store.manifests, noted["key"])
        if first.to_json() == noted:
            summed(first)
            return first
        problem = f"{store.manifests / noted['key']} is not the list of batches that the run was started on"
    except DamagedError as error:
        problem = str(error)
    if now.to_json()["rows"] == noted["rows"]:
        return now
    raise StoreError(
        f"cannot resume {store.path}: {problem}, and the data changed since. Put the file back from a copy, or start a "
        "new run in another directory"
    )


def _compare(store: RunStore, first: Manifest, now: Manifest, source: Source, checkpoint: Checkpoint) -> dict[int, int]:
    """Batches that are out of reach now, with their former checksums; StoreError if the data have changed.

    Their survey stays as it was at the start of the run: the run has their statistics, and leaves them out at their
    next visit unless they are back by then.
    """
    lost = {int(batch) for batch, *_ in checkpoint.state["lost"]}
    bad, bad_now = set(first.reasons), set(now.reasons)
    if bad - bad_now:
        what = f"skipped: the run has {sorted(bad)}, this call {sorted(bad & bad_now)}"
        raise _changed(store, what)
    same = [first.rows[name] == now.rows[name] for name in ("checksum", "atoms", "nbytes")]
    for batch in np.flatnonzero(~np.logical_and.reduce(same)).tolist():
        if batch not in bad_now | lost:
            raise _changed(store, f"{source.name} batch {batch} has another content than when it was surveyed")
    for batch in sorted(bad_now - bad - lost):
        why = now.reasons[batch]
        logger.warning("out of reach, to be skipped at its next visit unless it is back: %s", why)
    return {batch: int(first.rows["checksum"][batch]) for batch in bad_now - bad}


def _changed(store: RunStore, what: str) -> StoreError:
    return StoreError(
        f"cannot resume {store.path}: the data changed ({what}). Resume with the data of its start, or start a "
        "new run in another directory"
    )


def _complete(manifest: Manifest, model: Model, source: Source, executor: Executor, skips: bool) -> None:
    """Survey the batches that a manifest lacks, and note them down as they come."""
    survey: Callable[[Model, Reader], Survey | BadBatch] = survey_or_fault if skips else survey_task
    news, once = _News(summed(manifest)), once_of(source)
    noted = time.monotonic()
    try:
        for part in each_batch(survey, model, source, executor, len(manifest)):
            news.add(len(manifest) + len(news.rows), part)
            if time.monotonic() - noted > NOTE_SECONDS:
                news.note(manifest)
                noted = time.monotonic()
    finally:
        news.note(manifest)
    if once is not None and kept_in(manifest.arrays) is None:  # for the next call, which need not compare all rows
        manifest.append(np.zeros(0, ROW), {**manifest.arrays, **once.to_arrays()}, {})


@dataclass
class _News:
    """Batches that were surveyed since the last note: a row of each, and the total survey of all batches so far.

    A survey of one batch is not kept: beside so many rows its moments would be large.
    """

    total: Survey | None
    rows: list[np.ndarray] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, batch: int, part: Survey | BadBatch) -> None:
        row = np.zeros(1, ROW)
        row["index"] = batch
        if isinstance(part, BadBatch):
            row["bad"] = 1
            self.reasons[batch] = part.why
        else:
            row["groups"] = part.n_groups
            for name, column in PER_BATCH.items():
                row[column] = getattr(part, name)[0]
            total = extend(self.total, [part])
            assert total is not None
            self.total = _bare(total)
        self.rows.append(row)

    def note(self, manifest: Manifest) -> None:
        """Write down the new rows."""
        if self.rows:
            total = {} if self.total is None else survey_to_arrays(self.total)
            if self.total is not None:
                self.total = survey_from_arrays(total)  # so that its quantiles are held once
            manifest.append(np.concatenate(self.rows), total, self.reasons)
            self.rows, self.reasons = [], {}


def summed(manifest: Manifest) -> Survey | None:
    """Survey of all good batches of a manifest, without values per batch; None if there are none yet."""
    if not manifest.arrays:
        return None
    try:
        _require_forms(manifest.arrays)
        kept_in(manifest.arrays)
        return survey_from_arrays(manifest.arrays)
    except Exception as error:  # arrays of any shapes are in question
        raise DamagedError(
            f"{manifest.name} is damaged (its arrays are no survey of batches: {type(error).__name__}: {error})"
        ) from error


def _bare(survey: Survey) -> Survey:
    """A survey without its values per batch."""
    nothing: dict[str, Any] = dict.fromkeys(PER_BATCH, ())
    return replace(survey, **nothing)


def surveyed(manifest: Manifest, source: Source, doubtful: Mapping[int, int] | None = None) -> Surveyed:
    """The survey of a complete manifest, and the data without unusable batches."""
    total, bad = summed(manifest), tuple(sorted(manifest.reasons.items()))
    if total is None and bad:
        raise DataError(f"{source.name}: none of its {source.n_batches} batches can be used; the first: {bad[0][1]}")
    is_grouped = total is not None and not total.is_sparse and total.n_groups > 0
    rows, doubtful = manifest.rows.copy(), dict(doubtful or {})
    for batch, why in bad:  # a batch without atoms takes its place
        logger.warning("skipped: %s", why)
        empty = EmptyReader(f"{source.name} batch {batch}", source.n_features, source.is_sparse, is_grouped)
        rows["checksum"][batch] = survey_batch(empty()).checksums[0]
    per_batch: dict[str, Any] = {name: tuple(rows[column].tolist()) for name, column in PER_BATCH.items()}
    survey = require_atoms(total and replace(total, **per_batch))
    if bad or doubtful:
        source = WithoutBatches(source, bad, is_grouped, tuple(sorted(doubtful.items())))
    return Surveyed(survey, source, manifest.to_json())


def gone_since(source: Source, survey: Survey, executor: Executor) -> dict[int, str]:
    """Batches with atoms that cannot be read any more, and why."""
    alive = [b for b, n in enumerate(survey.batch_atoms) if n]
    tasks = ((f"look-batch{b}", _look, (batch_reader(source, b),)) for b in alive)
    looks = zip(alive, in_order(executor, tasks, SURVEY_WINDOW, slight=True), strict=True)
    return {b: why for b, why in looks if why}


def _look(reader: Reader) -> str:
    """Task: reason why a batch cannot be read; empty if it can."""
    found = read_or_why(reader)
    return found if isinstance(found, str) else ""


# -- as arrays ------------------------------------------------------------------------------------------------------
QUANTILES = ("quantile_values", "quantile_weights", "quantile_sets")
"""Arrays that a survey's quantiles are kept in."""


def _kept_of_survey() -> list[str]:
    """Values of a survey kept under their own names: all but names and levels, which the settings have."""
    others = ("names", "levels", "points", "missing", "joint", "copies")
    return [f.name for f in fields(Survey) if f.name not in others]


_NUMBERS, _WHOLE = "fiu", "iu"

_FORMS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    **dict.fromkeys(("n_atoms", "nbytes", "n_groups"), (_WHOLE, ())),
    "total_weight": (_NUMBERS, ()),
    "is_sparse": ("b", ()),
    **dict.fromkeys(("mean", "variance", "minimum", "maximum", "missing"), (_NUMBERS, ("D",))),
    **dict(zip(QUANTILES, [(_NUMBERS, ("Q", "P")), (_NUMBERS, ("Q", "P")), (_WHOLE, ("S", 2))], strict=True)),
    **dict(zip(JOINT, [(_WHOLE, ("U",)), (_NUMBERS, (2,)), (_NUMBERS, ("U",)), (_NUMBERS, ("U", "U"))], strict=True)),
    **dict(zip(COPIES, [("u", ("H",)), (_WHOLE, ("H",)), (_NUMBERS, ("H", "R"))], strict=True)),
}
"""Kinds of types and sizes of a survey's arrays; equal letters are equal sizes."""


_NEVER_NEGATIVE = (
    "n_atoms", "nbytes", "n_groups", "total_weight", "missing", "quantile_weights", "copies_counts",
)  # fmt: skip


def _require_forms(arrays: Mapping[str, np.ndarray]) -> None:
    """ValueError unless the arrays of a survey have types and sizes that belong together."""
    sizes: dict[str | int, int] = {2: 2}
    for name, (kinds, dims) in _FORMS.items():
        if (array := arrays.get(PREFIX + name)) is None:
            continue  # its reader knows whether it may be missing
        known = tuple(sizes.setdefault(dim, n) for dim, n in zip(dims, array.shape, strict=False))
        if array.dtype.kind not in kinds or len(dims) != array.ndim or known != array.shape:
            raise ValueError(f"{name} is {array.dtype} {array.shape}; needs kind {kinds} and shape {dims}")
    sets, columns = arrays[PREFIX + QUANTILES[2]], arrays.get(PREFIX + JOINT[0], np.zeros(0, np.int64))
    n_features, rows = sizes.get("D", 0), sizes.get("R")
    if (sets < 0).any() or sets[:, 1].sum() != sizes["P"] or (sizes["Q"] != n_features and sizes["P"]):
        raise ValueError("quantiles are not those of their sets")
    if ((columns < 0) | (columns >= n_features)).any():
        raise ValueError("joint moments of columns that are not there")
    if rows not in (None, 1 if arrays[PREFIX + "is_sparse"] else n_features):
        raise ValueError("distinct rows of another width")
    for name in _NEVER_NEGATIVE:
        if not (arrays.get(PREFIX + name, np.zeros(0)) >= 0).all():
            raise ValueError(f"{name} is negative or nan")


def survey_to_arrays(survey: Survey) -> dict[str, np.ndarray]:
    """A survey as named arrays."""
    kept = {name: np.array(getattr(survey, name)) for name in _kept_of_survey()}
    kept |= zip(QUANTILES, survey.points.to_arrays(), strict=True)
    if survey.missing.size:
        kept["missing"] = survey.missing
    if survey.joint.count:
        kept |= survey.joint.to_arrays()
    if len(survey.copies.hashes):
        kept |= survey.copies.to_arrays()
    return {PREFIX + name: value for name, value in kept.items()}


def survey_from_arrays(arrays: Mapping[str, np.ndarray]) -> Survey:
    """Inverse of :func:`survey_to_arrays`, some of it as views."""
    values: dict[str, Any] = {}
    for name in _kept_of_survey():
        value = np.asarray(arrays[PREFIX + name])
        if name in PER_BATCH:
            values[name] = tuple(value.tolist())
        else:
            values[name] = value.item() if value.ndim == 0 else value
    if PREFIX + "missing" in arrays:
        values["missing"] = np.asarray(arrays[PREFIX + "missing"])
    if PREFIX + JOINT[0] in arrays:
        values["joint"] = JointMoments.from_arrays({name: arrays[PREFIX + name] for name in JOINT})
    if PREFIX + COPIES[0] in arrays:
        values["copies"] = DistinctRows.from_arrays({name: arrays[PREFIX + name] for name in COPIES})
    return Survey(**values, points=QuantileTotal.from_arrays(*(arrays[PREFIX + name] for name in QUANTILES)))
