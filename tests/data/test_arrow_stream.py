"""Tables that give an Arrow C stream are data: what polars and DuckDB do."""

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

import bnp_dask as bnp
from bnp_dask.errors import DataError


class Relation:
    """A table of another library, of which nothing but the stream is known."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_a_stream_is_the_table_that_it_gives():
    table = pa.table({"b": np.arange(6.0), "a": np.arange(6), "w": [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]})
    streamed = bnp.as_source(Relation(table), weights="w", columns=["a", "b"], batch_size=4)
    direct = bnp.as_source(table, weights="w", columns=["a", "b"], batch_size=4)
    assert streamed.n_batches == 2
    for i in range(2):
        one, other = streamed.reader(i)(), direct.reader(i)()
        assert_array_equal(one.x, other.x)
        assert_array_equal(one.weights, other.weights)


def test_a_run_on_a_stream_predicts_by_name():
    x = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0], [9.0]], 30, axis=0)
    table = pa.table({"a": x[:, 0], "b": x[:, 1]})
    model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian())
    result = bnp.train(model, Relation(table), init=bnp.BregmanKMeans(2), moves=())
    assert result.posterior.columns.names == ("a", "b")
    turned = Relation(table.select(["b", "a"]))
    assert_array_equal(bnp.predict(result.posterior, turned), bnp.predict(result.posterior, x))


def two_clusters():
    x = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0], [9.0]], 30, axis=0)
    return x, pa.table({"a": x[:, 0], "b": x[:, 1]})


class Once(Relation):
    """A result that can be read a single time, as those of DuckDB."""

    def __arrow_c_stream__(self, requested_schema=None):
        table, self._table = self._table, None
        return table.__arrow_c_stream__(requested_schema)


def test_a_stream_is_ingested(tmp_path):
    x, table = two_clusters()
    report = bnp.ingest(Once(table), tmp_path / "out", batch_size=25)
    assert (report.source, report.n_atoms, report.n_features, report.n_batches) == ("Once", 60, 2, 3)
    source = bnp.as_source(tmp_path / "out")
    assert source.columns.names == ("a", "b")
    assert_array_equal(np.concatenate([source.reader(i)().x for i in range(3)]), x)


def test_groups_and_texts_of_a_stream_are_ingested(tmp_path):
    table = pa.table({"id": ["u", "v", "u"], "a": [1.0, 2.0, 3.0]})
    assert bnp.ingest(Relation(table), tmp_path / "groups", group_column="id").n_groups == 2
    texts = pa.table({"text": ["sun moon", "moon star"], "year": [1, 2]})
    assert bnp.ingest(Relation(texts), tmp_path / "texts", text=bnp.Text(min_df=1)).n_features == 3


def test_likelihoods_are_proposed_for_a_stream():
    pytest.importorskip("pandas")
    table = pa.table({"a": [0.5, 1.5, 2.5], "b": ["x", "y", "x"]})
    assert bnp.Product.of(Relation(table)) == bnp.Product.of(table.to_pandas())


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_estimators_take_streams():
    pytest.importorskip("sklearn")
    pytest.importorskip("pandas")
    x, table = two_clusters()
    mixture = bnp.DirichletProcessMixture(n_clusters=2, random_state=0).fit(Relation(table))
    assert mixture.feature_names_in_.tolist() == ["a", "b"]
    assert_array_equal(mixture.predict(Relation(table)), mixture.labels_)
    by_array = bnp.DirichletProcessMixture(n_clusters=2, random_state=0).fit(x)
    assert by_array.lower_bounds_ == mixture.lower_bounds_
    parts = [Relation(table), Relation(table.slice(0, 20))]
    sequences = bnp.SequenceModel(n_states=2, max_laps=3, random_state=0).fit(parts)
    states = sequences.predict(parts)
    assert [len(part) for part in states] == [60, 20]
    assert_array_equal(np.concatenate(states), sequences.labels_)
    assert_array_equal(sequences.predict(Relation(table)), states[0])
    counts = pa.table({word: np.arange(20) % 4 + 1 for word in ("sun", "moon", "star")})
    topics = bnp.TopicModel(n_topics=2, max_laps=2, random_state=0).fit(Relation(counts))
    assert topics.transform(Relation(counts)).shape == (20, 2)


def test_a_stream_without_a_table_is_refused():
    with pytest.raises(DataError, match="ChunkedArray, whose Arrow stream holds no table"):
        bnp.as_source(pa.chunked_array([[1.0, 2.0]]))
    assert bnp.as_source(pa.chunked_array([["sun moon", "sun"]]), text=bnp.Text(min_df=1)).n_features == 2
