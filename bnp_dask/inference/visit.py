"""A visit of one batch, the same for all schedules: read it, compare its checksum, compute.

Workers make visits.  A batch that went bad is left out if the run allows that, else it is an error.  A batch whose
content changed to other good rows is always an error, as is an error of our own with a good batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bnp_dask.core import Batch
from bnp_dask.data import Reader, batch_reader, naming_batch, read_or_why, reason, require_checksum
from bnp_dask.errors import DataError
from bnp_dask.execute import Load, load_of
from bnp_dask.inference.bad_batches import instead, survey_checked
from bnp_dask.inference.state import State, Work
from bnp_dask.model import Model

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Request:
    """One batch for a task to visit; sent with the task.

    Parameters
    ----------
    batch, name
        Number and name of the batch.
    reader
        Reads the batch.
    seed
        Seed of the run; with the lap and the batch it is the key of all random numbers.
    checksum
        CRC-32 that the batch had when it was surveyed, and must have at each visit; None: not compared.  Data may
        change while a run reads them, so this is no matter of trust in an earlier call.
    empty
        Reads the empty batch that takes its place if it has gone bad; None: a bad batch is an error.
    """

    batch: int
    name: str
    reader: Reader
    seed: int = 0
    checksum: int | None = None
    empty: Reader | None = None

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, if it may be called before the task runs."""
        return load_of(self.reader)


def request_of(work: Work, state: State, batch: int) -> Request:
    """Request for a visit of a batch; for one that was left out, of the empty batch in its place."""
    is_there = batch not in state.lost
    return Request(
        batch=batch,
        name=f"{work.source.name} batch {batch}",
        reader=batch_reader(work.source, batch) if is_there else instead(work, batch),
        seed=work.seed,
        checksum=int(work.survey.checksums[batch]) if is_there else None,
        empty=instead(work, batch) if is_there and work.skips else None,
    )


def visit(model: Model, request: Request, compute: Callable[[Batch], T], lose: Callable[[str], T]) -> T:
    """Read a batch and compute.

    Parameters
    ----------
    model
        Checks a batch on which the computation failed.
    request
        The batch.
    compute
        Result of a batch in memory.
    lose
        Result of a batch that is left out, given why.
    """
    with naming_batch(request.name):
        batch = request.reader() if request.empty is None else read_or_why(request.reader)
        if isinstance(batch, str):
            return lose(batch)
        try:
            if request.checksum is not None:
                require_checksum(batch, request.checksum)
            return compute(batch)
        except Exception:
            why = None if request.empty is None else fault_of(model, batch)
            if why is None:  # nothing is wrong with the batch
                raise
            return lose(why)


def fault_of(model: Model, batch: Batch) -> str | None:
    """Fault of a batch that could be read; None if there is none."""
    try:
        survey_checked(model, batch)
    except DataError as error:
        return reason(error)
    return None
