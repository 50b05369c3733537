"""Topics over time, and by any other known value of documents.

Documents are grouped by a column of metadata, or by a time, cut into bins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.analysis.base import WINDOW, open_for, require_posterior, runner_for
from bnp_dask.analysis.topics.words import top_words
from bnp_dask.data import Reader, Source, batch_reader, load_documents
from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.inputs import is_whole, one_of, shown, whole_number
from bnp_dask.model import Posterior
from bnp_dask.structure import counts_words, prior_mass, shares_of

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


Calendar = Literal["day", "week", "month", "quarter", "year"]
"""Bins of times."""

MOST_VALUES = 60
"""Most values, or bins of times, by default."""

USUAL_BINS = 20
"""Default number of bins for numbers with more values."""

MOST_BINS = 10_000

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
_MONDAY = 4
"""Days from the first of January 1970 to a Monday."""

MISSING = -1


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of documents.

    Parameters
    ----------
    code
        Group of each document, ``(n,)``; -1 without a value.
    values
        Value of each group, or the start of its bin: text, float, or datetime64.
    labels
        The same as text.
    is_time
        Whether the values are times.
    """

    code: np.ndarray
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    is_time: bool = False

    @property
    def on_line(self) -> bool:
        """Whether the groups lie on a line: times and numbers."""
        return self.is_time or not any(isinstance(value, str) for value in self.values)


def grouping_of(values: Any, name: str, bins: int | Calendar | None = None) -> Grouping:
    """Documents by their values.

    Parameters
    ----------
    values
        One for each document: texts, numbers, dates or times; texts that are all ISO dates are dates.
    name
        Name of the values, for messages.
    bins
        Number of intervals of equal length, or a period of the calendar.  None: each value is a separate group, but
        many numbers are cut into 20 intervals, and times into the shortest period of which there are at most 60.

    Raises
    ------
    DataError
        Values of no such kind, or too many different texts.
    SettingError
        Bins that do not apply to these values.
    """
    if isinstance(bins, str):
        one_of("bins", bins, get_args(Calendar))
    elif bins is not None:
        if not is_whole(bins):
            raise SettingError(f"bins={shown(bins)}: needs a number of bins, a period such as 'month', or None")
        whole_number("bins", bins, 1, MOST_BINS)
    held = _as_numpy(values, name, isinstance(bins, str))
    if held.dtype.kind == "M":
        return _times(held, bins)
    if isinstance(bins, str):
        raise DataError(f"{name} holds no dates or times to cut by bins={bins!r}; give a number of bins, or None")
    if held.dtype.kind == "f":
        return _numbers(held, bins)
    if bins is not None:
        raise DataError(f"{name} holds texts, which cannot be cut into bins={bins!r}; leave bins out")
    return _texts(held, name)


def _as_numpy(values: Any, name: str, as_dates: bool) -> np.ndarray:
    """Values as datetime64, floats, or texts (None where there is none)."""
    try:
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, from_pandas=True)
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{name}={shown(values)}: needs a value for each document ({error})") from error
    kind = array.type
    if pa.types.is_temporal(kind) and not (pa.types.is_time(kind) or pa.types.is_duration(kind)):
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            array = pc.local_timestamp(array)
        return np.array(array.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False), "datetime64[us]")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array([np.nan if v is None else v for v in array.to_pylist()], np.float64)
    if pa.types.is_nested(kind):
        raise DataError(f"{name} holds {kind}; needs texts, numbers, dates or times")
    texts = [None if v is None else str(v) for v in array.to_pylist()]
    known = [text for text in texts if text is not None]
    if as_dates or (known and all(_DATE.fullmatch(text) for text in known)):
        try:
            return np.array(["NaT" if text is None else text for text in texts], "datetime64[us]")
        except ValueError as error:
            if as_dates:
                raise DataError(f"{name}: {error}; needs dates such as 2024-05-31") from error
    return np.array(texts, object)


def _texts(held: np.ndarray, name: str) -> Grouping:
    values = sorted({text for text in held if text is not None})
    if len(values) > MOST_VALUES:
        raise DataError(
            f"{name} holds {len(values):,} different texts, more than {MOST_VALUES}; needs fewer, such as kinds"
        )
    place = {value: i for i, value in enumerate(values)}
    code = np.array([MISSING if text is None else place[text] for text in held], np.int64)
    return Grouping(code, tuple(values), tuple(values))


