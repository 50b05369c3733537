"""Runs tasks on a Dask cluster.

On the workers, a task is run, the queue of waiting ones is read for what can be prefetched, and the worker's memory is
watched.

This process waits for a scheduler only while it answers: the kernel of a machine goes on accepting data for a stopped
process, and lost packets are sent again for a long time.  So while it waits, it asks the scheduler to echo a message,
and gives up once a question has been unanswered for too long.  A client whose scheduler is gone is closed in time,
without Dask's own log of an error already raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future, default_client, get_worker, rejoin, secede
from distributed.client import ClosedClientError, FutureCancelledError
from distributed.core import Status
from distributed.scheduler import KilledWorker, NoValidWorkerError

from bnp_dask.core.code import Code, code_here
from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute.base import (
    AGAIN,
    DEFAULT_RETRIES,
    Call,
    Executor,
    Handle,
    Task,
    check_retries,
    errors_of_tasks,
    logger,
    make_call,
    may_pass,
    task_of,
    tell_retry,
)
from bnp_dask.execute.message import Failure, Message
from bnp_dask.execute.prefetch import Coming, looking_ahead
from bnp_dask.execute.serial import SerialExecutor

T = TypeVar("T")

POLL_SECONDS = 2.0
WARN_SECONDS = 60.0
FETCH_SECONDS = 20.0
FETCH_TRIES = 3
LOOK_SECONDS = 1.0
WORKER_LOSSES = 20
"""Number of further workers that may die under one task after Dask gave it up: spot machines go in dozens, and a task
that kills its own workers must still end."""
LARGE_IS_MEANT = {"distributed.admin.large-graph-warning-threshold": 2**60}
"""Dask advises against graphs of more than 10 MB.  Tasks need everything that is sent here: a posterior once for many
of them, or the atoms that some of them work on."""


def current_client() -> Client | Executor:
    """Dask's current client; a SerialExecutor without one, and inside a task.

    Tasks that wait for other tasks while they occupy the threads of their workers would deadlock; tasks of joblib's
    Dask backend do so.
    """
    if is_in_task():
        return SerialExecutor()
    try:
        client = default_client()
    except ValueError:
        return SerialExecutor()
    if client.status == "connecting" and not client.asynchronous:  # one that could not connect stays until it is freed
        address = getattr(client.scheduler, "address", "a cluster that did not start")
        raise SettingError(
            f"the current client, of {address}, is not connected; needs one that is: close it with "
            "distributed.default_client().close(), or give client=, a SerialExecutor() to compute in this process"
        )
    return client


def is_in_task() -> bool:
    """Whether this thread runs a task of a Dask cluster."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


@contextmanager
def giving_way() -> Iterator[None]:
    """Let the worker run another task in place of this one, which waits for tasks that it submits."""
    try:
        secede()
    except (ValueError, AttributeError, KeyError):  # no task; a task of coroutines; a task that already gave way
        yield
        return
    try:
        yield
    finally:
        rejoin()


