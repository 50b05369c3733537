"""A structure: rows that lie side by side come from one cluster, such as measurements of one animal."""

from dataclasses import dataclass, replace

import numpy as np

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from bnp_dask.structure.independent import Independent
from bnp_dask.structure.visit import visit_rows


@dataclass(frozen=True)
class Linked(Independent):
    """Rows of a mixture, of which each ``size`` side by side draw their cluster as one, a link.

    The rows of a link are independent given its cluster.  Clusters may be merged; births and deletes would try
    assignments that part links, and are refused.
    """

    size: int = 2
    atom = "row"

    def require_fitting(self, model):
        """All clusters are kept for each atom."""
        if model.allocation.top is not None:
            raise SettingError(f"top={model.allocation.top}: rows that are linked need all clusters, top=None")

    def check(self, model, batch):
        """Links do not reach from one batch into another."""
        model.observation.check(batch)
        if batch.n_atoms % self.size:
            raise DataError(f"{batch.name}: {batch.n_atoms} rows are no multiple of {self.size}; choose batch_size so")

    def screens(self, model):
        return False

    def visit(self, model, posterior, batch, pairs, trials, sought, states, room):
        if trials:
            raise SettingError("births and deletes know no links; train with moves=[Merge()]")
        places = posterior.positions(pairs).reshape(-1, 2)
        return visit_rows(model, posterior, batch, self.steps(model, posterior, batch, places), pairs, [], sought, room)

    def steps(self, model, posterior, batch, places):
        rows = self.size * 2048 // self.size
        for start in range(0, batch.n_atoms, rows):
            tile = batch.rows(start, min(start + rows, batch.n_atoms))
            yield tile, self.assign(model, posterior, tile, places)

    def assign(self, model, posterior, tile, places):
        """Local step on links: the log likelihood of a link is the sum over its rows."""
        log_lik = model.observation.expected_log_lik(posterior.observation, tile)
        of_links = log_lik.reshape(-1, self.size, log_lik.shape[1]).sum(axis=1)
        weights = None if tile.weights is None else tile.weights[:: self.size]
        links = bnp.Batch(np.zeros((len(of_links), 1)), weights)
        step = model.allocation.local_step(posterior.allocation, of_links, links, places)
        return replace(step, resp=np.repeat(step.resp, self.size, axis=0))


@bnp.register
@dataclass(frozen=True)
class LinkedMixture(bnp.DPMixture):
    """A Dirichlet process mixture of links of two rows: its weights depend on the number of links."""

    structure = Linked(2)

    def global_step(self, summary):
        return super().global_step(self.of_links(summary))

    def elbo(self, params, summary):
        return super().elbo(params, self.of_links(summary))

    def of_links(self, summary):
        """Statistics whose N are counts of links."""
        return replace(summary, values={**summary.values, "N": summary["N"] / self.structure.size})
