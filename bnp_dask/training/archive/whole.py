"""Writing and reading an archive as a whole."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.core.location import Location
from bnp_dask.core.registry import REGISTRY
from bnp_dask.errors import StoreError
from bnp_dask.training.archive.description import (
    FORMAT,
    canonical,
    described,
    place_of_archive,
    read_body,
    read_root,
    replaceable,
    write_root,
)
from bnp_dask.training.archive.files import link, replacing
from bnp_dask.training.archive.frame import DamagedFrameError, Frame, crc_of, read_frame, write_frame

logger = logging.getLogger("bnp_dask.training")


def write_archive(kind: str, obj: object, path: str | os.PathLike[str]) -> None:
    """Write an object of registered classes; StoreError if something else is there, or it cannot be written."""
    place = place_of_archive(path)
    before = replaceable(place, kind)
    spec, arrays = to_spec(obj, REGISTRY)
    kept = {name: _as_written(array) for name, array in arrays.items()}
    listing = {n: {"shape": list(a.shape), "dtype": a.dtype.str, "crc32": crc_of(a)} for n, a in kept.items()}
    digest = hashlib.sha256(canonical({"spec": spec, "arrays": listing})).hexdigest()
    state = f"state-{digest[:16]}.zip"
    try:
        with replacing(place.child(state)) as file:
            frame = write_frame(file, kept)
        body = {"kind": kind, "format": FORMAT, "software": __version__, "state": state, "spec": spec}
        body |= {"arrays": {name: {**facts, "offset": frame.offsets[name]} for name, facts in listing.items()}}
        body |= {"bytes": frame.nbytes, "heads_crc32": frame.heads}
        write_root(place, described(body))
        _forget(place, before, state)
    except OSError as error:
        raise _cannot_write(place, error) from error


def copy_archive(kind: str, path: Path, to: Path) -> None:
    """Write an archive of a local folder once more; StoreError as in :func:`write_archive`.

    The file of its arrays, which is never changed, gets a second name if the file system has hard links.
    """
    source, place = place_of_archive(path), place_of_archive(to)
    before, content, state = replaceable(place, kind), read_root(source), read_body(source, kind)["state"]
    assert content is not None
    try:
        # nothing to do if the model in force is this one
        if before != state:
            link(path / state, to / state)
            write_root(place, content)
            _forget(place, before, state)
    except OSError as error:
        raise _cannot_write(place, error) from error


def read_archive(kind: str, path: str | os.PathLike[str]) -> tuple[Location, object]:
    """Location and object of an archive of this ``kind``; StoreError for anything else or damage."""
    place = place_of_archive(path)
    body = read_body(place, kind)
    if (saved_by := body.get("software")) != __version__:
        logger.warning(
            "%s was saved by bnp_dask %s: version %s reads it exactly, and what it computes from it may have other "
            "last bits",
            place.name,
            saved_by,
            __version__,
        )
    return place, from_spec(body["spec"], _framed(place, body))


def _framed(place: Location, body: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of the file that a description names."""
    found = place.child(body["state"])
    try:
        listing = body["arrays"]
        frame = Frame({name: facts["offset"] for name, facts in listing.items()}, body["bytes"], body["heads_crc32"])
        with found.open() as file:
            return read_frame(file, frame, listing)
    except FileNotFoundError as error:
        raise StoreError(f"{found.name} with the arrays is missing; restore it from a copy") from error
    except DamagedFrameError as error:
        raise StoreError(f"{found.name}: {error}; restore it from a copy") from error
    except (OSError, KeyError, TypeError, ValueError) as error:  # a description may say anything
        raise StoreError(f"{found.name} cannot be read: {error}; restore it from a copy") from error


def _as_written(array: np.ndarray) -> np.ndarray:
    """Array in C order, and in the byte order of the format."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _forget(place: Location, before: str | None, state: str) -> None:
    """Remove the arrays of the previous model, unless the new one uses them."""
    if before is not None and before != state and place.child(before).exists():
        place.child(before).remove()


def _cannot_write(place: Location, error: OSError) -> StoreError:
    return StoreError(f"{place.name}: cannot write a model there: {error}")
