"""Formats that are read from front to back, and text tables among them."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import IO, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv
from scipy import sparse

from bnp_dask.core import Columns, Location, Roles
from bnp_dask.data.base import PIECE_BYTES
from bnp_dask.data.ingestion.patches import Patches, PatchStream, images_in, is_image
from bnp_dask.data.sources.columns import (
    PLAIN_READING,
    Cells,
    Reading,
    arrow_columns,
    choose,
    fill_rows,
    in_values,
    is_number_text,
    is_text,
    read_cells,
)
from bnp_dask.data.sources.parquet import ARROW_SUFFIXES, SUFFIXES, is_saved_dataset
from bnp_dask.data.text.files import JSONL, TAR_ENDINGS, docword, is_zip, ldac, svmlight, zip_members
from bnp_dask.data.text.options import TEXT_FORMATS, Text
from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.inputs import shown

# -- text tables ---------------------------------------------------------------------------------------------------
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
                f"{name}: holds bytes that are no UTF-8 ({error}); write it again as UTF-8, or name its encoding: "
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
        look = in_values(lambda column: self._with_points(self.head.column(column)), self.name, is_all=False)
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
        import pyarrow.compute as pc

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


# -- formats -------------------------------------------------------------------------------------------------------
Format = Literal[
    "zarr", "parquet", "arrow", "npy", "npz", "csv", "tsv", "idx", "images", "docword", "ldac", "svmlight", "svmlight0",
    "text", "text-folder", "text-archive", "lines", "jsonl", "csv-text", "tsv-text", "parquet-text",
]  # fmt: skip
FORMATS: tuple[str, ...] = get_args(Format)

STREAMED = ("csv", "tsv", "idx", "images", "docword", "ldac", "svmlight", "svmlight0")
"""Formats that can only be read from front to back."""

READERS = {
    "read_json": ".json",
    "read_pickle": ".pkl .pickle",
    "read_excel": ".xlsx .xls .ods",
    "read_stata": ".dta",
    "read_sas": ".sas7bdat .xpt",
    "read_spss": ".sav",
    "read_orc": ".orc",
    "read_xml": ".xml",
}
"""What reads files of other programs, by the endings of their names."""

TEXT_TABLES: Mapping[str, str] = MappingProxyType({"csv": ",", "tsv": "\t"})
"""Streamed formats of tables, with their column separators."""

COLUMN_FILES = ("parquet", "arrow")
"""Formats of tables that are read by column, from any row on."""

COUNTS = ("docword", "ldac", "svmlight", "svmlight0")
"""Streamed formats of sparse counts."""

_ENDINGS = {
    ".zarr": "zarr",
    ".npy": "npy",
    ".npz": "npz",
    ".csv": "csv",
    ".tsv": "tsv",
    ".ldac": "ldac",
    ".lda-c": "ldac",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".idx": "idx",
    **dict.fromkeys(SUFFIXES, "parquet"),
    **dict.fromkeys(ARROW_SUFFIXES, "arrow"),
}
_PROSE = (".txt", ".text", ".md", ".rst", ".html", ".txt.gz")
"""Suffixes of files that make a folder count as text."""

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")

Piece = tuple[np.ndarray | sparse.csr_array, np.ndarray | None]
"""Some atoms and their weights."""


def check_format(name: str) -> str:
    """The format; SettingError with the nearest known one if unknown."""
    if not isinstance(name, str) or name not in FORMATS:
        hint = nearest(name, FORMATS, "; did you mean ") if isinstance(name, str) else ""
        raise SettingError(f"format={shown(name)} is unknown{hint}; formats are {', '.join(FORMATS)}")
    return name


def detect(location: Location) -> str:
    """Format of a file or folder, by name and then by its first bytes; DataError if neither determines it."""
    location.require()
    if location.is_dir():
        names = location.names()
        if {"zarr.json", ".zarray", ".zgroup"} & set(names):
            return "zarr"
        if is_saved_dataset(location):
            return "arrow"
        if location.files(SUFFIXES):
            return "parquet"
        if location.basename.endswith(".zarr"):
            raise DataError(f"{location.name}: a Zarr folder without metadata; was its writing cut short? Ingest again")
        if images_in(location):
            return "images"
        if location.files(JSONL):
            return "jsonl"
        if location.files(_PROSE):
            return "text-folder"
        raise DataError(
            f"{location.name}: a folder with neither Parquet files ({', '.join(SUFFIXES)}), images, nor a Zarr store"
            f" (it has {', '.join(names[:5]) or 'nothing'}); if its files are text, ingest it with "
            "format='text' (--format text)"
        )
    if location.size() == 0:
        raise DataError(f"{location.name}: an empty file")
    if is_image(location.basename):
        return "images"
    base = location.basename.lower()
    if base.endswith(".h5ad"):
        raise DataError(f"{location.name}: an AnnData file; pass its content: as_source(anndata.read_h5ad(path))")
    if base.endswith(TAR_ENDINGS):
        return "text-archive"
    if base.endswith(JSONL):
        return "jsonl"
    alone = base.removesuffix(".zip")
    known = alone.endswith(tuple(_ENDINGS)) or alone.startswith("docword.")
    if alone != base and not known and is_zip(location) and len(zip_members(location)) > 1:
        return "text-archive"
    for packed in _PACKED:
        base = base.removesuffix(packed)
    if base.endswith("-ubyte"):
        return "idx"
    if base.startswith("docword."):
        return "docword"
    for ending, kind in _ENDINGS.items():
        if base.endswith(ending):
            return kind
    reader = next((verb for verb, ends in READERS.items() if base.endswith(tuple(ends.split()))), None)
    if reader is None:
        return _sniff(location)
    with contextlib.suppress(DataError):
        if (kind := _sniff(location)) != "npz":  # sheets of Excel are packed as arrays of NumPy are
            return kind
    raise DataError(f"{location.name}: such files are not read here; give the table: pandas.{reader}(path)")


def detect_text(location: Location, text: Text) -> str:
    """Format of a source that settings of text declare to be raw text; DataError if it cannot be text."""
    location.require()
    base = location.basename.lower()
    for packed in _PACKED[:-1]:
        base = base.removesuffix(packed)
    if location.is_dir():
        if text.glob is None and (is_saved_dataset(location) or location.files(SUFFIXES)):
            return "parquet-text"
        return "jsonl" if text.glob is None and location.files(JSONL) else "text-folder"
    if base.endswith((".csv", ".tsv")):
        return f"{base[-3:]}-text"
    if base.endswith((*SUFFIXES, *ARROW_SUFFIXES)):
        return "parquet-text"
    if base.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if location.basename.lower().endswith((*TAR_ENDINGS, ".zip")):
        return "text-archive"
    if base.endswith(".txt") and not base.startswith("docword."):
        return "lines"
    return detect(location)


def format_of_text(location: Location, text: Text) -> str:
    """Format of a source given as text (``format="text"``): the detected one, or else one document per line."""
    try:
        kind = detect_text(location, text)
    except DataError:
        if location.is_dir() or location.size() == 0:
            raise
        kind = "lines"
    return kind if kind in TEXT_FORMATS else "lines"


def _sniff(location: Location) -> str:
    with open_packed(location)[0] as file:
        head = file.read(4096)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PK\3\4"):
        return "npz"
    if head[:2] == b"\0\0" and len(head) > 3 and head[2] in range(8, 15):
        return "idx"
    lines = [line.strip() for line in head.split(b"\n")[:6]]
    if len(lines) > 3 and all(re.fullmatch(rb"\d+", line) for line in lines[:3]) and len(lines[3].split()) == 3:
        return "docword"
    # documents without words do not show the format
    told = next((line for line in head.split(b"\n") if b":" in line and not line.startswith(b"#")), b"").strip()
    pairs = rb"(\s+[-+\d.eE]+:[-+\d.eE]+)*"
    if re.fullmatch(rb"\d+" + pairs, told) and int(told.split()[0]) == told.count(b":"):
        return "ldac"
    if re.fullmatch(rb"[-+\d.eE]+(\s+qid:\d+)?" + pairs + rb"\s*(#.*)?", told):
        return "svmlight"
    raise DataError(
        f"{location.name}: its name and first bytes tell no format; say format=... with one of {', '.join(FORMATS)}"
    )


def open_packed(location: Location) -> tuple[IO[bytes], IO[bytes]]:
    """The unpacked file (by suffix), and the stored file, whose position gives the progress."""
    import fsspec
    from fsspec.compression import compr

    raw = location.open()
    kind = fsspec.utils.infer_compression(location.url)
    return (raw if kind is None else compr[kind](raw, mode="rb")), raw


@dataclass(eq=False)
class Stream:
    """A file read once, from front to back.

    Parameters
    ----------
    location, format
        Place and format of the file.
    columns, weights, reading
        Names of columns, and how they are read (text tables only).
    patches
        How images are cut into patches.
    notes
        Notes for a report, complete once the file was read.
    """

    location: Location
    format: str
    columns: Sequence[str] | Columns | None = None
    weights: str | None = None
    patches: Patches = field(default_factory=Patches)
    notes: tuple[str, ...] = ()
    reading: Reading = PLAIN_READING
    _raw: list[IO[bytes]] = field(default_factory=list)
    _images: PatchStream | None = None

    @property
    def is_sparse(self) -> bool:
        """Whether pieces are counts."""
        return self.format in COUNTS

    def fraction(self) -> float:
        """Share of the file read so far."""
        if self._images is not None:
            return self._images.share
        if not self._raw or self._raw[-1].closed:
            return 1.0
        return min(1.0, self._raw[-1].tell() / max(1, self.location.size()))

    @cached_property
    def table(self) -> TextTable:
        """The text table."""
        return TextTable.read(self._open, self.location.name, TEXT_TABLES[self.format])

    @cached_property
    def _chosen(self) -> Columns:
        return self.table.choose(self.columns, Roles(self.weights), self.reading)

    @property
    def has_names(self) -> bool:
        """Whether it is a table whose columns have names."""
        return self.format in TEXT_TABLES and self.table.has_names

    @property
    def named(self) -> Columns | None:
        """Columns of its features; None for formats and tables without names."""
        return self._chosen if self.has_names else None

    def pieces(self) -> Iterator[Piece]:
        """The atoms, piece by piece; DataError if the file is cut short or damaged."""
        try:
            yield from self._parse()
        except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(f"{self.location.name}: cut short or damaged ({error})") from error

    def _open(self) -> IO[bytes]:
        file, raw = open_packed(self.location)
        self._raw.append(raw)
        return file

    def _parse(self) -> Iterator[Piece]:
        name = self.location.name
        if self.format in TEXT_TABLES:
            yield from self.table.rows(self._chosen)
            return
        if isinstance(self.columns, Sequence) or self.weights is not None:
            raise DataError(f"{name}: format {self.format} has no named columns; leave out columns and weights")
        if self.format == "images":
            self._images = PatchStream(self.location, self.patches)
            for patches in self._images.pieces():
                yield patches, None
            self.notes = self._images.notes()
            return
        parsers: dict[str, Callable[[IO[bytes], str], Iterator[Any]]] = {
            "idx": idx,
            "docword": docword,
            "ldac": ldac,
            "svmlight": svmlight,
            "svmlight0": lambda file, name: svmlight(file, name, first=0),
        }
        with self._open() as file:
            for x in parsers[self.format](file, name):
                yield x, None
