"""Topics of Python's documentation: docstrings of the standard library and installed packages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from scipy import sparse

from bnp_dask.allocation import HDPTopics
from bnp_dask.analysis.score import completion_score
from bnp_dask.analysis.topics import topic_list
from bnp_dask.analysis.topics.words import word_tokens
from bnp_dask.cli.console import table
from bnp_dask.cli.demo.docstrings import LIMIT, Docstring, docstrings, stop_words
from bnp_dask.cli.demo.stage import Stage
from bnp_dask.core.batch import Batch
from bnp_dask.data import Text
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.inputs.lines import say
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Multinomial
from bnp_dask.reports.run_page import report

START = 20
"""Number of initial topics; moves decide the final number."""

LAPS = 15
BATCHES = 8
HELD_OUT = 10
"""One document in this many is held out and scored."""

READ_TOLD = 4000
"""Docstrings between two lines about how many were read."""

SHOWN, WORDS = 40, 8
PATTERN = r"(?u)\b[a-z]{3,}\b"
"""Words of letters; names with underscores and numbers are code."""


def play(stage: Stage, limit: int | None) -> Path:
    """Read, count, train, score, and write the page."""
    train, heldout = collect(stage, LIMIT if limit is None else limit)
    store, other = stage.path("docstrings.zarr"), stage.path("heldout.zarr")
    # words of very few documents tell little about topics, and words of many tell nothing
    text = Text(stop_words=stop_words(), min_df=max(2, len(train) // 1500), max_df=0.1, token_pattern=PATTERN)
    stage.say(str(ingest(train, store, text=text, batch_size=-(-len(train) // BATCHES))))
    ingest(heldout, other, vocabulary=store)
    laps = LAPS if stage.laps is None else stage.laps
    result = stage.train(Model(HDPTopics(), Multinomial()), store, BregmanKMeans(START), Memoized(laps=laps))
    posterior = result.posterior
    stage.tell_of_end(result)
    lines = topic_list(posterior, WORDS)
    say(f"{result.reason}, {result.seconds:.0f} s, from {START} topics to {len(lines)}; the largest:")
    say(table(("topic", "share", "words"), [(f"{t.id}", f"{t.share:.1%}", " ".join(t.words)) for t in lines[:SHOWN]]))
    if len(lines) > SHOWN:
        say(f"... and {len(lines) - SHOWN} more")
    stage.say("scoring the documents that were kept apart ...")
    found, plain = completion_score(posterior, other), completion_score(one_topic(posterior), other)
    say(
        f"{found.n_documents:,} documents that were kept apart: a fifth of the distinct words of each, predicted from "
        f"the rest, scores {found.score:.3f} nats per token (frequencies of words alone: {plain.score:.3f})"
    )
    stage.say("writing the page ...")
    page = stage.folder / "topics.html"
    report(stage.path("run"), page)
    return page


def collect(stage: Stage, limit: int) -> tuple[list[Docstring], list[Docstring]]:
    """Documents to train on, and held-out ones."""
    stage.say("reading docstrings of the standard library and the installed packages (sources are parsed, not run)")
    documents = []
    for document in docstrings(limit):
        documents.append(document)
        if len(documents) % READ_TOLD == 0:
            stage.say(f"{len(documents):,} docstrings so far")
    packages = Counter(d.metadata["package"] for d in documents)
    stage.say(f"{len(documents):,} docstrings of {len(packages)} packages")
    held = np.arange(len(documents)) % HELD_OUT == 0
    return [d for d, h in zip(documents, held) if not h], [d for d, h in zip(documents, held) if h]


def one_topic(posterior: Posterior) -> Posterior:
    """Posterior with a single topic that has all tokens: the frequencies of words."""
    tokens = sparse.csr_array(np.asarray(word_tokens(posterior))[None])
    model = posterior.model
    return model.global_step(model.summarize(np.zeros(1, np.int64), Batch(tokens), np.ones((1, 1))))
