"""Summaries of a run that has no directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError
from bnp_dask.store.checkpoint import Listing, Part, PartFiles
from bnp_dask.store.files import dump_json
from bnp_dask.store.reach import PostedFiles, begin_session
from bnp_dask.store.summaries import NO_RECEIPT, Receipt, SummaryFiles

_Entry = tuple[dict[str, np.ndarray], dict[str, Any]]


class MemoryStore:
    """Holds summaries in memory up to a limit, and further ones in a temporary directory.

    The newest visit of every batch is kept: without a directory there is no older checkpoint to go back to.

    Parameters
    ----------
    max_bytes
        Bytes of arrays held in memory; 256 MB when not given.
    """

    def __init__(self, max_bytes: int = 256_000_000) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        # Batch -> visit -> content, or the receipt of its file if it is on the disk.
        self._entries: dict[int, dict[int, _Entry | Receipt]] = {}
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._session: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of arrays held in memory."""
        return self._held

    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> Receipt:
        """Keep a copy of a summary."""
        dump_json(meta or {})  # refuses data that a run directory would refuse
        visits = self._entries.setdefault(batch, {})
        for known in [v for v in visits if v <= visit]:
            self._drop(batch, known)
        size = sum(np.asarray(a).nbytes for a in arrays.values())
        if self._held + size <= self._max_bytes:
            visits[visit] = (_copies(arrays), dict(meta or {}))
            self._held += size
        else:
            visits[visit] = self._files().put(batch, visit, arrays, meta)
        return NO_RECEIPT

    def get_summary(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """A copy of a summary, and its meta data."""
        visits = self._entries.get(batch, {})
        if visit not in visits:
            raise StoreError(f"no summary of batch {batch} at visit {visit}; this batch has visits {sorted(visits)}")
        entry = visits[visit]
        if isinstance(entry, Receipt):
            return self._files().get(batch, visit, entry)
        return _copies(entry[0]), dict(entry[1])

    def part_files(self) -> PartFiles:
        """Files of larger things."""
        return PartFiles(self._folder() / "parts")

    def forget_parts(self, parts: Iterable[Part]) -> None:
        """Remove unreferenced files."""
        names = [part.name for part in parts]
        if names:
            self.part_files().remove(names)

    def board(self) -> PostedFiles:
        """Files that this process may leave for tasks, in the temporary directory: workers of this machine reach it."""
        folder = self._folder()
        if self._session is None:
            self._session = begin_session(folder)
        return PostedFiles(folder, self._session)

    def commit(
        self,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: Sequence[Mapping[str, Any]],
        listing: Listing,
    ) -> None:
        """Save nothing; forget summaries older than the ``listing``."""
        self.forget((batch, visit) for batch, visit, _ in listing.entries())

    def forget(self, keep: Iterable[tuple[int, int]]) -> None:
        """Forget, for the batches in ``keep``, the visits before the named one."""
        for batch, visit in keep:
            for old in [v for v in self._entries.get(batch, ()) if v < visit]:
                self._drop(batch, old)

    def load(self, refused: Any = None, fields: Any = None) -> None:
        """Return None: there is never a checkpoint."""
        return None

    def close(self) -> None:
        """Forget everything and remove the temporary directory."""
        self._entries.clear()
        self._held = 0
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = self._session = None

    def _drop(self, batch: int, visit: int) -> None:
        visits = self._entries[batch]
        if visit not in visits:
            return
        entry = visits.pop(visit)
        if isinstance(entry, Receipt):
            Path(self._files().path(batch, visit, entry)).unlink(missing_ok=True)
        else:
            self._held -= sum(a.nbytes for a in entry[0].values())

    def _files(self) -> SummaryFiles:
        return SummaryFiles(self._folder() / "summaries")

    def _folder(self) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="bnp-dask-", ignore_cleanup_errors=True)
        return Path(self._directory.name)


def _copies(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    # In C order, as a file would give them back: the order of a sum, and so its last bits, depend on the layout.
    return {name: np.array(a, order="C", copy=True) for name, a in arrays.items()}
