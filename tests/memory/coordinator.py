"""Train on many tiny batches and print what the process that trains holds at most beside what it started with.

``python -m tests.memory.coordinator N_BATCHES STORE``: STORE is a run directory, or ``-`` for none.
"""

from __future__ import annotations

import sys
import warnings

import bnp_dask as bnp
from tests.memory import measure
from tests.memory.parts import MadeUp

N_FEATURES, N_CLUSTERS = 1500, 20


def go(n_batches: int, store: str | None) -> bnp.TrainResult:
    """Two laps."""
    return bnp.train(
        bnp.Model(bnp.DPMixture(1.0), bnp.FixedVarianceGaussian()),
        MadeUp(n_batches, 10, N_FEATURES),
        init=bnp.RandomExamples(N_CLUSTERS),
        moves=(),
        schedule=bnp.Memoized(laps=2, window=4),
        store=store,
    )


def main(n_batches: int, store: str | None) -> None:
    """Warm up, measure, print bytes: at most held, still held, and of all batches' summaries."""
    warnings.simplefilter("ignore")
    go(20, None)
    before = measure.start()
    result = go(n_batches, store)
    high = measure.highest() - before
    assert result.posterior.summary is not None
    print(high, measure.start() - before, n_batches * result.posterior.summary.nbytes)


if __name__ == "__main__":
    main(int(sys.argv[1]), None if sys.argv[2] == "-" else sys.argv[2])
