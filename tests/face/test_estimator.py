"""The scikit-learn estimator: scikit-learn's own checks, and that it says what train, predict and score say."""

import copy
import functools
import inspect
import pickle
import re

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")

from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import bnp_dask as bnp
from bnp_dask import DirichletProcessMixture
from bnp_dask.errors import PARAMETERS, DataError, SettingError
from bnp_dask.estimators import LEARNED

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight 2 is one atom that counts twice: k-means++ draws other atoms than from two rows; "
        "what fit does with weights from one start is tested below"
    ),
}


@parametrize_with_checks(
    [DirichletProcessMixture(n_clusters=3, max_laps=20)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
@pytest.mark.filterwarnings("ignore:.*not converged")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(3)
    truth = rng.integers(3, size=600)
    return np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[truth] + rng.standard_normal((600, 2)), truth


@pytest.fixture(scope="module")
def fitted(blobs):
    estimator = DirichletProcessMixture("diag_gaussian", n_clusters=3, batch_size=100, random_state=5)
    return estimator.fit(blobs[0])


def test_it_is_train_predict_and_score(blobs, fitted):
    x, _ = blobs
    seed = int(np.random.RandomState(5).randint(2**31 - 1))
    result = bnp.train(
        bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian()),
        x,
        init=bnp.BregmanKMeans(3),
        schedule=bnp.Memoized(laps=100),
        moves=[bnp.Merge(), bnp.Delete()],
        rng=seed,
        batch_size=100,
    )
    assert fitted.history_["elbo"].tolist() == result.history["elbo"].tolist()
    resp = bnp.predict(result.posterior, x, soft=True)
    np.testing.assert_array_equal(fitted.predict_proba(x), resp[:, fitted.order_])
    assert fitted.score(x) == bnp.score(result.posterior, x)
    assert fitted.score_samples(x).mean() == pytest.approx(fitted.score(x), rel=1e-12)


def test_attributes(blobs, fitted):
    truth = blobs[1]
    assert fitted.n_clusters_ == 3
    assert fitted.n_features_in_ == 2
    assert fitted.converged_
    assert fitted.n_iter_ == len(fitted.lower_bounds_)
    assert np.all(np.diff(fitted.lower_bounds_[1:]) >= -1e-9 * abs(fitted.lower_bound_))
    assert fitted.weights_.sum() == pytest.approx(1.0, abs=0.01)
    assert np.all(np.diff(fitted.weights_) <= 0)
    table = np.zeros((3, 3), int)
    np.add.at(table, (fitted.labels_, truth), 1)
    assert (table > 0).sum() == 3


def test_labels_agree_with_predict_and_probabilities(blobs, fitted):
    x, _ = blobs
    np.testing.assert_array_equal(fitted.predict(x), fitted.labels_)
    np.testing.assert_array_equal(fitted.predict_proba(x).argmax(axis=1), fitted.labels_)
    np.testing.assert_array_equal(clone(fitted).fit_predict(x), fitted.labels_)


def test_labels_count_clusters_with_atoms_only(blobs):
    x, _ = blobs
    with pytest.warns(ConvergenceWarning):
        estimator = DirichletProcessMixture(n_clusters=30, max_laps=5, random_state=0).fit(x)
    used = np.unique(estimator.labels_)
    np.testing.assert_array_equal(used, np.arange(estimator.n_clusters_))
    assert len(estimator.weights_) == estimator.posterior_.n_clusters


def test_too_few_laps_warn(blobs):
    with pytest.warns(ConvergenceWarning, match="increase max_laps or tol"):
        DirichletProcessMixture(n_clusters=5, max_laps=1, random_state=0).fit(blobs[0])


def test_sample_weights_count(blobs):
    """Whole-number weights and repeated rows have the same fixed point: start both from the same statistics."""
    x, truth = blobs
    x, truth = x[:200], truth[:200]
    weight = np.random.default_rng(0).integers(0, 4, size=200)
    model = bnp.Gaussian(nu=5.0, B=np.eye(2), m=np.zeros(2), kappa=0.1, center=np.zeros(2))
    same = {"moves": (), "tol": 1e-6}  # moves look at samples, in which a row of weight 2 is one atom
    one = DirichletProcessMixture(model, init=bnp.Responsibilities(truth), **same).fit(x, sample_weight=weight)
    repeated = np.repeat(x, weight, axis=0)
    start = bnp.Responsibilities(np.repeat(truth, weight))
    ones = np.ones(len(repeated))  # else copies would count once
    other = DirichletProcessMixture(model, init=start, **same).fit(repeated, sample_weight=ones)
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-9)


