"""``ingest``: any supported file into a batched Zarr store, as a stream."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from bnp_dask.core.columns import ON_BAD_CELL, Cutting
from bnp_dask.core.location import Location
from bnp_dask.data.base import Source
from bnp_dask.data.batching import BATCH_BYTES, batch_rows, check_dtype, check_names, parsed
from bnp_dask.data.grouped.recordings import recordings
from bnp_dask.data.ingestion.batch_sizes import WORKERS
from bnp_dask.data.ingestion.counts import write_counts, write_text
from bnp_dask.data.ingestion.distinct import Deduplicate
from bnp_dask.data.ingestion.formats import Piece, check_format, detect, detect_text, format_of_text
from bnp_dask.data.ingestion.grouped_rows import grouped_table
from bnp_dask.data.ingestion.patches import Patches
from bnp_dask.data.ingestion.plan import Input, Plan, Progress, chained, named_errors, stored_bytes
from bnp_dask.data.ingestion.projection import Projection, fit_projection, load_projection
from bnp_dask.data.ingestion.report import IngestReport
from bnp_dask.data.ingestion.settings import check_deduplicate, check_ingest, check_target, check_use
from bnp_dask.data.ingestion.writers import RowsWriter, write_vector
from bnp_dask.data.sources.arrow import as_table
from bnp_dask.data.sources.choose import Reading
from bnp_dask.data.sources.forms import Documents, plain_form
from bnp_dask.data.sources.frames import is_frame, table_of_frame
from bnp_dask.data.sources.open import as_source
from bnp_dask.data.text.corpus import Corpus, documents_of
from bnp_dask.data.text.options import TEXT_FORMATS, Text
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.arrow_streams import as_file, is_stream
from bnp_dask.inputs.settings import is_whole, one_of, shown


def ingest(
    source_path: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    batch_size: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    columns: Sequence[str] | None = None,
    weights: Any = None,
    vocabulary: str | os.PathLike[str] | None = None,
    project: int | str | os.PathLike[str] | None = None,
    patches: Patches | None = None,
    text: Text | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    group_column: str | None = None,
    order_column: str | None = None,
    gaps: Literal["refuse", "cut", "ignore"] | None = None,
    step: float | None = None,
    cut: int | None = None,
    workers: int = WORKERS,
    deduplicate: Deduplicate | None = None,
    on_bad_cell: Literal["raise", "missing"] | None = None,
) -> IngestReport:
    """Turn a file, or data in memory, into a batched Zarr store; holds one batch of a file at a time.

    Parameters
    ----------
    source_path
        Path or URL: Zarr, Parquet, .npy, .npz, CSV, IDX, UCI docword, LDA-C or svmlight; text may be packed (.gz, ...).
        An image or a folder of images becomes grey patches.  Raw text becomes counts of words: a folder or archive
        (.zip, .tar, .tar.gz, ...) of text files, JSON lines, a CSV or Parquet file with a column of text, a file with
        one document per line (format ``"lines"``); or a function that makes an iterator over ``(id, text)`` or
        ``(id, text, metadata)``, called once for each of two passes, or a list of these, or of texts.  Or a table: a
        DataFrame, or one that gives an Arrow C stream (Arrow, polars, DuckDB), whose rows go through a temporary file.
        Or anything else that :func:`as_source` takes: arrays, sequences, a DataArray, sparse counts, a folder of
        recordings, a source.
    out
        Path or URL of the store.  A local store appears under this name only when it is complete.
    format
        Format of the source, if its name and first bytes do not determine it.  ``"text"`` is raw text of the detected
        kind, every file of a folder, or one document per line.
    batch_size, batch_bytes
        Atoms per batch, else bytes per batch in memory (float64).
    columns, weights
        As in :func:`as_source`.  Of raw text, ``columns`` are the metadata to keep; default: all.
    vocabulary
        Text file with one word per line, stored beside counts.  For raw text also a store that was ingested, whose
        words and settings are used: for held-out documents.
    project
        Number of principal components to project dense rows on (two passes), or the path of a store that was
        projected, to use its projection (for held-out data).
    patches
        How images are cut; default: every 8x8 patch, less its mean.
    text
        How raw text becomes counts; also marks a file or folder as raw text.  The store then holds the
        vocabulary (:func:`load_vocabulary`), and ids and metadata of the documents (:func:`load_documents`).
    dtype
        How dense values are stored: ``"float32"``, ``"float64"``, ``"uint8"``, ...  Default: as in the source;
        projected rows as float64, patches of images as float32.  Refused if it would change an integer.
    progress
        Called after every piece with the share read and the atoms so far.
    overwrite
        Replace a store at ``out``; anything else there is never replaced.
    storage_options
        Passed to fsspec for URLs (both ends).
    group_column, order_column
        Tables (Parquet, CSV): a column of ids says which rows belong together (a sequence, an image, a hospital);
        another sorts the rows of each group.  Groups come in the order of their first rows; rows out of place are
        sorted in a temporary file, with 12 to 28 bytes per row in memory.  Batches never cut a group.
    gaps, step, cut
        As in :func:`as_source`: treatment of gaps in the order column, length of a step, and the most rows of a block
        into which long sequences may be cut.
    workers
        Number of workers that will use the data.  Batches are smaller than ``batch_bytes`` if each worker would get
        fewer than four, down to about a megabyte in memory: a visit of a smaller batch takes longer than its
        computation.  For packed counts the size is a guess from the share read.  Ignored if ``batch_size`` is given.
    deduplicate
        Keep repeated dense rows without groups, equal in every stored value, once, at their first occurrence.
        ``"weights"``: their weights are summed, or their number counted if they have none, so that a model learns the
        same as from all rows, in less time.  ``"once"``: each counts once, however often it occurs; copies that are not
        separate observations would appear as evidence of a cluster.  Rows go through temporary files, with 32 bytes in
        memory for each distinct row.
    on_bad_cell
        As in :func:`as_source`: cells that are not numbers are an error, or ``"missing"``, stored as NaN.

    Raises
    ------
    DataError
        The source cannot be read, or something is at ``out``.
    StoreError
        The store cannot be written, as the disk is full; nothing is left of it.
    """
    columns = check_names(columns, {"group_column": group_column, "order_column": order_column})
    check_ingest(batch_size, batch_bytes, project, patches, text, progress, workers)
    if on_bad_cell is not None:
        one_of("on_bad_cell", on_bad_cell, ON_BAD_CELL)
    reading, project = Reading(on_bad_cell=on_bad_cell), int(project) if is_whole(project) else project
    target = Location.of(out, storage_options, "out")
    form = _form(source_path, text, format)
    opened = None
    if not isinstance(form, (str, os.PathLike, pa.Table)) and not is_stream(form) and not _are_documents(form):
        opened = as_source(form, columns=columns, weights=weights, on_bad_cell=on_bad_cell, text=text)
        if vocabulary is not None and isinstance(form, Documents):
            raise SettingError("vocabulary= is for texts and counts without words; these documents bring their own")
    with as_file(form) as held:
        location, kind, corpus = _opened(held, format, text, columns, storage_options, opened)
        check_use(location, kind, patches, text if corpus is None and opened is None else None)
        check_target(target, location, overwrite)
        # a local store gets its name at the end; elsewhere the group's metadata, written last, makes it complete
        building = target.sibling(f".{target.basename}.{uuid.uuid4().hex[:12]}") if target.is_local else target
        cutting = Cutting.of(cut, gaps, step, order_column)
        table = grouped_table(location, kind, group_column, order_column, columns, weights, cutting, reading)
        given = Input(
            location, kind, columns, weights, patches or Patches(), table=table, reading=reading, source=opened
        )  # fmt: skip
        plan = Plan(
            given, building, target, batch_size, batch_bytes, vocabulary, project, dtype, progress, cut, workers,
            check_deduplicate(deduplicate, weights),
        )  # fmt: skip
        if overwrite and not target.is_local and target.exists():
            target.remove()
        try:
            # errors of the caller's own function stay unchanged
            with named_errors(location, target) if kind != "documents" else contextlib.nullcontext():
                report = _write(plan) if corpus is None else write_text(plan, corpus)
                if target.is_local:
                    _put_in_place(building, target)
                is_file = isinstance(source_path, (str, os.PathLike))
                return report if held is form or is_file else replace(report, source=type(source_path).__name__)
        except BaseException:
            if building.exists():
                building.remove()
            raise


def _form(data: Any, text: Text | None, format: str | None) -> Any:
    """The source in the form in which it is read: a path, a table, documents, or data that are opened as sources."""
    if isinstance(data, (str, os.PathLike)):
        return data if format is not None or text is not None else recordings(data)
    if (callable(data) and not isinstance(data, type)) or _are_documents(data):
        return data
    form = as_table(plain_form(data))
    if isinstance(form, Documents) and form.kind == "texts":
        return [(str(number), one) for number, one in enumerate(form.items)]
    return table_of_frame(form) if is_frame(form) else form


def _are_documents(data: Any) -> bool:
    """Whether data are a function that makes documents, or pairs (id, text)."""
    if callable(data) and not isinstance(data, type) and not isinstance(data, Source):
        return True
    if isinstance(data, (list, tuple)) and len(data) == 0:
        return True  # of which the error says that there are none
    first = data[0] if isinstance(data, (list, tuple)) else None
    return isinstance(first, tuple) and len(first) in (2, 3) and isinstance(first[1], str)


def _opened(
    source_path: Any,
    format: str | None,
    text: Text | None,
    columns: Sequence[str] | None,
    options: Any,
    opened: Source | None,
) -> tuple[Location, str, Corpus | None]:
    """Place and format of a source, and its documents if it is raw text."""
    if opened is not None:
        if format is not None:
            raise SettingError(f"format={format!r} is for files; data is {type(source_path).__name__}")
        return Location(opened.name), "memory", None
    if not isinstance(source_path, (str, os.PathLike)):
        documents, name = documents_of(source_path)
        return Location(name), "documents", Corpus(name, "documents", documents, text or Text(), columns)
    location = Location.of(source_path, options, "source_path")
    location.require()
    kind = check_format(format) if format is not None else _kind(location, text)
    kind = format_of_text(location, text or Text()) if kind == "text" else kind
    is_text = kind in TEXT_FORMATS
    return location, kind, Corpus(location.name, kind, location, text or Text(), columns) if is_text else None


def _write(plan: Plan) -> IngestReport:
    pieces = plan.given.pieces()
    first = next(pieces, None)
    if first is None:
        raise DataError(f"{plan.given.location.name} has no rows")
    if isinstance(first[0][0], np.ndarray):
        if plan.vocabulary is not None:
            raise DataError(f"{plan.given.location.name} holds dense rows, which have no vocabulary")
        return _write_rows(plan, chained(first, pieces), first[0][0])
    if any(given is not None for given in (plan.project, plan.dtype, plan.cut, plan.deduplicate)):
        raise DataError(
            f"{plan.given.location.name} holds counts; project=, dtype=, cut= and deduplicate= are for dense rows"
        )
    return write_counts(plan, chained(first, pieces), first[0][0])


def _write_rows(plan: Plan, pieces: Iterator[tuple[Piece, float]], sample: np.ndarray) -> IngestReport:
    name = plan.given.location.name
    projection = _projection(plan, sample.shape[1])
    usual: DTypeLike = np.float32 if plan.given.format == "images" else sample.dtype
    usual = np.float64 if projection is not None else usual
    try:
        kind = np.dtype(usual if plan.dtype is None else plan.dtype)
    except (TypeError, ValueError) as error:
        raise SettingError(f'dtype={shown(plan.dtype)}: needs a type of numbers, such as "float32"') from error
    kind = check_dtype(kind, f"dtype={plan.dtype!r}")
    d = sample.shape[1] if projection is None else projection.n_components
    rows = batch_rows(d, plan.batch_size, plan.batch_bytes)
    cut = plan.given.cut(d, rows, plan.cut, plan.sizes)
    writer = RowsWriter(plan.building, d, kind, rows, cut, plan.sizes)
    begin = 0.5 if isinstance(plan.project, int) else 0.0
    stored, distinct = _stored(pieces, projection, kind, name), plan.distinct(cut)
    for (x, weights), fraction in stored if distinct is None else distinct.pieces(stored):
        writer.add(x, weights, fraction)
        plan.tell(begin + (1 - begin) * fraction, writer.n_atoms)
    facts: dict[str, Any] = {}
    if plan.given.named and projection is None:
        facts["columns"] = plan.given.named[0].to_json()
    notes = [*plan.given.notes, *([] if distinct is None else [distinct.note()])]
    if plan.given.table is not None and not plan.given.table.is_sorted:
        notes.append("rows were sorted into groups: they lie in another order than in the source")
    if plan.given.format == "images":
        facts["patches"] = asdict(plan.given.patches)
    if projection is not None:
        write_vector(plan.building.child("projection_mean"), projection.mean)
        write_vector(plan.building.child("projection_components"), projection.components)
        facts["projected"] = {"from": projection.n_features, "explained": projection.explained}
        share = projection.explained
        kept = "" if share is None else f", which keep {100 * share:.1f} % of the variance"
        notes.append(f"{projection.n_features} features projected on {d} principal components{kept}")
    writer.close(facts, name)
    plan.tell(1.0, writer.n_atoms)
    loaded = 8 * writer.n_atoms * d
    return IngestReport(
        name, plan.target.name, plan.given.format, "rows", writer.n_atoms, d, writer.n_batches, loaded,
        stored_bytes(plan.building), str(kind), notes=tuple(notes),
        sizing=plan.sizing(writer.n_batches, cut is not None),
        n_groups=None if cut is None else len(cut.offsets) - 1,
        n_cuts=0 if cut is None else cut.n_cuts,
    )  # fmt: skip


def _stored(
    pieces: Iterator[tuple[Piece, float]], projection: Projection | None, kind: np.dtype, name: str
) -> Iterator[tuple[Piece, float]]:
    """Rows as they are stored."""
    row = 0
    for (x, weights), fraction in pieces:
        done = projection.apply(x, name) if projection is not None else x
        yield (_convert(done, kind, name, row), weights), fraction
        row += len(x)


def _projection(plan: Plan, n_features: int) -> Projection | None:
    if plan.project is None:
        return None
    if isinstance(plan.project, int):
        name = plan.given.location.name
        pieces = (_told(plan, piece, share) for piece, share in plan.given.pieces())
        return fit_projection(pieces, plan.project, n_features, name)
    return load_projection(Location.of(plan.project, argument="project"), n_features)


def _told(plan: Plan, piece: Piece, share: float) -> Piece:
    plan.tell(0.5 * share, 0)
    return piece


def _convert(x: np.ndarray, kind: np.dtype, name: str, row: int) -> np.ndarray:
    """Values in the stored dtype; DataError if an integer dtype would change one."""
    check_dtype(x.dtype, name)
    if x.dtype == kind:
        return x
    with np.errstate(invalid="ignore", over="ignore"):
        out = x.astype(kind)
    with np.errstate(invalid="ignore"):
        changed = np.argwhere(out.astype(x.dtype) != x) if x.dtype.kind in "iu" and kind.kind == "f" else None
    if changed is not None and len(changed):
        at = changed[0]
        raise DataError(
            f"{name}: dtype {kind} cannot hold {x[tuple(at)]} (row {row + at[0]}, column {at[1]}); store as {x.dtype}, "
            "or as float64 where numbers are at most 2**53"
        )
    if kind.kind in "biu" and not np.array_equal(out.astype(np.float64), x.astype(np.float64)):
        raise DataError(
            f"{name}: dtype {kind} cannot hold the values of rows {row} and after; store as float32 or float64"
        )
    if kind.kind == "f" and np.isinf(out).any() and not np.isinf(x).any():
        raise DataError(f"{name}: rows {row} and after hold values too large for {kind}; store as float64")
    return out


def _kind(location: Location, text: Text | None) -> str:
    with parsed(location.name):
        return detect(location) if text is None else detect_text(location, text)


def _put_in_place(building: Location, target: Location) -> None:
    """Give a finished local store its name; an existing store is first moved aside and deleted last."""
    old = target.sibling(f".{target.basename}.{uuid.uuid4().hex[:12]}.old")
    if target.exists():
        os.rename(target.url, old.url)
    os.rename(building.url, target.url)
    if old.exists():
        old.remove()
