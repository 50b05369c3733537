"""Toys of other sizes than those of the papers, which chose no setting: their number is found, by default.

Twenty-four bars of 12 x 12 are in ``tests/topics/test_leftovers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bnp_dask as bnp
from tests.moves.toys import edges, sticky

SEEDS = range(10)

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]  # each run takes 10 to 30 s of processor time


def assert_mostly(n_true: int, model: bnp.Model, data: Callable[[int], Any]) -> None:
    """The true number is found in nine of ten seeds at least."""
    found = [bnp.train(model, data(seed), rng=seed).posterior.n_clusters for seed in SEEDS]
    assert sum(k == n_true for k in found) >= 9, found


def patches(seed: int) -> np.ndarray:
    return np.concatenate([batch.x for batch in edges(20_000, 1, seed, directions=12, side=6).batches])


def test_fifteen_states_of_five_features():
    assert_mostly(15, bnp.Model(bnp.HDPHMM(), bnp.Gaussian()), lambda seed: sticky(seed=seed))


def test_twelve_covariances_of_patches_of_six_by_six():
    assert_mostly(12, bnp.Model(bnp.DPMixture(), bnp.ZeroMeanGaussian()), patches)
