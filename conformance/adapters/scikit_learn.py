"""scikit-learn: BayesianGaussianMixture and LatentDirichletAllocation."""

from __future__ import annotations

import joblib
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture

from conformance.adapter import Adapter


class FromGiven(BayesianGaussianMixture):
    """Begins with given responsibilities."""

    given = None

    def _initialize_parameters(self, X, random_state, xp=None):
        self._initialize(X, self.given)


def mixture(case, steps):
    kind = {"dp": "dirichlet_process", "dirichlet": "dirichlet_distribution"}[case.settings["weights"]]
    k, gamma = case["resp"].shape[1], case.settings["gamma"]
    model = FromGiven(
        n_components=k,
        covariance_type=case.settings["covariance"],
        tol=0.0,
        reg_covar=0.0,
        max_iter=steps,
        weight_concentration_prior_type=kind,
        weight_concentration_prior=gamma if kind.endswith("process") else gamma / k,
        mean_precision_prior=float(case["kappa"]),
        mean_prior=case["m"],
        degrees_of_freedom_prior=float(case["nu"]),
        covariance_prior=case["B"],
    )
    model.given = case["resp"]
    return model.fit(case["x"])


def topics(case, **settings):
    chosen = case.settings
    return LatentDirichletAllocation(
        chosen["n_topics"],
        doc_topic_prior=chosen["alpha"],
        topic_word_prior=chosen["eta"],
        random_state=0,
        learning_method="batch",
        max_iter=100,
        **settings,
    ).fit(case["counts"])


class ScikitLearn(Adapter):
    library, data = "scikit-learn", "counts"
    on_purpose = {
        "mixture_steps.objective": "Constants are left out of `lower_bound_`, as its source says",
        "mixture_density": "`score_samples` is the logarithm of the sum of exponentials of expected log densities, "
        "which inference uses; parameters are not integrated over",
        "files_full_disk": "No format of its own; its pages advise joblib, which writes in place",
    }
    absent = {
        "merge_gains": "the number of components is fixed",
        "partition_draws": "no sampler",
        "topics_joint": "no sampler",
        "topics_draws": "no sampler",
    }

    def mixture_steps(self, case):
        model = mixture(case, case.settings["steps"])
        bounds = model.lower_bounds_
        return {
            "counts": model.mean_precision_ - float(case["kappa"]),
            "objective": bounds,
            "objective_change": bounds,
            "rises": bounds,
        }

    def mixture_density(self, case):
        found = mixture(case, case.settings["steps"]).score_samples(case["points"])
        return {"log_density": found, "integral": found}

    def topics_bound(self, case):
        model = topics(case)
        model.components_ = case["lam"]
        return {"bound": model._approx_bound(case["counts"], case["gamma"], sub_sampling=False)}

    def topics_evidence(self, case):
        return {"bound": topics(case).score(case["counts"])}

    def topics_perplexity(self, case):
        return {"perplexity": topics(case).perplexity(case["counts"])}

    def fit(self, data, seed):
        return LatentDirichletAllocation(3, random_state=seed).partial_fit(data)

    def update(self, model, data):
        return model.partial_fit(data)

    def outcome(self, model, data):
        return model.components_

    def save(self, model, path):
        joblib.dump(model, path)

    def load(self, path):
        return joblib.load(path)


ADAPTER = ScikitLearn()
