"""Raw text: settings to read it and cut it into words, one document as read, and the choice of words.

Document frequencies of all words of a corpus are counted out of core and exactly.
"""

from __future__ import annotations

import codecs
import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from bnp_dask.core import Location
from bnp_dask.data.text.vocabulary import WORDS, Analysis, named_analyzer, pattern_of
from bnp_dask.errors import DataError, SettingError, answering, nearest, warn
from bnp_dask.inputs import MOST, flag, hold, is_number, one_of, shown, whole_number

# -- settings ------------------------------------------------------------------------------------------------------
TEXT_FORMATS = ("text-folder", "text-archive", "lines", "jsonl", "csv-text", "tsv-text", "parquet-text")
"""Formats of raw text: they become counts of words in two passes."""

SHOWN = 3
"""Most places that a report names for a problem."""

_REPLACED = ("lowercase", "strip_accents", "token_pattern", "ngrams")
"""Settings that an analyzer replaces."""

DOCUMENT_BYTES = 16 * 2**20
"""A document larger than this is cut: its words alone would take some hundred megabytes."""


BEGINS = "begins"
"""Metadata that hold the beginnings of texts."""


class Document(NamedTuple):
    """One document: its id, its text, its place (for messages), and its metadata."""

    id: str
    text: str
    place: str
    metadata: Mapping[str, Any]

    def keeping(self, n: int) -> Document:
        """Document with the first ``n`` characters of its text as metadata, with white space as single blanks."""
        if n == 0 or BEGINS in self.metadata:
            return self
        return self._replace(metadata={**self.metadata, BEGINS: " ".join(self.text[: 4 * n].split())[:n]})


Documents = Callable[[], Iterable[tuple[Any, ...]]]
"""Makes an iterator over ``(id, text)`` or ``(id, text, metadata)``; called once for each of two passes."""


