"""Grid search over settings of a prior, by their predictions of the first part of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import WINDOW, computing_as, needs_of
from bnp_dask.core import Batch, RunningTotal, Survey, require_atoms
from bnp_dask.core.survey import extend
from bnp_dask.data import CountedSource, Reader, Source, batch_reader, columns_of, naming_batch, taking_lags
from bnp_dask.data.sources.open import opened
from bnp_dask.errors import SettingError, answering
from bnp_dask.execute import Executor, in_order, open_executor
from bnp_dask.inference import check_urn, site_of, survey_checked, threshold, with_site
from bnp_dask.inputs import share_below_one, shown, whole_number
from bnp_dask.model import Model
from bnp_dask.structure import noun_of

if TYPE_CHECKING:
    from distributed import Client

MOST = 10_000
"""Most combinations of settings: each is a pass over the first part."""


@dataclass(frozen=True)
class GridLine:
    """One combination of settings.

    Parameters
    ----------
    settings
        Values by name.
    model
        The model with these settings, its other priors as they were given.
    score
        Log predictive density of the first part, each atom given the atoms before it, mean per atom, nats.
    n_clusters
        Clusters that the filter opened.
    """

    settings: Mapping[str, Any]
    model: Model
    score: float
    n_clusters: int


@dataclass(frozen=True)
class Grid(Sequence[GridLine]):
    """Combinations of settings, the best first; prints one a line.

    Parameters
    ----------
    lines
        The combinations; ties in the grid's order.
    n_atoms
        Atoms of the first part.
    """

    lines: tuple[GridLine, ...]
    n_atoms: int

    @property
    def best(self) -> Model:
        """The model of the highest score."""
        return self.lines[0].model

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return replace(self, lines=self.lines[index]) if isinstance(index, slice) else self.lines[index]

    def __str__(self) -> str:
        names = [", ".join(f"{name}={value}" for name, value in line.settings.items()) for line in self.lines]
        wide = max(map(len, names), default=0)
        rows = [
            f"{name.ljust(wide)}  {line.score:.4f} nats per atom, {noun_of(line.model).count(line.n_clusters)}"
            for name, line in zip(names, self.lines, strict=True)
        ]
        return "\n".join([f"first {self.n_atoms} atoms, each given the atoms before it:", *rows])

    __repr__ = __str__


@answering
def grid(
    model: Model,
    data: Any,
    settings: Mapping[str, Sequence[Any]],
    *,
    first: int = 1000,
    epsilon: float | None = None,
    weights: Any = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> Grid:
    """Rank settings of a mixture's prior by how well a filter predicts the first part of a stream with them.

    Each combination of settings is filtered over the same atoms, in parallel on workers.  They are ranked by the sum of
    the log probabilities of each atom given the atoms before it: an estimate of the log evidence (Tank, Foti & Fox
    2015, section S4.1, hold out some atoms of that part instead).  The rest of the stream is not read.

    Parameters
    ----------
    model
        A ``DPMixture``, ``PitmanYorMixture``, ``NGGPMixture`` or ``NRMMixture`` with any likelihood.
    data
        As for :func:`bnp_dask.train`.
    settings
        Values of each setting by its name in the allocation, such as ``{"a": [1, 10, 100], "tau": [1, 100]}``, or
        else in the observation model, such as ``{"lam": [0.1, 0.5]}``; all combinations are tried.
    first
        Atoms of the first part; all if the data have fewer.  Priors that are set from data are set from these.
    epsilon
        As in :class:`~bnp_dask.inference.streaming.Filter`; one number for all compares them at one threshold.
    weights, batch_size, client
        As for :func:`bnp_dask.train`.

    Returns
    -------
    Grid
        All combinations, best first; ``bnp.train(found.best, data, schedule=bnp.Filter())`` goes on with the best.

    Raises
    ------
    SettingError
        A setting that the model does not have, or that has no value; a value that the model refuses; a model that
        cannot be filtered.
    DataError
        As for :func:`bnp_dask.train`.
    """
    if not isinstance(model, Model):
        raise SettingError(f"model={shown(model)}: needs a Model, such as Model(NGGPMixture(), Gaussian())")
    first = whole_number("first", first, 1)
    epsilon = None if epsilon is None else float(share_below_one("epsilon", epsilon, "a probability"))
    tried = [(chosen, _with(model, chosen)) for chosen in _combinations(model, settings)]
    for _, each in tried:
        check_urn(each, "grid()")
    source = opened(data, needs_of(model), batch_size, weights)
    columns, source = columns_of(source), CountedSource(taking_lags(source, model.lags), model.structure.counted)
    with computing_as(model), open_executor(client) as runner:
        pieces, survey = _first_part(model, source, first, runner)
        if columns is not None:
            survey = replace(survey, names=columns.shown, levels=columns.levels)
        names = None if columns is None else columns.features
        ready = [each.with_columns(names).with_prior(survey) for _, each in tried]
        found = _predicted(ready, epsilon, pieces, runner)
    lines = [
        GridLine(chosen, each, own.log_predictive / survey.total_weight, own.n_clusters)
        for (chosen, each), own in zip(tried, found, strict=True)
    ]
    return Grid(tuple(sorted(lines, key=lambda line: -line.score)), survey.n_atoms)


def _combinations(model: Model, settings: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of values by name; SettingError for a meaningless name or values."""
    example = 'such as {"a": [1.0, 10.0], "tau": [1.0, 100.0]}'
    if not isinstance(settings, Mapping) or not settings:
        raise SettingError(f"settings={shown(settings)}: needs values of each setting, {example}")
    own = {part: _names(part) for part in (model.allocation, model.observation)}
    for name, values in settings.items():
        if not any(name in names for names in own.values()):
            known = "; ".join(f"{type(part).__name__} has {', '.join(names)}" for part, names in own.items())
            raise SettingError(f"settings: no setting {shown(name)}; {known}")
        if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence) or not len(values):
            raise SettingError(f"settings: {name}={shown(values)}: needs a list of values, {example}")
    out = [
        dict(zip(settings, values, strict=True))
        for values in itertools.islice(itertools.product(*settings.values()), MOST + 1)
    ]
    if len(out) > MOST:
        raise SettingError(f"settings: more than {MOST} combinations; leave some values out")
    return out


