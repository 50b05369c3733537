"""Tables that give an Arrow C stream are data: what polars and DuckDB do."""

import numpy as np
import pyarrow as pa
from numpy.testing import assert_array_equal

import bnp_dask as bnp


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
