"""Priors that fit themselves during runs: monotone, accounted for, resumed, saved, and refused where they cannot."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference.prior import prior_to_arrays, with_saved_prior
from bnp_dask.observation.labelled import Labelled
from bnp_dask.reports.run_page import page_html
from tests.stopping import AfterSteps


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(3)
    means = rng.normal(scale=4.0, size=(12, 4))
    labels = rng.integers(12, size=900)
    return means[labels] + rng.normal(size=(900, 4)) * np.array([0.2, 1.0, 0.5, 0.1])


def go(x, learn="diagonal", schedule=None, observation=None, **more):
    model = bnp.Model(bnp.DPMixture(), observation or bnp.Gaussian(), learn_prior=learn)
    schedule = schedule or bnp.Memoized(laps=7, window=2)
    return bnp.train(model, x, schedule=schedule, init=bnp.BregmanKMeans(10), batch_size=300, **more)


def same(a, b):
    for name in ("nu", "B", "m", "kappa"):
        np.testing.assert_array_equal(getattr(a.model.observation, name), getattr(b.model.observation, name))
    np.testing.assert_array_equal(a.observation.B, b.observation.B)
    assert a.model.allocation == b.model.allocation
    assert a.ids.tolist() == b.ids.tolist()


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize(
    ("learn", "schedule"),
    [
        ("diagonal", bnp.Memoized(laps=7, window=2)),
        ("full", bnp.FullBatch(laps=7)),
        pytest.param("full", bnp.Memoized(laps=7, window=2), marks=pytest.mark.long),
        pytest.param("diagonal", bnp.FullBatch(laps=7), marks=pytest.mark.long),
    ],
)
def test_the_objective_with_the_hyperprior_never_falls_and_is_accounted_for(blobs, schedule, learn):
    history = go(blobs, learn, schedule).history
    rows = [row for row in history if row["exact"]]
    elbo = np.array([row["elbo"] for row in rows])
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo[0])
    assert all({"data", "entropy", "allocation", "prior"} <= row.keys() for row in rows)
    learned = [move for move in history.moves() if move["kind"] == "prior"]
    assert learned
    assert all(move["accepted"] and move["gain"] > 0 for move in learned)
    for before, after in zip(rows, rows[1:]):
        gains = (after["gain"] or 0.0) + sum(m["gain"] for m in after["moves"] if m["accepted"])
        np.testing.assert_allclose(after["elbo"], before["elbo"] + gains, rtol=1e-10)


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("stop", [5, pytest.param(1, marks=pytest.mark.long), pytest.param(8, marks=pytest.mark.long)])
def test_a_run_that_is_stopped_and_resumed_learns_the_same_bits(blobs, tmp_path, stop):
    whole = go(blobs)

    go(blobs, store=tmp_path / "run", callbacks=[AfterSteps(stop)], checkpoint_minutes=1e-9)
    rest = go(blobs, store=tmp_path / "run", resume=True)
    same(rest.posterior, whole.posterior)
    np.testing.assert_array_equal(rest.history["elbo"], whole.history["elbo"])
    same(bnp.load(tmp_path / "run" / "posterior.zarr"), whole.posterior)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_learning_fits_held_out_rows_better_than_the_default_prior(blobs):
    order = np.random.default_rng(0).permutation(len(blobs))
    train, held = blobs[order[:300]], blobs[order[300:]]
    scores = {learn: bnp.score(go(train, learn).posterior, held) for learn in ("never", "diagonal")}
    assert scores["diagonal"] > scores["never"]


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_the_zero_mean_likelihood_learns_when_asked(blobs):
    found = go(blobs, "full", bnp.Memoized(laps=4), bnp.ZeroMeanGaussian())
    elbo = found.history["elbo"][1:]
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo[0])
    assert found.posterior.model.observation.nu != found.posterior.model.reference.nu


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("allocation", [bnp.FiniteMixture(), bnp.HDPTopics(), bnp.HDPHMM()])
def test_every_allocation_takes_a_prior_that_is_learned(blobs, allocation):
    grouped = None if isinstance(allocation, bnp.FiniteMixture) else np.arange(0, 301, 30)
    model = bnp.Model(allocation, bnp.Gaussian(), learn_prior="diagonal")
    source = bnp.as_source(blobs[:300], groups=grouped)
    found = bnp.train(model, source, init=bnp.RandomExamples(10), schedule=bnp.Memoized(laps=3), moves=())
    elbo = found.history["elbo"]
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo[0])
    assert found.posterior.model.observation.kappa != found.posterior.model.reference.kappa


def test_a_schedule_without_an_exact_objective_refuses_to_learn(blobs):
    with pytest.raises(SettingError, match="exact objective"):
        go(blobs, schedule=bnp.Stochastic(laps=1), moves=())


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_the_concentration_is_learned_with_the_prior_when_asked_for(blobs):
    found = go(blobs).posterior
    gamma = found.model.allocation.gamma
    assert gamma != 1.0

    def worth(gamma):
        model = replace(found.model, allocation=bnp.DPMixture(gamma))
        return sum(model.allocation_terms(found.summary).values()) - gamma

    assert worth(gamma) > max(worth(0.7 * gamma), worth(1.4 * gamma), worth(1.0))


def test_a_job_file_says_how_the_prior_is_learned(tmp_path):
    path = tmp_path / "run.yaml"
    model = {"allocation": "DPMixture", "observation": {"type": "Gaussian", "grain": 0.5}, "learn_prior": "full"}
    path.write_text(yaml.safe_dump({"model": model, "data": "atoms.npy"}))
    found = read_job(path).model
    assert (found.learn_prior, found.observation.grain) == ("full", 0.5)
    path.write_text(yaml.safe_dump({"model": {**model, "learn_prior": "always"}, "data": "atoms.npy"}))
    with pytest.raises(SettingError, match="learn_prior"):
        read_job(path)


@pytest.mark.long
def test_an_estimator_learns_the_prior_and_a_report_says_so(blobs):
    found = bnp.DirichletProcessMixture(learn_prior="diagonal", max_laps=100, random_state=0).fit(blobs)
    assert found.posterior_.model.reference is not None
    assert "learned (diagonal)" in page_html(found.posterior_, None, None)
    fixed = bnp.DirichletProcessMixture(learn_prior="never", random_state=0).fit(blobs[:100])
    assert fixed.posterior_.model.reference is None


def test_a_run_whose_clusters_sink_to_the_grain_says_so(caplog):
    x = np.random.default_rng(0).integers(4, size=(400, 1)) * 10.0
    wide = x + np.random.default_rng(1).normal(size=(400, 1))
    for data, lines in ((wide, 0), (x, 1)):  # one cluster for each recorded value
        with caplog.at_level("WARNING", logger="bnp_dask"):
            bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), data, init=bnp.BregmanKMeans(4), moves=())
        assert len([r for r in caplog.records if "on a grid of 10" in r.message]) == lines


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("observation", [bnp.Gaussian(), bnp.DiagGaussian()], ids=["full", "diagonal"])
def test_a_run_whose_clusters_are_copies_of_rows_says_so(observation, caplog):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 3))
    wide = np.repeat(rows, 20, axis=0) + 0.01 * rng.normal(size=(600, 3))
    wide[7] = 1e12
    for data, lines in ((rows, 0), (wide, 0), (np.repeat(rows, 20, axis=0), 1)):
        with caplog.at_level("WARNING", logger="bnp_dask"):
            model = bnp.Model(bnp.DPMixture(), observation, copies="count")
            bnp.train(model, data, init=bnp.BregmanKMeans(30), moves=(), schedule=bnp.Memoized(laps=4))
        told = [r.message for r in caplog.records if "hold copies of one row each, 20 on average" in r.message]
        assert len(told) == lines


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_a_gaussian_whose_prior_is_left_open_learns_it_and_keeps_the_concentration(blobs):
    found = go(blobs, "auto").posterior.model
    assert found.reference is not None
    assert found.observation.kappa != found.reference.kappa
    assert found.allocation == bnp.DPMixture()


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize(
    "more",
    [
        {"observation": bnp.Gaussian(kappa=0.1)},
        {"observation": bnp.Gaussian(nu=8.0)},
        {"observation": bnp.DiagGaussian()},
        {"schedule": bnp.Stochastic(laps=1), "moves": ()},
        {"learn": "never"},
    ],
)
def test_what_was_given_or_cannot_be_decided_is_not_learned(blobs, more):
    assert go(blobs[:200], **{"learn": "auto", **more}).posterior.model.reference is None


def test_states_of_sequences_keep_their_prior(blobs):
    survey = survey_batch(Batch(blobs))
    for allocation, learns in ((bnp.HDPHMM(), False), (bnp.FiniteMixture(), True)):
        model = bnp.Model(allocation, bnp.Gaussian()).with_prior(survey, may_learn=True)
        assert (model.reference is not None) is learns


# -- parts of a product -------------------------------------------------------------------------------------------
INNER = bnp.Product({"0": bnp.Gaussian(), "1": bnp.Bernoulli()})
MIXED = bnp.Product({"0:2": bnp.Gaussian(), "2:4": INNER, "4": bnp.Poisson()})
"""Likelihoods that learn and others, one of them deeper."""


@pytest.fixture(scope="module")
def table(blobs):
    counts = np.random.default_rng(0).poisson(np.exp(blobs[:, 0] / 4.0))
    return np.column_stack([blobs[:, :3], blobs[:, 3] > 0.0, counts])[:300]


def go_mixed(table, learn="auto", observation=MIXED, schedule=None, **more):
    model = bnp.Model(bnp.DPMixture(), observation, learn_prior=learn)
    schedule = schedule or bnp.Memoized(laps=5, tolerance=0.0, window=2)
    return bnp.train(model, table, schedule=schedule, init=bnp.BregmanKMeans(10), batch_size=100, **more)


def does_not_fall(result):
    elbo = [row["elbo"] for row in result.history if row["exact"]]
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo[-1])


def flat(observation):
    """Likelihoods of a product and of products in it."""
    return [one for part in getattr(observation, "parts", ()) for one in (flat(part) or [part])]


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_a_product_of_learned_parts_is_the_same_stopped_saved_and_grown(table, tmp_path):
    whole = go_mixed(table)
    found, before = (flat(one) for one in (whole.posterior.model.observation, whole.posterior.model.reference))
    assert [a != b for a, b in zip(found, before, strict=True)] == [True, True, False, False]
    does_not_fall(whole)

    run = tmp_path / "run"
    go_mixed(table, store=run, callbacks=[AfterSteps(8)], checkpoint_minutes=1e-9)
    rest = go_mixed(table, store=run, resume=True, client=SerialExecutor())
    np.testing.assert_array_equal(rest.history["elbo"], whole.history["elbo"])
    saved = bnp.load(run)
    for each in (rest.posterior, saved):
        assert each.model.observation == whole.posterior.model.observation
        assert each.model.reference == whole.posterior.model.reference

    more = table[:60] + [0.1, 0.1, 0.1, 0.0, 0.0]
    grown = bnp.update(run, more, laps=1, client=SerialExecutor()).posterior
    assert grown.model == saved.model and bnp.load(run).model == saved.model
    assert bnp.rollback(run, 0).model == saved.model
    again = bnp.update(run, more, laps=1, client=SerialExecutor()).posterior
    assert again.model == saved.model
    np.testing.assert_array_equal(again.summary["0.xx"], grown.summary["0.xx"])


def test_settings_of_parts_have_names_and_fit_one_likelihood(table):
    batch = Batch(table)
    ready = bnp.Model(bnp.DPMixture(), MIXED).with_prior(survey_batch(batch), may_learn=True)
    first, inner, third = ready.observation.parts
    moved = (
        replace(first, nu=first.nu + 1.0),
        inner.with_parts([replace(inner.parts[0], kappa=0.5), inner.parts[1]]),
        third,
    )
    learned = replace(ready, observation=ready.observation.with_parts(moved))
    arrays = prior_to_arrays(learned)
    assert {"prior/0.nu", "prior/0.B", "prior/1.0.kappa", "prior/1.1.lam1", "prior/2.a"} <= arrays.keys()
    assert with_saved_prior(ready, arrays) == learned
    labelled = replace(ready, observation=Labelled(ready.observation, ("a", "b")), reference=ready.reference)
    assert with_saved_prior(labelled, arrays).observation.part == learned.observation

    # runs of version 0.3.0 kept none of parts, which learned nothing; they go on so
    old = with_saved_prior(ready, {})
    assert old.observation == ready.observation and old.reference is None
    whole = with_saved_prior(ready, {"prior/n_features": np.array(5)})
    assert whole.observation == ready.observation and whole.reference is None

    for lost, more in (
        (("prior/1.0",), {}),
        ((), {"prior/3.nu": np.array(2.0)}),
        ((), {"prior/0.0.nu": np.array(2.0)}),
    ):
        other = {name: a for name, a in arrays.items() if not name.startswith(lost)} | more
        with pytest.raises(SettingError, match=r"settings of the parts .* are saved; needs those of"):
            with_saved_prior(ready, other)


def test_only_a_product_with_parts_that_can_learn_is_asked_to(table):
    assert MIXED.learns_by_default
    for fixed in (
        bnp.Product({"4": bnp.Poisson()}),
        bnp.Product({"0:2": bnp.Gaussian(nu=9.0), "2": bnp.Gaussian()}),  # what the user gave is not replaced
        bnp.Product({"0": bnp.Gaussian(), "1": bnp.DiagGaussian()}),  # which alone learns only if asked
    ):
        assert not fixed.learns_by_default
    bnp.Model(bnp.DPMixture(), MIXED, learn_prior="full")
    counts = bnp.Product({"0": bnp.Poisson(), "1:": bnp.Product({"0": bnp.Bernoulli()})})
    with pytest.raises(SettingError, match="prior of Product cannot be learned.*alone or in a Product"):
        bnp.Model(bnp.DPMixture(), counts, learn_prior="diagonal")


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_known_labels_leave_parts_to_learn(table):
    labels = np.where(np.arange(300) < 40, np.where(table[:, 0] > 0.0, "b", "a"), None)
    found = go_mixed(table, labels=labels)
    does_not_fall(found)
    assert found.posterior.model.observation.part.parts[0] != found.posterior.model.reference.part.parts[0]
