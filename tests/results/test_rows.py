"""A history of a million rows takes little memory, and comes back as it was."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from bnp_dask.training import history
from bnp_dask.training.history import BLOCK, Rows
from bnp_dask.training.results import History


def row(i):
    """A row as runs have them."""
    rng = np.random.default_rng(i)
    moves = [{"kind": "merge", "targets": [i, i + 1], "gain": float(rng.normal()), "accepted": False, "why": "no"}]
    terms = dict(zip(["elbo", "data", "entropy"], rng.normal(size=3).tolist()))
    return {
        "step": i,
        "lap": i // 9,
        "batch": None,
        **terms,
        "atoms": np.float64(i),
        "moves": moves if i % 9 == 8 else [],
    }


@pytest.mark.first_case
@pytest.mark.parametrize("n", [0, 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, 3 * BLOCK + 7])
def test_rows_come_back(n):
    rows = [row(i) for i in range(n)]
    packed = Rows(rows)
    assert len(packed) == n
    assert list(packed) == rows == packed[:]
    assert packed[-3:] == rows[-3:] and packed[1:n:7] == rows[1:n:7]
    for i in range(-n, n, 97):
        assert packed[i] == rows[i]
    for i in (n, -n - 1):
        with pytest.raises(IndexError):
            packed[i]
    history = History(packed)
    assert len(history) == n and history == History(rows) == History.from_json(history.to_json())
    if n:
        np.testing.assert_array_equal(history["elbo"], [r["elbo"] for r in rows])
        assert history.moves() == History(rows).moves()


def test_numbers_that_json_does_not_know():
    packed = Rows([{"elbo": -np.inf, "gain": np.nan, "n": np.int64(3), "x": np.arange(2)}] * 2 * BLOCK)
    assert packed[0]["elbo"] == -np.inf and np.isnan(packed[0]["gain"]) and packed[0]["n"] == 3
    assert packed[0]["x"] == [0, 1]


@pytest.mark.long
def test_old_rows_take_little():
    tracemalloc.start()
    rows = Rows(row(i) for i in range(20 * BLOCK))
    held, _ = tracemalloc.get_traced_memory()
    list(rows)
    tracemalloc.stop()
    assert held < 300 * 20 * BLOCK


def test_rows_are_packed_block_by_block_and_found_at_every_place(monkeypatch):
    monkeypatch.setattr(history, "BLOCK", 3)
    rows, given = Rows(), [{"step": i, "x": np.arange(2) + i} for i in range(17)]
    for n, one in enumerate(given, start=1):
        rows.append(one)
        assert (
            len(rows) == n
            and len(rows._packed) == max(0, (n - 3) // 3)
            and 3 * len(rows._packed) + len(rows._last) == n
        )
        assert [r["step"] for r in rows] == list(range(n))
        for i in (0, n // 2, n - 1, -1, -n):
            assert rows[i]["step"] == given[:n][i]["step"]
    assert [rows[i]["step"] for i in (1, 10, 2, 16, 7)] == [1, 10, 2, 16, 7]  # from one block to another and back
    assert [r["step"] for r in rows[14:2:-3]] == [14, 11, 8, 5]
    assert isinstance(rows[-3]["x"], np.ndarray) and list(rows[0]["x"]) == [0, 1]
    for wrong in (17, -18):
        with pytest.raises(IndexError):
            rows[wrong]


def test_columns_are_numbers_where_all_entries_are_and_objects_otherwise():
    found = History([{"a": 1, "b": 0.5, "c": "x"}, {"a": 2, "c": 3, "d": 7, "e": [1, 2]}, {"a": 3, "b": 0.0, "e": [3]}])
    assert found.columns == ["a", "b", "c", "d", "e"]
    assert found["a"].dtype == np.int64 and found["a"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(found["b"], [0.5, np.nan, 0.0])
    np.testing.assert_array_equal(found["d"], [np.nan, 7.0, np.nan])
    assert found["c"].dtype == object and found["c"].tolist() == ["x", 3, None]
    assert [None if v is None else list(v) for v in found["e"]] == [None, [1, 2], [3]]
    assert "d" in found and "f" not in found and found[1] in found
    texts = History([{"c": "x"}, {"c": 3}])["c"]
    assert texts.dtype == object and texts.tolist() == ["x", 3]
    with pytest.raises(KeyError, match="it has a, b, c, d, e"):
        found["f"]


def test_moves_of_a_history_say_in_which_lap_they_were_made():
    rows = [
        {"lap": 1, "moves": [{"kind": "merge"}]},
        {"lap": 2},
        {"lap": 3, "moves": [{"kind": "birth"}, {"kind": "sort"}]},
    ]
    found = History(rows)
    assert found.moves() == [{"lap": 1, "kind": "merge"}, {"lap": 3, "kind": "birth"}, {"lap": 3, "kind": "sort"}]
    assert History.from_json(found.to_json() + "\n") == found != History(rows[:2])
