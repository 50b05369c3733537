"""Job files: what they build, and what they say about every kind of mistake."""

import os
import time

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli.jobfile import ClientSpec, UpdateSpec, parse_job, read_job, to_text, with_laps, with_store
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.store import JOB_NAME, RunStore

BASE = """
model:
  allocation: {type: DPMixture, gamma: 10}
  observation: {type: DiagGaussian, nu: 4}
data: atoms.npy
"""


def job_of(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return read_job(path)


def changed(**parts):
    return yaml.safe_dump({**yaml.safe_load(BASE), **parts})


def test_a_full_job(tmp_path):
    job = job_of(
        tmp_path,
        """
model:
  allocation: {type: FiniteMixture, gamma: 2.5, top: 3}
  observation: {type: Gaussian, nu: 5, B: [[1, 0], [0, 2]], m: 0}
  estimate: map
data: {path: sub/atoms.npy, batch_size: 100}
init: {type: RandomExamples, n_clusters: 4}
schedule: {type: Stochastic, decay: 0.7, tolerance: 1e-3}
client: {workers: 3, memory_limit: 2GB}
store: ~/run
rng: 7
checkpoint_minutes: 1
""",
    )
    assert job.model.allocation == bnp.FiniteMixture(2.5, top=3)
    assert job.model.estimate == "map"
    np.testing.assert_array_equal(job.model.observation.B, [[1.0, 0.0], [0.0, 2.0]])
    assert job.init == bnp.RandomExamples(4)
    assert job.schedule == bnp.Stochastic(decay=0.7, tolerance=1e-3)
    assert job.client == ClientSpec(workers=3, memory_limit="2GB")
    assert job.data.path == str(tmp_path / "sub" / "atoms.npy")
    assert job.data.batch_size == 100
    assert job.store is not None
    assert "~" not in job.store
    assert (job.rng, job.checkpoint_minutes) == (7, 1.0)


def test_what_is_left_out_is_left_to_train(tmp_path):
    job = job_of(tmp_path, BASE)
    assert (job.init, job.schedule, job.store, job.rng) == (None, None, None, 0)
    assert job.client == ClientSpec()


def test_product_of_likelihoods_and_arrays_from_files(tmp_path):
    np.save(tmp_path / "lam.npy", np.array([0.5, 2.0]))
    job = job_of(
        tmp_path,
        changed(
            model={
                "allocation": "DPMixture",
                "observation": {
                    "type": "Product",
                    "groups": {"0:3": "Gaussian", "3,4": {"type": "Bernoulli", "lam1": "lam.npy"}},
                },
            }
        ),
    )
    columns, parts = zip(*job.model.observation.groups)
    assert columns == ("0:3", "3,4")
    assert isinstance(parts[0], bnp.Gaussian)
    np.testing.assert_array_equal(parts[1].lam1, [0.5, 2.0])


def test_labels_as_a_start(tmp_path):
    job = job_of(tmp_path, changed(init={"type": "Responsibilities", "resp": [0, 1, 1]}))
    np.testing.assert_array_equal(job.init.resp, [0, 1, 1])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"schedul": "Memoized"}, r"run\.yaml: schedul: there is no such setting; did you mean 'schedule'"),
        ({"model": {"allocation": {"type": "DPMixture", "gama": 1}, "observation": "Gaussian"}},
         r"model\.allocation\.gama: there is no such setting; did you mean 'gamma'"),
        ({"model": {"allocation": "DPMixtur", "observation": "Gaussian"}}, "allocation: .* did you mean 'DPMixture'"),
        ({"model": {"allocation": "DPMixture", "observation": "gausian"}}, "observation: .* did you mean 'Gaussian'"),
        ({"model": {"allocation": "DPMixture"}}, r"model\.observation: is missing"),
        ({"model": {"allocation": {"gamma": 1}, "observation": "Gaussian"}}, r"model\.allocation: needs 'type'"),
        ({"model": {"allocation": {"type": "DPMixture", "gamma": "ten"}, "observation": "Gaussian"}},
         r"model\.allocation\.gamma: found 'ten', needs a number"),
        ({"model": {"allocation": {"type": "DPMixture", "gamma": -1}, "observation": "Gaussian"}},
         r"model\.allocation: gamma=-1\.0: needs a positive"),
        ({"model": {"allocation": "DPMixture", "observation": {"type": "Gaussian", "B": "B.npy"}}},
         r"model\.observation\.B: cannot read 'B\.npy'"),
        ({"model": {"allocation": "DPMixture", "observation": {"type": "Gaussian", "m": ["a"]}}},
         r"model\.observation\.m: found \['a'\], needs numbers"),
        ({"schedule": {"type": "Memoized", "laps": 2.5}}, r"schedule\.laps: found 2\.5, needs a whole number"),
        ({"schedule": {"type": "Memoized", "laps": True}}, r"schedule\.laps: found True, needs a whole number"),
        ({"schedule": {"type": "Memoized", "laps": 0}}, r"schedule: laps=0: needs a whole number, at least 1"),
        ({"schedule": {"type": "Memoized", "order": "shufled"}}, r"schedule\.order: .* did you mean 'shuffled'"),
        ({"data": {"path": "x.npy", "batchsize": 3}}, r"data\.batchsize: .* did you mean 'batch_size'"),
        ({"data": {"path": "x.npy", "columns": "a"}}, r"data\.columns: found 'a', needs a list"),
        ({"data": 3}, "data: found 3, needs settings"),
        ({"client": {"workers": 2, "scheduler": "tcp://a:1"}}, "workers and scheduler are given; needs one place"),
        ({"client": {"memory_limit": "2GB"}}, "give workers too"),
        ({"client": {"wokers": 2}}, r"client\.wokers: .* did you mean 'workers'"),
        ({"rng": 1.5}, r"rng: found 1\.5, needs a whole number"),
        ({"rng": -1}, "rng: found -1, needs a whole number, at least 0"),
        ({"rng": 10**400}, r"a whole number of more than 100 digits \(line \d+, column \d+\)"),
        ({"model": {"allocation": {"type": "DPMixture", "gamma": 10**400}, "observation": "Gaussian"}},
         "a whole number of more than 100 digits"),
        ({"checkpoint_minutes": [1]}, r"checkpoint_minutes: found \[1\], needs a number"),
        ({"store": "a\0b"}, "store: .*no path can hold a NUL"),
        ({"store": "x" * 300}, "store: .*a name of 300 bytes"),
        ({"store": ""}, "store: an empty path"),
        ({"data": "~no-such-user/x.npy"}, r"data\.path: .*there is no user 'no-such-user'"),
        ({"folder": "~no-such-user"}, "folder: .*there is no user"),
        ({"client": {"scheduler_file": "\ud800"}}, r"client\.scheduler_file: .*no path can hold"),
        ({"init": {"type": "FromPosterior", "posterior": "a\0b"}}, r"init\.posterior: .*NUL"),
        ({"model": {"allocation": "DPMixture", "observation": {"type": "DiagGaussian", "m": "run.yaml"}}},
         r"observation\.m: cannot read 'run\.yaml'"),
        ({"store": 5}, r"store: found 5, needs text"),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_their_path(tmp_path, parts, message):
    with pytest.raises(SettingError, match=message):
        job_of(tmp_path, changed(**parts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "not valid YAML"),
        ("rng: 1\nmodel: ]\n", r"\(line 2, column 8\)"),
        ("- 1", "the job: found .* needs settings"),
        ("", "the job is empty"),
        (BASE + "data: other.npy\n", "'data' is given twice"),
        ("a: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("a: !!int x", "a value does not fit its tag"),
        ("a: !!timestamp x", "a value does not fit its tag"),
        ("a: &x [*x]", "an alias stands for something that it is a part of"),
        ("a: " + "[" * 40 + "]" * 40, "more than 32 levels deep"),
        ("a: [" + "0," * 20_001 + "]", "more than 20,000 values and names; put arrays into .npy files"),
        ("a: " + "9" * 5000, "more than 100 digits"),
        ("a: 0x" + "f" * 5000, "more than 100 digits"),
        ("a: " + "x" * 10**6, "more than 1,000,000 characters"),
        ("a: \0", "not valid YAML"),
    ],
)
def test_files_that_are_no_jobs(tmp_path, text, message):
    with pytest.raises(SettingError, match=message):
        job_of(tmp_path, text)


