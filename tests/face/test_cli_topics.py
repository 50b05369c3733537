"""Topic models on the command line, from raw text to numbers and pages."""

import json
import re

import numpy as np
import pytest
import yaml
import zarr

pytest.importorskip("sklearn")

from bnp_dask.cli import main

FRUIT, METAL = "apple pear plum cherry", "iron steel brass copper"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Raw texts, a store of them, another for scoring, and a run."""
    where = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    for name, n in (("train", 60), ("new", 12)):
        lines = [" ".join(rng.choice((FRUIT, METAL)[i % 2].split(), 12)) for i in range(n)]
        rows = [json.dumps({"id": f"{name}{i}", "text": text}) for i, text in enumerate(lines)]
        (where / f"{name}.jsonl").write_text("\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        assert main(["ingest", "train.jsonl", "train.zarr", "--min-df", "1", "--quiet"]) == 0
        assert main(["ingest", "new.jsonl", "new.zarr", "--vocabulary", "train.zarr", "--quiet"]) == 0
        job = {
            "model": {"allocation": "HDPTopics", "observation": "Multinomial"},
            "data": "train.zarr",
            "init": {"type": "RandomExamples", "n_clusters": 4},
            "moves": [],
            "schedule": {"type": "Memoized", "laps": 5},
            "store": "run",
        }
        (where / "run.yaml").write_text(yaml.safe_dump(job))
    return where


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_train_score_predict_report(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["train", "run.yaml", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"4 topics\ntopic +share +tokens +words", out)
    assert re.search(r"(apple|pear|plum|cherry|iron|steel|brass|copper)", out)
    assert main(["score", "run", "new.zarr"]) == 0
    types = capsys.readouterr().out
    assert "nats per held-out token" in types
    assert "12 documents (0 skipped)" in types
    assert main(["score", "run", "new.zarr", "--split", "tokens", "--held-out", "0.25", "--seed", "3", "--quiet"]) == 0
    tokens = capsys.readouterr().out.strip()
    assert re.fullmatch(r"-\d+\.\d+ nats per held-out token", tokens)
    assert tokens not in types
    assert main(["predict", "run", "new.zarr", "topics.zarr", "--soft"]) == 0
    shares = zarr.open_group("topics.zarr")["resp"][:]
    assert shares.shape == (12, 5)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert main(["report", "run", "page.html", "--quiet"]) == 0
    assert '"id":"train' in (folder / "page.html").read_text()
    assert main(["report", "run", "page.html", "--data", "new.zarr"]) == 0
    assert '"id":"new' in (folder / "page.html").read_text()
    assert main(["inspect", "run"]) == 0


def test_wrong_settings(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["score", "run", "new.zarr", "--held-out", "2"]) == 2
    assert "above 0 and below 1" in capsys.readouterr().err
