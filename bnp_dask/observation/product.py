"""Several likelihoods side by side: groups of columns that are independent given the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Self, TypeGuard

import numpy as np

from bnp_dask.core import CLUSTER, OPTIONAL, Batch, Counting, Field, Summary, Survey, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import (
    ColumnGroup,
    Key,
    Role,
    as_key,
    hold,
    is_positions,
    one_of,
    positions,
    quoted,
    require,
    resolve,
    shown,
    whole_number,
    written,
)
from bnp_dask.kernels import Resp
from bnp_dask.observation.base import (
    LOG_BASE,
    CalmLearningObservation,
    ExtrapolatingObservation,
    LearningObservation,
    LearnsPrior,
    NamingObservation,
    Observation,
    ScaleShape,
    correlated_columns,
    lags_of,
    level_keys,
)
from bnp_dask.observation.checks import check_width
from bnp_dask.observation.interface import (
    Axis,
    Density,
    DrawingObservation,
    Estimates,
    Names,
    SampledObservation,
    compared_by_settings,
    describe_cluster,
    estimates_of,
    sequential_predictive,
    total_density,
)
from bnp_dask.observation.missing import MarginalObservation, completed, marginalises
from bnp_dask.observation.proposing import Choices, as_code, choices, proposed_groups

FEW = 3
"""Most columns of a group listed in its name."""

MOST_COLUMNS = 2**31
"""Columns that data may have."""


@register
@dataclass(frozen=True, eq=False)
class ProductParams:
    """Parameters of each part, in the order of the groups."""

    parts: tuple[Any, ...]


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Product(LearnsPrior):
    """A cluster generates each group of columns from its own likelihood, independently.

    Parameters
    ----------
    groups
        Mapping from columns to observation models, such as
        ``Product({"age": Gaussian(), ("visits", "calls"): Poisson()})`` or
        ``Product({"0:3": Gaussian(), "3:10": Bernoulli(), (10, 12): Poisson()})``, or a sequence of such pairs
        (slices are no keys of a dict before Python 3.12).  Columns are names: one, a tuple, or text with commas between
        them; or positions: a tuple, a range, a slice, one number, or text in the notation of slices, with commas
        between pieces (in a YAML file in quotation marks, because YAML reads 3:10 as a time).  Names are looked up when
        the data are known; text that may be either is refused.  A column belongs to one group.
    n_features
        Columns in all; set from the data.
    places
        Positions of the columns of each group as text; set from the data.
    others
        ``"ignore"``: columns of a table that belong to no group are left out.  Default: they are refused.

    Notes
    -----
    Groups are kept in the order given, positions as text and names as they are.  The summary fields of part i are named
    ``"i.field"``; base measures add up to one ``log_base``.

    Parts learn their priors as the same likelihood does alone, see ``learn_prior`` of :class:`~bnp_dask.model.Model`;
    by default if all parts that can learn would, so that settings that were given for one of them stay.
    """

    groups: Mapping[ColumnGroup, Observation] | Iterable[tuple[ColumnGroup, Observation]]
    n_features: int | None = None
    places: tuple[Key, ...] | None = field(default=None, metadata=OPTIONAL)
    others: Literal["ignore"] | None = field(default=None, metadata=OPTIONAL)

    @classmethod
    def of(cls, table: Any, /, **given: Observation) -> Self:
        """Propose a likelihood for each column of a table; ``print`` shows it as code to start from.

        Parameters
        ----------
        table
            pandas DataFrame, or a table that can become one (Arrow, polars, DuckDB).  For a large one the first rows
            suffice.  Or the path of a Parquet, Arrow or CSV file, of which the first 100,000 rows are read.
        given
            Likelihoods of columns by name, in place of the proposed ones.

        Returns
        -------
        Product
            Fractions become a ``Gaussian`` together.  Texts, categories, truth values and two whole numbers become a
            ``Categorical``.  Whole numbers from zero to 1000 that reach down near zero and have a variance of at least
            0.8 times their mean may be counts: ``Poisson``, or ``NegativeBinomial`` where up to four Poissons explain
            them much worse, or the Gaussian where both do (Bayesian information criteria that differ by more than 10).
            Other whole numbers are levels if there are at most ten of them, and join the Gaussian if there are more.
            Columns of a kind of which one lacks entries take ``missing="marginalise"``.  :meth:`choices` tells the
            reason for each column.

        Warns
        -----
        UserWarning
            Columns are left out, with the reason: columns that sources leave out too (row numbers, ids, times, dates),
            constant columns, names of rows, lists.

        Raises
        ------
        SettingError
            A likelihood is given for a column that is not there.
        DataError
            The table cannot become a DataFrame, or all its columns would be left out.

        Examples
        --------
        >>> import pandas as pd, bnp_dask as bnp
        >>> people = pd.DataFrame({"age": [31.5, 40.2, 58.0], "sex": ["f", "m", "f"], "calls": [0, 9, 2]})
        >>> bnp.Product.of(people)
        Product({"age": Gaussian(), "calls": Poisson(), "sex": Categorical()})
        >>> bnp.Product.of(people, age=bnp.DiagGaussian())
        Product({"calls": Poisson(), "sex": Categorical(), "age": DiagGaussian()})
        """
        groups, leaves_out = proposed_groups(table, given)
        return cls([(written(names), part) for names, part in groups], others="ignore" if leaves_out else None)

    @staticmethod
    def choices(table: Any, /, **given: Observation) -> Choices:
        """The likelihood that :meth:`of` proposes for each column of a table, and why; ``print`` shows a table.

        A column with a long upper tail is named: its logarithm may be closer to a mixture of Gaussians.  Columns are
        never transformed here, because predictions would be on another scale than the data.

        Parameters
        ----------
        table, given
            As in :meth:`of`.

        Returns
        -------
        Choices
            ``rows``: for each column its name, its likelihood as code, empty if it is left out, and the reason.

        Examples
        --------
        >>> import pandas as pd, bnp_dask as bnp
        >>> people = pd.DataFrame({"age": [31.5, 40.2, 58.0], "sex": ["f", "m", "f"], "calls": [0, 9, 2]})
        >>> bnp.Product.choices(people)
        column  likelihood     why
        age     Gaussian()     fractions
        sex     Categorical()  2 levels
        calls   Poisson()      counts from 0 to 9
        """
        return choices(table, given)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{quoted(key)}: {as_code(part)}" for key, part in self.pairs)
        facts = {"n_features": self.n_features, "places": self.places, "others": self.others}
        rest = "".join(f", {n}={quoted(v) if isinstance(v, str) else v}" for n, v in facts.items() if v is not None)
        return f"Product({{{pairs}}}{rest})"

    def __post_init__(self) -> None:
        pairs = self.groups.items() if isinstance(self.groups, Mapping) else self.groups
        if not isinstance(pairs, Iterable) or isinstance(pairs, (str, np.ndarray)):
            raise SettingError(f'groups={shown(pairs)}: needs a mapping, such as Product({{"0:3": Gaussian()}})')
        groups = tuple(_checked_pair(pair) for pair in pairs)
        if not groups:
            raise SettingError('Product needs at least one group, such as Product({"0:3": Gaussian()})')
        if self.n_features is not None:
            hold(self, "n_features", whole_number("n_features", self.n_features, 1))
        if self.others is not None:
            one_of("others", self.others, ("ignore",))
        object.__setattr__(self, "groups", groups)

    @property
    def parts(self) -> tuple[Observation, ...]:
        """The observation model of each group."""
        return tuple(part for _, part in self.pairs)

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """Names of the columns of all groups if others are ignored; None if all columns are read, or if some are given
        by position."""
        keys = [key for key, _ in self.pairs]
        if self.others is None or any(is_positions(key) for key in keys):
            return None
        return tuple(
            name for key in keys for name in (key if isinstance(key, tuple) else map(str.strip, key.split(",")))
        )

    @property
    def level_keys(self) -> tuple[Key, ...]:
        found: list[Key] = []
        for key, part in self.pairs:
            for own in level_keys(part):
                if own != ":" and is_positions(own):
                    raise SettingError(
                        f"columns {shown(own)} of a Product within a Product hold levels: name these columns there, or "
                        "give each group of columns to one Product"
                    )
                found.append(key if own == ":" else own)
        return tuple(found)

    @property
    def counts(self) -> frozenset[str]:
        return frozenset(
            f"{i}.{name}" for i, part in enumerate(self.parts) if isinstance(part, Counting) for name in part.counts
        )

    @property
    def fields(self) -> Mapping[str, Field]:
        fields = {}
        for i, part in enumerate(self.parts):
            for name, own in part.fields.items():
                if name == LOG_BASE:
                    fields[LOG_BASE] = own
                else:
                    dims = tuple(dim if dim == CLUSTER else f"{i}.{dim}" for dim in own.dims)
                    fields[f"{i}.{name}"] = replace(own, dims=dims)
        return MappingProxyType(fields)

    @property
    def sizes(self) -> Mapping[str, int]:
        return {f"{i}.{dim}": size for i, part in enumerate(self.parts) for dim, size in part.sizes.items()}

    def with_columns(self, names: Sequence[str] | None) -> Self:
        groups: list[tuple[Key, Observation]] = []
        places: list[Key] = []
        for key, part in self.pairs:
            place = resolve(key, names)
            if isinstance(part, NamingObservation):
                own = None if names is None else [names[i] for i in positions(place, len(names))]
                part = part.with_columns(own)
            groups.append((key, part))
            places.append(place)
        return replace(self, groups=tuple(groups), places=tuple(places))

    @property
    def _needs_names(self) -> bool:
        """Whether some columns are given by names that were not looked up yet."""
        inner = [part for part in self.parts if isinstance(part, Product)]
        here = self.places is None and not all(is_positions(key) for key, _ in self.pairs)
        return here or any(part._needs_names for part in inner)

    def with_prior(self, survey: Survey) -> Self:
        if self._needs_names:
            return self.with_columns(survey.names).with_prior(survey)
        columns = [self._own(i, survey.n_features) for i in range(len(self.pairs))]
        owner = np.full(survey.n_features, -1)
        for i, own in enumerate(columns):
            taken = owner[own] >= 0
            taken[np.setdiff1d(np.arange(len(own)), np.unique(own, return_index=True)[1])] = True
            if taken.any():
                twice = survey.called(own[taken])
                raise SettingError(f"columns {twice} are named twice in the groups of Product; groups are disjoint")
            owner[own] = i
        if (owner < 0).any() and self.others is None:
            left = np.flatnonzero(owner < 0)
            raise SettingError(
                f"{len(left)} of {survey.n_features} columns belong to no group of Product (first: "
                f'{survey.called(left)}); add a group for them, or leave them out: Product(..., others="ignore")'
            )
        parts = [self._part_with_prior(i, survey.features(c)) for i, c in enumerate(columns)]
        places = tuple(as_key(tuple(c.tolist())) for c in columns)
        keys = [place if is_positions(key) else key for place, (key, _) in zip(places, self.pairs, strict=True)]
        groups = tuple(zip(keys, parts, strict=True))
        return replace(self, groups=groups, n_features=survey.n_features, places=places)

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        if self._needs_names:
            return self.with_columns(names).correlated(n_features, names)
        found = [np.zeros(0, np.int64)]
        for i, part in enumerate(self.parts):
            own = self._own(i, n_features)
            named = None if names is None else [names[j] for j in own]
            found.append(own[correlated_columns(part, len(own), named)])
        return np.unique(np.concatenate(found))

    def _part_with_prior(self, i: int, survey: Survey) -> Observation:
        try:
            return self.parts[i].with_prior(survey)
        except SettingError as error:
            raise SettingError(f"columns {self._label(i, None)[0]}: {error}") from None

    def check(self, batch: Batch) -> None:
        check_width(self, batch, self.n_features)
        if self.n_features is None:
            found = self.with_columns(batch.names) if self._needs_names else self
            replace(found, n_features=batch.n_features).check(batch)
            return
        for i, part in enumerate(self.parts):
            name = batch.name
            if batch.names is None:
                name += f", columns {self._label(i, None)[0]} (their numbers count from the first of the group)"
            part.check(replace(self._view(i, batch), name=name))

    @property
    def marginalises(self) -> bool:
        return any(marginalises(part) for part in self.parts)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return self.complete(ProductParams((None,) * len(self.parts)), batch, resp)

    def complete(self, params: ProductParams, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = {}
        for i, (part, own) in enumerate(zip(self.parts, params.parts, strict=True)):
            for name, value in completed(part, own, self._view(i, batch), resp).items():
                if name == LOG_BASE:
                    values[LOG_BASE] = values.get(LOG_BASE, np.zeros(())) + value
                else:
                    values[f"{i}.{name}"] = value
        return values

    def global_step(self, summary: Summary) -> ProductParams:
        parts = enumerate(self.parts)
        return ProductParams(tuple(part.global_step(self._part_summary(i, summary)) for i, part in parts))

    def at_mode(self, params: ProductParams) -> ProductParams:
        return ProductParams(tuple(part.at_mode(own) for part, own in zip(self.parts, params.parts, strict=True)))

    def at_draw(self, params: ProductParams, rng: np.random.Generator) -> ProductParams:
        lacks = "says not how to draw its parameters; it needs a method at_draw(params, rng)"
        able = [self._able(i, SampledObservation, lacks) for i in range(len(self.parts))]
        return ProductParams(tuple(part.at_draw(own, rng) for part, own in zip(able, params.parts, strict=True)))

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

    def sequential_predictive(self, params: ProductParams, batch: Batch) -> Density | None:
        both = enumerate(zip(self.parts, params.parts, strict=True))
        return total_density([sequential_predictive(part, own, self._view(i, batch)) for i, (part, own) in both])

    def draw(self, params: ProductParams, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        out = np.empty((len(place), self._width))
        for i, own in enumerate(params.parts):
            part = self._able(i, DrawingObservation, "says not how to draw atoms")
            out[:, self._own(i, self._width)] = part.draw(own, place, rng)
        return out

    def impute(self, params: ProductParams, batch: Batch, resp: np.ndarray) -> np.ndarray:
        out = np.array(batch.x)
        for i, (part, own) in enumerate(zip(self.parts, params.parts, strict=True)):
            if isinstance(part, MarginalObservation):
                out[:, self._own(i, self._width)] = part.impute(own, self._view(i, batch), resp)
        return out

    @property
    def learns_by_default(self) -> bool:
        able: list[Any] = [part for part in self.parts if can_learn(part)]
        return bool(able) and all(part.learns_by_default for part in able)

    def _learned(self, params: ProductParams, used: np.ndarray, start: Self, shape: ScaleShape, calm: bool) -> Self:
        parts: list[Any] = list(self.parts)
        triples: Any = zip(self.parts, params.parts, start.parts, strict=True)
        for i, (part, own, first) in enumerate(triples):
            if calm and isinstance(part, CalmLearningObservation):
                parts[i] = part.learned_when_calm(own, used, first, shape)
            elif isinstance(part, LearningObservation):
                parts[i] = part.learned(own, used, first, shape)
        return self.with_parts(parts)

    def log_hyperprior(self, start: Self) -> float:
        both: Any = zip(self.parts, start.parts, strict=True)
        return float(sum(part.log_hyperprior(first) for part, first in both if isinstance(part, LearningObservation)))

    def extrapolated(self, first: Self, second: Self, n_atoms: float) -> Self | None:
        trail: Any = zip(first.parts, second.parts, self.parts, strict=True)
        found = [
            part.extrapolated(one, two, n_atoms) if isinstance(part, ExtrapolatingObservation) else None
            for one, two, part in trail
        ]
        if all(each is None for each in found):
            return None
        return self.with_parts([own if each is None else each for own, each in zip(self.parts, found, strict=True)])

    def with_parts(self, parts: Sequence[Any]) -> Self:
        """Product with another observation model for each group, in the same order."""
        return replace(self, groups=tuple((key, part) for (key, _), part in zip(self.pairs, parts, strict=True)))

    def estimates(self, params: ProductParams, names: Names) -> Estimates:
        """Estimates of each part, under its columns: ``"age.mean"``."""
        found = {}
        for i, (part, own) in enumerate(zip(self.parts, params.parts, strict=True)):
            label, named = self._label(i, names)
            for name, value in estimates_of(part, own, named).items():
                axes = tuple(Axis(f"{label}.{axis.name}", axis.labels) for axis in value.axes)
                found[f"{label}.{name}"] = replace(value, axes=axes)
        return found

    def describe(self, params: ProductParams, k: int, names: Names) -> str:
        texts = []
        for i, (part, own) in enumerate(zip(self.parts, params.parts, strict=True)):
            label, named = self._label(i, names)
            text = describe_cluster(part, own, k, named)
            texts.append(text if names is not None else f"[{label}] {text}")
        return "; ".join(texts)

    def _label(self, i: int, names: Names) -> tuple[str, Names]:
        """Label of group i: its columns, or the first and last of many; and the names of its columns."""
        if names is None:
            key = self.pairs[i][0]
            return key if isinstance(key, str) else ",".join(key), None
        named = [names[j] for j in self._own(i, self._width)]
        return ",".join(named) if len(named) <= FEW else f"{named[0]}..{named[-1]}", named

    @property
    def pairs(self) -> tuple[tuple[Key, Observation], ...]:
        """Columns and observation model of each group."""
        assert _are_kept(self.groups)
        return self.groups

    @property
    def _width(self) -> int:
        if self.n_features is None:
            raise SettingError("Product does not know its columns yet; call with_prior(survey) first")
        return self.n_features

    def _able(self, i: int, role: type[Role], lacks: str) -> Role:
        """Part i; SettingError unless it has the methods of a protocol."""
        part = self.parts[i]
        if not isinstance(part, role):
            raise SettingError(f"columns {self._label(i, None)[0]}: {type(part).__name__} {lacks}")
        return part

    def _view(self, i: int, batch: Batch) -> Batch:
        """Columns of group i; without a copy if they are consecutive."""
        own = self._own(i, self._width)
        first, last = int(own[0]), int(own[-1])
        if isinstance(batch.x, np.ndarray) and np.array_equal(own, np.arange(first, last + 1)):
            names = None if batch.names is None else batch.names[first : last + 1]
            return replace(batch, x=batch.x[:, first : last + 1], names=names)
        return batch.columns(own)

    def _own(self, i: int, n_features: int) -> np.ndarray:
        """Positions of the columns of group i in the data."""
        return positions(self.pairs[i][0] if self.places is None else self.places[i], n_features)

    def _part_summary(self, i: int, summary: Summary) -> Summary:
        """The fields of part i under their own names, with the count N."""
        fields = {"N": summary.fields["N"], **self.parts[i].fields}
        values = {name: summary[f"{i}.{name}"] for name in fields if name not in ("N", LOG_BASE)}
        if LOG_BASE in fields:
            values[LOG_BASE] = summary[LOG_BASE]
        return Summary(summary.ids, fields, {"N": summary["N"], **values})


def can_learn(observation: object) -> bool:
    """Whether the prior of a likelihood, or of one of its parts, can be learned."""
    if isinstance(observation, Product):
        return any(can_learn(part) for part in observation.parts)
    return isinstance(observation, LearningObservation)


def _are_kept(groups: object) -> TypeGuard[tuple[tuple[Key, Observation], ...]]:
    """Whether groups are in the stored notation, as in every instance."""
    return isinstance(groups, tuple)


def _checked_pair(pair: Any) -> tuple[Key, Observation]:
    """Columns in the stored notation, and their observation model; SettingError for anything else."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise SettingError(f"groups: {shown(pair)} is no pair of columns and an observation model")
    columns, part = pair
    require("groups", part, Observation, '{"0:3": Gaussian()}')
    if lags_of(part):
        raise SettingError(
            f"columns {shown(columns)}: {type(part).__name__}(lags={lags_of(part)}) takes the steps before each for a "
            "whole model, not for some columns; use it by itself, or give rows [x_t, x_(t-1)] to one without lags"
        )
    return as_key(columns), part