def test_sparse_counts():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=100)
    words = rng.multinomial(40, np.array([[0.4, 0.4, 0.05, 0.05, 0.1], [0.05, 0.05, 0.4, 0.4, 0.1]])[truth])
    estimator = DirichletProcessMixture("multinomial", n_clusters=2, random_state=0)
    labels = estimator.fit(sparse.csr_array(words)).labels_
    assert max(np.mean(labels == truth), np.mean(labels != truth)) > 0.97
    np.testing.assert_array_equal(clone(estimator).fit(words).labels_, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": "gausian"}, "observation='gausian': needs one of bernoulli"),
        ({"gamma": -1.0}, "gamma=-1.0: needs a positive"),
        ({"max_laps": 0}, "laps=0: needs a whole number"),
        ({"n_clusters": 1000}, "ask for at most 600 clusters"),
    ],
)
def test_wrong_settings_are_found_in_fit(blobs, options, message):
    estimator = DirichletProcessMixture(**options)
    with pytest.raises(ValueError, match=message):
        estimator.fit(blobs[0])


def test_arguments_by_their_places_are_answered_with_names():
    with pytest.raises(TypeError, match="got 2 arguments by their places; needs at most 1: observation. The others"):
        DirichletProcessMixture("gaussian", 3)


def test_parameters_round_trip():
    estimator = DirichletProcessMixture("poisson", n_clusters=4)
    assert estimator.get_params()["observation"] == "poisson"
    assert estimator.set_params(gamma=3.0).gamma == 3.0


# -- names --------------------------------------------------------------------------------------------------------
def table(blobs):
    return pytest.importorskip("pandas").DataFrame(blobs[0], columns=["width", "height"])


def test_the_posterior_keeps_the_names_that_scikit_learn_saw(blobs):
    frame = table(blobs)
    both = bnp.Product({"width": bnp.Gaussian(), "height": bnp.DiagGaussian()})
    for observation in ("diag_gaussian", both):
        estimator = DirichletProcessMixture(observation, n_clusters=3, random_state=5).fit(frame)
        assert estimator.feature_names_in_.tolist() == ["width", "height"]
        assert estimator.posterior_.feature_names == ("width", "height")
        swapped = frame[["height", "width"]]
        assert bnp.score(estimator.posterior_, swapped) == estimator.score(frame)
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.predict(swapped)
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            np.testing.assert_array_equal(estimator.predict(blobs[0]), estimator.labels_)
    plain = DirichletProcessMixture("diag_gaussian", n_clusters=3, random_state=5).fit(blobs[0])
    named = DirichletProcessMixture("diag_gaussian", n_clusters=3, random_state=5).fit(frame)
    assert plain.posterior_.columns is None and plain.lower_bounds_ == named.lower_bounds_


def test_weights_go_with_names(blobs):
    frame, weights = table(blobs), np.random.default_rng(0).integers(1, 4, 600)
    estimator = DirichletProcessMixture("diag_gaussian", n_clusters=3, random_state=0)
    named = estimator.fit(frame, sample_weight=weights).lower_bounds_
    assert estimator.fit(blobs[0], sample_weight=weights).lower_bounds_ == named


@pytest.mark.parametrize("observation", ["gaussian", "diag_gaussian"])
def test_what_scikit_learn_calls_moments_criteria_and_samples(blobs, observation):
    x, _ = blobs
    made = DirichletProcessMixture(observation, n_clusters=3, random_state=0).fit(x)
    shape = (3, 2, 2) if observation == "gaussian" else (3, 2)
    assert made.means_.shape == (3, 2)
    assert made.covariances_.shape == shape
    for k in range(3):
        np.testing.assert_allclose(made.means_[k], x[made.labels_ == k].mean(axis=0), atol=0.2)
    rows, labels = made.sample(50)
    assert rows.shape == (50, 2)
    np.testing.assert_array_equal(made.predict(rows), labels)
    free = 3 * (5 if observation == "gaussian" else 4) + 2
    total = 2.0 * made.score_samples(x).sum()
    assert made.aic(x) == pytest.approx(2 * free - total)
    assert made.bic(x) == pytest.approx(np.log(600) * free - total)


