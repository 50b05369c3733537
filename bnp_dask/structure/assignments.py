"""Assignments of a batch's atoms, from which its statistics are recomputed: fewer bytes if clusters are many.

A visit of independent atoms keeps its responsibilities tile by tile, without zeros (kernels set responsibilities below
2**-53 to zero).  The statistics of the observation model are recomputed from them and the batch by the same calls of
the same kernels in the same order, so with the same bits.  Documents and sequences keep statistics, which depend on
more than responsibilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bnp_dask.core import Batch
from bnp_dask.errors import DataError, SummaryError
from bnp_dask.kernels import RaggedResp, Resp, SparseResp
from bnp_dask.observation import Observation, numbers_per_cluster

LITTLE = 2**16
"""Bytes up to which the statistics of a batch are always kept: a file alone takes nearly as much."""

LEAST = 10
"""Least bytes of one atom: a responsibility, its cluster, and their count."""

DENSE, LISTED, RAGGED, TAILED = range(4)
"""Kinds of responsibilities of a tile."""

TOLERANCE = 1e-12
"""Share of the absolute sum of a statistic by which its sum may differ from the recorded one: rounding only."""


class Summed(Protocol):
    """Arrays by name, such as the fields of a summary."""

    def __getitem__(self, name: str) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Assignments:
    """Responsibilities of the atoms of a batch, times their weights, without zeros.

    Parameters
    ----------
    n_clusters
        Number of clusters K.
    starts
        First row of each tile, and one past the last, ``(T + 1,)`` int64.
    kinds
        Format of the responsibilities of each tile in the local step, ``(T,)`` uint8: one of :data:`DENSE`,
        :data:`LISTED` (at most L clusters per atom), :data:`RAGGED` and :data:`TAILED`.
    counts
        Number of clusters kept of each atom, ``(n,)``.
    index, value
        Positions of these clusters, ascending for each atom unless a list has another order, and responsibilities,
        ``(M,)``.
    tail_counts, tail_index, tail_value
        Counts, positions and responsibilities of clusters in a float32 tail; no rows if no tile has a tail.
    factor
        Factor by which the statistics of the batch were scaled.
    """

    n_clusters: int
    starts: np.ndarray
    kinds: np.ndarray
    counts: np.ndarray
    index: np.ndarray
    value: np.ndarray
    tail_counts: np.ndarray
    tail_index: np.ndarray
    tail_value: np.ndarray
    factor: float = 1.0

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Assignments as named arrays."""
        names = ("starts", "kinds", "counts", "index", "value", "tail_counts", "tail_index", "tail_value")
        facts = {"n_clusters": np.array(self.n_clusters), "factor": np.array(self.factor)}
        return {**facts, **{name: getattr(self, name) for name in names}}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Assignments:
        """Inverse of :meth:`to_arrays`; SummaryError if the arrays do not fit each other."""
        own = {name: array for name, array in arrays.items() if name not in ("n_clusters", "factor")}
        found = Assignments(int(arrays["n_clusters"]), **own, factor=float(arrays["factor"]))
        n_clusters, pairs = found.n_clusters, int(found.counts.sum(dtype=np.int64))
        fits = len(found.starts) == len(found.kinds) + 1 and int(found.starts[-1]) == len(found.counts)
        fits = fits and pairs == len(found.index) == len(found.value)
        fits = fits and int(found.tail_counts.sum(dtype=np.int64)) == len(found.tail_index) == len(found.tail_value)
        fits = fits and max(found.index.max(initial=0), found.tail_index.max(initial=0)) < max(n_clusters, 1)
        if not fits:
            raise SummaryError(f"assignments of {len(found.counts)} atoms to {n_clusters} clusters do not fit together")
        return found

    def tiles(self) -> Iterator[tuple[int, int, Resp]]:
        """First row, one past the last, and responsibilities of each tile, as in the local step."""
        at, tail_at = 0, 0
        for start, stop, kind in zip(self.starts[:-1], self.starts[1:], self.kinds, strict=True):
            counts = self.counts[start:stop].astype(np.int64)
            end = at + int(counts.sum())
            index, value = self.index[at:end].astype(np.int64), self.value[at:end]
            at = end
            tail: np.ndarray | None = None
            if kind == TAILED:
                tail_counts = self.tail_counts[start:stop].astype(np.int64)
                tail_end = tail_at + int(tail_counts.sum())
                tail = np.zeros((stop - start, self.n_clusters), np.float32)
                rows = np.repeat(np.arange(stop - start), tail_counts)
                tail[rows, self.tail_index[tail_at:tail_end]] = self.tail_value[tail_at:tail_end]
                tail_at = tail_end
            yield int(start), int(stop), _resp_of(int(kind), counts, index, value, self.n_clusters, tail)


