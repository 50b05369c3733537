"""Few cells in which every two levels of two factors meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tests.crossed.cells import CELLS, FACTORS


def pairs_of(cells: Sequence[Any], factors: Sequence[Sequence[str]] = FACTORS) -> np.ndarray:
    """Numbers of the pairs of levels that each cell has, ``(cells, pairs of factors)``."""
    sizes = [len(levels) for levels in factors]
    number = [{level: i for i, level in enumerate(levels)} for levels in factors]
    level = np.array([[own[v] for own, v in zip(number, vars(cell).values(), strict=True)] for cell in cells])
    out, first = [], 0
    for i, j in combinations(range(len(sizes)), 2):
        out.append(first + level[:, i] * sizes[j] + level[:, j])
        first += sizes[i] * sizes[j]
    return np.stack(out, axis=1)


def covering(
    is_refused: Callable[[Any], bool], cells: Sequence[Any] = CELLS, factors: Sequence[Sequence[str]] = FACTORS
) -> tuple[Any, ...]:
    """Cells that have every pair: in a cell that runs where there is one, else in one that is refused.

    Greedy: each time the first cell with the most pairs that are still missing.
    """
    pairs = pairs_of(cells, factors)
    left, chosen = np.ones(pairs.max() + 1, np.bool_), []
    refused = np.array([is_refused(cell) for cell in cells])
    for group in (np.flatnonzero(~refused), np.flatnonzero(refused)):
        own = pairs[group]
        while True:
            gain = left[own].sum(axis=1)
            best = int(gain.argmax())
            if gain[best] == 0:
                break
            chosen.append(cells[group[best]])
            left[pairs[group[best]]] = False
    return tuple(chosen)