@answering
@dataclass(frozen=True)
class Text:
    """Settings by which raw text becomes counts of words, for ``text=`` of :func:`bnp_dask.ingest` and others.

    The words are the same as from scikit-learn's ``CountVectorizer`` with the same settings.  The vocabulary is in
    alphabetical order (by code point), independent of the order of the documents.

    Parameters
    ----------
    column
        Column or key of the text (tables, JSON lines).  Default: ``text``, or the only column of text.
    id_column
        Column or key of the ids.  Default: ``id`` if it exists, else the number of the row or line.  Files of a folder
        or archive are named by their paths.
    glob
        Files of a folder or archive to read, such as ``"*.txt"``; ``*`` also matches slashes.
    encoding
        How bytes become characters.
    strict
        Whether bytes that the encoding does not allow are an error; otherwise they are replaced and counted.
    on_bad
        ``"error"``, or ``"skip"`` to leave out, and count, unreadable files and records.
    on_duplicate
        ``"error"``, or ``"keep"`` to keep, and count, documents with an id that occurred before.
    max_bytes
        Most bytes of a document; longer ones are cut there, and counted.
    keep_empty
        Keep documents without a word of the vocabulary as empty rows.  By default they are left out of the counts, and
        listed with the reason in :func:`load_dropped`.
    lowercase, strip_accents, token_pattern, ngrams
        As in ``CountVectorizer``; ``ngrams=(1, 2)`` are words and pairs of words.  In a pattern ``\\p{M}`` are marks
        that combine with the letter before, as vowels of Hindi and Thai do; the default keeps these in the word.
    stop_words
        Words to leave out: ``"english"`` (scikit-learn's list), the path of a file with one per line, a sequence of
        words, or None.
    min_df, max_df
        Words in fewer or more documents are left out: a number of documents (int) or a share of them (float).
    max_features
        Most words kept.
    rank
        Rank by which words are kept: most ``"tokens"``, or most ``"documents"``; alphabetical among equals.
    analyzer
        Function from a text to its words, in place of ``lowercase``, ``strip_accents``, ``token_pattern`` and
        ``ngrams``: a function at the top of a module or notebook, or its name, ``"module:function"``.  Stop words and
        empty words are removed from its result.  Stores and posteriors keep the name, so that new texts are cut in the
        same way; another process must permit the call by :func:`bnp_dask.register`.
    keep_text
        Number of leading characters of each text to keep beside its id, as metadata ``begins``, which pages about
        topics show; 0 for none.  A document that already has such metadata keeps them.
    """

    column: str | None = None
    id_column: str | None = None
    glob: str | None = None
    encoding: str = "utf-8"
    strict: bool = False
    on_bad: Literal["error", "skip"] = "error"
    on_duplicate: Literal["error", "keep"] = "error"
    max_bytes: int = DOCUMENT_BYTES
    keep_empty: bool = False
    lowercase: bool = True
    strip_accents: Literal["ascii", "unicode"] | None = None
    token_pattern: str = WORDS
    ngrams: tuple[int, int] = (1, 1)
    stop_words: str | Sequence[str] | None = "english"
    min_df: int | float = 2
    max_df: int | float = 1.0
    max_features: int | None = None
    rank: Literal["tokens", "documents"] = "tokens"
    analyzer: str | Callable[[str], Iterable[str]] | None = None
    keep_text: int = 0

    def __post_init__(self) -> None:
        for name, known in (
            ("on_bad", ("error", "skip")),
            ("on_duplicate", ("error", "keep")),
            ("rank", ("tokens", "documents")),
            ("strip_accents", (None, "ascii", "unicode")),
        ):
            one_of(name, getattr(self, name), known)
        for name in ("column", "id_column", "glob"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise SettingError(f"{name}={shown(getattr(self, name))}: needs text, or None")
        for name in ("strict", "keep_empty", "lowercase"):
            hold(self, name, flag(name, getattr(self, name)))
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError, ValueError) as error:
            raise SettingError(f"encoding={shown(self.encoding)} is unknown; such as utf-8 or latin-1") from error
        try:
            if not isinstance(self.token_pattern, str):
                raise TypeError("needs text")
            re.compile(pattern_of(self.token_pattern))
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise SettingError(f"token_pattern={shown(self.token_pattern)}: no regular expression: {error}") from error
        for name in ("min_df", "max_df"):
            _check_frequency(name, getattr(self, name))
        for name in ("max_features", "max_bytes"):
            if getattr(self, name) is not None or name == "max_bytes":
                hold(self, name, whole_number(name, getattr(self, name), 1))
        hold(self, "keep_text", whole_number("keep_text", self.keep_text, what="a number of characters"))
        if not isinstance(self.ngrams, (tuple, list)) or len(self.ngrams) != 2:
            raise SettingError(f"ngrams={shown(self.ngrams)}: needs the shortest and the longest run, such as (1, 2)")
        shortest = whole_number("ngrams[0]", self.ngrams[0], 1)
        hold(self, "ngrams", (shortest, whole_number("ngrams[1]", self.ngrams[1], shortest, 1000)))
        if not isinstance(self.stop_words, (str, Sequence, Set, type(None))):
            raise SettingError(
                f'stop_words={shown(self.stop_words)}: needs "english", a file, a list of words, or None'
            )
        if self.analyzer is not None:
            self._name_analyzer()

    def _name_analyzer(self) -> None:
        """Keep the analyzer's name; SettingError for settings that it replaces."""
        given = [name for name in _REPLACED if not self._is_usual(name)]
        if given:
            raise SettingError(f"analyzer= takes the place of {', '.join(given)}; leave one or the other out")
        hold(self, "analyzer", named_analyzer(self.analyzer))

    def _is_usual(self, name: str) -> bool:
        return bool(getattr(self, name) == next(f.default for f in fields(self) if f.name == name))

    @property
    def analysis(self) -> Analysis:
        """Settings that cut a text into words, with the stop words themselves."""
        return Analysis(
            *(self.lowercase, self.strip_accents, self.token_pattern, self.ngrams, _stop_words(self.stop_words)),
            float(self.min_df) if isinstance(self.min_df, (float, np.floating)) else int(self.min_df),
            None if self.analyzer is None else named_analyzer(self.analyzer),
        )

    def analysis_given(self) -> bool:
        """Whether any setting of the analysis differs from its default."""
        return not all(self._is_usual(name) for name in (*_REPLACED, "stop_words", "analyzer"))


def _check_frequency(name: str, value: Any) -> None:
    if not is_number(value):
        raise SettingError(f"{name}={shown(value)}: needs a number of documents (int) or a share of them (float)")
    if not 0 <= value <= MOST or (isinstance(value, (float, np.floating)) and not value <= 1):
        raise SettingError(f"{name}={shown(value)}: needs at least 0; and at most 1.0 for a share, which is a float")