def laughs(levels, top):
    """Aliases of aliases: nine of each level in the next."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join([*lines, f"{top}: *a{levels - 1}"])


@pytest.mark.parametrize("top", ["model", "data", "moves", "store", "rng", "nonsense"])
def test_aliases_that_stand_for_more_than_any_memory_holds(tmp_path, top):
    began = time.monotonic()
    with pytest.raises(SettingError, match="with every alias out in full") as caught:
        job_of(tmp_path, laughs(30, top))
    assert time.monotonic() - began < 5
    assert len(str(caught.value)) < 500


def test_long_texts_are_not_made_longer_by_aliases(tmp_path):
    text = f"a: &a {'x' * 900_000}\nb: [{', '.join(['*a'] * 1000)}]"
    with pytest.raises(SettingError, match="1,000,000 characters in them"):
        job_of(tmp_path, text)


def test_aliases_within_reason_are_what_they_stand_for(tmp_path):
    text = BASE.replace("data: atoms.npy", "data: &path atoms.npy") + "store: *path\n"
    assert job_of(tmp_path, text).store == str(tmp_path / "atoms.npy")


@pytest.mark.long
def test_a_job_at_the_limits_can_be_resumed(tmp_path):
    """What is kept of it has more values, names and characters than it had itself."""
    resp = [0, 1] * 9_980
    job = job_of(tmp_path, changed(init={"type": "Responsibilities", "resp": resp}))
    (tmp_path / JOB_NAME).write_text(to_text(job))
    np.testing.assert_array_equal(read_job(tmp_path / JOB_NAME).init.resp, resp)


@pytest.mark.parametrize("content", [b"\xff\xfe" + BASE.encode("utf-16-le"), b"\x80", bytes(range(256))])
def test_other_encodings(tmp_path, content):
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(SettingError, match=r"is no job file|not valid YAML"):
        read_job(tmp_path / "run.yaml")


def test_a_file_without_end():
    with pytest.raises(SettingError, match="more than 1,000,000 characters"):
        read_job("/dev/zero")


def test_dates_are_names(tmp_path):
    assert job_of(tmp_path, changed() + "store: 2026-01-31\n").store == str(tmp_path / "2026-01-31")


def test_a_full_disk_under_the_copy_is_an_error_of_ours(tmp_path, monkeypatch):
    job = job_of(tmp_path, BASE)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left on device"):
        RunStore.create(tmp_path / "run", {}, {JOB_NAME: to_text(job).encode()})
    assert not (tmp_path / "run" / JOB_NAME).exists()
    assert not RunStore.exists(tmp_path / "run")


def test_a_missing_file(tmp_path):
    with pytest.raises(SettingError, match="cannot read the job file"):
        read_job(tmp_path / "nothing.yaml")


def test_environment_variables_are_not_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "value")
    assert job_of(tmp_path, changed(data="${SECRET}.npy")).data.path == str(tmp_path / "${SECRET}.npy")
    with pytest.raises(
        SettingError, match="store: '.SECRET/run': variables of the environment are not replaced"
    ) as told:
        job_of(tmp_path, changed(store="$SECRET/run"))  # a folder of this name is hardly meant
    assert "value" not in str(told.value)
    (tmp_path / "$SECRET").mkdir()
    monkeypatch.chdir(tmp_path)
    assert job_of(tmp_path, changed(store="$SECRET")).store == str(tmp_path / "$SECRET")


def test_urls_are_left_alone(tmp_path):
    assert job_of(tmp_path, changed(data="s3://bucket/x.zarr")).data.path == "s3://bucket/x.zarr"


def test_a_copy_elsewhere_means_the_same(tmp_path):
    np.save(tmp_path / "beta.npy", np.array([0.5, 2.0]))
    observation = {"type": "DiagGaussian", "beta": "beta.npy"}
    job = job_of(tmp_path, changed(store="run", model={"allocation": "DPMixture", "observation": observation}))
    other = tmp_path / "somewhere" / "else"
    other.mkdir(parents=True)
    (other / JOB_NAME).write_text(to_text(job))
    copy = read_job(other / JOB_NAME)
    assert (copy.data, copy.store) == (job.data, job.store)
    np.testing.assert_array_equal(copy.model.observation.beta, [0.5, 2.0])


def test_laps_and_store_can_be_replaced(tmp_path):
    job = job_of(tmp_path, changed(schedule={"type": "FullBatch", "window": 2}))
    assert with_laps(job, 7).schedule == bnp.FullBatch(laps=7, window=2)
    assert with_laps(job_of(tmp_path, BASE), 7).schedule == bnp.Memoized(laps=7)
    assert with_store(job, tmp_path / "x").store == str(tmp_path / "x")
    assert with_store(job, tmp_path / "x").data == job.data


def test_a_posterior_as_a_start_must_exist(tmp_path):
    content = yaml.safe_load(changed(init={"type": "FromPosterior", "posterior": "none.zarr"}))
    with pytest.raises(bnp.BnpDaskError, match=r"none\.zarr"):
        parse_job(content, tmp_path)


def test_a_topic_model_with_settings_of_its_document_step(tmp_path):
    step = {"start": "warm", "restarts": 2, "top": 4, "states": "float32"}
    model = {"allocation": {"type": "HDPTopics", "gamma": 5, "step": step}, "observation": "Multinomial"}
    job = job_of(tmp_path, changed(model=model))
    expected = bnp.DocumentStep("warm", restarts=2, top=4, states="float32")
    assert job.model.allocation == bnp.HDPTopics(5.0, step=expected)
    step["restart"] = 1
    with pytest.raises(SettingError, match=r"allocation\.step\.restart: .*did you mean 'restarts'"):
        job_of(tmp_path, changed(model=model))


def test_how_a_run_takes_in_more_data(tmp_path):
    given = {"revisit": 0, "half_life": "30d", "keep": "100 batches", "new_words": "drop", "versions": 3}
    job = job_of(tmp_path, changed(update=given))
    assert job.update == UpdateSpec(0.0, versions=3, half_life="30d", keep="100 batches", new_words="drop")
    assert job_of(tmp_path, BASE).update == UpdateSpec()
    for wrong, message in (
        ({"half_life": "3 months"}, "update: half_life='3 months': needs a length"),
        ({"revisit": -1}, "update: revisit=-1"),
        ({"revisits": 1}, "update.revisits: there is no such setting; did you mean 'revisit'"),
        ({"new_words": "ignore"}, "update.new_words: 'ignore' is none of add, drop"),
        ([1], "update: found \\[1\\], needs settings"),
    ):
        with pytest.raises(SettingError, match=message):
            job_of(tmp_path, changed(update=wrong))
