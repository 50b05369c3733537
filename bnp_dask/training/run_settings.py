"""Settings of a run: checked, compared and filled in when it is resumed; and its directory.

The user may leave out the start and the moves.  The parts that ``train`` is given are instances with all verbs, of
classes that files can name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bnp_dask.allocation import UnscoredAllocation
from bnp_dask.analysis import EXAMPLES
from bnp_dask.core import (
    REGISTRY,
    Columns,
    Seed,
    Survey,
    Whole,
    fault,
    file_name,
    first_difference,
    from_spec,
    require_spec,
    to_identity,
    to_spec,
    with_added,
)
from bnp_dask.data import Source
from bnp_dask.errors import BnpDaskError, SettingError, StoreError, redacted
from bnp_dask.inference import (
    ExpectationPropagation,
    Filter,
    FullBatch,
    Gibbs,
    Memoized,
    Schedule,
    State,
    Step,
    Stochastic,
    TruncationFreeSVI,
    Work,
)
from bnp_dask.initialize import (
    SAMPLE,
    AnchorWords,
    BregmanKMeans,
    ContiguousBlocks,
    FromNothing,
    FromSample,
    Initialization,
    KMeansParallel,
    RandomExamples,
    Responsibilities,
    SampledTopics,
)
from bnp_dask.inputs import require, shown
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import (
    START,
    Birth,
    BirthPolicy,
    Delete,
    DocumentBirth,
    Merge,
    Move,
    UnitedKMeans,
    shows_enough,
    unites,
)
from bnp_dask.observation import AutoRegressiveGaussian, Labelled, Multinomial
from bnp_dask.store import (
    JOB_NAME,
    RUN_NAME,
    Key,
    LabelsContent,
    MemoryStore,
    RunStore,
    note_in,
    read_settings,
    run_folder,
)
from bnp_dask.structure import require_linkable
from bnp_dask.training.alternatives import Shadow, require_priors
from bnp_dask.training.callbacks import Callback


def check_parts(model: Any, init: Any, schedule: Any, moves: Sequence[Any], callbacks: Sequence[Any]) -> None:
    """SettingError unless these are instances of the right classes; ``init`` and ``schedule`` may be None."""
    if not isinstance(model, Model):
        raise SettingError(
            f"model={shown(model)}: needs a Model, such as Model(DPMixture(gamma=1.0), Gaussian()), and then the data: "
            "train(model, data)"
        )
    if init is not None:
        require("init", init, Initialization, EXAMPLES["init"])
    if schedule is not None:
        require("schedule", schedule, Schedule, EXAMPLES["schedule"])
        if model.learn_prior not in ("auto", "never") and not schedule.decides_moves:
            raise SettingError(
                f"{type(schedule).__name__}() has no exact objective to learn a prior with; use Memoized() or "
                'FullBatch(), or Model(..., learn_prior="never")'
            )
        if model.learn_concentrations == "always" and not schedule.decides_moves:
            raise SettingError(
                f"{type(schedule).__name__}() has no exact objective to learn concentrations with; use Memoized() or "
                'FullBatch(), or Model(..., learn_concentrations="never")'
            )
    for move in moves:
        require("moves", move, Move, EXAMPLES["moves"])
    for one in callbacks:
        require("callbacks", one, Callback, EXAMPLES["callbacks"])


def require_savable(model: Model, init: Any, schedule: Any, moves: Sequence[Any], kept: bool) -> None:
    """StoreError, before anything is computed, for objects that could not be written to a file or not be read again.

    A model is always checked, since its posterior is the result of training; the rest if the run is ``kept``.
    """
    parts = {"init": init, "schedule": schedule, "moves": list(moves)} if kept else {}
    to_spec({"model": model, **parts}, REGISTRY)


def require_savable_parameters(posterior: Posterior) -> None:
    """StoreError, before the first lap, for parameters that could not be saved."""
    to_spec(posterior, REGISTRY)


def facts_of(source: Source) -> dict[str, Any]:
    """Identity of the data, as a run directory keeps it; StoreError for values that do not survive JSON."""
    facts = source.describe()
    try:
        same = json.loads(json.dumps(facts, allow_nan=False)) == facts
    except (TypeError, ValueError):
        same = False
    if not same:
        raise StoreError(
            f"{source.name}: {type(source).__name__}.describe() gives {shown(facts)}, which JSON does not give back; "
            "needs a dict with text, numbers, lists and dicts in it"
        )
    return facts


DATA = ("data", "n_batches")
"""Settings of a run that describe its data."""

MOVES_NAME = "moves.json"
"""File beside a run that was resumed with other moves: their descriptions, from the request on.

