"""Fault scripts: a model is fitted, saved, damaged, updated; each variant in a process of its own, which it may kill.

A script is a list of steps, the verbs of ``FORMAT.md``.  POSIX only: variants are forks, and a full disk is a limit of
the size of files.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conformance.adapter import Adapter, NotOffered
from conformance.cases import Case

SOUND = ("refused", "answered as before", "left the old model", "left the new model")
SECONDS, MOST_CPU = 600, 60
"""A variant that takes more, of the clock or of CPU time, never ends."""

MOST = 12
"""Variants of a script; of more, as many evenly chosen ones."""

PLACES = (0.05, 0.3, 0.5, 0.7, 0.95)
"""Where files are cut, as shares of their size."""

FLIPPED = np.linspace(0.02, 0.98, 15)
"""Where a byte of theirs is changed."""


def run_script(adapter: Adapter, case: Case) -> dict[str, int]:
    """How many variants of a script came to which end."""
    last = case.settings["steps"][-1]
    verb = "update" if last[0] == "update" else "save"
    if getattr(type(adapter), verb) is getattr(Adapter, verb):
        raise NotOffered({"update": "no updates", "save": "no files of its own"}[verb])
    data = [case[f"{adapter.data}_{i}"] for i in range(2)]
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved"
        if "damage" in last:
            saved.mkdir()
            # this process never calls the library: threads that it starts would not survive the forks that follow
            expected = _required(lambda: _saved(adapter, data[0], 0, saved / "model", data[0]))
            for damaged in _damaged(saved, Path(folder) / "damaged", last[1]):
                ends[_in_fork(lambda: _load(adapter, damaged / "model", data[0], [expected]))] += 1  # noqa: B023
                if ends["never ended"]:
                    break  # one tells enough: each costs a minute
        elif "full disk" in last:
            saved.mkdir()
            both = [_required(lambda: _saved(adapter, data[i], i, saved / f"model{i}", data[0])) for i in (0, 1)]  # noqa: B023
            for share in PLACES:
                ends[_full_disk(adapter, saved, Path(folder) / str(share), share, data[0], both)] += 1
        else:
            how = case.settings["steps"][1][1]
            ends[_in_fork(lambda: _bad_update(adapter, data, how))] += 1
    return dict(ends)


def _saved(adapter: Adapter, data: np.ndarray, seed: int, path: Path, asked: np.ndarray) -> list:
    """Fit, save, and tell what the model answers once it is loaded."""
    adapter.save(adapter.fit(data, seed), path)
    found: list = np.asarray(adapter.outcome(adapter.load(path), asked), float).tolist()
    return found


def _required(function: Callable[[], Any]) -> np.ndarray:
    """The answer of a function in a child, which is sound."""
    told = _in_fork(function)
    if isinstance(told, str):
        raise RuntimeError(f"an undisturbed model: {told}")
    return np.array(told)


def _in_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a child process, as JSON, or how the child ended."""
    answer = tempfile.NamedTemporaryFile()  # noqa: SIM115 closed at the end, in this process alone
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU + 1))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        warnings.simplefilter("ignore")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            told = function()
        except BaseException:
            told = "refused"
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits[1], limits[1]))
        Path(answer.name).write_text(json.dumps(told))
        os._exit(0)
    until = time.monotonic() + SECONDS
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "never ended"
        time.sleep(0.005)
    if os.WIFSIGNALED(ended[1]) and os.WTERMSIG(ended[1]) == signal.SIGXCPU:
        return "never ended"
    with answer:
        text = Path(answer.name).read_text()
    return json.loads(text) if text else "ended the process"


def _same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True))


def _load(adapter: Adapter, path: Path, data: np.ndarray, expected: list[np.ndarray]) -> str:
    found = adapter.outcome(adapter.load(path), data)
    names = ("answered as before",) if len(expected) == 1 else SOUND[2:]
    return next((name for name, own in zip(names, expected) if _same(found, own)), "answered otherwise")


def _damaged(saved: Path, copy: Path, how: str) -> Iterator[Path]:
    """Copies of a folder, in each of which one file is damaged at one place."""
    names = sorted(path.relative_to(saved) for path in saved.rglob("*") if path.is_file())
    places = {"flip": FLIPPED, "truncate": PLACES}.get(how, (0.0,))
    variants = [(name, share) for name in names for share in (places if (saved / name).stat().st_size else (0.0,))]
    for i in range(min(MOST, len(variants))):
        name, share = variants[i * len(variants) // min(MOST, len(variants))]
        content = (saved / name).read_bytes()
        place = int(share * len(content))
        shutil.copytree(saved, copy)
        if how == "remove":
            (copy / name).unlink()
        elif how == "flip":
            (copy / name).write_bytes(
                content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :] if content else b""
            )
        else:
            (copy / name).write_bytes(content[:place])
        yield copy
        shutil.rmtree(copy)


def _full_disk(
    adapter: Adapter, saved: Path, folder: Path, share: float, data: np.ndarray, expected: list[np.ndarray]
) -> str:
    """Save the second model over the first where files may have a share of the size of the second's largest."""
    shutil.copytree(saved, folder)
    inside = [p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0].startswith("model1")]
    limit = max(1, int(share * max(p.stat().st_size for p in inside)))

    def save() -> str:
        model = adapter.load(folder / "model1")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        adapter.save(model, folder / "model0")
        return "saved"

    told = _in_fork(save)
    found = _in_fork(lambda: _load(adapter, folder / "model0", data, expected))
    if told == "saved" and found != "left the new model":
        return "were not saved without a word"
    return "lost both models" if found == "refused" else str(found)


def _bad_update(adapter: Adapter, data: list[np.ndarray], how: str) -> str:
    undisturbed = adapter.outcome(adapter.update(adapter.fit(data[0], 0), data[1]), data[0])
    again = adapter.outcome(adapter.update(adapter.fit(data[0], 0), data[1]), data[0])
    if not _same(again, undisturbed):
        return "differ between equal runs"
    model = adapter.fit(data[0], 0)
    before = adapter.outcome(model, data[0])
    bad = {
        "not a number": np.where(np.arange(data[1].size).reshape(data[1].shape) == 5, np.nan, data[1]),
        "negative": -data[1] - 1.0
        if adapter.data == "counts"
        else np.where(data[1] == data[1][5, 0], -np.inf, data[1]),
        "wider": np.column_stack([data[1], data[1]]),
        "nothing": data[1][:0],
    }[how]
    end = "answered as before"
    try:
        model = adapter.update(model, bad)
    except Exception:
        end = "refused"
    try:
        found = adapter.outcome(model, data[0])
        if not _same(found, before):
            return (
                "changed, refused"
                if end == "refused"
                else ("not finite" if not np.isfinite(found).all() else "changed without a word")
            )
        after = adapter.outcome(adapter.update(model, data[1]), data[0])
    except Exception:
        return "were unusable afterwards"
    return end if _same(after, undisturbed) else "differed after the next update"
