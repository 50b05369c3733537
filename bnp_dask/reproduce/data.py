"""Data of the papers' experiments: toys as they are described, real sets from a folder, and synthetic stand-ins."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from bnp_dask.reproduce.base import Task

FONT = {
    "A": "0C1E33333F3333", "B": "3F66663E66663F", "C": "3C66030303663C", "D": "1F36666666361F", "E": "7F46161E16467F",
    "F": "7F46161E16060F", "G": "3C66030373667C", "H": "3333333F333333", "I": "1E0C0C0C0C0C1E", "J": "7830303033331E",
    "K": "6766361E366667", "L": "0F06060646667F", "M": "63777F7F6B6363", "N": "63676F7B736363", "O": "1C36636363361C",
    "P": "3F66663E06060F", "Q": "1E3333333B1E38", "R": "3F66663E366667", "S": "1E33070E38331E", "T": "3F2D0C0C0C0C1E",
    "U": "3333333333333F", "V": "33333333331E0C", "W": "6363636B7F7763", "X": "6363361C1C3663", "Y": "3333331E0C0C1E",
    "Z": "7F6331184C667F",
}  # fmt: skip
"""Letters of 8 x 7 pixels: one byte per row, lowest bit at the left."""

MEANS = np.array([[0, 20], [20, 0], [-30, -30], [30, -30], [-20, 0], [0, -20], [30, 30], [-30, 30]], np.float64)
"""Means of the eight states of toy sequences, ``(8, 2)``; each has unit covariance."""

LEAVE = 0.001
"""Probability that a toy sequence goes on to its next state; the last state is followed by the first."""


class Labelled(NamedTuple):
    """Atoms ``(n, D)`` or sequences of them, and the true cluster of each atom ``(n,)``."""

    x: np.ndarray
    labels: np.ndarray


class Documents(NamedTuple):
    """Word counts of training and held-out documents, ``(D, V)`` each, and their description."""

    train: sparse.csr_array
    held: sparse.csr_array
    words: str


class Recordings(NamedTuple):
    """Sequences of rows ``(T, D)``, the true state of each row (-1: none), and a description."""

    sequences: list[np.ndarray]
    labels: np.ndarray
    words: str


# -- toys of the papers ----------------------------------------------------------------------------------------
def letter_pictures() -> np.ndarray:
    """26 pictures of 8 x 8 pixels, 0 and 1, ``(26, 64)``."""
    rows = np.array([list(bytes.fromhex(code)) for code in FONT.values()])
    pictures = np.zeros((26, 8, 8))
    pictures[:, :7] = (rows[:, :, None] >> np.arange(8)) & 1
    return pictures.reshape(26, 64)


def letter_covariances(noise: float = 0.05) -> np.ndarray:
    """Patches that vary where a letter has ink, ``(26, 64, 64)`` (thesis 3.6.1)."""
    return np.array([np.diag(picture + noise**2) for picture in letter_pictures()])


def edge_covariances(directions: int = 8, side: int = 5) -> np.ndarray:
    """Patches with a strong edge in one of some directions, ``(directions, side^2, side^2)`` (thesis 4.4.2)."""
    rows, columns = np.mgrid[0:side, 0:side] - (side - 1) / 2
    covariances = []
    for j in range(directions):
        rng = np.random.default_rng(100 + j)
        across = np.cos(np.pi * j / directions) * columns + np.sin(np.pi * j / directions) * rows
        sides = rng.normal(size=(400, 2))
        steps = [np.where(across > rng.uniform(-1.5, 1.5), a, b).ravel() for a, b in sides]
        covariances.append(np.cov(np.array(steps).T, bias=True) + 0.05 * np.eye(side * side))
    return np.array(covariances)


def gaussian_atoms(covariances: np.ndarray, weights: np.ndarray, n: int, seed: int) -> Labelled:
    """Atoms of zero-mean Gaussians."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(weights), size=n, p=weights)
    x = rng.normal(size=(n, len(covariances[0])))
    for k, covariance in enumerate(covariances):
        x[labels == k] = x[labels == k] @ np.linalg.cholesky(covariance).T
    return Labelled(x, labels)


