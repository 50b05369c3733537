"""Data and run on an object store: counted up there, trained, resumed, read and reported there."""

import logging
import os

import numpy as np
from moto.server import ThreadedMotoServer

import bnp_dask as bnp


def main(endpoint: str) -> None:
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "two",
        "AWS_ENDPOINT_URL": endpoint,
        "FSSPEC_S3_ENDPOINT_URL": endpoint,
    }
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.mkdir("bucket")
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(c, 1.0, (400, 2)) for c in ([0, 0], [8, 0], [0, 8])])
    rng.shuffle(x)
    with fs.open("bucket/points.npy", "wb") as file:
        np.save(file, x)
    print(bnp.ingest("s3://bucket/points.npy", "s3://bucket/points.zarr", batch_size=200))
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    first = bnp.train(model, "s3://bucket/points.zarr", store="s3://bucket/runs/points", rng=0)
    result = bnp.train(model, "s3://bucket/points.zarr", store="s3://bucket/runs/points", resume=True, rng=0)
    assert result.posterior.n_clusters == first.posterior.n_clusters
    bnp.predict(bnp.load("s3://bucket/runs/points"), "s3://bucket/points.zarr", out="s3://bucket/labels.parquet")
    bnp.report("s3://bucket/runs/points", "s3://bucket/report.html")
    print(fs.ls("bucket"))
    print("clusters:", result.posterior.n_clusters)


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        main(f"http://{host}:{port}")
    finally:
        server.stop()
