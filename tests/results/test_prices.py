"""Prices of clusters, and their lineage."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.analysis import prices as priced
from bnp_dask.cli import main
from bnp_dask.errors import SettingError
from bnp_dask.execute import SerialExecutor
from tests.topics.bars import bars_corpus

BATCH = 150


def clear(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(mean, 1.0, (n, 2)) for mean in ((0, 0), (9, 0), (0, 9))])


def trained(model: bnp.Model, x, k: int, laps: int = 8, **settings) -> bnp.TrainResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"init": bnp.RandomExamples(k), "schedule": bnp.Memoized(laps=laps), "moves": (), **settings}
        settings |= {} if isinstance(x, bnp.Source) else {"batch_size": BATCH}
        return bnp.train(model, x, rng=0, **settings)


def restricted(posterior: bnp.Posterior, x: np.ndarray, target: int, near: int, sweeps: int) -> float:
    """Nats lost without a cluster, from scratch: atoms with a share of it are assigned to the others, and all else
    stays or goes to the nearest; the others are re-estimated from that and asked again."""
    model, others = posterior.model, posterior.ids[posterior.ids != target]
    batch = bnp.Batch(x)
    resp = model.assign(posterior, batch).resp
    whole = model.local_step(posterior, batch)
    column = int(posterior.positions(np.array(target)))
    lost, summary = np.inf, posterior.summary.without_pairs().take(others)
    for _ in range(sweeps):
        beliefs = model.global_step(summary)
        with_others = model.assign(beliefs, batch).resp
        new = np.where((resp[:, column] > 1e-3)[:, None], with_others, np.delete(resp, column, axis=1))
        kept = resp[:, column] <= 1e-3
        new[kept, list(others).index(near)] += resp[kept, column]
        summary = model.summarize(others, batch, new)
        summary.values["H"][...] = -(new * np.log(np.maximum(new, 1e-300))).sum(axis=0)
        lost = min(lost, model.best_objective(whole) - model.best_objective(summary))
    return lost


def test_a_price_is_the_difference_of_two_objectives_computed_from_scratch():
    x = clear()
    posterior = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 4).posterior
    whole = posterior.model.local_step(posterior, bnp.Batch(x))
    resp = posterior.model.assign(posterior, bnp.Batch(x)).resp
    for price in bnp.prices(posterior, x, batch_size=BATCH):
        a, b = posterior.positions(np.array([price.id, price.nearest]))
        both = np.delete(resp, b, axis=1)
        both[:, a - (b < a)] += resp[:, b]
        ids = np.delete(posterior.ids, b)
        summary = posterior.model.summarize(ids, bnp.Batch(x), both)
        summary.values["H"][...] = -(both * np.log(np.maximum(both, 1e-300))).sum(axis=0)
        lost = posterior.model.best_objective(whole) - posterior.model.best_objective(summary)
        assert price.united == pytest.approx(lost, rel=1e-8, abs=1e-6)
        assert price.without == pytest.approx(restricted(posterior, x, price.id, price.nearest, 2), rel=1e-8, abs=1e-6)


def test_true_clusters_are_dear_and_halves_of_one_are_cheap():
    x = clear()
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    assert min(p.without for p in bnp.prices(trained(model, x, 3, moves=None).posterior, x)) > 100
    found = bnp.prices(trained(model, x, 6).posterior, x)
    assert min(p.united for p in found) < 0


def test_prices_are_those_of_any_cut_into_batches_and_of_few_trials_at_a_time(monkeypatch):
    x = clear()
    posterior = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 5).posterior
    whole = bnp.prices(posterior, x)
    monkeypatch.setattr(priced, "NUMBERS", 1)
    for price, other in zip(bnp.prices(posterior, x, batch_size=77), whole, strict=True):
        assert (price.id, price.nearest) == (other.id, other.nearest)
        assert price.without == pytest.approx(other.without, rel=1e-8, abs=1e-6)
        assert price.united == pytest.approx(other.united, rel=1e-8, abs=1e-6)


def test_topics_have_prices():
    x, _ = bars_corpus(200, 100, 0)
    found = bnp.prices(
        trained(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), x, 5).posterior, x, client=SerialExecutor()
    )
    assert len(found) == 5
    assert all(np.isfinite(p.without) and np.isfinite(p.united) and p.nearest != p.id for p in found)
    # a part of them is a table of topics too
    assert found[:2].table.head[0] == "topic" and found[:2].lines == found.lines[:2]


def test_an_empty_topic_costs_what_its_delete_would_gain():
    x, _ = bars_corpus(200, 100, 0)
    model, start = bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), {"init": bnp.SampledTopics(14)}
    posterior = trained(model, x, 14, laps=5, **start).posterior
    (empty,) = posterior.ids[posterior.summary["N"] < 1e-3]
    alike = {"receivers": 1, "sweeps": 1, "client": SerialExecutor()}
    price = next(p for p in bnp.prices(posterior, x, **alike) if p.id == empty)
    # the run from the same start that may delete in its sixth lap
    moves = trained(model, x, 14, laps=6, moves=[bnp.Delete(start=5)], **start).history.moves()
    (gain,) = [m["gain"] for m in moves if m["kind"] == "delete" and m["targets"] == [empty]]
    assert gain > 20.0
    assert price.without == pytest.approx(-gain, rel=1e-4)
    # topics to come get what documents expect of it: given to the others that would be lost
    assert price.united > 0.0
    assert next(p for p in bnp.prices(posterior, x, client=SerialExecutor()) if p.id == empty).without < -20.0


def test_states_of_sequences_have_prices():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(mean, 1.0, (50, 2)) for mean in (0, 8, 0, 8)])
    data = bnp.as_source(x, groups=[0, 100, 200], batch_size=100)
    posterior = trained(bnp.Model(bnp.HDPHMM(), bnp.Gaussian()), data, 2, init=bnp.ContiguousBlocks(2)).posterior
    found = bnp.prices(posterior, data)
    assert len(found) == posterior.n_clusters
    assert min(p.without for p in found) > 0


def test_a_single_cluster_has_no_price():
    x = clear(20)
    price = bnp.prices(trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 1).posterior, x)[0]
    assert price.without == np.inf
    assert price.nearest is None


def test_clusters_that_labels_keep_apart_have_the_largest_other_as_their_nearest():
    x = clear(30)[10:]
    known = np.repeat([0, 1, 2], [20, 30, 30])
    posterior = trained(
        bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 3, labels=known, init=bnp.Responsibilities(known)
    ).posterior
    found = bnp.prices(posterior, x)
    size = {int(i): n for i, n in zip(posterior.ids, posterior.summary["N"], strict=True)}
    for price in found:
        assert price.nearest != price.id and size[price.nearest] == max(n for i, n in size.items() if i != price.id)
        assert price.united > 0.0 and price.without > 0.0


def test_a_posterior_without_statistics_has_the_same_prices():
    x = clear(30)
    posterior = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 4, laps=40).posterior
    wanted = bnp.prices(posterior, x, batch_size=40)
    for price, own in zip(bnp.prices(posterior.light(), x, batch_size=40), wanted, strict=True):
        assert (price.id, price.nearest) == (own.id, own.nearest)
        assert price.without == pytest.approx(own.without, abs=1e-3)
        assert price.united == pytest.approx(own.united, abs=1e-3)


def test_the_least_loss_of_all_sweeps_counts_and_the_cheapest_cluster_is_shown_first(monkeypatch):
    x = clear(20)
    posterior = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 3, laps=3).posterior
    gains = iter(([-9.0, -9.0, -9.0], [-4.0, -6.0, -2.0], [-5.0, -3.0, -8.0]))  # of unions, and of two sweeps

    def scripted(model, total, parts, edits):
        return next(gains)[: len(edits)]

    monkeypatch.setattr(priced, "gains_of", scripted)
    assert [price.without for price in bnp.prices(posterior, x, sweeps=2)] == [4.0, 3.0, 2.0]
    lines = (
        priced.ClusterPrice(4, 7.0, 2, 1.0),
        priced.ClusterPrice(3, 5.0, 4, 9.0),
        priced.ClusterPrice(2, 5.0, None, np.nan),
    )
    assert [row[0] for row in priced.Prices(lines).table.rows] == ["2", "3", "4"]
    assert [row[3] for row in priced.Prices(lines).table.rows] == ["-", "4", "2"]


def test_point_estimates_have_no_prices():
    x = clear(20)
    posterior = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian(), estimate="map"), x, 2).posterior
    with pytest.raises(SettingError, match="point estimates"):
        bnp.prices(posterior, x)


def test_tables_and_pages_show_prices(tmp_path, capsys):
    x = clear(60)
    result = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 3)
    found = bnp.prices(result.posterior, x)
    assert "without it" not in str(bnp.inspect(result))
    table = bnp.inspect(result, prices=found)
    assert "without it" in str(table)
    by_id = {p.id: p for p in found}
    for row in table:
        assert f"{by_id[row.id].without:,.1f}" in str(table)
    assert list(table.to_pandas()["nearest"]) == [by_id[row.id].nearest for row in table]
    bnp.report(result, tmp_path / "page.html", prices=found)
    assert "nats of the objective that are lost" in (tmp_path / "page.html").read_text()
    np.save(tmp_path / "x.npy", x)
    bnp.save(result.posterior, tmp_path / "mine.zarr")
    assert main(["inspect", str(tmp_path / "mine.zarr"), "--prices", str(tmp_path / "x.npy")]) == 0
    assert "without it" in capsys.readouterr().out


def test_prices_of_other_clusters_are_refused():
    x = clear(60)
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    found = bnp.prices(trained(model, x, 3).posterior, x)
    with pytest.raises(SettingError, match="use bnp_dask.prices"):
        bnp.inspect(trained(model, x, 2).posterior, prices=found)


# -- lineage --------------------------------------------------------------------------------------------------
def test_a_lineage_says_who_was_born_of_whom_and_what_became_of_it(tmp_path):
    x = clear()
    result = trained(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, 1, moves=None, laps=60)
    lives = {life.id: life for life in bnp.lineage(result)}
    alive = {i for i, life in lives.items() if life.ended is None}
    assert alive == set(result.posterior.ids.tolist())
    born = [life for life in lives.values() if life.born is not None]
    assert len(born) >= 2
    for life in born:
        assert all(parent in lives and (lives[parent].born or 0) < life.born for parent in life.parents)
    for life in lives.values():
        assert (life.ended is None) == (life.how == "")
        assert all(i in lives for i in life.successors)
    bnp.report(result, tmp_path / "page.html")
    assert "from birth to end" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("what", [3, None, "run"])
def test_lineage_needs_a_result(what):
    with pytest.raises(SettingError, match=r"result=.*needs the result of bnp_dask.train"):
        bnp.lineage(what)
