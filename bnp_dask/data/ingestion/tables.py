"""Dense rows in files that can only be read from front to back: CSV, and IDX (the format of MNIST)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bnp_dask.core.columns import Columns, Roles
from bnp_dask.data.batching import PIECE_BYTES
from bnp_dask.data.sources.arrow import Cells, is_number_text, is_text, read_cells
from bnp_dask.data.sources.choose import Reading, arrow_columns, choose, in_values
from bnp_dask.data.sources.levels import fill_rows
from bnp_dask.errors import DataError

_IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

HEAD_BYTES = 2**16
"""Bytes of a text table from which its column separator is detected."""


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
    """``size`` bytes; a compressed file may give them in several reads."""
    parts, left = [], size
    while left:
        part = file.read(min(left, PIECE_BYTES))  # a damaged header may announce more than fits into memory
        if not part:
            raise DataError(f"{name}: cut short, {left} bytes are missing")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# -- tables of text --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class TextTable:
    """A text table: its notation, and its first block.

    Parameters
    ----------
    open_file
        Function that opens the file anew.
    name
        Name for messages.
    sep, has_commas, encoding
        Column separator, whether decimals have commas, and the encoding of characters.
    stored
        Names as written in the file, with quotes and space.
    has_names
        Whether the first row holds names; if it holds numbers it is data, and columns are column0, column1, ...
    head
        First block, with types that suit it, and columns called by their plain names.
    """

    open_file: Callable[[], IO[bytes]]
    name: str
    sep: str
    has_commas: bool
    encoding: str
    stored: tuple[str, ...]
    has_names: bool
    head: pa.RecordBatch

    @staticmethod
    def read(open_file: Callable[[], IO[bytes]], name: str, sep: str) -> TextTable:
        """Read the first block; DataError if it is not a table, or two columns have the same name."""
        with open_file() as file:
            start = file.read(HEAD_BYTES)
        encoding = "utf16" if start.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf8"
        text = start.decode(encoding, "replace").removeprefix("\ufeff")
        sep, has_commas = _separators(text, sep)
        reading = pyarrow.csv.ReadOptions(encoding=encoding)
        converting = pyarrow.csv.ConvertOptions(decimal_point="," if has_commas else ".", strings_can_be_null=True)
        parsing = pyarrow.csv.ParseOptions(delimiter=sep)
        try:
            with pyarrow.csv.open_csv(open_file(), reading, parsing, converting) as first:
                stored = first.schema.names
                has_names = not all(map(is_number_text, map(_bare, stored)))
                if has_names:
                    head = _first_block(first)
            if not has_names:
                reading = pyarrow.csv.ReadOptions(encoding=encoding, column_names=_numbered(len(stored)))
                with pyarrow.csv.open_csv(open_file(), reading, parsing, converting) as first:
                    stored, head = first.schema.names, _first_block(first)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: holds bytes that are no UTF-8 ({error}); write it again as UTF-8, or read it as what it is: "
                'pandas.read_csv(path, encoding="latin-1")'
            ) from error
        except (pa.ArrowInvalid, StopIteration, ValueError) as error:
            raise DataError(f"{name}: no table of text with separator {sep!r} ({error})") from error
        names = [_bare(column) for column in stored]
        _require_names(names, name)
        head = pa.RecordBatch.from_arrays(head.columns, names)
        return TextTable(open_file, name, sep, has_commas, encoding, tuple(stored), has_names, head)

    @property
    def schema(self) -> pa.Schema:
        """Its columns, with types that suit the first block."""
        return self.head.schema

    def choose(self, columns: Sequence[str] | Columns | None, roles: Roles, reading: Reading) -> Columns:
        """The features of the table; a table without names is not matched with the names of training."""
        wanted = columns
        if isinstance(columns, Columns) and not self.has_names:
            wanted, reading = None, replace(reading, on_bad_cell=reading.on_bad(columns))
        look = in_values(self.head.column, self.name, is_all=False)
        return choose(arrow_columns(self.schema, self.name), wanted, roles, self.name, reading, look)[0]

    def batches(self, columns: Sequence[str], typed: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Some columns, piece by piece, as texts; ``typed`` ones with the types of the first block."""
        types = {c: self.schema.field(c).type if c in typed else pa.string() for c in columns}
        try:
            with self.open_file() as file, pyarrow.csv.open_csv(file, *self._options(columns, types)) as table:
                for batch in table:
                    arrays = [self._with_points(array) for array in batch.columns]
                    yield pa.RecordBatch.from_arrays(arrays, list(columns))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(f"{self.name}: {error}") from error

    def _options(self, columns: Sequence[str], types: Mapping[str, pa.DataType]) -> tuple[Any, Any, Any]:
        """Options of reading, parsing and converting some columns; ``types`` overrides inferred ones."""
        place = dict(zip(self.schema.names, self.stored, strict=True))
        reading = pyarrow.csv.ReadOptions(
            encoding=self.encoding,
            column_names=None if self.has_names else list(self.stored),
        )
        converting = pyarrow.csv.ConvertOptions(
            column_types={place[c]: kind for c, kind in types.items()},
            include_columns=[place[c] for c in columns],
            strings_can_be_null=True,
            decimal_point="," if self.has_commas else ".",
        )
        return reading, pyarrow.csv.ParseOptions(delimiter=self.sep), converting

    def _with_points(self, array: pa.Array) -> pa.Array:
        """Texts of numbers, with commas and points exchanged if decimals have commas."""
        if not self.has_commas or not is_text(array.type):
            return array
        is_number = pc.match_substring_regex(array, r"^\s*[+-]?[\d.]*(,\d*)?([eE][+-]?\d+)?\s*$")
        turned = pc.replace_substring(pc.replace_substring(array, ".", ";"), ",", ".")
        return pc.if_else(is_number, pc.replace_substring(turned, ";", ","), array)

    def rows(self, columns: Columns) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Features as float64, and weights, piece by piece."""
        weights = columns.roles.weights
        used = [*columns.names, *([weights] if weights is not None and weights not in columns.names else [])]
        on_bad, row = columns.on_bad_cell or "raise", 0
        for batch in self.batches(used):
            x = np.empty((batch.num_rows, columns.n_features))
            fill_rows(x, batch, columns.layout, self.name, row, on_bad=on_bad)
            if len(x):
                held = None if weights is None else read_cells(batch.column(weights), 1, Cells(self.name, weights, row))
                yield x, None if held is None else held[:, 0]
            row += batch.num_rows

    def whole(self, texts: Sequence[str]) -> pa.Table:
        """The table in memory, with types that suit all rows; columns ``texts`` stay as written."""
        names = self.schema.names
        types = {c: pa.string() for c in texts if c in names}
        try:
            with self.open_file() as file:
                table = pyarrow.csv.read_csv(file, *self._options(names, types))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(f"{self.name}: {error}") from error
        return table.rename_columns(names)


def _first_block(table: Any) -> pa.RecordBatch:
    return next(iter(table), None) or pa.RecordBatch.from_pylist([], table.schema)


def _numbered(count: int) -> list[str]:
    return [f"column{i}" for i in range(count)]


def _bare(name: str) -> str:
    """A name without the space and quotes that follow a comma and a space."""
    text = name.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] == '"' else text


def _separators(text: str, sep: str) -> tuple[str, bool]:
    """Column separator of a table, and whether its decimals have commas."""
    lines = [line for line in text.splitlines() if line.strip()]
    first = re.sub(r'"[^"]*"', "", lines[0]) if lines else ""
    if sep not in first:
        sep = next((other for other in ";\t|" if other in first), sep)
    if sep == ",":
        return sep, False
    cells = [cell.strip().strip('"') for line in lines[1:] for cell in line.split(sep)]
    commas = sum(bool(re.fullmatch(r"[+-]?[\d.]*\d,\d+", cell)) for cell in cells)
    points = sum(bool(re.fullmatch(r"[+-]?[\d,]*\d\.\d+", cell)) for cell in cells)
    return sep, commas > points


def _require_names(names: Sequence[str], name: str) -> None:
    """DataError if the first line of a table cannot hold the names of its columns."""
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise DataError(f"{name}: its first line names several columns {twice!r}; each column needs a name of its own")
    values = [n for n in names if "." in n and is_number_text(n)]
    if values:
        raise DataError(
            f"{name}: its first line holds the number {values[0]} beside texts, and no names; write a line with the "
            "names of the columns before it"
        )