def _stop_words(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The words themselves, sorted."""
    if given is None:
        return ()
    if isinstance(given, str) and given == "english":
        try:
            from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
        except ImportError as error:
            raise SettingError('the English stop words need scikit-learn: pip install "bnp-dask[sklearn]"') from error
        return tuple(sorted(ENGLISH_STOP_WORDS))
    if isinstance(given, str):
        location = Location.of(given, argument="stop_words")
        if not location.exists():
            raise SettingError(f"stop_words={given!r} is neither 'english' nor a file{nearest(given, ['english'])}")
        given = read_words(location, "stop_words")
    wrong = [word for word in given if not isinstance(word, str)]
    if wrong:
        raise SettingError(f"stop_words: {shown(wrong[0])} is no word; needs text")
    return tuple(sorted(set(given)))


def read_words(location: Location, argument: str) -> list[str]:
    """One word per line of a text file (UTF-8); blank lines are skipped."""
    if location.is_dir():
        raise DataError(f"{argument}: {location.name} is a folder; needs a text file of one word per line")
    with location.open("infer") as file:
        text = file.read().decode("utf-8-sig", "replace")
    return [line.strip() for line in text.split("\n") if line.strip()]


@dataclass(eq=False)
class Tally:
    """Counts of a pass over raw text.

    Parameters
    ----------
    share
        Share of the source read so far.
    n_documents
        Number of documents.
    bad_characters
        Characters that the encoding does not allow, by place.
    nul
        Documents with NUL bytes.
    cut
        Documents longer than ``max_bytes``.
    skipped
        Place and reason of files and records that could not be read.
    n_links
        Members of archives that are links or devices, which are not followed.
    n_outside
        Members of archives whose path leads out of the archive; paths are only used as names.
    n_left
        Files of a folder or archive that the pattern left out.
    schema
        Arrow types of the metadata, if the source gives them.
    """

    share: float = 0.0
    n_documents: int = 0
    bad_characters: dict[str, int] = field(default_factory=dict)
    nul: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    n_links: int = 0
    n_outside: int = 0
    n_left: int = 0
    schema: dict[str, Any] | None = None

    def decode(self, data: bytes, text: Text, place: str) -> str:
        """Characters of a document; undecodable bytes are replaced and counted."""
        if len(data) > text.max_bytes:
            self.cut.append(place)
            data = _shortened(data, text)
        try:
            out = data.decode(text.encoding)
        except (UnicodeDecodeError, UnicodeError) as error:
            if text.strict:
                raise DataError(f"{place}: {error}; say encoding=..., or leave out strict=True") from error
            out = data.decode(text.encoding, "replace")
            known = data.count(b"\xef\xbf\xbd") if codecs.lookup(text.encoding).name == "utf-8" else 0
            self.bad_characters[place] = self.bad_characters.get(place, 0) + max(1, out.count("\ufffd") - known)
        return self.clean(out.removeprefix("\ufeff"), place)

    def clean(self, text: str, place: str) -> str:
        """Text that UTF-8 can encode: lone surrogates are replaced and counted; NUL is noted."""
        if "\0" in text:
            self.nul.append(place)
        if text.isascii():
            return text
        try:
            text.encode()
        except UnicodeEncodeError:
            out = without_surrogates(text)
            self.bad_characters[place] = self.bad_characters.get(place, 0) + out.count("\ufffd") - text.count("\ufffd")
            return out
        return text

    def bad(self, place: str, reason: str, text: Text) -> None:
        """Raise an error for an unreadable file or record, or count it as skipped."""
        if text.on_bad == "error":
            raise DataError(f"{place}: {reason}; leave such out with on_bad='skip' (--on-bad skip)")
        self.skipped.append((place, reason))

    def notes(self) -> Iterator[str]:
        """Notes for a report."""
        if self.bad_characters:
            total = sum(self.bad_characters.values())
            yield f"{total:,} characters could not be decoded and were replaced, in {_few(list(self.bad_characters))}"
        if self.nul:
            yield f"NUL bytes in {_few(self.nul)}; are these text?"
        if self.cut:
            yield f"cut because too long: {_few(self.cut)}; max_bytes= sets the limit"
        if self.skipped:
            reasons = [f"{place} ({reason})" for place, reason in self.skipped]
            yield f"could not be read and were left out: {_few(reasons)}"
        if self.n_links:
            yield f"{self.n_links:,} links or devices in the archive were not followed"
        if self.n_outside:
            yield f"{self.n_outside:,} members have paths that lead out of the archive; they are names only"
        if self.n_left:
            yield f"{self.n_left:,} files were left out by their names"


def _shortened(data: bytes, text: Text) -> bytes:
    """The first bytes, cut where a character ends."""
    part = data[: text.max_bytes]
    decoder = codecs.getincrementaldecoder(text.encoding)("ignore")
    decoder.decode(part)
    rest = decoder.getstate()[0]
    return part[: len(part) - len(rest)] if rest else part


def without_surrogates(text: str) -> str:
    """Text with lone surrogates replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _few(places: Sequence[str]) -> str:
    shown = ", ".join(places[:SHOWN])
    more = f" and {len(places) - SHOWN:,} more" if len(places) > SHOWN else ""
    return f"{len(places):,} of them: {shown}{more}" if len(places) > 1 else shown


def text_column(names: Sequence[str], textual: Sequence[str], wanted: str | None, name: str) -> str:
    """The column of the text: the wanted one, ``text``, or the only one that holds text."""
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"{name}: no column {wanted!r}{nearest(wanted, names)}; it has {', '.join(names)}")
        return wanted
    if "text" in names:
        return "text"
    if len(textual) == 1:
        return textual[0]
    raise DataError(
        f"{name}: which column is the text? It has {', '.join(names)}; say Text(column=...) (--text-column)"
    )


