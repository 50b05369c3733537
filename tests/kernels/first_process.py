"""``python -m tests.kernels.first_process``: a small run of every kind of kernels, and a hash of its bits."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator

import numpy as np

import bnp_dask as bnp
from tests.train.test_starts import KINDS, bits, documents, go, nine_clusters


def runs() -> Iterator[tuple[str, bnp.Result]]:
    """The kinds of model and schedule, and those that need no truncation."""
    for kind, (model, data, settings) in KINDS.items():
        yield kind, go(model, data(), rng=5, **settings)
    top = bnp.HDPTopics(step=bnp.DocumentStep(top=3))
    yield "top topics", go(bnp.Model(top, bnp.Multinomial()), documents(), rng=5, **KINDS["topics"][2])
    process = bnp.NGGPMixture(1.0, 0.5, 1.0)
    for kind, schedule in (("filter", bnp.Filter()), ("Gibbs", bnp.Gibbs(laps=5, burn_in=2))):
        for observation in (bnp.Gaussian(), bnp.DiagGaussian()):
            model = bnp.Model(process, observation)
            yield f"{kind}, {type(observation).__name__}", go(model, nine_clusters(), schedule=schedule, rng=5)
        yield f"{kind}, Multinomial", go(bnp.Model(process, bnp.Multinomial()), documents(), schedule=schedule, rng=5)


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        for kind, result in runs():
            found = [*bits(result).values(), np.array([row["elbo"] for row in result.history]).tobytes()]
            print(kind, hashlib.sha256(b"".join(found)).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
