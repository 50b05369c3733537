"""Visit of a batch whose atoms come in groups: documents of tokens, images of patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, GroupStates, Links, Summary, concatenate_states
from bnp_dask.errors import SettingError
from bnp_dask.inputs import as_a, require
from bnp_dask.kernels import Resp, count_sums, matmul
from bnp_dask.observation import Estimate, by_feature, each
from bnp_dask.structure.answers import Columns, draw_groups, label_documents, resp_in_groups
from bnp_dask.structure.base import NO_PLACES, OF_GROUPS, Trial, Visit, draw
from bnp_dask.structure.protocols import (
    Beliefs,
    GroupedAllocation,
    GroupStep,
    LocalStep,
    M,
    Members,
    Receivers,
    Tokens,
    WholeModel,
    response_of,
)
from bnp_dask.structure.tokens import SQUARES, Laid, check_tokens, lay_out, share_links, summarize_words
from bnp_dask.structure.visit import NOTICEABLE, UnorderedAtoms, summarize_rows

SIZEABLE = 1.0
"""Least expected tokens of a cluster in a group that is gathered for it."""


@dataclass(frozen=True)
class Groups(UnorderedAtoms):
    """Structure of topic models: atoms are tokens of groups (documents), and each group has weights of its own.

    Its allocation has the methods of :class:`~bnp_dask.structure.protocols.GroupedAllocation`.
    """

    policy = OF_GROUPS
    hidden = "the weights of its groups"
    atom = "atom"
    is_tied = True
    is_ordered = False
    has_shares = True
    keeps_few = True

    def require(self, allocation: Any) -> None:
        require("allocation", allocation, GroupedAllocation, "HDPTopics()")

    def require_fitting(self, model: WholeModel) -> None:
        if model.lags:
            raise SettingError(
                f"{type(model.observation).__name__}(lags={model.lags}) takes steps out of sequences; "
                f"{type(model.allocation).__name__} is about groups without order: use HDPHMM, FiniteHMM or a mixture"
            )

    def check(self, model: WholeModel, batch: Batch) -> None:
        """Let the likelihood check a batch; a topic model accepts documents without any word."""
        model.observation.check(with_words(batch))

    def keeps_states(self, model: WholeModel) -> bool:
        return as_a(model.allocation, GroupedAllocation).keeps_states

    def screens(self, model: WholeModel) -> bool:
        return False

    def takes_words(self, model: WholeModel) -> bool:
        words = model.observation.fields.get("x")
        return words is not None and words.dims[1:] == ("word",)

    def effort(self, model: WholeModel, n_atoms: float, n_clusters: int) -> float:
        return np.inf

    def mass(self, batch: Batch) -> float:
        if not batch.is_sparse:
            return batch.total_weight
        tokens = np.asarray(batch.x.sum(axis=1), np.float64)
        return float(tokens.sum() if batch.weights is None else matmul(tokens, batch.weights))

    def weight(self, summary: Summary, is_sparse: bool) -> float:
        """Weight of documents if tokens are the atoms, else of atoms."""
        return float(summary["docs"]) if is_sparse else float(summary["N"].sum())

    def visit(
        self,
        model: WholeModel,
        posterior: Beliefs,
        batch: Batch,
        pairs: np.ndarray,
        trials: Sequence[Trial],
        sought: Sequence[int],
        states: GroupStates | None,
        room: int,
    ) -> Visit:
        done = visit_groups(model, posterior, batch, pairs, trials, sought, states)
        return Visit(done.summary, done.parts, shares=done.members, states=done.states)

    def steps(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        check_tokens(model, batch)
        for tile in model.allocation.tiles(batch, posterior.n_clusters):
            yield tile, self.assign(model, posterior, tile, places)

    def assign(self, model: WholeModel, posterior: Beliefs, tile: Batch, places: np.ndarray) -> LocalStep:
        laid, none = lay_out(tile), np.zeros((0, posterior.n_clusters), np.bool_)
        table = laid.log_lik(model.observation, posterior.observation)
        allocation = as_a(model.allocation, GroupedAllocation)
        step = allocation.local_step(posterior.allocation, laid.tokens, table, places, none, None)
        return LocalStep(step.sums, step.values, step.pair_values)

    def summarize(self, model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        if isinstance(batch.x, np.ndarray):
            return summarize_rows(model, ids, batch, resp)
        check_tokens(model, batch)  # its atoms are tokens
        counts = np.ascontiguousarray(count_sums(resp, batch.x).T)
        own = summarize_words(model.observation, batch, counts, np.arange(batch.n_features))
        empty = model.empty_summary(ids)
        return replace(empty, values={**empty.values, "N": counts.sum(axis=0), **own})

    def collect(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """Parts of at most ``limit`` of the groups with a sizeable share of a cluster; see :func:`take_members`."""
        share = found.shares[cluster]
        return take_members(batch, share, draw(share.groups, limit, rng))

    def part(self, model: M, posterior: Beliefs, cluster: int | Sequence[int]) -> M:
        """Model of parts of documents, whose topics share the prior mass of their former topic, or topics."""
        share = float(posterior.weights[posterior.positions(np.array(cluster))].sum())
        allocation: Any = as_a(model.allocation, GroupedAllocation).within(share)
        return model.with_allocation(allocation)

    def untied(self, model: M) -> M:
        """Model without groups: a mixture of atoms."""
        return model.with_allocation(as_a(model.allocation, GroupedAllocation).untied())

    def untied_summary(self, model: WholeModel, summary: Summary) -> Summary:
        """Counts and statistics of the likelihood; entropies count as zero."""
        empty = self.untied(model).empty_summary(summary.ids)
        return replace(empty, values={**empty.values, **_shared(model, summary)})

    def tied_summary(self, model: WholeModel, summary: Summary, whole: Summary) -> Summary:
        """Statistics without groups if a sample lacks them: weights then follow from counts."""
        if all(name in summary for name in model.allocation.fields):
            return summary
        empty = model.empty_summary(summary.ids)
        return replace(empty, values={**empty.values, **_shared(model, summary)})

    def with_ties(self, model: WholeModel, summary: Summary, atoms: Batch) -> Summary:
        return model.local_step(model.global_step(summary), atoms)

    def absorbed(
        self, model: WholeModel, posterior: Beliefs, value: Summary, own: Batch, others: np.ndarray
    ) -> np.ndarray:
        return model.local_step(model.global_step(value.take(others)), own)["N"]

    def counted(self, batch: Batch) -> Batch:
        return batch.counting()

    def predict(self, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
        return label_documents(posterior, batch, soft, top)

    def resp(self, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        return resp_in_groups(posterior, batch)

    def n_shares(self, model: WholeModel, n_clusters: int) -> int:
        return n_clusters + model.allocation.nonparametric

    def shares(self, posterior: Beliefs) -> np.ndarray:
        return posterior.weights

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        """Mean and standard deviation of each topic's coefficient of the response, or of each class."""
        response = response_of(posterior.model.allocation)
        if response is None or posterior.allocation.response is None:
            return {}
        values = zip(("response", "response_sd"), response.coefficients(posterior.allocation.response), strict=True)
        if response.classes is None:
            return {name: each(value) for name, value in values}
        names = [str(c) for c in response.classes]
        return {name: by_feature(value, names, "class") for name, value in values}

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        return draw_groups(posterior, n, length, rng)


