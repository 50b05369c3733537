"""Trees and certainty on the command line and in pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.reports.plots import draw_tree, tree_section


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(mean, 1.0, (40, 2)) for mean in ((0, 0), (9, 0), (0, 9), (3, 0))])


@pytest.fixture(scope="module")
def result(x) -> bnp.TrainResult:
    init = bnp.Responsibilities(np.repeat(np.arange(4), 40))
    return bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, init=init, moves=(), rng=0)


def test_the_command_line_prints_saves_and_draws_a_tree(result, x, tmp_path, capsys):
    saved, cut, picture = (str(tmp_path / name) for name in ("model.zarr", "cut.zarr", "tree.png"))
    result.posterior.save(saved)
    assert main(["tree", saved, "--at", "2", "--out", cut, "--picture", picture]) == 0
    told = capsys.readouterr().out
    tree = bnp.tree(result.posterior)
    assert repr(tree) in told
    assert len([line for line in told.splitlines() if " + " in line]) == 3
    assert bnp.load(cut).n_clusters == 2
    assert (tmp_path / "tree.png").stat().st_size > 1000
    assert main(["tree", saved, "--loss", "1e6", "--out", cut]) == 0
    assert bnp.load(cut).n_clusters == 1


def test_the_command_line_says_what_a_saved_cut_needs(result, tmp_path, capsys):
    saved = str(tmp_path / "model.zarr")
    result.posterior.save(saved)
    assert main(["tree", saved, "--at", "2"]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["tree", saved, "--at", "9", "--out", str(tmp_path / "cut.zarr")]) == 2
    assert "at most 4" in capsys.readouterr().err
    assert main(["tree", saved, "--picture", str(tmp_path / "tree")]) == 2
    assert "ends with .png" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tree", saved, "--loss", "few", "--out", str(tmp_path / "cut.zarr")])
    assert "needs nats" in capsys.readouterr().err


def test_the_command_line_predicts_at_a_cut(result, x, tmp_path):
    saved, data, out = (str(tmp_path / name) for name in ("model.zarr", "x.npy", "labels.zarr"))
    result.posterior.save(saved)
    np.save(data, x)
    assert main(["predict", saved, data, out, "--at", "2", "--quiet"]) == 0
    import zarr

    labels = zarr.open_group(out, mode="r")["label"][:]
    assert np.array_equal(labels, bnp.predict(bnp.tree(result.posterior).cut(2), x))


def test_the_command_line_tells_how_sure_k_is(result, tmp_path, capsys):
    saved = str(tmp_path / "model.zarr")
    result.posterior.save(saved)
    assert main(["certainty", saved]) == 0
    assert capsys.readouterr().out == f"{bnp.certainty(result.posterior)!r}\n"
    assert main(["certainty", saved, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_clusters"] == 4
    assert main(["certainty", saved, "--starts", "2"]) == 2
    assert "needs the data" in capsys.readouterr().err


def test_a_tree_is_drawn_with_every_cluster_and_few_leaves_on_demand(result):
    axes = bnp.plot.tree(result)
    assert len(axes.get_yticklabels()) == 4
    assert sorted(int(label.get_text().split(":")[0]) for label in axes.get_yticklabels()) == sorted(
        result.posterior.ids.tolist()
    )
    assert len(axes.lines) == 4  # three unions, and the line at ten nats
    few = bnp.plot.tree(bnp.tree(result.posterior), limit=3)
    assert sum("and 1 more" in label.get_text() for label in few.get_yticklabels()) == 1
    one = draw_tree(bnp.tree(bnp.tree(result.posterior).cut(1)))
    assert len(one.get_yticklabels()) == 1


def test_pages_have_the_tree_of_a_posterior_that_has_one(result, tmp_path):
    section = tree_section(result.posterior)
    assert [part.heading for part in section] == ["Tree"]
    bnp.report(result, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Tree</h2>" in page and "Clusters united one after the other. Tree of 4 clusters" in page
    assert tree_section(result.posterior.light()) == []
    assert tree_section(bnp.tree(result.posterior).cut(1)) == []