def _numbers(held: np.ndarray, bins: int | None) -> Grouping:
    there = np.isfinite(held)
    values = np.unique(held[there])
    if bins is None and len(values) <= MOST_VALUES:
        code = np.where(there, np.searchsorted(values, held), MISSING)
        return Grouping(code, tuple(values.tolist()), tuple(f"{v:.10g}" for v in values))
    edges = np.linspace(values[0], values[-1], (USUAL_BINS if bins is None else bins) + 1) if len(values) else values
    code, begins = _cut(held, there, edges)
    return Grouping(code, tuple(begins.tolist()), tuple(f"{v:.6g}" for v in begins))


def _times(held: np.ndarray, bins: int | Calendar | None) -> Grouping:
    there = ~np.isnat(held)
    if not there.any():
        return Grouping(np.full(len(held), MISSING), (), (), True)
    first, last = held[there].min(), held[there].max()
    if is_whole(bins):
        stamps, span = held.astype(np.int64), (first.astype(np.int64), last.astype(np.int64))
        code, begins = _cut(stamps, there, np.linspace(*span, bins + 1))
        starts = begins.astype(np.int64).astype("datetime64[us]")
        unit: Any = "D" if last - first >= np.timedelta64(bins, "D") else "s"
        return Grouping(code, tuple(starts), tuple(np.datetime_as_string(starts, unit)), True)
    period = _shortest(first, last) if bins is None else bins
    number, origin = _periods(held, str(period)), int(_periods(first, str(period)))
    size = int(_periods(last, str(period))) - origin + 1
    if size > MOST_BINS:
        raise SettingError(f"bins={period!r}: these times span {size:,} of them, more than {MOST_BINS:,}")
    starts = _begins(np.arange(origin, origin + size), str(period))
    return Grouping(np.where(there, number - origin, MISSING), tuple(starts), _names_of_bins(starts, str(period)), True)


def _cut(held: np.ndarray, there: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bin of each value, ``(n,)``, and the starts of the bins; the last bin includes its end."""
    if not len(edges):
        return np.full(len(held), MISSING), edges
    code = np.clip(np.searchsorted(edges, held, side="right") - 1, 0, len(edges) - 2)
    return np.where(there, code, MISSING), edges[:-1]


def _shortest(first: np.datetime64, last: np.datetime64) -> str:
    """The shortest period of which the times span at most 60; years if there is none."""
    for period in get_args(Calendar):
        if int(_periods(last, period)) - int(_periods(first, period)) < MOST_VALUES:
            return str(period)
    return "year"


def _periods(times: Any, period: str) -> Any:
    """Number of the period that each time is in."""
    if period in ("day", "week"):
        days = times.astype("datetime64[D]").astype(np.int64)
        return days if period == "day" else (days - _MONDAY) // 7
    months = times.astype("datetime64[M]").astype(np.int64)
    return months // {"month": 1, "quarter": 3, "year": 12}[period]


def _begins(number: np.ndarray, period: str) -> np.ndarray:
    """First days of periods by their numbers, datetime64."""
    if period in ("day", "week"):
        return (number if period == "day" else 7 * number + _MONDAY).astype("datetime64[D]")
    months = number * {"month": 1, "quarter": 3, "year": 12}[period]
    return months.astype("datetime64[M]").astype("datetime64[D]")


def _names_of_bins(starts: np.ndarray, period: str) -> tuple[str, ...]:
    if period == "quarter":
        return tuple(f"{str(day)[:4]} Q{(int(str(day)[5:7]) + 2) // 3}" for day in starts)
    return tuple(str(day)[: {"month": 7, "year": 4}.get(period, 10)] for day in starts)


def worth_showing(table: pa.Table, left_out: Sequence[str], most: int) -> list[tuple[str, Grouping]]:
    """The first columns of metadata by which documents fall into some groups, not into as many as there are."""
    found: list[tuple[str, Grouping]] = []
    for name in table.column_names:
        if name in left_out or len(found) == most:
            continue
        try:
            own = grouping_of(table[name], name)
        except DataError:
            continue
        known = int((own.code != MISSING).sum())
        # numbers that are all different may well be ids
        some = own.is_time or (own.on_line and len(table[name].unique()) < known)
        few = some or len(own.values) <= known / 3
        if len(own.values) > 1 and few and known > table.num_rows / 2:
            found.append((name, own))
    return found
