"""Batches: what cutting, widening and writing them leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from bnp_dask.core.batch import Batch, batch_from_arrays, batch_to_arrays, check_rows, concatenate
from bnp_dask.errors import DataError

COUNTS = np.array([[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
"""The last row and the last column are all zeros."""

WEIGHTS = np.array([0.5, 1.0, 0.0, 2.0])


def dense(x):
    return x if isinstance(x, np.ndarray) else x.toarray()


BATCHES = [
    Batch(COUNTS, WEIGHTS, "b", np.array([0, 1, 4])),
    Batch(sparse.csr_array(COUNTS), WEIGHTS, "b"),
    Batch(COUNTS, name="b"),
]


@pytest.mark.parametrize("batch", BATCHES, ids=["groups", "sparse", "plain"])
def test_a_batch_comes_back_from_its_arrays(batch):
    links, labels = np.array([0, 0, -1, 1]), np.array([-1, 2, 0, 0])
    responses = None if batch is BATCHES[2] else np.array([0.5, np.nan, 2.0, 1.0])[: batch.n_groups]
    batch = replace(batch, links=links, labels=labels, responses=responses)
    found = batch_from_arrays(batch_to_arrays(batch), "b")
    assert (found.name, found.is_sparse, found.x.shape) == ("b", batch.is_sparse, (4, 4))
    assert_array_equal(dense(found.x), COUNTS)
    for name in ("weights", "groups", "links", "labels", "responses"):
        own, other = getattr(batch, name), getattr(found, name)
        assert (own is None) == (other is None)
        assert own is None or own.tobytes() == other.tobytes()


@pytest.mark.parametrize("batch", BATCHES, ids=["groups", "sparse", "plain"])
def test_a_wider_batch_has_columns_of_zeros_behind(batch):
    assert batch.widened(4) is batch
    found = batch.widened(6)
    assert found.x.shape == (4, 6) and found.read_width == 4
    assert_array_equal(dense(found.x), np.pad(COUNTS, ((0, 0), (0, 2))))
    assert found.weights is batch.weights and found.groups is batch.groups
    assert found.widened(7).read_width == 4


@pytest.mark.parametrize("batch", BATCHES, ids=["groups", "sparse", "plain"])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 4), (0, 4)])
def test_rows_between_two_have_their_weights_and_groups(batch, start, stop):
    found = batch.rows(start, stop)
    assert_array_equal(dense(found.x), COUNTS[start:stop])
    if batch.weights is not None:
        assert_array_equal(found.weights, WEIGHTS[start:stop])
    if batch.groups is not None:
        expected = {(0, 1): [0, 1], (1, 4): [0, 3], (0, 4): [0, 1, 4]}
        assert found.groups.tolist() == expected[start, stop]


def test_batches_in_one_have_weight_one_where_they_had_none():
    one, two = Batch(COUNTS[:1], None, "a", np.array([0, 1])), Batch(COUNTS[1:], WEIGHTS[1:], "b", np.array([0, 2, 3]))
    found = concatenate([one, two], "both")
    assert_array_equal(found.x, COUNTS)
    assert found.weights.tolist() == [1.0, 1.0, 0.0, 2.0]
    assert found.groups.tolist() == [0, 1, 3, 4]
    mixed = concatenate([Batch(sparse.csr_array(COUNTS[:1])), Batch(sparse.csr_array(COUNTS[1:]))], "both")
    assert mixed.is_sparse and mixed.weights is None and mixed.groups is None
    assert_array_equal(mixed.x.toarray(), COUNTS)


def test_rows_without_weight_do_not_count_and_a_group_of_them_is_gone():
    groups = np.array([0, 2, 2, 3, 4])
    found = Batch(COUNTS, np.array([1.0, 3.0, 0.0, 2.0]), "b", groups).counting()
    assert_array_equal(found.x, COUNTS[[0, 1, 3]])
    assert found.weights.tolist() == [1.0, 3.0, 2.0]
    assert found.groups.tolist() == [0, 2, 2, 3]
    assert found.dropped.tolist() == [2]
    plain = Batch(COUNTS, np.array([1.0, 0.0, 1.0, 1.0])).counting()
    assert plain.weights is None and plain.groups is None and plain.n_atoms == 3
    assert BATCHES[2].counting() is BATCHES[2]


@pytest.mark.parametrize("index", [[0, 1], [2, 0], [1], [3, 3], []])
def test_groups_are_taken_whole_and_in_the_order_asked_for(index):
    offsets = np.array([0, 1, 1, 3, 4])
    responses = np.array([4.0, np.nan, 2.0, 1.0])
    found = Batch(COUNTS, WEIGHTS, "b", offsets, responses=responses).take_groups(np.array(index, np.int64))
    rows = [row for g in index for row in range(offsets[g], offsets[g + 1])]
    assert_array_equal(found.x, COUNTS[rows].reshape(-1, 4))
    assert_array_equal(found.weights, WEIGHTS[rows])
    assert np.diff(found.groups).tolist() == [offsets[g + 1] - offsets[g] for g in index]
    assert found.groups[0] == 0
    assert_array_equal(found.responses, responses[index])


def test_a_row_of_sparse_counts_is_a_group():
    found = BATCHES[1].take_groups(np.array([2, 0]))
    assert_array_equal(dense(found.x), COUNTS[[2, 0]])
    assert_array_equal(found.weights, WEIGHTS[[2, 0]])


def test_batches_in_one_have_labels_where_any_has():
    one, two = Batch(COUNTS[:1], labels=np.array([2])), Batch(COUNTS[1:3])
    assert concatenate([one, two]).labels.tolist() == [2, -1, -1]
    assert concatenate([one, one]).labels.tolist() == [2, 2]
    assert concatenate([two, two]).labels is None


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (np.zeros((2, 3), np.float32), r"a ndarray, float32 of shape \(2, 3\);"),
        (np.zeros(4), r"a ndarray, float64 of shape \(4,\);"),
        ([[1.0]], "a list, no NumPy array;"),
    ],
)
def test_rows_of_another_kind_are_refused_and_told(x, found):
    with pytest.raises(DataError, match=f"^b: x is {found} a Batch needs rows"):
        check_rows(x, "b")


def test_columns_are_taken_with_their_names():
    batch = Batch(COUNTS, names=("a", "b", "c", "d"))
    found = batch.columns(np.array([2, 0]))
    assert_array_equal(found.x, COUNTS[:, [2, 0]])
    assert found.names == ("c", "a")
    assert Batch(COUNTS).columns(np.array([1])).names is None


def test_a_row_is_named_by_its_number_as_read_and_its_place_in_its_group():
    x = np.zeros((5, 1))
    assert [Batch(x).place(row) for row in (0, 4)] == ["row 0", "row 4"]
    grouped = Batch(x, groups=np.array([0, 2, 2, 5]))
    assert grouped.place(1) == "row 1 (row 1 of group 0 of this batch)"
    assert grouped.place(2) == "row 2 (row 0 of group 2 of this batch)"
    kept = Batch(x, dropped=np.array([0, 2, 6]))  # 1, 3, 4, 5, 7 are left
    assert [kept.place(row) for row in range(5)] == ["row 1", "row 3", "row 4", "row 5", "row 7"]
