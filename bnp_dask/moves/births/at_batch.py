"""Births at batches, many at a time: accept newborn clusters, and unite clusters that several workers found.

Newborn clusters of two batches share no atom as long as neither batch was assigned under a posterior with the other
batch's newborn clusters.  The entropy of their union is then the sum of their entropies.  Summaries therefore decide
exactly whether to keep both or to unite them, without a pass over data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.edits import Forget, replay
from bnp_dask.core.summary import Links, Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import Memory
from bnp_dask.moves.births.returning import returning
from bnp_dask.moves.lap_policy import DECISION
from bnp_dask.moves.scores import data_gains


@dataclass(frozen=True, eq=False)
class Born:
    """Accepted birth at batches: the total, the batches' summaries, the new posterior, terms, ids and gain.

    ``returned`` are the new ids that dormant clusters had.
    """

    total: RunningTotal
    summaries: tuple[Summary, ...]
    posterior: Posterior
    terms: dict[str, float]
    new_ids: tuple[int, ...]
    united: tuple[int, ...]
    gain: float
    returned: tuple[int, ...] = ()


def consider_split(
    model: Model,
    total: RunningTotal,
    terms: dict[str, float],
    parts: Sequence[tuple[Summary, Summary]],
    target: int,
    recent: Sequence[int],
    memory: Memory,
    stays: bool = False,
) -> tuple[Born | None, float]:
    """Decide a birth at one batch, or at several that found the same clusters, on the exact whole-data objective.

    Parameters
    ----------
    model
        The model.
    total, terms
        Whole-data statistics with the batches folded in, and the objective's terms.
    parts
        For each batch, its statistics and the statistics of the newborn clusters that would take its share of the
        target; newborn clusters have the same ids in all batches, in the same order.
    target
        The cluster that was split.
    recent
        Ids of clusters born in this lap that have no mass in these batches.
    memory
        Source of new ids.
    stays
        Whether the target may keep atoms of these batches that look like its atoms of other batches, as most atoms of
        batches never visited before do.

    Returns
    -------
    born, gain
        The accepted birth or None, and the gain in nats of the best way found.
    """
    judge = _Judge(model, total, terms, parts, target)
    owner: list[int | None] = [None] * judge.newborn.n_clusters
    best = judge.evaluate(owner)
    for j, candidates in judge.likely_homes(recent, stays):
        for home in candidates:
            if home in owner:
                continue
            trial = list(owner)
            trial[j] = home
            found = judge.evaluate(trial)
            if found.gain > best.gain:
                best, owner = found, trial
                break
    if best.gain <= DECISION.rounding * sum(abs(t) for t in terms.values()):
        return None, best.gain
    return judge.with_ids(best, owner, memory), best.gain


class _Judge:
    """Evaluates ways to give the share of some batches in one cluster to new or recently born clusters."""

    def __init__(
        self,
        model: Model,
        total: RunningTotal,
        terms: dict[str, float],
        parts: Sequence[tuple[Summary, Summary]],
        target: int,
    ) -> None:
        if np.isin(total.high.pairs, target).any():  # unions of newborn clusters with others are unknown
            void, total = Forget((target,)), total.copy()
            total.apply([void])
            parts = [(replay(own, [void]), newborn) for own, newborn in parts]
        self.model, self.total, self.terms = model, total, terms
        self.parts, self.target = parts, target
        self.newborn = parts[0][1]
        for _, newborn in parts[1:]:
            self.newborn = self.newborn + newborn

    def evaluate(self, owner: Sequence[int | None], new_ids: Sequence[int] | None = None) -> Born:
        """State in which newborn cluster j joins cluster ``owner[j]``, or stays separate if that is None."""
        fresh = [j for j, home in enumerate(owner) if home is None]
        ids = list(range(-1, -1 - len(fresh), -1)) if new_ids is None else list(new_ids)
        names = dict(zip(fresh, ids, strict=True))
        receivers = [names[j] if home is None else home for j, home in enumerate(owner)]
        homes = [home for home in owner if home not in (None, self.target)]
        donors = [self.target, *homes]
        total, batches = self.total.copy(), []
        total.high, total.low = total.high.insert_empty(ids), total.low.insert_empty(ids)
        for summary, newborn in self.parts:
            part = replace(newborn, ids=np.array(receivers, np.int64))
            if self.target not in receivers:
                part = part.insert_empty([self.target])
            batches.append(summary.exchange(donors, replace(part, links=_links_to(summary.ids, donors, part))))
            total.subtract(summary.insert_empty(ids))
            total.add(batches[-1])
        value = total.value()
        posterior = self.model.global_step(value)
        terms = self.model.elbo(posterior, value)
        gain = sum(terms[name] - self.terms[name] for name in terms)
        return Born(total, tuple(batches), posterior, terms, tuple(ids), tuple(homes), gain)

    def with_ids(self, born: Born, owner: Sequence[int | None], memory: Memory) -> Born:
        """Birth under permanent ids: ids of returning clusters, or new ones."""
        fresh = [int(self.newborn.ids[j]) for j, home in enumerate(owner) if home is None]
        back = returning(self.model, memory.dormant, self.newborn.without_pairs().take(fresh)) if fresh else {}
        new = iter(memory.new_ids(len(fresh) - len(back)))
        ids = [back[j] if j in back else next(new) for j in range(len(fresh))]
        for old in back.values():
            del memory.dormant[old]
        return replace(self.evaluate(owner, ids), returned=tuple(back.values()))

    def likely_homes(self, recent: Sequence[int], stays: bool) -> list[tuple[int, list[int]]]:
        """Newborn clusters, by position, and homes for each: the recently born clusters whose union with it costs the
        data term least, and the target if it ``stays``.

        The clusters most like the target come first.  The target is no home for states of sequences: trials count the
        steps between newborn states and the others, and the target is among neither.
        """
        found = self._likely(recent)
        if not stays or self.newborn.links is not None:
            return list(enumerate(found))
        ids = self.newborn.ids
        both = self.total.value().without_pairs().take([self.target]).exchange([], self.newborn)
        gains = data_gains(self.model, both, np.array([[self.target, int(j)] for j in ids]))
        return [(int(j), [*found[j], self.target]) for j in np.argsort(-gains, kind="stable")]

    def _likely(self, recent: Sequence[int]) -> list[list[int]]:
        if not recent:
            return [[] for _ in self.newborn.ids]
        whole = self.total.value().without_pairs().take(list(recent))
        both = whole.exchange([], replace(self.newborn, links=_links_to(whole.ids, [], self.newborn)))
        pairs = np.array([[int(c), int(j)] for j in self.newborn.ids for c in recent])
        out = []
        for gains in data_gains(self.model, both, pairs).reshape(-1, len(recent)):
            order = np.argsort(-gains, kind="stable")[:2]
            out.append([int(recent[i]) for i in order if gains[i] > 0])
        return out


def alike_in_turn(model: Model, first: Summary, other: Summary) -> np.ndarray | None:
    """Position in ``other`` of the cluster that each cluster of ``first`` looks like, ``(J,)``.

    Two clusters look alike if the data term rises when they are united.  None unless each cluster looks like one of the
    other's, and no two look like the same one.
    """
    count = first.n_clusters
    if other.n_clusters != count:
        return None
    mine, theirs = np.arange(count), np.arange(count, 2 * count)
    both = replace(first.without_pairs(), ids=mine).exchange([], replace(other.without_pairs(), ids=theirs))
    pairs = np.array([[a, b] for a in mine for b in theirs])
    gains = data_gains(model, both, pairs).reshape(count, count)
    order = gains.argmax(axis=1)
    return None if len(set(order.tolist())) < count or gains.max(axis=1).min() <= 0 else order


def _links_to(ids: np.ndarray, donors: Sequence[int], part: Summary) -> Links | None:
    """Links of a batch's newborn clusters, and of clusters with nothing in the batch, to all clusters but the donors.

    The batch was assigned under beliefs that may lack some present clusters; links to these are zero.
    """
    if part.links is None:
        return None
    rest = ids[~np.isin(ids, donors)]
    known = np.isin(rest, part.links.rest)
    order = np.argsort(part.links.rest)
    place = order[np.searchsorted(part.links.rest, rest[known], sorter=order)]
    values = {}
    for name, value in part.links.values.items():
        new = np.zeros((2, part.n_clusters, len(rest)))
        new[:, : value.shape[1], known] = value[:, :, place]
        values[name] = new
    return Links(rest, np.array(donors, np.int64), values)