The history has the moves of the run so far, so that a run stopped before its next lap changes them in that lap.
"""

LAPS_NAME = "laps.json"
"""File beside a run that was resumed with another limit of laps: that limit."""

CHANGED = "changed_moves"
"""Entry of the history's row of the first step with other moves: their descriptions."""

OPENED = "opened"
"""Name of the setting with which the data can be opened again; two calls of one run may differ in it."""


ClassSpec = TypedDict("ClassSpec", {"$class": str, "fields": dict[str, Any]})
"""Description of an object of a class."""


class OpenedContent(TypedDict):
    """Fields of what opens the data again."""

    place: str
    batch_size: Whole | None
    weights: NotRequired[str | None]
    fingerprint: NotRequired[Any]
    files: NotRequired[list[str]]
    labels: NotRequired[LabelsContent]
    responses: NotRequired[str]
    links: NotRequired[str]


class SettingsContent(TypedDict):
    """Fields of the settings of a run; see :class:`RunParts`."""

    model: tuple[ClassSpec, dict[str, Whole]]
    init: tuple[ClassSpec | None, dict[str, Whole]]
    schedule: ClassSpec
    moves: list[ClassSpec]
    seed: Seed
    data: dict[str, Any]
    n_batches: Whole
    columns: NotRequired[dict[str, Any] | None]
    opened: NotRequired[OpenedContent | None]
    n_init: NotRequired[Whole]
    shadow: NotRequired[tuple[ClassSpec | None, dict[str, Whole]]]


def settings_of_run(store: str | os.PathLike[str] | Key) -> dict[str, Any]:
    """The settings of the run in a directory; StoreError if there is none, or they are not of this package."""
    folder = store if isinstance(store, Key) else run_folder(store)
    found, place = read_settings(folder), folder / RUN_NAME
    wrong = fault(found, SettingsContent, "settings")
    if wrong is None:
        try:
            for name in ("model", "init", "shadow"):
                require_spec(found.get(name, (None,))[0], f"settings.{name}[0]")
            for name in ("schedule", "moves"):
                require_spec(found[name], f"settings.{name}")
        except StoreError as error:
            wrong = str(error)
    if wrong is not None:
        raise StoreError(
            f"{place} is damaged ({wrong}; its checksum is right, so that another program wrote it). Put it back "
            "from a copy, or start the run again in another directory"
        )
    return found


