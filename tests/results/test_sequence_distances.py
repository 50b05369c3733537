"""Recordings held against labels that are known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.analysis.metrics import hamming_distance, match_labels
from bnp_dask.errors import DataError, SettingError

RNG = np.random.default_rng(0)
TRUTH = [RNG.choice(["sit", "walk", "<run>", "none"], n) for n in (40, 1, 25)]
STATES = [np.where(RNG.random(len(t)) < 0.8, np.char.str_len(t) + (t == "none"), 9) for t in TRUTH]


@pytest.mark.parametrize("rule", ["one-to-one", "many-to-one"])
@pytest.mark.parametrize("ignore", [(), "none"])
def test_against_the_distance_of_all_steps_and_a_count_by_hand(rule, ignore):
    found = bnp.sequence_distances(STATES, TRUTH, rule=rule, ignore=ignore)
    flat, own = np.concatenate(TRUTH), np.concatenate(STATES)
    assert found.distance == pytest.approx(hamming_distance(flat, own, rule, ignore=ignore), abs=1e-15)
    assert found.stands_for == match_labels(flat, own, rule, ignore=ignore)
    assert len(found) == 3 and found.whole.n_segments == sum(row.n_segments for row in found)
    for g, (row, states, truth) in enumerate(zip(found, STATES, TRUTH, strict=True)):
        counted = [(s, t) for s, t in zip(states.tolist(), truth.tolist(), strict=True) if t not in ignore]
        assert (row.sequence, row.n_steps) == (g, len(counted))
        if counted:
            assert row.distance == sum(found.stands_for[s] != t for s, t in counted) / len(counted)
        assert (row.n_states, row.n_labels) == (len(set(states.tolist())), len(set(truth.tolist())))
        assert row.n_segments == 1 + sum(a != b for a, b in zip(states[:-1], states[1:], strict=True))
        assert row.n_label_segments == 1 + sum(a != b for a, b in zip(truth[:-1], truth[1:], strict=True))


def test_every_form_of_labels_gives_the_same(tmp_path):
    flat, own = np.concatenate(TRUTH), np.concatenate(STATES)
    found = bnp.sequence_distances(STATES, TRUTH)
    ids = np.repeat(["a", "b", "c"], [len(t) for t in TRUTH])
    pd.DataFrame({"sequence": ids, "state": own}).to_parquet(tmp_path / "states.parquet")
    forms = [
        ((STATES, flat), {}),
        ((own, TRUTH), {}),
        ((own, flat, [0, 40, 41, 66]), {}),
        ((own, flat), {"sequences": TRUTH}),
        ((str(tmp_path / "states.parquet"), flat), {}),
        ((tmp_path / "states.parquet", TRUTH), {}),
    ]
    for given, named in forms:
        assert bnp.sequence_distances(*given, **named) == found
    assert len(bnp.sequence_distances(own, flat)) == 1


def test_the_table_shows_itself():
    found = bnp.sequence_distances(
        [[0, 0, 1], [1, 1]], [["a", "a", "b"], ["no", "no"]], ignore="no", names=["<x>", "y"]
    )
    assert str(found).splitlines() == [
        "sequence  steps  distance  states  labels  segments  of labels",
        "<x>           3     0.000       2       2         2          2",
        "y             0         -       1       1         1          1",
        "all           3     0.000       2       3         3          3",
    ]
    assert math.isnan(found[1].distance)
    page = found._repr_html_()
    assert "&lt;x&gt;" in page and "<x>" not in page and page.count('scope="row"') == 3
    assert found.to_pandas().loc["<x>", "distance"] == 0.0


def test_what_cannot_be_compared():
    with pytest.raises(DataError, match="5 labels"):
        bnp.sequence_distances([[0, 0, 1], [1, 1]], [1, 2])
    with pytest.raises(DataError, match="other lengths"):
        bnp.sequence_distances([[0, 0, 1], [1, 1]], [[1, 2], [3, 3, 3]])
    with pytest.raises(DataError, match="3 names for 2"):
        bnp.sequence_distances([[0, 0, 1], [1, 1]], [[1, 2, 2], [3, 3]], names="abc")
    with pytest.raises(SettingError, match="rule='best'"):
        bnp.sequence_distances([0, 1], [0, 1], rule="best")
    for lacking in ([np.nan, 1.0], np.array([None, "a"], dtype=object)):
        for pair in (([0, 1], lacking), (lacking, [0, 1])):
            with pytest.raises(DataError, match="1 of 2 are missing"):
                bnp.sequence_distances(*pair)
    with pytest.raises(DataError, match="a csr_array; needs an array"):
        bnp.sequence_distances(sparse.csr_array(np.eye(2)), [0, 1])
