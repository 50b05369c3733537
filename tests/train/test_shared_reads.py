"""Several starts read each batch once: by one task, whose results are those of tasks of their own."""

from __future__ import annotations

from collections import Counter

import pytest

import bnp_dask as bnp
from bnp_dask.allocation import DPMixture, FiniteMixture
from bnp_dask.data.base import NamedReader
from bnp_dask.errors import NumericalError, SettingError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.inference.shared_reads import SharedReads
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.inputs.settings import SEEDS, start_of_seed
from bnp_dask.model import Model
from bnp_dask.observation import Gaussian
from bnp_dask.training import alternatives
from bnp_dask.training.memory_plan import MemoryPlan
from bnp_dask.training.train import train
from tests.train.test_starts import KINDS, bits, go, nine_clusters, rows_of

N_BATCHES = 5
MIXTURE = {"init": BregmanKMeans(9), "batch_size": 60, "rng": 5}


@pytest.fixture
def reads(monkeypatch):
    """How often each batch was read."""
    counts = Counter()
    fetch = NamedReader.fetch

    def counting(reader):
        counts[reader.name] += 1
        return fetch(reader)

    monkeypatch.setattr(NamedReader, "fetch", counting)
    return counts


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
@pytest.mark.parametrize("make", [Memoized, FullBatch, Stochastic])
def test_four_starts_read_each_batch_once_in_a_lap(make, reads, monkeypatch):
    def read_in(laps, n_init):
        before = Counter(reads)
        schedule = make(laps=laps, window=4, tolerance=0.0, count_tolerance=0.0)
        train(
            Model(FiniteMixture(), Gaussian()), nine_clusters(), schedule=schedule, n_init=n_init, moves=(), **MIXTURE
        )
        return reads - before

    monkeypatch.setattr(alternatives, "LAPS", 3)
    for laps in (2, 4):  # beyond the third lap there is one start left
        extra = read_in(laps + 1, 4) - read_in(laps, 4)
        assert sorted(extra.values()) == [1] * N_BATCHES
        assert extra == read_in(laps + 1, 1) - read_in(laps, 1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["mixture with moves", "topics", "chains"])
def test_starts_on_threads_and_on_dask_have_the_bits_of_this_thread(kind, dask_client, monkeypatch):
    monkeypatch.setattr(alternatives, "LAPS", 3)
    model, data, more = KINDS[kind]
    whole = go(model, data(), rng=5, n_init=3, **more)
    for executor in (ThreadExecutor(2), DaskExecutor(dask_client(2), kind.replace(" ", "-"))):
        result = go(model, data(), rng=5, n_init=3, **{**more, "client": executor})
        assert bits(result) == bits(whole) and rows_of(result) == rows_of(whole)
        assert result.starts == whole.starts
        executor.close()


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_starts_of_one_seed_visit_batches_in_one_order():
    seeds = [start_of_seed(7, number) for number in range(3)]
    assert seeds[0] == 7 and len(set(seeds)) == 3 and {seed % SEEDS for seed in seeds} == {7}
    assert start_of_seed(seeds[2], 1) == start_of_seed(7, 3)

    def order(seed):
        model, schedule = Model(FiniteMixture(), Gaussian()), Memoized(3, window=1)
        result = train(model, nine_clusters(), schedule=schedule, **{**MIXTURE, "rng": seed})
        return [row["batch"] for row in result.history]

    assert order(seeds[0]) == order(seeds[1]) != order(8)


def three_states():
    shared = SharedReads(SerialExecutor())
    return shared, [shared.for_one() for _ in range(3)]


def name_of(load, number):
    return load().name, number


def failing(load):
    raise ValueError(load().name)


def refusing(load):
    raise NumericalError(f"{load().name}: not finite")


def total(*numbers):
    return sum(numbers)


def number_of(load, number):
    load()
    return number


@pytest.fixture
def load():
    source = bnp.as_source(nine_clusters(), batch_size=60)
    return lambda batch: NamedReader(source.reader(batch), f"array batch {batch}")


def test_tasks_that_read_the_same_become_one_and_others_stay(load, reads):
    shared, faces = three_states()
    handles = [[face.submit("look", name_of, load(b), b) for b in (0, 1)] for face in faces]
    plain = faces[0].submit("add", total, 1, 2)
    assert faces[0].result(plain) == 3
    shared.send()
    names = [[face.result(handle)[1] for handle in some] for face, some in zip(faces, handles, strict=True)]
    assert names == [[0, 1]] * 3 and set(reads.values()) == {1}
    assert faces[0].results_together([faces[0].submit("look", name_of, load(3), 3)])[0][1] == 3


