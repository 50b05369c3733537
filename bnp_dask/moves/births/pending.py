"""Births found at single batches and to be tried on all data: newborn clusters of several batches, combined.

The share of one batch is seldom worth a cluster while the rest of the target stays where it is: with B batches the
weights alone cost about log B nats per atom of that batch.  So the newborn clusters of a batch are kept as the basis of
a trial on all data in the next lap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bnp_dask.core.summary import Summary
from bnp_dask.model import Model
from bnp_dask.moves.births.forecast import Forecast
from bnp_dask.moves.memory import Basis, Pending
from bnp_dask.moves.pairs import alike_in_turn
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.structure.base import Visit
from bnp_dask.structure.trials import clusters_only


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


def best_basis(
    model: Model, bases: Sequence[Basis], count: float, least: float, policy: SmallRunPolicy
) -> Summary | None:
    """Newborn clusters with the largest expected rise of the objective over all ``count`` atoms of the target.

    Newborn clusters of fewer than ``least`` atoms are an accident of their batch, and left out.  None if the objective
    would fall.  If groups have weights, parts of groups do not show that; the basis with most atoms is then chosen.
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
    """Objective that ``count`` such atoms would have, nats."""
    return Forecast(model, count / float(summary["N"].sum()), policy).value(summary)


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
