"""Formats of files since 0.3.0, and the steps that bring an older one up to date while it is read.

Every later version reads run directories and saved models of 0.3.0.  A change of a format raises its version and adds a
function to :data:`STEPS` that turns content of the version before into content of the new one.  Files on the disk stay
as they are until they are written anew.  ``tests/faults/test_old_runs.py`` opens, resumes, updates and predicts with a
directory that 0.3.0 wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Content = Mapping[str, Any]
"""Content of a file: the JSON of a run, checkpoint, record, manifest or saved model."""

FIRST: Mapping[str, int] = {
    "bnp-dask checkpoint": 3,
    "bnp-dask data set aside": 1,
    "bnp-dask manifest": 1,
    "bnp-dask model": 3,
    "bnp-dask run": 3,
    "bnp-dask version": 1,
}
"""Version of each format in 0.3.0, the first release: none before is read."""

STEPS: dict[tuple[str, int], Callable[[Content], Content]] = {}
"""For a format and a version, the function that makes content of the next version; empty as long as none changed."""


def is_readable(kind: str, found: object, version: int) -> bool:
    """Whether content of version ``found`` of a format can be brought to ``version``."""
    return isinstance(found, int) and FIRST.get(kind, version) <= found <= version


def upgraded(content: Content, kind: str, found: int, version: int) -> dict[str, Any]:
    """Content of version ``found`` of a format as content of ``version``; the content itself is not changed."""
    for number in range(found, version):
        content = STEPS[kind, number](content)
    return dict(content)
