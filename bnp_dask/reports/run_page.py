"""Tables and pages about results: a run, the states of sequences, and the topics of documents.

From top to bottom: the page of a result (:func:`report`) and its facts and tables, pages for notebooks, lives of
clusters, sections about sequences, and the page of topics, which a reader browses.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis import (
    LEAST_TOKENS,
    RELEVANCE,
    ClusterPrice,
    SequenceSurvey,
    TopicShares,
    TopicSurvey,
    foremost,
    hellinger,
    in_tables,
    is_list_of_arrays,
    marginal,
    namer_of,
    names_of,
    open_for,
    sequence_distances,
    shares_over,
    survey_documents,
    survey_sequences,
    texts_in,
    token_shares,
    topic_positions,
    transitions,
    word_probabilities,
    word_tokens,
    worth_showing,
)
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.score import score
from bnp_dask.core import Table, pandas_for
from bnp_dask.core.columns import few
from bnp_dask.data import (
    BEGINS,
    DaskFrameSource,
    Document,
    GroupedSource,
    Source,
    ZarrCountsSource,
    as_source,
    load_documents,
)
from bnp_dask.errors import BnpDaskError, DataError, SettingError, answering
from bnp_dask.execute import Executor
from bnp_dask.inputs import path_text, plain, shown, whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import unlabelled
from bnp_dask.reports import plots
from bnp_dask.reports.describe import ClusterTable, check_names, title_of
from bnp_dask.reports.pages import Paragraph, Picture, Section, page_target, render, tables_html, write_page
from bnp_dask.reports.plots import atoms_for, cluster_sections
from bnp_dask.store import holds_run, posterior_place, read_history
from bnp_dask.structure import (
    CLUSTER,
    Noun,
    count_of,
    counts_words,
    in_use,
    learner_of,
    noun_of,
    response_of,
    scale_shape,
    unused_line,
)
from bnp_dask.training import History, TrainResult, UpdateResult, load, objective_of_version, settings_of_run

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client


# -- the page of a result ---------------------------------------------------------------------------------------------
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


@answering
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

    Raises
    ------
    StoreError
        There is no saved model and no run at the path.
    DataError
        The number of names in ``vocabulary`` is not the number of features.
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


@answering
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
    noun = noun_of(posterior.model)
    listed = ClusterTable.of(posterior, names, LIMIT, prices=prices).table
    shares = Picture(plots.plot_weights(posterior).figure, f"Expected share of each {noun.one}")
    content = [*sections, Section(noun.many.capitalize(), [listed, shares]), *plots.tree_section(posterior), *pictures]
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


# -- facts and tables of a run ----------------------------------------------------------------------------------------
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


# -- notebooks --------------------------------------------------------------------------------------------------------
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


# -- lineage of clusters -------------------------------------------------------------------------------------------
LIVES_SHOWN = 200
"""Clusters that the table of lineages lists, at most."""

RELATIVES_SHOWN = 6
"""Ids of other clusters that it names for each cluster, at most."""


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


@answering
def lineage(result: TrainResult) -> list[Life]:
    """Lives of all clusters in the history of a run, by id: their parents, laps of birth and end, and successors.

    Clusters that no accepted move names are known if they exist at the end of the run; initial clusters that ended are
    known from the moves that name them.

    Parameters
    ----------
    result
        Result of :func:`bnp_dask.train`.

    Returns
    -------
    list of Life
        A life for each cluster, by id.

    Raises
    ------
    SettingError
        No result.
    """
    if not isinstance(result, TrainResult | UpdateResult):
        raise SettingError(f"result={shown(result)}: needs the result of bnp_dask.train(...)")
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
            "" if life.born is None else first_few(life.parents, RELATIVES_SHOWN) or f"all {noun.many}",
            "" if life.ended is None else str(life.ended),
            life.how,
            first_few(life.successors, RELATIVES_SHOWN),
        )
        for life in sorted(lives, key=lambda life: (life.ended is not None, life.id))[:LIVES_SHOWN]
    ]
    left = len(lives) - LIVES_SHOWN
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


# -- sequences: durations of states, transitions, and some sequences ----------------------------------------------
SEQUENCES_SHOWN = 6
"""Sequences on a page."""

ROWS = 200
"""Sequences in a table."""

STEPS = 1500
"""Steps of a sequence on a page: more would be thinner than a pixel."""


def sequences_for(posterior: Posterior, what: Any, data: Any) -> Source | str:
    """Sequences to show beside the model: the given ones, or the run directory's; or the reason for none."""
    if data is not None:
        return open_for(posterior, data)
    if not isinstance(what, (str, os.PathLike)) or not holds_run(what):
        return "No sequences were given to this page."
    facts = settings_of_run(what)["data"]
    path = str(facts.get("path", ""))
    try:
        source = open_for(posterior, path)
    except (BnpDaskError, OSError) as error:
        return f"The sequences of this run could not be read ({error})."
    if not has_sequences(source):
        return (
            f"{path} does not say itself which rows are a sequence: pass data=as_source(path, groups=...) to see how "
            "this model segments them."
        )
    if source.n_features != facts.get("n_features") or source.n_atoms != facts.get("n_atoms"):
        return f"The sequences of this run could not be read ({path} has changed since)."
    return source


