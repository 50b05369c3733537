"""A stream in which clusters are born, drift, die and return, with a half-life and without.

``python -m benchmarks.streaming.drifting [SEEDS [STEP [PLOT]]]``: 36 batches of 600 points in 6 dimensions, an
update of a pure stream each.  Cluster 0 stays, 1 drifts by STEP standard deviations a batch (.6), 2 is born at batch
8, 3 dies at 12 and returns at 26.  Printed are, for each seed and half-life: adjusted Rand index of the newest batch,
beside that of the true parameters; batches until a birth and the return are found; and whether the returned cluster
has its old id.  PLOT is a picture of the first seed.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

import bnp_dask as bnp
from benchmarks.timing import emit
from bnp_dask.execute import SerialExecutor

BATCHES, ROWS, FEATURES = 36, 600, 6
STAYS, DRIFTS, BORN, RETURNS = range(4)
BIRTH, DEATH, RETURN = 8, 12, 26
SETTLED = 2
"""Batches after an event that are not compared: the event is to be found within these."""

FOUND = 0.8
"""Share of a true cluster's atoms in one cluster, and of that cluster's in the true one."""

SETTINGS: dict[str, dict[str, object]] = {
    "half-life of 3 batches": {"half_life": "3 batches", "dormant": 60.0},
    "without": {},
}


def centres(seed: int) -> np.ndarray:
    """Means at the beginning, ``(4, FEATURES)``: at least 5 standard deviations apart."""
    rng = np.random.default_rng([seed, 7])
    while True:
        means = 2.5 * rng.normal(size=(4, FEATURES))
        gaps = np.linalg.norm(means[:, None] - means[None], axis=2)[np.triu_indices(4, 1)]
        if gaps.min() > 5.0:
            return means


def alive(number: int) -> list[int]:
    """True clusters of a batch."""
    gone = DEATH <= number < RETURN
    return [STAYS, DRIFTS, *([BORN] if number >= BIRTH else []), *([] if gone else [RETURNS])]


@dataclass(frozen=True, eq=False)
class Day:
    """Rows of one batch ``(n, D)``, their true clusters ``(n,)`` and the means then ``(4, D)``."""

    x: np.ndarray
    labels: np.ndarray
    means: np.ndarray

    @classmethod
    def draw(cls, seed: int, number: int, step: float) -> Day:
        rng = np.random.default_rng([seed, number])
        means = centres(seed)
        towards = np.random.default_rng([seed, 9]).normal(size=FEATURES)
        means[DRIFTS] += step * number * towards / np.linalg.norm(towards)
        labels = rng.choice(alive(number), size=ROWS)
        return cls(means[labels] + rng.normal(size=(ROWS, FEATURES)), labels, means)

    def best(self, number: int) -> float:
        """Adjusted Rand index of the clusters that the true parameters choose."""
        those = np.array(alive(number))
        far = ((self.x[:, None] - self.means[those][None]) ** 2).sum(axis=2)
        return float(adjusted_rand_score(self.labels, those[far.argmin(axis=1)]))

    def holder(self, ids: np.ndarray, cluster: int) -> int | None:
        """Id of the cluster that a true one is, if one is."""
        own = ids[self.labels == cluster]
        if not len(own):
            return None
        values, counts = np.unique(own, return_counts=True)
        top, count = int(values[counts.argmax()]), counts.max()
        return top if count >= FOUND * len(own) and count >= FOUND * (ids == top).sum() else None


@dataclass
class Trace:
    """Figures of each batch of one stream."""

    ari: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    n_clusters: list[int] = field(default_factory=list)
    holders: list[list[int | None]] = field(default_factory=list)

    def found_after(self, cluster: int, since: int) -> int:
        """Batches until a true cluster is one: 1 if its first batch shows it; 0 for never."""
        return next((i + 1 - since for i in range(since, BATCHES) if self.holders[i][cluster] is not None), 0)

    def old_id(self) -> bool:
        """Whether the cluster that returned has the id from before it died."""
        ids = [held[RETURNS] for held in self.holders]
        before = next((i for i in reversed(ids[:DEATH]) if i is not None), None)
        return before is not None and ids[-1] == before

    @property
    def gap(self) -> np.ndarray:
        """Index of the true parameters less the stream's, of the batches that are compared."""
        events = (0, BIRTH, RETURN)
        counted = [i for i in range(1, BATCHES) if not any(0 <= i - event < SETTLED for event in events)]
        return np.array(self.best)[counted] - np.array(self.ari)[counted]


def stream(seed: int, step: float, settings: dict[str, object]) -> Trace:
    """Train on the first batch, and update by each other."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "run"
        for number in range(BATCHES):
            day = Day.draw(seed, number, step)
            if number == 0:
                model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
                posterior = bnp.train(model, day.x, store=store, client=SerialExecutor()).posterior
                trace.fresh.append(float("nan"))
            else:
                found = bnp.update(store, day.x, revisit=0, client=SerialExecutor(), **settings)  # type: ignore[arg-type]
                posterior = found.posterior
                trace.fresh.append(found.fresh)
            ids = np.asarray(bnp.predict(posterior, day.x))
            trace.ari.append(float(adjusted_rand_score(day.labels, ids)))
            trace.best.append(day.best(number))
            trace.n_clusters.append(posterior.n_clusters)
            trace.holders.append([day.holder(ids, cluster) for cluster in range(4)])
    return trace


def draw(traces: dict[str, Trace], path: str) -> None:
    """Three panels over batches: adjusted Rand index, clusters, log predictive before a batch was folded."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 6.5))
    axes[0].plot(next(iter(traces.values())).best, color="0.6", label="true parameters")
    axes[1].plot([len(alive(i)) for i in range(BATCHES)], color="0.6", drawstyle="steps-mid", label="true clusters")
    for name, trace in traces.items():
        for axis, values in zip(axes, (trace.ari, trace.n_clusters, trace.fresh), strict=True):
            axis.plot(values, marker=".", label=name)
    for when, what in ((BIRTH, "birth"), (DEATH, "death"), (RETURN, "return")):
        for axis in axes:
            axis.axvline(when, color="0.85", zorder=0)
        axes[0].text(when, 1.02, what, transform=axes[0].get_xaxis_transform(), ha="center", fontsize=8)
    for axis, label in zip(axes, ("adjusted Rand index", "clusters", "fresh, nats per atom"), strict=True):
        axis.set_ylabel(label)
    axes[1].legend(fontsize=8, loc="upper left")
    axes[2].set_xlabel("batch")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main(seeds: int = 3, step: float = 0.6, plot: str | None = None) -> None:
    warnings.simplefilter("ignore")
    for seed in range(seeds):
        traces = {name: stream(seed, step, settings) for name, settings in SETTINGS.items()}
        for name, trace in traces.items():
            facts = {
                "worst": round(float(trace.gap.max()), 4),
                "birth_found_in": trace.found_after(BORN, BIRTH),
                "return_found_in": trace.found_after(RETURNS, RETURN),
                "old_id": trace.old_id(),
                "K": trace.n_clusters[-1],
            }
            emit(
                f"ARI below that of the truth, {name}", float(trace.gap.mean()), "ARI", 1, seed=seed, step=step, **facts
            )
        if plot and seed == 0:
            draw(traces, plot)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(float, sys.argv[2:3]), *sys.argv[3:4])
