"""Births inside sequences: a stretch of consecutive steps becomes one or two new states (thesis 6.5.2).

Tasks look into some batches, at random windows of some 10 to 100 steps.  A window is split into two contiguous blocks
(one may be empty) at the place that fits the data best, and each block is a new state.  The most promising windows are
then refined on the part of the sequence around them, with all other states held fixed.  The result is tried on all
data beside the normal local step: wherever a sequence is in one of the states that held the window (donors), it may be
in a new state instead.  A new state thus finds its other occurrences in the lap in which it is proposed.  The exact
whole-data objective decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core import Batch, Exchange, Summary, unless_refused
from bnp_dask.data import batch_reader
from bnp_dask.execute import in_order
from bnp_dask.initialize import child_rng
from bnp_dask.inputs import as_a
from bnp_dask.kernels import exp, inner, log, matmul
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import BirthProposal, PlanContext
from bnp_dask.moves.policy import WINDOW, WINDOW_BATCHES, WindowPolicy
from bnp_dask.structure import Trial

KIND = "window"
"""Kind under which failures of such proposals are remembered; histories call them births."""


@dataclass(frozen=True, eq=False)
class Window:
    """Steps of one sequence that may become new states.

    Parameters
    ----------
    donors
        Ids of the states that hold these steps; the state that loses most comes first.
    basis
        Statistics of the donors, unchanged, and of the new states, whose ids are negative.
    gain
        Approximate gain of the objective, nats.
    """

    donors: tuple[int, ...]
    basis: Summary
    gain: float


def plan_windows(
    context: PlanContext, per_lap: int, length: tuple[int, int], tries: int, change: float, policy: WindowPolicy
) -> None:
    """Propose new states from windows, at most ``per_lap``, of ``length`` steps from the first number to the second.

    A state from which ``tries`` windows failed is left alone until its count has changed by the share ``change``.
    After ``tries`` laps in which nothing was found and no state came or went, only one lap in ``tries`` looks.
    """
    size = [float(context.value.n_clusters)]
    if context.memory.failed(KIND, (), size, 0.0) >= tries and context.lap % tries:
        return

    def hopeless(donor: int) -> bool:
        return context.memory.failed(KIND, (donor,), [context.count(donor)], change) >= tries

    open_to = {int(i) for i in context.free if not hopeless(int(i))}
    if not open_to:
        return
    found = [w for w in _look(context, length, policy) if w.donors[0] in open_to]
    before = len(context.proposals)
    for window in sorted(found, key=lambda w: -w.gain):
        if len(context.proposals) < before + per_lap and context.free.issuperset(window.donors):
            _propose(context, window)
    if len(context.proposals) == before:
        context.memory.remember_failure(KIND, (), size)


def _look(context: PlanContext, length: tuple[int, int], policy: WindowPolicy) -> list[Window]:
    """Windows from some batches, found by separate tasks."""
    n_batches = len(context.visited)
    order = context.visited[context.rng(WINDOW_BATCHES).permutation(n_batches)]
    batches = order[: max(policy.one_in, -(-n_batches // policy.one_in))].tolist()
    posterior = context.executor.share(
        f"windows-lap{context.lap}", replace(context.posterior, summary=context.value, words=None)
    )
    tasks = []
    for b in batches:
        key = (context.lap, WINDOW, b)
        args = (batch_reader(context.source, b), posterior, length, context.seed, key, policy)
        tasks.append((f"windows-lap{context.lap}-batch{b}", best_windows, args))
    return [w for found in in_order(context.executor, tasks, 2 * context.executor.n_workers) for w in found]


def best_windows(
    reader: Callable[[], Batch],
    posterior: Posterior,
    length: tuple[int, int],
    seed: int,
    key: tuple[int, ...],
    policy: WindowPolicy,
) -> list[Window]:
    """Task: windows of one batch that would gain most as states of their own, best first.

    ``posterior`` has its whole-data summary.
    """
    rng = child_rng(seed, *key)
    batch = reader()
    offsets = batch.group_offsets
    seen: list[tuple[float, _Place, Summary]] = []
    typical = float(np.sqrt(length[0] * length[1]))
    for _ in range(min(policy.drawn, int(np.ceil(batch.n_atoms / typical)))):
        # all steps are equally likely, so long sequences are looked at more often
        middle = int(rng.integers(batch.n_atoms))
        size = int(exp(rng.uniform(log(length[0]), log(length[1] + 1))))
        g = int(np.searchsorted(offsets, middle, side="right")) - 1
        first, last = int(offsets[g]), int(offsets[g + 1])
        size = min(size, last - first)
        start = min(max(first, middle - size // 2), last - size)
        place = _Place(
            batch, max(first, start - policy.around), min(last, start + size + policy.around), start, start + size
        )
        glanced = unless_refused(_glance, posterior, place, policy.cuts, otherwise=None)
        seen += [] if glanced is None else [glanced]
    best = sorted(seen, key=lambda found: -found[0])[: policy.grown]
    grown = [
        unless_refused(settle, posterior, place.piece, blocks, policy, otherwise=None) for _, place, blocks in best
    ]
    return sorted([w for w in grown if w is not None], key=lambda w: -w.gain)


@dataclass(frozen=True, eq=False)
class _Place:
    """Rows ``start`` to ``stop`` of a batch, a window, and the part ``first`` to ``last`` of its sequence."""

    batch: Batch
    first: int
    last: int
    start: int
    stop: int

    @property
    def piece(self) -> Batch:
        """Part of the sequence, as a sequence of its own."""
        return replace(self.batch.rows(self.first, self.last), groups=np.array([0, self.last - self.first]))


def _glance(posterior: Posterior, place: _Place, cuts: int) -> tuple[float, _Place, Summary]:
    """Approximate gain of the data term if a window leaves the states that hold it, its place, and its blocks."""
    model = posterior.model
    rows = replace(place.batch.rows(place.start, place.stop), groups=None)
    alone = replace(rows, groups=np.array([0, rows.n_atoms]))
    held = np.asarray(model.assign(posterior, alone).resp)
    log_lik = model.observation.expected_log_lik(posterior.observation, rows)
    blocks, value = best_cut(model, rows, cuts)
    return value - float(inner(held, log_lik)), place, blocks


def best_cut(model: Model, rows: Batch, most: int) -> tuple[Summary, float]:
    """Statistics of the two blocks of rows whose data term is largest, or of one; and that data term, nats.

    One block if the rows are better not cut.  At most ``most`` places are tried.
    """
    n = rows.n_atoms
    weights = np.ones(n) if rows.weights is None else rows.weights
    cuts = np.unique(np.linspace(0, n, most + 1).astype(np.int64))[1:]
    before = np.where(np.arange(n)[:, None] < cuts, weights[:, None], 0.0)
    # the last column is all rows; the rows before and after each cut are stored side by side
    resp = np.concatenate([before, weights[:, None] - before[:, :-1]], axis=1)
    summary = model.summarize(np.arange(resp.shape[1], dtype=np.int64), rows, resp)
    value = model.best_data_terms(summary)
    whole = len(cuts) - 1
    both = value[:whole] + value[whole + 1 :]
    if whole == 0 or both.max() <= value[whole]:
        return summary.take([whole]), float(value[whole])
    best = int(np.argmax(both))
    return summary.take([best, whole + 1 + best]), float(both[best])


def settle(posterior: Posterior, piece: Batch, blocks: Summary, policy: WindowPolicy) -> Window | None:
    """New states from blocks of a sequence, after some local steps on its part ``piece``.

    None if they vanish, if they take from too many states, or if they lack too much.
    """
    model, value = posterior.model, as_a(posterior.summary, Summary)
    new = [-1 - i for i in range(blocks.n_clusters)]
    old, before = _evidence(posterior, piece)
    more = _first(value.insert_empty(new), blocks, value.position(int(old.ids[np.argmax(old["N"])])))
    gain = -np.inf
    for _ in range(policy.rounds):
        extended = model.global_step(more)
        part, after = _evidence(extended, piece)
        kl = model.observation.kl(extended.observation)[-len(new) :].sum()
        last, gain = gain, after - before - float(kl)
        if part["N"][-len(new) :].min() < 1.0 or gain < last:
            break
        more = _with_rows(value, part, new)
    if not gain > -policy.hopeless or part["N"][-len(new) :].min() < 1.0:
        return None
    given = old["N"] - part["N"][: -len(new)]
    order = np.argsort(-given, kind="stable")[: policy.donors]
    size = float(part["N"][-len(new) :].sum())
    donors = old.ids[order[given[order] > policy.noticeable * size]]
    if given[order].sum() < policy.mostly * size or len(donors) == 0:
        return None
    names = [int(i) for i in value.ids if i in donors]
    return Window(tuple(donors.tolist()), more.take([*names, *new]), gain)


def _evidence(posterior: Posterior, piece: Batch) -> tuple[Summary, float]:
    """Summary of a piece under a posterior, and its log normaliser, nats."""
    model, own = posterior.model, posterior.allocation
    part = model.local_step(posterior, piece)
    fit = model.observation.score(posterior.observation, part).sum()
    moves = inner(part["M"], own.log_trans) + matmul(part["start"], own.log_start)
    return part, float(fit + moves + part["H"])


def _first(value: Summary, blocks: Summary, around: int) -> Summary:
    """Statistics with the blocks added, each entered once from and left once to the state at position ``around``."""
    count = blocks.n_clusters
    values = dict(value.values)
    for name, block in blocks.values.items():
        if value.fields[name].n_cluster_axes == 1:
            values[name] = np.concatenate([values[name][:-count], block])
    moves = values["M"].copy()
    fresh = np.arange(len(moves) - count, len(moves))
    moves[fresh, fresh] = np.maximum(values["N"][fresh] - 1.0, 0.0)
    moves[around, fresh[0]] += 1.0
    moves[fresh[-1], around] += 1.0
    if count > 1:
        moves[fresh[0], fresh[1]] += 1.0
    values["M"] = moves
    return replace(value, values=values)


def _with_rows(value: Summary, part: Summary, new: list[int]) -> Summary:
    """Whole-data statistics with the statistics of new states in one piece; all others unchanged."""
    more = value.insert_empty(new)
    k = value.n_clusters
    values = dict(more.values)
    for name, declared in value.fields.items():
        if declared.n_cluster_axes == 1:
            values[name] = np.concatenate([values[name][:k], part[name][k:]])
        elif declared.n_cluster_axes == 2:
            both = values[name].copy()
            both[k:], both[:, k:] = part[name][k:], part[name][:, k:]
            values[name] = both
    return replace(more, values=values)


def _propose(context: PlanContext, window: Window) -> None:
    """Try a window on all data."""
    n_donors = len(window.donors)
    new = context.memory.new_ids(window.basis.n_clusters - n_donors)
    donors = tuple(int(i) for i in window.basis.ids[:n_donors])
    name = f"birth-lap{context.lap}-window{new[0]}"
    basis = replace(window.basis, ids=np.array([*donors, *new], np.int64))
    edit = Exchange(name, donors)
    proposal = BirthProposal((window.donors[0],), (*donors, *new), edit, KIND)
    context.propose(proposal, Trial(name, donors, context.model.global_step(basis)))
