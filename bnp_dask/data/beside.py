"""Values beside the data, one for each atom or document, cut into batches as the data are.

They are known labels of some atoms; must-links, groups of atoms that share a cluster; and observed responses of
documents.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from bnp_dask.core import Batch, Location
from bnp_dask.data.base import Reader, Source, Span, fingerprint_of, spans_of
from bnp_dask.data.sources.arrays import NpyFile
from bnp_dask.data.view import Changed, View
from bnp_dask.errors import DataError
from bnp_dask.inputs import require_real, shown


class Put(Protocol):
    """Puts values into a batch."""

    def __call__(self, batch: Batch, values: np.ndarray) -> Batch:
        """The batch with its part of the values, ``(n,)``."""
        ...


def loaded(given: Any, what: str, each: str, texts: bool = False) -> tuple[Any, str]:
    """The values, and their name in messages; numbers are read if ``given`` is the path of a .npy file.

    ``what`` are the values, ``each`` says what has one: ``"labels"``, ``"label for each atom"``.  With ``texts`` the
    file may hold texts.

    Raises
    ------
    DataError
        Another path, or a file that is missing, damaged, or not of real numbers ``(n,)``.
    """
    if not isinstance(given, (str, os.PathLike)):
        return given, what
    location = Location.of(given, argument=what)
    if not location.basename.endswith(".npy"):
        raise DataError(f"{what}={shown(location.name)}: needs an array with one {each}, or the path of a .npy file")
    location.require()
    file = NpyFile.open(location, vector=True, texts=texts)
    return file.read((0, file.shape[0]), file.dtype)[:, 0], f"{what}={shown(location.name)}"


def is_unknown(value: Any) -> bool:
    """Whether a value stands for an unknown one: None, or NA or NaT of pandas, which do not even equal themselves."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


@dataclass(frozen=True, eq=False, repr=False)
class BesideSource(View):
    """A source with the values ``(n,)`` put into its batches; ``what`` names them.

    ``names`` are the names of values that are positions.
    """

    spans: tuple[Span, ...]
    values: np.ndarray
    what: str
    put: Put
    names: tuple[str | int, ...] = ()

    def reader(self, index: int) -> Reader:
        start, stop = self.spans[index]
        return Changed(self.whole.reader(index), partial(self.put, values=self.values[start:stop]))

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.whole), self._digest()]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), self.what: self._digest()}

    def _digest(self) -> str:
        return f"crc32 {zlib.crc32(self.values.tobytes())}"


def with_beside(
    source: Source,
    values: np.ndarray,
    what: str,
    owners: str,
    unknown: str,
    put: Put,
    names: tuple[str | int, ...] = (),
) -> BesideSource:
    """The source with one value for each of its ``owners``; ``unknown`` is the mark of an unknown one.

    ``names`` are the names of values that are positions.

    Raises
    ------
    DataError
        Another number of values than of owners, or a source whose batches have unknown lengths.
    """
    spans = spans_of(source)
    if spans is None:
        raise DataError(
            f"{source.name}: the lengths of its batches are unknown, so that {what} cannot be cut as they are; "
            "ingest the data into a Zarr store first (bnp-dask ingest)"
        )
    n = spans[-1][1] if spans else 0
    if len(values) != n:
        raise DataError(
            f"{len(values)} {what} for the {n} {owners} of {source.name}; needs one for each, {unknown} for unknown"
        )
    return BesideSource(source, tuple(spans), values, what, put, names)


UNKNOWN = -1
"""Code of an atom without a known label."""

LARGEST = 2**63
"""Least whole number that is too large for a label."""

Name = str | int

NOUNS = {"labels": "label", "links": "group", "responses": "class"}
"""What one value of an argument is, for messages."""

