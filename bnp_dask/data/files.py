"""Paths and URLs: one way to look, open and rename, here or on any store that fsspec knows."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import fsspec
from zarr.storage import FsspecStore, LocalStore

from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.settings import path_text, shown

LOCAL = "file"


@dataclass(frozen=True)
class Location:
    """A file or folder.  Picklable; workers open it themselves.

    Parameters
    ----------
    url
        Absolute local path, or URL with protocol.
    options
        What fsspec passes to the file system (credentials, endpoints).
    shown
        What the user wrote, for messages.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shown: str = ""

    @staticmethod
    def of(path: str | os.PathLike[str], options: Mapping[str, Any] | None = None, argument: str = "path") -> Location:
        """A location from what the user wrote; local paths become absolute, as workers may run elsewhere.

        ``argument`` is the name of the argument, for messages.
        """
        text = path_text(argument, path)
        if options is not None and not isinstance(options, Mapping):
            raise SettingError(f"storage_options={shown(options)}: needs a mapping, such as {{'anon': True}}")
        if text.startswith("file://"):
            return Location(os.path.abspath(text.removeprefix("file://")), {}, text)
        if "://" in text or "::" in text:
            return Location(text.rstrip("/"), dict(options or {}), text)
        return Location(os.path.abspath(Path(text).expanduser()), {}, text)

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the machine's own file system."""
        return "://" not in self.url

    @property
    def name(self) -> str:
        """What the user wrote, or the last part of a location derived from it."""
        return self.shown or self.url

    @property
    def basename(self) -> str:
        """Last part of the path."""
        return posixpath.basename(self.url.replace(os.sep, "/"))

    def child(self, *parts: str) -> Location:
        """A location below this one."""
        tail = "/".join(parts)
        return Location(f"{self.url}/{tail}", self.options, f"{self.name.rstrip('/')}/{tail}")

    def sibling(self, name: str) -> Location:
        """Another name in the same folder."""
        return Location(f"{self.url.rsplit('/', 1)[0]}/{name}", self.options, name)

    def filesystem(self) -> tuple[Any, str]:
        """The fsspec file system and the path in it."""
        return fsspec.core.url_to_fs(self.url, **self.options)

    def exists(self) -> bool:
        """Whether there is a file or folder here."""
        if self.is_local:
            return os.path.exists(self.url)
        fs, path = self.filesystem()
        return bool(fs.exists(path))

    def is_dir(self) -> bool:
        """Whether this is a folder."""
        if self.is_local:
            return os.path.isdir(self.url)
        fs, path = self.filesystem()
        return bool(fs.isdir(path))

    def size_if_any(self) -> int | None:
        """Bytes of a file, or None when there is none."""
        try:
            return os.path.getsize(self.url) if self.is_local else self.size()
        except FileNotFoundError:
            return None

    def size(self) -> int:
        """Bytes of a file."""
        fs, path = self.filesystem()
        return int(fs.size(path))

    def open(self, compression: str | None = None) -> IO[bytes]:
        """The file for reading; ``compression="infer"`` unpacks by suffix."""
        return fsspec.open(self.url, "rb", compression=compression, **self.options).open()

    def files(self, suffixes: tuple[str, ...]) -> list[Location]:
        """All files below this folder with one of the suffixes, sorted by path; hidden ones are left out."""
        fs, path = self.filesystem()
        found = []
        for full in sorted(fs.find(path)):
            tail = full[len(path) :].lstrip("/") if full.startswith(path) else posixpath.basename(full)
            if tail.endswith(suffixes) and not any(p.startswith((".", "_")) for p in tail.split("/")):
                found.append(self.child(tail))
        return found

    def names(self) -> list[str]:
        """Names in this folder; none when there is no such folder."""
        fs, path = self.filesystem()
        try:
            return sorted(posixpath.basename(p.rstrip("/")) for p in fs.ls(path, detail=False))
        except (OSError, ValueError):
            return []

    def require(self) -> None:
        """Raise DataError when nothing is here, with the nearest name that exists."""
        if self.exists():
            return
        folder = self.sibling("").url.rstrip("/") or "/"
        hint = nearest(self.basename, Location(folder, self.options).names())
        raise DataError(f"{self.name}: no such file or folder{hint}")

    def remove(self) -> None:
        """Delete the file, or the folder with all in it."""
        fs, path = self.filesystem()
        fs.rm(path, recursive=True)

    def zarr_store(self, read_only: bool = True) -> LocalStore | FsspecStore:
        """The folder as a Zarr store."""
        if self.is_local:
            return LocalStore(self.url, read_only=read_only)
        return FsspecStore.from_url(self.url, storage_options=dict(self.options), read_only=read_only)
