"""Groups of batches: folded together, reduced by workers or here, written down by workers or here, to the same bits."""

from __future__ import annotations

import itertools
import warnings
import weakref
from functools import cache

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.summary import Field, Summary
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.inference import FullBatch, Memoized, State, Stochastic
from bnp_dask.inference.reduction import FAN, change_of, joined, reduced, reduced_for_us, sums_left
from bnp_dask.store import RunStore
from bnp_dask.structure.base import Visit
from tests.stopping import AfterSteps

MOVES = [bnp.Birth(sample=200, refine=6), bnp.Merge(), bnp.Delete()]
FIELDS = {"N": Field(("cluster",)), "x": Field(("cluster", "feature"))}


def summary(rng, scale=1.0):
    values = {"N": scale * rng.random(3), "x": scale * rng.normal(size=(3, 2))}
    return Summary(np.arange(3), FIELDS, values)


def visit(own):
    return Visit(own, {})


@pytest.mark.parametrize("count", [1, 2, FAN, FAN + 1, 3 * FAN, FAN**2 + 5])
def test_changes_add_up_in_an_order_that_depends_on_their_number_only(count):
    rng = np.random.default_rng(count)
    pairs = [(summary(rng), summary(rng, 1e8)) for _ in range(count)]
    changes = [change_of(visit(new), old) for new, old in pairs]
    calls = []

    def join(some):
        calls.append(len(some))
        return joined(*some)

    whole = reduced(iter(changes), join)
    again = reduced(changes, lambda some: joined(*some))
    for name in FIELDS:
        exact = [sum(new[name].astype(np.longdouble) - old[name] for new, old in pairs)]
        np.testing.assert_allclose(whole.delta.value()[name], exact[0].astype(float), rtol=1e-13)
        assert np.array_equal(whole.delta.high[name], again.delta.high[name])
        assert np.array_equal(whole.delta.low[name], again.delta.low[name])
    assert max(calls, default=0) <= FAN
    assert reduced([], join) is None


@pytest.mark.parametrize("count", [2, 4, 7, 13, 16, 19])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_neighbours_may_be_added_first(count, size):
    rng = np.random.default_rng(count)
    changes = [change_of(visit(summary(rng)), summary(rng, 1e8)) for _ in range(count)]
    whole = joined(*changes)
    again = joined(*[joined(*changes[i : i + size]) for i in range(0, count, size)])
    for name in FIELDS:
        assert np.array_equal(whole.delta.high[name], again.delta.high[name])
        assert np.array_equal(whole.delta.low[name], again.delta.low[name])


@pytest.mark.parametrize(("count", "most"), [(4, 4), (16, 7), (64, 10), (78, 10), (1000, 16)])
def test_few_changes_are_held_while_many_are_added(count, most):
    held = weakref.WeakSet()

    class Item:
        def __init__(self):
            held.add(self)

    def arriving():
        for _ in range(count):
            assert len(held) < most
            yield Item()

    assert isinstance(reduced(arriving(), lambda some: Item()), Item)


def test_adding_changes_leaves_them_as_they_were():
    rng = np.random.default_rng(0)
    changes = [change_of(visit(summary(rng)), None) for _ in range(7)]
    before = [c.delta.high["x"].copy() for c in changes]
    joined(*changes)
    assert all(np.array_equal(c.delta.high["x"], b) for c, b in zip(changes, before))


def blobs(n=2400, d=3, k=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=6, size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def corpus(n=80, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(30, 0.1), size=4)
    shares = rng.dirichlet(np.full(4, 0.3), size=n)
    return np.stack([rng.multinomial(40, s @ topics) for s in shares]).astype(float)


def walks(seed=0):
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=5, size=(3, 2))
    return [means[np.repeat(rng.integers(3, size=6), 10)] + rng.normal(size=(60, 2)) for _ in range(8)]


def mixture(schedule, moves=MOVES, **more):
    model = bnp.Model(bnp.DPMixture(3.0), bnp.Gaussian())
    return go(model, blobs(), bnp.BregmanKMeans(3), schedule, moves, batch_size=200, **more)


def clear(schedule, moves=MOVES, **more):
    """A mixture so clear that a batch alone shows what to split."""
    model = bnp.Model(bnp.DPMixture(3.0), bnp.DiagGaussian())
    rng = np.random.default_rng(0)
    x = rng.normal(scale=30.0, size=(6, 3))[rng.integers(6, size=4800)] + rng.normal(size=(4800, 3))
    return go(model, x, bnp.BregmanKMeans(2), schedule, moves, batch_size=400, **more)


