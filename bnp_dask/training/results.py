"""Results of a run: a posterior that can be saved and loaded, and the history of the run."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict

import numpy as np

from bnp_dask._names import method
from bnp_dask._version import __version__
from bnp_dask.analysis import require_posterior
from bnp_dask.core import (
    REGISTRY,
    Columns,
    Location,
    Summary,
    Whole,
    Words,
    fault,
    first_difference,
    form_of,
    from_spec,
    frozen,
    to_spec,
)
from bnp_dask.errors import BnpDaskError, DataError, SettingError, StoreError, answering
from bnp_dask.inference import Draws
from bnp_dask.inputs import DRAWS_NAME, POSTERIOR_NAME, hold, path_text, shown
from bnp_dask.model import Model, Posterior, not_here
from bnp_dask.observation import each, estimates_of, unlabelled
from bnp_dask.store import TEMPORARY, DamagedError, Key, is_readable, may_hold_runs, place_of, run_folder, upgraded
from bnp_dask.store import link as link_file
from bnp_dask.store import replacing as replacing_file
from bnp_dask.structure import count_of
from bnp_dask.training.history import History

if TYPE_CHECKING:
    import xarray


# -- archives -----------------------------------------------------------------------------------------------------
# Registered dataclasses as Zarr arrays and JSON, written in one piece.
#
# A saved posterior is a directory (or a prefix of an object store)::
#
#     model.zarr/
#       zarr.json               format version, description of the model, CRC-32 of every array
#       state-1f0c....zip       Zarr v3 arrays, one per parameter and statistic, in one file
#
# ``zarr.json`` is written last and in one piece, and it names the file that it describes: a kill while saving leaves
# the old model or the new one.  Nothing in a saved model is code, and nothing in it is run.
# -- new files: whole, or absent -----------------------------------------------------------------------------------
@contextmanager
def replacing(place: Location) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name when the block ends; OSError if it cannot be written."""
    if place.is_local:
        path = Path(place.url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(path) as file:
            yield file
        return
    fs, name = place.filesystem()
    with place.discreet(), fs.open(name, "wb") as file:
        yield file


def link(path: Path, to: Path) -> None:
    """Give a file that is never changed a second name, in a folder that may be new."""
    to.parent.mkdir(parents=True, exist_ok=True)
    link_file(path, to)


# -- arrays in one file: a zip, not compressed, that Zarr opens as a group -----------------------------------------
_KINDS = "biuf"
_PIECE = 2**20
"""Bytes that are read at a time between two arrays."""


@dataclass(frozen=True)
class Frame:
    """Layout and checksum of a file of arrays.

    Parameters
    ----------
    offsets
        Offset of the numbers of each array, by name, in bytes and in the order of the file.
    nbytes
        Bytes of the file.
    heads
        CRC-32 of all bytes that are not numbers of an array.
    """

    offsets: Mapping[str, int]
    nbytes: int
    heads: int


class DamagedFrameError(Exception):
    """The file differs from the written one; the message says in which part, for a sentence that names the file."""


class _Written:
    """A file that is written from its start to its end, with its length and checksum so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.nbytes = self.heads = 0
        self.is_head = True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self.nbytes += view.nbytes
        if self.is_head:
            self.heads = zlib.crc32(view, self.heads)
        return view.nbytes

    def tell(self) -> int:
        return self.nbytes

    def flush(self) -> None: ...


def write_frame(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> Frame:
    """Write arrays in C order; equal arrays give equal bytes."""
    out = _Written(file)
    offsets = {}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        # ZipInfo instead of names: a name alone would be stamped with the time.
        archive.writestr(zipfile.ZipInfo("zarr.json"), json.dumps(_GROUP))
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/zarr.json"), json.dumps(_array_node(array)))
            key = "/".join(["c", *("0" for _ in array.shape)])
            with archive.open(zipfile.ZipInfo(f"{name}/{key}"), "w", force_zip64=True) as member:
                offsets[name], out.is_head = out.nbytes, False
                if array.size:
                    member.write(_bytes_of(array))
                out.is_head = True
    return Frame(offsets, out.nbytes, out.heads)


def read_frame(file: IO[bytes], frame: Frame, listing: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """All arrays of a file; ``listing`` has the ``"shape"``, ``"dtype"`` and ``"crc32"`` of each.

    Raises
    ------
    DamagedFrameError
        The file is cut off, or a bit of it has changed.
    """
    arrays, heads, at = {}, 0, 0
    for name, offset in sorted(frame.offsets.items(), key=lambda item: item[1]):
        heads = _head(file, offset - at, heads)
        facts = listing[name]
        shape, dtype = tuple(facts["shape"]), np.dtype(facts["dtype"])
        at = offset + math.prod(shape) * dtype.itemsize
        # an invented size must not take all memory
        if dtype.kind not in _KINDS or at > frame.nbytes or any(n < 0 for n in shape):
            raise DamagedFrameError(f"array {name!r} cannot have the type and shape of the description")
        array = np.empty(shape, dtype)
        n_read = file.readinto(_bytes_of(array)) if array.size else 0  # type: ignore[attr-defined]
        if n_read != array.nbytes:
            raise DamagedFrameError(f"the file is cut off in array {name!r}")
        if crc_of(array) != facts["crc32"]:
            raise DamagedFrameError(f"array {name!r} is damaged: its checksum does not match")
        arrays[name] = array
    if _head(file, frame.nbytes - at, heads) != frame.heads or file.read(1):
        raise DamagedFrameError("the file is damaged between its arrays: a checksum does not match")
    return arrays


def crc_of(array: np.ndarray) -> int:
    """CRC-32 of the numbers of an array, in C order."""
    return zlib.crc32(_bytes_of(np.ascontiguousarray(array)))


def _head(file: IO[bytes], nbytes: int, crc: int) -> int:
    """Checksum continued over the next bytes that are not numbers."""
    if nbytes < 0:
        raise DamagedFrameError("arrays cannot lie where the description says")
    while nbytes:
        piece = file.read(min(nbytes, _PIECE))
        if not piece:
            raise DamagedFrameError("the file is cut off")
        crc, nbytes = zlib.crc32(piece, crc), nbytes - len(piece)
    return crc


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


# -- zarr ---------------------------------------------------------------------------------------------------------
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def _array_node(array: np.ndarray) -> dict[str, Any]:
    """An array's metadata in version 3 of Zarr."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array.shape),
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, n) for n in array.shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if array.dtype.kind == "b" else 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }


