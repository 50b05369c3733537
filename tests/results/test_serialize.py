"""Objects to JSON and arrays, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bnp_dask.allocation import DPMixture
from bnp_dask.core.encoding import from_spec, to_spec, with_added
from bnp_dask.core.registry import REGISTRY, Registry, register
from bnp_dask.errors import SettingError, StoreError
from tests.results.cases import OBSERVATIONS, fitted


@register
@dataclass(frozen=True)
class Plan:
    laps: int
    rate: float = 0.5
    inner: object = None


NAME = f"{__name__}.Plan"
"""Name of the class in files."""


@dataclass(frozen=True)
class Unknown:
    laps: int


def same(a, b) -> None:
    """Equal types, values and bits, all the way down."""
    if is_dataclass(a):
        assert type(a) is type(b)
        for f in fields(a):
            same(getattr(a, f.name), getattr(b, f.name))
    elif isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes("A") == b.tobytes("A") if a.flags.f_contiguous == b.flags.f_contiguous else np.all(a == b)
        assert a.flags.c_contiguous == b.flags.c_contiguous or a.ndim < 2
    elif isinstance(a, (tuple, list)):
        assert type(a) is type(b)
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif hasattr(a, "items"):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    else:
        assert type(a) is type(b)
        assert a == b or (a != a and b != b)


def round_trip(obj, classes=REGISTRY):
    spec, arrays = to_spec(obj, classes)
    return from_spec(json.loads(json.dumps(spec, allow_nan=False)), arrays, classes)


@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_posterior_of_every_likelihood_comes_back_to_the_bit(kind):
    posterior = fitted(kind)
    same(posterior, round_trip(posterior))


def test_map_estimates_and_unset_priors_come_back():
    same(fitted("diag", estimate="map"), round_trip(fitted("diag", estimate="map")))
    same(DPMixture(gamma=3.0, top=2), round_trip(DPMixture(gamma=3.0, top=2)))
    same(OBSERVATIONS["product"], round_trip(OBSERVATIONS["product"]))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(json_like)
def test_plain_values_come_back(value):
    same(value, round_trip(value))


def test_numbers_arrays_and_sparse_matrices_come_back():
    value = {
        "scalars": (np.float64(1.5), np.float32("nan"), np.int32(3), np.bool_(True), np.uint8(2)),
        "arrays": [np.zeros((0, 3)), np.array(2.0), np.arange(4, dtype=np.int16), np.array([True])],
        "column order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "a.b": np.ones(1),
        "a": {"b": np.zeros(1)},
    }
    same(value, round_trip(value))
    counts = sparse.csr_array(np.array([[0, 2.0], [1, 0]]))
    back = round_trip({"counts": counts})["counts"]
    assert (back.toarray() == counts.toarray()).all()


def test_array_names_are_paths_and_safe_as_file_names():
    _, arrays = to_spec({"a/../b": np.ones(1), "c": (np.ones(1), DPMixture()), "": np.ones(1)})
    assert all(name and not {"/", "\\"} & set(name) for name in arrays)
    assert "c.0" in arrays


def test_settings_of_a_run_come_back():
    plan = Plan(laps=3, inner=DPMixture(2.0))
    assert round_trip(plan) == plan
    assert to_spec(plan)[0] == to_spec(plan, REGISTRY)[0]  # any class may be written, to be compared


def test_a_default_fills_a_setting_that_an_older_file_lacks():
    assert from_spec({"$class": NAME, "fields": {"laps": 2}}, {}) == Plan(laps=2)


@pytest.mark.parametrize(
    "name",
    ["os.system", "builtins.eval", "subprocess.Popen", "bnp_dask.model.Model", "Popen", "object", "__class__", "Plan"],
)
def test_class_names_off_the_list_are_refused(name):
    with pytest.raises(StoreError, match="not one that may be read"):
        from_spec({"$class": name, "fields": {"args": "touch /tmp/pwned"}}, {})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"$class": "DPMixture", "fields": {"gama": 1.0}}, "no setting gama"),
        ({"$class": "DPMixture", "fields": {"gamma": -1.0}}, "cannot be"),
        ({"$class": "Model", "fields": {}}, "needs allocation, observation"),
        ({"$class": "DPMixture"}, "damaged"),
        ({"$class": ["DPMixture"], "fields": {}}, "not one that may be read"),
        ({"$pickle": "gASV"}, "unknown kind"),
        ({"$array": "nowhere"}, "'nowhere' is missing"),
        ({"$scalar": "object_", "value": 1}, "damaged"),
        ({"$map": [1, 2]}, "damaged"),
        ({"$csr": {}, "shape": [1, 1]}, "damaged"),
        ({}, "unknown kind"),
    ],
)
def test_damaged_and_foreign_descriptions_are_refused(spec, message):
    with pytest.raises(StoreError, match=message):
        from_spec(spec, {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"f": print}, "f is a builtin_function"),
        ({"r": np.random.default_rng(0)}, "r is a Generator"),
        ({1: 2}, "key 1"),
        ({"o": np.array([object()])}, "array of object"),
        ([{"x": np.array(["a"])}], r"0\.x is an array"),
        ([Unknown(1)], "0 is a .*Unknown, which is not registered"),
        (DPMixture, "is a type"),
        (np.datetime64("2020-01-01"), "datetime64"),
    ],
)
def test_what_is_no_data_is_refused_when_written(value, message):
    with pytest.raises(StoreError, match=message):
        to_spec(value, REGISTRY)


def test_registry_refuses_two_classes_of_one_name_and_other_things():
    ours = Registry()
    ours.add(DPMixture)
    other = dataclass(type("DPMixture", (), {"__module__": "bnp_dask.elsewhere"}))
    with pytest.raises(StoreError, match="two classes are named DPMixture"):
        ours.add(other)
    with pytest.raises(StoreError, match="not a dataclass"):
        ours.add(int)


def test_registry_refuses_a_class_that_no_file_can_name():
    @dataclass(frozen=True)
    class Inner:
        laps: int

    with pytest.raises(StoreError, match="top of its module"):
        register(Inner)


def test_a_class_that_is_defined_again_takes_the_place_of_the_one_before():
    ours, again = Registry(), dataclass(type("Plan", (), {"__module__": __name__}))
    ours.add(Plan)
    ours.add(again)
    assert ours.find(NAME) is again and again in ours and Plan not in ours


@pytest.mark.parametrize(
    ("name", "advice"),
    [("nobody.Imported", "import nobody first"), ("__main__.Mine", "define Mine with @register")],
)
def test_the_error_for_a_class_that_is_not_there_says_what_to_do(name, advice):
    with pytest.raises(StoreError, match=advice):
        from_spec({"$class": name, "fields": {}}, {})


def test_setting_errors_keep_their_words():
    with pytest.raises(SettingError):
        DPMixture(gamma=-1.0)
    with pytest.raises(StoreError, match="needs a positive finite concentration"):
        from_spec({"$class": "DPMixture", "fields": {"gamma": -1.0}}, {})


@dataclass(frozen=True)
class Older:
    """:class:`Plan` before it had a rate."""

    laps: int


def test_a_description_written_before_a_setting_was_there_gets_its_default():
    def described(plan):
        return {"$class": NAME, "fields": {"laps": plan.laps}}

    now = Plan(3, 0.7, {"a": [Plan(4, 0.1)], "b": 1})
    old = {**described(now), "fields": {"laps": 3, "inner": {"$map": [["a", [described(Plan(4))]], ["b", 1]]}}}
    assert from_spec(with_added(old, now), {}) == Plan(3, 0.5, {"a": [Plan(4)], "b": 1})
    assert with_added(to_spec(now)[0], now) == to_spec(now)[0]
    assert with_added(old, Older(3)) == old
    assert with_added([old], [now, now]) == [old]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_floats_that_are_not_finite_come_back(value):
    same([float(value), 1.5], round_trip([float(value), 1.5]))
