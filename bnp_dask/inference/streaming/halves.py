"""Whether a cluster is two: the rows of one batch propose two halves, the rows of all batches decide.

Expectation propagation moves atoms one by one, given all others.  Two groups of atoms that share a cluster stay there:
the first atom that would leave is alone in its new cluster, and less probable than in the old one, wide as that is.
Such clusters come about early: a cluster of ten or thirty atoms has a wide predictive density, takes shares of atoms of
its neighbour, becomes long, and then its union with the neighbour has the greater evidence.

So a lap ends with a look at all clusters.  One batch, the leading one, takes some of its rows of each cluster apart
(:mod:`bnp_dask.inference.sides`), several times, and proposes the best two halves if the cluster would be more probable
as two with as many atoms as it has in all batches.  Then the rows of every batch join a half, side by side, and the
evidence of two clusters of all these atoms is compared with the evidence of one, exactly as for a union.  So what was
split is not united again at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core import Batch, Summary
from bnp_dask.inference.sides import given, sequentially
from bnp_dask.inference.streaming.task import site_summary, urn_of
from bnp_dask.inference.streaming.unite import rows, union_gains
from bnp_dask.inference.visit import Request, visit
from bnp_dask.kernels import RaggedResp
from bnp_dask.model import Model

LEAST, MOST = 4, 200
"""Rows of a cluster in the leading batch, at least, for it to be looked at; and rows that are taken apart, at most."""

PAIRS = 4
"""Pairs of anchors that are tried for each cluster.  Of two halves of equal size, a pair has an atom of each with
probability one half."""

AGAIN = 3
"""Times that all rows join a half once more, given the halves that they are in.

These four are first guesses.  With them six Gaussians of 1,500 rows and three features, six deviations apart in 16
batches, were found in 19 of 20 runs (two priors, ten seeds); other values and other data were not tried."""

ONE, OTHER = 0, 1
"""Halves of a proposal p: clusters 2 p and 2 p + 1 of its statistics."""


@dataclass(frozen=True, eq=False)
class Halves:
    """Clusters that may be two.

    Parameters
    ----------
    ids
        Their ids, ``(P,)``.
    start
        Statistics of the rows of the leading batch, by half.
    """

    ids: np.ndarray
    start: Summary


@dataclass(frozen=True, eq=False)
class Apart:
    """The atoms of a batch in clusters that may be two.

    Parameters
    ----------
    summary
        Their statistics, by half.
    halves
        A bit for each of the responsibilities that :func:`concerned` finds, set for the other half: the coordinator
        holds them for the atoms of all batches at once.
    """

    summary: Summary
    halves: np.ndarray


def concerned(seats: RaggedResp, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a batch's responsibilities for the clusters at ``at (P,)``, and the proposal of each."""
    proposal = np.full(seats.n_clusters, -1)
    proposal[at] = np.arange(len(at))
    entries = np.flatnonzero(proposal[seats.index] >= 0)
    return entries, proposal[seats.index[entries]]


def look(model: Model, held: Summary, seats: RaggedResp, lap: int, request: Request) -> Halves | None:
    """The task of the leading batch: clusters that may be two; None if it went bad.

    ``held`` are counts and other statistics of the allocation in the total, and ``seats`` the responsibilities of the
    batch's atoms for its clusters, ``(n, K)``.
    """

    def halves(batch: Batch) -> Halves:
        return halves_of(model, held, seats, batch, generator(request.seed, lap, request.batch))

    return visit(model, request, halves, lambda why: None)


def halves_of(model: Model, held: Summary, seats: RaggedResp, batch: Batch, rng: np.random.Generator) -> Halves:
    """Clusters that may be two; arguments as in :func:`look`."""
    atom = np.repeat(np.arange(len(seats.offsets) - 1), np.diff(seats.offsets))
    most, bare = seats.value > 0.5, replace(batch, weights=None)  # an atom has at most one such cluster
    found: list[tuple[int, Summary]] = []
    for k in range(seats.n_clusters):
        own = atom[most & (seats.index == k)]
        if len(own) < LEAST:
            continue
        own = own if len(own) <= MOST else np.sort(rng.choice(own, MOST, replace=False))
        tried = _tried(model, bare, own, rng)
        whole = tried.scale(float(held["N"][k]) / len(own))
        first = np.arange(0, 2 * PAIRS, 2)
        gains = union_gains(model, rows(whole, first + ONE), rows(whole, first + OTHER), held)
        best = int(gains.argmin())
        if gains[best] < 0.0:
            found.append((k, rows(tried, 2 * best + np.array([ONE, OTHER]))))
    start = model.empty_summary(np.arange(2 * len(found)))
    if found:
        clustered = [name for name, declared in start.fields.items() if declared.n_cluster_axes]
        parts = {name: np.concatenate([own[name] for _, own in found]) for name in clustered}
        start = replace(start, values={**start.values, **parts})
    return Halves(held.ids[[k for k, _ in found]], start)


