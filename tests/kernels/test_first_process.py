"""A process that compiles kernels has the bits of those that load what it compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_process_that_compiles_has_the_bits_of_those_that_load(tmp_path):
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-m", "tests.kernels.first_process"]
    root = Path(__file__).resolve().parents[2]
    first, later = (
        subprocess.run(program, env=settings, cwd=root, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    )
    assert first.splitlines() == later.splitlines()
