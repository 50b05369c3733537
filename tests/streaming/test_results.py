"""Results of filters, expectation propagation, truncation-free inference and sampling go wherever others go: functions,
commands with job files, and estimators; what makes no sense is refused by name."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import yaml
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.cli.jobfile import read_job
from bnp_dask.errors import SettingError, StoreError

SCHEDULES = {
    "Filter": bnp.Filter(merge=3.0),
    "ExpectationPropagation": bnp.ExpectationPropagation(laps=3, window=2),
    "TruncationFreeSVI": bnp.TruncationFreeSVI(laps=2, minibatch=20, burn_in=1),
    "Gibbs": bnp.Gibbs(laps=12, burn_in=4, thin=2, chains=2),
}
SETTINGS = {
    "Filter": {"merge": 3.0},
    "ExpectationPropagation": {"laps": 3, "window": 2},
    "TruncationFreeSVI": {"laps": 2, "minibatch": 20, "burn_in": 1},
    "Gibbs": {"laps": 12, "burn_in": 4, "thin": 2, "chains": 2},
}

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


def blobs(n=200, seed=0):
    rng = np.random.default_rng(seed)
    return 8.0 * np.eye(3)[rng.integers(3, size=n)] + rng.normal(size=(n, 3))


def allocation_of(name):
    """Sticks of truncation-free inference are those of a Dirichlet process; all others take NGGP mixtures."""
    return bnp.DPMixture() if name == "TruncationFreeSVI" else bnp.NGGPMixture(1.0, 0.25, 1.0)


@dataclass(frozen=True)
class Trained:
    """A run that a command trained from a job file."""

    name: str
    folder: object
    store: object
    posterior: bnp.Posterior


@pytest.fixture(scope="module", params=SCHEDULES)
def trained(request, tmp_path_factory):
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    np.save(folder / "x.npy", blobs())
    np.save(folder / "new.npy", blobs(50, seed=1))
    allocation = {"type": type(allocation_of(name)).__name__}
    if name != "TruncationFreeSVI":
        allocation |= {"a": 1.0, "sigma": 0.25, "tau": 1.0}
    job = {
        "data": {"path": "x.npy", "batch_size": 50},
        "model": {"allocation": allocation, "observation": "Gaussian"},
        "schedule": {"type": name, **SETTINGS[name]},
        "store": "run",
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(job))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        assert main(["train", str(folder / "run.yaml")]) == 0
    return Trained(name, folder, folder / "run", bnp.load(folder / "run"))


# -- job files and commands -------------------------------------------------------------------------------------------
@pytest.mark.first_case
def test_a_job_file_trains_what_python_does(trained):
    job = read_job(trained.folder / "run.yaml")
    assert job.schedule == SCHEDULES[trained.name]
    model = bnp.Model(allocation_of(trained.name), bnp.Gaussian())
    again = bnp.train(model, blobs(), schedule=SCHEDULES[trained.name], batch_size=50)
    assert_array_equal(again.posterior.summary["N"], trained.posterior.summary["N"])


@pytest.mark.first_case
def test_commands_take_the_run(trained, capsys):
    store, folder = str(trained.store), trained.folder
    assert main(["resume", store]) == 0
    assert main(["inspect", store, "--limit", "3"]) == 0
    assert f"{trained.posterior.n_clusters} clusters" in capsys.readouterr().out
    assert main(["report", store, str(folder / "page.html")]) == 0
    page = (folder / "page.html").read_text()
    assert trained.name in page
    assert type(trained.posterior.model.allocation).__name__ in page
    assert main(["predict", store, str(folder / "new.npy"), str(folder / "labels.zarr")]) == 0
    found = zarr.open_group(str(folder / "labels.zarr"), mode="r")["label"]
    assert_array_equal(found[:], bnp.predict(trained.posterior, blobs(50, seed=1)))
    capsys.readouterr()
    assert main(["score", store, str(folder / "new.npy")]) == 0
    assert_allclose(float(capsys.readouterr().out.split()[0]), bnp.score(trained.posterior, blobs(50, seed=1)))
    assert main(["compare", store, store]) == 0


@pytest.mark.first_case
def test_a_run_that_is_not_exact_takes_in_no_more_and_says_why(trained, capsys):
    with pytest.raises(StoreError, match=rf"{trained.name}\(\).* needs a run of Memoized"):
        bnp.update(trained.store, blobs(20))
    assert main(["update", str(trained.store), str(trained.folder / "new.npy")]) == 2
    assert "needs a run of Memoized()" in capsys.readouterr().err
    assert_array_equal(bnp.load(trained.store).ids, trained.posterior.ids)


# -- functions --------------------------------------------------------------------------------------------------------
@pytest.mark.first_case
def test_functions_take_the_posterior_and_the_run(trained, tmp_path):
    posterior, new = trained.posterior, blobs(50, seed=1)
    soft = bnp.predict(posterior, new, soft=True)
    assert_allclose(soft.sum(axis=1), 1.0)
    assert_array_equal(posterior.ids[soft.argmax(axis=1)], bnp.predict(posterior, new))
    assert np.isfinite(bnp.score(posterior, new))
    posterior.save(tmp_path / "p.zarr")
    again = bnp.load(tmp_path / "p.zarr")
    assert_array_equal(again.weights, posterior.weights)
    assert bnp.score(again, new) == bnp.score(posterior, new)
    assert bnp.sample(posterior, 5, 0).x.shape == (5, 3)
    assert posterior.to_xarray().sizes["cluster"] == posterior.n_clusters
    for what in (trained.store, posterior):
        assert f"{posterior.n_clusters} clusters" in str(bnp.inspect(what))
    bnp.report(posterior, tmp_path / "page.html")


def test_draws_are_there_for_a_sampler_and_for_no_other(trained):
    if trained.name == "Gibbs":
        assert bnp.load_draws(trained.store).n_chains == 2
    else:
        with pytest.raises(StoreError, match=r"draws"):
            bnp.load_draws(trained.store)


def test_prices_need_an_objective(trained):
    if trained.name == "TruncationFreeSVI":
        assert len(bnp.prices(trained.posterior, blobs())) == trained.posterior.n_clusters
    else:
        with pytest.raises(SettingError, match=r"prices: NGGPMixture has no variational objective.*DPMixture"):
            bnp.prices(trained.posterior, blobs())


# -- estimators -------------------------------------------------------------------------------------------------------
@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore:limit of 3 laps.*give the schedule more laps:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_mixture_estimator_takes_the_schedule(name):
    x, new = blobs(), blobs(50, seed=1)
    found = bnp.DirichletProcessMixture(schedule=SCHEDULES[name], batch_size=50, random_state=0).fit(x)
    assert found.n_clusters_ >= 3
    assert_array_equal(np.unique(found.labels_), np.arange(found.n_clusters_))
    assert_array_equal(found.predict(x), found.labels_)
    assert_array_equal(found.predict_proba(new).argmax(axis=1), found.predict(new))
    assert_allclose(found.score(new), found.score_samples(new).mean())
    assert found.means_.shape == (len(found.weights_), 3)
    assert np.isfinite(found.lower_bound_)
    assert ("draws_" in vars(found)) == (name == "Gibbs")
    found.set_params(schedule=None, moves=(), init=bnp.BregmanKMeans(3)).fit(x)
    assert "draws_" not in vars(found)


def test_laps_that_were_too_few_are_the_schedules_own():
    from sklearn.exceptions import ConvergenceWarning

    mixture = bnp.DirichletProcessMixture(schedule=bnp.ExpectationPropagation(laps=1))
    with pytest.warns(ConvergenceWarning, match="limit of 1 laps: not converged; give the schedule more laps"):
        mixture.fit(blobs(60))


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_makes_no_sense_in_an_estimator_is_refused_by_name(name):
    x, schedule = blobs(40), SCHEDULES[name]
    with pytest.raises(SettingError, match=rf"n_clusters=3: {name}\(\) opens and closes clusters itself"):
        bnp.DirichletProcessMixture(n_clusters=3, schedule=schedule).fit(x)
    with pytest.raises(
        SettingError, match=rf"{name}\(\).* leave moves out|{name}\(\) has no objective to decide moves"
    ):
        bnp.DirichletProcessMixture(moves=[bnp.Merge()], schedule=schedule).fit(x)
    with pytest.raises(SettingError, match=rf"{name}.*partial_fit needs Memoized"):
        bnp.DirichletProcessMixture(schedule=schedule).partial_fit(x)
    if name != "Gibbs":
        with pytest.raises(SettingError, match=rf"{name}\(\).*HDPHMM"):
            bnp.SequenceModel(schedule=schedule).fit(x)
    words = sparse.csr_array(np.round(np.abs(x)) + 1.0)
    with pytest.raises(SettingError, match=rf"{name}\(\).*LDA"):
        bnp.TopicModel(n_topics=3, schedule=schedule).fit(words)
    if name != "TruncationFreeSVI":
        if name != "Gibbs":
            with pytest.raises(SettingError, match=rf"{name}\(\).*HDPTopics"):
                bnp.TopicModel(schedule=schedule).fit(words)
        with pytest.raises(SettingError, match=r"n_init=2: .*(all starts are one|use Gibbs\(chains=2\))"):
            bnp.DirichletProcessMixture(n_init=2, schedule=schedule).fit(x)
