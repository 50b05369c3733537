"""Whether two clusters are one, and whether one cluster is two."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation import StickAllocation
from bnp_dask.core import Batch, Summary
from bnp_dask.inference.sides import given, sequentially
from bnp_dask.inference.streaming.task import site_summary, urn_of
from bnp_dask.inference.visit import Request, visit
from bnp_dask.inputs import as_a
from bnp_dask.kernels import ABSENT, RaggedResp, log
from bnp_dask.model import Model
from bnp_dask.moves import LAP, best_first, evidence_gains, matched_in_turn, near_pairs

# =====================================================================================================================
# Whether two clusters are one: the evidence of their union against the evidence of both, from summaries.
#
# Clusters opened by batches that were visited side by side are united or kept apart before they get ids.
# =====================================================================================================================

PAIRS_BYTES = 2**25
"""Bytes of statistics of unions held at once."""


def union_gains(model: Model, a: Summary, b: Summary, total: Summary) -> np.ndarray:
    """Log odds that pairs of clusters are one cluster rather than two, ``(M,)`` nats.

    Both data and partition count: the evidence of all atoms in one cluster over the evidence of two, times the
    probability of the partition with the union over the probability without (exact if each atom belongs to one
    cluster).

    Parameters
    ----------
    a, b
        M clusters each, compared in order.
    total
        Statistics of all clusters.
    """
    urn = urn_of(model)
    if not a.n_clusters:
        return np.zeros(0)
    evidence = evidence_gains(model, a, b)
    n_a, n_b = np.maximum(a["N"], 1.0), np.maximum(b["N"], 1.0)
    absent = total[ABSENT] if ABSENT in total else np.where(total["N"] > 0.0, -np.inf, 0.0)
    return np.asarray(evidence + urn.log_unions(n_a, n_b, total["N"], absent))


def pair_gains(model: Model, a: Summary, b: Summary, total: Summary) -> np.ndarray:
    """:func:`union_gains` of each cluster of one summary with each of another, ``(J, K)`` nats."""
    first, second = np.divmod(np.arange(a.n_clusters * b.n_clusters), max(b.n_clusters, 1))
    return _gains(model, a, b, first, second, total).reshape(a.n_clusters, b.n_clusters)


def _gains(model: Model, a: Summary, b: Summary, first: np.ndarray, second: np.ndarray, total: Summary) -> np.ndarray:
    """Gains of unions of clusters of two summaries, at the positions ``first`` and ``second (M,)``."""
    size = max(1, PAIRS_BYTES // max(1, total.nbytes // max(1, total.n_clusters)))
    parts = [
        union_gains(model, rows(a, first[i : i + size]), rows(b, second[i : i + size]), total)
        for i in range(0, len(first), size)
    ]
    return np.concatenate([np.zeros(0), *parts])


def unions(model: Model, total: Summary, least: float, concerned: np.ndarray) -> list[tuple[int, int, float]]:
    """Pairs of clusters whose union gains more than ``least`` nats, best first, each cluster in one pair at most.

    Scored are all such pairs, or, if there are more than ``LAP.all_pairs`` squared, the near ones
    (:func:`bnp_dask.moves.pairs.near_pairs`).

    Parameters
    ----------
    total
        Statistics of all clusters.
    least
        Nats.
    concerned
        Ids of clusters, ``(J,)``; each pair must contain at least one of them.
    """
    bare, wanted = total.without_pairs(), np.isin(total.ids, concerned)
    first, second = _scored(model, bare, wanted)
    gain = _gains(model, bare, bare, first, second, bare)
    pairs = np.stack([total.ids[first], total.ids[second]], axis=1)
    chosen = best_first(pairs, gain, least)
    return [(int(pairs[m].min()), int(pairs[m].max()), float(gain[m])) for m in chosen]


def _scored(model: Model, bare: Summary, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of pairs that contain a ``wanted (K,)`` cluster, ``(M,)`` each, the smaller one first."""
    n, some = bare.n_clusters, np.flatnonzero(wanted)
    if n * len(some) > LAP.all_pairs**2:
        first, second = near_pairs(model, model.global_step(bare), bare)
        kept = wanted[first] | wanted[second]
        return first[kept], second[kept]
    one, other = np.repeat(some, n), np.tile(np.arange(n), len(some))
    apart = one != other
    pairs = np.unique(np.minimum(one, other)[apart] * n + np.maximum(one, other)[apart])
    first, second = np.divmod(pairs, max(n, 1))
    return first, second


