"""Data and client of a job: the parts of a job file beside the model and its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bnp_dask.data import Source, as_source
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs.column_notation import Key
from bnp_dask.inputs.protocols import require
from bnp_dask.inputs.settings import whole_number
from bnp_dask.training.growing.ingest_update import KEPT
from bnp_dask.training.growing.update import rules_of
from bnp_dask.training.memory_plan import MEMORY

TLS = ("tls_ca_file", "tls_cert", "tls_key")
"""Settings of an encrypted connection."""


@dataclass(frozen=True)
class ClientSpec:
    """Where a run computes; at most one of the first three is given, none means this process.

    Parameters
    ----------
    workers
        Start a cluster of that many single-threaded processes here, for the time of the run.
    scheduler
        Address of a running Dask scheduler, such as ``tcp://10.0.0.1:8786``.  A scheduler can run code here, so
        the command must name the same one, by ``--scheduler`` or ``DASK_SCHEDULER_ADDRESS``.
    scheduler_file
        File that ``dask scheduler --scheduler-file`` wrote; the command must name it, or its address, as well.
    memory_limit
        Memory limit of each worker that is started here, such as ``4GB``.
    tls_ca_file, tls_cert, tls_key
        PEM files for a scheduler at ``tls://...``: the authority that signed all certificates, and this client's own
        certificate and key.  Left out: from Dask's configuration (``distributed.comm.tls``).
    """

    workers: int | None = None
    scheduler: str | None = None
    scheduler_file: str | None = None
    memory_limit: str | None = None
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        places = {n: getattr(self, n) for n in ("workers", "scheduler", "scheduler_file")}
        given = [n for n, v in places.items() if v is not None]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} are given; needs one place to compute")
        if self.workers is not None and self.workers < 1:
            raise SettingError(f"workers={self.workers}: needs at least 1; leave it out to run without Dask")
        if self.memory_limit is not None and self.workers is None:
            raise SettingError("memory_limit is for workers that are started here; give workers too")
        tls = [n for n in TLS if getattr(self, n) is not None]
        if tls and len(tls) < len(TLS):
            raise SettingError(f"{' and '.join(tls)} without the others: give all of {', '.join(TLS)}, or none")
        if tls and self.scheduler is None and self.scheduler_file is None:
            raise SettingError("certificates are for a scheduler that runs already; give scheduler or scheduler_file")


@dataclass(frozen=True, eq=False)
class ExecutorSpec:
    """An executor of another package: its class and its settings.  It is made only for use, as it may start much."""

    kind: type
    settings: Mapping[str, Any]

    def make(self) -> Executor:
        """The executor; SettingError if the class cannot make one from these settings."""
        try:
            made = self.kind(**self.settings)
        except (TypeError, ValueError) as error:
            raise SettingError(f"client: {error}") from error
        require("client", made, Executor, "an executor")
        return made


@dataclass(frozen=True)
class DataSpec:
    """Data of a job.

    Parameters
    ----------
    path
        Path or URL; not a chain of URLs, and with one of the protocols file, memory, s3, s3a, gs, gcs, az, abfs, abfss,
        http, https and hf.
    batch_size
        Atoms per batch; default as the data are chunked.
    weights
        Weight of each atom: name of a column (tables), or path of a ``.npy`` file.
    labels
        Known labels of the atoms: path of a ``.npy`` file of whole numbers ``(n,)``, negative where unknown; see
        ``labels`` of :func:`bnp_dask.train`.
    links
        Groups of atoms that share one cluster: path of a ``.npy`` file of whole numbers ``(n,)``, negative for atoms in
        no group; see ``links`` of :func:`bnp_dask.train`.
    responses
        Responses of the documents: path of a ``.npy`` file of numbers ``(n,)``, NaN where none is known; see
        ``responses`` of :func:`bnp_dask.train`.
    columns
        Columns to use (tables); default: all numeric ones.
    format
        Format of a file, if its name and first bytes do not show it.
    groups
        Groups of rows (sequences, documents of dense rows): name of a column (tables), or path of a ``.npy`` file of
        offsets.  Stores that were ingested with groups have them already.
    order
        Name of the column that rises within each group (tables).
    gaps, step, cut
        Effect of gaps in the order column, length of a step, and most rows of a block into which long sequences are
        cut; see :func:`bnp_dask.as_source`.
    on_bad_cell
        Effect of cells that are not numbers (tables): ``raise``, an error, or ``missing``.
    """

    path: str = dataclasses.field(repr=False)
    batch_size: int | None = None
    weights: str | None = dataclasses.field(default=None, repr=False)
    labels: str | None = dataclasses.field(default=None, repr=False)
    links: str | None = dataclasses.field(default=None, repr=False)
    responses: str | None = dataclasses.field(default=None, repr=False)
    columns: tuple[str, ...] | None = None
    format: str | None = None
    groups: str | None = None
    order: str | None = None
    gaps: Literal["refuse", "cut", "ignore"] | None = None
    step: float | None = None
    cut: int | None = None
    on_bad_cell: Literal["raise", "missing"] | None = None

    def open(
        self,
        on_bad_batch: Literal["raise", "skip"] = "raise",
        levels: Sequence[Key] = (),
        chosen: Sequence[str] | None = None,
    ) -> Source:
        """The data as a source of batches; ``on_bad_batch`` and ``levels`` as in :func:`bnp_dask.as_source`.

        The columns are the ``chosen`` ones if the job names none.
        """
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["labels"], settings["links"], settings["responses"]  # train adds them
        if self.columns is None and chosen is not None:
            settings["columns"] = list(chosen)
        return as_source(settings.pop("path"), on_bad_batch=on_bad_batch, levels=list(levels), **settings)


@dataclass(frozen=True)
class UpdateSpec:
    """How the run of a job takes in more data, unless a command says otherwise.

    Parameters
    ----------
    revisit, laps, batch_size, versions, half_life, keep, time, new_words, dormant, on_bad
        As for :func:`bnp_dask.update`; lengths of time and times are text.
    """

    revisit: float = 1.0
    laps: int = 0
    batch_size: int | None = None
    versions: int = KEPT
    half_life: str | None = None
    keep: str | None = None
    time: str | None = None
    new_words: Literal["add", "drop"] | None = None
    dormant: float | None = None
    on_bad: Literal["raise", "set aside"] = "raise"

    def __post_init__(self) -> None:
        facts = (self.half_life, self.keep, None, None, self.dormant)
        rules_of(self.revisit, self.laps, MEMORY, self.versions, *facts)
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)
