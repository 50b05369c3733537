"""Pictures of sequences: every step has the colour of its state, and of the true label that it stands for."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.sequences import state_durations, transitions
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation import with_previous
from bnp_dask.reports.plots import new_figure, plot_durations, plot_segments, plot_transitions, state_colors
from tests.chains.parts import begin, model_of, sequences

pytest.importorskip("matplotlib")

STATES = [np.array([7, 7, 7, 2, 2, 7]), np.zeros(0, int), np.array([2, 2, 9]), np.array([9])]


def strips(ax):
    """Colours of each strip, from top to bottom, and the steps that it spans."""
    images = sorted(ax.images, key=lambda image: (image.get_extent()[3], image.get_extent()[0]))
    return [(np.asarray(image.get_array())[0], tuple(image.get_extent()[:2])) for image in images]


def drawn(ax):
    """The picture as bytes."""
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=50)
    return buffer.getvalue()


def test_strips_have_the_colours_of_states():
    ax = plot_segments(STATES, names=["a", "empty", "b", "c"])
    colors = state_colors(np.concatenate(STATES))
    found = strips(ax)
    assert [span for _, span in found] == [(0, 6), (0, 3), (0, 1)]
    for (image, _), states in zip(found, [s for s in STATES if len(s)], strict=True):
        np.testing.assert_allclose(image, [colors[s] for s in states.tolist()])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["2", "7", "9"]
    assert len(drawn(ax)) > 1000
    # one vector and offsets draw the same; a part of it
    again = plot_segments(np.concatenate(STATES), [0, 6, 6, 9, 10], limit=2, steps=(2, 5))
    assert [(len(image), span) for image, span in strips(again)] == [(3, (2, 5)), (1, (2, 3))]


def test_states_take_the_colours_of_true_labels():
    truth = [np.array(list("xxxyyx")), np.array([], "<U1"), np.array(list("yyy")), np.array(list("x"))]
    ax = plot_segments(STATES, truth=truth, x=[np.random.default_rng(0).normal(size=(len(s), 9)) for s in STATES])
    shown = strips(ax)
    colors = state_colors(np.concatenate(truth))
    # 9 overlaps one x and one y: the first of them; 7 stands for x, 2 for y
    meaning = {7: "x", 2: "y", 9: "x"}
    for (states, _), own in zip(shown[0::2], [s for s in STATES if len(s)], strict=True):
        np.testing.assert_allclose(states, [colors[meaning[s]] for s in own.tolist()])
    for (true, _), own in zip(shown[1::2], [t for t in truth if len(t)], strict=True):
        np.testing.assert_allclose(true, [colors[t] for t in own.tolist()])
    assert len(ax.lines) == 3 * 6  # six columns at most
    marked = plot_segments(STATES, marks=[[3, 5], [], [1], []])
    assert sum(len(c.get_segments()) for c in marked.collections) == 3
    with pytest.raises(DataError, match="truth and labels are of sequences of different lengths"):
        plot_segments(STATES, truth=truth[:-1])
    with pytest.raises(DataError, match="no steps to draw"):
        plot_segments([np.zeros(0, int)])
    with pytest.raises(DataError, match="no sequence has steps there"):
        plot_segments(STATES, steps=(50, 60))


def test_two_states_never_share_a_colour():
    colors = state_colors(np.repeat(np.arange(90), np.arange(90, 0, -1)))
    assert len({tuple(np.round(c, 3)) for c in colors.values()}) == 90
    assert list(colors)[:3] == [0, 1, 2]
    assert all(0 <= v <= 1 for c in colors.values() for v in c)


def test_the_heat_map_shows_the_matrix():
    batch = sequences((30, 25, 40), k=3)
    posterior = begin(model_of("sticky", batch), batch, k=4)
    ax = plot_transitions(posterior)
    found = transitions(posterior).sorted(np.argsort(-posterior.weights, kind="stable"))
    away, stay = ax.images[:2]
    np.testing.assert_allclose(np.asarray(away.get_array()), found.matrix)
    np.testing.assert_array_equal(away.get_array().mask, np.eye(4, dtype=bool))
    np.testing.assert_array_equal(stay.get_array().mask, ~np.eye(4, dtype=bool))
    assert [t.get_text() for t in ax.get_xticklabels()] == [str(i) for i in found.ids]
    assert len(plot_transitions(found, limit=2).images[0].get_array()) == 2
    assert len(drawn(ax)) > 1000
    one = plot_transitions(found, limit=1)
    assert len(drawn(one)) > 500


def test_durations_are_drawn_from_quantile_to_quantile():
    durations = state_durations(STATES, ids=np.array([2, 7, 9, 11]))
    ax = plot_durations(durations, ax=new_figure().add_subplot())
    assert [t.get_text() for t in ax.get_yticklabels()] == ["2", "7", "9"]  # 11 never occurs
    (bars,) = ax.collections
    assert [s[:, 0].tolist() for s in bars.get_segments()] == durations.quantiles[:3][:, [0, 2]].tolist()
    assert len(drawn(ax)) > 1000


def test_the_page_of_a_hidden_markov_model(tmp_path):
    batch = sequences((30, 25, 40), k=3)
    posterior = begin(model_of("sticky", batch), batch, k=3)
    parts = [batch.x[a:b] for a, b in zip(batch.groups[:-1], batch.groups[1:], strict=True)]
    bnp.report(posterior, tmp_path / "page.html", data=bnp.as_source(parts, cut=20))
    text = (tmp_path / "page.html").read_text()
    assert "6 sequences with 95 steps in all, in list of arrays; they were cut in 3 places" in text
    for heading in ("Sequences", "How long states last", "Transitions", "States", "Tree"):
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<img") == 6
    assert ("not met yet" in text) == (transitions(posterior).unused.max() > 0.005)
    truth = [np.repeat(["<a>", "b"], [len(part) - 9, 9]) for part in parts]
    bnp.report(posterior, tmp_path / "page.html", data=bnp.as_source(parts, cut=20), reference=truth)
    text = (tmp_path / "page.html").read_text()
    found = bnp.sequence_distances(bnp.predict(posterior, bnp.as_source(parts, cut=20)), np.concatenate(truth))
    assert "<h2>Distance from the labels</h2>" in text and text.count("0, from ") == 1
    cells = f'<th scope="row" class="text">all</th><td>95</td><td>{found.distance:.3f}</td>'
    assert cells in text.replace("\n", "") and "<a>" not in text
    with pytest.raises(SettingError, match="reference= labels sequences that cannot be shown"):
        bnp.report(posterior, tmp_path / "page.html", reference=truth)
    bnp.report(posterior, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "No sequences were given to this page." in text and "<h2>Transitions</h2>" in text
    mixture = bnp.Model(bnp.FiniteMixture(1.0), posterior.model.observation)
    other = mixture.global_step(mixture.summarize(np.arange(2), batch, np.full((batch.n_atoms, 2), 0.5)))
    with pytest.raises(SettingError, match="labels of sequences"):
        bnp.report(other, tmp_path / "page.html", reference=truth)


def test_autoregressions_are_described():
    rng = np.random.default_rng(0)
    x = np.zeros((3000, 2))
    for t in range(1, 3000):
        x[t] = np.diag([0.9, -0.3]) @ x[t - 1] + rng.normal(size=2) * [0.5, 2.0]
    rows, offsets = with_previous(x, np.array([0, 3000]))
    model = bnp.Model(bnp.FiniteHMM(), bnp.AutoRegressiveGaussian())
    batch = bnp.Batch(rows, groups=offsets)
    model = model.with_prior(survey_batch(batch))
    posterior = model.global_step(model.summarize(np.arange(1), batch, np.ones((len(rows), 1))))
    found = re.search(r"eigenvalues up to (\S+); sd of noise \((\S+), (\S+)\)", str(bnp.inspect(posterior)))
    np.testing.assert_allclose([float(v) for v in found.groups()], [0.9, 0.5, 2.0], rtol=0.05)


@pytest.mark.long
def test_a_run_directory_finds_its_store(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch = sequences((30, 25, 40), k=3)
    ids = np.repeat(["p", "q", "r"], np.diff(batch.groups))
    pq.write_table(pa.table({"id": ids, "a": batch.x[:, 0], "b": batch.x[:, 1]}), tmp_path / "t.parquet")
    bnp.ingest(tmp_path / "t.parquet", tmp_path / "t.zarr", group_column="id", cut=30)
    settings = {"init": bnp.ContiguousBlocks(3, 5), "schedule": bnp.Memoized(laps=2)}
    model = bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian())
    with pytest.warns(bnp.ConvergenceWarning):
        bnp.train(model, tmp_path / "t.zarr", store=tmp_path / "run", **settings)
    bnp.report(tmp_path / "run", tmp_path / "page.html")
    assert "4 sequences with 95 steps in all" in (tmp_path / "page.html").read_text()
    source = bnp.as_source(tmp_path / "t.parquet", groups="id")
    with pytest.warns(bnp.ConvergenceWarning):
        bnp.train(model, source, store=tmp_path / "other", **settings)
    bnp.report(tmp_path / "other", tmp_path / "page.html")
    assert "3 sequences with 95 steps in all" in (tmp_path / "page.html").read_text()
    np.save(tmp_path / "x.npy", batch.x)
    source = bnp.as_source(tmp_path / "x.npy", groups=batch.groups)
    with pytest.warns(bnp.ConvergenceWarning):
        bnp.train(model, source, store=tmp_path / "array", **settings)
    bnp.report(tmp_path / "array", tmp_path / "page.html")
    assert "does not say itself which rows are a sequence" in (tmp_path / "page.html").read_text()
