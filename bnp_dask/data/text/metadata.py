"""Metadata of documents, in tables beside the counts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bnp_dask.core.location import Location
from bnp_dask.data.text.options import without_surrogates

TABLE_ROWS = 4096
"""Rows of a table that are held before they are written."""

MOST_FIELDS = 256
"""Most keys of records with free keys that become columns."""

_KINDS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), type(None): pa.null()}


class MetadataTypes:
    """Columns of metadata, each with a type that holds all its values, found document by document."""

    def __init__(self) -> None:
        self._types: dict[str, pa.DataType] = {}
        self._over: set[str] = set()
        self._n_over = 0
        self._fixed: Mapping[str, pa.DataType] | None = None

    def add(self, metadata: Mapping[str, Any]) -> None:
        """Include the metadata of one document."""
        for name, value in metadata.items():
            before = self._types.get(name)
            if before is None and len(self._types) >= MOST_FIELDS:
                self._n_over += 1
                continue
            kind = _KINDS.get(type(value), pa.string())
            if kind == pa.int64() and not -(2**63) <= value < 2**63:
                kind = pa.string()
            if before is None or kind != before:
                self._types[name] = kind if before is None else _wider(before, kind)

    def fix(self, types: Mapping[str, pa.DataType] | None) -> None:
        """Use the types given by the source."""
        self._fixed = types

    def schema(self) -> pa.Schema:
        """Schema of the id, then the metadata."""
        types = self._types if self._fixed is None else self._fixed
        columns = [(_renamed(name), pa.string() if kind == pa.null() else kind) for name, kind in types.items()]
        return pa.schema([("id", pa.string()), *columns])

    def row(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Values in the types of the columns."""
        if self._fixed is not None:
            return {_renamed(name): value for name, value in metadata.items()}
        return {
            _renamed(name): _fitted(value, self._types[name]) for name, value in metadata.items() if name in self._types
        }

    def notes(self) -> Iterator[str]:
        """Notes for a report."""
        if self._n_over:
            yield f"{self._n_over:,} values of metadata were left out: there are more than {MOST_FIELDS} fields"


def _renamed(name: str) -> str:
    """Name of a column of metadata; ``id`` is taken by the ids of documents."""
    return "id_" if name == "id" else name


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if a == pa.null() or b == pa.null():
        return b if a == pa.null() else a
    return pa.float64() if {a, b} == {pa.int64(), pa.float64()} else pa.string()


def _fitted(value: Any, kind: pa.DataType) -> Any:
    if value is None or kind != pa.string():
        return float(value) if value is not None and kind == pa.float64() else value
    if not isinstance(value, str):
        value = json.dumps(value, default=str, ensure_ascii=False)
    return value if value.isascii() else without_surrogates(value)


class TableWriter:
    """Writer of rows to a Parquet file, some thousand at a time."""

    def __init__(self, location: Location, schema: pa.Schema) -> None:
        self._location = location
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._file: Any = None
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> TableWriter:
        fs, path = self._location.filesystem()
        if self._location.is_local:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = fs.open(path, "wb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        self._file.close()

    def add(self, row: dict[str, Any]) -> None:
        """Add a row; missing columns are null."""
        self._rows.append(row)
        if len(self._rows) >= TABLE_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows and self._writer is not None:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []
