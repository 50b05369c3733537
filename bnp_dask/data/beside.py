"""Values beside the data, one for each atom or document: labels, links, responses.  They are cut as the data are."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, Source, Span, fingerprint_of, spans_of
from bnp_dask.data.sources.arrays import NpyFile
from bnp_dask.data.view import Changed, View
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown


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
