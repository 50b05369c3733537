"""Text formats of word counts, read as a stream of CSR pieces: UCI docword, LDA-C, svmlight."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
from scipy import sparse

from bnp_dask.data.batching import build_csr
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import require_exact

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
