"""``update``: a run takes in more data, visits them, and puts a new version in force."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import open_for
from bnp_dask.data.base import Source
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.errors import DataError
from bnp_dask.execute.base import Executor
from bnp_dask.execute.blas import one_blas_thread
from bnp_dask.execute.dask import open_executor
from bnp_dask.inputs.settings import number_from, path_text, whole_number
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.schedules.arrivals import visit_arrivals
from bnp_dask.schedules.lineage import Lineage, inherited, told
from bnp_dask.store import RunStore
from bnp_dask.store.manifest import ROW
from bnp_dask.training.callbacks import logger
from bnp_dask.training.growing.changes import Change, changes_between
from bnp_dask.training.growing.growing_run import GrowingRun, clusters_of, commit, extended
from bnp_dask.training.growing.grown import Absent, GrownSource
from bnp_dask.training.growing.look import Looked, look_at
from bnp_dask.training.growing.pieces import Known, Piece, content_of, pieces_of
from bnp_dask.training.memory_plan import MEMORY, MemoryPlan, parse_memory
from bnp_dask.training.results import History

if TYPE_CHECKING:
    from distributed import Client

KEPT = 10
"""Versions of a run that are kept whole, by default."""

SHARE = 0.1
"""By how much the share of a cluster must change, relatively, for a result to name it."""

AGAIN = "Nothing was taken in: start a cluster and call update(...) again."


@dataclass(frozen=True, eq=False)
class UpdateResult:
    """An update of a run.

    Parameters
    ----------
    posterior
        The version in force now.
    version
        Its number; that of before where nothing was new.
    new, known
        Pieces of data (paths, URLs, ``"in memory"``) that were taken in, and those that the run had already.
    new_batches
        How many batches were new.
    revisited
        How many visits were made beside the first of each new batch.
    waiting
        Whether proposals of merges, deletes or births wait until the other batches were visited too.
    fresh
        Mean log predictive of the new atoms before they were folded, nats (of topic models: document completion, nats
        per held-out token); NaN where nothing was new.
    changes
        Clusters that came, went, grew or shrank.
    history
        Rows of this update.
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


def update(
    store: str | os.PathLike[str],
    data: Any,
    *,
    revisit: float = 1.0,
    laps: int = 0,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
    memory: int | str = MEMORY,
    keep: int = KEPT,
) -> UpdateResult:
    """Let a run take in more data: append batches, visit them, decide moves, publish a version.

    New batches are visited in their order with the posterior in force, and folded in windows of the run's schedule.
    Model, priors and moves stay those of the first call.  The update is one step: whoever is killed on the way leaves
    the run as it was, and the call repeated gives the bits of one that was not killed.

    Parameters
    ----------
    store
        Run directory that ``train(..., store=)`` with ``Memoized()`` left.
    data
        As for :func:`bnp_dask.train`, or raw texts for a posterior that knows its vocabulary.  A folder that is no
        Zarr store, or a pattern with ``*``, is taken file by file, in the order of names.  A piece is known by its
        place and content: given twice it is taken once.  Data in memory are known by content alone, and cannot be
        visited again.  Give weights and groups with :func:`bnp_dask.as_source`; tables have them in the columns of
        training.
    revisit
        Older batches to visit for each new one, those first that were visited longest ago; at most all of them.
        Merges, deletes and births from all data need a visit of every batch since they were proposed, be that in this
        update or in some, and are decided then.  0: none, and none of these is proposed.  Births at new batches are
        decided at once, but for topic models.
    laps
        Laps over all data that can be read after that, the new ones among them, so that clusters settle.
    batch_size
        Atoms per batch.
    client, memory
        As for :func:`bnp_dask.train`; the bits do not depend on them.
    keep
        Versions that are kept whole, to be loaded and to be rolled back to; of older ones the record stays.

    Returns
    -------
    UpdateResult
        Posterior, version, what was new, and what changed.

    Raises
    ------
    DataError
        Data that cannot be read, that have other features or kinds than the run's, or that the likelihood cannot have
        produced; nothing of the call was taken then.
    StoreError
        No run, one that another process is writing to, one whose first laps are not complete, one that keeps no
        statistics of batches, or data that the run has with another content.

    Notes
    -----
    Hughes (2016), 3.5.3, "Memoized algorithm for streaming", and 4.2.3 for births at batches.
    """
    number_from("revisit", revisit, 0.0)
    whole_number("keep", keep, 1)
    whole_number("laps", laps, 0)
    folder, room = path_text("store", store), parse_memory(memory)
    with contextlib.closing(RunStore.open(folder)) as opened:
        run = GrowingRun.open(opened)
        run.publish()
        with one_blas_thread(), fixed_order(run.base.model.reproducible), open_executor(client, AGAIN) as executor:
            fresh = _new_pieces(run, data, batch_size, executor)
            if not fresh.new:
                return _nothing_new(run, fresh.known)
            return _take_in(run, fresh, revisit, laps, batch_size, executor, room, keep)


