"""Executors run pure tasks.  They know no model and no statistics.

A task that fails transiently is tried again.  Many tasks go through an executor with a bounded number in flight, or all
at once; results come in the order of submission.

Every task runs on one BLAS thread.  The last bits of a matrix product depend on the number of threads that computed it.
On a machine where every core already runs a task, more threads make it slower by an order of magnitude.
"""

from __future__ import annotations

import errno
import http.client
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import scipy.linalg  # noqa: F401  loads the BLAS that scipy and numba use, so that the controller below sees it
from threadpoolctl import ThreadpoolController

from bnp_dask.errors import BnpDaskError, ExecutionError, brief_in_notebooks, redacted
from bnp_dask.execute.prefetch import Load, load_of
from bnp_dask.inputs import is_a, whole_number
from bnp_dask.kernels import fixed_order, is_fixed

logger = logging.getLogger("bnp_dask.execute")

AGAIN = "Start a cluster and make the call again."
"""Advice for errors of a lost cluster, unless a caller has better."""

DEFAULT_RETRIES = 3
"""Number of retries of a task after a transient failure: storage does not always answer at the first try."""


class Handle:
    """Reference to a value that is elsewhere or not yet computed; only its executor can open it.

    Dropping the last reference to a handle releases its value.
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
    arguments.  Their only side effects may be files whose names are derived from the computed result.  Every
    task runs inside :func:`~bnp_dask.execute.base.one_blas_thread`.
    """

    @property
    def n_workers(self) -> int:
        """Number of tasks that can currently run at the same time.  Results must never depend on it."""
        ...

    @property
    def memory_limit(self) -> int | None:
        """Memory limit of a worker in bytes; None without a limit."""
        ...

    def share(self, name: str, value: Any) -> Handle:
        """Make a value available as an argument of tasks, once for many tasks."""
        ...

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Start ``function(*args)``; handles among ``args`` (not inside them) stand for their values.

        The dashboard shows ``name``, such as ``local_step-lap3-batch17``, and groups tasks by the words before
        the first one that contains a digit.  A name may be used again.
        """
        ...

    def result(self, handle: Handle) -> Any:
        """Wait for a task and return its value, or raise its error with a note that names the task.

        The handle is void afterwards; tasks that were submitted with it before keep its value.
        """
        ...

    def close(self) -> None:
        """Cancel running tasks and release resources; handles are void afterwards."""
        ...


Task = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""Name, function, arguments."""


