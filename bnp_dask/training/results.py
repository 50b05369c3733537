"""What a run leaves behind: a posterior that can be saved and loaded, and the history of how it came about.

A saved posterior is a directory (or a prefix of an object store)::

    model.zarr/
      zarr.json               what it is: format version, description of the model, CRC-32 of every array
      state-1f0c.../          Zarr v3 arrays, one per parameter and statistic

``zarr.json`` is written last and in one piece, and it names the folder it describes: whoever is killed while
saving leaves the old model or the new one.  Nothing in a saved model is code, and nothing in it is run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from bnp_dask._version import __version__
from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.sequences import transitions
from bnp_dask.core.columns import Columns
from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.core.location import Location
from bnp_dask.core.registry import REGISTRY
from bnp_dask.core.vocabulary import Words
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.inputs.paths import DRAWS_NAME, POSTERIOR_NAME
from bnp_dask.inputs.settings import path_text
from bnp_dask.model import Posterior
from bnp_dask.observation.describing import by_feature, each, estimates_of
from bnp_dask.sampling import Draws
from bnp_dask.store import Key, may_hold_runs, place_of, run_folder
from bnp_dask.training.history import History

if TYPE_CHECKING:
    import xarray

FORMAT = 1
"""Version of the layout of a saved posterior that this version writes, and the newest that it reads."""

_MARK = "bnp_dask"
_ROOT = "zarr.json"
_CHUNK_BYTES = 2**26


# -- saving and loading ---------------------------------------------------------------------------------------
def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior, with its model and statistics, as Zarr v3 arrays and JSON.

    Parameters
    ----------
    posterior
        What to save.
    path
        Directory to make, or a URL that fsspec knows (``"s3://bucket/model.zarr"``).  A model saved there before
        is replaced: a kill at any moment leaves the old one or the new one.

    Raises
    ------
    StoreError
        Something else lies at ``path``, or it cannot be written.
    """
    require_posterior(posterior)
    _save("posterior", posterior, path)


def save_draws(draws: Draws, path: str | os.PathLike[str]) -> None:
    """Write the draws of a sampler as :func:`save` writes a posterior; :func:`load_draws` reads them."""
    _save("draws", draws, path)


