"""``bnp_dask.plot``: pictures under short names."""

import io

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError

pytest.importorskip("matplotlib")


def drawn(ax):
    file = io.BytesIO()
    ax.figure.savefig(file, format="png")
    return len(file.getvalue()) > 2000


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) * 0.5 + rng.choice([-4.0, 4.0], 200)[:, None]
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    return x, bnp.train(model, x, init=bnp.BregmanKMeans(2), moves=())


def test_every_plot_draws_and_returns_its_axes(result):
    x, found = result
    labels = bnp.predict(found.posterior, x)
    for ax in (
        bnp.plot.history(found),
        bnp.plot.history(found.history, "n_clusters"),
        bnp.plot.clusters(found),
        bnp.plot.mixture(found, x, columns=(0, 2)),
        bnp.plot.segmentation(labels, np.array([0, 100, 200])),
    ):
        assert drawn(ax)
    ax = bnp.plot.mixture(found.posterior)
    assert len(ax.lines) == found.posterior.n_clusters


def test_topics_show_their_foremost_words(result):
    counts = np.repeat([[9.0, 5.0, 0.0, 0.0], [0.0, 0.0, 5.0, 9.0]], 20, axis=0)
    source = bnp.as_source(sparse.csr_array(counts), columns=bnp.Columns.of(["cat", "dog", "tax", "vote"]))
    model = bnp.Model(bnp.LDA(0.5), bnp.Multinomial())
    ax = bnp.plot.topics(bnp.train(model, source, init=bnp.RandomExamples(2)), n_words=2)
    assert {text.get_text() for text in ax.texts} >= {"cat", "vote"}
    assert drawn(ax)
    with pytest.raises(bnp.BnpDaskError, match="no words"):
        bnp.plot.topics(result[1])


def test_a_notebook_shows_a_plot_once(result):
    from IPython.core.formatters import DisplayFormatter
    from matplotlib.figure import Figure

    shown = DisplayFormatter().format
    for ax in (bnp.plot.history(result[1]), bnp.plot.clusters(result[1]), bnp.plot.mixture(result[1])):
        assert shown(ax)[0]["image/png"].startswith(b"\x89PNG")
    # the figure of the caller is shown by whoever made it
    ax = bnp.plot.history(result[1], ax=Figure().add_subplot())
    assert "image/png" not in shown(ax)[0]


def test_plot_lists_its_functions_only():
    assert dir(bnp.plot) == sorted(bnp.plot.__all__)
    assert all(callable(getattr(bnp.plot, name)) for name in dir(bnp.plot))


def test_numbers_of_drawn_things_are_whole_and_positive(result):
    found, steps = result[1], [0, 1, 1]
    for limit in (0, -1, 1.5, np.nan, "x"):
        for draw, what in ((bnp.plot.mixture, found), (bnp.plot.clusters, found), (bnp.plot.segmentation, steps)):
            with pytest.raises(SettingError, match="limit="):
                draw(what, limit=limit)


def test_what_cannot_be_drawn_is_refused_with_advice(result):
    x, found = result
    for rows in (5, "nowhere.zarr", sparse.csr_array(x), x[:, 0]):
        with pytest.raises(DataError, match=r"x has shape .*needs an array with an atom in each row"):
            bnp.plot.mixture(found, rows)
    for columns in (0, (0,), (0, 9), (0, 0.5), (0, 1, 2)):
        with pytest.raises(SettingError, match=r"columns=.*needs two of \[0, 1, 2, 3\]"):
            bnp.plot.mixture(found, columns=columns)
    for shape in (5, (2,), (-2, -2), ("a", "b"), (2.0, np.nan)):
        with pytest.raises(SettingError, match="shape"):
            bnp.plot.clusters(found, shape=shape)
    for what in (None, 5, x, {}):
        with pytest.raises(SettingError, match="needs the result of bnp_dask.train"):
            bnp.plot.history(what)


def test_segmentation_takes_labels_that_are_there_and_data_of_their_steps():
    for labels in (np.array(["a", "b", "b"], dtype=object), np.array([0, 1, 1], dtype=object)):
        assert drawn(bnp.plot.segmentation(labels, truth=labels, x=[1.0, 2.0, 3.0]))
    for lacking in ([0.0, np.nan, 1.0], np.array(["a", None, "b"], dtype=object)):
        for labels, truth in ((lacking, None), ([0, 1, 1], lacking)):
            with pytest.raises(DataError, match="1 of 3 are missing"):
                bnp.plot.segmentation(labels, truth=truth)
    for x in (np.ones((2, 2)), np.ones((3, 2, 2)), [np.ones((2, 2)), np.ones((1, 2))], 5, np.ones((3, 2)) + 1j):
        with pytest.raises(DataError, match="x |labels: a int|offsets|sequences"):
            bnp.plot.segmentation([0, 1, 1], x=x)
    with pytest.raises(DataError, match="2 names for 1"):
        bnp.plot.segmentation([0, 1, 1], names=["a", "b"])
