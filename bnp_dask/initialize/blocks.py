"""Start for models of sequences: windows of consecutive steps, each a state (thesis 6.6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.core import Batch, Summary, register
from bnp_dask.data import Reader, batch_reader
from bnp_dask.errors import SettingError
from bnp_dask.initialize.base import (
    InitContext,
    choose_atoms,
    hard_resp,
    locate,
    read_checked,
    require_enough_atoms,
)
from bnp_dask.inputs import hold, of_two_names, whole_number
from bnp_dask.kernels.mixture.resp import scale_rows
from bnp_dask.model import Model
from bnp_dask.structure import sequence_offsets


@register
@dataclass(frozen=True, init=False)
class ContiguousBlocks:
    """K windows of consecutive rows at random places in the sequences, each a state that holds these rows.

    All rows of the data are equally likely to be in a window's middle, so long sequences have more windows; windows may
    overlap.  Only the batches that hold them are read.

    Parameters
    ----------
    n_clusters, n_states
        States to start with, K (two names of one setting); at most the number of rows.
    length
        Rows in a window: shorter than most segments of the data, and long enough to represent them.  A window never
        leaves its sequence; shorter sequences are taken whole.

    References
    ----------
    Thesis 6.6, "random-contiguous-blocks".
    """

    n_clusters: int
    length: int = 20

    def __init__(self, n_clusters: int | None = None, length: int = 20, *, n_states: int | None = None) -> None:
        name, value = of_two_names("n_clusters", n_clusters, "n_states", n_states)
        hold(self, "n_clusters", whole_number(name, value, 1))
        hold(self, "length", whole_number("length", length, 1))

    @property
    def n_states(self) -> int:
        """States to start with."""
        return self.n_clusters

    def start(self, context: InitContext) -> Summary:
        """Return the statistics of the windows, without transitions between states.

        Raises
        ------
        DataError
            More clusters than rows, rows without sequences, or rows that the likelihood cannot have produced.
        SettingError
            A model of rows that stand by themselves, on data without sequences.
        """
        require_enough_atoms(self.n_clusters, context, "ContiguousBlocks")
        executor, source, atoms = context.executor, context.source, context.survey.batch_atoms
        model = executor.share("init-model", context.model)
        done, tasks = 0, []
        for b, positions in locate(context.survey, choose_atoms(context, self.n_clusters)):
            numbers = np.arange(done, done + len(positions))
            done += len(positions)
            task = (batch_reader(source, b), model, atoms[b], positions, numbers, self.n_clusters, self.length)
            tasks.append(executor.submit(f"init-blocks-batch{b}", _summarize_blocks, *task))
        return executor.result(executor.submit("init-blocks", _add_up, *tasks))


def _add_up(*parts: Summary) -> Summary:
    """Task: the windows of all batches."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _summarize_blocks(
    reader: Reader, model: Model, expected: int, middles: np.ndarray, numbers: np.ndarray, n_clusters: int, length: int
) -> Summary:
    """Task: statistics of the windows about some rows of one batch, as the clusters at the positions ``numbers``."""
    batch = read_checked(reader, model, expected)
    if batch.groups is None and (model.structure.has_shares or not model.structure.is_tied):
        raise SettingError(
            f"ContiguousBlocks starts from windows of sequences, but rows of {type(model.allocation).__name__} stand "
            f"by themselves here; start from BregmanKMeans({n_clusters})"
        )
    index, labels = blocks_about(batch, middles, length)
    rows = batch.take(index)
    resp = scale_rows(hard_resp(numbers[labels], n_clusters), rows.weights)
    return model.summarize(np.arange(n_clusters, dtype=np.int64), rows, resp)


def blocks_about(batch: Batch, middles: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of windows about the rows ``middles (K,)``, shifted to fit their sequence, and the window of each row."""
    offsets = sequence_offsets(batch)
    owner = np.searchsorted(offsets, middles, side="right") - 1
    first, last = offsets[owner], offsets[owner + 1]
    start = np.maximum(np.minimum(middles - length // 2, last - length), first)
    spans = [np.arange(a, b) for a, b in zip(start, np.minimum(start + length, last), strict=True)]
    return np.concatenate(spans), np.repeat(np.arange(len(middles)), [len(s) for s in spans])
