"""Runs side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bnp_dask.analysis.score import score
from bnp_dask.core import Table, pandas_for
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.observation import unlabelled
from bnp_dask.reports.run_page import Subject, open_subject
from bnp_dask.structure import Noun, noun_of
from bnp_dask.structure.nouns import CLUSTER, in_use
from bnp_dask.training.growing.versions import objective_of_version

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client


@dataclass(frozen=True)
class RunLine:
    """A run in a comparison.

    Parameters
    ----------
    run
        Its name.
    model
        Allocation and likelihood.
    n_clusters
        K, without topics that have no tokens.
    objective
        The last objective of its history, nats; None without a history.
    heldout
        Mean log likelihood of the held-out data, nats per atom (per held-out word for topic models); None without.
    laps, seconds
        Laps done and seconds taken; None without a history.
    noun
        Noun of its clusters: clusters, topics or states.
    """

    run: str
    model: str
    n_clusters: int
    objective: float | None
    heldout: float | None
    laps: int | None
    seconds: float | None
    noun: Noun = CLUSTER


@dataclass(frozen=True)
class Comparison(Sequence[RunLine]):
    """Runs in the order given; a sequence that prints as a table."""

    lines: tuple[RunLine, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return Comparison(self.lines[index]) if isinstance(index, slice) else self.lines[index]

    def __iter__(self) -> Iterator[RunLine]:
        return iter(self.lines)

    def to_pandas(self) -> pd.DataFrame:
        """One row per run, its name as index."""
        pandas = pandas_for("to_pandas")
        return pandas.DataFrame([asdict(line) for line in self.lines]).drop(columns="noun").set_index("run")

    def __str__(self) -> str:
        return self._table().text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        return Table(_head(self.lines), [_cells(line) for line in self.lines], left=(0, 1))


def _head(lines: Sequence[RunLine]) -> tuple[str, ...]:
    """Names of the columns; runs of several kinds are said to have clusters."""
    nouns = {line.noun for line in lines}
    counted = nouns.pop() if len(nouns) == 1 else CLUSTER
    return ("run", "model", counted.many, "objective", "held-out", "laps", "seconds")


def _cells(line: RunLine) -> tuple[str, ...]:
    numbers = (line.objective, line.heldout)
    shown = ["-" if value is None else f"{value:,.{digits}f}" for value, digits in zip(numbers, (1, 4), strict=True)]
    laps, seconds = "-" if line.laps is None else str(line.laps), "-" if line.seconds is None else f"{line.seconds:.1f}"
    return line.run, line.model, str(line.n_clusters), *shown, laps, seconds


def compare(
    *runs: Subject | Sequence[Subject] | Mapping[str, Subject],
    heldout: Any = None,
    client: Client | Executor | str | None = None,
) -> Comparison:
    """Objective, held-out score and number of clusters of several runs, side by side.

    Objectives can be compared for one data set and one likelihood with one prior; held-out scores for one data set.

    Parameters
    ----------
    runs
        Results, posteriors, paths of saved posteriors or of run directories, or versions of a run (``"RUN@3"``); or
        one list of these, or one mapping from names to these.
    heldout
        Data that no run was trained on, as for :func:`bnp_dask.score`; None leaves that column empty.
    client
        As for :func:`bnp_dask.score`.

    Raises
    ------
    SettingError
        There is no run, or one is of another kind.
    """
    named: dict[str, Any]
    if len(runs) == 1 and isinstance(runs[0], Mapping):
        named = {str(name): run for name, run in runs[0].items()}
    else:
        several = runs[0] if len(runs) == 1 and isinstance(runs[0], (list, tuple)) else runs
        named = {_called(i, run): run for i, run in enumerate(several)}
    if not named:
        raise SettingError("compare() needs runs: results, posteriors, or paths of run directories")
    return Comparison(tuple(_line(name, run, heldout, client) for name, run in named.items()))


def _called(i: int, run: Any) -> str:
    return f"{i + 1}: {os.fspath(run)}" if isinstance(run, (str, os.PathLike)) else str(i + 1)


def _line(name: str, run: Any, heldout: Any, client: Any) -> RunLine:
    posterior, result = open_subject(run)
    noun, n_clusters = noun_of(posterior.model), int(in_use(posterior).sum())
    model = f"{type(posterior.model.allocation).__name__} of {type(unlabelled(posterior.model.observation)).__name__}"
    value = None if heldout is None else float(score(posterior, heldout, client=client))
    if result is None or len(result.history) == 0:
        return RunLine(name, model, n_clusters, objective_of_version(run), value, None, None, noun)
    last = result.history[-1]
    objective = float(last["elbo"]) if "elbo" in last else None
    return RunLine(name, model, n_clusters, objective, value, last.get("lap"), round(result.seconds, 3), noun)
