"""Kinds of documentation: a Dirichlet process mixture of multinomials over the docstrings of installed packages.

Every docstring is one atom, a sparse row of word counts.  Needs scikit-learn, to count words.

    python examples/text_mixture.py
"""

import importlib
import inspect

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

import bnp_dask as bnp

MODULES = (
    "numpy numpy.fft numpy.linalg numpy.ma numpy.polynomial.polynomial numpy.random scipy.cluster.hierarchy scipy.fft "
    "scipy.integrate scipy.interpolate scipy.linalg scipy.ndimage scipy.optimize scipy.signal scipy.sparse "
    "scipy.spatial.distance scipy.special scipy.stats os shutil pathlib subprocess asyncio collections"
)
STOP = (
    "array array_like axis default example examples float function given int ndarray none notes numpy np optional "
    "parameters returns return scipy shape see true false type used using value values versionadded docs import"
)


def docstrings() -> list[str]:
    """Docstrings of at least 300 letters of all public names of the modules, each once."""
    found = {}
    for name in MODULES.split():
        module = importlib.import_module(name)
        for member in sorted(dir(module)):
            thing = getattr(module, member)
            if member.startswith("_") or not callable(thing):
                continue
            text = inspect.getdoc(thing) or ""
            if len(text) >= 300:
                found[text] = f"{name}.{member}"
    return list(found)


def main() -> None:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    stop = [*ENGLISH_STOP_WORDS, *STOP.split()]
    counter = CountVectorizer(stop_words=stop, token_pattern="[a-z]{3,}", min_df=5, max_df=0.2)
    counts = counter.fit_transform(docstrings())
    words = list(counter.get_feature_names_out())
    counts = counts[np.flatnonzero(counts.sum(axis=1))]  # a document without words says nothing
    print(f"{counts.shape[0]} docstrings, {counts.shape[1]} words, {counts.sum()} counted")

    model = bnp.Model(bnp.DPMixture(gamma=1.0), bnp.Multinomial(lam=0.1))
    result = bnp.train(
        model,
        counts,
        init=bnp.BregmanKMeans(n_clusters=25),
        schedule=bnp.Memoized(laps=15),
        batch_size=200,
        rng=0,
    )
    print(bnp.inspect(result.posterior, vocabulary=words))


if __name__ == "__main__":
    main()