# -- description ---------------------------------------------------------------------------------------------------
KIND, FORMAT = "bnp-dask model", 3
"""Version of the layout of a saved posterior that this version writes and reads."""

MARK = "bnp_dask"
ROOT = "zarr.json"

_STATE = re.compile(r"state-[0-9A-Za-z]+(\.zip)?")


def place_of_archive(path: str | os.PathLike[str]) -> Location:
    """Location of an archive, present or future; StoreError if it is impossible."""
    if not isinstance(path, str) or path:
        path_text("path", path)
    else:
        raise StoreError("an empty path; save and load need one, such as 'model.zarr'")
    try:
        return Location.of(path)
    except (ImportError, DataError) as error:
        raise StoreError(f"cannot open {os.fspath(path)!r}: {error}") from error


def read_root(place: Location) -> bytes | None:
    """The description as bytes; None if there is none."""
    try:
        return place.child(ROOT).content()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DataError as error:
        raise StoreError(f"cannot read a model: {error}") from error


def write_root(place: Location, content: bytes) -> None:
    """Replace the description in one step, the moment at which the new model replaces the old one."""
    with replacing(place.child(ROOT)) as file:
        file.write(content)


def described(body: dict[str, Any]) -> bytes:
    """The description with its checksum, as a Zarr group."""
    attributes = {MARK: body, "crc32": zlib.crc32(canonical(body))}
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, allow_nan=False).encode()


