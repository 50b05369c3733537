"""The page of a topic model: from a run and its documents to the facts for :mod:`bnp_dask.reports.topics_browser`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.topics.grouping import worth_showing
from bnp_dask.analysis.topics.over import TopicShares, shares_over
from bnp_dask.analysis.topics.usage import survey_documents
from bnp_dask.analysis.topics.words import names_of
from bnp_dask.data import as_source, load_documents
from bnp_dask.data.base import Source
from bnp_dask.data.sources.zarr_counts import ZarrCountsSource
from bnp_dask.errors import BnpDaskError, DataError
from bnp_dask.execute.base import Executor
from bnp_dask.model import Posterior
from bnp_dask.reports.plots import lap_positions
from bnp_dask.reports.topics_browser import OVER, TEXT_COLUMNS, TITLE_COLUMNS, PageFacts, topics_page
from bnp_dask.store import RunStore, holds_run
from bnp_dask.training.results import History, TrainResult

if TYPE_CHECKING:
    from distributed import Client

CURVE_POINTS = 600
"""Points of a curve that a page draws."""


def page_of_topics(
    posterior: Posterior,
    result: TrainResult | None,
    names: Sequence[str] | None,
    documents: Source | str,
    run: Mapping[str, str],
    settings: Mapping[str, str],
    client: Client | Executor | str | None = None,
) -> str:
    """The page as text; ``documents`` is their source, or the reason for none."""
    survey = table = None
    over: list[TopicShares] = []
    if not isinstance(documents, str):
        survey = survey_documents(posterior, documents, client=client)
        table = table_of(documents)
        shown = [] if table is None else worth_showing(table, ("id", *TITLE_COLUMNS, *TEXT_COLUMNS), OVER)
        if shown:
            over = shares_over(posterior, open_for(posterior, documents), shown, client=client)
    facts = PageFacts(
        title=f"{posterior.n_clusters} topic{'s' if posterior.n_clusters != 1 else ''}",
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


def documents_for(what: Any, data: Any) -> Source | str:
    """Documents to show: the given ones, else the training data of a run directory; or the reason for none."""
    if data is not None:
        return as_source(data)
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
