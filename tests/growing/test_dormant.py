"""Clusters that fade are laid away under their ids, and return under them."""

from __future__ import annotations

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import SettingError
from bnp_dask.inference.variational import growing
from bnp_dask.inference.variational.arrivals import Round
from bnp_dask.store import RunStore
from tests.growing.parts import MODELS, begin, bits_of, day_of, gap, grow
from tests.growing.test_new_clusters import FAR, rows
from tests.growing.test_update import COMMITTED, dying
from tests.moves.parts import blobs, prepare, start_random

DAYS = [[0, 1], [0, 2], [0, 2], [0, 2], [0, 1], [0, 2]]
"""Cluster 1 dies after the first day and returns on the fifth; cluster 2 is born on the second."""

FADING = {"half_life": "1d", "dormant": 30, "batch_size": 50}


def date(number):
    return f"2026-11-{number + 1:02d}"


def streamed(store, days=DAYS, kill=None, monkeypatch=None, **more):
    """Results of updates, a day each."""
    begin(store, rows(0, days[0]), model=bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), batch_size=50, laps=10)
    out = []
    for number, clusters in enumerate(days[1:], 1):
        facts = {**FADING, "time": date(number), "revisit": 0, **more}
        if kill is not None:
            (owner, name), when = kill
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(owner, name, dying(getattr(owner, name), when))
                grow(store, rows(number, clusters), **facts)
        out.append(grow(store, rows(number, clusters), **facts))
    return out


def near(posterior, cluster):
    """Ids of clusters whose mean is that of a true one."""
    far = np.abs(posterior.observation.m - FAR[cluster]).max(axis=1)
    return posterior.ids[far < 3].tolist()


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """A run in which a cluster dies and returns, its results, and the ids of the true clusters in the beginning."""
    folder = tmp_path_factory.mktemp("stream") / "run"
    out = streamed(folder)
    return folder, out


def test_a_cluster_that_returns_has_its_old_id(stream):
    folder, out = stream
    first = bnp.load(f"{folder}@0")
    (old,) = near(first, 1)
    kinds = [[(change.kind, change.cluster) for change in found.changes if change.cluster == old] for found in out]
    left = next(i for i, some in enumerate(kinds) if ("dormant", old) in some)
    assert 0 < left < 3 and near(out[left].posterior, 1) == []
    assert ("returned", old) in kinds[3] and near(out[3].posterior, 1) == [old]
    assert [found.posterior.n_clusters for found in out[left:]] == [2] * (3 - left) + [3, 3]
    assert near(out[-1].posterior, 0) == near(first, 0)
    assert ("returned", old) in [(change.kind, change.cluster) for change in bnp.changes(folder, since=3)]


def test_a_cluster_that_faded_is_laid_away_where_that_is_said(tmp_path):
    ends = {}
    for dormant in (None, 30):
        store = tmp_path / str(dormant)
        begin(store, rows(0, [0, 1])[:100], model=bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), batch_size=50)
        facts = {"half_life": "1 batches", "batch_size": 50, "revisit": 0, "dormant": dormant}
        found = grow(store, rows(1, [0]), **facts)
        ends[dormant] = [row["action"] for row in found.history], bnp.load(store).n_clusters
    assert "dormant" not in ends[None][0] and ends[None][1] == 2
    assert "dormant" in ends[30][0] and ends[30][1] == 1


def test_leaving_has_a_row_with_what_the_objective_changed(stream):
    folder, out = stream
    for found in out:
        for before, row in zip(found.history, found.history[1:], strict=False):
            if row["action"] == "dormant":
                assert row["elbo"] == pytest.approx(before["elbo"] + row["gain"], rel=1e-12)
                assert row["n_clusters"] == before["n_clusters"] - len(row["moves"])
                assert row["n_batches"] == 0
    assert gap(folder) < 1e-12


