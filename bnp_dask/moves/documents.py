"""Births of topics from whole documents, which take from all existing topics: candidates of several sizes.

The tokens of a true topic are spread over several wrong topics (on KOS the best single one held 38 to 66 %), so a split
of any one of them gains nothing.  Whole documents are gathered during one lap.  A run of a collapsed Gibbs sampler on
them begins from the existing topics and finds new ones, or begins anew with fewer topics than there are.  During the
next lap every document is also assigned to the topics of this candidate, beside the normal local step, and the exact
whole-data objective decides.  While the candidate's objective falls short but rises, its topics are re-estimated from
their own assignments and tried again.

Sizes: many topics at once are the short way from few topics to as many as a corpus usually shows.  A few at a time find
topics that are missing, at any number.  A run that never had about as many as usual tries these before all else that
waits for calm clusters, since failures use up the calm laps after which a run ends.  Far fewer than usual, sampled
anew, show whether the objective prefers a small number, to which no sequence of single merges and deletes may lead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bnp_dask.core import Batch, Exchange, Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.initialize import (
    MEMORY,
    MOST_PASSES,
    MOST_TOKENS,
    SampledTopics,
    child_rng,
    sample_topics,
    topics_of_tokens,
)
from bnp_dask.inputs import MOST, flag, hold, whole_number
from bnp_dask.kernels import exp, log
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.base import BirthProposal, PlanContext, Planning, Turn, hold_laps, usual_number
from bnp_dask.moves.memory import WHOLE
from bnp_dask.moves.policy import DOCUMENT_TOPICS, DocumentBirthPolicy, hold_policy
from bnp_dask.structure import Trial

SHARPENED, SMOOTHED = "documents sharpened", "documents smoothed"
"""Names under which failures with changed words of all topics are remembered; attempts, by number of topics, under
these names and ``ATTEMPT``."""

ATTEMPT = " at all"

MANY = "documents"
"""Name of the candidate of as many topics as usual."""


@dataclass(frozen=True)
class Size:
    """Size of a candidate.

    Parameters
    ----------
    name
        Name under which failures are remembered.
    total
        Number of its topics.
    anew
        Whether it is sampled without the existing topics.
    tries
        Failures in a row after which no other of this name is made.
    """

    name: str
    total: int
    anew: bool
    tries: int


@register
@dataclass(frozen=True)
class DocumentBirth:
    """Propose new topics found in whole documents, beside all existing ones or in place of them.

    Only for topic models of sparse word counts; nothing is proposed for dense atoms in groups.  A sampler begins from
    the existing topics and some new ones.  It moves tokens among all of them, so old topics change their words as well.
    All topics then compete for every document, so a lap with such a trial takes about twice as long, and no other move
    is made in the first lap of a candidate.  A candidate that falls short is re-estimated and tried again as long as
    the gains to come may be enough.  Sizes of candidates:

    * the usual number of topics of the corpus (see :class:`~bnp_dask.SampledTopics`), or of ``tokens`` tokens if the
      corpus is larger.  If there are far fewer topics: at once, and then every ``every`` laps.  If there are somewhat
      fewer: once clusters are calm, after the other sizes;
    * once clusters are calm: a few topics more than there are, and half as many more if there are somewhat fewer than
      usual; neither beyond the usual number;
    * once clusters are calm: far fewer than usual, sampled without the existing topics.

    Besides, once clusters are calm, all topics are tried with sharpened words, and then with smoothed ones, once each
    for each number of topics (``sharpened`` and ``smoothed`` of the policy).  These take no sampler.  With sharpened
    words documents use more topics for words that fit none of theirs, with smoothed ones fewer.

    Numbers are in the policy.  No other candidate of a size is made after ``tries`` failures in a row, of the half and
    of the topics sampled anew after one.

    On 1,000 documents of KOS a candidate of seven topics beside 87 came from 8,732 nats short to a gain of 435 in five
    laps, and the run ended 1,640 nats above the state before (.16 % of the objective).  On 1,000 reviews of films from
    one topic, a candidate of 73 gained 4,800 nats, and one of nine more, 40 laps later, 84.

    Parameters
    ----------
    tokens
        Approximate number of tokens in the documents that are gathered.
    passes
        Passes of the sampler over them.
    sweeps
        Most laps in which one candidate is tried; it is re-estimated between them, and given up earlier if its
        objective rises too slowly.
    every
        Laps from one attempt to the next while clusters are not calm.
    tries
        Failed attempts in a row after which no other is made.
    kept
        Whether existing topics keep their words.  The sampler then seeks as many new topics beside them as the gathered
        documents usually show, however many exist.
    laps, start
        When the move acts: in these laps alone, such as ``range(0, 20)`` (in a job file ``[0, 20]``), not before lap
        ``start``.  Laps are counted from 0, including laps of updates; nothing is decided in the first.  A run does not
        end as converged before all its moves have begun.
    policy
        Numbers that few will want to change: :class:`bnp_dask.moves.policy.DocumentBirthPolicy`.

    References
    ----------
    Griffiths & Steyvers (2004), "Finding scientific topics", for the sampler; its tokens move one by one among all
    topics, so it finds topics that no split of one topic shows.
    """

    tokens: int = 1_000_000
    passes: int = 200
    sweeps: int = 12
    every: int = 5
    tries: int = 2
    kept: bool = False
    laps: range | tuple[int, int] | None = field(default=None, metadata={"optional": True})
    start: int = 0
    policy: DocumentBirthPolicy = field(default_factory=DocumentBirthPolicy, repr=False)
    kind = "documents"
    at_batch = False

    def __post_init__(self) -> None:
        limits = {"tokens": MOST_TOKENS // 2, "passes": MOST_PASSES, "sweeps": MOST, "every": MOST, "tries": MOST}
        for name, most in limits.items():
            hold(self, name, whole_number(name, getattr(self, name), 1, most))
        hold(self, "kept", flag("kept", self.kept))
        hold_policy(self, "policy", DocumentBirthPolicy)
        hold_laps(self)

    def is_urgent(self, context: PlanContext) -> bool:
        """False: it blocks no other move."""
        return False

    def turn(self, context: PlanContext) -> Turn:
        """First: a candidate takes from all clusters."""
        return Turn.ALL_CLUSTERS

    def prepare(self, context: PlanContext) -> None:
        """Request whole documents if an attempt is due.

        Raises
        ------
        SettingError
            The model is no topic model of word counts.
        """
        if not context.model.structure.takes_words(context.model):
            raise SettingError(
                f"DocumentBirth: {context.model} has no topics of word counts; use Birth(), or HDPTopics() with "
                "Multinomial()"
            )
        due = context.calm or context.lap % self.every == 0
        if not due or WHOLE in context.memory.sweeps or not context.source.is_sparse:
            return
        if self._next_size(context, context.calm) is None:
            return
        length = max(float(np.sum(context.survey.mean)), 1.0)
        wanted = context.at_most_sampled(min(context.survey.n_atoms, max(1, int(self.tokens / length))))
        context.ask([WHOLE], -(-wanted // len(context.visited)))

    def _next_size(self, context: PlanContext, calm: bool) -> Size | None:
        """Size of the next candidate; None if all that are worth a try have failed.

        A failure counts until the tokens have doubled, which may show more topics.  Fewer topics, sampled anew, are
        not tried again: more tokens never ask for fewer.
        """
        first = calm and self._never_had_many(context)
        for size in [one for one in self._sizes(context, calm) if one.name == MANY or not first]:
            change = np.inf if size.anew else 1.0
            if context.memory.failed(size.name, (), [context.tokens], change) < size.tries:
                return size
        return None

    def _sizes(self, context: PlanContext, calm: bool) -> list[Size]:
        """Sizes of candidates that may be tried now, in the order in which they are tried."""
        k, usual, policy = context.value.n_clusters, usual_number(context, self.tokens), self.policy
        many = Size(MANY, usual, anew=False, tries=self.tries)
        if self.kept:
            return [many]
        if not calm:
            return [many] if usual / k > policy.very_few else []
        lacks = usual / k > policy.few
        half, few = (k + max(policy.least_more, int(share * k)) for share in (policy.half, policy.eighth))
        small = max(1, round(usual / policy.fewer))
        enough = few > usual
        return [
            *([Size("documents anew", small, anew=True, tries=1)] if k > policy.few * small else []),
            *([Size("documents half", half, anew=False, tries=1)] if lacks else []),
            *([] if enough else [Size("documents few", few, anew=False, tries=self.tries)]),
            *([many] if lacks else []),
        ]

    def _never_had_many(self, context: PlanContext) -> bool:
        """Whether there are far fewer topics than usual, never were about as many, and a try with so many never failed.

        Such a candidate goes first: failures of others use up the calm laps after which a run ends.
        """
        lacks = usual_number(context, self.tokens) / context.value.n_clusters > self.policy.few
        return lacks and not any(context.memory.failed(m, (), [context.tokens], 1.0) for m in (MANY, MANY + ATTEMPT))

    def plan(self, context: PlanContext) -> Planning:
        """Propose the candidate that is being tried, or a new one found by a task in the gathered documents."""
        if self.policy.few * context.value.n_clusters >= usual_number(context, self.tokens):
            context.memory.remember_failure(MANY + ATTEMPT, (), [context.tokens])  # it has had about as many
        before = context.memory.sweeps.get(WHOLE)
        if before is not None:
            self._propose(context, before.part, before.remembered_as, context.beliefs_of_all(before.part))
            return
        waits = context.calm and context.source.is_sparse and self._never_had_many(context)
        change = None if waits else self._next_change(context)
        if change is not None:
            context.memory.remember_failure(change + ATTEMPT, (), [context.value.n_clusters])
            is_sharp = change == SHARPENED
            basis = sharpened(context, self.policy.sharpened) if is_sharp else smoothed(context, self.policy.smoothed)
            self._propose(context, basis, change)
            context.free.clear()
            return
        if WHOLE not in context.atoms:
            return
        size = self._next_size(context, context.calm)
        if size is None:
            return
        documents = context.atoms[WHOLE]
        n_tokens, k = context.model.mass(documents), context.value.n_clusters
        total = k + topics_of_tokens(n_tokens, documents.n_atoms) if self.kept else size.total
        total = min(total, self._most_topics(context))
        if (total <= k and not size.anew) or n_tokens < self.policy.least_tokens:
            context.give_up(size.name, (), "too few documents, or too many topics, to sample new ones")
            return
        begun = context.value["x"][:0] if size.anew else context.value["x"]
        known = context.executor.share(f"words-lap{context.lap}", np.ascontiguousarray(begun.T))
        passes = self.passes if size.name == MANY else max(1, int(self.policy.brief * self.passes))
        averaged = max(1, int(self.policy.averaged * passes))
        settings = SampledTopics(total, passes, averaged, max_tokens=self.tokens)
        key = (context.seed, context.lap, DOCUMENT_TOPICS)
        args = (context.model, documents, settings, known, self.kept, key, self.policy.least_tokens)
        counts = (yield [(f"propose-lap{context.lap}-topics-of-documents", topics_again, args)])[0]
        first = len(begun)
        if counts.shape[1] == first:
            context.give_up(size.name, (), "the existing topics explain the documents gathered")
            return
        scale = context.tokens / n_tokens
        ids = np.array(context.memory.new_ids(counts.shape[1] - first), np.int64)
        born = _of_counts(context.model, ids, scale * counts[:, first:])
        if size.anew:
            basis = born
        else:
            kept = self.kept
            old = context.value if kept else _of_counts(context.model, context.value.ids, scale * counts[:, :first])
            basis = _beside(context.model, old, born)
        self._propose(context, basis, size.name)
        context.free.clear()  # accepting it voids all other proposals

    def _most_topics(self, context: PlanContext) -> int:
        """Most topics of a candidate whose tables of all words may take memory."""
        return MEMORY // (self.policy.number_bytes * context.source.n_features)

    def _next_change(self, context: PlanContext) -> str | None:
        """Change of the words of all topics that is to be tried now, if any.

        Smoothed topics come last: they lead from more topics in documents than the best state has to fewer.
        """
        k, policy = context.value.n_clusters, self.policy
        if self.kept or not context.calm or not 2 <= k <= self._most_topics(context):
            return None
        changes = {SHARPENED: policy.sharpened > 0.0, SMOOTHED: policy.smoothed > 0.0}
        left = (name for name, is_on in changes.items() if is_on)
        return next((name for name in left if not context.memory.failed(name + ATTEMPT, (), [k], 0.0)), None)

    def _propose(self, context: PlanContext, basis: Summary, name: str, beliefs: Posterior | None = None) -> None:
        beliefs = context.model.global_step(basis) if beliefs is None else beliefs
        trial = f"documents-lap{context.lap}"
        donors = tuple(int(i) for i in context.value.ids)
        others = tuple(int(i) for i in basis.ids if int(i) not in donors)
        proposal = BirthProposal((), others, Exchange(trial, donors), name, self.sweeps)
        # other proposals of the lap may name these clusters: accepting this one voids them
        context.propose(proposal, Trial(trial, donors, beliefs), takes=())


def smoothed(context: PlanContext, share: float) -> Summary:
    """Statistics of all topics, without documents; a ``share`` of each topic's tokens get the words of the corpus.

    A word that fits no topic of its document goes to whichever topic has it.  That topic then keeps such words, and the
    others lose them: a fixed point of the steps, in which documents have shares of a few tokens in too many topics.
    """
    words = np.asarray(context.survey.mean, np.float64)
    words = words / words.sum()
    return _with_words(context, lambda own: (1.0 - share) * own + (share * own.sum()) * words)


def sharpened(context: PlanContext, more: float) -> Summary:
    """Statistics of all topics, without documents; the shares of a topic's words are raised to the power ``1 + more``.

    For a document this is as if its words counted ``1 + more`` times beside its prior, so that it uses more topics.
    The words that fit none of its topics then go to topics that have them: a run in which few topics of many took all
    such words ends where documents have too few topics, another fixed point of the steps.
    """

    def of_topic(own: np.ndarray) -> np.ndarray:
        tokens, words = own.sum(), np.zeros(len(own))
        held = own > 0.0
        words[held] = exp((1.0 + more) * log(own[held] / tokens))
        return words * (tokens / words.sum()) if held.any() else words

    return _with_words(context, of_topic)


def _with_words(context: PlanContext, change: Callable[[np.ndarray], np.ndarray]) -> Summary:
    """Statistics of all topics, without documents, after a change of the counts of words ``(V,)`` of each."""
    out = context.model.empty_summary(context.value.ids)
    for own, topic in zip(context.value["x"], out.values["x"], strict=True):  # no second large table
        topic[...] = change(own)
    out.values["N"][...] = out["x"].sum(axis=1)
    return out


def topics_again(
    model: Model,
    documents: Batch,
    settings: SampledTopics,
    known: np.ndarray,
    kept: bool,
    key: Sequence[int],
    least: float,
) -> np.ndarray:
    """Task: tokens of some documents by word and topic ``(V, K + M)``: K known topics, then new ones, largest first.

    If ``kept``, the topics of ``known (V, K)`` keep their words; otherwise the sampler only begins from them.  New
    topics have ``least`` tokens or more.  Documents beyond twice the tokens of the settings are left out.
    """
    seed, *rest = key
    order = child_rng(seed, *rest, 1).permutation(documents.n_atoms)
    lengths = np.asarray(documents.x.sum(axis=1)).ravel()[order]
    documents = documents.take(np.sort(order[np.cumsum(lengths) <= 2 * settings.max_tokens]))
    if model.mass(documents) < least:
        return known
    root, k = int(child_rng(seed, *rest).integers(2**63)), known.shape[1]
    counts = sample_topics(model, documents, settings, root, known, kept)
    if not kept:
        counts = in_places(known, counts)
    size = counts[:, k:].sum(axis=0)
    order = np.argsort(-size, kind="stable")
    return counts[:, np.concatenate([np.arange(k), k + order[size[order] >= least]])]


def in_places(known: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sampled topics ``(V, K + M)``, reordered so that topics like the ``known`` ones ``(V, K)`` are in their places.

    A sampler that begins with a topic may end with another in its place.  Topics are matched one to one, with the
    largest sum of Bhattacharyya coefficients of their words.
    """
    from scipy.optimize import linear_sum_assignment  # takes a third of a second to load

    one, other = (np.sqrt(table / np.maximum(table.sum(axis=0), 1.0)) for table in (known, counts))
    _, chosen = linear_sum_assignment(one.T @ other, maximize=True)
    rest = np.setdiff1d(np.arange(counts.shape[1]), chosen)
    return counts[:, np.concatenate([chosen, rest])]


def _of_counts(model: Model, ids: np.ndarray, counts: np.ndarray) -> Summary:
    """Statistics of topics from tokens by word and topic ``(V, K)``, without documents."""
    out = model.empty_summary(ids)
    out.values["x"][...] = counts.T
    out.values["N"][...] = counts.sum(axis=0)
    return out


def _beside(model: Model, value: Summary, born: Summary) -> Summary:
    """One summary of existing and newborn clusters."""
    out = model.empty_summary(np.concatenate([value.ids, born.ids]))
    for name in ("N", *model.observation.fields):  # without documents, weights follow from counts
        if out.fields[name].n_cluster_axes:
            out.values[name][...] = np.concatenate([value[name], born[name]])
    return out
