"""Job files: a whole run as YAML, checked name by name before anything starts.

.. code-block:: yaml

    model:
      allocation: {type: DPMixture, gamma: 10.0}
      observation: ZeroMeanGaussian          # the short form of {type: ZeroMeanGaussian}
    data: patches.zarr                       # or {path: ..., batch_size: ..., columns: [...], groups: ..., order: ...,
                                             # on_bad_cell: missing}, or a source without files,
                                             # {type: VirtualMixture, n_rows: ..., n_columns: ..., n_clusters: ...}
    init: {type: BregmanKMeans, n_clusters: 25}
    schedule: {type: Memoized, laps: 50}
    moves: [Birth, Merge, {type: Delete, per_lap: 3}]   # [] for none; left out: all, if the model learns K
    client: {workers: 4}                     # or {scheduler: tcp://...} or {scheduler_file: ...}; left out: no Dask
    store: runs/patches
    rng: 0
    n_init: 1                                # starts, of which the best continues after ten laps
    shadow: {laps: 12}                       # a second state, which replaces the run's when it is better
    collapsed: 4                             # passes at the end that find words of topics for scores; 0 for none
    on_bad_batch: raise                      # or skip: leave out batches that cannot be read
    reproducible: false                      # or true: the same bits on other processors
    memory: 256MB                            # of this process for data of batches; the rest is kept in files
    update: {revisit: 0.2, half_life: 30d}   # defaults of bnp-dask update and follow

Classes of other packages go by their module, ``{type: negbin.NegativeBinomial, r: 2.0}``, once that is imported
(``bnp-dask train --import negbin ...``) or installed with an entry point; see :func:`bnp_dask.register`.  So may the
source of the data, ``data: {type: sqlite_rows.SqliteRows, ...}``, and the executor, ``client: {type: pool.Pool}``.
Reading a job file imports nothing else that it names.

A job file may come from a stranger, and runs no code: it names data at paths and URLs of a list of protocols
(:mod:`bnp_dask.inputs.settings`), and a scheduler only if an option or ``DASK_SCHEDULER_ADDRESS`` names the same one.

Only ``model`` and ``data`` are required.  Paths are relative to the job file, or to ``folder`` if that is given.
Every class takes the settings that it has in Python; arrays are lists of numbers or paths of ``.npy`` files.
Columns of a table go by name: ``{type: Product, groups: {age: Gaussian, "visits, calls": Poisson}}``.

A job file is UTF-8 and has at most a million bytes, 20,000 values and names, and 32 levels of nested lists and
settings; each alias counts as its expansion.  Larger arrays belong into ``.npy`` files.

For some data, :func:`first_job` proposes a job file with comments, as ``bnp-dask init`` writes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import re
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import numpy as np
import yaml
from yaml.constructor import ConstructorError

from bnp_dask._names import (
    ALLOCATIONS,
    INITIALIZATIONS,
    INTENSITIES,
    MOVES,
    OBSERVATIONS,
    RESPONSES,
    SCHEDULES,
    SOURCES,
    Group,
)
from bnp_dask.allocation import Allocation, Intensity, Response
from bnp_dask.core import REGISTRY, Location
from bnp_dask.data import Source, as_source, columns_of
from bnp_dask.errors import DataError, SettingError, StoreError, near, warn
from bnp_dask.execute import Executor
from bnp_dask.inference import Schedule
from bnp_dask.initialize import Initialization
from bnp_dask.inputs import SHOWN, Key, local_path, one_line, place_in_file, require, shortened, shown, whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.observation import Gaussian, Observation, Product, marginalises, read_as
from bnp_dask.store import JOB_NAME, read_note
from bnp_dask.training import KEPT, MEMORY, Plan, Shadow, TrainResult, parse_memory, plan, rules_of
from bnp_dask.training.results import load
from bnp_dask.training.train import train

if TYPE_CHECKING:
    from distributed import Client

    from bnp_dask.training import Callback


# -- YAML as job files use it: numbers such as ``1e-6``, no repeated names, and limits on size --------------------
# A few lines of YAML can expand beyond any memory, by aliases of aliases, and nested lists can be deeper than
# Python's stack.  Size and depth are checked before anything is built.


@dataclass(frozen=True)
class Limits:
    """Limits of a YAML text, with every alias expanded.

    Parameters
    ----------
    characters
        Characters of the text, and of all its values and names.
    nodes
        Number of values and names.
    depth
        Levels of nested lists and mappings.
    digits
        Digits of a whole number.
    """

    characters: int = 1_000_000
    nodes: int = 20_000
    depth: int = 32
    digits: int = 100

    def times(self, factor: int) -> Limits:
        """These limits with characters and nodes multiplied by ``factor``."""
        return Limits(factor * self.characters, factor * self.nodes, self.depth, self.digits)


LIMITS = Limits()
"""Limits of job files; PyYAML takes about two seconds for a text of this size."""


def read_yaml(text: str, limits: Limits = LIMITS) -> Any:
    """Plain lists, mappings, texts and numbers from YAML.

    Raises
    ------
    SettingError
        The text is not YAML, holds anything but plain values, or exceeds the limits.
    """
    if len(text) > limits.characters:
        raise SettingError(f"more than {limits.characters:,} characters; put arrays into .npy files")
    try:
        loader = _Loader(text, limits)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _require_size(node, limits)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise SettingError(f"{one_line(error.problem or error.context)}{where}") from error
    except yaml.YAMLError as error:
        raise SettingError(one_line(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        # a value that does not fit its tag, such as !!int with a word
        raise SettingError(f"a value does not fit its tag ({one_line(error)})") from error


def _require_size(root: yaml.Node, limits: Limits) -> None:
    """Refuse a document that exceeds the limits with every alias expanded; an alias that contains itself never ends."""
    sizes: dict[int, tuple[int, int] | None] = {}

    def size(node: yaml.Node) -> tuple[int, int]:
        """Nodes and characters of a node; each node is visited once, and none is deeper than the limit."""
        if isinstance(node, yaml.ScalarNode):
            return 1, len(node.value)
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise SettingError("an alias stands for something that it is a part of")
            return known
        sizes[id(node)] = None
        nodes, characters = 1, 0
        for entry in node.value:
            for child in entry if isinstance(node, yaml.MappingNode) else (entry,):
                more = size(child)
                nodes, characters = nodes + more[0], characters + more[1]
        if nodes > limits.nodes or characters > limits.characters:
            raise SettingError(
                f"more than {limits.nodes:,} values and names, or {limits.characters:,} characters in them, with every "
                "alias out in full; put arrays into .npy files"
            )
        sizes[id(node)] = nodes, characters
        return nodes, characters

    size(root)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader that also reads ``1e-6`` as a number and refuses lists as names and repeated names."""

    def __init__(self, text: str, limits: Limits) -> None:
        super().__init__(text)
        self._limits, self._depth, self._nodes = limits, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as PyYAML does, and count it."""
        self._nodes += 1
        self._depth += 1
        if self._depth > self._limits.depth or self._nodes > self._limits.nodes:
            depth, nodes = self._limits.depth, self._limits.nodes
            what = (
                f"lists or settings lie more than {depth} levels deep in one another"
                if self._depth > depth
                else f"more than {nodes:,} values and names; put arrays into .npy files"
            )
            raise yaml.composer.ComposerError(None, None, what, self.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                raise ConstructorError(None, None, f"{shown(key)} is no name", key_node.start_mark)
            if key in seen:
                raise ConstructorError(None, None, f"{shown(key)} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int:
        """A whole number that is not absurdly long."""
        if len(node.value) <= 4 * self._limits.digits:  # a number has more binary digits than decimal ones
            value = super().construct_yaml_int(node)
            if abs(value) < 10**self._limits.digits:
                return value
        raise ConstructorError(None, None, f"a whole number of more than {self._limits.digits} digits", node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
# a directory may be called 2026-01-31
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in _Loader.yaml_implicit_resolvers.items()
}


# -- From the text of a job file to objects: each setting is converted to the type that its field declares --------


# -- classes that a job file may name, by purpose ------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Role:
    """Purpose of a class: names in this package, the protocol to follow, and an example for messages."""

    known: Group
    protocol: type
    example: str


ALLOCATION = Role(ALLOCATIONS, Allocation, "DPMixture")
INTENSITY = Role(INTENSITIES, Intensity, "GeneralizedGamma")
RESPONSE = Role(RESPONSES, Response, "GaussianResponse")
OBSERVATION = Role(OBSERVATIONS, Observation, "Gaussian")
INIT = Role(INITIALIZATIONS, Initialization, "RandomExamples")
SCHEDULE = Role(SCHEDULES, Schedule, "Memoized")
MOVE = Role(MOVES, Move, "Merge")
SOURCE = Role(SOURCES, Source, "sqlite_rows.SqliteRows")
EXECUTOR = Role({}, Executor, "pool.Pool")


def class_of(role: Role, kind: str, path: str) -> type:
    """The class of a name: a class of this package, or, if its module is given, a registered one."""
    if kind in role.known:
        return getattr(importlib.import_module(role.known[kind]), kind)
    if "." in kind:
        try:
            return REGISTRY.find(kind)
        except StoreError as error:
            raise SettingError(f"{path}: there is no {shown(kind)}: {error}") from error
    hint = nearest(kind, role.known) if role.known else f"; needs the class with its module, such as {role.example}"
    raise SettingError(f"{path}: there is no {shown(kind)}{hint}")


def nearest(name: Any, known: Any) -> str:
    """``"; did you mean 'gamma'?"``, or the list of known names."""
    close = near(short_name(name), map(str, known))
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; there are {', '.join(str(k) for k in known)}"


def short_name(name: Any) -> str:
    """A name, shortened for messages."""
    return shortened(str(name), SHOWN)


# -- settings ------------------------------------------------------------------------------------------------------
class UnknownSettingError(SettingError):
    """A name that is no setting of the section it stands in."""

    def __init__(self, where: str, name: str, hint: str) -> None:
        super().__init__(f"{where}: there is no such setting{hint}")
        self.where, self.name = where, name


def object_of(role: Role, value: Any, path: str, folder: Path) -> Any:
    """An object of one of the classes of a role, from ``{type: Name, ...}`` or ``Name``."""
    kind, given = kind_and_settings(value, path)
    made = build(class_of(role, kind, path), given, path, folder)
    require(path, made, role.protocol, role.example)
    return made


def kind_and_settings(value: Any, path: str) -> tuple[str, dict[str, Any]]:
    given = dict(mapping(short(value, "type"), path))
    kind = given.pop("type", None)
    if not isinstance(kind, str):
        close = near("type", [k for k in given if isinstance(k, str)])
        hint = "" if close is None else f" (found {shown(close)})"
        raise SettingError(f"{path}: needs 'type', the name of a class{hint}, such as {{type: DPMixture}}")
    return kind, given


def build(cls: type, value: Any, path: str, folder: Path) -> Any:
    """An object of ``cls`` from its settings."""
    values = settings_of(cls, mapping(value, path), path, folder)
    try:
        return cls(**values)
    except (ArithmeticError, TypeError, ValueError) as error:  # a SettingError, or NumPy's own about an array
        raise SettingError(f"{path}: {error}") from error


def settings_of(cls: type, given: Mapping[str, Any], path: str, folder: Path) -> dict[str, Any]:
    """Values for the fields of a dataclass, each checked against its type."""
    known = known_settings(cls)
    for name in given:
        if name not in known:
            raise UnknownSettingError(_join(path, name), str(name), nearest(name, known))
    missing = [n for n, setting in known.items() if setting.is_required and n not in given]
    if missing:
        raise SettingError(f"{_join(path, missing[0])}: is missing, and needed")
    return {n: _convert(v, known[n].hint, _join(path, n), folder) for n, v in given.items()}


@dataclass(frozen=True)
class Setting:
    """A setting of a class for job files: its declared type, whether it is required, and else its default."""

    hint: Any
    is_required: bool
    default: Any = None


def known_settings(cls: type) -> dict[str, Setting]:
    """Settings of a dataclass by name: its fields, and second names of these that its own ``__init__`` takes."""
    hints = typing.get_type_hints(cls)
    parameters = inspect.signature(cls).parameters
    found = {}
    for f in dataclasses.fields(cls):
        if f.init:
            is_required = parameters[f.name].default is inspect.Parameter.empty
            default = None if f.default is dataclasses.MISSING else f.default
            found[f.name] = Setting(hints[f.name], is_required, default)
    second = [name for name in parameters if name not in found]
    if second:
        own = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
        found |= {name: Setting(own[name], False) for name in second}
    return found


def _convert(value: Any, hint: Any, path: str, folder: Path) -> Any:
    """A value of a YAML file as the declared type of a field; SettingError if it has another type."""
    if hint is object:
        return value
    if hint is Allocation:
        return object_of(ALLOCATION, value, path, folder)
    if hint is Observation:
        return object_of(OBSERVATION, value, path, folder)
    if hint is Intensity:
        return object_of(INTENSITY, value, path, folder)
    if hint is Response:
        return object_of(RESPONSE, value, path, folder)
    if hint is Initialization:
        return object_of(INIT, value, path, folder)
    if hint is Posterior:
        return load(absolute(_text(value, path), folder, path))
    if hint is Path:
        return Path(absolute(_text(value, path), folder, path))
    if hint in (np.ndarray, Any):
        return _array(value, path, folder)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise SettingError(
                f"{path}: {shown(value)} is none of {', '.join(get_args(hint))}{nearest(value, get_args(hint))}"
            )
        return value
    if get_origin(hint) in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), path, folder)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        item = get_args(hint)[1]
        return {k: _convert(v, item, f"{path}[{short_name(k)}]", folder) for k, v in mapping(value, path).items()}
    if get_origin(hint) in (tuple, Sequence):
        if not isinstance(value, list):
            raise SettingError(f"{path}: found {shown(value)}, needs a list, such as [a, b]")
        return tuple(_convert(v, get_args(hint)[0], f"{path}[{i}]", folder) for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, path, folder)
    return _scalar(value, hint, path)


def _convert_union(value: Any, options: tuple[Any, ...], path: str, folder: Path) -> Any:
    if value is None and types.NoneType in options:
        return None
    is_number = isinstance(value, (int, float))
    fits = [o for o in options if o is not types.NoneType]
    if is_number:  # a number stays a number if the class takes both numbers and arrays
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
        raise SettingError(f"{path}: found {shown(value)}, needs {names[hint]}")
    return value


def _array(value: Any, path: str, folder: Path) -> np.ndarray:
    if isinstance(value, str):
        try:
            found = np.load(absolute(value, folder, path), allow_pickle=False)
        except SettingError:
            raise
        except Exception as error:  # NumPy raises nearly anything on damaged bytes
            raise SettingError(f"{path}: cannot read {shown(value)} as a .npy file: {error}") from error
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
            raise SettingError(f"{path}: {shown(value)} holds no array of numbers; write one with numpy.save")
        return found
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if isinstance(value, bool) or array.size == 0:
        raise SettingError(
            f"{path}: found {shown(value)}, needs numbers: a list, a list of lists, or the path of a .npy file"
        )
    return array


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"{path}: found {shown(value)}, needs settings, such as 'name: value'")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{path}: found {shown(value)}, needs text")
    return value


def short(value: Any, name: str) -> Any:
    """``Name`` is short for ``{name: Name}``."""
    return {name: value} if isinstance(value, str) else value


def _join(path: str, name: Any) -> str:
    return f"{path}.{short_name(name)}" if path else short_name(name)


def absolute(path: str, folder: Path, where: str) -> str:
    if "://" in path or "::" in path:
        return place_in_file(path, where)
    try:
        return os.path.abspath(folder / local_path(path))
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error


TLS = ("tls_ca_file", "tls_cert", "tls_key")
"""Settings of an encrypted connection."""


@dataclass(frozen=True)
class ClientSpec:
    """Where a run computes; at most one of the first three is given, none means this process.

    Parameters
    ----------
    workers
        Start a cluster of that many single-threaded processes here, for the time of the run.
    scheduler
        Address of a running Dask scheduler, such as ``tcp://10.0.0.1:8786``.  A scheduler can run code here, so
        the command must name the same one, by ``--scheduler`` or ``DASK_SCHEDULER_ADDRESS``.
    scheduler_file
        File that ``dask scheduler --scheduler-file`` wrote; the command must name it, or its address, as well.
    memory_limit
        Memory limit of each worker that is started here, such as ``4GB``.
    tls_ca_file, tls_cert, tls_key
        PEM files for a scheduler at ``tls://...``: the authority that signed all certificates, and this client's own
        certificate and key.  Left out: from Dask's configuration (``distributed.comm.tls``).
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


