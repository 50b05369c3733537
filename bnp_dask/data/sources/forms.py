"""The forms in which people hold data, and the plain form of each that sources are made of.

All that opens data goes through :func:`plain_form`: sources, estimators, ingestion, and matching with a posterior.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core.columns import few
from bnp_dask.data.base import Source
from bnp_dask.data.sources.columns import TEXTS, arrow_columns, as_table, frame_columns, is_number_text, is_text
from bnp_dask.data.sources.dask_collections import refuse_promises
from bnp_dask.data.text.options import Frequencies, Text, choose, text_column
from bnp_dask.data.text.vocabulary import Vocabulary, counts_of_texts, counts_of_words
from bnp_dask.errors import DataError, warn
from bnp_dask.inputs import KNOWN, Key, counts_of_corpus, from_parts, is_corpus, is_stream, library, shown, unlabelled

# -- documents ------------------------------------------------------------------------------------------------------
logger = logging.getLogger("bnp_dask")

Kind = Literal["texts", "lists of words", "counts of words"]
"""Forms of documents: str, lists of str, or mappings from words to counts."""

OTHERS = frozenset(("bnp_dask", "h5py", "jax", "pyarrow", "tensorflow", "torch", *KNOWN))
"""Packages whose iterable objects are no documents."""


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents in memory.

    Parameters
    ----------
    kind
        Form of the documents.
    items
        The documents.
    name
        Name for messages.
    """

    kind: Kind
    items: Sequence[Any]
    name: str = "data"

    def __post_init__(self) -> None:
        wanted: Any = {"texts": str, "lists of words": (list, tuple), "counts of words": Mapping}[self.kind]
        for number, item in enumerate(self.items):
            if item is None or type(item).__name__ == "NAType" or (isinstance(item, float) and math.isnan(item)):
                raise DataError(
                    f"{self.name}[{number}] is missing ({item}), but others are {self.kind}; leave such documents out, "
                    "as texts.dropna() does for a Series, or give an empty one in their place"
                )
            if not isinstance(item, wanted):
                raise DataError(
                    f"{self.name}[{number}] is {shown(item)}, but others are {self.kind}; needs one form for all "
                    "documents: texts (str), lists of words, or mappings from words to counts"
                )
            wrong = [word for word in item if not isinstance(word, str)] if self.kind != "texts" else []
            if wrong:
                raise DataError(f"{self.name}[{number}] holds {shown(wrong[0])}, which is no word; needs text")

    def vocabulary(self, text: Text) -> Vocabulary:
        """Words that the settings keep, in alphabetical order; DataError if none is left.

        For lists of words, which are cut already, only settings that choose among words count.  Mappings keep all
        their words.
        """
        if self.kind == "counts of words":
            words = tuple(sorted({word for item in self.items for word in item}))
            if not words:
                raise DataError(f"{self.name}: {len(self.items):,} documents without any word")
            return Vocabulary(words, None, None, None)
        analysis = text.analysis
        # single stop words are left out later, when they can be counted
        late = self.kind == "lists of words" or analysis.ngrams == (1, 1)
        cut = map(analysis.analyzer(stop=not late), self.items) if self.kind == "texts" else map(list, self.items)
        with Frequencies() as found:
            for own in cut:
                found.add(own)
            chosen = choose(found, text, analysis.stop_words if late else (), self.name)
        return Vocabulary(chosen.words, None, None, analysis if self.kind == "texts" else None)

    def new_words(self, known: Vocabulary) -> list[str]:
        """Words that a vocabulary lacks, in alphabetical order; for texts, only in ``Text.min_df`` texts or more."""
        if self.kind == "texts":
            return [] if known.analysis is None else known.analysis.new_words(self.items, known.words)
        return sorted({word for item in self.items for word in item} - set(known.words))

    def counts(self, vocabulary: Vocabulary) -> tuple[sparse.csr_array, float]:
        """Counts in a vocabulary, ``(n, V)`` float64, and the number of all tokens, known words or not.

        A document without a word of the vocabulary is an empty row.

        Raises
        ------
        SettingError
            Texts, and the vocabulary does not say how they are cut.
        DataError
            A count that is no number, or negative.
        """
        if self.kind == "texts":
            return counts_of_texts(vocabulary, self.items)
        if self.kind == "lists of words":
            return counts_of_words(vocabulary, self.items)
        index = vocabulary.index
        places = np.array([index.get(word, -1) for item in self.items for word in item], np.int64)
        try:
            values = np.array([count for item in self.items for count in item.values()], np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.name}: a count is no number ({error}); needs mappings from words to counts"
            ) from error
        if not np.all(values >= 0):
            raise DataError(f"{self.name}: a count is {values.min():g}; needs numbers of at least 0")
        known = places >= 0
        ends = np.concatenate([[0], np.cumsum([len(item) for item in self.items])])
        ends = np.concatenate([[0], np.cumsum(known)])[ends]
        counts = from_parts(values[known], places[known], ends, (len(self.items), len(vocabulary)), self.name)
        return counts, float(values.sum())

    def known_counts(self, vocabulary: Vocabulary) -> sparse.csr_array:
        """Counts in the vocabulary of a model, ``(n, V)``; one line says how many tokens it does not know."""
        counts, n_all = self.counts(vocabulary)
        tell_of_unknown(n_all - float(counts.sum()), n_all, self.name)
        return counts

    def content(self) -> bytes:
        """Bytes by which equal documents are recognised."""
        texts: Iterable[str] = self.items
        if self.kind != "texts":
            texts = ("\1".join(map(str, chain.from_iterable(item.items()) if isinstance(item, Mapping) else item))
                     for item in self.items)  # fmt: skip
        return "\0".join(texts).encode("utf-8", "surrogatepass")


