"""Arrays of plain numbers in other clothes: containers, files, layouts, and broken ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse


def put(x: np.ndarray, value: Any, dtype: Any = None) -> np.ndarray:
    """A copy with one other number."""
    out = np.array(x, dtype)
    out[7, 1] = value
    return out


def masked(x: np.ndarray) -> Any:
    return np.ma.masked_array(x, np.arange(x.size).reshape(x.shape) == 8)


def frame(x: np.ndarray, **more: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])]).assign(**more)


def arrow(x: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.table({f"c{i}": x[:, i] for i in range(x.shape[1])})


def lazy(x: np.ndarray, rows: int = 12, **said: Any) -> Any:
    """A dask array of chunks of so many rows, that may say other things of them than is true."""
    import dask
    import dask.array as da

    parts = [x[i : i + rows] for i in range(0, len(x), rows)]
    told = {"shape": None, "dtype": float, **said}
    return da.concatenate(
        [da.from_delayed(dask.delayed(lambda p=p: p)(), told["shape"] or p.shape, told["dtype"]) for p in parts]
    )


def stored(x: Any, ending: str) -> str:
    """A file with these numbers, in the working directory."""
    import zarr

    path = f"data{len(os.listdir())}{ending}"
    if ending == ".npy":
        np.save(path, x)
    elif ending == ".npz":
        sparse.save_npz(path, sparse.csr_matrix(x)) if sparse.issparse(x) else np.savez(path, x=x)
    elif ending == ".zarr":
        zarr.create_array(path, data=np.asarray(x), chunks=(10, x.shape[1]))
    elif ending == ".parquet":
        frame(x).to_parquet(path)
    else:
        frame(x).to_csv(path, index=False)
    return path


def broken(x: np.ndarray, part: str, place: int, value: int, kind: str = "csr") -> Any:
    out = sparse.csr_array(x).asformat(kind)
    array = getattr(out, part).copy()
    array[place] = value
    setattr(out, part, array)
    return out


def cut(path: str) -> str:
    """The same file without its second half."""
    file = Path(path)
    if file.is_dir():
        file = next(p for p in sorted(file.rglob("*")) if p.is_file() and p.parent != file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    return path


def strided(x: np.ndarray) -> np.ndarray:
    out = np.zeros((2 * len(x), 3 * x.shape[1]))
    out[::2, ::3] = x
    return out[::2, ::3]


def readonly(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out.flags.writeable = False
    return out


def unaligned(x: np.ndarray) -> np.ndarray:
    return (
        np.frombuffer(b"." + np.ascontiguousarray(x, np.float64).tobytes(), np.uint8)[1:]
        .view(np.float64)
        .reshape(x.shape)
    )


Transform = tuple[str, Callable[[np.ndarray], Any], Callable[[np.ndarray], np.ndarray] | None]
"""What must come of it, the input made of plain numbers, and the plain numbers that it stands for."""


def as_is(x: np.ndarray) -> np.ndarray:
    return x
