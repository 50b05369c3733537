"""Text in files, read as a stream of documents or of word counts; nothing is unpacked to disk.

Folders, archives, one document per line; tables (JSON lines, CSV, Parquet); counts as text (UCI docword, LDA-C,
svmlight); and documents in memory.
"""

from __future__ import annotations

import bz2
import codecs
import csv as csv_rows
import gzip
import io
import json
import lzma
import posixpath
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from scipy import sparse

from bnp_dask.core import Location
from bnp_dask.data.base import build_csr
from bnp_dask.data.sources.parquet import open_file, parquet_files
from bnp_dask.data.text.options import Document, Documents, Tally, Text, id_column, text_column, without_surrogates
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import require_exact, shown

# -- counts as text ------------------------------------------------------------------------------------------------
BLOCK_BYTES = 8 * 2**20
"""Text is read in blocks of this size."""

MANY_EMPTY = 10
"""Most consecutive documents without words, per entry of a file: more mean a damaged header."""


def docword(file: IO[bytes], name: str) -> Iterator[sparse.csr_array]:
    """UCI bag of words: three lines N, W, NNZ, then one ``doc word count`` per line, from 1, sorted by doc.

    Documents without a line are kept as empty rows.
    """
    n, n_words, n_entries = (_header(file, what, name) for what in ("documents", "words", "entries"))
    next_doc, seen, rest = 1, 0, b""
    carry = np.empty((0, 3), np.int64)
    while True:
        block = file.read(BLOCK_BYTES)
        text = rest + block
        cut = text.rfind(b"\n") + 1 if block else len(text)
        text, rest = text[:cut], text[cut:]
        triples = _triples(text, name, seen + 4)
        _check_triples(triples, n, n_words, name, seen + 4)
        seen += len(triples)
        triples = np.concatenate([carry, triples])
        order = np.flatnonzero(np.diff(triples[:, 0]) < 0)
        if len(order):
            line = seen + 4 - len(triples) + int(order[0]) + 1
            raise DataError(f"{name}: line {line}: documents are not in order; sort the lines after the third by doc")
        last = n + 1 if not block else (int(triples[-1, 0]) if len(triples) else next_doc)
        done = int(np.searchsorted(triples[:, 0], last))
        if last - next_doc > MANY_EMPTY * (100 + seen):
            raise DataError(
                f"{name}: {n} documents are announced, and after {seen} entries up to document {last - 1} hardly any "
                "has a word; correct its first line, or leave out documents without words"
            )
        if last > next_doc:
            lengths = np.bincount(triples[:done, 0] - next_doc, minlength=last - next_doc)
            counts = triples[:done, 2].astype(np.float64)
            yield build_csr(lengths, triples[:done, 1] - 1, counts, n_words, name)
            next_doc = last
        carry = triples[done:]
        if not block:
            break
    if seen != n_entries:
        raise DataError(f"{name}: {seen} entries, but its third line announces {n_entries}; is the file cut short?")


def _header(file: IO[bytes], what: str, name: str) -> int:
    line = file.readline(100).strip()
    if not line.isdigit():
        raise DataError(f"{name}: {line[:40]!r} where the number of {what} should stand; not a UCI docword file")
    value = int(line)
    if value == 0:
        raise DataError(f"{name}: its header announces no {what}")
    return value


def _triples(text: bytes, name: str, line: int) -> np.ndarray:
    """Whole numbers of a block of complete lines, ``(m, 3)``."""
    values = _numbers(text, np.int64)
    lines = text.count(b"\n") + (0 if text.endswith(b"\n") or not text else 1)
    if values is None or values.size != 3 * lines:
        # find the line; blank ones do no harm
        kept = []
        for number, row in enumerate(text.split(b"\n"), line):
            parts = row.split()
            if parts and (len(parts) != 3 or not all(p.lstrip(b"-").isdigit() for p in parts)):
                raise DataError(f"{name}: line {number}: {row[:60]!r}; needs three whole numbers: doc word count")
            kept += [int(p) for p in parts]
        values = np.array(kept, np.int64)
    return values.reshape(-1, 3)


