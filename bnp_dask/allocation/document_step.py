"""Groups of topic models: their tokens, the document step around its kernel, and the resulting sums.

A group (document) d has its own weights pi_d ~ Dirichlet(alpha pi_1, ..., alpha pi_K, alpha pi_{>K}), and each of
its tokens comes from a topic.  q(pi_d) = Dirichlet(theta_d), theta_dk = N_dk + alpha pi_k.  Summaries hold the terms
of the objective that depend on theta (thesis 5.4.3), so that it is exact for any theta:

    P_k = sum_d E[log pi_dk],   Q_k = sum_d log Gamma(theta_dk) + (N_dk - theta_dk) E[log pi_dk],
    Q_0 = - sum_d log Gamma(theta_d.)

(5.48) prints log Gamma with the opposite signs; correct is -c_Dir(theta_d) of (5.27).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.allocation.response import Response, document_pull, response_fields, response_sums
from bnp_dask.core import Batch, GroupStates, register
from bnp_dask.inputs import flag, hold, number_from, one_of, positive_number, whole_number, whole_or_none
from bnp_dask.kernels import Pull, matmul, table_of
from bnp_dask.kernels.topics import document_step as kernel
from bnp_dask.structure import LOWEST, GroupStep, Tokens

TILE_NUMBERS = 2**19
"""Numbers in an (n, K) tile of dense atoms (4 MB); a larger group is a tile of its own."""

MOST_SWEEPS = 10**6
"""Most updates of a document that a setting allows: they are one call of compiled code and cannot be interrupted."""

ROOM_NUMBERS = 2**22
"""Most scratch numbers that a thread keeps from one document step to the next (32 MB)."""

_own = threading.local()

START = {"cold": kernel.COLD, "warm": kernel.WARM, "best": kernel.COLD | kernel.WARM}


@register
@dataclass(frozen=True)
class DocumentStep:
    """Settings of the search for topics of the tokens of one document (thesis 5.3.3-5.3.5).

    Parameters
    ----------
    start
        ``"best"``: each document is tried from its counts at the last visit and from scratch, and the better result
        is kept, so no document's objective falls.  ``"warm"``: from its last counts only, once it has some; it uses
        fewer topics from visit to visit, and never returns to a topic.  ``"cold"``: from scratch each time; nothing is
        stored, and the objective may fall (thesis 5.4.3).
    sweeps
        Most updates of a document.
    tolerance
        Stop when no N_dk changes by this many tokens.
    restarts
        Most sparsity-promoting restarts (Alg. 5.2) per document; 0 for none.
    restart_sweeps, restart_above
        Updates in each restart, and least tokens of a topic for which one is tried.
    top
        Topics kept per token (L of Alg. 7.4, chosen again from update to update), or None for all.  Saves memory of
        summaries.  The document's objective is for responsibilities restricted to ``top`` topics per token.
    shrink
        Whether topics that a document does not use are left out of its later updates: same result, faster.
    states
        Type of the stored counts from which a document starts at its next visit: ``"float64"`` or ``"float32"``.

    Notes
    -----
    The objective is exact for the responsibilities of the last visit with any ``states``: no statistic uses stored
    counts.  But documents that start from counts of 24 bits end elsewhere than documents that start from all 53: single
    terms of the objective differed by relative 2e-9 and 1.7e-7 from two recorded traces, which ``"float64"`` matched to
    1e-14 and 4e-13.

    With ``top`` tokens choose their topics in the first five updates, then in each tenth and in the last, as the thesis
    advises (7.3.2).  KOS, 100 topics, six laps: objectives of -3,139,041 (all topics), -3,138,976 (eight), -3,138,666
    (four), -3,145,847 (two) and -3,203,384 (one).  Laps took no less time than with all topics, whose loops are
    vector code.

    A stored count takes 12 bytes, or 8 as float32, beside the statistics of the batch.  Summaries and states of KOS
    (3,430 documents, 30 topics, ten batches) took 4.64 and 4.62 MB; for a million documents of 20 words (20 topics, 50
    batches) they took 40.1 and 30.8 MB, beside 240 MB of counts.  Laps took the same time.
    """

    start: Literal["best", "warm", "cold"] = "best"
    sweeps: int = 100
    tolerance: float = 0.01
    restarts: int = 5
    restart_sweeps: int = 5
    restart_above: float = 0.1
    top: int | None = None
    shrink: bool = True
    states: Literal["float32", "float64"] = "float64"

    def __post_init__(self) -> None:
        one_of("start", self.start, tuple(START))
        one_of("states", self.states, ("float32", "float64"))
        for name, low in (("sweeps", 1), ("restarts", 0), ("restart_sweeps", 1)):
            hold(self, name, whole_number(name, getattr(self, name), low, MOST_SWEEPS))
        hold(self, "top", whole_or_none("top", self.top, "a whole number of topics per token"))
        hold(self, "restart_above", positive_number("restart_above", self.restart_above, "number of tokens"))
        what = "a number of tokens (negative: never stop early)"
        hold(self, "tolerance", number_from("tolerance", self.tolerance, -math.inf, what=what))
        hold(self, "shrink", flag("shrink", self.shrink))

    @property
    def keeps_states(self) -> bool:
        """Whether documents start from the result of their last visit."""
        return self.start != "cold"

    @property
    def kept_as(self) -> np.dtype[Any] | None:
        """Type of the stored counts of documents; None if none are stored."""
        return np.dtype(self.states) if self.keeps_states else None

    def rules(self, warm: bool) -> kernel.Rules:
        """Settings for the kernel; ``warm`` if there are states to start from."""
        start = START[self.start] if warm else kernel.COLD
        return kernel.Rules(
            int(self.sweeps), float(self.tolerance), bool(self.shrink), int(self.restarts), int(self.restart_sweeps),
            float(self.restart_above), self.top, start,
        )  # fmt: skip


def group_tiles(batch: Batch, n_clusters: int) -> Iterator[Batch]:
    """Documents of counts as one tile, because they need no (n, K) matrix; dense atoms cut between groups."""
    if batch.n_groups == 0:
        return
    if batch.is_sparse:
        yield batch
        return
    offsets = batch.group_offsets
    size = max(256, TILE_NUMBERS // max(n_clusters, batch.n_features))
    start = 0
    while start < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[start] + size, side="right")) - 1
        stop = min(max(stop, start + 1), len(offsets) - 1)
        yield batch.take_groups(np.arange(start, stop))
        start = stop


def document_step(
    step: DocumentStep,
    prior: np.ndarray,
    rest: float,
    tokens: Tokens,
    log_lik: np.ndarray,
    pairs: np.ndarray,
    sets: np.ndarray,
    states: GroupStates | None,
    response: Response | None = None,
    params: Any = None,
) -> GroupStep:
    """Assign the tokens of some groups to topics.

    Parameters
    ----------
    step
        Settings.
    prior, rest
        ``alpha pi_k (K,)`` and ``alpha pi_{>K}``.
    tokens
        The groups.
    log_lik
        Log likelihood of each row under each topic, ``(R, K)`` nats; overwritten.
    pairs
        Positions of tracked pairs, ``(M, 2)``.
    sets
        Whether each topic belongs to each of J sets of topics, ``(J, K)``.
    states
        Result of the last visit, by position of clusters (-1 for clusters that are gone); or None.
    response, params
        Model of responses and its parameters in force; None without.
    """
    theta = tokens.length + (prior.sum() + rest)
    warm = states is not None and step.keeps_states
    answers = response is not None and tokens.response is not None
    pull = document_pull(response, params, tokens, states if step.keeps_states else None, prior)
    found, kept, table, counts = _fit(
        step.rules(warm), prior, theta, tokens, log_lik, pairs, sets, states, step.kept_as, answers, pull
    )
    docs, log_theta, gamma_theta = _group_sums(tokens.times, theta)
    values = _topic_values(found.stats, prior, docs, log_theta)
    values["H"] = found.stats[3] - np.einsum("rk,rk->k", found.sums, table)
    values |= {"docs": np.asarray(docs), "Q_0": np.asarray(-gamma_theta)}
    if rest > 0.0:
        values |= _rest_values(docs, log_theta, rest)
    a, b = pairs[:, 0], pairs[:, 1]
    pair_values = _topic_values(found.pairs, prior[a] + prior[b], docs, log_theta)
    pair_values["H"] = values["H"][a] + values["H"][b] - found.pairs[3]
    if response is not None and counts is not None:
        values |= response_sums(response, params, tokens, counts, counts, len(prior))
    return GroupStep(found.sums, values, pair_values, found.mass, kept, counts)


def share_out(
    step: DocumentStep,
    given: float,
    beliefs: np.ndarray,
    theta: np.ndarray,
    tokens: Tokens,
    log_lik: np.ndarray,
    mass: np.ndarray,
    states: GroupStates | None = None,
    takes_all: bool = False,
    response: Response | None = None,
    params: Any = None,
    pull: Pull | None = None,
    whole: GroupStates | None = None,
) -> GroupStep:
    """Share out the mass of some clusters (donors) in each token among others (receivers).

    The receivers take over the donors' prior mass, so theta_d. and the rest for unused clusters stay unchanged.  The
    result can replace the donors' statistics of the groups, and the objective is exact.

    Parameters
    ----------
    given
        Prior mass of the donors, ``sum_k alpha pi_k``.
    beliefs
        Expected weights of the receivers, ``(J,)``, in proportion to which they get the prior mass.
    theta
        Sum of theta_d over all topics, ``(G,)``.
    tokens
        All tokens of all groups: groups without mass count for the receivers too.
    log_lik
        Log likelihood of each row under the receivers, ``(R, J)`` nats; overwritten.
    mass
        Mass of the donors in each token, ``(T,)``.
    states
        Present holdings of receivers that are donors too, by position among the receivers (-1 for other clusters):
        each group is tried from there and from scratch.
    takes_all
        Whether the donors are all clusters: each group is then tried from as many starts as in a local step.
    response, params, pull
        Model of responses, its parameters in force, and the pull on the receivers; None without.
    whole
        Counts of all topics in the groups, by position; None for data without responses.
    """
    part, _ = tokens.part(mass)
    prior = given * beliefs / beliefs.sum()
    top = None if step.top is None else 1  # keeps the limit on topics per token
    # a trial on all clusters competes with documents that were tried from several starts
    restarts = step.restarts if takes_all else 0
    rules = replace(step, start="best", restarts=restarts, top=top).rules(states is not None)
    none = np.zeros((0, 2), np.int64)
    sets = np.zeros((0, len(prior)), np.bool_)
    answers = response is not None and tokens.response is not None
    found, kept, table, counts = _fit(
        rules, prior, theta, part, log_lik, none, sets, states, step.kept_as, answers, pull
    )
    docs, log_theta, _ = _group_sums(tokens.times, theta)
    values = _topic_values(found.stats, prior, docs, log_theta)
    values["H"] = found.stats[3] - np.einsum("rk,rk->k", found.sums, table)
    if response is not None and counts is not None and whole is not None:
        own = response_sums(response, params, tokens, whole, counts, len(prior))
        values |= {name: own[name] for name, declared in response_fields(response).items() if declared.n_cluster_axes}
    return GroupStep(found.sums, values, {}, found.mass, kept, counts)


def _fit(
    rules: kernel.Rules,
    prior: np.ndarray,
    theta: np.ndarray,
    tokens: Tokens,
    log_lik: np.ndarray,
    pairs: np.ndarray,
    sets: np.ndarray,
    states: GroupStates | None,
    kept_as: np.dtype[Any] | None,
    answers: bool,
    pull: Pull | None,
) -> tuple[kernel.Found, GroupStates | None, np.ndarray, GroupStates | None]:
    """Call the kernel: its sums, the counts to keep, the logs of the likelihoods that it used, and all counts if there
    are ``answers``."""
    n_rows, k = log_lik.shape
    table = _room(n_rows, k)
    table_of(log_lik, LOWEST, table)
    groups = kernel.Groups(
        tokens.offsets, tokens.row, tokens.weight, tokens.log_share, tokens.times, theta, table, log_lik
    )
    memory = kernel.NO_MEMORY
    if states is not None and rules.start & kernel.WARM:
        memory = kernel.Memory(states.offsets, states.cluster, states.count.astype(np.float64))
    found = kernel.Found(
        np.zeros((n_rows, k)), np.zeros((4, k)), np.zeros((4, len(pairs))), np.zeros((len(tokens.row), len(sets)))
    )
    begin = prior / prior.sum()
    offsets, place, count = kernel.fit_groups(
        groups, rules, prior, begin, memory, pairs, sets, kept_as is not None or answers, found, pull
    )
    whole = GroupStates(offsets, place.astype(np.int64), count) if kept_as is not None or answers else None
    new = None if kept_as is None or whole is None else replace(whole, count=count.astype(kept_as))
    return found, new, log_lik, whole if answers else None


def _room(n_rows: int, k: int) -> np.ndarray:
    """Scratch ``(n_rows, k)``: the thread's last one if it is large enough, because allocating memory takes longer than
    filling it.  numpy allocates it, which requests huge pages: documents read rows all over it.
    """
    size = n_rows * k
    if size > ROOM_NUMBERS:
        return np.empty((n_rows, k))
    kept: np.ndarray | None = getattr(_own, "room", None)
    if kept is None or len(kept) < size:
        kept = _own.room = np.empty(size)
    return kept[:size].reshape(n_rows, k)


def _group_sums(times: np.ndarray, theta: np.ndarray) -> tuple[float, float, float]:
    """Number of groups, and sums of psi(theta_d.) and log Gamma(theta_d.)."""
    return float(times.sum()), float(matmul(times, psi(theta))), float(matmul(times, gammaln(theta)))


def rest_shift(times: np.ndarray, theta: np.ndarray, rest: float, more: float) -> dict[str, np.ndarray]:
    """Change of the statistics of unseen topics when their prior mass goes from ``rest`` to ``more``."""
    docs, log_theta, _ = _group_sums(times, theta)
    before, after = _rest_values(docs, log_theta, rest), _rest_values(docs, log_theta, more)
    return {name: np.asarray(after[name] - before[name]) for name in after}


def _rest_values(docs: float, log_theta: float, rest: float) -> dict[str, np.ndarray]:
    """P and Q of all unseen topics, which have ``theta = rest`` in each group."""
    log_rest = docs * psi(rest) - log_theta
    return {"P_rest": np.asarray(log_rest), "Q_rest": np.asarray(docs * gammaln(rest) - rest * log_rest)}


def _topic_values(stats: np.ndarray, prior: np.ndarray, docs: float, log_theta: float) -> dict[str, np.ndarray]:
    """P and Q of each topic: groups that use it from the kernel, all others from ``theta_dk = prior_k``."""
    others = docs - stats[0]
    log_pi = stats[1] + others * psi(prior) - log_theta
    return {"P": log_pi, "Q": stats[2] + others * gammaln(prior) - prior * log_pi}
