"""Hidden Markov models: responsibilities of a batch are pair posteriors of every sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.model import Model, Posterior
from bnp_dask.structure.base import Trial
from tests.chains import naive
from tests.chains.parts import allocation_by_hand, chains_of


@dataclass(frozen=True)
class Sequences:
    """Chains of the sequences of a batch that are not empty, and the ids of the states."""

    names: list[int]
    chains: list[naive.Chain]

    def at(self, index: Sequence[int], names: list[int]) -> Sequences:
        """Only the states at some places, in that order."""
        some = list(index)
        chains = [naive.Chain(c.first[some], c.pairs[:, some][:, :, some], c.weight) for c in self.chains]
        return Sequences(names, chains)


@dataclass(frozen=True)
class Block:
    """How receivers share what donors hold of one sequence: given the step, on entering, and from step to step."""

    share: np.ndarray
    enter: np.ndarray
    inner: np.ndarray


@dataclass(frozen=True)
class Receivers:
    """Receivers of a trial by id, and their blocks of each sequence."""

    names: list[int]
    blocks: list[Block]


@dataclass
class ChainTwin:
    """See :class:`tests.twins.follow.Twin`."""

    model: Model
    batches: list[Batch]

    def assign(self, b: int, posterior: Posterior, before: Sequences | None) -> Sequences:
        return Sequences(posterior.ids.tolist(), chains_of(posterior, self.batches[b]))

    def tried(self, b: int, q: Sequences, posterior: Posterior, trial: Trial) -> Receivers:
        donors = [q.names.index(i) for i in trial.donors]
        guide = naive.potentials(posterior, trial)
        log_lik = self.model.observation.expected_log_lik(trial.beliefs.observation, self.batches[b])
        blocks, at, stay = [], 0, len(q.names) - len(donors)
        for chain in q.chains:
            n = len(chain.resp)
            new = naive.shared_out(chain, donors, log_lik[at : at + n], guide)
            held = np.maximum(chain.resp[:, donors].sum(axis=1, keepdims=True), 1e-300)
            entered = np.concatenate([new.first[None, stay:], new.pairs[:, :stay, stay:].sum(axis=1)])
            enter = entered / np.maximum(entered.sum(axis=1, keepdims=True), 1e-300)
            blocks.append(Block(new.resp[:, stay:] / held, enter, new.pairs[:, stay:, stay:]))
            at += n
        return Receivers(trial.beliefs.ids.tolist(), blocks)

    def exchanged(self, q: Sequences, donors: Sequence[int], part: Receivers) -> Sequences:
        gone = [q.names.index(i) for i in donors]
        stay = [k for k in range(len(q.names)) if k not in gone]
        names = [*(q.names[k] for k in stay), *part.names]
        chains = []
        for chain, block in zip(q.chains, part.blocks, strict=True):
            k, size = len(stay), len(names)
            pairs = np.zeros((len(chain.pairs), size, size))
            pairs[:, :k, :k] = chain.pairs[:, stay][:, :, stay]
            coming, going = chain.pairs[:, stay][:, :, gone].sum(axis=2), chain.pairs[:, gone][:, :, stay].sum(axis=1)
            pairs[:, :k, k:] = coming[:, :, None] * block.enter[1:, None, :]
            pairs[:, k:, :k] = block.share[:-1, :, None] * going[:, None, :]
            pairs[:, k:, k:] = block.inner
            first = np.concatenate([chain.first[stay], chain.first[gone].sum() * block.share[0]])
            chains.append(naive.Chain(first, pairs, chain.weight))
        order = [i for i in q.names if i in names] + [i for i in part.names if i not in q.names]
        return Sequences(names, chains).at([names.index(i) for i in order], order)

    def merged(self, q: Sequences, keep: int, drop: int) -> Sequences:
        a, b = q.names.index(keep), q.names.index(drop)
        return Sequences([i for i in q.names if i != drop], [naive.merged(c, a, b) for c in q.chains])

    def grown(self, q: Sequences, ids: Sequence[int]) -> Sequences:
        more = len(ids)
        chains = []
        for c in q.chains:
            pairs = np.pad(c.pairs, ((0, 0), (0, more), (0, more)))
            chains.append(naive.Chain(np.pad(c.first, (0, more)), pairs, c.weight))
        return Sequences([*q.names, *ids], chains)

    def taken(self, q: Sequences, ids: Sequence[int]) -> Sequences:
        gone = [k for k, i in enumerate(q.names) if i not in ids]
        assert all(not c.resp[:, gone].any() for c in q.chains)
        return q.at([q.names.index(i) for i in ids], list(ids))

    def renamed(self, q: Sequences, names: Mapping[int, int]) -> Sequences:
        return replace(q, names=[names.get(i, i) for i in q.names])

    def ids(self, q: Sequences) -> list[int]:
        return q.names

    def objective(self, qs: Mapping[int, Sequences]) -> float:
        chains = [chain for q in qs.values() for chain in q.chains]
        after = self.model.global_step(self.summary(qs))
        value = naive.entropy(chains) + allocation_by_hand(self.model, after, chains)
        value -= self.model.observation.kl(after.observation).sum()
        for b, q in qs.items():
            own = np.concatenate([c.weight * c.resp for c in q.chains])
            value += np.vdot(own, self.model.observation.expected_log_lik(after.observation, self.batches[b]))
        return float(value)

    def summary(self, qs: Mapping[int, Sequences]) -> Summary:
        names = np.array(next(iter(qs.values())).names)
        total = self.model.empty_summary(names)
        for b, q in qs.items():
            own = np.concatenate([c.weight * c.resp for c in q.chains])
            total = total + self.model.summarize(names, self.batches[b], own)
        chains = [chain for q in qs.values() for chain in q.chains]
        start, trans = naive.counts(chains)
        return replace(total, values={**total.values, "M": trans, "start": start, "H": naive.entropy(chains)})
