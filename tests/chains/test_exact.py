"""Changes of states decided from summaries have exactly the objective that they have in the sequences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnp_dask.core.summary import Exchange, Merge, RunningTotal, Summary, replay
from bnp_dask.errors import SummaryError
from bnp_dask.structure.base import Trial
from bnp_dask.structure.chains import potentials
from tests.chains import naive
from tests.chains.parts import KINDS, begin, chains_of, check_objective, model_of, sequences
from tests.pairwise import in_pairs


def cases():
    return {"plain": sequences(), "weighted": sequences(weighted=True, seed=3), "close": sequences(spread=0.7, seed=4)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", cases())
def test_local_step(name, kind):
    batch = cases()[name]
    model = model_of(kind, batch)
    posterior = begin(model, batch)
    check_objective(model, model.local_step(posterior, batch), chains_of(posterior, batch), batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", cases())
def test_merge_of_a_tracked_pair(name, kind):
    batch = cases()[name]
    model = model_of(kind, batch)
    posterior = begin(model, batch)
    pairs = np.array([[10, 13], [14, 12], [11, 14]])
    summary = model.local_step(posterior, batch, pairs)
    assert (summary.pair_values["H"] >= 0).all()
    for a, b in pairs.tolist():
        chains = [naive.merged(c, a - 10, b - 10) for c in chains_of(posterior, batch)]
        check_objective(model, replay(summary, [Merge(a, b)]).without_pairs(), chains, batch)


@pytest.mark.parametrize("name", cases())
def test_two_merges_in_one_lap_have_a_close_bound_from_below(name):
    batch = cases()[name]
    model = model_of("sticky", batch)
    posterior = begin(model, batch)
    pairs = np.array([[10, 13], [12, 14]])
    summary = model.local_step(posterior, batch, pairs)
    both = replay(summary, [Merge(10, 13), Merge(12, 14)])
    other = replay(summary, [Merge(12, 14), Merge(10, 13)])
    chains = chains_of(posterior, batch)
    exact = naive.entropy([naive.merged(naive.merged(c, 2, 4), 0, 3) for c in chains])
    assert float(both["H"]) == pytest.approx(float(other["H"]))
    assert float(both["H"]) <= exact + 1e-9
    between = both["M"][0, 2] + both["M"][2, 0]
    assert exact - float(both["H"]) <= np.log(2) * between + 1e-9
    # the same for each batch on its own: bounds add up
    halves = [batch.take_groups(np.arange(0, 3)), batch.take_groups(np.arange(3, 5))]
    parts = [replay(model.local_step(posterior, h, pairs), [Merge(10, 13), Merge(12, 14)]) for h in halves]
    assert float(parts[0]["H"] + parts[1]["H"]) == pytest.approx(float(both["H"]))


def receivers(model, batch, ids, seed):
    rng = np.random.default_rng(seed)
    resp = rng.dirichlet(np.full(len(ids), 0.5), batch.n_atoms)
    return model.global_step(model.summarize(np.array(ids), batch, resp))


def exchanged_chains(posterior, beliefs, batch, donors, ids, noise=None):
    """Chains with the trial carried out, states in the order ``ids``."""
    model = posterior.model
    places = posterior.positions(np.array(donors)).tolist()
    log_lik = model.observation.expected_log_lik(beliefs.observation, batch)
    guide = potentials(posterior, Trial("t", donors, beliefs), np.array(places))
    out, at = [], 0
    for chain in chains_of(posterior, batch):
        n = len(chain.resp)
        new = naive.shared_out(chain, places, log_lik[at : at + n], guide, noise)
        new.check()
        now = [i for i in posterior.ids.tolist() if i not in donors] + beliefs.ids.tolist()
        order = [now.index(i) for i in ids]
        out.append(naive.Chain(new.first[order], new.pairs[:, order][:, :, order], new.weight))
        at += n
    return out


CHANGES = [((12,), (90, 91, 92)), ((11, 13, 14), (13, 14)), ((10, 14), (14, 70)), ((12,), (90,))]


@pytest.mark.parametrize(*in_pairs(change=CHANGES, name=cases(), kind=KINDS))
def test_exchange_with_a_trial(name, kind, change):
    """A birth, a delete with an absorbing set, something of both, and a new name."""
    donors, taking = change
    batch = cases()[name]
    model = model_of(kind, batch)
    posterior = begin(model, batch)
    beliefs = receivers(model, batch, taking, seed=4)
    found = model.visit(posterior, batch, trials=[Trial("t", donors, beliefs)])
    summary = replay(found.summary, [Exchange("t", donors)], found.parts)
    chains = exchanged_chains(posterior, beliefs, batch, donors, summary.ids.tolist())
    check_objective(model, summary, chains, batch)
    again = Summary.from_arrays(model.fields, found.parts["t"].to_arrays())
    assert_allclose(replay(found.summary, [Exchange("t", donors)], {"t": again})["M"], summary["M"])


def test_a_new_state_is_entered_as_all_donors_together_and_left_as_each_of_them():
    batch = sequences()
    model = model_of("plain", batch)
    posterior = begin(model, batch)
    donors = (12, 14)
    places = posterior.positions(np.array(donors))
    beliefs = receivers(model, batch, (70, 71), seed=4)
    _, log_in, log_out, _ = potentials(posterior, Trial("t", donors, beliefs), places)
    trans = np.exp(posterior.allocation.log_trans)
    assert_allclose(np.exp(log_in).sum(axis=1), trans[:, places].sum(axis=1))
    assert_allclose(np.exp(log_out), np.tile(trans[places].mean(axis=0), (2, 1)))


def test_a_trial_gives_the_best_chain_of_its_kind():
    batch = sequences(spread=0.7, seed=4)
    model = model_of("sticky", batch)
    posterior = begin(model, batch)
    donors, taking = (12, 14), (14, 70, 71)
    beliefs = receivers(model, batch, taking, seed=4)
    order = [10, 11, 13, 14, 70, 71]
    log_start, log_in, log_out, log_inner = potentials(
        posterior, Trial("t", donors, beliefs), posterior.positions(np.array(donors))
    )
    log_lik = model.observation.expected_log_lik(beliefs.observation, batch)
    outside = [0, 1, 3]

    def score(chains):
        """The part of the objective that the trial's choice changes."""
        resp = np.concatenate([c.weight * c.resp for c in chains])
        start, trans = naive.counts(chains)
        value = np.vdot(resp[:, 3:], log_lik) + start[3:] @ log_start + np.vdot(trans[3:, 3:], log_inner)
        value += np.vdot(trans[:3, 3:], log_in[outside]) + np.vdot(trans[3:, :3], log_out[:, outside])
        return value + naive.entropy(chains)

    best = score(exchanged_chains(posterior, beliefs, batch, donors, order))
    noise = np.random.default_rng(0)
    for _ in range(30):
        assert score(exchanged_chains(posterior, beliefs, batch, donors, order, noise)) < best