@runtime_checkable
class GroupExecutor(Protocol):
    """Executor that submits many tasks in one message, which is cheaper than one message for each."""

    def submit_together(self, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
        """As :meth:`Executor.submit` for each of several tasks, none of which needs another.

        With ``first`` they run before all other waiting tasks.
        """
        ...

    def results_together(self, handles: Sequence[Handle]) -> list[Any]:
        """As :meth:`Executor.result` for each of several handles; all values are in memory at once."""
        ...


@runtime_checkable
class RemoteExecutor(Protocol):
    """Executor that may run tasks in other processes, to which all of their arguments are sent."""

    @property
    def is_remote(self) -> bool:
        """Whether it does; then a value that many tasks need is better left in a file that they read."""
        ...


def is_remote(executor: Executor) -> bool:
    """Whether arguments of tasks are sent to other processes."""
    return is_a(executor, RemoteExecutor) and executor.is_remote


@dataclass(frozen=True)
class Slot:
    """Placeholder among the arguments of a task for the value of its ``position``-th handle."""

    position: int


@dataclass(frozen=True, eq=False)
class Call:
    """One task in the form in which it is sent.

    Dask looks into lists, tuples and dicts that it is given, but not into this class: arguments arrive unchanged.

    Parameters
    ----------
    name
        Name of the task, put on errors as a note.
    function
        Function to run.
    args
        Its arguments, with a :class:`Slot` in place of each handle.
    fixed
        Whether to compute in fixed order, as the submitting thread does.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    fixed: bool = False

    @property
    def first_load(self) -> Load[Any] | None:
        """Data that the task reads first; None if its arguments do not show it."""
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
        """Run the task, up to ``1 + retries`` times while its failures are transient; the last error is raised."""
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
    """Raise a KeyboardInterrupt for a Ctrl-C that arrives while compiled code is being called.

    Python then reports a SystemError, or a chain of them, whose root cause is the KeyboardInterrupt.  It would be
    taken for a failure of the task and retried.
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
    """Name of the task that raised an error; None without such a note."""
    notes = getattr(error, "__notes__", ())
    return next((note.removeprefix(TASK_NOTE) for note in notes if note.startswith(TASK_NOTE)), None)


@contextmanager
def errors_of_tasks(name: str) -> Iterator[None]:
    """Make errors of a task name the task and be brief in notebooks, as its result is requested."""
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
    """Log that a task is retried, and why."""
    tries = "try" if left == 1 else "tries"
    logger.warning("task %s failed, %d %s left: %s: %s", name, left, tries, type(error).__name__, redacted(str(error)))


def check_retries(retries: int) -> None:
    """SettingError unless ``retries`` is a whole number, 0 or more."""
    whole_number("retries", retries)


# -- many tasks, in order ------------------------------------------------------------------------------------------
def in_order(
    executor: Executor, tasks: Iterable[Task], window: int, slight: bool = False, first: bool = False
) -> Iterator[Any]:
    """Run tasks with at most ``window`` in flight, and one at least; yield their results in the order of ``tasks``.

    A window of them is sent at once, before the first result is requested; with ``first`` it goes before tasks that
    wait for a worker.  ``slight`` tasks take less time than messages: half a window of them is sent and returned in one
    message.
    """
    waiting, window = iter(tasks), max(1, window)  # the window may be twice zero workers: they may come back
    queue = deque(submitted(executor, list(islice(waiting, window)), first))
    return _in_turn(executor, waiting, queue, max(1, window // 2) if slight else 1, slight)


def _in_turn(
    executor: Executor, waiting: Iterator[Task], queue: deque[Handle], size: int, slight: bool
) -> Iterator[Any]:
    """Results of ``queue``, ``size`` at a time; as many ``waiting`` tasks are then sent."""
    while queue:
        some = [queue.popleft() for _ in range(min(size, len(queue)))]
        yield from collected(executor, some, at_once=slight)
        queue.extend(submitted(executor, list(islice(waiting, len(some)))))


def submitted(executor: Executor, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
    """Start tasks together, none of which needs another; with ``first`` before other waiting tasks, if supported."""
    if is_a(executor, GroupExecutor):
        return executor.submit_together(tasks, first)
    return [executor.submit(name, function, *args) for name, function, args in tasks]


def collected(executor: Executor, handles: Sequence[Handle], at_once: bool) -> Iterator[Any]:
    """Values of tasks in order: all ``at_once``, with fewer messages and more memory, or one after the other."""
    if at_once and is_a(executor, GroupExecutor):
        yield from executor.results_together(handles)
    else:
        yield from map(executor.result, handles)


# -- transient and permanent failures ------------------------------------------------------------------------------
FACTS = frozenset(
    getattr(errno, name)
    for name in (
        "EACCES", "EBADF", "EDQUOT", "EEXIST", "EFBIG", "EINVAL", "EISDIR", "ELOOP", "EMLINK", "ENAMETOOLONG", "ENODEV",
        "ENOENT", "ENOEXEC", "ENOSPC", "ENOSYS", "ENOTDIR", "ENOTEMPTY", "ENOTSUP", "ENXIO", "EPERM", "EROFS", "ESPIPE",
        "EXDEV",
    )
    if hasattr(errno, name)
)  # fmt: skip
"""Permanent errors of an operating system, such as a missing file or a full disk."""

FACT_ERRORS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Types of permanent errors: storage libraries raise them without an error number."""

STORAGE_LIBRARIES = frozenset(
    ("adlfs", "aiobotocore", "aiohttp", "azure", "boto3", "botocore", "ftplib", "gcsfs", "google", "httpx", "paramiko",
     "requests", "s3fs", "urllib3")
)  # fmt: skip
"""Packages that access remote storage; they have their own types of errors, which mean that it did not answer."""

IMPORTING = "_frozen_importlib"
"""Module of the import error when two threads import a package in opposite orders: in a worker that has just started,
the threads of a task and of receiving values from other workers.  The other import goes on."""


def may_pass(error: BaseException) -> bool:
    """Whether the task that raised an error may succeed when it is run again.

    It may after operating system errors (including timeouts and lost connections) that are not permanent, errors of
    libraries for remote storage, imports of two threads that waited for each other, and a lack of memory, which another
    worker or moment may have.  An error of this package is transient if its cause is.  All others, of likelihoods or of
    the data, recur at every try.
    """
    if isinstance(error, BnpDaskError):
        return error.__cause__ is not None and may_pass(error.__cause__)
    if isinstance(error, OSError):
        return error.errno not in FACTS and not isinstance(error, FACT_ERRORS)
    packages = {kind.__module__.split(".")[0] for kind in type(error).__mro__}
    return isinstance(error, (MemoryError, http.client.HTTPException)) or bool(
        packages & STORAGE_LIBRARIES or IMPORTING in packages
    )


class _BlasLimit:
    """Counts the users of the one-thread limit: the first sets the limit, the last lifts it.

    Most BLAS libraries have one pool for the process.  If nested or concurrent users each saved and restored its size,
    one would lift the limit while another still needs it.  OpenBLAS over OpenMP has a pool per thread: there every
    thread sets and lifts its own limit.
    """

    def __init__(self) -> None:
        # Searching all loaded libraries costs milliseconds: done once.
        self._all = ThreadpoolController().select(user_api="blas")
        self._per_thread = self._all.select(internal_api="openblas").select(threading_layer="openmp")
        self._lock = threading.Lock()
        self._count = 0
        self._first: Any = None
        self._local = _Local()

    def enter(self) -> None:
        self._local.depth += 1
        if self._local.depth > 1:
            return
        with self._lock:
            self._take_control()
            self._local.own = self._per_thread.limit(limits=1)
            limiter = self._all.limit(limits=1)
            if self._count == 0:
                self._first = limiter
            self._count += 1

    def leave(self) -> None:
        self._local.depth -= 1
        if self._local.depth > 0:
            return
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._take_control()
                self._first.restore_original_limits()
                self._first = None
                self._take_control()
            self._local.own.restore_original_limits()
            self._local.own = None

    def _take_control(self) -> None:
        # From 3.8 on, threadpoolctl silently ignores a limit on OpenBLAS while another thread that once set one is
        # alive.  Here the lock and the count keep order, so the limit of every thread must take effect.
        for library in self._all.lib_controllers:
            clear = getattr(library, "clear_controlling_thread", None)
            if clear is not None:
                clear(force=True)


class _Local(threading.local):
    """Nesting depth of this thread's blocks, and the limit of its own pool."""

    depth = 0
    own: Any = None


@cache
def _process_limit() -> _BlasLimit:
    return _BlasLimit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the BLAS of this process to one thread inside the block.

    Blocks may be nested and may run in several threads at once.  The number of threads before the first block is
    restored when the last block ends.
    """
    limit = _process_limit()
    limit.enter()
    try:
        yield
    finally:
        limit.leave()
