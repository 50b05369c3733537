"""Trees of clusters: losses, cuts, and bounds of unions, each against what is counted from scratch."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.cluster.hierarchy import fcluster, is_valid_linkage

import bnp_dask as bnp
from bnp_dask.analysis import tree as trees
from bnp_dask.analysis.predict import assign_batch
from bnp_dask.analysis.tree import chain_loss, unite_once, unite_topics
from bnp_dask.errors import SettingError
from bnp_dask.moves.pairs import data_gains
from bnp_dask.testing import survey_of

MIXTURES = ("gaussian", "diagonal", "counts", "bits", "rates", "product", "finite")


def rows(kind: str, n: int = 160) -> bnp.Batch:
    """Atoms of five overlapping clusters, as the kind has them."""
    rng = np.random.default_rng(3)
    z = rng.integers(0, 5, n)
    groups = np.arange(0, n + 1, 20)
    if kind in ("counts", "hdp", "lda"):
        topics = rng.dirichlet(np.full(12, 0.4), 5)
        counts = np.array([rng.multinomial(25, 0.7 * topics[i] + 0.3 * topics[(i + 1) % 5]) for i in z], np.float64)
        return bnp.Batch(sparse.csr_array(counts))
    if kind == "bits":
        return bnp.Batch((rng.random((n, 8)) < rng.beta(0.5, 0.5, (5, 8))[z]).astype(np.float64))
    if kind == "rates":
        return bnp.Batch(rng.poisson(rng.gamma(1.0, 8.0, (5, 3))[z]).astype(np.float64))
    x = rng.normal(size=(5, 3))[z] * 2.0 + rng.normal(size=(n, 3))
    return bnp.Batch(x, groups=groups) if "chains" in kind else bnp.Batch(x)


def model_of(kind: str) -> bnp.Model:
    pair = {
        "gaussian": (bnp.DPMixture(), bnp.Gaussian()),
        "diagonal": (bnp.DPMixture(), bnp.DiagGaussian()),
        "counts": (bnp.DPMixture(), bnp.Multinomial()),
        "bits": (bnp.DPMixture(), bnp.Bernoulli()),
        "rates": (bnp.DPMixture(), bnp.Poisson()),
        "product": (bnp.DPMixture(), bnp.Product({(0, 1): bnp.Gaussian(), 2: bnp.DiagGaussian()})),
        "finite": (bnp.FiniteMixture(), bnp.Gaussian()),
        "chains": (bnp.HDPHMM(kappa=5.0), bnp.Gaussian()),
        "finite chains": (bnp.FiniteHMM(), bnp.Gaussian()),
        "hdp": (bnp.HDPTopics(), bnp.Multinomial()),
        "lda": (bnp.LDA(), bnp.Multinomial()),
    }
    return bnp.Model(*pair[kind])


def learned(kind: str, k: int = 5, laps: int = 4) -> tuple[bnp.Posterior, bnp.Posterior, bnp.Batch]:
    """A posterior, the one under which its statistics were assigned, and its atoms."""
    batch, rng = rows(kind), np.random.default_rng(1)
    model = model_of(kind).with_prior(survey_of(batch))
    resp = rng.dirichlet(np.full(k, 0.1), batch.x.shape[0])
    posterior = model.global_step(model.summarize(np.arange(k) * 3 + 1, batch, resp))
    for _ in range(laps):
        before, posterior = posterior, model.global_step(model.local_step(posterior, batch))
    return posterior, before, batch


@pytest.mark.parametrize("kind", [*MIXTURES, "chains", "finite chains", "hdp", "lda"])
def test_each_loss_is_the_difference_of_two_objectives_at_the_statistics_of_the_cut(kind):
    posterior, _, _ = learned(kind)
    found, own = bnp.tree(posterior), posterior.model
    best = own.best_objective(posterior.summary)
    assert found.n_clusters == 5
    for k in range(1, 6):
        cut = found.cut(k)
        assert cut.n_clusters == k
        objective = sum(own.elbo(cut, cut.summary).values())
        assert best - objective == pytest.approx(found.losses[k - 1], rel=1e-9, abs=1e-7 * abs(best))
        assert cut.summary["N"].sum() == pytest.approx(posterior.summary["N"].sum())
        assert set(found.members(k)) == set(cut.ids.tolist())
        assert sorted(i for ids in found.members(k).values() for i in ids) == sorted(posterior.ids.tolist())


@pytest.mark.parametrize("kind", ["gaussian", "bits", "finite"])
def test_the_loss_counted_atom_by_atom_is_within_the_slack(kind):
    posterior, before, batch = learned(kind)
    found, model = bnp.tree(posterior), posterior.model
    resp = model.assign(before, batch).resp
    for k in range(1, 5):
        united = found.members(k)
        columns = [resp[:, posterior.positions(np.array(own))].sum(axis=1) for own in united.values()]
        both = np.stack(columns, axis=1)
        summary = model.summarize(np.array(list(united)), batch, both)
        summary.values["H"][...] = -(both * np.log(np.maximum(both, 1e-300))).sum(axis=0)
        summary = summary.take(found.cut(k).ids)
        lost = model.best_objective(posterior.summary) - model.best_objective(summary)
        assert found.losses[k - 1] - found.slacks[k - 1] - 1e-6 <= lost <= found.losses[k - 1] + 1e-6


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["gaussian", "chains", "hdp", "lda"])
def test_the_union_of_a_tracked_pair_has_the_objective_of_an_accepted_merge(kind):
    posterior, before, batch = learned(kind)
    model, ids = posterior.model, posterior.ids
    for a, b in itertools.combinations(ids.tolist(), 2):
        tracked = model.local_step(before, batch, np.array([[a, b]]))
        assert_allclose(tracked["N"], posterior.summary["N"])
        exact = model.best_objective(tracked.merge(a, b))
        plain = posterior.summary.without_pairs()
        if kind in ("hdp", "lda"):
            sets = [(i,) for i in ids.tolist() if i not in (a, b)] + [(a, b)]
            assert model.best_objective(unite_topics(model, posterior, plain, sets)) <= exact + 1e-6
            continue
        own = unite_once(tracked, a, b)
        assert own.slack == 0.0
        assert model.best_objective(own.summary) == exact
        bound = unite_once(plain, a, b)
        below = model.best_objective(bound.summary)
        assert below <= exact + 1e-7 <= below + bound.slack + 2e-7


def test_a_tree_uses_the_pairs_that_were_tracked():
    posterior, before, batch = learned("gaussian")
    pairs = np.array(list(itertools.combinations(posterior.ids.tolist(), 2)))
    tracked = replace(posterior, summary=posterior.model.local_step(before, batch, pairs))
    first = bnp.tree(tracked).unions[0]
    assert first.slack == 0.0
    merged = tracked.summary.merge(first.keep, first.drop)
    lost = posterior.model.best_objective(posterior.summary) - posterior.model.best_objective(merged)
    assert first.loss == pytest.approx(lost, abs=1e-8)


@pytest.mark.parametrize("kind", ["gaussian", "counts", "rates", "finite", "chains"])
def test_each_union_is_the_best_of_all_pairs(kind):
    posterior, _, _ = learned(kind)
    found, model = bnp.tree(posterior), posterior.model
    summary = posterior.summary
    for union in found.unions:
        values = {
            (a, b): model.best_objective(unite_once(summary, a, b).summary)
            for a, b in itertools.combinations(summary.ids.tolist(), 2)
        }
        assert values[union.keep, union.drop] == pytest.approx(max(values.values()), rel=1e-12)
        summary = unite_once(summary, union.keep, union.drop).summary


@pytest.mark.parametrize("kind", ["chains", "gaussian", "hdp"])
def test_trees_of_many_clusters_are_those_of_all_candidates(kind, monkeypatch):
    posterior, _, _ = learned(kind, k=12)
    few = bnp.tree(posterior).losses
    monkeypatch.setattr(trees, "CANDIDATES", 200)
    assert_allclose(bnp.tree(posterior).losses, few, rtol=1e-9, atol=1e-7)


def test_the_union_of_two_clusters_is_near_all_that_were_near_either(monkeypatch):
    """Of many clusters only some pairs are scored: a graph, in which a union joins two nodes."""
    posterior, _, _ = learned("gaussian", k=12)
    ring = {(a, (a + 1) % 12) for a in range(12)} | {(0, 6), (2, 9), (4, 11)}
    chosen = np.array(sorted(tuple(sorted(pair)) for pair in ring)).T
    monkeypatch.setattr(trees, "near_pairs", lambda *_: tuple(chosen))
    growing, ids = trees._Growing(posterior, posterior.summary), posterior.summary.ids
    near = {frozenset(pair) for pair in zip(*(ids[places].tolist() for places in chosen), strict=True)}
    while growing.value.n_clusters > 1:
        value = growing.value
        first, second = np.nonzero(np.isfinite(growing.gains))
        pairs = np.stack([value.ids[first], value.ids[second]], axis=1)
        assert (first < second).all() and {frozenset(pair) for pair in pairs.tolist()} == near
        assert_allclose(growing.alone, growing.model.best_data_terms(value), rtol=1e-9)
        own = data_gains(growing.model, value, pairs)
        assert_allclose(growing.gains[first, second], own, rtol=1e-7, atol=1e-7)
        a, b, _, _, united = growing._best(growing._weights(value))
        keep, drop = int(value.ids[a]), int(value.ids[b])
        near = {frozenset(keep if i == drop else i for i in pair) for pair in near} - {frozenset([keep])}
        growing._unite(a, b, united)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_lost_entropy_holds_for_chains_whose_paths_are_enumerated(seed):
    rng = np.random.default_rng(seed)
    k, steps = 3, 5
    start, moves = rng.dirichlet(np.full(k, 0.5)), rng.dirichlet(np.full(k, 0.5), (steps - 1, k))
    paths = list(itertools.product(range(k), repeat=steps))
    p = np.array([start[z[0]] * np.prod([moves[t, z[t], z[t + 1]] for t in range(steps - 1)]) for z in paths])
    posterior, _, _ = learned("chains", k=k, laps=1)
    values = {name: np.zeros_like(value) for name, value in posterior.summary.values.items()}
    for z, own in zip(paths, p, strict=True):
        values["start"][z[0]] += own
        np.add.at(values["N"], list(z), own)
        np.add.at(values["M"], (list(z[:-1]), list(z[1:])), own)
    entropy = -float(np.sum(p * np.log(p)))
    summary = replace(posterior.summary, values={**values, "H": np.asarray(entropy)})
    for a, b in itertools.combinations(range(k), 2):
        united: dict[tuple[int, ...], float] = {}
        for z, own in zip(paths, p, strict=True):
            name = tuple(a if i == b else i for i in z)
            united[name] = united.get(name, 0.0) + own
        after = -sum(own * np.log(own) for own in united.values())
        assert 0.0 <= entropy - after <= chain_loss(summary, "M", a, b) + 1e-12
        bound = unite_once(summary, int(summary.ids[a]), int(summary.ids[b]))
        assert float(bound.summary["H"]) <= after + 1e-12 <= float(bound.summary["H"]) + bound.slack + 2e-12


def test_the_last_cut_is_the_posterior_itself():
    posterior, _, _ = learned("gaussian")
    found = bnp.tree(posterior)
    assert found.cut(5) is posterior
    assert found.cut(loss=0.0) is posterior or found.losses[:4].min() <= 0.0
    assert found.members(5) == {int(i): (int(i),) for i in posterior.ids}


def test_a_linkage_cut_at_a_height_unites_the_clusters_of_the_cut_at_that_loss():
    posterior, _, _ = learned("gaussian", k=8)
    found = bnp.tree(posterior)
    assert is_valid_linkage(found.linkage)
    for nats in (0.0, 1.0, 10.0, 30.0, 100.0, 1e4):
        own = fcluster(found.linkage, nats, "distance")
        size = found.size_at(nats)
        if len(set(own)) != size:  # losses may fall again, heights may not
            assert len(set(own)) > size
            continue
        place = {int(i): k for k, i in enumerate(posterior.ids)}
        for ids in found.members(size).values():
            assert len({own[place[i]] for i in ids}) == 1


def test_a_cut_predicts_scores_and_is_saved(tmp_path):
    posterior, _, batch = learned("gaussian")
    cut = bnp.tree(posterior).cut(3)
    assert set(bnp.predict(cut, batch.x)) <= set(cut.ids.tolist())
    assert np.isfinite(bnp.score(cut, batch.x))
    cut.save(tmp_path / "cut.zarr")
    again = bnp.load(tmp_path / "cut.zarr")
    assert_allclose(again.weights, cut.weights)
    assert_allclose(bnp.tree(again).losses, bnp.tree(cut).losses)


def test_words_for_scores_are_united_with_their_topics():
    posterior, _, batch = learned("lda")
    posterior = replace(posterior, predictive=posterior.observation)
    cut = bnp.tree(posterior).cut(3)
    assert_allclose(cut.predictive.lam, cut.observation.lam, rtol=1e-9)
    assert np.isfinite(bnp.score(cut, batch.x))


def test_partitions_of_a_pitman_yor_like_process_have_a_tree():
    batch = rows("gaussian")
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.3, 1.0), bnp.Gaussian()).with_prior(survey_of(batch))
    resp = np.eye(4)[np.random.default_rng(0).integers(0, 4, batch.n_atoms)]
    posterior = model.global_step(model.summarize(np.arange(4), batch, resp))

    def log_joint(summary) -> float:
        return model.best_data_terms(summary).sum() + model.allocation.log_partition(summary["N"])

    found = bnp.tree(posterior)
    for k in range(1, 5):
        cut = found.cut(k).summary
        assert found.losses[k - 1] == pytest.approx(log_joint(posterior.summary) - log_joint(cut), abs=1e-7)
        assert found.slacks[k - 1] == 0.0


def test_a_tree_tells_its_losses_and_travels_as_json():
    found = bnp.tree(learned("hdp")[0])
    assert repr(found).startswith("Tree of 5 clusters; ")
    told = json.loads(found.to_json())
    assert len(told["unions"]) == 4
    assert told["unions"][0]["slack"] is None
    assert repr(bnp.tree(learned("gaussian", k=1)[0])) == "Tree of 1 clusters"


def test_labels_at_a_cut_are_those_of_the_cut():
    posterior, _, batch = learned("gaussian")
    cut = bnp.tree(posterior).cut(2)
    assert_allclose(bnp.predict(posterior, batch.x, at=2), bnp.predict(cut, batch.x))
    assert bnp.predict(posterior, batch.x, at=2, soft=True).shape == (160, 2)
    assert_allclose(bnp.predict(posterior, batch.x, at=2, soft=True), assign_batch(cut, batch, soft=True)["resp"])
    with pytest.raises(SettingError, match="at most 5"):
        bnp.predict(posterior, batch.x, at=6)


def test_a_cut_at_exactly_the_loss_of_a_level_is_that_level():
    losses = (0.5, 3.0, 3.0, 7.0)
    unions = tuple(trees.TreeUnion(0, k, 4 - n, 0.0, x, 0.0) for n, (k, x) in enumerate(zip((4, 3, 2, 1), losses)))
    found = trees.Tree(learned("gaussian")[0], unions)
    assert found.losses.tolist() == [7.0, 3.0, 3.0, 0.5, 0.0]
    assert [found.size_at(nats) for nats in (0.0, 0.4, 0.5, 2.9, 3.0, 6.9, 7.0)] == [5, 5, 4, 4, 2, 2, 1]


def test_entropy_lost_by_states_is_the_less_of_what_was_tracked_and_of_its_bound():
    """After other merges the tracked loss of two states is a bound too."""
    posterior, before, batch = learned("chains", k=4)
    model, (a, b) = posterior.model, posterior.ids[:2].tolist()
    tracked = model.local_step(before, batch, np.array([[a, b]]))
    bound = unite_once(tracked.without_pairs(), a, b).summary
    own = {name: 1e3 * value for name, value in tracked.pair_values.items()}
    loose = unite_once(replace(tracked, pair_values=own), a, b)
    assert float(loose.summary["H"]) == float(bound["H"]) < float(unite_once(tracked, a, b).summary["H"])
    assert loose.slack == 0.0


def test_the_nodes_of_a_linkage_hold_all_their_leaves_and_slacks_add_up():
    for kind in ("gaussian", "chains"):
        found = bnp.tree(learned(kind, k=7)[0])
        size, sets = [1] * 7, [{k} for k in range(7)]
        for first, second, _, n in found.linkage:
            size.append(size[int(first)] + size[int(second)])
            sets.append(sets[int(first)] | sets[int(second)])
            assert n == size[-1] == len(sets[-1])
        assert sets[-1] == set(range(7))
        # what a union adds to the slack is never negative
        assert (np.diff([0.0, *(union.slack for union in found.unions)]) >= 0.0).all()
        assert found.unions[-1].slack > 0.0


def test_the_slack_of_a_level_is_the_sum_of_those_of_its_unions():
    posterior, _, _ = learned("gaussian", k=6)
    summary, slack = posterior.summary, 0.0
    for union in bnp.tree(posterior).unions:
        one = unite_once(summary, union.keep, union.drop)
        summary, slack = one.summary, slack + one.slack
        assert union.slack == pytest.approx(slack, rel=1e-9, abs=1e-9)


def test_clusters_without_a_near_pair_are_united_too(monkeypatch):
    posterior, _, _ = learned("gaussian", k=6)
    monkeypatch.setattr(trees, "near_pairs", lambda *_: (np.array([0, 2]), np.array([1, 3])))
    found = bnp.tree(posterior)
    first, second = (frozenset(own) for own in ((posterior.ids[0], posterior.ids[1]), posterior.ids[[2, 3]]))
    assert {frozenset((union.keep, union.drop)) for union in found.unions[:2]} == {first, second}
    assert found.cut(1).n_clusters == 1 and np.isfinite(found.losses).all()


def test_topics_of_later_unions_are_found_behind_the_one_that_went():
    """The pair (2, 3) of a summary whose cluster 1 has gone into cluster 0, and (0, 3) whose set goes to the front."""
    posterior, _, _ = learned("lda")
    model, leaves = posterior.model, posterior.summary.without_pairs()
    ids = [int(i) for i in posterior.ids]
    sets = [(ids[0], ids[1]), (ids[2],), (ids[3],), (ids[4],)]
    first = unite_topics(model, posterior, leaves, sets)
    for a, b in itertools.permutations(range(4), 2):
        union = trees.unite_next(model, posterior, leaves, first, sets, (a, b)).summary
        wanted = [own for k, own in enumerate(sets) if k not in (a, b)] + [sets[a] + sets[b]]
        other = unite_topics(model, posterior, leaves, wanted)
        assert set(union.ids.tolist()) == {own[0] for own in wanted}
        place = other.positions(union.ids)
        for name in ("N", "H", "P", "Q"):
            assert_allclose(union[name], other[name][place], rtol=1e-6, atol=1e-6)


def test_steps_that_start_or_end_a_sequence_belong_to_the_bound_of_lost_entropy():
    """Two states whose transitions are all known: what is unknown is at the start in one direction, at the end in the
    other."""
    posterior, _, _ = learned("chains", k=3)
    summary = posterior.summary.without_pairs()

    def bound(start, moves, n, keep_start=True):
        values = {**{name: np.zeros_like(v) for name, v in summary.values.items()}, "M": moves, "N": n, "start": start}
        fields = dict(summary.fields)
        if not keep_start:
            values.pop("start")
            fields.pop("start")
        return chain_loss(replace(summary, values=values, fields=fields), "M", 0, 1)

    one = float(trees.entropy_within(3.0, 5.0))
    moves = np.zeros((3, 3))
    # sequences of one step: eight starts that are ends too
    assert bound(np.array([3.0, 5.0, 0.0]), moves, np.array([3.0, 5.0, 0.0])) == pytest.approx(one)
    moves[0, 2], moves[1, 2] = 3.0, 5.0  # then all go to the third state: ends are known, starts are not
    n = np.array([3.0, 5.0, 8.0])
    for keeps in (True, False):
        assert bound(np.array([3.0, 5.0, 0.0]), moves, n, keeps) == pytest.approx(one)
    moves = np.zeros((3, 3))
    moves[2, 0], moves[2, 1] = 3.0, 5.0  # they come from the third state
    for keeps in (True, False):
        assert bound(np.array([0.0, 0.0, 8.0]), moves, n, keeps) == pytest.approx(one)
    moves[0, 2], moves[1, 2] = 3.0, 0.0  # three come back and end there, five end in the second
    n = np.array([3.0, 5.0, 11.0])
    assert bound(np.array([0.0, 0.0, 8.0]), moves, n) == pytest.approx(
        min(one, float(trees.entropy_within(3.0, 0.0) + trees.entropy_within(0.0, 5.0)))
    )


def test_a_tree_says_what_it_needs():
    posterior, _, _ = learned("gaussian")
    with pytest.raises(SettingError, match="no statistics"):
        bnp.tree(posterior.light())
    with pytest.raises(SettingError, match=r"cut\(20\)"):
        bnp.tree(posterior).cut()
    with pytest.raises(SettingError, match="at most 5"):
        bnp.tree(posterior).cut(6)
    with pytest.raises(SettingError, match="n_clusters"):
        bnp.tree(posterior).cut(0)
    with pytest.raises(SettingError, match="point estimates"):
        bnp.tree(replace(posterior, model=replace(posterior.model, estimate="map")))
    with pytest.raises(SettingError, match="Posterior"):
        bnp.tree(None)


def test_a_cut_never_unites_clusters_of_two_known_labels():
    rng = np.random.default_rng(0)
    x = np.repeat([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]], 20, axis=0) + rng.normal(size=(60, 2))
    labels = np.where(np.arange(60) % 4 == 0, np.arange(60) // 40, -1)
    result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, labels=labels)
    found = bnp.tree(result.posterior)
    assert (found.n_clusters, found.least, found.cut(2).n_clusters) == (3, 2, 2)
    assert np.isinf(found.losses[0]) and found.cut(loss=1e9).n_clusters == 2
    with pytest.raises(SettingError, match="needs at least 2, or a run without labels"):
        found.cut(1)
    assert found.linkage[-1, 2] == 10.0 * found.losses[1]
    assert bnp.plot.tree(found).get_xlim()[1] == 20.0 * found.losses[1]
    assert json.loads(found.to_json())["unions"][-1]["price"] is None