def _save(kind: str, obj: object, path: str | os.PathLike[str]) -> None:
    place = _place(path)
    before = _replaceable(place, kind)
    spec, arrays = to_spec(obj, REGISTRY)
    kept = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    listing = {n: {"shape": list(arrays[n].shape), "dtype": a.dtype.str, "crc32": _crc(a)} for n, a in kept.items()}
    digest = hashlib.sha256(_canonical({"spec": spec, "arrays": listing})).hexdigest()
    state = f"state-{digest[:16]}"
    body = {"kind": kind, "format": FORMAT, "software": __version__, "state": state}
    body |= {"spec": spec, "arrays": listing}
    try:
        group = zarr.open_group(place.child(state).zarr_store(read_only=False), mode="a", zarr_format=3)
        for name in listing:
            _write_array(group, name, arrays[name])
        _write_root(place, {_MARK: body, "crc32": zlib.crc32(_canonical(body))})
        if before is not None and before != state:
            place.child(before).remove()
    except OSError as error:
        raise StoreError(f"{place.name}: cannot write a model there: {error}") from error


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior that :func:`save` wrote; needs no Dask and runs no code from the file.

    Raises
    ------
    StoreError
        There is no saved model at ``path``, it is of a newer format, or a part of it is missing or damaged; the
        error names the part.
    """
    place, posterior = _load("posterior", path)
    if not isinstance(posterior, Posterior):
        raise StoreError(f"{place.name}: holds a {type(posterior).__name__}, not a posterior")
    return posterior


def load_draws(path: str | os.PathLike[str]) -> Draws:
    """Read the draws that a run with ``Gibbs()`` left in ``draws.zarr`` of its directory; runs no code from the file.

    Raises
    ------
    StoreError
        As for :func:`bnp_dask.load`.
    """
    if may_hold_runs(path_text("path", path)) and place_of(folder := run_folder(path)).exists(folder / DRAWS_NAME):
        path = folder / DRAWS_NAME
    place, draws = _load("draws", path)
    if not isinstance(draws, Draws):
        raise StoreError(f"{place.name}: holds a {type(draws).__name__}, not draws")
    return draws


def _load(kind: str, path: str | os.PathLike[str]) -> tuple[Location, object]:
    place = _place(path)
    body = _read_body(place, kind)
    state, listing = body["state"], body["arrays"]
    try:
        group = zarr.open_group(place.child(state).zarr_store(), mode="r", zarr_format=3)
    except Exception as error:  # damaged metadata make zarr raise nearly anything
        raise StoreError(f"{place.name}: the folder {state} with its arrays is missing or damaged") from error
    arrays = {name: _read_array(place, group, state, name, facts) for name, facts in listing.items()}
    return place, from_spec(body["spec"], arrays)


def _place(path: str | os.PathLike[str]) -> Location:
    if not isinstance(path, str) or path:
        path_text("path", path)
    else:
        raise StoreError("an empty path; save and load need one, such as 'model.zarr'")
    try:
        return Location.of(path)
    except (ImportError, DataError) as error:
        raise StoreError(f"cannot open {os.fspath(path)!r}: {error}") from error


def _read_root(place: Location) -> bytes | None:
    fs, root = place.filesystem()
    try:
        return bytes(fs.cat_file(f"{root}/{_ROOT}"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_root(place: Location, attributes: dict[str, Any]) -> None:
    """Replace the description in one step: the moment at which the new model takes the place of the old one."""
    node = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    content = json.dumps(node, indent=1, allow_nan=False).encode()
    if not place.is_local:
        fs, root = place.filesystem()
        fs.pipe_file(f"{root}/{_ROOT}", content)
        return
    partial = Path(place.url) / f"{_ROOT}.{uuid.uuid4().hex}.partial"
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(Path(place.url) / _ROOT)


def _replaceable(place: Location, kind: str) -> str | None:
    """The state folder of the model that lies there, None if nothing does; StoreError for anything else."""
    if place.exists() and not place.is_dir():
        raise StoreError(
            f"{place.name} is a file; refusing to overwrite it. Choose a new directory, such as model.zarr"
        )
    root = _read_root(place)
    if root is not None:
        body = _parse(root).get(_MARK)
        if isinstance(body, dict) and body.get("kind") == kind:
            state = body.get("state")
            return state if _is_state(state) else None
    elif all(_is_ours(name) for name in place.names()):
        return None
    raise StoreError(f"{place.name} exists and is not a saved model; refusing to overwrite it. Choose a new directory")


def _is_state(name: object) -> bool:
    return isinstance(name, str) and name.startswith("state-") and name[6:].isalnum()


def _is_ours(name: str) -> bool:
    return _is_state(name) or (name.startswith(f"{_ROOT}.") and name.endswith(".partial"))


def _parse(content: bytes) -> dict[str, Any]:
    try:
        node = json.loads(content)
        return dict(node["attributes"])
    except (ValueError, KeyError, TypeError):
        return {}


def _read_body(place: Location, kind: str) -> dict[str, Any]:
    content = _read_root(place)
    if content is None:
        found = "something that is not one" if place.exists() else "nothing"
        raise StoreError(
            f"{place.name}: needs a saved model, found {found}; models are written by save(posterior, path)"
        )
    attributes = _parse(content)
    body = attributes.get(_MARK)
    if not isinstance(body, dict):
        raise StoreError(f"{place.name}: not a saved model (its zarr.json has no {_MARK} entry), or a damaged one")
    if body.get("kind") != kind:
        wanted = "a saved posterior" if kind == "posterior" else "saved draws"
        raise StoreError(f"{place.name}: is a {body.get('kind')!r} of this package, not {wanted}")
    if body.get("format") != FORMAT:
        raise StoreError(
            f"{place.name}: saved in format {body.get('format')!r} by version {body.get('software')}; version "
            f"{__version__} reads format {FORMAT}. Use the version that wrote it, or a newer one"
        )
    if zlib.crc32(_canonical(body)) != attributes.get("crc32"):
        raise StoreError(f"{place.name}: zarr.json is damaged (its checksum does not match); restore it from a copy")
    if not _is_state(body.get("state")):
        raise StoreError(f"{place.name}: zarr.json names no folder of arrays")
    return body


def _write_array(group: zarr.Group, name: str, array: np.ndarray) -> None:
    """One Zarr array, cut along its first axis only where it is large; every chunk is written, also zeros."""
    chunks = tuple(max(1, n) for n in array.shape)
    if array.nbytes > _CHUNK_BYTES and array.ndim:
        chunks = (max(1, len(array) * _CHUNK_BYTES // array.nbytes), *chunks[1:])
    config = {"write_empty_chunks": True}
    out = group.create_array(
        name, shape=array.shape, dtype=array.dtype, chunks=chunks, config=config, overwrite=name in group
    )
    if array.size:
        out[...] = array


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
    if missing or _crc(value) != facts["crc32"]:
        what = f"misses {', '.join(missing)}" if missing else "is damaged: its checksum does not match"
        raise StoreError(f"{where} {what}; restore it from a copy")
    return value


def _missing_chunks(place: Location, array: zarr.Array[Any], folder: str) -> list[str]:
    grid = [range(math.ceil(n / c)) for n, c in zip(array.shape, array.chunks, strict=True)]
    keys = [f"{folder}/{array.metadata.encode_chunk_key(index)}" for index in itertools.product(*grid)]
    return [f"chunk {key}" for key in keys if not place.child(key).exists()]


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _canonical(obj: Any) -> bytes:
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# -- looking --------------------------------------------------------------------------------------------------
def to_xarray(posterior: Posterior) -> xarray.Dataset:
    """Weights, counts and what each likelihood says of its clusters, as labelled arrays.

    The likelihood names its expected values (``mean``, ``covariance``, ``rate``, ``probability``, ``coefficients``)
    and the settings of its posterior (``nu``, ``kappa``, ``a``, ``b``, ``lam``); hidden Markov models add
    ``transition`` and ``start``.  Parts of a ``Product`` come under the columns that they are about, such as
    ``age.mean``.

    Coordinate ``cluster`` holds the cluster ids, and ``feature``, ``word`` or ``lagged`` the names of columns where
    these are known.  A second axis of the same kind, as in a covariance, is ``feature_2``.
    """
    try:
        import xarray
    except ImportError as error:
        raise SettingError("to_xarray needs xarray: pip install 'bnp-dask[xarray]'") from error
    model = posterior.model
    found = {"weight": each(posterior.weights)}
    if posterior.summary is not None:
        found["count"] = each(posterior.summary["N"])
    if model.structure.is_ordered:
        expected = transitions(posterior)
        found["start"] = each(expected.start)
        found["transition"] = by_feature(expected.matrix, posterior.ids.tolist(), "cluster")
    found |= estimates_of(model.observation, posterior.observation, posterior.feature_names)
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    coords: dict[str, Any] = {"cluster": posterior.ids}
    for name, value in found.items():
        dims = ["cluster"]
        for axis in value.axes:
            seen = sum(d == axis.name or d.startswith(f"{axis.name}_") for d in dims)
            dims.append(f"{axis.name}_{seen + 1}" if seen else axis.name)
            if axis.labels is not None:
                coords[dims[-1]] = list(axis.labels)
        variables[name] = (tuple(dims), value.values)
    settings = {
        "allocation": type(model.allocation).__name__,
        "observation": type(model.observation).__name__,
        "estimate": model.estimate,
    }
    return xarray.Dataset(variables, coords=coords, attrs=settings)


# -- result ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class TrainResult:
    """What ``train`` gives back.

    Parameters
    ----------
    posterior
        What was learned.
    history
        One row per step.
    converged
        Whether the run stopped because nothing changed any more.
    reason
        Why it stopped, in words: ``"objective and counts stopped changing at lap 12"``.
    seconds
        Wall time of the run.
    skipped
        Why each batch was left out that could not be used (``on_bad_batch="skip"``).
    warm_seconds
        Wall time of compiling or loading kernels before the first lap; not in the seconds of the history.
    starts
        Of several starts (``n_init``) in their order: ``"seed"``, objective (``"elbo"``, nats), ``"n_clusters"`` and
        ``"lap"`` when one of them went on alone, and ``"reason"``: that one did, or another was ahead, or why it had
        ended before.  Empty where there was one.
    draws
        Draws of a run with ``Gibbs()``; None for other schedules, and where none was kept yet.
    """

    posterior: Posterior
    history: History = field(default_factory=History)
    converged: bool = False
    reason: str = ""
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()
    warm_seconds: float = 0.0
    starts: tuple[Mapping[str, Any], ...] = ()
    draws: Draws | None = None

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        reason = f" ({self.reason})" if self.reason else ""
        left_out = f", {len(self.skipped)} batches skipped" if self.skipped else ""
        elbo = f", objective {self.history['elbo'][-1]:.6g} nats" if "elbo" in self.history else ""
        return (
            f"TrainResult: {state}{reason}, {self.posterior.n_clusters} clusters{elbo}, "
            f"{len(self.history)} steps in {self.seconds:.1f} s{left_out}\n  {self.posterior!r}"
        )

    def _repr_html_(self) -> str:
        # a notebook asks for it; plain sessions do not pay for building tables
        from bnp_dask.reports.run_page import result_html

        return result_html(self)

    def to_datatree(self) -> xarray.DataTree:
        """The run as labelled arrays, in groups, as xarray and ArviZ keep them; ``to_netcdf`` and ``to_zarr`` write it.

        ``clusters`` is :meth:`Posterior.to_xarray`, ``history`` the numbers of each step; a run with ``Gibbs()`` has
        its draws as ``posterior``, with the dimensions that ArviZ asks for.  Whether the run converged, why it stopped
        and how long it took are attributes.
        """
        try:
            import xarray
        except ImportError as error:
            raise SettingError("to_datatree needs xarray: pip install 'bnp-dask[xarray]'") from error
        groups = {"clusters": self.posterior.to_xarray(), "history": self.history.to_xarray()}
        if self.draws is not None:
            groups["posterior"] = self.draws.to_xarray()
        facts = {"converged": int(self.converged), "reason": self.reason, "seconds": self.seconds}
        return xarray.DataTree.from_dict({"/": xarray.Dataset(attrs=facts), **groups})


def with_names(result: TrainResult, words: Words | None, columns: Columns | None) -> TrainResult:
    """The result with names of words and columns."""
    draws = None if result.draws is None else replace(result.draws, words=words, columns=columns)
    return replace(result, posterior=replace(result.posterior, words=words, columns=columns), draws=draws)


def save_result(result: TrainResult, folder: Path | Key) -> None:
    """Write the posterior, and draws where there are some, into a run directory."""
    save(result.posterior, folder / POSTERIOR_NAME)
    if result.draws is not None:
        save_draws(result.draws, folder / DRAWS_NAME)


__all__ = [
    "History",
    "TrainResult",
    "load",
    "load_draws",
    "save",
    "save_draws",
    "save_result",
    "to_xarray",
    "with_names",
]
