"""Arrow files on a local disk, and folders of them that the Hugging Face ``datasets`` library saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from bnp_dask.core.location import Location
from bnp_dask.errors import DataError

ARROW_SUFFIXES = (".arrow", ".feather")

STATE, SPLITS = "state.json", "dataset_dict.json"
"""Files in which ``datasets`` describes a folder: with one data set, or several."""

MAGIC = b"ARROW1"
"""First bytes of a file that has a table of contents; others are streams."""


def is_arrow(location: Location) -> bool:
    """Whether a file is an Arrow file by its name."""
    return location.basename.lower().endswith(ARROW_SUFFIXES)


def is_saved_dataset(location: Location) -> bool:
    """Whether a folder was written by ``Dataset.save_to_disk``.

    Raises
    ------
    DataError
        The folder holds several data sets.
    """
    if location.child(STATE).exists():
        return True
    if not location.child(SPLITS).exists():
        return False
    splits = [str(name) for name in _read(location.child(SPLITS)).get("splits", [])]
    first = splits[0] if splits else "train"
    raise DataError(
        f"{location.name}: holds the data sets {', '.join(splits) or 'of no name'}; give one: {location.name}/{first}"
    )


def dataset_files(location: Location) -> list[Location]:
    """The Arrow files of a saved data set, in their order."""
    state = _read(location.child(STATE))
    if state.get("_indices_data_files"):
        raise DataError(
            f"{location.name}: was saved as a selection of the rows of its files; save it again after "
            "dataset.flatten_indices()"
        )
    names: list[Any] = [entry.get("filename") for entry in state.get("_data_files") or [] if isinstance(entry, dict)]
    if not names or any(not isinstance(name, str) or "/" in name or "\\" in name or name == ".." for name in names):
        raise DataError(f"{location.child(STATE).name}: names no files of the data set; save it again")
    return [location.child(name) for name in names]


def _read(location: Location) -> dict[str, Any]:
    try:
        with location.open() as file:
            found = json.loads(file.read().decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{location.name}: is no JSON ({error}); save the data set again") from error
    if not isinstance(found, dict):
        raise DataError(f"{location.name}: does not describe a data set; save it again")
    return found


class RowCount:
    """Number of rows of a file, with the interface of Parquet's footers: one row group."""

    num_row_groups = 1

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def row_group(self, index: int) -> RowCount:
        """The only row group."""
        return self


class ArrowFile:
    """An Arrow file, mapped into memory, with the interface of ``pyarrow.parquet.ParquetFile``.

    Raises
    ------
    DataError
        The file lies on remote storage, is damaged, or is not an Arrow file.
    """

    def __init__(self, location: Location) -> None:
        if not location.is_local:
            raise DataError(
                f"{location.name}: Arrow files are read from local disks only; copy it, or write Parquet or Zarr there"
            )
        self._name = location.name
        try:
            self._map = pa.memory_map(location.url)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{location.name}: no Arrow file ({error})") from error
        try:
            self._has_contents = self._map.size() > len(MAGIC) and self._map.read(len(MAGIC)) == MAGIC
            next(self._batches(), None)
            self._stored = self._reader().schema
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._map.close()

    @property
    def schema_arrow(self) -> pa.Schema:
        """Its columns."""
        return self._stored

    @cached_property
    def metadata(self) -> RowCount:
        """Number of rows; for a stream this reads all its headers."""
        return RowCount(sum(batch.num_rows for batch in self._batches()))

    def iter_batches(
        self,
        batch_size: int,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Some columns, at most ``batch_size`` rows at a time."""
        for batch in self._batches():
            held = batch if columns is None else batch.select(list(columns))
            try:
                held.validate(full=True)
            except pa.ArrowInvalid as error:
                raise DataError(f"{self._name}: damaged ({error}); write the file again") from None
            for start in range(0, held.num_rows, batch_size):
                yield held.slice(start, batch_size)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        schema = pa.schema([self.schema_arrow.field(name) for name in columns])
        return pa.Table.from_batches(self.iter_batches(2**20, columns=columns), schema)

    def _reader(self) -> Any:
        self._map.seek(0)
        return pa.ipc.open_file(self._map) if self._has_contents else pa.ipc.open_stream(self._map)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches as stored; nothing is copied."""
        try:
            reader = self._reader()
            if self._has_contents:
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from reader
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self._name}: no Arrow file, or one that is cut short ({error})") from None
