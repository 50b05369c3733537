"""Certainty of the number of clusters: ranges, other starts, resampled data, and the consensus."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score

import bnp_dask as bnp
from benchmarks.certainty import first_ten, run, second_ten, twenty_others
from bnp_dask.analysis.metrics import rand_index_of_table
from bnp_dask.analysis.score import score_samples
from bnp_dask.analysis.tree import objective_of
from bnp_dask.data.view import ResampledSource
from bnp_dask.errors import SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.training import certainty as sure
from tests.topics.bars import bars_corpus

FEW = {"init": bnp.RandomExamples(3), "schedule": bnp.Memoized(laps=6), "moves": ()}


def three(n: int = 60, apart: float = 8.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(mean, 1.0, (n, 2)) for mean in ((0, 0), (apart, 0), (0, apart))])


@pytest.fixture(scope="module")
def result() -> bnp.TrainResult:
    return bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), three(), rng=0, batch_size=50)


@pytest.fixture(scope="module")
def whole(result) -> bnp.Certainty:
    return bnp.certainty(result, three(), starts=2, resamples=2, batch_size=50, rng=3, **FEW)


def test_the_posterior_alone_tells_which_fewer_clusters_are_as_good(result):
    found = result.certainty
    assert repr(found) == "K = 3 (3 within 10 nats; more may be as good: give the data)" and found.is_open
    assert (found.low, found.high) == found.within == (3, 3)
    losses = bnp.tree(result.posterior).losses
    assert_allclose([found.losses[k] for k in (1, 2, 3)], losses, atol=1e-6)
    wide = bnp.certainty(result, nats=float(losses[1]) + 1e-6)
    assert (wide.low, wide.high) == (2, 3)
    assert wide.united == bnp.tree(result.posterior).unions
    assert found.repeats == () and found.together is None and found.consensus is None


def test_splits_that_were_rejected_on_all_data_count_at_their_price(result):
    rows = [dict(row) for row in result.history]
    target = int(result.posterior.ids[0])
    move = {"kind": "birth", "targets": [target], "others": [90, 91], "gain": -4.0, "accepted": False, "why": "no"}
    rows[-1]["moves"] = [*rows[-1].get("moves", []), move]
    found = replace(result, history=bnp.History(rows)).certainty
    assert [(one.id, one.n_clusters, one.price) for one in found.split] == [(target, 4, 4.0)]
    assert (found.low, found.high) == (3, 4)
    assert repr(found) == "K = 3 (3 to 4 within 10 nats; more may be as good: give the data)"
    rows[-1]["moves"] = [*rows[-1]["moves"], {**move, "accepted": True, "gain": 2.0}]
    assert replace(result, history=bnp.History(rows)).certainty.split == ()


def test_clusters_cut_anew_together_count_if_they_become_more(result):
    rows = [dict(row) for row in result.history]
    a, b, c = result.posterior.ids.tolist()
    move = {"kind": "birth", "targets": [b, a], "gain": -9.0, "accepted": False, "why": "no"}
    rows[-1]["moves"] = [{**move, "others": [90, 91]}]
    assert replace(result, history=bnp.History(rows)).certainty.split == ()
    rows[-1]["moves"] = [{**move, "others": [90, 91, 92]}]
    found = replace(result, history=bnp.History(rows)).certainty
    assert [(one.id, one.beside, one.n_clusters, one.price) for one in found.split] == [(b, (a,), 4, 9.0)]
    assert (found.low, found.high, found.is_open) == (3, 4, True)
    rows[-1]["moves"].append({**move, "targets": [c], "others": [93, 94], "gain": -30.0})
    found = replace(result, history=bnp.History(rows)).certainty
    assert (found.low, found.high, found.is_open) == (3, 4, False)
    assert repr(found) == "K = 3 (3 to 4 within 10 nats)"


def test_standard_errors_are_those_of_sums_of_differences_of_log_densities(result):
    """Against the log densities of all atoms in memory; in weighted data an atom of weight 2 is two atoms."""
    x = three()
    states = [result.posterior, *(bnp.tree(result.posterior).cut(k) for k in (2, 1))]
    weights = np.random.default_rng(0).integers(0, 3, len(x)).astype(float)
    for own, source in (
        (np.ones(len(x)), bnp.as_source(x, batch_size=50)),
        (weights, bnp.as_source(x, batch_size=50, weights=weights)),
    ):
        log = np.repeat([score_samples(one, x) for one in states], own.astype(int), axis=1)
        expected = [np.sqrt(log.shape[1]) * (log[k] - log[0]).std() for k in (1, 2)]
        assert_allclose(sure.standard_errors(states[0], states[1:], source, None), expected, rtol=1e-9)


def test_sequences_are_the_units_of_standard_errors(result):
    x, ends = three(), np.array([0, 10, 25, 60, 100, 180])
    states = [result.posterior, bnp.tree(result.posterior).cut(2)]
    gap = score_samples(states[1], x) - score_samples(states[0], x)
    total, length = np.add.reduceat(gap, ends[:-1]), np.diff(ends)
    expected = np.sqrt(((total - length * gap.mean()) ** 2).sum())
    assert_allclose(sure.standard_errors(states[0], states[1:], bnp.as_source(x, groups=ends), None), expected)


def test_a_loss_of_two_standard_errors_counts_as_chance():
    losses = {1: 90.0, 2: 15.0, 3: 0.0, 4: 12.0, 5: 30.0}
    assert sure._ends(losses, {}, 10.0) == (3, 3)
    assert sure._ends(losses, {1: 20.0, 2: 8.0, 4: 5.9, 5: np.nan}, 10.0) == (2, 3)
    assert sure._ends(losses, {1: 20.0, 2: 7.0, 4: 6.1, 5: 0.0}, 10.0) == (3, 4)


def test_states_near_k_are_trained_and_their_objective_counts(result):
    x = three()
    found = bnp.certainty(result, x, batch_size=50, nats=2.0)
    alone = result.certainty
    assert found.losses[2] <= alone.losses[2] + 1e-6
    assert (found.low, found.high) == (3, 3)
    assert found.losses[4] > 2.0
    assert {one.id for one in found.split} <= set(result.posterior.ids.tolist())
    assert found.losses[4] <= min(one.price for one in found.split if one.n_clusters == 4) + 1e-6


def test_a_split_that_is_worth_it_is_found():
    """Two of three clusters are one: halves of that one have a higher objective."""
    x = three(apart=6.0)
    resp = np.eye(2)[np.repeat([0, 0, 1], 60)]
    poor = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, init=bnp.Responsibilities(resp), moves=())
    found = bnp.certainty(poor, x, batch_size=50)
    best = found.split[0]
    assert best.n_clusters == 3 and best.price < -10.0
    assert best.id == poor.posterior.ids[np.argmax(poor.posterior.weights)]
    assert found.within[0] == 3
    assert found.losses[2] >= -best.price - 1e-6


@pytest.mark.long
def test_starts_and_resamples_are_compared_on_the_data(whole, result):
    assert len(whole.starts) == 2 and len(whole.resamples) == 2
    labels = [bnp.predict(one.posterior, three()) for one in whole.repeats]
    own = bnp.predict(result.posterior, three())
    for one, theirs in zip(whole.repeats, labels, strict=True):
        assert one.agreement == pytest.approx(adjusted_rand_score(own, theirs))
        assert one.n_clusters == (one.posterior.summary["N"] >= 1.0).sum()
    pairs = [(own, labels[0]), (own, labels[1]), (labels[0], labels[1])]
    assert whole.between == pytest.approx(np.mean([adjusted_rand_score(a, b) for a, b in pairs]))
    assert min(one.behind for one in whole.starts) >= 0.0
    assert all(np.isnan(one.behind) for one in whole.resamples)
    assert set(range(whole.low, whole.high + 1)) >= {one.n_clusters for one in whole.resamples}


def test_the_share_of_runs_with_one_label_is_counted_pair_by_pair(whole, result):
    own = bnp.predict(result.posterior, three())
    labels = [bnp.predict(one.posterior, three()) for one in whole.repeats]
    ids = result.posterior.ids
    for i, a in enumerate(ids):
        for j, b in enumerate(ids):
            same = [theirs[own == a][:, None] == theirs[own == b][None] for theirs in labels]
            assert whole.together[i, j] == pytest.approx(np.mean([one.mean() for one in same]))


def test_the_consensus_is_a_posterior_with_the_ids_of_the_clusters_that_it_has(whole, result):
    assert isinstance(whole.consensus, bnp.Posterior)
    labels = bnp.predict(whole.consensus, three())
    assert adjusted_rand_score(labels, np.repeat(np.arange(3), 60)) > 0.95
    assert adjusted_rand_score(labels, bnp.predict(result.posterior, three())) > 0.95
    assert set(whole.consensus.ids.tolist()) == set(result.posterior.ids.tolist())


def test_the_consensus_has_the_least_binder_loss_of_all_partitions():
    """Five groups of atoms in three runs, against every partition of five things."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = np.unique(rng.integers(0, 3, (5, 3)), axis=0)
        counts = rng.integers(1, 9, len(labels))
        compared = sure._Compared(labels, counts)
        order, found = compared.partition()
        assert_allclose(order, labels)
        same = (labels[:, None] == labels[None]).mean(axis=2) - 0.5
        weight = same * counts * counts[:, None]

        def value(partition, weight=weight) -> float:
            return float(weight[np.equal.outer(partition, partition)].sum())

        best = max(value(np.array(p)) for p in np.ndindex(*[len(labels)] * len(labels)))
        assert value(found) >= best - 0.1 * abs(best) - 1e-9


