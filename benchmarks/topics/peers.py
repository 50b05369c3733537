"""Runs one other program on one corpus, in a process and perhaps an environment of its own.

``python peers.py CORPUS.npz FOLDER PROGRAM K PASSES [SEED [ETA]]`` with PROGRAM one of sklearn-online, sklearn-batch,
gensim-lda, gensim-hdp, tomotopy-lda, tomotopy-hdp.  Of PASSES ``100/200/400`` topics are written after each, to
``FOLDER/100.npz`` and so on.  Needs numpy, scipy and the program, and nothing of this package.
Priors as in the thesis unless ETA is given: alpha 0.5 in total, 0.1 for each word.
"""

import os
import resource
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from scipy import sparse

ALPHA, ETA = 0.5, 0.1

# each program is set up by its function, which returns one that trains: an iterator of topics after each number of
# passes


def sklearn_online(x, k, passes, seed, eta):
    from sklearn.decomposition import LatentDirichletAllocation

    size, x = 128, sparse.csr_matrix(x)
    model = LatentDirichletAllocation(
        k, doc_topic_prior=ALPHA / k, topic_word_prior=eta, batch_size=size, total_samples=x.shape[0],
        random_state=seed,
    )  # fmt: skip

    def fit():
        for number in range(1, passes[-1] + 1):
            for start in range(0, x.shape[0], size):
                model.partial_fit(x[start : start + size])
            if number in passes:
                yield model.components_

    return fit


def sklearn_batch(x, k, passes, seed, eta):
    from sklearn.decomposition import LatentDirichletAllocation

    def fit():
        for number in passes:  # each from the start: nothing public goes on with a batch fit
            model = LatentDirichletAllocation(
                k, doc_topic_prior=ALPHA / k, topic_word_prior=eta, learning_method="batch", max_iter=number,
                random_state=seed,
            )  # fmt: skip
            yield model.fit(sparse.csr_matrix(x)).components_

    return fit


def gensim_corpus(x):
    # by name: these are programs of another environment, and nothing that the tests ask for
    Sparse2Corpus = import_module("gensim.matutils").Sparse2Corpus
    return list(Sparse2Corpus(sparse.csr_matrix(x), documents_columns=False)), {i: str(i) for i in range(x.shape[1])}


def gensim_lda(x, k, passes, seed, eta):
    models = import_module("gensim.models")
    corpus, names = gensim_corpus(x)
    many = (os.cpu_count() or 1) > 1
    kind = models.LdaMulticore if many else models.LdaModel
    settings = {"num_topics": k, "id2word": names, "alpha": [ALPHA / k] * k, "eta": eta, "chunksize": 1000}
    settings |= {"random_state": seed} | ({"workers": 1} if many else {})

    def fit():
        for number in passes:  # each from the start
            yield kind(corpus, passes=number, **settings).get_topics()

    return fit


def gensim_hdp(x, k, passes, seed, eta):
    HdpModel = import_module("gensim.models").HdpModel
    corpus, names = gensim_corpus(x)

    def fit():
        model = HdpModel(corpus, names, T=k, eta=eta, random_state=seed, chunksize=500, tau=10.0)
        for number in range(1, passes[-1] + 1):
            if number > 1:
                model.update(corpus)
            if number in passes:
                yield model.get_topics()

    return fit


def tomotopy(x, k, passes, seed, eta, kind):
    tomotopy = import_module("tomotopy")

    settings = {"seed": seed, "eta": eta}
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
        done = 0
        for number in passes:
            model.train(number - done, workers=int(os.environ.get("OMP_NUM_THREADS", "2")))
            done = number
            live = [t for t in range(model.k) if kind != "hdp" or model.is_live_topic(t)]
            table = np.zeros((len(live), x.shape[1]))
            places = np.array([int(w) for w in model.used_vocabs])
            for row, t in enumerate(live):
                table[row, places] = model.get_topic_word_dist(t)
            yield np.maximum(table, 1e-12)

    return fit


def cpu_seconds():
    """CPU time of this process, and of those that it started and that are done (gensim's workers)."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


PROGRAMS = {
    "sklearn-online": sklearn_online,
    "sklearn-batch": sklearn_batch,
    "gensim-lda": gensim_lda,
    "gensim-hdp": gensim_hdp,
    "tomotopy-lda": lambda *settings: tomotopy(*settings, "lda"),
    "tomotopy-hdp": lambda *settings: tomotopy(*settings, "hdp"),
}

AFRESH = ("sklearn-batch", "gensim-lda")
"""Programs that start anew for each number of passes."""


def main(path, folder, program, k, passes, seed=0, eta=ETA):
    """Fit; write topics and seconds."""
    x = sparse.load_npz(path)
    passes = sorted(int(p) for p in passes.split("/"))
    made = PROGRAMS[program](x, int(k), passes, int(seed), float(eta))
    wall, cpu = time.perf_counter(), cpu_seconds()
    for number, phi in zip(passes, made(), strict=True):
        seconds, used = time.perf_counter() - wall, cpu_seconds() - cpu
        # under its name only when it is whole: the process may be stopped any time
        part = Path(folder) / "part"
        with part.open("wb") as file:
            np.savez(file, phi=phi, seconds=seconds, cpu=used)
        part.rename(Path(folder) / f"{number}.npz")
        if program in AFRESH:
            wall, cpu = time.perf_counter(), cpu_seconds()


if __name__ == "__main__":
    main(*sys.argv[1:])
