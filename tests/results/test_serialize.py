"""Objects to JSON and arrays, and back."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bnp_dask.allocation import DPMixture
from bnp_dask.core.encoding import (
    first_difference,
    form_of,
    from_spec,
    require_spec,
    to_identity,
    to_spec,
    with_added,
)
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


def test_forms_are_equal_where_only_values_differ():
    def made(scale, order="C"):
        x = np.array(np.ones((2, 3)) * scale, order=order)
        return [Plan(3, scale, {"x": x, "n": np.float32(scale)}), (1, "a", None, True), float("inf") * scale]

    assert form_of(made(1.0)) == form_of(made(2.0)) == form_of(made(2.0, "F"))
    form = form_of(made(1.0))
    assert form[0]["class"] == NAME and form[0]["rate"] == "a number" and form[2] == "a number"
    assert "an array (2, 3) of kind f" in json.dumps(form) and form[1]["$tuple"][1:3] == ["str", "NoneType"]
    assert form_of(np.zeros(2)) != form_of(np.zeros(3)) and form_of(np.zeros(2)) != form_of(np.zeros(2, int))
    assert form_of(Plan(1)) != form_of(Unknown(1))


def test_an_identity_has_the_content_of_arrays():
    a, b = ({"b": np.arange(3) + n, "a": np.ones(2)} for n in (0, 1))
    spec, checksums = to_identity(a)
    assert spec == to_spec(a)[0] and list(checksums) == ["a", "b"] and checksums["b"] == zlib.crc32(a["b"].tobytes())
    assert to_identity(a) == to_identity(dict(a)) != to_identity(b)
    assert to_identity(np.asfortranarray(np.eye(2)))[1] == to_identity(np.eye(2))[1]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"$class": NAME, "fields": {"laps": {"$pickle": "x"}}}, r"run\.laps is .*needs a number, text, null"),
        ([1, {"$tuple": [2, {"$map": [["a", {}]]}]}], r"run\[1\]\[1\]\.a is "),
        ({"$map": [["a", 1], ["b"]]}, r"run is a mapping with the entry .*needs \[name, value\]"),
        ({"$map": [[3, 1]]}, "run is a mapping with the entry"),
        ({"$map": [["a", 1, 2]]}, "run is a mapping with the entry"),
        ({"$map": {}}, "run is "),
        ({"$class": 3, "fields": {}}, "run is "),
        ({"$class": NAME, "fields": []}, "run is "),
        ({"$tuple": 3}, "run is "),
        ({}, "run is "),
    ],
)
def test_a_description_is_one_before_anything_is_made_of_it(spec, words):
    with pytest.raises(StoreError, match=words):
        require_spec(spec, "run")
    for fine in (
        1,
        None,
        "a",
        [],
        to_spec([Plan(3, inner=(np.eye(2), np.inf, np.float32(1))), {"a": sparse.eye(2)}])[0],
    ):
        require_spec(fine, "run")


def test_the_first_difference_of_two_descriptions_is_told_by_its_path():
    a, b = {"x": [1, {"y": 2}], "z": 3}, {"x": [1, {"y": 4}], "z": 5}
    assert first_difference("run", a, b) == ("run.x[1].y", 2, 4)
    assert first_difference("run", [1, 2], [1, 2, 3]) == ("run", [1, 2], [1, 2, 3])
    assert first_difference("run", {"x": 1}, {"y": 1}) == ("run", {"x": 1}, {"y": 1})
    assert first_difference("run", 1, [1]) == ("run", 1, [1])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"$class": NAME, "fields": {}}, f"{NAME} needs laps, which the file does not give"),
        ({"$class": NAME, "fields": {"laps": 1, "b": 2, "a": 3}}, f"{NAME} has no setting a, b; was the file written"),
        ({"$class": NAME, "fields": []}, f"damaged description of a {NAME}: no fields"),
        ((1, 2), "found a tuple where JSON was expected"),
        ({"$array": "x"}, r"array 'x' is missing; the file has a, b"),
        ({"$float": "much"}, r"damaged description of a \$float"),
        ({"$csr": {"data": "a", "indices": "a", "indptr": "a"}, "shape": [1]}, r"damaged description of a \$csr"),
    ],
)
def test_what_cannot_be_made_of_a_description_is_told(spec, words):
    with pytest.raises(StoreError, match=words):
        from_spec(spec, {"b": np.ones(1), "a": np.ones(1)})


def test_parts_that_cannot_be_written_are_named_by_their_path():
    for value, words in (
        (np.array(["a"]), "the object is an array of <U1"),
        ({"a": {3: 1}}, "a is a mapping with the key 3; keys in files must be strings"),
        ({"a": [0, np.complex128(1)]}, "a.1 is a number of type complex128"),
        (Plan(1, inner={"b": {1}}), "inner.b is a set, which cannot be written"),
    ):
        with pytest.raises(StoreError, match=words):
            to_spec(value)
    assert to_spec(np.ones(1))[0] == {"$array": "array"} and to_spec(np.longlong(3))[0]["$scalar"] == "int64"
    assert to_spec({"a.b": [np.ones((2, 2), order="F")]})[0]["$map"][0][1] == [{"$array": "a%2Eb.0", "order": "F"}]


@dataclass(frozen=True)
class Grown:
    """A class that gained settings: optional ones are left out while they are None."""

    laps: int
    seed: int | None = field(default=None, metadata={"optional": True})
    window: int | None = field(default=4, metadata={"optional": True})
    names: list = field(default_factory=lambda: ["a"])
    hidden: int = field(init=False, default=3)


def test_settings_that_a_class_gained_have_their_defaults_unless_these_are_left_out():
    kind = f"{__name__}.Grown"
    old = {"$class": kind, "fields": {"laps": 2}}
    added = {"$class": kind, "fields": {"laps": 2, "window": 4, "names": ["a"]}}
    assert with_added(old, Grown(2)) == added == to_spec(Grown(2))[0]
    assert to_spec(Grown(2, seed=1, window=None, names=[]))[0]["fields"] == {"laps": 2, "seed": 1, "names": []}
    assert with_added({**old, "$class": "another"}, Grown(2)) == {**old, "$class": "another"}
