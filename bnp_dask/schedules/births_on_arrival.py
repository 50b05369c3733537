"""Births at batches that are new to a run: decided when a batch is folded, which is then visited once more.

A new batch was assigned before its newborn clusters were there, so atoms of theirs are in several older ones.  It is
visited again with every birth until none succeeds: a pure stream never sees the batch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bnp_dask.moves.base import Split, named_by
from bnp_dask.moves.births.at_batch import matched
from bnp_dask.moves.births.move import Birth
from bnp_dask.moves.when import acts
from bnp_dask.schedules.engine.fold import ROUNDING, Folded, lose_with_step
from bnp_dask.schedules.engine.lap import (
    Remember,
    keep,
    newer_clusters,
    plan_context,
    try_split,
    void_pairs,
    with_newer_clusters,
)
from bnp_dask.schedules.engine.pipeline import Pipeline, Taken
from bnp_dask.schedules.engine.state import State, Work
from bnp_dask.structure.base import Visit

ROUNDS = 4
"""How often births at a new batch are followed by others at most.

On digits of MNIST, 1,000 of one a day, in one batch or in five a day, births ended by themselves before: twelve rounds
gave the same clusters, objectives and scores.
"""

VISITS = 2
"""Visits of a new batch after births.

The first leaves atoms of newborn clusters where they were while these still held their like.  The stream of
``tests/growing/test_dormant.py`` chose two, where one left spurious clusters; that of drifting clusters agrees.
"""

Attempt = tuple[int, Visit]
"""Number of a batch, and its visit with the attempt that is to be decided."""


def splits_of_new(work: Work, state: State, new: Sequence[int]) -> dict[int, Split]:
    """Births at new batches; none of topics, whose documents elsewhere would have no weight for them.

    All clusters of mixtures may be split: proposals of a round that name one which is are dropped.
    """
    births = [m for m in work.moves if isinstance(m, Birth) and acts(m, state.lap)]
    plan = state.plan
    policy = work.model.structure.policy
    if not births or not policy.splits_at_batches or (plan.trials and not policy.splits_beside_trials):
        return {}
    alone = policy.splits_beside_trials
    taken = set() if alone else {i for p in plan.proposals for i in named_by(p)} | set(plan.pairs.ravel().tolist())
    context = plan_context(work, state, taken)
    replace(births[0], where="batch").plan_at(context, new)
    if not alone:
        return context.splits
    everyone = tuple(sorted(state.posterior.ids.tolist()))
    return {batch: replace(split, instead=everyone) for batch, split in context.splits.items()}


def fold_new(work: Work, state: State, pipeline: Pipeline, taken: Taken, remember: Remember) -> Folded:
    """Add batches that were never visited, take the global step, and decide their births.

    The objective is that of more data then.  ``remember`` keeps their visits for the next, or passes over them where
    there will be none.
    """
    policy = work.model.structure.policy
    comes_back = policy.splits_beside_trials  # steps to and from newborn states of sequences are counted apart
    if comes_back and any(batch in state.plan.splits and _is_behind(state, found) for batch, found in taken.visits):
        taken = pipeline.again(taken.batches)
    taken = lose_with_step(work, state, taken)
    state.total.join(taken.change.with_clusters(state.total.high.ids).delta)
    value = state.total.value()
    state.posterior = state.model.global_step(value)
    state.terms = state.model.elbo(state.posterior, value)
    known = dict(keep(work, state, taken, remember))
    rows = _decided(work, state, known)
    if comes_back:
        known, more = _settled(work, state, pipeline, known, rows)
        rows = [*rows, *more]
    for batch, found in known.items():
        remember(work, state, batch, with_newer_clusters(state, found), len(state.edits))
    return "new", None, rows


def _is_behind(state: State, found: Visit) -> bool:
    """Whether clusters were born since a batch was sent out."""
    return bool(newer_clusters(state, found)) or bool(void_pairs(state, found))


def _settled(
    work: Work, state: State, pipeline: Pipeline, known: dict[int, Visit], last: list[dict[str, Any]]
) -> tuple[dict[int, Visit], list[dict[str, Any]]]:
    """Visit batches again as long as clusters are born there, ``last`` being rows of the first decisions.

    Returns what is known of them in the end, and the history rows of further decisions.
    """
    rows: list[dict[str, Any]] = []
    for number in range(1, ROUNDS + 1):
        if not any(row["accepted"] for row in last):
            break
        for again in range(VISITS):
            known = _again(work, state, pipeline, known, VISITS * number + again)
        last = _decided(work, state, known) if number < ROUNDS else []
        rows += last
    return known, rows


def _decided(work: Work, state: State, known: dict[int, Visit]) -> list[dict[str, Any]]:
    """Decide attempts at some batches, of each until one succeeds; history rows.  Changes ``known`` in place."""
    rows: list[dict[str, Any]] = []
    done: set[int] = set()
    for group in _together(state, known):
        left = [(batch, own) for batch, own in group if batch not in done]
        if not left:
            continue
        some = [replace(known[batch], split=own.split, newborn=own.newborn) for batch, own in left]
        visits, more = try_split(work, state, some, is_new=True)
        known |= {batch: found for (batch, _), found in zip(left, visits, strict=True)}
        if any(row["accepted"] for row in more):
            done |= {batch for batch, _ in left}
        rows += more
    return rows


def _together(state: State, known: Mapping[int, Visit]) -> list[list[Attempt]]:
    """Attempts at some batches, in groups that are decided together.

    Those are together that found the same clusters in the same one: as long as the others' share of them stays where
    it is, what one batch gives away is too little to be worth a cluster.
    """
    groups: list[list[Attempt]] = []
    for batch, found in ((batch, own) for batch, whole in known.items() for own in _attempts(whole)):
        for group in groups:
            first = group[0][1]
            if first.split != found.split or first.newborn is None or found.newborn is None:
                continue
            newborn = matched(state.model, first.newborn, found.newborn)
            if newborn is not None:
                group.append((batch, replace(found, newborn=newborn)))
                break
        else:
            groups.append([(batch, found)])
    return groups


def _attempts(found: Visit) -> list[Visit]:
    """One visit for each attempt that a batch made."""
    return [found, *(replace(found, split=target, newborn=born) for target, born in found.further)]


def _again(work: Work, state: State, pipeline: Pipeline, known: dict[int, Visit], number: int) -> dict[int, Visit]:
    """Visit some batches with the posterior of now, and put what is found in place of what is known of them."""
    splits = dict(state.plan.splits)
    splits |= {batch: replace(splits[batch], key=(*splits[batch].key[:3], number)) for batch in known}
    state.plan = replace(state.plan, splits=splits)
    taken, held = pipeline.again(list(known)), state.total.copy()
    for found in known.values():
        state.total.subtract(with_newer_clusters(state, found).summary)
    state.total.join(taken.change.delta)
    value = state.total.value()
    posterior = state.model.global_step(value)
    terms = state.model.elbo(posterior, value)
    if sum(terms.values()) < state.elbo - ROUNDING * sum(abs(t) for t in terms.values()):
        state.total = held  # only rounding separates the two
        return known
    state.posterior, state.terms = posterior, terms
    for name, part in taken.change.parts.items():
        state.trials[name].join(part)
        for found in known.values():
            state.trials[name].subtract(found.parts[name])
    return dict(taken.visits)