@dataclass(frozen=True, eq=False)
class ExecutorSpec:
    """An executor of another package: its class and its settings.  It is made only for use, as it may start much."""

    kind: type
    settings: Mapping[str, Any]

    def make(self) -> Executor:
        """The executor; SettingError if the class cannot make one from these settings."""
        try:
            made = self.kind(**self.settings)
        except (TypeError, ValueError) as error:
            raise SettingError(f"client: {error}") from error
        require("client", made, Executor, "an executor")
        return made


@dataclass(frozen=True)
class DataSpec:
    """Data of a job.

    Parameters
    ----------
    path
        Path or URL; not a chain of URLs, and with one of the protocols file, memory, s3, s3a, gs, gcs, az, abfs, abfss,
        http, https and hf.
    batch_size
        Atoms per batch; default as the data are chunked.
    weights
        Weight of each atom: name of a column (tables), or path of a ``.npy`` file.
    labels
        Known labels of the atoms: path of a ``.npy`` file of whole numbers ``(n,)``, -1 where unknown; see
        ``labels`` of :func:`bnp_dask.train`.
    links
        Groups of atoms that share one cluster: path of a ``.npy`` file of whole numbers ``(n,)``, -1 for atoms in
        no group; see ``links`` of :func:`bnp_dask.train`.
    responses
        Responses of the documents: path of a ``.npy`` file of numbers ``(n,)``, NaN where none is known; see
        ``responses`` of :func:`bnp_dask.train`.
    columns
        Columns to use (tables); default: all numeric ones.
    format
        Format of a file, if its name and first bytes do not show it.
    groups
        Groups of rows (sequences, documents of dense rows): name of a column (tables), or path of a ``.npy`` file of
        offsets.  Stores that were ingested with groups have them already.
    order
        Name of the column that rises within each group (tables).
    gaps, step, cut
        Effect of gaps in the order column, length of a step, and most rows of a block into which long sequences are
        cut; see :func:`bnp_dask.as_source`.
    on_bad_cell
        Effect of cells that are not numbers (tables): ``raise``, an error, or ``missing``.
    """

    path: str = dataclasses.field(repr=False)
    batch_size: int | None = None
    weights: str | None = dataclasses.field(default=None, repr=False)
    labels: str | None = dataclasses.field(default=None, repr=False)
    links: str | None = dataclasses.field(default=None, repr=False)
    responses: str | None = dataclasses.field(default=None, repr=False)
    columns: tuple[str, ...] | None = None
    format: str | None = None
    groups: str | None = None
    order: str | None = None
    gaps: Literal["refuse", "cut", "ignore"] | None = None
    step: float | None = None
    cut: int | None = None
    on_bad_cell: Literal["raise", "missing"] | None = None

    def open(
        self,
        on_bad_batch: Literal["raise", "skip"] = "raise",
        levels: Sequence[Key] = (),
        chosen: Sequence[str] | None = None,
    ) -> Source:
        """The data as a source of batches; ``on_bad_batch`` and ``levels`` as in :func:`bnp_dask.as_source`.

        The columns are the ``chosen`` ones if the job names none.
        """
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["labels"], settings["links"], settings["responses"]  # train adds them
        if self.columns is None and chosen is not None:
            settings["columns"] = list(chosen)
        return as_source(settings.pop("path"), on_bad_batch=on_bad_batch, levels=list(levels), **settings)


