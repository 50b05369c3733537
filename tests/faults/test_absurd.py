"""Whatever is given: a right answer, or one of the package's errors that names the thing; in processes of their own.

``python -m tests.faults.absurd --examples 0`` runs all cases, some 20,000 in seven minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.faults.parts import ROOT


def battery(folder, *arguments, seconds=280):
    """Counts of outcomes, and the lines of those that are neither a refusal nor right."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.absurd", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"the process ended with {done.returncode} after {lines[-1:]}: {done.stderr[-2000:]}"
    counts = {found: int(n) for found, n in re.findall(r"'(\w+)': (\d+)", lines[-1])}
    return counts, [line for line in lines if line.startswith(("wrong |", "raw |", "hangs |"))]


@pytest.mark.long
def test_a_sample_of_bad_inputs_and_some_that_hypothesis_draws(tmp_path):
    counts, bad = battery(tmp_path, "--examples", 100, "--drawn", 25)
    assert not bad, bad[:10]
    assert counts["refused"] > 75
    assert counts["right"] > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_all_bad_inputs(tmp_path):
    counts, bad = battery(tmp_path, "--examples", 0, "--drawn", 3000, seconds=3500)
    assert not bad, bad[:10]
    assert counts["refused"] > 15_000
    assert counts["right"] > 2_500
