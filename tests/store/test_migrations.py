"""Files of 0.3.0 are read by every later version: the steps between versions of their formats."""

from __future__ import annotations

import json

import pytest

from bnp_dask.errors import StoreError
from bnp_dask.store import manifest, migrations, run
from bnp_dask.store.files import seal, unseal
from bnp_dask.training import results
from bnp_dask.training.growing import incoming

NOW = {
    run.CHECKPOINT_FORMAT: run.VERSION,
    run.RUN_FORMAT: run.VERSION,
    manifest.MANIFEST_FORMAT: manifest.VERSION,
    manifest.FORMAT: manifest.FORMAT_VERSION,
    incoming.FORMAT: incoming.VERSION,
    results.KIND: results.FORMAT,
}
"""All formats and the versions that are written now."""


def test_each_version_of_a_format_has_a_step_to_the_next():
    assert set(migrations.FIRST) == set(NOW)
    wanted = {(kind, version) for kind, first in migrations.FIRST.items() for version in range(first, NOW[kind])}
    assert set(migrations.STEPS) == wanted


@pytest.fixture
def grown(monkeypatch):
    """A format that changed twice since the first release."""
    monkeypatch.setattr(migrations, "FIRST", {**migrations.FIRST, run.RUN_FORMAT: 3})
    monkeypatch.setitem(migrations.STEPS, (run.RUN_FORMAT, 3), lambda old: {**old, "half": old["whole"] / 2})
    monkeypatch.setitem(migrations.STEPS, (run.RUN_FORMAT, 4), lambda old: {**old, "quarter": old["half"] / 2})
    return run.RUN_FORMAT


def test_content_of_an_older_version_takes_every_step(tmp_path, grown):
    path = tmp_path / "RUN.json"
    path.write_bytes(before := seal({"format": grown, "version": 3, "whole": 8.0}))
    assert unseal(path, grown, 5) == {"format": grown, "version": 3, "whole": 8.0, "half": 4.0, "quarter": 2.0}
    assert path.read_bytes() == before
    path.write_bytes(seal({"format": grown, "version": 4, "half": 4.0}))
    assert unseal(path, grown, 5)["quarter"] == 2.0


@pytest.mark.parametrize(("version", "advice"), [(2, "before 0.3.0"), (6, "upgrade with")])
def test_versions_before_the_first_release_and_after_this_one_are_refused(tmp_path, grown, version, advice):
    path = tmp_path / "RUN.json"
    path.write_bytes(seal({"format": grown, "version": version, "whole": 8.0}))
    with pytest.raises(StoreError, match=f"format version {version}.*{advice}"):
        unseal(path, grown, 5)


def test_a_saved_model_of_an_older_version_takes_every_step(tmp_path, monkeypatch):
    body = {"kind": "posterior", "format": 3, "software": "0.3.0", "state": "state-1.zip", "spec": {}}
    body |= {"arrays": {}, "bytes": 0, "heads_crc32": 0}
    place = results.place_of_archive(tmp_path / "model.zarr")
    (tmp_path / "model.zarr").mkdir()
    (tmp_path / "model.zarr" / results.ROOT).write_bytes(results.described(body))
    monkeypatch.setattr(results, "FORMAT", 4)
    monkeypatch.setitem(migrations.STEPS, (results.KIND, 3), lambda old: {**old, "spec": {"new": 1}})
    assert results.read_body(place, "posterior")["spec"] == {"new": 1}
    assert json.loads((tmp_path / "model.zarr" / results.ROOT).read_bytes())["attributes"]["bnp_dask"] == body
