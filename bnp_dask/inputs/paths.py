"""Paths of this machine as users write them, and checks of places that a file names.

A job file, a run directory or a model says where to read, write or compute.  Such a file may be a stranger's, and none
of them may run code here.  Arguments and options of the caller may name more: a URL of any protocol that fsspec knows,
a chain of URLs, the address of a scheduler.  A file may name local paths and URLs of the protocols below, and a
scheduler only if the caller names the same one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bnp_dask.errors import HIDDEN, SettingError
from bnp_dask.inputs.settings import shown

NAME_BYTES = 255
"""Most bytes of a name in a folder: no common file system takes more."""

PATH_BYTES = 4095
"""Most bytes of a whole path that Linux takes."""

POSTERIOR_NAME = "posterior.zarr"
"""Name of the posterior in a run directory."""

DRAWS_NAME = "draws.zarr"
"""Name of the draws of a sampler in a run directory."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path with ``~`` replaced by its home directory.

    Raises
    ------
    SettingError
        No file can have this name: it is empty, holds a NUL or lone surrogates, is too long, begins with ``~`` and
        an unknown user, or is a URL.
    """
    text = os.fspath(path)
    if not text:
        raise SettingError("an empty path; needs the name of a file or directory")
    if "://" in text:
        raise SettingError(f"{shown(text)} is a URL; needs a path of this machine")
    found = os.path.expanduser(text)
    if text.startswith("~") and found == text:
        raise SettingError(
            f"{shown(text)}: there is no user {shown(text[1:].split('/')[0])} on this machine; write "
            f"{shown('./' + text)} for a name that begins with ~"
        )
    try:
        encoded = os.fsencode(found)
    except UnicodeEncodeError as error:
        raise SettingError(f"{shown(text)}: no path can hold {error.object[error.start : error.end]!r}") from error
    if b"\0" in encoded:
        raise SettingError(f"{shown(text)}: no path can hold a NUL character")
    longest = max(map(len, encoded.split(os.sep.encode())))
    if longest > NAME_BYTES:
        raise SettingError(f"{shown(text)}: a name of {longest} bytes; needs at most {NAME_BYTES}")
    if len(encoded) > PATH_BYTES:
        raise SettingError(f"{shown(text)}: a path of {len(encoded)} bytes; needs at most {PATH_BYTES}")
    return Path(found)


PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "hf")
"""Protocols of URLs that a file may name: they only read bytes.

Others of fsspec start programs, connect with keys of the user, take tasks of Dask, or read places named by a further
file (``reference://``).  So do chains of URLs, with ``::``.
"""


def place_in_file(place: str, where: str) -> str:
    """Return the path or URL that a file names, if a file may name it.

    Parameters
    ----------
    place
        Path or URL in the file.
    where
        Setting and file, for the message.

    Raises
    ------
    SettingError
        A file may not name this protocol, the place is a chain of URLs, or its password or signature was left out when
        the file was written.
    """
    protocol, mark, _ = place.partition("://")
    if not mark and "::" not in place:
        return place
    if "::" in place or protocol not in PROTOCOLS:
        raise SettingError(
            f"{where}: {shown(place)} is not opened because a file names it; files may name paths and URLs of "
            f"{', '.join(PROTOCOLS)}, without '::'. If you know it, pass it yourself, as an argument in Python: "
            "bnp_dask.as_source(URL), or copy the data to such a place"
        )
    if HIDDEN in place:
        raise SettingError(
            f"{where}: {shown(place)} had a password or a signature, which no file keeps; pass the whole URL again: as "
            "data of train(..., resume=True), or in the job file of 'bnp-dask train RUN.YAML --resume'"
        )
    return place


def name_in_file(name: Any, where: str) -> str:
    """Return the name, given in a file, of another file in its folder; SettingError if it leads out of the folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(mark in name for mark in "/\\:\0"):
        raise SettingError(f"{where}: {shown(name)} is no name of a file in this folder")
    return name


def scheduler_in_file(address: str, named: Any, where: str) -> str:
    """Return the address of a scheduler that a file names, if the caller names it too.

    Dask unpickles messages of a scheduler from the first one on, so that a scheduler can run any code here.

    Parameters
    ----------
    address
        Address in the file.
    named
        Address in the caller's own environment: ``scheduler-address`` of Dask's configuration, also set by
        ``DASK_SCHEDULER_ADDRESS``; None if unset.
    where
        Setting and file, for the message.

    Raises
    ------
    SettingError
        The caller names no scheduler, or another one.
    """
    if named == address:
        return address
    other = "" if named is None else f" (DASK_SCHEDULER_ADDRESS names {shown(named)})"
    raise SettingError(
        f"{where}: the scheduler {shown(address)} is not connected to because only a file names it{other}, and a "
        f"scheduler can run any code here. If it is yours, name it yourself: --scheduler {address or 'ADDRESS'}, or "
        "DASK_SCHEDULER_ADDRESS; --workers N computes on this machine instead"
    )
