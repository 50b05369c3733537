"""Atoms that are known to share a cluster, must-links (thesis 8.3): each group of them draws its cluster once.

A *unit* is a group of linked atoms, or an atom in none.  Units draw their clusters from the weights, and the atoms of a
unit are independent given its cluster,

    p(x, z | pi, phi) = prod_u pi_{z_u} prod_{n in u} p(x_n | phi_{z_u}) ** w_n.

That is the mixture whose observations are units, so that its objective bounds the evidence of units, and groups of one
atom change nothing.  q(z) has one factor for each unit,

    log r_uk = E[log pi_k] + sum_{n in u} w_n E[log p(x_n | phi_k)] + const,

and an atom has the responsibilities of its unit.  A weight w_n is so many copies of the atom: all in its group, or each
a unit of its own.  Statistics of the likelihood and the counts N are sums over atoms; entropies H, and the counts that
the allocation sees, are sums over units.  These counts are the field ``units``, which is linear in responsibilities: an
atom of a group counts as its share of the group's weight, 1 / |u| if no atom is weighted.  Batches add it up, and
edits, trials and unions treat it, as they treat N.

(To take links as an observed coincidence of atoms that draw their clusters one by one is another model, in which a
group has the prior weight ``pi_k ** |u|``.  Coincidences are likelier if clusters are few: large groups then unite
clusters that differ.)

Allocations know nothing of links: their local step gets each unit as an atom, and their global step and terms of the
objective get statistics whose N are counts of units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core import UNITS, Batch, Summary
from bnp_dask.inputs import as_a
from bnp_dask.kernels import Resp, SparseResp, cluster_sums, resp_entropy, scale_rows
from bnp_dask.structure.protocols import LocalStep, MixtureAllocation, WholeModel, linear_sums


@dataclass(frozen=True, eq=False)
class Units:
    """Units of the atoms of a batch.

    Parameters
    ----------
    atoms
        The batch.
    unit
        Unit of each atom, ``(n,)``.
    first
        An atom of each unit, the first of those with the largest weight, ``(U,)``.
    order, starts
        Atoms of groups, unit by unit, and the place where each group begins among them, ``(m,)`` and ``(G,)``.
    factor
        Weight of an atom in a group, by which it takes part in its unit, 1 of others: ``(n,)``.
    """

    atoms: Batch
    unit: np.ndarray
    first: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    factor: np.ndarray

    @staticmethod
    def of(batch: Batch, links: np.ndarray) -> Units:
        """Units of a batch with ``links (n,)``, in the order of their first atoms."""
        n = batch.n_atoms
        weights = np.ones(n) if batch.weights is None else batch.weights
        head, place = np.arange(n), np.flatnonzero(links >= 0)
        own, inverse = np.unique(links[place], return_index=True)[1], np.unique(links[place], return_inverse=True)[1]
        head[place] = place[own][inverse]
        heads, unit = np.unique(head, return_inverse=True)
        by_weight = np.lexsort((np.arange(n), -weights, unit))
        first = by_weight[np.searchsorted(unit[by_weight], np.arange(len(heads)))]
        order = place[np.argsort(unit[place], kind="stable")]
        starts = np.flatnonzero(np.diff(unit[order], prepend=-1))
        return Units(batch, unit, first, order, starts, np.where(links >= 0, weights, 1.0))

    def batch(self) -> Batch:
        """An atom for each unit, of weight one for a group, with the label that is known of any of its atoms."""
        few = self.atoms.take(self.first)
        weights, labels = few.weights, few.labels
        groups = self.unit[self.order[self.starts]]
        if weights is not None:
            weights = weights.copy()
            weights[groups] = 1.0
        if labels is not None and self.atoms.labels is not None and len(groups):
            labels = labels.copy()
            labels[groups] = np.maximum.reduceat(self.atoms.labels[self.order], self.starts)
        return replace(few, weights=weights, labels=labels, links=None)

    def pooled(self, log_lik: np.ndarray) -> np.ndarray:
        """Log likelihoods of units, ``(U, K)`` nats, for :meth:`batch`: of groups, the sum over all atoms."""
        out = log_lik[self.first]
        if len(self.starts):
            own = log_lik[self.order] * self.factor[self.order, None]
            out[self.unit[self.order[self.starts]]] = np.add.reduceat(own, self.starts, axis=0)
        return out

    def single(self, columns: np.ndarray) -> np.ndarray:
        """Masses of units, ``(U, ...)``, of masses of atoms that include their weights."""
        factor = self.factor[self.first].reshape(-1, *(1,) * (columns.ndim - 1))
        # all atoms of a group may have weight zero: its share counts for nothing then
        return np.divide(columns[self.first], factor, out=np.zeros_like(columns[self.first]), where=factor > 0.0)

    def spread(self, allocation: Any, step: LocalStep) -> LocalStep:
        """Local step on units as one on atoms: entropies are of units, counts of atoms."""
        factor, resp = self.factor[:, None], step.resp
        atoms: Resp
        if isinstance(resp, SparseResp):
            atoms = replace(resp, index=resp.index[self.unit], value=resp.value[self.unit] * factor)
        else:
            atoms = np.asarray(resp)[self.unit] * factor
        return replace(step, resp=atoms, values={**step.values, **linear_sums(allocation, self.atoms, atoms)})


def assigned(allocation: Any, params: Any, log_lik: np.ndarray, batch: Batch, places: np.ndarray) -> LocalStep:
    """Local step of a mixture on atoms with log likelihoods ``(n, K)`` nats, which may be overwritten.

    Groups of linked atoms must be whole in the batch.
    """
    own = as_a(allocation, MixtureAllocation)
    if batch.links is None:
        return own.local_step(params, log_lik, batch, places)
    units = Units.of(batch, batch.links)
    pooled = units.pooled(log_lik)
    return units.spread(allocation, own.local_step(params, pooled, units.batch(), places))


def reassigned(allocation: Any, params: Any, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
    """Restricted local step of a mixture: share out ``mass (n,)``, which includes weights, among receivers.

    ``log_lik (n, J)`` nats may be overwritten.  Groups of linked atoms must be whole in the batch.
    """
    own = as_a(allocation, MixtureAllocation)
    if batch.links is None:
        return own.reassign(params, log_lik, batch, mass)
    units = Units.of(batch, batch.links)
    pooled = units.pooled(log_lik)
    return units.spread(allocation, own.reassign(params, pooled, units.batch(), units.single(mass)))


def entropy_of(columns: np.ndarray, batch: Batch) -> np.ndarray:
    """Entropy of each column ``(J,)``, nats, of masses ``(n, J)`` that include the weights of atoms."""
    if batch.links is None:
        return resp_entropy(columns, batch.weights)
    units = Units.of(batch, batch.links)
    return resp_entropy(units.single(columns), units.batch().weights)


# -- counts of units -----------------------------------------------------------------------------------------------
def units_in(model: WholeModel, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
    """The field ``units`` of atoms with responsibilities (times weights), if the model has it.

    Of a group that is not whole in the batch, the atoms there count as a unit.
    """
    return {} if not model.of_units else {UNITS: cluster_sums(scale_rows(resp, shares_of_units(batch)))}


def shares_of_units(batch: Batch) -> np.ndarray | None:
    """Share of its unit that each atom is, by unit of weight, ``(n,)``; None without links."""
    if batch.links is None:
        return None
    place = np.flatnonzero(batch.links >= 0)
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    group = np.unique(batch.links[place], return_inverse=True)[1]
    total = np.bincount(group, weights[place])[group]
    out = np.ones(batch.n_atoms)
    out[place] = np.divide(1.0, total, out=np.zeros(len(place)), where=total > 0.0)
    return out


def counting_units(summary: Summary) -> Summary:
    """Statistics as the allocation sees them: N are counts of units."""
    return replace(summary, values={**summary.values, "N": summary.units}) if UNITS in summary else summary


# -- groups as wholes ----------------------------------------------------------------------------------------------
def whole_groups(index: np.ndarray, batch: Batch) -> np.ndarray:
    """Rows at ``index``, ascending, and all rows that are linked to one of them."""
    if batch.links is None:
        return index
    met = batch.links[index]
    taken = np.isin(batch.links, met[met >= 0])
    taken[index] = True
    return np.flatnonzero(taken)


def uncut(links: np.ndarray) -> np.ndarray:
    """Whether a cut before row i leaves all groups whole, ``(n + 1,)``."""
    n, place = len(links), np.flatnonzero(links >= 0)
    _, first, group = np.unique(links[place], return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, group, place)
    depth = np.zeros(n + 1, np.int64)
    np.add.at(depth, place[first] + 1, 1)
    np.add.at(depth, last + 1, -1)
    return np.asarray(np.cumsum(depth) == 0)


def whole_tiles(batch: Batch, tiles: Iterable[Batch]) -> Iterator[Batch]:
    """Tiles of a batch, united until no group lies in two: small if linked rows lie near one another."""
    if batch.links is None:
        yield from tiles
        return
    free, start, stop = uncut(batch.links), 0, 0
    for tile in tiles:
        stop += tile.n_atoms
        if free[stop]:
            yield batch.rows(start, stop)
            start = stop