@pytest.mark.parametrize("donors, taking", [((12,), (90, 91)), ((11, 12), (12,))])
def test_a_trial_after_a_merge(donors, taking):
    batch = sequences(spread=0.7, seed=4)
    model = model_of("plain", batch)
    posterior = begin(model, batch)
    pairs = np.array([[10, 13]])
    beliefs = receivers(model, batch, taking, seed=4)
    found = model.visit(posterior, batch, pairs, trials=[Trial("t", donors, beliefs)])
    bounds = []
    for edits in ([Merge(10, 13), Exchange("t", donors)], [Exchange("t", donors), Merge(10, 13)]):
        summary = replay(found.summary, edits, found.parts)
        ids = summary.ids.tolist()
        both = exchanged_chains(posterior, beliefs, batch, donors, [*ids, 13])
        both = [naive.merged(c, ids.index(10), len(ids)) for c in both]
        start, trans = naive.counts(both)
        assert_allclose(summary["M"], trans, atol=1e-9)
        assert_allclose(summary["start"], start, atol=1e-9)
        exact = naive.entropy(both)
        assert float(summary["H"]) <= exact + 1e-9
        if len(donors) == 1:
            assert float(summary["H"]) == pytest.approx(exact)
        bounds.append(float(summary["H"]))
        # totals follow the same edits
        total, part = RunningTotal(found.summary), RunningTotal(model.empty_summary(np.array(taking)))
        part.add(found.parts["t"])
        total.apply(edits, {"t": part})
        assert_allclose(total.value()["M"], summary["M"])
        assert float(total.value()["H"]) == pytest.approx(float(summary["H"]))
    assert bounds[0] == pytest.approx(bounds[1])