@dataclass(frozen=True)
class UpdateSpec:
    """How the run of a job takes in more data, unless a command says otherwise.

    Parameters
    ----------
    revisit, laps, batch_size, versions, half_life, keep, time, new_words, dormant, on_bad
        As for :func:`bnp_dask.update`; lengths of time and times are text.
    """

    revisit: float = 1.0
    laps: int = 0
    batch_size: int | None = None
    versions: int = KEPT
    half_life: str | None = None
    keep: str | None = None
    time: str | None = None
    new_words: Literal["add", "drop"] | None = None
    dormant: float | None = None
    on_bad: Literal["raise", "set aside"] = "raise"

    def __post_init__(self) -> None:
        rules_of(
            self.revisit,
            self.laps,
            MEMORY,
            self.versions,
            half_life=self.half_life,
            keep=self.keep,
            dormant=self.dormant,
        )
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)


WORDS = {
    "'rng'": "seed random_state random_seed",
    "schedule: {type: Memoized, laps: ...}": "max_iter n_iter iterations epochs max_laps passes",
    "init: {type: BregmanKMeans, n_clusters: ...}": "n_components K k",
    "client: {workers: ...}": "n_jobs n_workers jobs processes",
    "'store'": "output out output_dir rundir run_dir",
    "'data'": "path input dataset file",
}
"""Settings of a job, by other programs' words for them."""


