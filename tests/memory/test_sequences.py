"""One sequence of many times what a task holds is cut, trained on and labelled, and nothing of it is lost."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.metrics import hamming_distance
from bnp_dask.analysis.sequences import state_durations
from tests.memory import measure
from tests.memory.measure import MB, can_measure

pytestmark = [
    pytest.mark.skipif(not can_measure(), reason="needs /proc/self/clear_refs"),
    pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning"),
]
STEPS, BLOCK, K, D = 2_000_000, 20_000, 6, 4


def write(path, n):
    """A sequence of ``K`` states that change every 500 steps, written piece by piece; the states."""
    rng = np.random.default_rng(0)
    means = 8.0 * rng.normal(size=(K, D))
    truth = np.repeat(np.arange(n // 500) % K, 500)
    held = np.lib.format.open_memmap(path, "w+", np.float64, (n, D))
    for start in range(0, n, 100_000):
        held[start : start + 100_000] = means[truth[start : start + 100_000]] + rng.normal(size=(100_000, D))
    return truth


def fit(path, n):
    """Train for a lap and write labels; the posterior and the source."""
    source = bnp.as_source(path, groups=[0, n], cut=BLOCK, batch_size=BLOCK)
    model = bnp.Model(bnp.FiniteHMM(kappa=50.0), bnp.DiagGaussian())
    init = bnp.BregmanKMeans(K, sample=2000)
    result = bnp.train(model, source, init=init, schedule=bnp.Memoized(laps=1, window=2), rng=3)
    bnp.predict(result.posterior, source, out=path.with_suffix(".parquet"))
    return result.posterior, source


@pytest.mark.long
def test_a_long_sequence_is_never_held(tmp_path):
    write(tmp_path / "small.npy", 200_000)
    fit(tmp_path / "small.npy", 200_000)  # what is compiled and imported belongs to the baseline
    truth = write(tmp_path / "x.npy", STEPS)
    before = measure.start()
    posterior, source = fit(tmp_path / "x.npy", STEPS)
    over = measure.highest() - before
    # a local step holds about five numbers per step and state; uncut that would be 480 MB
    assert over < 3 * BLOCK * (5 * K + D) * 8 + 20 * MB < STEPS * D * 8
    assert source.n_batches == source.n_groups == STEPS // BLOCK and source.n_cuts == STEPS // BLOCK - 1
    assert posterior.summary["N"].sum() == pytest.approx(STEPS)
    assert posterior.summary["M"].sum() == pytest.approx(STEPS - STEPS // BLOCK)
    before = measure.start()
    found = state_durations(tmp_path / "x.parquet")
    assert measure.highest() - before < 40 * MB
    assert found.steps.sum() == STEPS and abs(np.median(found.mean) - 500) < 25
    written = pq.read_table(tmp_path / "x.parquet")
    np.testing.assert_array_equal(written["step"], np.arange(STEPS))
    assert hamming_distance(truth, written["state"]) < 0.01
