"""``as_source``: any data of the user as a source of batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core.columns import ON_BAD_CELL, Columns, Cutting, Roles, few
from bnp_dask.core.location import Location
from bnp_dask.core.vocabulary import Words
from bnp_dask.data.base import Source, columns_of
from bnp_dask.data.batching import check_batch_size, check_names, parsed
from bnp_dask.data.grouped.ids import Keys, RowSettings, from_list, grouped, is_list_of_groups, table_groups
from bnp_dask.data.grouped.recordings import recordings
from bnp_dask.data.ingestion.formats import COLUMN_FILES, Stream, check_format, detect
from bnp_dask.data.sources.arrays import ArraySource
from bnp_dask.data.sources.arrow import as_table
from bnp_dask.data.sources.choose import Reading
from bnp_dask.data.sources.containers.zarr_store import InStore, place_of_node
from bnp_dask.data.sources.dask_collections.arrays import DaskArraySource
from bnp_dask.data.sources.dask_collections.graphs import is_dask, is_dask_frame
from bnp_dask.data.sources.dask_collections.open import open_collection
from bnp_dask.data.sources.files import open_path, open_store, require_groups, roles_of, split_weights, weighted
from bnp_dask.data.sources.forms import Documents, plain_form, sequences_of
from bnp_dask.data.sources.frames import TableSource, is_frame, is_list_of_frames, joined
from bnp_dask.data.sources.named import matched, ordered, with_levels
from bnp_dask.data.sources.parquet import first_schema, parquet_files
from bnp_dask.data.sources.parquet_counts import counts_shape
from bnp_dask.data.text.options import Text
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.arrow_streams import unlabelled
from bnp_dask.inputs.column_notation import ColumnGroup, Key, as_key
from bnp_dask.inputs.protocols import lacking
from bnp_dask.inputs.settings import one_of, shown
from bnp_dask.inputs.sparse_rows import counts_of_corpus, is_corpus

Data = Any
"""Path or URL, NumPy array, scipy.sparse matrix, dask Array or DataFrame, pandas DataFrame, Arrow Table, xarray
DataArray, AnnData, texts, or Source."""


def as_source(
    data: Data,
    *,
    batch_size: int | None = None,
    weights: str | os.PathLike[str] | np.ndarray | Sequence[float] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | Columns | None = None,
    format: str | None = None,
    groups: str | os.PathLike[str] | np.ndarray | Sequence[int] | None = None,
    order: str | None = None,
    gaps: Literal["refuse", "cut", "ignore"] | None = None,
    step: float | None = None,
    cut: int | None = None,
    on_bad_batch: Literal["raise", "skip"] = "raise",
    levels: ColumnGroup | Sequence[ColumnGroup] | bool | None = None,
    on_bad_cell: Literal["raise", "missing"] | None = None,
    text: Text | None = None,
) -> Source:
    """A source of batches from a path, URL, array, table, texts or dask collection.

    Parameters
    ----------
    data
        Path or URL of a Zarr store, Parquet file or folder, .npy or .npz file, or of a small text file; path of an
        Arrow file, or of a data set that Hugging Face's ``datasets`` saved (or such a data set itself); a folder or
        pattern of small CSV or .npy files, each a group; an open Zarr array, group or store, also of Icechunk (one in
        memory only for this process); a NumPy array ``(n, D)``; sequences as an array ``(G, T, D)``, or a list of
        arrays ``(n_g, D)`` or DataFrames, one per group (sequence, image); an xarray DataArray, of three axes with
        time as sequences; scipy.sparse counts ``(n, V)``, or documents of pairs (word, count), as in gensim; texts: a
        list of str or a column of a table, lists of words, or mappings from words to counts; a dask Array or DataFrame;
        a pandas DataFrame; an Arrow Table, or any table with an Arrow C stream (polars, DuckDB); an AnnData, or the
        path of its Zarr store, whose ``X`` is read; or a source.
    batch_size
        Atoms per batch.  Default: as the data are chunked, or about 32 MB.
    weights
        How often each atom counts: an array ``(n,)``, the path of a .npy file, or (Parquet, DataFrame, CSV) the name of
        a column.
    storage_options
        Passed to fsspec for URLs.
    columns
        Columns to use, in that order (Parquet, DataFrame, CSV).  Default: all columns of numbers, in any storage: also
        truth values, decimals, texts such as ``"1.5"`` or ``"1,234.5"``, and lists of equal length, which become the
        features ``e[0]``, ``e[1]``, ...  Row numbers, texts, dates and categories are left out, with a warning of one
        line.  Or the columns that a model was trained on, ``posterior.columns``: features are found by name and put in
        order.  A missing feature is an error, and so is a superfluous one unless training chose its columns.  Tables
        are read with the weights, groups and order of training, unless these arguments say otherwise.  Features of data
        without names keep their order and get these names: ``Columns.of(["age", "visits"])`` names an array's columns.
    format
        Format of a file, if its name and first bytes do not determine it.
    groups
        Grouping of rows (sequences, images, hospitals): offsets ``(G + 1,)``, where group g is the rows
        ``offsets[g]:offsets[g + 1]`` (a group may be empty), or the path of a .npy file that holds them; or the
        name of a column of ids (Parquet, DataFrame, CSV), rows of one group together.  A batch never cuts a group: it
        holds up to ``batch_size`` rows in whole groups, and a larger group alone.  Stores that ``ingest`` wrote with
        groups have them already.
    order
        A column of numbers, dates or times that must strictly rise within each group.  Rows are not reordered, so this
        is a check.  ``bnp_dask.ingest`` sorts.
    gaps
        Treatment of a gap, where the order column rises by more than one and a half steps: ``"refuse"`` (the default);
        ``"cut"``: the rows after the gap form a new group (sequence); ``"ignore"``: rows follow one another despite the
        gap.
    step
        Distance of neighbouring rows in the order column, in its units (for dates and times the stored units);
        default: the median distance.
    cut
        Most rows of a group: a longer group is cut into as few blocks as possible, of equal size, and each block is a
        group of its own.  For sequences too long to be processed in one piece: each block then starts anew, from the
        start probabilities, and the transition at each cut is not counted (``source.n_cuts`` in all).  Rows, and hence
        labels, stay in order.  Blocks many times longer than a segment change little: with states that last 60 steps,
        blocks of 1000 changed 1 label in 10,000, blocks of 100 changed 1 in 800.
    on_bad_batch
        ``"skip"``: a file of a Parquet folder that has other columns than the rest, or cannot be opened, is an error
        only when its batch is read; for ``train(..., on_bad_batch="skip")``.
    levels
        Columns for a :class:`~bnp_dask.Categorical`: their names or positions, or True for all columns.
        :func:`bnp_dask.train` knows them from the likelihood; give them for a source that is made before.
        Columns of text, pandas categories, truth values, Arrow dictionaries, and numbers of few distinct values may be
        levels; one pass over these columns finds them.  Texts and numbers are sorted, pandas categories stay in their
        order.  ``source.columns.levels`` holds them, and batches hold positions among them.
    on_bad_cell
        Treatment of a cell that is not a number in a column of numbers, such as ``"?"`` or ``"12%"``: ``"raise"``, the
        default, is an error that names it; ``"missing"`` reads NaN, for likelihoods that accept missing entries.  The
        setting of training also holds for the data that its posterior predicts.
    text
        How texts become counts, ``Text()`` by default; also says that a table's column of texts is read, not its
        numbers.  ``posterior.words`` of a model that is trained on them knows the words, and new texts are read by it.

    Raises
    ------
    DataError
        The data cannot be read as rows of numbers or counts; names the data found and the call that helps.
    """
    one_of("on_bad_batch", on_bad_batch, ("raise", "skip"))
    if on_bad_cell is not None:
        one_of("on_bad_cell", on_bad_cell, ON_BAD_CELL)
    if not isinstance(text, Text | None):
        raise SettingError(f"text={shown(text)}: needs Text(...), or None")
    wanted = columns if isinstance(columns, Columns) else check_names(columns, {"order": order})
    if batch_size is not None:
        check_batch_size(batch_size)
    if isinstance(columns, Columns) and is_corpus(data):
        data = counts_of_corpus(data, columns.n_features)
    data = plain_form(data, None, text)
    if isinstance(data, Documents):
        if any(given is not None for given in (wanted, groups, order, cut, format, storage_options, on_bad_cell)):
            raise DataError("data are documents, of which each is a row of its own; only batch_size, weights, text go")
        return source_of_documents(data, text or Text(), batch_size, weights)
    if text is not None:
        raise DataError(
            f"text= is for texts, and data is {type(data).__name__}; files of texts are ingested: bnp_dask.ingest"
        )
    data, labels = unlabelled(data)
    data = place_of_node(as_table(data if format is not None else recordings(data)))
    location = Location.of(data, storage_options, "data") if isinstance(data, (str, os.PathLike)) else None
    within = data if isinstance(data, InStore) else None
    rows = RowSettings(weights, groups, order, gaps, step, cut)
    reading = Reading(keys_of_levels(levels), on_bad_cell)
    if isinstance(wanted, Columns) and _is_table(data, location, format):
        # each frame of a list is a group
        rows = rows.as_trained(Roles(wanted.roles.weights) if is_list_of_frames(data) else wanted.roles)
    cutting = Cutting.of(rows.cut, rows.gaps, rows.step, rows.order)
    keys = Keys.of(rows.groups, rows.order, cutting)
    if location is not None:
        lenient = on_bad_batch == "skip"
        source = open_path(location, batch_size, rows.weights, wanted, format, keys, rows.cut, lenient, reading)
    elif within is not None and format is None and storage_options is None:
        source = open_store(within, batch_size, rows.weights, wanted, keys, rows.cut)
    elif format is not None or storage_options is not None:
        raise DataError(f"format and storage_options are for paths and URLs, but data is {type(data).__name__}")
    else:
        source = _open_object(data, batch_size, wanted, rows, keys, reading)
    if labels is not None:
        source = ordered(source, Columns.of(labels), None)
    if isinstance(wanted, Columns):
        found = columns_of(source)
        is_new = wanted.levels is None and len(reading.levels) > 0 and found is not None
        source = matched(source, wanted.with_levels(found.coded) if is_new and found is not None else wanted)
        if wanted.levels is not None:
            return source
    return with_levels(source, reading.levels)


def keys_of_levels(levels: Any) -> tuple[Key, ...]:
    """Columns of levels in the stored notation; SettingError for values that refer to no columns."""
    if levels is None or levels is False:
        return ()
    if levels is True:
        return (":",)
    if isinstance(levels, list):
        return tuple(as_key(own) for own in levels)
    return (as_key(levels),)


def _is_table(data: Data, location: Location | None, format: str | None) -> bool:
    """Whether data are a table with a name for each column, so that rows may have weights and groups there."""
    if location is None:
        return isinstance(data, pa.Table) or is_frame(data) or is_list_of_frames(data) or is_dask_frame(data)
    with parsed(location.name):
        location.require()
        kind = check_format(format) if format is not None else detect(location)
        if kind in COLUMN_FILES:
            return kind == "arrow" or counts_shape(first_schema(parquet_files(location), True)) is None
        return Stream(location, kind).has_names


def _open_object(
    data: Data,
    batch_size: int | None,
    columns: list[str] | Columns | None,
    rows: RowSettings,
    keys: Keys | None,
    reading: Reading,
) -> Source:
    """Source of something in this process."""
    if is_dask(data):
        column, apart = split_weights(rows.weights)
        require_groups(rows.cut, keys, "dask collection")
        source = open_collection(data, batch_size, columns, roles_of(keys, column), reading)
        if keys is not None and (isinstance(source, DaskArraySource) or keys.column is None):
            return grouped(source, keys.require_offsets(source.name), batch_size, apart, rows.cut)
        return weighted(source, source.spans, apart)
    if isinstance(data, Source) and not isinstance(data, type):
        given = (batch_size, rows.weights, None if isinstance(columns, Columns) else columns, keys, rows.cut)
        if any(value is not None for value in given):
            raise DataError(
                "data is already a source; give batch_size, weights, columns, groups and cut where it is made"
            )
        return data
    return _from_memory(data, batch_size, columns, rows, keys, reading)


def _from_memory(
    data: Data,
    batch_size: int | None,
    columns: list[str] | Columns | None,
    rows: RowSettings,
    keys: Keys | None,
    reading: Reading,
) -> Source:
    column, apart = split_weights(rows.weights)
    cut = rows.cut
    if isinstance(data, pa.Table) or is_frame(data):
        make = TableSource.of_table if isinstance(data, pa.Table) else TableSource.of_frame
        require_groups(cut, keys, "table")
        table = make(data, batch_size, columns, roles_of(keys, column), reading=reading)
        if keys is not None:
            return table_groups(table, keys, batch_size, apart)
        return weighted(table, table.spans, apart)
    if is_list_of_frames(data):
        if keys is not None:
            raise DataError("data is a list of DataFrames, each a group; leave out groups=, or give one DataFrame")
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in data])])
        whole = TableSource.of_frame(joined(data), None, columns, roles_of(keys, column), reading, offsets)
        return grouped(whole, offsets, batch_size, apart, cut)
    if not sparse.issparse(data) and not isinstance(data, (np.ndarray, list, tuple)):
        raise DataError(
            f"data is {type(data).__name__}; needs a path or URL, a NumPy array, scipy.sparse counts, a dask Array or "
            "DataFrame, a pandas DataFrame, an Arrow Table or stream, an xarray DataArray, an AnnData, or a source; or "
            "texts"
            f"{_as_source_lacks(data)}{_as_splits(data)}"
        )
    if isinstance(columns, list) or column is not None:
        raise DataError("an array has no named columns; choose columns as x[:, [0, 2]], give weights as an array")
    if is_list_of_groups(data):
        if keys is not None:
            raise DataError("data is a list of arrays, each a group; leave out groups=, or give one array")
        return from_list(data, batch_size, apart, cut)
    if isinstance(data, np.ndarray) and data.ndim == 3:
        if keys is not None:
            raise DataError(f"data is an array of shape {data.shape}, each x[i] a sequence; leave out groups=")
        x, offsets = sequences_of(data)
        return grouped(ArraySource.of(x, None), offsets, batch_size, apart, cut)
    require_groups(cut, keys, "array")
    try:
        held = data if sparse.issparse(data) else np.asanyarray(data)
    except ValueError as error:
        raise DataError(
            f"data is a {type(data).__name__} that is no array: {error}. A list of sequences needs a matrix (n_g, D) "
            "for each, also for single numbers: [x.reshape(-1, 1) for x in data]"
        ) from error
    source = ArraySource.of(held, batch_size)
    if keys is not None:
        return grouped(source, keys.require_offsets(source.name), batch_size, apart, cut)
    return weighted(source, source.spans, apart)


def source_of_documents(documents: Documents, text: Text, batch_size: int | None, weights: Any = None) -> Source:
    """Counts of documents in memory, with the words that the settings keep."""
    vocabulary = documents.vocabulary(text)
    counts, _ = documents.counts(vocabulary)
    words = Words.of(vocabulary.words, None if vocabulary.analysis is None else vocabulary.analysis.to_json())
    source = replace(ArraySource.of(counts, batch_size, documents.name), words=words)
    column, apart = split_weights(weights)
    if column is not None:
        raise DataError(f"{documents.name}: weights={column!r} names a column; of documents give an array (n,)")
    return weighted(source, source.spans, apart)


def _as_splits(data: Any) -> str:
    """Advice, for a message, if data seem to be several tables by name; else empty."""
    return f": choose one by its name, of {few([*map(str, data)])}" if isinstance(data, Mapping) and data else ""


def _as_source_lacks(data: Any) -> str:
    """Missing members of an object that seems to be meant as a source, for a message; else empty."""
    lacks = (
        lacking(data, Source) if any(callable(getattr(data, verb, None)) for verb in ("reader", "describe")) else None
    )
    return "" if lacks is None else f" (as a source: {lacks})"
