"""Topics over time, and by any other known value of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.running import WINDOW, runner_for
from bnp_dask.analysis.topics.grouping import Calendar, Grouping, grouping_of
from bnp_dask.analysis.topics.words import top_words
from bnp_dask.data import load_documents
from bnp_dask.data.base import Reader, Source, batch_reader
from bnp_dask.errors import DataError, nearest
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.inputs.settings import one_of
from bnp_dask.model import Posterior
from bnp_dask.structure.answers.documents import counts_words, prior_mass, shares_of

if TYPE_CHECKING:
    from distributed import Client

Weight = Literal["tokens", "documents"]


@dataclass(frozen=True, eq=False)
class TopicShares:
    """Share of each topic in groups of documents, as :func:`topics_over` finds it.

    Parameters
    ----------
    by
        Name of the value by which documents were put into groups.
    values
        Value of each group G, or the start of its bin.
    labels
        The same as text.
    is_time
        Whether the values are times.
    ids
        Topics, ``(K,)`` in the order of the posterior.
    names
        Names of the topics: their three foremost words.
    share
        Share of each topic in each group, ``(G, K)``; rows sum to one, NaN in groups without words.
    documents, tokens
        Documents with words, and their tokens, of each group, ``(G,)``.
    weight
        Weight of a document: ``"tokens"`` for its tokens, ``"documents"`` for one.
    n_without
        Documents without a value.
    """

    by: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    is_time: bool
    ids: np.ndarray
    names: tuple[str, ...]
    share: np.ndarray
    documents: np.ndarray
    tokens: np.ndarray
    weight: Weight
    n_without: int

    @property
    def on_line(self) -> bool:
        """Whether the values lie on a line: times and numbers."""
        return self.is_time or not any(isinstance(value, str) for value in self.values)

    def to_table(self) -> pa.Table:
        """One row for each group and topic: value, topic, share (null without words), documents, tokens."""
        g, k = self.share.shape
        share = self.share.ravel()
        columns = {
            "value": np.repeat(np.array(self.values), k),
            "topic": np.tile(self.ids, g),
            "share": pa.array(share, pa.float64(), mask=np.isnan(share)),
            "documents": np.repeat(self.documents, k),
            "tokens": np.repeat(self.tokens, k),
        }
        return pa.table(columns)


def topics_over(
    posterior: Posterior,
    data: Any,
    by: Any,
    *,
    bins: int | Calendar | None = None,
    weight: Weight = "tokens",
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> TopicShares:
    """Share of each topic in documents of one value, or one time: one pass, out of core.

    Parameters
    ----------
    posterior
        Topics.
    data
        Documents, as for :func:`bnp_dask.predict`.
    by
        Column of the metadata that a store keeps (:func:`bnp_dask.load_documents`), or a value for each document:
        texts, numbers, dates or times.  Texts that are all ISO dates, such as ``2024-05-31``, are dates.
    bins
        Bins of numbers and times: a number of intervals of equal length, or ``"day"``, ``"week"``, ``"month"``,
        ``"quarter"``, ``"year"``.  None: each value is a separate group, but many numbers are cut into 20 intervals,
        and times into the shortest period of which there are at most 60.
    weight
        ``"tokens"``: a document counts once per token, so that the figures are shares of the tokens.
        ``"documents"``: each counts once, so that they are means of the documents' shares.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    TopicShares
        ``to_table()`` has a row for each value and topic; :func:`bnp_dask.plot.topics_over` draws it.  The share of
        topics that were not met yet is left out.

    Raises
    ------
    SettingError
        Not a topic model, or bins that do not apply.
    DataError
        No such column, unequal numbers of values and documents, or more than 60 different texts.
    """
    posterior = require_posterior(posterior)
    prior_mass(posterior)
    one_of("weight", weight, ("tokens", "documents"))
    source = open_for(posterior, data, batch_size)
    name = by if isinstance(by, str) else "by"
    groups = grouping_of(_column(source, by) if isinstance(by, str) else by, name, bins)
    return shares_over(posterior, source, [(name, groups)], weight, client)[0]


def shares_over(
    posterior: Posterior,
    source: Source,
    groupings: Sequence[tuple[str, Grouping]],
    weight: Weight = "tokens",
    client: Client | Executor | str | None = None,
) -> list[TopicShares]:
    """Shares by several values, from one pass; arguments as of :func:`topics_over`."""
    k, first = posterior.n_clusters, 0
    sums = [np.zeros((len(own.values), k + 3)) for _, own in groupings]
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"over-batch{i}", _shares_task, (shared, batch_reader(source, i))) for i in range(source.n_batches))
        for shares, length in in_order(runner, tasks, WINDOW):
            some = length > 0
            counted = np.where(some, length if weight == "tokens" else 1.0, 0.0)
            rows = np.column_stack([shares * counted[:, None], counted, some, length])
            for total, (name, own) in zip(sums, groupings, strict=True):
                code = own.code[first : first + len(rows)]
                _require_as_many(name, len(own.code), first + len(rows), len(code) == len(rows))
                np.add.at(total, code[code >= 0], rows[code >= 0])
            first += len(rows)
    for name, own in groupings:
        _require_as_many(name, len(own.code), first, len(own.code) == first)
    names = _names(posterior)
    return [_finished(posterior, names, *both, total, weight) for both, total in zip(groupings, sums, strict=True)]


def _finished(
    posterior: Posterior, names: tuple[str, ...], by: str, own: Grouping, total: np.ndarray, weight: Weight
) -> TopicShares:
    k = posterior.n_clusters
    counted = total[:, k : k + 1]
    share = np.divide(total[:, :k], counted, out=np.full((len(total), k), np.nan), where=counted > 0)
    documents, tokens = total[:, k + 1].astype(np.int64), total[:, k + 2]
    without = int((own.code < 0).sum())
    return TopicShares(
        by, own.values, own.labels, own.is_time, posterior.ids, names, share, documents, tokens, weight, without
    )


def _names(posterior: Posterior) -> tuple[str, ...]:
    """Topics by their foremost words, or by their ids."""
    if not counts_words(posterior.model) or posterior.feature_names is None:
        return tuple(f"topic {i}" for i in posterior.ids)
    found = top_words(posterior, 3)
    return tuple(" ".join(found.names(k)) for k in range(posterior.n_clusters))


def _shares_task(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: shares of topics ``(g, K)`` and lengths ``(g,)`` of the documents of one batch."""
    return shares_of(posterior, reader())[:2]


def _column(source: Source, name: str) -> pa.ChunkedArray:
    try:
        table = load_documents(source)
    except DataError as error:
        raise DataError(
            f"by={name!r} is a column of metadata, but {error}; or give a value for each document"
        ) from error
    if name not in table.column_names:
        raise DataError(
            f"{source.name}: no column {name!r}{nearest(name, table.column_names)}; its documents have "
            f"{', '.join(table.column_names)}"
        )
    return table[name]


def _require_as_many(name: str, values: int, documents: int, enough: bool) -> None:
    if not enough:
        raise DataError(f"{name} has {values} values for {documents} documents; needs one for each document")
