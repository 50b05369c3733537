"""The local step in pieces finds what the one on whole sequences finds, wherever the pieces are cut."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.allocation import chain_step
from bnp_dask.core.batch import Batch
from bnp_dask.errors import NumericalError
from tests.chains.parts import KINDS, begin, model_of, sequences

PAIRS = np.array([[10, 13], [14, 12]])


@pytest.fixture(params=[1, 2, 3, 7, 1000], ids="{} rows".format)
def pieces(request, monkeypatch):
    """So many rows in a piece."""
    monkeypatch.setattr(chain_step, "PIECE_NUMBERS", 1)
    monkeypatch.setattr(chain_step, "FEWEST", request.param)


def both_ways(posterior, batch, pairs=PAIRS):
    """Summaries of a visit that looks for rows, which needs whole sequences, and of one that does not."""
    model = posterior.model
    whole = model.visit(posterior, batch, pairs, sought=[10]).summary
    return whole, model.visit(posterior, batch, pairs).summary


def assert_same(whole, swept):
    for name in whole.values:
        assert_allclose(swept[name], whole[name], rtol=1e-11, atol=1e-11, err_msg=name)
    for name in whole.pair_values:
        assert_allclose(swept.pair_values[name], whole.pair_values[name], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_pieces_add_up(pieces, kind, weighted):
    batch = sequences(weighted=weighted, spread=1.5)
    assert_same(*both_ways(begin(model_of(kind, batch), batch), batch))


def test_sequences_that_do_not_count(pieces):
    batch = sequences(weighted=True)
    weights = np.where(np.arange(batch.n_atoms) < 31, 0.0, batch.weights)
    none = replace(batch, weights=weights)
    assert_same(*both_ways(begin(model_of("sticky", batch), batch), none))


@pytest.mark.parametrize("lengths", [(0,), (1,), (1, 1, 1), (0, 2, 0)])
def test_hardly_any_steps(pieces, lengths):
    batch = sequences()
    posterior = begin(model_of("sticky", batch), batch)
    assert_same(*both_ways(posterior, sequences(lengths)))


def test_what_scaled_numbers_do_not_reach_is_done_by_logarithms(pieces):
    state = np.repeat([0, 1, 0], [5, 6, 4])
    rng = np.random.default_rng(0)
    batch = Batch(state[:, None] * 4000.0 + rng.normal(size=(15, 2)), groups=np.array([0, 8, 15]))
    model = model_of("plain", batch)
    posterior = model.global_step(model.summarize(np.array([10, 13]), batch, np.eye(2)[state]))
    stuck = np.where(np.eye(2) > 0, 0.0, -5000.0)
    posterior = replace(posterior, allocation=replace(posterior.allocation, log_trans=stuck))
    pieces = model.structure.sweep(model, posterior, batch, np.zeros((0, 2), np.int64))
    logarithms = [step.chain is not None for _, step in pieces]
    assert logarithms == [True]  # the tile as one piece, with the state of whole sequences
    whole, swept = both_ways(posterior, batch, PAIRS[:1])
    for name in whole.values:
        assert_array_equal(swept[name], whole[name])


def test_rows_come_with_their_responsibilities(pieces):
    batch = sequences((9, 5, 11))
    posterior = begin(model_of("sticky", batch), batch)
    no_pairs = np.zeros((0, 2), np.int64)
    (_, whole), found = next(posterior.model.steps(posterior, batch)), np.zeros((0, 5))
    for piece, step in posterior.model.structure.sweep(posterior.model, posterior, batch, no_pairs):
        assert len(piece.x) == len(step.resp)
        found = np.concatenate([step.resp, found])
    assert_allclose(found, whole.resp, atol=1e-13)


def test_messages_name_the_row_of_the_batch(pieces):
    batch = sequences((9, 5, 11))
    posterior = begin(model_of("plain", batch), batch)
    x = batch.x.copy()
    x[17] = 1e200
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(NumericalError, match=r"broken, row 17: its log"):
        posterior.model.local_step(posterior, Batch(x, name="broken", groups=batch.groups))


def test_a_long_sequence_keeps_two_numbers_per_step_and_state():
    k, n = 24, 20_000
    x = np.random.default_rng(0).normal(size=(n, 2))
    batch = Batch(x, groups=np.array([0, n]))
    posterior = begin(model_of("sticky", batch), batch, k=k)
    one = 8 * k * n
    piece = 8 * chain_step.PIECE_NUMBERS

    def peak(**settings):
        posterior.model.visit(posterior, batch, **settings)  # compiled, and tables made
        tracemalloc.start()
        try:
            posterior.model.visit(posterior, batch, **settings)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak() < 2 * one + 8 * piece
    assert peak(sought=[10]) > 4 * one  # who looks at rows needs whole sequences
