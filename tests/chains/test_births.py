"""Births inside sequences: windows, runs and single batches; and starts by k-means and examples."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnp_dask.allocation import HDPHMM, FiniteHMM
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, replay
from bnp_dask.data import as_source
from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans, ContiguousBlocks, KMeansParallel, RandomExamples
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge, windows
from bnp_dask.moves.create import _pieces, run_labels
from bnp_dask.moves.memory import Memory
from bnp_dask.moves.policy import SmallRunPolicy, WindowPolicy
from bnp_dask.moves.windows import Window, _first, best_cut, best_windows, settle
from bnp_dask.observation import AutoRegressiveGaussian, Bernoulli, DiagGaussian, Gaussian, with_previous
from bnp_dask.structure.base import Trial
from bnp_dask.structure.chains import runs_at_most, take_runs
from bnp_dask.training.train import train
from tests.chains.parts import KINDS, check_objective, model_of, sequences
from tests.chains.test_exact import exchanged_chains
from tests.chains.test_moves import walks


def objective(model, summary):
    return sum(model.elbo(model.global_step(summary), summary).values())


def one_state(kind, batch):
    """Posterior with a single state that holds all steps, id 10, and its summary."""
    model = model_of(kind, batch)
    begin = model.global_step(model.summarize(np.array([10]), batch, np.ones((batch.n_atoms, 1))))
    return model.global_step(model.local_step(begin, batch))


def far_apart():
    """Two places: 60 steps in one, 25 in the other, 65 in the first again; and a sequence in the first."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros((60, 2)), np.full((25, 2), 9.0), np.zeros((65, 2)), np.zeros((50, 2))])
    return Batch(x + rng.normal(size=x.shape), groups=np.array([0, 150, 200]))


# -- clusters -------------------------------------------------------------------------------------------------
def test_splits_that_fall_short_are_tried_again_re_estimated():
    x, _ = walks(n=2, length=300)
    source = as_source(np.concatenate(x), groups=np.array([0, 300, 600]), weights=np.full(600, 0.1))
    model = Model(HDPHMM(kappa=10.0), Gaussian())
    result = train(
        model, source, init=ContiguousBlocks(2), schedule=Memoized(20), moves=[Birth(windows=0, min_atoms=2)], rng=0
    )
    births = [move for row in result.history for move in row["moves"] if move["kind"] == "birth"]
    assert any("re-estimated" in move["why"] for move in births)
    # states of 12 by weight have 120 steps, which are enough to be split
    counts = {i for move in births for i in move["targets"] if move["gain"] is not None}
    assert counts and result.posterior.n_clusters > 2
    never_falls(result)


# -- windows --------------------------------------------------------------------------------------------------
def test_a_window_is_cut_where_the_data_term_is_largest():
    model = model_of("plain", far_apart())
    rng = np.random.default_rng(1)
    for cut, n in ((10, 40), (24, 32), (0, 30)):
        x = np.concatenate([np.zeros((cut, 2)), np.full((n - cut, 2), 7.0)]) + rng.normal(size=(n, 2))
        weights = rng.uniform(0.5, 2.0, n)
        rows = Batch(x, weights)
        blocks, value = best_cut(model, rows, WindowPolicy().cuts)
        tried = {}
        for at in np.unique(np.linspace(0, n, 9).astype(int))[1:]:
            labels = (np.arange(n) >= at).astype(int)
            parts = [model.summarize(np.array([0]), rows.take(np.flatnonzero(labels == j)), weights[labels == j, None])
                     for j in range(2) if (labels == j).any()]  # fmt: skip
            tried[at] = sum(float(model.data_terms(model.observation_step(p), p)[0]) for p in parts)
        assert value == pytest.approx(max(tried.values()))
        assert blocks.n_clusters == (2 if cut else 1)
        assert blocks["N"].sum() == pytest.approx(weights.sum())
        if cut:
            assert blocks["N"][0] == pytest.approx(weights[:cut].sum())


def test_a_window_settles_on_all_of_its_segment():
    batch = far_apart()
    posterior = one_state("sticky", batch)
    piece = batch.take_groups(np.array([0]))
    rows = piece.take(np.arange(66, 76))
    blocks = posterior.model.summarize(np.array([0]), rows, np.ones((10, 1)))
    window = settle(posterior, piece, blocks, WindowPolicy())
    assert window is not None and window.donors == (10,)
    assert window.basis.ids.tolist() == [10, -1]
    assert window.basis["N"][1] == pytest.approx(25, abs=0.1)
    assert window.gain > 50
    # entered once and left once
    assert window.basis["M"][0, 1] == pytest.approx(1, abs=0.1) and window.basis["M"][1, 0] == pytest.approx(1, abs=0.1)