def _check_triples(triples: np.ndarray, n: int, n_words: int, name: str, line: int) -> None:
    for column, (what, least, most) in enumerate((("document", 1, n), ("word", 1, n_words), ("count", 0, 2**32 - 1))):
        values = triples[:, column]
        if len(values) and (values.min() < least or values.max() > most):
            row = int(np.argmax((values < least) | (values > most)))
            raise DataError(f"{name}: line {line + row}: {what} {values[row]} is outside {least} to {most}")


def _numbers(text: bytes, dtype: Any) -> np.ndarray | None:
    """All numbers in a text separated by white space, or None when something else is there."""
    if not text.strip():
        return np.empty(0, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.fromstring(text, dtype, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def ldac(file: IO[bytes], name: str) -> Iterator[sparse.csr_array]:
    """Blei's LDA-C: one document per line, ``M word:count word:count ...``, words from 0."""

    def parse(line: bytes, number: int) -> tuple[np.ndarray, np.ndarray]:
        values = _numbers(line.replace(b":", b" "), np.int64)
        if values is None or len(values) != 1 + 2 * line.count(b":"):
            raise DataError(f"{name}: line {number}: {line[:60]!r}; needs M word:count word:count ...")
        words, counts = values[1::2], values[2::2]
        if values[0] != len(words):
            raise DataError(f"{name}: line {number}: {len(words)} pairs, but it announces {values[0]}")
        if len(words) and (words.min() < 0 or words.max() >= 2**31 - 1 or counts.min() < 0):
            raise DataError(f"{name}: line {number}: a negative word or count, or a word beyond 2**31")
        require_exact(counts, f"{name}: line {number}", "count")
        return words, counts.astype(np.float64)

    return _by_lines(file, name, parse)


def svmlight(file: IO[bytes], name: str, first: int = 1) -> Iterator[sparse.csr_array]:
    """svmlight / libsvm: ``label index:value ...``, indices from ``first``; labels, qid and comments are left out."""

    def parse(line: bytes, number: int) -> tuple[np.ndarray, np.ndarray]:
        parts = line.split(b"#", 1)[0].split()
        parts = parts[2:] if len(parts) > 1 and parts[1].startswith(b"qid:") else parts[1:]
        text = b" ".join(parts)
        values = _numbers(text.replace(b":", b" "), np.float64)
        if values is None or len(values) != 2 * len(parts) or text.count(b":") != len(parts):
            raise DataError(f"{name}: line {number}: {line[:60]!r}; needs label index:value index:value ...")
        words = values[::2].astype(np.int64)
        if not np.array_equal(words, values[::2]) or (len(words) and words.max() >= 2**31 - 1):
            raise DataError(f"{name}: line {number}: an index is not a whole number below 2**31")
        if len(words) and words.min() < first:
            fix = '; for files that count from 0, format="svmlight0"' if words.min() == 0 else ""
            raise DataError(f"{name}: line {number}: index {words.min()}, but indices start at {first}{fix}")
        return words - first, values[1::2]

    return _by_lines(file, name, parse)


def _by_lines(
    file: IO[bytes], name: str, parse: Callable[[bytes, int], tuple[np.ndarray, np.ndarray]]
) -> Iterator[sparse.csr_array]:
    """One document per line, in pieces of about a block; blank lines and lines of comment are skipped."""
    lengths: list[int] = []
    words: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    held, n_words = 0, 0
    for number, line in enumerate(file, 1):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        word, count = parse(line, number)
        lengths.append(len(word))
        words.append(word)
        counts.append(count)
        held += len(line) + 16
        n_words = max(n_words, int(word.max()) + 1 if len(word) else 0)
        if held > BLOCK_BYTES:
            yield _document_rows(lengths, words, counts, n_words, name)
            lengths, words, counts, held = [], [], [], 0
    if lengths:
        yield _document_rows(lengths, words, counts, n_words, name)


def _document_rows(
    lengths: list[int], words: list[np.ndarray], counts: list[np.ndarray], n_words: int, name: str
) -> sparse.csr_array:
    word = np.concatenate(words)
    return build_csr(np.array(lengths, np.int64), word, np.concatenate(counts), max(n_words, 1), name)


# -- files of texts ------------------------------------------------------------------------------------------------
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError)
"""Errors of unpacking a damaged file."""

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


def folder(location: Location, text: Text, tally: Tally) -> Iterator[Document]:
    """Every file below a folder that matches the pattern, by path, without hidden files."""
    found = location.files(("",))
    start = len(location.url) + 1
    chosen = [(file, file.url[start:]) for file in found if _fits(file.url[start:], text.glob)]
    tally.n_left = len(found) - len(chosen)
    if not chosen:
        raise DataError(_nothing_fits(location.name, text.glob, len(found)))
    for number, (file, path) in enumerate(chosen, 1):
        try:
            with file.open("infer") as opened:
                data = read_up_to(opened, text.max_bytes)
        except DAMAGED as error:
            tally.bad(file.name, f"cut short or damaged: {error}", text)
            continue
        tally.share = number / len(chosen)
        yield _document(path, data, file.name, text, tally)


def archive(location: Location, text: Text, tally: Tally) -> Iterator[Document]:
    """Every file of a .zip or .tar archive that matches the pattern, in the order of the archive."""
    any_member = False
    for path, data in (_zip if is_zip(location) else _tar)(location, text, tally):
        if path.startswith("/") or ".." in path.split("/"):
            tally.n_outside += 1
        any_member = True
        yield _document(path, data, f"{location.name}:{path}", text, tally)
    if not any_member and not tally.skipped:
        raise DataError(_nothing_fits(location.name, text.glob, tally.n_left))


def lines(location: Location, text: Text, tally: Tally) -> Iterator[Document]:
    """One document per line, named by the number of the line; a line without characters is an empty document."""
    for number, data in numbered_lines(location, text, tally):
        place = f"{location.name} line {number}"
        yield Document(str(number), tally.decode(data, text, place), place, {})


def numbered_lines(location: Location, text: Text, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Lines without line ends, with numbers from 1; at most ``max_bytes + 1`` bytes of each line."""
    import fsspec
    from fsspec.compression import compr

    if is_wide(text.encoding):
        raise SettingError(f"encoding={text.encoding!r} cannot be cut into lines; convert {location.name} to utf-8")
    raw = location.open()
    kind = fsspec.utils.infer_compression(location.url)
    size = max(1, location.size())
    number = 0
    with raw, raw if kind is None else compr[kind](raw, mode="rb") as packed:
        file: IO[bytes] = packed if kind is None else io.BufferedReader(_Eager(packed), 2**20)
        while True:
            try:
                line = file.readline(text.max_bytes + 1)
                ended = not line or line.endswith(b"\n")
                while not ended:
                    rest = file.readline(2**20)
                    ended = not rest or rest.endswith(b"\n")
            except DAMAGED as error:
                tally.bad(f"{location.name} after line {number}", f"cut short or damaged: {error}", text)
                return
            if not line:
                return
            number += 1
            tally.share = min(1.0, raw.tell() / size)
            yield number, line.rstrip(b"\r\n")


class _Eager(io.RawIOBase):
    """Stream that returns bytes as soon as they are unpacked, so that no data before a damage are lost."""

    def __init__(self, packed: Any) -> None:
        self._read = getattr(packed, "read1", packed.read)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        data = self._read(len(room))
        room[: len(data)] = data
        return len(data)


def is_wide(encoding: str) -> bool:
    """Whether an encoding takes more than one byte for a Latin letter."""
    return "a".encode(encoding) != b"a" and codecs.lookup(encoding).name != "utf-8-sig"


def is_zip(location: Location) -> bool:
    """Whether a file starts like a .zip archive."""
    with location.open() as file:
        return file.read(4) in (b"PK\3\4", b"PK\5\6")


def zip_members(location: Location) -> list[str]:
    """Names of the files in a .zip archive."""
    try:
        with location.open() as file, zipfile.ZipFile(file) as members:
            return [info.filename for info in members.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise DataError(f"{location.name}: no .zip archive, or one that is cut short ({error})") from error


def _zip(location: Location, text: Text, tally: Tally) -> Iterator[tuple[str, bytes]]:
    zip_members(location)
    with location.open() as file, zipfile.ZipFile(file) as members:
        infos = [info for info in members.infolist() if not info.is_dir()]
        for number, info in enumerate(infos, 1):
            tally.share = number / len(infos)
            if info.external_attr >> 28 == 0xA:
                tally.n_links += 1
                continue
            if not _fits(info.filename, text.glob):
                tally.n_left += 1
                continue
            try:
                with members.open(info) as opened:
                    data = _unpacked(info.filename, opened, text.max_bytes)
            except (*DAMAGED, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
                tally.bad(f"{location.name}:{info.filename}", f"damaged or locked: {error}", text)
                continue
            yield info.filename, data


def _tar(location: Location, text: Text, tally: Tally) -> Iterator[tuple[str, bytes]]:
    size, last = max(1, location.size()), ""
    with location.open() as raw:
        try:
            stream: Any = _Remembering(_unpacked_tar(raw))
            with tarfile.open(name=None, mode="r|", fileobj=stream, encoding="utf-8", errors="replace") as members:
                for member in members:
                    # the list of members would grow with the archive
                    members.members = []  # type: ignore[attr-defined]
                    tally.share = min(1.0, raw.tell() / size)
                    if member.isdir():
                        continue
                    if not member.isfile():
                        tally.n_links += 1
                        continue
                    last = member.name
                    if not _fits(member.name, text.glob):
                        tally.n_left += 1
                        continue
                    opened = members.extractfile(member)
                    data = b"" if opened is None else _member(opened, member, f"{location.name}:{last}", text, tally)
                    if data is not None:
                        yield member.name, data
                # tarfile treats a header that is cut short as the end
                if stream.at(members.offset, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("the mark at the end is missing")
        except (*DAMAGED, tarfile.TarError) as error:
            where = f"{location.name}, at or after member {last}" if last else location.name
            tally.bad(where, f"cut short or damaged: {error}", text)


def _unpacked_tar(raw: Any) -> Any:
    """The unpacked archive; its compression is detected from its first bytes."""
    head = raw.read(6)
    raw.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    return lzma.LZMAFile(raw) if head == b"\xfd7zXZ\0" else raw


class _Remembering:
    """A stream that remembers the last bytes it returned."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._parts = (b"", b"")
        self._stop = 0

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes; fewer only at the end."""
        data = read_up_to(self._file, size - 1)
        if data:
            self._parts = (self._parts[1], data)
            self._stop += len(data)
        return data

    def at(self, start: int, size: int) -> bytes:
        """Bytes at a position that was read recently."""
        held = b"".join(self._parts)
        first = start - (self._stop - len(held))
        return held[first : first + size] if first >= 0 else b""


def _member(opened: IO[bytes], member: tarfile.TarInfo, place: str, text: Text, tally: Tally) -> bytes | None:
    """A member of a .tar; if it is itself packed and damaged, only this member is left out."""
    if not member.name.endswith(".gz"):
        return read_up_to(opened, text.max_bytes)
    try:
        return _unpacked(member.name, opened, text.max_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        tally.bad(place, f"cut short or damaged: {error}", text)
        return None


def _unpacked(name: str, file: IO[bytes], limit: int) -> bytes:
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=file) as unpacked:
            return read_up_to(unpacked, limit)
    return read_up_to(file, limit)


def read_up_to(file: Any, limit: int) -> bytes:
    """All bytes, or one more than the limit, which shows that there are more."""
    parts, held = [], 0
    while held <= limit:
        part = file.read(min(2**20, limit + 1 - held))
        if not part:
            break
        parts.append(part)
        held += len(part)
    return b"".join(parts)


def _document(path: str, data: bytes, place: str, text: Text, tally: Tally) -> Document:
    return Document(path, tally.decode(data, text, place), place, {"folder": posixpath.dirname(path)})


def _fits(path: str, pattern: str | None) -> bool:
    """Whether a path or its last part matches the pattern; without a pattern, whether it is not hidden."""
    if pattern is None:
        return not any(p.startswith(".") and p not in (".", "..") for p in path.split("/")) and "__MACOSX" not in path
    base = posixpath.basename(path)
    return any(fnmatchcase(name, p) for name in (path, base) for p in (pattern, pattern.removeprefix("**/")))


def _nothing_fits(name: str, pattern: str | None, n_files: int) -> str:
    if pattern is None or n_files == 0:
        return f"{name} has no files"
    return f"{name}: none of its {n_files:,} files fits the pattern {pattern!r}"


# -- tables of texts -----------------------------------------------------------------------------------------------
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
    import fsspec
    from fsspec.compression import compr

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


# -- corpora -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Corpus:
    """Raw text that can be read several times.

    Parameters
    ----------
    name, format
        Name for messages, and format.
    origin
        A file or folder, or a function that returns an iterator.
    text
        How the text becomes counts.
    columns
        Metadata to keep; None for all.
    """

    name: str
    format: str
    origin: Location | Documents
    text: Text
    columns: Sequence[str] | None = None

    def read(self, tally: Tally) -> Iterator[Document]:
        """All documents; problems are counted in ``tally``."""
        for document in self._parsed(tally):
            tally.n_documents += 1
            if not (document.id.isascii() and document.place.isascii()):
                # names of files may hold bytes that are not characters
                id, place = without_surrogates(document.id), without_surrogates(document.place)
                document = document._replace(id=id, place=place)
            yield document.keeping(self.text.keep_text)

    def _parsed(self, tally: Tally) -> Iterator[Document]:
        if not isinstance(self.origin, Location):
            return _given(self.origin, self.name, self.columns, tally)
        if self.format in ("text-folder", "text-archive", "lines"):
            if self.columns is not None:
                raise DataError(f"{self.name}: format {self.format} has no columns; leave columns out")
            plain = {
                "text-folder": folder,
                "text-archive": archive,
                "lines": lines,
            }
            return plain[self.format](self.origin, self.text, tally)
        if self.format == "jsonl":
            return jsonl(self.origin, self.text, self.columns, tally)
        if self.format == "parquet-text":
            return parquet(self.origin, self.text, self.columns, tally)
        sep = "\t" if self.format == "tsv-text" else ","
        return csv(self.origin, self.text, self.columns, tally, sep)


def documents_of(given: Any) -> tuple[Documents, str]:
    """A function that returns documents, and its name, from such a function or from a sequence."""
    if callable(given) and not isinstance(given, type):
        return given, getattr(given, "__name__", type(given).__name__)
    if isinstance(given, (list, tuple)):
        return lambda: given, f"{type(given).__name__} of documents"
    raise DataError(
        f"the source is {type(given).__name__}; needs a path or URL, a function that makes an iterator over "
        "(id, text), or a list of them (an iterator itself can be read only once)"
    )


def _given(make: Documents, name: str, columns: Sequence[str] | None, tally: Tally) -> Iterator[Document]:
    """Documents from Python code."""
    made = make()
    if not isinstance(made, Iterable):
        raise DataError(f"{name} made {shown(made)}; needs an iterator over (id, text), or (id, text, metadata)")
    for number, item in enumerate(made):
        if isinstance(item, Document):
            yield item
            continue
        fits = isinstance(item, (tuple, list)) and 2 <= len(item) <= 3 and isinstance(item[1], str)
        if not fits or (len(item) == 3 and not isinstance(item[2], Mapping)):
            raise DataError(
                f"{name}: document {number} is {shown(item)}; needs (id, text), or (id, text, metadata as a mapping)"
            )
        metadata = item[2] if len(item) == 3 else {}
        wanted = metadata if columns is None else {c: metadata.get(c) for c in columns}
        place = f"{name} document {number}"
        yield Document(str(item[0]), tally.clean(item[1], place), place, wanted)
