"""A source: rows of a table of an SQLite file."""

import sqlite3
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import bnp_dask as bnp


@bnp.register
@dataclass(frozen=True)
class SqliteRows:
    """Batches of consecutive rows of a table that has numbers only.

    Parameters
    ----------
    path
        The file; workers open it themselves.  A ``Path`` in a job file is relative to it.
    table
        Name of the table.
    batch_size
        Rows of a batch.
    """

    path: Path
    table: str
    batch_size: int = 1000
    is_sparse = False

    @property
    def name(self):
        return f"{self.path}:{self.table}"

    @property
    def n_atoms(self):
        return int(self._ask(f'SELECT COUNT(*) FROM "{self.table}"')[0][0])

    @property
    def n_features(self):
        return len(self._ask(f'SELECT * FROM "{self.table}" LIMIT 1')[0])

    @property
    def n_batches(self):
        return -(-self.n_atoms // self.batch_size)

    def reader(self, index):
        """How batch ``index`` is read: small, and pickled to wherever it is read."""
        return partial(read_batch, self, index)

    def describe(self):
        """What tells these data from others, for a run that is resumed; batches have checksums besides."""
        return {"kind": "sqlite", "path": str(self.path), "table": self.table, "batch_size": self.batch_size}

    def _ask(self, query, values=()):
        with sqlite3.connect(f"file:{self.path}?mode=ro", uri=True) as connection:
            return connection.execute(query, values).fetchall()


def read_batch(source, index):
    """The atoms of one batch, in the same order each time."""
    query = f'SELECT * FROM "{source.table}" ORDER BY rowid LIMIT ? OFFSET ?'
    rows = source._ask(query, (source.batch_size, index * source.batch_size))
    return bnp.Batch(np.array(rows, np.float64), name=f"{source.name} batch {index}")
