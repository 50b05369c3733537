"""The papers' figures: their list, the command, results as files and page, and the small version of all."""

import json
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import dirichlet_multinomial

pytest.importorskip("matplotlib")

from bnp_dask.cli import main
from bnp_dask.errors import DataError, SettingError
from bnp_dask.reproduce import EXPERIMENTS, Check, Result, Task, chosen, data, run, topics
from bnp_dask.reproduce.base import write_page
from bnp_dask.reproduce.measures import by_lap, sampler
from bnp_dask.reproduce.streams import true_score

WANTED = [
    *(
        f"000-{n}"
        for n in [
            "3.3",
            "3.4",
            "3.5",
            "4.5",
            "4.6",
            "4.7",
            "5.3",
            "5.6",
            "5.7",
            "5.8",
            "6.2",
            "6.3",
            "6.4",
            "6.5",
            "6.6",
            "7.1",
            "7.2",
            "7.3",
            "7.4",
            "7.5",
        ]
    ),
    *(["001-2", "001-3", "001-4", "002-birth", "004-1", "004-2", "004-T1", "004-S1", "004-S2"]),
]


def test_all_figures_are_there():
    assert sorted(EXPERIMENTS) == sorted(WANTED)
    for name, experiment in EXPERIMENTS.items():
        assert experiment.shows and experiment.source and experiment.function.__doc__, name


def test_names_papers_and_a_suggestion(tmp_path):
    assert [e.name for e in chosen(["004"])] == ["004-1", "004-2", "004-T1", "004-S1", "004-S2"]
    assert [e.name for e in chosen(["001-2", "001-2"])] == ["001-2"]
    assert len(chosen([])) == len(WANTED)
    with pytest.raises(SettingError, match=r"no figure '004T1'; did you mean '004-T1'\?"):
        chosen(["004T1"])
    with pytest.raises(SettingError, match="nothing of 003 is reproduced: lecture notes"):
        chosen(["003"])


@pytest.mark.parametrize(
    ("check", "holds", "tolerance"),
    [
        (Check("a", "8", 8.0, 8, 8), True, "8"),
        (Check("a", "8", 9.0, 8, 8), False, "8"),
        (Check("a", "> 0", 0.5, 0.0), True, "at least 0"),
        (Check("a", "< 0", 0.5, high=0.0), False, "at most 0"),
        (Check("a", "half", 0.5, 0.2, 0.8), True, "0.2 to 0.8"),
        (Check("a", "80", 86.0), True, "none"),
        (Check("a", "80", math.nan), False, "none"),
        (Check("a", "> 0", math.inf, 0.0), False, "at least 0"),
    ],
)
def test_a_check_holds_within_its_tolerance(check, holds, tolerance):
    assert check.holds is holds
    assert check.tolerance == tolerance


