"""What a task is to try out in a batch, and what it found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.summary import Summary
from bnp_dask.structure.chains import take_runs
from bnp_dask.structure.groups import Members, take_members

if TYPE_CHECKING:
    from bnp_dask.model import Posterior


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
    """

    name: str
    donors: tuple[int, ...]
    beliefs: Posterior
    focus: tuple[int, ...] = ()
    rest: int | None = None


@dataclass(frozen=True, eq=False)
class Visit:
    """What a task found in one batch: its summary, and for each trial the statistics of its receivers.

    ``newborn`` are the statistics of clusters that the task made from this batch alone (ids are negative until they
    are accepted), in place of what the summary gives the cluster ``split``; both None where there was no attempt.
    ``members`` are rows of the batch that belong to clusters whose atoms were asked for and the mass that they have
    there, ``(2, m)``, and ``atoms`` those of them that were gathered, weighted by it; in topic models ``shares`` says
    how much of each token belongs to such a cluster.
    ``states`` is where the next visit of this batch may start: under ``""`` the groups' own, and by name of a trial
    what it would give its receivers; empty for models that keep none.
    ``lost`` says why the batch is left out, and all else is that of a batch without atoms; empty where it is not.
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


def draw(index: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """At most ``limit`` of some positions, in their order."""
    return np.sort(rng.choice(index, limit, replace=False)) if len(index) > limit else index


def take_sought(batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator, chained: bool) -> Batch:
    """At most ``limit`` of the atoms of a batch that belong to a cluster that was sought, in their order.

    They are drawn without replacement, and weighted by their mass there: clusters that overlap would otherwise look as
    if they had the atoms between them twice.  Of sequences (``chained``) they are runs of steps, each a sequence of
    what is returned.  In topic models these are parts of groups: of at most ``limit`` groups that have a sizeable share
    of the cluster, what the cluster has of each (see :func:`bnp_dask.structure.groups.take_members`).
    """
    share = found.shares.get(cluster)
    if share is not None:
        return take_members(batch, share, draw(share.groups, limit, rng))
    members = found.members[cluster]
    if chained:
        return take_runs(batch, members[0], members[1], limit, rng)
    drawn = draw(np.arange(members.shape[1]), limit, rng)
    return replace(batch.take(members[0, drawn].astype(np.int64)), weights=members[1, drawn])
