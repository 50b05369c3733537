"""The first pass over the data: the content of every batch, noted batch by batch in the run's manifest.

A run that is killed while its data are surveyed goes on from there.  A resumed run reads nothing for its survey, as
long as the description, the sizes and the times of the data are unchanged.  If they have changed, the data are surveyed
again and compared with the earlier survey.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from bnp_dask.core import NAMES_OF_COPIES as COPIES
from bnp_dask.core import NAMES_OF_JOINT as JOINT
from bnp_dask.core import DistinctRows, JointMoments, QuantileTotal, Survey, require_atoms, survey_batch, to_identity
from bnp_dask.core.survey import extend
from bnp_dask.data import (
    EmptyReader,
    Reader,
    Source,
    WithoutBatches,
    batch_reader,
    bytes_told,
    identity_of,
    n_together,
    read_or_why,
)
from bnp_dask.data.base import in_words
from bnp_dask.data.view import reason
from bnp_dask.errors import DataError, StoreError, warn
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.execute.prefetch import in_turn
from bnp_dask.inference.bad_batches import survey_checked
from bnp_dask.model import Model
from bnp_dask.store import Checkpoint, DamagedError, Manifest, MemoryStore, RunStore
from bnp_dask.store.manifest import ROW
from bnp_dask.training.callbacks import logger
from bnp_dask.training.copies import kept_in, once_each, once_of

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
