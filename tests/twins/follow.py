"""Follow a run by its history, with the responsibilities of all atoms at hand, and compute every objective from them.

What is read of a run are the rows of its history, and with which beliefs each batch was visited and what was tried
there (:func:`recorded`, the one place that looks inside).  What visits and accepted changes of clusters do to
responsibilities is written here and in the files beside this one a second time, without summaries.  Batches must be
visited in the order in which they lie.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pytest

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.model import Model, Posterior
from bnp_dask.structure.base import Trial

TERMS = ("data", "entropy", "allocation")
SPLIT = "split"


@dataclass(frozen=True)
class Seen:
    """A local step that a run carried out on one batch: which, with what beliefs, and what was tried beside it."""

    batch: int
    posterior: Posterior
    trials: tuple[Trial, ...]

    @property
    def splits(self) -> bool:
        """Whether it only tried newborn clusters that the batch's own task had made."""
        return any(trial.name == SPLIT for trial in self.trials)


def is_same(read: Batch, own: Batch) -> bool:
    """Whether a batch is this one as it was read: counts are read as a new matrix of the same numbers."""
    if read is own or isinstance(own.x, np.ndarray) or read.n_atoms != own.n_atoms:
        return read is own
    return np.shares_memory(read.x.data, own.x.data)


def recorded(monkeypatch: pytest.MonkeyPatch, batches: Sequence[Batch]) -> list[Seen]:
    """A list that every local step on one of these batches is added to from now on."""
    visit, seen = Model.visit, []
    signature = inspect.signature(visit)

    def visited(*args, **more):
        given = signature.bind(*args, **more).arguments
        for b, own in enumerate(batches):
            if is_same(given["batch"], own):
                seen.append(Seen(b, given["posterior"], tuple(given.get("trials", ()))))
        return visit(*args, **more)

    monkeypatch.setattr(Model, "visit", visited)
    return seen


class Twin(Protocol):
    """All responsibilities of one batch as one object (``q``), and what becomes of them, for one kind of model."""

    def assign(self, b: int, posterior: Posterior, before: Any) -> Any:
        """The local step on batch ``b``; ``before`` are its responsibilities so far, brought up to date, or None."""
        ...

    def tried(self, b: int, q: Any, posterior: Posterior, trial: Trial) -> Any:
        """How a trial shares out what its donors hold."""
        ...

    def exchanged(self, q: Any, donors: Sequence[int], part: Any) -> Any:
        """Donors give way to the receivers of a trial: those that are both keep their places, others come last."""
        ...

    def merged(self, q: Any, keep: int, drop: int) -> Any: ...

    def grown(self, q: Any, ids: Sequence[int]) -> Any:
        """Clusters without atoms come last."""
        ...

    def taken(self, q: Any, ids: Sequence[int]) -> Any:
        """These clusters, in this order; those left out hold nothing."""
        ...

    def renamed(self, q: Any, names: Mapping[int, int]) -> Any: ...

    def ids(self, q: Any) -> list[int]: ...

    def objective(self, qs: Mapping[int, Any]) -> float:
        """The whole-data objective at the parameters that are best for these responsibilities, nats."""
        ...

    def summary(self, qs: Mapping[int, Any]) -> Summary:
        """Statistics of all atoms."""
        ...


@dataclass(frozen=True)
class Claim:
    """A recorded gain beside the difference of two objectives from scratch; ``size`` of the objective, nats."""

    kind: str
    recorded: float
    true: float
    size: float
    accepted: bool

    def check(self) -> None:
        """Agreement to 1e-8 of itself, or to what double precision leaves of the objective."""
        assert self.recorded == pytest.approx(self.true, rel=1e-8, abs=1e-11 * self.size), self


