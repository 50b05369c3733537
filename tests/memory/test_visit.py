"""A task holds its batch, at most as much again, and the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory.measure import can_measure
from tests.memory.worker import CASES

pytestmark = pytest.mark.skipif(not can_measure(), reason="needs /proc/self/clear_refs")
ROOT = Path(__file__).resolve().parents[2]


QUICK = ("gaussian",)


@pytest.mark.long
@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.long) for c in CASES])
def test_survey_and_visit_stay_under_twice_the_batch_plus_the_model(case):
    run = subprocess.run(
        [sys.executable, "-m", "tests.memory.worker", case], cwd=ROOT, capture_output=True, text=True, check=True
    )
    batch, model, survey, visit = map(int, run.stdout.split())
    assert survey < batch / 2
    assert batch + visit < 2 * batch + model
