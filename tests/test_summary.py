"""The summary algebra against a naive model that keeps all responsibilities and data."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.testing import assert_array_equal

from bnp_dask.core.summary import (
    Edit,
    Exchange,
    Fade,
    Field,
    Forget,
    GroupStates,
    InsertEmpty,
    Links,
    Merge,
    RunningTotal,
    Summary,
    Take,
    Unite,
    Widen,
    concatenate_states,
    difference,
    edited,
    replay,
    replay_states,
    select,
)
from bnp_dask.errors import SummaryError

D = 2
FIELDS = {
    "n": Field(),  # no cluster axis: how many atoms
    "base": Field(("feature",)),  # the same with an axis of its own
    "N": Field(("cluster",)),
    "S": Field(("cluster", "feature")),
    "T": Field(("cluster", "cluster")),  # transitions
    "U": Field(("cluster", "cluster", "feature")),
    "H": Field(("cluster",), merge="tracked"),
}


# -- the naive model ------------------------------------------------------------------------------------------
@dataclass
class Atoms:
    """Responsibilities by cluster id, and data."""

    resp: dict[int, np.ndarray]
    x: np.ndarray

    def edited(self, edit: Edit) -> Atoms:
        resp = dict(self.resp)
        if isinstance(edit, InsertEmpty):
            resp.update({i: np.zeros(len(self.x)) for i in edit.ids})
        elif isinstance(edit, Take):
            resp = {i: resp[i] for i in edit.ids}
        else:
            resp[edit.keep] = resp[edit.keep] + resp.pop(edit.drop)
        return Atoms(resp, self.x)

    def summary(self, ids: list[int], pairs: list[tuple[int, int]]) -> Summary:
        r = np.array([self.resp[i] for i in ids]).reshape(len(ids), len(self.x))
        values = {
            "n": np.array(float(len(self.x))),
            "base": self.x.sum(axis=0),
            "N": r.sum(axis=1),
            "S": r @ self.x,
            "T": r[:, :-1] @ r[:, 1:].T,
            "U": np.einsum("an,bn,nd->abd", r[:, :-1], r[:, 1:], self.x[1:]),
            "H": np.array([entropy(row) for row in r]),
        }
        union = np.array([entropy(self.resp[a] + self.resp[b]) for a, b in pairs])
        return Summary(np.array(ids, np.int64), FIELDS, values, pair_array(pairs), {"H": union})


def entropy(r: np.ndarray) -> float:
    return -float(np.sum(r * np.log(np.where(r > 0, r, 1.0))))


def pair_array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2)


def fresh_atoms(ids: list[int], seed: int, n: int = 4) -> Atoms:
    rng = np.random.default_rng(seed)
    resp = rng.dirichlet(np.full(len(ids), 0.3), n)
    return Atoms({i: resp[:, k] for k, i in enumerate(ids)}, rng.normal(size=(n, D)) * 10.0 ** rng.integers(-3, 4))


def weighted_sum(parts: list[tuple[float, Atoms]], ids: list[int], pairs: list[tuple[int, int]]) -> Summary:
    total = Atoms({i: np.zeros(0) for i in ids}, np.zeros((0, D))).summary(ids, pairs)
    for weight, atoms in parts:
        total = total + atoms.summary(ids, pairs).scale(weight)
    return total


def assert_same(got: Summary, want: Summary, rtol: float = 1e-10, atol: float = 1e-9) -> None:
    np.testing.assert_array_equal(got.ids, want.ids)
    np.testing.assert_array_equal(got.pairs, want.pairs)
    assert got.values.keys() == want.values.keys()
    for name, value in want.values.items():
        assert isinstance(got[name], np.ndarray)
        assert got[name].shape == value.shape
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol, err_msg=name)
    for name, value in want.pair_values.items() if want.n_pairs else ():
        np.testing.assert_allclose(got.pair_values[name], value, rtol=rtol, atol=atol, err_msg=f"pairs of {name}")


# -- the state machine ----------------------------------------------------------------------------------------
seeds = st.integers(0, 2**20)


class SummaryMachine(RuleBasedStateMachine):
    """A memoized run: a running total, stale summaries of batches, and a log of edits."""

    @initialize(k=st.integers(1, 5))
    def start(self, k: int) -> None:
        self.ids = list(range(k))
        self.next_id = k
        self.pairs: list[tuple[int, int]] = []
        self.edits: list[Edit] = []
        self.atoms: list[Atoms] = []  # the naive model, always up to date
        self.stored: list[tuple[Summary, int]] = []  # summary of each batch, and how many edits it has seen
        self.total = RunningTotal(weighted_sum([], self.ids, self.pairs))
        self.blended: list[tuple[float, Atoms]] = []
        self.blend = weighted_sum([], self.ids, self.pairs)

    def edit(self, edit: Edit) -> None:
        self.edits.append(edit)
        self.total.apply([edit])
        self.blend = replay(self.blend, [edit])
        self.atoms = [a.edited(edit) for a in self.atoms]
        self.blended = [(w, a.edited(edit)) for w, a in self.blended]

    def up_to_date(self, b: int) -> Summary:
        summary, seen = self.stored[b]
        return replay(summary, self.edits[seen:])

    @rule(seed=seeds, n=st.integers(0, 6))
    def add_batch(self, seed: int, n: int) -> None:
        atoms = fresh_atoms(self.ids, seed, n)
        summary = atoms.summary(self.ids, self.pairs)
        self.atoms.append(atoms)
        self.stored.append((summary, len(self.edits)))
        self.total.add(summary)

    @precondition(lambda self: self.atoms)
    @rule(seed=seeds, data=st.data())
    def visit_batch(self, seed: int, data: st.DataObject) -> None:
        b = data.draw(st.integers(0, len(self.atoms) - 1))
        atoms = fresh_atoms(self.ids, seed, len(self.atoms[b].x))
        new = Atoms(atoms.resp, self.atoms[b].x)
        summary = new.summary(self.ids, self.pairs)
        self.total.subtract(self.up_to_date(b))
        self.total.add(summary)
        self.atoms[b] = new
        self.stored[b] = (summary, len(self.edits))

    @precondition(lambda self: self.atoms)
    @rule(data=st.data())
    def drop_batch(self, data: st.DataObject) -> None:
        b = data.draw(st.integers(0, len(self.atoms) - 1))
        self.total.subtract(self.up_to_date(b))
        del self.atoms[b], self.stored[b]

    @precondition(lambda self: len(self.ids) > 1)
    @rule(data=st.data())
    def track_pairs(self, data: st.DataObject) -> None:
        """A lap that tracks pairs visits every batch."""
        one = st.sampled_from(self.ids)
        drawn = data.draw(st.lists(st.tuples(one, one), max_size=4))
        self.pairs = list(dict.fromkeys((a, b) for a, b in drawn if a != b))
        self.total = RunningTotal(weighted_sum([], self.ids, self.pairs))
        self.blend = weighted_sum(self.blended, self.ids, self.pairs)
        for b, atoms in enumerate(self.atoms):
            summary = atoms.summary(self.ids, self.pairs)
            self.total.add(summary)
            self.stored[b] = (summary, len(self.edits))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), swap=st.booleans())
    def merge_tracked(self, data: st.DataObject, swap: bool) -> None:
        pair = data.draw(st.sampled_from(self.pairs))
        keep, drop = pair[::-1] if swap else pair
        self.edit(Merge(keep, drop))
        self.ids.remove(drop)
        self.pairs = [p for p in self.pairs if keep not in p and drop not in p]

    @precondition(lambda self: len(self.ids) > 1)
    @rule(data=st.data())
    def refuse_untracked(self, data: st.DataObject) -> None:
        keep, drop = data.draw(st.permutations(self.ids))[:2]
        tracked = {frozenset(p) for p in self.pairs}
        if frozenset((keep, drop)) not in tracked:
            with pytest.raises(SummaryError, match="was not tracked"):
                self.total.value().merge(keep, drop)

    @rule(count=st.integers(0, 2))
    def insert_empty(self, count: int) -> None:
        new = tuple(range(self.next_id, self.next_id + count))
        if len(self.ids) + count <= 8:
            self.edit(InsertEmpty(new))
            self.ids += new
            self.next_id += count

    @rule(data=st.data(), delete=st.booleans())
    def take(self, data: st.DataObject, delete: bool) -> None:
        order = data.draw(st.permutations(self.ids))
        wanted = order[:-1] if delete and len(order) > 1 else order
        self.edit(Take(tuple(wanted)))
        self.ids = list(wanted)
        self.pairs = [p for p in self.pairs if set(p) <= set(wanted)]

    @rule(seed=seeds, rate=st.floats(0.0, 1.0), share=st.floats(1.0, 50.0))
    def stochastic_step(self, seed: int, rate: float, share: float) -> None:
        atoms = fresh_atoms(self.ids, seed)
        self.blend = self.blend.scale(1.0 - rate) + atoms.summary(self.ids, self.pairs).scale(share).scale(rate)
        old = [(w * (1.0 - rate), a) for w, a in self.blended]
        self.blended = [*old, (rate * share, atoms)]

    @rule()
    def through_files_and_pickles(self) -> None:
        blend = Summary.from_arrays(FIELDS, {n: a.copy() for n, a in self.blend.to_arrays().items()})
        assert_same(blend, self.blend, rtol=0, atol=0)
        self.blend = pickle.loads(pickle.dumps(blend))
        self.total = self.total.copy()

    @invariant()
    def total_is_the_fresh_sum(self) -> None:
        want = weighted_sum([(1.0, a) for a in self.atoms], self.ids, self.pairs)
        assert_same(self.total.value(), want)

    @invariant()
    def replay_commutes_with_addition(self) -> None:
        """Bringing each batch up to date and adding is editing the sum."""
        summed = weighted_sum([], self.ids, self.pairs)
        for b, atoms in enumerate(self.atoms):
            part = self.up_to_date(b)
            assert_same(part, atoms.summary(self.ids, self.pairs))
            summed = summed + part
        assert_same(summed, self.total.value())

    @invariant()
    def blend_is_the_weighted_sum(self) -> None:
        assert_same(self.blend, weighted_sum(self.blended, self.ids, self.pairs))


TestSummaryMachine = SummaryMachine.TestCase
TestSummaryMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


# -- a thousand laps ------------------------------------------------------------------------------------------
def test_a_thousand_laps_do_not_drift():
    """Replacing batches whose values differ by orders of magnitude; plain sums lose digits here."""
    rng = np.random.default_rng(0)
    ids, batches = list(range(6)), 2
    parts = [fresh_atoms(ids, b).summary(ids, []) for b in range(batches)]
    total, plain = RunningTotal(parts[0].zeros()), parts[0].zeros()
    for part in parts:
        total.add(part)
        plain = plain + part
    for lap in range(1000):
        for b in rng.permutation(batches):
            last = lap == 999
            new = fresh_atoms(ids, 10 * lap + b).summary(ids, []).scale(1.0 if last else 10.0 ** rng.integers(0, 9))
            total.subtract(parts[b])
            total.add(new)
            plain = plain - parts[b] + new
            parts[b] = new
    want = parts[0] + parts[1]
    got = total.value()
    for name in FIELDS:
        size = sum(np.abs(part[name]) for part in parts)
        assert (np.abs(got[name] - want[name]) <= 1e-12 * size).all(), name
    assert (np.abs(plain["S"] - want["S"]) > 1e-10 * sum(np.abs(p["S"]) for p in parts)).any()


def test_laps_with_merges_births_and_reordering_do_not_drift():
    rng = np.random.default_rng(1)
    ids = list(range(8))
    atoms = [fresh_atoms(ids, b) for b in range(3)]
    parts = [a.summary(ids, []) for a in atoms]
    total = RunningTotal(parts[0].zeros())
    for part in parts:
        total.add(part)
    for lap in range(200):
        pair = tuple(int(i) for i in rng.choice(ids, 2, replace=False))
        # a lap that tracks one pair, whose merge is then accepted; a newcomer keeps K
        total.track(pair_array([pair]))
        for b, part in enumerate(parts):
            new = fresh_atoms(ids, 3 * lap + b).summary(ids, [pair])
            total.subtract(part)
            total.add(new)
            parts[b] = new
        edits: list[Edit] = [Merge(*pair), InsertEmpty((100 + lap,))]
        ids = [i for i in ids if i != pair[1]] + [100 + lap]
        ids = [int(i) for i in rng.permutation(ids)]
        edits.append(Take(tuple(ids)))
        total.apply(edits)
        parts = [replay(p, edits) for p in parts]
    want, got = parts[0] + parts[1] + parts[2], total.value()
    for name in FIELDS:
        size = sum(np.abs(part[name]) for part in parts).max()
        assert np.abs(got[name] - want[name]).max() <= 1e-11 * size, name


FADES = [Fade(0.3), Merge(2, 0), Fade(0.7).then(Fade(0.9))]


@pytest.mark.parametrize("edits", [[Merge(0, 1)], [Unite(0, 1, 0.4)], FADES])
def test_nothing_is_left_of_sums_that_were_changed_and_then_left(edits):
    """What replaces the batches is far smaller than the last digits of what they were: the total has all its digits."""
    fields = {n: f for n, f in FIELDS.items() if f.merge == "sum"}
    parts = [fresh_atoms([0, 1, 2], b).summary([0, 1, 2], []) for b in range(3)]
    parts = [Summary(p.ids, fields, {n: 1e3 * p[n] for n in fields}) for p in parts]
    total = RunningTotal(parts[0].zeros())
    for part in parts:
        total.add(part)
    for edit in edits[:-1]:
        total.apply([edit])
    for fade in edits[-1:]:  # a fade that batches see as one was several when the total changed
        total.apply([Fade(0.7), Fade(0.9)] if isinstance(fade, Fade) else [fade])
    small = [replay(part, edits).scale(1e-18) for part in parts]
    for part, new in zip(parts, small, strict=True):
        total.subtract(edited(part, edits))
        total.add(new)
    for name in fields:
        size = sum(np.abs(new[name]) for new in small)
        assert (np.abs(total.value()[name] - (small[0] + small[1] + small[2])[name]) <= 1e-10 * size).all(), name


def test_many_edits_of_counts_of_words_copy_no_row(monkeypatch):
    """One by one, each edit copies the counts of all topics; together they have the same bits, and change no input."""
    rng, k, v = np.random.default_rng(0), 30, 50
    fields = {"N": Field(("cluster",)), "H": Field(("cluster",), "tracked"), "x": Field(("cluster", "word"))}

    def of(ids: list[int], size: float) -> Summary:
        n = len(ids)
        values = {"N": size * rng.random(n), "H": size * rng.random(n), "x": size * rng.random((n, v))}
        return Summary(np.array(ids), fields, values)

    parts = {f"t{j}": of([20 + j], 1.0) for j in range(5)}
    small = {name: of(part.ids.tolist(), 1e-17) for name, part in parts.items()}
    edits: list[Edit] = [Exchange(name, (j, 20 + j)) for j, name in enumerate(parts)]
    edits += [Unite(6, 7, 0.3), InsertEmpty((40, 41)), Unite(40, 8, None), Take((41, 40, 6, *range(9, 25)))]
    summary, rest = of(list(range(k)), 1.0), of(list(range(k)), 1e-17)
    before = [part["x"].copy() for part in (summary, rest, *parts.values())]
    one_by_one, total = summary, RunningTotal(summary, rest)
    totals = {name: RunningTotal(part, small[name]) for name, part in parts.items()}
    for edit in edits:
        one_by_one = replay(one_by_one, [edit], parts)
        total.apply([edit], totals)
    copied = []

    def counted(value: np.ndarray, index: np.ndarray, n_axes: int) -> np.ndarray:
        copied.append(value.size * (value.ndim == 2))
        return select(value, index, n_axes)

    monkeypatch.setattr("bnp_dask.core.summary.select", counted)
    together, both = replay(summary, edits, parts), RunningTotal(summary, rest)
    both.apply(edits, totals)
    assert sum(copied) == 0
    for want, got in ((one_by_one, together), (total.high, both.high), (total.low, both.low)):
        assert_same(got, want, rtol=0, atol=0)
        assert got["x"].dtype == np.float64
    for part, was in zip((summary, rest, *parts.values()), before, strict=True):
        np.testing.assert_array_equal(part["x"], was)


@pytest.mark.parametrize("width", [1, 3])
def test_edits_of_counts_of_words_in_any_order_are_those_one_by_one(width):
    """Also where nothing is left, and clusters come again after that."""
    fields = {"N": Field(("cluster",)), "H": Field(("cluster",), "tracked"), "x": Field(("cluster", "word"))}
    for seed in range(60):
        rng = np.random.default_rng(seed)

        def of(ids: list[int], size: float, rng: np.random.Generator = rng) -> Summary:
            shapes = {"N": (len(ids),), "H": (len(ids),), "x": (len(ids), width)}
            return Summary(np.array(ids, np.int64), fields, {n: size * rng.random(s) for n, s in shapes.items()})

        start, rest, edits, parts = of([0, 1, 2], 1.0), of([0, 1, 2], 1e-17), [], {}
        ids, new = [0, 1, 2], 3
        for kind in rng.choice(["insert", "take", "unite", "exchange"], 7).tolist():
            if kind == "insert":
                ids, new = [*ids, new], new + 1
                edits.append(InsertEmpty((ids[-1],)))
            elif kind == "take":
                ids = rng.permutation(ids)[: rng.integers(len(ids) + 1)].tolist()
                edits.append(Take(tuple(ids)))
            elif kind == "unite" and len(ids) > 1:
                keep, drop = rng.choice(ids, 2, replace=False).tolist()
                ids.remove(drop)
                edits.append(Unite(keep, drop, 0.3))
            elif kind == "exchange" and ids:
                ids, gone, new = [*ids[1:], new], ids[0], new + 1
                parts[f"t{new}"] = of([ids[-1]], 1.0)
                edits.append(Exchange(f"t{new}", (gone,)))
        one_by_one, total, both = start, RunningTotal(start, rest), RunningTotal(start, rest)
        totals = {name: RunningTotal(part) for name, part in parts.items()}
        for edit in edits:
            one_by_one = replay(one_by_one, [edit], parts)
            total.apply([edit], totals)
        both.apply(edits, totals)
        for got, want in ((replay(start, edits, parts), one_by_one), (both.high, total.high), (both.low, total.low)):
            assert_same(got, want, rtol=0, atol=0)
            assert got["x"].shape == want["x"].shape and got["x"].dtype == np.float64


# -- trials: the same atoms, assigned otherwise -----------------------------------------------------------------
ONE_AXIS = {n: f for n, f in FIELDS.items() if f.n_cluster_axes < 2}


def one_axis(summary: Summary) -> Summary:
    """Without the fields that cannot be exchanged."""
    return Summary(summary.ids, ONE_AXIS, {n: summary[n] for n in ONE_AXIS}, summary.pairs, dict(summary.pair_values))


@pytest.mark.parametrize("seed", range(20))
def test_exchange_in_stale_batches_commutes_with_addition(seed):
    """Some donors give their atoms to newcomers and to one that stays; then edits go on."""
    rng = np.random.default_rng(seed)
    ids = list(range(6))
    donors = [int(i) for i in rng.choice(ids, 3, replace=False)]
    receivers = [donors[0], 20, 21]
    batches = [fresh_atoms(ids, 100 * seed + b) for b in range(3)]
    pairs = [(0, 1), (3, 2)]
    edits: list[Edit] = [
        Exchange("trial", tuple(donors)),
        InsertEmpty((30,)),
        Take((21, 30, 20, *(i for i in ids if i not in donors[1:]))),
    ]
    total, trial, stale, parts, want = None, None, [], [], []
    for atoms in batches:
        given = np.sum([atoms.resp[i] for i in donors], axis=0)
        shares = rng.dirichlet(np.ones(3), len(atoms.x)).T * given
        moved = Atoms(dict(zip(receivers, shares, strict=True)), atoms.x)
        stale.append(one_axis(atoms.summary(ids, pairs)))
        parts.append(one_axis(moved.summary(receivers, [])))
        total = total or RunningTotal(stale[0].zeros())
        trial = trial or RunningTotal(parts[0].zeros())
        total.add(stale[-1])
        trial.add(parts[-1])
        after = {i: r for i, r in atoms.resp.items() if i not in donors} | moved.resp | {30: np.zeros(len(atoms.x))}
        final = Atoms({i: after[i] for i in edits[2].ids}, atoms.x)
        kept = [p for p in pairs if not set(p) & set(donors)]
        want.append(one_axis(final.summary(list(edits[2].ids), kept)))
    total.apply(edits, {"trial": trial})
    updated = [replay(s, edits, {"trial": p}) for s, p in zip(stale, parts, strict=True)]
    for got, right in zip(updated, want, strict=True):
        assert_same(got, right)
    assert_same(total.value(), want[0] + want[1] + want[2])
    assert total.value()["N"].sum() == pytest.approx(sum(len(b.x) for b in batches))


def test_an_exchange_may_shift_what_has_no_cluster_axis(summary):
    plain = one_axis(summary.without_pairs())
    part = plain.take([4])
    part = replace(part, values={**part.values, "n": np.array(2.5)})
    found = replay(plain, [Exchange("t", (4, 7), shifts=True)], {"t": part})
    assert found["n"] == plain["n"] + 2.5 and found.ids.tolist() == [4, 9]
    assert_array_equal(found["base"], plain["base"] + part["base"])
    assert replay(plain, [Exchange("t", (4, 7))], {"t": part})["n"] == plain["n"]


def test_exchange_errors(summary):
    plain = one_axis(summary.without_pairs())
    with pytest.raises(SummaryError, match="trial t was not accumulated"):
        replay(plain, [Exchange("t", (4,))])
    with pytest.raises(SummaryError, match="no cluster 5"):
        plain.exchange([5], plain.take([4]))
    with pytest.raises(SummaryError, match=r"clusters \[7\] are in both"):
        plain.exchange([4], plain.take([7]))
    with pytest.raises(SummaryError, match="two cluster axes"):
        summary.exchange([4], summary.take([4]))


def test_pairs_tracked_from_the_middle_of_a_run(summary):
    """Batches of the last lap leave without pairs, batches of this lap enter with them."""
    old, new = fresh_atoms(IDS, 1), fresh_atoms(IDS, 2)
    total = RunningTotal(old.summary(IDS, [(7, 9)]))
    total.apply([Forget()])
    total.track(summary.pairs)
    total.subtract(old.summary(IDS, [(7, 9)]))
    total.add(new.summary(IDS, [(4, 7), (9, 4)]))
    assert_same(total.value(), new.summary(IDS, [(4, 7), (9, 4)]))
    assert_same(replay(summary, [Forget()]), summary.without_pairs(), rtol=0, atol=0)
    of = (int(summary.ids[0]),)
    assert_same(replay(summary, [Forget(of)]), summary.without_pairs_of(of), rtol=0, atol=0)


# -- one verb at a time ---------------------------------------------------------------------------------------
IDS = [4, 7, 9]


@pytest.fixture
def summary() -> Summary:
    return fresh_atoms(IDS, 0).summary(IDS, [(4, 7), (9, 4)])


def test_one_value_of_a_total_is_that_of_all_of_it(summary):
    """Both halves of a sum count: of the larger alone, a third of the least digit would be missing."""
    total = RunningTotal(summary)
    for _ in range(50):
        total.add(summary.scale(1.0 / 3.0 * 1e-15))
    for name, value in total.value().values.items():
        np.testing.assert_array_equal(total.value_of(name), value)
    assert not np.array_equal(total.value()["S"], total.high["S"])


def test_sizes_and_names(summary):
    assert (summary.n_clusters, summary.n_pairs) == (3, 2)
    assert summary.nbytes == 8 * (1 + 2 + 3 + 6 + 9 + 18 + 3 + 2)
    assert "S" in summary
    assert "missing" not in summary
    assert summary.position(9) == 2
    assert repr(summary).startswith("Summary(K=3, M=2, n(), base(2,), N(3,)")


def test_no_verb_changes_its_operands(summary):
    before = {n: a.copy() for n, a in summary.to_arrays().items()}
    results = [
        summary + summary,
        summary - summary,
        summary.scale(3.0),
        summary.zeros(),
        summary.insert_empty([1]),
        summary.take([9, 4]),
        summary.take(IDS),
        summary.merge(4, 7),
        summary.without_pairs().insert_empty([1]),
    ]
    total = RunningTotal(summary)
    total.add(summary)
    total.apply([Take((9, 4, 7))])
    total.subtract(summary.take([9, 4, 7]))
    for result in results[:-1]:
        for value in result.values.values():
            value[...] = -1.0
    for name, array in summary.to_arrays().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_a_merge_changes_nothing_but_its_clusters(summary):
    merged = summary.merge(7, 4)
    assert merged.ids.tolist() == [7, 9]
    assert merged["H"].tolist() == [summary.pair_values["H"][0], summary["H"][2]]
    assert merged["T"][0, 0] == pytest.approx(summary["T"][:2, :2].sum(), rel=1e-15)
    assert merged["n"] == summary["n"]
    assert merged.n_pairs == 0  # (9, 4) names a cluster that is no more


def test_totals_accept_any_memory_layout(summary):
    values = {n: np.asarray(v, order="F") for n, v in summary.values.items()}
    other = Summary(summary.ids, FIELDS, values, summary.pairs, summary.pair_values)
    total = RunningTotal(other)
    total.apply([Take((9, 7, 4))])
    total.add(other.take([9, 7, 4]))
    assert_same(total.value(), summary.take([9, 7, 4]).scale(2.0))


def test_a_copied_total_is_independent(summary):
    total = RunningTotal(summary)
    total.copy().add(summary)
    assert_same(total.value(), summary, rtol=0, atol=0)


def test_scalars_stay_arrays_and_are_counted(summary):
    twice = summary + summary
    assert isinstance(twice["n"], np.ndarray)
    total = RunningTotal(twice)
    total.add(summary)
    assert total.value()["n"] == 12.0


def test_pickled_summaries_need_no_cloudpickle(summary):
    assert_same(pickle.loads(pickle.dumps(summary.without_pairs())), summary.without_pairs(), rtol=0, atol=0)


def test_edits_are_data():
    assert Merge(1, 2) == Merge(1, 2)
    assert len({Take((1, 2)), Take((1, 2)), InsertEmpty((1, 2))}) == 2


# -- errors ---------------------------------------------------------------------------------------------------
def test_field_errors():
    with pytest.raises(SummaryError, match="cluster axes must come first"):
        Field(("feature", "cluster"))
    with pytest.raises(SummaryError, match="cluster axes must come first"):
        Field(("cluster", "cluster", "cluster"))
    with pytest.raises(SummaryError, match="exactly one cluster axis"):
        Field(("cluster", "cluster"), merge="tracked")
    with pytest.raises(SummaryError, match="merge='max'"):
        Field(("cluster",), merge="max")


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda s: s.merge(4, 4), "cannot absorb itself"),
        (lambda s: s.merge(7, 9), r"pair \(7, 9\) was not tracked.*local step"),
        (lambda s: s.merge(4, 5), r"no cluster 5; clusters are \[4, 7, 9\]"),
        (lambda s: s.take([4, 4]), "name a cluster twice"),
        (lambda s: s.take([4, 99]), r"no cluster 99; clusters are \[4, 7, 9\]"),
        (lambda s: s.take([-1]), "no cluster -1"),
        (lambda s: s.position(8), "no cluster 8"),
        (lambda s: s.insert_empty([4]), "not all new"),
        (lambda s: s.insert_empty([1, 1]), "not all new"),
        (lambda s: s + s.take([7, 4, 9]), r"different clusters: \[4, 7, 9\] and \[7, 4, 9\].*replay"),
        (lambda s: s - s.without_pairs(), "different pairs; drop them with without_pairs"),
        (lambda s: RunningTotal(s).add(s.take([4, 7])), "different clusters"),
    ],
)
def test_verbs_without_meaning(summary, verb, message):
    with pytest.raises(SummaryError, match=message):
        verb(summary)


def test_summaries_of_other_models_do_not_add(summary):
    bare = summary.without_pairs()
    other = Summary(bare.ids, {"N": FIELDS["N"]}, {"N": bare["N"]})
    with pytest.raises(SummaryError, match=r"different models: \['H', 'N'"):
        bare + other


def test_arrays_of_other_models_are_refused(summary):
    arrays = summary.to_arrays()
    with pytest.raises(SummaryError, match=r"arrays \['value.S'\] are missing"):
        Summary.from_arrays(FIELDS, {n: a for n, a in arrays.items() if n != "value.S"})
    with pytest.raises(SummaryError, match=r"arrays \['pair.H'\] are missing"):
        Summary.from_arrays(FIELDS, {n: a for n, a in arrays.items() if n != "pair.H"})
    with pytest.raises(SummaryError, match=r"value.T has shape \(3, 2\); needs .* with .'cluster': 3"):
        Summary.from_arrays(FIELDS, {**arrays, "value.T": np.zeros((3, 2))})


def test_no_clusters_is_a_summary_too():
    none = weighted_sum([], [], [])
    grown = none.insert_empty([5, 6])
    assert grown["U"].shape == (2, 2, D)
    assert grown.take([])["S"].shape == (0, D)
    assert_same(replay(none, [InsertEmpty((5,)), Take(())]), none)


def test_links_of_a_trial_leave_a_total_as_they_came():
    def part(seed):
        rng = np.random.default_rng(seed)
        fields = {"N": Field(("cluster",)), "M": Field(("cluster", "cluster"))}
        links = Links(np.array([3, 5, 9]), np.array([7]), {"M": rng.normal(size=(2, 2, 3))})
        return Summary(np.array([1, 2]), fields, {"N": rng.normal(size=2), "M": rng.normal(size=(2, 2))}, links=links)

    one, two = part(0), part(1)
    total = RunningTotal(one.scale(0.0))
    total.add(one)
    total.add(two)
    total.subtract(one)
    np.testing.assert_allclose(total.value().links.values["M"], two.links.values["M"], atol=1e-15)
    np.testing.assert_allclose(total.value()["M"], two["M"], atol=1e-15)
    np.testing.assert_allclose((one + two - one).links.values["M"], two.links.values["M"], atol=1e-15)
    change = difference(two, one)
    np.testing.assert_allclose(change.value().links.values["M"], two.links.values["M"] - one.links.values["M"])


def test_links_of_a_cluster_that_is_absorbed_are_those_of_the_one_that_absorbs_it():
    rng = np.random.default_rng(0)
    own, other = rng.normal(size=(2, 2, 3)), rng.normal(size=(2, 1, 2))
    found = Links(np.array([3, 5, 9]), np.array([7]), {"M": own, "M@t": other}).merge(9, 3)
    np.testing.assert_array_equal(found.rest, [5, 9])
    np.testing.assert_array_equal(found.values["M"], np.stack([own[:, :, 1], own[:, :, 2] + own[:, :, 0]], axis=2))
    np.testing.assert_array_equal(found.values["M@t"], other)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_steps_between_clusters_of_two_trials_are_those_of_a_sequence_that_both_relabel(names):
    fields = {"M": Field(("cluster", "cluster"))}
    rng = np.random.default_rng(0)
    z = rng.choice([3, 5, 7, 8], 60)
    shared = {"a": (z == 5, np.array([5, 12])), "b": ((z == 3) | (z == 8), np.array([20, 8, 21]))}
    donors = {"a": (5,), "b": (3, 8)}
    relabelled = {name: np.where(some, rng.choice(new, 60), z) for name, (some, new) in shared.items()}
    both = np.where(shared["a"][0], relabelled["a"], relabelled["b"])

    def steps(first, second, tails, heads):
        """Steps from the clusters ``tails`` of one labelling to the clusters ``heads`` of another."""
        return np.array([[np.sum((first[:-1] == i) & (second[1:] == j)) for j in heads] for i in tails], float)

    def part(name, other):
        own, labels = shared[name][1], relabelled[name]
        rest, new = np.setdiff1d([3, 5, 7, 8], donors[name]), shared[other][1]

        def links(labels, other_labels, clusters):
            return np.stack([steps(labels, other_labels, own, clusters), steps(other_labels, labels, clusters, own).T])

        values = {"M": links(labels, np.where(shared[name][0], -1, z), rest)}
        values[f"M@{other}"] = links(labels, np.where(shared[other][0], relabelled[other], -1), new)
        found = Links(rest, np.array(donors[name]), values)
        return Summary(own, fields, {"M": steps(labels, labels, own, own)}, links=found)

    ids = np.array([3, 5, 7, 8])
    parts = {"a": part("a", "b"), "b": part("b", "a")}
    total = replay(Summary(ids, fields, {"M": steps(z, z, ids, ids)}), [Exchange(n, donors[n]) for n in names], parts)
    assert sorted(total.ids.tolist()) == [5, 7, 8, 12, 20, 21]
    assert_array_equal(total["M"], steps(both, both, total.ids, total.ids))


def test_counts_of_groups_give_way_to_those_of_a_trial():
    ours = GroupStates(np.array([0, 2, 3]), np.array([4, 7, 7]), np.array([1.0, 2.0, 5.0]))
    part = GroupStates(np.array([0, 1, 3]), np.array([9, 4, 9]), np.array([2.0, 3.0, 2.0]))
    found = ours.exchange((7,), part)
    np.testing.assert_array_equal(found.offsets, [0, 2, 4])
    np.testing.assert_array_equal(found.cluster, [4, 9, 4, 9])
    np.testing.assert_array_equal(found.count, [1.0, 2.0, 3.0, 2.0])


def test_counts_of_united_clusters_add_up_inside_each_group():
    """Cluster 7 ends one group and begins the next: their counts stay apart."""
    ours = GroupStates(np.array([0, 2, 4, 5]), np.array([4, 7, 4, 7, 9]), np.array([1.0, 2.0, 5.0, 3.0, 6.0]))
    found = ours.merge(7, 4)
    np.testing.assert_array_equal(found.offsets, [0, 1, 2, 3])
    np.testing.assert_array_equal(found.cluster, [7, 7, 9])
    np.testing.assert_array_equal(found.count, [3.0, 8.0, 6.0])


def test_links_come_back_from_arrays_though_they_are_zero():
    links = Links(np.array([3, 5]), np.array([7]), {"M": np.zeros((2, 1, 2)), "S": np.ones((2, 1))})
    back = Links.from_arrays(links.to_arrays())
    assert back is not None and set(back.values) == {"M", "S"}
    assert Links.from_arrays({"N": np.ones(2)}) is None


def of_words(counts, ids, **more):
    """Statistics with counts of words, a value of its own length, and a value of each cluster."""
    fields = {
        "N": Field(("cluster",)),
        "W": Field(("cluster", "word")),
        "V": Field(("word",)),
        "H": Field(("cluster",), merge="tracked"),
    }
    values = {"N": counts.sum(axis=1), "W": counts, "V": counts.sum(axis=0), "H": counts.max(axis=1)}
    return Summary(np.array(ids), fields, values, **more)


def test_an_axis_grows_by_zeros_and_does_not_shrink():
    counts = np.arange(6.0).reshape(2, 3)
    held = of_words(counts, [4, 9]).with_pairs(np.array([[4, 9]]))
    wide = Widen("word", 5).apply(held, {})
    assert_array_equal(wide["W"], np.pad(counts, ((0, 0), (0, 2))))
    assert_array_equal(wide["V"], [3.0, 5.0, 7.0, 0.0, 0.0])
    assert wide["N"] is held["N"] and wide.pair_values["H"] is held.pair_values["H"]
    assert_same(wide.widen("word", 5), wide, rtol=0, atol=0)
    assert_same(wide.widen("feature", 1), wide, rtol=0, atol=0)
    with pytest.raises(SummaryError, match=r"W of shape \(2, 3\): word cannot shrink to 2"):
        held.widen("word", 2)
    total = RunningTotal(held)
    total.apply([Widen("word", 5)])
    assert_same(total.value(), wide, rtol=0, atol=0)


@pytest.mark.parametrize("share", [None, 0.25, 0.9])
def test_a_union_whose_entropy_was_not_tracked_has_a_lower_bound_of_it(share):
    """``-a log a - b log b + a log share + b log(1 - share)`` of each atom, or 0."""
    atoms = fresh_atoms([3, 5, 8], 1, 6)
    own, whole = atoms.summary([3, 5, 8], [(5, 8)]), atoms.edited(Merge(8, 3)).summary([5, 8], [])
    found = Unite(8, 3, share).apply(own, {})
    a, b = atoms.resp[8].sum(), atoms.resp[3].sum()
    bound = 0.0 if share is None else own["H"][2] + own["H"][0] + a * np.log(share) + b * np.log(1.0 - share)
    assert found.n_pairs == 0 and found.ids.tolist() == [5, 8]
    np.testing.assert_allclose(found["H"], [own["H"][1], bound], rtol=1e-12)
    assert found["H"][1] <= whole["H"][1] + 1e-12
    for name in ("n", "base", "N", "S", "T", "U"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-10, atol=1e-12)
    total = RunningTotal(own)
    total.apply([Unite(8, 3, share)])
    assert_same(total.value(), found, rtol=1e-12, atol=1e-12)
    alone = RunningTotal(own)
    alone.subtract(edited(own, []))
    assert all(not value.any() for value in alone.value().values.values())


def test_what_is_looked_up_and_what_is_not_there(summary):
    assert summary.position(int(summary.ids[-1])) == summary.n_clusters - 1
    wanted = summary.ids[::-1]
    assert_array_equal(summary.positions(wanted), np.arange(summary.n_clusters)[::-1])
    assert_array_equal(summary.positions(np.zeros(0, np.int64)), [])
    for unknown in (-5, int(summary.ids.max()) + 1):
        with pytest.raises(SummaryError, match=f"no cluster {unknown}; clusters are"):
            summary.position(unknown)
        with pytest.raises(SummaryError, match=f"no cluster {unknown}; clusters are"):
            summary.positions(np.array([summary.ids[0], unknown]))
    assert "N" in summary and "other" not in summary and f"K={summary.n_clusters}" in repr(summary)


def test_time_that_passes_in_steps_is_time_that_passed_at_once():
    steps = [Fade(0.9), Fade(1.0 / 3.0), Fade(0.7)]
    once = steps[0].then(steps[1]).then(steps[2])
    exact = Fraction(0.9) * Fraction(1.0 / 3.0) * Fraction(0.7)
    assert once.factor == 0.9 * (1.0 / 3.0) * 0.7
    assert abs(Fraction(once.factor) + Fraction(once.rest) - exact) < Fraction(1, 10**31)
    held = of_words(np.arange(6.0).reshape(2, 3), [4, 9])
    assert_same(once.apply(held, {}), held.scale(once.factor), rtol=0, atol=0)
    total = RunningTotal(held)
    total.apply([once])
    for name in ("N", "W", "V"):
        kept = [Fraction(h) + Fraction(low) for h, low in zip(total.high[name].flat, total.low[name].flat, strict=True)]
        for value, number in zip(kept, held[name].flat, strict=True):
            assert abs(value - exact * Fraction(number)) <= Fraction(1, 10**30)


def test_pairs_of_some_clusters_are_forgotten_and_others_stay():
    pairs = [(3, 5), (5, 8), (3, 8)]
    own = fresh_atoms([3, 5, 8], 2, 5).summary([3, 5, 8], pairs)
    assert_array_equal(own.pairs_of([3]), [True, False, True])
    assert_array_equal(own.pairs_of([]), [False] * 3)
    left = Forget((3,)).apply(own, {})
    assert left.pairs.tolist() == [[5, 8]] and left.pair_values["H"].tolist() == own.pair_values["H"][1:2].tolist()
    assert Forget().apply(own, {}).n_pairs == 0 and own.without_pairs().without_pairs().pair_values == {}
    again = left.with_pairs(np.array([[3, 5]]))
    assert again.pair_values["H"].tolist() == [0.0] and set(again.pair_values) == {"H"}


def test_states_of_groups_come_back_and_follow_changes_of_clusters():
    states = GroupStates(np.array([0, 2, 2, 5]), np.array([7, 9, 7, 2**40, 9]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    for own in (states, states.groups(0, 1), states.groups(1, 2)):
        again = GroupStates.from_arrays(own.to_arrays())
        for name in ("offsets", "cluster", "count"):
            assert_array_equal(getattr(again, name), getattr(own, name))
        assert again.cluster.dtype == np.int64 and own.nbytes == again.nbytes
    assert states.groups(0, 1).to_arrays()["cluster"].dtype == np.int32
    assert states.n_groups == 3 and states.groups(1, 3).offsets.tolist() == [0, 0, 3]
    both = concatenate_states([states.groups(0, 2), states.groups(2, 3)])
    assert (both.offsets.tolist(), both.cluster.tolist()) == (states.offsets.tolist(), states.cluster.tolist())
    placed = states.placed(np.array([9, 3, 7]))
    assert placed.cluster.tolist() == [2, 0, 2, -1, 0]
    assert placed.groups(0, 1).named(np.array([9, 3, 7])).cluster.tolist() == [7, 9]
    assert states.placed(np.zeros(0, np.int64)).cluster.tolist() == [-1] * 5
    tiny = replace(states, count=np.array([1e-40, 1, 1, 1, 1], np.float32)).groups(0, 1).named(np.arange(10))
    assert tiny.count.tolist() == [2.0**-100, 1.0]
    merged = replay_states(states, [Merge(9, 7), InsertEmpty((1,)), Take((9,))], {})
    assert (merged.offsets.tolist(), merged.cluster.tolist()) == ([0, 1, 1, 3], [9, 9, 2**40])
    assert merged.count.tolist() == [3.0, 8.0, 4.0]
    part = GroupStates(np.array([0, 1, 2, 2]), np.array([1, 8]), np.array([0.5, 0.25]))
    edits = [Exchange("a", (7,)), Exchange("not here", (9,))]
    given = replay_states(states, edits, {"a": part})
    assert (given.offsets.tolist(), given.cluster.tolist()) == ([0, 2, 3, 5], [1, 9, 8, 9, 2**40])
    assert given.count.tolist() == [0.5, 2.0, 0.25, 5.0, 4.0]
    with pytest.raises(SummaryError, match="states of 1 groups cannot be exchanged with states of 3"):
        states.exchange((7,), part.groups(0, 1))


def test_a_difference_of_counts_of_words_leaves_a_total_as_it_came():
    """Mostly zero counts are held by themselves, and what is undone is undone to the bit."""
    rng = np.random.default_rng(5)
    old, new = (of_words(rng.poisson(0.05, (3, 40)) / 3.0, [4, 9, 2]) for _ in range(2))
    change = difference(new, old)
    assert set(change.sparse) == {"W"} and change.nbytes > 0
    for name in ("N", "W", "V", "H"):
        np.testing.assert_allclose(change.value_of(name), new[name] - old[name], atol=1e-15)
        assert_array_equal(change.value_of(name), change.value()[name])
    with pytest.raises(SummaryError, match="a difference is not edited"):
        change.apply([Forget()])
    total = RunningTotal(of_words(rng.gamma(1.0, size=(3, 40)), [4, 9, 2]))
    before, want = total.value(), total.value() + new - old
    undo = total.before(change)
    total.join(change)
    assert_same(total.value(), want, rtol=1e-14, atol=1e-14)
    twice = total.copy()
    twice.join(change, -1.0)
    assert_same(twice.value(), before, rtol=0, atol=1e-15)
    undo()
    assert_same(total.value(), before, rtol=0, atol=0)
    grown = change.insert_empty(np.array([11]))
    assert grown.value()["W"].shape == (4, 40) and not grown.value()["W"][3].any()
    other = difference(new)
    other.join(change)
    np.testing.assert_allclose(other.value()["W"], 2 * new["W"] - old["W"], atol=1e-15)
    other.join(RunningTotal(new), -1.0)
    np.testing.assert_allclose(other.value()["W"], new["W"] - old["W"], atol=1e-15)
    undo = other.before()
    kept = other.value()
    other.add(new)
    undo()
    assert_same(other.value(), kept, rtol=0, atol=0)


def with_floor(ids, between, losses, pairs, links=None):
    fields = {"T": FIELDS["T"], "N": FIELDS["N"], "F": Field((), merge="floor", links="T")}
    values = {"T": between, "N": np.ones(len(ids)), "F": np.array(10.0)}
    return Summary(np.array(ids), fields, values, pair_array(pairs), {"F": np.array(losses)}, links)


def test_a_merge_charges_other_pairs_for_the_steps_between_them():
    """By at most log 2 for each step between the pair and the clusters that become one; only such steps count."""
    between = np.random.default_rng(7).gamma(1.0, size=(5, 5))
    held = with_floor([3, 5, 8, 9, 4], between, [0.5, 0.25, 1.0, 2.0], [(3, 8), (5, 9), (9, 4), (8, 5)])
    merged = held.merge(8, 3)
    assert merged.pairs.tolist() == [[5, 9], [9, 4]] and merged["F"] == 9.5
    united, at = [0, 2], {3: 0, 5: 1, 8: 2, 9: 3, 4: 4}
    for (a, b), before, after in zip([(5, 9), (9, 4)], (0.25, 1.0), merged.pair_values["F"], strict=True):
        pair = [at[a], at[b]]
        steps = between[np.ix_(pair, united)].sum() + between[np.ix_(united, pair)].sum()
        np.testing.assert_allclose(after, before + np.log(2.0) * steps, rtol=1e-12)
    assert held.pair_values["F"].tolist() == [0.5, 0.25, 1.0, 2.0]
    with pytest.raises(SummaryError, match=r"pair \(3, 9\) was not tracked"):
        held.merge(3, 9)


def test_trials_charge_pairs_and_replace_steps():
    """Three clusters become two: a pair of others loses at most log 2 for each of their steps with the three."""
    between = np.random.default_rng(7).gamma(1.0, size=(5, 5))
    held = with_floor([3, 5, 8, 9, 4], between, [0.25, 1.0], [(9, 4), (8, 5)])
    rest, donors = np.array([4, 9]), np.array([3, 5, 8])
    values = np.random.default_rng(8).gamma(1.0, size=(2, 2, 2))
    inner = np.random.default_rng(9).gamma(1.0, size=(2, 2))
    part = with_floor([5, 11], inner, [], [], Links(rest, donors, {"T": values}))
    found = held.exchange([3, 5, 8], part)
    assert found.ids.tolist() == [5, 9, 4, 11] and found.pairs.tolist() == [[9, 4]] and found["F"] == 20.0
    steps = between[np.ix_([3, 4], [0, 1, 2])].sum() + between[np.ix_([0, 1, 2], [3, 4])].sum()
    np.testing.assert_allclose(found.pair_values["F"], [0.25 + np.log(2.0) * steps], rtol=1e-12)
    at = {5: 0, 11: 1}
    for i, a in enumerate(found.ids.tolist()):
        for j, b in enumerate(found.ids.tolist()):
            if a in at and b in at:
                want = inner[at[a], at[b]]
            elif a in at or b in at:
                want = values[0, at[a], int(b == 9)] if a in at else values[1, at[b], int(a == 9)]
            else:
                want = between[[3, 5, 8, 9, 4].index(a), [3, 5, 8, 9, 4].index(b)]
            assert found["T"][i, j] == want
    other = with_floor([5, 11], inner, [], [], Links(np.array([4, 3]), donors, {"T": values}))
    with pytest.raises(SummaryError, match="other clusters were shared out since"):
        held.exchange([3, 5, 8], other)
    with pytest.raises(SummaryError, match="cannot be exchanged without their links"):
        held.exchange([3, 5, 8], replace(part, links=None))
    with pytest.raises(SummaryError, match=r"clusters \[9\] are in both and give nothing away"):
        held.exchange([3, 5, 8], replace(part, ids=np.array([5, 9])))


@pytest.mark.parametrize(
    ("dims", "more", "words"),
    [
        ((), {"merge": "mean"}, "merge='mean': needs"),
        (("feature", "cluster"), {}, "cluster axes must come first"),
        (("cluster", "feature", "cluster"), {}, "cluster axes must come first"),
        ((), {"merge": "tracked"}, "exactly one cluster axis"),
        (("cluster", "cluster"), {"merge": "tracked"}, "exactly one cluster axis"),
        ((), {"merge": "floor"}, "a floor field has no axes and names its links"),
        ((), {"links": "T"}, "others have none"),
        (("cluster",), {"merge": "floor", "links": "T"}, "a floor field has no axes"),
    ],
)
def test_fields_that_have_no_meaning_are_refused(dims, more, words):
    with pytest.raises(SummaryError, match=words):
        Field(dims, **more)


def test_fields_count_their_cluster_axes_and_know_whether_unions_are_tracked():
    counts = [Field(dims).n_cluster_axes for dims in ((), ("feature",), ("cluster",), ("cluster", "cluster", "word"))]
    assert counts == [0, 0, 1, 2]
    kinds = (Field(), Field(("cluster",), merge="tracked"), Field((), merge="floor", links="T"))
    assert [own.has_pairs for own in kinds] == [False, True, True]
