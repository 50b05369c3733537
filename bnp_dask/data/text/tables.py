"""Raw text in tables: JSON lines, CSV, Parquet.  Read as a stream of documents."""

from __future__ import annotations

import csv as csv_rows
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv
from fsspec.compression import compr

from bnp_dask.core.location import Location
from bnp_dask.data.sources.parquet import open_file, parquet_files
from bnp_dask.data.text.files import DAMAGED, is_wide, numbered_lines
from bnp_dask.data.text.options import Document, Tally, Text, id_column, text_column
from bnp_dask.errors import DataError

JSONL = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.bz2", ".jsonl.xz", ".jsonl.zst")
ROWS_AT_ONCE = 512
"""Rows of a table held at a time."""

CSV_BLOCK = 4 * 2**20
"""Bytes of a CSV file parsed at a time; a row must fit ``max_bytes``."""


def jsonl(location: Location, text: Text, columns: Sequence[str] | None, tally: Tally) -> Iterator[Document]:
    """Documents of one JSON object per line, in a file or in all such files of a folder; blank lines are skipped."""
    files = location.files(JSONL) if location.is_dir() else [location]
    if not files:
        raise DataError(f"{location.name}: a folder without {', '.join(JSONL[:2])} files")
    keys: tuple[str, str | None] | None = None
    for position, file in enumerate(files):
        prefix = f"{file.basename}:" if len(files) > 1 else ""
        for number, line in numbered_lines(file, text, tally):
            tally.share = (position + tally.share) / len(files)
            place = f"{file.name} line {number}"
            record = _record(line, place, text, tally)
            if record is None:
                continue
            if keys is None:
                textual = [k for k, v in record.items() if isinstance(v, str) and k != text.id_column]
                keys = (
                    text_column(list(record), textual, text.column, place),
                    id_column(list(record), text.id_column, place),
                )
            found = _from_record(record, keys, f"{prefix}{number}", columns, place, text, tally)
            if found is not None:
                yield found


def _record(line: bytes, place: str, text: Text, tally: Tally) -> dict[str, Any] | None:
    if len(line) > text.max_bytes:
        tally.bad(place, f"more than {text.max_bytes:,} bytes; max_bytes= sets the limit", text)
        return None
    if not line.strip():
        return None
    try:
        record = json.loads(tally.decode(line, text, place))
    except (ValueError, RecursionError) as error:
        tally.bad(place, f"no JSON ({error})", text)
        return None
    if not isinstance(record, dict):
        tally.bad(place, f"a JSON {type(record).__name__}, needs an object", text)
        return None
    return record


def _from_record(
    record: Mapping[str, Any],
    keys: tuple[str, str | None],
    number: str,
    columns: Sequence[str] | None,
    place: str,
    text: Text,
    tally: Tally,
) -> Document | None:
    """Document of a record; a missing or null text counts as empty."""
    key, id_key = keys
    value = record.get(key)
    if value is None:
        value = ""
    if isinstance(value, bytes):
        value = tally.decode(value, text, place)
    if not isinstance(value, str):
        tally.bad(place, f"{key!r} is {type(value).__name__}, needs text", text)
        return None
    name = number
    if id_key is not None:
        found = record.get(id_key)
        if found is None or isinstance(found, (dict, list)):
            tally.bad(place, f"no id in {id_key!r}", text)
            return None
        name = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
    if len(value) > text.max_bytes:
        tally.cut.append(place)
        value = value[: text.max_bytes]
    wanted = record if columns is None else {c: record.get(c) for c in columns}
    return Document(name, tally.clean(value, place), place, {c: v for c, v in wanted.items() if c not in (key, id_key)})


def csv(location: Location, text: Text, columns: Sequence[str] | None, tally: Tally, sep: str) -> Iterator[Document]:
    """Rows of a CSV or TSV file with a header; metadata are kept as text."""
    bad: list[tuple[str, str]] = []

    def wrong(row: Any) -> str:
        bad.append((location.name, f"a row of {row.actual_columns} columns instead of {row.expected_columns}"))
        return "skip" if text.on_bad == "skip" else "error"

    names = _csv_names(location, text, sep)
    _check_columns(columns, names, location.name)
    key = text_column(names, [], text.column, location.name)
    id_key = id_column(names, text.id_column, location.name)
    used = [c for c in names if columns is None or c in (key, id_key, *columns)]
    raw, file = _open_unpacked(location)
    size = max(1, location.size())
    number = 0
    try:
        table = pyarrow.csv.open_csv(
            file,
            _reading(text),
            pyarrow.csv.ParseOptions(delimiter=sep, newlines_in_values=True, invalid_row_handler=wrong),
            # read as bytes and decoded here, so that undecodable bytes are counted
            pyarrow.csv.ConvertOptions(column_types={c: pa.binary() for c in names}, include_columns=used),
        )
        for batch in table:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                for row in batch.slice(start, ROWS_AT_ONCE).to_pylist():
                    number += 1
                    place = f"{location.name} row {number}"
                    tally.share = min(1.0, raw.tell() / size)
                    decoded = {c: v if c == key else _decoded(v, _spoken(text), place, tally) for c, v in row.items()}
                    found = _from_record(decoded, (key, id_key), str(number), columns, place, _spoken(text), tally)
                    if found is not None:
                        yield found
    except (pa.ArrowInvalid, *DAMAGED) as error:
        tally.bad(f"{location.name} after row {number}", f"cut short or damaged: {error}", text)
    finally:
        raw.close()
    tally.skipped += bad if text.on_bad == "skip" else []


