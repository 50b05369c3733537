"""Laps as metrics of MLflow."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.errors import SettingError


class Recorder:
    """The functions of MLflow that are used, and what they were called with."""

    def __init__(self, active=None, takes=True):
        self.active, self.takes, self.calls, self.metrics = active, takes, [], {}
        names = ("start_run", "end_run", "log_params", "set_tags", "set_tag")
        self.module = SimpleNamespace(**{name: self._recording(name) for name in names})
        self.module.active_run, self.module.log_metrics = lambda: self.active, self._log

    def _recording(self, name):
        return lambda *args, **named: self.calls.append((name, args, named))

    def _log(self, found, step):
        if not self.takes:
            raise ConnectionError("no server")
        self.metrics[step] = found

    def names(self):
        return [name for name, _, _ in self.calls]


def trained(callback):
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    x = np.random.default_rng(0).normal(size=(60, 2))
    schedule = bnp.Memoized(tolerance=0.1, count_tolerance=0.1)
    return bnp.train(model, x, init=bnp.RandomExamples(2), schedule=schedule, moves=(), callbacks=[callback])


def test_every_lap_is_logged(monkeypatch):
    fake = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", fake.module)
    result = trained(bnp.LogToMLflow("toy", params={"gamma": 1.0}))
    assert fake.names() == ["start_run", "log_params", "set_tags", "set_tag", "end_run"]
    assert fake.calls[0][2] == {"run_name": "toy"}
    assert fake.calls[1][1] == ({"n_atoms": 60, "n_batches": 1, "gamma": 1.0},)
    assert fake.calls[-2:] == [("set_tag", ("bnp_dask.reason", result.reason), {}), ("end_run", ("FINISHED",), {})]
    last = {row["lap"]: row for row in result.history}
    assert sorted(fake.metrics) == sorted(last)
    for lap, row in last.items():
        found = fake.metrics[lap]
        assert found["elbo"] == row["elbo"] and found["elbo_per_atom"] == pytest.approx(row["elbo"] / 60)
        assert found["n_clusters"] == row["n_clusters"] and not {"lap", "step", "batch"} & set(found)
        assert all(type(value) is float for value in found.values())


def test_an_active_run_stays_open_and_a_server_that_is_gone_ends_nothing(monkeypatch, caplog):
    fake = Recorder(active="mine", takes=False)
    monkeypatch.setitem(sys.modules, "mlflow", fake.module)
    result = trained(bnp.LogToMLflow())
    assert fake.names() == ["log_params", "set_tags", "set_tag"]
    told = [record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()]
    assert told == [f"MLflow did not take lap {lap}: no server" for lap in result.history["lap"].astype(int)]


def test_without_mlflow_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SettingError, match=r"bnp-dask\[mlflow\]"):
        trained(bnp.LogToMLflow())


def test_mlflow_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # in files, a database needs sqlalchemy
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    result = trained(bnp.LogToMLflow("toy"))
    client = mlflow.MlflowClient()
    run = client.search_runs(["0"])[0]
    assert run.info.status == "FINISHED" and run.info.run_name == "toy"
    points = client.get_metric_history(run.info.run_id, "elbo")
    assert [(m.step, m.value) for m in points] == [(row["lap"], row["elbo"]) for row in result.history]


class Shelf:
    """MLflow's protocol of a loader module: a copy of the data, and the module that loads it."""

    def __init__(self, folder):
        self.folder = folder

    def log_model(self, *, name, loader_module, data_path, signature, pip_requirements, registered_model_name):
        assert [spec[0] for spec in signature] == ["soft", "top"]  # MLflow passes on no parameter that is not declared
        shutil.copytree(data_path, self.folder / name / "data")
        assert pip_requirements == [f"bnp-dask=={bnp.__version__}"] and registered_model_name is None
        return lambda: import_module(loader_module)._load_pyfunc(str(self.folder / name / "data"))


def check_model(posterior, predicts):
    x = np.random.default_rng(1).normal(size=(9, 2))
    np.testing.assert_array_equal(predicts(x), bnp.predict(posterior, x))
    np.testing.assert_array_equal(predicts(x, params={"soft": True}), bnp.predict(posterior, x, soft=True))
    top = bnp.predict(posterior, x, top=2)
    found = predicts(x, params={"top": 2})
    assert list(found.columns) == ["label_1", "label_2", "resp_1", "resp_2"]
    np.testing.assert_array_equal(found.to_numpy(), np.concatenate([top.label, top.resp], axis=1))


def test_a_posterior_is_a_model_of_mlflow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", Shelf(tmp_path))
    schema = SimpleNamespace(ParamSpec=lambda *spec: spec, ParamSchema=list)
    monkeypatch.setitem(sys.modules, "mlflow.types.schema", schema)
    monkeypatch.setitem(sys.modules, "mlflow.models", SimpleNamespace(ModelSignature=lambda params: params))
    posterior = bnp_posterior()
    loaded = bnp.log_model(posterior)()
    check_model(posterior, loaded.predict)
    with pytest.raises(SettingError, match="there is no 'sofd'; there are soft and top"):
        loaded.predict(np.zeros((2, 2)), {"sofd": True})


def test_mlflow_itself_logs_and_loads_a_posterior(monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow.pyfunc", reason="mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    posterior = bnp_posterior()
    loaded = mlflow.load_model(bnp.log_model(posterior).model_uri)
    check_model(posterior, loaded.predict)


def test_log_model_without_mlflow_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with pytest.raises(SettingError, match=r"bnp-dask\[mlflow\]"):
        bnp.log_model(bnp_posterior())


def bnp_posterior():
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    x = np.random.default_rng(0).normal(size=(60, 2))
    schedule = bnp.Memoized(tolerance=0.1, count_tolerance=0.1)
    return bnp.train(model, x, init=bnp.RandomExamples(2), schedule=schedule, moves=()).posterior
