"""Runs that grow, small ones."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from scipy import sparse

from bnp_dask.allocation import HDPHMM, DPMixture, HDPTopics
from bnp_dask.core.summary import RunningTotal
from bnp_dask.data import as_source, ingest
from bnp_dask.data.base import Source
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference import Memoized, state_from_saved
from bnp_dask.inference.batch_memo import summary_from
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian, Multinomial
from bnp_dask.store import RunStore
from bnp_dask.training.growing.update import update
from bnp_dask.training.growing.versions import load
from bnp_dask.training.train import ConvergenceWarning, train

MEANS = np.random.default_rng(3).normal(scale=9.0, size=(8, 3))


def day(number, n=240, k=4):
    """Rows of one day, of ``k`` clusters."""
    rng = np.random.default_rng(1000 + number)
    return MEANS[rng.integers(k, size=n)] + rng.normal(size=(n, 3))


def counts_of(number):
    """Words of the documents of one day."""
    rng = np.random.default_rng(2000 + number)
    topics = np.random.default_rng(5).dirichlet(np.full(30, 0.1), size=3)
    shares = rng.dirichlet(np.full(3, 0.3), size=40)
    return sparse.csr_array(np.array([rng.multinomial(60, share @ topics) for share in shares]))


def day_of(kind, number):
    """Data of one day for a kind of model."""
    if kind == "mixture":
        return as_source(day(number), batch_size=60)
    if kind == "topics":
        return as_source(counts_of(number), batch_size=10)
    return as_source(day(number, n=120), batch_size=60, groups=np.array([0, 30, 60, 90, 120]))


def stored_day(kind, number, folder):
    """Data of one day for a kind of model as a Zarr store, to be visited again and again; its path."""
    place = folder / f"{kind}{number}.zarr"
    if kind == "mixture":
        np.save(folder / "rows.npy", day(number))
        ingest(folder / "rows.npy", place, batch_size=60)
    elif kind == "topics":
        sparse.save_npz(folder / "rows.npz", counts_of(number).tocsr())
        ingest(folder / "rows.npz", place, batch_size=10)
    else:
        rows = pd.DataFrame(day(number, n=120), columns=list("abc")).assign(run=np.repeat(range(4), 30))
        rows.to_parquet(folder / "rows.parquet")
        ingest(folder / "rows.parquet", place, group_column="run", batch_size=60)
    return place


MODELS = {
    "mixture": Model(DPMixture(2.0), DiagGaussian()),
    "topics": Model(HDPTopics(), Multinomial(lam=0.1)),
    "chains": Model(HDPHMM(), DiagGaussian()),
}


def begin(store, data, laps=3, batch_size=60, model=None, moves=None, k=2, **beside):
    """Train a run on its first data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return train(
            model or MODELS["mixture"],
            data,
            init=BregmanKMeans(k),
            schedule=Memoized(laps=laps, window=4),
            moves=moves,
            client=SerialExecutor(),
            store=store,
            batch_size=None if isinstance(data, Source) else batch_size,
            **beside,
        )


def grow(store, data, client=None, batch_size=60, **more):
    """One update, in this thread unless somebody else does it."""
    size = None if isinstance(data, Source) else batch_size
    return update(store, data, client=client or SerialExecutor(), batch_size=size, **more)


def files(folder, count, **more):
    """Paths of so many days, written as .npy."""
    folder.mkdir(exist_ok=True)
    out = []
    for number in range(count):
        out.append(folder / f"day{number}.npy")
        np.save(out[-1], day(number, **more))
    return out


def bits_of(store):
    """Everything of a run that must not depend on who computed it, or on how often that was killed."""
    view = RunStore.view(store)
    saved = view.load()
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in saved.history]
    arrays = {name: array.tobytes() for name, array in saved.arrays.items()}
    posterior = {name: a.tobytes() for name, a in load(store).summary.to_arrays().items()}
    return rows, arrays, posterior, saved.listing.rows.tobytes()


def gap(store):
    """Largest difference of a total from the sum of all stored summaries, as a share of its largest sum of terms.

    Of sums below one, that is one: an entropy of 1e-11 nats is what is left of larger ones.
    """
    view, model = RunStore.view(store), load(store).model
    saved = view.load()
    state = state_from_saved(model, saved.state, saved.arrays, saved.listing)
    fresh, size = RunningTotal(state.total.high.without_pairs().zeros()), None
    for batch, visit, receipt in saved.listing.entries():
        arrays, _ = view.get_summary(batch, visit, receipt)
        own = summary_from(model, arrays, state.edits[int(state.seen[batch]) :]).without_pairs()
        fresh.add(own)
        size = own.absolute() if size is None else size + own.absolute()
    if state.sealed is not None:
        state.sealed.catch_up(state.edits)
        fresh.join(state.sealed.total)
        own = state.sealed.total.value().absolute()
        size = own if size is None else size + own
    total, again = state.total.value(), fresh.value()
    return max(
        float(np.max(np.abs(total[name] - again[name]), initial=0.0) / max(np.max(size[name], initial=0.0), 1.0))
        for name in total.values
    )
