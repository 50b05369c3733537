"""Dask collections: batches are blocks of an array or partitions of a DataFrame.

The pickled graph of each is computed inside the task that uses the batch.  Nothing else under ``data`` but
``output_lazy.py`` imports dask.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core import NO_ROLES, WHOLE, Batch, Columns, Cutting, Roles
from bnp_dask.data.base import (
    BATCH_BYTES,
    Span,
    Stored,
    batch_name,
    check_batch_size,
    check_dtype,
    check_index,
    float_rows,
    naming_batch,
)
from bnp_dask.data.groups import BatchNames, Runs, blocks_of, require_once
from bnp_dask.data.sources.columns import (
    PLAIN_READING,
    Reading,
    TableColumn,
    as_arrow,
    choose,
    declared,
    distinct,
    frame_columns,
    in_values,
    pending,
    union,
    with_found,
)
from bnp_dask.data.sources.frames import frame_batch
from bnp_dask.errors import DataError
from bnp_dask.execute import in_order, open_executor
from bnp_dask.inputs import Level, Levels, as_counts, plain, require_sound

if TYPE_CHECKING:
    import dask.array as da


# -- graphs that travel to a worker and are computed there ---------------------------------------------------------
def is_dask(data: Any) -> bool:
    """Whether data are a dask collection."""
    if not hasattr(data, "__dask_graph__"):  # so that arrays load no Dask
        return False
    import dask

    return bool(dask.is_dask_collection(data))


def is_dask_array(data: Any) -> bool:
    """Whether data are a dask array."""
    return is_dask(data) and type(data).__module__.split(".")[:2] == ["dask", "array"]


def small_graph(collection: Any, name: str) -> tuple[Mapping[Hashable, Any], Hashable]:
    """The tasks that one block needs, and the key of that block.

    Raises DataError if they need a value on a cluster: they then hold a future, or name a task that is not in the
    graph.
    """
    import dask
    import dask.array as da
    from dask._task_spec import convert_legacy_graph

    if isinstance(collection, da.Array):
        (best,) = dask.optimize(collection)
    else:
        # dask.optimize gives frames a graph in which every partition is the first (dask 2026.8)
        best = collection.optimize()
    key = best.__dask_keys__()
    while isinstance(key, list):
        key = key[0]
    graph = dict(best.__dask_graph__())
    tasks = convert_legacy_graph({k: task for k, task in graph.items() if not _is_future(task)})
    needed: dict[Hashable, Any] = {}
    todo = [key]
    while todo:
        wanted = todo.pop()
        if wanted in needed:
            continue
        if wanted not in tasks:
            raise DataError(
                f"{name} was persisted on a cluster: its values are futures, which tasks cannot open. Train on the "
                "collection as it was before persist(), on its compute() if memory holds it, or write it with "
                "x.to_zarr(path) or df.to_parquet(path) and pass that path"
            )
        needed[wanted] = tasks[wanted]
        todo.extend(tasks[wanted].dependencies)
    return needed, key


def _is_future(task: Any) -> bool:
    # known by name: importing distributed is slow and not needed otherwise
    return type(task).__name__ == "Future" and type(task).__module__.startswith("distributed.")


def compute_graph(payload: bytes) -> Any:
    """Run a graph in this thread; it was packed by this process's client, never read from a disk."""
    from dask.local import get_sync

    graph, key = pickle.loads(payload)
    return get_sync(graph, key)


def is_dask_frame(data: Any) -> bool:
    """Whether data are a dask DataFrame."""
    return is_dask(data) and "dataframe" in type(data).__module__.lower() and type(data).__name__ == "DataFrame"


# -- arrays --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BlockReader:
    """Reader that computes one block of a dask array.

    ``payload`` is the pickled graph: as bytes, so that no scheduler treats it as a collection.
    """

    payload: bytes
    n_features: int
    is_sparse: bool
    name: str

    def __call__(self) -> Batch:
        with naming_batch(self.name):
            block = compute_graph(self.payload)
            if np.ndim(block) != 2 or block.shape[1] != self.n_features or sparse.issparse(block) != self.is_sparse:
                raise DataError(f"{self.name}: computed {_shown(block)}; needs {self.n_features} columns")
            return Batch(block_rows(block, self.name), None, self.name)


