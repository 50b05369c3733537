"""Labels for runs of consecutive steps: which runs of a state are alike (for births of hidden Markov models).

Steps of one run stay together, so a state is split between runs.  Runs need to differ far less than single steps
would: the cost of telling two runs apart does not grow with their length.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.initialize.base import hard_resp
from bnp_dask.kernels.mixture.resp import scale_rows
from bnp_dask.model import Model
from bnp_dask.moves.pairs import absorbed, all_pairs, data_gains
from bnp_dask.moves.policy import SmallRunPolicy


def run_labels(model: Model, runs: Batch, rng: np.random.Generator, policy: SmallRunPolicy) -> tuple[np.ndarray, int]:
    """Cluster of each row ``(n,)``, and the number of clusters: runs are cut into pieces and similar pieces united.

    ``model`` is a model of single atoms (see :func:`bnp_dask.structure.base.Structure.untied`).
    """
    pieces = _pieces(runs.group_offsets, policy)
    piece_of_row = np.repeat(np.arange(len(pieces) - 1), np.diff(pieces))
    chosen = np.sort(rng.choice(len(pieces) - 1, min(policy.pieces, len(pieces) - 1), replace=False))
    place = np.full(len(pieces) - 1, -1)
    place[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(place[piece_of_row] >= 0)
    few = runs.take(rows)
    resp = scale_rows(hard_resp(place[piece_of_row[rows]], len(chosen)), few.weights)
    summary = _united(model, model.summarize(np.arange(len(chosen), dtype=np.int64), few, resp))
    return _nearest(model, summary, runs, piece_of_row), summary.n_clusters


def _pieces(offsets: np.ndarray, policy: SmallRunPolicy) -> np.ndarray:
    """Cuts of runs into about ``policy.pieces`` pieces, or one piece per run."""
    lengths = np.diff(offsets)
    size = max(policy.piece_steps, int(np.ceil(lengths.sum() / policy.pieces)))
    cuts = [np.arange(a, b, -(-(b - a) // max(1, round((b - a) / size)))) for a, b in
            zip(offsets[:-1], offsets[1:], strict=True) if b > a]  # fmt: skip
    return np.append(np.concatenate([np.zeros(0, np.int64), *cuts]), offsets[-1]).astype(np.int64)


def _united(model: Model, summary: Summary) -> Summary:
    """Unite the pair with the largest gain while any gains; labels of pieces follow a Chinese restaurant process."""
    summary = summary.without_pairs()
    pairs = all_pairs(summary.ids)
    gains = dict(zip(map(tuple, pairs.tolist()), data_gains(model, summary, pairs), strict=True))
    count = dict.fromkeys(summary.ids.tolist(), 1)
    while gains:
        # two tables of n and m guests instead of one of n + m: the seating costs the log of a ratio of factorials
        total = {p: g + float(gammaln(count[p[0]] + count[p[1]]) - gammaln(count[p[0]]) - gammaln(count[p[1]]))
                 for p, g in gains.items()}  # fmt: skip
        (a, b), best = max(total.items(), key=lambda item: item[1])
        if best <= 0.0:
            break
        summary = absorbed(summary, summary.position(a), summary.position(b))
        count[a] += count.pop(b)
        gains = {p: g for p, g in gains.items() if a not in p and b not in p}
        others = np.array([[a, i] for i in summary.ids.tolist() if i != a]).reshape(-1, 2)
        new = data_gains(model, summary, others)
        gains.update({(a, int(i)): float(g) for (_, i), g in zip(others.tolist(), new, strict=True)})
    return summary


def _nearest(model: Model, summary: Summary, runs: Batch, piece_of_row: np.ndarray) -> np.ndarray:
    """Cluster under which the piece of each row is most likely, ``(n,)``."""
    params = model.observation_step(summary)
    log_lik = model.observation.expected_log_lik(params, runs.take(np.arange(runs.n_atoms)))
    by_piece = np.zeros((int(piece_of_row.max(initial=-1)) + 1, summary.n_clusters))
    np.add.at(by_piece, piece_of_row, log_lik)
    return by_piece.argmax(axis=1)[piece_of_row]