def _names(part: Any) -> list[str]:
    """Names of the settings of a part of a model."""
    return [f.name for f in fields(part) if f.init]


def _with(model: Model, chosen: Mapping[str, Any]) -> Model:
    """The model with some settings of its allocation, or else of its observation model, put in."""
    allocation: Any = model.allocation  # both are dataclasses, which their protocols do not state
    observation: Any = model.observation
    own = {name: value for name, value in chosen.items() if name in _names(allocation)}
    other = {name: value for name, value in chosen.items() if name not in own}
    return replace(model, allocation=replace(allocation, **own), observation=replace(observation, **other))


def _first_part(model: Model, source: Source, first: int, runner: Executor) -> tuple[list[Piece], Survey]:
    """Pieces with the first atoms, and a survey of them; each batch is read before the next is requested."""
    pieces: list[Piece] = []
    total: Survey | None = None
    left = first
    for batch in range(source.n_batches):
        piece = Piece(batch_reader(source, batch), left)
        held: Survey = runner.result(runner.submit(f"survey-batch{batch}", survey_piece, model, piece))
        total = extend(total, [held])
        pieces.append(piece)
        left -= held.n_atoms
        if not left:
            break
    return pieces, require_atoms(total)


def _predicted(
    models: Sequence[Model], epsilon: float | None, pieces: Sequence[Piece], runner: Executor
) -> list[Predicted]:
    """Predictions by each model, side by side."""
    shared = runner.share("first-part", list(pieces))
    tasks = ((f"filter-setting{i}", predict_pieces, (model, epsilon, shared)) for i, model in enumerate(models))
    return list(in_order(runner, tasks, max(WINDOW, 2 * runner.n_workers)))


# -- the first part of a stream ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Piece:
    """The first ``n_atoms`` atoms of a batch."""

    reader: Reader
    n_atoms: int

    def read(self) -> Batch:
        """The atoms in memory."""
        batch = self.reader()
        return batch if batch.n_atoms <= self.n_atoms else batch.rows(0, self.n_atoms)


def survey_piece(model: Model, piece: Piece) -> Survey:
    """The task: survey of a piece, after every check that the model makes."""
    return survey_checked(model, piece.read())


@dataclass(frozen=True)
class Predicted:
    """Prediction of the first atoms of a stream: log density, nats, and how many clusters a filter opened."""

    log_predictive: float
    n_clusters: int


def predict_pieces(model: Model, epsilon: float | None, pieces: Sequence[Piece]) -> Predicted:
    """The task: filter pieces of a stream one after the other (:class:`~bnp_dask.Filter` without unions)."""
    total, next_id, logs = RunningTotal(model.empty_summary(np.zeros(0, np.int64))), 0, 0.0
    least = threshold(model, epsilon)
    for piece in pieces:
        batch = piece.read()
        with naming_batch(batch.name):
            site = site_of(model, total.value(), batch, least)
        total, next_id = with_site(total, site, next_id)
        logs += site.log_predictive
    return Predicted(logs, total.high.n_clusters)
