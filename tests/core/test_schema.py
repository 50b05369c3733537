"""Content of files and its declared types: what fits, and what is told of what does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from bnp_dask.core.schema import Between, Finite, Id, Seed, Whole, fault


class Record(TypedDict):
    name: str
    count: Whole
    more: NotRequired[list[float]]


@dataclass
class Held:
    size: int
    shift: float = 0.0
    names: list[str] = field(default_factory=list)
    twice: float = field(init=False, default=0.0)


FITS = [
    (None, None),
    (None, type(None)),
    (True, bool),
    (3, int),
    (3, float),
    (0.5, float),
    ("a", str),
    ({"any": [object]}, Any),
    (0, Whole),
    (2**62, Whole),
    (-(2**62), Id),
    (2**256, Seed),
    (-1.7e308, Finite),
    (3, Finite),
    ("a", Literal["a", 1]),
    (1, Literal["a", 1]),
    ([1, 2], list[int]),
    ((1, 2), list[int]),
    ([], list[int]),
    ([1, "a"], tuple[int, str]),
    ([1, 2, 3], tuple[int, ...]),
    ([], tuple[int, ...]),
    ({"a": [1]}, dict[str, list[int]]),
    (None, int | None),
    ([3, None], tuple[int, str | None]),
    ({"name": "a", "count": 0}, Record),
    ({"name": "a", "count": 0, "more": [1.5], "later": 3}, Record),
    ({"size": 3}, Held),
    ({"size": 3, "shift": 1, "names": ["a"]}, Held),
]


@pytest.mark.parametrize(("value", "kind"), FITS, ids=[repr(value) for value, _ in FITS])
def test_what_fits_its_type_is_told_nothing_about(value, kind):
    assert fault(value, kind) is None


FAULTS = [
    (False, None, "the content is False; needs null"),
    (1, bool, "the content is 1; needs true or false"),
    (True, int, "the content is True; needs a whole number"),
    (True, float, "the content is True; needs a number"),
    (1.0, int, "the content is 1.0; needs a whole number"),
    (None, str, "the content is None; needs text"),
    (-1, Whole, "the content is -1; needs a whole number from 0 to 4.61169e+18"),
    (2**62 + 1, Whole, "needs a whole number from 0 to 4.61169e+18"),
    (float("nan"), Finite, "the content is nan; needs a number from -1.7e+308 to 1.7e+308"),
    (float("inf"), Finite, "the content is inf; needs a number from"),
    ("x", Finite, "the content is 'x'; needs a number"),
    (0.5, Annotated[float, Between(1.0, 2.0)], "the content is 0.5; needs a number from 1 to 2"),
    (True, Literal["a", 1], "the content is True; needs 'a' or 1"),
    ("b", Literal["a", 1], "the content is 'b'; needs 'a' or 1"),
    ("ab", list[str], "the content is 'ab'; needs a list, each text"),
    ({"a": 1}, list[int], "needs a list, each a whole number"),
    ([1, "a", None], list[int], "[1] is 'a'; needs a whole number"),
    ([1], tuple[int, int], "the content is [1]; needs a list of 2"),
    ([1, 2, 3], tuple[int, int], "needs a list of 2"),
    ([1, "a"], tuple[int, ...], "[1] is 'a'; needs a whole number"),
    (3, tuple[int, ...], "the content is 3; needs a list, each a whole number"),
    ([1], dict[str, int], "the content is [1]; needs a mapping"),
    ({"a": {"b": [0, "c"]}}, dict[str, dict[str, list[int]]], "a.b[1] is 'c'; needs a whole number"),
    ("a", int | None, "the content is 'a'; needs a whole number or null"),
    ([1, "a"], int | list[int], "[1] is 'a'; needs a whole number"),
    ([1, "a"], list[int] | list[float], "the content is [1, 'a']; needs a list, each a whole number or a list, each"),
    (3, Record, "the content is 3; needs a mapping with name, count, more"),
    ({"name": "a"}, Record, "the content lacks count; needs name, count, more"),
    ({}, Record, "the content lacks name, count; needs name, count, more"),
    ({"name": "a", "count": 0, "more": [None]}, Record, "more[0] is None; needs a number"),
    ({"shift": 1.0}, Held, "the content lacks size; needs size, shift, names"),
    ({"size": 1, "twice": 2.0}, Held, "the content also has ['twice']; needs size, shift, names"),
    ({"size": 1, "shift": "x"}, Held, "shift is 'x'; needs a number"),
    ({"held": [{"size": "x"}]}, dict[str, list[Held]], "held[0].size is 'x'; needs a whole number"),
    ({"held": [{}]}, dict[str, list[Held]], "held[0] lacks size; needs size, shift, names"),
]


@pytest.mark.parametrize(("value", "kind", "words"), FAULTS, ids=[words for *_, words in FAULTS])
def test_the_first_place_that_does_not_fit_is_told(value, kind, words):
    found = fault(value, kind)
    assert found is not None and (found == words or (len(words) < len(found) and words in found))
    if not words.startswith(("needs", "[")) and words.startswith("the content"):
        assert fault(value, kind, "state").startswith("state ")
