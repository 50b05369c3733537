"""A saved posterior as versions up to 0.2.0 wrote it: a folder of Zarr arrays."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import zarr

from bnp_dask.core.encoding import to_spec
from bnp_dask.core.registry import REGISTRY
from bnp_dask.training.archive.description import canonical

STATE = "state-0123456789abcdef"


def save_as_format_1(posterior: object, path: Path, chunk_rows: int = 1000) -> None:
    """Write it, arrays cut into chunks of so many rows."""
    spec, arrays = to_spec(posterior, REGISTRY)
    group, listing = zarr.open_group(path / STATE, mode="a", zarr_format=3), {}
    for name, array in arrays.items():
        chunks = tuple(max(1, n) for n in array.shape)
        out = group.create_array(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(min(chunks[0], chunk_rows), *chunks[1:]) if chunks else (),
            config={"write_empty_chunks": True},
        )
        if array.size:
            out[...] = array
        listing[name] = {"shape": list(array.shape), "dtype": array.dtype.str, "crc32": zlib.crc32(array.tobytes())}
    body = {"kind": "posterior", "format": 1, "software": "0.2.0", "state": STATE, "spec": spec, "arrays": listing}
    attributes = {"bnp_dask": body, "crc32": zlib.crc32(canonical(body))}
    node = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    (path / "zarr.json").write_text(json.dumps(node, indent=1, allow_nan=False))
