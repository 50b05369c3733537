"""Parts of Dask collections as graphs that travel to a worker and are computed there."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from bnp_dask.errors import DataError

if TYPE_CHECKING:
    # imported only when needed: it loads pandas, 80 MB in each worker that reads plain files
    pass


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
                "collection as it was before persist(), or write it with x.to_zarr(path) or df.to_parquet(path) and "
                "pass that path"
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
