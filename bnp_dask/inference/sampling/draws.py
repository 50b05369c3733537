"""Draws of a sampler: partitions, clusters, and summaries over all draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.core import Columns, Summary, Words, register
from bnp_dask.errors import SettingError, answering
from bnp_dask.inference.sampling.chain import drawn_parameters
from bnp_dask.inference.sampling.visit import PARAMETERS, generator
from bnp_dask.inputs import whole_number
from bnp_dask.kernels import log
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import SETTINGS, estimates_of
from bnp_dask.structure import noun_of

if TYPE_CHECKING:
    import xarray

Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]
"""Axes and values by name."""

DrawnState = tuple[Summary, float, np.ndarray]
"""One chain at one draw: statistics, log joint, clusters of the noted rows."""


@register
@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all chains, ``C`` chains of ``S`` draws each.

    Parameters
    ----------
    model
        Model with its prior set.
    seed
        Seed of the run.
    laps
        Sweep of each draw, from 1, ``(S,)``.
    rows
        Rows of the data whose clusters were noted, ``(R,)``.
    labels
        Ids of their clusters, ``(C, S, R)``; -1 if a row was left out.  Ids are specific to a chain.
    log_joint
        Log probability of partition and data, ``(C, S)`` nats.
    offsets
        Clusters of draw s of chain c are ``offsets[c S + s]:offsets[c S + s + 1]`` below, ``(C S + 1,)``.
    ids
        Ids of all clusters of all draws, ``(M,)``.
    values
        Statistics by name: per cluster ``(M, ...)``, over all atoms ``(C S,)``; for pairs of clusters the entries of
        the matrices of all draws, one after the other.
    words, columns
        As in :class:`~bnp_dask.model.Posterior`.
    """

    model: Model
    seed: int
    laps: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    log_joint: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    values: Mapping[str, np.ndarray]
    words: Words | None = None
    columns: Columns | None = None

    @property
    def n_chains(self) -> int:
        """Chains C."""
        return self.labels.shape[0]

    @property
    def n_draws(self) -> int:
        """Draws of each chain S."""
        return self.labels.shape[1]

    @property
    def n_clusters(self) -> np.ndarray:
        """Clusters that hold an atom, ``(C, S)``."""
        sums = np.add.reduceat((self.values["N"] > 0.0).astype(np.int64), self.offsets[:-1])
        return sums.reshape(self.n_chains, self.n_draws)

    def __repr__(self) -> str:
        k = self.n_clusters
        return (
            f"Draws({self.n_draws} of {self.n_chains} chain(s), sweeps {self.laps[0]} to {self.laps[-1]}, "
            f"{k.min()} to {noun_of(self.model).count(int(k.max()))}, {len(self.rows)} rows noted)"
        )

    # -- one draw --------------------------------------------------------------------------------------------------
    def summary(self, chain: int, draw: int) -> Summary:
        """Statistics of the clusters at a draw, the largest clusters first; SettingError if there is no such draw."""
        place = whole_number("chain", chain, 0, self.n_chains - 1) * self.n_draws
        place += whole_number("draw", draw, 0, self.n_draws - 1)
        own, k = slice(self.offsets[place], self.offsets[place + 1]), int(np.diff(self.offsets)[place])
        squares = int((np.diff(self.offsets)[:place] ** 2).sum())
        values: dict[str, np.ndarray] = {}
        for name, declared in self.model.fields.items():
            if declared.n_cluster_axes == 2:
                values[name] = self.values[name][squares : squares + k * k].reshape(k, k)
            else:
                values[name] = self.values[name][own if declared.dims else place]
        empty = self.model.empty_summary(self.ids[own])
        found = replace(empty, values={name: np.asarray(value) for name, value in values.items()})
        return found.take(found.ids[np.argsort(-found["N"], kind="stable")])

    @answering
    def posterior(self, chain: int, draw: int) -> Posterior:
        """Posterior of weights and parameters given a draw's partition, for :func:`bnp_dask.score` and all others."""
        found = self.model.global_step(self.summary(chain, draw))
        return replace(found, words=self.words, columns=self.columns)

    # -- all draws -------------------------------------------------------------------------------------------------
    def co_clustering(self) -> np.ndarray:
        """Share of the draws in which two of the noted rows are in one cluster, ``(R, R)``; NaN for rows left out."""
        labels = self.labels.reshape(-1, len(self.rows))
        out = np.zeros((len(self.rows), len(self.rows)))
        for own in labels:
            out += own[:, None] == own
        out /= len(labels)
        gone = (labels < 0).any(axis=0)
        out[gone] = out[:, gone] = np.nan
        return out

    def point(self) -> tuple[int, int]:
        """Chain and draw whose partition of the noted rows is nearest to all draws; the first one in a tie.

        The nearest partition has the least posterior expectation of the variation of information, by the lower bound of
        Wade & Ghahramani (2018), eq. 13: ``sum_n log |c_n| - 2 log sum_m 1(c_m = c_n) p_nm``, with p the co-clustering.
        """
        kept = np.flatnonzero((self.labels >= 0).all(axis=(0, 1)))
        if not len(kept):
            return 0, int(np.argmax(self.log_joint[0]))
        shared = self.co_clustering()[np.ix_(kept, kept)]
        loss = np.empty(self.n_chains * self.n_draws)
        for i, own in enumerate(self.labels.reshape(-1, len(self.rows))[:, kept]):
            same = own[:, None] == own
            loss[i] = np.sum(log(same.sum(axis=1)) - 2.0 * log((same * shared).sum(axis=1)))
        best = int(np.flatnonzero(loss <= loss.min() + 1e-9 * len(kept))[0])
        return best // self.n_draws, best % self.n_draws

    def to_dict(self) -> dict[str, np.ndarray]:
        """Numbers comparable across chains, without ids of clusters: the ``posterior`` of ``arviz.from_dict``.

        ``log_joint`` and ``n_clusters`` ``(C, S)``; ``share (C, S, K)``, the shares of all atoms in the clusters by
        falling size, zero beyond a draw's clusters.
        """
        share = np.zeros((self.n_chains, self.n_draws, int(np.diff(self.offsets).max())))
        for c, s in np.ndindex(self.n_chains, self.n_draws):
            counts = self.summary(c, s)["N"]
            share[c, s, : len(counts)] = counts / counts.sum()
        return {"log_joint": self.log_joint, "n_clusters": self.n_clusters, "share": share}

    def to_xarray(self) -> xarray.Dataset:
        """All draws as labelled arrays with the axes ``chain`` and ``draw`` in front, as ArviZ reads them.

        ``log_joint``, ``n_clusters``, ``share`` as in :meth:`to_dict`; ``labels (chain, draw, row)``; and parameters of
        the likelihood, one draw given each partition, under the names of :meth:`Posterior.to_xarray
        <bnp_dask.model.Posterior.to_xarray>`, such as ``mean (chain, draw, cluster, feature)``: clusters by falling
        size, NaN beyond a draw's clusters.
        """
        try:
            import xarray
        except ImportError as error:
            raise SettingError("to_xarray needs xarray: pip install 'bnp-dask[xarray]'") from error
        found = self.to_dict()
        variables: Variables = {
            name: (("chain", "draw", "cluster")[: value.ndim], value) for name, value in found.items()
        }
        variables["labels"] = (("chain", "draw", "row"), self.labels)
        coords: dict[str, Any] = {
            "chain": np.arange(self.n_chains),
            "draw": np.arange(self.n_draws),
            "row": self.rows,
            "lap": ("draw", self.laps),
        }
        for c, s in np.ndindex(self.n_chains, self.n_draws):
            self._put_parameters(variables, coords, c, s)
        return xarray.Dataset(variables, coords=coords, attrs={"observation": type(self.model.observation).__name__})

    def _put_parameters(self, variables: Variables, coords: dict[str, Any], c: int, s: int) -> None:
        """Write the parameters at one draw into arrays of all draws, which the first call creates."""
        most = variables["share"][1].shape[2]
        rng = generator(self.seed, c, int(self.laps[s]), PARAMETERS)
        params = drawn_parameters(self.model, self.summary(c, s), rng)
        names = None if self.columns is None else self.columns.shown
        names = names if self.words is None else self.words.words
        for name, value in estimates_of(self.model.observation, params, names).items():
            if name.split(".")[-1] in SETTINGS:
                continue
            array = value.values
            if name not in variables:
                dims = ["chain", "draw", "cluster"]
                for axis in value.axes:
                    seen = sum(d == axis.name or d.startswith(f"{axis.name}_") for d in dims)
                    dims.append(f"{axis.name}_{seen + 1}" if seen else axis.name)
                    if axis.labels is not None:
                        coords[dims[-1]] = list(axis.labels)
                shape = (self.n_chains, self.n_draws, most, *array.shape[1:])
                variables[name] = (tuple(dims), np.full(shape, np.nan))
            variables[name][1][c, s, : len(array)] = array


