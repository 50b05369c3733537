"""Short runs of each kind of model in numbers, recorded: ``python tests/train/digests.py`` writes them anew.

Recorded are the objective and the counts after each lap, and which moves were tried and accepted: what a change of
names, files or imports must keep.  Moves and numbers of clusters are compared exactly.  Objectives and counts are
compared to a share of 1e-9, because other processors and other versions of BLAS round otherwise; another order of
random numbers, or of moves, changes them by far more.  Where another machine decides a move otherwise, write them anew
there from the commit before a change.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute.serial import SerialExecutor
from tests.stopping import AfterLaps

RECORDED = Path(__file__).with_name("digests.json")
CLOSE = 1e-9
LAPS, STOP = 5, 2


def mixture():
    """Four clusters of rows, computed in fixed order."""
    rng = np.random.default_rng(1)
    x = rng.normal(scale=5, size=(4, 2))[rng.integers(4, size=400)] + rng.normal(size=(400, 2))
    return bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian(), reproducible=True), bnp.as_source(x, batch_size=100)


def topics():
    """Three topics of five words each."""
    rng = np.random.default_rng(2)
    own = np.repeat(np.eye(3), 5, axis=1) / 5
    counts = np.array([rng.multinomial(40, p) for p in rng.dirichlet([0.3] * 3, 60) @ own], float)
    return bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), bnp.as_source(sparse.csr_array(counts), batch_size=20)


def states():
    """Three states that last."""
    rng = np.random.default_rng(3)
    labels = np.repeat(rng.integers(3, size=80), 5)
    x = np.array([[0.0, 4.0], [4.0, 0.0], [-4.0, -4.0]])[labels] + rng.normal(size=(400, 2))
    source = bnp.as_source(x, batch_size=100, groups=np.arange(0, 401, 50))
    return bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()), source


STARTS = {"mixture": bnp.RandomExamples(2), "topics": bnp.RandomExamples(2), "states": bnp.ContiguousBlocks(5)}
MODELS = {"mixture": mixture, "topics": topics, "states": states}
MOVES = (bnp.Birth(), bnp.Merge(), bnp.Delete())
RUNS = [f"{name}, {how}" for name in MODELS for how in ("straight", "resumed")]


def digest(run):
    """What is recorded of a run."""
    name, how = run.split(", ")
    model, source = MODELS[name]()

    def go(**more):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bnp.ConvergenceWarning)
            schedule = bnp.Memoized(laps=LAPS, window=2, tolerance=0.0, count_tolerance=0.0)
            here = SerialExecutor()
            settings = {"init": STARTS[name], "schedule": schedule, "moves": MOVES, "client": here, "rng": 7}
            return bnp.train(model, source, **settings, **more)

    if how == "straight":
        result = go()
    else:
        with tempfile.TemporaryDirectory() as folder:
            go(store=Path(folder) / "run", callbacks=[AfterLaps(STOP)])
            result = go(store=Path(folder) / "run", resume=True)
    ends = {row["lap"]: row for row in result.history}.values()
    tried = [[row["lap"], m["kind"], m["targets"], m["accepted"]] for row in result.history for m in row["moves"]]
    return {
        "elbo": [row["elbo"] for row in ends],
        "clusters": [row["n_clusters"] for row in ends],
        "moves": tried,
        "counts": result.posterior.summary["N"].tolist(),
        "ids": result.posterior.ids.tolist(),
    }


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    out.write_text(json.dumps({run: digest(run) for run in RUNS}, indent=1) + "\n")
