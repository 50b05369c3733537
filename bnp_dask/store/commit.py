"""Files of a checkpoint: its arrays, then its head, whose appearance is the commit; and numbers that are barred."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.core.code import Code
from bnp_dask.errors import StoreError
from bnp_dask.store.checkpoint import Checkpoint, Committed, Listing, Prepared, StoredRows
from bnp_dask.store.files import crc_of_packed, pack, seal, unpack, unseal
from bnp_dask.store.layout import CHECKPOINT_FORMAT, VERSION, checkpoint_base
from bnp_dask.store.log import append, check_extent
from bnp_dask.store.parts import Part, parts_in
from bnp_dask.store.place import DamagedError, Extent, Key, place_of
from bnp_dask.store.sweep import checkpoint_numbers

LISTING = "/summaries"  # an array of the user may have any name, but none of theirs begins with a slash

_FENCE = "fence"
"""Mark in the head of a number that was taken without a checkpoint, so that no other process can commit under it."""


class FenceError(DamagedError):
    """The number of a checkpoint was taken, and no checkpoint was made."""


def put_checkpoint(path: Path | Key, prepared: Prepared, before: Extent, code: Sequence[Code] = ()) -> Extent:
    """Put all files of a checkpoint, the head last; return the new extent of the history.

    Parameters
    ----------
    path
        The run directory.
    prepared
        The checkpoint; its summaries and parts are durable.
    before
        Extent of the history before.
    code
        Code that made the run, version after version.

    Raises
    ------
    StoreError
        A file cannot be written, or another process has made a checkpoint of this number.
    """
    place, base, packed = place_of(path), checkpoint_base(path, prepared.number), pack(prepared.arrays)
    history = append(path / "history.jsonl", prepared.history, before)
    _create(base.with_suffix(".npz"), packed)
    content = {
        "format": CHECKPOINT_FORMAT,
        "version": VERSION,
        "software": __version__,
        "code": [one.to_json() for one in code],
        "number": prepared.number,
        "begun": prepared.begun,
        "arrays": Extent(len(packed), crc_of_packed(packed)).to_json(),
        "history": history.to_json(),
        "parts": [[part.name, part.size, part.crc] for part in prepared.parts],
        "state": json.loads(prepared.state),
    }
    place.sync_folder(base.parent)
    _create(base.with_suffix(".json"), seal(content))  # from here on this is the newest
    place.sync_folder(base.parent)
    return history


def _create(file: Path | Key, data: bytes) -> None:
    if not place_of(file).create(file, data):
        raise StoreError(
            f"{file} is there already: another process has taken over this run, or its store did not list the file "
            "before. Nothing was replaced; let the other process go on, or open the run again"
        )


def claim_next(path: Path | Key, session: str) -> int:
    """Take the number of the next checkpoint, so that a process that wrote before cannot commit it."""
    while True:
        number = max(checkpoint_numbers(path), default=0) + 1
        head = {"format": CHECKPOINT_FORMAT, "version": VERSION, "begun": False, _FENCE: session}
        if place_of(path).create(checkpoint_base(path, number).with_suffix(".json"), seal(head)):
            return number


def head_of(path: Path | Key, number: int) -> dict[str, Any]:
    """Head of a checkpoint; DamagedError if there is none or it is damaged, StoreError if it holds no state."""
    content = unseal(checkpoint_base(path, number).with_suffix(".json"), CHECKPOINT_FORMAT, VERSION)
    if _FENCE in content:
        raise FenceError(f"checkpoint {number} of {path} was never made")
    if not isinstance(content.get("state"), dict):
        raise StoreError(
            f"checkpoint {number} has the right checksums but holds no state of a run; remove it to resume from "
            "the one before"
        )
    return content


def read_checkpoint(path: Path | Key, number: int) -> Checkpoint:
    """A checkpoint of a run directory by its number, without its parts; DamagedError if one of its files is damaged."""
    content, arrays = _read(path, number)
    listing = Listing.of_saved(arrays.pop(LISTING))
    rows = StoredRows(path / "history.jsonl", Extent.from_json(content["history"]))
    check_extent(rows.path, rows.extent)
    return Checkpoint(
        content["state"],
        arrays,
        rows,
        number,
        listing,
        parts=parts_in(content),
        begun=content.get("begun", True),
        code=_code_of(content),
    )


def _code_of(content: Mapping[str, Any]) -> tuple[Code, ...]:
    """Code versions in the head of a checkpoint; earlier versions noted their number."""
    try:
        noted = content.get("code") or [{"version": content["software"]}]
        return tuple(Code.from_json(one) for one in noted)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def committed(path: Path | Key, number: int) -> Committed:
    """References of a checkpoint; DamagedError if it is damaged.  Neither history nor parts are read."""
    content, arrays = _read(path, number)
    extent = Extent.from_json(content["history"])
    return Committed(number, Listing.of_saved(arrays[LISTING]), extent, parts_in(content))


def _read(path: Path | Key, number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Head and arrays of a checkpoint."""
    base, content = checkpoint_base(path, number), head_of(path, number)
    packed = place_of(path).read(base.with_suffix(".npz"))
    if Extent(len(packed), zlib.crc32(packed)) != Extent.from_json(content["arrays"]):
        raise DamagedError(f"{base.with_suffix('.npz')} is damaged (its checksum does not fit)")
    return content, unpack(packed, base.with_suffix(".npz"))[0]


def parts_of(path: Path | Key, number: int) -> tuple[Part, ...]:
    """Parts of a checkpoint; none if it is damaged, because then it cannot be read."""
    try:
        base = checkpoint_base(path, number)
        return parts_in(unseal(base.with_suffix(".json"), CHECKPOINT_FORMAT, VERSION))
    except DamagedError:
        return ()
