"""What every computation of a posterior on data begins with: checked settings, data in the form of the model, tasks.

Meaningless or contradictory settings are refused before anything is read or started.  Data are matched with the model:
the names of their columns, their words, their levels, their lags.  Tasks on batches run on one BLAS thread, and in the
order of sums that the model requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Columns, Words, thawed
from bnp_dask.core.columns import few
from bnp_dask.data import (
    Analysis,
    ArraySource,
    Documents,
    Needs,
    Reader,
    Source,
    Vocabulary,
    WeightedSource,
    ZarrCountsSource,
    as_source,
    batch_reader,
    columns_of,
    load_vocabulary,
    matched,
    plain_form,
    reordered,
)
from bnp_dask.data.sources.open import opened
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import Executor, in_order, one_blas_thread, open_executor
from bnp_dask.inputs import flag, one_of, path_text, positive_number, shown, whole_number
from bnp_dask.kernels import fixed_order
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Observation, WideningObservation, marginalises, read_as, unlabelled

if TYPE_CHECKING:
    from distributed import Client


EXAMPLES = {
    "init": "BregmanKMeans(25)",
    "schedule": "Memoized(laps=50)",
    "moves": "[Birth(), Merge(), Delete()]",
    "callbacks": "[Progress()]",
}
"""Example of each argument, for messages."""

MOST_PARTS = 1_000
"""Most moves or callbacks of one call: an iterator may have no end."""

MOST_STARTS = 10_000
"""Most starts of one call: each is a whole run."""


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """Parts as a tuple; SettingError for a single part, or text.  None gives an empty tuple."""
    if value is None:
        return ()
    if isinstance(value, (str, Mapping, np.ndarray)) or not isinstance(value, Iterable):
        raise SettingError(f"{name}={shown(value)}: needs a list, such as {EXAMPLES[name]}, or () for none")
    found = tuple(islice(value, MOST_PARTS + 1))
    if len(found) > MOST_PARTS:
        raise SettingError(f"{name}={shown(value)}: goes on after {MOST_PARTS} parts; needs a list that ends")
    return found


def check_run(store: Any, resume: Any, checkpoint_minutes: Any, on_bad_batch: Any, job: Any, n_init: Any) -> None:
    """Raise SettingError for meaningless or contradictory settings of a run."""
    if store is not None:
        path_text("store", store)
    if flag("resume", resume) and store is None:
        raise SettingError("resume=True needs store=, the run directory to resume from")
    one_of("on_bad_batch", on_bad_batch, ("raise", "skip"))
    positive_number("checkpoint_minutes", checkpoint_minutes, "number of minutes")
    if not (job is None or isinstance(job, str)):
        raise SettingError(f"job is a {type(job).__name__}; needs the text of a job file")
    whole_number("n_init", n_init, 1, MOST_STARTS, "a whole number of starts")


def require_posterior(value: Any) -> Posterior:
    """Return the posterior with arrays of the kernels' types; SettingError if ``value`` is not a posterior."""
    if not isinstance(value, Posterior):
        hint = ", such as result.posterior, or the result of bnp_dask.load"
        if isinstance(getattr(value, "posterior", None), Posterior):
            hint = ": pass result.posterior"
        elif isinstance(getattr(value, "posterior_", None), Posterior):
            hint = ": pass estimator.posterior_"
        raise SettingError(f"posterior is a {type(value).__name__}; needs a Posterior{hint}")
    return thawed(value)


def require_chains(model: Model, what: str) -> None:
    """SettingError unless the model is a hidden Markov model."""
    if not model.structure.is_ordered:
        raise SettingError(
            f"{what} is for hidden Markov models, whose steps follow one another; this is a "
            f"{type(model.allocation).__name__}"
        )


def open_for(
    posterior: Posterior,
    data: Any,
    batch_size: int | None = None,
    weights: bool = False,
    ignores_extra: bool = True,
) -> Source:
    """Source of data that fit a posterior, as far as this can be checked before they are read.

    Parameters
    ----------
    posterior
        Features of tables are found by the names that it was trained with, and put in that order.
    data
        As for :func:`bnp_dask.as_source`, or raw texts for a posterior that knows its vocabulary.
    batch_size
        Atoms per batch.
    weights
        Whether tables are read with the column of weights that training had.
    ignores_extra
        Whether named columns that were not in training are left out, with a warning; else they are an error.

    Raises
    ------
    DataError
        A column is missing, or the number, kind or vocabulary of columns differs.
    """
    columns = columns_for(posterior, weights, ignores_extra)
    form = plain_form(data, needs := needs_of_posterior(posterior))
    if isinstance(form, Documents):
        source = as_source(form.known_counts(vocabulary_of(posterior)), batch_size=batch_size)
        _check_width(posterior, source)
        return source
    source = opened(form, needs, batch_size, columns=columns)
    if columns is None and posterior.words is not None and columns_of(source) is not None:
        source = matched(source, replace(Columns.of(posterior.words.words), ignores_extra=ignores_extra))
    source = _in_known_words(posterior, source)
    _check_width(posterior, source)
    return source


def columns_for(posterior: Posterior, weights: bool = False, ignores_extra: bool = True) -> Columns | None:
    """Columns of training for reading new data: with groups if the model needs them; None without names."""
    if posterior.columns is None:
        return None
    known = posterior.columns.using(weights, needs_groups(posterior.model))
    return replace(known, ignores_extra=ignores_extra)


