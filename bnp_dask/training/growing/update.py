"""``update``: a run takes in more data, visits them, and puts a new version in force; ``follow``: again and again.

Batches enter a run and leave it; runs in memory take in data by their statistics alone.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnp_dask._names import method
from bnp_dask.analysis import require_posterior
from bnp_dask.core import Chosen, Location, RunningTotal, Survey, frozen, survey_batch, thawed
from bnp_dask.data import Source, are_recordings, taking_lags
from bnp_dask.errors import SettingError, answering
from bnp_dask.execute import Executor, one_blas_thread, open_executor
from bnp_dask.inference import (
    REGAINED,
    SEALED,
    Before,
    Lineage,
    Memoized,
    Round,
    State,
    Work,
    abandon,
    are_sealed,
    fade,
    in_flight,
    inherited,
    lay_away,
    seal,
    state_to_arrays,
    state_to_json,
    take_data,
    take_out,
    told,
    unite,
    visit_arrivals,
    widen,
)
from bnp_dask.inputs import hold, number_from, one_of, path_text, positive_number, shown, whole_number
from bnp_dask.kernels import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.moves import Memory, Move
from bnp_dask.store import NOTHING_LISTED, Checkpoint, Extent, GrowthLog, MemoryStore, RunStore, StoredRows, no_receipts
from bnp_dask.structure import count_of
from bnp_dask.training.callbacks import logger
from bnp_dask.training.growing.growing_run import (
    Absent,
    Found,
    GrowingRun,
    GrownSource,
    OpenedPiece,
    all_new,
    commit,
    extended,
    labels_as_opened,
    linked_as,
    look_for_new,
    place_beside,
    published,
    responding_as,
)
from bnp_dask.training.growing.incoming import (
    ON_BAD,
    Aside,
    Feed,
    NewWords,
    OnBad,
    Piece,
    SetAside,
    Time,
    moment_of,
    n_words,
    naming,
    open_counts,
    pieces_of,
    require_new_words,
    widens,
)
from bnp_dask.training.growing.versions import Change, changes_between, clusters_of
from bnp_dask.training.memory_plan import MEMORY, parse_memory
from bnp_dask.training.results import History, TrainResult
from bnp_dask.training.run_settings import OPENED

if TYPE_CHECKING:
    from distributed import Client


# -- Batches enter and leave a run --------------------------------------------------------------------------------
# New batches are appended, visited in their order, then some older ones, and committed as the next version.  Batches
# have ages in batches, atoms or time of the data: these give their weights, and tell which are too old.  Batches that
# leave are found by their place, and their statistics are taken out of all totals.


KEPT = 10
"""Versions of a run that are kept whole, by default."""

SHARE = 0.1
"""Relative change of a cluster's share from which on a result names the cluster."""


@dataclass(frozen=True, eq=False)
class UpdateResult:
    """An update of a run; all that it holds is read-only.

    Parameters
    ----------
    posterior
        The version in force now.
    version
        Its number; the previous number if there were no new data.
    new, known
        Pieces of data (paths, URLs, ``"in memory"``) that were taken in, and pieces that the run had already.
    new_batches
        Number of new batches.
    revisited
        Number of visits beside the first visit of each new batch.
    waiting
        Whether proposals of merges, deletes or births wait until the other batches were visited too.
    fresh
        Mean log predictive of the new atoms before they were folded, nats (for topic models: document completion, nats
        per held-out token); NaN if there were no new data.  Of each new batch 1,024 atoms are scored, or 256 documents
        or sequences, or 1/32 of them if that is more: they are drawn by its content.  Smaller batches are scored whole.
    changes
        Clusters that came, went, grew or shrank.
    history
        Rows of this update.
    refused
        Pieces of a version that ``on_version`` refused: the run is unchanged, and does not contain them.
    sealed
        Number of new batches that are in the totals for good, because ``revisit=0`` keeps nothing of single
        batches: they cannot be visited again, retired or replaced.
    set_aside
        Pieces that this update could not take in and set aside, and why; :func:`bnp_dask.set_aside` lists earlier ones.
    unfinished
        Files that are still being written: they wait for the next update.
    """

    posterior: Posterior
    version: int
    new: tuple[str, ...]
    known: tuple[str, ...]
    new_batches: int
    revisited: int
    waiting: bool
    fresh: float
    changes: tuple[Change, ...]
    history: History
    refused: tuple[str, ...] = ()
    sealed: int = 0
    set_aside: tuple[SetAside, ...] = ()
    unfinished: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        hold(self, "posterior", frozen(self.posterior))

    def __repr__(self) -> str:
        batches = f"{self.new_batches} batch{'es' if self.new_batches != 1 else ''}"
        parts = [f"{len(self.new)} new in {batches}", f"{self.revisited} older visited"]
        parts += [f"{len(self.known)} known already"] if self.known else []
        parts += [f"{len(self.set_aside)} set aside"] if self.set_aside else []
        parts += [f"{len(self.refused)} refused"] if self.refused else []
        return f"UpdateResult: version {self.version}, {', '.join(parts)}\n  {self.posterior!r}"

    def _repr_html_(self) -> str:
        return str(method("update_html")(self))


