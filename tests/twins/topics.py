"""Topic models: responsibilities of a batch are documents with all their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, psi, xlogy

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.kernels.mixture import TINY
from bnp_dask.model import Model, Posterior
from bnp_dask.structure.base import Trial
from tests.topics import naive
from tests.topics.parts import prior_of, tokens_of

Part = list[tuple[np.ndarray, np.ndarray]]
"""What receivers get of each document: shares of its tokens ``(n, J)``, and theta ``(J,)``."""


@dataclass(frozen=True)
class Documents:
    """Documents of a batch, how often each counts, and the ids of the clusters."""

    names: list[int]
    docs: list[naive.Document]
    times: list[float]

    def with_columns(self, names: list[int], columns: list[Part | None], places: list[int]) -> Documents:
        """Columns by name from these documents (None) or from a part of each, at some places there."""
        docs = []
        for d, doc in enumerate(self.docs):
            resp = [(doc.resp if own is None else own[d][0])[:, j] for own, j in zip(columns, places, strict=True)]
            theta = [(doc.theta if own is None else own[d][1])[j] for own, j in zip(columns, places, strict=True)]
            docs.append(replace(doc, resp=np.stack(resp, axis=1), theta=np.array(theta)))
        return Documents(names, docs, self.times)


@dataclass
class TopicTwin:
    """See :class:`tests.twins.follow.Twin`; the model must take a fixed number of updates, and no restarts."""

    model: Model
    batches: list[Batch]

    def __post_init__(self) -> None:
        self.step = self.model.allocation.step
        assert self.step.tolerance < 0 and self.step.restarts == 0 and self.step.top is None

    def assign(self, b: int, posterior: Posterior, before: Documents | None) -> Documents:
        prior, rest = prior_of(posterior)
        tokens, docs = tokens_of(posterior, self.batches[b]), []
        for d, (log_lik, weight, _) in enumerate(tokens):
            start = np.zeros(len(prior))
            if before is not None and self.step.start != "cold":
                held = dict(zip(before.names, before.docs[d].count.astype(self.step.states), strict=True))
                start = np.array([float(held.get(int(i), 0.0)) for i in posterior.ids])
            resp, count = self._climbed(log_lik, weight, prior, start, self.step.start == "best")
            docs.append(naive.Document(log_lik, weight, resp, count + prior, rest))
        return Documents(posterior.ids.tolist(), docs, [times for *_, times in tokens])

    def _climbed(self, log_lik, weight, prior, start, both):
        """Responsibilities and counts from some counts, from scratch where there are none, or the better of both.

        Topics that a document does not use are left out of a start from counts.
        """
        if len(weight) == 0:
            return np.zeros((0, len(prior))), np.zeros(len(prior))
        known = start > 0
        found = []
        if known.any():
            part, count = naive.climb(log_lik[:, known], weight, prior[known], start[known], self.step.sweeps)
            resp, counts = np.zeros((len(weight), len(prior))), np.zeros(len(prior))
            resp[:, known], counts[known] = part, count
            found.append((resp, counts))
        if both or not found:
            cold = weight @ naive.responsibilities(log_lik + np.log(prior))
            found.append(naive.climb(log_lik, weight, prior, cold, self.step.sweeps))
        values = [naive.own_objective(log_lik, weight, prior, *one) for one in found]
        resp = found[int(np.argmax(values))][0]
        resp = np.where(resp < TINY, 0.0, resp)  # a topic that is left like this is left for good
        return resp, weight @ resp

    def tried(self, b: int, q: Documents, posterior: Posterior, trial: Trial) -> Part:
        prior, rest = prior_of(posterior)
        donors = [q.names.index(i) for i in trial.donors]
        freed = [q.names.index(i) for i in trial.freed] if rest > 0.0 else []
        beliefs = self.model.allocation.weights(trial.beliefs.allocation)
        mine = (prior[donors].sum() - prior[freed].sum()) * beliefs / beliefs.sum()
        out = []
        for doc, (log_lik, weight, _) in zip(q.docs, tokens_of(trial.beliefs, self.batches[b]), strict=True):
            share = doc.resp[:, donors].sum(axis=1)
            held = np.flatnonzero(weight * share)
            resp, start = np.zeros((len(weight), len(mine))), np.zeros(len(mine))
            if self.step.start != "cold":
                now = {i: doc.count[q.names.index(i)] for i in trial.donors}
                start = np.array([now.get(int(i), 0.0) for i in trial.beliefs.ids]).astype(self.step.states)
            part, count = self._climbed(log_lik[held], (weight * share)[held], mine, start, True)
            resp[held] = part * share[held, None]
            out.append((resp, count + mine))
        return Receivers(trial.beliefs.ids.tolist(), out, float(prior[freed].sum()))

    def exchanged(self, q: Documents, donors: Sequence[int], part: Receivers) -> Documents:
        stay = [i for i in q.names if i not in donors or i in part.names]
        names = [*stay, *[i for i in part.names if i not in q.names]]
        columns = [part.shares if i in part.names else None for i in names]
        places = [part.names.index(i) if i in part.names else q.names.index(i) for i in names]
        found = q.with_columns(names, columns, places)
        return replace(found, docs=[replace(doc, rest=doc.rest + part.freed) for doc in found.docs])

    def merged(self, q: Documents, keep: int, drop: int) -> Documents:
        a, b = q.names.index(keep), q.names.index(drop)
        docs = []
        for doc in q.docs:
            resp, theta = doc.resp.copy(), doc.theta.copy()
            resp[:, a] += resp[:, b]
            theta[a] += theta[b]
            docs.append(replace(doc, resp=np.delete(resp, b, axis=1), theta=np.delete(theta, b)))
        return Documents([i for i in q.names if i != drop], docs, q.times)

    def grown(self, q: Documents, ids: Sequence[int]) -> Documents:
        raise AssertionError("topics are not born within a lap")

    def taken(self, q: Documents, ids: Sequence[int]) -> Documents:
        assert set(ids) == set(q.names)
        return q.with_columns(list(ids), [None] * len(ids), [q.names.index(i) for i in ids])

    def renamed(self, q: Documents, names: Mapping[int, int]) -> Documents:
        raise AssertionError("topics are not born within a lap")

    def ids(self, q: Documents) -> list[int]:
        return q.names

    def objective(self, qs: Mapping[int, Documents]) -> float:
        docs = [doc for q in qs.values() for doc in q.docs]
        times = [t for q in qs.values() for t in q.times]
        after = self.model.global_step(self.summary(qs))
        prior, rest = prior_of(after)
        value = naive.entropy(docs, times) + naive.document_term(docs, times, prior, rest)
        if rest > 0.0:
            own, params = self.model.allocation, after.allocation
            value += naive.top_term(params.u, params.omega, own.gamma, own.alpha, sum(times))
        else:
            value += sum(times) * naive.cumulant(prior)
        value -= self.model.observation.kl(after.observation).sum()
        for b, q in qs.items():
            for doc, (log_lik, weight, t) in zip(q.docs, tokens_of(after, self.batches[b]), strict=True):
                value += t * np.sum(weight[:, None] * doc.resp * log_lik)
        return float(value)

    def summary(self, qs: Mapping[int, Documents]) -> Summary:
        """One document at a time."""
        names = next(iter(qs.values())).names
        k = len(names)
        empty = self.model.empty_summary(np.array(names))
        values = {name: np.array(value) for name, value in empty.values.items()}
        for doc, t in [one for q in qs.values() for one in zip(q.docs, q.times, strict=True)]:
            total = doc.theta.sum() + doc.rest
            log_pi = psi(doc.theta) - psi(total)
            values["N"] += t * doc.count
            values["H"] += t * -(doc.weight[:, None] * xlogy(doc.resp, doc.resp)).sum(axis=0).reshape(k)
            values["P"] += t * log_pi
            values["Q"] += t * (gammaln(doc.theta) + (doc.count - doc.theta) * log_pi)
            values["docs"] += t
            values["Q_0"] -= t * gammaln(total)
            if doc.rest > 0.0:
                values["P_rest"] += t * (psi(doc.rest) - psi(total))
                values["Q_rest"] += t * (gammaln(doc.rest) - doc.rest * (psi(doc.rest) - psi(total)))
        for b, q in qs.items():
            batch = self.batches[b]
            resp = np.concatenate([t * d.weight[:, None] * d.resp for d, t in zip(q.docs, q.times, strict=True)])
            if batch.is_sparse:
                np.add.at(values["x"].T, batch.x.indices, resp)
            else:
                for name, value in self.model.observation.summarize(batch, resp).items():
                    values[name] = values[name] + value
        return replace(empty, values=values)


@dataclass(frozen=True)
class Receivers:
    """What the receivers of a trial, by id, get of each document; ``freed`` is prior mass that none of them gets."""

    names: list[int]
    shares: Part
    freed: float
