"""Stored states of documents: what rounding them does to the next visit, and what it does not do to the objective."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnp_dask.allocation import DocumentStep, HDPTopics
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.store.files import seal, unseal
from bnp_dask.store.run import RUN_FORMAT, VERSION
from bnp_dask.training.results import load
from bnp_dask.training.train import train
from tests.stopping import AfterLaps
from tests.topics import naive
from tests.topics.parts import begin, corpus, fixed, prior_of, tokens_of, word_model
from tests.topics.test_document_step import cases
from tests.topics.test_runs import bits

SWEEPS = 3


def counts_of(posterior, batch, sweeps, starts):
    """Counts of documents after updates from some counts each, with all digits; None: from scratch."""
    prior, rest = prior_of(posterior)
    out = []
    for (log_lik, weight, _), start in zip(tokens_of(posterior, batch), starts, strict=True):
        out.append(naive.document(log_lik, weight, prior, rest, sweeps, start).count)
    return out


@pytest.mark.parametrize("states", ["float32", "float64"])
def test_a_warm_start_is_the_exact_recursion_from_what_is_stored(states):
    batch = cases()["words"]
    model = word_model("hdp", **fixed(start="warm", sweeps=SWEEPS, states=states))
    posterior = begin(model, batch)
    first = model.visit(posterior, batch)
    assert first.states[""].count.dtype == states
    again = model.visit(posterior, batch, states=first.states[""]).summary
    exact = counts_of(posterior, batch, SWEEPS, [None] * batch.n_atoms)
    stored = [count.astype(states).astype(float) for count in exact]
    found = {name: np.sum(counts_of(posterior, batch, SWEEPS, own), axis=0) for name, own in
             (("exact", exact), ("stored", stored))}  # fmt: skip
    assert_allclose(again["N"], found["stored"], rtol=1e-12)
    off = np.abs(again["N"] / found["exact"] - 1.0).max()
    assert off < 1e-12 if states == "float64" else 1e-12 < off < 1e-5


def test_rounding_what_is_stored_changes_no_objective():
    """It is that of the responsibilities of the last visit, which no stored count enters."""
    batch = cases()["weighted documents"]
    exact, rounded = (
        word_model("hdp", **fixed(start="warm", sweeps=SWEEPS, states=states)) for states in ("float64", "float32")
    )
    posterior = begin(exact, batch)
    found = {m.allocation.step.states: m.visit(replace(posterior, model=m), batch).summary for m in (exact, rounded)}
    for name, value in found["float64"].values.items():
        assert np.array_equal(found["float32"][name], value)


def go(states, store=None, **more):
    model = Model(HDPTopics(4.0, 0.6, DocumentStep(restarts=1, states=states)), Multinomial(lam=0.1))
    schedule = Memoized(laps=4, window=3, tolerance=0.0, count_tolerance=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            model, corpus(60, length=30)[0], init=RandomExamples(5), schedule=schedule, moves=[],
            client=SerialExecutor(), batch_size=15, store=store, **more,
        )  # fmt: skip


@pytest.mark.parametrize("states", ["float32", "float64"])
def test_a_run_keeps_its_type_of_states_when_it_is_resumed(tmp_path, states):
    whole = go(states)
    go(states, tmp_path / "run", callbacks=[AfterLaps(2)])
    assert bits(go(states, tmp_path / "run", resume=True)) == bits(whole)
    assert load(tmp_path / "run" / "posterior.zarr").model.allocation.step.states == states
    other = {"float32": "float64", "float64": "float32"}[states]
    with pytest.raises(StoreError, match="settings differ"):
        go(other, tmp_path / "run", resume=True)


def test_the_two_types_of_states_lead_to_about_the_same():
    exact, rounded = go("float64"), go("float32")
    assert bits(exact) != bits(rounded)
    assert exact.history["elbo"][-1] == pytest.approx(rounded.history["elbo"][-1], rel=1e-6)


def test_a_run_begun_before_the_type_could_be_chosen_is_resumed(tmp_path):
    """Its counts are float32, those of later visits what the setting says; it does not fall."""
    go("float32", tmp_path / "run", callbacks=[AfterLaps(2)])
    path = tmp_path / "run" / "RUN.json"
    content = unseal(path, RUN_FORMAT, VERSION)
    text = json.dumps(content["settings"]).replace(', "states": "float32"', "")
    assert "states" not in text
    path.write_bytes(seal({**content, "settings": json.loads(text)}))
    rest = go("float64", tmp_path / "run", resume=True)
    elbo = rest.history["elbo"][rest.history["exact"]]
    assert len(elbo) > 8 and (np.diff(elbo) >= -1e-12 * abs(elbo[-1])).all()


def test_other_types_are_refused():
    with pytest.raises(SettingError, match="float16"):
        DocumentStep(states="float16")