def test_a_killed_stream_has_the_same_bits(stream, tmp_path, monkeypatch):
    folder, _ = stream
    streamed(tmp_path / "killed", kill=(COMMITTED, "before"), monkeypatch=monkeypatch)
    assert bits_of(tmp_path / "killed") == bits_of(folder)


def test_a_new_cluster_elsewhere_is_no_old_one(stream, tmp_path):
    _, out = stream
    found = streamed(tmp_path / "run", [*DAYS[:4], [0, 3]])
    assert not any(change.kind == "returned" for result in found for change in result.changes)
    assert near(found[-1].posterior, 3)[0] > max(near(out[-2].posterior, 1))


def test_of_data_that_were_retired_no_dormant_cluster_tells(tmp_path):
    streamed(tmp_path / "run", DAYS[:4])
    assert RunStore.view(tmp_path / "run").load().state["dormant"]
    bnp.retire(tmp_path / "run", batches=[0])
    assert not RunStore.view(tmp_path / "run").load().state["dormant"]


def test_topics_and_states_are_not_laid_away(tmp_path):
    begin(tmp_path / "run", day_of("topics", 0), model=MODELS["topics"])
    with pytest.raises(SettingError, match="dormant=5: clusters of mixtures are laid away, not clusters of HDPTopics"):
        grow(tmp_path / "run", day_of("topics", 1), dormant=5)
    with pytest.raises(SettingError, match="dormant=-1: needs a positive"):
        grow(tmp_path / "run", day_of("topics", 1), dormant=-1)


def test_the_command_line_lays_away(tmp_path, capsys):
    begin(
        tmp_path / "run", rows(0, [0, 1]), model=bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), batch_size=50, laps=10
    )
    np.save(tmp_path / "2026-11-01.npy", rows(1, [0]))
    np.save(tmp_path / "2026-11-09.npy", rows(2, [0]))
    for name in ("2026-11-01", "2026-11-09"):
        facts = ["--half-life", "1d", "--dormant", "30", "--batch-size", "50", "--quiet"]
        assert main(["update", str(tmp_path / "run"), str(tmp_path / f"{name}.npy"), *facts]) == 0
    assert main(["changes", str(tmp_path / "run")]) == 0
    assert "dormant" in capsys.readouterr().out


def test_atoms_that_left_come_back_when_their_batch_is_visited(tmp_path):
    days = DAYS[:5]
    paths = [tmp_path / f"{date(number)}.npy" for number in range(5)]
    for number, path in enumerate(paths):
        np.save(path, rows(number, days[number]))
    begin(tmp_path / "run", paths[0], model=bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), batch_size=50, laps=10)
    actions = []
    for path in paths[1:]:
        found = grow(tmp_path / "run", path, **FADING, revisit=1)
        actions += [row["action"] for row in found.history]
        assert gap(tmp_path / "run") < 1e-12
    assert "dormant" in actions and "regained" in actions and "kept" not in actions
    weights = 200 * 0.5 ** np.arange(5)
    np.save(tmp_path / "2026-11-05b.npy", rows(9, [0]))
    found = grow(tmp_path / "run", tmp_path / "2026-11-05b.npy", half_life="1d", batch_size=50, laps=1)
    assert found.posterior.summary["N"].sum() == pytest.approx(weights.sum() + 200, rel=1e-9)
    assert gap(tmp_path / "run") < 1e-12


def test_of_too_many_clusters_the_first_to_leave_are_given_up(monkeypatch):
    monkeypatch.setattr(growing, "MOST", 2)
    work = prepare(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), blobs(200))
    state = start_random(work, 4)
    for _ in bnp.FullBatch(1).run(work, state):
        pass
    value = state.total.value()
    order = np.argsort(value["N"], kind="stable")
    least = value.ids[order[0]]
    state.memory.dormant = {i: value.take([least]) for i in (11, 12)}
    assert growing.lay_away(state, Round.begin(len(state.visits), state.step), value["N"][order[1]]) is not None
    assert list(state.memory.dormant) == [12, least]
