"""Formulas of the cases, by NumPy and SciPy alone: sums over all assignments, quadratures and closed forms.

Nothing here is fast.  ``make.py`` writes the cases with these functions; they are compared with each other in
``check_reference`` before anything is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from scipy.integrate import quad
from scipy.special import betaln, digamma, gammaln, logsumexp, multigammaln
from scipy.stats import multivariate_t
from scipy.stats import t as student

Prior = dict[str, np.ndarray]


# -- Gaussians --------------------------------------------------------------------------------------------------------
# Normal-Wishart: Lambda ~ W(nu, B^-1), mu | Lambda ~ N(m, (kappa Lambda)^-1); "diag": gammas of shape nu / 2, rate
# beta / 2, one for each feature, and mu_d ~ N(m_d, 1 / (kappa lambda_d)).
def updated(x: np.ndarray, weight: np.ndarray, prior: Prior) -> Prior:
    """Posterior of one cluster from the atoms ``x (n, D)`` with weights ``(n,)``."""
    n = weight.sum()
    mean = weight @ x / n if n > 0 else prior["m"]
    kappa, nu = prior["kappa"] + n, prior["nu"] + n
    m = (prior["kappa"] * prior["m"] + n * mean) / kappa
    centred, shift = x - mean, mean - prior["m"]
    scatter = np.einsum("n,nd,ne->de", weight, centred, centred) + prior["kappa"] * n / kappa * np.outer(shift, shift)
    scale = prior["B"] + (scatter if prior["B"].ndim == 2 else np.diag(scatter))
    return {"nu": nu, "B": scale, "m": m, "kappa": kappa}


def log_norm(params: Prior) -> float:
    """Log of the integral of the unnormalised density, up to powers of 2 pi that a difference with the prior lacks."""
    nu, scale, d = params["nu"], params["B"], len(params["m"])
    if scale.ndim == 2:
        wishart = 0.5 * nu * d * np.log(2.0) + multigammaln(0.5 * nu, d) - 0.5 * nu * np.linalg.slogdet(scale)[1]
    else:
        wishart = d * gammaln(0.5 * nu) - 0.5 * nu * np.log(0.5 * scale).sum()
    return float(wishart - 0.5 * d * np.log(params["kappa"]))


def expected_log_density(x: np.ndarray, params: Prior) -> np.ndarray:
    """E_q[log p(x | mu, Lambda)] of each atom, ``(n,)``."""
    nu, scale, d = params["nu"], params["B"], len(params["m"])
    centred = x - params["m"]
    if scale.ndim == 2:
        log_det = digamma(0.5 * (nu - np.arange(d))).sum() + d * np.log(2.0) - np.linalg.slogdet(scale)[1]
        square = nu * np.einsum("nd,nd->n", centred, np.linalg.solve(scale, centred.T).T)
    else:
        log_det = (digamma(0.5 * nu) - np.log(0.5 * scale)).sum()
        square = nu * (centred**2 / scale).sum(axis=1)
    return 0.5 * (log_det - d * np.log(2.0 * np.pi) - square - d / params["kappa"])


def log_predictive(x: np.ndarray, params: Prior) -> np.ndarray:
    """log of the integral of p(x | mu, Lambda) q(mu, Lambda): a Student's t, ``(n,)``."""
    nu, scale, d = params["nu"], params["B"], len(params["m"])
    spread = (params["kappa"] + 1.0) / params["kappa"]
    if scale.ndim == 2:
        df = nu - d + 1.0
        return np.atleast_1d(multivariate_t(params["m"], spread / df * scale, df=df).logpdf(x))
    shape = np.sqrt(spread / nu * scale)
    return (student.logpdf((x - params["m"]) / shape, df=nu) - np.log(shape)).sum(axis=1)


def log_evidence(x: np.ndarray, prior: Prior) -> float:
    """log p(x) of atoms of one cluster."""
    return log_norm(updated(x, np.ones(len(x)), prior)) - log_norm(prior) - 0.5 * x.size * np.log(2.0 * np.pi)


# -- mixtures ---------------------------------------------------------------------------------------------------------
def weight_terms(counts: np.ndarray, gamma: float, weights: str) -> tuple[float, np.ndarray, np.ndarray]:
    """Term of the objective, ``E[log pi_k] (K,)`` and ``E[pi_k] (K,)`` from counts ``(K,)``.

    ``"dp"``: sticks v_k ~ Beta(1, gamma), k = 1..K, q(v_k) = Beta(1 + N_k, gamma + N_k+1 + ... + N_K); the weight that
    the K sticks leave belongs to clusters without atoms.  ``"dirichlet"``: pi ~ Dirichlet(gamma / K, ...).
    """
    if weights == "dp":
        one = 1.0 + counts
        zero = gamma + counts[::-1].cumsum()[::-1] - counts
        log_v, log_rest = digamma(one) - digamma(one + zero), digamma(zero) - digamma(one + zero)
        rest = np.concatenate([[1.0], np.cumprod(zero / (one + zero))[:-1]])
        before = np.concatenate([[0.0], np.cumsum(log_rest)[:-1]])
        return float((betaln(one, zero) - betaln(1.0, gamma)).sum()), log_v + before, one / (one + zero) * rest
    prior = np.full(len(counts), gamma / len(counts))
    post = prior + counts
    return log_dirichlet(post) - log_dirichlet(prior), digamma(post) - digamma(post.sum()), post / post.sum()


