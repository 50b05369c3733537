"""Classes and functions that files and job files may name: each is registered at its definition.

A class -> ``@register`` -> its name in files -> the class again.  A file can only make objects of classes, and call
functions, that the reader's code registered, so that reading runs no code from the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from bnp_dask._names import ALLOCATIONS, INITIALIZATIONS, OBSERVATIONS, PUBLIC, model_parts
from bnp_dask.errors import StoreError, answering
from bnp_dask.inputs import shown

T = TypeVar("T", bound=Callable[..., Any])

ENTRY_POINTS = "bnp_dask.models"
"""Group of entry points by which an installed package announces its modules that register classes."""

_HOUSE = __name__.partition(".")[0]


class Registry:
    """Dataclasses by their names in files."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def add(self, cls: type) -> None:
        """Let files name a dataclass.

        A class that is defined again, as by running the cell of a notebook twice, replaces the former class.

        Raises
        ------
        StoreError
            The class is not a dataclass, or is defined inside a function, or another class has its name.
        """
        if not isinstance(cls, type) or not is_dataclass(cls):
            raise StoreError(
                f"{cls!r} is not a dataclass; only dataclasses can be registered for files: put "
                "@dataclass(frozen=True) between @register and the class"
            )
        name = file_name(cls)
        if "<locals>" in name:
            raise StoreError(
                f"{cls.__qualname__} is defined inside a function, where no file can name it; define it at the top of "
                "its module"
            )
        known = self._classes.setdefault(name, cls)
        if _origin(known) != _origin(cls):
            raise StoreError(f"two classes are named {name}: {cls!r} and {known!r}; rename one")
        self._classes[name] = cls

    def __contains__(self, cls: type) -> bool:
        """Whether files mean this class by its name."""
        return self._classes.get(file_name(cls)) is cls

    def find(self, name: Any) -> type:
        """The class of a name; modules of model parts, and an installed package that announces itself, are imported.

        Raises
        ------
        StoreError
            No class is registered by this name; says how to register it.
        """
        if not isinstance(name, str):
            raise StoreError(f"class {name!r} is not one that may be read from a file: needs a name")
        if name not in self._classes and self is REGISTRY:
            if name in model_parts():
                import_module(model_parts()[name])
            _import_announced(name, name)
        if name in self._classes:
            return self._classes[name]
        raise StoreError(f"class {name!r} is not one that may be read from a file: {self._hint(name)}")

    def _hint(self, name: str) -> str:
        module, _, own = shown(name)[1:-1].rpartition(".")
        if module == "__main__":
            return (
                f"it was defined in a script or notebook; define {own} with @register in this one too, or move it into "
                "a module, and import that first"
            )
        if module:
            return (
                f"import {module} first, which registers it (on the command line: --import {module}), or install the "
                "package that has it"
            )
        known = {*self._classes, *ALLOCATIONS, *INITIALIZATIONS, *OBSERVATIONS} if self is REGISTRY else self._classes
        return f"known are {', '.join(sorted(known))}. A file of a newer version?"


REGISTRY = Registry()
"""Every class that registered itself."""