def block_rows(block: Any, name: str) -> np.ndarray | sparse.csr_array:
    """A computed block as float64 rows, dense or sparse."""
    return as_counts(block, name) if sparse.issparse(block) else float_rows(plain(block, name), name)


def as_declared(x: da.Array) -> da.Array:
    """Array that raises an error if a chunk differs from its declaration.

    Dask itself trusts the declaration: a chunk of fewer rows makes a smaller result, and rows beyond the declared ones
    are lost when a chunk is cut.
    """
    import dask.array as da

    return da.map_blocks(_checked_chunk, x, declared=np.dtype(x.dtype), dtype=x.dtype, meta=x._meta)


def _checked_chunk(chunk: Any, declared: np.dtype, block_info: Any = None) -> Any:
    """A chunk; DataError if its shape, dtype or kind differs from the declaration of the array."""
    said = block_info[None]
    sizes, place = said["chunk-shape"], said["chunk-location"]
    found = np.shape(chunk)
    if len(found) != len(sizes) or any(not np.isnan(a) and a != b for a, b in zip(sizes, found, strict=True)):
        raise DataError(
            f"chunk {place} of the dask array has shape {found}, but the array says {tuple(sizes)}; give map_blocks or "
            "from_delayed the true chunks or shape, or unknown ones (nan), or call x.compute_chunk_sizes()"
        )
    if not np.can_cast(chunk.dtype, declared, "safe"):
        raise DataError(
            f"chunk {place} of the dask array has dtype {chunk.dtype}, but the array says {declared}; give map_blocks "
            "or from_delayed the true dtype, or end with .astype(float)"
        )
    if sparse.issparse(chunk):  # Dask cuts and joins them before a batch is made
        require_sound(chunk, f"chunk {place} of the dask array")
    return chunk


def _shown(block: Any) -> str:
    kind = "sparse counts" if sparse.issparse(block) else "rows"
    return f"{kind} of shape {np.shape(block)}"


