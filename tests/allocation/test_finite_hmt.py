"""Hidden Markov trees: all assignments on small trees, sequences as a case, and a run at home everywhere."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose, assert_array_equal

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.testing import StructureSuite, random_resp

PARENTS = (-1, 0, 0, 1, -1, 4)


class TestTrees(StructureSuite):
    def model(self):
        return bnp.Model(bnp.FiniteHMT(alpha=2.0, branching=2), bnp.DiagGaussian())

    def batch(self, rng, n):
        lengths = rng.integers(1, 4, size=n)
        x = rng.normal(rng.integers(2, size=(lengths.sum(), 1)) * 3.0, 1.0, (lengths.sum(), 2))
        return bnp.Batch(x, groups=np.concatenate([[0], np.cumsum(lengths)]))

    def summary_of(self, model, ids, batch, places):
        made = model.summarize(ids, batch, np.eye(len(ids))[places])
        start, trans = np.zeros(len(ids)), np.zeros((len(ids), len(ids)))
        for first, last in zip(batch.groups[:-1], batch.groups[1:], strict=True):
            for i, parent in enumerate(model.allocation.parents_of(last - first, "")):
                if parent < 0:
                    start[places[first + i]] += 1.0
                else:
                    trans[places[first + parent], places[first + i]] += 1.0
        made.values.update(start=start, M=trans)
        return made


def case(allocation, n=6, trees=3, k=3):
    rng = np.random.default_rng(0)
    batch = bnp.Batch(rng.normal(size=(n * trees, 2)), groups=np.arange(trees + 1) * n)
    model = bnp.Model(allocation, bnp.DiagGaussian()).with_prior(survey_batch(batch))
    summary = model.summarize(np.arange(k), batch, random_resp(rng, n * trees, k))
    values = {"start": rng.random(k) * 3.0, "M": rng.random((k, k)) * 4.0}
    summary.values.update(values)
    return model, model.global_step(summary), batch


@pytest.mark.parametrize("allocation", [bnp.FiniteHMT(parents=PARENTS), bnp.FiniteHMT(branching=3)], ids=["given", "3"])
def test_posteriors_density_and_best_states_are_those_of_all_assignments(allocation):
    model, posterior, batch = case(allocation)
    params, k = posterior.allocation, 3
    parents = allocation.parents_of(6, "")
    log_lik = model.observation.expected_log_lik(posterior.observation, batch)
    start, trans = allocation.expected_chain(params)
    predictive = model.observation.log_predictive(posterior.observation, batch)
    resp, counts, entropy, best, density = [], np.zeros((k, k)), 0.0, [], []
    for g in range(3):
        every = np.array(list(product(range(k), repeat=6)))
        own, sure = np.zeros(len(every)), np.zeros(len(every))
        for i, parent in enumerate(parents):
            here = every[:, i]
            own += log_lik[6 * g + i][here]
            sure += predictive[6 * g + i][here]
            own += params.log_start[here] if parent < 0 else params.log_trans[every[:, parent], here]
            sure += np.log(start[here] if parent < 0 else trans[every[:, parent], here])
        p = np.exp(own - np.logaddexp.reduce(own))
        density.append(np.logaddexp.reduce(sure))
        best += every[own.argmax()].tolist()
        entropy -= p @ np.log(p)
        for i, parent in enumerate(parents):
            resp.append(np.bincount(every[:, i], p, k))
            if parent >= 0:
                counts += np.bincount(every[:, parent] * k + every[:, i], p, k * k).reshape(k, k)
    step = allocation.local_step(params, log_lik.copy(), batch, np.zeros((0, 2), np.int64))
    assert_allclose(step.resp, resp, atol=1e-12)
    assert_allclose(step.values["M"], counts, atol=1e-12)
    assert_allclose(step.values["H"], entropy, rtol=1e-10)
    assert_array_equal(allocation.path(params, log_lik.copy(), batch), best)
    assert_allclose(model.structure.log_density(model, posterior, batch).reshape(3, 6).sum(axis=1), density, rtol=1e-10)


def test_trees_without_branches_are_sequences():
    model, posterior, batch = case(bnp.FiniteHMT(branching=1))
    chain = bnp.FiniteHMM()
    log_lik = model.observation.expected_log_lik(posterior.observation, batch)
    pairs = np.array([[0, 1], [2, 1]])
    a, b = (one.local_step(posterior.allocation, log_lik.copy(), batch, pairs) for one in (model.allocation, chain))
    assert_allclose(a.resp, b.resp, atol=1e-12)
    for name in ("M", "start", "H"):
        assert_allclose(a.values[name], b.values[name], atol=1e-9)
    assert_allclose(a.pair_values["H"], b.pair_values["H"], atol=1e-9)
    assert_array_equal(
        model.allocation.path(posterior.allocation, log_lik.copy(), batch),
        chain.path(posterior.allocation, log_lik.copy(), batch),
    )


def test_shapes_of_trees():
    assert bnp.FiniteHMT(branching=4).parents_of(7, "").tolist() == [-1, 0, 0, 0, 0, 1, 1]
    assert bnp.FiniteHMT(branching=1).parents_of(3, "").tolist() == [-1, 0, 1]
    with pytest.raises(SettingError, match="node 1 has the parent 1"):
        bnp.FiniteHMT(parents=(-1, 1))
    with pytest.raises(SettingError, match="branching"):
        bnp.FiniteHMT(branching=0)
    with pytest.raises(DataError, match="a tree of 2 nodes.*each has 6"):
        bnp.FiniteHMT(parents=PARENTS).parents_of(2, "rows")


def trees(n=60):
    """Quad-trees of 21 nodes, whose states stay from parent to child with probability .9."""
    rng, states, rows = np.random.default_rng(0), [], []
    for _ in range(n):
        own = [rng.integers(2)]
        for i in range(1, 21):
            before = own[(i - 1) // 4]
            own.append(before if rng.random() < 0.9 else 1 - before)
        states += own
        rows += [rng.normal((0.0, 1.2)[s], 1.0, 1) for s in own]
    return np.array(rows), np.array(states), np.arange(n + 1) * 21


def test_parents_help_and_a_job_file_trains_resumes_and_uses_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, states, offsets = trees()
    np.save("rows.npy", x)
    np.save("groups.npy", offsets)
    job = {
        "model": {"allocation": {"type": "FiniteHMT", "branching": 4}, "observation": "DiagGaussian"},
        "data": {"path": "rows.npy", "groups": "groups.npy", "batch_size": 420},
        "init": {"type": "RandomExamples", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 60},
        "store": "run",
    }
    Path("run.yaml").write_text(yaml.safe_dump(job))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "run.yaml", "--laps", "2"]) == 0
    assert main(["resume", "run", "--laps", "60"]) == 0
    trained = bnp.load("run/posterior.zarr")
    assert trained.model.allocation == bnp.FiniteHMT(branching=4)
    source = bnp.as_source(x, groups=offsets)
    right = np.mean(bnp.predict(trained, source) == states)
    alone = np.mean((x[:, 0] > 0.6) == states)
    assert max(right, 1.0 - right) > alone + 0.05
    assert np.isfinite(bnp.score(trained, source))
    assert bnp.sample(trained, 21, 0).x.shape == (21, 1)
    assert main(["report", "run", "page.html"]) == 0
    assert "FiniteHMT" in Path("page.html").read_text()


def test_births_are_refused():
    x, _, offsets = trees(10)
    source = bnp.as_source(x, groups=offsets)
    with pytest.raises(SettingError, match=r"births and deletes know no trees|fixed"):
        bnp.train(
            bnp.Model(bnp.FiniteHMT(), bnp.DiagGaussian()), source, init=bnp.RandomExamples(2), moves=[bnp.Delete()]
        )


def test_drawn_states_follow_those_of_their_parents():
    """Each state is followed by the next one alone, so a node's state is its depth."""
    n, k = 15, 4
    parents = (-1, 0, 0, 1, 1, 1, 2, 3, 3, 4, 0, 6, 10, 2, 5)
    model, _, batch = case(bnp.FiniteHMT(parents=parents, alpha=1e-9, alpha0=1e-9), n=n, trees=1, k=k)
    summary = model.summarize(np.arange(k) + 5, batch, random_resp(np.random.default_rng(0), n, k))
    summary.values.update(start=np.array([1e9, 0.0, 0.0, 0.0]), M=1e9 * np.eye(k)[[1, 2, 3, 0]])
    drawn = bnp.sample(model.global_step(summary), n)
    depth = np.zeros(n, int)
    for i, parent in enumerate(parents):
        depth[i] = 0 if parent < 0 else depth[parent] + 1
    assert_array_equal(drawn.labels, depth + 5)
