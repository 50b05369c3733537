"""Run directories, job files and models of a stranger: none names a place that runs code or changes files elsewhere."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import fsspec
import numpy as np
import pytest
import yaml
from distributed.protocol import dumps
from distributed.protocol.serialize import ToPickle
from distributed.protocol.utils import pack_frames_prelude

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.cli.jobfile import read_job, to_text
from bnp_dask.core.columns import Roles
from bnp_dask.core.location import Location
from bnp_dask.core.registry import REGISTRY
from bnp_dask.errors import BnpDaskError, DataError, ExecutionError, SettingError, StoreError, redacted
from bnp_dask.inputs.settings import PROTOCOLS, name_in_file, place_in_file
from bnp_dask.store import Manifest
from bnp_dask.store.checkpoint import Part
from bnp_dask.store.files import seal, unseal
from bnp_dask.store.run import RUN_FORMAT, VERSION
from tests.faults.parts import ROOT, atoms

JOB = {
    "model": {"allocation": "FiniteMixture", "observation": "DiagGaussian"},
    "data": {"path": "x.npy", "batch_size": 50},
    "init": {"type": "BregmanKMeans", "n_clusters": 2},
    "schedule": {"type": "Memoized", "laps": 30},
    "store": "run",
}


class Mark:
    """A pickle that makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Impostor:
    """What answers everybody who connects with a pickle, as a scheduler may."""

    def __init__(self, mark: Path) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        frames = dumps({"type": ToPickle(Mark(mark))})
        prelude = pack_frames_prelude(frames)
        body = prelude + b"".join(bytes(frame) for frame in frames)
        self._answer = struct.pack("Q", len(body)) + body
        self.callers = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            self.callers += 1
            with caller:
                caller.settimeout(5)
                caller.sendall(self._answer)
                try:
                    while caller.recv(4096):
                        pass
                except OSError:
                    pass

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def impostor(tmp_path) -> Iterator[Impostor]:
    found = Impostor(tmp_path / "boom")
    yield found
    found.close()
    assert not (tmp_path / "boom").exists()
    assert found.callers == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a job file, its data and its run."""
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "x.npy", atoms(100, 2, 2))
    (folder / "run.yaml").write_text(yaml.safe_dump(JOB))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = read_job(folder / "run.yaml")
        # by its path, as in Python: the run directory says then how the data can be opened again
        data, store = str(folder / "x.npy"), folder / "run"
        bnp.train(job.model, data, init=job.init, schedule=job.schedule, batch_size=50, store=store, job=to_text(job))
    return folder


@pytest.fixture
def theirs(trained, tmp_path, monkeypatch) -> Path:
    """A run directory that came from elsewhere, in a folder that is the working directory."""
    for name in ("x.npy", "run.yaml"):
        shutil.copy(trained / name, tmp_path / name)
    shutil.copytree(trained / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def rewrite_job(run: Path, **changes: object) -> None:
    file = run / "job.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "folder": str(run.parent), **changes}))


def rewrite_settings(run: Path, **changes: object) -> None:
    """What the run directory says of how its data were opened, with right checksums."""
    content = unseal(run / "RUN.json", RUN_FORMAT, VERSION)
    content["settings"]["opened"] |= changes
    (run / "RUN.json").write_bytes(seal({k: v for k, v in content.items() if k != "crc32"}))


def error_of(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    found = capsys.readouterr().err
    assert "Traceback" not in found
    return found


# -- schedulers ---------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_resuming_a_run_of_a_stranger_runs_nothing_that_its_scheduler_answers(theirs, impostor):
    rewrite_job(theirs, client={"scheduler": impostor.address})
    command = [sys.executable, "-m", "bnp_dask", "resume", str(theirs)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=settings)
    assert done.returncode == 2
    assert f"--scheduler {impostor.address}" in done.stderr and "DASK_SCHEDULER_ADDRESS" in done.stderr
    assert "only a file names it" in done.stderr and "--workers N" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("by", ["address", "file"])
@pytest.mark.parametrize("words", [["resume", "run"], ["train", "run.yaml", "--store", "other"]])
def test_a_file_alone_names_no_scheduler(theirs, impostor, capsys, by, words):
    (theirs / "scheduler.json").write_text(json.dumps({"address": impostor.address}))
    client = {"scheduler": impostor.address} if by == "address" else {"scheduler_file": str(theirs / "scheduler.json")}
    rewrite_job(theirs, client=client)
    Path("run.yaml").write_text(yaml.safe_dump({**JOB, "client": client}))
    assert "only a file names it" in error_of(capsys, *words)
    with dask.config.set({"scheduler-address": "tcp://10.0.0.1:8786"}):
        assert "DASK_SCHEDULER_ADDRESS names 'tcp://10.0.0.1:8786'" in error_of(capsys, *words)


def test_a_scheduler_that_the_environment_names_too_is_asked(theirs, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    rewrite_job(theirs, client={"scheduler": address})
    asked = []
    monkeypatch.setattr("bnp_dask.execute.require_scheduler", lambda place, _: asked.append(place) or refuse())

    def refuse() -> None:
        raise ExecutionError("nobody there")

    with dask.config.set({"scheduler-address": address}):
        assert "nobody there" in error_of(capsys, "resume", "run")
    assert "nobody there" in error_of(capsys, "resume", "run", "--scheduler", address)
    assert asked == [address] * 2


# -- data -----------------------------------------------------------------------------------------------------------
EVIL = [
    "reference://x::evil.json",
    "reference://",
    "REFERENCE://x",
    "simplecache::s3://bucket/x.npy",
    "zip://x.npy::x.zip",
    "zip://x.npy::reference://::evil.json",
    "dask://x.npy",
    "github://me:it@main/x.npy",
    "sftp://host/x.npy",
    "jupyter://host/x.npy",
    "no-such-thing://x.npy",
]


@pytest.fixture
def no_file_system(monkeypatch) -> Iterator[None]:
    """Nothing but local paths is opened; what refuses the others would be taken for an error of storage."""
    opened = []

    def only_local(function):
        def ask(place, *words, **more):
            if "://" in str(place) or "::" in str(place):
                opened.append(place)
                raise FileNotFoundError(place)
            return function(place, *words, **more)

        return ask

    monkeypatch.setattr(fsspec.core, "url_to_fs", only_local(fsspec.core.url_to_fs))
    monkeypatch.setattr(fsspec, "open", only_local(fsspec.open))
    yield
    assert opened == []


@pytest.mark.parametrize("place", EVIL)
def test_a_job_file_names_no_place_that_may_run_code(theirs, no_file_system, capsys, place):
    rewrite_job(theirs, data=place)
    assert "is not opened because a file names it" in error_of(capsys, "resume", "run")
    posterior = {"type": "FromPosterior", "posterior": place}
    for changes in (
        {"data": place},
        {"data": {"path": "x.npy", "weights": f"{place}.npy"}},
        {"data": {"path": "x.npy", "groups": f"{place}.npy"}},
        {"init": posterior},
        {"store": place},
        {"folder": place},
    ):
        Path("run.yaml").write_text(yaml.safe_dump({**JOB, **changes}))
        with pytest.raises(SettingError, match="because a file names it"):
            read_job("run.yaml")


@pytest.mark.parametrize("name", ["place", "weights"])
@pytest.mark.parametrize("place", EVIL)
def test_a_run_directory_names_no_place_that_may_run_code(theirs, no_file_system, name, place):
    rewrite_settings(theirs, **{name: f"{place}.npy" if name == "weights" else place})
    np.save("new.npy", atoms(50, 2, 2, seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.update(theirs, "new.npy")


def test_every_protocol_that_a_file_may_name_passes_and_local_paths_do():
    for place in ["x.npy", "/a/b*.csv", "~/x", *(f"{protocol}://host/x.npy" for protocol in PROTOCOLS)]:
        assert place_in_file(place, "data") == place


def test_a_caller_may_name_what_a_file_may_not(tmp_path):
    np.save(tmp_path / "x.npy", atoms(40, 2, 2))
    source = bnp.as_source(f"simplecache::file://{tmp_path / 'x.npy'}")
    assert source.reader(0)().x.shape == (40, 2)


def test_a_web_server_leads_to_no_file_of_this_machine(tmp_path):
    pytest.importorskip("aiohttp")
    np.save(tmp_path / "secret.npy", atoms(40, 2, 2))
    with web_server(302, Location=f"file://{tmp_path / 'secret.npy'}") as host, pytest.raises(DataError):
        bnp.as_source(f"http://{host}/x.npy").reader(0)()


def test_a_model_names_columns_and_no_files():
    for role in ("weights", "groups", "order"):
        with pytest.raises(DataError, match="is no column with a role, but a file"):
            Roles(**{role: "reference://x::evil.npy"})


@pytest.mark.parametrize("codecs", [{"filters": [{"id": "pickle"}]}, {"compressor": {"id": "pickle"}}])
@pytest.mark.parametrize("dtype", ["<f8", "|O"])
def test_chunks_that_are_pickles_are_not_opened(tmp_path, codecs, dtype):
    folder = tmp_path / "x.zarr"
    folder.mkdir()
    meta = {"zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": dtype, "fill_value": 0, "order": "C"}
    (folder / ".zarray").write_text(json.dumps({**meta, "filters": None, "compressor": None, **codecs}))
    (folder / "0.0").write_bytes(pickle.dumps(Mark(tmp_path / "boom")))
    with pytest.raises(DataError):
        bnp.as_source(str(folder)).reader(0)()
    assert not (tmp_path / "boom").exists()


# -- files elsewhere ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", "a\\b", "C:x", "x\0", None, 3])
def test_a_checkpoint_names_no_file_elsewhere(tmp_path, name):
    for use in (
        lambda: name_in_file(name, "here"),
        lambda: Part(name, 3, 4),
        lambda: Manifest.of_key(tmp_path, name),
    ):
        with pytest.raises(SettingError, match="is no name of a file in this folder"):
            use()


@pytest.mark.parametrize(
    "link",
    [
        "LOCK",
        "history.jsonl",
        "checkpoints",
        "summaries",
        "posterior.zarr",
        "manifest",
        "versions",
        "checkpoints/1.npz",
    ],
)
def test_nothing_is_written_through_links_out_of_a_run_directory(theirs, tmp_path, capsys, link):
    outside = tmp_path / "mine"
    outside.mkdir()
    (outside / "file").write_text("precious")
    path = theirs / link
    is_file = "." in link.replace(".zarr", "") or link == "LOCK"
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(outside / "file" if is_file else outside)
    for words in (["resume", "run"], ["train", "run.yaml", "--resume"], ["update", "run", "x.npy"]):
        assert f"{link} is a link to" in error_of(capsys, *words), words
    assert [p.name for p in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "precious"


def test_a_run_directory_may_be_a_link_and_hold_links_to_itself(theirs, tmp_path):
    (theirs / "also.yaml").symlink_to("job.yaml")
    (tmp_path / "link").symlink_to(theirs)
    assert main(["resume", "link", "--quiet"]) == 0


# -- modules --------------------------------------------------------------------------------------------------------
def test_a_module_in_the_working_directory_is_not_imported_because_a_file_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "evil_guest.py").write_text("import os; os.mkdir('boom')")
    info = tmp_path / "evil_guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil-guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bnp_dask.models]\nevil = evil_guest\n")
    with pytest.raises(StoreError, match="evil_guest"):
        REGISTRY.find("evil_guest.Model")
    assert not (tmp_path / "boom").exists()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # the caller says that what lies here is installed
    with pytest.raises(StoreError, match="evil_guest"):
        REGISTRY.find("evil_guest.Model")
    assert (tmp_path / "boom").exists()


# -- secrets --------------------------------------------------------------------------------------------------------
SECRETS = ("hunter2", "0a1b2c3d")
SIGNED = "https://me:hunter2@host/x.npy?part=3&X-Amz-Date=20261126&X-Amz-Credential=me&X-Amz-Signature=0a1b2c3d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SIGNED, "https://***@host/x.npy?part=3&***"),
        ("s3://key:hunter2@bucket/x", "s3://***@bucket/x"),
        ("https://hunter2token@host/x", "https://***@host/x"),
        ("at https://a.blob.net/c/x?sv=1&se=2&sr=b&sp=r&sig=0a1b2c3d%3D: gone", "at https://a.blob.net/c/x?*** gone"),
        ("(url='https://h/x?access_token=0a1b2c3d&v=2')", "(url='https://h/x?***&v=2')"),
        ("{'Authorization': 'Bearer 0a1b2c3d'}", "{'Authorization': 'Bearer ***'}"),
        ("X-Api-Key: 0a1b2c3d", "X-Api-Key: ***"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("https://host/x.npy?version=3", "https://host/x.npy?version=3"),
        ("tcp://10.0.0.1:8786, runs/a@3, key=4", "tcp://10.0.0.1:8786, runs/a@3, key=4"),
        ('{"authorization": 0.25, "cookie": 0.5}', '{"authorization": 0.25, "cookie": 0.5}'),
    ],
)
def test_texts_lose_passwords_signatures_and_headers_and_nothing_else(text, shown):
    assert redacted(text) == shown
    assert str(BnpDaskError(text)) == shown
    assert ExecutionError(text, "again").what == shown


@contextmanager
def web_server(code: int, **headers: str) -> Iterator[str]:
    """A web server that gives one answer to everything."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_errors_of_remote_data_tell_no_secrets():
    pytest.importorskip("aiohttp")
    options = {"client_kwargs": {"headers": {"X-Mine": "hunter2-in-a-header"}}}
    with web_server(403) as host:
        url = SIGNED.replace("https", "http").replace("host", host)
        location = Location.of(url, options, "data")
        for use in (
            lambda: bnp.as_source(url, storage_options=options),
            lambda: bnp.load(url),
            lambda: location.open().read(),
            location.size,
            location.exists,
            location.is_dir,
            lambda: location.files((".npy",)),
        ):
            try:
                use()
            except Exception as error:
                told = "".join(traceback.format_exception(error))
                assert not any(secret in told.replace(SIGNED_LINES, "") for secret in SECRETS), told
        assert not any(secret in repr(location) + location.name for secret in SECRETS)


