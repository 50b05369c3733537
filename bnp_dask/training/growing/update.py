"""``update``: a run takes in more data, visits them, and puts a new version in force; ``follow``: again and again."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bnp_dask.analysis.base import require_posterior
from bnp_dask.core import Chosen
from bnp_dask.data.sources.open import are_recordings
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor, one_blas_thread
from bnp_dask.execute.reach import open_executor
from bnp_dask.inputs import number_from, one_of, path_text, positive_number, shown, whole_number
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.store import RunStore
from bnp_dask.training.growing.found import Found, OpenedPiece, look_for_new
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.grown import labels_as_opened, linked_as, place_beside, responding_as
from bnp_dask.training.growing.incoming.aside import ON_BAD, Aside, OnBad
from bnp_dask.training.growing.incoming.pieces import Feed, Piece, Time, moment_of, naming, pieces_of
from bnp_dask.training.growing.incoming.words import NewWords, open_counts, require_new_words
from bnp_dask.training.growing.ingest_update import KEPT, Rules, UpdateResult, nothing_new, span_from, take_in
from bnp_dask.training.memory_plan import MEMORY, parse_memory
from bnp_dask.training.run_settings import OPENED

if TYPE_CHECKING:
    from distributed import Client


AGAIN = "Nothing was taken in: start a cluster and call update(...) again."


def update(
    store: str | os.PathLike[str],
    data: Any,
    *,
    revisit: float = 1.0,
    laps: int = 0,
    batch_size: int | None = None,
    labels: Any = None,
    links: Any = None,
    responses: Any = None,
    client: Client | Executor | str | None = None,
    memory: int | str = MEMORY,
    versions: int = KEPT,
    half_life: str | datetime.timedelta | None = None,
    keep: str | datetime.timedelta | None = None,
    time: Time | None = None,
    new_words: NewWords | None = None,
    dormant: float | None = None,
    on_version: Callable[[UpdateResult], bool | None] | None = None,
    on_bad: OnBad = "raise",
) -> UpdateResult:
    """Let a run take in more data: append batches, visit them, decide moves, publish a version.

    New batches are visited in their order with the posterior in force, and folded in windows of the run's schedule.
    Model, priors and moves of the first call stay.  The update is one step: a kill on the way leaves the run
    unchanged, and a repeated call gives the same bits as an uninterrupted one.

    Parameters
    ----------
    store
        Run directory of ``train(..., store=)`` with ``Memoized()``.
    data
        As for :func:`bnp_dask.train`, or raw texts for a posterior that knows its vocabulary.  A folder that is no Zarr
        store, or a pattern with ``*``, is taken file by file, in the order of names.  A piece is recognised by its
        place and content: given twice it is taken once.  Data in memory are recognised by content alone, and cannot be
        visited again; for a :class:`bnp_dask.Feed` the position counts.  Give weights and groups with
        :func:`bnp_dask.as_source`; tables have them in the columns of training.
    revisit
        Older batches to visit for each new one, beginning with the ones visited longest ago; at most all.  Merges,
        deletes and births from all data are decided once every batch was visited since they were proposed, in this
        update or over several.  0: no older batches are visited, and none of these is proposed.  Births at new batches
        are decided at once, except for topic models; proposals about a cluster that is split there are dropped.  Such
        births of mixtures look at the atoms of all batches that are folded together, in clusters where these are unlike
        the others.  That is half a window of batches, or as many more as have ``Birth(sample=)`` atoms.

        0 is a pure stream: with ``laps=0``, and without ``keep``, nothing of single new batches is kept.  The
        state of the run does not grow with them; they fade with a half-life as all others do, and cannot be visited
        again, retired or replaced.  Merges of mixtures are decided on totals, with a bound of the objective (rows
        ``"united"`` of the history); other merges, deletes and births from all data are proposed no more, not even by
        later updates, and an open round of them ends undecided.  Earlier batches and batches of later updates are
        visited as ``revisit`` says there.
    laps
        Laps over all data that can be read after that, the new ones among them, so that clusters settle.  Two or more
        let topic models find as many topics as a corpus that grows calls for (:class:`bnp_dask.DocumentBirth`).
    batch_size
        Atoms per batch.
    labels
        Known labels of the new atoms, as for :func:`bnp_dask.train`, among the labels of a run that was begun with
        some; for data that are one piece.  None: no label is known of them.
    links
        Groups of the new atoms that share one cluster, as for :func:`bnp_dask.train`, for data that are one piece.
        They are apart from the groups of all other data, whatever their numbers.
    responses
        Responses of the new documents, as for :func:`bnp_dask.train`, if the run was begun with some; for data that are
        one piece.  None: none is known.
    client, memory
        As for :func:`bnp_dask.train`; the bits do not depend on them.
    versions
        Versions that are kept whole, for loading and for rollback; of older ones the record stays.
    half_life
        Age at which a batch weighs half: ``"30d"`` (``s``, ``min``, ``h``, ``d``, ``w``) of the data's time, or
        ``"100 batches"``, or ``"1e6 atoms"`` that came after it.  All batches fade together by the time that passes
        with this update, so totals and objective are exact for the weighted data; the history has a
        row ``"aged"`` for it.  Counts of clusters are weighted counts.  None: no time passes.
    keep
        Greatest age of a batch, in the same form; older ones are taken out of the totals, in the same version.  Earlier
        versions hold them until these versions are removed; :func:`bnp_dask.retire` takes data out at once.
    time
        Time of the data: the name of a column (Parquet, CSV, tables in memory), of which the newest row of each batch
        counts; or the time itself, a date, datetime or text such as ``"2026-11-01"``; in UTC unless they say otherwise.
        None: the date in the name of the file or of its folder.  Data without a time get the newest time that the run
        had when they came (before the first data with a time: the oldest time of these).  The newest time of all data
        is the run's clock, which never goes back: data that come late are older, and enter with the weight of their
        age.
    new_words
        Words that the run does not know, in counts (:class:`bnp_dask.Multinomial`).  ``"add"``: they are appended to
        the vocabulary; ``"drop"``: they are left out.  None: new words of texts and of ingested stores with a
        vocabulary are added, and other new columns are an error.  Columns with names are matched by name, in any order;
        of columns without names, ``"add"`` takes the ones behind the known ones as new.  See Notes.
    dormant
        Weighted atoms below which a cluster of a mixture leaves the model, with these atoms, and is laid away under its
        id: once time has passed and old batches have gone, before the new ones are visited.  A cluster that came with
        an update stays for a half-life, because before that it has not had half of its atoms.  A birth at a new batch
        that resembles it brings it back under that id.  Atoms that left come back, in a row ``"regained"`` of the
        history, when their batch is visited again.  The last 100 clusters that left are kept.  None: clusters stay,
        however faint.
    on_version
        Called with the result before it is published; ``False`` refuses it, and the run stays unchanged.  The result is
        read-only.
    on_bad
        Treatment of a piece of data that cannot be taken in, such as a file that is damaged or has other columns:
        ``"raise"`` its error, or ``"set aside"``: the other pieces are taken in, and the run keeps a note of this one,
        which :func:`bnp_dask.set_aside` lists and the log shows.  It is tried again once its file has changed, or if
        ``data`` names it by itself.  A file that is still being written waits for the next update
        (``result.unfinished``): one that changes while it is looked at, and for ten minutes since its last change
        Parquet without its footer, or a folder ``*.zarr`` without its description.

    Returns
    -------
    UpdateResult
        Posterior, version, new pieces, and changes.

    Raises
    ------
    DataError
        Data that cannot be read, that have other features or kinds than the run's, or that the likelihood cannot have
        produced, unless these are set aside; no data of the call were taken then.
    StoreError
        No run, one that another process is writing to, one whose first laps are not complete, one that keeps no
        statistics of batches, or data that the run has with another content (use :func:`bnp_dask.replace` for them).

    Notes
    -----
    New words are appended piece by piece in the order of their columns.  New words of raw texts are appended in
    alphabetical order, if at least as many texts of the piece have them as ``Text.min_df`` required when the run's
    texts were ingested (an ingested store has applied its own rule).  Older data hold none of them.  Their prior count
    is the smallest that any word has: so a run with an even prior, such as ``Multinomial(0.1)``, equals one that knew
    all words from its start, while ``common=`` is kept from the first data.  A row ``"widened"`` of the history has the
    resulting change of the objective.  Earlier versions keep their vocabulary.  ``fresh`` is scored with the new words,
    at their prior values.

    Hughes (2016), 3.5.3, "Memoized algorithm for streaming", and 4.2.3 for births at batches.
    """
    rules = rules_of(revisit, laps, memory, versions, half_life, keep, time, on_version, dormant)
    rules = replace(rules, seals=revisit == 0 and laps == 0 and keep is None)
    require_new_words(new_words)
    one_of("on_bad", on_bad, ON_BAD)

    def new_pieces(run: GrowingRun, executor: Executor) -> Found:
        require_posterior(run.base)
        pieces = data.pieces(run.log.pieces) if isinstance(data, Feed) else pieces_of(data)
        for what, beside in (("labels", labels), ("links", links), ("responses", responses)):
            if beside is not None:
                pieces = require_one(pieces, what)
        facts = {"batch_size": batch_size, "new_words": new_words, "in_groups": has_recordings(run), "labels": labels}
        facts |= {"responses": responses, "links": links}
        openings = ((p, partial(_opened, piece=p, **facts)) for p in pieces)
        aside = Aside.of_run(run.on_disk, data, on_bad)
        return look_for_new(run, openings, executor, new_words=new_words, time=time, aside=aside)

    return taken_in(store, rules, client, new_pieces)


def has_recordings(run: GrowingRun) -> bool:
    """Whether the first data were a folder or pattern of recordings: then each new file is a group too."""
    opened = run.on_disk.settings.get(OPENED) or {}
    return run.first.n_groups > 0 and are_recordings(opened.get("files") or ())


def require_one(pieces: Iterable[Piece], what: str) -> list[Piece]:
    """The only piece of data; SettingError for several, whose labels, links or responses would be mixed up."""
    found = list(pieces)
    if len(found) > 1:
        raise SettingError(f"{what}: the data are {len(found)} pieces; take them in one by one, each with its {what}")
    return found


def _opened(
    base: Posterior,
    piece: Piece,
    batch_size: int | None,
    new_words: NewWords | None,
    in_groups: bool,
    labels: Any,
    responses: Any,
    links: Any,
) -> OpenedPiece:
    if piece.item is not None:
        piece = replace(piece, data=piece.data())
    data, files = piece.data, None
    if in_groups and piece.place is not None and are_recordings([piece.place]):
        files = (piece.place,)
        data = Chosen(piece.place, files)
    with naming(piece):
        counts = open_counts(base, data, batch_size, new_words, labels)
        if links is not None:
            counts = replace(counts, source=linked_as(base, counts.source, links))
        if responses is not None:
            counts = replace(counts, source=responding_as(base, counts.source, responses))
        known = labels_as_opened(base, labels)
        return OpenedPiece(
            piece,
            counts,
            batch_size,
            files=files,
            labels=known,
            responses=place_beside(responses),
            links=place_beside(links),
        )


def rules_of(
    revisit: float,
    laps: int,
    memory: int | str,
    versions: int,
    half_life: Any = None,
    keep: Any = None,
    time: Any = None,
    on_version: Any = None,
    dormant: Any = None,
) -> Rules:
    """Settings of an update; SettingError if one is out of range."""
    if time is not None:
        moment_of(time)
    if on_version is not None and not callable(on_version):
        raise SettingError(f"on_version={shown(on_version)}: needs a function of the result of an update")
    number_from("revisit", revisit, 0.0)
    faint = None if dormant is None else positive_number("dormant", dormant, "number of atoms")
    whole_number("versions", versions, 1)
    whole_number("laps", laps, 0)
    spans = (span_from("half_life", half_life), span_from("keep", keep))
    return Rules(revisit, laps, parse_memory(memory), versions, *spans, time, on_version, faint)


def taken_in(
    store: str | os.PathLike[str],
    rules: Rules,
    client: Client | Executor | str | None,
    find: Callable[[GrowingRun, Executor], Found],
) -> UpdateResult:
    """Open a run, let ``find`` look at new data, and take them in."""
    with contextlib.closing(RunStore.open(path_text("store", store))) as opened:
        run = GrowingRun.open(opened)
        if rules.dormant is not None and not run.base.model.structure.policy.lays_away:
            kind = type(run.base.model.allocation).__name__
            raise SettingError(f"dormant={rules.dormant:g}: clusters of mixtures are laid away, not clusters of {kind}")
        run.publish()
        with one_blas_thread(), fixed_order(run.base.model.reproducible), open_executor(client, AGAIN) as executor:
            found = find(run, executor)
            items = [":".join(piece["item"]) for piece in run.log.pieces if piece.get("item")]
            found.aside.keep(opened, (*found.known, *items))
            result = take_in(run, found, rules, executor) if found.new else nothing_new(run, found)
            if result.new:
                found.aside.keep(opened, (*found.known, *items, *result.new))
            return result


def follow(
    store: str | os.PathLike[str],
    data: str | os.PathLike[str] | Feed,
    *,
    every: float = 60.0,
    stop: threading.Event | None = None,
    revisit: float = 1.0,
    laps: int = 0,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
    memory: int | str = MEMORY,
    versions: int = KEPT,
    half_life: str | datetime.timedelta | None = None,
    keep: str | datetime.timedelta | None = None,
    time: Time | None = None,
    new_words: NewWords | None = None,
    dormant: float | None = None,
    on_version: Callable[[UpdateResult], bool | None] | None = None,
    on_bad: OnBad = "raise",
) -> Iterator[UpdateResult]:
    """Look for new data again and again, and take them in.

    A file that is still being written needs a hidden name, or one that ends with ``.tmp``, ``.part`` or ``.partial``,
    until it is whole; or give ``on_bad="set aside"``, with which it waits.

    Parameters
    ----------
    store, revisit, laps, batch_size, client, memory, versions, half_life, keep, time, new_words, dormant
        As for :func:`bnp_dask.update`.
    on_version, on_bad
        As for :func:`bnp_dask.update`.
    data
        A folder, a pattern such as ``"inbox/*.parquet"``, or a feed.
    every
        Seconds between the end of one look and the start of the next.
    stop
        Ends the loop once it is set, after the current update.  None: it goes on for ever.

    Yields
    ------
    UpdateResult
        Result of every update that took data in, that was refused, or that set data aside.

    Raises
    ------
    DataError, StoreError
        As :func:`bnp_dask.update`; the run stays as the last update left it.
    """
    if not isinstance(data, (str, os.PathLike, Feed)):
        raise SettingError(f"data={shown(data)}: needs a folder or a pattern, where new files appear, or a Feed")
    positive_number("every", every, "number of seconds")
    stop = threading.Event() if stop is None else stop
    look = partial(
        update,
        store,
        data,
        revisit=revisit,
        laps=laps,
        batch_size=batch_size,
        client=client,
        memory=memory,
        versions=versions,
        half_life=half_life,
        keep=keep,
        time=time,
        new_words=new_words,
        dormant=dormant,
        on_version=on_version,
        on_bad=on_bad,
    )
    return _looks(look, every, stop)


def _looks(look: Callable[[], UpdateResult], every: float, stop: threading.Event) -> Iterator[UpdateResult]:
    while not stop.is_set():
        found = look()
        if found.new or found.refused or found.set_aside:
            yield found
        stop.wait(every)