def has_sequences(source: Source) -> bool:
    """Whether a source is known to have rows in groups."""
    return isinstance(source, GroupedSource) or (isinstance(source, DaskFrameSource) and bool(source.keys))


def sequence_sections(
    posterior: Posterior, sequences: Source | str, client: Client | Executor | str | None, reference: Any
) -> list[Section]:
    """Sections about sequences, durations, distances from known labels, and transitions."""
    sections: list[Section] = []
    if isinstance(sequences, str):
        if reference is not None:
            raise SettingError(f"reference= labels sequences that cannot be shown: {sequences} Pass them as data=")
        sections.append(Section("Sequences", [_note(sequences)]))
    else:
        survey = survey_sequences(posterior, sequences, show=SEQUENCES_SHOWN, steps=STEPS, client=client)
        sections.append(Section("Sequences", [_facts_of_sequences(survey, sequences), *_pictures(survey)]))
        figure = plots.plot_durations(survey.durations).figure
        lengths = Picture(figure, "Lengths of runs of each state")
        sections.append(Section("How long states last", [durations_table(survey), lengths]))
        if reference is not None:
            found = _distances(posterior, sequences, reference, client)
            sections.append(Section("Distance from the labels", [found]))
    figure = plots.plot_transitions(posterior).figure
    parts: list[Any] = [Picture(figure, "Expected transition probabilities")]
    if transitions(posterior).unused.max() > 0.005:
        parts.append(_note("Rows sum to less than one: the rest is for states that were not met yet."))
    sections.append(Section("Transitions", parts))
    return sections


def _distances(posterior: Posterior, source: Source, reference: Any, client: Client | Executor | str | None) -> Table:
    """Recordings with their distance from known labels."""
    namers = [namer() for i in range(source.n_batches) if (namer := namer_of(source, i)) is not None]
    names = [
        _name_of_state(i, b) for ids, begin in namers for i, b in zip(ids.to_pylist(), begin.tolist(), strict=True)
    ]
    states = predict(posterior, source, client=client)
    if is_list_of_arrays(reference):  # labels of whole sequences, which may have been cut since
        reference = np.concatenate([plain(labels, "reference") for labels in reference])
    found = sequence_distances(states, reference, source, names=names or None)
    rest = f" The first {ROWS:,} of {len(found):,} sequences." if len(found) > ROWS else ""
    note = (
        "Distance: share of the steps whose state stands for another label than theirs (Hamming distance), where each "
        f"state stands for one label, or none, in all sequences.{rest}"
    )
    return replace(found.table(ROWS), notes=[note])


def _name_of_state(id: Any, begin: int) -> str:
    """A sequence, or a block of one."""
    return f"{id}, from {begin:,}" if begin else str(id)


def _note(text: str) -> Paragraph:
    return Paragraph(text, is_note=True)


def _facts_of_sequences(survey: SequenceSurvey, source: Source) -> Paragraph:
    text = f"{survey.n_sequences:,} sequences with {survey.n_steps:,} steps in all, in {source.name}"
    if survey.n_cuts:
        text += (
            f"; they were cut in {survey.n_cuts:,} place{'s' if survey.n_cuts > 1 else ''}: the next part starts anew, "
            "and the transition there is not counted"
        )
    return Paragraph(f"{text}.")


