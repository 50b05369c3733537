"""Compile the loops of the usual models, so that an image carries them: ``python containers/warm.py``.

Trains each kind of model on next to nothing, predicts and scores.  Compiled code goes where the package keeps it, below
``NUMBA_CACHE_DIR`` if that is set.  What a run needs beyond these is compiled when it is needed, as anywhere.
"""

import numpy as np
from scipy import sparse

import bnp_dask as bnp


def mixtures(rng: np.random.Generator) -> None:
    """Points in a plane, counts and bits, from the default start."""
    points = np.concatenate([rng.normal(centre, 1.0, (200, 2)) for centre in ([0, 0], [6, 1], [-5, 4])])
    tables = [(bnp.Gaussian(), points), (bnp.DiagGaussian(), points), (bnp.Poisson(), rng.poisson(4.0, (600, 2)) * 1.0)]
    for likelihood, rows in tables:
        used(bnp.train(bnp.Model(bnp.DPMixture(), likelihood), rows, rng=0).posterior, rows)


def topics(rng: np.random.Generator) -> None:
    """60 documents of 30 tokens out of 24 words: two topics."""
    halves = np.repeat(np.eye(2), 12, axis=1) / 12
    counts = sparse.csr_array(np.array([rng.multinomial(30, halves[d % 2]) for d in range(60)]))
    used(bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), counts, rng=0).posterior, counts)


def sequences(rng: np.random.Generator) -> None:
    """Two sequences of 240 steps through three states."""
    walk = np.repeat([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]], 80, axis=0) + rng.normal(size=(240, 2))
    walks = [walk, walk[::-1]]
    used(bnp.train(bnp.Model(bnp.HDPHMM(kappa=50.0), bnp.Gaussian()), walks, rng=0).posterior, walks)


def used(posterior: bnp.Posterior, data: object) -> None:
    """Predict and score, as those who have the image will."""
    bnp.predict(posterior, data)
    bnp.score(posterior, data)
    print(posterior)


if __name__ == "__main__":
    for kind in (mixtures, topics, sequences):
        kind(np.random.default_rng(0))
