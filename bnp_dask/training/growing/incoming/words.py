"""Words of new data matched with the words of a run: known words, new words, and the places of their columns."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bnp_dask.analysis.base import columns_for, needs_of_posterior, open_for, vocabulary_of, words_of
from bnp_dask.core import Columns, Words
from bnp_dask.core.columns import few
from bnp_dask.data import (
    LEFT_OUT,
    Documents,
    Source,
    as_source,
    columns_of,
    labels_of,
    plain_form,
    reordered,
    taking_lags,
    with_labels,
)
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import one_of
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Labelled, WideningObservation

NewWords = Literal["add", "drop"]
"""Ways to treat words that a run does not know."""

WORD = "word"


def widens(model: Model) -> bool:
    """Whether the vocabulary of a model may grow."""
    return isinstance(model.observation, WideningObservation)


def require_new_words(value: Any) -> None:
    """SettingError unless this is a rule for words that a run does not know, or None."""
    one_of("new_words", value, ("add", "drop", None))


def n_words(posterior: Posterior) -> int:
    """Number of words that a posterior counts."""
    return int(posterior.model.observation.sizes[WORD])


def names_of(posterior: Posterior) -> tuple[str, ...] | None:
    """Words that a posterior counts; None if it knows columns by their places only."""
    if posterior.words is not None:
        return posterior.words.words
    named = posterior.columns is not None and posterior.columns.shown is not None
    return posterior.columns.features if named and posterior.columns is not None else None


# -- opening ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Counts:
    """Counts as they were given.

    Parameters
    ----------
    source
        Their batches, with the columns of the data.
    names
        Names of these columns, ``(V,)``; None if they have no names, and are in the run's order.
    content
        Checksum of the texts that they were made from; None for others.
    """

    source: Source
    names: tuple[str, ...] | None = None
    content: int | None = None


def open_counts(
    base: Posterior, data: Any, batch_size: int | None, new_words: NewWords | None, labels: Any = None
) -> Counts:
    """Open data of a run whose vocabulary may grow, with all their columns; ``labels (n,)`` are known of atoms."""
    if labels is not None and widens(base.model):
        labelled_as(base, as_source(data), labels)  # raises with the reason
    if not widens(base.model):
        if new_words is not None:
            kind = type(base.model.observation).__name__
            raise SettingError(
                f"new_words={new_words!r}: the run's likelihood is {kind}, which has no words; leave it out"
            )
        source = open_for(base, data, batch_size, weights=True, ignores_extra=False)
        return Counts(taking_lags(labelled_as(base, source, labels), base.model.lags))
    form = plain_form(data, needs_of_posterior(base))
    if isinstance(form, Documents):
        return _counts_of_documents(base, form, batch_size, new_words)
    data = form
    if base.columns is not None and base.columns.shown is not None:
        return _counts_of_columns(base, data, batch_size, new_words)
    columns = columns_for(base, weights=True, ignores_extra=False)
    source = as_source(data, batch_size=batch_size, columns=columns)
    words = None if base.words is None else words_of(source)
    if words is not None:
        return Counts(source, words.words)
    found = columns_of(source)
    if base.words is None or found is None:
        return Counts(source)
    missing = [name for name in base.words.words if name not in set(found.features)]
    if new_words is None and (missing or len(found.features) > len(base.words)):
        open_for(base, source, ignores_extra=False)  # raises with the reason
    return Counts(source, found.features)


def _counts_of_documents(
    base: Posterior, documents: Documents, batch_size: int | None, new_words: NewWords | None
) -> Counts:
    """Counts of documents in memory: known words, then new ones in alphabetical order."""
    known = vocabulary_of(base)
    words = known.words
    if new_words != "drop":
        words = (*words, *documents.new_words(known))
    widened = replace(known, words=words)
    # words that are dropped because the caller says so need no line
    counts = documents.counts(widened)[0] if new_words == "drop" else documents.known_counts(widened)
    return Counts(as_source(counts, batch_size=batch_size), words, zlib.crc32(documents.content()))


def _counts_of_columns(base: Posterior, data: Any, batch_size: int | None, new_words: NewWords | None) -> Counts:
    """Counts of tables, whose columns have names."""
    known = columns_for(base, weights=True, ignores_extra=False)
    assert known is not None
    if new_words is None:
        try:
            source = open_for(base, data, batch_size, weights=True, ignores_extra=False)
        except DataError as error:
            if not isinstance(columns_of(as_source(data)), Columns):
                raise
            raise DataError(f'{error}; new_words="add" takes columns of words as they are named') from error
        found = columns_of(source)
        return Counts(source, None if found is None else found.features)
    found = columns_of(as_source(data))
    if found is None:
        return Counts(as_source(data, batch_size=batch_size, columns=known))
    apart = {*known.roles.names, *known.others}
    layout = [c for c in zip(found.names, found.kinds, found.widths, strict=True) if c[0] not in apart]
    names, kinds, widths = zip(*layout, strict=True) if layout else ((), (), ())
    own = replace(known, names=names, kinds=kinds, widths=widths)
    return Counts(as_source(data, batch_size=batch_size, columns=own), own.features)


def labelled_as(base: Posterior, source: Source, labels: Any) -> Source:
    """The source with known labels ``(n,)`` among the run's labels; the source itself if there are none.

    Raises
    ------
    SettingError
        The run was begun without labels.
    """
    if labels is None:
        return source
    observation = base.model.observation
    if not isinstance(observation, Labelled):
        raise SettingError("labels: the run was begun without; begin a new one with train(..., labels=known)")
    return with_labels(source, labels_of(labels, observation.names))


# -- placing ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Placed:
    """Counts whose columns have places in the run.

    Parameters
    ----------
    counts
        Counts as they were given.
    place
        Place of each column, ``(V,)``; None: unchanged.
    base
        The posterior in force, which counts their words.
    """

    counts: Counts
    place: np.ndarray | None
    base: Posterior

    def source(self, width: int | None = None) -> Source:
        """The batches with all words of a run, ``width`` of them."""
        if not widens(self.base.model):
            return self.counts.source
        return reordered(self.counts.source, n_words(self.base) if width is None else width, self.place)


def place_in(
    base: Posterior, counts: Counts, new_words: NewWords | None, widths: Collection[int], most: int | None = None
) -> Placed:
    """Put the columns of counts at their places in the run, and widen the posterior by new words.

    Parameters
    ----------
    base
        The posterior so far.
    counts
        The given counts.
    new_words
        ``"drop"``: new words are left out.  None: columns without names, or of a table, must not be new.
    widths
        Numbers of words that the run had after each of its pieces.
    most
        For data taken in before: number of words that the run had then; later words are left out of them.

    Raises
    ------
    DataError
        There are more columns, or fewer, and it is unknown which.
    """
    if not widens(base.model):
        return Placed(counts, None, base)
    known, n_columns = names_of(base), counts.source.n_features
    if counts.names is None or known is None:
        return _by_position(base, counts, new_words, widths)
    index = {name: i for i, name in enumerate(known[:most])}
    place = np.array([index.get(name, LEFT_OUT) for name in counts.names], np.int64)
    new = np.flatnonzero(place == LEFT_OUT)
    if len(new) and most is None and new_words != "drop":
        base = widened(base, [counts.names[i] for i in new.tolist()])
        place[new] = np.arange(len(known), len(known) + len(new))
    if n_columns and (place == LEFT_OUT).all():
        raise DataError(
            f"{counts.source.name}: none of its {n_columns} words ({few(counts.names)}) is one of the run's "
            f"({few(known)}); nothing was taken"
        )
    return Placed(counts, place, base)


def _by_position(base: Posterior, counts: Counts, new_words: NewWords | None, widths: Collection[int]) -> Placed:
    """Columns without names are in the run's order; further ones behind them are added if ``new_words`` says so."""
    now, found = n_words(base), counts.source.n_features
    if found == now or found in widths:
        return Placed(counts, None, base)
    if found > now and new_words == "add" and names_of(base) is None:
        return Placed(counts, None, widened(base, found - now))
    if found > now and new_words == "drop":
        return Placed(counts, np.where(np.arange(found) < now, np.arange(found), LEFT_OUT), base)
    advice = "" if names_of(base) is not None else '; new_words="add" appends the additional ones'
    kind = "words of sparse counts" if counts.source.is_sparse else "columns of dense rows"
    raise DataError(
        f"{counts.source.name}: has {found} {kind} without names, and the run {now}{advice}; nothing was taken"
    )


