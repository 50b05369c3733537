"""Reading hidden Markov models: durations, transitions, labels on disk, and a pass over sequences."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bnp_dask as bnp
from bnp_dask.analysis.sequences import (
    RunCounter,
    split_sequences,
    state_durations,
    survey_sequences,
    transitions,
    without_missing,
)
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from tests.batches import Batches
from tests.chains.parts import KINDS, begin, model_of, sequences


def runs_by_hand(parts):
    """(state, length, ended) of every run, listed."""
    found = []
    for part in parts:
        runs = [(int(state), len(list(steps))) for state, steps in groupby(part)]
        found += [(state, n, 0 < i < len(runs) - 1) for i, (state, n) in enumerate(runs)]
    return sorted(found)


def listed(counts):
    rows = zip(counts.state.tolist(), counts.length.tolist(), counts.ended.tolist(), counts.count, strict=True)
    return [(state, length, ended) for state, length, ended, n in rows for _ in range(n)]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=6), st.data())
def test_runs_however_labels_come(parts, data):
    labels = np.array([x for part in parts for x in part], np.int64)
    starts = np.zeros(len(labels), bool)
    at = np.concatenate([[0], np.cumsum([len(p) for p in parts])])[:-1]
    starts[at[[len(p) > 0 for p in parts]]] = True
    counter = RunCounter()
    place = 0
    while place < len(labels):
        stop = place + data.draw(st.integers(1, len(labels)))
        counter.add(labels[place:stop], starts[place:stop])
        place = stop
    assert listed(counter.finish()) == runs_by_hand(parts)


def test_runs_of_many_pieces_are_all_counted():
    counter, alone = RunCounter(), RunCounter()
    rng = np.random.default_rng(0)
    labels, starts = rng.integers(0, 3, 900), rng.random(900) < 0.1
    for at in range(0, 900, 3):  # parts are joined when there are more than 64
        counter.add(labels[at : at + 3], starts[at : at + 3])
    alone.add(labels, starts)
    assert listed(counter.finish()) == listed(alone.finish())


def test_the_first_step_of_all_starts_a_sequence_though_nobody_says_so():
    counter = RunCounter()
    counter.add(np.array([1, 1, 0]), np.zeros(3, bool))
    counter.add(np.array([0, 2]), np.zeros(2, bool))
    assert listed(counter.finish()) == [(0, 2, True), (1, 2, False), (2, 1, False)]


def test_a_table_of_durations():
    parts = [np.array([4, 4, 4, 1, 1, 4]), np.array([1]), np.zeros(0, np.int64), np.array([1, 1, 1, 1, 4, 4, 1])]
    found = state_durations(parts, ids=np.array([1, 2, 4]))
    assert found.ids.tolist() == [1, 2, 4]
    assert found.steps.tolist() == [8, 0, 6] and found.runs.tolist() == [4, 0, 3] and found.ended.tolist() == [1, 0, 1]
    np.testing.assert_allclose(found.mean, [8 / 4, np.nan, 6 / 3])
    # lengths 1, 1, 2, 4 and 1, 2, 3: the shortest length that so large a share does not exceed
    np.testing.assert_array_equal(found.quantiles[[0, 2]], [[1, 1, 4], [1, 2, 3]])
    assert np.isnan(found.quantiles[1]).all()
    length, count = found.lengths(1)
    assert (length.tolist(), count.tolist()) == ([1, 2, 4], [2, 1, 1])
    assert found.table().column_names == ["state", "steps", "runs", "ended", "mean", "q10", "q50", "q90"]
    lines = str(found).splitlines()
    assert lines[0].split() == ["state", "steps", "runs", "mean", "10%", "50%", "90%"]
    assert lines[1].split() == ["1", "8", "4", "2.0", "1", "1", "4"]
    # one vector with offsets is the same
    again = state_durations(np.concatenate(parts), [0, 6, 7, 7, 14])
    np.testing.assert_array_equal(again.mean, [2, 2])
    with pytest.raises(DataError, match="state 4, which is none of the 1 states"):
        state_durations(parts, ids=np.array([1]))
    with pytest.raises(DataError, match="needs ids of states"):
        state_durations(np.array([0.5, 1.0]))
    with pytest.raises(DataError, match="the data have 3 rows"):
        state_durations(np.zeros(3, int), [0, 2])
    with pytest.raises(SettingError, match="levels"):
        state_durations(parts, levels=(0.0,))


def test_lengths_of_runs_are_geometric():
    rng = np.random.default_rng(0)
    stay = np.array([0.9, 0.5])
    z = np.zeros(200_000, np.int64)
    u = rng.random(len(z))
    for t in range(1, len(z)):
        z[t] = z[t - 1] if u[t] < stay[z[t - 1]] else 1 - z[t - 1]
    found = state_durations(z)
    np.testing.assert_allclose(found.mean, 1 / (1 - stay), rtol=0.02)
    from scipy.stats import geom

    np.testing.assert_allclose(found.quantiles[0], geom.ppf([0.1, 0.5, 0.9], 0.1), atol=1)


@pytest.fixture(scope="module", params=KINDS)
def posterior(request):
    batch = sequences((30, 25, 40), k=3)
    return begin(model_of(request.param, batch), batch, k=3)


def test_transitions(posterior):
    found = transitions(posterior)
    own = posterior.allocation
    draws = np.array([np.random.default_rng(0).dirichlet(row, 40_000).mean(axis=0) for row in own.theta])
    np.testing.assert_allclose(found.matrix, draws[:, :3], atol=0.01)
    np.testing.assert_allclose(found.matrix.sum(axis=1) + found.unused, 1.0)
    np.testing.assert_allclose(found.start, own.theta0[:3] / own.theta0.sum())
    assert (found.unused > 0).all() == (len(own.theta0) == 4)
    np.testing.assert_array_equal(found.ids, posterior.ids)
    np.testing.assert_allclose(found.counts, posterior.summary["M"])
    np.testing.assert_allclose(found.duration, 1 / (1 - np.diag(found.matrix)))
    other = found.sorted(np.array([2, 0, 1]))
    assert other.matrix[0, 1] == found.matrix[2, 0] and other.ids.tolist() == [12, 10, 11]
    assert other.counts[0, 1] == found.counts[2, 0] and other.counts[1, 0] == found.counts[0, 2]
    assert (other.start[0], other.unused[1]) == (found.start[2], found.unused[0])
    frame = found.to_pandas()
    assert frame.loc[11, 12] == found.matrix[1, 2] and frame.index.name == "before"
    data = found.to_xarray()
    assert float(data.transition.sel(before=10, after=12)) == found.matrix[0, 2]
    assert str(found).splitlines()[0].split() == ["10", "11", "12"]
    light = transitions(posterior.light())
    assert light.counts is None


def test_mixtures_have_no_transitions():
    data = Batches([sequences()])
    model = bnp.Model(bnp.FiniteMixture(1.0), bnp.DiagGaussian()).with_prior(combine(map(survey_batch, data.batches)))
    batch = data.batches[0]
    mixture = model.global_step(model.summarize(np.arange(2), batch, np.full((batch.n_atoms, 2), 0.5)))
    with pytest.raises(SettingError, match="a transition matrix is for hidden Markov models.*FiniteMixture"):
        transitions(mixture)
    with pytest.raises(SettingError, match="a survey of sequences is for hidden Markov models"):
        survey_sequences(mixture, data)


@dataclass(frozen=True, eq=False)
class Own:
    """A source that somebody else wrote."""

    batches: tuple
    name: str = "own"
    n_features: int = 2
    n_atoms: int | None = None
    is_sparse: bool = False

    @property
    def n_batches(self):
        return len(self.batches)

    def reader(self, index):
        return lambda: self.batches[index]

    def describe(self):
        return {"kind": "own"}


# -- labels on disk ----------------------------------------------------------------------------------------------
def many(lengths=(40, 1, 25, 60, 3, 17), **more):
    batch = sequences(lengths, k=3, seed=4, **more)
    return [batch.x[a:b] for a, b in zip(batch.groups[:-1], batch.groups[1:], strict=True)]


def as_table(parts, names):
    ids = np.repeat(names, [len(x) for x in parts])
    rows = np.concatenate(parts)
    step = np.concatenate([np.arange(len(x)) for x in parts])
    return pa.table({"id": ids, "t": step, "a": rows[:, 0], "b": rows[:, 1]})


@pytest.mark.parametrize("cut", [None, 11])
def test_labels_streamed_to_parquet(posterior, tmp_path, cut):
    pd = pytest.importorskip("pandas")
    parts = many()
    names = np.array(["f", "a", "c", "e", "b", "d"])
    pq.write_table(as_table(parts, names), tmp_path / "t.parquet", row_group_size=13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = bnp.as_source(tmp_path / "t.parquet", groups="id", order="t", batch_size=30, cut=cut)
    assert source.n_batches > 3
    executor = ThreadExecutor(3)
    try:
        bnp.predict(posterior, source, out=tmp_path / "labels.parquet", client=executor)
    finally:
        executor.close()
    frame = pd.read_parquet(tmp_path / "labels.parquet")
    assert list(frame.columns) == ["sequence", "step", "state"]
    assert frame.sequence.tolist() == np.repeat(names, [len(x) for x in parts]).tolist()
    assert frame.step.tolist() == [t for x in parts for t in range(len(x))]
    labels = bnp.predict(posterior, source)
    np.testing.assert_array_equal(frame.state, labels)
    assert set(labels) <= set(posterior.ids)
    if cut is None:
        np.testing.assert_array_equal(labels, bnp.predict(posterior, parts))
    # read again, a part at a time: runs go on over the ends of files and of blocks
    whole = state_durations(tmp_path / "labels.parquet", ids=posterior.ids)
    held = state_durations(labels, parts, ids=posterior.ids)
    assert listed(whole.counts) == listed(held.counts)
    with pytest.raises(DataError, match="says itself which sequence"):
        state_durations(tmp_path / "labels.parquet", parts)
    with pytest.raises(DataError, match="needs sequence and state"):
        state_durations(tmp_path / "t.parquet")


def test_other_things_streamed(posterior, tmp_path):
    pd = pytest.importorskip("pandas")
    parts = many()
    bnp.predict(posterior, parts, out=tmp_path / "soft.parquet", soft=True)
    soft = pd.read_parquet(tmp_path / "soft.parquet")
    assert list(soft.columns) == ["sequence", "step", "resp"] and soft.sequence.tolist()[40] == 1
    np.testing.assert_allclose(np.stack(soft.resp), bnp.predict(posterior, parts, soft=True))
    bnp.predict(posterior, parts, out=tmp_path / "top.parquet", top=2)
    assert list(pd.read_parquet(tmp_path / "top.parquet").columns) == ["sequence", "step", "state", "resp"]
    # a source that does not know what its sequences are called
    batch = sequences((4, 3), k=3)
    bnp.predict(posterior, Own((batch, batch)), out=tmp_path / "own.parquet")
    own = pd.read_parquet(tmp_path / "own.parquet")
    assert own.sequence.unique().tolist() == ["batch 0, 0", "batch 0, 1", "batch 1, 0", "batch 1, 1"]
    assert own.step.tolist() == [0, 1, 2, 3, 0, 1, 2] * 2
    bnp.predict(posterior, parts, out=tmp_path / "labels.zarr")
    import zarr

    np.testing.assert_array_equal(zarr.open(tmp_path / "labels.zarr")["label"][:], bnp.predict(posterior, parts))


def test_a_survey(posterior):
    parts = [np.zeros((0, 2)), *many()]
    source = bnp.as_source(parts, batch_size=60)
    found = survey_sequences(posterior, source, show=3, steps=20)
    labels = bnp.predict(posterior, source)
    split = split_sequences(labels, source)
    assert (found.n_sequences, found.n_steps, found.n_cuts) == (6, 146, 0)
    assert listed(found.durations.counts) == runs_by_hand(split)
    assert [s.id for s in found.shown] == [1, 2, 3] and [s.n_steps for s in found.shown] == [40, 1, 25]
    for shown in found.shown:
        np.testing.assert_array_equal(shown.states, split[shown.id][:20])
    executor = ThreadExecutor(2)
    try:
        other = survey_sequences(posterior, source, show=3, steps=20, client=executor)
    finally:
        executor.close()
    assert listed(other.durations.counts) == listed(found.durations.counts)
    blocks = survey_sequences(posterior, bnp.as_source(parts, cut=25), show=2)
    assert (blocks.n_sequences, blocks.n_cuts) == (9, 3)
    assert [(s.id, s.begin, s.n_steps) for s in blocks.shown] == [(1, 0, 20), (1, 20, 20)]


# -- forms of labels ---------------------------------------------------------------------------------------------
def test_splitting():
    parts = many()
    labels = np.arange(146)
    split = split_sequences(labels, parts)
    assert [len(s) for s in split] == [len(p) for p in parts] and np.concatenate(split).tolist() == labels.tolist()
    assert [len(s) for s in split_sequences(labels, bnp.as_source(parts, cut=50))] == [40, 1, 25, 30, 30, 3, 17]
    with pytest.raises(DataError, match="does not know where its sequences start"):
        split_sequences(labels, Own((sequences(),)))
    with pytest.raises(DataError, match="groups run from 0 to 146"):
        split_sequences(labels[:-1], parts)


def test_missing_rows_cut_sequences():
    x = np.arange(14.0).reshape(7, 2)
    holes = np.array(x)
    holes[[0, 3, 4], [0, 1, 0]] = np.nan, np.inf, np.nan
    parts, places = without_missing([x, holes, np.full((2, 2), np.nan), np.zeros((0, 2))])
    assert places == [(0, 0), (1, 1), (1, 5)]
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate([x, x[1:3], x[5:]]))
    assert bnp.without_missing is without_missing
    with pytest.raises(DataError, match=r"sequences\[0\] has shape"):
        without_missing([np.zeros(3)])


def test_blocks_start_anew(posterior):
    """The effect of cutting: each block has the labels and the density of a sequence of its own."""
    parts = many((60,))
    whole, cut = bnp.as_source(parts), bnp.as_source(parts, cut=20)
    pieces = [parts[0][:20], parts[0][20:40], parts[0][40:]]
    np.testing.assert_array_equal(bnp.predict(posterior, cut), bnp.predict(posterior, pieces))
    assert bnp.score(posterior, cut) == pytest.approx(bnp.score(posterior, pieces), rel=1e-12)
    assert bnp.score(posterior, cut) != pytest.approx(bnp.score(posterior, whole), rel=1e-6)
    summary = sum_over(posterior, cut)
    assert summary["start"].sum() == pytest.approx(3) and summary["M"].sum() == pytest.approx(60 - 3)
    assert cut.n_cuts == 2


def sum_over(posterior, source):
    (batch,) = [source.reader(i)() for i in range(source.n_batches)]
    return posterior.model.local_step(posterior, batch)


def test_sequences_of_no_and_one_step_train(tmp_path):
    parts = [np.zeros((0, 2)), *many((1, 30, 1, 0, 1, 30)), np.zeros((0, 2))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        result = bnp.train(
            bnp.Model(bnp.HDPHMM(kappa=5.0), bnp.DiagGaussian()), bnp.as_source(parts, batch_size=32),
            init=bnp.ContiguousBlocks(4, 5), schedule=bnp.Memoized(laps=3), moves=[bnp.Merge()],
        )  # fmt: skip
    assert result.posterior.summary["N"].sum() == pytest.approx(63)
    assert result.posterior.summary["start"].sum() == pytest.approx(5)
    assert result.posterior.summary["M"].sum() == pytest.approx(63 - 5)
    assert len(bnp.predict(result.posterior, parts)) == 63
