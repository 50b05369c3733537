"""Batches that go bad under a run: with ``on_bad_batch="skip"`` they leave every total at the visit that finds it."""

from __future__ import annotations

import dataclasses
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.cli.run import StopWhenAsked
from bnp_dask.core.summary import RunningTotal
from bnp_dask.data.view import WithoutBatches
from bnp_dask.errors import DataError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.inference.state import recall
from tests.faults.parts import MOVES, N_BATCHES, SCHEDULES, Faulty, Killer, atoms, bits, go, hanging
from tests.faults.test_data import DAMAGES, ROWS, make_zarr


def recalled(work, state, batch):
    """Statistics of a batch as a summary."""
    own = recall(work, state, batch)
    return own.value() if isinstance(own, RunningTotal) else own


pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

EACH = 1200 // N_BATCHES


class Watch:
    """Keeps what it is shown, and does ``act(row)`` after each lap."""

    def __init__(self, act=None, stop=None):
        self.act, self.stop, self.n = act, stop, 0

    def on_start(self, info):
        pass

    def on_batch(self, done):
        self.n += 1
        return self.n == self.stop

    def on_lap(self, row, posterior):
        if self.act is not None:
            self.act(row)

    def on_end(self, reason):
        self.reason = reason


@dataclass(frozen=True)
class Gone:
    """Reads a batch of ``source`` until the file ``gone`` exists."""

    reader: Any
    gone: Path
    index: int

    def __call__(self):
        if self.gone.exists():
            raise OSError(f"part-{self.index}.bin: input/output error")
        return self.reader()


@dataclass(frozen=True)
class Vanishing:
    """Any source, of which a batch vanishes when the file ``folder / str(batch)`` is made."""

    whole: Any
    folder: Path

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole, name)

    @property
    def name(self):
        return "/data/vanishing"

    @property
    def n_batches(self):
        return self.whole.n_batches

    @property
    def n_features(self):
        return self.whole.n_features

    @property
    def is_sparse(self):
        return self.whole.is_sparse

    @property
    def n_atoms(self):
        return self.whole.n_atoms

    def reader(self, index):
        return Gone(self.whole.reader(index), self.folder / str(index), index)

    def describe(self):
        return self.whole.describe()


def after(folder, lap, *batches):
    """A callback's act: these batches vanish when a lap is over."""

    def act(row):
        if row["lap"] == lap:
            for b in batches:
                (folder / str(b)).touch()

    return act


def lost_of(result):
    """Lap in which each batch was lost, from the history."""
    return {entry["batch"]: row["lap"] for row in result.history for entry in row.get("lost", ())}


def check_never_falls(rows):
    """The objective never falls between exact rows of the same data."""
    for before, row in zip(rows[:-1], rows[1:], strict=True):
        if before.get("exact") and row.get("exact") and "lost" not in row:
            assert row["elbo"] >= before["elbo"] - 1e-9 * abs(before["elbo"])


def cases(first, second, short):
    """All pairs; those that are not ``short`` are marked as long."""
    pairs = [(a, b) for a in first for b in second]
    return [pair if pair in short else pytest.param(*pair, marks=pytest.mark.long) for pair in pairs]


MOVING, BATCHWISE = "memoized with moves", "memoized with births at batches"
WHOLE, NOISY = "full batch with moves", "stochastic"


@pytest.mark.parametrize(
    ("name", "damage"),
    cases(
        SCHEDULES,
        ["missing", "truncated", "of another codec"],
        [(NOISY, "missing"), (NOISY, "truncated"), (NOISY, "of another codec"), (MOVING, "missing")],
    ),
)
def test_a_chunk_that_is_damaged_after_a_lap(tmp_path, name, damage, caplog):
    """The file is there when the data are surveyed and in the first two laps, and then is not."""
    import zarr

    path = tmp_path / "x.zarr"
    array = zarr.create_array(path, shape=(400, 3), chunks=(ROWS, 3), dtype="f8")
    array[...] = atoms(400)

    def act(row):
        if row["lap"] == 2:
            DAMAGES[damage](path / "c" / "3" / "0")

    store = tmp_path / "run"
    data = bnp.as_source(str(path), batch_size=ROWS)
    result = go(SerialExecutor(0), name, data, on_bad_batch="skip", callbacks=[Watch(act)], store=store)
    assert lost_of(result) == {3: 3}
    [why] = result.skipped
    assert "x.zarr batch 3" in why and "c/3/0" in why and why.endswith("(from lap 3 on)")
    assert any("skipped from lap 3 on: " in m and "c/3/0" in m for m in caplog.messages)
    assert result.posterior.summary["N"].sum() == pytest.approx(350 if name != "stochastic" else 400, rel=0.2)
    assert result.history[-1]["atoms"] == pytest.approx(350, rel=1e-12)
    first = next(i for i, row in enumerate(result.history) if row.get("lost"))
    assert [row.get("skipped") for row in result.history] == [None] * first + [1] * (len(result.history) - first)
    if name != "stochastic":
        check_never_falls(list(result.history))
        assert result.posterior.summary["N"].sum() == pytest.approx(350, rel=1e-12)


