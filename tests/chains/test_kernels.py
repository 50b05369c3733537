"""Forward-backward against all paths; impossible steps; sums, losses and most likely paths."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp, softmax

from bnp_dask.kernels import hmm as kernel
from bnp_dask.kernels.hmm import Block, find_block, merge_losses, share_block
from tests.chains import naive


def problem(n, k, seed, scale=3.0):
    rng = np.random.default_rng(seed)
    log_start = np.log(rng.dirichlet(np.ones(k)))
    log_trans = np.log(rng.dirichlet(np.full(k, 0.5), k))
    log_lik = rng.normal(size=(n, k)) * scale
    return log_start, log_trans, log_lik - log_lik.max(axis=1, keepdims=True)


def run(log_start, log_trans, log_lik, offsets=None, weights=None):
    offsets = np.array([0, len(log_lik)]) if offsets is None else np.asarray(offsets)
    weights = np.ones(len(offsets) - 1) if weights is None else weights
    return kernel.forward_backward(log_start, log_trans, log_lik, offsets, weights)


@pytest.mark.parametrize("n, k", [(1, 1), (1, 4), (5, 1), (2, 3), (5, 3), (3, 9), (4, 8)])
def test_against_all_paths(n, k):
    args = problem(n, k, n + k)
    norm, chain, entropy, best = naive.all_paths(*args)
    found = run(*args)
    assert found.scaled.all()
    assert found.log_norm[0] == pytest.approx(norm, abs=1e-12)
    pairs = found.pair_sums()
    assert_allclose(found.resp, chain.resp, atol=1e-13)
    assert_allclose(pairs, chain.pairs.sum(axis=0), atol=1e-13)
    linear = np.vdot(found.resp, args[2]) + np.vdot(pairs, args[1]) + found.resp[0] @ args[0]
    assert found.log_norm[0] - linear == pytest.approx(entropy, abs=1e-12)
    assert naive.entropy([chain]) == pytest.approx(entropy, abs=1e-12)
    assert kernel.viterbi(*args, np.array([0, n])).tolist() == list(best)


def test_many_sequences_with_weights_and_none_at_all():
    log_start, log_trans, log_lik = problem(40, 5, 0)
    offsets = [0, 0, 13, 14, 40, 40]
    weights = np.array([7.0, 0.5, 2.0, 1.0, 3.0])
    found = run(log_start, log_trans, log_lik, offsets, weights)
    expected = np.zeros((5, 5))
    for g, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        if a < b:
            norm, chain = naive.forward_backward(log_start, log_trans, log_lik[a:b])
            expected += weights[g] * chain.pairs.sum(axis=0)
            assert_allclose(found.resp[a:b], chain.resp, atol=1e-12)
            assert found.log_norm[g] == pytest.approx(norm)
    assert_allclose(found.pair_sums(), expected, atol=1e-12)
    nothing = run(log_start, log_trans, np.zeros((0, 5)), [0, 0])
    assert not nothing.pair_sums().any()
    assert kernel.viterbi(log_start, log_trans, np.zeros((0, 5)), np.array([0, 0])).size == 0


def test_long_sequences_keep_their_digits():
    args = problem(20_000, 4, 1)
    norm, chain = naive.forward_backward(*args)
    found = run(*args)
    assert found.log_norm[0] == pytest.approx(norm, rel=1e-12)
    assert_allclose(found.pair_sums(), chain.pairs.sum(axis=0), rtol=1e-9)


@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 17, 25, 40])
def test_any_number_of_states(k):
    args = problem(30, k, k)
    norm, chain = naive.forward_backward(*args)
    found = run(*args)
    assert found.log_norm[0] == pytest.approx(norm, rel=1e-13)
    assert_allclose(found.resp, chain.resp, atol=1e-14)
    assert_allclose(found.pair_sums(), chain.pairs.sum(axis=0), atol=1e-13)


def test_what_a_step_is_not_in_costs_no_digits():
    """Responsibilities up to 2**-53 are zero, and nothing that is added up knows the difference."""
    log_start, log_trans, log_lik = problem(400, 12, 5, scale=60.0)
    norm, chain = naive.forward_backward(log_start, log_trans, log_lik)
    found = run(log_start, log_trans, log_lik)
    assert (found.resp == 0.0).mean() > 0.4
    assert found.resp[found.resp > 0.0].min() > 2.0**-53
    assert found.log_norm[0] == pytest.approx(norm, rel=1e-14)
    pairs = found.pair_sums()
    assert_allclose(found.resp, chain.resp, atol=1e-14)
    assert_allclose(pairs, chain.pairs.sum(axis=0), atol=1e-12)
    linear = np.vdot(found.resp, log_lik) + np.vdot(pairs, log_trans) + found.resp[0] @ log_start
    assert norm - linear == pytest.approx(naive.entropy([chain]), rel=1e-12)


@pytest.mark.parametrize("depth", [300.0, 900.0, 5000.0, 1e5])
def test_very_unlikely_steps(depth):
    """States that exclude one another for hundreds of nats, where scaled numbers are zero."""
    log_start, log_trans, log_lik = problem(30, 4, 2)
    log_trans = np.where(np.eye(4) > 0, 0.0, -depth) + 0.01 * log_trans
    log_lik[:15, 1:] -= 0.8 * depth
    log_lik[15:, 0] -= 0.03 * depth
    log_lik -= log_lik.max(axis=1, keepdims=True)
    norm, chain = naive.forward_backward(log_start, log_trans, log_lik)
    found = run(log_start, log_trans, log_lik)
    assert found.log_norm[0] == pytest.approx(norm, rel=1e-11)
    assert_allclose(found.resp, chain.resp, atol=1e-9)
    assert_allclose(found.pair_sums(), chain.pairs.sum(axis=0), atol=1e-8)


def test_impossible_steps_and_states():
    log_start, log_trans, log_lik = problem(12, 4, 3)
    log_trans[0, 1:] = kernel.NEVER
    log_trans[:, 3] = kernel.NEVER
    log_start[0] = kernel.NEVER
    log_lik[5, :2] = kernel.NEVER
    norm, chain = naive.forward_backward(log_start, log_trans, log_lik)
    found = run(log_start, log_trans, log_lik)
    assert found.log_norm[0] == pytest.approx(norm)
    assert_allclose(found.resp, chain.resp, atol=1e-12)
    assert np.isfinite(found.resp).all()
    # every way is impossible but for numbers of that size: still a posterior
    log_lik[6, 2:] = kernel.NEVER
    assert_allclose(run(log_start, log_trans, log_lik).resp.sum(axis=1), 1.0)


def logarithmic(args):
    """The same problem with every sequence done by logarithms."""
    log_start, log_trans, log_lik = args
    n, k = log_lik.shape
    pairs = np.zeros((k, k))
    alpha, beta, resp = (np.empty((n, k)) for _ in range(3))
    norm = kernel._logarithmic(log_start, log_trans, log_lik, alpha, beta, resp, pairs)
    zero = np.zeros((n, k))
    no = np.zeros(1, np.int64)
    return kernel.Chains(resp, zero, zero, np.exp(log_trans), np.zeros(1, bool), np.array([norm]), pairs, no)


def test_losses_and_blocks_of_both_kinds_of_sequences():
    args = problem(25, 6, 4, scale=1.0)
    offsets, weights = np.array([0, 25]), np.ones(1)
    scaled, logs = run(*args), logarithmic(args)
    assert_allclose(logs.resp, scaled.resp, atol=1e-12)
    assert_allclose(logs.pair_sums(), scaled.pair_sums(), atol=1e-12)
    sets = [np.array([0, 3]), np.array([1, 2, 5])]
    chain = naive.forward_backward(*args)[1]
    exact = merge_losses(scaled, offsets, weights, sets)
    after = naive.merged(chain, 0, 3)
    assert exact[0] == pytest.approx(naive.entropy([chain]) - naive.entropy([after]))
    three = naive.merged(naive.merged(chain, 1, 5), 1, 2)
    assert exact[1] == pytest.approx(naive.entropy([chain]) - naive.entropy([three]))
    assert (merge_losses(logs, offsets, weights, sets) >= exact - 1e-12).all()
    for donors in sets:
        blocks = [find_block(c, offsets, weights, donors, *args) for c in (scaled, logs)]
        for a, b in zip(*blocks, strict=True):
            assert_allclose(a, b, atol=1e-12)


def test_receivers_of_a_block_that_is_certain_are_chains_of_their_own():
    """Where it is certain which steps are in the block, each run of them is a chain, which its ends pull on."""
    rng, inside = np.random.default_rng(6), -1
    path = [3, inside, inside, inside, 1, inside] + [inside, inside, 0, inside]
    offsets, weights, n_states, width = np.array([0, 6, 6, 10]), np.array([1.5, 9.0, 0.5]), 5, 3
    runs = [(1, 4, 3, 1, 0), (5, 6, 1, None, 0), (6, 8, None, 0, 2), (9, 10, 0, None, 2)]  # steps, ends, sequence
    steps = np.flatnonzero(np.array(path) == inside)
    mass, stay = np.zeros(10), np.zeros(10)
    mass[steps] = 1.0
    enter, leave = np.zeros((len(steps), n_states)), np.zeros((len(steps), n_states))
    for first, last, before, after, _ in runs:
        stay[first : last - 1] = 1.0
        if before is not None:
            enter[steps == first, before] = 1.0
        if after is not None:
            leave[steps == last - 1, after] = 1.0
    log_lik, log_start, log_inner = (
        rng.normal(size=(len(steps), width)),
        rng.normal(size=width),
        rng.normal(size=(3, 3)),
    )
    log_in, log_out = rng.normal(size=(n_states, width)), rng.normal(size=(width, n_states))
    block = Block(steps, mass, stay, enter, leave)
    found = share_block(offsets, weights, block, log_lik, log_start, log_in, log_out, log_inner)
    pairs, gain = np.zeros((width, width)), 0.0
    for first, last, before, after, g in runs:
        own = log_lik[(steps >= first) & (steps < last)].copy()
        own[-1] += 0.0 if after is None else log_out[:, after]
        _, chain, entropy, _ = naive.all_paths(log_start if before is None else log_in[before], log_inner, own)
        assert_allclose(found.mass[first:last], chain.resp, atol=1e-12)
        assert_allclose(found.first[first], chain.resp[0], atol=1e-12)
        pairs += weights[g] * chain.pairs.sum(axis=0)
        gain += weights[g] * entropy
    assert_allclose(found.pairs, pairs, atol=1e-12)
    assert_allclose(found.gain[0], gain, rtol=1e-12)
    assert not found.mass[mass == 0.0].any()


def test_weights_of_sequences_that_are_done_with_logarithms():
    """Steps that exclude one another; the weight of a sequence counts every one of its steps."""
    log_start, log_trans, log_lik = problem(30, 4, 2)
    log_trans = np.where(np.eye(4) > 0, 0.0, -900.0) + 0.01 * log_trans
    log_lik[4:10, 1:] -= 720.0
    log_lik[10:16, 0] -= 720.0
    log_lik -= log_lik.max(axis=1, keepdims=True)
    offsets, weights = np.array([0, 4, 16, 30]), np.array([1.0, 2.5, 0.5])
    found = run(log_start, log_trans, log_lik, offsets, weights)
    assert found.scaled.tolist() == [True, False, True]
    chains = [naive.forward_backward(log_start, log_trans, log_lik[a:b])[1] for a, b in ((0, 4), (4, 16), (16, 30))]
    expected = sum(w * chain.pairs.sum(axis=0) for w, chain in zip(weights, chains, strict=True))
    assert_allclose(found.extra, 2.5 * chains[1].pairs.sum(axis=0), atol=1e-9)
    assert_allclose(found.pair_sums(), expected, atol=1e-8)
    assert found.pair_sums().sum() == pytest.approx(weights @ (np.diff(offsets) - 1))


@pytest.mark.parametrize("place", range(4))
def test_a_likelihood_that_is_no_number_shows_in_its_row(place):
    """Anywhere in the row, whatever stands beside it: the other rows are as they would be."""
    rows = np.array([[-3.0, 5.0, -np.inf, 1.0], [2.0, 1.0, 0.0, -1.0], [-np.inf] * 4])
    clean, broken = rows.copy(), rows.copy()
    top = kernel.shift_rows(clean)
    assert top.tolist() == [5.0, 2.0, -np.inf]
    assert clean[0].tolist() == [-8.0, 0.0, kernel.NEVER, -4.0]
    broken[0, place] = np.nan
    found = kernel.shift_rows(broken)
    assert np.isnan(found[0]) and found[1:].tolist() == top[1:].tolist()
    assert broken[1].tolist() == clean[1].tolist()


# -- by hand -------------------------------------------------------------------------------------------------------
def test_values_of_lagged_rows_belong_to_steps_and_short_sequences_have_their_own():
    offsets = np.array([0, 4, 6, 6, 7, 10])  # of four, two, no, one and three steps
    index, kept = kernel.lagged_rows(offsets, 2)
    assert index.tolist() == [2, 3, 9] and kept.tolist() == [0, 2, 2, 2, 2, 3]
    rows = kernel.with_lags(np.arange(20.0).reshape(10, 2), index, 2)
    assert rows[0].tolist() == [4.0, 5.0, 2.0, 3.0, 0.0, 1.0]  # the step, then the one before
    found = kernel.spread(np.array([10, 11, 12]), offsets, 2, np.array(-1))
    assert found.tolist() == [10, 10, 10, 11, -1, -1, -1, 12, 12, 12]
    pairs = kernel.spread(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), offsets, 2, np.array([0.5, 0.25]))
    assert pairs[3].tolist() == [3.0, 4.0] and pairs[4].tolist() == [0.5, 0.25] and pairs.shape == (10, 2)


def test_receivers_share_a_block_that_is_entered_and_left_as_is_best_for_its_objective():
    """What the best shares attain is the sum, over entries of the block, of the log of all that may follow."""
    rng = np.random.default_rng(0)
    offsets, weights = np.array([0, 4, 4, 8]), np.array([2.0, 9.0, 0.5])
    mass = np.array([0.5, 0.8, 0.3, 0.6, 0.9, 0.0, 0.4, 0.7])
    stay = np.array([0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.35, 0.0])
    stay[3] = 0.2  # of no step in the same sequence: it must not count
    before = np.array([0.0, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.35])
    steps = np.flatnonzero(mass)
    enter, leave = 0.1 * rng.random((len(steps), 3)), 0.1 * rng.random((len(steps), 3))
    lik, start = rng.normal(size=(len(steps), 2)), rng.normal(size=2)
    log_in, log_out, inner = rng.normal(size=(3, 2)), rng.normal(size=(2, 3)), rng.normal(size=(2, 2))
    block = Block(steps, mass, stay, enter, leave)
    assert block.entered_from(np.array([0, 2]))[steps].tolist() == enter[:, [0, 2]].sum(axis=1).tolist()
    found = share_block(offsets, weights, block, lik, start, log_in, log_out, inner)
    own, coming, going = np.zeros((3, 8, 2))
    own[steps], coming[steps], going[steps] = lik, enter @ log_in, leave @ log_out.T
    coming[[0, 4]] += mass[[0, 4], None] * start
    wanted, first, gain, best, pairs = np.zeros((8, 2)), np.zeros((8, 2)), 0.0, 0.0, np.zeros((2, 2))
    worth = np.zeros((9, 2))
    ends = [3, 7]
    for t in steps[::-1]:
        on = 0.0 if t in ends or not mass[t + 1] else stay[t] / mass[t]
        worth[t] = own[t] + going[t] / mass[t] + on * logsumexp(inner + worth[t + 1], axis=1)
    times = np.repeat([2.0, 0.5], 4)
    for t in steps:
        new = mass[t] - before[t]
        scores = coming[t] / new + worth[t]
        first[t] = softmax(scores)
        best += times[t] * new * logsumexp(scores)
        wanted[t] += new * first[t]
        if before[t]:
            moved = (wanted[t - 1] * before[t] / mass[t - 1])[:, None] * softmax(inner + worth[t], axis=1)
            pairs += times[t] * moved
            wanted[t] += moved.sum(axis=0)
    assert_allclose(found.mass, wanted, atol=1e-13)
    assert_allclose(found.mass.sum(axis=1), mass, atol=1e-13)
    assert_allclose(found.first, first, atol=1e-13)
    assert_allclose(found.pairs, pairs, atol=1e-13)
    held = np.divide(found.mass, mass[:, None], out=np.zeros((8, 2)), where=mass[:, None] > 0)
    gain = found.gain[0] + (times[:, None] * (found.mass * own + held * going + found.first * coming)).sum()
    assert gain + (found.pairs * inner).sum() == pytest.approx(best, rel=1e-12)


def test_the_normaliser_of_a_piece_counts_each_sequence_by_its_weight():
    log_start, log_trans, log_lik = problem(9, 3, 1)
    offsets, weights = np.array([0, 2, 6, 9]), np.array([2.0, 0.5, 7.0])
    each = run(log_start, log_trans, log_lik, offsets).log_norm
    moves, space = kernel.Transitions.of(log_start, log_trans), kernel.Space.of(3)
    lik, filtered = kernel.aligned(9, 8), kernel.aligned(9, 8)
    kernel.likelihoods(log_lik, space, lik)
    rows = kernel.Rows.of(offsets, weights)
    found = kernel.sweep_forth(rows, moves, lik, moves.start, filtered, space)
    assert found == pytest.approx(weights @ each, rel=1e-12)
    part = rows.part(2, 9)
    assert part.begins.tolist() == [True, False, False, False, True, False, False]
    assert part.ends.tolist() == [False, False, False, True, False, False, True]
    assert part.weights.tolist() == [0.5] * 4 + [7.0] * 3


def test_results_of_first_steps_and_of_sequences_done_with_logarithms_are_zero():
    log_start, log_trans, log_lik = problem(9, 3, 2)
    log_trans[0, 1:] = log_trans[1, [0, 2]] = log_trans[2, :2] = kernel.NEVER  # no way from state to state
    log_lik[4], log_lik[5] = [0.0, -900.0, -900.0], [-900.0, 0.0, -900.0]
    found = run(log_start, log_trans, log_lik, [0, 3, 6, 9], np.array([1.0, 2.0, 3.0]))
    assert found.scaled.tolist() == [True, False, True]
    assert not found.grow[[0, 6]].any() and found.grow[[1, 2, 7, 8]].any(axis=1).all()
    assert not found.grow[3:6].any() and not found.filtered[3:6].any() and found.found[1] == 0


def test_of_equally_likely_paths_the_first_is_taken_and_rows_are_shifted_by_their_largest():
    assert kernel.viterbi(np.zeros(4), np.zeros((4, 4)), np.zeros((5, 4)), np.array([0, 2, 5])).tolist() == [0] * 5
    values = np.array([[1.0, 1.5, 1.25], [-3.0, -9.0, -2.75], [0.0, -1e300, 0.5]])
    assert kernel.shift_rows(values).tolist() == [1.5, -2.75, 0.5]
    assert values.tolist() == [[-0.5, 0.0, -0.25], [-0.25, -6.25, 0.0], [-0.5, kernel.NEVER, 0.0]]


@pytest.mark.parametrize("far", [False, True])
def test_a_path_is_drawn_backwards_by_the_numbers_that_are_given(far):
    """Also by logarithms, where a step is beyond what scaling can hold; a number of zero draws no impossible state."""
    rng = np.random.default_rng(3)
    log_start, log_trans, log_lik = problem(30, 4, 3)
    offsets = np.array([0, 12, 12, 13, 30])
    if far:  # states at 700 nats below: the first step says one, the next the other, which no step leads to
        log_trans[0, 1] = log_trans[2, 1] = log_trans[3, 1] = kernel.NEVER
        log_lik[[4, 20]] = [0.0, -800.0, -800.0, -800.0]
        log_lik[[5, 21]] = [-800.0, 0.0, -800.0, -800.0]
    uniform = rng.random(30)
    uniform[[0, 3, 12, 29]] = 0.0
    log_start[0] = kernel.NEVER  # the single step of the third sequence is in another state than the first
    path, wanted = kernel.draw_paths(log_start, log_trans, log_lik, offsets, uniform), np.empty(30, int)
    for first, last in zip(offsets[:-1], offsets[1:], strict=True):
        alpha = np.empty((last - first, 4))
        for t in range(last - first):
            before = log_start if t == 0 else logsumexp(alpha[t - 1][:, None] + log_trans, axis=0)
            alpha[t] = before + log_lik[first + t]
        for t in range(last - first - 1, -1, -1):
            terms = alpha[t] + (log_trans[:, wanted[first + t + 1]] if first + t + 1 < last else 0.0)
            reached = np.cumsum(softmax(terms))
            wanted[first + t] = int(np.argmax(reached > uniform[first + t] * reached[-1]))
    assert path.tolist() == wanted.tolist()
    assert path[12] != 0


@pytest.mark.parametrize("depth", [3.0, 900.0])
def test_a_block_is_that_of_single_sequences_whatever_their_weights(depth):
    log_start, log_trans, log_lik = problem(11, 4, 5)
    log_lik[5] = [-depth, 0.0, -depth, -depth]
    offsets, donors = np.array([0, 4, 4, 8, 11]), np.array([1, 3])
    for weights in (np.ones(4), np.array([3.0, 1.0, 0.25, 8.0])):
        chains = run(log_start, log_trans, log_lik, offsets, weights)
        block = find_block(chains, offsets, weights, donors, log_start, log_trans, log_lik)
        for first, last in ((0, 4), (4, 8), (8, 11)):
            _, chain = naive.forward_backward(log_start, log_trans, log_lik[first:last])
            own = slice(first, last)
            assert_allclose(block.mass[own], chain.resp[:, donors].sum(axis=1), atol=1e-12)
            among = [chain.pairs[t][np.ix_(donors, donors)].sum() for t in range(last - first - 1)]
            assert_allclose(block.stay[own], [*among, 0.0], atol=1e-12)
            others = np.array([0, 2])
            into = np.zeros((last - first, 4))
            out = np.zeros((last - first, 4))
            for t in range(last - first - 1):
                into[t + 1, others] = chain.pairs[t][np.ix_(others, donors)].sum(axis=1)
                out[t, others] = chain.pairs[t][np.ix_(donors, others)].sum(axis=0)
            here = (block.steps >= first) & (block.steps < last)
            assert_allclose(block.enter[here], into[block.steps[here] - first], atol=1e-12)
            assert_allclose(block.leave[here], out[block.steps[here] - first], atol=1e-12)


def test_what_a_union_loses_is_the_weighted_sum_of_what_it_loses_in_each_sequence():
    log_start, log_trans, log_lik = problem(9, 4, 6, scale=0.5)
    offsets, weights = np.array([0, 1, 1, 5, 6, 9]), np.array([3.0, 9.0, 0.5, 0.25, 2.0])
    sets = [np.array([0, 2]), np.array([1, 2, 3])]
    found = merge_losses(run(log_start, log_trans, log_lik, offsets, weights), offsets, weights, sets)
    total = np.zeros(2)
    for weight, first, last in zip(weights, offsets[:-1], offsets[1:], strict=True):
        if last > first:
            own = np.array([0, last - first])
            alone = run(log_start, log_trans, log_lik[first:last], own)
            total += weight * merge_losses(alone, own, np.ones(1), sets)
    assert_allclose(found, total, rtol=1e-9)
    one = run(log_start, log_trans, log_lik[:1], [0, 1]).resp[0]  # of a single step: the entropy of one state less
    lost = [-(one[s] * np.log(one[s])).sum() + one[s].sum() * np.log(one[s].sum()) for s in sets]
    assert_allclose(
        merge_losses(run(log_start, log_trans, log_lik[:1]), np.array([0, 1]), np.ones(1), sets), lost, rtol=1e-9
    )
