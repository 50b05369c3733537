"""Parameters that are drawn, against the integral over them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import kstest

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inference.chains import Chain, Pins
from bnp_dask.inference.sampling.chain import draw_clusters, first_chain
from bnp_dask.inference.sampling.draws import Draws, draw_to_arrays, draws_from
from bnp_dask.inference.sampling.sequences import _transitions
from bnp_dask.inference.sampling.visit import Labels, first_atoms, repeated
from bnp_dask.observation.base import LOG_BASE, QuadraticObservation
from tests.streaming.cases import LIKELIHOODS, case

COPIES = 20_000


def drawn(likelihood):
    """Draws of the parameters of one cluster as those of many clusters, its posterior, and three atoms to score."""
    model, batch = case(likelihood, bnp.DPMixture(), 12)
    held = model.summarize(np.arange(1), batch.rows(0, 8), np.ones((8, 1)))
    many = held.take(np.zeros(1, np.int64))
    values = {
        name: value if field.dims == () else np.repeat(value, COPIES, axis=0)
        for (name, field), value in zip(many.fields.items(), map(many.__getitem__, many.fields), strict=True)
    }
    many = replace(many, ids=np.arange(COPIES), values=values)
    observation = model.observation
    found = observation.at_draw(observation.global_step(many), np.random.default_rng(0))
    return model, observation.global_step(held), found, batch.rows(8, 11)


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_likelihoods_at_draws_average_to_the_predictive_density(likelihood):
    model, params, found, atoms = drawn(likelihood)
    at = np.exp(model.observation.expected_log_lik(found, atoms))
    for i in range(atoms.n_atoms):
        one = atoms.rows(i, i + 1)
        base = model.summarize(np.arange(1), one, np.ones((1, 1)))
        log_base = base.values.get(LOG_BASE, 0.0)
        expected = np.exp(model.observation.log_predictive(params, one)[0, 0] - log_base)
        error = at[i].std() / np.sqrt(COPIES)
        assert abs(at[i].mean() - expected) < 5.0 * error, likelihood


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_forms_and_scores_of_draws_are_their_likelihoods(likelihood):
    model, _, found, atoms = drawn(likelihood)
    log_lik = model.observation.expected_log_lik(found, atoms)
    one = model.summarize(np.arange(1), atoms, np.ones((atoms.n_atoms, 1)))
    few = {name: np.repeat(one[name], COPIES, axis=0) if one.fields[name].dims else one[name] for name in one.fields}
    score = model.observation.score(found, replace(one, ids=np.arange(COPIES), values=few))
    assert_allclose(score, log_lik.sum(axis=0), rtol=1e-9, atol=1e-9)
    if isinstance(model.observation, QuadraticObservation):
        forms = model.observation.forms(found)
        y = atoms.x - forms.center
        for k in range(5):
            away = y - forms.shift[k]
            squares = np.einsum("ni,ij,nj->n", away, np.linalg.inv(forms.scale[k]), away)
            assert_allclose(forms.level[k] - 0.5 * forms.nu[k] * squares, log_lik[:, k], rtol=1e-9)


D1 = 2.0  # features of the rows less one
BORDERS = {
    "Gaussian": (bnp.Gaussian, [{"nu": D1 + 1e-12}, {"nu": D1 + 1e-3}, {"nu": D1 + 0.05}, {"kappa": 1e-12}]),
    "ZeroMeanGaussian": (bnp.ZeroMeanGaussian, [{"nu": D1 + 1e-12}, {"nu": D1 + 1e-3}]),
    "SemiConjugateGaussian": (bnp.SemiConjugateGaussian, [{"nu": D1 + 1e-12}, {"nu": D1 + 1e-3}]),
    "DiagGaussian": (bnp.DiagGaussian, [{"nu": 1e-12}, {"nu": 1e-3}, {"kappa": 1e-12}]),
    "Bernoulli": (bnp.Bernoulli, [{"lam1": 1e-100, "lam0": 1e-100}, {"lam1": 1e-12}]),
    "Poisson": (bnp.Poisson, [{"a": 1e-100}, {"a": 1e-3}]),
    "Categorical": (bnp.Categorical, [{"lam": 1e-100}]),
    "Multinomial": (bnp.Multinomial, [{"lam": 1e-100}]),
}


@pytest.mark.parametrize("name", BORDERS)
def test_draws_of_clusters_without_atoms_have_likelihoods_at_the_borders_of_priors(name):
    make, all_settings = BORDERS[name]
    rows = np.random.default_rng(0).integers(0, 2, size=(30, 3)) * 1.0
    rows += np.random.default_rng(1).normal(size=rows.shape) if "Gaussian" in name else 0.0
    batch = Batch(np.maximum(rows, [1.0, -np.inf, -np.inf]) if name == "Multinomial" else rows)
    for settings in all_settings:
        model = bnp.Model(bnp.FiniteMixture(), make(**settings)).with_prior(survey_batch(batch))
        total = model.empty_summary(np.arange(50))
        found = model.observation.at_draw(model.observation.global_step(total), np.random.default_rng(0))
        log_lik = model.observation.expected_log_lik(found, batch)
        assert not np.isnan(log_lik).any() and log_lik.max() < 100.0, settings
        if settings.get("nu", 1.0) in (D1 + 1e-12, 1e-12):
            assert log_lik.max() < -100.0  # next to infinitely wide: no atom has a density there


def test_a_draw_that_is_next_to_flat_in_one_direction_has_the_predictive_density():
    """One of three draws or so is wider than its matrices are."""
    rows = np.random.default_rng(0).normal(size=(30, 2))
    model = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian(nu=1.08)).with_prior(survey_batch(Batch(rows)))
    params = model.observation.global_step(model.empty_summary(np.arange(COPIES)))
    found = model.observation.at_draw(params, np.random.default_rng(0))
    assert 0.1 < np.mean(np.einsum("kii->k", found.B) > 1e11) < 0.6
    one = Batch(rows[:1])
    at = np.exp(model.observation.expected_log_lik(found, one)[0])
    expected = np.exp(model.observation.log_predictive(params, one)[0, 0])
    assert abs(at.mean() - expected) < 5.0 * at.std() / np.sqrt(COPIES)


def test_weights_of_an_nggp_are_gamma_draws_of_counts_less_the_discount():
    counts = np.array([1.0, 4.0, 20.0])
    log_weights = bnp.NGGPMixture(1.0, 0.5, 1.0).draw_weights(np.repeat(counts, 20_000), np.random.default_rng(0))
    means = np.exp(log_weights).reshape(3, -1).mean(axis=1)
    np.testing.assert_allclose(means, counts - 0.5, rtol=0.03)  # of which sampling error is 0.01


def test_the_point_estimate_is_near_to_most_draws():
    """Of three draws one has every row alone, and two have all rows together."""
    labels = np.array([[np.arange(5), np.zeros(5, np.int64), np.zeros(5, np.int64)]])
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    nothing = np.zeros(0, np.int64)
    draws = Draws(model, 0, np.arange(3), np.arange(5), labels, np.zeros((1, 3)), nothing, nothing, {})
    assert draws.point() == (0, 1)


def draws_of(labels):
    """Draws with clusters of the noted rows, ``(chains, draws, rows)``, and nothing else."""
    n_draws, rows = labels.shape[1:]
    model, nothing = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), np.zeros(0, np.int64)
    log_joint = np.zeros(labels.shape[:2])
    return Draws(model, 0, np.arange(n_draws), np.arange(rows), labels, log_joint, nothing, nothing, {})


def test_the_point_estimate_has_the_least_expected_variation_of_information():
    """By the lower bound of Wade & Ghahramani (2018), eq. 13, row by row; Binder's loss would choose otherwise."""
    are_equal = []
    for seed in range(6):
        labels = np.random.default_rng(seed).integers(4, size=(2, 5, 7))
        every = labels.reshape(10, 7)
        shared = np.mean([own[:, None] == own for own in every], axis=0)
        expected, binder = np.zeros(10), np.zeros(10)
        for i, own in enumerate(every):
            same = own[:, None] == own
            for n in range(7):
                expected[i] += np.log2(same[n].sum()) - 2.0 * np.log2(shared[n][same[n]].sum())
            binder[i] = np.abs(same - shared).sum()
        best = int(np.argmin(np.round(expected, 9)))
        assert draws_of(labels).point() == divmod(best, 5)
        are_equal.append(best == int(np.argmin(np.round(binder, 9))))
    assert not all(are_equal)


