"""Hidden Markov trees: the state of a node depends on its parent's (thesis 8.4); the number of states is fixed.

As for sequences, q(z) of a tree has the form of its prior, so that one pass up and one down give it exactly.  With
``up_i(l) = log p(x_i | l) + sum over children c of msg_c(l)`` and ``msg_i(k) = log sum_l pi_kl exp up_i(l)``, the log
evidence is ``log sum_l pi_0l exp up_root(l)``, and the pair posterior of a node and its parent is

    s_i[k, l] = q_parent(k) pi_kl exp(up_i(l) - msg_i(k)).

Counts of starts, one for each root, and of transitions, one for each other node, replace the counts of sequences
(:mod:`bnp_dask.allocation.chain_step`), so that weights and objective are the same as in
:class:`~bnp_dask.allocation.finite_hmm.FiniteHMM`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from bnp_dask.allocation.finite_hmm import FiniteHMM, StateRows
from bnp_dask.core import Batch, GroupStates, register
from bnp_dask.errors import DataError, SettingError, not_how_many
from bnp_dask.inputs import hold, whole_number
from bnp_dask.kernels import exp, inner, log, matmul
from bnp_dask.structure import (
    Beliefs,
    Chains,
    LocalStep,
    LogLikOf,
    Trial,
    Visit,
    WholeModel,
    drawn_atoms,
    sequence_offsets,
    sequence_weights,
    shifted,
    shifted_potentials,
    visit_rows,
)

LEAST = 1e-300
"""Sum of probabilities below which a message is cut off, so that its logarithm is finite."""

ROWS = 4096
"""Nodes whose pair posteriors are held at once."""


@dataclass(frozen=True)
class Trees(Chains):
    """Structure of hidden Markov trees: atoms are nodes, groups trees; a node's state depends on its parent's."""

    atom = "node"
    is_ordered = False

    def check(self, model: WholeModel, batch: Batch) -> None:
        model.observation.check(batch)
        offsets = sequence_offsets(batch)
        sequence_weights(batch, offsets)
        model.allocation.levels(offsets, batch.name)  # type: ignore[attr-defined]

    def visit(
        self,
        model: WholeModel,
        posterior: Beliefs,
        batch: Batch,
        pairs: np.ndarray,
        trials: Sequence[Trial],
        sought: Sequence[int],
        states: GroupStates | None,
        room: int,
    ) -> Visit:
        if trials:
            raise SettingError("births and deletes know no trees; train with moves=()")
        places = posterior.positions(pairs).reshape(-1, 2)
        return visit_rows(model, posterior, batch, self.steps(model, posterior, batch, places), pairs, [], sought, room)

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        """Log density of each tree under expected transitions, spread evenly over its nodes, ``(n,)`` nats."""
        allocation: Any = model.allocation
        start, trans = allocation.expected_chain(posterior.allocation)
        rows = [np.zeros(0)]
        for tile in allocation.tiles(batch, posterior.n_clusters):
            log_lik, top = shifted(model.observation.log_predictive(posterior.observation, tile), tile)
            offsets = sequence_offsets(tile)
            tree = allocation.levels(offsets, tile.name)
            log_norm, _, _ = _upward(log(np.maximum(start, LEAST)), trans, log_lik, tree)
            lengths = np.diff(offsets)
            value = np.bincount(tree.group, top, len(lengths))
            np.add.at(value, tree.group[tree.rows[0]], log_norm)
            rows.append(np.repeat(value / np.maximum(lengths, 1), lengths))
        return np.concatenate(rows)

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        """One tree of ``n`` nodes."""
        if length is not None:
            raise SettingError(f"length={length!r}: a tree of nodes has no length; leave it out")
        allocation: Any = posterior.model.allocation
        start, trans = allocation.expected_chain(posterior.allocation)
        parents = allocation.parents_of(n, "a drawn tree")
        place = np.empty(n, np.int64)
        for i, parent in enumerate(parents.tolist()):
            place[i] = rng.choice(len(start), p=start if parent < 0 else trans[place[parent]])
        return drawn_atoms(posterior, place, rng), place


class Levels(NamedTuple):
    """The nodes of the trees of a batch by depth.

    Parameters
    ----------
    rows
        Rows of each depth, roots first.
    parents
        Row of each node's parent, -1 for roots, ``(n,)``.
    group
        Tree of each node, ``(n,)``.
    """

    rows: list[np.ndarray]
    parents: np.ndarray
    group: np.ndarray


@not_how_many
@register
@dataclass(frozen=True)
class FiniteHMT(FiniteHMM):
    """Hidden Markov tree with a fixed number of states.

    The start sets the number K: two states for ``train(..., init=RandomExamples(2))``.

    Parameters
    ----------
    alpha, alpha0, kappa
        As for :class:`~bnp_dask.allocation.finite_hmm.FiniteHMM`, with parents in place of the steps before.
    branching
        Each tree is complete: node i, from 0, has the children ``branching * i + 1, ..., branching * i + branching`` as
        far as there are nodes.  1 is a sequence, 4 the quad-tree of a picture in breadth-first order.
    parents
        In place of that, the parent of each node of a tree, before it in order, and -1 for a root; all trees have this
        shape.

    Notes
    -----
    Data are nodes in trees (``Batch.groups``); a weight counts a whole tree.  The number of states is fixed: births,
    merges and deletes are not tried.

    References
    ----------
    Crouse, Nowak & Baraniuk, "Wavelet-based statistical signal processing using hidden Markov models", 1998, whose
    upward-downward pass this is, on logarithms; thesis 8.4.
    """

    branching: int = 2
    parents: tuple[int, ...] | None = None
    structure = Trees()

    def __post_init__(self) -> None:
        super().__post_init__()
        hold(self, "branching", whole_number("branching", self.branching, 1, what="a whole number of children"))
        if self.parents is None:
            return
        try:
            own = tuple(whole_number("parents", parent, -1, what="positions of parents") for parent in self.parents)
        except TypeError as error:
            raise SettingError(
                f"parents={self.parents!r}: needs the parent of each node, such as (-1, 0, 0)"
            ) from error
        hold(self, "parents", own)
        if not own:
            raise SettingError("parents=(): needs the parent of each node, such as (-1, 0, 0)")
        for i, parent in enumerate(own):
            if parent >= i:
                raise SettingError(
                    f"parents: node {i} has the parent {parent}; needs one before it in order, or -1 for a root"
                )

    def parents_of(self, n: int, name: str) -> np.ndarray:
        """Parents of the nodes of a tree of ``n``, -1 for roots, ``(n,)``; DataError if it has another shape."""
        if self.parents is None:
            return np.maximum((np.arange(n) + self.branching - 1) // self.branching - 1, -1)
        if n != len(self.parents):
            raise DataError(f"{name}: a tree of {n} nodes; parents= says that each has {len(self.parents)}")
        return np.array(self.parents, np.int64)

    def levels(self, offsets: np.ndarray, name: str) -> Levels:
        """Nodes by depth, of trees with nodes ``offsets[g]`` to ``offsets[g + 1]``."""
        lengths = np.diff(offsets)
        group = np.repeat(np.arange(len(lengths)), lengths)
        parents, depth = np.empty(int(offsets[-1]), np.int64), np.empty(int(offsets[-1]), np.int64)
        for n in np.unique(lengths[lengths > 0]).tolist():
            own = self.parents_of(n, name)
            deep = _depths(self, n)
            rows = (offsets[:-1][lengths == n][:, None] + np.arange(n)).ravel()
            times = len(rows) // n
            above = np.tile(own, times)
            parents[rows] = np.where(above < 0, -1, above + np.repeat(rows[::n], n))
            depth[rows] = np.tile(deep, times)
        order = np.argsort(depth, kind="stable")
        return Levels(np.split(order, np.cumsum(np.bincount(depth))[:-1]), parents, group)

    def local_step(self, params: StateRows, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        offsets = sequence_offsets(batch)
        weights, tree = sequence_weights(batch, offsets), self.levels(offsets, batch.name)
        log_lik, _ = shifted(log_lik, batch)
        log_start, log_trans = shifted_potentials(params.log_start, params.log_trans)
        trans = exp(log_trans)
        log_norm, level, sums = _upward(log_start, trans, log_lik, tree)
        times = weights[tree.group]
        resp, counts, losses = np.empty_like(log_lik), np.zeros_like(trans), np.zeros(len(pairs))
        roots = tree.rows[0]
        top = log_start + level[roots]
        resp[roots] = exp(top - log_norm[:, None])
        losses += _losses_of_roots(resp[roots], times[roots], pairs)
        for rows in tree.rows[1:]:
            held = exp(level[rows] - level[rows].max(axis=1, keepdims=True))
            share = resp[tree.parents[rows]] / sums[rows]
            resp[rows] = matmul(share, trans) * held
            counts += trans * matmul((share * times[rows][:, None]).T, held)
            if len(pairs):
                losses += _losses_of_pairs(share, trans, held, times[rows], pairs)
        weighted = resp if batch.weights is None else resp * times[:, None]
        start = weighted[roots].sum(axis=0)
        linear = np.einsum("nk,nk->", weighted, log_lik) + inner(counts, log_trans) + matmul(start, log_start)
        entropy = matmul(times[roots], log_norm) - linear
        return LocalStep(weighted, {"M": counts, "start": start, "H": np.asarray(entropy)}, {"H": losses})

    def sweep(
        self, params: StateRows, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        for tile in self.tiles(batch, len(params.theta0)):
            yield tile, self.local_step(params, log_lik(tile), tile, pairs)

    def path(self, params: StateRows, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
        """Most likely states of each tree together, positions ``(n,)``; ``log_lik (n, K)`` is overwritten."""
        tree = self.levels(sequence_offsets(batch), batch.name)
        level, _ = shifted(log_lik, batch)
        best = np.empty(level.shape, np.int64)
        for rows in reversed(tree.rows[1:]):
            for own in np.array_split(rows, max(1, len(rows) // ROWS)):
                table = params.log_trans + level[own][:, None, :]
                best[own] = table.argmax(axis=2)
                np.add.at(level, tree.parents[own], table.max(axis=2))
        place = np.empty(len(level), np.int64)
        place[tree.rows[0]] = (params.log_start + level[tree.rows[0]]).argmax(axis=1)
        for rows in tree.rows[1:]:
            place[rows] = best[rows, place[tree.parents[rows]]]
        return place


@lru_cache(maxsize=64)
def _depths(model: FiniteHMT, n: int) -> np.ndarray:
    """Depths of the nodes of a tree of ``n``, ``(n,)``; 0 for roots."""
    depth = np.zeros(n, np.int64)
    for i, parent in enumerate(model.parents_of(n, "a tree").tolist()):
        depth[i] = 0 if parent < 0 else depth[parent] + 1
    return depth


def _upward(
    log_start: np.ndarray, trans: np.ndarray, log_lik: np.ndarray, tree: Levels
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log evidence of each root, ``up (n, K)``, and the sums ``exp(msg - max up) (n, K)`` of all but roots."""
    level, sums = log_lik.copy(), np.empty_like(log_lik)
    for rows in reversed(tree.rows[1:]):
        top = level[rows].max(axis=1, keepdims=True)
        sums[rows] = np.maximum(matmul(exp(level[rows] - top), trans.T), LEAST)
        np.add.at(level, tree.parents[rows], top + log(sums[rows]))
    roots = log_start + level[tree.rows[0]]
    top = roots.max(axis=1)
    return top + log(exp(roots - top[:, None]).sum(axis=1)), level, sums


