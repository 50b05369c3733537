"""Job files: a whole run as YAML, checked name by name before anything starts.

.. code-block:: yaml

    model:
      allocation: {type: DPMixture, gamma: 10.0}
      observation: ZeroMeanGaussian          # the short form of {type: ZeroMeanGaussian}
    data: patches.zarr                       # or {path: ..., batch_size: ..., columns: [...], groups: ..., order: ...}
    init: {type: BregmanKMeans, n_clusters: 25}
    schedule: {type: Memoized, laps: 50}
    moves: [Birth, Merge, {type: Delete, per_lap: 3}]
    client: {workers: 4}                     # or {scheduler: tcp://...} or {scheduler_file: ...}; left out: no Dask
    store: runs/patches
    rng: 0
    on_bad_batch: raise                      # or skip: leave out batches that cannot be read
    memory: 256MB                            # of this process for what it holds of batches; the rest lies in files

Only ``model`` and ``data`` are required.  Paths are relative to the job file, or to ``folder`` where that is given.
Every class takes the settings that it has in Python; arrays are lists of numbers or paths of ``.npy`` files.
Columns of a table go by name: ``{type: Product, groups: {age: Gaussian, "visits, calls": Poisson}}``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import yaml

from bnp_dask._names import ALLOCATIONS, INITIALIZATIONS, MOVES, OBSERVATIONS, SCHEDULES, Group
from bnp_dask.allocation.base import Allocation
from bnp_dask.data import Source, as_source
from bnp_dask.errors import SettingError
from bnp_dask.memory_plan import MEMORY, parse_memory
from bnp_dask.model import Model, Posterior
from bnp_dask.observation.base import Observation
from bnp_dask.results import load

TLS = ("tls_ca_file", "tls_cert", "tls_key")
"""Settings of an encrypted connection."""

COPY_NAME = "job.yaml"
"""Name of the copy of the job file in a run directory."""


@dataclass(frozen=True)
class ClientSpec:
    """Where a run computes; at most one of the first three is given, none means this process.

    Parameters
    ----------
    workers
        Start a cluster of that many single-threaded processes here, for the time of the run.
    scheduler
        Address of a Dask scheduler that runs already, such as ``tcp://10.0.0.1:8786``.
    scheduler_file
        File that ``dask scheduler --scheduler-file`` wrote.
    memory_limit
        Of each worker that is started here, such as ``4GB``.
    tls_ca_file, tls_cert, tls_key
        PEM files for a scheduler at ``tls://...``: the authority that signed all certificates, and this client's own
        certificate and key.  Left out: what Dask's configuration (``distributed.comm.tls``) says.
    """

    workers: int | None = None
    scheduler: str | None = None
    scheduler_file: str | None = None
    memory_limit: str | None = None
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        places = {n: getattr(self, n) for n in ("workers", "scheduler", "scheduler_file")}
        given = [n for n, v in places.items() if v is not None]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} are given; needs one place to compute")
        if self.workers is not None and self.workers < 1:
            raise SettingError(f"workers={self.workers}: needs at least 1; leave it out to run without Dask")
        if self.memory_limit is not None and self.workers is None:
            raise SettingError("memory_limit is for workers that are started here; give workers too")
        tls = [n for n in TLS if getattr(self, n) is not None]
        if tls and len(tls) < len(TLS):
            raise SettingError(f"{' and '.join(tls)} without the others: give all of {', '.join(TLS)}, or none")
        if tls and self.scheduler is None and self.scheduler_file is None:
            raise SettingError("certificates are for a scheduler that runs already; give scheduler or scheduler_file")


@dataclass(frozen=True)
class DataSpec:
    """What to train on.

    Parameters
    ----------
    path
        Path or URL.
    batch_size
        Atoms per batch; default as the data are chunked.
    weights
        How often each atom counts: name of a column (tables), or path of a ``.npy`` file.
    columns
        Columns to use (tables); default: all numeric ones.
    format
        Format of a file, where its name and first bytes do not tell.
    groups
        Which rows belong together (sequences, documents of dense rows): name of a column (tables), or path of a
        ``.npy`` file of offsets.  Stores that were ingested with groups have them already.
    order
        Name of the column that rises within each group (tables).
    gaps, step, cut
        What gaps in the order column do, how long a step is, and the most rows of a block into which long sequences are
        cut; see :func:`bnp_dask.as_source`.
    """

    path: str
    batch_size: int | None = None
    weights: str | None = None
    columns: tuple[str, ...] | None = None
    format: str | None = None
    groups: str | None = None
    order: str | None = None
    gaps: Literal["refuse", "cut", "ignore"] | None = None
    step: float | None = None
    cut: int | None = None

    def open(self, on_bad_batch: Literal["raise", "skip"] = "raise") -> Source:
        """The data as a source of batches; ``on_bad_batch`` as in :func:`bnp_dask.as_source`."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return as_source(settings.pop("path"), on_bad_batch=on_bad_batch, **settings)


