"""Sparse counts in Zarr: CSR arrays cut at batches.

A store is a group with attributes and these arrays:

``word`` int32 ``(m,)``, ``count`` ``(m,)``
    Entries of all documents, in order.  A batch starts where a chunk starts (a few zeros are left between), so that
    reading one decodes no entry of another, and a batch of usual size is one to eight chunks.
``length`` int64 ``(n,)``
    Entries of each document.
``batch_doc`` int64 ``(B + 1,)``, ``batch_entry`` int64 ``(B + 1,)``
    First document, and first entry, of each batch.
``weights`` float64 ``(n,)``
    Optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, shows_itself
from bnp_dask.data.batching import (
    Span,
    batch_name,
    build_csr,
    check_batch_size,
    check_dtype,
    check_index,
    check_matrix,
    check_width,
    sparse_spans,
)
from bnp_dask.data.identity import fingerprint_of_files
from bnp_dask.data.sources.zarr_rows import ZarrArray, store_facts
from bnp_dask.errors import DataError

if TYPE_CHECKING:
    import zarr

COUNT_ARRAYS = ("word", "count", "length", "batch_doc", "batch_entry")

Piece = tuple[int, int, int, int]
"""Documents ``first`` to ``last``, whose entries lie between ``entry`` and ``end``: one stored batch."""


@dataclass(frozen=True)
class ZarrCountsReader:
    """Reads the documents of one batch.

    ``pieces`` are stored batches, or their parts, that make up this batch.
    """

    word: ZarrArray
    count: ZarrArray
    length: ZarrArray
    weights: ZarrArray | None
    pieces: tuple[tuple[Piece, Span], ...]
    n_words: int
    name: str

    def __call__(self) -> Batch:
        parts, weights = [], []
        for (stored_doc, stored_last, entry, end), (first, last) in self.pieces:
            length = self.length.read((stored_doc, stored_last), np.dtype(np.int64))
            if len(length) and (length.min() < 0 or length.max() > end - entry or int(length.sum()) > end - entry):
                raise DataError(
                    f"{self.name}: documents with {int(length.min())} to {int(length.max())} entries in a batch that "
                    f"has room for {end - entry}; its table of lengths does not fit its entries, ingest it again"
                )
            bounds = entry + np.concatenate([[0], np.cumsum(length)])
            span = (int(bounds[first - stored_doc]), int(bounds[last - stored_doc]))
            words = self.word.read(span, self.word.dtype)
            counts = self.count.read(span, np.dtype(np.float64))
            parts.append(
                build_csr(length[first - stored_doc : last - stored_doc], words, counts, self.n_words, self.name)
            )
            if self.weights is not None:
                weights.append(self.weights.read((first, last), np.dtype(np.float64)))
        x = parts[0] if len(parts) == 1 else sparse.csr_array(sparse.vstack(parts, format="csr"))
        held = None
        if self.weights is not None:
            held = check_weights(np.concatenate(weights), x.shape[0], self.name)
        return Batch(x, held, self.name)


@shows_itself
@dataclass(frozen=True, eq=False)
class ZarrCountsSource:
    """Documents of a store in the layout above."""

    name: str
    location: Location
    word: ZarrArray
    count: ZarrArray
    length: ZarrArray
    weights: ZarrArray | None
    n_words: int
    n_entries: int
    batch_doc: np.ndarray
    batch_entry: np.ndarray
    spans: tuple[Span, ...]
    vocabulary_digest: str | None = None
    """Hash that identifies the vocabulary, see :class:`bnp_dask.data.text.vocabulary.Vocabulary`; None without one."""

    @property
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return self.n_words

    @property
    def n_atoms(self) -> int:
        return self.length.shape[0]

    @property
    def is_sparse(self) -> bool:
        return True

    def reader(self, index: int) -> Reader:
        first, last = self.spans[check_index(index, self.n_batches, self.name)]
        low = int(np.searchsorted(self.batch_doc, first, side="right")) - 1
        pieces = []
        for b in range(low, len(self.batch_doc) - 1):
            doc, stop = int(self.batch_doc[b]), int(self.batch_doc[b + 1])
            if doc >= last:
                break
            stored = (doc, stop, int(self.batch_entry[b]), int(self.batch_entry[b + 1]))
            pieces.append((stored, (max(doc, first), min(stop, last))))
        name = batch_name(self.name, index, (first, last))
        return ZarrCountsReader(self.word, self.count, self.length, self.weights, tuple(pieces), self.n_words, name)

    def fingerprint(self) -> Any:
        return fingerprint_of_files([self.location])

    def describe(self) -> dict[str, Any]:
        facts = {
            "kind": "zarr counts",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_words,
            "n_batches": self.n_batches,
            "n_entries": self.n_entries,
            "weights": None if self.weights is None else "weights",
        }
        # runs of earlier versions, which did not record a vocabulary, stay comparable
        return facts if self.vocabulary_digest is None else {**facts, "vocabulary": self.vocabulary_digest}


def open_zarr_counts(location: Location, group: zarr.Group, batch_size: int | None) -> ZarrCountsSource:
    """Source of a group in the layout above; batches as stored, unless ``batch_size`` gives their documents."""
    name = location.name
    facts = store_facts(group, name)
    members = set(group.array_keys())
    missing = [n for n in COUNT_ARRAYS if n not in members]
    if missing or "n_words" not in facts:
        raise DataError(f"{name}: a store of counts without {', '.join(missing) or 'n_words'}; ingest it again")
    word, count, length = (ZarrArray.open(location.child(n)) for n in COUNT_ARRAYS[:3])
    integer = np.dtype(np.int64)
    table = [ZarrArray.open(location.child(n)) for n in COUNT_ARRAYS[3:]]
    weights = ZarrArray.open(location.child("weights")) if "weights" in members else None
    whole = all(a.dtype.kind in "iu" for a in (word, length, *table))
    if not whole or any(len(a.shape) != 1 or a.shape[0] == 0 for a in (length, *table)):
        raise DataError(f"{name}: its arrays hold other things than counts of words in documents; ingest it again")
    batch_doc, batch_entry = (a.read((0, a.shape[0]), integer) for a in table)
    n = length.shape[0]
    wrong = len(batch_doc) != len(batch_entry) or batch_doc[-1] != n or word.shape[0] < batch_entry[-1]
    wrong = wrong or any(a[0] != 0 or (np.diff(a) < 0).any() for a in (batch_doc, batch_entry))
    if wrong or len(word.shape) != 1 or word.shape != count.shape or (weights is not None and weights.shape != (n,)):
        raise DataError(f"{name}: its table of batches does not fit its arrays; ingest it again")
    check_width(int(facts["n_words"]), name)
    if batch_size is None:
        cut = list(zip(batch_doc[:-1].tolist(), batch_doc[1:].tolist(), strict=True))
    else:
        size = check_batch_size(batch_size)
        cut = [(a, min(a + size, n)) for a in range(0, n, size)]
    return ZarrCountsSource(
        name,
        location,
        word,
        count,
        length,
        weights,
        int(facts["n_words"]),
        int(facts["n_entries"]),
        batch_doc,
        batch_entry,
        tuple(cut),
        facts.get("vocabulary_digest"),
    )


# -- matrices of AnnData stores ---------------------------------------------------------------------------------------
ENCODING, SHAPE = "encoding-type", "shape"
"""Attributes in which AnnData stores the kind of a group, and the shape of a sparse matrix."""


def matrix_within(location: Location, node: zarr.Array | zarr.Group) -> tuple[Location, zarr.Array | zarr.Group]:
    """The matrix ``X`` of an AnnData store, and its place; anything else unchanged."""
    import zarr

    if not isinstance(node, zarr.Group) or node.attrs.get(ENCODING) != "anndata":
        return location, node
    if "X" not in node:
        raise DataError(
            f"{location.name}: an AnnData store without a matrix X; pass the path of a layer, .../layers/NAME"
        )
    return location.child("X"), node["X"]


def is_stored_matrix(group: zarr.Group) -> bool:
    """Whether a group is a sparse matrix as AnnData writes it."""
    return str(group.attrs.get(ENCODING, "")) in ("csr_matrix", "csc_matrix")


@dataclass(frozen=True)
class ZarrMatrixReader:
    """Reader of some rows of a sparse matrix; ``indptr`` holds the start of each row, ``(n + 1,)``."""

    values: ZarrArray
    indices: ZarrArray
    indptr: np.ndarray
    n_words: int
    name: str

    def __call__(self) -> Batch:
        span = int(self.indptr[0]), int(self.indptr[-1])
        words, counts = self.indices.read(span, self.indices.dtype), self.values.read(span, np.dtype(np.float64))
        return Batch(build_csr(np.diff(self.indptr), words, counts, self.n_words, self.name), None, self.name)


@shows_itself
@dataclass(frozen=True, eq=False)
class ZarrMatrixSource:
    """A sparse matrix by rows, as AnnData writes it."""

    name: str
    location: Location
    values: ZarrArray
    indices: ZarrArray
    indptr: np.ndarray
    n_words: int
    spans: tuple[Span, ...]

    @property
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return self.n_words

    @property
    def n_atoms(self) -> int:
        return len(self.indptr) - 1

    @property
    def is_sparse(self) -> bool:
        return True

    def reader(self, index: int) -> Reader:
        first, last = self.spans[check_index(index, self.n_batches, self.name)]
        name = batch_name(self.name, index, (first, last))
        return ZarrMatrixReader(self.values, self.indices, self.indptr[first : last + 1], self.n_words, name)

    def fingerprint(self) -> Any:
        return fingerprint_of_files([self.location])

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "zarr matrix",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_words,
            "n_batches": self.n_batches,
            "n_entries": int(self.indptr[-1]),
        }


def open_zarr_matrix(location: Location, group: zarr.Group, batch_size: int | None) -> ZarrMatrixSource:
    """Source of a sparse matrix that AnnData wrote; DataError if it is stored by column, or its parts do not match."""
    name, shape = location.name, group.attrs.get(SHAPE)
    if group.attrs[ENCODING] == "csc_matrix":
        raise DataError(
            f"{name}: a sparse matrix that is stored by columns (csc_matrix), of which no rows can be read alone; read "
            "it whole, as_source(anndata.read_zarr(path)), or store it by rows: adata.X = adata.X.tocsr(), "
            "adata.write_zarr(path)"
        )
    parts = [n for n in ("data", "indices", "indptr") if n not in set(group.array_keys())]
    if parts or not isinstance(shape, list) or len(shape) != 2:
        raise DataError(f"{name}: a sparse matrix without {', '.join(parts) or 'its shape'}; write it again")
    values, indices, pointers = (ZarrArray.open(location.child(n)) for n in ("data", "indices", "indptr"))
    if any(len(a.shape) != 1 for a in (values, indices, pointers)) or {indices.dtype.kind, pointers.dtype.kind} - set(
        "iu"
    ):
        raise DataError(f"{name}: its arrays do not make a sparse matrix; write it again")
    check_dtype(values.dtype, name)
    n, width = check_matrix(shape, name)
    indptr = pointers.read((0, pointers.shape[0]), np.dtype(np.int64))
    wrong = len(indptr) != n + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any()
    if wrong or indptr[-1] > min(values.shape[0], indices.shape[0]):
        raise DataError(
            f"{name}: indptr does not fit the {n} rows and {values.shape[0]} values of the matrix; write it again"
        )
    return ZarrMatrixSource(
        name, location, values, indices, indptr, width, tuple(sparse_spans(indptr, width, batch_size))
    )


def read_vocabulary(path: str, storage_options: Mapping[str, Any] | None = None) -> list[str] | None:
    """The words stored beside counts, in column order; None if there are none."""
    location = Location.of(path, storage_options).child("vocabulary")
    if not location.exists():
        return None
    array = ZarrArray.open(location)
    try:
        return array.read((0, array.shape[0]), np.dtype(np.uint8)).tobytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{location.name}: damaged ({error}); ingest again") from error
