"""A file a week: what is new, under which ids, what became of the clusters, and back by one."""

from pathlib import Path

import numpy as np
import pandas as pd

import bnp_dask as bnp

rng = np.random.default_rng(0)
inbox = Path("inbox")
inbox.mkdir()


def arrives(week: int, places: list[tuple[float, float]]) -> None:
    rows = np.concatenate([rng.normal(place, 1.0, (300, 2)) for place in places])
    pd.DataFrame(rows, columns=["x", "y"]).to_parquet(inbox / f"week{week}.parquet")


arrives(1, [(0, 0), (9, 0)])
first = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), "inbox/", store="runs/weekly", rng=0)
print(first)
arrives(2, [(0, 0), (9, 0), (0, 9)])
second = bnp.update("runs/weekly", "inbox/", laps=5)
print(second)
assert set(first.posterior.ids) <= set(second.posterior.ids)
arrives(3, [(9, 9)])
print(bnp.update("runs/weekly", "inbox/", laps=5))
assert bnp.update("runs/weekly", "inbox/").new_batches == 0
for change in bnp.changes("runs/weekly", since=0):
    print(change)
print(bnp.versions("runs/weekly"))
assert bnp.load("runs/weekly").n_clusters == 4
bnp.rollback("runs/weekly", 1)
bnp.report("runs/weekly", "weekly.html")
print("clusters:", bnp.load("runs/weekly").n_clusters)
