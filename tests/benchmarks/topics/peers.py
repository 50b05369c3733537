"""Runs one other program on one corpus, in a process and perhaps an environment of its own.

``python peers.py CORPUS.npz OUT.npz PROGRAM K PASSES [SEED]`` with PROGRAM one of sklearn-online, sklearn-batch,
gensim-lda, gensim-hdp, tomotopy-lda, tomotopy-hdp.  Needs numpy, scipy and the program, and nothing of this package.
Priors as in the thesis: alpha 0.5 in total, 0.1 for each word.
"""

import sys
import time
from importlib import import_module

import numpy as np
from scipy import sparse

ALPHA, ETA = 0.5, 0.1


def sklearn(x, k, passes, seed, method):
    from sklearn.decomposition import LatentDirichletAllocation

    def fit():
        model = LatentDirichletAllocation(
            k, doc_topic_prior=ALPHA / k, topic_word_prior=ETA, learning_method=method, max_iter=passes,
            batch_size=128, total_samples=x.shape[0], random_state=seed,
        )  # fmt: skip
        return model.fit(sparse.csr_matrix(x)).components_

    return fit


def gensim_lda(x, k, passes, seed):
    import os

    # by name: these are programs of another environment, and nothing that the tests ask for
    Sparse2Corpus = import_module("gensim.matutils").Sparse2Corpus
    models = import_module("gensim.models")
    LdaModel, LdaMulticore = models.LdaModel, models.LdaMulticore

    corpus = list(Sparse2Corpus(sparse.csr_matrix(x), documents_columns=False))
    names = {i: str(i) for i in range(x.shape[1])}
    settings = {"num_topics": k, "id2word": names, "alpha": [ALPHA / k] * k, "eta": ETA, "passes": passes}

    def fit():
        if (os.cpu_count() or 1) > 1:
            return LdaMulticore(corpus, workers=1, random_state=seed, chunksize=1000, **settings).get_topics()
        return LdaModel(corpus, random_state=seed, chunksize=1000, **settings).get_topics()

    return fit


def gensim_hdp(x, k, passes, seed):
    Sparse2Corpus = import_module("gensim.matutils").Sparse2Corpus
    HdpModel = import_module("gensim.models").HdpModel

    corpus = list(Sparse2Corpus(sparse.csr_matrix(x), documents_columns=False))
    names = {i: str(i) for i in range(x.shape[1])}

    def fit():
        model = HdpModel(corpus, names, T=k, eta=ETA, random_state=seed, chunksize=500, tau=10.0)
        for _ in range(passes - 1):
            model.update(corpus)
        return model.get_topics()

    return fit


def tomotopy(x, k, passes, seed, kind):
    tomotopy = import_module("tomotopy")

    settings = {"seed": seed, "eta": ETA}
    if kind == "hdp":
        model = tomotopy.HDPModel(initial_k=max(2, k), alpha=0.1, gamma=1.0, **settings)
    else:
        model = tomotopy.LDAModel(k=k, alpha=ALPHA / k, **settings)
    for d in range(x.shape[0]):
        span = slice(x.indptr[d], x.indptr[d + 1])
        words = np.repeat(x.indices[span], x.data[span].astype(int))
        if len(words):
            model.add_doc([str(w) for w in words])

    def fit():
        model.train(passes, workers=2)
        live = [t for t in range(model.k) if kind != "hdp" or model.is_live_topic(t)]
        table = np.zeros((len(live), x.shape[1]))
        places = np.array([int(w) for w in model.used_vocabs])
        for row, t in enumerate(live):
            table[row, places] = model.get_topic_word_dist(t)
        return np.maximum(table, 1e-12)

    return fit


def main(path, out, program, k, passes, seed=0):
    """Fit; write topics and seconds."""
    x = sparse.load_npz(path)
    made = {
        "sklearn-online": lambda: sklearn(x, k, passes, seed, "online"),
        "sklearn-batch": lambda: sklearn(x, k, passes, seed, "batch"),
        "gensim-lda": lambda: gensim_lda(x, k, passes, seed),
        "gensim-hdp": lambda: gensim_hdp(x, k, passes, seed),
        "tomotopy-lda": lambda: tomotopy(x, k, passes, seed, "lda"),
        "tomotopy-hdp": lambda: tomotopy(x, k, passes, seed, "hdp"),
    }[program]()
    wall, cpu = time.perf_counter(), time.process_time()
    phi = made()
    np.savez(out, phi=phi, seconds=time.perf_counter() - wall, cpu=time.process_time() - cpu)


if __name__ == "__main__":
    main(*sys.argv[1:4], *(int(a) for a in sys.argv[4:]))
