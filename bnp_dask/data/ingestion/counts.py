"""Counts of words, and raw text, into a batched store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.core.location import Location
from bnp_dask.data.batching import ENTRY_BYTES
from bnp_dask.data.ingestion.formats import Piece
from bnp_dask.data.ingestion.plan import Plan, stored_bytes
from bnp_dask.data.ingestion.report import IngestReport
from bnp_dask.data.ingestion.writers import CountsWriter
from bnp_dask.data.text.corpus import Corpus
from bnp_dask.data.text.ingest import TextReport, write_corpus
from bnp_dask.data.text.vocabulary import Analysis, WordSums, write_vocabulary
from bnp_dask.errors import DataError, SettingError

_UNBATCHED = 2**62


def write_counts(plan: Plan, pieces: Iterator[tuple[Piece, float]], sample: sparse.csr_array) -> IngestReport:
    """Write pieces of counts, of which ``sample`` is the first, and the vocabulary if one was given."""
    name = plan.given.location.name
    own = plan.given.words
    words = _read_vocabulary(plan.vocabulary) if plan.vocabulary is not None else None if own is None else own.words
    # counts of these two formats are whole by definition; other sources may hold any number
    whole = plan.given.format in ("docword", "ldac")
    kind = np.dtype(np.uint32 if whole else np.float64)
    writer, sums = _counts_writer(plan, kind), WordSums()
    for (held, weights), fraction in pieces:
        x = sparse.csr_array(held)
        if words is not None:
            sums.add(x)
        if whole and x.nnz and x.data.max() > np.iinfo(np.uint32).max:
            raise DataError(f"{name}: a count of {x.data.max():.0f}, more than 2**32 - 1")
        writer.add(x, weights, fraction)
        plan.tell(fraction, writer.n_atoms)
    notes: list[str] = []
    facts: dict[str, Any] = {"vocabulary": False}
    if words is not None:
        if len(words) < writer.n_words:
            raise DataError(f"vocabulary {plan.vocabulary} has {len(words)} words, but {name} has {writer.n_words}")
        writer.n_words = len(words)
        analysis = None if own is None or own.analysis is None else Analysis.from_json(own.analysis)
        facts = write_vocabulary(plan.building, words, *sums.of(len(words)), analysis)
    if writer.n_empty:
        notes.append(f"{writer.n_empty} documents have no words; they are kept as rows without entries")
    if plan.given.format.startswith("svmlight"):
        notes.append("labels of the file are not kept")
    writer.close(facts, name)
    plan.tell(1.0, writer.n_atoms)
    return _counts_report(plan, writer, notes)


def _counts_writer(plan: Plan, kind: np.dtype) -> CountsWriter:
    entries = _UNBATCHED if plan.batch_size is not None else max(1, plan.batch_bytes // ENTRY_BYTES)
    return CountsWriter(plan.building, kind, entries, plan.batch_size, plan.sizes)


def _counts_report(
    plan: Plan, writer: CountsWriter, notes: Sequence[str], text: TextReport | None = None
) -> IngestReport:
    loaded = ENTRY_BYTES * writer.n_entries + 4 * (writer.n_atoms + writer.n_batches)
    return IngestReport(
        plan.given.location.name, plan.target.name, plan.given.format, "counts", writer.n_atoms, writer.n_words,
        writer.n_batches, loaded, stored_bytes(plan.building), str(writer.count_dtype), writer.n_entries, writer.total,
        writer.n_empty, tuple(notes), text,
        sizing=plan.sizing(writer.n_batches),
    )  # fmt: skip


def write_text(plan: Plan, corpus: Corpus) -> IngestReport:
    """Count the words of raw text and write the counts."""
    if plan.project is not None or plan.dtype is not None or plan.given.weights is not None:
        raise SettingError(f"{corpus.name} is raw text; project=, dtype= and weights= are for other data")
    writer = _counts_writer(plan, np.dtype(np.uint32))
    written = write_corpus(corpus, plan.building, writer, plan.vocabulary, plan.tell)
    writer.close(written.facts, corpus.name)
    plan.tell(1.0, writer.n_atoms)
    return _counts_report(plan, writer, written.report.notes, written.report)


def _read_vocabulary(path: str | os.PathLike[str]) -> Sequence[str]:
    location = Location.of(path)
    location.require()
    with location.open("infer") as file:
        return file.read().decode("utf-8", "replace").splitlines()
