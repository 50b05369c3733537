"""The folder of a demonstration, and its training there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnp_dask.cli.console import log_lines, open_client, show_bar
from bnp_dask.cli.jobfile import ClientSpec
from bnp_dask.inputs import say
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.training.results import TrainResult


@dataclass(frozen=True)
class Stage:
    """Folder, training and output of a demonstration.

    Parameters
    ----------
    folder
        Its own directory.
    workers
        Processes to start.
    laps
        Limit of laps, or None for the demonstration's own.
    quiet
        Print results only.
    """

    folder: Path
    workers: int
    laps: int | None
    quiet: bool

    def say(self, line: str) -> None:
        """Print a line, unless quiet."""
        say(line, self.quiet)

    def path(self, name: str) -> str:
        """A file in the directory, as it is shown and opened."""
        return os.path.relpath(self.folder / name)

    def tell_of_end(self, result: TrainResult) -> None:
        """Say how much more passes over the data would gain, if the run stopped at its limit."""
        if not result.converged and result.reason.startswith("limit") and len(result.history) > 1:
            laps = [row["elbo"] for row in result.history if "elbo" in row and row.get("lap")]
            gain = (laps[-1] - laps[-2]) / max(abs(laps[-2]), 1e-300) if len(laps) > 1 else 0.0
            say(
                f"not converged yet: the last pass raised the objective by {gain:.2%}; more passes (--laps "
                f"{2 * int(result.history[-1]['lap'])}) split and unite a few more clusters"
            )

    def train(self, model: Model, store: str, init: Any, schedule: Any) -> TrainResult:
        """Train on a store with a cluster of processes that lives as long as the training."""
        import warnings

        from bnp_dask.training.callbacks import Progress
        from bnp_dask.training.train import ConvergenceWarning, train

        callbacks = [Progress()] if show_bar(self.quiet) else []
        with (
            warnings.catch_warnings(),
            open_client(ClientSpec(workers=self.workers), self.quiet) as client,
            log_lines(self.quiet),
        ):
            # a demonstration stops early on purpose, and prints that
            warnings.simplefilter("ignore", ConvergenceWarning)
            return train(
                model,
                store,
                init=init,
                schedule=schedule,
                moves=[Birth(), Merge(), Delete()],
                client=client,
                store=self.path("run"),
                callbacks=callbacks,
                rng=0,
            )