SIGNED_LINES = 'SIGNED.replace("https", "http")'


def test_errors_while_a_remote_file_is_read_tell_no_secrets(monkeypatch):
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError(f"403 for {SIGNED}")

        def seekable(self) -> bool:
            return False

    class Opened:
        def open(self) -> Broken:
            return Broken()

    monkeypatch.setattr(fsspec, "open", lambda *words, **more: Opened())
    monkeypatch.setattr(Location, "_copy", lambda location: None)  # of a server that gives parts
    with pytest.raises(DataError, match="403") as caught, Location(SIGNED).open() as file:
        file.read(10)
    told = "".join(traceback.format_exception(caught.value))
    assert not any(secret in told for secret in SECRETS)


def test_options_are_in_no_repr_and_no_error(tmp_path):
    options = {"key": "me", "secret": "hunter2", "headers": {"Authorization": "hunter2"}}
    location = Location("s3://bucket/x", options)
    assert "hunter2" not in repr(location)
    assert "hunter2" not in repr(location._without_secrets(ValueError("the secret hunter2 is wrong")))
    with pytest.raises(SettingError) as caught:
        bnp.as_source("s3://bucket/x", storage_options="hunter2")
    assert "hunter2" not in str(caught.value)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**JOB, "data": SIGNED}))
    assert not any(secret in repr(read_job(tmp_path / "run.yaml")) for secret in SECRETS)


def test_a_run_directory_and_its_page_hold_no_secrets_and_the_run_goes_on_when_signed_anew(tmp_path, caplog, capsys):
    base = "memory://me:hunter2@bucket/x.npy?sig="
    for signature in ("0a1b2c3d", "4e5f6a7b"):
        with fsspec.open(f"{base}{signature}", "wb") as file:
            np.save(file, atoms(100, 2, 2))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**JOB, "data": {"path": f"{base}0a1b2c3d", "batch_size": 50}}))
    run = str(tmp_path / "run")
    with caplog.at_level(logging.DEBUG, "bnp_dask"):
        assert main(["train", str(tmp_path / "run.yaml")]) == 0
        bnp.report(run, tmp_path / "page.html")
    said = capsys.readouterr()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "run.yaml")
    for secret in SECRETS:
        assert secret.encode() not in kept
        assert secret not in caplog.text + said.out + said.err
    # the directory alone cannot open them, and says what can
    assert "pass the whole URL again" in error_of(capsys, "resume", run)
    job = {**JOB, "data": {"path": f"{base}4e5f6a7b", "batch_size": 50}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", str(tmp_path / "run.yaml"), "--resume", "--quiet"]) == 0
