"""What a prompt and a notebook show of sources, models, updates, prices and results: a line or a small table."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.table import Table
from bnp_dask.model import brief

ROWS = np.random.default_rng(0).normal(size=(60, 3)) + np.repeat([[0.0], [9.0]], 30, axis=0)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run directory, its result, and an update of it."""
    folder = tmp_path_factory.mktemp("reprs")
    np.save(folder / "one.npy", ROWS)
    np.save(folder / "two.npy", ROWS[::-1])
    run = folder / "run"
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    result = bnp.train(model, str(folder / "one.npy"), init=bnp.BregmanKMeans(2), moves=(), store=run)
    return folder, result, bnp.update(run, str(folder / "two.npy"))


def things(learned):
    folder, result, update = learned
    return {
        "array": bnp.as_source(ROWS),
        "counts": bnp.as_source(sparse.csr_array(np.ones((4, 5)))),
        "sequences": bnp.as_source([ROWS[:20], ROWS[20:]]),
        "file": bnp.as_source(str(folder / "one.npy")),
        "model": result.posterior.model,
        "posterior": result.posterior,
        "result": result,
        "prices": bnp.prices(result.posterior, ROWS),
        "update": update,
    }


def test_reprs_are_short_and_without_arrays(learned):
    for name, thing in things(learned).items():
        text = repr(thing)
        assert len(text) < 400 and text.count("\n") <= 4, (name, text)
        assert "array([" not in text and "<bnp_dask" not in text, (name, text)


def test_an_array_of_one_text_has_a_line():
    assert brief(np.array(["2024"])) == "array (1,)" and brief(np.array([0.5])) == "0.5"


def test_what_analyses_give_is_short(learned):
    _, result, _ = learned
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    states = bnp.train(model, [ROWS], init=bnp.ContiguousBlocks(3), moves=()).posterior
    texts = ["open the socket port", "write the file disk"] * 20
    topics = bnp.train(bnp.Model(bnp.LDA(), bnp.Multinomial()), texts, init=bnp.SampledTopics(2)).posterior
    for thing in (
        bnp.predict(result.posterior, ROWS, top=2),
        bnp.transitions(states),
        bnp.state_durations(bnp.predict(states, [ROWS]), [0, 60]),
        bnp.survey_sequences(states, [ROWS]),
        bnp.top_words(topics, 3),
        bnp.survey_documents(topics, texts),
        bnp.topics_over(topics, texts, by=list(range(40))),
    ):
        assert len(repr(thing)) < 400 and "array([" not in repr(thing), repr(thing)
    plan = bnp.plan(result.posterior.model, ROWS)
    assert repr(plan) == str(plan)


def test_notebooks_show_small_tables(learned):
    for name, thing in things(learned).items():
        page = thing._repr_html_()
        assert page.count("<table") in (1, 2) and page.count("<tr>") < 40, name
        assert "[[" not in page, name


def test_lines_say_what_a_user_asks(learned):
    folder, _, _ = learned
    found = things(learned)
    assert repr(found["array"]) == "ArraySource(array: 60 rows, 3 columns, 1 batch)"
    assert "4 rows, 5 columns of counts, 1 batch" in repr(found["counts"])
    assert repr(found["file"]) == f"NpySource({folder / 'one.npy'}: 60 rows, 3 columns, 1 batch)"
    assert re.match(
        r"Model\(allocation=DPMixture\(.*\), observation=DiagGaussian\(.*array \(3,\)", repr(found["model"])
    )
    assert repr(found["update"]).startswith("UpdateResult: version 1, 1 new in 1 batch, ")
    first, rule, *rows, note = str(found["prices"]).splitlines()
    assert first.split() == ["cluster", "without", "it", "united", "with"] and set(rule) == {"-", " "}
    assert len(rows) == 2 and note.startswith("nats of the objective")
    assert found["prices"][0].id == found["prices"].lines[0].id and len(found["prices"][:1]) == 1


def test_settings_that_are_defaults_are_left_out():
    assert brief(bnp.DPMixture()) == "DPMixture()"
    assert brief(bnp.DPMixture(3.0)) == "DPMixture(gamma=3)" or brief(bnp.DPMixture(3.0)) == "DPMixture(gamma=3.0)"
    assert brief([1, 2, 3, 4, 5, 6]) == "[1, 2, 3, 4, ... 2 more]"
    assert brief(("a",)) == "('a',)"


def test_a_table_escapes_text_by_itself():
    page = Table(("<a>", "b"), [("<script>", "&")], left=(0,), caption="<c>", notes=["<n>"], fold="<f>")._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    for text in ("&lt;a&gt;", "&amp;", "&lt;c&gt;", "&lt;n&gt;", "&lt;f&gt;"):
        assert text in page
