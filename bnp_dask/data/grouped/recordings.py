"""Folders and patterns of small text tables or arrays; each file is a recording, which forms a group of rows."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core.location import Chosen, Location
from bnp_dask.data.batching import parsed
from bnp_dask.data.ingestion.formats import Stream
from bnp_dask.data.sources.arrays import READ_WHOLE, check_small
from bnp_dask.errors import DataError

KINDS = {".csv": "csv", ".tsv": "tsv", ".npy": "npy"}
"""Formats by suffix."""


def recordings(data: Any) -> Any:
    """One table per file of a local folder of CSV or .npy files, or of a pattern; anything else unchanged.

    Files are taken in the order of their names.  Tables are DataFrames if the files name their columns, else arrays;
    an array ``(n,)`` is one column.

    Raises
    ------
    DataError
        No file matches the pattern, the files are too large for memory, differ in kind, or only some name columns.
    """
    files = _files(data)
    if files is None:
        return data
    size = sum(file.stat().st_size for file in files)
    if size > READ_WHOLE:
        raise DataError(
            f"{os.fspath(data)}: {len(files)} files of {size / 2**20:.0f} MB, more than are held in memory; write them "
            "as Parquet with a column that tells the recordings apart: as_source(folder, groups=COLUMN)"
        )
    places = [(Location.of(str(file)), KINDS[file.suffix.lower()]) for file in files]
    if len({kind == "npy" for _, kind in places}) > 1:
        raise DataError(f"{os.fspath(data)}: .npy files and text tables together; needs recordings of one kind")
    if places[0][1] == "npy":
        return [_array(place) for place, _ in places]
    for place, kind in places:
        check_small(place, kind)
    named = [Stream(place, kind).has_names for place, kind in places]
    if any(named) and not all(named):
        raise DataError(
            f"{files[named.index(False)]} does not name its columns, and {files[named.index(True)]} does; all or none "
            "of them may"
        )
    if all(named):
        return [Stream(place, kind).table.whole(()).to_pandas() for place, kind in places]
    return [np.concatenate([x for x, _ in Stream(place, kind).pieces()]) for place, kind in places]


def are_recordings(names: Sequence[str]) -> bool:
    """Whether these are names of files that could each be a recording; False for none."""
    return len(names) > 0 and all(Path(name).suffix.lower() in KINDS for name in names)


def _array(place: Location) -> np.ndarray:
    """The rows of a .npy file, ``(n, D)``."""
    with parsed(place.name), place.open() as file:
        x = np.load(file, allow_pickle=False)
    if x.ndim not in (1, 2):
        raise DataError(f"{place.name} has shape {x.shape}; needs one recording, (n, D): a row for each step")
    return x.reshape(len(x), -1) if len(x) else x


def _files(data: Any) -> list[Path] | None:
    """Files of a folder or pattern, in the order of their names; None for anything else."""
    if not isinstance(data, (str, os.PathLike)):
        return None
    if isinstance(data, Chosen):
        return _all_recordings([Path(path) for path in data.paths])
    text = os.fspath(data)
    if "://" not in text and glob.has_magic(text) and Path(text).suffix.lower() in KINDS and not os.path.exists(text):
        found = sorted(map(Path, glob.glob(text)))
        if not found:
            raise DataError(f"{text}: no file fits this pattern")
        return found
    folder = Path(text)
    if "://" in text or not os.path.isdir(text):  # opening reports names that are too long
        return None
    return _all_recordings(sorted(folder.iterdir()))


def _all_recordings(files: list[Path]) -> list[Path] | None:
    """The files that are not hidden, if all of these are recordings; else None."""
    held = [file for file in files if not file.name.startswith(".")]
    return held if held and all(file.is_file() and file.suffix.lower() in KINDS for file in held) else None
