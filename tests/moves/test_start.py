"""Starts that learn more clusters than needed on a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core import Batch, Summary
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.initialize import InitContext
from bnp_dask.initialize.kmeans import SAMPLE
from bnp_dask.moves.policy import BirthPolicy, SmallRunPolicy
from bnp_dask.moves.prior import better_prior
from bnp_dask.moves.start import CrossLimits, UnitedKMeans, _united, crossed
from bnp_dask.training.run_settings import start_of

rng = np.random.default_rng(0)
CENTRES = 8.0 * rng.normal(size=(4, 2))
X = np.repeat(CENTRES, 100, axis=0) + rng.normal(size=(400, 2))
MODELS = [bnp.Gaussian(), bnp.DiagGaussian(), bnp.Poisson()]


@pytest.mark.parametrize("likelihood", MODELS, ids=lambda one: type(one).__name__)
def test_clusters_of_a_sample_are_united(likelihood: object) -> None:
    """All mass of the data, the largest cluster first, fewer clusters than began and no fewer than the true ones."""
    x = np.floor(np.exp(0.3 * X / 2)) if isinstance(likelihood, bnp.Poisson) else X
    batch = Batch(x)
    model = bnp.Model(bnp.DPMixture(), likelihood).with_prior(survey_batch(batch), may_learn=True)
    found = _united(model, 12, 3, 4000.0, batch)
    assert found["N"].sum() == pytest.approx(4000.0)
    assert (np.diff(found["N"]) <= 0).all() and found.ids.tolist() == list(range(found.n_clusters))
    assert found.n_clusters < 12
    if not isinstance(likelihood, bnp.Poisson):
        assert found.n_clusters >= 4
    again = _united(model, 12, 3, 4000.0, batch)
    assert all(np.array_equal(found[name], again[name]) for name in found.values)


def test_a_learned_prior_never_lowers_the_objective_of_a_start() -> None:
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey_batch(Batch(X)), may_learn=True)
    found = _united(model, 6, 0, 400.0, Batch(X))
    better = better_prior(model, found)
    assert better.best_objective(found) >= model.best_objective(found)


def test_a_run_begins_with_it() -> None:
    result = bnp.train(
        bnp.Model(bnp.DPMixture(), bnp.Gaussian()), X, init=bnp.UnitedKMeans(8), schedule=bnp.Memoized(laps=30)
    )
    assert result.posterior.n_clusters == 4
    assert np.all(np.diff([row["elbo"] for row in result.history]) > -1e-6)


@pytest.mark.parametrize(("n", "wanted"), [(1, 1), (20, 10), (40, 20), (300, 50), (1000, 64)])
def test_few_atoms_begin_with_fewer_clusters(n: int, wanted: int) -> None:
    """One for two atoms at most, and as many as the atoms that there are have for each of the 6 numbers of a cluster;
    it asked for 64 clusters of 20 atoms, and refused them."""
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey_batch(Batch(X)))
    assert UnitedKMeans()._wanted(model, n) == wanted
    assert UnitedKMeans(7)._wanted(model, n) == 7


def test_large_data_begin_with_it_by_default() -> None:
    survey = survey_batch(Batch(X))
    many = replace(survey, batch_atoms=(40_000,), n_atoms=40_000)
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey)
    wide = bnp.Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey_batch(Batch(np.eye(40))))
    moves = (bnp.Merge(),)
    assert start_of(None, bnp.Memoized(), model, many, moves) == UnitedKMeans()
    for other in (
        start_of(None, bnp.Memoized(), model, survey, moves),
        start_of(None, bnp.Memoized(), model, many, ()),
        start_of(None, bnp.Memoized(), replace(model, linked=True), many, moves),
        start_of(None, bnp.Memoized(), wide, many, moves),
    ):
        assert other == bnp.BregmanKMeans(25)


@pytest.mark.parametrize("allocation", [bnp.FiniteMixture(), bnp.HDPHMM()], ids=lambda one: type(one).__name__)
def test_models_whose_clusters_cannot_be_united_are_refused(allocation: object) -> None:
    with pytest.raises(SettingError, match="UnitedKMeans: needs a mixture that learns"):
        bnp.train(bnp.Model(allocation, bnp.Gaussian()), X, init=bnp.UnitedKMeans())


@pytest.mark.parametrize("settings", [{"n_clusters": 0}, {"sample": 0}])
def test_settings_are_checked(settings: dict[str, int]) -> None:
    with pytest.raises(SettingError):
        UnitedKMeans(**settings)


def test_an_estimator_starts_as_train_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a sample that is far smaller than the data."""
    monkeypatch.setattr("bnp_dask.training.run_settings.FAR_LARGER", 400 / SAMPLE)
    starts = []
    started = UnitedKMeans.start
    monkeypatch.setattr(UnitedKMeans, "start", lambda self, context: starts.append(self) or started(self, context))
    found = bnp.DirichletProcessMixture(random_state=0).fit(X)
    assert found.posterior_.n_clusters == 4 and starts == [UnitedKMeans()]
    bnp.DirichletProcessMixture(n_clusters=6, random_state=0).fit(X)
    bnp.DirichletProcessMixture(random_state=0).fit(X, sample_weight=np.arange(400) % 2)
    assert len(starts) == 1


