"""Topics as arguments of pyLDAvis; pyLDAvis itself is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.running import runner_for
from bnp_dask.analysis.topics.words import names_of, word_probabilities
from bnp_dask.data.base import Reader, batch_reader
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.execute.ordered import in_order
from bnp_dask.model import Posterior
from bnp_dask.structure.answers.documents import counts_words, normalized, shares_of

if TYPE_CHECKING:
    from distributed import Client

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
