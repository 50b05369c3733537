"""gensim: LdaModel."""

from __future__ import annotations

import logging

import numpy as np
from gensim.models import LdaModel, ldamodel

from conformance.adapter import Adapter


def corpus(counts):
    return [[(int(w), float(row[w])) for w in np.flatnonzero(row)] for row in counts]


def model_of(counts, k, alpha, eta, seed=0, passes=50):
    return LdaModel(
        corpus(counts), num_topics=k, id2word={i: str(i) for i in range(counts.shape[1])}, alpha=[alpha] * k, eta=eta,
        random_state=seed, passes=passes, chunksize=len(counts), iterations=500, dtype=np.float64, eval_every=None,
        decay=0.51, offset=1.0,
    )  # fmt: skip


def trained(case):
    return model_of(case["counts"], case.settings["n_topics"], case.settings["alpha"], case.settings["eta"])


class Noted(logging.Handler):
    def __init__(self):
        super().__init__()
        self.args = ()

    def emit(self, record):
        if "perplexity" in record.msg:
            self.args = record.args


class Gensim(Adapter):
    library, data = "gensim", "counts"
    absent = {"topics_joint": "no sampler", "topics_draws": "no sampler"}

    def topics_bound(self, case):
        model = trained(case)
        model.state.sstats = case["lam"] - model.eta
        # rows of the documented shape (D, K) are refused by a compiled helper that wants two axes
        return {"bound": model.bound(corpus(case["counts"]), gamma=case["gamma"][:, None])}

    def topics_evidence(self, case):
        return {"bound": trained(case).bound(corpus(case["counts"]))}

    def topics_perplexity(self, case):
        noted, logger = Noted(), ldamodel.logger
        model, level = trained(case), logger.level
        logger.addHandler(noted)
        logger.setLevel(logging.INFO)
        try:
            model.log_perplexity(corpus(case["counts"]))
        finally:
            logger.removeHandler(noted)
            logger.setLevel(level)
        return {"perplexity": noted.args[1]}

    def fit(self, data, seed):
        return model_of(data, 3, 0.3, 0.3, seed, passes=1)

    def update(self, model, data):
        model.update(corpus(data))
        return model

    def outcome(self, model, data):
        return model.get_topics()

    def save(self, model, path):
        model.save(str(path))

    def load(self, path):
        return LdaModel.load(str(path))


ADAPTER = Gensim()
