"""Words, sizes and documents of topics, tables, and the page, against slow twins."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.topics import (
    hellinger,
    lift,
    relevance,
    survey_documents,
    to_pyldavis,
    top_words,
    topic_list,
    topic_relations,
    topic_table,
    topics_over,
    word_probabilities,
)
from bnp_dask.analysis.topics.words import by_size, marginal, topic_positions
from bnp_dask.cli import main
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Words
from bnp_dask.data import Text
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.reports.run_page import _described, inspect, report
from bnp_dask.training.growing.versions import load
from bnp_dask.training.results import History, TrainResult, save
from bnp_dask.training.train import train
from tests.topics.parts import V, begin, corpus, point_model, points, word_model

NASTY = ["</script><img src=x onerror=alert(1)>", "<!--", "a&b", "quote\"'", "@@SCRIPT@@", "\u2028", "naïve", "{x}"]


@pytest.fixture(scope="module")
def fitted():
    """A posterior of few topics that know their words, and its documents."""
    x = corpus()[0]
    posterior = begin(word_model("hdp", restarts=0), Batch(x), k=4)
    for _ in range(8):
        posterior = posterior.model.global_step(posterior.model.local_step(posterior, Batch(x)))
    return replace(posterior, words=Words.of([f"w{v:02d}" for v in range(V)])), x


# -- words ----------------------------------------------------------------------------------------------------
def test_probability_lift_and_relevance(fitted):
    posterior, _ = fitted
    lam, tokens = posterior.observation.lam, posterior.summary["N"]
    phi = lam / lam.sum(axis=1)[:, None]
    overall = sum(tokens[k] / tokens.sum() * phi[k] for k in range(len(phi)))
    np.testing.assert_allclose(word_probabilities(posterior), phi)
    np.testing.assert_allclose(marginal(posterior).sum(), 1.0)
    np.testing.assert_allclose(lift(posterior), phi / overall)
    np.testing.assert_allclose(relevance(posterior, 0.3), 0.3 * np.log(phi) + 0.7 * np.log(phi / overall))
    k = 2
    found = top_words(posterior, 5, by="probability")
    assert found.column[k].tolist() == np.argsort(-phi[k], kind="stable")[:5].tolist()
    assert found.names(k) == [f"w{v:02d}" for v in found.column[k]]
    np.testing.assert_allclose(found.score, found.probability)
    by_lift = top_words(posterior, 5, by="lift", least=0)
    assert by_lift.column[k].tolist() == np.argsort(-(phi / overall)[k], kind="stable")[:5].tolist()
    assert top_words(posterior, 5, weight=1.0).column.tolist() == found.column.tolist()
    assert top_words(posterior, 5, weight=0.0).column.tolist() == by_lift.column.tolist()
    table = found.to_table()
    assert table.num_rows == 5 * posterior.n_clusters
    assert table["rank"].to_pylist()[:6] == [1, 2, 3, 4, 5, 1]
    assert table["word"].to_pylist()[5 * k : 5 * k + 5] == found.names(k)


def test_lift_leaves_rare_words_out(fitted):
    posterior, _ = fitted
    tokens = posterior.summary["x"].sum(axis=0)
    least = float(np.median(tokens))
    assert (tokens[top_words(posterior, 8, by="lift", least=least).column] >= least).all()
    assert top_words(posterior, 100).column.shape == (posterior.n_clusters, V)
    assert sorted(top_words(posterior, 100, by="lift", least=least).column[0]) == list(range(V))


def test_words_without_names_and_wrong_ones(fitted):
    posterior, _ = fitted
    plain = replace(posterior, words=None)
    assert top_words(plain, 1).names(0)[0].startswith("word ")
    assert top_words(plain, 1, words=[f"x{v}" for v in range(V)]).names(0)[0].startswith("x")
    with pytest.raises(DataError, match=f"3 words, but the model has {V}"):
        top_words(plain, words=["a", "b", "c"])
    for bad, match in (({"n": 0}, "at least 1"), ({"by": "size"}, "by='size'"), ({"weight": 2.0}, "between 0")):
        with pytest.raises(SettingError, match=match):
            top_words(posterior, **bad)
    with pytest.raises(SettingError, match="have no words"):
        top_words(begin(point_model("hdp", points()), points()))


def test_the_list_for_the_prompt(fitted):
    posterior, _ = fitted
    found = posterior.topics(3)
    order = by_size(posterior)
    assert [t.id for t in found] == posterior.ids[order].tolist()
    assert sum(t.share for t in found) == pytest.approx(1.0)
    lines = str(found).splitlines()
    assert len(lines) == posterior.n_clusters + 2
    assert lines[2].split()[-3:] == found[0].words == top_words(posterior, 3).names(order[0])
    assert len(found[:2]) == 2
    nasty = topic_list(posterior, 3, words=[f"<b>{v}" for v in range(V)])
    assert "<b>" not in nasty._repr_html_()
    assert str(topic_list(posterior.light(), 3)).splitlines()[2].split()[2] == "?"
    assert "w" in str(inspect(posterior)).splitlines()[-1]


def test_hellinger(fitted):
    posterior, _ = fitted
    phi = word_probabilities(posterior)
    found = hellinger(posterior)
    for i, j in combinations(range(len(phi)), 2):
        slow = np.sqrt(0.5 * ((np.sqrt(phi[i]) - np.sqrt(phi[j])) ** 2).sum())
        assert found[i, j] == pytest.approx(slow)
        assert found[j, i] == found[i, j]
    assert (np.diag(found) == 0).all()


# -- documents ------------------------------------------------------------------------------------------------
def test_survey_is_what_predict_says(fitted):
    posterior, x = fitted
    with_empty = sparse.csr_array(sparse.vstack([x, sparse.csr_array((2, V))], format="csr"))
    survey = survey_documents(posterior, with_empty, n_documents=4, n_words=5, batch_size=17)
    k = posterior.n_clusters
    shares = predict(posterior, x, soft=True)[:, :k]
    assert (survey.n_documents, survey.n_empty, survey.n_tokens) == (62, 2, x.sum())
    np.testing.assert_allclose(survey.used, (shares > 0.05).mean(axis=0))
    np.testing.assert_allclose(survey.mean, shares.mean(axis=0))
    np.testing.assert_allclose(survey.correlation, np.corrcoef(shares.T), atol=1e-9)
    order = np.argsort(-shares, axis=0, kind="stable")[:4].T
    assert survey.row.tolist() == order.tolist()
    np.testing.assert_array_equal(survey.share, np.take_along_axis(shares.T, order, 1))
    assert (survey.length == 60).all()
    table = survey.documents([f"doc{i}" for i in range(62)])
    assert table["id"].to_pylist() == [f"doc{i}" for i in order.ravel()]
    same = survey_documents(posterior, with_empty, n_documents=4, n_words=5, batch_size=9, client=ThreadExecutor(2))
    assert same.row.tolist() == survey.row.tolist()
    np.testing.assert_allclose(same.correlation, survey.correlation, atol=1e-12)


def test_coherence_is_the_definition(fitted):
    posterior, x = fitted
    survey = survey_documents(posterior, x, n_words=6, batch_size=13)
    there = x.toarray() > 0
    npmi, umass = [], []
    for words in top_words(posterior, 6, by="probability").column:
        scores, log_ratios = [], []
        for i, j in combinations(range(6), 2):  # word i is more probable than word j
            a, b = there[:, words[i]], there[:, words[j]]
            both = (a & b).mean()
            p = np.log(both / a.mean() / b.mean()) / -np.log(both) if 0 < both < 1 else (1.0 if both else -1.0)
            scores.append(p)
            log_ratios.append(np.log(((a & b).sum() + 1) / a.sum()))
        npmi.append(np.mean(scores))
        umass.append(np.mean(log_ratios))
    np.testing.assert_allclose(survey.npmi(), npmi)
    np.testing.assert_allclose(survey.umass(), umass)
    assert (np.abs(survey.npmi(3)) <= 1).all()
    with pytest.raises(SettingError, match="needs 2 to 6"):
        survey.npmi(7)


def test_survey_of_points_and_of_nothing(fitted):
    batch = points()
    posterior = begin(point_model("hdp", batch), batch)

    class Held:
        name, n_batches, n_features, is_sparse, n_atoms = "held", 1, 2, False, None

        def reader(self, index):
            return lambda: batch

        def describe(self):
            return {}

    survey = survey_documents(posterior, Held(), n_documents=2)
    assert survey.n_documents == 30
    with pytest.raises(SettingError, match="no coherence"):
        survey.npmi()
    with pytest.raises(DataError, match="no document with a word"):
        survey_documents(fitted[0], sparse.csr_array((3, V)))


def test_tables(fitted):
    posterior, x = fitted
    survey = survey_documents(posterior, x)
    table = topic_table(posterior, 4, survey=survey)
    order = by_size(posterior)
    assert table["topic"].to_pylist() == posterior.ids[order].tolist()
    assert table["words"].to_pylist()[0] == top_words(posterior, 4).names(order[0])
    np.testing.assert_allclose(table["used"].to_numpy(), survey.used[order])
    assert topic_table(posterior.light())["tokens"].null_count == posterior.n_clusters
    pairs = topic_relations(posterior, survey)
    k = posterior.n_clusters
    assert pairs.num_rows == k * (k - 1) // 2
    assert (np.diff(pairs["hellinger"].to_numpy()) >= 0).all()
    a, b = (posterior.positions(pairs[c].to_numpy()) for c in ("topic", "other"))
    np.testing.assert_array_equal(pairs["correlation"].to_numpy(), survey.correlation[a, b])
    assert topic_relations(posterior)["correlation"].null_count == pairs.num_rows
    other = begin(word_model("hdp"), Batch(x), k=3)
    with pytest.raises(SettingError, match="another posterior"):
        topic_table(other, survey=survey)


def test_pyldavis_input(fitted):
    posterior, x = fitted
    found = to_pyldavis(posterior, x, batch_size=11)
    assert set(found) == {"topic_term_dists", "doc_topic_dists", "doc_lengths", "vocab", "term_frequency"}
    for name in ("topic_term_dists", "doc_topic_dists"):
        assert np.abs(found[name].sum(axis=1) - 1.0).max() < 1e-12
    shares = predict(posterior, x, soft=True)[:, :-1]
    np.testing.assert_allclose(found["doc_topic_dists"], shares / shares.sum(axis=1, keepdims=True))
    assert found["doc_lengths"].tolist() == x.sum(axis=1).tolist()
    assert found["term_frequency"].tolist() == x.sum(axis=0).tolist()
    assert found["vocab"] == list(posterior.words.words)
    assert to_pyldavis(replace(posterior, words=None), x)["vocab"][3] == "word 3"
    with pytest.raises(SettingError, match="topics of words"):
        to_pyldavis(begin(point_model("lda", points()), points()), x)


# -- the page -------------------------------------------------------------------------------------------------
class Page(HTMLParser):
    """Elements, addresses and the embedded data of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.addresses, self.data, self._open = [], [], "", None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.addresses += [v for n, v in attrs if n in ("src", "href", "action", "data")]
        self._open = dict(attrs).get("id") if tag == "script" else None

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, text):
        if self._open == "data":
            self.data += text