def log_dirichlet(a: np.ndarray) -> float:
    """Log of the multivariate beta function."""
    return float(gammaln(a).sum() - gammaln(a.sum()))


def mixture_steps(x: np.ndarray, resp: np.ndarray, prior: Prior, gamma: float, weights: str, steps: int) -> dict:
    """Coordinate ascent: global step from ``resp``, then ``steps`` times a local step, a global step, the objective.

    With q of weights and clusters at their optimum given ``resp``, the objective is the sum of their log normalisers'
    changes and of the entropy of ``resp`` (Bishop 2006, 10.2; Blei & Jordan 2006).
    """
    out: dict[str, list] = {"counts": [], "objective": []}
    clusters: list[Prior] = []
    for step in range(steps + 1):
        if step:
            _, log_weight, _ = weight_terms(resp.sum(axis=0), gamma, weights)
            log_resp = log_weight + np.column_stack([expected_log_density(x, p) for p in clusters])
            resp = np.exp(log_resp - logsumexp(log_resp, axis=1, keepdims=True))
        clusters = [updated(x, r, prior) for r in resp.T]
        if step:
            out["counts"].append(resp.sum(axis=0))
            out["objective"].append(mixture_objective(x, resp, clusters, prior, gamma, weights))
    return {**out, "resp": resp, "clusters": clusters}


def mixture_objective(x, resp, clusters, prior, gamma, weights) -> float:
    """The evidence lower bound, all constants included, nats."""
    term, _, _ = weight_terms(resp.sum(axis=0), gamma, weights)
    data = sum(log_norm(p) - log_norm(prior) for p in clusters) - 0.5 * x.size * np.log(2.0 * np.pi)
    return float(data + term - np.where(resp > 0, resp * np.log(np.maximum(resp, 1e-300)), 0.0).sum())


def mixture_log_density(x: np.ndarray, clusters: list[Prior], prior: Prior, counts, gamma, weights) -> np.ndarray:
    """Log of the posterior predictive under q; weight that a DP leaves goes to the prior predictive, ``(n,)``."""
    _, _, share = weight_terms(counts, gamma, weights)
    parts = [np.log(s) + log_predictive(x, p) for s, p in zip(share, clusters)]
    if weights == "dp":
        parts.append(np.log1p(-share.sum()) + log_predictive(x, prior))
    return logsumexp(parts, axis=0)


def partitions(n: int) -> Iterator[tuple[int, ...]]:
    """All partitions of n atoms, as labels by first appearance."""

    def grow(labels: tuple[int, ...], used: int) -> Iterator[tuple[int, ...]]:
        if len(labels) == n:
            yield labels
            return
        for label in range(used + 1):
            yield from grow((*labels, label), max(used, label + 1))

    yield from grow((), 0)


def log_partition(labels: np.ndarray, gamma: float) -> float:
    """Log probability of a partition under the Chinese restaurant process."""
    sizes = np.bincount(labels)
    return float(len(sizes) * np.log(gamma) + gammaln(sizes).sum() + gammaln(gamma) - gammaln(gamma + len(labels)))


