"""Images become patches: evenly, once each, the same every time; damaged ones are named."""

import sys
from collections import Counter

import numpy as np
import pytest

from bnp_dask.cli import main
from bnp_dask.core.location import Location
from bnp_dask.data import Patches, as_source
from bnp_dask.data.ingestion import patches
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.data.ingestion.patches import PatchStream, cut, read_grey, shares
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import read_all, rows

Image = pytest.importorskip("PIL.Image")


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Five grey images: image i has the values 40 i to 40 i + 39, so a patch tells where it is from."""
    rng = np.random.default_rng(0)
    for i in range(5):
        save(tmp_path / "images" / f"part{i % 2}" / f"{i}.png", rng.integers(40 * i, 40 * i + 40, (20, 30), np.uint8))
    (tmp_path / "images" / "README.md").write_text("no image")
    return tmp_path / "images"


def origin(x):
    return Counter((x.mean(axis=1) * 255 // 40).astype(int).tolist())


@pytest.mark.parametrize(("rooms", "wanted", "found"), [
    ([9, 9, 9], 9, [3, 3, 3]),
    ([9, 9, 9], 10, [3, 3, 4]),
    ([1, 9, 4], 9, [1, 4, 4]),
    ([1, 9, 4], 12, [1, 7, 4]),
    ([1, 0, 4], 99, [1, 0, 4]),
    ([], 5, []),
])  # fmt: skip
def test_shares(rooms, wanted, found):
    assert shares(rooms, wanted) == found


def test_cut_against_slices():
    image = np.random.default_rng(1).random((7, 9))
    every = [image[i : i + 3, j : j + 3].ravel() for i in range(5) for j in range(7)]
    np.testing.assert_array_equal(cut(image, 3, remove_mean=False), every)
    some = np.array([34, 0, 8])
    np.testing.assert_allclose(cut(image, 3, some), [every[p] - every[p].mean() for p in some], atol=1e-15)


def test_numbers_are_even_and_patches_differ(folder, tmp_path):
    report = ingest(folder, tmp_path / "x.zarr", patches=Patches(4, 1000, 3, remove_mean=False), batch_size=100)
    assert (report.n_atoms, report.n_features, report.n_batches, report.dtype) == (1000, 16, 10, "float32")
    assert report.format == "images" and "4x4 grey patches of 5 images" in str(report)
    x = rows(as_source(tmp_path / "x.zarr"))
    assert origin(x) == dict.fromkeys(range(5), 200)
    assert len(np.unique(x, axis=0)) == 1000
    # each patch is one of those that its image has
    there = np.concatenate([cut(read_grey(f), 4, remove_mean=False) for f in patches.images_in(Location.of(folder))])
    known = {row.astype(np.float32).tobytes() for row in there}
    assert all(row.astype(np.float32).tobytes() in known for row in x)
    # every batch has patches of most images
    assert all(len(origin(b.x)) >= 4 for b in read_all(as_source(tmp_path / "x.zarr")))


def test_all_patches_of_one_image(folder, tmp_path):
    image = folder / "part0" / "2.png"
    report = ingest(image, tmp_path / "x.zarr", dtype="float64")
    assert report.n_atoms == 13 * 23 and report.dtype == "float64"
    x = rows(as_source(tmp_path / "x.zarr"))
    assert np.abs(x.mean(axis=1)).max() < 1e-15
    expected = cut(read_grey(Location.of(image)), 8)
    np.testing.assert_array_equal(x[np.lexsort(x.T)], expected[np.lexsort(expected.T)])


def test_same_bits_for_one_seed_and_any_folder(folder, tmp_path):
    x = [rows_of(folder, tmp_path / "a.zarr", 0), rows_of(folder, tmp_path / "b.zarr", 0)]
    folder.rename(tmp_path / "moved")
    x.append(rows_of(tmp_path / "moved", tmp_path / "c.zarr", 0))
    assert all(np.array_equal(x[0], other) for other in x[1:])
    assert not np.array_equal(x[0], rows_of(tmp_path / "moved", tmp_path / "d.zarr", 1))


def rows_of(folder, out, seed):
    ingest(folder, out, patches=Patches(4, 500, seed))
    return rows(as_source(out))


def test_each_image_is_decoded_once_and_little_is_held(folder, tmp_path, monkeypatch):
    read = []

    def counted(file):
        read.append(file.basename)
        return read_grey(file)

    monkeypatch.setattr(patches, "read_grey", counted)
    monkeypatch.setattr(patches, "BUFFER_BYTES", 8 * 16 * 100)
    monkeypatch.setattr(patches, "PIECE_BYTES", 8 * 16 * 30)
    stream = PatchStream(Location.of(folder), Patches(4, 1200, remove_mean=False))
    told = []
    found = []
    for piece in stream.pieces():
        assert len(piece) <= 30
        found.append(piece)
        told.append(stream.share)
    assert sorted(read) == [f"{i}.png" for i in range(5)]
    assert origin(np.concatenate(found)) == dict.fromkeys(range(5), 240)
    assert told == sorted(told) and told[0] < 0.5 and told[-1] == 1.0


def test_unreadable_images_are_named_and_replaced(folder, tmp_path, capsys):
    whole = (folder / "part0" / "4.png").read_bytes()
    (folder / "part0" / "4.png").write_bytes(whole[: len(whole) // 2])
    (folder / "text.jpg").write_text("no image at all")
    (folder / "nothing.PNG").write_bytes(b"")
    save(folder / "tiny.png", np.zeros((3, 50), np.uint8))
    out = str(tmp_path / "x.zarr")
    assert (
        main(["ingest", str(folder), out, "--patch", "4", "--number", "1000", "--seed", "5", "--no-remove-mean"]) == 0
    )
    said = capsys.readouterr().out
    assert "4 images could not be used" in said and "instead of" not in said
    for name in ("4.png", "text.jpg", "nothing.PNG", "tiny.png (50x3 pixels are smaller than a patch)"):
        assert name in said
    x = rows(as_source(out))
    # the share of the image that is cut short goes to those read after it
    found = origin(x)
    assert len(x) == 1000 and set(found) == {0, 1, 2, 3} and min(found.values()) >= 200


def test_more_than_there_are(folder, tmp_path):
    save(folder / "tiny.png", np.full((4, 5), 255, np.uint8))
    report = ingest(folder, tmp_path / "x.zarr", patches=Patches(4, 10**6, remove_mean=False))
    assert report.n_atoms == 5 * 17 * 27 + 2
    assert "2,297 patches instead of 1,000,000" in str(report)


def test_images_in_and_out(tmp_path):
    colours = np.random.default_rng(2).integers(0, 256, (9, 11, 4), np.uint8)
    grey = colours[..., :3] @ [0.299, 0.587, 0.114] / 255
    kinds = {
        "rgb.png": (colours[..., :3], grey),
        "rgba.png": (colours, grey),
        "grey.bmp": (colours[..., 0], colours[..., 0] / 255),
        "deep.png": (colours[..., 0].astype(np.uint16) * 257, colours[..., 0] / 255),
        "real.tif": (grey.astype(np.float32), grey.astype(np.float32)),
        "bits.png": (colours[..., 0] > 127, (colours[..., 0] > 127) * 1.0),
    }
    for name, (pixels, expected) in kinds.items():
        save(tmp_path / name, pixels)
        np.testing.assert_allclose(read_grey(Location.of(tmp_path / name)), expected, atol=1e-12, err_msg=name)


def test_projected_patches(folder, tmp_path):
    report = ingest(folder, tmp_path / "x.zarr", patches=Patches(4, 800), project=15)
    x = rows(as_source(tmp_path / "x.zarr"))
    assert x.shape == (800, 15) and "keep 100.0 % of the variance" in str(report)


def test_errors(folder, tmp_path, capsys, monkeypatch):
    with pytest.raises(SettingError, match="side=0: needs a whole number, at least 1"):
        Patches(0)
    with pytest.raises(SettingError, match="number=0"):
        Patches(8, 0)
    with pytest.raises(DataError, match="bnp-dask ingest"):
        as_source(folder)
    with pytest.raises(DataError, match="no named columns"):
        ingest(folder, tmp_path / "x.zarr", columns=["a"])
    with pytest.raises(DataError, match=r"none of its images could be used; 0.png \(30x20 pixels are smaller"):
        ingest(folder, tmp_path / "x.zarr", patches=Patches(50))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="without images"):
        ingest(tmp_path / "empty", tmp_path / "x.zarr", format="images")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    assert main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr"), "--patch", "8"]) == 2
    assert "is no image or folder of images" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SettingError, match=r"bnp-dask\[sklearn\]"):
        ingest(folder, tmp_path / "x.zarr")
    assert not (tmp_path / "x.zarr").exists()