@pytest.mark.long
def test_equal_bits_on_other_executors_and_batches_of_equal_seeds(result, whole):
    again = bnp.certainty(result, three(), starts=2, resamples=2, batch_size=50, rng=3, client=SerialExecutor(), **FEW)
    assert again.to_json() == whole.to_json()
    other = bnp.certainty(result, three(), resamples=2, batch_size=50, rng=4, **FEW)
    assert other.to_json() != whole.to_json()


def test_keyed_random_numbers_say_which_atoms_a_sample_holds():
    source = bnp.as_source(three(), batch_size=50)
    one = [ResampledSource(source, 7, False).reader(b)().weights for b in range(source.n_batches)]
    two = [ResampledSource(source, 7, False).reader(b)().weights for b in range(source.n_batches)]
    for a, b in zip(one, two, strict=True):
        assert_allclose(a, b, rtol=0)
    everything = np.concatenate(one)
    assert set(everything) == {0.0, 1.0}
    assert everything.mean() == pytest.approx(1.0 - np.exp(-1.0), abs=0.1)
    assert not np.array_equal(one[0], ResampledSource(source, 8, False).reader(0)().weights)
    assert not np.array_equal(one[0], one[1])


def test_sequences_are_drawn_as_wholes_and_weights_are_multiplied():
    lengths = np.arange(0, 181, 20)
    source = bnp.as_source(three(), groups=lengths, weights=np.repeat(np.arange(9) + 1.0, 20))
    batch = ResampledSource(source, 5, True).reader(0)()
    by_sequence = batch.weights.reshape(9, 20) / (np.arange(9) + 1.0)[:, None]
    assert (by_sequence == by_sequence[:, :1]).all()
    assert (by_sequence == np.round(by_sequence)).all()


