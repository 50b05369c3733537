"""Every schedule x likelihood x allocation x missing x weights x place x links: equal to a reference, or refused."""

from __future__ import annotations

import re
from itertools import combinations

import fsspec
import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute.serial import SerialExecutor
from tests.crossed.cells import (
    CELLS,
    FACTORS,
    FURTHER,
    FURTHER_CELLS,
    FURTHER_FACTORS,
    PLACES,
    SCHEDULES,
    data_of,
    found,
    from_array,
    further_refusals,
    reference,
    refusals,
    source_of,
    train,
    train_further,
)
from tests.crossed.covering import covering, pairs_of
from tests.web import served

COVERING = covering(lambda cell: bool(refusals(cell)))
"""Some 180 of the 43,120 cells."""

CLOSED = 0.02
"""Share of atoms that expectation propagation may lose with clusters that it closes."""


@pytest.fixture(scope="module")
def data_at(tmp_path_factory, s3):
    """``data_at(cell)``: the data of a cell at its place, written there when they are first asked for."""
    folder, written = tmp_path_factory.mktemp("web"), {}
    with served(folder) as url:

        def make(cell):
            data = data_of(cell)
            if cell.place == "array":
                return data
            key = cell.place, cell.likelihood, cell.missing, cell.is_sparse
            if key not in written:
                name = f"{cell.likelihood.replace(' ', '-')}-{cell.missing}.np{'z' if cell.is_sparse else 'y'}"
                file = folder / name
                if cell.is_sparse:
                    sparse.save_npz(file, data)
                else:
                    np.save(file, data)
                place = {"file": folder, "memory": "memory://crossed", "http": url, "s3": s3}[cell.place]
                if cell.place in ("memory", "s3"):
                    with fsspec.open(f"{place}/{name}", "wb") as to:
                        to.write(file.read_bytes())
                written[key] = f"{place}/{name}"
            return written[key]

        yield make
    memory = fsspec.filesystem("memory")
    if memory.exists("/crossed"):  # not if only other places were asked for
        memory.rm("/crossed", recursive=True)


class Noting(SerialExecutor):
    """Notes the tasks that it is given."""

    def __init__(self):
        super().__init__()
        self.names = []

    def submit(self, name, function, *args):
        self.names.append(name)
        return super().submit(name, function, *args)


def check(cell, data):
    """The cell is as it must be."""
    reasons = refusals(cell)
    if not reasons:
        result = from_array(cell) if cell.place == "array" else train(cell, data)
        assert np.isfinite(result.history["elbo"]).all()
        if cell.place == "array":
            check_reference(cell, result.posterior.summary)
        else:
            assert found(result) == found(from_array(cell))
        return
    executor = Noting()
    with pytest.raises(bnp.BnpDaskError) as caught:
        train(cell, data, client=executor)
    assert any(re.search(words, str(caught.value), re.DOTALL) for words in reasons), str(caught.value)
    # settings are refused before the data are read, and data before the first lap
    is_about_data = re.search("is nan|is missing", str(caught.value)) is not None
    assert all(is_about_data and name.startswith("survey") for name in executor.names)


def check_reference(cell, summary):
    step, sums = reference(cell)
    if step is not None:
        assert summary.ids.tolist() == step.ids.tolist()
        for name, value in step.values.items():
            np.testing.assert_allclose(summary[name], value, rtol=1e-8, atol=1e-9 * max(1.0, np.abs(value).max()))
    share = CLOSED if cell.schedule == "ExpectationPropagation" else 1e-10
    for name, value in sums.items():
        own = summary[name].sum(axis=0) if summary.fields[name].dims[:1] == ("cluster",) else summary[name]
        np.testing.assert_allclose(own, value, rtol=1e-8, atol=share * max(1.0, np.abs(value).max()))


def test_every_pair_is_in_a_cell_that_is_tested():
    pairs, chosen = pairs_of(CELLS), pairs_of(COVERING)
    assert set(chosen.ravel()) == set(pairs.ravel())
    assert len(set(pairs.ravel())) == sum(len(a) * len(b) for a, b in combinations(FACTORS, 2))
    runs = np.array([not refusals(cell) for cell in CELLS])
    in_runs = {p for cell, row in zip(COVERING, chosen, strict=True) if not refusals(cell) for p in row}
    assert in_runs == set(pairs[runs].ravel())  # what can run together does, somewhere


@pytest.mark.parametrize("cell", COVERING, ids=str)
def test_a_cell_is_equal_to_its_reference_or_refused_by_name(cell, data_at):
    check(cell, data_at(cell))


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_cell_is_equal_to_its_reference_or_refused_by_name(schedule, place, data_at):
    failed = {}
    for cell in CELLS:
        if (cell.schedule, cell.place) == (schedule, place):
            try:
                check(cell, data_at(cell))
            except Exception as error:
                failed[str(cell)] = f"{type(error).__name__}: {error}"
    assert not failed, failed


# -- further settings -----------------------------------------------------------------------------------------------
def check_further(further):
    """A run puts all atoms into clusters; a refusal names its reason, before the first lap."""
    reasons = further_refusals(further)
    if not reasons:
        result = train_further(further)
        assert np.isfinite(result.history["elbo"]).all()
        model, cell = result.posterior.model, further.cell
        if cell.schedule == "Stochastic":  # a step is part of the way
            return
        mass = sum(model.mass(batch) for batch in every_batch(cell))
        share = CLOSED if cell.schedule == "ExpectationPropagation" else 1e-10
        np.testing.assert_allclose(result.posterior.summary["N"].sum(), mass, rtol=1e-8, atol=share * mass)
        return
    executor = Noting()
    with pytest.raises(bnp.BnpDaskError) as caught:
        train_further(further, client=executor)
    assert any(re.search(words, str(caught.value), re.DOTALL) for words in reasons), str(caught.value)
    assert all(name.startswith(("survey", "init")) for name in executor.names)


def every_batch(cell):
    source = source_of(cell, data_of(cell))
    return [source.reader(b)() for b in range(source.n_batches)]


QUICK = ("responses", "labels", 'learn_concentrations="always"', "FromSample", "ContiguousBlocks")
"""Settings of the first tier."""

FEW_FURTHER = covering(
    lambda cell: bool(further_refusals(cell)),
    [further for further in FURTHER_CELLS if further.setting in QUICK],
    (*FURTHER_FACTORS[:-1], QUICK),
)


@pytest.mark.parametrize("further", FEW_FURTHER, ids=str)
def test_a_further_setting_takes_every_atom_or_is_refused_by_name(further):
    check_further(further)


@pytest.mark.long
@pytest.mark.parametrize("setting", FURTHER)
def test_every_further_setting_takes_every_atom_or_is_refused_by_name(setting):
    failed = {}
    for further in FURTHER_CELLS:
        if further.setting == setting:
            try:
                check_further(further)
            except Exception as error:
                failed[str(further)] = f"{type(error).__name__}: {error}"
    assert not failed, failed
