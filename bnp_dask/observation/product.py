"""Several likelihoods side by side: groups of columns that are independent given the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np

from bnp_dask.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.kernels.resp import Resp
from bnp_dask.observation.base import LOG_BASE, Observation
from bnp_dask.observation.counts import check_width
from bnp_dask.summary import CLUSTER, Field, Summary
from bnp_dask.survey import Survey

Columns = str | int | slice | range | tuple[int, ...]
"""A group of columns: ``(0, 1, 4)``, ``range(0, 3)``, ``slice(0, 3)``, ``5``, or as text ``"0:3, 5"``."""


@dataclass(frozen=True, eq=False)
class ProductParams:
    """Parameters of each part, in the order of the groups."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Product:
    """A cluster generates each group of columns from its own likelihood, independently.

    Parameters
    ----------
    groups
        Mapping from columns to observation models, such as
        ``Product({"0:3": Gaussian(), "3:10": Bernoulli(), (10, 12): Poisson()})``, or a sequence of such pairs
        (slices are no keys of a dict before Python 3.12).  Columns are positions: a tuple, a range, a slice, one
        number, or text in the notation of slices, with commas between pieces (in a YAML file in quotation marks,
        because YAML reads 3:10 as a time).  Every column belongs to exactly one group.
    n_features
        Columns in all; set from the data.

    Notes
    -----
    Groups are kept as text in the order given.  The summary fields of part i are named ``"i.field"``; base
    measures add up to one ``log_base``.
    """

    groups: Mapping[Columns, Observation] | Iterable[tuple[Columns, Observation]]
    n_features: int | None = None

    def __post_init__(self) -> None:
        pairs = self.groups.items() if isinstance(self.groups, Mapping) else self.groups
        groups = tuple((_as_text(columns), part) for columns, part in pairs)
        if not groups:
            raise SettingError('Product needs at least one group, such as Product({"0:3": Gaussian()})')
        object.__setattr__(self, "groups", groups)

    @property
    def parts(self) -> tuple[Observation, ...]:
        """The observation model of each group."""
        return tuple(part for _, part in self._pairs)

    @property
    def fields(self) -> Mapping[str, Field]:
        fields = {}
        for i, part in enumerate(self.parts):
            for name, field in part.fields.items():
                if name == LOG_BASE:
                    fields[LOG_BASE] = field
                else:
                    dims = tuple(dim if dim == CLUSTER else f"{i}.{dim}" for dim in field.dims)
                    fields[f"{i}.{name}"] = replace(field, dims=dims)
        return MappingProxyType(fields)

    @property
    def sizes(self) -> Mapping[str, int]:
        return {f"{i}.{dim}": size for i, part in enumerate(self.parts) for dim, size in part.sizes.items()}

    def with_prior(self, survey: Survey) -> Self:
        columns = [_positions(text, survey.n_features) for text, _ in self._pairs]
        owner = np.full(survey.n_features, -1)
        for i, positions in enumerate(columns):
            taken = owner[positions] >= 0
            taken[np.setdiff1d(np.arange(len(positions)), np.unique(positions, return_index=True)[1])] = True
            if taken.any():
                twice = positions[taken][:10].tolist()
                raise SettingError(f"columns {twice} are named twice in the groups of Product; groups are disjoint")
            owner[positions] = i
        if (owner < 0).any():
            left = np.flatnonzero(owner < 0)
            raise SettingError(
                f"{len(left)} of {survey.n_features} columns belong to no group of Product (first: "
                f"{left[:10].tolist()}); add a group for them, or leave them out of the data"
            )
        parts = [part.with_prior(_survey_of(survey, c)) for part, c in zip(self.parts, columns, strict=True)]
        groups = tuple((_as_text(tuple(c.tolist())), part) for c, part in zip(columns, parts, strict=True))
        return replace(self, groups=groups, n_features=survey.n_features)

    def check(self, batch: Batch) -> None:
        check_width(self, batch, self.n_features)
        if self.n_features is None:
            replace(self, n_features=batch.n_features).check(batch)
            return
        for i, (text, part) in enumerate(self._pairs):
            name = f"{batch.name}, columns {text} (their numbers count from the first of the group)"
            part.check(replace(self._view(i, batch), name=name))

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = {}
        for i, part in enumerate(self.parts):
            for name, value in part.summarize(self._view(i, batch), resp).items():
                if name == LOG_BASE:
                    values[LOG_BASE] = values.get(LOG_BASE, np.zeros(())) + value
                else:
                    values[f"{i}.{name}"] = value
        return values

    def global_step(self, summary: Summary) -> ProductParams:
        parts = enumerate(self.parts)
        return ProductParams(tuple(part.global_step(self._part_summary(i, summary)) for i, part in parts))

    def at_mode(self, params: ProductParams) -> ProductParams:
        both = zip(self.parts, params.parts, strict=True)
        return ProductParams(tuple(part.at_mode(own) for part, own in both))

    def expected_log_lik(self, params: ProductParams, batch: Batch) -> np.ndarray:
        total = self.parts[0].expected_log_lik(params.parts[0], self._view(0, batch))
        for i, part in enumerate(self.parts[1:], 1):
            total += part.expected_log_lik(params.parts[i], self._view(i, batch))
        return total

    def score(self, params: ProductParams, summary: Summary) -> np.ndarray:
        each = enumerate(self.parts)
        return np.sum([part.score(params.parts[i], self._part_summary(i, summary)) for i, part in each], axis=0)

    def kl(self, params: ProductParams) -> np.ndarray:
        return np.sum([part.kl(own) for part, own in zip(self.parts, params.parts, strict=True)], axis=0)

    def log_prior(self, params: ProductParams) -> np.ndarray:
        return np.sum([part.log_prior(own) for part, own in zip(self.parts, params.parts, strict=True)], axis=0)

    def log_predictive(self, params: ProductParams, batch: Batch) -> np.ndarray:
        total = np.zeros((batch.n_atoms, 1))
        for i, part in enumerate(self.parts):
            total = total + part.log_predictive(params.parts[i], self._view(i, batch))
        return total

    @property
    def _pairs(self) -> tuple[tuple[str, Observation], ...]:
        return cast(tuple[tuple[str, Observation], ...], self.groups)

    @property
    def _width(self) -> int:
        if self.n_features is None:
            raise SettingError("Product does not know its columns yet; call with_prior(survey) first")
        return self.n_features

    def _view(self, i: int, batch: Batch) -> Batch:
        """The columns of group i; without a copy where they are consecutive."""
        positions = _positions(self._pairs[i][0], self._width)
        first, last = int(positions[0]), int(positions[-1])
        if isinstance(batch.x, np.ndarray) and np.array_equal(positions, np.arange(first, last + 1)):
            return replace(batch, x=batch.x[:, first : last + 1])
        return batch.columns(positions)

    def _part_summary(self, i: int, summary: Summary) -> Summary:
        """The fields of part i under their own names, with the count N."""
        fields = {"N": summary.fields["N"], **self.parts[i].fields}
        values = {name: summary[f"{i}.{name}"] for name in fields if name not in ("N", LOG_BASE)}
        if LOG_BASE in fields:
            values[LOG_BASE] = summary[LOG_BASE]
        return Summary(summary.ids, fields, {"N": summary["N"], **values})


