"""Puts cases to adapters and prints what each fulfils."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from conformance.adapter import Adapter, NotOffered
from conformance.cases import Case
from conformance.judge import judge
from conformance.scripts import run_script

PASSES, ON_PURPOSE, DEVIATES, FAILS, ABSENT = "passes", "on purpose", "deviates", "fails", "not offered"


@dataclass(frozen=True)
class Outcome:
    """What became of one quantity of one case."""

    adapter: str
    case: str
    quantity: str
    status: str
    told: str = ""

    as_dict = asdict


def adapter_named(name: str) -> Adapter:
    """The adapter ``conformance/adapters/NAME.py``, or of any module: ``package.module``.

    Raises ImportError if its library is not installed.
    """
    module = importlib.import_module(name if "." in name else f"conformance.adapters.{name}")
    found: Adapter = module.ADAPTER
    metadata.version(found.library)
    return found


def names() -> list[str]:
    """Adapters that come along."""
    return sorted(p.stem for p in (Path(__file__).parent / "adapters").glob("*.py") if not p.stem.startswith("_"))


def run(
    name: str, adapter: Adapter, cases: Iterable[Case], told: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """Outcomes of all quantities of some cases."""
    found: list[Outcome] = []
    # scripts fork, and come before the library starts threads in this process
    for case in sorted(cases, key=lambda case: case.kind != "script"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new = [Outcome(name, case.name, *rest) for rest in _of_case(adapter, case)]
        found += new
        for outcome in new if told else ():
            told(outcome)
    return sorted(found, key=lambda outcome: outcome.case)


def _of_case(adapter: Adapter, case: Case) -> list[tuple[str, str, str]]:
    quantities = sorted(case.expect)
    try:
        answer = {"sound": run_script(adapter, case)} if case.kind == "script" else adapter.answer(case)
    except NotOffered as absent:
        why = str(absent) or adapter.absent.get(case.kind, "")
        return [(quantity, ABSENT, why) for quantity in quantities]
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return [(quantity, *_excused(adapter, case, quantity, FAILS, told)) for quantity in quantities]
    out = []
    for quantity in quantities:
        if quantity not in answer:
            out.append((quantity, ABSENT, ""))
            continue
        good, told = judge(case, quantity, answer[quantity])
        out.append((quantity, PASSES, "") if good else (quantity, *_excused(adapter, case, quantity, DEVIATES, told)))
    return out


def _excused(adapter: Adapter, case: Case, quantity: str, status: str, told: str) -> tuple[str, str]:
    for key in (f"{case.name}.{quantity}", case.name, f"{case.kind}.{quantity}", case.kind):
        if key in adapter.on_purpose:
            return ON_PURPOSE, f"{told}. {adapter.on_purpose[key]}" if told else adapter.on_purpose[key]
    return status, told


def summary(found: Sequence[Outcome]) -> str:
    """A line of numbers by status."""
    statuses = (PASSES, ON_PURPOSE, DEVIATES, FAILS, ABSENT)
    return ", ".join(f"{sum(o.status == s for o in found)} {s}" for s in statuses)
