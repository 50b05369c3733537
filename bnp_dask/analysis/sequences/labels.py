"""Labels of the steps of sequences in any form: one vector, one for each sequence, or as ``predict`` wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set, Sized
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.core.location import Location
from bnp_dask.data.base import Source
from bnp_dask.data.groups import GroupedSource, check_offsets
from bnp_dask.data.sources.open import parquet_pieces
from bnp_dask.data.sources.parquet import open_file, parquet_files
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import plain, to_float
from bnp_dask.inputs.settings import shown

ROWS = 2**18
"""Number of rows of written labels in memory at a time."""

Piece = tuple[np.ndarray, np.ndarray]
"""Labels ``(n,)``, and whether a sequence starts at each, ``(n,)`` bool."""


def offsets_of(sequences: Any, n_steps: int) -> np.ndarray:
    """Offsets ``(G + 1,)`` of sequences that are given as offsets, as a list of arrays, or as their source.

    None: all steps are one sequence.
    """
    if sequences is None:
        return np.array([0, n_steps])
    if isinstance(sequences, GroupedSource):
        offsets = sequences.all_offsets()
    elif isinstance(sequences, Source):
        raise DataError(
            f"{sequences.name}: this source does not know where its sequences start; give their offsets (G + 1,)"
        )
    elif is_list_of_arrays(sequences):
        offsets = np.concatenate([[0], np.cumsum([len(x) for x in sequences])])
    else:
        offsets = sequences
    return check_offsets(offsets, n_steps, "sequences")


def is_list_of_arrays(value: Any) -> bool:
    """Whether this is a list of arrays, one for each sequence, and not a list of numbers."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(_has_length(x) for x in value)


def _has_length(value: Any) -> bool:
    return isinstance(value, Sized) and not isinstance(value, (str, bytes, Mapping, Set))


def split_sequences(labels: Any, sequences: Any) -> list[np.ndarray]:
    """Labels (or other values) of steps, one array for each sequence.

    Parameters
    ----------
    labels
        ``(n,)`` or ``(n, ...)``, in the order of the data, as :func:`bnp_dask.predict` gives them.
    sequences
        Offsets ``(G + 1,)``, the list of arrays that was predicted for, or its source.
    """
    values = plain(labels, "labels")
    offsets = offsets_of(sequences, len(values))
    return [values[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


def as_list(labels: Any, sequences: Any = None) -> list[np.ndarray]:
    """Labels of each sequence, ``(n_g,)``, from one vector or a list of them."""
    if is_list_of_arrays(labels):
        found = [plain(x, "labels") for x in labels]
        if sequences is not None:
            offsets = offsets_of(sequences, sum(map(len, found)))
            if [len(x) for x in found] != np.diff(offsets).tolist():
                raise DataError("the labels are of sequences of other lengths than the given; leave sequences= out")
    else:
        found = split_sequences(labels, sequences)
    for g, x in enumerate(found):
        if x.ndim != 1:
            raise DataError(f"labels of sequence {g} have shape {x.shape}; needs one label for each step, (n,)")
    return found


def label_pieces(labels: Any, sequences: Any = None) -> Iterator[Piece]:
    """Labels piece by piece with the starts of sequences; a path of Parquet files is read a part at a time."""
    if isinstance(labels, (str, os.PathLike)):
        if sequences is not None:
            raise DataError(f"{os.fspath(labels)} says itself which sequence each step is of; leave sequences= out")
        yield from _written(Location.of(labels, argument="labels"))
        return
    if not _has_length(labels) or (isinstance(labels, np.ndarray) and labels.ndim == 0):
        raise DataError(f"labels={shown(labels)}: needs one label for each step, or a list of such vectors, or a path")
    for x in as_list(labels, sequences):
        starts = np.zeros(len(x), np.bool_)
        starts[:1] = True
        yield x, starts


def _written(location: Location) -> Iterator[Piece]:
    """Columns ``sequence`` and ``state`` of an output of :func:`bnp_dask.predict`."""
    location.require()
    with open_file(parquet_files(location)[0]) as file:
        known = file.schema_arrow.names
    if not {"sequence", "state"} <= set(known):
        raise DataError(
            f"{location.name} has columns {', '.join(known)}; needs sequence and state, as predict(..., "
            "out='labels.parquet') writes for a hidden Markov model"
        )
    last: pa.Array | None = None
    for piece in parquet_pieces(location, ["sequence", "state"], ROWS):
        ids = piece.column(0)
        if len(ids) == 0:
            continue
        starts = np.ones(len(ids), np.bool_)
        starts[1:] = np.asarray(pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False))
        if last is not None:
            starts[0] = last[0] != ids[0]
        last = ids[-1:]
        yield piece.column(1).to_numpy(zero_copy_only=False), starts


def without_missing(sequences: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
    """Sequences without the rows that have missing values (NaN or infinite); a new part starts after such a row.

    Parameters
    ----------
    sequences
        One array ``(n_g, D)`` for each.

    Returns
    -------
    parts, places
        The runs of complete rows, and for each the number of its sequence and its first row there.  Sequences without a
        complete row have no part.
    """
    parts: list[np.ndarray] = []
    places: list[tuple[int, int]] = []
    if not is_list_of_arrays(sequences) and len(np.shape(sequences)) < 2:
        raise DataError(f"sequences={shown(sequences)}: needs a list of matrices, one for each sequence")
    for g, x in enumerate(sequences):
        rows = to_float(plain(x, f"sequences[{g}]"), f"sequences[{g}]")
        if rows.ndim != 2:
            raise DataError(f"sequences[{g}] has shape {rows.shape}; needs a matrix, one row for each step")
        edges = np.diff(np.concatenate([[0], np.isfinite(rows).all(axis=1).astype(np.int8), [0]]))
        for a, b in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
            parts.append(rows[a:b])
            places.append((g, a))
    return parts, places
