"""Topics, and pairs of topics, as tables; as arguments of pyLDAvis, which itself is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.running import runner_for
from bnp_dask.analysis.topics.usage import TopicSurvey
from bnp_dask.analysis.topics.words import hellinger, in_tables, names_of, token_shares, top_words, word_probabilities
from bnp_dask.data.base import Reader, batch_reader
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.model import Posterior
from bnp_dask.structure.answers.documents import counts_words, normalized, shares_of
from bnp_dask.structure.nouns import in_use

if TYPE_CHECKING:
    from distributed import Client


def topic_table(
    posterior: Posterior, n: int = 10, words: Sequence[str] | None = None, survey: TopicSurvey | None = None
) -> pa.Table:
    """One row per topic, largest first.

    Parameters
    ----------
    posterior
        Topics of words.
    n
        Words per topic.
    words
        Names of the columns; default: the posterior's words.
    survey
        Survey of documents (:func:`survey_documents`), for more columns.

    Returns
    -------
    pyarrow.Table
        ``topic``, ``weight`` (expected share of a new document), ``tokens`` (null when unknown), ``token_share``,
        ``words`` by relevance; with a survey also ``used`` (share of documents that have more than 5% of it),
        ``mean_share``, ``npmi`` and ``umass`` (coherence; null without two words), and ``c_v`` if it saw texts.
        Topics without tokens are left out.
    """
    found = top_words(posterior, n, words=words)
    order = in_tables(posterior)
    tokens = None if posterior.summary is None else posterior.summary["N"][order]
    columns: dict[str, Any] = {
        "topic": posterior.ids[order],
        "weight": posterior.weights[order],
        "tokens": pa.nulls(len(order), pa.float64()) if tokens is None else tokens,
        "token_share": token_shares(posterior)[order],
        "words": [found.names(int(k)) for k in order],
    }
    if survey is not None:
        _check_same(posterior, survey)
        columns |= {"used": survey.used[order], "mean_share": survey.mean[order]}
        if survey.pairs is not None and survey.pairs.single.shape[1] > 1:
            columns |= {"npmi": survey.npmi()[order], "umass": survey.umass()[order]}
            columns |= {} if survey.windows is None else {"c_v": survey.c_v()[order]}
    return pa.table(columns)


def topic_relations(posterior: Posterior, survey: TopicSurvey | None = None) -> pa.Table:
    """One row for each pair of topics, the most alike first: ``topic``, ``other``, ``hellinger``, ``correlation``.

    ``hellinger`` is the distance of their words, 0 to 1; ``correlation`` the correlation of their shares of documents,
    null without a survey.  ``(K (K - 1) / 2)`` rows for the K topics that have tokens.
    """
    distance = hellinger(posterior)
    used = np.flatnonzero(in_use(posterior))
    first, second = (used[places] for places in np.triu_indices(len(used), 1))
    order = np.argsort(distance[first, second], kind="stable")
    first, second = first[order], second[order]
    if survey is not None:
        _check_same(posterior, survey)
    return pa.table(
        {
            "topic": posterior.ids[first],
            "other": posterior.ids[second],
            "hellinger": distance[first, second],
            "correlation": pa.nulls(len(first), pa.float64()) if survey is None else survey.correlation[first, second],
        }
    )


def _check_same(posterior: Posterior, survey: TopicSurvey) -> None:
    if not np.array_equal(survey.ids, posterior.ids):
        raise SettingError("the survey is of another posterior: their topics differ; make it from this one")


# -- arguments of pyLDAvis -----------------------------------------------------------------------------------------
WINDOW = 8
"""Batches in flight."""


def to_pyldavis(
    posterior: Posterior,
    data: Any,
    words: Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> dict[str, Any]:
    """The arguments of ``pyLDAvis.prepare``: ``pyLDAvis.prepare(**bnp_dask.to_pyldavis(posterior, data))``.

    Parameters
    ----------
    posterior
        A topic model of words.
    data
        Documents, as for :func:`bnp_dask.predict`.  pyLDAvis wants the shares of all of them in memory, ``(G, K)``.
    words
        Names of the columns; default: the posterior's words, else ``"word 0"`` and so on.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    dict
        ``topic_term_dists (K, V)`` in the order of ``posterior.ids``, and ``doc_topic_dists (G, K)``: rows sum to one,
        the share of topics that were not met yet is left out; ``doc_lengths (G,)``, ``vocab``, and
        ``term_frequency (V,)``, tokens in these documents.
    """
    if not counts_words(require_posterior(posterior).model):
        model = posterior.model
        raise SettingError(
            f"pyLDAvis shows topics of words, not {type(model.allocation).__name__} of "
            f"{type(model.observation).__name__}; this needs LDA() or HDPTopics() with Multinomial()"
        )
    source = open_for(posterior, data, batch_size)
    names = names_of(posterior, words)
    phi = word_probabilities(posterior)
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = (
            (f"documents-batch{i}", shares_task, (shared, batch_reader(source, i))) for i in range(source.n_batches)
        )
        parts = list(in_order(runner, tasks, WINDOW))
    none: list[np.ndarray] = [np.zeros((0, posterior.n_clusters))]
    return {
        "topic_term_dists": normalized(phi),
        "doc_topic_dists": np.concatenate([p[0] for p in parts] or none),
        "doc_lengths": np.concatenate([p[1] for p in parts] or [np.zeros(0, np.int64)]),
        "vocab": list(names) if names is not None else [f"word {v}" for v in range(phi.shape[1])],
        "term_frequency": sum((p[2] for p in parts), np.zeros(phi.shape[1])).astype(np.int64),
    }


def shares_task(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Task: shares of topics ``(g, K)``, lengths ``(g,)``, and tokens of each word ``(V,)`` of one batch."""
    shares, length, batch = shares_of(posterior, reader())
    return shares, length.astype(np.int64), np.asarray(batch.x.sum(axis=0), np.float64)
