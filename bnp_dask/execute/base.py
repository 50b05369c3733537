"""What an executor does: runs pure tasks.  It knows no model and no statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Handle = Any
"""A value that is somewhere else, or will be; only its executor can open it."""


class Executor(Protocol):
    """Runs pure functions of their arguments, here or elsewhere.

    Tasks may be run again when a machine is lost, so they must not have effects other than writing files whose
    name is made of what they compute.
    """

    n_workers: int

    def share(self, name: str, value: Any) -> Handle:
        """Put a value where tasks can use it as an argument, once for many tasks."""
        ...

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Start ``function(*args)``; handles among ``args`` stand for their values.

        ``name`` is what the dashboard shows, such as ``local_step-lap3-batch17``; unique in one run.
        """
        ...

    def result(self, handle: Handle) -> Any:
        """Wait for a task and give its value, or raise its error; forgets the handle."""
        ...

    def close(self) -> None:
        """Cancel what is still running and give back what was taken; handles are void afterwards."""
        ...
