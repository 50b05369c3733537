"""Hidden Markov models on real recordings: one JSON line per run.

``python -m benchmarks.chains.recordings [names]``; names: mocap6, gesture_phase, beedance, ami_es2005a,
chromhmm_chr11; all if none.  Reads ``../shared/data``.  Each data set is run with a fixed number of states and with
moves, the prior being the same.  Distances are shares of labelled steps in another state than the true one: when each
state stands for the label it has most (``many_to_one``, thesis 6.6.3), and when each label is stood for by one state
(``one_to_one``).
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.chains import real
from bnp_dask.allocation import HDPHMM
from bnp_dask.analysis.predict import predict
from bnp_dask.inference import Memoized
from bnp_dask.initialize import ContiguousBlocks
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import Bernoulli, Gaussian
from bnp_dask.observation.base import Observation
from bnp_dask.training.train import train

NEAR = 10
"""Steps by which a found change may miss a true one."""


@dataclass(frozen=True, eq=False)
class Task:
    """A recording with a likelihood, settings of the model and of the run."""

    name: str
    sequences: list[np.ndarray]
    observation: Observation
    labels: np.ndarray | None = None
    changes: list[np.ndarray] | None = None
    kappa: float = 100.0
    alpha: float = 0.5
    batch_size: int = 1
    length: int = 20
    laps: int = 40


def mocap6(kappa: float = 300.0) -> Task:
    """First-order autoregressions of 12 joint angles, a sequence a batch."""
    sequences, labels = real.mocap6()
    return Task("mocap6", sequences, real.autoregressive(sequences, 0.5, 100.0), labels, kappa=kappa)


def mocap6_gaussian() -> Task:
    """The same angles without dynamics: Gaussians of the angles alone."""
    sequences, labels = real.mocap6()
    return Task("mocap6 Gaussian", [s[:, :12].copy() for s in sequences], Gaussian(), labels, kappa=300.0)


def gesture_phase() -> Task:
    """Autoregressions of 18 coordinates; the first frame of each video has no predecessor and is left out."""
    sequences, labels = real.gesture_phase()
    ends = np.cumsum([len(s) for s in sequences])
    labels = np.delete(labels, np.concatenate([[0], ends[:-1]]))
    rows = real.lagged(sequences)
    return Task("gesture_phase", rows, real.autoregressive(rows, 0.5, 100.0), labels, kappa=300.0, laps=25)


def beedance() -> Task:
    """Autoregressions of position and heading."""
    sequences, changes = real.beedance()
    rows = real.lagged([s / np.concatenate(sequences).std(axis=0) for s in sequences])
    return Task("beedance", rows, real.autoregressive(rows, 0.5, 1.0), changes=changes)


def ami_es2005a() -> Task:
    """Gaussians of ten principal components of voices; steps in which nobody or several speak do not count.

    Windows of 1.44 s are taken every 0.24 s, so neighbours are nearly the same measurement, and states would be
    moments, not speakers: every sixth is used, which do not overlap.
    """
    (rows,), labels = real.ami()
    return Task("ami_es2005a", [rows[::6].copy()], Gaussian(), labels[::6])


def chromhmm_chr11() -> Task:
    """Ten marks in bins of 200 base pairs, Beta(0.1, 0.3) (thesis 6.6.4), about twenty sequences."""
    sequences = real.chromatin()
    return Task("chromhmm_chr11", sequences, Bernoulli(0.1, 0.3), kappa=0.0, batch_size=65_000, length=200, laps=12)


def many_to_one(found: np.ndarray, true: np.ndarray) -> float:
    """Share of labelled steps in another state than the true one; each found state stands for the label it has most."""
    counts = _table(found, true)
    return float(1.0 - counts.max(axis=1).sum() / counts.sum())


def one_to_one(found: np.ndarray, true: np.ndarray) -> float:
    """The same when each label is stood for by one state at most, the best way there is."""
    counts = _table(found, true)
    rows, columns = linear_sum_assignment(-counts)
    return float(1.0 - counts[rows, columns].sum() / counts.sum())


def _table(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    known = true >= 0
    out = np.zeros((int(found.max()) + 1, int(true.max()) + 1))
    np.add.at(out, (found[known], true[known]), 1.0)
    return out


def changes_found(found: np.ndarray, sequences: list[np.ndarray], true: list[np.ndarray]) -> tuple[float, float]:
    """Share of true changes with a found one near, and of found ones with a true one near."""
    hit, there, right, said, start = 0, 0, 0, 0, 0
    for rows, wanted in zip(sequences, true, strict=True):
        own = np.flatnonzero(np.diff(found[start : start + len(rows)])) + 1
        start += len(rows)
        gap = np.abs(own[:, None] - wanted)
        hit, there = hit + int((gap.min(axis=0, initial=99) <= NEAR).sum()), there + len(wanted)
        right, said = right + int((gap.min(axis=1, initial=99) <= NEAR).sum()), said + len(own)
    return hit / max(there, 1), right / max(said, 1)


def solve(task: Task, n_clusters: int, moves: bool, seed: int = 0) -> dict[str, Any]:
    """One run, and what it came to."""
    model = Model(HDPHMM(gamma=10.0, alpha=task.alpha, alpha0=10.0, kappa=task.kappa), task.observation)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            model, task.sequences, init=ContiguousBlocks(n_clusters, task.length), schedule=Memoized(task.laps),
            moves=(Birth(), Merge(), Delete()) if moves else (), batch_size=task.batch_size, rng=seed,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    labels = predict(result.posterior, task.sequences)
    found = np.concatenate(labels) if isinstance(labels, list) else np.asarray(labels)
    last = result.history[-1]
    out = {
        "data": task.name, "kappa": task.kappa, "start": n_clusters, "moves": moves, "seed": seed,
        "per_step": round(last["elbo"] / len(found), 4), "K": result.posterior.n_clusters,
        "in_use": len(np.unique(found)), "laps": last["lap"], "seconds": round(seconds, 1),
    }  # fmt: skip
    if task.labels is not None:
        out |= {"many_to_one": round(many_to_one(found, task.labels), 4)}
        out |= {"one_to_one": round(one_to_one(found, task.labels), 4)}
    if task.changes is not None:
        recall, precision = changes_found(found, task.sequences, task.changes)
        out |= {"changes_found": round(recall, 3), "changes_right": round(precision, 3)}
    return out


TASKS: dict[str, tuple[Callable[[], Task], tuple[int, ...], tuple[int, ...]]] = {
    "mocap6": (mocap6, (30, 60), (1, 30, 60)),
    "mocap6_gaussian": (mocap6_gaussian, (30, 60), (1, 30)),
    "gesture_phase": (gesture_phase, (30, 60), (1, 30)),
    "beedance": (beedance, (10, 30), (1, 30)),
    "ami_es2005a": (ami_es2005a, (4, 25), (1, 25)),
    "chromhmm_chr11": (chromhmm_chr11, (20, 50), (1,)),
}
"""Data, numbers of states held fixed, and numbers of states that moves start from."""


def main() -> None:
    """All runs of the data sets named."""
    for name in sys.argv[1:] or list(TASKS):
        make, fixed, starts = TASKS[name]
        task = make()
        for n_clusters in fixed:
            print(json.dumps(solve(task, n_clusters, False)), flush=True)
        for n_clusters in starts:
            print(json.dumps(solve(task, n_clusters, True)), flush=True)


if __name__ == "__main__":
    main()