# -- sections and their settings, to tell where a setting belongs that stands in the wrong one ---------------------
def place_of_setting(name: str, top: type) -> str:
    """A hint that says in which section a setting of this name belongs, with an example; empty if there is none.

    ``top`` is the class of the settings at the top of a job file.
    """
    for section, kind, cls in _sections(top):
        if name in known_settings(cls):
            if not section:
                return f"; {name!r} belongs to the top of the file"
            inside = f"{name}: ..." if kind is None else f"type: {kind}, {name}: ..."
            shape = f"[{{{inside}}}]" if section == "moves" else f"{{{inside}}}"
            *above, last = section.split(".")
            example = f"{last}: {shape}"
            for word in reversed(above):
                example = f"{word}: {{{example}}}"
            return f"; {name!r} belongs to {section!r}, such as {example}"
    return ""


def _sections(top: type) -> Iterator[tuple[str, str | None, type]]:
    """Name of each section, name of the class whose settings it has if it may have several, and the class."""
    yield "", None, top
    yield from _of("schedule", SCHEDULES, "Memoized")
    yield "data", None, DataSpec
    yield from _of("model.allocation", ALLOCATIONS, "DPMixture")
    yield from _of("model.observation", OBSERVATIONS, "Gaussian")
    yield from _of("init", INITIALIZATIONS, "BregmanKMeans")
    yield from _of("moves", MOVES, "Birth")
    yield "client", None, ClientSpec
    yield "update", None, UpdateSpec
    yield "shadow", None, Shadow


