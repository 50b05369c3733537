"""A page of what each library fulfils, from outcomes as JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from conformance.cases import Case
from conformance.runner import ABSENT, DEVIATES, FAILS, ON_PURPOSE, PASSES

Line = Mapping[str, str]

KINDS = {
    "mixture_steps": "steps of variational Bayes, mixtures of Gaussians",
    "mixture_density": "density of new atoms",
    "merge_gains": "gains of merges",
    "partition_draws": "draws of partitions",
    "chain_paths": "forward-backward, best path",
    "chain_scores": "probabilities of all sequences",
    "chain_steps": "steps of variational Bayes, hidden Markov models",
    "topics_bound": "bound of LDA at given parameters",
    "topics_evidence": "bound of LDA below the evidence",
    "topics_joint": "log joint probability of words and topics",
    "topics_draws": "draws of topics",
    "topics_perplexity": "perplexity",
    "files": "damaged files, full disks",
    "update": "bad updates",
}
"""Rows of the table; scripts are two of them."""


PLACE = re.compile(r"(<!-- outcomes -->\n).*?(\n?<!-- end of outcomes -->)", re.DOTALL)


def write_page(path: Path, lines: Iterable[Line], cases: Sequence[Case]) -> None:
    """Write a page, or the part of it between two comments if it has these."""
    text = path.read_text(encoding="utf-8") if path.exists() else "<!-- outcomes -->\n<!-- end of outcomes -->\n"
    body = page(lines, cases)
    path.write_text(PLACE.sub(lambda match: f"{match[1]}{body}{match[2]}", text), encoding="utf-8")


def kind_of(case: Case) -> str:
    """Row that a case belongs to."""
    return case.name.split("_")[0] if case.kind == "script" else case.kind


def page(lines: Iterable[Line], cases: Sequence[Case]) -> str:
    """Markdown: a table of kinds by libraries, and each deviation with its reason or figures."""
    by_name = {case.name: case for case in cases}
    # of a quantity that was asked twice, the later answer
    latest = {(line["library"], line["case"], line["quantity"]): line for line in lines}
    lines = [line for line in latest.values() if line["case"] in by_name]
    libraries = sorted({(line["library"], line["version"]) for line in lines}, key=lambda pair: pair[0].lower())
    head = f"| | {' | '.join(f'{name} {version}' for name, version in libraries)} |\n|---{'|---' * len(libraries)}|\n"
    rows = ""
    for kind, title in KINDS.items():
        cells = []
        for name, _ in libraries:
            own = [ln["status"] for ln in lines if ln["library"] == name and kind_of(by_name[ln["case"]]) == kind]
            cells.append(cell(own))
        rows += f"| {title} | {' | '.join(cells)} |\n"
    told = ""
    for name, version in libraries:
        off = [ln for ln in lines if ln["library"] == name and ln["status"] in (ON_PURPOSE, DEVIATES, FAILS)]
        told += f"\n### {name} {version}\n\n"
        if not off:
            told += "Passes all that it answers.\n"
        # cases that say the same are one line
        grouped: dict[tuple[str, str, str], list[Line]] = {}
        for line in off:
            key = kind_of(by_name[line["case"]]), line["quantity"], line["status"]
            grouped.setdefault(key, []).append(line)
        for (_, quantity, status), own in grouped.items():
            names = ", ".join(f"`{line['case']}`" for line in own)
            told += f"* {names}, {quantity.replace('_', ' ')}: {status}. {own[0]['told'].rstrip('.')}.\n"
    return f"Run on {datetime.now(UTC):%Y-%m-%d}.\n\n{head}{rows}\n## Deviations\n{told}"


def cell(statuses: Sequence[str]) -> str:
    """Numbers of quantities by status, or a dash."""
    answered = [s for s in statuses if s != ABSENT]
    if not answered:
        return "-"
    passed = answered.count(PASSES)
    words = {ON_PURPOSE: "on purpose", DEVIATES: "deviate", FAILS: "fail"}
    other = [f"{answered.count(s)} {word}" for s, word in words.items() if s in answered]
    return ", ".join([f"{passed} pass", *other])
