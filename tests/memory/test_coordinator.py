"""The process that trains does not grow with the number of batches."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from bnp_dask.core.survey import LEAST_POINTS
from tests.memory.measure import MB, can_measure

pytestmark = pytest.mark.skipif(not can_measure(), reason="needs /proc/self/clear_refs")
ROOT = Path(__file__).resolve().parents[2]

ROW = 2048
"""Bytes that a batch may cost: a row of the history at each visit, and a few numbers in tables."""

IN_MEMORY = 256 * 10**6
"""Bytes of summaries that a run without a directory holds before it writes them to a temporary one."""

QUANTILES = 4 * 16 * 1500 * LEAST_POINTS
"""Bytes each time that the number of batches doubles: points of 1,500 features, copied once to be written, and what the
allocator keeps of smaller ones."""


def run(n_batches: int, store: str) -> tuple[int, int]:
    """Highest memory beside the baseline, and bytes of the summaries of all batches."""
    command = [sys.executable, "-m", "tests.memory.coordinator", str(n_batches), store]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    high, _, summaries = map(int, done.stdout.split())
    return high, summaries


@pytest.mark.long
def test_with_a_run_directory(tmp_path):
    few, _ = run(50, str(tmp_path / "few"))
    many, summaries = run(1000, str(tmp_path / "many"))
    assert summaries > 200 * MB
    assert many < few + 950 * 2 * ROW + math.log2(1000 / 50) * QUANTILES + 4 * MB


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_one():
    high, summaries = run(2000, "-")
    assert summaries > 1.5 * IN_MEMORY
    assert high < IN_MEMORY + 2000 * 2 * ROW + 24 * MB


def held(tmp_path, n_docs: int, laps: int) -> tuple[list[int], list[int]]:
    """Bytes that a run of topics with moves holds after each lap, and at most in each."""
    command = [sys.executable, "-m", "tests.memory.long", str(n_docs), str(laps), "1", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == list(range(1, laps + 1))
    return [row[2] for row in rows], [row[3] for row in rows]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_hundred_laps_of_topics_hold_what_twenty_did(tmp_path):
    """Messages that Dask remembers made it 0.25 MB a lap, of documents that take 0.2 MB."""
    now, most = held(tmp_path, 400, 100)
    assert max(now[-10:]) < max(now[10:20]) + 3 * MB
    assert max(most[-10:]) < max(most[10:20]) + 4 * MB


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_laps_of_200_000_documents_hold_what_twenty_did(tmp_path):
    now, most = held(tmp_path, 200_000, 100)
    assert max(now[-10:]) < 1.05 * max(now[10:20])
    assert max(most) < 400 * MB