def topics(schedule, moves=MOVES, **more):
    from scipy import sparse

    model = bnp.Model(bnp.HDPTopics(2.0, 0.5), bnp.Multinomial(0.1))
    return go(model, sparse.csr_array(corpus()), bnp.RandomExamples(4), schedule, moves, batch_size=16, **more)


def chains(schedule, moves=MOVES, **more):
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    return go(model, walks(), bnp.ContiguousBlocks(4), schedule, moves, batch_size=120, **more)


def go(model, data, init, schedule, moves, client=None, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = client or SerialExecutor()
        return bnp.train(model, data, init=init, schedule=schedule, moves=moves, client=client, **more)


def bits(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    return rows, {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}


AT_BATCH = [bnp.Birth(where="batch", share=0.5, refine=6, min_atoms=10, start=1), bnp.Merge()]
PENDING = [bnp.Birth(where="batch", share=0.5, refine=6, min_atoms=10), bnp.Merge()]
CASES = {
    "mixture": (mixture, Memoized(laps=5, window=8), MOVES),
    "a window beyond the batches": (mixture, Memoized(laps=3, window=40), MOVES),
    "an odd window": (mixture, Memoized(laps=3, window=5), MOVES),
    "births at batches": (clear, Memoized(laps=4, window=6), AT_BATCH),
    "births at batches of the first lap": (clear, Memoized(laps=4, window=6), PENDING),
    "full batch": (mixture, FullBatch(laps=4, window=4), MOVES),
    "stochastic": (mixture, Stochastic(laps=3, window=4), []),
    "topics": (topics, Memoized(laps=4, window=4), MOVES),
    "topics, full batch": (topics, FullBatch(laps=3, window=4), MOVES),
    "chains": (chains, Memoized(laps=4, window=4), MOVES),
}


@cache
def undisturbed(name):
    make, schedule, moves = CASES[name]
    return bits(make(schedule, moves))


@pytest.mark.first_case
@pytest.mark.parametrize("name", CASES)
def test_workers_that_write_for_themselves_give_the_same_bits(tmp_path, name):
    make, schedule, moves = CASES[name]
    assert bits(make(schedule, moves, store=tmp_path / "run")) == undisturbed(name)


class Counting(SerialExecutor):
    """Counts tasks by the first words of their names: local steps and additions of the second lap."""

    def __init__(self):
        super().__init__()
        self.tasks = self.additions = 0

    def submit(self, name, function, *args):
        self.tasks += name.startswith("local_step-lap2-")
        self.additions += name.startswith("add-lap2")
        return super().submit(name, function, *args)


@pytest.mark.first_case
@pytest.mark.parametrize("effort, n_workers, tasks", [(np.inf, 1, 3), (0.0, 1, 12), (np.inf, 3, 12)])
def test_small_batches_share_a_task_where_every_worker_has_one(tmp_path, monkeypatch, effort, n_workers, tasks):
    monkeypatch.setattr("bnp_dask.inference.local_steps.SMALL_EFFORT", effort)
    monkeypatch.setattr(Counting, "n_workers", n_workers)
    client = Counting()
    found = mixture(Memoized(laps=5, window=8), store=tmp_path / "run", client=client)
    assert bits(found) == undisturbed("mixture")
    assert client.tasks == tasks


@pytest.mark.first_case
@pytest.mark.parametrize(
    "n_workers, effort, numbers, tasks",
    [
        (1, np.inf, np.inf, 2),  # eight and four of twelve
        (1, 0.0, np.inf, 3),  # four are as much as a task should do
        (1, np.inf, 0, 3),  # more would be added by tasks of their own
        (2, np.inf, np.inf, 3),
        (4, np.inf, np.inf, 12),
    ],
)
def test_tasks_of_many_batches(tmp_path, monkeypatch, n_workers, effort, numbers, tasks):
    monkeypatch.setattr("bnp_dask.inference.local_steps.ROUND_EFFORT", effort)
    monkeypatch.setattr("bnp_dask.inference.local_steps.SLIGHT", numbers)
    monkeypatch.setattr(Counting, "n_workers", n_workers)
    client = Counting()
    found = mixture(CASES["a window beyond the batches"][1], store=tmp_path / "run", client=client)
    assert bits(found) == undisturbed("a window beyond the batches")
    assert client.tasks == tasks


@pytest.mark.first_case
@pytest.mark.parametrize("numbers, few, additions", [(np.inf, 16, 0), (np.inf, 4, 3), (0, 16, 3), (np.inf, 1, 3)])
def test_workers_add_what_is_much_or_of_many(tmp_path, monkeypatch, numbers, few, additions):
    monkeypatch.setattr("bnp_dask.inference.local_steps.SMALL_EFFORT", 0.0)
    monkeypatch.setattr("bnp_dask.inference.local_steps.SLIGHT", numbers)
    monkeypatch.setattr("bnp_dask.inference.local_steps.FEW", few)
    client = Counting()
    found = mixture(CASES["a window beyond the batches"][1], store=tmp_path / "run", client=client)
    assert bits(found) == undisturbed("a window beyond the batches")
    assert client.additions == additions


@pytest.mark.parametrize("count, most, left", [(1, 4, 1), (4, 4, 1), (5, 4, 2), (16, 4, 4), (17, 4, 1), (17, 5, 5)])
def test_what_workers_leave_to_add_is_little(count, most, left):
    parts = reduced_for_us(range(count), lambda groups: [tuple(some) for some in groups], most)
    assert len(parts) == left
    assert reduced(parts, tuple) == reduced(range(count), tuple)  # nested in the same way


@pytest.mark.parametrize("n_tasks, n_workers, numbers, left", [
    (8, 2, 100, FAN),  # two levels, and each worker has two of the other group before it
    (8, 8, 2**22, 8),  # as much as may come
    (8, 8, 2**25, FAN),  # never less than before
    (100, 50, 429_000, 78),
])  # fmt: skip
def test_sums_are_left_where_workers_would_be_waited_for(n_tasks, n_workers, numbers, left):
    assert sums_left(n_tasks, n_workers, numbers) == left


ADDED = ("mixture", "births at batches", "full batch", "topics", "chains")
"""One run for each structure and schedule whose workers add."""


@pytest.mark.first_case
@pytest.mark.parametrize("name", [n if n in ADDED else pytest.param(n, marks=pytest.mark.long) for n in CASES])
def test_the_bits_do_not_depend_on_who_adds(tmp_path, monkeypatch, name):
    monkeypatch.setattr("bnp_dask.inference.local_steps.SLIGHT", 0)
    make, schedule, moves = CASES[name]
    assert bits(make(schedule, moves, store=tmp_path / "run")) == undisturbed(name)


@pytest.mark.parametrize("where", ["memory", "run directory"])
def test_a_group_that_is_sent_back_is_counted_once(tmp_path, monkeypatch, where):
    attempt, count = State.attempt, itertools.count()

    def moody(state, change):
        return next(count) % 3 != 0 and attempt(state, change)

    monkeypatch.setattr(State, "attempt", moody)
    store = tmp_path / "run" if where == "run directory" else None
    result = mixture(Memoized(laps=6, window=4), store=store)
    actions = [row["action"] for row in result.history]
    assert "recomputed" in actions
    exact = [row["elbo"] for row in result.history if row["exact"]]
    assert np.diff(exact).min() > -1e-8 * abs(exact[-1])
    # the totals are those of all atoms assigned once, with whatever was kept and sent back
    assert result.history[-1]["atoms"] == pytest.approx(2400.0, rel=1e-12)
    if where == "run directory":
        total = 0.0
        last = RunStore.view(store).load()
        for entry in last.listing.entries():
            arrays, _ = RunStore.view(store).get_summary(*entry)
            total += arrays["value.N"].sum()
        assert total == pytest.approx(2400.0, rel=1e-12)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", ["mixture", "births at batches", "births at batches of the first lap", "full batch", "topics"]
)
def test_stopped_in_the_middle_of_a_lap_with_workers_writing(tmp_path, name):
    make, schedule, moves = CASES[name]
    whole = undisturbed(name)
    for at in (3,):
        store = tmp_path / f"run{at}"
        make(schedule, moves, store=store, callbacks=[AfterSteps(at)])
        assert bits(make(schedule, moves, store=store, resume=True)) == whole
    other = make(schedule, moves, store=tmp_path / "threads", client=ThreadExecutor(2))
    assert bits(other) == whole


@pytest.mark.parametrize("at", [5, 6])
def test_stopped_with_batches_in_flight_that_are_older_than_a_birth(tmp_path, at):
    """Their old statistics are brought up to date as far as their posterior goes, not to the clusters born since."""
    name = "births at batches"
    make, schedule, moves = CASES[name]
    make(schedule, moves, store=tmp_path / "run", callbacks=[AfterSteps(at)])
    found = RunStore.view(tmp_path / "run").load()
    seen, edits = [seen for _, seen in found.state["in_flight"]], found.state["edits"]
    assert edits[min(seen) :] and all(kind == "InsertEmpty" for kind, _ in edits[min(seen) :])
    assert bits(make(schedule, moves, store=tmp_path / "run", resume=True)) == undisturbed(name)
