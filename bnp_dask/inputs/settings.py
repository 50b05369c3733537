"""Checks of settings: one function for each kind of value, so that all classes and functions refuse the same things."""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np

from bnp_dask.errors import HIDDEN, SettingError, StoreError, redacted

# -- Paths of this machine as users write them, and checks of places that a file names ----------------------------
# A job file, a run directory or a model says where to read, write or compute.  Such a file may be a stranger's, and
# none of them may run code here.  Arguments and options of the caller may name more: a URL of any protocol that
# fsspec knows, a chain of URLs, the address of a scheduler.  A file may name local paths and URLs of the protocols
# below, and a scheduler only if the caller names the same one.


NAME_BYTES = 255
"""Most bytes of a name in a folder: no common file system takes more."""

PATH_BYTES = 4095
"""Most bytes of a whole path that Linux takes."""

POSTERIOR_NAME = "posterior.zarr"
"""Name of the posterior in a run directory."""

DRAWS_NAME = "draws.zarr"
"""Name of the draws of a sampler in a run directory."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path with ``~`` replaced by its home directory.

    Raises
    ------
    SettingError
        No file can have this name: it is empty, holds a NUL or lone surrogates, is too long, begins with ``~`` and
        an unknown user, or is a URL.  Or it names a variable of the environment, which only a shell replaces.
    """
    text = os.fspath(path)
    if not text:
        raise SettingError("an empty path; needs the name of a file or directory")
    if "://" in text:
        raise SettingError(f"{shown(text)} is a URL; needs a path of this machine")
    found = os.path.expanduser(text)
    if text.startswith("~") and found == text:
        raise SettingError(
            f"{shown(text)}: there is no user {shown(text[1:].split('/')[0])} on this machine; write "
            f"{shown('./' + text)} for a name that begins with ~"
        )
    variable = re.search(r"(?:^|/)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))(?:/|$)", found)
    name = "" if variable is None else variable[1] or variable[2]
    if name in os.environ and not os.path.lexists(found):
        raise SettingError(
            f"{shown(text)}: variables of the environment are not replaced here, and a folder ${name} is hardly "
            "meant; write the path itself, os.path.expandvars(path), or on the command line --store and --out"
        )
    try:
        encoded = os.fsencode(found)
    except UnicodeEncodeError as error:
        raise SettingError(f"{shown(text)}: no path can hold {error.object[error.start : error.end]!r}") from error
    if b"\0" in encoded:
        raise SettingError(f"{shown(text)}: no path can hold a NUL character")
    longest = max(map(len, encoded.split(os.sep.encode())))
    if longest > NAME_BYTES:
        raise SettingError(f"{shown(text)}: a name of {longest} bytes; needs at most {NAME_BYTES}")
    if len(encoded) > PATH_BYTES:
        raise SettingError(f"{shown(text)}: a path of {len(encoded)} bytes; needs at most {PATH_BYTES}")
    return Path(found)


PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "hf")
"""Protocols of URLs that a file may name: they only read bytes.

Others of fsspec start programs, connect with keys of the user, take tasks of Dask, or read places named by a further
file (``reference://``).  So do chains of URLs, with ``::``.
"""


def place_in_file(place: str, where: str) -> str:
    """Return the path or URL that a file names, if a file may name it.

    Parameters
    ----------
    place
        Path or URL in the file.
    where
        Setting and file, for the message.

    Raises
    ------
    SettingError
        A file may not name this protocol, the place is a chain of URLs, or its password or signature was left out when
        the file was written.
    """
    protocol, mark, _ = place.partition("://")
    if not mark and "::" not in place:
        return place
    if "::" in place or protocol not in PROTOCOLS:
        raise SettingError(
            f"{where}: {shown(place)} is not opened because a file names it; files may name paths and URLs of "
            f"{', '.join(PROTOCOLS)}, without '::'. If you know it, pass it yourself, as an argument in Python: "
            "bnp_dask.as_source(URL), or copy the data to such a place"
        )
    if HIDDEN in place:
        raise SettingError(
            f"{where}: {shown(place)} had a password or a signature, which no file keeps; pass the whole URL again: as "
            "data of train(..., resume=True), or in the job file of 'bnp-dask train RUN.YAML --resume'"
        )
    return place


