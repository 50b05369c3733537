"""Known labels of some atoms, cut into batches as the data are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Source
from bnp_dask.data.beside import is_unknown, loaded, with_beside
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
        of a .npy file of numbers or texts.  Masked entries are unknown.
    names
        Names that a run has already; others are refused.  None: the names that occur.
    what
        Argument that the user gave, for messages.

    Raises
    ------
    DataError
        Not one-dimensional, labels that are neither texts nor whole numbers, no known label, or unknown names.
    """
    given, where = loaded(given, what, "label for each atom", texts=True)
    values = _array(given, where)
    known, values = _known(values, where)
    found, codes = np.unique(values[known], return_inverse=True)
    own = tuple(found.tolist())
    if names is None and not own:
        raise DataError(f"{where}: no label is known, all are -1 or None; leave them out")
    strange = [name for name in own if names is not None and name not in names]
    if strange:
        raise DataError(f"{where}: {shown(strange[0])} is no label of this run, which has {shown(names)}")
    order = own if names is None else names
    positions = {name: i for i, name in enumerate(order)}
    place = np.array([positions[name] for name in own], np.int32)
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
    if is_unknown(value):
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


def _labelled(batch: Batch, values: np.ndarray) -> Batch:
    """The batch with labels ``(n,)`` of its atoms."""
    if batch.n_atoms != len(values):
        raise DataError(f"{batch.name}: {batch.n_atoms} atoms, but {len(values)} labels; the data changed")
    return replace(batch, labels=values.astype(np.int64))


def with_labels(source: Source, labels: Labels) -> Source:
    """The source with one label, known or not, for each atom; DataError as :func:`with_beside`."""
    return with_beside(source, labels.codes, "labels", "atoms", "-1", _labelled, labels.names)
