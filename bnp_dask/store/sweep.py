"""What nobody needs any more after a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bnp_dask.store.checkpoint import Committed, Listing
from bnp_dask.store.files import remove
from bnp_dask.store.summaries import BATCHES_PER_FOLDER, SummaryFiles


def checkpoint_numbers(path: Path) -> list[int]:
    """Numbers of the checkpoints in a run directory."""
    return [int(p.stem) for p in (path / "checkpoints").glob("*.json") if p.stem.isdigit()]


def remove_checkpoints(path: Path, kept: Iterable[int]) -> None:
    """Remove all checkpoints but those with these numbers."""
    numbers = set(kept)
    remove(p for p in (path / "checkpoints").glob("*.json") if p.stem.isdigit() and int(p.stem) not in numbers)
    remove(p for p in (path / "checkpoints").glob("*.npz") if p.stem.isdigit() and int(p.stem) not in numbers)


def remove_summaries(files: SummaryFiles, kept: Sequence[Committed], dropped: Committed | None) -> None:
    """Remove summaries that no ``kept`` checkpoint, oldest first, refers to, unless they are newer than all of these.

    Those that are newer may be for the next commit.  Only folders are looked into where something changed since the
    checkpoint that was ``dropped``; in all of them where that is None.
    """
    listings = [c.listing for c in kept]
    for folder in _changed_folders(files, [None if dropped is None else dropped.listing, *listings]):
        remove(_unneeded(files, folder, listings))


def _changed_folders(files: SummaryFiles, listings: Sequence[Listing | None]) -> Iterator[Path]:
    numbers: set[int] = set()
    for old, new in zip(listings[:-1], listings[1:], strict=True):
        if new is not None:
            numbers.update(np.unique(new.batches[new.new_since(old)] // BATCHES_PER_FOLDER).tolist())
    return (files.folder_of(number * BATCHES_PER_FOLDER) for number in sorted(numbers))


def _unneeded(files: SummaryFiles, folder: Path, listings: Sequence[Listing]) -> Iterator[Path]:
    found = list(files.names(folder))
    batches = np.unique([key[0] for _, key in found])
    needed: set[tuple[int, int, int]] = set()
    newest: dict[int, int] = {}
    for listing in listings:
        for batch, visit, receipt in listing.entries(np.isin(listing.batches, batches)):
            needed.add((batch, visit, receipt.crc32))
            newest[batch] = max(visit, newest.get(batch, -1))
    for path, key in found:
        if key not in needed and key[1] <= newest.get(key[0], -1):
            yield path
