"""Executors run pure tasks.  They know no model and no statistics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bnp_dask.errors import ExecutionError, brief_in_notebooks, redacted
from bnp_dask.execute.blas import one_blas_thread
from bnp_dask.execute.passing import may_pass
from bnp_dask.execute.prefetch import Load, load_of
from bnp_dask.inputs.settings import whole_number
from bnp_dask.kernels.numeric.fixed_order import fixed_order, is_fixed

logger = logging.getLogger("bnp_dask.execute")

AGAIN = "Start a cluster and make the call again."
"""Advice for errors of a lost cluster, unless a caller has better."""

DEFAULT_RETRIES = 3
"""How often a task is tried again whose failure may pass: storage does not always answer at the first try."""


class Handle:
    """A value that is somewhere else, or will be; only its executor can open it.

    Dropping the last reference to a handle releases what it stands for.
    """

    __slots__ = ("__weakref__", "_content", "_owner", "name")

    def __init__(self, name: str, owner: Executor, content: Any) -> None:
        self.name = name
        self._owner: Executor | None = owner
        self._content = content

    def __repr__(self) -> str:
        return f"Handle({self.name!r}{'' if self._owner is not None else ', void'})"

    def content(self, owner: Executor) -> Any:
        """Content that ``owner`` put in; ExecutionError when the handle is void or belongs to another executor."""
        if self._owner is None:
            raise ExecutionError(
                f"the handle of {self.name!r} is void: result() or close() was already called; "
                "keep the value that result() gave, or submit the task again"
            )
        if self._owner is not owner:
            raise ExecutionError(
                f"the handle of {self.name!r} belongs to another executor; submit the task to this one"
            )
        return self._content

    def void(self) -> None:
        """Forget the content; the handle cannot be used again."""
        self._owner = self._content = None


class Executor(Protocol):
    """Runs pure functions of their arguments, here or elsewhere.

    Tasks may be run again, because they failed or because a machine was lost.  So they must not change their
    arguments, and must have no effects other than writing files whose name is made of what they compute.  Every
    task runs inside :func:`~bnp_dask.execute.blas.one_blas_thread`.
    """

    @property
    def n_workers(self) -> int:
        """How many tasks can run at the same time, now.  Results must never depend on it."""
        ...

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a worker may take; None where nobody set a limit."""
        ...

    def share(self, name: str, value: Any) -> Handle:
        """Put a value where tasks can use it as an argument, once for many tasks."""
        ...

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Start ``function(*args)``; handles among ``args`` (not inside them) stand for their values.

        ``name`` is what the dashboard shows, such as ``local_step-lap3-batch17``: tasks are grouped by the words
        before the first one with a digit in it.  A name may be used again.
        """
        ...

    def result(self, handle: Handle) -> Any:
        """Wait for a task and give its value, or raise its error with a note that names the task.

        The handle is void afterwards; tasks that were submitted with it before keep its value.
        """
        ...

    def close(self) -> None:
        """Cancel what is still running and give back what was taken; handles are void afterwards."""
        ...


Task = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""Name, function, arguments."""


@runtime_checkable
class GroupExecutor(Protocol):
    """Executor that submits many tasks in one message, where a message for each costs more."""

    def submit_together(self, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
        """As :meth:`Executor.submit` for each of some tasks, none of which needs another.

        With ``first`` they go before all others that wait.
        """
        ...

    def results_together(self, handles: Sequence[Handle]) -> list[Any]:
        """As :meth:`Executor.result` for each of some handles; all values are in memory at once."""
        ...


@dataclass(frozen=True)
class Slot:
    """Where the value of the ``position``-th handle goes among the arguments of a task."""

    position: int


@dataclass(frozen=True, eq=False)
class Call:
    """One task as it travels.

    Dask looks into lists, tuples and dicts that it is handed, but not into this: arguments arrive as they were.

    Parameters
    ----------
    name
        Name of the task, put on errors as a note.
    function
        What to run.
    args
        Its arguments, with a :class:`Slot` where the value of a handle goes.
    fixed
        Whether to compute in fixed order, as the thread that submits it does.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    fixed: bool = False

    @property
    def first_load(self) -> Load[Any] | None:
        """Data that the task reads first; None where that cannot be told from its arguments."""
        return next((load for arg in self.args if (load := load_of(arg)) is not None), None)

    def run(self, values: Sequence[Any] = ()) -> Any:
        """Run the function with ``values`` in the slots, on one BLAS thread."""
        args = [values[a.position] if isinstance(a, Slot) else a for a in self.args]
        try:
            with one_blas_thread(), fixed_order(self.fixed), plain_interrupts():
                return self.function(*args)
        except Exception as error:
            add_task_note(error, self.name)
            raise

    def run_with_retries(self, values: Sequence[Any], retries: int) -> Any:
        """Run the task, up to ``1 + retries`` times while its failures may pass; the last error is raised."""
        for left in range(retries, -1, -1):
            try:
                return self.run(values)
            except Exception as error:
                if left == 0 or not may_pass(error):
                    raise
                tell_retry(self.name, left, error)
        raise ExecutionError(f"retries={retries}: needs 0 or more")


def make_call(owner: Executor, name: str, function: Callable[..., Any], args: Sequence[Any]) -> tuple[Call, list[Any]]:
    """The task as a :class:`Call`, and the contents of the handles among its arguments, in slot order."""
    filled: list[Any] = []
    contents: list[Any] = []
    for arg in args:
        if isinstance(arg, Handle):
            filled.append(Slot(len(contents)))
            contents.append(arg.content(owner))
        else:
            filled.append(arg)
    return Call(name, function, tuple(filled), is_fixed()), contents


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """A Ctrl-C that arrives while compiled code is being called comes out as what it is.

    Python then reports a SystemError, or one caused by another, at whose root is the KeyboardInterrupt; it would be
    taken for a failure of the task and tried again.
    """
    try:
        yield
    except SystemError as error:
        behind: BaseException | None = error
        while isinstance(behind, SystemError):
            behind = behind.__cause__ or behind.__context__
        if isinstance(behind, KeyboardInterrupt):
            raise behind from None
        raise


TASK_NOTE = "raised by task "


def add_task_note(error: BaseException, name: str) -> None:
    """Note on an error which task raised it."""
    if TASK_NOTE + name not in getattr(error, "__notes__", ()):
        error.add_note(TASK_NOTE + name)


def task_of(error: BaseException) -> str | None:
    """Name of the task that raised an error, where that is noted."""
    notes = getattr(error, "__notes__", ())
    return next((note.removeprefix(TASK_NOTE) for note in notes if note.startswith(TASK_NOTE)), None)


@contextmanager
def errors_of_tasks(name: str) -> Iterator[None]:
    """Errors of a task, as they come out where its result is asked for: they name it, and are brief in notebooks."""
    try:
        yield
    except ExecutionError:
        raise
    except Exception as error:
        if task_of(error) is None:  # an error that pickles itself may have left the worker's note behind
            add_task_note(error, name)
        brief_in_notebooks(error)
        raise


def tell_retry(name: str, left: int, error: BaseException) -> None:
    """Log that a task is tried again, and why."""
    tries = "try" if left == 1 else "tries"
    logger.warning("task %s failed, %d %s left: %s: %s", name, left, tries, type(error).__name__, redacted(str(error)))


def check_retries(retries: int) -> None:
    """SettingError unless ``retries`` is a whole number, 0 or more."""
    whole_number("retries", retries)