@dataclass(frozen=True)
class Job:
    """One run, as a job file describes it.

    ``raw`` is the checked text as a mapping, with the folder that its paths are relative to: what the run directory
    keeps.
    """

    model: Model
    data: DataSpec
    init: Any
    schedule: Any
    moves: tuple[Any, ...]
    client: ClientSpec
    store: str | None
    rng: int
    checkpoint_minutes: float
    on_bad_batch: Literal["raise", "skip"]
    memory: int
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class _Top:
    """Names at the top of a job file; the values are checked one by one."""

    model: object
    data: object
    init: object = None
    schedule: object = None
    moves: object = None
    client: object = None
    store: str | None = None
    rng: int = 0
    checkpoint_minutes: float = 5.0
    on_bad_batch: Literal["raise", "skip"] = "raise"
    memory: int | str = MEMORY
    folder: str | None = None


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read and check a job file.

    Raises
    ------
    SettingError
        The file cannot be read, is not YAML, or a setting is unknown, misspelt, of the wrong type or out of range;
        names the setting by its full path, such as ``model.observation.gama``, and the nearest right one.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read the job file {file}: {error}") from error
    try:
        content = yaml.load(text, Loader=_Loader)
    except RecursionError as error:
        raise SettingError(
            f"{file} is not valid YAML for a job: lists or settings lie too deep in one another"
        ) from error
    except yaml.YAMLError as error:
        raise SettingError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return parse_job(content, file.absolute().parent)
    except SettingError as error:
        raise SettingError(f"{file}: {error}") from error


def parse_job(content: Any, folder: Path) -> Job:
    """Check a job given as a mapping; paths in it are relative to its ``folder``, or else to ``folder``."""
    top = _mapping(content, "the job")
    values = _settings(_Top, top, "", folder)
    folder = Path(_absolute(values.get("folder") or ".", folder))
    data = _build(DataSpec, _short(top["data"], "path"), "data", folder)
    apart = {"weights": data.weights, "groups": data.groups}
    files = {name: _absolute(v, folder) for name, v in apart.items() if v is not None and v.endswith(".npy")}
    client = ClientSpec() if top.get("client") is None else _build(ClientSpec, top["client"], "client", folder)
    for name in ("scheduler_file", *TLS):
        if getattr(client, name) is not None:
            client = dataclasses.replace(client, **{name: _absolute(getattr(client, name), folder)})
    return Job(
        model=_build(Model, top["model"], "model", folder),
        data=dataclasses.replace(data, path=_absolute(data.path, folder), **files),
        init=_one_of(INITIALIZATIONS, top["init"], "init", folder) if top.get("init") is not None else None,
        schedule=_one_of(SCHEDULES, top["schedule"], "schedule", folder) if top.get("schedule") is not None else None,
        moves=_moves(top.get("moves"), folder),
        client=client,
        store=None if values.get("store") is None else _absolute(values["store"], folder),
        rng=values.get("rng", 0),
        checkpoint_minutes=values.get("checkpoint_minutes", 5.0),
        on_bad_batch=values.get("on_bad_batch", "raise"),
        memory=parse_memory(values.get("memory", MEMORY)),
        raw={**top, "folder": str(folder)},
    )


def with_laps(job: Job, laps: int) -> Job:
    """The same job with another limit of laps."""
    kind, given = _kind_and_settings(job.raw.get("schedule") or "Memoized", "schedule")
    raw = {**job.raw, "schedule": {"type": kind, **given, "laps": laps}}
    return parse_job(raw, Path())


def with_store(job: Job, store: str | os.PathLike[str]) -> Job:
    """The same job with another run directory."""
    return parse_job({**job.raw, "store": os.path.abspath(store)}, Path())


def write_copy(job: Job, folder: str | os.PathLike[str]) -> None:
    """Keep the job in its run directory, for ``bnp-dask resume``; written in one piece."""
    target = Path(folder) / COPY_NAME
    partial = target.with_suffix(".partial")
    partial.write_text(yaml.safe_dump(dict(job.raw), sort_keys=False), encoding="utf-8")
    partial.replace(target)


def _moves(value: Any, folder: Path) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise SettingError(f"moves: found {value!r}, needs a list, such as [Birth, Merge, Delete]")
    return tuple(_one_of(MOVES, move, f"moves[{i}]", folder) for i, move in enumerate(value))


# -- from text to objects -------------------------------------------------------------------------------------
def _one_of(group: Group, value: Any, path: str, folder: Path) -> Any:
    """An object of one of the classes of a group, from ``{type: Name, ...}`` or ``Name``."""
    kind, given = _kind_and_settings(value, path)
    if kind not in group:
        raise SettingError(f"{path}: there is no {kind!r}{nearest(kind, group)}")
    cls = getattr(importlib.import_module(group[kind]), kind)
    return _build(cls, given, path, folder)