def _resp_of(
    kind: int, counts: np.ndarray, index: np.ndarray, value: np.ndarray, n_clusters: int, tail: np.ndarray | None
) -> Resp:
    n = len(counts)
    if kind == DENSE:
        dense = np.zeros((n, n_clusters))
        dense[np.repeat(np.arange(n), counts), index] = value
        return dense
    if kind == LISTED:
        return SparseResp(index.reshape(n, -1), value.reshape(n, -1), n_clusters)
    return RaggedResp(np.concatenate([[0], np.cumsum(counts)]), index, value, n_clusters, tail)


@dataclass
class Collector:
    """Gathers the responsibilities of a batch tile by tile, as long as they take fewer than ``most`` bytes."""

    n_clusters: int
    most: int
    nbytes: int = 0
    rows: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=list)
    parts: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    tails: list[tuple[np.ndarray, ...]] = field(default_factory=list)

    def see(self, resp: Resp) -> None:
        """Take the next tile; drop all if it is too large, or has a memory layout that cannot be restored."""
        if self.nbytes >= self.most:
            return
        size = np.dtype(self._index).itemsize
        kind, n_pairs, n_tail = _kind_of(resp), _pairs_in(resp), 0
        if kind == TAILED:
            assert isinstance(resp, RaggedResp) and resp.tail is not None
            n_tail = int(np.count_nonzero(resp.tail))
        self.nbytes += n_pairs * (8 + size) + n_tail * (4 + size) + _atoms_in(resp)
        if self.nbytes >= self.most or kind < 0:
            self.nbytes = self.most
            self.parts.clear()
            self.tails.clear()
            return
        counts, index, value = _listed(resp)
        self.rows.append(self.rows[-1] + len(counts))
        self.kinds.append(kind)
        self.parts.append((_narrow(counts), index.astype(self._index), np.array(value)))
        tail = resp.tail if isinstance(resp, RaggedResp) else None
        if tail is None:
            none = np.zeros(0, self._index)
            self.tails.append((np.zeros(len(counts), np.uint8), none, np.zeros(0, np.float32)))
        else:
            where, column = np.nonzero(tail)
            held = np.bincount(where, minlength=len(tail))
            self.tails.append((_narrow(held), column.astype(self._index), tail[where, column]))

    def assignments(self) -> Assignments | None:
        """Assignments of all tiles seen; None if they are too large, or there are none."""
        if self.nbytes >= self.most or not self.parts:
            return None
        counts, index, value = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        tail_counts, tail_index, tail_value = (np.concatenate(column) for column in zip(*self.tails, strict=True))
        if TAILED not in self.kinds:
            tail_counts = tail_counts[:0]
        starts, kinds = np.array(self.rows, np.int64), np.array(self.kinds, np.uint8)
        return Assignments(self.n_clusters, starts, kinds, counts, index, value, tail_counts, tail_index, tail_value)

    @property
    def _index(self) -> np.dtype:
        return np.min_scalar_type(max(self.n_clusters - 1, 0))


def _kind_of(resp: Resp) -> int:
    if isinstance(resp, SparseResp):
        return LISTED
    if isinstance(resp, RaggedResp):
        return RAGGED if resp.tail is None else TAILED
    return DENSE if resp.flags.c_contiguous and resp.dtype == np.float64 else -1


def _pairs_in(resp: Resp) -> int:
    return int(np.count_nonzero(resp)) if isinstance(resp, np.ndarray) else resp.value.size


