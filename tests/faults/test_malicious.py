"""Files that want to run code, escape their folder, or slip markup into a page."""

from __future__ import annotations

import ast
import io
import os
import pickle
import re
import tarfile
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.errors import BnpDaskError, DataError, SettingError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.store import RunStore
from bnp_dask.store.files import DamagedError, pack, seal, unsealed
from tests.faults.parts import ROOT, go


class Bomb:
    """What a pickle could do."""

    def __reduce__(self):
        return os.mkdir, (str(Path(os.environ["BNP_BOMB"])),)


@pytest.fixture
def bomb(tmp_path, monkeypatch):
    """A path that appears if code from a file is run."""
    path = tmp_path / "boom"
    monkeypatch.setenv("BNP_BOMB", str(path))
    yield path
    assert not path.exists()


def test_the_package_cannot_unpickle_or_load_yaml_unsafely():
    """No file of the package calls what could run code: pickle, eval, unsafe YAML, np.load of objects."""
    banned = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    # tasks and Dask collections travel to workers as pickles of this session, and never lie in a file
    memory = {"data/sources/dask_collections.py"}
    memory |= {"execute/message.py", "training/planning.py"}  # the forecast measures the size of messages
    memory |= {"testing.py"}
    for path in sorted((ROOT / "bnp_dask").rglob("*.py")):
        if path.relative_to(ROOT / "bnp_dask").as_posix() in memory:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
                assert not banned & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                text = ast.unparse(node) if node.keywords or called in ("np.load", "yaml.load") else called
                assert called not in ("eval", "exec", "os.system", "yaml.unsafe_load", "yaml.full_load"), (path, text)
                assert "allow_pickle=True" not in text, path
                if called == "np.load":
                    assert "allow_pickle=False" in text, path
                if called == "yaml.load":
                    assert "Loader=_Loader" in text, path
                assert "shell=True" not in text, path


