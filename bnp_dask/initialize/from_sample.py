"""A start on a few batches: clusters are learned on nested samples that grow to all data."""

from __future__ import annotations

from dataclasses import dataclass

from bnp_dask.core import Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.initialize.base import InitContext, Initialization
from bnp_dask.initialize.given import Responsibilities
from bnp_dask.inputs import hold, number_from, require, shown, whole_number


@register
@dataclass(frozen=True)
class FromSample:
    """Learn the clusters on a sample of the batches first, which grows until it holds all of them.

    The samples are nested: each holds the one before, and is ``growth`` times as large.  A run visits the batches of a
    sample, with moves, until its clusters are calm; then it visits the new batches of the next sample once, and goes on
    with all that it has.  Nothing is lost from one sample to the next: the statistics of all batches visited so far
    stay in the total, and each is replaced at the batch's next visit as in any run.  So the first lap over all data
    begins with clusters learned on most of a fourth of them, for the work of a third of a lap for each lap on samples.

    Batches are drawn from the whole data set, by the seed alone.  Data whose batches differ much, such as sorted rows,
    need enough of them.  Priors are set from all data, as in any run.

    Only for ``Memoized()``, from one start, without shadows and without known labels or links.

    Parameters
    ----------
    init
        Start on the first sample; default as for ``train``.
    batches
        Batches of the first sample, at least.
    growth
        Ratio of the sizes of two samples that follow each other.
    laps
        Most laps on a sample before it grows.  They do not count as laps of the schedule.

    Notes
    -----
    Rows of the history on a sample have ``"sample"``, its number of batches; the objective is that of the batches
    visited so far, so that these rows are not ``"exact"``.  :func:`bnp_dask.plan` forecasts laps over all data, without
    those on samples.
    """

    init: Initialization | None = None
    batches: int = 8
    growth: float = 4.0
    laps: int = 20

    def __post_init__(self) -> None:
        if self.init is not None:
            require("init", self.init, Initialization, "a start, such as BregmanKMeans(25)")
            if isinstance(self.init, (FromSample, Responsibilities)):
                raise SettingError(
                    f"FromSample({type(self.init).__name__}(...)): needs a start that finds clusters in some batches, "
                    "such as BregmanKMeans(25)"
                )
        hold(self, "batches", whole_number("batches", self.batches, 1))
        hold(self, "growth", number_from("growth", self.growth, 1.5, 1e6))
        hold(self, "laps", whole_number("laps", self.laps, 1))

    def sizes(self, n_batches: int) -> tuple[int, ...]:
        """Batches of the samples of data in ``n_batches``, ascending; the last holds all."""
        sizes = [n_batches]
        while sizes[-1] / self.growth >= self.batches:
            sizes.append(int(sizes[-1] / self.growth))
        return tuple(sizes[::-1])

    def start(self, context: InitContext) -> Summary:
        """Statistics of the start on the sample, the atoms that the ``context`` shows.

        Raises
        ------
        SettingError
            There is no ``init`` to do it.
        """
        if self.init is None:
            raise SettingError(f"{shown(self)}: the start of a sample is set by train; give FromSample(init=...) here")
        return self.init.start(context)
