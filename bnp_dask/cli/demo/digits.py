"""Ways of writing digits: a mixture of rows of bits over scikit-learn's 8x8 digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bnp_dask.allocation import DPMixture
from bnp_dask.analysis.predict import predict
from bnp_dask.cli.console import table
from bnp_dask.cli.demo.pictures import Card, digits_picture
from bnp_dask.cli.demo.stage import Stage
from bnp_dask.data import ingest
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.inputs import say
from bnp_dask.model import Model
from bnp_dask.observation import Bernoulli, estimates_of

LAPS = 60
BATCH = 300
INK_LEVEL = 8
"""Grey value, of 16, from which a pixel counts as ink."""
SHOWN = 40


def play(stage: Stage) -> Path:
    """Store, train, look."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    bits = (digits.data >= INK_LEVEL).astype(np.uint8)
    stage.say(f"{len(bits):,} handwritten digits of 8x8 pixels, ink or no ink")
    np.save(stage.folder / "digits.npy", bits)
    store = stage.path("digits.zarr")
    found = ingest(stage.path("digits.npy"), store, batch_size=BATCH)
    stage.say(str(found))
    model = Model(DPMixture(gamma=5.0), Bernoulli())
    laps = LAPS if stage.laps is None else stage.laps
    result = stage.train(model, store, BregmanKMeans(1), Memoized(laps=laps))
    posterior = result.posterior
    stage.tell_of_end(result)
    resp = predict(posterior, bits.astype(np.float64), soft=True)
    label = resp.argmax(axis=1)
    probability = estimates_of(posterior.model.observation, posterior.observation, None)["probability"].values
    cards = make_cards(posterior.weights, probability, resp, bits, digits.target)
    right = sum(np.bincount(digits.target[label == k]).max() for k in np.unique(label))
    say(f"{result.reason}, {result.seconds:.0f} s, {len(cards)} clusters with digits; the largest:")
    say(table(("share", "true digits (never shown to the model)"), [(f"{c.share:.1%}", c.words) for c in cards[:12]]))
    title = (
        f"{len(cards)} ways of writing a digit: mean and four members of each cluster.  {right / len(bits):.0%} of the "
        "digits agree with most of their cluster"
    )
    return digits_picture(stage.folder / "digits.png", cards[:SHOWN], result.history, title)


def make_cards(
    weights: np.ndarray, mean: np.ndarray, resp: np.ndarray, bits: np.ndarray, digit: np.ndarray
) -> list[Card]:
    """One card for each cluster that is the most probable one of some digit, by falling share."""
    label = resp.argmax(axis=1)
    cards = []
    for k in np.argsort(-weights, kind="stable"):
        members = np.flatnonzero(label == k)
        if len(members) == 0:
            continue
        counts = np.bincount(digit[members], minlength=10)
        best = np.argsort(-counts, kind="stable")[:2]
        words = ", ".join(f"{d} ({counts[d] / counts.sum():.0%})" for d in best if counts[d])
        # members nearest to the mean; a cluster of fewer than four shows some twice
        near = members[np.argsort(((bits[members] - mean[k]) ** 2).sum(axis=1), kind="stable")]
        shown = bits[np.resize(near, 4)].reshape(4, 8, 8)
        cards.append(Card(float(weights[k]), words, mean[k].reshape(8, 8), shown))
    return cards
