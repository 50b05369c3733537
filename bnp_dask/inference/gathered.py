"""Atoms that a lap gathers for the proposals of the next: in memory up to a limit, in files beyond it.

The place of atoms changes no bit: the atoms of a cluster are concatenated in the order of their batches.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bnp_dask.core import Batch, batch_from_arrays, batch_to_arrays, concatenate
from bnp_dask.store import Part, PartFiles

ROOM = 2**26
"""Bytes of gathered atoms held in memory, by default."""

EMBEDDED = 2**22
"""Bytes of gathered atoms up to which each checkpoint contains them; more are written once, to their own files."""


@dataclass
class Gathered:
    """Atoms of some clusters in the order in which they came.

    Parameters
    ----------
    pieces
        By cluster id: the atoms, or the file that holds them.
    held
        Bytes of the atoms in memory.
    """

    pieces: dict[int, list[Batch | Part]] = field(default_factory=dict)
    held: int = 0

    def add(self, cluster: int, atoms: Iterable[Batch]) -> None:
        """Add atoms of a cluster."""
        some = self.pieces.setdefault(cluster, [])
        for piece in atoms:
            some.append(piece)
            self.held += piece.nbytes

    def widen(self, width: int) -> None:
        """Append columns of zeros to the atoms in memory, up to ``width`` columns; files are widened when read."""
        for some in self.pieces.values():
            some[:] = [piece.widened(width) if isinstance(piece, Batch) else piece for piece in some]

    def write(self, files: PartFiles) -> None:
        """Move the atoms in memory to files, one for each cluster."""
        for cluster, atoms in self.in_memory().items():
            part = files.put(f"atoms-{uuid.uuid4().hex}.npz", batch_to_arrays(atoms))
            self.pieces[cluster] = [*self.parts_of(cluster), part]
        self.held = 0

    def move(self, files: PartFiles, other: PartFiles) -> None:
        """Move the files from ``files`` to ``other``."""
        for cluster, some in self.pieces.items():
            self.pieces[cluster] = [
                other.put(piece.name, files.get(piece)) if isinstance(piece, Part) else piece for piece in some
            ]

    def parts_of(self, cluster: int) -> list[Part]:
        """Files with atoms of a cluster."""
        return [piece for piece in self.pieces[cluster] if isinstance(piece, Part)]

    def parts(self) -> list[Part]:
        """Files with atoms of any cluster."""
        return [part for cluster in self.pieces for part in self.parts_of(cluster)]

    def in_memory(self) -> dict[int, Batch]:
        """The atoms in memory of each cluster, as one batch; concatenated only once."""
        out = {}
        for cluster, some in self.pieces.items():
            held = [piece for piece in some if isinstance(piece, Batch)]
            if len(held) > 1:
                held = [concatenate(held)]
                self.pieces[cluster] = [*self.parts_of(cluster), *held]
            if held:
                out[cluster] = held[0]
        return out


class GatheredAtoms(Mapping[int, Batch]):
    """All gathered atoms of each cluster, read on lookup.

    Parameters
    ----------
    gathered
        The atoms.
    files
        Returns the files of the atoms that are not in memory.
    room
        Bytes of atoms read from files that stay in memory for the next lookup.
    width
        Current number of columns of the data; files may be from before some were added.
    """

    def __init__(self, gathered: Gathered, files: Callable[[], PartFiles], room: int, width: int | None = None) -> None:
        self._gathered, self._files, self._room, self._width = gathered, files, room, width
        self._held = gathered.in_memory()
        self._read: OrderedDict[int, Batch] = OrderedDict()

    def __getitem__(self, cluster: int) -> Batch:
        parts = self._gathered.parts_of(cluster)
        if not parts:
            return self._held[cluster]
        if cluster not in self._read:
            files = self._files()
            found = [batch_from_arrays(files.get(part), "gathered atoms") for part in parts]
            found = found if self._width is None else [atoms.widened(self._width) for atoms in found]
            found += [self._held[cluster]] if cluster in self._held else []
            self._read[cluster] = concatenate(found)
        whole = self._read[cluster]
        self._read.move_to_end(cluster)
        while sum(batch.nbytes for batch in self._read.values()) > self._room:
            self._read.popitem(last=False)
        return whole

    def __iter__(self) -> Iterator[int]:
        return iter(self._gathered.pieces)

    def __len__(self) -> int:
        return len(self._gathered.pieces)

    def __contains__(self, cluster: object) -> bool:
        return cluster in self._gathered.pieces
