"""Rows that exist nowhere: computed from the number of their batch and a seed."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli.job_schema import job_schema
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.errors import SettingError
from bnp_dask.testing import SourceSuite


class TestVirtualMixture(SourceSuite):
    def source(self):
        return bnp.VirtualMixture(2_500, 3, 4, batch_size=1000)

    def test_rows_of_a_cluster_lie_around_its_mean(self):
        source = self.source()
        labels = np.concatenate([source.labels(b) for b in range(source.n_batches)])
        rows = np.concatenate([batch.x for batch in self.batches(source)])
        for k in range(4):
            own = rows[labels == k]
            assert np.abs(own.mean(axis=0) - source.means[k]).max() < 5 * 1.5 / np.sqrt(len(own))
            assert (own.std(axis=0) > 0.4).all() and (own.std(axis=0) < 1.6).all()

    def test_another_seed_gives_other_rows(self):
        other = bnp.VirtualMixture(2_500, 3, 4, batch_size=1000, seed=1)
        assert not np.array_equal(other.reader(0)().x, self.source().reader(0)().x)
        assert other.describe() != self.source().describe()

    def test_batches_do_not_repeat_one_another(self):
        source = self.source()
        first, second, _ = self.batches(source)
        assert not np.isin(first.x, second.x).any()
        # each of the random parts of a row: its cluster, and its place around the mean; two draws of 1 of 4 clusters
        # agree in a quarter of the rows
        one, other = source.labels(0), source.labels(1)
        assert 0.15 < np.mean(one == other) < 0.35
        same = one == other
        assert (first.x[same] != second.x[same]).all()


def test_a_billion_rows_are_described_at_once():
    source = bnp.VirtualMixture(10**9, 16, 64)
    assert (source.n_atoms, source.n_batches) == (10**9, 3815)
    with pytest.raises(IndexError, match="0 to 3814"):
        source.reader(3815)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_rows": 0, "n_columns": 2, "n_clusters": 1}, "n_rows=0"),
        ({"n_rows": 5, "n_columns": 2, "n_clusters": 6}, "n_clusters=6: there are only n_rows=5"),
        ({"n_rows": 5, "n_columns": 2, "n_clusters": 1, "spread": -1.0}, "spread=-1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        bnp.VirtualMixture(**settings)


def test_a_job_file_names_it_and_the_schema_knows_it(tmp_path):
    text = (
        "model: {allocation: DPMixture, observation: DiagGaussian}\n"
        "data: {type: VirtualMixture, n_rows: 600, n_columns: 2, n_clusters: 3, batch_size: 100}\n"
        "init: {type: FromSample, batches: 1, init: {type: BregmanKMeans, n_clusters: 4}}\n"
        "schedule: {type: Memoized, laps: 3}\n"
    )
    job = parse_job(yaml.safe_load(text), tmp_path)
    assert job.data == bnp.VirtualMixture(600, 2, 3, batch_size=100)
    assert job.init == bnp.FromSample(bnp.BregmanKMeans(4), batches=1)
    known = job_schema()["definitions"]
    assert {"VirtualMixture", "FromSample"} <= known.keys()
    assert "n_rows" in known["VirtualMixture"]["required"]
