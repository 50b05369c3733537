"""Posteriors that tasks read from a file: the bits are those of a run in one process, also where the file is no use."""

from __future__ import annotations

import logging

import pytest

from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.store.run import PostedFiles
from tests.schedules.test_groups import CASES, bits, undisturbed

GET = PostedFiles.get


class Remote(SerialExecutor):
    """An executor that says it sends values to other processes; it counts posteriors that are shared."""

    is_remote = True

    def __init__(self):
        super().__init__()
        self.shared = 0

    def share(self, name, value):
        self.shared += name.startswith("posterior")
        return super().share(name, value)


def run(name, tmp_path=None, **more):
    make, schedule, moves = CASES[name]
    store = {} if tmp_path is None else {"store": tmp_path / "run"}
    client = Remote()
    return bits(make(schedule, moves, client=client, **store, **more)), client


@pytest.fixture(autouse=True)
def files_for_all(monkeypatch):
    """Small arrays lie in files too."""
    monkeypatch.setattr("bnp_dask.execute.message.SMALL", 16)


@pytest.fixture
def reads(monkeypatch):
    """Files that tasks read."""
    names = []

    def get(self, name, *rest):
        names.append(name.split("-")[0])
        return GET(self, name, *rest)

    monkeypatch.setattr(PostedFiles, "get", get)
    return names


@pytest.mark.parametrize(
    "name", ["mixture", *(pytest.param(name, marks=pytest.mark.long) for name in CASES if name != "mixture")]
)
def test_the_bits_are_the_same(tmp_path, reads, name):
    found, client = run(name, tmp_path)
    assert found == undisturbed(name)
    assert client.shared == 0
    assert {"posterior", "trials"} >= set(reads) >= {"posterior"}
    assert not (tmp_path / "run" / "posted").exists()


def test_a_run_without_a_directory_has_a_temporary_one(reads):
    found, client = run("mixture")
    assert found == undisturbed("mixture")
    assert client.shared == 0
    assert {"posterior", "trials"} == set(reads)


@pytest.mark.parametrize("stored", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["mixture", pytest.param("topics", marks=pytest.mark.long)])
@pytest.mark.parametrize("when", [0, pytest.param(7, marks=pytest.mark.long)])
def test_once_one_task_does_not_reach_it_posteriors_are_sent(tmp_path, monkeypatch, caplog, stored, name, when):
    asked = []

    def get(self, *rest):
        asked.append(rest[0])
        if len(asked) > when:
            raise StoreError("no way to it")
        return GET(self, *rest)

    monkeypatch.setattr(PostedFiles, "get", get)
    with caplog.at_level(logging.INFO, "bnp_dask"):
        found, _ = run(name, tmp_path if stored else None)
    assert found == undisturbed(name)
    told = [m for m in caplog.messages if "workers do not read posteriors from the run's directory" in m]
    assert len(told) == 1
    assert "no way to it" in told[0]
    assert len(asked) <= when + 8  # the tasks that were out


def test_a_full_disk_only_means_that_posteriors_are_sent(tmp_path, monkeypatch):
    def put(self, *rest):
        raise StoreError("no space left")

    monkeypatch.setattr(PostedFiles, "put", put)
    found, _ = run("mixture", tmp_path)
    assert found == undisturbed("mixture")
