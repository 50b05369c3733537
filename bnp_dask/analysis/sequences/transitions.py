"""Expected transition probabilities with the names of the states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import require_chains, require_posterior
from bnp_dask.errors import SettingError
from bnp_dask.model import Posterior
from bnp_dask.structure import chances_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray


@dataclass(frozen=True, eq=False)
class Transitions:
    """Expected probabilities of starts and transitions; prints as a table.

    Parameters
    ----------
    ids
        States, ``(K,)``.
    matrix
        E[pi_kl], from row to column, ``(K, K)``.
    start
        E[pi_0k], ``(K,)``.
    unused
        Probability in each row for states never met, ``(K,)``; zero in a finite model.  A row of ``matrix`` and
        its number here sum to one.
    counts
        Expected number of transitions in the training data, ``(K, K)``; None if the posterior does not have it.
    """

    ids: np.ndarray
    matrix: np.ndarray
    start: np.ndarray
    unused: np.ndarray
    counts: np.ndarray | None = None

    @property
    def stay(self) -> np.ndarray:
        """Probability of staying, ``(K,)``."""
        return np.diagonal(self.matrix)

    @property
    def duration(self) -> np.ndarray:
        """Expected length of a run if each step stays with the expected probability, ``1 / (1 - stay)``, ``(K,)``."""
        return 1.0 / (1.0 - self.stay)

    def sorted(self, order: np.ndarray) -> Transitions:
        """Transitions among the states at the positions ``order``, in that order."""
        counts = None if self.counts is None else self.counts[np.ix_(order, order)]
        matrix = self.matrix[np.ix_(order, order)]
        return Transitions(self.ids[order], matrix, self.start[order], self.unused[order], counts)

    def to_pandas(self) -> pd.DataFrame:
        """The matrix as a DataFrame, from-states as index and to-states as columns."""
        try:
            import pandas as pd
        except ImportError as error:
            raise SettingError("a DataFrame needs pandas: pip install 'bnp-dask[dataframe]'") from error
        index, columns = pd.Index(self.ids, name="before"), pd.Index(self.ids, name="after")
        return pd.DataFrame(self.matrix, index=index, columns=columns)

    def to_xarray(self) -> xarray.Dataset:
        """Matrix, start and probability of unused states, with the ids of states as coordinates."""
        try:
            import xarray as xr
        except ImportError as error:
            raise SettingError("labelled arrays need xarray: pip install 'bnp-dask[xarray]'") from error
        variables: dict[str, Any] = {
            "transition": (("before", "after"), self.matrix),
            "start": (("after",), self.start),
            "unused": (("before",), self.unused),
        }
        return xr.Dataset(variables, coords={"before": self.ids, "after": self.ids})

    def __str__(self) -> str:
        head = ["", *[str(i) for i in self.ids]]
        rows = [head, *[[str(i), *[f"{p:.3f}" for p in row]] for i, row in zip(self.ids, self.matrix, strict=True)]]
        width = max(len(cell) for row in rows for cell in row)
        return "\n".join("  ".join(cell.rjust(width) for cell in row) for row in rows)


def transitions(posterior: Posterior) -> Transitions:
    """Expected transition probabilities of a hidden Markov model (thesis 6.40).

    Raises
    ------
    SettingError
        The posterior is of another kind of model.
    """
    require_chains(require_posterior(posterior).model, "a transition matrix")
    found = chances_of(posterior)
    counts = None if posterior.summary is None else np.array(posterior.summary["M"])
    return Transitions(posterior.ids, found.matrix, found.start, found.unused, counts)