@pytest.mark.parametrize(
    "name", [n if n in (NOISY, BATCHWISE) else pytest.param(n, marks=pytest.mark.long) for n in SCHEDULES]
)
def test_totals_are_those_of_the_other_batches(tmp_path, name):
    """To the last digits: nothing is left of the batch, in any field."""
    (tmp_path / "gone").mkdir()
    data = Vanishing(bnp.as_source(atoms(), batch_size=EACH), tmp_path / "gone")
    seen = {}
    schedule, moves = SCHEDULES[name]

    @dataclass(frozen=True)
    class Looking(type(schedule)):
        def run(self, work, state):
            for step in super().run(work, state):
                if step.lap_end and state.lap > 2 and not isinstance(self, FullBatch):
                    fresh = sum((recalled(work, state, b) for b in range(1, N_BATCHES)), recalled(work, state, 0))
                    for field, value in state.total.value().values.items():
                        np.testing.assert_allclose(value, fresh[field], rtol=1e-11, atol=1e-9, err_msg=field)
                    gone = recalled(work, state, 4)
                    assert all(np.all(np.asarray(v) == 0) for v in gone.values.values())
                    seen[state.lap] = True
                yield step

    looking = Looking(**{f.name: getattr(schedule, f.name) for f in dataclasses.fields(schedule)})
    act = after(tmp_path / "gone", 2, 4)
    model = bnp.Model(bnp.DPMixture(3.0), bnp.DiagGaussian())
    result = bnp.train(
        model, data, init=bnp.BregmanKMeans(2), schedule=looking, moves=moves, client=SerialExecutor(0),
        callbacks=[Watch(act)], on_bad_batch="skip",
    )  # fmt: skip
    assert lost_of(result) == {4: 3}
    assert result.history[-1]["atoms"] == pytest.approx(1200 - EACH, rel=1e-12)
    assert seen or isinstance(schedule, FullBatch)


