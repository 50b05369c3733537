"""Samples of several clusters as one pool, on which moves re-estimate these clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.core import Batch, Summary
from bnp_dask.model import Model
from bnp_dask.structure import clusters_only


def counting(atoms: Batch, count: float) -> Batch:
    """Atoms reweighted to stand for ``count`` atoms."""
    if atoms.n_atoms == 0:
        return atoms
    weights = np.ones(atoms.n_atoms) if atoms.weights is None else atoms.weights
    return replace(atoms, weights=weights * (count / weights.sum()))


def climb(
    model: Model,
    rest: Summary,
    receivers: Summary,
    atoms: Batch,
    before: float,
    sweeps: int,
    enough: float,
    least: float = 0.0,
) -> tuple[Summary, float]:
    """Assign atoms to clusters that also hold ``rest`` until a step gains little: statistics, gain over ``before``.

    Little is less than a share ``enough`` of the distance of the objective from ``before``, or less than ``least``
    nats; at most ``sweeps`` local steps.
    """
    value = -np.inf
    for _ in range(sweeps):
        receivers = rest + clusters_only(model.local_step(model.global_step(receivers), atoms))
        last, value = value, model.best_objective(receivers)
        if value - last < max(enough * abs(value - before), least):
            break
    return receivers, value - before
