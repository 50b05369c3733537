"""dynamax: recursions of hidden Markov models, in double precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from dynamax.hidden_markov_model import hmm_posterior_mode, hmm_smoother

from conformance.adapter import Adapter

jax.config.update("jax_enable_x64", True)


def log_likelihood(case, row):
    if "emit" in case.inputs:
        return jnp.log(jnp.asarray(case["emit"]))[:, row].T
    mean, var = case["mean"], case["var"]
    return jnp.asarray((-0.5 * (row[:, None] - mean) ** 2 / var - 0.5 * np.log(2 * np.pi * var)).sum(axis=2))


class Dynamax(Adapter):
    library = "dynamax"
    absent = {"chain_steps": "EM and gradients: no variational Bayes", "merge_gains": "the number of states is fixed"}

    def chain_paths(self, case):
        arrays = jnp.asarray(case["start"]), jnp.asarray(case["trans"]), log_likelihood(case, case["row"])
        found = hmm_smoother(*arrays)
        path = hmm_posterior_mode(*arrays)
        return {"log_lik": float(found.marginal_loglik), "resp": found.smoothed_probs, "path": path}

    def chain_scores(self, case):
        start, trans = jnp.asarray(case["start"]), jnp.asarray(case["trans"])
        rows = jnp.stack([log_likelihood(case, row) for row in case.rows])
        return {"log_lik": jax.vmap(lambda lik: hmm_smoother(start, trans, lik).marginal_loglik)(rows)}


ADAPTER = Dynamax()
