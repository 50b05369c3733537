"""Surveys of parts are those of the whole: entries that are missing, rows by themselves, features that are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import (
    combine,
    combine_joint,
    grain_of,
    joint_moments,
    no_joint_moments,
    require_atoms,
    survey_batch,
)
from bnp_dask.errors import DataError


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


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 30])
def test_joint_moments_of_parts_are_those_of_the_whole(rows, weighted):
    """Parts of one row have no spread of their own; rows that lack a column, or weigh nothing, do not count."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 4)) @ rng.normal(size=(4, 4)) + 100.0
    x[3, 2], x[5, 1] = np.nan, np.nan
    weights = rng.gamma(2.0, size=30) * (np.arange(30) != 8) if weighted else None
    columns = np.array([0, 2, 3])
    total = no_joint_moments(columns)
    for start in range(0, 30, rows):
        here = slice(start, start + rows)
        total = combine_joint(total, joint_moments(x[here], None if weights is None else weights[here], columns))
    heavy = (np.ones(30) if weights is None else weights) * ~np.isnan(x[:, 2])
    held, heavy = x[heavy > 0][:, columns], heavy[heavy > 0]
    assert total.count == len(held)
    assert_allclose(total.weight, heavy.sum())
    assert_allclose(total.mean, heavy @ held / heavy.sum(), rtol=1e-13)
    assert_allclose(total.covariance, np.cov(held.T, aweights=heavy, bias=True), rtol=1e-9, atol=1e-12)


def test_the_survey_of_some_features_is_that_of_these_columns():
    x = np.random.default_rng(2).normal(size=(20, 5))
    x[::3, 1], x[1, 3] = np.nan, np.nan
    index = np.array([3, 1])
    found = survey_batch(Batch(x), may_miss=True).features(index)
    expected = survey_batch(Batch(x[:, index]), may_miss=True)
    for name in ("mean", "variance", "minimum", "maximum", "missing"):
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)
    assert found.n_features == 2


@pytest.mark.parametrize(("steps", "grain"), [([3, 4, 3, 4], 1.0), ([6, 9, 15, 6], 3.0), ([4, 4, 4, 4], 4.0)])
def test_the_grain_of_a_column_is_the_largest_step_that_all_gaps_are_multiples_of(steps, grain):
    values = 0.25 * np.concatenate([[0.0], np.cumsum(steps)])
    assert_allclose(grain_of(survey_batch(Batch(np.repeat(values, 8)[:, None]))), 0.25 * grain, rtol=1e-9)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.0, 0.0], "all 2 atoms have weight 0; at least one needs a positive weight"),
        ([1e-7, 0.0], r"the weights of 2 atoms sum to 1e-07; needs 1e-06 to 9e\+15"),
        ([1e16, 0.0], r"the weights of 2 atoms sum to 1e\+16"),
        ([0.0, 1.0], r"column\(s\) .* have no value in any atom that counts"),
        ([1e-6, 0.0], None),
        ([2.0**53, 0.0], None),
        (None, None),
    ],
)
def test_data_without_atoms_that_count_are_refused(weights, words):
    x = np.array([[1.0, 2.0], [3.0, np.nan]])
    survey = survey_batch(Batch(x, None if weights is None else np.array(weights)), may_miss=True)
    if words is None:
        assert require_atoms(survey) is survey
    else:
        with pytest.raises(DataError, match=words):
            require_atoms(survey)


def test_data_without_atoms_at_all_are_refused():
    with pytest.raises(DataError, match="no atoms of positive weight: there are no batches"):
        require_atoms(None)
    empty = survey_batch(Batch(np.zeros((0, 2)), name="week 7"))
    with pytest.raises(DataError, match="no atoms of positive weight: week 7 and all other batches hold none"):
        require_atoms(empty)