UNCLEAR = ("-1", "nan")
"""Texts into which NumPy turns numbers that stand for an unknown value, if they are beside texts."""


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
        ``(n,)``: whole numbers, one negative number where unknown; or texts, None, NaN or an empty text where unknown;
        or the path of a .npy file of numbers or texts.  Masked entries are unknown.
    names
        Names that a run has already; others are refused.  None: the names that occur.
    what
        Argument that the user gave, for messages.

    Raises
    ------
    DataError
        Not one-dimensional, labels that are neither texts nor whole numbers, floats that stand for several whole
        numbers, several negative numbers, texts "-1" or "nan", no known label, or unknown names.  Truth values as
        ``links``.
    """
    noun = NOUNS[what]
    given, where = loaded(given, what, f"{noun} for each atom", texts=True)
    values = _array(given, where, noun)
    if what == "links" and values.dtype.kind == "b":
        raise DataError(f"{where} are truth values; needs the number or name of a group for each atom, -1 for none")
    known, values = _known(values, where, noun)
    found, codes = np.unique(values[known], return_inverse=True)
    own = tuple(found.tolist())
    if names is None and not own:
        raise DataError(f"{where}: no {noun} is known, all are -1 or None; leave them out")
    strange = [name for name in own if names is not None and name not in names]
    if strange:
        raise DataError(f"{where}: {shown(strange[0])} is no {noun} of this run, which has {shown(names)}")
    order = own if names is None else names
    positions = {name: i for i, name in enumerate(order)}
    place = np.array([positions[name] for name in own], np.int32)
    out = np.full(len(values), UNKNOWN, np.int32)
    out[known] = place[codes]
    return Labels(out, order)


def _array(given: Any, where: str, noun: str) -> np.ndarray:
    """Labels as an array of one axis."""
    if isinstance(given, (set, frozenset)) or (hasattr(given, "items") and not hasattr(given, "iloc")):
        raise DataError(
            f"{where} are a {type(given).__name__}, which has no order; needs one {noun} for each atom, (n,)"
        )
    try:
        values = np.asarray(given)
        if values.dtype.kind == "U" and not isinstance(given, np.ndarray):
            values = np.array(given, object)  # NumPy turns numbers beside texts into texts
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: {shown(given)} is no array, one {noun} for each atom: {error}") from error
    if values.ndim != 1:
        raise DataError(f"{where} have shape {values.shape}; needs one {noun} for each atom, (n,)")
    if isinstance(given, np.ma.MaskedArray):
        values = values.astype(object)
        values[np.ma.getmaskarray(given)] = None
    return values


def _known(values: np.ndarray, where: str, noun: str) -> tuple[np.ndarray, np.ndarray]:
    """Mask of the known labels, and all labels as numbers or texts."""
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind in "iuf":
        known = ~np.isnan(values) & (values >= 0)
        low = values[values < 0]
        _require_one_mark([low.min(), low.max()] if len(low) else [], where, noun)
        wrong = known & ~((values < LARGEST) & (values == np.floor(values)))
        if wrong.any():
            raise DataError(f"{where}: a {noun} is {values[wrong][0]}; needs whole numbers below 2**63")
        if values.dtype.kind == "f":
            _require_distinct(float(values[known].max(initial=0.0)), np.finfo(values.dtype), where, noun)
        return known, np.where(known, np.where(known, values, 0).astype(np.int64), UNKNOWN)
    if values.dtype.kind in "OU":
        texts = [_text(value, where, noun) for value in values.tolist()]
        unclear = next((text for text in UNCLEAR if text in texts), None)
        if unclear is not None:
            raise DataError(
                f"{where}: the text {unclear!r} would be the name of a {noun}, and NumPy makes it of a number beside "
                "texts; unknown ones are None or an empty text"
            )
        if any(isinstance(text, int) for text in texts):
            if any(isinstance(text, str) and text for text in texts):
                raise DataError(f"{where}: some are texts and some are numbers; give them in one form")
            numbers = [text if isinstance(text, int) else UNKNOWN for text in texts]
            _require_one_mark([text for text in texts if isinstance(text, int) and text < 0], where, noun)
            if max(numbers) >= LARGEST:
                raise DataError(f"{where}: a {noun} is {shown(max(numbers))}; needs whole numbers below 2**63")
            whole = np.array([max(number, UNKNOWN) for number in numbers], np.int64)
            return whole >= 0, whole
        array = np.array(texts, str)
        return array != "", array
    raise DataError(f"{where}: dtype {values.dtype}; needs whole numbers or texts")


def _require_one_mark(negative: Sequence[Any], where: str, noun: str) -> None:
    """DataError for several different negative numbers: one marks unknown values, others would be names."""
    if len(negative) and min(negative) != max(negative):
        raise DataError(
            f"{where}: {min(negative)} and {max(negative)} are negative, and one negative number marks atoms without a "
            f"known {noun}, -1 as a rule; if these are names, such as hashes, give them as texts: values.astype(str)"
        )


def _require_distinct(largest: float, kind: Any, where: str, noun: str) -> None:
    """DataError if this float, of a ``numpy.finfo``, stands for several whole numbers."""
    if largest >= 2.0 / float(kind.eps):
        raise DataError(
            f"{where}: a {noun} is the {kind.dtype} {largest:.0f}, which whole numbers beside it round to as well; "
            "give integers or texts (a column of integers with gaps: pandas' Int64)"
        )


def _text(value: Any, where: str, noun: str) -> str | int:
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
            _require_distinct(float(value), np.finfo(type(value)), where, noun)
            return int(value)
    raise DataError(f"{where}: {shown(value)} is neither text nor a whole number; unknown ones are None or -1")


def _labelled(batch: Batch, values: np.ndarray) -> Batch:
    """The batch with labels ``(n,)`` of its atoms."""
    if batch.n_atoms != len(values):
        raise DataError(f"{batch.name}: {batch.n_atoms} atoms, but {len(values)} labels; the data changed")
    return replace(batch, labels=values.astype(np.int64))


def with_labels(source: Source, labels: Labels) -> Source:
    """The source with one label, known or not, for each atom; DataError as :func:`with_beside`."""
    return with_beside(source, labels.codes, "labels", "atoms", "-1", _labelled, labels.names)


def links_of(given: Any) -> Labels:
    """Groups in the forms of :func:`bnp_dask.data.beside.labels_of`, as names of groups, unknown for atoms in none.

    Raises
    ------
    DataError
        As :func:`labels_of`: truth values too, which would be two groups.
    """
    return labels_of(given, what="links")


def _linked(batch: Batch, values: np.ndarray) -> Batch:
    """The batch with groups ``(n,)`` of its atoms, with the labels of their groups."""
    if batch.n_atoms != len(values):
        raise DataError(f"{batch.name}: {batch.n_atoms} atoms, but {len(values)} links; the data changed")
    labels = None if batch.labels is None else labels_of_groups(batch.labels, values)
    links = without_alone(values.astype(np.int64), batch.weights)
    return replace(batch, labels=labels, links=links if (links >= 0).any() else None)


def without_alone(links: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Groups of atoms ``(n,)``, -1 for groups of one atom of weight one, which say nothing."""
    place = np.flatnonzero(links >= 0)
    _, group, size = np.unique(links[place], return_inverse=True, return_counts=True)
    is_alone = size[group] == 1
    if weights is not None:
        is_alone &= weights[place] == 1.0
    out = links.copy()
    out[place[is_alone]] = -1
    return out


