"""A history of a million rows takes little memory, and comes back as it was."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

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