def _shared(model: WholeModel, summary: Summary) -> dict[str, np.ndarray]:
    """Statistics common to the model with groups and without."""
    return {name: summary[name] for name in ("N", *model.observation.fields)}


@dataclass
class Visited:
    """Result of :func:`visit_groups`."""

    summary: Summary
    parts: dict[str, Summary]
    members: dict[int, Members]
    states: dict[str, GroupStates] = field(default_factory=dict)


def visit_groups(
    model: WholeModel,
    posterior: Beliefs,
    batch: Batch,
    pairs: np.ndarray,
    trials: Sequence[Trial],
    sought: Sequence[int],
    states: GroupStates | None,
) -> Visited:
    """Local step on the groups of a batch that also carries out trials; see ``Model.visit``."""
    check_tokens(model, batch)
    allocation = as_a(model.allocation, GroupedAllocation)
    places = posterior.positions(pairs).reshape(-1, 2)
    sets = _sets(posterior, [t.donors for t in trials] + [(int(i),) for i in sought])
    out = Visited(model.empty_summary(posterior.ids, pairs), {}, {})
    responses = response_of(model.allocation)
    for trial in trials:
        part = model.empty_summary(trial.beliefs.ids)
        out.parts[trial.name] = part if responses is None else _with_links(part, posterior, trial, trials)
    before = None if states is None else states.placed(posterior.ids)
    kept: dict[str, list[GroupStates]] = {}
    masses = []
    start = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters):
        laid = lay_out(tile)
        own = None if before is None else before.groups(start, start + tile.n_groups)
        table = laid.log_lik(model.observation, posterior.observation)
        step = allocation.local_step(posterior.allocation, laid.tokens, table, places, sets, own)
        add_groups(model, out.summary, laid, step, posterior.observation)
        _keep(kept, "", step, posterior.ids)
        tried: list[GroupStates] = []
        for j, trial in enumerate(trials):
            given = _try_out(model, posterior, trial, laid, step.mass[:, j], step.states, step.counts)
            add_groups(model, out.parts[trial.name], laid, given, trial.beliefs.observation)
            _keep(kept, trial.name, given, trial.beliefs.ids)
            if responses is not None and step.counts is not None and given.counts is not None:
                _add_links(out.parts, posterior, trials[: j + 1], laid.tokens, step.counts, given.counts, tried)
                tried.append(given.counts)
        masses.append(step.mass[:, len(trials) :])
        start += tile.n_groups
    out.states = {name: concatenate_states(parts) for name, parts in kept.items()}
    _note_members(out, batch, sought, masses)
    _clear_shared(model, out.parts)
    return out


