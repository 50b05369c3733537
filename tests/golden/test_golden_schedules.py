"""The schedules themselves reproduce the recorded traces, with one batch in flight."""

import numpy as np
import pytest

from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import FullBatch, Memoized, State, Stochastic, Work
from bnp_dask.inference.variational import memoized, stochastic
from tests.batches import Batches
from tests.golden.cases import Case, load, survey_of
from tests.moves.parts import DictMemo


@pytest.fixture
def recorded_order(monkeypatch):
    """Batches are visited in the order of a case."""

    def use(case: Case) -> None:
        for module in (memoized, stochastic):
            monkeypatch.setattr(module, "lap_order", lambda work, lap, order: case.order[lap])

    return use


def trace(case: Case, schedule) -> tuple[list[dict], State]:
    work = Work(case.model, Batches(case.batches), survey_of(*case.batches), SerialExecutor(), DictMemo(), 0)
    summary, _ = case.start()
    state = State.start(case.model, summary, len(case.batches))
    return [step.row for step in schedule.run(work, state) if step.row is not None], state


def check(case: Case, rows: list[dict], state: State) -> None:
    assert len(rows) == case.n_steps
    for name, expected in case.terms.items():
        got = [row[name] for row in rows]
        assert got == pytest.approx(list(expected), rel=1e-9), name
    assert [row["elbo"] for row in rows] == pytest.approx(list(case.arrays["L_total"]), rel=1e-9)
    for part in ("allocation", "observation"):
        compared = case.final(part, state.posterior)
        assert compared
        for name, (expected, actual) in compared.items():
            np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max(), err_msg=name)


def test_memoized(recorded_order):
    """Thesis Algorithm 3.3."""
    case = load("dpmix_gauss_movb")
    recorded_order(case)
    laps = case.n_steps // len(case.batches)
    rows, state = trace(case, Memoized(laps=laps, window=1, delay=0.0, tolerance=0.0, count_tolerance=0.0))
    check(case, rows, state)
    assert {row["action"] for row in rows} == {"folded"}
    np.testing.assert_allclose(state.total.value()["N"], case.sizes[-1], rtol=1e-9, atol=1e-9)


def test_stochastic(recorded_order):
    """Thesis Algorithm 3.2."""
    case = load("dpmix_gauss_sovb")
    recorded_order(case)
    delay, decay = float(case.arrays["hyper_rhodelay"]), float(case.arrays["hyper_rhoexp"])
    schedule = Stochastic(laps=case.n_steps // len(case.batches), window=1, delay=delay, decay=decay, tolerance=0.0)
    rows, state = trace(case, schedule)
    assert [row["learning_rate"] for row in rows] == pytest.approx(list(case.arrays["learning_rate"]), rel=1e-14)
    check(case, rows, state)


@pytest.mark.parametrize("name", ["dpmix_gauss_vb", "dpmix_gauss_vb_sparse2", "dpmix_zmgauss_vb", "dpmix_mult_vb"])
@pytest.mark.parametrize("kind", [FullBatch, Memoized])
def test_full_batch(name, kind):
    """Thesis Algorithm 3.1; memoized is the same with one batch."""
    case = load(name)
    rows, state = trace(case, kind(laps=case.n_steps, window=1, tolerance=0.0, count_tolerance=0.0))
    check(case, rows, state)
