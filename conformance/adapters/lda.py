"""lda: collapsed Gibbs sampling of latent Dirichlet allocation."""

from __future__ import annotations

import logging

import numpy as np
from lda import LDA

from conformance.adapter import Adapter

logging.getLogger("lda").setLevel(logging.ERROR)


class Kept(LDA):
    """Keeps the topics of words, which the library deletes after a fit."""

    labels = value = None

    def loglikelihood(self):
        self.labels = self.ZS.copy()
        self.value = super().loglikelihood()
        return self.value


def model_of(case, sweeps, seed=1):
    chosen = case.settings
    model = Kept(
        chosen["n_topics"], n_iter=sweeps, alpha=chosen["alpha"], eta=chosen["eta"], random_state=seed, refresh=10**9
    )
    return model.fit(case["counts"].astype(int))


def in_order(model, case):
    """Topics in the order of the case's words: the library orders words of a document by their number."""
    docs = np.repeat(np.arange(len(case["offsets"]) - 1), np.diff(case["offsets"]))
    found = np.empty(len(docs), int)
    found[np.lexsort((case["rows"], docs))] = model.labels
    return found


class Lda(Adapter):
    library, data = "lda", "counts"
    absent = {"topics_bound": "a sampler: no bound", "topics_evidence": "a sampler: no bound"}

    def topics_joint(self, case):
        models = [model_of(case, 20, seed) for seed in range(20)]
        return {"log_joint": [(in_order(m, case), m.value) for m in models]}

    def topics_draws(self, case):
        # nothing goes on with a fit: chains of their own
        draws = [in_order(model_of(case, 30, seed), case) for seed in range(case.settings["draws"] // 5)]
        return {"labels": np.array(draws)}


ADAPTER = Lda()