class DaskExecutor:
    """Runs tasks on the workers of a client's cluster.

    Tasks are never pinned to a worker and shared values are results of tasks, so that everything lost with a
    worker is computed again on another.  The client must stay open while the executor is used.

    Each task names the code of this process.  A worker with other code runs none, as its results could differ in their
    last bits.  Such a worker is excluded from then on, with a line in the log, and its tasks go to the others.

    Parameters
    ----------
    client
        A synchronous client.
    run_name
        Suffix of every key, to distinguish the runs on one cluster.
    retries
        Number of retries of a task after a transient failure, on any free worker.
    direct
        Whether results come straight from the workers instead of through the scheduler: two to three times
        faster, if this process can reach the workers.  None: as the client is set.
    worker_timeout
        Seconds without a single worker after which :meth:`result` gives up; a warning is logged every minute.
    worker_losses
        Number of workers that may die while they run or hold one task, beyond the number that Dask itself allows
        (``distributed.scheduler.allowed-failures``, 3).
    advice
        Advice after the cluster was lost, such as a call to make; the end of the error's text.
    """

    is_remote = True

    def __init__(
        self,
        client: Client,
        run_name: str,
        retries: int = DEFAULT_RETRIES,
        direct: bool | None = None,
        worker_timeout: float = 3600.0,
        worker_losses: int = WORKER_LOSSES,
        advice: str = AGAIN,
    ) -> None:
        if not isinstance(client, Client):
            raise SettingError(f"client={client!r}: needs a distributed.Client, for example Client(LocalCluster())")
        if client.status in ("closed", "closing"):
            raise SettingError("the client is closed; needs an open one, or None for this process")
        if client.asynchronous:
            raise SettingError("the client is asynchronous; needs one made with Client(address), asynchronous=False")
        check_retries(retries)
        self._client = client
        # The token distinguishes the keys of two executors with the same run name.
        self._suffix = f"{run_name}-{uuid.uuid4().hex[:8]}"
        self._retries = retries
        self._direct = direct
        self._worker_timeout = worker_timeout
        self._worker_losses = worker_losses
        self._advice = advice
        self._pulse = Pulse(client, patience())
        self._n_workers, self._look_again = 0, 0.0
        self._strangers: set[str] = set()
        self._others: list[str] = []
        self._reproducible = False
        self._count = 0
        self._values: set[str] = set()
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._closed = self._is_lost = False
        client.loop.add_callback(remember_no_messages, client)

    @property
    def n_workers(self) -> int:
        """Number of connected worker threads, at most a second old: asking the scheduler takes a message."""
        if time.monotonic() >= self._look_again:
            threads = {worker: n for worker, n in self._ask("ncores").items() if worker not in self._strangers}
            self._n_workers, self._others = sum(threads.values()), list(threads)
            self._look_again = time.monotonic() + LOOK_SECONDS
        return self._n_workers

    @property
    def memory_limit(self) -> int | None:
        """Memory limit of the smallest worker in bytes; None if there are no workers yet, or none has a limit."""
        workers = self._ask("identity", n_workers=-1)["workers"].values()
        limits = [int(w["memory_limit"]) for w in workers if w["memory_limit"]]
        return min(limits, default=None)

    def share(self, name: str, value: Any) -> Handle:
        """Make a value the result of a task; if its worker dies, it is made again from the scheduler's copy.

        It goes before other waiting tasks: the tasks that need it may be the next for the workers.
        """
        handle = self._submit(name, Call(name, _identity, (Message.of(value),)), [], priority=1)
        key = handle.content(self).key
        self._values.add(key)
        weakref.finalize(handle, self._values.discard, key)
        return handle

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Send a task to the scheduler."""
        call, needed = make_call(self, name, function, args)
        return self._submit(name, call, needed)

    def submit_together(self, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
        """Send tasks to the scheduler in one message: each message costs it some milliseconds."""
        priority = 1 if first else 0
        names = [name for name, _, _ in tasks]
        made = [make_call(self, *task) for task in tasks]
        if len({len(needed) for _, needed in made}) != 1:  # Dask takes the same number of arguments for each
            return [self._submit(name, *one, priority) for name, one in zip(names, made, strict=True)]
        columns = [list(column) for column in zip(*(needed for _, needed in made), strict=True)]
        return self._send(names, [call for call, _ in made], columns, priority)

    def result(self, handle: Handle) -> Any:
        """Wait for a task, return its value and release it on the cluster, or raise its error.

        Raises
        ------
        ExecutionError
            The scheduler or the client is gone, there are no workers, or the task's workers keep dying.
        """
        future = handle.content(self)
        handle.void()
        try:
            with errors_of_tasks(handle.name):
                return self._value_or_loss(handle.name, future)
        finally:
            future.release()

    def results_together(self, handles: Sequence[Handle]) -> list[Any]:
        """Wait for tasks and return their values, fetched in one message; one by one after any failure."""
        futures = [handle.content(self) for handle in handles]
        for handle, future in zip(handles, futures, strict=True):
            self._wait(handle.name, future)
        with suppress(*GONE, KilledWorker):
            arrived, values = False, list[Any]()
            if all(future.status == "finished" for future in futures):
                arrived, values = self._listen(f"task {handles[0].name}", self._fetch, futures, FETCH_SECONDS)
            if arrived and not any(isinstance(value, Failure) for value in values):
                for handle, future in zip(handles, futures, strict=True):
                    handle.void()
                    future.release()
                return [value.open() for value in values]
        return [self.result(handle) for handle in handles]

    def close(self) -> None:
        """Cancel all tasks whose handles are alive; running tasks finish and their results are ignored."""
        if self._closed:
            return
        self._closed = True
        futures = []
        for handle in list(self._handles):
            # result() may have voided a handle since.
            with suppress(ExecutionError):
                futures.append(handle.content(self))
            handle.void()
        # A client that lost its cluster has cancelled everything itself.
        with suppress(*GONE, RuntimeError):  # a closed client has no event loop
            self._client.loop.add_callback(self._pulse.stop)
            if futures and self._client.status == "running" and not self._is_lost:
                self._client.cancel(futures)

    def _submit(self, name: str, call: Call, needed: list[Future], priority: int = 0) -> Handle:
        return self._send([name], [call], [[future] for future in needed], priority)[0]

    def _send(self, names: list[str], calls: list[Call], needed: list[list[Future]], priority: int = 0) -> list[Handle]:
        """Submit tasks together; ``needed`` are the first values that each needs, their second values, and so on."""
        if self._closed:
            raise ExecutionError(f"cannot take {names[0]!r}: this executor was closed; make a new one")
        # Dask groups keys by the words before the first word with other characters than letters: number first.
        keys = [f"{name}-{self._count + i}-{self._suffix}" for i, name in enumerate(names, 1)]
        self._count += len(names)
        self._reproducible = calls[0].fixed
        try:
            # Without a timeout of 0, Dask gives all tasks of the last 100 ms one priority and runs them in any order;
            # results are asked for in the order of submission.
            messages = [Message.of(call) for call in calls]
            with dask.config.set(LARGE_IS_MEANT):
                futures = self._client.map(
                    run_message,
                    messages,
                    *needed,
                    key=keys,
                    priority=priority,
                    pure=False,
                    fifo_timeout=0,
                    # Dask chooses the worker, unless some workers are excluded
                    workers=self._others if self._strangers else None,
                    allow_other_workers=bool(self._strangers),
                    code=code_here().token(self._reproducible),
                    _data_producer=self._goes_anywhere(needed),
                )
        except GONE as error:
            raise self._lost(f"task {names[0]}", error) from None
        handles = [Handle(name, self, future) for name, future in zip(names, futures, strict=True)]
        self._handles.update(handles)
        return handles

    def _goes_anywhere(self, needed: list[list[Future]]) -> bool:
        """Whether tasks need nothing but shared values, so that every worker may take them.

        Dask gives a task to a worker that holds its inputs, and others must take it over from there: if many tasks need
        one value, they would all go to its holder.  It queues tasks with this mark, and gives each to the next free
        worker, which fetches the value.  The mark is an argument of ``dask.Task``, and stays here.
        """
        return all(future.key in self._values for column in needed for future in column)

    def _value_or_loss(self, name: str, future: Future) -> Any:
        """Value of a task, or its error; failures of the cluster become an ExecutionError."""
        try:
            value = self._outlive(name, future)
        except NoValidWorkerError as error:
            raise ExecutionError(f"no worker took task {name}: {error}", self._advice) from error
        except GONE as error:
            if future.status == "error":  # the task itself met such an error
                raise
            raise self._lost(f"task {name}", error) from None
        if isinstance(value, Failure):
            value.reraise()
        return value.open()

    def _outlive(self, name: str, future: Future) -> Any:
        """Value of a task, retried when its workers die or when its failure is transient.

        Dask's own retries ignore the kind of error, so they are not used.
        """
        losses, broken, excused, failures, patience = 0, 0, 0, Counter[str](), FETCH_SECONDS
        while True:
            try:
                self._wait(name, future)
                arrived, value = self._listen(f"task {name}", self._fetch, future, patience)
                if arrived:
                    return value
                patience *= 2.0
            except KilledWorker as error:
                if losses >= self._worker_losses:
                    raise self._no_survivors(name, error, losses) from error
                losses += 1
                logger.warning("%d workers died while they had task %s; trying another", _deaths(error, losses), name)
                self._listen(f"task {name}", self._revive, future)
            except Exception as error:
                if future.status != "error":
                    # error of the connection that brought the value, while the client is still connected
                    if not isinstance(error, OSError) or broken >= FETCH_TRIES or self._client.status != "running":
                        raise
                    broken += 1
                    continue
                if not may_pass(error):
                    # an error that is not the task's own comes from a worker that cannot open the task
                    if excused > len(self._strangers) or not self._left_out():
                        raise
                    excused += 1
                    self._listen(f"task {name}", self._revive, future)
                    continue
                failed = task_of(error) or name  # it may be one that this task needs
                failures[failed] += 1
                if failures[failed] > self._retries:
                    raise
                tell_retry(failed, self._retries + 1 - failures[failed], error)
                self._listen(f"task {name}", self._revive, future)

    async def _fetch(self, future: Future | list[Future], patience: float) -> tuple[bool, Any]:
        """Whether the value, or the values of several futures, arrived within ``patience`` seconds, and the value.

        The worker that holds it may die before it is fetched.  Dask then waits for it to be computed again, even if no
        worker is left: only :meth:`_wait` notices this.
        """
        return await within(patience, self._client.gather(future, direct=self._direct, asynchronous=True))

    def _left_out(self) -> bool:
        """Whether workers have other code than this process; such workers get no more tasks.

        Raises
        ------
        ExecutionError
            No worker is left.
        """
        here, why = code_here(), dict[str, str]()
        answers = self._listen("a question about the code of workers", self._codes)
        for worker, found in answers.items():
            if not isinstance(found, Code):
                if not isinstance(found, OSError):  # the worker is leaving
                    why[worker] = f"no bnp_dask that says which it is ({type(found).__name__}: {found})"
            elif found.token(self._reproducible) != here.token(self._reproducible):
                why[worker] = here.difference(found) or "other code"
        self._others = [worker for worker in answers if worker not in why]
        for worker in sorted(why.keys() - self._strangers):
            logger.warning("worker %s is left out, its tasks go to others: it has %s", worker, why[worker])
        self._strangers.update(why)
        if why and not self._others:
            raise ExecutionError(
                f"no worker has the code of this process: {min(why)} has {why[min(why)]}, and its results could have "
                f"other bits. Install bnp_dask {here.version} as it is here on all machines",
                self._advice,
            )
        return bool(why)

    async def _codes(self) -> dict[str, Any]:
        """Code of each worker, or its error."""
        found: dict[str, Any] = await self._client.run(code_here, on_error="return", asynchronous=True)
        return found

    async def _revive(self, future: Future) -> None:
        # Client.retry() fails on inputs of a task that no worker holds any more, such as an older posterior.
        if self._strangers:
            failed = [key for key, state in self._client.futures.items() if state.status == "error"]
            own = {key: self._others for key in (*failed, future.key) if str(key).endswith(self._suffix)}
            await self._client.scheduler.set_restrictions(worker=own)
        for key in await self._client.scheduler.retry(keys=[future.key], client=self._client.id):
            state = self._client.futures.get(key)
            if state is not None:
                state.retry()

    def _wait(self, name: str, future: Future) -> None:
        last_seen = last_warned = time.monotonic()
        while not future.done():
            if self._listen(f"task {name}", self._ended, future):
                return
            now = time.monotonic()
            if self._client.status not in ("running", "connecting"):
                raise self._lost(f"task {name}", None)
            if self._has_workers(name):
                last_seen = last_warned = now
            elif now - last_seen > self._worker_timeout:
                raise ExecutionError(
                    f"no worker has been connected for {now - last_seen:.0f} s, so task {name} cannot run; "
                    "look at the workers' logs",
                    self._advice,
                )
            elif now - last_warned > WARN_SECONDS:
                last_warned = now
                logger.warning("task %s waits: no worker has been connected for %.0f s", name, now - last_seen)

    async def _ended(self, future: Future) -> bool:
        return (await within(POLL_SECONDS, future.exception(asynchronous=True)))[0]

    def _has_workers(self, name: str) -> bool:
        try:
            return bool(self._listen(f"task {name}", self._answer, "ncores"))
        except GONE:
            return False  # the connection is breaking; the future or the client's status will show it

    def _ask(self, question: str, **settings: Any) -> Any:
        """Return the scheduler's answer to a question about its workers."""
        try:
            return self._listen("a question about workers", partial(self._answer, question, **settings))
        except GONE as error:
            raise self._lost("a question about workers", error) from None

    async def _answer(self, question: str, **settings: Any) -> Any:
        if self._client.scheduler is None:
            raise ClosedClientError(f"the client is {self._client.status}")
        return await getattr(self._client.scheduler, question)(**settings)

    def _listen(self, what: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine on the client's event loop while the scheduler answers; ``what`` names it in errors."""
        try:
            return self._client.sync(self._pulse.wait_for, function, *args)
        except SilenceError as error:
            raise self._lost(what, error) from None

    def _no_survivors(self, name: str, error: KilledWorker, losses: int) -> ExecutionError:
        return ExecutionError(
            f"{_deaths(error, losses + 1)} workers died while they ran task {name}; most often the batch and the model "
            "do not fit a worker's memory. Give workers more memory or the data smaller batches, or raise "
            "distributed.scheduler.allowed-failures if machines come and go",
            self._advice,
        )

    def _lost(self, what: str, error: BaseException | None) -> ExecutionError:
        """One-line error of a lost cluster; Dask's own messages about it are suppressed from now on."""
        if not self._is_lost:
            told(self._client)
        self._is_lost = True
        logger.debug("lost the cluster while %s was out", what, exc_info=error)
        why = error.reason if isinstance(error, FutureCancelledError) else "" if error is None else str(error)
        text = " ".join(str(why).split()).rstrip(".")
        reason = f" ({text})" if text else ""
        return ExecutionError(f"lost the Dask cluster while {what} was out{reason}", self._advice)


def _identity(value: Any) -> Any:
    return value


def _deaths(error: KilledWorker, losses: int) -> int:
    return int(error.allowed_failures) + losses


# -- on a worker ---------------------------------------------------------------------------------------------------
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


# -- a scheduler that answers --------------------------------------------------------------------------------------
ASK_SECONDS = 1.0
"""Time without news from the scheduler after which it is asked."""

STEP_SECONDS = 0.5
"""Silence is counted in steps; a longer step counts as two at most.

A process that was stopped, whose machine slept, or whose event loop unpacked a large result has not listened
meanwhile; when it goes on, it reads pending answers first.
"""

SHARE = 0.75
"""Tolerated silence as a share of Dask's timeout for connecting: steps before and after, such as closing the client,
take time as well."""


class SilenceError(OSError):
    """A scheduler left a question unanswered."""


def patience() -> float:
    """Seconds of tolerated silence, by Dask's setting ``distributed.comm.timeouts.connect``.

    A scheduler that is only busy answers between two operations.  One whose single operation takes longer is lost to
    its workers as well, which cannot connect to it within that setting.
    """
    return SHARE * float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))