GREW = 1.5
"""Factor by which a cluster must grow to be compared with all others again."""


def grown(before: Summary, total: Summary) -> np.ndarray:
    """Ids of the new clusters of a total, and of clusters that have grown by :data:`GREW`."""
    old = np.zeros(total.n_clusters)
    there = np.isin(total.ids, before.ids)
    old[there] = before["N"][before.positions(total.ids[there])]
    return total.ids[total["N"] > GREW * old]


def rows(summary: Summary, positions: np.ndarray) -> Summary:
    """Clusters of a summary at some positions, which may repeat, with new ids."""
    values = {
        name: value[positions] if summary.fields[name].n_cluster_axes else value
        for name, value in summary.values.items()
    }
    return replace(summary, ids=np.arange(len(positions)), values=values)


# -- clusters opened side by side -------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Opened:
    """Clusters that a batch opened: statistics of their atoms, and their counts (in topic models: tables), ``(J,)``."""

    summary: Summary
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)


@dataclass
class Newborn:
    """Clusters that the batches of a group have opened so far, under their names."""

    names: list[int] = field(default_factory=list)
    held: Opened | None = None

    def names_for(self, model: Model, opened: Opened, next_id: int) -> list[int]:
        """Ids of the clusters that one more batch opened, new ones from ``next_id`` on.

        A cluster takes the name of its most probable match among the earlier ones, if the union is more probable than
        two clusters; clusters of one batch stay apart.
        """
        known = 0 if self.held is None else len(self.names)
        places = matched_in_turn(len(opened), known, lambda j, free: self._gains(model, np.array(free), opened, j))
        out: list[int] = []
        for place in places:
            if place < 0:
                self.names.append(next_id)
                next_id += 1
            out.append(self.names[place])  # the last one if it is new
        self._add(out, opened)
        return out

    def _gains(self, model: Model, places: np.ndarray, opened: Opened, j: int) -> np.ndarray:
        """Log odds that a cluster and each of some earlier ones are one cluster rather than two, ``(M,)`` nats."""
        assert self.held is not None
        evidence = evidence_gains(model, rows(self.held.summary, places), rows(opened.summary, np.full(len(places), j)))
        a, b = np.maximum(self.held.counts[places], 1.0), max(float(opened.counts[j]), 1.0)
        price = float(log(as_a(model.allocation, StickAllocation).gamma))
        return np.asarray(evidence + gammaln(a + b) - gammaln(a) - gammaln(b) - price)

    def _add(self, names: list[int], opened: Opened) -> None:
        """Add the atoms of clusters that now have names."""
        ids = np.array(self.names, np.int64)
        mine = replace(opened.summary, ids=np.array(names, np.int64))
        mine = mine.insert_empty(ids[~np.isin(ids, mine.ids)]).take(ids)
        counts = np.zeros(len(ids))
        counts[[self.names.index(name) for name in names]] = opened.counts
        if self.held is None:
            self.held = Opened(mine, counts)
            return
        before = self.held.summary.insert_empty(ids[self.held.summary.n_clusters :])
        older = np.concatenate([self.held.counts, np.zeros(len(ids) - len(self.held))])
        self.held = Opened(before + mine, older + counts)


# =====================================================================================================================
# Whether a cluster is two: the rows of one batch propose two halves, the rows of all batches decide.
#
# Expectation propagation moves atoms one by one, given all others.  Two groups of atoms that share a cluster stay
# there: the first atom that would leave is alone in its new cluster, and less probable than in the old one, wide as
# that is. Such clusters come about early: a cluster of ten or thirty atoms has a wide predictive density, takes shares
# of atoms of its neighbour, becomes long, and then its union with the neighbour has the greater evidence.
#
# So a lap ends with a look at all clusters.  One batch, the leading one, takes some of its rows of each cluster apart
# (:mod:`bnp_dask.inference.sides`), several times, and proposes the best two halves if the cluster would be more
# probable as two with as many atoms as it has in all batches.  Then the rows of every batch join a half, side by side,
# and the evidence of two clusters of all these atoms is compared with the evidence of one, exactly as for a union.  So
# what was split is not united again at once.
# =====================================================================================================================

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
