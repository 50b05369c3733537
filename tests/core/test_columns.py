"""Names of columns: as they are given, and as tables show them."""

from __future__ import annotations

import pytest

from bnp_dask.core.columns import SHOWN, Columns, Words, few
from bnp_dask.errors import DataError


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
