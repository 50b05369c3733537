"""Check before a run starts whether it fits its workers, and which sizes would fit.

Batches that are read ahead (``execute.ahead``) are not counted: they are read only if a worker has room for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.core import Survey
from bnp_dask.data import Source, spans_of
from bnp_dask.errors import SettingError
from bnp_dask.structure import CLUSTER, Noun

PROGRAM_BYTES = 200 * 10**6
"""Bytes of a worker before it reads anything: Python, NumPy, Numba, Dask (measured: 270 MB)."""

KILLED_AT = 0.95
"""Share of its limit at which Dask ends a worker."""

COPIES = 2
"""A task holds the posterior it was sent and the summary that it makes, each about the size of a summary."""

MEMORY = "256MB"
"""Memory of the training process for data of single batches."""

MEMORY_BYTES = 256 * 10**6
"""Bytes of :data:`MEMORY`: Dask, which reads such texts, is not loaded for the default."""


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of the workers, against which sizes are checked.

    Parameters
    ----------
    limit
        Bytes that the smallest worker may take; None without a limit: then everything fits.
    """

    limit: int | None

    @property
    def room(self) -> float:
        """Bytes for a batch and the model; infinite without a limit."""
        return np.inf if self.limit is None else KILLED_AT * self.limit - PROGRAM_BYTES

    def require_batches(self, source: Source) -> None:
        """Raise SettingError if a batch of dense rows of known length cannot be read by any worker."""
        if self.limit is None or source.is_sparse or not (spans := spans_of(source)):
            return
        rows = np.diff(np.array(spans), axis=1)[:, 0]
        self._require_batch(source.name, int(rows.argmax()), int(rows.max()), 8 * source.n_features * int(rows.max()))

    def require_surveyed(self, source: Source, survey: Survey) -> None:
        """Raise SettingError if a batch of any data that were read once does not fit a worker."""
        largest = int(np.argmax(survey.batch_bytes))
        grouped = survey.n_groups > 0 and not survey.is_sparse
        self._require_batch(source.name, largest, survey.batch_atoms[largest], survey.batch_bytes[largest], grouped)

    def _require_batch(self, name: str, batch: int, atoms: int, nbytes: int, grouped: bool = False) -> None:
        if nbytes <= self.room:
            return
        # two batches should fit: the next one is on its way while one is worked on
        fitting = int(max(self.room, 0.0) / 2 * atoms / nbytes)
        whole = f"; a longer group or sequence stays whole unless cut={fitting} allows to cut it" if grouped else ""
        size = f"(batch_size={fitting}{whole})"
        fix = f"cut the data into batches of at most {fitting} atoms {size}, or " if fitting else ""
        raise SettingError(
            f"{name} batch {batch} takes {_size(nbytes)} in memory, but {self._worker()}: {fix}"
            f"give workers at least {_size((PROGRAM_BYTES + 2 * nbytes) / KILLED_AT)}"
        )

    def require_model(
        self, n_clusters: int, summary_bytes: int, batch_bytes: int, n_states: int = 1, noun: Noun = CLUSTER
    ) -> None:
        """Raise SettingError if a batch beside the model, or beside all states that visit it, cannot be held.

        Parameters
        ----------
        n_clusters
            Clusters K at the start.
        summary_bytes
            Bytes of a summary of K clusters.
        batch_bytes
            Bytes of the largest batch.
        n_states
            States of that size that visit a batch in one task.
        noun
            Noun of the clusters.
        """
        needed = n_states * COPIES * summary_bytes
        if needed + batch_bytes <= self.room:
            return
        left = self.room - batch_bytes
        fitting = int(left / needed * n_clusters)
        fix = f"start with at most {noun.count(fitting)}, " if fitting > 0 else ""
        them, take = (f"{n_states} starts of a model", "take") if n_states > 1 else ("a model", "takes")
        raise SettingError(
            f"{them} of {noun.count(n_clusters)} {take} {_size(needed)} of a worker's memory, beside a batch of "
            f"{_size(batch_bytes)}, but {self._worker()}: {fix}cut the data into smaller batches (batch_size=), or "
            f"give workers at least {_size((PROGRAM_BYTES + needed + 2 * batch_bytes) / KILLED_AT)}"
        )

    def _worker(self) -> str:
        assert self.limit is not None
        return f"a worker has {_size(self.limit)}, of which {_size(max(self.room, 0.0))} are free for data and model"


def _size(nbytes: float) -> str:
    """Bytes in a unit that Dask understands, rounded up."""
    for unit, one in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= one:
            return f"{np.ceil(10 * nbytes / one) / 10:g}{unit}"
    return f"{int(np.ceil(nbytes / 1000))}kB"


def parse_memory(memory: int | str) -> int:
    """Number of bytes; SettingError unless it is at least one."""
    if memory == MEMORY:
        return MEMORY_BYTES
    from dask.utils import parse_bytes

    try:
        found = parse_bytes(memory) if isinstance(memory, (int, float, str)) and not isinstance(memory, bool) else 0
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise SettingError(f"memory={memory!r}: needs a positive number of bytes, or text such as '256MB'")
    return int(found)


def rooms(memory: int, has_shadows: bool) -> tuple[int, int]:
    """Bytes of single batches that the state of a run may hold here, and that a second state may hold."""
    beside = memory // 2 if has_shadows else 0
    return memory - beside, beside
