"""Samples of several clusters as one pool, on which moves re-estimate these clusters.

Rounds on a sample are compiled where the likelihood has them
(:class:`~bnp_dask.observation.base.SmallRunObservation`), and loops over the verbs of a model otherwise.  Both give the
same up to rounding: a small run proposes, and the objective of all data decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bnp_dask.core import Batch, Summary
from bnp_dask.kernels import SmallRun, Stop, is_fixed, pair_entropy
from bnp_dask.model import NO_PAIRS, Model
from bnp_dask.structure import clusters_only


def counting(atoms: Batch, count: float) -> Batch:
    """Atoms reweighted to stand for ``count`` atoms."""
    if atoms.n_atoms == 0:
        return atoms
    weights = np.ones(atoms.n_atoms) if atoms.weights is None else atoms.weights
    return replace(atoms, weights=weights * (count / weights.sum()))


def compiled(model: Model, atoms: Batch | None = None) -> SmallRun | None:
    """Compiled steps of small runs of a model, on ``atoms``.

    None for other likelihoods and allocations, known labels, links, missing entries, and sums in a fixed order.
    """
    if is_fixed() or (atoms is not None and (atoms.labels is not None or atoms.links is not None)):
        return None
    return model.small_run


def small_rounds(
    model: Model, summary: Summary, atoms: Batch, stop: Stop, rest: Summary | None = None
) -> tuple[Summary, float] | None:
    """Statistics after compiled rounds on a sample that begin with ``summary``, and their objective.

    The clusters also hold ``rest``.  None where no rounds are compiled, or if double precision cannot carry one out:
    the loops over the verbs then say why.
    """
    steps = compiled(model, atoms)
    if steps is None:
        return None
    found = steps.rounds(atoms.x, atoms.weights, summary.values, stop, None if rest is None else rest.values)
    if found is None:
        return None
    return Summary(summary.ids[found.alive], summary.fields, found.values), found.value + model.prior_term


def a_step(model: Model, summary: Summary, atoms: Batch, pairs: np.ndarray = NO_PAIRS) -> Summary:
    """Statistics after a global and a local step on a sample; ``pairs (M, 2)`` are ids whose union is tracked."""
    steps = compiled(model, atoms)
    if steps is not None:
        found = steps.rounds(atoms.x, atoms.weights, summary.values, Stop(most=1, least=0.0), keeps=len(pairs) > 0)
        if found is not None:
            tracked = {}
            if found.shares is not None:
                places = summary.positions(pairs).reshape(-1, 2)
                tracked = {"H": pair_entropy(found.shares, atoms.weights, places)}
            return Summary(summary.ids, summary.fields, found.values, pairs, tracked)
    return model.local_step(model.global_step(summary), atoms, pairs)


def best_terms(model: Model, summary: Summary) -> np.ndarray:
    """Each cluster's share of the data term of a sample at the optimal parameters, ``(K,)`` nats."""
    steps = compiled(model)
    found = None if steps is None else steps.evidence(summary.values)
    return model.best_data_terms(summary) if found is None else found


def value_with(model: Model, terms: np.ndarray, summary: Summary) -> float:
    """Objective of a sample at the optimal parameters, whose data terms are ``terms (K,)``, nats."""
    steps = compiled(model)
    if steps is None:
        return model.objective_with(terms, summary)
    found = float(terms.sum()) + float(summary["H"].sum()) + steps.allocation(summary["N"]) + model.prior_term
    return found if math.isfinite(found) else model.objective_with(terms, summary)


def best_value(model: Model, summary: Summary) -> float:
    """Objective of a sample at the optimal parameters, nats."""
    return value_with(model, best_terms(model, summary), summary)


def climb(
    model: Model,
    rest: Summary | None,
    receivers: Summary,
    atoms: Batch,
    before: float,
    sweeps: int,
    enough: float,
    least: float = 0.0,
) -> tuple[Summary, float]:
    """Assign atoms to clusters that also hold ``rest``, if any, until a step gains little.

    Returns statistics and the gain over ``before``.
    Little is less than a share ``enough`` of the distance of the objective from ``before``, or less than ``least``
    nats; at most ``sweeps`` local steps.
    """
    stop = Stop(most=sweeps, least=float(least), enough=float(enough), before=float(before))
    found = small_rounds(model, receivers, atoms, stop, rest)
    if found is not None:
        return found[0], found[1] - before
    value, posterior = -np.inf, model.global_step(receivers)
    for _ in range(sweeps):
        receivers = model.local_step(posterior, atoms)
        receivers = receivers if rest is None else rest + clusters_only(receivers)
        posterior = model.global_step(receivers)
        # at the optimal parameters, which the next step needs anyway: no evidence has to be computed
        last, value = value, sum(model.elbo(posterior, receivers).values())
        if value - last < max(enough * abs(value - before), least):
            break
    return receivers, value - before