def add_groups(model: WholeModel, total: Summary, laid: Laid, step: GroupStep, params: Any) -> None:
    """Add a tile of groups, whose clusters have ``params``, to ``total``; pairs only if ``total`` tracks any."""
    values = {"N": step.sums.sum(axis=0), **step.values, **laid.summarize(model.observation, params, step.sums)}
    for name, value in values.items():
        total.values[name][...] += value
    for name, value in total.pair_values.items() if total.n_pairs else ():
        value[...] += step.pair_values[name]


def with_words(batch: Batch) -> Batch:
    """Documents of counts that have any word.

    A topic model keeps the other documents too: they add their prior to the objective and nothing to any topic.
    """
    if isinstance(batch.x, np.ndarray):
        return batch
    filled = np.concatenate([[0], np.cumsum(batch.x.data != 0)])[batch.x.indptr]
    some = np.diff(filled) > 0
    return batch if some.all() else batch.take(np.flatnonzero(some))


def _sets(posterior: Beliefs, wanted: Sequence[Sequence[int]]) -> np.ndarray:
    sets = np.zeros((len(wanted), posterior.n_clusters), np.bool_)
    for j, ids in enumerate(wanted):
        sets[j, posterior.positions(np.array(ids, np.int64))] = True
    return sets


def _try_out(
    model: WholeModel, posterior: Beliefs, trial: Trial, laid: Laid, mass: np.ndarray, states: GroupStates | None,
    counts: GroupStates | None,
) -> GroupStep:  # fmt: skip
    """Share out the mass of a trial's donors in each token among its receivers."""
    allocation = as_a(model.allocation, GroupedAllocation)
    donors = posterior.positions(np.array(trial.donors, np.int64))
    beliefs = model.allocation.weights(trial.beliefs.allocation)
    table = laid.log_lik(model.observation, trial.beliefs.observation)
    start, more = None, dict[str, Any]()
    if states is not None and np.isin(trial.beliefs.ids, trial.donors).any():
        place = np.full(posterior.n_clusters, -1)
        for j, i in enumerate(trial.beliefs.ids.tolist()):
            if i in trial.donors:
                place[posterior.positions(np.array([i]))] = j
        start = replace(states, cluster=place[states.cluster])
    if trial.freed:
        more["freed"] = posterior.positions(np.array(trial.freed, np.int64))
    if counts is not None:
        everything = len(donors) == posterior.n_clusters
        place = places_in(posterior.ids, trial.beliefs.ids)
        more["receivers"] = Receivers(trial.beliefs.allocation if everything else None, place, counts)
    return allocation.reassign(posterior.allocation, donors, beliefs, laid.tokens, table, mass, start, **more)


