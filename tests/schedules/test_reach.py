"""Workers that reach the run directory or do not, task by task: whoever keeps the statistics, the bits are the same."""

from __future__ import annotations

import logging

import pytest

from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.store import SharedFiles
from tests.schedules.test_groups import CASES, Counting, bits, undisturbed
from tests.stopping import AfterSteps

PUT, GET = SharedFiles.put, SharedFiles.get

FAILS = {
    "none reaches it": lambda verb, batch, visit: True,
    "none may write": lambda verb, batch, visit: verb == "put",
    "none can read what others wrote": lambda verb, batch, visit: verb == "get",
    "some do": lambda verb, batch, visit: (batch * 7 + visit * 3) % 4 == 0,
    "most do not": lambda verb, batch, visit: (batch * 7 + visit * 3) % 4 != 0,
    "it fills up": lambda verb, batch, visit: verb == "put" and visit >= 2,
    "it comes later": lambda verb, batch, visit: visit < 2,
}


@pytest.fixture
def failing(monkeypatch):
    """``failing(when)``: the run directory is out of reach of tasks when ``when(verb, batch, visit)``."""

    def patch(when):
        def put(self, batch, visit, *rest):
            if when("put", batch, visit):
                raise StoreError(f"no room for batch {batch} at visit {visit}")
            return PUT(self, batch, visit, *rest)

        def get(self, batch, visit, *rest, late=False):
            if when("get", batch, visit):
                raise StoreError(f"no way to batch {batch} at visit {visit}")
            return GET(self, batch, visit, *rest, late=late)

        monkeypatch.setattr(SharedFiles, "put", put)
        monkeypatch.setattr(SharedFiles, "get", get)

    return patch


def run(tmp_path, name, **more):
    make, schedule, moves = CASES[name]
    return make(schedule, moves, store=tmp_path / "run", **more)


def pairs(names, ways, short):
    """All pairs of a case and of how it fails; those that are not ``short`` are long."""
    return [
        pytest.param(name, how, marks=() if (name, how) in short or name in short else pytest.mark.long)
        for name in names
        for how in ways
    ]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "how"),
    pairs(
        CASES,
        ["none reaches it", "some do"],
        {
            *("mixture", "births at batches"),
            *((name, "none reaches it") for name in ("full batch", "stochastic", "topics, full batch")),
            *((name, "some do") for name in ("an odd window", "topics", "chains")),
        },
    ),
)
def test_the_bits_do_not_depend_on_reach(tmp_path, failing, name, how):
    failing(FAILS[how])
    assert bits(run(tmp_path, name)) == undisturbed(name)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "how"),
    pairs(
        ["mixture", "births at batches", "topics", "topics, full batch", "chains"],
        [how for how in FAILS if how not in ("none reaches it", "some do")],
        {
            *(("mixture", how) for how in ("none may write", "most do not", "it comes later")),
            *(("topics", "none can read what others wrote"), ("chains", "it fills up")),
        },
    ),
)
def test_the_bits_do_not_depend_on_how_it_fails(tmp_path, failing, name, how):
    failing(FAILS[how])
    assert bits(run(tmp_path, name)) == undisturbed(name)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "how"),
    pairs(
        ["mixture", "a window beyond the batches", "topics", "chains"],
        ["some do", "most do not"],
        {"a window beyond the batches", ("topics", "some do"), ("mixture", "most do not")},
    ),
)
def test_what_waits_to_be_added_passes_through_workers(tmp_path, failing, monkeypatch, name, how):
    """Tasks add what is there, and hand on the rest in its place; some visit several batches."""
    monkeypatch.setattr("bnp_dask.inference.local_steps.SLIGHT", 0)
    failing(FAILS[how])
    assert bits(run(tmp_path, name)) == undisturbed(name)


