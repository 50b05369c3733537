"""History, tables, pages and pictures."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.columns import Columns
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation.interface import vector
from bnp_dask.reports import plots
from bnp_dask.reports.describe import covariance, variances
from bnp_dask.reports.run_page import MOVES_SHOWN, inspect, move_tables, report
from bnp_dask.structure.nouns import CLUSTER
from bnp_dask.training.results import History, TrainResult, save
from tests.results.cases import OBSERVATIONS, fitted

ROWS = [
    {"step": 3 * lap + b, "lap": lap + 1, "batch": b, "elbo": -1e3 + 10.0 * (3 * lap + b), "n_clusters": 5 - lap}
    for lap in range(3)
    for b in range(3)
]


def result(kind: str = "diag") -> TrainResult:
    return TrainResult(fitted(kind), History(ROWS), True, "converged", 1.5)


# -- history --------------------------------------------------------------------------------------------------
def test_history_by_row_column_and_slice():
    history = History(ROWS)
    assert len(history) == 9
    assert history[-1] == ROWS[-1]
    assert [row["step"] for row in history] == list(range(9))
    assert np.array_equal(history["elbo"], [row["elbo"] for row in ROWS])
    assert history["n_clusters"].dtype.kind == "i"
    assert len(history[2:5]) == 3
    assert history[2:5]["lap"].tolist() == [1, 2, 2]
    assert "elbo" in history
    assert "nothing" not in history
    with pytest.raises(KeyError, match=r"no column 'ebo'.*elbo"):
        history["ebo"]
    assert len(History()) == 0
    assert History().columns == []


def test_rows_with_gaps_and_values_that_are_no_numbers():
    history = History([{"a": 1, "moves": {"merge": 2}}, {"a": None, "b": 0.5}, {"b": 2.5, "moves": None}])
    assert history.columns == ["a", "moves", "b"]
    np.testing.assert_array_equal(history["a"], [1, np.nan, np.nan])
    np.testing.assert_array_equal(history["b"], [np.nan, 0.5, 2.5])
    assert history["moves"][0] == {"merge": 2}


def test_history_as_json_lines_and_frame():
    rows = [{"elbo": np.float64(0.1) + 0.2, "k": np.int64(3), "ids": np.array([1, 2]), "x": float("nan")}]
    history = History(rows)
    back = History.from_json(history.to_json())
    assert back == history
    assert back[0]["elbo"] == 0.1 + 0.2  # to the bit
    assert back[0]["ids"] == [1, 2]
    assert history.to_json().count("\n") == 1
    frame = History(ROWS).to_pandas()
    assert frame.shape == (9, 5)
    assert frame["elbo"].iloc[-1] == ROWS[-1]["elbo"]


def test_a_result_shows_itself():
    text = repr(result())
    assert "converged" in text
    assert "3 clusters" in text
    assert "9 steps in 1.5 s" in text
    assert "not converged (limit of 3 laps)" in repr(TrainResult(fitted("diag"), reason="limit of 3 laps"))
    Page().check(result()._repr_html_())


# -- text -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_inspect_ranks_clusters_by_weight(kind):
    posterior = fitted(kind)
    lines = str(inspect(posterior)).splitlines()
    assert "3 clusters, 60 atoms" in lines[0]
    rows = [line.split(None, 3) for line in lines[4:]]
    order = np.argsort(-posterior.weights)
    assert [int(row[0]) for row in rows] == posterior.ids[order].tolist()
    assert [float(row[1]) for row in rows] == pytest.approx(posterior.weights[order], abs=1e-4)
    assert all(row[3] and "nan" not in row[3] for row in rows)


def test_inspect_names_words_and_says_what_it_leaves_out():
    text = str(inspect(fitted("multinomial"), ["ape", "bee", "cat", "dog"], limit=1))
    assert "lighter clusters with" in text
    assert {"ape", "bee", "cat", "dog"} & set(re.findall(r"[a-z]+", text))
    with pytest.raises(DataError, match="3 names.*4"):
        inspect(fitted("multinomial"), ["a", "b", "c"])
    assert "[0:2] mean" in str(inspect(fitted("product")))
    assert "c " in str(inspect(fitted("product"), list("abcd")))
    with pytest.raises(SettingError, match="what=3: needs a posterior"):
        inspect(3)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gaussian", r"mean \(sd\): age -?[\d.]+ \([\d.]+\), visits "),
        ("zero_mean", r"sd age [\d.]+, visits [\d.]+"),
        ("diag", r"mean \(sd\): age "),
        ("fixed", r"mean \(sd\): age "),
        ("bernoulli", r"ones: .*age [\d.]+"),
        ("poisson", r"rates: .*age [\d.]+"),
        ("multinomial", r"age [\d.]+"),
        ("product", r"mean \(sd\): age .*, visits .*; rates: .*cm"),
    ],
)
def test_tables_and_pages_speak_of_columns(kind, words, tmp_path, monkeypatch):
    monkeypatch.setattr("bnp_dask.reports.pages.Picture.png", "")  # pictures are drawn below
    posterior = replace(fitted(kind), columns=Columns.of(["age", "visits", "height, cm", "weight"]))
    for text in (str(inspect(posterior)), posterior._repr_html_()):
        assert re.search(words, text)
        assert "column 0" not in text and "word 0" not in text and "[0:2]" not in text
    report(posterior, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.search(words, page) and "age, visits, height, cm, weight" in page
    assert "alpha" in str(inspect(posterior, ["alpha", "beta", "gamma", "delta"]))


def test_the_ends_of_many_columns_are_named():
    values = np.array([3.0, -2.0, 0.0, 8.0, 1.0, 1.5, 2.0])
    assert vector(values, list("abcdefg")) == "-2 (b) .. 1.5 .. 8 (d)"
    assert vector(values) == "-2 .. 1.5 .. 8"
    assert vector(values[:1], ["a"]) == "a 3" and vector(values[:1]) == "3"


def test_inspect_reads_saved_models(tmp_path):
    save(fitted("diag"), tmp_path / "m.zarr")
    assert str(inspect(tmp_path / "m.zarr")) == str(inspect(fitted("diag")))


@pytest.mark.parametrize("kind", ["gaussian", "zero_mean", "diag", "fixed"])
def test_described_variances_are_expectations(kind):
    posterior = fitted(kind)
    observation, params = posterior.model.observation, posterior.observation
    variance = variances(observation, params)
    assert variance.shape == (3, 4)
    for k in range(3):
        np.testing.assert_allclose(np.diag(covariance(observation, params, k)), variance[k])
    if kind == "zero_mean":  # E[Lam^-1] of a Wishart, by Monte Carlo
        from scipy.stats import invwishart

        draws = invwishart.rvs(params.nu[0], params.B[0], size=20000, random_state=0)
        np.testing.assert_allclose(np.einsum("nii->ni", draws).mean(0), variance[0], rtol=0.1)


# -- page -----------------------------------------------------------------------------------------------------
class Page(HTMLParser):
    """Checks that tags nest, and collects images and text."""

    def __init__(self):
        super().__init__()
        self.open, self.images, self.text, self.addresses = [], [], "", []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [given[a] for a in ("src", "href") if a in given]
        if tag == "img":
            self.images.append(given["src"])
        elif tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def check(self, page):
        self.feed(page)
        assert self.open == []
        return self


def test_the_page_stands_alone(tmp_path):
    pytest.importorskip("matplotlib")
    report(result(), tmp_path / "r.html")
    page = Page().check((tmp_path / "r.html").read_text())
    assert len(page.images) == 4  # run, weights, tree, and three of four features against each other
    assert "Images" not in page.text
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    for image in page.images:
        assert base64.b64decode(image.split(",")[1]).startswith(b"\x89PNG")
    assert "-920" in page.text
    assert "allocation.gamma" in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.first_case
@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_a_page_for_every_likelihood(kind, tmp_path):
    pytest.importorskip("matplotlib")
    report(fitted(kind), tmp_path / "r.html")
    Page().check((tmp_path / "r.html").read_text())


def test_words_are_escaped(tmp_path):
    pytest.importorskip("matplotlib")
    report(fitted("multinomial"), tmp_path / "r.html", ["<script>alert(1)</script>", "&amp;", "'", '"'])
    page = (tmp_path / "r.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


# -- pictures -------------------------------------------------------------------------------------------------
def test_the_objective_is_drawn_once_it_is_of_all_data():
    plots = pytest.importorskip("bnp_dask.reports.plots")
    pytest.importorskip("matplotlib")
    line = plots.plot_history(History(ROWS)).lines[0]
    np.testing.assert_allclose(line.get_xdata(), [1, 4 / 3, 5 / 3, 2, 7 / 3, 8 / 3, 3])
    assert line.get_ydata()[-1] == ROWS[-1]["elbo"]
    told = History([{**row, "exact": row["lap"] > 2} for row in ROWS])
    assert len(plots.plot_history(told).lines[0].get_xdata()) == 3
    clusters = plots.plot_history(History(ROWS), "n_clusters").lines[0]
    assert len(clusters.get_xdata()) == 9


def test_pictures_draw_where_they_are_told():
    plots = pytest.importorskip("bnp_dask.reports.plots")
    pytest.importorskip("matplotlib")
    for draw, subject in (
        (plots.plot_history, History(ROWS)),
        (plots.plot_history, History()),
        (plots.plot_weights, fitted("diag")),
        (plots.plot_clusters, fitted("diag")),
        (plots.plot_clusters, fitted("zero_mean")),
    ):
        ax = plots.new_figure().add_subplot()
        assert draw(subject, ax=ax) is ax
        ax.figure.canvas.draw()
    heights = [bar.get_height() for bar in plots.plot_weights(fitted("diag")).patches]
    assert heights == sorted(heights, reverse=True)
    images = plots.plot_clusters(fitted("fixed"), limit=2).images
    assert len(images) == 2
    assert images[0].get_array().shape == (2, 2)
    assert len(plots.plot_clusters(fitted("gaussian"), kind="covariance").images) == 3


def test_pictures_that_cannot_be():
    plots = pytest.importorskip("bnp_dask.reports.plots")
    pytest.importorskip("matplotlib")
    with pytest.raises(SettingError, match="do not fill an image"):
        plots.plot_clusters(fitted("diag"), shape=(3, 2))
    with pytest.raises(SettingError, match="kind='media'"):
        plots.plot_clusters(fitted("diag"), kind="media")
    with pytest.raises(SettingError, match="Poisson has no covariance"):
        plots.plot_clusters(fitted("poisson"), kind="covariance")


def test_moves_are_drawn_and_listed(tmp_path):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(m, 0.3, (150, 2)) for m in (-4, 0, 4)])
    result = bnp.train(
        bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()),
        x,
        init=bnp.BregmanKMeans(1),
        moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()],
        batch_size=150,
    )
    births = [m for m in result.history.moves() if m["kind"] == "birth" and m["accepted"]]
    assert births
    axes = plots.plot_moves(result.history)
    assert f"births ({len(births)})" in [t.get_text() for t in axes.get_legend().get_texts()]
    assert len(plots.plot_run(result.history).axes) == 3
    report(result, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Moves</h2>" in page
    assert "accepted: the objective rises" in page


def test_of_many_proposals_the_latest_are_shown_last_first():
    moves = [
        {"lap": lap, "kind": "merge", "targets": [1], "others": [2], "gain": 2.0, "accepted": lap % 2 == 0, "why": "w"}
        for lap in range(1, MOVES_SHOWN + 11)
    ]
    kinds, latest = move_tables(moves, CLUSTER)
    assert kinds.rows == [
        ("merge", str(MOVES_SHOWN + 10), str(MOVES_SHOWN // 2 + 5), str(MOVES_SHOWN + 10)),
    ]
    assert [int(row[0]) for row in latest.rows] == list(range(MOVES_SHOWN + 10, 10, -1))


def test_of_many_clusters_the_first_are_named():
    move = {"lap": 3, "kind": "sort", "others": [], "gain": 2.5, "accepted": True, "why": "the objective rises"}

    def targets(ids):
        return move_tables([{**move, "targets": ids}], CLUSTER)[1].rows[0][2]

    text = targets(list(range(100, 130)))
    assert text.startswith("100, 101, 102") and text.endswith("111, ... (18 more)")
    assert targets([7, 8]) == "7, 8"


def test_inspect_is_a_table_that_notebooks_show():
    posterior = replace(fitted("gaussian"), columns=Columns.of(["<b>age", "a & b", "c", "d"]))
    table = inspect(posterior, limit=2)
    page = table._repr_html_()
    Page().check(page)
    assert "<b>age" not in page and "&lt;b&gt;age" in page and "a &amp; b" in page
    assert page.count('<th scope="col"') == 4 and page.count('<th scope="row">') == 2 and "<caption" in page
    assert "lighter clusters with" in page and "lighter clusters with" in str(table)
    assert len(table) == 2 and [row.id for row in table] == table.to_pandas().index.tolist()
    assert table[0].weight >= table[1].weight == table.to_pandas()["weight"].iloc[1]
    assert len(inspect(posterior, limit=0).to_pandas()) == 0
