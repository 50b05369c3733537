"""Tables and pages about results."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.prices import ClusterPrice
from bnp_dask.core.columns import few
from bnp_dask.core.table import Table
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import path_text, shown, whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.reports.describe import ClusterTable, check_names, title_of
from bnp_dask.reports.mixtures import atoms_for, cluster_sections
from bnp_dask.reports.pages import Picture, Section, page_target, render, tables_html, write_page
from bnp_dask.reports.plots import tree_section
from bnp_dask.reports.sequences_page import sequence_sections, sequences_for
from bnp_dask.reports.topics_page import documents_for, page_of_topics
from bnp_dask.store import posterior_place, read_history
from bnp_dask.structure.answers.documents import counts_words
from bnp_dask.structure.nouns import Noun, noun_of
from bnp_dask.structure.prior import learner_of, scale_shape
from bnp_dask.training.growing.ingest_update import UpdateResult
from bnp_dask.training.growing.versions import load
from bnp_dask.training.results import History, TrainResult

if TYPE_CHECKING:
    from distributed import Client

    from bnp_dask.execute.base import Executor


# -- lineage of clusters -------------------------------------------------------------------------------------------
SHOWN = 200
"""Clusters that a page lists."""

FEW = 6
"""Most ids of other clusters that a page names for each cluster."""


@dataclass(frozen=True)
class Life:
    """Life of one cluster.

    Parameters
    ----------
    id
        The cluster.
    born
        Lap of its birth; None if it existed from the start.
    parents
        Clusters that it was split from; empty if it took atoms from all clusters or existed from the start.
    ended
        Lap in which it was split, merged or deleted; None if it exists at the end.
    how
        The move that ended it; empty if it exists at the end.
    successors
        Clusters that took over its atoms.
    """

    id: int
    born: int | None = None
    parents: tuple[int, ...] = ()
    ended: int | None = None
    how: str = ""
    successors: tuple[int, ...] = ()


def lineage(result: TrainResult) -> list[Life]:
    """Lives of all clusters in the history of a run, by id: their parents, laps of birth and end, and successors.

    Clusters that no accepted move names are known if they exist at the end of the run; initial clusters that ended are
    known from the moves that name them.

    Parameters
    ----------
    result
        Result of :func:`bnp_dask.train`.
    """
    lives: dict[int, Life] = {}
    for move in result.history.moves():
        if not move["accepted"] or move["kind"] not in ("birth", "merge", "delete", "shadow"):
            continue
        targets, others = tuple(map(int, move["targets"])), tuple(map(int, move["others"]))
        lap = int(move["lap"])
        if move["kind"] in ("birth", "shadow"):
            parents = targets if move["kind"] == "birth" else ()  # all clusters of a shadow took from all
            for i in others:
                if i not in targets:
                    lives[i] = Life(i, lap, parents)
        gone, successors = (targets[1:], targets[:1]) if move["kind"] == "merge" else (targets, others)
        for i in gone:
            if i not in others:
                lives[i] = replace(lives.get(i, Life(i)), ended=lap, how=move["kind"], successors=successors)
    alive = set(result.posterior.ids.tolist())
    for i in alive:
        known = lives.get(i, Life(i))
        lives[i] = replace(known, ended=None, how="", successors=())
    return [lives[i] for i in sorted(lives)]


def lineage_table(lives: Sequence[Life], noun: Noun) -> Table:
    """Lives as a table to unfold, clusters that exist at the end first."""
    rows = [
        (
            str(life.id),
            "start" if life.born is None else str(life.born),
            "" if life.born is None else first_few(life.parents, FEW) or f"all {noun.many}",
            "" if life.ended is None else str(life.ended),
            life.how,
            first_few(life.successors, FEW),
        )
        for life in sorted(lives, key=lambda life: (life.ended is not None, life.id))[:SHOWN]
    ]
    left = len(lives) - SHOWN
    return Table(
        (noun.one, "born in lap", "of", "ended in lap", "by", f"its {noun.atoms} went to"),
        rows,
        left=(2, 4, 5),
        fold=f"{noun.count(len(lives))}, from birth to end",
        notes=[f"... and {left} more"] if left > 0 else [],
    )


def first_few(ids: Sequence[int], most: int) -> str:
    """Ids in words: the first ``most``, and the number of the rest."""
    more = f", ... ({len(ids) - most} more)" if len(ids) > most else ""
    return ", ".join(map(str, ids[:most])) + more


# -- pages ---------------------------------------------------------------------------------------------------------
LIMIT = 30
"""Clusters that a table shows."""

READ_FROM = "run directory"
"""Begin of the reason of a result that was read from a run directory."""

MOVES_SHOWN = 200
"""Proposals that a page lists one by one."""

IDS_SHOWN = 12
"""Most cluster ids of a proposal that a page names."""

Subject = TrainResult | Posterior | str | os.PathLike[str]
"""Subjects of a report: a result, a posterior, a saved posterior, a run directory."""


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
    return posterior, TrainResult(posterior, History(rows), reason=f"{READ_FROM} {os.fspath(what)}", seconds=seconds)


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
        documents, table = documents_for(posterior, what, data)
        settings = _settings(posterior)
        page = page_of_topics(posterior, result, names, documents, table, run, settings, client)
    else:
        sections: list[Section] = []
        read = None
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
    sections: Sequence[Section] = (),
    pictures: Sequence[Section] = (),
    prices: Sequence[ClusterPrice] | None = None,
) -> str:
    """The page of :func:`report` as text: results first, then the run.

    ``sections`` come before the table of clusters, ``pictures`` after it.
    """
    from bnp_dask.reports import plots

    noun = noun_of(posterior.model)
    listed = ClusterTable.of(posterior, names, LIMIT, prices=prices).table
    shares = Picture(plots.plot_weights(posterior).figure, f"Expected share of each {noun.one}")
    content = [*sections, Section(noun.many.capitalize(), [listed, shares]), *tree_section(posterior), *pictures]
    if result is not None:
        run: list[Any] = [_facts(_run_facts(result))]
        if len(result.history):
            drawn = plots.plot_run(result.history, noun)
            run.append(Picture(drawn, f"Objective and number of {noun.many} over the run"))
        content.append(Section("Run", run))
        if result.history.moves():
            content.append(Section("Moves", move_tables(result.history.moves(), noun)))
            content.append(Section("Lineage", [lineage_table(lineage(result), noun)]))
    content.append(Section("Settings", [_facts(_settings(posterior))]))
    ended = "" if result is None else _ended(result)
    return render("run.html.j2", {"title": title_of(posterior), "ended": ended, "sections": content})


def _ended(result: TrainResult) -> str:
    """One line on the end of a run."""
    laps = result.history[-1].get("lap") if len(result.history) else None
    done = "" if laps is None else "1 lap" if laps == 1 else f"{laps} laps"
    if result.converged:
        return f"Converged after {done}." if done else "Converged."
    return f"{done or 'Not converged'}{f' ({result.reason})' if result.reason else ''}."


def _run_facts(result: TrainResult) -> dict[str, str]:
    if result.reason.startswith(READ_FROM):  # its end is not known
        facts = {"Read from": result.reason}
    else:
        facts = {"Ended": "converged" if result.converged else result.reason or "not converged"}
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
    return _settings_of(posterior.model) | _columns(posterior)


def _settings_of(model: Model) -> dict[str, str]:
    found: dict[str, str] = {"estimate": model.estimate}
    found["prior"] = "fixed" if model.reference is None else f"learned ({scale_shape(model)})"
    if learner_of(model) is not None:
        found["concentrations"] = "learned"
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


# -- tables ---------------------------------------------------------------------------------------------------
def move_tables(moves: Sequence[Mapping[str, Any]], noun: Noun) -> list[Table]:
    """Proposals by kind, and the latest ones one by one."""
    kinds = []
    for kind in dict.fromkeys(m["kind"] for m in moves):
        own = [m for m in moves if m["kind"] == kind]
        accepted = [m for m in own if m["accepted"]]
        gained = sum(m["gain"] or 0.0 for m in accepted)
        kinds.append((kind, str(len(own)), str(len(accepted)), f"{gained:,.6g}"))
    latest = [
        (
            str(m["lap"]),
            m["kind"],
            first_few(m["targets"], IDS_SHOWN),
            first_few(m["others"], IDS_SHOWN),
            "" if m["gain"] is None else f"{m['gain']:,.4g}",
            f"{'accepted' if m['accepted'] else 'rejected'}: {m['why']}",
        )
        for m in reversed(moves[-MOVES_SHOWN:])
    ]
    return [
        Table(("kind", "proposed", "accepted", "gained (nats)"), kinds, left=(0,)),
        Table(
            ("lap", "kind", noun.many, "others", "gain", "decision"),
            latest,
            left=(1, 2, 3, 5),
            fold="the latest proposals",
        ),
    ]


def _facts(facts: Mapping[str, str]) -> Table:
    return Table((), list(facts.items()), left=(0, 1))


def model_html(model: Model) -> str:
    """A model for notebooks: its settings."""
    return tables_html(_facts(_settings_of(model)))


def update_html(result: UpdateResult) -> str:
    """An update for notebooks."""
    facts = {
        "Version": str(result.version),
        "New": f"{few(result.new, quoted=False) or 'nothing'}, {result.new_batches} batches",
        "Older batches visited": str(result.revisited),
        "Known already": str(len(result.known)),
    }
    if not math.isnan(result.fresh):
        facts["New data before they were folded"] = f"{result.fresh:.5g} nats per atom"
    found = ClusterTable.of(result.posterior, check_names(result.posterior, None), 12)
    return tables_html(_facts(facts), replace(found.table, caption=found.title))


def posterior_html(posterior: Posterior) -> str:
    """A posterior for notebooks."""
    return ClusterTable.of(posterior, check_names(posterior, None), 12)._repr_html_()


def result_html(result: TrainResult) -> str:
    """A result for notebooks."""
    found = ClusterTable.of(result.posterior, check_names(result.posterior, None), 12)
    return tables_html(_facts(_run_facts(result)), replace(found.table, caption=found.title))
