"""First contact with remote storage: it must answer within some seconds, however long a library below waits.

Libraries of object stores retry for minutes when a network or a service is down: a command that only looked took 160
seconds to say so.  A storage that has answered once in this process is trusted: later requests have the patience of its
library and of :mod:`bnp_dask.store.place.bucket`, so that a run outlives an outage of a minute.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NoReturn, TypeVar

from bnp_dask.errors import SettingError

T = TypeVar("T")

VARIABLE = "BNP_DASK_STORAGE_SECONDS"
"""Variable of the environment with the longest time in which storage must give its first answer, in seconds."""

ANSWER_SECONDS = 7.0
"""Longest time in which storage must open and give its first answer, unless :data:`VARIABLE` sets another.

A command on a dead store ends within ten seconds then, with two or three to start.  Stores that live take one second or
two, with credentials from a service for metadata.
"""

REMEMBERED_SECONDS = 2.0
"""Time for which storage that did not answer is not asked again: one command asks several times in a row."""


class NoAnswerError(TimeoutError):
    """Storage did not answer in time."""


def answer_seconds() -> float:
    """Longest time in which storage must give its first answer.

    Raises
    ------
    SettingError
        The variable of the environment is not a positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return ANSWER_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise SettingError(f"{VARIABLE}={text!r}: needs a positive number of seconds, such as {ANSWER_SECONDS:g}")
    return seconds


class Contact:
    """Contact of this process with one storage, which has answered or not yet."""

    def __init__(self) -> None:
        self.is_made = False
        self._silent: tuple[float, NoAnswerError] | None = None

    def ask(self, ask: Callable[[], T], until: float | None = None) -> T:
        """Answer of storage; before the first one it is waited for until a moment, else for :func:`answer_seconds`.

        Raises
        ------
        NoAnswerError
            There is no answer in time, or there was none a moment ago.  A thread is left waiting for it.
        """
        if self.is_made:
            return ask()
        if self._silent is not None and time.monotonic() - self._silent[0] < REMEMBERED_SECONDS:
            raise NoAnswerError(*self._silent[1].args)
        try:
            value = in_time(ask, until)
        except NoAnswerError as error:
            self._silent = time.monotonic(), error
            raise
        except FileNotFoundError as error:
            # fsspec raises it also when a web server does not answer, or refuses
            self.is_made = error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError)
            raise
        except PermissionError:
            self.is_made = True
            raise
        self.is_made = True
        return value


def contact_of(root: str, options: str = "") -> Contact:
    """The contact of this process with the storage of a bucket or host, opened with some options."""
    return _contact(root, options, os.getpid())


@lru_cache(256)
def _contact(root: str, options: str, process: int) -> Contact:
    return Contact()


def in_time(ask: Callable[[], T], until: float | None = None) -> T:
    """Answer of storage; NoAnswerError if it does not come in time, while a thread is left waiting for it."""
    limit = answer_seconds()
    answers: list[Callable[[], T]] = []

    def run() -> None:
        try:
            value = ask()
            answers.append(lambda: value)
        except BaseException as error:
            answers.append(partial(_raise, error))

    thread = threading.Thread(target=run, name="bnp-dask-storage", daemon=True)
    thread.start()
    thread.join(limit if until is None else max(0.0, until - time.monotonic()))
    if not answers:
        raise NoAnswerError(
            f"no answer in {limit:g} s; are there a network and credentials? {VARIABLE}=60 waits for a minute"
        )
    return answers[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error