def test_weights_of_a_sweep_are_divided_by_a_variate_where_atoms_are_kept():
    """``J exp(-t)`` with ``t ~ Exponential(N)``, for the choice of the atoms that stay has probability ``prod 1 / N``.

    With the same random numbers J is that of a sweep in which all atoms move.
    """
    model, batch = case("Gaussian", bnp.NGGPMixture(1.0, 0.5, 1.0), 12)
    counts = np.array([1.0, 3.0, 8.0])
    total = model.summarize(np.arange(3), batch, np.repeat(np.eye(3), counts.astype(int), axis=0))
    free, kept = Chain(total, None, 3), Chain(total, Pins(np.full(3, 0.5), np.zeros(3, np.int64), np.arange(3)), 3)
    laps = range(300)
    apart = [
        draw_clusters(model, free, 0, lap, 0, 12).log_weight - draw_clusters(model, kept, 0, lap, 0, 12).log_weight
        for lap in laps
    ]
    assert kstest((counts * apart).ravel(), "expon").pvalue > 0.01


# -- draws by hand ---------------------------------------------------------------------------------------------------
def by_hand():
    """Two chains of two draws of one, three, two and two clusters, with counts of states between clusters."""
    model, _ = case("DiagGaussian", bnp.DPMixture(), 12)
    batch = Batch(np.random.default_rng(0).normal(size=(6, model.empty_summary(np.zeros(1, np.int64))["x"].shape[1])))
    drawn = {
        (0, 0): ([4], [0, 0, 0, 0, 0, 0]), (0, 1): ([9, 2, 7], [0, 1, 1, 2, 1, 2]),
        (1, 0): ([3, 5], [0, 0, 1, 1, 1, 1]), (1, 1): ([8, 3], [0, 1, 0, 0, 1, 0]),
    }  # fmt: skip
    totals = {
        key: model.summarize(np.array(ids), batch, np.eye(len(ids))[np.array(z)]) for key, (ids, z) in drawn.items()
    }
    noted = {key: np.array(ids)[np.array(z)[[0, 3, 5]]] for key, (ids, z) in drawn.items()}
    noted[1, 0][1] = -1
    held = [draw_to_arrays([(totals[c, s], -1.0 - c - 0.25 * s, noted[c, s]) for c in range(2)]) for s in range(2)]
    return totals, noted, draws_from(model, 5, np.array([3, 6]), np.array([10, 13, 15]), held)


