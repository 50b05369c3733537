"""``reproducible=True``: the same bits whatever code libraries choose for the processor."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.kernels.numeric.fixed_order import fixed_order, is_fixed

ROOT = Path(__file__).resolve().parents[2]
OTHER = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V3", "OPENBLAS_NUM_THREADS": "2"}
"""Code for a processor without AVX: other kernels of BLAS and of NumPy."""

NARROW = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse4.2", **OTHER, "OPENBLAS_CORETYPE": "Prescott"}
"""The same for compiled code: vectors of two doubles, and no fused operation in hardware."""


def blobs(n, d, k, scale=6.0):
    rng = np.random.default_rng(1)
    means = rng.normal(scale=scale, size=(k, d))
    # no product by BLAS: the data must be the same everywhere
    spread = np.einsum("nd,de->ne", rng.normal(size=(n, d)), rng.normal(size=(d, d)))
    return means[rng.integers(k, size=n)] + 0.7 * spread


def counts(n=600, v=30):
    return np.random.default_rng(2).poisson(3.0, size=(n, v)).astype(float)


def digest(allocation, observation, x, fixed, init=None, laps=3, moves=True, batch_size=1000, **settings):
    """SHA-256 of history, statistics and score of a run."""
    model = bnp.Model(allocation, observation, **settings)
    schedule, moves = bnp.Memoized(laps=laps), [bnp.Birth(), bnp.Merge(), bnp.Delete()] if moves else []
    found = bnp.train(model, x, init=init or bnp.BregmanKMeans(4), schedule=schedule, moves=moves,
                      client=SerialExecutor(), batch_size=batch_size, reproducible=fixed)  # fmt: skip
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in found.history]
    hashed = hashlib.sha256(json.dumps(rows, default=str).encode())
    for _, array in sorted(found.posterior.summary.to_arrays().items()):
        hashed.update(np.ascontiguousarray(array).tobytes())
    hashed.update(np.float64(bnp.score(found.posterior, x)).tobytes())
    return hashed.hexdigest()


def runs(which):
    dp, kmeans = bnp.DPMixture(3.0), bnp.BregmanKMeans
    small = {"gaussian": lambda fixed: digest(dp, bnp.Gaussian(), blobs(2000, 4, 6), fixed, batch_size=500)}
    if which == "small":
        return small
    many, wide = blobs(4000, 16, 40, 9.0), blobs(3000, 40, 20, 4.0)
    return small | {
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


def started(which, settings):
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.train.test_reproducible", which]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def digests(process, seconds):
    out, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0
    return json.loads(out)


def test_another_processor_gives_other_bits_but_not_where_it_must_not():
    here, there = started("small", {}), started("small", OTHER)
    (default, fixed), (other_default, other_fixed) = digests(here, 120)["gaussian"], digests(there, 120)["gaussian"]
    assert fixed == other_fixed
    assert default != other_default  # or this test shows nothing


@pytest.mark.long
def test_every_mixture_gives_the_same_bits_under_all_settings(tmp_path):
    settings = [{}, OTHER, {"OPENBLAS_CORETYPE": "Sandybridge"}, {**NARROW, "NUMBA_CACHE_DIR": str(tmp_path)}]
    found = [digests(started("all", each), 1500) for each in settings]
    for name, (default, fixed) in found[0].items():
        assert [other[name][1] for other in found] == [fixed] * len(found), name
        if name != "multinomial":
            assert found[1][name][0] != default, name


def test_tasks_compute_as_the_thread_that_submits_them(dask_client):
    for executor in (SerialExecutor(), ThreadExecutor(2), DaskExecutor(dask_client(1), "order")):
        with fixed_order(True):
            inside = executor.submit("ask", is_fixed)
        outside = executor.submit("ask", is_fixed)
        assert executor.result(inside) is True
        assert executor.result(outside) is False
        executor.close()


@pytest.mark.parametrize("allocation", [bnp.HDPTopics(), bnp.LDA(), bnp.HDPHMM(), bnp.FiniteHMM()])
def test_models_that_cannot_are_refused(allocation):
    with pytest.raises(SettingError, match="not computed in a fixed order yet.*DPMixture and FiniteMixture"):
        bnp.Model(allocation, bnp.Multinomial() if allocation.grouped else bnp.Gaussian(), reproducible=True)


def test_it_is_true_or_false():
    with pytest.raises(SettingError, match="reproducible='yes': needs True or False"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), blobs(50, 2, 2), reproducible="yes")


def test_a_run_keeps_it_and_is_not_resumed_without(tmp_path):
    def go(**more):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bnp.ConvergenceWarning)
            return bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), blobs(200, 2, 2), store=tmp_path / "run",
                             init=bnp.BregmanKMeans(2), schedule=bnp.Memoized(laps=2), **more)  # fmt: skip

    go(reproducible=True)
    assert bnp.load(tmp_path / "run" / "posterior.zarr").model.reproducible
    with pytest.raises(StoreError, match=r"settings differ \(model.reproducible: the run has True, this call False"):
        go(resume=True)
    go(resume=True, reproducible=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of limits of laps
    print(json.dumps({name: [run(False), run(True)] for name, run in runs(sys.argv[1]).items()}))
