"""Changes of the whole-data statistics by visits to some batches, and the reduction of many changes to one.

Differences are held like running totals, as unevaluated sums of two doubles, and added in an order that depends on
their number only, a binary tree: the bits are the same whether workers reduce them or the coordinator does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bnp_dask.core import Batch, RunningTotal, Summary, concatenate, difference
from bnp_dask.store import Receipt
from bnp_dask.structure import Visit

FAN = 4
"""Fan-in of the reduction tree, a power of two: a task adds so many changes at a time.  A task that visits small
batches visits as many, or twice as many, and so on."""

BEARABLE = 2**25
"""Numbers, of two doubles each, that the coordinator may receive for one group: half a gigabyte."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Change:
    """Change of the whole-data statistics by visits to some batches.

    Parameters
    ----------
    delta
        New statistics minus the statistics of the visits before.
    parts
        Statistics of each trial's receivers, by its name.
    atoms
        Atoms gathered for births, by target, in the order of the batches.
    lost
        Number of each batch that went bad, and why: it changes nothing here, and is still to be left out.
    written
        Number of each batch whose visit the worker has written, and the receipt of its file.
    """

    delta: RunningTotal
    parts: Mapping[str, RunningTotal]
    atoms: Mapping[int, tuple[Batch, ...]]
    lost: tuple[tuple[int, str], ...] = ()
    written: tuple[tuple[int, Receipt], ...] = ()

    def with_atoms_in_one(self) -> Change:
        """Change with one batch of atoms for each target: many small arrays take long to send."""
        return replace(self, atoms={target: (concatenate(list(parts)),) for target, parts in self.atoms.items()})

    def with_clusters(self, ids: np.ndarray) -> Change:
        """Change with empty rows for clusters of ``ids`` that were born since: these batches hold no mass of them."""
        missing = ids[~np.isin(ids, self.delta.high.ids)]
        if not len(missing):
            return self
        return replace(self, delta=self.delta.insert_empty(missing))


def change_of(
    found: Visit, old: Summary | RunningTotal | None, batch: int = 0, receipt: Receipt | None = None
) -> Change:
    """The change by one visit; ``old`` are the batch's statistics so far, None for the first time.

    ``receipt`` is the receipt of the visit's file, if one was written.
    """
    delta = difference(found.summary, None if found.lost else old)
    parts = {name: difference(part) for name, part in found.parts.items()}
    lost = ((batch, found.lost),) if found.lost else ()
    written = () if receipt is None else ((batch, receipt),)
    return Change(delta, parts, {target: (atoms,) for target, atoms in found.atoms.items()}, lost, written)


def joined(*changes: Change) -> Change:
    """The joint change by visits of several batches.

    Neighbours are added in pairs, then these sums in pairs, and so on.  So a task that visits 4 or 8 batches in a row
    may add their changes, and the bits are the same as with one task for each batch.
    """
    sums: list[tuple[int, Change]] = []  # with the number of changes in each: falling powers of two
    for change in changes:
        size = 1
        while sums and sums[-1][0] == size:
            change, size = _sum(*sums.pop(), change), 2 * size
        sums.append((size, change))
    _, last = sums.pop()
    while sums:
        last = _sum(*sums.pop(), last)
    return last


def _sum(size: int, one: Change, other: Change) -> Change:
    """Two changes as one; the first is used up if it is a sum itself, of ``size`` changes."""
    delta, parts = one.delta, dict(one.parts)
    if size == 1:  # not ours to change
        delta, parts = delta.copy(), {name: part.copy() for name, part in parts.items()}
    delta.join(other.delta)
    for name, part in other.parts.items():
        parts[name].join(part)
    atoms = dict(one.atoms)
    for target, more in other.atoms.items():
        atoms[target] = (*atoms.get(target, ()), *more)
    return Change(delta, parts, atoms, one.lost + other.lost, one.written + other.written)


def reduced(items: Iterable[T], join: Callable[[Sequence[T]], T]) -> T | None:
    """Many items as one, ``FAN`` at a time, level by level; None when there are none.

    Less than ``FAN`` items of each level are held at a time, however many there are.
    """
    levels: list[list[T]] = []
    for item in items:
        depth, joint = 0, item
        while True:
            if depth == len(levels):
                levels.append([])
            levels[depth].append(joint)
            if len(levels[depth]) < FAN:
                break
            joint, levels[depth] = join(levels[depth]), []
            depth += 1
    rest: list[T] = []
    for waiting in levels:
        left = [*waiting, *rest]
        rest = [join(left)] if len(left) > 1 else left
    return rest[0] if rest else None


def reduced_for_us(items: Sequence[T], join_all: Callable[[list[Sequence[T]]], list[T]], most: int) -> list[T]:
    """Many items reduced to few, by tasks: the items left by one level if they are at most ``most``, else one item.

    ``join_all`` starts the tasks of a level at once, one for each group of items.
    """
    level = _level_of(items, join_all)
    while len(level) > max(most, 1):
        most, level = 1, _level_of(level, join_all)
    return level


def _level_of(items: Sequence[T], join_all: Callable[[list[Sequence[T]]], list[T]]) -> list[T]:
    groups = [items[i : i + FAN] for i in range(0, len(items), FAN)]
    made = iter(join_all([some for some in groups if len(some) > 1]))
    return [next(made) if len(some) > 1 else some[0] for some in groups]


def sums_left(n_tasks: int, n_workers: int, numbers: int) -> int:
    """Number of sums, of ``numbers`` numbers each, that the coordinator had better add itself.

    On workers each level of sums waits for a free worker, behind the local steps of the other batches in flight.  That
    costs nothing if each worker has at least as many local steps as there are levels.
    """
    depth = math.ceil(math.log(max(n_tasks, 2), FAN))
    if n_tasks >= depth * n_workers:
        return FAN
    return max(FAN, BEARABLE // max(1, numbers))
