"""The words of a store of counts: the word of each column, and the settings and functions that cut a text."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from bnp_dask.core import FUNCTIONS, Location, imported
from bnp_dask.data.base import Source, build_csr
from bnp_dask.data.ingestion.writers import write_vector
from bnp_dask.data.sources.zarr import ZarrArray, ZarrCountsSource, open_zarr, store_facts
from bnp_dask.errors import DataError, SettingError, StoreError, answering
from bnp_dask.inputs import shown

# -- analyzers -----------------------------------------------------------------------------------------------------
Analyzer = Callable[[str], list[str]]
"""Function that cuts a text into its words, in order, repeats included."""


def named_analyzer(given: Any) -> str:
    """Name ``module:function`` of a function that cuts texts, registered so that this process may call it.

    Parameters
    ----------
    given
        A function at the top of a module or notebook, or its name, whose module is imported.

    Raises
    ------
    SettingError
        The function does not exist, or has no name by which another process could find it.
    """
    try:
        if isinstance(given, str):
            return FUNCTIONS.add(imported(given), given)
        if isinstance(given, type) or not callable(given):
            raise StoreError(
                f"{shown(given)} is no function from a text to its words, nor the name of one, module:function"
            )
        name = FUNCTIONS.add(given)
        if imported(name) is not given:
            raise StoreError(f"{name} is another function, so that no file can name this one")
    except StoreError as error:
        raise SettingError(f"analyzer: {error}") from error
    return name


def analyzer_of(name: str, left_out: Iterable[str]) -> Analyzer:
    """The registered function of a name, without the words ``left_out`` and empty words.

    Raises
    ------
    StoreError
        The function is not registered in this process.
    """
    function, without = FUNCTIONS.find(name), frozenset(("", *left_out))

    def cut(text: str) -> list[str]:
        found = function(text)
        try:
            words = [word for word in found if word not in without]
        except TypeError as error:
            raise _wrong(name, found) from error
        if isinstance(found, str) or not all(isinstance(word, str) for word in words):
            raise _wrong(name, found)
        return words

    return cut


def _wrong(name: str, found: object) -> DataError:
    return DataError(f"the analyzer {name} made {shown(found)} of a text; needs a list of words")


# -- vocabularies --------------------------------------------------------------------------------------------------
DOCUMENTS, DROPPED = ("documents", "kept.parquet"), ("documents", "dropped.parquet")
"""Tables in a store: documents in the order of the rows, and documents left out."""

BLOCK_TOKENS = 2**19
"""Approximate number of words that are turned into entries at a time."""


WORDS = r"(?u)\b\w[\w\p{M}]+"
"""Default pattern of a word: that of ``CountVectorizer``, which however cuts words at the marks that go with a letter:
vowels of Hindi, Tamil and Thai, points of Arabic and Hebrew, accents that are characters of their own."""


def pattern_of(token_pattern: str) -> str:
    """The pattern for Python's ``re``, which does not know ``\\p{M}``: marks that combine with the letter before."""
    return token_pattern.replace(r"\p{M}", _marks()) if r"\p{M}" in token_pattern else token_pattern


@cache
def _marks() -> str:
    """Ranges of the marks that combine, for a character class; without those that choose a form of an emoji."""
    points = [i for i in range(0x300, 0x20000) if unicodedata.category(chr(i)) in ("Mn", "Mc") and i >> 4 != 0xFE0]
    steps = [0, *(i + 1 for i in range(len(points) - 1) if points[i + 1] != points[i] + 1), len(points)]
    return "".join(f"{chr(points[first])}-{chr(points[last - 1])}" for first, last in pairwise(steps))


