"""Shadows that begin with other priors than the run: compared exactly, taken over with their prior, and resumed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.allocation import DPMixture, FiniteMixture, HDPTopics
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.inference import FullBatch, Memoized
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.model import Model
from bnp_dask.moves import Delete, Merge
from bnp_dask.observation import DiagGaussian, Gaussian, Multinomial
from bnp_dask.training.train import train
from tests.stopping import InLap
from tests.train.test_shadows import FailAt, assert_never_falls, overlapping, told
from tests.train.test_starts import bits, documents, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

FIXED = Model(DPMixture(), Gaussian(), learn_prior="never")
LEARNED = Model(DPMixture(), Gaussian())
WORSE, BETTER = Gaussian(B=0.8), Gaussian(B=4.8)
SHADOW = bnp.Shadow(laps=3, prior=[WORSE, BETTER])

go = partial(
    train, FIXED, overlapping(), init=BregmanKMeans(6), rng=0, batch_size=120, client=SerialExecutor(),
    schedule=Memoized(laps=60, window=4), moves=[Merge(), Delete()],
)  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    """A run that the second prior is better for."""
    return go(shadow=SHADOW)


@pytest.fixture(scope="module")
def plain():
    """The run without shadows."""
    return go()


def exact(posterior):
    return sum(posterior.model.elbo(posterior, posterior.summary).values())


def test_the_better_prior_takes_over_and_is_that_of_the_run(whole, plain):
    assert [(one["prior"], one["reason"]) for one in whole.alternatives][:2] == [
        ("Gaussian(B=0.8)", "the run was ahead"),
        ("Gaussian(B=4.8)", "took the run's place"),
    ]
    assert [move["prior"] for move in told(whole)] == [one["prior"] for one in whole.alternatives]
    assert whole.posterior.model.observation.B.tolist() == (4.8 * np.eye(2)).tolist()
    assert plain.posterior.model.observation.B.tolist() != whole.posterior.model.observation.B.tolist()
    assert whole.history[-1]["elbo"] > plain.history[-1]["elbo"] + 10.0


def test_the_objective_is_exact_under_the_prior_in_force_and_never_falls(whole):
    posterior = whole.posterior
    assert exact(posterior) == pytest.approx(whole.history[-1]["elbo"], abs=1e-8)
    assert_never_falls(whole)
    given = Model(DPMixture(), BETTER, learn_prior="never")
    start = {"init": bnp.FromPosterior(posterior), "moves": (), "rng": 0, "batch_size": 600}
    again = train(given, overlapping(), **start, schedule=FullBatch(1))
    assert exact(posterior) <= again.history[-1]["elbo"] <= exact(posterior) + 0.1  # one more local step, of all data
    for name in ("nu", "B", "m", "kappa"):
        ours, theirs = (getattr(p.model.observation, name) for p in (posterior, again.posterior))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_gain_of_a_rejected_prior_is_exact(whole):
    """The row of a shadow that was dropped says what its objective is less than that of the run."""
    first, row = whole.alternatives[0], told(whole)[0]
    known = [r["elbo"] for r in whole.history if r["lap"] == row["lap"]][-1]
    taken = sum(move["gain"] for move in told(whole) if move["lap"] == row["lap"] and move["accepted"])
    assert known - taken + row["gain"] == pytest.approx(first["elbo"], abs=1e-8)


def test_a_run_whose_priors_fail_ends_as_without(plain):
    result = go(shadow=bnp.Shadow(laps=2, prior=[WORSE, Gaussian(B=40.0), Gaussian(kappa=5.0)]))
    assert [move["accepted"] for move in told(result)] == [False] * 3
    assert bits(result) == bits(plain) and result.reason == plain.reason
    rows = [{**row, "moves": [m for m in row["moves"] if m["kind"] != "shadow"]} for row in rows_of(result)]
    assert rows == rows_of(plain)


@pytest.mark.long
def test_threads_dask_a_store_and_little_memory_give_the_same_bits(whole, dask_client, tmp_path):
    for name, more in {
        "threads and little memory": {"client": ThreadExecutor(2), "memory": 100},
        "dask and store": {"client": DaskExecutor(dask_client(2), "priors"), "store": tmp_path / "run"},
    }.items():
        result = go(shadow=SHADOW, **more)
        assert bits(result) == bits(whole) and rows_of(result) == rows_of(whole), name
        assert result.alternatives == whole.alternatives
    saved = bnp.load(tmp_path / "run").model.observation
    np.testing.assert_array_equal(saved.B, whole.posterior.model.observation.B)


def assert_resumed(whole, make, places, folder):
    for kind, *place in places:
        store = folder / f"{kind}-{'-'.join(map(str, place))}-{len(list(folder.iterdir()))}"
        if kind == "stopped":
            part = make(store=store, callbacks=[InLap(*place)])
            assert part.history[-1]["lap"] == place[0]
        else:
            with pytest.raises(InterruptedError):
                make(store=store, callbacks=[FailAt(*place)])
        resumed = make(store=store, resume=True)
        assert bits(resumed) == bits(whole) and rows_of(resumed) == rows_of(whole), (kind, place)
        assert resumed.alternatives == whole.alternatives
        assert resumed.posterior.model == whole.posterior.model


@pytest.mark.parametrize("some", [pytest.param(slice(None), id="all", marks=pytest.mark.long), slice(2, None, 3)])
def test_a_run_that_is_stopped_or_dies_goes_on_to_the_same_bits_with_the_prior_in_force(whole, tmp_path, some):
    begun, lap = whole.alternatives[1]["begun"], told(whole)[1]["lap"]
    last = whole.history[-1]["lap"]
    assert last > lap + 1
    places = [
        ("stopped", begun, 5), ("stopped", begun + 1, 2), ("stopped", lap, 5), ("stopped", lap + 1, 2),
        ("stopped", last - 1, 5), ("died", lap, 5), ("died", lap + 1, 4),
    ]  # fmt: skip
    assert_resumed(whole, partial(go, shadow=SHADOW), places[some], tmp_path)


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_learned_priors_begin_elsewhere_and_are_learned_from_there(tmp_path, resumed):
    shadow = bnp.Shadow(laps=4, prior=[Gaussian(B=80.0, nu=8.0), WORSE])
    make = partial(train, LEARNED, overlapping(13), shadow=shadow, **{**go.keywords, "init": BregmanKMeans(9)})
    result = make()
    assert told(result) and len({one["prior"] for one in result.alternatives}) == 2
    assert_never_falls(result)
    model = result.posterior.model
    assert exact(result.posterior) == pytest.approx(result.history[-1]["elbo"], abs=1e-8)
    first = make(shadow=None).posterior.model
    assert model.reference == first.reference and model.observation != model.reference
    begun, lap = result.alternatives[0]["begun"], told(result)[0]["lap"]
    places = [("stopped", begun + 1, 2), ("stopped", lap, 5), ("died", lap + 1, 4)] if resumed else []
    assert_resumed(result, make, places, tmp_path)


def test_more_data_come_under_the_prior_that_took_over(whole, tmp_path):
    go(shadow=SHADOW, store=tmp_path / "run")
    more = bnp.update(tmp_path / "run", overlapping(5)[:120])
    np.testing.assert_array_equal(more.posterior.model.observation.B, whole.posterior.model.observation.B)
    assert exact(more.posterior) == pytest.approx(more.history[-1]["elbo"], abs=1e-8)


@pytest.mark.long
def test_births_that_one_prior_rejected_are_offered_to_another():
    """With moves that propose births a shadow begins with those as well."""
    many = {**go.keywords, "moves": [bnp.Birth(), Merge(), Delete()], "init": BregmanKMeans(3)}
    result = train(FIXED, overlapping(), shadow=bnp.Shadow(laps=4, prior=[BETTER]), **many)
    assert told(result)[0]["accepted"]
    assert_never_falls(result)
    assert exact(result.posterior) == pytest.approx(result.history[-1]["elbo"], abs=1e-8)


def test_a_start_may_go_with_a_prior():
    result = go(shadow=bnp.Shadow(laps=9, init=BregmanKMeans(9), prior=[BETTER]))
    assert result.alternatives[0]["reason"] == "took the run's place"
    assert result.posterior.model.observation.B[0, 0] == 4.8
    assert_never_falls(result)


def test_no_shadow_begins_with_the_prior_in_force_and_nothing_else():
    result = go(shadow=bnp.Shadow(laps=3, prior=[Gaussian()]))
    assert result.alternatives == () and result.converged


@pytest.mark.long
def test_topics_have_other_priors_too(tmp_path):
    shadow = bnp.Shadow(laps=3, prior=[Multinomial(3.0), Multinomial(0.05)])
    model = Model(HDPTopics(), Multinomial(0.6))
    make = partial(train, model, documents(), init=bnp.RandomExamples(6), batch_size=30, rng=0, moves=[Merge()],
                   schedule=Memoized(laps=40), shadow=shadow)  # fmt: skip
    result = make()
    assert any(move["accepted"] for move in told(result))
    assert_never_falls(result)
    assert exact(result.posterior) == pytest.approx(result.history[-1]["elbo"], abs=1e-8)
    assert np.all(result.posterior.model.observation.lam == 0.05)
    lap = next(move["lap"] for move in told(result) if move["accepted"])
    assert_resumed(result, make, [("stopped", lap, 4), ("stopped", lap + 1, 2)], tmp_path)


def test_settings_that_say_what_the_data_are_stay_those_of_the_run(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 3)) + np.repeat([[4.0, 0, 0], [0, 4.0, 0]], 100, axis=0)
    shadow = bnp.Shadow(laps=2, prior=[bnp.VonMisesFisher(a=50.0)])
    model = Model(FiniteMixture(), bnp.VonMisesFisher(normalize=True))
    make = partial(train, model, rows, init=BregmanKMeans(2), batch_size=50, rng=0, shadow=shadow)
    result = make()
    assert told(result) and result.posterior.model.observation.normalize is True
    lap = told(result)[0]["lap"]
    assert_resumed(result, make, [("stopped", lap, 4), ("stopped", lap, 2)], tmp_path)
    near = Model(DPMixture(), DiagGaussian(center=1.0, grain=0.0))
    found = go.func(near, overlapping(), **go.keywords, shadow=bnp.Shadow(laps=2, prior=[DiagGaussian(beta=3.0)]))
    assert told(found) and found.posterior.model.observation.center.tolist() == [1.0, 1.0]


def test_a_run_goes_on_with_the_priors_that_it_has(tmp_path):
    go(shadow=SHADOW, store=tmp_path / "run", callbacks=[InLap(2, 5)])
    with pytest.raises(StoreError, match=r"settings differ \(shadow"):
        go(store=tmp_path / "run", resume=True, shadow=bnp.Shadow(laps=3, prior=[WORSE, Gaussian(B=4.9)]))


def test_job_files_give_priors(tmp_path):
    job = {"model": {"allocation": "HDPTopics", "observation": "Multinomial"}, "data": "x.npy"}
    shadow = {"laps": 3, "prior": [{"type": "Multinomial", "lam": 0.05}, "Multinomial"]}
    found = parse_job({**job, "shadow": shadow}, tmp_path).shadow
    assert found == bnp.Shadow(laps=3, prior=[Multinomial(0.05), Multinomial()])
    with pytest.raises(SettingError, match=r"shadow\.prior: found 'Multinomial', needs a list"):
        parse_job({**job, "shadow": {"prior": "Multinomial"}}, tmp_path)


def test_estimators_give_priors():
    estimator = bnp.DirichletProcessMixture(
        n_clusters=6, batch_size=120, schedule=Memoized(laps=60, window=4), client=SerialExecutor(), random_state=0,
        learn_prior="never", shadow=bnp.Shadow(laps=2, prior=[BETTER]),
    ).fit(overlapping())  # fmt: skip
    assert estimator.posterior_.model.observation.B[0, 0] == 4.8


@pytest.mark.parametrize(
    ("model", "prior", "why"),
    [
        (FIXED, [DiagGaussian()], r"prior\[0\] is DiagGaussian\(\), but the run's likelihood is Gaussian; needs Gau"),
        (Model(FiniteMixture(), Gaussian(), "map"), [BETTER], r'prior needs estimate="posterior"'),
        (FIXED, [BETTER, Gaussian(center=3.0)], r"prior\[1\] is Gaussian\(center=3.0\), but center is no setting of"),
        (
            Model(DPMixture(), bnp.Product({0: Gaussian(), 1: Gaussian()})),
            [bnp.Product({0: Gaussian(), 1: Gaussian(B=3.0)})],
            r"prior\[0\] is Product\(.*is neither a number nor an array",
        ),
        (FIXED, [Gaussian(B=-1.0)], "B="),
    ],
    ids=["class", "map", "center", "product", "value"],
)  # fmt: skip
def test_priors_that_cannot_be_compared_are_refused(model, prior, why):
    with pytest.raises(SettingError, match=why):
        train(model, overlapping(), shadow=bnp.Shadow(prior=prior), moves=(), batch_size=600)


def test_priors_are_likelihoods():
    for wrong in (3.0, (0.25, 4), "Gaussian", Gaussian, [], [Gaussian(), None]):
        with pytest.raises(SettingError, match=r"prior(\[\d\])?=.*needs likelihoods"):
            bnp.Shadow(prior=wrong)
    assert bnp.Shadow(prior=BETTER).prior == (BETTER,)
