"""The guest allocation of two levels."""

from itertools import product

import numpy as np
import pytest
from nested import Nested
from scipy.special import betaln

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from bnp_dask.testing import StructureSuite, survey_of


def grouped(rng, n_groups, size=12, kinds=((0.8, 0.1, 0.1), (0.1, 0.1, 0.8))):
    """Rows of groups of two kinds over three clusters, and the kind of each group."""
    kind = np.arange(n_groups) % len(kinds)
    z = np.concatenate([rng.choice(3, size, p=kinds[s]) for s in kind])
    return bnp.Batch(rng.normal(6.0 * z[:, None], 1.0), groups=size * np.arange(n_groups + 1)), kind


def log_sticks(n, gamma):
    """Log probability of choices counted by ``n (K,)`` from stick-breaking weights."""
    after = np.append(np.cumsum(n[::-1])[::-1][1:], 0.0)
    return float(np.sum(betaln(1.0 + n, gamma + after) - betaln(1.0, gamma)))


class TestNested(StructureSuite):
    def model(self):
        return bnp.Model(Nested(n_kinds=2), bnp.DiagGaussian())

    def batch(self, rng, n):
        return grouped(rng, n, size=2)[0]

    def summary_of(self, model, ids, batch, places):
        """``places``: kinds of the groups, then clusters of the rows."""
        kind, place = places[: batch.n_groups], places[batch.n_groups :]
        resp = np.eye(len(ids))[place]
        whole = model.summarize(ids, batch, resp)
        kinds = np.eye(2)[kind]
        whole.values["in_kind"][...] = resp.T @ kinds.repeat(np.diff(batch.groups), axis=0)
        whole.values["groups"][...] = kinds.sum(axis=0)
        return whole

    def assignments(self, batch, n_clusters):
        for places in product(range(2), repeat=batch.n_groups + batch.n_atoms):
            yield np.array(places)


def test_the_objective_is_below_the_evidence_summed_over_all_kinds_and_clusters():
    suite, rng = TestNested(), np.random.default_rng(1)
    allocation = Nested(bnp.DPMixture(gamma=0.7), bnp.DPMixture(gamma=1.5), n_kinds=2)
    batch, ids = grouped(rng, 3, size=2)[0], np.arange(2)
    model = bnp.Model(allocation, bnp.DiagGaussian(m=np.zeros(1), kappa=0.1))
    model = model.with_prior(survey_of(batch))
    evidence = -np.inf
    for places in suite.assignments(batch, 2):
        own = suite.summary_of(model, ids, batch, places)
        prior = log_sticks(own["groups"], 0.7) + sum(log_sticks(n, 1.5) for n in own["in_kind"].T)
        value = prior + model.best_data_terms(own).sum() + own.values.get("log_base", 0.0)
        np.testing.assert_allclose(model.best_objective(own), value, rtol=1e-10)
        evidence = np.logaddexp(evidence, value)
    for seed in range(3):
        resp = np.random.default_rng(seed).dirichlet([1.0, 1.0], batch.n_atoms)
        posterior, before = model.global_step(model.summarize(ids, batch, resp)), -np.inf
        for _ in range(30):
            summary = model.local_step(posterior, batch)
            posterior = model.global_step(summary)
            value = sum(model.elbo(posterior, summary).values())
            assert before - 1e-9 <= value <= evidence
            before = value
        assert value > evidence - 6.0


def test_merges_find_the_clusters_and_groups_their_kinds(tmp_path):
    batch, _ = grouped(np.random.default_rng(0), 30)
    source = bnp.as_source(batch.x, groups=batch.groups, batch_size=120)
    model, start = bnp.Model(Nested(), bnp.DiagGaussian()), bnp.RandomExamples(6)
    schedule = bnp.Memoized(laps=40)
    found = bnp.train(model, source, init=start, moves=[bnp.Merge()], schedule=schedule, rng=1)
    values = [row["elbo"] for row in found.history if row["lap"] > 1]
    assert (np.diff(values) >= -1e-9 * abs(values[-1])).all()
    posterior = found.posterior
    assert posterior.n_clusters == 3
    sizes = np.sort(posterior.summary["groups"])
    np.testing.assert_allclose(sizes, [0.0, 0.0, 15.0, 15.0], atol=0.5)
    posterior.save(tmp_path / "model.zarr")
    back = bnp.load(tmp_path / "model.zarr")
    soft = bnp.predict(back, source, soft=True)
    np.testing.assert_array_equal(soft, bnp.predict(posterior, source, soft=True))
    np.testing.assert_allclose(soft.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("move", [bnp.Birth(), bnp.Delete()])
def test_moves_that_would_forget_the_kinds_are_refused(move):
    batch, _ = grouped(np.random.default_rng(0), 6)
    source = bnp.as_source(batch.x, groups=batch.groups)
    model = bnp.Model(Nested(n_kinds=2), bnp.DiagGaussian())
    with pytest.raises(SettingError, match=r"train with moves=\[Merge\(\)\]"):
        bnp.train(model, source, init=bnp.RandomExamples(5), moves=[move], schedule=bnp.Memoized(laps=8))


def test_what_it_does_not_take():
    with pytest.raises(SettingError, match="with top=None"):
        Nested(bnp.DPMixture(), bnp.DPMixture(top=2))
    with pytest.raises(SettingError, match="needs mixtures"):
        Nested(bnp.HDPTopics(), bnp.DPMixture())
    model = bnp.Model(Nested(), bnp.DiagGaussian())
    with pytest.raises(SettingError, match="rows without groups.*groups="):
        bnp.train(model, np.arange(10.0)[:, None])
    source = bnp.as_source(np.arange(4.0)[:, None], weights=np.arange(1.0, 5.0), groups=[0, 2, 4])
    with pytest.raises(DataError, match="differ in weight"):
        bnp.train(model, source, init=bnp.RandomExamples(2), moves=[bnp.Merge()])
