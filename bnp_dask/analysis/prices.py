"""Prices of clusters: the loss of the objective without each, exact over all data.

If many numbers of clusters explain data about as well, the objective is flat and K says little; prices show which
clusters are dispensable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.allocation import UnscoredAllocation
from bnp_dask.analysis.base import WINDOW, open_for, require_posterior, runner_for
from bnp_dask.core import Exchange, Merge, Summary, Table
from bnp_dask.data import Reader, Source, batch_reader, lagged
from bnp_dask.errors import SettingError, answering
from bnp_dask.execute import Executor, in_order
from bnp_dask.inputs import whole_number
from bnp_dask.model import Posterior
from bnp_dask.moves import DeletePolicy, gains_of, gains_of_pairs
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.structure import CLUSTER, Noun, Trial, Visit, noun_of

if TYPE_CHECKING:
    from distributed import Client

NUMBERS = 16_000_000
"""Most numbers in the statistics of all trials of one pass: 128 MB a batch."""


@dataclass(frozen=True)
class ClusterPrice:
    """Price of one cluster, in nats of the objective.

    Parameters
    ----------
    id
        The cluster.
    without
        Nats lost if its atoms are redistributed among others; negative if the objective is higher without it.
    nearest
        The cluster with which it would be united best; None if there is no other.
    united
        Nats lost if these two are one cluster; NaN if there is no other.
    """

    id: int
    without: float
    nearest: int | None
    united: float


@dataclass(frozen=True)
class Prices(Sequence[ClusterPrice]):
    """Prices of clusters in the order of the posterior; a sequence that prints as a table.

    Parameters
    ----------
    lines
        The prices.
    noun
        Noun of the clusters: clusters, topics or states.
    """

    lines: tuple[ClusterPrice, ...]
    noun: Noun = CLUSTER

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return replace(self, lines=self.lines[index]) if isinstance(index, slice) else self.lines[index]

    @property
    def table(self) -> Table:
        """The table, the cheapest first."""
        rows = [
            (str(p.id), f"{p.without:,.1f}", f"{p.united:,.1f}", "-" if p.nearest is None else str(p.nearest))
            for p in sorted(self.lines, key=lambda price: (price.without, price.id))
        ]
        note = f"nats of the objective lost without a {self.noun.one}, or by uniting it with its nearest"
        return Table((self.noun.one, "without it", "united", "with"), rows, notes=[note])

    def __str__(self) -> str:
        return self.table.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@answering
def prices(
    posterior: Posterior,
    data: Any,
    *,
    receivers: int = 10,
    sweeps: int = 2,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> Prices:
    """Value of each cluster for the objective: nats lost without it, and when united with its nearest.

    Each price is the difference of two exact objectives over all data, of an assignment with and one without the
    cluster.  Without it, its atoms are redistributed among similar clusters, and these are re-estimated; further
    re-estimation of all clusters could only make the loss smaller.  The prior mass of an almost empty topic in
    documents goes to the topics that absorb it or to new topics, at the lower cost, as in :class:`bnp_dask.Delete`.
    The posterior is not changed.

    A few nats for a cluster of many atoms mean that the data hardly determine whether it exists; compare prices with
    the objective's own differences between runs.

    Parameters
    ----------
    posterior
        Trained clusters, by a model with an exact objective.
    data
        The data that it was trained on, as for :func:`bnp_dask.predict`.
    receivers
        Largest number of clusters that share the atoms of a removed one: the clusters whose union with it costs least.
    sweeps
        Passes over the data in which they are re-estimated; the least loss counts.  If statistics of all clusters do
        not fit into memory each of these takes several passes.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    Prices
        A :class:`ClusterPrice` for each cluster, in the order of ``posterior.ids``; prints as a table.
        For a single cluster ``without`` is infinite and ``united`` NaN.

    Raises
    ------
    SettingError
        The posterior has point estimates, whose objective is known only up to constants that depend on the number of
        clusters; or its mixture has no objective, such as ``NGGPMixture``.
    DataError
        As in :func:`bnp_dask.score`.
    """
    posterior = require_posterior(posterior)
    model = posterior.model
    receivers, sweeps = whole_number("receivers", receivers, 1), whole_number("sweeps", sweeps, 1)
    if model.estimate != "posterior":
        raise SettingError("prices: point estimates have no objective that different numbers of clusters share")
    if isinstance(model.allocation, UnscoredAllocation):
        raise SettingError(
            f"prices: {type(model.allocation).__name__} has no variational objective, whose differences prices are; "
            "train a DPMixture(...)"
        )
    source = open_for(posterior, data, batch_size, weights=True)
    with runner_for(posterior, client) as runner:
        found = _Pricing(posterior, source, runner, receivers).all_prices(sweeps)
    return Prices(tuple(found), noun_of(model))


@dataclass(frozen=True)
class _Way:
    """A way to remove a cluster: its prior mass in groups goes to the absorbing clusters, or is ``freed``."""

    target: int
    frees: bool = False


@dataclass(frozen=True, eq=False)
class _Pricing:
    """Prices of the clusters of a posterior."""

    posterior: Posterior
    source: Source
    runner: Executor
    receivers: int

    def all_prices(self, sweeps: int) -> list[ClusterPrice]:
        """One price for each cluster."""
        ids = [int(i) for i in self.posterior.ids]
        if len(ids) < 2:
            return [ClusterPrice(i, np.inf, None, np.nan) for i in ids]
        value = self.posterior.summary
        value = self._pass((), np.zeros((0, 2), np.int64))[0] if value is None else value.without_pairs()
        gains = gains_of_pairs(self.posterior.model, self.posterior, value)
        near = {i: self._nearest(k, gains[k], value) for k, i in enumerate(ids)}
        pairs = np.array(sorted({tuple(sorted((i, near[i][0]))) for i in ids}), np.int64)
        united: dict[tuple[int, int], float] = {}
        without = dict.fromkeys(ids, np.inf)
        ways = self._ways(value)
        bases = {way: value.take(_in_order(value, near[way.target])) for way in ways}
        each = numbers_per_cluster(self.posterior.model.observation) * min(self.receivers, len(ids) - 1)
        size = max(1, NUMBERS // each)
        for _ in range(sweeps):
            for first in range(0, len(ways), size):
                chosen = ways[first : first + size]
                trials = [self._trial(way, bases[way], near[way.target][0], value) for way in chosen]
                total, parts = self._pass(trials, pairs if not united else pairs[:0])
                if not united:
                    merges = [Merge(int(a), int(b)) for a, b in pairs]
                    found = gains_of(self.posterior.model, total, {}, merges)
                    united = {(m.keep, m.drop): -gain for m, gain in zip(merges, found, strict=True)}
                edits = [Exchange(t.name, t.donors, bool(t.freed)) for t in trials]
                found = gains_of(self.posterior.model, total.without_pairs(), parts, edits)
                for way, trial, gain in zip(chosen, trials, found, strict=True):
                    without[way.target] = min(without[way.target], -gain)
                    bases[way] = parts[trial.name]
        pair = {i: (min(i, near[i][0]), max(i, near[i][0])) for i in ids}
        return [ClusterPrice(i, float(without[i]), near[i][0], float(united[pair[i]])) for i in ids]

    def _nearest(self, itself: int, gains: np.ndarray, value: Summary) -> list[int]:
        """Ids of the best receivers of a position, best first: by the gain of a union, and by size if none is known."""
        known = np.flatnonzero(gains > -np.inf)
        order = known[np.argsort(-gains[known], kind="stable")]
        if len(order) == 0:
            order = np.array([k for k in np.argsort(-value["N"], kind="stable") if k != itself])
        return [int(i) for i in value.ids[order[: self.receivers]]]

    def _ways(self, value: Summary) -> list[_Way]:
        """Ways to remove each cluster, as in deletes: two for almost empty clusters."""
        leftovers = DeletePolicy().leftovers(value)
        return [*(_Way(int(i)) for i in value.ids), *(_Way(i, frees=True) for i in leftovers)]

    def _trial(self, way: _Way, basis: Summary, rest: int, value: Summary) -> Trial:
        model, target = self.posterior.model, way.target
        beliefs = model.global_step(model.structure.tied_summary(model, basis, value)).light()
        freed = (target,) if way.frees else ()
        name = f"without-{target}" + ("-freed" if way.frees else "")
        return Trial(name, (target, *map(int, basis.ids)), beliefs, (target,), rest, freed)

    def _pass(self, trials: Sequence[Trial], pairs: np.ndarray) -> tuple[Summary, dict[str, Summary]]:
        """Statistics of all data, and of the receivers of each trial."""
        shared = self.runner.share("prices", (self.posterior.light(), tuple(trials), pairs))
        tasks = (
            (f"price-batch{b}", _visit, (shared, batch_reader(self.source, b))) for b in range(self.source.n_batches)
        )
        total: Summary | None = None
        parts: dict[str, Summary] = {}
        for found in in_order(self.runner, tasks, WINDOW):
            total = found.summary if total is None else total + found.summary
            parts = dict(found.parts) if not parts else {name: parts[name] + part for name, part in found.parts.items()}
        assert total is not None, "a source has batches"
        return total, parts


def _visit(asked: tuple[Posterior, tuple[Trial, ...], np.ndarray], reader: Reader) -> Visit:
    """Task: statistics of a batch and of trials on it."""
    posterior, trials, pairs = asked
    batch = lagged(reader(), posterior.model.lags)
    found = posterior.model.visit(posterior, batch, pairs, trials)
    return replace(found, states={}, members={}, shares={}, atoms={}, assignments=None)


def _in_order(value: Summary, ids: Sequence[int]) -> list[int]:
    return [int(i) for i in value.ids if int(i) in ids]