UNKNOWN_SHARE = 1 / 3
"""Share of unknown tokens from which a warning says so; below it a line of the log does.

A model drops rare words on purpose: of docstrings counted by ``min_df=5`` it does not know a sixth of its own training
tokens.  Texts in another language, or cut in another way, have half and more.
"""


def tell_of_unknown(unknown: float, n_all: float, name: str) -> None:
    """Say in one line how many tokens the vocabulary of a model lacks: in the log, or as a warning if many."""
    if unknown <= 0:
        return
    line = f"{name}: {unknown:,.15g} of {n_all:,.15g} tokens are left out: the model does not know their words"
    if unknown < UNKNOWN_SHARE * n_all:
        logger.info(line)
    else:
        warn(line)


def listed(data: Any) -> Any:
    """A list of the items of a column of texts, an array ``(n,)`` of texts, or a corpus of another library; the array
    of an array of another library, also of each in a list; the table of an array with named fields; anything else
    unchanged.

    Raises
    ------
    DataError
        An iterator, which can be read only once; an array of another library that gives no array of NumPy.
    """
    data = table_of_fields(of_numpy(data))
    kind = type(data).__name__
    if isinstance(data, (list, tuple, str, bytes, os.PathLike, Mapping, Set)):
        return data
    if isinstance(data, Iterator) and not isinstance(data, type):
        raise DataError(
            f"data is a {kind}; needs a path or URL, an array, a table, or a list: list(data) (an iterator itself can "
            "be read only once; ingest takes a function that makes one)"
        )
    if isinstance(data, np.ndarray):
        return data.tolist() if data.ndim == 1 and data.dtype.kind in "OU" else data
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return data.to_pylist() if is_text(data.type) else data
    if kind == "Series" and library(data) in ("pandas", "polars"):
        return data.to_list() if str(data.dtype).lower() in ("object", "str", "string", "category") else data
    if isinstance(data, type) or library(data) in OTHERS or is_stream(data) or not isinstance(data, Iterable):
        return data
    first = next(iter(data), None)
    # a corpus: an object that can be read again and again, as gensim's are
    return list(data) if isinstance(first, (str, list, tuple, Mapping)) else data


