"""A column that is given and not modelled: strata, which say by which weights a row comes from the clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, register
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import Key, Levels, shown
from bnp_dask.kernels import Resp
from bnp_dask.observation.checks import check_width, where_first
from bnp_dask.observation.interface import Estimates, Names, compared_by_settings


@register
@dataclass(frozen=True, eq=False)
class GivenParams:
    """No parameters; ``nothing (K,)`` zeros."""

    nothing: np.ndarray


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Given:
    """Column whose values are known beforehand, such as the site or the year of each row: a part of ``Product``.

    It has probability one in every cluster, so it says nothing about the clusters by itself.  The allocation reads it:
    see :class:`~bnp_dask.allocation.strata.StrataMixture`.

    Parameters
    ----------
    levels
        Levels of the column; found in the data.

    Notes
    -----
    Values are levels as for :class:`~bnp_dask.observation.categorical.Categorical`: texts, categories, or
    numbers of few distinct values.  They are sorted, and categories keep their order.
    """

    levels: Levels | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.levels is not None:
            object.__setattr__(self, "levels", tuple(self.levels))

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {}

    @property
    def level_keys(self) -> tuple[Key, ...]:
        return (":",)

    def with_prior(self, survey: Survey) -> Self:
        if survey.n_features != 1:
            raise SettingError(f"Given() has {survey.n_features} columns; strata are told by one column")
        found = None if survey.levels is None else survey.levels[0]
        if found is None:
            found = self.levels or tuple(range(int(survey.maximum[0]) + 1))
        if self.levels is not None and self.levels != found:
            raise SettingError(f"levels={shown(self.levels)}: the data have {shown(found)}; leave levels out")
        return replace(self, levels=found)

    def check(self, batch: Batch) -> None:
        if not isinstance(batch.x, np.ndarray):
            raise DataError(f"{batch.name}: sparse counts, but Given needs dense rows")
        check_width(self, batch, 1)
        most = np.inf if self.levels is None else len(self.levels)
        with np.errstate(invalid="ignore"):
            wrong = ~((batch.x >= 0) & (batch.x < most) & (batch.x == np.floor(batch.x)))
        if wrong.any():
            row, column, value = where_first(batch, wrong)
            if np.isnan(value):
                raise DataError(
                    f"{batch.name}: row {row}, {batch.column(column)} is missing; a row is in one stratum. Drop such "
                    'rows, or give them a level of their own, such as "unknown"'
                )
            said = "" if self.levels is None else f", 0 to {len(self.levels) - 1}"
            raise DataError(
                f"{batch.name}: row {row}, {batch.column(column)} is {value}; Given needs the place of a level in each "
                f"row{said}. Data become such numbers where they are opened: pass a table or array to train(...)"
            )

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {}

    def global_step(self, summary: Summary) -> GivenParams:
        return GivenParams(np.zeros(summary.n_clusters))

    def at_mode(self, params: GivenParams) -> GivenParams:
        return params

    def at_draw(self, params: GivenParams, rng: np.random.Generator) -> GivenParams:
        return params

    def expected_log_lik(self, params: GivenParams, batch: Batch) -> np.ndarray:
        return np.zeros((batch.n_atoms, len(params.nothing)))

    def score(self, params: GivenParams, summary: Summary) -> np.ndarray:
        return np.zeros(summary.n_clusters)

    def kl(self, params: GivenParams) -> np.ndarray:
        return np.zeros_like(params.nothing)

    def log_prior(self, params: GivenParams) -> np.ndarray:
        return np.zeros_like(params.nothing)

    def log_predictive(self, params: GivenParams, batch: Batch) -> np.ndarray:
        return np.zeros((batch.n_atoms, len(params.nothing)))

    def draw(self, params: GivenParams, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Zeros, in whose place an allocation of strata puts the strata."""
        return np.zeros((len(place), 1))

    def estimates(self, params: GivenParams, names: Names) -> Estimates:
        return {}

    def describe(self, params: GivenParams, k: int, names: Names) -> str:
        return "given"