@dataclass
class Follower:
    """Where a run stands, as its twin has it.

    Models of sequences know the entropy from below only once clusters were united twice in one lap: ``wide`` counts
    those changes, and ``bounded`` are the batches that were not visited since.  ``value`` is the objective that the run
    has by then, ``truth`` the one from scratch; ``beside`` are births beside neighbours that were accepted.  Proposals
    of ``ordered`` runs, of mixtures, are also judged with the largest cluster first.
    """

    twin: Twin
    n_batches: int
    seen: list[Seen]
    chained: bool = False
    ordered: bool = False
    qs: dict[int, Any] = field(default_factory=dict)
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    splits: list[tuple[int, Any]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    bounded: set[int] = field(default_factory=set)
    wide: int = 0
    position: int = 0
    value: float = 0.0
    truth: float = 0.0
    bounds: int = 0
    beside: int = 0

    def follow(self, rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Follow a run while its rows come; each must be consumed before the run goes on."""
        out = []
        for row in rows:
            out.append(row)
            self.step(row)
        return out

    def step(self, row: Mapping[str, Any]) -> None:
        """One row: what was folded, every change of clusters that was decided, and the objective after them."""
        count = self.n_batches if row["n_batches"] is None else row["n_batches"]
        bounded = bool(self.bounded)
        self._fold(range(self.position, self.position + count), row["action"])
        self.position = (self.position + count) % self.n_batches
        if row["gain"] is not None:
            self._compare("fold", row["gain"], self.qs, True, not bounded)
        elif row["exact"]:
            self.value = self.truth = self.twin.objective(self.qs)
        self.wide = 0
        for move in row["moves"]:
            self._decide(move)
        self.splits = []
        if self.chained and self.wide > 1:
            self.bounded = set(self.qs)
        if self.position == 0:
            self.seen.clear()
            self.parts, self.trials = {}, {}
        if row["exact"]:
            self._check_objective(row)

    def check_statistics(self, found: Summary) -> None:
        """The statistics that a run ends with are those of all responsibilities."""
        fresh = self.twin.summary(self.qs)
        assert found.ids.tolist() == fresh.ids.tolist()
        for name, value in fresh.values.items():
            if not (name == "H" and self.bounded):
                size = np.abs(value).max()
                np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-11 * size, err_msg=name)

    def _fold(self, batches: Iterable[int], action: str) -> None:
        for b in batches:
            visits = [s for s in self.seen if s.batch == b and not s.splits]
            assert len(visits) == (1 if action == "folded" else 2)
            if action == "kept":
                continue
            visit = visits[-1]
            q = self.twin.assign(b, visit.posterior, self.qs.get(b))
            self.parts[b] = {t.name: self.twin.tried(b, q, visit.posterior, t) for t in visit.trials}
            self.trials |= {t.name: t for t in visit.trials}
            self.bounded.discard(b)
            splits = [s for s in self.seen if s.batch == b and s.splits]
            if splits:
                trial = splits[-1].trials[0]
                self.splits.append((b, (trial, self.twin.tried(b, q, splits[-1].posterior, trial))))
            self.qs[b] = self._up_to_date(b, q)

    def _up_to_date(self, b: int, q: Any) -> Any:
        """With empty clusters that were born since its posterior was sent out."""
        others = [i for i in self.qs.values() if i is not self.qs.get(b)]
        known = self.twin.ids(self.qs[b] if b in self.qs else others[0] if others else q)
        missing = [i for i in known if i not in self.twin.ids(q)]
        return self.twin.grown(q, missing) if missing else q

    def _decide(self, move: Mapping[str, Any]) -> None:
        """A proposal, accepted or rejected on the whole-data objective, or dropped before (no gain)."""
        if move["gain"] is None:
            assert not move["accepted"]
            return
        targets, wide = move["targets"], False
        if move["kind"] == "birth" and self.splits:
            self._split(move, *self.splits.pop(0))
            return
        if move["kind"] == "sort":
            changed = {b: self.twin.taken(q, targets) for b, q in self.qs.items()}
        elif move["kind"] == "merge":
            wide = True
            changed = {b: self.twin.merged(q, *targets) for b, q in self.qs.items()}
        else:
            (trial,) = [t for t in self.trials.values() if _receives(t, move)]
            assert set(targets) <= set(trial.donors) <= {*targets, *trial.beliefs.ids.tolist()}
            wide = len(trial.donors) > 1
            self.beside += wide and move["kind"] == "birth" and move["accepted"]
            parts = {b: own[trial.name] for b, own in self.parts.items()}
            changed = {b: self.twin.exchanged(q, trial.donors, parts[b]) for b, q in self.qs.items()}
            if self.ordered:
                changed = self._better_order(changed)
        self._settle(move, changed, not (self.chained and wide and self.wide))
        self.wide += wide and move["accepted"]

    def _better_order(self, changed: dict[int, Any]) -> dict[int, Any]:
        """What a change that does not pay leads to with the largest cluster first, if the objective is higher then."""
        found = self.twin.summary(changed)
        order = found.ids[np.argsort(-found["N"], kind="stable")].tolist()
        after = self.twin.objective(changed)
        if after > self.truth:
            return changed
        other = {b: self.twin.taken(q, order) for b, q in changed.items()}
        return other if self.twin.objective(other) > after else changed

    def _split(self, move: Mapping[str, Any], b: int, tried: tuple[Trial, Any]) -> None:
        """A birth at a batch: newborn clusters stay on their own, or join those born at other batches of the lap."""
        trial, part = tried
        known = self.twin.ids(self.qs[b])
        newborn = trial.beliefs.ids.tolist()
        born = [i for i in move["others"] if i not in known] if move["accepted"] else []
        homes = [i for i in move["others"] if i in known]
        found = []
        for fresh in itertools.combinations(range(len(newborn)), len(newborn) - len(homes)):
            ids = born or [max(known) + 1 + j for j in range(len(fresh))]
            names = dict(zip((newborn[j] for j in fresh), ids, strict=True))
            names |= dict(zip((i for i in newborn if i not in names), homes, strict=True))
            changed = {o: self.twin.grown(q, ids) for o, q in self.qs.items()}
            own = self.twin.exchanged(self.qs[b], trial.donors, part)
            own = self.twin.taken(own, [i for i in self.twin.ids(own) if i not in homes])
            own = self.twin.grown(self.twin.renamed(own, names), list(trial.donors))
            changed[b] = self.twin.taken(own, [*known, *ids])
            found.append((self.twin.objective(changed), changed))
        # a rejected birth may have been better united with others, which its row does not tell
        self._settle(move, max(found, key=lambda f: f[0])[1], True)

    def _settle(self, move: Mapping[str, Any], changed: dict[int, Any], exact: bool) -> None:
        self._compare(move["kind"], move["gain"], changed, move["accepted"], exact)
        if move["accepted"]:
            self.qs = changed

    def _compare(self, kind: str, gain: float, changed: dict[int, Any], accepted: bool, exact: bool) -> None:
        """Note a recorded gain; where it is not exact, the objective after it is a bound from below."""
        after, size = self.twin.objective(changed), abs(self.truth)
        if exact:
            self.claims.append(Claim(kind, gain, after - self.truth, size, accepted))
        else:
            self.bounds += 1
            assert self.value + gain <= after + 1e-11 * size
        if accepted:
            self.value, self.truth = self.value + gain, after

    def _check_objective(self, row: Mapping[str, Any]) -> None:
        size = sum(abs(row[name]) for name in TERMS)
        assert row["elbo"] == pytest.approx(self.value, rel=0, abs=1e-11 * size), row["step"]
        if self.bounded:
            assert row["elbo"] <= self.truth + 1e-11 * size
        else:
            assert row["elbo"] == pytest.approx(self.truth, rel=0, abs=1e-11 * size), row["step"]
            self.value = self.truth


def _receives(trial: Trial, move: Mapping[str, Any]) -> bool:
    """Whether a trial is that of a proposal, by those who would receive; those born beside others name the newborn."""
    ids, others = set(trial.beliefs.ids.tolist()), set(move["others"])
    return ids == others or (move["kind"] == "birth" and others == ids - set(trial.donors))


def rows_of(steps: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Rows of a schedule's steps, one at a time."""
    return (step.row for step in steps if step.row is not None)


def check_account(rows: Sequence[Mapping[str, Any]]) -> None:
    """Each exact row's objective is that of the row before plus all that the row says was gained."""
    exact = [row for row in rows if row["exact"]]
    assert len(exact) > 3
    for last, row in itertools.pairwise(exact):
        size = sum(abs(row[name]) for name in TERMS)
        gained = row["gain"] + sum(m["gain"] for m in row["moves"] if m["accepted"])
        assert row["elbo"] - last["elbo"] == pytest.approx(gained, rel=0, abs=2e-13 * size), row["step"]
