"""Dask DataFrames: batches are their partitions, computed inside the task that uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import NO_ROLES, WHOLE, Columns, Cutting, Roles
from bnp_dask.data.base import Reader, shows_itself
from bnp_dask.data.batching import batch_name, check_index
from bnp_dask.data.grouped.offsets import Runs, require_once
from bnp_dask.data.grouped.steps import BatchNames, blocks_of
from bnp_dask.data.sources.arrow import as_arrow
from bnp_dask.data.sources.choose import PLAIN_READING, Reading, TableColumn, choose, frame_columns, in_values
from bnp_dask.data.sources.dask_collections.graphs import compute_graph, small_graph
from bnp_dask.data.sources.frames import frame_batch
from bnp_dask.data.sources.levels import declared, distinct, pending, union, with_found
from bnp_dask.errors import DataError
from bnp_dask.execute.ordered import in_order
from bnp_dask.execute.reach import open_executor
from bnp_dask.inputs.levels import Level, Levels

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
    """Names of the groups of one partition, as :class:`~bnp_dask.data.grouped.steps.BatchNames`."""

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


@shows_itself
@dataclass(frozen=True, eq=False)
class DaskFrameSource:
    """A dask DataFrame; each partition is a batch, whose length need not be known."""

    name: str
    frame: Any
    columns: Columns
    labels: Mapping[str, Any]
    """Label of each column in the frame."""

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
        look = partial(_looked_at, frame=frame, name=name)
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
    def n_features(self) -> int:
        return self.columns.n_features

    @property
    def n_atoms(self) -> None:
        return None

    @property
    def spans(self) -> None:
        """Unknown, because the length of a partition is known only after computing it."""
        return None

    @property
    def is_sparse(self) -> bool:
        return False

    def reader(self, index: int) -> Reader:
        name = batch_name(self.name, check_index(index, self.n_batches, self.name), None)
        payload = cloudpickle.dumps(small_graph(self.frame.partitions[index], name))
        return PartitionReader(payload, self.columns, self.labels, name, self.keys, self.columns.roles.cutting)

    def batch_names(self, index: int) -> PartitionNames:
        """Names of the groups of a batch; computes their columns again."""
        name = batch_name(self.name, check_index(index, self.n_batches, self.name), None)
        payload = cloudpickle.dumps(small_graph(self.frame[list(self.keys)].partitions[index], name))
        return PartitionNames(payload, name, self.keys, self.columns.roles.cutting)

    def describe(self) -> dict[str, Any]:
        roles = self.columns.roles
        return {
            "kind": "dask dataframe",
            "path": self.name,
            "n_atoms": None,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
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


def _looked_at(columns: Sequence[TableColumn], frame: Any, name: str) -> list[TableColumn]:
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
