"""Pictures of clusters on a page: the features that tell them apart, atoms, and images of pixels."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.core.columns import Columns
from bnp_dask.errors import SettingError
from bnp_dask.reports import plots
from bnp_dask.reports.pages import Picture
from bnp_dask.reports.plots import image_shape, parts_of
from tests.results.cases import OBSERVATIONS, atoms, fitted

pytest.importorskip("matplotlib")


def test_features_that_tell_the_most_apart_come_first():
    """Feature 2 parts all three clusters, feature 0 parts one from the others, feature 1 none."""
    mean = np.array([[0.0, 0.0, -9.0], [0.0, 0.0, 0.0], [6.0, 0.0, 9.0]])
    distance = plots.of_normals(mean, np.ones((3, 3)))
    assert plots.telling_features(distance, np.full(3, 1 / 3), 2).tolist() == [2, 0]
    # what one feature says again is worth less than what it leaves open
    again = np.array([[0.0, 0.0, 0.0], [8.0, 8.0, 0.0], [8.0, 8.0, 3.0]])
    assert plots.telling_features(plots.of_normals(again, np.ones((3, 3))), np.full(3, 1 / 3), 2).tolist() == [
        0,
        2,
    ]
    assert plots.telling_features(plots.of_normals(mean[:1], np.ones((1, 3))), np.ones(1), 2).tolist() == [0, 1]


def test_distances_are_those_of_bhattacharyya():
    x = np.linspace(-30.0, 30.0, 200_001)
    normal = [np.exp(-0.5 * (x - m) ** 2 / v) / np.sqrt(2 * np.pi * v) for m, v in ((0.0, 1.0), (1.5, 4.0))]
    overlap = np.sum(np.sqrt(normal[0] * normal[1])) * (x[1] - x[0])
    found = plots.of_normals(np.array([[0.0], [1.5]]), np.array([[1.0], [4.0]]))
    assert found[0, 0, 1] == pytest.approx(-np.log(overlap), rel=1e-6)
    assert found[0, 0, 0] == 0.0
    from scipy.stats import poisson

    n = np.arange(200)
    counts = np.sum(np.sqrt(poisson.pmf(n, 2.0) * poisson.pmf(n, 7.0)))
    assert plots.of_values("rate", np.array([[2.0], [7.0]]))[0, 0, 1] == pytest.approx(-np.log(counts))
    bits = plots.of_values("probability", np.array([[0.2], [0.9]]))[0, 0, 1]
    assert bits == pytest.approx(-np.log(np.sqrt(0.2 * 0.9) + np.sqrt(0.8 * 0.1)))


def test_columns_of_a_product_are_found_where_they_lie():
    rng = np.random.default_rng(0)
    which = np.arange(300) % 2
    x = np.column_stack([rng.poisson(1 + 5 * which), 4.0 * which + rng.normal(size=300), which, rng.normal(size=300)])
    model = bnp.Product({"1,3": bnp.Gaussian(), "0": bnp.Poisson(), "2": bnp.Categorical()})
    posterior = bnp.train(bnp.Model(bnp.DPMixture(), model), x, init=bnp.BregmanKMeans(2), moves=[]).posterior
    parts = parts_of(posterior)
    assert parts.normals.columns.tolist() == [1, 3]
    assert [values.columns.tolist() for values in parts.values] == [[0]] and parts.values[0].kind == "rate"
    assert [(own.column, own.levels) for own in parts.levels] == [(2, ("0", "1"))]
    whole = np.asarray(posterior.to_xarray()["1,3.covariance"])
    np.testing.assert_allclose(parts.normals.covariance(0, 1), whole)
    np.testing.assert_allclose(parts.normals.covariance(1, 0)[:, 0, 0], whole[:, 1, 1])
    ax = bnp.plot.mixture(posterior, x, columns=(3, 1))
    assert ax.get_xlabel() == "feature 3" and ax.get_ylabel() == "feature 1"
    with pytest.raises(SettingError, match=r"columns=\(0, 1\)"):
        bnp.plot.mixture(posterior, columns=(0, 1))


@pytest.mark.first_case
@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_every_likelihood_has_its_picture(kind):
    posterior = fitted(kind)
    (section,) = plots.cluster_sections(posterior, None, 30)
    assert section.heading == "What tells clusters apart"
    figures = [part.figure for part in section.parts if isinstance(part, Picture)]
    assert len(figures) == (2 if kind == "product" else 1)
    for figure in figures:
        figure.canvas.draw()
    if kind in ("gaussian", "zero_mean", "diag", "fixed"):
        assert len(figures[0].axes) == 9
        assert sum(len(ax.lines) for ax in figures[0].axes) == 3 * 6  # densities of three features, ellipses of pairs


def test_ellipses_are_two_standard_deviations_of_the_cluster():
    posterior = fitted("gaussian")
    normals, shown = parts_of(posterior).normals, plots.Shown.of(posterior, None, 30)
    ax = plots.new_figure().add_subplot()
    plots.draw_pair(ax, shown, normals, (0, 2), plots.cluster_colors(posterior.ids, posterior.weights), None)
    k = int(shown.order[0])
    centred = np.array(ax.lines[0].get_xydata()) - normals.mean[k, [0, 2]]
    distance = np.einsum("ni,ij,nj->n", centred, np.linalg.inv(normals.covariance(0, 2)[k]), centred)
    np.testing.assert_allclose(distance, 4.0)


@pytest.mark.long
def test_a_page_draws_atoms_that_are_given_and_those_of_a_run(tmp_path):
    x = atoms("gaussian", n=300)
    np.save(tmp_path / "x.npy", x)
    run = tmp_path / "run"
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    result = bnp.train(model, str(tmp_path / "x.npy"), init=bnp.BregmanKMeans(3), moves=(), store=run, batch_size=100)
    bnp.report(result, tmp_path / "page.html")
    assert "Points" not in (tmp_path / "page.html").read_text()
    bnp.report(result, tmp_path / "page.html", data=x)
    given = (tmp_path / "page.html").read_text()
    assert "Points: 300 atoms, in the colour of their cluster" in given
    bnp.report(run, tmp_path / "page.html")
    assert "Points: 300 atoms" in (tmp_path / "page.html").read_text()
    (tmp_path / "x.npy").unlink()
    bnp.report(run, tmp_path / "page.html")
    assert "Points" not in (tmp_path / "page.html").read_text()


def test_of_many_atoms_some_of_all_batches_are_drawn():
    posterior = fitted("gaussian")
    x = np.tile(atoms("gaussian", n=60), (100, 1))
    found = plots.atoms_for(posterior, posterior, bnp.as_source(x, batch_size=500), None)
    assert len(found.x) == 12 * 167
    np.testing.assert_array_equal(found.label, bnp.predict(posterior, found.x))


def test_atoms_may_lack_entries():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(m, 1.0, (100, 3)) for m in (-5, 5)])
    x[rng.random(x.shape) < 0.2] = np.nan
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian(missing="marginalise"))
    posterior = bnp.train(model, x, init=bnp.BregmanKMeans(2), moves=()).posterior
    (section,) = plots.cluster_sections(posterior, None, 30, lambda: plots.atoms_for(posterior, posterior, x, None))
    section.parts[1].figure.canvas.draw()


def test_data_that_nothing_is_drawn_of_are_refused(tmp_path):
    with pytest.raises(SettingError, match="data= is for documents.*Bernoulli has none"):
        bnp.report(fitted("bernoulli"), tmp_path / "page.html", data=atoms("bernoulli"))


def test_names_of_features_are_on_the_axes():
    posterior = replace(fitted("gaussian"), columns=Columns.of(["a" * 60, "b", "c", "d"]))
    (section,) = plots.cluster_sections(posterior, posterior.feature_names, 30)
    labels = {ax.get_xlabel() for ax in section.parts[1].figure.axes} - {""}
    assert len(labels) == 3 and labels <= {"a" * 23 + "…", "b", "c", "d"}


# -- images -------------------------------------------------------------------------------------------------------
def bars(n: int, side: int, rng) -> np.ndarray:
    """Smooth blobs at three places of images with sides of ``side`` pixels, ``(n, side**2)``."""
    place = np.stack(np.meshgrid(*[np.linspace(0.0, 1.0, side)] * 2, indexing="ij"), axis=-1)
    at = np.array([[0.2, 0.2], [0.7, 0.3], [0.5, 0.8]])[np.arange(n) % 3]
    blobs = np.exp(-20.0 * np.sum((place[None] - at[:, None, None]) ** 2, axis=-1))
    return blobs.reshape(n, -1) + 0.05 * rng.normal(size=(n, side * side))


def learned(x: np.ndarray, observation=None) -> bnp.Posterior:
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian() if observation is None else observation)
    return bnp.train(model, x, init=bnp.BregmanKMeans(3), moves=[], rng=0).posterior


def test_images_are_shown_where_features_are_clearly_pixels(tmp_path):
    rng = np.random.default_rng(0)
    posterior = learned(bars(300, 8, rng))
    assert image_shape(posterior) == (8, 8)
    assert [section.heading for section in plots.cluster_sections(posterior, None, 30)] == ["Images"]
    named = replace(posterior, columns=Columns.of([f"f{i}" for i in range(64)]))
    assert image_shape(named) is None
    which = np.arange(300) % 3
    curves = np.sin(np.linspace(0.0, 9.0, 64) * (1 + which)[:, None])
    walks, noise = (make(rng.normal(size=(3, 64)))[which] for make in (lambda x: x.cumsum(axis=1), lambda x: 3.0 * x))
    for x in (curves, walks, noise, bars(300, 5, rng)):
        x = x + 0.1 * rng.normal(size=x.shape)
        assert image_shape(learned(x)) is None


def test_images_are_shown_where_they_are_asked_for_and_not_where_they_are_not(tmp_path):
    posterior = fitted("diag")
    for images, wanted in ((None, False), (True, True), ((4, 1), True), (False, False)):
        bnp.report(posterior, tmp_path / "page.html", images=images)
        headings = re.findall("<h2>(.*?)</h2>", (tmp_path / "page.html").read_text())
        assert ("Images" in headings) is wanted and ("What tells clusters apart" in headings) is not wanted
    with pytest.raises(SettingError, match="do not fill an image of 3 x 2"):
        bnp.report(posterior, tmp_path / "page.html", images=(3, 2))
    with pytest.raises(SettingError, match="images='8x8': needs rows and columns"):
        bnp.report(posterior, tmp_path / "page.html", images="8x8")


@pytest.mark.parametrize(("given", "wanted"), [("2x2", True), ("no", False)])
def test_images_are_asked_for_on_the_command_line(tmp_path, given, wanted):
    bnp.save(fitted("diag"), tmp_path / "saved")
    assert main(["report", str(tmp_path / "saved"), str(tmp_path / "page.html"), "--images", given]) == 0
    assert ("<h2>Images</h2>" in (tmp_path / "page.html").read_text()) is wanted


def test_images_of_no_shape_are_refused_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["report", "saved", "page.html", "--images", "8by8"])
    assert "needs rows and columns, such as 8x8, or no" in capsys.readouterr().err