def id_column(names: Sequence[str], wanted: str | None, name: str) -> str | None:
    """The column of the ids, or None if rows are named by their numbers."""
    if wanted is not None and wanted not in names:
        raise DataError(f"{name}: no column {wanted!r}{nearest(wanted, names)}; it has {', '.join(names)}")
    return wanted if wanted is not None else "id" if "id" in names else None


# -- words that are kept -------------------------------------------------------------------------------------------
CANDIDATES = 2**20
"""Most words counted in memory (some 250 MB); beyond, they are sorted and written to disk, and counting starts anew."""

MERGED_AT_ONCE = 32
"""Most files on disk that are open together."""

RUN_ROWS = 2**14
"""Words held of each file on disk while files are merged."""

Row = tuple[str, int, int]
"""A word, the number of documents with it, and its tokens."""

_SCHEMA = pa.schema([("word", pa.large_string()), ("documents", pa.int64()), ("tokens", pa.int64())])


class Frequencies:
    """Counter of words of documents; use it in a ``with`` block, which removes its files.

    Parameters
    ----------
    limit
        Most words in memory.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = CANDIDATES if limit is None else limit
        self._documents: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[Path] = []
        self._made = 0
        self.n_documents = 0

    def __enter__(self) -> Frequencies:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def n_spilled(self) -> int:
        """Number of files written to disk."""
        return self._made

    def add(self, words: list[str]) -> None:
        """Add the words of a document, repeats included."""
        self.n_documents += 1
        self._tokens.update(words)
        self._documents.update(set(words))
        if len(self._documents) > self._limit:
            self._runs.append(self._write(self._held()))
            self._documents, self._tokens = Counter(), Counter()

    def rows(self) -> Iterator[Row]:
        """Every word once, in alphabetical order."""
        while len(self._runs) > MERGED_AT_ONCE:
            some, self._runs = self._runs[:MERGED_AT_ONCE], self._runs[MERGED_AT_ONCE:]
            self._runs.append(self._write(_merged([_read(path) for path in some])))
            for path in some:
                path.unlink()
        return _merged([*(_read(path) for path in self._runs), self._held()])

    def _held(self) -> Iterator[Row]:
        return ((word, self._documents[word], self._tokens[word]) for word in sorted(self._documents))

    def _write(self, rows: Iterable[Row]) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="bnp-dask-words-")
        path = Path(self._folder.name) / f"{self._made}.arrow"
        self._made += 1
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as out:
            held: list[Row] = []
            for row in rows:
                held.append(row)
                if len(held) == RUN_ROWS:
                    out.write_batch(_arrow(held))
                    held = []
            if held:
                out.write_batch(_arrow(held))
        return path


def _arrow(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column, f.type) for column, f in zip(zip(*rows), _SCHEMA)], schema=_SCHEMA)


def _read(path: Path) -> Iterator[Row]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            yield from zip(*(column.to_pylist() for column in batch.columns))


def _merged(runs: list[Iterator[Row]]) -> Iterator[Row]:
    """Merge runs in alphabetical order into one, with equal words added up."""
    if len(runs) == 1:
        yield from runs[0]
        return
    word, documents, tokens = None, 0, 0
    for other, more_documents, more_tokens in heapq.merge(*runs):
        if other == word:
            documents, tokens = documents + more_documents, tokens + more_tokens
            continue
        if word is not None:
            yield word, documents, tokens
        word, documents, tokens = other, more_documents, more_tokens
    if word is not None:
        yield word, documents, tokens


@dataclass
class Dropped:
    """Words left out for one reason, and their tokens."""

    words: int = 0
    tokens: int = 0

    def add(self, tokens: int) -> None:
        """Add a word."""
        self.words += 1
        self.tokens += tokens


@dataclass(frozen=True, eq=False)
class Chosen:
    """The words kept, in alphabetical order, and the words left out: stop words, rare, common, over the size.

    ``n_words`` and ``n_tokens`` count the whole corpus.
    """

    words: tuple[str, ...]
    n_words: int
    n_tokens: int
    dropped: dict[str, Dropped]


UNCUT = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{8}")
"""Eight characters in a row of Thai, Lao, Burmese, Khmer, Japanese or Chinese: a sentence, or part of one."""

TAGS = frozenset(("br", "div", "href", "li", "nbsp", "script", "src", "td", "tr", "ul"))
"""Words that are marks of HTML, and hardly words of a language."""

TAGS_SHARE = 0.05
"""Share of them from which a warning says so."""

UNCUT_SHARE = 0.2
"""Share of such tokens from which a warning says so; texts that are cut have some names and loan words as long."""


def choose(found: Frequencies, text: Text, stop: Iterable[str], name: str) -> Chosen:
    """The vocabulary, chosen as in scikit-learn, from a stream of words.

    ``stop`` are words to leave out here; the analysis kept them so that they could be counted.

    Raises
    ------
    DataError
        No word is left.
    """
    n = found.n_documents
    least = text.min_df if isinstance(text.min_df, int) else text.min_df * n
    most = text.max_df if isinstance(text.max_df, int) else text.max_df * n
    left_out = frozenset(stop)
    dropped = {reason: Dropped() for reason in ("stop words", "too rare", "too common", "over the size")}
    kept: list[Row] = []
    n_words = n_tokens = n_uncut = n_tags = 0
    size = text.max_features
    for row in found.rows():
        word, documents, tokens = row
        n_words, n_tokens = n_words + 1, n_tokens + tokens
        n_uncut += tokens if not word.isascii() and UNCUT.search(word) else 0
        n_tags += tokens if word in TAGS else 0
        if word in left_out:
            dropped["stop words"].add(tokens)
        elif documents < least:
            dropped["too rare"].add(tokens)
        elif documents > most:
            dropped["too common"].add(tokens)
        else:
            kept.append(row)
            if size is not None and len(kept) >= 2 * size + 1000:
                kept = _largest(kept, size, text.rank, dropped["over the size"])
    if size is not None:
        kept = _largest(kept, size, text.rank, dropped["over the size"])
    if n_tags > TAGS_SHARE * n_tokens:
        warn(
            f"{name}: {n_tags:,} of {n_tokens:,} tokens are of the markup of HTML, such as 'div' and 'nbsp'; take the "
            "text out of the pages first, with a library for HTML"
        )
    if n_uncut > UNCUT_SHARE * n_tokens:
        warn(
            f"{name}: {n_uncut:,} of {n_tokens:,} tokens are long runs of a script that puts no spaces between words; "
            "cut such texts with a library of the language, and give lists of words, or Text(analyzer=) a function"
        )
    if not kept:
        reasons = ", ".join(f"{d.words:,} {reason}" for reason, d in dropped.items() if d.words) or "there were none"
        raise DataError(
            f"{name}: no word is left of {n_words:,} in {n:,} documents ({reasons}); change min_df={text.min_df}, "
            f"max_df={text.max_df}, stop_words or token_pattern"
        )
    words = tuple(sorted(row[0] for row in kept))
    return Chosen(words, n_words, n_tokens, {reason: d for reason, d in dropped.items() if d.words})


def _largest(rows: list[Row], size: int, rank: str, dropped: Dropped) -> list[Row]:
    ordered = sorted(rows, key=lambda row: (-(row[2] if rank == "tokens" else row[1]), row[0]))
    for row in ordered[size:]:
        dropped.add(row[2])
    return ordered[:size]