def test_all_numbers_travel_as_json(whole):
    told = json.loads(whole.to_json())
    assert told["n_clusters"] == 3 and len(told["repeats"]) == 4
    assert told["repeats"][3]["behind"] is None
    assert np.shape(told["together"]) == (3, 3)
    assert repr(whole).startswith("K = 3 (")
    assert " of 2 starts agree, ARI " in repr(whole)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_topics_and_states_of_sequences_have_a_certainty():
    corpus, _ = bars_corpus(40, 60)
    topics = bnp.train(
        bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), corpus, init=bnp.RandomExamples(4), rng=0, moves=(),
        schedule=bnp.Memoized(laps=4),
    )  # fmt: skip
    found = bnp.certainty(topics, corpus, starts=1, resamples=1, init=bnp.RandomExamples(4), moves=())
    assert found.n_clusters == 4 and found.consensus.n_clusters >= 1
    x = bnp.as_source(three(), groups=np.arange(0, 181, 20))
    chain = bnp.train(
        bnp.Model(bnp.HDPHMM(), bnp.Gaussian()), x, init=bnp.ContiguousBlocks(4), rng=0, moves=(),
        schedule=bnp.Memoized(laps=4),
    )  # fmt: skip
    found = bnp.certainty(chain, x, starts=1, resamples=1, init=bnp.ContiguousBlocks(4), moves=())
    assert found.low <= found.n_clusters
    assert objective_of(found.consensus) < 0.0


def test_a_better_start_is_told():
    x = three()
    poor = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, init=bnp.RandomExamples(1), moves=())
    found = bnp.certainty(poor, x, starts=1)
    assert found.losses[1] > 10.0
    assert found.within == (3, 3)
    assert "a state with 3 is" in repr(found)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("problems", [first_ten, second_ten, twenty_others])
def test_the_true_k_is_in_the_range_of_nine_of_ten_sets(problems):
    """With the data alone; further starts and samples only widen the range."""
    found = [run(problem(), starts=0, resamples=0)[0] for problem in problems()]
    assert sum(found) >= 0.9 * len(found)


def test_a_table_of_labels_gives_the_index_of_the_labels():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, 200), rng.integers(0, 3, 200)
    table = np.zeros((4, 3), np.int64)
    np.add.at(table, (a, b), 1)
    assert rand_index_of_table(table) == pytest.approx(adjusted_rand_score(a, b))