def test_each_draw_of_each_chain_comes_back_with_its_own_statistics_the_largest_first():
    totals, noted, draws = by_hand()
    assert (draws.n_chains, draws.n_draws) == (2, 2)
    assert draws.n_clusters.tolist() == [[1, 3], [2, 2]]
    assert draws.log_joint.tolist() == [[-1.0, -1.25], [-2.0, -2.25]]
    for (c, s), total in totals.items():
        found = draws.summary(c, s)
        order = np.argsort(-total["N"], kind="stable")
        assert found.ids.tolist() == total.ids[order].tolist()
        for name in total.fields:
            own = total[name]
            assert_array_equal(found[name], own[order] if total.fields[name].n_cluster_axes else own)
        assert_array_equal(draws.labels[c, s], noted[c, s])
        assert draws.posterior(c, s).ids.tolist() == found.ids.tolist()
    share = draws.to_dict()["share"]
    assert_allclose(share, np.array([[[6, 0, 0], [3, 2, 1]], [[4, 2, 0], [4, 2, 0]]]) / 6.0)
    for wrong in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(SettingError):
            draws.summary(*wrong)


def test_rows_that_were_left_out_are_in_no_cluster_with_others():
    _, _, draws = by_hand()
    found = draws.co_clustering()
    assert np.isnan(found[1]).all() and np.isnan(found[:, 1]).all()
    assert found[0, 2] == found[2, 0] == 0.5 and found[0, 0] == 1.0  # together in the draws (0, 0) and (1, 1)
    gone = draws_of(np.full((2, 3, 2), -1))
    gone = replace(gone, log_joint=np.array([[-3.0, -1.0, -2.0], [0.0, 0.0, 0.0]]))
    assert gone.point() == (0, 1)  # by the log joint of the first chain alone