def test_a_stretch_like_all_others_of_its_state_is_no_window():
    batch = far_apart()
    model = model_of("sticky", batch)
    true = (batch.x.sum(axis=1) > 9).astype(int)
    both = model.global_step(model.summarize(np.array([3, 4]), batch, np.eye(2)[true]))
    both = model.global_step(model.local_step(both, batch))
    rows = batch.take(np.arange(160, 170))
    blocks = model.summarize(np.array([0]), rows, np.ones((10, 1)))
    assert settle(both, batch.take_groups(np.array([1])), blocks, WindowPolicy()) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_evidence_of_a_piece_is_that_of_all_its_paths(kind):
    """The forward recursion over steps, with the weights of states that a local step uses."""
    batch = far_apart()
    model = model_of(kind, batch)
    true = (batch.x.sum(axis=1) > 9).astype(int)
    both = model.global_step(model.summarize(np.array([3, 4]), batch, np.eye(2)[true]))
    piece = batch.take_groups(np.array([0]))
    fit = model.observation.expected_log_lik(both.observation, piece)
    own, last = both.allocation, None
    for row in fit:
        moved = own.log_start if last is None else np.logaddexp.reduce(last[:, None] + own.log_trans, axis=0)
        last = moved + row
    part, value = windows._evidence(both, piece)
    assert value == pytest.approx(np.logaddexp.reduce(last), rel=1e-9)
    assert part["N"].sum() == pytest.approx(150)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_tried_exactly(kind):
    """What a proposed window would give has the objective of the chains that it stands for."""
    batch = far_apart()
    posterior = one_state(kind, batch)
    model = posterior.model
    found = best_windows(lambda: batch, posterior, (5, 30), 0, (1, 2), WindowPolicy())
    assert found and found[0].gain == max(w.gain for w in found)
    window = found[0]
    new = [70 + i for i in range(window.basis.n_clusters - len(window.donors))]
    basis = replace(window.basis, ids=np.array([*window.donors, *new]))
    beliefs = model.global_step(basis)
    visit = model.visit(posterior, batch, trials=[Trial("t", window.donors, beliefs)])
    after = replay(visit.summary, [Exchange("t", window.donors)], visit.parts)
    chains = exchanged_chains(posterior, beliefs, batch, window.donors, after.ids.tolist())
    check_objective(model, after, chains, batch)
    assert objective(model, after) > objective(model, visit.summary) + 50


def test_windows_do_not_leave_their_sequence_and_are_the_same_again():
    batch = sequences(lengths=(4, 0, 1, 120, 30), seed=5, spread=6.0)
    posterior = one_state("plain", batch)
    first, second = (best_windows(lambda: batch, posterior, (3, 40), 7, (4,), WindowPolicy()) for _ in range(2))
    assert [w.donors for w in first] == [w.donors for w in second]
    for a, b in zip(first, second, strict=True):
        for name, value in a.basis.values.items():
            assert value.tobytes() == b.basis.values[name].tobytes()
    nothing = Batch(np.zeros((0, 2)), groups=np.array([0, 0]))
    assert best_windows(lambda: nothing, posterior, (3, 40), 7, (4,), WindowPolicy()) == []


def test_windows_are_the_best_of_many_and_others_in_another_lap():
    batch = sequences(lengths=(4, 120, 90), seed=5, spread=6.0)
    posterior, policy = one_state("plain", batch), WindowPolicy()
    found = {lap: best_windows(lambda: batch, posterior, (3, 40), 7, (lap,), policy) for lap in (4, 5)}
    for own in found.values():
        assert 1 < len(own) <= policy.grown
        assert [w.gain for w in own] == sorted((w.gain for w in own), reverse=True)
    assert {w.gain for w in found[4]} != {w.gain for w in found[5]}


def test_settings():
    for wrong in ({"windows": -1}, {"window": (0, 5)}, {"window": (9, 5)}):
        with pytest.raises(SettingError, match="window"):
            Birth(**wrong)


