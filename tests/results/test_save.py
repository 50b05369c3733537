"""Saved posteriors: what is written comes back, and what is damaged is named."""

from __future__ import annotations

import json
import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

import bnp_dask as bnp
import bnp_dask.training.archive as archive
from bnp_dask.allocation import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.errors import StoreError
from bnp_dask.observation import with_previous
from bnp_dask.observation.interface.describing import describe_cluster, estimates_of
from bnp_dask.training.results import load, save, to_xarray
from tests.results.cases import OBSERVATIONS, atoms, fitted
from tests.results.test_serialize import same


def root_of(path: Path) -> dict:
    return json.loads((path / "zarr.json").read_text())


def reseal(path: Path, change) -> None:
    """Change the description of a saved model and give it a checksum that matches."""
    node = root_of(path)
    body = node["attributes"]["bnp_dask"]
    change(body)
    node["attributes"]["crc32"] = zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    (path / "zarr.json").write_text(json.dumps(node))


@pytest.fixture
def saved(tmp_path):
    save(fitted("gaussian"), tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


def array_folder(path: Path, name: str) -> Path:
    return path / root_of(path)["attributes"]["bnp_dask"]["state"] / name


@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_every_likelihood_comes_back_to_the_bit(kind, tmp_path):
    posterior = fitted(kind, FiniteMixture(gamma=3.0, top=2) if kind == "poisson" else None)
    posterior.save(tmp_path / "m.zarr")
    back = load(tmp_path / "m.zarr")
    same(posterior, back)
    batch = Batch(atoms(kind, seed=5))
    one, two = posterior.model.local_step(posterior, batch), back.model.local_step(back, batch)
    for name, value in one.values.items():
        assert np.array_equal(value, two[name])
    assert back.model.elbo(back, back.summary) == posterior.model.elbo(posterior, posterior.summary)


def test_one_cluster_and_no_summary(tmp_path):
    posterior = fitted("diag", n_clusters=1).light()
    save(posterior, tmp_path / "m.zarr")
    same(posterior, load(tmp_path / "m.zarr"))


def test_a_url_of_an_object_store():
    posterior = fitted("poisson")
    save(posterior, "memory://models/m.zarr")
    save(fitted("diag"), "memory://models/m.zarr")
    same(fitted("diag"), load("memory://models/m.zarr"))
    with pytest.raises(StoreError, match="cannot open .nosuchprotocol"):
        load("nosuchprotocol://x/y")


def test_saving_again_replaces_and_leaves_nothing_behind(saved):
    before = {p.name for p in saved.iterdir()}
    save(fitted("gaussian"), saved)
    assert {p.name for p in saved.iterdir()} == before  # the same model: the same files
    save(fitted("poisson"), saved)
    same(fitted("poisson"), load(saved))
    assert len(list(saved.iterdir())) == 2


def test_large_arrays_are_cut_into_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_CHUNK_BYTES", 64)
    save(fitted("gaussian"), tmp_path / "m.zarr")
    same(fitted("gaussian"), load(tmp_path / "m.zarr"))
    assert zarr.open(array_folder(tmp_path / "m.zarr", "observation.m")).nchunks > 1


def test_the_arrays_are_plain_zarr(saved):
    group = zarr.open_group(saved, mode="r")
    state = group.attrs["bnp_dask"]["state"]
    assert np.array_equal(group[f"{state}/observation.m"][:], load(saved).observation.m)


class Killed(BaseException):
    """Stands for a process that dies: nothing catches it."""


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("at", [*range(1, 12, 3), "root"])
def test_a_kill_while_saving_leaves_the_old_model_or_none(tmp_path, monkeypatch, at, fresh):
    path = tmp_path / "m.zarr"
    old, new = fitted("diag"), fitted("gaussian", seed=3)
    if not fresh:
        save(old, path)
    write, calls = archive._write_array, []

    def dying(*args):
        calls.append(1)
        if len(calls) == at:
            raise Killed
        write(*args)

    def dying_root(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(archive, "_write_array", dying)
        if at == "root":
            patch.setattr(archive, "_write_root", dying_root)
        with pytest.raises(Killed):
            save(new, path)
    if fresh:
        with pytest.raises(StoreError, match="needs a saved model"):
            load(path)
    else:
        same(old, load(path))
    save(new, path)
    same(new, load(path))


# -- damage ---------------------------------------------------------------------------------------------------
def test_a_missing_chunk_is_named(saved):
    (array_folder(saved, "observation.m") / "c" / "0" / "0").unlink()
    with pytest.raises(StoreError, match=r"'observation\.m'.*misses chunk state-\w+/observation\.m/c/0/0"):
        load(saved)


def test_a_missing_array_or_folder_is_named(saved):
    folder = array_folder(saved, "summary.values.N")
    (folder / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"'summary\.values\.N'.*is missing"):
        load(saved)
    for file in sorted(folder.parent.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    folder.parent.rmdir()
    with pytest.raises(StoreError, match="the folder state-"):
        load(saved)


def test_every_flipped_bit_of_a_chunk_is_noticed(saved):
    chunk = array_folder(saved, "observation.B") / "c" / "0" / "0" / "0"
    content, expected = chunk.read_bytes(), fitted("gaussian").observation.B
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        chunk.write_bytes(damaged)
        found, named = None, ""
        try:
            found = load(saved)
        except StoreError as error:
            named = str(error)
        # a bit of the compressor's frame may carry nothing; then the values are right
        assert "'observation.B'" in named or np.array_equal(found.observation.B, expected)
    chunk.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=r"'observation\.B'"):
        load(saved)


def test_a_changed_description_is_noticed(saved):
    text = (saved / "zarr.json").read_text()
    assert '"gamma": 2.0' in text
    (saved / "zarr.json").write_text(text.replace('"gamma": 2.0', '"gamma": 3.0'))
    with pytest.raises(StoreError, match="zarr.json is damaged"):
        load(saved)
    (saved / "zarr.json").write_text(text[:-40])
    with pytest.raises(StoreError, match="not a saved model"):
        load(saved)


def test_a_newer_format_and_other_kinds_are_refused(saved):
    reseal(saved, lambda body: body.update(format=2, software="9.9"))
    with pytest.raises(StoreError, match=r"format 2 by version 9\.9.*reads format 1"):
        load(saved)
    reseal(saved, lambda body: body.update(kind="rows"))
    with pytest.raises(StoreError, match="not a saved posterior"):
        load(saved)
    with pytest.raises(StoreError, match="refusing to overwrite"):
        save(fitted("diag"), saved)


def test_no_code_can_be_named_by_a_file(saved, tmp_path):
    trap = tmp_path / "trap"

    class Evil:
        def __reduce__(self):
            return Path.touch, (trap,)

    def plant(body):
        body["spec"]["fields"]["model"]["fields"]["allocation"] = {
            "$class": "os.system",
            "fields": {"command": f"touch {trap}"},
        }

    reseal(saved, plant)
    with pytest.raises(StoreError, match=r"os\.system.*not one that may be read"):
        load(saved)
    (array_folder(saved, "ids") / "c" / "0").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(StoreError):
        load(saved)
    assert not trap.exists()


def test_a_file_that_points_outside_is_refused(saved):
    reseal(saved, lambda body: body.update(state="../../etc"))
    with pytest.raises(StoreError, match="names no folder"):
        load(saved)


# -- other things in the way ----------------------------------------------------------------------------------
def test_nothing_else_is_overwritten_or_taken_for_a_model(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").write_text("precious")
    store = tmp_path / "data.zarr"
    zarr.create_group(store)
    for path in (file, folder, store):
        with pytest.raises(StoreError, match="refusing to overwrite"):
            save(fitted("diag"), path)
        with pytest.raises(StoreError):
            load(path)
    assert file.read_text() == "precious"
    with pytest.raises(StoreError, match="found nothing"):
        load(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    save(fitted("diag"), empty)
    same(fitted("diag"), load(empty))


# -- labels ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_labelled_arrays(kind):
    posterior = fitted(kind)
    data = posterior.to_xarray()
    assert data.sizes["cluster"] == 3
    assert np.array_equal(data["cluster"], [7, 3, 11])
    assert np.array_equal(data["weight"], posterior.weights)
    assert float(data["count"].sum()) == pytest.approx(60)
    if kind == "gaussian":
        assert data["covariance"].dims == ("cluster", "feature", "feature_2")
        assert np.array_equal(data["mean"].sel(cluster=3), posterior.observation.m[1])
    if kind == "product":
        assert data["2:4.rate"].dims == ("cluster", "2:4.feature")
    assert not {"whiten", "theta", "level", "shift"} & {part for name in data for part in name.split(".")}
    assert all(v.dims[0] == "cluster" for v in data.values())
    assert to_xarray(posterior.light()).attrs["estimate"] == "posterior"


def named(kind):
    """A fitted posterior whose features have names."""
    return replace(fitted(kind), columns=Columns.of(["age", "visits", "height", "weight of all"]))


@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_labelled_arrays_have_the_names_of_columns(kind):
    data = named(kind).to_xarray()
    labels = {str(c): data[c].values.tolist() for c in data.coords if c != "cluster"}
    all_names = ["age", "visits", "height", "weight of all"]
    expected = {
        "gaussian": {"feature": all_names, "feature_2": all_names},
        "zero_mean": {"feature": all_names, "feature_2": all_names},
        "multinomial": {"word": all_names},
        "product": {
            "age,visits.feature": all_names[:2],
            "age,visits.feature_2": all_names[:2],
            "height,weight of all.feature": all_names[2:],
        },
    }
    assert labels == expected.get(kind, {"feature": all_names})
    if kind == "gaussian":
        posterior = named(kind)
        scale = posterior.observation.B[1] / (posterior.observation.nu[1] - 5)
        assert float(data["covariance"].sel(cluster=3, feature="age", feature_2="height")) == scale[0, 2]


def test_labelled_arrays_of_chains_have_transitions():
    x = np.repeat([[0.0, 0.0], [5.0, 5.0]], 30, axis=0) + np.random.default_rng(0).normal(size=(60, 2))
    model = bnp.Model(bnp.HDPHMM(), bnp.AutoRegressiveGaussian())
    rows, offsets = with_previous(x, np.array([0, 60]))
    columns = Columns.of(["x", "y"]).with_previous()
    data = bnp.as_source(rows, groups=offsets, columns=columns)
    with pytest.warns(bnp.ConvergenceWarning):
        result = bnp.train(model, data, init=bnp.ContiguousBlocks(2), schedule=bnp.Memoized(laps=1))
    found = result.posterior.to_xarray()
    assert found["transition"].dims == ("cluster", "cluster_2") and found["start"].dims == ("cluster",)
    np.testing.assert_array_equal(found["transition"], bnp.transitions(result.posterior).matrix)
    assert found["coefficients"].sel(feature="x", lagged="y (t-1)").shape == (2,)


@dataclass(frozen=True, eq=False)
class Untold:
    """Parameters of a likelihood that says nothing about them."""

    rate: np.ndarray
    shape: np.ndarray
    total: float


def test_a_likelihood_that_describes_nothing_shows_all_its_arrays():
    params = Untold(np.ones((3, 4)), np.ones((3, 4, 4)), 2.0)
    observation = SimpleNamespace(sizes={"feature": 4})
    found = estimates_of(observation, params, ("a", "b", "c", "d"))
    assert [(name, [axis.name for axis in value.axes]) for name, value in found.items()] == [
        ("rate", ["feature"]),
        ("shape", ["feature", "feature"]),
    ]
    assert found["rate"].axes[0].labels == ("a", "b", "c", "d")
    assert describe_cluster(observation, params, 0, None).startswith("rate (1, 1, 1, 1); shape 1 .. 1 .. 1")


def test_a_posterior_shows_itself():
    posterior = fitted("diag")
    assert repr(posterior) == "Posterior(DPMixture of DiagGaussian, 3 clusters, 60 atoms)"
    assert "<table" in posterior._repr_html_()


def test_a_run_is_a_tree_of_labelled_arrays(tmp_path):
    pytest.importorskip("xarray")
    x = np.random.default_rng(0).normal(size=(40, 2))
    model, init = bnp.Model(bnp.DPMixture(), bnp.Gaussian()), bnp.RandomExamples(2)
    result = bnp.train(model, x, init=init, schedule=bnp.FullBatch(laps=200), moves=())
    tree = result.to_datatree()
    assert sorted(tree.children) == ["clusters", "history"] and tree.attrs["reason"] == result.reason
    assert tree["clusters"].to_dataset().equals(result.posterior.to_xarray())
    np.testing.assert_array_equal(tree["history"]["elbo"], result.history["elbo"])
    assert "moves" not in tree["history"] and set(tree["history"].dims) == {"row"}
    draws = SimpleNamespace(to_xarray=lambda: tree["history"].to_dataset())
    assert "posterior" in replace(result, draws=draws).to_datatree().children
