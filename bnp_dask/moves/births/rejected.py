"""Births rejected by the whole data: several at once, with laps to converge, may pay although none did alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bnp_dask.core.summary import Summary
from bnp_dask.model import Model
from bnp_dask.moves.base import Memory, Rejected
from bnp_dask.moves.lap_policy import DECISION


def note_rejected(memory: Memory, donors: tuple[int, ...], part: Summary, gain: float) -> None:
    """Keep a birth rejected with a gain of ``gain`` nats, if the memory keeps any, and drop the worst beyond the limit.

    ``part`` are the statistics with which it would have replaced its ``donors``.
    """
    if memory.rejected is None:
        return
    memory.rejected[donors] = Rejected(part.without_pairs(), gain)
    best = sorted(memory.rejected.items(), key=lambda item: -item[1].gain)
    memory.rejected = dict(best[: DECISION.rejected])


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
    for name in ("N", *model.observation.fields):
        if out.fields[name].n_cluster_axes:
            out.values[name][...] = np.concatenate([part[name] for part in parts])
    return out
