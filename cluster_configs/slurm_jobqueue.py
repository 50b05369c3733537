"""Train with workers that Slurm starts as they get through the queue (dask-jobqueue).

Start it where jobs may run for long and workers can connect to: scheduler and coordinator are both in this process.

    python slurm_jobqueue.py run.yaml --jobs 8
"""

import argparse

from dask_jobqueue import SLURMCluster
from distributed import Client

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="job file; its 'client' is not used")
    parser.add_argument("--jobs", type=int, default=4, help="Slurm jobs of workers at most")
    args = parser.parse_args()
    job = read_job(args.job)
    with SLURMCluster() as cluster, Client(cluster) as client:
        cluster.adapt(minimum_jobs=1, maximum_jobs=args.jobs)
        print(f"dashboard: {client.dashboard_link}")
        result = job.train(client, resume=job.store is not None, callbacks=[bnp.Progress()])
    print(result)


if __name__ == "__main__":
    main()
