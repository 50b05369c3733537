"""Arrays of an archive of format 1: a folder of Zarr v3 arrays, which earlier versions wrote."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from bnp_dask.core.location import Location
from bnp_dask.errors import StoreError
from bnp_dask.training.archive.frame import crc_of


def read_folder(place: Location, state: str, listing: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """All arrays that a description lists; StoreError that names what is missing or damaged."""
    try:
        group = zarr.open_group(place.child(state).zarr_store(), mode="r", zarr_format=3)
    except Exception as error:  # damaged metadata make zarr raise nearly anything
        raise StoreError(f"{place.name}: the folder {state} with its arrays is missing or damaged") from error
    return {name: _read_array(place, group, state, name, facts) for name, facts in listing.items()}


def _read_array(place: Location, group: zarr.Group, state: str, name: str, facts: Mapping[str, Any]) -> np.ndarray:
    """An array, checked: Zarr itself gives fill values where a chunk is missing."""
    where = f"{place.name}: array {name!r} (in {state}/{name})"
    try:
        stored = group[name]
        if not isinstance(stored, zarr.Array):
            raise StoreError(f"{where} is not an array")
        value = np.asarray(stored[...]) if stored.size else np.zeros(stored.shape, stored.dtype)
    except StoreError:
        raise
    except KeyError as error:
        raise StoreError(f"{where} is missing; the model is incomplete, restore it from a copy") from error
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        raise StoreError(f"{where} cannot be read: damaged, restore it from a copy ({error})") from error
    if list(value.shape) != facts["shape"] or value.dtype.str != facts["dtype"]:
        raise StoreError(f"{where} is {value.dtype} {value.shape}, needs {facts['dtype']} {tuple(facts['shape'])}")
    missing = _missing_chunks(place, stored, f"{state}/{name}")
    if missing or crc_of(value) != facts["crc32"]:
        what = f"misses {', '.join(missing)}" if missing else "is damaged: its checksum does not match"
        raise StoreError(f"{where} {what}; restore it from a copy")
    return value


def _missing_chunks(place: Location, array: zarr.Array[Any], folder: str) -> list[str]:
    grid = [range(math.ceil(n / c)) for n, c in zip(array.shape, array.chunks, strict=True)]
    keys = [f"{folder}/{array.metadata.encode_chunk_key(index)}" for index in itertools.product(*grid)]
    return [f"chunk {key}" for key in keys if not place.child(key).exists()]
