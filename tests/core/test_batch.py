"""Batches: what cutting, widening and writing them leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from bnp_dask.core.batch import (
    Batch,
    batch_from_arrays,
    batch_to_arrays,
    check_rows,
    check_weights,
    concatenate,
)
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


def test_batches_in_one_lack_responses_where_one_had_none():
    one, two = Batch(sparse.csr_array(COUNTS[:2]), responses=np.array([2.0, 0.5])), Batch(sparse.csr_array(COUNTS[2:]))
    assert_array_equal(concatenate([one, two]).responses, [2.0, 0.5, np.nan, np.nan])
    assert_array_equal(concatenate([two, one]).responses, [np.nan, np.nan, 2.0, 0.5])
    assert concatenate([two, two]).responses is None


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


WHOLE = Batch(
    COUNTS,
    WEIGHTS,
    "b",
    np.array([0, 1, 1, 4]),
    ("a", "1", "2", "d"),
    labels=np.array([1, -1, 0, 0]),
    responses=np.array([0.5, np.nan, 2.0]),
    links=np.array([0, 1, 1, -1]),
)
ROWS = replace(WHOLE, x=sparse.csr_array(COUNTS), groups=None, responses=np.array([0.5, np.nan, 2.0, 1.0]))


@pytest.mark.parametrize("batch", [WHOLE, ROWS])
def test_all_that_belongs_to_rows_goes_with_them(batch):
    index = np.array([3, 0])
    taken = batch.take(index)
    assert_array_equal(dense(taken.x), COUNTS[index])
    assert_array_equal(taken.weights, WEIGHTS[index])
    assert (taken.labels.tolist(), taken.links.tolist(), taken.groups) == ([0, 1], [-1, 0], None)
    assert (taken.responses is None) == (batch is WHOLE)
    again = batch_from_arrays(batch_to_arrays(batch), "again")
    for name in ("weights", "groups", "labels", "responses", "links"):
        found, want = getattr(again, name), getattr(batch, name)
        assert (found is None and want is None) or np.array_equal(found, want, equal_nan=True)
    assert again.names is None and again.name == "again"
    plain = replace(batch, weights=None, labels=None, links=None)
    assert plain.take(index).weights is plain.take(index).labels is plain.take(index).links is None
    assert set(batch_to_arrays(Batch(COUNTS))) == {"x"}


def test_responses_belong_to_groups():
    first, rest = WHOLE.rows(0, 1), WHOLE.rows(1, 4)
    assert (first.groups.tolist(), first.responses.tolist()) == ([0, 1], [0.5])
    assert rest.groups.tolist() == [0, 0, 3] and np.array_equal(rest.responses, [np.nan, 2.0], equal_nan=True)
    assert WHOLE.rows(0, 2).groups is WHOLE.rows(0, 2).responses is None
    assert ROWS.rows(2, 4).responses.tolist() == [2.0, 1.0] and ROWS.rows(2, 4).links.tolist() == [1, -1]
    for batch, index in ((WHOLE, [2, 0]), (WHOLE, [0, 1]), (WHOLE, [1, 2]), (ROWS, [2, 0])):
        taken = batch.take_groups(np.array(index))
        assert np.array_equal(taken.responses, batch.responses[index], equal_nan=True)
        lengths = np.diff(batch.group_offsets)[index]
        assert taken.n_groups == 2 and np.diff(taken.group_offsets).tolist() == lengths.tolist()
    assert WHOLE.take_groups(np.array([], int)).n_groups == 0


def test_rows_that_weigh_nothing_take_the_response_of_their_group_with_them():
    weights = np.array([0.0, 1.0, 0.0, 1.0])
    left = replace(WHOLE, weights=weights).counting()
    assert left.weights is None and left.dropped.tolist() == [0, 2] and left.groups.tolist() == [0, 0, 2]
    assert np.array_equal(left.responses, [np.nan, 2.0], equal_nan=True) and left.labels.tolist() == [-1, 0]
    assert left.place(0) == "row 1" and left.place(1) == "row 3"
    assert replace(WHOLE, weights=None).counting().weights is None
    same = replace(WHOLE, weights=np.ones(4))
    assert same.counting() is same
    assert replace(ROWS, weights=weights).counting().responses.tolist()[1:] == [1.0]


def test_several_batches_keep_labels_responses_and_links_apart():
    plain = Batch(COUNTS[:2], name="plain", groups=np.array([0, 2]))
    both = concatenate([WHOLE, plain, WHOLE], "all")
    assert both.name == "all" and both.names == WHOLE.names and both.n_atoms == 10
    assert both.groups.tolist() == [0, 1, 1, 4, 6, 7, 7, 10]
    assert both.labels.tolist() == [1, -1, 0, 0, -1, -1, 1, -1, 0, 0]
    assert both.links.tolist() == [0, 1, 1, -1, -1, -1, 2, 3, 3, -1]
    assert both.weights.tolist() == [*WEIGHTS, 1.0, 1.0, *WEIGHTS]
    want = [0.5, np.nan, 2.0, np.nan, 0.5, np.nan, 2.0]
    assert np.array_equal(both.responses, want, equal_nan=True)
    rows = concatenate([ROWS, Batch(sparse.csr_array(COUNTS))])
    assert rows.is_sparse and rows.responses.tolist()[2:4] == [2.0, 1.0] and np.isnan(rows.responses[4:]).all()
    mixed = concatenate([WHOLE, replace(plain, groups=None)])
    assert mixed.groups is mixed.responses is None
    alone = concatenate([Batch(COUNTS), Batch(COUNTS)])
    assert alone.weights is alone.labels is alone.links is alone.responses is None and alone.name == "sample"


def test_sizes_of_a_batch():
    assert (WHOLE.n_atoms, WHOLE.n_features, WHOLE.n_groups, ROWS.n_groups) == (4, 4, 3, 4)
    assert WHOLE.total_weight == 3.5 and replace(WHOLE, weights=None).total_weight == 4.0
    assert WHOLE.nbytes == COUNTS.nbytes + WEIGHTS.nbytes and Batch(COUNTS).nbytes == COUNTS.nbytes
    assert ROWS.nbytes == sum(part.nbytes for part in (ROWS.x.data, ROWS.x.indices, ROWS.x.indptr, WEIGHTS))
    assert [WHOLE.column(i) for i in range(4)] == ["column 'a'", "column 1", "column 2", "column 'd'"]
    assert Batch(COUNTS).column(2) == "column 2"
    with pytest.raises(DataError, match="b: dense rows without groups; a topic model needs to know which rows"):
        _ = replace(WHOLE, groups=None, responses=None).n_groups


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": np.ones(3)}, r"b: weights have shape \(3,\); needs one per atom, \(4,\)"),
        *(
            ({"groups": groups}, r"needs int64 offsets \(G \+ 1,\) of dense rows, from 0 to 4")
            for groups in (
                np.array([0, 3]), np.array([1, 4]), np.array([0, 3, 2, 4]), np.array([0.0, 4.0]), np.array([], int),
                np.array([[0, 4]]), [0, 4],
            )
        ),
        ({"responses": np.zeros(2)}, r"b: responses of shape \(2,\); needs float64 numbers, .* each of 3 groups"),
        ({"responses": np.array([0.0, np.inf, 0.0])}, "b: responses of shape"),
        ({"responses": np.zeros(3, np.float32)}, "b: responses of shape"),
        ({"links": np.zeros(3, np.int64)}, r"b: links of shape \(3,\); needs int64 .* each of 4 atoms"),
        ({"links": np.zeros(4)}, "b: links of shape"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_rows_is_refused(changes, words):
    with pytest.raises(DataError, match=words):
        replace(WHOLE, **changes)


def test_sparse_counts_have_no_groups_but_their_rows():
    with pytest.raises(DataError, match="Sparse counts have a document in each row"):
        replace(ROWS, groups=np.array([0, 4]))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.array(["a", "b"]), "w: weights have dtype <U1; needs real numbers"),
        (np.ones(3), r"w: weights have shape \(3,\); needs one per atom, \(2,\)"),
        (np.ones((2, 1)), r"w: weights have shape \(2, 1\)"),
        (np.array([1.0, -0.5]), "w: weight of row 1 is -0.5; needs finite weights >= 0"),
        (np.array([np.nan, 1.0]), "w: weight of row 0 is nan"),
        (np.array([1.0, np.inf]), "w: weight of row 1 is inf"),
        (np.array([1, 2**60 + 1]), "w: "),
    ],
)
def test_weights_are_finite_and_not_negative(weights, words):
    with pytest.raises(DataError, match=words):
        check_weights(weights, 2, "w")
    for fine in (np.array([0, 3]), np.array([True, False]), np.array([0.5, 0.0], np.float32)):
        found = check_weights(fine, 2, "w")
        assert found.dtype == np.float64 and found.tolist() == fine.tolist()


def test_empty_groups_at_the_end_stay_with_the_last_rows():
    batch = Batch(np.arange(8.0)[:, None], groups=np.array([0, 2, 2, 5, 8, 8, 8]))
    first, last = batch.rows(0, 5), batch.rows(5, 8)
    assert (first.groups.tolist(), last.groups.tolist()) == ([0, 2, 2, 5], [0, 3, 3, 3])
    assert batch.rows(0, 8).groups.tolist() == batch.groups.tolist()
