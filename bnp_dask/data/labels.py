"""Known labels of some atoms, cut into batches as the data are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, Source, fingerprint_of, spans_of
from bnp_dask.data.view import Changed, View
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown

UNKNOWN = -1
"""Code of an atom without a known label."""

LARGEST = 2**63
"""Least whole number that is too large for a label."""

Name = str | int


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of atoms.

    Parameters
    ----------
    codes
        Position among the names, ``(n,)`` int32; :data:`UNKNOWN` where no label is known.
    names
        The labels, ascending: texts, or whole numbers.
    """

    codes: np.ndarray
    names: tuple[Name, ...]


def labels_of(given: Any, names: tuple[Name, ...] | None = None, what: str = "labels") -> Labels:
    """Labels in any form that a user may give them.

    Parameters
    ----------
    given
        ``(n,)``: whole numbers, negative where unknown; or texts, None, NaN or an empty text where unknown; or the path
        of a .npy file of numbers.  Masked entries are unknown.
    names
        Names that a run has already; others are refused.  None: the names that occur.
    what
        Name of the argument, for messages.

    Raises
    ------
    DataError
        Not one-dimensional, labels that are neither texts nor whole numbers, no known label, or unknown names.
    """
    where = what
    if isinstance(given, (str, os.PathLike)):
        where = os.fspath(given)
        if not where.endswith(".npy"):
            raise DataError(
                f"{what}={where!r}: needs an array with one label for each atom, or the path of a .npy file"
            )
        try:
            given = np.load(where, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{what}={where!r} cannot be read: {error}") from error
    values = _array(given, where)
    known, values = _known(values, where)
    found, codes = np.unique(values[known], return_inverse=True)
    own = tuple(found.tolist())
    if names is None and not own:
        raise DataError(f"{where}: no label is known, all are -1 or None; leave {what} out")
    strange = [name for name in own if names is not None and name not in names]
    if strange:
        raise DataError(f"{where}: {shown(strange[0])} is no label of this run, which has {shown(names)}")
    order = own if names is None else names
    place = np.array([order.index(name) for name in own], np.int32)
    out = np.full(len(values), UNKNOWN, np.int32)
    out[known] = place[codes]
    return Labels(out, order)


def _array(given: Any, where: str) -> np.ndarray:
    """Labels as an array of one axis."""
    if isinstance(given, (set, frozenset)) or (hasattr(given, "items") and not hasattr(given, "iloc")):
        raise DataError(
            f"{where} are a {type(given).__name__}, which has no order; needs one label for each atom, (n,)"
        )
    try:
        values = np.asarray(given)
        if values.dtype.kind == "U" and not isinstance(given, np.ndarray):
            values = np.array(given, object)  # NumPy turns numbers beside texts into texts
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: {shown(given)} is no array of labels: {error}") from error
    if values.ndim != 1:
        raise DataError(f"{where} have shape {values.shape}; needs one label for each atom, (n,)")
    if isinstance(given, np.ma.MaskedArray):
        values = values.astype(object)
        values[np.ma.getmaskarray(given)] = None
    return values


def _known(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Mask of the known labels, and all labels as numbers or texts."""
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind in "iuf":
        known = ~np.isnan(values) & (values >= 0)
        wrong = known & ~((values < LARGEST) & (values == np.floor(values)))
        if wrong.any():
            raise DataError(f"{where}: a label is {values[wrong][0]}; needs whole numbers below 2**63")
        return known, np.where(known, np.where(known, values, 0).astype(np.int64), UNKNOWN)
    if values.dtype.kind in "OU":
        texts = [_text(value, where) for value in values.tolist()]
        if any(isinstance(text, int) for text in texts):
            if any(isinstance(text, str) and text for text in texts):
                raise DataError(f"{where}: some labels are texts and some are numbers; give them in one form")
            numbers = [text if isinstance(text, int) else UNKNOWN for text in texts]
            if max(numbers) >= LARGEST:
                raise DataError(f"{where}: a label is {shown(max(numbers))}; needs whole numbers below 2**63")
            whole = np.array([max(number, UNKNOWN) for number in numbers], np.int64)
            return whole >= 0, whole
        array = np.array(texts, str)
        return array != "", array
    raise DataError(f"{where}: labels of dtype {values.dtype}; needs whole numbers or texts")


def _text(value: Any, where: str) -> str | int:
    """A label as text or number; "" for an unknown one."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # pandas: NA is not even equal to itself
        return ""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer, np.bool_)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if np.isnan(value):
            return ""
        if float(value).is_integer():
            return int(value)
    raise DataError(f"{where}: {shown(value)} is neither text nor a whole number; unknown labels are None or -1")


@dataclass(frozen=True, eq=False, repr=False)
class LabelledSource(View):
    """A source whose atoms have labels, some of them known."""

    spans: Sequence[tuple[int, int]]
    labels: Labels

    def reader(self, index: int) -> Reader:
        start, stop = self.spans[index]
        return Changed(self.whole.reader(index), partial(_labelled, codes=self.labels.codes[start:stop]))

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.whole), self._digest()]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "labels": self._digest()}

    def _digest(self) -> str:
        return f"crc32 {zlib.crc32(self.labels.codes.tobytes())}"


def _labelled(batch: Batch, codes: np.ndarray) -> Batch:
    """The batch with labels ``(n,)`` of its atoms."""
    if batch.n_atoms != len(codes):
        raise DataError(f"{batch.name}: {batch.n_atoms} atoms, but {len(codes)} labels; the data changed")
    return replace(batch, labels=codes.astype(np.int64))


def with_labels(source: Source, labels: Labels) -> LabelledSource:
    """The source with one label, known or not, for each atom.

    Raises
    ------
    DataError
        Another number of labels than of atoms, or a source whose batches have unknown lengths.
    """
    spans = spans_of(source)
    if spans is None:
        raise DataError(
            f"{source.name}: the lengths of its batches are unknown, so that labels cannot be cut as they are; "
            "ingest the data into a Zarr store first (bnp-dask ingest)"
        )
    n = spans[-1][1] if spans else 0
    if len(labels.codes) != n:
        raise DataError(
            f"{len(labels.codes)} labels for the {n} atoms of {source.name}; needs one for each, -1 unknown"
        )
    return LabelledSource(source, tuple(spans), labels)
