"""Runs with responses of documents: moves, files, updates, job files, the estimator, and errors."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation.response import PRODUCTS, SQUARES
from bnp_dask.cli import main
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.core.batch import Batch, batch_from_arrays, batch_to_arrays, concatenate
from bnp_dask.data.beside import labels_of, responses_of
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.training.train import ConvergenceWarning


@cache
def corpus(n=120, k=4, n_words=24, seed=0):
    """Documents of clear topics, and responses that follow their shares; one in four is unknown."""
    rng = np.random.default_rng(seed)
    phi = np.kron(np.eye(k), np.ones(n_words // k)) + 0.02
    share = rng.dirichlet(np.full(k, 0.3), n)
    x = np.array([rng.multinomial(30, p) for p in share @ (phi / phi.sum(axis=1, keepdims=True))]).astype(np.float64)
    y = share @ np.linspace(-3.0, 3.0, k) + 0.2 * rng.normal(size=n)
    known = np.where(np.arange(n) % 4 == 3, np.nan, y)
    return sparse.csr_array(x), y, known


def trained(x, y, laps=8, **more):
    model = bnp.Model(bnp.HDPTopics(2.0), bnp.Multinomial())
    facts = {"init": bnp.SampledTopics(7), "batch_size": 30, "schedule": bnp.Memoized(laps=laps), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return bnp.train(model, x, responses=y, **facts)


def values_of(result):
    return [row["elbo"] for row in result.history]


@pytest.mark.long
def test_the_objective_never_falls_with_all_moves_and_totals_are_those_of_the_documents():
    x, y, known = corpus()
    moves = [bnp.Birth(), bnp.DocumentBirth(every=2, passes=10), bnp.Merge(), bnp.Delete()]
    found = trained(x, known, laps=12, moves=moves)
    laps = [row["elbo"] for row in found.history if row["lap"] >= 1]
    assert (np.diff(laps) > -1e-7).all()
    summary, mean = found.posterior.summary, np.nanmean(known)
    assert_allclose(summary["responses"], (~np.isnan(known)).sum(), rtol=1e-12)
    # shares of a document sum to one, so the sums over all topics are known whatever the moves did
    assert_allclose(summary[SQUARES].sum(), summary["responses"], rtol=1e-10)
    assert_allclose(summary[SQUARES], summary[SQUARES].T, atol=1e-9)
    assert_allclose(summary[PRODUCTS].sum(), 0.0, atol=1e-9)
    assert_allclose(summary["response_level"], np.nansum((known - mean) ** 2), rtol=1e-10)
    guess = bnp.predict_response(found.posterior, x)
    hidden = np.isnan(known)
    assert np.mean((guess.mean - y)[hidden] ** 2) < 0.1 * np.var(y)
    assert np.mean(np.abs(guess.mean - y) < 2.0 * np.sqrt(guess.variance)) > 0.9
    estimates = found.posterior.to_xarray()
    assert estimates["response"].shape == estimates["response_sd"].shape == (found.posterior.n_clusters,)


def test_the_same_bits_after_a_resume_and_from_a_file(tmp_path):
    x, _, known = corpus()
    whole = trained(x, known)
    short = trained(x, known, laps=3, store=tmp_path / "run")
    again = trained(x, known, store=tmp_path / "run", resume=True)
    assert_array_equal(values_of(again), values_of(whole))
    loaded = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert loaded.model == whole.posterior.model
    assert_array_equal(bnp.predict_response(loaded, x).mean, bnp.predict_response(whole.posterior, x).mean)
    np.save(tmp_path / "y.npy", known)
    assert_array_equal(values_of(trained(x, str(tmp_path / "y.npy"), laps=3)), values_of(short))
    with pytest.raises(StoreError, match="response"):
        trained(x, np.where(np.arange(120) == 0, 1.0, known), store=tmp_path / "run", resume=True)


def test_more_documents_come_with_responses_or_without(tmp_path):
    x, y, known = corpus()
    trained(x, known, laps=3, store=tmp_path / "run", moves=())
    found = bnp.update(tmp_path / "run", x[:60], responses=y[:60], revisit=0, batch_size=30)
    assert_allclose(found.posterior.summary["responses"], 90 + 60, rtol=1e-12)
    found = bnp.update(tmp_path / "run", x[60:90], revisit=0)
    assert_allclose(found.posterior.summary["responses"], 150, rtol=1e-12)
    bnp.ingest(x[90:], tmp_path / "more.zarr")
    np.save(tmp_path / "y.npy", y[90:])
    facts = {"responses": str(tmp_path / "y.npy"), "revisit": 0.5}
    found = bnp.update(tmp_path / "run", str(tmp_path / "more.zarr"), **facts)
    assert_allclose(found.posterior.summary["responses"], 180, rtol=1e-12)
    found = bnp.update(tmp_path / "run", x[:30] + x[30:60], revisit=9)  # visits the data in the file once more
    assert_allclose(found.posterior.summary["responses"], 180, rtol=1e-12)
    found = bnp.retire(tmp_path / "run", str(tmp_path / "more.zarr"))
    assert_allclose(found.summary["responses"], 150, rtol=1e-12)
    with pytest.raises(DataError, match="59 responses for the 60 documents"):
        bnp.update(tmp_path / "run", x[:60], responses=y[1:60])


def test_a_job_file_names_a_file_of_responses(tmp_path):
    x, _, known = corpus()
    bnp.ingest(x, tmp_path / "x.zarr", batch_size=30)
    np.save(tmp_path / "y.npy", known)
    content = {
        "model": {
            "allocation": {"type": "HDPTopics", "gamma": 2.0, "response": {"type": "GaussianResponse", "kappa": 0.2}},
            "observation": "Multinomial",
        },
        "data": {"path": "x.zarr", "responses": "y.npy"},
        "init": {"type": "SampledTopics", "n_clusters": 7},
        "schedule": {"type": "Memoized", "laps": 2},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = parse_job(content, tmp_path).train()
    response = found.posterior.model.allocation.response
    assert response.kappa == 0.2
    assert_allclose(response.mean, np.nanmean(known), rtol=1e-9)
    assert_allclose(found.posterior.summary["responses"], 90.0, rtol=1e-12)


def test_the_estimator_predicts_responses():
    x, y, known = corpus()
    made = bnp.TopicModel(5, response="gaussian", max_laps=40, tol=0.1, random_state=0).fit(x, known)
    mean, deviation = made.predict(x, return_std=True)
    assert np.corrcoef(mean, y)[0, 1] > 0.95 and (deviation > 0).all()
    assert_array_equal(made.predict(x), mean)
    assert not hasattr(bnp.TopicModel(), "predict")
    before = float(made.posterior_.summary["responses"])
    made.partial_fit(x[:20], y[:20])
    assert float(made.posterior_.summary["responses"]) == before + 20
    with pytest.raises(DataError, match="y is None"):
        bnp.TopicModel(2, response="gaussian").fit(x)
    with pytest.raises(SettingError, match="response="):
        bnp.TopicModel(2, response="poisson").fit(x, y)


@pytest.mark.long
def test_predictions_of_numbers_and_classes_are_written_as_files(tmp_path):
    x, y, known = corpus()
    numbers = trained(x, known).posterior
    allocation = bnp.HDPTopics(2.0, response=bnp.CategoricalResponse())
    sections = np.where(y > 0.0, "above", "below")
    classes = bnp.train(bnp.Model(allocation, bnp.Multinomial()), x, init=bnp.SampledTopics(4), responses=sections)
    numbers.save(tmp_path / "numbers.zarr")
    classes.posterior.save(tmp_path / "classes.zarr")
    bnp.ingest(x, tmp_path / "x.zarr", batch_size=50)
    for kind in ("numbers", "classes"):
        for ending in ("csv", "parquet", "zarr"):
            files = [str(tmp_path / name) for name in (f"{kind}.zarr", "x.zarr", f"{kind}-out.{ending}")]
            assert main(["predict", *files, "--responses", "--quiet"]) == 0
    expected = bnp.predict_response(numbers, x)
    for table in (pd.read_csv(tmp_path / "numbers-out.csv"), pd.read_parquet(tmp_path / "numbers-out.parquet")):
        assert_array_equal(table, np.stack([expected.mean, expected.variance], axis=1))
    expected = bnp.predict_response(classes.posterior, x)
    table = pd.read_csv(tmp_path / "classes-out.csv")
    assert_array_equal(table["class"], expected.best)
    assert_array_equal(table[["probability_above", "probability_below"]], expected.mean)
    assert_array_equal(pd.read_parquet(tmp_path / "classes-out.parquet")["class"], expected.best)
    group = zarr.open_group(tmp_path / "classes-out.zarr", mode="r")
    assert_array_equal(group["probability"][:], expected.mean)
    assert group.attrs["bnp_dask"]["classes"] == ["above", "below"]


def test_responses_are_predicted_alone_and_from_topics_that_have_some(tmp_path, capsys):
    x, _, known = corpus()
    trained(x, known, laps=1).posterior.save(tmp_path / "some.zarr")
    trained(x, None, laps=1).posterior.save(tmp_path / "none.zarr")
    bnp.ingest(x, tmp_path / "x.zarr")
    words = ["predict", str(tmp_path / "some.zarr"), str(tmp_path / "x.zarr"), str(tmp_path / "out.csv"), "--responses"]
    assert main([*words, "--soft"]) == 2
    assert "--responses and --soft: responses of documents are written alone" in capsys.readouterr().err
    assert main([words[0], str(tmp_path / "none.zarr"), *words[2:]]) == 2
    assert "trained without responses; pass train(..., responses=y)" in capsys.readouterr().err


def test_responses_travel_with_the_documents_of_a_batch():
    x, y, _ = corpus()
    counts = Batch(x[:6], np.array([1.0, 0, 1, 1, 0, 1]), responses=y[:6])
    assert_array_equal(counts.rows(2, 5).responses, y[2:5])
    assert_array_equal(counts.take(np.array([4, 1])).responses, y[[4, 1]])
    assert_array_equal(counts.counting().responses, y[[0, 2, 3, 5]])
    assert_array_equal(batch_from_arrays(batch_to_arrays(counts), "again").responses, y[:6])
    both = concatenate([counts, Batch(x[6:8])])
    assert_array_equal(both.responses, [*y[:6], np.nan, np.nan])
    points = Batch(np.arange(12.0).reshape(6, 2), groups=np.array([0, 2, 2, 6]), responses=y[:3])
    assert_array_equal(points.take_groups(np.array([2, 0])).responses, y[[2, 0]])
    assert_array_equal(points.take_groups(np.array([1, 2])).responses, y[1:3])
    assert_array_equal(points.rows(2, 6).responses, points.responses[len(y[:3]) - points.rows(2, 6).n_groups :])
    assert points.take(np.arange(3)).responses is None
    with pytest.raises(DataError, match="one for each of 3 groups"):
        Batch(points.x, groups=points.groups, responses=y[:2])


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ([1.0], "1 responses for the 120 documents"),
        (np.full(120, np.nan), "no response is observed"),
        (np.full(120, np.inf), "is infinite"),
        (np.arange(120) * 1e300, "beyond double precision; divide them"),
        (np.ones((120, 2)), "one number for each document"),
        (["a"] * 120, "classes need a model"),
        (["1.5", None], "some are texts"),
        ([10**400, 1.0], "too large"),
        (np.array([1j, 2.0]), "holds complex numbers"),
        (np.array(["2020-01-01"], "M8[D]"), "holds dates"),
        ("y.csv", "path of a .npy file"),
        ("none.npy", "no such file"),
    ],
)
def test_responses_that_are_none(responses, message):
    with pytest.raises(DataError, match=message):
        trained(corpus()[0], responses)


def test_unknown_responses_have_many_forms(tmp_path):
    np.save(tmp_path / "y.npy", np.array([1.0, np.nan], ">f4"))
    masked = np.ma.masked_array([1, 2], [False, True])
    for given in ([1, None], masked, np.array([1.0, np.nan]), tmp_path / "y.npy", pd.array([1, None]), [1.0, pd.NA]):
        assert_array_equal(responses_of(given), [1.0, np.nan])


@pytest.mark.parametrize("read", [responses_of, labels_of])
def test_files_beside_the_data_are_numbers_of_the_announced_size_and_urls_keep_their_secrets(tmp_path, read):
    np.save(tmp_path / "objects.npy", np.array([None, 1], object), allow_pickle=True)
    whole = (tmp_path / "objects.npy").read_bytes()
    np.save(tmp_path / "short.npy", np.ones(9))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes().replace(b"(9,)", b"(9000000000000,)"))
    (tmp_path / "none.npy").write_bytes(b"PK" + whole)
    for name, message in {"objects": "Python objects", "short": "cut short|damaged", "none": "not a .npy file"}.items():
        with pytest.raises(DataError, match=message):
            read(tmp_path / f"{name}.npy")
    with pytest.raises(DataError, match=r"path of a .npy file") as caught:
        read("https://someone:hidden@example.org/y.csv?signature=hidden")
    assert "hidden" not in str(caught.value)


def test_models_schedules_and_posteriors_without_responses():
    x, y, _ = corpus()
    with pytest.raises(SettingError, match="use HDPTopics"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial()), x, responses=y)
    with pytest.raises(SettingError, match="does not look at responses"):
        trained(x, y, schedule=bnp.Gibbs(laps=20), init=None)
    with pytest.raises(SettingError, match="trained without responses"):
        bnp.predict_response(trained(x, None, laps=1).posterior, x)
    with pytest.raises(SettingError, match="needs GaussianResponse"):
        bnp.LDA(response=3)


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_a_model_of_responses_without_any_says_so():
    x, *_ = corpus()
    model = bnp.Model(bnp.LDA(response=bnp.GaussianResponse()), bnp.Multinomial())
    with pytest.warns(match="no responses are given"):
        bnp.train(model, x, init=bnp.RandomExamples(2), schedule=bnp.Memoized(laps=1), moves=())
    with pytest.raises(SettingError, match="kappa=1e-310"):
        bnp.GaussianResponse(kappa=1e-310)
