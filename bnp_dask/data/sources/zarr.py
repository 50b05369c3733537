"""Zarr: dense rows, sparse counts, and sparse matrices of AnnData, in folders, on object stores and in open stores.

Rows are any two-dimensional array, or a store that ``ingest`` wrote (a group with array ``x``).  Counts are CSR arrays
cut at batches, in a group with attributes and these arrays:

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

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Columns, Location, check_weights
from bnp_dask.data.base import (
    BATCH_BYTES,
    PIECE_BYTES,
    Span,
    Stored,
    build_csr,
    check_batch_size,
    check_dtype,
    check_matrix,
    check_width,
    fingerprint_of_files,
    spans,
    sparse_spans,
)
from bnp_dask.errors import DataError
from bnp_dask.execute import may_pass
from bnp_dask.inputs import is_exact, require_exact

if TYPE_CHECKING:
    import zarr
    from zarr.abc.store import Store
    from zarr.storage import StorePath


# -- open stores ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class InStore:
    """A place in an open Zarr store, with the methods of :class:`Location` that readers of Zarr use.

    It can be sent to workers if its store can; a store in memory cannot.

    Parameters
    ----------
    store
        Any store of zarr.
    path
        Path of a group or array in it.
    """

    store: Store
    path: str = ""
    is_local = False

    @property
    def name(self) -> str:
        """The kind of the store, and the path in it."""
        return f"{type(self.store).__name__}{f' /{self.path}' if self.path else ''}"

    @property
    def basename(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    def child(self, *parts: str) -> InStore:
        """A place below this one."""
        return InStore(self.store, "/".join([*([self.path] if self.path else []), *parts]))

    def exists(self) -> bool:
        """Whether the store has exactly this key."""
        return bool(self._told(self.store.exists(self.path)))

    def size_if_any(self) -> int | None:
        """Bytes under this key, or None if it does not exist."""
        # some stores report zero bytes for a missing key
        return int(self._told(self.store.getsize(self.path))) if self.exists() else None

    def zarr_path(self) -> StorePath:
        """The place as a ``StorePath`` of zarr."""
        from zarr.storage import StorePath

        return StorePath(self.store, self.path)

    def _told(self, answer: Any) -> Any:
        from zarr.core.sync import sync

        try:
            return sync(answer)
        except Exception as error:  # every store has its own errors
            raise DataError(f"{self.name}: cannot be read ({type(error).__name__}: {error})") from error

    def __reduce__(self) -> Any:
        from zarr.storage import MemoryStore

        if isinstance(self.store, MemoryStore):
            self._stays()
        return InStore, (self.store, self.path)

    def _stays(self) -> NoReturn:
        raise DataError(
            f"{self.name} lies in the memory of this process, where workers cannot read it; pass an array, or write "
            "it to a folder or an object store that they reach"
        )


Place = Location | InStore
"""Place of a Zarr array or group."""


def place_of_node(data: Any) -> Any:
    """Place of an open Zarr array, group or store: the path of a local folder, else the place in the store.

    Anything else is returned unchanged.
    """
    if "zarr" not in sys.modules:
        return data
    import zarr
    from zarr.abc.store import Store
    from zarr.storage import LocalStore, StorePath

    if isinstance(data, zarr.Array | zarr.Group | StorePath):
        store, path = data.store, data.path
    elif isinstance(data, Store):
        store, path = data, ""
    else:
        return data
    return str(store.root / path) if isinstance(store, LocalStore) else InStore(store, path)


# -- small pieces --------------------------------------------------------------------------------------------------
class _Here(ThreadPoolExecutor):
    """Thread pool without threads: runs each function in the thread that submits it.

    It is a subclass of a thread pool, because an event loop accepts nothing else.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Suppress reports of asyncio: errors are raised anyway, and a Ctrl-C would report each unfinished part."""


def can_read_here() -> bool:
    """Whether this thread may run an event loop: the thread of a notebook already runs one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def read_here(array: zarr.AsyncArray[Any], start: int, stop: int) -> np.ndarray:
    """Rows ``start`` to ``stop`` of an array in a local store, in its own dtype."""
    with closing(asyncio.new_event_loop()) as loop:
        loop.set_default_executor(_Here(1))
        loop.set_exception_handler(_quiet)
        return np.asarray(loop.run_until_complete(array.getitem(slice(start, stop))))


# -- rows ----------------------------------------------------------------------------------------------------------
ATTRIBUTE = "bnp_dask"
"""Attribute of a group that ``ingest`` wrote: format version, kind and sizes."""

FORMAT_VERSION = 1


