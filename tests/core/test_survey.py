"""Moments of batches of which some entries are missing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cut", [1, 7, 30])
def test_parts_with_holes_have_the_moments_of_the_whole(cut, weighted):
    """Shares of what is there differ by part and by column; one column is all missing in the first part."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)) * [1.0, 5.0, 1.0, 0.1] + [0.0, 50.0, -3.0, 1e3]
    x[:cut][rng.random((cut, 4)) < 0.6] = np.nan
    x[cut:][rng.random((40 - cut, 4)) < 0.1] = np.nan
    x[:cut, 2], x[3:6] = np.nan, 1.0
    weights = rng.gamma(2.0, size=40) * (np.arange(40) != 4) if weighted else None

    def survey(rows):
        own = None if weights is None else weights[rows]
        return survey_batch(Batch(x[rows], own), may_miss=True)

    found = combine([survey(slice(0, cut)), survey(slice(cut, 40))])
    there, heavy = ~np.isnan(x), np.ones(40) if weights is None else weights
    mass = (heavy[:, None] * there).sum(axis=0)
    mean = np.nansum(heavy[:, None] * x, axis=0) / mass
    assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-12)
    assert_allclose(found.variance, np.nansum(heavy[:, None] * (x - mean) ** 2, axis=0) / mass, rtol=1e-9)
    assert_array_equal(found.minimum, np.nanmin(x, axis=0))
    assert_array_equal(found.maximum, np.nanmax(x, axis=0))