def _pictures(survey: SequenceSurvey) -> list[Any]:
    if not survey.shown:
        return []
    labels = [s.states for s in survey.shown]
    short = [str(s.id) if len(str(s.id)) <= 24 else f"{str(s.id)[:23]}…" for s in survey.shown]
    names = [f"{n}, from {s.begin:,}" if s.begin else n for n, s in zip(short, survey.shown, strict=True)]
    axes = plots.plot_segments(labels, names=names)
    long = [s for s in survey.shown if s.n_steps > len(s.states)]
    parts: list[Any] = [Picture(axes.figure, "Most likely states of the first sequences")]
    if long:
        parts.append(_note(f"The first {STEPS:,} steps of sequences that have more."))
    return parts


def durations_table(survey: SequenceSurvey) -> Table:
    """Steps and runs of each state, and the lengths of its runs in steps; states with most steps first."""
    durations = survey.durations
    rows = [
        (
            str(durations.ids[k]),
            f"{durations.steps[k]:,}",
            f"{durations.runs[k]:,}",
            f"{durations.mean[k]:.1f}",
            *(f"{q:g}" for q in durations.quantiles[k]),
            f"{durations.runs[k] - durations.ended[k]:,}",
        )
        for k in (-durations.steps).argsort(kind="stable")
        if durations.runs[k]
    ]
    levels = [f"{100 * level:g}%" for level in durations.levels]
    note = (
        "Steps in one run of a state: mean and quantiles. Runs at an end of their sequence are cut short: they may "
        "have lasted longer."
    )
    return Table(("state", "steps", "runs", "mean", *levels, "cut short"), rows, notes=[note])


# -- topics: from a run and its documents to facts, and from these to a page for browsing -------------------------
WORDS_SHOWN = 25
"""Words of a topic that the page lists at a time."""

CANDIDATES = 30
"""Words that are kept for each of eleven positions of the slider."""

NEAR = 6
"""Neighbours of a topic that are listed."""

SEARCHED = 30_000
"""Words that can be searched for: the most frequent ones."""

TOPICS_OF_WORD = 8
"""Topics that are listed for a word, at most."""

LEAST_SHARE = 0.01
"""Least share of a word's tokens for which a topic is listed."""

TITLE_COLUMNS = ("title", "subject", "headline")
"""Metadata shown as the title of a document: the first column that it has."""