def nasty_page(fitted, folder):
    """A page with words, ids and metadata that look like markup."""
    posterior, x = fitted
    words = NASTY + [f"w{v:02d}" for v in range(len(NASTY), V)]
    shown = replace(posterior, words=Words.of(words))
    rows = [{"step": i, "lap": i + 1, "elbo": -100.0 + i, "n_clusters": 4, "exact": True} for i in range(4)]
    report(TrainResult(shown, History(rows), True, "converged", 2.0), folder / "page.html", data=x)
    return (folder / "page.html").read_text(encoding="utf-8"), words


def test_the_page_holds_everything_and_asks_for_nothing(fitted, tmp_path):
    posterior, x = fitted
    text, words = nasty_page(fitted, tmp_path)
    page = Page(text)
    assert page.addresses == []
    assert page.elements.count("script") == 2
    assert "img" not in page.elements
    assert "default-src 'none'" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    data = json.loads(page.data)
    k, order = posterior.n_clusters, by_size(posterior)
    assert [t["id"] for t in data["topics"]] == posterior.ids[order].tolist()
    assert set(data["words"]) <= set(words)
    assert set(NASTY) & set(data["index"]["words"])
    survey = survey_documents(posterior, x)
    phi = word_probabilities(posterior)
    for topic, j in zip(data["topics"], order, strict=True):
        assert topic["share"] == pytest.approx(posterior.summary["N"][j] / posterior.summary["N"].sum(), rel=1e-3)
        shown = {data["words"][p]: q for p, q in zip(topic["words"][::2], topic["words"][1::2], strict=True)}
        best = words[int(phi[j].argmax())]
        assert shown[best] == pytest.approx(phi[j].max(), rel=1e-3)
        assert [d["row"] for d in topic["docs"]] == survey.row[j].tolist()
        assert topic["used"] == pytest.approx(survey.used[j], rel=1e-3)
        assert len(topic["near"]) == k - 1
    xy = topic_positions(posterior)[order]
    np.testing.assert_allclose(np.array(data["map"])[:, :2], xy, atol=1e-5)
    assert data["over"] == []
    assert data["curve"]["objective"] == [-100.0, -99.0, -98.0, -97.0]
    assert data["documents"] == 60


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
@pytest.mark.timeout(90)
def test_the_page_in_a_browser(fitted, tmp_path):
    text, _ = nasty_page(fitted, tmp_path)
    wanted = NASTY[0]
    (tmp_path / "page.html").write_text(
        text.replace("<script>", f"<script>location.hash = '#word=' + encodeURIComponent({json.dumps('a&b')});", 1)
    )
    assert wanted not in text
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    command = ["chromium", "--headless", "--no-sandbox", *quiet, f"--user-data-dir={tmp_path / 'profile'}"]
    address = (tmp_path / "page.html").as_uri()
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=80, check=False)
    page = Page(done.stdout)
    assert page.elements.count("button") >= fitted[0].n_clusters
    # two of the run, and the map
    assert page.elements.count("svg") == 3
    assert page.elements.count("circle") == fitted[0].n_clusters
    assert "img" not in page.elements
    assert "“a&amp;b”" in done.stdout