def replaceable(place: Location, kind: str) -> str | None:
    """Name of the arrays of the existing model, None if nothing is there; StoreError for anything else."""
    if place.exists() and not place.is_dir():
        raise StoreError(
            f"{place.name} is a file; refusing to overwrite it. Choose a new directory, such as model.zarr"
        )
    root = read_root(place)
    if root is not None:
        body = _parse(root).get(MARK)
        if isinstance(body, dict) and body.get("kind") == kind:
            state = body.get("state")
            return state if is_state(state) else None
    elif all(_is_ours(name) for name in place.names()):
        return None
    raise StoreError(f"{place.name} exists and is not a saved model; refusing to overwrite it. Choose a new directory")


def clear_for(kind: str, path: str | os.PathLike[str], again: str = "train(..., resume=True)") -> None:
    """Remove a damaged archive from a run directory, which holds its content elsewhere, so that it is written again.

    ``again`` is the call that does so.

    Raises
    ------
    StoreError
        Something lies there that no archive has.
    """
    place = place_of_archive(path)
    try:
        replaceable(place, kind)
    except StoreError as error:
        names = place.names() if place.is_dir() else []
        if not names or not all(name == ROOT or _is_ours(name) for name in names):
            raise StoreError(
                f"{error}. Nothing is lost, since the run directory holds its content: move {place.name} away, then "
                f"{again} writes it again"
            ) from error
        logger.warning("%s is damaged, and is written again", place.name)
        for name in names:
            place.child(name).remove()


class ArrayFacts(TypedDict):
    """Place of an array of an archive in its file, with its type and shape."""

    shape: list[Whole]
    dtype: str
    crc32: Whole
    offset: Whole


class ArchiveArrays(TypedDict):
    """Fields of a description that say how to read the arrays."""

    state: str
    arrays: dict[str, ArrayFacts]
    bytes: Whole
    heads_crc32: Whole


def read_body(place: Location, kind: str) -> dict[str, Any]:
    """Content of the description; StoreError if it is not of this ``kind``, of a newer format, or damaged."""
    content = read_root(place)
    if content is None:
        found, hint = ("something that is not one", "") if place.exists() else ("nothing", place.nearest())
        raise StoreError(
            f"{place.name}: needs a saved model or a run directory, found {found}{hint}; models are written by "
            "save(posterior, path), runs are listed by 'bnp-dask ls'"
        )
    attributes = _parse(content)
    body = attributes.get(MARK)
    if not isinstance(body, dict):
        raise StoreError(f"{place.name}: not a saved model (its zarr.json has no {MARK} entry), or a damaged one")
    if body.get("kind") != kind:
        wanted = "a saved posterior" if kind == "posterior" else "saved draws"
        raise StoreError(f"{place.name}: is a {body.get('kind')!r} of this package, not {wanted}")
    if not is_readable(KIND, body.get("format"), FORMAT):
        raise StoreError(
            f"{place.name}: saved in format {body.get('format')!r} by version {body.get('software')}; version "
            f"{__version__} reads format {FORMAT}. Use the version that wrote it"
        )
    if zlib.crc32(canonical(body)) != attributes.get("crc32"):
        raise StoreError(f"{place.name}: zarr.json is damaged (its checksum does not match); restore it from a copy")
    if not is_state(body.get("state")):
        raise StoreError(f"{place.name}: zarr.json names no folder or file of arrays")
    body = upgraded(body, KIND, body["format"], FORMAT)
    if (wrong := fault(body, ArchiveArrays)) is not None:
        raise StoreError(f"{place.name}: zarr.json is damaged ({wrong}); restore it from a copy")
    return body


def is_state(name: object) -> bool:
    """Whether this can be the name of an archive's arrays: inside its folder, and not elsewhere."""
    return isinstance(name, str) and _STATE.fullmatch(name) is not None