TEXT_COLUMNS = (BEGINS, "summary", "text")
"""Metadata shown as the text of a document: the first column that it has."""

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
    client: Client | Executor | str | None,
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
    facts = settings_of_run(what)["data"]
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
    lap, exact = plots.lap_positions(history)
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
    """Data of the page's script, as JSON takes them."""
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
        if told:
            topic["response"] = _cut(told[k], CUT)
        topics.append(topic | _of_survey(facts, coherence, k))
    xy = topic_positions(posterior)
    return {
        "title": facts.title,
        "topics": topics,
        "words": [names[v] for v in column],
        "overall": [_short(overall[v]) for v in column],
        "index": _word_index(posterior, names, order, phi, shares),
        "map": np.column_stack([xy, plots.map_radii(shares, xy)])[order].round(5).tolist(),
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
    documents = _described(facts.documents, rows)
    for document, row, share, length in zip(documents, rows, survey.share[k], survey.length[k], strict=True):
        document |= {"row": row, "share": _short(share), "tokens": round(float(length))}
    return {
        "used": _short(survey.used[k]),
        "npmi": None if np.isnan(coherence[k]) else _short(coherence[k]),
        "docs": documents,
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


# -- Runs side by side --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunLine:
    """A run in a comparison.

    Parameters
    ----------
    run
        Its name.
    model
        Allocation and likelihood.
    n_clusters
        K, without topics that have no tokens.
    objective
        The last objective of its history, nats; None without a history.
    heldout
        Mean log likelihood of the held-out data, nats per atom (per held-out word for topic models); None without.
    laps, seconds
        Laps done and seconds taken; None without a history.
    noun
        Noun of its clusters: clusters, topics or states.
    """

    run: str
    model: str
    n_clusters: int
    objective: float | None
    heldout: float | None
    laps: int | None
    seconds: float | None
    noun: Noun = CLUSTER


@dataclass(frozen=True)
class Comparison(Sequence[RunLine]):
    """Runs in the order given; a sequence that prints as a table."""

    lines: tuple[RunLine, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return Comparison(self.lines[index]) if isinstance(index, slice) else self.lines[index]

    def to_pandas(self) -> pd.DataFrame:
        """One row per run, its name as index."""
        pandas = pandas_for("to_pandas")
        return pandas.DataFrame([asdict(line) for line in self.lines]).drop(columns="noun").set_index("run")

    def __str__(self) -> str:
        return self._table().text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        return Table(_head(self.lines), [_cells(line) for line in self.lines], left=(0, 1))


def _head(lines: Sequence[RunLine]) -> tuple[str, ...]:
    """Names of the columns; runs of several kinds are said to have clusters."""
    nouns = {line.noun for line in lines}
    counted = nouns.pop() if len(nouns) == 1 else CLUSTER
    return ("run", "model", counted.many, "objective", "held-out", "laps", "seconds")


def _cells(line: RunLine) -> tuple[str, ...]:
    numbers = (line.objective, line.heldout)
    shown = ["-" if value is None else f"{value:,.{digits}f}" for value, digits in zip(numbers, (1, 4), strict=True)]
    laps, seconds = "-" if line.laps is None else str(line.laps), "-" if line.seconds is None else f"{line.seconds:.1f}"
    return line.run, line.model, str(line.n_clusters), *shown, laps, seconds


@answering
def compare(
    *runs: Subject | Sequence[Subject] | Mapping[str, Subject],
    heldout: Any = None,
    client: Client | Executor | str | None = None,
) -> Comparison:
    """Objective, held-out score and number of clusters of several runs, side by side.

    Objectives can be compared for one data set and one likelihood with one prior; held-out scores for one data set.

    Parameters
    ----------
    runs
        Results, posteriors, paths of saved posteriors or of run directories, or versions of a run (``"RUN@3"``); or
        one list of these, or one mapping from names to these.
    heldout
        Data that no run was trained on, as for :func:`bnp_dask.score`; None leaves that column empty.
    client
        As for :func:`bnp_dask.score`.

    Returns
    -------
    Comparison
        A line for each run, in nats; prints as a table.

    Raises
    ------
    SettingError
        No run is given, or an argument is no result, posterior or path.
    StoreError
        There is no saved model and no run at a path.
    DataError
        ``heldout`` are data that a run's likelihood cannot have produced.
    """
    named: dict[str, Any]
    if len(runs) == 1 and isinstance(runs[0], Mapping):
        named = {str(name): run for name, run in runs[0].items()}
    else:
        several = runs[0] if len(runs) == 1 and isinstance(runs[0], (list, tuple)) else runs
        named = {_called(i, run): run for i, run in enumerate(several)}
    if not named:
        raise SettingError("compare() needs runs: results, posteriors, or paths of run directories")
    return Comparison(tuple(_line(name, run, heldout, client) for name, run in named.items()))


def _called(i: int, run: Any) -> str:
    return f"{i + 1}: {os.fspath(run)}" if isinstance(run, (str, os.PathLike)) else str(i + 1)


def _line(name: str, run: Any, heldout: Any, client: Any) -> RunLine:
    posterior, result = open_subject(run)
    noun, n_clusters = noun_of(posterior.model), int(in_use(posterior).sum())
    model = f"{type(posterior.model.allocation).__name__} of {type(unlabelled(posterior.model.observation)).__name__}"
    value = None if heldout is None else float(score(posterior, heldout, client=client))
    if result is None or len(result.history) == 0:
        return RunLine(name, model, n_clusters, objective_of_version(run), value, None, None, noun)
    last = result.history[-1]
    objective = float(last["elbo"]) if "elbo" in last else None
    return RunLine(name, model, n_clusters, objective, value, last.get("lap"), round(result.seconds, 3), noun)