def test_a_page_without_documents(fitted, tmp_path):
    report(fitted[0], tmp_path / "page.html")
    data = json.loads(Page((tmp_path / "page.html").read_text()).data)
    assert data["documents"] is None
    assert data["note"] == "No documents were given to this page."
    assert "docs" not in data["topics"][0]
    save(fitted[0].light(), tmp_path / "light")
    report(tmp_path / "light", tmp_path / "light.html", [f"x{v}" for v in range(V)])
    assert json.loads(Page((tmp_path / "light.html").read_text()).data)["topics"][0]["tokens"] is None


def test_report_of_a_run_finds_its_documents(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    fruit = ("apple pear plum", "iron steel brass")
    texts = [
        (f"id<{i}>", fruit[i % 2] + " <b>and</b> more", {"title": f"about {i}", "kind": f"<{i % 2}>", "one": "x"})
        for i in range(30)
    ]
    ingest(texts, "docs.zarr", text=Text(min_df=1, keep_text=20))
    model = Model(word_model("hdp").allocation, Multinomial())
    with pytest.warns(match="limit of"):
        train(model, "docs.zarr", init=RandomExamples(3), schedule=Memoized(laps=2), store="run")
    assert main(["report", "run", "page.html"]) == 0
    data = json.loads(Page((tmp_path / "page.html").read_text()).data)
    first = data["topics"][0]["docs"][0]
    assert first["id"] == f"id<{first['row']}>"
    kind = first["row"] % 2
    assert (first["title"], first["text"]) == (f"about {first['row']}", f"{fruit[kind]} <b>and"[:20])
    assert first["more"] == f"kind: <{kind}> · one: x"
    (over,) = data["over"]
    by_kind = topics_over(load(Path("run")), "docs.zarr", "kind")
    assert (over["name"], over["labels"], over["documents"], over["line"]) == ("kind", ["<0>", "<1>"], [15, 15], False)
    np.testing.assert_allclose(over["share"], by_kind.share[:, by_size(load(Path("run")))].T, rtol=1e-3)
    assert "<b>" not in (tmp_path / "page.html").read_text()
    assert main(["report", "run", "other.html", "--data", "docs.zarr", "--quiet"]) == 0
    assert (tmp_path / "other.html").read_text() == (tmp_path / "page.html").read_text()
    shutil.rmtree("docs.zarr")
    assert main(["report", "run", "page.html"]) == 0
    data = json.loads(Page((tmp_path / "page.html").read_text()).data)
    assert "could not be read" in data["note"]
    assert main(["report", "run", "page.html", "--data", "docs.zarr"]) == 2
    assert "docs.zarr" in capsys.readouterr().err


def test_atoms_of_topics_that_are_not_of_words_are_drawn(tmp_path):
    batch = points()
    posterior = begin(point_model("hdp", batch), batch)
    with pytest.raises(DataError, match="which rows belong together"):
        report(posterior, tmp_path / "page.html", data=batch.x)
    report(posterior, tmp_path / "page.html", data=bnp.as_source(batch.x, groups=batch.groups))
    assert "Points: 590 atoms" in (tmp_path / "page.html").read_text()


def test_metadata_that_a_document_has_not_are_not_told():
    table = pa.table({"id": ["a", "b"], "who": [None, "x"], "when": ["1", "2"]})
    assert [found["more"] for found in _described(table, [0, 1])] == ["when: 1", "who: x · when: 2"]


def test_documents_given_as_texts_are_shown_by_their_beginnings(tmp_path):
    fruit = ("apple pear plum", "iron steel brass")
    texts = [f"{fruit[i % 2]}  {fruit[i % 2]}\nnumber {i}" for i in range(30)]
    model = Model(word_model("hdp").allocation, Multinomial())
    with pytest.warns(match="limit of"):
        result = train(model, texts, init=RandomExamples(3), schedule=Memoized(laps=2))
    report(result, tmp_path / "page.html", data=texts)
    (first, *_), *_ = (topic["docs"] for topic in json.loads(Page((tmp_path / "page.html").read_text()).data)["topics"])
    assert (first["id"], first["text"]) == (f"document {first['row']}", " ".join(texts[first["row"]].split()))
