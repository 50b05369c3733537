"""Batches enter and leave a run.

New batches are appended, visited in their order, then some older ones, and committed as the next version.  Batches
have ages in batches, atoms or time of the data: these give their weights, and tell which are too old.  Batches that
leave are found by their place, and their statistics are taken out of all totals.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np

from bnp_dask._names import method
from bnp_dask.core import Location
from bnp_dask.core.frozen import frozen
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inference import State, Work
from bnp_dask.inference.bad_batches import take_data
from bnp_dask.inference.drive import in_flight
from bnp_dask.inference.state import SEALED, are_sealed
from bnp_dask.inference.variational.arrivals import REGAINED, abandon, visit_arrivals
from bnp_dask.inference.variational.growing import Before, fade, lay_away, seal, take_out, unite, widen
from bnp_dask.inference.variational.lineage import Lineage, inherited, told
from bnp_dask.inputs import hold, shown
from bnp_dask.model import Posterior
from bnp_dask.structure import count_of
from bnp_dask.training.callbacks import logger
from bnp_dask.training.growing.found import Found
from bnp_dask.training.growing.growing_run import GrowingRun, commit, extended, published
from bnp_dask.training.growing.grown import Absent, GrownSource
from bnp_dask.training.growing.incoming.aside import SetAside
from bnp_dask.training.growing.incoming.words import n_words, widens
from bnp_dask.training.growing.versions import Change, changes_between, clusters_of
from bnp_dask.training.results import History
from bnp_dask.training.run_settings import OPENED

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
    nothing = ((), found.known, 0, 0, run.turn.is_open, math.nan, (), History())
    return UpdateResult(run.base, run.version, *nothing, set_aside=found.set_aside, unfinished=found.unfinished)


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
