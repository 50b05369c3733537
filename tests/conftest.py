"""Fixtures that several folders of tests use."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import dask
import fsspec
import pytest
from distributed import Client, LocalCluster, default_client

from bnp_dask.execute.local import ANY_PORT, LEAN
from bnp_dask.training.compiling.first_run import CHILD
from tests import stuck
from tests.warm import forked_workers

DaskClient = Callable[..., Client]

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Some hundred processes would compile all modules anew, which takes each a second."""

os.environ[CHILD] = "1"
"""All processors are busy with tests: no run, of this process or of others that a test starts, has one compile for it.

``tests/train/test_first_run.py`` has them.
"""


@pytest.fixture(scope="session")
def dask_client() -> Iterator[DaskClient]:
    """``dask_client(n_workers, processes=True)``: a client of a local cluster of one-thread workers.

    Clusters are started when first asked for, shared by the whole session, and closed at its end.  Do not harm
    them: a test that kills workers starts its own.  The client is never the default one.
    """
    clients: dict[tuple[int, bool], Client] = {}
    with ExitStack() as stack:

        def make(n_workers: int = 2, processes: bool = True) -> Client:
            key = (n_workers, processes)
            if key not in clients:
                cluster = stack.enter_context(_local_cluster(n_workers, processes))
                clients[key] = stack.enter_context(Client(cluster, set_as_default=False))
                stuck.CLIENTS.add(clients[key])
            return clients[key]

        yield make


@pytest.fixture(autouse=True)
def no_client_left() -> Iterator[None]:
    """A test leaves no current client of Dask's behind: others that name none would compute on its cluster."""
    yield
    try:
        left = default_client()
    except ValueError:
        return
    left.close()  # of a test that failed: the next ones shall not fail for it
    pytest.fail(f"{left} was left as the current client")


@pytest.fixture
def url() -> Iterator[str]:
    """A run on an object store of its own, in fsspec's memory."""
    bucket = f"bucket-{uuid4().hex}"
    yield f"memory://{bucket}/run"
    fs = fsspec.filesystem("memory")
    for path in fs.find(f"/{bucket}"):
        fs.rm_file(path)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """URL of an empty bucket, on a server of this machine that forgets all when the tests end."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    known = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    logger = logging.getLogger("werkzeug")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "level", logging.ERROR)
        for name, value in known.items():
            patch.setenv(name, value)
        # a file system of another module, kept by fsspec, would look for that module's server; moto keeps its buckets
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        bucket = f"bucket-{uuid4().hex}"
        fsspec.filesystem("s3").mkdir(bucket)
        yield f"s3://{bucket}"
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


@pytest.fixture
def first_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next cluster is as the first of its process: an earlier one left variables for workers in the environment."""
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_cluster() -> Iterator[DaskClient]:
    """``own_cluster(n_workers)``: like ``dask_client``, with a cluster of the test's own that it may harm.

    A task on a worker of this process that asks for a client makes it the current one.  It is closed before its
    cluster: afterwards it would look for its scheduler for seconds, and still be current when the next test begins.
    """
    with ExitStack() as stack:

        def make(n_workers: int, processes: bool = True) -> Client:
            cluster = stack.enter_context(_local_cluster(n_workers, processes))
            client = stack.enter_context(Client(cluster, set_as_default=False))
            stuck.CLIENTS.add(client)
            if not processes:
                stack.callback(close_current_client)
            return client

        yield make


def close_current_client() -> None:
    """Close the current client of Dask's, if there is one."""
    try:
        current = default_client()
    except ValueError:
        return
    current.close()


@pytest.fixture(autouse=True, scope="session")
def disk_is_not_waited_for() -> Iterator[None]:
    """What is written is given to the system, which has it also after a process was killed; no test cuts the power.

    Waiting until a disk has it takes 6 ms a file, and tests write some ten thousand.  Tests of the order of writes, and
    of disks that refuse them, put their own in place of this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses a closed file too
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tests are collected without the collector of garbage, and are none for it later; and it comes seldom.

    Nine thousand tests and all that they import would be looked through again and again: a third of the time of
    collecting them, and a tenth of that of tests that compile much or read all sources.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


FIRST = (
    "topics/test_document_step.py",
    "streaming/test_truncation_free.py",
    "chains/test_runs.py",
    "sampling/test_exact.py",
    "train/test_shadows.py",
    "streaming/test_oracle.py",
    "topics/test_runs.py",
    "schedules/test_groups.py",
    "schedules/test_prior.py",
    "train/test_defaults.py",
    "train/test_priors_of_shadows.py",
    "schedules/test_reach.py",
    "faults/test_hung.py",
    "faults/test_damage.py",
    "twins/test_whole_runs.py",
    "faults/test_begin.py",
    "moves/test_toys.py",
    "moves/test_same_bits.py",
)
"""Files of tests that are run before all others, by two workers side by side.

Those that come first compile the kernels of topics, streams, chains and sampling, most of what there is to compile:
begun together by two workers, one family would be compiled by both.  The others take long for their number of tests.
"""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_itemcollected(item: pytest.Item) -> None:
    """Cases but the first of a test that is marked ``first_case`` are long."""
    if item.get_closest_marker("first_case") is not None:
        name = f"{item.nodeid.partition('[')[0]}"
        if _FIRST_CASES.setdefault(name, item.nodeid) != item.nodeid:
            item.add_marker(pytest.mark.long)


_FIRST_CASES: dict[str, str] = {}
"""The first case of each test that is marked ``first_case``."""


@pytest.hookimpl(trylast=True)  # of the tests that are run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in an order that keeps two workers busy to the end: some first, then those with the most tests."""
    files = {item: item.nodeid.split("::")[0].removeprefix("tests/") for item in items}
    n_tests = Counter(files.values())
    place = {name: i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: (place.get(files[item], len(FIRST)), -n_tests[files[item]], files[item]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that runs into its limit of time tells what its clusters were doing."""
    outcome = yield
    if call.excinfo is not None and "Timeout (>" in str(call.excinfo.value):
        outcome.get_result().sections.append(("clusters", stuck.described()))


def _local_cluster(n_workers: int, processes: bool = True) -> LocalCluster:
    """A cluster on the loopback interface, without a dashboard or memory limits."""
    with forked_workers(), dask.config.set(LEAN):  # many of them are idle for most of a session
        return LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ANY_PORT},
            memory_limit=0,
        )
