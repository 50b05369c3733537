"""Topics, and pairs of topics, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.topics.usage import TopicSurvey
from bnp_dask.analysis.topics.words import hellinger, in_tables, token_shares, top_words
from bnp_dask.errors import SettingError
from bnp_dask.model import Posterior
from bnp_dask.structure.nouns import in_use


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
