"""Reading for the next task while this one computes: when it is done, that it changes nothing, that it is given up."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed.core import Status

from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute import prefetch as ahead
from bnp_dask.execute.base import Call, Slot
from bnp_dask.execute.dask import ROOM_AHEAD, UNLIMITED_AHEAD, DaskExecutor, WorkerQueue, run_message
from bnp_dask.execute.message import Message
from bnp_dask.execute.prefetch import Coming, in_turn, load_of, looking_ahead, n_held
from tests.execute.reading import (
    Slow,
    add_up,
    events,
    fail_then_add_up,
    note,
    only_reads_count,
    until,
    until_next_is_read,
    until_told,
)


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


@pytest.fixture(autouse=True)
def place(monkeypatch):
    """What this process knows of its reads, as if it had just begun."""
    place = ahead._Place()
    monkeypatch.setattr(ahead, "_PLACE", place)
    monkeypatch.setattr(ahead, "time", ahead.time)  # back to the true clocks afterwards
    only_reads_count()
    yield place
    until(lambda: n_held() == 0, "the end of all that is held")
    assert place.running == 0


class View:
    """An outlook that is told what to see."""

    def __init__(self, *loads, room=np.inf):
        self.loads = list(loads)
        self.room = room
        self.wanted = True
        self.asked = 0

    def coming(self):
        self.asked += 1
        return [Coming(load, lambda: self.wanted) for load in self.loads]

    def has_room(self, nbytes):
        return nbytes <= self.room


def readers_of(folder, number):
    """Threads that read something, in order."""
    return [line[3] for line in events(folder) if line[:2] == ["read", str(number)]]


def run_after(view, first, then=()):
    """A task that reads, waits until nothing else is held to come, and then others."""
    with looking_ahead(view):
        first()
        until(lambda: n_held() == 1 and next(iter(ahead._HELD.values())).is_read.is_set(), "the read ahead")
    view.loads.clear()
    out = []
    for load in then:
        with looking_ahead(view):
            out.append(load())
    return out


# -- one process ------------------------------------------------------------------------------------------------
def test_the_next_is_read_once_by_another_thread(folder):
    a, b = Slow(folder, 1), Slow(folder, 2)
    (found,) = run_after(View(b), a, [b])
    np.testing.assert_array_equal(found, b.fetch())
    assert readers_of(folder, 2)[:-1] == [ahead.THREAD_NAME]
    assert readers_of(folder, 1) == [threading.current_thread().name]


def test_a_task_that_asks_early_waits_for_the_read_under_way(folder):
    a, b = Slow(folder, 1), Slow(folder, 2)
    view = View(b)
    with looking_ahead(view):
        a()
        until(lambda: readers_of(folder, 2), "the beginning of the read")
    view.loads.clear()
    with looking_ahead(view):
        assert b()[0] == 2
    assert readers_of(folder, 2) == [ahead.THREAD_NAME]


def test_equal_loads_are_not_the_same(folder):
    """Only the very object that the task calls stands for its read."""
    a, b, twin = Slow(folder, 1), Slow(folder, 2), Slow(folder, 2)
    view = View(b)
    run_after(view, a, [twin])
    assert readers_of(folder, 2) == [ahead.THREAD_NAME, threading.current_thread().name]
    view.wanted = False


@pytest.mark.parametrize("why", ["no waiting", "no room", "nobody knows the size"])
def test_nothing_is_read_ahead(folder, monkeypatch, why):
    a, b = Slow(folder, 1), Slow(folder, 2)
    view = View(b)
    if why == "no waiting":
        monkeypatch.setattr(ahead, "LEAST_SECONDS", np.inf)
    elif why == "no room":
        view.room = ahead.BEYOND * a.fetch().nbytes - 1
    else:
        monkeypatch.setattr(ahead._Place, "note_size", lambda self, value: None)
    with looking_ahead(view):
        a()
        watcher = ahead._TASK.get().watcher
        assert (watcher is None) == (why == "no waiting")
        if why == "no room":
            until(lambda: view.asked > 2, "somebody who looks")
    if watcher is not None:
        watcher.join(10)
        assert not watcher.is_alive()
    assert n_held() == 0 and not readers_of(folder, 2)


def test_nothing_is_read_ahead_when_the_task_is_over(folder):
    """What begins now will read for itself: it must not be read twice."""
    a, b = Slow(folder, 1), Slow(folder, 2)
    view = View()
    with looking_ahead(view):
        a()
        watcher = ahead._TASK.get().watcher
        until(lambda: view.asked, "somebody who looks")
        with ahead._LOCK:
            ahead._TASK.get().is_over = True
            view.loads.append(b)
        watcher.join(10)
    assert not watcher.is_alive()
    assert n_held() == 0 and not readers_of(folder, 2)


def test_a_task_that_comes_late_is_seen(folder):
    """A scheduler may send the next one only after the last was done."""
    a, b = Slow(folder, 1), Slow(folder, 2)
    view = View()
    with looking_ahead(view):
        a()
        assert n_held() == 0
        view.loads.append(b)
        until(lambda: n_held(), "the read ahead")
    view.wanted = False


def test_at_most_one_for_each_task_that_runs(folder):
    first, *others = [Slow(folder, i) for i in range(5)]
    view = View(*others)
    with looking_ahead(view):
        first()
        until(lambda: readers_of(folder, 1), "the read ahead")
        first()
        first()
        watcher = ahead._TASK.get().watcher
        assert n_held() == 1
    # what is held for a task that still waits keeps the next one from holding more
    with looking_ahead(view):
        first()
        until(lambda: ahead._TASK.get().watcher is not None, "somebody who looks")
        assert n_held() == 1
    assert len({line[1] for line in events(folder)}) == 2
    view.wanted = False
    watcher.join(10)


def test_what_cannot_be_read_ahead_is_read_by_its_task(folder):
    a, b = Slow(folder, 1), Slow(folder, 2, "ahead")
    view = View(b)
    with looking_ahead(view):
        a()
        ahead._TASK.get().watcher.join(10)
    assert n_held() == 0
    view.loads.clear()
    with looking_ahead(view):
        assert b()[0] == 2
    assert readers_of(folder, 2) == [ahead.THREAD_NAME, threading.current_thread().name]


def test_a_read_under_way_that_fails_is_tried_by_the_task_that_waits_for_it(folder):
    a, b, c = Slow(folder, 1), Slow(folder, 2, "ahead"), Slow(folder, 3, "always")
    for load in (b, c):
        view = View(load)
        with looking_ahead(view):
            a()
            until(lambda load=load: readers_of(folder, load.number), "the beginning of the read")
        view.loads.clear()
        with looking_ahead(view):
            if load is b:
                assert load()[0] == 2
            else:
                with pytest.raises(OSError, match="3 is out of reach"):
                    load()
        assert len(readers_of(folder, load.number)) == 2


def test_what_nobody_wants_any_more_is_dropped(folder, monkeypatch):
    a, b = Slow(folder, 1), Slow(folder, 2)
    given = []
    fetch = Slow.fetch

    def watched(self):
        value = fetch(self)
        given.append(weakref.ref(value))
        return value

    monkeypatch.setattr(Slow, "fetch", watched)
    view = View(b)
    run_after(view, a)
    assert n_held() == 1 and given[-1]() is not None
    view.wanted = False
    until(lambda: n_held() == 0, "the drop")
    gc.collect()
    assert given[-1]() is None


def test_room_counts_reads_under_way(folder, place):
    a = Slow(folder, 1)
    nbytes = a.fetch().nbytes
    place.running, place.is_waiting = 3, True
    place.note_size(np.zeros(nbytes, np.int8))
    task = SimpleNamespace(outlook=View(a, Slow(folder, 2), room=2 * ahead.BEYOND * nbytes - 1))
    with ahead._LOCK:
        held = ahead._claim(task)
        assert held.load is a and ahead._claim(task) is None
        held.is_read.set()
        assert ahead._claim(task).load.number == 2
        ahead._HELD.clear()
    place.running = 0


@pytest.mark.parametrize("wall, cpu, running, is_waiting", [
    (0.2, 0.01, 1, True),
    (0.2, 0.06, 1, False),  # a third is unpacking
    (0.2, 0.2, 1, False),
    (0.005, 0.0, 1, False),  # not worth it
    (0.2, 0.61, 4, True),  # three others compute
    (0.2, 0.79, 4, False),  # and so does this
    (0.2, 0.01, 4, True),
])  # fmt: skip
def test_who_waits(place, wall, cpu, running, is_waiting):
    place.note_times(wall, cpu, running)
    assert place.is_waiting == is_waiting


def test_the_largest_of_late_stands_for_what_is_to_come(place):
    assert place.largest is None
    place.note_size("a text has no size")
    for nbytes in [700, *[8] * (ahead.REMEMBERED - 1)]:
        place.note_size(np.zeros(nbytes, np.int8))
    assert place.largest == 700
    place.note_size(np.zeros(8, np.int8))
    assert place.largest == 8


def test_what_a_task_reads_first_is_found_among_its_arguments(folder):
    load = Slow(folder, 1)
    assert load_of(load) is load and load_of(SimpleNamespace(first_load=load)) is load
    assert load_of(SimpleNamespace(first_load=3)) is None and load_of(None) is None
    assert Call("x", print, (Slot(0), 3, SimpleNamespace(first_load=load), Slow(folder, 2))).first_load is load
    assert Call("x", print, (Slot(0), "text")).first_load is None


@pytest.mark.parametrize("make", [SerialExecutor, lambda: ThreadExecutor(2)])
def test_other_executors_read_as_ever(folder, make):
    executor = make()
    handles = [executor.submit(f"add-{i}", add_up, Slow(folder, i)) for i in range(6)]
    assert [executor.result(h) for h in handles] == [1000 * i for i in range(6)]
    executor.close()
    assert all(thread != ahead.THREAD_NAME for *_, thread in events(folder))
    assert len(events(folder)) == 6


# -- several reads of one task ------------------------------------------------------------------------------------
def test_reads_of_one_task_overlap_with_its_computing(folder):
    loads = [Slow(folder, i) for i in range(4)]
    with in_turn(loads):
        for i, load in enumerate(loads):
            assert load()[0] == i
            until(lambda i=i: i == 3 or readers_of(folder, i + 1), "the beginning of the next read")
            note(folder, "computed", i)
    order = [line[:2] for line in events(folder)]
    for i in range(3):
        assert order.index(["read", str(i + 1)]) < order.index(["computed", str(i)])
    assert [readers_of(folder, i) for i in range(1, 4)] == [[ahead.THREAD_NAME]] * 3


def test_reads_of_one_task_that_hardly_wait_are_left_to_it(folder, monkeypatch):
    monkeypatch.setattr(ahead, "LEAST_SECONDS", np.inf)
    loads = [Slow(folder, i) for i in range(4)]
    with in_turn(loads):
        assert [load()[0] for load in loads] == [0, 1, 2, 3]
    assert [readers_of(folder, i) for i in range(4)] == [[threading.current_thread().name]] * 4


def test_one_read_of_a_task_and_what_is_no_load_are_left_alone(folder):
    with in_turn([Slow(folder, 1)]):
        Slow(folder, 1)()
    with in_turn([lambda: 1, lambda: 2]):
        pass
    assert n_held() == 0


def test_an_error_of_a_part_is_that_of_a_read_of_its_own(folder):
    loads = [Slow(folder, 0), Slow(folder, 1, "ahead"), Slow(folder, 2, "always"), Slow(folder, 3)]
    with in_turn(loads):
        assert [loads[0]()[0], loads[1]()[0]] == [0, 1]
        with pytest.raises(OSError, match="2 is out of reach"):
            loads[2]()
    assert [len(readers_of(folder, i)) for i in range(4)] == [1, 2, 2, 0]


def test_what_cannot_tell_whether_it_is_wanted_is_dropped(folder):
    """Of a worker that is closing, all may be gone."""
    a, b = Slow(folder, 1), Slow(folder, 2)

    def gone():
        raise AttributeError("no state")

    view = View()
    with looking_ahead(view):
        a()
        view.coming = lambda: [Coming(b, gone)]
        until(lambda: readers_of(folder, 2), "the read ahead")
        until(lambda: n_held() == 0, "the drop")


def test_a_task_that_ends_early_leaves_nothing_behind(folder):
    loads = [Slow(folder, i) for i in range(3)]
    with pytest.raises(KeyError), in_turn(loads):
        loads[0]()
        raise KeyError("in computing")
    until(lambda: n_held() == 0, "the drop")


# -- what a Dask worker tells ---------------------------------------------------------------------------------------
def worker_with(limit, held, ready=(), status=Status.running):
    return SimpleNamespace(
        memory_manager=SimpleNamespace(memory_limit=limit),
        monitor=SimpleNamespace(get_process_memory=lambda: held),
        state=SimpleNamespace(ready=set(ready), tasks={task.key: task for task in ready}),
        status=status,
    )


class Waiting:
    """A task in the queue of a worker."""

    def __init__(self, key, priority, *args, function=run_message):
        self.key, self.priority, self.state = key, priority, "ready"
        self.run_spec = SimpleNamespace(func=function, args=args)


GB = 10**9


@pytest.mark.parametrize("limit, held, nbytes, has_room", [
    (4 * GB, GB, int(ROOM_AHEAD * 4 * GB) - GB, True),
    (4 * GB, GB, int(ROOM_AHEAD * 4 * GB) - GB + 1, False),
    (4 * GB, 2 * GB, 1, False),
    (480 * 10**6, 270 * 10**6, 1, False),
    (None, 50 * GB, UNLIMITED_AHEAD, True),
    (0, 50 * GB, UNLIMITED_AHEAD + 1, False),
])  # fmt: skip
def test_room_of_a_worker(limit, held, nbytes, has_room):
    assert WorkerQueue(worker_with(limit, held)).has_room(nbytes) == has_room


def test_the_queue_of_a_worker(folder):
    first, second = (Message.of(Call(name, add_up, (Slow(folder, i),))) for i, name in enumerate(("now", "later"), 1))
    tasks = [
        Waiting("later", (0, 9), second),
        Waiting("sum", (0, 1), Message.of(Call("sum", add_up, (3,)))),
        Waiting("now", (0, 2), first),
        Waiting("foreign", (0, 0), 5, function=abs),
        Waiting("empty", (0, 0)),
        Waiting("odd", (0, 0)),
    ]
    tasks[-1].run_spec = None
    worker = worker_with(None, 0, tasks)
    now, later = WorkerQueue(worker).coming()
    assert now.load is first.open().args[0] and later.load is second.open().args[0]
    assert now.is_wanted()
    tasks[2].state = "executing"
    assert now.is_wanted()
    for state in ("released", "cancelled", "memory", "error"):
        tasks[2].state = state
        assert not now.is_wanted()
    worker.status = Status.paused
    assert not later.is_wanted()
    worker.status = Status.running
    assert later.is_wanted()
    worker.state.tasks["later"] = Waiting("later", (0, 9))
    assert not later.is_wanted()


def test_another_dask_may_look_otherwise():
    mixed = worker_with(None, 0, [Waiting("x", 3), Waiting("y", "z")])
    for worker in (object(), SimpleNamespace(state=SimpleNamespace(ready=3)), mixed):
        queue = WorkerQueue(worker)
        assert list(queue.coming()) == []
    assert not WorkerQueue(object()).has_room(1)
    assert WorkerQueue.of_this_worker() is None
    assert run_message(Message.of(Call("sum", sum, ((1, 2),)))).open() == 3


# -- on workers -----------------------------------------------------------------------------------------------------
def held(client):
    """How much all workers hold."""
    return sum(client.run(n_held).values())


def test_workers_read_while_they_compute(own_cluster, folder):
    """No task ends before its process reads again: without reading ahead, none would."""
    n = 12
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        client = own_cluster(2)
    client.run(only_reads_count)
    executor = DaskExecutor(client, "overlap")
    loads = [Slow(folder, i) for i in range(n)]
    handles = [executor.submit(f"step-{i}", until_next_is_read, loads[i], n) for i in range(n)]
    assert [executor.result(h) for h in handles] == [1000 * i for i in range(n)]
    assert held(client) == 0
    reads = [line for line in events(folder) if line[0] == "read"]
    assert sorted(int(line[1]) for line in reads) == list(range(n))  # each once
    assert sum(line[3] == ahead.THREAD_NAME for line in reads) >= n // 2
    executor.close()


def test_failures_of_reading_ahead_do_not_show(own_cluster, folder):
    client = own_cluster(1)
    executor = DaskExecutor(client, "failing", retries=0)
    fails = ["never", "ahead", "never", "always", "ahead", "never"]
    handles = [executor.submit(f"step-{i}", add_up, Slow(folder, i, kind)) for i, kind in enumerate(fails)]
    early = executor.submit("early-1", fail_then_add_up, folder, Slow(folder, 9))
    for i, (kind, handle) in enumerate(zip(fails, handles, strict=True)):
        if kind == "always":
            with pytest.raises(OSError, match="3 is out of reach") as caught:
                executor.result(handle)
            assert any("step-3" in text for text in caught.value.__notes__)
        else:
            assert executor.result(handle) == 1000 * i
    with pytest.raises(ValueError, match="does not come to reading"):
        executor.result(early)
    until(lambda: held(client) == 0, "the drop of what was not asked for")
    executor.close()


def start_with_one_ahead(executor, client, folder):
    """A task that computes until told, and one that waits and was read ahead."""
    client.run(only_reads_count)
    working = executor.submit("work-1", until_told, Slow(folder, 1))
    until(lambda: ["computing", "1"] in [line[:2] for line in events(folder)], "the first task")
    waiting = executor.submit("add-2", add_up, Slow(folder, 2))
    until(lambda: held(client) == 1, "the read ahead")
    return working, waiting


def test_what_was_read_for_a_cancelled_task_is_dropped(own_cluster, folder, tmp_path):
    client = own_cluster(1)
    executor = DaskExecutor(client, "cancelled")
    working, waiting = start_with_one_ahead(executor, client, folder)
    del waiting
    until(lambda: held(client) == 0, "the drop")
    (tmp_path / "go").touch()
    assert executor.result(working) == 1000
    assert readers_of(folder, 2) == [ahead.THREAD_NAME]
    executor.close()


def test_what_was_read_for_a_stolen_task_is_dropped(own_cluster, folder, tmp_path):
    client = own_cluster(1)
    executor = DaskExecutor(client, "stolen")
    working, waiting = start_with_one_ahead(executor, client, folder)
    client.cluster.scale(2)
    assert executor.result(waiting) == 2000  # though the first worker is not free
    until(lambda: held(client) == 0, "the drop")
    (tmp_path / "go").touch()
    assert executor.result(working) == 1000
    pids = [line[2] for line in events(folder) if line[:2] == ["read", "2"]]
    assert len(pids) == len(set(pids)) == 2
    executor.close()


def test_nothing_is_held_where_the_system_has_no_thread_for_it(folder, monkeypatch):
    class Full(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    load = Slow(folder, 0)
    with ahead._LOCK:
        held = ahead._hold(Coming(load, lambda: True))
    monkeypatch.setattr(ahead.threading, "Thread", Full)
    assert ahead._start(held.run, held) is None
    assert n_held() == 0  # or the next task would wait for a read that nobody does
