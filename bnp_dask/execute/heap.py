"""Memory that was freed goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import time

SECONDS = 5.0
"""Least time between two tidyings; one takes some milliseconds."""


class Heap:
    """Keeps what a process has freed from staying with it.

    What a lap needs for a moment, such as samples for small runs, tears other holes each time: after twenty laps they
    were twice what was in use.
    """

    def __init__(self) -> None:
        self._tidied = time.monotonic()

    def tidy(self) -> None:
        """Return pages in which nothing lies any more, now and then; only glibc can."""
        if time.monotonic() - self._tidied < SECONDS:
            return
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._tidied = time.monotonic()
