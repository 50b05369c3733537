"""Plain sequences for autoregressive models with ``lags``: their rows are made where data are opened, everywhere."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.__main__ import main
from bnp_dask.analysis.score import score_samples
from bnp_dask.core.batch import Batch
from bnp_dask.data.groups import lagged
from bnp_dask.errors import DataError, SettingError
from bnp_dask.kernels.hmm import spread
from bnp_dask.observation import with_previous

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

LENGTHS = (60, 1, 40, 2, 30)
STEPS = [np.diag([0.9, -0.5]), np.array([[0.6, 0.7], [-0.7, 0.6]])]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
FACTS = {"init": bnp.ContiguousBlocks(3), "schedule": bnp.Memoized(laps=4), "moves": (), "rng": 3}


def walks(seed=0):
    """Sequences that turn to another way of moving every twenty steps."""
    rng = np.random.default_rng(seed)
    parts = []
    for n in LENGTHS:
        x = np.zeros((n, 2))
        for t in range(1, n):
            x[t] = STEPS[t // 20 % 2] @ x[t - 1] + rng.normal(size=2)
        parts.append(x)
    return parts


def model(lags, allocation=None):
    return bnp.Model(
        bnp.HDPHMM(kappa=10.0) if allocation is None else allocation, bnp.AutoRegressiveGaussian(lags=lags)
    )


@pytest.mark.parametrize("allocation", [bnp.HDPHMM(kappa=10.0), bnp.DPMixture()])
def test_objective_and_scores_are_those_of_rows_made_by_hand(allocation):
    plain = bnp.as_source(np.concatenate(walks()), groups=OFFSETS)
    rows, offsets = with_previous(np.concatenate(walks()), OFFSETS)
    by_hand = bnp.as_source(rows, groups=offsets)
    made, wanted = bnp.train(model(1, allocation), plain, **FACTS), bnp.train(model(None, allocation), by_hand, **FACTS)
    assert [row["elbo"] for row in made.history] == [row["elbo"] for row in wanted.history]
    assert bnp.score(made.posterior, plain) == bnp.score(wanted.posterior, by_hand)
    labels = bnp.predict(made.posterior, plain)
    assert labels.shape == (OFFSETS[-1],)
    later = np.setdiff1d(np.arange(OFFSETS[-1]), OFFSETS[:-1])
    assert_array_equal(labels[later], bnp.predict(wanted.posterior, by_hand))
    assert_array_equal(labels[[0, 61, 101]], labels[[1, 62, 102]])  # first steps go with the second
    shares = bnp.predict(made.posterior, plain, soft=True)
    assert_allclose(shares.sum(axis=1), 1.0)
    assert labels[60] == made.posterior.ids[shares[60].argmax()]  # a sequence of one step
    assert bnp.predict(made.posterior, plain, top=2).label[60, 0] == labels[60]
    each = score_samples(made.posterior, plain)
    assert np.isnan(each[OFFSETS[:-1]]).all() and np.isfinite(each[later]).all()
    assert_allclose(each[later], score_samples(wanted.posterior, by_hand))


def test_values_go_back_to_the_steps_as_recorded():
    found = spread(np.arange(4), np.array([0, 4, 4, 6, 9]), 2, np.int64(-1))
    assert found.tolist() == [0, 0, 0, 1, -1, -1, 2, 2, 2]


@pytest.mark.parametrize("lags", [1, 2, 3])
def test_all_that_goes_with_a_row_goes_with_the_row_of_its_step(lags):
    n = int(OFFSETS[-1])
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(n, 2)), rng.uniform(1.0, 2.0, n)
    batch = Batch(x, weights, groups=OFFSETS.astype(np.int64), labels=np.arange(n), links=np.arange(n) + 500)
    found = lagged(batch, lags)
    at = np.concatenate([np.arange(a + lags, b) for a, b in zip(OFFSETS[:-1], OFFSETS[1:], strict=True)])
    assert_array_equal(found.x, np.concatenate([x[at - lag] for lag in range(lags + 1)], axis=1))
    assert_array_equal(found.weights, weights[at])
    assert_array_equal(found.labels, at)
    assert_array_equal(found.links, at + 500)
    assert_array_equal(np.diff(found.groups), np.maximum(np.array(LENGTHS) - lags, 0))


def test_pages_tables_and_samples_of_two_lags(tmp_path):
    pd = pytest.importorskip("pandas")
    frames = [pd.DataFrame(x, columns=["east", "north"]) for x in walks()]
    result = bnp.train(model(2), frames, **FACTS)
    posterior = result.posterior
    assert posterior.feature_names == ("east", "north")
    table = posterior.to_xarray()["coefficients"]
    assert table["lagged"].values.tolist() == ["east (t-1)", "north (t-1)", "east (t-2)", "north (t-2)"]
    assert "follows the 2 rows before" in str(bnp.inspect(posterior))
    swapped = [frame[["north", "east"]] for frame in frames]
    assert_array_equal(bnp.predict(posterior, swapped), bnp.predict(posterior, frames))
    bnp.save(posterior, tmp_path / "p.zarr")
    assert bnp.load(tmp_path / "p.zarr").model.observation == posterior.model.observation
    found = bnp.survey_sequences(posterior, frames)
    assert (found.n_sequences, found.n_steps) == (len(LENGTHS), OFFSETS[-1])
    bnp.predict(posterior, frames, out=tmp_path / "labels.parquet")
    assert bnp.state_durations(tmp_path / "labels.parquet").steps.sum() == OFFSETS[-1]
    bnp.report(posterior, tmp_path / "page.html", data=frames)
    assert bnp.sample(posterior, 20).x.shape == (20, 2)


@pytest.mark.long
def test_job_files_resume_and_the_command_line(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.concatenate(walks()))
    np.save(tmp_path / "offsets.npy", OFFSETS)
    job = {
        "model": {
            "allocation": {"type": "HDPHMM", "kappa": 10.0},
            "observation": {"type": "AutoRegressiveGaussian", "lags": 2},
        },
        "data": {"path": "x.npy", "groups": "offsets.npy"},
        "init": {"type": "ContiguousBlocks", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 4},
        "moves": [],
        "rng": 3,
        "store": "run",
    }
    (tmp_path / "run.yaml").write_text(json.dumps(job))
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    assert main(["train", str(tmp_path / "run.yaml"), "--resume"]) == 0
    plain = bnp.as_source(np.concatenate(walks()), groups=OFFSETS)
    wanted = bnp.train(model(2), plain, **FACTS)
    found = bnp.load(tmp_path / "run")
    assert_array_equal(found.observation.M, wanted.posterior.observation.M)
    assert main(["report", str(tmp_path / "run"), str(tmp_path / "page.html")]) == 0


def test_runs_grow_by_plain_sequences(tmp_path):
    first, later = (bnp.as_source(np.concatenate(walks(seed)), groups=OFFSETS) for seed in (0, 1))
    rows = [with_previous(np.concatenate(walks(seed)), OFFSETS) for seed in (0, 1)]
    by_hand = [bnp.as_source(x, groups=offsets) for x, offsets in rows]
    for name, lags, data in (("made", 1, (first, later)), ("wanted", None, by_hand)):
        bnp.train(model(lags), data[0], store=tmp_path / name, **FACTS)
        bnp.update(tmp_path / name, data[1])
    made, wanted = (bnp.load(tmp_path / name) for name in ("made", "wanted"))
    assert_array_equal(made.summary["zz"], wanted.summary["zz"])


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_the_estimator_takes_lags():
    pytest.importorskip("sklearn")
    parts = walks()
    settings = {"kappa": 10.0, "max_laps": 3, "moves": (), "random_state": 0}
    named = bnp.SequenceModel("autoregressive", **settings).fit(parts)
    made = bnp.SequenceModel(bnp.AutoRegressiveGaussian(lags=1), **settings).fit(parts)
    assert made.bound_ == named.bound_ and made.score(parts) == named.score(parts)
    assert_array_equal(made.labels_, named.labels_)
    assert_allclose(np.concatenate(made.predict_proba(parts)), np.concatenate(named.predict_proba(parts)))
    growing = bnp.SequenceModel(bnp.AutoRegressiveGaussian(lags=2), **settings).partial_fit(parts)
    assert len(growing.partial_fit(walks(1)).labels_) == OFFSETS[-1]
    assert growing.posterior_.summary["N"].sum() == pytest.approx(2 * sum(max(n - 2, 0) for n in LENGTHS))


def test_what_is_refused():
    x = np.concatenate(walks())
    with pytest.raises(DataError, match=r"rows without sequences, .* 1 step\(s\) before each; .*groups=\[0, n\]"):
        bnp.train(model(1, bnp.DPMixture()), x)
    with pytest.raises(DataError, match=r"longest sequence has 60 row\(s\).* needs a sequence of 61 rows"):
        bnp.train(model(60), walks())
    with pytest.raises(DataError, match="sparse counts"):
        bnp.train(model(1), sparse.csr_array(np.eye(3)))
    with pytest.raises(SettingError, match="HDPTopics is about groups without order"):
        model(1, bnp.HDPTopics())
    with pytest.raises(SettingError, match="for a whole model, not for some columns"):
        bnp.Product({"0:2": bnp.AutoRegressiveGaussian(lags=1), "2:4": bnp.Gaussian()})
    for lags in (0, 1.5, "two", True, 1001):
        with pytest.raises(SettingError, match="lags="):
            bnp.AutoRegressiveGaussian(lags=lags)
