"""tomotopy: LDAModel."""

from __future__ import annotations

import numpy as np
import tomotopy

from conformance.adapter import Adapter


def model_of(docs, k, alpha, eta, seed=1):
    model = tomotopy.LDAModel(k=k, alpha=alpha, eta=eta, seed=seed)
    model.optim_interval, model.burn_in = 0, 0
    for doc in docs:
        model.add_doc([str(w) for w in doc])
    return model


def of_case(case, seed=1):
    chosen = case.settings
    if "rows" in case.inputs:
        docs = case.rows
    else:
        docs = [np.repeat(np.arange(len(row)), row.astype(int)) for row in case["counts"]]
    return model_of(docs, chosen["n_topics"], chosen["alpha"], chosen["eta"], seed)


def labels(model):
    return np.concatenate([doc.topics for doc in model.docs])


class Tomotopy(Adapter):
    library, data = "tomotopy", "counts"
    on_purpose = {"topics_joint": "Numbers have single precision"}
    absent = {
        "topics_bound": "a sampler: no bound",
        "topics_evidence": "a sampler: no bound",
        "partition_draws": "models of words alone",
    }

    def topics_joint(self, case):
        model, found = of_case(case), []
        for _ in range(20):
            model.train(5, workers=1)
            found.append((labels(model), model.ll_per_word * model.num_words))
        return {"log_joint": found}

    def topics_draws(self, case):
        model, found = of_case(case), []
        model.train(200, workers=1)
        for _ in range(case.settings["draws"]):
            model.train(2, workers=1)
            found.append(labels(model))
        return {"labels": np.array(found)}

    def topics_perplexity(self, case):
        model = of_case(case)
        model.train(1, workers=1)
        return {"perplexity": model.perplexity}

    def fit(self, data, seed):
        docs = [np.repeat(np.arange(len(row)), row.astype(int)) for row in data]
        model = model_of(docs, 3, 0.3, 0.3, seed + 1)
        model.train(20, workers=1)
        return model

    def outcome(self, model, data):
        return np.array([model.get_topic_word_dist(k) for k in range(model.k)])

    def save(self, model, path):
        model.save(str(path))

    def load(self, path):
        return tomotopy.LDAModel.load(str(path))


ADAPTER = Tomotopy()
