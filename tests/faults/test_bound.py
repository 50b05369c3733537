"""What lies in a run directory is bound to its batch, visit and checksum: nothing else is taken for it at resume."""

from __future__ import annotations

import json
import logging
import re
import shutil
import warnings
import zlib
from functools import cache
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.summary import InsertEmpty, Merge, RunningTotal
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import Memoized, verify
from bnp_dask.inference.checkpoint import checksums_of
from bnp_dask.inference.state import recall
from bnp_dask.store import DamagedError, Listing, RunStore, SharedFiles
from bnp_dask.store.files import pack, seal, unpack
from tests.schedules.parts import rows_of
from tests.schedules.test_groups import CASES, bits, undisturbed
from tests.schedules.test_rows import begun
from tests.stopping import AfterLaps, AfterSteps

KINDS = ["mixture", "births at batches", "topics", "chains"]


def some(*short, of=KINDS):
    """Cases of which all but the ``short`` ones are long."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.long) for name in of]


def go(name, store, **more):
    make, schedule, moves = CASES[name]
    return make(schedule, moves, store=store, **more)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """``stopped(name)``: a run that was stopped within its third lap, with a checkpoint after every group."""

    @cache
    def make(name):
        path = tmp_path_factory.mktemp("stopped") / "run"
        groups = {"mixture": 8, "births at batches": 10, "topics": 8, "chains": 8}[name]
        assert go(name, path, callbacks=[AfterSteps(groups)], checkpoint_minutes=1e-9).reason == "stopped by a callback"
        return path

    return make


@pytest.fixture
def run(stopped, tmp_path):
    """``run(name)``: a copy of such a run."""

    def copy(name):
        shutil.copytree(stopped(name), tmp_path / name)
        return tmp_path / name

    return copy


def listings(path):
    """Newest checkpoint and the one before: files that they list, by batch."""
    store = RunStore.view(path)
    numbers = sorted((int(p.stem) for p in (path / "checkpoints").glob("*.json")), reverse=True)
    return [{b: store.summaries.path(b, v, r) for b, v, r in store._read(n).listing.entries()} for n in numbers]


def only_in_the_newest(path):
    newest, before = listings(path)
    return next(file for batch, file in newest.items() if before.get(batch) != file)


def in_both(path):
    newest, before = listings(path)
    return next(file for batch, file in newest.items() if before.get(batch) == file)


# -- wrong files --------------------------------------------------------------------------------------------------
def other_visit(path, file):
    batch = file.name.partition("-")[0]
    other = next(p for p in file.parent.glob(f"{batch}-*") if p != file)
    file.write_bytes(other.read_bytes())


def other_batch(path, file):
    other = next(p for p in sorted(file.parent.iterdir()) if p.name.partition("-")[0] != file.name.partition("-")[0])
    file.write_bytes(other.read_bytes())


def other_run(path, file):
    """The same batch at the same visit, whole, with other numbers."""
    arrays, meta = unpack(file.read_bytes(), file)
    name = next(n for n in arrays if n.startswith("value.N"))
    file.write_bytes(pack({**arrays, name: arrays[name] + 1.0}, meta))


def one_bit(path, file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def cut_short(path, file):
    file.write_bytes(file.read_bytes()[:-9])


def gone(path, file):
    file.unlink()


WRONGS = [other_visit, other_batch, other_run, one_bit, cut_short, gone]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("mixture", wrong) for wrong in WRONGS),
        ("topics", other_batch),
        *(pytest.param(name, other_batch, marks=pytest.mark.long) for name in ("births at batches", "chains")),
    ],
)
def test_a_wrong_file_sends_the_run_back_to_the_checkpoint_before(run, name, wrong):
    path = run(name)
    file = only_in_the_newest(path)
    wrong(path, file)
    result, said = go_and_listen(name, path)
    assert any(re.search(rf"{file.name} is (damaged|missing).*; going on from checkpoint", text) for text in said)
    assert bits(result) == undisturbed(name)


def go_and_listen(name, path):
    """Resume, and give what came out and the warnings, which the helpers of these runs would silence."""
    make, schedule, moves = CASES[name]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        patch.setattr(warnings, "simplefilter", lambda *args, **more: None)
        result = make(schedule, moves, store=path, resume=True)
    return result, [str(warning.message) for warning in said]


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "wrong"), [("mixture", other_run), ("topics", other_batch), ("chains", gone)])
def test_a_wrong_file_of_both_checkpoints_is_an_error_that_names_it(run, name, wrong):
    path = run(name)
    file = in_both(path)
    wrong(path, file)
    with pytest.raises(StoreError, match=rf"no checkpoint in .* is whole: .*{file.name} is (damaged|missing)"):
        go(name, path, resume=True)


# -- wrong sums ----------------------------------------------------------------------------------------------------
def rewrite(path, change):
    """Change the arrays of the newest checkpoint, with right checksums."""
    head = max((path / "checkpoints").glob("*.json"))
    arrays, meta = unpack(head.with_suffix(".npz").read_bytes(), head)
    packed = pack({**arrays, **change(arrays)}, meta)
    content = json.loads(head.read_bytes())["content"]
    content["arrays"] = {"bytes": len(packed), "crc32": zlib.crc32(packed)}
    head.with_suffix(".npz").write_bytes(packed)
    head.write_bytes(seal(content))


def scaled(factor):
    def change(arrays):
        name = next(n for n in ("total.high/value.xx", "total.high/value.x") if n in arrays)
        return {name: arrays[name] * factor}

    return change


@pytest.mark.first_case
@pytest.mark.parametrize("name", some("mixture", "topics", "chains"))
def test_a_total_that_is_not_the_sum_of_its_summaries_is_refused(run, name):
    path = run(name)
    rewrite(path, scaled(1.0 + 1e-11))
    result, said = go_and_listen(name, path)
    wrong = r"its total is not the sum of its summaries: 'x+' differs by .*; going on from checkpoint"
    assert any(re.search(wrong, text) for text in said)
    assert bits(result) == undisturbed(name)


@pytest.mark.parametrize("name", some("births at batches", "chains"))
def test_a_total_that_differs_by_rounding_is_not(run, name, caplog):
    path = run(name)
    rewrite(path, scaled(1.0 + 1e-15))
    with caplog.at_level(logging.INFO, "bnp_dask"):
        go(name, path, resume=True)
    assert any("verified " in message for message in caplog.messages)


@pytest.mark.parametrize("seed", [45, 78])
def test_sums_that_cancel_after_merges_are_no_damage(tmp_path, seed):
    """All rows end in one cluster, whose sum about their mean is rounding alone, as is what the merges left of it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(24, 2))
    weights = rng.uniform(0, 1, 24) if seed == 45 else None
    schedule = bnp.Memoized(laps=6, window=1, tolerance=0.0, count_tolerance=0.0)
    how = {"init": bnp.RandomExamples(5), "schedule": schedule, "moves": (bnp.Merge(),), "client": SerialExecutor()}
    data = {"data": x, "weights": weights, "batch_size": 24, "rng": seed, "store": tmp_path / "run"}
    model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian())
    bnp.train(model, **data, **how, callbacks=[AfterLaps(5)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        assert bnp.train(model, **data, **how, resume=True).posterior.n_clusters == 1


def test_a_list_of_other_visits_than_those_of_the_state_sends_the_run_back(run):
    path = run("mixture")
    rewrite(path, lambda arrays: {"visits": np.maximum(arrays["visits"] - 1, 0)})
    result, said = go_and_listen("mixture", path)
    assert any("lists other summaries than the ones that its state was made from" in text for text in said)
    assert bits(result) == undisturbed("mixture")


# -- what it costs ------------------------------------------------------------------------------------------------
class Recording(SerialExecutor):
    """Knows the names of tasks, and how many of those that look at summaries wait at a time."""

    def __init__(self):
        super().__init__()
        self.names, self.waiting, self.most = [], 0, 0

    def submit(self, name, function, *args):
        self.names.append(name)
        self.waiting += name.startswith("verify-batch")
        self.most = max(self.most, self.waiting)
        return super().submit(name, function, *args)

    def result(self, handle):
        self.waiting -= handle.name.startswith("verify-batch")
        return super().result(handle)


@pytest.mark.first_case
@pytest.mark.parametrize("name", some("mixture", "chains", "topics, full batch", of=[*KINDS, "topics, full batch"]))
def test_it_is_told_and_done_by_tasks_before_the_first_batch(tmp_path, caplog, monkeypatch, name):
    monkeypatch.setattr(verify, "MOST", 2)
    monkeypatch.setattr(verify, "WINDOW", 2)
    path = tmp_path / "run"
    go(name, path, callbacks=[AfterSteps(3)])
    client = Recording()
    with caplog.at_level(logging.INFO, "bnp_dask"):
        assert bits(go(name, path, resume=True, client=client)) == undisturbed(name)
    said = [message for message in caplog.messages if message.startswith("verified ")]
    n = len(RunStore.view(path).load().listing)
    assert len(said) == 1
    looks = [i for i, task in enumerate(client.names) if task.startswith("verify-batch")]
    first = next(i for i, task in enumerate(client.names) if task.startswith(("local_step", "warm-up")))
    assert len(looks) == -(-int(said[0].split()[1]) // 2)
    assert int(said[0].split()[1]) <= n
    assert max(looks) < first
    assert client.most <= 2


def test_workers_without_reach_leave_it_to_the_coordinator(run, monkeypatch):
    path = run("topics")

    def never(self, *args, late=False):
        raise StoreError("not mounted here")

    monkeypatch.setattr(SharedFiles, "get", never)
    assert bits(go("topics", path, resume=True)) == undisturbed("topics")


def test_a_run_that_has_only_started_has_nothing_to_verify(tmp_path, caplog):
    class Dies(BaseException):
        pass

    class AtOnce(AfterSteps):
        def on_start(self, info):
            raise Dies

    with pytest.raises(Dies):
        go("mixture", tmp_path / "run", callbacks=[AtOnce(1)])
    with caplog.at_level(logging.INFO, "bnp_dask"):
        assert bits(go("mixture", tmp_path / "run", resume=True)) == undisturbed("mixture")
    assert not any(message.startswith("verified") for message in caplog.messages)


def test_sums_of_many_pieces_are_those_of_one(monkeypatch):
    """Receipts of unknown size count for nothing; pieces hold at least so many and at most so many."""
    from bnp_dask.store import Listing, Receipt

    listing = Listing.of([(b, 0, Receipt(1000 if b % 2 else -1, 1)) for b in range(50)])
    seen = np.zeros(50, np.int64)
    monkeypatch.setattr(verify, "PIECE_BYTES", 3000)
    monkeypatch.setattr(verify, "FEWEST", 4)
    monkeypatch.setattr(verify, "MOST", 9)
    pieces = list(verify._pieces(listing, seen))
    assert [len(p) for p in pieces] == [6] * 8 + [2]
    assert [e.batch for p in pieces for e in p] == list(range(50))
    monkeypatch.setattr(verify, "PIECE_BYTES", 10**9)
    assert [len(p) for p in verify._pieces(listing, seen)] == [9] * 5 + [5]


def test_what_is_no_summary_of_the_run_is_named_with_its_batch():
    """A file whose checksum is right: of another program, of other clusters, or of a visit that left nothing."""
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()).with_prior(survey_batch(bnp.Batch(np.eye(3))))
    whole = model.summarize(np.arange(2), bnp.Batch(np.eye(3)), np.eye(2)[[0, 1, 1]])

    def checked(*contents, edits=()):
        shelf = SimpleNamespace(get=lambda batch, visit, receipt: (contents[batch], {}))
        entries = [verify.Entry(b, 4, None, 0) for b in range(len(contents))]
        return verify.check_summaries(model, shelf, edits, entries)

    arrays = whole.to_arrays()
    found = checked(arrays, {"states": np.zeros(3)}, arrays)
    assert (found.problem, found.n_full) == ("", 2)
    np.testing.assert_array_equal(found.total["N"], 2.0 * whole["N"])
    np.testing.assert_allclose(found.size["x"], 2.0 * np.abs(whole["x"]))
    lacking = {name: array for name, array in arrays.items() if "xx" not in name}
    told = checked(arrays, lacking).problem
    assert told.startswith("the summary of batch 1 at visit 4 is damaged (it is not of this run: ") and "xx" in told
    told = checked(arrays, edits=(Merge(0, 5),)).problem
    assert told.startswith("the summary of batch 0 at visit 4 is damaged (it is not of this run: ")
    assert "Error" not in told.split("(it is")[1]  # the words of an error of ours, without its type
    assert not checked(arrays, edits=(InsertEmpty((7,)),)).problem

    entries = [verify.Entry(0, 4, None, 0)]
    for cause, told in ((None, "cannot go on"), (DamagedError("the file is torn"), "the file is torn")):
        error = StoreError("cannot go on")
        error.__cause__ = cause
        shelf = SimpleNamespace(get=Mock(side_effect=error))
        assert verify.check_summaries(model, shelf, (), entries).problem == told


@pytest.mark.parametrize("damaged", [False, True])
def test_where_batches_left_assignments_the_sums_of_all_others_have_checksums(monkeypatch, damaged):
    """Of such a batch counts alone are known without its data, and so are those of the sum."""
    work, state = begun()
    rows_of(work, Memoized(2, window=2), state)

    def checked(model, shelf, edits, piece):
        (entry,) = piece
        own = recall(work, state, entry.batch)
        own = own.value() if isinstance(own, RunningTotal) else own
        own = verify._only(own, {"N", "H"}) if entry.batch in (2, 5) else own
        return verify.Checked(1, own, own.absolute())

    monkeypatch.setattr(verify, "MOST", 1)
    monkeypatch.setattr(verify, "check_summaries", checked)
    sums = checksums_of(state)
    sums["total"] += damaged
    listing = Listing.of_latest(state.visits, state.receipts)
    checkpoint = SimpleNamespace(listing=listing, number=3, state={"checksums": sums})
    store = SimpleNamespace(shared=None, summaries=None, path="folder")
    if damaged:
        with pytest.raises(DamagedError, match=r"checkpoint 3 of folder is damaged \(the sum 'total' over its batches"):
            verify._verify(work, store, state, checkpoint)
    else:
        verify._verify(work, store, state, checkpoint)