def of_numpy(data: Any) -> Any:
    """NumPy's array of an array of another library (a tensor of PyTorch or JAX), also of each in a list, or of a
    buffer; anything else unchanged."""
    if isinstance(data, (list, tuple)):
        return [of_numpy(part) for part in data] if len(data) and _is_foreign_array(data[0]) else data
    if not _is_foreign_array(data):
        return data
    try:
        return np.asarray(data)
    except Exception as error:  # of the other library, such as a tensor on another device
        raise DataError(
            f"data is a {type(data).__name__} that gives no array of NumPy: {' '.join(str(error).split())}"
        ) from error


def _is_foreign_array(data: Any) -> bool:
    """Whether data offer themselves as an array, and are of no library whose arrays are known by their type.

    Arrays of HDF5 files offer it too, but are read whole then: they are refused by name, as what they are.
    """
    if isinstance(data, memoryview) or library(data) == "array":
        return True
    if isinstance(data, np.ndarray):  # perhaps of a class that others derived, with a mask
        return False
    is_able = hasattr(type(data), "__array__") and not isinstance(data, type) and not is_stream(data)
    return is_able and library(data) not in KNOWN | {"bnp_dask", "h5py", "pyarrow", "polars"}


def table_of_fields(data: Any) -> Any:
    """The table of an array whose fields have names, as ``numpy.genfromtxt`` reads files; anything else unchanged."""
    if not isinstance(data, np.ndarray) or data.dtype.names is None:
        return data
    if data.ndim != 1 or any(data.dtype[name].shape or data.dtype[name].names for name in data.dtype.names):
        raise DataError(
            f"an array of shape {data.shape} with fields of several values, {data.dtype}; needs one value a field and "
            "row: give x['FIELD'], or numpy.lib.recfunctions.structured_to_unstructured(x)"
        )
    masks = np.ma.getmaskarray(data) if isinstance(data, np.ma.MaskedArray) else None
    values = np.asarray(data)
    return pa.table(
        {name: _field(values[name], name, None if masks is None else masks[name]) for name in data.dtype.names}
    )


def _field(values: np.ndarray, name: str, mask: np.ndarray | None) -> pa.Array:
    """Column ``(n,)`` of a table; DataError for values that tables cannot hold."""
    native = values.astype(values.dtype.newbyteorder("="))
    try:
        return pa.array(native, mask=mask)
    except pa.ArrowException as error:
        raise DataError(
            f"field {name!r} of the array has dtype {values.dtype}, which no table holds: {error}. Convert it to "
            "numbers, or leave it out: x[['OTHER', 'FIELDS']]"
        ) from error


def documents_in(data: Any) -> Documents | None:
    """Documents in memory, from data as :func:`listed` returns them; None for data that are something else.

    Pairs (id, text), as :func:`bnp_dask.ingest` takes them, are texts.  Lists of texts that are all numbers are rows.

    Raises
    ------
    DataError
        Documents in several forms, by name, or as numbers of their words; or a list of paths of files.
    """
    if _is_dict(data) and all(_is_text(value) for value in data.values()):
        raise DataError(f"data is a dict of {len(data)} texts; needs a list: list(data.items()) are ids and texts")
    if not isinstance(data, (list, tuple)):
        return None
    first = next((item for item in data if not isinstance(item, (list, tuple)) or len(item)), None)
    if isinstance(first, (str, os.PathLike)):
        if isinstance(first, os.PathLike) or _is_file(first):
            raise DataError(
                f"data is a list of paths, such as {os.fspath(first)!r}; give files as a folder or a pattern, such as "
                "'folder/*.npy', or the texts within them: [pathlib.Path(path).read_text() for path in data]"
            )
        return Documents("texts", data)
    if isinstance(first, Mapping):
        return Documents("counts of words", data)
    if isinstance(first, tuple) and len(first) in (2, 3) and isinstance(first[1], str) and not _are_numbers(first):
        return Documents("texts", [_text_of(item, number) for number, item in enumerate(data)])
    if isinstance(first, list) and isinstance(first[0], str) and not _are_numbers(first):
        return Documents("lists of words", data)
    if isinstance(first, (bytes, Set)):
        call = "[text.decode() for text in data]" if isinstance(first, bytes) else "[sorted(words) for words in data]"
        raise DataError(
            f"data is a list of {type(first).__name__}, such as {shown(first)}; needs rows of numbers, or documents: "
            f"{call}"
        )
    return None