def name_in_file(name: Any, where: str) -> str:
    """Return the name, given in a file, of another file in its folder; SettingError if it leads out of the folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(mark in name for mark in "/\\:\0"):
        raise SettingError(f"{where}: {shown(name)} is no name of a file in this folder")
    return name


def scheduler_in_file(address: str, named: Any, where: str) -> str:
    """Return the address of a scheduler that a file names, if the caller names it too.

    Dask unpickles messages of a scheduler from the first one on, so that a scheduler can run any code here.

    Parameters
    ----------
    address
        Address in the file.
    named
        Address in the caller's own environment: ``scheduler-address`` of Dask's configuration, also set by
        ``DASK_SCHEDULER_ADDRESS``; None if unset.
    where
        Setting and file, for the message.

    Raises
    ------
    SettingError
        The caller names no scheduler, or another one.
    """
    if named == address:
        return address
    other = "" if named is None else f" (DASK_SCHEDULER_ADDRESS names {shown(named)})"
    raise SettingError(
        f"{where}: the scheduler {shown(address)} is not connected to because only a file names it{other}, and a "
        f"scheduler can run any code here. If it is yours, name it yourself: --scheduler {address or 'ADDRESS'}, or "
        "DASK_SCHEDULER_ADDRESS; --workers N computes on this machine instead"
    )


# -- Lines for the user, on any kind of standard output and standard error, with any content ----------------------


LONGEST = 1000
"""Most characters of an error or a warning; a longer text loses its middle."""

SHOWN = 80
"""Most characters of a value in a message."""


def one_line(text: object) -> str:
    """A message in one line: white space folded, control characters written as ``\\x1b``, and shortened if too long."""
    return shortened(_one_line(redacted(" ".join(str(text).split()))), LONGEST)


def shortened(text: str, limit: int) -> str:
    """The text, without its middle if it is longer than ``limit``."""
    if len(text) <= limit:
        return text
    keep = max(limit - 5, 0) // 2
    return f"{text[:keep]} ... {text[len(text) - keep :]}"


def _one_line(text: str) -> str:
    """The text with control characters and lone surrogates as Python escapes."""
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def say(text: str, quiet: bool = False) -> None:
    """Write a result for the user to standard output.

    Raises
    ------
    StoreError
        Standard output cannot be written, as on a full disk.
    """
    if not quiet:
        _write(text, "stdout")


def tell(text: str) -> None:
    """Write a notice for the user to standard error; a failure to write is ignored."""
    _write(text, "stderr")


def _write(text: str, name: Literal["stdout", "stderr"]) -> None:
    """Write lines above a progress bar, if there is one.

    A closed reader, such as ``head``, receives no more lines; the command still runs to its end.
    """
    from tqdm.auto import tqdm

    stream = getattr(sys, name)
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    lines = "\n".join(map(_one_line, redacted(text).split("\n")))
    try:
        tqdm.write(lines.encode(encoding, "backslashreplace").decode(encoding), file=stream)
        stream.flush()
    except BrokenPipeError:
        setattr(sys, name, None)
    except OSError as error:
        setattr(sys, name, None)  # the interpreter must not try again at exit
        if name == "stdout":
            raise StoreError(f"cannot write to standard output: {error.strerror or error}") from error


def open_standard_files() -> None:
    """Redirect closed standard input, output and error to the null device, instead of the next file opened."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


# -- Checks of settings: one function for each kind of value, so that all classes and functions refuse the same things


MOST = 2**53
"""Largest whole number that a setting may be: beyond it float64 skips some."""

LEAST_MASS, MOST_MASS = 1e-100, 1e10
"""Range of settings in units of atoms: concentrations, pseudo-counts and degrees of freedom.

The objective is a sum of terms such as ``log Gamma(a)``, of size ``a log a``, which cancel but for a few nats.
Rounding leaves ``2**-53 a log a`` of each: 3e-5 nats at 1e10, and 7 nats at 1e15.  Below, ``digamma(a)`` is about
``-1 / a``: 1e-100 leaves room for products with counts and with weights of unused clusters down to 1e-100; at 1e-308 it
overflows.
"""

LONGEST_PATH = 4096
"""Most characters of a path or URL."""

LEAST_RATE, MOST_RATE = 1e-120, 1e120
"""Range of the rate of a Gamma prior, one over counts: by default a pseudo-count over the mean of counts."""


def is_whole(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this is a whole number; True and False do not count."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether this is a real number; True, False, texts and arrays do not count."""
    return (isinstance(value, (int, float, np.integer, np.floating))) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int = 0, most: int = MOST, what: str = "a whole number") -> int:
    """The value as an int; SettingError unless it is a whole number from ``least`` to ``most``."""
    if not is_whole(value) or not least <= int(value) <= most:
        limit = f", at most {most}" if most < MOST or (is_whole(value) and int(value) > most) else ""
        raise SettingError(f"{name}={shown(value)}: needs {what}, at least {least}{limit}")
    return int(value)


def whole_or_none(name: str, value: Any, what: str) -> int | None:
    """The value as an int, at least 1, or None; SettingError for anything else."""
    return None if value is None else whole_number(name, value, 1, what=f"None, or {what}")


