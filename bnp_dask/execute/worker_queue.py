"""Tasks on a Dask worker: running one, the queue of waiting ones, and the worker's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distributed import get_worker
from distributed.core import Status

from bnp_dask.core.code import code_here
from bnp_dask.execute.base import logger
from bnp_dask.execute.message import Failure, Message
from bnp_dask.execute.passing import may_pass
from bnp_dask.execute.prefetch import Coming, looking_ahead

ROOM_AHEAD = 0.4
"""Share of a worker's memory limit that it may hold with a batch read ahead.  While a task computes, it takes at most
as much again (a summary beside the posterior, tables beside the batch), and at 0.8 Dask pauses a worker."""
UNLIMITED_AHEAD = 200 * 10**6
"""Bytes that reading ahead may take on a worker without a limit."""


class WorkerQueue:
    """Outlook of the tasks on a worker: its waiting tasks and its memory.

    The attributes used are internal to Dask.  If one is missing, nothing is read ahead.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    @classmethod
    def of_this_worker(cls) -> WorkerQueue | None:
        try:
            return cls(get_worker())
        except ValueError:
            return None

    def coming(self) -> Sequence[Coming]:
        """Reads of the tasks that have all their inputs and wait for a thread."""
        try:
            # A copy, which is atomic in the interpreter: the worker's event loop changes the queue meanwhile, and
            # methods such as peek() reorganise it, which only that thread may do.
            waiting = list(self._worker.state.ready)
            waiting.sort(key=lambda task: task.priority)
            return [found for task in waiting if (found := self._coming(task)) is not None]
        except (AttributeError, TypeError, RuntimeError) as error:
            logger.debug("cannot see the next tasks of this worker: %r", error)
            return []

    def has_room(self, nbytes: int) -> bool:
        """Whether the worker can spare ``nbytes``."""
        try:
            limit = self._worker.memory_manager.memory_limit
            held = self._worker.monitor.get_process_memory() if limit else 0
        except AttributeError as error:
            logger.debug("cannot see how much memory this worker has: %r", error)
            return False
        return held + nbytes <= ROOM_AHEAD * limit if limit else nbytes <= UNLIMITED_AHEAD

    def _coming(self, task: Any) -> Coming | None:
        args = getattr(task.run_spec, "args", None)  # others may use this worker too
        message = args[0] if isinstance(args, tuple) and args else None
        load = message.open().first_load if isinstance(message, Message) else None
        return None if load is None else Coming(load, lambda: self._has(task))

    def _has(self, task: Any) -> bool:
        """Whether a task still belongs to this worker, and the worker is running."""
        is_here = self._worker.state.tasks.get(task.key) is task and task.state in ("ready", "executing")
        return bool(is_here and self._worker.status == Status.running)


class StrangerError(Exception):
    """This worker has other code than the process that sent a task, and did not run it."""


def run_message(message: Message, *values: Any, code: str | None = None) -> Any:
    """Run a task: return a message of its value, or a :class:`Failure` for a permanent error here or in a needed task;
    a transient error is raised.

    Parameters
    ----------
    message
        A call, packed.
    values
        Values of the tasks that it needs.
    code
        :meth:`~bnp_dask.core.code.Code.token` of the sending process.  Workers of versions that do not know this
        argument fail at it.

    Raises
    ------
    StrangerError
        This worker has other code.
    """
    if code is not None and code not in (code_here().token(False), code_here().token(True)):
        raise StrangerError(f"this worker has {code_here().token(True)}, the task is of {code}")
    for value in values:
        if isinstance(value, Failure):
            return value
    try:
        with looking_ahead(WorkerQueue.of_this_worker()):
            return Message.around(message.open().run([value.open() for value in values]))
    except Exception as error:
        if may_pass(error):
            raise
        return Failure.of(error)
