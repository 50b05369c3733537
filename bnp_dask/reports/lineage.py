"""Lineage of clusters: their parents, laps of birth and end, and the successors that took over their atoms."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def lineage_html(lives: Sequence[Life]) -> str:
    """Lives as a table to unfold, clusters that exist at the end first."""
    order = sorted(lives, key=lambda life: (life.ended is not None, life.id))
    lines = [f"<details><summary>{len(lives)} clusters, from birth to end</summary><table><thead><tr>"]
    lines.append("<th>cluster</th><th>born in lap</th><th class='text'>of</th><th>ended in lap</th>")
    lines.append("<th class='text'>by</th><th class='text'>its atoms went to</th></tr></thead><tbody>")
    for life in order[:SHOWN]:
        born = "start" if life.born is None else str(life.born)
        parents = "" if life.born is None else _few(life.parents) or "all clusters"
        ended = "" if life.ended is None else str(life.ended)
        lines.append(
            f"<tr><th scope='row'>{life.id}</th><td>{born}</td><td class='text'>{parents}</td><td>{ended}</td>"
            f"<td class='text'>{html.escape(life.how)}</td><td class='text'>{_few(life.successors)}</td></tr>"
        )
    left = len(lives) - SHOWN
    rest = f"<p class='note'>... and {left} more</p>" if left > 0 else ""
    return "\n".join([*lines, f"</tbody></table>{rest}</details>"])


def _few(ids: Sequence[int]) -> str:
    more = f", ... ({len(ids) - FEW} more)" if len(ids) > FEW else ""
    return ", ".join(map(str, ids[:FEW])) + more
