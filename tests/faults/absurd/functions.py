"""Every argument of every function with values that nobody means there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from tests.faults.absurd.kinds import COUNTS, KINDS, OFFSETS, ROWS, fit, posterior_of
from tests.faults.absurd.making import frame, stored
from tests.faults.absurd.outcomes import Case
from tests.faults.absurd.settings import VALUES, brief, told


def grown_store() -> str:
    """A run directory of two versions."""
    for name in ("first", "more"):
        np.save(f"{name}.npy", ROWS + (name == "more"))
    fit(KINDS["DiagGaussian"], "first.npy", store="grown")
    bnp.update("grown", "more.npy", client=SerialExecutor(0))
    return "grown"


def argument_cases() -> Iterator[Case]:
    """Arguments of functions, one at a time, with every value."""
    mixture, topics, hmm = (posterior_of(name) for name in ("Gaussian", "HDPTopics", "HDPHMM"))
    counts, labels = sparse.csr_array(COUNTS), np.repeat([0, 1, 0], 12)
    bnp.ingest([("a", "some common words"), ("b", "some words")], "words.zarr")
    grown = grown_store()
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
        "train": (
            lambda **a: fit(KINDS["DiagGaussian"], ROWS, **a),
            {},
            "rng moves callbacks init schedule resume checkpoint_minutes on_bad_batch client n_init memory job "
            "reproducible store",
        ),
        "predict": (bnp.predict, {"posterior": mixture, "data": ROWS}, "posterior data soft top batch_size client out"),
        "predict topics": (bnp.predict, {"posterior": topics, "data": counts}, "data soft top batch_size"),
        "score": (bnp.score, {"posterior": mixture, "data": ROWS}, "posterior data completion batch_size client"),
        "completion_score": (
            bnp.completion_score,
            {"posterior": topics, "data": counts},
            "posterior data completion batch_size",
        ),
        "collapsed_topics": (
            bnp.collapsed_topics,
            {"posterior": topics, "data": counts},
            "posterior data passes batch_size client",
        ),
        "as_source": (
            lambda **a: bnp.as_source(**a).n_batches,
            {"data": ROWS},
            "data batch_size weights storage_options columns format groups order gaps step cut on_bad_batch "
            "on_bad_cell",
        ),
        "as_source of a table": (
            lambda **a: bnp.as_source(**a).n_batches,
            {"data": frame(ROWS, g=labels)},
            "batch_size weights columns groups order gaps step cut",
        ),
        "ingest": (
            lambda **a: bnp.ingest(**{"overwrite": True, **a}).n_atoms,
            {"source_path": stored(ROWS, ".npy"), "out": "out.zarr"},
            "source_path out format batch_size batch_bytes columns weights vocabulary project patches text dtype "
            "progress overwrite storage_options group_column order_column gaps step cut on_bad_cell",
        ),
        "inspect": (bnp.inspect, {"what": mixture}, "what vocabulary limit"),
        "report": (bnp.report, {"what": mixture, "path": "page.html"}, "what path vocabulary data client"),
        "save": (bnp.save, {"posterior": mixture, "path": "m.zarr"}, "posterior path"),
        "load": (bnp.load, {}, "path"),
        "load_vocabulary": (bnp.load_vocabulary, {"source": "words.zarr"}, "source storage_options"),
        "load_documents": (bnp.load_documents, {"source": "words.zarr"}, "source storage_options"),
        "load_dropped": (bnp.load_dropped, {"source": "words.zarr"}, "source storage_options"),
        "top_words": (bnp.top_words, {"posterior": topics}, "posterior n by weight words least"),
        "to_pyldavis": (bnp.to_pyldavis, {"posterior": topics, "data": counts}, "posterior data words batch_size"),
        "impute": (
            bnp.impute,
            {"posterior": posterior_of("with gaps"), "data": ROWS},
            "posterior data out batch_size client",
        ),
        "sample": (bnp.sample, {"posterior": mixture, "n": 5}, "posterior n rng length"),
        "sample of sequences": (bnp.sample, {"posterior": hmm, "n": 2}, "n rng length"),
        "sample of documents": (bnp.sample, {"posterior": topics, "n": 2, "length": 4}, "n rng length"),
        "update": (
            bnp.update,
            {"store": grown, "data": "more.npy"},
            "store data revisit laps batch_size client memory keep",
        ),
        "changes": (bnp.changes, {"store": grown}, "store since share"),
        "rollback": (bnp.rollback, {"store": grown, "version": 0}, "store version"),
        "retire": (bnp.retire, {"store": grown, "sources": "no.npy"}, "store sources"),
        "survey_documents": (
            bnp.survey_documents,
            {"posterior": topics, "data": counts},
            "posterior data n_documents n_words words texts",
        ),
        "topics_over": (
            bnp.topics_over,
            {"posterior": topics, "data": counts, "by": [1.0] * len(COUNTS)},
            "posterior data by bins weight batch_size",
        ),
        "survey_sequences": (
            bnp.survey_sequences,
            {"posterior": hmm, "data": bnp.as_source(ROWS, groups=OFFSETS)},
            "posterior data show steps batch_size",
        ),
        "state_durations": (bnp.state_durations, {"labels": labels}, "labels sequences ids levels"),
        "transitions": (bnp.transitions, {"posterior": hmm}, "posterior"),
        "without_missing": (bnp.without_missing, {"sequences": [ROWS]}, "sequences"),
        "worker_settings": (bnp.worker_settings, {}, "memory_limit"),
        "Batch": (bnp.Batch, {"x": ROWS}, "x weights groups"),
    }
    for name, (function, given, arguments) in calls.items():
        for argument in arguments.split():
            for value in VALUES:

                def run(f: Any = function, g: Any = given, a: str = argument, v: Any = value) -> None:
                    f(**{**g, a: v})

                # of data, messages say what is wrong with them
                free = argument in ("data", "labels", "vocabulary", "source_path")
                names = () if free else (argument, "no column", "labels hold", *told(value))
                yield Case(f"{name}({argument}={brief(value)})", run, names=names)