def together(labels: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
    """Probability that each pair of atoms shares a cluster, ``(n, n)``, from labels ``(S, n)``."""
    prob = np.exp(log_prob - logsumexp(log_prob))
    return np.einsum("s,sij->ij", prob, (labels[:, :, None] == labels[:, None, :]).astype(float))


# -- chains -----------------------------------------------------------------------------------------------------------
def all_paths(log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray) -> dict:
    """Log likelihood, marginals, sums over pairs of steps and the best path, from all K^T paths."""
    t, k = log_lik.shape
    paths = np.array(list(itertools.product(range(k), repeat=t)))
    log_prob = log_start[paths[:, 0]] + log_lik[np.arange(t), paths].sum(axis=1)
    log_prob = log_prob + log_trans[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    total = logsumexp(log_prob)
    prob = np.exp(log_prob - total)
    resp, pairs = np.zeros((t, k)), np.zeros((k, k))
    for step in range(t):
        np.add.at(resp[step], paths[:, step], prob)
    for step in range(t - 1):
        np.add.at(pairs, (paths[:, step], paths[:, step + 1]), prob)
    return {"log_lik": total, "resp": resp, "pairs": pairs, "path": paths[log_prob.argmax()]}


def chain_steps(rows, start: dict, prior: dict, steps: int) -> dict:
    """Variational Bayes of a hidden Markov model of symbols (Beal 2003, 3.4); local steps over all paths.

    ``start`` and ``prior``: pseudo-counts ``initial (K,)``, ``trans (K, K)``, ``emit (K, V)``.  The objective stands
    after each local step (``local``) and after each global step (``global``).
    """
    params = {name: value.copy() for name, value in start.items()}
    out: dict[str, list] = {"local": [], "global": []}

    def divergence(p):
        value = 0.0
        for name in prior:
            for post, base in zip(np.atleast_2d(p[name]), np.atleast_2d(prior[name])):
                mean = digamma(post) - digamma(post.sum())
                value += (post - base) @ mean - log_dirichlet(post) + log_dirichlet(base)
        return value

    for _ in range(steps):
        logs = {name: digamma(p) - digamma(p.sum(axis=-1, keepdims=True)) for name, p in params.items()}
        stats = {name: np.zeros_like(value) for name, value in prior.items()}
        total, energy = 0.0, 0.0
        for row in rows:
            found = all_paths(logs["initial"], logs["trans"], logs["emit"][:, row].T)
            total += found["log_lik"]
            stats["initial"] += found["resp"][0]
            stats["trans"] += found["pairs"]
            np.add.at(stats["emit"].T, row, found["resp"])
        entropy = total - sum((stats[name] * logs[name]).sum() for name in stats)
        out["local"].append(total - divergence(params))
        params = {name: prior[name] + stats[name] for name in prior}
        logs = {name: digamma(p) - digamma(p.sum(axis=-1, keepdims=True)) for name, p in params.items()}
        energy = sum((stats[name] * logs[name]).sum() for name in stats)
        out["global"].append(energy + entropy - divergence(params))
    return {**out, "params": params}


# -- topics -----------------------------------------------------------------------------------------------------------
def topics_objective(counts: np.ndarray, gamma: np.ndarray, lam: np.ndarray, alpha: float, eta: float) -> float:
    """Evidence lower bound of LDA (Hoffman et al. 2010, eq. 1) at the best shares of each word.

    ``counts (D, V)``, ``gamma (D, K)`` of documents, ``lam (K, V)`` of topics; alpha and eta for each entry.
    """
    log_theta = digamma(gamma) - digamma(gamma.sum(axis=1, keepdims=True))
    log_phi = digamma(lam) - digamma(lam.sum(axis=1, keepdims=True))
    value = (counts * logsumexp(log_theta[:, :, None] + log_phi[None], axis=1)).sum()
    for table, logs, base in ((gamma, log_theta, alpha), (lam, log_phi, eta)):
        value += ((base - table) * logs).sum() + sum(log_dirichlet(row) for row in table)
        value -= len(table) * log_dirichlet(np.full(table.shape[1], base))
    return float(value)


def topics_log_joint(
    docs: list[np.ndarray], labels: list[np.ndarray], k: int, v: int, alpha: float, eta: float
) -> float:
    """log p(words, topics of words), shares and topics integrated out (Griffiths & Steyvers 2004)."""
    table = np.zeros((k, v))
    value = 0.0
    for doc, own in zip(docs, labels):
        np.add.at(table, (own, doc), 1.0)
        value += log_dirichlet(alpha + np.bincount(own, minlength=k)) - log_dirichlet(np.full(k, alpha))
    return value + sum(log_dirichlet(eta + row) - log_dirichlet(np.full(v, eta)) for row in table)


def all_topics(docs: list[np.ndarray], k: int, v: int, alpha: float, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """All K^N assignments of the tokens ``(S, N)`` and their log joint probabilities, ``(S,)``."""
    ends = np.cumsum([len(doc) for doc in docs])
    labels = np.array(list(itertools.product(range(k), repeat=int(ends[-1]))))
    return labels, np.array([topics_log_joint(docs, np.split(z, ends[:-1]), k, v, alpha, eta) for z in labels])


def documents(v: int, length: int) -> np.ndarray:
    """All documents of so many tokens as counts, ``(m, V)``."""
    found = [np.bincount(words, minlength=v) for words in itertools.combinations_with_replacement(range(v), length)]
    return np.array(found, float)


# -- spaces -----------------------------------------------------------------------------------------------------------
def line(centre: float, scale: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and log weights of a quadrature of all real numbers, for tails of any power (Takahasi & Mori 1974)."""
    t = np.linspace(-3.8, 3.8, n)
    inner = 0.5 * np.pi * np.sinh(t)
    slope = scale * 0.5 * np.pi * np.cosh(t) * np.cosh(inner) * (t[1] - t[0])
    return centre + scale * np.sinh(inner), np.log(slope)


# -- the formulas against each other ----------------------------------------------------------------------------------
def check_reference() -> None:
    """Raise AssertionError unless closed forms, enumerations and quadratures agree."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(5, 2))
    full = {"nu": 5.0, "B": np.array([[2.0, 0.3], [0.3, 1.0]]), "m": np.array([0.2, -0.1]), "kappa": 0.7}
    diag = {**full, "B": np.array([2.0, 1.0])}
    for prior in (full, diag):
        chain = sum(log_predictive(x[[n]], updated(x[:n], np.ones(n), prior))[0] for n in range(len(x)))
        np.testing.assert_allclose(log_evidence(x, prior), chain, rtol=1e-10)
    # one feature: the predictive and E[log p] by quadrature over the precision and, given it, exactly over the mean
    one = {"nu": 4.0, "B": np.array([[1.7]]), "m": np.array([0.4]), "kappa": 0.8}
    for value in (0.0, 1.3):

        def gamma_density(lam):
            return np.exp(2.0 * np.log(0.85) - gammaln(2.0) + np.log(lam) - 0.85 * lam)

        def density(lam, value=value):
            spread = (1.0 + 1.0 / 0.8) / lam
            return gamma_density(lam) * np.exp(-0.5 * (value - 0.4) ** 2 / spread) / np.sqrt(2.0 * np.pi * spread)

        def log_density(lam, value=value):
            square = (value - 0.4) ** 2 + 1.0 / (0.8 * lam)
            return gamma_density(lam) * 0.5 * (np.log(lam) - np.log(2.0 * np.pi) - lam * square)

        for p in (one, {**one, "B": np.array([1.7])}):
            at = np.array([[value]])
            np.testing.assert_allclose(log_predictive(at, p)[0], np.log(quad(density, 0, np.inf)[0]), rtol=1e-7)
            np.testing.assert_allclose(expected_log_density(at, p)[0], quad(log_density, 0, np.inf)[0], rtol=1e-7)
    # the sum over all partitions is the chain rule over seatings; hard assignments have no slack
    some = np.array(list(partitions(5)))
    np.testing.assert_allclose(logsumexp([log_partition(p, 1.3) for p in some]), 0.0, atol=1e-12)
    prior = full
    hard = np.eye(2)[[0, 1, 0, 0, 1]]
    clusters = [updated(x, r, prior) for r in hard.T]
    joint = sum(log_evidence(x[r > 0], prior) for r in hard.T)
    for weights in ("dp", "dirichlet"):
        term, _, _ = weight_terms(hard.sum(axis=0), 1.3, weights)
        np.testing.assert_allclose(mixture_objective(x, hard, clusters, prior, 1.3, weights), joint + term, rtol=1e-10)
        found = mixture_steps(x, np.full((5, 2), 0.5) + 0.3 * (hard - 0.5), prior, 1.3, weights, 6)
        assert (np.diff(found["objective"]) >= -1e-10).all()
        every = [np.array(z) for z in itertools.product(range(2), repeat=5)]
        bound = logsumexp(
            [
                sum(log_evidence(x[z == k], prior) for k in range(2) if (z == k).any())
                + weight_terms(np.bincount(z, minlength=2).astype(float), 1.3, weights)[0]
                for z in every
            ]
        )
        assert found["objective"][-1] <= bound
    # the bound of topics lies below the sum over all assignments
    docs = [np.array([0, 1, 1]), np.array([2, 2, 0])]
    _, log_joint = all_topics(docs, 2, 3, 0.5, 0.3)
    lam, gamma = rng.gamma(2.0, size=(2, 3)) + 0.3, rng.gamma(2.0, size=(2, 2)) + 0.5
    counts = np.array([np.bincount(d, minlength=3) for d in docs], float)
    assert topics_objective(counts, gamma, lam, 0.5, 0.3) <= logsumexp(log_joint)
    chain = chain_steps(
        [np.array([0, 1, 1, 0]), np.array([1, 1, 0])],
        {
            "initial": np.array([1.0, 2.0]),
            "trans": np.array([[2.0, 1.0], [1.0, 3.0]]),
            "emit": np.array([[2.0, 1.0], [1.0, 2.0]]),
        },
        {"initial": np.full(2, 0.5), "trans": np.full((2, 2), 0.5), "emit": np.full((2, 2), 0.7)},
        5,
    )
    every = np.ravel(np.column_stack([chain["local"], chain["global"]]))
    assert (np.diff(every) >= -1e-10).all()