def _atoms_in(resp: Resp) -> int:
    return (
        len(resp.offsets) - 1
        if isinstance(resp, RaggedResp)
        else len(resp if isinstance(resp, np.ndarray) else resp.index)
    )


def _listed(resp: Resp) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of clusters of each atom ``(n,)``, and positions and responsibilities of all of them."""
    if isinstance(resp, SparseResp):
        n, width = resp.index.shape
        return np.full(n, width), resp.index.ravel(), resp.value.ravel()
    if isinstance(resp, RaggedResp):
        return np.diff(resp.offsets), resp.index, resp.value
    rows, index = np.nonzero(resp)
    return np.bincount(rows, minlength=len(resp)), index, resp[rows, index]


def _narrow(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def room_for(observation: Observation, n_clusters: int, n_atoms: int) -> int:
    """Most bytes that the assignments of a batch may take; 0 if its statistics are always smaller, or are small."""
    size = 8 * n_clusters * (numbers_per_cluster(observation) - 1)
    return size if n_atoms and size > LITTLE and size > LEAST * n_atoms else 0


def sums_of(observation: Observation, values: Summed) -> dict[str, np.ndarray]:
    """Sum and absolute sum of each statistic of the observation model, ``(2,)``, to check a recomputed one."""
    return {name: np.array([np.sum(values[name]), np.sum(np.abs(values[name]))]) for name in observation.fields}


def restored(
    observation: Observation,
    held: Assignments,
    sizes: Mapping[str, np.ndarray],
    sums: Mapping[str, np.ndarray],
    batch: Batch,
) -> dict[str, np.ndarray]:
    """Recompute the statistics of the observation model from a batch and its assignments.

    Parameters
    ----------
    observation
        The likelihood; a prior learned since then does not matter.
    held
        Assignments.
    sizes, sums
        Shape of each field at the visit, and result of :func:`sums_of`, by field.
    batch
        The atoms; columns added since the visit are left out.

    Raises
    ------
    DataError
        The batch differs from the assigned batch.
    """
    if batch.n_atoms != len(held.counts):
        raise _other(batch, f"it has {batch.n_atoms} atoms, and had {len(held.counts)}")
    out: dict[str, np.ndarray] = {}
    for start, stop, resp in held.tiles():
        here, few = _in_use(resp)
        for name, value in observation.summarize(batch.rows(start, stop), few).items():
            found = np.asarray(value, np.float64)
            by_cluster = here is not None and observation.fields[name].n_cluster_axes > 0
            if name not in out:
                out[name] = np.zeros((held.n_clusters, *found.shape[1:]) if by_cluster else found.shape)
            if by_cluster:
                out[name][here] += found
            else:
                out[name] += found
    for name, shape in sizes.items():
        there = tuple(slice(int(length)) for length in shape)
        value = np.array(out[name][there], order="C")
        out[name] = value if held.factor == 1.0 else np.asarray(value * held.factor)
    for name, (total, size) in sums.items():
        if not abs(float(np.sum(out[name])) - total) <= TOLERANCE * size:
            raise _other(batch, f"{name!r} sums to {float(np.sum(out[name])):.17g}, and summed to {float(total):.17g}")
    return out


def _in_use(resp: Resp) -> tuple[np.ndarray | None, Resp]:
    """Positions of the clusters that hold atoms of a tile, and responsibilities of these alone; None for all.

    Lists of pairs are summed cluster by cluster, independently of other clusters.  The bits are therefore the same as
    with all clusters, and no zeros are added for the many clusters absent from a tile.  Other kinds choose their loops
    by K.
    """
    if not isinstance(resp, RaggedResp) or resp.tail is not None or not len(resp.index):
        return None, resp
    is_met = np.zeros(resp.n_clusters, np.bool_)
    is_met[resp.index] = True
    here = np.flatnonzero(is_met)
    place = np.cumsum(is_met) - 1
    return here, RaggedResp(resp.offsets, place[resp.index], resp.value, len(here))


def _other(batch: Batch, why: str) -> DataError:
    return DataError(
        f"{batch.name}: the data changed since the batch was last visited: {why}. Put it back as it was, or start a "
        "new run in another directory"
    )