def _of(section: str, known: Group, usual: str) -> Iterator[tuple[str, str, type]]:
    """The classes of a section, the usual one first."""
    for kind in sorted(known, key=lambda name: (name != usual, name)):
        yield section, kind, getattr(import_module(known[kind]), kind)


# -- jobs ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """One run, as a job file describes it.

    ``raw`` is the checked text as a mapping, with the folder that its paths are relative to, as the run directory
    keeps it.
    """

    model: Model
    data: DataSpec | Source
    init: Any
    schedule: Any
    moves: tuple[Any, ...] | None
    client: ClientSpec | ExecutorSpec
    store: str | None
    rng: int
    n_init: int
    shadow: Shadow | None
    collapsed: int | None
    checkpoint_minutes: float
    on_bad_batch: Literal["raise", "skip"]
    reproducible: bool
    memory: int
    update: UpdateSpec
    raw: Mapping[str, Any] = dataclasses.field(repr=False)

    def train(
        self, client: Client | Executor | None = None, resume: bool = False, callbacks: Sequence[Callback] = ()
    ) -> TrainResult:
        """Open the data and train, as the file says; ``client`` as in :func:`bnp_dask.train`.

        Raises as :func:`bnp_dask.as_source` and :func:`bnp_dask.train` do.
        """
        data, facts = self._data()
        return train(
            self.model,
            data,
            **facts,
            init=self.init,
            schedule=self.schedule,
            moves=self.moves,
            client=client,
            store=self.store,
            resume=resume,
            callbacks=callbacks,
            rng=self.rng,
            n_init=self.n_init,
            shadow=self.shadow,
            collapsed=self.collapsed,
            checkpoint_minutes=self.checkpoint_minutes,
            on_bad_batch=self.on_bad_batch,
            reproducible=self.reproducible,
            memory=self.memory,
            labels=self.data.labels if isinstance(self.data, DataSpec) else None,
            links=self.data.links if isinstance(self.data, DataSpec) else None,
            responses=self.data.responses if isinstance(self.data, DataSpec) else None,
            job=to_text(self),
        )

    def _data(self) -> tuple[Any, dict[str, Any]]:
        """The data for ``train``: a path that it opens itself; or a source, where more than path, ``batch_size`` and
        ``weights`` says how to read it."""
        if not isinstance(self.data, DataSpec):
            return self.data, {}
        data = self.data
        if data == DataSpec(data.path, data.batch_size, data.weights, data.labels, data.links, data.responses):
            return data.path, {"batch_size": data.batch_size, "weights": data.weights}
        return data.open(self.on_bad_batch, *read_as(self.model.observation)), {}

    def plan(self, workers: int | None = None, memory: str | None = None, n_clusters: int | None = None) -> Plan:
        """Estimate of time and memory of the run, on the workers that the file names unless others are given.

        Raises as :func:`bnp_dask.as_source` and :func:`bnp_dask.plan` do.
        """
        if isinstance(self.client, ClientSpec):
            workers = self.client.workers if workers is None else workers
            named = self.client.memory_limit
            memory = named if memory is None and named != "auto" else memory
        wished = read_as(self.model.observation)
        return plan(
            self.model,
            self.data.open(self.on_bad_batch, *wished) if isinstance(self.data, DataSpec) else self.data,
            workers=workers,
            memory=memory,
            n_clusters=n_clusters,
            init=self.init,
            schedule=self.schedule,
            moves=self.moves,
            store=self.store,
        )


@dataclass(frozen=True)
class Top:
    """A run: names at the top of a job file, whose values are checked one by one.

    Parameters
    ----------
    model
        Allocation and observation.
    data
        Path or URL of the data, or settings with a path.
    init, schedule
        Initialisation of clusters, and order of visits to the data; left out: defaults of the model.
    moves
        Births, merges and deletes; an empty list for none; left out: all, if the model learns K.
    client
        Where to compute; left out: in this process, without Dask.
    store
        Run directory, or URL of an object store, for checkpoints.
    rng
        Seed of all random numbers.
    n_init
        Number of starts, of which the best continues after ten laps.
    shadow
        A second state beside the run's state, which replaces it when it is better; left out: none.
    collapsed
        Passes at the end that find words of topics for scores; left out: the default of the run.
    checkpoint_minutes
        Minutes between checkpoints.
    on_bad_batch
        Whether to stop at batches that cannot be read, or to leave them out.
    reproducible
        Whether other processors are to give the same bits.
    memory
        Memory of this process for data of batches, such as 256MB; the rest is kept in files.
    update
        How the run takes in more data, unless a command says otherwise.
    folder
        Folder that paths are relative to; left out: the folder of the job file.
    """

    model: object
    data: object
    init: object = None
    schedule: object = None
    moves: object = None
    client: object = None
    store: str | None = None
    rng: int = 0
    n_init: int = 1
    shadow: object = None
    collapsed: int | None = None
    checkpoint_minutes: float = 5.0
    on_bad_batch: Literal["raise", "skip"] = "raise"
    reproducible: bool = False
    memory: int | str = MEMORY
    update: object = None
    folder: str | None = None


LIMITS_OF_KEPT = LIMITS.times(4)
"""Limits of a job that a run keeps: it has been checked, and is longer than the user's file."""


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read and check a job file.

    Raises
    ------
    SettingError
        The file cannot be read, is not YAML, or is larger than a job file may be; or a setting is unknown, misspelt, of
        the wrong type or out of range: names it by its full path, such as ``model.observation.gama``, and the nearest
        right one.
    """
    file = local_path(path)
    limits = LIMITS_OF_KEPT if file.name == JOB_NAME else LIMITS
    try:
        with open(file, "rb") as opened:
            content = opened.read(limits.characters + 1)
    except OSError as error:
        hint = Location.of(str(file.absolute())).nearest() if isinstance(error, FileNotFoundError) else ""
        raise SettingError(f"cannot read the job file {file}: {error.strerror or error}{hint}") from error
    return _job_of(content, str(file), limits, file.absolute().parent)


def job_of_run(rundir: str) -> Job | None:
    """The job of a run directory, or of a run on an object store; None without a job.

    Raises
    ------
    SettingError
        As for :func:`read_job`.
    """
    content = read_note(rundir, JOB_NAME)
    if content is None:
        return None
    return _job_of(content, f"{rundir}/{JOB_NAME}", LIMITS_OF_KEPT, Path())


def update_of_run(rundir: str) -> UpdateSpec:
    """How the job of a run takes in more data; the defaults for a run without a job.

    The rest of the job is not checked: its initial data may no longer exist.

    Raises
    ------
    SettingError
        As for :func:`read_job`.
    """
    content, name = read_note(rundir, JOB_NAME), f"{rundir}/{JOB_NAME}"
    if content is None:
        return UpdateSpec()
    read = _read(content, name, LIMITS_OF_KEPT)
    with _naming(name):
        return _update(mapping(read, "the job").get("update"), Path())


def _job_of(content: bytes, name: str, limits: Limits, folder: Path) -> Job:
    """A job from the bytes of a job file; messages call it by ``name``."""
    read = _read(content, name, limits)
    with _naming(name):
        return parse_job(read, folder)


def _read(content: bytes, name: str, limits: Limits) -> Any:
    try:
        return read_yaml(content[: limits.characters + 1].decode("utf-8"), limits)
    except UnicodeDecodeError as error:
        raise SettingError(
            f"{name} is no job file, which is text in YAML: {error}; 'bnp-dask init DATA' writes one"
        ) from error
    except SettingError as error:
        advice = "; lines are indented by blanks" if r"'\t'" in str(error) else ""
        raise SettingError(f"{name} is not valid YAML for a job: {error}{advice}") from error


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Make errors of settings inside name the job file."""
    try:
        yield
    except UnknownSettingError as error:
        is_top = error.where == error.name
        word = next((own for own, words in WORDS.items() if is_top and error.name in words.split()), None)
        elsewhere = place_of_setting(error.name, Top) if word is None else f"; that is {word}"
        text = f"{error.where}: there is no such setting here{elsewhere}" if elsewhere else error
        raise SettingError(f"{name}: {text}") from error
    except SettingError as error:
        raise SettingError(f"{name}: {error}") from error


