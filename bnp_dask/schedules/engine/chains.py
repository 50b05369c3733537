"""Where the chains of a sampler stand between two steps, and how checkpoints hold that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from bnp_dask.allocation.base import SmallSlices
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import RunningTotal
from bnp_dask.model import Model
from bnp_dask.store.parts import Part

NAME = "chain"
"""How the names of arrays of chains begin."""


@dataclass
class Sweep:
    """An unfinished sweep of one chain: sums over the batches so far.

    ``small`` as in :class:`Chain`, for the clusters of ``total``; ``rows (R,)`` are the clusters of the rows that are
    noted, -1 where they were not met yet; ``limit`` is that of the weights
    (:class:`~bnp_dask.allocation.base.DrawnWeights`).
    """

    total: RunningTotal
    small: SmallSlices
    rows: np.ndarray
    limit: float | None


@dataclass
class Chain:
    """One chain after its last sweep.

    Parameters
    ----------
    total
        Statistics of the clusters.
    small
        What the next sweep has to know of its slices; None before the first sweep.
    next_id
        Id of the next cluster.
    log_joint
        Log probability of assignments and data, nats.
    sweep
        The sweep that goes on; None between two sweeps.
    """

    total: Summary
    small: SmallSlices | None
    next_id: int
    log_joint: float = 0.0
    sweep: Sweep | None = None


@dataclass
class Sampler:
    """All chains, and the draws that were kept: the lap of each (from 1) and the file with its arrays."""

    chains: list[Chain]
    draws: list[tuple[int, Part]] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        """Files that hold draws."""
        return [part for _, part in self.draws]


def sampler_to_json(sampler: Sampler | None) -> dict[str, Any] | None:
    """Everything that is not an array."""
    if sampler is None:
        return None
    chains = [
        [c.next_id, c.log_joint, c.small is not None, None if c.sweep is None else [c.sweep.limit]]
        for c in sampler.chains
    ]
    return {"chains": chains, "draws": [[lap, list(astuple(part))] for lap, part in sampler.draws]}


def sampler_to_arrays(sampler: Sampler | None) -> dict[str, np.ndarray]:
    """All arrays, named."""
    out: dict[str, np.ndarray] = {}
    for number, chain in enumerate([] if sampler is None else sampler.chains):
        held = {"total": chain.total}
        if chain.small is not None:
            out |= _slices_to_arrays(f"{NAME}{number}/small", chain.small)
        if chain.sweep is not None:
            held |= {"high": chain.sweep.total.high, "low": chain.sweep.total.low}
            out |= _slices_to_arrays(f"{NAME}{number}/next", chain.sweep.small)
            out[f"{NAME}{number}/rows"] = chain.sweep.rows
        for name, summary in held.items():
            out |= {f"{NAME}{number}/{name}/{key}": value for key, value in summary.to_arrays().items()}
    return out


def sampler_from_saved(
    model: Model, numbers: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]
) -> Sampler | None:
    """Inverse of :func:`sampler_to_json` and :func:`sampler_to_arrays`."""
    if numbers is None:
        return None

    def summary(name: str) -> Summary:
        own = {key.removeprefix(name + "/"): a for key, a in arrays.items() if key.startswith(name + "/")}
        return Summary.from_arrays(model.fields, own)

    chains = []
    for number, (next_id, log_joint, has_small, sweep) in enumerate(numbers["chains"]):
        name = f"{NAME}{number}"
        small = _slices_from(f"{name}/small", arrays) if has_small else None
        going = None
        if sweep is not None:
            total = RunningTotal(summary(f"{name}/high"), summary(f"{name}/low"))
            going = Sweep(total, _slices_from(f"{name}/next", arrays), np.array(arrays[f"{name}/rows"]), sweep[0])
        chains.append(Chain(summary(f"{name}/total"), small, next_id, log_joint, going))
    return Sampler(chains, [(lap, Part(*part)) for lap, part in numbers["draws"]])


def _slices_to_arrays(name: str, small: SmallSlices) -> dict[str, np.ndarray]:
    return {f"{name}/{key}": value for key, value in vars(small).items()}


def _slices_from(name: str, arrays: Mapping[str, np.ndarray]) -> SmallSlices:
    return SmallSlices(*(np.array(arrays[f"{name}/{key}"]) for key in ("place", "uniform", "offset")))