def _kind_and_settings(value: Any, path: str) -> tuple[str, dict[str, Any]]:
    given = dict(_mapping(_short(value, "type"), path))
    kind = given.pop("type", None)
    if not isinstance(kind, str):
        close = get_close_matches("type", [k for k in given if isinstance(k, str)], n=1)
        hint = f" (found {close[0]!r})" if close else ""
        raise SettingError(f"{path}: needs 'type', the name of a class{hint}, such as {{type: DPMixture}}")
    return kind, given


def _build(cls: type, value: Any, path: str, folder: Path) -> Any:
    """An object of ``cls`` from its settings."""
    values = _settings(cls, _mapping(value, path), path, folder)
    try:
        return cls(**values)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


def _settings(cls: type, given: Mapping[str, Any], path: str, folder: Path) -> dict[str, Any]:
    """Values for the fields of a dataclass, each checked against its type."""
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for name in given:
        if name not in known:
            raise SettingError(f"{_join(path, name)}: there is no such setting{nearest(name, known)}")
    required = [n for n, f in known.items() if f.default is f.default_factory is dataclasses.MISSING]
    missing = [n for n in required if n not in given]
    if missing:
        raise SettingError(f"{_join(path, missing[0])}: is missing, and needed")
    hints = typing.get_type_hints(cls)
    return {n: _convert(v, hints[n], _join(path, n), folder) for n, v in given.items()}


def _convert(value: Any, hint: Any, path: str, folder: Path) -> Any:
    """A value of a YAML file as the type that a field declares; SettingError when it is another."""
    if hint is object:
        return value
    if hint is Allocation:
        return _one_of(ALLOCATIONS, value, path, folder)
    if hint is Observation:
        return _one_of(OBSERVATIONS, value, path, folder)
    if hint is Posterior:
        return load(_absolute(_text(value, path), folder))
    if hint in (np.ndarray, Any):
        return _array(value, path, folder)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise SettingError(
                f"{path}: {value!r} is none of {', '.join(get_args(hint))}{nearest(value, get_args(hint))}"
            )
        return value
    if get_origin(hint) in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), path, folder)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        item = get_args(hint)[1]
        return {k: _convert(v, item, f"{path}[{k}]", folder) for k, v in _mapping(value, path).items()}
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise SettingError(f"{path}: found {value!r}, needs a list, such as [a, b]")
        return tuple(_convert(v, get_args(hint)[0], f"{path}[{i}]", folder) for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, path, folder)
    return _scalar(value, hint, path)


def _convert_union(value: Any, options: tuple[Any, ...], path: str, folder: Path) -> Any:
    if value is None and types.NoneType in options:
        return None
    is_number = isinstance(value, (int, float))
    fits = [o for o in options if o is not types.NoneType]
    if is_number:  # a number for an array is a number where the class takes both
        fits.sort(key=lambda o: o not in (bool, int, float))
    else:
        fits.sort(key=lambda o: o in (bool, int, float))
    errors = []
    for option in fits:
        try:
            return _convert(value, option, path, folder)
        except SettingError as error:
            errors.append(error)
    raise errors[0]


def _scalar(value: Any, hint: Any, path: str) -> Any:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "nothing"}
    if hint not in names:
        raise SettingError(f"{path}: cannot be given in a job file; use Python for it")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise SettingError(f"{path}: found {value!r}, needs {names[hint]}")
    return value


def _array(value: Any, path: str, folder: Path) -> np.ndarray:
    if isinstance(value, str):
        try:
            return np.load(_absolute(value, folder), allow_pickle=False)
        except (OSError, ValueError) as error:
            raise SettingError(f"{path}: cannot read {value!r} as a .npy file: {error}") from error
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if isinstance(value, bool) or array.size == 0:
        raise SettingError(
            f"{path}: found {value!r}, needs numbers: a list, a list of lists, or the path of a .npy file"
        )
    return array


# -- small things ----------------------------------------------------------------------------------------------
def nearest(name: Any, known: Any) -> str:
    """``"; did you mean 'gamma'?"``, or the list of what there is."""
    folded = {str(k).lower(): str(k) for k in known}
    close = get_close_matches(str(name).lower(), folded, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {folded[close[0]]!r}?"
    return f"; there are {', '.join(str(k) for k in known)}"


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"{path}: found {value!r}, needs settings, such as 'name: value'")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{path}: found {value!r}, needs text")
    return value


def _short(value: Any, name: str) -> Any:
    """``Name`` is short for ``{name: Name}``."""
    return {name: value} if isinstance(value, str) else value


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _absolute(path: str, folder: Path) -> str:
    if "://" in path or "::" in path:
        return path
    return os.path.abspath(folder / Path(path).expanduser())


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also reads ``1e-6`` as a number; no lists as names, and no name twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is no name", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
