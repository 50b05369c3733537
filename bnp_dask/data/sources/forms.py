"""The forms in which people hold data, and the plain form of each that sources are made of.

All that opens data goes through :func:`plain_form`: sources, estimators, ingestion, and matching with a posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.data.base import Source
from bnp_dask.data.sources.arrow import as_table
from bnp_dask.data.text.in_memory import Documents, documents_in, documents_of_table, listed, tell_of_unknown
from bnp_dask.data.text.options import Text
from bnp_dask.errors import DataError
from bnp_dask.inputs.column_notation import Key
from bnp_dask.inputs.sparse_rows import counts_of_corpus, is_corpus


@dataclass(frozen=True)
class Needs:
    """Facts about a model by which data are read for it.

    Parameters
    ----------
    likelihood
        Name of the likelihood, for messages.
    may_miss
        Whether entries may be missing.
    levels
        Columns that hold levels.
    chosen
        Columns that the likelihood chooses from a table; None for all.
    in_order
        Whether rows are steps of sequences.
    counts_words
        Whether data are counts of words.
    n_words
        Number of words of a trained model; None before training.
    has_columns
        Whether a trained model knows its features by the names of columns.
    """

    likelihood: str
    may_miss: bool = False
    levels: tuple[Key, ...] = ()
    chosen: tuple[str, ...] | None = None
    in_order: bool = False
    counts_words: bool = False
    n_words: int | None = None
    has_columns: bool = False


def plain_form(data: Any, needs: Needs | None = None, text: Text | None = None) -> Any:
    """Data in the plain form: :class:`Documents`, or data that sources are made of; these are returned unchanged.

    Parameters
    ----------
    data
        Any data of the user.
    needs
        Facts about the model that the data are for; None if it is unknown.
    text
        How raw texts become counts.

    Raises
    ------
    DataError
        Documents for a model that counts no words; sequences for a model of single rows.
    """
    if isinstance(data, (Documents, Source)):
        return data
    data = listed(data)
    documents = documents_in(data)
    if documents is not None:
        return documents if needs is None or needs.counts_words else _refuse(documents, needs)
    if (needs is None or needs.counts_words) and is_corpus(data):
        return _in_known_words(counts_of_corpus(data), None if needs is None else needs.n_words)
    if text is not None or (needs is not None and needs.counts_words and not needs.has_columns):
        table = as_table(data)
        return documents_of_table(table, text, is_new=needs is None or needs.n_words is None) or table
    is_array = isinstance(data, np.ndarray) and data.ndim == 3
    if is_array and needs is not None and not needs.in_order:
        raise DataError(
            f"an array of shape {data.shape} holds {len(data)} sequences, but this model takes rows; models of "
            "sequences (HDPHMM, FiniteHMM, SequenceModel) take it as it is. For a mixture of all steps pass "
            "x.reshape(-1, x.shape[2]); where each x[i] is one atom (an image) x.reshape(len(x), -1)"
        )
    return data


def _in_known_words(counts: sparse.csr_array, n_words: int | None) -> sparse.csr_array:
    """Counts ``(n, V)`` of the words that a model has; one line says how many tokens are left out."""
    if n_words is None or counts.shape[1] <= n_words:
        counts.resize((counts.shape[0], max(counts.shape[1], n_words or 0)))
        return counts
    known = sparse.csr_array(counts[:, :n_words])
    tell_of_unknown(float(counts.sum() - known.sum()), float(counts.sum()), "data")
    return known


def sequences_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows ``(G T, D)`` of sequences ``(G, T, D)``, and their offsets ``(G + 1,)``."""
    n, length, width = x.shape
    return x.reshape(n * length, width), np.arange(n + 1, dtype=np.int64) * length


def _refuse(documents: Documents, needs: Needs) -> Any:
    """Raise DataError: documents, but the likelihood counts no words."""
    advice = (
        "records of a table: pandas.DataFrame(data)"
        if documents.kind == "counts of words"
        else "levels of one column: pandas.DataFrame({'x': data}) with Categorical()"
    )
    raise DataError(
        f"data are {len(documents.items):,} {documents.kind}, but {needs.likelihood} takes rows of numbers. Documents "
        f"are for Multinomial(), as in TopicModel() or Model(HDPTopics(), Multinomial()); {advice}"
    )