def _is_ours(name: str) -> bool:
    return is_state(name) or name.startswith(TEMPORARY)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        node = json.loads(content, parse_constant=_refuse)
        return dict(node["attributes"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def canonical(obj: Any) -> bytes:
    """JSON whose bytes are equal for equal content."""
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# -- writing and reading -------------------------------------------------------------------------------------------
logger = logging.getLogger("bnp_dask.training")


def write_archive(kind: str, obj: object, path: str | os.PathLike[str]) -> None:
    """Write an object of registered classes; StoreError if something else is there, or it cannot be written."""
    place = place_of_archive(path)
    before = replaceable(place, kind)
    spec, arrays = to_spec(obj, REGISTRY)
    kept = {name: _as_written(array) for name, array in arrays.items()}
    listing = {n: {"shape": list(a.shape), "dtype": a.dtype.str, "crc32": crc_of(a)} for n, a in kept.items()}
    digest = hashlib.sha256(canonical({"spec": spec, "arrays": listing})).hexdigest()
    state = f"state-{digest[:16]}.zip"
    try:
        with replacing(place.child(state)) as file:
            frame = write_frame(file, kept)
        body = {"kind": kind, "format": FORMAT, "software": __version__, "state": state, "spec": spec}
        body |= {"arrays": {name: {**facts, "offset": frame.offsets[name]} for name, facts in listing.items()}}
        body |= {"bytes": frame.nbytes, "heads_crc32": frame.heads}
        write_root(place, described(body))
        _forget(place, before, state)
    except OSError as error:
        raise _cannot_write(place, error) from error


def copy_posterior(path: Path, to: Path) -> None:
    """Write the archive of a posterior in a local folder once more; StoreError as in :func:`write_archive`.

    The file of its arrays, which is never changed, gets a second name if the file system has hard links.
    """
    source, place = place_of_archive(path), place_of_archive(to)
    before, content, state = replaceable(place, "posterior"), read_root(source), read_body(source, "posterior")["state"]
    assert content is not None
    try:
        # nothing to do if the model in force is this one
        if before != state:
            link(path / state, to / state)
            write_root(place, content)
            _forget(place, before, state)
    except OSError as error:
        raise _cannot_write(place, error) from error


def read_archive(kind: str, path: str | os.PathLike[str]) -> tuple[Location, object]:
    """Location and object of an archive of this ``kind``; StoreError for anything else or damage."""
    place = place_of_archive(path)
    body = read_body(place, kind)
    if (saved_by := body.get("software")) != __version__:
        logger.warning(
            "%s was saved by bnp_dask %s: version %s reads it exactly, but results computed from it may have other "
            "last bits",
            place.name,
            saved_by,
            __version__,
        )
    arrays = _framed(place, body)
    try:
        return place, from_spec(body.get("spec"), arrays)
    except StoreError as error:
        raise StoreError(f"{place.name}: {error}") from error


def _framed(place: Location, body: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of the file that a description names."""
    found = place.child(body["state"])
    try:
        listing = body["arrays"]
        frame = Frame({name: facts["offset"] for name, facts in listing.items()}, body["bytes"], body["heads_crc32"])
        with found.open() as file:
            return read_frame(file, frame, listing)
    except FileNotFoundError as error:
        raise StoreError(f"{found.name} with the arrays is missing; restore it from a copy") from error
    except DamagedFrameError as error:
        raise StoreError(f"{found.name}: {error}; restore it from a copy") from error
    except (OSError, KeyError, TypeError, ValueError) as error:  # a description may say anything
        raise StoreError(f"{found.name} cannot be read: {error}; restore it from a copy") from error


def _as_written(array: np.ndarray) -> np.ndarray:
    """Array in C order, and in the byte order of the format."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _forget(place: Location, before: str | None, state: str) -> None:
    """Remove the arrays of the previous model, unless the new one uses them."""
    if before is not None and before != state and place.child(before).exists():
        place.child(before).remove()


def _cannot_write(place: Location, error: OSError) -> StoreError:
    return StoreError(f"{place.name}: cannot write a model there: {error}")


# -- results ---------------------------------------------------------------------------------------------------
# -- saving and loading ---------------------------------------------------------------------------------------
@answering
def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior, with its model and statistics, as Zarr v3 arrays in one zip file, and JSON.

    ``zarr.json`` names the zip and describes its content.  Versions up to 0.2.0 wrote a folder of arrays, which
    :func:`load` reads; they refuse this format, and say so.

    Parameters
    ----------
    posterior
        The posterior.
    path
        Directory to make, or a URL that fsspec knows (``"s3://bucket/model.zarr"``).  A model saved there before is
        replaced: a kill at any moment leaves the old one or the new one.

    Raises
    ------
    StoreError
        Something else is at ``path``, or it cannot be written.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.repeat([[0.0], [9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 1))
    >>> posterior = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x).posterior
    >>> bnp.save(posterior, "model.zarr")
    >>> bnp.load("model.zarr")
    Posterior(DPMixture of Gaussian, 2 clusters, 40 atoms)
    """
    posterior = require_posterior(posterior)
    write_archive("posterior", posterior, path)


def save_again(posterior: Posterior, saved: Path | Key, path: Path | Key) -> None:
    """Write a posterior of a run that is saved at ``saved`` already; on a disk its arrays only get a second name."""
    clear_for("posterior", path)
    if isinstance(saved, Path) and isinstance(path, Path):
        copy_posterior(saved, path)
    else:
        save(posterior, path)


def save_draws(draws: Draws, path: str | os.PathLike[str]) -> None:
    """Write the draws of a sampler as :func:`save` writes a posterior; :func:`load_draws` reads them."""
    write_archive("draws", draws, path)


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior that :func:`save` wrote; needs no Dask and runs no code from the file.

    Raises
    ------
    StoreError
        There is no saved model at ``path``, it is of a newer format, or a part of it is missing or damaged; the
        error names the part.
    """
    return _posterior_at(path)


def _posterior_at(path: str | os.PathLike[str] | Key) -> Posterior:
    place, posterior = read_archive("posterior", path)
    if not isinstance(posterior, Posterior):
        raise StoreError(f"{place.name}: holds a {type(posterior).__name__}, not a posterior")
    try:
        _require_sound(posterior)
    except Exception as error:  # arrays of any shapes are in question
        what = str(error) if isinstance(error, (BnpDaskError, DamagedError)) else f"{type(error).__name__}: {error}"
        raise StoreError(
            f"{place.name} is no posterior of its model ({what}), though its checksum is right: another program wrote "
            "it. Restore it from a copy; of a run, train(..., resume=True) writes it again"
        ) from error
    return posterior


COMPARED = 2**22
"""Most bytes of the statistics of a loaded posterior whose parameters are computed again, to compare their shapes: some
milliseconds.  Beyond that only its statistics are looked at."""


def _require_sound(posterior: Posterior) -> None:
    """DamagedError, or any other error, unless the parts of a posterior fit one another."""
    kinds = {"model": Model, "summary": Summary | None, "words": Words | None, "columns": Columns | None}
    for name, kind in kinds.items():
        if not isinstance(getattr(posterior, name), kind):  # type: ignore[arg-type]
            raise DamagedError(f"{name} is {shown(getattr(posterior, name))}")
    ids, summary, model = posterior.ids, posterior.summary, posterior.model
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise DamagedError(f"ids is {shown(ids)}; needs whole numbers (K,)")
    if summary is None:
        return
    if not np.array_equal(summary.ids, ids):
        raise DamagedError("its statistics are of other clusters than ids")
    if not isinstance(summary.fields, Mapping) or dict(summary.fields) != dict(model.fields):
        raise DamagedError("its statistics have other fields than those of its model")
    same = Summary.from_arrays(model.fields, summary.to_arrays())
    if summary.nbytes > COMPARED:
        return
    for name, own in (("allocation", model.allocation_step(same)), ("observation", model.observation_step(same))):
        wanted, found = form_of(own), form_of(getattr(posterior, name))
        if wanted != found:
            place, needed, there = first_difference(name, wanted, found)
            raise DamagedError(f"{place} is {shown(there)}; needs {shown(needed)}")


@answering
def load_draws(path: str | os.PathLike[str]) -> Draws:
    """Read the draws that a run with ``Gibbs()`` wrote to ``draws.zarr`` in its directory; runs no code from the file.

    Parameters
    ----------
    path
        Run directory or URL of a run, or the path of its ``draws.zarr``.

    Returns
    -------
    Draws
        Statistics of the clusters at each sweep that was kept, and the clusters of the noted rows.

    Raises
    ------
    StoreError
        As for :func:`bnp_dask.load`; or the run did not use ``Gibbs()``.
    """
    if may_hold_runs(path_text("path", path)):
        folder = run_folder(path)
        if place_of(folder).exists(folder / DRAWS_NAME):
            path = folder / DRAWS_NAME
        elif place_of(folder).exists(folder / POSTERIOR_NAME):
            raise StoreError(f"{path}: this run kept no draws; train(..., schedule=Gibbs(...), store=...) keeps them")
    place, draws = read_archive("draws", path)
    if not isinstance(draws, Draws):
        raise StoreError(f"{place.name}: holds a {type(draws).__name__}, not draws")
    return draws


# -- looking --------------------------------------------------------------------------------------------------
def to_xarray(posterior: Posterior) -> xarray.Dataset:
    """Weights, counts and the likelihoods' estimates for each cluster, as labelled arrays.

    The likelihood names its expected values (``mean``, ``covariance``, ``rate``, ``probability``, ``coefficients``)
    and the settings of its posterior (``nu``, ``kappa``, ``a``, ``b``, ``lam``); hidden Markov models add
    ``transition`` and ``start``.  Parts of a ``Product`` are named after their columns, such as ``age.mean``.

    Coordinate ``cluster`` holds the cluster ids, and ``feature``, ``word`` or ``lagged`` the names of columns if these
    are known.  A second axis of the same kind, as in a covariance, is ``feature_2``.
    """
    try:
        import xarray
    except ImportError as error:
        raise SettingError("to_xarray needs xarray: pip install 'bnp-dask[xarray]'") from error
    model = posterior.model
    found = {"weight": each(posterior.weights)}
    if posterior.summary is not None:
        found["count"] = each(posterior.summary["N"])
    found |= model.structure.estimates(posterior)
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
        "observation": type(unlabelled(model.observation)).__name__,
        "estimate": model.estimate,
    }
    return xarray.Dataset(variables, coords=coords, attrs=settings)


OF_HISTORY = {
    **dict.fromkeys(("elbo", "lower_bound_", "bound_"), 'result.history["elbo"]'),
    "n_iter_": "len(result.history)",
    "converged_": "result.converged",
    "history_": "result.history",
    "posterior_": "result.posterior",
}
"""Attributes of a result, by the names of estimators' attributes."""


# -- result ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class TrainResult:
    """Result of ``train``; all its values are read-only (``array.copy()`` of an array may be changed).

    ``result.posterior`` is the argument of :func:`bnp_dask.predict`, :func:`bnp_dask.score` and :func:`bnp_dask.save`;
    :func:`bnp_dask.inspect` and :func:`bnp_dask.report` take the result itself.

    Parameters
    ----------
    posterior
        The learned posterior.
    history
        One row per step.
    converged
        Whether the run stopped because nothing changed any more.
    reason
        Why it stopped, in words: ``"objective and counts stopped changing at lap 12"``.
    seconds
        Wall time of the run.
    skipped
        Reason for each batch that could not be used and was left out (``on_bad_batch="skip"``).
    warm_seconds
        Wall time of compiling or loading kernels before the first lap; not in the seconds of the history.
    alternatives
        Outcome of each alternative state of the run, in order for several starts (``n_init``): ``"kind"``, ``"seed"``,
        laps of the run before it (``"begun"``), its own laps (``"lap"``), objective (``"elbo"``, nats) and
        ``"n_clusters"`` at the last of them, and ``"reason"``: that it went on alone, or another was ahead, or why it
        had ended before; and ``"prior"``, for shadows with a prior of their own.  So they show how far K and the
        objective differ from start to start.  Empty if there was a single state.
    draws
        Draws of a run with ``Gibbs()``; None for other schedules, and if none was kept yet.
    """

    posterior: Posterior
    history: History = field(default_factory=History)
    converged: bool = False
    reason: str = ""
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()
    warm_seconds: float = 0.0
    alternatives: tuple[Mapping[str, Any], ...] = ()
    draws: Draws | None = None

    def __post_init__(self) -> None:
        for name in ("posterior", "alternatives", "draws"):
            hold(self, name, frozen(getattr(self, name)))

    @property
    def starts(self) -> tuple[Mapping[str, Any], ...]:
        """Alternatives that are starts: ``rng=result.starts[i]["seed"]`` makes one of them alone."""
        return tuple(one for one in self.alternatives if one["kind"] == "start")

    @property
    def certainty(self) -> Any:
        """:class:`bnp_dask.Certainty` of the number of clusters, by posterior and history alone: no pass over data.

        :func:`bnp_dask.certainty` also compares other starts, and runs on resampled data.
        """
        return method("certainty")(self)

    if not TYPE_CHECKING:  # a checker knows that there are no other attributes

        def __getattr__(self, name: str) -> Any:
            if name in OF_HISTORY:
                raise AttributeError(f"TrainResult has no {name!r}; use {OF_HISTORY[name]}", name=name, obj=self)
            if name in Posterior.__dataclass_fields__ or (not name.startswith("_") and hasattr(Posterior, name)):
                raise AttributeError(f"TrainResult has no {name!r}; use result.posterior.{name}", name=name, obj=self)
            return not_here(self, name, "result.")

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        reason = f" ({self.reason})" if self.reason not in ("", state) else ""
        left_out = f", {len(self.skipped)} batches skipped" if self.skipped else ""
        elbo = f", objective {self.history['elbo'][-1]:.6g} nats" if "elbo" in self.history else ""
        return (
            f"TrainResult: {state}{reason}, {count_of(self.posterior)}{elbo}, "
            f"{len(self.history)} steps in {self.seconds:.1f} s{left_out}\n  {self.posterior!r}"
        )

    def _repr_html_(self) -> str:
        # only a notebook calls this: plain sessions do not pay for building tables
        return str(method("result_html")(self))

    def to_datatree(self) -> xarray.DataTree:
        """The run as labelled arrays, in groups, as xarray and ArviZ keep them; ``to_netcdf`` and ``to_zarr`` write it.

        ``clusters`` is :meth:`Posterior.to_xarray`, ``history`` the numbers of each step; a run with ``Gibbs()`` has
        its draws as ``posterior``, with the dimensions that ArviZ requires.  Whether the run converged, why it stopped
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
    """Write the posterior, and draws if there are any, into a run directory."""
    clear_for("posterior", folder / POSTERIOR_NAME)
    save(result.posterior, folder / POSTERIOR_NAME)
    if result.draws is not None:
        clear_for("draws", folder / DRAWS_NAME)
        save_draws(result.draws, folder / DRAWS_NAME)


def saved_posterior(store: str | os.PathLike[str] | None) -> Posterior | None:
    """The posterior of a run directory; None if there is none that can be read."""
    if store is None:
        return None
    try:
        return _posterior_at(run_folder(store) / POSTERIOR_NAME)
    except StoreError:
        return None


__all__ = [
    "History",
    "TrainResult",
    "load",
    "load_draws",
    "save",
    "save_draws",
    "save_result",
    "saved_posterior",
    "to_xarray",
    "with_names",
]
