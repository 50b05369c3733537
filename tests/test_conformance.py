"""The conformance suite: its cases are what its formulas say, its rules find what is wrong, and this package passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conformance.adapter import Adapter, NotOffered
from conformance.cases import Case, load_cases
from conformance.judge import judge
from conformance.make import everything
from conformance.page import KINDS, kind_of, page
from conformance.runner import run

ROOT = Path(__file__).resolve().parents[1]


def test_stored_cases_are_what_the_formulas_say():
    stored = {case.name: case for case in load_cases()}
    made = {case.name: case for case in everything()}
    assert stored.keys() == made.keys()
    for name, case in made.items():
        old = stored[name]
        assert (old.kind, old.about, old.expect) == (case.kind, case.about, json.loads(json.dumps(case.expect)))
        for side in ("inputs", "outputs"):
            new, kept = getattr(case, side), getattr(old, side)
            assert new.keys() == kept.keys()
            for key, value in new.items():
                np.testing.assert_allclose(kept[key], value, rtol=1e-9, atol=1e-12, err_msg=f"{name} {key}")


def test_every_kind_has_a_row_and_is_in_the_format():
    text = (ROOT / "conformance" / "FORMAT.md").read_text()
    for case in load_cases():
        assert kind_of(case) in KINDS
        assert f"`{case.kind}`" in text
        assert all(f"`{rule['rule']}`" in text for rule in case.expect.values())


def toy(rule: dict, **arrays: object) -> Case:
    found = {key: np.asarray(value, float) for key, value in arrays.items()}
    return Case("toy", "toy", "", "", {}, {"q": rule}, found, found)


@pytest.mark.parametrize(
    "rule, right, wrong",
    [
        ({"rule": "equal", "rtol": 0.0, "atol": 1e-6, "values": "v"}, [1.0, 3.0], [1.0, 3.1]),
        ({"rule": "equal", "rtol": 0.0, "atol": 1e-6, "values": "v", "up_to": "constant"}, [5.0, 7.0], [5.0, 7.1]),
        ({"rule": "equal", "rtol": 0.0, "atol": 1e-6, "values": "v"}, [1.0, 3.0], [1.0, np.nan]),
        ({"rule": "equal", "rtol": 0.0, "atol": 1e-6, "values": "v"}, [1.0, 3.0], [1.0]),
        ({"rule": "rises", "atol": 1e-6}, [1.0, 1.0, 2.0], [1.0, 2.0, 1.9]),
        ({"rule": "rises", "atol": 1e-6}, [1.0, 2.0], [1.0, np.nan]),
        ({"rule": "sums to one", "atol": 1e-6}, np.log([0.5, 0.25]), np.log([0.5, 0.2])),
        ({"rule": "at most", "atol": 0.0, "values": "limit"}, 1.9, 2.1),
        ({"rule": "script"}, {"refused": 3}, {"refused": 3, "answered otherwise": 1}),
    ],
)
def test_a_rule_tells_right_from_wrong(rule, right, wrong):
    case = toy(rule, v=[1.0, 3.0], limit=2.0, log_measure=[0.0, np.log(2.0)])
    assert judge(case, "q", right)[0]
    good, told = judge(case, "q", wrong)
    assert not good and told


def test_frequencies_are_judged_by_their_own_errors():
    rng = np.random.default_rng(0)
    rule = {"rule": "frequencies", "values": "v", "sigmas": 5.0, "least": 0.002}
    labels = np.column_stack([np.zeros(2000), rng.random(2000) < 0.3])
    assert judge(toy(rule, v=np.full((2, 2), 0.7)), "q", labels)[0]
    assert not judge(toy(rule, v=np.full((2, 2), 0.5)), "q", labels)[0]


class Careless(Adapter):
    """The mean of some points: its files have no checksum, and bad data pass."""

    library = "numpy"

    def chain_scores(self, case):
        raise ValueError("no")

    def chain_paths(self, case):
        raise NotOffered("nothing")

    def mixture_density(self, case):
        return {"log_density": np.zeros(len(case["points"]))}

    def fit(self, data, seed):
        return np.append(data.mean(axis=0), len(data))

    def update(self, model, data):
        model[:2] = (model[:2] * model[2] + data[:, :2].sum(axis=0)) / (model[2] + len(data))
        model[2] += len(data)
        return model

    def outcome(self, model, data):
        return model

    def save(self, model, path):
        path.write_bytes(model.tobytes())

    def load(self, path):
        return np.frombuffer(path.read_bytes()).copy()


def test_outcomes_of_a_careless_library():
    names = ["files_flip", "files_full_disk", "files_remove", "update_not_a_number", "update_nothing", "density_dp"]
    found = run("careless", Careless(), load_cases(names=[*names, "chain_scores", "chain_symbols"]))
    status = {(o.case, o.quantity): o.status for o in found}
    assert status["files_flip", "sound"] == "deviates"
    assert status["files_full_disk", "sound"] == "deviates"
    assert status["files_remove", "sound"] == "passes"
    assert status["update_not_a_number", "sound"] == "deviates"
    assert status["update_nothing", "sound"] == "passes"
    assert status["density_dp", "log_density"] == "deviates"
    assert status["density_dp", "integral"] == "not offered"
    assert status["chain_all_sequences", "log_lik"] == "fails"
    assert status["chain_symbols", "path"] == "not offered"
    text = page([{"library": "numpy", "version": "0", **o.as_dict()} for o in found], load_cases())
    assert "| 0 pass, 1 deviate |" in text and "ValueError: no" in text


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_this_package_passes_all_that_it_claims(tmp_path):
    command = [sys.executable, "-m", "conformance", "--adapter", "bnp_dask", "--lines", str(tmp_path / "lines.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines} == {"passes", "not offered"}
    assert sum(line["status"] == "passes" for line in lines) >= 60