@pytest.mark.parametrize("effort", [0.0, float("inf")])
def test_tasks_of_one_and_of_many_batches(tmp_path, failing, monkeypatch, effort):
    monkeypatch.setattr("bnp_dask.inference.local_steps.SMALL_EFFORT", effort)
    failing(FAILS["some do"])
    name = "a window beyond the batches"
    assert bits(run(tmp_path, name)) == undisturbed(name)


@pytest.mark.parametrize("name", ["mixture", "topics", pytest.param("chains", marks=pytest.mark.long)])
def test_threads_of_which_some_reach_it(tmp_path, failing, name):
    failing(FAILS["some do"])
    client = ThreadExecutor(2)
    assert bits(run(tmp_path, name, client=client)) == undisturbed(name)
    client.close()


class Visits(Counting):
    """Counts local steps of all laps, and sums made by tasks."""

    def __init__(self):
        super().__init__()
        self.visits = self.sums = 0

    def submit(self, name, function, *args):
        self.visits += name.startswith("local_step")
        self.sums += name.startswith("add-")
        return super().submit(name, function, *args)


def test_states_of_documents_go_along_once_none_reaches_it(tmp_path, failing, monkeypatch):
    """Only the first tasks that need them come back empty-handed; from then on nothing is left to workers."""
    monkeypatch.setattr("bnp_dask.inference.local_steps.SLIGHT", 0)
    usual, lonely = Visits(), Visits()
    run(tmp_path / "usual", "topics", client=usual)
    failing(FAILS["none reaches it"])
    assert bits(run(tmp_path / "lonely", "topics", client=lonely)) == undisturbed("topics")
    assert lonely.visits == usual.visits  # in the first lap there are none, so that it is known before they matter
    assert usual.sums > 0
    assert lonely.sums <= 2  # those of the groups that were sent before it was known


def test_states_of_documents_follow_when_reach_is_lost(tmp_path, failing):
    """In the second lap: the groups in flight then are visited again, with the states that their tasks lacked."""
    usual, lonely = Visits(), Visits()
    run(tmp_path / "usual", "topics", client=usual)
    failing(lambda verb, batch, visit: visit >= 1 or verb == "get")
    assert bits(run(tmp_path / "lonely", "topics", client=lonely)) == undisturbed("topics")
    assert usual.visits < lonely.visits <= usual.visits + 4  # the window


@pytest.mark.long
def test_a_resumed_run_finds_what_the_coordinator_kept(tmp_path, failing):
    failing(FAILS["most do not"])
    for name in ("mixture", "topics", "chains"):
        assert run(tmp_path / name, name, callbacks=[AfterSteps(5)]).reason == "stopped by a callback"
        assert bits(run(tmp_path / name, name, resume=True)) == undisturbed(name)


def test_it_is_said_once_and_with_the_reason(tmp_path, failing, caplog):
    failing(FAILS["most do not"])
    with caplog.at_level(logging.INFO, "bnp_dask"):
        run(tmp_path, "mixture", client=SerialExecutor())
    said = [m for m in caplog.messages if "a worker does not keep its batches' statistics itself" in m]
    assert len(said) == 1
    assert "no room for batch" in said[0]


def test_a_file_that_nobody_can_use_is_an_error_that_names_it(tmp_path, failing, monkeypatch):
    """A worker that cannot read a summary leaves it to the coordinator, which says so when it cannot either."""
    from bnp_dask.store import RunStore

    failing(lambda verb, batch, visit: False)
    original = SharedFiles.put

    def put(self, batch, visit, *rest):
        receipt = original(self, batch, visit, *rest)
        if (batch, visit) == (3, 1):
            file = self.files.path(batch, visit, receipt)
            file.write_bytes(file.read_bytes()[:-1])
        return receipt

    monkeypatch.setattr(SharedFiles, "put", put)
    with pytest.raises(StoreError, match=r"batch 3 at visit 1 cannot be used: .*00000003-000001-.* is damaged"):
        run(tmp_path, "mixture")
    assert RunStore.view(tmp_path / "run").load() is not None
