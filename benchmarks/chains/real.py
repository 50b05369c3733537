"""Real recordings of ``../shared/data`` as sequences, with labels where there are any."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from bnp_dask.observation import AutoRegressiveGaussian, with_previous
from bnp_dask.observation.base import Observation

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@dataclass(frozen=True, eq=False)
class Recording:
    """Sequences of rows, how many true labels there are, the labels of all rows (-1: none), and the likelihood."""

    name: str
    sequences: list[np.ndarray]
    labels: np.ndarray | None
    observation: Observation

    @property
    def n_rows(self) -> int:
        """Rows of all sequences."""
        return sum(map(len, self.sequences))


def autoregressive(
    sequences: list[np.ndarray], cov: float = 1.0, spread: float = 1.0, mean: float = 1.0
) -> AutoRegressiveGaussian:
    """The likelihood for rows ``[x_t, x_{t-1}]``, with E[covariance] set from differences between steps.

    ``cov`` times their variance is what noise is expected to have; ``spread`` is the precision of A about ``mean``
    times the identity.
    """
    rows = np.concatenate(sequences)
    d = rows.shape[1] // 2
    steps = (rows[:, :d] - rows[:, d:]).var(axis=0)
    nu = d + 2.0
    return AutoRegressiveGaussian(nu=nu, B=cov * steps * (nu - d - 1.0), M=mean, V=spread)


def mocap6() -> tuple[list[np.ndarray], np.ndarray]:
    """Rows ``[x_t, x_{t-1}]`` of six exercise routines, and the exercise of each (0 to 11)."""
    parts = loadmat(DATA / "mocap6" / "mocap6.mat", squeeze_me=True)["DataBySeq"]
    rows = [np.hstack([p["X"].item() if p["X"].dtype == object else p["X"], p["Xprev"]]) for p in parts]
    return [np.ascontiguousarray(r, np.float64) for r in rows], np.concatenate([p["TrueZ"] for p in parts]) - 1


def gesture_phase() -> tuple[list[np.ndarray], np.ndarray]:
    """Positions of hands, wrists, head and spine, each column of unit variance, and the phase of each frame."""
    names = {"Rest": 0, "Preparation": 1, "Stroke": 2, "Hold": 3, "Retraction": 4}
    rows, labels = [], []
    with zipfile.ZipFile(DATA / "gesture_phase" / "gesture_phase_dataset.zip") as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith("_raw.csv")):
            text = archive.read(name).decode("latin-1").strip().splitlines()[1:]
            cells = [line.split(",") for line in text]
            rows.append(np.array([c[:18] for c in cells], np.float64))
            labels.append([names["Preparation" if c[-1].strip().startswith("Prep") else c[-1].strip()] for c in cells])
    scale = np.concatenate(rows).std(axis=0)
    return [r / scale for r in rows], np.concatenate(labels)


def beedance() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Three columns of six dances (position and heading), and where phases change, by sequence."""
    rows, changes = [], []
    for i in range(1, 7):
        held = loadmat(DATA / "beedance" / f"beedance-{i}.mat")
        rows.append(np.asarray(held["Y"], np.float64))
        changes.append(np.flatnonzero(held["L"].ravel()))
    return rows, changes


def ami(n_components: int = 10) -> tuple[list[np.ndarray], np.ndarray]:
    """Principal components of the voice vectors of a meeting, and who speaks alone in the middle of each (or -1)."""
    folder = DATA / "ami_es2005a"
    vectors = _ark(folder / "ES2005a.ark")
    spans = [line.split() for line in (folder / "ES2005a.seg").read_text().splitlines() if line.strip()]
    middle = np.array([(float(s[2]) + float(s[3])) / 2 for s in spans])
    turns = [line.split() for line in (folder / "ES2005a_reference.rttm").read_text().splitlines() if line.strip()]
    who = sorted({t[7] for t in turns})
    speaking = np.zeros((len(middle), len(who)), np.bool_)
    for t in turns:
        begin, end = float(t[3]), float(t[3]) + float(t[4])
        speaking[(middle >= begin) & (middle < end), who.index(t[7])] = True
    labels = np.where(speaking.sum(axis=1) == 1, speaking.argmax(axis=1), -1)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    rows = centred @ directions[:n_components].T
    return [rows / rows[:, :1].std()], labels


def _ark(path: Path) -> np.ndarray:
    """Vectors of a Kaldi archive, ``(n, D)``."""
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        at = data.index(b" ", at) + 1
        assert data[at : at + 6] == b"\0BFV \x04"
        (size,) = struct.unpack("<i", data[at + 6 : at + 10])
        out.append(np.frombuffer(data, np.float32, size, at + 10))
        at += 10 + 4 * size
    return np.array(out, np.float64)


def chromatin(least_gap: int = 50, shortest: int = 10_000) -> list[np.ndarray]:
    """Bits of ten marks on chromosome 11 of two cell lines.

    Cut in the middle of runs of at least ``least_gap`` bins without any mark, into sequences of at least ``shortest``.
    """
    out = []
    for name in ("GM12878", "K562"):
        with gzip.open(DATA / "chromhmm_chr11" / f"{name}_chr11_binary.txt.gz", "rt") as file:
            file.readline(), file.readline()
            bits = np.loadtxt(io.StringIO(file.read()), dtype=np.int8)
        some = np.concatenate([[-1], np.flatnonzero(bits.any(axis=1)), [len(bits)]])
        gaps = np.flatnonzero(np.diff(some) > least_gap)
        cuts = [0]
        for middle in (some[gaps] + some[gaps + 1]) // 2:
            if middle - cuts[-1] >= shortest and len(bits) - middle >= shortest:
                cuts.append(int(middle))
        cuts.append(len(bits))
        out += [bits[a:b].astype(np.float64) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    return out


def lagged(sequences: list[np.ndarray]) -> list[np.ndarray]:
    """Rows ``[x_t, x_{t-1}]`` of each sequence, one fewer."""
    return [with_previous(s, np.array([0, len(s)]))[0] for s in sequences]
