"""Files of a run with right checksums and wrong contents, as another program or a stranger may have sealed them.

Every field and array of a small stored run is changed in many ways, and sealed again.  Whoever opens, resumes, updates
or predicts then gets a result, or an error of this package that names a file or a field.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.schema import Finite, Id, Whole, fault
from bnp_dask.core.survey import bulk_of, grain_of
from bnp_dask.errors import BnpDaskError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import SavedState
from bnp_dask.inference.checkpoint import SavedStarts
from bnp_dask.inputs.settings import start_of_seed
from bnp_dask.store import DamagedError, RunStore
from bnp_dask.store.files import _SEALED, pack, seal, unpack
from bnp_dask.training.results import MARK
from bnp_dask.training.run_settings import Begun, settings_of_run
from bnp_dask.training.survey_pass import share_of_copies, summed

DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]

VALUES = [None, True, -1, 10**30, 1e300, float("nan"), "\x1b[31m../../x", [], {}, [[None]], {"a": {}}, DEEP]
"""Values that take the place of each field."""


# -- the run --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A folder with data, a run on them, and a run that was updated."""
    folder = tmp_path_factory.mktemp("sealed")
    rng = np.random.default_rng(0)
    x = np.array([[0.0, 0.0], [6.0, 1.0], [-5.0, 4.0]])[np.arange(60) % 3] + rng.normal(size=(60, 2))
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", x[:20] + 0.1)
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    settings = {"batch_size": 30, "client": SerialExecutor(), "schedule": bnp.Memoized(laps=2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.train(model, folder / "x.npy", store=folder / "plain", init=bnp.RandomExamples(3), **settings)
        shutil.copytree(folder / "plain", folder / "grown")
        bnp.update(folder / "grown", folder / "y.npy", client=SerialExecutor())
    return folder


# -- changes --------------------------------------------------------------------------------------------------------
def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all fields of JSON; of lists of the first two entries."""
    if path:
        yield path
    items = content.items() if isinstance(content, dict) else ()
    if isinstance(content, list):
        items = enumerate(content[:2])
    for key, value in items:
        yield from places(value, (*path, key))


DROP = object()


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of JSON with another value at a path, or without it for :data:`DROP`."""
    out = copy.deepcopy(content)
    inside = out
    for key in path[:-1]:
        inside = inside[key]
    if value is DROP:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return out


def changes_of(content: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Wrong versions of JSON, each with its name; made when asked for."""
    for path in places(content):
        for value in [DROP, *VALUES]:
            shown = "dropped" if value is DROP else repr(value)[:20]
            yield f"{'.'.join(map(str, path))}={shown}", partial(changed, content, path, value)
    yield "further", lambda: {**content, "further": [1]}


def arrays_of(array: np.ndarray) -> Iterator[tuple[str, np.ndarray | None]]:
    """Wrong versions of an array, None without it."""
    yield "dropped", None
    yield "negative", np.full_like(array, -1) if array.dtype.kind in "if" else array
    yield "empty", np.zeros(0)
    yield "short", array[:-1] if array.ndim and len(array) else array
    yield "text", array.astype(str)
    yield "nan", np.full(array.shape, np.nan)
    yield "3-d", np.zeros((2, 3, 4), array.dtype if array.dtype.kind in "biuf" else np.int64)
    if array.dtype.kind in "if":
        yield "complex", array.astype(complex)


def sealed_again(file: Path, what: str = "") -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Wrong contents of a file of a run with right checksums, each with its name; made when asked for."""
    data = file.read_bytes()
    if file.name == "zarr.json":
        for name, body in changes_of(json.loads(data)["attributes"][MARK]):
            yield name, lambda body=body: json_of_archive(body())
    elif file.suffix == ".json":
        envelope = _SEALED.fullmatch(data)
        assert envelope is not None
        for name, content in changes_of(json.loads(envelope[2])):
            yield name, lambda content=content: seal(content())
    elif file.suffix == ".npz":
        arrays, meta = unpack(data, file)
        for name, content in changes_of(meta):
            yield name, lambda content=content: pack(arrays, content())
        for name, array in arrays.items():
            for kind, other in arrays_of(array):
                rest = {key: value for key, value in arrays.items() if key != name}
                yield f"{name} {kind}", partial(pack, rest if other is None else {**rest, name: other}, meta)


def json_of_archive(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    attributes = {MARK: body, "crc32": zlib.crc32(text)}
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def put(run: Path, file: str, data: bytes) -> None:
    """Write a file; the head of a checkpoint is made to fit new arrays, and the checkpoint new parts."""
    (run / file).write_bytes(data)
    if file.startswith("checkpoints/") and file.endswith(".npz"):
        head = (run / file).with_suffix(".json")
        content = json.loads(_SEALED.fullmatch(head.read_bytes())[2])
        content["arrays"] = {"bytes": len(data), "crc32": zlib.crc32(data)}
        head.write_bytes(seal(content))


def newest(run: Path, suffix: str) -> str:
    return f"checkpoints/{max(p.name for p in (run / 'checkpoints').glob(f'*{suffix}'))}"


def outcome(call: Callable[[], Any]) -> str | None:
    """What is wrong with how a call ends: None for a result, or an error of this package that is none of Python's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except BnpDaskError as error:
            text = str(error)
            if "\x1b" in text:
                return f"escapes in {text!r}"
            return None if re.search(r"[/.]|checkpoint|array|batch|settings", text) else f"names nothing: {text}"
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error}"[:150] + f" in {Path(place.filename).name}:{place.lineno}"
    return None


# -- whoever reads a run --------------------------------------------------------------------------------------------
X = np.array([[0.0, 0.0], [6.0, 1.0], [-5.0, 4.0]])


def looks(run: Path) -> None:
    """Read all of a run that is read without its data."""
    begun = Begun(run, settings_of_run(run))
    begun.moves(), begun.schedule(None), begun.init(None), begun.columns(), begun.seed()
    RunStore.view(run).load(fields=SavedState)
    if (run / "VERSION.json").exists():
        bnp.versions(run)
    bnp.load(run)


def predicts(run: Path) -> None:
    predicted = bnp.predict(bnp.load(run), X)
    assert np.shape(predicted) == (len(X),)


def data_of(run: Path) -> Path:
    """The data of a run, at their place of its start."""
    return (run.parent / "x.npy").resolve()


def resumes(run: Path) -> None:
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    schedule = bnp.Memoized(laps=3)
    bnp.train(model, data_of(run), store=run, resume=True, client=SerialExecutor(), schedule=schedule, batch_size=30)


def resumes_as_begun(run: Path) -> None:
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    bnp.train(model, data_of(run), store=run, resume=True, client=SerialExecutor(), rng=None, batch_size=30)


def updates(run: Path) -> None:
    bnp.update(run, run.parent / "z.npy", client=SerialExecutor())


def rolls_back(run: Path) -> None:
    bnp.rollback(run, 0)


Uses = list[Callable[[Path], None]]


def faults_of(stored: Path, name: str, file: str, uses: Uses, share: float, room: Path) -> list[str]:
    """Faults of some uses of a run whose file is changed in a share of all ways, drawn by their names."""
    found = []
    for what, data in sealed_again(stored / name / file):
        if zlib.crc32(what.encode()) > share * 2**32:
            continue
        for use in uses:
            run = room / "run"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(stored / name, run)
            put(run, file, data())
            wrong = outcome(lambda use=use, run=run: use(run))
            if wrong is not None:
                found.append(f"{file} {what}: {use.__name__}: {wrong}")
    return found


@pytest.fixture
def room(stored, tmp_path) -> Path:
    """A folder with the data, for a changed copy of a run."""
    for name in ("x", "y"):
        (tmp_path / f"{name}.npy").symlink_to(stored / f"{name}.npy")
    (tmp_path / "z.npy").symlink_to(stored / "y.npy")
    return tmp_path


def files_of(run: Path) -> list[str]:
    """Files of a run of which one of each kind is changed."""
    manifest = next(p.name for p in sorted((run / "manifest").glob("*.npz")))
    summary = min(str(p.relative_to(run)) for p in (run / "summaries").rglob("*.npz"))
    found = ["RUN.json", newest(run, ".json"), newest(run, ".npz"), f"manifest/{manifest}", summary]
    found += ["posterior.zarr/zarr.json"]
    if (run / "VERSION.json").exists():
        found += ["VERSION.json", *(f"versions/0000000{n}.json" for n in (0, 1)), "versions/00000001.zarr/zarr.json"]
    return found


@pytest.mark.parametrize("name", ["plain", "grown"])
def test_a_run_that_another_program_sealed_is_read_or_refused_by_name(stored, room, name):
    found = []
    for file in files_of(stored / name):
        found += faults_of(stored, name, file, [looks], 0.002, room)
    assert found == []


@pytest.mark.parametrize(
    ("use", "name", "file", "share"),
    [
        (predicts, "plain", "posterior", 0.003),
        (resumes, "plain", "checkpoint", 0.0015),
        (resumes, "plain", "arrays", 0.01),
        (updates, "grown", "checkpoint", 0.001),
    ],
)
def test_a_run_that_another_program_sealed_goes_on_or_is_refused(stored, room, use, name, file, share):
    run = stored / name
    kinds = {"posterior": "posterior.zarr/zarr.json", "checkpoint": newest(run, ".json"), "arrays": newest(run, ".npz")}
    assert faults_of(stored, name, kinds[file], [use], share, room) == []


NAMED = [
    (looks, "plain", "posterior", "arrays=[[None]]"),
    (updates, "plain", "posterior", "spec.fields.summary.fields.fields=None"),
    (updates, "plain", "checkpoint", "state.edits.0.1.drop=-1"),
    (resumes, "plain", "arrays", "total.high/value.xx nan"),
    (resumes, "plain", "arrays", "gathered1/weights nan"),
    (resumes, "plain", "arrays", "gathered1/x nan"),
]
"""Changes that long runs found to be taken, or blamed on the data, and who met them."""


@pytest.mark.parametrize(("use", "name", "file", "what"), NAMED)
def test_a_change_that_was_blamed_on_something_else_is_named(stored, room, use, name, file, what):
    run = stored / name
    file = {"posterior": "posterior.zarr/zarr.json", "checkpoint": newest(run, ".json"), "arrays": newest(run, ".npz")}[
        file
    ]
    shutil.copytree(run, room / "run")
    put(room / "run", file, dict(sealed_again(run / file))[what]())
    assert outcome(lambda: use(room / "run")) is None


def test_a_manifest_of_other_arrays_is_refused_or_is_a_survey(stored):
    """Every array of a manifest, in every wrong form, is refused by the one that reads it, or can be worked with."""
    (file,) = (stored / "plain" / "manifest").glob("*.npz")
    arrays, _ = unpack(file.read_bytes(), file)
    for name, array in arrays.items():
        for _, other in arrays_of(array):
            rest = {key: value for key, value in arrays.items() if key != name}
            manifest = SimpleNamespace(name="the manifest", arrays=rest if other is None else {**rest, name: other})
            with suppress(DamagedError), np.errstate(all="ignore"):
                survey = summed(manifest)
                assert survey.total_weight > 0 and survey.n_atoms > 0
                bulk_of(survey), grain_of(survey), share_of_copies(survey)


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "grown"])
@pytest.mark.parametrize("place", range(10))
def test_all_of_a_run_that_another_program_sealed_goes_on_or_is_refused(stored, room, name, place):
    files = files_of(stored / name)
    if place < len(files):
        uses = [looks, predicts, *([resumes, resumes_as_begun] if name == "plain" else [rolls_back]), updates]
        assert faults_of(stored, name, files[place], uses, 1.0, room) == []


def test_a_fault_is_named_by_its_field():
    kind = dict[str, tuple[Id, list[Whole] | None] | Finite]
    assert fault({"a": [3, None], "b": 2}, kind) is None
    assert fault({"a": [3, [0, -1]]}, tuple[Id, list[Whole]]) is not None
    assert fault({"lap": -1}, dict[str, Whole]) == "lap is -1; needs a whole number from 0 to 4.61169e+18"
    assert fault({"lap": True}, dict[str, Whole]) == "lap is True; needs a whole number"
    assert fault(float("nan"), Finite) is not None
    starts = {"seed": start_of_seed(2**128 - 1, 2), "starts": []}  # of the third start, with more than 64 bits
    assert fault(starts, SavedStarts) is None
    lacking = fault({"lap": 3}, SavedState)
    assert lacking is not None and lacking.startswith("the content lacks position, step, terms")


# -- a posterior that was harmed ------------------------------------------------------------------------------------
HARMS: dict[str, Callable[[Path], Any]] = {
    "description cut off": lambda place: (place / "zarr.json").write_text("{"),
    "description gone": lambda place: (place / "zarr.json").unlink(),
    "arrays gone": lambda place: [file.unlink() for file in place.glob("state-*")],
    "arrays cut off": lambda place: [file.write_bytes(file.read_bytes()[:-9]) for file in place.glob("state-*")],
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
def test_resume_writes_a_damaged_posterior_again(stored, room, harm):
    run = room / "run"
    shutil.copytree(stored / "plain", run)
    whole = bnp.load(run)
    harm(run / "posterior.zarr")
    with pytest.raises(StoreError):
        bnp.load(run)
    with pytest.warns(bnp.ConvergenceWarning):
        resumes_as_begun(run)
    assert np.array_equal(bnp.load(run).observation.m, whole.observation.m)


def test_what_is_no_posterior_is_left_alone_and_the_error_says_how_to_go_on(stored, room):
    run = room / "run"
    shutil.copytree(stored / "plain", run)
    (run / "posterior.zarr" / "zarr.json").write_text("{")
    (run / "posterior.zarr" / "mine.txt").write_text("precious")
    with pytest.raises(
        StoreError, match=r"Nothing is lost.*move .*posterior.zarr away, then train\(..., resume=True\)"
    ):
        resumes_as_begun(run)
    assert (run / "posterior.zarr" / "mine.txt").read_text() == "precious"
    (run / "posterior.zarr").rename(room / "away")
    with pytest.warns(bnp.ConvergenceWarning):
        resumes_as_begun(run)
    bnp.load(run)
