"""Lineage of clusters: their parents, laps of birth and end, and the successors that took over their atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bnp_dask.core.table import Table
from bnp_dask.structure.nouns import Noun
from bnp_dask.training.results import TrainResult

SHOWN = 200
"""Clusters that a page lists."""

FEW = 6
"""Most ids of other clusters that a page names for each cluster."""


@dataclass(frozen=True)
class Life:
    """Life of one cluster.

    Parameters
    ----------
    id
        The cluster.
    born
        Lap of its birth; None if it existed from the start.
    parents
        Clusters that it was split from; empty if it took atoms from all clusters or existed from the start.
    ended
        Lap in which it was split, merged or deleted; None if it exists at the end.
    how
        The move that ended it; empty if it exists at the end.
    successors
        Clusters that took over its atoms.
    """

    id: int
    born: int | None = None
    parents: tuple[int, ...] = ()
    ended: int | None = None
    how: str = ""
    successors: tuple[int, ...] = ()


def lineage(result: TrainResult) -> list[Life]:
    """Lives of all clusters in the history of a run, by id: their parents, laps of birth and end, and successors.

    Clusters that no accepted move names are known if they exist at the end of the run; initial clusters that ended are
    known from the moves that name them.

    Parameters
    ----------
    result
        Result of :func:`bnp_dask.train`.
    """
    lives: dict[int, Life] = {}
    for move in result.history.moves():
        if not move["accepted"] or move["kind"] not in ("birth", "merge", "delete", "shadow"):
            continue
        targets, others = tuple(map(int, move["targets"])), tuple(map(int, move["others"]))
        lap = int(move["lap"])
        if move["kind"] in ("birth", "shadow"):
            parents = targets if move["kind"] == "birth" else ()  # all clusters of a shadow took from all
            for i in others:
                if i not in targets:
                    lives[i] = Life(i, lap, parents)
        gone, successors = (targets[1:], targets[:1]) if move["kind"] == "merge" else (targets, others)
        for i in gone:
            if i not in others:
                lives[i] = replace(lives.get(i, Life(i)), ended=lap, how=move["kind"], successors=successors)
    alive = set(result.posterior.ids.tolist())
    for i in alive:
        known = lives.get(i, Life(i))
        lives[i] = replace(known, ended=None, how="", successors=())
    return [lives[i] for i in sorted(lives)]


def lineage_table(lives: Sequence[Life], noun: Noun) -> Table:
    """Lives as a table to unfold, clusters that exist at the end first."""
    rows = [
        (
            str(life.id),
            "start" if life.born is None else str(life.born),
            "" if life.born is None else first_few(life.parents, FEW) or f"all {noun.many}",
            "" if life.ended is None else str(life.ended),
            life.how,
            first_few(life.successors, FEW),
        )
        for life in sorted(lives, key=lambda life: (life.ended is not None, life.id))[:SHOWN]
    ]
    left = len(lives) - SHOWN
    return Table(
        (noun.one, "born in lap", "of", "ended in lap", "by", f"its {noun.atoms} went to"),
        rows,
        left=(2, 4, 5),
        fold=f"{noun.count(len(lives))}, from birth to end",
        notes=[f"... and {left} more"] if left > 0 else [],
    )


def first_few(ids: Sequence[int], most: int) -> str:
    """Ids in words: the first ``most``, and the number of the rest."""
    more = f", ... ({len(ids) - most} more)" if len(ids) > most else ""
    return ", ".join(map(str, ids[:most])) + more
