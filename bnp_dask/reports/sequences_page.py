"""Part of a page about sequences: durations of states, transitions, and some sequences."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import open_for
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.sequences import SequenceSurvey, sequence_distances, survey_sequences, transitions
from bnp_dask.analysis.sequences.labels import is_list_of_arrays
from bnp_dask.analysis.sequences.states import namer_of
from bnp_dask.core.table import Table
from bnp_dask.data.base import Source
from bnp_dask.data.groups import GroupedSource
from bnp_dask.data.sources.dask_collections import DaskFrameSource
from bnp_dask.errors import BnpDaskError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs.arrays import plain
from bnp_dask.model import Posterior
from bnp_dask.reports import plots as plots_chains
from bnp_dask.reports.pages import Paragraph, Picture, Section
from bnp_dask.store import RunStore, holds_run

if TYPE_CHECKING:
    from distributed import Client

SHOWN = 6
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
    facts = RunStore.view(what).settings.get("data", {})
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
    posterior: Posterior, sequences: Source | str, client: Client | Executor | str | None = None, reference: Any = None
) -> list[Section]:
    """Sections about sequences, durations, distances from known labels, and transitions."""
    sections: list[Section] = []
    if isinstance(sequences, str):
        if reference is not None:
            raise SettingError(f"reference= labels sequences that cannot be shown: {sequences} Pass them as data=")
        sections.append(Section("Sequences", [_note(sequences)]))
    else:
        survey = survey_sequences(posterior, sequences, show=SHOWN, steps=STEPS, client=client)
        sections.append(Section("Sequences", [_facts(survey, sequences), *_pictures(survey)]))
        figure = plots_chains.plot_durations(survey.durations).figure
        lengths = Picture(figure, "Lengths of runs of each state")
        sections.append(Section("How long states last", [durations_table(survey), lengths]))
        if reference is not None:
            found = _distances(posterior, sequences, reference, client)
            sections.append(Section("Distance from the labels", [found]))
    figure = plots_chains.plot_transitions(posterior).figure
    parts: list[Any] = [Picture(figure, "Expected transition probabilities")]
    if transitions(posterior).unused.max() > 0.005:
        parts.append(_note("Rows sum to less than one: the rest is for states that were not met yet."))
    sections.append(Section("Transitions", parts))
    return sections


def _distances(posterior: Posterior, source: Source, reference: Any, client: Client | Executor | str | None) -> Table:
    """Recordings with their distance from known labels."""
    namers = [namer() for i in range(source.n_batches) if (namer := namer_of(source, i)) is not None]
    names = [_name(i, b) for ids, begin in namers for i, b in zip(ids.to_pylist(), begin.tolist(), strict=True)]
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


def _name(id: Any, begin: int) -> str:
    """A sequence, or a block of one."""
    return f"{id}, from {begin:,}" if begin else str(id)


def _note(text: str) -> Paragraph:
    return Paragraph(text, is_note=True)


def _facts(survey: SequenceSurvey, source: Source) -> Paragraph:
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
    axes = plots_chains.plot_segments(labels, names=names)
    long = [s for s in survey.shown if s.n_steps > len(s.states)]
    parts: list[Any] = [Picture(axes.figure, "Most likely states of the first sequences")]
    if long:
        parts.append(_note(f"The first {STEPS:,} steps of sequences that have more."))
    return parts


def durations_table(survey: SequenceSurvey) -> Table:
    """The table of durations."""
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
