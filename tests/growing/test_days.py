"""The vertical whole: ten days of 5 x 5 patches, from one cluster."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.training.growing.versions import load
from tests.growing.parts import begin, gap, grow
from tests.moves.toys import edges


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_days_of_patches_are_eight_clusters_every_day(tmp_path):
    toy = edges()
    days = np.array_split(np.concatenate([batch.x for batch in toy.batches]), 10)
    for number, patches in enumerate(days):
        np.save(tmp_path / f"{number}.npy", patches)
    begin(tmp_path / "run", tmp_path / "0.npy", model=toy.model, laps=50, batch_size=1000, k=1)
    ids = set(load(tmp_path / "run").ids)
    assert len(ids) == 8
    for number in range(1, 10):
        found = grow(tmp_path / "run", tmp_path / f"{number}.npy", batch_size=1000)
        assert set(found.posterior.ids) == ids
        assert found.revisited == 10
    assert found.posterior.summary["N"].sum() == pytest.approx(100_000, rel=1e-12)
    assert gap(tmp_path / "run") < 1e-12
