"""A session of pytest that imports and collects once, and runs the tests of each mutant in a fork of itself."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import coverage
import psutil
import pytest

from benchmarks.mutants.sources import Mutant, functions_of, swap

BUDGET = 6.0
"""Seconds of processor time that the tests take at most, without a mutant, which a mutant is shown to."""

SLOWEST = 5.0
"""Seconds of processor time after which a test is not used."""

STUCK = 60.0
"""Seconds without any processor time after which a mutant counts as one that waits for ever."""

KILLED, SURVIVED, UNREACHED, SAME = "killed", "survived", "not reached", "same code"


@dataclass(frozen=True)
class Reach:
    """Test that passes without a mutant: processor seconds, and lines of each file that it runs."""

    seconds: float
    lines: dict[str, list[int]]


@dataclass
class Session:
    """Plugin of pytest whose loop runs mutants in place of tests."""

    root: Path
    chosen: list[Mutant]
    told: Callable[[Mutant, str], None]
    sources: list[Path] = field(default_factory=list)  # files whose lines are followed, if others than those changed
    book: Path | None = None  # file that remembers for the next session which lines a test runs
    near: dict[str, tuple[str, ...]] | None = None  # by source, the files of tests that alone are shown its mutants
    outcomes: list[tuple[Mutant, str]] = field(default_factory=list)
    n_tests: int = 0
    unfit: list[str] = field(default_factory=list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} files of tests could not be read")
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        session.config.pluginmanager.unregister(reporter)  # it writes to a copy of the standard output
        functions = functions_of(self.root, {mutant.path for mutant in self.chosen})
        gc.freeze()  # a fork that collects garbage would copy all pages
        items = {item.nodeid: item for item in session.items}
        reached = self._reached(session)
        self.n_tests = len(reached)
        self.unfit = sorted(set(items) - set(reached))
        for mutant in self.chosen:
            tests = [items[name] for name in selected(mutant, self.shown(mutant, reached))]
            seconds = sum(reached[item.nodeid].seconds for item in tests)
            outcome = self._tried(mutant, functions, tests, seconds) if tests else UNREACHED
            self.outcomes.append((mutant, outcome))
            self.told(mutant, outcome)
        session.config.pluginmanager.register(reporter, "terminalreporter")
        return True

    def shown(self, mutant: Mutant, reached: dict[str, Reach]) -> dict[str, Reach]:
        """The tests among which those for a mutant are chosen."""
        if self.near is None:
            return reached
        files = tuple(f"tests/{file}::" for file in self.near[mutant.path])
        return {name: reach for name, reach in reached.items() if name.startswith(files)}

    def _reached(self, session: pytest.Session) -> dict[str, Reach]:
        """Runs all tests without a mutant, in a fork, except those that the book knows and whose file is the same.

        The book is begun anew when a source has changed, because its lines have moved then.
        """
        files = sorted(self.sources or {self.root / mutant.path for mutant in self.chosen})
        state = _digest(files)
        book = json.loads(self.book.read_text()) if self.book is not None and self.book.exists() else {}
        tests = {item.nodeid: _digest([item.path]) for item in session.items}
        rows = {name: row for name, row in book.get(state, {}).items() if row[0] == tests.get(name)}
        if new := [item for item in session.items if item.nodeid not in rows]:
            rows |= self._run(new, files, tests)
        if self.book is not None:
            self.book.write_text(json.dumps({state: rows}))
        return {name: Reach(seconds, lines) for name, (_, seconds, lines) in rows.items() if lines is not None}

    def _run(self, items: list[pytest.Item], files: list[Path], tests: dict[str, str]) -> dict[str, list[Any]]:
        """Digest of the file, processor seconds and lines of each test; no lines if it fails or is slow."""
        file = self.root / f".reach-{os.getpid()}"

        def run() -> int:
            traced = coverage.Coverage(data_file=None, include=list(map(str, files)), config_file=False)
            traced.start()
            found: dict[str, list[Any]] = {}
            signal.signal(signal.SIGPROF, _ring)
            try:
                for item, following in _with_next(items):
                    traced.switch_context(item.nodeid)
                    before, failed = _spent(), item.session.testsfailed
                    signal.setitimer(signal.ITIMER_PROF, SLOWEST)  # of processor time
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                    signal.setitimer(signal.ITIMER_PROF, 0.0)
                    fits = item.session.testsfailed == failed and _spent() - before < SLOWEST
                    found[item.nodeid] = [tests[item.nodeid], _spent() - before, {} if fits else None]
            finally:
                traced.stop()
            for path in traced.get_data().measured_files():
                for line, names in traced.get_data().contexts_by_lineno(path).items():
                    for name in set(names) & set(found):
                        if found[name][2] is not None:
                            found[name][2].setdefault(os.path.relpath(path, self.root), []).append(line)
            file.write_text(json.dumps(found))
            return 0

        try:
            _wait(_fork(run), seconds=3600.0)
            found: dict[str, list[Any]] = json.loads(file.read_text())
            return found
        finally:
            file.unlink(missing_ok=True)

    def _tried(self, mutant: Mutant, functions: list[FunctionType], tests: list[pytest.Item], seconds: float) -> str:
        def run() -> int:
            path = self.root / mutant.path
            try:
                if not swap(functions, path, path.read_text(), mutant.source):
                    return 3
            except ValueError:  # another number of variables from around the function
                return 3
            for item, following in _with_next(tests):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                if item.session.testsfailed:
                    return 1
            return 0

        status = _wait(_fork(run), seconds=10.0 + 10.0 * seconds)
        return {0: SURVIVED, 3: SAME}.get(status, KILLED)


def _ring(number: int, frame: Any) -> None:
    """Ends a slow test; where its code has no line, which pytest cannot report, the alarm rings again in a moment."""
    if frame.f_lineno is not None:
        pytest.fail("slow")
    signal.setitimer(signal.ITIMER_PROF, 0.1)


def _digest(files: list[Path]) -> str:
    """Of the content of some files, in their order."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def selected(mutant: Mutant, reached: dict[str, Reach]) -> list[str]:
    """Tests to run: those that run a line of the mutant, the quickest first, then the rest of their files."""
    lines = {mutant.line, mutant.statement}
    near = [name for name, reach in reached.items() if lines & set(reach.lines.get(mutant.path, ()))]
    files = {name.split("::")[0] for name in near}
    # a result that tests share is computed by the first of them alone
    others = [name for name in reached if name.split("::")[0] in files and name not in near]
    held, left = [], BUDGET
    for name in [n for names in (near, others) for n in sorted(names, key=lambda n: reached[n].seconds)]:
        left -= reached[name].seconds
        if held and left < 0.0:
            break
        held.append(name)
    return held


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each test and the one after it, for which fixtures of their file are kept."""
    yield from zip(items, [*items[1:], None], strict=True)


def _fork(run: Callable[[], int]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1  # a mutant that ends the process is found
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        status = run()
    except BaseException:
        status = 1
    finally:
        os._exit(status)


def _wait(pid: int, seconds: float) -> int:
    """Status of a child; after these seconds of processor time, or if it is stuck, all that it started is ended."""
    status = 2
    for spent, idle in _watched(pid):
        if spent > seconds or idle > STUCK:
            break
    else:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return status
    if status == 2:
        os.waitpid(pid, 0)
    return status


def _watched(pid: int) -> Iterator[tuple[float, float]]:
    """Processor seconds and seconds without any, until the process has ended."""
    process, last, since, pause = psutil.Process(pid), 0.0, time.monotonic(), 0.002
    while process.status() != psutil.STATUS_ZOMBIE:
        times = process.cpu_times()
        spent = times.user + times.system + times.children_user + times.children_system
        if spent > last:
            last, since = spent, time.monotonic()
        yield spent, time.monotonic() - since
        time.sleep(pause)
        pause = min(2.0 * pause, 0.1)


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
