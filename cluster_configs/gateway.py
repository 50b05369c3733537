"""Train with workers that a Dask Gateway starts (dask-gateway; its address comes from Dask's configuration).

Start it near the Gateway, such as in its JupyterHub: the coordinator is this process, the scheduler is the Gateway's.

    python gateway.py run.yaml --workers 8 --option image=bnp-dask:latest --option worker_cores=1
"""

import argparse

import yaml
from dask_gateway import Gateway

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job


def option(text: str) -> tuple[str, object]:
    """Name and value of an option of the Gateway; the value as YAML reads it."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, yaml.safe_load(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="job file; its 'client' is not used")
    parser.add_argument("--workers", type=int, default=4, help="workers at most")
    parser.add_argument(
        "--option", type=option, action="append", default=[], help="NAME=VALUE, of those that the Gateway offers"
    )
    args = parser.parse_args()
    job = read_job(args.job)
    with Gateway() as gateway:
        options = gateway.cluster_options()
        for name, value in args.option:
            options[name] = value
        with gateway.new_cluster(options) as cluster, cluster.get_client() as client:
            cluster.adapt(minimum=1, maximum=args.workers)
            print(f"dashboard: {client.dashboard_link}")
            result = job.train(client, resume=job.store is not None, callbacks=[bnp.Progress()])
    print(result)


if __name__ == "__main__":
    main()