def _are_lists_of_steps(data: Any) -> bool:
    """Whether data are lists of lists of equally many numbers: sequences of steps, as JSON has them."""
    lists = (list, tuple)
    if not isinstance(data, lists) or not data or not all(isinstance(x, lists) and x for x in data):
        return False
    steps = [step for x in data for step in x]
    if not all(isinstance(step, lists) for step in steps):
        return False
    numbers = all(isinstance(value, (int, float, np.number)) for step in steps for value in step)
    return numbers and len({len(step) for step in steps}) == 1


def _is_dict(data: Any) -> bool:
    """Whether data are a dict of something; matrices of SciPy by keys are dicts, too, and are none here."""
    return isinstance(data, Mapping) and not sparse.issparse(data) and len(data) > 0


def _is_text(value: Any) -> bool:
    """Whether a value is a text, and no path of a file."""
    return isinstance(value, str) and not _is_file(value)


def _refuse_numbers_of_words(data: Any) -> None:
    """DataError for documents as lists of numbers of different lengths: numbers of their words, most likely."""
    if not isinstance(data, (list, tuple)) or not all(isinstance(words, (list, tuple, np.ndarray)) for words in data):
        return
    if len({len(words) for words in data}) > 1 and all(
        isinstance(word, (int, np.integer)) for words in data for word in words
    ):
        raise DataError(
            f"data is a list of {len(data)} lists of numbers, of different lengths; if they are the numbers of words, "
            "give words, [[str(word) for word in words] for words in data], or counts: gensim's (word, count) pairs"
        )


def documents_of_table(data: Any, text: Text | None, is_new: bool = True) -> Documents | None:
    """The texts of a table for a model of words; None for tables of counts, and for data that are no table.

    The texts are in the column ``text.column``, or ``text``, or the only column of texts if there are no numbers.  Of
    numbers beside them one line says that they are not read, if the data are the first of a model (``is_new``).
    """
    if isinstance(data, pa.Table):
        columns = arrow_columns(data.schema, "Table")
    elif library(data) == "pandas" and type(data).__name__ == "DataFrame":
        columns = frame_columns(data, "DataFrame")
    else:
        return None
    name = type(data).__name__
    names, textual = [c.name for c in columns], [c.name for c in columns if c.why == TEXTS and not c.is_list]
    wanted = None if text is None else text.column
    if wanted is None and "text" not in textual and (not textual or any(c.is_plain for c in columns)):
        return None
    chosen = text_column(names, textual, wanted, name)
    label = next(c.label for c in columns if c.name == chosen)
    values = data.column(label).to_pylist() if isinstance(data, pa.Table) else data[label].tolist()
    if wanted is None and all(isinstance(value, str) and is_number_text(value) for value in values[:10]):
        return None
    gaps = [number for number, value in enumerate(values) if not isinstance(value, str)]
    if gaps:
        raise DataError(
            f"{name}: row {gaps[0]}, column {chosen!r} is {shown(values[gaps[0]])}, which is no text ({len(gaps)} such "
            f"rows); leave them out, or write an empty text: df[{chosen!r}].fillna('')"
        )
    if wanted is None and len(names) == 1 and (separator := _separator_within(chosen, values)) is not None:
        raise DataError(
            f"{name}: its only column {chosen!r} holds {separator!r} as often in each row as in its name, which seem "
            f"to be columns: read the file with pandas.read_csv(path, sep={separator!r}); or, for documents, call it "
            "'text'"
        )
    numbers = [c.name for c in columns if c.is_plain]
    if numbers and text is None and is_new:
        warn(
            f"{name}: the documents are the texts of column {chosen!r}; numbers are not read as counts "
            f"({few(numbers)}): for these leave {chosen!r} out",
        )
    return Documents("texts", values, f"{name}, column {chosen!r}")


