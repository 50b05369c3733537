"""Policies by which moves treat the clusters of a structure."""

from __future__ import annotations

from dataclasses import dataclass


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
        Whether births re-estimate newborn clusters together with their neighbours, on samples of all of them.
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
    refines_births=True,
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

A start from many topics ends with the true topics and dozens of leftover topics with remainders of all: many of these
are tried together.  Their tokens are spread over many other topics.  The plain mean count is low if many topics are
leftovers, and the mean over tokens (``of_typical``) is high if true topics differ much in size.  A topic is therefore
small only below both.
"""
