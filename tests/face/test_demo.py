"""The demonstrations, small; and that they overwrite nothing but what they made."""

import re
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("PIL")
pytest.importorskip("matplotlib")

import bnp_dask as bnp
from bnp_dask.cli import demo, main
from bnp_dask.cli.demo import MARK, all_patches, edge_direction, label_image, load_photographs, own_folder, run_demo
from bnp_dask.errors import SettingError, StoreError

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

PNG = b"\x89PNG"


def run_next(capsys, out):
    """Run the commands that a demonstration prints at its end, as they are."""
    commands = [line.split() for line in out.partition("\nnext:\n")[2].splitlines()]
    assert len(commands) == 3 and all(command[0] == "bnp-dask" for command in commands)
    for command in commands:
        assert main(command[1:]) == 0, command
    capsys.readouterr()


def test_a_demonstration_keeps_the_results_of_others(tmp_path):
    kept = own_folder(tmp_path / "demo", "topics") / "docstrings.zarr"
    kept.mkdir()
    (own_folder(tmp_path / "demo", "digits") / "digits.npy").touch()
    assert kept.is_dir()
    assert list(own_folder(tmp_path / "demo", "digits").iterdir()) == [tmp_path / "demo" / "digits" / MARK]
    assert kept.is_dir()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_patches_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    crops = [photograph[150:250, 200:330] for photograph in load_photographs()]
    monkeypatch.setattr(demo, "load_photographs", lambda: crops)
    first_out = ""
    for laps in ("2", "1"):
        assert main(["demo", "--patches", "800", "--laps", laps, "--workers", "1"]) == 0
        out = capsys.readouterr().out
        first_out = first_out or out
        assert "dashboard: http://127.0.0.1:" in out
        assert "cluster" in out
        assert "picture: bnp-dask-demo/patches/patches.png" in out
    assert (tmp_path / "bnp-dask-demo" / "patches" / "patches.png").read_bytes().startswith(PNG)
    assert bnp.as_source("bnp-dask-demo/patches/patches.zarr").n_atoms == 800
    assert bnp.load("bnp-dask-demo/patches/run/posterior.zarr").summary["N"].sum() == pytest.approx(800)
    run_next(capsys, out)
    assert (tmp_path / "bnp-dask-demo" / ".gitignore").read_text() == "*\n"
    assert "not converged yet: the last pass" in first_out


@pytest.mark.long
def test_digits(tmp_path, capsys):
    assert main(["demo", "digits", "--laps", "2", "--workers", "1", "--dir", str(tmp_path / "d"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "never shown to the model" in out
    assert "dashboard" not in out
    assert (tmp_path / "d" / "digits" / "digits.png").read_bytes().startswith(PNG)


def test_other_directories_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="nothing in it was touched"):
        own_folder(tmp_path, "digits")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(StoreError, match="is a file"):
        own_folder(tmp_path / "thesis.txt", "digits")


def test_a_link_in_the_own_directory_is_removed_and_not_followed(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "keep.txt").touch()
    own = own_folder(tmp_path / "own", "digits")
    (own / "link").symlink_to(tmp_path / "other")
    own_folder(tmp_path / "own", "digits")
    assert [p.name for p in own.iterdir()] == [MARK]
    assert (tmp_path / "other" / "keep.txt").exists()


def test_wrong_words(tmp_path):
    with pytest.raises(SettingError, match="there are patches, digits"):
        run_demo("faces", tmp_path / "x")
    with pytest.raises(SettingError, match="cuts no patches"):
        run_demo("digits", tmp_path / "x", patches=3)
    assert not (tmp_path / "x").exists()


def test_without_scikit_learn_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SettingError, match=r"bnp-dask\[all\]"):
        run_demo("patches", tmp_path / "x")


def test_patches_are_pieces_less_their_mean():
    photograph = np.arange(100.0).reshape(10, 10) ** 2
    every = all_patches(photograph)
    assert every.shape == (9, 64)
    piece = photograph[1:9, 2:10]
    np.testing.assert_allclose(every[1 * 3 + 2], (piece - piece.mean()).ravel())


def test_photographs_are_grey_and_between_black_and_white():
    for photograph in load_photographs():
        assert photograph.shape == (427, 640)
        assert 0.0 <= photograph.min() < 0.1 < 0.8 < photograph.max() <= 1.0


@pytest.mark.parametrize(("angle", "wave"), [(0, (0, 1)), (90, (1, 0)), (45, (1, 1)), (135, (1, -1))])
def test_direction_of_edges(angle, wave):
    """Stripes that run at a known angle: 45 degrees is from bottom left to top right."""
    rows, columns = np.mgrid[0:8, 0:8]
    phases = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    stripes = np.array([np.cos(wave[0] * columns + wave[1] * rows + p).ravel() for p in phases])
    found, coherence = edge_direction(stripes.T @ stripes)
    assert abs((found - angle + 90) % 180 - 90) < 1
    assert coherence > 0.95


def test_label_image_gives_positions_of_clusters():
    photograph = np.zeros((20, 30))
    photograph[:, 15:] = np.random.default_rng(0).random((20, 15))
    x = all_patches(photograph)
    busy = (x.std(axis=1) > 0.05).astype(int)
    result = bnp.train(
        bnp.Model(bnp.FiniteMixture(), bnp.ZeroMeanGaussian()),
        x,
        init=bnp.Responsibilities(busy),
        schedule=bnp.FullBatch(laps=3),
    )
    image = label_image(result.posterior, photograph)
    assert image.shape == (13, 23)
    assert (image[:, :5] == 0).all()
    assert (image[:, 16:] == 1).all()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_topics(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "topics", "--limit", "600", "--laps", "2", "--workers", "1", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "nats per token" in out
    assert "page to browse: bnp-dask-demo/topics/topics.html" in out
    found, plain = (float(v) for v in re.findall(r"-\d+\.\d+", out))
    assert found > plain, "topics predict words better than frequencies"
    page = (tmp_path / "bnp-dask-demo" / "topics" / "topics.html").read_text(encoding="utf-8")
    assert "package: " in page
    posterior = bnp.load("bnp-dask-demo/topics/run/posterior.zarr")
    run_next(capsys, out)
    assert len(bnp.predict(posterior, ["open a socket and connect to the server"], top=1).label) == 1
    with pytest.raises(SettingError, match="reads no docstrings"):
        run_demo("digits", limit=10)
