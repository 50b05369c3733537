"""Tasks of workers on one batch, or on some small ones: read, assign, summarize, and keep what they found.

Where a worker reaches the run directory, it reads there what the last visit of its batch left, writes what this one
found, and sends the difference.  Where it does not, because the directory is not mounted there, may not be written, or
is full, what it found comes back whole and the coordinator does the rest, to the same bits.  That is decided in the
task, batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.group_states import GroupStates
from bnp_dask.data.base import Reader, naming_batch
from bnp_dask.data.skipping import read_or_why, require_checksum
from bnp_dask.errors import StoreError
from bnp_dask.execute.prefetch import Load, in_turn, load_of
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import Gather, Split
from bnp_dask.moves.births.move import gather_atoms
from bnp_dask.moves.births.splitting import visit_and_split
from bnp_dask.schedules.engine.bad_batches import fault_of
from bnp_dask.schedules.engine.batch_memo import Left, MemoSlot
from bnp_dask.schedules.engine.reduction import Change, change_of, joined
from bnp_dask.structure.assignments import room_for
from bnp_dask.structure.base import Trial, Visit


@dataclass(frozen=True, eq=False)
class VisitRequest:
    """Work of a visit of one batch beside the local step; see :class:`~bnp_dask.moves.base.Plan`.

    ``empty`` is read in place of a batch that has gone bad; None: that is an error.  ``checksum`` is the CRC-32 that
    the batch must have, where it was not read since it was surveyed; None: nobody looks.  ``weight`` is that of the
    batch: what was found is scaled by it.  ``assigns`` says whether assignments may be kept in place of statistics.
    """

    name: str
    pairs: np.ndarray
    split: Split | None
    gather: Gather
    seed: int
    empty: Reader | None = None
    checksum: int | None = None
    weight: float = 1.0
    assigns: bool = False


def visit(
    posterior: Posterior,
    reader: Reader,
    trials: tuple[Trial, ...],
    request: VisitRequest,
    states: GroupStates | None,
    left: Left | None = None,
) -> Visit:
    """The task: read one batch, assign its atoms, summarize them, and carry out the lap's trials.

    ``left`` is what the last visit left, where it takes the batch to tell the statistics of that.
    """
    batch = reader() if request.empty is None else read_or_why(reader)
    if request.empty is not None and isinstance(batch, str):
        return lose_batch(posterior, request.empty, trials, request, batch)
    assert isinstance(batch, Batch)
    if request.checksum is not None:
        with naming_batch(request.name):
            require_checksum(batch, request.checksum)
    try:
        return _with_before(visit_batch(posterior, batch, trials, request, states), posterior.model, left, batch)
    except Exception:
        why = None if request.empty is None else fault_of(posterior.model, batch)
        if request.empty is None or why is None:  # nothing is wrong with the batch
            raise
        return lose_batch(posterior, request.empty, trials, request, why)


def _with_before(found: Visit, model: Model, left: Left | None, batch: Batch) -> Visit:
    return found if left is None else replace(found, before=left.total(model, lambda: batch))


def lose_batch(
    posterior: Posterior, empty: Reader, trials: tuple[Trial, ...], request: VisitRequest, why: str
) -> Visit:
    """Visit of a batch that is left out."""
    return replace(visit_batch(posterior, empty(), trials, replace(request, split=None, assigns=False), None), lost=why)


def visit_batch(
    posterior: Posterior, batch: Batch, trials: tuple[Trial, ...], request: VisitRequest, states: GroupStates | None
) -> Visit:
    """Local step, trials and gathering on a batch in memory."""
    with naming_batch(request.name):
        if request.split is not None:
            found = visit_and_split(posterior, batch, request.pairs, trials, request.split, request.seed, states)
        else:
            room = room_for(posterior.model.observation, posterior.n_clusters, batch.n_atoms) if request.assigns else 0
            found = posterior.model.visit(
                posterior, batch, request.pairs, trials, request.gather.clusters, states, room
            )
            found = gather_atoms(posterior.model, found, batch, request.gather, request.seed)
    sums = {"": found.summary, **{f"trial {name}: ": part for name, part in found.parts.items()}}
    sums |= {} if found.newborn is None else {"newborn clusters: ": found.newborn}
    for name, summary in sums.items():
        require_finite_arrays(summary.values, f"{request.name}: {name}statistic", summary.ids)
        require_finite_arrays(summary.pair_values, f"{request.name}: {name}statistic of pairs")
    return found if request.weight == 1.0 else found.scaled(request.weight)


# -- where workers may reach the run directory ------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class BatchTask:
    """One batch of those that a task visits.

    Parameters
    ----------
    reader, request
        How to read it, and what to do there.
    slot
        Where its statistics are kept.
    states
        Where its groups stood, for workers that do not reach that place.
    has_states
        Whether ``states`` say so: they are None as well where groups have no states yet.
    left
        What its last visit left, for workers that do not reach that place, where it takes the batch to tell the
        statistics of that.
    """

    reader: Reader
    request: VisitRequest
    slot: MemoSlot
    states: GroupStates | None = None
    has_states: bool = False
    left: Left | None = None

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, where somebody else may call it before."""
        return load_of(self.reader)

    def can_do_without(self, model: Model) -> bool:
        """Whether a worker that does not reach the run directory can visit the batch all the same."""
        return self.has_states or not model.keeps_states or self.slot.old < 0


