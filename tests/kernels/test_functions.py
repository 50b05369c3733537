"""Exponentials and logarithms of our own: how wrong they can be."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.kernels.numeric.arithmetic import fixed_exp, fixed_log, fixed_log1p

EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs numbers longer than doubles")
RNG = np.random.default_rng(0)
WIDE = RNG.uniform(-700, 700, 100_000)


@EXTENDED
@pytest.mark.parametrize(
    ("ours", "exact", "x", "most"),
    [
        (fixed_exp, np.exp, np.concatenate([WIDE, RNG.normal(size=50_000)]), 1.0),
        (fixed_log, np.log, np.concatenate([np.exp(WIDE), 1.0 + 0.1 * RNG.normal(size=50_000)]), 1.0),
        (fixed_log1p, np.log1p, np.concatenate([np.exp(WIDE[WIDE < 20]), -RNG.uniform(0, 1, 50_000)]), 3.0),
    ],
)
def test_errors_in_units_of_the_last_place(ours, exact, x, most):
    wanted = exact(x.astype(np.longdouble))
    unit = np.maximum(np.spacing(np.abs(wanted).astype(np.float64)), np.finfo(np.float64).tiny * 2.0**-52)
    assert np.max(np.abs(ours(x) - wanted) / unit) < most


def test_special_numbers():
    special = np.array([-np.inf, -746.0, 0.0, 710.0, np.inf, np.nan])
    np.testing.assert_array_equal(fixed_exp(special), [0.0, 0.0, 1.0, np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(
        fixed_log(np.array([0.0, -1.0, 1.0, np.inf, np.nan])), [-np.inf, np.nan, 0, np.inf, np.nan]
    )
    np.testing.assert_array_equal(
        fixed_log1p(np.array([0.0, -1.0, -2.0, np.inf, np.nan])), [0, -np.inf, np.nan, np.inf, np.nan]
    )
    np.testing.assert_allclose(fixed_log(np.array([5e-324, 1e-310])), np.log([5e-324, 1e-310]), rtol=1e-15)
    assert fixed_exp(-740.0) == np.exp(-740.0)  # below the normal numbers
    assert isinstance(fixed_log(2.0), float)
