"""Models that earlier versions saved load in this one, and say what they said then."""

from __future__ import annotations

import json
import tarfile

import numpy as np
import pytest

import bnp_dask as bnp
from tests.faults.old.make import HERE, models, scores

VERSIONS = sorted(p.name.removesuffix(".tar.xz") for p in HERE.glob("*.tar.xz"))


def test_there_are_old_models():
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", models())
def test_a_model_of_an_earlier_version_loads(tmp_path, version, name):
    with tarfile.open(HERE / f"{version}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    then = json.loads((tmp_path / "expected.json").read_text())
    assert then["format"] == 1
    if name not in then["models"]:
        pytest.skip(f"version {version} had no {name}")
    root = json.loads((tmp_path / name / "zarr.json").read_text())["attributes"]["bnp_dask"]
    assert (root["format"], root["software"]) == (1, version)
    posterior = bnp.load(tmp_path / name)
    now = scores(posterior, models()[name][1])
    assert now["ids"] == then["models"][name]["ids"]
    for key in ("weights", "soft"):
        np.testing.assert_allclose(now[key], then["models"][name][key], rtol=1e-9, atol=1e-12)
    posterior.save(tmp_path / "again.zarr")
    assert bnp.load(tmp_path / "again.zarr").ids.tolist() == now["ids"]
