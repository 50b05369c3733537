"""Missing entries and comparisons from job files and the command line."""

import numpy as np
import zarr
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.cli import main

JOB = """\
data: {{path: {data}, batch_size: 100}}
model:
  allocation: {{type: DPMixture, gamma: 1.0}}
  observation: {{type: Gaussian, missing: marginalise}}
init: {{type: BregmanKMeans, n_clusters: 2}}
schedule: {{type: Memoized, laps: 40}}
moves: []
store: {store}
"""


def test_a_job_with_missing_entries_trains_imputes_and_is_compared(tmp_path, capsys):
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(200, 3)) + np.repeat([[-6.0], [6.0]], 100, axis=0)
    holed = np.where(rng.random(whole.shape) < 0.1, np.nan, whole)
    np.save(tmp_path / "data.npy", holed)
    (tmp_path / "run.yaml").write_text(JOB.format(data=tmp_path / "data.npy", store=tmp_path / "run"))
    assert main(["train", str(tmp_path / "run.yaml"), "--quiet"]) == 0
    run, out = str(tmp_path / "run"), str(tmp_path / "filled.zarr")
    assert main(["impute", run, str(tmp_path / "data.npy"), out]) == 0
    filled = np.asarray(zarr.open_group(out, mode="r")["x"])
    assert_allclose(filled, bnp.impute(bnp.load(tmp_path / "run" / "posterior.zarr"), holed))
    assert np.isfinite(filled).all()
    capsys.readouterr()
    assert main(["compare", run, run, "--heldout", str(tmp_path / "data.npy")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("DPMixture of Gaussian") == 2
    assert "held-out" in printed
