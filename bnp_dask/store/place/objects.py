"""Requests to an object store: retried while they may succeed, and whole or refused."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TypeVar

import fsspec

from bnp_dask.core.contact import NoAnswerError, answer_seconds, contact_of
from bnp_dask.errors import StoreError
from bnp_dask.store.place.base import UNHARMED
from bnp_dask.store.place.key import Key

T = TypeVar("T")

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "memory": ""}
"""Protocols whose stores themselves refuse to create an existing object, and the extra of this package that opens them.

Other file systems of fsspec look first and write then, and two writers may look at the same time.
"""

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between tries of one request, each up to half as long again."""

TOGETHER = 1000
"""Objects that one request removes."""


class Objects:
    """The objects of one bucket, in any thread.

    Parameters
    ----------
    key
        Any object of the bucket.

    Raises
    ------
    StoreError
        The protocol cannot hold a run, or its package is missing.
    """

    def __init__(self, key: Key) -> None:
        require_known(key)
        try:
            self._fs = fsspec.filesystem(key.protocol, use_listings_cache=False)
        except ImportError as error:
            raise StoreError(
                f"{key} needs the extra {EXTRAS[key.protocol]!r}: "
                f"pip install 'bnp-dask[{EXTRAS[key.protocol]}]' ({error})"
            ) from error
        self._contact = contact_of(f"{key.protocol}://{key.bucket}", repr([]))
        self._creating = threading.Lock()  # fsspec's memory looks first and writes then

    def get(self, key: Key, tries: int = len(PAUSES) + 1) -> bytes | None:
        """Content of an object; None if there is none."""
        try:
            return bytes(self._again("read", key, lambda: self._fs.cat_file(self._name(key)), tries))
        except FileNotFoundError:
            return None

    def get_part(self, key: Key, start: int, nbytes: int) -> bytes | None:
        """Some bytes of an object; None if there is none."""
        if not nbytes:
            return b""
        try:
            return bytes(self._again("read", key, lambda: self._fs.cat_file(self._name(key), start, start + nbytes)))
        except FileNotFoundError:
            return None

    def put(self, key: Key, data: bytes) -> None:
        """Put an object in place of an older one."""
        self._again("write", key, lambda: self._fs.pipe_file(self._name(key), data))

    def create(self, key: Key, data: bytes) -> bool:
        """Put an object unless there is one; True also if an earlier try put it and its answer was lost."""

        def ask() -> bool:
            try:
                with self._creating:
                    self._fs.pipe_file(self._name(key), data, mode="create")
            except Exception:
                # stores report existing objects in many ways: reading the object works for all
                found = self.get(key)
                if found is None:
                    raise
                return found == data
            return True

        return self._again("write", key, ask)

    def exists(self, key: Key) -> bool:
        """Whether there is an object of this name, or one below it."""
        try:
            self._again("read", key, lambda: self._fs.info(self._name(key)))
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: Key) -> list[str]:
        """Names directly below a prefix."""
        try:
            found = self._again("list", folder, lambda: self._fs.ls(self._name(folder), detail=False, refresh=True))
        except FileNotFoundError:
            return []
        own = self._name(folder)
        return [name for path in found if (name := path.rstrip("/").rpartition("/")[2]) and path.rstrip("/") != own]

    def below(self, folder: Key) -> list[Key]:
        """All objects below a prefix."""
        own = self._name(folder)
        found = self._again("list", folder, lambda: self._fs.find(own))
        return [Key(f"{folder.url}{path[len(own) :]}") for path in found if path.startswith(f"{own}/")]

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove objects; if one cannot be removed, the StoreError comes after the others are gone."""
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), TOGETHER):
            some = names[start : start + TOGETHER]
            with contextlib.suppress(FileNotFoundError):
                self._again("remove", Key(some[0]), partial(self._fs.rm, some))

    def _name(self, key: Key) -> str:
        return str(self._fs._strip_protocol(key.url))

    def _again(self, verb: str, key: Key, ask: Callable[[], T], tries: int = len(PAUSES) + 1) -> T:
        """Ask until there is an answer; StoreError in one line if there is none after all tries.

        Until the store has answered once in this process it is not waited for long: it may be down, or not exist.
        """
        if not self._contact.is_made and verb in ("write", "remove"):  # these must not go on in a thread that was left
            self.exists(key)
        until = time.monotonic() + answer_seconds()
        for pause in (*PAUSES[: tries - 1], None):
            try:
                return self._contact.ask(ask, until)
            except NoAnswerError as error:
                raise _cannot(verb, key, error) from error
            except FileNotFoundError as error:
                if verb == "write":  # there is no such bucket
                    raise _cannot(verb, key, error) from error
                raise
            except (MemoryError, StoreError):
                raise
            except Exception as error:
                if pause is None or not _may_pass(error):
                    raise _cannot(verb, key, error) from error
                time.sleep(pause * random.uniform(1.0, 1.5))
        raise AssertionError


def require_known(key: Key) -> None:
    """StoreError unless runs can be kept under such URLs."""
    if key.protocol not in EXTRAS or "::" in key.url:
        raise StoreError(
            f"{key.url} cannot hold a run: a commit there needs a store that itself refuses to create an object that "
            "exists (s3://, gs://, az://), or a local or shared file system. Pass such a place as store=; data may be "
            "at any URL"
        )
    if not key.bucket:
        raise StoreError(f"{key.url} names no bucket; needs one, such as {key.protocol}://bucket/run")


def _may_pass(error: Exception) -> bool:
    """Whether a request that failed in this way may succeed later; without credentials or permission it does not."""
    return not isinstance(error, PermissionError | NotImplementedError | ImportError | TypeError | ValueError) and (
        "Credentials" not in type(error).__name__
    )


def _cannot(verb: str, key: Key, error: Exception) -> StoreError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return StoreError(
        f"cannot {verb} {key}: {type(error).__name__}: {reason}. Check network, credentials and permissions, then go "
        f"on: {UNHARMED}"
    )


def objects_of(key: Key) -> Objects:
    """The objects of a key's bucket, opened once in each process."""
    return _opened(f"{key.protocol}://{key.bucket}", os.getpid())


@lru_cache(64)
def _opened(root: str, process: int) -> Objects:
    return Objects(Key(root))
