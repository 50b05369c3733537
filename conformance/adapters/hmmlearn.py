"""hmmlearn: hidden Markov models by EM and by variational Bayes."""

from __future__ import annotations

import numpy as np
from hmmlearn import base, hmm, vhmm

from conformance.adapter import Adapter


def fixed(case):
    if "emit" in case.inputs:
        model = hmm.CategoricalHMM(len(case["start"]), n_features=case["emit"].shape[1])
        model.emissionprob_ = case["emit"]
    else:
        model = hmm.GaussianHMM(len(case["start"]), covariance_type="diag")
        model.n_features, model.means_ = case["mean"].shape[1], case["mean"]
        model.covars_ = case["var"]
    model.startprob_, model.transmat_ = case["start"], case["trans"]
    return model


class Hmmlearn(Adapter):
    library = "hmmlearn"
    on_purpose = {
        "chain_steps.log_density": "`score` uses exponentials of expected logarithms, as inference does; "
        "parameters are not integrated over",
    }
    absent = {"merge_gains": "the number of states is fixed", "partition_draws": "no sampler"}

    def chain_paths(self, case):
        model, x = fixed(case), np.asarray(case["row"]).reshape(len(case["row"]), -1)
        log_lik, resp = model.score_samples(x)
        return {"log_lik": log_lik, "resp": resp, "path": model.decode(x)[1]}

    def chain_scores(self, case):
        model = fixed(case)
        return {"log_lik": [model.score(row[:, None]) for row in case.rows]}

    def chain_steps(self, case):
        bounds, x, lengths = [], case["rows"][:, None], np.diff(case["offsets"])
        model = vhmm.VariationalCategoricalHMM(
            2, n_features=3, tol=-np.inf, n_iter=case.settings["steps"], init_params=""
        )
        names = {"initial": "startprob", "trans": "transmat", "emit": "emissionprob"}
        for name, theirs in names.items():
            setattr(model, f"{theirs}_prior_", case[f"prior_{name}"])
            setattr(model, f"{theirs}_posterior_", case[f"start_{name}"])
        model.monitor_ = base.ConvergenceMonitor(-np.inf, case.settings["steps"], False)
        model.fit(x, lengths)
        bounds = np.array(model.monitor_.history)
        scores = [model.score(row[:, None]) for row in case["points"]]
        return {"local": bounds, "rises": bounds, "log_density": scores}


ADAPTER = Hmmlearn()
