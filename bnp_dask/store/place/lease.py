"""One writer per run on an object store, which has no locks that die with their holder.

::

    lock/00000003.json      claim of the third writer, with its identity; created once
    lock/00000003.beat      its sign of life, renewed; the last one records that it has ended

A newcomer watches the beat of the newest claim for the time that a beat is good for, on its own clock.  So clocks need
not agree, they must only run alike.  If the beat changes, the holder lives, and the newcomer is refused.  If it does
not, the newcomer creates the next claim.  A holder on the same machine is looked up by its process instead.

A holder that was thought dead and lives, stopped or cut off from the network, finds the next claim when it renews its
own.  It can commit nothing, because the newcomer took the number of the next checkpoint before it read the newest
(:meth:`Lease.fence`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bnp_dask.errors import StoreError
from bnp_dask.store.place.key import Key
from bnp_dask.store.place.objects import Objects, objects_of

FOLDER = "lock"

SECONDS = 45.0
"""How long a beat is good for."""

BEATS = 3
"""Beats in that time."""

logger = logging.getLogger("bnp_dask")


@dataclass(frozen=True)
class Holder:
    """A process that writes.

    Parameters
    ----------
    who
        Process number and machine, for messages.
    machine
        Boot of the machine, and its name space of processes; empty if unknown.
    process
        Process number.
    started
        When it was started, in ticks of that machine; needed because process numbers are used again.
    seconds
        How long its beats are good for.
    """

    who: str
    machine: str
    process: int
    started: str
    seconds: float

    @staticmethod
    def this() -> Holder:
        """This process."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        who = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        return Holder(who, _machine(), os.getpid(), _started(os.getpid()), SECONDS)

    @property
    def is_here(self) -> bool:
        """Whether its process is, or was, visible to this process."""
        return bool(self.machine) and self.machine == _machine()

    @property
    def lives(self) -> bool:
        """Whether the process exists; only for a holder that is here."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is of another user, who may be hidden
            pass
        return _started(self.process) in ("", self.started)


class Lease:
    """The right to write to a run, until it is released or another process has taken it.

    Parameters
    ----------
    folder
        The run.

    Raises
    ------
    StoreError
        Another process writes to it, or the store creates an object that exists.
    """

    def __init__(self, folder: Key) -> None:
        self._claims = _Claims(folder)
        self._failed = ""
        self.number, is_whole = self._claims.taken()
        self._owes_fence = not is_whole
        self._beats = _Beats(self._claims, self.number)
        self._thread = threading.Thread(target=self._beats.run, name="bnp-dask-lease", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._beats.stop)

    def release(self) -> None:
        """Let another process write, at once."""
        if not self._beats.stopping.is_set():
            self._beats.stop()
            self._thread.join(SECONDS)
            with contextlib.suppress(StoreError):  # then it ends with the last beat
                self._claims.leave(self.number, is_whole=not (self._failed or self._owes_fence))

    def require(self) -> None:
        """StoreError if another process may have taken over, which is impossible while the last beat is recent."""
        if time.monotonic() - self._beats.beaten > SECONDS / 2:
            self._beats.beat()
        if self._beats.lost:
            raise self._claims.lost(self.number)

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Context of a commit.

        After an unfinished commit no other may follow: whether it exists is known only after the run is opened again,
        and a number must not be passed over.
        """
        if self._failed:
            raise StoreError(
                f"{self._claims.folder}: a commit could not be finished before ({self._failed}); open the run again to "
                "go on from the newest that is there"
            )
        self.require()
        try:
            yield
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise
        if self._claims.is_lost(self.number):
            self._beats.lost = True
            raise self._claims.lost(self.number)

    def fence(self, claim: Callable[[], int], newest: int) -> int:
        """A former holder that ended in peace commits no more; from another one its next number is taken.

        That number is not used again either: the holder may have left a file for it that no commit refers to.
        """
        if not self._owes_fence:
            return newest
        number = claim()
        self._owes_fence = False
        return number