def _separator_within(title: str, values: Sequence[str]) -> str | None:
    """A separator that is in the name of a column as often as in each of its first texts; None if there is none."""
    for separator in (";", "\t", "|", ","):
        count = title.count(separator)
        if count and values and all(value.count(separator) == count for value in values[:10]):
            return separator
    return None


def _is_file(text: str) -> bool:
    """Whether a text is the path of an existing file."""
    return 0 < len(text) < 1024 and "\n" not in text and "\0" not in text and os.path.exists(text)


def _are_numbers(items: Sequence[Any]) -> bool:
    return all(isinstance(item, str) and is_number_text(item) for item in items)


def _text_of(item: Any, number: int) -> str:
    """The text of a pair (id, text)."""
    if not isinstance(item, tuple) or len(item) not in (2, 3) or not isinstance(item[1], str):
        raise DataError(f"data[{number}] is {shown(item)}; needs (id, text), like the documents before")
    return item[1]


# -- any data ------------------------------------------------------------------------------------------------------
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
    refuse_promises(data)  # first: a Delayed has every attribute, those of a source too
    if isinstance(data, (Documents, Source)):
        return data
    data = listed(data)
    documents = documents_in(data)
    if documents is not None:
        return documents if needs is None or needs.counts_words else _refuse(documents, needs)
    if (needs is None or needs.counts_words) and is_corpus(data):
        return _in_known_words(counts_of_corpus(data), None if needs is None else needs.n_words)
    if needs is not None and needs.counts_words:
        _refuse_numbers_of_words(data)
    if text is not None or (needs is not None and needs.counts_words and not needs.has_columns):
        table = as_table(data)
        return documents_of_table(table, text, is_new=needs is None or needs.n_words is None) or table
    if needs is not None and needs.in_order and _is_dict(data):
        values = list(data.values())
        if all(getattr(x, "ndim", 0) == 2 for x in values):
            raise DataError(
                f"data is a dict of {len(values)} tables; if each is a recording, give list(data.values()), "
                "else one of them"
            )
    if needs is not None and needs.in_order and _are_lists_of_steps(data):
        return [np.array(x, np.float64) for x in data]
    if type(data).__name__ == "DataFrameGroupBy":
        raise DataError("data is a DataFrameGroupBy; needs a list of its tables: [table for _, table in data]")
    if needs is not None and needs.in_order and _are_series(data):
        raise DataError(
            f"data is a list of {len(data)} arrays of one axis; if each is a sequence of single numbers, give "
            "[np.reshape(x, (-1, 1)) for x in data], and if each is a step of one sequence, np.stack(data)"
        )
    array = unlabelled(data)[0]
    is_array = (isinstance(array, np.ndarray) or array is not data) and np.ndim(array) == 3
    if is_array and needs is not None and not needs.in_order:
        raise DataError(
            f"an array of shape {array.shape} holds {len(array)} sequences, but this model takes rows; models of "
            "sequences (HDPHMM, FiniteHMM, SequenceModel) take it as it is. For a mixture of all steps pass "
            "x.reshape(-1, x.shape[2]); where each x[i] is one atom (an image) x.reshape(len(x), -1)"
        )
    return data


def _are_series(data: Any) -> bool:
    """Whether data are a list of arrays or columns of one axis, which may be sequences or steps."""
    if not isinstance(data, (list, tuple)) or not data:
        return False
    return not any(isinstance(x, (list, tuple)) for x in data) and all(np.ndim(x) == 1 for x in data)


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