def test_frames_come_back_as_series_with_their_index(blobs, fitted):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(blobs[0], columns=["a", "b"], index=np.arange(600) * 2)
    made = DirichletProcessMixture("diag_gaussian", n_clusters=3, random_state=5).fit(frame)
    labels, shares = made.predict(frame), made.predict_proba(frame)
    assert isinstance(labels, pd.Series)
    assert labels.index.equals(frame.index) and shares.index.equals(frame.index)
    np.testing.assert_array_equal(labels, made.labels_)
    np.testing.assert_array_equal(shares.to_numpy().argmax(axis=1), made.labels_)
    assert made.score_samples(frame).index.equals(frame.index)


def test_dask_arrays_come_back_lazily(blobs, fitted):
    da = pytest.importorskip("dask.array")
    rows = da.from_array(blobs[0], chunks=(250, 2))
    labels, shares = fitted.predict(rows), fitted.predict_proba(rows)
    assert isinstance(labels, da.Array)
    np.testing.assert_array_equal(labels.compute(scheduler="sync"), fitted.labels_)
    np.testing.assert_array_equal(shares.compute(scheduler="sync"), fitted.predict_proba(blobs[0]))


def test_a_dask_table_keeps_its_names(blobs):
    dd, db = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask.bag")
    frame = pd.DataFrame(blobs[0], columns=["a", "b"])
    table = dd.from_pandas(frame, npartitions=3)
    here, there = (DirichletProcessMixture(n_clusters=3, random_state=0).fit(x) for x in (frame, table))
    assert there.feature_names_in_.tolist() == ["a", "b"]
    np.testing.assert_array_equal(there.labels_, here.labels_)
    np.testing.assert_array_equal(there.predict(table[["b", "a"]]).compute(scheduler="sync"), here.labels_)
    texts = ["open a socket", "read a file"] * 4
    column = dd.from_pandas(pd.DataFrame({"text": texts}), npartitions=2)["text"]
    for data in (texts, column, db.from_sequence(texts)):
        assert bnp.TopicModel(2, random_state=0, tol=1.0).fit(data).n_topics_ == 2


def test_missing_entries_are_taken_by_likelihoods_that_take_them(blobs):
    x = np.where(np.random.default_rng(1).random((600, 2)) < 0.1, np.nan, blobs[0])
    made = DirichletProcessMixture(bnp.Gaussian(missing="marginalise"), n_clusters=3, random_state=0).fit(x)
    assert made.n_clusters_ == 3
    np.testing.assert_array_equal(made.predict(np.ma.masked_invalid(x)), made.labels_)
    with pytest.raises(ValueError, match="NaN"):
        DirichletProcessMixture(bnp.Gaussian(), n_clusters=3).fit(x)


def test_criteria_count_the_shares_of_words_but_one():
    x = np.random.default_rng(0).poisson(3.0, size=(60, 7)).astype(float)
    made = DirichletProcessMixture("multinomial", n_clusters=2, random_state=0).fit(x)
    k = made.posterior_.n_clusters
    total = 2.0 * made.score_samples(x).sum()
    assert made.aic(x) == pytest.approx(2 * (k * 6 + k - 1) - total)


def test_means_of_counts_and_bits_are_called_as_those_of_points():
    rng = np.random.default_rng(0)
    counts = np.concatenate([rng.poisson(2.0, (60, 2)), rng.poisson(30.0, (60, 2))])
    for observation, x in (("poisson", counts), ("bernoulli", (counts > 10).astype(float))):
        made = DirichletProcessMixture(observation, n_clusters=2, random_state=0).fit(x)
        for k in range(2):
            np.testing.assert_allclose(made.means_[k], x[made.labels_ == k].mean(axis=0), rtol=0.1, atol=0.1)
        assert not hasattr(made, "covariances_")


