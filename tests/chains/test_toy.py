"""The toy of thesis 6.6.1: eight states, found exactly whatever the start."""

import pytest

from benchmarks.chains.toy import run


@pytest.mark.first_case
@pytest.mark.parametrize("start, kappa", [(1, 0.0), (20, 50.0)])
def test_small(start, kappa):
    """Sixteen sequences of 200 steps in four batches."""
    done = run(start, kappa, seed=0, laps=14, size=(16, 200))
    assert done.n_clusters == 8
    assert done.distance == 0.0


@pytest.mark.long
@pytest.mark.parametrize("start", [1, 50, 100])
@pytest.mark.parametrize("kappa", [0.0, 50.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_bar(start, kappa, seed):
    """32 sequences of 1000 steps in eight batches, within 30 laps."""
    done = run(start, kappa, seed)
    assert done.solved, f"{done.n_clusters} states, distance {done.distance}, {done.laps} laps"
