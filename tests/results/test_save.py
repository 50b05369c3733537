"""Saved posteriors: what is written comes back, and what is damaged is named."""

from __future__ import annotations

import json
import math
import os
import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

import bnp_dask as bnp
from bnp_dask.allocation import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.core.encoding import to_spec
from bnp_dask.errors import StoreError
from bnp_dask.observation import with_previous
from bnp_dask.observation.interface import describe_cluster, estimates_of
from bnp_dask.store import place
from bnp_dask.training import results
from bnp_dask.training.results import copy_posterior, load, read_archive, save, to_xarray, write_archive
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


def frame_of(path: Path) -> Path:
    return path / root_of(path)["attributes"]["bnp_dask"]["state"]


def where(path: Path, name: str) -> int:
    """The byte at which the numbers of an array begin."""
    return root_of(path)["attributes"]["bnp_dask"]["arrays"][name]["offset"]


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


def test_the_arrays_are_plain_zarr_in_a_zip(saved):
    state = zarr.open_group(saved, mode="r").attrs["bnp_dask"]["state"]
    group, posterior = zarr.open_group(zarr.storage.ZipStore(saved / state), mode="r"), load(saved)
    assert np.array_equal(group["observation.m"][:], posterior.observation.m)
    _, arrays = to_spec(posterior)
    assert set(group.array_keys()) == set(arrays)
    for name, array in arrays.items():
        found = np.asarray(group[name][...])
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("dtype", ["?", "i1", "<u2", "<i4", "<i8", "<f2", "<f4", "<f8", ">f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_arrays_of_all_types_and_shapes_in_one_frame(tmp_path, dtype, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    write_archive("test", {"a": array, "b": np.asfortranarray(array)}, tmp_path / "x.zarr")
    _, back = read_archive("test", tmp_path / "x.zarr")
    for found in back.values():
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype.newbyteorder("=") and found.flags.writeable
    group = zarr.open_group(zarr.storage.ZipStore(frame_of(tmp_path / "x.zarr")), mode="r")
    np.testing.assert_array_equal(group["a"][...], array)


def test_a_copy_is_the_same_file_and_stays_when_the_first_goes(tmp_path, saved, monkeypatch):
    copy_posterior(saved, tmp_path / "copy.zarr")
    assert frame_of(tmp_path / "copy.zarr").samefile(frame_of(saved))
    copy_posterior(saved, tmp_path / "copy.zarr")
    save(fitted("poisson"), saved)
    same(fitted("gaussian"), load(tmp_path / "copy.zarr"))

    def refused(*args):
        raise OSError("no second names here")

    monkeypatch.setattr("os.link", refused)
    copy_posterior(saved, tmp_path / "copy.zarr")
    assert not frame_of(tmp_path / "copy.zarr").samefile(frame_of(saved))
    same(fitted("poisson"), load(tmp_path / "copy.zarr"))
    assert len(list((tmp_path / "copy.zarr").iterdir())) == 2


class Killed(BaseException):
    """Stands for a process that dies: nothing catches it."""


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("at", [*range(1, 60, 7), "name", "root"])
def test_a_kill_while_saving_leaves_the_old_model_or_none(tmp_path, monkeypatch, at, fresh):
    path = tmp_path / "m.zarr"
    old, new = fitted("diag"), fitted("gaussian", seed=3)
    if not fresh:
        save(old, path)
    write, replace_file, calls = results._Written.write, os.replace, []

    def dying(*args):
        calls.append(1)
        if len(calls) == at:
            raise Killed
        return write(*args)

    def dying_name(one, other):
        if Path(other).name == "zarr.json" if at == "root" else True:
            raise Killed
        replace_file(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(results._Written, "write", dying)
        if at in ("name", "root"):
            patch.setattr("os.replace", dying_name)
            patch.setattr(place, "_unlink_quietly", lambda path: None)
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
def test_a_missing_or_cut_frame_is_named(saved):
    path = frame_of(saved)
    content = path.read_bytes()
    for length in (0, 10, where(saved, "observation.B") + 3, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(StoreError, match=rf"{path.name}.*the file is cut off"):
            load(saved)
    path.write_bytes(content + b"x")
    with pytest.raises(StoreError, match=r"damaged between its arrays"):
        load(saved)
    path.unlink()
    with pytest.raises(StoreError, match=rf"{path.name} with the arrays is missing"):
        load(saved)


def test_every_flipped_bit_of_a_frame_is_noticed(saved):
    path, body = frame_of(saved), root_of(saved)["attributes"]["bnp_dask"]["arrays"]
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        with path.open("r+b") as file:  # a file that is written anew is on the disk before the next line
            file.write(damaged)
        with pytest.raises(StoreError, match="damaged") as error:
            load(saved)
        size = {name: np.dtype(f["dtype"]).itemsize * math.prod(f["shape"]) for name, f in body.items()}
        hit = [n for n, f in body.items() if f["offset"] <= position < f["offset"] + size[n]]
        assert (f"array {hit[0]!r}" if hit else "between its arrays") in str(error.value)


def test_sizes_that_somebody_made_up_take_no_memory(saved):
    for change in (
        {"shape": [2**50]},
        {"shape": [-1]},
        {"dtype": "|O"},
        {"offset": 0},
        {"offset": 2**60},
        {"offset": "x"},
    ):
        reseal(saved, lambda body: body["arrays"]["observation.m"].update(change))  # noqa: B023
        with pytest.raises(StoreError, match="restore it from a copy"):
            load(saved)
        save(fitted("gaussian"), saved)


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
    reseal(saved, lambda body: body.update(format=99, software="9.9"))
    with pytest.raises(StoreError, match=r"format 99 by version 9\.9.*reads format 3"):
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
    for content in (frame_of(saved).read_bytes() + pickle.dumps(Evil()), pickle.dumps(Evil())):
        save(fitted("gaussian"), saved)
        frame_of(saved).write_bytes(content)
        with pytest.raises(StoreError, match="restore it from a copy"):
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
