"""The JSON schema of job files agrees with what reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bnp_dask.cli.jobfile import ROLES, job_schema, parse_job, read_yaml, schema_text
from bnp_dask.errors import SettingError

ROOT = Path(__file__).parents[2]

MODEL = "model: {allocation: DPMixture, observation: Gaussian}\ndata: x.npy\n"

RIGHT = [
    MODEL,
    "model: {allocation: {type: DPMixture, gamma: 10}, observation: {type: Gaussian, nu: 5.5, B: [[1, 0], [0, 2]], "
    "m: 0}, estimate: map}\ndata: {path: s3://bucket/x.zarr, batch_size: 100, columns: [a, b], gaps: cut}",
    "model: {allocation: DPMixture, observation: {type: Product, groups: {age: Gaussian, 'visits, calls': {type: "
    "Poisson, a: 2}}}}\ndata: x.parquet",
    MODEL + "moves: [Birth, {type: Merge}, Delete]\nclient: {workers: 2}\nmemory: 1GB\nn_init: 3",
    MODEL + "moves: []\nclient: null\nmemory: 100000000\nreproducible: true",
    MODEL + "init: {type: BregmanKMeans, n_clusters: 5}\nschedule: {type: Memoized, laps: 5, tolerance: 1e-5}",
    "model: {allocation: {type: HDPTopics, step: {start: warm}}, observation: {type: Multinomial, lam: 0.1}}\n"
    "data: x.zarr\nschedule: FullBatch\nrng: 3",
    MODEL + "shadow: {laps: 8, tries: 1, init: {type: BregmanKMeans, n_clusters: 9}}",
    MODEL + "shadow: {}",
    MODEL + "shadow: {prior: [{type: Gaussian, B: 4.8}, Gaussian]}",
    MODEL + "update: {revisit: 0.2, half_life: 30d, new_words: drop}",
]

WRONG = [
    "data: x.npy",
    "model: {allocation: DPMixture}\ndata: x.npy",
    MODEL.replace("Gaussian", "Gausian"),
    MODEL + "shedule: Memoized",
    MODEL + "schedule: {type: Memoized, lap: 5}",
    MODEL + "schedule: {laps: 5}",
    MODEL + "shadow: {lap: 8}",
    MODEL + "shadow: {prior: Gaussian}",
    MODEL + "shadow: {prior: [{type: Gausian}]}",
    MODEL + "shadow: {init: {type: BregmanKmeans}}",
    MODEL + "schedule: {type: Memoized, laps: many}",
    MODEL + "schedule: {type: Memoized, order: random}",
    MODEL + "schedule: DPMixture",
    MODEL + "moves: Birth",
    MODEL + "moves: [Memoized]",
    MODEL + "client: {worker: 2}",
    MODEL + "update: {revisits: 0.2}",
    MODEL + "update: {new_words: keep}",
    MODEL + "rng: one",
    MODEL + "reproducible: 1",
    MODEL.replace("x.npy", "{batch_size: 3}"),
    MODEL.replace("x.npy", "{path: x.npy, gaps: keep}"),
    MODEL.replace("x.npy", "{path: x.npy, columns: a}"),
    MODEL.replace("Gaussian", "{type: Gaussian, nu: [a]}"),
    "model: {allocation: {type: HDPTopics, step: {begin: warm}}, observation: Multinomial}\ndata: x.zarr",
]


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    schema = job_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_the_file_for_editors_is_what_would_be_made_now():
    found = (ROOT / "docs" / "job.schema.json").read_text()
    assert found == schema_text(), "if this is meant: bnp-dask schema > docs/job.schema.json"


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_right_for_the_reader_is_for_the_schema(validator, text, tmp_path):
    parse_job(read_yaml(text), tmp_path)
    assert not list(validator.iter_errors(read_yaml(text)))


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_for_the_reader_is_for_the_schema(validator, text, tmp_path):
    with pytest.raises(SettingError):
        parse_job(read_yaml(text), tmp_path)
    assert list(validator.iter_errors(read_yaml(text)))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_name_the_schema_and_agree_with_it(validator, path):
    line = path.read_text().splitlines()[0]
    assert line.startswith("# yaml-language-server: $schema=")
    assert (path.parent / line.partition("=")[2]).resolve() == ROOT / "docs" / "job.schema.json"
    assert not list(validator.iter_errors(read_yaml(path.read_text())))


def test_classes_of_other_packages_are_left_to_the_reader(validator):
    guests = {
        "model": {"allocation": "pitman.PitmanYor", "observation": {"type": "negbin.NegativeBinomial", "r": 2.0}},
        "data": {"type": "rows.SqliteRows", "path": "x.db"},
        "client": {"type": "pool.Pool", "size": 2},
    }
    assert not list(validator.iter_errors(guests))


def test_every_class_and_setting_is_described():
    schema = job_schema()
    assert json.loads(schema_text()) == schema and yaml.safe_load(schema_text()) == schema
    for role, known in ROLES.items():
        assert {f"#/definitions/{kind}" for kind in known} <= {
            o.get("$ref") for o in schema["definitions"][role]["anyOf"]
        }
        for kind in known:
            found = schema["definitions"][kind]
            silent = [n for n, setting in found["properties"].items() if n != "type" and "description" not in setting]
            assert found["description"] and not silent, (kind, silent)
    assert all("description" in setting for setting in schema["properties"].values())