@dataclass(frozen=True)
class Rules:
    """Rules for taking in data, as in :func:`bnp_dask.update`; ``room`` in bytes.

    ``seals``: nothing of single new batches is kept.
    """

    revisit: float
    laps: int
    room: int
    versions: int
    half_life: Span | None = None
    keep: Span | None = None
    time: Any = None
    on_version: Callable[[UpdateResult], bool | None] | None = None
    dormant: float | None = None
    seals: bool = False


def nothing_new(run: GrowingRun, found: Found) -> UpdateResult:
    """The result if the run has all given data that could be taken in."""
    _tell_of_known(found.known)
    return UpdateResult(
        posterior=run.base,
        version=run.version,
        new=(),
        known=found.known,
        new_batches=0,
        revisited=0,
        waiting=run.turn.is_open,
        fresh=math.nan,
        changes=(),
        history=History(),
        set_aside=found.set_aside,
        unfinished=found.unfinished,
    )


def take_in(run: GrowingRun, found: Found, rules: Rules, executor: Executor) -> UpdateResult:
    """Take in the new pieces, and take out the batches that give way to them; one version.

    Visits begin with the posterior in force, even if it contains data to be taken out: clusters keep their ids.
    """
    started = perf_counter()
    state, waited = run.state(), run.turn.is_open
    rows, pieces = found.log(run)
    n_old, n_new = len(state.visits), len(rows)
    run.log = run.log.appended(rows, pieces)
    run.turn = run.turn.extended(n_new)
    ages = Ages.of(run, found, rules, state)
    out: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        seconds = run.seconds + perf_counter() - started
        out.append({**row, **_fresh_of(row, found.scores, n_old), "version": run.newest + 1, "seconds": seconds})

    if ages.factor != 1.0:
        tell(fade(state, ages.factor))
    if widens(found.base.model) and n_words(found.base) > n_words(run.base):
        run.widened = found.base
        tell(widen(state, found.base.model, n_words(found.base)))
    extended(state, n_new, ages.entering)
    reads_old = rules.revisit > 0 or rules.laps > 0
    out_of_total = [*ages.too_old, *found.gives_way]
    reads = reads_old or take_data(run.store, state, out_of_total)
    source = run.source(found.sources, reads, found.aside.notes)
    may = source.present
    # summaries, not assignments, are kept of batches whose data may go before their statistics are taken out
    stays = may & run.has_place if reads_old and rules.keep is None else None
    work = replace(run.work(executor, source, rules.room), readable=stays)
    run.lays_away |= rules.dormant is not None
    lineage = _taken_out(run, state, found, ages, work, tell, rules.dormant)
    there = set(state.posterior.ids.tolist())
    may[list(state.lost)] = True  # a batch without atoms stands in for retired ones
    is_sealed = are_sealed(state.visits)
    may &= ~is_sealed
    if reads_old:
        _tell_of_absent(source, may, is_sealed, n_old)
    n_again = min(math.ceil(rules.revisit * n_new), int(may[:n_old].sum()))
    if rules.seals and run.turn.is_open:
        abandon(state, run.turn)
    before = Before.of(state) if rules.seals else None
    facts = (n_new, n_again, may, in_flight(run.schedule.window, n_new + n_again), rules.laps, lineage)
    for row in visit_arrivals(work, state, run.turn, *facts, leaves=before is None):
        tell(row)
    if before is not None:
        seal(state, before, np.arange(n_old, n_old + n_new))
        for row in unite(work, state, lineage):
            tell(row)
    if rules.dormant is not None:
        state.memory.young |= {i: 1.0 for i in state.posterior.ids.tolist() if i not in there}
    run.seconds += perf_counter() - started
    out = _named(run, out, lineage.successors(), [*state.posterior.ids.tolist(), *state.memory.dormant])
    return _committed(run, state, found, pieces, out, rules, waited)


