"""Known labels of some atoms, cut into batches as the data are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.data.base import Reader, Source, columns_of, fingerprint_of, shows_itself, spans_of
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown

UNKNOWN = -1
"""Code of an atom without a known label."""

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


def labels_of(given: Any, names: tuple[Name, ...] | None = None) -> Labels:
    """Labels in any form that a user may give them.

    Parameters
    ----------
    given
        ``(n,)``: whole numbers, negative where unknown; or texts, None, NaN or an empty text where unknown; or the path
        of a .npy file of numbers.
    names
        Names that a run has already; others are refused.  None: the names that occur.

    Raises
    ------
    DataError
        Not one-dimensional, labels that are neither texts nor whole numbers, no known label, or unknown names.
    """
    where = "labels"
    if isinstance(given, (str, os.PathLike)):
        where = os.fspath(given)
        if not where.endswith(".npy"):
            raise DataError(
                f"labels={where!r}: needs an array with one label for each atom, or the path of a .npy file"
            )
        try:
            given = np.load(where, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"labels={where!r} cannot be read: {error}") from error
    values = np.asarray(given)
    if values.dtype.kind == "U" and not isinstance(given, np.ndarray):
        values = np.array(given, object)  # NumPy turns numbers beside texts into texts
    if values.ndim != 1:
        raise DataError(f"{where} have shape {values.shape}; needs one label for each atom, (n,)")
    known, values = _known(values, where)
    found, codes = np.unique(values[known], return_inverse=True)
    own = tuple(found.tolist())
    if names is None and not own:
        raise DataError(f"{where}: no label is known, all are -1 or None; leave labels out")
    strange = [name for name in own if names is not None and name not in names]
    if strange:
        raise DataError(f"{where}: {shown(strange[0])} is no label of this run, which has {shown(names)}")
    order = own if names is None else names
    place = np.array([order.index(name) for name in own], np.int32)
    out = np.full(len(values), UNKNOWN, np.int32)
    out[known] = place[codes]
    return Labels(out, order)


def _known(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Mask of the known labels, and all labels as numbers or texts."""
    if values.dtype.kind in "iub":
        whole = values.astype(np.int64)
        return whole >= 0, whole
    if values.dtype.kind == "f":
        known = ~np.isnan(values) & (values >= 0)
        whole = np.where(known, values, UNKNOWN).astype(np.int64)
        if not np.array_equal(whole[known], values[known]):
            raise DataError(f"{where}: a label is {values[known][whole[known] != values[known]][0]}, no whole number")
        return known, whole
    if values.dtype.kind in "OU":
        texts = [_text(value, where) for value in values.tolist()]
        if any(isinstance(text, int) for text in texts):
            if any(isinstance(text, str) and text for text in texts):
                raise DataError(f"{where}: some labels are texts and some are numbers; give them in one form")
            whole = np.array([text if isinstance(text, int) else UNKNOWN for text in texts], np.int64)
            return whole >= 0, whole
        array = np.array(texts, str)
        return array != "", array
    raise DataError(f"{where}: labels of dtype {values.dtype}; needs whole numbers or texts")


def _text(value: Any, where: str) -> str | int:
    """A label as text or number; "" for an unknown one."""
    if value is None or value != value:  # None, NaN
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value).__name__ == "NAType":
        return ""
    raise DataError(f"{where}: {shown(value)} is neither text nor a whole number; unknown labels are None or -1")


@dataclass(frozen=True, eq=False)
class LabelledReader:
    """A batch of one source with the labels of its atoms ``(n,)``."""

    atoms: Reader
    codes: np.ndarray

    def __call__(self) -> Batch:
        batch = self.atoms()
        if batch.n_atoms != len(self.codes):
            raise DataError(f"{batch.name}: {batch.n_atoms} atoms, but {len(self.codes)} labels; the data changed")
        return replace(batch, labels=self.codes.astype(np.int64))


@shows_itself
@dataclass(frozen=True, eq=False)
class LabelledSource:
    """A source whose atoms have labels, some of them known."""

    atoms: Source
    spans: Sequence[tuple[int, int]]
    labels: Labels

    @property
    def name(self) -> str:
        return self.atoms.name

    @property
    def n_batches(self) -> int:
        return self.atoms.n_batches

    @property
    def n_features(self) -> int:
        return self.atoms.n_features

    @property
    def n_atoms(self) -> int | None:
        return self.atoms.n_atoms

    @property
    def is_sparse(self) -> bool:
        return self.atoms.is_sparse

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.atoms)

    def reader(self, index: int) -> Reader:
        start, stop = self.spans[index]
        return LabelledReader(self.atoms.reader(index), self.labels.codes[start:stop])

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.atoms), self._digest()]

    def describe(self) -> dict[str, Any]:
        return {**self.atoms.describe(), "labels": self._digest()}

    def _digest(self) -> str:
        return f"crc32 {zlib.crc32(self.labels.codes.tobytes())}"


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
