"""Lineage: the clusters to which the atoms of earlier clusters went, so that the largest part of each keeps its id.

A run's statistics say exactly how much every cluster holds before and after each change.  Mass that leaves clusters in
one change is assumed to enter the clusters that gain by it, in proportion.  This is exact for a merge, and for a birth
that replaces one cluster.  For visits of several batches it is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core import NO_PARTS, Edit, Summary
from bnp_dask.inference.state import State

COUNTS = "N"

TINY = 1e-300
"""Smallest divisor, in place of zero."""


class Lineage:
    """Atoms of the clusters that a posterior had, followed through visits, births, merges and deletes.

    Parameters
    ----------
    summary
        Statistics of the clusters before, with ``N``: O clusters.
    n_batches
        Batches before; later ones hold no atom of these clusters.
    trials
        Statistics of trials under way, by name.

    Attributes
    ----------
    own, away
        Atoms of each earlier cluster that it still holds, and atoms that other earlier clusters hold now, ``(O,)``.
    born
        Atoms of each earlier cluster that a newer cluster holds now, ``(O,)``, by the newer cluster's id.
    """

    def __init__(self, summary: Summary, n_batches: int, trials: Mapping[str, Summary] = NO_PARTS) -> None:
        self._now = self._old = counts_of(summary)  # counts of all atoms, and of atoms of earlier batches
        self._trials = {name: counts_of(trial) for name, trial in trials.items()}  # of these too
        self._row = {int(i): row for row, i in enumerate(summary.ids)}
        self._n_batches = n_batches
        self.own = np.maximum(np.array(summary[COUNTS], np.float64), 0.0)
        self.away = np.zeros_like(self.own)
        self.born: dict[int, np.ndarray] = {}

    @staticmethod
    def of(state: State, n_batches: int) -> Lineage:
        """Lineage of the current clusters of a state; batches after the first ``n_batches`` hold nothing of them."""
        assert state.posterior.summary is not None
        trials = {name: trial.high for name, trial in state.trials.items()}
        return Lineage(state.posterior.summary, n_batches, trials)

    @contextmanager
    def visited(self, state: State, batches: Iterable[int]) -> Iterator[None]:
        """Context around the fold of some batches."""
        are_old = [batch < self._n_batches for batch in batches]
        before = {name: counts_of(trial.high) for name, trial in state.trials.items()}
        yield
        assert state.posterior.summary is not None
        for name, trial in state.trials.items():
            own = self._trials.get(name, before[name].zeros())
            # batches of both kinds go into one sum if the last old ones meet the first new ones
            self._trials[name] = own + (counts_of(trial.high) - before[name]) if any(are_old) else own
        self.folded(state.posterior.summary, any(are_old), not all(are_old))

    @contextmanager
    def settled(self, state: State) -> Iterator[None]:
        """Context around the decision of proposals."""
        parts = {name: counts_of(trial.high) for name, trial in state.trials.items()}
        unseen = len(state.edits) - state.seen[0]
        yield
        count = len(state.edits) - state.seen[0] - unseen  # edits seen by every batch may have been dropped
        self.edited(state.edits[len(state.edits) - count :], parts, self._trials)
        self._trials = {}

    def folded(self, summary: Summary, old: bool, new: bool) -> None:
        """Follow a visit of ``old`` batches, ``new`` ones or both, which left these statistics."""
        after, known = counts_of(summary), _at(self._old, summary.ids)
        before = _at(self._now, summary.ids)
        gain, loss = np.maximum(after[COUNTS] - before, 0.0), np.maximum(before - after[COUNTS], 0.0)
        if old and new:
            left = known * np.clip(loss / np.maximum(before, TINY), 0.0, 1.0)
            known = known - left + left.sum() * gain / max(gain.sum(), TINY)
        elif old:
            known = np.maximum(known + gain - loss, 0.0)
        self._now = after
        self._move(replace(after, values={COUNTS: known}))

    def edited(
        self, edits: Iterable[Edit], parts: Mapping[str, Summary] = NO_PARTS, old: Mapping[str, Summary] | None = None
    ) -> None:
        """Follow recorded changes of clusters.

        ``parts`` are the counts that trials gave, by name, and ``old`` the part of them from earlier batches (default:
        all).
        """
        for edit in edits:
            self._now = edit.apply(self._now, parts)
            self._move(edit.apply(self._old, parts if old is None else old))

    def successors(self) -> dict[int, int]:
        """Earlier cluster whose id a newer cluster has to carry, by the newer cluster's id.

        The successor is the newer cluster to which the larger part of an earlier one went, unless another earlier
        cluster is a larger part of it.
        """
        new = [i for i in self._now.ids.tolist() if i in self.born]
        if not new:
            return {}
        held = np.array([self.born[i] for i in new])
        first, best = held.argmax(axis=0), held.max(axis=0)
        ids = list(self._row)
        wanted = np.flatnonzero((best > self.own) & (best > self.away))
        return {new[first[o]]: ids[o] for o in wanted if held[first[o]].argmax() == o}

    # -- one change -----------------------------------------------------------------------------------------------
    def _move(self, after: Summary) -> None:
        """Follow atoms of earlier batches to the clusters that hold them ``after`` one change."""
        ids = np.union1d(self._old.ids, after.ids)
        before, now = _at(self._old, ids), _at(after, ids)
        gain, loss = np.maximum(now - before, 0.0), np.maximum(before - now, 0.0)
        share = np.where(np.isin(ids, after.ids), np.clip(loss / np.maximum(before, TINY), 0.0, 1.0), 1.0)
        self._old = after
        self._receive(ids, gain / max(gain.sum(), TINY), self._give(ids, share))

    def _give(self, ids: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Take a share of the atoms of some clusters; returns how much of each earlier cluster that is, ``(O,)``."""
        pool = np.zeros_like(self.own)
        rows, old = self._rows(ids)
        pool[rows[old]] = self.own[rows[old]] * share[old]
        self.own[rows[old]] *= 1.0 - share[old]
        for cluster, part in zip(ids[~old].tolist(), share[~old].tolist(), strict=True):
            if cluster in self.born and part > 0:
                pool += self.born[cluster] * part
                self.born[cluster] = self.born[cluster] * (1.0 - part)
        return pool

    def _receive(self, ids: np.ndarray, into: np.ndarray, pool: np.ndarray) -> None:
        """Distribute the pool of atoms that were taken."""
        rows, old = self._rows(ids)
        back = pool[rows[old]] * into[old]
        self.own[rows[old]] += back
        self.away += pool * float(into[old].sum())
        self.away[rows[old]] -= back
        for cluster, part in zip(ids[~old].tolist(), into[~old].tolist(), strict=True):
            if part > 0:
                self.born[cluster] = self.born.get(cluster, 0.0) + pool * part

    def _rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of clusters, and which of them are earlier clusters."""
        rows = np.array([self._row.get(i, -1) for i in ids.tolist()], np.int64)
        return rows, rows >= 0


def counts_of(summary: Summary) -> Summary:
    """Counts alone, copied: totals are changed in place."""
    return Summary(summary.ids, {COUNTS: summary.fields[COUNTS]}, {COUNTS: np.array(summary[COUNTS], np.float64)})


def _at(summary: Summary, ids: np.ndarray) -> np.ndarray:
    """Counts of some clusters, 0 for missing ones, ``(n,)``."""
    order = np.argsort(summary.ids)
    place = np.minimum(np.searchsorted(summary.ids, ids, sorter=order), len(order) - 1)
    return np.where(summary.ids[order[place]] == ids, summary[COUNTS][order[place]], 0.0)


# -- ids as readers know them ---------------------------------------------------------------------------------------
Names = Mapping[int, int]
"""Ids by which readers know clusters, by internal id; only ids that differ."""


def inherited(names: Names, successors: Mapping[int, int]) -> dict[int, int]:
    """Names after some clusters took over the ids of others; from now on these have the former's ids, dead or alive."""
    out = dict(names)
    for successor, before in successors.items():
        out[successor], out[before] = out.get(before, before), out.get(successor, successor)
    return out


def renamed(summary: Summary, names: Names) -> Summary:
    """Statistics under the ids that readers know."""
    return replace(summary, ids=_named(summary.ids, names), pairs=_named(summary.pairs, names))


def told(
    rows: Sequence[Mapping[str, Any]], before: Names, names: Names, successors: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Rows of a history under the ids that readers know.

    A cluster keeps its name from ``before`` until the birth of its successor, and has its name from ``names``
    afterwards.
    """
    waiting, out = set(successors.values()), []
    for row in rows:
        moves = []
        for move in row["moves"]:
            now = {**names, **{i: before.get(i, i) for i in waiting}}
            waiting -= {successors[i] for i in move["others"] if move["accepted"] and i in successors}
            after = {**names, **{i: before.get(i, i) for i in waiting}}
            moves.append(
                {
                    **move,
                    "targets": [now.get(i, i) for i in move["targets"]],
                    "others": [after.get(i, i) for i in move["others"]],
                }
            )
        out.append({**row, "moves": moves})
    return out


def _named(ids: np.ndarray, names: Names) -> np.ndarray:
    out = np.array(ids)
    for i, name in names.items():
        out[ids == i] = name
    return out
