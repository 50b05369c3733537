"""A run whose parts are guests: made in the process of the tests, or in one that is killed."""

import json
import sqlite3
import sys
import warnings
from pathlib import Path

import numpy as np
from negbin import NegativeBinomial
from pitman_yor import PitmanYor
from pool import Pool
from smallest import UniteSmallest
from sqlite_rows import SqliteRows

import bnp_dask as bnp


def make_table(path):
    """600 rows of counts about three rates, in an SQLite file."""
    rng = np.random.default_rng(0)
    rates = np.array([[1.0, 20.0, 5.0], [20.0, 1.0, 5.0], [8.0, 8.0, 60.0]])
    rows = rng.poisson(rates[rng.integers(3, size=600)])
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE visits (a, b, c)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows.tolist())
    return rows.astype(float)


def train(path, laps=6, client=None, **more):
    """Train guests on the table."""
    model = bnp.Model(PitmanYor(gamma=2.0), NegativeBinomial(r=50.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(
            model,
            SqliteRows(Path(path), "visits", batch_size=100),
            init=bnp.RandomExamples(6),
            schedule=bnp.Memoized(laps=laps, window=2, tolerance=0.0, count_tolerance=0.0),
            moves=[bnp.Birth(per_lap=1), UniteSmallest()],
            client=Pool() if client is None else client,
            **more,
        )


class Told:
    """A callback that prints each lap."""

    def on_start(self, info):
        pass

    def on_batch(self, done):
        pass

    def on_lap(self, row, posterior):
        print(f"lap {row['lap']}", flush=True)

    def on_end(self, reason):
        pass


if __name__ == "__main__":
    train(sys.argv[1], callbacks=[Told()], **json.loads(sys.argv[2]))
