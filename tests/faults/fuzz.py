"""Small valid files of every kind that the package reads, and how they are broken."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zarr
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.data.base import batch_reader
from bnp_dask.execute import SerialExecutor
from bnp_dask.store import RunStore
from tests.faults.parts import atoms, go


def rows(n: int = 30) -> np.ndarray:
    return atoms(n, 3)


def counts(n: int = 20) -> sparse.csr_array:
    return sparse.csr_array(np.random.default_rng(0).poisson(1.0, (n, 8)).astype(float) + np.eye(n, 8))


# -- files that are right -----------------------------------------------------------------------------------------
def npy(path: Path) -> None:
    np.save(path / "x.npy", rows())


def npz(path: Path) -> None:
    np.savez_compressed(path / "x.npz", x=rows())


def sparse_npz(path: Path) -> None:
    sparse.save_npz(path / "x.npz", counts())


def parquet(path: Path) -> None:
    pq.write_table(pa.table({f"c{j}": rows()[:, j] for j in range(3)}), path / "x.parquet", row_group_size=10)


def zarr_rows(path: Path) -> None:
    zarr.create_array(path / "x.zarr", shape=(30, 3), chunks=(10, 3), dtype="f8")[...] = rows()


def ingested(path: Path) -> None:
    np.save(path / "x.npy", rows())
    bnp.ingest(str(path / "x.npy"), str(path / "x.zarr"), batch_size=10)
    (path / "x.npy").unlink()


def ingested_counts(path: Path) -> None:
    sparse.save_npz(path / "x.npz", counts())
    bnp.ingest(str(path / "x.npz"), str(path / "x.zarr"), batch_size=8)
    (path / "x.npz").unlink()


def csv(path: Path) -> None:
    lines = ["a,b,c", *(",".join(f"{v:.3f}" for v in row) for row in rows())]
    (path / "x.csv").write_text("\n".join(lines))


def packed_csv(path: Path) -> None:
    lines = ["a,b,c", *(",".join(f"{v:.3f}" for v in row) for row in rows())]
    (path / "x.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


def svmlight(path: Path) -> None:
    lines = []
    for i, row in enumerate(counts().toarray()):
        lines.append(f"{i % 2} " + " ".join(f"{j + 1}:{v:g}" for j, v in enumerate(row) if v))
    (path / "x.svmlight").write_text("\n".join(lines))


def ldac(path: Path) -> None:
    lines = []
    for row in counts().toarray():
        pairs = [f"{j}:{v:g}" for j, v in enumerate(row) if v]
        lines.append(f"{len(pairs)} " + " ".join(pairs))
    (path / "x.ldac").write_text("\n".join(lines))


def uci(path: Path) -> None:
    held = counts().tocoo()
    lines = [f"{i + 1} {j + 1} {v:g}" for i, j, v in zip(held.row, held.col, held.data)]
    (path / "docword.x.txt").write_text("\n".join(["20", "8", str(len(lines)), *lines]))


def idx(path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (10, 4, 4)).astype(np.uint8)
    head = b"\0\0\x08\x03" + b"".join(int(n).to_bytes(4, "big") for n in x.shape)
    (path / "x-images-idx3-ubyte").write_bytes(head + x.tobytes())


def jsonl(path: Path) -> None:
    lines = [json.dumps({"text": f"some common words and word{'abcde'[i % 5]}", "id": i}) for i in range(20)]
    (path / "x.jsonl").write_text("\n".join(lines))


def text_zip(path: Path) -> None:
    with zipfile.ZipFile(path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(6):
            archive.writestr(f"docs/{i}.txt", f"some common words and word{'abcdef'[i]} here")


def text_tar(path: Path) -> None:
    with tarfile.open(path / "x.tar.gz", "w:gz") as archive:
        for i in range(6):
            data = f"some common words and word{'abcdef'[i]} here".encode()
            info = tarfile.TarInfo(f"docs/{i}.txt")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def job(path: Path) -> None:
    content = {
        "model": {"allocation": {"type": "DPMixture", "gamma": 2.0}, "observation": {"type": "DiagGaussian", "nu": 5}},
        "data": {"path": "x.npy", "batch_size": 10, "columns": ["a", "b"]},
        "init": {"type": "BregmanKMeans", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 5, "tolerance": 1e-6},
        "moves": ["Merge", {"type": "Delete", "per_lap": 2}],
        "client": {"workers": 2, "memory_limit": "1GB"},
        "store": "run",
        "rng": 1,
    }
    (path / "run.yaml").write_text(yaml.safe_dump(content))


def model(path: Path) -> None:
    shutil.copytree(_run() / "posterior.zarr", path / "x.zarr")


def run(path: Path) -> None:
    shutil.copytree(_run(), path / "run", ignore=shutil.ignore_patterns("posterior.zarr"))


@cache
def _run() -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="bnp-fuzz-")) / "run"
    go(SerialExecutor(), "stochastic", store=folder)
    return folder


# -- how they are read --------------------------------------------------------------------------------------------
def read_source(path: Path) -> None:
    (entry,) = path.iterdir()
    source = bnp.as_source(str(entry), batch_size=8)
    for b in range(min(source.n_batches, 20)):
        batch_reader(source, b)()


def read_text(path: Path) -> None:
    (entry,) = path.iterdir()
    shutil.rmtree(path.parent / "out.zarr", ignore_errors=True)
    bnp.ingest(str(entry), str(path.parent / "out.zarr"))


def read_job_file(path: Path) -> None:
    read_job(path / "run.yaml")


def read_model(path: Path) -> None:
    bnp.load(path / "x.zarr")


def read_run(path: Path) -> None:
    store = RunStore.view(path / "run")
    found = store.load()
    for entry in [] if found is None else found.listing.entries():
        store.get_summary(*entry)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    **{f.__name__: (f, read_source) for f in (npy, npz, sparse_npz, parquet, zarr_rows, ingested, ingested_counts)},
    **{f.__name__: (f, read_source) for f in (csv, packed_csv, svmlight, ldac, uci, idx)},
    **{f.__name__: (f, read_text) for f in (jsonl, text_zip, text_tar)},
    "job": (job, read_job_file),
    "model": (model, read_model),
    "run": (run, read_run),
}


# -- how they are broken --------------------------------------------------------------------------------------------
TOKENS = b"-1 0 nan inf 1e999 99999999999999999999 2147483648 1 , : {} [] [[[[ null true .. / &a !! -".split()
TOKENS += [b"\x00", b"\xff\xfe", b"\n", b'"', b" ", b"\t", b"*a "]


def broken(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, doubled, or replaced by words that parsers stumble over."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(out) + 1)
        size = rng.choice([1, 1, 2, 4, 8, 64])
        way = rng.randrange(6)
        if way == 0 and out:
            out[place % len(out)] ^= 1 << rng.randrange(8)
        elif way == 1:
            del out[place:]
        elif way == 2:
            out[place : place + size] = rng.choice(TOKENS)
        elif way == 3:
            out[place:place] = out[place : place + size]
        elif way == 4:
            del out[place : place + size]
        else:
            out[place : place + size] = rng.randbytes(size)
    return bytes(out)


def break_one(folder: Path, seed: int) -> Path:
    """Break one file below a folder, or take it away; which one."""
    rng = random.Random(seed)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = rng.choice(files)
    if len(files) > 1 and rng.random() < 0.03:
        path.unlink()
    else:
        path.write_bytes(broken(path.read_bytes(), rng))
    return path


def prepare(kind: str, folder: Path) -> Path:
    """The right files of a kind, in ``folder/right``."""
    right = folder / "right"
    right.mkdir()
    KINDS[kind][0](right)
    return right


def attack(kind: str, folder: Path, seed: int) -> Any:
    """Break a copy of the right files and read it; what was raised other than the package's own errors."""
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(folder / "right", case)
    break_one(case, seed)
    try:
        KINDS[kind][1](case)
    except bnp.errors.BnpDaskError:
        return None
    except Exception as error:
        return error
    return None