def parse_job(content: Any, folder: Path) -> Job:
    """Check a job given as a mapping; paths in it are relative to its ``folder``, or else to ``folder``."""
    if content is None:
        raise SettingError("the job is empty; 'bnp-dask init DATA' writes one")
    top = mapping(content, "the job")
    values = settings_of(Top, top, "", folder)
    folder = Path(absolute(values.get("folder") or ".", folder, "folder"))
    if values.get("rng", 0) < 0:
        raise SettingError(f"rng: found {values['rng']}, needs a whole number, at least 0")
    return Job(
        model=build(Model, top["model"], "model", folder),
        data=_data(top["data"], folder),
        init=None if top.get("init") is None else object_of(INIT, top["init"], "init", folder),
        schedule=None if top.get("schedule") is None else object_of(SCHEDULE, top["schedule"], "schedule", folder),
        moves=_moves(top.get("moves"), folder),
        client=_client(top.get("client"), folder),
        store=None if values.get("store") is None else absolute(values["store"], folder, "store"),
        rng=values.get("rng", 0),
        n_init=values.get("n_init", 1),
        shadow=None if top.get("shadow") is None else build(Shadow, top["shadow"], "shadow", folder),
        collapsed=values.get("collapsed"),
        checkpoint_minutes=values.get("checkpoint_minutes", 5.0),
        on_bad_batch=values.get("on_bad_batch", "raise"),
        reproducible=values.get("reproducible", False),
        memory=parse_memory(values.get("memory", MEMORY)),
        update=_update(top.get("update"), folder),
        raw={**top, "folder": str(folder)},
    )


def with_laps(job: Job, laps: int) -> Job:
    """Job with another limit of laps."""
    kind, given = kind_and_settings(job.raw.get("schedule") or "Memoized", "schedule")
    raw = {**job.raw, "schedule": {"type": kind, **given, "laps": laps}}
    return parse_job(raw, Path())


def with_store(job: Job, store: str | os.PathLike[str]) -> Job:
    """Job with another run directory."""
    return parse_job({**job.raw, "store": absolute(os.fspath(store), Path(), "store")}, Path())


def to_text(job: Job) -> str:
    """A job as the text of a job file, for its run directory and ``bnp-dask resume``."""
    return yaml.safe_dump(dict(job.raw), sort_keys=False)


def _data(value: Any, folder: Path) -> DataSpec | Source:
    """Where the data are, or a source that has a ``type``: of this package, or of another."""
    if isinstance(value, Mapping) and "type" in value:
        return object_of(SOURCE, value, "data", folder)
    data = build(DataSpec, short(value, "path"), "data", folder)
    names = ("weights", "groups", "labels", "links", "responses")
    apart = {name: getattr(data, name) for name in names}
    files = {n: absolute(v, folder, f"data.{n}") for n, v in apart.items() if v is not None and v.endswith(".npy")}
    return dataclasses.replace(data, path=absolute(data.path, folder, "data.path"), **files)


