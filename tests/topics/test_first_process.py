"""A process that compiles the kernels of topics, beside one that loads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.xfail(
    strict=True,
    reason="sums of four kernels may be reassociated; code that was compiled in a process calls copies of them that "
    "were optimised elsewhere than those which loaded code calls: the entropy differs by its last bit",
)
def test_the_process_that_compiles_has_the_bits_of_those_that_load(tmp_path):
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-m", "tests.topics.first_process"]
    root = Path(__file__).resolve().parents[2]
    bits = [subprocess.run(program, env=settings, cwd=root, check=True, capture_output=True).stdout for _ in range(2)]
    assert bits[0] == bits[1]
