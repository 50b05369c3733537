"""Freed memory goes back to the system now and then, not at every lap."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from bnp_dask.training import train


def test_pages_go_back_at_most_once_in_some_seconds(monkeypatch):
    times, calls = iter([0.0, 4.9, 5.1, 5.1, 6.0, 10.2, 10.2]), []
    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append))
    kept = train.MemoryTrimmer()
    done = []
    for _ in range(4):
        kept.trim()
        done.append(len(calls))
    assert done == [0, 1, 1, 2]