class _Claims:
    """The claims on a run."""

    def __init__(self, folder: Key) -> None:
        self.folder = folder
        self._objects: Objects = objects_of(folder)

    def claim(self, number: int) -> Key:
        return self.folder / FOLDER / f"{number:08d}.json"

    def beat(self, number: int) -> Key:
        return self.folder / FOLDER / f"{number:08d}.beat"

    def taken(self) -> tuple[int, bool]:
        """Take the lease: number of the claim, and whether the previous holder has finished all commits and ended."""
        while True:
            before = self._newest()
            signs = self._signs(before) if before else {"ended": True, "whole": True}
            if not signs.get("ended", False):
                self._wait_for_end(before)
                signs = self._signs(before)
            number = before + 1
            own = json.dumps(asdict(Holder.this())).encode()
            if self._objects.create(self.claim(number), own):
                is_whole = bool(signs.get("whole", False))
                break
        if self._objects.create(self.claim(number), b"another"):
            raise StoreError(
                f"{self.folder} cannot hold a run: its store creates an object that exists, in spite of the condition, "
                "so that two writers could replace each other's work. Use a store that knows conditional writes, or a "
                "local or shared file system"
            )
        self.renew(number, 0)
        self._forget(number)
        return number, is_whole

    def renew(self, number: int, beat: int) -> None:
        """A sign of life."""
        until = datetime.now(UTC) + timedelta(seconds=SECONDS)
        self._objects.put(
            self.beat(number), json.dumps({"beat": beat, "until": until.isoformat(timespec="seconds")}).encode()
        )

    def leave(self, number: int, is_whole: bool) -> None:
        """The last sign, and whether every commit was finished."""
        self._objects.put(self.beat(number), json.dumps({"ended": True, "whole": is_whole}).encode())

    def is_lost(self, number: int) -> bool:
        """Whether another process has taken over: there is a later claim, or this one is so old that it was removed."""
        return self._objects.exists(self.claim(number + 1)) or not self._objects.exists(self.claim(number))

    def lost(self, number: int) -> StoreError:
        """The error for a holder that was thought dead."""
        by = next((h.who for n in range(number + 1, self._newest() + 1) if (h := self._holder(n))), "another process")
        return StoreError(
            f"the run {self.folder} has been taken over by {by}: this process gave no sign of life for {SECONDS:g} s. "
            "Nothing was replaced, and all that it committed before is part of the run"
        )

    def _newest(self) -> int:
        """Number of the newest claim, 0 if there is none; if a listing is old, the first number without a claim."""
        names = self._objects.names(self.folder / FOLDER)
        number = max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()), default=0)
        while self._objects.exists(self.claim(number + 1)):
            number += 1
        return number

    def _holder(self, number: int) -> Holder | None:
        content = self._objects.get(self.claim(number))
        try:
            return None if content is None else Holder(**json.loads(content))
        except (ValueError, TypeError):  # of a later version
            return None

    def _signs(self, number: int) -> dict[str, Any]:
        content = self._objects.get(self.beat(number))
        try:
            return dict(json.loads(content or b"{}"))
        except (ValueError, TypeError):
            return {}

    def _wait_for_end(self, number: int) -> None:
        """Return when a claim is no longer good; StoreError as soon as it is seen to be good."""
        holder = self._holder(number)
        if holder is not None and holder.is_here:
            if holder.lives:
                raise self._refused(holder, self._signs(number))
            logger.info("%s: %s has ended without releasing it", self.folder, holder.who)
            return
        seconds = SECONDS if holder is None else max(SECONDS, holder.seconds)
        seen, started = self._signs(number), time.monotonic()
        logger.info("%s: waiting for up to %g s whether its last writer still lives", self.folder, seconds)
        while time.monotonic() - started < seconds:
            time.sleep(min(1.0, SECONDS / (4 * BEATS)))
            now = self._signs(number)
            if now.get("ended", False):
                return
            if now != seen or self._objects.exists(self.claim(number + 1)):
                raise self._refused(holder, now)

    def _refused(self, holder: Holder | None, signs: dict[str, Any]) -> StoreError:
        who = "another process" if holder is None else holder.who
        until = f", whose lease is good until {signs['until']} and is being renewed" if "until" in signs else ""
        return StoreError(
            f"the run {self.folder} is being written by {who}{until}; wait until it ends, stop it, or choose another "
            "place. Reading it (inspect, report) needs no lease"
        )

    def _forget(self, number: int) -> None:
        """Remove claims that are older than the previous one; their holders learn from this that they are outdated."""
        names = self._objects.names(self.folder / FOLDER)
        old = [name for name in names if name.partition(".")[0].isdigit() and int(name.partition(".")[0]) < number - 1]
        with contextlib.suppress(StoreError):
            self._objects.remove(self.folder / FOLDER / name for name in sorted(old))


class _Beats:
    """Renews a lease in a thread, which holds this object and not the lease: so an abandoned lease ends."""

    def __init__(self, claims: _Claims, number: int) -> None:
        self._claims, self._number, self._count = claims, number, 0
        self.beaten = -math.inf  # the time before the first beat was sent is unknown
        self.stopping = threading.Event()
        self.lost = False

    def stop(self) -> None:
        self.stopping.set()

    def run(self) -> None:
        while not self.lost and not self.stopping.wait(SECONDS / BEATS):
            try:
                self.beat()
            except StoreError as error:
                logger.warning("%s: its lease could not be renewed: %s", self._claims.folder, error)

    def beat(self) -> None:
        """Renew, and look whether another process has taken over."""
        began = time.monotonic()
        self._count += 1
        self._claims.renew(self._number, self._count)
        self.lost = self.lost or self._claims.is_lost(self._number)
        if not self.lost:
            self.beaten = began


def _machine() -> str:
    """Identity of this machine since its start and of its name space of processes; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process was started; empty if there is none."""
    try:
        # the name of the program may hold blanks and brackets
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
