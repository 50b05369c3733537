"""Copies of arrays against NumPy's assignment."""

import numpy as np
import pytest

from bnp_dask.kernels.options import copy_into


@pytest.mark.parametrize("n", [0, 1, 7])
def test_the_beginning_of_the_target_is_the_source_and_the_rest_stays(n):
    source, target = np.arange(n, dtype=np.float64), np.full(9, -1.0)
    expected = target.copy()
    expected[:n] = source
    copy_into(target, source)
    np.testing.assert_array_equal(target, expected)
