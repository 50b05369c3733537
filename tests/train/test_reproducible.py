"""``reproducible=True``: the same bits whatever code libraries choose for the processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import dask.array as da
import pytest

import bnp_dask as bnp
from bnp_dask.analysis import predict
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.kernels.numeric.arithmetic import fixed_order, is_fixed
from tests.train.fixed_order_runs import blobs

ROOT = Path(__file__).resolve().parents[2]
OTHER = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V3", "OPENBLAS_NUM_THREADS": "2"}
"""Code for a processor without AVX: other kernels of BLAS and of NumPy."""

NARROW = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse4.2", **OTHER, "OPENBLAS_CORETYPE": "Prescott"}
"""The same for compiled code: vectors of two doubles, and no fused operation in hardware."""


def started(which, settings):
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.train.fixed_order_runs", which]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def digests(process, seconds):
    out, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.long
def test_another_processor_gives_other_bits_but_not_where_it_must_not():
    here, there = started("small", {}), started("small", OTHER)
    (default, fixed), (other_default, other_fixed) = digests(here, 120)["gaussian"], digests(there, 120)["gaussian"]
    assert fixed == other_fixed
    assert default != other_default  # or this test shows nothing


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mixtures", "topics", "chains"])
def test_every_model_gives_the_same_bits_under_all_settings(kind, tmp_path):
    # fresh caches: code that was compiled before may hold an older version of what it calls
    wide, narrow = ({"NUMBA_CACHE_DIR": str(tmp_path / name)} for name in ("wide", "narrow"))
    settings = [wide, wide | OTHER, wide | {"OPENBLAS_CORETYPE": "Sandybridge"}, narrow | NARROW]
    found = [digests(started(kind, each), 2400) for each in settings]
    for name, (_, fixed) in found[0].items():
        assert [other[name][1] for other in found] == [fixed] * len(found), name
    if kind == "mixtures":
        differ = {name for name, (default, _) in found[0].items() if found[1][name][0] != default}
        assert differ == set(found[0]) - {"multinomial"}
    else:  # or this test shows nothing
        assert all(found[3][name][0] != default for name, (default, _) in found[0].items())


def test_tasks_compute_as_the_thread_that_submits_them(dask_client):
    for executor in (SerialExecutor(), ThreadExecutor(2), DaskExecutor(dask_client(1), "order")):
        with fixed_order(True):
            inside = executor.submit("ask", is_fixed)
        outside = executor.submit("ask", is_fixed)
        assert executor.result(inside) is True
        assert executor.result(outside) is False
        executor.close()


def test_blocks_of_a_dask_array_are_computed_in_the_order_of_the_model(monkeypatch):
    seen, assign_batch = [], predict.assign_batch
    monkeypatch.setattr(predict, "assign_batch", lambda *args: seen.append(is_fixed()) or assign_batch(*args))
    x = blobs(200, 2, 2)
    for reproducible in (True, False):
        model = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian(), reproducible=reproducible)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bnp.ConvergenceWarning)
            found = bnp.train(model, x, init=bnp.BregmanKMeans(2), schedule=bnp.Memoized(laps=1))
        bnp.predict(found.posterior, da.from_array(x, chunks=(100, 2))).compute(scheduler="synchronous")
    assert seen == [True, True, False, False]


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
