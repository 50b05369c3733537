"""Raw text into counts, in two passes: the first chooses the words, the second writes the counts of each document."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from bnp_dask.core import Location
from bnp_dask.data.ingestion.writers import CountsWriter
from bnp_dask.data.text.files import Corpus
from bnp_dask.data.text.options import (
    BEGINS,
    Chosen,
    Document,
    Dropped,
    Frequencies,
    Tally,
    Text,
    choose,
    read_words,
    without_surrogates,
)
from bnp_dask.data.text.vocabulary import (
    BLOCK_TOKENS,
    DOCUMENTS,
    DROPPED,
    Analysis,
    CountsMaker,
    WordSums,
    load_vocabulary,
    write_vocabulary,
)
from bnp_dask.errors import DataError, SettingError

# -- facts about documents -----------------------------------------------------------------------------------------
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


# -- ingest --------------------------------------------------------------------------------------------------------
Tell = Callable[[float, int], None]

MANY_WORDS = 100_000
"""Number of words from which on a report gives the memory of a topic."""

BLOCK_DOCUMENTS = 4096


@dataclass(frozen=True)
class TextReport:
    """Facts about raw text that was ingested.

    Parameters
    ----------
    n_documents
        Documents read.
    n_empty, n_without_words
        Documents without text, and with text but without a word of the vocabulary.
    kept_empty
        Whether these were kept, as empty rows.
    n_words, n_tokens
        Words and tokens of the whole corpus, before any was left out; 0 when the vocabulary was given.
    dropped
        Reason, words and tokens of words left out.
    n_duplicates
        Documents with an id that occurred before.
    n_unknown
        Tokens that are not in a given vocabulary.
    n_skipped, n_bad_characters
        Files and records that could not be read, and characters that could not be decoded.
    notes
        Further notes on the text.
    """

    n_documents: int
    n_empty: int
    n_without_words: int
    kept_empty: bool
    n_words: int
    n_tokens: int
    dropped: tuple[tuple[str, int, int], ...]
    n_duplicates: int
    n_unknown: int
    n_skipped: int
    n_bad_characters: int
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """The report, line by line."""
        yield f"  read {self.n_documents:,} documents"
        if self.n_words:
            yield f"  found {self.n_words:,} words, {self.n_tokens:,} tokens; left out:" + (
                "" if self.dropped else " none"
            )
            for reason, words, tokens in self.dropped:
                yield f"    {reason + ':':<15} {words:>12,} words {tokens:>15,} tokens"
        if self.n_unknown:
            yield f"  {self.n_unknown:,} tokens are not in the vocabulary"
        if self.n_empty + self.n_without_words:
            what = "kept as empty rows" if self.kept_empty else "left out of the counts (see load_dropped)"
            yield (
                f"  {self.n_empty + self.n_without_words:,} documents {what}: {self.n_empty:,} without text, "
                f"{self.n_without_words:,} without a word of the vocabulary"
            )


@dataclass(frozen=True, eq=False)
class Written:
    """Facts about a written corpus; the writer holds its sizes."""

    writer: CountsWriter
    report: TextReport
    facts: dict[str, Any]


@dataclass(eq=False)
class _First:
    """Result of the first pass."""

    tally: Tally
    words: tuple[str, ...]
    analysis: Analysis
    chosen: Chosen | None
    types: MetadataTypes
    mark: int
    n_duplicates: int


def write_corpus(
    corpus: Corpus,
    building: Location,
    writer: CountsWriter,
    vocabulary: str | os.PathLike[str] | None,
    tell: Tell,
) -> Written:
    """Read a corpus twice and write counts, vocabulary and documents; the caller closes the writer.

    Memory: the vocabulary, one batch, 16 bytes per document, and in the first pass the candidates for words, which go
    to disk when there are more than :data:`corpus_count.CANDIDATES`.
    """
    first = _first_pass(corpus, vocabulary, tell)
    second = _Second(corpus, first, building, writer)
    mark, tally = 0, Tally()
    total = max(1, first.tally.n_documents)
    with TableWriter(building.child(*DOCUMENTS), first.types.schema()) as kept, TableWriter(
        building.child(*DROPPED), pa.schema([(c, pa.string()) for c in ("id", "place", "reason")])
    ) as dropped:  # fmt: skip
        for document in corpus.read(tally):
            mark = _marked(mark, document)
            second.add(document, kept, dropped)
            if tally.n_documents % 256 == 0:
                tell(0.5 + 0.5 * min(1.0, tally.n_documents / total), tally.n_documents)
        second.flush()
        for place, reason in first.tally.skipped:
            dropped.add({"id": None, "place": place, "reason": reason})
    if mark != first.mark:
        raise DataError(f"{corpus.name} changed while it was read: both passes must see the same documents")
    if writer.n_atoms == 0:
        raise DataError(f"{corpus.name}: none of its {tally.n_documents:,} documents has a word of the vocabulary")
    zarr.create_group(building.child(DOCUMENTS[0]).zarr_store(read_only=False))
    facts = write_vocabulary(building, first.words, *second.sums.of(len(first.words)), first.analysis)
    return Written(writer, _report(corpus, first, second), facts)


def _first_pass(corpus: Corpus, vocabulary: str | os.PathLike[str] | None, tell: Tell) -> _First:
    text, tally = corpus.text, Tally()
    given = None if vocabulary is None else given_words(vocabulary, text)
    analysis = text.analysis if given is None or given[1] is None else given[1]
    # single stop words are left out later, when they can be counted
    late = analysis.ngrams == (1, 1)
    analyze = analysis.analyzer(stop=not late)
    ids, mark, types = _Ids(), 0, MetadataTypes()
    with Frequencies() as found:
        for document in corpus.read(tally):
            ids.add(document.id)
            types.add(document.metadata)
            mark = _marked(mark, document)
            if given is None:
                words = analyze(document.text)
                found.add(words)
            if tally.n_documents % 256 == 0:
                tell(0.5 * min(1.0, tally.share), tally.n_documents)
        if tally.n_documents == 0:
            raise DataError(f"{corpus.name} has no documents")
        n_duplicates = _check_ids(corpus, ids)
        chosen = None if given is not None else choose(found, text, analysis.stop_words if late else (), corpus.name)
    words_kept = given[0] if given is not None else chosen.words if chosen is not None else ()
    if any("\n" in word for word in words_kept):
        what = f"token_pattern={text.token_pattern!r}" if analysis.function is None else f"analyzer={analysis.function}"
        raise SettingError(f"{what} gives words with line breaks in them")
    kept = {BEGINS: pa.string()} if text.keep_text else {}
    types.fix(None if tally.schema is None else {**kept, **tally.schema})
    return _First(tally, tuple(words_kept), analysis, chosen, types, mark, n_duplicates)


def given_words(path: str | os.PathLike[str], text: Text) -> tuple[list[str], Analysis | None]:
    """Words of a file, or words and analysis of a store that was ingested before."""
    location = Location.of(path)
    location.require()
    if location.is_dir():
        known = load_vocabulary(path)
        if known.analysis is not None and text.analysis_given() and text.analysis != known.analysis:
            raise SettingError(
                f"{location.name} was made with other settings of words ({known.analysis}); leave these "
                "settings out to use its own"
            )
        return list(known.words), known.analysis
    words = read_words(location, "vocabulary")
    seen: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if seen.setdefault(word, number) != number:
            raise DataError(f"{location.name}: {word!r} is there twice (words {seen[word]} and {number})")
    if not words:
        raise DataError(f"{location.name} has no words")
    return words, None


def _marked(mark: int, document: Document) -> int:
    """A running checksum of ids and lengths, which shows whether both passes read the same documents."""
    return zlib.crc32(f"{document.id}\n{len(document.text)}".encode("utf-8", "replace"), mark)


class _Ids:
    """Search for repeated ids that holds 16 bytes per id."""

    def __init__(self) -> None:
        self._hashes = array("Q")

    def add(self, id: str) -> None:
        self._hashes.frombytes(hashlib.blake2b(id.encode("utf-8", "replace"), digest_size=16).digest())

    def repeats(self) -> tuple[int, int]:
        """Number of repeated ids, and the position of the first; (0, -1) if there is none."""
        pairs = np.frombuffer(self._hashes, np.uint64).reshape(-1, 2)
        order = np.lexsort((np.arange(len(pairs)), pairs[:, 1], pairs[:, 0]))
        same = (pairs[order[1:]] == pairs[order[:-1]]).all(axis=1)
        return int(same.sum()), int(order[1:][same].min()) if same.any() else -1


def _check_ids(corpus: Corpus, ids: _Ids) -> int:
    n, position = ids.repeats()
    if n == 0 or corpus.text.on_duplicate == "keep":
        return n
    places: dict[str, str] = {}
    for number, document in enumerate(corpus.read(Tally())):
        if number == position:
            raise DataError(
                f"{n:,} documents have an id that was there before; the first is {document.id!r}: "
                f"{places.get(document.id, 'unknown place')} and {document.place}. Choose another id_column, or keep "
                "both with on_duplicate='keep' (--duplicate-ids keep)"
            )
        places[document.id] = document.place
    raise DataError(f"{corpus.name} changed while it was read")


@dataclass(eq=False)
class _Second:
    """The second pass: documents come in, blocks of counts go to the writer."""

    corpus: Corpus
    first: _First
    building: Location
    writer: CountsWriter
    n_empty: int = 0
    n_without: int = 0
    n_unknown: int = 0
    _read: int = 0
    _held: list[Document] = field(default_factory=list)

    def __post_init__(self) -> None:
        words = self.first.words
        late = self.first.analysis.ngrams == (1, 1)
        # a vocabulary chosen here has no stop words; a given vocabulary may hold some, and then they count
        self._analyze = self.first.analysis.analyzer(stop=not (late and self.first.chosen is not None))
        self._maker = CountsMaker(dict(zip(words, range(len(words)))), len(words))
        self._lengths: list[int] = []
        self._tables: tuple[Any, Any] | None = None
        self.sums = WordSums()

    def add(self, document: Document, kept: TableWriter, dropped: TableWriter) -> None:
        words = self._analyze(document.text)
        self._maker.add(words)
        self._lengths.append(len(words))
        # of the text, the tables only need to know whether it is empty
        self._held.append(document._replace(text="x" if document.text.strip() else ""))
        self._tables = (kept, dropped)
        if self._maker.n_tokens >= BLOCK_TOKENS or len(self._held) >= BLOCK_DOCUMENTS:
            self.flush()

    def flush(self) -> None:
        """Write the held counts and documents to the store."""
        if not self._held or self._tables is None:
            return
        kept, dropped = self._tables
        x = self._maker.take()
        has_words = np.diff(x.indptr) > 0
        self.n_unknown += sum(self._lengths) - int(x.data.sum())
        self.sums.add(x)
        for document, has in zip(self._held, has_words.tolist()):
            if not has:
                self.n_empty += not document.text
                self.n_without += bool(document.text)
            if has or self.corpus.text.keep_empty:
                kept.add({**self.first.types.row(document.metadata), "id": document.id})
            else:
                reason = "no word of the vocabulary" if document.text else "no text"
                dropped.add({"id": document.id, "place": document.place, "reason": reason})
        self._read += len(self._held)
        share = self._read / max(1, self.first.tally.n_documents)
        self.writer.add(x if self.corpus.text.keep_empty else x[np.flatnonzero(has_words)], share=share)
        self._held, self._lengths = [], []


def _report(corpus: Corpus, first: _First, second: _Second) -> TextReport:
    tally, chosen = first.tally, first.chosen
    notes = list(tally.notes())
    if first.n_duplicates:
        notes.append(f"{first.n_duplicates:,} documents have an id that was there before; they were kept")
    if chosen is not None and len(first.analysis.stop_words) and first.analysis.ngrams != (1, 1):
        notes.append("stop words were left out before runs of words were formed, and are not counted")
    if len(first.words) >= MANY_WORDS:
        each = 8 * len(first.words) / 2**20
        notes.append(
            f"{len(first.words):,} words: a topic takes {each:,.1f} MB, 100 topics {100 * each / 1024:,.1f} GB; "
            "min_df and max_features make the vocabulary smaller"
        )
    notes += first.types.notes()
    reasons: Iterable[tuple[str, Dropped]] = chosen.dropped.items() if chosen is not None else ()
    return TextReport(
        n_documents=tally.n_documents,
        n_empty=second.n_empty,
        n_without_words=second.n_without,
        kept_empty=corpus.text.keep_empty,
        n_words=0 if chosen is None else chosen.n_words,
        n_tokens=0 if chosen is None else chosen.n_tokens,
        dropped=tuple((reason, d.words, d.tokens) for reason, d in reasons),
        n_duplicates=first.n_duplicates,
        n_unknown=0 if chosen is not None else second.n_unknown,
        n_skipped=len(tally.skipped),
        n_bad_characters=sum(tally.bad_characters.values()),
        notes=tuple(notes),
    )
