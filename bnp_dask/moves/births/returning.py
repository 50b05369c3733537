"""Dormant clusters, which faded and were set aside: a birth that looks like one brings it back under its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bnp_dask.core.summary import Summary
from bnp_dask.model import Model
from bnp_dask.moves.scores import data_gains


def returning(model: Model, dormant: Mapping[int, Summary], newborn: Summary) -> dict[int, int]:
    """Ids of dormant clusters by position of the newborn clusters ``(J,)`` that match them; missing ones are new.

    A pair matches if the data term of its union exceeds the sum of both data terms; the difference is the log of a
    Bayes factor.  The best pairs are matched first, and no cluster is in two pairs.
    """
    if not dormant or newborn.links is not None or not newborn.n_clusters:
        return {}
    fresh = [-1 - j for j in range(newborn.n_clusters)]
    both = replace(newborn.without_pairs(), ids=np.array(fresh, np.int64))
    for part in dormant.values():
        both = both.exchange([], part)
    pairs = np.array([[old, new] for old in dormant for new in fresh])
    gains = data_gains(model, both, pairs)
    out: dict[int, int] = {}
    for i in np.argsort(-gains, kind="stable").tolist():
        old, j = int(pairs[i, 0]), -1 - int(pairs[i, 1])
        if gains[i] > 0 and j not in out and old not in out.values():
            out[j] = old
    return out