def _as_text(columns: Columns) -> str:
    """Columns in the one notation that is kept: ``"0:3,5"``."""
    if isinstance(columns, str):
        return columns.replace(" ", "")
    if isinstance(columns, slice):
        bounds = ["" if bound is None else str(bound) for bound in (columns.start, columns.stop)]
        return ":".join(bounds if columns.step is None else [*bounds, str(columns.step)])
    try:
        positions = np.atleast_1d(np.array(columns, np.float64))
    except (TypeError, ValueError):
        positions = np.array([np.nan])
    if positions.ndim != 1 or len(positions) == 0 or (positions != np.floor(positions)).any() or positions.min() < 0:
        raise SettingError(f'columns {columns!r}: needs positions, such as (0, 1), range(3), 5 or "0:3,5"')
    whole = positions.astype(np.int64)
    runs = np.split(whole, np.flatnonzero(np.diff(whole) != 1) + 1)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}:{run[-1] + 1}" for run in runs)


def _positions(text: str, n_features: int) -> np.ndarray:
    """Positions that a text names among ``n_features`` columns."""
    pieces = []
    for piece in text.split(","):
        try:
            bounds = [int(bound) if bound else None for bound in piece.split(":")]
        except ValueError:
            bounds = []
        if len(bounds) == 1 and bounds[0] is not None:
            bounds.append(bounds[0] + 1)
        if len(bounds) not in (2, 3):
            raise SettingError(f'columns "{text}": needs positions in the notation of slices, such as "0:3,5"')
        if any(bound is not None and abs(bound) > n_features for bound in bounds[:2]):
            raise SettingError(f'columns "{text}": the data have {n_features} columns, numbered from 0')
        pieces.append(np.arange(n_features)[slice(*bounds)])
    positions = np.concatenate(pieces)
    if len(positions) == 0:
        raise SettingError(f'columns "{text}" name none of the {n_features} columns of the data')
    return positions


def _survey_of(survey: Survey, columns: np.ndarray) -> Survey:
    """What the survey says about some of the columns."""
    return replace(
        survey,
        mean=survey.mean[columns],
        variance=survey.variance[columns],
        minimum=survey.minimum[columns],
        maximum=survey.maximum[columns],
    )
