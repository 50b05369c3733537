"""Paths of this machine as users write them."""

from __future__ import annotations

import os
from pathlib import Path

from bnp_dask.errors import SettingError
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