@dataclass(frozen=True)
class Own:
    """A start of somebody else, which says whether its clusters were learned with another prior."""

    learns_prior: bool

    def start(self, context: InitContext) -> Summary:
        return bnp.BregmanKMeans(4).start(context)


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("labels", [None, np.repeat([0, -1], 200)], ids=["alone", "with labels"])
@pytest.mark.parametrize("learns", [True, False])
def test_a_run_learns_its_prior_first_from_a_start_that_did(
    monkeypatch: pytest.MonkeyPatch, learns: bool, labels: np.ndarray | None
) -> None:
    asked: list[Summary] = []
    monkeypatch.setattr("bnp_dask.training.train.better_prior", lambda model, found: asked.append(found) or model)
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    bnp.train(model, X, init=Own(learns), labels=labels, schedule=bnp.Memoized(laps=1), moves=())
    assert len(asked) == learns


# -- states that are crossed ------------------------------------------------------------------------------------------
def _hard_state(model: bnp.Model, labels: np.ndarray) -> Summary:
    n = int(labels.max()) + 1
    return model.summarize(np.arange(n, dtype=np.int64), Batch(X), np.eye(n)[labels])


def test_clusters_that_are_wrong_in_several_places_are_found_anew() -> None:
    """Two clusters are one in one place, and one is two in another: the true four come back, named as newborn."""
    truth = np.repeat(np.arange(4), 100)
    wrong = np.where(truth == 1, 0, truth)
    wrong = np.where((truth == 3) & (X[:, 0] > np.median(X[300:, 0])), 1, wrong)
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey_batch(Batch(X)), may_learn=True)
    found = crossed(model, Batch(X), _hard_state(model, wrong), 0, (0,), CrossLimits(60, 20), SmallRunPolicy())
    assert found is not None
    assert found.ids.tolist() == [-1, -2, -3, -4] and found["N"] == pytest.approx(100.0, abs=2.0)
    again = crossed(model, Batch(X), _hard_state(model, wrong), 0, (0,), CrossLimits(60, 20), SmallRunPolicy())
    assert again is not None and all(np.array_equal(found[name], again[name]) for name in found.values)
    assert crossed(model, Batch(X), _hard_state(model, truth), 0, (0,), CrossLimits(60, 20), SmallRunPolicy()) is None


def test_crossings_are_births_of_all_clusters_and_may_be_left_out() -> None:
    """Overlapping clusters of four features: a run with crossings ends no lower, and shows them."""
    draw = np.random.default_rng(6)
    y = draw.integers(6, size=240)
    x = 1.6 * draw.normal(size=(6, 4))[y] + draw.normal(size=(240, 4))
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())

    def run(crosses: float) -> bnp.TrainResult:
        moves = [bnp.Birth(policy=BirthPolicy(crossed=crosses)), bnp.Merge(), bnp.Delete()]
        return bnp.train(model, x, moves=moves, rng=0)

    crossing, without = run(2500.0), run(0.0)
    assert crossing.history[-1]["elbo"] >= without.history[-1]["elbo"] - 1e-6
    assert any(len(m["targets"]) > 3 for row in crossing.history for m in row["moves"] if m["kind"] == "birth")
    assert not any(len(m["targets"]) > 3 for row in without.history for m in row["moves"] if m["kind"] == "birth")


def test_crossings_end_by_their_work_and_are_left_out_where_it_is_too_much():
    few, calm = (CrossLimits.of(200, 4, 21, is_calm) for is_calm in (False, True))
    assert few == CrossLimits(400, 20) and calm == CrossLimits(400, 60)
    assert CrossLimits.of(569, 12, 497, False) == CrossLimits(29, 20)
    assert CrossLimits.of(1797, 25, 2146, False) is None
