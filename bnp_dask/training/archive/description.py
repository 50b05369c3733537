"""``zarr.json`` of an archive: its description, and the file of its arrays."""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any

from bnp_dask._version import __version__
from bnp_dask.core.location import Location
from bnp_dask.errors import DataError, StoreError
from bnp_dask.inputs.settings import path_text
from bnp_dask.store.migrations import is_readable, upgraded
from bnp_dask.store.place import TEMPORARY
from bnp_dask.training.archive.files import replacing

KIND, FORMAT = "bnp-dask model", 3
"""Version of the layout of a saved posterior that this version writes and reads."""

MARK = "bnp_dask"
ROOT = "zarr.json"

_STATE = re.compile(r"state-[0-9A-Za-z]+(\.zip)?")


def place_of_archive(path: str | os.PathLike[str]) -> Location:
    """Location of an archive, present or future; StoreError if it is impossible."""
    if not isinstance(path, str) or path:
        path_text("path", path)
    else:
        raise StoreError("an empty path; save and load need one, such as 'model.zarr'")
    try:
        return Location.of(path)
    except (ImportError, DataError) as error:
        raise StoreError(f"cannot open {os.fspath(path)!r}: {error}") from error


def read_root(place: Location) -> bytes | None:
    """The description as bytes; None if there is none."""
    try:
        return place.child(ROOT).content()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DataError as error:
        raise StoreError(f"cannot read a model: {error}") from error


def write_root(place: Location, content: bytes) -> None:
    """Replace the description in one step, the moment at which the new model replaces the old one."""
    with replacing(place.child(ROOT)) as file:
        file.write(content)


def described(body: dict[str, Any]) -> bytes:
    """The description with its checksum, as a Zarr group."""
    attributes = {MARK: body, "crc32": zlib.crc32(canonical(body))}
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, allow_nan=False).encode()


def replaceable(place: Location, kind: str) -> str | None:
    """Name of the arrays of the existing model, None if nothing is there; StoreError for anything else."""
    if place.exists() and not place.is_dir():
        raise StoreError(
            f"{place.name} is a file; refusing to overwrite it. Choose a new directory, such as model.zarr"
        )
    root = read_root(place)
    if root is not None:
        body = _parse(root).get(MARK)
        if isinstance(body, dict) and body.get("kind") == kind:
            state = body.get("state")
            return state if is_state(state) else None
    elif all(_is_ours(name) for name in place.names()):
        return None
    raise StoreError(f"{place.name} exists and is not a saved model; refusing to overwrite it. Choose a new directory")


def read_body(place: Location, kind: str) -> dict[str, Any]:
    """Content of the description; StoreError if it is not of this ``kind``, of a newer format, or damaged."""
    content = read_root(place)
    if content is None:
        found = "something that is not one" if place.exists() else "nothing"
        raise StoreError(
            f"{place.name}: needs a saved model, found {found}; models are written by save(posterior, path)"
        )
    attributes = _parse(content)
    body = attributes.get(MARK)
    if not isinstance(body, dict):
        raise StoreError(f"{place.name}: not a saved model (its zarr.json has no {MARK} entry), or a damaged one")
    if body.get("kind") != kind:
        wanted = "a saved posterior" if kind == "posterior" else "saved draws"
        raise StoreError(f"{place.name}: is a {body.get('kind')!r} of this package, not {wanted}")
    if not is_readable(KIND, body.get("format"), FORMAT):
        raise StoreError(
            f"{place.name}: saved in format {body.get('format')!r} by version {body.get('software')}; version "
            f"{__version__} reads format {FORMAT}. Use the version that wrote it"
        )
    if zlib.crc32(canonical(body)) != attributes.get("crc32"):
        raise StoreError(f"{place.name}: zarr.json is damaged (its checksum does not match); restore it from a copy")
    if not is_state(body.get("state")):
        raise StoreError(f"{place.name}: zarr.json names no folder or file of arrays")
    return upgraded(body, KIND, body["format"], FORMAT)


def is_state(name: object) -> bool:
    """Whether this can be the name of an archive's arrays: inside its folder, and not elsewhere."""
    return isinstance(name, str) and _STATE.fullmatch(name) is not None


def _is_ours(name: str) -> bool:
    return is_state(name) or name.startswith(TEMPORARY)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        node = json.loads(content)
        return dict(node["attributes"])
    except (ValueError, KeyError, TypeError):
        return {}


def canonical(obj: Any) -> bytes:
    """JSON whose bytes are equal for equal content."""
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
