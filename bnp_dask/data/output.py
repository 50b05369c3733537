"""Writing of results for every atom, batch by batch, to Parquet, Zarr or CSV, in the tasks that compute them.

Every batch is written by its own task to its own *part*; no other task touches that part, and writing it again
gives the same bytes.  A Parquet output is a folder of such parts.  A Zarr output needs chunks of equal length, which
batches need not have: parts are then plain bytes beside it, and a second wave of tasks, one per chunk, assembles each
chunk from the parts it overlaps.  A CSV file is the lines of all parts, joined by the calling process.  The calling
process holds only the number of atoms of each batch.  On local disks the output appears under its name when it is
complete.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from bnp_dask.core import Location
from bnp_dask.data.base import Reader
from bnp_dask.data.ingestion.writers import create_array
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.execute import Executor, in_order

CHUNK_BYTES = 2**22
"""Size of a chunk of a Zarr output before compression."""

Outputs = Mapping[str, np.ndarray]
"""Columns about each atom of a batch: arrays of one length n, ``(n,)`` or ``(n, width)``; Parquet also takes Arrow
arrays, of whose layout only the name counts."""

Compute = Callable[[Any, Reader], Outputs]
"""Columns of a batch, given the shared value."""


@dataclass(frozen=True)
class Layout:
    """A column of the output.

    Parameters
    ----------
    name
        Its name.
    dtype
        Type of its numbers.
    width
        Length of a row; None for one number.
    names
        Names of the numbers of a row, for files that have a column for each; none for ``name_1``, ``name_2``, ...
    """

    name: str
    dtype: str
    width: int | None
    names: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * (1 if self.width is None else self.width)

    @property
    def flat(self) -> tuple[str, ...]:
        """Names of the columns of a file that has one for each number."""
        if self.width is None:
            return (self.name,)
        return self.names or tuple(f"{self.name}_{i + 1}" for i in range(self.width))


def write(
    out: str | os.PathLike[str],
    layouts: Sequence[Layout],
    compute: Compute,
    shared: Any,
    readers: Sequence[Reader],
    executor: Executor,
    window: int,
    facts: Mapping[str, Any],
) -> None:
    """Compute columns of all batches and write them in the order of the batches.

    Parameters
    ----------
    out
        Path or URL that ends with ``.zarr`` (one array per column, in a group), ``.parquet`` (a folder of files) or
        ``.csv`` (one file, a line for each atom).  Nothing may be there yet.
    layouts
        The columns that ``compute`` gives.
    compute, shared
        Called as ``compute(shared, reader)`` in tasks; ``shared`` is sent once.
    readers
        One per batch.
    executor, window
        Where to run, and how many tasks at a time.
    facts
        JSON-able; kept as attributes of the group, or as metadata of the Parquet files; not in CSV files.

    Raises
    ------
    SettingError
        The name has another ending.
    StoreError
        Something is there already, or it cannot be written.
    """
    target = Location.of(out, argument="out")
    if not target.basename.endswith((".zarr", ".parquet", ".csv")):
        raise SettingError(f"out={target.name!r}: needs a name that ends with .csv, .parquet or .zarr")
    if target.exists():
        raise StoreError(f"{target.name} exists already; remove it, or choose another name")
    # object stores have no renaming: there the output is built in place, and its description is written last
    work = target.sibling(f".{target.basename}.{uuid.uuid4().hex[:12]}.partial")
    place = work if target.is_local else target
    try:
        if target.basename.endswith(".parquet"):
            _write_parquet(place, layouts, compute, shared, readers, executor, window, facts)
        elif target.basename.endswith(".csv"):
            _write_csv(place, work.child("parts"), layouts, compute, shared, readers, executor, window)
        else:
            _write_zarr(place, work.child("parts"), layouts, compute, shared, readers, executor, window, facts)
        if target.is_local:
            shutil.rmtree(work.child("parts").url, ignore_errors=True)
            made = work.child(_WHOLE) if target.basename.endswith(".csv") else work
            Path(made.url).rename(target.url)
    except OSError as error:
        raise StoreError(f"{target.name}: cannot write there: {error}") from error
    finally:
        if work.exists():
            work.remove()


def check_columns(layouts: Sequence[Layout], columns: Outputs) -> int:
    """Number of atoms; DataError unless the columns are as announced."""
    n = len(columns[layouts[0].name])
    for layout in layouts:
        shape = (n,) if layout.width is None else (n, layout.width)
        value = columns[layout.name]
        if isinstance(value, pa.Array):  # ids, of the type in the data
            if len(value) != n:
                raise DataError(f"column {layout.name}: {len(value)} values, needs {n}")
            continue
        if value.shape != shape or value.dtype != np.dtype(layout.dtype):
            raise DataError(f"column {layout.name}: {value.dtype} {value.shape}, needs {layout.dtype} {shape}")
    return n


# -- Parquet --------------------------------------------------------------------------------------------------
def _write_parquet(
    place: Location,
    layouts: Sequence[Layout],
    compute: Compute,
    shared: Any,
    readers: Sequence[Reader],
    executor: Executor,
    window: int,
    facts: Mapping[str, Any],
) -> None:
    handle = executor.share("posterior", shared)
    tasks = [
        (f"predict-batch{i}", parquet_part, (handle, compute, reader, tuple(layouts), _part(place, i), dict(facts)))
        for i, reader in enumerate(readers)
    ]
    for _ in in_order(executor, tasks, window):
        pass


def _part(place: Location, index: int) -> Location:
    return place.child(f"part-{index:06d}.parquet")


def parquet_part(
    shared: Any,
    compute: Compute,
    reader: Reader,
    layouts: tuple[Layout, ...],
    part: Location,
    facts: dict[str, Any],
) -> int:
    """Task: compute one batch, write it as one Parquet file, and return the number of atoms."""
    columns = compute(shared, reader)
    n = check_columns(layouts, columns)
    arrays = [_arrow(columns[layout.name], layout) for layout in layouts]
    table = pa.Table.from_arrays(arrays, names=[layout.name for layout in layouts])
    metadata = {f"bnp_dask.{name}": str(value) for name, value in facts.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    put(part, sink.getvalue().to_pybytes())
    return n


def _arrow(value: np.ndarray | pa.Array, layout: Layout) -> pa.Array:
    if isinstance(value, pa.Array):
        return value
    if layout.width is None:
        return pa.array(value)
    return pa.FixedSizeListArray.from_arrays(pa.array(value.ravel()), layout.width)


def put(location: Location, content: bytes) -> None:
    """Write a file in one step: others see all of it or nothing."""
    if not location.is_local:
        fs, path = location.filesystem()
        with location.discreet():
            fs.pipe_file(path, content)
        return
    target = Path(location.url)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}")
    partial.write_bytes(content)
    partial.replace(target)


# -- CSV ------------------------------------------------------------------------------------------------------
_WHOLE = "whole.csv"
"""Name of a CSV file beside its parts, before it is whole."""

_PIECE = 2**22
"""Bytes that are copied at a time."""


def _write_csv(
    place: Location,
    parts: Location,
    layouts: Sequence[Layout],
    compute: Compute,
    shared: Any,
    readers: Sequence[Reader],
    executor: Executor,
    window: int,
) -> None:
    handle = executor.share("posterior", shared)
    lines = [parts.child(f"part-{i:06d}.csv") for i in range(len(readers))]
    tasks = [
        (f"predict-batch{i}", csv_part, (handle, compute, reader, tuple(layouts), part))
        for i, (reader, part) in enumerate(zip(readers, lines, strict=True))
    ]
    for _ in in_order(executor, tasks, window):
        pass
    head = io.StringIO()
    csv.writer(head, lineterminator="\n").writerow([name for layout in layouts for name in layout.flat])
    fs, path = (place.child(_WHOLE) if place.is_local else place).filesystem()
    with place.discreet(), fs.open(path, "wb") as file:
        file.write(head.getvalue().encode())
        for part in lines:
            with part.open() as content:
                shutil.copyfileobj(content, file, _PIECE)
    if parts.exists():
        parts.remove()


def csv_part(shared: Any, compute: Compute, reader: Reader, layouts: tuple[Layout, ...], part: Location) -> int:
    """Task: compute one batch, write it as lines of text, and return the number of atoms."""
    columns = compute(shared, reader)
    n = check_columns(layouts, columns)
    flat: list[Any] = []
    for layout in layouts:
        value = columns[layout.name]
        flat += [value] if layout.width is None else list(value.T)
    table = pa.table([pa.array(column) for column in flat], names=[str(i) for i in range(len(flat))])
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink, pacsv.WriteOptions(include_header=False))
    put(part, sink.getvalue().to_pybytes())
    return n


# -- Zarr -----------------------------------------------------------------------------------------------------
def _write_zarr(
    place: Location,
    parts: Location,
    layouts: Sequence[Layout],
    compute: Compute,
    shared: Any,
    readers: Sequence[Reader],
    executor: Executor,
    window: int,
    facts: Mapping[str, Any],
) -> None:
    handle = executor.share("posterior", shared)
    tasks = [
        (f"predict-batch{i}", raw_part, (handle, compute, reader, tuple(layouts), parts, i))
        for i, reader in enumerate(readers)
    ]
    counts = list(in_order(executor, tasks, window))
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    chunk_tasks = []
    for layout in layouts:
        rows = max(1, min(int(starts[-1]), CHUNK_BYTES // layout.row_bytes))
        tail = () if layout.width is None else (layout.width,)
        create_array(place.child(layout.name), (int(starts[-1]), *tail), (rows, *tail), layout.dtype)
        for j, start in enumerate(range(0, int(starts[-1]), rows)):
            stop = min(start + rows, int(starts[-1]))
            pieces = _overlaps(starts, start, stop)
            task = (place.child(layout.name), layout, start, stop, parts, pieces)
            chunk_tasks.append((f"write-{layout.name}-chunk{j}", zarr_chunk, task))
    for _ in in_order(executor, chunk_tasks, window):
        pass
    import zarr

    zarr.create_group(place.zarr_store(read_only=False), attributes={"bnp_dask": {"kind": "assignments", **facts}})
    if parts.exists():
        parts.remove()


def raw_part(
    shared: Any, compute: Compute, reader: Reader, layouts: tuple[Layout, ...], parts: Location, index: int
) -> int:
    """Task: compute one batch, write each column as plain bytes, and return the number of atoms."""

    columns = compute(shared, reader)
    n = check_columns(layouts, columns)
    for layout in layouts:
        put(_raw(parts, layout, index), np.ascontiguousarray(columns[layout.name]).tobytes())
    return n


def _raw(parts: Location, layout: Layout, index: int) -> Location:
    return parts.child(f"{layout.name}-{index:06d}.bin")


def _overlaps(starts: np.ndarray, start: int, stop: int) -> tuple[tuple[int, int, int], ...]:
    """Parts that hold the atoms ``start:stop``: (part, first row in it, rows)."""
    first = int(np.searchsorted(starts, start, side="right")) - 1
    last = int(np.searchsorted(starts, stop, side="left"))
    pieces = []
    for part in range(first, last):
        a, b = max(start, int(starts[part])), min(stop, int(starts[part + 1]))
        if b > a:
            pieces.append((part, a - int(starts[part]), b - a))
    return tuple(pieces)


def zarr_chunk(
    target: Location,
    layout: Layout,
    start: int,
    stop: int,
    parts: Location,
    pieces: tuple[tuple[int, int, int], ...],
) -> None:
    """Task: assemble one chunk of a Zarr array from the parts that it overlaps."""
    import zarr

    content = []
    for part, first, rows in pieces:
        location = _raw(parts, layout, part)
        with location.open() as file:
            file.seek(first * layout.row_bytes)
            content.append(file.read(rows * layout.row_bytes))
    shape = (stop - start,) if layout.width is None else (stop - start, layout.width)
    rows_read = np.frombuffer(b"".join(content), layout.dtype)
    if rows_read.size != np.prod(shape):
        raise StoreError(f"{target.name}: a part that holds rows {start}-{stop - 1} is shorter than it was written")
    array = zarr.open_array(target.zarr_store(read_only=False), mode="r+")
    array[start:stop] = rows_read.reshape(shape)