def test_weights_reach_a_mixture_through_a_pipeline(blobs):
    from sklearn import config_context
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, weights = blobs[0], np.random.default_rng(0).integers(1, 4, 600)
    with config_context(enable_metadata_routing=True):
        mixture = DirichletProcessMixture("diag_gaussian", n_clusters=3, random_state=0)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, mixture.set_fit_request(sample_weight=True)).fit(x, sample_weight=weights)
    direct = DirichletProcessMixture("diag_gaussian", n_clusters=3, random_state=0)
    direct.fit(StandardScaler().fit_transform(x), sample_weight=weights)
    assert routed[-1].lower_bounds_ == direct.lower_bounds_
    assert routed[-1].posterior_.summary["N"].sum() == pytest.approx(weights.sum())


# -- tables of several kinds ------------------------------------------------------------------------------------------
def patients():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    kind = np.repeat([0, 1], 60)
    frame = pd.DataFrame(
        {
            "age": rng.normal([30.0, 70.0], 3.0, (120, 2))[np.arange(120), kind].round(1),
            "visits": rng.poisson(np.array([2.0, 30.0])[kind]),
            "ward": pd.Categorical(np.array(["a", "b"])[kind]),
            "seen": pd.date_range("2024", periods=120),
        }
    )
    frame.loc[[3, 70], "age"] = np.nan
    return frame, kind


def test_a_table_of_several_kinds_is_fitted_by_the_likelihoods_that_its_columns_call_for():
    frame, kind = patients()
    model = DirichletProcessMixture("auto", random_state=0)
    with pytest.warns(UserWarning, match="columns are left out: 'seen' .dates and times."):
        model.fit(frame)
    parts = {"age": bnp.Gaussian(missing="marginalise"), "visits": bnp.Poisson(), "ward": bnp.Categorical()}
    assert model.observation_ == bnp.Product(parts, others="ignore")
    assert repr(model.observation_).startswith("""Product({"age": Gaussian(missing='marginalise'), "visits": Poiss""")
    assert model.n_clusters_ == 2
    np.testing.assert_array_equal(model.labels_ == model.labels_[0], kind == 0)
    np.testing.assert_array_equal(model.predict(frame.iloc[:10]), model.labels_[:10])
    given = DirichletProcessMixture(model.observation_, random_state=0).fit(frame)
    assert given.lower_bounds_ == model.lower_bounds_
    assert clone(model).observation == "auto"


def test_auto_is_the_gaussian_for_an_array(blobs):
    x = np.array(blobs[0][:200])
    settings = {"n_clusters": 3, "random_state": 0}
    plain = DirichletProcessMixture("auto", **settings).fit(x)
    assert plain.lower_bounds_ == DirichletProcessMixture(**settings).fit(x).lower_bounds_
    x[4, 1] = np.nan
    holes = DirichletProcessMixture("auto", **settings).fit(x)
    assert holes.observation_ == bnp.Gaussian(missing="marginalise")
    assert holes.predict(x).shape == (200,)


@pytest.mark.filterwarnings("ignore:.*features are")
def test_a_missing_entry_names_the_settings_that_take_it(blobs):
    frame, _ = patients()
    advice = r"""column 'age' .2 such entries.. observation=Gaussian.missing="marginalise".*="auto".*Product.of"""
    with pytest.raises(ValueError, match="X contains NaN: row 3, " + advice):
        DirichletProcessMixture().fit(frame)
    x = np.array(blobs[0])
    fitted = DirichletProcessMixture(n_clusters=3, random_state=0).fit(x)
    x[7, 1] = np.nan
    with pytest.raises(ValueError, match="X contains NaN: row 7, column 1"):
        fitted.predict(x)
    with pytest.raises(ValueError, match="X contains NaN"):
        bnp.SequenceModel().fit(x)


# -- as scikit-learn's pipelines and searches use it -----------------------------------------------------------------
def test_shares_come_as_the_output_that_was_set(blobs, fitted):
    pd = pytest.importorskip("pandas")
    x, _ = blobs
    np.testing.assert_array_equal(fitted.transform(x), fitted.predict_proba(x))
    table = pd.DataFrame(x, index=range(7, 607), columns=["a", "b"])
    frame = clone(fitted).set_output(transform="pandas").fit(table).transform(table)
    assert frame.columns.tolist() == ["cluster0", "cluster1", "cluster2"] and frame.index[0] == 7
    np.testing.assert_array_equal(frame.to_numpy(), fitted.transform(x))
    np.testing.assert_array_equal(clone(fitted).fit_transform(x), fitted.transform(x))