def number_from(name: str, value: Any, least: float, most: float = math.inf, what: str = "a number") -> int | float:
    """The value as Python's number; SettingError unless it is finite and from ``least`` to ``most``, both included."""
    if not is_number(value) or not least <= value <= most or not is_finite(value):
        low = "" if least == -math.inf else f", at least {least:g}"
        high = "" if most == math.inf else f", at most {most:g}"
        raise SettingError(f"{name}={shown(value)}: needs {what}, finite{low}{high}")
    return _plain(value)


def number_between(name: str, value: Any, low: float, high: float, what: str = "a number") -> int | float:
    """The value as Python's number; SettingError unless it is above ``low`` and below ``high``."""
    if not is_number(value) or not low < value < high:
        raise SettingError(f"{name}={shown(value)}: needs {what}, above {low:g} and below {high:g}")
    return _plain(value)


def share_below_one(name: str, value: Any, what: str) -> int | float:
    """The value as Python's number; SettingError unless it is from 0 to less than 1."""
    if not is_number(value) or not 0.0 <= value < 1.0:
        raise SettingError(f"{name}={shown(value)}: needs {what}, at least 0 and less than 1")
    return _plain(value)


def positive_number(name: str, value: Any, what: str = "number") -> int | float:
    """The value as Python's number; SettingError unless it is positive and finite."""
    if not is_number(value) or not 0 < value < math.inf or not is_finite(value):
        raise SettingError(f"{name}={shown(value)}: needs a positive finite {what}")
    return _plain(value)


def positive_mass(name: str, value: Any, what: str) -> int | float:
    """The value as Python's number; SettingError unless it is from :data:`LEAST_MASS` to :data:`MOST_MASS`."""
    positive_number(name, value, what)
    if not LEAST_MASS <= value <= MOST_MASS:
        raise SettingError(
            f"{name}={shown(value)}: double precision cannot hold the objective of such a {what}; needs one from "
            f"{LEAST_MASS:g} to {MOST_MASS:g}"
        )
    return _plain(value)


def mass_or_zero(name: str, value: Any, what: str) -> int | float:
    """Zero, or the value of :func:`positive_mass`, as Python's number; SettingError for anything else."""
    if not is_number(value) or value < 0:
        raise SettingError(f"{name}={shown(value)}: needs a finite {what}, >= 0")
    return _plain(value) if value == 0 else positive_mass(name, value, what)


def _plain(value: Any) -> int | float:
    """A number as Python's own: a float32 would turn its products into float32."""
    return int(value) if is_whole(value) else float(value)


def hold(owner: Any, name: str, value: Any) -> None:
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(owner, name, value)


def of_two_names(name: str, value: Any, other: str, as_other: Any) -> tuple[str, Any]:
    """Name and value of a setting with two names, of which at most one may be given; value None if none is.

    Raises
    ------
    SettingError
        Both are given.
    """
    if value is not None and as_other is not None:
        raise SettingError(
            f"{name}={shown(value)} and {other}={shown(as_other)} are two names of one setting; give one of them"
        )
    return (name, value) if as_other is None else (other, as_other)


def flag(name: str, value: Any) -> bool:
    """The value as a bool; SettingError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name}={shown(value)}: needs True or False")
    return bool(value)


def one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """SettingError unless the value is among ``known``."""
    if not isinstance(value, (str, type(None))) or value not in known:
        raise SettingError(f"{name}={shown(value)}: needs {' or '.join(map(quoted, known))}")


def path_text(name: str, value: Any) -> str:
    """A path as text; SettingError unless it is text or a path object, has a character, and no NUL."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise SettingError(f"{name}={shown(value)}: needs a path, as text or a Path")
    text = os.fspath(value)
    if len(text) > LONGEST_PATH:
        raise SettingError(f"{name}={shown(text)}: a path of {len(text)} characters; needs at most {LONGEST_PATH}")
    if not text or "\0" in text:
        raise SettingError(
            f"{name}={shown(text)}: needs a path; this is {'one with a NUL' if text else 'an empty text'}"
        )
    return text


SEEDS = 2**128
"""Number of distinct seeds.  A larger seed is another start of the seed that remains modulo this number: everything but
the order of batches is drawn anew."""

STARTS = 2**32
"""Number of starts of one seed."""


def start_of_seed(seed: int, number: int) -> int:
    """Seed of start ``number`` of a seed, whose first start is 0; all starts of a seed visit batches in one order."""
    return seed % SEEDS + SEEDS * ((seed // SEEDS + number) % STARTS)


def seed_of(value: Any, name: str = "rng") -> int:
    """A seed, a whole number >= 0, from any source of random numbers.

    Parameters
    ----------
    value
        A seed; a SeedSequence; a Generator or RandomState, from which a seed is drawn; or None for another seed each
        time.
    name
        Name of the argument, for the message.
    """
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**63))
    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**63, dtype=np.uint64))
    if value is None:
        value = np.random.SeedSequence()
    if isinstance(value, np.random.SeedSequence):
        return int.from_bytes(value.generate_state(4, np.uint32).tobytes(), "little")
    if not is_whole(value) or not 0 <= int(value) < SEEDS * STARTS:
        raise SettingError(
            f"{name}={shown(value)}: needs a seed, a whole number from 0 to 2**160 - 1; a SeedSequence, a Generator, a "
            "RandomState, or None for another seed each time"
        )
    return int(value)


