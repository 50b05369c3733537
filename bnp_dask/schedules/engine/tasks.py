"""Tasks of workers on one batch, or on some small ones: read, assign, summarize, and keep what they found.

Where a worker reaches the run directory, it reads there what the last visit of its batch left, writes what this one
found, and sends the difference.  Where it does not, because the directory is not mounted there, may not be written, or
is full, what it found comes back whole and the coordinator does the rest, to the same bits.  That is decided in the
task, batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.group_states import GroupStates
from bnp_dask.errors import StoreError
from bnp_dask.execute.prefetch import Load, in_turn
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import Gather, Split
from bnp_dask.moves.births.move import gather_atoms
from bnp_dask.moves.births.splitting import visit_and_split
from bnp_dask.schedules.engine.batch_memo import Left, MemoSlot
from bnp_dask.schedules.engine.reduction import Change, change_of, joined
from bnp_dask.schedules.engine.visit import Request, visit
from bnp_dask.structure.assignments import room_for
from bnp_dask.structure.base import Trial, Visit


@dataclass(frozen=True, eq=False)
class LocalStep:
    """Local step of one batch, and what else a lap wants of it; see :class:`~bnp_dask.moves.base.Plan`.

    Parameters
    ----------
    request
        The batch.
    pairs
        Pairs of clusters whose unions are tracked, ``(M, 2)``.
    split
        Birth that the batch tries by itself; None: none.
    gather
        Atoms that are gathered for births.
    weight
        Weight of the batch; results are scaled by it.
    assigns
        Whether assignments may be kept in place of statistics.
    slot
        Place in the run directory of the results of the last visit and of this one; None: results come back whole.
    states, left
        States of groups, and assignments, that the last visit left, for workers that do not reach the run directory.
    has_states
        Whether ``states`` are known: they are None as well where groups have no states yet.
    """

    request: Request
    pairs: np.ndarray
    split: Split | None = None
    gather: Gather = field(default_factory=Gather)
    weight: float = 1.0
    assigns: bool = False
    slot: MemoSlot | None = None
    states: GroupStates | None = None
    left: Left | None = None
    has_states: bool = True

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, where it may be called before the task runs."""
        return self.request.first_load

    def can_do_without(self, model: Model) -> bool:
        """Whether a worker that does not reach the run directory can visit the batch all the same."""
        return self.has_states or not model.keeps_states or self.slot is None or self.slot.old < 0


def local_steps(posterior: Posterior, trials: tuple[Trial, ...], *steps: LocalStep) -> Change | Unsummed:
    """The task: local steps of some batches, and what they change together as far as that can be told here."""
    with in_turn([step.request.reader for step in steps]):
        found = added(*[_kept(posterior, trials, step) for step in steps])
    return found.with_atoms_in_one() if isinstance(found, Change) else found


def _kept(posterior: Posterior, trials: tuple[Trial, ...], step: LocalStep) -> Change | Unkept:
    """Local step of a batch between reading what its last visit left and writing down what this one found."""
    model, slot, batch = posterior.model, step.slot, step.request.batch
    if slot is None:
        return Unkept(batch, local_step(posterior, trials, step, step.states, step.left))
    old, states, left, why = None, step.states, step.left, ""
    try:
        kept = slot.read(model)
        left = kept if kept.needs_batch else None
        old, states = None if left else kept.total(model), kept.states(model)
    except StoreError as error:
        why = str(error)
        if not step.can_do_without(model):
            return Unkept(batch, None, why)
    found = local_step(posterior, trials, step, states, left)
    try:
        receipt = None if why else slot.write(model, found)
    except StoreError as error:
        why = str(error)
    if why:
        return Unkept(batch, found, why)
    return change_of(found, old if left is None else found.before, batch, receipt)


def local_step(
    posterior: Posterior, trials: tuple[Trial, ...], step: LocalStep, states: GroupStates | None, left: Left | None
) -> Visit:
    """Read one batch, assign its atoms, summarize them, and carry out the lap's trials.

    ``states`` are those of its groups, ``left`` the assignments of its last visit, of which the statistics are told
    with its data.
    """

    def compute(batch: Batch) -> Visit:
        found = visit_batch(posterior, batch, trials, step, states)
        return found if left is None else replace(found, before=left.total(posterior.model, lambda: batch))

    return visit(posterior.model, step.request, compute, lambda why: lose_batch(posterior, trials, step, why))


def lose_batch(posterior: Posterior, trials: tuple[Trial, ...], step: LocalStep, why: str) -> Visit:
    """Visit of a batch that is left out: that of a batch without atoms."""
    assert step.request.empty is not None
    alone = replace(step, split=None, assigns=False)
    return replace(visit_batch(posterior, step.request.empty(), trials, alone, None), lost=why)


def visit_batch(
    posterior: Posterior, batch: Batch, trials: tuple[Trial, ...], step: LocalStep, states: GroupStates | None
) -> Visit:
    """Local step, trials and gathering on a batch in memory."""
    model, request = posterior.model, step.request
    if step.split is not None:
        found = visit_and_split(posterior, batch, step.pairs, trials, step.split, request.seed, states)
    else:
        room = room_for(model.observation, posterior.n_clusters, batch.n_atoms) if step.assigns else 0
        found = model.visit(posterior, batch, step.pairs, trials, step.gather.clusters, states, room)
        found = gather_atoms(model, found, batch, step.gather, request.seed)
    sums = {"": found.summary, **{f"trial {name}: ": part for name, part in found.parts.items()}}
    sums |= {} if found.newborn is None else {"newborn clusters: ": found.newborn}
    for name, summary in sums.items():
        require_finite_arrays(summary.values, f"{request.name}: {name}statistic", summary.ids)
        require_finite_arrays(summary.pair_values, f"{request.name}: {name}statistic of pairs")
    return found if step.weight == 1.0 else found.scaled(step.weight)


@dataclass(frozen=True, eq=False)
class Unkept:
    """A batch whose results the coordinator keeps.

    Parameters
    ----------
    batch
        Its number.
    found
        What the coordinator is to keep; None where the batch was not visited, for want of its groups' states.
    why
        Error that the worker met in place of the run directory; empty where it was not to keep anything.
    """

    batch: int
    found: Visit | None
    why: str = ""


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


def added(*parts: Change | Unkept | Unsummed) -> Change | Unsummed:
    """The task that adds what others found, as far as that can be added by now."""
    changes = [part for part in parts if isinstance(part, Change)]
    return joined(*changes) if len(changes) == len(parts) else Unsummed(parts)


def unkept_of(parts: Sequence[Change | Unsummed]) -> list[Unkept]:
    """Results of some tasks that the coordinator has to keep."""
    return [unkept for part in parts if isinstance(part, Unsummed) for unkept in part.unkept]
