"""Corpora of the benchmarks: one with known topics, toy bars, and five real ones from their files."""

from __future__ import annotations

import gzip
import html
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from bnp_dask.data import Text, as_source
from bnp_dask.data.ingestion.ingest import ingest
from tests.topics.bars import bars_corpus

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"

TOPIC = 0.02
"""Dirichlet parameter of each word in a topic of the synthetic corpus: about a hundred words in use."""

SHARE = 0.092
"""Dirichlet parameter of each topic in a document: the true topics score -7.158 at seed 0, -7.102 at seed 1."""

TEST_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training and test documents ``(D, V)``, and the true topics ``(K, V)`` where they are known."""

    name: str
    train: sparse.csr_array
    test: sparse.csr_array
    truth: np.ndarray | None = None


def synthetic(
    n_docs: int = 20_000, n_words: int = 5000, n_topics: int = 50, length: int = 120, n_test: int = 1000, seed: int = 0
) -> Corpus:
    """Documents drawn from latent Dirichlet allocation."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(n_words, TOPIC), n_topics)
    total = n_docs + n_test
    shares = rng.dirichlet(np.full(n_topics, SHARE), total)
    counts = np.array([rng.multinomial(length, share) for share in shares])
    documents, words = [], []
    for k in range(n_topics):
        who = np.repeat(np.arange(total), counts[:, k])
        edges = np.cumsum(phi[k])
        words.append(np.minimum(np.searchsorted(edges, rng.random(len(who)) * edges[-1]), n_words - 1))
        documents.append(who)
    where = np.concatenate(documents), np.concatenate(words)
    x = sparse.csr_array((np.ones(total * length), where), shape=(total, n_words))
    x.sum_duplicates()
    return Corpus("synthetic", x[:n_docs], x[n_docs:], phi)


def bars(seed: int = 0) -> Corpus:
    """Toy bars of thesis 5.6.1, with a hundred test documents."""
    x, phi = bars_corpus(1100, 200, seed)
    return Corpus("bars", x[:1000], x[1000:], phi)


def halves(name: str, x: sparse.csr_array, seed: int | Sequence[int] = 0) -> Corpus:
    """A fixed split of documents with two distinct words; words that training lacks are left out of the test."""
    x = x[np.flatnonzero(np.diff(x.indptr) >= 2)]
    order = np.random.default_rng(seed).permutation(x.shape[0])
    n_test = round(TEST_SHARE * x.shape[0])
    train, test = x[np.sort(order[n_test:])], x[np.sort(order[:n_test])]
    seen = np.flatnonzero(np.asarray(train.sum(axis=0)) > 0)
    return Corpus(name, sparse.csr_array(train[:, seen]), sparse.csr_array(test[:, seen]))


def validation(corpus: Corpus, seed: int = 0) -> Corpus:
    """Training documents alone, a tenth of them set apart: settings are chosen by these, never by the test."""
    return halves(f"{corpus.name} validation", corpus.train, [seed, 1])


def kos() -> sparse.csr_array:
    """KOS: 3,430 documents, ready counts."""
    return _store(SHARED / "kos" / "docword.kos.txt.gz", None)


def nips12() -> sparse.csr_array:
    """NIPS 1-12, raw OCR text: 1,740 papers."""
    text = Text(encoding="latin-1", glob="*.txt", min_df=10, max_df=0.5, token_pattern="[a-z]{3,}")
    return _store(SHARED / "nips12" / "nipstxt.tar.xz", text)


def newsgroups20() -> sparse.csr_array:
    """20 Newsgroups by date, the training part: 11,314 posts with headers."""
    text = Text(encoding="latin-1", min_df=10, max_df=0.5, token_pattern="[a-z]{3,}")
    return _store(SHARED / "newsgroups20" / "20news-bydate-train.tar.xz", text)


def imdb() -> sparse.csr_array:
    """Film reviews, the training part: 25,000 documents."""
    text = Text(glob="*/[pn]*/*_*.txt", min_df=20, max_df=0.5, token_pattern="[a-z]{3,}")
    return _store(SHARED / "imdb" / "aclImdb_train.tar.xz", text)


def reuters21578() -> sparse.csr_array:
    """Newswire articles: title and body of 21,578 SGML records."""
    return _store(_reuters, Text(min_df=10, max_df=0.5, token_pattern="[a-z]{3,}"))


def _reuters() -> Iterator[tuple[str, str]]:
    for path in sorted((SHARED / "reuters21578").glob("reut2-*.sgm.gz")):
        content = gzip.decompress(path.read_bytes()).decode("latin-1")
        for number, record in re.findall(r'<REUTERS[^>]*NEWID="(\d+)"[^>]*>(.*?)</REUTERS>', content, re.DOTALL):
            parts = re.findall(r"<(TITLE|BODY)>(.*?)</\1>", record, re.DOTALL)
            yield number, html.unescape(" ".join(part for _, part in parts))


def _store(source: object, text: Text | None) -> sparse.csr_array:
    """Counts of raw text or of a file of counts, through a store as a user would make it."""
    with tempfile.TemporaryDirectory() as folder:
        ingest(source, Path(folder) / "counts.zarr", text=text)  # type: ignore[arg-type]
        made = as_source(Path(folder) / "counts.zarr")
        return sparse.csr_array(sparse.vstack([made.reader(b)().x for b in range(made.n_batches)], format="csr"))


DRAWN = {f.__name__: f for f in (synthetic, bars)}
REAL = {f.__name__: f for f in (kos, nips12, newsgroups20, reuters21578, imdb)}


def load(name: str, seed: int = 0, cache: Path | None = None) -> Corpus:
    """A corpus by its name; counts of a real one are kept in the folder ``cache`` from one run to the next."""
    if name in DRAWN:
        return DRAWN[name](seed=seed)
    if cache is None:
        return halves(name, REAL[name](), seed)
    path = cache / f"counts_{name}.npz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        sparse.save_npz(path, REAL[name]())
    return halves(name, sparse.csr_array(sparse.load_npz(path)), seed)