def _decoded(value: bytes | None, text: Text, place: str, tally: Tally) -> str | None:
    return None if value is None else tally.decode(value, text, place)


def _spoken(text: Text) -> Text:
    """Settings to decode cells: the parser has already turned wide encodings into UTF-8."""
    return replace(text, encoding="utf-8") if is_wide(text.encoding) else text


def _reading(text: Text) -> pyarrow.csv.ReadOptions:
    block = max(CSV_BLOCK, 2 * text.max_bytes)
    encoding = text.encoding if is_wide(text.encoding) else "utf8"
    return pyarrow.csv.ReadOptions(block_size=block, use_threads=False, encoding=encoding)


def _open_unpacked(location: Location) -> tuple[Any, Any]:
    raw = location.open()
    kind = fsspec.utils.infer_compression(location.url)
    return raw, (raw if kind is None else compr[kind](raw, mode="rb"))


def _csv_names(location: Location, text: Text, sep: str) -> list[str]:
    """Names in the first row."""
    raw, file = _open_unpacked(location)
    with raw:
        try:
            head = file.readline(2**20) if not is_wide(text.encoding) else file.read(2**16)
        except DAMAGED as error:
            raise DataError(f"{location.name}: cut short or damaged ({error})") from error
    first = head.decode(text.encoding, "replace").removeprefix("\ufeff").split("\n")[0].rstrip("\r")
    if not first.strip():
        raise DataError(f"{location.name}: its first line is empty; needs names of columns")
    names = next(csv_rows.reader([first], delimiter=sep))
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise DataError(f"{location.name}: two columns are called {sorted(twice)[0]!r}; rename one")
    return names


def parquet(location: Location, text: Text, columns: Sequence[str] | None, tally: Tally) -> Iterator[Document]:
    """Rows of Parquet files with a column of text; metadata keep their types."""
    files = parquet_files(location)
    tally.schema = {}
    first: pa.Schema | None = None
    for position, file in enumerate(files):
        with open_file(file) as opened:
            schema = opened.schema_arrow
            first = schema if first is None else first
            names = schema.names
            textual = [f.name for f in schema if _is_text(f.type) and f.name not in ("id", text.id_column)]
            key = text_column(names, textual, text.column, file.name)
            id_key = id_column(names, text.id_column, file.name)
            _check_columns(columns, names, file.name)
            if not _is_text(schema.field(key).type):
                raise DataError(f"{file.name}: column {key!r} is {schema.field(key).type}; needs text")
            used = [c for c in names if columns is None or c in (key, id_key, *columns)]
            for name in used:
                kind = schema.field(name).type
                if name not in (key, id_key) and tally.schema.setdefault(name, kind) != kind:
                    raise DataError(f"{file.name}: column {name!r} is {kind}, but {tally.schema[name]} in other files")
            prefix = f"{file.basename}:" if len(files) > 1 else ""
            rows, number = max(1, opened.metadata.num_rows), 0
            try:
                for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE, columns=used, use_threads=False):
                    for row in batch.to_pylist():
                        number += 1
                        tally.share = (position + number / rows) / len(files)
                        place = f"{file.name} row {number}"
                        found = _from_record(row, (key, id_key), f"{prefix}{number}", columns, place, text, tally)
                        if found is not None:
                            yield found
            except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
                tally.bad(f"{file.name} after row {number}", f"cut short or damaged: {error}", text)


def _is_text(kind: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return _is_text(kind.value_type)
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary, kinds.is_large_binary)
    return any(test(kind) for test in tests)


def _check_columns(columns: Sequence[str] | None, names: Sequence[str], name: str) -> None:
    for column in columns or ():
        if column not in names:
            raise DataError(f"{name}: no column {column!r}; it has {', '.join(names)}")
