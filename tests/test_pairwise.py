"""Covering arrays have every pair, leave out what makes no sense, and are small."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.pairwise import pairwise

FACTORS = {
    "kind": ["mixture", "topics", "chains", "stream"],
    "skip": [False, True],
    "starts": [1, 2, 3],
    "weights": [0, 1],
}


def pairs(case):
    return set(combinations(case.items(), 2))


def test_every_pair_occurs_in_few_cases():
    cases = pairwise(**FACTORS)
    wanted = {pair for case in product(*FACTORS.values()) for pair in pairs(dict(zip(FACTORS, case)))}
    assert {pair for case in cases for pair in pairs(case)} == wanted
    assert all(list(case) == list(FACTORS) for case in cases)
    assert 12 <= len(cases) <= 14


def test_cases_are_the_same_each_time():
    assert pairwise(**FACTORS) == pairwise(**FACTORS)


def test_what_is_not_allowed_does_not_occur_and_all_else_does():
    def allowed(case):
        return not (case.get("kind") == "stream" and case.get("skip"))

    cases = pairwise(allowed, **FACTORS)
    assert all(map(allowed, cases))
    wanted = {pair for case in product(*FACTORS.values()) for pair in pairs(dict(zip(FACTORS, case)))}
    assert {pair for case in cases for pair in pairs(case)} == wanted - {(("kind", "stream"), ("skip", True))}


@pytest.mark.parametrize("factors", [{}, {"one": [1, 2, 3]}])
def test_fewer_than_two_factors(factors):
    assert pairwise(**factors) == [{name: value} for name, given in factors.items() for value in given]
