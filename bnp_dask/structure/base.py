"""How atoms hang together: everything that differs between mixtures, groups and sequences, as one protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_rows
from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.kernels.mixture.resp import Resp, cluster_sums
from bnp_dask.observation.interface.describing import Estimate
from bnp_dask.structure.answers.labels import Columns
from bnp_dask.structure.asking import Beliefs, M, WholeModel
from bnp_dask.structure.assignments import Assignments
from bnp_dask.structure.policy import MovePolicy
from bnp_dask.structure.steps import LocalStep, Members


@dataclass(frozen=True, eq=False)
class Trial:
    """A proposal to assign the atoms of some clusters otherwise, carried out beside the normal local step.

    Parameters
    ----------
    name
        Unique in a run.
    donors
        Ids of the clusters whose mass is assigned anew.
    beliefs
        Posterior over the clusters that receive it: some of the donors, or new ones, or both.
    focus
        The donors that matter; all of them unless given.  A mixture assigns only those atoms anew of which they hold
        a noticeable share.
    rest
        The receiver that is given what vanishing donors hold of other atoms; the first unless given.
    freed
        Donors that vanish and leave their prior mass in each group to clusters that were not met yet, where a model has
        such mass, and not to the receivers.  Of the trials of a lap only one may have any: what two would leave does
        not add up.
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
    are accepted), in place of what the summary gives the cluster ``split``; both None where there was no attempt.
    ``members`` are rows of the batch that belong to clusters whose atoms were asked for and the mass that they have
    there, ``(2, m)``, and ``atoms`` those of them that were gathered, weighted by it; in topic models ``shares`` says
    how much of each token belongs to such a cluster.
    ``states`` is where the next visit of this batch may start: under ``""`` the groups' own, and by name of a trial
    what it would give its receivers; empty for models that keep none.
    ``lost`` says why the batch is left out, and all else is that of a batch without atoms; empty where it is not.
    ``assignments`` are what the summary came from, to be kept in place of it; None where that is not smaller.
    ``before`` are the statistics of the visit before, where it takes the batch to tell them.
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
        """Visit with another summary, which its assignments do not give."""
        return replace(self, summary=summary, assignments=None)


NO_PLACES = np.zeros((0, 2), np.int64)
"""No pairs of positions to track."""


