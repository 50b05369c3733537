"""Segment a recording: a sticky HDP-HMM with autoregressive states finds its phases and how many kinds there are.

    python examples/segment_recording.py                              # a recording that matplotlib carries
    python examples/segment_recording.py gestures.csv --id video --order frame --label phase
    python examples/segment_recording.py mocap6.mat                   # see below

Without a path it is the membrane potential of a nerve cell, 12,000 values, which comes with matplotlib: rest, a current
that is switched on, trains of spikes, rest.  Nobody labelled it; look at the picture.

With a path, one of

* CSV or Parquet: a row for each step; ``--id`` names the column that tells sequences apart (left out: one sequence),
  ``--order`` the column that sorts the steps, ``--label`` the true labels, if there are any.  All other columns of
  numbers are what was recorded.
* a .mat file with ``DataBySeq`` (motion capture of github.com/michaelchughes/mocap6dataset): ``X``, labels
  ``TrueZ``;
* a folder of .mat files, each a sequence ``Y (T, D)``, and ``L (T,)`` that is 1 where a phase ends (dances of bees).

Writes segmentation.png.  Needs matplotlib; tables need pandas, .mat files nothing but SciPy.
"""

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import bnp_dask as bnp
from bnp_dask.analysis.metrics import hamming_distance
from bnp_dask.analysis.sequences import split_sequences, state_durations
from bnp_dask.observation import with_previous
from bnp_dask.reports.plots import new_figure, plot_segments


@dataclass
class Recording:
    """Sequences ``(T, D)``, true labels ``(T,)`` of each or None, names; ``parts``: labels only tell where to cut."""

    x: list
    truth: list | None
    names: list
    parts: bool = False


def membrane() -> Recording:
    """Potential of a nerve cell and how fast it changes, every second value."""
    from matplotlib import cbook

    with cbook.get_sample_data("membrane.dat") as file:
        volts = np.fromfile(file, np.float32).astype(float)
    return Recording([np.column_stack([volts, np.gradient(volts) * 10])[::2]], None, ["membrane potential"])


def table(path: Path, identity: str | None, order: str | None, label: str | None) -> Recording:
    """A CSV or Parquet file with one row for each step."""
    import pandas as pd

    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    if order is not None:
        frame = frame.sort_values([c for c in (identity, order) if c is not None], kind="stable")
    groups = [("all", frame)] if identity is None else list(frame.groupby(identity, sort=False))
    columns = frame.drop(columns=[c for c in (identity, order, label) if c]).select_dtypes("number").columns
    truth = None if label is None else [part[label].to_numpy() for _, part in groups]
    return Recording([part[columns].to_numpy(float) for _, part in groups], truth, [name for name, _ in groups])


def matlab(path: Path) -> Recording:
    """Motion capture, or a folder of dances."""
    from scipy.io import loadmat

    if not path.is_dir():
        parts = loadmat(path, squeeze_me=True)["DataBySeq"]
        # the first row of a sequence is the one before X begins
        x = [np.vstack([p["Xprev"][:1], p["X"]]) for p in parts]
        truth = [np.concatenate([p["TrueZ"][:1], p["TrueZ"]]) for p in parts]
        return Recording(x, truth, [str(p["filename"]).removesuffix(".amc") for p in parts])
    files = sorted(path.glob("*.mat"))
    held = [loadmat(file) for file in files]
    # where phases end is all that is known: each is a label of its own
    truth = [np.cumsum(part["L"].ravel()).astype(int) for part in held]
    return Recording([part["Y"] for part in held], truth, [file.stem for file in files], parts=True)