@dataclass(frozen=True, eq=False)
class Ages:
    """Effect of time on the batches of a run: the factor by which all fade, weights of new ones, and ones too old.

    ``entering`` is None if new batches weigh one.
    """

    factor: float
    entering: np.ndarray | None
    too_old: list[int]

    @staticmethod
    def of(run: GrowingRun, found: Found, rules: Rules, state: State) -> Ages:
        """Ages of an update, whose batches are in the run's log; also stores their times in the run."""
        n_old, atoms = len(state.visits), run.survey().batch_atoms
        times = found.times
        if np.isnan(run.times).all():
            run.times = run.times_of_first(rules.time)
        run.times = with_times(run.times, np.where(np.isnan(times), found.as_before(run.times, times), times))
        factor, too_old = 1.0, []
        entering = None if state.weights is None else np.ones(found.n_new)
        if rules.half_life is not None:
            line = Line.of(rules.half_life, atoms, run.times, n_old)
            if n_old and line.now > line.before:
                factor = 2.0 ** (-(line.now - line.before) / rules.half_life.amount)
            entering = 2.0 ** (-line.age[n_old:] / rules.half_life.amount)
        if found.gives_way and state.weights is not None and entering is not None:
            entering = found.as_before(state.weights, entering)
        if rules.keep is not None:
            line = Line.of(rules.keep, atoms, run.times, n_old)
            is_old = (line.age[:n_old] > rules.keep.amount) & held(run, state)[:n_old]
            too_old = np.flatnonzero(is_old).tolist()
            require_kept(run, state, too_old, "keep")
        return Ages(factor, entering, too_old)


def _taken_out(
    run: GrowingRun,
    state: State,
    found: Found,
    ages: Ages,
    work: Work,
    tell: Callable[[dict[str, Any]], None],
    dormant: float | None,
) -> Lineage:
    """Take out batches too old or giving way, and faded clusters; return the lineage of clusters from there on."""
    before, gives_way = state.posterior, found.gives_way
    if too_old := sorted(set(ages.too_old) - set(gives_way)):
        tell(take_out(work, state, run.turn, too_old, keeps_round=True))
    if gives_way:
        tell(take_out(work, state, run.turn, gives_way))
    if dormant is not None and (row := lay_away(state, run.turn, dormant)) is not None:
        tell(row)
    lineage = Lineage.of(state, len(state.visits) - found.n_new)
    if gives_way:
        state.posterior = before
    return lineage


def _committed(
    run: GrowingRun,
    state: State,
    found: Found,
    pieces: Sequence[Mapping[str, Any]],
    out: list[dict[str, Any]],
    rules: Rules,
    waited: bool,
) -> UpdateResult:
    """Commit the outcome of an update, unless it is refused."""
    weight = found.scores[:, 1].sum()
    fresh = float(found.scores[:, 0].sum() / weight) if weight > 0 else math.nan
    moves = [move for row in out for move in row["moves"] if move["accepted"]]
    posterior, n_new = published(run, state), found.n_new
    visits = sum(row["n_batches"] for row in out if row["action"] in VISITS)
    events = changes_between(clusters_of(run.base), clusters_of(posterior), moves, SHARE)
    facts = (found.names, found.known, n_new, visits - n_new, run.turn.is_open, fresh, events, History(out))
    result = UpdateResult(
        posterior,
        run.newest + 1,
        *facts,
        sealed=n_new if rules.seals else 0,
        set_aside=found.set_aside,
        unfinished=found.unfinished,
    )
    if rules.on_version is not None and rules.on_version(result) is False:
        logger.info("version %d was refused: the run is as it was", result.version)
        nothing = ((), found.known, 0, 0, waited, fresh, (), History())
        return UpdateResult(
            run.base,
            run.version,
            *nothing,
            refused=found.names,
            set_aside=found.set_aside,
            unfinished=found.unfinished,
        )
    record = {
        "pieces": [piece["place"] or piece["name"] for piece in pieces],
        "n_batches": len(state.visits),
        "fresh": None if math.isnan(fresh) else fresh,
        "elbo": state.elbo,
        "moves": [{name: move[name] for name in ("kind", "targets", "others")} for move in moves],
    }
    commit(run, state, record, out, rules.versions)
    _tell_of_known(found.known)
    logger.info("version %d: %d new batches, %s", run.version, n_new, count_of(posterior))
    if result.sealed:
        logger.info("revisit=0 keeps nothing of these batches by themselves: they cannot be retired or replaced")
    return result


