"""Surveys of parts are those of the whole: entries that are missing, rows by themselves, features that are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from bnp_dask.core import survey
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import (
    checksum,
    combine,
    combine_joint,
    extend,
    grain_of,
    joint_moments,
    no_joint_moments,
    require_atoms,
    survey_batch,
    without,
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

    def surveyed(rows):
        own = None if weights is None else weights[rows]
        return survey_batch(Batch(x[rows], own), may_miss=True)

    found = combine([surveyed(slice(0, cut)), surveyed(slice(cut, 40))])
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
    found = survey_batch(Batch(x, None if weights is None else np.array(weights)), may_miss=True)
    if words is None:
        assert require_atoms(found) is found
    else:
        with pytest.raises(DataError, match=words):
            require_atoms(found)


def test_data_without_atoms_at_all_are_refused():
    with pytest.raises(DataError, match="no atoms of positive weight: there are no batches"):
        require_atoms(None)
    empty = survey_batch(Batch(np.zeros((0, 2)), name="week 7"))
    with pytest.raises(DataError, match="no atoms of positive weight: week 7 and all other batches hold none"):
        require_atoms(empty)


def naive(x, weights):
    """Moments and ranges by their definitions; every entry is there."""
    heavy = np.ones(len(x)) if weights is None else weights
    mean = heavy @ x / heavy.sum()
    held = x[heavy > 0]
    return heavy.sum(), mean, heavy @ (x - mean) ** 2 / heavy.sum(), held.min(axis=0), held.max(axis=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_survey_of_many_tiles_is_that_of_its_definition(monkeypatch, weighted, is_sparse):
    monkeypatch.setattr(survey, "TILE_BYTES", 8 * 7)
    rng = np.random.default_rng(3)
    x = rng.poisson(0.7, (23, 3)).astype(float) if is_sparse else rng.normal(size=(23, 3)) + [0.0, 1e3, -5.0]
    weights = rng.gamma(2.0, size=23) * (np.arange(23) != 4) if weighted else None
    batch = Batch(sparse.csr_array(x) if is_sparse else x, weights, groups=None if is_sparse else np.array([0, 3, 23]))
    found = survey_batch(batch)
    values = (found.total_weight, found.mean, found.variance, found.minimum, found.maximum)
    for own, want in zip(values, naive(x, weights), strict=True):
        assert_allclose(own, want, rtol=1e-11, atol=1e-13)
    assert (found.n_atoms, found.n_batches, found.n_features) == (23, 1, 3)
    assert found.n_groups == (23 if is_sparse else 2) and found.nbytes == batch.nbytes
    assert (found.batch_atoms, found.batch_bytes) == ((23,), (batch.nbytes,))
    assert_allclose(found.batch_weights, found.total_weight)
    plain = survey_batch(batch, for_priors=False)
    assert_allclose(plain.total_weight, found.total_weight)
    assert plain.quantiles.is_unknown and np.isinf(plain.minimum).all() and not plain.mean.any()
    assert plain.checksums == found.checksums and not len(plain.copies.hashes)


@pytest.mark.parametrize("for_priors", [False, True])
@pytest.mark.parametrize("place", [(0, 0), (6, 1), (22, 2)])
def test_a_number_that_is_not_finite_is_named_wherever_it_is(monkeypatch, for_priors, place):
    monkeypatch.setattr(survey, "TILE_BYTES", 8 * 7)
    x = np.ones((23, 3))
    x[place] = np.inf
    names = ("a", "b", "c")
    for rows in (x, sparse.csr_array(x)):
        with pytest.raises(DataError, match=rf"week: row {place[0]}, column '{names[place[1]]}' is inf; needs finite"):
            survey_batch(Batch(rows, name="week", names=names), may_miss=True, for_priors=for_priors)
    x[place] = np.nan
    with pytest.raises(DataError, match=rf"row {place[0]}, column {place[1]} is nan"):
        survey_batch(Batch(x), for_priors=for_priors)
    assert survey_batch(Batch(x), may_miss=True, for_priors=for_priors).total_weight == 23.0


def test_a_survey_without_some_batches_has_their_atoms_no_more():
    weights = np.array([0.5, 1.5, 2.0])
    parts = [survey_batch(Batch(np.full((3, 2), n), weights * n, name=f"week {n}")) for n in (1.0, 2.0, 4.0)]
    whole = combine(parts)
    left = without(whole, [1])
    assert (left.n_atoms, left.batch_atoms, left.batch_weights) == (6, (3, 0, 3), (4.0, 0.0, 16.0))
    assert left.total_weight == 20.0 and left.batch_bytes[1] == 0 and left.nbytes == whole.nbytes * 2 // 3
    assert_array_equal(left.mean, whole.mean)
    assert without(whole, []).batch_atoms == whole.batch_atoms and without(whole, [0, 1, 2]).total_weight == 0.0
    more = extend(combine(parts[:1]), parts[1:])
    for name in ("n_atoms", "total_weight", "batch_atoms", "batch_bytes", "batch_weights", "checksums", "nbytes"):
        assert getattr(more, name) == getattr(whole, name)
    assert_array_equal(more.quantiles.values, whole.quantiles.values)
    assert extend(None, []) is None and extend(whole, []).batch_atoms == whole.batch_atoms


def test_batches_of_other_kinds_are_refused_by_their_names():
    first = survey_batch(Batch(np.ones((2, 3)), name="week 1"))
    with pytest.raises(DataError, match="week 2 has 2 features, but week 1 has 3; all batches need the same columns"):
        combine([first, survey_batch(Batch(np.ones((2, 2)), name="week 2"))])
    rows = survey_batch(Batch(sparse.csr_array(np.ones((2, 3))), name="week 2"))
    with pytest.raises(DataError, match="week 2 holds sparse counts, but week 1 holds dense rows"):
        combine([first, rows])
    with pytest.raises(DataError, match="week 1 holds dense rows, but week 2 holds sparse counts"):
        combine([rows, first])


def test_columns_of_a_survey_are_called_by_name_where_they_have_one():
    found = survey_batch(Batch(np.ones((2, 12))))
    assert found.called(np.arange(12)) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" and found.called([3]) == "[3]"
    named = replace(found, names=tuple("abcdefghijkl"), levels=(("x",), *(None,) * 11))
    assert named.called([3, 0]) == "['d', 'a']"
    some = named.features(np.array([2, 0]))
    assert some.names == ("c", "a") and some.levels == (None, ("x",)) and some.n_features == 2
    assert not len(some.copies.hashes) and len(found.copies.hashes) == 1


def test_a_checksum_covers_every_array_of_a_batch_and_no_width_of_its_numbers(monkeypatch):
    x = np.arange(12.0).reshape(4, 3)
    batch = Batch(
        x,
        np.ones(4),
        groups=np.array([0, 2, 4]),
        labels=np.arange(4),
        responses=np.array([1.0, np.nan]),
        links=np.arange(4),
    )
    found = {checksum(batch)}
    for name in ("weights", "groups", "labels", "links", "responses"):
        value = getattr(batch, name)
        gone = {name: None, **({"responses": None} if name == "groups" else {})}
        found.add(checksum(replace(batch, **gone)))
        other = np.array([0, 1, 4]) if name == "groups" else value + 1
        found.add(checksum(replace(batch, **{name: other})))
    for changed in (x + 1, x[:, ::-1].copy(), x.T.copy().reshape(4, 3)):
        found.add(checksum(replace(batch, x=changed)))
    rows = sparse.csr_array(x)
    found.add(checksum(Batch(rows)))
    assert len(found) == 15
    wide = sparse.csr_array((rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)), shape=rows.shape)
    assert checksum(Batch(wide)) == checksum(Batch(rows))
    assert checksum(Batch(x).widened(5)) == checksum(Batch(x)) != checksum(Batch(np.pad(x, ((0, 0), (0, 2)))))
    whole = checksum(batch)
    monkeypatch.setattr(survey, "TILE_BYTES", 8)
    assert checksum(batch) == whole and checksum(replace(batch, x=np.asfortranarray(x))) == whole


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_that_occur_several_times_are_counted_over_all_batches(monkeypatch, is_sparse):
    monkeypatch.setattr(survey, "TILE", 8)
    rng = np.random.default_rng(8)
    x = rng.integers(0, 3, (200, 3)).astype(float)
    x[x == 0] *= rng.choice([-1.0, 1.0], (x == 0).sum())  # two zeros of one value
    rows = [sparse.csr_array(part) if is_sparse else part for part in np.array_split(x, 7)]
    found = survey.combine_distinct(survey.NO_ROWS, survey.NO_ROWS)
    for part in rows:
        found = survey.combine_distinct(found, survey.distinct_rows(part))
    kinds, counts = np.unique(x, axis=0, return_counts=True)
    assert len(found.hashes) == len(kinds) and (np.diff(found.hashes.astype(object)) > 0).all()
    assert sorted(found.counts.tolist()) == sorted(counts.tolist())
    if not is_sparse:
        want = {tuple(row): n for row, n in zip(kinds.tolist(), counts.tolist(), strict=True)}
        assert {tuple(row): n for row, n in zip(found.rows.tolist(), found.counts.tolist(), strict=True)} == want
    else:
        assert sorted(found.rows[:, 0].tolist()) == sorted((kinds != 0).sum(axis=1).tolist())
    assert found.counts.dtype == np.int64 and found.hashes.dtype == np.uint64
    again = survey.DistinctRows.from_arrays(found.to_arrays())
    assert_array_equal(again.hashes, found.hashes)
    assert_array_equal(survey.row_hashes(sparse.csr_array(x)), survey.row_hashes(x))
    monkeypatch.setattr(survey, "MOST_ROWS", 5)
    monkeypatch.setattr(survey, "LEAST_ROWS", 5)
    few = survey.NO_ROWS
    for part in rows:
        few = survey.combine_distinct(few, survey.distinct_rows(part))
    assert_array_equal(few.hashes, found.hashes[:5])
    assert_array_equal(few.counts, found.counts[:5])


def test_as_many_rows_and_points_are_kept_as_memory_allows():
    assert [survey._most(d) for d in (0, 1, 64, 65, 512, 10**6)] == [512, 512, 512, 504, 64, 64]
    assert [survey._at_most(64, d) for d in (0, 1, 512, 513, 1024, 10**6)] == [64, 64, 64, 63, 32, 32]


def test_joint_moments_come_back_and_are_those_of_the_columns_asked_for():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(30, 4))
    found = joint_moments(x, None, np.array([0, 1, 3]))
    again = survey.JointMoments.from_arrays(found.to_arrays())
    assert again.count == 30 and again.weight == 30.0 and again.columns.tolist() == [0, 1, 3]
    assert_array_equal(again.covariance, found.covariance)
    some = found.features(np.array([3, 2, 0]))
    assert some.columns.tolist() == [0, 2]
    assert_allclose(some.covariance, np.cov(x[:, [3, 0]].T, bias=True), rtol=1e-12)
    assert_allclose(some.mean, x[:, [3, 0]].mean(axis=0), rtol=1e-12, atol=1e-15)
    assert found.covers(3) and not found.covers(4) and not no_joint_moments(np.arange(3)).covers(3)
    nothing = no_joint_moments(np.array([0, 1, 3]))
    assert combine_joint(found, survey.NO_JOINT) is combine_joint(survey.NO_JOINT, found) is found
    assert combine_joint(nothing, found) is found and combine_joint(survey.NO_JOINT, nothing) is nothing
    assert joint_moments(x, None, np.zeros(0, int)).count == 0


def test_quantiles_of_weighted_points():
    points = survey.Quantiles(
        np.array([[1.0, 2.0, 5.0, 5.0], [0.0, 3.0, 4.0, 9.0]]), np.array([[1.0, 1, 2, 0], [1, 1, 1, 1]])
    )
    for share, want in ((0.0, [1, 0]), (0.25, [1, 0]), (0.26, [2, 3]), (0.5, [2, 3]), (0.75, [5, 4]), (1.0, [5, 9])):
        assert points.at(share).tolist() == want
    mean, variance = points.moments()
    assert_allclose(mean, [13 / 4, 4.0])
    assert_allclose(variance, [(1 + 4 + 50) / 4 - (13 / 4) ** 2, (9 + 16 + 81) / 4 - 16])
    left = points.without(points.values == 5.0)
    assert left.at(1.0).tolist() == [2, 9] and left.features([1]).values.tolist() == [[0.0, 3.0, 4.0, 9.0]]
    assert survey.unknown().features([1]).is_unknown and not points.is_unknown
    empty = survey.quantiles_of(np.zeros((0, 2)), None)
    assert survey.joined(empty, points) is survey.joined(points, empty) is points
    assert survey.joined(points, survey.unknown()).is_unknown


def test_the_grain_is_that_of_values_near_the_bulk_and_of_enough_of_them():
    rng = np.random.default_rng(6)
    whole = rng.integers(0, 40, 300) * 0.25
    for values, grain in (
        (whole, 0.25),
        (whole + 1e6, 0.25),
        (whole.astype(np.float32) * np.float32(1.1), 0.275),
        (np.append(whole, 1e6 + np.pi), 0.25),
        (rng.normal(size=300), 0.0),
        (np.ones(300), 0.0),
        (np.array([0.0, 1.0, 3.0]), 0.0),  # three values that occur once
        (np.array([0.0, 1.0, 3.0] * 2), 1.0),
        (whole + 1e17, 0.0),
        (np.cumsum(rng.integers(1, 4, 300)) * 1e-9 + np.repeat([0.0, 1.0], 150), 0.0),
    ):
        found = grain_of(survey_batch(Batch(np.asarray(values, float)[:, None])))
        assert_allclose(found, grain, rtol=1e-4, err_msg=str(values[:5]))
    columns = np.column_stack([np.ones(300), rng.normal(size=300), whole])
    assert_allclose(grain_of(survey_batch(Batch(columns))), [0.0, 0.0, 0.25], rtol=1e-9)
    assert grain_of(survey_batch(Batch(whole[:, None]), for_priors=False)).tolist() == [0.0]
