"""``bnp_dask.plot``: pictures under short names."""

import io

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp

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
