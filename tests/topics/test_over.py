"""Topics over metadata and time, against sums by hand; where they lie on the map."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.analysis.topics import hellinger
from bnp_dask.analysis.topics.words import grouping_of, topic_positions, worth_showing
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Words
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from tests.topics.parts import V, begin, corpus, point_model, points, word_model

KINDS = ["essay", None, "novel"]


@pytest.fixture(scope="module")
def fitted():
    """A posterior of four topics, documents of many lengths, the last two empty, and a value for each."""
    x = corpus()[0].toarray()
    posterior = begin(word_model("hdp", restarts=0), Batch(sparse.csr_array(x)), k=4)
    x = x * (1 + np.arange(len(x)) % 3)[:, None]
    x[-2:] = 0
    named = replace(posterior, words=Words.of([f"w{v:02d}" for v in range(V)]))
    return named, sparse.csr_array(x), [KINDS[i % 3] for i in range(len(x))]


# -- groups of documents --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "bins", "labels", "code"),
    [
        (["b", "a", None, "b"], None, ["a", "b"], [1, 0, -1, 1]),
        ([True, False, True], None, ["False", "True"], [1, 0, 1]),
        (pd.Series(["x", "y"], dtype="category"), None, ["x", "y"], [0, 1]),
        ([3, 1, None, 3], None, ["1", "3"], [1, 0, -1, 1]),
        ([0.0, 1.0, 2.0, 4.0, np.nan], 2, ["0", "2"], [0, 0, 1, 1, -1]),
        ([7.0, 7.0], 3, ["7", "7", "7"], [2, 2]),
        (["2024-01-31", "2024-03-01", None], "month", ["2024-01", "2024-02", "2024-03"], [0, 2, -1]),
        ([date(2023, 12, 31), date(2024, 4, 1)], "quarter", ["2023 Q4", "2024 Q1", "2024 Q2"], [0, 2]),
        ([datetime(2024, 1, 7, 23), datetime(2024, 1, 8)], "week", ["2024-01-01", "2024-01-08"], [0, 1]),
        (["1969-12-31", "1970-01-01"], "year", ["1969", "1970"], [0, 1]),
        (["2024-01-01T10:00", "2024-01-02T09:00"], None, ["2024-01-01", "2024-01-02"], [0, 1]),
        (["2024-01-01", "2024-01-03", "2024-01-05"], 2, ["2024-01-01", "2024-01-03"], [0, 1, 1]),
        (["2019", "2020"], None, ["2019", "2020"], [0, 1]),
        (pd.to_datetime(["2024-01-01", None]).tz_localize("Asia/Tokyo"), "month", ["2024-01"], [0, -1]),
        ([None, None], None, [], [-1, -1]),
    ],
)
def test_documents_by_their_values(values, bins, labels, code):
    found = grouping_of(values, "by", bins)
    assert (list(found.labels), found.code.tolist()) == (labels, code)
    assert len(found.values) == len(labels)


def test_many_values_are_cut_into_bins():
    assert len(grouping_of(np.arange(1000), "by").labels) == 20
    days = np.arange("2020-01-01", "2024-01-01", dtype="datetime64[D]")
    assert grouping_of(days, "by").labels[:2] == ("2020-01", "2020-02")
    assert len(grouping_of(days[:60], "by").labels) == 60
    assert len(grouping_of(np.array(["1000-01-01", "2024-01-01"], "datetime64[D]"), "by").labels) == 1025


@pytest.mark.parametrize(
    ("values", "bins", "error", "match"),
    [
        ([str(i) + "x" for i in range(61)], None, DataError, "61 different texts, more than 60"),
        (["a", "b"], 3, DataError, "holds texts, which cannot be cut"),
        (["a", "b"], "month", DataError, "needs dates such as 2024-05-31"),
        ([1, 2], "month", DataError, "no dates or times"),
        ([1, 2], "fortnight", SettingError, "fortnight"),
        ([1, 2], 0, SettingError, "at least 1"),
        ([1, 2], 1.5, SettingError, "a period such as 'month'"),
        ([[1], [2]], None, DataError, "needs texts, numbers, dates or times"),
        ([1, "a"], None, DataError, "needs a value for each document"),
        (["0001-01-01", "2024-01-01"], "day", SettingError, "more than 10,000"),
    ],
)
def test_values_that_make_no_groups(values, bins, error, match):
    with pytest.raises(error, match=match):
        grouping_of(values, "by", bins)


def test_columns_that_a_page_shows():
    n = 40
    table = pa.table(
        {
            "id": [str(i) for i in range(n)],
            "url": [f"u{i}" for i in range(n)],
            "kind": ["a", "b"] * 20,
            "one": ["a"] * n,
            "day": np.arange("2024-01-01", "2024-02-10", dtype="datetime64[D]").astype("datetime64[s]"),
            "number": [1000 + i for i in range(n)],
            "year": [2000 + i % 30 for i in range(n)],
            "rare": [None] * 39 + ["x"],
            "tags": [[1]] * n,
        }
    )
    assert [name for name, _ in worth_showing(table, ["id"], 4)] == ["kind", "day", "year"]
    assert [name for name, _ in worth_showing(table, ["id"], 1)] == ["kind"]


# -- shares ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weight", ["tokens", "documents"])
def test_shares_are_the_sums(fitted, weight):
    posterior, x, kinds = fitted
    found = bnp.topics_over(posterior, x, kinds, weight=weight, batch_size=17)
    by_hand = bnp.to_pyldavis(posterior, x)
    length = by_hand["doc_lengths"]
    for g, kind in enumerate(("essay", "novel")):
        own = np.array([k == kind for k in kinds]) & (length > 0)
        count = length[own] if weight == "tokens" else np.ones(own.sum())
        np.testing.assert_allclose(found.share[g], np.average(by_hand["doc_topic_dists"][own], axis=0, weights=count))
        assert (found.documents[g], found.tokens[g]) == (own.sum(), length[own].sum())
    assert found.labels == ("essay", "novel") and found.n_without == kinds.count(None)
    apart = bnp.topics_over(posterior, x, kinds, weight=weight, batch_size=9, client=ThreadExecutor(2))
    np.testing.assert_allclose(apart.share, found.share, rtol=1e-12)
    table = found.to_table()
    assert table.column_names == ["value", "topic", "share", "documents", "tokens"] and table.num_rows == 8
    assert table["value"].to_pylist()[3:5] == ["essay", "novel"]
    assert found.names[1] == " ".join(bnp.top_words(posterior, 3).names(1))


def test_times_without_documents_have_no_share(fitted):
    posterior, x, _ = fitted
    when = ["2024-01-15"] * 30 + ["2024-03-15"] * 30
    found = bnp.topics_over(posterior, x, when, bins="month")
    assert np.isnan(found.share[1]).all() and found.documents.tolist() == [30, 0, 28]
    np.testing.assert_allclose(found.share[[0, 2]].sum(axis=1), 1.0)
    assert found.to_table()["share"].null_count == 4
    assert found.to_table()["value"].to_pylist()[-1] == date(2024, 3, 1)


def test_columns_of_a_store(fitted, tmp_path):
    pytest.importorskip("sklearn")
    posterior, _, kinds = fitted
    texts = [
        (str(i), "w01 w02" if i % 2 else "w03", {"kind": kind, "year": 2000 + i % 3}) for i, kind in enumerate(kinds)
    ]
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("\n".join(posterior.feature_names))
    bnp.ingest(texts, tmp_path / "x.zarr", vocabulary=vocabulary)
    found = bnp.topics_over(posterior, tmp_path / "x.zarr", "kind")
    raw = bnp.topics_over(posterior, bnp.load_vocabulary(tmp_path / "x.zarr").counts([t for _, t, _ in texts],
                          bnp.Text().analysis), kinds)  # fmt: skip
    np.testing.assert_array_equal(found.share, raw.share)
    assert bnp.topics_over(posterior, tmp_path / "x.zarr", "year").values == (2000.0, 2001.0, 2002.0)
    with pytest.raises(DataError, match="no column 'kid'; nearest existing name: 'kind'; its documents have id, kind"):
        bnp.topics_over(posterior, tmp_path / "x.zarr", "kid")


def test_other_numbers_of_values_and_other_models(fitted):
    posterior, x, kinds = fitted
    for values in (kinds[:-1], [*kinds, "essay"]):
        with pytest.raises(DataError, match="needs one for each document"):
            bnp.topics_over(posterior, x, values, batch_size=25)
    with pytest.raises(DataError, match="documents; they are kept when raw text is ingested|no store of counts"):
        bnp.topics_over(posterior, x, "kind")
    batch = points()
    groups = bnp.as_source(batch.x, groups=batch.group_offsets)
    by = ["a", "b"] * (groups.n_groups // 2)
    own = bnp.topics_over(begin(point_model("hdp", batch), batch), groups, by)
    np.testing.assert_allclose(own.share.sum(axis=1), 1.0)
    assert own.names[0].startswith("topic ")


# -- pictures -------------------------------------------------------------------------------------------------
def test_three_topics_lie_as_far_apart_as_their_words(fitted):
    posterior = begin(word_model("lda"), Batch(corpus()[0]), k=3)
    xy, distance = topic_positions(posterior), hellinger(posterior)
    for i, j in combinations(range(3), 2):
        assert np.linalg.norm(xy[i] - xy[j]) == pytest.approx(distance[i, j])
    np.testing.assert_allclose(xy.mean(axis=0), 0.0, atol=1e-12)
    # axes: those of the principal components of the square roots
    root = np.sqrt(posterior.observation.lam / posterior.observation.lam.sum(axis=1, keepdims=True))
    np.testing.assert_allclose((xy**2).sum(axis=0), 0.5 * np.linalg.svd(root - root.mean(axis=0))[1][:2] ** 2)
    assert topic_positions(begin(word_model("lda"), Batch(corpus()[0]), k=1)).tolist() == [[0.0, 0.0]]


def test_the_map_and_the_shares_are_drawn(fitted):
    posterior, x, kinds = fitted
    ax = bnp.plot.topic_map(posterior, n_labels=2)
    assert len(ax.patches) == 4 and len(ax.texts) == 2
    area = np.array([patch.radius**2 for patch in ax.patches])
    tokens = np.sort(posterior.summary["N"])[::-1]
    np.testing.assert_allclose(area / area.sum(), tokens / tokens.sum())
    bars = bnp.plot.topics_over(bnp.topics_over(posterior, x, kinds), n_topics=3)
    assert [t.get_text() for t in bars.get_yticklabels()] == ["essay", "novel"]
    assert len(bars.get_legend().get_texts()) == 4
    lines = bnp.plot.topics_over(bnp.topics_over(posterior, x, np.arange(60)), n_topics=2)
    assert len(lines.lines) == 2 and len(lines.lines[0].get_xdata()) == 60
    with pytest.raises(SettingError, match="bnp_dask.topics_over"):
        bnp.plot.topics_over(posterior)
    with pytest.raises(SettingError, match="nothing to draw"):
        bnp.plot.topics_over(bnp.topics_over(posterior, x, [None] * 60))
