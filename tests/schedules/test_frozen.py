"""What leaves the engine is read-only and stays as it is; what others wrote into all the same is not published."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.core.read_only import frozen, thawed
from bnp_dask.errors import StoreError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.training.callbacks import LogLaps
from tests.growing.parts import MODELS, begin, bits_of, day, day_of, grow

SCHEDULES = {
    "mixture": bnp.Memoized(laps=4, window=4),
    "topics": bnp.Memoized(laps=3, window=4),
    "chains": bnp.FullBatch(laps=3),
    "stochastic": bnp.Stochastic(laps=2),
    "filter": bnp.Filter(),
    "draws": bnp.Gibbs(laps=4, burn_in=1, thin=1),
}
FLAT = ("stochastic", "filter", "draws")


class Kept(LogLaps):
    """Keeps all that it gets, and copies of it."""

    def __init__(self):
        object.__setattr__(self, "laps", [])

    def on_lap(self, row, posterior):
        self.laps.append((row, posterior, json.dumps(row), arrays_in(posterior, copies=True)))


def arrays_in(value, path="", copies=False):
    """All arrays in dataclasses, mappings and sequences, by where they are."""
    if isinstance(value, np.ndarray):
        return {path: value.copy() if copies else value}
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        parts = getattr(value, "__dict__", {}).items()
    return {k: a for name, part in parts for k, a in arrays_in(part, f"{path}.{name}", copies).items()}


def trained(kind, **more):
    model = MODELS["mixture" if kind in FLAT else kind]
    data = day_of("mixture" if kind in FLAT else kind, 0)
    return bnp.train(model, data, schedule=SCHEDULES[kind], client=SerialExecutor(), **more)


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_callbacks_and_results_hold_nothing_that_can_be_written_and_find_the_same_numbers_later(kind):
    kept = Kept()
    result = trained(kind, callbacks=[kept])
    assert kept.laps
    for row, posterior, told, numbers in kept.laps:
        arrays = arrays_in(posterior)
        assert arrays and not any(array.flags.writeable for array in arrays.values())
        assert arrays.keys() == numbers.keys()
        assert all(np.array_equal(arrays[name], numbers[name], equal_nan=True) for name in arrays)
        assert json.dumps(row) == told
        with pytest.raises(TypeError, match="read-only"):
            row["elbo"] = 0.0
        with pytest.raises(TypeError, match="read-only"):
            posterior.summary.values["N"] = np.zeros(1)
    held = {"posterior": result.posterior, "draws": result.draws, "alternatives": result.alternatives}
    assert not any(array.flags.writeable for array in arrays_in(held).values())
    for row in result.history:
        with pytest.raises(TypeError, match="read-only"):
            row["moves"].append({})
        with pytest.raises(TypeError, match="read-only"):
            row.update(lap=7)
    assert arrays_in(pickle.loads(pickle.dumps(result)).posterior).keys() == arrays_in(result.posterior).keys()


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_a_callback_that_writes_into_a_posterior_is_told_and_the_run_is_unharmed(tmp_path):
    class Normalises(LogLaps):
        def on_lap(self, row, posterior):
            posterior.summary["N"][:] /= posterior.summary["N"].sum()

    with pytest.raises(ValueError, match="read-only"):
        trained("mixture", callbacks=[Normalises()], store=tmp_path / "run")
    again = trained("mixture", store=tmp_path / "run", resume=True)
    quiet = trained("mixture")
    assert again.posterior.summary["N"].tobytes() == quiet.posterior.summary["N"].tobytes()


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_older_rows_of_a_long_history_are_read_only_too(monkeypatch):
    from bnp_dask.training import history as rows

    monkeypatch.setattr(rows, "BLOCK", 2)
    result = trained("mixture")
    assert len(result.history) > 4
    with pytest.raises(TypeError, match="read-only"):
        result.history[0]["lap"] = 3
    assert json.loads(json.dumps(result.history[0])) == json.loads(result.history.to_json().splitlines()[0])


def test_frozen_values_share_memory_and_come_back():
    value = {"a": np.arange(3.0), "b": [np.zeros(2), {"c": 1}]}
    shut = frozen(value)
    assert shut["a"].base is value["a"] and not shut["a"].flags.writeable
    assert frozen(shut) is shut
    assert thawed(shut)["a"].flags.writeable
    fixed = np.frombuffer(bytes(16), np.float64)
    assert thawed(fixed) is fixed


# -- before a version is published ------------------------------------------------------------------------------------
def forced(array):
    array.setflags(write=True)
    return array


def normalised(result):
    counts = forced(result.posterior.summary["N"])
    counts /= counts.sum()


def not_finite(result):
    forced(result.posterior.summary["xx"])[0] = np.nan


def other_means(result):
    forced(result.posterior.observation.m)[:] += 1.0


@pytest.mark.parametrize("harm", [normalised, not_finite, other_means])
def test_what_on_version_writes_all_the_same_is_not_published(tmp_path, harm):
    begin(tmp_path / "run", day(0), laps=2)
    before = bits_of(tmp_path / "run")
    with pytest.raises(
        StoreError, match=r"version 1 of .*run is not published: the .* of its posterior is not the one"
    ):
        grow(tmp_path / "run", day(1), on_version=harm)
    assert bits_of(tmp_path / "run") == before
    assert grow(tmp_path / "run", day(1)).version == 1


def loses_half(total):
    total.high.values["N"][:] *= 0.5


def counts_less_than_nothing(total):
    total.high.values["N"][0] -= 2.0 * total.high.values["N"].max()


def holds_no_number(total):
    total.high.values["x"][0, 0] = np.inf


HARMS = {
    loses_half: "the mass of its total is 240, and the weights of its 8 batches come to 480",
    counts_less_than_nothing: "'N' of cluster .* is -.*, and has to be a count",
    holds_no_number: "'x' of cluster .* is inf",
}


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_total_that_is_not_that_of_its_batches_is_not_published(tmp_path, monkeypatch, harm):
    from bnp_dask.training.growing import update

    begin(tmp_path / "run", day(0), laps=2)
    before, right = bits_of(tmp_path / "run"), update.commit

    def commit(run, state, *rest):
        harm(state.total)
        return right(run, state, *rest)

    monkeypatch.setattr(update, "commit", commit)
    with pytest.raises(StoreError, match=HARMS[harm]):
        grow(tmp_path / "run", day(1))
    assert bits_of(tmp_path / "run") == before


@pytest.mark.parametrize("kind", ["mixture", "topics", "chains"])
def test_on_version_gets_a_result_that_cannot_be_written(tmp_path, kind):
    begin(tmp_path / "run", day_of(kind, 0), laps=2, model=MODELS[kind])
    got = []
    result = grow(tmp_path / "run", day_of(kind, 1), on_version=got.append)
    for one in (result, *got):
        assert not any(array.flags.writeable for array in arrays_in(one.posterior).values())
        with pytest.raises(TypeError, match="read-only"):
            one.history[0]["elbo"] = 0.0


# -- faces ------------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:.*not converged")
def test_what_an_estimator_has_learned_is_read_only():
    sequences = bnp.SequenceModel("diag_gaussian", n_states=2, max_laps=2, random_state=0)
    topics = bnp.TopicModel(n_topics=2, max_laps=2, random_state=0)
    mixture = bnp.DirichletProcessMixture("diag_gaussian", max_laps=3, random_state=0)
    counts = np.random.default_rng(0).poisson(1.0, (30, 8))
    for estimator, rows in ((mixture, day(0)), (sequences, day(0, n=60)), (topics, counts)):
        estimator.fit(rows)
        learned = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
        assert learned and not any(array.flags.writeable for array in arrays_in(learned).values())
        assert pickle.loads(pickle.dumps(estimator)).n_iter_ == estimator.n_iter_
        estimator.partial_fit(rows)


GUEST = '''
from dataclasses import dataclass
from typing import ClassVar
import bnp_dask


@bnp_dask.register
@dataclass(frozen=True)
class Sums(bnp_dask.Merge):
    """A guest that wants shares, and writes them into the counts that it was given."""

    def plan(self, context):
        counts = context.posterior.summary["N"]
        counts /= counts.sum()
'''


def test_a_guest_of_the_command_line_cannot_write_into_the_run(tmp_path):
    """The door that a job file has for code of others: a move that is imported."""
    (tmp_path / "guest.py").write_text(GUEST)
    np.save(tmp_path / "rows.npy", day(0))
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "rows.npy", "batch_size": 60},
        "schedule": {"type": "Memoized", "laps": 3},
        "moves": [{"type": "guest.Sums"}],
        "store": "run",
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "bnp_dask", "train", "job.yaml", "--import", "guest", "--quiet"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode != 0
    assert "read-only" in told.stderr
    assert not (tmp_path / "run" / "posterior.zarr").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.append(3),
        lambda held: held.extend([3]),
        lambda held: held.sort(),
        lambda held: held.__setitem__(0, 3),
        lambda held: held.__iadd__([3]),
    ],
)
def test_a_list_that_is_handed_out_equals_a_list_and_refuses_to_be_changed(change):
    held = frozen({"moves": [2, 1]})["moves"]
    with pytest.raises(TypeError, match="read-only"):
        change(held)
    assert held == [2, 1] == pickle.loads(pickle.dumps(held))
    assert json.dumps(held) == "[2, 1]"
    assert frozen(held) is held


@pytest.mark.parametrize("verb", ["__setitem__", "__delitem__", "clear", "pop", "popitem", "setdefault", "update"])
def test_a_mapping_that_is_handed_out_refuses_to_be_changed(verb):
    held = frozen({"a": 1})
    with pytest.raises(TypeError, match=r"this mapping is read-only; dict\(\.\.\.\)"):
        getattr(held, verb)(*{"__setitem__": ("b", 2), "__delitem__": ("a",), "pop": ("a",)}.get(verb, ()))
    with pytest.raises(TypeError, match="read-only"):
        held |= {"b": 2}
    again = pickle.loads(pickle.dumps(held))
    assert held == again == {"a": 1} and type(again) is type(held) and type(dict(held)) is dict
    assert frozen(held) is held


@pytest.mark.parametrize("verb", ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"])
def test_no_verb_changes_a_list_that_is_handed_out(verb):
    held = frozen([2, 1])
    with pytest.raises(TypeError, match=r"this list is read-only; list\(\.\.\.\)"):
        getattr(held, verb)(*{"append": (3,), "extend": ((3,),), "insert": (0, 3), "remove": (1,)}.get(verb, ()))
    with pytest.raises(TypeError, match="read-only"):
        del held[0]
    with pytest.raises(TypeError, match="read-only"):
        held *= 2
    assert held == [2, 1] and type(pickle.loads(pickle.dumps(held))) is type(held)


class Point(NamedTuple):
    x: np.ndarray
    name: str


@dataclass(frozen=True)
class Inner:
    a: np.ndarray
    name: str = "inner"

    @cached_property
    def twice(self):
        return 2 * self.a


@dataclass
class Slim:
    __slots__ = ("a", "b")
    a: np.ndarray
    b: int


def test_only_what_holds_arrays_or_can_be_changed_is_made_anew():
    point, inner, slim = Point(np.arange(3.0), "p"), Inner(np.arange(2.0)), Slim(np.arange(2.0), 3)
    twice = inner.twice
    shut = frozen({"point": point, "inner": inner, "slim": slim, "pair": (1, "a"), "kind": Inner})
    assert type(shut["point"]) is Point and shut["point"].name == "p" and not shut["point"].x.flags.writeable
    assert type(shut["inner"]) is Inner and not shut["inner"].a.flags.writeable
    assert shut["inner"].twice.base is twice and not shut["inner"].twice.flags.writeable
    assert type(shut["slim"]) is Slim and not shut["slim"].a.flags.writeable and shut["slim"].b == 3
    assert shut["kind"] is Inner
    for own in (point.x, inner.a, twice, slim.a):
        assert own.flags.writeable  # the engine's own arrays stay as they are
    pair = (1, "a", (None, 2.0))
    assert frozen(pair) is pair and thawed(pair) is pair and frozen(3) == 3
    plain = Inner.__new__(Inner)
    object.__setattr__(plain, "name", "none")
    assert frozen(plain) is plain
    again = thawed(shut)
    again["inner"].a[0] = 7.0
    assert inner.a[0] == 7.0 and again["point"].x.flags.writeable and again["slim"].a.flags.writeable
    assert thawed(again)["inner"] is again["inner"]
