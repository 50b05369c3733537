"""Learned concentrations: no better ones exist, bounds hold, known ones are found again, and runs keep them."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.allocation import concentrations
from bnp_dask.allocation.hdp_hmm import Concentrations, TransitionCounts
from bnp_dask.cli.jobfile import read_job
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.inference.prior import _better_concentrations, _worth_of_allocation
from bnp_dask.model import Model
from bnp_dask.reports.run_page import page_html
from bnp_dask.structure.prior import learner_of
from tests.chains.parts import begin, sequences
from tests.stopping import AfterSteps

STATES = (bnp.HDPHMM(3.0, 0.6, 4.0, 8.0), bnp.HDPHMM(3.0, 0.6, 4.0, 0.0))
TOPICS = (bnp.HDPTopics(3.0, 0.6), bnp.LDA(0.7))
MIXTURES = (bnp.DPMixture(2.0), bnp.PitmanYorMixture(2.0, 0.2))
ALL = (*STATES, *TOPICS, *MIXTURES)


@pytest.mark.parametrize("allocation", [bnp.LDA(1.0), bnp.HDPTopics(2.0, 1.0)], ids=lambda a: type(a).__name__)
def test_concentrations_of_topics_go_further_where_the_objective_rises(allocation, monkeypatch):
    """Steps are short, because shares of documents were found with the old ones; the logarithm moves further."""
    model = Model(allocation, bnp.Multinomial(0.1), learn_concentrations="always")
    batch = bnp.Batch(sparse.csr_array(words(0.4)[:60]))
    model = model.with_prior(survey_batch(batch))
    start = model.summarize(np.arange(4), batch, np.eye(4)[np.arange(60) % 4])
    value = model.local_step(model.global_step(start), batch)
    far = _better_concentrations(model, value)
    with monkeypatch.context() as patch:
        patch.setattr(type(allocation), "further", 1.0)
        near = _better_concentrations(model, value)
    old, short, long = (learner_of(one).learnable for one in (model, near, far))
    assert old.keys() == short.keys() == long.keys() and short != old
    times = type(allocation).further
    assert times > 1.0
    expected = {name: old[name] * (short[name] / old[name]) ** times for name in old}
    assert long == pytest.approx(expected, rel=1e-9)
    assert _worth_of_allocation(far, value) > _worth_of_allocation(model, value)


def named(allocation):
    return f"{type(allocation).__name__}-{'sticky' if getattr(allocation, 'kappa', 0.0) else 'plain'}"


def ready(allocation, learn="always"):
    """A model that learns its concentrations, and statistics after a local step."""
    batch = sequences((40, 30, 25))
    model = Model(allocation, bnp.DiagGaussian(2.0, 2.0, 0.0, 0.1, center=np.zeros(2)), learn_concentrations=learn)
    model = replace(model, observation=replace(model.observation, beta=np.full(2, 2.0), m=np.zeros(2)))
    learner = learner_of(model)
    model = model if learner is None else replace(model, allocation=learner.to_learn())
    return model, begin(model, batch).summary


def objective(model, summary, params):
    """The part of the objective that depends on the concentrations, for a top level that stays."""
    own = model.allocation
    if isinstance(own, bnp.HDPHMM):  # transitions follow their prior
        params = own.given_sticks(params.u, params.omega, summary["start"], summary["M"])
    return own.elbo(params, summary)["allocation"] + own.log_hyperprior()


@pytest.mark.parametrize("allocation", ALL, ids=named)
def test_no_other_concentration_is_better_than_the_learned_one(allocation):
    model, summary = ready(allocation)
    params = model.allocation_step(summary)
    found = model.allocation.learned(params, summary)
    for name, value in found.learnable.items():
        # alpha is learned before kappa, with kappa as it was
        rest = replace(found, kappa=model.allocation.kappa) if name == "alpha" and name in vars(found) and hasattr(
            found, "kappa"
        ) else found  # fmt: skip
        values = [
            objective(replace(model, allocation=replace(rest, **{name: value * times})), summary, params)
            for times in (0.5, 0.97, 1.0, 1.03, 2.0)
        ]
        assert int(np.argmax(values)) == 2, name


@pytest.mark.parametrize("allocation", ALL, ids=named)
def test_a_step_raises_the_objective_of_the_best_top_level(allocation):
    model, summary = ready(allocation)
    found = _better_concentrations(model, summary)

    def worth(model):
        return sum(model.allocation_terms(summary).values()) + model.allocation.log_hyperprior()

    assert worth(found) > worth(model) + 1e-3
    assert found.allocation.learnable.keys() == allocation.learnable.keys()


@pytest.mark.parametrize(("alpha", "kappa"), [(0.5, 300.0), (3.0, 2.0), (0.1, 0.05), (20.0, 50.0)])
def test_the_bound_by_chords_lies_between_the_printed_one_and_the_cumulant(alpha, kappa):
    rng = np.random.default_rng(0)
    k = 5
    for _ in range(30):
        pi = rng.dirichlet(np.full(k + 1, 0.7))
        theta = alpha * pi + np.append(kappa, np.zeros(k))
        exact = gammaln(theta.sum()) - gammaln(theta).sum()
        rest = k * np.log(alpha) + np.log(pi[1:]).sum()
        bounds = [
            rest - (1.0 - pi[0]) * Concentrations(1.0, alpha, 1.0, kappa, bound).tilt for bound in ("printed", "chords")
        ]
        assert bounds[0] <= bounds[1] + 1e-12
        assert bounds[1] <= exact + 1e-9


def test_pseudo_counts_of_drawn_chains_are_found_again():
    rng = np.random.default_rng(0)
    k, alpha, kappa = 30, 4.0, 40.0
    weights = np.full(k, 1.0 / k)
    rows = np.array([rng.dirichlet(alpha * weights + kappa * np.eye(k)[j] + 1e-12) for j in range(k)])
    trans = np.array([rng.multinomial(2_000, row) for row in rows], np.float64)
    own = Concentrations(5.0, 1.0, 10.0, 5.0, "chords")
    for _ in range(30):
        counts = TransitionCounts(own, np.ones(k), trans)
        own = counts.learned(*counts.best())
    assert 0.5 * alpha < own.alpha < 2.0 * alpha
    assert 0.5 * kappa < own.kappa < 2.0 * kappa


def words(alpha, seed=0):
    """Documents of ten bars in 25 words."""
    rng = np.random.default_rng(seed)
    grid = np.eye(5)
    bars = np.array([np.kron(grid[i], np.ones(5)) for i in range(5)] + [np.kron(np.ones(5), grid[i]) for i in range(5)])
    bars = 0.98 * bars / 5.0 + 0.02 / 25.0
    shares = rng.dirichlet(np.full(10, alpha / 10.0), 250)
    return sparse.csr_matrix([rng.multinomial(60, share) for share in shares @ bars], dtype=np.float64)


def go(data, allocation, observation, laps, init, **more):
    model = Model(allocation, observation, learn_concentrations="always")
    return bnp.train(model, data, schedule=bnp.Memoized(laps=laps), init=init, rng=0, **more)


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("alpha", [0.4, 2.0])
def test_the_alpha_of_documents_is_found_again(alpha):
    found = go(words(alpha), bnp.LDA(1.0), bnp.Multinomial(0.1), 12, bnp.SampledTopics(10)).posterior
    assert 0.6 * alpha < found.model.allocation.alpha < 1.7 * alpha


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["topics", pytest.param("states", marks=pytest.mark.long)])
def test_the_objective_never_falls_and_a_resumed_run_has_the_same_bits(kind, tmp_path):
    if kind == "topics":
        parts = words(0.5)[:90], bnp.HDPTopics(10.0, 0.5), bnp.Multinomial(0.1), 5, bnp.RandomExamples(10)
    else:
        rows = sequences((30, 25, 30, 28, 30, 29))
        data = np.split(rows.x, rows.groups[1:-1])
        parts = data, bnp.HDPHMM(kappa=5.0), bnp.DiagGaussian(), 5, bnp.ContiguousBlocks(6, 10)
    whole = go(*parts, batch_size=30)
    elbo = whole.history["elbo"][1:]
    assert np.diff(elbo).min() >= -1e-11 * abs(elbo[0])
    assert any(move["kind"] == "prior" for move in whole.history.moves())
    go(*parts, batch_size=30, store=tmp_path / "run", callbacks=[AfterSteps(6)], checkpoint_minutes=1e-9)
    rest = go(*parts, batch_size=30, store=tmp_path / "run", resume=True)
    assert rest.posterior.model.allocation == whole.posterior.model.allocation != parts[1]
    assert_array_equal(rest.history["elbo"], whole.history["elbo"])
    assert bnp.load(tmp_path / "run" / "posterior.zarr").model.allocation == whole.posterior.model.allocation
    assert "learned" in page_html(whole.posterior, None, None)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"allocation": bnp.FiniteMixture()}, "cannot be learned"),
        ({"estimate": "map"}, "point estimates"),
        ({"learn_concentrations": "sometimes"}, "learn_concentrations"),
    ],
)
def test_concentrations_that_cannot_be_learned_are_refused(more, match):
    given = {"allocation": bnp.DPMixture(), "learn_concentrations": "always", **more}
    with pytest.raises(SettingError, match=match):
        Model(observation=bnp.Gaussian(), **given)


def test_a_schedule_without_an_exact_objective_learns_no_concentrations():
    model = Model(bnp.DPMixture(), bnp.Gaussian(), learn_concentrations="always")
    with pytest.raises(SettingError, match="exact objective"):
        bnp.train(model, np.zeros((9, 2)), schedule=bnp.Stochastic(laps=1), moves=())


def test_a_job_file_says_that_concentrations_are_learned(tmp_path):
    path = tmp_path / "run.yaml"
    model = {"allocation": "HDPHMM", "observation": "Gaussian", "learn_concentrations": "always"}
    path.write_text(yaml.safe_dump({"model": model, "data": "atoms.npy"}))
    assert read_job(path).model.learn_concentrations == "always"


def test_the_end_of_the_range_is_the_best_where_a_slope_keeps_its_sign():
    assert concentrations.best(lambda a: -1.0) == concentrations.LEAST
    assert concentrations.best(lambda a: 1.0) == concentrations.MOST
    assert_allclose(concentrations.best(lambda a: 3.0 - a), 3.0, rtol=1e-9)


def test_the_concentration_of_sticks_is_never_below_the_least():
    assert concentrations.of_sticks(-3.0, 2) == 0.5
    assert concentrations.of_sticks(-1e6, 3) == concentrations.LEAST
