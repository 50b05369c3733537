"""Agreement of labels, against scikit-learn and brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnp_dask.analysis.metrics import (
    adjusted_rand_index,
    aligned_accuracy,
    contingency,
    hamming_distance,
    majority_accuracy,
    match_labels,
    normalized_mutual_information,
)
from bnp_dask.errors import DataError

labellings = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n) for _ in range(2)])
)


@given(labellings)
def test_as_scikit_learn(pair):
    metrics = pytest.importorskip("sklearn.metrics")
    truth, labels = pair
    assert adjusted_rand_index(truth, labels) == pytest.approx(metrics.adjusted_rand_score(truth, labels), abs=1e-12)
    expected = metrics.normalized_mutual_info_score(truth, labels)
    assert normalized_mutual_information(truth, labels) == pytest.approx(expected, abs=1e-9)
    table = metrics.cluster.contingency_matrix(truth, labels)
    assert np.array_equal(contingency(truth, labels).toarray(), table)
    assert majority_accuracy(truth, labels) == pytest.approx(table.max(axis=0).sum() / len(truth))


@given(labellings)
def test_alignment_is_the_best_of_all(pair):
    truth, labels = np.array(pair[0]), np.array(pair[1])
    best = max(np.mean(np.array(p)[labels] == truth) for p in permutations(range(5)))
    assert aligned_accuracy(truth, labels) == pytest.approx(best)


def test_names_of_labels_do_not_matter():
    truth, labels = ["cat", "cat", "dog", "emu"], [90, 90, -4, 7]
    for metric in (adjusted_rand_index, normalized_mutual_information, majority_accuracy, aligned_accuracy):
        assert metric(truth, labels) == 1.0
    assert aligned_accuracy([0, 0, 1, 1], [0, 1, 2, 3]) == 0.5
    assert majority_accuracy([0, 0, 1, 1], [0, 1, 2, 3]) == 1.0


def test_independent_labels_agree_by_chance_alone():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 8, 20000), rng.integers(0, 8, 20000)
    assert abs(adjusted_rand_index(a, b)) < 0.01
    assert normalized_mutual_information(a, b) < 0.01


def test_labels_that_cannot_be_compared():
    with pytest.raises(DataError, match="one length"):
        adjusted_rand_index([0, 1], [0, 1, 1])
    with pytest.raises(DataError, match="no labels"):
        aligned_accuracy([], [])
    with pytest.raises(DataError, match="vectors"):
        majority_accuracy([[0], [1]], [[0], [1]])


@pytest.mark.parametrize("lacking", [[0.0, 1.0, np.nan], [0, "a", None], ["a", "b", None], [0, 1, "a"]], ids=str)
@pytest.mark.parametrize("measure", [adjusted_rand_index, hamming_distance, match_labels])
def test_labels_are_there_and_of_one_kind(measure, lacking):
    lacking = np.array(lacking, dtype=None if np.nan in lacking else object)
    for pair in ((lacking, np.arange(3)), (np.arange(3), lacking)):
        with pytest.raises(DataError, match="1 of 3 are missing|cannot be sorted"):
            measure(*pair)


def test_missing_labels_among_texts_are_found_in_lists_and_in_columns():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["a", pandas.NA, "b"], dtype="string")
    for lacking in (["a", float("nan"), "b"], ["a", None, "b"], column, column.astype(object)):
        with pytest.raises(DataError, match="1 of 3 are missing .*of atom 1"):
            adjusted_rand_index(lacking, [0, 1, 2])
    assert adjusted_rand_index(["nan", "b", "b"], [0, 1, 1]) == 1.0, "a word like others"


def test_missing_true_labels_can_be_ignored():
    known = np.array(["a", "b", None, "b"], dtype=object)
    assert hamming_distance(known, [0, 1, 1, 1], ignore=[None]) == 0.0