def _tried(model: Model, batch: Batch, own: np.ndarray, rng: np.random.Generator) -> Summary:
    """Statistics of the two halves of some rows, from each of some pairs of anchors."""
    sigma, pairs = urn_of(model).sigma, np.array([rng.choice(own, 2, replace=False) for _ in range(PAIRS)])
    orders = [rng.permutation(own[~np.isin(own, pair)]) for pair in pairs]
    sides = sequentially(model, sigma, batch, pairs, orders, np.zeros(batch.n_atoms, np.int64), rng)
    for _ in range(AGAIN):
        forced = np.full(len(sides.rows), -1)
        forced[: 2 * PAIRS] = np.tile([ONE, OTHER], PAIRS)  # anchors stay, so that no half is empty
        sides = given(model, sigma, sides.held, batch, sides.rows, sides.place // 2, forced, rng)
    return sides.held


def take_apart(
    model: Model, halves: Halves, at: np.ndarray, seats: RaggedResp, lap: int, request: Request
) -> Apart | None:
    """The task of every batch: its atoms join a half; None if it went bad.

    ``at (P,)`` are the positions of the clusters among those of ``seats``.
    """

    def apart(batch: Batch) -> Apart:
        entries, pair = concerned(seats, at)
        atom = np.repeat(np.arange(batch.n_atoms), np.diff(seats.offsets))[entries]
        free = np.full(len(entries), -1)
        rng, bare = generator(request.seed, lap, request.batch), replace(batch, weights=None)
        sides = given(model, urn_of(model).sigma, halves.start, bare, atom, pair, free, rng)
        n_each = np.bincount(atom, minlength=batch.n_atoms)
        offsets = np.concatenate([[0], np.cumsum(n_each)])
        resp = RaggedResp(offsets, sides.place, seats.value[entries], 2 * len(at))
        return Apart(
            summary=site_summary(model, np.arange(2 * len(at)), batch, resp),
            halves=np.packbits(sides.place % 2 == OTHER),
        )

    return visit(model, request, apart, lambda why: None)


def split_gains(model: Model, whole: Summary, ids: np.ndarray, total: Summary) -> np.ndarray:
    """Log odds that clusters are two rather than one, ``(P,)`` nats.

    Parameters
    ----------
    whole
        Statistics of all atoms of the clusters, by half.
    ids
        The clusters, ``(P,)``.
    total
        Statistics of all clusters; those of the likelihood may be left out.
    """
    out, new = np.full(len(ids), -np.inf), int(total.ids.max()) + 1
    for p, k in enumerate(ids.tolist()):
        one, other = rows(whole, np.array([2 * p + ONE])), rows(whole, np.array([2 * p + OTHER]))
        if min(one["N"][0], other["N"][0]) >= 1.0:
            apart = with_cluster(with_cluster(total.insert_empty([new]), k, one), new, other)
            out[p] = -union_gains(model, one, other, apart)[0]
    return out


def with_cluster(summary: Summary, k: int, one: Summary) -> Summary:
    """Summary in which cluster ``k`` holds the atoms of ``one``, a summary of one cluster."""
    place, values = summary.position(k), dict(summary.values)
    for name, declared in summary.fields.items():
        if declared.n_cluster_axes:
            values[name] = values[name].copy()
            values[name][place] = one[name][0]
    return replace(summary, values=values)


def generator(seed: int, lap: int, batch: int = -1) -> np.random.Generator:
    """Random numbers of a batch at the end of a lap; without a batch, of the run."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(*b"halves", lap, batch + 1)))