# -- runs -----------------------------------------------------------------------------------------------------
def test_runs_are_stretches_of_one_sequence():
    batch = Batch(np.arange(300.0)[:, None], groups=np.array([0, 100, 300]))
    rows = np.concatenate([np.arange(5, 20), np.arange(60, 104), np.arange(150, 290)])
    mass = np.linspace(0.2, 1.0, len(rows))
    runs = take_runs(batch, rows.astype(float), mass, 10_000, np.random.default_rng(0))
    np.testing.assert_array_equal(runs.x[:, 0], rows)
    starts = runs.x[runs.groups[:-1], 0].astype(int).tolist()
    assert starts == [5, 60, 100, 150, 214, 278]  # cut between sequences, and after 64 steps
    for a, b in zip(runs.groups[:-1], runs.groups[1:], strict=True):
        assert (np.diff(runs.x[a:b, 0]) == 1).all()
        np.testing.assert_allclose(runs.weights[a:b], mass[a:b].mean())
    few = take_runs(batch, rows.astype(float), mass, 50, np.random.default_rng(0))
    assert few.n_atoms == 50 and runs_at_most(few, 60, np.random.default_rng(1)) is few
    fewer = runs_at_most(runs, 33, np.random.default_rng(1))
    assert fewer.n_atoms == 33
    for a, b in zip(fewer.groups[:-1], fewer.groups[1:], strict=True):
        assert (np.diff(fewer.x[a:b, 0]) == 1).all()
    none = take_runs(batch, np.zeros(0), np.zeros(0), 5, np.random.default_rng(0))
    assert none.n_atoms == 0 and none.n_groups == 0


