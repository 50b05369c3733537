"""An allocation made of two: each group of rows draws a kind, and each kind has weights of its own over the clusters."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax, xlogy

import bnp_dask as bnp
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import DataError, SettingError
from bnp_dask.kernels.mixture.resp import cluster_sums
from bnp_dask.structure.independent import Independent
from bnp_dask.structure.protocols import LocalStep

REFUSED = "births and deletes sample rows without their groups, whose kinds would be lost; train with moves=[Merge()]"


class Kinds(Independent):
    """Rows are independent given the kind of their group."""

    is_tied = True

    def screens(self, model):
        return False

    def check(self, model, batch):
        model.observation.check(batch)
        if batch.groups is None:
            raise DataError(f"{batch.name}: rows without groups; give as_source(x, groups=offsets)")
        if batch.weights is not None and (np.diff(batch.weights)[np.diff(group_of(batch)) == 0] != 0).any():
            raise DataError(f"{batch.name}: rows of one group have different weights; a weight is that of its group")

    def visit(self, model, posterior, batch, pairs, trials, sought, states, room):
        if trials:
            raise SettingError(REFUSED)
        return super().visit(model, posterior, batch, pairs, [], sought, states, room=0)


def group_of(batch):
    """Position of the group of each row, ``(n,)``; rows of a sample are by themselves."""
    return np.arange(batch.n_atoms) if batch.groups is None else np.repeat(range(batch.n_groups), np.diff(batch.groups))


@bnp.register
@dataclass(frozen=True, eq=False)
class NestedParams:
    """Parameters of the weights of kinds, and of the weights of clusters in each kind."""

    outer: Any
    inner: tuple[Any, ...]


@bnp.register
@dataclass(frozen=True)
class Nested:
    """Group g draws a kind s_g from ``outer``, and its rows draw clusters from the weights that ``inner`` gives s_g.

    All kinds share the clusters.  With two ``DPMixture``, this is the common atoms model (Denti, Camerlenghi, Guindani &
    Mira 2023).  ``outer`` and ``inner`` are mixtures whose only statistics are counts and entropies; q knows ``n_kinds``.
    """

    outer: Any = bnp.DPMixture()
    inner: Any = bnp.DPMixture()
    n_kinds: int = 4
    top = None
    structure = Kinds()

    def __post_init__(self):
        for part in (self.outer, self.inner):
            if set(part.fields) != {"H"} or part.top is not None:
                raise SettingError(f"{part}: needs a mixture such as DPMixture(), with top=None")

    @property
    def nonparametric(self):
        return self.inner.nonparametric

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
        rows, first = 2**19 // (n_clusters * self.n_kinds), 0
        while first < batch.n_groups:
            stop = np.searchsorted(batch.groups, batch.groups[first] + rows, side="right") - 1
            yield batch.take_groups(np.arange(first, max(first + 1, stop)))
            first = max(first + 1, stop)

    def local_step(self, params, log_lik, batch, pairs):
        """q(s_g, z) is exact: rows are summed over their clusters given the kind, then the kinds are weighed."""
        group, weights = group_of(batch), np.ones(batch.n_atoms) if batch.weights is None else batch.weights
        times = np.ones(batch.n_atoms if batch.groups is None else batch.n_groups)  # how often each group counts
        times[group] = weights
        scores = log_lik[:, None] + np.array([self.inner.log_weights(own) for own in params.inner])
        log_kind = np.tile(self.outer.log_weights(params.outer), (len(times), 1))
        np.add.at(log_kind, group, logsumexp(scores, axis=2))
        kind, given = softmax(log_kind, axis=1), softmax(scores, axis=2)  # q(s_g) and q(z_n | s_g)
        mass = weights[:, None] * kind[group]
        in_kind = np.einsum("ns,nsk->ks", mass, given)
        unions = given[:, :, pairs[:, 0]] + given[:, :, pairs[:, 1]]
        entropy, of_unions = (-np.einsum("ns,nsk->k", mass, xlogy(q, q)) for q in (given, unions))
        own = {"in_kind": in_kind, "groups": times @ kind, "H_kinds": -np.sum(times @ xlogy(kind, kind))}
        return LocalStep(np.einsum("ns,nsk->nk", mass, given), {"H": entropy, **own}, {"H": of_unions})

    def reassign(self, params, log_lik, batch, mass):
        raise SettingError(REFUSED)

    def sums(self, batch, resp):
        """Of a start: the kind of a group is the position of its largest cluster, modulo their number."""
        group, dense = group_of(batch), resp if isinstance(resp, np.ndarray) else resp.to_dense()
        held = np.zeros((batch.n_atoms if batch.groups is None else batch.n_groups, dense.shape[1]))
        np.add.at(held, group, dense)
        kind = np.eye(self.n_kinds)[held.argmax(axis=1) % self.n_kinds]
        times = np.ones(len(kind))
        times[group] = dense.sum(axis=1)
        return {"in_kind": cluster_sums(dense, kind[group]), "groups": times @ kind}

    def terms(self, summary):
        """The parts, and the statistics of each: counts of groups, and counts of the rows in each kind."""
        yield self.outer, counts_only(self.outer, summary["groups"])
        yield from ((self.inner, counts_only(self.inner, n)) for n in summary["in_kind"].T)

    def global_step(self, summary):
        outer, *inner = (part.global_step(own) for part, own in self.terms(summary))
        return NestedParams(outer, tuple(inner))

    def elbo(self, params, summary):
        each = zip(self.terms(summary), (params.outer, *params.inner), strict=True)
        value = sum(part.elbo(beliefs, own)["allocation"] for (part, own), beliefs in each)
        return {"entropy": float(summary["H"].sum() + summary["H_kinds"]), "allocation": value}

    def weights(self, params):
        """Expected weights in a group of unknown kind; kinds beyond ``n_kinds`` have the prior's."""
        kinds, clusters = self.outer.weights(params.outer), [self.inner.weights(own) for own in params.inner]
        prior = self.inner.global_step(counts_only(self.inner, np.zeros(len(clusters[0]))))
        return kinds @ clusters + (1.0 - kinds.sum()) * self.inner.weights(prior)

    def log_weights(self, params):
        return np.log(self.weights(params))


def counts_only(part, n):
    """Statistics of a mixture with counts ``n (K,)`` and no entropy."""
    fields = {"N": Field(("cluster",)), **part.fields}
    return Summary(np.arange(len(n)), fields, {name: n if name == "N" else np.zeros(len(n)) for name in fields})
