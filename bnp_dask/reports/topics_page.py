"""The page of a topic model: from a run and its documents to facts, and from these to a page for browsing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.base import open_for, texts_in
from bnp_dask.analysis.topics.over import TopicShares, shares_over, worth_showing
from bnp_dask.analysis.topics.usage import TopicSurvey, survey_documents
from bnp_dask.analysis.topics.words import (
    LEAST_TOKENS,
    RELEVANCE,
    foremost,
    hellinger,
    in_tables,
    marginal,
    names_of,
    token_shares,
    topic_positions,
    word_probabilities,
    word_tokens,
)
from bnp_dask.data import as_source, load_documents
from bnp_dask.data.base import Source
from bnp_dask.data.sources.zarr import ZarrCountsSource
from bnp_dask.data.text.options import BEGINS, Document
from bnp_dask.errors import BnpDaskError, DataError
from bnp_dask.execute.base import Executor
from bnp_dask.model import Posterior
from bnp_dask.reports.pages import render
from bnp_dask.reports.plots import lap_positions, map_radii
from bnp_dask.store import RunStore, holds_run
from bnp_dask.structure.nouns import count_of, unused_line
from bnp_dask.structure.verbs import response_of
from bnp_dask.training.results import History, TrainResult

if TYPE_CHECKING:
    from distributed import Client

WORDS_SHOWN = 25
"""Words of a topic that the page lists at a time."""

CANDIDATES = 30
"""Words that are kept for each of eleven positions of the slider."""

NEAR = 6
"""Neighbours of a topic that are listed."""

SEARCHED = 30_000
"""Words that can be searched for: the most frequent ones."""

TOPICS_OF_WORD, LEAST_SHARE = 8, 0.01
"""Most topics that are listed for a word, and the least share of its tokens for a listed topic."""

TITLE_COLUMNS, TEXT_COLUMNS = ("title", "subject", "headline"), (BEGINS, "summary", "text")
"""Metadata that describe a document: the first existing column of each is shown as its title and its text."""

CUT = 200
"""Characters of metadata that are shown."""

OVER = 4
"""Columns of metadata by which topics are shown."""


CURVE_POINTS = 600
"""Points of a curve that a page draws."""


@dataclass(frozen=True, eq=False)
class PageFacts:
    """Facts that a page shows besides topics.

    Parameters
    ----------
    title
        Heading.
    words
        Names of the columns, or None.
    survey
        Survey of documents, or None.
    documents
        Ids (column ``id``) and metadata of the documents, in the order of the rows; or None.
    over
        Shares of topics by values of metadata.
    curve
        ``lap``, ``objective`` and ``topics``: lists of one length, the run; empty for none.
    run, settings
        Facts for two small tables.
    note
        Reason for the absence of documents, in words.
    """

    title: str
    words: Sequence[str] | None = None
    survey: TopicSurvey | None = None
    documents: pa.Table | None = None
    over: Sequence[TopicShares] = ()
    curve: Mapping[str, Sequence[float]] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def page_of_topics(
    posterior: Posterior,
    result: TrainResult | None,
    names: Sequence[str] | None,
    documents: Source | str,
    table: pa.Table | None,
    run: Mapping[str, str],
    settings: Mapping[str, str],
    client: Client | Executor | str | None = None,
) -> str:
    """The page as text; ``documents`` is their source, or the reason for none, and ``table`` describes them."""
    survey = None
    over: list[TopicShares] = []
    if not isinstance(documents, str):
        survey = survey_documents(posterior, documents, client=client)
        shown = [] if table is None else worth_showing(table, ("id", *TITLE_COLUMNS, *TEXT_COLUMNS), OVER)
        if shown:
            over = shares_over(posterior, open_for(posterior, documents), shown, client=client)
    facts = PageFacts(
        title=count_of(posterior),
        words=names_of(posterior, names),
        survey=survey,
        documents=table,
        over=over,
        curve={} if result is None else curve_of(result.history),
        run=run,
        settings=settings,
        note=documents if isinstance(documents, str) else "",
    )
    return topics_page(posterior, facts)


def documents_for(posterior: Posterior, what: Any, data: Any) -> tuple[Source | str, pa.Table | None]:
    """Documents to show, and their ids and metadata if known; in place of documents the reason for none.

    They are the given ones, else the training data of a run directory.  Texts are counted with the words of the
    posterior, as for :func:`bnp_dask.predict`, and described by their beginnings.
    """
    source = _documents(posterior, what, data)
    if isinstance(source, str):
        return source, None
    texts = None if data is None else texts_in(posterior, data)
    return source, table_of(source) if texts is None else _beginnings(texts)


def _documents(posterior: Posterior, what: Any, data: Any) -> Source | str:
    """Source of the documents, or the reason for none."""
    if data is not None:
        return open_for(posterior, data)
    if not isinstance(what, (str, os.PathLike)) or not holds_run(what):
        return "No documents were given to this page."
    facts = RunStore.view(what).settings.get("data", {})
    path = str(facts.get("path", ""))
    try:
        source = as_source(_found(path))
        if source.describe() != facts:
            raise DataError(f"{path} has changed since")
    except (BnpDaskError, OSError) as error:
        return f"The documents of this run could not be read ({error})."
    return source


def _found(path: str) -> str:
    """A path as it was given when the run was started; DataError if it does not exist."""
    if not path or ("://" not in path and not Path(path).exists()):
        raise DataError(f"there is no {path or 'stored data set'} here")
    return path


def table_of(source: Source) -> pa.Table | None:
    """Ids and metadata of documents, for stores that keep them."""
    if not isinstance(source, ZarrCountsSource):
        return None
    try:
        table = load_documents(source)
    except DataError:
        return None
    return table if table.num_rows == source.n_atoms else None


def _beginnings(texts: Sequence[str]) -> pa.Table:
    """Ids and beginnings of documents that have no other description."""
    begins = [Document(id="", text=text, place="", metadata={}).keeping(CUT).metadata[BEGINS] for text in texts]
    return pa.table({"id": [_name(row) for row in range(len(texts))], BEGINS: begins})


def _name(row: int) -> str:
    return f"document {row}"


def curve_of(history: History) -> dict[str, list[float]]:
    """Objective and number of topics over laps, for laps whose objective covers all data."""
    if not len(history) or "elbo" not in history:
        return {}
    lap, exact = lap_positions(history)
    objective = np.asarray(history["elbo"], np.float64)
    topics = np.asarray(history["n_clusters"], np.float64) if "n_clusters" in history else np.zeros(len(lap))
    kept = np.flatnonzero(exact & np.isfinite(objective))
    if len(kept) > CURVE_POINTS:
        kept = kept[np.unique(np.linspace(0, len(kept) - 1, CURVE_POINTS).round().astype(int))]
    return {
        "lap": [round(float(v), 4) for v in lap[kept]],
        "objective": objective[kept].tolist(),
        "topics": topics[kept].tolist(),
    }


def topics_page(posterior: Posterior, facts: PageFacts) -> str:
    """The page as text.

    All text from data is embedded as JSON, and the page's script puts it into the document as text, never as
    markup; the page's own policy forbids requests.
    """
    return render("topics.html.j2", {"title": facts.title, "data": page_data(posterior, facts)})


def page_data(posterior: Posterior, facts: PageFacts) -> dict[str, Any]:
    """Data of the page's script, JSON-able."""
    order = in_tables(posterior)
    names = facts.words or [f"word {v}" for v in range(posterior.observation.lam.shape[1])]
    phi, overall = word_probabilities(posterior), marginal(posterior)
    column, topic_words = _candidates(posterior, phi, overall, order)
    near = _neighbours(posterior, facts.survey, order)
    shares = token_shares(posterior)
    summary, survey = posterior.summary, facts.survey
    # coherence needs two words at least
    pairs = survey is not None and survey.pairs is not None and survey.pairs.single.shape[1] > 1
    coherence = survey.npmi() if survey is not None and pairs else np.full(posterior.n_clusters, np.nan)
    response, coefficients = response_of(posterior.model.allocation), posterior.allocation
    told = [] if response is None or coefficients.response is None else response.told(coefficients.response)
    topics = []
    for place, k in enumerate(order.tolist()):
        topic: dict[str, Any] = {
            "id": int(posterior.ids[k]),
            "share": _short(shares[k]),
            "tokens": None if summary is None else round(float(summary["N"][k])),
            "words": topic_words[place],
            **near[place],
        }
        stands_for = {"response": _cut(told[k], CUT)} if told else {}
        topics.append({**topic, **stands_for, **_of_survey(facts, coherence, k)})
    xy = topic_positions(posterior)
    return {
        "title": facts.title,
        "topics": topics,
        "words": [names[v] for v in column],
        "overall": [_short(overall[v]) for v in column],
        "index": _word_index(posterior, names, order, phi, shares),
        "map": np.column_stack([xy, map_radii(shares, xy)])[order].round(5).tolist(),
        "over": [_over(own, order) for own in facts.over],
        "documents": None if survey is None else survey.n_documents,
        "tokens": None if summary is None else round(float(summary["N"].sum())),
        "columns": len(names),
        "model": type(posterior.model.allocation).__name__,
        "curve": {name: list(values) for name, values in facts.curve.items()},
        "run": dict(facts.run),
        "settings": dict(facts.settings),
        "note": facts.note,
        "left": unused_line(posterior),
        "shown": WORDS_SHOWN,
        "weight": RELEVANCE,
    }


