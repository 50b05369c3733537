"""Raw texts and stores of counts, held against the vocabulary that a posterior was trained with."""

from __future__ import annotations

from typing import Any

from scipy import sparse

from bnp_dask.data import Analysis, Vocabulary, load_vocabulary
from bnp_dask.data.base import Source
from bnp_dask.data.zarr_counts import ZarrCountsSource
from bnp_dask.errors import DataError
from bnp_dask.model import Posterior
from bnp_dask.words import Words


def words_of(source: Source) -> Words | None:
    """The vocabulary of a store of counts; None for other sources, and stores without one."""
    if not isinstance(source, ZarrCountsSource) or source.vocabulary_digest is None:
        return None
    found = load_vocabulary(source)
    return Words.of(found.words, None if found.analysis is None else found.analysis.to_json())


def vocabulary_of(posterior: Posterior) -> Vocabulary:
    """The vocabulary that a posterior was trained with; DataError when it knows none."""
    if posterior.words is None:
        raise DataError(
            "the posterior knows no vocabulary: it was trained on counts without words. Turn texts into counts with "
            "load_vocabulary(STORE).counts(texts), or train on a store that ingest made from raw text"
        )
    analysis = posterior.words.analysis
    return Vocabulary(posterior.words.words, None, None, None if analysis is None else Analysis.from_json(analysis))


def is_texts(data: Any) -> bool:
    """Whether data is a list or tuple of raw texts (a single string is a path)."""
    return isinstance(data, (list, tuple)) and len(data) > 0 and isinstance(data[0], str)


def counts_of(posterior: Posterior, texts: Any) -> sparse.csr_array:
    """Counts of raw texts by the posterior's own vocabulary, ``(n, V)``."""
    return vocabulary_of(posterior).counts(texts)


def check_vocabulary(posterior: Posterior, source: Source) -> None:
    """DataError when a store of counts has other words than those the posterior was trained with."""
    if posterior.words is None or not isinstance(source, ZarrCountsSource) or source.vocabulary_digest is None:
        return
    if source.vocabulary_digest != posterior.words.digest:
        raise DataError(
            f"{source.name}: its vocabulary of {source.n_features} words is not the one that the posterior was trained "
            f"with ({len(posterior.words)} words): the same column would be another word. Ingest the texts again with "
            "vocabulary=STORE, the store that the posterior was trained on, or predict from the raw texts"
        )
