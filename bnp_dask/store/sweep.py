"""Removal of unneeded files after a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bnp_dask.store.checkpoint import Committed, Listing
from bnp_dask.store.place import Key, place_of
from bnp_dask.store.summaries import BATCHES_PER_FOLDER, SummaryFiles


def checkpoint_numbers(path: Path | Key) -> list[int]:
    """Numbers of the checkpoints in a run directory."""
    return [number for number, suffix, _ in _checkpoint_files(path) if suffix == "json"]


def remove_checkpoints(path: Path | Key, kept: Iterable[int]) -> int:
    """Remove all checkpoints except these numbers and newer ones; return the newest number that existed."""
    numbers, files = set(kept), list(_checkpoint_files(path))
    newest = max(numbers, default=None)
    found = [f for f in files if f[0] not in numbers and (newest is None or f[0] < newest)]
    # first the heads, which make checkpoints valid
    for own in ("json", "npz"):
        place_of(path).remove(file for _, suffix, file in found if suffix == own)
    return max((number for number, suffix, _ in files if suffix == "json"), default=0)


def _checkpoint_files(path: Path | Key) -> Iterator[tuple[int, str, Path | Key]]:
    """Number, suffix and path of all files of checkpoints."""
    folder = path / "checkpoints"
    for name in place_of(folder).names(folder):
        stem, _, suffix = name.partition(".")
        if stem.isdigit() and suffix in ("json", "npz"):
            yield int(stem), suffix, folder / name


def remove_summaries(files: SummaryFiles, kept: Sequence[Committed], dropped: Committed | None) -> None:
    """Remove summaries that no ``kept`` checkpoint, oldest first, refers to, unless they are newer than all of these.

    Newer summaries may be for the next commit.  Only folders that changed since the checkpoint ``dropped`` are read;
    all folders if it is None.
    """
    listings = [c.listing for c in kept]
    for folder in _changed_folders(files, [None if dropped is None else dropped.listing, *listings]):
        place_of(folder).remove(_unneeded(files, folder, listings))


def _changed_folders(files: SummaryFiles, listings: Sequence[Listing | None]) -> Iterator[Path | Key]:
    numbers: set[int] = set()
    for old, new in zip(listings[:-1], listings[1:], strict=True):
        if new is not None:
            numbers.update(np.unique(new.batches[new.new_since(old)] // BATCHES_PER_FOLDER).tolist())
    return (files.folder_of(number * BATCHES_PER_FOLDER) for number in sorted(numbers))


def _unneeded(files: SummaryFiles, folder: Path | Key, listings: Sequence[Listing]) -> Iterator[Path | Key]:
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