def write(recording: Recording, path: str) -> None:
    """The recording as a table: recording, step, and a column for each number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, lengths = np.concatenate(recording.x), [len(x) for x in recording.x]
    columns = {"recording": np.repeat([str(name) for name in recording.names], lengths)}
    columns["step"] = np.concatenate([np.arange(n) for n in lengths])
    pq.write_table(pa.table({**columns, **{f"x{d}": rows[:, d] for d in range(rows.shape[1])}}), path)
    print(f"wrote {path}")


def boundaries(truth: list, states: list, within: int = 10) -> tuple[float, float]:
    """Share of true ends of phases with a change of state nearby, and share of changes with a true end nearby."""
    near, changes, ends = [0, 0], 0, 0
    for t, s in zip(truth, states, strict=True):
        a, b = np.flatnonzero(np.diff(t)), np.flatnonzero(np.diff(s))
        distance = np.abs(a[:, None] - b)
        near[0] += int((distance.min(axis=1, initial=within + 1) <= within).sum())
        near[1] += int((distance.min(axis=0, initial=within + 1) <= within).sum())
        ends, changes = ends + len(a), changes + len(b)
    return near[0] / max(ends, 1), near[1] / max(changes, 1)


def segment(recording: Recording, kappa: float, laps: int, seed: int):
    """Train, and give the result with the states of each sequence; the first step of each has none before it."""
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in recording.x])])
    rows, offsets = with_previous(np.concatenate(recording.x), offsets)
    d = rows.shape[1] // 2
    jumps = (rows[:, :d] - rows[:, d:]).var(axis=0)
    # noise as large as what one step changes; A about the identity, as sure of that as one row of variance one
    likelihood = bnp.AutoRegressiveGaussian(nu=d + 2.0, B=np.maximum(jumps, 1e-12), M=1.0, V=np.ones(d))
    result = bnp.train(
        bnp.Model(bnp.HDPHMM(gamma=5.0, alpha=0.5, alpha0=10.0, kappa=kappa), likelihood),
        bnp.as_source(rows, groups=offsets, batch_size=max(1, int(np.diff(offsets).max()))),
        init=bnp.ContiguousBlocks(20, length=30),
        schedule=bnp.Memoized(laps=laps),
        moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()],
        callbacks=[bnp.Progress()],
        rng=seed,
    )
    labels = bnp.predict(result.posterior, bnp.as_source(rows, groups=offsets))
    return result, split_sequences(labels, offsets)


def draw(states: list, truth: list | None, recording: Recording, x: list):
    """The picture: of one long sequence the whole and a part, of several each whole."""
    if len(states) == 1 and len(states[0]) > 1500:
        figure = new_figure(11.0, 5.0)
        above, below = figure.subplots(2)
        plot_segments(states, truth=truth, names=recording.names, x=x, ax=above)
        middle = len(states[0]) // 3
        plot_segments(states, truth=truth, names=recording.names, x=x, steps=(middle, middle + 600), ax=below)
        below.set_title("A part of it", loc="left", fontsize=11)
        below.get_legend().remove()
        return figure
    if recording.parts:  # known ends of phases as marks below the states
        ends = [np.flatnonzero(np.diff(t)) + 1 for t in truth or []]
        return plot_segments(states, names=recording.names, x=x, marks=ends).figure
    return plot_segments(states, truth=truth, names=recording.names, x=x).figure


def main() -> None:
    parser = argparse.ArgumentParser(description="Segment a recording.")
    parser.add_argument("path", nargs="?", type=Path, help="CSV, Parquet, .mat, or a folder of .mat files")
    for option, what in (("--id", "tells sequences apart"), ("--order", "sorts steps"), ("--label", "true labels")):
        parser.add_argument(option, metavar="COLUMN", help=f"column that holds what {what}")
    parser.add_argument("--kappa", type=float, default=100.0, help="pseudo-count of staying in a state")
    parser.add_argument("--laps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="segmentation.png", help="the picture")
    parser.add_argument("--write", metavar="FILE", help="only write the recording as a Parquet table, for job files")
    args = parser.parse_args()
    if args.path is None:
        recording = membrane()
    elif args.path.suffix == ".mat" or args.path.is_dir():
        recording = matlab(args.path)
    else:
        recording = table(args.path, args.id, args.order, args.label)
    mean, spread = np.concatenate(recording.x).mean(axis=0), np.concatenate(recording.x).std(axis=0)
    recording.x = [(x - mean) / np.where(spread > 0, spread, 1.0) for x in recording.x]
    print(f"{len(recording.x)} sequences, {sum(map(len, recording.x)):,} steps of {recording.x[0].shape[1]} numbers")
    if args.write:
        write(recording, args.write)
        return

    warnings.simplefilter("ignore", bnp.ConvergenceWarning)  # how it ended is printed
    result, states = segment(recording, args.kappa, args.laps, args.seed)
    n = sum(map(len, states))
    print(f"{result.reason}; {result.seconds:.1f} s, objective {result.history[-1]['elbo'] / n:.4f} nats per step")
    print(f"{result.posterior.n_clusters} states; how long they last:")
    print(state_durations(states, ids=result.posterior.ids))
    truth = None if recording.truth is None else [t[1:] for t in recording.truth]
    if truth is not None and recording.parts:
        found, right = boundaries(truth, states)
        print(
            f"{found:.0%} of the ends of phases have a change of state within 10 steps, {right:.0%} of changes an end"
        )
    elif truth is not None:
        flat, own = np.concatenate(truth), np.concatenate(states)
        for rule in ("one-to-one", "many-to-one"):
            print(f"Hamming distance {hamming_distance(flat, own, rule):.3f} ({rule})")
    x = [part[1:] for part in recording.x]
    draw(states, truth, recording, x).savefig(args.out, dpi=110)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
