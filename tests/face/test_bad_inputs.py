"""Job files and command lines drawn at random: each ends as documented, in one line, soon, and costs the user nothing.

The full size: ``pytest -m long tests/face/test_bad_inputs.py``, of as many of each as ``BNP_BAD_INPUTS`` says.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
import shutil
import time
import warnings
from collections import Counter
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from bnp_dask.cli import main, run

FULL = int(os.environ.get("BNP_BAD_INPUTS", "400"))

SOON, LATE = 10.0, 90.0
"""Seconds that one case may take: of this process, and of the clock on a machine under load."""

JOBS = {
    "mixture": {
        "model": {"allocation": {"type": "DPMixture", "gamma": 2.0, "top": 3}, "observation": "DiagGaussian"},
        "data": {"path": "atoms.npy", "batch_size": 60},
        "init": {"type": "BregmanKMeans", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 2, "window": 2, "tolerance": 1e-5},
        "moves": [{"type": "Birth"}, "Merge", "Delete"],
        "store": "new",
        "rng": 1,
        "checkpoint_minutes": 0.5,
        "on_bad_batch": "skip",
    },
    "finite": {
        "model": {
            "allocation": {"type": "FiniteMixture", "gamma": 1.0},
            "observation": {"type": "Gaussian", "nu": 5.0, "B": [[1, 0], [0, 2]], "m": [0, 0]},
            "estimate": "map",
        },
        "data": {"path": "table.parquet", "columns": ["a", "b"], "weights": "w", "format": "parquet"},
        "init": {"type": "RandomExamples", "n_clusters": 2},
        "schedule": {"type": "Stochastic", "laps": 1, "decay": 0.7, "delay": 1.0},
        "store": "new",
    },
    "topics": {
        "model": {
            "allocation": {"type": "HDPTopics", "gamma": 2.0, "alpha": 0.5},
            "observation": {"type": "Multinomial", "lam": 0.1},
        },
        "data": "words.npz",
        "init": {"type": "RandomExamples", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 1},
        "client": {"workers": 2, "memory_limit": "2GB"},
        "store": "new",
    },
    "sequences": {
        "model": {"allocation": {"type": "HDPHMM", "gamma": 2.0, "alpha": 0.5}, "observation": "DiagGaussian"},
        "data": {"path": "table.parquet", "groups": "g", "order": "t", "gaps": "cut", "step": 1.0, "cut": 30,
                 "columns": ["a", "b"]},
        "init": {"type": "BregmanKMeans", "n_clusters": 3},
        "schedule": {"type": "FullBatch", "laps": 1},
        "store": "new",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data of all kinds, a run, and what is the user's own."""
    folder = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    atoms = np.repeat([[0.0, 0.0], [8.0, 8.0]], 60, axis=0) + rng.standard_normal((120, 2))
    np.save(folder / "atoms.npy", atoms)
    np.save(folder / "text.npy", np.array(["a", "b"]))
    columns = {"a": atoms[:, 0], "b": atoms[:, 1], "w": np.ones(120), "g": np.arange(120) // 40, "t": np.arange(120)}
    pq.write_table(pa.table(columns), folder / "table.parquet")
    sparse.save_npz(folder / "words.npz", sparse.csr_array(rng.poisson(0.7, (40, 9)).astype(float)))
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("years of work")
    (folder / "mine.html").write_text("<!DOCTYPE html><p>a page of my own</p>")
    for name, job in JOBS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(job))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(run, "open_client", lambda spec, quiet: contextlib.nullcontext())
        for name in JOBS:  # what is mutated is right; and everything is compiled
            assert called(["train", f"{name}.yaml", "--store", f"{name}-run", "--quiet"])[0] == 0, name
    (folder / "mixture-run").rename(folder / "run")
    return folder


@pytest.fixture
def bench(home, tmp_path, monkeypatch):
    """A working directory with the same for each case: call it to have it as it was."""
    monkeypatch.setattr(run, "open_client", lambda spec, quiet: contextlib.nullcontext())
    monkeypatch.setattr("bnp_dask.execute.reach.LISTEN_SECONDS", 0.2)
    monkeypatch.setenv("BNP_DASK_STORAGE_SECONDS", "0.5")
    place = tmp_path / "here"

    def fresh():
        os.chdir(tmp_path)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(home, place)
        os.chdir(place)
        return place

    monkeypatch.chdir(tmp_path)
    return fresh