def test_settings_of_parts_are_parameters(blobs):
    from sklearn.model_selection import GridSearchCV

    model = DirichletProcessMixture(bnp.Gaussian(nu=5.0), schedule=bnp.Memoized(laps=2))
    assert model.get_params()["observation__nu"] == 5.0 and model.get_params()["schedule__laps"] == 2
    assert "observation__nu" not in model.get_params(deep=False)
    model.set_params(observation__kappa=0.5, n_clusters=3, schedule__laps=3)
    assert model.observation == bnp.Gaussian(nu=5.0, kappa=0.5) and model.schedule.laps == 3 and model.n_clusters == 3
    named = DirichletProcessMixture("diag_gaussian").set_params(observation__kappa=0.5)
    assert named.observation == bnp.DiagGaussian(kappa=0.5)
    with pytest.raises(ValueError, match="observation__kapa: Gaussian has no setting 'kapa'; nearest.*'kappa'"):
        model.set_params(observation__kapa=1.0)
    with pytest.raises(ValueError, match="init=None has no settings"):
        model.set_params(init__n_clusters=1)
    topics = bnp.TopicModel(text=bnp.Text()).set_params(text__min_df=7)
    assert topics.text.min_df == 7
    start = DirichletProcessMixture(n_clusters=3, max_laps=40, random_state=0)
    search = GridSearchCV(start, {"observation__kappa": [1e-3, 50.0]}, cv=2).fit(blobs[0])
    assert search.best_params_ == {"observation__kappa": 1e-3}


# -- habits of other programs --------------------------------------------------------------------------------------
NUMBERS = np.concatenate([np.random.default_rng(0).normal(c, 1.0, (30, 2)) for c in (0.0, 9.0)])
FITTED = {
    "mixture": lambda: DirichletProcessMixture(n_clusters=2, random_state=0).fit(NUMBERS),
    "topics": lambda: bnp.TopicModel(2, random_state=0, tol=1.0).fit(np.eye(4, dtype=int)[[0, 1, 2, 3] * 3]),
    "sequences": lambda: bnp.SequenceModel(n_states=2, random_state=0, tol=1.0).fit([NUMBERS]),
}
FITTED = {kind: functools.cache(fit) for kind, fit in FITTED.items()}


@pytest.mark.parametrize("estimator", [DirichletProcessMixture, bnp.TopicModel, bnp.SequenceModel])
def test_every_parameter_that_is_advised_for_another_programs_name_is_there(estimator):
    known = estimator().get_params(deep=False)
    for names, calls in PARAMETERS.items():
        for name in set(names.split()) - set(known):
            with pytest.raises(TypeError, match=f"{estimator.__name__} has no parameter '{name}'; ") as caught:
                estimator(**{name: 3})
            with pytest.raises(SettingError, match=re.escape(str(caught.value))):
                estimator().set_params(**{name: 3})
            advised = re.search(r"here it is (\w+)=", str(caught.value))
            assert advised is None or advised[1] in known, calls
    size = next(name for name in known if name in ("n_clusters", "n_topics", "n_states"))
    for name, answer in {
        "max_iter": "max_laps=",
        "n_components": f"{size}=; None learns",
        "max_lap": "'max_laps'",
    }.items():
        with pytest.raises(TypeError, match=answer):
            estimator(**{name: 3})
    assert list(inspect.signature(estimator).parameters) == [*inspect.signature(estimator.__init__).parameters][1:]


