"""Runs on data with missing entries: all kinds of model, all moves, the same bits, and what is imputed."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import bnp_dask as bnp

HOLES = 0.15


def blobs(n=600, d=4, seed=0):
    """Rows of three tight clusters in which each feature tells them apart, without holes and with them."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, n)
    whole = rng.normal(size=(n, d)) * 0.5 + np.array([-6.0, 0.0, 6.0])[label, None]
    holed = np.where(rng.random(whole.shape) < HOLES, np.nan, whole)
    holed[7] = np.nan
    return whole, holed, label


def fit(model, data, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        settings = {"schedule": bnp.Memoized(laps=6), "batch_size": 200, **settings}
        return bnp.train(model, data, **settings)


def never_falls(history):
    elbo = np.array([row["elbo"] for row in history if row.get("exact", True)])
    assert (np.diff(elbo) >= -1e-9 * np.abs(elbo[1:])).all()


@pytest.mark.parametrize("likelihood", [bnp.Gaussian, bnp.DiagGaussian, bnp.FixedVarianceGaussian])
def test_a_mixture_with_all_moves_finds_the_clusters_behind_the_holes(likelihood):
    whole, holed, label = blobs()
    settings = {"variance": 0.25} if likelihood is bnp.FixedVarianceGaussian else {}
    model = bnp.Model(bnp.DPMixture(1.0), likelihood(missing="marginalise", **settings))
    result = fit(model, holed, init=bnp.BregmanKMeans(5))
    never_falls(result.history)
    found = bnp.predict(result.posterior, holed)
    there = ~np.isnan(holed).all(axis=1)
    assert result.posterior.n_clusters == 3
    assert all(len(np.unique(found[there & (label == k)])) == 1 for k in range(3))
    filled = bnp.impute(result.posterior, holed)
    assert_array_equal(filled[~np.isnan(holed)], whole[~np.isnan(holed)])
    error = (filled - whole)[np.isnan(holed) & there[:, None]]
    assert np.sqrt(np.mean(error**2)) < 0.6
    assert np.isfinite(bnp.score(result.posterior, holed))


@pytest.mark.first_case
@pytest.mark.parametrize("allocation", [bnp.DPMixture(1.0), bnp.HDPTopics(2.0, 0.5), bnp.HDPHMM()], ids=repr)
@pytest.mark.parametrize("likelihood", [bnp.Gaussian, bnp.DiagGaussian])
def test_nothing_missing_gives_the_same_bits_in_every_kind_of_model(allocation, likelihood):
    groups = np.arange(0, 601, 50)
    source = bnp.as_source(blobs()[0], batch_size=200, groups=groups)
    settings = {"init": bnp.ContiguousBlocks(4), "schedule": bnp.Memoized(laps=3), "batch_size": None}
    if not isinstance(allocation, bnp.HDPHMM):
        settings["init"] = bnp.BregmanKMeans(4)
    plain, asked = (
        fit(bnp.Model(allocation, likelihood(missing=missing)), source, **settings) for missing in (None, "marginalise")
    )
    assert_array_equal(plain.history["elbo"], asked.history["elbo"])
    assert_array_equal(plain.posterior.observation.m, asked.posterior.observation.m)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["topics", "hmm"])
@pytest.mark.parametrize("likelihood", [bnp.Gaussian, bnp.DiagGaussian])
def test_groups_and_sequences_with_holes_train_and_are_imputed(kind, likelihood):
    whole, holed, label = blobs()
    order = np.argsort(label, kind="stable") if kind == "hmm" else np.arange(600)
    whole, holed = whole[order], holed[order]
    sequences = [holed[i : i + 100] for i in range(0, 600, 100)]
    allocation = bnp.HDPHMM() if kind == "hmm" else bnp.HDPTopics(2.0, 0.5)
    result = fit(bnp.Model(allocation, likelihood(missing="marginalise")), sequences)
    never_falls(result.history)
    filled = bnp.impute(result.posterior, sequences)
    error = (filled - whole)[np.isnan(holed) & ~np.isnan(holed).all(axis=1)[:, None]]
    assert np.sqrt(np.mean(error**2)) < 0.7
    assert len(bnp.predict(result.posterior, sequences)) == 600


def test_a_step_without_any_entry_costs_a_sequence_nothing():
    holed = blobs()[1]
    holed[300:310] = np.nan
    model = bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian(missing="marginalise"))
    result = fit(model, [holed], init=bnp.BregmanKMeans(3), batch_size=None)
    batch = bnp.Batch(holed[300:310], groups=np.array([0, 10]))
    assert_allclose(
        result.posterior.model.observation.expected_log_lik(result.posterior.observation, batch), 0, atol=1e-9
    )
    assert (result.posterior.observation.nu <= 3.0 + result.posterior.summary["N"][:, None]).all()


@pytest.mark.long
def test_masked_arrays_and_tables_with_missing_values_are_the_same_data():
    _, holed, _ = blobs()
    frame = pd.DataFrame(holed, columns=list("abcd"), index=np.arange(600) + 9)
    frame["d"] = pd.array(holed[:, 3], "Float64")
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian(missing="marginalise"))
    masked = np.ma.masked_invalid(holed)
    results = [fit(model, data, init=bnp.BregmanKMeans(3)) for data in (holed, masked, frame)]
    for other in results[1:]:
        assert_array_equal(results[0].history["elbo"], other.history["elbo"])
    filled = bnp.impute(results[2].posterior, frame)
    assert list(filled.columns) == list("abcd")
    assert_array_equal(filled.index, frame.index)
    assert_array_equal(filled.to_numpy(), bnp.impute(results[0].posterior, masked))


def test_a_run_with_holes_is_saved_resumed_and_loaded_to_the_same_bits(tmp_path):
    _, holed, _ = blobs()
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian(missing="marginalise"))
    settings = {"init": bnp.BregmanKMeans(4), "rng": 3}
    straight = fit(model, holed, **settings)
    fit(model, holed, store=tmp_path / "run", **{**settings, "schedule": bnp.Memoized(laps=2)})
    resumed = fit(model, holed, store=tmp_path / "run", resume=True, **settings)
    assert_array_equal(straight.history["elbo"], resumed.history["elbo"])
    loaded = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert_array_equal(bnp.impute(loaded, holed), bnp.impute(straight.posterior, holed))


def test_imputing_needs_a_likelihood_that_takes_holes():
    result = fit(bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian()), blobs()[0], init=bnp.BregmanKMeans(3))
    with pytest.raises(bnp.BnpDaskError, match="marginalise"):
        bnp.impute(result.posterior, blobs()[1])


@pytest.mark.parametrize("likelihood", [bnp.Gaussian, bnp.DiagGaussian])
def test_what_is_imputed_does_not_depend_on_how_much_a_row_counts(likelihood):
    holed = blobs(120)[1]
    model = bnp.Model(bnp.FiniteMixture(1.0), likelihood(missing="marginalise"))
    settings = {"init": bnp.BregmanKMeans(3), "schedule": bnp.Memoized(laps=1), "moves": ()}
    posterior = fit(model, holed, **settings).posterior
    weighted = bnp.as_source(holed, weights=np.random.default_rng(0).uniform(0.1, 5.0, len(holed)))
    assert_allclose(bnp.impute(posterior, weighted), bnp.impute(posterior, holed), rtol=1e-12)
