"""Document frequencies of all words of a corpus, counted out of core and exactly, and the choice of words."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from bnp_dask.data.text.options import Text
from bnp_dask.errors import DataError

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
    n_words = n_tokens = 0
    size = text.max_features
    for row in found.rows():
        word, documents, tokens = row
        n_words, n_tokens = n_words + 1, n_tokens + tokens
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