@dataclass(frozen=True)
class Analysis:
    """Settings that cut a text into words, as in scikit-learn's ``CountVectorizer``.

    Parameters
    ----------
    lowercase, strip_accents, token_pattern
        As in ``CountVectorizer``; in a pattern ``\\p{M}`` are marks that combine with the letter before.
    ngrams
        ``ngram_range``: shortest and longest run of words.
    stop_words
        Words that are left out before runs are formed.
    min_df
        Least documents (int), or share of them (float), with a word for it to enter the vocabulary.
    function
        Name ``module:function`` of a function that cuts texts instead; then only ``stop_words`` and ``min_df`` count.
    """

    lowercase: bool = True
    strip_accents: str | None = None
    token_pattern: str = WORDS
    ngrams: tuple[int, int] = (1, 1)
    stop_words: tuple[str, ...] = ()
    min_df: int | float = 2
    function: str | None = None

    def analyzer(self, stop: bool = True) -> Analyzer:
        """The function from a text to its words, in order, repeats included; ``stop=False`` leaves stop words in."""
        if self.function is not None:
            return analyzer_of(self.function, self.stop_words if stop else ())
        try:
            from sklearn.feature_extraction.text import CountVectorizer
        except ImportError as error:
            raise SettingError('words of raw text need scikit-learn: pip install "bnp-dask[sklearn]"') from error
        try:
            return CountVectorizer(
                lowercase=self.lowercase,
                strip_accents=self.strip_accents,
                token_pattern=pattern_of(self.token_pattern),
                ngram_range=tuple(self.ngrams),
                stop_words=list(self.stop_words) if stop and self.stop_words else None,
            ).build_analyzer()
        except (re.error, ValueError) as error:
            raise SettingError(f"token_pattern={self.token_pattern!r}: {error}") from error

    def new_words(self, texts: Iterable[str], known: Collection[str]) -> list[str]:
        """Words of some texts that are not ``known`` and occur in at least ``min_df`` of the texts; alphabetical."""
        analyze, documents, n_texts = self.analyzer(), Counter[str](), 0
        for text in texts:
            documents.update(set(analyze(text)))
            n_texts += 1
        least = self.min_df * n_texts if isinstance(self.min_df, float) else self.min_df
        held = set(known)
        return sorted(word for word, count in documents.items() if count >= least and word not in held)

    def to_json(self) -> dict[str, Any]:
        """Settings in their stored form."""
        stored = {**asdict(self), "ngrams": list(self.ngrams), "stop_words": list(self.stop_words)}
        if self.function is None:
            del stored["function"]
        return stored

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Analysis:
        """The inverse of :meth:`to_json`."""
        try:
            return Analysis(
                bool(stored["lowercase"]),
                stored["strip_accents"],
                str(stored["token_pattern"]),
                (int(stored["ngrams"][0]), int(stored["ngrams"][1])),
                tuple(stored["stop_words"]),
                stored["min_df"],
                None if stored.get("function") is None else str(stored["function"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise DataError(f"the stored settings of the vocabulary are damaged ({error!r}); ingest again") from error


@answering
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words of a store of counts.

    Parameters
    ----------
    words
        Word of each column, V of them.
    doc_freq
        Documents of the store with the word, ``(V,)`` int64; None in stores of earlier versions.
    total
        Tokens of the word in the store, ``(V,)`` float64; None in stores of earlier versions.
    analysis
        Settings that cut a text into words; None if the counts came from elsewhere.
    """

    words: tuple[str, ...]
    doc_freq: np.ndarray | None
    total: np.ndarray | None
    analysis: Analysis | None = None

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """Column of each word."""
        return dict(zip(self.words, range(len(self.words))))

    @cached_property
    def digest(self) -> str:
        """Hash of the words in the order of the columns, which identifies this vocabulary."""
        return words_digest(self.words)

    def counts(self, texts: Iterable[str], analysis: Analysis | None = None) -> sparse.csr_array:
        """Counts of new texts, ``(n, V)`` float64, by the analysis of the vocabulary.

        A text without a word of the vocabulary is an empty row.  ``analysis`` replaces the stored one.

        Raises
        ------
        SettingError
            The vocabulary has no analysis and none is given, or scikit-learn is not installed.
        """
        return counts_of_texts(self, texts, analysis)[0]


def counts_of_texts(
    vocabulary: Vocabulary, texts: Iterable[str], analysis: Analysis | None = None
) -> tuple[sparse.csr_array, int]:
    """Counts as from :meth:`Vocabulary.counts`, and the number of tokens of all texts, known words or not."""
    if isinstance(texts, (str, bytes)):
        raise DataError("texts is a single text; needs a sequence of texts: [text]")
    chosen = analysis or vocabulary.analysis
    if chosen is None:
        raise SettingError(
            "this vocabulary was given with counts, and nothing says how a text is cut into words; pass "
            "analysis=bnp_dask.Text(...).analysis"
        )
    return counts_of_words(vocabulary, map(chosen.analyzer(), _all_texts(texts)))


def counts_of_words(vocabulary: Vocabulary, documents: Iterable[Sequence[str]]) -> tuple[sparse.csr_array, int]:
    """Counts of documents that are cut into words, ``(n, V)`` float64, and the number of all their tokens."""
    maker = CountsMaker(vocabulary.index, len(vocabulary))
    parts, n_all = [], 0
    for words in documents:
        maker.add(words)
        n_all += len(words)
        if maker.n_tokens >= BLOCK_TOKENS:
            parts.append(maker.take())
    parts.append(maker.take())
    return parts[0] if len(parts) == 1 else sparse.csr_array(sparse.vstack(parts, format="csr")), n_all


def _all_texts(texts: Iterable[Any]) -> Iterator[str]:
    """The texts; DataError for anything else among them."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {number} is {type(text).__name__}; needs str")
        yield text


class CountsMaker:
    """Builder of counts from the words of documents."""

    def __init__(self, index: Mapping[str, int], n_words: int) -> None:
        self._index = index
        self._n_words = n_words
        self._columns, self._ends = array("i"), [0]

    @property
    def n_tokens(self) -> int:
        """Number of words held, known or not."""
        return len(self._columns)

    def add(self, words: Sequence[str]) -> None:
        """Add a document."""
        self._columns.extend(map(self._index.get, words, repeat(-1)))
        self._ends.append(len(self._columns))

    def take(self) -> sparse.csr_array:
        """Return the counts of the documents held, ``(n, V)``, and release them."""
        columns = np.frombuffer(self._columns, np.int32) if self._columns else np.empty(0, np.int32)
        known = columns >= 0
        before = np.concatenate([[0], np.cumsum(known)])
        lengths = np.diff(before[np.array(self._ends, np.int64)])
        out = build_csr(lengths, columns[known], np.ones(int(before[-1])), self._n_words, "texts")
        self._columns, self._ends = array("i"), [0]
        return out


def words_digest(words: Iterable[str]) -> str:
    """Hash of words in order, 32 hexadecimal digits."""
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


class WordSums:
    """Sums of documents and tokens of each word, over pieces of counts whose width may grow."""

    def __init__(self) -> None:
        self._doc_freq, self._total = np.zeros(0, np.int64), np.zeros(0)

    def add(self, x: sparse.csr_array) -> None:
        """Add counts ``(n, V)`` of more documents."""
        self._doc_freq, self._total = self.of(max(x.shape[1], len(self._total)))
        used = x.data != 0
        self._doc_freq += np.bincount(x.indices[used], minlength=len(self._total))
        self._total += np.bincount(x.indices, weights=x.data, minlength=len(self._total))

    def of(self, n_words: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents and tokens of ``n_words`` words, ``(V,)`` each, at least as many as were seen."""
        more = (0, n_words - len(self._total))
        return np.pad(self._doc_freq, more), np.pad(self._total, more)


def write_vocabulary(
    store: Location, words: Sequence[str], doc_freq: np.ndarray, total: np.ndarray, analysis: Analysis | None
) -> dict[str, Any]:
    """Words beside counts, as UTF-8 bytes joined by newlines (array ``vocabulary``), and the facts of the store."""
    write_vector(store.child("vocabulary"), np.frombuffer("\n".join(words).encode(), np.uint8))
    write_vector(store.child("doc_freq"), doc_freq.astype(np.int64))
    write_vector(store.child("word_total"), total.astype(np.float64))
    return {
        "vocabulary": True,
        "vocabulary_digest": words_digest(words),
        "analysis": None if analysis is None else analysis.to_json(),
    }


@answering
def load_vocabulary(
    source: str | os.PathLike[str] | Source, storage_options: Mapping[str, Any] | None = None
) -> Vocabulary:
    """The vocabulary of a store of counts.

    Parameters
    ----------
    source
        Path or URL of a store that :func:`bnp_dask.ingest` wrote, or the source opened from it.
    storage_options
        Passed to fsspec for URLs.

    Returns
    -------
    Vocabulary
        Words in the order of the columns, documents that have each, and its count in all.

    Raises
    ------
    DataError
        The store holds no vocabulary, or the vocabulary was changed since.
    """
    location = _store(source, storage_options)
    facts = _facts(location)
    if not location.child("vocabulary").exists():
        raise DataError(f"{location.name} holds no vocabulary; ingest raw text, or counts with vocabulary=FILE")
    words = tuple(_read(location.child("vocabulary"), np.uint8).tobytes().decode().split("\n"))
    known, stored = facts["vocabulary_digest"], facts.get("analysis")
    vocabulary = Vocabulary(
        words,
        _read(location.child("doc_freq"), np.int64),
        _read(location.child("word_total"), np.float64),
        None if stored is None else Analysis.from_json(stored),
    )
    if vocabulary.digest != known:
        raise DataError(f"{location.name}: its vocabulary was changed since it was written; ingest again")
    return vocabulary


@answering
def load_documents(
    source: str | os.PathLike[str] | Source, storage_options: Mapping[str, Any] | None = None
) -> pa.Table:
    """Ids (column ``id``) and metadata of the documents of a store, in the order of its rows.

    Parameters
    ----------
    source
        Path or URL of a store that :func:`bnp_dask.ingest` wrote, or the source opened from it.
    storage_options
        Passed to fsspec for URLs.

    Returns
    -------
    pyarrow.Table
        A row for each document.

    Raises
    ------
    DataError
        The store was not ingested from raw text, or its table of documents is damaged.
    """
    return _table(_store(source, storage_options), DOCUMENTS)


@answering
def load_dropped(source: str | os.PathLike[str] | Source, storage_options: Mapping[str, Any] | None = None) -> pa.Table:
    """Documents that an ingest left out: columns ``id``, ``place`` and ``reason``.

    Parameters
    ----------
    source
        Path or URL of a store that :func:`bnp_dask.ingest` wrote, or the source opened from it.
    storage_options
        Passed to fsspec for URLs.

    Returns
    -------
    pyarrow.Table
        A row for each document that was left out.

    Raises
    ------
    DataError
        As for :func:`load_documents`.
    """
    return _table(_store(source, storage_options), DROPPED)


def _store(source: str | os.PathLike[str] | Source, storage_options: Mapping[str, Any] | None) -> Location:
    if isinstance(source, (str, os.PathLike)):
        location = Location.of(source, storage_options, "source")
        location.require()
        return location
    if isinstance(source, ZarrCountsSource):
        return source.location
    raise DataError(f"source={shown(source)} is no store of counts; needs one that ingest wrote from text or counts")


def _facts(location: Location) -> Mapping[str, Any]:
    import zarr

    node = open_zarr(location)
    facts = store_facts(node, location.name) if isinstance(node, zarr.Group) else {}
    if facts.get("kind") != "counts":
        raise DataError(f"{location.name} is no store of counts; needs one that ingest wrote from text or counts")
    return facts


def _read(location: Location, dtype: Any) -> np.ndarray:
    stored = ZarrArray.open(location)
    return stored.read((0, stored.shape[0]), np.dtype(dtype))


def _table(location: Location, parts: tuple[str, str]) -> pa.Table:
    _facts(location)
    file = location.child(*parts)
    if not file.exists():
        raise DataError(f"{location.name} holds no documents; they are kept when raw text is ingested")
    try:
        with file.open() as opened:
            return pq.read_table(opened)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file.name}: damaged or cut short ({error}); ingest again") from error
