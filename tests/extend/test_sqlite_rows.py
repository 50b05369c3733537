"""The guest source."""

import pickle
import sqlite3

import numpy as np
from sqlite_rows import SqliteRows


def test_batches_are_the_rows_of_the_table_wherever_they_are_read(tmp_path):
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("CREATE TABLE x (a, b)")
        connection.executemany("INSERT INTO x VALUES (?, ?)", [(i, -i) for i in range(25)])
    source = SqliteRows(tmp_path / "x.db", "x", batch_size=10)
    readers = [pickle.loads(pickle.dumps(source.reader(i))) for i in range(source.n_batches)]
    rows = np.concatenate([read().x for read in readers])
    assert (source.n_atoms, source.n_features, source.n_batches) == (25, 2, 3)
    assert np.array_equal(rows, [(i, -i) for i in range(25)])
