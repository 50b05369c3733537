"""Train with workers in the cloud that Coiled starts (coiled; ``coiled login`` once before).

Data and run lie on an object store of the region: ``store: s3://bucket/run`` in the job file.  Start it on a machine of
the region too, because every batch's summary comes to this process.  Coiled installs on the workers what is installed
here.

    coiled run --region us-east-1 --vm-type m6i.large --file run.yaml python coiled_cluster.py run.yaml --workers 8
"""

import argparse

import coiled
import dask

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="job file; its 'client' is not used")
    parser.add_argument("--workers", type=int, default=4, help="workers at most")
    parser.add_argument("--region", help="region of the data, such as us-east-1")
    args = parser.parse_args()
    job = read_job(args.job)
    # Coiled sends the configuration of Dask in force here to scheduler and workers
    with (
        dask.config.set(bnp.worker_settings()),
        coiled.Cluster(
            n_workers=[1, args.workers], region=args.region, worker_cpu=2, worker_memory="8GiB",
            worker_options={"nthreads": 1}, spot_policy="spot_with_fallback",
        ) as cluster,
        cluster.get_client() as client,
    ):  # fmt: skip
        print(f"dashboard: {client.dashboard_link}")
        result = job.train(client, resume=job.store is not None, callbacks=[bnp.Progress()])
    print(result)


if __name__ == "__main__":
    main()
