"""A state as plain numbers and named arrays, for checkpoints; loading it runs no code and gives the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from bnp_dask.core import (
    Between,
    Edit,
    Exchange,
    Fade,
    Finite,
    Forget,
    Id,
    InsertEmpty,
    Merge,
    RunningTotal,
    Seed,
    Summary,
    Take,
    Unite,
    Whole,
    Widen,
    batch_from_arrays,
    batch_to_arrays,
    check_weights,
)
from bnp_dask.errors import BnpDaskError, StoreError
from bnp_dask.inference.chains import sampler_from_saved, sampler_to_arrays, sampler_to_json
from bnp_dask.inference.gathered import Gathered
from bnp_dask.inference.prior import prior_to_arrays, with_saved_prior
from bnp_dask.inference.state import SEALED, Loss, Sample, Sealed, State, Stream
from bnp_dask.model import Model
from bnp_dask.moves import (
    AnyProposal,
    Basis,
    BirthProposal,
    DeleteProposal,
    Gather,
    Memory,
    MergeProposal,
    Plan,
    Proposal,
    Rejected,
    SmallRunPolicy,
    Split,
    Sweep,
)
from bnp_dask.store import DamagedError, ExtentContent, Listing, Part, no_receipts, require_fields
from bnp_dask.structure import Trial

Arrays = dict[str, np.ndarray]

GATHERED = "gathered"
"""Prefix of the names of arrays of gathered atoms."""

TABLES = "stream/tables"
"""Name of the array of tables of topics."""

EDITS: dict[str, type[Edit]] = {e.__name__: e for e in (InsertEmpty, Take, Merge, Unite, Exchange, Forget, Fade, Widen)}

PROPOSALS: dict[str, type[AnyProposal]] = {
    p.__name__: p for p in (Proposal, MergeProposal, DeleteProposal, BirthProposal)
}

NUMBERS = ("lap", "position", "step", "terms", "lap_elbo", "finished", "void", "calm", "calm_laps")


class ManifestReference(TypedDict):
    """Fields of the reference to the list of batches."""

    key: str
    rows: ExtentContent


class SavedGrowth(TypedDict):
    """Fields of a run that was updated with more data."""

    rows: ExtentContent
    pieces: ExtentContent
    version: Whole
    newest: Whole
    is_open: bool
    names: list[tuple[Id, Id]]
    seconds: Finite
    lays_away: bool


class SavedStarts(TypedDict):
    """Fields of the outcome of several starts."""

    seed: Seed
    starts: list[dict[str, Any]]


class SavedShadows(TypedDict):
    """Fields of shadows."""

    rows: list[dict[str, Any]]
    failed: Whole
    turn: Whole
    begun: Whole | None


class SavedSampler(TypedDict):
    """Fields of chains."""

    kind: NotRequired[str]
    chains: list[tuple[Whole, Finite, bool, bool]]
    draws: list[tuple[Whole, tuple[str, Whole, Whole]]]


class SavedProgress(TypedDict):
    """Fields of statistics that count with a number: of changes of clusters, or of the weight of all atoms."""

    seen: Annotated[float, Between(0, 1e300)]


class SavedDecision(TypedDict):
    """Fields of a proposal that was given up, as :func:`bnp_dask.moves.base.record` makes them."""

    kind: str
    targets: list[Id]
    others: list[Id]
    gain: float | None
    accepted: bool
    why: str


class SavedState(TypedDict):
    """Fields of the state in a checkpoint; see :class:`~bnp_dask.inference.State`."""

    lap: Whole
    position: Whole
    step: Whole
    terms: dict[str, Finite]
    lap_elbo: float | None
    finished: str | None
    void: bool
    calm: bool
    calm_laps: Finite
    edits: list[tuple[str, dict[str, Any]]]
    proposals: list[tuple[str, dict[str, Any]] | dict[str, Any]]
    given_up: list[SavedDecision]
    trials: list[tuple[str, list[Id], list[Id], Id | None] | tuple[str, list[Id], list[Id], Id | None, list[Id]]]
    next_id: Whole
    dormant: list[Id]
    young: list[tuple[Id, Finite]]
    grows: bool
    rejected: list[tuple[list[Id], float]] | None
    failures: list[tuple[str, list[Id], list[float]]]
    sweeps: list[tuple[Id, list[Id], float, float, Whole] | tuple[Id, list[Id], float, float, Whole, list[Id], str]]
    splits: list[tuple[Id, dict[str, Any]]]
    in_flight: list[tuple[Whole, Whole]]
    gather: tuple[list[Id], list[Whole]] | tuple[list[Id], list[Whole], list[Whole]]
    gathered: list[Id]
    gathered_parts: list[tuple[Id, tuple[str, Whole, Whole]]]
    pending: list[tuple[Id, Whole]]
    has_partial: bool
    lost: list[tuple[Whole, str, Whole, Whole]]
    sealed: SavedProgress | None
    sampler: SavedSampler | None
    stream: SavedProgress | None
    sample: NotRequired[Sample | None]
    checksums: NotRequired[dict[str, Whole]]
    manifest: NotRequired[ManifestReference | None]
    growth: NotRequired[SavedGrowth]
    settled: NotRequired[SavedStarts]
    shadow: NotRequired[SavedShadows]


def state_to_json(state: State) -> dict[str, Any]:
    """Everything that is not an array."""
    memory = state.memory
    return {
        **{name: getattr(state, name) for name in NUMBERS},
        "edits": [_edit_to_json(e) for e in state.edits],
        "proposals": [_proposal_to_json(p) for p in state.plan.proposals],
        "given_up": list(state.plan.given_up),
        "trials": [[t.name, list(t.donors), list(t.focus), t.rest, list(t.freed)] for t in state.plan.trials],
        "next_id": memory.next_id,
        "dormant": list(memory.dormant),
        "young": [[cluster, weight] for cluster, weight in memory.young.items()],
        "grows": memory.grows,
        "rejected": None if memory.rejected is None else [[list(d), one.gain] for d, one in memory.rejected.items()],
        "failures": [[kind, list(targets), list(counts)] for (kind, targets), counts in memory.failures.items()],
        "sweeps": [
            [t, list(s.receivers), s.gain, s.step, s.tried, list(s.together), s.remembered_as]
            for t, s in memory.sweeps.items()
        ],
        "splits": [[b, asdict(split)] for b, split in state.plan.splits.items()],
        "in_flight": [[_basis_index(state)[id(basis)], seen] for basis, seen in state.in_flight],
        "gather": [list(state.plan.gather.targets), list(state.plan.gather.limits)],
        "gathered": list(state.gathered.pieces),
        "gathered_parts": [[t, astuple(p)] for t in state.gathered.pieces for p in state.gathered.parts_of(t)],
        "pending": [[target, len(bases)] for target, bases in state.pending.items()],
        "has_partial": state.partial is not None,
        "lost": [[b, loss.why, loss.lap, loss.step] for b, loss in sorted(state.lost.items())],
        "sealed": None if state.sealed is None else {"seen": state.sealed.seen},
        "checksums": checksums_of(state),
        "sampler": sampler_to_json(state.sampler),
        "sample": None if state.sample is None else asdict(state.sample),
        "stream": None if state.stream is None else {"seen": state.stream.seen},
    }


def checksums_of(state: State) -> dict[str, int]:
    """CRC-32 of the sums over all batches."""
    sums = {"total": state.total, **({} if state.sealed is None else {"sealed": state.sealed.total})}
    return {name: _checksum(total) for name, total in sums.items()}


def _checksum(total: RunningTotal) -> int:
    out: Arrays = {}
    _pack_total(out, "", total)
    crc = 0
    for name in sorted(name for name, array in out.items() if array.size):  # without pairs some have empty arrays
        data = np.ascontiguousarray(out[name]).tobytes()
        crc = zlib.crc32(data, zlib.crc32(name.encode(), crc))
    return crc


def require_sums(state: State, numbers: Mapping[str, Any], base: str) -> None:
    """DamagedError if a sum over all batches does not match its saved checksum; ``base`` names the checkpoint."""
    found = checksums_of(state)
    for name, crc in numbers.get("checksums", {}).items():
        if found.get(name) != crc:
            raise DamagedError(f"{base} is damaged (the sum {name!r} over its batches does not fit its checksum)")


def state_to_arrays(state: State) -> Arrays:
    """All arrays, named."""
    out: Arrays = {"visits": state.visits, "seen": state.seen, "pairs": state.plan.pairs}
    if state.lap_counts is not None:
        out["lap_counts"] = state.lap_counts
    if state.weights is not None:
        out["weights"] = state.weights
    out.update(prior_to_arrays(state.model))
    out.update(sampler_to_arrays(state.sampler))
    if state.stream is not None and state.stream.tables is not None:
        out[TABLES] = state.stream.tables
    assert state.posterior.summary is not None
    _pack(out, "posterior", state.posterior.summary)
    _pack_total(out, "total", state.total)
    if state.sealed is not None:
        _pack_total(out, "sealed", state.sealed.total)
    if state.partial is not None:
        _pack_total(out, "partial", state.partial)
    for i, trial in enumerate(state.plan.trials):
        assert trial.beliefs.summary is not None
        _pack(out, f"basis{i}", trial.beliefs.summary)
        _pack_total(out, f"trial{i}", state.trials[trial.name])
    for cluster, part in state.memory.dormant.items():
        _pack(out, f"dormant{cluster}", part)
    for i, one in enumerate((state.memory.rejected or {}).values()):
        _pack(out, f"rejected{i}", one.part)
    for target, sweep in state.memory.sweeps.items():
        _pack(out, f"sweep{target}", sweep.part)
    for target, bases in state.pending.items():
        for i, found in enumerate(bases):
            _pack(out, f"newborn{target}.{i}", found.newborn)
            _pack(out, f"held{target}.{i}", found.held)
    index = _basis_index(state)
    for basis, _ in state.in_flight:
        _pack(out, f"in_flight{index[id(basis)]}", basis)
    for target, atoms in state.gathered.in_memory().items():
        out.update({f"{GATHERED}{target}/{key}": array for key, array in batch_to_arrays(atoms).items()})
    return out


def is_constant(name: str) -> bool:
    """Whether an array of :func:`state_to_arrays` is final."""
    return name.startswith(GATHERED)


def state_from_saved(
    model: Model,
    numbers: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    listing: Listing | None = None,
    place: str = "the checkpoint",
) -> State:
    """Inverse of :func:`state_to_json` and :func:`state_to_arrays`; ``listing`` describes the files of summaries.

    Raises
    ------
    StoreError
        It has changes of clusters of a newer version.
    DamagedError
        The content is not a state of this model, though its checksums are right: another program wrote it.  It names
        the ``place``.
    """
    require_fields(numbers, SavedState, f"the state of {place}")
    try:
        state = _state_from(model, numbers, arrays, listing)
    except StoreError:  # of a newer version
        raise
    except Exception as error:  # arrays of any shapes are in question
        what = str(error) if isinstance(error, (BnpDaskError, DamagedError)) else f"{type(error).__name__}: {error}"
        raise DamagedError(
            f"{place} is damaged (it is not a state of this run: {what}; its checksum is right, so that another "
            "program wrote it)"
        ) from error
    return state


def _array(
    arrays: Mapping[str, np.ndarray], name: str, kinds: str, low: float, high: float, length: int | None = None
) -> np.ndarray:
    """A copy of an array ``(N,)`` of numbers from ``low`` to ``high``; DamagedError for anything else.

    ``kinds`` are the kinds of its type, as in ``dtype.kind``.
    """
    found = arrays.get(name)
    if found is None:
        raise DamagedError(f"the array {name} is missing")
    if found.dtype.kind not in kinds or found.ndim != 1 or length not in (None, len(found)):
        what = "whole numbers" if "i" in kinds else "numbers"
        raise DamagedError(
            f"the array {name} is {found.dtype} {found.shape}; needs {what} ({'N' if length is None else length},)"
        )
    if not ((found >= low) & (found <= high)).all():
        raise DamagedError(f"the array {name} has values from {found.min()} to {found.max()}; needs {low} to {high}")
    return np.array(found)


def _state_from(
    model: Model, numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray], listing: Listing | None
) -> State:
    model = with_saved_prior(model, arrays)

    def summary(name: str) -> Summary:
        own = {key.removeprefix(name + "/"): a for key, a in arrays.items() if key.startswith(name + "/")}
        return Summary.from_arrays(model.fields, own)

    def total(name: str) -> RunningTotal:
        return RunningTotal(summary(f"{name}.high"), summary(f"{name}.low"))

    trials = [
        Trial(name, tuple(donors), model.global_step(summary(f"basis{i}")), tuple(focus), rest, *map(tuple, freed))
        for i, (name, donors, focus, rest, *freed) in enumerate(numbers["trials"])
    ]
    proposals = tuple(_proposal_from_json(p) for p in numbers["proposals"])
    splits = {b: _split_from_json(split) for b, split in numbers["splits"]}
    gather = Gather(*map(tuple, numbers["gather"]))
    failures = {(kind, tuple(t)): tuple(counts) for kind, t, counts in numbers["failures"]}
    sweeps = {
        t: Sweep(tuple(r), summary(f"sweep{t}"), gain, step, tried, *_of_set(more))
        for t, r, gain, step, tried, *more in numbers["sweeps"]
    }
    sealed = numbers["sealed"]
    dormant = {i: summary(f"dormant{i}") for i in numbers["dormant"]}
    pending = {
        t: tuple(Basis(summary(f"newborn{t}.{i}"), summary(f"held{t}.{i}")) for i in range(count))
        for t, count in numbers["pending"]
    }
    rejected = numbers["rejected"]
    if rejected is not None:
        rejected = {tuple(d): Rejected(summary(f"rejected{i}"), gain) for i, (d, gain) in enumerate(rejected)}
    edits = [_edit_from_json(e) for e in numbers["edits"]]
    visits = _array(arrays, "visits", "iu", SEALED, 2**62)
    pairs = np.array(arrays["pairs"])
    if pairs.dtype.kind not in "iu" or pairs.shape[1:] != (2,):
        raise DamagedError(f"the array pairs is {pairs.dtype} {pairs.shape}; needs whole numbers (M, 2)")
    return State(
        posterior=model.global_step(summary("posterior")),
        total=total("total"),
        visits=visits,
        seen=_array(arrays, "seen", "iu", 0, len(edits), len(visits)),
        receipts=_receipts(visits, listing),
        memory=Memory(
            numbers["next_id"],
            failures,
            sweeps,
            numbers["grows"],
            dormant,
            dict(numbers["young"]),
            rejected,
        ),
        edits=edits,
        plan=Plan(pairs, tuple(trials), proposals, splits, tuple(numbers["given_up"]), gather),
        trials={t.name: total(f"trial{i}") for i, t in enumerate(trials)},
        in_flight=[(summary(f"in_flight{i}"), seen) for i, seen in numbers["in_flight"]],
        lap_counts=_array(arrays, "lap_counts", "fiu", 0.0, np.inf) if "lap_counts" in arrays else None,
        weights=_array(arrays, "weights", "fiu", 0.0, np.inf, len(visits)) if "weights" in arrays else None,
        gathered=_gathered(model, numbers, arrays),
        pending=pending,
        partial=total("partial") if numbers["has_partial"] else None,
        sealed=None if sealed is None else Sealed(total("sealed"), sealed["seen"]),
        sampler=sampler_from_saved(model, numbers["sampler"], arrays),
        stream=_stream(numbers["stream"], arrays),
        sample=_sample(numbers.get("sample")),
        lost={b: Loss(*rest) for b, *rest in numbers["lost"]},
        **{name: numbers[name] for name in NUMBERS},
    )


def _sample(numbers: Mapping[str, Any] | None) -> Sample | None:
    return None if numbers is None else Sample(**_with_tuples(numbers))


def _stream(numbers: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]) -> Stream | None:
    if numbers is None:
        return None
    return Stream(numbers["seen"], _array(arrays, TABLES, "fiu", 0.0, np.inf) if TABLES in arrays else None)


def _receipts(visits: np.ndarray, listing: Listing | None) -> np.ndarray:
    """Bytes and CRC-32 of each batch's file, ``(B, 2)``."""
    out = no_receipts(len(visits))
    if listing is not None:
        batches = np.flatnonzero(visits >= 0)
        if not (np.array_equal(listing.batches, batches) and np.array_equal(listing.visits, visits[batches])):
            raise DamagedError("it lists other summaries than the ones that its state was made from")
        out[batches] = listing.receipts
    return out