def labels_of_groups(labels: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Labels ``(n,)``, -1 for none, with the label of its group for each atom of a group that has one."""
    place = np.flatnonzero(codes >= 0)
    groups, group = np.unique(codes[place], return_inverse=True)
    own = np.full(len(groups), -1, np.int64)
    np.maximum.at(own, group, labels[place])
    out = labels.copy()
    out[place] = own[group]
    return out


def with_links(source: Source, links: Labels) -> Source:
    """The source with groups of linked atoms: atoms of one group, all in one batch, share their cluster.

    A known label of an atom is that of its whole group.

    Raises
    ------
    DataError
        As :func:`bnp_dask.data.beside.with_beside`, or a group with atoms in several batches or with two labels.
    """
    out = with_beside(source, links.codes, "links", "atoms", "-1", _linked, links.names)
    _require_whole(source, out.spans, links)
    if isinstance(source, BesideSource) and source.what == "labels":
        _require_one_label(Labels(source.values, source.names), links)
    return out


def _require_whole(source: Source, spans: Sequence[tuple[int, int]], links: Labels) -> None:
    """DataError unless each group lies in one batch."""
    batch = np.repeat(np.arange(len(spans)), [stop - start for start, stop in spans])
    low, high = _range_in_groups(batch, links, links.codes >= 0)
    parted = np.flatnonzero(low < high)
    if len(parted):
        g = int(parted[0])
        raise DataError(
            f"links: {len(parted)} group(s) have rows in several batches of {source.name}, such as "
            f"{shown(links.names[g])}, in batches {low[g]} and {high[g]}; linked rows are assigned together, and must "
            f"be read together. Take one batch, batch_size={len(batch)}; or sort the rows by group, and cut only "
            "between groups: as_source(x, groups=offsets)"
        )


def _require_one_label(labels: Labels, links: Labels) -> None:
    """DataError unless all known labels of a group are one."""
    low, high = _range_in_groups(labels.codes, links, (links.codes >= 0) & (labels.codes >= 0))
    mixed = np.flatnonzero(low < high)
    if len(mixed):
        g = int(mixed[0])
        rows = [int(np.flatnonzero((links.codes == g) & (labels.codes == code))[0]) for code in (low[g], high[g])]
        raise DataError(
            f"links: group {shown(links.names[g])} has rows of two labels, {shown(labels.names[low[g]])} (row "
            f"{rows[0]}) and {shown(labels.names[high[g]])} (row {rows[1]}), and no cluster may own both; "
            "correct labels= or links="
        )


def _range_in_groups(values: np.ndarray, links: Labels, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest of the ``values (n,)`` of each group at ``mask (n,)``; greatest < least if there are none."""
    low, high = np.full(len(links.names), len(values)), np.full(len(links.names), -1)
    np.minimum.at(low, links.codes[mask], values[mask])
    np.maximum.at(high, links.codes[mask], values[mask])
    return low, high


TEXTS = "some are texts; classes need a model with response=CategoricalResponse()"


def responses_of(given: Any) -> np.ndarray:
    """Responses as float64 ``(n,)``, NaN where none is observed.

    Parameters
    ----------
    given
        ``(n,)`` numbers, NaN, None or masked where unknown; or the path of a .npy file of numbers.

    Raises
    ------
    DataError
        Not one-dimensional, no real numbers, infinite numbers, or no observed response.
    """
    given, where = loaded(given, "responses", "number for each document")
    values = _numbers(given, where)
    if values.ndim != 1:
        raise DataError(f"{where} have shape {values.shape}; needs one number for each document, (n,)")
    if np.isinf(values).any():
        raise DataError(f"{where}: number {int(np.isinf(values).argmax())} is infinite; NaN says that none is observed")
    if np.isnan(values).all():
        raise DataError(f"{where}: no response is observed, all are NaN; leave responses out")
    return values


def classes_of(given: Any, names: tuple[Name, ...] | None = None) -> tuple[np.ndarray, tuple[Name, ...]]:
    """Responses that are classes as positions among their names, float64 ``(n,)``, NaN where none is observed; and the
    names.

    ``given`` and ``names`` are as for :func:`bnp_dask.data.beside.labels_of`, which also says what is refused.
    """
    found = labels_of(given, names, "responses")
    return np.where(found.codes == UNKNOWN, np.nan, found.codes.astype(np.float64)), found.names


def _numbers(given: Any, where: str) -> np.ndarray:
    """Values as a new array of float64, NaN where unknown."""
    try:
        values = np.asarray(given)
        if values.dtype.kind in "US":
            raise TypeError(TEXTS)
        if values.dtype.kind == "O" and values.ndim == 1:
            values = np.array([_number(value) for value in values.tolist()])
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: {shown(given)} are no numbers: {error}") from error
    require_real(values.dtype, where)
    values = values.astype(np.float64)
    if isinstance(given, np.ma.MaskedArray):
        values[np.ma.getmaskarray(given)] = np.nan
    return values


def _number(value: Any) -> float:
    """A number, NaN for an unknown one; texts are none."""
    if isinstance(value, (str, bytes)):
        raise TypeError(TEXTS)
    return np.nan if is_unknown(value) else float(value)


def _responding(batch: Batch, values: np.ndarray) -> Batch:
    """The batch with responses ``(n,)`` of its documents."""
    if batch.n_groups != len(values):
        raise DataError(f"{batch.name}: {batch.n_groups} documents, but {len(values)} responses; the data changed")
    return replace(batch, responses=values)


def with_responses(source: Source, responses: np.ndarray) -> Source:
    """The source of documents of counts with one response, observed or NaN, for each document.

    Raises
    ------
    DataError
        Dense rows, or as :func:`with_beside`.
    """
    if not source.is_sparse:
        raise DataError(
            f"{source.name}: dense rows; responses belong to documents of counts, each a row of a sparse matrix. "
            "Groups of dense rows can have them: give a Source whose batches are Batch(x, groups=..., responses=...)"
        )
    return with_beside(source, responses, "responses", "documents", "NaN", _responding)
