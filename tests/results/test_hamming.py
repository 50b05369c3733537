"""Hamming distance after alignment, against every alignment there is."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnp_dask.analysis.metrics import hamming_distance, match_labels
from bnp_dask.errors import DataError, SettingError

LABELS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=25)


@settings(deadline=None, max_examples=60)
@given(LABELS)
def test_against_every_alignment(pairs):
    truth, labels = (np.array(x) for x in zip(*pairs, strict=True))
    # places 3 to 6 are what is left over: they are no true label
    one = min(np.mean(np.array(way)[labels] != truth) for way in permutations(range(7), 4))
    assert hamming_distance(truth, labels) == pytest.approx(one)
    many = min(np.mean(np.array(way)[labels] != truth) for way in product(range(3), repeat=4))
    assert hamming_distance(truth, labels, "many-to-one") == pytest.approx(many)
    for rule, best in (("one-to-one", one), ("many-to-one", many)):
        matched = match_labels(truth, labels, rule)
        assert set(matched) == set(labels.tolist())
        assert np.mean([matched[x] != t for x, t in zip(labels.tolist(), truth, strict=True)]) == pytest.approx(best)
    own = [v for v in match_labels(truth, labels).values() if v is not None]
    assert len(own) == len(set(own))


def test_labels_without_an_atom_in_common_do_not_stand_for_one_another():
    assert match_labels([0, 0, 0, 0, 0, 1], [5, 5, 5, 5, 9, 5]) == {5: 0, 9: None}


def test_names_and_labels_that_do_not_count():
    truth = np.array(["walk", "walk", "run", "run", "none", "none"])
    labels = np.array([3, 3, 5, 5, 3, 9])
    assert hamming_distance(truth, labels) == pytest.approx(1 / 6)
    assert hamming_distance(truth, labels, ignore="none") == 0.0
    assert hamming_distance(truth, labels, ignore=["none", "run"]) == 0.0
    assert match_labels(truth, labels) == {3: "walk", 5: "run", 9: "none"}
    assert match_labels(truth, labels, "many-to-one", ignore=["none"]) == {3: "walk", 5: "run", 9: None}
    with pytest.raises(DataError, match="all true labels are among the labels to ignore"):
        hamming_distance(truth, labels, ignore=["none", "run", "walk"])
    for function in (hamming_distance, match_labels):
        with pytest.raises(SettingError, match="rule='best'"):
            function(truth, labels, "best")
        with pytest.raises(DataError, match="shapes"):
            function(truth, labels[:-1])
