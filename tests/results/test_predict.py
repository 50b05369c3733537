"""Labels, responsibilities and held-out scores, against direct computation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse, stats
from scipy.integrate import quad
from scipy.special import logsumexp, softmax

from bnp_dask.allocation import DPMixture, FiniteMixture
from bnp_dask.analysis.predict import assign_batch, predict
from bnp_dask.analysis.score import log_density, score, score_samples
from bnp_dask.core.batch import Batch
from bnp_dask.data import output as assigned
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian, FixedVarianceGaussian
from bnp_dask.structure.answers import label_rows, mixture_density
from bnp_dask.testing import survey_of
from tests.results.cases import OBSERVATIONS, atoms, fitted


def direct(posterior, x) -> np.ndarray:
    """Responsibilities by the definition, ``(n, K)``."""
    model = posterior.model
    log_lik = model.observation.expected_log_lik(posterior.observation, Batch(x))
    return softmax(log_lik + model.allocation.log_weights(posterior.allocation), axis=1)


@dataclass(frozen=True)
class Held:
    batch: Batch

    def __call__(self) -> Batch:
        return self.batch


@dataclass(frozen=True)
class Uneven:
    """A source whose batches have unequal lengths, one of them none."""

    x: np.ndarray
    cuts: tuple[int, ...] = (0, 7, 7, 30, 31, 60)
    weights: np.ndarray | None = None
    name: str = "uneven"
    is_sparse: bool = False

    @property
    def n_atoms(self):
        return None

    @property
    def n_batches(self):
        return len(self.cuts) - 1

    @property
    def n_features(self):
        return self.x.shape[1]

    def reader(self, index):
        rows = slice(self.cuts[index], self.cuts[index + 1])
        weights = None if self.weights is None else self.weights[rows]
        return Held(Batch(self.x[rows], weights, f"uneven batch {index}"))

    def describe(self):
        return {"kind": "uneven"}


# -- in memory ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_labels_and_responsibilities_of_every_likelihood(kind):
    posterior, x = fitted(kind), atoms(kind, seed=9)
    expected = direct(posterior, x)
    resp = predict(posterior, x, soft=True)
    np.testing.assert_allclose(resp, expected, atol=1e-12)
    labels = predict(posterior, x)
    assert labels.dtype == np.int64
    assert np.array_equal(labels, posterior.ids[expected.argmax(axis=1)])
    assert set(labels) <= {7, 3, 11}
    top = predict(posterior, x, top=2)
    assert np.array_equal(top.label[:, 0], labels)
    np.testing.assert_allclose(top.resp, -np.sort(-expected, axis=1)[:, :2], atol=1e-12)
    assert np.array_equal(predict(posterior, x, batch_size=7), labels)


def test_top_of_more_than_there_are_and_one_cluster():
    posterior, x = fitted("diag"), atoms("diag")
    assert predict(posterior, x, top=99).resp.shape == (60, 3)
    one = fitted("diag", n_clusters=1)
    assert (predict(one, x) == 7).all()
    assert (predict(one, x, soft=True) == 1).all()
    assert predict(one, x, top=3).label.shape == (60, 1)


def test_sparse_responsibilities_and_point_estimates():
    for estimate in ("posterior", "map"):
        posterior = fitted("diag", FiniteMixture(top=2), estimate)
        resp = predict(posterior, atoms("diag"), soft=True)
        assert ((resp > 0).sum(axis=1) <= 2).all()
        np.testing.assert_allclose(resp.sum(axis=1), 1, atol=1e-12)
    hard = fitted("fixed", FiniteMixture(top=1), "map")
    x = atoms("fixed")
    distance = ((x[:, None] - hard.observation.m) ** 2 / hard.model.observation.variance).sum(axis=2)
    offset = -2 * hard.model.allocation.log_weights(hard.allocation)
    assert np.array_equal(predict(hard, x), hard.ids[(distance + offset).argmin(axis=1)])


def test_many_tiles_give_what_one_gives():
    posterior = fitted("diag")
    x = np.tile(atoms("diag"), (700, 1))  # more rows than one tile holds
    assert np.array_equal(predict(posterior, x), np.tile(predict(posterior, atoms("diag")), 700))


def test_weights_do_not_change_responsibilities():
    posterior, x = fitted("diag"), atoms("diag")
    batch = Batch(x, np.linspace(0, 5, len(x)))
    assert np.array_equal(assign_batch(posterior, batch, soft=True)["resp"], predict(posterior, x, soft=True))


def test_threads_give_the_same_bits():
    posterior, source = fitted("gaussian"), Uneven(atoms("gaussian"))
    executor = ThreadExecutor(2)
    try:
        parallel = predict(posterior, source, soft=True, client=executor)
        value = score(posterior, source, client=executor)
    finally:
        executor.close()
    assert np.array_equal(parallel, predict(posterior, source, soft=True))
    assert value == score(posterior, source)


@pytest.mark.parametrize("options", [{"top": 0}, {"top": 1.5}, {"top": True}, {"soft": True, "top": 2}])
def test_settings_out_of_range(options):
    with pytest.raises(SettingError, match="top="):
        predict(fitted("diag"), atoms("diag"), **options)


def test_other_features_are_refused_before_data_are_read():
    class Unreadable(Uneven):
        def reader(self, index):
            raise AssertionError("must not be read")

    with pytest.raises(DataError, match=r"uneven: 5 .*4"):
        score(fitted("diag"), Unreadable(np.zeros((60, 5))))
    with pytest.raises(AssertionError):
        score(fitted("diag"), Unreadable(np.zeros((60, 4))))
    for kind in OBSERVATIONS:
        x = np.ones((3, 5))
        with pytest.raises(DataError, match=r"(?s)5.*4"):
            predict(fitted(kind), sparse.csr_array(x) if kind == "multinomial" else x)
    with pytest.raises(DataError, match="sparse"):
        predict(fitted("diag"), sparse.csr_array(np.ones((3, 4))))


def test_nan_is_named_never_predicted():
    x = atoms("diag")
    x[13, 2] = np.nan
    with pytest.raises(DataError, match="row 13, column 2 is nan"):
        predict(fitted("diag"), x)
    with pytest.raises(DataError, match="nan"):
        score(fitted("diag"), x)


# -- Dask -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunks", [(17, 4), (60, 2), ((1, 59), 4)])
def test_dask_in_lazy_dask_out(chunks):
    posterior, x = fitted("diag"), atoms("diag")
    lazy_x = da.from_array(x, chunks=chunks)
    with dask.config.set(scheduler="synchronous"):
        labels = predict(posterior, lazy_x)
        assert isinstance(labels, da.Array)
        assert labels.shape == (60,)
        assert labels.dtype == np.int64
        assert np.array_equal(labels.compute(), predict(posterior, x))
        resp = predict(posterior, lazy_x, soft=True)
        assert resp.shape == (60, 3)
        np.testing.assert_allclose(resp.compute(), predict(posterior, x, soft=True), atol=1e-14)
        top = predict(posterior, lazy_x, top=2)
        assert np.array_equal(top.label.compute(), predict(posterior, x, top=2).label)
        np.testing.assert_allclose(top.resp.compute(), predict(posterior, x, top=2).resp, atol=1e-14)


def test_dask_arrays_of_unknown_size_and_empty_blocks():
    posterior, x = fitted("diag"), atoms("diag")
    lazy_x = da.from_array(x, chunks=(10, 4))
    some = lazy_x[lazy_x[:, 0] > 4]
    with dask.config.set(scheduler="synchronous"):
        assert np.array_equal(predict(posterior, some).compute(), predict(posterior, x[x[:, 0] > 4]))
        with pytest.raises(DataError, match="two axes"):
            predict(posterior, lazy_x[:, 0])
        with pytest.raises(DataError, match="5 features"):
            predict(posterior, da.zeros((10, 5))).compute()


def test_dask_frames_and_the_posterior_travels_once():
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    posterior, x = fitted("diag"), atoms("diag")
    frame = dd.from_pandas(pd.DataFrame(x, columns=list("abcd")), npartitions=3)
    with dask.config.set(scheduler="synchronous"):
        assert np.array_equal(predict(posterior, frame).compute(), predict(posterior, x))
    graph = dict(predict(posterior, da.from_array(x, chunks=(10, 4))).__dask_graph__())
    assert sum(b"StickParams" in cloudpickle.dumps(task) for task in graph.values()) == 1
    assert len(graph) > 6


# -- streamed -------------------------------------------------------------------------------------------------
MODES = [{}, {"soft": True}, {"top": 2}]


def in_memory(posterior, x, options) -> dict[str, np.ndarray]:
    value = predict(posterior, x, **options)
    if "top" in options:
        return {"label": value.label, "resp": value.resp}
    return {"resp" if options.get("soft") else "label": value}


@pytest.mark.first_case
@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("threads", [False, True])
def test_zarr_output_equals_memory(tmp_path, options, threads, monkeypatch):
    monkeypatch.setattr(assigned, "CHUNK_BYTES", 200)  # chunks that are cut elsewhere than batches
    posterior, source = fitted("diag"), Uneven(atoms("diag"))
    executor = ThreadExecutor(2) if threads else None
    assert predict(posterior, source, out=tmp_path / "labels.zarr", client=executor, **options) is None
    if executor is not None:
        executor.close()
    group = zarr.open_group(tmp_path / "labels.zarr", mode="r")
    expected = in_memory(posterior, source, options)
    assert sorted(group.array_keys()) == sorted(expected)
    for name, value in expected.items():
        assert group[name].nchunks > 1
        assert np.array_equal(group[name][...], value)
        assert group[name].dtype == value.dtype
    assert group.attrs["bnp_dask"]["ids"] == [7, 3, 11]
    assert [p.name for p in tmp_path.iterdir()] == ["labels.zarr"]
    assert not (tmp_path / "labels.zarr" / "parts").exists()


@pytest.mark.parametrize("options", MODES)
def test_parquet_output_equals_memory(tmp_path, options):
    posterior, source = fitted("diag"), Uneven(atoms("diag"))
    predict(posterior, source, out=tmp_path / "labels.parquet", **options)
    table = pq.read_table(tmp_path / "labels.parquet")
    for name, value in in_memory(posterior, source, options).items():
        assert np.array_equal(np.array(table[name].to_pylist()), value)
    assert len(list((tmp_path / "labels.parquet").iterdir())) == source.n_batches
    assert [p.name for p in tmp_path.iterdir()] == ["labels.parquet"]


@pytest.mark.parametrize("ending", ["zarr", "parquet"])
def test_output_to_a_url_and_from_a_file(tmp_path, ending):
    np.save(tmp_path / "x.npy", atoms("diag"))
    out = f"memory://labels/{ending}/labels.{ending}"
    predict(fitted("diag"), tmp_path / "x.npy", out=out, batch_size=25)
    expected = predict(fitted("diag"), atoms("diag"))
    if ending == "zarr":
        assert np.array_equal(zarr.open_group(out, mode="r")["label"][...], expected)
    else:
        import fsspec

        fs = fsspec.filesystem("memory")
        parts = [pq.read_table(fs.open(name)) for name in sorted(fs.ls(out.removeprefix("memory:/"), detail=False))]
        assert np.array_equal(np.concatenate([p["label"].to_numpy() for p in parts]), expected)


@pytest.mark.parametrize("ending", ["zarr", "parquet"])
def test_dask_arrays_are_streamed_too(tmp_path, ending):
    posterior, x = fitted("diag"), atoms("diag")
    out = tmp_path / f"labels.{ending}"
    predict(posterior, da.from_array(x, chunks=(17, 4)), out=out)
    found = zarr.open_group(out)["label"][...] if ending == "zarr" else pq.read_table(out)["label"].to_numpy()
    assert np.array_equal(found, predict(posterior, x))


def test_outputs_are_never_overwritten_and_failures_leave_nothing(tmp_path):
    posterior, x = fitted("diag"), atoms("diag")
    (tmp_path / "labels.zarr").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        predict(posterior, x, out=tmp_path / "labels.zarr")
    with pytest.raises(SettingError, match=r"\.csv, \.parquet or \.zarr"):
        predict(posterior, x, out=tmp_path / "labels.txt")
    x[59] = np.inf
    for ending in ("zarr", "parquet"):
        with pytest.raises(DataError, match="inf"):
            predict(posterior, Uneven(x), out=tmp_path / f"new.{ending}")
    assert [p.name for p in tmp_path.iterdir()] == ["labels.zarr"]


def test_tasks_may_run_twice(tmp_path):
    class Twice:
        """Runs every task twice, as after a lost worker."""

        n_workers = 1
        memory_limit = None

        def share(self, name, value):
            return value

        def submit(self, name, function, *args):
            function(*args)
            return function(*args)

        def result(self, handle):
            return handle

        def close(self):
            pass

    posterior, source = fitted("diag"), Uneven(atoms("diag"))
    predict(posterior, source, out=tmp_path / "a.zarr", client=Twice())
    predict(posterior, source, out=tmp_path / "a.parquet", client=Twice())
    expected = predict(posterior, source)
    assert np.array_equal(zarr.open_group(tmp_path / "a.zarr")["label"][...], expected)
    assert np.array_equal(pq.read_table(tmp_path / "a.parquet")["label"].to_numpy(), expected)


def test_dask_workers_write_the_same(tmp_path, dask_client):
    posterior, source = fitted("gaussian"), Uneven(atoms("gaussian"))
    executor = DaskExecutor(dask_client(2), "predict")
    try:
        predict(posterior, source, out=tmp_path / "a.zarr", top=2, client=executor)
        value = score(posterior, source, client=executor)
    finally:
        executor.close()
    expected = predict(posterior, source, top=2)
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert np.array_equal(group["label"][...], expected.label)
    assert np.array_equal(group["resp"][...], expected.resp)
    assert value == score(posterior, source)


# -- score ----------------------------------------------------------------------------------------------------
def brute_density(posterior, x) -> np.ndarray:
    """log (sum_k E[pi_k] Student + rest * prior Student) for DiagGaussian, atom by atom."""
    prior, q = posterior.model.observation, posterior.observation
    weights = posterior.weights
    out = []
    for row in x:
        density = 0.0
        for k, weight in enumerate(weights):
            scale = np.sqrt(q.beta[k] * (1 + 1 / q.kappa[k]) / q.nu[k])
            density += weight * stats.t.pdf(row, q.nu[k], q.m[k], scale).prod()
        scale = np.sqrt(prior.beta * (1 + 1 / prior.kappa) / prior.nu)
        density += max(0.0, 1 - weights.sum()) * stats.t.pdf(row, prior.nu, prior.m, scale).prod()
        out.append(np.log(density))
    return np.array(out)


@pytest.mark.parametrize("allocation", [DPMixture(gamma=5.0), FiniteMixture(gamma=2.0)])
def test_score_is_the_density_by_brute_force(allocation):
    posterior, x = fitted("diag", allocation), atoms("diag", seed=4)
    expected = brute_density(posterior, x)
    np.testing.assert_allclose(score_samples(posterior, x, batch_size=13), expected, rtol=1e-10)
    assert score(posterior, x) == pytest.approx(expected.mean(), rel=1e-12)
    weights = np.linspace(0, 3, 60)
    weighted = score(posterior, Uneven(x, weights=weights))
    assert weighted == pytest.approx(weights @ expected / weights.sum(), rel=1e-12)


def test_an_outlier_gets_what_unseen_clusters_expect():
    dp, finite = fitted("diag", DPMixture(gamma=5.0)), fitted("diag", FiniteMixture(gamma=5.0))
    far = np.full((1, 4), 1e4)
    np.testing.assert_allclose(score_samples(dp, far), brute_density(dp, far), rtol=1e-10)
    assert score(dp, far) > score(finite, far)


@pytest.mark.parametrize("observation", [DiagGaussian(), FixedVarianceGaussian()])
def test_the_density_integrates_to_one(observation):
    x = np.concatenate([np.zeros(20), np.full(20, 4.0)])[:, None] + np.linspace(-1, 1, 40)[:, None]
    model = Model(DPMixture(3.0), observation).with_prior(survey_of(Batch(x)))
    resp = np.repeat(np.eye(2), 20, axis=0)
    posterior = model.global_step(model.summarize(np.array([0, 1]), Batch(x), resp))
    total = sum(
        quad(lambda v: float(np.exp(log_density(posterior, Batch(np.array([[v]])))[0])), a, b, limit=200)[0]
        for a, b in [(-np.inf, -2), (-2, 2), (2, 6), (6, np.inf)]
    )
    assert total == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_score_of_every_likelihood_is_the_mixture_of_predictives(kind):
    posterior, x = fitted(kind, FiniteMixture()), atoms(kind, seed=2)
    terms = posterior.model.observation.log_predictive(posterior.observation, Batch(x)) + np.log(posterior.weights)
    np.testing.assert_allclose(score_samples(posterior, x), logsumexp(terms, axis=1), rtol=1e-12)
    dp = fitted(kind)
    assert np.isfinite(score(dp, x))
    assert score(replace(dp, summary=None), x) == score(dp, x)


def test_rows_of_weight_zero_are_not_looked_at():
    posterior, x = fitted("diag"), atoms("diag")
    weights = np.ones(60)
    weights[[3, 40]] = 0.0
    weights[50] = 2.5
    wanted = score(posterior, Uneven(x, weights=weights))
    each = log_density(posterior, Batch(x))
    assert wanted == pytest.approx(weights @ each / weights.sum(), rel=1e-12)
    holed = x.copy()
    holed[[3, 40], 1] = np.nan
    assert score(posterior, Uneven(holed, weights=weights)) == wanted


def test_top_of_lazy_data_is_that_of_data_in_memory():
    posterior, x = fitted("diag"), atoms("diag")
    for top in (1, 2, posterior.n_clusters, posterior.n_clusters + 5):
        lazy, held = predict(posterior, da.from_array(x, chunks=(17, -1)), top=top), predict(posterior, x, top=top)
        assert lazy.label.shape == held.label.shape
        assert (lazy.label.compute() == held.label).all() and (lazy.resp.compute() == held.resp).all()


def test_no_weight_no_mean():
    with pytest.raises(DataError, match="positive sum"):
        score(fitted("diag"), Uneven(atoms("diag"), weights=np.zeros(60)))


# -- tiles, ids and ties -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class InTiles:
    """A structure that knows the responsibilities of all rows, and gives them in three tiles."""

    resp: np.ndarray
    cuts: tuple[int, ...] = (0, 2, 3, 5)

    def _tiles(self, batch):
        assert batch.weights is None  # they are responsibilities, not responsibilities times weights
        return [(batch.rows(a, b), slice(a, b)) for a, b in zip(self.cuts[:-1], self.cuts[1:], strict=True)]

    def labels(self, model, posterior, batch):
        return ((tile, self.resp[here].argmax(axis=1)) for tile, here in self._tiles(batch))

    def steps(self, model, posterior, batch, places):
        assert not len(places)
        return ((tile, SimpleNamespace(resp=self.resp[here])) for tile, here in self._tiles(batch))


def test_answers_of_three_tiles_are_in_the_order_of_the_rows_and_name_clusters_by_id():
    resp = np.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5], [0.2, 0.3, 0.5], [0.4, 0.4, 0.2], [0.0, 0.0, 1.0]])
    model = SimpleNamespace(observation=SimpleNamespace(check=lambda batch: None))
    posterior = SimpleNamespace(model=model, ids=np.array([9, 2, 5]), n_clusters=3)
    batch, structure = Batch(np.zeros((5, 1)), np.arange(5.0) + 2.0), InTiles(resp)
    assert label_rows(structure, posterior, batch, False, None)["label"].tolist() == [2, 9, 5, 9, 5]
    soft = label_rows(structure, posterior, batch, True, None)
    assert list(soft) == ["resp"]
    np.testing.assert_array_equal(soft["resp"], resp)
    two = label_rows(structure, posterior, batch, False, 2)  # of equals the first
    assert two["label"].tolist() == [[2, 5], [9, 5], [5, 2], [9, 2], [5, 9]]
    np.testing.assert_array_equal(two["resp"], [[0.6, 0.3], [0.5, 0.5], [0.5, 0.3], [0.4, 0.4], [1.0, 0.0]])
    for most in (3, 4):  # as many as there are
        assert label_rows(structure, posterior, batch, False, most)["label"].shape == (5, 3)


def test_the_density_of_atoms_does_not_depend_on_the_tiles_they_are_in(monkeypatch):
    posterior, batch = fitted("diag"), Batch(atoms("diag")[:11])
    whole = mixture_density(posterior.model, posterior, batch)
    cuts = (0, 4, 5, 11)
    tiles = lambda self, batch, n: (batch.rows(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True))  # noqa: E731
    monkeypatch.setattr(type(posterior.model.allocation), "tiles", tiles)
    np.testing.assert_allclose(mixture_density(posterior.model, posterior, batch), whole, rtol=1e-13)
