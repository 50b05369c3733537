"""A likelihood is one file; another one touches it, the public names and a page, and nothing else."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import bnp_dask as bnp
from bnp_dask._names import OBSERVATIONS

PACKAGE = Path(bnp.__file__).parent

LISTS = {"observation/__init__.pyi": 1}
"""Lines that list each likelihood: the import in the face of its folder."""

WORDS = "topics are made of words, whose counts are its statistics"
ELSEWHERE = {
    "AutoRegressiveGaussian": {
        "estimators.py": "which of its statistics are free numbers; rows with the one before are made there",
        "training/run_settings.py": "a step is about how things change, so that blocks of steps are a start",
    },
    "Bernoulli": {"cli/demo.py": "a demonstration", "estimators.py": "chosen by name"},
    "Categorical": {
        "analysis/sample.py": "labels of levels are given back",
        "estimators.py": "how many levels a column has; chosen by name",
        "observation/proposing.py": "proposed for a column of a table",
    },
    "DiagGaussian": {"estimators.py": "chosen by name"},
    "Gaussian": {
        "cli/jobfile.py": "an example in a message; what a new job file begins with, not named where it does",
        "estimators.py": "an example in a message; chosen by name",
        "observation/proposing.py": "proposed for a column of a table",
        "observation/semi_conjugate.py": "its statistics and quadratic forms",
        "inference/streaming/learners.py": "its statistics of one atom are known in closed form",
        "inference/streaming/task.py": "its statistics of one atom are known in closed form",
    },
    "Given": {"structure/independent.py": "the column of strata"},
    "Multinomial": {
        **dict.fromkeys(
            ["analysis/topics/completion.py", "analysis/topics/words.py",
             "cli/demo.py", "initialize/sampled.py", "reports/plot.py",
             "inference/streaming/learners.py", "inference/streaming/truncation_free.py",
             "structure/answers.py", "training/survey_pass.py",
             "training/run_settings.py"], WORDS
        ),
        "estimators.py": "shares of words sum to one; which data are texts, and may be sparse",
        "inference/streaming/learners.py": "its statistics of one atom are known in closed form",
        "inference/sampling/sweep.py": "documents are seated again by a compiled loop",
        "inference/sampling/gibbs.py": "topics of words alone are sampled",
        "inference/sampling/topics.py": WORDS,
        "inference/streaming/task.py": "its statistics of one atom are known in closed form",
    },
    "NegativeBinomial": {"observation/proposing.py": "proposed for a column of a table"},
    "Poisson": {
        "estimators.py": "chosen by name",
        "observation/proposing.py": "proposed for a column of a table",
    },
    "Product": {
        "estimators.py": "the sum of the criteria of its parts; made of the table that fit is given",
        "cli/jobfile.py": "made of a table for a new job file",
        "inference/prior.py": "learned settings of its parts are kept by their places",
        "reports/plots.py": "each of its parts has pictures of its own",
        "structure/independent.py": "one of its parts is the column of strata",
    },
    "ZeroMeanGaussian": {"cli/demo.py": "a demonstration"},
}  # fmt: skip
"""Other files that name a likelihood, and why; one that does nothing special has none."""


def file_of(name: str) -> str:
    module = getattr(import_module(OBSERVATIONS[name]), name).__module__
    return module.removeprefix("bnp_dask.").replace(".", "/") + ".py"


def lines_that_name(tree: ast.Module) -> dict[str, set[int]]:
    """Lines of code on which likelihoods are named, by likelihood; docstrings do not count."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: dict[str, set[int]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                pass
            case ast.Constant(value=name) if id(node) not in said:
                pass
            case _:
                continue
        if isinstance(name, str) and name in OBSERVATIONS:
            found.setdefault(name, set()).add(node.lineno)
    return found


def test_another_likelihood_touches_its_file_the_public_names_and_a_page():
    places: dict[str, dict[str, int]] = {name: {} for name in OBSERVATIONS}
    for path in sorted(PACKAGE.rglob("*.py")) + [PACKAGE / "observation/__init__.pyi"]:
        file = path.relative_to(PACKAGE).as_posix()
        for name, lines in lines_that_name(ast.parse(path.read_text())).items():
            # experiments choose a likelihood as a user does
            if file != file_of(name) and not file.startswith("reproduce/"):
                places[name][file] = len(lines)
    for name, found in places.items():
        assert {file: n for file, n in found.items() if file in LISTS} == LISTS, name
        assert found.keys() - LISTS.keys() == ELSEWHERE.get(name, {}).keys(), name
        assert f"::: bnp_dask.{name}\n" in (PACKAGE.parent / "docs" / "api.md").read_text()
