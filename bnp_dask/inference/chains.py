"""State of a sampler's chains between two steps, and its form in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.allocation import TABLED
from bnp_dask.core import Field, RunningTotal, Summary
from bnp_dask.model import Model
from bnp_dask.store import Part

NAME = "chain"
"""Prefix of the names of arrays of chains."""

PINNED = "pinned"
"""Kind of a sampler whose chains keep one atom of each cluster in its place; empty in versions up to 0.2."""


TABLES = "tables"
"""Field of chains of models with a top level: how often each cluster was drawn from it."""


def chain_fields(model: Model) -> Mapping[str, Field]:
    """Fields of the statistics of a chain: the model's, and tables if it has a top level."""
    if isinstance(model.allocation, TABLED):
        return {**model.fields, TABLES: Field(("cluster",))}
    return model.fields


def empty_of_chain(model: Model, ids: np.ndarray) -> Summary:
    """Statistics of no atoms in a chain."""
    empty = model.empty_summary(ids)
    more = {name: np.zeros(len(ids)) for name in chain_fields(model) if name not in empty.fields}
    return replace(empty, fields=chain_fields(model), values={**empty.values, **more})


def of_model(model: Model, total: Summary) -> Summary:
    """Statistics of a chain without the fields that only chains have."""
    fields = model.fields
    return replace(total, fields=fields, values={name: total.values[name] for name in fields})


@dataclass(frozen=True, eq=False)
class Pins:
    """One atom of each cluster: the atom whose random number is least.

    Numbers are uniform and independent of the partition, so that all atoms of a cluster are equally likely.

    Parameters
    ----------
    number
        The atom's random number, ``(K,)``; infinite before the first atom was met.
    batch, row
        Batch and row of the atom, ``(K,)``.
    """

    number: np.ndarray
    batch: np.ndarray
    row: np.ndarray

    @staticmethod
    def none(n_clusters: int) -> Pins:
        """Pins of clusters without atoms."""
        nowhere = np.full(n_clusters, -1)
        return Pins(np.full(n_clusters, np.inf), nowhere, nowhere.copy())

    def take(self, places: np.ndarray) -> Pins:
        """Pins of some clusters."""
        return Pins(self.number[places], self.batch[places], self.row[places])

    def put(self, places: np.ndarray, other: Pins) -> Pins:
        """These pins with the pins of ``other`` for the clusters at some places, which may be new."""
        wide = self._longer(max(len(self.number), int(places.max()) + 1))
        for name, held in vars(wide).items():
            held[places] = getattr(other, name)
        return wide

    def or_less(self, other: Pins) -> Pins:
        """The lesser of two, cluster by cluster; ``other`` may have more clusters."""
        known = self.number
        if len(other.number) > len(known):
            return self._longer(len(other.number)).or_less(other)
        less = other.number < known
        chosen = (np.where(less, getattr(other, name), held) for name, held in vars(self).items())
        return Pins(*chosen)

    def _longer(self, n_clusters: int) -> Pins:
        more = Pins.none(n_clusters - len(self.number))
        return Pins(*(np.concatenate([held, getattr(more, name)]) for name, held in vars(self).items()))


@dataclass
class Sweep:
    """An unfinished sweep of one chain: sums over the batches so far.

    ``pins`` are the pins of the clusters of ``total`` for the next sweep; ``rows (R,)`` are the clusters of the noted
    rows, -1 before they were met.  ``opened`` are the top level's weights of the topics that the last batch opened,
    with which the sweep ends, so that they are never saved.
    """

    total: RunningTotal
    pins: Pins
    rows: np.ndarray
    opened: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass
class Chain:
    """One chain after its last sweep.

    Parameters
    ----------
    total
        Statistics of the clusters.
    pins
        The atom of each cluster that the next sweep leaves in its place; None before the first sweep.
    next_id
        Id of the next cluster.
    log_joint
        Log probability of assignments and data, nats.
    sweep
        The unfinished sweep; None between two sweeps.
    """

    total: Summary
    pins: Pins | None
    next_id: int
    log_joint: float = 0.0
    sweep: Sweep | None = None


@dataclass
class Sampler:
    """All chains, and the draws that were kept: the lap of each (from 1) and the file with its arrays.

    ``kind`` is empty for a sampler of a version up to 0.2, whose chains have no pins.  ``noted (R, 2)`` holds batch and
    row of each row whose clusters are kept; the schedule sets it at the beginning of a lap, and it is not saved.
    """

    chains: list[Chain]
    draws: list[tuple[int, Part]] = field(default_factory=list)
    kind: str = PINNED
    noted: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))

    @property
    def parts(self) -> list[Part]:
        """Files that hold draws."""
        return [part for _, part in self.draws]


def sampler_to_json(sampler: Sampler | None) -> dict[str, Any] | None:
    """All of a sampler that is not an array."""
    if sampler is None:
        return None
    chains = [[c.next_id, c.log_joint, c.pins is not None, c.sweep is not None] for c in sampler.chains]
    draws = [[lap, list(astuple(part))] for lap, part in sampler.draws]
    return {"kind": sampler.kind, "chains": chains, "draws": draws}


def sampler_to_arrays(sampler: Sampler | None) -> dict[str, np.ndarray]:
    """All arrays, named."""
    out: dict[str, np.ndarray] = {}
    for number, chain in enumerate([] if sampler is None else sampler.chains):
        held = {"total": chain.total}
        if chain.pins is not None:
            out |= _pins_to_arrays(f"{NAME}{number}/pins", chain.pins)
        if chain.sweep is not None:
            held |= {"high": chain.sweep.total.high, "low": chain.sweep.total.low}
            out |= _pins_to_arrays(f"{NAME}{number}/next", chain.sweep.pins)
            out[f"{NAME}{number}/rows"] = chain.sweep.rows
        for name, summary in held.items():
            out |= {f"{NAME}{number}/{name}/{key}": value for key, value in summary.to_arrays().items()}
    return out


def sampler_from_saved(
    model: Model, numbers: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]
) -> Sampler | None:
    """Inverse of :func:`sampler_to_json` and :func:`sampler_to_arrays`.

    Chains of a version up to 0.2 have totals and draws; their data on slices are ignored.
    """
    if numbers is None:
        return None

    def summary(name: str) -> Summary:
        own = {key.removeprefix(name + "/"): a for key, a in arrays.items() if key.startswith(name + "/")}
        return Summary.from_arrays(chain_fields(model), own)

    kind, chains = numbers.get("kind", ""), []
    for number, (next_id, log_joint, has_pins, sweep) in enumerate(numbers["chains"]):
        name = f"{NAME}{number}"
        pins = _pins_from(f"{name}/pins", arrays) if kind and has_pins else None
        going = None
        if sweep:
            total = RunningTotal(summary(f"{name}/high"), summary(f"{name}/low"))
            after = _pins_from(f"{name}/next", arrays) if kind else Pins.none(total.high.n_clusters)
            going = Sweep(total, after, np.array(arrays[f"{name}/rows"]))
        chains.append(Chain(summary(f"{name}/total"), pins, next_id, log_joint, going))
    return Sampler(chains, [(lap, Part(*part)) for lap, part in numbers["draws"]], kind)


def _pins_to_arrays(name: str, pins: Pins) -> dict[str, np.ndarray]:
    return {f"{name}/{key}": value for key, value in vars(pins).items()}


def _pins_from(name: str, arrays: Mapping[str, np.ndarray]) -> Pins:
    return Pins(*(np.array(arrays[f"{name}/{key}"]) for key in ("number", "batch", "row")))
