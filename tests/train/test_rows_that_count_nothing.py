"""Rows of weight zero, and zeros that are stored among counts, change no bit of what is learned and said."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError


def blobs(n=120):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [6.0, 1.0], [-5.0, 4.0]])
    return centres[np.repeat(np.arange(3), n // 3)] + rng.normal(size=(n, 2))


def counts(n=40):
    rng = np.random.default_rng(1)
    topics = np.kron(np.eye(3), np.full(4, 0.25))
    return np.array([rng.multinomial(30, rng.dirichlet(np.full(3, 0.3)) @ topics) for _ in range(n)]).astype(float)


def assert_same(one, other):
    for name, value in one.posterior.summary.values.items():
        np.testing.assert_array_equal(value, other.posterior.summary[name], err_msg=name)
    assert [row["elbo"] for row in one.history] == [row["elbo"] for row in other.history]


X, COUNTS = blobs(), counts()
WORDS = bnp.Multinomial(0.1)
BRIEF = {"schedule": bnp.Memoized(laps=3), "collapsed": 0}
CASES = {
    "mixture": (bnp.DPMixture(), bnp.Gaussian(), X, bnp.BregmanKMeans(5), {}),
    "bits": (bnp.FiniteMixture(), bnp.Bernoulli(), (X > 0).astype(float), bnp.KMeansParallel(3), {}),
    "documents": (bnp.DPMixture(), WORDS, sparse.csr_array(COUNTS), bnp.BregmanKMeans(4), {}),
    "topics": (bnp.HDPTopics(), WORDS, sparse.csr_array(COUNTS), bnp.RandomExamples(4), BRIEF),
    "filter": (bnp.NGGPMixture(), bnp.Gaussian(), X, bnp.FromNothing(), {"schedule": bnp.Filter()}),
}


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES)
def test_training_with_rows_of_weight_zero_is_training_without_them(case):
    allocation, observation, x, init, more = CASES[case]
    model = bnp.Model(allocation, observation)
    weights = np.random.default_rng(2).integers(0, 2, x.shape[0]).astype(float)
    with_them = bnp.train(model, x, weights=weights, init=init, **more)
    assert_same(with_them, bnp.train(model, x[weights > 0], init=init, **more))
    if case == "filter":
        return
    given = bnp.as_source(x, weights=weights)
    assert bnp.score(with_them.posterior, given) == bnp.score(with_them.posterior, x[weights > 0])
    if sparse.issparse(x):
        assert bnp.word_score(with_them.posterior, given) == bnp.word_score(with_them.posterior, x[weights > 0])


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_sequences_of_weight_zero_are_as_if_they_were_not_there():
    walks = [X[a : a + 20] for a in range(0, 120, 20)]
    times = np.array([1.0, 0.0, 2.0, 1.0, 0.0, 1.0])
    left = [walk for walk, n in zip(walks, times, strict=True) if n]
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    how = {"init": bnp.ContiguousBlocks(3), "schedule": bnp.Memoized(laps=3)}
    every = bnp.train(model, bnp.as_source(walks, weights=np.repeat(times, 20)), **how)
    assert_same(every, bnp.train(model, bnp.as_source(left, weights=np.repeat(times[times > 0], 20)), **how))


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_rows_of_weight_zero_in_several_batches_and_a_run_directory(tmp_path):
    model, weights = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian()), np.ones(120)
    weights[10:70] = 0.0  # a batch of thirty has none that counts, two have some
    how = {"init": bnp.BregmanKMeans(3), "batch_size": 30, "weights": weights}
    whole = bnp.train(model, X, schedule=bnp.Memoized(laps=4), **how)
    bnp.train(model, X, schedule=bnp.Memoized(laps=2), store=tmp_path / "run", **how)
    resumed = bnp.train(model, X, schedule=bnp.Memoized(laps=4), store=tmp_path / "run", resume=True, **how)
    assert_same(whole, resumed)
    assert whole.posterior.summary["N"].sum() == pytest.approx(60.0)
    assert len(bnp.predict(whole.posterior, X)) == 120


def test_rows_that_come_in_later_count_nothing_when_their_weight_is_zero(tmp_path):
    table = {"x": X[:, 0], "y": X[:, 1], "w": np.tile([1.0, 0.0, 2.0], 40)}
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table)
    some = frame[frame["w"] > 0]
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    for name, first, later in (("all", frame[:60], frame[60:]), ("some", some[:40], some[40:])):
        bnp.train(model, first, weights="w", init=bnp.BregmanKMeans(3), store=tmp_path / name)
        bnp.update(tmp_path / name, later)
    found = [bnp.load(tmp_path / name) for name in ("all", "some")]
    np.testing.assert_array_equal(found[0].summary["x"], found[1].summary["x"])


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_responsibilities_are_given_for_every_row_of_the_data():
    weights = np.tile([0.0, 1.0, 1.0], 40)
    resp = np.random.default_rng(3).dirichlet(np.ones(3), 120)
    model = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian(), learn_prior="never")
    how = {"schedule": bnp.FullBatch(laps=3)}
    every = bnp.train(model, X, weights=weights, init=bnp.Responsibilities(resp), batch_size=50, **how)
    some = bnp.train(model, X[weights > 0], init=bnp.Responsibilities(resp[weights > 0]), **how)
    np.testing.assert_allclose(every.posterior.summary["N"], some.posterior.summary["N"], rtol=1e-9)
    with pytest.raises(DataError, match="130 rows, but array has 80 atoms"):
        bnp.train(model, X, weights=weights, init=bnp.Responsibilities(np.full((130, 2), 0.5)))


def test_an_estimator_starts_from_as_many_clusters_as_rows_that_count():
    mixture = pytest.importorskip("bnp_dask.estimators").DirichletProcessMixture
    weights = np.zeros(120)
    weights[::8] = 1.0
    every, some = mixture(random_state=0).fit(X, sample_weight=weights), mixture(random_state=0).fit(X[::8])
    np.testing.assert_array_equal(every.weights_, some.weights_)
    np.testing.assert_array_equal(every.labels_[::8], some.labels_)
    assert len(every.labels_) == 120


def test_errors_name_the_row_as_it_was_read():
    x, weights = X.copy(), np.ones(120)
    weights[:40:2] = 0.0
    x[37, 1] = np.inf
    with pytest.raises(DataError, match="row 37, column 1 is inf"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, weights=weights)


def with_stored_zeros(x):
    n, width = x.shape
    return sparse.csr_array((x.ravel(), np.tile(np.arange(width), n), width * np.arange(n + 1)), shape=x.shape)


class Stored:
    """A source of one's own whose rows store zeros."""

    name, n_batches, n_features, n_atoms, is_sparse = "stored", 1, 12, 40, True

    def describe(self):
        return {"kind": "stored"}

    def reader(self, index):
        return self.read

    def read(self):
        return bnp.Batch(with_stored_zeros(COUNTS), None, self.name)


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("case", ["documents", "topics"])
@pytest.mark.parametrize("data", [with_stored_zeros(COUNTS), Stored()], ids=["matrix", "source"])
def test_zeros_that_are_stored_among_counts_change_nothing(case, data):
    allocation, observation, x, init, more = CASES[case]
    model = bnp.Model(allocation, observation)
    stored, plain = bnp.train(model, data, init=init, **more), bnp.train(model, x, init=init, **more)
    assert_same(stored, plain)
    posterior = plain.posterior
    assert bnp.score(posterior, data) == bnp.score(posterior, x)
    assert bnp.word_score(posterior, data) == bnp.word_score(posterior, x)
    np.testing.assert_array_equal(bnp.predict(posterior, data, soft=True), bnp.predict(posterior, x, soft=True))


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("total", [1.0, 1.9])
def test_weights_that_leave_next_to_no_data_get_a_line(total):
    model = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian())
    how = {"init": bnp.BregmanKMeans(2), "schedule": bnp.FullBatch(laps=1)}
    with pytest.warns(UserWarning, match=rf"weights of 120 rows sum to {total:g}: .* pass weights / weights.mean"):
        bnp.train(model, X, weights=np.full(120, total / 120), **how)
    bnp.train(model, X, weights=np.full(120, 0.05), **how)  # such as shares of samples: without a word


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_zeros_that_a_source_stores_are_no_change_of_the_data_when_a_run_is_resumed(tmp_path):
    allocation, observation, x, init, _ = CASES["documents"]
    model = bnp.Model(allocation, observation)
    bnp.train(model, Stored(), init=init, schedule=bnp.Memoized(laps=1), store=tmp_path / "run")
    how = {"init": init, "schedule": bnp.Memoized(laps=3), "on_bad_batch": "raise"}
    resumed = bnp.train(model, Stored(), store=tmp_path / "run", resume=True, **how)
    assert_same(resumed, bnp.train(model, x, **how))