def apart_and_known(links=None, labels=None):
    """A run on 45 rows of three groups with something known of the rows."""
    x = three(15, apart=6.0)
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    return x, bnp.train(model, x, links=links, labels=labels, init=bnp.BregmanKMeans(3), rng=0)


def test_labels_of_the_training_data_count_in_every_run():
    rng = np.random.default_rng(1)
    labels = np.where(rng.random(45) < 0.5, np.repeat([0, 0, 1], 15) + 2 * (rng.random(45) < 0.3), -1)
    x, result = apart_and_known(labels=labels)
    k, least = result.posterior.n_clusters, bnp.tree(result.posterior).least
    assert least > 2  # noise in the labels keeps clusters apart that look alike
    with pytest.raises(SettingError, match=r"trained with labels.*certainty\(result, data, labels=\.\.\.\)"):
        bnp.certainty(result, x)
    found = bnp.certainty(result, x, labels=labels, starts=1, resamples=1, moves=())
    assert found.low >= least and found.losses[k] < 10.0 and np.isfinite(found.losses[least])


def test_links_of_the_training_data_count_in_every_run():
    links = np.arange(45) // 3
    x, result = apart_and_known(links=links)
    with pytest.raises(SettingError, match=r"trained with links.*certainty\(result, data, links=\.\.\.\)"):
        bnp.certainty(result, x)
    found = bnp.certainty(result, x, links=links)
    # one more run from the posterior on the linked rows changes next to nothing: it is the best known state with 3
    assert result.posterior.n_clusters == 3 and found.losses[3] == pytest.approx(0.0, abs=0.1)
    again = bnp.train(
        result.posterior.model, x, links=links, init=bnp.FromPosterior(bnp.tree(result.posterior).cut(2)), moves=(),
        schedule=bnp.Memoized(laps=12),
    )  # fmt: skip
    by_hand = objective_of(result.posterior) - objective_of(again.posterior)
    assert found.losses[2] == pytest.approx(by_hand, rel=1e-3)


def test_weights_of_less_than_one_atom_have_one_cluster_at_least():
    x, weights = three(15), np.full(45, 0.01)
    with pytest.warns(UserWarning, match="as much evidence as 0.45 row"):
        result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, weights=weights, moves=())
    with pytest.warns(UserWarning, match="as much evidence as 0.45 row"):
        found = bnp.certainty(result, bnp.as_source(x, weights=weights))
    assert min(found.losses) == found.low == 1


def test_weights_of_training_that_are_left_out_are_told():
    x = three(15)
    result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, weights=np.full(45, 2.0))
    with pytest.warns(UserWarning, match=r"weight of 45 in all, and the clusters of the posterior 90"):
        bnp.certainty(result, x)


def test_other_data_of_the_same_size_are_told():
    x = three(15)
    result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x)
    bnp.certainty(result, x[::-1])
    with pytest.warns(UserWarning, match=r"differ by 0\.\d+ of their size.*trained on other data"):
        bnp.certainty(result, x + np.random.default_rng(5).normal(size=x.shape))


def test_settings_without_meaning_are_refused(result):
    with pytest.raises(SettingError, match="needs the data"):
        bnp.certainty(result, starts=2)
    with pytest.raises(SettingError, match="starts"):
        bnp.certainty(result, three(), starts=-1)
    with pytest.raises(SettingError, match="nats"):
        bnp.certainty(result, nats=-1.0)
    with pytest.raises(SettingError, match="Posterior"):
        bnp.certainty(None)


# -- by hand -------------------------------------------------------------------------------------------------------
def test_a_range_ends_exactly_at_its_nats_and_at_two_errors():
    losses = {1: 30.0, 2: 10.0, 3: 0.0, 4: 10.1, 5: 12.0, 6: 12.1}
    assert sure._ends(losses, {}, 10.0) == (2, 3)
    assert sure._ends(losses, {5: 6.0, 6: 6.0, 1: 14.9}, 10.0) == (2, 5)
    assert sure._ends(losses, {1: 15.0}, 10.0) == (1, 3)  # chance widens a range, and never narrows it
    assert sure._ends(losses, {2: 0.0}, 0.0) == (3, 3)


