"""Bars in one pass (Tank, Foti & Fox 2015, section 4.1)."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import bnp_dask as bnp

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "stream_bars.py"))


@pytest.mark.parametrize("seed", [0, 1])
def test_bars_are_recovered_in_one_pass_and_uniting_leaves_no_other(seed):
    truth, (x, _) = EXAMPLE["bars"](), EXAMPLE["images"](seed)
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.5, 1.0), bnp.Multinomial(0.5))
    for merge in (None, 1.0):
        posterior = bnp.train(model, x, schedule=bnp.Filter(merge=merge), batch_size=20).posterior
        phi = posterior.observation.lam / posterior.observation.lam.sum(axis=1, keepdims=True)
        distance = 0.5 * np.abs(phi[:, None] - truth[None]).sum(axis=2)
        assert distance.min(axis=0).max() < 0.3
    assert posterior.n_clusters <= len(truth) + 1
