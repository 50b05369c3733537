"""A part that could not be saved, or is no instance of what it should be, is refused before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from negbin import NegativeBinomial
from pitman_yor import PitmanYor
from smallest import UniteSmallest
from sqlite_rows import SqliteRows
from together import make_table

import bnp_dask as bnp
from bnp_dask.core import registry
from bnp_dask.core.encoding import from_spec
from bnp_dask.errors import DataError, SettingError, StoreError


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(1).poisson(4.0, (50, 3)).astype(float)


class Unregistered(NegativeBinomial):
    """A class that nobody registered."""


@dataclass(frozen=True, eq=False)
class OwnParams:
    """Parameters that nobody registered."""

    a: np.ndarray
    b: np.ndarray
    log_p: np.ndarray
    total: np.ndarray


@bnp.register
@dataclass(frozen=True, eq=False)
class Forgetful(NegativeBinomial):
    """A registered likelihood whose parameters are not."""

    def global_step(self, summary):
        params = super().global_step(summary)
        return OwnParams(params.a, params.b, params.log_p, params.total)


@bnp.register
@dataclass(frozen=True)
class HoldsCode(PitmanYor):
    """A registered allocation with a setting that is no data."""

    function: object = print


@dataclass(frozen=True)
class UnregisteredMove(UniteSmallest):
    """A move that nobody registered."""


class Tupled(SqliteRows):
    """A source whose description JSON would change."""

    def describe(self):
        return {"kind": "sqlite", "shape": (600, 3)}


class Fails:
    """A callback that sees no lap."""

    def on_start(self, info):
        raise AssertionError("the run began")

    on_batch = on_lap = on_end = on_start


def refused(data, error, match, allocation=None, observation=None, **more):
    model = bnp.Model(PitmanYor() if allocation is None else allocation, observation or NegativeBinomial())
    with pytest.raises(error, match=match):
        bnp.train(model, data, init=bnp.RandomExamples(2), callbacks=[Fails()], **more)


def test_what_could_not_be_saved_is_refused_before_the_first_lap(tmp_path, counts):
    make_table(tmp_path / "visits.db")
    store = {"store": tmp_path / "run"}
    refused(
        counts, StoreError, r"model.observation is a .*Unregistered, .*@bnp_dask.register", observation=Unregistered()
    )
    refused(counts, StoreError, r"^observation is a .*OwnParams", observation=Forgetful())
    refused(counts, StoreError, "model.allocation.function is a builtin", allocation=HoldsCode())
    refused(counts, StoreError, r"moves.0 is a .*UnregisteredMove", moves=[UnregisteredMove()], **store)
    refused(Tupled(tmp_path / "visits.db", "visits"), StoreError, "describe.* JSON does not give back", **store)


class HalfSource:
    """A source that cannot read."""

    name, n_batches, n_features, n_atoms, is_sparse = "half", 1, 2, 3, False

    def describe(self):
        return {}


def test_classes_and_missing_verbs_are_named_at_the_door(counts):
    with pytest.raises(SettingError, match=r"allocation=.*PitmanYor.*found a class.*DPMixture\(\)"):
        bnp.Model(PitmanYor, NegativeBinomial())
    incomplete = type("Incomplete", (NegativeBinomial,), {"kl": None})
    with pytest.raises(SettingError, match=r"observation=.* method kl\(\)"):
        bnp.Model(PitmanYor(), incomplete())
    refused(counts, SettingError, r"moves=.* method prepare\(\)", moves=[type("M", (UniteSmallest,), {"prepare": 0})()])
    refused(counts, SettingError, r"client=.* method share\(\)", client=object())
    refused(HalfSource(), DataError, r"method reader\(\)")
    refused(SqliteRows, DataError, "found a class")


@pytest.mark.parametrize(
    ("allocation", "beliefs"),
    [
        (bnp.HDPHMM(), "HDPHMM has no point estimate: the transitions of its states"),
        (bnp.HDPTopics(), "HDPTopics has no point estimate: the weights of its groups"),
        (bnp.LDA(), "LDA has no point estimate: the weights of its groups"),
    ],
)
def test_point_estimates_are_refused_where_there_are_none(allocation, beliefs):
    with pytest.raises(SettingError, match=beliefs):
        bnp.Model(allocation, bnp.Gaussian(), estimate="map")


def test_an_installed_package_that_announces_itself_needs_no_import(monkeypatch, tmp_path):
    (tmp_path / "announced.py").write_text(
        "import bnp_dask\nfrom dataclasses import dataclass\n\n"
        "@bnp_dask.register\n@dataclass(frozen=True)\nclass Setting:\n    value: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("announced", "announced", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.ENTRY_POINTS else [])
    found = from_spec({"$class": "announced.Setting", "fields": {"value": 3}}, {})
    assert (type(found).__module__, found.value) == ("announced", 3)
    with pytest.raises(StoreError, match="import elsewhere first"):
        from_spec({"$class": "elsewhere.Setting", "fields": {}}, {})
