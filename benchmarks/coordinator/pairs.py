"""Planning of unions by the number of clusters: CPU seconds, memory, and how many of the best pairs are scored.

``python -m benchmarks.coordinator.pairs K D [all]``: one JSON line.  ``all`` scores all pairs, as for few clusters.
Clusters are Gaussians around centres of their own, three of them around each, from none to some deviations apart.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc

import numpy as np

import bnp_dask as bnp
from bnp_dask.core.summary import Summary
from bnp_dask.core.survey import survey_batch
from bnp_dask.kernels.gaussian.quadratic import pack
from bnp_dask.model import Model
from bnp_dask.moves import pairs, policy
from bnp_dask.moves.pairs import data_gains, rough_allocation_gains

LOOKED_AT = 40
"""Clusters whose unions with all others are scored, to see which pairs were left out."""


def clusters(n: int, d: int, rng: np.random.Generator) -> tuple[Model, Summary]:
    """Statistics of ``n`` Gaussian clusters."""
    centres = 4.0 * rng.normal(size=(-(-n // 3), d))
    apart = rng.uniform(0.0, 3.0, size=(n, 1))
    means = centres[np.arange(n) % len(centres)] + apart * rng.normal(size=(n, d)) / np.sqrt(d)
    counts = rng.lognormal(5.0 + np.log(d), 1.0, size=n)
    model = Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey_batch(bnp.Batch(means[:1000] + 0.0)))
    value = model.empty_summary(np.arange(n))
    y = means - model.observation.center
    for k in range(n):
        scale = np.exp(0.3 * rng.normal(size=d))
        root = scale[:, None] * (np.eye(d) + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d))
        value["xx"][k] = counts[k] * pack(root @ root.T + np.outer(y[k], y[k]))
    value["x"][:] = counts[:, None] * y
    value["N"][:] = counts
    return model, value


def main() -> None:
    """Score, compare, print."""
    n, d = int(sys.argv[1]), int(sys.argv[2])
    rng = np.random.default_rng(0)
    model, value = clusters(n, d, rng)
    posterior = model.global_step(value)
    if sys.argv[3:] == ["all"]:
        object.__setattr__(policy.LAP, "all_pairs", n)
    pairs.gains_of_pairs(*small(model))
    before = time.process_time()
    pairs.near_pairs(model, posterior, value)
    near = time.process_time() - before
    found = pairs.gains_of_pairs(model, posterior, value)
    seconds = time.process_time() - before - near
    tracemalloc.start()
    pairs.gains_of_pairs(model, posterior, value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    row = {"K": n, "D": d, "pairs": len(found.gains), "near": round(near, 2), "CPU s": round(seconds, 2)}
    row |= {"peak MB": peak // 2**20, "statistics MB": value.nbytes // 2**20}
    looked = rng.choice(n, min(LOOKED_AT, n), replace=False)
    best, five, worth, kept = [], [], 0, 0
    for k in looked.tolist():
        others = np.delete(np.arange(n), k)
        exact = data_gains(model, value, np.stack([np.full(n - 1, k), others], axis=1))
        known = np.isfinite(found[k][others])
        # small clusters lose least by any union: by the atoms of both, as if all clusters were of one size
        order = np.argsort(-exact * (1.0 / value["N"][k] + 1.0 / value["N"][others]), kind="stable")
        best.append(known[order[0]])
        five.append(known[order[:5]].mean())
        good = exact + rough_allocation_gains(value["N"], np.array([k]), others) > 0
        worth, kept = worth + int(good.sum()), kept + int((good & known).sum())
    row |= {"best known": float(np.mean(best)), "of best five": round(float(np.mean(five)), 3)}
    print(json.dumps({**row, "worth a try": worth, "of these known": kept}))


def small(model: Model) -> tuple[Model, bnp.Posterior, Summary]:
    """A little of it, so that nothing is loaded later."""
    value = model.empty_summary(np.arange(3))
    return model, model.global_step(value), value


if __name__ == "__main__":
    main()