def test_a_state_that_cannot_wait_sends_its_own_tasks_alone(load, reads):
    shared, (one, two, _) = three_states()
    others = two.submit("look", name_of, load(0), 2)
    assert one.result(one.submit("look", name_of, load(0), 1))[1] == 1
    assert sum(reads.values()) == 1
    shared.send()
    assert two.result(others)[1] == 2 and sum(reads.values()) == 2


class Sent(SerialExecutor):
    """Notes the names of the tasks that it is sent."""

    def __init__(self):
        super().__init__()
        self.names = []

    def submit(self, name, function, *args):
        self.names.append(name)
        return super().submit(name, function, *args)


def test_what_was_sent_is_sent_once(load):
    executor = Sent()
    shared = SharedReads(executor)
    one, two = shared.for_one(), shared.for_one()
    both = [face.submit(name, name_of, load(0), 1) for face, name in ((one, "a"), (two, "b"))]
    for _ in range(2):
        shared.send()
        assert executor.names == ["a"]
    alone = [face.submit(name, name_of, load(1), 2) for face, name in ((one, "c"), (two, "d"))]
    for _ in range(2):
        shared.send(one)
        assert executor.names == ["a", "c"]
    assert two.results_together([both[1], alone[1]])[1][1] == 2
    shared.send()
    assert executor.names == ["a", "c", "d"]


def test_tasks_are_joined_by_reads_of_any_of_them(load):
    executor = Sent()
    shared = SharedReads(executor)
    one, two, three = (shared.for_one() for _ in range(3))
    first = one.submit("a", name_of, load(0), 1)
    both = two.submit("b", lambda *loads: len({each().name for each in loads}), load(0), load(1))
    last = three.submit("c", name_of, load(1), 3)
    apart = three.submit("d", name_of, load(2), 4)
    shared.send()
    assert executor.names == ["a", "d"]
    assert (one.result(first)[1], two.result(both), three.result(last)[1], three.result(apart)[1]) == (1, 2, 3, 4)


def test_what_waits_is_an_argument_of_other_tasks(load):
    shared, (one, two, _) = three_states()
    mine = [one.submit("look", number_of, load(0), number) for number in (1, 2)]
    theirs = two.submit("look", number_of, load(0), 5)
    shared.send()
    assert one.result(one.submit("add", total, *mine)) == 3
    assert two.result(two.submit("add", total, theirs, 1)) == 6


def test_what_needs_a_task_that_waits_waits_too(load, reads):
    shared, faces = three_states()
    sums = []
    for face in faces:
        some = [face.submit("look", number_of, load(0), number) for number in (1, 2)]
        half = face.submit("add", total, *some)
        sums.append(face.submit("add", total, half, 10))
    assert not reads
    shared.send()
    assert [face.result(handle) for face, handle in zip(faces, sums, strict=True)] == [13, 13, 13]
    assert sum(reads.values()) == 1
    alone = faces[0].submit("add", total, faces[0].submit("look", number_of, load(1), 4))
    assert faces[0].result(alone) == 4


def test_errors_of_joint_tasks_come_out(load):
    shared, (one, two, _) = three_states()
    handles = [one.submit("look", failing, load(0)), two.submit("look", name_of, load(0), 1)]
    shared.send()
    with pytest.raises(ValueError, match="array"):
        one.result(handles[0])


def test_numbers_that_are_not_finite_are_a_matter_of_one_state(load):
    shared, (one, two, three) = three_states()
    handles = [one.submit("look", refusing, load(0)), two.submit("look", number_of, load(0), 1)]
    needs = three.submit("add", total, three.submit("look", refusing, load(0)), 1)
    shared.send()
    assert two.result(handles[1]) == 1
    for face, handle in ((one, handles[0]), (three, needs)):
        with pytest.raises(NumericalError, match="not finite"):
            face.result(handle)


def test_memory_is_planned_for_all_starts():
    plan = MemoryPlan(10**9)
    plan.require_model(100, 10**8, 10**6, n_states=3)
    with pytest.raises(SettingError, match=r"4 starts of a model of 100 clusters take 800MB .*at most 93 clusters"):
        plan.require_model(100, 10**8, 10**6, n_states=4)


@pytest.mark.long
def test_a_start_run_alone_with_a_learned_number_of_clusters():
    model = Model(DPMixture(), Gaussian())
    result = train(model, nine_clusters(), n_init=3, **MIXTURE)
    best = max(result.starts, key=lambda start: start["elbo"])
    assert bits(train(model, nine_clusters(), **{**MIXTURE, "rng": best["seed"]})) == bits(result)
