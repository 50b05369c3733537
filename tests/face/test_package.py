"""The package itself: what it exports, how fast it is imported, and that names and files do not collide."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import bnp_dask as bnp
from bnp_dask import _names

CONTRACT = """
Model DPMixture FiniteMixture Gaussian ZeroMeanGaussian DiagGaussian FixedVarianceGaussian Bernoulli Multinomial Poisson
Product FullBatch Memoized Stochastic BregmanKMeans RandomExamples KMeansParallel Responsibilities FromPosterior train
predict score save load inspect report ingest Source Progress DirichletProcessMixture LDA HDPTopics DocumentStep
Completion completion_score top_words survey_documents to_pyldavis TopicModel
SequenceModel state_durations survey_sequences transitions without_missing
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there():
    for name, module in _names.PUBLIC.items():
        assert getattr(bnp, name) is getattr(importlib.import_module(module), name), name


def test_the_contract_is_public():
    assert set(CONTRACT.split()) <= set(dir(bnp))
    assert set(bnp.__all__) == set(dir(bnp)) - {"DirichletProcessMixture", "SequenceModel", "TopicModel"}


def test_type_checkers_take_every_name_of_the_stub_for_public():
    tree = ast.parse(Path(bnp.__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    named = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert named and all(alias.asname == alias.name for alias in named)


def test_import_is_cheap():
    code = "import sys, bnp_dask; print([m for m in ('numpy', 'numba', 'distributed', 'sklearn') if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_functions_are_not_hidden_by_the_files_that_define_them():
    modules = "training.train", "analysis.predict", "reports.run_page", "estimators"
    code = (
        f"import {', '.join('bnp_dask.' + name for name in modules)}\n"
        "print(callable(bnp_dask.train), callable(bnp_dask.predict), callable(bnp_dask.report))\n"
        "from bnp_dask.training.train import ConvergenceWarning\n"
        "print(bnp_dask.ConvergenceWarning is ConvergenceWarning, callable(bnp_dask.train))"
    )
    assert run_python(code).split() == ["True"] * 5


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("DPMixtur", "DPMixture"), ("gaussian", "Gaussian"), ("predictt", "predict"), ("Memoised", "Memoized")],
)
def test_a_misspelt_name_suggests_the_nearest(wrong, right):
    with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
        getattr(bnp, wrong)


def test_a_name_like_nothing_says_where_to_look():
    with pytest.raises(AttributeError, match=r"see dir\(bnp_dask\)"):
        _ = bnp.zzzzqqqq


def test_star_import_needs_no_extras():
    code = (
        "import sys; sys.modules['sklearn'] = None\nfrom bnp_dask import *\nprint(train.__name__, DPMixture.__name__)"
    )
    assert run_python(code).split() == ["train", "DPMixture"]


@pytest.mark.long
def test_the_estimator_without_scikit_learn_says_what_to_install():
    code = (
        "import sys; sys.modules['sklearn'] = None\nimport bnp_dask\n"
        "try:\n    bnp_dask.DirichletProcessMixture\nexcept ImportError as error:\n    print(error)"
    )
    assert 'pip install "bnp-dask[sklearn]"' in run_python(code)