@pytest.mark.parametrize(
    "kind, asked, answer",
    [
        ("mixture", "n_components_", "n_clusters_"),
        ("mixture", "precisions_", "np.linalg.inv(covariances_)"),
        ("mixture", "cluster_centers_", "means_"),
        ("mixture", "save", "bnp_dask.save(posterior_, path)"),
        ("topics", "labels_", "transform(X).argmax(axis=1)"),
        ("topics", "perplexity", "np.exp(-score(X))"),
        ("topics", "n_components", "n_topics_"),
        ("topics", "print_topics", "posterior_.topics(10)"),
        ("sequences", "monitor_", "history_ and converged_"),
        ("sequences", "score_samples", "score([x]) for each sequence"),
        ("sequences", "transform", "predict_proba(X)"),
    ],
)
def test_names_of_other_programs_estimators_are_answered_with_the_call(kind, asked, answer):
    estimator = FITTED[kind]()
    with pytest.raises(AttributeError, match=re.escape(f"has no '{asked}'; use {answer}")):
        getattr(estimator, asked)
    assert not hasattr(estimator, asked)
    assert not hasattr(clone(estimator), asked)
    for copied in (pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator)):
        np.testing.assert_array_equal(copied.weights_, estimator.weights_)
    for call in LEARNED:  # what is advised for some name is there, in one estimator or another
        names = re.findall(r"\b[a-z]\w*_\b", call) or re.findall(r"\b(\w+)\((?=X|\[x|n\))", call)
        assert "{size}" in call or any(all(hasattr(FITTED[k](), n) for n in names) for k in FITTED), call


def test_what_is_learned_is_said_to_wait_for_fit():
    with pytest.raises(AttributeError, match=re.escape("has no 'labels_' yet: it is not fitted; call fit(X)")):
        _ = DirichletProcessMixture().labels_
    with pytest.raises(AttributeError, match="object has no attribute 'colour'"):
        _ = DirichletProcessMixture().colour


@pytest.mark.parametrize("word, name", [("full", "gaussian"), ("gauss", "gaussian"), ("diag", "diag_gaussian")])
def test_words_for_likelihoods_are_answered_with_their_name(word, name):
    for estimator in (DirichletProcessMixture(word), bnp.SequenceModel(word)):
        with pytest.raises(SettingError, match=f"observation='{word}': needs one of .* or a model; that is '{name}'"):
            estimator.fit([NUMBERS] if isinstance(estimator, bnp.SequenceModel) else NUMBERS)


@pytest.mark.parametrize(
    "X, found",
    [
        (pd.Series(range(9), name="a"), "X is a Series of 9 entries; needs"),
        (np.arange(9.0), "X is an array of float64 of shape (9,)"),
        (np.zeros((9, 2), complex), "X is an array of complex128 of shape (9, 2)"),
    ],
)
def test_errors_of_data_do_not_print_the_data(X, found):
    with pytest.raises(DataError, match=re.escape(found)) as caught:
        DirichletProcessMixture().fit(X)
    assert not re.search(r"\[ *[-\d\[]+\.", str(caught.value)), str(caught.value)


def test_auto_learns_from_a_table_of_measurements_what_gaussian_does_from_their_array():
    # features of unlike spread within clusters, where a learned prior differs much from the one that the data give
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 160)
    x = rng.normal(rng.normal(size=(4, 6))[kind] * 4.0, 1.0) @ rng.normal(size=(6, 6))
    of_array = DirichletProcessMixture("gaussian", random_state=0).fit(x)
    table = pd.DataFrame(x, columns=list("abcdef"))
    of_table = DirichletProcessMixture("auto", random_state=0).fit(table)
    assert of_table.lower_bound_ == of_array.lower_bound_
    np.testing.assert_array_equal(of_table.labels_, of_array.labels_)
    np.testing.assert_array_equal(of_table.predict(table.head(9)), of_array.labels_[:9])
    gaps = table.mask(rng.random(table.shape) < 0.05)
    assert DirichletProcessMixture("auto", random_state=0).fit(gaps).observation_ == bnp.Gaussian(missing="marginalise")
    # a table with other columns beside them has a likelihood for each kind
    beside = DirichletProcessMixture("auto", random_state=0).fit(table.assign(kind=kind.astype(str)))
    assert isinstance(beside.observation_, bnp.Product)


def test_a_list_of_rows_with_nan_is_refused_like_an_array():
    """The number of rows of a list is counted as well."""
    with pytest.raises(DataError, match=r"shape \(3, 1\); needs 2 or more rows of finite numbers.*np.isfinite"):
        DirichletProcessMixture().fit([[1.0], [float("nan")], [2.0]])
    with pytest.raises(DataError, match=r"shape \(1, 1\); needs 2 or more rows of finite numbers.*pass all rows"):
        DirichletProcessMixture().fit([[float("nan")]])
