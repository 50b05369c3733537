"""The vocabulary of texts in memory, chosen as in :func:`bnp_dask.ingest`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bnp_dask.data.text.options import Text
from bnp_dask.data.text.vocabulary import Vocabulary
from bnp_dask.data.text.word_counts import Frequencies, choose
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown


def as_texts(given: Any, name: str) -> list[str]:
    """Raw texts as a list; DataError for a single text, and for items that are not texts."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise DataError(f"{name}={shown(given)}: needs a list of texts")
    texts = list(given)
    wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"{name}[{wrong}] is {type(texts[wrong]).__name__}; needs str: a list of texts")
    return texts


def vocabulary_of_texts(texts: list[str], text: Text, name: str) -> Vocabulary:
    """Words of texts that the settings keep, in alphabetical order; DataError if none is left."""
    analysis = text.analysis
    # single stop words are left out later, when they can be counted
    late = analysis.ngrams == (1, 1)
    analyze = analysis.analyzer(stop=not late)
    with Frequencies() as found:
        for one in texts:
            found.add(analyze(one))
        chosen = choose(found, text, analysis.stop_words if late else (), name)
    return Vocabulary(chosen.words, None, None, analysis)
