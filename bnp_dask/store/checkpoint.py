"""Checkpoints: as they are read, as the next one builds upon them, and as they wait to be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.store.parts import Part


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What one commit saved.

    Parameters
    ----------
    state
        JSON-able state.
    arrays
        Named arrays.
    history
        All rows up to this checkpoint.
    number
        Grows by at least one from commit to commit.
    summaries
        Batch and visit of the summaries it refers to, ``(B, 2)`` int64.
    """

    state: dict[str, Any]
    arrays: dict[str, np.ndarray]
    history: list[dict[str, Any]]
    number: int
    summaries: np.ndarray


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint with what the next commit must know of it."""

    checkpoint: Checkpoint
    listing: np.ndarray  # (B, 3): batch, visit, bytes of the file
    history_bytes: int
    history_crc: int
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A checkpoint to be written: its number, state as JSON, arrays that nobody else has, new history rows, and parts
    that are in files already."""

    number: int
    state: str
    arrays: dict[str, np.ndarray]
    history: bytes
    parts: tuple[Part, ...] = ()
