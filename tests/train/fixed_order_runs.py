"""Digests of small runs of all kinds of model, for processes with other settings of libraries and compilers."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from bnp_dask.observation import with_previous


def blobs(n, d, k, scale=6.0):
    rng = np.random.default_rng(1)
    means = rng.normal(scale=scale, size=(k, d))
    # no product by BLAS: the data must be the same everywhere
    spread = np.einsum("nd,de->ne", rng.normal(size=(n, d)), rng.normal(size=(d, d)))
    return means[rng.integers(k, size=n)] + 0.7 * spread


def counts(n=600, v=30):
    return np.random.default_rng(2).poisson(3.0, size=(n, v)).astype(float)


def documents(n=300, v=60, k=8):
    rng = np.random.default_rng(3)
    topics, shares = rng.dirichlet(np.full(v, 0.1), size=k), rng.dirichlet(np.full(k, 0.3), size=n)
    return sparse.csr_array(rng.poisson(40.0 * np.einsum("nk,kv->nv", shares, topics)).astype(float))


def sequences(n=2000, d=3, k=6, each=100, previous=False):
    """A source of sequences, with the step before in each row for autoregressions."""
    rng = np.random.default_rng(4)
    path = np.repeat(rng.integers(k, size=-(-n // 10)), 10)[:n]
    x = rng.normal(scale=4.0, size=(k, d))[path] + rng.normal(size=(n, d))
    offsets = np.arange(0, n + 1, each)
    x, offsets = with_previous(x, offsets) if previous else (x, offsets)
    return bnp.as_source(x, groups=offsets, batch_size=n // 4)


def digest(allocation, observation, x, fixed, init=None, laps=3, moves=True, batch_size=1000, **settings):
    """SHA-256 of history, statistics and score of a run."""
    model = bnp.Model(allocation, observation, **settings)
    schedule, moves = bnp.Memoized(laps=laps), [bnp.Birth(), bnp.Merge(), bnp.Delete()] if moves else []
    found = bnp.train(model, x, init=init or bnp.BregmanKMeans(4), schedule=schedule, moves=moves,
                      client=SerialExecutor(), batch_size=None if isinstance(x, bnp.Source) else batch_size,
                      reproducible=fixed)  # fmt: skip
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in found.history]
    hashed = hashlib.sha256(json.dumps(rows, default=str).encode())
    for _, array in sorted(found.posterior.summary.to_arrays().items()):
        hashed.update(np.ascontiguousarray(array).tobytes())
    hashed.update(np.float64(bnp.score(found.posterior, x)).tobytes())
    return hashed.hexdigest()


def mixtures():
    dp, kmeans = bnp.DPMixture(3.0), bnp.BregmanKMeans
    many, wide = blobs(4000, 16, 40, 9.0), blobs(3000, 40, 20, 4.0)
    return {
        "screened": lambda fixed: digest(dp, bnp.Gaussian(), many, fixed, kmeans(40), batch_size=2000),
        "wide": lambda fixed: digest(dp, bnp.Gaussian(), wide, fixed, kmeans(20), laps=2, moves=False),
        "double": lambda fixed: digest(dp, bnp.Gaussian(), many, fixed, kmeans(20), laps=2, precision="double"),
        "point estimates": lambda fixed: digest(
            bnp.FiniteMixture(1.5, top=2), bnp.Gaussian(), many, fixed, moves=False, estimate="map"
        ),
        "k-means||": lambda fixed: digest(dp, bnp.Gaussian(), many, fixed, bnp.KMeansParallel(5), laps=2),
        "zero mean": lambda fixed: digest(dp, bnp.ZeroMeanGaussian(), many, fixed),
        "diagonal": lambda fixed: digest(dp, bnp.DiagGaussian(), many, fixed, kmeans(20)),
        "known variance": lambda fixed: digest(dp, bnp.FixedVarianceGaussian(), many, fixed),
        "poisson": lambda fixed: digest(dp, bnp.Poisson(), counts(), fixed, batch_size=200),
        "bernoulli": lambda fixed: digest(dp, bnp.Bernoulli(), np.minimum(counts(), 1.0), fixed, batch_size=200),
        "multinomial": lambda fixed: digest(dp, bnp.Multinomial(), sparse.csr_array(counts()), fixed, batch_size=200),
    }


def topics():
    words, hdp, anchors = documents(), bnp.HDPTopics(), bnp.AnchorWords(6)
    few, cold = bnp.DocumentStep(top=2), bnp.DocumentStep(start="cold", shrink=False)
    grouped = bnp.as_source(blobs(1500, 4, 6), groups=np.arange(0, 1501, 50), batch_size=500)
    multinomial = bnp.Multinomial()
    return {
        "topics sampled": lambda fixed: digest(
            hdp, multinomial, words, fixed, bnp.SampledTopics(6), laps=4, batch_size=100
        ),
        "topics by anchors": lambda fixed: digest(bnp.LDA(), multinomial, words, fixed, anchors, batch_size=100),
        "two topics a token": lambda fixed: digest(
            bnp.HDPTopics(step=few), multinomial, words, fixed, anchors, batch_size=100, moves=False
        ),
        "all topics": lambda fixed: digest(
            bnp.LDA(step=cold), multinomial, words, fixed, bnp.SampledTopics(17), batch_size=100, moves=False
        ),
        "groups of atoms": lambda fixed: digest(hdp, bnp.Gaussian(), grouped, fixed),
    }


def chains():
    steps, kmeans = sequences(), bnp.BregmanKMeans
    wide = sequences(1600, 5, 20, 200)
    return {
        "chain": lambda fixed: digest(bnp.HDPHMM(), bnp.Gaussian(), steps, fixed),
        "sticky chain": lambda fixed: digest(bnp.HDPHMM(kappa=20.0), bnp.DiagGaussian(), steps, fixed),
        "autoregressive": lambda fixed: digest(
            bnp.HDPHMM(), bnp.AutoRegressiveGaussian(), sequences(previous=True), fixed, bnp.ContiguousBlocks(8)
        ),
        "finite chain": lambda fixed: digest(bnp.FiniteHMM(), bnp.Gaussian(), wide, fixed, kmeans(20), moves=False),
        "chain's point estimate": lambda fixed: digest(
            bnp.FiniteHMM(alpha=2.0), bnp.Gaussian(), wide, fixed, kmeans(11), moves=False, estimate="map"
        ),
    }


def runs(which):
    """Runs by name: functions of ``reproducible``."""
    small = {
        "gaussian": lambda fixed: digest(
            bnp.DPMixture(3.0), bnp.Gaussian(), blobs(600, 4, 6), fixed, laps=2, batch_size=150
        )
    }  # fmt: skip
    kinds = {"small": dict, "mixtures": mixtures, "topics": topics, "chains": chains}
    return small | kinds[which]()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of limits of laps
    print(json.dumps({name: [run(False), run(True)] for name, run in runs(sys.argv[1]).items()}))
