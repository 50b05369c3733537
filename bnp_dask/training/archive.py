"""Archives: registered dataclasses as Zarr arrays and JSON, written in one piece.

A saved posterior is a directory (or a prefix of an object store)::

    model.zarr/
      zarr.json               what it is: format version, description of the model, CRC-32 of every array
      state-1f0c.../          Zarr v3 arrays, one per parameter and statistic

``zarr.json`` is written last and in one piece, and it names the folder it describes: whoever is killed while
saving leaves the old model or the new one.  Nothing in a saved model is code, and nothing in it is run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.core.location import Location
from bnp_dask.core.registry import REGISTRY
from bnp_dask.errors import DataError, StoreError
from bnp_dask.inputs.settings import path_text

if TYPE_CHECKING:
    import zarr

if TYPE_CHECKING:
    pass

FORMAT = 1
"""Version of the layout of a saved posterior that this version writes, and the newest that it reads."""


_MARK = "bnp_dask"


_ROOT = "zarr.json"


_CHUNK_BYTES = 2**26


def write_archive(kind: str, obj: object, path: str | os.PathLike[str]) -> None:
    """Write an object of registered classes; StoreError where something else lies there, or it cannot be written."""
    place = _place(path)
    before = _replaceable(place, kind)
    spec, arrays = to_spec(obj, REGISTRY)
    kept = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    listing = {n: {"shape": list(arrays[n].shape), "dtype": a.dtype.str, "crc32": _crc(a)} for n, a in kept.items()}
    import zarr

    digest = hashlib.sha256(_canonical({"spec": spec, "arrays": listing})).hexdigest()
    state = f"state-{digest[:16]}"
    body = {"kind": kind, "format": FORMAT, "software": __version__, "state": state}
    body |= {"spec": spec, "arrays": listing}
    try:
        group = zarr.open_group(place.child(state).zarr_store(read_only=False), mode="a", zarr_format=3)
        for name in listing:
            _write_array(group, name, arrays[name])
        _write_root(place, {_MARK: body, "crc32": zlib.crc32(_canonical(body))})
        if before is not None and before != state:
            place.child(before).remove()
    except OSError as error:
        raise StoreError(f"{place.name}: cannot write a model there: {error}") from error


def copy_archive(kind: str, path: Path, to: Path) -> None:
    """Write an archive of a local folder once more, byte for byte; StoreError as of :func:`write_archive`."""
    source, place = _place(path), _place(to)
    before, content = _replaceable(place, kind), _read_root(source)
    if content is None:
        raise StoreError(f"{source.name}: needs a saved model, found nothing to copy")
    state = _read_body(source, kind)["state"]
    try:
        # what a kill left of a copy before is written over; where the model in force is this one, nothing is to do
        if before != state:
            shutil.copytree(path / state, to / state, copy_function=shutil.copyfile, dirs_exist_ok=True)
            _write_root(place, json.loads(content)["attributes"])
            if before is not None:
                place.child(before).remove()
    except (OSError, shutil.Error) as error:
        raise StoreError(f"{place.name}: cannot write a model there: {error}") from error


def read_archive(kind: str, path: str | os.PathLike[str]) -> tuple[Location, object]:
    """Where it lies, and the object that was written as of this ``kind``; StoreError for anything else or damage."""
    import zarr

    place = _place(path)
    body = _read_body(place, kind)
    state, listing = body["state"], body["arrays"]
    try:
        group = zarr.open_group(place.child(state).zarr_store(), mode="r", zarr_format=3)
    except Exception as error:  # damaged metadata make zarr raise nearly anything
        raise StoreError(f"{place.name}: the folder {state} with its arrays is missing or damaged") from error
    arrays = {name: _read_array(place, group, state, name, facts) for name, facts in listing.items()}
    return place, from_spec(body["spec"], arrays)


def _place(path: str | os.PathLike[str]) -> Location:
    if not isinstance(path, str) or path:
        path_text("path", path)
    else:
        raise StoreError("an empty path; save and load need one, such as 'model.zarr'")
    try:
        return Location.of(path)
    except (ImportError, DataError) as error:
        raise StoreError(f"cannot open {os.fspath(path)!r}: {error}") from error


def _read_root(place: Location) -> bytes | None:
    fs, root = place.filesystem()
    try:
        return bytes(fs.cat_file(f"{root}/{_ROOT}"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_root(place: Location, attributes: dict[str, Any]) -> None:
    """Replace the description in one step: the moment at which the new model takes the place of the old one."""
    node = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    content = json.dumps(node, indent=1, allow_nan=False).encode()
    if not place.is_local:
        fs, root = place.filesystem()
        fs.pipe_file(f"{root}/{_ROOT}", content)
        return
    partial = Path(place.url) / f"{_ROOT}.{uuid.uuid4().hex}.partial"
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(Path(place.url) / _ROOT)


def _replaceable(place: Location, kind: str) -> str | None:
    """The state folder of the model that lies there, None if nothing does; StoreError for anything else."""
    if place.exists() and not place.is_dir():
        raise StoreError(
            f"{place.name} is a file; refusing to overwrite it. Choose a new directory, such as model.zarr"
        )
    root = _read_root(place)
    if root is not None:
        body = _parse(root).get(_MARK)
        if isinstance(body, dict) and body.get("kind") == kind:
            state = body.get("state")
            return state if _is_state(state) else None
    elif all(_is_ours(name) for name in place.names()):
        return None
    raise StoreError(f"{place.name} exists and is not a saved model; refusing to overwrite it. Choose a new directory")


def _is_state(name: object) -> bool:
    return isinstance(name, str) and name.startswith("state-") and name[6:].isalnum()


def _is_ours(name: str) -> bool:
    return _is_state(name) or (name.startswith(f"{_ROOT}.") and name.endswith(".partial"))


def _parse(content: bytes) -> dict[str, Any]:
    try:
        node = json.loads(content)
        return dict(node["attributes"])
    except (ValueError, KeyError, TypeError):
        return {}


def _read_body(place: Location, kind: str) -> dict[str, Any]:
    content = _read_root(place)
    if content is None:
        found = "something that is not one" if place.exists() else "nothing"
        raise StoreError(
            f"{place.name}: needs a saved model, found {found}; models are written by save(posterior, path)"
        )
    attributes = _parse(content)
    body = attributes.get(_MARK)
    if not isinstance(body, dict):
        raise StoreError(f"{place.name}: not a saved model (its zarr.json has no {_MARK} entry), or a damaged one")
    if body.get("kind") != kind:
        wanted = "a saved posterior" if kind == "posterior" else "saved draws"
        raise StoreError(f"{place.name}: is a {body.get('kind')!r} of this package, not {wanted}")
    if body.get("format") != FORMAT:
        raise StoreError(
            f"{place.name}: saved in format {body.get('format')!r} by version {body.get('software')}; version "
            f"{__version__} reads format {FORMAT}. Use the version that wrote it, or a newer one"
        )
    if zlib.crc32(_canonical(body)) != attributes.get("crc32"):
        raise StoreError(f"{place.name}: zarr.json is damaged (its checksum does not match); restore it from a copy")
    if not _is_state(body.get("state")):
        raise StoreError(f"{place.name}: zarr.json names no folder of arrays")
    return body


def _write_array(group: zarr.Group, name: str, array: np.ndarray) -> None:
    """One Zarr array, cut along its first axis only where it is large; every chunk is written, also zeros."""
    chunks = tuple(max(1, n) for n in array.shape)
    if array.nbytes > _CHUNK_BYTES and array.ndim:
        chunks = (max(1, len(array) * _CHUNK_BYTES // array.nbytes), *chunks[1:])
    config = {"write_empty_chunks": True}
    out = group.create_array(
        name, shape=array.shape, dtype=array.dtype, chunks=chunks, config=config, overwrite=name in group
    )
    if array.size:
        out[...] = array


def _read_array(place: Location, group: zarr.Group, state: str, name: str, facts: Mapping[str, Any]) -> np.ndarray:
    """An array, checked: Zarr itself gives fill values where a chunk is missing."""
    import zarr

    where = f"{place.name}: array {name!r} (in {state}/{name})"
    try:
        stored = group[name]
        if not isinstance(stored, zarr.Array):
            raise StoreError(f"{where} is not an array")
        value = np.asarray(stored[...]) if stored.size else np.zeros(stored.shape, stored.dtype)
    except StoreError:
        raise
    except KeyError as error:
        raise StoreError(f"{where} is missing; the model is incomplete, restore it from a copy") from error
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        raise StoreError(f"{where} cannot be read: damaged, restore it from a copy ({error})") from error
    if list(value.shape) != facts["shape"] or value.dtype.str != facts["dtype"]:
        raise StoreError(f"{where} is {value.dtype} {value.shape}, needs {facts['dtype']} {tuple(facts['shape'])}")
    missing = _missing_chunks(place, stored, f"{state}/{name}")
    if missing or _crc(value) != facts["crc32"]:
        what = f"misses {', '.join(missing)}" if missing else "is damaged: its checksum does not match"
        raise StoreError(f"{where} {what}; restore it from a copy")
    return value


def _missing_chunks(place: Location, array: zarr.Array[Any], folder: str) -> list[str]:
    grid = [range(math.ceil(n / c)) for n, c in zip(array.shape, array.chunks, strict=True)]
    keys = [f"{folder}/{array.metadata.encode_chunk_key(index)}" for index in itertools.product(*grid)]
    return [f"chunk {key}" for key in keys if not place.child(key).exists()]


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _canonical(obj: Any) -> bytes:
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