@pytest.mark.parametrize(("pieces", "steps"), [(6, 8), (40, 3), (1, 1)])
def test_runs_are_cut_into_nearly_equal_pieces(pieces, steps):
    """Of the length that gives so many pieces in all, but no shorter than the least, rounded within each run."""
    lengths = [3, 50, 8, 0, 13, 1]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    cuts = _pieces(offsets, SmallRunPolicy(pieces=pieces, piece_steps=steps))
    size = max(steps, -(-sum(lengths) // pieces))
    assert {0, *offsets.tolist()} <= set(cuts.tolist()) and (np.diff(cuts) > 0).all()
    for a, b in zip(offsets[:-1], offsets[1:], strict=True):
        own = np.diff(cuts[(cuts >= a) & (cuts <= b)])
        if b > a:
            longest = -(-(b - a) // max(1, round((b - a) / size)))
            assert (own[:-1] == longest).all() and 0 < own[-1] <= longest


@pytest.fixture
def planning(monkeypatch):
    """Context of a plan of windows, which finds those of ``context.found``; a proposal takes its donors."""
    context = SimpleNamespace(
        value=SimpleNamespace(n_clusters=6), memory=Memory(99), free={0, 1, 2, 3, 5}, proposals=["another move's"],
        lap=1, count=lambda donor: 10.0 + donor,
        found=[((0,), 5.0), ((1, 2), 9.0), ((2,), 7.0), ((4,), 8.0), ((3,), 1.0)],
    )  # fmt: skip

    def propose(context, window):
        context.proposals.append(window.donors)
        context.free.difference_update(window.donors)

    monkeypatch.setattr(windows, "_look", lambda context, *_: [Window(d, None, gain) for d, gain in context.found])
    monkeypatch.setattr(windows, "_propose", propose)

    def plan(per_lap=2, tries=2):
        windows.plan_windows(context, per_lap, (5, 9), tries, 0.1, WindowPolicy())
        return context.proposals[1:]

    return context, plan


@pytest.mark.parametrize(("per_lap", "found"), [(0, []), (1, [(1, 2)]), (2, [(1, 2), (0,)]), (9, [(1, 2), (0,), (3,)])])
def test_the_best_windows_of_free_states_are_proposed(planning, per_lap, found):
    context, plan = planning
    assert plan(per_lap) == found
    assert (context.memory.failed(windows.KIND, (), [6.0], 0.0) > 0) == (not found)


def test_windows_of_a_lap_are_trials_of_their_own_with_new_ids():
    """Each keeps its donors and has new states, which no other window and no other cluster has."""
    batch, proposed = far_apart(), []
    posterior = one_state("sticky", batch)
    basis = posterior.summary.insert_empty([-1])
    context = SimpleNamespace(
        memory=Memory(70), lap=3, model=posterior.model, propose=lambda *pair: proposed.append(pair)
    )
    for _ in range(2):
        windows._propose(context, Window((10,), basis, 5.0))
    (first, trial), (second, other) = proposed
    assert (first.targets, first.others, first.remembered_as) == ((10,), (10, 70), windows.KIND)
    assert second.others == (10, 71) and context.memory.next_id == 72
    for proposal, own in ((first, trial), (second, other)):
        assert proposal.edit.trial == own.name and proposal.edit.donors == own.donors == (10,)
        assert own.beliefs.ids.tolist() == list(proposal.others)
    assert trial.name != other.name


@pytest.mark.parametrize("where", ["data", "batch"])
def test_births_of_chains_look_at_windows_and_at_other_atoms(where):
    """Single batches have every other lap to themselves; else what comes first changes from lap to lap."""
    birth = Birth(where=where, windows=2)
    of_chains = SimpleNamespace(has_windows=True, splits_at_batches=False)

    def names(lap, policy=of_chains, pending=True, birth=birth):
        context = SimpleNamespace(lap=lap, policy=policy, pending={} if pending else None)
        return [source.__name__ for source in birth._sources(context)]

    others = ["_of_all", "_of_clusters", "_of_pools"] if where == "data" else ["_of_batches"]
    assert names(2) == [*others, "_of_windows"]
    assert names(1) == (["_of_windows", *others] if where == "data" else others)
    assert names(2, birth=replace(birth, windows=0)) == others
    assert names(2, SimpleNamespace(has_windows=False, splits_at_batches=True), pending=False) == others
    assert birth.at_batch is (where == "batch")
    if where == "batch":
        assert names(2, pending=False) == ["_of_windows"]
        assert not birth.is_urgent(None)  # needs no look at what was gathered


def test_states_whose_windows_failed_are_left_alone_until_their_counts_change(planning):
    context, plan = planning
    for _ in range(2):
        context.memory.remember_failure(windows.KIND, (1,), [11.0])
    context.memory.remember_failure(windows.KIND, (0,), [10.0])
    assert plan() == [(2,), (0,)]


def test_laps_without_windows_are_followed_by_laps_that_do_not_look(planning):
    context, plan = planning
    context.found, found = [], context.found
    for _ in range(2):
        assert plan(tries=2) == []
    context.found = found
    assert plan(tries=2) == []  # lap 1
    context.lap = 2
    assert plan(tries=2) == [(1, 2), (0,)]
    context.lap, context.value.n_clusters, context.free, context.proposals = 3, 7, {3}, [None]
    assert plan(tries=2) == [(3,)]  # a state has come


@pytest.mark.parametrize("count", [1, 2])
def test_blocks_of_a_window_have_the_steps_of_a_path_through_them(count):
    """A path from the state around, through the blocks in turn, and back; steps before and after it are known."""
    rng = np.random.default_rng(0)
    model = model_of(KINDS[0], Batch(rng.normal(size=(9, 2)), groups=np.array([0, 9])))
    value = model.empty_summary(np.arange(4 + count))
    for name, declared in value.fields.items():
        if declared.n_cluster_axes:
            value.values[name][...] = rng.random(value[name].shape)
    lengths = [5, 3][:count]
    blocks = value.take(np.arange(count))
    blocks.values["N"][...] = lengths
    value.values["M"][4:], value.values["M"][:, 4:] = 0.0, 0.0
    found, path = _first(value, blocks, 2), [2, *np.repeat(4 + np.arange(count), lengths), 2]
    want = value["M"].copy()
    np.add.at(want, (path[:-1], path[1:]), 1.0)
    np.testing.assert_allclose(found["M"], want)
    for name, declared in value.fields.items():
        if declared.n_cluster_axes == 1:
            np.testing.assert_array_equal(found[name], np.concatenate([value[name][:4], blocks[name]]))


def test_runs_that_overlap_too_much_for_single_steps_are_told_apart():
    """Means that differ by one standard deviation, in runs of 40 steps."""
    rng = np.random.default_rng(2)
    true = np.repeat(np.arange(20) % 2, 40)
    x = true[:, None] * 1.2 + rng.normal(size=(800, 2))
    runs = Batch(x, groups=np.arange(0, 801, 40))
    tied = model_of("plain", runs)
    model = tied.structure.untied(tied)
    labels, found = run_labels(model, runs, np.random.default_rng(0), SmallRunPolicy())
    assert found == 2
    assert min(np.mean(labels == true), np.mean(labels != true)) == 0.0
    same = Batch(rng.normal(size=(800, 2)), groups=np.arange(0, 801, 40))
    assert run_labels(model, same, np.random.default_rng(0), SmallRunPolicy())[1] == 1


# -- births at batches ----------------------------------------------------------------------------------------
def go(moves, kappa=10.0, client=None, laps=14, init=None):
    data, _ = walks(n=8, length=250)
    model = Model(HDPHMM(gamma=10.0, alpha=0.5, alpha0=10.0, kappa=kappa), Gaussian())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            model, data, init=init or ContiguousBlocks(1), schedule=Memoized(laps, window=2), moves=moves,
            batch_size=500, rng=0, client=client,
        )  # fmt: skip
    return result


def never_falls(result):
    rows = [row for row in result.history if row["exact"]]
    size = sum(abs(rows[-1][name]) for name in ("data", "entropy", "allocation"))
    return (np.diff([row["elbo"] for row in rows]) >= -1e-12 * size).all()


@pytest.mark.long
def test_births_at_batches_from_many_workers():
    moves = (Birth(where="batch", share=0.7), Merge(), Delete())
    result = go(moves)
    assert result.posterior.n_clusters == 5
    assert never_falls(result)
    born = [m for row in result.history for m in row["moves"] if m["kind"] == "birth" and m["accepted"]]
    assert born and all(m["gain"] > 0 for m in born)
    # what is believed of the whole data is what a visit of all of it finds, or less
    posterior = result.posterior
    x, _ = walks(n=8, length=250)
    batch = Batch(np.concatenate(x), groups=np.arange(0, 2001, 250))
    fresh = posterior.model.local_step(posterior, batch)
    assert fresh["M"].sum() == pytest.approx(posterior.summary["M"].sum())
    before = sum(posterior.model.elbo(posterior, posterior.summary).values())
    assert sum(posterior.model.elbo(posterior, fresh).values()) >= before - 1e-8 * abs(before)


@pytest.mark.long
@pytest.mark.first_case
@pytest.mark.parametrize("moves", [(Birth(), Delete()), (Birth(where="batch", share=0.7), Delete())])
def test_same_bits_serial_and_on_threads(moves):
    kept = []
    for client in (SerialExecutor(), ThreadExecutor(2)):
        result = go(moves, client=client, laps=5)
        kept.append({name: value.tobytes() for name, value in result.posterior.summary.to_arrays().items()})
        assert any(m["accepted"] for row in result.history for m in row["moves"])
    assert kept[0] == kept[1]


# -- starts ---------------------------------------------------------------------------------------------------
STARTS = (BregmanKMeans(8), RandomExamples(8), KMeansParallel(8, rounds=2))


@pytest.mark.parametrize("init", STARTS, ids=lambda i: type(i).__name__)
def test_starts_from_single_steps(init):
    result = go((), init=init, laps=10)
    assert never_falls(result)
    assert result.posterior.summary["M"].sum() == pytest.approx(2000 - 8)
    if not isinstance(init, RandomExamples):  # the five places are apart
        held = result.posterior.summary["N"]
        assert (held > 10).sum() >= 5


def test_starts_of_other_likelihoods():
    data, _ = walks(n=4, length=60)
    x, offsets = with_previous(np.concatenate(data), np.arange(0, 241, 60))
    bits = [(d > 0).astype(float) for d in data]
    cases = [(AutoRegressiveGaussian(), [x[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]),
             (Bernoulli(0.5, 0.5), bits), (DiagGaussian(), data)]  # fmt: skip
    for observation, rows in cases:
        for init in (BregmanKMeans(3), RandomExamples(3)):
            for allocation in (HDPHMM(kappa=5.0), FiniteHMM()):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = train(Model(allocation, observation), rows, init=init, schedule=Memoized(2), rng=0)
                assert np.isfinite(result.history[-1]["elbo"])
                assert result.posterior.summary["start"].sum() == pytest.approx(4)


@pytest.mark.long
def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path):
    data, _ = walks(n=6, length=120)
    model = Model(HDPHMM(kappa=5.0), Gaussian())

    def bits(store, laps, resume=False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = train(
                model, data, init=ContiguousBlocks(2), schedule=Memoized(laps, window=2), store=store, resume=resume,
                moves=(Birth(), Merge(), Delete()), batch_size=240, rng=1,
            )  # fmt: skip
        return {name: value.tobytes() for name, value in result.posterior.summary.to_arrays().items()}

    whole = bits(None, 6)
    for laps in (2, 4, 6):
        found = bits(tmp_path / "run", laps, laps > 2)
    assert found == whole
