"""An allocation made of two: groups of rows draw a kind, and each kind has weights of its own over the clusters."""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import logsumexp, softmax, xlogy

import bnp_dask as bnp
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import DataError, SettingError
from bnp_dask.structure.independent import Independent, Strata
from bnp_dask.structure.protocols import LocalStep

REFUSED = "rows without groups, such as births and deletes try: give as_source(x, groups=), train with moves=[Merge()]"


class Kinds(Independent):
    """Rows are independent given the kind of their group."""

    is_tied = True
    screens = Strata.screens  # all clusters are needed

    def visit(self, model, posterior, batch, pairs, trials, sought, states, room):
        if trials:
            raise SettingError(REFUSED)
        return super().visit(model, posterior, batch, pairs, [], sought, states, room=0)


def grouped(batch):
    """Group of each row, ``(n,)``, and how often each group counts, ``(G,)``; rows of a sample are by themselves."""
    offsets = np.arange(batch.n_atoms + 1) if batch.groups is None else batch.groups
    group, times = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), np.ones(len(offsets) - 1)
    times[group] = 1.0 if batch.weights is None else batch.weights
    if batch.weights is not None and (batch.weights != times[group]).any():
        raise DataError(f"{batch.name}: rows of one group differ in weight; give all rows the weight of their group")
    return group, times


@bnp.register
@dataclass(frozen=True)
class Nested:
    """A group draws its kind from ``outer``, and its rows draw clusters from the weights that ``inner`` gives the kind.

    All kinds share the clusters: a common atoms model (Denti et al. 2023).  Groups take at most ``n_kinds`` kinds.
    """

    outer: object = field(default_factory=bnp.DPMixture)
    inner: object = field(default_factory=bnp.DPMixture)
    n_kinds: int = 4
    top, structure, nonparametric = None, Kinds(), True

    def __post_init__(self):
        if any(set(getattr(part, "fields", ())) != {"H"} or part.top for part in (self.outer, self.inner)):
            raise SettingError(f"{self.outer}, {self.inner}: needs mixtures such as DPMixture(), with top=None")

    @property
    def fields(self):
        own = {"H": Field(("cluster",), merge="tracked"), "in_kind": Field(("cluster", "kind"))}
        return {**own, "groups": Field(("kind",)), "H_kinds": Field()}

    @property
    def sizes(self):
        return {"kind": self.n_kinds}

    def tiles(self, batch, n_clusters):
        if batch.groups is None:
            raise SettingError(REFUSED)
        yield from (batch.take_groups(i) for i in np.split(np.arange(batch.n_groups), range(64, batch.n_groups, 64)))

    def local_step(self, params, log_lik, batch, pairs):
        """Exact q(kind, clusters) of each group: sum over clusters of each row given the kind, then weigh the kinds."""
        group, times = grouped(batch)
        scores = log_lik[:, None] + np.array([self.inner.log_weights(own) for own in params[1:]])
        log_kind = np.tile(self.outer.log_weights(params[0]), (len(times), 1))
        np.add.at(log_kind, group, logsumexp(scores, axis=2))
        kind, given = softmax(log_kind, axis=1), softmax(scores, axis=2)
        mass = (times[:, None] * kind)[group]
        entropy, union = (-np.einsum("ns,nsk->k", mass, xlogy(q, q)) for q in (given, given[:, :, pairs].sum(axis=3)))
        own = {"H": entropy, "H_kinds": -np.sum(times @ xlogy(kind, kind)), "groups": times @ kind}
        both = mass[:, :, None] * given
        return LocalStep(both.sum(axis=1), {**own, "in_kind": both.sum(axis=0).T}, {"H": union})

    def reassign(self, params, log_lik, batch, mass):
        raise SettingError(REFUSED)

    def sums(self, batch, resp):
        """Statistics of a start: the kind of a group is the position of its largest cluster, modulo ``n_kinds``."""
        (group, times), dense = grouped(batch), resp if isinstance(resp, np.ndarray) else resp.to_dense()
        held = np.zeros((len(times), dense.shape[1]))
        np.add.at(held, group, dense)
        kind = np.eye(self.n_kinds)[held.argmax(axis=1) % self.n_kinds]
        return {"in_kind": dense.T @ kind[group], "groups": times @ kind}

    def terms(self, summary):
        """The two allocations as terms: ``outer`` counts groups, and ``inner`` the rows of each kind."""
        for part, n in ((self.outer, summary["groups"]), *((self.inner, n) for n in summary["in_kind"].T)):
            yield part, Summary(np.arange(len(n)), {"N": Field(("cluster",)), **part.fields}, {"N": n, "H": 0.0 * n})

    def global_step(self, summary):
        return tuple(part.global_step(own) for part, own in self.terms(summary))

    def elbo(self, params, summary):
        value = sum(part.elbo(q, own)["allocation"] for (part, own), q in zip(self.terms(summary), params, strict=True))
        return {"entropy": float(summary["H"].sum() + summary["H_kinds"]), "allocation": value}

    def weights(self, params):
        return self.outer.weights(params[0]) @ [self.inner.weights(own) for own in params[1:]]

    def log_weights(self, params):
        return np.log(self.weights(params))
