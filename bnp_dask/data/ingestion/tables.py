"""Dense rows in files that can only be read from front to back: CSV, and IDX (the format of MNIST)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bnp_dask.core.columns import Columns, Roles
from bnp_dask.data.batching import PIECE_BYTES
from bnp_dask.data.sources.arrow import is_numeric, numbers
from bnp_dask.data.sources.choose import arrow_columns, choose
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import require_small

_IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx(file: IO[bytes], name: str) -> Iterator[np.ndarray]:
    """IDX: big-endian array of any number of axes; all axes after the first become columns."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_DTYPES or head[3] == 0:
        raise DataError(f"{name}: {head!r} at the start; not an IDX file")
    dtype = np.dtype(_IDX_DTYPES[head[2]])
    shape = np.frombuffer(_exactly(file, 4 * head[3], name), ">u4").tolist()
    n, d = shape[0], math.prod(shape[1:])
    if n == 0 or d == 0:
        raise DataError(f"{name}: shape {tuple(shape)} holds no rows")
    rows = max(1, PIECE_BYTES // (8 * d))
    for start in range(0, n, rows):
        count = min(rows, n - start)
        data = _exactly(file, count * d * dtype.itemsize, name)
        yield np.frombuffer(data, dtype).reshape(count, d).astype(dtype.newbyteorder("="), copy=False)


def _exactly(file: IO[bytes], size: int, name: str) -> bytes:
    """So many bytes; a compressed file may give them in several reads."""
    parts, left = [], size
    while left:
        part = file.read(min(left, PIECE_BYTES))  # a damaged header may announce more than there is memory for
        if not part:
            raise DataError(f"{name}: cut short, {left} bytes are missing")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


@dataclass(frozen=True)
class CsvHead:
    """First block of a text table: its schema, and whether the names in it are its own.

    A first row of numbers is data; columns are called column0, column1, ... then.
    """

    schema: pa.Schema
    has_names: bool

    @staticmethod
    def read(open_file: Callable[[], IO[bytes]], name: str, sep: str) -> CsvHead:
        """Read the first block."""
        try:
            with pyarrow.csv.open_csv(open_file(), parse_options=_parsing(sep)) as first:
                schema = first.schema
        except (pa.ArrowInvalid, StopIteration, ValueError) as error:
            raise DataError(f"{name}: no table of text with separator {sep!r} ({error})") from error
        if not all(_is_number(column) for column in schema.names):
            return CsvHead(schema, True)
        return CsvHead(pa.schema([(f"column{i}", f.type) for i, f in enumerate(schema)]), False)

    def choose(self, columns: Sequence[str] | Columns | None, weights: str | None, name: str) -> Columns:
        """The features of the table; names that it does not have say nothing about those of training."""
        wanted = None if isinstance(columns, Columns) and not self.has_names else columns
        return choose(arrow_columns(self.schema), wanted, Roles(weights), name)[0]


def csv(
    open_file: Callable[[], IO[bytes]], name: str, head: CsvHead, columns: Columns, sep: str = ","
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Numeric columns of a text table as float64, and weights."""
    chosen, weights = columns.names, columns.roles.weights
    used = [*chosen, *([weights] if weights else [])]
    # every numeric column as float: the first block may hold whole numbers only
    types = {f.name: pa.float64() for f in head.schema if is_numeric(f.type) or f.name in used}
    reading = pyarrow.csv.ReadOptions(column_names=None if head.has_names else head.schema.names)
    converting = pyarrow.csv.ConvertOptions(column_types=types, include_columns=used)
    whole = [f.name for f in head.schema if f.name in used and pa.types.is_integer(f.type)]
    row = 0
    try:
        with pyarrow.csv.open_csv(open_file(), reading, _parsing(sep), converting) as table:
            for batch in table:
                for column in whole:
                    require_small(numbers(batch.column(column)), name, row, column)
                row += batch.num_rows
                x = np.column_stack([numbers(batch.column(c)) for c in chosen]).astype(np.float64)
                if len(x):
                    yield x, numbers(batch.column(weights)) if weights else None
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{name}: {error}") from error


def _parsing(sep: str) -> pyarrow.csv.ParseOptions:
    return pyarrow.csv.ParseOptions(delimiter=sep)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