def places_in(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Positions of ``wanted`` ids among ``ids``, -1 for others."""
    found = np.full(len(wanted), -1)
    if len(ids):
        order = np.argsort(ids, kind="stable")
        place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
        found = np.where(ids[place] == wanted, place, -1)
    return found


def _with_links(part: Summary, posterior: Beliefs, trial: Trial, trials: Sequence[Trial]) -> Summary:
    """Statistics of a trial with links, all zero, to all topics but the donors, and to other trials' receivers."""
    rest = posterior.ids[~np.isin(posterior.ids, trial.donors)]
    values = {SQUARES: np.zeros((2, part.n_clusters, len(rest)))}
    for other in trials:
        if other.name != trial.name:
            values[f"{SQUARES}@{other.name}"] = np.zeros((2, part.n_clusters, len(other.beliefs.ids)))
    return replace(part, links=Links(rest, np.array(trial.donors, np.int64), values))


def _add_links(
    parts: Mapping[str, Summary],
    posterior: Beliefs,
    trials: Sequence[Trial],
    tokens: Tokens,
    counts: GroupStates,
    given: GroupStates,
    tried: Sequence[GroupStates],
) -> None:
    """Add a tile's links of the last of ``trials``, whose receivers have the counts ``given``, to all other topics,
    which have ``counts``, and to the receivers of the trials before, which have the counts ``tried``."""
    trial = trials[-1]
    mine = parts[trial.name]
    assert mine.links is not None
    name, rest = SQUARES, mine.links.rest
    place = places_in(rest, posterior.ids)
    outside = replace(counts, cluster=place[counts.cluster])
    mine.links.values[name][...] += share_links(tokens, given, outside, (mine.n_clusters, len(rest)))
    for other, theirs in zip(trials, tried, strict=False):
        part = parts[other.name]
        assert part.links is not None
        both = share_links(tokens, given, theirs, (mine.n_clusters, part.n_clusters))
        mine.links.values[f"{name}@{other.name}"][...] += both
        part.links.values[f"{name}@{trial.name}"][...] += both.T


def _keep(kept: dict[str, list[GroupStates]], name: str, step: GroupStep, ids: np.ndarray) -> None:
    if step.states is not None:
        kept.setdefault(name, []).append(step.states.named(ids))


def _note_members(out: Visited, batch: Batch, sought: Sequence[int], masses: list[np.ndarray]) -> None:
    for j, cluster in enumerate(sought):
        mass = np.concatenate([np.zeros(0), *[m[:, j] for m in masses]])
        offsets = batch.x.indptr if not isinstance(batch.x, np.ndarray) else batch.group_offsets
        running = np.concatenate([[0.0], np.cumsum(mass)])
        tokens = running[offsets[1:]] - running[offsets[:-1]]
        out.members[int(cluster)] = Members(mass, np.flatnonzero(tokens >= SIZEABLE))


def _clear_shared(model: WholeModel, parts: Mapping[str, Summary]) -> None:
    """Zero likelihood statistics without a cluster axis: they belong to atoms, and the batch's summary has them."""
    for part in parts.values():
        for name, declared in model.observation.fields.items():
            if declared.n_cluster_axes == 0:
                part.values[name][...] = 0.0


def members_of(model: WholeModel, posterior: Beliefs, groups: Batch, clusters: Sequence[Sequence[int]]) -> list[Batch]:
    """Parts of groups, as of one cluster, that belong to each of some sets of clusters under a posterior."""
    ids = sorted({i for some in clusters for i in some})
    found = visit_groups(model, posterior, groups, NO_PLACES, (), ids, None).members
    out, batch = Visited(model.empty_summary(posterior.ids), {}, {}), groups
    masses = np.stack([np.sum([found[i].mass for i in some], axis=0) for some in clusters], axis=1)
    _note_members(out, batch, range(len(clusters)), [masses])
    return [take_members(batch, own, own.groups) for own in out.members.values()]


def take_members(batch: Batch, members: Members, groups: np.ndarray) -> Batch:
    """Batch of parts of groups: the tokens of one cluster in each group at the positions ``groups``.

    Sparse counts: rows of expected counts (not integers).  Dense atoms: weights times responsibility, in groups.
    Tokens with no share in the cluster are left out, dense atoms also with a negligible one, as in mixtures.
    """
    if not isinstance(batch.x, np.ndarray):
        x = batch.x
        whole = sparse.csr_array((members.mass, x.indices, x.indptr), shape=x.shape)[groups]
        whole.eliminate_zeros()
        weights = None if batch.weights is None else batch.weights[groups]
        return replace(batch, x=sparse.csr_array(whole), weights=weights, responses=None)  # of whole documents alone
    least = NOTICEABLE if batch.weights is None else NOTICEABLE * batch.weights
    mass = np.where(members.mass > least, members.mass, 0.0)
    weighted = replace(batch, weights=mass, responses=None).take_groups(groups)
    some = np.asarray(weighted.weights) > 0.0
    lengths = np.concatenate([[0], np.cumsum(some)])[weighted.group_offsets].astype(np.int64)
    return replace(weighted.take(np.flatnonzero(some)), groups=lengths)
