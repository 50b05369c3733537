"""Numbers at their limits: finite or refused, never silently wrong."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import RunningTotal
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.errors import BnpDaskError
from bnp_dask.execute import SerialExecutor
from bnp_dask.store import RunStore


def train(x, observation, laps=4, k=3, allocation=None, **more):
    model = bnp.Model(allocation or bnp.DPMixture(1.0), observation)
    schedule = bnp.Memoized(laps=laps, window=2)
    more = {"init": bnp.BregmanKMeans(k), "batch_size": 50, "schedule": schedule, "moves": (), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bnp.train(model, x, client=SerialExecutor(), **more)


def rising(result):
    """The objective is finite, and does not fall once every batch was seen."""
    rows = [row for row in result.history if row["exact"]]
    values = np.array([row["elbo"] for row in rows])
    assert np.isfinite(values).all()
    size = np.array([sum(abs(v) for k, v in row.items() if k in ("data", "entropy", "allocation")) for row in rows])
    assert (np.diff(values) >= -1e-11 * size[1:]).all()


def finite(posterior):
    from bnp_dask.core.encoding import to_spec

    for name, array in to_spec(posterior)[1].items():
        assert not np.isnan(array).any(), name
    assert posterior.weights.sum() <= 1 + 1e-12
    assert (posterior.weights >= 0).all()


def blobs(n=300, d=3, seed=0, scale=8.0):
    rng = np.random.default_rng(seed)
    means = scale * np.eye(3, d)
    origin = rng.integers(3, size=n)
    return means[origin] + rng.normal(size=(n, d)), origin


def same_partition(a, b):
    """Whether two labelings cut the atoms in the same way."""
    pairs = np.unique(np.stack([a, b]), axis=1)
    return pairs.shape[1] == len(np.unique(a)) == len(np.unique(b))


# -- long runs ------------------------------------------------------------------------------------------------
def test_a_running_total_does_not_drift_in_a_thousand_laps():
    """Every batch's statistics are replaced a thousand times by others; far offsets make the sums lose digits."""
    x, _ = blobs(200, 3)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    batches = [Batch(part + 1e4, None, "x") for part in np.array_split(x, 5)]
    model = model.with_prior(combine([survey_batch(b) for b in batches]))
    rng, ids = np.random.default_rng(0), np.arange(3)
    total = RunningTotal(model.empty_summary(ids))
    kept = {}
    for _ in range(1000):
        for b in rng.permutation(5):
            resp = rng.dirichlet(np.full(3, 0.3), size=batches[b].n_atoms) * 10.0 ** rng.integers(-3, 3)
            new = model.summarize(ids, batches[b], resp)
            if b in kept:
                total.subtract(kept[b])
            total.add(new)
            kept[b] = new
    for name, value in total.value().values.items():
        parts = np.stack([k[name] for k in kept.values()])
        fresh = np.array([math.fsum(v) for v in parts.reshape(5, -1).T]).reshape(value.shape)
        np.testing.assert_allclose(value, fresh, rtol=1e-12, atol=0, err_msg=name)


def check_totals(tmp_path, schedule):
    """A run's totals equal the sum of the summaries that it stored."""
    x, _ = blobs(60, 2, scale=1.0)
    result = train(1e3 + x, bnp.Gaussian(), schedule=schedule, moves=(), store=tmp_path / "run", batch_size=15)
    store = RunStore.view(tmp_path / "run")
    saved = store.load()
    parts = [store.get_summary(*entry)[0] for entry in saved.listing.entries()]
    assert len(parts) == 4
    for field in ("N", *bnp.Gaussian().fields):
        values = np.stack([p[f"value.{field}"] for p in parts])
        fresh = np.array([math.fsum(v) for v in values.reshape(4, -1).T]).reshape(values.shape[1:])
        total = saved.arrays[f"total.high/value.{field}"] + saved.arrays[f"total.low/value.{field}"]
        np.testing.assert_allclose(total, fresh, rtol=1e-12, atol=1e-12 * np.abs(fresh).max(), err_msg=field)
    return result.history[-1]["lap"]


@pytest.mark.long
def test_a_run_to_its_fixed_point_does_not_drift(tmp_path):
    laps = check_totals(tmp_path, bnp.Memoized(laps=1000, window=2, tolerance=0.0, count_tolerance=0.0))
    assert laps > 10


@pytest.mark.long
def test_a_stochastic_run_of_a_thousand_laps_does_not_drift(tmp_path):
    assert check_totals(tmp_path, bnp.Stochastic(laps=1000, tolerance=0.0, count_tolerance=0.0)) == 1000


# -- shapes that are nearly nothing ---------------------------------------------------------------------------
def flat(rng, n, d):
    """Rows that lie on a line, but for 1e-9."""
    return rng.normal(size=(n, 1)) * np.ones(d) + 1e-9 * rng.normal(size=(n, d))


DEGENERATE = {
    "nearly one line": lambda rng: flat(rng, 200, 4),
    "a constant column": lambda rng: np.hstack([rng.normal(size=(200, 2)), np.full((200, 1), 7.0)]),
    "a column twice": lambda rng: np.repeat(rng.normal(size=(200, 2)), 2, axis=1),
    "all rows equal": lambda rng: np.full((200, 3), 2.5),
    "fewer rows than columns": lambda rng: rng.normal(size=(8, 20)),
    "columns of 1e-150 and 1e150": lambda rng: rng.normal(size=(200, 2)) * np.array([1e-150, 1e150]),
    "columns of 1e-8 and 1e8": lambda rng: rng.normal(size=(200, 2)) * np.array([1e-8, 1e8]),
    "one far outlier": lambda rng: np.vstack([rng.normal(size=(199, 3)), np.full((1, 3), 1e12)]),
    "denormal numbers": lambda rng: rng.normal(size=(200, 2)) * 1e-310,
    "largest numbers": lambda rng: rng.normal(size=(200, 2)) * 1e307,
}
GAUSSIANS = [bnp.Gaussian(), bnp.DiagGaussian(), bnp.FixedVarianceGaussian(), bnp.ZeroMeanGaussian()]


