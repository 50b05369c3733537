"""Days of data, one update each, beside training on all of them at once.

``python -m benchmarks.streaming.days patches [SEEDS [ATOMS]]``: ten days of ten batches of 5 x 5 patches (thesis
4.4.2) from one cluster, and clusters after each day; 8 is the truth.

``python -m benchmarks.streaming.days digits [ROWS [BATCHES [ORDER]]]``: MNIST on 50 principal components, a digit
a day, ROWS of each in so many batches, 0 to 9 or in an order drawn with the seed ORDER, with ``revisit=1`` and
``revisit=0``; held-out score beside that of training on the shuffled rows with as many visits, and how many of the
first day's clusters are there on the last and by how much their counts changed.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import bnp_dask as bnp
from benchmarks.timing import emit
from benchmarks.topics.corpora import SHARED
from bnp_dask.execute import SerialExecutor
from tests.moves.toys import edges

DAYS = BATCHES = 10
FEATURES = 50
FIRST_LAPS = 20
"""Laps over the first day at most, and over all days to compare with."""


def patches(seeds: int = 10, atoms: int = 100_000) -> None:
    """Clusters after each of ten days, of several draws."""
    for seed in range(seeds):
        toy, began = edges(atoms, DAYS * BATCHES, seed), time.process_time()
        rows = np.array_split(np.concatenate([batch.x for batch in toy.batches]), DAYS)
        size, found = atoms // (DAYS * BATCHES), []
        with tempfile.TemporaryDirectory() as folder:
            store, paths = Path(folder) / "run", [Path(folder) / f"{day}.npy" for day in range(DAYS)]
            for path, own in zip(paths, rows, strict=True):
                np.save(path, own)
            start = {"init": bnp.BregmanKMeans(1), "schedule": bnp.Memoized(laps=50), "client": SerialExecutor()}
            first = bnp.train(toy.model, paths[0], store=store, batch_size=size, rng=seed, **start)  # type: ignore[arg-type]
            found.append(first.posterior.n_clusters)
            for path in paths[1:]:
                done = bnp.update(store, path, batch_size=size, client=SerialExecutor())
                found.append(done.posterior.n_clusters)
        seconds = round(time.process_time() - began, 1)
        emit("patches: clusters after ten days", found[-1], "clusters", 1, seed=seed, days=found, cpu_seconds=seconds)


def pictures(name: str) -> np.ndarray:
    """Pictures ``(n, 784)`` or labels ``(n,)`` of a file of MNIST."""
    raw = gzip.decompress((SHARED / "mnist" / name).read_bytes())
    if "labels" in name:
        return np.frombuffer(raw, np.uint8, offset=8)
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)


def digits(rows: int = 1000, batches: int = 1, order: int = 0) -> None:
    """A digit a day, a digit a day as a pure stream, and all of them shuffled."""
    in_turn = np.random.default_rng(order).permutation(DAYS) if order else range(DAYS)
    labels, x = pictures("train-labels-idx1-ubyte.gz"), pictures("train-images-idx3-ubyte.gz") / 255.0
    test = pictures("t10k-images-idx3-ubyte.gz") / 255.0
    mean = x.mean(axis=0)
    axes = np.linalg.eigh(np.cov(x[::6].T))[1][:, ::-1][:, :FEATURES]
    days = [((x[labels == digit] - mean) @ axes)[:rows] for digit in in_turn]
    heldout, size = (test - mean) @ axes, max(100, rows // batches)
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.Gaussian(nu=FEATURES + 2.0, B=np.eye(FEATURES), kappa=0.01))
    model_of = {"model": model, "init": bnp.BregmanKMeans(10), "client": SerialExecutor(), "batch_size": size}
    mixed = np.random.default_rng(0).permutation(np.concatenate(days))
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for revisit in (1.0, 0.0):
            store = Path(folder) / f"run{revisit:.0f}"
            places = [Path(folder) / f"{day}.npy" for day in range(DAYS)]
            for place, own in zip(places, days, strict=True):
                np.save(place, own)
            schedule = bnp.Memoized(laps=FIRST_LAPS)
            posterior = bnp.train(data=places[0], store=store, schedule=schedule, **model_of).posterior  # type: ignore[arg-type]
            first = dict(zip(posterior.ids.tolist(), posterior.summary["N"], strict=True))
            visits = FIRST_LAPS * rows
            for place in places[1:]:
                found = bnp.update(store, place, revisit=revisit, batch_size=size, client=SerialExecutor())
                visits += (found.new_batches + found.revisited) * size
            last = dict(zip(found.posterior.ids.tolist(), found.posterior.summary["N"], strict=True))
            of_first = {i: n for i, n in first.items() if n >= 1.0}
            within = [abs(last.get(i, 0.0) - n) <= 0.05 * n for i, n in of_first.items()]
            facts = {
                "revisit": revisit,
                "batches_a_day": rows // size,
                "K": found.posterior.n_clusters,
                "visits_per_row": visits / (DAYS * rows),
            }
            facts |= {
                "of_first_day": len(of_first),
                "kept": sum(i in last for i in of_first),
                "within_5_percent": int(sum(within)),
            }
            facts |= {"atoms_of_first_day": round(sum(last.get(i, 0.0) for i in of_first)), "rows": rows}
            facts |= {"cpu_seconds": round(time.process_time() - began)}
            emit("digits: held-out score, a digit a day", bnp.score(found.posterior, heldout), "nats", 1, **facts)
            laps = max(1, round(facts["visits_per_row"]))
            whole = bnp.train(data=mixed, schedule=bnp.Memoized(laps=laps), **model_of)  # type: ignore[arg-type]
            more = {"laps": laps, "K": whole.posterior.n_clusters, "rows": rows}
            emit("digits: held-out score, shuffled", bnp.score(whole.posterior, heldout), "nats", 1, **more)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"patches": patches, "digits": digits}[sys.argv[1]](*map(int, sys.argv[2:]))
