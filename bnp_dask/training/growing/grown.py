"""All batches of a run that grew, as one source: the batches of its first data, then of each later piece.

Data of a run are opened again from the record made when they came.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.core import Chosen, Columns, Location, Survey
from bnp_dask.data import (
    Reader,
    Source,
    as_source,
    classes_of,
    columns_of,
    labels_of,
    links_of,
    responses_of,
    with_labels,
    with_links,
    with_responses,
)
from bnp_dask.errors import BnpDaskError, DataError, SettingError, StoreError
from bnp_dask.inputs import place_in_file
from bnp_dask.model import Posterior
from bnp_dask.observation import Labelled
from bnp_dask.store import Checkpoint, DamagedError, Manifest, RunStore
from bnp_dask.structure import response_of
from bnp_dask.training.copies import OnceSource, kept_in
from bnp_dask.training.run_settings import OPENED, Begun
from bnp_dask.training.survey_pass import PER_BATCH, Surveyed, summed, surveyed


@dataclass(frozen=True)
class Gone:
    """A reader of a batch that cannot be opened again: DataError says why."""

    why: str

    def __call__(self) -> Any:
        raise DataError(self.why)


@dataclass(frozen=True, eq=False)
class Absent:
    """A source in place of data that cannot be opened again.

    Parameters
    ----------
    name
        Name of the data.
    n_batches, n_features, is_sparse
        As they were.
    why
        Why the data cannot be opened.
    """

    name: str
    n_batches: int
    n_features: int
    is_sparse: bool
    why: str
    n_atoms: int | None = None

    def reader(self, index: int) -> Reader:
        return Gone(f"{self.name} batch {index}: {self.why}")

    def describe(self) -> dict[str, Any]:
        return {"kind": "absent", "path": self.name, "n_batches": self.n_batches}


@dataclass(frozen=True, eq=False)
class GrownSource:
    """Some sources of the same features, one after the other.

    Parameters
    ----------
    name
        Name of the run.
    parts
        The sources; at least one.
    starts
        Number of the first batch of each, and of all batches, ``(P + 1,)``.
    """

    name: str
    parts: Sequence[Source]
    starts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum([0, *(part.n_batches for part in self.parts)]))

    @property
    def n_batches(self) -> int:
        return int(self.starts[-1])

    @property
    def n_features(self) -> int:
        return self.parts[0].n_features

    @property
    def is_sparse(self) -> bool:
        return self.parts[0].is_sparse

    @property
    def n_atoms(self) -> int | None:
        return None

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.parts[0])

    @property
    def present(self) -> np.ndarray:
        """Which batches can be read, ``(B,)`` bool."""
        return np.repeat([not isinstance(part, Absent) for part in self.parts], np.diff(self.starts))

    def part_of(self, index: int) -> int:
        """Number of the source that a batch belongs to."""
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def reader(self, index: int) -> Reader:
        part = self.part_of(index)
        return self.parts[part].reader(index - int(self.starts[part]))

    def describe(self) -> dict[str, Any]:
        return {"kind": "grown", "path": self.name, "n_batches": self.n_batches}


def survey_of(first: Survey, rows: np.ndarray) -> Survey:
    """The survey of a run's first data with the batches of all later data; moments are of the first data alone.

    ``rows`` are the rows of a manifest, ``(N,)``.
    """
    per_batch: dict[str, Any] = {
        name: (*getattr(first, name), *rows[column].tolist()) for name, column in PER_BATCH.items()
    }
    return replace(
        first,
        n_atoms=first.n_atoms + int(rows["atoms"].sum()),
        total_weight=first.total_weight + float(rows["weight"].sum()),
        nbytes=first.nbytes + int(rows["nbytes"].sum()),
        n_groups=first.n_groups + int(rows["groups"].sum()),
        **per_batch,
    )


# -- data opened again ---------------------------------------------------------------------------------------------
def first_data(store: RunStore, begun: Begun, checkpoint: Checkpoint, base: Posterior) -> Surveyed:
    """Survey of the first data, and their batches; StoreError if the run has no list of these."""
    noted = checkpoint.state.get("manifest")
    try:
        if noted is None:
            raise DamagedError(f"{store.path} was begun by a version that kept no list of its batches")
        manifest = Manifest.of_key(store.manifests, noted["key"])
        summed(manifest)
    except DamagedError as error:
        raise StoreError(f"{error}; it cannot take in more data") from error
    n_batches, settings = len(manifest), store.settings
    is_sparse = bool(manifest.arrays["survey/is_sparse"])
    facts = (str(settings["data"].get("path", "data")), n_batches, len(manifest.arrays["survey/mean"]), is_sparse)
    opened = settings.get(OPENED)
    if opened is None:
        source: Source = Absent(*facts, why="it was given as data in memory")
    else:
        source = opened_again(
            opened,
            begun.columns(),
            *facts,
            base=base,
            labels=opened.get("labels"),
            responses=opened.get("responses"),
            links=opened.get("links"),
        )
        kept = kept_in(manifest.arrays)
        source = source if kept is None or isinstance(source, Absent) else OnceSource(source, kept)
    return surveyed(manifest, source)


def place_again(opened: Mapping[str, Any]) -> str | Chosen:
    """Place of data that a run had; of a folder or pattern the files that it held then."""
    place = place_in_file(opened["place"], "data that the run had")
    return Chosen(place, tuple(opened["files"])) if opened.get("files") else place


def opened_again(
    opened: Mapping[str, Any],
    columns: Any,
    name: str,
    n_batches: int,
    n_features: int,
    is_sparse: bool,
    base: Posterior,
    labels: Mapping[str, Any] | None = None,
    responses: str | None = None,
    links: str | None = None,
) -> Source:
    """Data opened again as the run ``opened`` them; a stand-in if they are gone, or cut otherwise."""
    try:
        source = as_source(
            place_again(opened),
            batch_size=opened["batch_size"],
            weights=weights_in_file(opened["weights"]),
            columns=columns,
        )
        source = with_links_again(with_labels_again(source, labels), links)
        source = with_responses_again(base, source, responses)
    except BnpDaskError as error:
        return Absent(name, n_batches, n_features, is_sparse, str(error))
    if source.n_batches != n_batches:
        why = f"it had {n_batches} batches, and has {source.n_batches} now"
        return Absent(name, n_batches, n_features, is_sparse, why)
    return source


def labels_as_opened(base: Posterior, labels: Any) -> dict[str, Any] | None:
    """Facts to open the labels of a piece again, JSON-able; None if there are none."""
    if labels is None:
        return None
    observation = base.model.observation
    place = Location.of(os.fspath(labels)).place if isinstance(labels, (str, os.PathLike)) else None
    return {"place": place, "names": list(observation.names) if isinstance(observation, Labelled) else None}


def responding_as(base: Posterior, source: Source, responses: Any) -> Source:
    """The source with responses ``(n,)`` of its documents; SettingError if the run was begun without."""
    if response_of(base.model.allocation) is None:
        raise SettingError("responses: the run was begun without; begin a new one with train(..., responses=y)")
    return with_responses(source, responses_as(base, responses))


def responses_as(base: Posterior, responses: Any) -> np.ndarray:
    """Responses ``(n,)`` as the run has them: numbers, or positions among its classes."""
    response = response_of(base.model.allocation)
    if response is None or not response.takes_classes:
        return responses_of(responses)
    return classes_of(responses, response.classes)[0]


def linked_as(base: Posterior, source: Source, links: Any) -> Source:
    """The source with groups ``(n,)`` of linked atoms, which are apart from those of all other data.

    SettingError if the run counts atoms alone.
    """
    if not base.model.linked:
        raise SettingError(
            "links: the run was begun without, and counts rows one by one; begin a new one with train(..., links=), or "
            "with Model(..., linked=True) if only later data have links"
        )
    return with_links(source, links_of(links))


def place_beside(given: Any) -> str | None:
    """Place of the responses or links of a piece; empty if they are in memory, None if there are none."""
    if given is None:
        return None
    return Location.of(os.fspath(given)).place if isinstance(given, (str, os.PathLike)) else ""


def with_links_again(source: Source, place: str | None) -> Source:
    """The source with the links that the data had; DataError if these were an array in memory."""
    if place is None:
        return source
    if not place:
        raise DataError("its links were given as an array in memory")
    return with_links(source, links_of(place_in_file(place, "links that the run had")))


def with_responses_again(base: Posterior, source: Source, place: str | None) -> Source:
    """The source with the responses that the data had; DataError if these were an array in memory."""
    if place is None:
        return source
    if not place:
        raise DataError("its responses were given as an array in memory")
    return with_responses(source, responses_as(base, place_in_file(place, "responses that the run had")))


def with_labels_again(source: Source, opened: Mapping[str, Any] | None) -> Source:
    """The source with the labels that the data had; DataError if these were given as an array, which no file keeps."""
    if opened is None:
        return source
    if opened["place"] is None:
        raise DataError("its labels were given as an array in memory")
    names = None if opened["names"] is None else tuple(opened["names"])
    return with_labels(source, labels_of(place_in_file(opened["place"], "labels that the run had"), names))


def weights_in_file(weights: Any) -> Any:
    """Weights in the form of a run directory: a column, or the place of a file if a file may name it."""
    is_file = isinstance(weights, str) and weights.endswith(".npy")
    return place_in_file(weights, "weights that the run had") if is_file else weights