TWO = [((10,), (90, 91), (11,), (92, 93)), ((10, 12), (12,), (11, 14), (70, 14)), ((10,), (90,), (11, 12), (12, 80))]


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("first, into, second, onto", TWO)
def test_two_trials_in_one_lap(name, first, into, second, onto):
    batch = cases()[name]
    model = model_of("sticky", batch)
    posterior = begin(model, batch)
    one, two = receivers(model, batch, into, 1), receivers(model, batch, onto, 2)
    found = model.visit(posterior, batch, trials=[Trial("a", first, one), Trial("b", second, two)])
    edits = [Exchange("a", first), Exchange("b", second)]
    summary = replay(found.summary, edits, found.parts)
    turned = replay(found.summary, edits[::-1], found.parts).take(summary.ids)
    chains = two_exchanges(posterior, batch, (first, one), (second, two), summary.ids.tolist())
    start, trans = naive.counts(chains)
    resp = np.concatenate([c.weight * c.resp for c in chains])
    for done in (summary, turned):
        assert_allclose(done["M"], trans, atol=1e-9)
        assert_allclose(done["start"], start, atol=1e-9)
        assert_allclose(done["N"], resp.sum(axis=0), atol=1e-9)
        exact = naive.entropy(chains)
        assert float(done["H"]) <= exact + 1e-9
        if 1 in (len(first), len(second)):
            assert float(done["H"]) == pytest.approx(exact)
    stored = {n: Summary.from_arrays(model.fields, p.to_arrays()) for n, p in found.parts.items()}
    assert_allclose(replay(found.summary, edits, stored)["M"], summary["M"])


def two_exchanges(posterior, batch, a, b, ids):
    """Both trials carried out: the second on the chains that the first leaves."""
    (first, one), (second, two) = a, b
    names = [i for i in posterior.ids.tolist() if i not in first] + one.ids.tolist()
    half = exchanged_chains(posterior, one, batch, first, names)
    alone = exchanged_chains(posterior, two, batch, second,
                             [i for i in posterior.ids.tolist() if i not in second] + two.ids.tolist())  # fmt: skip
    out = []
    gone = [names.index(i) for i in second]
    stay = [i for i in range(len(names)) if i not in gone]
    for chain, other in zip(half, alone, strict=True):
        k, j_all = len(stay), two.n_clusters
        new = slice(k, k + j_all)
        w = other.resp[:, -j_all:]
        mass = np.maximum(w.sum(axis=1), 1e-300)
        pairs = np.zeros((len(chain.pairs), k + j_all, k + j_all))
        for t, s in enumerate(chain.pairs):
            entered = other.pairs[t][:-j_all, -j_all:].sum(axis=0)
            entered /= max(entered.sum(), 1e-300)
            pairs[t, :k, :k] = s[np.ix_(stay, stay)]
            pairs[t, :k, new] = np.outer(s[np.ix_(stay, gone)].sum(axis=1), entered)
            pairs[t, new, :k] = np.outer(w[t] / mass[t], s[np.ix_(gone, stay)].sum(axis=0))
            pairs[t, new, new] = other.pairs[t][-j_all:, -j_all:]
        now = [names[i] for i in stay] + two.ids.tolist()
        order = [now.index(i) for i in ids]
        begin_ = np.concatenate([chain.first[stay], w[0]])
        whole = naive.Chain(begin_[order], pairs[:, order][:, :, order], chain.weight)
        whole.check()
        out.append(whole)
    return out


def test_trials_of_different_visits_cannot_both_be_accepted():
    batch = sequences()
    model = model_of("plain", batch)
    posterior = begin(model, batch)
    trials = [
        Trial("a", (10,), receivers(model, batch, (90, 91), 1)),
        Trial("b", (11,), receivers(model, batch, (92, 93), 2)),
    ]
    parts = {t.name: model.visit(posterior, batch, trials=[t]).parts[t.name] for t in trials}
    summary = model.local_step(posterior, batch)
    with pytest.raises(SummaryError, match="other clusters were shared out since"):
        replay(summary, [Exchange("a", (10,)), Exchange("b", (11,))], parts)


def test_a_trial_with_the_right_receivers_gains():
    """One state for all steps, and a trial that knows the four true ones."""
    batch = sequences(lengths=(80, 60, 70), spread=8.0, seed=6)
    model = model_of("sticky", batch)
    one = model.summarize(np.array([0]), batch, np.ones((batch.n_atoms, 1)))
    posterior = model.global_step(model.local_step(model.global_step(one), batch))
    resp = np.eye(4)[np.argmin(((batch.x[:, None] - centres(6)) ** 2).sum(axis=2), axis=1)]
    beliefs = model.global_step(model.summarize(np.arange(1, 5), batch, resp))
    found = model.visit(posterior, batch, trials=[Trial("t", (0,), beliefs)])
    after = replay(found.summary, [Exchange("t", (0,))], found.parts)

    def value(summary):
        return sum(model.elbo(model.global_step(summary), summary).values())

    assert value(after) > value(found.summary) + 100
    assert value(model.local_step(model.global_step(after), batch)) >= value(after)


def centres(seed):
    return np.random.default_rng(seed).normal(scale=8.0, size=(4, 2))