@dataclass(frozen=True, eq=False)
class RunParts:
    """Parts that identify a run.  The limit of laps may change, and the moves of a run that has begun.

    ``init`` is None if the data decide; ``opened`` describes how to open the data again, if they can be.
    """

    model: Model
    init: Initialization | None
    schedule: Schedule
    moves: tuple[Move, ...]
    seed: int
    source: Source
    columns: Columns | None
    opened: dict[str, Any] | None = None
    n_init: int = 1
    shadow: Shadow | None = None

    def settings(self) -> dict[str, Any]:
        """All parts, JSON-able: kept with the run, and compared when it is resumed."""
        return {
            "model": to_identity(self.model),
            "init": to_identity(self.init),
            "schedule": to_spec(self.schedule)[0],
            "moves": [to_spec(move)[0] for move in self.moves],
            "seed": self.seed,
            "data": facts_of(self.source),
            "n_batches": self.source.n_batches,
            "columns": None if self.columns is None else self.columns.to_json(),
            OPENED: self.opened,
            "n_init": self.n_init,
            "shadow": to_identity(self.shadow),
        }

    def with_added(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of a run that an earlier version began, with the settings that its parts have got since."""
        (model, digest), (init, other) = settings["model"], settings["init"]
        return {
            **settings,
            "model": [with_added(model, self.model), digest],
            "init": [with_added(init, self.init), other],
            "schedule": with_added(settings["schedule"], self.schedule),
            "moves": with_added(settings["moves"], self.moves),
        }


def open_store(
    path: str | os.PathLike[str] | None, resume: bool, parts: RunParts, job: str | None, room: int
) -> RunStore | MemoryStore:
    """Store of a run.  A run that has not begun is continued if it is the same, and else replaced.

    Without a path it is kept in memory, up to ``room`` bytes, and beyond that in a temporary directory.

    Raises
    ------
    StoreError
        The directory cannot be used, another process writes to it, or it holds another run.
    """
    if path is None:
        return MemoryStore(room)
    notes, settings = {} if job is None else {JOB_NAME: redacted(job).encode()}, parts.settings()
    begun = RunStore.has_begun(path)
    if RunStore.exists(path) and (resume or not begun):
        found = RunStore.open(path)
        try:
            old = parts.with_added(settings_of_run(found.path))
            asked = note_in(found.path, MOVES_NAME)
            if begun and (asked is not None or old["moves"] != settings["moves"]):
                notes[MOVES_NAME] = json.dumps(settings["moves"]).encode()
            laps = _laps_of(settings)
            if begun and (note_in(found.path, LAPS_NAME) is not None or _laps_of(old) != laps):
                notes[LAPS_NAME] = json.dumps(laps).encode()
            other = _differs({**old, "moves": settings["moves"]} if begun else old, settings, path)
            if other is None:
                for name, text in notes.items():
                    found.note(name, text)
                return found
        except BaseException:
            found.close()
            raise
        found.close()
        if begun:
            raise other
    return RunStore.create(path, settings, notes)


def _laps_of(settings: Mapping[str, Any]) -> Any:
    """The limit of laps in settings of a run."""
    return settings["schedule"]["fields"].get("laps")


def _differs(old: dict[str, Any], new: dict[str, Any], path: str | os.PathLike[str]) -> StoreError | None:
    """The error for a run that differs from the wanted one; None if it does not."""

    def comparable(settings: dict[str, Any]) -> dict[str, Any]:
        schedule = settings["schedule"]
        rest = {name: value for name, value in schedule["fields"].items() if name != "laps"}
        kept = {name: value for name, value in settings.items() if name != OPENED}
        return {**kept, "schedule": {**schedule, "fields": rest}}

    # sources of later versions may have more facts about the same data
    facts = {name: new["data"].get(name) for name in old["data"]}
    a, b = comparable(old), comparable({**new, "data": facts})
    differ = (name for name in a if a[name] != b.get(name))
    return next((_other(path, name, a[name], b.get(name)) for name in differ), None)


def with_names_of(survey: Survey, columns: Columns | None) -> Survey:
    """The survey with names and levels of its features, for messages about priors."""
    if columns is None:
        return survey
    return replace(survey, names=columns.shown, levels=columns.levels)


def _other(path: str | os.PathLike[str] | Key, name: str, old: Any, new: Any) -> StoreError:
    what = "the data changed" if name in DATA else "settings differ"
    place, ours, theirs = first_difference(name, old, new)
    place = place.replace(".fields", "").replace("model[0]", "model").replace("init[0]", "init")
    return StoreError(
        f"cannot resume {path}: {what} ({place}: the run has {shown(ours)}, this call {shown(theirs)}). "
        "Resume with the settings and data of its start, or start a new run in another directory"
    )


@dataclass(frozen=True, eq=False)
class Begun:
    """A run to be resumed: settings of its first call replace settings left out in this call.

    So a run goes on as it began, even if a newer version has other defaults.
    """

    path: Path | Key
    settings: Mapping[str, Any]

    @classmethod
    def at(cls, store: str | os.PathLike[str] | None, resume: bool) -> Begun | None:
        """The run in a directory, if there is one and it is to be resumed."""
        if store is None or not resume or not RunStore.exists(store):
            return None
        return cls(run_folder(store), settings_of_run(store))

    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings["seed"])

    def init(self, given: Initialization | None) -> Initialization | None:
        """Initialization of the run; a ``given`` one with its open settings filled in from the run.

        None if none is given and the data decided, or arrays did, which are not kept.
        """
        spec, digests = self.settings["init"]
        if given is not None:
            filled: Initialization = self._filled("init", given, spec)
            return filled
        return None if digests else self._made("init", spec)

    def moves(self) -> tuple[Move, ...]:
        """The moves of the run, or the moves that it was last resumed with."""
        return tuple(self._made("moves", spec) for spec in self._specs_of_moves())

    def _specs_of_moves(self) -> list[Any]:
        asked = note_in(self.path, MOVES_NAME)
        if asked is None:
            return list(self.settings["moves"])
        try:
            found = list(json.loads(asked))
            require_spec(found, MOVES_NAME)
            return found
        except (RecursionError, StoreError, TypeError, ValueError) as error:
            raise StoreError(f"{self.path / MOVES_NAME} is damaged ({error}); give moves= anew") from error

    def schedule(self, given: Schedule | None) -> Schedule:
        """The schedule of the run, with the laps that it was last resumed with; a ``given`` one with its open settings
        filled in from the run."""
        spec = self.settings["schedule"]
        if given is None:
            return self._made("schedule", self._with_laps(spec))
        filled: Schedule = self._filled("schedule", given, spec)
        return filled

    def _with_laps(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The description of the schedule with the laps that the run was last resumed with."""
        asked = note_in(self.path, LAPS_NAME)
        if asked is None:
            return spec
        try:
            laps = int(json.loads(asked))
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise StoreError(f"{self.path / LAPS_NAME} is damaged ({error}); give schedule= anew") from error
        return {**spec, "fields": {**spec["fields"], "laps": laps}}

    def columns(self) -> Columns | None:
        """Columns of the run's data; None if they had no names, or the run has not begun."""
        if not RunStore.has_begun(self.path):
            return None
        facts = self.settings.get("columns")
        try:
            return None if facts is None else Columns.from_json(facts)
        except BnpDaskError as error:
            raise StoreError(f"{self.path / RUN_NAME}: {error}") from error

    def _filled(self, name: str, given: Any, spec: Any) -> Any:
        """A part that is given, with open numbers filled in from the run's description of it."""
        try:
            return _as_begun(given, spec)
        except SettingError as error:
            raise StoreError(
                f"{self.path / RUN_NAME} is damaged ({name} has a setting that is none: {error}); give all settings "
                f"of {name}= as the run was started with"
            ) from error

    def _made(self, name: str, spec: Any) -> Any:
        try:
            return from_spec(spec, {})
        except StoreError as error:
            raise StoreError(
                f"cannot resume {self.path}: {name} was left out, and the run's cannot be made from its "
                f"description ({error}); give {name}= as the run was started with"
            ) from error


def _as_begun(given: Any, spec: Any) -> Any:
    """A part of a run, with open numbers filled in from the run's description of it."""
    if given is None and isinstance(spec, int | float):
        return spec
    if not isinstance(spec, Mapping):
        return given
    if isinstance(given, tuple) and len(given) == len(spec.get("$tuple", ())):
        return tuple(_as_begun(one, each) for one, each in zip(given, spec["$tuple"], strict=True))
    names = (file_name(type(given)), type(given).__name__)
    if not is_dataclass(given) or isinstance(given, type) or spec.get("$class") not in names:
        return given
    mine = {f.name: getattr(given, f.name) for f in fields(given) if f.name in spec["fields"]}
    filled = {name: _as_begun(value, spec["fields"][name]) for name, value in mine.items()}
    return replace(given, **filled) if any(filled[name] is not mine[name] for name in mine) else given


@dataclass(frozen=True)
class OtherMoves:
    """Moves that a run has from its next lap on, and the moves with which it finishes the current lap."""

    before: tuple[Move, ...]
    specs: list[Any]

    def steps(self, schedule: Schedule, work: Work, state: State) -> Iterator[Step]:
        """Steps of a schedule; the first step with the new moves records the change."""
        if state.position > 0:
            for step in schedule.run(replace(work, moves=self.before), state):
                yield step
                if step.lap_end:
                    break
        if state.finished == "converged" and state.lap < schedule.laps:  # with the moves of before
            state.finished = None
        state.calm_laps = 0.0
        told = False
        for step in schedule.run(work, state):
            row = step.row
            yield step if told or row is None else replace(step, row={**row, CHANGED: self.specs})
            told = told or row is not None


def other_moves(store: Any, rows: Iterable[Mapping[str, Any]], moves: Sequence[Move]) -> OtherMoves | None:
    """The change of moves with which a run in a directory is resumed; None if it has these moves already.

    Parameters
    ----------
    store
        Store of the run.
    rows
        Its history.
    moves
        The moves that it is to have.
    """
    if not isinstance(store, RunStore):
        return None
    specs = [to_spec(move)[0] for move in moves]
    before = store.settings["moves"]
    for row in rows:
        before = row.get(CHANGED, before)
    if with_added(before, list(moves)) == specs:
        return None
    return OtherMoves(tuple(from_spec(spec, {}) for spec in before), specs)


# -- Settings of a run that the user left out: its start, and its moves -------------------------------------------


N_CLUSTERS = 25
"""Clusters to start with if no number is given; moves remove and add clusters as the data require."""

N_STATES = 10
"""States of sequences to start with, when their number is learned."""


FAR_LARGER = 4.0
"""Times that the data must hold the atoms of a sample for a start that learns on the sample: on fewer, laps over all
data do the same."""

OPENING = (Filter, ExpectationPropagation, TruncationFreeSVI)
"""Schedules that open clusters themselves, and start from none."""


CHANGING = (*OPENING, Gibbs)
"""Schedules that change the number of clusters themselves."""


SPLITS_OF_TOPICS = Birth(fresh=4, tries=2, refine=10, policy=BirthPolicy(of_usual=0.5))
"""Births of topics from single topics, beside births from whole documents.

Rare topics that share one topic are found by no sampler of all documents, whose new topics go to the frequent words.
With these settings they found a bar worth 719 nats on unequal bars (seed 2). With about as many topics as
usual no split was accepted on KOS; on it and on 4,000 documents of Reuters runs with splits took 1.6 and 1.9
times the processor time: there are splits only up to half the usual number of topics. Chosen on these; the
bars are a fourth of the usual number.
"""


def default_moves(model: Model, schedule: Schedule, is_sparse: bool) -> tuple[Move, ...]:
    """All moves for a model that learns its number of clusters, none for one of a fixed number.

    Topics of words are born from whole documents, and from single topics by :data:`SPLITS_OF_TOPICS`.
    None either if no move can be decided: point estimates have an objective only up to constants of the prior, which do
    not cancel between different numbers of clusters, and some schedules have no exact objective.
    """
    learns = model.allocation.nonparametric and model.estimate == "posterior" and schedule.decides_moves
    if not learns:
        return ()
    whole = is_sparse and model.structure.takes_words(model)
    births = (DocumentBirth(), SPLITS_OF_TOPICS) if whole else (Birth(),)
    return (*births, Merge(), Delete())


def moves_on_arrival(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Moves of a run when more data come.

    Births from whole documents ask how many topics the corpus may show in all: a corpus that grows may show more, so
    they are tried as soon as there are somewhat fewer (``policy.few``), and not only while clusters are calm, which
    they are not while data come.  Volumes of NIPS, 90 papers first, laps=2: 145 topics after eight volumes instead of
    47, and papers to come are expected at -7.99 nats per token instead of -8.12.  New topics of a part of the corpus
    are found by births of single topics, whose number has no limit then.
    """
    moves = [Birth() if move == SPLITS_OF_TOPICS else move for move in moves]
    grown = tuple(_as_corpus_grows(move) if isinstance(move, DocumentBirth) else move for move in moves)
    kinds = {type(move) for move in moves}
    return (Birth(), *grown) if DocumentBirth in kinds and Birth not in kinds else grown


def _as_corpus_grows(move: DocumentBirth) -> DocumentBirth:
    policy = replace(move.policy, very_few=min(move.policy.few, move.policy.very_few))
    return move if move.kept else replace(move, every=1, policy=policy)


def start_of(
    init: Initialization | None,
    schedule: Schedule,
    model: Model,
    survey: Survey,
    moves: Sequence[Move] = (),
) -> Initialization:
    """Start of a run of a schedule, or of its sample, as given or by default: schedules of streams open their clusters
    themselves.  The priors of ``model`` are set."""
    if isinstance(init, FromSample):
        first = init.sizes(len(survey.batch_atoms))[0]
        # which batches the seed will choose is not known here
        least = max(1, sum(sorted(survey.batch_atoms)[:first]))
        return replace(init, init=start_of(init.init, schedule, model, replace(survey, n_atoms=least), moves))
    if init is not None:
        return init
    if isinstance(schedule, OPENING):
        return FromNothing()
    # a run that cannot merge would keep what the sample could not unite
    merges = any(isinstance(move, Merge) for move in moves) and not isinstance(model.observation, Labelled)
    is_large = survey.n_atoms >= FAR_LARGER * SAMPLE and not survey.is_sparse
    if merges and is_large and unites(model) and shows_enough(model):
        return UnitedKMeans()
    return default_init(model, survey.is_sparse, survey.n_atoms)


def check_schedule(
    model: Model, schedule: Schedule, n_init: int = 1, shadow: Any = None, moves: Sequence[Move] | None = None
) -> None:
    """SettingError if the schedule cannot train the model, or not from several starts, or not beside shadows."""
    if shadow is not None:
        _check_shadow(shadow, model, schedule, default_moves(model, schedule, False) if moves is None else moves)
    if isinstance(schedule, Gibbs) and n_init > 1:
        raise SettingError(f"n_init={n_init}: no start of a sampler is the best one; use Gibbs(chains={n_init})")
    if isinstance(schedule, (Filter, ExpectationPropagation)) and n_init > 1:
        raise SettingError(
            f"n_init={n_init}: {type(schedule).__name__}() draws nothing at random, so that all starts are one; "
            "leave n_init out"
        )
    if isinstance(schedule, CHANGING):
        schedule.check(model)
    elif isinstance(model.allocation, UnscoredAllocation):
        raise SettingError(f"{type(schedule).__name__}(): {model.allocation.no_objective}")


SCHEDULES = (Memoized, FullBatch, Stochastic)
"""Schedules whose local steps look at each atom's log likelihoods, to which labels add a term and which links pool."""


def require_links(model: Model, schedule: Schedule) -> None:
    """SettingError unless the local step of these parts assigns groups of linked atoms as one."""
    require_linkable(model)
    if not isinstance(schedule, SCHEDULES):
        raise SettingError(
            f"links: {type(schedule).__name__}() seats atoms one by one, and would part groups; use Memoized(), "
            "FullBatch() or Stochastic()"
        )


FROM_DATA = (
    AnchorWords, BregmanKMeans, ContiguousBlocks, KMeansParallel, RandomExamples, Responsibilities, SampledTopics,
    UnitedKMeans,
)  # fmt: skip
"""Starts whose clusters hold atoms of the data."""


def check_sample(
    init: Initialization | None, schedule: Schedule, n_init: int, shadow: Any, labels: Any, links: Any
) -> None:
    """SettingError if the run is to begin on a sample and its other settings do not allow it, or if a filter would."""
    if isinstance(schedule, Filter) and isinstance(init, FROM_DATA):
        raise SettingError(
            f"Filter(): {type(init).__name__} makes clusters of atoms that the filter then counts once more; leave "
            "init out, or go on from a posterior of other atoms with FromPosterior(posterior)"
        )
    if not isinstance(init, FromSample):
        return
    if not isinstance(schedule, Memoized):
        raise SettingError(f"FromSample: {type(schedule).__name__}() keeps no statistics of batches; use Memoized()")
    given = {
        "n_init": n_init > 1,
        "shadow": shadow is not None,
        "labels": labels is not None,
        "links": links is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise SettingError(
                f"{name}: a run from a sample has one state, without known labels or links; leave {name} out"
            )


def _check_shadow(shadow: Any, model: Model, schedule: Schedule, moves: Sequence[Move]) -> None:
    if not isinstance(shadow, Shadow):
        raise SettingError(f"shadow={shown(shadow)}: needs Shadow(), or None for none")
    if not schedule.decides_moves:
        raise SettingError(
            f"shadow: {type(schedule).__name__}() has no exact objective to compare states with; use Memoized() or "
            "FullBatch()"
        )
    require_priors(model, shadow.prior or ())
    is_plain = shadow.init is None and shadow.prior is None
    if is_plain and not any(move.kind in (Birth.kind, DocumentBirth.kind) for move in moves):
        raise SettingError(
            "shadow: begins with births that the data rejected, and moves has none; give Shadow(init=...) or "
            "Shadow(prior=...), or moves"
        )


def default_init(model: Model, is_sparse: bool, n_atoms: int, n_clusters: int | None = None) -> Initialization:
    """Default start on ``n_atoms`` atoms or documents; with ``n_clusters`` if that is given.

    Topics of words start from a sampled state, whose size is set by the data; states of sequences from blocks of
    consecutive steps if their number is learned or a step is about how things change; all others from k-means.
    """
    if is_sparse and model.structure.takes_words(model) and isinstance(model.observation, Multinomial):
        return SampledTopics(n_clusters)
    changes = model.allocation.nonparametric or isinstance(model.observation, AutoRegressiveGaussian)
    if model.structure.policy.has_windows and changes:
        usual = N_STATES if model.allocation.nonparametric else N_CLUSTERS
        return ContiguousBlocks(min(usual, n_atoms) if n_clusters is None else n_clusters)
    usual = min(N_CLUSTERS, max(1, n_atoms // START.atoms_each if model.allocation.nonparametric else n_atoms))
    return BregmanKMeans(usual if n_clusters is None else n_clusters)


def filled_in(
    begun: Begun | None,
    init: Initialization | None,
    schedule: Schedule | None,
    moves: Sequence[Move] | None,
) -> tuple[Initialization | None, Schedule, Sequence[Move] | None]:
    """Settings that the user left out, from the resumed run or at their defaults.

    ``init`` and ``moves`` stay None if they depend on the data.
    """
    if begun is not None:
        init = begun.init(init)
        moves = begun.moves() if moves is None else moves
        schedule = begun.schedule(schedule)
    return init, Memoized() if schedule is None else schedule, moves
