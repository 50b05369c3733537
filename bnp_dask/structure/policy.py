"""How moves treat the clusters of a structure: what they may look at, and how many are tried together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MovePolicy:
    """Differences of births, merges and deletes from structure to structure.

    Parameters
    ----------
    plans_side_by_side
        Whether a move begins to plan while tasks of those before it run, so that workers have more to do at once.
    splits_at_batches
        Whether one batch alone may split a cluster: where groups have weights, those of other batches would have none
        for its new clusters, and what a batch finds is tried on all data.
    splits_beside_trials
        Whether trials and splits at batches may share a lap.  A trial of a Markov chain counts transitions to and from
        every state there is, so that none may come within the lap.
    lays_away
        Whether clusters that fade can leave and return: where states of groups or of sequences name them, they stay.
    has_windows
        Whether births look for stretches of consecutive atoms too (thesis 6.5.2), and starts may be such stretches.
    asks_words
        Whether the words of documents of counts say how many clusters there are.
    rows_per_sample
        Rows of counts that a birth looks at, for each atom of ``Birth(sample=)``.
    scores_alike_only
        Whether only pairs of clusters whose words are alike are scored.
    knows_pair_weights
        Whether the allocation term of a union is known before the pair was tracked.
    bounds_unions
        Whether totals alone bound the allocation term of a union from below: where all that is not linear in the
        responsibilities is an entropy of each atom.
    refines_on_samples
        Whether atoms that were sampled of some clusters tell what these become without another.  Parts of groups do not
        add up to groups: only all data tell.
    births_beside
        Whether births re-estimate newborn clusters together with their neighbours, on samples of all of them.
    together
        Small clusters that deletes try to do without together, at most.
    retries_together
        Whether small clusters that failed together are tried together again, a quarter as many; else each alone.
    of_mean, of_typical
        A cluster is small below ``of_mean`` of the mean count, and below ``of_typical`` of the average count of the
        clusters that atoms are in; None to leave out the second.
    crowd
        Share of clusters, small and never tried, from which on deletes go before merges, which would take the
        absorbers; None for never.
    spares_absorbers
        Whether clusters that another proposal holds may be missing among those who absorb a small one.
    seen
        Atoms of a target that tell who would take over the others; None for as many as of an absorbing set.
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
    births_beside=False,
)
"""Policy for hidden Markov models."""

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
    births_beside=False,
    together=48,
    retries_together=True,
    of_mean=0.4,
    of_typical=0.2,
    crowd=0.1,
    spares_absorbers=True,
    seen=None,
)
"""Policy for topic models.

A start from many topics ends with the true ones found and dozens that hold leftovers of all: many of these are tried
together.  Leftovers are spread over many others.  The plain mean count is low itself when many topics are leftovers,
and that over tokens (``of_typical``) is high when true topics differ much in size, so that a topic is small only below
both.
"""