def needs_of(model: Model, n_words: int | None = None) -> Needs:
    """Facts about a model by which data are read for it; ``n_words`` of a trained one that counts words."""
    return needs_of_likelihood(model.observation, model.structure.is_ordered, n_words)


def needs_of_likelihood(observation: Observation, in_order: bool = False, n_words: int | None = None) -> Needs:
    """Facts as from :func:`needs_of`, from the parts of a model."""
    levels, chosen = read_as(observation)
    return Needs(
        likelihood=type(unlabelled(observation)).__name__,
        may_miss=marginalises(observation),
        levels=levels,
        chosen=chosen,
        in_order=in_order,
        counts_words=isinstance(unlabelled(observation), WideningObservation),
        n_words=n_words,
    )


def needs_of_posterior(posterior: Posterior) -> Needs:
    """Facts about a trained model by which new data are read for it."""
    needs = needs_of(posterior.model, n_words_of(posterior))
    return replace(needs, has_columns=posterior.words is None and posterior.columns is not None)


def n_words_of(posterior: Posterior) -> int | None:
    """Number of words that a posterior counts; None if it counts none."""
    observation = posterior.model.observation
    return int(observation.sizes["word"]) if isinstance(unlabelled(observation), WideningObservation) else None


def needs_groups(model: Model) -> bool:
    """Whether a model can use rows of data only if it knows which of them belong together."""
    return model.structure.is_tied


def _check_width(posterior: Posterior, source: Source) -> None:
    """Ask the likelihood before any data are read: a batch of no atoms has the width and kind of all others."""
    shape = (0, source.n_features * (1 + posterior.model.lags))
    x = sparse.csr_array(shape, dtype=np.float64) if source.is_sparse else np.empty(shape)
    posterior.model.observation.check(Batch(x, None, source.name))


# -- words -------------------------------------------------------------------------------------------------------
def words_of(source: Source) -> Words | None:
    """The vocabulary of a store of counts, or of documents in memory; None for other sources."""
    match source:
        case WeightedSource():
            return words_of(source.whole)
        case ArraySource():
            return source.words
        case ZarrCountsSource() if source.vocabulary_digest is not None:
            return words_in(load_vocabulary(source))
        case _:
            return None


def words_in(vocabulary: Vocabulary) -> Words:
    """A vocabulary in the form that posteriors keep."""
    analysis = vocabulary.analysis
    return Words.of(vocabulary.words, None if analysis is None else analysis.to_json())


def vocabulary_of(posterior: Posterior) -> Vocabulary:
    """The vocabulary that a posterior was trained with, or the names of its columns of counts; DataError if it has
    neither."""
    words, columns = posterior.words, posterior.columns
    if words is None and columns is not None and columns.shown is not None:
        return Vocabulary(columns.features, None, None, None)
    if words is None:
        raise DataError(
            "the posterior knows no vocabulary: it was trained on counts without words. Turn texts into counts with "
            "load_vocabulary(STORE).counts(texts), or train on texts, or on a store that ingest made from raw text"
        )
    return Vocabulary(words.words, None, None, None if words.analysis is None else Analysis.from_json(words.analysis))


def texts_in(posterior: Posterior, data: Any) -> list[str] | None:
    """Raw texts among data for a posterior; None for other data."""
    form = plain_form(data, needs_of_posterior(posterior))
    return list(form.items) if isinstance(form, Documents) and form.kind == "texts" else None


def _in_known_words(posterior: Posterior, source: Source) -> Source:
    """A store of counts with columns in the order of the posterior's words; DataError if it has others besides."""
    if posterior.words is None or not isinstance(source, ZarrCountsSource) or source.vocabulary_digest is None:
        return source
    if source.vocabulary_digest == posterior.words.digest:
        return source
    index = {name: i for i, name in enumerate(posterior.words.words)}
    words = load_vocabulary(source).words
    unknown = [word for word in words if word not in index]
    if unknown:
        raise DataError(
            f"{source.name}: its vocabulary of {source.n_features} words is not the one that the posterior was trained "
            f"with ({len(posterior.words)} words), which lacks {len(unknown)} of them: {few(unknown)}. Ingest the "
            "texts again with vocabulary=STORE, the store that it was trained on, or predict from the raw texts"
        )
    return reordered(source, len(posterior.words), np.array([index[word] for word in words], np.int64))


WINDOW = 8
"""Batches in flight."""


@contextmanager
def computing_as(model: Model) -> Iterator[None]:
    """Compute in this thread as the model requires: on one BLAS thread, and in a fixed order if it is reproducible."""
    with one_blas_thread(), fixed_order(model.reproducible):
        yield


@contextmanager
def runner_for(posterior: Posterior, client: Client | Executor | str | None) -> Iterator[Executor]:
    """An executor for tasks on batches, which compute as the posterior's model requires."""
    with computing_as(posterior.model), open_executor(client) as runner:
        yield runner


def for_batches(
    posterior: Posterior,
    source: Source,
    client: Client | Executor | str | None,
    function: Callable[[Posterior, Reader], Any],
    verb: str,
    batches: Sequence[int] | None = None,
) -> list[Any]:
    """Results of ``function(posterior, reader)`` for each batch of a source, in order; ``verb`` names the tasks.

    With ``batches`` only these are read.
    """
    numbers = range(source.n_batches) if batches is None else batches
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"{verb}-batch{i}", function, (shared, batch_reader(source, i))) for i in numbers)
        return list(in_order(runner, tasks, WINDOW))
