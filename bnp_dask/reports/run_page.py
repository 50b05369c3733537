"""Tables and pages about results."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.analysis.prices import ClusterPrice
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import path_text, shown, whole_number
from bnp_dask.model import Posterior
from bnp_dask.reports.cluster_table import STYLE, ClusterTable, clusters_html, rest_of, title_of
from bnp_dask.reports.describe import check_names, cluster_rows
from bnp_dask.reports.lineage import lineage, lineage_html
from bnp_dask.reports.mixtures.page import atoms_for, cluster_sections
from bnp_dask.reports.page_file import page_target, write_page
from bnp_dask.reports.sequences_page import sequence_sections, sequences_for
from bnp_dask.reports.topics_page import documents_for, page_of_topics
from bnp_dask.reports.tree_picture import tree_section
from bnp_dask.store import posterior_place, read_history
from bnp_dask.structure.answers.documents import counts_words
from bnp_dask.structure.prior import scale_shape
from bnp_dask.training.growing.loading import load
from bnp_dask.training.results import History, TrainResult

if TYPE_CHECKING:
    from distributed import Client

    from bnp_dask.execute.base import Executor

LIMIT = 30
"""Clusters that a table shows."""

MOVES_SHOWN = 200
"""Proposals that a page lists one by one."""

IDS_SHOWN = 12
"""Most cluster ids of a proposal that a page names."""

Subject = TrainResult | Posterior | str | os.PathLike[str]
"""Subjects of a report: a result, a posterior, a saved posterior, a run directory."""

Sections = Sequence[tuple[str, Sequence[Any]]]
"""Headings, and under each HTML, or figures with descriptions."""


# -- text -----------------------------------------------------------------------------------------------------
def inspect(
    what: Subject,
    vocabulary: Sequence[str] | None = None,
    limit: int | None = LIMIT,
    *,
    prices: Sequence[ClusterPrice] | None = None,
) -> ClusterTable:
    """A table of the clusters, heaviest first: prints as text, and notebooks show it as a table.

    Parameters
    ----------
    what
        Posterior or result, or the path of a saved posterior or a run directory.
    vocabulary
        Names of the words or features, ``(D,)``.
    limit
        Most clusters listed, or None for all.
    prices
        Price of each cluster, from :func:`bnp_dask.prices`: additional columns of the table.

    Returns
    -------
    ClusterTable
        Per cluster: id, expected share of atoms, atoms, and its parameters in a few words; a sequence of rows with
        ``to_pandas()``.
    """
    posterior, _ = open_subject(what)
    if limit is not None:
        whole_number("limit", limit, what="None, or a whole number of clusters")
    return ClusterTable.of(posterior, check_names(posterior, vocabulary), limit, _columns(posterior), prices)


def open_subject(what: Subject) -> tuple[Posterior, TrainResult | None]:
    """Posterior of a subject, and its result if it is a run; else None."""
    if isinstance(what, Posterior):
        return what, None
    if isinstance(what, TrainResult):
        return what.posterior, what
    if not isinstance(what, (str, os.PathLike)):
        raise SettingError(f"what={shown(what)}: needs a posterior, a result, or the path of a saved one or of a run")
    place = posterior_place(path_text("what", what))
    if place == os.fspath(what):
        return load(what), None
    posterior, rows = load(place), read_history(what)
    seconds = float(rows[-1].get("seconds", 0.0)) if rows else 0.0
    return posterior, TrainResult(posterior, History(rows), reason=f"run directory {os.fspath(what)}", seconds=seconds)


# -- page -----------------------------------------------------------------------------------------------------
def report(
    what: Subject,
    path: str | os.PathLike[str],
    vocabulary: Sequence[str] | None = None,
    *,
    data: Any = None,
    reference: Any = None,
    prices: Sequence[ClusterPrice] | None = None,
    images: tuple[int, int] | bool | None = None,
    client: Client | Executor | str | None = None,
) -> None:
    """Write an HTML page about a result: settings, clusters, and pictures; one file, nothing loaded from elsewhere.

    The page of a topic model of words can be browsed: topics by size, the words of each by a ranking between
    frequent and distinctive, its best documents, similar topics, and a search for words.

    The page of a hidden Markov model shows durations of states, transitions, and the segments of some sequences.

    Pages of clusters show the features that distinguish these best (by the Bhattacharyya distance): ellipses and
    densities of Gaussians, tables of probabilities and rates, bars of levels.

    Parameters
    ----------
    what
        Result or posterior, or the path of a run directory or a saved posterior.  Only results and run directories
        have a history to draw.
    path
        File or URL of an object store to write; an existing page is replaced, in one step.
    vocabulary
        Names of the words or features, ``(D,)``.  Default: the words that the posterior was trained with.
    data
        Documents to show beside topics, or sequences whose states to show, as for :func:`bnp_dask.predict`; one pass
        is made over them.  Atoms to draw in the ellipses of their clusters: 2,000, from 16 batches at most.  Default:
        the training data of a run directory, if they still exist.
    reference
        Known labels of all steps of the sequences, as for :func:`bnp_dask.sequence_distances`, in the order of the
        data: the page has a table of the sequences with their distance from these, by a second pass.
    prices
        Price of each cluster, as for :func:`inspect`; pages of topics do not show them.
    images
        Rows and columns of the images whose pixels are the features; True for square ones, False for no images.
        Default: images are shown if features without names are clearly pixels: a square of 64 at least, in which
        neighbours are alike in both directions.
    client
        Client for that pass, as in :func:`bnp_dask.predict`.

    Raises
    ------
    SettingError
        matplotlib is not installed (pages about topics do not need it), ``reference`` for a model without sequences,
        or ``images`` that features do not fill.
    StoreError
        The path holds a file other than a page, or is not writable.
    """
    target = page_target(path_text("path", path))
    posterior, result = open_subject(what)
    names = check_names(posterior, vocabulary)
    is_ordered = posterior.model.structure.is_ordered
    if reference is not None and not is_ordered:
        raise SettingError(f"reference= is for labels of sequences; {title_of(posterior)} has none")
    if counts_words(posterior.model):
        run = {} if result is None else _run_facts(result)
        documents = documents_for(what, data)
        settings = _settings(posterior)
        page = page_of_topics(posterior, result, names, documents, run, settings, client)
    else:
        sections, read = [], None
        if is_ordered:
            sections = sequence_sections(posterior, sequences_for(posterior, what, data), client, reference)
        else:
            read = partial(atoms_for, posterior, what, data, client)
        pictures = cluster_sections(posterior, names, LIMIT, read, images)
        page = page_html(posterior, result, names, sections, pictures, prices)
    write_page(target, page)


def page_html(
    posterior: Posterior,
    result: TrainResult | None,
    names: Sequence[str] | None,
    sections: Sections = (),
    pictures: Sections = (),
    prices: Sequence[ClusterPrice] | None = None,
) -> str:
    """The page of :func:`report` as text; ``sections`` come before the table of clusters, ``pictures`` after it."""
    from bnp_dask.reports import plots

    parts = [f"<h1>{html.escape(title_of(posterior))}</h1>"]
    if result is not None:
        parts += ["<h2>Run</h2>", _table_of(_run_facts(result))]
        if len(result.history):
            parts.append(_image(plots.plot_run(result.history), "Objective and number of clusters over the run"))
        if result.history.moves():
            parts += ["<h2>Moves</h2>", moves_html(result.history.moves())]
            parts += ["<h2>Lineage</h2>", lineage_html(lineage(result))]
    parts += _sections_html(sections)
    parts += ["<h2>Clusters</h2>", clusters_html(cluster_rows(posterior, names, LIMIT, prices)), _note(posterior)]
    parts.append(_image(plots.plot_weights(posterior).figure, "Expected share of each cluster"))
    parts += _sections_html(tree_section(posterior))
    parts += _sections_html(pictures)
    parts += ["<h2>Settings</h2>", _table_of(_settings(posterior))]
    return _PAGE.format(title=html.escape(title_of(posterior)), body="\n".join(parts), version=html.escape(__version__))


def _sections_html(sections: Sections) -> list[str]:
    parts: list[str] = []
    for heading, content in sections:
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        parts += [part if isinstance(part, str) else _image(*part) for part in content]
    return parts


def _note(posterior: Posterior) -> str:
    rest = rest_of(posterior, LIMIT)
    return f"<p class='note'>{html.escape(rest)}</p>" if rest else ""


def _run_facts(result: TrainResult) -> dict[str, str]:
    facts = {"Ended": f"{'converged' if result.converged else result.reason or 'not converged'}"}
    if result.converged and result.reason not in ("", "converged"):
        facts["Reason"] = result.reason
    facts["Time"] = f"{result.seconds:.1f} s"
    facts["Steps"] = f"{len(result.history)}"
    if len(result.history):
        last = result.history[-1]
        if last.get("skipped"):
            facts["Batches left out"] = f"{last['skipped']} that could not be used"
            for row in result.history:
                for entry in row.get("lost", ()):
                    facts[f"Batch {entry['batch']}"] = f"left out from lap {row['lap']} on: {entry['why']}"
        if "lap" in last:
            facts["Laps"] = f"{last['lap']}"
        if "elbo" in last:
            facts["Objective"] = f"{last['elbo']:.8g} nats"
        terms = [n for n in ("data", "entropy", "allocation", "prior") if n in last]
        if terms:
            facts["Its terms"] = ", ".join(f"{n} {last[n]:.6g}" for n in terms)
    return facts


def _settings(posterior: Posterior) -> dict[str, str]:
    model = posterior.model
    found: dict[str, str] = {"estimate": model.estimate}
    found["prior"] = "fixed" if model.reference is None else f"learned ({scale_shape(model)})"
    found |= _columns(posterior)
    for part, value in (("allocation", model.allocation), ("observation", model.observation)):
        found[part] = type(value).__name__
        found |= _flat(value, part)
    return found


def _columns(posterior: Posterior) -> dict[str, str]:
    """Columns that the posterior was trained on, if these have names."""
    known = posterior.columns
    return {} if known is None or (known.shown is None and not known.roles.names) else {"columns": str(known)}


def _flat(value: Any, name: str) -> dict[str, str]:
    """Settings of a model part, one line each; arrays by their shape and range."""
    if is_dataclass(value) and not isinstance(value, type):
        return {k: v for f in fields(value) for k, v in _flat(getattr(value, f.name), f"{name}.{f.name}").items()}
    if isinstance(value, np.ndarray) and value.size > 4:
        if np.min(value) == np.max(value):
            return {name: f"{value.flat[0]:.6g} everywhere, shape {value.shape}"}
        return {name: f"{np.min(value):.4g} to {np.max(value):.4g}, shape {value.shape}"}
    if isinstance(value, np.ndarray):
        return {name: ", ".join(f"{v:.6g}" for v in value.ravel())}
    if isinstance(value, (tuple, list)) and any(is_dataclass(v) or isinstance(v, (tuple, list)) for v in value):
        items = [(f"{name}[{i}]", v) for i, v in enumerate(value)]
        return {k: v for key, item in items for k, v in ({key: type(item).__name__} | _flat(item, key)).items()}
    return {name: f"{value:.6g}" if isinstance(value, float) else str(value)}


# -- pieces of HTML -------------------------------------------------------------------------------------------
def moves_html(moves: Sequence[Mapping[str, Any]]) -> str:
    """Proposals by kind, and the latest ones one by one."""
    lines = [
        "<table><thead><tr><th class='text'>kind</th><th>proposed</th><th>accepted</th><th>gained (nats)</th></tr>"
    ]
    lines.append("</thead><tbody>")
    for kind in dict.fromkeys(m["kind"] for m in moves):
        own = [m for m in moves if m["kind"] == kind]
        accepted = [m for m in own if m["accepted"]]
        gained = sum(m["gain"] or 0.0 for m in accepted)
        cells = f"<td>{len(own)}</td><td>{len(accepted)}</td><td>{gained:,.6g}</td>"
        lines.append(f"<tr><td class='text'>{html.escape(kind)}</td>{cells}</tr>")
    lines.append("</tbody></table><details><summary>the latest proposals</summary><table><thead><tr><th>lap</th>")
    lines.append("<th class='text'>kind</th><th class='text'>clusters</th><th class='text'>others</th><th>gain</th>")
    lines.append("<th class='text'>decision</th></tr></thead><tbody>")
    for m in reversed(moves[-MOVES_SHOWN:]):
        gain = "" if m["gain"] is None else f"{m['gain']:,.4g}"
        ids = [_first_few(m[name]) for name in ("targets", "others")]
        verdict = ("accepted: " if m["accepted"] else "rejected: ") + m["why"]
        text = [f"<td class='text'>{html.escape(t)}</td>" for t in (m["kind"], *ids)]
        lines.append(
            f"<tr><td>{m['lap']}</td>{''.join(text)}<td>{gain}</td><td class='text'>{html.escape(verdict)}</td></tr>"
        )
    return "\n".join([*lines, "</tbody></table></details>"])


def _first_few(ids: Sequence[int]) -> str:
    """Cluster ids in words: the first ones, and the number of the rest."""
    more = f", ... ({len(ids) - IDS_SHOWN} more)" if len(ids) > IDS_SHOWN else ""
    return ", ".join(map(str, ids[:IDS_SHOWN])) + more


def posterior_html(posterior: Posterior) -> str:
    """A posterior for notebooks."""
    return ClusterTable.of(posterior, check_names(posterior, None), 12)._repr_html_()


def result_html(result: TrainResult) -> str:
    """A result for notebooks."""
    facts = _table_of(_run_facts(result))
    return f"<div class='bnp'>{facts}</div>{posterior_html(result.posterior)}"


def _table_of(facts: Mapping[str, str]) -> str:
    rows = [f"<tr><th>{html.escape(k)}</th><td class='text'>{html.escape(v)}</td></tr>" for k, v in facts.items()]
    return "<table class='facts'><tbody>" + "\n".join(rows) + "</tbody></table>"


def _image(figure: Any, text: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='{html.escape(text)}' src='data:image/png;base64,{data}'>"


_PAGE = (
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; color: #1a202c; max-width: 1100px; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 24px; }} h2 {{ font-size: 18px; margin-top: 1.6em; border-bottom: 1px solid #e2e8f0; }}
img {{ max-width: 100%; display: block; margin: 0.8em 0; }} footer {{ color: #718096; margin: 2em 0; }}
"""
    + STYLE.replace("{", "{{").replace("}", "}}")
    + """</style>
</head>
<body>
{body}
<footer>bnp-dask {version}</footer>
</body>
</html>
"""
)
