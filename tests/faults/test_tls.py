"""Encrypted clusters: client, scheduler and workers that know one another by certificates."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
import yaml
from distributed import Client, default_client
from distributed.security import Security

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.cli.jobfile import ClientSpec, parse_job
from bnp_dask.errors import SettingError
from tests.faults import certificates
from tests.faults.parts import atoms, bits, go, quiet

pytestmark = [
    pytest.mark.skipif(not certificates.can_make(), reason="needs the cryptography package or openssl"),
    pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning"),
]


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("pem"))


@pytest.fixture
def cluster(warm_cluster, pem):
    """Two workers behind ``tls://``; everybody shows a certificate, and nobody talks in the clear."""
    party = {
        f"tls_{role}_{part}": str(getattr(pem, part))
        for role in ("scheduler", "worker", "client")
        for part in ("cert", "key")
    }
    security = Security(tls_ca_file=str(pem.authority), require_encryption=True, **party)
    return warm_cluster(2, security=security, protocol="tls", host="127.0.0.1")


def test_train_on_an_encrypted_cluster(cluster, pem, tmp_path):
    made, client = cluster
    assert made.scheduler_address.startswith("tls://")
    assert all(w.startswith("tls://") for w in client.scheduler_info(n_workers=-1)["workers"])
    assert bits(go(client)) == quiet("memoized with moves")
    with pytest.raises((OSError, TypeError)):
        Client(made.scheduler_address.replace("tls://", "tcp://"), timeout=2, set_as_default=False)
    stranger = certificates.make(tmp_path / "stranger")
    other = Security(
        tls_ca_file=str(stranger.authority), tls_client_cert=str(stranger.cert), tls_client_key=str(stranger.key)
    )
    with pytest.raises(OSError):
        Client(made.scheduler_address, timeout=2, security=other, set_as_default=False)


@pytest.mark.long
def test_the_command_line_on_an_encrypted_cluster(cluster, pem, tmp_path, monkeypatch, capsys):
    made, _ = cluster
    monkeypatch.chdir(tmp_path)
    np.save("atoms.npy", atoms())
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "atoms.npy", "batch_size": 200},
        "init": {"type": "BregmanKMeans", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 2},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    tls = ["--tls-ca-file", str(pem.authority), "--tls-cert", str(pem.cert), "--tls-key", str(pem.key)]
    assert main(["train", "run.yaml", "--store", "here"]) == 0
    assert main(["train", "run.yaml", "--store", "there", "--scheduler", made.scheduler_address, *tls]) == 0
    assert f"scheduler {made.scheduler_address}" in capsys.readouterr().out

    # the same in the job file, with the scheduler file
    contact = {"type": "Scheduler", "id": "s", "address": made.scheduler_address, "services": {}, "workers": {}}
    (tmp_path / "scheduler.json").write_text(json.dumps(contact))
    names = {"tls_ca_file": str(pem.authority), "tls_cert": str(pem.cert), "tls_key": str(pem.key)}
    job["client"] = {"scheduler_file": "scheduler.json", **names}
    (tmp_path / "tls.yaml").write_text(yaml.safe_dump(job))
    with dask.config.set({"scheduler-address": made.scheduler_address}):  # a file alone names no scheduler
        assert main(["train", "tls.yaml", "--store", "file"]) == 0

    # in Dask's configuration, as clusters are often set up
    config = {
        "distributed.comm.tls.ca-file": names["tls_ca_file"],
        "distributed.comm.tls.client.cert": names["tls_cert"],
    }
    with dask.config.set({**config, "distributed.comm.tls.client.key": names["tls_key"]}):
        assert main(["train", "run.yaml", "--store", "config", "--scheduler", made.scheduler_address]) == 0

    here = bnp.load("here/posterior.zarr")
    for store in ("there", "file", "config"):
        for name, value in here.summary.values.items():
            np.testing.assert_array_equal(bnp.load(f"{store}/posterior.zarr").summary[name], value)

    # without certificates, or with a file that is not there: one line that says so
    capsys.readouterr()
    assert main(["train", "run.yaml", "--store", "x", "--scheduler", made.scheduler_address]) == 2
    assert "cannot reach a scheduler at tls://" in capsys.readouterr().err
    with pytest.raises(ValueError, match="No clients"):  # what failed to connect is not everybody's client from now on
        default_client()
    assert main(["train", "run.yaml", "--store", "x", "--scheduler", "tls://127.0.0.1:1", *tls[:-1], "none.pem"]) == 2
    assert "there is no file none.pem" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scheduler": "tls://a:1", "tls_cert": "c.pem"}, "tls_cert without the others"),
        ({"workers": 2, "tls_ca_file": "a", "tls_cert": "c", "tls_key": "k"}, "give scheduler or scheduler_file"),
    ],
)
def test_half_a_set_of_certificates_is_refused(given, message):
    with pytest.raises(SettingError, match=message):
        ClientSpec(**given)


def test_certificates_of_a_job_file_lie_beside_it(tmp_path):
    names = {"tls_ca_file": "pem/ca.pem", "tls_cert": "pem/cert.pem", "tls_key": "/etc/key.pem"}
    model = {"allocation": "DPMixture", "observation": "Gaussian"}
    job = parse_job({"model": model, "data": "x.npy", "client": {"scheduler": "tls://a:1", **names}}, tmp_path)
    assert job.client.tls_ca_file == str(tmp_path / "pem/ca.pem")
    assert job.client.tls_key == "/etc/key.pem"
