"""The columns of a table: their names, and which of them are features, weights, groups, and order.

The words of columns of counts have a form that is small in memory and on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from bnp_dask.core.registry import register
from bnp_dask.errors import DataError, SettingError, nearest, warn
from bnp_dask.inputs import Levels, one_of, positive_number, whole_number

Gaps = Literal["refuse", "cut", "ignore"]
"""Treatments of a gap in the order column."""

GAPS: tuple[Gaps, ...] = ("refuse", "cut", "ignore")

OnBadCell = Literal["raise", "missing"]
"""Treatments of a cell that is not a number in a column of numbers: an error, or NaN."""

ON_BAD_CELL: tuple[OnBadCell, ...] = ("raise", "missing")

OPTIONAL: Mapping[str, Any] = MappingProxyType({"optional": True})
"""Metadata of optional fields: files omit them while they are None, as did versions without these fields."""

SHOWN = 12
"""Most columns that a message lists."""


@register
@dataclass(frozen=True)
class Cutting:
    """Where sequences may be cut.

    Parameters
    ----------
    cut
        Most rows of a block; None keeps sequences whole.
    gaps
        Treatment of a gap in the order column: ``"refuse"``, ``"cut"`` or ``"ignore"``.
    step
        Distance of neighbouring rows in the order column; None for its median.
    """

    cut: int | None = None
    gaps: Gaps = "refuse"
    step: float | None = None

    @staticmethod
    def of(cut: int | None, gaps: Gaps | None, step: float | None, order: str | None) -> Cutting:
        """From the arguments of :func:`bnp_dask.as_source`; SettingError for values without meaning."""
        if cut is not None:
            whole_number("cut", cut, 1, what="None, or the most rows of a block, a whole number")
        if gaps is not None:
            one_of("gaps", gaps, GAPS)
        if step is not None:
            positive_number("step", step, "distance of neighbouring rows, or None")
        if order is None and (gaps is not None or step is not None):
            what = f"gaps={gaps!r}" if gaps is not None else f"step={step!r}"
            raise SettingError(f"{what} is about the column that says when each row was; name it: order=")
        return Cutting(None if cut is None else int(cut), gaps or "refuse", step)


WHOLE = Cutting()
"""Cutting that leaves sequences whole."""


@register
@dataclass(frozen=True)
class Roles:
    """Columns of a table with a role other than feature, and how groups are read.

    Parameters
    ----------
    weights
        Column that says how often each row counts.
    groups
        Column of ids; rows with the same id form a group.
    order
        Column that rises within each group.
    cutting
        Treatment of gaps in the order, and the most rows of a group.
    """

    weights: str | None = None
    groups: str | None = None
    order: str | None = None
    cutting: Cutting = WHOLE

    def __post_init__(self) -> None:
        # as an argument such a name means a file, and a saved model must not name one
        file = next((name for name in self.names if str(name).endswith(".npy")), None)
        if file is not None:
            raise DataError(f"{file!r} is no column with a role, but a file; give its content as an argument")

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of groups and order."""
        return tuple(c for c in (self.groups, self.order) if c is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that have a role."""
        return self.keys if self.weights is None else (self.weights, *self.keys)

    def of(self, name: str) -> str:
        """The role of a column that has one."""
        return {self.order: "order", self.groups: "groups", self.weights: "weights"}[name]


NO_ROLES = Roles()


def vocabulary_in(names: Any) -> Any:
    """The vocabulary of a ``CountVectorizer`` of scikit-learn; anything else unchanged.

    Raises
    ------
    DataError
        The vectorizer is not fitted, or keeps no words (``HashingVectorizer``).
    """
    held = getattr(names, "vocabulary_", None)
    if isinstance(held, Mapping):
        return held
    if callable(getattr(names, "build_analyzer", None)):
        kind = type(names).__name__
        raise DataError(f"{kind} knows no words yet; needs one that is fitted, or a list of words: call its fit(texts)")
    return names


def in_order_of_position(names: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Names of a mapping from positions to names, or from names to positions; DataError if a position is missing."""
    by_place = names if 0 in names else {place: name for name, place in names.items()}
    try:
        return tuple(by_place[i] for i in range(len(names)))
    except KeyError as error:
        raise DataError(
            f"names has no name for position {error}; needs one for each of 0 to {len(names) - 1}"
        ) from error


def in_order(names: Any) -> Any:
    """Names in column order, from a mapping in either direction or a fitted vectorizer; anything else unchanged."""
    found = vocabulary_in(names)
    return in_order_of_position(found) if isinstance(found, Mapping) else found


@register
@dataclass(frozen=True)
class Columns:
    """Names of the features of a data set, in order; sources, posteriors and labelled arrays share it.

    ``Columns.of(["age", "visits"])`` gives names to data that have none: ``as_source(x, columns=...)``.

    Parameters
    ----------
    names
        Columns of features.
    kinds
        Stored type of each column, such as ``"int64"``; empty if unknown.
    widths
        Features per column: 1, or the length of its lists.
    roles
        Columns with a role other than feature.
    chosen
        Whether the features were chosen by name; if so, a table may have further columns.
    others
        Columns of the table that are not features, such as row numbers, texts and dates; other data may have them too.
    levels
        Levels of each feature, ``(D,)``: a feature of a :class:`~bnp_dask.Categorical` holds positions among its
        levels; a feature of numbers has None.  None if no feature has levels.
    on_bad_cell
        Treatment of cells that are not numbers, also in new data: ``"missing"``, or None, which means ``"raise"``.
    ignores_extra
        Whether further columns of new data are left out, with a warning that names them; not saved.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    widths: tuple[int, ...]
    roles: Roles = NO_ROLES
    chosen: bool = False
    others: tuple[str, ...] = field(default=(), compare=False)
    levels: tuple[Levels | None, ...] | None = field(default=None, metadata=OPTIONAL)
    on_bad_cell: OnBadCell | None = field(default=None, metadata=OPTIONAL)
    ignores_extra: bool = field(default=False, compare=False, metadata=OPTIONAL)

    @staticmethod
    def of(names: Iterable[str] | Mapping[int, str] | Mapping[str, int]) -> Columns:
        """Names for data without names; DataError for names that are not text, empty, or repeated.

        A mapping is read in the order of positions.  It leads from positions to names, as gensim's ``Dictionary``, or
        from names to positions, as ``vocabulary_`` of scikit-learn's ``CountVectorizer``; the vectorizer itself is
        accepted too.
        """
        listed = tuple(in_order(names))
        wrong = [n for n in listed if not isinstance(n, str) or not n]
        if isinstance(names, str) or wrong or not listed:
            raise DataError(f"names={names!r}: needs the names of all columns in order, such as ['age', 'visits']")
        twice = [n for n in dict.fromkeys(listed) if listed.count(n) > 1] if len(set(listed)) < len(listed) else []
        if twice:
            raise DataError(f"names of columns hold {few(twice)} more than once; each column needs a name of its own")
        return Columns(listed, ("",) * len(listed), (1,) * len(listed))

    @property
    def n_features(self) -> int:
        """Number of features D."""
        return sum(self.widths)

    @property
    def layout(self) -> tuple[tuple[str, int], ...]:
        """Each column with its number of features."""
        return tuple(zip(self.names, self.widths, strict=True))

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each feature, ``(D,)``; features of a column of lists are ``x[0]``, ``x[1]``, ..."""
        return feature_names(self.layout)

    @property
    def coded(self) -> dict[str, Levels]:
        """Levels of each feature that holds positions among levels, by name."""
        both = () if self.levels is None else zip(self.features, self.levels, strict=True)
        return {name: levels for name, levels in both if levels is not None}

    def with_levels(self, coded: Mapping[str, Levels]) -> Columns:
        """These columns with levels for the features named in ``coded``."""
        return replace(self, levels=tuple(coded.get(name) for name in self.features) if coded else None)

    @property
    def is_positional(self) -> bool:
        """Whether the names are 0, 1, 2, ..., as pandas names columns by default."""
        return self.names == tuple(str(i) for i in range(len(self.names)))

    @property
    def shown(self) -> tuple[str, ...] | None:
        """Names of features as tables show them; None if they say no more than positions, as for a list column x."""
        return None if self.is_positional or (self.names == ("x",) and self.n_features > 1) else self.features

    def first(self, count: int) -> Columns:
        """The columns of the first ``count`` features."""
        n = int(np.searchsorted(np.cumsum(self.widths), count)) + 1
        names, kinds, widths = self.names[:n], self.kinds[:n], self.widths[:n]
        levels = None if self.levels is None else self.levels[:count]
        return replace(self, names=names, kinds=kinds, widths=widths, levels=levels)

    def using(self, weights: bool, groups: bool) -> Columns:
        """These features, to be read with or without weights and groups."""
        roles = Roles(self.roles.weights if weights else None)
        if groups:
            roles = replace(self.roles, weights=roles.weights)
        return replace(self, roles=roles, others=(*self.others, *self.roles.names))

    def with_previous(self, lags: int = 1) -> Columns:
        """Columns of rows ``[x_t, x_{t-1}, ..., x_{t-lags}]``, for autoregressive models; see
        :func:`bnp_dask.observation.with_previous`."""
        names = lagged_names(self.names, lags)
        levels = None if self.levels is None else self.levels * (1 + lags)
        return replace(self, names=names, kinds=self.kinds * (1 + lags), widths=self.widths * (1 + lags), levels=levels)

    # -- compared with other data ---------------------------------------------------------------------------------
    def positions(self, found: Columns, where: str) -> np.ndarray | None:
        """Positions of these features among the features of other data, ``(D,)``; None if both have the same order.

        Columns are matched by name, unless the names of one side are mere positions.

        Raises
        ------
        DataError
            A column is missing or superfluous; names it and the nearest name.
        """
        if self.matches_by_position(found.names):
            if found.n_features != self.n_features:
                raise DataError(
                    f"{where} has {found.n_features} columns; the model was trained on {self.n_features}: "
                    f"{few(self.names)}"
                )
            return None
        self.require(dict(found.layout), found.names, where)
        starts = dict(zip(found.names, np.cumsum([0, *found.widths[:-1]]).tolist(), strict=True))
        index = np.concatenate([np.arange(starts[name], starts[name] + width) for name, width in self.layout])
        return None if np.array_equal(index, np.arange(found.n_features)) else index

    def matches_by_position(self, names: Sequence[str]) -> bool:
        """Whether columns are matched by position, because one side's names are mere positions."""
        other = len(names) > 0 and tuple(str(i) for i in range(len(names))) == tuple(names)
        return (other or self.is_positional) and set(names) != set(self.names)

    def require(self, known: Mapping[str, int], features: Sequence[str], where: str) -> None:
        """DataError unless these columns are ``known`` with the same widths, and ``features`` holds no other.

        Superfluous features are refused like missing ones, because a renamed column is both; if these columns ignore
        them and none is missing, a warning names them.  Columns without numbers have width 0; they are reported
        elsewhere.
        """
        missing = [n for n in self.names if n not in known]
        expected = {*self.names, *self.others, *self.roles.names}
        extra = [] if self.chosen else [n for n in features if n not in expected]
        wrong = next((n for n, width in self.layout if known.get(n, 0) not in (0, width)), None)
        if wrong is not None:
            width = dict(self.layout)[wrong]
            raise DataError(f"{where}: column {wrong!r} holds {known[wrong]} numbers; in training it held {width}")
        if not missing and not extra:
            return
        trained = f"the model was trained on {few(self.names)}"
        if missing:
            near = nearest(missing[0], extra or known)
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(
                f"{where}: no column {missing[0]!r}{more}; {trained}{near}. Rename or add it, or pass an array, whose "
                "columns are taken in their order"
            )
        if self.ignores_extra:
            warn(f"{where}: column(s) {few(extra)} were not in training and are left out; {trained}")
            return
        near = nearest(extra[0], self.names)
        raise DataError(
            f"{where}: column(s) {few(extra)} were not in training; {trained}{near}. Leave them out: "
            "choose columns of a frame as df[[...]], of other data with columns="
        )

    # -- in files -------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Columns as JSON, for stores and run directories."""
        held = asdict(replace(self, ignores_extra=False))
        del held["ignores_extra"]
        others, levels, on_bad_cell = held.pop("others"), held.pop("levels"), held.pop("on_bad_cell")
        if others:
            held["others"] = list(others)
        if on_bad_cell is not None:
            held["on_bad_cell"] = on_bad_cell
        if levels is not None:
            held["levels"] = [None if own is None else list(own) for own in levels]
        return {**held, **{n: list(held[n]) for n in ("names", "kinds", "widths")}}

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Columns:
        """Inverse of :meth:`to_json`; DataError for anything else."""
        try:
            roles = dict(facts["roles"])
            cutting = Cutting(**roles.pop("cutting"))
            names, kinds, widths = (tuple(facts[n]) for n in ("names", "kinds", "widths"))
            if not len(names) == len(kinds) == len(widths) or not all(isinstance(n, str) for n in names):
                raise ValueError("needs a name, a type and a width for each column")
            widths = tuple(int(width) for width in widths)
            levels = facts.get("levels")
            if levels is not None:
                levels = tuple(None if own is None else tuple(own) for own in levels)
            others, on_bad_cell = facts.get("others", ()), facts.get("on_bad_cell")
            if not all(isinstance(n, str) for n in others) or on_bad_cell not in (None, *ON_BAD_CELL):
                raise ValueError("needs names of columns, and the treatment of bad cells")
            return Columns(
                names,
                kinds,
                widths,
                Roles(**roles, cutting=cutting),
                bool(facts["chosen"]),
                tuple(others),
                levels=levels,
                on_bad_cell=on_bad_cell,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"damaged description of columns ({error}): {str(facts)[:200]}") from error

    def __str__(self) -> str:
        text = few(self.names, quoted=False)
        roles = {"weights": self.roles.weights, "groups": self.roles.groups, "order": self.roles.order}
        return "; ".join([text, *(f"{role} {name}" for role, name in roles.items() if name is not None)])


def feature_names(layout: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Name of each feature of columns of given widths: ``x`` for width 1, ``x[0]``, ``x[1]``, ... for a list."""
    return tuple(
        n for name, width in layout for n in ([name] if width == 1 else [f"{name}[{i}]" for i in range(width)])
    )


def lagged_names(names: Sequence[str], lags: int) -> tuple[str, ...]:
    """Names of the columns of lagged rows: ``x``, then ``x (t-1)``, ``x (t-2)``, ..."""
    return (*names, *(f"{name} (t-{j})" for j in range(1, lags + 1) for name in names))


def few(names: Sequence[str], quoted: bool = True) -> str:
    """The first names, joined for a message."""
    text = ", ".join(map(repr, names[:SHOWN]) if quoted else names[:SHOWN])
    return text + (f", ... ({len(names)} in all)" if len(names) > SHOWN else "")


@register
@dataclass(frozen=True, eq=False)
class Words:
    """The vocabulary that a posterior was trained with.

    Parameters
    ----------
    utf8
        All words in the order of the columns, joined by newlines, as UTF-8 bytes: uint8.
    analysis
        Settings that cut a text into words (``Analysis.to_json()``); None when the counts came from elsewhere.
    """

    utf8: np.ndarray
    analysis: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, words: Sequence[str], analysis: Mapping[str, Any] | None = None) -> Words:
        """From a list of words; DataError for a word with a line break, or a repeated word."""
        listed = list(words)
        wrong = next((w for w in listed if "\n" in w), None)
        if wrong is not None:
            raise DataError(f"the word {wrong!r} has a line break; a vocabulary needs words without")
        if len(set(listed)) != len(listed):
            twice = next(w for i, w in enumerate(listed) if w in listed[:i])
            raise DataError(f"the vocabulary has {twice!r} twice; each column needs a word of its own")
        return cls(np.frombuffer("\n".join(listed).encode(), np.uint8), analysis)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Word of each column, V of them."""
        return tuple(np.asarray(self.utf8, np.uint8).tobytes().decode().split("\n"))

    @cached_property
    def digest(self) -> str:
        """Hash that identifies this vocabulary; a store with these words has the same hash."""
        return hashlib.blake2b(np.asarray(self.utf8, np.uint8).tobytes(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        first = ", ".join(self.words[:3])
        return f"Words({len(self)} words: {first}{', ...' if len(self) > 3 else ''})"