@dataclass(frozen=True, eq=False)
class Unkept:
    """A batch whose worker did not reach the run directory.

    Parameters
    ----------
    batch
        Its number.
    found
        What the coordinator is to keep; None where the batch was not visited, for want of its groups' states.
    why
        What the worker met in place of the directory.
    """

    batch: int
    found: Visit | None
    why: str


@dataclass(frozen=True, eq=False)
class Unsummed:
    """Changes that wait to be added, in this order, because the coordinator has to tell some of them.

    ``parts`` are added as :func:`~bnp_dask.schedules.engine.reduction.joined` adds.
    """

    parts: tuple[Change | Unkept | Unsummed, ...]

    @property
    def unkept(self) -> list[Unkept]:
        """Results that the coordinator has to keep, in order."""
        out: list[Unkept] = []
        for part in self.parts:
            if isinstance(part, Unsummed):
                out += part.unkept
            elif isinstance(part, Unkept):
                out.append(part)
        return out


def visit_and_keep(posterior: Posterior, trials: tuple[Trial, ...], *pieces: BatchTask) -> Change | Unsummed:
    """The task where workers may reach the run directory: only what changed goes back, of small batches of some."""
    with in_turn([piece.reader for piece in pieces]):
        found = added(*[_visit_and_keep(posterior, trials, piece) for piece in pieces])
    return found.with_atoms_in_one() if isinstance(found, Change) else found


def _visit_and_keep(posterior: Posterior, trials: tuple[Trial, ...], piece: BatchTask) -> Change | Unkept:
    model, slot, why = posterior.model, piece.slot, ""
    old, states, left = None, piece.states, piece.left
    try:
        kept = slot.read(model)
        left = kept if kept.needs_batch else None
        old, states = None if left else kept.total(model), kept.states(model)
    except StoreError as error:
        why = str(error)
        if not piece.can_do_without(model):
            return Unkept(slot.batch, None, why)
    found = visit(posterior, piece.reader, trials, piece.request, states, left)
    try:
        receipt = None if why else slot.write(model, found)
    except StoreError as error:
        why = str(error)
    if why:
        return Unkept(slot.batch, found, why)
    return change_of(found, old if left is None else found.before, slot.batch, receipt)


def added(*parts: Change | Unkept | Unsummed) -> Change | Unsummed:
    """The task that adds what others found, as far as that can be added by now."""
    changes = [part for part in parts if isinstance(part, Change)]
    return joined(*changes) if len(changes) == len(parts) else Unsummed(parts)


def unkept_of(parts: Sequence[Change | Unsummed]) -> list[Unkept]:
    """Results of some tasks that the coordinator has to keep."""
    return [unkept for part in parts if isinstance(part, Unsummed) for unkept in part.unkept]
