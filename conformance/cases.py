"""Cases on disk: settings and expectations as JSON, arrays as npz; ``FORMAT.md`` describes both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "cases"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Case:
    """One case: inputs by name as items, settings as attributes of ``settings``, what to expect of each quantity."""

    name: str
    kind: str
    about: str
    source: str
    settings: Mapping[str, Any]
    expect: Mapping[str, Mapping[str, Any]]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        """An input array (a copy, so that adapters may write to it)."""
        return self.inputs[name].copy()

    @property
    def rows(self) -> list[np.ndarray]:
        """Sequences or documents: the array ``rows`` cut at ``offsets``."""
        return np.split(self["rows"], self["offsets"][1:-1])


def load_cases(folder: Path = FOLDER, names: Iterable[str] = ()) -> list[Case]:
    """All cases of a folder, or those named, by name."""
    found = [load_case(path) for path in sorted(Path(folder).glob("*.json"))]
    wanted = set(names)
    if unknown := wanted - {case.name for case in found} - {case.kind for case in found}:
        raise SystemExit(f"no case or kind {', '.join(sorted(unknown))} in {folder}")
    return [case for case in found if not wanted or case.name in wanted or case.kind in wanted]


def load_case(path: Path) -> Case:
    """One case from its JSON file and the npz file beside it."""
    told = json.loads(path.read_text(encoding="utf-8"))
    if told.pop("format") != FORMAT:
        raise SystemExit(f"{path}: not of format {FORMAT}")
    arrays: dict[str, dict[str, np.ndarray]] = {"in": {}, "out": {}}
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
        for key in stored.files:
            side, _, name = key.partition("_")
            arrays[side][name] = stored[key]
    return Case(name=path.stem, inputs=arrays["in"], outputs=arrays["out"], **told)


def save_case(folder: Path, case: Case) -> None:
    """Write a case as its two files."""
    told = {"format": FORMAT, "kind": case.kind, "about": case.about, "source": case.source}
    told |= {"settings": case.settings, "expect": case.expect}
    (folder / f"{case.name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    arrays = {f"in_{name}": value for name, value in case.inputs.items()}
    np.savez_compressed(
        folder / f"{case.name}.npz", **arrays, **{f"out_{name}": value for name, value in case.outputs.items()}
    )
