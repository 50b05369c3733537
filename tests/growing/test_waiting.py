"""What waits while a run grows changes with its totals: trials, refined deletes, young and dormant clusters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Fade, Forget, RunningTotal
from bnp_dask.inference import state_from_saved, state_to_arrays, state_to_json
from bnp_dask.inference.chains import Chain, Pins, Sampler
from bnp_dask.inference.chains import Sweep as ChainSweep
from bnp_dask.inference.checkpoint import checksums_of, require_sums
from bnp_dask.inference.state import Loss, Sealed
from bnp_dask.inference.variational import arrivals
from bnp_dask.inference.variational.arrivals import Round
from bnp_dask.inference.variational.growing import GROWN, MOST, WORTH, fade, lay_away, widen
from bnp_dask.inference.variational.lineage import Lineage
from bnp_dask.moves.base import Gather, Plan, record
from bnp_dask.moves.memory import Basis, Rejected, Sweep
from bnp_dask.store import DamagedError, Part
from bnp_dask.structure.base import Trial
from tests.batches import Batches
from tests.growing.test_names import counts
from tests.schedules.parts import start, work_on

MODEL = bnp.Model(bnp.DPMixture(2.0), bnp.Multinomial(0.1))
COUNTS = np.array([100.0, 3.0, 50.0])


@pytest.fixture
def state():
    """A state of three clusters of documents of six words in four batches; a trial and a refined delete wait."""
    rng = np.random.default_rng(0)
    batches = [Batch(sparse.csr_array(rng.integers(0, 4, (12, 6)).astype(float)), name=f"batch {b}") for b in range(4)]
    work = work_on(MODEL, Batches(batches))
    state = start(work, [rng.dirichlet(np.ones(3), size=12) for _ in batches])
    state.total = RunningTotal(state.posterior.summary)
    state.visits[:] = 0
    state.settle()
    part = state.total.value().take([1, 2])
    state.memory.sweeps = {1: Sweep((2,), part, -1.0, 0.5, 1)}
    state.memory.dormant = {9: part.take([2])}
    state.memory.young = {2: 0.8}
    state.trials = {"a trial": RunningTotal(part)}
    state.plan = replace(state.plan, trials=(Trial("a trial", (1,), state.model.global_step(part)),))
    state.pending = {0: []}
    return state


def held(state):
    """Statistics of all that is kept, by name."""
    found = {"total": state.total.value(), "posterior": state.posterior.summary}
    found |= {"trial": state.trials["a trial"].value(), "sweep": state.memory.sweeps[1].part}
    return found


def test_all_that_waits_fades_with_the_totals_and_what_is_dormant_does_not(state):
    before, dormant, elbo = held(state), state.memory.dormant[9]["N"].copy(), state.elbo
    row = fade(state, 0.25)
    for name, summary in held(state).items():
        for key, value in summary.values.items():
            np.testing.assert_allclose(value, 0.25 * before[name][key], rtol=1e-14, err_msg=f"{name} {key}")
    np.testing.assert_array_equal(state.memory.dormant[9]["N"], dormant)
    assert state.memory.young == {2: 0.2} and state.weights.tolist() == [0.25] * 4
    assert (row["action"], row["faded"], row["step"], row["n_batches"], row["gain"]) == ("aged", 0.25, 1, 0, None)
    assert row["elbo"] == state.elbo != elbo
    fade(state, 0.5)
    assert state.weights.tolist() == [0.125] * 4 and state.step == 2


def test_fades_in_a_row_are_one_change_until_a_batch_has_seen_the_first(state):
    fade(state, 0.5)
    fade(state, 0.5)
    assert state.edits == [Fade(0.25)]
    state.seen[2] = 1
    fade(state, 0.5)
    assert state.edits == [Fade(0.25), Fade(0.5)]
    state.visits[2] = -2  # sealed: nothing of it is kept by itself
    fade(state, 0.5)
    assert state.edits == [Fade(0.25), Fade(0.25)]


def test_the_sum_of_sealed_batches_fades_once(state):
    own = state.total.value()
    state.edits.append(Forget())
    state.sealed = Sealed(RunningTotal(own), 0)
    for count in (1, 2):
        fade(state, 0.5)
        assert state.sealed.seen == len(state.edits) == 2
        np.testing.assert_allclose(state.sealed.total.value()["N"], own["N"] * 0.5**count, rtol=1e-14)


def test_all_that_waits_gets_the_columns_of_new_words(state):
    before, young = held(state), dict(state.memory.young)
    wide = replace(MODEL, observation=bnp.Multinomial(0.1)).with_prior(
        bnp.core.survey.survey_batch(Batch(sparse.csr_array(np.ones((3, 8))), name="wider"))
    )
    row = widen(state, wide, 8)
    padded = {name: np.pad(summary["x"], ((0, 0), (0, 2))) for name, summary in before.items()}
    for name, summary in held(state).items():
        np.testing.assert_allclose(summary["x"], padded[name], rtol=1e-14)
        np.testing.assert_array_equal(summary["N"], before[name]["N"])
    assert state.memory.dormant[9]["x"].shape == (1, 8) and state.memory.young == young
    (trial,) = state.plan.trials
    assert (trial.name, trial.donors) == ("a trial", (1,))
    np.testing.assert_allclose(trial.beliefs.summary["x"], padded["trial"], rtol=1e-14)
    assert trial.beliefs.observation.lam.shape == (2, 8)
    assert state.pending == {} and state.model == wide
    assert (row["action"], row["words"], row["step"], row["n_batches"], row["gain"]) == ("widened", 2, 1, 0, None)
    assert row["elbo"] == state.elbo


def alike(one, other, place="state"):
    """Everything of two values is the same to the bit, fields of private names included."""
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, place
        np.testing.assert_array_equal(one, other, err_msg=place)
    elif sparse.issparse(one):
        alike(one.toarray(), other.toarray(), place)
    elif isinstance(one, RunningTotal):
        alike((one.high, one.low), (other.high, other.low), place)
    elif is_dataclass(one):
        assert type(one) is type(other), place
        for field in fields(one):
            alike(getattr(one, field.name), getattr(other, field.name), f"{place}.{field.name}")
    elif isinstance(one, Mapping):
        assert list(one) == list(other), place
        for key in one:
            alike(one[key], other[key], f"{place}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for i, pair in enumerate(zip(one, other, strict=True)):
            alike(*pair, f"{place}[{i}]")
    else:
        assert one == other or callable(one), place


def test_a_checkpoint_brings_back_all_that_waits(state):
    parts = [state.total.value().take([i]) for i in (0, 1, 2)]
    state.pending = {0: (Basis(parts[0], parts[1]), Basis(parts[2], parts[1])), 2: ()}
    state.memory.rejected = {(0, 1): Rejected(parts[1], -2.0), (2,): Rejected(parts[2], -1.0)}
    state.memory.failures = {("merge", (0, 2)): (3.0, 4.0, 2.0)}
    state.memory.grows = True
    state.gathered.add(1, [Batch(sparse.csr_array(np.arange(12.0).reshape(2, 6)), np.array([1.0, 0.5]), "gathered")])
    state.plan = replace(
        state.plan,
        pairs=np.array([[0, 2]]),
        given_up=(record("merge", (0, 2), (), None, False, "cut off"),),
        gather=Gather((1, 2), (7, 9)),
    )
    state.partial, state.sealed = RunningTotal(parts[0]), Sealed(RunningTotal(parts[1]), 1)
    state.in_flight = [(parts[0], 0), (parts[1], 1), (parts[0], 1)]
    state.lost = {3: Loss("torn", 2, 9)}
    state.edits = [Fade(0.5), Exchange("a trial", (1,)), Forget((2,))]
    state.lap, state.position, state.step, state.calm, state.calm_laps, state.void = 3, 1, 11, True, 0.25, True
    state.lap_elbo, state.lap_counts, state.weights = -1.5, COUNTS, np.array([1.0, 0.5, 0.25, 0.125])
    state.sampler = Sampler(
        [
            Chain(parts[0], None, 7),
            Chain(
                state.total.value(), Pins(np.array([0.5, 0.25, np.inf]), np.arange(3), np.array([4, 5, -1])), 9, -12.5
            ),
            Chain(
                parts[1], Pins.none(1), 8, -3.0, ChainSweep(RunningTotal(parts[2]), Pins.none(2), np.array([0, -1, 2]))
            ),
        ],
        [(2, Part("draws-2.npz", 10, 5)), (4, Part("draws-4.npz", 11, 6))],
    )
    numbers = json.loads(json.dumps(state_to_json(state)))
    again = state_from_saved(state.model, numbers, {k: np.array(v) for k, v in state_to_arrays(state).items()})
    for field in fields(state):
        one, other = getattr(state, field.name), getattr(again, field.name)
        if field.name == "gathered":  # the name of the batch says where it lies
            one, other = (replace(own.pieces[1][0], name="") for own in (one, other))
        alike(one, other, field.name)


# -- rounds -------------------------------------------------------------------------------------------------------
def test_sums_whose_digits_have_changed_do_not_fit_their_checksums(state):
    numbers = {"checksums": checksums_of(state)}
    require_sums(state, numbers, "checkpoint 7")
    for low in (False, True):
        other = state.total.copy()
        (other.low if low else other.high).values["x"][1, 2] += 1e-9
        changed = replace(state, total=other)
        with pytest.raises(DamagedError, match=r"checkpoint 7 is damaged \(the sum 'total' over its batches"):
            require_sums(changed, numbers, "checkpoint 7")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"visits": None}, r"the array visits is missing"),
        ({"visits": np.zeros(3)}, r"the array visits is float64 \(3,\); needs whole numbers"),
        ({"seen": np.zeros((2, 2), np.int64)}, r"the array seen is int64 \(2, 2\); needs whole numbers"),
        ({"total.ids": np.zeros((2, 2, 2))}, r"ids is float64 \(2, 2, 2\); needs whole numbers"),
    ],
)
def test_arrays_that_are_no_state_are_named_with_the_checkpoint(state, change, told):
    numbers = json.loads(json.dumps(state_to_json(state)))
    arrays = {k: np.array(v) for k, v in state_to_arrays(state).items()}
    place = next((name for name in arrays if name.startswith("total") and name.endswith("ids")), "total.ids")
    for name, array in change.items():
        arrays[place if name == "total.ids" else name] = array
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(
        DamagedError, match=rf"^checkpoint 7 is damaged \(it is not a state of this run: {told}"
    ) as error:
        state_from_saved(state.model, numbers, arrays, place="checkpoint 7")
    assert str(error.value).endswith("; its checksum is right, so that another program wrote it)")


def test_batches_visited_longest_ago_are_due_and_none_twice_in_a_round():
    turn = Round(np.array([False, True, False, False]), np.array([5, 1, 3, 3]), np.zeros(4, np.bool_))
    every = np.ones(4, np.bool_)
    assert turn.due(every, 9) == [1, 2, 3, 0] and turn.due(every, 2) == [1, 2]
    turn.is_open = True
    assert turn.due(every, 9) == [2, 3, 0] and turn.due(np.array([True, True, True, False]), 9) == [2, 0]
    turn.short[:] = True
    turn.note((2, 0), 8)
    assert turn.seen.tolist() == [True, True, True, False] and turn.last.tolist() == [8, 1, 8, 3]
    assert turn.short.tolist() == [False, True, False, True] and turn.due(every, 9) == [3]
    more = turn.extended(2)
    assert more.is_open and more.due(np.ones(6, np.bool_), 9) == [4, 5, 3]
    assert (more.last[4:].tolist(), more.short[4:].tolist()) == ([-1, -1], [False, False])
    assert len(turn.seen) == 4 and not Round.begin(3, 2).is_open and Round.begin(3, 2).last.tolist() == [2, 2, 2]


# -- clusters that fade -------------------------------------------------------------------------------------------
@pytest.fixture
def faint(state):
    """A state of clusters of 100, 3 and 50 atoms."""
    value = state.total.value()
    part = replace(value, values={**value.values, "N": COUNTS.copy(), "x": value["x"] * 10.0})
    state.total = RunningTotal(part)
    state.memory.young = {}
    state.settle()
    return state, Round.begin(4, 7)


def test_a_faint_cluster_leaves_under_its_id_with_statistics_worth_many_atoms(faint):
    state, turn = faint
    before, words = state.elbo, state.total.value()["x"][1]
    row = lay_away(state, turn, 10.0)
    assert state.posterior.ids.tolist() == [0, 2] and row["action"] == "dormant"
    assert [(move["kind"], move["targets"]) for move in row["moves"]] == [("dormant", [1])]
    assert row["gain"] == state.elbo - before and row["step"] == 1
    part = state.memory.dormant[1]
    assert part.ids.tolist() == [1] and part["N"] == pytest.approx([WORTH])
    np.testing.assert_allclose(part["x"][0], words * WORTH / 3.0)
    assert turn.short.all() and lay_away(state, turn, 10.0) is None


def test_a_cluster_that_held_more_keeps_its_own_weight(faint):
    state, turn = faint
    state.total.apply([Fade(8.0)])
    lay_away(state, turn, 500.0)
    assert state.posterior.ids.tolist() == [0]  # the largest stays
    assert state.memory.dormant[2]["N"] == pytest.approx([400.0])
    assert state.memory.dormant[1]["N"] == pytest.approx([WORTH])


@pytest.mark.parametrize(("weight", "stays"), [(GROWN * 1.1, True), (GROWN, False), (GROWN * 0.9, False)])
def test_a_young_cluster_stays_for_half_a_life(faint, weight, stays):
    state, turn = faint
    state.memory.young = {1: weight, 2: 1.0}
    lay_away(state, turn, 10.0)
    assert (1 in state.posterior.ids) == stays
    assert state.memory.young == ({1: weight} if stays else {})  # one that has grown is young no longer


def test_an_open_round_ends_undecided_where_a_cluster_leaves(faint):
    state, turn = faint
    state.total.track(np.array([[0, 2]]))
    state.plan, turn.is_open = replace(state.plan, pairs=np.array([[0, 2]])), True
    assert lay_away(state, turn, 1.0) is None and turn.is_open
    lay_away(state, turn, 10.0)
    assert not turn.is_open and not state.trials and not len(state.plan.pairs) and not len(state.total.high.pairs)
    assert [type(edit).__name__ for edit in state.edits] == ["Forget", "Take"]


def test_batches_that_were_never_visited_lose_nothing(faint):
    state, turn = faint
    turn = turn.extended(2)
    lay_away(state, turn, 10.0)
    assert turn.short.tolist() == [True] * 4 + [False] * 2


def test_the_earliest_of_many_dormant_clusters_are_dropped(faint):
    state, turn = faint
    state.memory.dormant = {100 + i: state.total.value().take([2]) for i in range(MOST)}
    lay_away(state, turn, 10.0)
    assert list(state.memory.dormant) == [*range(101, 100 + MOST), 1]


# -- ids ----------------------------------------------------------------------------------------------------------
def test_a_decision_is_followed_by_the_atoms_of_the_earlier_batches():
    """Two newborn clusters: the larger has more atoms of new batches, the other more of the earlier ones."""
    trial = RunningTotal(counts(c7=40, c8=20).zeros())
    following = SimpleNamespace(
        posterior=SimpleNamespace(summary=counts(c0=60)), trials={"trial": trial}, edits=[Forget()], seen=np.array([1])
    )
    found = Lineage.of(following, 4)
    with found.visited(following, [2, 3]):
        trial.add(counts(c7=40, c8=20))
    following.posterior.summary = counts(c0=130)
    with found.visited(following, [4]):
        trial.add(counts(c7=0, c8=70))
    with found.settled(following):
        following.edits.append(Exchange("trial", (0,)))
        following.trials = {}
        del following.edits[:1]  # seen by every batch
        following.seen = following.seen - 1
    assert found.successors() == {7: 0}
    assert found.born[7] == pytest.approx([40]) and found.born[8] == pytest.approx([20])


# -- which batches are visited when data arrive ---------------------------------------------------------------------
def visits(monkeypatch, turn, n_new, n_again, may, laps=0, moves=("a move",)):
    """Batches of each stretch of visits, and the number of rounds that began."""
    told, rounds = [], []

    def stretch(turn, lineage, window, batches, is_new=False, leaves=True):
        told.append(("new" if is_new else "again", list(batches)))

        def run(work, state):
            turn.note(batches, state.step + 1)
            state.step += 1
            turn.is_open = turn.is_open and not turn.seen.all()
            return iter(())

        return SimpleNamespace(run=run)

    def begin(work, state, turn):
        rounds.append(len(told))
        turn.seen[:], turn.is_open = False, True

    monkeypatch.setattr(arrivals, "Stretch", stretch)
    monkeypatch.setattr(arrivals, "_begin_round", begin)
    monkeypatch.setattr(arrivals, "splits_of_new", lambda *_: {0: "a split"})
    monkeypatch.setattr(arrivals, "begin_lap", lambda *_: None)
    work = Waiting(source=SimpleNamespace(n_batches=len(turn.last)), moves=moves)
    failures = {("birth", 1): 5, ("merge", 1, 2): 6}
    state = SimpleNamespace(step=10, memory=SimpleNamespace(failures=failures), plan=Plan(), total=None)
    list(arrivals.visit_arrivals(work, state, turn, n_new, n_again, may, 4, laps, None))
    assert state.memory.failures == {("merge", 1, 2): 6} and not state.plan.splits
    return told, rounds


@dataclass
class Waiting:
    """Of a run, what decides which batches are visited."""

    source: SimpleNamespace
    moves: tuple


def turn_of(last):
    turn = arrivals.Round.begin(len(last), 0)
    turn.last[:] = last
    return turn


def test_new_batches_come_first_and_then_as_many_as_were_asked_for(monkeypatch):
    last = [5, 3, 4, 9, 2, -1, -1]
    told, rounds = visits(monkeypatch, turn_of(last), 2, 3, np.ones(7, bool))
    assert told == [("new", [5, 6]), ("again", [4, 1, 2])] and rounds == [0]
    told, rounds = visits(monkeypatch, turn_of(last), 2, 9, np.ones(7, bool))
    assert told == [("new", [5, 6]), ("again", [4, 1, 2, 0, 3])]  # each once, however many were asked for
    assert rounds == [0]


def test_batches_that_cannot_be_read_are_left_out_and_no_round_begins(monkeypatch):
    may = np.array([True, False, True, True, True, True])
    told, rounds = visits(monkeypatch, turn_of([5, 3, 4, 9, 2, -1]), 1, 3, may)
    assert told == [("new", [5]), ("again", [4, 2, 0])] and rounds == []


def test_a_round_under_way_ends_before_the_laps_over_all_batches(monkeypatch):
    turn = turn_of([5, 3, 4, -1])
    told, rounds = visits(monkeypatch, turn, 1, 1, np.ones(4, bool), laps=2)
    assert told == [("new", [3]), ("again", [1]), ("again", [0, 2]), ("again", [0, 1, 2, 3]), ("again", [0, 1, 2, 3])]
    assert rounds == [0, 3, 4] and not turn.is_open


@pytest.mark.parametrize(
    ("n_new", "sample", "size"),
    [(10, 650, 5), (10, 150, 2), (10, 10**6, 10), (2, 10**6, 2), (9, 420, 5), (7, 250, 3)],
)
def test_new_batches_are_folded_in_groups_of_equal_size_that_hold_a_sample(monkeypatch, n_new, sample, size):
    work = SimpleNamespace(
        survey=SimpleNamespace(batch_atoms=dict.fromkeys(range(20), 100)),
        model=SimpleNamespace(observation=None),
    )
    state = SimpleNamespace(posterior=SimpleNamespace(n_clusters=4))
    monkeypatch.setattr(arrivals, "numbers_per_cluster", lambda observation: 5)
    new = range(20 - n_new, 20)
    monkeypatch.setattr(arrivals, "births_of_new", lambda *_: SimpleNamespace(sample=sample))
    assert arrivals.size_of_new(work, state, new, 4) == size
    monkeypatch.setattr(arrivals, "TOGETHER", 20 * 4)  # numbers of four batches
    assert arrivals.size_of_new(work, state, new, 4) <= max(4, 2)
    monkeypatch.setattr(arrivals, "births_of_new", lambda *_: None)
    assert arrivals.size_of_new(work, state, new, 4) == 2


def test_atoms_return_where_a_batch_that_clusters_left_holds_fewer_than_it_has(monkeypatch):
    held = {0: 9.0, 1: 10.0, 2: 7.0, 3: 10.0 - 1e-12}
    monkeypatch.setattr(arrivals, "recall_counts", lambda work, state, b: {"N": np.array([held[b] - 1.0, 1.0])})
    work = SimpleNamespace(survey=SimpleNamespace(batch_weights=dict.fromkeys(range(4), 20.0)))
    state = SimpleNamespace(weight=lambda batch: 0.5, lost={2})
    turn = turn_of([0, 0, 0, 0])
    turn.short[:] = True
    assert [arrivals._regains(work, state, turn, [b]) for b in range(4)] == [True, False, False, False]
    assert arrivals._regains(work, state, turn, [1, 3, 0])
    turn.short[0] = False
    assert not arrivals._regains(work, state, turn, [0, 1, 2, 3])
