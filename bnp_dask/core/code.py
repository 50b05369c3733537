"""Identity of the code that computes: version of the package, digest of its sources, versions of its libraries.

Two processes with the same identity give the same bits.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bnp_dask._version import __version__

FACES = frozenset(("cli", "reports", "estimators", "testing"))
"""Folders of the package that do not affect the bits of a run."""

LIBRARIES = ("numba", "llvmlite", "numpy", "scipy")
"""Packages whose code processes a batch."""


@dataclass(frozen=True)
class Code:
    """Code of a process.

    Parameters
    ----------
    version
        Of this package.
    sources
        Digest of the sources that affect the bits of a run; empty if unknown.
    libraries
        Name and version of each package that computes, and of the C library; empty if unknown.
    """

    version: str
    sources: str = ""
    libraries: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Code:
        """Inverse of :meth:`to_json`."""
        found = tuple(sorted((str(name), str(own)) for name, own in dict(data.get("libraries", {})).items()))
        return Code(str(data["version"]), str(data.get("sources", "")), found)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"version": self.version, "sources": self.sources, "libraries": dict(self.libraries)}

    def token(self, reproducible: bool) -> str:
        """A short text, equal for equal code; it covers the libraries only if the run must be reproducible."""
        own = f"{self.version}/{self.sources}"
        return f"{own}/{'/'.join(map(' '.join, self.libraries))}" if reproducible else own

    def difference(self, other: Code) -> str | None:
        """Differences of another code from this one, in words; None if no difference is known."""
        if self.version != other.version:
            return f"bnp_dask {other.version}, not {self.version}"
        if self.sources and other.sources and self.sources != other.sources:
            return f"other sources of bnp_dask {self.version} ({other.sources}, not {self.sources})"
        known = dict(self.libraries)
        changed = [(name, own) for name, own in other.libraries if known.get(name, own) != own]
        return ", ".join(f"{name} {own}, not {known[name]}" for name, own in changed) or None


@lru_cache
def code_here() -> Code:
    """Code of this process, read from disk at the first call."""
    root, whole = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in FACES:
            content = path.read_bytes().replace(b"\r\n", b"\n")
            whole.update(f"{place.as_posix()}\0{len(content)}\0".encode() + content)
    found = [(name, own) for name in LIBRARIES if (own := _version(name)) is not None]
    c_library, own = platform.libc_ver()
    found += [(c_library, own)] if c_library else []
    return Code(__version__, whole.hexdigest()[:16], tuple(sorted(found)))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # bundled by other means
        return None