VISITS = ("new", "folded", "recomputed", "kept", REGAINED)
"""Actions of rows of the history that visited batches."""


def _named(
    run: GrowingRun, rows: list[dict[str, Any]], successors: Mapping[int, int], alive: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows of an update under the ids that readers know, after ``successors`` took over ids of earlier clusters."""
    names = inherited(run.names, successors)
    out = told(rows, run.names, names, successors)
    run.names = {i: names[i] for i in alive if names.get(i, i) != i}
    return out


def _tell_of_known(known: Sequence[str]) -> None:
    for name in known:
        logger.info("known already: %s", name)


def _tell_of_absent(source: GrownSource, may: np.ndarray, is_sealed: np.ndarray, n_old: int) -> None:
    """Log which older batches cannot be visited again, and which proposals wait for them."""
    if may.all():
        return
    number = int(np.flatnonzero(~may)[0])
    absent = source.parts[source.part_of(number)]
    why = absent.why if isinstance(absent, Absent) else ""
    logger.info(
        "%d of %d older batches cannot be visited again, so merges, deletes and births from all data wait: %s: %s",
        *(int((~may).sum()), n_old, absent.name, "taken in with revisit=0" if is_sealed[number] else why),
    )


def _fresh_of(row: dict[str, Any], scores: np.ndarray, n_old: int) -> dict[str, float]:
    """Log predictive of a row's batches before they were folded, if they are new."""
    if row["action"] != "new":
        return {}
    last = row["batch"] - n_old + 1
    value, weight = scores[last - row["n_batches"] : last].sum(axis=0)
    return {"fresh": float(value / weight)} if weight > 0 else {}


# -- batches leave -------------------------------------------------------------------------------------------------
SHOWN = 5
"""Most names of pieces of data in an error."""


def held(run: GrowingRun, state: State) -> np.ndarray:
    """Which batches have atoms in the totals, ``(B,)`` bool."""
    out = np.array(run.survey().batch_atoms) > 0
    out[list(state.lost)] = False
    return out


def require_kept(run: GrowingRun, state: State, batches: Iterable[int], name: str) -> None:
    """SettingError if nothing of some of these single batches is kept; ``name`` is the caller in the message."""
    found = [batch for batch in batches if state.visits[batch] == SEALED]
    if not found:
        return
    starts = np.cumsum([run.first.n_batches, *(piece["n_batches"] for piece in run.log.pieces)])
    numbers = np.unique(np.searchsorted(starts, found, side="right") - 1)
    pieces = [run.log.pieces[number]["name"] for number in numbers.tolist()]
    more = f" and {len(pieces) - SHOWN} more" if len(pieces) > SHOWN else ""
    raise SettingError(
        f"{name}: {len(found)} batches, {found[0]} to {found[-1]}, of {', '.join(pieces[:SHOWN])}{more} were taken in "
        "with revisit=0, which keeps nothing of a batch by itself: they stay in the totals. rollback() goes back to a "
        "version before them, as long as that is kept"
    )


def batches_of(run: GrowingRun, source: str) -> list[int]:
    """Batches of the data from a place; SettingError if there are none."""
    place = Location.of(source, None, "sources").place
    n_first, opened = run.first.n_batches, run.on_disk.settings.get(OPENED)
    starts = np.cumsum([n_first, *(piece["n_batches"] for piece in run.log.pieces)])
    found = list(range(n_first)) if opened is not None and _is_in(opened["place"], place) else []
    for piece, start in zip(run.log.pieces, starts, strict=False):
        if piece["place"] is not None and _is_in(piece["place"], place):
            found += range(start, start + piece["n_batches"])
    if not found:
        places = [opened["place"]] if opened is not None else []
        places += [piece["place"] for piece in run.log.pieces if piece["place"] is not None]
        known = ", ".join(list(dict.fromkeys(places))[:5]) or "none"
        raise SettingError(f"sources: {run.on_disk.path} has no data from {place}; it has {known}")
    return found


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")


# -- ages of batches -----------------------------------------------------------------------------------------------
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""Seconds of units of time."""

_SPAN = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*(batches|batch|atoms|atom|s|min|h|d|w)\s*")


@dataclass(frozen=True)
class Span:
    """A length of a stream, in batches, atoms or seconds."""

    amount: float
    unit: Literal["batches", "atoms", "seconds"]


def span_from(name: str, value: Any) -> Span | None:
    """A span such as ``"30d"``, ``"100 batches"``, ``"1e6 atoms"`` or a timedelta; None stays None.

    SettingError for anything else.
    """
    if value is None:
        return None
    if isinstance(value, datetime.timedelta) and value.total_seconds() > 0:
        return Span(value.total_seconds(), "seconds")
    found = _SPAN.fullmatch(value) if isinstance(value, str) else None
    amount = 0.0 if found is None else float(found[1])
    if found is None or not 0 < amount < math.inf:
        raise SettingError(
            f'{name}={shown(value)}: needs a length such as "30d" (s, min, h, d or w), "100 batches" or "1e6 atoms"'
        )
    if found[2].startswith("batch"):
        return Span(amount, "batches")
    return Span(amount, "atoms") if found[2].startswith("atom") else Span(amount * UNITS[found[2]], "seconds")


@dataclass(frozen=True, eq=False)
class Line:
    """Positions of batches on the line of a span's unit, and the end of the line so far.

    Parameters
    ----------
    position
        Of each batch, ``(B,)``.
    before, now
        The end of the line before the last batches came, and after.
    """

    position: np.ndarray
    before: float
    now: float

    @property
    def age(self) -> np.ndarray:
        """Age of each batch, ``(B,)``."""
        return self.now - self.position

    @staticmethod
    def of(span: Span, atoms: Sequence[int], times: np.ndarray, n_old: int) -> Line:
        """Line of all batches of a run, of which ``n_old`` existed before; SettingError if none has a time."""
        if span.unit == "seconds":
            if np.isnan(times).any():
                raise SettingError(
                    "no data have a time: name files by their date, or give time=, a column or a time such as "
                    '"2026-11-01"; or give a length in batches or atoms, such as "100 batches"'
                )
            return Line(times, float(times[:n_old].max(initial=-math.inf)), float(times.max()))
        counts = np.ones(len(atoms)) if span.unit == "batches" else np.array(atoms, np.float64)
        position = np.cumsum(counts)
        return Line(position, float(position[n_old - 1]) if n_old else 0.0, float(position[-1]))


def with_times(known: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Times of all batches; ``new`` belong to the batches that came last.

    A batch without a time gets the newest time that the run had when it came.  If the run had none, it gets the oldest
    time of the first batches that have one.
    """
    if np.isfinite(known).any():
        return np.concatenate([known, np.where(np.isnan(new), known.max(), new)])
    out = np.concatenate([known, new])
    return out if np.isnan(out).all() else np.where(np.isnan(out), np.nanmin(out), out)


# -- ``update``: a run takes in more data, visits them, and puts a new version in force; ``follow``: again and again


AGAIN = "Nothing was taken in: start a cluster and call update(...) again."


@answering
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
    SettingError
        A setting out of range, or labels, links or responses for a run that was begun without.
    NumericalError, ExecutionError
        As for :func:`bnp_dask.train`; the run is unchanged.

    Notes
    -----
    New words are appended piece by piece in the order of their columns.  New words of raw texts are appended in
    alphabetical order, if at least as many texts of the piece have them as ``Text.min_df`` required when the run's
    texts were ingested (an ingested store has applied its own rule).  Older data hold none of them.  Their prior count
    is the smallest that any word has: so a run with an even prior, such as ``Multinomial(0.1)``, equals one that knew
    all words from its start, while ``common=`` is kept from the first data.  A row ``"widened"`` of the history has the
    resulting change of the objective.  Earlier versions keep their vocabulary.  ``fresh`` is scored with the new words,
    at their prior values.

    References
    ----------
    Thesis 3.5.3, "Memoized algorithm for streaming", and 4.2.3 for births at batches.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.repeat([[0.0], [9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 1))
    >>> first = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, store="runs/growing")
    >>> done = bnp.update("runs/growing", x + 30.0)
    >>> done.version, done.posterior.n_clusters, bnp.load("runs/growing@0").n_clusters
    (1, 4, 2)
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
    return Rules(
        revisit=revisit,
        laps=laps,
        room=parse_memory(memory),
        versions=versions,
        half_life=span_from("half_life", half_life),
        keep=span_from("keep", keep),
        time=time,
        on_version=on_version,
        dormant=faint,
    )


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


@answering
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

    The result is an iterator over updates: ``for done in bnp.follow("runs/news", "inbox/"): print(done.version)``.

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
    DataError, StoreError, SettingError, NumericalError, ExecutionError
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


# -- Runs in memory that take in data: the statistics of all data, and nothing of single batches ------------------


NO_ROWS = StoredRows(Path(), Extent())
"""Rows of a history that are not read again."""


def begun_in_memory(begin: Callable[[str], TrainResult]) -> tuple[TrainResult, GrowingRun]:
    """Train with a function that takes a run directory; return the result and the run, in memory, at that state."""
    with tempfile.TemporaryDirectory(prefix="bnp-dask-", ignore_cleanup_errors=True) as folder:
        result = begin(folder)
        with contextlib.closing(RunStore.open(folder)) as opened:
            run = GrowingRun.open(opened)
    log = GrowthLog.empty(None)
    return result, replace(run, store=MemoryStore(), log=log, checkpoint=replace(run.checkpoint, rows=NO_ROWS))


def run_of(
    posterior: Posterior, last: Mapping[str, Any], like: Source, schedule: Any, seed: int, moves: Sequence[Move]
) -> GrowingRun:
    """A run in memory that goes on from a posterior; ``last`` is the last row of its history.

    The data behind it are no batches of this run: its statistics stay as they are, to the precision of the posterior.
    ``like`` are data of the same kind as the data to come.
    """
    posterior = thawed(posterior)
    assert posterior.summary is not None
    summary = posterior.summary.without_pairs()
    total = RunningTotal(summary)
    value = total.value()
    known = replace(posterior, summary=value)
    state = State(
        known,
        total,
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        no_receipts(0),
        Memory(next_id=int(summary.ids.max(initial=-1)) + 1),
        lap=int(last["lap"]),
        step=int(last["step"]),
        terms=posterior.model.elbo(known, value),
    )
    rows = taking_lags(like, posterior.model.lags).reader(0)()
    first = _nothing_of(survey_batch(rows, posterior.model.marginalises))
    source = Absent("data", 0, first.n_features, first.is_sparse, "it was given as data in memory")
    numbers, arrays = state_to_json(state), state_to_arrays(state)
    checkpoint = Checkpoint(numbers, arrays, NO_ROWS, 1, NOTHING_LISTED)
    turn, log = Round.begin(0, state.step), GrowthLog.empty(None)
    usual = Memoized(window=schedule.window)
    return GrowingRun(
        *(MemoryStore(), checkpoint, posterior, first, source, usual, log, turn, 0, 0, {}),
        *(float(last["seconds"]), seed, tuple(moves), np.zeros(0)),
        besides=posterior.model.weight_in(value, first.is_sparse),
    )


def _nothing_of(survey: Survey) -> Survey:
    """A survey of no batch, with the kind and the features of another."""
    sizes: dict[str, Any] = {"n_atoms": 0, "total_weight": 0.0, "nbytes": 0}
    batches: dict[str, Any] = {"batch_atoms": (), "batch_bytes": (), "checksums": (), "batch_weights": ()}
    return replace(survey, **sizes, **batches)


def grown_in_memory(
    run: GrowingRun, source: Source, client: Client | Executor | str | None
) -> tuple[UpdateResult, GrowingRun]:
    """Let a run in memory take in data; return the run after that.  The previous one is unchanged."""
    run = replace(run)
    rules = rules_of(0.0, 0, MEMORY, 1)
    with one_blas_thread(), fixed_order(run.base.model.reproducible), open_executor(client, AGAIN) as executor:
        return take_in(run, all_new(run, source, executor), rules, executor), run


def grown_on_disk(store: str, source: Source, client: Client | Executor | str | None) -> UpdateResult:
    """Let a run directory take in data once more, even if it has the same already."""
    return taken_in(store, rules_of(1.0, 0, MEMORY, KEPT), client, lambda run, executor: all_new(run, source, executor))