def test_run_list_and_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "001-2", "--quick", "--out", "kept", "--page", "page.md"]) == 0
    out = capsys.readouterr().out
    assert "001-2: 4 of 4 hold, quick" in out
    assert "assigned incorrectly (> 0)" in out
    kept = json.loads((tmp_path / "kept" / "001-2.json").read_text())
    assert [check["holds"] for check in kept["checks"]] == [True] * 4
    assert (kept["mode"], kept["seed"], kept["data_state"]) == ("quick", 0, "drawn as in the paper")
    assert (tmp_path / "kept" / "001-2.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "page.md").read_text()
    assert "![One word against two components" in page
    assert "](kept/001-2.png)" in page
    assert f"1 of {len(WANTED)} figures were run: 0 in full, 1 in the quick" in page

    assert main(["reproduce", "--list", "--out", "kept"]) == 0
    out = capsys.readouterr().out
    assert "4 of 4 hold, quick" in out
    assert out.count("not run") == len(WANTED) - 1
    assert "stand-in (kos not given)" in out
    (tmp_path / "real" / "kos").mkdir(parents=True)
    assert main(["reproduce", "004-T1", "--list", "--format", "json", "--data", "real"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["data"] == "present"
    assert "not at hand" in EXPERIMENTS["000-6.5"].data_state(tmp_path / "real")


def test_a_wrong_figure_or_folder_is_told_and_nothing_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "000-4.66"]) == 2
    assert "did you mean '000-4.6'?" in capsys.readouterr().err
    assert main(["reproduce", "000-4.6", "--data", "nowhere"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    with pytest.raises(DataError, match="holds no results"):
        write_page("page.md", tmp_path)
    (tmp_path / "001-2.json").write_text("[]")
    with pytest.raises(DataError, match=r"001-2.json holds no result"):
        Result.read(tmp_path / "001-2.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "001-2.json"]


def test_a_course_ends_with_the_final_posterior_and_a_sampler_with_its_last_sweep():
    watch, result = SimpleNamespace(posteriors=[10.0, 20.0, 30.0, 40.0, 50.0]), SimpleNamespace(posterior=51.0)
    assert by_lap(watch, result, lambda posterior: posterior, most=3) == ([1, 2, 5], [10.0, 20.0, 51.0])
    assert by_lap(SimpleNamespace(posteriors=[10.0]), result, lambda posterior: posterior) == ([1], [51.0])
    schedule = sampler(60, 30)
    assert [lap for lap in range(1, 61) if schedule._keeps(lap)] == [60]
    assert (schedule._burnt, schedule.states) == (0, 30)  # no burn-in: topics are not united as wholes


@pytest.mark.long
def test_empty_topics_is_what_the_thesis_says(tmp_path):
    result = run(EXPERIMENTS["000-5.3"], Task(quick=True), tmp_path)
    assert result.n_held == len(result.checks) == 2


def test_a_point_estimate_is_a_maximum_of_the_joint_probability():
    counts = np.array([[5.0, 2.0], [1.0, 4.0]])
    best = topics.point_estimate(counts, 2.0, 0.5)
    u = np.stack(np.meshgrid(*[np.linspace(0.02, 0.98, 25)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    values = []
    for a, b in u:
        pi = np.array([a, (1 - a) * b, (1 - a) * (1 - b)])
        likelihood = sum(
            dirichlet_multinomial.logpmf([*row.astype(int), 0], 0.5 * pi, int(row.sum()))
            - math.lgamma(row.sum() + 1) + sum(math.lgamma(n + 1) for n in row)
            for row in counts
        )  # fmt: skip
        values.append(likelihood + 2 * math.log(2.0) + math.log(1 - a) + math.log(1 - b))
    assert max(values) <= best < max(values) + 5e-2


def test_the_score_of_true_clusters_is_that_of_dirichlet_multinomials():
    rng = np.random.default_rng(0)
    x, held = rng.integers(0, 4, (5, 3)), rng.integers(0, 4, (2, 3))
    labels = np.array([0, 1, 0, 0, 1])
    alphas = [0.75 + x[labels == 0].sum(axis=0), 0.75 + x[labels == 1].sum(axis=0), np.full(3, 0.75)]
    weights = np.array([3 - 0.75, 2 - 0.75, 1 + 2 * 0.75]) / 6
    wanted = [
        sum(w * dirichlet_multinomial.pmf(row, a, row.sum()) for w, a in zip(weights, alphas, strict=True))
        for row in held
    ]
    assert true_score(x, labels, held) == pytest.approx(np.mean(np.log(wanted)), rel=1e-12)


def test_pitman_yor_seats_three_atoms_as_enumerated():
    rng = np.random.default_rng(0)
    n_clusters = np.array([data.pitman_yor(3, 0.75, 1.0, rng).max() + 1 for _ in range(4000)])
    # the second atom is alone with 1.75 / 2; the third with 1.75 / 3 or 2.5 / 3
    one, three = 0.125 * (1.25 / 3), 0.875 * (2.5 / 3)
    assert np.mean(n_clusters == 1) == pytest.approx(one, abs=0.015)
    assert np.mean(n_clusters == 3) == pytest.approx(three, abs=0.03)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_small_version_of_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    assert main(["reproduce", "--quick", "--out", "kept", "--quiet"]) == 0
    assert time.process_time() - began < 600.0  # ten minutes on one of two cores
    results = [Result.read(tmp_path / "kept" / f"{name}.json") for name in WANTED]
    for name in WANTED:
        assert 0 < (tmp_path / "kept" / f"{name}.png").stat().st_size < 100_000
    held, checks = sum(r.n_held for r in results), sum(len(r.checks) for r in results)
    assert held > 0.75 * checks
    assert all(math.isfinite(check.found) for r in results for check in r.checks)