def is_finite(value: Any) -> bool:
    """Whether a number is finite as float64; whole numbers of 400 digits are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: Any, longest: int = SHOWN) -> str:
    """A value as messages show it: on one line, with at most ``longest`` characters."""
    if is_whole(value) and abs(int(value)) >= 10**30:
        return f"a whole number of {len(hex(abs(int(value)))) - 2} hexadecimal digits"
    try:
        text = redacted(" ".join(repr(value).split()))
    except Exception as error:  # the repr of a user's object may raise anything
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return shortened(text, longest)


def quoted(value: Any) -> str:
    """A choice as messages name it."""
    return f'"{value}"' if isinstance(value, str) else str(value)


# -- Checks that a user's object, an instance and not a class, has every member of a protocol ---------------------


_ABSENT = object()

Role = TypeVar("Role")


@cache
def members(protocol: type) -> tuple[str, ...]:
    """Names of the methods and attributes that a protocol declares, in the order of its source."""
    parents = [base for base in reversed(protocol.__mro__) if getattr(base, "_is_protocol", False)]
    names = [name for base in parents for name in (*inspect.get_annotations(base), *vars(base))]
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_")))


def require(name: str, value: Any, protocol: type, example: str) -> None:
    """SettingError unless the value is an instance with all members of a protocol.

    Parameters
    ----------
    name
        Name of the argument.
    value
        Value of the argument.
    protocol
        Required protocol.
    example
        Example of a valid value, for the message.
    """
    lacks = lacking(value, protocol)
    if lacks is not None:
        raise SettingError(f"{name}={shown(value)}: {lacks}, such as {example}")


def as_a(value: object, role: type[Role]) -> Role:
    """Part of a model as an instance of a class or protocol whose members its declared type does not promise.

    The members were checked with the user's settings; this checks them once more.

    Raises
    ------
    SettingError
        The value is something else, or lacks a member.
    """
    if not is_a(value, role):
        raise SettingError(f"{type(value).__name__} is no {role.__name__}, which this needs")
    return value


def is_a(value: object, role: type[Role]) -> TypeGuard[Role]:
    """``isinstance`` that caches the answer by class: the plain one checks each member of a protocol at every
    call."""
    kind: Any = type(value)
    wanted: Any = role  # classes are cache keys, which the type checker does not accept for protocols
    absent = _absent_from(kind, wanted)
    if absent is None:
        return isinstance(value, role)
    if not absent:
        return True
    own = getattr(value, "__dict__", {})  # what a class lacks, an instance may have; None may be a value
    return all(name in own or hasattr(kind, name) for name in absent) and isinstance(value, role)


@cache
def _absent_from(kind: type, role: type) -> tuple[str, ...] | None:
    """Members of a protocol that a class lacks, or that are None there; None if the role is no protocol."""
    if not getattr(role, "_is_protocol", False):
        return None
    return tuple(name for name in members(role) if getattr(kind, name, None) is None)


def lacking(value: Any, protocol: type) -> str | None:
    """The first member of a protocol that a value lacks, in words; None if it lacks none."""
    if isinstance(value, type):
        return "found a class, needs an instance"
    kind: Any = type(value)
    role: Any = protocol  # classes are cache keys, as in is_a()
    if _is_able(kind, role):
        return None
    methods = _methods(protocol)
    for member in methods:
        if not callable(getattr(value, member, None)):
            return f"needs an instance with a method {member}()"
    for member in members(protocol):
        if member not in methods and not _has(value, member):
            return f"needs an instance with {member}"
    return None


@cache
def _methods(protocol: type) -> tuple[str, ...]:
    """Members of a protocol that are methods."""
    return tuple(name for name in members(protocol) if inspect.isfunction(getattr(protocol, name, None)))


@cache
def _is_able(kind: type, protocol: type) -> bool:
    """Whether instances of a class lack no member of a protocol, as far as the class shows it."""
    if not all(callable(getattr(kind, name, None)) for name in _methods(protocol)):
        return False
    return all(inspect.getattr_static(kind, name, _ABSENT) is not _ABSENT for name in members(protocol))


def _has(value: Any, member: str) -> bool:
    """Whether an attribute exists; a property counts without evaluation, since its value may not be known yet."""
    if inspect.getattr_static(value, member, _ABSENT) is not _ABSENT:
        return True
    return getattr(value, member, _ABSENT) is not _ABSENT