def widened(base: Posterior, new: Sequence[str] | int) -> Posterior:
    """A posterior that counts more words, given by name or by number; the prior gives their values."""
    assert base.summary is not None
    count = new if isinstance(new, int) else len(new)
    observation: Any = base.model.observation
    size = n_words(base) + count
    model = replace(base.model, observation=observation.with_more_words(size))
    found = model.global_step(base.summary.widen(WORD, size))
    words, columns = base.words, base.columns
    if words is not None and not isinstance(new, int):
        words = Words.of((*words.words, *new), words.analysis)
    elif columns is not None and not isinstance(new, int):
        kinds = (*columns.kinds, *(columns.kinds[-1],) * count)
        columns = replace(columns, names=(*columns.names, *new), kinds=kinds, widths=(*columns.widths, *(1,) * count))
    return replace(found, words=words, columns=columns)


def placed_again(base: Posterior, source: Source, most: int) -> Source:
    """Data of a run, opened again, with all words of the run; ``most`` as in :func:`place_in`."""
    if not widens(base.model):
        return source
    known, names = names_of(base), None
    if base.words is not None and (words := words_of(source)) is not None:
        names = words.words
    elif known is not None and (found := columns_of(source)) is not None:
        names = found.features
    if names is None or known is None:
        return reordered(source, n_words(base), None)
    index = {name: i for i, name in enumerate(known[:most])}
    return reordered(source, n_words(base), np.array([index.get(name, LEFT_OUT) for name in names], np.int64))
