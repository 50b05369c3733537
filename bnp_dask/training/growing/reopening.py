"""Data of a run, opened again from the record made when they came."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bnp_dask.core.location import Chosen, Location
from bnp_dask.data import as_source
from bnp_dask.data.base import Source
from bnp_dask.data.labels import labels_of, with_labels
from bnp_dask.errors import BnpDaskError, DataError, StoreError
from bnp_dask.inputs.places import place_in_file
from bnp_dask.model import Posterior
from bnp_dask.observation.labelled import Labelled
from bnp_dask.store import Checkpoint, DamagedError, Manifest, RunStore
from bnp_dask.training.copies import OnceSource, kept_in
from bnp_dask.training.growing.grown import Absent
from bnp_dask.training.run_settings import OPENED, Begun
from bnp_dask.training.survey_pass import Surveyed, surveyed


def first_data(store: RunStore, begun: Begun, checkpoint: Checkpoint) -> Surveyed:
    """Survey of the first data, and their batches; StoreError if the run has no list of these."""
    noted = checkpoint.state.get("manifest")
    try:
        if noted is None:
            raise DamagedError(f"{store.path} was begun by a version that kept no list of its batches")
        manifest = Manifest.of_key(store.manifests, noted["key"])
    except DamagedError as error:
        raise StoreError(f"{error}; it cannot take in more data") from error
    n_batches, settings = len(manifest), store.settings
    is_sparse = bool(manifest.arrays["survey/is_sparse"])
    facts = (str(settings["data"].get("path", "data")), n_batches, len(manifest.arrays["survey/mean"]), is_sparse)
    opened = settings.get(OPENED)
    if opened is None:
        source: Source = Absent(*facts, why="it was given as data in memory")
    else:
        source = opened_again(opened, begun.columns(), *facts, labels=opened.get("labels"))
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
    labels: Mapping[str, Any] | None = None,
) -> Source:
    """Data opened again as the run ``opened`` them; a stand-in if they are gone, or cut otherwise."""
    try:
        source = as_source(
            place_again(opened),
            batch_size=opened["batch_size"],
            weights=weights_in_file(opened["weights"]),
            columns=columns,
        )
        source = with_labels_again(source, labels)
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