class Structure(Protocol):
    """How the atoms of a batch hang together.

    A structure is frozen and has no state; ``model`` and ``posterior`` are those that ask.  Its local step calls the
    verbs of the allocation that :mod:`bnp_dask.structure.verbs` names.
    """

    policy: MovePolicy
    """How moves treat its clusters."""

    hidden: str
    """Plural noun of that of an allocation which has no point estimate, such as "its weights"."""

    atom: str
    """Noun of an atom for messages, such as "step"."""

    is_tied: bool
    """Whether the clusters of atoms of one group or sequence depend on each other, so that data must say its atoms."""

    is_ordered: bool
    """Whether atoms follow one another: each has a path of states behind it."""

    has_shares: bool
    """Whether groups have weights of their own, which is what is predicted and scored of them."""

    keeps_few: bool
    """Whether statistics of one batch are mostly zeros, so that they are packed to be kept."""

    def require(self, allocation: Any) -> None:
        """SettingError unless the allocation has all verbs that its local step needs."""
        ...

    def require_fitting(self, model: WholeModel) -> None:
        """SettingError unless the likelihood makes sense for atoms that hang together so."""
        ...

    def check(self, model: WholeModel, batch: Batch) -> None:
        """DataError for a batch that the likelihood cannot have produced, or whose groups make no sense."""
        ...

    def keeps_states(self, model: WholeModel) -> bool:
        """Whether the next visit of a batch starts from where its groups stood."""
        ...

    def screens(self, model: WholeModel) -> bool:
        """Whether local steps may look only at the clusters that matter to an atom."""
        ...

    def takes_words(self, model: WholeModel) -> bool:
        """Whether atoms are the word tokens of documents, where data are sparse counts."""
        ...

    def effort(self, model: WholeModel, n_atoms: float, n_clusters: int) -> float:
        """Products that a local step on so many atoms takes; infinite where it takes many steps."""
        ...

    def mass(self, batch: Batch) -> float:
        """Sum of the counts N that a batch adds to all clusters."""
        ...

    def weight(self, summary: Summary, is_sparse: bool) -> float:
        """Weight of the rows of a summary as a survey counts it."""
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

        Rows of ``resp`` are atoms; of documents of counts they are the words that the tile has.
        """
        ...

    def assign(self, model: WholeModel, posterior: Beliefs, tile: Batch, places: np.ndarray) -> LocalStep:
        """Local step on atoms that fit one tile, as :meth:`steps` gives it."""
        ...

    def labels(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Positions of the most probable clusters of atoms as :meth:`steps` gives them; of a sequence those of its most
        probable path."""
        ...

    def summarize(self, model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        """Summary of atoms with given responsibilities (times weights); their entropy counts as zero."""
        ...

    def collect(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """At most ``limit`` of the atoms of a batch that belong to a cluster that was sought, in their order."""
        ...

    def sample(self, atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
        """``size`` of the atoms or groups that were collected, or all."""
        ...

    def alone(self, atoms: Batch) -> Batch:
        """Collected atoms for those who look at them one by one."""
        ...

    def part(self, model: M, posterior: Beliefs, cluster: int) -> M:
        """The model of the atoms of one cluster."""
        ...

    def untied(self, model: M) -> M:
        """The model of atoms that are looked at one by one; the model itself where they are independent anyway."""
        ...

    def untied_summary(self, model: WholeModel, summary: Summary) -> Summary:
        """Statistics as the model of :meth:`untied` has them."""
        ...

    def tied_summary(self, model: WholeModel, summary: Summary, whole: Summary) -> Summary:
        """Statistics as the model has them; how atoms are tied is taken from the ``whole`` data where samples do not
        say."""
        ...

    def with_ties(self, model: WholeModel, summary: Summary, atoms: Batch) -> Summary:
        """Statistics of atoms with the terms of how they are tied, where they are."""
        ...

    def absorbed(
        self, model: WholeModel, posterior: Beliefs, value: Summary, own: Batch, others: np.ndarray
    ) -> np.ndarray:
        """Mass of a cluster's atoms, looked at one by one, that each of some others would take over.

        Parameters
        ----------
        model, posterior
            The model, and the beliefs in force.
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
        """Log predictive density of each atom, ``(n,)`` nats; that of a sequence is spread evenly over its steps."""
        ...

    def counted(self, batch: Batch) -> Batch:
        """The atoms, or sequences, whose weight is positive."""
        ...

    def predict(self, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
        """Columns of new atoms, or groups: ``label``, all of ``resp`` (``soft``), or both of the ``top`` largest.

        DataError for a batch that the likelihood cannot have produced.
        """
        ...

    def resp(self, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Tiles of new atoms with their responsibilities ``(n, K)``, in order; checks the batch as :meth:`predict`."""
        ...

    def n_shares(self, model: WholeModel, n_clusters: int) -> int:
        """Numbers in a row of soft predictions: one for each cluster, and perhaps one for all that were not met yet."""
        ...

    def shares(self, posterior: Beliefs) -> np.ndarray:
        """Chance of each cluster at an atom of which nothing is known, in proportion, ``(K,)``."""
        ...

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        """Expected values of how clusters are tied, by name, beside those of the likelihood."""
        ...

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        """Random atoms, or documents of ``length`` words, and the positions of their clusters.

        SettingError where a length is missing, or means nothing, or the likelihood says not how to draw.
        """
        ...


def most_probable(steps: Iterable[tuple[Batch, LocalStep]]) -> Iterator[tuple[Batch, np.ndarray]]:
    """Tiles with the position of the most probable cluster of each atom, ``(n,)``; ties go to the earlier one."""
    for tile, step in steps:
        resp = step.resp if isinstance(step.resp, np.ndarray) else step.resp.to_dense()
        require_finite_rows(resp, tile, "responsibilities")
        yield tile, resp.argmax(axis=1)


def draw(index: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """At most ``limit`` of some positions, in their order."""
    return np.sort(rng.choice(index, limit, replace=False)) if len(index) > limit else index


def at_most(atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
    """``size`` of the atoms, or all; of atoms in groups so many groups."""
    if atoms.groups is not None:
        few = atoms.n_groups <= size
        return atoms if few else atoms.take_groups(np.sort(rng.choice(atoms.n_groups, size, replace=False)))
    if atoms.n_atoms <= size:
        return atoms
    return atoms.take(np.sort(rng.choice(atoms.n_atoms, size, replace=False)))


def absorbed_rows(model: WholeModel, posterior: Beliefs, params: Any, own: Batch, others: np.ndarray) -> np.ndarray:
    """Mass of the atoms ``own`` that each of the clusters ``others`` would take over, ``(J,)``.

    They stay what they are, so that their parameters are known; only their weights, ``params`` of the mixture
    ``model``, are others without the cluster whose atoms these are.
    """
    log_lik = model.observation.expected_log_lik(posterior.observation, own)
    log_lik = np.ascontiguousarray(log_lik[:, posterior.positions(others)])
    allocation: Any = model.allocation
    return cluster_sums(allocation.local_step(params, log_lik, own, NO_PLACES).resp)


def without_data(model: WholeModel, summary: Summary) -> Summary:
    """Summary without the statistics of the observation model."""
    names = ("N", *model.allocation.fields)
    fields = {name: summary.fields[name] for name in names}
    return replace(summary, fields=fields, values={name: summary[name] for name in names})
