"""What a notebook shows of an error: the user's own lines, at most one call of this package, and the message."""

from __future__ import annotations

import pickle
import traceback
import warnings

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.observation import Bernoulli, DiagGaussian

THREES = np.full((40, 2), 3.0)


@bnp.register
class Mine(DiagGaussian):
    """A likelihood of the user's, with a mistake."""

    def expected_log_lik(self, params, batch):
        raise ValueError("a mistake of my own")


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")


def files(lines):
    """Files of the calls that are shown, shortly."""
    shown = [line.split('"')[1] for line in lines if line.lstrip().startswith('File "')]
    return [name.rsplit("/", 1)[-1] for name in shown]


def test_an_error_of_this_package_shows_one_call_of_it():
    error = caught(lambda: bnp.train(bnp.Model(bnp.DPMixture(), Bernoulli()), THREES))
    assert len(traceback.extract_tb(error.__traceback__)) > 6
    lines = error._render_traceback_()
    assert files(lines) == ["test_notebook.py", "test_notebook.py", "train.py"]
    assert "bnp_dask.errors.DataError: " in "\n".join(lines)
    assert "Bernoulli needs zeros and ones" in "\n".join(lines)


def test_what_is_behind_an_error_is_kept_and_not_shown(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK")
    error = caught(lambda: bnp.as_source(str(tmp_path / "x.npz")))
    assert error.__cause__ is not None
    assert "direct cause" in "".join(traceback.format_exception(error))
    assert "direct cause" not in "\n".join(error._render_traceback_())


def test_a_setting_shows_the_line_that_gave_it():
    error = caught(lambda: bnp.DPMixture(gamma=-1))
    assert files(error._render_traceback_()) == ["test_notebook.py", "test_notebook.py", "dp_mixture.py"]


@pytest.mark.parametrize("kind", ["serial", "threads", "dask"])
def test_an_error_of_the_users_own_likelihood_shows_its_line(kind, dask_client):
    executor = {
        "serial": SerialExecutor,
        "threads": lambda: ThreadExecutor(2),
        "dask": lambda: DaskExecutor(dask_client(1), "notebook"),
    }[kind]()
    model = bnp.Model(bnp.DPMixture(), Mine())
    rows = np.random.default_rng(0).normal(size=(40, 2))
    error = caught(lambda: bnp.train(model, rows, init=bnp.BregmanKMeans(2), client=executor))
    executor.close()
    assert type(error) is ValueError
    lines = error._render_traceback_()
    assert files(lines) == ["test_notebook.py", "test_notebook.py", "train.py", "test_notebook.py"]
    assert "a mistake of my own" in "\n".join(lines)
    assert any("raised by task" in line for line in lines)


def test_an_error_of_the_packages_own_code_shows_where():
    executor = SerialExecutor()
    error = caught(lambda: executor.result(executor.submit("task", np.linalg.inv, np.zeros((2, 2)))))
    lines = error._render_traceback_()
    assert "Singular matrix" in "\n".join(lines)
    assert len(files(lines)) < len(traceback.extract_tb(error.__traceback__))


def test_errors_are_pickled_as_ever():
    error = pickle.loads(pickle.dumps(DataError("x")))
    assert str(error) == "x"


CELLS = """
import numpy as np
import bnp_dask as bnp
threes = np.full((40, 2), 3.0)
bnp.train(bnp.Model(bnp.DPMixture(), bnp.Bernoulli()), threes)
"""


def test_in_ipython(capsys):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of IPython, that it is started in a test
        shell = InteractiveShell()
    shell.run_cell(CELLS)
    out = capsys.readouterr().out
    assert out.count('File "') == 2
    assert "bnp.train(bnp.Model(bnp.DPMixture(), bnp.Bernoulli()), threes)" in out
    assert "Bernoulli needs zeros and ones" in out
    assert len(out.splitlines()) < 10
