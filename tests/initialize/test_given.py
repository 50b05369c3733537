"""RandomExamples, Responsibilities and FromPosterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.allocation.hdp_hmm import HDPHMM
from bnp_dask.core import UNITS
from bnp_dask.core.batch import Batch
from bnp_dask.data import as_source
from bnp_dask.errors import DataError, SettingError
from bnp_dask.initialize import ContiguousBlocks, FromNothing, FromPosterior, RandomExamples, Responsibilities
from bnp_dask.initialize.base import Wanted, _key_of, choose_atoms, locate, summarize_assigned
from bnp_dask.initialize.given import (
    LabelledStart,
    _checked_rows,
    _counted_as,
    _labelled,
    _require_same_columns,
    _with_clusters,
    blocks_about,
    plain_model,
)
from bnp_dask.model import Model
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from bnp_dask.observation.labelled import KNOWN, Labelled
from tests.batches import Batches
from tests.initialize.cases import OBSERVATIONS, Travelling, blobs, context, cut, mixture


def diag(weights=None, n_batches=5, seed=0):
    return context(mixture(DiagGaussian()), cut(Batch(blobs(0)[0], weights), n_batches), seed)


# -- RandomExamples -----------------------------------------------------------------------------------------
def test_examples_are_distinct_atoms_and_only_their_batches_are_read():
    setting = diag(np.full(400, 2.5), n_batches=100)
    setting.source.reads.clear()
    summary = RandomExamples(6).start(setting)
    assert summary["N"].tolist() == [1.0] * 6
    x = setting.model.observation.center + summary["x"]
    match = np.isclose(x[:, None], blobs(0)[0][None]).all(axis=2)
    assert (match.sum(axis=1) == 1).all()
    assert (match.sum(axis=0) <= 1).all()
    assert len(setting.source.reads) <= 6


def test_examples_are_uniform_over_all_atoms():
    x = np.arange(10.0)[:, None]
    source = cut(Batch(x), 3)
    drawn = np.zeros(10)
    for seed in range(400):
        setting = context(mixture(DiagGaussian()), source, seed)
        values = RandomExamples(3).start(setting)["x"][:, 0] + 4.5
        drawn[np.round(values).astype(int)] += 1
    np.testing.assert_allclose(drawn / 400, 0.3, atol=4 * np.sqrt(0.21 / 400))


def test_all_atoms_can_be_examples_but_not_more():
    setting = diag()
    assert RandomExamples(400).start(setting).n_clusters == 400
    with pytest.raises(DataError, match="ask for at most 400"):
        RandomExamples(401).start(setting)
    with pytest.raises(SettingError, match="n_clusters=0"):
        RandomExamples(0)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_examples_for_every_observation_model(name):
    observation, batch = OBSERVATIONS[name]
    setting = context(mixture(observation), cut(batch, 4))
    posterior = setting.model.global_step(RandomExamples(5).start(setting))
    assert np.isfinite(setting.model.observation.kl(posterior.observation)).all()


# -- Responsibilities ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("soft", [True, False])
def test_responsibilities_give_the_exact_summary(name, soft):
    observation, batch = OBSERVATIONS[name]
    rng = np.random.default_rng(0)
    batch = replace(batch, weights=rng.random(240))
    setting = context(mixture(observation), cut(batch, 7))
    resp = rng.dirichlet(np.ones(3), 240) if soft else np.eye(3)[rng.integers(0, 3, 240)]
    expected = setting.model.summarize(np.arange(3), batch, resp * batch.weights[:, None])
    summary = Responsibilities(resp if soft else resp.argmax(axis=1)).start(setting)
    assert summary.ids.tolist() == [0, 1, 2]
    for field in summary.fields:
        np.testing.assert_allclose(summary[field], expected[field], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [RandomExamples(5), Responsibilities(np.arange(400) % 3)])
def test_same_bits_on_another_machine(kind):
    here = kind.start(diag())
    there = kind.start(replace(diag(), executor=Travelling()))
    assert all(np.array_equal(here[name], there[name]) for name in here.fields)


def test_labels_may_have_gaps_be_a_list_float_or_bool():
    setting = diag()
    labels = np.arange(400) % 3
    expected = Responsibilities(labels).start(setting)
    for same in (labels * 50 + 4, labels.tolist(), labels.astype(np.float32), labels.astype(np.uint8)):
        summary = Responsibilities(same).start(setting)
        assert np.array_equal(summary["x"], expected["x"])
    assert Responsibilities(labels > 0).start(setting)["N"].tolist() == [134.0, 266.0]


@pytest.mark.parametrize(
    ("resp", "message"),
    [
        (np.zeros(399, int), "has 399 rows, but array has 400 atoms"),
        (np.ones((401, 1)), "has 401 rows"),
        (np.where(np.arange(400) == 7, -1, 0), "label of atom 7 is -1"),
        (np.full(400, 0.5), "label of atom 0 is 0.5"),
        (np.full(400, np.nan), "label of atom 0 is nan"),
        (np.full((400, 2), 0.4), "responsibilities of atom 0"),
        (np.tile([1.5, -0.5], (400, 1)), "numbers >= 0 that sum to one"),
        (np.full((400, 2), np.nan), "numbers >= 0 that sum to one"),
        (np.ones((400, 0)), "no column"),
        (np.ones((400, 1, 1)), "shape"),
        (np.full(400, "a"), "type"),
    ],
)
def test_bad_responsibilities_are_refused(resp, message):
    with pytest.raises(DataError, match=message):
        Responsibilities(resp).start(diag())


# -- FromPosterior ------------------------------------------------------------------------------------------
def posterior_of(setting, ids=(0, 1, 2)):
    summary = Responsibilities(np.arange(400) % 3).start(setting)
    return setting.model.global_step(replace(summary, ids=np.array(ids)))


def test_posterior_keeps_ids_and_statistics():
    setting = diag()
    posterior = posterior_of(setting, ids=(9, 2, 5))
    summary = FromPosterior(posterior).start(setting)
    assert summary.ids.tolist() == [9, 2, 5]
    assert summary.n_pairs == 0
    again = setting.model.global_step(summary)
    assert np.array_equal(again.observation.m, posterior.observation.m)


def test_posterior_without_summary_says_what_to_give():
    setting = diag()
    with pytest.raises(SettingError, match=r"no summary.*result\.posterior"):
        FromPosterior(posterior_of(setting).light()).start(setting)


def test_posterior_of_another_model_is_refused():
    setting = diag()
    posterior = posterior_of(setting)
    source = setting.source
    with pytest.raises(SettingError, match="observation model is DiagGaussian, but FixedVarianceGaussian"):
        FromPosterior(posterior).start(context(mixture(FixedVarianceGaussian()), source))
    with pytest.raises(SettingError, match="allocation model is DPMixture, but FiniteMixture"):
        FromPosterior(posterior).start(context(Model(FiniteMixture(), DiagGaussian()), source))
    narrow = cut(Batch(blobs(0)[0][:, :3]), 2)
    with pytest.raises(SettingError, match="same features"):
        FromPosterior(posterior).start(context(mixture(DiagGaussian()), narrow))


def test_posterior_about_another_centre_is_refused_and_its_own_model_is_the_way_out():
    posterior = posterior_of(diag())
    other = context(mixture(DiagGaussian()), cut(Batch(blobs(1)[0] + 3.0), 2))
    with pytest.raises(SettingError, match=r"another centre.*posterior\.model"):
        FromPosterior(posterior).start(other)
    own = replace(other, model=posterior.model)
    assert FromPosterior(posterior).start(own).n_clusters == 3


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_posterior_of_every_observation_model(name):
    observation, batch = OBSERVATIONS[name]
    setting = context(mixture(observation), cut(batch, 3))
    posterior = setting.model.global_step(RandomExamples(4).start(setting))
    again = context(mixture(observation), cut(batch, 5))
    assert FromPosterior(posterior).start(again).n_clusters == 4


# -- rows that do not count, limits, batches without atoms ---------------------------------------------------------
def with_dropped():
    """Seven rows in three batches, of which three do not count."""
    x = np.arange(8.0).reshape(4, 2)
    first = replace(Batch(x[:2]), dropped=np.array([1]))  # rows 0 and 2 count
    second = Batch(x[2:3])
    third = replace(Batch(x[3:]), dropped=np.array([0, 2]))  # its row 1 counts
    return context(mixture(DiagGaussian()), Batches((first, second, third)))


@pytest.mark.parametrize("soft", [False, True])
def test_labels_of_rows_that_do_not_count_are_left_out(soft):
    labels = np.array([0, 9, 1, 1, 9, 2, 9])
    resp = np.eye(3)[np.minimum(labels, 2)] if soft else labels
    summary = Responsibilities(resp).start(with_dropped())
    assert summary["N"].tolist() == [1.0, 2.0, 1.0]
    alone = Responsibilities(labels[labels < 9]).start(with_dropped())
    np.testing.assert_array_equal(summary["x"], alone["x"])
    with pytest.raises(DataError, match="has 6 rows"):
        Responsibilities(labels[:6]).start(with_dropped())


def test_responsibilities_sum_to_one_up_to_the_digits_of_single_precision():
    for by, is_bad in ((0.9e-6, False), (-0.9e-6, False), (1.1e-6, True), (-1.1e-6, True)):
        rows = np.full((2**16 + 3, 2), 0.5)
        rows[-1, 0] += by
        if is_bad:
            with pytest.raises(DataError, match=f"of atom {2**16 + 2} are"):
                _checked_rows(rows)
        else:
            assert _checked_rows(rows) is rows


def test_a_posterior_is_probed_with_an_atom_of_a_batch_that_holds_one():
    x = blobs(0)[0]
    setting = context(mixture(DiagGaussian()), Batches((Batch(x[:0]), Batch(x[:30]), Batch(x[30:60]))))
    summary = Responsibilities(np.arange(60) % 3).start(setting)
    posterior = setting.model.global_step(summary)
    assert FromPosterior(posterior).start(setting).ids.tolist() == [0, 1, 2]


def test_a_posterior_gives_its_clusters_without_pairs_and_with_the_units_of_the_model():
    setting = diag()
    summary = Responsibilities(np.arange(400) % 3).start(setting)
    posterior = setting.model.global_step(summary.with_pairs(np.array([[0, 2], [1, 2]])))
    assert posterior.summary.n_pairs == 2 and not FromPosterior(posterior).start(setting).n_pairs
    of_units = {**setting.model.fields, UNITS: setting.model.fields["N"]}
    own = replace(summary, fields=of_units, values={**summary.values, UNITS: np.array([5.0, 6.0, 7.0])})
    assert UNITS not in _counted_as(own, setting.model)
    given = SimpleNamespace(of_units=(UNITS,), fields=of_units)
    assert _counted_as(own, given) is own
    assert _counted_as(summary, given)[UNITS].tolist() == summary["N"].tolist()


@pytest.mark.parametrize(("by", "is_bad"), [(1e-8, False), (1e-4, True)])
def test_a_centre_that_differs_by_more_than_rounding_is_another(by, is_bad):
    setting = diag()
    posterior = setting.model.global_step(Responsibilities(np.arange(400) % 3).start(setting))
    observation = setting.model.observation
    moved = replace(observation, center=observation.center + by * np.abs(setting.survey.mean).max())
    moved = replace(posterior, model=replace(setting.model, observation=moved))
    if is_bad:
        with pytest.raises(SettingError, match="about another centre"):
            FromPosterior(moved).start(setting)
    else:
        assert FromPosterior(moved).start(setting).n_clusters == 3


def test_columns_in_another_order_are_refused():
    setting = diag()
    posterior = setting.model.global_step(Responsibilities(np.arange(400) % 3).start(setting))
    frame = pd.DataFrame(blobs(0)[0], columns=list("abcd"))
    posterior = replace(posterior, columns=as_source(frame).columns)
    _require_same_columns(posterior, as_source(frame))
    with pytest.raises(SettingError, match="come in another order"):
        _require_same_columns(posterior, as_source(frame[list("bacd")]))


# -- windows of sequences --------------------------------------------------------------------------------------------
def test_windows_are_about_their_rows_and_never_leave_their_sequence():
    batch = Batch(np.arange(12.0)[:, None], groups=np.array([0, 2, 7, 7, 12]))
    middles = np.array([0, 2, 4, 6, 7, 11])
    index, window = blocks_about(batch, middles, 3)
    spans = [index[window == i].tolist() for i in range(6)]
    assert spans == [[0, 1], [2, 3, 4], [3, 4, 5], [4, 5, 6], [7, 8, 9], [9, 10, 11]]
    index, window = blocks_about(batch, middles, 1)
    assert index.tolist() == middles.tolist() and window.tolist() == list(range(6))
    index, _ = blocks_about(batch, np.array([9]), 4)  # of an even number the middle is after the half
    assert index.tolist() == [7, 8, 9, 10]


def test_windows_of_three_batches_are_states_of_their_own_with_the_weights_of_their_rows():
    rng = np.random.default_rng(0)
    cuts = [np.array([0, 4, 9]), np.array([0, 6]), np.array([0, 3, 8])]
    batches = [
        Batch(
            rng.normal(size=(groups[-1], 2)) + 1.0,
            np.repeat([2.0, 0.5][: len(groups) - 1], np.diff(groups)),
            groups=groups,
        )
        for groups in cuts
    ]
    setting = context(Model(HDPHMM(2.0, 2.0), DiagGaussian()), Batches(tuple(batches)))
    chosen = choose_atoms(replace(setting, rng=np.random.default_rng(3)), 7)
    summary = ContiguousBlocks(7, length=2).start(replace(setting, rng=np.random.default_rng(3)))
    ends, wanted, center = np.cumsum([0, 9, 6, 8]), [], setting.model.observation.center
    for i in chosen:
        b = int(np.searchsorted(ends, i, side="right")) - 1
        rows, _ = blocks_about(batches[b], np.array([i - ends[b]]), 2)
        weight = batches[b].weights[rows]
        wanted.append([weight.sum(), *(weight @ (batches[b].x[rows] - center))])
    assert len(set(np.searchsorted(ends, chosen, side="right"))) == 3
    np.testing.assert_allclose(summary["N"], np.array(wanted)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(summary["x"], np.array(wanted)[:, 1:], rtol=1e-9, atol=1e-12)
    assert not summary["M"].any()


# -- which atoms are read ----------------------------------------------------------------------------------------------
def test_atoms_are_located_in_their_batches_whatever_is_empty():
    survey = SimpleNamespace(batch_atoms=(0, 3, 0, 2, 4, 0))
    found = [(b, at.tolist()) for b, at in locate(survey, np.array([8, 0, 4, 2, 3, 5]))]
    assert found == [(1, [0, 2]), (3, [0, 1]), (4, [0, 3])]


def test_atoms_kept_for_a_start_are_known_by_batch_and_place():
    def key(checksum=7, expected=9, at=(0, 3)):
        return _key_of([Wanted(None, checksum, expected, np.array(at)), Wanted(None, 1, 2, np.array([1]))])

    assert len({key(), key(checksum=8), key(expected=8), key(at=(0, 4)), key(at=(3, 0)), key(at=(0,))}) == 6
    assert key() == key(at=np.array([0, 3], np.int32))


def test_statistics_of_assigned_atoms_do_not_depend_on_their_tiles(monkeypatch):
    setting = diag(np.linspace(0.5, 2.0, 400), n_batches=1)
    batch, labels = setting.source.batches[0], np.arange(400) % 3
    whole = summarize_assigned(setting.model, batch, labels, 3)
    cuts = (0, 100, 110, 400)
    tiles = lambda model, batch, n: (batch.rows(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True))  # noqa: E731
    monkeypatch.setattr("bnp_dask.initialize.base.atom_tiles", tiles)
    for resp in (labels, np.eye(3)[labels]):
        parts = summarize_assigned(setting.model, batch, resp, 3)
        np.testing.assert_allclose(parts["N"], np.bincount(labels, batch.weights), rtol=1e-12)
        np.testing.assert_allclose(parts["x"], whole["x"], rtol=1e-10, atol=1e-9)


# -- known labels ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fixed:
    """A start that is given."""

    summary: object

    def start(self, context):
        return self.summary


def test_clusters_belong_to_the_label_that_weighs_most_over_all_batches():
    """Two blobs and two labels: by number the first blob is of label 0, by weight of label 1."""
    x = np.array([[0.0], [0.1], [0.2], [9.0], [0.3], [0.1], [0.15], [20.0], [20.1]])
    labels = np.array([0, 0, 1, -1, 1, 0, -1, 2, 2])
    weights = np.array([1.0, 1.0, 3.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0])
    cuts = (0, 4, 6, 9)
    batches = [Batch(x[a:b], weights[a:b], labels=labels[a:b]) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    observation = Labelled(DiagGaussian(), (0, 1, 2))
    setting = context(mixture(observation), Batches(tuple(batches)))
    plain = plain_model(setting.model)
    near = np.array([0, 0, 0, 1, 0, 0, 0, 1, 1])
    found = plain.summarize(np.array([4, 9]), Batch(x), np.eye(2)[near] * weights[:, None])
    summary = LabelledStart(Fixed(found)).start(setting)
    # atoms of label 2 are in the second cluster, and those of 0 lost the first: they get one of their own
    assert summary.ids.tolist() == [4, 9, 10]
    np.testing.assert_array_equal(summary[KNOWN], [[0.0, 5.0, 0.0], [0.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    assert summary["N"].tolist() == [9.0, 4.0, 3.0]


def test_labels_without_a_cluster_get_one_of_their_atoms_in_their_order():
    x, labels = np.arange(6.0)[:, None], np.array([3, 1, 3, 0, 1, 3])
    model = context(mixture(Labelled(DiagGaussian(), (0, 1, 2, 3))), cut(Batch(x, labels=labels), 1)).model
    batch = Batch(x, labels=labels)
    summary = model.empty_summary(np.array([7, 2]))
    # label 2 has no atom; label 0 is not missing, and its atoms are not asked for
    found = _with_clusters(model, summary, [batch.take(np.flatnonzero(labels > 0))], np.array([1, 2, 3]))
    assert found.ids.tolist() == [7, 2, 8, 9] and found["N"].tolist() == [0.0, 0.0, 2.0, 3.0]
    assert found[KNOWN][2:].tolist() == [[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0]]
    assert _labelled(lambda: batch, np.array([3])).x[:, 0].tolist() == [0.0, 2.0, 5.0]
    assert _labelled(lambda: batch, np.array([2])) is None


def test_a_start_from_nothing_is_one_cluster_without_atoms():
    summary = FromNothing().start(diag())
    assert summary.ids.tolist() == [0] and summary["N"].tolist() == [0.0] and not summary["x"].any()
