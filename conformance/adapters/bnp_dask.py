"""bnp_dask, by its public names where there are some; recursions and merges by the parts that training calls."""

from __future__ import annotations

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.kernels.hmm import forward_backward, viterbi
from conformance.adapter import Adapter

PARTS = (bnp.train, bnp.DirichletProcessMixture, bnp.load, bnp.save, bnp.predict, bnp.update)
"""Imported here, and not in each fork of a fault script."""

LEAST = -1e6
"""Stands for the logarithm of zero, as the recursions ask for."""


def gaussian(case):
    prior = {"nu": float(case["nu"]), "m": case["m"], "kappa": float(case["kappa"]), "grain": 0.0}
    if case.settings["covariance"] == "full":
        return bnp.Gaussian(B=case["B"], **prior)
    return bnp.DiagGaussian(beta=case["B"], **prior)


def mixture(case, **settings):
    allocation = {"dp": bnp.DPMixture, "dirichlet": bnp.FiniteMixture}[case.settings.get("weights", "dp")]
    model = bnp.Model(allocation(case.settings["gamma"]), gaussian(case), learn_prior="never")
    return steps(model, case["x"], case["resp"], case.settings["steps"], **settings)


def steps(model, data, resp, number, **settings):
    schedule = bnp.FullBatch(laps=number, tolerance=0.0, count_tolerance=0.0)
    return bnp.train(model, data, init=bnp.Responsibilities(resp), schedule=schedule, moves=(), rng=0, **settings)


def chain_of(case, rows):
    if "emit" in case.inputs:
        with np.errstate(divide="ignore"):
            return np.log(case["emit"])[:, rows].T
    return (-0.5 * (rows[:, None] - case["mean"]) ** 2 / case["var"] - 0.5 * np.log(2 * np.pi * case["var"])).sum(
        axis=2
    )


def recursions(case, rows, offsets):
    """Log likelihoods, marginals and paths of sequences; likelihoods are shifted so that the largest is zero."""
    with np.errstate(divide="ignore"):
        start, trans = (np.maximum(np.log(case[name]), LEAST) for name in ("start", "trans"))
    log_lik = np.maximum(chain_of(case, rows), LEAST)
    top = log_lik.max(axis=1)
    offsets = np.asarray(offsets, np.int64)
    found = forward_backward(start, trans, log_lik - top[:, None], offsets, np.ones(len(offsets) - 1))
    total = found.log_norm + np.add.reduceat(top, offsets[:-1])
    return np.where(total <= 0.5 * LEAST, -np.inf, total), found.resp, viterbi(start, trans, log_lik, offsets)


class BnpDask(Adapter):
    library, claims = "bnp-dask", True
    absent = {
        "topics_bound": "documents have no Dirichlets of their own to set: they are found from the words",
        "topics_joint": "the sampler draws topics of a hierarchical Dirichlet process, not of LDA",
        "topics_draws": "the sampler draws topics of a hierarchical Dirichlet process, not of LDA",
        "topics_perplexity": "scores are of held-out words given the rest of a document",
    }

    def mixture_steps(self, case):
        result = mixture(case)
        bounds = result.history["elbo"]
        counts = result.posterior.summary["N"]
        return {"counts": counts, "objective": bounds, "objective_change": bounds, "rises": bounds}

    def mixture_density(self, case):
        found = bnp.analysis.score.score_samples(mixture(case).posterior, case["points"])
        return {"log_density": found, "integral": found}

    def merge_gains(self, case):
        posterior = mixture(case).posterior
        model, batch = posterior.model, bnp.Batch(case["x"])
        # the last step once more, this time with the unions tracked
        before = mixture_before_last(case)
        summary = model.local_step(before, batch, before.ids[case["pairs"]])
        value = sum(model.elbo(model.global_step(summary), summary).values())
        united = [summary.merge(int(a), int(b)) for a, b in before.ids[case["pairs"]]]
        return {"gains": [sum(model.elbo(model.global_step(s), s).values()) - value for s in united]}

    def partition_draws(self, case):
        model = bnp.Model(bnp.DPMixture(case.settings["gamma"]), gaussian(case), learn_prior="never")
        draws = case.settings["draws"]
        schedule = bnp.Gibbs(laps=draws + 200, burn_in=200)
        result = bnp.train(model, case["x"], init=bnp.Responsibilities(np.zeros(6, int)), schedule=schedule, rng=0)
        return {"labels": result.draws.labels[0]}

    def chain_paths(self, case):
        log_lik, resp, path = recursions(case, case["row"], [0, len(case["row"])])
        return {"log_lik": log_lik[0], "resp": resp, "path": path}

    def chain_scores(self, case):
        return {"log_lik": recursions(case, case["rows"], case["offsets"])[0]}

    def chain_steps(self, case):
        prior = {name: case[f"prior_{name}"] for name in ("initial", "trans", "emit")}
        allocation = bnp.FiniteHMM(alpha=prior["trans"][0].sum(), alpha0=prior["initial"].sum())
        model = bnp.Model(allocation, bnp.Categorical(prior["emit"][0, 0]), learn_prior="never")
        rows = [row[:, None].astype(float) for row in case.rows]
        result = steps(model, rows, case["labels"], case.settings["steps"])
        bounds = result.history["elbo"]
        scores = [4.0 * bnp.score(result.posterior, [row[:, None].astype(float)]) for row in case["points"]]
        return {"global": bounds, "rises": bounds, "log_density": scores}

    def topics_evidence(self, case):
        chosen = case.settings
        k, words = chosen["n_topics"], bnp.Multinomial(chosen["eta"])
        model = bnp.Model(bnp.LDA(k * chosen["alpha"]), words)
        schedule = bnp.FullBatch(laps=100)
        counts = sparse.csr_array(case["counts"])
        result = bnp.train(model, counts, init=bnp.RandomExamples(k), schedule=schedule, moves=(), rng=0)
        return {"bound": result.history["elbo"][-1]}

    def fit(self, data, seed):
        return bnp.DirichletProcessMixture(random_state=seed).partial_fit(data)

    def update(self, model, data):
        return model.partial_fit(data)

    def outcome(self, model, data):
        posterior = getattr(model, "posterior_", model)
        parts = (posterior.allocation, posterior.observation)
        return np.concatenate([np.ravel(value) for part in parts for value in vars(part).values()]).astype(float)

    def save(self, model, path):
        getattr(model, "posterior_", model).save(path)

    def load(self, path):
        return bnp.load(path)


def mixture_before_last(case):
    settings = {**case.settings, "steps": case.settings["steps"] - 1}
    return mixture(type(case)(**{**case.__dict__, "settings": settings})).posterior


ADAPTER = BnpDask()