def _basis_index(state: State) -> dict[int, int]:
    """Number of each distinct summary behind the groups in flight, by its identity."""
    return {key: i for i, key in enumerate(dict.fromkeys(id(basis) for basis, _ in state.in_flight))}


def _pack(out: Arrays, name: str, summary: Summary) -> None:
    for key, value in summary.to_arrays().items():
        out[f"{name}/{key}"] = value


def _pack_total(out: Arrays, name: str, total: RunningTotal) -> None:
    _pack(out, f"{name}.high", total.high)
    _pack(out, f"{name}.low", total.low)


def _gathered(model: Model, numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Gathered:
    out = Gathered({target: [] for target in numbers["gathered"]})
    for target, part in numbers["gathered_parts"]:
        out.pieces[target].append(Part(*part))
    for target in numbers["gathered"]:
        name = f"{GATHERED}{target}"
        own = {key.removeprefix(f"{name}/"): a for key, a in arrays.items() if key.startswith(f"{name}/")}
        atoms = [batch_from_arrays(own, name)] if own else []
        for batch in atoms:
            values = batch.x if isinstance(batch.x, np.ndarray) else batch.x.data  # of documents only a part
            if not (np.isfinite(values) | (np.isnan(values) & model.marginalises)).all():
                raise DamagedError(f"the array {name}/x has values that are not finite")
            if batch.weights is not None:
                check_weights(batch.weights, batch.n_atoms, name)
        out.add(target, atoms)
    return out


def _edit_to_json(edit: Edit) -> list[Any]:
    return [type(edit).__name__, {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(edit).items()}]


def _edit_from_json(saved: list[Any]) -> Edit:
    name, values = saved
    if name not in EDITS:
        raise StoreError(
            f"the checkpoint holds a change of clusters of an unknown kind, {name!r}; it needs a newer version"
        )
    require_fields(values, EDITS[name], f"change of clusters {name}")
    return EDITS[name](**_with_tuples(values))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields read from JSON, with tuples in place of lists."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _split_from_json(saved: Mapping[str, Any]) -> Split:
    require_fields(saved, Split, "a split")
    return Split(**{**_with_tuples(saved), "policy": SmallRunPolicy(**saved["policy"])})


def _of_set(more: Sequence[Any]) -> tuple[Any, ...]:
    """Further targets of a delete that is refined, and the name of its failures; earlier checkpoints have none."""
    return (tuple(more[0]), more[1]) if more else ()


def _proposal_to_json(proposal: AnyProposal) -> list[Any]:
    return [type(proposal).__name__, {**asdict(proposal), "edit": _edit_to_json(proposal.edit)}]


OF_KIND = {"merge": "MergeProposal", "delete": "DeleteProposal", "birth": "BirthProposal"}
"""Types of proposals by the kind that earlier checkpoints name."""


def _proposal_from_json(saved: list[Any] | dict[str, Any]) -> AnyProposal:
    name, values = (OF_KIND.get(saved["kind"], "Proposal"), saved) if isinstance(saved, dict) else saved
    if name not in PROPOSALS:
        raise StoreError(f"the checkpoint holds a proposal of an unknown kind, {name!r}; it needs a newer version")
    known = {field.name: values[field.name] for field in fields(PROPOSALS[name]) if field.name in values}
    edit = _edit_from_json(known["edit"])
    require_fields({**known, "edit": asdict(edit)}, PROPOSALS[name], f"proposal {name}")
    return PROPOSALS[name](**{**_with_tuples(known), "edit": edit})
