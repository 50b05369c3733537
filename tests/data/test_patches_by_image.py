"""Ingest keeps which patch is of which image, where it is asked to."""

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.data import Patches, as_source
from bnp_dask.data.ingestion.ingest import ingest
from tests.data.reading import read_all

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    """Four grey images, of which image i has the values 50 i to 50 i + 39, and one that is damaged."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for i in range(4):
        values = rng.integers(50 * i, 50 * i + 40, (20, 30 + i), np.uint8)
        Image.fromarray(values).save(tmp_path / "images" / f"{i}.png")
    whole = (tmp_path / "images" / "0.png").read_bytes()
    (tmp_path / "images" / "damaged.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "images"


def test_each_image_is_a_group_and_damaged_ones_are_told(folder, tmp_path):
    cutting = Patches(side=4, number=100, remove_mean=False, by_image=True)
    report = ingest(folder, tmp_path / "out.zarr", patches=cutting, batch_size=60)
    assert report.n_groups == 4 and report.n_atoms == 100
    assert "damaged.png" in str(report)
    source = as_source(tmp_path / "out.zarr")
    assert source.n_batches == 2
    batches = read_all(source)
    groups = [batch.x[start:stop] for batch in batches for start, stop in zip(batch.groups[:-1], batch.groups[1:])]
    assert [len(x) for x in groups] == [25] * 4
    origins = [set((x.mean(axis=1) * 255 // 50).astype(int)) for x in groups]
    assert all(len(origin) == 1 for origin in origins) and set.union(*origins) == {0, 1, 2, 3}
    ids = source.names.part((0, 4))()[0].to_pylist()
    assert ids == [f"{origin.pop()}.png" for origin in origins]


def test_all_patches_are_those_of_images_that_are_shuffled(folder, tmp_path):
    for name, by_image in (("one", False), ("other", True)):
        ingest(folder, tmp_path / name, patches=Patches(side=5, by_image=by_image))
    one, other = (np.concatenate([b.x for b in read_all(as_source(tmp_path / n))]) for n in ("one", "other"))
    np.testing.assert_array_equal(np.sort(one, axis=0), np.sort(other, axis=0))


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_images_go_into_a_topic_model_from_the_command_line(folder, tmp_path):
    store, job = tmp_path / "patches.zarr", tmp_path / "job.yaml"
    assert main(["ingest", str(folder), str(store), "--patch", "2", "--number", "80", "--by-image"]) == 0
    job.write_text(
        "model:\n  allocation: {type: HDPTopics}\n  observation: {type: ZeroMeanGaussian}\n"
        f"data: {{path: {store}}}\ninit: {{type: BregmanKMeans, n_clusters: 2}}\n"
        f"schedule: {{type: Memoized, laps: 2}}\nmoves: []\nstore: {tmp_path / 'run'}\n"
    )
    assert main(["train", str(job)]) == 0
    assert bnp.load(tmp_path / "run" / "posterior.zarr").n_clusters == 2