# -- job files ------------------------------------------------------------------------------------------------
YAML = {
    "python/object/apply": "model: !!python/object/apply:os.mkdir [{bomb}]\ndata: x.npy\n",
    "python/object/new": "model: !!python/object/new:os.mkdir [{bomb}]\ndata: x.npy\n",
    "python/name": "model: !!python/name:os.mkdir\ndata: x.npy\n",
    "python/module": "data: !!python/module:os\nmodel: {{}}\n",
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_tags_that_run_code(tmp_path, bomb, name):
    (tmp_path / "run.yaml").write_text(YAML[name].format(bomb=bomb))
    with pytest.raises(SettingError, match="not valid YAML"):
        read_job(tmp_path / "run.yaml")


def test_yaml_that_names_other_classes(tmp_path, bomb):
    for kind in ("os.mkdir", "subprocess.Popen", "../DPMixture", "__import__('os')"):
        content = {"model": {"allocation": {"type": kind}, "observation": "Gaussian"}, "data": "x.npy"}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(SettingError, match="there is no"):
            read_job(tmp_path / "run.yaml")


def test_yaml_bombs_and_depth(tmp_path):
    """Aliases that would fill the memory, nesting that would exhaust the stack: refused, quickly."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "laughs.yaml").write_text("\n".join(lines))
    (tmp_path / "deep.yaml").write_text("[" * 20_000)
    for name in ("laughs.yaml", "deep.yaml"):
        with pytest.raises(SettingError) as caught:
            read_job(tmp_path / name)
        assert len(str(caught.value)) < 2000


def test_arrays_of_a_job_file_are_not_unpickled(tmp_path, bomb):
    np.save(tmp_path / "bomb.npy", np.array([Bomb()], object), allow_pickle=True)
    observation = {"type": "DiagGaussian", "m": "bomb.npy"}
    job = {"model": {"allocation": "DPMixture", "observation": observation}, "data": "x.npy"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    with pytest.raises(SettingError, match=r"cannot read 'bomb.npy'"):
        read_job(tmp_path / "run.yaml")


# -- data, models, checkpoints ------------------------------------------------------------------------------------
def test_data_with_pickles_are_refused(tmp_path, bomb):
    np.save(tmp_path / "x.npy", np.array([[Bomb()]], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([[Bomb()]], object))
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Bomb()))
    for name in ("x.npy", "x.npz", "raw.npy", "raw.npz"):
        with pytest.raises(DataError):
            bnp.as_source(str(tmp_path / name))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    go(SerialExecutor(), "stochastic", store=path)
    return path


def test_a_model_names_only_classes_that_are_data(tmp_path, bomb, trained):
    import json
    import shutil
    import zlib

    from bnp_dask.training.results import canonical, load

    for name in ("os.mkdir", "Popen", "LocalCluster", "RunStore", "Location"):
        shutil.rmtree(tmp_path / "m.zarr", ignore_errors=True)
        shutil.copytree(trained / "posterior.zarr", tmp_path / "m.zarr")
        root = tmp_path / "m.zarr" / "zarr.json"
        node = json.loads(root.read_text())
        body = node["attributes"]["bnp_dask"]
        body["spec"] = {"$class": name, "fields": {"path": str(bomb)}}
        node["attributes"]["crc32"] = zlib.crc32(canonical(body))
        root.write_text(json.dumps(node))
        with pytest.raises(StoreError, match="not one that may be read from a file"):
            load(tmp_path / "m.zarr")


@pytest.mark.parametrize("state", ["../../etc", "state-../x", "/etc", "state-a/b", "", None, 3])
def test_a_model_cannot_name_a_folder_elsewhere(tmp_path, trained, state):
    import json
    import shutil
    import zlib

    from bnp_dask.training.results import canonical, load

    shutil.copytree(trained / "posterior.zarr", tmp_path / "m.zarr")
    root = tmp_path / "m.zarr" / "zarr.json"
    node = json.loads(root.read_text())
    body = node["attributes"]["bnp_dask"]
    body["state"] = state
    node["attributes"]["crc32"] = zlib.crc32(canonical(body))
    root.write_text(json.dumps(node))
    with pytest.raises(StoreError, match="names no folder"):
        load(tmp_path / "m.zarr")


@pytest.mark.parametrize("array", ["../../secret", "/etc/passwd", "..%2Fsecret", "a/../../../secret"])
def test_a_model_cannot_name_an_array_elsewhere(tmp_path, trained, array):
    import json
    import shutil
    import zlib

    import zarr

    from bnp_dask.training.results import canonical, load

    secret = zarr.create_array(tmp_path / "secret", shape=(3,), dtype="f8")
    secret[...] = 1.0
    shutil.copytree(trained / "posterior.zarr", tmp_path / "m.zarr")
    root = tmp_path / "m.zarr" / "zarr.json"
    node = json.loads(root.read_text())
    body = node["attributes"]["bnp_dask"]
    body["arrays"] = {array: {"shape": [3], "dtype": "<f8", "crc32": 0}, **body["arrays"]}
    node["attributes"]["crc32"] = zlib.crc32(canonical(body))
    root.write_text(json.dumps(node))
    with pytest.raises(StoreError):
        load(tmp_path / "m.zarr")


def test_checkpoints_hold_no_objects(tmp_path, bomb, trained):
    import shutil

    shutil.copytree(trained, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("*.npz"))
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        array = io.BytesIO()
        np.lib.format.write_array(array, np.array([Bomb()], object), version=(2, 0), allow_pickle=True)
        archive.writestr("array/x.npy", array.getvalue())
        archive.writestr("meta.json", "{}")
    newest.write_bytes(held.getvalue())
    with pytest.warns(UserWarning, match="is damaged"):
        RunStore.view(tmp_path / "run").load()
    with pytest.raises(StoreError, match="Python objects"):
        pack({"x": np.array([Bomb()], object)})


def test_a_checkpoint_with_true_checksums_and_wrong_content(tmp_path, trained):
    """Somebody who can compute a CRC gets an error or a run of numbers, and no code."""
    import shutil
    import zlib

    shutil.copytree(trained, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    for state in ({}, {"edits": [["os.mkdir", {}]]}, {"edits": [["Take", {"ids": "../x"}]]}, [], None):
        packed = pack({"/summaries": np.zeros((0, 3), np.int64)})
        (folder / "00000099.npz").write_bytes(packed)
        facts = {"bytes": len(packed), "crc32": zlib.crc32(packed)}
        content = {"format": "bnp-dask checkpoint", "version": 1, "number": 99, "arrays": facts, "state": state}
        (folder / "00000099.json").write_bytes(seal({**content, "history": {"bytes": 0, "crc32": 0}}))
        with pytest.raises(BnpDaskError) as caught:
            go(SerialExecutor(), "stochastic", store=tmp_path / "run", resume=True)
        assert len(str(caught.value)) > 20


# -- archives -----------------------------------------------------------------------------------------------------
EVIL = ["../outside.txt", "/tmp/outside-of-bnp-dask.txt", "a/../../outside.txt", "C:\\outside.txt", "..\\outside.txt"]


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        for i, name in enumerate([*EVIL, "inside.txt"]):
            archive.writestr(name, f"word{'abcdef'[i]} common words here")


def tarred(path):
    with tarfile.open(path, "w") as archive:
        for i, name in enumerate([*EVIL, "inside.txt"]):
            data = f"word{'abcdef'[i]} common words here".encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "../../etc/passwd")):
            info = tarfile.TarInfo("link")
            info.type, info.linkname = kind, target
            archive.addfile(info)


@pytest.mark.parametrize(("name", "make"), [("e.zip", zipped), ("e.tar", tarred)])
def test_paths_in_archives_write_nothing_outside(tmp_path, monkeypatch, name, make):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    make(inner / name)
    monkeypatch.chdir(inner)
    before = set(tmp_path.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.ingest(str(inner / name), str(inner / "out.zarr"))
    new = set(tmp_path.rglob("*")) - before
    assert all((inner / "out.zarr") in (p, *p.parents) for p in new)
    assert not Path("/tmp/outside-of-bnp-dask.txt").exists()


# -- pages --------------------------------------------------------------------------------------------------------
EVIL_TEXT = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def no_markup(page):
    """Nothing of the evil text survives as markup, and scripts end where they should."""
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "<img src=x" not in page
    assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", outside)
    assert "<script>alert(1)" not in page


def test_the_report_of_a_run_escapes_what_it_shows(tmp_path):
    bits = (np.random.default_rng(0).random((60, 3)) < [[0.9, 0.1, 0.9]]).astype(float)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Bernoulli())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.train(model, bits, init=bnp.BregmanKMeans(2), schedule=bnp.Memoized(laps=2), store=tmp_path / "run")
    bnp.report(tmp_path / "run", tmp_path / "page.html", [f"{EVIL_TEXT}{d}" for d in range(3)])
    page = (tmp_path / "page.html").read_text()
    no_markup(page)
    assert "&lt;script&gt;alert(1)" in page  # it was shown


def test_the_report_of_topics_escapes_words_and_documents(tmp_path):
    words = np.array([EVIL_TEXT, "</script><script>alert(3)</script>", "plain", "&amp;", "]]>"])
    counts = sparse.csr_array(np.random.default_rng(0).poisson(2.0, (60, len(words))).astype(float) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1))
        result = bnp.train(model, counts, init=bnp.RandomExamples(2), schedule=bnp.Memoized(laps=2))
    from dataclasses import replace

    from bnp_dask.core.columns import Words

    posterior = replace(result.posterior, words=Words.of(words.tolist()))
    page = tmp_path / "page.html"
    bnp.report(replace(result, posterior=posterior), page)
    text = page.read_text(encoding="utf-8")
    no_markup(text)
    assert "</script><script>alert(3)" not in text
    no_markup(posterior._repr_html_())


def test_json_that_is_nested_too_deeply_or_says_no_version_is_damage(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = bnp.Model(bnp.FiniteMixture(), bnp.DiagGaussian())
    go_on = {"init": bnp.RandomExamples(2), "schedule": bnp.FullBatch(laps=1), "store": tmp_path / "run"}
    with pytest.warns(bnp.ConvergenceWarning):
        bnp.train(model, x, **go_on)
    (tmp_path / "run" / "posterior.zarr" / "zarr.json").write_bytes(b"[" * 200_000)
    with pytest.raises(StoreError, match="not a saved model"):
        bnp.load(tmp_path / "run")
    deep = b"[" * 200_000
    for content in (deep, b"3", b"{}", b'{"format": 1, "version": 2}', b'{"format": "x", "version": []}', b"nothing"):
        sealed = b'{"crc32":%d,"content":%s}\n' % (zlib.crc32(content), content)
        with pytest.raises(DamagedError, match="is damaged"):
            unsealed(sealed, tmp_path / "RUN.json", "run", 1)