def open_zarr(location: Place) -> zarr.Array | zarr.Group:
    """The array or group at a location; DataError if there is neither."""
    import zarr

    try:
        return zarr.open(location.zarr_path(), mode="r")
    except Exception as error:  # damaged metadata make zarr raise nearly any error
        raise DataError(
            f"{location.name}: no Zarr array or group, or one whose writing was cut short ({error})"
        ) from error


@dataclass(frozen=True)
class ZarrArray:
    """One array of a store, in which a missing or damaged chunk is an error and never a row of zeros.

    Parameters
    ----------
    location
        Folder of the array.
    shape, dtype
        Shape and dtype as stored.
    grid
        Shape of a file of the store: of a shard, if there are any, or of a chunk.
    metadata
        Metadata of the array from zarr; they travel with readers, so that they are not read again for every batch.
    """

    location: Place
    shape: tuple[int, ...]
    dtype: np.dtype
    grid: tuple[int, ...]
    metadata: Any

    @staticmethod
    def open(location: Place) -> ZarrArray:
        """Read the metadata of an array."""
        import zarr

        node = open_zarr(location)
        if not isinstance(node, zarr.Array):
            raise DataError(f"{location.name} is a Zarr group; needs an array")
        return ZarrArray.of(location, node)

    @staticmethod
    def of(location: Place, array: zarr.Array) -> ZarrArray:
        """Take over the metadata of an open array; DataError if its chunks are pickles, which would run code."""
        if array.metadata.zarr_format == 2:
            codecs = [*(array.metadata.filters or ()), array.metadata.compressor]
            if any(getattr(codec, "codec_id", None) == "pickle" for codec in codecs):
                raise DataError(f"{location.name} holds pickles, which would run code; write it again as numbers")
        return ZarrArray(
            location, tuple(array.shape), np.dtype(array.dtype), array.shards or array.chunks, array.metadata
        )

    @property
    def chunk_rows(self) -> int:
        """Rows of a file of the store."""
        return int(self.grid[0]) if self.grid else 1

    def read(self, span: Span, dtype: np.dtype) -> np.ndarray:
        """Rows ``span`` as C-contiguous ``dtype``, ``(n, ...)``.

        DataError names a missing or damaged chunk, and whole numbers that the dtype would round.
        """
        if not 0 <= span[0] <= span[1] <= self.shape[0]:
            raise DataError(f"{self.location.name}: rows {span[0]}-{span[1] - 1} of {self.shape[0]}; write it again")
        import zarr

        out = np.empty((span[1] - span[0], *self.shape[1:]), dtype)
        array = zarr.AsyncArray(self.metadata, self.location.zarr_path())
        row_bytes = max(1, int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize)
        rows = self.chunk_rows * max(1, PIECE_BYTES // (self.chunk_rows * row_bytes))
        # pieces end where chunks end, so that no chunk is decoded twice
        edges = [span[0], *range((span[0] // rows + 1) * rows, span[1], rows), span[1]]
        for start, stop in itertools.pairwise(edges):
            if start == stop:
                continue
            piece = out[start - span[0] : stop - span[0]]
            if is_exact(self.dtype, out.dtype):
                self._piece(array, start, stop, piece)
                continue
            whole = np.empty(piece.shape, self.dtype)
            self._piece(array, start, stop, whole)
            require_exact(whole, self.location.name, row=start)
            piece[...] = whole
        return out

    def fingerprint(self) -> Any:
        """Sizes and times of its files; None for an array in an open store, which does not report them."""
        return fingerprint_of_files([self.location]) if isinstance(self.location, Location) else None

    def _piece(self, array: zarr.AsyncArray[Any], start: int, stop: int, out: np.ndarray) -> None:
        import zarr
        from zarr.core.buffer.cpu import NDBuffer

        keys = self._chunk_keys(start, stop)
        for key in keys:
            size = self.location.child(key).size_if_any()
            if size == 0:
                # zarr reads an empty shard as one without chunks, and returns fill values
                raise DataError(
                    f"{self.location.name}: chunk {key} (rows {start}-{stop - 1}) is truncated or damaged (0 bytes); "
                    "write it again"
                )
            if size is None:
                raise DataError(
                    f"{self.location.name}: chunk {key} (rows {start}-{stop - 1}) is missing. If it was left out on "
                    f"purpose because all its values are {self.metadata.fill_value}, read it with "
                    "dask.array.from_zarr, or write it with zarr's write_empty_chunks"
                )
        try:
            if self.location.is_local and out.nbytes <= PIECE_BYTES and can_read_here():
                out[...] = read_here(array, start, stop)
            elif out.dtype == self.dtype and out.size:  # decoded in place, without a second array
                zarr.Array(array).get_basic_selection(slice(start, stop), out=NDBuffer.from_numpy_array(out))
            else:
                out[...] = zarr.Array(array)[start:stop]
        except Exception as error:  # every codec has its own errors
            if len(keys) > 1:
                for row in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
                    first, last = max(start, row * self.chunk_rows), min(stop, (row + 1) * self.chunk_rows)
                    if last - first < stop - start:
                        self._piece(array, first, last, out[first - start : last - start])
            what = "cannot be read just now" if may_pass(error) else "is truncated or damaged; write it again"
            raise DataError(
                f"{self.location.name}: chunk {' or '.join(keys)} (rows {start}-{stop - 1}) {what} "
                f"({type(error).__name__}: {error})"
            ) from error

    def _chunk_keys(self, start: int, stop: int) -> list[str]:
        rows = range(start // self.grid[0], -(-stop // self.grid[0]))
        rest = [range(-(-size // chunk)) for size, chunk in zip(self.shape[1:], self.grid[1:], strict=True)]
        return [self.metadata.encode_chunk_key(place) for place in itertools.product(rows, *rest)]


@dataclass(frozen=True)
class ZarrRowsReader:
    """Reads some rows of a Zarr array, and their weights."""

    x: ZarrArray
    weights: ZarrArray | None
    span: Span
    name: str
    names: tuple[str, ...] | None = None

    def load(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows in the wanted dtype, and weights."""
        weights = None
        if self.weights is not None:
            weights = self.weights.read(self.span, np.dtype(np.float64))
            weights = check_weights(weights, self.span[1] - self.span[0], self.name)
        return self.x.read(self.span, dtype), weights

    def __call__(self) -> Batch:
        x, weights = self.load(np.dtype(np.float64))
        return Batch(x, weights, self.name, names=self.names)


@dataclass(frozen=True, repr=False)
class ZarrRowsSource(Stored):
    """Rows of a Zarr array ``(n, D)``, with optional weights ``(n,)``, and names if ``ingest`` stored them."""

    name: str
    x: ZarrArray
    weights: ZarrArray | None
    spans: tuple[Span, ...]
    columns: Columns | None = None

    @staticmethod
    def of_array(
        location: Place,
        x: ZarrArray,
        weights: ZarrArray | None = None,
        batch_size: int | None = None,
        usual: int | None = None,
    ) -> ZarrRowsSource:
        """Check the array and cut it: ``batch_size`` rows, else ``usual``, else whole chunks up to 32 MB."""
        name = location.name
        check_dtype(x.dtype, name)
        n, d = check_matrix(x.shape, name)
        if weights is not None and weights.shape != (n,):
            raise DataError(f"{name}: array weights has shape {weights.shape}; needs one per row of x, ({n},)")
        if batch_size is not None:
            size = check_batch_size(batch_size)
        elif usual is not None:
            size = usual
        else:
            size = x.chunk_rows * max(1, BATCH_BYTES // (8 * d * x.chunk_rows))
        return ZarrRowsSource(name, x, weights, tuple(spans(n, size)))

    @property
    def kind(self) -> str:
        return "zarr"

    @property
    def n_features(self) -> int:
        return self.x.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Dtype in the store."""
        return self.x.dtype

    def block(self, index: int, name: str) -> ZarrRowsReader:
        names = None if self.columns is None else self.columns.features
        return ZarrRowsReader(self.x, self.weights, self.spans[index], name, names)

    def fingerprint(self) -> Any:
        places = [array.location for array in (self.x, self.weights) if array is not None]
        files = [place for place in places if isinstance(place, Location)]
        # an open store does not report times of writing
        return fingerprint_of_files(files) if len(files) == len(places) else None

    def facts(self) -> dict[str, Any]:
        return {
            "dtype": str(self.x.dtype),
            "weights": None if self.weights is None else self.weights.location.basename,
            **({} if self.columns is None else {"columns": list(self.columns.names)}),
        }


def store_facts(group: zarr.Group, name: str) -> Mapping[str, Any]:
    """Facts that ``ingest`` recorded in a store; empty for stores of other origin."""
    facts = group.attrs.get(ATTRIBUTE, {})
    if not isinstance(facts, Mapping) or facts.get("format", FORMAT_VERSION) != FORMAT_VERSION:
        raise DataError(
            f"{name}: attribute {ATTRIBUTE!r} is {facts!r}; this version reads format {FORMAT_VERSION}. "
            "Ingest the data again, or install the version that wrote them"
        )
    return facts


def _such_as(location: Place, group: zarr.Group) -> str:
    """An array of rows in a group, for a message; empty if there is none."""
    found = [name for name, array in sorted(group.arrays()) if array.ndim == 2]
    return f", such as {location.child(found[0]).name}" if found else "; it has none with rows and columns"


def open_zarr_rows(location: Place, group: zarr.Group, batch_size: int | None) -> ZarrRowsSource:
    """Source of a group that holds rows as array ``x``, and optionally ``weights``."""
    members = sorted(group.array_keys())
    if "x" not in members and {"data", "indices", "indptr"} <= set(members):
        raise DataError(
            f"{location.name}: a Zarr group with the parts of a sparse matrix (data, indices, indptr) of which it does "
            "not say the format and shape; pass the matrix itself, such as scipy.sparse.csr_matrix((data, indices, "
            "indptr), shape=(rows, columns)), or the path of an AnnData store"
        )
    if "x" not in members:
        others = ", ".join(members[:10]) or "no arrays"
        raise DataError(
            f"{location.name}: a Zarr group without array 'x' (it has {others}); "
            f"pass the path of the array itself{_such_as(location, group)}"
        )
    x = ZarrArray.open(location.child("x"))
    weights = ZarrArray.open(location.child("weights")) if "weights" in members else None
    facts = store_facts(group, location.name)
    n, d = facts.get("n_atoms"), facts.get("n_features")
    if facts and x.shape != (n, d):
        raise DataError(f"{location.name}: array x has shape {x.shape}, but the store was written with ({n}, {d})")
    usual = int(facts["batch_rows"]) if facts else None
    source = ZarrRowsSource.of_array(location, x, weights, batch_size, usual)
    if "columns" not in facts:
        return source
    columns = Columns.from_json(facts["columns"])
    if columns.n_features != d:
        raise DataError(
            f"{location.name}: names of {columns.n_features} features, but array x has {d}; ingest it again"
        )
    return replace(source, columns=columns)


# -- counts --------------------------------------------------------------------------------------------------------
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


@dataclass(frozen=True, eq=False, repr=False)
class ZarrCountsSource(Stored):
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
    def kind(self) -> str:
        return "zarr counts"

    @property
    def n_features(self) -> int:
        return self.n_words

    @property
    def is_sparse(self) -> bool:
        return True

    def block(self, index: int, name: str) -> ZarrCountsReader:
        first, last = self.spans[index]
        low = int(np.searchsorted(self.batch_doc, first, side="right")) - 1
        pieces = []
        for b in range(low, len(self.batch_doc) - 1):
            doc, stop = int(self.batch_doc[b]), int(self.batch_doc[b + 1])
            if doc >= last:
                break
            stored = (doc, stop, int(self.batch_entry[b]), int(self.batch_entry[b + 1]))
            pieces.append((stored, (max(doc, first), min(stop, last))))
        return ZarrCountsReader(self.word, self.count, self.length, self.weights, tuple(pieces), self.n_words, name)

    def fingerprint(self) -> Any:
        return fingerprint_of_files([self.location])

    def facts(self) -> dict[str, Any]:
        return {
            "n_entries": self.n_entries,
            "weights": None if self.weights is None else "weights",
            **({} if self.vocabulary_digest is None else {"vocabulary": self.vocabulary_digest}),
        }


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


@dataclass(frozen=True, eq=False, repr=False)
class ZarrMatrixSource(Stored):
    """A sparse matrix by rows, as AnnData writes it."""

    name: str
    location: Location
    values: ZarrArray
    indices: ZarrArray
    indptr: np.ndarray
    n_words: int
    spans: tuple[Span, ...]

    @property
    def kind(self) -> str:
        return "zarr matrix"

    @property
    def n_features(self) -> int:
        return self.n_words

    @property
    def is_sparse(self) -> bool:
        return True

    def block(self, index: int, name: str) -> ZarrMatrixReader:
        first, last = self.spans[index]
        return ZarrMatrixReader(self.values, self.indices, self.indptr[first : last + 1], self.n_words, name)

    def fingerprint(self) -> Any:
        return fingerprint_of_files([self.location])

    def facts(self) -> dict[str, Any]:
        return {"n_entries": int(self.indptr[-1])}


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


def read_vocabulary(path: str) -> list[str] | None:
    """The words stored beside counts, in column order; None if there are none."""
    location = Location.of(path).child("vocabulary")
    if not location.exists():
        return None
    array = ZarrArray.open(location)
    try:
        return array.read((0, array.shape[0]), np.dtype(np.uint8)).tobytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{location.name}: damaged ({error}); ingest again") from error
