"""The kind of a model is its structure's matter; others ask for facts, and who does is listed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bnp_dask as bnp
from bnp_dask.errors import SettingError

PACKAGE = Path(bnp.__file__).parent
OWN = ("structure/", "allocation/")

CLASSES = "HDPHMM|FiniteHMM|LDA|HDPTopics|DPMixture|FiniteMixture|NGGPMixture|Independent|Groups|Chains"
KIND = re.compile(rf"\.(grouped|chained)\b(?!\.)|is_topic_model|isinstance\([^)]*\b({CLASSES})\b|is_chained")
FACT = re.compile(r"\.(is_ordered|has_shares|is_tied|keeps_few)\b")

FACTS = {
    # what users see differs: paths of states, shares of topics, completion of documents
    "analysis/arguments.py": 1,
    "analysis/impute.py": 1,
    "analysis/predict.py": 4,
    "analysis/sample.py": 3,
    "analysis/score.py": 2,
    "analysis/sequences/lags.py": 1,
    "analysis/topics/assign.py": 1,
    "analysis/topics/documents.py": 2,
    "cli/data.py": 2,
    "cli/look.py": 1,
    "reports/run_page.py": 1,
    "training/growing/incoming/look.py": 1,
    "training/results.py": 1,
    # data must say which rows belong together, and which follow one another
    "model.py": 1,
    "analysis/matching.py": 1,
    "initialize/base.py": 2,
    # where a run starts, and how a small one does
    "moves/births/documents.py": 1,
    "moves/births/small_run.py": 1,
    "training/defaults.py": 2,
    # whether topics of tokens are drawn, or clusters of atoms
    "streaming/truncation_free.py": 1,
    # what it costs to visit a batch, and to keep what was found
    "schedules/engine/batch_memo.py": 3,
    "schedules/engine/pipeline.py": 1,
}
"""Times that a fact about the structure is asked for, by file: the fewer the better."""


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
    import numpy as np
    from scipy import sparse

    from bnp_dask.core.batch import Batch

    counts = sparse.csr_array(np.random.default_rng(0).poisson(1.0, (30, 8)).astype(float))
    model = bnp.Model(bnp.LDA(), bnp.Multinomial(np.full(8, 0.1)))
    batch, ids = Batch(counts), np.arange(3)
    posterior = model.global_step(model.summarize(ids, batch, np.random.default_rng(1).dirichlet(np.ones(3), 30)))
    steps = list(model.steps(posterior, batch))
    np.testing.assert_allclose(sum(step.resp.sum(axis=0) for _, step in steps), model.local_step(posterior, batch)["N"])


def test_a_part_of_a_model_is_asked_for_its_verbs_before_they_are_called():
    from bnp_dask.allocation.base import StickAllocation
    from bnp_dask.inputs.protocols import as_a

    mixture = bnp.DPMixture()
    assert as_a(mixture, StickAllocation) is mixture
    with pytest.raises(SettingError, match="FiniteMixture is no StickAllocation"):
        as_a(bnp.FiniteMixture(), StickAllocation)