def letters(n: int, seed: int) -> Labelled:
    """Patches of letters, each letter 95 % as frequent as the one before (thesis 3.6.1)."""
    weights = 0.95 ** np.arange(26)
    return gaussian_atoms(letter_covariances(), weights / weights.sum(), n, seed)


def edges(n: int, seed: int) -> Labelled:
    """Patches of eight equally common edges (thesis 4.4.2)."""
    return gaussian_atoms(edge_covariances(), np.full(8, 1 / 8), n, seed)


def bar_topics(smooth: float = 0.05) -> np.ndarray:
    """Word probabilities of five lying and five standing bars on 30 x 30 words, ``(10, 900)``."""
    bars = np.zeros((10, 30, 30))
    for j in range(5):
        bars[j, 6 * j : 6 * j + 6] = 1.0
        bars[5 + j, :, 6 * j : 6 * j + 6] = 1.0
    return (1.0 - smooth) * bars.reshape(10, 900) / 180 + smooth / 900


def bar_documents(n: int, length: int, seed: int) -> tuple[sparse.csr_array, np.ndarray]:
    """Documents of one bar each (thesis 3.6.2), ``(n, 900)``, and their bars."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=n)
    share = bar_topics()
    counts = np.array([rng.multinomial(length, share[k] / share[k].sum()) for k in labels], np.float64)
    return sparse.csr_array(counts), labels


def mixed_bar_documents(n: int, length: int, seed: int) -> sparse.csr_array:
    """Documents of one to three bars (thesis 5.6.1), ``(n, 900)``."""
    rng = np.random.default_rng(seed)
    phi, rows = bar_topics(), []
    for _ in range(n):
        used = rng.choice(10, rng.integers(1, 4), replace=False)
        rows.append(rng.multinomial(length, rng.dirichlet(np.ones(len(used))) @ phi[used]))
    return sparse.csr_array(np.array(rows, np.float64))


def toy_sequences(n: int, length: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Sequences ``(T, 2)`` of eight states that rarely change (thesis 6.6.1), and the states of all, ``(n T,)``.

    Sequence i starts in state i modulo 8.
    """
    rng = np.random.default_rng(seed)
    points, states = [], []
    for i in range(n):
        z = (i + np.concatenate([[0], np.cumsum(rng.random(length - 1) < LEAVE)])) % len(MEANS)
        points.append(MEANS[z] + rng.normal(size=(length, 2)))
        states.append(z)
    return points, np.concatenate(states)


def small_bars() -> np.ndarray:
    """Pixel probabilities of sixteen bars with a baseline on 8 x 8 pixels, ``(16, 64)`` (streaming paper, 4.1)."""
    lines = np.kron(np.eye(8), np.ones((1, 8))).reshape(8, 8, 8)
    bars = np.concatenate([lines, lines.transpose(0, 2, 1)]).reshape(16, 64) + 0.15
    return bars / bars.sum(axis=1, keepdims=True)


def small_bar_images(n: int, seed: int) -> Labelled:
    """Images of 50 counts of one of sixteen bars, ``(n, 64)``."""
    rng, bars = np.random.default_rng(seed), small_bars()
    labels = rng.integers(len(bars), size=n)
    return Labelled(np.array([rng.multinomial(50, bars[k]) for k in labels], np.float64), labels)


def pitman_yor(n: int, discount: float, concentration: float, rng: np.random.Generator) -> np.ndarray:
    """Clusters of atoms that are seated by the Pitman-Yor rule, ``(n,)``."""
    counts, label = np.zeros(n), np.zeros(n, np.int64)
    k = 0
    for i in range(n):
        seats = np.append(counts[:k] - discount, concentration + discount * k)
        label[i] = rng.choice(k + 1, p=seats / seats.sum())
        k = max(k, int(label[i]) + 1)
        counts[label[i]] += 1.0
    return label