def test_a_batch_that_is_lost_with_none_before_gives_the_model_without_it(tmp_path):
    """Lost at its first visit, in a full-batch lap: the same posterior as with its rows left out, the prior given."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "2").touch()
    x = atoms()
    source = bnp.as_source(x, batch_size=EACH)
    model = bnp.Model(bnp.DPMixture(3.0), bnp.DiagGaussian(nu=3.0, beta=np.ones(3), m=np.zeros(3), kappa=0.1))
    start = bnp.train(model, x, init=bnp.BregmanKMeans(3), schedule=FullBatch(laps=1), client=SerialExecutor())
    model = start.posterior.model
    settings = {"init": bnp.FromPosterior(start.posterior), "schedule": FullBatch(laps=3), "client": SerialExecutor(0)}

    class Late(Vanishing):
        """Gone from the second reading on: the survey still finds it."""

        def reader(self, index):
            return Once(self.whole.reader(index), self.folder, index)

    result = bnp.train(model, Late(source, tmp_path / "gone"), on_bad_batch="skip", **settings)
    rest = np.delete(x, slice(2 * EACH, 3 * EACH), axis=0)
    alone = bnp.train(model, rest, batch_size=EACH, **settings)
    assert lost_of(result) == {2: 1}
    assert result.history["elbo"] == pytest.approx(alone.history["elbo"], rel=1e-12)
    for field, value in alone.posterior.summary.values.items():
        np.testing.assert_allclose(result.posterior.summary[field], value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_objective_that_must_not_fall_is_that_of_the_other_batches(tmp_path, scale):
    """What a lost batch takes along is no gain and no fall: at small scales densities are above one, and it is much."""
    (tmp_path / "gone").mkdir()
    data = Vanishing(bnp.as_source(scale * atoms(), batch_size=EACH), tmp_path / "gone")
    before = {}

    @dataclass(frozen=True)
    class Looking(Memoized):
        def run(self, work, state):
            for step in super().run(work, state):
                if state.lap == 2:
                    rest = state.total.value()
                    for b in lost:
                        rest = rest - recalled(work, state, b)
                    before[step.row["step"]] = sum(work.model.elbo(work.model.global_step(rest), rest).values())
                yield step

    lost = (4,)
    result = bnp.train(
        bnp.Model(bnp.DPMixture(3.0), bnp.DiagGaussian()), data, init=bnp.BregmanKMeans(2), moves=(),
        schedule=Looking(laps=4, window=2, order="fixed", tolerance=0.0, count_tolerance=0.0),
        client=SerialExecutor(0), callbacks=[Watch(after(tmp_path / "gone", 2, *lost))], on_bad_batch="skip",
    )  # fmt: skip
    rows = {row["step"]: row for row in result.history}
    [found] = [row for row in result.history if row.get("lost")]
    size = sum(abs(found[t]) for t in ("data", "entropy", "allocation"))
    assert found["elbo"] - found["gain"] == pytest.approx(before[found["step"] - 1], rel=0, abs=1e-11 * size)
    assert abs(found["elbo"] - rows[found["step"] - 1]["elbo"]) > 100.0
    assert "kept" not in result.history["action"]
    check_never_falls(list(result.history))


def test_stochastic_steps_take_a_batch_for_what_is_left_of_the_data(tmp_path):
    """A batch stands for all atoms but those of lost batches, from the step on that loses them."""
    (tmp_path / "gone").mkdir()
    data = Vanishing(bnp.as_source(atoms(), batch_size=EACH), tmp_path / "gone")
    believed = {}

    @dataclass(frozen=True)
    class Looking(Stochastic):
        def run(self, work, state):
            for step in super().run(work, state):
                believed[step.row["step"]] = state.posterior.summary["N"].sum()
                yield step

    result = bnp.train(
        bnp.Model(bnp.DPMixture(3.0), bnp.DiagGaussian()), data, init=bnp.BregmanKMeans(2), moves=(),
        schedule=Looking(laps=3, window=1, tolerance=0.0, count_tolerance=0.0), client=SerialExecutor(0),
        callbacks=[Watch(after(tmp_path / "gone", 1, 2, 6))], on_bad_batch="skip",
    )  # fmt: skip
    left, gone = 1200.0, set()
    for last, row in zip(result.history[:-1], result.history[1:], strict=True):
        gone |= {entry["batch"] for entry in row.get("lost", ())}
        left = 1200.0 - EACH * len(gone)
        if row["batch"] not in gone:
            rate = row["learning_rate"]
            expected = (1.0 - rate) * believed[last["step"]] + rate * left
            assert believed[row["step"]] == pytest.approx(expected, rel=1e-12)
    assert left == 1200.0 - 2 * EACH


@dataclass(frozen=True)
class Once:
    """Reads a marked batch once."""

    reader: Any
    folder: Path
    index: int

    def __call__(self):
        mark = self.folder / f"{self.index}.read"
        if (self.folder / str(self.index)).exists() and mark.exists():
            raise OSError("gone")
        mark.touch()
        return self.reader()


SHORT = [NOISY]


@pytest.mark.parametrize("name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in SCHEDULES])
def test_the_same_bits_whoever_computes(dask_client, tmp_path, name):
    """Two batches of one group and another go bad at visits fixed by the number of their readings; also in the first
    lap and while workers keep the statistics."""
    # readings: one by the survey, one by the initialisation, one a visit
    bad = frozenset((b, call) for b, first in ((2, 3), (6, 4), (3, 3)) for call in range(first, 200))

    def data(folder):
        (tmp_path / folder).mkdir()
        return Faulty(atoms(), str(tmp_path / folder), fails=bad)

    alone = go(SerialExecutor(0), name, data("serial"), on_bad_batch="skip")
    assert set(lost_of(alone)) == {2, 3, 6}, alone.history["lap"]
    assert alone.history[-1]["atoms"] == pytest.approx(5 * EACH, rel=1e-12)
    if name != "stochastic":
        check_never_falls(list(alone.history))
    stored = go(SerialExecutor(0), name, data("stored"), on_bad_batch="skip", store=tmp_path / "alone")
    assert bits(stored) == bits(alone)
    threads = ThreadExecutor(2, 0)
    assert bits(go(threads, name, data("threads"), on_bad_batch="skip")) == bits(alone)
    threads.close()
    for n, store in ((1, None), (2, tmp_path / "two"), (4, tmp_path / "four")):
        if n == 4 and name != "memoized with births at batches":
            continue
        executor = DaskExecutor(dask_client(n), "lost", 0)
        assert bits(go(executor, name, data(f"dask{n}"), on_bad_batch="skip", store=store)) == bits(alone), n
        executor.close()


@pytest.mark.parametrize(("name", "back"), cases(SCHEDULES, [False, True], [(BATCHWISE, False), (NOISY, True)]))
def test_resume_remembers(tmp_path, name, back):
    """Stopped after the loss, resumed while the batch is gone, or when it is back: out it stays, to the same bits."""

    def data():
        return Vanishing(bnp.as_source(atoms(), batch_size=EACH), tmp_path / "gone")

    more = {"on_bad_batch": "skip", "checkpoint_minutes": 1e-9}
    (tmp_path / "gone").mkdir()
    act = after(tmp_path / "gone", 1, 1, 5)
    whole = go(SerialExecutor(0), name, data(), callbacks=[Watch(act)], store=tmp_path / "whole", **more)
    assert lost_of(whole) == {1: 2, 5: 2}
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").mkdir()
    stop = N_BATCHES + 7  # of full-batch laps the history has one row each
    if name != "full batch with moves":
        stop = 1 + max(i for i, row in enumerate(whole.history) if "lost" in row)
    first = go(SerialExecutor(0), name, data(), callbacks=[Watch(act, stop)], store=tmp_path / "run", **more)
    assert first.reason == "stopped by a callback"
    if back:
        shutil.rmtree(tmp_path / "gone")
        (tmp_path / "gone").mkdir()
    rest = go(SerialExecutor(0), name, data(), store=tmp_path / "run", resume=True, **more)
    assert bits(rest) == bits(whole)
    assert rest.skipped == whole.skipped


def test_a_run_that_stopped_before_the_visit_finds_it_gone_there(tmp_path):
    """The checkpoint knows nothing of it: the batch is left out at the visit at which the whole run left it out."""

    def data():
        return Vanishing(bnp.as_source(atoms(), batch_size=EACH), tmp_path / "gone")

    name, more = "memoized with moves", {"on_bad_batch": "skip"}
    (tmp_path / "gone").mkdir()
    act = after(tmp_path / "gone", 2, 4)
    whole = go(SerialExecutor(0), name, data(), callbacks=[Watch(act)], store=tmp_path / "whole", **more)
    assert lost_of(whole) == {4: 3}
    (tmp_path / "gone" / "4").unlink()
    n = sum(row["lap"] <= 2 for row in whole.history)
    first = go(SerialExecutor(0), name, data(), callbacks=[Watch(None, n)], store=tmp_path / "run", **more)
    assert first.history[-1]["lap"] == 2 and not lost_of(first)
    (tmp_path / "gone" / "4").touch()
    with pytest.raises(OSError, match="part-4.bin"):
        go(SerialExecutor(0), name, data(), store=tmp_path / "run", resume=True)
    rest = go(SerialExecutor(0), name, data(), store=tmp_path / "run", resume=True, **more)
    assert bits(rest) == bits(whole)


def test_other_data_are_still_noticed(tmp_path):
    """A batch that is out of reach does not hide that another has changed, nor that it came back changed."""
    path = make_zarr(tmp_path / "x.zarr")
    settings = {"batch_size": ROWS, "on_bad_batch": "skip", "store": tmp_path / "run"}
    from tests.faults.test_data import train as run

    run(str(path), **settings)
    import zarr

    held = (path / "c" / "5" / "0").read_bytes()
    (path / "c" / "5" / "0").unlink()
    array = zarr.open_array(path)
    before = array[0, 0]
    array[0, 0] = before + 1
    with pytest.raises(StoreError, match="the data changed"):
        run(str(path), resume=True, **settings)
    array[0, 0] = before
    # back in time for its visit, but not as it was
    source = WithoutBatches(bnp.as_source(str(path), batch_size=ROWS), (), doubtful=((5, 0),))
    (path / "c" / "5" / "0").write_bytes(held)
    with pytest.raises(DataError, match="batch 5.*not the same as when the run began"):
        source.reader(5)()


def test_a_hiccup_is_no_loss(tmp_path):
    """A batch that can be read at the next try is used."""
    bad = frozenset((b, call) for b in range(N_BATCHES) for call in (3, 4, 5, 9, 12))
    data = Faulty(atoms(), str(tmp_path), fails=bad)
    result = go(SerialExecutor(0), "stochastic", data, on_bad_batch="skip")
    assert bits(result) == bits(go(SerialExecutor(), "stochastic"))
    assert result.skipped == ()


def test_rows_that_go_bad_and_errors_that_are_not_the_batches(tmp_path, monkeypatch):
    """NaN in a batch that changed counts as bad; an error in computing with a good batch is an error."""
    x = atoms(400)
    np.save(tmp_path / "x.npy", x)

    def act(row):
        held = np.load(tmp_path / "x.npy", mmap_mode="r+")
        held[3 * ROWS + 7, 1] = np.nan
        held.flush()

    model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian())
    settings = {"init": bnp.BregmanKMeans(2), "schedule": Memoized(laps=3, window=3)}
    settings |= {"client": SerialExecutor(0), "on_bad_batch": "skip"}
    result = bnp.train(model, tmp_path / "x.npy", batch_size=ROWS, callbacks=[Watch(act)], **settings)
    assert lost_of(result) == {3: 2}
    assert "row 7, column 1 is nan" in result.skipped[0]
    from bnp_dask.inference import local_steps

    def fails(*args):
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr(local_steps, "visit_batch", fails)
    with pytest.raises(ZeroDivisionError):
        bnp.train(model, x, batch_size=ROWS, **settings)

    def full(*args):
        raise MemoryError

    monkeypatch.undo()
    monkeypatch.setattr(Gone, "__call__", full)
    with pytest.raises(MemoryError):
        bnp.train(model, Vanishing(bnp.as_source(x, batch_size=ROWS), tmp_path), **settings)


def test_during_the_initialisation_and_at_the_warm_up(tmp_path):
    """Gone between the survey and the start: begun without it."""
    for init in (bnp.BregmanKMeans(3), bnp.RandomExamples(3)):
        for bad in (0, 5):
            folder = tmp_path / f"{type(init).__name__}-{bad}"
            folder.mkdir()
            data = Faulty(atoms(), str(folder), fails=frozenset((bad, call) for call in range(1, 100)))
            result = go(SerialExecutor(0), "stochastic", data, init=init, on_bad_batch="skip")
            assert lost_of(result) == {bad: 1}
            assert result.history[-1]["atoms"] == pytest.approx(7 * EACH)
            assert result.history[-1]["skipped"] == 1


def test_more_than_half_is_an_error(tmp_path):
    (tmp_path / "gone").mkdir()
    data = Vanishing(bnp.as_source(atoms(), batch_size=EACH), tmp_path / "gone")
    act = after(tmp_path / "gone", 1, *range(5))
    with pytest.raises(DataError, match=r"5 of 8 batches have gone bad.*more than half.*part-\d.bin.*resume=True"):
        go(SerialExecutor(0), "stochastic", data, on_bad_batch="skip", callbacks=[Watch(act)])
    for b in range(8):
        (tmp_path / "gone" / str(b)).unlink(missing_ok=True)
    four = after(tmp_path / "gone", 1, *range(4))
    result = go(SerialExecutor(0), "memoized with moves", data, on_bad_batch="skip", callbacks=[Watch(four)])
    assert len(result.skipped) == 4


def test_without_asking_it_is_an_error(tmp_path):
    (tmp_path / "gone").mkdir()
    data = Vanishing(bnp.as_source(atoms(), batch_size=EACH), tmp_path / "gone")
    act = after(tmp_path / "gone", 2, 4)
    with pytest.raises(OSError, match="part-4.bin") as caught:
        go(SerialExecutor(0), "memoized with moves", data, callbacks=[Watch(act)])
    assert any("vanishing batch 4" in note for note in caught.value.__notes__)


# -- topics and sequences ---------------------------------------------------------------------------------------
def topics():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(12, 0.3), size=3)
    counts = np.stack([rng.multinomial(40, shares[i % 3]) for i in range(160)]).astype(float)
    return bnp.as_source(sparse.csr_array(counts), batch_size=20), bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1))


def patches():
    source = bnp.as_source(atoms(160, 2), groups=np.arange(0, 161, 4), batch_size=20)
    return source, bnp.Model(bnp.HDPTopics(), bnp.DiagGaussian())


def sequences():
    x = np.repeat(atoms(40, 2), 4, axis=0) + 0.1
    source = bnp.as_source(x, groups=np.arange(0, 161, 10), batch_size=20)
    return source, bnp.Model(bnp.HDPHMM(kappa=5.0), bnp.DiagGaussian())


MIXED = [(sequences, Memoized), (topics, FullBatch), (patches, Stochastic)]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("make", "schedule"), cases([topics, patches, sequences], [Memoized, FullBatch, Stochastic], MIXED)
)
def test_topics_and_sequences(tmp_path, dask_client, make, schedule):
    source, model = make()
    moves = () if schedule is Stochastic else MOVES
    settings = {
        "init": bnp.ContiguousBlocks(3) if make is sequences else bnp.RandomExamples(3),
        "schedule": schedule(laps=4, window=3, tolerance=0.0, count_tolerance=0.0),
        "moves": moves,
        "on_bad_batch": "skip",
    }

    def once(folder, client, store=None):
        (tmp_path / folder).mkdir()
        data = Vanishing(source, tmp_path / folder)
        act = after(tmp_path / folder, 2, 3)
        return bnp.train(model, data, client=client, callbacks=[Watch(act)], store=store, **settings)

    alone = once("serial", SerialExecutor(0))
    assert lost_of(alone) == {3: 3}
    whole = alone.history[0 if schedule is FullBatch else 7]["atoms"]
    assert alone.history[-1]["atoms"] == pytest.approx(whole * 7 / 8, rel=1e-9)
    if schedule is not Stochastic:
        check_never_falls(list(alone.history))
    executor = DaskExecutor(dask_client(2), "lost", 0)
    assert bits(once("dask", executor, tmp_path / "run")) == bits(alone)
    executor.close()


# -- with other misfortune, and for people ----------------------------------------------------------------------
@pytest.mark.long
def test_workers_die_while_batches_are_lost(warm_cluster, tmp_path):
    """The loss is computed again with all else that a dead worker held, and counted once."""
    name = "memoized with births at batches"
    bad = frozenset((b, call) for b in (2, 3) for call in range(3, 300))

    def data(folder, *hangs):
        (tmp_path / folder).mkdir()
        return Faulty(atoms(), str(tmp_path / folder), fails=bad, hangs=frozenset(hangs))

    quiet = go(SerialExecutor(0), name, data("quiet"), on_bad_batch="skip")
    assert set(lost_of(quiet)) == {2, 3}
    for attempt in range(5):
        _, client = warm_cluster(2)
        shaken = data(f"shaken{attempt}", (1, 4), (5, 4), (6, 5))
        with Killer(hanging(tmp_path / f"shaken{attempt}")).at_work() as killer:
            result = go(client, name, shaken, on_bad_batch="skip", store=tmp_path / f"run{attempt}")
        assert len(killer.killed) >= 2
        # a worker that dies between two laps may have read what comes next: then the batch is lost a lap earlier
        if lost_of(result) == lost_of(quiet):
            break
    assert bits(result) == bits(quiet)


@pytest.mark.long
def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    """What a person sees: which file, from which lap on, and what to type to go on."""
    monkeypatch.chdir(tmp_path)
    path = make_zarr(tmp_path / "x.zarr")
    held = (path / "c" / "3" / "0").read_bytes()

    def on_lap(self, row, posterior):
        (path / "c" / "3" / "0").unlink(missing_ok=True)

    monkeypatch.setattr(StopWhenAsked, "on_lap", on_lap)
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "x.zarr", "batch_size": ROWS},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 3, "tolerance": 0.0, "count_tolerance": 0.0},
        "store": "run",
        "on_bad_batch": "skip",
    }
    (tmp_path / "skip.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "skip.yaml"]) == 0
    shown = capsys.readouterr()
    assert "batches skipped: 1" in shown.out and "c/3/0" in shown.out
    assert "skipped from lap 2 on: " in shown.err and "c/3/0" in shown.err
    assert main(["resume", "run", "--laps", "4"]) == 0
    assert "skipped since lap 2: " in capsys.readouterr().err
    assert main(["report", "run", "report.html"]) == 0
    assert re.search(
        r"Batch 3</th>\s*<td[^>]*>left out from lap 2 on: .*c/3/0", (tmp_path / "report.html").read_text("utf-8")
    )

    (path / "c" / "3" / "0").write_bytes(held)
    (tmp_path / "raise.yaml").write_text(yaml.safe_dump({**job, "store": "strict", "on_bad_batch": "raise"}))
    assert main(["train", "raise.yaml"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "x.zarr batch 3" in last and "c/3/0" in last and last.endswith("go on with: bnp-dask resume strict")
    (path / "c" / "3" / "0").write_bytes(held)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["resume", "strict"]) == 0
