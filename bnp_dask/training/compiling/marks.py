"""Marks beside the compiled kernels: the kinds of run for which all kernels exist.

A mark is a hint.  If one is missing, kernels are compiled, or only looked for, once more; if a mark exists and kernels
do not, they are compiled on first use.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from bnp_dask._version import __version__
from bnp_dask.core.encoding import to_spec
from bnp_dask.errors import StoreError
from bnp_dask.kernels.options import cache_folder, compiler_stamp
from bnp_dask.model import Model


def kind_of(model: Model, *facts: Any) -> str | None:
    """Kind of a run: digest of everything that decides its kernels, of package, compiler and processor.

    Numbers of the model are left out, since kernels take them as arguments.  None for models that cannot be described.
    """
    try:
        described = _without_numbers(to_spec(model)[0])
    except StoreError:
        return None
    parts = [__version__, compiler_stamp(), described, *facts]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _without_numbers(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _without_numbers(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_without_numbers(value) for value in spec]
    return type(spec).__name__ if isinstance(spec, int | float) and not isinstance(spec, bool) else spec


def place_of(kind: str | None) -> Path | None:
    """File that marks that the kernels of a kind exist; None if no cache is kept."""
    folder = cache_folder()
    return None if kind is None or folder is None else folder / "kinds" / kind


def is_marked(mark: Path | None) -> bool:
    """Whether kernels are known to exist."""
    with suppress(OSError):
        return mark is not None and mark.exists()
    return False


def set_mark(mark: Path | None) -> None:
    """Note that the kernels exist; does nothing if the note cannot be written."""
    with suppress(OSError):
        if mark is not None and not mark.exists():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
