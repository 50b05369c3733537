"""Small runs of the three kinds of model, with moves, on data that are made from a seed."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.training.results import TrainResult
from tests.faults.parts import atoms

N_BATCHES = 8


def documents(n: int = 240, n_words: int = 60, n_topics: int = 5, seed: int = 0) -> sparse.csr_array:
    """Documents of some 40 words from topics of a few words each, ``(n, V)``."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(n_words, 0.1), n_topics)
    shares = rng.dirichlet(np.full(n_topics, 0.3), n)
    return sparse.csr_array(np.array([rng.multinomial(40, share @ topics) for share in shares]).astype(float))


def sequences(n: int = 24, length: int = 60, n_states: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Steps of sequences that stay in a state for a while, and where sequences begin."""
    rng = np.random.default_rng(seed)
    means = 5.0 * rng.normal(size=(n_states, 3))
    states = np.repeat(rng.integers(n_states, size=n * length // 10), 10)
    return means[states] + rng.normal(size=(n * length, 3)), np.arange(0, n * length + 1, length)


@dataclass(frozen=True)
class Kind:
    """A run: ``model()``, and ``write(folder)`` that puts its data there and gives what opens them."""

    model: Callable[[], bnp.Model]
    write: Callable[[Path], Callable[[], Any]]
    moves: tuple[Any, ...]
    init: Any

    def source(self, folder: Path) -> Any:
        """The data, written when they are not there."""
        return self.write(folder)()

    def train(self, folder: Path, laps: int = 5, window: int = 3, **more: Any) -> TrainResult:
        """One run, quietly."""
        schedule = bnp.Memoized(laps=laps, window=window, tolerance=0.0, count_tolerance=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bnp.train(
                self.model(), self.source(folder), init=self.init, schedule=schedule, moves=self.moves, **more
            )


def as_job(name: str, folder: Path, laps: int, store: Path) -> dict[str, Any]:
    """The same run as a job file; which cluster, the command says."""
    kind = KINDS[name]
    kind.source(folder)
    moves = [_named(move) for move in kind.moves]
    schedule = {"type": "Memoized", "laps": laps, "window": 3, "tolerance": 0.0, "count_tolerance": 0.0}
    model = {"allocation": _named(kind.model().allocation), "observation": _named(kind.model().observation)}
    return {
        "model": model,
        "data": DATA[name](folder),
        "init": _named(kind.init),
        "schedule": schedule,
        "moves": moves,
        "store": str(store),
        "checkpoint_minutes": 0.01,
    }


def _named(value: Any) -> dict[str, Any]:
    """An object of a class of settings as a job file has it: what differs from the default."""
    out: dict[str, Any] = {"type": type(value).__name__}
    for field in dataclasses.fields(value):
        own, factory = getattr(value, field.name), field.default_factory
        usual = field.default if factory is dataclasses.MISSING else factory()
        if field.init and own != usual and own is not None:
            out[field.name] = own
    return out


def _mixture(folder: Path) -> Callable[[], Any]:
    path = folder / "atoms.npy"
    if not path.exists():
        np.save(path, atoms(1600, 3, 8))
    return lambda: bnp.as_source(path, batch_size=1600 // N_BATCHES)


def _topics(folder: Path) -> Callable[[], Any]:
    path = folder / "documents.npz"
    if not path.exists():
        sparse.save_npz(path, documents())
    return lambda: bnp.as_source(path, batch_size=240 // N_BATCHES)


def _chain(folder: Path) -> Callable[[], Any]:
    path = folder / "steps.npy"
    steps, offsets = sequences()
    if not path.exists():
        np.save(path, steps)
        np.save(folder / "offsets.npy", offsets)
    return lambda: bnp.as_source(path, groups=offsets, batch_size=len(steps) // N_BATCHES)


DATA: dict[str, Callable[[Path], dict[str, Any]]] = {
    "mixture": lambda folder: {"path": str(folder / "atoms.npy"), "batch_size": 1600 // N_BATCHES},
    "topics": lambda folder: {"path": str(folder / "documents.npz"), "batch_size": 240 // N_BATCHES},
    "chain": lambda folder: {
        "path": str(folder / "steps.npy"),
        "groups": str(folder / "offsets.npy"),
        "batch_size": 1440 // N_BATCHES,
    },
}
"""Data of each kind as a job file has them."""


KINDS = {
    "mixture": Kind(
        lambda: bnp.Model(bnp.DPMixture(3.0), bnp.DiagGaussian()),
        _mixture,
        (bnp.Birth(sample=200, refine=4), bnp.Merge(), bnp.Delete()),
        bnp.BregmanKMeans(2),
    ),
    "topics": Kind(
        lambda: bnp.Model(bnp.HDPTopics(5.0, 1.0), bnp.Multinomial()),
        _topics,
        (bnp.Birth(sample=100, refine=4), bnp.Merge(), bnp.Delete()),
        bnp.RandomExamples(2),
    ),
    "chain": Kind(
        lambda: bnp.Model(bnp.HDPHMM(5.0, 1.0, 1.0, 5.0), bnp.DiagGaussian()),
        _chain,
        (bnp.Birth(sample=200, refine=4, windows=4), bnp.Merge(), bnp.Delete()),
        bnp.RandomExamples(2),
    ),
}
