"""The scheduler dies, comes back, or is another: ``train`` says what to do, in time, and a resumed run is the same."""

from __future__ import annotations

import time

import pytest
from distributed import Client

from bnp_dask.cli import main
from bnp_dask.errors import ExecutionError
from bnp_dask.store import JOB_NAME, RunStore
from tests.faults.parts import BOUND, After, Faulty, atoms, bits, go, quiet

STATED = 30.0
"""Seconds within which a run on a lost cluster fails: Dask's own limit for making a connection."""


@pytest.mark.long
@pytest.mark.parametrize("comes_back", [pytest.param(False, marks=pytest.mark.long), True])
def test_scheduler_dies_or_restarts(one_process, tmp_path, comes_back):
    """A restarted scheduler has forgotten everything: that is a lost cluster too."""

    def strike():
        one_process.kill()
        if comes_back:
            one_process.start()

    data = Faulty(atoms(), str(tmp_path), seconds=0.01)
    stroke = After(13, strike)
    with one_process.connect() as client, pytest.raises(ExecutionError, match=r"lost the Dask cluster.*resume=True"):
        go(client, data=data, store=tmp_path / "run", callbacks=[stroke], checkpoint_minutes=1e-9)
    assert time.monotonic() - stroke.when < STATED
    assert RunStore.view(tmp_path / "run").load() is not None
    if not comes_back:
        one_process.start()
    with one_process.connect() as client:
        rest = go(client, store=tmp_path / "run", resume=True)
    assert bits(rest) == quiet("memoized with moves")


@pytest.mark.long
def test_a_scheduler_that_was_restarted_on_purpose(warm_cluster, tmp_path):
    """``client.restart()`` by somebody else on the same cluster: tasks are cancelled, which is told as a loss."""
    _, client = warm_cluster(2)
    with Client(client.scheduler.address, set_as_default=False) as other:
        stroke = After(9, lambda: other.restart(timeout=BOUND))
        with pytest.raises(ExecutionError, match=r"lost the Dask cluster.*resume=True"):
            go(client, store=tmp_path / "run", callbacks=[stroke], checkpoint_minutes=1e-9)
    assert bits(go(client, store=tmp_path / "run", resume=True)) == quiet("memoized with moves")


def test_the_command_line_names_its_own_command(tmp_path, monkeypatch, capsys):
    """An error of a lost cluster ends with what to type."""
    from bnp_dask.cli import run

    RunStore.create(tmp_path / "run", {}, {JOB_NAME: b"{}"}).close()

    def lost(args):
        args.rundir = "run"
        raise ExecutionError("lost the Dask cluster while task local_step-lap1-batch3 was out")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "train_command", lost)
    assert main(["train", "run.yaml"]) == 2
    assert capsys.readouterr().err.endswith("was out; go on with: bnp-dask resume run\n")
