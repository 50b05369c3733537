"""Births that single batches found and that all data are to try: newborn clusters of several batches, put together.

What one batch gives away is seldom worth a cluster while the rest of the target stays where it is: with B batches the
weights alone cost about log B nats per atom of that batch.  So what a batch found there is not lost: it becomes the
basis of a trial on all data in the next lap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bnp_dask.core.summary import Summary
from bnp_dask.model import Model
from bnp_dask.moves.base import Basis, Pending
from bnp_dask.moves.births.at_batch import alike_in_turn
from bnp_dask.moves.births.forecast import Forecast
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.structure.base import Visit
from bnp_dask.structure.trials import clusters_only


def note(model: Model, pending: Pending, found: Visit) -> None:
    """Keep what a batch found in a cluster, together with what others found there that looks the same.

    Nothing where it found nothing, or where the cluster was split since.
    """
    target = found.split
    if target is None or found.newborn is None or pending.get(target) == ():
        return
    held = clusters_only(found.summary.without_pairs().take([target]))
    own = Basis(replace(found.newborn.without_pairs(), links=None), held)
    pending[target] = _joined(model, pending.get(target, ()), own)


def close(pending: Pending, target: int) -> None:
    """Forget what batches found in a cluster that was split, and what they will find in this lap."""
    pending[target] = ()


def best_basis(
    model: Model, bases: Sequence[Basis], count: float, least: float, policy: SmallRunPolicy
) -> Summary | None:
    """The newborn clusters of which the objective of all of the target is expected to rise most, for its ``count``.

    Those that fewer than ``least`` atoms show are an accident of their batch, and left out.  None where the objective
    would fall.  Where groups have weights, parts of them do not tell that, and those that most atoms show are chosen.
    """
    best, most = None, 0.0
    forecasts = model.structure.policy.splits_at_batches
    for basis in bases:
        shown = basis.newborn.take(basis.newborn.ids[basis.newborn["N"] >= least])
        if shown.n_clusters < 2:
            continue
        gain = float(basis.held["N"].sum())
        if forecasts:
            gain = _value(model, shown, count, policy) - _value(model, basis.held, count, policy)
        if gain > most:
            best, most = shown.scale(count / float(shown["N"].sum())), gain
    return best


def _value(model: Model, summary: Summary, count: float, policy: SmallRunPolicy) -> float:
    """Objective that ``count`` atoms like these would have, nats."""
    return Forecast(model, count / float(summary["N"].sum()), policy).value(summary)


def _joined(model: Model, bases: tuple[Basis, ...], own: Basis) -> tuple[Basis, ...]:
    """Bases with that of one batch more: added to the first whose clusters look like its own, else by itself."""
    structure = model.structure
    untied, mine = structure.untied(model), structure.untied_summary(model, own.newborn)
    for i, basis in enumerate(bases):
        order = alike_in_turn(untied, structure.untied_summary(model, basis.newborn), mine)
        if order is not None:
            newborn = replace(own.newborn.take(own.newborn.ids[order]), ids=basis.newborn.ids)
            return (*bases[:i], Basis(basis.newborn + newborn, basis.held + own.held), *bases[i + 1 :])
    return (*bases, own)
