"""Sources whose features get names, or another order: data matched with the columns that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bnp_dask.core import Columns
from bnp_dask.data.base import Reader, Source, batch_reader, columns_of
from bnp_dask.data.groups import GroupedSource
from bnp_dask.data.sources.columns import union
from bnp_dask.data.sources.dask_collections import WINDOW, DaskFrameSource
from bnp_dask.data.view import OrderedSource, WeightedSource, WithoutBatches, letting_miss
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import in_order, open_executor
from bnp_dask.inputs import MOST_LEVELS, Codes, Key, Level, Levels, as_level, few_levels, is_text, positions, resolve


def matched(source: Source, columns: Columns) -> Source:
    """The data with the features that a model was trained on, in its order; data without names must have that order.

    Raises
    ------
    DataError
        A column is missing or superfluous; for data without names only the number is checked.
    """
    found = columns_of(source)
    if found is None:
        if source.n_features != columns.n_features:
            raise DataError(
                f"{source.name} has {source.n_features} columns without names; needs {columns.n_features}, in the "
                f"order of training: {columns}"
            )
        return ordered(source, columns, None, codes_of_unnamed(columns, source.n_features, source.name))
    index = columns.positions(found, source.name)
    codes = _recoded(found, columns, index, source.name)
    if index is None and not codes:
        return source
    return ordered(source, replace(columns, roles=found.roles), index, codes)


def codes_of_unnamed(columns: Columns, n_features: int, name: str) -> tuple[Codes | None, ...]:
    """Conversion of unnamed columns to positions of the levels of training; empty if none is converted."""
    return _recoded(Columns.of(str(i) for i in range(n_features)), columns, None, name)


def _recoded(found: Columns, wanted: Columns, index: np.ndarray | None, name: str) -> tuple[Codes | None, ...]:
    """Conversion of features from the levels of other data to the levels of training; empty if they agree."""
    if found.levels == wanted.levels and index is None:
        return ()
    nothing: tuple[None, ...] = (None,) * wanted.n_features
    held = nothing if found.levels is None else found.levels
    if index is not None and found.levels is not None:
        held = tuple(held[i] for i in index.tolist())
    codes: list[Codes | None] = []
    for feature, own, new in zip(wanted.features, held, wanted.levels or nothing, strict=True):
        if own is not None and new is None:
            raise DataError(f"{name}: column {feature!r} holds levels; the model was trained on its numbers")
        if new is None or own == new:
            codes.append(None)
        elif own is None:
            codes.append(_of_numbers(feature, new, name))
        else:
            codes.append(Codes.between(feature, own, new))
    return tuple(codes) if any(own is not None for own in codes) else ()


def _of_numbers(feature: str, levels: Levels, name: str) -> Codes:
    if is_text(levels):
        raise DataError(
            f"{name}: column {feature!r} holds numbers; the model was trained on the levels {few_levels(levels)}: "
            "pass a table with these texts"
        )
    return Codes.of_numbers(feature, levels)


def with_levels(source: Source, keys: Sequence[Key]) -> Source:
    """The data with levels in the columns at the ``keys``; columns without levels must hold numbers.

    One pass over the data finds the numbers, by tasks on the current client's cluster, or here.

    Raises
    ------
    DataError
        A column has more distinct numbers than the most levels.
    SettingError
        A column is missing.
    """
    if not keys:
        return source
    found = columns_of(source)
    columns = Columns.of(str(i) for i in range(source.n_features)) if found is None else found
    names = columns.shown
    known = columns.levels or (None,) * columns.n_features
    try:
        places = [positions(resolve(key, names), columns.n_features).tolist() for key in keys]
    except SettingError as error:
        raise SettingError(
            f"{error}. Columns of texts are features of a source that is told so: as_source(data, levels=[...])"
        ) from None
    wanted = [i for i in sorted({i for own in places for i in own}) if known[i] is None]
    if not wanted:
        return source
    features = [columns.features[i] for i in wanted]
    levels = dict(zip(wanted, union(_values_of(source, wanted), features, source.name).values(), strict=True))
    both = tuple(levels.get(i, own) for i, own in enumerate(known))
    codes = tuple(Codes.of_numbers(name, levels[i]) if i in levels else None for i, name in enumerate(columns.features))
    return ordered(source, replace(columns, levels=both), None, codes)


def _values_of(source: Source, features: Sequence[int]) -> list[list[set[Level]]]:
    """Distinct numbers of some features in each batch; the likelihood decides whether entries may be missing."""
    at, source = tuple(features), letting_miss(source)
    tasks = ((f"levels-batch{b}", _distinct, (batch_reader(source, b), at)) for b in range(source.n_batches))
    with open_executor(None) as executor:
        return list(in_order(executor, tasks, WINDOW))


def _distinct(reader: Reader, features: tuple[int, ...]) -> list[set[Level]]:
    """Task: distinct numbers in columns of a batch, except missing ones; only enough to show if there are too many."""
    batch = reader()
    if not isinstance(batch.x, np.ndarray):
        raise DataError(f"{batch.name}: sparse counts, but columns of levels need dense rows")
    found = []
    for i in features:
        values = np.unique(batch.x[:, i])
        found.append({as_level(v) for v in values[np.isfinite(values)][: MOST_LEVELS + 1].tolist()})
    return found


def ordered(source: Source, columns: Columns, index: np.ndarray | None, codes: tuple[Codes | None, ...] = ()) -> Source:
    """The data with named features, from the positions ``index`` of the source, or in the same order; with ``codes``
    as in :class:`~bnp_dask.data.view.OrderedSource`."""
    match source:
        case GroupedSource() | WeightedSource() | WithoutBatches():
            return replace(source, whole=ordered(source.whole, columns, index, codes))
        case DaskFrameSource():
            return replace(source, columns=columns)
        case _:
            return OrderedSource(source, columns, index, codes)
