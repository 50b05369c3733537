"""Dependence between atoms: all differences between mixtures, groups and sequences, as one protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bnp_dask.core import Batch, GroupStates, RunningTotal, Summary, require_finite_rows
from bnp_dask.kernels import Resp, cluster_sums
from bnp_dask.observation import Estimate
from bnp_dask.structure.answers import Columns
from bnp_dask.structure.assignments import Assignments
from bnp_dask.structure.linked import assigned
from bnp_dask.structure.protocols import Beliefs, LocalStep, M, Members, WholeModel


# -- policies of moves --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MovePolicy:
    """Differences of births, merges and deletes between structures.

    Parameters
    ----------
    plans_side_by_side
        Whether a move begins to plan while tasks of earlier moves run, which keeps more workers busy.
    splits_at_batches
        Whether one batch alone may split a cluster.  If groups have weights, groups of other batches would have none
        for its new clusters, so finds of a batch are tried on all data.
    splits_beside_trials
        Whether trials and splits at batches may share a lap.  A trial of a Markov chain counts transitions to and from
        every existing state, so no state may be added within the lap.
    lays_away
        Whether fading clusters can leave and return.  They stay if states of groups or of sequences name them.
    has_windows
        Whether births also use stretches of consecutive atoms (thesis 6.5.2), and starts may be such stretches.
    asks_words
        Whether the number of clusters is estimated from the words of documents of counts.
    rows_per_sample
        Rows of counts that a birth looks at, for each atom of ``Birth(sample=)``.
    scores_alike_only
        Whether only pairs of clusters whose words are alike are scored.
    knows_pair_weights
        Whether the allocation term of a union is known before the pair is tracked.
    bounds_unions
        Whether totals alone bound the allocation term of a union from below.  This holds if the entropy of each atom is
        the only part that is not linear in the responsibilities.
    refines_on_samples
        Whether samples of some clusters' atoms show how these clusters change without another cluster.  Parts of groups
        do not add up to groups, so topic models need all data.
    refines_births
        Whether a split that falls short is re-estimated and tried again while it gains.
    births_beside
        Whether births re-estimate newborn clusters together with their neighbours, on samples of all of them.  With
        ``asks_words`` on whole groups of dense atoms, and not at all for word counts.
    together
        Most small clusters that one delete tries to remove together.
    retries_together
        Whether small clusters that failed together are tried together again, a quarter as many; else each alone.
    of_mean, of_typical
        A cluster is small below ``of_mean`` of the mean count of clusters and below ``of_typical`` of the mean, over
        atoms, of the count of their cluster; None to leave out the second.
    crowd
        Share of small, never tried clusters above which deletes go before merges, which would take the absorbing
        clusters; None for never.
    spares_absorbers
        Whether the absorbing set of a small cluster may omit clusters that another proposal holds.
    seen
        Atoms of a target from which its absorbing set is chosen; None for as many as are sampled of each cluster.
    """

    plans_side_by_side: bool = True
    splits_at_batches: bool = True
    splits_beside_trials: bool = True
    lays_away: bool = True
    has_windows: bool = False
    asks_words: bool = False
    rows_per_sample: int = 1
    scores_alike_only: bool = False
    knows_pair_weights: bool = True
    bounds_unions: bool = True
    refines_on_samples: bool = True
    refines_births: bool = False
    births_beside: bool = True
    together: int = 16
    retries_together: bool = False
    of_mean: float = 0.1
    of_typical: float | None = None
    crowd: float | None = None
    spares_absorbers: bool = False
    seen: int | None = 500


OF_CHAINS = MovePolicy(
    plans_side_by_side=False,
    splits_beside_trials=False,
    lays_away=False,
    has_windows=True,
    bounds_unions=False,
    refines_births=True,
    births_beside=False,
)
"""Policy for hidden Markov models.

