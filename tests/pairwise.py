"""Covering arrays: every value of a factor meets every value of every other, in few cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any


def pairwise(allowed: Callable[[dict[str, Any]], bool] | None = None, **factors: Iterable[Any]) -> list[dict[str, Any]]:
    """Cases in which every two values of different factors occur together at least once.

    Greedy, and the same cases each time: a case begins with the first pair that no case has, and takes for each other
    factor the value that adds the most pairs, the first of equal ones.  Three factors of 4, 3 and 3 values are 12 or
    13 cases in place of 36.

    Parameters
    ----------
    allowed
        Whether a case makes sense, asked of cases that are not full as well.  Pairs that no allowed case has are
        left out.
    factors
        Values of each factor, in order of importance.

    Returns
    -------
    cases
        One value of each factor.
    """
    values = {name: list(given) for name, given in factors.items()}
    if len(values) < 2:
        return [{name: value} for name, given in values.items() for value in given]
    places = {name: range(len(given)) for name, given in values.items()}
    missing = {
        ((first, i), (second, j)): None
        for first, second in combinations(values, 2)
        for i in places[first]
        for j in places[second]
    }
    cases = []
    while missing:
        pair = next(iter(missing))
        found = _complete(dict(pair), places, missing, lambda case: allowed is None or allowed(_told(case, values)))
        if found is None:
            del missing[pair]  # no case may have it
            continue
        for covered in combinations(((name, found[name]) for name in values), 2):
            missing.pop(covered, None)
        cases.append(_told({name: found[name] for name in values}, values))
    return cases


def _told(case: dict[str, int], values: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: values[name][place] for name, place in case.items()}


def _complete(
    case: dict[str, int],
    places: dict[str, range],
    missing: dict[tuple[tuple[str, int], tuple[str, int]], None],
    allowed: Callable[[dict[str, int]], bool],
) -> dict[str, int] | None:
    """The case with a value of every factor, those that add most pairs first; None where no such case is allowed."""
    if not allowed(case):
        return None
    left = [name for name in places if name not in case]
    if not left:
        return case
    name, order = left[0], list(places)

    def gain(place: int) -> int:
        others = ((other, at) for other, at in case.items())
        pairs = (sorted([(name, place), other], key=lambda item: order.index(item[0])) for other in others)
        return sum(tuple(pair) in missing for pair in pairs)

    for place in sorted(places[name], key=lambda place: -gain(place)):
        found = _complete({**case, name: place}, places, missing, allowed)
        if found is not None:
            return found
    return None


def in_pairs(
    allowed: Callable[[dict[str, Any]], bool] | None = None, **factors: Iterable[Any]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Names and rows of :func:`pairwise`: ``@pytest.mark.parametrize(*in_pairs(kind=KINDS, skip=[False, True]))``."""
    return tuple(factors), [tuple(case.values()) for case in pairwise(allowed, **factors)]
