"""What ``train`` and its relatives are given: taken where it means something, refused by name where it does not."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client, default_client

import bnp_dask as bnp
from bnp_dask.errors import BnpDaskError, ExecutionError, SettingError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inputs.settings import seed_of
from bnp_dask.model import ELSEWHERE
from bnp_dask.store import RunStore
from bnp_dask.training.run_settings import Begun

X = np.random.default_rng(0).normal(size=(90, 2))


def train(data=X, laps=2, **more):
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    more = {"init": bnp.BregmanKMeans(2), "schedule": bnp.Memoized(laps=laps, window=2), "batch_size": 30, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(model, data, **{"client": SerialExecutor(0), **more})


def elbo(**more):
    return train(**more).history[-1]["elbo"]


# -- randomness -------------------------------------------------------------------------------------------------
def test_every_source_of_randomness_is_taken_and_means_the_same_twice():
    same = {
        "seed": lambda: 7,
        "large seed": lambda: 2**127 + 1,
        "numpy's whole number": lambda: np.uint64(7),
        "SeedSequence": lambda: np.random.SeedSequence(7),
        "spawned": lambda: np.random.SeedSequence(7).spawn(2)[1],
        "Generator": lambda: np.random.default_rng(7),
        "RandomState": lambda: np.random.RandomState(7),
    }
    found = {name: elbo(rng=make()) for name, make in same.items()}
    assert found == {name: elbo(rng=make()) for name, make in same.items()}
    assert found["seed"] == found["numpy's whole number"]
    seeds = [seed_of(make()) for make in same.values()]
    assert len(set(seeds)) == len(seeds) - 1


def test_a_seed_sequence_is_not_used_up_and_a_generator_is():
    sequence, generator = np.random.SeedSequence(3), np.random.default_rng(3)
    assert seed_of(sequence) == seed_of(sequence)
    assert seed_of(generator) != seed_of(generator)


@pytest.mark.parametrize("rng", [-1, 1.5, 2.0, "7", "text", True, np.bool_(True), float("nan"), 2**160, [1], {}, 1j])
def test_what_is_no_seed_is_refused(rng):
    with pytest.raises(SettingError, match="^rng=.*needs a seed, a whole number from 0"):
        train(rng=rng)


def test_no_seed_is_another_each_time_and_is_kept_for_the_run(tmp_path):
    assert seed_of(None) != seed_of(None)
    whole = train(rng=None, laps=6, store=tmp_path / "whole", schedule=bnp.Memoized(laps=6, tolerance=0.0))
    seed = RunStore.view(tmp_path / "whole").settings["seed"]
    assert json.loads(json.dumps(seed)) == seed >= 0
    more = {"store": tmp_path / "run", "schedule": bnp.Memoized(laps=6, tolerance=0.0)}

    class Stop:
        def on_start(self, info): ...
        def on_batch(self, done): ...
        def on_end(self, reason): ...

        def on_lap(self, row, posterior):
            return row["lap"] == 3

    train(rng=seed, callbacks=[Stop()], **more)
    resumed = train(rng=None, resume=True, **more)
    assert resumed.history[-1]["elbo"] == whole.history[-1]["elbo"]
    # a directory without a run begins one
    assert train(rng=None, resume=True, store=tmp_path / "new").history


# -- clusters -----------------------------------------------------------------------------------------------------
def test_an_address_is_taken_and_its_client_closed_again(dask_client):
    client = dask_client(1)
    address = client.scheduler.address
    before = len(client.scheduler_info()["workers"])
    known = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.clients))
    posterior = train(client=address).posterior
    assert bnp.score(posterior, X, client=address) == bnp.score(posterior, X)
    np.testing.assert_array_equal(bnp.predict(posterior, X, client=address), bnp.predict(posterior, X))
    assert train(client=address).history[-1]["elbo"] == elbo()
    assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.clients)) == known
    assert len(client.scheduler_info()["workers"]) == before
    with pytest.raises(ValueError, match="[Nn]o client"):
        default_client()


@pytest.mark.parametrize("client", ["", "nonsense://x", "tcp://", "127.0.0.1:notaport", "tcp://127.0.0.1:99999999"])
def test_a_bad_address_is_refused(client):
    with pytest.raises(BnpDaskError, match="client="):
        train(client=client)


@pytest.mark.parametrize("client", [42, True, [], Client, SerialExecutor, object()])
def test_what_cannot_run_tasks_is_refused(client):
    with pytest.raises(SettingError, match="client=.*such as a distributed.Client"):
        train(client=client)


# -- the run directory ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("store", ["", "a\0b", 5, True, b"x", ["run"]])
def test_what_is_no_path_is_no_run_directory(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="^store=.*needs a path"):
        train(store=store)
    assert os.listdir(tmp_path) == []


def test_a_name_that_no_file_system_takes_is_refused(tmp_path):
    with pytest.raises(SettingError, match="at most 255"):
        train(store=tmp_path / ("x" * 300))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError):
        train(store=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


# -- the rest ---------------------------------------------------------------------------------------------------------
WRONG = {
    "model": [None, "DPMixture", bnp.DPMixture(), bnp.Model],
    "init": ["kmeans", 5, bnp.BregmanKMeans, object()],
    "schedule": ["memoized", 5, bnp.Memoized],
    "moves": ["birth", bnp.Birth(), [bnp.Birth], ["birth"], 5, {"birth": 1}],
    "callbacks": [bnp.Progress(), [bnp.Progress], ["tqdm"], 5, [object()]],
    "resume": ["yes", 1, 0.0, None],
    "checkpoint_minutes": [0, -1.0, float("nan"), float("inf"), "5", True, None],
    "on_bad_batch": ["ignore", True, None, ["raise"]],
    "batch_size": [0, -1, 2.5, True, "7", float("nan"), 10**400],
    "weights": [5, "column", np.ones(3), np.ones((90, 1)), [None] * 90, ["a"] * 90, -np.ones(90), np.ones(90) * 1j],
    "data": [5, "", None, {}, object(), [], [[1], [2, 3]], np.full((3, 2), "one"), "no\0where"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_by_name(name):
    for value in WRONG[name]:
        with pytest.raises(BnpDaskError) as caught:
            if name == "model":
                bnp.train(value, X)
            else:
                train(**({"data": X} | {name: value}))
        assert name.split("_")[0].rstrip("s") in str(caught.value) or name in ("data", "weights"), (value, caught.value)
        assert len(str(caught.value)) < 1000


def test_no_moves_may_be_said_in_several_ways():
    assert len({elbo(moves=moves) for moves in ((), [])}) == 1
    assert elbo(moves=iter([bnp.Merge()])) == elbo(moves=[bnp.Merge()])


def test_parts_of_a_model_are_instances():
    for allocation, observation in ((bnp.DPMixture, bnp.Gaussian()), (bnp.DPMixture(), bnp.Gaussian)):
        with pytest.raises(SettingError, match="found a class, needs an instance, such as"):
            bnp.Model(allocation, observation)
    for allocation, observation in (("DPMixture", "Gaussian"), (bnp.Gaussian(), bnp.DPMixture()), (None, None)):
        with pytest.raises(SettingError, match="needs an instance with a method"):
            bnp.Model(allocation, observation)
    for more in ({"estimate": "mean"}, {"estimate": True}, {"precision": None}, {"precision": ["mixed"]}):
        with pytest.raises(SettingError, match="needs"):
            bnp.Model(bnp.DPMixture(), bnp.Gaussian(), **more)


@pytest.mark.parametrize(
    "use",
    [bnp.predict, bnp.score, bnp.completion_score, bnp.collapsed_topics, bnp.survey_documents, bnp.to_pyldavis],
)
def test_a_result_is_no_posterior_and_is_told_so(use):
    result = train()
    with pytest.raises(SettingError, match="pass result.posterior"):
        use(result, X)
    with pytest.raises(SettingError, match="needs a Posterior"):
        use("posterior.zarr", X)
    with pytest.raises(SettingError, match="pass estimator.posterior_"):
        use(SimpleNamespace(posterior_=result.posterior), X)


def test_names_of_other_programs_models_are_answered_with_the_call():
    result = train()
    posterior = result.posterior
    for name, call in {
        "labels_": "bnp_dask.predict(posterior, data)",
        "predict_proba": "bnp_dask.predict(posterior, data, soft=True)",
        "score_samples": "bnp_dask.score(posterior, data)",
        "n_components": "posterior.n_clusters",
        "weights_": "posterior.weights",
        "means_": "posterior.to_xarray()",
    }.items():
        with pytest.raises(AttributeError, match=re.escape(f"Posterior has no '{name}'; use {call}")):
            getattr(posterior, name)
        with pytest.raises(AttributeError, match=re.escape(call.replace("posterior", "result.posterior"))):
            getattr(result, name)
    for name, call in {
        "n_clusters": "result.posterior.n_clusters",
        "model": "result.posterior.model",
        "save": "result.posterior.save",
        "elbo": 'result.history["elbo"]',
        "converged_": "result.converged",
    }.items():
        with pytest.raises(AttributeError, match=re.escape(call)):
            getattr(result, name)
    with pytest.raises(AttributeError, match="object has no attribute 'colour'"):
        _ = posterior.colour
    assert not hasattr(result, "means_")
    for copied in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        np.testing.assert_array_equal(bnp.predict(copied.posterior, X), bnp.predict(posterior, X))


def test_every_call_that_is_advised_for_another_programs_name_is_there():
    for call in ELSEWHERE:
        for of_package in re.findall(r"bnp_dask\.(\w+)", call):
            assert hasattr(bnp, of_package)
        for of_posterior in re.findall(r"posterior\.(\w+)", call):
            assert hasattr(bnp.Posterior, of_posterior) or of_posterior in bnp.Posterior.__dataclass_fields__
    names = " ".join(ELSEWHERE.values()).split()
    assert len(names) == len(set(names))
    assert not any(hasattr(bnp.Posterior, name) for name in names)


def test_a_row_as_a_dict_is_told_to_be_a_table_of_one_row():
    with pytest.raises(BnpDaskError, match=re.escape("one row of a table is pandas.DataFrame([data])")):
        bnp.predict(train().posterior, {"height": 1.0, "width": np.float32(2)})


def test_an_address_where_nobody_answers_is_an_error():
    with pytest.raises(ExecutionError, match="client=.*at tcp://127.0.0.1:1: Connection refused"):
        train(client="tcp://127.0.0.1:1")


@pytest.mark.parametrize("moves", [{"merge": bnp.Merge()}, bnp.Merge(), "merge"])
def test_moves_that_are_no_list_are_refused(moves):
    with pytest.raises(SettingError, match=r"moves=.*needs a list, such as"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), np.eye(4), moves=moves)


def test_only_a_run_that_is_resumed_stands_for_what_its_call_leaves_out(tmp_path):
    store = tmp_path / "run"
    model, x = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), np.random.default_rng(0).normal(size=(30, 2))
    bnp.train(model, x, init=bnp.RandomExamples(1), moves=[], rng=5, store=store)
    assert Begun.at(store, resume=True).seed() == 5
    assert Begun.at(store, resume=False) is None and Begun.at(tmp_path / "none", resume=True) is None
