"""The kind of a model is its structure's matter; others ask for facts, and who does is listed here."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.moves import policy
from bnp_dask.observation.base import numbers_per_cluster

PACKAGE = Path(bnp.__file__).parent
OWN = ("structure/", "allocation/")

CLASSES = "HDPHMM|FiniteHMM|LDA|HDPTopics|DPMixture|FiniteMixture|NGGPMixture|Independent|Groups|Chains"
KIND = re.compile(rf"\.(grouped|chained)\b(?!\.)|is_topic_model|isinstance\([^)]*\b({CLASSES})\b|is_chained")
FACT = re.compile(r"\.(is_ordered|has_shares|is_tied|keeps_few)\b")

FACTS = {
    # what users see differs: paths of states, shares of topics, completion of documents
    "analysis/predict.py": 2,
    "analysis/sequences.py": 1,
    "analysis/score.py": 2,
    "cli/data.py": 1,
    "cli/look.py": 1,
    "reports/run_page.py": 1,
    "training/growing/growing_run.py": 1,
    # which models have no windows of sequences to start from, and whose groups settle for topics of one atom each
    "initialize/given.py": 3,
    # data must say which rows belong together, and which follow one another; sequences are asked for by name
    "analysis/base.py": 3,
    # whether topics of tokens are drawn, or clusters of atoms
    "inference/streaming/truncation_free.py": 1,
    # what is summed over all that may be observed: sequences, held-out atoms, atoms
    "testing.py": 5,
    # whether units of a random sample are atoms or groups, a cluster's atoms can be trained alone, atoms have densities
    "training/certainty.py": 3,
    # whether equal rows cannot be chance: in a sequence a value may stay
    "training/survey_pass.py": 1,
    # whether statistics are packed to be kept
    "inference/batch_memo.py": 1,
    # whether groups have several clusters, so that a label of a group forbids none
    "training/train.py": 1,
}
"""Times that a fact about the structure is asked for, by file: the fewer the better."""


NUMBERS = {-1, 0, 1, 2, 0.5}
"""Literals of formulas: signs, neighbours, halves, doubles."""

NOT_TUNED = {
    ("documents.py", 63): "seeds are whole numbers below 2**63",
    ("cores.py", 12.0): "variance of a uniform step",
    ("cores.py", 1e-300): "no chance is zero, and has a logarithm",
    ("cores.py", 1e-12): "no share and no chance is one, and what they leave has a logarithm",
    ("cores.py", 1e-10): "columns that depend on one another have no spread along some direction",
    ("create.py", 1e-6): "share of the prior's variance that counts as none",
    ("create.py", 31): "seeds are whole numbers below 2**31",
    ("create.py", 1e-300): "nothing is divided by zero",
    ("pairs.py", 1e-300): "nothing is divided by zero",
    ("pairs.py", 1e-12): "the share of an empty cluster has a logarithm, and so has the rest",
    ("start.py", 3): "a crossing takes from three states, and does one of three things",
    ("prior.py", 3): "two updates in a row are three priors",
}
"""Other literals in ``moves/``, and why no data chose them."""

NAMES = {"create.py": ["WORDS", "RUNS", "NEWBORN"], "memory.py": ["WHOLE"]}
"""Constants of modules of ``moves/`` that are numbers: they stand for things among ids and counts."""

POLICIES = ("policy.py",)
"""File of numbers: those that were tuned, and the names of streams of random numbers."""


def found(pattern: re.Pattern[str]) -> dict[str, int]:
    counts = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name, lines = path.relative_to(PACKAGE).as_posix(), path.read_text().splitlines()
        n = sum(len(pattern.findall(line)) for line in lines if not line.lstrip().startswith(("from ", "import ")))
        if n and not name.startswith(OWN):
            counts[name] = n
    return counts


def test_nobody_but_structures_and_allocations_asks_for_the_kind_of_a_model():
    assert not found(KIND)


def test_those_who_ask_for_a_fact_about_the_structure_are_listed():
    assert found(FACT) == FACTS


@pytest.mark.parametrize(
    ("allocation", "beliefs"),
    [(bnp.HDPHMM(), "the transitions of its states"), (bnp.HDPTopics(), "the weights of its groups")],
    ids=lambda value: type(value).__name__,
)
def test_point_estimates_are_refused_where_there_are_none(allocation, beliefs):
    with pytest.raises(SettingError, match=f"has no point estimate: {beliefs} are beliefs"):
        bnp.Model(allocation, bnp.Gaussian(), estimate="map")


class Flagged:
    """An allocation that says its kind and names no structure."""

    grouped = False
    nonparametric = True


def test_an_allocation_without_a_structure_is_refused():
    with pytest.raises(SettingError, match="allocation="):
        bnp.Model(Flagged(), bnp.Gaussian())


def test_an_allocation_lacks_no_verb_of_its_structure():
    mixture = bnp.DPMixture()
    object.__setattr__(mixture, "structure", bnp.HDPHMM().structure)
    with pytest.raises(SettingError, match=r"needs an instance with a method sweep\(\)"):
        bnp.Model(mixture, bnp.Gaussian())


def test_parts_of_groups_are_summed_tile_by_tile_as_a_visit_sums_them():
    counts = sparse.csr_array(np.random.default_rng(0).poisson(1.0, (30, 8)).astype(float))
    model = bnp.Model(bnp.LDA(), bnp.Multinomial(np.full(8, 0.1)))
    batch, ids = Batch(counts), np.arange(3)
    posterior = model.global_step(model.summarize(ids, batch, np.random.default_rng(1).dirichlet(np.ones(3), 30)))
    steps = list(model.steps(posterior, batch))
    np.testing.assert_allclose(sum(step.resp.sum(axis=0) for _, step in steps), model.local_step(posterior, batch)["N"])


def test_a_part_of_a_model_is_asked_for_its_verbs_before_they_are_called():
    from bnp_dask.allocation.base import StickAllocation
    from bnp_dask.inputs.settings import as_a

    mixture = bnp.DPMixture()
    assert as_a(mixture, StickAllocation) is mixture
    with pytest.raises(SettingError, match="FiniteMixture is no StickAllocation"):
        as_a(bnp.FiniteMixture(), StickAllocation)


def trees_of_moves():
    for path in sorted((PACKAGE / "moves").rglob("*.py")):
        name = path.relative_to(PACKAGE / "moves").as_posix()
        if name not in POLICIES:
            yield name, ast.parse(path.read_text())


def literals(node: ast.AST) -> list[float]:
    """Numbers written under a node, but for the defaults of settings."""
    settings = [
        part.value for cls in ast.walk(node) if isinstance(cls, ast.ClassDef) for part in cls.body
        if isinstance(part, ast.AnnAssign) and part.value is not None
    ]  # fmt: skip
    defaults = {id(inner) for value in settings for inner in ast.walk(value)}
    return [
        part.value for part in ast.walk(node)
        if isinstance(part, ast.Constant) and type(part.value) in (int, float) and id(part) not in defaults
    ]  # fmt: skip


def test_numbers_that_were_tuned_stand_in_the_policies_of_moves():
    used = {(name, value) for name, tree in trees_of_moves() for value in literals(tree) if value not in NUMBERS}
    assert used == set(NOT_TUNED), "a number that data chose is a field of moves/policy.py, with its evidence"


def test_modules_of_moves_hold_no_constants_but_names():
    held = {}
    for name, tree in trees_of_moves():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and literals(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                held.setdefault(name, []).extend(ast.unparse(target) for target in targets)
    assert held == NAMES


def test_each_number_of_a_policy_is_described():
    """One paragraph of a docstring for each field or some together, after its name."""
    classes = [cls for name, cls in vars(policy).items() if name.endswith("Policy") and is_dataclass(cls)]
    assert len(classes) == 10
    for cls in classes:
        headings = {name for line in cls.__doc__.splitlines() if re.fullmatch(r" {4}\w+(, \w+)*", line)
                    for name in line.strip().split(", ")}  # fmt: skip
        assert headings >= {declared.name for declared in fields(cls)}, cls


def test_a_local_step_on_groups_or_sequences_is_never_called_small():
    survey = survey_batch(Batch(np.arange(15.0).reshape(5, 3) ** 2))
    of = {name: bnp.Model(part, bnp.DiagGaussian()).with_prior(survey) for name, part in
          {"mixture": bnp.DPMixture(), "topics": bnp.HDPTopics(), "chain": bnp.HDPHMM()}.items()}  # fmt: skip
    efforts = {name: model.structure.effort(model, 10.0, 4) for name, model in of.items()}
    assert efforts == {"mixture": 10.0 * 4 * numbers_per_cluster(of["mixture"].observation), "topics": np.inf,
                       "chain": np.inf}  # fmt: skip


def test_only_topic_models_of_counts_take_words():
    words, rows = bnp.Multinomial(np.full(8, 0.1)), bnp.DiagGaussian()
    takes = [model.structure.takes_words(model) for model in
             (bnp.Model(bnp.LDA(), words), bnp.Model(bnp.LDA(), rows), bnp.Model(bnp.DPMixture(), words))]  # fmt: skip
    assert takes == [True, False, False]