def _united(table: np.ndarray, pair: np.ndarray, axis: int) -> np.ndarray:
    """A table with the second position of a pair added to the first along an axis."""
    out = np.delete(table, pair[1], axis)
    at = int(pair[0] - (pair[0] > pair[1]))
    place = (slice(None),) * axis + (at,)
    out[place] += np.take(table, pair[1], axis)
    return out


def _losses_of_roots(resp: np.ndarray, times: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Falls of the entropy of roots if two states are one, ``(M,)`` nats."""
    own = [xlogy(u, u).sum(axis=1) - xlogy(resp, resp).sum(axis=1) for u in (_united(resp, p, 1) for p in pairs)]
    return np.array([matmul(times, value) for value in own])


def _losses_of_pairs(
    share: np.ndarray, trans: np.ndarray, held: np.ndarray, times: np.ndarray, pairs: np.ndarray
) -> np.ndarray:
    """Falls of the entropy of nodes given their parents if two states are one, ``(M,)`` nats."""
    out = np.zeros(len(pairs))
    for own in np.array_split(np.arange(len(share)), max(1, len(share) // ROWS)):
        both = share[own][:, :, None] * trans * held[own][:, None, :]
        now = _given(both)
        for m, pair in enumerate(pairs):
            out[m] += matmul(times[own], now - _given(_united(_united(both, pair, 1), pair, 2)))
    return out


def _given(both: np.ndarray) -> np.ndarray:
    """Entropy of each node given its parent from pair posteriors ``(n, K, K)``, ``(n,)`` nats."""
    above = both.sum(axis=2)
    return np.asarray(xlogy(above, above).sum(axis=1) - xlogy(both, both).sum(axis=(1, 2)))
