"""Filters: speed per CPU second, and KOS as in Table 1 of Tank, Foti & Fox 2015.

``python -m tests.benchmarks.streaming.filters speed``, or ``kos SPLITS LAPS`` in its place: JSON lines.

``speed``: points of 16 dimensions about 100 centers, and one pass over KOS.  ``kos``: held-out scores of Dirichlet
process and normalized inverse Gaussian mixtures after one pass and after some laps of expectation propagation, on
random fifths of the documents held out, less the score of one multinomial for all.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.streaming.seats import seat_batch
from bnp_dask.testing.parts import survey_of
from tests.benchmarks.topics.corpora import SHARED

PRIORS = {"DP": bnp.DPMixture(100.0), "IG": bnp.NGGPMixture(10.0, 0.5, 100.0)}


def kos() -> sparse.csr_array:
    """Word counts, ``(3430, 6906)``."""
    table = np.loadtxt(SHARED / "kos" / "docword.kos.txt.gz", skiprows=3, dtype=np.int64)
    rows, words, counts = table.T
    return sparse.csr_array((counts.astype(float), (rows - 1, words - 1)))


def speed() -> None:
    """CPU seconds of one pass, compiled before."""
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=6.0, size=(100, 16))
    points = Batch(centers[rng.integers(100, size=40_000)] + rng.normal(size=(40_000, 16)), None, "points")
    for data, likelihood in ((points, bnp.Gaussian()), (Batch(kos(), None, "KOS"), bnp.Multinomial(0.1))):
        for name, prior in PRIORS.items():
            survey = survey_of(data)
            model = bnp.Model(prior, likelihood).with_prior(survey)
            nothing = model.empty_summary(np.zeros(0, np.int64))
            seat_batch(model, nothing, data.rows(0, 50), 0.5)
            start = time.process_time()
            found = seat_batch(model, nothing, data, 0.5)
            seconds = time.process_time() - start
            line = {"clusters": found.resp.n_clusters, "cpu_seconds": seconds, "per_second": data.n_atoms / seconds}
            print(json.dumps({"name": f"filter {data.name} {name}", **line}), flush=True)


def compare(splits: int, laps: int) -> None:
    """Held-out scores, nats, as differences to one multinomial for all documents."""
    x = kos()
    for split in range(splits):
        order = np.random.default_rng(split).permutation(x.shape[0])
        held, rest = x[order[:686]], x[order[686:]]
        one = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial(0.1)), rest, init=bnp.RandomExamples(1), moves=())
        base = bnp.score(one.posterior, held) * 686
        for name, prior in PRIORS.items():
            model = bnp.Model(prior, bnp.Multinomial(0.1))
            for schedule in (bnp.Filter(), bnp.ExpectationPropagation(laps=laps, window=1)):
                posterior = bnp.train(model, rest, schedule=schedule, batch_size=100).posterior
                gain = bnp.score(posterior, held) * 686 - base
                line = {"split": split, "prior": name, "schedule": type(schedule).__name__}
                print(json.dumps({**line, "gain": gain, "clusters": posterior.n_clusters}), flush=True)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "speed"
    if what == "speed":
        speed()
    else:
        compare(*(int(value) for value in sys.argv[2:4]))