def power_law_documents(n: int, seed: int, words: int = 200, length: int = 50, eta: float = 0.75) -> Labelled:
    """Documents of a Pitman-Yor(.75, 1) mixture in random order (streaming paper, 4.2), counts ``(n, words)``."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(pitman_yor(n, 0.75, 1.0, rng))
    phi = rng.dirichlet(np.full(words, eta), label.max() + 1)
    return Labelled(np.array([rng.multinomial(length, phi[k]) for k in label], np.float64), label)


# -- real data, or a stand-in ----------------------------------------------------------------------------------
def documents(task: Task, name: str, n: int, vocabulary: int, held: float = 0.2) -> Documents:
    """Documents of a corpus, its most frequent words, a share held out; topics drawn at random where it is absent."""
    path = task.path(name)
    x = _stand_in_documents(n, vocabulary, task.seed) if path is None else _counts(path, name, task.cache)
    order = np.random.default_rng(task.seed).permutation(x.shape[0])[:n]
    x = x[order]
    words = np.argsort(-np.asarray((x > 0).sum(axis=0)).ravel(), kind="stable")[:vocabulary]
    x = sparse.csr_array(x[:, np.sort(words)])
    x = x[np.flatnonzero(np.diff(x.indptr) >= 2)]
    n_held = round(held * x.shape[0])
    what = {"kos": "posts of the KOS blog", "nips12": "NIPS papers", "newsgroups20": "posts of 20 Newsgroups"}
    kind = "synthetic documents of 60 power-law topics (stand-in)" if path is None else what[name]
    total = f"{x.shape[0] - n_held:,} {kind}, {x.shape[1]:,} words" + (f", {n_held:,} more held out" if n_held else "")
    return Documents(train=x[n_held:], held=x[:n_held], words=total)


def _stand_in_documents(n: int, vocabulary: int, seed: int, topics: int = 60, length: int = 120) -> sparse.csr_array:
    """Documents of few of sixty topics, whose sizes fall like one over their rank."""
    rng = np.random.default_rng([seed, 7])
    phi = rng.dirichlet(np.full(vocabulary, 0.03), topics)
    sizes = 1.0 / np.arange(1, topics + 1)
    shares = rng.dirichlet(3.0 * sizes / sizes.sum(), n)
    lengths = rng.poisson(length, n) + 2
    return sparse.csr_array(
        np.array([rng.multinomial(m, s @ phi) for m, s in zip(lengths, shares, strict=True)], float)
    )


def _counts(path: Path, name: str, cache: Path | None) -> sparse.csr_array:
    """Counts of a corpus; counts of raw texts are kept in a folder."""
    import bnp_dask as bnp

    if name == "kos":
        rows, words, counts = np.loadtxt(path / "docword.kos.txt.gz", skiprows=3, dtype=np.int64).T
        return sparse.csr_array((counts.astype(float), (rows - 1, words - 1)))
    file = None if cache is None else cache / f"{name}.npz"
    if file is not None and file.is_file():
        return sparse.csr_array(sparse.load_npz(file))
    packed = {"nips12": "nipstxt.tar.xz", "newsgroups20": "20news-bydate-train.tar.xz"}[name]
    glob = {"nips12": "*.txt"}.get(name)
    text = bnp.Text(encoding="latin-1", glob=glob, min_df=10, max_df=0.5, token_pattern="[a-z]{3,}")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        bnp.ingest(path / packed, Path(folder) / "counts.zarr", text=text)
        made = bnp.as_source(Path(folder) / "counts.zarr")
        x = sparse.csr_array(sparse.vstack([made.reader(b)().x for b in range(made.n_batches)], format="csr"))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        sparse.save_npz(file, x)
    return x


def digits(task: Task, n: int, components: int = 50) -> tuple[Labelled, str]:
    """Handwritten digits on their principal components: MNIST, or the small digits that scikit-learn carries."""
    path = task.path("mnist")
    if path is None:
        from sklearn.datasets import load_digits

        held = load_digits()
        x, labels = np.asarray(held.data, np.float64), np.asarray(held.target)
        components = min(components, 20)
        words = f"scikit-learn's {len(x):,} digits of 8 x 8 pixels (stand-in for MNIST) on {components} components"
    else:
        x = np.frombuffer(gzip.decompress((path / "train-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
        labels = np.frombuffer(gzip.decompress((path / "train-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
        chosen = np.sort(np.random.default_rng(task.seed).permutation(len(labels))[:n])
        x, labels = x.reshape(-1, 784)[chosen] / 255.0, labels[chosen].astype(np.int64)
        words = f"{len(x):,} MNIST digits on {components} principal components"
    centred = x - x.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    return Labelled(centred @ directions[:, ::-1][:, :components], labels), words


def patches(task: Task, images: int, stride: int = 4) -> tuple[list[np.ndarray], str]:
    """Grey 8 x 8 patches less their mean, one array for each image: BSDS500, or tiles of scikit-learn's photographs."""
    from bnp_dask.core import Location
    from bnp_dask.data import read_grey
    from bnp_dask.data.ingestion.patches import cut

    path = task.path("bsds500")
    if path is None:
        import sklearn.datasets

        files = [Path(sklearn.datasets.__file__).parent / "images" / name for name in ("china.jpg", "flower.jpg")]
        pictures = [read_grey(Location.of(file)) for file in files]
        tiles = [p[i : i + 106, j : j + 106] for p in pictures for i in range(0, 424, 106) for j in range(0, 636, 106)]
        chosen = [tiles[i] for i in np.random.default_rng(task.seed).permutation(len(tiles))[:images]]
        words = "tiles of scikit-learn's two photographs (stand-in for BSDS500)"
    else:
        files = sorted((path / "train").glob("*.jpg"))
        order = np.random.default_rng(task.seed).permutation(len(files))[:images]
        chosen = [read_grey(Location.of(files[i])) for i in order]
        words = "photographs of BSDS500"
    found = []
    for picture in chosen:
        rows, columns = np.array(picture.shape) - 7
        grid = np.arange(rows * columns).reshape(rows, columns)[::stride, ::stride].ravel()
        found.append(np.ascontiguousarray(cut(picture, 8)[grid]))
    return found, f"{sum(map(len, found)):,} patches of {len(found)} {words}"


