"""``bnp-dask plan``."""

from __future__ import annotations

import json

import numpy as np
import yaml

from bnp_dask.cli import main


def test_a_job_is_planned_and_nothing_is_written(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(900, 2)))
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "x.npy", "batch_size": 300},
        "init": {"type": "RandomExamples", "n_clusters": 3},
        "moves": [],
        "store": "run",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    assert main(["plan", str(tmp_path / "run.yaml"), "--workers", "4", "--memory", "2GB", "--clusters", "3"]) == 0
    assert "4 workers" in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "run.yaml"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_atoms"], found["n_batches"], found["workers"]) == (900, 3, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.yaml", "x.npy"]