def _client(value: Any, folder: Path) -> ClientSpec | ExecutorSpec:
    """Where to compute, or an executor of another package that has a ``type``: made when the run begins."""
    if isinstance(value, Mapping) and "type" in value:
        kind, given = kind_and_settings(value, "client")
        cls = class_of(EXECUTOR, kind, "client")
        return ExecutorSpec(cls, settings_of(cls, given, "client", folder))
    client = ClientSpec() if value is None else build(ClientSpec, value, "client", folder)
    for name in ("scheduler_file", *TLS):
        if getattr(client, name) is not None:
            found = absolute(getattr(client, name), folder, f"client.{name}")
            client = dataclasses.replace(client, **{name: found})
    return client


def _update(value: Any, folder: Path) -> UpdateSpec:
    """How the run takes in more data."""
    return UpdateSpec() if value is None else build(UpdateSpec, value, "update", folder)


def _moves(value: Any, folder: Path) -> tuple[Any, ...] | None:
    """The moves of a list; None, the default of ``train``, if none is given."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise SettingError(f"moves: found {shown(value)}, needs a list, such as [Birth, Merge, Delete]")
    return tuple(object_of(MOVE, move, f"moves[{i}]", folder) for i, move in enumerate(value))


def first_job(data: str, groups: str | None, order: str | None, folder: str) -> str:
    """Text of a job file that trains as it is.

    Parameters
    ----------
    data
        Path or URL of the data, which are opened.
    groups, order
        Columns of a table of sequences: of their ids, and one that rises within each.
    folder
        Folder of the job file: paths in it are relative to this.

    Raises
    ------
    DataError, SettingError
        As :func:`bnp_dask.as_source`.
    """
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        source = as_source(data, groups=groups, order=order)
    product = _proposed(data, source) if groups is None and not source.is_sparse else None
    for each in left_out if product is None else ():
        warn(str(each.message), each.category)
    place = data if "://" in data else os.path.relpath(local_path(data).absolute(), folder)
    more = {"groups": groups, "order": order}
    settings = {"path": place, **{name: value for name, value in more.items() if value is not None}}
    return "\n".join(
        [
            "# A job of bnp-dask, which trains as it is; paths are relative to this file.",
            f"# {source.name}: {_size_of(source, product)}",
            "model:",
            *(f"  {line}" for line in _model(source, groups, product)),
            f"data: {_inline(settings)}",
            "# schedule: {type: Memoized, laps: 50}    # passes over the data at most; it stops when it has converged",
            "# init, moves: left out, the defaults of the model; moves: [] keeps the number of clusters of the start",
            "# client: {workers: 2}                     # processes to start; left out: this one, without Dask",
            "store: runs/first                          # results and checkpoints; 'bnp-dask resume' goes on",
            "rng: 0                                     # the same number gives the same bits",
            "",
        ]
    )


def _proposed(data: str, source: Source) -> Product | None:
    """Likelihoods of the columns of a table file, by :meth:`bnp_dask.Product.of`; None if one Gaussian does."""
    columns = columns_of(source)
    if columns is None:
        return None
    try:
        found = Product.of(data)
    except DataError:  # a folder of tables, or no column to learn from
        return None
    ((names, part), *others) = _groups(found)
    is_one = not others and isinstance(part, Gaussian) and not marginalises(part)
    return None if is_one and len(names.split(",")) == source.n_features else found


def _model(source: Source, groups: str | None, product: Product | None) -> list[str]:
    """Lines of the model for a source; ``product`` holds likelihoods by column."""
    if source.is_sparse:
        return [
            "allocation: HDPTopics                    # topics of documents; their number is learned",
            "observation: Multinomial                 # counts of words",
        ]
    if groups is not None:
        return [
            "allocation: HDPHMM                       # states of sequences; their number is learned",
            "observation: Gaussian                    # AutoRegressiveGaussian: states are ways to go on",
        ]
    if product is not None:
        return [
            "allocation: DPMixture                    # clusters of rows; their number is learned",
            "observation:                             # a likelihood for each kind of column",
            "  type: Product",
            "  groups:",
            *(f"    {_inline(names)}: {_inline(_settings(part))}" for names, part in _groups(product)),
            *(["  others: ignore                         # columns left out"] if product.others else []),
        ]
    return [
        "allocation: DPMixture                    # clusters of rows; their number is learned",
        "observation: Gaussian                    # DiagGaussian for many features",
    ]


def _groups(product: Product) -> list[tuple[str, Observation]]:
    """Names of the columns of each group, and its likelihood."""
    return [(key if isinstance(key, str) else ", ".join(key), part) for key, part in product.pairs]


def _settings(part: Observation) -> str | dict[str, str]:
    """A proposed likelihood as a job file has it."""
    name = type(part).__name__
    return {"type": name, "missing": "marginalise"} if marginalises(part) else name


def _size_of(source: Source, product: Product | None) -> str:
    n = source.n_atoms
    d = source.n_features if product is None else sum(len(names.split(",")) for names, _ in _groups(product))
    return f"{'?' if n is None else format(n, ',')} rows, {d:,} features"


def _inline(settings: str | dict[str, str]) -> str:
    text = yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


# -- JSON schema of job files, for editors: made from the declared types that check a job file, and from docstrings


Schema = dict[str, Any]

ROLES: Mapping[str, Group] = {
    "Allocation": ALLOCATION.known,
    "Observation": OBSERVATION.known,
    "Intensity": INTENSITY.known,
    "Response": RESPONSE.known,
    "Initialization": INIT.known,
    "Schedule": SCHEDULE.known,
    "Move": MOVE.known,
}
"""Roles of objects in a job file, with their possible names."""

SCALARS: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}

GUEST: Schema = {
    "type": "object",
    "description": "A class of another package, by its module.",
    "properties": {"type": {"type": "string", "pattern": r"\."}},
    "required": ["type"],
}


def schema_text() -> str:
    """The schema as JSON, as ``bnp-dask schema`` prints it and ``docs/job.schema.json`` holds it."""
    return json.dumps(job_schema(), indent=1) + "\n"


def job_schema() -> Schema:
    """JSON schema (draft 7) of a job file.

    It contains names, types, and required settings; numbers out of range are found when the job is read.
    """
    named = (*ROLES.values(), SOURCE.known)
    classes = {kind: getattr(import_module(known[kind]), kind) for known in named for kind in sorted(known)}
    own = {kind: _settings_schema(cls, kind) for kind, cls in classes.items()}
    roles = {role: _any_of(_of_role(known)) for role, known in ROLES.items()}
    numbers: Schema = {"type": "array", "items": {"anyOf": [{"type": "number"}, _reference("numbers")]}, "minItems": 1}
    top = _settings_schema(Top)
    parts = {
        "model": _reference("Model"),
        "data": _any_of([{"type": "string"}, _reference("Data"), *map(_reference, sorted(SOURCE.known)), GUEST]),
        "init": _any_of([_reference("Initialization"), {"type": "null"}]),
        "schedule": _any_of([_reference("Schedule"), {"type": "null"}]),
        "moves": _any_of([{"type": "array", "items": _reference("Move")}, {"type": "null"}]),
        "client": _any_of([_reference("Client"), GUEST, {"type": "null"}]),
        "shadow": _any_of([_reference("Shadow"), {"type": "null"}]),
        "update": _any_of([_reference("Update"), {"type": "null"}]),
    }
    top["properties"] |= {name: _with(top["properties"][name], schema) for name, schema in parts.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Job file of bnp-dask",
        **top,
        "definitions": {
            "Model": _settings_schema(Model),
            "Data": _settings_schema(DataSpec),
            "Client": _settings_schema(ClientSpec),
            "Shadow": _settings_schema(Shadow),
            "Update": _settings_schema(UpdateSpec),
            "numbers": numbers,
            **roles,
            **own,
        },
    }


def _of_role(known: Group) -> list[Schema]:
    short: list[Schema] = [{"enum": sorted(known)}, {"type": "string", "pattern": r"^[^.]+(\.[^.]+)+$"}]
    return [*short, *(_reference(kind) for kind in sorted(known)), GUEST]


def _settings_schema(cls: type, kind: str | None = None) -> Schema:
    """Settings of a dataclass; with its ``type`` if it has the name ``kind``."""
    said, required = _said(cls), []
    properties: dict[str, Schema] = {}
    if kind is not None:
        properties["type"] = {"const": kind}
        required.append("type")
    for name, setting in known_settings(cls).items():
        schema = of_type(setting.hint)
        if schema is None:
            continue
        known: Schema = {"description": said[name]} if name in said else {}
        if isinstance(setting.default, (bool, int, float, str)):
            known["default"] = setting.default
        properties[name] = _with(known, schema)
        if setting.is_required:
            required.append(name)
    found: Schema = {"type": "object", "description": _plain((inspect.getdoc(cls) or "").split("\n\n")[0])}
    found |= {"properties": properties, "additionalProperties": False}
    return {**found, "required": required} if required else found


def of_type(hint: Any) -> Schema | None:
    """Values that a job file may give for a declared type; None if there are none.

    One branch for each branch that checks the value (``settings.py``).
    """
    if hint is object:
        return {}
    if hint is Allocation:
        return _reference("Allocation")
    if hint is Observation:
        return _reference("Observation")
    if hint is Intensity:
        return _reference("Intensity")
    if hint is Response:
        return _reference("Response")
    if hint is Initialization:
        return _reference("Initialization")
    if hint in (Posterior, Path):
        return {"type": "string"}
    if hint in (np.ndarray, Any):
        return _any_of([{"type": "number"}, _reference("numbers"), {"type": "string", "pattern": r"\.npy$"}])
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) in (Union, types.UnionType):
        options = [schema for option in get_args(hint) if (schema := of_type(option)) is not None]
        return _any_of(options) if any(o != {"type": "null"} for o in options) else None
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return {"type": "object", "additionalProperties": of_type(get_args(hint)[1])}
    if get_origin(hint) in (tuple, Sequence):
        return {"type": "array", "items": of_type(get_args(hint)[0])}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _settings_schema(hint)
    return {"type": SCALARS[hint]} if hint in SCALARS else None


def _any_of(options: list[Schema]) -> Schema:
    flat = [part for option in options for part in (option["anyOf"] if list(option) == ["anyOf"] else [option])]
    alone = [option for i, option in enumerate(flat) if option not in flat[:i]]
    return alone[0] if len(alone) == 1 else {"anyOf": alone}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _with(known: Schema, schema: Schema) -> Schema:
    """A schema with a description and similar keys beside it; readers ignore keys beside a bare reference."""
    return {**known, "allOf": [schema]} if known and "$ref" in schema else {**known, **schema}


def _said(cls: type) -> dict[str, str]:
    """Description of each parameter in a docstring, as plain text."""
    _, _, section = (inspect.getdoc(cls) or "").partition("Parameters\n----------\n")
    section = re.split(r"\n\n?\w[\w ]*\n-{3,}\n", section)[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^(\S[^\n]*)\n((?:[ ]+[^\n]*\n?|\n)*)", section, re.MULTILINE):
        found |= dict.fromkeys((name.strip() for name in names.split(",")), _plain(text))
    return found


def _plain(text: str) -> str:
    """Text in one line without marks of reStructuredText."""
    return " ".join(re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", lambda m: m[1] or m[2], text).split())
