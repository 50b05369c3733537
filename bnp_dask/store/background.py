"""Checkpoints that reach the disk while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from bnp_dask.store.checkpoint import Listing
from bnp_dask.store.parts import Part
from bnp_dask.store.run import RunStore, nothing


class BackgroundCommits:
    """Commits of a run, one after the other, in a thread of its own.

    Waiting for the disk is most of a commit, and workers need not wait for it.  A run that is killed meanwhile goes on
    from the previous checkpoint, as it does when it is killed during a commit.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "bnp-dask-commit")
        self._pending: Future[None] | None = None

    def commit(
        self,
        store: RunStore,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: Sequence[Mapping[str, Any]],
        listing: Listing,
        parts: Iterable[Part] = (),
        constant: Callable[[str], bool] = nothing,
        begun: bool = True,
    ) -> None:
        """As :meth:`RunStore.commit`, without waiting for the disk; StoreError also if the previous commit failed."""
        self.wait()
        prepared = store.prepare(state, arrays, history, listing, parts, constant, begun)
        self._pending = self._pool.submit(store.write, prepared)

    def wait(self) -> None:
        """Wait until everything committed is on the disk; StoreError if it cannot get there."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait until everything committed is on the disk, and take no more commits."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
