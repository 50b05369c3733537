"""Clusters whose sizes follow a power law, as in Figure 2 of Tank, Foti & Fox 2015.

``python -m benchmarks.streaming.power_law [ORDERS] [LAPS] [SEED]``: JSON lines.  ``python -m
benchmarks.streaming.power_law draw LINES PICTURE`` draws them.

10,000 documents are drawn from a mixture of multinomials whose partition is a Pitman-Yor process with discount 0.75 and
concentration 1.  Settings of Dirichlet process and normalized inverse Gaussian process are chosen on the first 1,000 by
:func:`bnp_dask.grid`, 7,000 are filtered, and the score of the last 2,000 is noted after every thousand, beside that of
the clusters that the documents are from; last come ``LAPS`` of expectation propagation.  The paper does not say how
many words there are, how long documents are, nor the Dirichlet parameter of words; those here are guesses.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.reports.plots import new_figure
from bnp_dask.reproduce.data import pitman_yor

DOCUMENTS, FIRST, TRAINED = 10_000, 1_000, 7_000
WORDS, LENGTH, TOPIC = 200, 50, 0.5
DISCOUNT, CONCENTRATION = 0.75, 1.0
VALUES = [1.0, 10.0, 100.0, 1000.0]
GRIDS = {
    "DP": (bnp.DPMixture(), {"gamma": VALUES}),
    "IG": (bnp.NGGPMixture(), {"a": VALUES, "tau": [0.1, *VALUES]}),
}


@dataclass(frozen=True, eq=False)
class Drawn:
    """Documents ``(D, V)`` and the cluster of each."""

    x: sparse.csr_array
    label: np.ndarray


def documents(seed: int) -> Drawn:
    """Documents in random order."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(pitman_yor(DOCUMENTS, DISCOUNT, CONCENTRATION, rng))
    words = rng.dirichlet(np.full(WORDS, TOPIC), label.max() + 1)
    x = np.array([rng.multinomial(LENGTH, words[k]) for k in label], float)
    return Drawn(sparse.csr_array(x), label)


def true_score(drawn: Drawn, n: int) -> float:
    """Score of the last documents by the clusters of the first ``n``, shares as the Pitman-Yor rule has them."""
    kinds, own = np.unique(drawn.label[:n], return_inverse=True)
    members = sparse.csr_array((np.ones(n), (own, np.arange(n))), shape=(len(kinds), n))
    lam = np.concatenate([(members @ drawn.x[:n]).toarray(), np.zeros((1, WORDS))]) + TOPIC
    counts = np.append(np.bincount(own) - DISCOUNT, CONCENTRATION + DISCOUNT * len(kinds))
    logs = np.log(counts / counts.sum())
    held = drawn.x[FIRST + TRAINED :].toarray()
    total = lam.sum(axis=1)
    out = np.empty((len(held), len(lam)))
    for k, own_lam in enumerate(lam):
        out[:, k] = (gammaln(own_lam + held) - gammaln(own_lam)).sum(axis=1)
    out += gammaln(total) - gammaln(total + LENGTH) + logs
    top = out.max(axis=1)
    base = gammaln(LENGTH + 1.0) - gammaln(held + 1.0).sum(axis=1)
    return float(np.mean(top + np.log(np.exp(out - top[:, None]).sum(axis=1)) + base))


def chosen(drawn: Drawn) -> dict[str, bnp.Model]:
    """The best of each grid on the first documents."""
    out = {}
    for name, (prior, settings) in GRIDS.items():
        found = bnp.grid(bnp.Model(prior, bnp.Multinomial(TOPIC)), drawn.x[:FIRST], settings, first=FIRST)
        print(json.dumps({"prior": name, **found[0].settings, "first": found[0].score}), flush=True)
        out[name] = found.best
    return out


def run(drawn: Drawn, models: dict[str, bnp.Model], order: int, laps: int) -> None:
    """Scores of one order of the documents."""
    rest = FIRST + np.random.default_rng(order).permutation(TRAINED)
    held = drawn.x[FIRST + TRAINED :]
    for name, model in models.items():
        init: object = None
        for n in range(1000, TRAINED + 1, 1000):
            part = drawn.x[rest[n - 1000 : n]]
            posterior = bnp.train(model, part, schedule=bnp.Filter(), init=init, batch_size=1000).posterior
            init, model = bnp.FromPosterior(posterior), posterior.model
            emit(f"filter {name}", order, n, posterior, held, len(np.unique(drawn.label[rest[:n]])))
        if laps:
            schedule = bnp.ExpectationPropagation(laps=laps, window=1)
            posterior = bnp.train(models[name], drawn.x[rest], schedule=schedule, batch_size=1000).posterior
            emit(f"propagation {name}", order, TRAINED, posterior, held, len(np.unique(drawn.label[rest])))


def emit(name: str, order: int, n: int, posterior: bnp.Posterior, held: sparse.csr_array, true: int) -> None:
    k = int(np.sum(posterior.summary["N"] >= 0.5))
    line = {"name": name, "order": order, "documents": n, "clusters": k, "true": true}
    print(json.dumps({**line, "score": bnp.score(posterior, held)}), flush=True)


def main(orders: int = 5, laps: int = 0, seed: int = 0) -> None:
    drawn = documents(seed)
    print(json.dumps({"name": "truth", "score": true_score(drawn, FIRST + TRAINED)}), flush=True)
    models = chosen(drawn)
    for order in range(orders):
        run(drawn, models, order, laps)


def draw(lines: str, path: str) -> None:
    """Scores and clusters by documents: means over orders, beside the truth; triangles are expectation propagation."""
    rows = [json.loads(line) for line in Path(lines).read_text().splitlines()]
    truth = next(row["score"] for row in rows if row.get("name") == "truth")
    figure = new_figure(9.0, 3.4)
    left = figure.add_subplot(1, 2, 1, xlabel="documents", ylabel="nats per held-out document")
    right = figure.add_subplot(1, 2, 2, xlabel="documents", ylabel="clusters")
    left.axhline(truth, color="#553c9a", label="true clusters of 8,000")
    seen = sorted({row["documents"] for row in rows if "documents" in row})
    for prior, color in (("DP", "#2b6cb0"), ("IG", "#c53030")):
        for kind, style in (("filter", "-"), ("propagation", "^")):
            own = [row for row in rows if row.get("name") == f"{kind} {prior}"]
            if not own:
                continue
            at = [n for n in seen if any(row["documents"] == n for row in own)]
            for axis, what in ((left, "score"), (right, "clusters")):
                means = [np.mean([row[what] for row in own if row["documents"] == n]) for n in at]
                axis.plot(at, means, style, color=color, label=f"{kind} {prior}")
    true = [np.mean([row["true"] for row in rows if row.get("documents") == n]) for n in seen]
    right.plot(seen, true, color="#553c9a", label="true clusters")
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"]:
        draw(*sys.argv[2:4])
    else:
        main(*map(int, sys.argv[1:4]))
