"""Memory of a batch between two visits, as named arrays; written and read on the coordinator or by workers.

A visit leaves statistics, or the assignments behind them if these take fewer bytes.  The observation model's statistics
are then recomputed from the assignments once the next visit has read the batch: same calls, same order, same bits.
Counts and entropies, K numbers each, are always kept.  Later changes of clusters are replayed on recomputed statistics
as on stored ones.  Reading statistics without a visit, for example to retire a batch, means reading the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from bnp_dask.core import (
    WORDS,
    Batch,
    Edit,
    Field,
    Forget,
    GroupStates,
    RunningTotal,
    Summary,
    edited,
    follow,
    replay,
    replay_states,
)
from bnp_dask.errors import StoreError, SummaryError
from bnp_dask.inputs import from_parts, require_compressed
from bnp_dask.kernels import SparseSum
from bnp_dask.model import Model
from bnp_dask.store import NO_RECEIPT, Receipt
from bnp_dask.structure import Assignments, Visit, restored, sums_of

OWN = "own"
"""Name of a batch's own states in the names of arrays, in place of the empty name."""

ASSIGNED, SIZES, SUMS = "assigned/", "sizes/", "sums/"
"""Prefixes of the names of arrays from which statistics of the observation model are recomputed."""

MARK = ".csr."
"""Mark in the names of the arrays that represent a sparse array."""

PARTS = ("data", "indices", "indptr")

Read = Callable[[], Batch]
"""Returns the batch; raises if it is unavailable."""


class Shelf(Protocol):
    """Files of summaries that workers may reach too; sent with tasks.  StoreError if they cannot be reached."""

    def put(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None
    ) -> Receipt: ...

    def get(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT, late: bool = False
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]: ...


class Keeps(Enum):
    """Results of a visit that are kept for the next visit of the batch."""

    STATISTICS = auto()
    """Statistics, or the assignments behind them, and the states of groups.  The change by the next visit is the
    difference of the two visits' statistics."""

    STATES = auto()
    """States of groups only.  The change by a visit is all of its statistics."""

    NOTHING = auto()
    """Nothing: the batch is never visited again."""


@dataclass(frozen=True, eq=False)
class MemoSlot:
    """Place of the last visit's results of a batch, and of the results of the visit under way.

    Parameters
    ----------
    shelf
        The files.
    batch, old, receipt, new
        Number of the batch, number of its last visit (-1: none), receipt of that visit's file, and number of this
        visit.  No two attempts share a number.
    edits
        Changes of clusters since the last visit.
    keeps
        Results of this visit that are kept.
    """

    shelf: Shelf
    batch: int
    old: int
    receipt: Receipt
    new: int
    edits: tuple[Edit, ...]
    keeps: Keeps = Keeps.STATISTICS

    def read(self, model: Model) -> Left:
        """Results of the last visit."""
        is_full = self.keeps is not Keeps.STATES
        if self.old < 0 or not (is_full or model.keeps_states):
            return NOTHING_LEFT
        arrays, _ = self.shelf.get(self.batch, self.old, self.receipt, late=True)
        return Left(arrays, self.edits, is_full, name_of(self.batch, self.old))

    def write(self, model: Model, found: Visit) -> Receipt | None:
        """Store the results of this visit; a batch without groups has no states, so its file may hold no arrays.

        Returns None if nothing is to be kept.
        """
        arrays = arrays_to_keep(model, found, self.keeps)
        return None if arrays is None else self.shelf.put(self.batch, self.new, arrays)


@dataclass(frozen=True, eq=False)
class Left:
    """Arrays that the last visit of a batch left; sent with tasks.

    Parameters
    ----------
    arrays
        As :func:`visit_to_arrays` returned them; empty if there was no visit.
    edits
        Changes of clusters since then.
    is_full
        Whether statistics are wanted; False: states of groups only.
    name
        The summary in messages.
    """

    arrays: Mapping[str, np.ndarray]
    edits: tuple[Edit, ...] = ()
    is_full: bool = True
    name: str = "a summary"

    @property
    def needs_batch(self) -> bool:
        """Whether its statistics must be recomputed from the batch."""
        return self.is_full and is_assigned(self.arrays)

    def total(self, model: Model, read: Read | None = None) -> Summary | RunningTotal | None:
        """Statistics to subtract, brought up to date; None if there are none."""
        with of_this_run(self.name):
            return total_from(model, self.arrays, self.edits, read) if self.is_full and self.arrays else None

    def states(self, model: Model) -> GroupStates | None:
        """States of groups, brought up to date."""
        with of_this_run(self.name):
            return states_from(self.arrays, self.edits) if model.keeps_states else None


