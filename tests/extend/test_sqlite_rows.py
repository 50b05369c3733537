"""The guest source."""

import sqlite3

import numpy as np
import pytest
from sqlite_rows import SqliteRows

from bnp_dask.testing import SourceSuite


class TestSqliteRows(SourceSuite):
    @pytest.fixture(autouse=True)
    def make_table(self, tmp_path):
        self.path = tmp_path / "x.db"
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE x (a, b)")
            connection.executemany("INSERT INTO x VALUES (?, ?)", [(i, -i) for i in range(25)])

    def source(self):
        return SqliteRows(self.path, "x", batch_size=10)

    def test_batches_are_the_rows_of_the_table(self):
        rows = np.concatenate([batch.x for batch in self.batches(self.source())])
        assert np.array_equal(rows, [(i, -i) for i in range(25)])
