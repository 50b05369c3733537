"""Rows of steps and those before them, against one step after the other."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.kernels.hmm import lagged_rows, with_lags


@pytest.mark.parametrize("lags", [1, 2, 5])
def test_rows_hold_a_step_and_those_before_it(lags):
    offsets = np.array([0, 4, 4, 5, 12])
    x = np.random.default_rng(0).normal(size=(12, 2))
    rows, lengths = [], []
    for first, last in zip(offsets[:-1], offsets[1:], strict=True):
        steps = [t for t in range(first, last) if t - lags >= first]
        rows += [np.concatenate([x[t - j] for j in range(lags + 1)]) for t in steps]
        lengths.append(len(steps))
    index, kept = lagged_rows(offsets, lags)
    np.testing.assert_array_equal(kept, np.concatenate([[0], np.cumsum(lengths)]))
    np.testing.assert_array_equal(with_lags(x, index, lags), np.array(rows).reshape(-1, 2 * (lags + 1)))
