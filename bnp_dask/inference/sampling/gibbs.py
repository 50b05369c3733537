"""Gibbs sampling as a schedule: sweeps of all batches, and the draws that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.allocation import SampledAllocation, SampledStates, SampledTopics, UrnAllocation
from bnp_dask.core import RunningTotal, Summary, register
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute import Task
from bnp_dask.inference.chains import Chain, Sampler, of_model
from bnp_dask.inference.drive import Flight, OneByOne, Results, Step, Told, drive
from bnp_dask.inference.local_steps import is_slight
from bnp_dask.inference.sampling.chain import (
    add_batch,
    begin_sweep,
    draw_clusters,
    end_sweep,
    first_chain,
    first_tabled_chain,
    others,
)
from bnp_dask.inference.sampling.draws import Draws, draw_to_arrays, draws_from
from bnp_dask.inference.sampling.sequences import draw_states, end_states, first_states, states_of, sweep_of_states
from bnp_dask.inference.sampling.split_merge import split_and_unite
from bnp_dask.inference.sampling.sweep import is_counted, reseat, sweep
from bnp_dask.inference.sampling.topics import (
    draw_topics,
    end_topics,
    other_topics,
    reseat_topics,
    sweep_of_topics,
    unite_topics,
)
from bnp_dask.inference.sampling.visit import Swept, keep_labels, labels_of, visit_of
from bnp_dask.inference.state import State, Work
from bnp_dask.inputs import hold, shown, whole_number
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial, SampledObservation, numbers_per_cluster, require_exact_atoms

SAMPLED = "sampled"
"""Reason of a run that has made all of its sweeps."""

ROWS = 200
"""Rows whose clusters are noted, by default."""


UNITES = range(20, 51, 5)
"""Laps, counted from 0, that begin with unions of copies of topics, if they come before the first draw.

