"""Workers die, leave, come and dawdle; the answer stays the same."""

from __future__ import annotations

import random
import time

import pytest
from distributed.scheduler import KilledWorker

from bnp_dask.errors import ExecutionError
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.local import beside
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference import Memoized
from bnp_dask.store import SummaryFiles
from tests.execute.tasks import kill_own_process
from tests.faults.parts import (
    BOUND,
    N_BATCHES,
    SCHEDULES,
    Faulty,
    Killer,
    atoms,
    bits,
    go,
    hanging,
    quiet,
    until,
    worker_pids,
)

QUICK = "memoized with moves"


@pytest.mark.parametrize("name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.long) for n in SCHEDULES])
def test_workers_killed_in_the_middle_of_a_local_step(warm_cluster, tmp_path, name):
    """Four batches, three calls each (the survey and two of the laps): whoever reads them then is killed."""
    _, client = warm_cluster(2)
    hangs = frozenset((b, call) for b, call in [(0, 0), (1, 2), (3, 3), (3, 4), (5, 2), (6, 5)])
    data = Faulty(atoms(), str(tmp_path), hangs=hangs)
    started = time.monotonic()
    with Killer(hanging(tmp_path)).at_work() as killer:
        result = go(client, name, data)
    assert time.monotonic() - started < BOUND
    assert len(killer.killed) >= 5
    assert bits(result) == quiet(name)


@pytest.mark.long
def test_workers_killed_under_a_client_beside_the_scheduler(warm_cluster, tmp_path):
    """What dies with a worker is computed again from what the scheduler kept, which here is this process's memory."""
    cluster, _ = warm_cluster(2)
    data = Faulty(atoms(), str(tmp_path), hangs=frozenset([(0, 0), (1, 2), (3, 3), (5, 2)]))
    with beside(cluster) as client, Killer(hanging(tmp_path)).at_work() as killer:
        assert client.scheduler.address.startswith("inproc://")
        result = go(client, data=data)
    assert len(killer.killed) >= 4
    assert bits(result) == quiet("memoized with moves")


@pytest.mark.long
def test_a_kill_every_second(warm_cluster, tmp_path):
    """Two workers, of which one is killed every second for as long as the run takes."""
    cluster, client = warm_cluster(2)
    rng = random.Random(0)
    data = Faulty(atoms(), str(tmp_path), seconds=0.08)

    def anyone():
        return [rng.choice(pids)] if (pids := pids_of(cluster)) else []

    with Killer(anyone, seconds=1.0).at_work() as killer:
        result = go(client, data=data)
    assert len(killer.killed) >= 4
    assert bits(result) == quiet("memoized with moves")


def pids_of(cluster):
    """Worker processes as their nannies know them; asks nobody who may be dead."""
    return [w.pid for w in cluster.workers.values() if w.pid is not None and w.status.name == "running"]


@pytest.mark.long
def test_all_workers_leave_and_new_ones_come(warm_cluster, tmp_path):
    """Adaptive to zero and back: at two moments of the run nobody is there."""
    cluster, client = warm_cluster(2)
    data = Faulty(atoms(), str(tmp_path), seconds=0.02)

    class Tide:
        """Takes all workers away after some batches; the run waits, and goes on when others come."""

        def __init__(self):
            self.seen = 0
            self.low = 0

        def on_start(self, info):
            pass

        def on_batch(self, done):
            self.seen += 1
            if self.seen in (5, 17):
                cluster.scale(0)
                until(lambda: not client.scheduler_info(n_workers=-1)["workers"], "the workers to leave")
                self.low += 1
                cluster.scale(3 - self.low)

        def on_lap(self, row, posterior):
            pass

        def on_end(self, reason):
            pass

    tide = Tide()
    result = go(client, data=data, callbacks=[tide])
    assert tide.low == 2
    assert bits(result) == quiet("memoized with moves")


@pytest.mark.long
def test_an_adaptive_cluster_that_starts_empty(warm_cluster):
    cluster, client = warm_cluster(0)
    cluster.adapt(minimum=0, maximum=2, interval="50ms", wait_count=1)
    assert bits(go(client)) == quiet("memoized with moves")
    until(lambda: not client.scheduler_info(n_workers=-1)["workers"], "the cluster to be empty again")


@pytest.mark.long
def test_a_task_outlives_more_deaths_than_dask_allows(warm_cluster, tmp_path):
    """Dask gives a task up after four deaths; the executor does not, and ends at its own bound."""
    _, client = warm_cluster(1)
    data = Faulty(atoms(), str(tmp_path), hangs=frozenset((2, call) for call in range(1, 8)))
    with Killer(hanging(tmp_path)).at_work() as killer:
        result = go(client, data=data)
    assert len(killer.killed) == 7
    assert bits(result) == quiet("memoized with moves")

    executor = DaskExecutor(client, "killer", worker_losses=2)
    with pytest.raises(ExecutionError, match=r"6 workers died .* ran task kill-1;.*memory.*call again") as end:
        executor.result(executor.submit("kill-1", kill_own_process))
    assert isinstance(end.value.__cause__, KilledWorker)
    executor.close()


@pytest.mark.long
def test_a_posterior_that_died_with_its_workers_is_made_again(warm_cluster):
    """The shared value is given up by Dask together with all that needs it; nobody holds its handle any more."""
    _, client = warm_cluster(1)
    executor = DaskExecutor(client, "shared")
    shared = executor.share("posterior-1", 20)
    handles = [executor.submit(f"add-{i}", slowly_add, shared, i) for i in range(4)]
    del shared
    with Killer(lambda: worker_pids(client), seconds=0.3).at_work() as killer:
        until(lambda: len(killer.killed) >= 6, "six deaths")
    assert [executor.result(h) for h in handles] == [20, 21, 22, 23]
    executor.close()


def slowly_add(a, b):
    time.sleep(0.5)
    return a + b


def test_a_summary_written_twice_is_counted_once(tmp_path):
    """Two workers that computed one visit of one batch leave the same bytes under the same name."""
    files = SummaryFiles(tmp_path)
    found = {"value.N": atoms(4, 1)[:, 0]}
    receipt, again = files.put(3, 1, found), files.put(3, 1, found)
    assert receipt == again
    assert list(files.keys()) == [(3, 1)]
    assert files.get(3, 1, receipt)[0]["value.N"].tobytes() == found["value.N"].tobytes()


@pytest.mark.long
def test_a_straggler_changes_nothing_and_holds_up_only_its_window(warm_cluster, tmp_path):
    """One batch takes as long as the others take to the end of the window, or 10 s if they do not get there."""
    _, client = warm_cluster(2)
    schedule, _ = SCHEDULES["memoized with moves"]
    # the last of a lap have fewer behind them: half of the laps must show it
    data = Faulty(atoms(), str(tmp_path), slow=(2, 10.0, schedule.window - 1), seconds=0.01, traced=True)
    result = go(client, data=data)
    assert bits(result) == quiet("memoized with moves")
    trace = (tmp_path / "trace").read_text().splitlines()
    laps = [i for i, line in enumerate(trace) if line == "start 2"][-schedule.laps :]  # after the survey and the start
    meanwhile = [[line for line in trace[i : trace.index("end 2", i)] if line.startswith("end")] for i in laps]
    assert all(len(others) <= schedule.window for others in meanwhile)
    assert sum(len(others) >= schedule.window - 1 for others in meanwhile) >= schedule.laps // 2
    assert len([line for line in trace if line.startswith("end")]) >= N_BATCHES * (schedule.laps + 1)


@pytest.mark.long
def test_a_worker_killed_after_it_wrote_a_summary(warm_cluster, tmp_path):
    """Workers write into the run directory; whoever wrote is killed before the answer can be fetched, six times."""
    cluster, client = warm_cluster(2)
    folder = tmp_path / "run" / "summaries"
    seen = set()

    def writers():
        new = {p.name for p in folder.rglob("*-*.npz")} - seen if len(killer.killed) < 12 else set()
        if len(new) < 3:
            return []
        seen.update(new)
        return pids_of(cluster)

    killer = Killer(writers, seconds=0.001)
    with killer.at_work():
        result = go(client, data=Faulty(atoms(), str(make(tmp_path / "calls")), seconds=0.03), store=tmp_path / "run")
    assert len(killer.killed) >= 6
    assert bits(result) == quiet("memoized with moves")
    # nor is it counted twice when the run is led on from its checkpoint
    longer = Memoized(laps=6, window=3, tolerance=0.0, count_tolerance=0.0)
    rest = go(client, schedule=longer, store=tmp_path / "run", resume=True)
    assert bits(rest) == bits(go(SerialExecutor(), schedule=longer))


def make(folder):
    folder.mkdir()
    return folder