NOTHING_LEFT = Left({})


def name_of(batch: int, visit: int) -> str:
    """A summary in messages."""
    return f"the summary of batch {batch} at visit {visit}"


@contextmanager
def of_this_run(name: str) -> Iterator[None]:
    """Context that brings a summary up to date.

    Raises
    ------
    SummaryError
        It lacks what the changes of clusters since need: another program wrote it, or them.  The error names it.
    """
    try:
        yield
    except SummaryError as error:
        raise SummaryError(
            f"{name} does not fit the checkpoint's changes of clusters since ({error}): another program wrote one of "
            "them. Put the run directory back from a copy; a run that was updated goes back with rollback()"
        ) from error


def is_assigned(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a visit left assignments in place of statistics."""
    return f"{ASSIGNED}value" in arrays


def arrays_to_keep(model: Model, found: Visit, keeps: Keeps) -> dict[str, np.ndarray] | None:
    """Arrays of a visit that are kept for the next one; None if nothing is to be kept."""
    if keeps is Keeps.STATISTICS:
        return visit_to_arrays(model, found)
    return states_to_arrays(found) if keeps is Keeps.STATES and model.keeps_states else None


def visit_to_arrays(model: Model, found: Visit) -> dict[str, np.ndarray]:
    """All arrays that a later visit needs of this one."""
    arrays = dict(found.summary.to_arrays())
    if found.assignments is not None:
        for name in model.observation.fields:
            arrays[f"{SIZES}{name}"] = np.array(arrays.pop(f"value.{name}").shape, np.int64)
        arrays |= {f"{SUMS}{name}": sums for name, sums in sums_of(model.observation, found.summary).items()}
        arrays |= {f"{ASSIGNED}{name}": array for name, array in found.assignments.to_arrays().items()}
    for name, part in found.parts.items():
        arrays.update({f"part/{name}/{key}": value for key, value in part.to_arrays().items()})
    if model.structure.keeps_few:
        arrays = pack_sparse(arrays)
    return {**arrays, **states_to_arrays(found)}


def summary_from(
    model: Model, arrays: Mapping[str, np.ndarray], edits: Iterable[Edit], read: Read | None = None
) -> Summary:
    """The statistics of a visit, brought up to date with changes of clusters since.

    ``read`` returns the batch, if the statistics must be recomputed from it; StoreError if they must and it is None.
    """
    summary, parts = _stored(model, arrays, read)
    return replay(summary, edits, parts)


def exact_from(
    model: Model, arrays: Mapping[str, np.ndarray], edits: Sequence[Edit], read: Read | None = None
) -> Summary | RunningTotal:
    """As :func:`summary_from`, with all digits, so that nothing is left of them in a total that they leave."""
    summary, parts = _stored(model, arrays, read)
    return edited(summary, edits, parts)


def _stored(model: Model, arrays: Mapping[str, np.ndarray], read: Read | None) -> tuple[Summary, Mapping[str, Summary]]:
    """The statistics that a visit left, and the statistics of its trials."""
    arrays = unpack_sparse(arrays if not is_assigned(arrays) else _restored(model, arrays, read))
    return Summary.from_arrays(model.fields, arrays), _parts(model, arrays)


def _restored(model: Model, arrays: Mapping[str, np.ndarray], read: Read | None) -> dict[str, np.ndarray]:
    """Arrays of a visit that left assignments, as if it had left statistics."""
    if read is None:
        raise StoreError("assignments are kept of this batch: it takes its data to tell its statistics")
    held, sizes, sums = (_after(arrays, prefix) for prefix in (ASSIGNED, SIZES, SUMS))
    values = restored(model.observation, Assignments.from_arrays(held), sizes, sums, read())
    return {**arrays, **{f"value.{name}": value for name, value in values.items()}}


def _after(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def counts_from(model: Model, arrays: Mapping[str, np.ndarray], edits: Iterable[Edit]) -> Summary:
    """Statistics of a visit that are kept in any case: all but the observation model's."""
    fields = {name: declared for name, declared in model.fields.items() if name not in model.observation.fields}
    parts = {name: Summary.from_arrays(fields, own) for name, own in _by_name(unpack_sparse(arrays), "part/").items()}
    return replay(Summary.from_arrays(fields, arrays), edits, parts)


def parts_from(model: Model, arrays: Mapping[str, np.ndarray], edits: Iterable[Edit]) -> Mapping[str, Summary]:
    """Statistics of the receivers of trials at a visit, brought up to date with changes of clusters since."""
    parts: Mapping[str, Summary] = _parts(model, unpack_sparse(arrays))
    for edit in edits:
        parts = follow(parts, edit)
    return parts


def _parts(model: Model, arrays: Mapping[str, np.ndarray]) -> dict[str, Summary]:
    return {name: Summary.from_arrays(model.fields, own) for name, own in _by_name(arrays, "part/").items()}


def total_from(
    model: Model, arrays: Mapping[str, np.ndarray], edits: Sequence[Edit], read: Read | None = None
) -> Summary | RunningTotal:
    """Statistics of the last visit, to subtract, with all digits; packed words stay packed if no cluster changed since.

    ``read`` is as in :func:`summary_from`.
    """
    held = packed_words(arrays, model.fields)
    if not held or any(not isinstance(edit, Forget) for edit in edits):
        return exact_from(model, arrays, edits, read)
    fields = {name: declared for name, declared in model.fields.items() if name not in held}
    summary = Summary.from_arrays(fields, unpack_sparse({k: v for k, v in arrays.items() if not _is_of(k, held)}))
    return RunningTotal(replay(summary, edits), None, held)


def _is_of(key: str, names: Iterable[str]) -> bool:
    return any(key.startswith(f"value.{name}{MARK}") for name in names)


def states_to_arrays(found: Visit) -> dict[str, np.ndarray]:
    """The states of a visit as named arrays."""
    return {
        f"state/{name or OWN}/{key}": value
        for name, states in found.states.items()
        for key, value in states.to_arrays().items()
    }


def states_from(arrays: Mapping[str, np.ndarray], edits: Iterable[Edit]) -> GroupStates | None:
    """States of groups at a visit, brought up to date; None if nothing was kept."""
    held = {name: GroupStates.from_arrays(own) for name, own in _by_name(arrays, "state/").items()}
    return replay_states(held[OWN], edits, held) if OWN in held else None


def _by_name(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, dict[str, np.ndarray]]:
    """Arrays called ``<prefix><name>/<key>`` by name and key."""
    out: dict[str, dict[str, np.ndarray]] = {}
    for key, value in arrays.items():
        if key.startswith(prefix):
            name, rest = key.removeprefix(prefix).split("/")
            out.setdefault(name, {})[rest] = value
    return out


# -- mostly zeros: counts of topics and words of a batch are few beside K times V --------------------------------
def pack_sparse(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays to keep; a matrix becomes three arrays if that takes fewer bytes.  Nothing is rounded."""
    out: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim != 2 or array.dtype != np.float64 or 12 * np.count_nonzero(array) >= 0.9 * array.nbytes:
            out[name] = array
            continue
        held = sparse.csr_array(array)
        out[f"{name}{MARK}data"] = held.data
        out[f"{name}{MARK}indices"] = held.indices.astype(np.int32)
        out[f"{name}{MARK}indptr"] = held.indptr.astype(np.int64)
        out[f"{name}{MARK}width"] = np.array(array.shape[1])
    return out


def unpack_sparse(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inverse of :func:`pack_sparse`."""
    out: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        name, mark, part = key.partition(MARK)
        if not mark:
            out[key] = array
        elif part == "width":
            data, indices, indptr = (arrays[f"{name}{MARK}{p}"] for p in PARTS)
            out[name] = from_parts(data, indices, indptr, (len(indptr) - 1, int(array)), key).toarray()
    return out


def packed_words(arrays: Mapping[str, np.ndarray], fields: Mapping[str, Field]) -> dict[str, SparseSum]:
    """Packed words of topics among a summary's arrays, in the form that differences hold, by field."""
    out = {}
    for name, declared in fields.items():
        key = f"value.{name}{MARK}"
        if declared.dims == WORDS and f"{key}width" in arrays:
            data, indices, indptr = (arrays[key + part] for part in PARTS)
            require_compressed(data, indices, indptr, (len(indptr) - 1, int(arrays[f"{key}width"])), key, "column")
            out[name] = SparseSum.of_csr(data, indices, indptr, int(arrays[f"{key}width"]))
    return out
