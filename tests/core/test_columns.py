"""Names of columns: as they are given, and as tables show them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bnp_dask.core.columns import (
    NO_ROLES,
    SHOWN,
    WHOLE,
    Columns,
    Cutting,
    Roles,
    Words,
    few,
    in_order,
    vocabulary_in,
)
from bnp_dask.errors import DataError, SettingError


@pytest.mark.parametrize(
    ("names", "widths", "shown"),
    [
        (("a", "b"), (1, 1), ("a", "b")),
        (("0", "1"), (1, 1), None),
        (("1", "0"), (1, 1), ("1", "0")),
        (("x",), (1,), ("x",)),
        (("x",), (2,), None),
        (("x",), (9,), None),
        (("y",), (2,), ("y[0]", "y[1]")),
        (("x", "y"), (2, 1), ("x[0]", "x[1]", "y")),
    ],
)
def test_names_that_say_no_more_than_positions_are_not_shown(names, widths, shown):
    assert Columns(names, (), widths).shown == shown


@pytest.mark.parametrize("names", [["a", "b", "c"], {2: "c", 0: "a", 1: "b"}, {"b": 1, "a": 0, "c": 2}])
def test_names_are_read_in_the_order_of_their_positions(names):
    assert Columns.of(names).names == ("a", "b", "c")


@pytest.mark.parametrize("names", [{0: "a", 2: "c"}, {"a": 0, "c": 2}, {"a": 1}])
def test_a_position_without_a_name_is_refused(names):
    with pytest.raises(DataError, match="no name for position"):
        Columns.of(names)


@pytest.mark.parametrize("n", [1, SHOWN - 1, SHOWN, SHOWN + 1])
def test_a_message_shows_the_first_names_and_their_number_where_some_are_left_out(n):
    names = [f"c{i}" for i in range(n)]
    rest = f", ... ({n} in all)" if n == SHOWN + 1 else ""
    assert few(names, quoted=False) == ", ".join(names[:SHOWN]) + rest
    assert few(names) == ", ".join(f"'{name}'" for name in names[:SHOWN]) + rest


def test_a_word_is_in_a_vocabulary_once():
    assert Words.of(["a", "b"]).utf8.tobytes() == b"a\nb"
    with pytest.raises(DataError, match="the vocabulary has 'b' twice"):
        Words.of(["a", "b", "c", "b"])
    with pytest.raises(DataError, match="has a line break"):
        Words.of(["a", "b\nc"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, None, None, "day"), "cut"),
        ((1.5, None, None, "day"), "cut"),
        ((None, "skip", None, "day"), "gaps"),
        ((None, None, 0.0, "day"), "step"),
        ((None, "cut", None, None), "gaps='cut' is about the column that says when each row was; name it: order="),
        ((None, None, 2.0, None), "step=2.0 is about the column"),
    ],
)
def test_where_sequences_may_be_cut_is_refused_where_it_has_no_meaning(arguments, words):
    with pytest.raises(SettingError, match=words):
        Cutting.of(*arguments)


def test_where_sequences_may_be_cut():
    assert Cutting.of(None, None, None, None) == WHOLE == Cutting(None, "refuse", None)
    assert Cutting.of(1, "ignore", 2.5, "day") == Cutting(1, "ignore", 2.5)
    assert Cutting.of(7, None, None, None) == Cutting(7)


def test_columns_have_roles():
    roles = Roles("w", "g", "t")
    assert roles.keys == ("g", "t") and roles.names == ("w", "g", "t")
    assert [roles.of(name) for name in roles.names] == ["weights", "groups", "order"]
    assert Roles(groups="g").names == ("g",) and Roles("w").names == ("w",) and NO_ROLES.names == ()
    with pytest.raises(DataError, match="'w.npy' is no column with a role, but a file; give its content"):
        Roles("w.npy")


class Vectorizer:
    def build_analyzer(self): ...


def test_a_vectorizer_gives_its_words_once_it_is_fitted():
    vectorizer = Vectorizer()
    with pytest.raises(DataError, match="Vectorizer knows no words yet; needs one that is fitted"):
        vocabulary_in(vectorizer)
    vectorizer.vocabulary_ = {"sea": 1, "hill": 0}
    assert in_order(vectorizer) == ("hill", "sea") == Columns.of(vectorizer).names
    names = ["b", "a"]
    assert in_order(names) is vocabulary_in(names) is names


TABLE = Columns(
    ("a", "x", "b"),
    ("int64", "float32", "str"),
    (1, 3, 1),
    Roles("w", "g", "t", Cutting(5, "cut", 2.0)),
    others=("text",),
    levels=(None, None, None, None, ("no", "yes")),
    on_bad_cell="missing",
)


def test_columns_of_several_numbers_have_a_feature_for_each():
    assert TABLE.n_features == 5 and TABLE.features == ("a", "x[0]", "x[1]", "x[2]", "b")
    assert TABLE.layout == (("a", 1), ("x", 3), ("b", 1)) and TABLE.coded == {"b": ("no", "yes")}
    assert str(TABLE) == "a, x, b; weights w; groups g; order t" and str(Columns.of(["a"])) == "a"
    for count, names in ((1, ("a",)), (4, ("a", "x")), (5, ("a", "x", "b"))):
        first = TABLE.first(count)
        assert first.names == names and first.n_features == count == len(first.levels)
        assert first.kinds == TABLE.kinds[: len(names)]
    assert replace(TABLE, levels=None).first(1).levels is None
    assert TABLE.with_levels({}).levels is None
    assert TABLE.with_levels({"a": ("x",)}).coded == {"a": ("x",)}
    lagged = TABLE.with_previous(2)
    assert lagged.names[3:7] == ("a (t-1)", "x (t-1)", "b (t-1)", "a (t-2)") and lagged.n_features == 15
    assert lagged.levels == TABLE.levels * 3 and lagged.kinds == TABLE.kinds * 3
    assert Columns.of(["a"]).with_previous().levels is None


def test_columns_are_read_with_or_without_weights_and_groups():
    assert TABLE.using(weights=True, groups=True).roles == TABLE.roles
    assert TABLE.using(weights=False, groups=True).roles == replace(TABLE.roles, weights=None)
    assert TABLE.using(weights=True, groups=False).roles == Roles("w")
    plain = TABLE.using(weights=False, groups=False)
    assert plain.roles == NO_ROLES and plain.others == ("text", "w", "g", "t")


def test_columns_are_found_by_their_names_and_by_position_where_there_are_none():
    found = Columns(("b", "w", "x", "a"), ("",) * 4, (1, 1, 3, 1))
    assert TABLE.positions(found, "new.csv").tolist() == [5, 2, 3, 4, 0]
    assert TABLE.positions(Columns(TABLE.names, TABLE.kinds, TABLE.widths), "new.csv") is None
    positional = Columns.of(["0", "1", "2", "3", "4"])
    assert TABLE.positions(positional, "new.csv") is None and positional.is_positional
    with pytest.raises(DataError, match=r"new.csv has 4 columns; the model was trained on 5: 'a', 'x', 'b'"):
        TABLE.positions(Columns.of(["0", "1", "2", "3"]), "new.csv")
    assert not Columns.of(["0"]).matches_by_position(["0"]) and not TABLE.matches_by_position([])


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"a": 1, "x": 2, "b": 1}, "new.csv: column 'x' holds 2 numbers; in training it held 3"),
        ({"a": 1, "b": 1}, "new.csv: no column 'x'; the model was trained on 'a', 'x', 'b'"),
        ({"b": 1}, r"new.csv: no column 'a' \(and 1 more\); the model was trained on"),
        ({"a": 1, "x": 3, "b": 1, "c": 1}, r"new.csv: column\(s\) 'c' were not in training; .* Leave them out"),
    ],
)
def test_columns_that_are_not_those_of_training_are_named(known, words):
    with pytest.raises(DataError, match=words):
        TABLE.require(known, list(known), "new.csv")
    if "c" in known:
        replace(TABLE, chosen=True).require(known, list(known), "new.csv")
        with pytest.warns(UserWarning, match=r"new.csv: column\(s\) 'c' were not in training and are left out"):
            replace(TABLE, ignores_extra=True).require(known, list(known), "new.csv")


def test_columns_that_training_knew_otherwise_are_no_extra_ones():
    known = {"a": 1, "x": 3, "b": 0, "text": 1, "w": 1, "g": 1, "t": 1}
    TABLE.require(known, list(known), "new.csv")


def test_columns_come_back_from_files():
    for columns in (TABLE, replace(TABLE, chosen=True, ignores_extra=True), Columns.of(["a", "b"])):
        facts = json.loads(json.dumps(columns.to_json()))
        again = Columns.from_json(facts)
        assert again == replace(columns, ignores_extra=False)
        assert (again.others, again.levels, again.on_bad_cell) == (columns.others, columns.levels, columns.on_bad_cell)
        assert again.to_json() == columns.to_json()
    assert set(Columns.of(["a"]).to_json()) == {"names", "kinds", "widths", "roles", "chosen"}
    facts = TABLE.to_json()
    for changes in (
        {"names": ["a", "x"]},
        {"kinds": ["a", "x"]},
        {"names": [1, 2, 3]},
        {"widths": ["one", 3, 1]},
        {"others": [3]},
        {"on_bad_cell": "skip"},
        {"levels": [3]},
        {"roles": {}},
    ):
        with pytest.raises(DataError, match="damaged description of columns"):
            Columns.from_json({**facts, **changes})
    del facts["chosen"]
    with pytest.raises(DataError, match="damaged description of columns"):
        Columns.from_json(facts)


def test_a_vocabulary_is_known_by_its_words():
    words = Words.of(["sea", "hill", "würm", "z"], {"lower": True})
    assert words.words == ("sea", "hill", "würm", "z") and len(words) == 4
    assert repr(words) == "Words(4 words: sea, hill, würm, ...)" and repr(Words.of(["a"])) == "Words(1 words: a)"
    assert words.digest == Words.of(words.words).digest != Words.of(["sea"]).digest and len(words.digest) == 32
    with pytest.raises(DataError, match=r"the word 'a\\nb' has a line break"):
        Words.of(["c", "a\nb"])
    with pytest.raises(DataError, match="the vocabulary has 'b' twice"):
        Words.of(["a", "b", "c", "b"])


@pytest.mark.parametrize("names", ["age", [], ["a", ""], ["a", 3], {0: "a", 1: ""}])
def test_names_that_are_no_names_are_refused(names):
    with pytest.raises(DataError, match="needs the names of all columns in order"):
        Columns.of(names)


def test_names_that_occur_twice_are_named():
    with pytest.raises(DataError, match="names of columns hold 'b', 'a' more than once"):
        Columns.of(["c", "b", "a", "a", "b"])


def test_a_single_name_is_read_from_a_mapping_in_either_direction():
    assert Columns.of({0: "only"}).names == Columns.of({"only": 0}).names == ("only",)
