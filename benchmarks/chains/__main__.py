"""Segments of sequences with default settings: every start beside the true states, and beside hmmlearn.

    python -m benchmarks.chains states [--sets fifteen,mocap6] [--seeds 10] [--starts default,truth,one,many] [--redraw]
    python -m benchmarks.chains peers [--sets mocap6,bee] [--seeds 2] [--ways default,unweighed,regressions,hmmlearn]

``states`` trains on all sequences, with steps weighed as :class:`bnp_dask.SequenceModel` does, from the default start,
from the true states, from one state and from many.  It shows the objective, states, the share of labelled steps in
another state than the true one (each label being stood for by one state), and CPU seconds.  The best state should be
found from every start.  With ``--redraw`` each seed has sequences of its own, of the sets that are drawn.

``peers`` holds out some sequences and shows states, the same share of the sequences trained on, held-out nats a step,
and CPU seconds.  hmmlearn (where it is installed) has full covariances, and of the numbers of states in :data:`GRID`
the one with the best BIC; its seconds include that choice.  Recordings are read from the folder ``--data``, and left
out where they are missing.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bnp_dask as bnp
from benchmarks.chains import real
from benchmarks.chains.recordings import one_to_one

Rows = list[np.ndarray]

GRID = (4, 7, 10, 14, 18, 23)
"""Numbers of states among which hmmlearn's BIC chooses."""


