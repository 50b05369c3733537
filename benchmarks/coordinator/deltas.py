"""Topics: what a batch of documents changes, held whole and held by what is not zero, and how many workers that feeds.

``python -m benchmarks.coordinator.deltas [K V]``: JSON lines, CPU seconds of this process; 1,000 documents of 100
tokens.  Needs about 8 GB at K=1000, V=50,000.
"""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from benchmarks.coordinator.measure import fold, median_seconds, say_ceiling, say_rates, submit_seconds, travel
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import RunningTotal
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import State, Work
from bnp_dask.inference.batch_memo import total_from, visit_to_arrays
from bnp_dask.inference.local_steps import Taken
from bnp_dask.inference.reduction import FAN, Change, change_of, joined
from bnp_dask.model import Model, Posterior
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.training.planning import Costs
from tests.moves.parts import Batches, DictMemo

N_DOCS, LENGTH, OWN, PER_DOC = 1000, 100, 300, 5

GROUP = 16
"""Batches whose changes are added to see how large their sum is."""


def documents(words: np.ndarray, n_words: int, seed: int) -> Batch:
    """Documents of a few topics each, every topic of a few hundred words ``(K, OWN)``."""
    rng = np.random.default_rng(seed)
    topics = np.array([rng.choice(len(words), PER_DOC, replace=False) for _ in range(N_DOCS)])
    which = np.take_along_axis(topics, rng.integers(PER_DOC, size=(N_DOCS, LENGTH)), axis=1)
    column = words[which, rng.integers(OWN, size=(N_DOCS, LENGTH))].ravel()
    where = np.repeat(np.arange(N_DOCS), LENGTH), column
    x = sparse.csr_array((np.ones(len(column)), where), shape=(N_DOCS, n_words))
    x.sum_duplicates()
    return Batch(x)


def main() -> None:
    """Measure and print."""
    k, n_words = (int(a) for a in (*sys.argv[1:], 1000, 50_000)[:2])
    rng = np.random.default_rng(0)
    often = 1.0 / np.arange(1, n_words + 1)
    words = np.array([rng.choice(n_words, OWN, replace=False, p=often / often.sum()) for _ in range(k)])
    batch = documents(words, n_words, 1)
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.1)).with_prior(survey_batch(batch))

    def beliefs(tokens: float) -> Posterior:
        x = np.zeros((k, n_words))
        np.put_along_axis(x, words, tokens / OWN, axis=1)
        empty = model.empty_summary(np.arange(k))
        return model.global_step(replace(empty, values={**empty.values, "N": x.sum(axis=1), "x": x}))

    start = beliefs(2000.0)
    assert start.summary is not None
    old, new = model.visit(start, batch), model.visit(beliefs(2100.0), batch)
    kept = total_from(model, visit_to_arrays(model, old), ())
    thin = change_of(new, kept)

    def subtract() -> Change:
        delta = RunningTotal(new.summary)
        delta.subtract(old.summary)
        return Change(delta, {}, {})

    whole = subtract()
    for name in model.fields:
        assert np.array_equal(thin.delta.whole().high[name], whole.delta.high[name])
        assert np.array_equal(thin.delta.whole().low[name], whole.delta.low[name])
    total = RunningTotal(start.summary)
    for what, change, make in (("whole", whole, subtract), ("thin", thin, lambda: change_of(new, kept))):
        message = pickle.dumps(change, protocol=5)
        add = median_seconds(lambda: total.join(change.delta))  # noqa: B023
        opened = median_seconds(lambda: pickle.loads(message))  # noqa: B023
        line = {
            "held": what, "K": k, "V": n_words, "not zero": int(np.count_nonzero(new.summary["x"])),
            "message MB": len(message) / 1e6, "make ms": 1e3 * median_seconds(make), "open ms": 1e3 * opened,
            "add ms": 1e3 * add, "deltas per second": 1.0 / (add + opened),
            "join two ms": 1e3 * median_seconds(lambda: joined(change, change)),  # noqa: B023
        }  # fmt: skip
        print(json.dumps(line), flush=True)
    ceiling(model, start, beliefs(2100.0), [documents(words, n_words, seed) for seed in range(2, 2 + GROUP)])


def ceiling(model: Model, start: Posterior, later: Posterior, batches: list[Batch]) -> None:
    """What a group of batches costs the coordinator, and the workers that it feeds."""
    found = [change_of(model.visit(later, b), model.visit(start, b).summary) for b in batches]
    work = Work(model, Batches(batches), survey_batch(batches[0]), SerialExecutor(), DictMemo(), 0)
    state = State.start(model, start.summary, len(batches))
    assert start.summary is not None
    state.total.add(start.summary)
    state.posterior = model.global_step(state.total.value())
    state.terms = model.elbo(state.posterior, state.total.value())
    groups = joined(*found)
    taken, packed = Taken((0,), 0, groups, {}, []), pickle.dumps(groups, protocol=5)
    message = [len(pickle.dumps(change, protocol=5)) for change in (found[0], joined(*found[:FAN]))] + [len(packed)]
    beliefs = pickle.dumps(state.posterior.for_visits(), protocol=5)
    parts = {
        "fold": median_seconds(lambda: fold(work, state, taken)),
        "open": median_seconds(lambda: pickle.loads(packed)),
        "send the posterior": median_seconds(lambda: pickle.dumps(state.posterior.for_visits(), protocol=5)),
        f"add {FAN} (on a worker)": median_seconds(lambda: joined(*found[:FAN])),
        "add two large ones": median_seconds(lambda: joined(groups, groups)),
    }
    submit, scheduler = submit_seconds()
    sizes = {"one": message[0], f"of {FAN}": message[1], f"of {GROUP}": message[2], "posterior": len(beliefs)}
    print(json.dumps({"bench": "sizes, MB", **{n: round(v / 1e6, 1) for n, v in sizes.items()}}))
    print(json.dumps({"bench": "coordinator, ms", **{n: round(1e3 * v, 1) for n, v in parts.items()}}), flush=True)
    costs = Costs(
        add=parts[f"add {FAN} (on a worker)"] + travel(message[1]),
        submit=submit,
        schedule=scheduler,
        share=parts["send the posterior"] + travel(len(beliefs)),
        opening=travel(len(beliefs)),
        fold=parts["fold"] + parts["open"] + travel(message[2]),
        message=parts["open"] + parts["add two large ones"] + travel(message[2]),
        numbers=len(start.ids) * numbers_per_cluster(model.observation),
    )
    say_rates(costs)
    say_ceiling(costs)
    say_ceiling(costs, 8)


if __name__ == "__main__":
    main()
