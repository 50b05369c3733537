"""Files of arrays that a checkpoint refers to beside its own: written once, and read on demand."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError
from bnp_dask.inputs.places import name_in_file
from bnp_dask.store.files import pack, unpack
from bnp_dask.store.place import DamagedError, Key, place_of


@dataclass(frozen=True)
class Part:
    """A file, with the size and checksum that it must have.

    Parameters
    ----------
    name
        Name of the file in its folder.
    size, crc
        Its bytes, and their CRC-32.
    """

    name: str
    size: int
    crc: int

    def __post_init__(self) -> None:
        name_in_file(self.name, "a part of a checkpoint")


@dataclass(frozen=True)
class PartFiles:
    """Parts in a folder, which is made when the first is written."""

    folder: Path | Key

    def path(self, name: str) -> Path | Key:
        """File of a part."""
        return self.folder / name

    def put(self, name: str, arrays: Mapping[str, np.ndarray]) -> Part:
        """Write named arrays; StoreError if the disk is full."""
        data = pack(arrays)
        place_of(self.folder).write_once(self.path(name), data)
        return Part(name, len(data), zlib.crc32(data))

    def read(self, part: Part) -> bytes:
        """Content of a part; DamagedError if it is missing or does not match."""
        data = place_of(self.folder).read(self.path(part.name))
        if (len(data), zlib.crc32(data)) != (part.size, part.crc):
            raise DamagedError(f"{self.path(part.name)} is damaged (its checksum does not fit)")
        return data

    def get(self, part: Part) -> dict[str, np.ndarray]:
        """Arrays of a part; StoreError if it is missing or damaged."""
        try:
            return unpack(self.read(part), self.path(part.name))[0]
        except DamagedError as error:
            raise StoreError(
                f"{error}; put the file back from a copy, or remove the newest checkpoint to resume from the one before"
            ) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove unreferenced parts."""
        place_of(self.folder).remove(self.path(name) for name in names)


@dataclass
class CommittedParts:
    """The parts in a folder that checkpoints refer to; the others wait for a commit, and are left alone.

    Parameters
    ----------
    files
        The folder.
    names
        Names of the parts that belong to a checkpoint.
    """

    files: PartFiles
    names: set[str] = field(default_factory=set)

    def new(self, parts: Iterable[Part]) -> list[Path | Key]:
        """Files of the parts that no checkpoint has referred to so far."""
        return [self.files.path(part.name) for part in parts if part.name not in self.names]

    def only(self, kept: Iterable[Part]) -> None:
        """Keep these parts; remove parts that checkpoints no longer refer to."""
        names = {part.name for part in kept}
        self.files.remove(self.names - names)
        self.names = names

    def begin(self, kept: Iterable[Part]) -> None:
        """Go on with a run whose checkpoints refer to these parts; remove also parts put without a commit."""
        self.names = set(place_of(self.files.folder).names(self.files.folder)) or self.names
        self.only(kept)


def parts_in(content: Mapping[str, Any]) -> tuple[Part, ...]:
    """Parts that the JSON of a checkpoint names; older ones name none."""
    return tuple(Part(*part) for part in content.get("parts", ()))
