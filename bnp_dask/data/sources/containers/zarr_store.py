"""Zarr stores that are given as objects: of Icechunk, of obstore, of fsspec, or in memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from bnp_dask.core.location import Location
from bnp_dask.errors import DataError

if TYPE_CHECKING:
    from zarr.abc.store import Store
    from zarr.storage import StorePath


@dataclass(frozen=True, eq=False)
class InStore:
    """A place in an open Zarr store, with the methods of :class:`Location` that readers of Zarr use.

    It can be sent to workers if its store can; a store in memory cannot.

    Parameters
    ----------
    store
        Any store of zarr.
    path
        Path of a group or array in it.
    """

    store: Store
    path: str = ""
    is_local = False

    @property
    def name(self) -> str:
        """The kind of the store, and the path in it."""
        return f"{type(self.store).__name__}{f' /{self.path}' if self.path else ''}"

    @property
    def basename(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    def child(self, *parts: str) -> InStore:
        """A place below this one."""
        return InStore(self.store, "/".join([*([self.path] if self.path else []), *parts]))

    def exists(self) -> bool:
        """Whether the store has exactly this key."""
        return bool(self._told(self.store.exists(self.path)))

    def size_if_any(self) -> int | None:
        """Bytes under this key, or None if it does not exist."""
        # some stores report zero bytes for a missing key
        return int(self._told(self.store.getsize(self.path))) if self.exists() else None

    def zarr_path(self) -> StorePath:
        """The place as a ``StorePath`` of zarr."""
        from zarr.storage import StorePath

        return StorePath(self.store, self.path)

    def _told(self, answer: Any) -> Any:
        from zarr.core.sync import sync

        try:
            return sync(answer)
        except Exception as error:  # every store has its own errors
            raise DataError(f"{self.name}: cannot be read ({type(error).__name__}: {error})") from error

    def __reduce__(self) -> Any:
        from zarr.storage import MemoryStore

        if isinstance(self.store, MemoryStore):
            self._stays()
        return InStore, (self.store, self.path)

    def _stays(self) -> NoReturn:
        raise DataError(
            f"{self.name} lies in the memory of this process, where workers cannot read it; pass an array, or write "
            "it to a folder or an object store that they reach"
        )


Place = Location | InStore
"""Place of a Zarr array or group."""


def place_of_node(data: Any) -> Any:
    """Place of an open Zarr array, group or store: the path of a local folder, else the place in the store.

    Anything else is returned unchanged.
    """
    if "zarr" not in sys.modules:
        return data
    import zarr
    from zarr.abc.store import Store
    from zarr.storage import LocalStore, StorePath

    if isinstance(data, zarr.Array | zarr.Group | StorePath):
        store, path = data.store, data.path
    elif isinstance(data, Store):
        store, path = data, ""
    else:
        return data
    return str(store.root / path) if isinstance(store, LocalStore) else InStore(store, path)