@dataclass(frozen=True)
class Set:
    """Sequences ``(n_g, D)``, and their true states ``(n_g,)`` (None where there are none)."""

    rows: Rows
    labels: Rows | None

    def parted(self, seed: int) -> tuple[Set, Set]:
        """The sequences without, and with, those that a seed holds out: one, or a quarter of more than seven."""
        n = len(self.rows)
        held = {(seed + i) % n for i in range(max(1, n // 4) if n > 7 else 1)}
        return self._of([i for i in range(n) if i not in held]), self._of(sorted(held))

    def _of(self, places: list[int]) -> Set:
        labels = None if self.labels is None else [self.labels[i] for i in places]
        return Set([self.rows[i] for i in places], labels)

    def missed(self, found: np.ndarray) -> float:
        """Share of labelled steps whose state does not stand for their label; nan without labels."""
        return np.nan if self.labels is None else one_to_one(found, np.concatenate(self.labels))


# -- sets -----------------------------------------------------------------------------------------------------------
def drawn(kind: str, n_states: int, seed: int = 0, n: int = 8, length: int = 250, stay: float = 0.97) -> Set:
    """Chains whose rows are Gaussian (``sticky``), have tails (``heavy``), drift about their state's mean with
    correlation .9 (``drift``), or follow from the row before (``turns``)."""
    rng, d = np.random.default_rng([47, seed]), 4
    means, roots = 3.0 * rng.normal(size=(n_states, d)), np.eye(d) + 0.4 * rng.normal(size=(n_states, d, d))
    ways = [0.97 * np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(n_states)]
    rows, labels = [], []
    for _ in range(n):
        jumps, states = rng.random(length) >= stay, rng.integers(n_states, size=length)
        jumps[0] = True
        z = states[np.maximum.accumulate(np.where(jumps, np.arange(length), 0))]
        noise = rng.standard_t(3.0, (length, d)) if kind == "heavy" else rng.normal(size=(length, d))
        x, before = np.empty((length, d)), noise[0]
        for t in range(length):
            if kind == "turns":
                before = x[t] = ways[z[t]] @ before + 0.3 * noise[t]
            else:
                before = 0.9 * before + np.sqrt(1.0 - 0.81) * noise[t] if kind == "drift" else noise[t]
                x[t] = means[z[t]] + roots[z[t]] @ before
        rows.append(x)
        labels.append(z)
    return Set(rows, labels)


def mocap6() -> Set:
    """Twelve joint angles of six exercise routines."""
    rows, labels = real.mocap6()
    rows = [np.ascontiguousarray(x[:, :12]) for x in rows]
    return Set(rows, np.split(labels, np.cumsum([len(x) for x in rows])[:-1]))


def gesture() -> Set:
    """Four videos of gestures, eighteen coordinates a frame."""
    rows, labels = real.gesture_phase()
    return Set(rows[:4], np.split(labels, np.cumsum([len(x) for x in rows])[:-1])[:4])


def bee() -> Set:
    """Six dances of bees: position and heading, each of unit deviation."""
    rows, _ = real.beedance()
    scale = np.concatenate(rows).std(axis=0)
    return Set([x / scale for x in rows], None)


DRAWN: dict[str, Callable[[int], Set]] = {
    "fifteen": lambda draw: drawn("sticky", 15, draw, n=6, length=400),
    "sticky": lambda draw: drawn("sticky", 6, draw),
    "drift": lambda draw: drawn("drift", 6, draw),
    "heavy": lambda draw: drawn("heavy", 6, draw),
    "turns": lambda draw: drawn("turns", 6, draw),
}
"""Sets that are drawn, by seed of their sequences."""

SETS: dict[str, Callable[[], Set]] = {
    "mocap6": mocap6,
    "bee": bee,
    "gesture": gesture,
    **{name: partial(make, 0) for name, make in DRAWN.items()},
}


def there(names: list[str]) -> dict[str, Set]:
    """Sets by name, without recordings that are missing, which are named."""
    found = {}
    for name in names:
        try:
            found[name] = SETS[name]()
        except FileNotFoundError as error:
            print(f"{name} is left out: {error}", flush=True)
    return found


# -- starts ---------------------------------------------------------------------------------------------------------
def start(name: str, data: Set) -> bnp.Initialization | None:
    """Start of a run by name."""
    if name == "truth":
        assert data.labels is not None
        return bnp.Responsibilities(np.eye(1 + max(map(max, data.labels)))[np.concatenate(data.labels)])
    return {"default": None, "one": bnp.ContiguousBlocks(1), "many": bnp.ContiguousBlocks(50)}[name]


def show_states(sets: dict[str, Set], seeds: int, starts: list[str], redraw: bool = False) -> None:
    """A line for each set, seed and start; ``redraw`` also draws sequences by the seed, where they are drawn."""
    print("set seed start objective states missed laps cpu", flush=True)
    for name in sets:
        for seed in range(seeds):
            data = DRAWN[name](seed) if redraw and name in DRAWN else sets[name]
            for begin in starts:
                if begin == "truth" and data.labels is None:
                    continue
                begun = time.process_time()
                model = bnp.SequenceModel(init=start(begin, data), random_state=seed).fit(data.rows)
                cpu = time.process_time() - begun
                objective, missed = f"{model.bound_:.1f}", f"{data.missed(model.labels_):.3f}"
                figures = f"{objective} {model.n_states_} {missed} {model.n_iter_} {cpu:.1f}"
                print(f"{name} {seed} {begin} {figures}", flush=True)


# -- programs -------------------------------------------------------------------------------------------------------
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "unweighed": {"weigh_steps": False},
    "regressions": {"observation": "autoregressive"},
}


def by_bic(rows: Rows, seed: int) -> Any:
    """hmmlearn's GaussianHMM whose number of states has the best BIC."""
    from hmmlearn.hmm import GaussianHMM

    x, lengths = np.concatenate(rows), [len(one) for one in rows]
    tried = []
    for k in GRID:
        try:
            tried.append(GaussianHMM(k, covariance_type="full", n_iter=30, random_state=seed).fit(x, lengths))
        except ValueError:  # a state of too few rows
            continue
    return min(tried, key=lambda model: float(model.bic(x, lengths)))


def compared(data: Set, way: str, seed: int) -> tuple[float, float, int, float]:
    """Held-out nats a step, missed share, states and CPU seconds of one program on one set."""
    train, held = data.parted(seed)
    begun = time.process_time()
    if way == "hmmlearn":
        found = by_bic(train.rows, seed)
        cpu = time.process_time() - begun
        states, labels = found.n_components, found.predict(np.concatenate(train.rows), [len(x) for x in train.rows])
        score = sum(found.score(x) for x in held.rows) / sum(map(len, held.rows))
    else:
        found = bnp.SequenceModel(random_state=seed, **WAYS[way]).fit(train.rows)
        cpu = time.process_time() - begun
        states, labels, score = found.n_states_, found.labels_, float(found.score(held.rows))
    return score, train.missed(labels), int(states), cpu


def show_peers(sets: dict[str, Set], seeds: int, ways: list[str]) -> None:
    """A row of a Markdown table for each set, seed and program."""
    print("| set | seed | way | states | missed | held out | CPU s |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, data in sets.items():
        for seed in range(seeds):
            for way in ways:
                score, missed, states, cpu = compared(data, way, seed)
                print(f"| {name} | {seed} | {way} | {states} | {missed:.3f} | {score:.3f} | {cpu:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["states", "peers"])
    parser.add_argument("--sets", default="")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--starts", default="default,truth,one,many")
    parser.add_argument("--redraw", action="store_true", help="states: each seed has sequences of its own")
    parser.add_argument("--ways", default=",".join([*WAYS, "hmmlearn"]))
    parser.add_argument("--data", type=Path, default=real.DATA, help="folder with mocap6, beedance and gesture_phase")
    chosen = parser.parse_args()
    real.DATA = chosen.data
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sets = there(chosen.sets.split(",") if chosen.sets else list(SETS))
    if chosen.what == "states":
        show_states(sets, chosen.seeds, chosen.starts.split(","), chosen.redraw)
        return
    ways = chosen.ways.split(",")
    try:
        import hmmlearn  # noqa: F401
    except ImportError:
        ways = [way for way in ways if way != "hmmlearn"]
        print("hmmlearn is not installed, and left out", flush=True)
    show_peers(sets, chosen.seeds, ways)


if __name__ == "__main__":
    main()