class Pulse:
    """Tells whether the scheduler of a client answers, while a caller waits.

    Parameters
    ----------
    client
        Client of the scheduler that is asked.
    limit
        Seconds of tolerated silence.
    """

    def __init__(self, client: Client, limit: float) -> None:
        self._client, self._limit = client, limit
        self._question: asyncio.Future[bool] | None = None
        self._silence = self._looked = 0.0

    async def wait_for(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await ``function(*args)``, on the client's event loop, for as long as the scheduler answers.

        Silence counts on from one call to the next.

        Raises
        ------
        SilenceError
            The scheduler was silent for too long; the call is cancelled.
        """
        work = asyncio.ensure_future(function(*args))
        self._looked = time.monotonic()
        try:
            while not work.done():
                tasks: set[asyncio.Future[Any]] = {work} if self._question is None else {work, self._question}
                await asyncio.wait(tasks, timeout=STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and self._heard_nothing() > self._limit:
                    address = getattr(self._client.scheduler, "address", "a closed connection")
                    raise SilenceError(f"the scheduler at {address} has not answered for {self._limit:.0f} s")
            return work.result()
        finally:
            if not work.done():
                work.cancel()

    def _heard_nothing(self) -> float:
        """Return the seconds in which this process listened and heard nothing; ask again if that is due."""
        now = time.monotonic()
        self._silence += min(now - self._looked, 2.0 * STEP_SECONDS)
        self._looked = now
        if self._question is None and self._silence >= ASK_SECONDS:
            self._question = asyncio.ensure_future(_answers(self._client))
        elif self._question is not None and self._question.done():
            if not self._question.cancelled() and self._question.result():
                self._silence = 0.0
            self._question = None
        return self._silence

    def stop(self) -> None:
        """Stop asking; to be called on the client's event loop."""
        if self._question is not None:
            self._question.cancel()
            self._question = None


async def _answers(client: Client) -> bool:
    """Whether a scheduler answers; it may take its time."""
    try:
        await client.scheduler.echo(data=0)
    except (OSError, AttributeError):  # a closed client has no scheduler
        return False
    return True


async def within(seconds: float, work: Awaitable[T]) -> tuple[bool, T | None]:
    """Whether ``work`` ended within some seconds, and its result."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        return (True, task.result()) if task.done() else (False, None)
    finally:
        if not task.done():
            task.cancel()


# -- a scheduler that is gone --------------------------------------------------------------------------------------
GONE = (OSError, ClosedClientError, CancelledError, asyncio.CancelledError)
"""Errors of a connection that broke."""

LEFT = (*GONE, RuntimeError)
"""Errors of a client that was closed while it tried to reconnect: its connection pool is closed during the attempt."""

CLOSE_SECONDS = 5.0
"""Longest time that closing a client may take: its last messages may have no receiver."""

LOGGERS = ("distributed.client", "distributed.core", "distributed.batched", "tornado.application", "asyncio")
"""Loggers in which Dask reports, at length, that it cannot connect."""


@contextmanager
def closed_in_time(client: Client) -> Iterator[Client]:
    """Yield a client and close it at the end, which neither takes long nor hides an error."""
    try:
        yield client
    finally:
        with suppress(*LEFT):
            client.close(timeout=CLOSE_SECONDS)


def told(client: Client) -> None:
    """Suppress Dask's log about a client that has lost its scheduler, for as long as the client exists.

    Dask would log for half a minute, or while the client is closed; the raised error says the same in one line.
    """
    about = _Told(client)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(about)
        weakref.finalize(client, logger.removeFilter, about)


class _Told(logging.Filter):
    """Suppresses tracebacks of broken connections while a client has no connection."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = weakref.ref(client)

    def filter(self, record: logging.LogRecord) -> bool:
        client = self._client()
        if client is None or client.status == "running":
            return True
        error = record.exc_info[1] if record.exc_info else None
        return not (isinstance(error, LEFT) or record.getMessage().startswith("Failed to reconnect"))


def remember_no_messages(client: Client) -> None:
    """Stop a client from keeping sent messages.

    For Dask's developers it keeps the last 1,000 messages below 1 MB, among them tasks with their arguments.  The
    attribute is internal to Dask; if it is missing, that memory is not saved.
    """
    try:
        client.scheduler_comm.recent_message_log = deque(maxlen=0)
    except AttributeError as error:
        logger.debug("cannot see the tasks that this client remembers: %r", error)