@pytest.mark.parametrize("observation", GAUSSIANS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("name", DEGENERATE)
def test_near_singular_data_are_finite_or_refused(name, observation):
    x = DEGENERATE[name](np.random.default_rng(0))
    try:
        with np.errstate(all="ignore"):
            result = train(x, observation)
    except BnpDaskError:
        return
    rising(result)
    finite(result.posterior)
    scores = bnp.predict(result.posterior, x, soft=True)
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-12)
    assert np.isfinite(bnp.score(result.posterior, x))


@pytest.mark.first_case
@pytest.mark.parametrize("tiny", [0.0, 1e-300, 1e-30, 1e-9])
@pytest.mark.parametrize("observation", GAUSSIANS[:3], ids=lambda o: type(o).__name__)
def test_clusters_of_next_to_nothing(observation, tiny):
    x, _ = blobs()
    resp = np.full((len(x), 3), tiny)
    resp[:, 0] = 1 - 2 * tiny
    result = train(
        x, observation, init=bnp.Responsibilities(resp), moves=[bnp.Merge(), bnp.Delete(), bnp.Birth()], laps=6
    )
    rising(result)
    finite(result.posterior)


# -- large counts, far offsets --------------------------------------------------------------------------------
@pytest.mark.parametrize("largest", [1, pytest.param(10**6, marks=pytest.mark.long), 10**9])
@pytest.mark.parametrize("kind", ["Multinomial", "Poisson", "HDPTopics"])
def test_counts_up_to_a_billion(kind, largest):
    rng = np.random.default_rng(0)
    profile = np.kron(np.eye(3), np.ones(4))[rng.integers(3, size=120)]
    counts = np.maximum(rng.poisson(0.3, profile.shape), profile * rng.integers(1, largest + 1, size=profile.shape))
    counts[0, 0] = largest
    if kind == "Poisson":
        result = train(counts.astype(float), bnp.Poisson())
    else:
        allocation = bnp.HDPTopics() if kind == "HDPTopics" else None
        init = bnp.RandomExamples(3)
        result = train(
            sparse.csr_array(counts.astype(float)), bnp.Multinomial(lam=0.1), allocation=allocation, init=init
        )
    rising(result)
    finite(result.posterior)
    total = counts.sum() if kind == "HDPTopics" else 120
    assert result.posterior.summary["N"].sum() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("observation", GAUSSIANS[:3], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("offset", [1e4, 1e8, -1e8])
def test_far_offsets_change_nothing(observation, offset):
    x, origin = blobs()
    near, far = train(x, observation), train(x + offset, observation)
    rising(far)
    a, b = bnp.predict(near.posterior, x), bnp.predict(far.posterior, x + offset)
    assert same_partition(a, b)
    assert same_partition(a, origin) or len(np.unique(a)) != 3
    np.testing.assert_allclose(far.history[-1]["elbo"], near.history[-1]["elbo"], rtol=1e-5)


SCALES = [2.0**20, 1e-6, 1e6, np.array([1e-4, 1.0, 1e5])]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("observation", [bnp.Gaussian(), bnp.DiagGaussian()], ids=lambda o: type(o).__name__)
def test_another_unit_gives_the_same_clustering(observation, scale):
    x, origin = blobs(d=3)
    plain, scaled = train(x, observation), train(x * scale, observation)
    a, b = bnp.predict(plain.posterior, x), bnp.predict(scaled.posterior, x * scale)
    assert same_partition(a, origin)
    assert same_partition(a, b)
    # densities change by the determinant of the change of units, and by nothing else
    shift = len(x) * np.log(np.broadcast_to(scale, 3)).sum()
    np.testing.assert_allclose(scaled.history[-1]["elbo"], plain.history[-1]["elbo"] - shift, rtol=1e-9)


@pytest.mark.parametrize("scale", SCALES[:3], ids=str)
@pytest.mark.parametrize(
    "observation", [bnp.FixedVarianceGaussian(), bnp.ZeroMeanGaussian()], ids=lambda o: type(o).__name__
)
def test_another_unit_of_all_columns_gives_the_same_clustering(observation, scale):
    x, _ = blobs(d=3)
    a, b = (bnp.predict(train(x * s, observation).posterior, x * s) for s in (1.0, scale))
    assert same_partition(a, b)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**16),
    observation=st.sampled_from(GAUSSIANS),
    log_scale=st.floats(-12, 12),
    log_offset=st.floats(-3, 9),
    log_spread=st.floats(-9, 3),
)
def test_any_magnitude_is_finite_or_refused(seed, observation, log_scale, log_offset, log_spread):
    rng = np.random.default_rng(seed)
    x, _ = blobs(60, 3, seed)
    x = (x * 10.0 ** np.array([0, log_spread, 0]) + 10.0**log_offset * rng.normal(size=3)) * 10.0**log_scale
    try:
        result = train(x, observation, laps=3, moves=None)
    except BnpDaskError:
        return
    rising(result)
    finite(result.posterior)