@dataclass(frozen=True, eq=False)
class _Found:
    """Pieces that are new, their sources and what was seen of them; and names of those that are known."""

    new: list[tuple[Piece, Source, Looked]]
    known: tuple[str, ...]

    def log(self, run: GrowingRun, batch_size: int | None) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Rows of all new batches, and a mapping of each new piece."""
        rows, pieces, number = [np.zeros(0, ROW)], [], len(run.log.pieces)
        for piece, source, looked in self.new:
            number += 1
            own = looked.rows.copy()
            own["source"] = number
            rows.append(own)
            facts = {"place": piece.place, "name": source.name, "fingerprint": fingerprint_of(source)}
            content = content_of(looked.rows["checksum"])
            pieces.append({**facts, "content": content, "n_batches": len(own), "batch_size": batch_size})
        return np.concatenate(rows), pieces


def _new_pieces(run: GrowingRun, data: Any, batch_size: int | None, executor: Executor) -> _Found:
    """Look at all pieces that the run does not have; nothing is taken yet."""
    base, n_first = require_posterior(run.base), run.first.n_batches
    checksums = np.array(run.first.checksums[:n_first])
    known = Known.of(run.store.settings.get("opened"), checksums, run.log.pieces)
    had, new, contents = [], [], set()
    for piece in pieces_of(data):
        source = open_for(base, piece.data, batch_size, weights=True)
        if piece.place is not None and known.has_place(piece, fingerprint_of(source)):
            had.append(piece.name)
            continue
        MemoryPlan(executor.memory_limit).require_batches(source)
        looked = look_at(base, source, run.first, executor)
        content = content_of(looked.rows["checksum"])
        if known.has_content(piece, content) or (piece.place, content) in contents:
            had.append(piece.name)
            continue
        contents.add((piece.place, content))
        new.append((piece, source, looked))
    if new and not sum(int(looked.rows["atoms"].sum()) for *_, looked in new):
        raise DataError(f"{new[0][0].name}: the new data have no atoms; nothing was taken")
    return _Found(new, tuple(had))


def _nothing_new(run: GrowingRun, known: Sequence[str]) -> UpdateResult:
    for name in known:
        logger.info("known already: %s", name)
    waiting = run.turn.is_open
    return UpdateResult(run.base, run.version, (), tuple(known), 0, 0, waiting, math.nan, (), History())


def _take_in(
    run: GrowingRun,
    found: _Found,
    revisit: float,
    laps: int,
    batch_size: int | None,
    executor: Executor,
    room: int,
    keep: int,
) -> UpdateResult:
    started = time.perf_counter()
    base, state = run.base, run.state()
    rows, pieces = found.log(run, batch_size)
    scores = np.concatenate([looked.scores for *_, looked in found.new])
    n_old, n_new = len(state.visits), len(rows)
    run.log = run.log.appended(rows, pieces)
    run.turn = run.turn.extended(n_new)
    lineage = Lineage.of(state)
    extended(state, n_new)
    source = run.source([own for _, own, _ in found.new], reads_old=revisit > 0 or laps > 0)
    work = run.work(executor, source, room)
    may = source.present
    may[list(state.lost)] = True  # a batch without atoms stands in for what was retired
    if revisit > 0 or laps > 0:
        _tell_of_absent(source, may, n_old)
    n_again = min(math.ceil(revisit * n_new), int(may[:n_old].sum()))
    out: list[dict[str, Any]] = []
    for row in visit_arrivals(work, state, run.turn, n_new, n_again, may, run.schedule.window, laps, lineage):
        seconds = run.seconds + time.perf_counter() - started
        out.append({**row, **_fresh_of(row, scores, n_old), "version": run.newest + 1, "seconds": seconds})
    run.seconds += time.perf_counter() - started
    fresh = float(scores[:, 0].sum() / scores[:, 1].sum()) if scores[:, 1].sum() > 0 else math.nan
    out = _named(run, out, lineage.heirs(), state.posterior.ids.tolist())
    moves = [move for row in out for move in row["moves"] if move["accepted"]]
    record = {
        "pieces": [piece["place"] or piece["name"] for piece in pieces],
        "n_batches": n_old + n_new,
        "fresh": None if math.isnan(fresh) else fresh,
        "elbo": state.elbo,
        "moves": [{name: move[name] for name in ("kind", "targets", "others")} for move in moves],
    }
    before = clusters_of(base)
    posterior = commit(run, state, record, out, keep)
    names = tuple(piece.name for piece, *_ in found.new)
    for piece in found.known:
        logger.info("known already: %s", piece)
    logger.info("version %d: %d new batches, K=%d", run.version, n_new, posterior.n_clusters)
    return UpdateResult(
        posterior,
        run.version,
        names,
        found.known,
        n_new,
        sum(row["n_batches"] for row in out) - n_new,
        run.turn.is_open,
        fresh,
        changes_between(before, clusters_of(posterior), moves, SHARE),
        History(out),
    )


def _named(
    run: GrowingRun, rows: list[dict[str, Any]], heirs: Mapping[int, int], alive: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows of an update under the ids that readers know, after ``heirs`` took over those of clusters before."""
    names = inherited(run.names, heirs)
    out = told(rows, run.names, names, heirs)
    run.names = {i: names[i] for i in alive if names.get(i, i) != i}
    return out


def _tell_of_absent(source: GrownSource, may: np.ndarray, n_old: int) -> None:
    """Say in the log which older batches cannot be visited again, and what waits for them."""
    if may.all():
        return
    absent = next(part for part in source.parts if isinstance(part, Absent))
    logger.info(
        "%d of %d older batches cannot be read again, so merges, deletes and births from all data wait: %s: %s",
        int((~may).sum()),
        n_old,
        absent.name,
        absent.why,
    )


def _fresh_of(row: dict[str, Any], scores: np.ndarray, n_old: int) -> dict[str, float]:
    """Log predictive of a row's batches before they were folded, where they are new."""
    if row["action"] != "new":
        return {}
    last = row["batch"] - n_old + 1
    value, weight = scores[last - row["n_batches"] : last].sum(axis=0)
    return {"fresh": float(value / weight)} if weight > 0 else {}
