"""The page of peers: README's table is cut from it, and losses are on it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import coming_from, peers

ROOT = Path(__file__).resolve().parents[1]


def lines(task: str, **found: tuple[float, float]) -> list[peers.Line]:
    facts = {"task": task, "memory": 100, "found": 3}
    return [facts | {"program": name.replace("_", "-"), "cpu": cpu, "quality": q} for name, (cpu, q) in found.items()]


def test_readme_has_the_table_that_is_cut_from_the_page():
    """Once there is a page; README has a place for the table exactly then."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert bool(peers.PLACE.search(readme)) == peers.PAGE.exists()
    if peers.PAGE.exists():
        assert peers.readme_with(peers.PAGE.read_text(encoding="utf-8"), readme) == readme


def test_the_cut_replaces_what_stands_between_the_comments():
    text = peers.page_of(lines("topics", bnp_dask=(10.0, -6.0), lda=(1.0, -7.0)), quick=True, load=1.0)
    readme = peers.readme_with(text, "a\n<!-- peers -->\nold\n<!-- end of peers -->\nb\n")
    assert "old" not in readme and readme.startswith("a\n<!-- peers -->\n| CPU s, quality |")
    assert "| 10.0, -6.000 | lda 1.0, -7.000 | lda 1.0, -7.000 |\n<!-- end of peers -->\nb\n" in readme


def test_losses_are_told():
    own = lines("points", bnp_dask=(10.0, 0.9), faiss_cpu=(1.0, 0.895), river=(20.0, 0.95), scikit_learn=(1.0, 0.5))
    told = peers.verdict("points", own)
    assert "faster: faiss-cpu." in told
    assert "more than 0.01: river." in told
    text = peers.page_of(own, quick=True, load=1.0)
    assert told in text
    assert peers.cut(text).splitlines()[2].endswith("| 10.0, 0.900 | river 20.0, 0.950 | faiss-cpu 1.0, 0.895 |")


def test_a_program_that_fails_is_on_the_page():
    failed = {"task": "points", "program": "river", "failed": "ValueError: no"}
    assert "* points, river: `ValueError: no`" in peers.page_of([failed], quick=True, load=1.0)


def test_a_run_of_all_tasks_writes_the_page_and_one_of_some_does_not(tmp_path, monkeypatch):
    page = tmp_path / "docs" / "peers.md"
    page.parent.mkdir()
    (tmp_path / "README.md").write_text("<!-- peers -->\n<!-- end of peers -->\n")
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    monkeypatch.setattr(peers, "PAGE", page)
    found = lines("topics", bnp_dask=(10.0, -6.0), lda=(1.0, -7.0))
    monkeypatch.setattr(peers, "measure", lambda tasks, quick: found)
    peers.main(["--quick", "--tasks", "topics"])
    assert not page.exists()
    written = []
    monkeypatch.setattr("benchmarks.coming_from.write_all", lambda: written.append(page.read_text()))
    peers.main(["--quick"])
    assert "| lda | 1.0 |" in page.read_text() and not written
    assert "| lda 1.0, -7.000 |" in (tmp_path / "README.md").read_text()
    peers.main([])
    assert written == [page.read_text()] and "--quick" not in written[0], "pages of other programs: the same day"


def test_each_set_has_a_row_for_each_program_and_losses_are_told():
    columns = peers.SETS["recordings"]
    rows = {"drift": (-6.0, 0.1, 6.0, 2.0), "bee": (-2.0, np.nan, 22.0, 8.0)}
    sets = {name: dict(zip(columns, row, strict=True)) for name, row in rows.items()}
    worse = {name: {column: value - 1.0 for column, value in row.items()} for name, row in sets.items()}
    own = [
        {"task": "recordings", "program": name, "cpu": 1.0, "memory": 1, "sets": found}
        for name, found in (("bnp-dask", sets), ("hmmlearn", worse))
    ]
    page = peers.page_of(own, quick=True, load=1.0)
    assert "| drift | bnp-dask | -6.000 | 0.100 | 6 | 2 |" in page
    assert "| bee | hmmlearn | -3.000 |  | 21 | 7 |" in page
    assert "held-out nats a step: best on 2 of 2. steps under another label: best on 0 of 1; not drift." in page


def test_agreement_is_that_of_scikit_learn(tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    truth, found = np.random.default_rng(0).integers(4, size=(2, 200))
    found = np.where(np.arange(200) < 120, truth, found)
    np.save(tmp_path / "points_truth.npy", truth)
    assert peers.agreement(tmp_path, "points", found)["quality"] == round(metrics.adjusted_rand_score(truth, found), 3)


def test_a_new_table_leaves_what_a_person_wrote_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr(coming_from, "FOLDER", tmp_path)
    page = tmp_path / "spark.md"
    page.write_text(f"<!-- measured -->\n\n| old |\n\nMeasured. {coming_from.HOW}\nIts one start.\n\n## More\n")
    coming_from.write("spark", f"| new |\n\nMeasured again. {coming_from.HOW}")
    assert page.read_text() == (
        f"<!-- measured -->\n\n| new |\n\nMeasured again. {coming_from.HOW}\nIts one start.\n\n## More\n"
    )


def test_sets_that_no_other_program_has_or_scored_are_not_counted():
    columns = peers.SETS["documents"]
    ours = {name: dict(zip(columns, (1.0, 0.1), strict=True)) for name in ("both", "ours", "not scored")}
    theirs = {name: dict(zip(columns, (2.0, 0.2), strict=True)) for name in ("both", "not scored")}
    theirs["not scored"][columns[0]] = np.nan
    own = [
        {"task": "documents", "program": name, "cpu": 1.0, "memory": 1, "sets": found}
        for name, found in (("bnp-dask", ours), ("scikit-learn", theirs))
    ]
    assert "a document: best on 1 of 1. distance from the end: best on 2 of 2." in peers.lost("documents", own)


def test_a_program_that_takes_too_long_leaves_the_other_pages(tmp_path, monkeypatch):
    for name in ("fast", "slow"):
        (tmp_path / f"{name}.md").write_text("<!-- measured -->\n## More\n")
    monkeypatch.setattr(coming_from, "FOLDER", tmp_path)

    def measure(page, python):
        if page == "slow":
            raise subprocess.TimeoutExpired("python", 1200)
        return f"| new |\n\nMeasured. {coming_from.HOW}"

    monkeypatch.setattr(coming_from, "measure", measure)
    coming_from.write_all()
    assert "| new |" in (tmp_path / "fast.md").read_text()
    assert "timed out" in (tmp_path / "slow.md").read_text().split("\n\n## More")[0]
    (tmp_path / "none.md").write_text("nothing\n")
    with pytest.raises(SystemExit, match="none.md has no place"):
        coming_from.write("none", "| new |")