The first trial of a split says little: the newborn states share the transitions of their target.  On motion capture,
splits that are 5 to 9 nats better once re-estimated lacked 7 to 15 nats at first.
"""

OF_GROUPS = MovePolicy(
    plans_side_by_side=False,
    splits_at_batches=False,
    lays_away=False,
    asks_words=True,
    rows_per_sample=2,
    scores_alike_only=True,
    knows_pair_weights=False,
    bounds_unions=False,
    refines_on_samples=False,
    refines_births=True,
    together=48,
    retries_together=True,
    of_mean=0.4,
    of_typical=0.2,
    crowd=0.1,
    spares_absorbers=True,
    seen=None,
)
"""Policy for topic models.

A start from many topics ends with the true topics and dozens of leftover topics with remainders of all: many of these
are tried together.  Their tokens are spread over many other topics.  The plain mean count is low if many topics are
leftovers, and the mean over tokens (``of_typical``) is high if true topics differ much in size.  A topic is therefore
small only below both.
"""


# -- the protocol -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Trial:
    """Proposal to assign the atoms of some clusters differently, carried out beside the normal local step.

    Parameters
    ----------
    name
        Name, unique in a run.
    donors
        Ids of the clusters whose mass is assigned anew.
    beliefs
        Posterior over the clusters that receive this mass: some of the donors, or new ones, or both.
    focus
        The donors that matter; all of them unless given.  A mixture reassigns only the atoms of which these hold a
        noticeable share.
    rest
        Receiver of the shares that vanishing donors hold of other atoms; the first unless given.
    freed
        Donors that vanish and leave their prior mass in each group to unseen clusters instead of the receivers, if the
        model has such mass.  Only one trial of a lap may have any: the mass left by two trials does not add up.
    """

    name: str
    donors: tuple[int, ...]
    beliefs: Beliefs
    focus: tuple[int, ...] = ()
    rest: int | None = None
    freed: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Visit:
    """Result of a task on one batch: its summary, and for each trial the statistics of its receivers.

    ``newborn`` are the statistics of clusters that the task made from this batch alone (ids are negative until they
    are accepted); they replace the share of the cluster ``split`` in the summary.  Both are None without an attempt.
    ``members`` are the rows of the batch in each requested cluster, and their mass there, ``(2, m)``; ``atoms`` are
    the gathered rows among them, weighted by this mass.  In topic models ``shares`` gives the share of each token in
    such a cluster.
    ``states`` are states from which the next visit of this batch may start: under ``""`` the states of the groups, and
    under the name of a trial the states with its receivers; empty for models that keep none.
    ``lost`` says why the batch is left out, and all else is as for a batch without atoms; empty if it is not left out.
    ``assignments`` are the assignments behind the summary, kept in place of it; None if they are not smaller.
    ``before`` are the statistics of the visit before, if recomputing them takes the batch.
    """

    summary: Summary
    parts: Mapping[str, Summary]
    split: int | None = None
    newborn: Summary | None = None
    members: Mapping[int, np.ndarray] = field(default_factory=dict)
    shares: Mapping[int, Members] = field(default_factory=dict)
    atoms: Mapping[int, Batch] = field(default_factory=dict)
    states: Mapping[str, GroupStates] = field(default_factory=dict)
    lost: str = ""
    assignments: Assignments | None = None
    before: Summary | RunningTotal | None = None

    def scaled(self, factor: float) -> Visit:
        """Visit of the batch weighing ``factor``: its statistics are scaled, the states of its groups stay."""
        parts = {name: part.scale(factor) for name, part in self.parts.items()}
        newborn = None if self.newborn is None else self.newborn.scale(factor)
        held = self.assignments
        held = None if held is None else replace(held, factor=held.factor * factor)
        summary = self.summary.scale(factor)
        return replace(self, summary=summary, parts=parts, newborn=newborn, assignments=held)

    def with_summary(self, summary: Summary) -> Visit:
        """Visit with another summary and without assignments, which would not reproduce it."""
        return replace(self, summary=summary, assignments=None)


NO_PLACES = np.zeros((0, 2), np.int64)
"""No pairs of positions to track."""


class Structure(Protocol):
    """Dependence between the atoms of a batch.

    A structure is frozen and has no state; ``model`` and ``posterior`` come from the caller.  Its local step calls the
    methods of the allocation that :mod:`bnp_dask.structure.protocols` declares.
    """

    policy: MovePolicy
    """Policy by which moves treat its clusters."""

    hidden: str
    """Plural noun for the quantities of an allocation without a point estimate, such as "its weights"."""

    atom: str
    """Noun of an atom for messages, such as "step"."""

    is_tied: bool
    """Whether the clusters of atoms of one group or sequence depend on each other, so data must declare the groups."""

    is_ordered: bool
    """Whether atoms follow one another, so that a path of states leads to each."""

    has_shares: bool
    """Whether groups have weights of their own, which are predicted and scored."""

    keeps_few: bool
    """Whether statistics of one batch are mostly zeros, so that they are stored packed."""

    def require(self, allocation: Any) -> None:
        """Raise SettingError unless the allocation has all methods that the local step needs."""
        ...

    def require_fitting(self, model: WholeModel) -> None:
        """Raise SettingError unless the likelihood makes sense for this dependence between atoms."""
        ...

    def check(self, model: WholeModel, batch: Batch) -> None:
        """Raise DataError for a batch that the likelihood cannot have produced, or whose groups make no sense."""
        ...

    def keeps_states(self, model: WholeModel) -> bool:
        """Whether the next visit of a batch starts from the last states of its groups."""
        ...

    def screens(self, model: WholeModel) -> bool:
        """Whether local steps may look only at the clusters that matter to an atom."""
        ...

    def takes_words(self, model: WholeModel) -> bool:
        """Whether atoms are the word tokens of documents if data are sparse counts."""
        ...

    def effort(self, model: WholeModel, n_atoms: float, n_clusters: int) -> float:
        """Number of products in a local step on ``n_atoms`` atoms; infinite if it iterates."""
        ...

    def mass(self, batch: Batch) -> float:
        """Sum of the counts N that a batch adds to all clusters."""
        ...

    def weight(self, summary: Summary, is_sparse: bool) -> float:
        """Weight of the rows of a summary, as a survey counts it."""
        ...

    def visit(
        self,
        model: WholeModel,
        posterior: Beliefs,
        batch: Batch,
        pairs: np.ndarray,
        trials: Sequence[Trial],
        sought: Sequence[int],
        states: GroupStates | None,
        room: int,
    ) -> Visit:
        """Local step on a batch that also carries out trials on its atoms; see :meth:`bnp_dask.model.Model.visit`."""
        ...

    def steps(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step tile by tile, in order; the unions of the positions ``places (M, 2)`` are tracked.

        Rows of ``resp`` are atoms, or, for documents of counts, the words that occur in the tile.
        """
        ...

    def assign(self, model: WholeModel, posterior: Beliefs, tile: Batch, places: np.ndarray) -> LocalStep:
        """Local step on atoms that fit one tile, as :meth:`steps` gives it."""
        ...

    def labels(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Positions of the most probable clusters of atoms, in the tiles of :meth:`steps`; for a sequence, states of
        its most probable path."""
        ...

    def summarize(self, model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        """Summary of atoms with given responsibilities (times weights); their entropy counts as zero."""
        ...

    def collect(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """At most ``limit`` atoms of a batch that belong to a requested cluster, in their order."""
        ...

    def sample(self, atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
        """Sample of ``size`` collected atoms or groups, or all of them."""
        ...

    def alone(self, atoms: Batch) -> Batch:
        """Collected atoms, for callers that use them as independent."""
        ...

    def part(self, model: M, posterior: Beliefs, cluster: int | Sequence[int]) -> M:
        """Model of the atoms of one cluster, or of several."""
        ...

    def untied(self, model: M) -> M:
        """Model in which atoms are independent; the model itself if they are independent anyway."""
        ...

    def untied_summary(self, model: WholeModel, summary: Summary) -> Summary:
        """Statistics for the model of :meth:`untied`."""
        ...

    def tied_summary(self, model: WholeModel, summary: Summary, whole: Summary) -> Summary:
        """Statistics for the model; the terms of dependence come from the ``whole`` data if samples lack them."""
        ...

    def with_ties(self, model: WholeModel, summary: Summary, atoms: Batch) -> Summary:
        """Statistics of atoms with the terms of their dependence, if they are dependent."""
        ...

    def absorbed(
        self, model: WholeModel, posterior: Beliefs, value: Summary, own: Batch, others: np.ndarray
    ) -> np.ndarray:
        """Mass of a cluster's atoms, taken as independent, that each of some other clusters would take over.

        Parameters
        ----------
        model, posterior
            The model, and its current posterior.
        value
            Whole-data statistics.
        own
            Atoms of the cluster.
        others
            Ids, ``(J,)``.

        Returns
        -------
        numpy.ndarray
            ``(J,)``.
        """
        ...

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        """Log predictive density of each atom, ``(n,)`` nats; that for a sequence is spread evenly over its steps."""
        ...

    def counted(self, batch: Batch) -> Batch:
        """Atoms, or sequences, of positive weight."""
        ...

    def predict(self, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
        """Columns of new atoms, or groups: ``label``, all of ``resp`` (``soft``), or both of the ``top`` largest.

        Raises DataError for a batch that the likelihood cannot have produced.
        """
        ...

    def resp(self, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Tiles of new atoms with their responsibilities ``(n, K)``, in order; checks the batch as :meth:`predict`."""
        ...

    def n_shares(self, model: WholeModel, n_clusters: int) -> int:
        """Length of a row of soft predictions: one number per cluster, and in some models one for unseen clusters."""
        ...

    def shares(self, posterior: Beliefs) -> np.ndarray:
        """Unnormalized probability of each cluster for an atom of which nothing is known, ``(K,)``."""
        ...

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        """Expected values of the dependence between clusters, by name, in addition to estimates of the likelihood."""
        ...

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        """Random atoms, or documents of ``length`` words, and the positions of their clusters.

        Raises SettingError if a length is missing or meaningless, or if the likelihood cannot draw.
        """
        ...


def most_probable(steps: Iterable[tuple[Batch, LocalStep]]) -> Iterator[tuple[Batch, np.ndarray]]:
    """Tiles with the position of the most probable cluster of each atom, ``(n,)``; ties go to the earlier one."""
    for tile, step in steps:
        resp = step.resp if isinstance(step.resp, np.ndarray) else step.resp.to_dense()
        require_finite_rows(resp, tile, "responsibilities")
        yield tile, resp.argmax(axis=1)


def draw(index: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Random subset of at most ``limit`` positions, in their order."""
    return np.sort(rng.choice(index, limit, replace=False)) if len(index) > limit else index


def at_most(atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
    """Random subset of ``size`` atoms, or all; for atoms in groups, of ``size`` groups."""
    if atoms.groups is not None:
        few = atoms.n_groups <= size
        return atoms if few else atoms.take_groups(np.sort(rng.choice(atoms.n_groups, size, replace=False)))
    if atoms.n_atoms <= size:
        return atoms
    return atoms.take(np.sort(rng.choice(atoms.n_atoms, size, replace=False)))


def absorbed_rows(model: WholeModel, posterior: Beliefs, params: Any, own: Batch, others: np.ndarray) -> np.ndarray:
    """Mass of the atoms ``own`` that each of the clusters ``others`` would take over, ``(J,)``.

    These clusters stay unchanged, so their parameters are known.  Only their weights, ``params`` of the mixture
    ``model``, change without the cluster of these atoms.
    """
    log_lik = model.observation.expected_log_lik(posterior.observation, own)
    log_lik = np.ascontiguousarray(log_lik[:, posterior.positions(others)])
    return cluster_sums(assigned(model.allocation, params, log_lik, own, NO_PLACES).resp)


def without_data(model: WholeModel, summary: Summary) -> Summary:
    """Summary without the statistics of the observation model."""
    names = ("N", *model.of_units, *model.allocation.fields)
    fields = {name: summary.fields[name] for name in names}
    return replace(summary, fields=fields, values={name: summary[name] for name in names})
