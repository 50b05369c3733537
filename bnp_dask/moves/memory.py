"""Lessons of earlier laps about proposals: failures, changes that still improve, clusters that may return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bnp_dask.core import Summary
from bnp_dask.model import Model
from bnp_dask.moves.pairs import alike_in_turn
from bnp_dask.moves.policy import DECISION, LAP
from bnp_dask.structure import Visit, clusters_only

WHOLE = -1
"""Stands in for a cluster id: for gathered whole documents, and for the candidate found in them."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Change not accepted yet: clusters that absorb a delete's target, statistics of the receivers, gain, rise of the
    gain since the last try, times tried, further targets that go with the first, and the name of its failures."""

    receivers: tuple[int, ...]
    part: Summary
    gain: float
    step: float
    tried: int
    together: tuple[int, ...] = ()
    remembered_as: str = "delete"


@dataclass(frozen=True, eq=False)
class Rejected:
    """Rejected birth: statistics that the newborn clusters would have had, and the gain in nats."""

    part: Summary
    gain: float


@dataclass(frozen=True, eq=False)
class Basis:
    """Newborn clusters found in a cluster by one batch, or by several alike, and the statistics ``held`` there."""

    newborn: Summary
    held: Summary


Pending = dict[int, tuple[Basis, ...]]
"""Newborn clusters found at batches in one lap, to be tried on all data in the next, by the cluster that they would
split; empty for a cluster that was split meanwhile."""


@dataclass
class Memory:
    """Lessons of earlier laps about proposals; they survive a checkpoint.

    ``failures`` maps (kind, targets) to the counts N of the targets when they failed and, last, how often in a row they
    failed with about these counts.  ``sweeps`` holds the statistics of rejected deletes that are still improving, and
    how often each was tried; the key :data:`WHOLE` is for a candidate that takes from all clusters.  ``next_id`` is the
    next cluster id that was never used.  ``grows`` says that at least half of the last small runs of births split
    their target into several clusters.  ``dormant`` holds the statistics of clusters that faded and may return, by
    id, in the order in which they left.  ``young`` maps ids of clusters born at new batches to the share of their
    original weight that these batches still have: such a cluster has not received its atoms yet.  ``rejected`` holds
    births that the whole data rejected, by their donor clusters; None if they are not kept.
    """

    next_id: int
    failures: dict[tuple[str, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)
    sweeps: dict[int, Sweep] = field(default_factory=dict)
    grows: bool = False
    dormant: dict[int, Summary] = field(default_factory=dict)
    young: dict[int, float] = field(default_factory=dict)
    rejected: dict[tuple[int, ...], Rejected] | None = None

    def new_ids(self, count: int) -> tuple[int, ...]:
        """New ids that no cluster ever had."""
        first = self.next_id
        self.next_id += count
        return tuple(range(first, first + count))

    def failed(self, kind: str, targets: tuple[int, ...], counts: Iterable[float], change: float) -> int:
        """Number of rejections while the targets had about these counts (within a share ``change``)."""
        before = self.failures.get((kind, targets))
        if before is None:
            return 0
        same = all(abs(now - then) <= change * max(then, 1.0) for now, then in zip(counts, before[:-1], strict=True))
        return int(before[-1]) if same else 0

    def remember_failure(self, kind: str, targets: tuple[int, ...], counts: Iterable[float], times: int = 1) -> None:
        """Record a rejection; a clear one counts ``times``."""
        now = tuple(float(c) for c in counts)
        self.failures[kind, targets] = (*now, float(times) + self.failed(kind, targets, now, LAP.same_count))

    def note_rejected(self, donors: tuple[int, ...], part: Summary, gain: float) -> None:
        """Keep a birth rejected with a gain of ``gain`` nats, if births are kept; the worst beyond the limit go.

        ``part`` are the statistics with which it would have replaced its ``donors``.
        """
        if self.rejected is None:
            return
        self.rejected[donors] = Rejected(part.without_pairs(), gain)
        best = sorted(self.rejected.items(), key=lambda item: -item[1].gain)
        self.rejected = dict(best[: DECISION.rejected])

    def forget_dead(self, alive: np.ndarray) -> None:
        """Drop the entries of clusters that are gone."""
        living = {WHOLE, *(int(i) for i in alive)}
        self.failures = {key: counts for key, counts in self.failures.items() if living.issuperset(key[1])}
        self.sweeps = {t: s for t, s in self.sweeps.items() if living.issuperset((t, *s.receivers, *s.together))}
        self.young = {i: weight for i, weight in self.young.items() if i in living}
        if self.rejected is not None:
            self.rejected = {donors: one for donors, one in self.rejected.items() if living.issuperset(donors)}


def with_rejected(model: Model, value: Summary, memory: Memory) -> Summary | None:
    """Statistics of all clusters as if the rejected births had been accepted; of births that conflict, the best.

    None if there are none.
    """
    gone: set[int] = set()
    parts: list[Summary] = []
    for donors, found in sorted((memory.rejected or {}).items(), key=lambda item: -item[1].gain):
        if gone.isdisjoint(donors) and np.isin(donors, value.ids).all():
            gone.update(donors)
            parts.append(found.part)
    if not parts:
        return None
    return as_start(model, [value.take([int(i) for i in value.ids if int(i) not in gone]), *parts])


def as_start(model: Model, parts: Sequence[Summary]) -> Summary:
    """Statistics of clusters from possibly different totals, concatenated, for a run to start from.

    They serve no other purpose: the shares of single batches and groups in the clusters are unknown.
    """
    out = model.empty_summary(np.concatenate([part.ids for part in parts]))
    for name in ("N", *model.of_units, *model.observation.fields):
        if out.fields[name].n_cluster_axes:
            out.values[name][...] = np.concatenate([part[name] for part in parts])
    return out


# -- births that wait for a trial on all data -----------------------------------------------------------------------
def note(model: Model, pending: Pending, found: Visit) -> None:
    """Keep the newborn clusters that a batch found in a cluster, combined with similar finds of other batches.

    Does nothing if the batch found nothing, or if the cluster was split since.
    """
    target = found.split
    if target is None or found.newborn is None or pending.get(target) == ():
        return
    held = clusters_only(found.summary.without_pairs().take([target]))
    own = Basis(replace(found.newborn.without_pairs(), links=None), held)
    pending[target] = _joined(model, pending.get(target, ()), own)


def close(pending: Pending, target: int) -> None:
    """Discard finds of batches in a cluster that was split, including later finds of this lap."""
    pending[target] = ()


def _joined(model: Model, bases: tuple[Basis, ...], own: Basis) -> tuple[Basis, ...]:
    """Bases with the basis of one more batch: added to the first basis with similar clusters, else appended."""
    structure = model.structure
    untied, mine = structure.untied(model), structure.untied_summary(model, own.newborn)
    for i, basis in enumerate(bases):
        order = alike_in_turn(untied, structure.untied_summary(model, basis.newborn), mine)
        if order is not None:
            newborn = replace(own.newborn.take(own.newborn.ids[order]), ids=basis.newborn.ids)
            return (*bases[:i], Basis(basis.newborn + newborn, basis.held + own.held), *bases[i + 1 :])
    return (*bases, own)
