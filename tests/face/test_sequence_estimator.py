"""SequenceModel: scikit-learn's own checks, and that it says what train, predict and score say."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import bnp_dask as bnp
from bnp_dask import SequenceModel
from bnp_dask.analysis.metrics import hamming_distance
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation import with_previous
from tests.chains.test_independence import stays


def not_sequences(estimator):
    """Checks that shuffle rows or take some away: then a sequence is another one."""
    why = "rows of a sequence depend on those before and after them"
    return dict.fromkeys(("check_methods_sample_order_invariance", "check_methods_subset_invariance"), why)


CHECKED = [SequenceModel(n_states=3, max_laps=2), SequenceModel("autoregressive", max_laps=1, moves=())]


@parametrize_with_checks(CHECKED, expected_failed_checks=not_sequences)
@pytest.mark.filterwarnings("ignore:.*not converged")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def recordings(seed=0):
    """Three states in the plane that last thirty steps or so, in sequences of any length."""
    rng = np.random.default_rng(seed)
    means = np.array([[-5.0, 0.0], [0.0, 5.0], [5.0, 0.0]])
    truth = [np.repeat(rng.integers(3, size=n), 30)[: 30 * n - 7] for n in (5, 1, 8, 4)]
    return [means[t] + rng.normal(size=(len(t), 2)) for t in truth], truth


@pytest.mark.filterwarnings("ignore:.*not converged")
@pytest.mark.parametrize("n_states", [None, 3])
def test_it_is_the_functions(n_states):
    parts, truth = recordings()
    # births are slow to try: the test of autoregressions has them
    moves = [bnp.Merge(), bnp.Delete()] if n_states is None else None
    made = SequenceModel(n_states=n_states, max_laps=15, moves=moves, random_state=1).fit(parts)
    assert isinstance(made.posterior_.model.allocation, bnp.HDPHMM if n_states is None else bnp.FiniteHMM)
    assert made.n_states_ == 3 and hamming_distance(np.concatenate(truth), made.labels_) == 0.0
    np.testing.assert_array_equal(np.concatenate(made.predict(parts)), made.labels_)
    np.testing.assert_array_equal(made.posterior_.ids[made.order_[made.labels_]], bnp.predict(made.posterior_, parts))
    resp = np.concatenate(made.predict_proba(parts))
    np.testing.assert_allclose(resp, bnp.predict(made.posterior_, parts, soft=True)[:, made.order_])
    assert made.score(parts) == bnp.score(made.posterior_, parts)
    # one below the other is the same, one sequence is another
    rows, lengths = np.concatenate(parts), [len(x) for x in parts]
    np.testing.assert_array_equal(made.predict(rows, lengths), made.labels_)
    assert made.score(rows, lengths=lengths) == made.score(parts) != made.score(rows)
    assert (np.diff(made.weights_) <= 0).all()
    found = bnp.transitions(made.posterior_)
    np.testing.assert_allclose(np.diag(made.transmat_), np.diag(found.matrix)[made.order_])
    assert (np.diag(made.transmat_) > 0.8).all() and made.startprob_.shape == (3,)
    assert clone(made).fit(parts).transmat_.tobytes() == made.transmat_.tobytes()
    np.testing.assert_array_equal(clone(made).fit_predict(rows, lengths=lengths), made.labels_)


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_known_labels_of_some_steps_name_states_and_keep_them_apart():
    parts, truth = recordings()
    # the truth of one step in ten, in which two of the three states have one name
    name = np.array(["rest", "move", "rest"])[np.concatenate(truth)]
    labels = np.where(np.arange(len(name)) % 10 == 0, name, None)
    made = SequenceModel(max_laps=10, moves=[bnp.Merge(), bnp.Delete()], random_state=1).fit(parts, labels=labels)
    named = np.array(bnp.label_of(made.posterior_))[made.order_[made.labels_]]
    assert made.n_states_ == 3
    np.testing.assert_array_equal(named, name)


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_autoregressions_take_rows_as_recorded():
    rng = np.random.default_rng(0)
    turn = {0: np.array([[0.9, 0.4], [-0.4, 0.9]]), 1: np.diag([0.2, -0.9])}
    parts, truth = [], []
    for n in (200, 1, 160, 2):
        z = (np.arange(n) // 50) % 2
        x = np.zeros((n, 2))
        for t in range(1, n):
            x[t] = turn[z[t]] @ x[t - 1] + 0.3 * rng.normal(size=2)
        parts.append(x)
        truth.append(z)
    made = SequenceModel("autoregressive", kappa=50.0, max_laps=20, random_state=0).fit(parts)
    assert hamming_distance(np.concatenate(truth), made.labels_, "many-to-one") < 0.06
    assert made.labels_.shape == (363,) and [len(p) for p in made.predict_proba(parts)] == [200, 1, 160, 2]
    assert made.labels_[0] == made.labels_[1]
    assert made.labels_[200] == made.startprob_.argmax()  # a sequence of one row
    np.testing.assert_allclose(made.predict_proba(parts)[1][0], made.startprob_ / made.startprob_.sum())
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in parts])])
    rows, offsets = with_previous(np.concatenate(parts), offsets)
    assert made.score(parts) == bnp.score(made.posterior_, bnp.as_source(rows, groups=offsets))
    assert made.predict(parts[1]).tolist() == [made.startprob_.argmax()]
    with pytest.raises(bnp.BnpDaskError, match="no sequence of two rows"):
        made.score(parts[1])


def test_what_is_refused():
    parts, _ = recordings()
    rows = np.concatenate(parts)
    with pytest.warns(ConvergenceWarning, match="max_laps or tol"):
        made = SequenceModel(n_states=2, max_laps=1).fit(rows)
    for lengths in ([5, 6], [-1, len(rows) + 1], [0.5, len(rows) - 0.5]):
        with pytest.raises(bnp.BnpDaskError, match="needs whole numbers that sum to"):
            made.predict(rows, lengths)
    with pytest.raises(bnp.BnpDaskError, match="leave lengths out"):
        made.predict(parts, [1, 2])
    with pytest.raises(bnp.BnpDaskError, match="2 and 3 columns"):
        made.predict([np.zeros((2, 2)), np.zeros((2, 3))])
    with pytest.raises(bnp.BnpDaskError, match="observation='gausian'"):
        SequenceModel("gausian").fit(rows)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("observation", ["gaussian", "autoregressive"])
def test_names_of_frames_are_kept(observation):
    pd = pytest.importorskip("pandas")
    sequences = recordings()[0]
    frames = [pd.DataFrame(x, columns=["x", "y"]) for x in sequences]
    settings = {"n_states": 3, "max_laps": 2, "random_state": 0}
    model, plain = (SequenceModel(observation, **settings).fit(data) for data in (frames, sequences))
    assert model.feature_names_in_.tolist() == ["x", "y"] and plain.posterior_.columns is None
    lagged = ("x", "y", "x (t-1)", "y (t-1)")
    assert model.posterior_.feature_names == (lagged if observation == "autoregressive" else ("x", "y"))
    assert model.bound_ == plain.bound_
    np.testing.assert_array_equal(model.predict(frames[0]), plain.predict(sequences[0]))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict([frame[["y", "x"]] for frame in frames])
    if observation == "autoregressive":
        data = model.posterior_.to_xarray()
        assert data["coefficients"].dims == ("cluster", "feature", "lagged")
        assert data["lagged"].values.tolist() == ["x (t-1)", "y (t-1)"]
        assert data["noise"].sel(feature="y", feature_2="y").shape == (3,)
        assert "sd of noise x " in str(bnp.inspect(model.posterior_))


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_lists_in_lists_out_moments_decoding_and_samples():
    walks, _ = recordings()
    made = SequenceModel(n_states=3, max_laps=10, random_state=0).fit(walks)
    states = made.predict(walks)
    assert [len(s) for s in states] == [len(w) for w in walks]
    np.testing.assert_array_equal(np.concatenate(states), made.labels_)
    assert [p.shape for p in made.predict_proba(walks)] == [(len(w), 3) for w in walks]
    assert made.predict(walks[0]).shape == (len(walks[0]),)
    value, path = made.decode(walks[0])
    assert value < made.score(walks[0]) * len(walks[0])  # which adds up all paths
    np.testing.assert_array_equal(path, made.predict(walks[0]))
    both, paths = made.decode(walks[:2])
    assert both == pytest.approx(value + made.decode(walks[1])[0], rel=1e-12)
    assert [len(p) for p in paths] == [len(w) for w in walks[:2]]
    assert made.means_.shape == (3, 2)
    assert made.covariances_.shape == (3, 2, 2)
    rows, drawn = made.sample(200)
    assert rows.shape == (200, 2)
    assert (made.predict(rows) == drawn).mean() > 0.95


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_missing_entries_are_taken_by_likelihoods_that_take_them():
    walks, truth = recordings()
    rng = np.random.default_rng(0)
    holed = [np.where(rng.random(w.shape) < 0.1, np.nan, w) for w in walks]
    made = SequenceModel(bnp.Gaussian(missing="marginalise"), n_states=3, max_laps=10, random_state=0).fit(holed)
    np.testing.assert_array_equal(np.concatenate(made.predict([np.ma.masked_invalid(w) for w in holed])), made.labels_)
    assert hamming_distance(np.concatenate(truth), made.labels_) < 0.05
    with pytest.raises(ValueError, match="NaN"):
        SequenceModel(n_states=3).fit(holed)


@pytest.mark.filterwarnings("ignore:.*not converged")
@pytest.mark.parametrize("observation", ["gaussian", "diag_gaussian", "autoregressive"])
def test_criteria_count_rows_that_have_a_density(observation):
    parts, _ = recordings()
    made = SequenceModel(observation, n_states=3, max_laps=5, moves=(), random_state=1).fit(parts)
    k = made.n_states_
    rows = sum(map(len, parts)) - (len(parts) if observation == "autoregressive" else 0)
    # a mean and a covariance, a mean and variances, a matrix and the covariance of what it leaves
    own = {"gaussian": 2 + 3, "diag_gaussian": 2 + 2, "autoregressive": 4 + 3}[observation]
    free = k * own + k * (k - 1) + k - 1
    total = 2.0 * made.score(parts) * rows
    assert made.aic(parts) == pytest.approx(2 * free - total)
    assert made.bic(parts) == pytest.approx(np.log(rows) * free - total)
    if observation != "autoregressive":
        flat, lengths = np.concatenate(parts), [len(part) for part in parts]
        assert made.bic(flat, lengths) == pytest.approx(made.bic(parts))


@pytest.mark.parametrize("n_steps", [1, 7])
def test_decoding_gives_the_path_and_its_log_probability_as_hmmlearn_does(n_steps):
    """For equal parameters: of levels the expected probabilities are all that a likelihood says."""
    hmm = pytest.importorskip("hmmlearn.hmm")
    rng = np.random.default_rng(0)
    faces = [np.repeat(rng.integers(2, size=6), 5)[:, None] * 1.0 for _ in range(6)]
    faces = [np.where(rng.random(f.shape) < 0.1, 1.0 - f, f) for f in faces]
    made = SequenceModel("bernoulli", n_states=2, max_laps=30, kappa=3.0, random_state=0).fit(faces)
    theirs = hmm.CategoricalHMM(2)
    theirs.startprob_, theirs.transmat_ = made.startprob_, made.transmat_
    q = made.posterior_.observation
    heads = (q.lam1 / (q.lam1 + q.lam0))[made.order_]
    theirs.emissionprob_ = np.column_stack([1.0 - heads, heads])
    few = [f[:n_steps] for f in faces[:3]]
    value, paths = made.decode(few)
    rows = np.concatenate(few).astype(int)
    wanted, states = theirs.decode(rows, lengths=[n_steps] * 3, algorithm="viterbi")
    np.testing.assert_array_equal(np.concatenate(paths), states)
    assert value == pytest.approx(wanted, rel=1e-10)
    assert made.score(few) * len(rows) == pytest.approx(theirs.score(rows, lengths=[n_steps] * 3), rel=1e-10)


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_autoregressive_paths_have_a_log_probability_given_the_first_rows():
    walks, _ = recordings()
    made = SequenceModel("autoregressive", n_states=2, max_laps=3, random_state=0).fit(walks)
    value, path = made.decode(walks[0])
    assert len(path) == len(walks[0])
    assert value <= made.score(walks[0]) * (len(walks[0]) - 1)
    assert made.decode(walks[0][:1])[0] == 0.0  # nothing follows it


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_steps_that_repeat_one_another_count_less_where_asked():
    rows = stays(0.97, n=2, steps=200)
    plain, weighed = (SequenceModel(weigh_steps=w, max_laps=5, random_state=0).fit(rows) for w in (False, True))
    assert plain.step_weight_ == 1.0
    assert weighed.step_weight_ < 0.3
    assert weighed.n_states_ <= plain.n_states_
    np.testing.assert_allclose(weighed.posterior_.summary["N"].sum(), 400 * weighed.step_weight_)
    assert weighed.posterior_.model.learn_prior == "diagonal"
    with pytest.raises(SettingError, match="all sequences at once"):
        SequenceModel(weigh_steps=True).partial_fit(rows)


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_gaussian_steps_that_repeat_one_another_count_less_by_default(caplog):
    rows = stays(0.97, n=2, steps=120)
    by_default = SequenceModel(max_laps=2, random_state=0).fit(rows)
    weighed = SequenceModel(weigh_steps=True, n_init=3, max_laps=2, random_state=0).fit(rows)
    assert by_default.step_weight_ == weighed.step_weight_ < 0.3
    assert by_default.bound_ == weighed.bound_
    assert "neighbouring steps repeat one another" in caplog.text and "weigh_steps=False" in caplog.text
    more = by_default.partial_fit(rows)
    np.testing.assert_allclose(more.posterior_.summary["N"].sum(), 480 * weighed.step_weight_)
    others = [{"n_states": 2}, {"observation": "poisson"}, {"schedule": bnp.Gibbs(laps=2, thin=1)}]
    for made in (SequenceModel(max_laps=3, random_state=0, **each) for each in others):
        assert made.fit([np.floor(np.abs(each)) for each in rows]).step_weight_ == 1.0


def test_only_runs_that_may_have_several_states_begin_several_starts(tmp_path):
    rows, found = np.zeros((30, 2)), {}
    settings = {"usual": {}, "sample": {"init": bnp.FromSample(bnp.ContiguousBlocks(3))}, "stored": {"store": tmp_path}}
    for name, given in settings.items():
        made = SequenceModel(**given)
        made.step_weight_ = 0.3
        found[name] = made._starts(rows)
    assert found == {"usual": 3, "sample": 1, "stored": 1}


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_independent_steps_have_the_bits_of_a_model_that_does_not_ask():
    rows, _ = recordings()
    by_default, plain = (SequenceModel(weigh_steps=w, max_laps=4, random_state=0).fit(rows) for w in (None, False))
    assert by_default.step_weight_ == 1.0
    assert by_default.bound_ == plain.bound_


@pytest.mark.parametrize("verb", ["fit", "partial_fit", "fit_predict", "score"])
def test_lengths_in_the_place_of_hmmlearn_are_refused_and_not_ignored(verb):
    x = np.random.default_rng(0).normal(size=(12, 2))
    estimator = SequenceModel(n_states=2, random_state=0, tol=1.0).fit(x, lengths=[6, 6])
    with pytest.raises(DataError, match=r"y=\[4, 8\]: lengths of sequences go by name, lengths=\[4, 8\]; y is ignored"):
        getattr(estimator, verb)(x, [4, 8])
    assert np.isfinite(estimator.score(x, np.zeros(12, int)))  # labels of rows are ignored, as in scikit-learn


def test_recordings_by_name_or_by_a_level_of_the_index_are_told_how_they_go_in():
    pd = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(12, 2))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(walk=np.repeat(["u", "v"], 6), t=[*range(6)] * 2)
    indexed = frame.set_index(["walk", "t"])
    advice = r"2 values of 'walk', .* as_source\(table.reset_index\(\), groups='walk', order='t'\)"
    by_name = r"dict of 2 tables; .* list\(data.values\(\)\)"
    model = bnp.Model(bnp.HDPHMM(), bnp.Gaussian())
    for data, match in (
        (indexed, advice),
        ({"u": x[:6], "v": x[6:]}, by_name),
        (dict(list(frame[["a", "b"]].groupby(frame.walk))), by_name),
        (frame.groupby("walk"), r"\[table for _, table in data\]"),
    ):
        with pytest.raises(DataError, match=match):
            SequenceModel(n_states=2).fit(data)
        with pytest.raises(DataError, match=match):
            bnp.train(model, data)
    assert bnp.as_source(indexed.reset_index(), groups="walk", order="t").n_groups == 2