def _candidates(
    posterior: Posterior, phi: np.ndarray, overall: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, list[list[float]]]:
    """Columns of all words shown at any position of the slider; for each topic ``[place, phi, place, phi, ...]``."""
    tokens = word_tokens(posterior)
    allowed = np.ones(phi.shape[1], np.bool_)
    if tokens is not None and (tokens >= LEAST_TOKENS).any():
        allowed = tokens >= LEAST_TOKENS
    columns = np.flatnonzero(allowed)
    n = min(CANDIDATES, len(columns))
    chosen = []
    for k in order.tolist():
        log_phi = np.log(phi[k, columns])
        log_lift = log_phi - np.log(overall[columns])
        weight = np.linspace(0.0, 1.0, 11)[:, None]
        chosen.append(columns[np.unique(foremost(weight * log_phi + (1.0 - weight) * log_lift, n))])
    used = np.unique(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    place = [np.searchsorted(used, c) for c in chosen]
    lists = [
        [x for p, v in zip(at.tolist(), c.tolist(), strict=True) for x in (p, _short(phi[k, v]))]
        for at, c, k in zip(place, chosen, order.tolist(), strict=True)
    ]
    return used, lists


def _neighbours(posterior: Posterior, survey: TopicSurvey | None, order: np.ndarray) -> list[dict[str, Any]]:
    """Topics with the most similar words, and topics in the same documents: ``[place, value]`` each."""
    distance = hellinger(posterior)[np.ix_(order, order)]
    together = None if survey is None else survey.correlation[np.ix_(order, order)]
    out: list[dict[str, Any]] = []
    for place in range(len(order)):
        near = [j for j in np.argsort(distance[place], kind="stable").tolist() if j != place][:NEAR]
        entry: dict[str, Any] = {"near": [[j, _short(distance[place, j])] for j in near]}
        if together is not None:
            row = together[place]
            high = [j for j in np.argsort(-row, kind="stable").tolist() if j != place and row[j] > 0][:NEAR]
            entry["together"] = [[j, _short(row[j])] for j in high]
        out.append(entry)
    return out


def _of_survey(facts: PageFacts, coherence: np.ndarray, k: int) -> dict[str, Any]:
    """Facts of the survey of documents about a topic."""
    survey = facts.survey
    if survey is None:
        return {}
    rows = survey.row[k].tolist()
    described = _described(facts.documents, rows)
    found = [
        {**text, "row": row, "share": _short(share), "tokens": round(length)}
        for text, row, share, length in zip(
            described, rows, survey.share[k].tolist(), survey.length[k].tolist(), strict=True
        )
    ]
    return {
        "used": _short(survey.used[k]),
        "npmi": None if np.isnan(coherence[k]) else _short(coherence[k]),
        "docs": found,
    }


def _described(documents: pa.Table | None, rows: list[int]) -> list[dict[str, Any]]:
    """Id, text and other metadata of some documents."""
    if documents is None:
        return [{"id": _name(row), "title": "", "text": "", "more": ""} for row in rows]
    out = []
    for record in documents.take(rows).to_pylist():
        said = (next((str(record[c]) for c in kind if record.get(c)), "") for kind in (TITLE_COLUMNS, TEXT_COLUMNS))
        title, text = (_cut(one, CUT) for one in said)
        rest = {c: v for c, v in record.items() if c not in ("id", *TITLE_COLUMNS, *TEXT_COLUMNS) and v is not None}
        more = " · ".join(f"{c}: {_cut(str(v), 60)}" for c, v in list(rest.items())[:4])
        out.append({"id": _cut(str(record["id"]), CUT), "title": title, "text": text, "more": more})
    return out


def _over(shares: TopicShares, order: np.ndarray) -> dict[str, Any]:
    """Shares by one value: labels of the groups, documents in them, and for each topic its share in each."""
    found = [[None if np.isnan(v) else _short(v) for v in row] for row in shares.share.T[order].tolist()]
    labels = [_cut(label, 40) for label in shares.labels]
    return {
        "name": shares.by,
        "line": shares.on_line,
        "labels": labels,
        "documents": shares.documents.tolist(),
        "share": found,
    }


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _word_index(
    posterior: Posterior, names: Sequence[str], order: np.ndarray, phi: np.ndarray, shares: np.ndarray
) -> dict[str, Any]:
    """For the search box: words, tokens of each, and ``[place, share of its tokens, ...]`` of its topics."""
    counts = phi * shares[:, None] if posterior.summary is None else np.asarray(posterior.summary["x"])
    tokens = counts.sum(axis=0)
    there = np.flatnonzero(tokens > 0)
    kept = np.sort(there[np.argsort(-tokens[there], kind="stable")[:SEARCHED]])
    topics = []
    for v in kept.tolist():
        share = counts[order, v] / tokens[v]
        best = np.argsort(-share, kind="stable")[:TOPICS_OF_WORD].tolist()
        topics.append([x for j in best if share[j] >= LEAST_SHARE for x in (j, round(float(share[j]), 3))])
    known = posterior.summary is not None
    return {
        "words": [names[v] for v in kept],
        "tokens": [round(float(tokens[v])) for v in kept] if known else None,
        "topics": topics,
    }


def _short(value: float) -> float:
    """Rounded to four digits, as a page shows it."""
    return float(f"{float(value):.4g}")
