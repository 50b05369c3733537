"""Filters: speed per CPU second, and KOS as in Table 1 of Tank, Foti & Fox 2015.

``python -m benchmarks.streaming.filters speed``, ``choose``, ``kos SPLIT ORDERS LAPS EPSILON [PRIOR]``,
``splits FIRST LAST LAPS EPSILON`` or ``gibbs SPLIT PRIOR SWEEPS CHAINS [START]``: JSON lines.

``speed``: points of 16 dimensions about 100 centers, and one pass over KOS.  ``choose``: hyperparameters by a grid.
``kos``: held-out scores of Dirichlet process and normalized inverse Gaussian mixtures after one pass and after laps
of expectation propagation (0: none), a random fifth of the documents held out, less the score of one multinomial for
all; EPSILON is the threshold of both, or ``default``.
``splits``: the same of one order of each of some splits, and then differences of priors and schedules over all.
``gibbs``: the same of the last fifty sweeps of Gibbs sampling, from the clusters of one pass (``filter``) or of ten
(``propagation``), or from one cluster (``one``).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from benchmarks.topics.corpora import SHARED
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming.task import seat_batch
from bnp_dask.testing import survey_of

PRIORS = {"DP": bnp.DPMixture(100.0), "IG": bnp.NGGPMixture(10.0, 0.5, 100.0)}


def kos() -> sparse.csr_array:
    """Word counts, ``(3430, 6906)``."""
    table = np.loadtxt(SHARED / "kos" / "docword.kos.txt.gz", skiprows=3, dtype=np.int64)
    rows, words, counts = table.T
    return sparse.csr_array((counts.astype(float), (rows - 1, words - 1)))


def points(n: int) -> np.ndarray:
    """Points of 16 dimensions about 100 centers."""
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=6.0, size=(100, 16))
    return centers[rng.integers(100, size=n)] + rng.normal(size=(n, 16))


def speed() -> None:
    """CPU seconds of one pass, compiled before."""
    for data, likelihood in (
        (Batch(points(40_000), None, "points"), bnp.Gaussian()),
        (Batch(kos(), None, "KOS"), bnp.Multinomial(0.1)),
    ):
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


def parted(split: int) -> tuple[sparse.csr_array, sparse.csr_array, float]:
    """Held-out documents, the others, and the score of the first by one multinomial for all, nats."""
    x = kos()
    order = np.random.default_rng(split).permutation(x.shape[0])
    held, rest = x[order[:686]], x[order[686:]]
    one = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial(0.1)), rest, init=bnp.RandomExamples(1), moves=())
    return held, rest, bnp.score(one.posterior, held) * 686


def sampled(split: int, prior: str, sweeps: int, chains: int, start: str = "filter") -> None:
    """Held-out scores of the last fifty sweeps of each chain, less that of one multinomial; documents in one batch."""
    held, rest, base = parted(split)
    schedule = bnp.Gibbs(laps=sweeps, burn_in=sweeps - 50, thin=5, chains=chains)
    model, init = bnp.Model(PRIORS[prior], bnp.Multinomial(0.1)), bnp.RandomExamples(1)
    if start != "one":
        before = bnp.Filter() if start == "filter" else bnp.ExpectationPropagation(laps=10, window=1)
        init = bnp.FromPosterior(bnp.train(model, rest, schedule=before, batch_size=1000).posterior)
    began = time.process_time()
    draws = bnp.train(model, rest, schedule=schedule, init=init, batch_size=rest.shape[0]).draws
    line = {"split": split, "prior": prior, "start": start, "sweeps": sweeps}
    line |= {"cpu_seconds": time.process_time() - began}
    for chain in range(chains):
        scores = [bnp.score(draws.posterior(chain, i), held) * 686 - base for i in range(draws.n_draws)]
        line |= {"chain": chain, "gain": float(np.mean(scores)), "clusters": float(draws.n_clusters[chain].mean())}
        print(json.dumps({**line, "log_joint": float(draws.log_joint[chain].mean())}), flush=True)


def splits(first: int, last: int, laps: int, epsilon: float | None) -> None:
    """Paired differences over splits: normalized inverse Gaussian less Dirichlet process, and laps less one pass."""
    found: dict[tuple[str, str], list[float]] = {}
    for split in range(first, last):
        for line in compare(split, 1, laps, epsilon, "both"):
            found.setdefault((line["schedule"], line["prior"]), []).append(line["gain"])
    pairs = [((schedule, "IG"), (schedule, "DP")) for schedule, prior in found if prior == "DP"]
    pairs += [(("ExpectationPropagation", prior), ("Filter", prior)) for prior in PRIORS if laps]
    for better, worse in pairs:
        rise = np.array(found[better]) - np.array(found[worse])
        error = rise.std(ddof=1) / np.sqrt(len(rise))
        line = {"difference": f"{better} less {worse}", "mean": rise.mean(), "error": error}
        print(json.dumps({**line, "positive": int((rise > 0).sum()), "splits": len(rise)}), flush=True)


def compare(split: int, orders: int, laps: int, epsilon: float | None, prior: str) -> list[dict[str, Any]]:
    """Held-out scores, nats, as differences to one multinomial for all documents, of some orders of one split."""
    lines = []
    held, rest, base = parted(split)
    for seed in range(orders):
        rows = rest[np.random.default_rng([split, seed]).permutation(rest.shape[0])]
        for name, allocation in PRIORS.items():
            if prior not in ("both", name):
                continue
            model = bnp.Model(allocation, bnp.Multinomial(0.1))
            schedules: list[Any] = [bnp.Filter(epsilon)]
            if laps:
                more = bnp.ExpectationPropagation(laps=laps, window=1, epsilon=epsilon, count_tolerance=0.0)
                schedules.append(more)
            for schedule in schedules:
                start = time.process_time()
                posterior = bnp.train(model, rows, schedule=schedule, batch_size=1000).posterior
                line = {"split": split, "order": seed, "prior": name, "schedule": type(schedule).__name__}
                line |= {
                    "cpu_seconds": time.process_time() - start,
                    "clusters": int(np.sum(posterior.summary["N"] >= 0.5)),
                }
                line |= {"gain": bnp.score(posterior, held) * 686 - base, "with_rests": posterior.n_clusters}
                lines.append(line)
                print(json.dumps(line), flush=True)
    return lines


def choose() -> None:
    """Hyperparameters by a grid on a tenth of KOS (S4.1): scores of a fifth of it after one pass over the rest."""
    x = kos()
    part = x[np.random.default_rng(0).permutation(x.shape[0])[:343]]
    rest, held = part[:274], part[274:]
    values = (1.0, 10.0, 100.0, 1000.0)
    grid: list[tuple[str, object]] = [(f"DP a={a}", bnp.DPMixture(a)) for a in values]
    grid += [(f"IG a={a} tau={t}", bnp.NGGPMixture(a, 0.5, t)) for a in values for t in (0.1, *values)]
    for name, allocation in grid:
        model = bnp.Model(allocation, bnp.Multinomial(0.1))
        posterior = bnp.train(model, rest, schedule=bnp.Filter()).posterior
        print(json.dumps({"prior": name, "score": bnp.score(posterior, held) * 69, "clusters": posterior.n_clusters}))


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "speed"
    if what == "speed":
        speed()
    elif what == "choose":
        choose()
    elif what == "splits":
        splits(*(int(value) for value in sys.argv[2:5]), None if sys.argv[5] == "default" else float(sys.argv[5]))
    elif what == "gibbs":
        sampled(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:7])
    else:
        numbers = [int(value) for value in sys.argv[2:5]]
        least = None if sys.argv[5] == "default" else float(sys.argv[5])
        compare(*numbers, least, sys.argv[6] if len(sys.argv) > 6 else "both")