class Functions:
    """Functions by their names in files, ``module:function``."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def add(self, function: Callable[..., Any], name: str | None = None) -> str:
        """Let files name a function; returns its name, by default its own.

        Raises
        ------
        StoreError
            Another process could not find the function by name: a lambda, a function defined inside another, an
            object.
        """
        name = _function_name(function) if name is None else name
        self._functions[name] = function
        return name

    def find(self, name: str) -> Callable[..., Any]:
        """The function of a name; StoreError with advice if it is not registered in this process."""
        if name not in self._functions:
            _import_announced(name.partition(":")[0], name)
        if name in self._functions:
            return self._functions[name]
        module, _, own = name.partition(":")
        raise StoreError(
            f"the function {name!r}, which a file names, was not registered by this process, and files run nothing "
            f"that was not: bnp_dask.register({own}) after importing it from {module} (on the command line: --import "
            f"{name})"
        )


FUNCTIONS = Functions()
"""Every function that was registered."""


def imported(name: str) -> Callable[..., Any]:
    """Import and return the function ``module:function``; only for names that a user gives, never for names in files.

    Raises
    ------
    StoreError
        There is no such module, or no such function in it.
    """
    module, colon, own = name.partition(":")
    if not (module and colon and own):
        raise StoreError(f"{name!r} names no function; needs module:function, such as my_words:cut")
    try:
        found = reduce(getattr, own.split("."), import_module(module))
    except ImportError as error:
        raise StoreError(f"{name!r}: {error}; needs a module that is installed, or that PYTHONPATH lists") from error
    except AttributeError as error:
        raise StoreError(f"{name!r}: {error}") from error
    if isinstance(found, type) or not callable(found):
        kind = "a class" if isinstance(found, type) else f"{type(found).__name__}, which cannot be called"
        raise StoreError(f"{name!r} is {kind}; needs a function")
    return found


def _function_name(function: Callable[..., Any]) -> str:
    module, own = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(own, str) or "<" in own:
        kind = "a lambda" if own is not None and "<lambda>" in str(own) else "no function at the top of a module"
        raise StoreError(
            f"{function!r} is {kind}, which no file can name; write def NAME(...) at the top of a module or notebook"
        )
    return f"{module}:{own}"


def register(cls: T) -> T:
    """Let a dataclass be saved, checkpointed, resumed and named in job files, or a function be named in files.

    Classes of likelihoods, allocations, initialisations, moves and schedules need it, and the classes of their
    parameters::

        @bnp_dask.register
        @dataclass(frozen=True, eq=False)
        class NegativeBinomial:
            ...

    Files name the class by its module: ``negbin.NegativeBinomial``.  To read them, import that module first, or
    install a package that announces it as an entry point of the group ``bnp_dask.models``::

        [project.entry-points."bnp_dask.models"]
        negbin = "negbin"

    Functions need it if data of another process name them, such as the ``analyzer`` of :class:`bnp_dask.Text`; files
    name them by module, ``my_words:cut``.

    Parameters
    ----------
    cls
        Dataclass or function, defined at the top of a module; to be used as a decorator.

    Returns
    -------
    type or function
        The class or function itself.

    Raises
    ------
    StoreError
        The class is not a dataclass, or defined inside a function; the function is a lambda, or defined inside another.
    """
    if isinstance(cls, type) or not callable(cls):
        REGISTRY.add(cls)
        if file_name(cls) in PUBLIC:  # classes of parameters are made in every step, by this package alone
            answering(cls)
    else:
        FUNCTIONS.add(cls)
    return cls


def file_name(cls: type) -> str:
    """Name of a class in files: its own name for classes of this package, with its module for others."""
    if cls.__module__.partition(".")[0] == _HOUSE:
        return cls.__name__
    return f"{cls.__module__}.{cls.__qualname__}"


def _origin(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _is_installed(announced: EntryPoint) -> bool:
    """Whether an announcement is of an installed package.

    The working directory may be a stranger's, such as a run directory that was unpacked there: packages in it count as
    installed only if ``PYTHONPATH`` lists it.
    """
    if announced.dist is None:
        return True
    here, place = os.path.realpath(os.getcwd()), os.path.realpath(str(announced.dist.locate_file("")))
    meant = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return place != here or place in (os.path.realpath(path) for path in meant if path)


def _import_announced(place: str, name: str) -> None:
    """Import the announced modules of the installed package in which ``place``, named by a file, may lie."""
    package = place.partition(".")[0]
    for announced in entry_points(group=ENTRY_POINTS):
        if announced.module.partition(".")[0] == package and _is_installed(announced):
            try:
                import_module(announced.module)
            except ImportError as error:
                raise StoreError(
                    f"{name!r} needs the module {announced.module}, which cannot be imported: {error}"
                ) from error
