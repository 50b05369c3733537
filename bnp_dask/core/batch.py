"""A batch: the atoms that one task holds in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.errors import DataError
from bnp_dask.inputs import from_parts, plain, require_exact


@dataclass(frozen=True, eq=False)
class Batch:
    """Some atoms of the data set, with their origin.

    Parameters
    ----------
    x
        Atoms, ``(n, D)``: a float64 array, or counts as a ``scipy.sparse.csr_array`` of float64
        (one row per document, one column per word; never made dense).
    weights
        How often each atom counts, ``(n,)`` float64, or None for once each.
    name
        Where the batch came from, for error messages: ``"patches.zarr batch 7 (rows 7000-7999)"``.
    groups
        Offsets of groups of dense atoms (one image, one hospital), ``(G + 1,)`` int64: the rows of group g are
        ``groups[g]:groups[g + 1]``.  None for ungrouped atoms, and for sparse counts, each row of which is a group
        of tokens.
    names
        Names of the features, ``(D,)``, for messages; None for features without names.
    read_width
        Leading columns that the checksum covers, if words of other data follow; None for all.  In dense rows the
        further columns hold zeros.
    dropped
        Rows that were read and left out of these atoms, ascending; None if none was.
    labels
        Known labels of the atoms as positions in the list of labels, ``(n,)`` int64, -1 where none is known; None for
        data without labels.  See :class:`bnp_dask.observation.labelled.Labelled`.
    responses
        Observed responses of the groups (documents), ``(G,)`` float64, NaN where none is observed; None for data
        without responses.  See :mod:`bnp_dask.allocation.response`.
    links
        Groups of atoms that share one cluster, as a number for each atom, ``(n,)`` int64, -1 for atoms by themselves;
        None for data without links.  A group lies in one batch.  See :mod:`bnp_dask.structure.linked`.
    """

    x: np.ndarray | sparse.csr_array
    weights: np.ndarray | None = None
    name: str = "batch"
    groups: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    read_width: int | None = None
    dropped: np.ndarray | None = None
    labels: np.ndarray | None = None
    responses: np.ndarray | None = None
    links: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_rows(self.x, self.name)
        if self.weights is not None and len(self.weights) != self.n_atoms:
            raise wrong_weights(self.name, np.shape(self.weights), self.n_atoms)
        if self.groups is not None:
            check_groups(self.groups, self)
        if self.responses is not None:
            check_responses(self.responses, self)
        if self.links is not None:
            check_links(self.links, self)

    @property
    def n_atoms(self) -> int:
        """Number of atoms n."""
        return int(self.x.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features D (columns), or words V."""
        return int(self.x.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether the atoms are sparse counts."""
        return not isinstance(self.x, np.ndarray)

    @property
    def total_weight(self) -> float:
        """Sum of the weights; the number of atoms when there are none."""
        return float(self.n_atoms if self.weights is None else self.weights.sum())

    @property
    def n_groups(self) -> int:
        """Number of groups G: documents of sparse counts, groups of dense atoms."""
        return len(self.group_offsets) - 1

    @property
    def group_offsets(self) -> np.ndarray:
        """Rows of each group, ``(G + 1,)``; DataError for dense atoms without groups."""
        if self.groups is not None:
            return self.groups
        if isinstance(self.x, np.ndarray):
            raise DataError(
                f"{self.name}: dense rows without groups; a topic model needs to know which rows belong together. "
                "Give Batch(x, groups=offsets), sparse counts with a document in each row, or train a mixture"
            )
        return np.arange(self.n_atoms + 1)

    @property
    def nbytes(self) -> int:
        """Bytes held by the atoms and their weights."""
        held = 0 if self.weights is None else self.weights.nbytes
        if isinstance(self.x, np.ndarray):
            return held + self.x.nbytes
        return held + self.x.data.nbytes + self.x.indices.nbytes + self.x.indptr.nbytes

    def place(self, row: int) -> str:
        """Name of a row in messages: its number as read, and its place in its group."""
        if self.dropped is not None:
            return f"row {np.delete(np.arange(self.n_atoms + len(self.dropped)), self.dropped)[row]}"
        if self.groups is None:
            return f"row {row}"
        g = int(np.searchsorted(self.groups, row, side="right")) - 1
        return f"row {row} (row {row - int(self.groups[g])} of group {g} of this batch)"

    def column(self, index: int) -> str:
        """Name of a column in messages: its own name, or else its number."""
        return column_name(self.names, index)

    def rows(self, start: int, stop: int) -> Batch:
        """The atoms ``start:stop`` as views; only the row pointers of sparse rows are copied.

        Groups are kept when both cuts fall between groups; otherwise the atoms have no groups.
        """
        weights = None if self.weights is None else self.weights[start:stop]
        labels = None if self.labels is None else self.labels[start:stop]
        links = None if self.links is None else self.links[start:stop]
        if isinstance(self.x, np.ndarray):
            groups = self._groups_between(start, stop)
            responses = None
            if groups is not None and self.responses is not None and self.groups is not None:
                first = int(np.searchsorted(self.groups, start, side="left"))
                responses = self.responses[first : first + len(groups) - 1]
            return replace(
                self,
                x=self.x[start:stop],
                weights=weights,
                groups=groups,
                dropped=None,
                labels=labels,
                responses=responses,
                links=links,
            )
        responses = None if self.responses is None else self.responses[start:stop]
        indptr = self.x.indptr[start : stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        shape = (len(indptr) - 1, self.n_features)
        x = sparse.csr_array((self.x.data[entries], self.x.indices[entries], indptr - indptr[0]), shape=shape)
        return replace(self, x=x, weights=weights, dropped=None, labels=labels, responses=responses, links=links)

    def widened(self, width: int) -> Batch:
        """These atoms with columns of zeros appended, up to ``width``."""
        if width == self.n_features:
            return self
        x: Any = self.x
        if isinstance(x, np.ndarray):
            x = np.pad(x, ((0, 0), (0, width - x.shape[1])))
        else:
            x = sparse.csr_array((x.data, x.indices, x.indptr), shape=(x.shape[0], width))
        return replace(self, x=x, names=None, read_width=self.read_width or self.n_features)

    def take(self, index: np.ndarray) -> Batch:
        """The atoms at the positions ``index``, ``(m,)``, in that order; each alone, without groups."""
        weights = None if self.weights is None else self.weights[index]
        labels = None if self.labels is None else self.labels[index]
        links = None if self.links is None else self.links[index]
        of_rows = self.groups is None and self.responses is not None and not isinstance(self.x, np.ndarray)
        responses = self.responses[index] if of_rows and self.responses is not None else None
        return replace(
            self,
            x=self.x[index],
            weights=weights,
            groups=None,
            dropped=None,
            labels=labels,
            responses=responses,
            links=links,
        )

    def counting(self) -> Batch:
        """The atoms of nonzero weight, and the groups that keep an atom or were empty before.

        Where all atoms left count once, the batch has no weights, as for data without weights.
        """
        stays = np.ones(self.n_atoms, np.bool_) if self.weights is None else np.asarray(self.weights != 0)
        if stays.all():
            return self
        left = self.take(np.flatnonzero(stays))
        groups, responses = None, left.responses
        if self.groups is not None:
            lengths = np.diff(np.concatenate([[0], np.cumsum(stays)])[self.groups])
            kept = (lengths > 0) | (np.diff(self.groups) == 0)
            lengths = lengths[kept]
            responses = None if self.responses is None else self.responses[kept]
            groups = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        weights = None if np.all(left.weights == 1.0) else left.weights
        return replace(left, weights=weights, groups=groups, dropped=np.flatnonzero(~stays), responses=responses)

    def take_groups(self, index: np.ndarray) -> Batch:
        """The groups at the positions ``index``, whole and in that order; rows of sparse counts."""
        if self.groups is None and not isinstance(self.x, np.ndarray):
            return self.take(index)
        offsets = self.group_offsets
        index = np.asarray(index, np.int64)
        if len(index) and np.array_equal(index, np.arange(index[0], index[0] + len(index))):
            cut = offsets[index[0] : index[-1] + 2]
            responses = None if self.responses is None else self.responses[index[0] : index[-1] + 1]
            part = replace(self.rows(int(cut[0]), int(cut[-1])), responses=None)
            return replace(part, groups=cut - cut[0], responses=responses)
        parts = [np.arange(offsets[g], offsets[g + 1]) for g in index]
        responses = None if self.responses is None else self.responses[index]
        rows = np.concatenate([np.zeros(0, np.int64), *parts])
        lengths = np.concatenate([[0], np.cumsum(np.diff(offsets)[index])]).astype(np.int64)
        return replace(self.take(rows), groups=lengths, responses=responses)

    def _groups_between(self, start: int, stop: int) -> np.ndarray | None:
        if self.groups is None:
            return None
        # an empty group goes with the next group, so that adjacent pieces hold each group once
        first = int(np.searchsorted(self.groups, start, side="left"))
        ends = stop == self.n_atoms
        last = len(self.groups) - 1 if ends else int(np.searchsorted(self.groups, stop, side="left"))
        if first >= len(self.groups) or self.groups[first] != start or self.groups[last] != stop:
            return None
        return self.groups[first : last + 1] - start

    def columns(self, index: np.ndarray) -> Batch:
        """All atoms, restricted to the columns ``index``."""
        names = None if self.names is None else tuple(self.names[i] for i in index)
        return replace(self, x=self.x[:, index], names=names)


def column_name(names: Sequence[str] | None, index: int) -> str:
    """Name of a column in messages: its own name, or else its number."""
    if names is None or names[index] == str(index):
        return f"column {index}"
    return f"column {names[index]!r}"


def concatenate(batches: list[Batch], name: str = "sample") -> Batch:
    """Concatenated atoms of several batches; weights are made explicit when any batch has them."""
    if any(b.is_sparse for b in batches):
        x = sparse.csr_array(sparse.vstack([b.x for b in batches], format="csr"))
    else:
        x = np.concatenate([b.x for b in batches])
    weights = None
    if any(b.weights is not None for b in batches):
        weights = np.concatenate([np.ones(b.n_atoms) if b.weights is None else b.weights for b in batches])
    groups = None
    if batches and all(b.groups is not None for b in batches):
        lengths = [np.diff(b.group_offsets) for b in batches]
        groups = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    labels = None
    if any(b.labels is not None for b in batches):
        labels = np.concatenate([np.full(b.n_atoms, -1) if b.labels is None else b.labels for b in batches])
    responses = None
    if any(b.responses is not None for b in batches) and (groups is not None or not isinstance(x, np.ndarray)):
        responses = np.concatenate(
            [np.full(b.n_groups, np.nan) if b.responses is None else b.responses for b in batches]
        )
    links = None
    if any(b.links is not None for b in batches):
        links = _links_apart(batches)
    names = batches[0].names if batches else None
    return Batch(x, weights, name, groups, names, labels=labels, responses=responses, links=links)


def _links_apart(batches: list[Batch]) -> np.ndarray:
    """Links of several batches: a group lies in one batch, and equal numbers in two are two groups."""
    out, n_used = [], 0
    for batch in batches:
        own = np.full(batch.n_atoms, -1) if batch.links is None else batch.links
        out.append(np.where(own >= 0, own + n_used, -1))
        n_used += int(own.max(initial=-1)) + 1
    return np.concatenate(out)


def wrong_weights(name: str, shape: tuple[int, ...], n_atoms: int) -> DataError:
    """The error of weights that are not one for each of ``n_atoms`` rows."""
    return DataError(f"{name}: weights have shape {shape}; needs one per atom, ({n_atoms},)")


def check_rows(x: object, name: str) -> None:
    """DataError unless ``x`` is a float64 matrix, dense or CSR, as a batch needs."""
    kinds = (np.ndarray, sparse.csr_array)
    if isinstance(x, kinds) and x.ndim == 2 and x.dtype == np.float64 and not np.ma.is_masked(x):
        return
    found = f"{x.dtype} of shape {x.shape}" if isinstance(x, kinds) else "no NumPy array"
    raise DataError(
        f"{name}: x is a {type(x).__name__}, {found}; a Batch needs rows (n, D) of float64 without masked values, or "
        "counts as a scipy.sparse.csr_array of float64"
    )


def batch_to_arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Atoms, weights, groups, labels, responses and links as named arrays; the name is left out."""
    if isinstance(batch.x, np.ndarray):
        out = {"x": batch.x}
    else:
        out = {part: np.asarray(getattr(batch.x, part)) for part in ("data", "indices", "indptr")}
        out["shape"] = np.array(batch.x.shape)
    if batch.weights is not None:
        out["weights"] = batch.weights
    if batch.groups is not None:
        out["groups"] = batch.groups
    if batch.labels is not None:
        out["labels"] = batch.labels
    if batch.responses is not None:
        out["responses"] = batch.responses
    if batch.links is not None:
        out["links"] = batch.links
    return out


def batch_from_arrays(arrays: Mapping[str, np.ndarray], name: str) -> Batch:
    """Inverse of :func:`batch_to_arrays`."""
    if "x" in arrays:
        x: Any = arrays["x"]
    else:
        n, width = (int(size) for size in arrays["shape"])
        x = from_parts(arrays["data"], arrays["indices"], arrays["indptr"], (n, width), name)
    return Batch(
        x,
        arrays.get("weights"),
        name,
        arrays.get("groups"),
        labels=arrays.get("labels"),
        responses=arrays.get("responses"),
        links=arrays.get("links"),
    )


def check_groups(groups: np.ndarray, batch: Batch) -> None:
    """DataError unless these offsets ``(G + 1,)`` int64 cut the dense atoms of a batch into groups."""
    wrong = not isinstance(batch.x, np.ndarray) or not isinstance(groups, np.ndarray) or groups.dtype != np.int64
    wrong = wrong or groups.ndim != 1 or len(groups) == 0 or groups[0] != 0 or groups[-1] != batch.n_atoms
    if wrong or (np.diff(groups) < 0).any():
        raise DataError(
            f"{batch.name}: groups={groups!r}: needs int64 offsets (G + 1,) of dense rows, from 0 to {batch.n_atoms}, "
            "never falling; rows groups[g]:groups[g + 1] are group g. Sparse counts have a document in each row"
        )


def check_responses(responses: np.ndarray, batch: Batch) -> None:
    """DataError unless there is one response, or NaN, for each group of a batch; none is infinite."""
    found = isinstance(responses, np.ndarray) and responses.dtype == np.float64 and not np.isinf(responses).any()
    if not found or responses.shape != (batch.n_groups,):
        raise DataError(
            f"{batch.name}: responses of shape {np.shape(responses)}; needs float64 numbers, NaN where none is "
            f"observed, one for each of {batch.n_groups} groups (documents)"
        )


def check_links(links: np.ndarray, batch: Batch) -> None:
    """DataError unless there is one number of a group, or -1, for each atom of a batch."""
    found = isinstance(links, np.ndarray) and links.dtype == np.int64
    if not found or links.shape != (batch.n_atoms,):
        raise DataError(
            f"{batch.name}: links of shape {np.shape(links)}; needs int64 numbers of groups, -1 for atoms by "
            f"themselves, one for each of {batch.n_atoms} atoms"
        )


def check_weights(weights: np.ndarray, n_atoms: int, name: str) -> np.ndarray:
    """Weights as float64 ``(n_atoms,)``; DataError unless every atom has one finite number >= 0, none masked."""
    array = plain(weights, f"{name}: weights")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: weights have dtype {array.dtype}; needs real numbers")
    if array.shape != (n_atoms,):
        raise wrong_weights(name, array.shape, n_atoms)
    require_exact(array, name, "weight")
    array = np.ascontiguousarray(array, np.float64)
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{name}: weight of row {row} is {array[row]}; needs finite weights >= 0")
    return array
