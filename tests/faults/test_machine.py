"""A state machine against a model that keeps every responsibility: nothing that happens to a run loses an atom.

The run is what it is in a run directory: totals that batches enter and leave, summaries of batches that have seen
some of the changes of clusters and are brought up to date when they are used next, checkpoints.  The naive model is a
table of responsibilities, to which every change is applied at once.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Forget, InsertEmpty, Merge, RunningTotal, Summary, Take, replay
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.errors import StoreError
from bnp_dask.inference.variational import stochastic
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian
from bnp_dask.store import NO_RECEIPT, Listing, RunStore, SummaryFiles
from tests.twins.mixtures import MixtureTwin

B, N, D = 3, 7, 2
EDITS = {e.__name__: e for e in (InsertEmpty, Take, Merge, Exchange, Forget)}
NO_PAIRS = np.zeros((0, 2), np.int64)


def batches() -> list[Batch]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(B, N, D)) + 50.0
    return [Batch(x[b], rng.integers(1, 4, N) * 0.5, f"batch {b}") for b in range(B)]


BATCHES = batches()
MODEL = Model(DPMixture(1.0), DiagGaussian()).with_prior(combine([survey_batch(b) for b in BATCHES]))


def entropy(weights, resp):
    return -float((weights * resp * np.log(np.where(resp > 0, resp, 1.0))).sum())


def summary(b, columns, pairs=NO_PAIRS) -> Summary:
    """Statistics of a batch from its responsibilities, from scratch."""
    batch, ids = BATCHES[b], list(columns)
    resp = np.stack([columns[i] for i in ids], axis=1)
    made = MODEL.summarize(np.array(ids), batch, resp * batch.weights[:, None]).with_pairs(pairs)
    made.values["H"][...] = [entropy(batch.weights, columns[i]) for i in ids]
    made.pair_values["H"][...] = [entropy(batch.weights, columns[a] + columns[c]) for a, c in pairs.tolist()]
    return made


def change(columns, edit, parts):
    """What an edit does to responsibilities."""
    twin = MixtureTwin(MODEL, BATCHES)
    match edit:
        case Merge(keep, drop):
            return twin.merged(columns, keep, drop)
        case Exchange(trial, donors):
            return twin.exchanged(columns, donors, parts[trial])
        case InsertEmpty(ids):
            return twin.grown(columns, ids)
        case Take(ids):  # with their atoms, too
            return {i: columns[i] for i in ids}


def equal(found, wanted, size, what):
    assert found.ids.tolist() == wanted.ids.tolist(), what
    for name, value in wanted.values.items():
        scale = np.abs(size[name]).max(initial=1.0)
        np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-12 * scale, err_msg=f"{what}: {name}")


class Run(RuleBasedStateMachine):
    """The run, and the responsibilities of all atoms beside it."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bnp-machine-"))
        self.store = RunStore.create(self.folder / "run", {})
        self.rng = np.random.default_rng(0)

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize(k=st.integers(1, 4), seed=st.integers(0, 2**16))
    def start(self, k, seed):
        self.rng = np.random.default_rng(seed)
        self.next_id, self.n_trials, self.n_rows = k, 0, 0
        self.total = RunningTotal(MODEL.empty_summary(np.arange(k)))
        self.edits, self.seen, self.visits, self.receipts = [], [0] * B, [-1] * B, [NO_RECEIPT] * B
        self.columns = {}
        self.blend = None
        for b in range(B):
            self._visit(b)

    # -- what a run does ------------------------------------------------------------------------------------
    @property
    def ids(self):
        return [int(i) for i in self.total.high.ids]

    def _draw(self):
        resp = self.rng.dirichlet(np.full(len(self.ids), 0.5), size=N)
        return {i: resp[:, k].copy() for k, i in enumerate(self.ids)}

    def _recall(self, b):
        arrays, _ = self.store.get_summary(b, self.visits[b], self.receipts[b])
        parts = {}
        for key, value in arrays.items():
            if key.startswith("part/"):
                name, rest = key.removeprefix("part/").split("/")
                parts.setdefault(name, {})[rest] = value
        own = {key: value for key, value in arrays.items() if not key.startswith("part/")}
        held = {name: Summary.from_arrays(MODEL.fields, part) for name, part in parts.items()}
        return replay(Summary.from_arrays(MODEL.fields, own), self.edits[self.seen[b] :], held)

    def _put(self, b, made, parts):
        arrays = dict(made.to_arrays())
        for name, part in parts.items():
            arrays.update({f"part/{name}/{key}": value for key, value in part.to_arrays().items()})
        self.receipts[b] = self.store.put_summary(b, self.visits[b], arrays)

    def _visit(self, b, pairs=NO_PAIRS, parts=None):
        columns = self._draw()
        parts = {} if parts is None else {name: summary(b, make(columns)) for name, make in parts.items()}
        made = summary(b, columns, pairs)
        if self.visits[b] >= 0:
            self.total.subtract(self._recall(b))
        self.total.add(made)
        self.visits[b] += 1
        self.seen[b] = len(self.edits)
        self._put(b, made, parts)
        self.columns[b] = columns

    def _change(self, edit, parts_of=None, totals=None):
        self.total.apply([edit], totals or {})
        self.edits.append(edit)
        self.columns = {b: change(own, edit, parts_of(own) if parts_of else {}) for b, own in self.columns.items()}

    def _fresh(self):
        self.next_id += 1
        return self.next_id - 1

    @rule(b=st.integers(0, B - 1))
    def visit(self, b):
        """A batch is assigned anew."""
        self._visit(b)

    @rule(b=st.integers(0, B - 1), times=st.integers(1, 3))
    def lost_worker(self, b, times):
        """A worker writes what it found and dies before anybody saw it, perhaps in the middle of another posterior."""
        before = self.visits[b], self.receipts[b]
        for _ in range(times):
            self.visits[b] += 1
            self._put(b, summary(b, self._draw()), {})
            self.visits[b], self.receipts[b] = before
        self._visit(b)

    @rule(order=st.randoms(use_true_random=False))
    def reorder(self, order):
        ids = self.ids
        order.shuffle(ids)
        self._change(Take(tuple(ids)))

    @precondition(lambda self: len(self.ids) > 1)
    @rule(data=st.data())
    def drop(self, data):
        """A cluster is left out, with its atoms: what a delete of an empty one does."""
        gone = data.draw(st.sampled_from(self.ids))
        self._change(Take(tuple(i for i in self.ids if i != gone)))

    @precondition(lambda self: len(self.ids) < 7)
    @rule(data=st.data(), b=st.integers(0, B - 1))
    def birth_at_a_batch(self, data, b):
        """Newborn clusters take one batch's share of a cluster; all others have none of them."""
        target = data.draw(st.sampled_from(self.ids))
        born = (self._fresh(), self._fresh())
        old = self._recall(b)
        self._change(InsertEmpty(born))
        columns = dict(self.columns[b])
        share = self.rng.random(N)
        columns[born[0]], columns[born[1]] = columns[target] * share, columns[target] * (1 - share)
        columns[target] = np.zeros(N)
        made = summary(b, columns)
        self.total.subtract(old.insert_empty(born))
        self.total.add(made)
        self.visits[b] += 1
        self.seen[b] = len(self.edits)
        self._put(b, made, {})
        self.columns[b] = columns

    @precondition(lambda self: len(self.ids) > 1)
    @rule(data=st.data())
    def lap_with_moves(self, data):
        """All batches are visited with pairs tracked and trials carried along; then some proposals are accepted."""
        ids = self.ids
        order = data.draw(st.permutations(ids))
        pair = order[:2]
        pairs = np.array([pair])
        self.total.track(pairs)
        rest = order[2:]
        trials = {}
        if rest:  # a birth or a delete, of a cluster that is not in the pair
            name, donors, receivers = self._trial(data, rest)
            trials[name] = donors, receivers
        seeds = {name: int(self.rng.integers(2**32)) for name in trials}

        def part(name, columns):
            donors, receivers = trials[name]
            mass = sum(columns[i] for i in donors)
            share = np.random.default_rng(seeds[name]).dirichlet(np.ones(len(receivers)), size=N)
            return {i: mass * share[:, k] for k, i in enumerate(receivers)}

        makers = {name: (lambda columns, name=name: part(name, columns)) for name in trials}
        totals = {name: RunningTotal(MODEL.empty_summary(np.array(trials[name][1]))) for name in trials}
        for b in data.draw(st.permutations(range(B))):
            self._visit(b, pairs, makers)
            for name, make in makers.items():
                totals[name].add(summary(b, make(self.columns[b])))
        own = {b: {n: part(n, columns) for n in trials} for b, columns in self.columns.items()}
        edits = [Merge(*(int(i) for i in pair))] + [Exchange(name, tuple(trials[name][0])) for name in trials]
        for edit in data.draw(st.permutations(edits)):
            if data.draw(st.booleans()):
                if isinstance(edit, Exchange):
                    self.total.apply([edit], totals)
                    self.edits.append(edit)
                    self.columns = {b: change(c, edit, own[b]) for b, c in self.columns.items()}
                else:
                    self._change(edit)
        self.total.apply([Forget()])
        self.edits.append(Forget())

    def _trial(self, data, rest):
        self.n_trials += 1
        if len(rest) > 1 and data.draw(st.booleans()):
            return f"delete{self.n_trials}", rest, rest[1:]  # the first of them vanishes, the others absorb it
        return f"birth{self.n_trials}", rest[:1], [self._fresh(), self._fresh()]

    @rule(b=st.integers(0, B - 1), rate=st.floats(0.01, 1.0), size=st.floats(0.5, 20.0))
    def stochastic_blend(self, b, rate, size):
        """What is believed moves a little towards what one batch says of the whole."""
        whole = [(1.0, c, dict(own)) for c, own in self.columns.items()]
        believed, terms = (self.total.value().without_pairs(), whole) if self.blend is None else self.blend
        if believed.ids.tolist() != self.ids:
            believed, terms = self.total.value().without_pairs(), whole
        now = self._recall(b).without_pairs()
        mixed = stochastic.blend(believed, now, rate, size)
        terms = [(w * (1.0 - rate), c, own) for w, c, own in terms] + [(rate * size, b, dict(self.columns[b]))]
        parts = [(weight, summary(c, own)) for weight, c, own in terms]
        values = {name: sum(weight * part[name] for weight, part in parts) for name in now.values}
        expected = replace(parts[0][1], values=values)  # in plain arithmetic
        equal(mixed, expected, expected, "the blend")
        self.blend = mixed, terms[-30:] if len(terms) <= 30 else None
        if self.blend[1] is None:
            self.blend = None

    @rule(tear=st.booleans())
    def checkpoint_and_reload(self, tear):
        """The run is saved; the process dies, perhaps while it wrote more; another one goes on."""
        edits = [[type(e).__name__, vars(e)] for e in self.edits]
        state = {"edits": edits, "seen": self.seen, "visits": self.visits, "next_id": self.next_id}
        arrays = {f"high/{k}": v for k, v in self.total.high.to_arrays().items()}
        arrays |= {f"low/{k}": v for k, v in self.total.low.to_arrays().items()}
        self.n_rows += 1
        listing = Listing.of(zip(range(B), self.visits, self.receipts, strict=True))
        self.store.commit(state, arrays, [{"row": self.n_rows}], listing)
        self.store.close()
        if tear:
            folder = self.folder / "run"
            number = max(int(p.stem) for p in (folder / "checkpoints").glob("*.json"))
            (folder / "checkpoints" / f"{number + 1:08d}.npz").write_bytes(b"half of a checkp")
            with open(folder / "history.jsonl", "a") as file:
                file.write('{"row": 99')
        with pytest.raises(StoreError, match="opened for reading or closed"):
            self.store.put_summary(0, 0, {})
        self.store = RunStore.open(self.folder / "run")
        found = self.store.load()
        assert [row["row"] for row in found.history] == list(range(1, self.n_rows + 1))
        state = json.loads(json.dumps(found.state))
        self.seen, self.visits, self.next_id = state["seen"], state["visits"], state["next_id"]
        self.receipts = [receipt for _, _, receipt in found.listing.entries()]
        assert found.listing.visits.tolist() == self.visits
        self.edits = [
            EDITS[name](**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
            for name, values in state["edits"]
        ]
        parts = {
            half: Summary.from_arrays(
                MODEL.fields, {k.removeprefix(f"{half}/"): v for k, v in found.arrays.items() if k.startswith(half)}
            )
            for half in ("high", "low")
        }
        self.total = RunningTotal(parts["high"], parts["low"])

    @rule()
    def trim(self):
        """Changes that every stored summary has seen are forgotten."""
        done = min(self.seen)
        self.edits = self.edits[done:]
        self.seen = [s - done for s in self.seen]

    # -- what must hold ---------------------------------------------------------------------------------------
    @invariant()
    def totals_are_those_of_all_responsibilities(self):
        if not hasattr(self, "columns") or len(self.columns) < B:
            return
        fresh = None
        for b, own in self.columns.items():
            made = summary(b, {i: own[i] for i in self.ids})
            fresh = made if fresh is None else fresh + made
        equal(self.total.value(), fresh, fresh, "the total")

    @invariant()
    def stored_summaries_are_those_of_their_batch(self):
        if not hasattr(self, "columns") or len(self.columns) < B:
            return
        for b, own in self.columns.items():
            made = summary(b, {i: own[i] for i in self.ids})
            equal(self._recall(b), made, made, f"batch {b}")


# shrinking a failure of so many steps takes minutes; the long test does it
QUICK = settings(
    max_examples=15,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


def test_nothing_is_lost_whatever_happens():
    run_state_machine_as_test(Run, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_is_lost_whatever_happens_for_long():
    run_state_machine_as_test(
        Run, settings=settings(QUICK, max_examples=1000, stateful_step_count=50, phases=list(Phase))
    )


# -- what the machine is worth: it finds mistakes that are made on purpose ----------------------------------------
def counted_twice(monkeypatch):
    """A batch's old summary stays in the total."""
    monkeypatch.setattr(RunningTotal, "subtract", lambda self, summary: None)


def counted_twice_after_a_death(monkeypatch):
    """What a dead worker wrote is taken for what was written after it."""
    right, first = SummaryFiles.put, {}

    def put(self, batch, visit, *rest):
        return first.setdefault((self.folder, batch, visit), right(self, batch, visit, *rest))

    monkeypatch.setattr(SummaryFiles, "put", put)


def merge_without_its_entropy(monkeypatch):
    """The entropy of two clusters together is taken for the sum of theirs, as if no atom were shared."""
    right = Summary.merge

    def merge(self, keep, drop):
        made = right(self, keep, drop)
        made.values["H"][made.position(keep)] = self["H"][self.position(keep)] + self["H"][self.position(drop)]
        return made

    monkeypatch.setattr(Summary, "merge", merge)


def delete_that_drops_mass(monkeypatch):
    """Of those that absorb a cluster, one gets nothing."""
    right = Summary.exchange

    def exchange(self, donors, part):
        if part.n_clusters > 1 or set(part.ids) < set(donors):
            last = int(part.ids[-1])
            part = replace(part, values={name: value.copy() for name, value in part.values.items()})
            for name in part.values:
                if np.ndim(part[name]):
                    part.values[name][part.position(last)] = 0.0
        return right(self, donors, part)

    monkeypatch.setattr(Summary, "exchange", exchange)


def reorder_of_some_fields(monkeypatch):
    """Counts change places and second moments do not."""
    right = Summary.take

    def take(self, ids):
        made = right(self, ids)
        return replace(made, values={**made.values, "xx": self["xx"]}) if len(made.ids) == len(self.ids) else made

    monkeypatch.setattr(Summary, "take", take)


def stale_summary_after_a_resume(monkeypatch):
    """A store that was opened again gives a batch's visit before the last, where that is there and may pass for it."""
    right_open, right_get = RunStore.open.__func__, RunStore.get_summary
    resumed, right_put, receipts = set(), RunStore.put_summary, {}

    def opened(cls, path):
        store = right_open(cls, path)
        resumed.add(store)
        return store

    def put(self, batch, visit, *rest):
        receipts[self.path, batch, visit] = right_put(self, batch, visit, *rest)
        return receipts[self.path, batch, visit]

    def get(self, batch, visit, receipt):
        found, before = right_get(self, batch, visit, receipt), receipts.get((self.path, batch, visit - 1))
        if self in resumed and before is not None and self.summaries.path(batch, visit - 1, before).exists():
            stale = right_get(self, batch, visit - 1, before)
            if stale[0].keys() == found[0].keys() and np.array_equal(stale[0]["ids"], found[0]["ids"]):
                return stale  # one of other clusters would be refused by its reader
        return found

    monkeypatch.setattr(RunStore, "open", classmethod(opened))
    monkeypatch.setattr(RunStore, "put_summary", put)
    monkeypatch.setattr(RunStore, "get_summary", get)


def blend_of_another_size(monkeypatch):
    """A batch is blended in as it is, and not as large as the data it stands for."""
    monkeypatch.setattr(stochastic, "blend", lambda old, new, rate, size: old.scale(1.0 - rate) + new.scale(rate))


def birth_that_adds_a_little(monkeypatch):
    """Totals grow by a billionth whenever clusters are born."""
    right = RunningTotal.apply

    def apply(self, edits, parts=None):
        edits = list(edits)
        right(self, edits, parts)
        if any(isinstance(e, InsertEmpty) for e in edits):
            self.high = self.high.scale(1.0 + 1e-9)

    monkeypatch.setattr(RunningTotal, "apply", apply)


PLANTED: dict[str, Callable[[Any], None]] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        counted_twice,
        counted_twice_after_a_death,
        merge_without_its_entropy,
        delete_that_drops_mass,
        reorder_of_some_fields,
        stale_summary_after_a_resume,
        blend_of_another_size,
        birth_that_adds_a_little,
    )
}


SOON = ("counted twice", "merge without its entropy")


@pytest.mark.parametrize("name", [n if n in SOON else pytest.param(n, marks=pytest.mark.long) for n in PLANTED])
def test_the_machine_finds_mistakes_made_on_purpose(monkeypatch, name):
    PLANTED[name](monkeypatch)
    with pytest.raises(AssertionError, match="the total|batch [0-2]|the blend"):
        run_state_machine_as_test(Run, settings=settings(QUICK, max_examples=100))
