"""Returns freed memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import time

SECONDS = 5.0
"""Least time between two calls of ``malloc_trim``; one takes some milliseconds."""


class Heap:
    """Returns memory that a process has freed to the system.

    Short-lived arrays of a lap, such as samples for small runs, fragment the heap differently each time: after twenty
    laps the holes were twice the memory in use.
    """

    def __init__(self) -> None:
        self._tidied = time.monotonic()

    def tidy(self) -> None:
        """Return empty pages to the system, at most every ``SECONDS``; only glibc can."""
        if time.monotonic() - self._tidied < SECONDS:
            return
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._tidied = time.monotonic()
