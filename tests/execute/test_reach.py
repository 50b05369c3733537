"""Who is at an address, asked before a client is made: in a few seconds, with what was tried."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute.local import ANY_PORT
from bnp_dask.execute.reach import open_executor, require_scheduler


@pytest.fixture
def silent():
    """The port of somebody who listens and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "at '': missing port number"),
        ("nonsense", "missing port number"),
        ("tcp://127.0.0.1", "missing port number"),
        ("tcp://127.0.0.1:99999", "there is no port 99999"),
        ("tcp://127.0.0.1:0", "there is no port 0"),
        ("foo://127.0.0.1:8786", "unknown address scheme 'foo'"),
        ("tcp://" + "a" * 300 + ":1", "label too long"),
    ],
)
def test_what_is_no_address(address, reason):
    with pytest.raises(SettingError, match=reason) as caught:
        require_scheduler(address, listen=0.3, answer=0.3)
    assert "Start one with 'dask scheduler'" in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("host", ["nobody.invalid", "a\0b"])
def test_names_that_nobody_knows(host):
    with pytest.raises(ExecutionError, match=r"\(tried for 0\.3 s\)") as caught:
        require_scheduler(f"tcp://{host}:8786", listen=0.3, answer=0.3)
    assert "Start one with 'dask scheduler'" in str(caught.value)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_nobody_listens(scheme):
    began = time.monotonic()
    with pytest.raises(ExecutionError, match=r"Connection refused \(tried for 0\.3 s\)"):
        require_scheduler(f"{scheme}://127.0.0.1:{unused_port()}", listen=0.3)
    assert 0.15 < time.monotonic() - began < 5.0


def test_somebody_else_listens(silent):
    began = time.monotonic()
    with pytest.raises(ExecutionError, match=r"does not answer as one \(waited up to 0\.5 s\)"):
        require_scheduler(f"tcp://127.0.0.1:{silent}", answer=0.5)
    assert time.monotonic() - began < 5.0


def test_a_scheduler_is_one_and_a_worker_is_none():
    ready, done, found = threading.Event(), threading.Event(), {}

    async def serve():
        async with (
            Scheduler(host="127.0.0.1", port=0, dashboard=False, dashboard_address=ANY_PORT) as scheduler,
            Worker(scheduler.address, nthreads=1, memory_limit=0) as worker,
        ):
            found.update(scheduler=scheduler.address, worker=worker.address)
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        require_scheduler(found["scheduler"])
        with pytest.raises(SettingError, match="is the address of a Worker; needs the address of a Dask scheduler"):
            require_scheduler(found["worker"])
    finally:
        done.set()
        thread.join(60)


@pytest.mark.parametrize(
    ("client", "advice"),
    [
        (2, r"client=2: needs one such as a distributed.Client; bnp_dask.local_client\(2\) starts processes"),
        (True, "client=.*such as a distributed.Client"),
        ("threads", r"client='threads': .*processes of this machine are bnp_dask.local_client\(2\), this one is None"),
    ],
)
def test_words_and_numbers_for_a_client_are_told_what_to_call(client, advice):
    with pytest.raises(SettingError, match=advice), open_executor(client):
        pass


def test_a_cluster_goes_as_its_client_and_a_closed_client_is_told():
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=ANY_PORT) as cluster:
        with open_executor(cluster) as executor:
            assert executor.is_remote
        client = Client(cluster, set_as_default=False)
        client.close()
        with pytest.raises(SettingError, match="the client is closed; needs an open one, or None"):
            open_executor(client).__enter__()
