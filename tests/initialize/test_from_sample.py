"""Runs that begin on a sample of the batches, which grows to all of them."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference.state import Sample
from bnp_dask.inference.variational.memoized import CALM, COUNTED, grow, sampling_error

DATA = bnp.VirtualMixture(1_080, 2, 4, spread=12.0, batch_size=60)
START = bnp.FromSample(bnp.BregmanKMeans(3), batches=2, growth=3.0)
MODEL = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())


def run(data=DATA, model=MODEL, init=START, **more):
    settings = {"schedule": bnp.Memoized(laps=20), "rng": 0, **more}
    return bnp.train(model, data, init=init, **settings)


@cache
def whole():
    """The run of the settings above."""
    return run()


def same(one, other):
    for name, value in one.posterior.summary.values.items():
        assert np.array_equal(value, other.posterior.summary[name]), name
    assert [row["elbo"] for row in one.history] == [row["elbo"] for row in other.history]


def test_the_error_of_a_sample_is_half_a_nat_for_each_number_that_its_atoms_can_show():
    # the mean gain of a fit over the true parameters: of a Gaussian's mean and covariance, 2 + 3 numbers and a count
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian(nu=5.0, B=1.0, m=np.zeros(2), kappa=1.0, center=np.zeros(2)))
    assert sampling_error(model, np.array([100.0, 2.5])) == 0.5 * (6 + 2.5)


def laps_of(result):
    """Last row of each lap, and number of batches visited in it."""
    rows: dict[int, list] = {}
    for row in result.history:
        rows.setdefault(row["lap"], []).append(row)
    return [(own[-1], sum(row["n_batches"] for row in own)) for own in rows.values()]


class StopsAfter:
    """Callback that stops a run after some laps."""

    def __init__(self, laps):
        self.laps = laps

    def on_start(self, info):
        return None

    def on_batch(self, done):
        return None

    def on_lap(self, row, posterior):
        return row["lap"] == self.laps

    def on_end(self, reason):
        return None


def test_samples_are_nested_and_the_last_holds_all():
    assert bnp.FromSample().sizes(3815) == (14, 59, 238, 953, 3815)
    assert START.sizes(18) == (2, 6, 18)
    assert bnp.FromSample().sizes(20) == (20,)


def test_a_grown_sample_visits_its_new_batches_once_and_keeps_the_statistics_of_the_others():
    found = whole()
    samples = [row.get("sample", 18) for row, _ in laps_of(found)]
    assert samples == sorted(samples) and set(samples) == {2, 6, 18}
    for (row, n), before in zip(laps_of(found), [0, *samples], strict=False):
        new = row.get("sample", 18)
        assert n == (new - before if new > before else new)
        assert row["atoms"] == pytest.approx(60.0 * new)
    assert found.posterior.summary["N"].sum() == pytest.approx(1_080)
    assert found.posterior.n_clusters == 4


GROWTHS = {
    # stage, lap on the sample, calm, calm laps, quiet, finished, still laps; then whether it grows, and the calm laps
    # that count
    "neither calm nor out of laps": ((0, 1, False, 0.0, False, None, 0), False, 0.0),
    "calm for some laps, moves still propose": ((0, 1, True, CALM, False, None, 0), True, 0.0),
    "calm, but not for long": ((0, 1, True, CALM - 0.5, False, None, 0), False, 0.0),
    "calm and quiet": ((0, 1, True, 1.0, True, None, 0), True, 0.0),
    "quiet alone": ((0, 1, False, 0.0, True, None, 0), False, 0.0),
    "as many laps as it may have": ((0, 5, False, 0.0, False, None, 0), True, 0.0),
    "one lap before": ((0, 4, False, 0.0, False, None, 0), False, 0.0),
    "converged": ((0, 1, False, 1.0, False, "converged", 0), True, 0.0),
    "the last before all, calm": ((1, 1, True, CALM + 1.0, False, None, 0), False, 0.0),
    "the last before all, converged": ((1, 1, True, COUNTED - 0.5, False, "converged", 0), True, COUNTED - 0.5),
    "its clusters stay": ((0, 1, False, 0.0, False, None, 2), True, 0.0),
    "its clusters stayed once": ((0, 1, False, 0.0, False, None, 1), False, 0.0),
    "the last before all, its clusters stay": ((1, 1, False, 0.0, False, None, 4), False, 0.0),
    "the last before all, its clusters stay for long": ((1, 1, True, 1.25, False, None, 5), True, 1.25),
    "the last before all, calm for long": ((1, 1, True, COUNTED + 2.0, True, None, 0), True, COUNTED),
}


@pytest.mark.parametrize(("before", "grows", "counted"), GROWTHS.values(), ids=GROWTHS)
def test_a_sample_grows_once_it_is_settled_or_out_of_laps(before, grows, counted):
    stage, n, calm, calm_laps, is_quiet, finished, still = before
    sample = Sample((2, 6, 18), laps=6, stage=stage, begun=10, still=still)
    state = SimpleNamespace(sample=sample, lap=10 + n, calm=calm, calm_laps=calm_laps, finished=finished)
    state.lap_elbo, state.lap_counts = -5.0, np.ones(2)
    grow(state, is_quiet)
    assert state.finished is None  # no run ends on a sample
    if grows:
        assert state.sample == Sample((2, 6, 18), 6, stage + 1, begun=11 + n, calm=counted)
        assert (state.lap_elbo, state.lap_counts, state.calm, state.calm_laps) == (None, None, False, 0.0)
    else:
        assert state.sample is sample
        assert (state.lap_elbo, state.calm, state.calm_laps) == (-5.0, calm, calm_laps)


@pytest.mark.parametrize("sample", [None, Sample((2, 6), 6, stage=1)])
def test_all_data_do_not_grow(sample):
    state = SimpleNamespace(sample=sample, lap=20, calm=True, calm_laps=9.0, finished="converged")
    grow(state, True)
    assert vars(state) == {"sample": sample, "lap": 20, "calm": True, "calm_laps": 9.0, "finished": "converged"}


def test_the_objective_falls_only_where_a_sample_grows():
    rows = list(whole().history)
    for before, row in zip(rows[1:], rows[2:], strict=False):
        if row["gain"] is not None:
            assert row["elbo"] >= before["elbo"] - 1e-9 * abs(before["elbo"])


def test_the_objective_is_that_of_all_data_under_the_posterior():
    found = whole()
    x = np.concatenate([DATA.reader(b)().x for b in range(DATA.n_batches)])
    once = bnp.train(
        found.posterior.model, x, init=bnp.FromPosterior(found.posterior), moves=(), schedule=bnp.Memoized(laps=30)
    )
    assert found.history[-1]["elbo"] == pytest.approx(once.history[-1]["elbo"], rel=1e-9)


@pytest.mark.first_case
@pytest.mark.parametrize("laps", [4, 2, 9])
def test_a_run_that_is_stopped_on_a_sample_or_after_it_goes_on_to_the_same_bits(tmp_path, laps):
    first = run(store=tmp_path / "run", callbacks=[StopsAfter(laps)])
    assert not first.converged
    assert first.posterior.summary["N"].sum() <= 1_080
    same(run(store=tmp_path / "run", resume=True), whole())


@pytest.mark.long
def test_bits_do_not_depend_on_workers(tmp_path):
    same(run(client=ThreadExecutor(3), store=tmp_path / "run"), whole())


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_laps_on_samples_do_not_count_as_laps_of_the_schedule():
    found = run(schedule=bnp.Memoized(laps=2, tolerance=0.0), moves=())
    assert found.reason.startswith("limit")
    assert sum(row.get("sample") is None for row, _ in laps_of(found)) == 2


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["topics", "states"])
def test_topics_and_sequences_begin_on_a_sample_too(kind):
    rng = np.random.default_rng(0)
    if kind == "topics":
        words = rng.dirichlet(np.full(12, 0.2), 3)
        counts = np.stack([rng.multinomial(30, words[i % 3]) for i in range(120)])
        data, model, more = sparse.csr_array(counts), bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), {"batch_size": 10}
    else:
        rows = rng.normal(np.repeat(np.arange(48) % 3, 10)[:, None] * 6.0, 1.0, (480, 1))
        data = bnp.as_source(rows, groups=np.arange(13) * 40, batch_size=40)
        model, more = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()), {}
    found = run(data, model, bnp.FromSample(batches=2, laps=3), schedule=bnp.Memoized(laps=4), **more)
    assert {row.get("sample") for row, _ in laps_of(found)} >= {3, None}
    weight = found.posterior.model.weight_in(found.posterior.summary, kind == "topics")
    assert weight == pytest.approx(120 if kind == "topics" else 480)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schedule": bnp.FullBatch()}, r"FullBatch\(\) keeps no statistics of batches; use Memoized"),
        ({"n_init": 2}, "n_init: a run from a sample has one state"),
        ({"shadow": bnp.Shadow()}, "shadow: a run from a sample has one state"),
        ({"labels": np.zeros(1_080, int)}, "labels: a run from a sample has one state"),
    ],
)
def test_what_needs_all_data_from_the_first_lap_is_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        run(**settings)


def test_starts_that_know_every_row_are_no_start_of_a_sample():
    with pytest.raises(SettingError, match="needs a start that finds clusters in some batches"):
        bnp.FromSample(bnp.Responsibilities(np.zeros(5, int)))


@pytest.mark.long
def test_a_run_from_a_sample_is_updated_as_any_other(tmp_path):
    np.save(tmp_path / "x.npy", np.concatenate([DATA.reader(b)().x for b in range(18)]))
    np.save(tmp_path / "y.npy", DATA.reader(0)().x + 0.01)
    first = run(str(tmp_path / "x.npy"), store=tmp_path / "run", batch_size=60)
    found = bnp.update(str(tmp_path / "run"), str(tmp_path / "y.npy"))
    assert found.posterior.n_clusters == first.posterior.n_clusters == 4
    assert found.posterior.summary["N"].sum() == pytest.approx(1_140)


def test_exact_rows_are_of_all_data_and_never_fall():
    rows = whole().history
    assert not any(row["exact"] for row in rows if "sample" in row)
    exact = [row["elbo"] for row in rows if row["exact"]]
    assert len(exact) > 3
    assert (np.diff(exact) >= -1e-6).all()


def test_the_default_start_fits_samples_of_few_rows():
    data = bnp.VirtualMixture(60, 2, 2, spread=12.0, batch_size=5)
    found = run(data, init=bnp.FromSample(batches=2)).posterior
    assert found.summary["N"].sum() == pytest.approx(60)