def motion_capture(task: Task) -> Recordings:
    """Rows ``[x_t, x_{t-1}]`` of six exercise routines with labels, or autoregressions of twelve states."""
    path = task.path("mocap6")
    if path is None:
        return stand_in_motions(6, 250, 12, 6, task.seed)
    from scipy.io import loadmat

    parts = loadmat(path / "mocap6.mat", squeeze_me=True)["DataBySeq"]
    rows = [np.hstack([p["X"].item() if p["X"].dtype == object else p["X"], p["Xprev"]]) for p in parts]
    labels = np.concatenate([p["TrueZ"] for p in parts]).astype(np.int64) - 1
    return Recordings([np.ascontiguousarray(r, np.float64) for r in rows], labels, "6 labelled recordings of motion")


def stand_in_motions(n: int, length: int, states: int, d: int, seed: int) -> Recordings:
    """Rows ``[x_t, x_{t-1}]`` of autoregressions, whose state changes every 40 steps or so; few states a sequence."""
    rng = np.random.default_rng([seed, 11])
    turns = [0.9 * np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(states)]
    levels = rng.normal(scale=1.5, size=(states, d))
    sequences, labels = [], []
    for _ in range(n):
        own = rng.choice(states, 4, replace=False)
        z = np.repeat(own[rng.integers(4, size=length)], rng.integers(20, 60, size=length))[: length + 1]
        x = np.zeros((length + 1, d))
        for t in range(1, length + 1):
            x[t] = turns[z[t]] @ x[t - 1] + levels[z[t]] + 0.3 * rng.normal(size=d)
        sequences.append(np.hstack([x[1:], x[:-1]]))
        labels.append(z[1:])
    words = f"{n} synthetic recordings of {states} autoregressions (stand-in)"
    return Recordings(sequences, np.concatenate(labels), words)