@dataclass(frozen=True, eq=False, repr=False)
class DaskArraySource(Stored):
    """A dask array ``(n, D)`` chunked along rows; lengths of chunks need not be known."""

    name: str
    x: da.Array
    spans: tuple[Span, ...] | None

    @staticmethod
    def of(x: da.Array, batch_size: int | None = None) -> DaskArraySource:
        """Check the array; small chunks are joined, and ``batch_size`` cuts rows anew."""
        name = "dask array"
        if x.ndim == 3:
            raise DataError(
                f"{name} has shape {x.shape}; needs two axes: x.reshape((-1, {x.shape[2]})) are rows, and with "
                f"groups=np.arange({x.shape[0]} + 1) * {x.shape[1]} sequences; x.compute() if memory holds it"
            )
        if x.ndim != 2:
            raise DataError(f"{name} has shape {x.shape}; needs two axes: x.reshape((len(x), -1))")
        check_dtype(x.dtype, name)
        if np.isnan(x.shape[1]):
            raise DataError(f"{name} has an unknown number of columns (shape {x.shape}); call x.compute_chunk_sizes()")
        if len(x.chunks[1]) > 1:
            raise DataError(
                f"{name} is chunked along columns ({len(x.chunks[1])} chunks of a row); an atom must lie in one chunk: "
                "x.rechunk((rows, -1)), for example x.rechunk((10_000, -1))"
            )
        rows = x.chunks[0]
        x = as_declared(x)
        if np.isnan(rows).any():
            if batch_size is not None:
                raise DataError(
                    f"{name} has chunks of unknown length, so batch_size cannot cut it; call x.compute_chunk_sizes(), "
                    "or leave batch_size out: each chunk is a batch"
                )
            return DaskArraySource(name, x, None)
        if not sum(rows) or not x.shape[1]:
            raise DataError(f"{name} has no {'columns' if sum(rows) else 'rows'} (shape {x.shape})")
        is_sparse = sparse.issparse(x._meta)
        if batch_size is not None:
            x = x.rechunk((check_batch_size(batch_size), -1))
        elif not is_sparse:
            x = x.rechunk((_grouped(rows, max(1, BATCH_BYTES // (8 * x.shape[1]))), -1))
        ends = np.cumsum(x.chunks[0]).tolist()
        return DaskArraySource(name, x, tuple(zip([0, *ends[:-1]], ends, strict=True)))

    def cut(self, spans: Sequence[Span]) -> DaskArraySource:
        """Source of these rows in the batches ``spans``."""
        sizes = tuple(stop - start for start, stop in spans)
        return replace(self, x=self.x.rechunk((sizes, -1)), spans=tuple(spans))

    @property
    def is_sparse(self) -> bool:
        return sparse.issparse(self.x._meta)

    @property
    def n_batches(self) -> int:
        return int(self.x.numblocks[0])

    @property
    def kind(self) -> str:
        return "dask array"

    @property
    def n_features(self) -> int:
        return int(self.x.shape[1])

    def block(self, index: int, name: str) -> BlockReader:
        payload = cloudpickle.dumps(small_graph(self.x.blocks[index], name))
        return BlockReader(payload, self.n_features, self.is_sparse, name)

    def facts(self) -> dict[str, Any]:
        return {"dtype": str(self.x.dtype)}


def _grouped(rows: Sequence[int], most: int) -> tuple[int, ...]:
    """Rows of neighbouring chunks joined up to ``most`` rows; no chunk is cut."""
    out: list[int] = []
    for size in rows:
        if out and out[-1] + size <= most:
            out[-1] += int(size)
        else:
            out.append(int(size))
    return tuple(out)


# -- DataFrames ----------------------------------------------------------------------------------------------------
WINDOW = 16
"""Partitions in flight while their values are inspected."""


@dataclass(frozen=True)
class PartitionReader:
    """Reader that computes one partition of a dask DataFrame.

    ``labels`` are the labels of its columns in the frame, ``keys`` the labels of groups and order.
    """

    payload: bytes
    columns: Columns
    labels: Mapping[str, Any]
    name: str
    keys: tuple[Any, ...] = ()
    cutting: Cutting = WHOLE

    def __call__(self) -> Batch:
        frame = compute_graph(self.payload)
        batch = frame_batch(frame, self.columns, self.labels, self.name)
        if not self.keys:
            return batch
        runs = _runs(frame, self.keys, self.name, self.cutting)
        return replace(batch, groups=blocks_of(runs.offsets(), runs.breaks(), self.cutting.cut)[0])


@dataclass(frozen=True)
class PartitionNames:
    """Names of the groups of one partition, as :class:`~bnp_dask.data.groups.BatchNames`."""

    payload: bytes
    name: str
    keys: tuple[Any, ...]
    cutting: Cutting

    def __call__(self) -> tuple[pa.Array, np.ndarray]:
        runs = _runs(compute_graph(self.payload), self.keys, self.name, self.cutting)
        offsets, blocks = blocks_of(runs.offsets(), runs.breaks(), self.cutting.cut)
        return BatchNames(runs.ids(), blocks, (0, len(offsets) - 1))()


def _runs(frame: Any, keys: Sequence[Any], name: str, cutting: Cutting) -> Runs:
    """Groups of the rows of one partition."""
    runs = Runs(name, str(keys[0]), str(keys[1]) if len(keys) > 1 else None, cutting)
    runs.add(*[as_arrow(frame[key]) for key in keys])
    return runs


@dataclass(frozen=True, eq=False, repr=False)
class DaskFrameSource(Stored):
    """A dask DataFrame; each partition is a batch, whose length need not be known."""

    name: str
    frame: Any
    columns: Columns
    labels: Mapping[str, Any]
    """Label of each column in the frame."""

    spans = None
    """Unknown, because the length of a partition is known only after computing it."""

    @staticmethod
    def of(
        frame: Any,
        batch_size: int | None = None,
        columns: Sequence[str] | Columns | None = None,
        roles: Roles = NO_ROLES,
        reading: Reading = PLAIN_READING,
    ) -> DaskFrameSource:
        """Check the columns; compute columns of groups once, to verify that no partition cuts a group, and columns of
        levels, to find them.  The first partition is computed if types do not determine the content of a column."""
        name = "dask DataFrame"
        if batch_size is not None:
            raise DataError(f"{name}: its partitions are the batches; call df.repartition(...) instead of batch_size")
        look = partial(_columns_looked_at, frame=frame, name=name)
        chosen, labels = choose(frame_columns(frame._meta, name), columns, roles, name, reading, look)
        keys = tuple(labels[key] for key in roles.keys)
        if keys:
            _require_whole_groups(frame[list(keys)], keys, name, roles.cutting)
        found = _levels_in(frame, {column: labels[column] for column in pending(chosen)}, name)
        return DaskFrameSource(name, frame[list(labels.values())], with_found(chosen, found), labels)

    @property
    def keys(self) -> tuple[Any, ...]:
        """Labels of the columns of groups and of their order."""
        return tuple(self.labels[key] for key in self.columns.roles.keys)

    @property
    def n_batches(self) -> int:
        return int(self.frame.npartitions)

    @property
    def kind(self) -> str:
        return "dask dataframe"

    @property
    def n_features(self) -> int:
        return self.columns.n_features

    def block(self, index: int, name: str) -> PartitionReader:
        payload = cloudpickle.dumps(small_graph(self.frame.partitions[index], name))
        return PartitionReader(payload, self.columns, self.labels, name, self.keys, self.columns.roles.cutting)

    def batch_names(self, index: int) -> PartitionNames:
        """Names of the groups of a batch; computes their columns again."""
        name = batch_name(self.name, check_index(index, self.n_batches, self.name), None)
        payload = cloudpickle.dumps(small_graph(self.frame[list(self.keys)].partitions[index], name))
        return PartitionNames(payload, name, self.keys, self.columns.roles.cutting)

    def facts(self) -> dict[str, Any]:
        roles = self.columns.roles
        return {
            "columns": list(self.columns.names),
            "weights": roles.weights,
            **({"groups": list(roles.keys)} if roles.keys else {}),
            **({"cutting": asdict(roles.cutting)} if roles.cutting != WHOLE else {}),
        }


def _require_whole_groups(frame: Any, keys: tuple[Any, ...], name: str, cutting: Cutting) -> None:
    """DataError if rows of one group lie in two places, such as in two partitions."""
    ids = _of_partitions(frame, name, "ids", _ids, keys, cutting)
    try:
        require_once(ids, name, str(keys[0]))
    except DataError as error:
        raise DataError(f"{error}. Partitions must end where groups end: df.set_index({keys[0]!r})") from None


def _columns_looked_at(columns: Sequence[TableColumn], frame: Any, name: str) -> list[TableColumn]:
    """Columns completed with facts from the first partition."""
    if not columns:
        return []
    labels = [column.label for column in columns]
    (found,) = _of_partitions(frame[labels], name, "columns", _look, tuple(columns), first=1)
    return list(found)


def _look(payload: bytes, name: str, columns: Sequence[TableColumn]) -> list[TableColumn]:
    """Task: columns completed with facts from their values in one partition."""
    frame = compute_graph(payload)
    return in_values(lambda label: frame[label], name, is_all=False)(columns)


def _of_partitions(
    frame: Any, name: str, what: str, function: Callable[..., Any], *facts: Any, first: int | None = None
) -> list[Any]:
    """``function(graph, name of the batch, *facts)`` of each partition, or of the ``first`` ones, on the current
    client's cluster or here."""
    names = [f"{name} batch {b}" for b in range(frame.npartitions)][:first]
    graphs = (cloudpickle.dumps(small_graph(frame.partitions[b], where)) for b, where in enumerate(names))
    tasks = ((f"{what}-batch{b}", function, (graph, names[b], *facts)) for b, graph in enumerate(graphs))
    with open_executor(None) as executor:
        return list(in_order(executor, tasks, WINDOW))


def _levels_in(frame: Any, labels: Mapping[str, Any], name: str) -> dict[str, Levels]:
    """Levels of some columns: as declared, else from the values in partitions."""
    known = {column: declared(frame._meta[label]) for column, label in labels.items()}
    left = {column: label for column, label in labels.items() if not known[column]}
    parts = _of_partitions(frame[[*left.values()]], name, "levels", _distinct, left) if left else []
    return {column: levels for column, levels in known.items() if levels} | union(parts, [*left], name)


def _distinct(payload: bytes, name: str, labels: Mapping[str, Any]) -> list[set[Level]]:
    """Task: the values of columns of one partition."""
    frame = compute_graph(payload)
    return [distinct(frame[label], name, column) for column, label in labels.items()]


def _ids(payload: bytes, name: str, keys: tuple[Any, ...], cutting: Cutting) -> Any:
    """Task: the id of each run of rows of one partition."""
    return _runs(compute_graph(payload), keys, name, cutting).ids()


def refuse_promises(data: Any) -> None:
    """DataError for what Dask or polars computes later and what has no rows yet, alone or in a list, with the call that
    gives some; collections with rows, and all else, pass."""
    part = data[0] if isinstance(data, (list, tuple)) and len(data) else data
    kind = type(part).__name__
    if kind == "LazyFrame" and part is data:
        raise DataError("data is a LazyFrame, which has no rows yet; data.collect() has them; files are read by path")
    if not (is_dask(part) or (kind == "Future" and hasattr(part, "client"))):
        return
    if part is not data:
        n, found = len(data), f"data is a list of {len(data)} dask {kind} objects; sequences are"
        if kind == "Future":
            raise DataError(f"{found} client.gather(data), rows np.concatenate(client.gather(data))")
        rows = "x" if is_dask_array(part) else "dask.array.from_delayed(x, (nan, n_columns), float)"
        if not (is_dask_array(part) or kind.startswith("Delayed")):
            raise DataError(f"data is a list of {n} dask {kind} objects; needs arrays or tables: dask.compute(*data)")
        raise DataError(f"{found} dask.compute(*data), rows dask.array.concatenate([{rows} for x in data])")
    if kind == "Future":
        raise DataError("data is a Future of Dask; needs its value: data.result()")
    if kind.startswith("Delayed"):
        raise DataError(
            "data is a Delayed of Dask, whose shape nobody knows: data.compute(), or "
            "dask.array.from_delayed(data, (n_rows, n_columns), float)"
        )
    if kind == "Bag":
        raise DataError(
            "data is a Bag of Dask: records are data.to_dataframe(), texts data.compute(); texts that memory does not "
            "hold are ingested from files, or from a function that makes an iterator: bnp_dask.ingest"
        )


def open_collection(
    data: Any,
    batch_size: int | None,
    columns: Sequence[str] | Columns | None,
    roles: Roles,
    reading: Reading = PLAIN_READING,
) -> DaskArraySource | DaskFrameSource:
    """A dask array or DataFrame as a source; DataError for other collections."""
    if is_dask_frame(data):
        return DaskFrameSource.of(data, batch_size, columns, roles, reading)
    import dask.array as da

    if isinstance(data, da.Array):
        if isinstance(columns, Sequence) or roles.weights is not None:
            raise DataError(
                "dask array: has no named columns; choose columns as x[:, [0, 2]], give weights as an array"
            )
        return DaskArraySource.of(data, batch_size)
    advice = ": data.to_frame()" if callable(getattr(data, "to_frame", None)) else ""
    raise DataError(f"{type(data).__name__} is a dask collection without rows; needs a dask Array or DataFrame{advice}")