def test_matrices_between_clusters_come_back_whole():
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    batch = Batch(np.random.default_rng(0).normal(size=(6, 2)), groups=np.array([0, 6]))
    model = model.with_prior(survey_batch(batch))
    held, totals = [], []
    for k in (3, 1, 2):
        total = model.summarize(np.arange(k) + 5, batch, np.eye(k)[np.arange(6) % k])
        matrix = 1.0 + np.arange(k * k).reshape(k, k)
        totals.append(replace(total, values={**total.values, "M": matrix, "N": 9.0 - np.arange(k)}))
        held.append(draw_to_arrays([(totals[-1], -1.0, np.full(1, 5))]))
    draws = draws_from(model, 0, np.arange(3), np.zeros(1, int), held)
    for s, total in enumerate(totals):
        assert_array_equal(draws.summary(0, s)["M"], total["M"])


def test_a_chain_begins_with_clusters_that_hold_an_atom_and_new_ids_are_new():
    model, batch = case("DiagGaussian", bnp.DPMixture(), 12)
    start = model.summarize(np.array([4, 30, 2]), batch, np.tile([0.75, 0.2, 0.05], (12, 1)))
    start = replace(start, values={**start.values, "N": np.array([1.0, 0.99, 5.0])})
    chain = first_chain(model, start)
    assert chain.total.ids.tolist() == [4, 2] and chain.next_id == 31
    none = replace(start, values={**start.values, "N": np.zeros(3)})
    assert first_chain(model, none).total.ids.tolist() == [4] and first_chain(model, none).total["N"].tolist() == [1.0]
    finite = bnp.Model(bnp.FiniteMixture(), model.observation)
    assert first_chain(finite, none).total.ids.tolist() == [4, 30, 2]


def test_labels_are_kept_by_the_names_in_use_and_found_among_others():
    labels = Labels.of(np.array([7, 3, 9, 5]), np.array([2, 0, 2, 3]))
    assert labels.names.tolist() == [7, 9, 5] and labels.ids.tolist() == [9, 7, 9, 5]
    batch = Batch(np.zeros((4, 1)))
    assert labels.places_in(np.array([5, 1, 9, 7]), batch).tolist() == [2, 3, 2, 0]
    assert labels.renamed({9: 7}).ids.tolist() == [7, 7, 7, 5]
    for n, wrong in ((3, "3 atoms, but 4"), (5, "5 tokens, but 4")):
        with pytest.raises(DataError, match=wrong):
            labels.places_in(np.array([5, 9, 7]), batch.rows(0, 3), None if n == 3 else n)


def test_atoms_that_are_there_several_times_are_found_by_their_first():
    rows = Batch(np.arange(4.0)[:, None], np.array([2.0, 0.0, 1.0, 3.0]))
    assert repeated(rows).x[:, 0].tolist() == [0.0, 0.0, 2.0, 3.0, 3.0, 3.0]
    assert first_atoms(rows, np.array([3, 0, 1, 2])).tolist() == [3, 0, -1, 2]
    weights = np.repeat([2.0, 0.0, 1.0], [2, 1, 3])
    some = Batch(np.arange(6.0)[:, None], weights, groups=np.array([0, 2, 3, 6]))
    assert repeated(some, True).x[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0, 3.0, 4.0, 5.0]
    assert first_atoms(some, np.arange(6), True).tolist() == [0, 1, -1, 4, 5, 6]
    with pytest.raises(DataError, match="row 2 has weight 1.5"):
        repeated(replace(rows, weights=np.array([1.0, 2.0, 1.5, 0.5])))


def test_steps_of_paths_are_counted_within_sequences():
    counts = _transitions(np.array([2, 0, 0, 1, 1, 2]), np.array([0, 0, 3, 3, 6]), 3)
    assert counts["start"].tolist() == [0.0, 1.0, 1.0]
    assert counts["M"].tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