def meeting(task: Task, components: int = 10) -> Recordings:
    """Principal components of voice vectors of a meeting and who speaks alone, or four synthetic voices.

    Windows of 1.44 s are taken each 0.24 s: every sixth is used, which do not overlap.
    """
    path = task.path("ami_es2005a")
    if path is None:
        rng = np.random.default_rng([task.seed, 13])
        z = np.repeat(rng.integers(4, size=60), rng.integers(3, 25, size=60))
        x = rng.normal(scale=1.6, size=(4, components))[z] + rng.normal(size=(len(z), components))
        return Recordings([x], z, f"{len(z)} synthetic windows of four voices (stand-in for meetings)")
    vectors = _kaldi_vectors(path / "ES2005a.ark")
    spans = [line.split() for line in (path / "ES2005a.seg").read_text().splitlines() if line.strip()]
    middle = np.array([(float(s[2]) + float(s[3])) / 2 for s in spans])
    turns = [line.split() for line in (path / "ES2005a_reference.rttm").read_text().splitlines() if line.strip()]
    who = sorted({t[7] for t in turns})
    speaking = np.zeros((len(middle), len(who)), np.bool_)
    for t in turns:
        begin, end = float(t[3]), float(t[3]) + float(t[4])
        speaking[(middle >= begin) & (middle < end), who.index(t[7])] = True
    labels = np.where(speaking.sum(axis=1) == 1, speaking.argmax(axis=1), -1)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred = vectors - vectors.mean(axis=0)
    rows = centred @ np.linalg.svd(centred, full_matrices=False)[2][:components].T
    rows = rows / rows[:, :1].std()
    return Recordings([rows[::6].copy()], labels[::6], f"{len(rows[::6])} voice vectors of one AMI meeting")


def _kaldi_vectors(path: Path) -> np.ndarray:
    """Vectors of a binary Kaldi archive, ``(n, D)``."""
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        at = data.index(b" ", at) + 1
        (size,) = struct.unpack("<i", data[at + 6 : at + 10])
        out.append(np.frombuffer(data, np.float32, size, at + 10))
        at += 10 + 4 * size
    return np.array(out, np.float64)


def chromatin(task: Task, bins: int, least_gap: int = 50, shortest: int = 5000) -> tuple[list[np.ndarray], str]:
    """Bits of marks along a chromosome, cut in the middle of long gaps (thesis 6.6.4), or bits of a synthetic chain."""
    path = task.path("chromhmm_chr11")
    if path is None:
        rng = np.random.default_rng([task.seed, 17])
        chance = rng.beta(0.3, 0.6, size=(12, 10))
        lengths = rng.geometric(0.05, size=bins)
        z = np.repeat(rng.integers(12, size=bins), lengths)[:bins]
        bits = (rng.random((bins, 10)) < chance[z]).astype(np.float64)
        return np.array_split(bits, max(2, bins // 5000)), f"{bins:,} synthetic bins of twelve states (stand-in)"
    with gzip.open(path / "GM12878_chr11_binary.txt.gz", "rt") as file:
        file.readline(), file.readline()
        bits = np.loadtxt(file, dtype=np.int8, max_rows=bins)
    some = np.concatenate([[-1], np.flatnonzero(bits.any(axis=1)), [len(bits)]])
    gaps = np.flatnonzero(np.diff(some) > least_gap)
    cuts = [0]
    for middle in (some[gaps] + some[gaps + 1]) // 2:
        if middle - cuts[-1] >= shortest and len(bits) - middle >= shortest:
            cuts.append(int(middle))
    cuts.append(len(bits))
    found = [bits[a:b].astype(np.float64) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    return found, f"{len(bits):,} bins of 10 marks on chromosome 11 in {len(found)} sequences"