def called(words):
    """Exit code, output and errors of the command line in this process, as a user's would be."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("default")
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


MEANT = ("bnp-dask: warning: stopped at the limit",)
"""Beginnings of warnings that may come before the line."""

OWN = re.compile(r"^(atoms\.npy|text\.npy|table\.parquet|words\.npz|mine.*|\w+\.yaml)$")
"""Files that no command may change, whatever it is given."""


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def own(folder):
    return {name: held for name, held in contents(folder).items() if OWN.match(name)}


def judge(case, folder, words):
    """Run a command and hold what it does to what is promised; its exit code."""
    before, began, clock = own(folder), time.process_time(), time.monotonic()
    code, out, err = called(words)
    took, waited = time.process_time() - began, time.monotonic() - clock
    said = f"{case}\n{words}\n{code}\n{err}"
    lines = [line for line in err.splitlines() if not line.startswith(MEANT)]
    assert "Traceback" not in out + err, said
    assert "--debug shows where" not in err, said  # nobody foresaw it
    if code == 0:
        lines = [line for line in lines if line.startswith("bnp-dask: ")]
        assert not lines, said
    else:
        assert code == 2, said
        errors = [line for line in lines if "error: " in line]
        assert len(errors) == 1, said
        assert errors[0].startswith("bnp-dask"), said
        assert lines[-1] == errors[0], said
        assert len(errors[0]) < 1500, said
    assert took < SOON and waited < LATE, said
    assert own(folder) == before, said
    return code


# -- job files ----------------------------------------------------------------------------------------------------
def nest(depth):
    made = "x"
    for i in range(depth):
        made = [made] if i % 2 else {"a": made}
    return made


VALUES = (
    None, True, False, -1, 0, 1, 2, 10**6, 2**31, 2**63, 10**30, 10**99, -(2**70), 0.5, -0.0, 1e-310, 1e-170, 1e170,
    1e308, float("nan"), float("inf"), float("-inf"), "", " ", "x", "nan", "1e-6", "0", "a\0b", "x" * 300,
    "~no-such-user/x", "nosuch://x", "zip://::", "atoms.npy", "text.npy", "table.parquet", "words.npz", "mine",
    "mine.html", "mixture.yaml", "none/none", "a\nb", "\x1b[2J", "\ud55c\u200b", date(2026, 1, 31), b"\xff\x00",
    {"a", "b"}, [], {}, [[]], [1, 2], [[1, 2], [3]], [["x"]], [None], {"type": None}, {"type": "DPMixture"},
    {"type": "Gaussian", "nu": -3}, {"type": ["x"]}, {1: 2}, {None: None}, nest(20), nest(40), list(range(500)),
    "DPMixture", "HDPTopics", "HDPHMM", "Bernoulli", "Poisson", "ZeroMeanGaussian", "AutoRegressive", "Multinomial",
    "Categorical", "Responsibilities", "Stochastic", "FullBatch", "raise", "vb", "map",
)  # fmt: skip

ANYTHING = st.sampled_from(VALUES).map(copy.deepcopy)
"""A copy: a later change may be one within it."""


def paths(value, here=()):
    """Every place in nested settings."""
    yield here
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in entries:
        yield from paths(child, (*here, name))


def misspelt(name, where):
    text = str(name)
    i = where % (len(text) + 1)
    return (text[:i] + text[i + 1 :], text[:i] + "e" + text[i:], text.upper(), text + "s", " " + text)[where % 5]


@st.composite
def job_files(draw):
    """A job file of which one to three things are not as they were."""
    job = copy.deepcopy(JOBS[draw(st.sampled_from(sorted(JOBS)))])
    for _ in range(draw(st.integers(1, 3))):
        *above, name = draw(st.sampled_from([p for p in paths(job) if p]))
        holder = job
        for part in above:
            holder = holder[part]
        kind = draw(st.sampled_from(("value", "value", "value", "wrap", "gone", "misspelt", "more")))
        if kind == "value":
            holder[name] = draw(ANYTHING | st.floats() | st.integers() | st.text(max_size=9))
        elif kind == "wrap":
            holder[name] = draw(st.sampled_from(([holder[name]], {"a": holder[name]}, [holder[name]] * 3)))
        elif kind == "gone":
            del holder[name]
        elif isinstance(holder, dict):
            wrong = misspelt(name, draw(st.integers(0, 30))) if kind == "misspelt" else draw(st.text(max_size=9))
            holder[wrong] = holder.pop(name) if kind == "misspelt" else draw(ANYTHING)
    text = yaml.dump(job, allow_unicode=True, Dumper=yaml.SafeDumper)
    return draw(damaged(text))


@st.composite
def damaged(draw, text):
    """The bytes of a text: mostly as they are, now and then in another encoding, cut, or with some changed."""
    kind = draw(st.sampled_from(("as is",) * 8 + ("encoding", "cut", "bytes")))
    if kind == "encoding":
        name = draw(st.sampled_from(("utf-16", "utf-32", "latin-1", "utf-8-sig", "utf-7", "cp037")))
        return text.encode(name, "replace")
    content = text.encode("utf-8", "surrogatepass")
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "bytes":
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, len(content) - 1))
            content = content[:at] + draw(st.binary(max_size=3)) + content[at + draw(st.integers(0, 3)) :]
    return content


def try_jobs(bench, number):
    counts = Counter()

    @settings(
        max_examples=number, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(job_files())
    def check(content):
        folder = bench()
        (folder / "x.yaml").write_bytes(content)
        counts[judge(content, folder, ["train", "x.yaml", "--laps", "1", "--quiet"])] += 1

    check()
    return counts


# -- command lines ------------------------------------------------------------------------------------------------
PLACES = (
    "run", "run/posterior.zarr", "atoms.npy", "table.parquet", "words.npz", "mine", "mine.html", "mixture.yaml",
    "finite.yaml", "none", "out", "out.zarr", "out.html", "out.parquet", "out.csv", "none/out.zarr", "atoms.npy/x",
    "a\0b", "x" * 300, "~no-such-user/x", "nosuch://x", "zip://::", "", ".", "/dev/null", "a\nb", "\x1b[31mx",
    os.fsdecode(b"caf\xe9"), "-", "--",
)  # fmt: skip
WORDS = ("0", "1", "2", "7", "-1", "1.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5000, "", "x", "a,b", "a,,b",
         ",", "g", "t", "w", "\0", "x" * 300, "object", "float32", "npy", "csv", "text", "cut", "words", "types", "(",
         "(a+)+$", "utf-7", "none", "4GB", "-4GB", "tcp://127.0.0.1:1", "\u0665")  # fmt: skip
ROWS = ("--columns", "--group-column", "--order-column", "--gaps", "--step", "--cut")
WHERE = ("--workers", "--scheduler", "--scheduler-file", "--memory-limit", "--tls-ca-file", "--tls-cert", "--tls-key")
TEXTS = ("--text-column", "--id-column", "--glob", "--encoding", "--on-bad", "--duplicate-ids", "--stop-words",
         "--min-df", "--max-df", "--max-features", "--rank", "--ngrams", "--token-pattern",
         "--strip-accents")  # fmt: skip
COMMANDS = {
    "ingest": (2, (*ROWS, *TEXTS, "--format", "--batch-size", "--weights", "--vocabulary", "--project", "--patch",
                   "--number", "--seed", "--dtype"), ("--overwrite", "--keep-empty", "--remove-mean")),
    "train": (1, ("--store", *WHERE), ("--resume",)),
    "resume": (1, WHERE, ()),
    "predict": (3, (*ROWS, *WHERE, "--top", "--batch-size"), ("--soft",)),
    "score": (2, (*ROWS, *WHERE, "--batch-size", "--split", "--held-out", "--seed"), ()),
    "inspect": (1, ("--limit", "--vocabulary", "--prices", *WHERE), ()),
    "report": (2, (*ROWS, *WHERE, "--vocabulary", "--data"), ()),
    "demo": (1, ("--patches", "--limit", "--laps"), ()),
}  # fmt: skip
LIKELY = {
    "ingest": ("atoms.npy", "out.zarr"), "train": ("mixture.yaml",), "resume": ("run",),
    "predict": ("run", "atoms.npy", "out.zarr"), "score": ("run", "atoms.npy"), "inspect": ("run",),
    "report": ("run", "out.html"), "demo": ("nonesuch",),
}  # fmt: skip


@st.composite
def command_lines(draw):
    """A command with names and options, most of which mean something."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    number, options, flags = COMMANDS[command]
    places = [draw(st.sampled_from((right,) * len(PLACES) + PLACES)) for right in LIKELY[command][:number]]
    words = list(places)
    for option in draw(st.lists(st.sampled_from(options), max_size=3)):
        value = draw(st.sampled_from(WORDS + PLACES) | st.text(max_size=9))
        words += [f"{option}={value}"] if draw(st.booleans()) else [option, value]
    words += draw(st.lists(st.sampled_from(flags), max_size=2)) if flags else []
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(("--nonsense", "more", "-x", "--work"))))
    if draw(st.integers(0, 9)) == 0 and words:
        words.pop(draw(st.integers(0, len(words) - 1)))
    if command == "demo":  # a right one takes minutes
        words = [word for word in words if word not in ("patches", "digits", "topics")] + ["--dir", "mine"]
    return [command, *words, *(["--laps", "2"] if command in ("train", "resume") else [])]


def try_commands(bench, number):
    counts = Counter()

    @settings(
        max_examples=number, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(command_lines())
    def check(words):
        counts[judge(words, bench(), words)] += 1

    check()
    return counts


def test_some_job_files(bench):
    assert try_jobs(bench, 25)[2] > 10


def test_some_command_lines(bench):
    assert try_commands(bench, 30)[2] > 10


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_job_files(bench):
    counts = try_jobs(bench, FULL)
    print(f"{counts[2]} job files refused, {counts[0]} run")
    assert counts[2] > FULL // 2


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_command_lines(bench):
    counts = try_commands(bench, FULL)
    print(f"{counts[2]} command lines refused, {counts[0]} run")
    assert counts[2] > FULL // 2