400 documents of 50 words from ten bars of five by five words, 200 laps: unions in each lap from the second on left one
topic of 30 random examples, which are all alike at first.  Chosen on these data alone, with one seed."""

STATES = 25
"""States of a hidden Markov model, at most, by default."""


@register
@dataclass(frozen=True)
class Gibbs:
    """Draw partitions and parameters from their posterior: sweeps of all atoms, each given parameters drawn before.

    Parameters
    ----------
    laps
        Sweeps of the data, including ``burn_in``.
    burn_in
        Sweeps before the first draw is kept.  Default: half of ``laps``.
    thin
        Interval, in sweeps, at which a draw is kept; each draw holds the statistics of its clusters.
    chains
        Independent chains.  All are swept with one read of each batch, and start from one initialisation.
    window
        Batches in flight; here it only changes how busy workers are.
    rows
        Rows of the data whose clusters are kept with each draw: their number, evenly spread, or the rows themselves.
        The point estimate and :meth:`Draws.co_clustering <bnp_dask.Draws.co_clustering>` use these rows.  The cluster
        of a document in a topic model is its largest topic, -1 for one without tokens.
    states
        States of a hidden Markov model, at most (the weak limit).  A sweep costs the square of this number.  Of a start
        with more states the largest ones are taken.

    Notes
    -----
    For ``FiniteMixture``, ``DPMixture``, ``PitmanYorMixture``, ``NGGPMixture``, ``NRMMixture`` and ``HDPHMM`` with
    likelihoods that draw their parameters: all likelihoods of this package; and for ``HDPTopics`` of word counts.  The
    weight of an atom is its number of copies, a whole number; in a hidden Markov model the number of copies of its
    whole sequence.

    **Topics.** Shares of documents are integrated out, and weights of the top level are drawn given tables (direct
    assignment).  Each lap sweeps the tokens of all batches but one, side by side, among the existing topics, and seats
    the tokens of one batch again with words of topics integrated out, which opens topics and gives them up; see
    :mod:`bnp_dask.inference.sampling.topics`.  Some of laps 21 to 51 begin with unions of topics that raise the log
    probability, if they come before the first draw: a start may have copies of topics, which a sampler of single tokens
    unites slowly.

    **Hidden Markov models.** Each lap draws transitions and parameters of at most ``states`` states, and then the path
    of each sequence as a whole (forward filtering, backward sampling), batches side by side; see
    :mod:`bnp_dask.inference.sampling.sequences`.

    **Mixtures.** There is no truncation.  If the number of clusters is unbounded, each lap seats atoms of one batch
    again, with the batches taking turns: all atoms if they are documents, else 1,000 or one in 32 of the data,
    the larger number.  Each atom leaves its cluster and draws one given all other atoms, with weights and parameters
    integrated out; this opens clusters and gives them up.  All other atoms are swept before that, side by side, each
    given weights and parameters drawn from the totals, among the existing clusters (see
    :mod:`bnp_dask.inference.sampling.sweep`).  Few data in one batch are all seated again in each lap, which keeps one
    worker busy.  Some laps, most of the first 200 and one in 16 after 4,000, end with a round in which whole clusters
    are split and united over all batches (see :mod:`bnp_dask.inference.sampling.split_merge`); it reads the data once
    more.  If all documents are one batch, each lap splits and unites without such a round.

    ``result.draws`` are the draws.  ``result.posterior`` is the point estimate, clusters by falling size: the posterior
    of weights and parameters given the partition that :meth:`Draws.point <bnp_dask.Draws.point>` chooses
    among the draws.  Functions of a posterior, such as :func:`bnp_dask.predict` and :func:`bnp_dask.score`, use this
    one; :meth:`Draws.posterior <bnp_dask.Draws.posterior>` returns the posterior of any draw, to average over.

    The history's objective is the log probability of partition and data of the first chain, with weights and parameters
    integrated out, in nats: it goes up and down.  Columns besides the usual: ``log_joint``, the same number.  In a
    ``FiniteMixture`` it is the log probability of assignments to labelled clusters.  In models of topics and of
    sequences the weights of the top level are not integrated out: the weights of the lap are given.

    References
    ----------
    Neal 2000, Alg. 3, for atoms that are seated again; Dahl 2005 for splits and unions, allocated in sequence; James,
    Lijoi & Pruenster 2009 for weights given a partition; Favaro & Teh 2013 for normalized generalized gamma processes;
    Teh, Jordan, Beal & Blei 2006, 5.3, for topics; Fox, Sudderth, Jordan & Willsky 2011, Alg. 3, for sequences.
    """

    laps: int = 1000
    burn_in: int | None = None
    thin: int = 5
    chains: int = 1
    window: int = 8
    rows: int | tuple[int, ...] = ROWS
    states: int = STATES
    decides_moves = False

    def __post_init__(self) -> None:
        for name in ("laps", "thin", "chains", "window", "states"):
            hold(self, name, whole_number(name, getattr(self, name), 1))
        if self.burn_in is not None:
            hold(self, "burn_in", whole_number("burn_in", self.burn_in))
        if isinstance(self.rows, (list, tuple, range, np.ndarray)):
            hold(self, "rows", tuple(whole_number("rows", row) for row in self.rows))
        else:
            hold(self, "rows", whole_number("rows", self.rows, 1))
        if self.rows == ():
            raise SettingError("rows=(): needs one row at least")
        if self.laps // self.thin * self.thin <= self._burnt:
            raise SettingError(
                f"laps={self.laps}, burn_in={self._burnt}, thin={self.thin}: no draw would be kept, since every "
                f"{self.thin}th sweep after the first {self._burnt} is; needs more laps"
            )

    @property
    def _burnt(self) -> int:
        return self.laps // 2 if self.burn_in is None else self.burn_in

    def _keeps(self, lap: int) -> bool:
        """Whether the draw of a lap (from 1) is kept."""
        return lap > self._burnt and lap % self.thin == 0

    def check(self, model: Model) -> None:
        """SettingError unless the model can be sampled."""
        is_mixture = isinstance(model.allocation, SampledAllocation)
        if not is_mixture and not isinstance(model.allocation, (SampledTopics, SampledStates)):
            raise SettingError(
                f"Gibbs(): {type(model.allocation).__name__} is not sampled; use FiniteMixture(...), DPMixture(...), "
                "PitmanYorMixture(...), NGGPMixture(...), NRMMixture(...), HDPTopics(...) or HDPHMM(...), or another "
                "schedule"
            )
        if isinstance(model.allocation, SampledTopics) and not isinstance(model.observation, Multinomial):
            raise SettingError(
                f"Gibbs(): topics of {type(model.observation).__name__} are not sampled; use Multinomial() and word "
                "counts, or another schedule"
            )
        if is_mixture and model.allocation.nonparametric and not isinstance(model.allocation, UrnAllocation):
            raise SettingError(
                f"Gibbs(): {type(model.allocation).__name__} has no predictive rule to open clusters by; it needs a "
                "property urn"
            )
        if not isinstance(model.observation, SampledObservation):
            raise SettingError(
                f"Gibbs(): {type(model.observation).__name__} says not how to draw its parameters; it needs a method "
                "at_draw(params, rng)"
            )
        require_exact_atoms(model.observation, "Gibbs()")
        if model.reproducible:
            raise SettingError("Gibbs(): reproducible=True is not kept by samplers; leave it out")
        if model.estimate != "posterior":
            raise SettingError(f'Gibbs(): draws from a posterior, so that estimate="{model.estimate}" has no meaning')

    def run(self, work: Work, state: State) -> Iterator[Step]:
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Results[Swept]]:
        """Groups of one batch each; all are swept side by side, and the last one, if there is one, is seated again.

        If the number of clusters is unbounded, each lap seats the atoms of one batch again, except the first lap, whose
        atoms have no clusters yet.
        """
        self.check(work.model)
        if work.moves:
            raise SettingError("Gibbs() changes the number of clusters itself; leave moves out")
        kind = kind_of(work.model, self.states)
        if state.sampler is None:
            assert state.posterior.summary is not None
            start = state.posterior.summary
            state.sampler = Sampler([kind.first(work.model, start) for _ in range(self.chains)])
        _require_pins(work, state)
        chains, lap = state.sampler.chains, state.lap
        state.sampler.noted = self._places(work)
        if state.position == 0:
            if lap in UNITES and lap < self._burnt:
                self._unite(work, state, kind)
            for chain in chains:
                begin_sweep(work.model, chain, kind.ids(chain), len(state.sampler.noted))
        together, last = list(range(work.source.n_batches)), list[int]()
        if chains[0].pins is not None:
            last.append(together.pop(lap % len(together)))
        n_left = len(together) - state.position
        sweeps_last = not is_counted(work.model)  # sweeps the atoms that are not seated again
        drawn: tuple[Any, ...] = ()
        if n_left > 0 or sweeps_last:
            n_atoms = max(work.survey.batch_atoms, default=0)
            drawn = tuple(kind.draw(work.model, c, i, lap, work.seed, n_atoms) for i, c in enumerate(chains))
        numbers = sum(len(d.ids) for d in drawn) * numbers_per_cluster(work.model.observation)
        is_shared = n_left > 0 and not is_slight(n_left, numbers)
        shared: Any = work.executor.share(f"drawn-lap{lap}", drawn) if is_shared else drawn

        def tasks(batches: tuple[int, ...]) -> list[Task]:
            return [reseating(batch) if batch in last else sweeping(batch) for batch in batches]

        def sweeping(batch: int) -> Task:
            return f"sweep-lap{lap}-batch{batch}", kind.sweep, (work.model, shared, *visit_of(work, state, batch))

        def reseating(batch: int) -> Task:
            swept: Sequence[Any] = drawn if sweeps_last else [None] * len(chains)
            held = tuple(kind.others(work.model, c, i, lap, work.seed, swept[i]) for i, c in enumerate(chains))
            return f"reseat-lap{lap}-batch{batch}", kind.reseat, (work.model, held, *visit_of(work, state, batch))

        order, visits = np.array(together + last), OneByOne[Swept](work, state, tasks)
        return Flight(work, state, order, self.window, size=1, visits=visits, last=last)

    def fold(self, work: Work, state: State, group: Results[Swept]) -> Told:
        """Add the batch to all chains, and keep the clusters of its atoms."""
        assert state.sampler is not None
        for batch, swept in group.found:
            noted = np.flatnonzero(state.sampler.noted[:, 0] == batch)
            for chain, found, labels in zip(state.sampler.chains, swept.chains, swept.rows, strict=True):
                add_batch(chain, found, noted[: len(labels)], labels)
            keep_labels(work, state, batch, [found.labels for found in swept.chains])
        return {}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """Split and unite clusters, set the totals of all chains, and keep the draw if it is due."""
        assert state.sampler is not None
        split_and_unite(work, state, self.window)
        kind, chains = kind_of(work.model, self.states), state.sampler.chains
        rows = [kind.end(work.model, chain, i, state.lap, work.seed) for i, chain in enumerate(chains)]
        first, total = chains[0], of_model(work.model, chains[0].total)
        state.posterior = work.model.global_step(total)
        state.total = RunningTotal(total)
        state.terms = {"log_joint": first.log_joint}
        if self._keeps(state.lap + 1):
            held = [(of_model(work.model, c.total), c.log_joint, own) for c, own in zip(chains, rows, strict=True)]
            arrays = draw_to_arrays(held)
            part = work.memo.part_files().put(f"draw-{state.lap + 1}", arrays)
            state.sampler.draws.append((state.lap + 1, part))
        if state.lap + 1 >= self.laps:
            self._finish(work, state)
        # for the last draw: the posterior may be the point estimate by now
        return {"exact": False, "action": SAMPLED, "moves": [], "n_clusters": first.total.n_clusters}

    def _unite(self, work: Work, state: State, kind: Kind) -> None:
        """Unite clusters of chains that are copies of others, before the first draw."""
        assert state.sampler is not None
        into = [kind.unite(work.model, chain) for chain in state.sampler.chains]
        if any(into):
            for batch in range(work.source.n_batches):
                held = labels_of(work, state, batch, len(into)) or ()
                keep_labels(work, state, batch, [own.renamed(names) for own, names in zip(held, into, strict=True)])

    def _places(self, work: Work) -> np.ndarray:
        """Batch and row of each noted row of the data, ``(R, 2)``."""
        ends = np.cumsum(work.survey.batch_atoms)
        n = int(ends[-1])
        if isinstance(self.rows, int):
            rows = np.unique(np.linspace(0, n - 1, min(self.rows, n)).astype(np.int64))
        else:
            rows = np.array(self.rows, np.int64)
            if rows.max() >= n:
                raise SettingError(f"Gibbs(rows={shown(self.rows)}): row {rows.max()} is not there; the data have {n}")
        batch = np.searchsorted(ends, rows, side="right")
        return np.stack([batch, rows - (ends - work.survey.batch_atoms)[batch]], axis=1)

    def _finish(self, work: Work, state: State) -> None:
        """Make the point estimate the posterior; drop draws that are burn-in now, after laps were added."""
        assert state.sampler is not None
        gone = [part for lap, part in state.sampler.draws if lap <= self._burnt]
        work.memo.forget_parts(gone)
        state.sampler.draws = [(lap, part) for lap, part in state.sampler.draws if lap > self._burnt]
        draws = kept_draws(work, state, self)
        assert draws is not None
        state.posterior = draws.posterior(*draws.point())
        assert state.posterior.summary is not None
        state.total = RunningTotal(state.posterior.summary)
        state.finished = SAMPLED


def kept_draws(work: Work, state: State, schedule: Gibbs) -> Draws | None:
    """The draws that a run has kept; None if it has none."""
    if state.sampler is None or not state.sampler.draws:
        return None
    places = schedule._places(work)
    starts = np.cumsum(work.survey.batch_atoms) - work.survey.batch_atoms
    files = work.memo.part_files()
    laps = np.array([lap for lap, _ in state.sampler.draws])
    held = [files.get(part) for _, part in state.sampler.draws]
    return draws_from(work.model, work.seed, laps, starts[places[:, 0]] + places[:, 1], held)


def _require_pins(work: Work, state: State) -> None:
    """StoreError if a run of version 0.2 or before would have to continue."""
    assert state.sampler is not None
    if work.model.allocation.nonparametric and not state.sampler.kind and state.finished is None:
        raise StoreError(
            f"this run was sampled to lap {state.lap} by bnp_dask 0.2 or before, whose sweeps opened clusters in "
            "another way, so that it cannot go on. bnp_dask.load_draws(...) reads its draws; begin a new run, with "
            "init=FromPosterior(bnp_dask.load(...)) from its present state"
        )


@dataclass(frozen=True)
class Kind:
    """Parts of a lap in which mixtures, topics and sequences differ.

    Parameters
    ----------
    first
        Chain at the statistics of an initialisation.
    ids
        Clusters of a sweep of a chain.
    draw
        Parameters of a sweep, from model, chain, its number, lap, seed, and atoms of the largest batch.
    sweep
        Task of a batch that is swept.
    others, reseat
        Statistics of all others for a batch that is seated again (from model, chain, its number, lap, seed, and the
        parameters of the sweep), and its task.
    end
        Ends a sweep of a chain, from model, chain, its number, lap and seed; returns clusters of the noted rows.
    unite
        Unites clusters of a chain before the first draw; returns where the clusters went that are gone.
    """

    first: Callable[[Model, Summary], Chain]
    ids: Callable[[Chain], np.ndarray]
    draw: Callable[[Model, Chain, int, int, int, int], Any]
    sweep: Callable[..., Swept]
    others: Callable[[Model, Chain, int, int, int, Any], Any]
    reseat: Callable[..., Swept]
    end: Callable[[Model, Chain, int, int, int], np.ndarray]
    unite: Callable[[Model, Chain], dict[int, int]] = lambda model, chain: {}


def kind_of(model: Model, states: int) -> Kind:
    if isinstance(model.allocation, SampledTopics):
        return Kind(
            first=first_tabled_chain,
            ids=lambda chain: chain.total.ids,
            draw=draw_topics,
            sweep=sweep_of_topics,
            others=lambda model, chain, number, lap, seed, _: other_topics(model, chain, number, lap, seed),
            reseat=reseat_topics,
            end=end_topics,
            unite=unite_topics,
        )
    if isinstance(model.allocation, SampledStates):
        return Kind(
            first=partial(first_states, most=states),
            ids=lambda chain: states_of(chain, states),
            draw=partial(draw_states, most=states),
            sweep=sweep_of_states,
            others=lambda *_: None,
            reseat=sweep_of_states,  # no batch is seated again
            end=end_states,
        )
    return Kind(
        first=first_chain,
        ids=lambda chain: chain.total.ids,
        draw=draw_clusters,
        sweep=sweep,
        others=lambda model, chain, number, lap, seed, swept: others(chain, number, lap, swept),
        reseat=reseat,
        end=lambda model, chain, number, lap, seed: end_sweep(model, chain),
    )
