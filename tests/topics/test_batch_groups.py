"""Groups of dense atoms stay whole, and are counted once."""

import numpy as np
from numpy.testing import assert_array_equal
from scipy import sparse

from bnp_dask.core.batch import Batch, concatenate


def grouped():
    return Batch(np.arange(10.0)[:, None], np.arange(10) + 1.0, "g", np.array([0, 3, 3, 7, 10], np.int64))


def test_pieces_cut_between_groups_have_each_group_once():
    batch = grouped()
    pieces = [batch.rows(0, 3), batch.rows(3, 7), batch.rows(7, 10)]
    assert [p.groups.tolist() for p in pieces] == [[0, 3], [0, 0, 4], [0, 3]]
    whole = concatenate(pieces)
    assert_array_equal(whole.groups, batch.groups)
    assert_array_equal(whole.x, batch.x)
    assert batch.rows(1, 5).groups is None
    assert batch.take(np.arange(10)).groups is None


def test_groups_can_be_taken_in_any_order():
    batch = grouped()
    some = batch.take_groups(np.array([3, 0, 1]))
    assert some.groups.tolist() == [0, 3, 6, 6]
    assert some.x.ravel().tolist() == [7, 8, 9, 0, 1, 2]
    assert some.weights.tolist() == [8, 9, 10, 1, 2, 3]
    for index in ([0, 1], [1, 2], [1], []):
        part = batch.take_groups(np.array(index, np.int64))
        assert part.n_groups == len(index)
        assert part.n_atoms == sum(np.diff(batch.groups)[index])


def test_rows_of_counts_are_documents():
    batch = Batch(sparse.csr_array(np.eye(4)))
    assert batch.n_groups == 4
    assert batch.take_groups(np.array([2])).x.toarray().tolist() == [[0, 0, 1, 0]]