def draw_to_arrays(chains: Sequence[DrawnState]) -> dict[str, np.ndarray]:
    """One draw of all chains as named arrays."""
    out: dict[str, np.ndarray] = {}
    for number, (total, log_joint, rows) in enumerate(chains):
        out |= {f"{number}/{name}": value for name, value in total.values.items()}
        out |= {f"{number}/:ids": total.ids, f"{number}/:rows": rows, f"{number}/:log_joint": np.array(log_joint)}
    return out


def draws_from(
    model: Model, seed: int, laps: np.ndarray, rows: np.ndarray, held: Sequence[Mapping[str, np.ndarray]]
) -> Draws:
    """All draws from the arrays of :func:`draw_to_arrays`."""
    n_chains = sum(name.endswith("/:ids") for name in held[0])
    order = [(c, arrays) for c in range(n_chains) for arrays in held]
    sizes = [len(arrays[f"{c}/:ids"]) for c, arrays in order]
    shape = (n_chains, len(held))

    def joined(name: str) -> np.ndarray:
        found = [arrays[f"{c}/{name}"] for c, arrays in order]
        if name in model.fields and model.fields[name].n_cluster_axes == 2:
            found = [value.ravel() for value in found]  # their sizes differ
        return np.stack(found) if found[0].ndim == 0 else np.concatenate(found)

    return Draws(
        model=model,
        seed=seed,
        laps=laps,
        rows=rows,
        labels=joined(":rows").reshape(*shape, len(rows)),
        log_joint=joined(":log_joint").reshape(shape),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=joined(":ids"),
        values={name: joined(name) for name in model.fields},
    )
