"""Detection of file formats, and files that can only be read from front to back."""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import IO, Any, Literal, get_args

import fsspec
import numpy as np
from fsspec.compression import compr
from scipy import sparse

from bnp_dask.core.columns import Columns, Roles
from bnp_dask.core.location import Location
from bnp_dask.data.ingestion import tables
from bnp_dask.data.ingestion.patches import Patches, PatchStream, images_in, is_image
from bnp_dask.data.sources.choose import PLAIN_READING, Reading
from bnp_dask.data.sources.containers.arrow_files import ARROW_SUFFIXES, is_saved_dataset
from bnp_dask.data.sources.parquet import SUFFIXES
from bnp_dask.data.text import tokenizer as text
from bnp_dask.data.text.files import TAR_ENDINGS, is_zip, zip_members
from bnp_dask.data.text.options import TEXT_FORMATS, Text
from bnp_dask.data.text.tables import JSONL
from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.inputs.settings import shown

Format = Literal[
    "zarr", "parquet", "arrow", "npy", "npz", "csv", "tsv", "idx", "images", "docword", "ldac", "svmlight", "svmlight0",
    "text", "text-folder", "text-archive", "lines", "jsonl", "csv-text", "tsv-text", "parquet-text",
]  # fmt: skip
FORMATS: tuple[str, ...] = get_args(Format)

STREAMED = ("csv", "tsv", "idx", "images", "docword", "ldac", "svmlight", "svmlight0")
"""Formats that can only be read from front to back."""

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
        raise DataError(f"{location.name}: an AnnData file; pass what it holds: as_source(anndata.read_h5ad(path))")
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
    return _sniff(location)


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
    def table(self) -> tables.TextTable:
        """The text table."""
        return tables.TextTable.read(self._open, self.location.name, TEXT_TABLES[self.format])

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
            "idx": tables.idx,
            "docword": text.docword,
            "ldac": text.ldac,
            "svmlight": text.svmlight,
            "svmlight0": lambda file, name: text.svmlight(file, name, first=0),
        }
        with self._open() as file:
            for x in parsers[self.format](file, name):
                yield x, None