def test_the_moments_of_a_batch_are_those_of_its_units(monkeypatch):
    values = {0: np.array([1.0, 2.0, 4.0, 0.5, -np.inf, 3.0]), 1: np.array([2.0, 0.0, 4.5, 1.5, 1.0, 9.0])}
    values[2] = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(sure, "density_of", lambda one, reader: values[one])
    weights = np.array([2.0, 1.0, 0.5, 3.0, 1.0, 0.0])
    rows = bnp.Batch(np.zeros((6, 1)), weights)
    found = sure._moments((0, 1, 2), lambda: rows)
    on = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])  # an infinite density, and a weight of zero, count nothing
    for r in (1, 2):
        gap = np.where(on > 0, values[r] - np.where(on > 0, values[0], 0.0), 0.0)
        w = weights * on
        assert_allclose(found[:, r - 1], [w.sum(), w @ gap, w @ gap**2, w @ gap, w.sum()])
    groups = replace(rows, weights=np.repeat([2.0, 0.5, 1.0], [2, 1, 3]), groups=np.array([0, 2, 2, 3, 6]))
    found = sure._moments((0, 1, 2), lambda: groups)
    on = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    for r in (1, 2):
        gap = np.where(on > 0, values[r] - np.where(on > 0, values[0], 0.0), 0.0)
        d, t, w = np.add.reduceat(gap, [0, 2, 3]), np.array([2.0, 1.0, 2.0]), np.array([2.0, 0.5, 1.0])
        assert_allclose(found[:, r - 1], [w @ t, w @ d, w @ d**2, w @ (d * t), w @ t**2])


def test_sums_over_the_data_differ_relative_to_the_largest_of_both(result):
    own = result.posterior
    values = {**own.summary.values}
    name = next(iter(own.model.observation.fields))
    values[name] = values[name] * 1.001
    other = replace(own, summary=replace(own.summary, values=values))
    whole, more = own.summary[name].sum(axis=0), values[name].sum(axis=0)
    size = max(np.abs(own.summary[name]).sum(axis=0).max(), np.abs(values[name]).sum(axis=0).max())
    wanted = np.abs(more - whole).max() / size
    assert sure._difference_of_totals(own, other) == pytest.approx(wanted) == sure._difference_of_totals(other, own)
    assert sure._difference_of_totals(own, own) == 0.0


def test_of_splits_of_one_cluster_the_cheapest_counts_and_sets_count_apart():
    some = [sure.Split(3, 5, 9.0), sure.Split(3, 5, 4.0), sure.Split(1, 5, 6.0), sure.Split(3, 6, 1.0, (1,))]
    assert sure._cheapest(some) == (some[3], some[1], some[2])


def test_of_states_with_one_number_of_clusters_the_best_is_known():
    known = [sure._Known(value, None) for value in (-5.0, -3.0, -4.0)]
    assert sure._best_known([(2, known[0]), (2, known[1]), (2, known[2]), (3, known[2])]) == {2: known[1], 3: known[2]}


def test_a_birth_accepted_since_ends_the_price_of_its_target(result):
    a, b, c = (int(i) for i in result.posterior.ids)

    def move(targets, gain, accepted=False, others=(90, 91), kind="birth"):
        return {"kind": kind, "targets": targets, "others": others, "gain": gain, "accepted": accepted, "why": ""}

    moves = [
        move([a], -4.0), move([a], -7.0),  # the last trial counts
        move([b], -1.0), move([b], 2.0, accepted=True),
        move([c], None), move([99], -1.0), move([c], -1.0, kind="merge"), move([c], -1.0, others=(90,)),
        move([b, c], -3.0, others=(90, 91, 92)),
    ]  # fmt: skip
    rows = bnp.History([{"lap": 1, "moves": moves}])
    found = sure._splits(replace(result, history=rows))
    assert [(one.id, one.beside, one.n_clusters, one.price) for one in found] == [(b, (c,), 4, 3.0), (a, (), 4, 7.0)]


def test_labels_are_counted_over_three_batches():
    compared = sure._Compared(np.array([[0, 1, 0], [1, 1, 2], [2, 0, 2]]), np.array([4, 1, 5]))
    assert compared.table(0, 1).tolist() == [[0, 4], [0, 1], [5, 0]]
    assert compared.table(2, 0).tolist() == [[4, 0, 0], [0, 0, 0], [0, 1, 5]]
    first = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    second = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert_allclose(compared.together(), 0.5 * (first @ first.T + second @ second.T))
    each = [rand_index_of_table(compared.table(a, b)) for a, b in ((1, 0), (2, 0), (2, 1))]
    assert compared.between(2) == pytest.approx(np.mean(each)) and compared.between(1) == pytest.approx(each[0])
    assert np.isnan(compared.between(0))


def test_text_without_json_numbers_has_null():
    assert sure._without_nan({"a": [1.0, np.nan, {"b": np.inf}], "c": 0.0}) == {"a": [1.0, None, {"b": None}], "c": 0.0}
