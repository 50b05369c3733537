"""Short runs of each kind of model still give the numbers that were recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.train.digests import CLOSE, RECORDED, RUNS, digest


@pytest.mark.parametrize("run", RUNS)
def test_a_short_run_gives_the_numbers_that_were_recorded(run):
    recorded, found = json.loads(RECORDED.read_text())[run], json.loads(json.dumps(digest(run)))
    changed = [name for name in ("clusters", "ids", "moves") if found[name] != recorded[name]]
    for name in ("elbo", "counts"):
        scale = np.abs(recorded[name]).max()
        same = len(found[name]) == len(recorded[name])
        if not (same and np.abs(np.subtract(found[name], recorded[name])).max() <= CLOSE * scale):
            changed.append(name)
    report = "\n".join(f"{name}: recorded {recorded[name]}, found {found[name]}" for name in changed)
    assert not changed, (
        f"{run}: {', '.join(changed)} changed. If that is meant: python tests/train/digests.py\n{report}"
    )


def test_resumed_runs_are_recorded_as_the_uninterrupted_ones():
    recorded = json.loads(RECORDED.read_text())
    for run in RUNS[::2]:
        assert recorded[run] == recorded[run.replace("straight", "resumed")]
